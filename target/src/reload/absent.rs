//! What is waited for: it is taken in as soon as it is there.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use capstan_subsystem::PortId;

use super::{Served, Step};
use crate::absent::{Awaited, Wait, why_not_there};
use crate::control_plane::ControlPlane;
use crate::listening::{self, AtStart};

impl Served {
    /// What is configured and not served yet.
    pub(crate) fn waits(&self) -> &[Wait] {
        &self.waits
    }

    /// Of a target that starts: of its listeners those that are not there, and what its
    /// configuration has as absent.
    pub(crate) fn wait_for(&mut self, listeners: &[AtStart]) {
        let waits = listeners
            .iter()
            .filter_map(|of| Some(new(Awaited::Listener(of.port), of.absent.clone()?)));
        self.waits = waits.collect();
        self.wait_for_absent();
        // Exports were told of when they were looked at.
        let untold = |wait: &&Wait| !matches!(wait.of, Awaited::Export(_));
        for wait in self.waits.iter().filter(untold) {
            tracing::error!("{}", self.in_words(wait));
        }
    }

    /// What the configuration has as absent is waited for, as it was before; of what is not
    /// configured any more, nothing.
    pub(super) fn wait_for_absent(&mut self) {
        let before = mem::take(&mut self.waits);
        let ports = self.ports.ids();
        let known = |of: &Awaited| before.iter().find(|wait| wait.of == *of).cloned();
        let listeners = before
            .iter()
            .filter(|wait| matches!(wait.of, Awaited::Listener(port) if ports.contains(&port)));
        let subsystems = self.config.subsystems.iter();
        let namespaces = subsystems.flat_map(|of| {
            let absent = of.absent.iter();
            absent.map(|namespace| Awaited::Namespace(of.nqn.clone(), namespace.nsid))
        });
        let namespaces = namespaces.map(|of| {
            known(&of).unwrap_or_else(|| {
                let why = why_not_there(&of, &self.config, &[]);
                new(of, why.unwrap_or_else(|| "it was not there".to_owned()))
            })
        });
        let absent = self.config.nfs.iter().flat_map(|nfs| &nfs.absent);
        let exports = absent.map(|export| {
            let of = Awaited::Export(export.client_path.clone());
            known(&of).unwrap_or_else(|| {
                // Not looked at: a file system that does not answer would hold this up.
                let path = export.path.display();
                new(
                    of,
                    format!("nothing is at {path}, or its file system does not answer"),
                )
            })
        });
        self.waits = listeners
            .cloned()
            .chain(namespaces)
            .chain(exports)
            .collect();
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

    /// Serves what of that `answers` and is there now, each alone. Returns how many these are.
    pub(super) fn take_in_there(
        &mut self,
        answers: impl Fn(&Awaited) -> bool,
        control: &Arc<ControlPlane>,
        reactors: usize,
    ) -> usize {
        let before = self.waits.len();
        let waits: Vec<_> = self.waits.iter().map(|wait| wait.of.clone()).collect();
        for of in waits.into_iter().filter(answers) {
            let why = why_not_there(&of, &self.config, &self.ports());
            self.looked(&of, why, control, reactors);
        }
        before.saturating_sub(self.waits.len())
    }

    /// Takes in that something which is waited for is not there, and `why`; without that it is, and
    /// is served. What keeps it from being served is told, and is why it is waited for from then
    /// on. Returns whether anything is new.
    pub(crate) fn looked(
        &mut self,
        awaited: &Awaited,
        why: Option<String>,
        control: &Arc<ControlPlane>,
        reactors: usize,
    ) -> bool {
        let is_it = |wait: &Wait| wait.of == *awaited;
        // A reload may have taken it out meanwhile.
        if !self.waits.iter().any(is_it) {
            return false;
        }
        let is_there = why.is_none();
        let why = match why {
            Some(why) => why,
            None => match self.take_in(awaited, control, reactors) {
                Ok(()) => {
                    self.waits.retain(|wait| !is_it(wait));
                    return true;
                }
                Err(error) => format!("{error:#}"),
            },
        };
        let Some(wait) = self.waits.iter_mut().find(|wait| is_it(wait)) else {
            return true;
        };
        wait.failures = if is_there { wait.failures + 1 } else { 0 };
        let is_new = wait.why != why;
        if is_new && is_there {
            tracing::error!("{awaited} is there, and cannot be served: {why}; it is tried again");
        }
        wait.why = why;
        is_new
    }

    fn take_in(
        &mut self,
        awaited: &Awaited,
        control: &Arc<ControlPlane>,
        reactors: usize,
    ) -> anyhow::Result<()> {
        match awaited {
            Awaited::Listener(port) => self.take_in_listener(*port, control),
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
                let served = self.carry_out(&wanted, control, reactors, Step::TakeIn);
                self.unknown.extend(unknown);
                served.map(drop)
            }
            Awaited::Export(path) => self.take_in_export(path),
        }
    }

    fn take_in_listener(
        &mut self,
        port: PortId,
        control: &Arc<ControlPlane>,
    ) -> anyhow::Result<()> {
        let listener = self.ports.listener(port);
        let listener = listener.context("it is not configured any more")?;
        listening::take_in(control, &listener, port, &self.config.listeners)?;
        tracing::info!("listening at {}, which is there now", listener.address);
        Ok(())
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
        tracing::info!("export {path} is there now");
        Ok(())
    }
}

fn new(of: Awaited, why: String) -> Wait {
    Wait {
        of,
        why,
        since: Instant::now(),
        failures: 0,
    }
}
