//! What hosts see otherwise of namespaces that stay open: whether they may be written, their ANA
//! groups, and the states of these.
//!
//! A namespace that hosts could write stays open for writing when they may not any more: what they
//! wrote may still have to be flushed, or be found lost. One that was opened for reading only is
//! opened once more before hosts may write it, under the same name, as it is when its losses are
//! cleared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use capstan_config::{AnaState, Backing, Listener, Namespace, Nqn, Subsystem};
use capstan_subsystem::{ConfigError, PortId, Target};

use super::{Difference, FileId, Served};
use crate::control_plane::ControlPlane;
use crate::plan::{Export, Opening, ana_states};

/// A namespace as it is served and as it is wanted, which can become so while hosts use it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Altered {
    pub(super) subnqn: Nqn,
    pub(super) served: Namespace,
    pub(super) wanted: Namespace,
}

/// A namespace that was opened for reading only, and is opened for writing.
pub(super) struct Reopened {
    /// What it was opened as.
    before: Arc<Export>,
    pub(super) after: Arc<Export>,
}

impl Altered {
    /// `None`: something else differs as well, or nothing.
    pub(super) fn between(subnqn: &Nqn, served: &Namespace, wanted: &Namespace) -> Option<Self> {
        let as_wanted = Namespace {
            ana_group: wanted.ana_group,
            read_only: wanted.read_only,
            ..served.clone()
        };
        (served != wanted && as_wanted == *wanted).then(|| Self {
            subnqn: subnqn.clone(),
            served: served.clone(),
            wanted: wanted.clone(),
        })
    }

    /// Hosts may write it, and could not until now.
    pub(super) fn becomes_writable(&self) -> bool {
        self.served.read_only && !self.wanted.read_only
    }

    pub(super) fn is(&self, subnqn: &Nqn, namespace: &Namespace) -> bool {
        self.subnqn == *subnqn && self.wanted.nsid == namespace.nsid
    }

    fn place(&self) -> (Nqn, u32) {
        (self.subnqn.clone(), self.wanted.nsid)
    }

    /// Shows it to hosts as it is wanted; opened once more, its medium can do more.
    fn show(&self, target: &mut Target, reopened: &[Reopened]) -> Result<(), ConfigError> {
        let (subnqn, wanted) = (&self.subnqn, &self.wanted);
        let mut exports = reopened.iter().map(|of| &of.after);
        let export = exports.find(|of| (&of.subnqn, of.nsid) == (subnqn, wanted.nsid));
        match export {
            Some(export) => target.set_geometry(subnqn, wanted.nsid, export.shown)?,
            None if self.served.read_only != wanted.read_only => {
                target.set_read_only(subnqn, wanted.nsid, wanted.read_only)?;
            }
            None => {}
        }
        target.set_ana_group(subnqn, wanted.nsid, wanted.ana_group)
    }
}

impl fmt::Display for Altered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (served, wanted) = (&self.served, &self.wanted);
        write!(f, "namespace {} of {}:", wanted.nsid, self.subnqn)?;
        if served.ana_group != wanted.ana_group {
            let (before, after) = (served.ana_group, wanted.ana_group);
            write!(f, " ANA group {after}, and no longer {before}")?;
        }
        if served.read_only != wanted.read_only {
            let and = match served.ana_group == wanted.ana_group {
                true => "",
                false => ";",
            };
            let what = match wanted.read_only {
                true => "hosts can only read it",
                false => "hosts can write it",
            };
            write!(f, "{and} {what} from now on")?;
        }
        Ok(())
    }
}

impl Difference {
    /// Whether hosts may write it, and could not until now.
    pub(super) fn makes_writable(&self, subnqn: &Nqn, namespace: &Namespace) -> bool {
        let mut altered = self.namespaces_altered.iter();
        altered.any(|one| one.is(subnqn, namespace) && one.becomes_writable())
    }

    /// Shows to hosts what has changed of namespaces and groups that stay.
    pub(super) fn show_altered(
        &self,
        target: &mut Target,
        reopened: &[Reopened],
        numbers: &[PortId],
    ) -> Result<(), ConfigError> {
        for (subsystem, _) in &self.ana_changed {
            target.set_ana_states(&subsystem.nqn, ana_states(subsystem, numbers))?;
        }
        self.namespaces_altered
            .iter()
            .try_for_each(|altered| altered.show(target, reopened))
    }

    /// The states of groups that have changed, in words.
    pub(super) fn of_groups(&self, listeners: &[Listener]) -> impl Iterator<Item = String> {
        self.ana_changed.iter().flat_map(move |(now, before)| {
            let (now, nqn) = (states(now, listeners), &now.nqn);
            // What is left out of either is optimized.
            let keys: BTreeSet<_> = before.keys().chain(now.keys()).copied().collect();
            let changed = keys
                .into_iter()
                .filter(|key| before.get(key) != now.get(key));
            let words: Vec<_> = changed
                .map(|(by, group)| {
                    let state = now.get(&(by, group));
                    let state = state.unwrap_or(&AnaState::Optimized);
                    format!("ANA group {group} of {nqn} through {by}: {state} from now on")
                })
                .collect();
            words
        })
    }
}

/// States that are not optimized, by the address of the listener, whose number others may have
/// later, and the group.
pub(super) type States = BTreeMap<(SocketAddr, u32), AnaState>;

pub(super) fn states(subsystem: &Subsystem, listeners: &[Listener]) -> States {
    let states = subsystem.ana_states();
    states
        .filter_map(|(listener, group, state)| {
            let by = listeners.get(listener)?.address;
            Some(((by, group), state))
        })
        .collect()
}

impl Served {
    /// Prepares those that are open for reading only, and are to be written.
    ///
    /// # Errors
    /// One cannot be opened, or its path leads to something else than what is served.
    pub(super) fn reopen(
        &mut self,
        difference: &Difference,
        control: &ControlPlane,
        reactors: usize,
    ) -> anyhow::Result<Vec<Reopened>> {
        let writable = difference.namespaces_altered.iter();
        let writable: Vec<_> = writable.filter(|of| of.becomes_writable()).collect();
        let mut reopened = Vec::new();
        for altered in writable {
            let backend = self.backends.get(&altered.place());
            // What is in memory is never opened for reading only.
            let opened = backend.and_then(|backend| control.media().export(*backend));
            let Some(before) = opened.filter(|of| of.store.geometry().read_only) else {
                continue;
            };
            self.check_is_served(altered)?;
            let opening = Opening {
                reactors,
                waits: Duration::ZERO,
                lba_sizes: &mut self.lba_sizes,
                identities: &mut self.identities,
            };
            let backend = before.backend;
            let (after, _) = opening.export(&altered.subnqn, &altered.wanted, backend)?;
            reopened.push(Reopened {
                before: Arc::new(before),
                after: Arc::new(after),
            });
        }
        Ok(reopened)
    }

    /// Whether those are open for reading only.
    pub(super) fn is_reopened(
        &self,
        control: &ControlPlane,
        subnqn: &Nqn,
        namespace: &Namespace,
    ) -> bool {
        let backend = self.backends.get(&(subnqn.clone(), namespace.nsid));
        let opened = backend.and_then(|backend| control.media().export(*backend));
        opened.is_some_and(|of| of.store.geometry().read_only)
    }

    fn check_is_served(&self, altered: &Altered) -> anyhow::Result<()> {
        let Backing::Path(path) = &altered.wanted.backing else {
            return Ok(());
        };
        let there = FileId::of(&altered.wanted).and_then(|id| self.files.get(&id));
        if there == Some(&altered.place()) {
            return Ok(());
        }
        let (nsid, nqn) = (altered.wanted.nsid, &altered.subnqn);
        let path: &Path = path;
        bail!(
            "namespace {nsid} of {nqn} was opened for reading only, and what is at {} now is not what was opened, so hosts \
             cannot be let write it: move it back and reload, or take the namespace out of the file, reload, put it back \
             in, and reload again; nothing was changed",
            path.display()
        )
    }
}

/// The reactors have what was open before: the reload is not carried out.
pub(super) fn undo(reopened: &[Reopened], control: &ControlPlane, reactors: usize) {
    let before: Vec<_> = reopened.iter().map(|of| Arc::clone(&of.before)).collect();
    if let Err(error) = super::open(&before, control, reactors) {
        tracing::error!(%error, "namespaces that hosts can only read stay open for writing until the target is restarted");
    }
}

/// What was opened anew is watched instead of what it was, and what hosts see of it.
pub(super) fn watch(difference: &Difference, reopened: &[Reopened], control: &ControlPlane) {
    for Reopened { after, .. } in reopened {
        control.backend_opened(after);
    }
    for altered in &difference.namespaces_altered {
        let media = control.media();
        media.show_read_only(
            &altered.subnqn,
            altered.wanted.nsid,
            altered.wanted.read_only,
        );
    }
}
