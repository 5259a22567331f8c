//! Sockets of NVMe/TCP whose connections are ending. Their number is bounded, as any peer can make
//! some. Those of user-space iWARP are bounded by its provider.

use std::collections::VecDeque;

use capstan_subsystem::ConnId;

/// The connections, the oldest first.
pub(super) struct ClosingSockets {
    all: VecDeque<ConnId>,
    max: usize,
}

impl ClosingSockets {
    /// Room for `max`, at least one.
    pub(super) fn new(max: usize) -> Self {
        Self {
            all: VecDeque::new(),
            max: max.max(1),
        }
    }

    /// A connection begins to end. Returns the connection whose socket is to be closed for it,
    /// where there are too many.
    pub(super) fn add(&mut self, conn: ConnId) -> Option<ConnId> {
        let oldest = if self.all.len() < self.max {
            None
        } else {
            self.all.pop_front()
        };
        self.all.push_back(conn);
        oldest
    }

    /// A connection is gone.
    pub(super) fn remove(&mut self, conn: ConnId) {
        if let Some(at) = self.all.iter().position(|other| *other == conn) {
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
        assert_eq!(closing.add(ConnId(1)), None);
        assert_eq!(closing.add(ConnId(2)), None);
        assert_eq!(closing.add(ConnId(3)), Some(ConnId(1)));
        closing.remove(ConnId(1));
        closing.remove(ConnId(2));
        assert_eq!(closing.add(ConnId(4)), None);
        assert_eq!(closing.add(ConnId(5)), Some(ConnId(3)));
    }
}
