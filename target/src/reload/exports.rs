//! What differs of the exports of two configurations.

use std::collections::BTreeMap;

use capstan_config::Config;

/// How many have come, gone and changed, by their paths for clients.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ExportsChanged {
    added: usize,
    removed: usize,
    changed: usize,
}

impl ExportsChanged {
    pub(super) fn between(served: &Config, wanted: &Config) -> Self {
        let of = |config: &Config| {
            let exports = config.nfs.iter().flat_map(|nfs| nfs.exports.clone());
            let exports = exports.map(|export| (export.client_path.clone(), export));
            exports.collect::<BTreeMap<_, _>>()
        };
        let (before, after) = (of(served), of(wanted));
        let is_changed = |(path, export)| before.get(path).is_some_and(|was| was != export);
        Self {
            added: after
                .keys()
                .filter(|path| !before.contains_key(*path))
                .count(),
            removed: before
                .keys()
                .filter(|path| !after.contains_key(*path))
                .count(),
            changed: after.iter().filter(|&of| is_changed(of)).count(),
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
