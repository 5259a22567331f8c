//! Cross-Controller Reset: who may be reset by whom, and when it is told to be over.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::{
    AdminCommand, CrossControllerReset, GetLogPage, Identify, SetFeatures,
};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::fabrics::CNTLID_MAX;
use capstan_nvme_proto::features::{AsyncEventConfiguration, FeatureId};
use capstan_nvme_proto::identify::{Cns, IdentifyController};
use capstan_nvme_proto::log::{
    CrossControllerResetEntry, CrossControllerResetFlags, CrossControllerResetLogHeader,
    CrossControllerResetStatus, LSP_REMOVE_COMPLETED, LogPageId, RdmaProviderType,
};
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::property::Cc;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;

use crate::testing::{Association, Bench, PORT, address, host, subnqn, subsystem_config};
use crate::{DisconnectReason, SubsystemConfig, TargetConfig, Transport};

const DISABLED: Cc = Cc {
    en: false,
    ..Cc::ENABLE_NVM
};

fn identify(bench: &mut Bench, association: &Association) -> IdentifyController {
    let command = AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0));
    let (cqe, data) = bench.admin(association, &command);
    assert!(cqe.status().is_success());
    IdentifyController::from_data(&data).unwrap().clone()
}

/// What resets a controller, as it tells its host.
fn reset_of(bench: &mut Bench, association: &Association) -> CrossControllerReset {
    let identify = identify(bench, association);
    CrossControllerReset {
        icid: identify.cntlid.get(),
        ciu: identify.ciu,
        cirn: identify.cirn.get(),
    }
}

fn reset(bench: &mut Bench, through: &Association, reset: CrossControllerReset) -> Cqe {
    let command = AdminCommand::CrossControllerReset(reset);
    bench.admin(through, &command).0
}

/// Whether a reset was over at once.
fn is_immediate(cqe: &Cqe) -> bool {
    assert!(cqe.status().is_success(), "{cqe:?}");
    CrossControllerReset::was_immediate(cqe.dw0.get())
}

fn log(bench: &mut Bench, through: &Association, lsp: u8) -> Vec<CrossControllerResetEntry> {
    let get = GetLogPage {
        lsp,
        ..GetLogPage::new(LogPageId::CROSS_CONTROLLER_RESET, 4096)
    };
    let (cqe, data) = bench.admin(through, &AdminCommand::GetLogPage(get));
    assert!(cqe.status().is_success(), "{cqe:?}");
    let (header, entries) = CrossControllerResetLogHeader::parse(&data).unwrap();
    assert_eq!(usize::from(header.entries.get()), entries.len());
    entries.to_vec()
}

fn statuses(entries: &[CrossControllerResetEntry]) -> Vec<CrossControllerResetStatus> {
    entries.iter().map(|entry| entry.status).collect()
}

/// A second association of host 1.
fn second(bench: &mut Bench) -> Association {
    let association = bench.associate(host(1), subnqn(), 0).unwrap();
    bench.enable(&association);
    association
}

#[test]
fn every_instance_has_a_name_of_its_own() {
    let mut bench = Bench::new();
    let first = bench.ready();
    let data = identify(&mut bench, &first);
    assert_eq!((data.ccrl, data.cqt_ms.get()), (4, 10_000));
    let wants = AsyncEventConfiguration::CROSS_CONTROLLER_RESET_COMPLETED.bits();
    assert_eq!(data.oaes.get() & wants, wants);
    let one = reset_of(&mut bench, &first);
    bench.set_cc(&first, DISABLED);
    bench.enable(&first);
    let two = reset_of(&mut bench, &first);
    assert_eq!(two.ciu, one.ciu.wrapping_add(1).max(1));
    assert!(one.ciu != 0 && two.ciu != 0 && one.cirn != two.cirn);

    // Another process has other numbers, whatever hosts do.
    let mut other = Bench::with(TargetConfig {
        seed: [1, 2],
        ..TargetConfig::default()
    });
    let again = other.ready();
    assert_ne!(reset_of(&mut other, &again).cirn, one.cirn);

    let discovery = bench.associate(host(1), Nqn::discovery(), 0).unwrap();
    bench.enable(&discovery);
    let data = identify(&mut bench, &discovery);
    assert_eq!((data.ciu, data.cirn.get(), data.ccrl), (0, 0, 0));
    let cqe = reset(&mut bench, &discovery, two);
    assert_eq!(cqe.status().code(), Status::INVALID_OPCODE);
}

#[test]
fn a_reset_is_over_when_the_connections_are_gone_and_the_medium_is_quiet() {
    let mut bench = Bench::new();
    let old = bench.ready();
    let conn = bench.io_queue(&old, 1).unwrap();
    let new = second(&mut bench);
    let wants = AsyncEventConfiguration::CROSS_CONTROLLER_RESET_COMPLETED.bits();
    let feature = SetFeatures::new(FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION, wants);
    bench.admin(&new, &AdminCommand::SetFeatures(feature));
    let event = AdminCommand::AsynchronousEventRequest.encode(900, Sgl::EMPTY);
    assert!(bench.send_admin(new.conn, &event).is_none());

    let target = reset_of(&mut bench, &old);
    assert!(!is_immediate(&reset(&mut bench, &new, target)));
    let why = DisconnectReason::CrossControllerReset { cntlid: new.cntlid };
    assert!(why.gives_up());
    let mut ended: Vec<_> = bench.disconnects.drain(..).collect();
    ended.sort_by_key(|(conn, _)| *conn);
    assert_eq!(ended, [(old.conn, why), (conn, why)]);

    // Once more before it is over: it is on its way already.
    let status = reset(&mut bench, &new, target).status();
    assert_eq!(status.code(), Status::CROSS_CONTROLLER_RESET_IN_PROGRESS);
    // The admin queue goes, the I/O queue leaves a command behind.
    bench.disconnect(old.conn);
    bench.disconnecting(conn);
    let entries = log(&mut bench, &new, LSP_REMOVE_COMPLETED);
    assert_eq!(
        statuses(&entries),
        [CrossControllerResetStatus::IN_PROGRESS]
    );
    assert!(bench.completions.is_empty(), "told too early");
    bench.disconnect(conn);
    let (_, cqe) = bench.completions.pop().expect("the notice");
    let event = AsyncEvent::decode(cqe.dw0.get());
    assert_eq!(event, AsyncEvent::CROSS_CONTROLLER_RESET_COMPLETED);

    let entries = log(&mut bench, &new, 0);
    let expected = CrossControllerResetEntry::new(
        old.cntlid,
        target.ciu,
        new.cntlid,
        CrossControllerResetStatus::SUCCESSFUL,
        CrossControllerResetFlags::all(),
    );
    assert_eq!(entries, [expected]);
    assert_eq!(log(&mut bench, &new, LSP_REMOVE_COMPLETED), [expected]);
    assert_eq!(log(&mut bench, &new, 0), []);
    // From now on it is known to be no more.
    assert!(is_immediate(&reset(&mut bench, &new, target)));
    assert_eq!(log(&mut bench, &new, 0), []);
}

#[test]
fn a_controller_that_has_ended_is_reset_when_its_commands_are_over() {
    let mut bench = Bench::new();
    let old = bench.ready();
    let conn = bench.io_queue(&old, 1).unwrap();
    let left = bench.io_queue(&old, 2).unwrap();
    let new = second(&mut bench);
    let target = reset_of(&mut bench, &old);
    bench.disconnecting(conn);
    bench.disconnect(left);
    bench.disconnect(old.conn);
    bench.disconnects.clear();
    assert!(!is_immediate(&reset(&mut bench, &new, target)));
    assert!(bench.disconnects.is_empty(), "there is nothing to end");
    // Its CNTLID is not used again, however many controllers come and go.
    let mut given = 0;
    let mut cntlids = BTreeSet::from([old.cntlid, new.cntlid]);
    while cntlids.len() < usize::from(CNTLID_MAX) {
        let next = bench.associate(host(2), subnqn(), 0).unwrap();
        assert!(cntlids.insert(next.cntlid), "CNTLID {}", next.cntlid);
        bench.disconnect(next.conn);
        given += 1;
    }
    let again = bench.associate(host(2), subnqn(), 0).unwrap();
    assert_eq!((given, again.cntlid), (CNTLID_MAX - 2, new.cntlid + 1));
    bench.disconnect(conn);
    let entries = log(&mut bench, &new, 0);
    assert_eq!(statuses(&entries), [CrossControllerResetStatus::SUCCESSFUL]);
    assert!(is_immediate(&reset(&mut bench, &new, target)));
}

#[test]
fn an_instance_that_was_reset_is_not_the_one_that_came_after_it() {
    let mut bench = Bench::new();
    let old = bench.ready();
    let new = second(&mut bench);
    let before = reset_of(&mut bench, &old);
    bench.set_cc(&old, DISABLED);
    bench.enable(&old);
    assert!(is_immediate(&reset(&mut bench, &new, before)));
    assert!(bench.disconnects.is_empty(), "the new instance goes on");
    for wrong in [
        CrossControllerReset {
            icid: 0x7777,
            ..before
        },
        CrossControllerReset { cirn: 1, ..before },
    ] {
        assert!(is_immediate(&reset(&mut bench, &new, wrong)));
    }
}

#[test]
fn nobody_resets_itself_or_another_host() {
    let mut bench = Bench::new();
    let own = bench.ready();
    // Both the Host NQN and the Host Identifier have to be the same.
    let hostid = own.parameters.hostid;
    let others = [
        (host(2), HostId([2; 16])),
        (host(1), HostId([2; 16])),
        (host(2), hostid),
    ];
    let mut targets = Vec::from([reset_of(&mut bench, &own)]);
    for (hostnqn, hostid) in others {
        let other = bench.associate_as(hostnqn, hostid, subnqn(), 0).unwrap();
        bench.enable(&other);
        targets.push(reset_of(&mut bench, &other));
    }
    for target in targets {
        let status = reset(&mut bench, &own, target).status();
        assert_eq!(status.code(), Status::INVALID_FIELD, "{target:?}");
        assert!(status.is_dnr());
    }
    assert!(bench.disconnects.is_empty());
}

#[test]
fn resets_in_progress_are_bounded() {
    let mut bench = Bench::new();
    let through = bench.ready();
    let mut many: Vec<_> = (0..5).map(|_| second(&mut bench)).collect();
    let last = many.pop().unwrap();
    for old in &many {
        let target = reset_of(&mut bench, old);
        assert!(!is_immediate(&reset(&mut bench, &through, target)));
    }
    let target = reset_of(&mut bench, &last);
    let status = reset(&mut bench, &through, target).status();
    assert_eq!(status.code(), Status::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED);
    assert!(!status.is_dnr());
    bench.close();
    assert!(!is_immediate(&reset(&mut bench, &through, target)));
    bench.close();
    // A reset of the controller that was asked leaves only what it has not told to be over.
    assert_eq!(log(&mut bench, &through, 0).len(), 5);
    bench.set_cc(&through, DISABLED);
    bench.enable(&through);
    assert_eq!(log(&mut bench, &through, 0), []);
}

#[test]
fn the_log_page_has_room_for_a_bounded_number() {
    let mut bench = Bench::new();
    let through = bench.ready();
    for _ in 0..64 {
        let old = second(&mut bench);
        let target = reset_of(&mut bench, &old);
        assert!(!is_immediate(&reset(&mut bench, &through, target)));
        bench.close();
    }
    let old = second(&mut bench);
    let target = reset_of(&mut bench, &old);
    let status = reset(&mut bench, &through, target).status();
    assert_eq!(status.code(), Status::CROSS_CONTROLLER_RESET_LOG_PAGE_FULL);
    // Half of the page is read, and that half is forgotten.
    let half = GetLogPage {
        lsp: LSP_REMOVE_COMPLETED,
        ..GetLogPage::new(LogPageId::CROSS_CONTROLLER_RESET, 8 + 32 * 8 + 4)
    };
    bench.admin(&through, &AdminCommand::GetLogPage(half));
    assert_eq!(log(&mut bench, &through, 0).len(), 32);
    assert!(!is_immediate(&reset(&mut bench, &through, target)));
}

#[test]
fn an_older_association_from_the_same_address_ends_where_the_operator_wants_it() {
    for wanted in [false, true] {
        let mut bench = Bench::new();
        let config = SubsystemConfig {
            end_older_association: wanted,
            ..subsystem_config()
        };
        bench.target.remove_subsystem(&subnqn()).unwrap();
        bench.target.add_subsystem(config).unwrap();
        let rdma = Some(RdmaProviderType::IWARP);
        bench.target.set_port_transports(PORT, rdma, true).unwrap();
        let old = bench.ready();
        let conn = bench.io_queue(&old, 1).unwrap();
        // Each of these differs in one thing, and is none of it.
        let hostid = old.parameters.hostid;
        let other_id = HostId([7; 16]);
        let other_nqn = bench.associate_as(host(2), hostid, subnqn(), 0).unwrap();
        let other_id = bench.associate_as(host(1), other_id, subnqn(), 0).unwrap();
        let (local, peer) = (bench.local, bench.peer);
        bench.peer = address("10.0.0.8:50000");
        let other_peer = bench.associate(host(1), subnqn(), 0).unwrap();
        (bench.peer, bench.local) = (peer, address("10.0.0.6:4420"));
        let other_local = bench.associate(host(1), subnqn(), 0).unwrap();
        bench.local = local;
        bench.transport = Transport::Tcp;
        let other_transport = bench.associate(host(1), subnqn(), 0).unwrap();
        bench.transport = Transport::Rdma;
        assert_eq!(bench.disconnects, []);
        // Another port of the host is another connection of the same address.
        bench.peer = address("10.0.0.9:50001");
        let new = bench.associate(host(1), subnqn(), 0).unwrap();
        let why = DisconnectReason::Replaced {
            cntlid: new.cntlid,
            peer: bench.peer,
        };
        let mut ended: Vec<_> = bench.disconnects.drain(..).collect();
        ended.sort_by_key(|(conn, _)| *conn);
        if !wanted {
            assert_eq!(ended, []);
            continue;
        }
        assert_eq!(ended, [(old.conn, why), (conn, why)]);
        bench.disconnect(conn);
        bench.disconnect(old.conn);
        for association in [
            new,
            other_nqn,
            other_id,
            other_peer,
            other_local,
            other_transport,
        ] {
            bench.enable(&association);
        }
    }
}
