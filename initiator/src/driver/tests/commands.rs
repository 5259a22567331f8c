//! Commands, their data, and the answers to them.

use capstan_memory::Buffer;
use capstan_nvme_proto::command::IoCommand;
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;

use super::World;
use super::peer::Manner;
use crate::driver::io::{Io, Op, Source, SubmitError};
use crate::error::IoError;
use crate::host::{CommandData, Event};
use crate::scripted::{LBA_BYTES, NSZE_LBAS};

#[test]
fn small_writes_travel_in_the_capsule_and_large_ones_are_pulled() {
    let mut world = World::live();
    world.write(3, 2, 0xA1).result.unwrap();
    assert_eq!(world.peer.in_capsule, 1);
    world.write(10, 3, 0xB2).result.unwrap();
    assert_eq!(world.peer.in_capsule, 1);
    assert_eq!(world.read(3, 2), vec![0xA1; 2 * LBA_BYTES]);
    assert_eq!(world.read(10, 3), vec![0xB2; 3 * LBA_BYTES]);
    assert_eq!(world.read(13, 1), vec![0; LBA_BYTES]);
}

#[test]
fn every_operation_reaches_the_controller() {
    let mut world = World::live();
    world.peer.disk.fill(0x55);
    let (slba, nlb) = (5, 2);
    let compared = world.buffer(2, 0x55);
    for (token, op, buffer) in [
        (1, Op::Compare { slba, nlb }, Some(compared)),
        (2, Op::Flush, None),
        (3, Op::Verify { slba, nlb }, None),
        (
            4,
            Op::WriteZeroes {
                slba,
                nlb,
                may_deallocate: true,
                fua: true,
            },
            None,
        ),
        (5, Op::Discard { slba: 8, nlb: 1 }, None),
    ] {
        world.submit(token, op, buffer);
        let completion = world.next();
        assert_eq!(completion.token, token);
        completion.result.unwrap();
    }
    assert_eq!(world.read(5, 4)[..2 * LBA_BYTES], vec![0; 2 * LBA_BYTES]);
    assert_eq!(world.read(8, 1), vec![0xDD; LBA_BYTES]);
    let differs = world.buffer(1, 1);
    world.submit(6, Op::Compare { slba: 5, nlb: 1 }, Some(differs));
    let failed = world.next().result.unwrap_err();
    assert!(failed.to_string().contains("Compare Failure"), "{failed}");
}

#[test]
fn a_large_request_is_cut_by_mdts_and_completes_once() {
    let mut world = World::live();
    // MDTS of the scripted controller is 128 KiB.
    for (block, bytes) in (0_u8..).zip(world.peer.disk.chunks_mut(LBA_BYTES).take(200)) {
        bytes.fill(block);
    }
    let read = world.read(1, 199);
    let expected: Vec<u8> = (1..200).flat_map(|b: u8| vec![b; LBA_BYTES]).collect();
    assert!(read == expected);
    let mut lengths: Vec<_> = world
        .peer
        .commands
        .iter()
        .map(|c| match c {
            IoCommand::Read(read) => read.range.nlb,
            other => panic!("unexpected {other:?}"),
        })
        .collect();
    // Two queues take them in turn.
    lengths.sort_unstable();
    assert_eq!(lengths, [7, 32, 32, 32, 32, 32, 32]);
}

#[test]
fn more_requests_than_the_queues_take_wait_in_order() {
    let mut world = World::live();
    let capacity = world.engine.capacity();
    for token in 0..capacity as u64 {
        let buffer = world.buffer(1, u8::try_from(token % 251).unwrap());
        let op = Op::Write {
            slba: token,
            nlb: 1,
            fua: false,
        };
        world.submit(token, op, Some(buffer));
    }
    let extra = world.engine.submit(
        Source::default(),
        0,
        Io {
            nsid: 1,
            op: Op::Flush,
        },
        None,
    );
    assert!(matches!(extra.unwrap_err().reason, SubmitError::Busy));
    for _ in 0..capacity {
        world.next().result.unwrap();
    }
    let written: Vec<_> = (0..capacity)
        .map(|at| world.peer.disk[at * LBA_BYTES])
        .collect();
    let expected: Vec<_> = (0..capacity)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect();
    assert_eq!(written, expected);
}

#[test]
fn stray_answers_are_dropped_and_the_right_ones_count() {
    for manner in [Manner::Twice, Manner::WrongCidFirst] {
        let mut world = World::live();
        world.peer.manner = manner;
        for at in 0..20 {
            world.write(at, 1, 0x44).result.unwrap();
        }
        assert_eq!(world.engine.host().counters().bad_cid, 20, "{manner:?}");
        assert_eq!(world.events, ["live false"]);
    }
}

#[test]
fn an_error_status_names_command_range_and_status() {
    let mut world = World::live();
    world.peer.manner = Manner::Fail(Status::UNRECOVERED_READ_ERROR.dnr());
    let buffer = world.buffer(2, 0);
    world.submit(1, Op::Read { slba: 7, nlb: 2 }, Some(buffer));
    let error = world.next().result.unwrap_err().to_string();
    assert!(
        error.starts_with("Read of 2 LBAs at LBA 7 of namespace 1: Unrecovered Read Error"),
        "{error}"
    );
}

#[test]
fn a_passing_status_is_tried_again_a_few_times() {
    let mut world = World::live();
    world.peer.manner = Manner::Fail(Status::NAMESPACE_NOT_READY);
    world.submit(1, Op::Flush, None);
    world.pass(120_000);
    assert!(world.engine.poll_completion().is_none());
    world.peer.manner = Manner::Proper;
    world.next().result.unwrap();
    world.peer.manner = Manner::Fail(Status::NAMESPACE_NOT_READY);
    world.submit(2, Op::Flush, None);
    world.next().result.unwrap_err();
    assert!(world.peer.commands.len() <= 3 + 1 + 6);
}

#[test]
fn what_cannot_succeed_is_refused_without_a_command() {
    let mut world = World::live();
    let refused = |world: &mut World, op: Op, buffer: Option<Buffer>| {
        let io = Io { nsid: 1, op };
        match world.engine.submit(Source::default(), 9, io, buffer) {
            Ok(()) => world.next().result.unwrap_err(),
            Err(refused) => match refused.reason {
                SubmitError::Invalid(error) => error,
                SubmitError::Busy => panic!("busy"),
            },
        }
    };
    let read = |slba, nlb| Op::Read { slba, nlb };
    let one = world.buffer(1, 0);
    assert!(
        refused(&mut world, read(NSZE_LBAS, 1), Some(one))
            .to_string()
            .contains("last LBA")
    );
    let one = world.buffer(1, 0);
    assert!(
        refused(&mut world, read(u64::MAX, 1), Some(one))
            .to_string()
            .contains("last LBA")
    );
    let one = world.buffer(1, 0);
    assert!(
        refused(&mut world, read(0, 2), Some(one))
            .to_string()
            .contains("buffer length")
    );
    assert!(
        refused(&mut world, read(0, 1), None)
            .to_string()
            .contains("buffer")
    );
    assert!(
        refused(&mut world, read(0, 0), None)
            .to_string()
            .contains("nlb")
    );
    let io = Io {
        nsid: 5,
        op: Op::Flush,
    };
    world.engine.submit(Source::default(), 1, io, None).unwrap();
    assert!(matches!(
        world.next().result,
        Err(IoError::NoNamespace { nsid: 5, .. })
    ));
    assert!(world.peer.commands.is_empty());
    // Nothing of this has cost the queue its credit.
    world.write(0, 1, 1).result.unwrap();
}

#[test]
fn admin_commands_run_beside_io() {
    let mut world = World::live();
    for token in 0..30 {
        let data = CommandData::FromController(4096);
        world
            .engine
            .submit_admin(token, Sqe::new(6, 0, 1), data, 0)
            .unwrap();
    }
    world.write(0, 1, 1).result.unwrap();
    world.until(|world| world.events.len() == 31);
    assert!(world.events[1..].iter().all(|e| e.contains("Success")));
}

/// A command of one block at `slba`, as a submitter of passthrough makes it.
fn one_block(opcode: IoOpcode, slba: u8) -> Sqe {
    Sqe {
        cdw10: u32::from(slba).into(),
        ..Sqe::new(opcode.0, 0, 1)
    }
}

#[test]
fn commands_sent_as_they_are_move_their_data_and_are_answered_with_their_status() {
    let mut world = World::live();
    let fill = CommandData::ToController(vec![0x5A; LBA_BYTES].into());
    let pass = |world: &mut World, opcode, slba, data: &CommandData| {
        let sqe = one_block(opcode, slba);
        world.engine.submit_passthru(9, sqe, data, 0).unwrap();
        let before = world.events.len();
        world.until(|world| world.events.len() > before);
        world.events.pop().unwrap()
    };
    let done = pass(&mut world, IoOpcode::WRITE, 7, &fill);
    assert!(done.starts_with("done 9: Success"), "{done}");
    assert_eq!(world.read(7, 1), vec![0x5A; LBA_BYTES]);
    let done = pass(&mut world, IoOpcode::COMPARE, 8, &fill);
    assert!(done.contains("Compare Failure"), "{done}");
    let sqe = one_block(IoOpcode::READ, 7);
    let data = CommandData::FromController(4096);
    world.engine.submit_passthru(1, sqe, &data, 0).unwrap();
    let mut found = None;
    for _ in 0..1000 {
        let now_us = world.now_us();
        world.engine.turn(now_us);
        world.peer.turn(now_us);
        found = found.or_else(|| world.engine.poll_event());
    }
    let Some(Event::CommandDone { token: 1, result }) = found else {
        panic!("{found:?}");
    };
    assert_eq!(result.unwrap().data, vec![0x5A; LBA_BYTES]);
    let free_bytes = world.engine.data_pool().free_bytes();
    let long = CommandData::FromController((1 << 20) + 1);
    let refused = world.engine.submit_passthru(2, sqe, &long, 0).unwrap_err();
    assert!(refused.to_string().contains("at most 1048576"), "{refused}");
    assert_eq!(free_bytes, world.engine.data_pool().slab().len_bytes());
}

#[test]
fn a_command_sent_as_it_is_ends_with_its_connection_or_its_time() {
    let mut world = World::live();
    world.peer.manner = Manner::Silent;
    let sqe = one_block(IoOpcode::READ, 7);
    let data = CommandData::FromController(4096);
    world.engine.submit_passthru(1, sqe, &data, 0).unwrap();
    world.until(|world| world.peer.commands.len() == 1);
    world.peer.drop_connections();
    let lost = |world: &mut World| {
        world
            .events
            .iter()
            .any(|e| e.starts_with("done 1: the association was lost"))
    };
    world.until(lost);
    world.until_live();
    assert_eq!(world.peer.commands.len(), 1, "it was sent again");
    world.events.clear();
    world
        .engine
        .submit_passthru(1, sqe, &data, world.now_us())
        .unwrap();
    let start_us = world.now_us();
    world.until(lost);
    assert!((5_000_000..=6_000_000).contains(&(world.now_us() - start_us)));
    world.peer.refuse = true;
    let refused = world
        .engine
        .submit_passthru(2, sqe, &data, world.now_us())
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("an I/O command did not finish"),
        "{refused}"
    );
}
