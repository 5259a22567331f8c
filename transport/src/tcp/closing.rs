//! Sockets whose connections are ending. Their number is bounded, as any peer can make some. Those
//! of user-space iWARP are bounded by its provider.

use std::collections::VecDeque;

use crate::queue::QueueId;

/// The queues of the connections, the oldest first.
pub(crate) struct ClosingSockets {
    all: VecDeque<QueueId>,
    max: usize,
}

impl ClosingSockets {
    /// Room for `max`, at least one.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            all: VecDeque::new(),
            max: max.max(1),
        }
    }

    /// A connection begins to end. Returns the queue whose socket is to be closed for it, where
    /// there are too many.
    pub(crate) fn add(&mut self, queue: QueueId) -> Option<QueueId> {
        let oldest = if self.all.len() < self.max {
            None
        } else {
            self.all.pop_front()
        };
        self.all.push_back(queue);
        oldest
    }

    /// A connection is gone.
    pub(crate) fn remove(&mut self, queue: QueueId) {
        if let Some(at) = self.all.iter().position(|other| *other == queue) {
            self.all.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room() {
        let mut closing = ClosingSockets::new(2);
        assert_eq!(closing.add(QueueId(1)), None);
        assert_eq!(closing.add(QueueId(2)), None);
        assert_eq!(closing.add(QueueId(3)), Some(QueueId(1)));
        closing.remove(QueueId(1));
        closing.remove(QueueId(2));
        assert_eq!(closing.add(QueueId(4)), None);
        assert_eq!(closing.add(QueueId(5)), Some(QueueId(3)));
    }
}
