//! The controller's side of an NVMe/TCP queue against a hostile host.
//!
//! The input is a run of operations: of a host that keeps to the rules, of one that sends what it
//! likes, and of the user of the queue.

use std::collections::VecDeque;
use std::ops::Range;

use capstan_memory::{Pages, Pool};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::r2t::R2t;
use capstan_nvme_proto::tcp::reader::{Event as Read, Pdu, PduReader};
use capstan_nvme_proto::tcp::setup::{Agreed, DataAlignment, Digests, IcRequest};
use capstan_nvme_proto::tcp::writer::PduWriter;
use capstan_nvme_proto::transfer::DataTransfer;
use capstan_transport::End;
use capstan_transport::tcp::controller::{Connected, ControllerQueue, IcSettings};
use capstan_transport::tcp::host_memory;
use capstan_transport::tcp::limits::{R2TS_MAX, STAGED_MAX_BYTES};
use capstan_transport::{Capsule, CapsuleData, Event, Pulled, Pushed, Source, Tag};
use zerocopy::IntoBytes;

use crate::input::Input;
use crate::tcp_queue::{
    Memory, OPERATIONS_MAX, POOL_BYTES, Pending, TRANSFER_MAX_BYTES, deliver, request, send,
    with_data,
};

const ENTRIES: u16 = 16;
/// Commands whose buffer has not left yet, besides those without a response.
const TAGS: u16 = 32;
/// Before Connect and after.
const IN_CAPSULE_MAX_BYTES: u32 = 8192;
const R2T_MIN_BYTES: u32 = 1024;
const COPY_MAX_BYTES: u32 = 65_536;
/// What is copied to be sent: `STAGED_MAX_BYTES`, one copied push beyond it, and for each command
/// whose response has not left the heads of its R2Ts, of its data and of its response; and a
/// TermReq.
const STAGED_BOUND_BYTES: usize = STAGED_MAX_BYTES
    + COPY_MAX_BYTES as usize
    + 2 * TAGS as usize * ((TRANSFER_MAX_BYTES / R2T_MIN_BYTES) as usize + 8) * 28
    + R2TS_MAX * 28
    + 1024;

/// A command that the user has taken up.
#[derive(Clone, Copy)]
struct Serving {
    cid: u16,
    pulls: bool,
    holds: bool,
    responded: bool,
}

struct World<'a> {
    queue: ControllerQueue,
    pool: Pool,
    memory: Memory,
    input: Input<'a>,
    now_us: u64,
    request: IcRequest,
    settings: IcSettings,
    flow_control: bool,
    connected: bool,
    /// Commands that have come and were not taken up.
    capsules: VecDeque<(Sqe, CapsuleData)>,
    serving: [Option<Serving>; TAGS as usize],
    /// Commands without a response.
    outstanding: u16,
    room_is_due: bool,
    ended: bool,
    quiesced: bool,
    /// Where in all that is sent zeroes are that were not copied.
    zeroes: VecDeque<Range<u64>>,
    sent_bytes: u64,
    /// Reads what the queue sends, and the R2Ts that were read and not answered.
    peer: PduReader,
    r2ts: VecDeque<R2t>,
    /// Commands that a host takes for complete.
    completed: u64,
    responded: u64,
    data_byte: Option<u8>,
    /// ICReq was sent as a whole and first of all; and nothing came but whole PDUs of this model.
    set_up: bool,
    whole: bool,
}

impl World<'_> {
    fn agreed(&self) -> Agreed {
        let response = capstan_nvme_proto::tcp::setup::IcResponse {
            cpda: self.settings.cpda,
            digests: self.settings.digests & self.request.digests,
            maxh2cdata_bytes: self.settings.maxh2cdata_bytes,
        };
        Agreed::new(&self.request, &response)
    }

    fn writer(&self) -> PduWriter {
        PduWriter::new(Role::Host, &self.agreed())
    }

    fn deliver(&mut self, bytes: &[u8]) {
        let piece_bytes = match self.input.byte() {
            0 => usize::MAX,
            piece if piece < 128 => piece.into(),
            piece => usize::from(piece) << 8,
        };
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

    /// A host sends a command.
    fn command(&mut self) {
        let (cid, how) = (self.input.byte().into(), self.input.byte());
        let length_bytes = self.length_bytes();
        let mut sqe = Sqe::new(how & 3, cid, 1);
        let in_capsule = how & 4 != 0;
        let sgl = if in_capsule {
            let offset_bytes = 0;
            Sgl::InCapsule {
                offset_bytes,
                length_bytes,
            }
        } else {
            Sgl::Transport { length_bytes }
        };
        sqe.dptr = sgl.encode();
        let data_bytes = if in_capsule {
            length_bytes.min(IN_CAPSULE_MAX_BYTES)
        } else {
            0
        };
        let head = self.writer().capsule_cmd(&sqe, data_bytes);
        let mut pdu = if data_bytes > 0 {
            with_data(&head, data_bytes, 0x44)
        } else {
            head.as_bytes().to_vec()
        };
        if let (true, true, Some(byte)) = (how & 0x80 != 0, data_bytes > 0, pdu.last_mut()) {
            *byte ^= 1;
        }
        self.deliver(&pdu);
    }

    /// A host answers one of the R2Ts it has read.
    fn answer(&mut self) {
        let index = usize::from(self.input.byte());
        let count = self.r2ts.len().max(1);
        if let Some(r2t) = self.r2ts.remove(index % count) {
            let pdus = self.answer_to(&r2t);
            self.deliver(&pdus);
        }
    }

    fn answer_to(&self, r2t: &R2t) -> Vec<u8> {
        let mut pdus = Vec::new();
        let most = self.settings.maxh2cdata_bytes;
        for at in (0..r2t.length_bytes).step_by(most as usize) {
            let length_bytes = most.min(r2t.length_bytes - at);
            let data = H2cData {
                cid: r2t.cid,
                ttag: r2t.ttag,
                offset_bytes: r2t.offset_bytes + at,
                length_bytes,
                last: at + length_bytes == r2t.length_bytes,
            };
            pdus.extend(with_data(
                &self.writer().h2c_data(&data),
                length_bytes,
                0x55,
            ));
        }
        pdus
    }

    /// The user takes up the first command that has come: pulls, pushes or does neither.
    fn take_up(&mut self) {
        let (how, length_bytes) = (self.input.byte(), self.length_bytes());
        let free = self.serving.iter().position(Option::is_none);
        let Some(index) = free.filter(|_| !self.capsules.is_empty()) else {
            return;
        };
        let (sqe, mut data) = self.capsules.pop_front().expect("one");
        let bytes = length_bytes.into();
        for transfer in [
            DataTransfer::HostToController { bytes },
            DataTransfer::ControllerToHost { bytes },
        ] {
            if let Ok(memory) = host_memory(&sqe, transfer, &mut data) {
                assert!(memory.len_bytes() >= length_bytes);
            }
        }
        let tag = u16::try_from(index).expect("a tag");
        self.serving[index] = Some(Serving {
            cid: sqe.cid.get(),
            pulls: false,
            holds: false,
            responded: false,
        });
        if self.connected && !self.quiesced && how & 3 != 0 {
            self.push_or_pull(tag, how, length_bytes);
        }
        if how & 0x10 != 0 {
            self.respond(tag, how);
        }
    }

    fn push_or_pull(&mut self, tag: u16, how: u8, length_bytes: u32) {
        let fill = tag.to_le_bytes()[0] + 1;
        let serving = self.serving[usize::from(tag)].as_mut().expect("taken up");
        let cid = serving.cid;
        if how & 3 == 1 {
            let Some(sink) = self.memory.sink(&self.pool, tag, length_bytes) else {
                return;
            };
            serving.pulls = true;
            let pulled = self.queue.pull(Tag(tag), cid, length_bytes, sink);
            assert!(pulled.is_ok());
            return self.events();
        }
        let start =
            self.sent_bytes + Pending::of(&mut self.queue, &self.pool, 0).total_bytes as u64;
        let bytes = vec![fill; length_bytes.min(COPY_MAX_BYTES) as usize];
        let mut copy = |to: &mut dyn FnMut(&[u8])| bytes.chunks(999).for_each(to);
        let source = match how >> 2 & 3 {
            0 => Source::Zeroes(length_bytes),
            1 => Source::Copy(length_bytes.min(COPY_MAX_BYTES), &mut copy),
            _ => match self.memory.source(&self.pool, tag, length_bytes, fill) {
                Some(buffer) => Source::Buffer(Tag(tag), buffer, 0..length_bytes),
                None => return,
            },
        };
        let is_zeroes = matches!(source, Source::Zeroes(_));
        let buffer_given = matches!(source, Source::Buffer(..));
        match self.queue.push(cid, source) {
            Ok(Pushed::UntilReleased) => serving.holds = true,
            Ok(Pushed::Gone(_)) if buffer_given => self.memory.copied(tag),
            Ok(Pushed::Gone(_)) => {}
            Err(full) => {
                assert!(full.until_room && !self.ended);
                self.room_is_due = true;
                if let Source::Buffer(_, buffer, _) = full.what {
                    self.memory.back(&buffer, tag);
                }
            }
        }
        let end = self.sent_bytes + Pending::of(&mut self.queue, &self.pool, 0).total_bytes as u64;
        if is_zeroes && end > start {
            self.zeroes.push_back(start..end);
        }
        self.events();
    }

    /// The user completes a command.
    fn respond(&mut self, tag: u16, how: u8) {
        let Some(serving) = &mut self.serving[usize::from(tag)] else {
            return;
        };
        if serving.responded || serving.pulls {
            return;
        }
        serving.responded = true;
        let status =
            [Status::SUCCESS, Status::TRANSIENT_TRANSPORT_ERROR][usize::from(how >> 5 & 1)];
        let sqhd = if self.flow_control { 1 } else { 0xFFFF };
        let cqe = Cqe::new(serving.cid, sqhd, status, u32::from(how >> 6 & 1));
        self.queue.respond(&cqe);
        self.outstanding -= 1;
        self.responded += 1;
        self.let_go(tag);
    }

    fn let_go(&mut self, tag: u16) {
        let serving = &mut self.serving[usize::from(tag)];
        if serving.is_some_and(|s| s.responded && !s.pulls && !s.holds) {
            *serving = None;
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.queue.poll_event() {
            assert!(!self.quiesced, "{event:?} after Quiesced");
            match event {
                Event::Capsule(Capsule { sqe, data, .. }) => {
                    assert!(!self.ended && data.len_bytes() <= IN_CAPSULE_MAX_BYTES);
                    self.outstanding += 1;
                    assert!(self.outstanding <= if self.connected { ENTRIES } else { 1 });
                    self.capsules.push_back((sqe, data));
                }
                Event::Pulled(Pulled { tag, sink, .. }) => {
                    self.memory.back(&sink, tag.0);
                    let serving = self.serving[usize::from(tag.0)].as_mut();
                    let pulls = serving.map(|s| std::mem::take(&mut s.pulls));
                    assert_eq!(pulls, Some(true), "a pull is complete once");
                }
                Event::Returned(tag, buffer) => {
                    self.memory.back(&buffer, tag.0);
                    let serving = self.serving[usize::from(tag.0)].as_mut();
                    let serving = serving.expect("a command that holds a buffer");
                    assert!(serving.holds || (self.ended && serving.pulls));
                    (serving.holds, serving.pulls) = (false, false);
                    self.let_go(tag.0);
                }
                Event::Released | Event::Fenced(_) => panic!("they are of a wire"),
                Event::Room => assert!(std::mem::take(&mut self.room_is_due)),
                Event::Ended(_) => assert!(!std::mem::replace(&mut self.ended, true)),
                Event::Quiesced => {
                    assert!(self.ended && self.memory.is_empty());
                    self.quiesced = true;
                }
            }
        }
    }

    /// Sends up to `wanted_bytes`, and reads them as a host does.
    fn send(&mut self, wanted_bytes: usize) {
        let sent = send(&mut self.queue, &self.pool, wanted_bytes);
        self.sent_bytes += sent.len() as u64;
        while self
            .zeroes
            .front()
            .is_some_and(|zeroes| zeroes.end <= self.sent_bytes)
        {
            self.zeroes.pop_front();
        }
        self.events();
        let mut rest = &sent[..];
        // The reader of a host knows what that one asked for.
        while self.set_up && !rest.is_empty() {
            let due = usize::try_from(self.peer.data_due_bytes()).expect("usize");
            let (data, behind) = rest.split_at(due.min(rest.len()));
            let fill = self.data_byte.or(data.first().copied());
            assert!(
                data.iter().all(|byte| Some(*byte) == fill),
                "data of others"
            );
            self.data_byte = fill;
            self.peer.data_moved(data.len());
            let (used, event) = self.peer.read(behind).expect("what a host takes");
            rest = &behind[used..];
            match event {
                Some(Read::Pdu(Pdu::IcResp(response))) => {
                    assert_eq!(Agreed::new(&self.request, &response), self.agreed());
                    self.peer.agree(&self.agreed());
                }
                Some(Read::Pdu(Pdu::R2t(r2t))) => self.r2ts.push_back(r2t),
                Some(Read::Pdu(Pdu::C2hData(data))) => {
                    self.data_byte = None;
                    assert!(data.last && !(data.success && self.flow_control));
                    self.completed += u64::from(data.success);
                }
                Some(Read::Pdu(Pdu::CapsuleResp(_))) => self.completed += 1,
                Some(Read::Pdu(Pdu::TermReq { .. })) => assert!(self.ended),
                Some(Read::Pdu(pdu)) => panic!("a controller does not send {pdu:?}"),
                Some(Read::DataEnd { .. }) | None => {}
            }
        }
    }

    fn connect(&mut self) {
        // Connect is a command that has come.
        if self.connected || self.outstanding == 0 {
            return;
        }
        self.connected = true;
        self.queue.connected(Connected {
            entries: ENTRIES,
            in_capsule_max_bytes: IN_CAPSULE_MAX_BYTES,
            flow_control: self.flow_control,
        });
    }

    fn operation(&mut self) {
        match self.input.byte() % 32 {
            0..5 => self.command(),
            5..9 => self.answer(),
            9..15 => self.take_up(),
            15..19 => {
                let (tag, how) = (u16::from(self.input.byte()) % TAGS, self.input.byte());
                self.respond(tag, how);
            }
            19 | 20 => {
                let wanted = self.input.word();
                self.send(wanted.into());
            }
            21 | 22 => self.send(usize::MAX / 2),
            23 => self.connect(),
            24 | 25 => {
                let length = self.input.word();
                let bytes = self.input.piece(length.into());
                self.whole = false;
                self.deliver(bytes);
            }
            26 => {
                let bytes = vec![0x66; self.input.word().into()];
                self.whole = false;
                self.deliver(&bytes);
            }
            27 => {
                self.set_up |= self.whole;
                let request = self.request.encode();
                self.deliver(request.as_bytes());
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
        let zeroes = self
            .zeroes
            .iter()
            .map(|zeroes| zeroes.end - zeroes.start.max(self.sent_bytes));
        let zeroes_bytes = usize::try_from(zeroes.sum::<u64>()).expect("usize");
        let left = pending.total_bytes - pending.in_buffers_bytes;
        let staged = left.saturating_sub(zeroes_bytes);
        let bound = if self.connected {
            STAGED_BOUND_BYTES
        } else {
            512
        };
        assert!(staged <= bound, "{staged} bytes are copied to be sent");
    }

    /// Every pull and response of a peer that keeps to the rules is complete; and every buffer
    /// comes back.
    fn finish(mut self) {
        if self.whole && self.set_up && self.connected && !self.ended {
            self.send(usize::MAX / 2);
            while let Some(r2t) = self.r2ts.pop_front() {
                let pdus = self.answer_to(&r2t);
                deliver(
                    &mut self.queue,
                    &self.memory,
                    &pdus,
                    usize::MAX,
                    self.now_us,
                );
                self.events();
                self.send(usize::MAX / 2);
            }
            assert!(!self.ended && !self.room_is_due);
            for tag in 0..TAGS {
                let pulls = self.serving[usize::from(tag)].is_some_and(|s| s.pulls);
                assert!(!pulls, "a pull is not complete");
                self.respond(tag, 0);
            }
            self.send(usize::MAX / 2);
            assert!(
                self.serving.iter().all(Option::is_none),
                "a buffer is not back"
            );
            assert_eq!(self.completed, self.responded);
        }
        self.queue.closed();
        self.events();
        assert!(self.quiesced && self.memory.is_empty());
        let pool = self.pool.clone();
        drop(self);
        assert_eq!(pool.free_bytes(), POOL_BYTES);
    }
}

/// The controller's side of a queue, whatever the host sends and its user does: each buffer comes
/// back once and before [`Event::Quiesced`], nothing lands outside of it, no command comes after
/// the end, what is sent is what a host reads, memory stays bounded before Connect and after, and
/// each pull and response of a peer that keeps to the rules completes.
///
/// # Panics
/// When it does not.
pub fn tcp_controller_queue(data: &[u8]) {
    let mut input = Input::new(data);
    let (asked, answered, size) = (input.byte(), input.byte(), input.byte());
    let request = request(asked);
    let settings = IcSettings {
        digests: Digests::from_bits_truncate(answered),
        cpda: DataAlignment::from_wire(answered >> 2 & 0b111).expect("an alignment"),
        maxh2cdata_bytes: [4096, 8192, 65_536, 4 << 20][usize::from(size >> 1 & 0b11)],
        r2t_max_bytes: [R2T_MIN_BYTES, 4096, 65_536, u32::MAX][usize::from(size >> 3 & 0b11)],
    };
    let pool = Pool::new(POOL_BYTES, Pages::Ordinary).expect("memory");
    let mut queue = ControllerQueue::new(settings, 0);
    // Some in-capsule data lands there, other is copied.
    queue.give(pool.take(4096).expect("memory"));
    let mut world = World {
        queue,
        pool,
        memory: Memory::default(),
        input,
        now_us: 0,
        request,
        settings,
        flow_control: size & 1 != 0,
        connected: false,
        capsules: VecDeque::new(),
        serving: [None; TAGS as usize],
        outstanding: 0,
        room_is_due: false,
        ended: false,
        quiesced: false,
        zeroes: VecDeque::new(),
        sent_bytes: 0,
        peer: PduReader::host(request),
        r2ts: VecDeque::new(),
        completed: 0,
        responded: 0,
        data_byte: None,
        set_up: false,
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
