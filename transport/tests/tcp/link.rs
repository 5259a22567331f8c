//! A host and a controller over a real socket: how many system calls, and how much is copied.

use std::net::{TcpListener, TcpStream};

use capstan_memory::Pool;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_transport::End;
use capstan_transport::tcp::controller::{Connected, ControllerQueue, IcSettings};
use capstan_transport::tcp::host::{self, Arrived, HostQueue, Payload};
use capstan_transport::tcp::link::{Counts, Link};
use capstan_transport::{Capsule, EndReason, Event, Pulled, Source, Tag};

use super::{controller_events, host_events, request};

const DEPTH: u16 = 32;
const ROUNDS: u16 = 50;

#[derive(Clone, Copy, PartialEq)]
enum Io {
    Read,
    Write,
}

struct Ends {
    pool: Pool,
    host: HostQueue,
    host_link: Link,
    controller: ControllerQueue,
    controller_link: Link,
    scratch: Vec<u8>,
}

impl Ends {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("an address");
        let host = TcpStream::connect(to).expect("a connection");
        let (controller, _) = listener.accept().expect("a connection");
        let pool = Pool::new(64 << 20, capstan_memory::Pages::Ordinary).expect("memory");
        let mut ends = Self {
            host: HostQueue::new(request(Digests::empty(), 0, 1), DEPTH, false, 0),
            host_link: Link::new(host).expect("options"),
            controller: ControllerQueue::new(IcSettings::default(), 0),
            controller_link: Link::new(controller).expect("options"),
            pool,
            scratch: vec![0; 64 * 1024],
        };
        while !matches!(
            host_events(&mut ends.host)[..],
            [host::HostQueueEvent::Ready(_)]
        ) {
            ends.turn();
        }
        ends.controller.connected(Connected {
            entries: DEPTH,
            in_capsule_max_bytes: 8192,
            flow_control: false,
        });
        ends
    }

    fn turn(&mut self) {
        self.host_link.send(&mut self.host);
        self.controller_turn();
        self.host_link.receive(&mut self.host, &mut self.scratch, 0);
    }

    fn controller_turn(&mut self) {
        self.controller_link
            .receive(&mut self.controller, &mut self.scratch, 0);
        for event in controller_events(&mut self.controller) {
            match event {
                Event::Capsule(Capsule { sqe, .. }) => {
                    let (tag, cid) = (Tag(sqe.cid.get()), sqe.cid.get());
                    let len = sqe.sgl().expect("an SGL").length_bytes();
                    let buffer = self.pool.take(len).expect("memory");
                    if sqe.opcode == 1 {
                        self.controller.pull(tag, cid, len, buffer).expect("open");
                        continue;
                    }
                    let pushed = self
                        .controller
                        .push(cid, Source::Buffer(tag, buffer, 0..len));
                    assert!(pushed.is_ok());
                    let cqe = Cqe::new(cid, 0xFFFF, Status::SUCCESS, 0);
                    self.controller.respond(&cqe);
                }
                Event::Pulled(Pulled {
                    tag,
                    intact: true,
                    sink,
                }) => {
                    let mut ends = [0; 2];
                    sink.copy_to(0, &mut ends[..1]);
                    sink.copy_to(sink.len_bytes() as usize - 1, &mut ends[1..]);
                    assert_eq!(ends, [7, 9]);
                    let cqe = Cqe::new(tag.0, 0xFFFF, Status::SUCCESS, 0);
                    self.controller.respond(&cqe);
                }
                Event::Returned(..) | Event::Room => {}
                event => panic!("{event:?}"),
            }
        }
        self.controller_link.send(&mut self.controller);
    }

    /// So many rounds of `DEPTH` commands. Gives what both links did for them.
    fn run(&mut self, io: Io, len: u32) -> (Counts, Counts) {
        let before = (self.host_link.counts(), self.controller_link.counts());
        for _ in 0..ROUNDS {
            for cid in 0..DEPTH {
                let mut buffer = self.pool.take(len).expect("memory");
                buffer.copy_from(0, &[7]);
                buffer.copy_from(len as usize - 1, &[9]);
                let (opcode, payload) = match io {
                    Io::Read => (2, Payload::FromController(buffer, len)),
                    Io::Write => (1, Payload::ToController(buffer, len)),
                };
                self.host
                    .send(Sqe::new(opcode, cid, 1), payload)
                    .expect("room");
            }
            let mut left = DEPTH;
            while left > 0 {
                self.turn();
                for event in host_events(&mut self.host) {
                    match event {
                        host::HostQueueEvent::Response {
                            cqe,
                            arrived: Arrived::Whole,
                            ..
                        } => {
                            assert_eq!(cqe.status(), Status::SUCCESS);
                            left -= 1;
                        }
                        event => panic!("{event:?}"),
                    }
                }
            }
        }
        let since = |after: Counts, before: Counts| Counts {
            receives: after.receives - before.receives,
            sends: after.sends - before.sends,
            direct_bytes: after.direct_bytes - before.direct_bytes,
            copied_bytes: after.copied_bytes - before.copied_bytes,
        };
        (
            since(self.host_link.counts(), before.0),
            since(self.controller_link.counts(), before.1),
        )
    }
}

#[test]
fn small_commands_share_system_calls() {
    let mut ends = Ends::new();
    let commands = u64::from(DEPTH) * u64::from(ROUNDS);
    let (_, controller) = ends.run(Io::Read, 4096);
    // 32 commands come in one call, and 32 answers of 4 KiB leave in one or two.
    let calls = controller.receives + controller.sends;
    assert!(
        calls * 4 <= commands,
        "{calls} calls for {commands} commands"
    );
    assert_eq!(controller.copied_bytes, commands * 72);
}

#[test]
fn large_data_is_received_where_it_belongs() {
    let mut ends = Ends::new();
    let commands = u64::from(DEPTH) * u64::from(ROUNDS);
    let len = 128 * 1024;
    for io in [Io::Read, Io::Write] {
        let (host, controller) = ends.run(io, len);
        let takes = if io == Io::Read { host } else { controller };
        let data_bytes = commands * u64::from(len);
        // At most the head of each PDU, and of the data behind it what came with it.
        assert!(takes.copied_bytes <= commands * 600, "{takes:?}");
        assert!(
            takes.direct_bytes >= data_bytes - commands * 600,
            "{takes:?}"
        );
    }
}

#[test]
fn a_connection_that_ends_gives_all_buffers_back() {
    let mut ends = Ends::new();
    let memory = ends.pool.take(65_536).expect("memory");
    let payload = Payload::ToController(memory, 65_536);
    ends.host.send(Sqe::new(1, 0, 1), payload).expect("room");
    ends.host_link.send(&mut ends.host);
    while ends.controller_link.counts().copied_bytes < 128 + 72 {
        ends.controller_turn();
    }
    // A pull is under way, and the host ends.
    ends.host.end(End::Now, 0);
    ends.host_link.send(&mut ends.host);
    let events = host_events(&mut ends.host);
    let [
        host::HostQueueEvent::Ended(_),
        host::HostQueueEvent::Returned(0, _),
        host::HostQueueEvent::Quiesced,
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert!(ends.host_link.socket().is_none());
    while !ends
        .controller_link
        .receive(&mut ends.controller, &mut ends.scratch, 0)
    {}
    ends.controller_link.send(&mut ends.controller);
    let events = controller_events(&mut ends.controller);
    let [
        Event::Ended(reason),
        Event::Returned(Tag(0), _),
        Event::Quiesced,
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    // What was not read makes a reset of the end.
    assert!(
        matches!(reason, EndReason::Host | EndReason::Lost(_)),
        "{reason}"
    );
}
