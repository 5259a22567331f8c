//! Namespaces that come, go, grow, hide and change their paths while hosts use them.

use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::{
    AdminCommand, GetFeatures, GetLogPage, IoCommand as Command, LbaRange, Read, SetFeatures, Write,
};
use capstan_nvme_proto::features::FeatureId;
use capstan_nvme_proto::log::{AnaState, ChangedNamespaceList, LogPageId};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;

use crate::testing::{Association, Bench, GEOMETRY, PORT, buffer, host, namespace_config, subnqn};
use crate::{
    ConfigError, ConnId, Geometry, HostPolicy, IoCommand, IoStep, NamespaceConfig, PortId, Target,
};

fn changed(bench: &mut Bench, association: &Association, rae: bool) -> Vec<u32> {
    let get = GetLogPage {
        nsid: 0,
        rae,
        ..GetLogPage::new(LogPageId::CHANGED_NAMESPACES, 4096)
    };
    let (_, data) = bench.admin(association, &AdminCommand::GetLogPage(get));
    ChangedNamespaceList::from_data(&data)
        .unwrap()
        .iter()
        .collect()
}

fn read_status(bench: &mut Bench, conn: ConnId, nsid: u32, slba: u64) -> Status {
    let cid = bench.new_cid();
    let command = Command::Read(Read::new(nsid, LbaRange { slba, nlb: 1 }));
    let queue = bench.queues.get_mut(&conn).unwrap();
    match queue.handle_capsule(&command.encode(cid, buffer(512)), &[]) {
        IoStep::Execute(command) => queue.complete(command.permit, Status::SUCCESS, 0).status(),
        IoStep::Complete(cqe) => cqe.status(),
        other => panic!("{other:?}"),
    }
}

fn await_event(bench: &mut Bench, association: &Association) {
    let cid = bench.new_cid();
    let request = AdminCommand::AsynchronousEventRequest.encode(cid, Sgl::EMPTY);
    assert!(bench.send_admin(association.conn, &request).is_none());
}

fn events(bench: &mut Bench) -> Vec<AsyncEvent> {
    bench.poll();
    bench
        .completions
        .drain(..)
        .map(|(_, cqe)| AsyncEvent::decode(cqe.dw0.get()))
        .collect()
}

type Change = fn(&mut Target) -> Result<(), ConfigError>;

#[test]
fn every_change_is_told_and_takes_effect() {
    let changes: [(Change, u32); 4] = [
        (|t| t.add_namespace(&subnqn(), namespace_config(2)), 2),
        (|t| t.remove_namespace(&subnqn(), 1), 1),
        (
            |t| {
                let geometry = Geometry {
                    lbas: 2000,
                    ..GEOMETRY
                };
                t.set_geometry(&subnqn(), 1, geometry)
            },
            1,
        ),
        (
            |t| t.set_visibility(&subnqn(), 1, HostPolicy::Only([host(2)].into())),
            1,
        ),
    ];
    for (change, nsid) in changes {
        let mut bench = Bench::new();
        let association = bench.ready();
        let conn = bench.io_queue(&association, 1).unwrap();
        await_event(&mut bench, &association);
        assert!(changed(&mut bench, &association, false).is_empty());
        let before = bench.queues[&conn].namespaces_generation();

        change(&mut bench.target).unwrap();
        assert!(bench.queues[&conn].are_namespaces_stale());
        assert_eq!(
            events(&mut bench),
            [AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED]
        );
        assert!(!bench.queues[&conn].are_namespaces_stale());
        assert!(bench.queues[&conn].namespaces_generation() > before);
        assert_eq!(changed(&mut bench, &association, true), [nsid]);
        assert_eq!(changed(&mut bench, &association, false), [nsid]);
        assert!(changed(&mut bench, &association, false).is_empty());
    }
}

#[test]
fn commands_see_the_new_size_and_the_missing_namespace() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let conn = bench.io_queue(&association, 1).unwrap();
    let beyond = Status::LBA_OUT_OF_RANGE.dnr().more();
    assert_eq!(read_status(&mut bench, conn, 1, 1500), beyond);
    let geometry = Geometry {
        lbas: 2000,
        ..GEOMETRY
    };
    bench.target.set_geometry(&subnqn(), 1, geometry).unwrap();
    bench.poll();
    assert_eq!(read_status(&mut bench, conn, 1, 1500), Status::SUCCESS);
    bench.target.remove_namespace(&subnqn(), 1).unwrap();
    bench.poll();
    assert_eq!(
        read_status(&mut bench, conn, 1, 0),
        Status::INVALID_NAMESPACE_OR_FORMAT.dnr().more()
    );
}

#[test]
fn nothing_is_told_to_a_host_that_sees_no_change() {
    let mut bench = Bench::new();
    let association = bench.ready();
    await_event(&mut bench, &association);
    let hidden = NamespaceConfig {
        visible_to: HostPolicy::Only([host(2)].into()),
        ..namespace_config(2)
    };
    bench.target.add_namespace(&subnqn(), hidden).unwrap();
    bench.target.set_geometry(&subnqn(), 1, GEOMETRY).unwrap();
    assert!(events(&mut bench).is_empty());
    assert!(changed(&mut bench, &association, false).is_empty());
}

#[test]
fn ana_states_decide_about_commands_at_once() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let conn = bench.io_queue(&association, 1).unwrap();
    await_event(&mut bench, &association);
    let cases = [
        (
            AnaState::INACCESSIBLE,
            Status::ASYMMETRIC_ACCESS_INACCESSIBLE.more(),
        ),
        (
            AnaState::CHANGE,
            Status::ASYMMETRIC_ACCESS_TRANSITION.more(),
        ),
        (
            AnaState::PERSISTENT_LOSS,
            Status::ASYMMETRIC_ACCESS_PERSISTENT_LOSS.more(),
        ),
        (AnaState::NON_OPTIMIZED, Status::SUCCESS),
        (AnaState::OPTIMIZED, Status::SUCCESS),
    ];
    for (state, status) in cases {
        bench
            .target
            .set_ana_state(&subnqn(), PORT, 1, state)
            .unwrap();
        assert_eq!(read_status(&mut bench, conn, 1, 0), status, "{state}");
    }
    assert_eq!(events(&mut bench), [AsyncEvent::ANA_CHANGE]);
    bench
        .target
        .set_ana_state(&subnqn(), PORT, 2, AnaState::INACCESSIBLE)
        .unwrap();
    assert_eq!(read_status(&mut bench, conn, 1, 0), Status::SUCCESS);

    // A controller that connects later finds the state as it is.
    bench
        .target
        .set_ana_state(&subnqn(), PORT, 1, AnaState::INACCESSIBLE)
        .unwrap();
    let later = bench.associate(host(2), subnqn(), 0).unwrap();
    bench.enable(&later);
    let conn = bench.io_queue(&later, 1).unwrap();
    assert_eq!(
        read_status(&mut bench, conn, 1, 0),
        Status::ASYMMETRIC_ACCESS_INACCESSIBLE.more()
    );
}

fn set_protection(bench: &mut Bench, association: &Association, state: u32) -> Option<Status> {
    let cid = bench.new_cid();
    let feature = SetFeatures {
        nsid: 1,
        ..SetFeatures::new(FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG, state)
    };
    let sqe = AdminCommand::SetFeatures(feature).encode(cid, Sgl::EMPTY);
    bench
        .send_admin(association.conn, &sqe)
        .map(|(cqe, _)| cqe.status())
}

fn protection(bench: &mut Bench, association: &Association) -> u32 {
    let feature = GetFeatures {
        nsid: 1,
        ..GetFeatures::new(FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG)
    };
    let (cqe, _) = bench.admin(association, &AdminCommand::GetFeatures(feature));
    cqe.dw0.get()
}

fn write_status(bench: &mut Bench, conn: ConnId) -> Status {
    let cid = bench.new_cid();
    let command = Command::Write(Write::new(1, LbaRange { slba: 0, nlb: 1 }));
    let queue = bench.queues.get_mut(&conn).unwrap();
    match queue.handle_capsule(&command.encode(cid, buffer(512)), &[]) {
        IoStep::Execute(command) => queue.complete(command.permit, Status::SUCCESS, 0).status(),
        IoStep::Complete(cqe) => cqe.status(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn write_protection_holds_for_every_host_once_the_data_is_safe() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let other = bench.associate(host(2), subnqn(), 0).unwrap();
    bench.enable(&other);
    let conn = bench.io_queue(&other, 1).unwrap();
    await_event(&mut bench, &other);
    let protected = Status::NAMESPACE_IS_WRITE_PROTECTED.dnr().more();

    assert_eq!(set_protection(&mut bench, &association, 1), None);
    assert_eq!(
        events(&mut bench),
        [AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED]
    );
    assert_eq!(write_status(&mut bench, conn), protected);
    assert_eq!(read_status(&mut bench, conn, 1, 0), Status::SUCCESS);
    let (flush, backends) = bench.flushes.pop().unwrap();
    assert_eq!(backends, [crate::BackendId(1)]);
    bench.target.handle_flushed(flush, true, 0);
    bench.poll();
    let (to, cqe) = bench.completions.pop().unwrap();
    assert_eq!((to, cqe.status()), (association.conn, Status::SUCCESS));
    assert_eq!(protection(&mut bench, &other), 1);

    assert_eq!(set_protection(&mut bench, &other, 0), Some(Status::SUCCESS));
    assert_eq!(write_status(&mut bench, conn), Status::SUCCESS);
    assert_eq!(protection(&mut bench, &association), 0);
    assert_eq!(
        set_protection(&mut bench, &other, 2),
        Some(Status::INVALID_FIELD.dnr().more())
    );
}

/// A command that changes the first block, and is accepted.
fn accept(bench: &mut Bench, conn: ConnId, command: Command) -> IoCommand {
    let cid = bench.new_cid();
    let queue = bench.queues.get_mut(&conn).unwrap();
    match queue.handle_capsule(&command.encode(cid, buffer(512)), &[]) {
        IoStep::Execute(command) => command,
        other => panic!("{other:?}"),
    }
}

const FIRST: LbaRange = LbaRange { slba: 0, nlb: 1 };

#[test]
fn write_protection_waits_for_writes_that_were_accepted_before() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let other = bench.associate(host(2), subnqn(), 0).unwrap();
    bench.enable(&other);
    let conn = bench.io_queue(&other, 1).unwrap();
    let left = bench.io_queue(&other, 2).unwrap();
    let write = accept(&mut bench, conn, Command::Write(Write::new(1, FIRST)));
    let mut read = accept(&mut bench, conn, Command::Read(Read::new(1, FIRST)));
    // One write stays on the backend when its queue has gone.
    let _lost = accept(&mut bench, left, Command::Write(Write::new(1, FIRST)));
    bench.disconnecting(left);

    assert_eq!(set_protection(&mut bench, &association, 1), None);
    let queue = bench.queues.get_mut(&conn).unwrap();
    queue.excuse(&mut read.permit);
    queue.complete(write.permit, Status::SUCCESS, 0);
    bench.poll_drained(conn);
    bench.poll();
    assert!(bench.flushes.is_empty(), "flushed before a write was over");
    bench.target.handle_disconnected(left, 0);
    bench.poll();
    let (flush, _) = bench.flushes.pop().expect("a flush behind the writes");
    assert!(
        bench.completions.is_empty(),
        "answered before it was flushed"
    );
    bench.target.handle_flushed(flush, true, 0);
    bench.poll();
    let (to, cqe) = bench.completions.pop().unwrap();
    assert_eq!((to, cqe.status()), (association.conn, Status::SUCCESS));
    let queue = bench.queues.get_mut(&conn).unwrap();
    let cqe = queue.complete(read.permit, Status::SUCCESS, 0);
    assert!(cqe.status().is_success());
}

#[test]
fn write_protection_waits_for_writes_where_there_is_nothing_to_flush() {
    let mut bench = Bench::new();
    let geometry = Geometry {
        volatile_write_cache: false,
        ..GEOMETRY
    };
    bench.target.set_geometry(&subnqn(), 1, geometry).unwrap();
    let association = bench.ready();
    let conn = bench.io_queue(&association, 1).unwrap();
    let write = accept(&mut bench, conn, Command::Write(Write::new(1, FIRST)));
    assert_eq!(set_protection(&mut bench, &association, 1), None);
    assert!(bench.completions.is_empty(), "answered before the write");
    let queue = bench.queues.get_mut(&conn).unwrap();
    queue.complete(write.permit, Status::SUCCESS, 0);
    bench.poll_drained(conn);
    bench.poll();
    let (_, cqe) = bench.completions.pop().unwrap();
    assert_eq!(cqe.status(), Status::SUCCESS);
    assert!(bench.flushes.is_empty());
}

#[test]
fn a_command_that_waited_is_asked_for_again() {
    let protect: fn(&mut Bench, &Association) = |bench, association| {
        assert_eq!(set_protection(bench, association, 1), None);
    };
    let lose_path: fn(&mut Bench, &Association) = |bench, _| {
        let target = &mut bench.target;
        target
            .set_ana_state(&subnqn(), PORT, 1, AnaState::INACCESSIBLE)
            .unwrap();
    };
    let make_read_only: fn(&mut Bench, &Association) = |bench, _| {
        let geometry = Geometry {
            read_only: true,
            ..GEOMETRY
        };
        bench.target.set_geometry(&subnqn(), 1, geometry).unwrap();
    };
    let remove: fn(&mut Bench, &Association) = |bench, _| {
        bench.target.remove_namespace(&subnqn(), 1).unwrap();
    };
    let replace: fn(&mut Bench, &Association) = |bench, _| {
        bench.target.remove_namespace(&subnqn(), 1).unwrap();
        let config = NamespaceConfig {
            backend: crate::BackendId(77),
            ..namespace_config(1)
        };
        bench.target.add_namespace(&subnqn(), config).unwrap();
    };
    let protected = Status::NAMESPACE_IS_WRITE_PROTECTED.dnr();
    let gone = Status::INVALID_NAMESPACE_OR_FORMAT.dnr();
    let inaccessible = Status::ASYMMETRIC_ACCESS_INACCESSIBLE;
    let cases = [
        (protect, Err(protected), Ok(())),
        (lose_path, Err(inaccessible), Err(inaccessible)),
        (make_read_only, Err(protected), Ok(())),
        (remove, Err(gone), Err(gone)),
        (replace, Err(gone), Err(gone)),
    ];
    for (number, (change, write_after, read_after)) in cases.into_iter().enumerate() {
        let mut bench = Bench::new();
        let association = bench.ready();
        let conn = bench.io_queue(&association, 1).unwrap();
        let write = accept(&mut bench, conn, Command::Write(Write::new(1, FIRST)));
        let read = accept(&mut bench, conn, Command::Read(Read::new(1, FIRST)));
        let again = |bench: &Bench| {
            let queue = &bench.queues[&conn];
            (queue.check_again(&write), queue.check_again(&read))
        };
        assert_eq!(again(&bench), (Ok(()), Ok(())), "case {number}");
        change(&mut bench, &association);
        bench.poll();
        assert_eq!(again(&bench), (write_after, read_after), "case {number}");
    }
}

#[test]
fn a_failed_flush_takes_write_protection_back() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let conn = bench.io_queue(&association, 1).unwrap();
    assert_eq!(set_protection(&mut bench, &association, 1), None);
    let (flush, _) = bench.flushes.pop().unwrap();
    bench.target.handle_flushed(flush, false, 0);
    bench.poll();
    let (_, cqe) = bench.completions.pop().unwrap();
    assert_eq!(cqe.status(), Status::INTERNAL_ERROR.more());
    assert_eq!(write_status(&mut bench, conn), Status::SUCCESS);
}

#[test]
fn what_the_operator_made_read_only_stays_so() {
    let mut bench = Bench::new();
    let geometry = Geometry {
        read_only: true,
        ..GEOMETRY
    };
    bench.target.set_geometry(&subnqn(), 1, geometry).unwrap();
    let association = bench.ready();
    assert_eq!(protection(&mut bench, &association), 1);
    assert_eq!(
        set_protection(&mut bench, &association, 1),
        Some(Status::SUCCESS)
    );
    assert_eq!(
        set_protection(&mut bench, &association, 0),
        Some(Status::FEATURE_NOT_CHANGEABLE.dnr().more())
    );
}

#[test]
fn mistakes_of_the_operator_are_named() {
    let mut bench = Bench::new();
    let target = &mut bench.target;
    let namespace = namespace_config(2);
    let odd = Geometry {
        lba_bytes: 1000,
        ..GEOMETRY
    };
    let errors = [
        target.add_namespace(&subnqn(), namespace_config(1)),
        target.add_namespace(&subnqn(), namespace_config(0)),
        target.add_namespace(&subnqn(), namespace_config(1025)),
        target.add_namespace(&host(1), namespace.clone()),
        target.add_namespace(
            &subnqn(),
            NamespaceConfig {
                anagrpid: 129,
                ..namespace
            },
        ),
        target.set_geometry(&subnqn(), 1, odd),
        target.set_geometry(&subnqn(), 9, GEOMETRY),
        target.remove_namespace(&subnqn(), 9),
        target.set_ana_state(&subnqn(), PortId(9), 1, AnaState::OPTIMIZED),
        target.set_ana_state(&subnqn(), PORT, 0, AnaState::OPTIMIZED),
        target.remove_port(PortId(9)),
        target.remove_subsystem(&host(1)),
        target.set_ports(&subnqn(), &[PortId(9)].into()),
    ]
    .map(|result| alloc::format!("{}", result.unwrap_err()));
    assert_eq!(
        errors,
        [
            "namespace 1 exists already, expected a new one",
            "nsid is 0, expected 1 to 1024",
            "nsid is 1025, expected 1 to 1024",
            "subsystem nqn.2024-01.org.example:host1 does not exist; check its name",
            "anagrpid is 129, expected 1 to 128",
            "logical block size is 1000 bytes, expected a power of two from 512 to 65536",
            "namespace 9 does not exist; check its name",
            "namespace 9 does not exist; check its name",
            "port 9 does not exist; check its name",
            "ANA group is 0, expected 1 to 128",
            "port 9 does not exist; check its name",
            "subsystem nqn.2024-01.org.example:host1 does not exist; check its name",
            "port 9 does not exist; check its name",
        ]
    );
}
