//! Completion queues and receive queues.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::pair::{ReceiveEntry, Receives, Sges};
use super::state::{Core, NetRef};
use super::trace::Traced;
use crate::contract::{
    CompletionQueue, PostError, RdmaError, Sge, SharedReceiveQueue, WorkCompletion,
};

/// An eventfd that is readable from a notification until the next arming.
pub(super) struct Wake {
    fd: EventFd,
    armed: bool,
    raised: bool,
}

impl Wake {
    pub(super) fn new() -> Result<Self, RdmaError> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let fd = EventFd::from_value_and_flags(0, flags).map_err(|error| RdmaError::System {
            what: "eventfd",
            source: error.into(),
            hint: "; raise the limit of open files (ulimit -n)",
        })?;
        Ok(Self {
            fd,
            armed: false,
            raised: false,
        })
    }

    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }

    /// Something has arrived.
    pub(super) fn notify(&mut self) {
        if std::mem::take(&mut self.armed) {
            // An eventfd refuses a write only at 2^64 - 2.
            self.raised = self.fd.write(1).is_ok();
        }
    }

    /// Asks for the next notification; `busy` when there is something already.
    pub(super) fn arm(&mut self, busy: bool) -> bool {
        if std::mem::take(&mut self.raised) {
            let _ = self.fd.read();
        }
        self.armed = !busy;
        busy
    }
}

/// The queue to which a completion gives its entry back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// So many entries of the send queue.
    Send(u32),
    /// One receive of the pair's own queue.
    Receive,
    /// One receive of a shared queue.
    Shared(u32),
}

/// A completion queue's state.
pub(super) struct CompletionState {
    pub(super) depth: u32,
    pub(super) entries: VecDeque<(WorkCompletion, Place)>,
    pub(super) wake: Wake,
}

/// A shared receive queue's state.
pub(super) struct SharedState {
    pub(super) depth: u32,
    pub(super) sge_max: u32,
    pub(super) queue: VecDeque<ReceiveEntry>,
    /// Receives that were posted and not given back by a polled completion.
    pub(super) outstanding: u32,
    /// Queue pairs that hold back a message because no receive is posted.
    pub(super) waiting: Vec<u32>,
}

impl Core {
    /// Queues a completion.
    pub(super) fn complete(&mut self, cq: u32, wc: WorkCompletion, place: Place) {
        self.note(Traced::Completed {
            qp: wc.qp.0,
            wr_id: wc.wr_id,
            opcode: wc.opcode,
            status: wc.status,
        });
        if let Some(state) = self.cqs.get_mut(&cq) {
            state.entries.push_back((wc, place));
            state.wake.notify();
        }
    }

    /// Whether a completion queue holds more than its users promised.
    pub(super) fn overrun(&self, cq: u32) -> bool {
        let full = |state: &CompletionState| state.entries.len() > state.depth as usize;
        self.cqs.get(&cq).is_some_and(full)
    }

    /// Frees the entry of a polled (or lost) completion.
    pub(super) fn give_back(&mut self, qp: u32, place: Place) {
        match place {
            Place::Send(count) => {
                if let Some(pair) = self.pairs.get_mut(&qp) {
                    pair.send_outstanding -= count;
                }
            }
            Place::Receive => {
                if let Some(Receives::Own { outstanding, .. }) =
                    self.pairs.get_mut(&qp).map(|pair| &mut pair.receives)
                {
                    *outstanding -= 1;
                }
            }
            Place::Shared(srq) => {
                if let Some(state) = self.srqs.get_mut(&srq) {
                    state.outstanding -= 1;
                }
            }
        }
    }

    fn poll_cq(&mut self, cq: u32, out: &mut [WorkCompletion]) -> usize {
        self.progress();
        let mut count = 0;
        while let Some(slot) = out.get_mut(count) {
            let entry = self
                .cqs
                .get_mut(&cq)
                .and_then(|state| state.entries.pop_front());
            let Some((wc, place)) = entry else { break };
            *slot = wc;
            self.give_back(wc.qp.0, place);
            count += 1;
        }
        count
    }

    fn post_shared(&mut self, srq: u32, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let Some(state) = self.srqs.get_mut(&srq) else {
            return Err(PostError::NotSupported(
                "a receive on a queue that has gone",
            ));
        };
        let sges = Sges::new(sges, state.sge_max)?;
        if state.outstanding >= state.depth {
            return Err(PostError::QueueFull(state.depth));
        }
        state.outstanding += 1;
        state.queue.push_back(ReceiveEntry { wr_id, sges });
        let waiting = std::mem::take(&mut state.waiting);
        for qp in waiting {
            self.schedule_receiver_ready(qp);
        }
        Ok(())
    }
}

/// A completion queue.
pub(super) struct Cq {
    pub(super) net: NetRef,
    pub(super) host: u32,
    pub(super) cq: u32,
    fd: RawFd,
}

impl Cq {
    pub(super) fn create(net: &NetRef, host: u32, depth: u32) -> Result<Rc<Self>, RdmaError> {
        let mut core = net.core.borrow_mut();
        core.usable(host)?;
        let max = core.attributes(host)?.cqe_max;
        if depth > max {
            return Err(RdmaError::Limit {
                what: "entries of a completion queue",
                value: depth.into(),
                max: max.into(),
            });
        }
        let wake = Wake::new()?;
        let fd = wake.raw();
        core.next.cq += 1;
        let cq = core.next.cq;
        let state = CompletionState {
            depth,
            entries: VecDeque::new(),
            wake,
        };
        core.cqs.insert(cq, state);
        Ok(Rc::new(Self {
            net: Rc::clone(net),
            host,
            cq,
            fd,
        }))
    }
}

impl CompletionQueue for Cq {
    fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        self.net.core.borrow_mut().poll_cq(self.cq, out)
    }

    fn arm(&self) -> bool {
        let mut core = self.net.core.borrow_mut();
        let due = core.work_due();
        core.cqs.get_mut(&self.cq).is_some_and(|state| {
            let busy = due || !state.entries.is_empty();
            state.wake.arm(busy)
        })
    }

    fn fd(&self) -> RawFd {
        self.fd
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.net.core.borrow_mut().cqs.remove(&self.cq);
    }
}

/// A shared receive queue.
pub(super) struct Srq {
    pub(super) net: NetRef,
    pub(super) srq: u32,
    pub(super) pd: u32,
}

impl SharedReceiveQueue for Srq {
    fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.net
            .core
            .borrow_mut()
            .post_shared(self.srq, wr_id, sges)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.net.core.borrow_mut().srqs.remove(&self.srq);
    }
}
