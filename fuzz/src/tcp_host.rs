//! The host's side of an NVMe/TCP queue against a hostile controller.
//!
//! The input is a run of operations: of a controller that keeps to the rules, of one that sends
//! what it likes, and of the user of the queue.

use capstan_memory::{Pages, Pool};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::c2h::C2hData;
use capstan_nvme_proto::tcp::r2t::R2t;
use capstan_nvme_proto::tcp::reader::{Event as Read, Pdu, PduReader};
use capstan_nvme_proto::tcp::setup::{Agreed, DataAlignment, Digests, IcRequest, IcResponse};
use capstan_nvme_proto::tcp::writer::PduWriter;
use capstan_transport::End;
use capstan_transport::tcp::host::{Arrived, HostQueue, HostQueueEvent, Payload};
use capstan_transport::tcp::limits::STAGED_MAX_BYTES;
use zerocopy::IntoBytes;

use crate::input::Input;
use crate::tcp_queue::{
    Memory, OPERATIONS_MAX, POOL_BYTES, Pending, TRANSFER_MAX_BYTES, deliver, request, send,
    with_data,
};

const ENTRIES: u16 = 16;
const IN_CAPSULE_MAX_BYTES: u32 = 8192;
/// What is copied to be sent: `STAGED_MAX_BYTES`, one PDU of data that is copied beyond it, the
/// heads between data that is not copied (16 commands of 256 KiB at 16 KiB each), and a TermReq.
const STAGED_BOUND_BYTES: usize = STAGED_MAX_BYTES + 16 * 1024 + 16 * 16 * 260 + 1024;

/// A command that the queue has taken.
#[derive(Clone, Copy)]
struct Outstanding {
    to_bytes: u32,
    from_bytes: u32,
    has_memory: bool,
    /// What a controller that keeps to the rules has asked for and sent.
    asked_bytes: u32,
    brought_bytes: u32,
    /// The controller has sent its response, or SUCCESS.
    is_complete: bool,
}

struct World<'a> {
    queue: HostQueue,
    pool: Pool,
    memory: Memory,
    input: Input<'a>,
    now_us: u64,
    request: IcRequest,
    flow_control: bool,
    response: IcResponse,
    commands: [Option<Outstanding>; ENTRIES as usize],
    ready: bool,
    room_is_due: bool,
    ended: bool,
    quiesced: bool,
    /// Bytes of ICReq that have not left.
    setup_bytes: usize,
    /// Reads what the queue sends behind ICReq, once it is ready.
    peer: Option<PduReader>,
    /// The command whose data the queue is sending.
    sending_cid: u16,
    /// Nothing came but whole PDUs of this model.
    whole: bool,
}

impl World<'_> {
    fn writer(&self) -> PduWriter {
        PduWriter::new(
            Role::Controller,
            &Agreed::new(&self.request, &self.response),
        )
    }

    fn piece_bytes(&mut self) -> usize {
        match self.input.byte() {
            0 => usize::MAX,
            piece if piece < 128 => piece.into(),
            piece => usize::from(piece) << 8,
        }
    }

    fn deliver(&mut self, bytes: &[u8]) {
        let piece_bytes = self.piece_bytes();
        deliver(
            &mut self.queue,
            &self.memory,
            bytes,
            piece_bytes,
            self.now_us,
        );
        self.events();
    }

    fn length_bytes(&mut self) -> u32 {
        let length = u32::from(self.input.word());
        (length * [1, 4][usize::from(self.input.byte() & 1)]).min(TRANSFER_MAX_BYTES)
    }

    /// The user sends a command.
    fn command(&mut self) {
        let (cid, kind) = (
            u16::from(self.input.byte()) % (ENTRIES + 1),
            self.input.byte() % 4,
        );
        let length = self.length_bytes();
        let in_capsule = length.min(IN_CAPSULE_MAX_BYTES);
        // Where the CID is outstanding its fill stays: the queue takes no second one.
        let fill = fill_of(cid);
        let (pool, memory) = (&self.pool, &mut self.memory);
        let payload = match kind {
            0 => Some(Payload::None),
            1 => memory
                .source(pool, cid, in_capsule, fill)
                .map(|buffer| Payload::InCapsule(buffer, in_capsule)),
            2 => memory
                .source(pool, cid, length, fill)
                .map(|buffer| Payload::ToController(buffer, length)),
            _ => memory
                .sink(pool, cid, length)
                .map(|buffer| Payload::FromController(buffer, length)),
        };
        let Some(payload) = payload else { return };
        let place = self.commands.get_mut(usize::from(cid));
        let takes = self.ready && !self.ended && matches!(place, Some(None));
        match self.queue.send(Sqe::new(kind, cid, 1), payload) {
            Ok(()) => {
                assert!(takes);
                *place.expect("below the entries") = Some(Outstanding {
                    to_bytes: if kind == 2 { length } else { 0 },
                    from_bytes: if kind == 3 { length } else { 0 },
                    has_memory: kind != 0,
                    asked_bytes: 0,
                    brought_bytes: 0,
                    is_complete: false,
                });
            }
            Err(full) => {
                assert_eq!(full.until_room, takes);
                self.room_is_due |= takes;
                match full.what {
                    Payload::None => {}
                    Payload::InCapsule(buffer, _)
                    | Payload::ToController(buffer, _)
                    | Payload::FromController(buffer, _) => self.memory.back(&buffer, cid),
                }
            }
        }
    }

    /// A controller that keeps to the rules, unless the command is not there: asks for data.
    fn ask(&mut self) {
        let (cid, ttag) = (u16::from(self.input.byte()) % ENTRIES, self.input.word());
        let length = self.length_bytes();
        let command = &mut self.commands[usize::from(cid)];
        let mut r2t = R2t {
            cid,
            ttag,
            offset_bytes: 0,
            length_bytes: length.max(1),
        };
        if let Some(command) = command.as_mut().filter(|c| c.asked_bytes < c.to_bytes) {
            r2t.offset_bytes = command.asked_bytes;
            r2t.length_bytes = length.clamp(1, command.to_bytes - command.asked_bytes);
            command.asked_bytes += r2t.length_bytes;
        }
        let pdu = self.writer().r2t(&r2t);
        self.deliver(pdu.as_bytes());
    }

    /// The same: brings data, with SUCCESS now and then.
    fn bring(&mut self) {
        let (cid, how) = (u16::from(self.input.byte()) % ENTRIES, self.input.byte());
        let length = self.length_bytes();
        let command = &mut self.commands[usize::from(cid)];
        let mut data = C2hData {
            cid,
            offset_bytes: 0,
            length_bytes: length.max(1),
            last: how & 1 != 0,
            success: how & 3 == 3,
        };
        if let Some(command) = command.as_mut().filter(|c| c.brought_bytes < c.from_bytes) {
            data.offset_bytes = command.brought_bytes;
            data.length_bytes = length.clamp(1, command.from_bytes - command.brought_bytes);
            command.brought_bytes += data.length_bytes;
            data.last = command.brought_bytes == command.from_bytes;
            data.success = data.last && how & 2 != 0 && !self.flow_control;
            command.is_complete |= data.success;
        }
        let mut pdu = with_data(&self.writer().c2h_data(&data), data.length_bytes, 0x33);
        if let (true, Some(byte)) = (how & 0x80 != 0, pdu.last_mut()) {
            *byte ^= 1;
        }
        self.deliver(&pdu);
    }

    fn respond(&mut self) {
        let (cid, how) = (u16::from(self.input.byte()) % ENTRIES, self.input.byte());
        let status = [Status::SUCCESS, Status::TRANSIENT_TRANSPORT_ERROR][usize::from(how & 1)];
        let pdu = self.writer().capsule_resp(&Cqe::new(cid, 1, status, 0));
        if let Some(command) = &mut self.commands[usize::from(cid)] {
            command.is_complete = true;
        }
        self.deliver(pdu.as_bytes());
    }

    fn events(&mut self) {
        while let Some(event) = self.queue.poll_event() {
            assert!(!self.quiesced, "{event:?} after Quiesced");
            match event {
                HostQueueEvent::Ready(agreed) => {
                    assert!(!self.ready && !self.ended);
                    self.ready = true;
                    let mut reader = PduReader::controller(IN_CAPSULE_MAX_BYTES);
                    reader
                        .read(self.request.encode().as_bytes())
                        .expect("ICReq");
                    reader.agree(&agreed);
                    self.peer = Some(reader);
                }
                HostQueueEvent::Response {
                    cqe,
                    memory,
                    arrived,
                } => {
                    let cid = cqe.cid.get();
                    let command = self.commands[usize::from(cid)].take();
                    let command = command.expect("one response of a command");
                    assert_eq!(command.has_memory, memory.is_some());
                    match arrived {
                        // Bytes of the input may have asked for data as well.
                        Arrived::Whole => {}
                        Arrived::NotTaken { .. } => assert!(command.to_bytes > 0),
                        Arrived::Short | Arrived::Corrupt => assert!(command.from_bytes > 0),
                    }
                    if let Some(buffer) = memory {
                        self.memory.back(&buffer, cid);
                    }
                }
                HostQueueEvent::Room => assert!(std::mem::take(&mut self.room_is_due)),
                HostQueueEvent::Ended(_) => assert!(!std::mem::replace(&mut self.ended, true)),
                HostQueueEvent::Returned(cid, buffer) => {
                    assert!(self.ended && self.commands[usize::from(cid)].take().is_some());
                    self.memory.back(&buffer, cid);
                }
                HostQueueEvent::Quiesced => {
                    assert!(self.ended && self.memory.is_empty());
                    self.quiesced = true;
                }
            }
        }
    }

    /// Sends up to `wanted_bytes`, and reads them as a controller does.
    fn send(&mut self, wanted_bytes: usize) {
        let sent = send(&mut self.queue, &self.pool, wanted_bytes);
        self.events();
        let (setup, mut rest) = sent.split_at(self.setup_bytes.min(sent.len()));
        let icreq = self.request.encode();
        let start = size_of_val(&icreq) - self.setup_bytes;
        assert_eq!(setup, &icreq.as_bytes()[start..start + setup.len()]);
        self.setup_bytes -= setup.len();
        let Some(peer) = &mut self.peer else {
            assert!(rest.is_empty() || self.ended, "commands before ICResp");
            return;
        };
        while !rest.is_empty() {
            let due = usize::try_from(peer.data_due_bytes()).expect("usize");
            let (data, behind) = rest.split_at(due.min(rest.len()));
            let fill = fill_of(self.sending_cid);
            assert!(data.iter().all(|byte| *byte == fill), "data of others");
            peer.data_moved(data.len());
            let (used, event) = peer.read(behind).expect("what a controller takes");
            rest = &behind[used..];
            match event {
                Some(Read::Pdu(Pdu::CapsuleCmd { sqe, .. })) => self.sending_cid = sqe.cid.get(),
                Some(Read::Pdu(Pdu::H2cData(data))) => {
                    assert!(data.length_bytes <= self.response.maxh2cdata_bytes);
                    self.sending_cid = data.cid;
                }
                Some(Read::Pdu(Pdu::TermReq { .. })) => assert!(self.ended),
                Some(Read::Pdu(pdu)) => panic!("a host does not send {pdu:?}"),
                Some(Read::DataEnd { .. }) | None => {}
            }
        }
    }

    fn send_all(&mut self) {
        while Pending::of(&mut self.queue, &self.pool, 0).total_bytes > 0 {
            self.send(usize::MAX / 2);
        }
    }

    fn operation(&mut self) {
        match self.input.byte() % 32 {
            0..4 => self.respond(),
            4..9 => self.ask(),
            9..14 => self.bring(),
            14..20 => self.command(),
            20..22 => {
                let wanted = self.input.word();
                self.send(wanted.into());
            }
            22..24 => self.send_all(),
            24 | 25 => {
                let length = self.input.word();
                let bytes = self.input.piece(length.into());
                self.whole = false;
                self.deliver(bytes);
            }
            26 => {
                let bytes = vec![0x33; self.input.word().into()];
                self.whole = false;
                self.deliver(&bytes);
            }
            27 => {
                let response = self.response.encode();
                self.deliver(response.as_bytes());
            }
            28 => {
                self.now_us += u64::from(self.input.word()) << 10;
                self.queue.handle_timeout(self.now_us);
            }
            29 => {
                let how = [End::Now, End::Drained][usize::from(self.input.byte() & 1)];
                self.queue.end(how, self.now_us);
            }
            30 => {
                let lost = (self.input.byte() & 1 != 0).then(|| "reset".to_owned());
                self.queue.handle_end(lost);
                assert!(self.queue.wants_close() || self.quiesced);
            }
            _ => {
                if self.queue.wants_close() {
                    self.queue.closed();
                }
            }
        }
        self.events();
        self.is_bounded();
    }

    fn is_bounded(&mut self) {
        let pending = Pending::of(&mut self.queue, &self.pool, 0);
        self.events();
        let staged = pending.total_bytes - pending.in_buffers_bytes;
        let bound = if self.ready { STAGED_BOUND_BYTES } else { 512 };
        assert!(staged <= bound, "{staged} bytes are copied to be sent");
    }

    /// Every command completes, where the controller has kept to the rules; and every buffer comes
    /// back.
    fn finish(mut self) {
        if self.whole && self.ready && !self.ended {
            for cid in 0..ENTRIES {
                let pdu = self
                    .writer()
                    .capsule_resp(&Cqe::new(cid, 1, Status::SUCCESS, 0));
                if self.commands[usize::from(cid)].is_some_and(|c| !c.is_complete) {
                    self.queue.handle_bytes(pdu.as_bytes(), self.now_us);
                    self.events();
                }
            }
            self.send_all();
            self.events();
            assert!(!self.ended && !self.room_is_due);
            assert!(
                self.commands.iter().all(Option::is_none),
                "a command is not complete"
            );
        }
        self.queue.closed();
        self.events();
        assert!(self.quiesced && self.memory.is_empty());
        let pool = self.pool.clone();
        drop(self);
        assert_eq!(pool.free_bytes(), POOL_BYTES);
    }
}

/// What the data of a command is made of.
fn fill_of(cid: u16) -> u8 {
    cid.to_le_bytes()[0].wrapping_add(1)
}

/// The host's side of a queue, whatever the controller sends and its user does: each buffer comes
/// back once and before [`HostQueueEvent::Quiesced`], nothing lands outside of it, what is sent is
/// what a controller reads, memory stays bounded, and each command of a peer that keeps to the
/// rules completes.
///
/// # Panics
/// When it does not.
pub fn tcp_host_queue(data: &[u8]) {
    let mut input = Input::new(data);
    let (asked, answered, size) = (input.byte(), input.byte(), input.byte());
    let request = request(asked);
    let flow_control = size & 1 != 0;
    let mut world = World {
        queue: HostQueue::new(request, ENTRIES, flow_control, 0),
        pool: Pool::new(POOL_BYTES, Pages::Ordinary).expect("memory"),
        memory: Memory::default(),
        input,
        now_us: 0,
        request,
        flow_control,
        response: IcResponse {
            cpda: DataAlignment::from_wire(answered >> 2 & 0b111).expect("an alignment"),
            digests: Digests::from_bits_truncate(answered) & request.digests,
            maxh2cdata_bytes: [4096, 8192, 65_536, 4 << 20][usize::from(size >> 1 & 0b11)],
        },
        commands: [None; ENTRIES as usize],
        ready: false,
        room_is_due: false,
        ended: false,
        quiesced: false,
        setup_bytes: 128,
        peer: None,
        sending_cid: 0,
        whole: true,
    };
    for _ in 0..OPERATIONS_MAX {
        if world.input.is_empty() {
            break;
        }
        world.operation();
    }
    world.finish();
}
