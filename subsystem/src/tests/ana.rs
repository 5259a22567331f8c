//! ANA groups, their states through each port, and what hosts are told when they change.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::{
    AdminCommand, GetLogPage, Identify, IoCommand as Command, LbaRange, Read, Write,
};
use capstan_nvme_proto::identify::{AnaCapabilities, Cns, IdentifyController, IdentifyNamespace};
use capstan_nvme_proto::log::{
    AnaLogHeader, AnaState, ChangedNamespaceList, LogPageId, RdmaProviderType,
};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;

use crate::testing::{
    Association, Bench, GEOMETRY, PORT, address, buffer, host, namespace_config, nqn, subnqn,
    subsystem_config,
};
use crate::{ConnId, Geometry, IoStep, NamespaceConfig, PortConfig, PortId, SubsystemConfig};

const SECOND_PORT: PortId = PortId(2);
const OTHER_STATES: [AnaState; 4] = [
    AnaState::NON_OPTIMIZED,
    AnaState::INACCESSIBLE,
    AnaState::PERSISTENT_LOSS,
    AnaState::CHANGE,
];

/// A target with a second port, through which its subsystem is reached as well.
fn bench() -> Bench {
    let mut bench = Bench::new();
    let port = PortConfig {
        id: SECOND_PORT,
        address: address("0.0.0.0:4421"),
        rdma: Some(RdmaProviderType::IWARP),
        tcp: false,
        tcp_port: None,
    };
    bench.target.add_port(port).unwrap();
    let ports = [PORT, SECOND_PORT].into();
    bench.target.set_ports(&subnqn(), &ports).unwrap();
    bench
}

/// A host that is connected through a port, waits for an event and has an I/O queue.
fn connect(bench: &mut Bench, number: u8, port: PortId) -> (Association, ConnId) {
    bench.port = port;
    let association = bench.associate(host(number), subnqn(), 0).unwrap();
    bench.enable(&association);
    let conn = bench.io_queue(&association, 1).unwrap();
    await_event(bench, &association);
    (association, conn)
}

fn await_event(bench: &mut Bench, association: &Association) {
    let cid = bench.new_cid();
    let request = AdminCommand::AsynchronousEventRequest.encode(cid, Sgl::EMPTY);
    assert!(bench.send_admin(association.conn, &request).is_none());
}

/// What each connection was told.
fn events(bench: &mut Bench) -> Vec<(ConnId, AsyncEvent)> {
    bench.poll();
    let told = bench.completions.drain(..);
    told.map(|(conn, cqe)| (conn, AsyncEvent::decode(cqe.dw0.get())))
        .collect()
}

fn read_status(bench: &mut Bench, conn: ConnId, nsid: u32) -> Status {
    let command = Command::Read(Read::new(nsid, LbaRange { slba: 0, nlb: 1 }));
    status(bench, conn, &command)
}

fn status(bench: &mut Bench, conn: ConnId, command: &Command) -> Status {
    let cid = bench.new_cid();
    let queue = bench.queues.get_mut(&conn).unwrap();
    match queue.handle_capsule(&command.encode(cid, buffer(512)), &[]) {
        IoStep::Execute(command) => queue.complete(command.permit, Status::SUCCESS, 0).status(),
        IoStep::Complete(cqe) => cqe.status(),
        other => panic!("{other:?}"),
    }
}

/// A group in the log page: its identifier, Change Count, state and namespaces.
type Group = (u32, u64, AnaState, Vec<u32>);

/// The log page, with its Change Count. Reading it asks for the next event.
fn page(bench: &mut Bench, association: &Association) -> (u64, Vec<Group>) {
    let get = AdminCommand::GetLogPage(GetLogPage::new(LogPageId::ANA, 256));
    let (cqe, data) = bench.admin(association, &get);
    assert!(cqe.status().is_success(), "{cqe:?}");
    let (header, groups) = AnaLogHeader::parse(&data).unwrap();
    let groups = groups.map(|group| {
        let group = group.unwrap();
        (
            group.header.group_id.get(),
            group.header.change_count.get(),
            group.header.state(),
            group.nsids.iter().map(|nsid| nsid.get()).collect(),
        )
    });
    (header.change_count.get(), groups.collect())
}

fn identify(bench: &mut Bench, association: &Association, cns: Cns, nsid: u32) -> Vec<u8> {
    let identify = AdminCommand::Identify(Identify::new(cns, nsid));
    let (cqe, data) = bench.admin(association, &identify);
    assert!(cqe.status().is_success(), "{cqe:?}");
    data
}

#[test]
fn a_state_is_that_of_one_port_and_one_subsystem() {
    for state in OTHER_STATES {
        let mut bench = bench();
        let other = SubsystemConfig {
            nqn: nqn("nqn.2024-01.org.example:other"),
            ..subsystem_config()
        };
        let other_nqn = other.nqn.clone();
        bench.target.add_subsystem(other).unwrap();
        let (one, one_io) = connect(&mut bench, 1, PORT);
        let (two, two_io) = connect(&mut bench, 2, SECOND_PORT);
        let target = &mut bench.target;
        target.set_ana_state(&other_nqn, PORT, 1, state).unwrap();
        assert_eq!(events(&mut bench), [], "another subsystem");
        let target = &mut bench.target;
        target.set_ana_state(&subnqn(), PORT, 1, state).unwrap();
        let told = events(&mut bench);
        assert_eq!(told, [(one.conn, AsyncEvent::ANA_CHANGE)], "{state}");
        let is_refused = |status: Status| status != Status::SUCCESS;
        let expected = state != AnaState::NON_OPTIMIZED;
        let refused = is_refused(read_status(&mut bench, one_io, 1));
        assert_eq!(refused, expected, "{state}");
        assert_eq!(read_status(&mut bench, two_io, 1), Status::SUCCESS);
        assert_eq!(page(&mut bench, &one).1[0].2, state);
        assert_eq!(page(&mut bench, &two).1[0].2, AnaState::OPTIMIZED);
    }
}

#[test]
fn states_are_replaced_by_others_as_a_whole_and_told_where_they_change() {
    let mut bench = bench();
    let (one, one_io) = connect(&mut bench, 1, PORT);
    let (two, two_io) = connect(&mut bench, 2, SECOND_PORT);
    let first = BTreeMap::from([((PORT, 1), AnaState::INACCESSIBLE)]);
    bench
        .target
        .set_ana_states(&subnqn(), first.clone())
        .unwrap();
    assert_eq!(events(&mut bench), [(one.conn, AsyncEvent::ANA_CHANGE)]);
    let before = page(&mut bench, &one);
    await_event(&mut bench, &one);
    // The same once more, and what is optimized anyway.
    let same = first
        .into_iter()
        .chain([((SECOND_PORT, 1), AnaState::OPTIMIZED)]);
    bench
        .target
        .set_ana_states(&subnqn(), same.collect())
        .unwrap();
    assert_eq!(events(&mut bench), []);
    assert_eq!(page(&mut bench, &one), before);
    // The path of the one for that of the other, in one step.
    let other = BTreeMap::from([((SECOND_PORT, 1), AnaState::INACCESSIBLE)]);
    bench.target.set_ana_states(&subnqn(), other).unwrap();
    let told = events(&mut bench);
    let change = AsyncEvent::ANA_CHANGE;
    assert_eq!(told, [(one.conn, change), (two.conn, change)]);
    assert_eq!(read_status(&mut bench, one_io, 1), Status::SUCCESS);
    assert_eq!(
        read_status(&mut bench, two_io, 1),
        Status::ASYMMETRIC_ACCESS_INACCESSIBLE.more()
    );
    // What is not accepted changes nothing.
    let bad = [(PORT, 1), (PORT, 129)].map(|key| (key, AnaState::CHANGE));
    let error = bench
        .target
        .set_ana_states(&subnqn(), bad.into())
        .unwrap_err();
    assert_eq!(
        alloc::format!("{error}"),
        "ANA group is 129, expected 1 to 128"
    );
    assert_eq!(read_status(&mut bench, one_io, 1), Status::SUCCESS);
}

#[test]
fn a_namespace_moves_to_another_group_while_hosts_use_it() {
    let mut bench = bench();
    let second = NamespaceConfig {
        anagrpid: 2,
        ..namespace_config(2)
    };
    bench.target.add_namespace(&subnqn(), second).unwrap();
    let target = &mut bench.target;
    let state = AnaState::INACCESSIBLE;
    target.set_ana_state(&subnqn(), PORT, 2, state).unwrap();
    let (association, conn) = connect(&mut bench, 1, PORT);
    assert_eq!(read_status(&mut bench, conn, 1), Status::SUCCESS);
    let (count, groups) = page(&mut bench, &association);
    assert_eq!(groups.len(), 2);
    bench.target.set_ana_group(&subnqn(), 1, 2).unwrap();
    // The attributes have not changed; the group is for the log page to tell.
    let told = events(&mut bench);
    assert_eq!(told, [(association.conn, AsyncEvent::ANA_CHANGE)]);
    let get = GetLogPage::new(LogPageId::CHANGED_NAMESPACES, 4096);
    let (_, data) = bench.admin(&association, &AdminCommand::GetLogPage(get));
    let changed = ChangedNamespaceList::from_data(&data).unwrap();
    assert_eq!(changed.iter().count(), 0);
    let (after, groups) = page(&mut bench, &association);
    assert!(after > count);
    assert_eq!(groups, [(2, after, AnaState::INACCESSIBLE, [1, 2].into())]);
    assert_eq!(
        read_status(&mut bench, conn, 1),
        Status::ASYMMETRIC_ACCESS_INACCESSIBLE.more()
    );
    let data = identify(&mut bench, &association, Cns::NAMESPACE, 1);
    let namespace = IdentifyNamespace::from_data(&data).unwrap();
    assert_eq!(namespace.anagrpid.get(), 2);
    // A group whose state is that of the old one is news, too: hosts know the state by the group.
    await_event(&mut bench, &association);
    bench.target.set_ana_group(&subnqn(), 1, 3).unwrap();
    assert_eq!(events(&mut bench).len(), 1);
    assert_eq!(read_status(&mut bench, conn, 1), Status::SUCCESS);
    let unchanged = page(&mut bench, &association);
    await_event(&mut bench, &association);
    bench.target.set_ana_group(&subnqn(), 1, 3).unwrap();
    assert_eq!(events(&mut bench), []);
    assert_eq!(page(&mut bench, &association), unchanged);
    for (nsid, group) in [(1, 0), (1, 129), (9, 1)] {
        bench
            .target
            .set_ana_group(&subnqn(), nsid, group)
            .unwrap_err();
    }
}

/// Each group counts its own changes, so that a host reads only what is new of many groups.
#[test]
fn the_page_counts_changes_and_each_group_those_of_its_own() {
    let mut bench = bench();
    let second = NamespaceConfig {
        anagrpid: 2,
        ..namespace_config(2)
    };
    bench.target.add_namespace(&subnqn(), second).unwrap();
    let (association, _) = connect(&mut bench, 1, PORT);
    let counts = |bench: &mut Bench| {
        let (count, groups) = page(bench, &association);
        (count, groups.iter().map(|of| of.1).collect::<Vec<_>>())
    };
    let (first, groups) = counts(&mut bench);
    assert!(first > 0 && groups.iter().all(|&count| count > 0));
    let target = &mut bench.target;
    let state = AnaState::CHANGE;
    target.set_ana_state(&subnqn(), PORT, 2, state).unwrap();
    let (second, after) = counts(&mut bench);
    assert!(second > first);
    assert_eq!(after, [groups[0], second]);
    bench.target.remove_namespace(&subnqn(), 1).unwrap();
    let (third, after) = counts(&mut bench);
    assert!(third > second);
    assert_eq!(after, [second]);
}

/// Linux takes a path for one of several by these: without them it ignores the log page.
#[test]
fn a_controller_says_what_it_has_of_ana_and_that_groups_may_change() {
    let mut bench = bench();
    let (association, _) = connect(&mut bench, 1, PORT);
    let data = identify(&mut bench, &association, Cns::CONTROLLER, 0);
    let controller = IdentifyController::from_data(&data).unwrap();
    let all = AnaCapabilities::OPTIMIZED
        | AnaCapabilities::NON_OPTIMIZED
        | AnaCapabilities::INACCESSIBLE
        | AnaCapabilities::PERSISTENT_LOSS
        | AnaCapabilities::CHANGE;
    assert_eq!(controller.anacap, all.bits());
    assert_eq!(controller.cmic & 0b1010, 0b1010, "several controllers, ANA");
    let numbers = (controller.anagrpmax.get(), controller.nanagrpid.get());
    assert_eq!(numbers, (128, 128));
    assert!(controller.anatt_seconds > 0);
}

/// An I/O queue has its new table a little later than the operator says it.
#[test]
fn what_is_made_read_only_is_written_no_more_from_then_on_and_again_after_it() {
    let mut bench = bench();
    let (association, conn) = connect(&mut bench, 1, PORT);
    let write = Command::Write(Write::new(1, LbaRange { slba: 0, nlb: 1 }));
    let shown = |read_only| Geometry {
        read_only,
        ..GEOMETRY
    };
    let target = &mut bench.target;
    target.set_geometry(&subnqn(), 1, shown(true)).unwrap();
    let refused = Status::NAMESPACE_IS_WRITE_PROTECTED.dnr().more();
    assert_eq!(status(&mut bench, conn, &write), refused);
    let told = events(&mut bench);
    let changed = AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED;
    assert_eq!(told, [(association.conn, changed)]);
    let attributes = |bench: &mut Bench| {
        let data = identify(bench, &association, Cns::NAMESPACE, 1);
        IdentifyNamespace::from_data(&data).unwrap().nsattr
    };
    assert_eq!(attributes(&mut bench), 1);
    assert_eq!(read_status(&mut bench, conn, 1), Status::SUCCESS);
    let target = &mut bench.target;
    target.set_geometry(&subnqn(), 1, shown(false)).unwrap();
    bench.poll();
    assert_eq!(attributes(&mut bench), 0);
    assert_eq!(status(&mut bench, conn, &write), Status::SUCCESS);
}
