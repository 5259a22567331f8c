//! Hosts over real sockets, and the wire that serves them: which sockets it reads, what it tells,
//! and in what order.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::thread::sleep;
use std::time::{Duration, Instant};

use capstan_memory::Pool;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_transport::End;
use capstan_transport::tcp::controller::{Connected, Goes, IcSettings};
use capstan_transport::tcp::host::{self, Arrived, HostQueue, Payload};
use capstan_transport::tcp::limits::SETUP_US;
use capstan_transport::tcp::link::Link;
use capstan_transport::tcp::staging::Staging;
use capstan_transport::tcp::wire::{TcpQueue, TcpWire};
use capstan_transport::{
    Capsule, CapsuleData, EndReason, Event, FenceNumber, Pulled, QueueId, Queues, Source, Tag,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};

use super::{host_events, pool, request};

const DEPTH: u16 = 64;

/// The target's end: its queues, by their names.
#[derive(Default)]
struct All(Vec<Option<TcpQueue>>);

impl Queues<TcpQueue> for All {
    fn queue(&mut self, QueueId(id): QueueId) -> Option<&mut TcpQueue> {
        self.0.get_mut(id as usize)?.as_mut()
    }
}

struct Host {
    queue: HostQueue,
    link: Link,
    scratch: Vec<u8>,
}

impl Host {
    fn turn(&mut self) -> Vec<host::HostQueueEvent> {
        self.link.send(&mut self.queue);
        self.link.receive(&mut self.queue, &mut self.scratch, 0);
        host_events(&mut self.queue)
    }
}

struct World {
    pool: Pool,
    listener: TcpListener,
    wire: TcpWire,
    all: All,
    now_us: u64,
}

impl World {
    fn new() -> Self {
        Self {
            pool: pool(),
            listener: TcpListener::bind("127.0.0.1:0").expect("a port"),
            wire: TcpWire::new(Staging::default()).expect("an epoll"),
            all: All::default(),
            now_us: 0,
        }
    }

    /// A connection of which `first` is read before the wire has it. Gives the host's end.
    fn connect(&mut self, first: &[u8]) -> TcpStream {
        let host = TcpStream::connect(self.listener.local_addr().expect("bound")).expect("taken");
        let (stream, _) = self.listener.accept().expect("a connection");
        let id = QueueId(u32::try_from(self.all.0.len()).expect("few"));
        let settings = (IcSettings::default(), first);
        let queue = self.wire.add(id, stream, settings, self.now_us);
        self.all.0.push(Some(queue.expect("a queue")));
        host
    }

    /// A host whose Connect was answered.
    fn host(&mut self, digests: Digests) -> Host {
        let link = Link::new(self.connect(&[])).expect("options");
        let mut host = Host {
            queue: HostQueue::new(request(digests, 0, 1), DEPTH, false, 0),
            link,
            scratch: vec![0; 65_536],
        };
        while !matches!(host.turn()[..], [host::HostQueueEvent::Ready(_)]) {
            assert!(self.turn().is_empty());
        }
        let buffers: Vec<_> = (0..4).filter_map(|_| self.pool.take(8192)).collect();
        let queue = self.all.0.last_mut().and_then(Option::as_mut);
        queue.expect("just made").with(|queue| {
            queue.connected(Connected {
                entries: DEPTH,
                in_capsule_max_bytes: 8192,
                flow_control: false,
            });
            buffers.into_iter().for_each(|buffer| queue.give(buffer));
        });
        host
    }

    fn queue(&mut self, index: usize) -> &mut TcpQueue {
        self.all.0[index].as_mut().expect("not dropped")
    }

    /// What a turn brings.
    fn turn(&mut self) -> Vec<(QueueId, Event)> {
        self.wire.poll(&mut self.all, self.now_us);
        let next = || self.wire.next_event(&mut self.all);
        let events = std::iter::from_fn(next).collect();
        self.wire.flush(&mut self.all);
        events
    }

    /// Waits, as a reactor does, until the wire has something.
    fn wait(&mut self) {
        if self.wire.arm(&mut self.all) {
            return;
        }
        let mut fds = [PollFd::new(self.wire.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::from(10_000_u16)).expect("no signal");
        assert_eq!(ready, 1, "the wire slept through what arrived");
    }

    /// Turns until `count` events have come.
    fn events(&mut self, count: usize) -> Vec<(QueueId, Event)> {
        let mut events = Vec::new();
        while events.len() < count {
            self.wait();
            events.extend(self.turn());
        }
        events
    }
}

fn flush(cid: u16) -> Sqe {
    Sqe::new(0, cid, 1)
}

fn success(cid: u16) -> Cqe {
    Cqe::new(cid, 0xFFFF, Status::SUCCESS, 0)
}

#[test]
fn what_was_read_before_the_wire_had_the_socket_is_not_lost() {
    let mut world = World::new();
    let icreq = request(Digests::empty(), 0, 1).encode();
    let icreq = zerocopy::IntoBytes::as_bytes(&icreq);
    let mut host = world.connect(&icreq[..20]);
    host.write_all(&icreq[20..]).expect("sent");
    world.wait();
    world.turn();
    let mut answer = [0; 128];
    std::io::Read::read_exact(&mut host, &mut answer).expect("an ICResp");
    assert_eq!(answer[0], 1);
}

#[test]
fn a_fence_comes_behind_all_that_had_arrived_and_not_behind_what_comes_then() {
    let mut world = World::new();
    let mut host = world.host(Digests::all());
    let send = |host: &mut Host, cid| {
        let sent = host.queue.send(flush(cid), Payload::None);
        sent.expect("room");
        host.link.send(&mut host.queue);
    };
    (0..10).for_each(|cid| send(&mut host, cid));
    // In the socket, and in no buffer of this process.
    while !world.queue(0).has_unread() {}
    world.queue(0).fence(FenceNumber(7));
    send(&mut host, 10);
    let events = world.events(12);
    let at = events
        .iter()
        .position(|(_, event)| matches!(event, Event::Fenced(FenceNumber(7))));
    assert!(at >= Some(10), "{events:?}");
    // With nothing in the socket it comes at once.
    world.queue(0).fence(FenceNumber(8));
    assert!(matches!(
        world.turn()[..],
        [(QueueId(0), Event::Fenced(FenceNumber(8)))]
    ));
}

#[test]
fn a_queue_that_is_left_to_epoll_wakes_its_reactor_when_it_gets_something() {
    let mut world = World::new();
    let mut hosts: Vec<_> = (0..3).map(|_| world.host(Digests::empty())).collect();
    for round in 0..20_u16 {
        let index = usize::from(round % 3);
        let host = &mut hosts[index];
        host.queue.send(flush(round), Payload::None).expect("room");
        host.link.send(&mut host.queue);
        let events = world.events(1);
        let [(QueueId(id), Event::Capsule(Capsule { sqe, .. }))] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!((*id as usize, sqe.cid.get()), (index, round));
        let queue = world.queue(index);
        queue.with(|queue| queue.respond(&success(round)));
        queue.flush();
        while host.turn().is_empty() {}
    }
}

#[test]
fn many_hosts_are_all_served() {
    const HOSTS: usize = 40;
    let mut world = World::new();
    let mut hosts: Vec<_> = (0..HOSTS).map(|_| world.host(Digests::empty())).collect();
    for cid in 0..5 {
        for host in &mut hosts {
            host.queue.send(flush(cid), Payload::None).expect("room");
            host.link.send(&mut host.queue);
        }
        let mut served = [false; HOSTS];
        while !served.iter().all(|served| *served) {
            for (QueueId(id), event) in world.events(1) {
                let index = id as usize;
                assert!(matches!(event, Event::Capsule(_)), "{event:?}");
                assert!(!std::mem::replace(&mut served[index], true));
                let queue = world.queue(index);
                queue.with(|queue| queue.respond(&success(cid)));
                queue.flush();
            }
        }
        for host in &mut hosts {
            while host.turn().is_empty() {}
        }
    }
}

#[test]
fn a_host_that_reads_late_gets_everything() {
    const READS: u16 = 24;
    const LEN: u32 = 1 << 18;
    let mut world = World::new();
    let mut host = world.host(Digests::empty());
    let memory = Pool::new(16 << 20, capstan_memory::Pages::Ordinary).expect("memory");
    for cid in 0..READS {
        let buffer = memory.take(LEN).expect("memory");
        let payload = Payload::FromController(buffer, LEN);
        host.queue.send(Sqe::new(2, cid, 1), payload).expect("room");
    }
    host.link.send(&mut host.queue);
    for (_, event) in world.events(READS.into()) {
        let Event::Capsule(Capsule { sqe, .. }) = event else {
            panic!("{event:?}");
        };
        let cid = sqe.cid.get();
        let mut source = world.pool.take(LEN).expect("memory");
        source.copy_from(0, &cid.to_le_bytes());
        let queue = world.queue(0);
        queue.with(|queue| {
            let pushed = queue.push(cid, Source::Buffer(Tag(cid), source, 0..LEN));
            pushed.expect("taken");
            queue.respond(&success(cid));
        });
        queue.flush();
    }
    // 6 MiB are more than a socket takes.
    assert!(world.queue(0).queue().has_unsent());
    let (mut complete, mut released) = (0, 0);
    while complete < READS {
        for event in host.turn() {
            let host::HostQueueEvent::Response {
                cqe,
                memory: Some(memory),
                arrived: Arrived::Whole,
            } = event
            else {
                panic!("{event:?}");
            };
            let mut start = [0; 2];
            memory.copy_to(0, &mut start);
            assert_eq!(u16::from_le_bytes(start), cqe.cid.get());
            complete += 1;
        }
        for (_, event) in world.turn() {
            assert!(matches!(event, Event::Returned(..)), "{event:?}");
            released += 1;
        }
    }
    assert_eq!(released, READS);
}

/// The kernel takes megabytes, and says that there is room when a third of them is acknowledged.
#[test]
fn a_host_behind_a_slow_network_makes_headway_before_the_kernel_takes_more() {
    const PUSHES: u16 = 7;
    const LEN: u32 = 1 << 20;
    let mut world = World::new();
    let mut host = world.host(Digests::empty());
    for cid in 0..PUSHES {
        let payload = Payload::FromController(world.pool.take(512).expect("memory"), 512);
        host.queue.send(Sqe::new(2, cid, 1), payload).expect("room");
    }
    host.link.send(&mut host.queue);
    let capsules = world.events(PUSHES.into());
    assert_eq!(capsules.len(), usize::from(PUSHES));
    for cid in 0..PUSHES {
        let memory = world.pool.take(LEN).expect("memory");
        let source = Source::Buffer(Tag(cid), memory, 0..LEN);
        let pushed = (world.queue(0)).with(|queue| queue.push(cid, source));
        pushed.expect("taken");
    }
    world.queue(0).flush();
    assert!(world.queue(0).queue().has_unsent());
    // What the host's machine takes without its program is acknowledged first.
    wait_until("the network stands still", || {
        world.queue(0).headway().1 == Goes::Not
    });
    // The program takes a part, far less than what the kernel has.
    let socket = host.link.socket().expect("it is open");
    let mut taken = vec![0; 600 << 10];
    let mut bytes = 0;
    while bytes < taken.len() {
        match recv(
            socket.as_raw_fd(),
            &mut taken[bytes..],
            MsgFlags::MSG_DONTWAIT,
        ) {
            Ok(more) => bytes += more,
            Err(Errno::EAGAIN) => sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    }
    wait_until("the host has made headway", || {
        world.queue(0).headway().1 == Goes::On
    });
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not so: {what}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn data_of_the_host_goes_to_its_buffer() {
    const LEN: u32 = 1 << 20;
    let mut world = World::new();
    let mut host = world.host(Digests::empty());
    let memory = Pool::new(2 << 20, capstan_memory::Pages::Ordinary).expect("memory");
    let mut buffer = memory.take(LEN).expect("memory");
    buffer.copy_from(LEN as usize - 1, &[9]);
    let payload = Payload::ToController(buffer, LEN);
    host.queue.send(Sqe::new(1, 5, 1), payload).expect("room");
    host.turn();
    let events = world.events(1);
    assert!(matches!(events[..], [(_, Event::Capsule(_))]));
    let before = world.queue(0).counts();
    let sink = world.pool.take(LEN).expect("memory");
    let queue = world.queue(0);
    queue.with(|queue| queue.pull(Tag(3), 5, LEN, sink).expect("open"));
    queue.flush();
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(host.turn().is_empty());
        events = world.turn();
    }
    let [
        (
            _,
            Event::Pulled(Pulled {
                tag: Tag(3),
                sink,
                intact: true,
            }),
        ),
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    let mut end = [0];
    sink.copy_to(LEN as usize - 1, &mut end);
    assert_eq!(end, [9]);
    let copied = world.queue(0).counts().copied_bytes - before.copied_bytes;
    assert!(copied < 1024, "{copied} bytes were copied");
}

#[test]
fn a_part_of_data_is_over_when_the_connection_has_taken_it() {
    let mut world = World::new();
    let mut host = world.host(Digests::all());
    let buffer = world.pool.take(8192).expect("memory");
    let payload = Payload::FromController(buffer, 6000);
    host.queue.send(Sqe::new(6, 1, 0), payload).expect("room");
    host.turn();
    world.events(1);
    let mut spare = world.pool.take(4096);
    for (offset_bytes, len_bytes, last) in [(0_u32, 4096, false), (4096, 1904, true)] {
        let mut page = spare.take().expect("memory");
        page.copy_from(0, &[offset_bytes.to_le_bytes()[1] + 1]);
        let part = capstan_transport::tcp::controller::Part { offset_bytes, last };
        let queue = world.queue(0);
        let copied = queue.with(|queue| queue.push_part(Tag(2), 1, part, (page, len_bytes), !last));
        queue.flush();
        let mut events = world.turn();
        assert_eq!(
            (copied.is_some(), events.is_empty()),
            (last, last),
            "{events:?}"
        );
        if let Some((_, event)) = events.pop() {
            let Event::Returned(Tag(2), page) = event else {
                panic!("{event:?}");
            };
            spare = Some(page);
        }
    }
    let queue = world.queue(0);
    queue.with(|queue| queue.respond(&success(1)));
    queue.flush();
    let mut events = Vec::new();
    while events.is_empty() {
        events = host.turn();
    }
    let [
        host::HostQueueEvent::Response {
            memory: Some(memory),
            arrived: Arrived::Whole,
            ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    let at = |offset| {
        let mut byte = [0];
        memory.copy_to(offset, &mut byte);
        byte[0]
    };
    assert_eq!((at(0), at(4096)), (1, 17));
}

#[test]
fn the_end_of_a_host_ends_its_queue_and_gives_its_buffers_back() {
    let mut world = World::new();
    let mut host = world.host(Digests::empty());
    let memory = world.pool.take(65_536).expect("memory");
    let payload = Payload::ToController(memory, 65_536);
    host.queue.send(Sqe::new(1, 0, 1), payload).expect("room");
    host.turn();
    let events = world.events(1);
    assert!(matches!(
        &events[..],
        [(
            _,
            Event::Capsule(Capsule {
                data: CapsuleData::None,
                ..
            })
        )]
    ));
    let sink = world.pool.take(65_536).expect("memory");
    let queue = world.queue(0);
    queue.with(|queue| queue.pull(Tag(0), 0, 65_536, sink).expect("open"));
    queue.fence(FenceNumber(3));
    drop(host);
    let events = world.events(4);
    let [
        (_, Event::Ended(reason)),
        (_, Event::Returned(Tag(0), _)),
        (_, Event::Quiesced),
        (_, Event::Fenced(FenceNumber(3))),
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert!(matches!(reason, EndReason::Host | EndReason::Lost(_)));
    assert!(world.queue(0).is_closed());
    drop(events);
    world.all.0.clear();
    assert_eq!(world.pool.free_bytes(), 8 << 20);
}

#[test]
fn a_queue_that_is_drained_closes_when_all_has_left() {
    let mut world = World::new();
    let mut host = world.host(Digests::empty());
    host.queue.send(flush(4), Payload::None).expect("room");
    host.link.send(&mut host.queue);
    world.events(1);
    let queue = world.queue(0);
    queue.with(|queue| queue.respond(&success(4)));
    queue.end(End::Drained);
    assert!(queue.is_closed());
    let mut events = Vec::new();
    while events.len() < 3 {
        events.extend(host.turn());
    }
    assert!(
        matches!(
            events[..],
            [
                host::HostQueueEvent::Response { .. },
                host::HostQueueEvent::Ended(_),
                host::HostQueueEvent::Quiesced
            ]
        ),
        "{events:?}"
    );
}

#[test]
fn nothing_is_told_of_behind_the_end() {
    let mut world = World::new();
    let mut host = world.host(Digests::empty());
    host.queue.send(flush(4), Payload::None).expect("room");
    host.link.send(&mut host.queue);
    world.events(1);
    let queue = world.queue(0);
    queue.respond(Tag(0), &success(4), true);
    queue.abort();
    let events = world.turn();
    assert!(
        matches!(
            events[..],
            [
                (_, Event::Ended(EndReason::Controller)),
                (_, Event::Quiesced)
            ]
        ),
        "{events:?}"
    );
}

#[test]
fn a_connection_that_asks_for_nothing_ends_at_its_deadline() {
    let mut world = World::new();
    let host = world.connect(&[]);
    assert_eq!(world.wire.next_deadline_us(), Some(SETUP_US));
    world.now_us = SETUP_US - 1;
    assert!(world.turn().is_empty());
    world.now_us = SETUP_US;
    let events = world.turn();
    assert!(
        matches!(
            events[..],
            [(_, Event::Ended(EndReason::Lost(_))), (_, Event::Quiesced)]
        ),
        "{events:?}"
    );
    assert_eq!(world.wire.next_deadline_us(), None);
    drop(host);
}

#[test]
fn a_wire_without_queues_has_no_deadline() {
    let mut world = World::new();
    let [first, second] = [(); 2].map(|()| world.connect(&[]));
    for (id, due_us) in [(0, Some(SETUP_US)), (1, None)] {
        world.all.0[id] = None;
        assert_eq!(world.wire.next_deadline_us(), due_us);
    }
    drop((first, second));
}

#[test]
fn what_is_no_nvme_tcp_is_told_so_and_ends() {
    let mut world = World::new();
    let mut peer = world.connect(&[]);
    peer.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let events = world.events(1);
    let [(_, Event::Ended(EndReason::Violation(why)))] = &events[..] else {
        panic!("{events:?}");
    };
    assert!(why.contains("47h"), "{why}");
    let mut answer = [0; 24];
    std::io::Read::read_exact(&mut peer, &mut answer).expect("a TermReq");
    assert_eq!(answer[0], 3, "C2HTermReq");
    drop(peer);
    let events = world.events(1);
    assert!(matches!(events[..], [(_, Event::Quiesced)]));
}
