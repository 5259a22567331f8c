//! Completion queues.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::rc::Rc;

use super::device::VerbsDevice;
use super::outstanding::{Outcome, Request};
use super::pair::{Core, Queue};
use super::raw;
use super::raw::completion::Wc;
use super::srq::Srq;
use super::wc;
use super::wr_id::WrId;
use crate::contract::{CompletionQueue, QpNum, RKey, WcOpcode, WcStatus, WorkCompletion};

/// Completions taken from the device in one call.
const BATCH: usize = 32;

/// A completion queue of a device, and the completions taken from it but not returned to the
/// program yet.
pub(super) struct Cq {
    pub(super) raw: Rc<raw::completion::Cq>,
    pub(super) device: Rc<VerbsDevice>,
    taken: RefCell<VecDeque<Taken>>,
    depth: u32,
    armed: Cell<bool>,
    broken: Cell<bool>,
}

/// A completion that waits for the program to poll.
struct Taken {
    completion: WorkCompletion,
    /// The entry of a shared receive queue that it used.
    shared: Option<(Rc<Srq>, u32)>,
}

/// A completion of a shared receive.
struct Received {
    completion: WorkCompletion,
    slot: u32,
}

/// The shared receive queue and the queue pair of the last completion, by their numbers: several in
/// a row often belong to one. Valid while completions are taken, during which nothing is dropped.
#[derive(Default)]
struct Last {
    srq: Option<(u32, Rc<Srq>)>,
    core: Option<(u32, Rc<Core>)>,
}

impl Last {
    #[inline]
    fn srq(&mut self, device: &VerbsDevice, place: u32) -> Option<&Rc<Srq>> {
        if self.srq.as_ref().is_none_or(|(last, _)| *last != place) {
            self.srq = device.srq_at(place).map(|srq| (place, srq));
        }
        self.srq.as_ref().map(|(_, srq)| srq)
    }

    #[inline]
    fn core(&mut self, device: &VerbsDevice, num: u32) -> Option<&Rc<Core>> {
        if self.core.as_ref().is_none_or(|(last, _)| *last != num) {
            self.core = device.by_device_num(num).map(|core| (num, core));
        }
        self.core.as_ref().map(|(_, core)| core)
    }

    /// The completion of a shared receive, as it waits for the program.
    fn taken(&self, received: &Received) -> Taken {
        let Received { completion, slot } = *received;
        let shared = self.srq.as_ref().map(|(_, srq)| (Rc::clone(srq), slot));
        Taken { completion, shared }
    }
}

impl Cq {
    pub(super) fn new(raw: raw::completion::Cq, device: Rc<VerbsDevice>, depth: u32) -> Self {
        Self {
            raw: Rc::new(raw),
            device,
            taken: RefCell::new(VecDeque::with_capacity(BATCH)),
            depth,
            armed: Cell::new(false),
            broken: Cell::new(false),
        }
    }

    /// Adds a completion.
    #[inline]
    pub(super) fn push(&self, qp: QpNum, request: &Request, outcome: Outcome) {
        let completion = completion(qp, request.wr_id, request.opcode, outcome);
        self.taken.borrow_mut().push_back(Taken {
            completion,
            shared: None,
        });
    }

    /// Takes up to `most` completions from the device; returns how many.
    fn pump(&self, most: usize) -> usize {
        let mut last = Last::default();
        self.poll_device(most, |wc| {
            if let Some(received) = self.take(wc, &mut last) {
                self.taken.borrow_mut().push_back(last.taken(&received));
            }
        })
    }

    fn poll_device(&self, most: usize, take: impl FnMut(&Wc)) -> usize {
        self.raw.poll(most, take).unwrap_or_else(|error| {
            if !self.broken.replace(true) {
                let device = &self.device.attributes.name;
                tracing::error!(device, "a completion queue failed: {error}");
            }
            0
        })
    }

    /// Handles a completion of the device. Returns a message that came into a shared receive;
    /// `last` is updated to where it belongs.
    #[inline]
    fn take(&self, wc: &Wc, last: &mut Last) -> Option<Received> {
        let status = wc::status(wc);
        let outcome = Outcome {
            status,
            byte_len: wc::received_bytes(wc),
            invalidated: wc.invalidated.map(RKey),
        };
        // The completions of a queue pair that has been dropped are dropped, too.
        match WrId::decode(wc.wr_id) {
            WrId::Send { place, position } => {
                if let Some(core) = self.device.at(place) {
                    core.completed(Queue::Send, position, outcome, wc);
                }
            }
            WrId::Receive { place, position } => {
                if let Some(core) = self.device.at(place) {
                    core.completed(Queue::Receive, position, outcome, wc);
                }
            }
            WrId::Shared { place, slot } => {
                let wr_id = last.srq(&self.device, place)?.wr_id(slot)?;
                let Some(core) = last.core(&self.device, wc.qp_num) else {
                    last.srq(&self.device, place)?.post_again(slot);
                    return None;
                };
                let completion = completion(core.num, wr_id, WcOpcode::Recv, outcome);
                let received = Received { completion, slot };
                if status == WcStatus::Success {
                    return Some(received);
                }
                let core = Rc::clone(core);
                // Queued before the flushes that follow the failure.
                self.taken.borrow_mut().push_back(last.taken(&received));
                core.failed_by(WcOpcode::Recv, status, wc.vendor_err);
            }
        }
        None
    }

    /// Takes every completion that the device has now.
    pub(super) fn drain(&self) {
        // Other requests go on completing meanwhile; what was there at the start is no more than
        // this.
        let rounds = (self.depth as usize).div_ceil(BATCH) + 1;
        for _ in 0..rounds {
            if self.pump(BATCH) == 0 {
                return;
            }
        }
    }

    /// Moves waiting completions to `out`; returns how many.
    fn tell(&self, out: &mut [WorkCompletion]) -> usize {
        let mut taken = self.taken.borrow_mut();
        let count = out.len().min(taken.len());
        for (to, taken) in out.iter_mut().zip(taken.drain(..count)) {
            *to = taken.completion;
            if let Some((srq, slot)) = taken.shared {
                srq.free(slot);
            }
        }
        count
    }

    /// Drops the completions of a queue pair that has been destroyed, in the device's queue and
    /// here, before its numbers are used again.
    pub(super) fn forget(&self, qp: QpNum) {
        self.drain();
        self.taken.borrow_mut().retain(|taken| {
            let keep = taken.completion.qp != qp;
            if let (false, Some((srq, slot))) = (keep, &taken.shared) {
                srq.post_again(*slot);
            }
            keep
        });
    }
}

#[inline]
fn completion(qp: QpNum, wr_id: u64, opcode: WcOpcode, outcome: Outcome) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        qp,
        status: outcome.status,
        opcode,
        byte_len: outcome.byte_len,
        invalidated: outcome.invalidated,
    }
}

impl CompletionQueue for Cq {
    fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        let mut count = self.tell(out);
        let mut last = Last::default();
        self.poll_device(out.len() - count, |wc| {
            let Some(received) = self.take(wc, &mut last) else {
                return;
            };
            match (out.get_mut(count), &last.srq) {
                (Some(to), Some((_, srq))) if self.taken.borrow().is_empty() => {
                    *to = received.completion;
                    srq.free(received.slot);
                    count += 1;
                }
                _ => self.taken.borrow_mut().push_back(last.taken(&received)),
            }
        });
        count + self.tell(&mut out[count..])
    }

    fn arm(&self) -> bool {
        if !self.taken.borrow().is_empty() {
            return true;
        }
        if self.armed.get() && self.raw.take_event() {
            self.armed.set(false);
        }
        if !self.armed.get() {
            if let Err(error) = self.raw.request_notify() {
                let device = &self.device.attributes.name;
                tracing::error!(device, "a completion queue cannot be armed: {error}");
                return true;
            }
            self.armed.set(true);
        }
        // A completion from before the request for an event raises none.
        self.pump(BATCH) > 0 || !self.taken.borrow().is_empty()
    }

    fn fd(&self) -> RawFd {
        self.raw.fd()
    }
}
