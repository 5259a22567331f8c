//! Command capsules come whole and in order, and so do responses.

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use zerocopy::IntoBytes;

use super::over::{Command, Over};
use super::pattern;
use super::world::{ADMIN, ENTRIES, Given, IO, Seen, World, seed, sqe};

/// Whether a command is as it was sent, its data pointer included.
fn check(over: Over, command: &Command, cid: u16, given: Given, len_bytes: u32) {
    let mut expected = sqe(cid);
    expected.dptr = command.sqe.dptr;
    assert!(command.sqe == expected, "{over:?}: {command:?}");
    let in_capsule = match given {
        Given::InCapsule => pattern(seed(cid), len_bytes as usize),
        _ => Vec::new(),
    };
    assert!(command.data == in_capsule, "{over:?}: {given:?}: its data");
    let sgl = command.sqe.sgl().expect("an SGL");
    let is_right = match (given, sgl) {
        (Given::None, Sgl::Keyed { length_bytes, .. } | Sgl::Transport { length_bytes }) => {
            length_bytes == 0
        }
        (Given::None, _) => command.sqe.dptr == Sgl::EMPTY.encode(),
        (
            Given::InCapsule,
            Sgl::InCapsule {
                offset_bytes,
                length_bytes,
            },
        ) => (offset_bytes, length_bytes) == (0, len_bytes),
        (Given::ToController | Given::FromController, Sgl::Keyed { length_bytes, .. }) => {
            !over.is_tcp() && length_bytes == len_bytes
        }
        (Given::ToController | Given::FromController, Sgl::Transport { length_bytes }) => {
            over.is_tcp() && length_bytes == len_bytes
        }
        _ => false,
    };
    assert!(
        is_right,
        "{over:?}: {given:?} of {len_bytes} bytes: {sgl:?}"
    );
}

/// Whether it is 512 bytes that the controller reaches.
fn has_memory(sgl: Sgl) -> bool {
    matches!(
        sgl,
        Sgl::Keyed {
            length_bytes: 512,
            ..
        } | Sgl::Transport { length_bytes: 512 }
    )
}

pub(crate) fn commands_arrive_whole_and_in_order(over: Over) {
    let mut world = World::new(over);
    let given = [
        (Given::None, 0),
        (Given::InCapsule, 1),
        (Given::ToController, 4096),
        (Given::InCapsule, 512),
        (Given::FromController, 8192),
        (Given::InCapsule, 8191),
        (Given::InCapsule, 8192),
        (Given::None, 0),
    ];
    // More than the rings of capsules and work requests have.
    for _ in 0..40 {
        let cids = given.map(|(given, len_bytes)| world.send(IO, given, len_bytes));
        let commands = world.commands(given.len());
        assert_eq!(commands.len(), given.len());
        for ((command, cid), (given, len_bytes)) in commands.iter().zip(cids).zip(given) {
            check(over, command, cid, given, len_bytes);
            world.finish(command);
        }
    }
}

pub(crate) fn responses_are_what_was_sent(over: Over) {
    let mut world = World::new(over);
    for _ in 0..3 {
        for _ in 0..8 {
            world.send(IO, Given::None, 0);
        }
        let mut expected = Vec::new();
        // In another order than the commands.
        for (nth, command) in (0..).zip(world.commands(8).iter().rev()) {
            let cid = command.sqe.cid.get();
            let cqe = match nth % 3 {
                0 => Cqe::new(cid, nth, Status::INVALID_FIELD, 0),
                1 => Cqe::new(cid, nth, Status::SUCCESS, 0).with_result(0x0123_4567_89AB_CDEF),
                _ => Cqe::new(cid, 0xFFFF, Status::ABORT_REQUESTED, 7),
            };
            world.respond_with(command, cqe, false);
            expected.push(cqe.as_bytes().to_vec());
        }
        let mut responses = Vec::new();
        world.until("responses", |world| {
            responses.extend(world.seen.drain(..).filter_map(|seen| match seen {
                Seen::Response(IO, cqe) => Some(cqe.as_bytes().to_vec()),
                Seen::Back(IO, _) => None,
                other => panic!("{over:?}: {other:?}"),
            }));
            responses.len() >= 8
        });
        assert!(responses == expected, "{over:?}: {responses:?}");
    }
}

pub(crate) fn queues_are_apart(over: Over) {
    let mut world = World::new(over);
    // The same CID and the same slot in both.
    let admin = world.command(ADMIN, Given::FromController, 512);
    let io = world.command(IO, Given::FromController, 512);
    assert_eq!(admin.sqe.cid, io.sqe.cid);
    world.controller.push(&io, 0, &[0x11; 512], true);
    assert!(world.finish(&io)[..512] == [0x11; 512]);
    let is_admin = |seen: &&Seen| matches!(seen, Seen::Response(ADMIN, _) | Seen::Back(ADMIN, _));
    assert!(
        !world.seen.iter().any(|seen| is_admin(&seen)),
        "{:?}",
        world.seen
    );
    assert!(world.peek(&admin)[..512] == pattern(seed(admin.sqe.cid.get()), 512));
    world.controller.push(&admin, 0, &[0x22; 512], true);
    assert!(world.finish(&admin)[..512] == [0x22; 512]);
}

pub(crate) fn a_queue_takes_one_command_less_than_it_has_entries(over: Over) {
    let mut world = World::new(over);
    for _ in 0..3 {
        world.controller.reads(false);
        for nth in 0..ENTRIES - 1 {
            assert!(world.wire.has_room(IO), "{over:?}: {nth} commands");
            let given = match nth % 2 {
                0 => Given::FromController,
                _ => Given::None,
            };
            world.send(IO, given, u32::from((nth + 1) % 2) * 512);
        }
        (0..5).for_each(|_| world.turn());
        world.controller.reads(true);
        let commands = world.commands(usize::from(ENTRIES) - 1);
        for command in &commands {
            if matches!(command.sqe.sgl(), Ok(sgl) if has_memory(sgl)) {
                world.controller.push(command, 0, &[0x33; 512], true);
            }
            world.respond(command);
        }
        for command in &commands {
            world.take_back(command);
        }
    }
}

pub(crate) fn a_queue_that_is_full_takes_more_when_something_has_left(over: Over) {
    if !over.can(over.is_tcp(), "it takes all that its entries allow") {
        return;
    }
    let mut world = World::new(over);
    for _ in 0..2 {
        world.controller.reads(false);
        let mut sent = Vec::new();
        while world.wire.has_room(IO) {
            sent.push(world.send(IO, Given::InCapsule, 8192));
        }
        assert!(world.try_send(IO, Given::InCapsule, (0, 8192)).is_err());
        assert!(world.wire.has_room(ADMIN), "the queues are apart");
        world.controller.reads(true);
        world.until("room", |world| world.wire.has_room(IO));
        let commands = world.commands(sent.len());
        for (command, cid) in commands.iter().zip(sent) {
            check(over, command, cid, Given::InCapsule, 8192);
            world.finish(command);
        }
    }
}
