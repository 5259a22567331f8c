//! What is remembered of each namespace on a file or device, and what follows from it. Nothing here
//! touches a file or device; `docs/durability.md` has the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use capstan_config::{Backing, NAMESPACES_MAX, Namespace, Nqn, Subsystem, other_namespace_uuid};
use capstan_storage::MediumId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::limits::NAMESPACES_KEPT;

/// A medium, and what leads to it now.
#[derive(Clone, Debug)]
pub(crate) struct Medium {
    pub(crate) path: PathBuf,
    pub(crate) id: MediumId,
    /// Of what lasts until the machine starts anew.
    pub(crate) boot: Option<Uuid>,
    /// Paths of other files with the same facts, which are there as well: a file system and its
    /// snapshot have such.
    pub(crate) twins: Vec<PathBuf>,
}

/// What is shown to hosts.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) nqn: Nqn,
    pub(crate) nsid: u32,
    pub(crate) uuid: Uuid,
    /// `None`: what does not last.
    pub(crate) on: Option<Medium>,
}

/// A namespace and the medium it was on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) nqn: String,
    pub(crate) nsid: u32,
    pub(crate) uuid: Uuid,
    pub(crate) path: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot: Option<Uuid>,
    #[serde(with = "facts")]
    medium: MediumId,
}

/// A medium in the file: what is known of it.
mod facts {
    use std::collections::BTreeMap;

    use capstan_storage::MediumId;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(id: &MediumId, to: S) -> Result<S::Ok, S::Error> {
        id.facts().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<MediumId, D::Error> {
        BTreeMap::<String, String>::deserialize(from).map(MediumId::from)
    }
}

impl Known {
    fn new(nqn: &Nqn, nsid: u32, uuid: Uuid, medium: &Medium) -> Self {
        Self {
            nqn: nqn.as_str().to_owned(),
            nsid,
            uuid,
            path: medium.path.clone(),
            boot: medium.boot,
            medium: medium.id.clone(),
        }
    }

    /// What it was on has the facts of this one.
    pub(crate) fn has_facts_of(&self, id: &MediumId) -> bool {
        self.medium.is_same(id) == Some(true)
    }

    fn is_at(&self, nqn: &Nqn, nsid: u32) -> bool {
        self.nsid == nsid && self.nqn == nqn.as_str()
    }

    /// What is not known of both is decided by the path.
    pub(crate) fn is_on(&self, medium: &Medium) -> bool {
        if self.boot != medium.boot {
            return false;
        }
        match self.medium.is_same(&medium.id) {
            Some(same) => same && !medium.twins.contains(&self.path),
            None => self.path == medium.path,
        }
    }
}

/// The identity of a namespace, and how it comes about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) uuid: Uuid,
    /// What hosts have seen there before, when that was another medium.
    pub(crate) before: Option<Known>,
}

/// What hosts have seen under an NQN and NSID, whatever it was on and whether that is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    nqn: String,
    nsid: u32,
    /// Last.
    uuid: Uuid,
    /// And others before: a host that has one of these may come back at any time.
    #[serde(default, skip_serializing_if = "is_false")]
    others: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Oldest first: the last of an NQN and NSID is what hosts have seen there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// There was more than is kept in `seen`.
    #[serde(default, skip_serializing_if = "is_false")]
    seen_was_cut: bool,
    #[serde(default)]
    seen: Vec<Seen>,
    #[serde(default)]
    namespace: Vec<Known>,
}

impl Table {
    pub(crate) fn is_empty(&self) -> bool {
        self.seen.is_empty() && self.namespace.is_empty()
    }

    /// Whether hosts have seen something other than `uuid` under this NQN and NSID.
    pub(crate) fn has_shown_others(&self, nqn: &Nqn, nsid: u32, uuid: Uuid) -> bool {
        match self.seen_at(nqn, nsid) {
            Some(seen) => seen.others || seen.uuid != uuid,
            None => self.seen_was_cut,
        }
    }

    fn seen_at(&self, nqn: &Nqn, nsid: u32) -> Option<&Seen> {
        let mut seen = self.seen.iter();
        seen.find(|seen| seen.nsid == nsid && seen.nqn == nqn.as_str())
    }

    /// Hosts see `uuid` there. Returns whether that is new.
    fn see(&mut self, nqn: &Nqn, nsid: u32, uuid: Uuid) -> bool {
        let is_there = |seen: &Seen| seen.nsid == nsid && seen.nqn == nqn.as_str();
        let others = self.has_shown_others(nqn, nsid, uuid);
        match self.seen.iter_mut().find(|seen| is_there(seen)) {
            Some(seen) if seen.uuid == uuid => return false,
            Some(seen) => (seen.uuid, seen.others) = (uuid, others),
            None => self.seen.push(Seen {
                nqn: nqn.as_str().to_owned(),
                nsid,
                uuid,
                others,
            }),
        }
        let too_many = self.seen.len().saturating_sub(NAMESPACES_KEPT);
        self.seen.drain(..too_many);
        self.seen_was_cut |= too_many > 0;
        true
    }

    pub(crate) fn all(&self) -> &[Known] {
        &self.namespace
    }

    /// What hosts have seen there last.
    pub(crate) fn last(&self, nqn: &Nqn, nsid: u32) -> Option<&Known> {
        self.namespace.iter().rfind(|known| known.is_at(nqn, nsid))
    }

    /// What was in memory under a path until this boot is nothing that could come back.
    pub(crate) fn forget_other_boots(&mut self, boot: Uuid) {
        let is_of_now = |known: &Known| known.boot.is_none_or(|of| of == boot);
        self.namespace.retain(is_of_now);
    }

    /// The UUID of a namespace: the `written` one, else that of its medium there, else `derived`
    /// where no host has seen another one there, else one of its own.
    pub(crate) fn choose(
        &self,
        nqn: &Nqn,
        nsid: u32,
        medium: &Medium,
        written: Option<Uuid>,
        derived: Uuid,
    ) -> Choice {
        let mut latest_first = self.namespace.iter().rev();
        let mut there = latest_first.clone().filter(|known| known.is_at(nqn, nsid));
        let before = there.clone().next();
        let known = there.find(|known| known.is_on(medium));
        let is_first = before.is_none() && self.seen_at(nqn, nsid).is_none() && !self.seen_was_cut;
        // A written UUID may have gone with its data to another place.
        let is_free = is_first && !latest_first.any(|known| known.uuid == derived);
        let uuid = written
            .or_else(|| known.map(|known| known.uuid))
            .unwrap_or_else(|| match is_free {
                true => derived,
                false => own_uuid(nqn, nsid, medium),
            });
        Choice {
            uuid,
            before: before.filter(|before| !before.is_on(medium)).cloned(),
        }
    }

    /// What this process has shown to hosts and the table does not say: it was removed, or is
    /// older. Returns whether there was anything.
    pub(crate) fn remember_missing(&mut self, shown: &Shown) -> bool {
        let is_there = match shown.on {
            // A UUID that another medium has by now was given to it.
            Some(_) => self.namespace.iter().any(|known| known.uuid == shown.uuid),
            None => true,
        };
        match is_there && self.seen_at(&shown.nqn, shown.nsid).is_some() {
            true => false,
            false => self.remember(shown),
        }
    }

    /// A namespace is shown to hosts. A UUID is that of the medium that had it last: an operator
    /// who gives it to a copy has said which one goes on. Returns whether anything is new.
    pub(crate) fn remember(&mut self, shown: &Shown) -> bool {
        let Shown { nqn, nsid, .. } = shown;
        let is_new = self.see(nqn, *nsid, shown.uuid);
        let Some(medium) = &shown.on else {
            return is_new;
        };
        let mut new = Known::new(nqn, *nsid, shown.uuid, medium);
        let is_there = |known: &Known| known.is_at(nqn, *nsid);
        if let Some(last) = self.namespace.iter().rfind(|known| is_there(known)) {
            // Not all is known at all times: of a loop device whose file is deleted less is.
            if last.is_on(medium) {
                new.medium = new.medium.and(&last.medium);
            }
            if *last == new {
                return is_new;
            }
        }
        self.namespace
            .retain(|known| known.uuid != new.uuid && !(is_there(known) && known.is_on(medium)));
        self.namespace.push(new);
        let too_many = self.namespace.len().saturating_sub(NAMESPACES_KEPT);
        self.namespace.drain(..too_many);
        true
    }

    /// Gives NSIDs to the namespaces of a subsystem for which none is written down: the one under
    /// which it is `served`, else the one that is remembered for its medium, else the lowest one
    /// that is left. So none of them moves when another one goes.
    pub(crate) fn number(
        &self,
        subsystem: &mut Subsystem,
        served: Option<&Subsystem>,
        medium_at: impl Fn(&Path) -> Option<Medium>,
    ) {
        let written = subsystem.configured().filter(|n| n.nsid_is_written);
        let mut taken: BTreeSet<u32> = written.map(|n| n.nsid).collect();
        let Subsystem {
            nqn,
            namespaces,
            absent,
            ..
        } = subsystem;
        let all = namespaces.iter_mut().chain(absent);
        let mut open: Vec<&mut Namespace> = all.filter(|n| !n.nsid_is_written).collect();
        // As the file has them.
        open.sort_by_key(|namespace| namespace.nsid);
        for namespace in &mut open {
            let served = served.into_iter().flat_map(Subsystem::configured);
            let nsids = served
                .filter(|served| served.backing == namespace.backing)
                .map(|served| served.nsid);
            let nsid = take(&mut taken, nsids);
            give(namespace, nsid);
        }
        let there = self
            .namespace
            .iter()
            .filter(|known| known.nqn == nqn.as_str());
        let latest: BTreeMap<u32, &Known> =
            there.clone().map(|known| (known.nsid, known)).collect();
        // What was there last goes before what was there once.
        for pass in [Remembered::Last, Remembered::Once] {
            for namespace in open.iter_mut().filter(|n| !n.nsid_is_written) {
                let Backing::Path(path) = &namespace.backing else {
                    continue;
                };
                let medium = medium_at(path);
                let is_on = |known: &Known| match &medium {
                    Some(medium) => known.is_on(medium),
                    None => known.path == *path,
                };
                let nsids = there.clone().rev().filter(|known| is_on(known));
                let nsids = nsids.filter(|&known| match pass {
                    Remembered::Last => latest.get(&known.nsid) == Some(&known),
                    Remembered::Once => true,
                });
                let nsid = take(&mut taken, nsids.map(|known| known.nsid));
                give(namespace, nsid);
            }
        }
        for namespace in open.iter_mut().filter(|n| !n.nsid_is_written) {
            // As many as namespaces: one is always left.
            give(namespace, take(&mut taken, 1..=NAMESPACES_MAX));
        }
        namespaces.sort_by_key(|namespace| namespace.nsid);
    }
}

/// Where the NSID of a medium comes from.
#[derive(Clone, Copy)]
enum Remembered {
    Last,
    Once,
}

/// Takes the first NSID that nothing has.
fn take(taken: &mut BTreeSet<u32>, mut nsids: impl Iterator<Item = u32>) -> Option<u32> {
    nsids.find(|&nsid| taken.insert(nsid))
}

fn give(namespace: &mut Namespace, nsid: Option<u32>) {
    if let Some(nsid) = nsid {
        namespace.nsid = nsid;
        namespace.nsid_is_written = true;
    }
}

fn own_uuid(nqn: &Nqn, nsid: u32, medium: &Medium) -> Uuid {
    let name = if medium.id.is_known() {
        medium.id.to_string()
    } else {
        format!("{}, path {}", medium.id, medium.path.display())
    };
    let uuid = other_namespace_uuid(nqn, nsid, &name);
    match medium.boot {
        Some(boot) => Uuid::new_v5(&boot, uuid.as_bytes()),
        None => uuid,
    }
}

#[cfg(test)]
mod tests;
