//! A buffer is the owner's again only when nothing of an old connection can touch it.

use capstan_nvme_proto::command::{AdminCommand, GetLogPage};
use capstan_nvme_proto::log::LogPageId;
use capstan_nvme_proto::sgl::Sgl;
use capstan_rdma::loopback::attributes;

use super::peer::Manner;
use super::{World, bytes, config};
use crate::driver::engine::AssociationEngine;
use crate::driver::io::Op;
use crate::error::IoError;
use crate::host::CommandData;

/// Queue pairs there are.
fn queue_pairs(engine: &AssociationEngine) -> usize {
    engine.wire.connections()
}

/// A read that the target keeps, and the key of its buffer.
fn read_that_is_kept(world: &mut World) {
    world.peer.manner = Manner::Silent;
    let buffer = world.buffer(1, 0xEE);
    world.submit(1, Op::Read { slba: 0, nlb: 1 }, Some(buffer));
    world.until(|world| world.peer.commands.len() == 1);
}

fn without_a_second_chance() -> World {
    let mut config = config();
    config.host.ctrl_loss_tmo_us = Some(0);
    let mut world = World::with(config, attributes());
    world.until_live();
    world
}

#[test]
fn io_that_is_given_up_comes_back_behind_the_last_queue_pair() {
    let mut world = without_a_second_chance();
    read_that_is_kept(&mut world);
    world.peer.drop_connections();
    let completion = world.next();
    assert!(matches!(completion.result, Err(IoError::ControllerLost(_))));
    assert_eq!(queue_pairs(&world.engine), 0);
    assert_eq!(bytes(&completion)[0], 0xEE);
}

#[test]
fn admin_commands_that_wait_for_memory_do_not_keep_queue_pairs_open() {
    let mut world = without_a_second_chance();
    world.peer.controller.answer_logs = false;
    // More than the memory for data of admin commands; the last ones wait for it.
    for token in 0..12 {
        let command =
            AdminCommand::GetLogPage(GetLogPage::new(LogPageId::ERROR_INFORMATION, 64 << 10));
        let sqe = command.encode(0, Sgl::EMPTY);
        let data = CommandData::FromController(64 << 10);
        let now_us = world.now_us();
        world.engine.submit_admin(token, sqe, data, now_us).unwrap();
    }
    world.until(|world| !world.engine.stalled.is_empty());
    read_that_is_kept(&mut world);
    world.peer.drop_connections();
    let completion = world.next();
    assert!(completion.result.is_err());
    assert_eq!(queue_pairs(&world.engine), 0);
}

#[test]
fn a_late_write_of_an_old_connection_does_not_reach_a_buffer_that_has_come_back() {
    // The controller answers and then writes once more: the window is closed by then, which breaks
    // the connection.
    let mut world = World::live();
    world.peer.disk.fill(0x55);
    world.peer.manner = Manner::LateWrite;
    let buffer = world.buffer(1, 0xEE);
    world.submit(1, Op::Read { slba: 0, nlb: 1 }, Some(buffer));
    let mut completion = world.next();
    completion.result.as_ref().unwrap();
    let mut buffer = completion.buffer.take().unwrap();
    buffer.copy_from(0, &[0x77; 4096]);
    world.pass(10_000);
    let mut now = [0; 4096];
    buffer.copy_to(0, &mut now);
    assert_eq!(now, [0x77; 4096]);
}

#[test]
fn an_engine_that_is_dropped_leaves_nothing_that_reaches_its_memory() {
    let mut world = World::live();
    read_that_is_kept(&mut world);
    let slab = std::sync::Arc::clone(world.engine.data_pool().slab());
    let World {
        engine,
        peer,
        network,
        ..
    } = world;
    drop(engine);
    // Only this test has the memory now: no request, region or queue pair has it.
    assert_eq!(std::sync::Arc::strong_count(&slab), 1);
    let mut peer = peer;
    for _ in 0..100 {
        if !peer.turn(network.now_us()) {
            network.advance_to(
                network
                    .next_deadline_us()
                    .unwrap_or_else(|| network.now_us() + 1000),
            );
        }
    }
    assert_eq!(peer.connections(), 0);
}
