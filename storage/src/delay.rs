//! A volume that delays its operations.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::geometry::Geometry;
use crate::io::{Completion, Io, OpKind, Submitted};
use crate::volume::Volume;

/// How long operations are held before they reach the volume behind, by kind, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// [`crate::Op::Read`].
    pub read_us: u64,
    /// [`crate::Op::Write`].
    pub write_us: u64,
    /// [`crate::Op::Flush`].
    pub flush_us: u64,
    /// [`crate::Op::WriteZeroes`].
    pub write_zeroes_us: u64,
    /// [`crate::Op::Discard`].
    pub discard_us: u64,
    /// Up to this much more, different for every operation, so that operations overtake each other.
    pub jitter_us: u64,
    /// Decides the jitter: the same seed and operations give the same delays.
    pub seed: u64,
}

impl Delays {
    /// The same delay for every kind, without jitter.
    #[must_use]
    pub fn all(delay_us: u64) -> Self {
        Self {
            read_us: delay_us,
            write_us: delay_us,
            flush_us: delay_us,
            write_zeroes_us: delay_us,
            discard_us: delay_us,
            jitter_us: 0,
            seed: 0,
        }
    }

    fn of(&self, kind: OpKind) -> u64 {
        match kind {
            OpKind::Read => self.read_us,
            OpKind::Write => self.write_us,
            OpKind::Flush => self.flush_us,
            OpKind::WriteZeroes => self.write_zeroes_us,
            OpKind::Discard => self.discard_us,
        }
    }
}

/// Holds every operation for a while and then passes it to the volume behind. Time is only what
/// `now_us` says, so a run can be repeated exactly.
///
/// Operations are delayed before they reach the volume, not after: their effect comes late, too.
pub struct Delay {
    inner: Box<dyn Volume>,
    delays: Delays,
    random: u64,
    held: Held,
}

impl Delay {
    /// Delays the operations of `inner`.
    #[must_use]
    pub fn new(inner: Box<dyn Volume>, delays: Delays) -> Self {
        Self {
            inner,
            delays,
            random: delays.seed,
            held: Held::default(),
        }
    }

    fn jitter_us(&mut self) -> u64 {
        match self.delays.jitter_us.checked_add(1) {
            Some(1) => 0,
            Some(bound) => next_random(&mut self.random) % bound,
            None => next_random(&mut self.random),
        }
    }
}

impl Volume for Delay {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn submit(&mut self, io: Io, now_us: u64) -> Submitted {
        let delay_us = self
            .delays
            .of(io.op.kind())
            .saturating_add(self.jitter_us());
        if delay_us == 0 {
            return self.inner.submit(io, now_us);
        }
        self.held.push(now_us.saturating_add(delay_us), io);
        Submitted::Pending
    }

    fn poll(&mut self, now_us: u64, out: &mut Vec<Completion>) {
        self.held.release(now_us, &mut *self.inner, out);
        self.inner.poll(now_us, out);
    }

    fn next_deadline_us(&self) -> Option<u64> {
        earliest(self.held.next_deadline_us(), self.inner.next_deadline_us())
    }
}

/// Operations that are held until they are due; equal times in the order of submission.
#[derive(Default)]
pub(crate) struct Held {
    heap: BinaryHeap<Reverse<HeldIo>>,
    submitted: u64,
}

struct HeldIo {
    due_us: u64,
    order: u64,
    io: Io,
}

impl Held {
    pub(crate) fn push(&mut self, due_us: u64, io: Io) {
        self.heap.push(Reverse(HeldIo {
            due_us,
            order: self.submitted,
            io,
        }));
        self.submitted += 1;
    }

    /// Passes what is due to `inner`.
    pub(crate) fn release(
        &mut self,
        now_us: u64,
        inner: &mut dyn Volume,
        out: &mut Vec<Completion>,
    ) {
        while self
            .heap
            .peek()
            .is_some_and(|Reverse(first)| first.due_us <= now_us)
        {
            let Some(Reverse(first)) = self.heap.pop() else {
                return;
            };
            if let Submitted::Done(completion) = inner.submit(first.io, now_us) {
                out.push(completion);
            }
        }
    }

    pub(crate) fn next_deadline_us(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(first)| first.due_us)
    }
}

impl HeldIo {
    fn key(&self) -> (u64, u64) {
        (self.due_us, self.order)
    }
}

impl PartialEq for HeldIo {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for HeldIo {}

impl PartialOrd for HeldIo {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HeldIo {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The earlier of two deadlines, either of which may be missing.
pub(crate) fn earliest(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014): any seed will do, zero too.
pub(crate) fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::{Delay, Delays};
    use crate::io::{Io, Op, Submitted};
    use crate::testing::{data, pool, ram, read};
    use crate::volume::Volume;

    fn submit(volume: &mut Delay, token: u64, op: Op, now_us: u64) {
        let pool = pool(1 << 20);
        let data = Some(data(&pool, &[1; 4096]));
        assert!(matches!(
            volume.submit(Io { token, op, data }, now_us),
            Submitted::Pending
        ));
    }

    fn ended(volume: &mut Delay, now_us: u64) -> Vec<u64> {
        let mut out = Vec::new();
        volume.poll(now_us, &mut out);
        out.iter().map(|completion| completion.token).collect()
    }

    #[test]
    fn operations_end_at_their_time_and_not_before() {
        let delays = Delays {
            read_us: 10,
            write_us: 30,
            ..Delays::default()
        };
        let mut volume = Delay::new(ram(16), delays);
        submit(
            &mut volume,
            1,
            Op::Write {
                lba: 0,
                lbas: 1,
                fua: false,
            },
            100,
        );
        submit(&mut volume, 2, Op::Read { lba: 1, lbas: 1 }, 105);
        submit(&mut volume, 3, Op::Read { lba: 1, lbas: 1 }, 105);
        assert_eq!(volume.next_deadline_us(), Some(115));
        assert_eq!(ended(&mut volume, 114), [0; 0]);
        assert_eq!(ended(&mut volume, 115), [2, 3]);
        assert_eq!(volume.next_deadline_us(), Some(130));
        assert_eq!(ended(&mut volume, 1_000), [1]);
        assert_eq!(volume.next_deadline_us(), None);
    }

    #[test]
    fn without_a_delay_nothing_is_held() {
        let mut volume = Delay::new(ram(16), Delays::default());
        let io = Io {
            token: 1,
            op: Op::Flush,
            data: None,
        };
        assert!(matches!(volume.submit(io, 0), Submitted::Done(_)));
    }

    #[test]
    fn the_effect_comes_with_the_delay() {
        let delays = Delays {
            write_us: 10,
            ..Delays::default()
        };
        let mut volume = Delay::new(ram(16), delays);
        let pool = pool(1 << 20);
        submit(
            &mut volume,
            1,
            Op::Write {
                lba: 0,
                lbas: 1,
                fua: false,
            },
            0,
        );
        assert_eq!(read(&mut volume, &pool, 0, 1), [0; 4096]);
        assert_eq!(ended(&mut volume, 10), [1]);
        assert_eq!(read(&mut volume, &pool, 0, 1), [1; 4096]);
    }

    #[test]
    fn jitter_reorders_and_repeats_with_its_seed() {
        let order = |seed| {
            let mut volume = Delay::new(
                ram(16),
                Delays {
                    jitter_us: 1000,
                    seed,
                    ..Delays::all(10)
                },
            );
            for token in 0..50 {
                submit(&mut volume, token, Op::Read { lba: 0, lbas: 1 }, token);
            }
            assert_eq!(ended(&mut volume, 9), [0; 0]);
            ended(&mut volume, 1059)
        };
        let first = order(1);
        assert_eq!(first.len(), 50);
        assert!(
            !first.is_sorted(),
            "1 ms of jitter leaves 50 operations in order"
        );
        assert_eq!(first, order(1));
        assert_ne!(first, order(2));
    }
}
