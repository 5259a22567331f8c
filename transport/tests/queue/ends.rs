//! However a queue ends, and whatever its commands do then: it is told of once, once more when
//! nothing can land any more, and all buffers are back by then.

use capstan_nvme_proto::status::Status;
use capstan_transport::{EndReason, FenceNumber, Responded, Tag};

use super::capsules::capsule;
use super::harness::{PeerEnd, SEND_WRS};
use super::moves::fill;
use super::over::{Answers, LocalEnd, Over, Seen};
use super::world::World;
use super::{pattern, success};

/// Which side ends the queue, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Host(PeerEnd),
    Local(LocalEnd),
    /// The host breaks the rules, and closes when it is told so.
    Violation,
    /// The host stops in the middle of a message and goes then.
    Broken(PeerEnd),
}

const CAUSES: [Cause; 8] = [
    Cause::Host(PeerEnd::Closes),
    Cause::Host(PeerEnd::Resets),
    Cause::Host(PeerEnd::Terminates),
    Cause::Local(LocalEnd::Closes),
    Cause::Local(LocalEnd::Aborts),
    Cause::Violation,
    Cause::Broken(PeerEnd::Closes),
    Cause::Broken(PeerEnd::Resets),
];

impl Cause {
    /// Whether there is such an end of that wire while data of the host is under way or not.
    fn is_of(self, over: Over, is_pulling: bool) -> bool {
        let has_pdus = over.abilities().has_pdus;
        match self {
            Self::Host(PeerEnd::Closes | PeerEnd::Resets) | Self::Local(_) => true,
            // In the middle of data there is no other message.
            Self::Violation => !(has_pdus && is_pulling),
            Self::Host(PeerEnd::Terminates) => has_pdus && !is_pulling,
            // That the pull has begun is such a middle.
            Self::Broken(_) => has_pdus && !is_pulling,
        }
    }

    /// Ends the queue, and has its user take the end.
    fn carry_out(self, world: &mut World) {
        match self {
            Self::Host(how) => world.ends.host_ends(how),
            Self::Local(how) => {
                // What is to leave in order has to be read.
                world.ends.host_reads(true);
                return world.end(how);
            }
            Self::Violation => {
                let (_, bytes) = world.ends.offences().remove(0);
                world.ends.send_raw(&bytes);
                world.take_end();
                return world.ends.host_ends(PeerEnd::Closes);
            }
            Self::Broken(how) => {
                let (bytes, _) = capsule(1, 4096);
                world.ends.send_half(&bytes);
                (0..3).for_each(|_| world.turn_controller());
                world.ends.host_ends(how);
            }
        }
        world.take_end();
    }

    fn is_reason(self, reason: &EndReason) -> bool {
        match (self, reason) {
            (Self::Violation, EndReason::Violation(what)) => what.contains("expected"),
            (Self::Local(_), EndReason::Controller) => true,
            (Self::Violation | Self::Local(_), _) => false,
            (Self::Host(_) | Self::Broken(_), EndReason::Violation(_)) => false,
            // Where the manager of the connection tells of it, the end of the queue is its user's.
            (Self::Host(_) | Self::Broken(_), _) => true,
        }
    }
}

/// Ends a queue in each way, after `begin` has brought it into a state.
fn in_each_way(over: Over, is_pulling: bool, begin: fn(&mut World)) {
    for cause in CAUSES
        .into_iter()
        .filter(|cause| cause.is_of(over, is_pulling))
    {
        let mut world = World::new(over);
        begin(&mut world);
        assert!(!world.seen.iter().any(|seen| matches!(seen, Seen::Ended(_))));
        cause.carry_out(&mut world);
        world.quiesces(&format!("{cause:?}"));
        let reason = world.seen.iter().find_map(|seen| match seen {
            Seen::Ended(reason) => Some(reason),
            _ => None,
        });
        let reason = reason.expect("it has ended");
        assert!(cause.is_reason(reason), "{over:?}: {cause:?}: {reason:?}");
    }
}

pub(crate) fn while_nothing_is_under_way(over: Over) {
    in_each_way(over, false, |_| {});
}

pub(crate) fn while_a_command_waits_for_a_buffer(over: Over) {
    in_each_way(over, false, |world| {
        world.keeps = true;
        let (bytes, seen) = capsule(1, 4096);
        world.ends.send(&bytes);
        world.see(&seen);
        let (bytes, seen) = capsule(2, 0);
        world.ends.send(&bytes);
        world.see(&seen);
    });
}

pub(crate) fn while_data_is_pulled(over: Over) {
    in_each_way(over, true, |world| {
        world.ends.host_answers(Answers::Half);
        for cid in 0..3 {
            let from = world.ends.offer(cid, &[(0, 300_000)]);
            world.pull(Tag(cid), &from, 300_000);
        }
        (0..3).for_each(|_| world.turn());
    });
}

fn push_much(world: &mut World) {
    world.ends.host_reads(false);
    let bytes = pattern(2, 700_000);
    for cid in 0..2 {
        let to = world.ends.offer(cid, &[(0, 700_000)]);
        world.push(Tag(cid), &to, &bytes);
    }
    world.flush();
}

pub(crate) fn while_data_is_pushed(over: Over) {
    in_each_way(over, false, |world| {
        push_much(world);
        world.turn_controller();
    });
}

pub(crate) fn while_a_response_leaves(over: Over) {
    in_each_way(over, false, |world| {
        push_much(world);
        world.respond(Tag(0), success(0), true);
        world.respond(Tag(1), success(1), true);
        world.turn_controller();
    });
}

pub(crate) fn while_the_queue_is_full(over: Over) {
    if over.can(
        over.abilities().fills,
        "it takes all that is posted, and is never full",
    ) {
        in_each_way(over, false, |world| {
            fill(world);
            world.respond(Tag(1), success(60), true);
            world.turn_controller();
        });
    }
}

pub(crate) fn what_is_against_the_rules_ends_the_queue(over: Over) {
    let count = World::new(over).ends.offences().len();
    for nth in 0..count {
        let mut world = World::new(over);
        let (what, bytes) = world.ends.offences().remove(nth);
        world.ends.send_raw(&bytes);
        world.take_end();
        let violation = world.seen.iter().find_map(|seen| match seen {
            Seen::Ended(EndReason::Violation(why)) => Some(why.clone()),
            _ => None,
        });
        let why = violation.unwrap_or_else(|| panic!("{over:?}: {what}: {:?}", world.seen));
        assert!(why.contains("expected"), "{over:?}: {what}: {why}");
        if over.abilities().has_pdus {
            world.until("a TermReq", |world| {
                world.turn();
                world.ends.accused().is_some()
            });
        }
        world.ends.host_ends(PeerEnd::Closes);
        world.quiesces(what);
    }
}

pub(crate) fn a_queue_that_has_ended_takes_nothing(over: Over) {
    let mut world = World::new(over);
    let (_, bytes) = world.ends.offences().remove(0);
    world.ends.send_raw(&bytes);
    world.ends.send(&capsule(1, 0).0);
    let is_end = |seen: &Seen| matches!(seen, Seen::Ended(EndReason::Violation(_)));
    world.until("the end", |world| {
        world.turn();
        world.seen.iter().any(is_end)
    });
    world.fence(FenceNumber(1));
    world.see(&Seen::Fenced(FenceNumber(1)));
    let seen = &world.seen;
    assert!(seen.len() == 2 && is_end(&seen[0]), "{over:?}: {seen:?}");
}

pub(crate) fn what_was_responded_arrives_before_an_end_in_order(over: Over) {
    if !over.can(over.abilities().drains, "its ends drop what has not left") {
        return;
    }
    let mut world = World::new(over);
    push_much(&mut world);
    world.respond(Tag(0), success(0), true);
    world.respond(Tag(1), success(1), true);
    world.end(LocalEnd::Closes);
    (0..5).for_each(|_| world.turn());
    assert!(!world.seen.contains(&Seen::Quiesced), "{:?}", world.seen);
    world.ends.host_reads(true);
    let responses = world.responses(2);
    assert!(responses.iter().all(|cqe| cqe.status() == Status::SUCCESS));
    assert!(world.ends.data(0, 700_000) == pattern(2, 700_000));
    world.quiesces("an end in order");
}

/// The time of an end in order begins with it, however long nothing has come before.
pub(crate) fn an_end_in_order_has_its_time_after_a_long_silence(over: Over) {
    if !over.can(over.abilities().drains, "its ends drop what has not left") {
        return;
    }
    let mut world = World::new(over);
    (0..3).for_each(|_| world.ends.wait_long());
    world.turn();
    push_much(&mut world);
    world.respond(Tag(0), success(0), true);
    world.end(LocalEnd::Closes);
    (0..5).for_each(|_| world.turn());
    assert!(!world.seen.contains(&Seen::Quiesced), "{:?}", world.seen);
    world.ends.host_reads(true);
    world.responses(1);
    world.quiesces("an end in order");
}

pub(crate) fn nothing_leaves_after_an_end_at_once(over: Over) {
    let mut world = World::new(over);
    let to = world.ends.offer(1, &[(0, 4096)]);
    world.ends.put_data(0, &[0xAA; 4096]);
    world.push(Tag(1), &to, &pattern(1, 4096));
    let responded = world.queue().respond(Tag(1), &success(1), None, true);
    assert_eq!(responded, Responded::Leaving);
    world.end(LocalEnd::Aborts);
    world.quiesces("an end at once");
    assert!(!world.has_responses());
}

pub(crate) fn a_queue_whose_host_does_nothing_ends_all_the_same(over: Over) {
    for (first, then) in [
        (LocalEnd::Closes, None),
        (LocalEnd::Closes, Some(LocalEnd::Aborts)),
        (LocalEnd::Aborts, None),
    ] {
        let mut world = World::new(over);
        push_much(&mut world);
        world.respond(Tag(0), success(0), true);
        world.end(first);
        (0..5).for_each(|_| world.turn_controller());
        match then {
            Some(then) => world.end(then),
            None => world.ends.wait_long(),
        }
        world.quiesces(&format!("{first:?}, then {then:?}"));
    }
    // The same of a host that has broken the rules, and does not close.
    for then in [None, Some(LocalEnd::Aborts)] {
        let mut world = World::new(over);
        let (what, bytes) = world.ends.offences().remove(0);
        world.ends.send_raw(&bytes);
        world.take_end();
        match then {
            Some(then) => world.end(then),
            None => world.ends.wait_long(),
        }
        world.quiesces(&format!("{what}, then {then:?}"));
    }
}

/// What is posted beyond the send queue is refused: the queue ends, and says why.
pub(crate) fn a_queue_pair_that_refuses_a_work_request_ends_its_queue(over: Over) {
    // Others may complete some before the last is posted.
    if !over.can(over == Over::Loopback, "its send queue empties by itself") {
        return;
    }
    let mut world = World::new(over);
    let to = world.ends.offer(1, &[(0, 512)]);
    for nth in 0..=SEND_WRS {
        let tag = Tag(u16::try_from(nth).expect("few"));
        world.push(tag, &to, &pattern(1, 512));
    }
    world.take_end();
    let reason = world.seen.iter().find_map(|seen| match seen {
        Seen::Ended(EndReason::Lost(why)) => Some(why.clone()),
        _ => None,
    });
    let reason = reason.expect("the queue was lost");
    assert!(reason.contains("posting an RDMA WRITE failed"), "{reason}");
    world.quiesces("a refused work request");
}
