//! Connections are made, or there is one event that says why not.

use super::over::{Over, REFUSAL, Welcome};
use super::world::{ADMIN, ENTRIES, Given, IO, OPEN_US, Seen, World};

pub(crate) fn a_queue_that_is_connected_takes_commands(over: Over) {
    let mut world = World::unconnected(over);
    assert_eq!(world.wire.connections(), 0);
    assert!(!world.wire.has_room(ADMIN));
    assert!(world.try_send(ADMIN, Given::None, (0, 0)).is_err());
    world.connect(ADMIN);
    assert_eq!(world.wire.connections(), 1);
    assert!(world.wire.has_room(ADMIN) && !world.wire.has_room(IO));
    assert!(world.try_send(IO, Given::None, (0, 0)).is_err());
    world.connect(IO);
    assert_eq!(world.wire.connections(), 2);
    for qid in [ADMIN, IO] {
        assert!(world.wire.has_room(qid) && world.wire.takes_in_capsule());
        let command = world.command(qid, Given::None, 0);
        world.finish(&command);
    }
}

/// Turns until connecting has failed. Nothing else happens, and the next attempt succeeds.
fn fails(world: &mut World, what: &str) -> Seen {
    let is_it = |seen: &Seen| matches!(seen, Seen::OpenFailed(ADMIN, _) | Seen::Rejected(ADMIN, _));
    world.until(what, |world| world.seen.iter().any(is_it));
    world.quiet_turns();
    let over = world.over;
    assert_eq!(world.seen.len(), 1, "{over:?}: {what}: {:?}", world.seen);
    assert_eq!(world.wire.connections(), 0);
    let seen = world.seen.remove(0);
    world.connect(ADMIN);
    seen
}

pub(crate) fn nothing_listens_there(over: Over) {
    let mut world = World::unconnected(over);
    let nowhere = world.controller.silent_address();
    world.open(ADMIN, nowhere, OPEN_US);
    fails(&mut world, "nothing listens");
}

pub(crate) fn a_controller_refuses_the_connection(over: Over) {
    let mut world = World::unconnected(over);
    world.controller.expects(ADMIN, Welcome::Refuses);
    let address = world.controller.address();
    world.open(ADMIN, address, OPEN_US);
    match fails(&mut world, "a refusal") {
        // Some wires fill up what the controller says.
        Seen::Rejected(_, why) if !over.is_tcp() => assert!(why.starts_with(REFUSAL), "{why:?}"),
        Seen::OpenFailed(_, why) if over.is_tcp() => {
            assert!(
                why.starts_with("NoIcResp") && why.contains("is_mute: true"),
                "{why}"
            );
        }
        seen => panic!("{over:?}: {seen:?}"),
    }
}

pub(crate) fn a_controller_that_does_nothing_has_its_time(over: Over) {
    let mut world = World::unconnected(over);
    world.controller.expects(ADMIN, Welcome::Waits);
    let address = world.controller.address();
    let start_us = world.controller.now_us();
    world.open(ADMIN, address, 300_000);
    match fails(&mut world, "silence") {
        // Over verbs nothing tells a target that is silent from one that cannot be reached.
        Seen::OpenFailed(_, why) => {
            assert!(why.contains("Timeout") || why.contains("Silent"), "{why}");
        }
        seen => panic!("{over:?}: {seen:?}"),
    }
    let passed_us = world.controller.now_us() - start_us;
    assert!(passed_us >= 300_000, "{passed_us} microseconds");
}

pub(crate) fn a_queue_that_is_given_up_has_no_events(over: Over) {
    for turns in 0.. {
        let mut world = World::unconnected(over);
        world.controller.expects(ADMIN, Welcome::Accepts);
        let address = world.controller.address();
        world.open(ADMIN, address, OPEN_US);
        (0..turns).for_each(|_| world.turn());
        if !world.seen.is_empty() {
            // It was connected by then, after at least one turn.
            assert!(turns > 0, "{over:?}");
            return;
        }
        world.wire.close(turns % 2 == 0);
        world.quiet_turns();
        assert_eq!(world.seen, [], "{over:?}: given up after {turns} turns");
        world.connect(ADMIN);
    }
}

pub(crate) fn queues_are_connected_again_after_a_close(over: Over) {
    let mut world = World::new(over);
    for round in 0..3 {
        // What is under way belongs to the connections before.
        let commands: Vec<_> = (0..5)
            .map(|_| world.command(IO, Given::FromController, 512))
            .collect();
        world.send(ADMIN, Given::InCapsule, 512);
        world.close(false, &commands, "an association");
        world.controller.take_commands();
        world.connect(ADMIN);
        world.connect(IO);
        world.seen.clear();
        for _ in 0..ENTRIES {
            let command = world.command(IO, Given::InCapsule, 100);
            world.finish(&command);
        }
        let others = world
            .seen
            .iter()
            .filter(|seen| !matches!(seen, Seen::Response(IO, _) | Seen::Back(IO, _)));
        assert_eq!(others.count(), 0, "{over:?}: {round}: {:?}", world.seen);
    }
}
