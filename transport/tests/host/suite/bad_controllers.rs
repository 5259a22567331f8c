//! Controllers that break the rules: no memory changes that they were not offered, and what a wire
//! can notice ends the queue.

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status;

use super::over::{Command, Over};
use super::pattern;
use super::world::{Given, IO, Seen, World, seed, success};

pub(crate) fn responses_of_no_command(over: Over) {
    for what in [
        "never sent",
        "of another command in its slot",
        "answered before",
    ] {
        let mut world = World::new(over);
        let command = world.command(IO, Given::FromController, 4096);
        let cid = command.sqe.cid.get();
        let wrong = match what {
            "never sent" => 0xFC05,
            "answered before" => {
                let before = world.command(IO, Given::None, 0);
                world.finish(&before);
                before.sqe.cid.get()
            }
            _ => cid ^ 0x8000,
        };
        world.seen.clear();
        world.respond_with(&command, Cqe::new(wrong, 0, Status::SUCCESS, 0), false);
        if over.is_tcp() {
            let (is_violation, why) = world.see_end(IO, what);
            assert!(is_violation && why.contains("expected"), "{what}: {why}");
            world.until("a TermReq", |world| {
                world.controller.accusation(IO).is_some()
            });
        } else {
            // It is the user's to know its commands.
            world.see(&Seen::Stray(IO, wrong));
        }
        assert_eq!(world.seen.len(), 1, "{over:?}: {what}: {:?}", world.seen);
        assert!(world.peek(&command) == as_it_was(&command, world.peek(&command).len()));
        world.close(false, &[command], what);
    }
}

/// What the memory of a command had at first.
fn as_it_was(command: &Command, len: usize) -> Vec<u8> {
    pattern(seed(command.sqe.cid.get()), len)
}

pub(crate) fn messages_that_are_against_the_rules_end_the_queue(over: Over) {
    for nth in 0.. {
        let mut world = World::new(over);
        let read = world.command(IO, Given::FromController, 4096);
        let write = world.command(IO, Given::ToController, 4096);
        let mut offences = world.controller.offences(&read, &write);
        if nth >= offences.len() {
            return;
        }
        let (what, bytes) = offences.remove(nth);
        world.controller.send_raw(IO, &bytes);
        let (is_violation, why) = world.see_end(IO, what);
        // The device itself ends a connection over which too much comes.
        let is_known = over.is_tcp() || bytes.len() <= 16;
        assert_eq!(is_violation, is_known, "{over:?}: {what}: {why}");
        assert!(
            !is_known || why.contains("expected"),
            "{over:?}: {what}: {why}"
        );
        if over.is_tcp() {
            // As its user does, which sends nothing more on a queue that has ended.
            world.wire.close(false);
            world.until("the end", |world| world.controller.has_ended(IO));
            let accusation = world.controller.accusation(IO);
            assert!(accusation.is_some(), "{over:?}: {what}");
        }
        world.close(false, &[read, write], what);
    }
}

/// The controller has done what reaches no memory: its queue has ended.
fn ends(world: &mut World, what: &str) {
    let (is_violation, why) = world.see_end(IO, what);
    let over = world.over;
    assert!(is_violation || !over.is_tcp(), "{over:?}: {what}: {why}");
}

/// Whether what a controller may reach ends with its command; it says so where it does not.
fn has_keys(world: &World) -> bool {
    let over = world.over;
    let is_able = over.is_tcp() || world.has_windows();
    over.can(
        is_able,
        "without memory windows the whole data memory is open",
    )
}

pub(crate) fn data_behind_its_response_reaches_no_memory(over: Over) {
    for invalidates in [false, true] {
        let mut world = World::new(over);
        if !has_keys(&world) {
            return;
        }
        let command = world.command(IO, Given::FromController, 8192);
        let key = (IO, command.sqe.cid.get());
        world.controller.push(&command, 0, &[1; 8192], true);
        world.respond_with(&command, success(&command), invalidates);
        world.see(&Seen::Back(key.0, key.1));
        let buffer = world.back.get_mut(&key).expect("it is back");
        let scribble = pattern(0xEE, buffer.len_bytes() as usize);
        buffer.copy_from(0, &scribble);
        world.controller.push(&command, 0, &[2; 8192], true);
        ends(&mut world, "data behind its response");
        let is_so = world.peek(&command) == scribble;
        assert!(is_so, "{over:?}: something has landed");
        world.close(false, &[command], "data behind its response");
    }
}

pub(crate) fn data_beyond_an_offer_reaches_no_memory(over: Over) {
    let mut world = World::new(over);
    if !has_keys(&world) {
        return;
    }
    let command = world.command(IO, Given::FromController, 4096);
    world.controller.push(&command, 0, &[1; 2048], false);
    world.controller.push(&command, 4096, &[2; 512], true);
    ends(&mut world, "data beyond an offer");
    let there = world.peek(&command);
    let expected = as_it_was(&command, there.len());
    assert!(there[4096..] == expected[4096..], "{over:?}");
    world.close(false, &[command], "data beyond an offer");
}

pub(crate) fn an_offer_is_written_or_read_and_not_both(over: Over) {
    for given in [Given::ToController, Given::FromController] {
        let mut world = World::new(over);
        if !has_keys(&world) {
            return;
        }
        let command = world.command(IO, given, 4096);
        match given {
            Given::ToController => world.controller.push(&command, 0, &[1; 4096], true),
            _ => world.controller.pull(&command, 0, 4096),
        }
        ends(&mut world, "the other direction");
        (0..5).for_each(|_| world.controller.turn());
        assert!(world.controller.take_pulled().is_empty(), "{over:?}");
        let there = world.peek(&command);
        assert!(
            there == as_it_was(&command, there.len()),
            "{over:?}: {given:?}"
        );
        world.close(false, &[command], "the other direction");
    }
}
