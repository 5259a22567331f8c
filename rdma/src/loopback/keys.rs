//! Keys of one device: regions and windows, and every check an access goes through.

use std::fmt;

use super::span::Span;
use crate::contract::{Access, LKey, RKey, Sge, WcStatus};

/// Bits of a key below the index: they change each time an index is used again.
const GENERATION_BITS: u32 = 16;
/// Set in the generation part of an lkey, so that an lkey is never an rkey.
const LOCAL: u32 = 1 << (GENERATION_BITS - 1);

/// A region as its keys name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionKeys {
    pub(super) lkey: LKey,
    pub(super) rkey: RKey,
}

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyError {
    Unknown(u32),
    OtherDomain(u32),
    OtherQueuePair(u32),
    Unbound(u32),
    Access(u32, Access),
    Bounds(u32),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(key) => write!(f, "key {key:#010x} names no memory"),
            Self::OtherDomain(key) => write!(f, "key {key:#010x} is of another protection domain"),
            Self::OtherQueuePair(key) => write!(f, "window {key:#010x} is of another queue pair"),
            Self::Unbound(key) => write!(f, "window {key:#010x} is not bound"),
            Self::Access(key, access) => write!(f, "key {key:#010x} does not allow {access:?}"),
            Self::Bounds(key) => write!(f, "the range leaves the memory of key {key:#010x}"),
        }
    }
}

struct Region {
    pd: u32,
    span: Span,
    access: Access,
}

struct Binding {
    rkey: RKey,
    qp: u32,
    region: LKey,
    span: Span,
    access: Access,
}

struct Window {
    pd: u32,
    bound: Option<Binding>,
}

enum Entry {
    Free,
    /// Of a device that has gone; its owner still frees it.
    Dead,
    Region(Region),
    Window(Window),
}

struct Slot {
    generation: u32,
    entry: Entry,
}

/// The parameters of a bind work request.
pub(super) struct BindRequest {
    pub(super) rkey: RKey,
    pub(super) lkey: LKey,
    pub(super) addr: u64,
    pub(super) len_bytes: u64,
    pub(super) access: Access,
}

/// Every key of one device.
pub(super) struct KeyTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl KeyTable {
    pub(super) fn new() -> Self {
        // Index 0 stays empty: key 0 is never valid.
        let reserved = Slot {
            generation: 0,
            entry: Entry::Free,
        };
        Self {
            slots: vec![reserved],
            free: Vec::new(),
        }
    }

    /// Takes a slot; returns its index. `None` when all indexes are in use.
    fn insert(&mut self, entry: Entry) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok()?;
                if index >= 1 << (u32::BITS - GENERATION_BITS) {
                    return None;
                }
                self.slots.push(Slot {
                    generation: 0,
                    entry: Entry::Free,
                });
                index
            }
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.generation = next_generation(slot.generation);
        slot.entry = entry;
        Some(index)
    }

    fn slot(&self, key: u32) -> Option<&Slot> {
        self.slots.get((key >> GENERATION_BITS) as usize)
    }

    fn slot_mut(&mut self, key: u32) -> Option<&mut Slot> {
        self.slots.get_mut((key >> GENERATION_BITS) as usize)
    }

    pub(super) fn register(&mut self, pd: u32, span: Span, access: Access) -> Option<RegionKeys> {
        let index = self.insert(Entry::Region(Region { pd, span, access }))?;
        let generation = self.slots.get(index as usize)?.generation;
        let rkey = index << GENERATION_BITS | generation;
        Some(RegionKeys {
            lkey: LKey(rkey | LOCAL),
            rkey: RKey(rkey),
        })
    }

    /// A window, named by its first key; that one is not valid before it is bound.
    pub(super) fn allocate_window(&mut self, pd: u32) -> Option<RKey> {
        let index = self.insert(Entry::Window(Window { pd, bound: None }))?;
        let generation = self.slots.get(index as usize)?.generation;
        Some(RKey(index << GENERATION_BITS | generation))
    }

    /// Ends every key: the device has gone.
    pub(super) fn kill(&mut self) {
        for slot in &mut self.slots {
            if !matches!(slot.entry, Entry::Free) {
                slot.entry = Entry::Dead;
            }
        }
    }

    /// Frees the slot of a region or window.
    pub(super) fn remove(&mut self, key: u32) {
        let index = key >> GENERATION_BITS;
        if let Some(slot) = self.slot_mut(key) {
            slot.entry = Entry::Free;
            self.free.push(index);
        }
    }

    /// The next key of the window that `key` once named.
    pub(super) fn next_window_key(&mut self, key: RKey) -> RKey {
        let Some(slot) = self.slot_mut(key.0) else {
            return key;
        };
        slot.generation = next_generation(slot.generation);
        RKey(key.0 >> GENERATION_BITS << GENERATION_BITS | slot.generation)
    }

    fn region(&self, pd: u32, lkey: LKey) -> Result<&Region, KeyError> {
        match self.slot(lkey.0) {
            Some(Slot {
                generation,
                entry: Entry::Region(region),
            }) if lkey.0 & low_mask() == *generation | LOCAL => {
                if region.pd == pd {
                    Ok(region)
                } else {
                    Err(KeyError::OtherDomain(lkey.0))
                }
            }
            _ => Err(KeyError::Unknown(lkey.0)),
        }
    }

    /// The memory of an SGE, which needs `access`.
    pub(super) fn local(&self, pd: u32, sge: &Sge, access: Access) -> Result<Span, KeyError> {
        let region = self.region(pd, sge.lkey)?;
        if !region.access.contains(access) {
            return Err(KeyError::Access(sge.lkey.0, access));
        }
        let part = region.span.part(sge.addr, u64::from(sge.len_bytes));
        part.ok_or(KeyError::Bounds(sge.lkey.0))
    }

    /// The memory the peer names by `rkey` through queue pair `qp` of domain `pd`.
    pub(super) fn remote(
        &self,
        (pd, qp): (u32, u32),
        rkey: RKey,
        (addr, len_bytes): (u64, u64),
        access: Access,
    ) -> Result<Span, KeyError> {
        let slot = self.slot(rkey.0).ok_or(KeyError::Unknown(rkey.0))?;
        let (span, allowed) = match &slot.entry {
            Entry::Region(region) if rkey.0 & low_mask() == slot.generation => {
                if region.pd != pd {
                    return Err(KeyError::OtherDomain(rkey.0));
                }
                (&region.span, region.access)
            }
            Entry::Window(Window { bound, .. }) => {
                let bound = bound.as_ref().filter(|bound| bound.rkey == rkey);
                let bound = bound.ok_or(KeyError::Unbound(rkey.0))?;
                if bound.qp != qp {
                    return Err(KeyError::OtherQueuePair(rkey.0));
                }
                // The region under the window may have gone.
                self.region(pd, bound.region)?;
                (&bound.span, bound.access)
            }
            _ => return Err(KeyError::Unknown(rkey.0)),
        };
        if !allowed.contains(access) {
            return Err(KeyError::Access(rkey.0, access));
        }
        let part = span.part(addr, len_bytes);
        part.ok_or(KeyError::Bounds(rkey.0))
    }

    /// Binds a window on queue pair `qp` of domain `pd`.
    pub(super) fn bind(
        &mut self,
        (pd, qp): (u32, u32),
        request: &BindRequest,
    ) -> Result<(), WcStatus> {
        let region = self.region(pd, request.lkey);
        let region = region.map_err(|_| WcStatus::MwBindError)?;
        let needs_local = request.access.contains(Access::REMOTE_WRITE);
        if !region.access.contains(Access::MW_BIND)
            || needs_local && !region.access.contains(Access::LOCAL_WRITE)
        {
            return Err(WcStatus::MwBindError);
        }
        let span = region.span.part(request.addr, request.len_bytes);
        let binding = Binding {
            rkey: request.rkey,
            qp,
            region: request.lkey,
            span: span.ok_or(WcStatus::MwBindError)?,
            access: request.access,
        };
        match self.slot_mut(request.rkey.0) {
            Some(Slot {
                generation,
                entry: Entry::Window(window),
            }) if window.pd == pd
                && window.bound.is_none()
                && request.rkey.0 & low_mask() == *generation =>
            {
                window.bound = Some(binding);
                Ok(())
            }
            _ => Err(WcStatus::MwBindError),
        }
    }

    /// Invalidates the window `rkey` bound on `qp`.
    pub(super) fn invalidate(&mut self, qp: u32, rkey: RKey) -> Result<(), KeyError> {
        let slot = self.slot_mut(rkey.0).ok_or(KeyError::Unknown(rkey.0))?;
        let Entry::Window(window) = &mut slot.entry else {
            return Err(KeyError::Unknown(rkey.0));
        };
        match &window.bound {
            Some(bound) if bound.rkey == rkey && bound.qp == qp => {
                window.bound = None;
                Ok(())
            }
            Some(bound) if bound.rkey == rkey => Err(KeyError::OtherQueuePair(rkey.0)),
            _ => Err(KeyError::Unbound(rkey.0)),
        }
    }
}

fn low_mask() -> u32 {
    (1 << GENERATION_BITS) - 1
}

/// 1 to `LOCAL - 1`, then round.
fn next_generation(generation: u32) -> u32 {
    generation % (LOCAL - 1) + 1
}

#[cfg(test)]
mod tests {
    use capstan_memory::{Pages, Slab};

    use super::{BindRequest, KeyError, KeyTable, Span};
    use crate::contract::{Access, RKey, Sge};

    fn span() -> Span {
        let slab = Slab::new(4096, Pages::Ordinary).unwrap();
        Span::new(&slab, 100, 1000).unwrap()
    }

    #[test]
    fn a_key_used_again_differs() {
        let mut keys = KeyTable::new();
        let mut seen = Vec::new();
        for _ in 0..1000 {
            let region = keys.register(1, span(), Access::REMOTE_READ).unwrap();
            assert_ne!(region.lkey.0, region.rkey.0);
            assert!(!seen.contains(&region.rkey));
            seen.push(region.rkey);
            keys.remove(region.rkey.0);
        }
    }

    #[test]
    fn an_lkey_is_no_rkey_and_the_other_way_round() {
        let mut keys = KeyTable::new();
        let memory = span();
        let region = keys
            .register(1, memory.clone(), Access::REMOTE_READ)
            .unwrap();
        let range = (memory.addr(), 10);
        let as_rkey = RKey(region.lkey.0);
        let error = keys.remote((1, 1), as_rkey, range, Access::REMOTE_READ);
        assert_eq!(error.unwrap_err(), KeyError::Unknown(region.lkey.0));
        let sge = Sge {
            addr: memory.addr(),
            len_bytes: 10,
            lkey: crate::contract::LKey(region.rkey.0),
        };
        assert!(keys.local(1, &sge, Access::empty()).is_err());
    }

    #[test]
    fn a_window_dies_with_its_region() {
        let mut keys = KeyTable::new();
        let memory = span();
        let region = keys.register(1, memory.clone(), Access::MW_BIND).unwrap();
        let first = keys.allocate_window(1).unwrap();
        let rkey = keys.next_window_key(first);
        let request = BindRequest {
            rkey,
            lkey: region.lkey,
            addr: memory.addr(),
            len_bytes: 10,
            access: Access::REMOTE_READ,
        };
        keys.bind((1, 7), &request).unwrap();
        let range = (memory.addr(), 10);
        assert!(
            keys.remote((1, 7), rkey, range, Access::REMOTE_READ)
                .is_ok()
        );
        keys.remove(region.rkey.0);
        assert!(
            keys.remote((1, 7), rkey, range, Access::REMOTE_READ)
                .is_err()
        );
    }
}
