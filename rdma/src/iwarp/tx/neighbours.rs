//! How much TCP gets at a time while other threads want the processor.
//!
//! A kernel without preemption, as many servers have, lets no other thread run before a system call
//! ends, and copying 1 MiB takes hundreds of microseconds. So a thread that was preempted a short
//! while ago gives TCP less per call, and the thread that waits for its core waits less.

use std::cell::Cell;

use nix::sys::resource::{UsageWho, getrusage};

use crate::iwarp::socket::Piece;

/// Most bytes of such a call, unless a single piece is longer.
const SHORT_BYTES: usize = 256 << 10;
/// Calls that stay short after the thread was preempted: half a millisecond. The kernel's own
/// threads preempt it some seventy times a second.
const SHORT_CALLS: u8 = 8;

/// What this thread knows of others that want its core.
#[derive(Clone, Copy)]
struct Neighbours {
    /// How often it was preempted.
    preempted: i64,
    /// Calls that are to be short.
    short_calls: u8,
}

thread_local! {
    static NEIGHBOURS: Cell<Neighbours> = const { Cell::new(Neighbours { preempted: 0, short_calls: 0 }) };
}

impl Neighbours {
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

/// How many of `pieces`, which have `bytes` in all, the next call gets: all, unless others want the
/// processor.
#[inline]
pub(super) fn pieces_of_call(pieces: &[Piece], bytes: u64) -> usize {
    if bytes <= SHORT_BYTES as u64 || !are_others_waiting() {
        return pieces.len();
    }
    pieces_within(pieces, SHORT_BYTES)
}

#[cold]
fn are_others_waiting() -> bool {
    // Only an address that is not mapped can fail here.
    getrusage(UsageWho::RUSAGE_THREAD).is_ok_and(|usage| {
        NEIGHBOURS.with(|cell| {
            let mut neighbours = cell.get();
            let short = neighbours.learn(usage.involuntary_context_switches());
            cell.set(neighbours);
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
        let mut neighbours = Neighbours {
            preempted: 0,
            short_calls: 0,
        };
        assert!(!neighbours.learn(0), "nobody wants the processor");
        for call in 0..SHORT_CALLS {
            assert!(neighbours.learn(1), "call {call} after a preemption");
        }
        assert!(!neighbours.learn(1), "it is over");
        assert!(neighbours.learn(2), "preempted again");
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
