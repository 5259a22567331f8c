//! The engine over NVMe/TCP, against controllers' queues over real sockets.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::RawFd;

use capstan_memory::{Buffer, Pages, Pool};
use capstan_nvme_proto::command::{FabricsCommand, IoCommand, LbaRange, Write};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::opcode::DataDirection;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_reactor::{Armed, Clock, Flow, SpinBudget, Turn};
use capstan_transport::host::HostTransport;
use capstan_transport::tcp::controller::{Connected, ControllerQueue, IcSettings};
use capstan_transport::tcp::link::Link;
use capstan_transport::{Capsule, CapsuleData, Event, Pulled, Source, Tag};

use super::config;
use crate::driver::engine::AssociationEngine;
use crate::driver::io::{Completion, Io, Op, Source as Submitter};
use crate::error::ConnectError;
use crate::host::{CommandData, Event as HostEvent};
use crate::options::Transport;
use crate::scripted::{Answer, IN_CAPSULE_BYTES, LBA_BYTES, NSZE_LBAS, ScriptedController};
use crate::wire::Wire;

mod faults;

struct Queue {
    link: Link,
    queue: ControllerQueue,
    qid: u16,
    head: u16,
    entries: u16,
    flow_control: bool,
    /// What is pulled, by CID.
    pulled: Vec<Sqe>,
}

/// A target of one thread, with one namespace of RAM.
pub(crate) struct Peer {
    listener: TcpListener,
    settings: IcSettings,
    pub(crate) controller: ScriptedController,
    disk: Vec<u8>,
    queues: Vec<Queue>,
    pool: Pool,
    scratch: Vec<u8>,
    /// I/O commands, with whether their data came in the capsule.
    commands: Vec<(IoCommand, bool)>,
    /// I/O is not answered.
    silent: bool,
    /// QID and CID of those.
    unanswered: Vec<(u16, u16)>,
    /// Why queues have ended.
    ends: Vec<String>,
}

impl Peer {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self {
            listener,
            settings: IcSettings::default(),
            controller: ScriptedController::new(),
            disk: vec![0; usize::try_from(NSZE_LBAS).unwrap() * LBA_BYTES],
            queues: Vec::new(),
            pool: Pool::new(64 << 20, Pages::Ordinary).unwrap(),
            scratch: vec![0; 64 << 10],
            commands: Vec::new(),
            silent: false,
            unanswered: Vec::new(),
            ends: Vec::new(),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    fn in_capsule_buffer(&self) -> Buffer {
        let len = u32::try_from(IN_CAPSULE_BYTES).unwrap();
        self.pool.take(len).unwrap()
    }

    pub(crate) fn turn(&mut self, now_us: u64) -> bool {
        let mut busy = false;
        while let Ok((stream, _)) = self.listener.accept() {
            let mut queue = ControllerQueue::new(self.settings, now_us);
            queue.give(self.in_capsule_buffer());
            self.queues.push(Queue {
                link: Link::new(stream).unwrap(),
                queue,
                qid: 0,
                head: 0,
                entries: 2,
                flow_control: true,
                pulled: Vec::new(),
            });
            busy = true;
        }
        let mut at = 0;
        while at < self.queues.len() {
            let Queue { link, queue, .. } = &mut self.queues[at];
            busy |= link.receive(queue, &mut self.scratch, now_us);
            let mut is_over = false;
            while let Some(event) = self.queues[at].queue.poll_event() {
                busy = true;
                is_over |= matches!(event, Event::Ended(_));
                self.event(at, event);
            }
            let Queue { link, queue, .. } = &mut self.queues[at];
            busy |= link.send(queue);
            if is_over {
                self.queues.swap_remove(at);
            } else {
                at += 1;
            }
        }
        busy
    }

    fn event(&mut self, at: usize, event: Event) {
        match event {
            Event::Capsule(Capsule { sqe, data, intact }) => {
                assert!(intact);
                self.capsule(at, &sqe, data);
            }
            Event::Pulled(Pulled { tag, sink, intact }) => {
                assert!(intact);
                let pulled = &mut self.queues[at].pulled;
                let place = pulled.iter().position(|sqe| sqe.cid.get() == tag.0);
                let sqe = pulled.swap_remove(place.unwrap());
                self.execute(at, &sqe, &bytes_of(&sink));
            }
            Event::Ended(why) => self.ends.push(why.to_string()),
            Event::Returned(..)
            | Event::Released
            | Event::Fenced(_)
            | Event::Room
            | Event::Quiesced => {}
        }
    }

    fn capsule(&mut self, at: usize, sqe: &Sqe, data: CapsuleData) {
        let queue = &mut self.queues[at];
        queue.head = (queue.head + 1) % queue.entries;
        let in_capsule = match data {
            CapsuleData::None => Vec::new(),
            CapsuleData::Copied(bytes) => bytes.to_vec(),
            CapsuleData::Landed(landed) => {
                let mut bytes = bytes_of(&landed.buffer);
                bytes.truncate(landed.len_bytes as usize);
                queue.queue.give(landed.buffer);
                bytes
            }
            CapsuleData::InPlace(_) => unreachable!("a wire of sockets has none"),
        };
        if let Ok(FabricsCommand::Connect(connect)) = FabricsCommand::parse(sqe) {
            queue.qid = connect.qid;
            queue.entries = u16::try_from(connect.sqsize).unwrap();
            queue.head = 1 % queue.entries;
            queue.flow_control = !connect.cattr.disable_sq_flow_control();
            queue.queue.connected(Connected {
                entries: queue.entries,
                in_capsule_max_bytes: u32::try_from(IN_CAPSULE_BYTES).unwrap(),
                flow_control: queue.flow_control,
            });
            for _ in 1..queue.entries {
                let buffer = self.in_capsule_buffer();
                self.queues[at].queue.give(buffer);
            }
        }
        let queue = &mut self.queues[at];
        let is_io = queue.qid != 0 && !sqe.is_fabrics();
        if is_io {
            let command = IoCommand::parse(sqe).unwrap();
            self.commands.push((command, !in_capsule.is_empty()));
        }
        let len = sqe.sgl().unwrap().length_bytes();
        let is_out = sqe.data_direction() == DataDirection::HostToController;
        if is_out && len > 0 && in_capsule.is_empty() {
            let cid = sqe.cid.get();
            let sink = self.pool.take(len).unwrap();
            let queue = &mut self.queues[at];
            queue.pulled.push(*sqe);
            queue.queue.pull(Tag(cid), cid, len, sink).unwrap();
        } else {
            self.execute(at, sqe, &in_capsule);
        }
    }

    fn execute(&mut self, at: usize, sqe: &Sqe, data: &[u8]) {
        let qid = self.queues[at].qid;
        if qid == 0 || sqe.is_fabrics() {
            if let Some(answer) = self.controller.answer(qid, sqe, data) {
                self.respond(at, sqe, &answer);
            }
            return;
        }
        if self.silent {
            self.unanswered.push((qid, sqe.cid.get()));
            return;
        }
        let place = |slba: u64, nlb: u32| {
            let start = usize::try_from(slba).unwrap() * LBA_BYTES;
            start..start + nlb as usize * LBA_BYTES
        };
        let answer = match IoCommand::parse(sqe).unwrap() {
            IoCommand::Read(c) => self.disk[place(c.range.slba, c.range.nlb)].to_vec(),
            IoCommand::Write(c) => {
                self.disk[place(c.range.slba, c.range.nlb)].copy_from_slice(data);
                Vec::new()
            }
            _ => Vec::new(),
        };
        self.respond(at, sqe, &Answer::success(answer));
    }

    fn respond(&mut self, at: usize, sqe: &Sqe, answer: &Answer) {
        let Queue {
            queue,
            head,
            flow_control,
            ..
        } = &mut self.queues[at];
        let (tag, cid) = (Tag(sqe.cid.get()), sqe.cid.get());
        if !answer.data.is_empty() {
            let len = u32::try_from(answer.data.len()).unwrap();
            let mut buffer = self.pool.take(len).unwrap();
            buffer.copy_from(0, &answer.data);
            let pushed = queue.push(cid, Source::Buffer(tag, buffer, 0..len));
            assert!(pushed.is_ok());
        }
        let head = match flow_control {
            true => *head,
            false => Cqe::SQHD_FLOW_CONTROL_DISABLED,
        };
        let cqe = Cqe::new(cid, head, answer.status, 0).with_result(answer.result);
        queue.respond(&cqe);
    }
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len_bytes() as usize];
    buffer.copy_to(0, &mut bytes);
    bytes
}

/// Both ends on one thread, in the time of the clock.
struct World {
    engine: AssociationEngine,
    peer: Peer,
    events: Vec<String>,
}

impl World {
    fn new(digests: Digests) -> Self {
        let peer = Peer::new();
        Self {
            engine: engine(peer.address(), digests),
            peer,
            events: Vec::new(),
        }
    }

    fn live(digests: Digests) -> Self {
        let mut world = Self::new(digests);
        world.until(|world| world.engine.host().is_live());
        world
    }

    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let end_us = Clock.now_us() + 30_000_000;
        while !done(self) {
            let now_us = Clock.now_us();
            assert!(now_us < end_us, "{:?}", self.events);
            self.engine.turn(now_us);
            self.peer.turn(now_us);
            while let Some(event) = self.engine.poll_event() {
                self.events.push(match event {
                    HostEvent::Lost { cause } => format!("lost: {cause}"),
                    HostEvent::AttemptFailed { .. } => continue,
                    HostEvent::Failed { cause } => format!("failed: {cause}"),
                    other => format!("{other:?}"),
                });
            }
        }
    }

    fn submit(&mut self, op: Op, buffer: Option<Buffer>) {
        let io = Io { nsid: 1, op };
        self.engine
            .submit(Submitter::default(), 1, io, buffer)
            .unwrap();
    }

    fn next(&mut self) -> Completion {
        let mut found = None;
        self.until(|world| {
            found = world.engine.poll_completion();
            found.is_some()
        });
        found.unwrap()
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let len = u32::try_from(bytes.len()).unwrap();
        let mut buffer = self.engine.data_pool().take(len).unwrap();
        buffer.copy_from(0, bytes);
        buffer
    }
}

fn engine(destination: SocketAddr, digests: Digests) -> AssociationEngine {
    let mut config = config();
    config.destination = destination;
    config.host.transport = Transport::Tcp;
    config.host.disable_sq_flow_control = true;
    AssociationEngine::new(config, HostTransport::Tcp(digests), Clock.now_us()).unwrap()
}

/// Bytes that differ from block to block and within them.
fn pattern(blocks: usize) -> Vec<u8> {
    (0..blocks * LBA_BYTES)
        .map(|at| (at * 31 + at / LBA_BYTES).to_le_bytes()[0])
        .collect()
}

#[test]
fn what_is_written_is_read_whatever_its_length_and_the_digests() {
    for digests in [Digests::empty(), Digests::HEADER, Digests::all()] {
        let mut world = World::live(digests);
        // The longest is cut into commands, which are parts of one buffer.
        for blocks in [1, 2, 3, 17, 100] {
            let nlb = u32::try_from(blocks).unwrap();
            let bytes = pattern(blocks);
            let write = Op::Write {
                slba: 7,
                nlb,
                fua: false,
            };
            let buffer = world.buffer(&bytes);
            world.submit(write, Some(buffer));
            world.next().result.unwrap();
            assert!(world.peer.disk[7 * LBA_BYTES..][..bytes.len()] == bytes);
            let buffer = world.buffer(&vec![0xEE; bytes.len()]);
            world.submit(Op::Read { slba: 7, nlb }, Some(buffer));
            let completion = world.next();
            completion.result.unwrap();
            assert!(bytes_of(&completion.buffer.unwrap()) == bytes);
        }
        let in_capsule: Vec<_> = world
            .peer
            .commands
            .iter()
            .map(|(_, in_it)| *in_it)
            .collect();
        assert_eq!(in_capsule[..6], [true, false, true, false, false, false]);
        assert!(in_capsule.len() > 10, "nothing was cut");
        world.engine.shutdown();
        world.until(|world| world.events.iter().any(|event| event == "Closed"));
    }
}

/// Where SQ flow control is disabled, and where the target refuses that: a queue that is kept full
/// goes on, and all that is read arrives.
#[test]
fn reads_are_complete_with_and_without_sq_flow_control() {
    for refused_on in [None, Some(0), Some(2)] {
        let mut world = World::new(Digests::empty());
        world.peer.controller.refuses_no_flow_control_on = refused_on;
        world.until(|world| world.engine.host().is_live());
        let is_on = refused_on.is_some();
        assert_eq!(world.peer.controller.flow_control, [is_on; 3]);
        for (lba, block) in world.peer.disk.chunks_exact_mut(LBA_BYTES).enumerate() {
            block.fill(lba.to_le_bytes()[0]);
        }
        for round in 0..200 {
            let buffer = world.buffer(&[0xEE; LBA_BYTES]);
            let slba = round % 64;
            world.submit(Op::Read { slba, nlb: 1 }, Some(buffer));
            if world.engine.in_progress() == 30 {
                world.next().result.unwrap();
            }
        }
        while world.engine.in_progress() > 0 {
            let completion = world.next();
            completion.result.unwrap();
            let bytes = bytes_of(&completion.buffer.unwrap());
            assert!(bytes.iter().all(|byte| *byte == bytes[0] && *byte < 64));
        }
        assert_eq!(world.engine.host().counters().bad_sqhd, 0);
        assert!(world.events.iter().all(|event| !event.starts_with("lost")));
    }
}

#[test]
fn data_that_is_asked_for_in_pieces_and_deep_queues_arrive_whole() {
    const PLACES: u64 = 20;
    let mut world = World::new(Digests::DATA);
    world.peer.settings.r2t_max_bytes = 20_000;
    world.peer.settings.maxh2cdata_bytes = 4096;
    world.until(|world| world.engine.host().is_live());
    let bytes = pattern(31);
    for round in 0..2 * PLACES {
        let buffer = world.buffer(&bytes);
        let write = Op::Write {
            slba: round % PLACES * 31,
            nlb: 31,
            fua: false,
        };
        if world.engine.in_progress() == 20 {
            world.next().result.unwrap();
        }
        world.submit(write, Some(buffer));
    }
    while world.engine.in_progress() > 0 {
        world.next().result.unwrap();
    }
    for place in world.peer.disk.chunks_exact(bytes.len()).take(20) {
        assert!(place == bytes, "not what was written");
    }
}

#[test]
fn data_of_a_command_that_is_sent_as_it_is_goes_in_the_capsule_where_it_fits() {
    let mut world = World::live(Digests::empty());
    for (blocks, in_capsule) in [(2_u32, true), (3, false)] {
        let range = LbaRange {
            slba: 9,
            nlb: blocks,
        };
        let sqe = IoCommand::Write(Write::new(1, range)).encode(0, Sgl::EMPTY);
        let bytes = pattern(blocks as usize);
        let data = CommandData::ToController(bytes.clone().into());
        let now_us = Clock.now_us();
        world.engine.submit_passthru(1, sqe, &data, now_us).unwrap();
        world.until(|world| {
            world
                .events
                .iter()
                .any(|event| event.starts_with("CommandDone"))
        });
        world.events.clear();
        assert_eq!(world.peer.commands.last().unwrap().1, in_capsule);
        assert!(world.peer.disk[9 * LBA_BYTES..][..bytes.len()] == bytes);
    }
}

#[test]
fn a_lost_connection_is_made_again_and_its_reads_are_sent_again() {
    let mut world = World::live(Digests::empty());
    world.peer.silent = true;
    let buffer = world.buffer(&[0xEE; LBA_BYTES]);
    world.submit(Op::Read { slba: 3, nlb: 1 }, Some(buffer));
    world.until(|world| !world.peer.commands.is_empty());
    world.peer.queues.clear();
    world.peer.silent = false;
    world.peer.disk[3 * LBA_BYTES..][..LBA_BYTES].fill(0x5A);
    let completion = world.next();
    completion.result.unwrap();
    assert_eq!(bytes_of(&completion.buffer.unwrap()), [0x5A; LBA_BYTES]);
    let lost = world.events.iter().find(|event| event.starts_with("lost"));
    assert!(lost.unwrap().contains("queue"), "{lost:?}");
}

#[test]
fn a_buffer_that_comes_back_is_out_of_reach_of_its_old_queue() {
    let mut world = World::live(Digests::empty());
    world.peer.silent = true;
    let free_bytes = world.engine.data_pool().free_bytes();
    let buffer = world.buffer(&[0xEE; LBA_BYTES]);
    world.submit(Op::Read { slba: 3, nlb: 1 }, Some(buffer));
    world.until(|world| !world.peer.commands.is_empty());
    let pool = world.engine.data_pool().clone();
    drop(world.engine);
    // Neither the queue nor the request has the lease any more.
    assert_eq!(pool.free_bytes(), free_bytes);
}

#[test]
fn a_port_at_which_nothing_listens_is_told_with_its_address() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut engine = engine(address, Digests::empty());
    let end_us = Clock.now_us() + 10_000_000;
    let cause = loop {
        engine.turn(Clock.now_us());
        match engine.poll_event() {
            Some(HostEvent::Failed { cause } | HostEvent::Lost { cause }) => break cause,
            _ => assert!(Clock.now_us() < end_us),
        }
    };
    let text = cause.to_string();
    assert!(matches!(*cause, ConnectError::Transport { qid: 0, .. }));
    assert!(text.contains(&address.to_string()), "{text}");
}

/// An engine and its peer that sleep between turns: what does not wake either is lost.
struct Sleepers<'a>(&'a mut World, usize);

impl Turn for Sleepers<'_> {
    fn turn(&mut self, now_us: u64) -> Flow {
        let busy = self.0.engine.turn(now_us) | self.0.peer.turn(now_us);
        while self.0.engine.poll_event().is_some() {}
        while let Some(completion) = self.0.engine.poll_completion() {
            completion.result.unwrap();
            self.1 -= 1;
        }
        match (self.1, busy) {
            (0, _) => Flow::Stop,
            (_, true) => Flow::Busy(1),
            (_, false) => Flow::Idle,
        }
    }

    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
        use std::os::fd::AsRawFd as _;
        let sockets = self.0.peer.queues.iter();
        fds.extend(sockets.filter_map(|queue| Some(queue.link.socket()?.as_raw_fd())));
        let blocked = self
            .0
            .peer
            .queues
            .iter()
            .any(|queue| queue.link.is_blocked());
        let armed = self.0.engine.arm(fds);
        if blocked { Armed::Ready } else { armed }
    }

    /// A wake-up that is missed must not be made up for by a deadline.
    fn next_deadline_us(&self) -> Option<u64> {
        None
    }
}

#[test]
fn a_host_that_sleeps_is_woken_by_room_and_by_responses() {
    let mut world = World::live(Digests::empty());
    // More than the buffers of a socket hold.
    let bytes = pattern(900);
    for token in 0..4 {
        let op = Op::Write {
            slba: token,
            nlb: 900,
            fua: false,
        };
        let buffer = world.buffer(&bytes);
        world.submit(op, Some(buffer));
    }
    let spin = SpinBudget { spin_us: 0 };
    capstan_reactor::run(&mut Sleepers(&mut world, 4), spin).unwrap();
    assert!(world.peer.disk[3 * LBA_BYTES..][..bytes.len()] == bytes);
}

#[test]
fn the_digests_in_use_are_told_and_not_those_that_were_asked_for() {
    for (asked, had) in [
        (Digests::all(), Digests::all()),
        (Digests::all(), Digests::DATA),
        (Digests::HEADER, Digests::DATA),
        (Digests::empty(), Digests::all()),
    ] {
        let mut world = World::new(asked);
        world.peer.settings.digests = had;
        assert_eq!(world.engine.went_by(), None);
        world.until(|world| world.engine.host().is_live());
        let used = asked & had;
        let wire = Wire::Tcp {
            header_digest: used.contains(Digests::HEADER),
            data_digest: used.contains(Digests::DATA),
        };
        assert_eq!(world.engine.went_by(), Some(&wire));
    }
}

/// What speaks another transport may close what begins with an ICReq without a word.
#[test]
fn a_port_that_closes_the_connection_without_a_word_may_speak_rdma() {
    let mut world = World::new(Digests::empty());
    let (listener, engine) = (&world.peer.listener, &mut world.engine);
    listener.set_nonblocking(false).unwrap();
    engine.turn(Clock.now_us());
    drop(listener.accept().unwrap());
    listener.set_nonblocking(true).unwrap();
    world.until(|world| !world.events.is_empty());
    let told = &world.events[0];
    let begin = "failed: queue 0: no ICResp came: ";
    assert!(told.starts_with(begin), "{told}");
    let hint = "; this listener may speak NVMe/RDMA only: try Transport::Rdma, ";
    assert_eq!(told.matches(hint).count(), 1, "{told}");
    assert_eq!(told.matches("connection").count(), 1, "{told}");
}
