//! The queues of one reactor on one device: takes their completions and makes an event for the
//! queue that each belongs to.

use std::cell::RefMut;
use std::os::fd::RawFd;
use std::rc::Rc;

use capstan_memory::Pool;
use capstan_nvme_proto::text::Count;
use capstan_rdma::contract::{CompletionQueue, QpNum, WcStatus, WorkCompletion};
use capstan_rdma::direct::WC_ZERO_COPY;

use super::holdings::Holdings;
use super::queue::RdmaQueue;
use super::receives::Receives;
use super::shared::RdmaShared;
use super::wr_id::WrId;
use crate::data::{CapsuleData, InPlace, Landed, Receive};
use crate::limits::{COMPLETIONS_PER_TURN, SQE_BYTES};
use crate::queue::{Capsule, EndReason, Event, Pulled, QueueId, Queues, Tag};
use crate::resources::NoResources;

/// The queues on one device share a completion queue and receives.
pub struct RdmaWire {
    cq: Rc<dyn CompletionQueue>,
    shared: Rc<RdmaShared>,
    /// What the last poll took.
    completions: Box<[WorkCompletion]>,
    polled: usize,
    /// How many of them have been made events of.
    done: usize,
    /// The queue of the completion before: there often are several of one.
    last: Option<(QpNum, QueueId)>,
    /// The queues that are being flushed: empty between two flushes.
    flushing: Vec<QueueId>,
}

impl RdmaWire {
    /// Makes the wire of a device. `cq` is the completion queue of all its queues, with `depth`
    /// entries; `receives` are theirs.
    #[must_use]
    pub fn new(cq: Rc<dyn CompletionQueue>, depth: u32, receives: Receives) -> Self {
        Self {
            cq,
            shared: Rc::new(RdmaShared::new(receives, depth)),
            completions: vec![WorkCompletion::EMPTY; COMPLETIONS_PER_TURN].into(),
            polled: 0,
            done: 0,
            last: None,
            flushing: Vec::new(),
        }
    }

    /// The completion queue, for the queue pairs of its queues.
    #[must_use]
    pub fn cq(&self) -> &Rc<dyn CompletionQueue> {
        &self.cq
    }

    /// The receives of its queues.
    ///
    /// # Panics
    /// While the last answer is still there.
    #[must_use]
    pub fn receives(&self) -> RefMut<'_, Receives> {
        self.shared.receives()
    }

    /// What the wire and its queues share.
    pub(super) fn shared(&self) -> &Rc<RdmaShared> {
        &self.shared
    }

    /// Makes sure that everything a queue of `entries` can have outstanding fits the device and the
    /// memory of `pool` beside what has been promised to others, for [`RdmaQueue::new`].
    ///
    /// # Errors
    /// What is missing.
    pub fn reserve(&self, entries: u16, pool: &Pool) -> Result<Holdings, NoResources> {
        Holdings::queue(&self.shared, entries, 0, pool)
    }

    /// From now on events of `queue` have the name `id`, until it is dropped.
    pub fn add(&mut self, id: QueueId, queue: &mut RdmaQueue) {
        self.shared.queue_of().insert(queue.num(), id);
        queue.name(id);
    }

    /// Whether it has no queues.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.queue_of().is_empty()
    }

    /// Whether a fence waits for something. Polling follows it: no other wake-up is needed.
    #[must_use]
    #[inline]
    pub fn has_fences(&self) -> bool {
        !self.shared.fences().is_empty()
    }

    /// Takes what has happened since the last poll, up to a budget; data that came in place must
    /// have been taken by then. Returns how many completions that is.
    pub fn poll(&mut self, queues: &mut impl Queues<RdmaQueue>) -> u32 {
        if self.has_fences() {
            self.shared.fences().look(queues);
        }
        self.polled = self.cq.poll(&mut self.completions);
        self.done = 0;
        if !self.shared.full().is_empty() {
            self.look_for_room(queues);
        }
        let count = u32::try_from(self.polled).unwrap_or(u32::MAX);
        if self.has_fences() {
            let emptied = self.polled < self.completions.len();
            self.shared.fences().polled(count, emptied);
        }
        count
    }

    /// Providers were full, and polling may have changed that.
    #[cold]
    fn look_for_room(&mut self, queues: &mut impl Queues<RdmaQueue>) {
        let ready = &mut *self.shared.ready();
        self.shared.full().retain(|&id| {
            let Some(queue) = queues.queue(id) else {
                return false;
            };
            let has_room = queue.has_room_again();
            if has_room && !queue.has_ended() {
                ready.push_back((id, Event::Room));
            }
            !has_room
        });
    }

    /// The next event of what was polled.
    #[inline]
    pub fn next_event(&mut self, queues: &mut impl Queues<RdmaQueue>) -> Option<(QueueId, Event)> {
        while self.done < self.polled {
            let completion = self.completions.get(self.done)?;
            self.done += 1;
            if self.last.is_none_or(|(qp, _)| qp != completion.qp) {
                let id = self.shared.queue_of().get(&completion.qp).copied();
                self.last = id.map(|id| (completion.qp, id));
            }
            let named = self.last.and_then(|(_, id)| Some((id, queues.queue(id)?)));
            let success = completion.status == WcStatus::Success;
            if success && completion.opcode == WC_ZERO_COPY {
                if let Some((id, queue)) = named
                    && !queue.has_ended()
                    && let Some(capsule) = lent(queue, completion)
                {
                    return Some((id, Event::Capsule(capsule)));
                }
                continue;
            }
            let wr_id = WrId::decode(completion.wr_id);
            if let Some(WrId::Recv(slot)) = wr_id {
                let taken = named.filter(|(_, queue)| success && !queue.has_ended());
                let Some((id, queue)) = taken else {
                    let _ = self.shared.receives().repost(slot, None);
                    continue;
                };
                return Some((id, landed(queue, slot, completion.byte_len)));
            }
            let Some((id, queue)) = named else { continue };
            let event = if let Some(WrId::RecvInPlace(at)) = wr_id {
                (success && !queue.has_ended())
                    .then(|| landed_in_place(queue, at, completion.byte_len))
            } else {
                queue.completed();
                let event = work_request_ended(queue, wr_id, completion.status);
                queue.quiesces();
                event
            };
            if let Some(event) = event {
                return Some((id, event));
            }
        }
        self.last = None;
        if self.has_fences() {
            let passed = &mut *self.shared.ready();
            self.shared.fences().take_passed(passed);
        }
        self.shared.ready().pop_front()
    }

    /// The end of a turn: hands everything that its queues have posted to the device, with one
    /// doorbell per queue.
    pub fn flush(&mut self, queues: &mut impl Queues<RdmaQueue>) {
        std::mem::swap(&mut self.flushing, &mut *self.shared.unflushed());
        for id in self.flushing.drain(..) {
            if let Some(queue) = queues.queue(id) {
                queue.flush();
                queues.flushed(id);
            }
        }
    }

    /// Arms the completion queue. `true` when there is something to poll already.
    #[must_use]
    pub fn arm(&self) -> bool {
        !self.shared.ready().is_empty() || self.cq.arm()
    }

    /// Readable, once armed, when there is something to poll.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.cq.fd()
    }
}

/// A capsule that has come and took no receive; `None` when the queue has ended, and the capsule
/// with it.
#[inline]
fn lent(queue: &mut RdmaQueue, completion: &WorkCompletion) -> Option<Capsule> {
    let message = completion.wr_id;
    let head = queue.sqe_of(message)?;
    let len_bytes = completion.byte_len.saturating_sub(SQE_BYTES);
    Some(Capsule {
        sqe: zerocopy::transmute!(head),
        data: if len_bytes == 0 {
            CapsuleData::None
        } else {
            CapsuleData::InPlace(InPlace {
                message,
                offset_bytes: 0,
                len_bytes,
            })
        },
        intact: true,
    })
}

/// A message of `byte_len` bytes has come into the receive of a slot, which is posted again at once
/// where no data came behind the SQE.
fn landed(queue: &mut RdmaQueue, slot: u32, byte_len: u32) -> Event {
    let (sqe, buffer) = queue.take_received(slot, byte_len > SQE_BYTES);
    let data = buffer.map_or(CapsuleData::None, |buffer| {
        CapsuleData::Landed(Landed {
            receive: Receive(Some(slot)),
            buffer,
            offset_bytes: 0,
            len_bytes: byte_len.saturating_sub(SQE_BYTES),
        })
    });
    capsule(queue, sqe, data, byte_len)
}

/// A message of `byte_len` bytes has come to a discovery controller's queue, into a receive of its
/// stranger's place: an SQE, and perhaps SGL descriptors.
fn landed_in_place(queue: &mut RdmaQueue, at: u16, byte_len: u32) -> Event {
    let (sqe, list) = queue.take_in_place(at, byte_len.saturating_sub(SQE_BYTES));
    let data = if list.is_empty() {
        CapsuleData::None
    } else {
        CapsuleData::Copied(list)
    };
    if let Err(error) = queue.post_in_place(at) {
        let why = format!("a receive could not be posted again: {error}");
        return ended(queue, EndReason::Lost(why));
    }
    capsule(queue, sqe, data, byte_len)
}

/// What was in the receive, where that was a capsule.
fn capsule(
    queue: &mut RdmaQueue,
    sqe: [u8; SQE_BYTES as usize],
    data: CapsuleData,
    byte_len: u32,
) -> Event {
    if byte_len < SQE_BYTES {
        queue.give_back(data);
        let what = format!(
            "a capsule of {}, expected at least {SQE_BYTES}",
            Count(byte_len.into(), "byte")
        );
        return ended(queue, EndReason::Violation(what));
    }
    Event::Capsule(Capsule {
        sqe: zerocopy::transmute!(sqe),
        data,
        intact: true,
    })
}

/// A work request other than a receive has ended: an RDMA READ, an RDMA WRITE or a Send.
#[inline]
fn work_request_ended(
    queue: &mut RdmaQueue,
    wr_id: Option<WrId>,
    status: WcStatus,
) -> Option<Event> {
    if status != WcStatus::Success {
        let why = || EndReason::Lost(format!("a work request ended with: {status}"));
        return (!queue.has_ended()).then(|| ended(queue, why()));
    }
    match wr_id? {
        WrId::Pull(slot) => queue.pulled(Tag(slot)).map(|sink| {
            Event::Pulled(Pulled {
                tag: Tag(slot),
                sink,
                intact: true,
            })
        }),
        WrId::Push(slot) => {
            let source = queue.take_source(Tag(slot))?;
            Some(Event::Returned(Tag(slot), source))
        }
        WrId::Respond(slot) => {
            queue.responded(slot);
            Some(Event::Released)
        }
        WrId::Recv(_) | WrId::RecvInPlace(_) => None,
    }
}

fn ended(queue: &mut RdmaQueue, why: EndReason) -> Event {
    queue.take_nothing_more();
    Event::Ended(why)
}
