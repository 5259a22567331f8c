//! The memory of a command has its data when the response has come, and is the host's again once
//! nothing can reach it.

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status;
use capstan_transport::host::WindowsClosed;

use super::over::Over;
use super::pattern;
use super::world::{ADMIN, Given, IO, Seen, World, seed, success};

const LENGTHS: [u32; 6] = [1, 512, 4096, 16_384, 100_000, 300_000];

pub(crate) fn data_from_the_controller_has_come_before_its_response(over: Over) {
    let mut world = World::new(over);
    for qid in [IO, ADMIN] {
        for len_bytes in LENGTHS {
            for pieces in [1, 3] {
                let command = world.command(qid, Given::FromController, len_bytes);
                let data = pattern(0x55, len_bytes as usize);
                let piece_bytes = data.len().div_ceil(pieces);
                let mut at = 0;
                for piece in data.chunks(piece_bytes) {
                    let end = at + u32::try_from(piece.len()).expect("a few");
                    let is_last = end == len_bytes;
                    world.controller.push(&command, at, piece, is_last);
                    at = end;
                }
                let there = world.finish(&command);
                let (there, behind) = there.split_at(data.len());
                assert!(there == data, "{over:?}: {len_bytes} bytes in {pieces}");
                let all = pattern(seed(command.sqe.cid.get()), data.len() + behind.len());
                assert!(behind == &all[data.len()..], "{over:?}: {len_bytes} bytes");
            }
        }
    }
}

pub(crate) fn data_to_the_controller_is_what_was_offered(over: Over) {
    let mut world = World::new(over);
    for len_bytes in LENGTHS {
        for pulls in [1, 3] {
            let command = world.command(IO, Given::ToController, len_bytes);
            let there = pattern(seed(command.sqe.cid.get()), len_bytes as usize);
            let part_bytes = len_bytes.div_ceil(pulls);
            let mut came = Vec::new();
            for at in (0..len_bytes).step_by(part_bytes as usize) {
                let pull_bytes = part_bytes.min(len_bytes - at);
                world.controller.pull(&command, at, pull_bytes);
                let mut pulled = Vec::new();
                world.until("a pull", |world| {
                    pulled.extend(world.controller.take_pulled());
                    !pulled.is_empty()
                });
                came.extend(pulled.concat());
            }
            assert!(came == there, "{over:?}: {len_bytes} bytes in {pulls}");
            assert!(world.finish(&command)[..there.len()] == there);
        }
    }
}

pub(crate) fn memory_is_back_once_and_not_before_its_response(over: Over) {
    let mut world = World::new(over);
    for given in [
        Given::None,
        Given::InCapsule,
        Given::ToController,
        Given::FromController,
    ] {
        for invalidates in [false, true] {
            let command = world.command(IO, given, 4096);
            let cid = command.sqe.cid.get();
            match given {
                Given::FromController => world.controller.push(&command, 0, &[9; 4096], true),
                Given::ToController => world.controller.pull(&command, 0, 4096),
                Given::None | Given::InCapsule => {}
            }
            world.quiet_turns();
            assert_eq!(world.seen, [], "{over:?}: {given:?}: before the response");
            world.respond_with(&command, success(&command), invalidates);
            world.see(&Seen::Back(IO, cid));
            world.quiet_turns();
            let expected = [Seen::Response(IO, success(&command)), Seen::Back(IO, cid)];
            assert_eq!(world.seen, expected, "{over:?}: {given:?}");
            world.seen.clear();
            world.controller.take_pulled();
        }
    }
}

pub(crate) fn what_is_beside_an_offer_stays_as_it_is(over: Over) {
    let mut world = World::new(over);
    let part = (4100, 5000);
    for given in [Given::InCapsule, Given::ToController, Given::FromController] {
        let cid = world.send_part(IO, given, part);
        let command = world.commands(1).remove(0);
        let mut expected = pattern(seed(cid), 4100 + 5000 + 4096);
        match given {
            Given::InCapsule => assert!(command.data == expected[4100..9100]),
            Given::ToController => {
                world.controller.pull(&command, 0, 5000);
                let mut pulled = Vec::new();
                world.until("a pull", |world| {
                    pulled.extend(world.controller.take_pulled());
                    !pulled.is_empty()
                });
                assert!(pulled.concat() == expected[4100..9100]);
            }
            _ => {
                world.controller.push(&command, 0, &[0x77; 5000], true);
                expected[4100..9100].fill(0x77);
            }
        }
        let there = world.finish(&command);
        assert!(there[..expected.len()] == expected, "{over:?}: {given:?}");
    }
}

pub(crate) fn keys_are_closed_by_either_end(over: Over) {
    let mut world = World::new(over);
    let mut expected = WindowsClosed::default();
    for invalidates in [true, false, true, true] {
        for given in [Given::None, Given::InCapsule, Given::FromController] {
            let command = world.command(IO, given, 512);
            if given == Given::FromController {
                world.controller.push(&command, 0, &[1; 512], true);
                if world.has_windows() {
                    let by_controller = invalidates && world.invalidates();
                    expected.by_controller += u64::from(by_controller);
                    expected.by_host += u64::from(!by_controller);
                }
            }
            world.respond_with(&command, success(&command), invalidates);
            world.take_back(&command);
            assert_eq!(world.wire.windows_closed(), expected, "{over:?}: {given:?}");
        }
    }
}

/// The status of a command whose response says `sent`, after `data` of 4096 bytes has come.
fn status(world: &mut World, qid: u16, data: &[u8], sent: Status) -> Status {
    let command = world.command(qid, Given::FromController, 4096);
    if !data.is_empty() {
        world.controller.push(&command, 0, data, data.len() == 4096);
    }
    let cid = command.sqe.cid.get();
    world.respond_with(&command, Cqe::new(cid, 0, sent, 0), true);
    world.take_back(&command);
    let response = world.seen.iter().find_map(|seen| match seen {
        Seen::Response(_, cqe) if cqe.cid.get() == cid => Some(cqe.status()),
        _ => None,
    });
    world.seen.clear();
    response.expect("it was answered")
}

pub(crate) fn data_that_came_in_part_is_not_taken_for_whole(over: Over) {
    if !over.can(over.is_tcp(), "how much was written is not known there") {
        return;
    }
    let mut world = World::new(over);
    for data in [&[][..], &[1; 2048]] {
        let io = status(&mut world, IO, data, Status::SUCCESS);
        assert_eq!(io, Status::DATA_TRANSFER_ERROR, "{over:?}");
        let io = status(&mut world, IO, data, Status::INVALID_FIELD);
        assert_eq!(io, Status::INVALID_FIELD, "{over:?}");
        // What a controller leaves out of an Admin command's data is zero.
        let admin = status(&mut world, ADMIN, data, Status::SUCCESS);
        assert_eq!(admin, Status::SUCCESS, "{over:?}");
    }
    let whole = status(&mut world, IO, &[1; 4096], Status::SUCCESS);
    assert_eq!(whole, Status::SUCCESS, "{over:?}");
}

/// How much of the 40,000 bytes of a command the controller asks for before its response, and
/// whether it lets the host send that first.
const TAKES: [(u32, bool); 5] = [
    (0, true),
    (4096, true),
    (20_000, true),
    (40_000, false),
    (40_000, true),
];

pub(crate) fn data_that_was_not_taken_does_not_count_as_written(over: Over) {
    if !over.can(over.is_tcp(), "the host does not see what is read there") {
        return;
    }
    let mut world = World::new(over);
    for qid in [IO, ADMIN] {
        for ((asked_bytes, waits), sent) in TAKES
            .into_iter()
            .flat_map(|takes| [Status::SUCCESS, Status::INVALID_FIELD].map(|sent| (takes, sent)))
        {
            let command = world.command(qid, Given::ToController, 40_000);
            if asked_bytes > 0 {
                world.controller.pull(&command, 0, asked_bytes);
            }
            if asked_bytes > 0 && waits {
                let mut pulled = Vec::new();
                world.until("what is pulled", |world| {
                    pulled.extend(world.controller.take_pulled());
                    !pulled.is_empty()
                });
            }
            let cid = command.sqe.cid.get();
            world.respond_with(&command, Cqe::new(cid, 0, sent, 0), true);
            world.take_back(&command);
            let response = world.seen.iter().find_map(|seen| match seen {
                Seen::Response(_, cqe) if cqe.cid.get() == cid => Some(cqe.status()),
                _ => None,
            });
            let expected = match (sent, asked_bytes, waits) {
                (Status::SUCCESS, 40_000, true) => Status::SUCCESS,
                (Status::SUCCESS, ..) => Status::DATA_TRANSFER_ERROR,
                (failed, ..) => failed,
            };
            let what = format!("{over:?}: {qid}: {asked_bytes} {waits} {sent:?}");
            assert_eq!(response, Some(expected), "{what}");
            world.seen.clear();
            // What is still pulled has to leave, so that the next pull is told from it.
            world.quiet_turns();
            world.controller.take_pulled();
        }
    }
}

pub(crate) fn data_that_does_not_fit_its_digest_fails_its_command_alone(over: Over) {
    if !over.can(over == Over::TcpWithDigests, "it has no digests") {
        return;
    }
    let mut world = World::new(over);
    world.controller.corrupts_data();
    for qid in [IO, ADMIN] {
        let corrupt = status(&mut world, qid, &[1; 4096], Status::SUCCESS);
        assert_eq!(corrupt, Status::TRANSIENT_TRANSPORT_ERROR);
        // The controller's own error says more.
        let failed = status(&mut world, qid, &[1; 4096], Status::INVALID_FIELD);
        assert_eq!(failed, Status::INVALID_FIELD);
        let command = world.command(qid, Given::InCapsule, 512);
        world.finish(&command);
    }
}
