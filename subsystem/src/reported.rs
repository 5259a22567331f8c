//! What a host has been told of namespaces in its association, and whether it may have found out by
//! that which namespace is under an NSID.

use alloc::collections::{BTreeMap, BTreeSet};

use capstan_nvme_proto::identify::Cns;

use crate::bounds::{LOOK_US_MAX, LOOKED_US_MAX};
use crate::namespace::NamespaceIdentity;

/// What a host has been told of NSIDs in this association. NSIDs are at most 1,024.
#[derive(Default, Debug)]
pub(crate) struct ReportedNamespaces {
    /// Gone, and not yet missing in a list that the host has read.
    unreported: BTreeMap<u32, NamespaceIdentity>,
    /// Missing in a list that the host has read, and not identified since.
    gone: BTreeSet<u32>,
    /// Those it has looked at since.
    looks: BTreeMap<u32, Look>,
}

/// What an Identify command tells of one namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reported {
    /// Which one it is: its Namespace Identification Descriptors.
    Identifiers,
    /// Size, format and capabilities, and identifiers too in some of the structures.
    Shape,
}

impl Reported {
    pub(crate) fn by(cns: Cns) -> Option<Self> {
        match cns {
            Cns::NAMESPACE_ID_DESCRIPTORS => Some(Self::Identifiers),
            Cns::NAMESPACE | Cns::NAMESPACE_IOCS | Cns::NAMESPACE_INDEPENDENT => Some(Self::Shape),
            _ => None,
        }
    }
}

/// How far a host has come in finding out which namespace is there.
#[derive(Debug)]
struct Look {
    identifiers: bool,
    shape: bool,
    /// Since it read the identifiers last.
    shapes_since: u8,
    /// It has decided by then, or reads no more.
    by_us: u64,
    /// It takes the namespace for the one that it means.
    done: bool,
}

impl Look {
    fn begin(now_us: u64) -> Self {
        Self {
            identifiers: false,
            shape: false,
            shapes_since: 0,
            by_us: now_us.saturating_add(LOOK_US_MAX),
            done: false,
        }
    }

    fn take(&mut self, reported: Reported, has_io_queues: bool, now_us: u64) {
        match reported {
            Reported::Identifiers => (self.identifiers, self.shapes_since) = (true, 0),
            Reported::Shape => {
                self.shape = true;
                self.shapes_since = self.shapes_since.saturating_add(1);
            }
        }
        if !self.identifiers || !self.shape {
            return;
        }
        // Linux reads the identifiers and the shape, compares, and only then reads the shape by
        // which it goes on. SPDK reads both before it connects a queue that could bring anything.
        self.done |= self.shapes_since >= 2 || !has_io_queues;
        self.by_us = self.by_us.min(now_us.saturating_add(LOOKED_US_MAX));
    }
}

impl ReportedNamespaces {
    pub(crate) fn add_gone(&mut self, nsid: u32, had: NamespaceIdentity) {
        self.unreported.entry(nsid).or_insert(had);
    }

    /// A host that sees another namespace in the place of one that it uses, and never that this is
    /// gone, may send on what was meant for the old one.
    pub(crate) fn hide(&self, nsid: u32, identity: &NamespaceIdentity) -> bool {
        self.unreported
            .get(&nsid)
            .is_some_and(|had| had != identity)
    }

    /// It is there again.
    pub(crate) fn shown(&mut self, nsid: u32) {
        self.unreported.remove(&nsid);
    }

    /// The host reads a list of NSIDs above this one, without these.
    pub(crate) fn list_read(&mut self, above: u32) {
        for nsid in self
            .unreported
            .split_off(&above.saturating_add(1))
            .into_keys()
        {
            self.looks.remove(&nsid);
            self.gone.insert(nsid);
        }
    }

    /// The host reads what is under an NSID now, having I/O queues or none yet.
    pub(crate) fn look(&mut self, nsid: u32, reported: Reported, has_io_queues: bool, now_us: u64) {
        self.gone.remove(&nsid);
        let look = self.looks.entry(nsid);
        look.or_insert_with(|| Look::begin(now_us))
            .take(reported, has_io_queues, now_us);
    }

    /// Looks that have lasted as long as a host needs to decide are done.
    pub(crate) fn end_looks(&mut self, now_us: u64) {
        for look in self.looks.values_mut() {
            look.done |= look.by_us <= now_us;
        }
    }

    /// When [`end_looks`](Self::end_looks) ends the one at this namespace.
    pub(crate) fn look_ends_us(&self, nsid: u32) -> Option<u64> {
        let look = self.looks.get(&nsid)?;
        (!look.done).then_some(look.by_us)
    }

    /// What the host sends there is for one that it has seen go.
    pub(crate) fn is_gone(&self, nsid: u32) -> bool {
        self.gone.contains(&nsid)
    }

    /// The host has found out which one is there.
    pub(crate) fn is_identified(&self, nsid: u32) -> bool {
        self.looks.get(&nsid).is_some_and(|look| look.done)
    }
}
