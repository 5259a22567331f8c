//! The queues of an association over one of the wires, their user, and a controller.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use capstan_memory::{Buffer, Pages, Pool};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_rdma::contract::PrivateData;
use capstan_transport::host::{
    HostEnd, HostEvent, HostTransport, HostWire, Offer, OpenQueue, SendError, Span,
};
use capstan_transport::rdma::host::RdmaHostSettings;

use super::over::{Command, Controller, Over, Welcome};
use super::pattern;
use super::rdma::RdmaController;
use super::tcp::TcpController;

pub(crate) const ADMIN: u16 = 0;
pub(crate) const IO: u16 = 1;
/// Entries of each queue.
pub(crate) const ENTRIES: u16 = 64;
const PATIENCE: Duration = Duration::from_secs(20);
const POOL_BYTES: usize = 8 << 20;
/// Turns in which what should not happen would.
const QUIET_TURNS: usize = 20;
/// How long connecting may take, in microseconds.
pub(crate) const OPEN_US: u64 = 5_000_000;

/// What has happened to the queues. The memory of a command comes back by its CID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Connected(u16),
    Rejected(u16, Vec<u8>),
    OpenFailed(u16, String),
    Response(u16, Cqe),
    /// One of no outstanding command.
    Stray(u16, u16),
    Back(u16, u16),
    Ended {
        qid: u16,
        is_violation: bool,
        why: String,
    },
}

/// The data of a command that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    None,
    InCapsule,
    ToController,
    FromController,
}

/// A command whose memory is not back.
struct Outstanding {
    slot: u16,
    buffer: Option<Buffer>,
    is_answered: bool,
}

pub(crate) struct World {
    pub(crate) over: Over,
    pub(crate) wire: HostWire,
    pub(crate) controller: Box<dyn Controller>,
    admin: Pool,
    data: Pool,
    /// By QID and CID.
    outstanding: BTreeMap<(u16, u16), Outstanding>,
    /// Memory that is back, by QID and CID.
    pub(crate) back: BTreeMap<(u16, u16), Buffer>,
    /// How many commands each queue has sent.
    sent: [u16; 2],
    pub(crate) seen: Vec<Seen>,
}

impl World {
    /// Without a connection.
    pub(crate) fn unconnected(over: Over) -> Self {
        let pool = || Pool::new(POOL_BYTES, Pages::Ordinary).expect("memory");
        let (admin, data) = (pool(), pool());
        let settings = RdmaHostSettings {
            admin_entries: ENTRIES,
            io_queues: 1,
            io_entries: ENTRIES,
            admin: admin.clone(),
            data: data.clone(),
        };
        let (controller, transport): (Box<dyn Controller>, _) = match over.rdma() {
            Some(rdma) => {
                let (controller, manager) = RdmaController::new(rdma);
                (Box::new(controller), HostTransport::Rdma(manager))
            }
            None => {
                let digests = match over {
                    Over::TcpWithDigests => Digests::all(),
                    _ => Digests::empty(),
                };
                let controller = Box::new(TcpController::new(over));
                (controller, HostTransport::Tcp(digests))
            }
        };
        Self {
            over,
            wire: HostWire::new(transport, settings).expect("a wire"),
            controller,
            admin,
            data,
            outstanding: BTreeMap::new(),
            back: BTreeMap::new(),
            sent: [0; 2],
            seen: Vec::new(),
        }
    }

    /// With the Admin queue and an I/O queue.
    pub(crate) fn new(over: Over) -> Self {
        let mut world = Self::unconnected(over);
        world.connect(ADMIN);
        world.connect(IO);
        world.seen.clear();
        world
    }

    pub(crate) fn connect(&mut self, qid: u16) {
        self.controller.expects(qid, Welcome::Accepts);
        let address = self.controller.address();
        self.open(qid, address, OPEN_US);
        self.see(&Seen::Connected(qid));
    }

    pub(crate) fn open(&mut self, qid: u16, destination: SocketAddr, timeout_us: u64) {
        let queue = OpenQueue {
            qid,
            entries: ENTRIES,
            flow_control: true,
            destination,
            source: None,
            timeout_us,
            private_data: PrivateData::EMPTY,
        };
        let now_us = self.controller.now_us();
        self.wire.open(queue, now_us).expect("it begins");
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let Self { over, seen, .. } = self;
            assert!(start.elapsed() < PATIENCE, "{over:?}: {what}: {seen:?}");
            self.turn();
        }
    }

    pub(crate) fn see(&mut self, what: &Seen) {
        self.until(&format!("{what:?}"), |world| world.seen.contains(what));
    }

    /// Lets both sides go on once.
    pub(crate) fn turn(&mut self) {
        self.controller.turn();
        self.turn_host();
    }

    pub(crate) fn quiet_turns(&mut self) {
        (0..QUIET_TURNS).for_each(|_| self.turn());
    }

    pub(crate) fn turn_host(&mut self) {
        let now_us = self.controller.now_us();
        let mut events = Vec::new();
        self.wire.poll_connections(now_us, &mut events);
        self.wire.poll(now_us, &mut events);
        for (qid, event) in events {
            self.on(qid, event);
        }
        self.wire.flush();
    }

    fn on(&mut self, qid: u16, event: HostEvent) {
        let ended = |is_violation, why| Seen::Ended {
            qid,
            is_violation,
            why,
        };
        let seen = match event {
            HostEvent::Connected(_) => Seen::Connected(qid),
            HostEvent::Rejected(_, why) => Seen::Rejected(qid, why.as_bytes().to_vec()),
            HostEvent::OpenFailed(why) => Seen::OpenFailed(qid, format!("{why:?}")),
            HostEvent::Response(response) => {
                let cid = response.cqe.cid.get();
                let command = self.outstanding.get_mut(&(qid, cid));
                let Some(command) = command.filter(|command| !command.is_answered) else {
                    return self.seen.push(Seen::Stray(qid, cid));
                };
                command.is_answered = true;
                self.seen.push(Seen::Response(qid, response.cqe));
                let answered = self.wire.answered(qid, command.slot, &response);
                return match answered {
                    Ok(true) => self.is_back(qid, cid),
                    Ok(false) => {}
                    Err(error) => self.seen.push(ended(false, error.to_string())),
                };
            }
            HostEvent::Revoked(slot) => {
                let mut all = self.outstanding.iter();
                let is_it = |(key, command): &(&(u16, u16), &Outstanding)| {
                    key.0 == qid && command.slot == slot
                };
                let (&(_, cid), command) = all.find(is_it).expect("it is outstanding");
                assert!(command.is_answered, "{cid:#x} is back before its response");
                return self.is_back(qid, cid);
            }
            HostEvent::Ended(end) => match *end {
                HostEnd::Violation(why) => ended(true, why),
                HostEnd::Disconnected(why) => ended(false, why),
                HostEnd::Failed(error) => ended(false, error.to_string()),
            },
        };
        self.seen.push(seen);
    }

    fn is_back(&mut self, qid: u16, cid: u16) {
        let command = self.outstanding.remove(&(qid, cid));
        let command = command.expect("its memory is back for the first time");
        if let Some(buffer) = command.buffer {
            self.back.insert((qid, cid), buffer);
        }
        self.seen.push(Seen::Back(qid, cid));
    }

    /// A buffer of the host with such bytes.
    fn buffer(&self, qid: u16, seed: u8, len_bytes: u32) -> Buffer {
        let pool = if qid == ADMIN {
            &self.admin
        } else {
            &self.data
        };
        let mut buffer = pool.take(len_bytes).expect("memory");
        let bytes = pattern(seed, buffer.len_bytes() as usize);
        buffer.copy_from(0, &bytes);
        buffer
    }

    /// Sends a command with memory of its own, which has `pattern` of its CID. Gives the CID.
    pub(crate) fn send(&mut self, qid: u16, given: Given, len_bytes: u32) -> u16 {
        self.send_part(qid, given, (0, len_bytes))
    }

    /// The same, where the data is this part (offset, bytes) of its memory.
    pub(crate) fn send_part(&mut self, qid: u16, given: Given, part: (u32, u32)) -> u16 {
        let sent = self.try_send(qid, given, part);
        sent.expect("the queue takes it")
    }

    pub(crate) fn try_send(
        &mut self,
        qid: u16,
        given: Given,
        (offset_bytes, len_bytes): (u32, u32),
    ) -> Result<u16, SendError> {
        let is_free = |slot: &u16| {
            let mut all = self.outstanding.iter();
            all.all(|(key, command)| key.0 != qid || command.slot != *slot)
        };
        let slot = (0..ENTRIES - 1).find(is_free).expect("a slot");
        // The high bits are free; the same CID comes again rarely.
        let sent = &mut self.sent[usize::from(qid.min(IO))];
        *sent += 1;
        let cid = (*sent << 6) | slot;
        let mut sqe = sqe(cid);
        // Some of its memory is behind the data.
        let buffer = self.buffer(qid, seed(cid), offset_bytes + len_bytes + 4096);
        let span = Span {
            buffer: &buffer,
            offset_bytes,
            len_bytes,
        };
        let offer = match given {
            Given::None => Offer::None,
            Given::InCapsule => Offer::InCapsule(span),
            Given::ToController => Offer::ToController(span),
            Given::FromController => Offer::FromController(span),
        };
        self.wire.send(qid, slot, &mut sqe, offer)?;
        let command = Outstanding {
            slot,
            buffer: Some(buffer),
            is_answered: false,
        };
        self.outstanding.insert((qid, cid), command);
        Ok(cid)
    }

    /// Sends a command, and waits until it has come.
    pub(crate) fn command(&mut self, qid: u16, given: Given, len_bytes: u32) -> Command {
        let cid = self.send(qid, given, len_bytes);
        let command = self.commands(1).remove(0);
        assert_eq!((command.qid, command.sqe.cid.get()), (qid, cid));
        command
    }

    /// Waits for so many commands to come.
    pub(crate) fn commands(&mut self, count: usize) -> Vec<Command> {
        let mut commands = Vec::new();
        self.until("commands", |world| {
            commands.extend(world.controller.take_commands());
            commands.len() >= count
        });
        commands
    }

    /// Sends the response of a command.
    pub(crate) fn respond(&mut self, command: &Command) {
        self.respond_with(command, success(command), true);
    }

    pub(crate) fn respond_with(&mut self, command: &Command, cqe: Cqe, invalidates: bool) {
        self.controller.respond(command, &cqe, invalidates);
    }

    /// Sends the response of a command, and waits for its memory, which this gives.
    pub(crate) fn finish(&mut self, command: &Command) -> Vec<u8> {
        self.respond(command);
        self.take_back(command)
    }

    /// Waits for the memory of a command, and gives what is there.
    pub(crate) fn take_back(&mut self, command: &Command) -> Vec<u8> {
        let key = (command.qid, command.sqe.cid.get());
        self.see(&Seen::Back(key.0, key.1));
        let buffer = self.back.remove(&key);
        buffer.map_or_else(Vec::new, |buffer| bytes_of(&buffer))
    }

    /// What the memory of a command has that is not back.
    pub(crate) fn peek(&self, command: &Command) -> Vec<u8> {
        let key = (command.qid, command.sqe.cid.get());
        let buffer = self.outstanding.get(&key).and_then(|c| c.buffer.as_ref());
        buffer
            .or_else(|| self.back.get(&key))
            .map_or_else(Vec::new, bytes_of)
    }

    /// Turns until the first end, of this queue.
    pub(crate) fn see_end(&mut self, qid: u16, what: &str) -> (bool, String) {
        let is_end = |seen: &Seen| matches!(seen, Seen::Ended { .. });
        self.until(what, |world| world.seen.iter().any(is_end));
        match self.seen.iter().find(|seen| is_end(seen)) {
            Some(Seen::Ended {
                qid: ended,
                is_violation,
                why,
            }) if *ended == qid => (*is_violation, why.clone()),
            other => panic!("{:?}: {what}: {other:?}", self.over),
        }
    }

    /// Closes all queues: nothing lands any more and nothing follows, whatever the controller does
    /// with these commands, and all memory is back.
    pub(crate) fn close(&mut self, orderly: bool, commands: &[Command], what: &str) {
        let over = self.over;
        self.wire.close(orderly);
        assert_eq!(self.wire.connections(), 0);
        let buffers = self.outstanding.values_mut();
        for buffer in buffers.filter_map(|command| command.buffer.as_mut()) {
            let scribble = pattern(0xEE, buffer.len_bytes() as usize);
            buffer.copy_from(0, &scribble);
        }
        self.seen.clear();
        self.controller.reads(true);
        for command in commands {
            if self.takes_data(command) {
                self.controller.push(command, 0, &[0xAB; 512], false);
            }
            self.controller.respond(command, &success(command), false);
        }
        self.quiet_turns();
        assert_eq!(self.seen, [], "{over:?}: {what}: after the close");
        for (key, command) in std::mem::take(&mut self.outstanding) {
            let Some(buffer) = command.buffer else {
                continue;
            };
            let bytes = bytes_of(&buffer);
            let is_so = bytes == pattern(0xEE, bytes.len());
            assert!(is_so, "{over:?}: {what}: something has landed for {key:?}");
        }
        self.back.clear();
        for pool in [&self.admin, &self.data] {
            assert_eq!(pool.free_bytes(), POOL_BYTES, "{over:?}: {what}");
        }
    }

    /// Whether the memory of a command has a key, or there is such a message over NVMe/TCP.
    fn takes_data(&self, command: &Command) -> bool {
        match command.sqe.sgl() {
            Ok(Sgl::Keyed { length_bytes, .. }) => length_bytes > 0,
            Ok(Sgl::Transport { length_bytes }) => self.over.is_tcp() && length_bytes > 0,
            _ => false,
        }
    }

    /// Whether each command's memory is opened to the controller by a key of its own.
    pub(crate) fn has_windows(&self) -> bool {
        let attributes = self.wire.device_attributes();
        attributes.is_some_and(|attributes| attributes.memory_windows)
    }

    /// Whether the controller may close that key.
    pub(crate) fn invalidates(&self) -> bool {
        let attributes = self.wire.device_attributes();
        self.has_windows() && attributes.is_some_and(|attributes| attributes.send_with_invalidate)
    }
}

/// A command whose fields are all different. The wire fills in its data pointer.
pub(crate) fn sqe(cid: u16) -> Sqe {
    let mut sqe = Sqe::new(2, cid, u32::from(cid) * 3);
    sqe.cdw10 = (u32::from(cid) * 5).into();
    sqe.cdw15 = 0x0123_4567.into();
    sqe
}

/// What the memory of a command has at first.
pub(crate) fn seed(cid: u16) -> u8 {
    cid.to_le_bytes()[0] ^ cid.to_le_bytes()[1]
}

pub(crate) fn success(command: &Command) -> Cqe {
    Cqe::new(command.sqe.cid.get(), 0, Status::SUCCESS, 0)
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len_bytes() as usize];
    buffer.copy_to(0, &mut bytes);
    bytes
}
