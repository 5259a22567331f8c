//! The fence: a new controller becomes ready when commands of earlier associations of its host are
//! over, and never before.

use alloc::vec::Vec;

use capstan_nvme_proto::command::{IoCommand as WireCommand, LbaRange, Protection, Write};
use capstan_nvme_proto::nqn::HostId;
use capstan_nvme_proto::property::{Cc, ShutdownNotification};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;

use crate::bounds::{FENCE_TOLD_US, FENCE_US_MAX};
use crate::testing::{Association, Bench, buffer, host, nqn, subnqn, subsystem_config};
use crate::{ConnId, DisconnectReason, IoStep, Permit, RefuseReason, SubsystemConfig};

fn write(cid: u16) -> Sqe {
    let command = WireCommand::Write(Write {
        nsid: 1,
        range: LbaRange { slba: 0, nlb: 1 },
        fua: false,
        limited_retry: false,
        protection: Protection::NONE,
        directive: capstan_nvme_proto::command::Directive { dtype: 0, dspec: 0 },
        dsm: 0,
    });
    command.encode(cid, buffer(512))
}

/// Gives a Write to the I/O queue `conn`, which stays on the medium.
fn begin_write(bench: &mut Bench, conn: ConnId, cid: u16) -> Permit {
    match bench
        .queues
        .get_mut(&conn)
        .unwrap()
        .handle_capsule(&write(cid), &[])
    {
        IoStep::Execute(io) => io.permit,
        other => panic!("{other:?}"),
    }
}

fn end_write(bench: &mut Bench, permit: Permit) {
    let conn = permit.conn();
    let queue = bench.queues.get_mut(&conn).unwrap();
    assert!(
        queue
            .complete(permit, Status::SUCCESS, 0)
            .status()
            .is_success()
    );
    bench.poll_drained(conn);
    bench.poll();
}

/// An association with an I/O queue.
fn with_queue(bench: &mut Bench) -> (Association, ConnId) {
    let association = bench.ready();
    let conn = bench.io_queue(&association, 1).unwrap();
    (association, conn)
}

/// Connects host 1 again and asks for the controller to be enabled.
fn again(bench: &mut Bench) -> Association {
    let association = bench.associate(host(1), subnqn(), 0).unwrap();
    assert!(
        bench
            .set_cc(&association, Cc::ENABLE_NVM)
            .status()
            .is_success()
    );
    association
}

#[test]
fn a_living_association_is_waited_for_up_to_what_it_had_received() {
    let mut bench = Bench::new();
    let (_old, conn) = with_queue(&mut bench);
    let before = begin_write(&mut bench, conn, 1);
    let new = again(&mut bench);
    assert!(!bench.csts(&new).rdy);
    let not_ready = RefuseReason::NotReady { cntlid: new.cntlid };
    assert_eq!(bench.io_queue(&new, 1).unwrap_err(), not_ready);
    // What comes later is not waited for: that path goes on.
    let later = begin_write(&mut bench, conn, 2);
    end_write(&mut bench, before);
    assert!(bench.csts(&new).rdy);
    bench.io_queue(&new, 1).unwrap();
    end_write(&mut bench, later);
    assert_eq!(bench.outstanding_told, []);
}

#[test]
fn what_a_host_left_on_a_medium_is_waited_for_however_it_left() {
    let ways: [fn(&mut Bench, &Association, ConnId); 4] = [
        // The admin queue first, as when a host crashes.
        |bench, old, conn| {
            bench.disconnect(old.conn);
            bench.disconnecting(conn);
        },
        |bench, old, conn| {
            bench.disconnecting(conn);
            bench.disconnect(old.conn);
        },
        // Only the I/O queue.
        |bench, _, conn| bench.disconnecting(conn),
        // Nothing: it only shut the controller down.
        |bench, old, _| {
            let cc = Cc {
                shn: ShutdownNotification::NORMAL,
                ..Cc::ENABLE_NVM
            };
            assert!(bench.set_cc(old, cc).status().is_success());
        },
    ];
    for (at, leave) in ways.into_iter().enumerate() {
        let mut bench = Bench::new();
        let (old, conn) = with_queue(&mut bench);
        let permit = begin_write(&mut bench, conn, 1);
        leave(&mut bench, &old, conn);
        let new = again(&mut bench);
        assert!(!bench.csts(&new).rdy, "{at}");
        if bench.queues.contains_key(&conn) {
            end_write(&mut bench, permit);
        } else {
            bench.disconnect(conn);
        }
        assert!(bench.csts(&new).rdy, "{at}");
    }
}

#[test]
fn a_connection_that_ends_meanwhile_is_through_when_its_medium_is() {
    let mut bench = Bench::new();
    let (old, conn) = with_queue(&mut bench);
    let _permit = begin_write(&mut bench, conn, 1);
    let new = again(&mut bench);
    bench.disconnect(old.conn);
    bench.disconnecting(conn);
    assert!(!bench.csts(&new).rdy);
    bench.disconnect(conn);
    assert!(bench.csts(&new).rdy);
}

#[test]
fn other_hosts_and_discovery_controllers_neither_wait_nor_are_waited_for() {
    let mut bench = Bench::new();
    let (_old, conn) = with_queue(&mut bench);
    let _permit = begin_write(&mut bench, conn, 1);
    let other = bench.associate(host(2), subnqn(), 0).unwrap();
    bench.enable(&other);
    let discovery = capstan_nvme_proto::nqn::Nqn::discovery();
    let discovery = bench.associate(host(1), discovery, 0).unwrap();
    bench.enable(&discovery);
}

/// A host is known by its Host Identifier, whatever it calls itself.
#[test]
fn the_host_identifier_and_the_subsystem_say_what_is_waited_for() {
    let mut bench = Bench::new();
    let other_subsystem = nqn("nqn.2024-01.org.example:other");
    let config = SubsystemConfig {
        nqn: other_subsystem.clone(),
        ..subsystem_config()
    };
    bench.target.add_subsystem(config).unwrap();
    let (old, conn) = with_queue(&mut bench);
    let permit = begin_write(&mut bench, conn, 1);
    let hostid = old.parameters.hostid;
    for (hostnqn, hostid, subnqn, waits) in [
        (host(2), hostid, subnqn(), true),
        (host(1), HostId([7; 16]), subnqn(), false),
        (host(1), hostid, other_subsystem, false),
    ] {
        let new = bench.associate_as(hostnqn, hostid, subnqn, 0).unwrap();
        let cqe = bench.set_cc(&new, Cc::ENABLE_NVM);
        assert!(cqe.status().is_success());
        assert_eq!(bench.csts(&new).rdy, !waits, "{:?}", new.parameters);
    }
    end_write(&mut bench, permit);
}

#[test]
fn a_controller_that_is_reset_waits_for_its_own_queues() {
    let mut bench = Bench::new();
    let (association, conn) = with_queue(&mut bench);
    let _permit = begin_write(&mut bench, conn, 1);
    let disabled = Cc {
        en: false,
        ..Cc::ENABLE_NVM
    };
    bench.set_cc(&association, disabled);
    assert_eq!(bench.disconnects.len(), 1);
    bench.disconnects.clear();
    bench.disconnecting(conn);
    assert!(!bench.csts(&association).rdy);
    bench.set_cc(&association, Cc::ENABLE_NVM);
    assert!(!bench.csts(&association).rdy);
    bench.disconnect(conn);
    assert!(bench.csts(&association).rdy);
    bench.io_queue(&association, 1).unwrap();
}

#[test]
fn a_queue_is_not_made_again_before_the_last_one_is_over() {
    let mut bench = Bench::new();
    let (association, conn) = with_queue(&mut bench);
    let _permit = begin_write(&mut bench, conn, 1);
    bench.disconnecting(conn);
    for qid in [1, 2] {
        let not_over = RefuseReason::QueueNotOver { qid, left: 1 };
        assert_eq!(not_over.status(), Status::CONNECT_CONTROLLER_BUSY);
        assert_eq!(bench.io_queue(&association, qid).unwrap_err(), not_over);
    }
    bench.disconnect(conn);
    bench.io_queue(&association, 1).unwrap();
    bench.io_queue(&association, 2).unwrap();
}

#[test]
fn what_another_controller_has_left_keeps_no_queue_out() {
    let mut bench = Bench::new();
    let (_old, conn) = with_queue(&mut bench);
    // A host of its own: nothing of the first one concerns it.
    let other = bench.associate(host(2), subnqn(), 0).unwrap();
    bench.enable(&other);
    let _permit = begin_write(&mut bench, conn, 1);
    bench.disconnecting(conn);
    bench.io_queue(&other, 1).unwrap();
}

#[test]
fn a_host_may_change_its_mind_while_it_waits() {
    let mut bench = Bench::new();
    let (_old, conn) = with_queue(&mut bench);
    let permit = begin_write(&mut bench, conn, 1);
    let new = again(&mut bench);
    let disabled = Cc {
        en: false,
        ..Cc::ENABLE_NVM
    };
    assert!(bench.set_cc(&new, disabled).status().is_success());
    assert!(bench.set_cc(&new, Cc::ENABLE_NVM).status().is_success());
    assert!(!bench.csts(&new).rdy);
    bench.set_cc(&new, disabled);
    end_write(&mut bench, permit);
    assert!(!bench.csts(&new).rdy);
    bench.enable(&new);
}

#[test]
fn a_fence_never_opens_by_time_and_the_log_says_what_it_waits_for() {
    let mut bench = Bench::new();
    let (old, conn) = with_queue(&mut bench);
    let permit = begin_write(&mut bench, conn, 1);
    let new = again(&mut bench);
    assert_eq!(bench.target.next_deadline_us(), Some(FENCE_TOLD_US));
    bench.wait_us(FENCE_TOLD_US);
    let told = bench.log.last().unwrap();
    let named = alloc::format!("cntlid={} qid=1", old.cntlid);
    assert!(told.contains("not over") && told.contains(&named), "{told}");
    assert_eq!(bench.outstanding_told, [conn]);
    assert_eq!(bench.target.next_deadline_us(), Some(FENCE_US_MAX));

    bench.wait_us(FENCE_US_MAX - FENCE_TOLD_US - 1);
    assert!(!bench.csts(&new).rdy && bench.disconnects.is_empty());
    bench.wait_us(1);
    assert!(!bench.csts(&new).rdy);
    let ended: Vec<_> = bench.disconnects.clone();
    let [(admin, why @ DisconnectReason::Fenced { queues: 1, .. })] = ended[..] else {
        panic!("{ended:?}");
    };
    assert_eq!(admin, new.conn);
    assert!(alloc::format!("{why}").contains("60000 ms"), "{why}");
    bench.close();
    assert_eq!(bench.target.next_deadline_us(), None);

    // The next try has a fence of its own, and says when it has opened.
    let next = again(&mut bench);
    bench.wait_us(FENCE_TOLD_US);
    assert!(!bench.csts(&next).rdy);
    end_write(&mut bench, permit);
    assert!(bench.csts(&next).rdy);
    assert!(
        bench.log.iter().any(|line| line.contains("waited_ms=1000")),
        "{:?}",
        bench.log
    );
}

/// An association whose fence did not open is over, whatever its host makes of the controller until
/// its connection is closed.
#[test]
fn a_controller_that_is_ending_gets_no_queue_past_its_fence() {
    let mut bench = Bench::new();
    let (_old, conn) = with_queue(&mut bench);
    let permit = begin_write(&mut bench, conn, 1);
    let new = again(&mut bench);
    for _ in 0..2 {
        bench.wait_us(FENCE_US_MAX);
    }
    assert!(bench.disconnects.iter().any(|(conn, _)| *conn == new.conn));
    for en in [false, true] {
        let cc = Cc {
            en,
            ..Cc::ENABLE_NVM
        };
        bench.set_cc(&new, cc);
    }
    let not_ready = RefuseReason::NotReady { cntlid: new.cntlid };
    assert_eq!(bench.io_queue(&new, 1).unwrap_err(), not_ready);
    end_write(&mut bench, permit);
}
