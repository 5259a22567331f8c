//! Another namespace under the NSID of one that hosts have.

use alloc::vec;
use alloc::vec::Vec;

use capstan_nvme_proto::command::{
    AdminCommand, Identify, IoCommand as Command, LbaRange, Read, SetFeatures, Write,
};
use capstan_nvme_proto::features::{FeatureId, WriteProtectionState};
use capstan_nvme_proto::identify::{Cns, NamespaceList};
use capstan_nvme_proto::sqe::NSID_BROADCAST;
use capstan_nvme_proto::status::Status;

use crate::testing::{Association, Bench, buffer, host, namespace_config, subnqn};
use crate::{BackendId, ConnId, IoStep, NamespaceConfig, NamespaceIdentity};

const GONE: Status = Status::INVALID_NAMESPACE_OR_FORMAT;
const IDENTIFIERS: Cns = Cns::NAMESPACE_ID_DESCRIPTORS;
const FIRST: LbaRange = LbaRange { slba: 0, nlb: 1 };

fn other() -> NamespaceConfig {
    NamespaceConfig {
        backend: BackendId(77),
        identity: NamespaceIdentity {
            nguid: Some([77; 16]),
            ..NamespaceIdentity::default()
        },
        ..namespace_config(1)
    }
}

/// What the operator does: in one step.
fn replace(bench: &mut Bench, by: NamespaceConfig) {
    bench.target.remove_namespace(&subnqn(), 1).unwrap();
    bench.target.add_namespace(&subnqn(), by).unwrap();
    bench.poll();
}

/// The backend that a write reaches.
fn write(bench: &mut Bench, conn: ConnId) -> Result<BackendId, Status> {
    let cid = bench.new_cid();
    let queue = bench.queues.get_mut(&conn).unwrap();
    let command = Command::Write(Write::new(1, FIRST)).encode(cid, buffer(512));
    match queue.handle_capsule(&command, &[]) {
        IoStep::Execute(command) => {
            let backend = command.namespace.backend;
            queue.complete(command.permit, Status::SUCCESS, 0);
            Ok(backend)
        }
        IoStep::Complete(cqe) => Err(cqe.status()),
        other => panic!("{other:?}"),
    }
}

fn read(bench: &mut Bench, conn: ConnId) -> Result<(), Status> {
    let cid = bench.new_cid();
    let queue = bench.queues.get_mut(&conn).unwrap();
    let command = Command::Read(Read::new(1, FIRST)).encode(cid, buffer(512));
    match queue.handle_capsule(&command, &[]) {
        IoStep::Execute(command) => {
            queue.complete(command.permit, Status::SUCCESS, 0);
            Ok(())
        }
        IoStep::Complete(cqe) => Err(cqe.status()),
        other => panic!("{other:?}"),
    }
}

fn identify(bench: &mut Bench, of: &Association, cns: Cns, nsid: u32) -> (Status, Vec<u8>) {
    let identify = Identify::new(cns, nsid);
    let (cqe, data) = bench.admin(of, &AdminCommand::Identify(identify));
    bench.poll();
    (cqe.status(), data)
}

fn list(bench: &mut Bench, of: &Association, above: u32) -> Vec<u32> {
    let (status, data) = identify(bench, of, Cns::ACTIVE_NAMESPACES, above);
    assert_eq!(status, Status::SUCCESS);
    NamespaceList::from_data(&data).unwrap().iter().collect()
}

#[test]
fn a_host_that_goes_on_reaches_nothing_until_it_has_seen_the_old_one_gone_and_the_new_one() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let conn = bench.io_queue(&association, 1).unwrap();
    assert_eq!(write(&mut bench, conn), Ok(BackendId(1)));
    replace(&mut bench, other());
    let gone = Err(GONE.dnr().more());
    assert_eq!(write(&mut bench, conn), gone);
    // It looks without having seen that the old one is gone: there is nothing.
    let (status, _) = identify(&mut bench, &association, Cns::NAMESPACE_ID_DESCRIPTORS, 1);
    assert_eq!(status, GONE.dnr().more());
    assert_eq!(write(&mut bench, conn), gone);
    // A list that begins behind it says nothing of it.
    assert!(list(&mut bench, &association, 1).is_empty());
    assert_eq!(write(&mut bench, conn), gone);
    assert!(list(&mut bench, &association, 0).is_empty(), "it is gone");
    // What it sends until it has taken that in is for the old one.
    assert_eq!(
        (write(&mut bench, conn), read(&mut bench, conn)),
        (gone, Err(GONE.dnr().more()))
    );
    assert_eq!(list(&mut bench, &association, 0), [1], "another one");
    assert_eq!(write(&mut bench, conn), gone);
    let (status, _) = identify(&mut bench, &association, Cns::NAMESPACE_ID_DESCRIPTORS, 1);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(write(&mut bench, conn), Ok(BackendId(77)));
    assert_eq!(read(&mut bench, conn), Ok(()));
}

#[test]
fn the_same_namespace_is_back_at_once_and_a_third_one_is_another() {
    let mut bench = Bench::new();
    let association = bench.ready();
    let conn = bench.io_queue(&association, 1).unwrap();
    let reopened = NamespaceConfig {
        backend: BackendId(2),
        ..namespace_config(1)
    };
    replace(&mut bench, reopened.clone());
    assert_eq!(write(&mut bench, conn), Ok(BackendId(2)));
    // Away and back before the host looks.
    replace(&mut bench, other());
    replace(&mut bench, reopened);
    assert_eq!(write(&mut bench, conn), Ok(BackendId(2)));
    // Seen gone long ago.
    bench.target.remove_namespace(&subnqn(), 1).unwrap();
    assert!(list(&mut bench, &association, 0).is_empty());
    bench.target.add_namespace(&subnqn(), other()).unwrap();
    bench.poll();
    assert!(write(&mut bench, conn).is_err(), "not identified");
    let (status, _) = identify(&mut bench, &association, Cns::NAMESPACE, 1);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(write(&mut bench, conn), Ok(BackendId(77)));
}

#[test]
fn a_new_association_has_what_is_there() {
    let mut bench = Bench::new();
    let association = bench.ready();
    replace(&mut bench, other());
    let later = bench.associate(host(2), subnqn(), 0).unwrap();
    bench.enable(&later);
    let conn = bench.io_queue(&later, 1).unwrap();
    assert_eq!(write(&mut bench, conn), Ok(BackendId(77)));
    let old = bench.io_queue(&association, 1).unwrap();
    assert!(
        write(&mut bench, old).is_err(),
        "also on a queue that is new"
    );
}

/// Reads what these structures tell of namespace 1.
fn look(bench: &mut Bench, of: &Association, cnss: &[Cns]) {
    for cns in cnss {
        let (status, _) = identify(bench, of, *cns, 1);
        assert_eq!(status, Status::SUCCESS, "{cns}");
    }
}

/// What Linux 6.12 reads of a namespace that it has and finds again: the shape a second time when
/// it has compared the identifiers.
fn accept(bench: &mut Bench, of: &Association) {
    look(bench, of, &[IDENTIFIERS, Cns::NAMESPACE, Cns::NAMESPACE]);
}

/// A namespace under an NSID where hosts have seen others.
fn replacing() -> NamespaceConfig {
    NamespaceConfig {
        replaces: true,
        ..other()
    }
}

#[test]
fn each_association_identifies_what_is_where_others_were() {
    let mut bench = Bench::new();
    replace(&mut bench, replacing());
    // It comes back with commands for what was there, before it looks: it may send them again.
    let first = bench.ready();
    let conn = bench.io_queue(&first, 1).unwrap();
    let not_ready = Status::NAMESPACE_NOT_READY.more();
    assert_eq!(write(&mut bench, conn), Err(not_ready));
    assert_eq!(read(&mut bench, conn), Err(not_ready));
    // A list says nothing of what is there.
    assert_eq!(list(&mut bench, &first, 0), [1]);
    assert_eq!(write(&mut bench, conn), Err(not_ready));
    accept(&mut bench, &first);
    assert_eq!(write(&mut bench, conn), Ok(BackendId(77)));
    // Another program of the same host, and another path of it, know nothing of that.
    let second = bench.ready();
    let conn_of_second = bench.io_queue(&second, 1).unwrap();
    assert_eq!(write(&mut bench, conn_of_second), Err(not_ready));
    assert_eq!(write(&mut bench, conn), Ok(BackendId(77)));
    accept(&mut bench, &second);
    assert_eq!(write(&mut bench, conn_of_second), Ok(BackendId(77)));
}

#[test]
fn a_host_that_waits_is_told_how_long() {
    let mut bench = Bench::new();
    replace(&mut bench, replacing());
    let association = bench.ready();
    let conn = bench.io_queue(&association, 1).unwrap();
    let not_ready = Status::NAMESPACE_NOT_READY.more();
    let (_, controller) = identify(&mut bench, &association, Cns::CONTROLLER, 0);
    // CRDT1 is in bytes 129:128, CRDT2 and CRDT3 behind it: a second, and two that no status uses.
    assert_eq!(controller[128..134], [10, 0, 0, 0, 0, 0]);
    for (acre, expected) in [(0, not_ready), (1, not_ready.with_crd(1)), (0, not_ready)] {
        let mut behavior = [0; 512];
        behavior[0] = acre;
        let set = bench.set_host_behavior(&association, &behavior);
        assert_eq!(set, Status::SUCCESS);
        assert_eq!(write(&mut bench, conn), Err(expected));
    }
    accept(&mut bench, &association);
    assert_eq!(write(&mut bench, conn), Ok(BackendId(77)));
}

#[test]
fn what_comes_where_nothing_was_is_identified_where_others_were_before() {
    let mut bench = Bench::new();
    bench.target.remove_namespace(&subnqn(), 1).unwrap();
    // It has had nothing there in this association, and may have had in an earlier one.
    let association = bench.ready();
    let conn = bench.io_queue(&association, 1).unwrap();
    bench.target.add_namespace(&subnqn(), replacing()).unwrap();
    bench.poll();
    let not_ready = Err(Status::NAMESPACE_NOT_READY.more());
    assert_eq!(write(&mut bench, conn), not_ready);
    accept(&mut bench, &association);
    assert_eq!(write(&mut bench, conn), Ok(BackendId(77)));
    // The same one opened anew is what it has identified; seen gone, it is not.
    replace(&mut bench, replacing());
    assert_eq!(write(&mut bench, conn), Ok(BackendId(77)));
    bench.target.remove_namespace(&subnqn(), 1).unwrap();
    assert!(list(&mut bench, &association, 0).is_empty());
    bench.target.add_namespace(&subnqn(), replacing()).unwrap();
    bench.poll();
    assert_eq!(write(&mut bench, conn), Err(GONE.dnr().more()));
}

#[test]
fn a_host_has_what_it_accepts_and_nothing_of_what_it_looks_at() {
    let shapes = [
        Cns::NAMESPACE,
        Cns::NAMESPACE_IOCS,
        Cns::NAMESPACE_INDEPENDENT,
    ];
    // What it has read, and what it reads when it takes that for its own.
    let mut cases = vec![
        (vec![IDENTIFIERS; 3], vec![Cns::NAMESPACE, Cns::NAMESPACE]),
        (
            vec![],
            vec![IDENTIFIERS, Cns::NAMESPACE_INDEPENDENT, Cns::NAMESPACE],
        ),
        // Another look begins, or one of a program with the same association comes before.
        (
            vec![
                Cns::NAMESPACE,
                IDENTIFIERS,
                Cns::NAMESPACE,
                IDENTIFIERS,
                Cns::NAMESPACE,
            ],
            vec![Cns::NAMESPACE],
        ),
    ];
    for shape in shapes {
        cases.push((vec![shape; 3], vec![IDENTIFIERS, shape, shape]));
        cases.push((vec![IDENTIFIERS, shape], vec![Cns::NAMESPACE]));
        cases.push((vec![shape, IDENTIFIERS, shape], vec![Cns::NAMESPACE]));
    }
    for (looks, accepts) in cases {
        let mut bench = Bench::new();
        replace(&mut bench, replacing());
        let association = bench.ready();
        let conn = bench.io_queue(&association, 1).unwrap();
        let (last, before) = accepts.split_last().unwrap();
        for cns in looks.iter().chain(before) {
            look(&mut bench, &association, &[*cns]);
            let not_ready = Err(Status::NAMESPACE_NOT_READY.more());
            assert_eq!(write(&mut bench, conn), not_ready, "{looks:?}");
        }
        look(&mut bench, &association, &[*last]);
        assert_eq!(write(&mut bench, conn), Ok(BackendId(77)), "{looks:?}");
    }
}

#[test]
fn a_host_that_shows_no_decision_has_had_the_time_for_one() {
    let second = 1_000_000;
    let not_ready = Err(Status::NAMESPACE_NOT_READY.more());
    for (looks, seconds) in [
        (vec![IDENTIFIERS, Cns::NAMESPACE], 3),
        (vec![Cns::NAMESPACE, IDENTIFIERS], 3),
        (vec![Cns::NAMESPACE, Cns::NAMESPACE], 7),
        (vec![IDENTIFIERS], 7),
    ] {
        let mut bench = Bench::new();
        replace(&mut bench, replacing());
        let association = bench.ready();
        let conn = bench.io_queue(&association, 1).unwrap();
        assert_eq!(
            bench.target.next_deadline_us(),
            None,
            "no look, no end of it"
        );
        look(&mut bench, &association, &looks);
        let ends_us = bench.now_us + seconds * second;
        assert_eq!(bench.target.next_deadline_us(), Some(ends_us), "{looks:?}");
        bench.wait_us(seconds * second - 1);
        assert_eq!(write(&mut bench, conn), not_ready, "{looks:?}");
        // What has begun goes on, and has no more time for it.
        look(&mut bench, &association, &[IDENTIFIERS]);
        assert_eq!(bench.target.next_deadline_us(), Some(ends_us), "{looks:?}");
        bench.wait_us(1);
        assert_eq!(write(&mut bench, conn), Ok(BackendId(77)), "{looks:?}");
        assert_eq!(bench.target.next_deadline_us(), None);
    }
    // Where hosts have seen nothing else, there is nothing to wait for.
    let mut bench = Bench::new();
    let association = bench.ready();
    look(&mut bench, &association, &[IDENTIFIERS]);
    assert_eq!(bench.target.next_deadline_us(), None);
}

#[test]
fn a_host_that_reads_all_before_it_connects_a_queue_goes_on_at_once() {
    for (looks, is_enough) in [
        ([Cns::NAMESPACE, IDENTIFIERS], true),
        ([IDENTIFIERS, Cns::NAMESPACE], true),
        ([Cns::NAMESPACE, Cns::NAMESPACE], false),
        ([IDENTIFIERS, IDENTIFIERS], false),
    ] {
        let mut bench = Bench::new();
        replace(&mut bench, replacing());
        let association = bench.ready();
        look(&mut bench, &association, &looks);
        let conn = bench.io_queue(&association, 1).unwrap();
        assert_eq!(write(&mut bench, conn).is_ok(), is_enough, "{looks:?}");
    }
}

#[test]
fn nothing_is_set_for_a_namespace_that_is_not_identified() {
    let mut bench = Bench::new();
    replace(&mut bench, replacing());
    let association = bench.ready();
    let mut set = |fid, nsid, value| {
        let set = SetFeatures {
            nsid,
            ..SetFeatures::new(fid, value)
        };
        let (cqe, _) = bench.admin(&association, &AdminCommand::SetFeatures(set));
        bench.poll();
        cqe.status()
    };
    let features = [
        (FeatureId::ERROR_RECOVERY, 5),
        (FeatureId::RESERVATION_NOTIFICATION_MASK, 0),
        (FeatureId::RESERVATION_PERSISTENCE, 0),
        (
            FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG,
            WriteProtectionState::PROTECTED.encode(),
        ),
    ];
    for (fid, value) in features {
        let status = set(fid, 1, value);
        assert_eq!(status, Status::NAMESPACE_NOT_READY.more(), "{fid}");
    }
    let status = set(FeatureId::RESERVATION_NOTIFICATION_MASK, NSID_BROADCAST, 0);
    assert_eq!(status, Status::NAMESPACE_NOT_READY.more());
    // Of the controller, not of a namespace.
    let status = set(FeatureId::ARBITRATION, 0, 7);
    assert_eq!(status, Status::SUCCESS);
    accept(&mut bench, &association);
    let conn = bench.io_queue(&association, 1).unwrap();
    assert_eq!(write(&mut bench, conn), Ok(BackendId(77)), "not protected");
}
