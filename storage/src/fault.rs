//! A volume with faults, for tests: which operation meets which fault is a value.

use std::ops::Range;
use std::sync::Arc;

use crate::delay::{Held, earliest};
use crate::error::{IoError, IoErrorKind};
use crate::geometry::Geometry;
use crate::io::{Completion, Io, Op, OpKind, Submitted};
use crate::volume::Volume;
use crate::write_back::WriteBack;

/// Which operations meet a fault, and what happens to them.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Only operations of this kind; `None` for all.
    pub op: Option<OpKind>,
    /// Only operations that touch one of these LBAs; `None` for all, Flush among them.
    pub lbas: Option<Range<u64>>,
    /// How many matching operations pass unharmed first.
    pub skip: u64,
    /// To how many operations after those it happens; `None` for all.
    pub times: Option<u64>,
    /// What happens.
    pub effect: Effect,
}

/// What a fault does to an operation.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The operation fails without having been tried.
    Fail(IoErrorKind),
    /// The operation is held for this long, in microseconds, and then goes on.
    Delay {
        /// How long.
        delay_us: u64,
    },
    /// The power fails while the operation is under way: of what it writes, as of everything in the
    /// volatile cache, each LBA is kept or not, as the seed decides. It fails with
    /// [`IoErrorKind::Gone`], as does everything after it.
    PowerCut {
        /// The disk whose power fails.
        store: WriteBack,
        /// Decides what of the cache had reached the medium.
        seed: u64,
    },
}

impl Fault {
    /// Every operation, every time.
    #[must_use]
    pub fn always(effect: Effect) -> Self {
        Self {
            op: None,
            lbas: None,
            skip: 0,
            times: None,
            effect,
        }
    }

    /// The `nth` operation of this kind, counted from 0, and no other.
    #[must_use]
    pub fn nth(op: OpKind, nth: u64, effect: Effect) -> Self {
        Self {
            op: Some(op),
            lbas: None,
            skip: nth,
            times: Some(1),
            effect,
        }
    }

    fn matches(&self, io: &Io) -> bool {
        let (lba, lbas) = io.op.range();
        let touches = |range: &Range<u64>| {
            io.op.kind() != OpKind::Flush
                && lba < range.end
                && range.start < lba.saturating_add(lbas)
        };
        self.op.is_none_or(|op| op == io.op.kind()) && self.lbas.as_ref().is_none_or(touches)
    }
}

/// Passes operations to the volume behind, except those that meet a fault. When several faults
/// match, the first in the list that is not used up counts.
pub struct Faulty {
    inner: Box<dyn Volume>,
    faults: Vec<Fault>,
    held: Held,
}

impl Faulty {
    /// Puts `faults` before `inner`.
    #[must_use]
    pub fn new(inner: Box<dyn Volume>, faults: Vec<Fault>) -> Self {
        Self {
            inner,
            faults,
            held: Held::default(),
        }
    }

    /// Counts the operation on every fault that matches it; the effect of the first that strikes.
    fn strike(&mut self, io: &Io) -> Option<Effect> {
        let mut effect = None;
        for fault in self.faults.iter_mut().filter(|fault| fault.matches(io)) {
            if fault.skip > 0 {
                fault.skip -= 1;
            } else if effect.is_none() && fault.times != Some(0) {
                fault.times = fault.times.map(|left| left - 1);
                effect = Some(fault.effect.clone());
            }
        }
        effect
    }

    fn fail(&self, io: Io, kind: IoErrorKind) -> Submitted {
        let result = Err(IoError::new(kind, &io.op, self.inner.name()));
        Submitted::Done(Completion {
            token: io.token,
            result,
            data: io.data,
        })
    }
}

impl Volume for Faulty {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn submit(&mut self, io: Io, now_us: u64) -> Submitted {
        match self.strike(&io) {
            None => self.inner.submit(io, now_us),
            Some(Effect::Fail(kind)) => self.fail(io, kind),
            Some(Effect::Delay { delay_us }) => {
                self.held.push(now_us.saturating_add(delay_us), io);
                Submitted::Pending
            }
            Some(Effect::PowerCut { store, seed }) => {
                let op = io.op;
                let done = match interrupted(op) {
                    Some(op) => self.inner.submit(Io { op, ..io }, now_us),
                    None => self.fail(io, IoErrorKind::Gone),
                };
                store.cut_power(seed);
                match done {
                    Submitted::Done(completion) => {
                        let result = Err(IoError::new(IoErrorKind::Gone, &op, self.inner.name()));
                        Submitted::Done(Completion {
                            result,
                            ..completion
                        })
                    }
                    // Its volume completes it; a volume without power completes it with Gone.
                    Submitted::Pending => Submitted::Pending,
                }
            }
        }
    }

    fn poll(&mut self, now_us: u64, out: &mut Vec<Completion>) {
        self.held.release(now_us, &mut *self.inner, out);
        self.inner.poll(now_us, out);
    }

    fn next_deadline_us(&self) -> Option<u64> {
        earliest(self.held.next_deadline_us(), self.inner.next_deadline_us())
    }
}

/// What of an operation has happened when the power fails in the middle of it: its data is on the
/// way, and nothing has been forced to the medium yet.
fn interrupted(op: Op) -> Option<Op> {
    match op {
        Op::Write { lba, lbas, .. } => Some(Op::Write {
            lba,
            lbas,
            fua: false,
        }),
        Op::WriteZeroes {
            lba,
            lbas,
            deallocate,
            ..
        } => Some(Op::WriteZeroes {
            lba,
            lbas,
            deallocate,
            fua: false,
        }),
        Op::Read { .. } | Op::Discard { .. } => Some(op),
        Op::Flush => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Effect, Fault, Faulty};
    use crate::IoErrorKind;
    use crate::io::{Op, OpKind};
    use crate::testing::{data, pool, ram, read, run, write};
    use crate::volume::Volume;
    use crate::write_back::WriteBack;

    const READ: Op = Op::Read { lba: 2, lbas: 2 };

    fn kinds(volume: &mut Faulty, op: Op, count: usize) -> Vec<Option<IoErrorKind>> {
        let pool = pool(1 << 20);
        let mut result = || {
            let done = run(volume, op, Some(data(&pool, &[1; 8192])));
            assert!(done.data.is_some(), "data comes back with an error, too");
            done.result.err().map(|error| error.kind)
        };
        (0..count).map(|_| result()).collect()
    }

    #[test]
    fn the_nth_operation_of_a_kind_fails() {
        let fault = Fault::nth(OpKind::Read, 1, Effect::Fail(IoErrorKind::Medium));
        let mut volume = Faulty::new(ram(16), vec![fault]);
        let write = Op::Write {
            lba: 0,
            lbas: 2,
            fua: false,
        };
        assert_eq!(kinds(&mut volume, write, 3), [None; 3]);
        assert_eq!(
            kinds(&mut volume, READ, 3),
            [None, Some(IoErrorKind::Medium), None]
        );
    }

    #[test]
    fn a_range_is_met_by_whatever_touches_it() {
        let bad = |lbas| Fault {
            lbas: Some(lbas),
            ..Fault::always(Effect::Fail(IoErrorKind::Device))
        };
        for (lbas, struck) in [(0..2, false), (0..3, true), (3..9, true), (4..9, false)] {
            let mut volume = Faulty::new(ram(16), vec![bad(lbas)]);
            assert_eq!(kinds(&mut volume, READ, 1)[0].is_some(), struck);
            assert_eq!(run(&mut volume, Op::Flush, None).result, Ok(()));
        }
    }

    #[test]
    fn the_first_fault_that_is_not_used_up_counts() {
        let once = |kind| Fault {
            times: Some(1),
            ..Fault::always(Effect::Fail(kind))
        };
        let faults = vec![once(IoErrorKind::NoSpace), once(IoErrorKind::Medium)];
        let mut volume = Faulty::new(ram(16), faults);
        let expected = [Some(IoErrorKind::NoSpace), Some(IoErrorKind::Medium), None];
        assert_eq!(kinds(&mut volume, READ, 3), expected);
    }

    #[test]
    fn an_operation_that_fails_has_no_effect() {
        let pool = pool(1 << 20);
        let fault = Fault::nth(OpKind::Write, 0, Effect::Fail(IoErrorKind::NoSpace));
        let mut volume = Faulty::new(ram(16), vec![fault]);
        let op = Op::Write {
            lba: 0,
            lbas: 1,
            fua: true,
        };
        let error = run(&mut volume, op, Some(data(&pool, &[1; 4096])))
            .result
            .unwrap_err();
        assert_eq!((error.op, error.lba, error.lbas), (OpKind::Write, 0, 1));
        assert_eq!(read(&mut volume, &pool, 0, 1), [0; 4096]);
    }

    #[test]
    fn a_delay_holds_one_operation_back() {
        let delay = Fault::nth(OpKind::Read, 0, Effect::Delay { delay_us: 50 });
        let mut volume = Faulty::new(ram(16), vec![delay]);
        let pool = pool(1 << 20);
        let io = crate::io::Io {
            token: 1,
            op: READ,
            data: Some(data(&pool, &[0; 8192])),
        };
        assert!(matches!(
            volume.submit(io, 1000),
            crate::io::Submitted::Pending
        ));
        assert_eq!(kinds(&mut volume, READ, 1), [None]);
        let mut out = Vec::new();
        volume.poll(1049, &mut out);
        assert_eq!((out.len(), volume.next_deadline_us()), (0, Some(1050)));
        volume.poll(1050, &mut out);
        assert_eq!((out.len(), volume.next_deadline_us()), (1, None));
    }

    #[test]
    fn a_power_cut_at_the_nth_write_loses_it_or_parts_of_it() {
        let pool = pool(1 << 20);
        let mut kept = Vec::new();
        for seed in 0..64 {
            let store = WriteBack::new(4096, 16, Arc::from("write-back"));
            let power = Effect::PowerCut {
                store: store.clone(),
                seed,
            };
            let fault = Fault::nth(OpKind::Write, 1, power);
            let mut volume = Faulty::new(Box::new(store.open()), vec![fault]);
            write(&mut volume, &pool, 0, &[1; 4 * 4096], false);
            assert_eq!(run(&mut volume, Op::Flush, None).result, Ok(()));
            let op = Op::Write {
                lba: 0,
                lbas: 4,
                fua: true,
            };
            let cut = run(&mut volume, op, Some(data(&pool, &[2; 4 * 4096]))).result;
            assert_eq!(cut.unwrap_err().kind, IoErrorKind::Gone);
            let after = run(&mut volume, READ, Some(data(&pool, &[0; 8192]))).result;
            assert_eq!(after.unwrap_err().kind, IoErrorKind::Gone);
            store.restore_power();
            let lbas = read(&mut store.open(), &pool, 0, 4);
            let new = lbas.chunks(4096).filter(|lba| lba[..] == [2; 4096]).count();
            let old = lbas.chunks(4096).filter(|lba| lba[..] == [1; 4096]).count();
            assert_eq!(new + old, 4, "an LBA is old or new, never torn");
            kept.push(new);
        }
        assert!(
            kept.contains(&0) && kept.contains(&4) && kept.contains(&2),
            "{kept:?}"
        );
    }
}
