//! The host's side of a queue, without I/O: bytes and time in, bytes and events out.
//!
//! Source: NVMe over TCP Transport 1.1.

use std::collections::VecDeque;

use capstan_memory::{Buffer, RawBytes};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::c2h::{C2hData, C2hWindow};
use capstan_nvme_proto::tcp::fault::Fault;
use capstan_nvme_proto::tcp::h2c::{H2cData, H2cPlan};
use capstan_nvme_proto::tcp::pdu::PduType;
use capstan_nvme_proto::tcp::r2t::{R2t, R2tWindow};
use capstan_nvme_proto::tcp::reader::{Pdu, PduReader};
use capstan_nvme_proto::tcp::setup::{Agreed, IcRequest, IcResponse};
use capstan_nvme_proto::tcp::writer::PduWriter;
use zerocopy::IntoBytes;

use super::limits::{DIRECT_MIN_BYTES, STAGED_MAX_BYTES};
use super::outgoing::{Mark, Outgoing, crc32c, crc32c_raw};
use super::stream::{Side, SocketPlace, Stream, is_intact};
use crate::data::Full;
use crate::queue::{End, EndReason};

/// The data of a command, with its memory from the first byte of the buffer on.
#[derive(Debug)]
pub enum Payload {
    /// None.
    None,
    /// Bytes to the controller, in the capsule.
    InCapsule(Buffer, u32),
    /// Bytes to the controller, when it asks for them.
    ToController(Buffer, u32),
    /// Bytes from the controller.
    FromController(Buffer, u32),
}

/// What has come of the data of a command, in whichever direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// All of it; or the command has none, or has failed.
    Whole,
    /// The controller said success and cannot have all data that it was to ask for.
    NotTaken {
        /// Bytes it had asked for by then; where that is all, they had not all been sent.
        asked_bytes: u32,
        /// Bytes of the command's data.
        total_bytes: u32,
    },
    /// Less than the command asked for: the buffer is not filled, whatever the status says.
    Short,
    /// A data digest does not fit: the command has failed with Transient Transport Error.
    Corrupt,
}

/// What happens on the host's side of a queue.
#[derive(Debug)]
pub enum HostQueueEvent {
    /// The connection is set up: commands may be sent.
    Ready(Agreed),
    /// A command is complete.
    Response {
        /// Its completion; where SUCCESS stood for it, one with SQHD FFFFh.
        cqe: Cqe,
        /// The memory of its data.
        memory: Option<Buffer>,
        /// What has come of its data.
        arrived: Arrived,
    },
    /// There is room again after a [`Full`].
    Room,
    /// The queue takes nothing any more.
    Ended(EndReason),
    /// The memory of a command that has no response, by its CID; only before
    /// [`HostQueueEvent::Quiesced`].
    Returned(u16, Buffer),
    /// The last event: every buffer has been returned.
    Quiesced,
}

/// A command that is outstanding.
struct Command {
    cid: u16,
    memory: Option<Buffer>,
    /// Whether its data comes from the controller.
    takes: bool,
    r2t: R2tWindow,
    c2h: C2hWindow,
    intact: bool,
    /// R2Ts whose data is not queued as a whole.
    answering: u32,
    /// Pieces of its memory that are queued and have not left.
    sending: u32,
    /// The end of its last H2CData that was queued, in what the queue sends.
    queued_to: Option<Mark>,
    response: Option<Cqe>,
    /// Whether all data for the controller had left when the response came.
    had_left: bool,
}

/// The host's side of a queue.
pub struct HostQueue {
    pub(super) stream: Stream,
    side: HostSide,
}

struct HostSide {
    request: IcRequest,
    flow_control: bool,
    agreed: Option<(Agreed, PduWriter)>,
    /// Outstanding commands, by slot (the low bits of the CID).
    commands: Vec<Option<Command>>,
    /// R2Ts to be answered, in order.
    answers: VecDeque<H2cPlan>,
    landing: Option<C2hData>,
    landed_bytes: u32,
    /// Commands whose data comes from the controller, at least [`DIRECT_MIN_BYTES`] of it.
    large: u32,
    wants_room: bool,
    events: VecDeque<HostQueueEvent>,
}

impl HostQueue {
    /// Of a connection to a controller: sends ICReq. The low bits of a CID are the slot of its
    /// command, a number below `entries` that no other outstanding command has; the high bits are
    /// free. With `flow_control`, which Connect is to ask for, SUCCESS is a fault.
    #[must_use]
    pub fn new(request: IcRequest, entries: u16, flow_control: bool, now_us: u64) -> Self {
        let reader = PduReader::host(request);
        let mut stream = Stream::new(Role::Host, reader, now_us);
        stream.out.stage(request.encode().as_bytes());
        let mut commands = Vec::new();
        commands.resize_with(usize::from(entries), || None);
        Self {
            stream,
            side: HostSide {
                request,
                flow_control,
                agreed: None,
                commands,
                answers: VecDeque::new(),
                landing: None,
                landed_bytes: 0,
                large: 0,
                wants_room: false,
                events: VecDeque::new(),
            },
        }
    }

    /// Sends a command, and fills in its SGL. Its memory comes back with
    /// [`HostQueueEvent::Response`] or [`HostQueueEvent::Returned`].
    ///
    /// # Errors
    /// The payload: until there is room; or for good, where the queue has ended or is not ready,
    /// the CID is outstanding or not of this queue, or the buffer is shorter than the data.
    pub fn send(&mut self, mut sqe: Sqe, payload: Payload) -> Result<(), Full<Payload>> {
        let side = &mut self.side;
        let cid = sqe.cid.get();
        let slot = side.slot(cid);
        let agreed = side.agreed.filter(|_| self.stream.is_open());
        let (Some((agreed, writer)), Some(place @ None), true) = (
            agreed,
            side.commands.get_mut(usize::from(slot)),
            payload.fits(),
        ) else {
            return Err(Full {
                what: payload,
                until_room: false,
            });
        };
        let out = &mut self.stream.out;
        if out.staged_bytes() >= STAGED_MAX_BYTES {
            side.wants_room = true;
            return Err(Full {
                what: payload,
                until_room: true,
            });
        }
        let (mut to_bytes, mut from_bytes, mut capsule_bytes) = (0, 0, 0);
        let (sgl, memory) = match payload {
            Payload::None => (Sgl::Transport { length_bytes: 0 }, None),
            Payload::InCapsule(buffer, length_bytes) => {
                capsule_bytes = length_bytes;
                let offset_bytes = 0;
                (
                    Sgl::InCapsule {
                        offset_bytes,
                        length_bytes,
                    },
                    Some(buffer),
                )
            }
            Payload::ToController(buffer, length_bytes) => {
                to_bytes = length_bytes;
                (Sgl::Transport { length_bytes }, Some(buffer))
            }
            Payload::FromController(buffer, length_bytes) => {
                from_bytes = length_bytes;
                (Sgl::Transport { length_bytes }, Some(buffer))
            }
        };
        sqe.dptr = sgl.encode();
        let head = writer.capsule_cmd(&sqe, capsule_bytes);
        let digest_bytes = 4;
        out.reserve_anyway(head.as_bytes().len() + capsule_bytes as usize + digest_bytes);
        out.stage(head.as_bytes());
        if let Some(buffer) = memory.as_ref().filter(|_| capsule_bytes > 0) {
            let start = out.stage_raw(buffer.raw(), capsule_bytes as usize);
            if head.has_data_digest() {
                let digest = crc32c(out.staged_from(start));
                out.stage(&digest.to_le_bytes());
            }
        }
        if from_bytes >= DIRECT_MIN_BYTES {
            side.large = side.large.saturating_add(1);
        }
        *place = Some(Command {
            cid,
            memory,
            takes: from_bytes > 0,
            r2t: R2tWindow::new(to_bytes, &agreed),
            c2h: C2hWindow::new(from_bytes),
            intact: true,
            answering: 0,
            sending: 0,
            queued_to: None,
            response: None,
            had_left: true,
        });
        Ok(())
    }

    /// Whether [`HostQueue::send`] takes a command now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let is_ready = self.side.agreed.is_some() && self.stream.is_open();
        is_ready && self.stream.out.staged_bytes() < STAGED_MAX_BYTES
    }

    /// Reads all of `bytes`, which are the next of the connection.
    pub fn handle_bytes(&mut self, bytes: &[u8], now_us: u64) {
        self.stream.handle_bytes(&mut self.side, bytes, now_us);
    }

    /// Where the next bytes of the connection belong, when there are [`DIRECT_MIN_BYTES`] of them.
    pub fn place(&mut self) -> Option<SocketPlace> {
        let due = self.stream.direct_due_bytes()?;
        self.side.place(due)
    }

    /// So many bytes have arrived at [`HostQueue::place`].
    pub fn landed(&mut self, bytes: usize, now_us: u64) {
        self.stream.data_moved(bytes);
        self.side.moved(bytes);
        self.handle_bytes(&[], now_us);
    }

    /// Whether data may come that has a place of its own: of what follows as little as possible is
    /// to be read elsewhere.
    #[must_use]
    pub fn expects_large(&self) -> bool {
        self.side.large > 0
    }

    /// Data of the last header that has not come, in bytes.
    #[must_use]
    pub fn due_bytes(&self) -> usize {
        usize::try_from(self.stream.reader.data_due_bytes()).unwrap_or(usize::MAX)
    }

    /// When [`HostQueue::handle_timeout`] is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.stream.deadline_us()
    }

    /// The time is `now_us`.
    pub fn handle_timeout(&mut self, now_us: u64) {
        self.stream.handle_timeout(&mut self.side, now_us);
    }

    /// Whether the last PDU that has come, or of which some has, is an ICResp.
    #[must_use]
    pub fn last_is_ic_resp(&self) -> bool {
        let header = self.stream.reader.header();
        header.first() == Some(&PduType::IC_RESP.0)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<HostQueueEvent> {
        self.side.events.pop_front()
    }

    /// Calls `take` with what is to be sent, piece after piece, until it answers false.
    pub fn poll_transmit<'a>(&'a mut self, take: impl FnMut(RawBytes<'a>) -> bool) {
        if self.stream.is_open() {
            self.side.answer(&mut self.stream);
        }
        let commands = &self.side.commands;
        let memory = |slot| {
            let command = commands.get(usize::from(slot))?.as_ref()?;
            Some(command.memory.as_ref()?.raw())
        };
        self.stream.out.gather(memory, take);
    }

    /// The first `bytes` of what is to be sent have left.
    pub fn transmitted(&mut self, bytes: usize) {
        let side = &mut self.side;
        self.stream.out.gone(bytes, |slot| {
            let command = side.commands.get_mut(usize::from(slot));
            if let Some(Some(command)) = command {
                command.sending = command.sending.saturating_sub(1);
            }
            side.complete(slot);
        });
        if side.wants_room && self.stream.out.staged_bytes() <= STAGED_MAX_BYTES / 2 {
            side.wants_room = false;
            side.events.push_back(HostQueueEvent::Room);
        }
    }

    /// Ends the queue; [`HostQueue::wants_close`] says when the connection is to be closed.
    pub fn end(&mut self, how: End, now_us: u64) {
        self.stream.end(&mut self.side, how, now_us);
    }

    /// The controller has closed the connection, or it was `lost` for this reason.
    pub fn handle_end(&mut self, lost: Option<String>) {
        let lost = lost.unwrap_or_else(|| "the controller closed the connection".to_owned());
        self.stream.handle_end(&mut self.side, Some(lost));
    }

    /// Whether the connection is to be closed.
    #[must_use]
    pub fn wants_close(&self) -> bool {
        self.stream.wants_close()
    }

    /// Whether a TermReq ends the queue, and all that is to be sent has gone to the socket.
    pub(super) fn has_sent_term_req(&self) -> bool {
        self.stream.is_terminating() && self.stream.out.is_empty()
    }

    /// Whether a TermReq ends the queue: the connection may be closed once it has left.
    pub(super) fn is_terminating(&self) -> bool {
        self.stream.is_terminating()
    }

    /// The connection is closed: all memory comes back, and then [`HostQueueEvent::Quiesced`].
    pub fn closed(&mut self) {
        let side = &mut self.side;
        if self.stream.is_open() {
            side.ended(EndReason::Host);
        }
        if self.stream.closed() {
            for command in side.commands.iter_mut().filter_map(Option::take) {
                if let Some(memory) = command.memory {
                    side.events
                        .push_back(HostQueueEvent::Returned(command.cid, memory));
                }
            }
            side.events.push_back(HostQueueEvent::Quiesced);
        }
    }
}

impl Payload {
    fn fits(&self) -> bool {
        match self {
            Self::None => true,
            Self::InCapsule(buffer, bytes)
            | Self::ToController(buffer, bytes)
            | Self::FromController(buffer, bytes) => *bytes <= buffer.len_bytes(),
        }
    }
}

impl Command {
    /// Whether all data that it has for the controller was asked for, and has left.
    fn has_left(&self, out: &Outgoing) -> bool {
        let is_queued = self.r2t.is_complete() && self.answering == 0;
        let copies_left = self.queued_to.is_none_or(|end| out.left() >= end);
        is_queued && self.sending == 0 && copies_left
    }
}

impl HostSide {
    /// The place of a command.
    fn slot(&self, cid: u16) -> u16 {
        let places = self.commands.len().next_power_of_two();
        cid & u16::try_from(places.saturating_sub(1)).unwrap_or(u16::MAX)
    }

    fn outstanding(&mut self, cid: u16) -> Option<&mut Command> {
        let slot = self.slot(cid);
        let command = self.commands.get_mut(usize::from(slot))?.as_mut();
        command.filter(|command| command.cid == cid)
    }

    fn command(&mut self, pdu: PduType, cid: u16) -> Result<&mut Command, Fault> {
        self.outstanding(cid)
            .filter(|command| command.response.is_none())
            .ok_or_else(|| Fault::unknown_command(pdu, cid))
    }

    fn place(&mut self, due: u32) -> Option<SocketPlace> {
        let data = self.landing.as_ref()?;
        let at = data.offset_bytes.saturating_add(self.landed_bytes);
        let cid = data.cid;
        let command = self.outstanding(cid)?;
        SocketPlace::of(command.memory.as_mut()?, at, due)
    }

    fn moved(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.landed_bytes = self.landed_bytes.saturating_add(bytes);
    }

    fn ic_resp(&mut self, stream: &mut Stream, response: &IcResponse) {
        let agreed = Agreed::new(&self.request, response);
        stream.reader.agree(&agreed);
        stream.set_up();
        self.agreed = Some((agreed, PduWriter::new(Role::Host, &agreed)));
        self.events.push_back(HostQueueEvent::Ready(agreed));
    }

    fn r2t(&mut self, r2t: &R2t) -> Result<(), Fault> {
        let agreed = self.agreed;
        let command = self.command(PduType::R2T, r2t.cid)?;
        if let Some((agreed, _)) = &agreed {
            let answer = command.r2t.receive(r2t, agreed)?;
            command.answering = command.answering.saturating_add(1);
            self.answers.push_back(answer);
        }
        Ok(())
    }

    /// Queues H2CData, as much as there is room for.
    fn answer(&mut self, stream: &mut Stream) {
        let Some((_, writer)) = self.agreed else {
            return;
        };
        while stream.out.staged_bytes() < STAGED_MAX_BYTES {
            let Some(data) = self.answers.front_mut().and_then(Iterator::next) else {
                return;
            };
            if data.last {
                self.answers.pop_front();
            }
            let slot = self.slot(data.cid);
            let Some(command) = self.outstanding(data.cid) else {
                continue;
            };
            if data.last {
                command.r2t.answered();
                command.answering = command.answering.saturating_sub(1);
            }
            if let Some(memory) = &command.memory {
                if data.length_bytes >= DIRECT_MIN_BYTES {
                    command.sending = command.sending.saturating_add(1);
                }
                stage_h2c_data(stream, &writer, &data, slot, memory.raw());
                command.queued_to = Some(stream.out.mark());
            }
            self.complete(data.cid);
        }
    }

    /// Reports a command that has its response, once no piece of its memory is to be sent.
    fn complete(&mut self, cid: u16) {
        let slot = self.slot(cid);
        let Some(place) = self.commands.get_mut(usize::from(slot)) else {
            return;
        };
        let idle = |command: &mut Command| {
            command.response.is_some() && command.sending == 0 && command.answering == 0
        };
        let Some(mut command) = place.take_if(idle) else {
            return;
        };
        let Some(cqe) = command.response.take() else {
            return;
        };
        let memory = command.memory.take();
        let large = memory.as_ref().filter(|_| command.takes);
        if large.is_some() && command.c2h.total_bytes() >= DIRECT_MIN_BYTES {
            self.large = self.large.saturating_sub(1);
        }
        let arrived = match (command.intact, command.c2h.is_complete()) {
            (false, _) => Arrived::Corrupt,
            (true, false) => Arrived::Short,
            (true, true) if !command.had_left && cqe.status().is_success() => Arrived::NotTaken {
                asked_bytes: command.r2t.asked_bytes(),
                total_bytes: command.r2t.total_bytes(),
            },
            (true, true) => Arrived::Whole,
        };
        self.events.push_back(HostQueueEvent::Response {
            cqe,
            memory,
            arrived,
        });
    }
}

/// One H2CData PDU: its data is copied where it is small.
fn stage_h2c_data(
    stream: &mut Stream,
    writer: &PduWriter,
    data: &H2cData,
    slot: u16,
    memory: RawBytes<'_>,
) {
    let out = &mut stream.out;
    let head = writer.h2c_data(data);
    out.stage(head.as_bytes());
    let bytes = memory.skip(data.offset_bytes as usize);
    let len_bytes = data.length_bytes as usize;
    if data.length_bytes >= DIRECT_MIN_BYTES {
        out.memory(slot, data.offset_bytes, len_bytes);
    } else {
        out.stage_raw(bytes, len_bytes);
    }
    if head.has_data_digest() {
        out.stage(&crc32c_raw(bytes, len_bytes).to_le_bytes());
    }
}

impl Side for HostSide {
    fn pdu(&mut self, stream: &mut Stream, pdu: Pdu) -> Result<(), Fault> {
        match pdu {
            Pdu::IcResp(response) => self.ic_resp(stream, &response),
            Pdu::CapsuleResp(cqe) => {
                let cid = cqe.cid.get();
                let command = self.command(PduType::CAPSULE_RESP, cid)?;
                command.had_left = command.has_left(&stream.out);
                command.response = Some(cqe);
                self.complete(cid);
            }
            Pdu::R2t(r2t) => self.r2t(&r2t)?,
            Pdu::C2hData(data) => {
                if data.success && self.flow_control {
                    return Err(Fault::header_field(
                        PduType::C2H_DATA,
                        "SUCCESS",
                        1,
                        1,
                        "0, as SQ flow control needs the SQHD of a response",
                    ));
                }
                self.command(PduType::C2H_DATA, data.cid)?
                    .c2h
                    .receive(&data)?;
                self.landed_bytes = 0;
                self.landing = Some(data);
            }
            // The reader takes nothing else from a controller, and ends with a TermReq.
            Pdu::IcReq(_) | Pdu::CapsuleCmd { .. } | Pdu::H2cData(_) | Pdu::TermReq { .. } => {}
        }
        Ok(())
    }

    fn land(&mut self, bytes: &[u8]) {
        if let Some(data) = &self.landing {
            let at = data.offset_bytes.saturating_add(self.landed_bytes);
            let cid = data.cid;
            let command = self.outstanding(cid);
            if let Some(memory) = command.and_then(|command| command.memory.as_mut()) {
                memory.copy_from(at as usize, bytes);
            }
        }
        self.moved(bytes.len());
    }

    fn data_end(&mut self, _: &mut Stream, digest: Option<u32>) -> Result<(), Fault> {
        let Some(data) = self.landing.take() else {
            return Ok(());
        };
        let command = self.command(PduType::C2H_DATA, data.cid)?;
        if let Some(memory) = &command.memory {
            command.intact &= is_intact(memory, data.offset_bytes, data.length_bytes, digest);
        }
        if data.success {
            let sqhd = Cqe::SQHD_FLOW_CONTROL_DISABLED;
            command.response = Some(Cqe::new(data.cid, sqhd, Status::SUCCESS, 0));
            self.complete(data.cid);
        }
        Ok(())
    }

    fn ended(&mut self, reason: EndReason) {
        self.landing = None;
        self.answers.clear();
        self.large = 0;
        self.events.push_back(HostQueueEvent::Ended(reason));
    }
}
