//! How much TCP gets at a time while other threads want the processor.
//!
//! A kernel without preemption, as many servers have, lets no other thread run before a system call
//! ends, and copying 1 MiB takes hundreds of microseconds. So a thread that was preempted a short
//! while ago gives TCP less per call, and the thread that waits for its core waits less.

use std::cell::Cell;

use nix::sys::resource::{UsageWho, getrusage};

use crate::iwarp::piece::Piece;

/// Most bytes of such a call, unless a single piece is longer.
const SHORT_BYTES: usize = 256 << 10;
/// Calls that stay short after the thread was preempted: half a millisecond. The kernel's own
/// threads preempt it some seventy times a second.
const SHORT_CALLS: u8 = 8;

/// How often this thread was preempted, and what follows from it.
#[derive(Clone, Copy)]
struct Preemptions {
    /// How often it was preempted.
    preempted: i64,
    /// Calls that are to be short.
    short_calls: u8,
}

thread_local! {
    static PREEMPTIONS: Cell<Preemptions> = const { Cell::new(Preemptions { preempted: 0, short_calls: 0 }) };
}

impl Preemptions {
    /// Learns how often the thread was preempted until now. Whether the next call is to be short.
    fn learn(&mut self, preempted: i64) -> bool {
        if self.preempted != preempted {
            self.preempted = preempted;
            self.short_calls = SHORT_CALLS;
        }
        let short = self.short_calls > 0;
        self.short_calls = self.short_calls.saturating_sub(1);
        short
    }
}

/// How many of `pieces`, which have `bytes` in all, the next call gets: all, unless the thread was
/// preempted a short while ago.
#[inline]
pub(in crate::iwarp) fn pieces_of_call(pieces: &[Piece], bytes: u64) -> usize {
    if bytes <= SHORT_BYTES as u64 || !was_preempted_lately() {
        return pieces.len();
    }
    pieces_within(pieces, SHORT_BYTES)
}

#[cold]
fn was_preempted_lately() -> bool {
    // Only an address that is not mapped can fail here.
    getrusage(UsageWho::RUSAGE_THREAD).is_ok_and(|usage| {
        PREEMPTIONS.with(|cell| {
            let mut preemptions = cell.get();
            let short = preemptions.learn(usage.involuntary_context_switches());
            cell.set(preemptions);
            short
        })
    })
}

/// How many of `pieces` fit into `bytes`, but at least one.
fn pieces_within(pieces: &[Piece], bytes: usize) -> usize {
    let mut left = bytes;
    let fits = |piece: &&Piece| {
        let rest = left.checked_sub(piece.len_bytes());
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    pieces.iter().take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_short_for_a_while_after_a_preemption() {
        let mut preemptions = Preemptions {
            preempted: 0,
            short_calls: 0,
        };
        assert!(!preemptions.learn(0), "never preempted");
        for call in 0..SHORT_CALLS {
            assert!(preemptions.learn(1), "call {call} after a preemption");
        }
        assert!(!preemptions.learn(1), "it is over");
        assert!(preemptions.learn(2), "preempted again");
    }

    #[test]
    fn a_short_call_gets_the_pieces_that_fit_and_at_least_one() {
        let mut memory = [0; 64];
        let base = memory.as_mut_ptr();
        let piece = |length| Piece::raw(base, length);
        let pieces = [20, 20, 20].map(piece);
        assert_eq!(pieces_within(&pieces, 60), 3, "all fit");
        assert_eq!(pieces_within(&pieces, 59), 2, "the last does not");
        assert_eq!(pieces_within(&pieces, 19), 1, "no piece is cut");
        // What does not fit ends the call, even where a later piece would.
        let pieces = [20, 40, 5].map(piece);
        assert_eq!(pieces_within(&pieces, 30), 1, "in order");
    }
}
