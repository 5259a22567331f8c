//! Files that are served and that others have taken the place of: each namespace has what is at its
//! path now, as after a start.
//!
//! Only where what hosts had stays when it is closed: it has another name, or they could not write
//! it. What was deleted is served on, as it has the only copy of what they wrote. What is at the
//! path is opened beside it, so that a reload which cannot open it changes nothing. Hosts see
//! another namespace; where the configuration says its UUID they would not, and it is served on.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;

use capstan_config::{Backing, Config, Namespace, Nqn};

use super::swapped::without;
use super::{Difference, FileId, Served, find};

/// A namespace that is to be opened anew.
pub(super) struct Replaced {
    subnqn: Nqn,
    namespace: Namespace,
    /// What has become of what was opened.
    kept: String,
}

impl Served {
    /// Those that may be `left` of which the configuration that is `wanted` has the same, and whose
    /// path leads to a file or device that is not served. Their paths are looked at: they have
    /// answered just now.
    pub(super) fn replaced(&self, wanted: &Config, left: &[(Nqn, u32, String)]) -> Vec<Replaced> {
        let replaced = left.iter().filter_map(|(subnqn, nsid, kept)| {
            let of = |config: &Config| {
                let mut subsystems = config.subsystems.iter();
                let subsystem = subsystems.find(|s| s.nqn == *subnqn)?;
                find(subsystem, *nsid).cloned()
            };
            let namespace = of(&self.config)?;
            let is_same = of(wanted)? == namespace;
            let is_seen = namespace.uuid.is_none();
            let can_be_opened =
                is_file_or_device(&namespace) && !self.files.contains_key(&FileId::of(&namespace)?);
            (is_same && is_seen && can_be_opened).then(|| Replaced {
                subnqn: subnqn.clone(),
                namespace,
                kept: kept.clone(),
            })
        });
        replaced.collect()
    }

    /// What is served but for those.
    pub(super) fn config_without(&self, replaced: &[Replaced]) -> Config {
        without(&self.config, |nqn, namespace| {
            let is_it = |one: &Replaced| one.subnqn == *nqn && one.namespace == *namespace;
            replaced.iter().any(is_it)
        })
    }
}

impl Difference {
    /// The medium of each is another one.
    pub(super) fn replace(&mut self, replaced: &[Replaced]) {
        for one in replaced {
            let place = (one.subnqn.clone(), one.namespace.nsid);
            self.namespaces_removed.push(place);
            let added = (one.subnqn.clone(), one.namespace.clone());
            self.namespaces_added.push(added);
        }
    }
}

impl Replaced {
    /// What has happened to it, in words.
    pub(super) fn in_words(&self) -> String {
        let Namespace { nsid, backing, .. } = &self.namespace;
        format!(
            "namespace {nsid} of {}: what is at {backing} now is served as another namespace; what was opened there {}",
            self.subnqn, self.kept
        )
    }
}

fn is_file_or_device(namespace: &Namespace) -> bool {
    let Backing::Path(path) = &namespace.backing else {
        return false;
    };
    fs::metadata(path).is_ok_and(|there| there.is_file() || there.file_type().is_block_device())
}
