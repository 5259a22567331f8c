//! Reminds a peer that it has something to read.
//!
//! Linux siw takes over a socket only after it has sent its MPA Reply (`siw_accept`, Linux 6.12),
//! and does not notice what arrived before: it looks only when the next bytes arrive. A side that
//! connects and then waits for the answer to its first message would wait for ever. So while
//! nothing has come from the peer, an empty RDMA WRITE is sent, which has no effect (RFC 5040 §5.1;
//! it is what opens a connection in peer-to-peer mode, RFC 6581 §4.3.1).

use std::cell::RefCell;
use std::rc::Rc;

use crate::contract::QpState;
use crate::iwarp::engine::Engine;
use crate::iwarp::qp::Qp;

/// Before the first reminder, in microseconds: longer than a target in the same building takes to
/// answer. Doubles with each.
const FIRST_US: u64 = 20_000;
/// Reminders of one connection: the last is 20 ms × (2⁸ − 1) = 5.1 s after it was made.
const NUDGES: u32 = 8;

/// A connection whose peer has sent nothing yet.
pub(in crate::iwarp) struct Unheard {
    pub(in crate::iwarp) cell: Rc<RefCell<Qp>>,
    due_us: u64,
    wait_us: u64,
    left: u32,
}

impl Unheard {
    /// A connection that was made at `now_us`.
    pub(super) fn new(cell: Rc<RefCell<Qp>>, now_us: u64) -> Self {
        Self {
            cell,
            due_us: now_us + FIRST_US,
            wait_us: FIRST_US,
            left: NUDGES,
        }
    }

    pub(super) fn due_us(&self) -> u64 {
        self.due_us
    }

    /// Reminds the peer when it is due. `false` when no more reminders will follow.
    pub(super) fn run(&mut self, engine: &Engine, now_us: u64) -> bool {
        let mut qp = self.cell.borrow_mut();
        let qp = &mut *qp;
        if !qp.rx.before_first || qp.state != QpState::ReadyToSend || qp.link.is_none() {
            return false;
        }
        if now_us < self.due_us {
            return true;
        }
        self.wait_us *= 2;
        self.due_us = now_us + self.wait_us;
        self.left -= 1;
        // A peer that was sent nothing has nothing to read, and bytes that TCP does not take yet
        // will remind it when they go.
        if qp.tx.sent() > 0 && !qp.tx.blocked {
            qp.tx.add_empty_write();
            let sent = qp.transmit(&mut engine.stags.borrow_mut());
            if let Err(fatal) = sent {
                engine.end(qp, &fatal);
                return false;
            }
        }
        self.left > 0
    }
}
