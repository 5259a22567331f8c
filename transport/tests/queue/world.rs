//! A queue of the controller's side over one of the wires, its user, and a host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capstan_memory::{Buffer, Slab};
use capstan_nvme_proto::cqe::Cqe;
use capstan_transport::{
    Capsule, CapsuleData, Event, FenceNumber, Full, HostMemory, Piece, Pulled, Pushed, Queue,
    QueueId, Queues, Responded, Source, Tag, rdma, tcp,
};
use zerocopy::IntoBytes;

use super::over::{Answers, Ends, LocalEnd, LocalEvent, Over, Seen};
use super::rdma::RdmaEnds;
use super::tcp::TcpEnds;
use super::{pattern, success};

/// Entries of the queue.
pub(crate) const ENTRIES: u16 = 8;
/// What the wire calls it.
pub(crate) const QUEUE: QueueId = QueueId(5);
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Memory of the host for data of commands.
pub(crate) const DATA_BYTES: u32 = 1 << 20;
pub(crate) const IN_CAPSULE_BYTES: u32 = 8192;
/// Turns in which what should not happen would.
const QUIET_TURNS: usize = 20;

/// What a command has while it is under way.
#[derive(Default)]
struct Command {
    /// `None` while the queue has it.
    buffer: Option<Buffer>,
    /// Its data was pushed, and no response has followed.
    unanswered: bool,
}

pub(crate) struct World {
    pub(crate) over: Over,
    pub(crate) queue: Option<Queue>,
    commands: BTreeMap<Tag, Command>,
    /// Whether data of capsules stays with the user.
    pub(crate) keeps: bool,
    kept: Vec<CapsuleData>,
    pub(crate) ends: Box<dyn Ends>,
    pub(crate) seen: Vec<Seen>,
    /// The connection is gone, as its manager has said.
    is_gone: bool,
    responses: Vec<Cqe>,
    taken: u32,
}

/// The queue, by its name.
pub(crate) struct Named<'a>(pub(crate) &'a mut Option<Queue>);

impl Queues<rdma::RdmaQueue> for Named<'_> {
    fn queue(&mut self, id: QueueId) -> Option<&mut rdma::RdmaQueue> {
        assert_eq!(id, QUEUE, "there is one queue");
        self.0.as_mut()?.rdma()
    }
}

impl Queues<tcp::wire::TcpQueue> for Named<'_> {
    fn queue(&mut self, id: QueueId) -> Option<&mut tcp::wire::TcpQueue> {
        assert_eq!(id, QUEUE, "there is one queue");
        self.0.as_mut()?.tcp()
    }
}

impl World {
    /// A connection whose host is there, and which the controller has only accepted.
    pub(crate) fn accepted(over: Over) -> Self {
        let (ends, queue): (Box<dyn Ends>, Queue) = match over.rdma() {
            Some(rdma) => {
                let (ends, queue) = RdmaEnds::accepted(rdma);
                (Box::new(ends), queue)
            }
            None => {
                let (ends, queue) = TcpEnds::accepted(over);
                (Box::new(ends), queue)
            }
        };
        Self {
            over,
            queue: Some(queue),
            commands: BTreeMap::new(),
            keeps: false,
            kept: Vec::new(),
            ends,
            seen: Vec::new(),
            is_gone: false,
            responses: Vec::new(),
            taken: 0,
        }
    }

    /// The same, when both sides have taken it up.
    pub(crate) fn new(over: Over) -> Self {
        let mut world = Self::accepted(over);
        world.ends.send(&[0; 64]);
        world.until("the first capsule", |world| {
            world.turn();
            !world.seen.is_empty()
        });
        world.respond(Tag(0), success(0), true);
        world.responses(1);
        world.see(&Seen::Released(Tag(0)));
        world.seen.clear();
        world
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let Self { over, seen, .. } = self;
            assert!(start.elapsed() < PATIENCE, "{over:?}: {what}: {seen:?}");
        }
    }

    /// Lets both sides go on once.
    pub(crate) fn turn(&mut self) {
        self.ends.turn_host();
        self.responses.extend(self.ends.take_responses());
        self.turn_controller();
    }

    /// Turns both until that is seen.
    pub(crate) fn see(&mut self, what: &Seen) {
        self.until(&format!("{what:?}"), |world| {
            world.turn();
            world.seen.contains(what)
        });
    }

    pub(crate) fn turn_controller(&mut self) {
        self.ends.poll(&mut self.queue);
        while let Some(event) = self.ends.next_event(&mut self.queue) {
            let is_of_queue = !matches!(event, LocalEvent::Gone);
            assert!(
                self.queue.is_some() || !is_of_queue,
                "{event:?} of a queue that was removed"
            );
            self.on(event);
        }
        self.flush();
    }

    /// The end of a turn of the controller.
    pub(crate) fn flush(&mut self) {
        self.ends.flush(&mut self.queue);
    }

    fn on(&mut self, event: LocalEvent) {
        let seen = match event {
            LocalEvent::Gone => {
                self.is_gone = true;
                return;
            }
            LocalEvent::Of(Event::Capsule(capsule)) => {
                assert!(capsule.intact, "the host sends what it has");
                self.on_capsule(capsule)
            }
            LocalEvent::Of(Event::Pulled(Pulled { tag, sink, intact })) => {
                assert!(intact, "the host sends what it has");
                self.on_back(tag, sink);
                Seen::Pulled(tag)
            }
            LocalEvent::Of(Event::Returned(tag, buffer)) => return self.on_back(tag, buffer),
            LocalEvent::Of(Event::Released) => {
                while let Some((tag, source)) = self.queue().poll_released() {
                    if let Some(source) = source {
                        self.on_back(tag, source);
                    }
                    let command = self.commands.get(&tag);
                    let is_back = command.is_none_or(|command| command.buffer.is_some());
                    assert!(is_back, "{tag:?} is over, and its buffer is not back");
                    self.seen.push(Seen::Released(tag));
                }
                return;
            }
            LocalEvent::Of(Event::Room) => Seen::Room,
            LocalEvent::Of(Event::Ended(why)) => Seen::Ended(why),
            LocalEvent::Of(Event::Fenced(number)) => Seen::Fenced(number),
            LocalEvent::Of(Event::Quiesced) => Seen::Quiesced,
        };
        self.seen.push(seen);
    }

    /// The queue does not have the buffer of a command any more.
    fn on_back(&mut self, tag: Tag, buffer: Buffer) {
        let command = self.commands.get_mut(&tag).expect("a command has lent it");
        let before = command.buffer.replace(buffer);
        assert!(before.is_none(), "two buffers come back for {tag:?}");
    }

    fn on_capsule(&mut self, capsule: Capsule) -> Seen {
        self.taken += 1;
        let queue = self.queue.as_mut().expect("it is there");
        // Where it may stay and where it came, in turn.
        let stays = self.keeps || self.taken.is_multiple_of(2);
        let (seen, data) = taken(queue, capsule, stays);
        if self.keeps {
            self.kept.push(data);
        } else {
            queue.give_back(data);
        }
        seen
    }

    pub(crate) fn queue(&mut self) -> &mut Queue {
        self.queue.as_mut().expect("it was not removed")
    }

    /// A buffer of the controller.
    pub(crate) fn buffer(&self, len_bytes: u32) -> Buffer {
        self.ends.pool().take(len_bytes).expect("memory")
    }

    fn buffer_of(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.buffer(u32::try_from(bytes.len()).expect("a few"));
        buffer.copy_from(0, bytes);
        buffer
    }

    /// Pulls `len_bytes` into a buffer of its own for the command `tag`.
    pub(crate) fn pull(&mut self, tag: Tag, from: &HostMemory, len_bytes: u32) {
        let sink = self.buffer(len_bytes);
        let queue = self.queue();
        queue.pull(tag, from, sink, len_bytes);
        self.flush();
        self.commands.insert(tag, Command::default());
    }

    /// What the buffer of a command has.
    pub(crate) fn buffer_bytes(&self, tag: Tag, len_bytes: u32) -> Vec<u8> {
        let buffer = self.commands[&tag].buffer.as_ref();
        let mut bytes = vec![0; len_bytes as usize];
        buffer.expect("it is back").copy_to(0, &mut bytes);
        bytes
    }

    /// Pushes from a buffer of its own for the command `tag`; it leaves with the next flush.
    pub(crate) fn push(&mut self, tag: Tag, to: &HostMemory, bytes: &[u8]) {
        let source = self.buffer_of(bytes);
        let len_bytes = source.len_bytes().min(to.len_bytes());
        let source = Source::Buffer(tag, source, 0..len_bytes);
        self.push_from(tag, to, source, true);
    }

    /// Pushes a piece of the data of the command `tag`.
    pub(crate) fn push_piece(&mut self, tag: Tag, to: &HostMemory, bytes: &[u8], last: bool) {
        let piece = Piece {
            tag,
            buffer: self.buffer_of(bytes),
            len_bytes: u32::try_from(bytes.len()).expect("a few"),
            last,
        };
        self.push_from(tag, to, Source::Piece(piece), last);
    }

    fn push_from(&mut self, tag: Tag, to: &HostMemory, source: Source<'_>, unanswered: bool) {
        let buffer = match self.queue().push(to, source) {
            Ok(Pushed::Gone(buffer)) => buffer,
            Ok(Pushed::UntilReleased) => None,
            Err(full) => panic!("a buffer is always taken: {full:?}"),
        };
        let command = Command { buffer, unanswered };
        self.commands.insert(tag, command);
    }

    /// Turns both until the buffer of the command `tag` has come back.
    pub(crate) fn until_back(&mut self, tag: Tag) {
        self.until("a buffer", |world| {
            world.turn();
            world.commands[&tag].buffer.is_some()
        });
    }

    /// Pushes zeroes. Whether the wire has all that it needs for that.
    pub(crate) fn push_zeroes(&mut self, to: &HostMemory) -> bool {
        let pushed = self.queue().push(to, Source::Zeroes(to.len_bytes()));
        matches!(pushed.expect("zeroes"), Pushed::Gone(None))
    }

    /// Pushes bytes that are copied during the call. Where the wire does not take them so: whether
    /// it tells of room.
    pub(crate) fn push_copy(&mut self, to: &HostMemory, bytes: &[u8]) -> Result<(), bool> {
        let source = &mut |put: &mut dyn FnMut(&[u8])| put(bytes);
        without_buffer(self.queue().push(to, Source::Copy(to.len_bytes(), source)))
    }

    /// As [`World::push_copy`], of the start of a slab, which stays as it is.
    pub(crate) fn push_held(&mut self, to: &HostMemory, slab: &Arc<Slab>) -> Result<(), bool> {
        let source = Source::Held(slab, 0..to.len_bytes() as usize);
        without_buffer(self.queue().push(to, source))
    }

    pub(crate) fn respond(&mut self, tag: Tag, cqe: Cqe, waits: bool) {
        if let Some(command) = self.commands.get_mut(&tag) {
            command.unanswered = false;
        }
        if self.queue().respond(tag, &cqe, None, waits) == Responded::Released {
            assert!(!waits, "it is told of");
            self.seen.push(Seen::Released(tag));
        }
        self.flush();
    }

    /// Turns both until the host has so many responses, and takes them.
    pub(crate) fn responses(&mut self, count: usize) -> Vec<Cqe> {
        self.until("responses", |world| {
            world.turn();
            world.responses.len() >= count
        });
        std::mem::take(&mut self.responses)
    }

    pub(crate) fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    pub(crate) fn fence(&mut self, number: FenceNumber) {
        let queue = self.queue.as_mut().expect("it was not removed");
        queue.fence(number);
    }

    /// The controller ends the connection.
    pub(crate) fn end(&mut self, how: LocalEnd) {
        let queue = self.queue.as_mut().expect("it was not removed");
        self.ends.end(queue, how);
    }

    pub(crate) fn remove(&mut self) {
        self.queue = None;
    }

    /// Turns until the queue has ended, or the manager of its connection has said so, and then ends
    /// it, as its user does.
    pub(crate) fn take_end(&mut self) {
        self.until("the end", |world| {
            world.turn();
            world.is_gone || world.ended() > 0
        });
        self.end(LocalEnd::Closes);
    }

    /// How many ends were told of.
    fn ended(&self) -> usize {
        let is_end = |seen: &&Seen| matches!(seen, Seen::Ended(_));
        self.seen.iter().filter(is_end).count()
    }

    /// The queue ends once and then quiesces once, all buffers are back by then, and nothing
    /// follows. Removes it.
    pub(crate) fn quiesces(&mut self, what: &str) {
        let over = self.over;
        self.until(what, |world| {
            world.turn();
            world.seen.contains(&Seen::Quiesced)
        });
        if !over.abilities().returns_unanswered {
            self.commands.retain(|_, command| !command.unanswered);
        }
        for (tag, Command { buffer, .. }) in &mut self.commands {
            let buffer = buffer.as_mut();
            let buffer = buffer.unwrap_or_else(|| panic!("{over:?}: {what}: {tag:?} has none"));
            let scribble = pattern(0xEE, buffer.len_bytes() as usize);
            buffer.copy_from(0, &scribble);
        }
        self.ends.host_reads(true);
        self.ends.host_answers(Answers::All);
        (0..QUIET_TURNS).for_each(|_| self.turn());
        for (tag, Command { buffer, .. }) in &self.commands {
            let len_bytes = buffer.as_ref().map_or(0, Buffer::len_bytes);
            let as_it_was = pattern(0xEE, len_bytes as usize);
            let is_so = self.buffer_bytes(*tag, len_bytes) == as_it_was;
            assert!(is_so, "{over:?}: {what}: something has landed for {tag:?}");
        }
        let seen = &self.seen;
        assert_eq!(self.ended(), 1, "{over:?}: {what}: {seen:?}");
        let quiesced = seen.iter().filter(|seen| **seen == Seen::Quiesced);
        assert_eq!(quiesced.count(), 1, "{over:?}: {what}: {seen:?}");
        let last = seen.last();
        assert_eq!(last, Some(&Seen::Quiesced), "{over:?}: {what}: {seen:?}");
        assert!(!self.queue().awaits_host(), "{over:?}: {what}");
        for data in self.kept.drain(..) {
            self.queue.as_mut().expect("there").give_back(data);
        }
        self.commands.clear();
        self.remove();
        let pool = self.ends.pool();
        let used_bytes = pool.slab().len_bytes() - pool.free_bytes();
        let resting_bytes = self.ends.resting_bytes();
        assert!(
            used_bytes <= resting_bytes,
            "{over:?}: {what}: {used_bytes} bytes are in use"
        );
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Queue pairs go before their connections.
        self.remove();
    }
}

/// A source without a buffer leaves nothing to be released, or comes back.
fn without_buffer(pushed: Result<Pushed, Full<Source<'_>>>) -> Result<(), bool> {
    match pushed {
        Ok(pushed) => assert!(matches!(pushed, Pushed::Gone(None)), "{pushed:?}"),
        Err(full) => return Err(full.until_room),
    }
    Ok(())
}

/// Takes the data of a capsule; where it `stays`, in memory that the user can keep.
fn taken(queue: &mut Queue, capsule: Capsule, stays: bool) -> (Seen, CapsuleData) {
    let sqe = capsule.sqe.as_bytes().to_vec();
    match capsule.data {
        CapsuleData::InPlace(in_place) if !stays => {
            let mut data = vec![0; in_place.len_bytes() as usize];
            assert!(queue.consume(in_place, |bytes| {
                bytes.copy_to(&mut data);
                true
            }));
            (Seen::Capsule { sqe, data }, CapsuleData::None)
        }
        other => {
            let landed = match other {
                CapsuleData::InPlace(in_place) => {
                    CapsuleData::Landed(queue.land(in_place).expect("it has not ended"))
                }
                other => other,
            };
            let data = match &landed {
                CapsuleData::None => Vec::new(),
                CapsuleData::Copied(bytes) => bytes.to_vec(),
                CapsuleData::Landed(landed) => landed.bytes().to_vec(),
                CapsuleData::InPlace(_) => unreachable!("it was landed"),
            };
            (Seen::Capsule { sqe, data }, landed)
        }
    }
}
