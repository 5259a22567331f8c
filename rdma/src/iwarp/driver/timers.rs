//! Queue pairs that wait for a time.

use std::cell::RefCell;
use std::rc::Rc;

use super::IwarpEngine;
use super::qp::Qp;

impl IwarpEngine {
    /// Looks at the clock for a queue pair from now on, until none of its timers runs.
    pub(super) fn start_timer(&self, cell: &Rc<RefCell<Qp>>) {
        let mut timed = self.timed.borrow_mut();
        if !timed.iter().any(|other| Rc::ptr_eq(other, cell)) {
            timed.push(Rc::clone(cell));
        }
    }

    /// A connection was made at `now_us` by this side, which reminds its peer until that sends
    /// something.
    pub(in crate::iwarp) fn start_reminders(&self, cell: &Rc<RefCell<Qp>>, now_us: u64) {
        cell.borrow_mut().core.start_reminders(now_us);
        self.start_timer(cell);
    }

    /// When [`IwarpEngine::handle_timeouts`] is due, in microseconds.
    pub(in crate::iwarp) fn poll_timeout(&self) -> Option<u64> {
        let timed = self.timed.borrow();
        let timeouts = timed.iter().map(|cell| cell.borrow().core.poll_timeout());
        timeouts.flatten().min()
    }

    /// Acts on what is due at `now_us`.
    pub(in crate::iwarp) fn handle_timeouts(&self, now_us: u64) {
        if self.timed.borrow().is_empty() {
            return;
        }
        let mut timed = self.timed.take();
        timed.retain(|cell| {
            let mut qp = cell.borrow_mut();
            self.handle_timeout(&mut qp, now_us);
            qp.core.poll_timeout().is_some()
        });
        self.timed.borrow_mut().append(&mut timed);
    }

    fn handle_timeout(&self, qp: &mut Qp, now_us: u64) {
        let mut handled = qp.core.handle_timeout(now_us);
        if handled.is_ok() && qp.core.tx.wanted {
            handled = qp.transmit(&mut self.stags.borrow_mut());
        }
        if let Err(fatal) = handled {
            self.end(qp, &fatal);
            // The timers of what has ended stop.
            let _ended = qp.core.handle_timeout(now_us);
        }
    }
}
