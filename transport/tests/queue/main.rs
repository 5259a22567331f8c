//! What a queue of the controller's side does, over each of its wires of RDMA.

mod world;

use capstan_memory::{Pages, Pool};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status;
use capstan_transport::{EndReason, FenceNumber, HostMemory, Tag};
use world::{Over, Seen, World};
use zerocopy::IntoBytes;

/// Every test over every wire.
macro_rules! over_each_wire {
    ($($name:ident)*) => {
        mod loopback { $(#[test] fn $name() { super::$name(super::Over::Loopback); })* }
        mod sockets { $(#[test] fn $name() { super::$name(super::Over::Sockets); })* }
        mod shared_memory { $(#[test] fn $name() { super::$name(super::Over::SharedMemory); })* }
    };
}

over_each_wire! {
    capsules_come_whole_and_in_order
    a_pull_has_come_when_it_is_told_of
    each_of_several_pulls_gives_its_own_sink_back
    a_response_comes_behind_what_was_pushed
    what_is_pushed_without_a_buffer_comes_before_its_response
    the_last_responses_are_told_of_when_that_is_asked_for
    a_capsule_that_is_too_short_ends_the_queue
    a_host_that_goes_ends_the_queue_once
    a_queue_that_is_ended_with_a_pull_under_way_quiesces_once
    everything_that_has_arrived_comes_before_a_fence
    what_has_arrived_before_the_first_look_comes_before_a_fence
    a_queue_that_is_removed_has_no_events
}

/// Bytes that are not the same anywhere near.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 31 + at / 256 * 17) % 251).unwrap_or(0) ^ seed;
    (0..len).map(byte).collect()
}

/// A capsule: its SQE, and what is behind it.
fn capsule(seed: u8, data_bytes: usize) -> (Vec<u8>, Seen) {
    let (sqe, data) = (pattern(seed, 64), pattern(!seed, data_bytes));
    let all = [&sqe[..], &data].concat();
    (all, Seen::Capsule { sqe, data })
}

fn success(cid: u16) -> Cqe {
    Cqe::new(cid, 0, Status::SUCCESS, 0)
}

fn capsules_come_whole_and_in_order(over: Over) {
    let mut world = World::new(over);
    let lengths = [0, 1, 63, 512, 4096, 8191, 8192, 0];
    // More of them than there are receives.
    for round in 0..4 {
        let mut expected = Vec::new();
        for (nth, len) in (0..).zip(lengths) {
            let (bytes, seen) = capsule(round * 16 + nth, len);
            world.send(&bytes);
            expected.push(seen);
        }
        world.until("all capsules", |world| {
            world.turn();
            world.seen.len() >= expected.len()
        });
        assert!(std::mem::take(&mut world.seen) == expected, "round {round}");
    }
}

fn a_pull_has_come_when_it_is_told_of(over: Over) {
    let mut world = World::new(over);
    let there = pattern(9, 100_000);
    world.data.copy_from(0, &there);
    let parts = [world.keyed(0, 70_000), world.keyed(70_000, 30_000)];
    let from = HostMemory::KeyedList(parts.into_iter().collect());
    let sink = world.buffer(100_000);
    let pull = world.queue().pull(Tag(3), &from, sink, 100_000);
    pull.expect("it is taken");
    world.queue().flush();
    world.see(&Seen::Pulled(Tag(3)));
    let mut here = vec![0; there.len()];
    let sink = world.sinks.pop().expect("it came back");
    sink.copy_to(0, &mut here);
    assert!(here == there);
    assert_eq!(world.seen.len(), 1);
}

fn each_of_several_pulls_gives_its_own_sink_back(over: Over) {
    let mut world = World::new(over);
    let there = pattern(5, 24_576);
    world.data.copy_from(0, &there);
    for (tag, at) in [(2, 0), (0, 8192), (1, 16_384)] {
        let from = HostMemory::Keyed(world.keyed(at, 8192));
        let sink = world.buffer(8192);
        let pull = world.queue().pull(Tag(tag), &from, sink, 8192);
        pull.expect("it is taken");
    }
    world.queue().flush();
    world.until("three pulls", |world| {
        world.turn();
        world.seen.len() >= 3
    });
    let tags = [Tag(2), Tag(0), Tag(1)].map(Seen::Pulled);
    assert_eq!(world.seen, tags);
    for (sink, there) in world.sinks.iter().zip(there.chunks(8192)) {
        let mut here = [0; 8192];
        sink.copy_to(0, &mut here);
        assert!(here == *there);
    }
}

fn a_response_comes_behind_what_was_pushed(over: Over) {
    let mut world = World::new(over);
    let here = pattern(4, 65_536);
    let mut source = world.buffer(65_536);
    source.copy_from(0, &here);
    let to = HostMemory::Keyed(world.keyed(4096, 65_536));
    let cqe = success(77);
    let queue = world.queue();
    queue.push(&to, &source, 65_536).expect("room");
    queue.respond(Tag(1), cqe, None, true).expect("room");
    queue.flush();
    assert_eq!(world.responses(1), [cqe.as_bytes()]);
    let mut there = vec![0; here.len()];
    world.data.copy_to(4096, &mut there);
    assert!(there == here, "data behind its response");
    world.see(&Seen::Released(Tag(1)));
}

fn what_is_pushed_without_a_buffer_comes_before_its_response(over: Over) {
    let mut world = World::new(over);
    let here = pattern(5, 16_384);
    let memory = Pool::new(1 << 20, Pages::Ordinary).expect("memory");
    let mut held = memory.take(16_384).expect("memory");
    held.copy_from(0, &here);
    let offset = usize::try_from(held.addr() - memory.slab().addr()).expect("inside");
    let (to, cqe) = (world.keyed(8192, 16_384), success(3));
    let queue = world.queue();
    let copied = queue.push_copy(to, &mut |put| put(&here));
    assert_eq!(copied, over == Over::SharedMemory);
    let held = !copied && queue.push_held(to, memory.slab(), offset..offset + 16_384);
    assert_eq!(held, over == Over::Sockets);
    let responded = queue.respond_now(&cqe, None);
    assert_eq!(responded, over != Over::Loopback);
    queue.flush();
    if over == Over::Loopback {
        return;
    }
    assert_eq!(world.responses(1), [cqe.as_bytes()]);
    let mut there = vec![0; here.len()];
    world.data.copy_to(8192, &mut there);
    assert!(there == here, "data behind its response");
    assert_eq!(world.seen, [], "nothing is left to be told of");
}

/// Over sockets a queue is full when they are, until the host has read.
#[test]
fn a_queue_that_is_full_takes_more_when_something_has_left() {
    let mut world = World::new(Over::Sockets);
    let memory = Pool::new(2 << 20, Pages::Ordinary).expect("memory");
    let (to, slab) = (world.keyed(0, 1 << 20), memory.slab());
    assert!(!world.queue().is_full());
    let mut pushed = 0;
    while world.queue().push_held(to, slab, 0..1 << 20) {
        world.queue().flush();
        pushed += 1;
        assert!(pushed < 10_000, "a queue that is never full");
    }
    assert!(pushed > 0 && world.queue().is_full());
    world.until("room", |world| {
        world.turn();
        !world.queue().is_full()
    });
    assert!(world.queue().push_held(to, slab, 0..1 << 20));
}

fn the_last_responses_are_told_of_when_that_is_asked_for(over: Over) {
    let mut world = World::new(over);
    for slot in 0..5 {
        let posted = world.queue().respond(Tag(slot), success(slot), None, false);
        posted.expect("room");
    }
    world.queue().flush();
    world.responses(5);
    assert_eq!(world.queue().untold_responses(), 5);
    assert_eq!(world.seen, []);
    world.queue().ask_for_responses().expect("room");
    world.see(&Seen::Released(Tag(4)));
    let released: Vec<_> = (0..5).map(|slot| Seen::Released(Tag(slot))).collect();
    assert_eq!(world.seen, released);
    assert_eq!(world.queue().untold_responses(), 0);
}

fn a_capsule_that_is_too_short_ends_the_queue(over: Over) {
    let mut world = World::new(over);
    world.send(&[7; 10]);
    world.send(&capsule(1, 0).0);
    let what = "a capsule of 10 bytes, expected at least 64".to_owned();
    world.see(&Seen::Ended(EndReason::Violation(what)));
    world.fence(FenceNumber(1));
    world.see(&Seen::Fenced(FenceNumber(1)));
    assert_eq!(
        world.seen.len(),
        2,
        "a queue that has ended takes nothing: {:?}",
        world.seen
    );
}

fn a_host_that_goes_ends_the_queue_once(over: Over) {
    let mut world = World::new(over);
    let to = HostMemory::Keyed(world.keyed(0, 4096));
    world.host_ends();
    let source = world.buffer(4096);
    world.until("the end of the queue", |world| {
        // Something that shows it.
        let _ = world.queue().push_piece(Tag(2), &to, &source, 4096);
        world.queue().flush();
        world.turn();
        world
            .seen
            .iter()
            .any(|seen| matches!(seen, Seen::Ended(EndReason::Lost(_))))
    });
    world.end();
    world.see(&Seen::Quiesced);
    let ends = world
        .seen
        .iter()
        .filter(|seen| matches!(seen, Seen::Ended(_)));
    assert_eq!(ends.count(), 1, "{:?}", world.seen);
    assert_eq!(world.seen.last(), Some(&Seen::Quiesced));
}

fn a_queue_that_is_ended_with_a_pull_under_way_quiesces_once(over: Over) {
    let mut world = World::new(over);
    let from = HostMemory::Keyed(world.keyed(0, 1 << 20));
    let sink = world.buffer(1 << 20);
    let pull = world.queue().pull(Tag(0), &from, sink, 1 << 20);
    pull.expect("it is taken");
    world.queue().flush();
    world.end();
    world.see(&Seen::Quiesced);
    assert_eq!(world.queue().sends_outstanding(), 0);
    let quiesced = world.seen.iter().filter(|seen| **seen == Seen::Quiesced);
    assert_eq!(quiesced.count(), 1);
    world.turn();
    assert_eq!(world.seen.last(), Some(&Seen::Quiesced));
}

fn everything_that_has_arrived_comes_before_a_fence(over: Over) {
    let mut world = World::new(over);
    fence_behind(&mut world);
}

fn what_has_arrived_before_the_first_look_comes_before_a_fence(over: Over) {
    let mut world = World::accepted(over);
    fence_behind(&mut world);
}

/// The host's messages have left while nobody looked: all of them come before the fence.
fn fence_behind(world: &mut World) {
    let mut expected = Vec::new();
    for nth in 0..5 {
        let (bytes, seen) = capsule(nth, usize::from(nth) * 1000);
        world.send(&bytes);
        expected.push(seen);
    }
    world.fence(FenceNumber(12));
    world.until("the fence", |world| {
        world.turn_controller();
        world.seen.contains(&Seen::Fenced(FenceNumber(12)))
    });
    expected.push(Seen::Fenced(FenceNumber(12)));
    assert!(world.seen == expected, "{} events", world.seen.len());
    assert!(!world.wire.has_fences());
}

fn a_queue_that_is_removed_has_no_events(over: Over) {
    let mut world = World::new(over);
    world.send(&capsule(1, 100).0);
    world.fence(FenceNumber(1));
    world.end();
    world.remove();
    assert!(world.wire.is_empty() && !world.wire.has_fences());
    world.turn();
    assert_eq!(world.seen, []);
}
