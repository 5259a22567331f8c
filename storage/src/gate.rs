//! A medium that holds some writes back until it is told to carry them out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use capstan_memory::RawBytes;

use crate::geometry::Geometry;
use crate::io::{Completion, Io, OpKind, Submitted};
use crate::volume::Volume;

/// How long a held operation waits between two looks at the gate, in microseconds.
const LOOK_EVERY_US: u64 = 1_000;

/// For tests: in front of every volume of a [`Store`](crate::Store), it holds the next writes for
/// as long as the test likes, while later ones pass.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// How many of the next operations that change the medium are to be held.
    next: AtomicUsize,
    /// How many are held.
    held: AtomicUsize,
    /// Counts the calls of [`Gate::release`].
    releases: AtomicUsize,
    /// Counts the calls of [`Volume::write_at_once`].
    asked: AtomicUsize,
}

impl Gate {
    /// Holds the next `operations` that change the medium.
    pub fn hold(&self, operations: usize) {
        self.0.next.store(operations, Ordering::SeqCst);
    }

    /// Operations that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::SeqCst)
    }

    /// Lets what is held be carried out, soon.
    pub fn release(&self) {
        self.0.next.store(0, Ordering::SeqCst);
        self.0.releases.fetch_add(1, Ordering::SeqCst);
    }

    /// How often a volume was asked to carry out a write at once, which none here does.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }

    fn takes_one(&self) -> bool {
        let one_less = |next: usize| next.checked_sub(1);
        let next = &self.0.next;
        let taken = next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        if taken.is_ok() {
            self.0.held.fetch_add(1, Ordering::SeqCst);
        }
        taken.is_ok()
    }

    fn releases(&self) -> usize {
        self.0.releases.load(Ordering::SeqCst)
    }
}

/// A volume behind a [`Gate`]. It offers no operation that is done at once, so that every write
/// passes here.
pub(crate) struct Gated {
    inner: Box<dyn Volume>,
    gate: Gate,
    held: Vec<Io>,
    /// How often the gate had been released when the first of them was held.
    releases: usize,
    look_us: u64,
}

impl Gated {
    pub(crate) fn new(inner: Box<dyn Volume>, gate: Gate) -> Self {
        Self {
            inner,
            gate,
            held: Vec::new(),
            releases: 0,
            look_us: 0,
        }
    }
}

impl Volume for Gated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn write_at_once(&self, _lba: u64, _lbas: u32, _data: RawBytes<'_>) -> bool {
        self.gate.0.asked.fetch_add(1, Ordering::SeqCst);
        false
    }

    fn submit(&mut self, io: Io, now_us: u64) -> Submitted {
        let changes = match io.op.kind() {
            OpKind::Write | OpKind::WriteZeroes | OpKind::Discard => true,
            OpKind::Read | OpKind::Flush => false,
        };
        let releases = self.gate.releases();
        if !changes || !self.gate.takes_one() {
            return self.inner.submit(io, now_us);
        }
        if self.held.is_empty() {
            self.releases = releases;
            self.look_us = now_us;
        }
        self.held.push(io);
        Submitted::Pending
    }

    fn poll(&mut self, now_us: u64, out: &mut Vec<Completion>) {
        if !self.held.is_empty() && self.releases != self.gate.releases() {
            for io in self.held.drain(..) {
                if let Submitted::Done(completion) = self.inner.submit(io, now_us) {
                    out.push(completion);
                }
                self.gate.0.held.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.look_us = now_us.saturating_add(LOOK_EVERY_US);
        self.inner.poll(now_us, out);
    }

    fn next_deadline_us(&self) -> Option<u64> {
        let own = (!self.held.is_empty()).then_some(self.look_us);
        own.into_iter().chain(self.inner.next_deadline_us()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Op;
    use crate::null::NullVolume;

    fn write(token: u64) -> Io {
        Io {
            token,
            op: Op::WriteZeroes {
                lba: 0,
                lbas: 1,
                deallocate: false,
                fua: false,
            },
            data: None,
        }
    }

    #[test]
    fn as_many_writes_are_held_as_was_said_and_those_behind_pass() {
        let gate = Gate::default();
        let null = NullVolume::new(512, 8, Arc::from("null:4096"));
        let mut volume = Gated::new(Box::new(null), gate.clone());
        assert_eq!(volume.next_deadline_us(), None);
        gate.hold(1);
        assert!(matches!(volume.submit(write(1), 5), Submitted::Pending));
        assert_eq!((gate.held(), volume.next_deadline_us()), (1, Some(5)));
        assert!(matches!(volume.submit(write(2), 6), Submitted::Done(_)));
        let mut out = Vec::new();
        volume.poll(7, &mut out);
        assert!(out.is_empty());
        assert_eq!(volume.next_deadline_us(), Some(7 + LOOK_EVERY_US));
        gate.release();
        volume.poll(8, &mut out);
        assert_eq!((out.len(), gate.held()), (1, 0));
        assert_eq!((out[0].token, volume.next_deadline_us()), (1, None));
    }
}
