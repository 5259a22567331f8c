//! Capsules come whole, in order, and before the fences behind them.

use capstan_transport::{FenceNumber, Tag};

use super::over::{Over, Seen};
use super::world::World;
use super::{pattern, success};

/// A capsule: its SQE, and what is behind it.
pub(crate) fn capsule(seed: u8, data_bytes: usize) -> (Vec<u8>, Seen) {
    let (sqe, data) = (pattern(seed, 64), pattern(!seed, data_bytes));
    let all = [&sqe[..], &data].concat();
    (all, Seen::Capsule { sqe, data })
}

pub(crate) fn capsules_come_whole_and_in_order(over: Over) {
    let mut world = World::new(over);
    // As many as the queue has entries.
    let lengths = [0, 1, 63, 512, 4096, 8191, 8192, 0];
    // More of them than there are receives.
    for round in 0..4 {
        let mut expected = Vec::new();
        for (nth, len) in (0..).zip(lengths) {
            let (bytes, seen) = capsule(round * 16 + nth, len);
            world.ends.send(&bytes);
            expected.push(seen);
        }
        world.until("all capsules", |world| {
            world.turn();
            world.seen.len() >= expected.len()
        });
        assert!(std::mem::take(&mut world.seen) == expected, "round {round}");
        for slot in 0..8 {
            world.respond(Tag(slot), success(slot), slot == 7);
        }
        world.responses(8);
        world.see(&Seen::Released(Tag(7)));
        world.seen.clear();
    }
}

pub(crate) fn everything_that_has_arrived_comes_before_a_fence(over: Over) {
    let mut world = World::new(over);
    fence_behind(&mut world);
}

pub(crate) fn what_has_arrived_before_the_first_look_comes_before_a_fence(over: Over) {
    let mut world = World::accepted(over);
    fence_behind(&mut world);
}

/// The host's messages have left between two polls of the target: all of them come before the
/// fence.
fn fence_behind(world: &mut World) {
    let mut expected = Vec::new();
    for nth in 0..5 {
        let (bytes, seen) = capsule(nth, usize::from(nth) * 1000);
        world.ends.send(&bytes);
        expected.push(seen);
    }
    world.fence(FenceNumber(12));
    world.until("the fence", |world| {
        world.turn_controller();
        world.seen.contains(&Seen::Fenced(FenceNumber(12)))
    });
    expected.push(Seen::Fenced(FenceNumber(12)));
    assert!(world.seen == expected, "{} events", world.seen.len());
    assert!(!world.ends.has_fences());
}

pub(crate) fn a_queue_that_is_removed_has_no_events(over: Over) {
    let mut world = World::new(over);
    world.ends.send(&capsule(1, 100).0);
    world.fence(FenceNumber(1));
    world.end(super::over::LocalEnd::Closes);
    world.remove();
    assert!(world.ends.is_empty() && !world.ends.has_fences());
    world.turn();
    assert_eq!(world.seen, []);
}
