//! What is waited for: it is taken in as soon as it is there.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use capstan_subsystem::PortId;

use super::{Served, Step};
use crate::absent::{Awaited, Wait, missing_under};
use crate::control_plane::ControlPlane;
use crate::listening::{self, AtStart};

/// Why a namespace is waited for that has come meanwhile.
const THERE: &str = "it was not there";

impl Served {
    /// What is configured and not served yet.
    pub(crate) fn waits(&self) -> &[Wait] {
        &self.waits
    }

    /// Of a target that starts: of its listeners those that are not there, and what its
    /// configuration has as absent.
    pub(crate) fn wait_for(&mut self, listeners: &[AtStart]) {
        let waits = listeners.iter().filter_map(|of| {
            let (of, why) = (Awaited::Listener(of.port), of.absent.clone()?);
            let since = Instant::now();
            Some(Wait { of, why, since })
        });
        self.waits = waits.collect();
        self.wait_for_absent();
        for wait in &self.waits {
            tracing::error!("{}", self.in_words(wait));
        }
    }

    /// What the configuration has as absent is waited for, since when it was before; of what is not
    /// configured any more, nothing.
    pub(super) fn wait_for_absent(&mut self) {
        let before = mem::take(&mut self.waits);
        let ports = self.ports.ids();
        let since = |of: &Awaited| {
            let known = before.iter().find(|wait| wait.of == *of);
            known.map_or_else(Instant::now, |wait| wait.since)
        };
        let listeners = before
            .iter()
            .filter(|wait| matches!(wait.of, Awaited::Listener(port) if ports.contains(&port)));
        let subsystems = self.config.subsystems.iter();
        let namespaces = subsystems.flat_map(|of| {
            let absent = of.absent.iter();
            absent.map(|namespace| {
                let why = missing_under(namespace);
                let of = Awaited::Namespace(of.nqn.clone(), namespace.nsid);
                (of, why.unwrap_or_else(|| THERE.to_owned()))
            })
        });
        let absent = self.config.nfs.iter().flat_map(|nfs| &nfs.absent);
        let exports = absent.map(|export| {
            // Not looked at: a file system that does not answer would hold this up.
            let why = format!(
                "nothing is at {}, or its file system does not answer",
                export.path.display()
            );
            (Awaited::Export(export.client_path.clone()), why)
        });
        let others = namespaces.chain(exports).map(|(of, why)| {
            let since = since(&of);
            Wait { of, why, since }
        });
        self.waits = listeners.cloned().chain(others).collect();
    }

    /// What is waited for, and what happens then.
    fn in_words(&self, wait: &Wait) -> String {
        let why = &wait.why;
        match &wait.of {
            Awaited::Listener(port) => {
                let listener = self.ports.listener(*port);
                let address = listener.map_or_else(String::new, |of| of.address.to_string());
                format!(
                    "no listener at {address} yet: {why}; there is one as soon as that is there, and `capstan-target status` says what is waited for"
                )
            }
            Awaited::Namespace(nqn, nsid) => format!(
                "namespace {nsid} of {nqn} is not served yet: {why}; it is as soon as that is there, and `capstan-target status` says what is waited for"
            ),
            Awaited::Export(path) => format!(
                "export {path} is not served yet: {why}; it is as soon as that is there, and its clients wait until then"
            ),
        }
    }

    /// Serves what is there now, unless a reload has taken it out or in meanwhile. Returns that in
    /// words.
    ///
    /// # Errors
    /// It cannot be served.
    pub(crate) fn take_in(
        &mut self,
        awaited: &Awaited,
        control: &Arc<ControlPlane>,
        reactors: usize,
    ) -> anyhow::Result<String> {
        let words = match awaited {
            Awaited::Listener(port) => self.take_in_listener(*port, control)?,
            Awaited::Namespace(nqn, nsid) => {
                let mut wanted = self.config.clone();
                let mut subsystems = wanted.subsystems.iter_mut();
                if let Some(of) = subsystems.find(|of| of.nqn == *nqn) {
                    let there = of.absent.extract_if(.., |of| of.nsid == *nsid);
                    of.namespaces.extend(there);
                    of.namespaces.sort_by_key(|of| of.nsid);
                }
                // They are in no configuration that is served, and would be forgotten.
                let unknown = mem::take(&mut self.unknown);
                let served = self.carry_out(&wanted, control, reactors, Step::Whole);
                self.unknown.extend(unknown);
                served?.namespaces.join("; ")
            }
            Awaited::Export(path) => {
                self.take_in_export(path)?;
                format!("export {path} is served")
            }
        };
        self.waits.retain(|wait| wait.of != *awaited);
        Ok(words)
    }

    fn take_in_listener(
        &mut self,
        port: PortId,
        control: &Arc<ControlPlane>,
    ) -> anyhow::Result<String> {
        let listener = self.ports.listener(port);
        let listener = listener.context("it is not configured any more")?;
        listening::take_in(control, &listener, port, &self.config.listeners)?;
        Ok(format!(
            "listening at {}, which is there now",
            listener.address
        ))
    }

    fn take_in_export(&mut self, path: &str) -> anyhow::Result<()> {
        let (Some(files), Some(nfs)) = (&self.nfs, &mut self.config.nfs) else {
            return Ok(());
        };
        let place = nfs.absent.iter().position(|of| of.client_path == path);
        let Some(place) = place else { return Ok(()) };
        let mut wanted = nfs.clone();
        let export = wanted.absent.remove(place);
        wanted.exports.push(export.clone());
        let fresh = files.prepare_beside(&wanted, &export)?;
        files.replace(fresh);
        *nfs = wanted;
        Ok(())
    }
}
