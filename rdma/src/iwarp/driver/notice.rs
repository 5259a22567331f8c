//! What queue pairs report to the connection manager.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::contract::CmId;
use crate::iwarp::completions::Waker;

/// What has happened to a connection.
#[derive(Debug)]
pub(in crate::iwarp) enum Notice {
    /// The first FPDU of the peer has come.
    FirstArrived,
    /// It ended, for this cause, and whether that is a violation by the peer.
    Disconnected { cause: String, is_violation: bool },
}

/// Notices of one connection manager.
pub(in crate::iwarp) struct Notices {
    queue: RefCell<VecDeque<(CmId, Notice)>>,
    pub(in crate::iwarp) waker: Waker,
}

impl Notices {
    pub(in crate::iwarp) fn new() -> nix::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            queue: RefCell::default(),
            waker: Waker::new()?,
        }))
    }

    pub(in crate::iwarp) fn take(&self) -> Option<(CmId, Notice)> {
        self.queue.borrow_mut().pop_front()
    }

    pub(in crate::iwarp) fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }
}

/// A queue pair's handle to its connection manager.
pub(in crate::iwarp) struct Link2Cm {
    notices: Rc<Notices>,
    id: CmId,
}

impl Link2Cm {
    /// The handle to `id` of the manager these notices are for.
    pub(in crate::iwarp) fn new(notices: &Rc<Notices>, id: CmId) -> Self {
        Self {
            notices: Rc::clone(notices),
            id,
        }
    }

    /// Reports something.
    pub(in crate::iwarp) fn tell(&self, notice: Notice) {
        self.notices.queue.borrow_mut().push_back((self.id, notice));
        self.notices.waker.wake();
    }
}
