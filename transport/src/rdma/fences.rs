//! What had arrived on a queue when its user asked for that, and has not come as events.

use std::collections::VecDeque;

use super::queue::RdmaQueue;
use crate::queue::{Event, FenceNumber, QueueId, Queues};

/// Queues whose arrivals are followed. That costs the capsules nothing: the provider passes the
/// mark of what had arrived, and then the completions of that are polled.
pub(super) struct Fences {
    all: Vec<Fence>,
    /// Completions that there can be at once.
    depth: u32,
}

/// Something that had arrived may not have come as an event yet.
struct Fence {
    queue: QueueId,
    number: FenceNumber,
    /// Behind what had arrived.
    mark: u64,
    /// Every message that had begun before the mark has its completion.
    passed: bool,
    unpolled: Unpolled,
}

/// Completions to poll, at most, until all that were there are polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unpolled(u32);

impl Unpolled {
    /// `count` were polled; `emptied`: there were no more.
    fn polled(&mut self, count: u32, emptied: bool) {
        // A queue that is never empty is followed by counting.
        self.0 = if emptied {
            0
        } else {
            self.0.saturating_sub(count)
        };
    }
}

impl Fences {
    /// For a completion queue that has at most `depth` completions at once.
    pub(super) fn new(depth: u32) -> Self {
        Self {
            all: Vec::new(),
            depth,
        }
    }

    /// Sets a fence behind `mark`.
    pub(super) fn set(&mut self, queue: QueueId, number: FenceNumber, mark: u64) {
        self.all.push(Fence {
            queue,
            number,
            mark,
            passed: false,
            unpolled: Unpolled(self.depth),
        });
    }

    /// Whether there is none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The queue is gone.
    pub(super) fn forget(&mut self, id: QueueId) {
        self.all.retain(|fence| fence.queue != id);
    }

    /// Looks which marks have been passed, before completions are polled.
    pub(super) fn look(&mut self, queues: &mut impl Queues<RdmaQueue>) {
        for fence in &mut self.all {
            let queue = queues.queue(fence.queue);
            fence.passed |= queue.is_none_or(|queue| queue.has_passed_begun(fence.mark));
        }
    }

    /// `count` completions were polled; `emptied`: there were no more.
    pub(super) fn polled(&mut self, count: u32, emptied: bool) {
        for fence in &mut self.all {
            if fence.passed {
                fence.unpolled.polled(count, emptied);
            }
        }
    }

    /// Takes out the queues whose completions have all come as events.
    pub(super) fn take_passed(&mut self, ready: &mut VecDeque<(QueueId, Event)>) {
        let passed = |fence: &mut Fence| fence.unpolled == Unpolled(0);
        for fence in self.all.extract_if(.., passed) {
            ready.push_back((fence.queue, Event::Fenced(fence.number)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_queue_that_is_never_empty_is_polled_through_all_the_same() {
        let mut unpolled = Unpolled(300);
        for left in [172, 44, 0] {
            unpolled.polled(128, false);
            assert_eq!(unpolled, Unpolled(left));
        }
        let mut unpolled = Unpolled(300);
        unpolled.polled(5, true);
        assert_eq!(unpolled, Unpolled(0));
    }
}
