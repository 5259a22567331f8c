//! The controller's side of a queue, without I/O: bytes and time in, bytes and events out.
//!
//! * What both sides have agreed on: [`IcSettings`], [`Connected`].
//! * What happens: [`Event`].
//! * Data from the host (R2T, H2CData): `pull`; to it (C2HData): `push`.
//! * Responses: `respond`.
//! * Whether the host goes on: [`Headway`].
//! * What the PDUs of the host do: `side`.
//!
//! Source: NVMe over TCP Transport 1.1.

mod headway;
mod pull;
mod push;
mod respond;
mod settings;
mod side;

use std::collections::VecDeque;

use capstan_memory::{Buffer, RawBytes};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::c2h::C2hData;
use capstan_nvme_proto::tcp::command::ADMIN_IN_CAPSULE_BYTES;
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::r2t::{R2tLedger, R2tPlan};
use capstan_nvme_proto::tcp::reader::PduReader;
use capstan_nvme_proto::tcp::setup::Agreed;
use capstan_nvme_proto::tcp::writer::PduWriter;

use super::limits::{R2TS_MAX, STAGED_MAX_BYTES};
use super::outgoing::{Mark, Outgoing};
use super::staging::Staging;
use super::stream::{Side, SocketPlace, Stream};
use crate::data::CapsuleData;
use crate::queue::{End, EndReason, Event, Tag};

pub use headway::{Goes, Headway};
pub use push::Part;
pub use settings::{Connected, IcSettings};

/// A pull that is under way.
struct Pull {
    plan: R2tPlan,
    sink: Buffer,
    intact: bool,
    /// How many pulls there were before it.
    number: u64,
    arrived_bytes: u64,
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
    /// Its response is reported when the source has come back.
    responded: bool,
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
    settings: IcSettings,
    /// Buffers for in-capsule data.
    free: Vec<Buffer>,
    agreed: Option<(Agreed, PduWriter)>,
    connected: Option<Connected>,
    /// Capsules whose response has not left.
    outstanding: u32,
    /// Where in the staged bytes each response ends that has not left.
    leaving: VecDeque<Mark>,
    /// Where parts of data end that have not left, whose they are, and what they were copied from.
    parts: VecDeque<(Mark, Tag, Buffer)>,
    /// The head of the last push, until another push or a response follows.
    head: Option<Head>,
    slots: Vec<Slot>,
    r2ts: Option<Box<R2ts>>,
    /// Pulls that have R2Ts to send, while as many are outstanding as may be. Each is here once.
    waiting: VecDeque<u16>,
    pulls: u32,
    /// How many pulls there have been.
    pulls_begun: u64,
    /// Bytes that have left.
    sent_bytes: u64,
    /// Pulls of at least [`DIRECT_MIN_BYTES`](super::limits::DIRECT_MIN_BYTES).
    large_pulls: u32,
    landing: Landing,
    landed_bytes: u32,
    wants_room: bool,
    events: VecDeque<Event>,
}

impl ControllerQueue {
    /// The queue of a new connection.
    #[must_use]
    pub fn new(settings: IcSettings, now_us: u64) -> Self {
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
                pulls_begun: 0,
                sent_bytes: 0,
                large_pulls: 0,
                landing: Landing::None,
                landed_bytes: 0,
                wants_room: false,
                events: VecDeque::new(),
            },
        }
    }

    /// Copies what it is to send to memory of `staging`. To be called before anything has come.
    #[must_use]
    pub fn within(mut self, staging: &Staging) -> Self {
        self.stream.out = Outgoing::new(staging.clone());
        self
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

    /// Where the next bytes of the connection belong, when there are
    /// [`DIRECT_MIN_BYTES`](super::limits::DIRECT_MIN_BYTES) of them.
    pub fn place(&mut self) -> Option<SocketPlace> {
        let due = self.stream.direct_due_bytes()?;
        self.side.place(due)
    }

    /// So many bytes have arrived at [`ControllerQueue::place`].
    pub fn landed(&mut self, bytes: usize, now_us: u64) {
        self.stream.data_moved(bytes);
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

    /// Bytes that were read so far.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.stream.read_bytes()
    }

    /// Bytes that were read up to the end of the last whole PDU.
    #[must_use]
    pub fn whole_bytes(&self) -> u64 {
        self.stream.whole_bytes()
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

    /// The next event: any but [`Event::Released`] and [`Event::Fenced`], which are the wire's.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.side.events.pop_front()
    }

    /// Calls `take` with what is to be sent, piece after piece, until it answers false.
    pub fn poll_transmit<'a>(&'a self, take: impl FnMut(RawBytes<'a>) -> bool) {
        let slots = &self.side.slots;
        let memory = |slot| Some(slot_of(slots, slot)?.source.as_ref()?.raw());
        self.stream.out.gather(memory, take);
    }

    /// The first `bytes` of what is to be sent have left. Call it before handling later input: a
    /// response that has left frees a queue entry for the host's next command.
    pub fn transmitted(&mut self, bytes: usize) {
        let side = &mut self.side;
        side.sent_bytes += bytes as u64;
        self.stream.out.gone(bytes, |slot| side.release(slot));
        let left = self.stream.out.left();
        side.responses_left(left);
        side.parts_left(left);
        if side.wants_room && self.stream.out.staged_bytes() <= STAGED_MAX_BYTES / 2 {
            side.wants_room = false;
            side.events.push_back(Event::Room);
        }
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

    /// Whether the queue has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.stream.is_open()
    }

    /// Ends the queue. Sinks of pulls come back at once; [`ControllerQueue::wants_close`] says when
    /// the connection is to be closed.
    pub fn end(&mut self, how: End, now_us: u64) {
        self.stream.end(&mut self.side, how, now_us);
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
