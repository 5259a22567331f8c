//! Connections that have been at work and rest now give the memory of their rings back.

use std::cell::RefCell;

use super::SharedLink;
use crate::contract::QpNum;
use crate::iwarp::engine::Engine;
use crate::iwarp::socket::Link;

/// After so long without a byte a connection rests, in microseconds.
const REST_US: u64 = 1_000_000;

/// Those that are watched, because they may rest.
#[derive(Default)]
pub(in crate::iwarp) struct Resting(RefCell<Vec<Candidate>>);

struct Candidate {
    qp: QpNum,
    /// [`SharedLink::moved`] when it was looked at last.
    moved: u64,
    /// When it is looked at next, once the time is known.
    due_us: Option<u64>,
}

impl Resting {
    /// A connection goes to sleep.
    pub(in crate::iwarp) fn watch(&self, qp: QpNum, link: &mut SharedLink) {
        if link.may_rest() {
            self.0.borrow_mut().push(Candidate {
                qp,
                moved: link.moved(),
                due_us: None,
            });
        }
    }

    /// When to look next.
    pub(in crate::iwarp) fn due_us(&self) -> Option<u64> {
        let candidates = self.0.borrow();
        candidates.iter().map(|c| c.due_us.unwrap_or(0)).min()
    }

    /// Looks at those whose time has come.
    pub(in crate::iwarp) fn run(&self, engine: &Engine, now_us: u64) {
        let mut candidates = self.0.borrow_mut();
        candidates.retain_mut(|candidate| candidate.run(engine, now_us));
    }
}

impl Candidate {
    /// `false` when it need not be looked at any more.
    fn run(&mut self, engine: &Engine, now_us: u64) -> bool {
        if now_us < *self.due_us.get_or_insert(now_us + REST_US) {
            return true;
        }
        let Some(cell) = engine.qp(self.qp) else {
            return false;
        };
        let mut qp = cell.borrow_mut();
        let hot = qp.hot;
        let Some(Link::Shared(link)) = &mut qp.link else {
            return false;
        };
        let moved = link.moved();
        if moved == self.moved && link.rest() {
            return false;
        }
        if hot {
            // It will be watched again when it goes to sleep.
            link.is_busy();
            return false;
        }
        self.moved = moved;
        self.due_us = Some(now_us + REST_US);
        true
    }
}
