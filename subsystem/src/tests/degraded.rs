//! Backends that have lost data: what hosts are told that did not ask.

use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::{AdminCommand, GetLogPage, SetFeatures};
use capstan_nvme_proto::features::FeatureId;
use capstan_nvme_proto::log::{CriticalWarning, HealthLog, LogPageId};
use capstan_nvme_proto::sgl::Sgl;

use crate::testing::{Association, Bench, host, namespace_config, subnqn};
use crate::{BackendId, HostPolicy, NamespaceConfig};

fn warning(bench: &mut Bench, association: &Association) -> CriticalWarning {
    let get = AdminCommand::GetLogPage(GetLogPage::new(LogPageId::HEALTH, 512));
    let (cqe, data) = bench.admin(association, &get);
    assert!(cqe.status().is_success(), "{cqe:?}");
    CriticalWarning::from_bits_retain(HealthLog::from_data(&data).unwrap().critical_warning)
}

fn await_event(bench: &mut Bench, association: &Association) {
    let cid = bench.new_cid();
    let request = AdminCommand::AsynchronousEventRequest.encode(cid, Sgl::EMPTY);
    assert!(bench.send_admin(association.conn, &request).is_none());
}

fn events(bench: &mut Bench) -> Vec<AsyncEvent> {
    bench.poll();
    let completions = bench.completions.drain(..);
    completions
        .map(|(_, cqe)| AsyncEvent::decode(cqe.dw0.get()))
        .collect()
}

/// A namespace with a backend of its own, for the host alone.
fn add(bench: &mut Bench, nsid: u32, number: u8) -> BackendId {
    let backend = BackendId(nsid + 70);
    let config = NamespaceConfig {
        backend,
        visible_to: HostPolicy::Only([host(number)].into()),
        ..namespace_config(nsid)
    };
    bench.target.add_namespace(&subnqn(), config).unwrap();
    backend
}

#[test]
fn lost_data_is_a_warning_and_an_event_for_those_who_see_the_namespace() {
    let mut bench = Bench::new();
    let backend = add(&mut bench, 2, 1);
    let sees = bench.ready();
    let other = bench.associate(host(2), subnqn(), 0).unwrap();
    bench.enable(&other);
    for association in [&sees, &other] {
        assert_eq!(warning(&mut bench, association), CriticalWarning::empty());
        await_event(&mut bench, association);
    }
    bench.target.handle_data_lost(backend, bench.now_us);
    assert_eq!(events(&mut bench), [AsyncEvent::NVM_SUBSYSTEM_RELIABILITY]);
    assert_eq!(warning(&mut bench, &sees), CriticalWarning::RELIABILITY);
    assert_eq!(warning(&mut bench, &other), CriticalWarning::empty());
    // Every reactor may say so; hosts hear of it once.
    await_event(&mut bench, &sees);
    bench.target.handle_data_lost(backend, bench.now_us);
    assert!(events(&mut bench).is_empty());
    // A host that comes back changes nothing; taking the namespace out does.
    let again = bench.associate(host(1), subnqn(), 0).unwrap();
    bench.enable(&again);
    assert_eq!(warning(&mut bench, &again), CriticalWarning::RELIABILITY);
    bench.target.remove_namespace(&subnqn(), 2).unwrap();
    bench.poll();
    assert_eq!(warning(&mut bench, &again), CriticalWarning::empty());
    add(&mut bench, 2, 1);
    bench.poll();
    assert_eq!(warning(&mut bench, &again), CriticalWarning::empty());
    // Of a backend that is gone nothing is kept.
    bench.target.remove_namespace(&subnqn(), 2).unwrap();
    bench.target.handle_data_lost(backend, bench.now_us);
    add(&mut bench, 2, 1);
    bench.poll();
    assert_eq!(warning(&mut bench, &again), CriticalWarning::empty());
}

#[test]
fn what_the_operator_has_cleared_is_news_when_it_happens_again() {
    let mut bench = Bench::new();
    let backend = add(&mut bench, 2, 1);
    let sees = bench.ready();
    for _ in 0..2 {
        await_event(&mut bench, &sees);
        bench.target.handle_data_lost(backend, bench.now_us);
        assert_eq!(events(&mut bench), [AsyncEvent::NVM_SUBSYSTEM_RELIABILITY]);
        assert_eq!(warning(&mut bench, &sees), CriticalWarning::RELIABILITY);
        bench.target.handle_loss_cleared(backend, bench.now_us);
        assert!(events(&mut bench).is_empty());
        assert_eq!(warning(&mut bench, &sees), CriticalWarning::empty());
    }
    // A medium that is not where it belongs is not cleared by that.
    bench.target.handle_medium(backend, false, bench.now_us);
    bench.target.handle_loss_cleared(backend, bench.now_us);
    assert_eq!(warning(&mut bench, &sees), CriticalWarning::RELIABILITY);
}

#[test]
fn a_host_that_wants_no_such_event_gets_none() {
    let mut bench = Bench::new();
    let backend = add(&mut bench, 2, 1);
    let association = bench.ready();
    let none = SetFeatures::new(FeatureId::ASYNCHRONOUS_EVENT_CONFIGURATION, 0x100);
    let (cqe, _) = bench.admin(&association, &AdminCommand::SetFeatures(none));
    assert!(cqe.status().is_success(), "{cqe:?}");
    await_event(&mut bench, &association);
    bench.target.handle_data_lost(backend, bench.now_us);
    assert!(events(&mut bench).is_empty());
    assert_eq!(
        warning(&mut bench, &association),
        CriticalWarning::RELIABILITY
    );
}

#[test]
fn a_medium_that_refuses_writes_is_a_warning_of_its_namespace_until_it_takes_them() {
    let mut bench = Bench::new();
    let backend = add(&mut bench, 2, 1);
    let sees = bench.ready();
    let read_only = |bench: &mut Bench, is_so| {
        let now_us = bench.now_us;
        bench.target.handle_medium_read_only(backend, is_so, now_us);
    };
    await_event(&mut bench, &sees);
    read_only(&mut bench, true);
    assert_eq!(events(&mut bench), [AsyncEvent::NVM_SUBSYSTEM_RELIABILITY]);
    await_event(&mut bench, &sees);
    read_only(&mut bench, true);
    assert!(events(&mut bench).is_empty(), "told already");
    assert_eq!(warning(&mut bench, &sees), CriticalWarning::READ_ONLY);
    bench.target.handle_medium(backend, false, bench.now_us);
    let both = CriticalWarning::READ_ONLY | CriticalWarning::RELIABILITY;
    assert_eq!(warning(&mut bench, &sees), both);
    bench.target.handle_medium(backend, true, bench.now_us);
    read_only(&mut bench, false);
    assert_eq!(warning(&mut bench, &sees), CriticalWarning::empty());
}

#[test]
fn a_medium_that_is_not_where_it_belongs_is_a_warning_until_it_is_back() {
    let mut bench = Bench::new();
    let backend = add(&mut bench, 2, 1);
    let sees = bench.ready();
    await_event(&mut bench, &sees);
    bench.target.handle_medium(backend, true, bench.now_us);
    assert!(events(&mut bench).is_empty(), "it always was there");
    bench.target.handle_medium(backend, false, bench.now_us);
    assert_eq!(events(&mut bench), [AsyncEvent::NVM_SUBSYSTEM_RELIABILITY]);
    assert_eq!(warning(&mut bench, &sees), CriticalWarning::RELIABILITY);
    await_event(&mut bench, &sees);
    bench.target.handle_medium(backend, false, bench.now_us);
    assert!(events(&mut bench).is_empty(), "told already");
    bench.target.handle_medium(backend, true, bench.now_us);
    assert_eq!(warning(&mut bench, &sees), CriticalWarning::empty());
    // What was lost stays lost when the medium is back.
    bench.target.handle_data_lost(backend, bench.now_us);
    bench.target.handle_medium(backend, false, bench.now_us);
    bench.target.handle_medium(backend, true, bench.now_us);
    assert_eq!(warning(&mut bench, &sees), CriticalWarning::RELIABILITY);
    // Of a backend that nobody has any more nothing is kept.
    bench.target.remove_namespace(&subnqn(), 2).unwrap();
    bench.target.handle_medium(backend, false, bench.now_us);
    add(&mut bench, 2, 1);
    bench.poll();
    assert_eq!(warning(&mut bench, &sees), CriticalWarning::empty());
}
