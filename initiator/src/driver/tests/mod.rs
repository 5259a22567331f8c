//! The engine against a target over the loopback provider, in virtual time.

mod peer;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use capstan_memory::Buffer;
use capstan_nvme_proto::command::IoCommand;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_rdma::contract::{ConnectionManager, DeviceAttributes};
use capstan_rdma::loopback::{Fault, Network, Told, attributes};

use super::engine::{Engine, EngineConfig};
use super::io::{Completion, Io, Op, Source, SubmitError};
use crate::error::IoError;
use crate::host::{CommandData, Event, HostConfig, Status as HostStatus};
use crate::scripted::{HOSTID, LBA_BYTES, NSZE_LBAS};
use peer::{Manner, Peer};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Virtual time a test may take.
const TIME_MAX_US: u64 = 3_600_000_000;

struct World {
    engine: Engine,
    peer: Peer,
    network: Network,
    /// Of the host's machine on the network.
    host: u32,
    events: Vec<String>,
}

fn config() -> EngineConfig {
    EngineConfig {
        host: HostConfig {
            subnqn: Nqn::new("nqn.2026-11.io.capstan:s").unwrap(),
            hostnqn: Nqn::new("nqn.2026-11.io.capstan:h").unwrap(),
            hostid: HOSTID,
            nr_io_queues: 2,
            queue_size: 8,
            kato_ms: 5000,
            connect_timeout_us: 3_000_000,
            admin_timeout_us: 10_000_000,
            reconnect_delay_ms: 10_000,
            ctrl_loss_tmo_us: Some(60_000_000),
            scan_namespaces: true,
        },
        destination: SocketAddr::new(TARGET, 4420),
        source: None,
        io_timeout_us: 5_000_000,
        data_bytes: 16 << 20,
        seed: 1,
    }
}

impl World {
    fn with(config: EngineConfig, host: DeviceAttributes) -> Self {
        let network = Network::new(1);
        let target = network.provider(&[TARGET], attributes()).unwrap();
        let mut target_cm = target.manager().unwrap();
        target_cm.listen(config.destination, 16).unwrap();
        let host = network.provider(&[HOST], host).unwrap();
        let cm = Box::new(host.manager().unwrap());
        Self {
            engine: Engine::new(config, cm, 0).unwrap(),
            peer: Peer::new(Box::new(target_cm)),
            network,
            host: host.index(),
            events: Vec::new(),
        }
    }

    fn live() -> Self {
        let mut world = Self::with(config(), attributes());
        world.until_live();
        world
    }

    fn until_live(&mut self) {
        self.until(|world| world.engine.host().is_live());
    }

    fn now_us(&self) -> u64 {
        self.network.now_us()
    }

    /// One step: both sides turn, or time jumps to what comes next.
    fn step(&mut self) {
        let now_us = self.now_us();
        let busy = self.engine.turn(now_us) | self.peer.turn(now_us);
        while let Some(event) = self.engine.poll_event() {
            self.events.push(match event {
                Event::Live { again } => format!("live {again}"),
                Event::Lost { cause } => format!("lost: {cause}"),
                Event::Failed { cause } => format!("failed: {cause}"),
                Event::AdminDone { token, result } => {
                    format!("admin {token}: {}", result.is_ok())
                }
                other => format!("{other:?}"),
            });
        }
        if !busy {
            let next = [
                self.engine.next_deadline_us(),
                self.network.next_deadline_us(),
                self.peer.cm.next_deadline_us(),
            ];
            let next = next.into_iter().flatten().filter(|&at| at > now_us).min();
            self.network.advance_to(next.unwrap_or(now_us + 1000));
        }
    }

    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        while !done(self) {
            self.step();
            assert!(
                self.now_us() < TIME_MAX_US,
                "{}, {:?}",
                self.engine.status(self.now_us()),
                self.events
            );
        }
    }

    fn pass(&mut self, us: u64) {
        let end = self.now_us() + us;
        self.until(|world| world.now_us() >= end);
    }

    fn buffer(&self, blocks: usize, fill: u8) -> Buffer {
        let len = blocks * LBA_BYTES;
        let mut buffer = self
            .engine
            .data_pool()
            .take(u32::try_from(len).unwrap())
            .unwrap();
        buffer.copy_from(0, &vec![fill; len]);
        buffer
    }

    fn submit(&mut self, token: u64, op: Op, buffer: Option<Buffer>) {
        let io = Io { nsid: 1, op };
        self.engine
            .submit(Source::default(), token, io, buffer)
            .unwrap();
    }

    fn next(&mut self) -> Completion {
        let mut found = None;
        self.until(|world| {
            found = world.engine.poll_completion();
            found.is_some()
        });
        found.unwrap()
    }

    fn write(&mut self, slba: u64, nlb: u32, fill: u8) -> Completion {
        let buffer = self.buffer(nlb as usize, fill);
        let op = Op::Write {
            slba,
            nlb,
            fua: false,
        };
        self.submit(slba, op, Some(buffer));
        self.next()
    }

    fn read(&mut self, slba: u64, nlb: u32) -> Vec<u8> {
        let buffer = self.buffer(nlb as usize, 0xEE);
        self.submit(slba, Op::Read { slba, nlb }, Some(buffer));
        let completion = self.next();
        assert!(completion.result.is_ok(), "{:?}", completion.result);
        bytes(&completion)
    }
}

fn bytes(completion: &Completion) -> Vec<u8> {
    let buffer = completion.buffer.as_ref().unwrap();
    let mut bytes = vec![0; buffer.len_bytes() as usize];
    buffer.copy_to(0, &mut bytes);
    bytes
}

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
    assert!(matches!(world.next().result, Err(IoError::NoNamespace(5))));
    assert!(world.peer.commands.is_empty());
    // Nothing of this has cost the queue its credit.
    world.write(0, 1, 1).result.unwrap();
}

#[test]
fn what_was_outstanding_when_the_connection_broke_is_done_after_the_reconnect() {
    let mut world = World::live();
    world.peer.manner = Manner::Silent;
    for token in 0..10 {
        let buffer = world.buffer(1, 0x60 + u8::try_from(token).unwrap());
        let op = Op::Write {
            slba: token,
            nlb: 1,
            fua: false,
        };
        world.submit(token, op, Some(buffer));
    }
    world.until(|world| world.peer.commands.len() == 10);
    world.peer.drop_connections();
    world.peer.manner = Manner::Proper;
    let mut tokens: Vec<_> = (0..10)
        .map(|_| {
            let completion = world.next();
            completion.result.unwrap();
            completion.token
        })
        .collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..10).collect::<Vec<_>>());
    for token in 0..10 {
        assert_eq!(
            world.peer.disk[token * LBA_BYTES],
            0x60 + u8::try_from(token).unwrap()
        );
    }
    assert_eq!(world.events.last().unwrap(), "live true");
}

#[test]
fn every_loss_in_a_run_of_writes_leaves_every_acknowledged_block() {
    for connection in 0..40 {
        let mut world = World::live();
        let mut expected = [0_u8; 64];
        for round in 0..6_u8 {
            if round % 2 == 1 {
                world.network.strike(Fault::LoseConnection {
                    connection: None,
                    at_us: world.now_us(),
                    told: [Told::Both, Told::Active, Told::Passive, Told::Nobody]
                        [usize::from(round / 2 + connection) % 4],
                });
            }
            for block in 0..64_u8 {
                let fill = round.wrapping_mul(67).wrapping_add(block) | 1;
                let buffer = world.buffer(1, fill);
                let op = Op::Write {
                    slba: block.into(),
                    nlb: 1,
                    fua: false,
                };
                if world.engine.in_progress() == 20 {
                    world.next().result.unwrap();
                }
                world.submit(block.into(), op, Some(buffer));
                expected[usize::from(block)] = fill;
            }
            while world.engine.in_progress() > 0 {
                world.next().result.unwrap();
            }
            for (block, fill) in expected.iter().enumerate() {
                assert_eq!(world.peer.disk[block * LBA_BYTES], *fill, "round {round}");
            }
        }
    }
}

#[test]
fn io_waits_for_a_lost_controller_and_fails_after_ctrl_loss_tmo() {
    let mut world = World::live();
    world.peer.refuse = true;
    world.peer.drop_connections();
    world.until(|world| !world.engine.host().is_live());
    let buffer = world.buffer(1, 0);
    world.submit(1, Op::Read { slba: 0, nlb: 1 }, Some(buffer));
    world.pass(30_000_000);
    let status = world.engine.status(world.now_us()).to_string();
    assert!(status.starts_with("reconnecting: attempt"), "{status}");
    assert!(status.contains("No Resources"), "{status}");
    assert!(world.engine.poll_completion().is_none());
    let start = world.now_us();
    let error = world.next().result.unwrap_err();
    assert!(matches!(error, IoError::ControllerLost(_)), "{error}");
    assert!((29_000_000..=31_000_000).contains(&(world.now_us() - start)));
    assert!(matches!(world.engine.status(0), HostStatus::Failed(_)));
    let late = world.engine.submit(
        Source::default(),
        2,
        Io {
            nsid: 1,
            op: Op::Flush,
        },
        None,
    );
    assert!(late.is_err());
    assert_eq!(world.peer.connections(), 0);
}

#[test]
fn a_command_that_kills_the_connection_each_time_is_given_up() {
    let mut world = World::live();
    world.peer.manner = Manner::Overrun;
    let buffer = world.buffer(1, 0);
    world.submit(1, Op::Read { slba: 0, nlb: 1 }, Some(buffer));
    let error = world.next().result.unwrap_err();
    assert!(matches!(error, IoError::Replays { replays: 11 }), "{error}");
}

#[test]
fn an_unanswered_io_ends_the_connection_after_the_io_timeout() {
    let mut world = World::live();
    world.peer.manner = Manner::Silent;
    world.submit(1, Op::Flush, None);
    let start = world.now_us();
    world.until(|world| world.events.len() > 1);
    assert!(
        world.events[1].starts_with("lost: an I/O command did not finish within 5"),
        "{:?}",
        world.events
    );
    assert!((5_000_000..=6_000_000).contains(&(world.now_us() - start)));
    world.peer.manner = Manner::Proper;
    world.next().result.unwrap();
}

#[test]
fn a_shutdown_finishes_what_is_in_progress_and_refuses_more() {
    let mut world = World::live();
    for token in 0..20 {
        let buffer = world.buffer(1, 7);
        let op = Op::Write {
            slba: token,
            nlb: 1,
            fua: false,
        };
        world.submit(token, op, Some(buffer));
    }
    world.engine.shutdown();
    let io = Io {
        nsid: 1,
        op: Op::Flush,
    };
    let refused = world.engine.submit(Source::default(), 99, io, None);
    assert!(refused.is_err());
    for _ in 0..20 {
        world.next().result.unwrap();
    }
    world.until(|world| world.events.contains(&"Closed".to_owned()));
    assert!(world.peer.controller.shutdown);
    world.until(|world| world.peer.connections() == 0);
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
    assert!(world.events[1..].iter().all(|e| e.ends_with("true")));
}

#[test]
fn a_failed_first_connect_says_why() {
    let mut world = World::with(config(), attributes());
    world.peer.refuse = true;
    world.until(|world| !world.events.is_empty());
    assert!(
        world.events[0].contains("RDMA_CM reject: No Resources"),
        "{:?}",
        world.events
    );
    assert_eq!(Arc::strong_count(world.engine.data_pool().slab()), 1 + 1);
}
