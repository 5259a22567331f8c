//! What differs of the exports of two configurations, and how much is served.

use std::collections::{BTreeMap, BTreeSet};

use capstan_config::Config;
use capstan_exports::{ExportId, ExportSettings};

use super::Served;
use crate::nfs::Files;

/// How many have come, gone and changed, as the log tells of each by what its handles begin with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ExportsChanged {
    added: usize,
    removed: usize,
    changed: usize,
}

impl Served {
    /// What NFS clients get.
    pub(crate) const fn files_mut(&mut self) -> Option<&mut Files> {
        self.nfs.as_mut()
    }

    /// How many namespaces are served.
    pub(crate) fn namespaces(&self) -> usize {
        let subsystems = self.config.subsystems.iter();
        subsystems.map(|subsystem| subsystem.namespaces.len()).sum()
    }

    /// How many exports are served, where NFS is.
    pub(crate) fn exports(&self) -> Option<usize> {
        self.nfs.as_ref().filter(|files| files.is_served())?;
        Some(self.config.nfs.as_ref().map_or(0, |nfs| nfs.exports.len()))
    }
}

/// How many exports of one configuration, which do not answer there, are served in another.
pub(super) fn absent_and_served(absent: &Config, served: &Config) -> usize {
    let absent = absent.nfs.iter().flat_map(|nfs| &nfs.absent);
    let there = |path: &str| {
        let mut exports = served.nfs.iter().flat_map(|nfs| &nfs.exports);
        exports.any(|export| export.client_path == path)
    };
    absent.filter(|export| there(&export.client_path)).count()
}

impl ExportsChanged {
    pub(super) fn between(served: &Config, wanted: &Config) -> Self {
        let of = |config: &Config| {
            let nfs = config.nfs.iter();
            let exports = nfs.flat_map(|nfs| nfs.exports.iter().chain(&nfs.absent).cloned());
            let exports = exports.map(|export| (export.handle_id(), export));
            exports.collect::<BTreeMap<_, _>>()
        };
        let (before, after) = (of(served), of(wanted));
        let without = |of: &BTreeMap<ExportId, ExportSettings>, others: &BTreeMap<_, _>| {
            let alone = of.iter().filter(|(id, _)| !others.contains_key(*id));
            let paths = alone.map(|(_, export)| export.client_path.clone());
            paths.collect::<BTreeSet<_>>()
        };
        let (added, removed) = (without(&after, &before), without(&before, &after));
        // Those that have another id now.
        let renumbered = added.intersection(&removed).count();
        let is_changed = |(id, export)| before.get(id).is_some_and(|was| was != export);
        Self {
            added: added.len().saturating_sub(renumbered),
            removed: removed.len().saturating_sub(renumbered),
            changed: after
                .iter()
                .filter(|&of| is_changed(of))
                .count()
                .saturating_add(renumbered),
        }
    }

    /// Each number, and what it counts.
    pub(super) fn in_words(&self) -> [(usize, &'static str); 3] {
        [
            (self.added, "exports added"),
            (self.removed, "exports removed"),
            (self.changed, "exports changed"),
        ]
    }
}
