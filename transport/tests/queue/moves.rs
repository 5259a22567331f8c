//! Data comes whole and is told of then; responses come behind what was pushed for them.

use capstan_memory::{Pages, Pool};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status;
use capstan_transport::{Responded, Source, Tag};
use zerocopy::IntoBytes;

use super::over::{Answers, Over, Seen};
use super::rdma::ZEROES_BYTES;
use super::world::World;
use super::{pattern, success};

pub(crate) fn a_pull_has_come_when_it_is_told_of(over: Over) {
    let mut world = World::new(over);
    let there = pattern(9, 100_000);
    world.ends.put_data(0, &there);
    let parts = [(0, 70_000), (70_000, 30_000)];
    let has_lists = over.abilities().has_lists;
    let from = match has_lists {
        true => world.ends.offer(7, &parts),
        false => world.ends.offer(7, &[(0, 100_000)]),
    };
    world.pull(Tag(3), &from, 100_000);
    world.see(&Seen::Pulled(Tag(3)));
    assert!(world.buffer_bytes(Tag(3), 100_000) == there);
    assert_eq!(world.seen.len(), 1);
}

pub(crate) fn several_pulls_come_each_to_its_sink(over: Over) {
    let mut world = World::new(over);
    let lengths = [1, 512, 4096, 16_384, 100_000, 65_537, 3];
    let pulls = (0..).zip(lengths);
    // Nothing is answered before all of it is asked for.
    world.ends.host_reads(false);
    for (nth, len_bytes) in pulls.clone() {
        let at = u32::from(nth) * 128 * 1024;
        world
            .ends
            .put_data(at, &pattern(seed(nth), len_bytes as usize));
        let from = world.ends.offer(100 + nth, &[(at, len_bytes)]);
        world.pull(Tag(nth), &from, len_bytes);
    }
    world.turn_controller();
    world.ends.host_reads(true);
    world.until("all pulls", |world| {
        world.turn();
        world.seen.len() == lengths.len()
    });
    for (nth, len_bytes) in pulls {
        assert!(
            world.seen.contains(&Seen::Pulled(Tag(nth))),
            "{:?}",
            world.seen
        );
        let there = pattern(seed(nth), len_bytes as usize);
        assert!(world.buffer_bytes(Tag(nth), len_bytes) == there, "{nth}");
    }
}

fn seed(nth: u16) -> u8 {
    u8::try_from(nth).expect("few")
}

pub(crate) fn a_response_comes_behind_what_was_pushed(over: Over) {
    let mut world = World::new(over);
    for (nth, len_bytes) in (0..).zip([1, 512, 4096, 16_384, 65_536, 300_000]) {
        let here = pattern(seed(nth), len_bytes as usize);
        let to = world.ends.offer(77, &[(4096, len_bytes)]);
        world.push(Tag(1), &to, &here);
        world.respond(Tag(1), success(77), true);
        let [response] = world.responses(1)[..] else {
            panic!("one response");
        };
        assert_eq!(
            (response.cid.get(), response.status()),
            (77, Status::SUCCESS)
        );
        let there = world.ends.data(4096, len_bytes);
        assert!(there == here, "{len_bytes} bytes: data behind its response");
        world.see(&Seen::Released(Tag(1)));
        // The buffer is back.
        assert!(world.buffer_bytes(Tag(1), len_bytes) == here);
        world.seen.clear();
    }
}

pub(crate) fn what_is_pushed_without_a_buffer_comes_before_its_response(over: Over) {
    let can = over.abilities();
    let here = pattern(5, 8192);
    let memory = Pool::new(1 << 20, Pages::Ordinary).expect("memory");
    let mut held = memory.take(8192).expect("memory");
    assert_eq!(
        held.addr(),
        memory.slab().addr(),
        "the first is at the start"
    );
    held.copy_from(0, &here);
    for (copies, is_able) in [(true, can.copies), (false, can.holds)] {
        let mut world = World::new(over);
        let to = world.ends.offer(3, &[(8192, 8192)]);
        let pushed = match copies {
            true => world.push_copy(&to, &here),
            false => world.push_held(&to, memory.slab()),
        };
        assert_eq!(pushed, if is_able { Ok(()) } else { Err(false) });
        let responded = world.queue().respond(Tag(0), &success(3), None, false);
        assert_eq!(responded == Responded::Released, can.releases_at_once);
        world.flush();
        if !is_able || responded == Responded::Leaving {
            continue;
        }
        let responses = world.responses(1);
        assert_eq!(responses[0].cid.get(), 3);
        assert!(
            world.ends.data(8192, 8192) == here,
            "data behind its response"
        );
        assert_eq!(world.seen, [], "nothing is left to be told of");
    }
}

pub(crate) fn zeroes_come_before_their_response(over: Over) {
    let mut world = World::new(over);
    for len_bytes in [1, 512, 4096, 16_384, 65_536] {
        world.ends.put_data(0, &pattern(1, 65_536));
        let to = world.ends.offer(4, &[(0, len_bytes)]);
        // As with other memory that is held, or else with a work request.
        let can = over.abilities();
        let is_gone = world.push_zeroes(&to);
        assert_eq!(is_gone, can.holds || can.copies && !can.has_lists);
        world.respond(Tag(4), success(4), true);
        world.responses(1);
        assert!(world.ends.data(0, len_bytes).iter().all(|byte| *byte == 0));
        world.see(&Seen::Released(Tag(4)));
        world.seen.clear();
    }
}

pub(crate) fn a_piece_is_told_of_when_it_has_left(over: Over) {
    let mut world = World::new(over);
    let here = pattern(6, 6000);
    let to = world.ends.offer(5, &[(100, 6000)]);
    world.push_piece(Tag(2), &to, &here[..4096], false);
    world.flush();
    world.until_back(Tag(2));
    assert_eq!(world.seen, []);
    world.push_piece(Tag(2), &to.behind(4096), &here[4096..], true);
    world.respond(Tag(2), success(5), true);
    world.responses(1);
    assert!(
        world.ends.data(100, 6000) == here,
        "data behind its response"
    );
    world.see(&Seen::Released(Tag(2)));
}

/// What a command returns may be shorter than the data buffer of its host.
pub(crate) fn the_last_piece_fills_the_data_buffer_where_the_queue_says_so(over: Over) {
    let mut world = World::new(over);
    let (there, here) = (pattern(2, 6000), pattern(6, 1000));
    world.ends.put_data(0, &there);
    let to = world.ends.offer(5, &[(0, 6000)]);
    let fills = world.queue().fills_data_buffer();
    assert_eq!(fills, over.rdma().is_none());
    world.push_piece(Tag(2), &to, &here, true);
    world.respond(Tag(2), success(5), true);
    world.responses(1);
    let rest = if fills { &[0; 5000] } else { &there[1000..] };
    assert!(world.ends.data(0, 6000) == [&here, rest].concat());
}

pub(crate) fn a_response_is_what_was_responded(over: Over) {
    let mut world = World::new(over);
    let failed = Cqe::new(0xABCD, 7, Status::INVALID_FIELD, 0);
    let told = Cqe::new(9, 8, Status::SUCCESS, 0).with_result(0x0123_4567_89AB_CDEF);
    // A result and an error are told also behind data.
    for cqe in [failed, told] {
        let to = world.ends.offer(cqe.cid.get(), &[(0, 512)]);
        world.push(Tag(1), &to, &pattern(1, 512));
        world.respond(Tag(1), cqe, true);
        assert_eq!(world.responses(1)[0].as_bytes(), cqe.as_bytes());
        world.see(&Seen::Released(Tag(1)));
        world.seen.clear();
    }
}

/// Pushes without a buffer until the queue takes no more.
pub(crate) fn fill(world: &mut World) -> usize {
    let can = world.over.abilities();
    // What is copied is short of what has a place of its own.
    let len_bytes = if can.copies { 8192 } else { 1 << 20 };
    let memory = Pool::new(2 << 20, Pages::Ordinary).expect("memory");
    let to = world.ends.offer(60, &[(0, len_bytes)]);
    let bytes = pattern(8, len_bytes as usize);
    world.ends.host_reads(false);
    assert!(!world.queue().has_backlog());
    let mut pushed = 0;
    let refused = loop {
        let taken = match can.copies {
            true => world.push_copy(&to, &bytes),
            false => world.push_held(&to, memory.slab()),
        };
        if taken.is_err() {
            break taken;
        }
        world.flush();
        pushed += 1;
        assert!(pushed < 10_000, "a queue that is never full");
    };
    assert_eq!(refused, Err(true), "there is to be room again");
    // Over RDMA what needs a buffer waits at the queue pair.
    assert_eq!(world.queue().has_backlog(), world.over.rdma().is_none());
    assert!(pushed > 0 && world.queue().awaits_host());
    pushed
}

pub(crate) fn a_queue_that_is_full_takes_more_when_something_has_left(over: Over) {
    let can = over.abilities();
    if !over.can(can.fills, "it takes all that is posted, and is never full") {
        return;
    }
    let mut world = World::new(over);
    for _ in 0..2 {
        fill(&mut world);
        // Nothing of it is told while the host does not read.
        (0..10).for_each(|_| world.turn());
        assert_eq!(world.seen, []);
        world.ends.host_reads(true);
        world.until("room", |world| {
            world.turn();
            world.seen.contains(&Seen::Room)
        });
        let rooms = world.seen.iter().filter(|seen| **seen == Seen::Room);
        assert_eq!(rooms.count(), 1, "{:?}", world.seen);
        // All of it arrives, and the response behind it.
        world.respond(Tag(1), success(61), true);
        world.responses(1);
        world.see(&Seen::Released(Tag(1)));
        world.seen.clear();
    }
}

pub(crate) fn the_last_responses_are_told_of_when_that_is_asked_for(over: Over) {
    let mut world = World::new(over);
    for slot in 0..5 {
        world.respond(Tag(slot), success(slot), false);
    }
    world.responses(5);
    let told = usize::from(over.abilities().releases_at_once) * 5;
    assert_eq!(world.seen.len(), told);
    assert_eq!(world.queue().is_drained(5 - told), told == 5);
    world.flush();
    world.see(&Seen::Released(Tag(4)));
    let released: Vec<_> = (0..5).map(|slot| Seen::Released(Tag(slot))).collect();
    assert_eq!(world.seen, released);
    world.until("all has left", |world| {
        world.turn();
        world.queue().is_drained(0)
    });
}

/// The wire has so many zeroes, and takes no more than those.
pub(crate) fn more_zeroes_than_the_wire_has_come_back(over: Over) {
    if !over.can(over.rdma().is_some(), "it makes as many as are asked for") {
        return;
    }
    let mut world = World::new(over);
    let to = world.ends.offer(1, &[(0, ZEROES_BYTES + 1)]);
    let pushed = world.queue().push(&to, Source::Zeroes(ZEROES_BYTES + 1));
    let full = pushed.expect_err("it has fewer");
    assert!(!full.until_room, "{over:?}: {full:?}");
}

/// As many R2Ts of a command are outstanding as the host allows, and no more.
pub(crate) fn a_pull_in_parts_has_as_many_outstanding_as_the_host_takes(over: Over) {
    let has_pdus = over.abilities().has_pdus;
    if !over.can(has_pdus, "a pull is as many reads as its memory has parts") {
        return;
    }
    let most = if over == Over::TcpInParts { 4 } else { 1 };
    let mut world = World::new(over);
    let there = pattern(3, 200_000);
    world.ends.put_data(0, &there);
    let from = world.ends.offer(1, &[(0, 200_000)]);
    world.ends.host_answers(Answers::All);
    world.pull(Tag(0), &from, 200_000);
    world.see(&Seen::Pulled(Tag(0)));
    assert!(world.buffer_bytes(Tag(0), 200_000) == there);
    assert_eq!(world.ends.most_asked(), most, "{over:?}");
}
