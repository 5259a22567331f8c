//! The life of a controller: properties, enabling, shutdown, reset, Keep Alive, and its end.

use alloc::format;
use alloc::vec::Vec;

use capstan_nvme_proto::command::{AdminCommand, FabricsCommand, Identify};
use capstan_nvme_proto::fabrics::{PropertyGet, PropertySet};
use capstan_nvme_proto::identify::Cns;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::opcode::AdminOpcode;
use capstan_nvme_proto::property::{
    Cap, Cc, CommandSetSelected, Property, PropertySize, ShutdownNotification, ShutdownStatus,
};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;

use crate::testing::{Association, Bench, GEOMETRY, PORT, buffer, host, subnqn};
use crate::{AdminStep, BackendId, DisconnectReason, Geometry, HostPolicy, IoQueueState, IoStep};

const SECOND_US: u64 = 1_000_000;

fn keep_alive(bench: &mut Bench, association: &Association) {
    let (cqe, _) = bench.admin(association, &AdminCommand::KeepAlive);
    assert!(cqe.status().is_success());
}

#[test]
fn properties_tell_what_the_controller_can() {
    let mut bench = Bench::new();
    let association = bench.associate(host(1), subnqn(), 0).unwrap();
    let cap = Cap::decode(bench.property(&association, Property::CAP).result());
    assert_eq!((cap.mqes, cap.mpsmin, cap.mpsmax, cap.ams), (128, 0, 0, 0));
    assert!(cap.cqr && cap.crwms && !cap.crims && !cap.nssrs);
    assert_eq!(cap.css, Cap::CSS_NVM | Cap::CSS_IOCS);
    assert!(cap.timeout_ms() >= 500);
    assert_eq!(
        bench.property(&association, Property::VS).result(),
        0x0002_0000
    );
    let crto = bench.property(&association, Property::CRTO);
    assert!(crto.status().is_success());

    for (property, size) in [
        (Property::CAP, PropertySize::Four),
        (Property::CC, PropertySize::Eight),
        (Property::NSSR, PropertySize::Four),
        (Property(0x0C), PropertySize::Four),
    ] {
        let get = FabricsCommand::PropertyGet(PropertyGet { property, size });
        let cqe = bench.fabrics(&association, &get);
        assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());
    }
}

#[test]
fn only_cc_can_be_written_and_only_with_what_cap_offers() {
    let mut bench = Bench::new();
    let association = bench.associate(host(1), subnqn(), 0).unwrap();
    let bad = [
        Cc {
            mps: 1,
            ..Cc::ENABLE_NVM
        },
        Cc {
            ams: 1,
            ..Cc::ENABLE_NVM
        },
        Cc {
            css: CommandSetSelected(1),
            ..Cc::ENABLE_NVM
        },
        Cc {
            iosqes: 5,
            ..Cc::ENABLE_NVM
        },
        Cc {
            iocqes: 5,
            ..Cc::ENABLE_NVM
        },
        Cc {
            crime: true,
            ..Cc::ENABLE_NVM
        },
        Cc {
            shn: ShutdownNotification::NORMAL,
            ..Cc::ENABLE_NVM
        },
    ];
    for cc in bad {
        let cqe = bench.set_cc(&association, cc);
        assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more(), "{cc:?}");
        assert!(!bench.csts(&association).rdy);
    }
    for property in [Property::CAP, Property::VS, Property::CSTS, Property::NSSR] {
        let set = PropertySet {
            property,
            size: property.size().unwrap(),
            value: 0,
        };
        let cqe = bench.fabrics(&association, &FabricsCommand::PropertySet(set));
        assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());
    }
    bench.enable(&association);
    assert_eq!(
        bench.property(&association, Property::CC).result(),
        u64::from(Cc::ENABLE_NVM.encode())
    );
}

#[test]
fn all_command_sets_may_be_selected_as_hosts_do() {
    let mut bench = Bench::new();
    let association = bench.associate(host(1), subnqn(), 0).unwrap();
    let cc = Cc {
        css: CommandSetSelected::ALL_SUPPORTED,
        ..Cc::ENABLE_NVM
    };
    assert!(bench.set_cc(&association, cc).status().is_success());
}

#[test]
fn admin_commands_wait_for_the_controller_to_be_ready() {
    let mut bench = Bench::new();
    let association = bench.associate(host(1), subnqn(), 0).unwrap();
    let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0));
    let (cqe, data) = bench.admin(&association, &identify);
    assert_eq!(cqe.status(), Status::COMMAND_SEQUENCE_ERROR.dnr().more());
    assert!(data.is_empty());
    bench.enable(&association);
    assert!(bench.admin(&association, &identify).0.status().is_success());
}

#[test]
fn a_shutdown_ends_when_everything_is_on_the_medium() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let io = bench.io_queue(&association, 1).unwrap();
    let shutdown = Cc {
        shn: ShutdownNotification::NORMAL,
        ..Cc::ENABLE_NVM
    };
    assert!(bench.set_cc(&association, shutdown).status().is_success());
    let csts = bench.csts(&association);
    assert_eq!((csts.rdy, csts.shst), (true, ShutdownStatus::OCCURRING));
    let (flush, backends) = bench.flushes.pop().unwrap();
    assert_eq!(backends, [BackendId(1)]);

    let read = Sqe::new(2, 1, 1);
    let step = bench
        .queues
        .get_mut(&io)
        .unwrap()
        .handle_capsule(&read, &[]);
    let IoStep::Complete(cqe) = step else {
        panic!("{step:?}");
    };
    assert_eq!(cqe.status(), Status::COMMAND_SEQUENCE_ERROR.dnr().more());
    assert_eq!(bench.queues[&io].state(), IoQueueState::Quiesced);

    bench.target.handle_flushed(flush, true, bench.now_us);
    assert_eq!(bench.csts(&association).shst, ShutdownStatus::COMPLETE);
    bench.target.handle_flushed(flush, false, bench.now_us);
    assert_eq!(bench.csts(&association).shst, ShutdownStatus::COMPLETE);
}

#[test]
fn a_shutdown_that_loses_data_is_never_complete() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let shutdown = Cc {
        shn: ShutdownNotification::NORMAL,
        ..Cc::ENABLE_NVM
    };
    bench.set_cc(&association, shutdown);
    let (flush, _) = bench.flushes.pop().unwrap();
    bench.target.handle_flushed(flush, false, bench.now_us);
    let csts = bench.csts(&association);
    assert_eq!((csts.cfs, csts.shst), (true, ShutdownStatus::NORMAL));
    let disabled = Cc {
        en: false,
        ..Cc::ENABLE_NVM
    };
    bench.set_cc(&association, disabled);
    bench.enable(&association);
}

#[test]
fn a_shutdown_without_a_volatile_cache_is_immediate() {
    let mut bench = Bench::new();
    let geometry = Geometry {
        volatile_write_cache: false,
        ..GEOMETRY
    };
    bench.target.set_geometry(&subnqn(), 1, geometry).unwrap();
    let association = bench.ready();
    let shutdown = Cc {
        shn: ShutdownNotification::ABRUPT,
        ..Cc::ENABLE_NVM
    };
    bench.set_cc(&association, shutdown);
    assert_eq!(bench.csts(&association).shst, ShutdownStatus::COMPLETE);
    // The way back goes through CC.EN = 0.
    let disabled = Cc {
        en: false,
        ..Cc::ENABLE_NVM
    };
    bench.set_cc(&association, disabled);
    bench.enable(&association);
}

#[test]
fn a_reset_deletes_the_io_queues_and_ends_when_they_are_gone() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let queues: Vec<_> = (1..=3)
        .map(|qid| bench.io_queue(&association, qid).unwrap())
        .collect();
    let cid = bench.new_cid();
    let event = AdminCommand::AsynchronousEventRequest.encode(cid, Sgl::EMPTY);
    assert!(bench.send_admin(association.conn, &event).is_none());

    let disabled = Cc {
        en: false,
        ..Cc::ENABLE_NVM
    };
    assert!(bench.set_cc(&association, disabled).status().is_success());
    let (conn, cqe) = bench.completions.pop().unwrap();
    assert_eq!((conn, cqe.cid.get()), (association.conn, cid));
    assert_eq!(cqe.status(), Status::ABORT_REQUESTED);

    assert!(bench.csts(&association).rdy, "queues are still there");
    let again = bench.set_cc(&association, Cc::ENABLE_NVM);
    assert_eq!(again.status(), Status::COMMAND_SEQUENCE_ERROR.dnr().more());
    let reset: Vec<_> = bench.disconnects.iter().map(|(conn, _)| *conn).collect();
    assert_eq!(reset, queues);
    bench.close();
    assert!(!bench.csts(&association).rdy);
    bench.enable(&association);
    assert!(bench.io_queue(&association, 1).is_ok());
}

#[test]
fn silence_ends_the_association_and_says_why() {
    let mut bench = Bench::new();
    let association = bench.associate(host(1), subnqn(), 5000).unwrap();
    bench.enable(&association);
    let io = bench.io_queue(&association, 1).unwrap();
    assert_eq!(bench.target.next_deadline_us(), Some(5 * SECOND_US));

    // Commands of any queue count as much as Keep Alive (CTRATT.TBKAS).
    bench.wait_us(5 * SECOND_US);
    assert_eq!(bench.target.next_deadline_us(), Some(10 * SECOND_US));
    let flush = Sqe::new(0, 1, 1);
    let _step = bench
        .queues
        .get_mut(&io)
        .unwrap()
        .handle_capsule(&flush, &[]);
    bench.wait_us(5 * SECOND_US);
    assert!(bench.disconnects.is_empty());
    bench.wait_us(3 * SECOND_US);
    keep_alive(&mut bench, &association);
    bench.wait_us(4_999_999);
    assert!(bench.disconnects.is_empty());

    bench.wait_us(1);
    let why = DisconnectReason::KeepAliveExpired { kato_ms: 5000 };
    assert_eq!(bench.disconnects, [(io, why), (association.conn, why)]);
    assert!(bench.csts(&association).cfs);
    bench.close();
    let line = bench.log.last().unwrap();
    assert!(
        line.ends_with("keep alive timer expired: no command for 5000 ms"),
        "{line}"
    );
    assert_eq!(bench.target.next_deadline_us(), None);
}

#[test]
fn a_discovery_controller_always_has_a_timer() {
    let mut bench = Bench::new();
    let association = bench.associate(host(5), Nqn::discovery(), 0).unwrap();
    bench.wait_us(120 * SECOND_US - 1);
    assert!(bench.disconnects.is_empty());
    bench.wait_us(1);
    assert_eq!(bench.disconnects[0].0, association.conn);
}

#[test]
fn the_end_of_the_admin_connection_ends_the_io_queues() {
    let mut bench = Bench::new();
    let association = bench.ready();
    assert!(!bench.target.has_io_queues(association.conn));
    let io = bench.io_queue(&association, 1).unwrap();
    assert!(bench.target.has_io_queues(association.conn));
    assert!(!bench.target.has_io_queues(io));
    bench.disconnect(association.conn);
    assert_eq!(bench.disconnects, [(io, DisconnectReason::AdminQueueGone)]);
    bench.close();
    bench.target.assert_empty();
    assert!(
        bench
            .log
            .last()
            .unwrap()
            .starts_with("host disconnected hostnqn=")
    );
}

#[test]
fn the_operator_can_send_hosts_away() {
    type Change = fn(&mut Bench);
    let changes: [(Change, DisconnectReason); 4] = [
        (
            |bench| {
                let nobody = HostPolicy::Only(core::iter::once(host(2)).collect());
                bench.target.set_hosts(&subnqn(), nobody).unwrap();
            },
            DisconnectReason::HostNotAllowed,
        ),
        (
            |bench| bench.target.remove_subsystem(&subnqn()).unwrap(),
            DisconnectReason::SubsystemRemoved,
        ),
        (
            |bench| bench.target.remove_port(PORT).unwrap(),
            DisconnectReason::SubsystemRemoved,
        ),
        (
            |bench| {
                let none = alloc::collections::BTreeSet::new();
                bench.target.set_ports(&subnqn(), &none).unwrap();
            },
            DisconnectReason::SubsystemRemoved,
        ),
    ];
    for (change, why) in changes {
        let mut bench = Bench::new();
        let association = bench.ready();
        let io = bench.io_queue(&association, 1).unwrap();
        change(&mut bench);
        bench.poll();
        assert_eq!(bench.disconnects, [(io, why), (association.conn, why)]);
        bench.close();
        bench.target.assert_empty();
        assert!(bench.associate(host(1), subnqn(), 0).is_err());
    }
}

#[test]
fn more_admin_commands_than_entries_end_the_association() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let sqe = |cid| Sqe::new(AdminOpcode::KEEP_ALIVE.0, cid, 0);
    let mut requests = Vec::new();
    for cid in 0..32 {
        match bench.target.begin_admin(association.conn, &sqe(cid), 0) {
            AdminStep::Execute(request) => requests.push(request),
            other => panic!("{other:?}"),
        }
    }
    let step = bench.target.begin_admin(association.conn, &sqe(32), 0);
    let expected = DisconnectReason::QueueOverrun {
        qid: 0,
        entries: 32,
    };
    assert!(matches!(step, AdminStep::Disconnect(why) if why == expected));
    bench.poll();
    assert_eq!(bench.disconnects, [(association.conn, expected)]);
    bench.close();
    for request in requests {
        assert!(
            bench
                .target
                .fail_admin(request, Status::INTERNAL_ERROR)
                .is_none()
        );
    }
    assert_eq!(
        format!("{expected}"),
        "queue 0 overrun: more than its 32 entries are outstanding"
    );
}

#[test]
fn duplicate_identifiers_and_unknown_commands_are_told() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let event = AdminCommand::AsynchronousEventRequest.encode(7, Sgl::EMPTY);
    assert!(bench.send_admin(association.conn, &event).is_none());
    let twice = Sqe::new(AdminOpcode::KEEP_ALIVE.0, 7, 0);
    let (cqe, _) = bench.send_admin(association.conn, &twice).unwrap();
    assert_eq!(cqe.status(), Status::COMMAND_ID_CONFLICT.dnr().more());

    for opcode in [
        AdminOpcode::FORMAT_NVM,
        AdminOpcode::CREATE_IO_SQ,
        AdminOpcode(0xC1),
    ] {
        let (cqe, _) = bench
            .send_admin(association.conn, &Sqe::new(opcode.0, 8, 0))
            .unwrap();
        assert_eq!(cqe.status(), Status::INVALID_OPCODE.dnr().more());
    }
    let cqe = bench.fabrics(&association, &FabricsCommand::Disconnect);
    assert_eq!(
        cqe.status(),
        Status::DISCONNECT_INVALID_QUEUE_TYPE.dnr().more()
    );
    let mut fused = Sqe::new(AdminOpcode::KEEP_ALIVE.0, 9, 0);
    fused.flags |= 1;
    let (cqe, _) = bench.send_admin(association.conn, &fused).unwrap();
    assert_eq!(cqe.status(), Status::INVALID_FIELD.dnr().more());
    let short = AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0)).encode(9, buffer(4095));
    let (cqe, _) = bench.send_admin(association.conn, &short).unwrap();
    assert_eq!(cqe.status(), Status::DATA_SGL_LENGTH_INVALID.dnr().more());
}

/// SPDK's host shuts the controller down so: its Asynchronous Event Requests are still outstanding.
#[test]
fn property_commands_are_answered_whoever_has_their_identifier() {
    let mut bench = Bench::new();
    let geometry = Geometry {
        volatile_write_cache: false,
        ..GEOMETRY
    };
    bench.target.set_geometry(&subnqn(), 1, geometry).unwrap();
    for discovery in [false, true] {
        let association = if discovery {
            let association = bench.associate(host(1), Nqn::discovery(), 0).unwrap();
            bench.enable(&association);
            association
        } else {
            bench.ready()
        };
        let event = AdminCommand::AsynchronousEventRequest.encode(7, Sgl::EMPTY);
        assert!(bench.send_admin(association.conn, &event).is_none());
        let mut send = |command: FabricsCommand| {
            let sqe = command.encode(7, Sgl::EMPTY);
            let (cqe, _) = bench.send_admin(association.conn, &sqe).unwrap();
            assert_eq!(cqe.cid.get(), 7);
            cqe
        };
        let csts = FabricsCommand::PropertyGet(PropertyGet {
            property: Property::CSTS,
            size: PropertySize::Four,
        });
        assert_eq!(send(csts).result() & 1, 1, "RDY");
        let unknown = FabricsCommand::PropertyGet(PropertyGet {
            property: Property(0x1300),
            size: PropertySize::Four,
        });
        assert_eq!(send(unknown).status(), Status::INVALID_FIELD.dnr().more());
        let shut_down = Cc {
            shn: ShutdownNotification::ABRUPT,
            ..Cc::ENABLE_NVM
        };
        let set = FabricsCommand::PropertySet(PropertySet {
            property: Property::CC,
            size: PropertySize::Four,
            value: shut_down.encode().into(),
        });
        assert_eq!(send(set).status(), Status::SUCCESS);
        assert_eq!(bench.csts(&association).shst, ShutdownStatus::COMPLETE);
        // What has the identifier is any other command's obstacle still.
        let keep_alive = AdminCommand::KeepAlive.encode(7, Sgl::EMPTY);
        if let Some((cqe, _)) = bench.send_admin(association.conn, &keep_alive) {
            assert_eq!(cqe.status(), Status::COMMAND_ID_CONFLICT.dnr().more());
        }
        bench.disconnect(association.conn);
    }
}

#[test]
fn a_controller_that_its_host_does_not_enable_goes_after_a_minute() {
    let mut bench = Bench::new();
    let idle = bench.associate(host(1), subnqn(), 0).unwrap();
    let busy = bench.associate(host(2), subnqn(), 0).unwrap();
    bench.enable(&busy);
    bench.wait_us(60 * SECOND_US - 1);
    assert!(bench.disconnects.is_empty());
    bench.wait_us(1);
    let why = DisconnectReason::NotEnabled { timeout_s: 60 };
    assert_eq!(bench.disconnects, [(idle.conn, why)]);
    bench.close();
    assert_eq!(bench.target.next_deadline_us(), None);
}
