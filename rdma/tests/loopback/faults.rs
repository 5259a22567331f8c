//! Each fault, and what either side gets to know of it.

use capstan_rdma::contract::{
    CmEventKind, ConnectionManager, QpState, RejectReason, SendOp, WcStatus,
};
use capstan_rdma::loopback::{Delay, Fault, Faults, Notified, Traced};

use super::ends::{ACTIVE, Ends, Leg, Memory, PARAM, PASSIVE, SEND, signaled};

fn planned(plan: &[Fault]) -> Faults {
    Faults {
        plan: plan.to_vec(),
        ..Faults::NONE
    }
}

/// Posts an empty receive on one leg and an empty Send on the other.
fn post_message(from: &mut Leg, to: &mut Leg, wr_id: u64) {
    to.qp.post_recv(wr_id, &[]).unwrap();
    from.qp.post_send(&signaled(wr_id, SEND, &[])).unwrap();
    from.qp.ring_doorbell();
}

#[test]
fn qp_error_strikes_the_operation_it_names() {
    let status = WcStatus::LocalQpOperationError;
    let mut ends = Ends::new(
        1,
        planned(&[Fault::QpError {
            operation: 2,
            status,
        }]),
    );
    let [mut active, mut passive] = ends.connect();
    for wr_id in 0..4 {
        post_message(&mut active, &mut passive, wr_id);
    }
    let (a, p) = (active.qp.num(), passive.qp.num());
    let told: Vec<_> = (0..4)
        .map(|_| ends.completion(ACTIVE, a).unwrap())
        .collect();
    let flushed = WcStatus::WrFlushError;
    let good = WcStatus::Success;
    assert_eq!(told, [(0, good), (1, good), (2, status), (3, flushed)]);
    let told: Vec<_> = (0..4)
        .map(|_| ends.completion(PASSIVE, p).unwrap())
        .collect();
    assert_eq!(told, [(0, good), (1, good), (2, flushed), (3, flushed)]);
    assert!(ends.cause(ACTIVE, active.id).contains("Send failed"));
    assert!(ends.cause(PASSIVE, passive.id).contains("the peer ended"));
}

#[test]
fn connection_loss_is_told_to_whom_it_says() {
    for (notified, active_knows, passive_knows) in [
        (Notified::Both, true, true),
        (Notified::Active, true, false),
        (Notified::Passive, false, true),
        (Notified::Neither, false, false),
    ] {
        let at_us = 5_000;
        let fault = Fault::LoseConnection {
            connection: Some(0),
            at_us,
            notified,
        };
        let mut ends = Ends::new(2, planned(&[fault]));
        let [active, passive] = ends.connect();
        let [other_active, other_passive] = ends.connect();
        ends.network.advance_to(at_us - 1);
        assert!(!ends.poll(), "struck too early");
        ends.network.advance_to(at_us + 1_000_000);
        ends.poll();
        let state = |knows| {
            if knows {
                QpState::Error
            } else {
                QpState::ReadyToSend
            }
        };
        assert_eq!(active.qp.state(), state(active_knows), "{notified:?}");
        assert_eq!(passive.qp.state(), state(passive_knows), "{notified:?}");
        // The other connection goes on.
        assert_eq!(other_active.qp.state(), QpState::ReadyToSend);
        let (mut from, mut to) = (other_active, other_passive);
        post_message(&mut from, &mut to, 9);
        assert_eq!(
            ends.completion(PASSIVE, to.qp.num()),
            Some((9, WcStatus::Success))
        );
    }
}

#[test]
fn requests_on_a_silently_lost_connection_time_out() {
    let mut ends = Ends::new(3, Faults::NONE);
    let [mut active, mut passive] = ends.connect();
    ends.network.strike(Fault::LoseConnection {
        connection: None,
        at_us: 0,
        notified: Notified::Neither,
    });
    let start_us = ends.network.now_us();
    post_message(&mut active, &mut passive, 1);
    active.qp.post_send(&signaled(2, SEND, &[])).unwrap();
    active.qp.ring_doorbell();
    let a = active.qp.num();
    assert_eq!(
        ends.completion(ACTIVE, a),
        Some((1, WcStatus::RetryExceededError))
    );
    assert_eq!(
        ends.completion(ACTIVE, a),
        Some((2, WcStatus::WrFlushError))
    );
    assert!(
        ends.network.now_us() - start_us >= 1_000_000,
        "gave up at once"
    );
    ends.cause(ACTIVE, active.id);
    // The idle side never learns: that is what Keep Alive is for.
    assert!(ends.event(PASSIVE, passive.id).is_none());
    assert_eq!(passive.qp.state(), QpState::ReadyToSend);
    drop(passive.qp);
}

#[test]
fn dropped_connect_times_out_and_the_next_one_works() {
    let mut ends = Ends::new(4, planned(&[Fault::DropConnect { nth: 0 }]));
    let lost = ends.ask(200_000).unwrap();
    match ends.event(ACTIVE, lost.id) {
        Some(CmEventKind::Failed(error)) => {
            assert_eq!(
                error.to_string(),
                format!(
                    "connecting to {} timed out after 200 ms; check that the address is right and \
                     reachable",
                    ends.at
                )
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(ends.network.now_us(), 200_000);
    ends.connect();
}

#[test]
fn removed_device_tells_every_id_and_comes_back() {
    let mut ends = Ends::new(5, Faults::NONE);
    let [active, passive] = ends.connect();
    let memory = Memory::new(&ends.pd(PASSIVE), 4096);
    ends.network.strike(Fault::RemoveDevice {
        provider: ends.machines[PASSIVE].index(),
        at_us: 0,
    });
    assert!(
        ends.cause(ACTIVE, active.id)
            .contains("the device was removed")
    );
    let listener = ends.listener;
    for id in [listener, passive.id] {
        let kind = ends.event(PASSIVE, id);
        assert!(matches!(kind, Some(CmEventKind::DeviceRemoved)), "{kind:?}");
    }
    assert_eq!(passive.qp.state(), QpState::Error);
    let gone = ends.ends[PASSIVE].manager.device(passive.id).unwrap();
    assert!(gone.is_removed());
    let any = std::net::SocketAddr::new(super::ends::address(PASSIVE), 0);
    assert!(ends.ends[PASSIVE].manager.listen(any, 1).is_err());
    // Nothing answers at its address.
    assert!(ends.ask(100_000).is_none());
    ends.network.strike(Fault::RestoreDevice {
        provider: ends.machines[PASSIVE].index(),
        at_us: 0,
    });
    let [mut active, passive] = ends.connect();
    let back = ends.ends[PASSIVE].manager.device(passive.id).unwrap();
    assert!(gone.is_removed() && !back.is_removed());
    // What was registered before stays dead.
    let back = Memory::new(&ends.pd(ACTIVE), 4096);
    let read = SendOp::Read(memory.remote(0));
    active
        .qp
        .post_send(&signaled(1, read, &[back.sge(0, 8)]))
        .unwrap();
    active.qp.ring_doorbell();
    let told = ends.completion(ACTIVE, active.qp.num());
    assert_eq!(told, Some((1, WcStatus::RemoteAccessError)));
    assert!(ends.cause(PASSIVE, passive.id).contains("names no memory"));
}

#[test]
fn more_reads_than_the_peer_serves_end_the_connection() {
    let mut ends = Ends::new(6, Faults::NONE);
    let mut active = ends.ask(1_000_000).unwrap();
    let request = ends.requested().unwrap();
    let qp = ends.make_qp(PASSIVE, request);
    // The passive side ignores that the active one serves four only.
    let mut param = PARAM;
    param.initiator_depth = 8;
    ends.ends[PASSIVE].manager.accept(request, &param).unwrap();
    let mut passive = Leg { id: request, qp };
    ends.event(ACTIVE, active.id).unwrap();
    ends.event(PASSIVE, passive.id).unwrap();
    let there = Memory::new(&ends.pd(ACTIVE), 4096);
    let back = Memory::new(&ends.pd(PASSIVE), 4096);
    active.qp.post_recv(100, &[]).unwrap();
    for wr_id in 0..8 {
        let read = SendOp::Read(there.remote(0));
        passive
            .qp
            .post_send(&signaled(wr_id, read, &[back.sge(0, 64)]))
            .unwrap();
    }
    passive.qp.ring_doorbell();
    let p = passive.qp.num();
    let told: Vec<_> = (0..8)
        .map(|_| ends.completion(PASSIVE, p).unwrap())
        .collect();
    let first_bad = told
        .iter()
        .position(|&(_, status)| status != WcStatus::Success)
        .unwrap();
    assert!(first_bad <= 4, "{told:?}");
    assert!(
        ends.cause(ACTIVE, active.id)
            .contains("more RDMA READs at once")
    );
}

#[test]
fn overrun_completion_queue_breaks_the_queue_pair() {
    let mut ends = Ends::new(7, Faults::NONE);
    let mut active = ends.ask(1_000_000).unwrap();
    let request = ends.requested().unwrap();
    let qp = ends.make_qp_on_cq(PASSIVE, request, 4);
    ends.ends[PASSIVE].manager.accept(request, &PARAM).unwrap();
    let mut passive = Leg { id: request, qp };
    ends.event(ACTIVE, active.id).unwrap();
    ends.event(PASSIVE, passive.id).unwrap();
    for wr_id in 0..5 {
        post_message(&mut active, &mut passive, wr_id);
    }
    // The passive side's queue is not polled while five messages arrive.
    ends.network.advance_to(ends.network.now_us() + 1);
    assert!(ends.cause(PASSIVE, passive.id).contains("overrun"));
}

#[test]
fn connect_without_a_listener_is_refused() {
    let mut ends = Ends::new(8, Faults::NONE);
    let listener = ends.listener;
    ends.ends[PASSIVE].manager.destroy(listener);
    let leg = ends.ask(1_000_000).unwrap();
    match ends.event(ACTIVE, leg.id) {
        Some(CmEventKind::Rejected { reason, .. }) => assert_eq!(reason, RejectReason::NoListener),
        other => panic!("{other:?}"),
    }
}

#[test]
fn full_backlog_is_refused() {
    let mut ends = Ends::new(9, Faults::NONE);
    let at = std::net::SocketAddr::new(super::ends::address(PASSIVE), 0);
    (ends.listener, ends.at) = ends.ends[PASSIVE].manager.listen(at, 2).unwrap();
    let legs: Vec<Leg> = (0..3).map(|_| ends.ask(1_000_000).unwrap()).collect();
    match ends.event(ACTIVE, legs[2].id) {
        Some(CmEventKind::Rejected { reason, .. }) => {
            assert!(
                matches!(
                    reason,
                    RejectReason::Other {
                        code: libc::ENOMEM,
                        ..
                    }
                ),
                "{reason:?}"
            );
        }
        other => panic!("{other:?}"),
    }
}

/// Messages of different queue pairs overtake each other, those of one never do.
#[test]
fn reordering_is_across_queue_pairs_only() {
    let faults = Faults {
        delay: Delay::Uniform {
            min_us: 0,
            max_us: 1000,
        },
        ..Faults::NONE
    };
    let mut ends = Ends::new(10, faults);
    let mut links: Vec<[Leg; 2]> = (0..4).map(|_| ends.connect()).collect();
    for wr_id in 0..20 {
        for [active, passive] in &mut links {
            post_message(active, passive, wr_id);
        }
    }
    for [active, passive] in &links {
        for wr_id in 0..20 {
            let done = Some((wr_id, WcStatus::Success));
            assert_eq!(ends.completion(PASSIVE, passive.qp.num()), done);
            assert_eq!(ends.completion(ACTIVE, active.qp.num()), done);
        }
    }
    let placed: Vec<(u32, u64)> = ends
        .network
        .trace()
        .iter()
        .filter_map(|event| match event.what {
            Traced::Placed { qp, wr_id, .. } => Some((qp, wr_id)),
            _ => None,
        })
        .collect();
    assert_eq!(placed.len(), 80);
    for [active, _] in &links {
        let own = placed.iter().filter(|(qp, _)| *qp == active.qp.num().0);
        assert!(own.map(|&(_, wr_id)| wr_id).eq(0..20));
    }
    // Posted round by round; some later round of one pair came before an earlier one of another.
    assert!(!placed.iter().map(|&(_, wr_id)| wr_id).is_sorted());
}

/// An answer may be received before the request's own completion comes (another queue's business).
#[test]
fn reply_can_come_before_the_completion_of_the_request() {
    let faults = Faults {
        delay: Delay::Uniform {
            min_us: 1,
            max_us: 100,
        },
        ..Faults::NONE
    };
    let mut seen = [false; 2];
    for seed in 0..40 {
        let mut ends = Ends::new(seed, faults.clone());
        let [mut active, mut passive] = ends.connect();
        active.qp.post_recv(7, &[]).unwrap();
        post_message(&mut active, &mut passive, 1);
        ends.completion(PASSIVE, passive.qp.num()).unwrap();
        passive.qp.post_send(&signaled(2, SEND, &[])).unwrap();
        passive.qp.ring_doorbell();
        let (first, _) = ends.completion(ACTIVE, active.qp.num()).unwrap();
        seen[usize::from(first == 7)] = true;
    }
    assert_eq!(seen, [true, true], "only one order was ever seen");
}

/// One machine may connect to itself.
#[test]
fn a_machine_reaches_itself() {
    let mut ends = Ends::new(11, Faults::NONE);
    let own = ends.machines[PASSIVE].clone();
    ends.ends[ACTIVE].manager = own.manager().unwrap();
    let [mut active, mut passive] = ends.connect();
    post_message(&mut active, &mut passive, 1);
    assert_eq!(
        ends.completion(PASSIVE, passive.qp.num()),
        Some((1, WcStatus::Success))
    );
    let addresses = ends.ends[ACTIVE].manager.addresses(active.id).unwrap();
    assert_eq!(addresses.0.ip(), super::ends::address(PASSIVE));
}

/// A request given to the wrong manager is refused to the peer.
#[test]
fn a_request_is_adopted_on_its_own_machine_only() {
    for elsewhere in [false, true] {
        let mut ends = Ends::new(12, Faults::NONE);
        let other = Ends::new(12, Faults::NONE);
        let active = ends.ask(1_000_000).unwrap();
        let request = ends.requested().unwrap();
        let moved = ends.ends[PASSIVE].manager.migrate(request).unwrap();
        let [machine, _] = if elsewhere {
            &other.machines
        } else {
            &ends.machines
        };
        let mut wrong = machine.manager().unwrap();
        assert!(wrong.adopt(moved).is_err());
        match ends.event(ACTIVE, active.id) {
            Some(CmEventKind::Rejected { reason, .. }) => {
                assert_eq!(reason, RejectReason::Consumer);
            }
            other => panic!("{other:?}"),
        }
    }
}
