//! Responses whose Send nobody is told of, and what waits for those that somebody is.

use std::time::{Duration, Instant};

use capstan_initiator::{DirectQueue, Io, Op};
use capstan_nvme_proto::command::{Flush, IoCommand, LbaRange, Read};
use capstan_nvme_proto::fabrics::FabricsCommand;
use capstan_nvme_proto::sgl::Sgl;
use capstan_rdma::iwarp::Config;
use capstan_tests::host;
use capstan_tests::target::TestTarget;
use capstan_tests::wire_host::{Data, Queue, Wire, WireHost, connect_data};

/// More than a target answers in a row without being told of one.
const MANY: u64 = 100;
/// What a target that drains gives its hosts at most.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A command that leaves nothing behind but its response.
fn flush(host: &mut WireHost, cid: u16) {
    let flush = IoCommand::Flush(Flush { nsid: 1 }).encode(cid, Sgl::EMPTY);
    let (cqe, _) = host.run(Queue::Io, flush, Data::None);
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
}

/// A queue of two entries has one command at a time; its slots are enough for the responses before
/// it.
#[test]
fn the_smallest_queue_has_slots_for_responses_that_nobody_is_told_of() {
    let target = TestTarget::ram("reactors = 1");
    let mut options = host::options(target.addresses[0], 1);
    options.queue_size = 2;
    let mut queue = DirectQueue::connect(&options).expect("connected");
    for token in 0..MANY {
        let op = Op::Flush;
        queue
            .submit(token, Io { nsid: 1, op }, None)
            .expect("taken");
        let completion = queue.wait(None).expect("the Flush ends");
        assert_eq!(completion.token, token);
        completion.result.expect("success");
    }
    queue.close();
    target.stop();
}

#[test]
fn hundreds_of_responses_leave_no_slot_behind() {
    let target = TestTarget::ram("reactors = 1");
    let mut host = WireHost::connect(target.addresses[0], 1);
    for cid in 0..500 {
        flush(&mut host, cid);
    }
    drop(host);
    target.stop();
}

/// The target ends the connection of a queue that its host has deleted, and is told of that
/// response for it.
#[test]
fn a_deleted_queue_is_ended_by_the_target() {
    for flushes in 0..=2 {
        let target = TestTarget::ram("reactors = 1");
        let mut host = WireHost::connect(target.addresses[0], 1);
        for cid in 0..flushes {
            flush(&mut host, cid);
        }
        let disconnect = FabricsCommand::Disconnect.encode(flushes, Sgl::EMPTY);
        let (cqe, _) = host.run(Queue::Io, disconnect, Data::None);
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        host.wait_for_the_end_of(Queue::Io);
        drop(host);
        target.stop();
    }
}

/// However many responses came after the last one that the target was told of.
#[test]
fn an_idle_host_does_not_hold_up_the_end() {
    for flushes in 0..=8 {
        let target = TestTarget::ram("reactors = 1");
        let mut host = WireHost::connect(target.addresses[0], 1);
        for cid in 0..flushes {
            flush(&mut host, cid);
        }
        let start = Instant::now();
        target.stop();
        let took = start.elapsed();
        assert!(took < DRAIN_TIMEOUT / 2, "{took:?} after {flushes}");
    }
}

/// The target has memory for one read of 1 MiB that goes through a buffer.
#[test]
fn memory_of_a_read_comes_back_when_its_host_is_idle() {
    const BYTES: u32 = 1 << 20;
    let target = TestTarget::ram("reactors = 1\nmemory_budget = \"5MiB\"");
    let wire = Wire::new(Config::default(), 1024, 4 * BYTES as usize);
    let mut hosts = [1, 2].map(|number| {
        let connect = connect_data(number);
        WireHost::connect_through(wire.clone(), target.addresses[0], connect)
    });
    for cid in 0..10 {
        let host = &mut hosts[usize::from(cid % 2)];
        let range = LbaRange {
            slba: 0,
            nlb: BYTES / 4096,
        };
        // With FUA it is an operation of the storage, not a copy from its memory.
        let mut read = Read::new(1, range);
        read.fua = true;
        let read = IoCommand::Read(read).encode(cid, Sgl::EMPTY);
        let (cqe, data) = host.run(Queue::Io, read, Data::Pushed(BYTES));
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        assert!(data.iter().all(|byte| *byte == 0), "zeroes");
    }
    drop(hosts);
    target.stop();
}
