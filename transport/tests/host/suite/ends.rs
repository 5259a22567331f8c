//! However queues end, and whatever their commands do then: one event says so, and when they are
//! closed nothing can land any more.

use super::harness::PeerEnd;
use super::over::{Command, Over};
use super::world::{ADMIN, Given, IO, World};

/// What ends the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Controller(PeerEnd),
    /// The controller breaks the rules.
    Violation,
    /// This side closes its queues.
    Host {
        orderly: bool,
    },
}

const CAUSES: [Cause; 6] = [
    Cause::Controller(PeerEnd::Closes),
    Cause::Controller(PeerEnd::Resets),
    Cause::Controller(PeerEnd::Terminates),
    Cause::Violation,
    Cause::Host { orderly: true },
    Cause::Host { orderly: false },
];

impl Cause {
    /// Whether there is such an end of that wire, in the middle of data or not.
    fn is_of(self, over: Over, is_in_data: bool) -> bool {
        match self {
            Self::Controller(PeerEnd::Terminates) => over.is_tcp() && !is_in_data,
            // In the middle of a PDU there is no other.
            Self::Violation => !(over.is_tcp() && is_in_data),
            _ => true,
        }
    }
}

/// Ends a queue in each way, after `begin` has brought it into a state.
fn in_each_way(over: Over, is_in_data: bool, begin: fn(&mut World) -> Vec<Command>) {
    for cause in CAUSES {
        if !cause.is_of(over, is_in_data) {
            continue;
        }
        let mut world = World::new(over);
        let commands = begin(&mut world);
        let what = format!("{cause:?}");
        match cause {
            Cause::Controller(how) => {
                world.controller.ends(IO, how);
                world.see_end(IO, &what);
            }
            Cause::Violation => {
                let offence = match over.is_tcp() {
                    true => b"HTTP/1.1 400 Bad Request".to_vec(),
                    false => vec![0; 10],
                };
                world.controller.send_raw(IO, &offence);
                let (is_violation, why) = world.see_end(IO, &what);
                assert!(is_violation, "{over:?}: {why}");
            }
            Cause::Host { .. } => {}
        }
        let orderly = cause == Cause::Host { orderly: true };
        world.close(orderly, &commands, &what);
    }
}

pub(crate) fn while_nothing_is_under_way(over: Over) {
    in_each_way(over, false, |_| Vec::new());
}

/// One command of each kind, and two that have much data.
fn some(world: &mut World) -> Vec<Command> {
    [
        (IO, Given::None, 0),
        (IO, Given::InCapsule, 4096),
        (IO, Given::ToController, 300_000),
        (IO, Given::FromController, 300_000),
        (ADMIN, Given::FromController, 4096),
    ]
    .map(|(qid, given, len_bytes)| world.command(qid, given, len_bytes))
    .into()
}

pub(crate) fn while_commands_are_outstanding(over: Over) {
    in_each_way(over, false, some);
}

pub(crate) fn while_data_comes(over: Over) {
    in_each_way(over, true, |world| {
        let commands = some(world);
        world.controller.push_half(&commands[3], &[5; 300_000]);
        (0..3).for_each(|_| world.turn());
        commands
    });
}

pub(crate) fn while_data_is_asked_for(over: Over) {
    in_each_way(over, false, |world| {
        let commands = some(world);
        world.controller.reads(false);
        world.controller.pull(&commands[2], 0, 300_000);
        (0..3).for_each(|_| world.turn());
        commands
    });
}

pub(crate) fn while_a_response_comes(over: Over) {
    in_each_way(over, false, |world| {
        let commands = some(world);
        world.controller.push(&commands[3], 0, &[5; 300_000], true);
        for command in &commands[..4] {
            world.respond(command);
        }
        (0..3).for_each(|_| world.controller.turn());
        commands
    });
}

pub(crate) fn while_nothing_is_read(over: Over) {
    in_each_way(over, false, |world| {
        world.controller.reads(false);
        for _ in 0..40 {
            if world.wire.has_room(IO) {
                world.send(IO, Given::InCapsule, 8192);
            }
            world.turn();
        }
        Vec::new()
    });
}

pub(crate) fn an_end_is_of_its_queue(over: Over) {
    for qid in [ADMIN, IO] {
        for how in [PeerEnd::Closes, PeerEnd::Resets] {
            let mut world = World::new(over);
            let command = world.command(qid, Given::FromController, 4096);
            world.controller.ends(qid, how);
            let what = format!("{how:?} of {qid}");
            let (is_violation, why) = world.see_end(qid, &what);
            assert!(!is_violation && !why.is_empty(), "{over:?}: {what}: {why}");
            world.close(false, &[command], &what);
        }
    }
}

pub(crate) fn what_was_not_flushed_never_leaves(over: Over) {
    let mut world = World::new(over);
    for given in [Given::None, Given::InCapsule, Given::FromController] {
        world.send(IO, given, 512);
    }
    world.close(false, &[], "before a flush");
    let commands = world.controller.take_commands();
    assert!(commands.is_empty(), "{over:?}: {commands:?}");
}

pub(crate) fn what_was_sent_arrives_before_an_end_in_order(over: Over) {
    if !over.can(over.is_tcp(), "its ends drop what has not left") {
        return;
    }
    let mut world = World::new(over);
    world.controller.reads(false);
    for _ in 0..5 {
        world.send(IO, Given::InCapsule, 4096);
    }
    world.turn();
    world.close(true, &[], "in order");
    let commands = world.controller.take_commands();
    assert_eq!(commands.len(), 5, "{over:?}");
    world.until("the end", |world| world.controller.has_ended(IO));
    assert!(!world.controller.was_reset(IO), "{over:?}");
}
