//! Permitted hosts that hold what they have and do not go on: others have their buffers, and the
//! connection ends.

use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::{DirectQueue, Options};
use capstan_nvme_proto::command::{Abort, AdminCommand, IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::iwarp::Config;
use capstan_tests::attack::file_target::{
    BUSY, FileTarget, PRESSED, STALLED, attackers, pause, withstand,
};
use capstan_tests::attack::{ELSEWHERE, Stranger, connect_capsule};
use capstan_tests::host::options;
use capstan_tests::wire_host::{Data, Queue, Wire, WireHost, connect_data};
use zerocopy::IntoBytes;

const LBA_BYTES: u32 = 4096;
const MIB: u32 = 1 << 20;
/// Nearly as many as a queue of [`WireHost`] takes.
const LARGE: u8 = 30;

fn mebibyte(n: u8) -> LbaRange {
    let nlb = MIB / LBA_BYTES;
    LbaRange {
        slba: u64::from(n) * u64::from(nlb),
        nlb,
    }
}

fn read(range: LbaRange) -> Sqe {
    IoCommand::Read(Read::new(1, range)).encode(0, Sgl::EMPTY)
}

fn write(range: LbaRange) -> Sqe {
    IoCommand::Write(Write::new(1, range)).encode(0, Sgl::EMPTY)
}

/// How two ends on one machine reach each other.
#[derive(Clone, Copy, Debug)]
enum Link {
    Tcp,
    SharedMemory,
}

fn connect_from(source: Option<IpAddr>, at: SocketAddr, number: u8, link: Link) -> WireHost {
    let config = Config {
        same_host: matches!(link, Link::SharedMemory),
        ..Config::default()
    };
    let wire = Wire::from(source, config, 1024, 48 << 20);
    WireHost::connect_through(wire, at, connect_data(number))
}

fn connect(at: SocketAddr, number: u8, link: Link) -> WireHost {
    connect_from(None, at, number, link)
}

/// What a host asks for and then leaves as it is.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    /// Writes, whose data it does not give.
    Writes,
    /// Reads, whose data it does not take.
    Reads,
}

/// Sends as many commands of 1 MiB as the queue takes, and works no more.
fn leave(host: &mut WireHost, what: Leaves) {
    for n in 0..LARGE {
        let sqe = match what {
            Leaves::Writes => write(mebibyte(n)),
            Leaves::Reads => read(mebibyte(n)),
        };
        // A buffer is all that is needed: nobody will see what is in it.
        host.send(Queue::Io, sqe, Data::Pushed(MIB));
    }
}

/// Runs a command of `bytes` and says how long it took.
fn timed(host: &mut WireHost, sqe: Sqe, data: Data<'_>) -> Duration {
    let start = Instant::now();
    let (cqe, _) = host.run(Queue::Io, sqe, data);
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    start.elapsed()
}

/// A host that holds buffers and does not go on leaves others theirs, large ones as well, and is
/// ended with a reason though its Keep Alive Timeout is 0.
fn one_host_leaves(what: Leaves, link: Link, complaint: &[&str]) {
    let target = FileTarget::start(4);
    let mut other = connect(target.at, 2, Link::Tcp);
    let mut one = connect(target.at, 1, link);
    leave(&mut one, what);
    let data = vec![0x22; MIB as usize];
    for n in 0..5 {
        let small = LbaRange {
            nlb: 1,
            ..mebibyte(n)
        };
        let times = [
            timed(&mut other, read(small), Data::Pushed(LBA_BYTES)),
            timed(&mut other, read(mebibyte(n)), Data::Pushed(MIB)),
            timed(&mut other, write(mebibyte(40 + n)), Data::Pulled(&data)),
        ];
        assert!(
            times.iter().all(|took| *took < STALLED / 2),
            "{times:?} beside a host that leaves its {what:?} over {link:?}"
        );
    }
    let line = target.wait_for_log(complaint);
    assert!(line.contains("host-1"), "{line}");
    timed(&mut other, read(mebibyte(0)), Data::Pushed(MIB));
    // It may come back.
    drop(one);
    let mut one = connect(target.at, 1, link);
    timed(&mut one, read(mebibyte(0)), Data::Pushed(MIB));
    drop((one, other));
    assert!(target.daemon.stop().success());
}

#[test]
fn a_host_that_answers_no_rdma_read_leaves_others_their_buffers() {
    let complaint = ["RDMA READs of", "from the host was answered for 10 s"];
    one_host_leaves(Leaves::Writes, Link::Tcp, &complaint);
}

#[test]
fn a_host_that_answers_no_rdma_read_through_shared_memory_leaves_others_their_buffers() {
    let complaint = ["RDMA READs of", "from the host was answered for 10 s"];
    one_host_leaves(Leaves::Writes, Link::SharedMemory, &complaint);
}

#[test]
fn a_host_that_takes_no_data_leaves_others_their_buffers() {
    let complaint = ["the host took neither data nor responses for 10 s"];
    one_host_leaves(Leaves::Reads, Link::Tcp, &complaint);
}

#[test]
fn a_host_that_keeps_the_shared_memory_full_leaves_others_their_buffers() {
    let complaint = ["the host took neither data nor responses for 10 s"];
    one_host_leaves(Leaves::Reads, Link::SharedMemory, &complaint);
}

/// Several associations together have all buffers, and leave them as they are: what is small goes
/// on, and for what is large they are ended sooner.
#[test]
fn when_others_wait_hosts_that_hold_everything_are_ended_sooner() {
    let target = FileTarget::start(3);
    let mut other = connect(target.at, 9, Link::Tcp);
    let mut holders: Vec<_> = (1..=4)
        .map(|number| connect(target.at, number, Link::Tcp))
        .collect();
    for holder in &mut holders {
        leave(holder, Leaves::Writes);
    }
    let small = LbaRange {
        nlb: 1,
        ..mebibyte(0)
    };
    for _ in 0..20 {
        let took = timed(&mut other, read(small), Data::Pushed(LBA_BYTES));
        assert!(took < PRESSED / 2, "{took:?} for 4 KiB");
    }
    let took = timed(&mut other, read(mebibyte(0)), Data::Pushed(MIB));
    assert!(took < 4 * PRESSED, "{took:?} for 1 MiB");
    target.wait_for_log(&["at most 2 s while other hosts wait for buffers"]);
    drop((holders, other));
    assert!(target.daemon.stop().success());
}

/// Where any host may connect, one address cannot have all the memory for queues.
#[test]
fn an_address_leaves_others_a_part_of_the_memory_for_queues() {
    let target = FileTarget::start(2);
    let mut hosts = Vec::new();
    let refusal = loop {
        let number = u8::try_from(hosts.len() + 1).expect("there is an end");
        match DirectQueue::connect(&options(target.at, number)) {
            Ok(host) => hosts.push(host),
            Err(error) => break error.to_string(),
        }
    };
    assert!(refusal.contains("Controller Busy"), "{refusal}");
    target.wait_for_log(&["127.0.0.1", "may have three times as many as it leaves"]);
    let elsewhere = Some(ELSEWHERE.into());
    let other = connect_from(elsewhere, target.at, 200, Link::Tcp);
    // What is given back is there again.
    for host in hosts.drain(..2) {
        host.close();
    }
    wait_until_connects(&options(target.at, 201));
    drop((hosts, other));
    assert!(target.daemon.stop().success());
}

/// Tries until what hosts that have left had is free.
fn wait_until_connects(options: &Options) {
    let start = Instant::now();
    while let Err(error) = DirectQueue::connect(options) {
        assert!(start.elapsed() < BUSY, "{error}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Hosts with large commands that they leave as they are, again and again.
fn left(what: Leaves, link: Link) -> impl Fn(SocketAddr, IpAddr, &AtomicBool) + Copy + Send {
    move |at, source, stop| {
        while !stop.load(Ordering::Relaxed) {
            let mut hosts: Vec<_> = attackers()
                .map(|number| connect_from(Some(source), at, number, link))
                .collect();
            for host in &mut hosts {
                leave(host, what);
            }
            // Long enough that the target ends those that hold what others wait for.
            pause(stop, PRESSED * 2);
        }
    }
}

#[test]
fn unanswered_rdma_reads_of_many_hosts_are_withstood() {
    withstand("unanswered RDMA READs", left(Leaves::Writes, Link::Tcp));
}

#[test]
fn unanswered_rdma_reads_through_shared_memory_are_withstood() {
    let attack = left(Leaves::Writes, Link::SharedMemory);
    withstand("unanswered RDMA READs, shared memory", attack);
}

#[test]
fn data_that_many_hosts_do_not_take_is_withstood() {
    withstand("data not taken", left(Leaves::Reads, Link::Tcp));
}

#[test]
fn shared_memory_that_many_hosts_keep_full_is_withstood() {
    withstand(
        "shared memory kept full",
        left(Leaves::Reads, Link::SharedMemory),
    );
}

/// Sends a command and drops the answer, whatever it is.
fn ask(host: &mut WireHost, sqe: Sqe) {
    let _ = host.run(Queue::Admin, sqe, Data::None);
}

#[test]
fn admin_queues_full_of_event_requests_and_aborts_are_withstood() {
    withstand("event requests and aborts", |at, source, stop| {
        let mut hosts: Vec<_> = attackers()
            .map(|number| connect_from(Some(source), at, number, Link::Tcp))
            .collect();
        let event = AdminCommand::AsynchronousEventRequest.encode(0, Sgl::EMPTY);
        let abort = AdminCommand::Abort(Abort { sqid: 1, cid: 7 }).encode(0, Sgl::EMPTY);
        for host in &mut hosts {
            // As many as a controller keeps; each further one is answered at once.
            for _ in 0..4 {
                host.send(Queue::Admin, event, Data::None);
            }
        }
        while !stop.load(Ordering::Relaxed) {
            for host in &mut hosts {
                ask(host, event);
                ask(host, abort);
            }
        }
    });
}

/// Reads into memory that the host never named end the connection; the host comes back at once.
#[test]
fn keys_that_do_not_exist_are_withstood() {
    withstand("keys that do not exist", |at, source, stop| {
        let config = Config {
            same_host: false,
            ..Config::default()
        };
        let wire = Wire::from(Some(source), config, 1024, 4 << 20);
        while !stop.load(Ordering::Relaxed) {
            let mut host = WireHost::connect_through(wire.clone(), at, connect_data(100));
            let capsules: Vec<_> = (0..8_u16)
                .map(|cid| {
                    let mut sqe = read(mebibyte(0));
                    sqe.cid = cid.into();
                    sqe.dptr = Sgl::Keyed {
                        address: 0x1000,
                        length_bytes: MIB,
                        rkey: 0xDEAD_BE00 + u32::from(cid),
                        invalidate: false,
                    }
                    .encode();
                    let mut capsule = wire.take(64);
                    capsule.copy_from(0, sqe.as_bytes());
                    host.post(Queue::Io, wire.sge(&capsule, 0, 64), false);
                    capsule
                })
                .collect();
            host.ring_doorbell(Queue::Io);
            // The rest is the target's to end, or this host's.
            pause(stop, Duration::from_millis(20));
            drop((host, capsules));
        }
    });
}

/// Hosts that have connected, send no more and do not go.
#[test]
fn half_closed_connections_are_withstood() {
    withstand("half-closed connections", |at, source, stop| {
        let IpAddr::V4(source) = source else { return };
        while !stop.load(Ordering::Relaxed) {
            let closed: Vec<_> = attackers()
                .filter_map(|number| {
                    let mut host = Stranger::connect(at, source, 0).ok()?;
                    let connect = connect_capsule(1, 0, 0, &connect_data(number), false);
                    host.send(&connect).ok()?;
                    host.hears()
                        .then(|| host.stream.shutdown(Shutdown::Write))?
                        .ok()?;
                    Some(host)
                })
                .collect();
            pause(stop, Duration::from_millis(500));
            drop(closed);
        }
    });
}
