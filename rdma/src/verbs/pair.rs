//! Queue pairs.

mod sends;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::cq::Cq;
use super::device::VerbsDevice;
use super::error::resource;
use super::memory::{Keys, Pd};
use super::notice::Notices;
use super::outstanding::{Outcome, Outstanding, Request};
use super::raw::cm::Id;
use super::raw::completion::Wc;
use super::raw::memory::Pd as RawPd;
use super::raw::pair::{Pair, Parts, Size};
use super::raw::send::Chain;
use super::srq::Srq;
use super::wc;
use super::wr_id::WrId;
use crate::contract::{
    CmId, CompletionQueue, PostError, ProtectionDomain, QpConfig, QpNum, QpState, QueuePair, RKey,
    RdmaError, ReceiveSource, SendWr, Sge, Transport, WcOpcode, WcStatus,
};
use crate::ids::check_qp;

/// Messages sent at once, in a row, that are unsignaled: a completion costs the device, the memory
/// and the processor as much as a receive, and wakes a thread that has nothing else to do. An
/// eighth of the queue, but no more than this.
const UNVOUCHED_MAX: u32 = 31;

/// A queue of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    Receive,
}

/// A queue pair.
pub(super) struct Core {
    pub(super) num: QpNum,
    /// The device's number for it.
    pub(super) device_num: u32,
    place: u32,
    device: Rc<VerbsDevice>,
    state: Cell<QpState>,
    /// `None` once the device has destroyed it.
    pair: RefCell<Option<Pair>>,
    sends: RefCell<Outstanding>,
    /// `None` with a shared receive queue.
    receives: RefCell<Option<Outstanding>>,
    /// Requests for which the doorbell has not been rung; the first `held` of them are those for
    /// which it has.
    chain: RefCell<Chain>,
    /// Requests that wait for an RDMA READ to end.
    held: Cell<usize>,
    /// RDMA READs that the device has.
    reads: Cell<u32>,
    keys: Rc<Keys>,
    send_cq: Rc<Cq>,
    recv_cq: Rc<Cq>,
    limits: Limits,
    /// RDMA READs the peer serves; 0 when it serves none.
    initiator_depth: Cell<u8>,
    /// Requests that were queued behind the one that the device completed last.
    behind: Cell<u32>,
    cm: Rc<Notices>,
    pub(super) cm_id: CmId,
    peer: RefCell<String>,
}

struct Limits {
    send_sge_max: u32,
    read_sge_max: u32,
    recv_sge_max: u32,
    inline_bytes_max: usize,
    unvouched_max: u32,
    /// RDMA READs are always signaled to this provider, as their completions come late, and no more
    /// than the connection allows are given to the device: siw, which would have to hold them back,
    /// stops serving the peer meanwhile.
    counts_reads: bool,
}

/// What a queue pair is made of, in this provider's own types.
struct Given {
    pd: Rc<RawPd>,
    keys: Rc<Keys>,
    send_cq: Rc<Cq>,
    recv_cq: Rc<Cq>,
    srq: Option<Rc<Srq>>,
}

impl Given {
    fn new(
        device: &Rc<VerbsDevice>,
        pd: &Rc<dyn ProtectionDomain>,
        config: &QpConfig,
    ) -> Result<Self, RdmaError> {
        let pd: &dyn Any = pd.as_ref();
        let pd = pd.downcast_ref::<Pd>();
        let pd = pd.filter(|pd| Rc::ptr_eq(&pd.device, device));
        let pd = pd.ok_or(RdmaError::Invalid(
            "the protection domain is of another device",
        ))?;
        let cq = |cq: &Rc<dyn CompletionQueue>| {
            let cq: Rc<dyn Any> = Rc::clone(cq) as Rc<dyn Any>;
            let cq = cq.downcast::<Cq>().ok();
            let cq = cq.filter(|cq| Rc::ptr_eq(&cq.device, device));
            cq.ok_or(RdmaError::Invalid(
                "the completion queue is of another device",
            ))
        };
        let srq = match &config.receives {
            ReceiveSource::Own(_) => None,
            ReceiveSource::Shared(srq) => {
                let srq: Rc<dyn Any> = Rc::clone(srq) as Rc<dyn Any>;
                let srq = srq.downcast::<Srq>().ok();
                let same = |srq: &Rc<Srq>| {
                    Rc::ptr_eq(&srq.device, device) && srq.pd == ProtectionDomain::id(pd)
                };
                Some(srq.filter(same).ok_or(RdmaError::Invalid(
                    "the shared receive queue is of another protection domain",
                ))?)
            }
        };
        Ok(Self {
            pd: Rc::clone(&pd.raw),
            keys: Rc::clone(&pd.keys),
            send_cq: cq(&config.send_cq)?,
            recv_cq: cq(&config.recv_cq)?,
            srq,
        })
    }
}

impl Core {
    /// Makes the queue pair of `id`.
    pub(super) fn new(
        device: &Rc<VerbsDevice>,
        (id, cm_id, cm): (&Rc<Id>, CmId, &Rc<Notices>),
        pd: &Rc<dyn ProtectionDomain>,
        config: &QpConfig,
    ) -> Result<Rc<Self>, RdmaError> {
        let own = check_qp(&device.attributes, config)?;
        let given = Given::new(device, pd, config)?;
        let wr_max = device.attributes.qp_wr_max;
        // One entry more than asked for: some devices free an entry just after its completion.
        let size = Size {
            send_wr_max: (config.send_wr_max + 1).min(wr_max),
            recv_wr_max: if own > 0 { (own + 1).min(wr_max) } else { 0 },
            send_sge_max: config.send_sge_max,
            recv_sge_max: config.recv_sge_max,
            inline_bytes: config.inline_bytes,
        };
        let parts = Parts {
            id: Rc::clone(id),
            pd: given.pd,
            send_cq: Rc::clone(&given.send_cq.raw),
            recv_cq: Rc::clone(&given.recv_cq.raw),
            srq: given.srq.as_ref().map(|srq| Rc::clone(&srq.raw)),
        };
        let pair = Pair::new(parts, size).map_err(resource("queue pair"))?;
        let inline_bytes_max = pair.inline_bytes_max();
        let place = device.reserve_place();
        let sends = config.send_wr_max.max(1);
        let core = Rc::new(Self {
            num: device.next_number(),
            device_num: pair.num(),
            place,
            device: Rc::clone(device),
            state: Cell::new(QpState::Init),
            pair: RefCell::new(Some(pair)),
            sends: RefCell::new(Outstanding::new(sends)),
            receives: RefCell::new(given.srq.is_none().then(|| Outstanding::new(own))),
            chain: RefCell::new(Chain::new(
                sends as usize,
                config.send_sge_max as usize,
                inline_bytes_max,
            )),
            held: Cell::new(0),
            reads: Cell::new(0),
            keys: given.keys,
            send_cq: given.send_cq,
            recv_cq: given.recv_cq,
            limits: Limits {
                send_sge_max: config.send_sge_max,
                read_sge_max: config.send_sge_max.min(device.attributes.sge_rd_max),
                recv_sge_max: config.recv_sge_max,
                inline_bytes_max,
                unvouched_max: (sends / 8).min(UNVOUCHED_MAX),
                counts_reads: device.attributes.transport == Transport::Iwarp,
            },
            initiator_depth: Cell::new(0),
            behind: Cell::new(0),
            cm: Rc::clone(cm),
            cm_id,
            peer: RefCell::default(),
        });
        device.put(place, &core);
        Ok(core)
    }

    pub(super) fn state(&self) -> QpState {
        self.state.get()
    }

    /// It can send from now on.
    pub(super) fn connected(&self, initiator_depth: u8, peer: String) {
        self.initiator_depth.set(initiator_depth);
        self.peer.replace(peer);
        if self.state.get() == QpState::Init {
            self.state.set(QpState::ReadyToSend);
        }
    }

    /// Its first message arrived before the peer's last message of the set-up.
    pub(super) fn established_by_data(&self) {
        if let Some(pair) = self.pair.borrow().as_ref()
            && let Err(error) = pair.id().notify_established()
        {
            tracing::debug!("telling of an early message: {error}");
        }
    }

    /// The device has completed a request.
    #[inline]
    pub(super) fn completed(&self, queue: Queue, position: u32, outcome: Outcome, wc: &Wc) {
        let mut operation = WcOpcode::Recv;
        match queue {
            Queue::Send => {
                let mut sends = self.sends.borrow_mut();
                if let Some(opcode) = sends.opcode(position) {
                    operation = opcode;
                    self.behind.set(sends.behind(position));
                }
                sends.end(position, outcome, |request, outcome| {
                    self.send_cq.push(self.num, request, outcome);
                });
            }
            Queue::Receive => {
                if let Some(receives) = self.receives.borrow_mut().as_mut() {
                    receives.end(position, outcome, |request, outcome| {
                        self.recv_cq.push(self.num, request, outcome);
                    });
                }
            }
        }
        if outcome.status != WcStatus::Success {
            self.failed_by(operation, outcome.status, wc.vendor_err);
        } else if self.state.get() == QpState::Error {
            self.flush();
        } else if self.limits.counts_reads && operation == WcOpcode::RdmaRead {
            self.reads.set(self.reads.get().saturating_sub(1));
            self.post_rung();
        }
    }

    /// A completion has reported an error.
    pub(super) fn failed_by(&self, operation: WcOpcode, status: WcStatus, vendor_err: u32) {
        if self.state.get() == QpState::Error {
            return self.flush();
        }
        let cause = if status == WcStatus::WrFlushError {
            // The connection ended, and the completion was faster than the event.
            "the peer or the device ended the connection".to_owned()
        } else {
            let timers = self
                .pair
                .borrow()
                .as_ref()
                .and_then(|pair| pair.timers().ok());
            wc::in_words(status, vendor_err, operation, &self.peer.borrow(), timers)
        };
        self.fail(&cause);
    }

    /// Ends the connection: nothing is given to the device any more, everything outstanding is
    /// flushed, and the program gets the cause.
    pub(super) fn fail(&self, cause: &str) {
        let was = self.state.replace(QpState::Error);
        if was == QpState::Error {
            return;
        }
        self.held.set(0);
        let unrung = u32::try_from(self.chain.borrow_mut().clear()).unwrap_or(0);
        self.sends.borrow_mut().keep_from_device(unrung);
        if let Some(receives) = self.receives.borrow_mut().as_mut() {
            receives.keep_from_device(0);
        }
        if let Some(pair) = self.pair.borrow().as_ref() {
            if let Err(error) = pair.modify_to_error() {
                tracing::debug!("moving a queue pair to the error state: {error}");
            }
            // On InfiniBand only this lets the peer know; on iWARP the connection has just been
            // closed.
            if was == QpState::ReadyToSend
                && let Err(error) = pair.id().disconnect()
            {
                tracing::debug!("disconnecting from {}: {error}", self.peer.borrow());
            }
        }
        if was == QpState::ReadyToSend {
            self.cm.tell(self.cm_id, cause.to_owned());
        }
        if let Some(core) = self.device.at(self.place) {
            self.cm.will_die(core);
        }
        self.flush();
    }

    /// Flushes what was not given to the device, when the device has flushed what it has.
    fn flush(&self) {
        if self.state.get() != QpState::Error {
            return;
        }
        self.sends.borrow_mut().flush_ours(|request, outcome| {
            self.send_cq.push(self.num, request, outcome);
        });
        if let Some(receives) = self.receives.borrow_mut().as_mut() {
            receives.flush_ours(|request, outcome| {
                self.recv_cq.push(self.num, request, outcome);
            });
        }
    }

    /// Whether a send work request has not completed.
    pub(super) fn is_sending(&self) -> bool {
        self.sends.borrow().len() > 0
    }

    /// Whether the device has flushed everything.
    pub(super) fn is_flushed(&self) -> bool {
        let receives = self.receives.borrow();
        !self.sends.borrow().device_has_any()
            && !receives.as_ref().is_some_and(Outstanding::device_has_any)
    }

    /// The device has had its time to flush. Unsignaled requests that had succeeded, and those that
    /// some devices forget in the error state, are flushed here: after the queue pair has been
    /// destroyed, so that nothing touches their memory.
    pub(super) fn bury(&self) {
        self.send_cq.drain();
        self.recv_cq.drain();
        if self.is_flushed() {
            return;
        }
        drop(self.pair.take());
        self.send_cq.drain();
        self.recv_cq.drain();
        self.sends.borrow_mut().take_from_device();
        if let Some(receives) = self.receives.borrow_mut().as_mut() {
            receives.take_from_device();
        }
        self.flush();
    }

    fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut receives = self.receives.borrow_mut();
        let receives = receives.as_mut().ok_or(PostError::UsesSrq)?;
        if sges.len() > self.limits.recv_sge_max as usize {
            return Err(PostError::TooManySges(sges.len(), self.limits.recv_sge_max));
        }
        if receives.is_full() {
            return Err(PostError::QueueFull(receives.depth()));
        }
        let position = receives.next_position();
        receives.push(Request {
            wr_id,
            opcode: WcOpcode::Recv,
            signaled: true,
            reported: true,
            silent: false,
        });
        let pair = self.pair.borrow();
        let Some(pair) = pair.as_ref().filter(|_| self.state.get() != QpState::Error) else {
            receives.flush_ours(|request, outcome| {
                self.recv_cq.push(self.num, request, outcome);
            });
            return Ok(());
        };
        let id = WrId::Receive {
            place: self.place,
            position,
        };
        pair.post_recv(id.encode(), sges).map_err(|error| {
            receives.pop();
            tracing::error!("the device refused a receive: {error}");
            match error.raw_os_error() {
                Some(libc::ENOMEM) => PostError::QueueFull(receives.depth()),
                _ => PostError::NotConnected,
            }
        })
    }
}

/// What the program holds of a queue pair.
pub(crate) struct Handle(pub(super) Rc<Core>);

impl QueuePair for Handle {
    fn num(&self) -> QpNum {
        self.0.num
    }

    fn state(&self) -> QpState {
        self.0.state()
    }

    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.0.post_recv(wr_id, sges)
    }

    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.0.post(wr, false)
    }

    fn ring_doorbell(&mut self) {
        self.0.ring_doorbell();
    }
}

/// What it does beyond verbs ([`direct`](crate::direct)).
impl Handle {
    /// As [`Pair::send_inline`](crate::Pair::send_inline).
    pub(crate) fn send_inline(&self, bytes: &[u8], invalidate: Option<RKey>) -> bool {
        self.0.send_inline(bytes, invalidate)
    }

    /// As [`Pair::needs_drain`](crate::Pair::needs_drain).
    pub(crate) fn needs_drain(&self) -> bool {
        self.0.needs_drain()
    }

    /// As [`Pair::outstanding_at_completion`](crate::Pair::outstanding_at_completion).
    pub(crate) fn outstanding_at_completion(&self) -> u32 {
        self.0.behind.get()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let core = &self.0;
        core.fail("this side dropped the queue pair");
        core.cm.forget(core);
        // From here on completions are dropped; shared receives are posted again.
        core.device.free_place(core.place, core.device_num);
        core.recv_cq.drain();
        // Waits until the device is done with the memory of its requests.
        drop(core.pair.take());
        core.send_cq.forget(core.num);
        core.recv_cq.forget(core.num);
    }
}
