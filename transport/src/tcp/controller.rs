//! The controller's side of a queue, without I/O: bytes and time in, bytes and events out.
//!
//! Source: NVMe over TCP Transport 1.1.

mod side;

use std::collections::VecDeque;

use capstan_memory::{Buffer, RawBytes};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::c2h::C2hData;
use capstan_nvme_proto::tcp::command::{ADMIN_IN_CAPSULE_BYTES, CommandData};
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::r2t::{R2tLedger, R2tPlan};
use capstan_nvme_proto::tcp::reader::PduReader;
use capstan_nvme_proto::tcp::setup::{Agreed, DataAlignment, Digests};
use capstan_nvme_proto::tcp::writer::PduWriter;
use capstan_nvme_proto::transfer::DataTransfer;

use super::limits::{DIRECT_MIN_BYTES, MAXH2CDATA_BYTES, R2TS_MAX, STAGED_MAX_BYTES};
use super::outgoing::{Mark, Outgoing, crc32c, crc32c_raw, crc32c_zeroes};
use super::stream::{End, Place, Side, Stream};
use crate::data::{CapsuleData, CopyTo, Full, HostMemory, Pushed, Source};
use crate::queue::{EndReason, Tag};

/// What a controller answers to ICReq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The digests it enables where the host asks for them.
    pub digests: Digests,
    /// CPDA: alignment of the data the host sends.
    pub cpda: DataAlignment,
    /// MAXH2CDATA: bytes of data of one H2CData PDU, at least 4096 and a multiple of 4.
    pub maxh2cdata_bytes: u32,
    /// Bytes that one R2T asks for at most, at least 1.
    pub r2t_max_bytes: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            digests: Digests::all(),
            cpda: DataAlignment::DWORD,
            maxh2cdata_bytes: MAXH2CDATA_BYTES,
            r2t_max_bytes: u32::MAX,
        }
    }
}

/// Where a part of the data of a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From the start of the data, in bytes.
    pub offset_bytes: u32,
    /// Nothing follows it.
    pub last: bool,
}

/// What Connect has settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Entries of the submission queue: commands that may be outstanding, with those whose
    /// response has not left.
    pub entries: u16,
    /// In-capsule data of one command, by IOCCSZ (8192 on the Admin Queue).
    pub in_capsule_max_bytes: u32,
    /// Whether SQ flow control is in use. Where it is not, SUCCESS stands for a response.
    pub flow_control: bool,
}

/// What happens on the controller's side of a queue.
#[derive(Debug)]
pub enum Event {
    /// A command capsule has come.
    Capsule {
        /// The command.
        sqe: Sqe,
        /// What came behind it.
        data: CapsuleData,
        /// False where the data digest does not fit the data: the command is to fail with Transient
        /// Transport Error.
        intact: bool,
    },
    /// All data of a pull has come.
    Pulled {
        /// The command.
        tag: Tag,
        /// Its sink, which belonged to the queue until now.
        sink: Buffer,
        /// As for a capsule.
        intact: bool,
    },
    /// The memory of a push may be used again; or the sink of a pull that will not be complete, as
    /// the queue has ended.
    Released(Tag, Buffer),
    /// A part of the data of a command has left ([`ControllerQueue::push_part`]).
    PartLeft(Tag),
    /// There is room again after a [`Full`].
    Room,
    /// The queue takes nothing any more.
    Ended(EndReason),
    /// The last event: every buffer has been returned.
    Quiesced,
}

/// A pull that is under way.
struct Pull {
    plan: R2tPlan,
    sink: Buffer,
    intact: bool,
}

/// The head of the last push, which may have left.
#[derive(Clone, Copy)]
struct Head {
    at: Mark,
    data: C2hData,
}

/// What is under way of one command.
#[derive(Default)]
struct Slot {
    pull: Option<Pull>,
    source: Option<Buffer>,
}

/// Where the data of the last header goes.
enum Landing {
    None,
    Capsule(Sqe, CapsuleData),
    Pull { slot: u16, data: H2cData },
}

struct R2ts {
    ledger: R2tLedger<R2TS_MAX>,
    /// The command of each TTAG.
    slots: [u16; R2TS_MAX],
}

/// The controller's side of a queue.
pub struct ControllerQueue {
    stream: Stream,
    side: ControllerSide,
}

struct ControllerSide {
    settings: Settings,
    /// For in-capsule data.
    free: Vec<Buffer>,
    agreed: Option<(Agreed, PduWriter)>,
    connected: Option<Connected>,
    /// Capsules whose response has not left.
    outstanding: u32,
    /// Where the responses end that have not left.
    leaving: VecDeque<Mark>,
    /// Where parts of data end that have not left, and whose they are.
    parts: VecDeque<(Mark, Tag)>,
    /// Of the last push, until another one or a response follows.
    head: Option<Head>,
    slots: Vec<Slot>,
    r2ts: Option<Box<R2ts>>,
    /// Pulls that have R2Ts to send, while as many are outstanding as may be. Each is here once.
    waiting: VecDeque<u16>,
    pulls: u32,
    /// Pulls of at least [`DIRECT_MIN_BYTES`].
    large_pulls: u32,
    landing: Landing,
    landed_bytes: u32,
    wants_room: bool,
    events: VecDeque<Event>,
}

impl ControllerQueue {
    /// Of a connection that has just come.
    #[must_use]
    pub fn new(settings: Settings, now_us: u64) -> Self {
        let reader = PduReader::controller(ADMIN_IN_CAPSULE_BYTES);
        Self {
            stream: Stream::new(Role::Controller, reader, now_us),
            side: ControllerSide {
                settings,
                free: Vec::new(),
                agreed: None,
                connected: None,
                outstanding: 0,
                leaving: VecDeque::new(),
                parts: VecDeque::new(),
                head: None,
                slots: Vec::new(),
                r2ts: None,
                waiting: VecDeque::new(),
                pulls: 0,
                large_pulls: 0,
                landing: Landing::None,
                landed_bytes: 0,
                wants_room: false,
                events: VecDeque::new(),
            },
        }
    }

    /// Memory for the in-capsule data of one command, which takes it where the data fits, and is
    /// given back with it. Data that finds none is copied.
    pub fn give(&mut self, buffer: Buffer) {
        if self.stream.is_open() {
            self.side.free.push(buffer);
        }
    }

    /// Drops what was given and is not in use.
    pub fn drop_given(&mut self) {
        self.side.free.clear();
    }

    /// Connect was accepted. To be called before its response.
    pub fn connected(&mut self, connected: Connected) {
        let max_bytes = connected.in_capsule_max_bytes;
        self.stream.reader.allow_in_capsule(max_bytes);
        self.side.connected = Some(connected);
    }

    /// Reads all of `bytes`, which are the next of the connection.
    pub fn handle_bytes(&mut self, bytes: &[u8], now_us: u64) {
        self.stream.handle_bytes(&mut self.side, bytes, now_us);
    }

    /// Where the next bytes of the connection belong, when there are [`DIRECT_MIN_BYTES`] of them.
    pub fn place(&mut self) -> Option<Place> {
        let due = self.stream.direct_due_bytes()?;
        self.side.place(due)
    }

    /// So many bytes have arrived at [`ControllerQueue::place`].
    pub fn landed(&mut self, bytes: usize, now_us: u64) {
        self.stream.reader.data_moved(bytes);
        self.side.moved(bytes);
        self.handle_bytes(&[], now_us);
    }

    /// Whether data of a pull may come that has a place of its own: of what follows as little as
    /// possible is to be read elsewhere.
    #[must_use]
    pub fn expects_large(&self) -> bool {
        self.side.large_pulls > 0
    }

    /// Data of the last header that has not come, in bytes.
    #[must_use]
    pub fn due_bytes(&self) -> usize {
        usize::try_from(self.stream.reader.data_due_bytes()).unwrap_or(usize::MAX)
    }

    /// When [`ControllerQueue::handle_timeout`] is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.stream.deadline_us()
    }

    /// The time is `now_us`.
    pub fn handle_timeout(&mut self, now_us: u64) {
        self.stream.handle_timeout(&mut self.side, now_us);
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.side.events.pop_front()
    }

    /// Calls `take` with what is to be sent, piece after piece, until it answers false.
    pub fn poll_transmit<'a>(&'a self, take: impl FnMut(RawBytes<'a>) -> bool) {
        let slots = &self.side.slots;
        let memory = |slot| Some(slot_of(slots, slot)?.source.as_ref()?.raw());
        self.stream.out.gather(memory, take);
    }

    /// The first `bytes` of what is to be sent have left. To be called before what the host sends
    /// after it has read them is handled: a response that leaves makes room for a command.
    pub fn transmitted(&mut self, bytes: usize) {
        let side = &mut self.side;
        self.stream.out.gone(bytes, |slot| side.release(slot));
        let left = self.stream.out.left();
        side.responses_left(left);
        side.parts_left(left);
        if side.wants_room && self.stream.out.staged_bytes() <= STAGED_MAX_BYTES / 2 {
            side.wants_room = false;
            side.events.push_back(Event::Room);
        }
    }

    /// Where the data of the command `sqe` is.
    ///
    /// # Errors
    /// [`CommandData::of`]: anything but a Transport SGL Data Block or in-capsule data.
    pub fn host_memory(
        sqe: &Sqe,
        transfer: DataTransfer,
        data: &CapsuleData,
    ) -> Result<HostMemory, CommandError> {
        if transfer.bytes() == 0 {
            return Ok(HostMemory::None);
        }
        let narrow = |place| u32::try_from(place).unwrap_or(u32::MAX);
        Ok(
            match CommandData::of(transfer, &sqe.sgl()?, data.len_bytes())? {
                CommandData::None => HostMemory::None,
                CommandData::InCapsule(range) => {
                    HostMemory::InCapsule(narrow(range.start)..narrow(range.end))
                }
                CommandData::Transport { length_bytes } => HostMemory::Transport {
                    cid: sqe.cid.get(),
                    offset_bytes: 0,
                    length_bytes,
                },
            },
        )
    }

    /// Asks the host for `len_bytes` of data of the command `cid`, to the start of `sink`. At most
    /// one pull per command, and none together with a push. Where the queue has ended the sink
    /// comes back with [`Event::Released`]; not to be called after [`Event::Quiesced`].
    ///
    /// # Errors
    /// The sink, where it is shorter than that.
    pub fn pull(
        &mut self,
        tag: Tag,
        cid: u16,
        len_bytes: u32,
        sink: Buffer,
    ) -> Result<(), Full<Buffer>> {
        let side = &mut self.side;
        let agreed = side.agreed.filter(|_| self.stream.is_open());
        let Some((agreed, writer)) = agreed else {
            side.events.push_back(Event::Released(tag, sink));
            return Ok(());
        };
        if len_bytes > sink.len_bytes() {
            return Err(Full {
                what: sink,
                until_room: false,
            });
        }
        let plan = R2tPlan::new(cid, len_bytes, side.settings.r2t_max_bytes, &agreed);
        if len_bytes == 0 {
            let intact = true;
            side.events.push_back(Event::Pulled { tag, sink, intact });
            return Ok(());
        }
        side.pulls = side.pulls.saturating_add(1);
        if len_bytes >= DIRECT_MIN_BYTES {
            side.large_pulls = side.large_pulls.saturating_add(1);
        }
        side.slot(tag).pull = Some(Pull {
            plan,
            sink,
            intact: true,
        });
        side.ask(&mut self.stream, &writer, tag.0);
        Ok(())
    }

    /// Sends all data of the command `cid`. Where [`Pushed::UntilReleased`] is answered, the buffer
    /// comes back with [`Event::Released`]; so it does where the queue has ended. Not to be called
    /// after [`Event::Quiesced`].
    ///
    /// # Errors
    /// The source: until there is room ([`Source::Copy`]), or as another kind ([`Source::Held`]
    /// always, [`Source::Buffer`] where the range is not inside).
    pub fn push<'s>(
        &mut self,
        tag: Tag,
        cid: u16,
        mut source: Source<'s>,
    ) -> Result<Pushed, Full<Source<'s>>> {
        let len = source.len_bytes();
        let side = &mut self.side;
        let agreed = side.agreed.filter(|_| self.stream.is_open());
        let out = &mut self.stream.out;
        let fits = match &source {
            Source::Buffer(buffer, range) => range.end <= buffer.len_bytes(),
            Source::Held(..) => false,
            Source::Zeroes(_) | Source::Copy(..) => true,
        };
        let (true, Ok(length_bytes)) = (fits, u32::try_from(len)) else {
            return Err(Full {
                what: source,
                until_room: false,
            });
        };
        let Some((_, writer)) = agreed else {
            if let Source::Buffer(buffer, _) = source {
                side.events.push_back(Event::Released(tag, buffer));
                return Ok(Pushed::UntilReleased);
            }
            return Ok(Pushed::Gone);
        };
        let is_full = out.staged_bytes() >= STAGED_MAX_BYTES;
        if is_full && matches!(source, Source::Copy(..)) {
            side.wants_room = true;
            return Err(Full {
                what: source,
                until_room: true,
            });
        }
        if length_bytes == 0 {
            return Ok(Pushed::Gone);
        }
        let data = C2hData {
            cid,
            offset_bytes: 0,
            length_bytes,
            last: true,
            success: false,
        };
        let head = writer.c2h_data(&data);
        let at = out.stage(head.as_bytes());
        side.head = Some(Head { at, data });
        let copies = length_bytes < DIRECT_MIN_BYTES && !is_full;
        let has_digest = head.has_data_digest();
        let pushed = stage_source(out, tag.0, &mut source, (length_bytes, copies), has_digest);
        if let (Source::Buffer(buffer, _), Pushed::UntilReleased) = (source, pushed) {
            side.slot(tag).source = Some(buffer);
        }
        Ok(pushed)
    }

    /// Sends all data of the command `cid`, `length_bytes` of it, if there is room to copy it now
    /// and `copy` puts all of it. Nothing tells of it.
    pub fn push_now(&mut self, cid: u16, length_bytes: u32, copy: &mut CopyTo<'_>) -> bool {
        self.push_staged(cid, length_bytes, |out| {
            let mut have = 0_usize;
            copy(&mut |bytes| {
                out.stage(bytes);
                have = have.saturating_add(bytes.len());
            });
            have
        })
    }

    /// The same, from the start of a buffer that has so much.
    pub fn push_copied(&mut self, cid: u16, length_bytes: u32, from: RawBytes<'_>) -> bool {
        self.push_staged(cid, length_bytes, |out| {
            let some = from.len().min(length_bytes as usize);
            out.stage_raw(from, some);
            some
        })
    }

    fn push_staged(
        &mut self,
        cid: u16,
        length_bytes: u32,
        stage: impl FnOnce(&mut Outgoing) -> usize,
    ) -> bool {
        let side = &mut self.side;
        let Some((_, writer)) = side.agreed.filter(|_| self.stream.is_open()) else {
            return false;
        };
        let out = &mut self.stream.out;
        if out.staged_bytes() >= STAGED_MAX_BYTES {
            side.wants_room = true;
            return false;
        }
        let data = C2hData {
            cid,
            offset_bytes: 0,
            length_bytes,
            last: true,
            success: false,
        };
        let head = writer.c2h_data(&data);
        let at = out.stage(head.as_bytes());
        let start = out.mark();
        if stage(out) != length_bytes as usize {
            out.unstage(at);
            return false;
        }
        if head.has_data_digest() {
            let digest = crc32c(out.staged_from(start));
            out.stage(&digest.to_le_bytes());
        }
        side.head = Some(Head { at, data });
        true
    }

    /// Sends a part of the data of the command `cid`: so many bytes, copied from the start of a
    /// buffer that has them. One at a time of each command: where `tells`, [`Event::PartLeft`]
    /// follows when the connection has taken it.
    pub fn push_part(
        &mut self,
        tag: Tag,
        cid: u16,
        part: Part,
        (from, len_bytes): (&Buffer, u32),
        tells: bool,
    ) {
        let side = &mut self.side;
        let Some((_, writer)) = side.agreed.filter(|_| self.stream.is_open()) else {
            return;
        };
        let out = &mut self.stream.out;
        let head = writer.c2h_data(&C2hData {
            cid,
            offset_bytes: part.offset_bytes,
            length_bytes: len_bytes,
            last: part.last,
            success: false,
        });
        out.stage(head.as_bytes());
        let start = out.stage_raw(from.raw(), len_bytes as usize);
        if head.has_data_digest() {
            let digest = crc32c(out.staged_from(start));
            out.stage(&digest.to_le_bytes());
        }
        if tells {
            side.parts.push_back((out.mark(), tag));
        }
    }

    /// Sends zeroes as the last `length_bytes` of the data of the command `cid`, from
    /// `offset_bytes` on.
    pub fn pad(&mut self, cid: u16, offset_bytes: u32, length_bytes: u32) {
        let agreed = self.side.agreed.filter(|_| self.stream.is_open());
        let Some((_, writer)) = agreed.filter(|_| length_bytes > 0) else {
            return;
        };
        let out = &mut self.stream.out;
        let head = writer.c2h_data(&C2hData {
            cid,
            offset_bytes,
            length_bytes,
            last: true,
            success: false,
        });
        out.stage(head.as_bytes());
        out.zeroes(length_bytes as usize);
        if head.has_data_digest() {
            out.stage(&crc32c_zeroes(length_bytes as usize).to_le_bytes());
        }
    }

    /// Whether a push that copies takes nothing now; [`Event::Room`] follows when it does again.
    pub fn is_full(&mut self) -> bool {
        let is_full = self.stream.out.staged_bytes() >= STAGED_MAX_BYTES;
        self.side.wants_room |= is_full;
        is_full
    }

    /// Whether there is an event.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.side.events.is_empty()
    }

    /// Whether something is to be sent.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        !self.stream.out.is_empty()
    }

    /// Whether the buffer of a push for `tag` has not left.
    #[must_use]
    pub fn has_source(&self, tag: Tag) -> bool {
        slot_of(&self.side.slots, tag.0).is_some_and(|slot| slot.source.is_some())
    }

    /// Whether the host is asked for data.
    #[must_use]
    pub fn is_pulling(&self) -> bool {
        self.side.pulls > 0
    }

    /// Whether the queue has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.stream.is_open()
    }

    /// Completes a command, behind what was pushed for it. After success without a result SUCCESS
    /// of the last C2HData does it, where SQ flow control is disabled and the head has not left.
    pub fn respond(&mut self, cqe: &Cqe) {
        let side = &mut self.side;
        let head = side.head.take();
        let head = head.filter(|head| head.data.cid == cqe.cid.get());
        let Some((_, writer)) = side.agreed.filter(|_| self.stream.is_open()) else {
            return;
        };
        let may_be_success = side.connected.is_some_and(|settled| !settled.flow_control)
            && cqe.status() == Status::SUCCESS
            && cqe.result() == 0;
        if let Some(Head { at, mut data }) = head.filter(|_| may_be_success) {
            data.success = true;
            if self
                .stream
                .out
                .rewrite(at, writer.c2h_data(&data).as_bytes())
            {
                // Its data, as all that is pushed, is bounded by `STAGED_MAX_BYTES`.
                side.outstanding = side.outstanding.saturating_sub(1);
                return;
            }
        }
        self.stream.out.stage(writer.capsule_resp(cqe).as_bytes());
        side.leaving.push_back(self.stream.out.mark());
    }

    /// Ends the queue. Sinks of pulls come back at once; [`ControllerQueue::wants_close`] says when
    /// the connection is to be closed.
    pub fn end(&mut self, how: End) {
        self.stream.end(&mut self.side, how);
    }

    /// The host has closed the connection, or it was `lost` for this reason.
    pub fn handle_end(&mut self, lost: Option<String>) {
        self.stream.handle_end(&mut self.side, lost);
    }

    /// Whether the connection is to be closed.
    #[must_use]
    pub fn wants_close(&self) -> bool {
        self.stream.wants_close()
    }

    /// The connection is closed: all buffers come back, and then [`Event::Quiesced`].
    pub fn closed(&mut self) {
        let side = &mut self.side;
        if self.stream.is_open() {
            side.ended(EndReason::Controller);
        }
        if self.stream.closed() {
            for slot in 0..side.slots.len() {
                side.release(u16::try_from(slot).unwrap_or(u16::MAX));
            }
            side.events.push_back(Event::Quiesced);
        }
    }
}

fn slot_of(slots: &[Slot], slot: u16) -> Option<&Slot> {
    slots.get(usize::from(slot))
}

/// Queues so many bytes of `source`, copied or not, and their digest behind them.
fn stage_source(
    out: &mut Outgoing,
    slot: u16,
    source: &mut Source<'_>,
    (length_bytes, copies): (u32, bool),
    has_digest: bool,
) -> Pushed {
    let len = length_bytes as usize;
    let start = out.mark();
    let (pushed, digest) = match source {
        Source::Copy(_, copy) => {
            let mut have = 0_usize;
            copy(&mut |bytes| {
                let some = bytes.len().min(len.saturating_sub(have));
                out.stage(bytes.get(..some).unwrap_or_default());
                have = have.saturating_add(some);
            });
            out.stage_zeroes(len.saturating_sub(have));
            (Pushed::Gone, None)
        }
        Source::Zeroes(_) if copies => {
            out.stage_zeroes(len);
            (Pushed::Gone, None)
        }
        Source::Zeroes(_) => {
            out.zeroes(len);
            (Pushed::Gone, has_digest.then(|| crc32c_zeroes(len)))
        }
        Source::Buffer(buffer, range) if copies => {
            out.stage_raw(buffer.raw().skip(range.start as usize), len);
            (Pushed::Gone, None)
        }
        Source::Buffer(buffer, range) => {
            out.memory(slot, range.start, len);
            let bytes = buffer.raw().skip(range.start as usize);
            let digest = has_digest.then(|| crc32c_raw(bytes, len));
            (Pushed::UntilReleased, digest)
        }
        // Refused before.
        Source::Held(..) => (Pushed::Gone, None),
    };
    if has_digest {
        let digest = digest.unwrap_or_else(|| crc32c(out.staged_from(start)));
        out.stage(&digest.to_le_bytes());
    }
    pushed
}
