//! What the host opens to the controller, and devices that have less than others.

use capstan_rdma::contract::DeviceAttributes;
use capstan_rdma::loopback::{Fault, attributes};

use super::peer::Manner;
use super::{World, config};
use crate::driver::io::Op;
use crate::scripted::LBA_BYTES;

#[test]
fn keys_the_controller_leaves_open_are_closed_before_the_data_is_released() {
    let mut world = World::live();
    world.peer.manner = Manner::KeepKey;
    for at in 0..40 {
        assert_eq!(world.read(at, 3).len(), 3 * LBA_BYTES);
        world.write(at, 3, 1).result.unwrap();
    }
    // A controller that uses a key after its answer loses the connection and touches nothing.
    world.peer.manner = Manner::LateWrite;
    world.peer.disk.fill(0x77);
    let read = world.read(20, 1);
    assert_eq!(read, vec![0x77; LBA_BYTES]);
    world.peer.manner = Manner::Proper;
    world.until(|world| world.events.iter().any(|e| e.starts_with("lost")));
    world.until_live();
    assert_eq!(world.read(20, 1), vec![0x77; LBA_BYTES]);
}

#[test]
fn a_write_past_the_buffer_ends_the_connection_and_touches_nothing() {
    let mut world = World::live();
    let first = world.buffer(1, 0x11);
    let guard = world.buffer(1, 0x22);
    world.peer.manner = Manner::Overrun;
    world.submit(1, Op::Read { slba: 0, nlb: 1 }, Some(first));
    world.until(|world| world.events.iter().any(|e| e.starts_with("lost")));
    world.peer.manner = Manner::Proper;
    let completion = world.next();
    completion.result.unwrap();
    let mut after = vec![0; LBA_BYTES];
    guard.copy_to(0, &mut after);
    assert_eq!(after, vec![0x22; LBA_BYTES]);
}

#[test]
fn a_device_without_windows_works_through_the_registration() {
    let device = DeviceAttributes {
        memory_windows: false,
        ..attributes()
    };
    let mut world = World::with(config(), device);
    world.until_live();
    for at in 0..50 {
        world.write(at, 3, 0x33).result.unwrap();
        assert_eq!(world.read(at, 3), vec![0x33; 3 * LBA_BYTES]);
    }
}

#[test]
fn a_device_that_is_removed_is_let_go_and_used_again_when_it_is_back() {
    let mut world = World::live();
    let provider = world.host;
    let buffer = world.buffer(3, 0x5a);
    let op = Op::Write {
        slba: 5,
        nlb: 3,
        fua: false,
    };
    world.submit(1, op, Some(buffer));
    world
        .network
        .strike(Fault::RemoveDevice { provider, at_us: 0 });
    world.until(|world| world.events.len() > 1);
    assert!(
        world.events[1].contains("the RDMA device was removed"),
        "{:?}",
        world.events
    );
    world.until(|world| world.engine.device_attributes().is_none());
    // With nothing connected, attempts fail one after the other.
    world.pass(15_000_000);
    assert!(!world.engine.host().is_live());
    world
        .network
        .strike(Fault::RestoreDevice { provider, at_us: 0 });
    world.next().result.unwrap();
    assert_eq!(world.read(5, 3), vec![0x5a; 3 * LBA_BYTES]);
    // Between two uses the device is known to be gone without a connection to tell of it.
    world.engine.shutdown();
    world.until(|world| world.events.contains(&"Closed".to_owned()));
    assert!(world.engine.device_attributes().is_some());
    world
        .network
        .strike(Fault::RemoveDevice { provider, at_us: 0 });
    world.pass(1_000);
    assert!(world.engine.device_attributes().is_none());
}

#[test]
fn a_device_with_few_work_requests_and_no_invalidate_works() {
    let device = DeviceAttributes {
        qp_wr_max: 40,
        send_with_invalidate: false,
        sge_max: 1,
        ..attributes()
    };
    let mut world = World::with(config(), device);
    world.until_live();
    for at in 0..1000 {
        if world.engine.in_progress() == 30 {
            world.next().result.unwrap();
        }
        let buffer = world.buffer(1, 0);
        world.submit(at, Op::Read { slba: at, nlb: 1 }, Some(buffer));
    }
    while world.engine.in_progress() > 0 {
        world.next().result.unwrap();
    }
    world.write(0, 1, 9).result.unwrap();
    assert_eq!(
        world.peer.in_capsule, 0,
        "one SGE holds no capsule with data"
    );
}

#[test]
fn a_device_with_a_small_completion_queue_is_refused_with_what_to_do() {
    let device = DeviceAttributes {
        cqe_max: 100,
        ..attributes()
    };
    let mut world = World::with(config(), device);
    world.until(|world| world.events.iter().any(|e| e.starts_with("failed")));
    let why = world.events.concat();
    assert!(why.contains("holds 100; use fewer or smaller"), "{why}");
}
