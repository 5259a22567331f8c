//! Gives back the ring memory of connections that have become idle.

use std::cell::RefCell;

use super::IwarpEngine;
use crate::contract::QpNum;
use crate::iwarp::link::Link;
use crate::iwarp::link::shared::SharedLink;

/// A connection is idle after so long without a byte, in microseconds.
const IDLE_US: u64 = 1_000_000;

/// Connections that are watched for idleness.
#[derive(Default)]
pub(in crate::iwarp) struct IdleLinks(RefCell<Vec<Candidate>>);

struct Candidate {
    qp: QpNum,
    /// [`SharedLink::moved`] at the last look.
    moved: u64,
    /// When to look next, once the time is known.
    due_us: Option<u64>,
}

impl IdleLinks {
    /// Watches a connection that goes to sleep.
    pub(in crate::iwarp) fn watch(&self, qp: QpNum, link: &mut SharedLink) {
        if link.may_become_idle() {
            self.0.borrow_mut().push(Candidate {
                qp,
                moved: link.moved(),
                due_us: None,
            });
        }
    }

    /// When the next look is due.
    pub(in crate::iwarp) fn due_us(&self) -> Option<u64> {
        let candidates = self.0.borrow();
        candidates.iter().map(|c| c.due_us.unwrap_or(0)).min()
    }

    /// Looks at those that are due.
    pub(in crate::iwarp) fn run(&self, engine: &IwarpEngine, now_us: u64) {
        let mut candidates = self.0.borrow_mut();
        candidates.retain_mut(|candidate| candidate.run(engine, now_us));
    }
}

impl Candidate {
    /// `false` when it need not be watched any more.
    fn run(&mut self, engine: &IwarpEngine, now_us: u64) -> bool {
        if now_us < *self.due_us.get_or_insert(now_us + IDLE_US) {
            return true;
        }
        let Some(cell) = engine.qp(self.qp) else {
            return false;
        };
        let mut qp = cell.borrow_mut();
        let busy = qp.busy;
        let Some(Link::Shared(link)) = &mut qp.link else {
            return false;
        };
        let moved = link.moved();
        if moved == self.moved && link.become_idle() {
            return false;
        }
        if busy {
            // It is watched again when it goes to sleep.
            link.is_busy();
            return false;
        }
        self.moved = moved;
        self.due_us = Some(now_us + IDLE_US);
        true
    }
}
