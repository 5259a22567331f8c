//! Namespaces as a controller shows them to its host, in immutable tables that I/O queues share.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use capstan_nvme_proto::log::ChangedNamespaceList;
use uuid::Uuid;
use zerocopy::FromZeros;

use crate::gate::{Closed, Gate};

/// The driver's name for what stores a namespace's blocks. This crate passes it through.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BackendId(pub u32);

/// Size and capabilities of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of a logical block: a power of two, 512 to 64 KiB.
    pub lba_bytes: u32,
    /// Logical blocks.
    pub lbas: u64,
    /// Written data may sit in a volatile cache until Flush.
    pub volatile_write_cache: bool,
    /// Dataset Management can deallocate.
    pub discard: bool,
    /// Write Zeroes can deallocate, and deallocated blocks read as zeroes. Without it Write Zeroes
    /// still works: the driver writes zeroes.
    pub write_zeroes: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// Transfer size and alignment the medium likes best, in bytes; less than a block says nothing.
    pub optimal_io_bytes: u32,
}

/// Identity of a namespace, the same for every host and for as long as its blocks are the same.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NamespaceIdentity {
    /// Namespace UUID.
    pub uuid: Option<Uuid>,
    /// Namespace Globally Unique Identifier.
    pub nguid: Option<[u8; 16]>,
    /// IEEE Extended Unique Identifier.
    pub eui64: Option<[u8; 8]>,
}

/// A namespace in the view of one controller. On its own cache lines: every command reads it.
#[derive(Clone, Debug)]
#[repr(align(128))]
pub struct Namespace {
    /// Namespace Identifier.
    pub nsid: u32,
    /// Where its blocks are.
    pub backend: BackendId,
    /// Size and capabilities.
    pub geometry: Geometry,
    /// Identity.
    pub identity: NamespaceIdentity,
    /// ANA Group Identifier.
    pub anagrpid: u32,
    /// Its reservations can persist through power loss.
    pub(crate) persistent: bool,
    /// What this controller's host may do right now.
    pub(crate) gate: Arc<Gate>,
}

impl Namespace {
    /// Whether the operator or a host protects it from writes.
    pub(crate) fn is_write_protected(&self) -> bool {
        self.geometry.read_only || self.gate.closed().has(Closed::WRITE_PROTECTED)
    }

    /// Whether nothing differs but the ANA group, of what a host could see or an I/O queue works
    /// with.
    fn is_same(&self, other: &Self) -> bool {
        let key = |of: &Self| (of.backend, of.geometry, of.identity, of.persistent);
        key(self) == key(other)
    }
}

/// NSIDs that changed since the host last asked: the Changed Attached Namespace List. NSIDs are at
/// most 1,024, so the list never overflows.
#[derive(Default, Debug)]
pub(crate) struct ChangedNamespaces(BTreeSet<u32>);

impl ChangedNamespaces {
    pub(crate) fn add(&mut self, nsids: &[u32]) {
        self.0.extend(nsids);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn page(&self) -> ChangedNamespaceList {
        let mut list = ChangedNamespaceList::new_zeroed();
        list.fill(self.0.iter().copied());
        list
    }
}

/// The namespaces one controller shows, sorted by NSID. Never changes: a change makes a new table
/// with a higher generation. On its own cache lines: every command reads it.
#[derive(Default, Debug)]
#[repr(align(128))]
pub struct NamespaceTable {
    generation: u64,
    namespaces: Box<[Namespace]>,
}

impl NamespaceTable {
    pub(crate) fn new(generation: u64, mut namespaces: Vec<Namespace>) -> Self {
        namespaces.sort_unstable_by_key(|namespace| namespace.nsid);
        Self {
            generation,
            namespaces: namespaces.into_boxed_slice(),
        }
    }

    /// Increases with every change; tables of one controller are ordered by it.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The namespace `nsid`.
    #[must_use]
    pub fn find(&self, nsid: u32) -> Option<&Namespace> {
        // NSIDs usually are 1, 2, 3, …: then the guess is right and nothing is searched.
        let guess = usize::try_from(nsid.checked_sub(1)?).ok()?;
        match self.namespaces.get(guess) {
            Some(namespace) if namespace.nsid == nsid => Some(namespace),
            Some(_) | None => {
                let at = self
                    .namespaces
                    .binary_search_by_key(&nsid, |namespace| namespace.nsid)
                    .ok()?;
                self.namespaces.get(at)
            }
        }
    }

    /// The highest NSID; 0 without a namespace.
    pub(crate) fn nsid_max(&self) -> u32 {
        self.namespaces.last().map_or(0, |namespace| namespace.nsid)
    }

    /// Whether a namespace of both is in another ANA group.
    pub(crate) fn is_regrouped(&self, other: &Self) -> bool {
        self.iter().any(|namespace| {
            let other = other.find(namespace.nsid);
            other.is_some_and(|other| other.anagrpid != namespace.anagrpid)
        })
    }

    /// NSIDs of the namespaces that only one of two tables has, or that differ between them.
    pub(crate) fn differences(&self, other: &Self) -> Vec<u32> {
        let alone = |a: &Self, b: &Self| -> Vec<u32> {
            a.iter()
                .filter(|namespace| b.find(namespace.nsid).is_none())
                .map(|namespace| namespace.nsid)
                .collect()
        };
        let mut nsids = alone(self, other);
        nsids.extend(alone(other, self));
        nsids.extend(
            self.iter()
                .filter(|namespace| {
                    other
                        .find(namespace.nsid)
                        .is_some_and(|other| !namespace.is_same(other))
                })
                .map(|namespace| namespace.nsid),
        );
        nsids
    }

    /// All namespaces, by increasing NSID.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Namespace> {
        self.namespaces.iter()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use alloc::vec;

    pub(crate) const GEOMETRY: Geometry = Geometry {
        lba_bytes: 512,
        lbas: 1000,
        volatile_write_cache: true,
        discard: true,
        write_zeroes: true,
        read_only: false,
        optimal_io_bytes: 4096,
    };

    pub(crate) fn namespace(nsid: u32) -> Namespace {
        Namespace {
            nsid,
            backend: BackendId(nsid),
            geometry: GEOMETRY,
            identity: NamespaceIdentity::default(),
            anagrpid: 1,
            persistent: false,
            gate: Arc::default(),
        }
    }

    #[test]
    fn namespaces_are_found_with_and_without_gaps() {
        let table = NamespaceTable::new(0, vec![namespace(7), namespace(1), namespace(3)]);
        for nsid in [1, 3, 7] {
            assert_eq!(table.find(nsid).unwrap().nsid, nsid);
        }
        for nsid in [0, 2, 4, 8, u32::MAX] {
            assert!(table.find(nsid).is_none(), "{nsid}");
        }
    }
}
