//! What happens on the queues of one device of one reactor: their completions, told apart.

use std::cell::RefMut;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::rc::Rc;

use capstan_nvme_proto::text::Count;
use capstan_rdma::contract::{CompletionQueue, QpNum, WcStatus, WorkCompletion};
use capstan_rdma::direct::WC_ZERO_COPY;
use rustc_hash::FxHashMap;

use super::queue::Queue;
use super::receives::Receives;
use super::shared::Shared;
use super::wr_id::WrId;
use crate::data::{CapsuleData, InPlace, Landed};
use crate::limits::{COMPLETIONS_PER_TURN, SQE_BYTES};
use crate::queue::{Capsule, EndReason, Event, FenceNumber, Pulled, QueueId, Queues, Tag};

/// The queues on one device share a completion queue and receives.
pub struct Wire {
    cq: Rc<dyn CompletionQueue>,
    shared: Rc<Shared>,
    // The keys are numbers of this program or of a device: no peer can choose them so that they
    // collide.
    queue_of: FxHashMap<QpNum, QueueId>,
    /// What the last poll took.
    completions: Box<[WorkCompletion]>,
    polled: usize,
    /// How many of them have been told apart.
    done: usize,
    /// The queue of the completion before: there often are several of one.
    last: Option<(QpNum, QueueId)>,
    fences: Fences,
    /// Events that are no completions.
    ready: VecDeque<(QueueId, Event)>,
    /// The queues that are being flushed: empty between two flushes.
    flushing: Vec<QueueId>,
}

impl Wire {
    /// Of a device whose queues have their completions in `cq`, at most `depth` at once.
    #[must_use]
    pub fn new(cq: Rc<dyn CompletionQueue>, depth: u32, receives: Receives) -> Self {
        Self {
            cq,
            shared: Rc::new(Shared::new(receives)),
            queue_of: FxHashMap::default(),
            completions: vec![WorkCompletion::EMPTY; COMPLETIONS_PER_TURN].into(),
            polled: 0,
            done: 0,
            last: None,
            fences: Fences {
                all: Vec::new(),
                depth,
            },
            ready: VecDeque::new(),
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

    /// What it shares with its queues, for [`Queue::new`].
    #[must_use]
    pub fn shared(&self) -> Rc<Shared> {
        Rc::clone(&self.shared)
    }

    /// From now on events of `queue` have the name `id`.
    pub fn add(&mut self, id: QueueId, queue: &mut Queue) {
        self.queue_of.insert(queue.num(), id);
        queue.name(id);
    }

    /// The queue is about to be dropped: there are no more events of that name.
    pub fn remove(&mut self, id: QueueId, queue: &Queue) {
        self.queue_of.remove(&queue.num());
        self.shared.forget(id, queue.num());
        self.last = None;
        self.fences.all.retain(|fence| fence.queue != id);
        self.ready.retain(|(queue, _)| *queue != id);
    }

    /// Whether it has no queues.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue_of.is_empty()
    }

    /// Nothing more is taken from the queue, whose connection the user ends now or has ended:
    /// [`Event::Ended`] follows where it has not been told of. When nothing can land in its buffers
    /// any more there is [`Event::Quiesced`].
    pub fn end(&mut self, id: QueueId, queue: &mut Queue) {
        if !queue.has_ended() {
            let ended = Event::Ended(EndReason::Controller);
            self.ready.push_back((id, ended));
        }
        queue.end();
        quiesces(&mut self.ready, id, queue);
    }

    /// Sets a fence: everything that has arrived on the queue by now, in socket buffers and shared
    /// memory as well, comes before [`Event::Fenced`], and so does a capsule of which only the
    /// beginning has arrived, where the provider sees it. None comes where the queue is removed
    /// first.
    pub fn fence(&mut self, id: QueueId, queue: &mut Queue, number: FenceNumber) {
        self.fences.all.push(Fence {
            queue: id,
            number,
            mark: queue.arrived(),
            passed: false,
            unpolled: Unpolled(self.fences.depth),
        });
    }

    /// Whether a fence waits for something. Polling follows it: no other wake-up is needed.
    #[must_use]
    pub fn has_fences(&self) -> bool {
        !self.fences.all.is_empty()
    }

    /// Takes what has happened since the last poll, up to a budget; data that came in place must
    /// have been taken by then. Returns how many completions that is.
    pub fn poll(&mut self, queues: &mut impl Queues<Queue>) -> u32 {
        if self.has_fences() {
            self.fences.look(queues);
        }
        if self.shared.has_failed() {
            self.note_failed();
        }
        self.polled = self.cq.poll(&mut self.completions);
        self.done = 0;
        if !self.shared.full().is_empty() {
            self.look_for_room(queues);
        }
        let count = u32::try_from(self.polled).unwrap_or(u32::MAX);
        if self.has_fences() {
            let emptied = self.polled < self.completions.len();
            self.fences.polled(count, emptied);
        }
        count
    }

    /// Providers were full, and polling may have changed that.
    #[cold]
    fn look_for_room(&mut self, queues: &mut impl Queues<Queue>) {
        let Self { shared, ready, .. } = self;
        shared.full().retain(|&id| {
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

    /// Queue pairs have refused work requests: their queues have ended.
    #[cold]
    fn note_failed(&mut self) {
        for (qp, why) in self.shared.take_failed() {
            if let Some(&id) = self.queue_of.get(&qp) {
                let ended = Event::Ended(EndReason::Lost(why));
                self.ready.push_back((id, ended));
            }
        }
    }

    /// The next event of what was polled.
    #[inline]
    pub fn next_event(&mut self, queues: &mut impl Queues<Queue>) -> Option<(QueueId, Event)> {
        while self.done < self.polled {
            let completion = self.completions.get(self.done)?;
            self.done += 1;
            if self.last.is_none_or(|(qp, _)| qp != completion.qp) {
                let id = self.queue_of.get(&completion.qp);
                self.last = id.map(|&id| (completion.qp, id));
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
                (success && !queue.has_ended()).then(|| in_place(queue, at, completion.byte_len))
            } else {
                queue.completed();
                let event = sent(queue, wr_id, completion.status);
                quiesces(&mut self.ready, id, queue);
                event
            };
            if let Some(event) = event {
                return Some((id, event));
            }
        }
        self.last = None;
        if self.has_fences() {
            self.fences.take_passed(&mut self.ready);
        }
        self.ready.pop_front()
    }

    /// The end of a turn: hands everything that its queues have posted to the device, with one
    /// doorbell per queue.
    pub fn flush(&mut self, queues: &mut impl Queues<Queue>) {
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
        !self.ready.is_empty() || self.shared.has_failed() || self.cq.arm()
    }

    /// Readable, once armed, when there is something to poll.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.cq.fd()
    }
}

/// What follows where the queue has just become quiescent.
#[inline]
fn quiesces(ready: &mut VecDeque<(QueueId, Event)>, id: QueueId, queue: &mut Queue) {
    if queue.becomes_quiescent() {
        let buffers = queue.take_buffers();
        ready.extend(buffers.map(|(tag, buffer)| (id, Event::Returned(tag, buffer))));
        ready.push_back((id, Event::Quiesced));
    }
}

/// A capsule that has come and took no receive; `None` when the queue has ended, and the capsule
/// with it.
#[inline]
fn lent(queue: &mut Queue, completion: &WorkCompletion) -> Option<Capsule> {
    let message = completion.wr_id;
    let head = queue.sqe_of(message)?;
    let len_bytes = completion.byte_len.saturating_sub(SQE_BYTES);
    Some(Capsule {
        sqe: zerocopy::transmute!(head),
        data: if len_bytes == 0 {
            CapsuleData::None
        } else {
            CapsuleData::InPlace(InPlace { message, len_bytes })
        },
        intact: true,
    })
}

/// A message of `byte_len` bytes has come into the receive of a slot, which is posted again at once
/// where no data came behind the SQE.
fn landed(queue: &mut Queue, slot: u32, byte_len: u32) -> Event {
    let (sqe, buffer) = queue.take_received(slot, byte_len > SQE_BYTES);
    let data = buffer.map_or(CapsuleData::None, |buffer| {
        CapsuleData::Landed(Landed {
            receive: slot,
            buffer,
            len_bytes: byte_len.saturating_sub(SQE_BYTES),
        })
    });
    capsule(queue, sqe, data, byte_len)
}

/// A message of `byte_len` bytes has come into a receive in the place of a discovery controller's
/// queue: an SQE, and perhaps SGL descriptors.
fn in_place(queue: &mut Queue, at: u16, byte_len: u32) -> Event {
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
    queue: &mut Queue,
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

/// A work request has ended.
#[inline]
fn sent(queue: &mut Queue, wr_id: Option<WrId>, status: WcStatus) -> Option<Event> {
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

fn ended(queue: &mut Queue, why: EndReason) -> Event {
    queue.take_nothing_more();
    Event::Ended(why)
}

/// Queues whose arrivals are followed. That costs the capsules nothing: the provider passes the
/// mark of what had arrived, and then the completions of that are polled.
struct Fences {
    all: Vec<Fence>,
    /// Completions that there can be at once.
    depth: u32,
}

/// Something that had arrived may not have come as an event yet.
struct Fence {
    queue: QueueId,
    number: FenceNumber,
    /// Behind what had arrived.
    mark: u64,
    /// Every message that had begun before the mark has its completion.
    passed: bool,
    unpolled: Unpolled,
}

/// Completions to poll, at most, until all that were there are polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unpolled(u32);

impl Unpolled {
    /// `count` were polled; `emptied`: there were no more.
    fn polled(&mut self, count: u32, emptied: bool) {
        // A queue that is never empty is followed by counting.
        self.0 = if emptied {
            0
        } else {
            self.0.saturating_sub(count)
        };
    }
}

impl Fences {
    /// Looks which marks have been passed, before completions are polled.
    fn look(&mut self, queues: &mut impl Queues<Queue>) {
        for fence in &mut self.all {
            let queue = queues.queue(fence.queue);
            fence.passed |= queue.is_none_or(|queue| queue.has_passed_begun(fence.mark));
        }
    }

    /// `count` completions were polled; `emptied`: there were no more.
    fn polled(&mut self, count: u32, emptied: bool) {
        for fence in &mut self.all {
            if fence.passed {
                fence.unpolled.polled(count, emptied);
            }
        }
    }

    /// Takes out the queues whose completions have all come as events.
    fn take_passed(&mut self, ready: &mut VecDeque<(QueueId, Event)>) {
        let passed = |fence: &mut Fence| fence.unpolled == Unpolled(0);
        for fence in self.all.extract_if(.., passed) {
            ready.push_back((fence.queue, Event::Fenced(fence.number)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_queue_that_is_never_empty_is_polled_through_all_the_same() {
        let mut unpolled = Unpolled(300);
        for left in [172, 44, 0] {
            unpolled.polled(128, false);
            assert_eq!(unpolled, Unpolled(left));
        }
        let mut unpolled = Unpolled(300);
        unpolled.polled(5, true);
        assert_eq!(unpolled, Unpolled(0));
    }
}
