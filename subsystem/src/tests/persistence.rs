//! Reservations that persist through power loss: what is to be kept before which answer, and what
//! becomes of what was kept.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use capstan_nvme_proto::command::{
    AdminCommand, GetFeatures, Identify, IoCommand as Command, LbaRange, Read, SetFeatures, Write,
};
use capstan_nvme_proto::features::FeatureId;
use capstan_nvme_proto::identify::{Cns, IdentifyNamespace, ReservationCapabilities};
use capstan_nvme_proto::property::Cc;
use capstan_nvme_proto::reservation::{
    AcquireAction, AcquireData, ChangePtpl, RegisterAction, RegisterData, ReleaseAction,
    ReleaseData, ReservationAcquire, ReservationRegister, ReservationRelease, ReservationReport,
    ReservationStatus, ReservationType,
};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::NSID_BROADCAST;
use capstan_nvme_proto::status::Status;
use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::testing::{Association, Bench, buffer, host, namespace_config, subnqn};
use crate::{
    ConnId, ControlOutcome, IoStep, KeptReservations, NamespaceConfig, NamespaceIdentity, Permit,
    Persistence,
};

/// The one that can persist its reservations; namespace 1 cannot.
const NSID: u32 = 2;
const UUID: Uuid = Uuid::from_u128(0x1234);
const EXCLUSIVE: ReservationType = ReservationType::EXCLUSIVE_ACCESS;
const ONE: [u8; 16] = [1; 16];
const TWO: [u8; 16] = [2; 16];

fn namespace(persistence: Persistence) -> NamespaceConfig {
    NamespaceConfig {
        identity: NamespaceIdentity {
            uuid: Some(UUID),
            ..NamespaceIdentity::default()
        },
        persistence,
        ..namespace_config(NSID)
    }
}

/// A target that has found this, and hosts 1 and 2.
fn bench(persistence: Persistence) -> (Bench, [Association; 2], [ConnId; 2]) {
    let mut bench = Bench::new();
    let config = namespace(persistence);
    bench.target.add_namespace(&subnqn(), config).unwrap();
    let associations = [1, 2].map(|number| {
        let association = bench.associate(host(number), subnqn(), 0).unwrap();
        bench.enable(&association);
        association
    });
    let queues = [0, 1].map(|at: usize| bench.io_queue(&associations[at], 1).unwrap());
    (bench, associations, queues)
}

/// Executes a reservation command: its status, or what completes it later.
fn execute(
    bench: &mut Bench,
    conn: ConnId,
    command: Command,
    data: &[u8],
) -> Result<(Status, Vec<u8>), Permit> {
    let cid = bench.new_cid();
    let length = u32::try_from(command.data_transfer(512).bytes()).unwrap();
    let queue = bench.queues.get_mut(&conn).unwrap();
    let IoStep::Control(control) = queue.handle_capsule(&command.encode(cid, buffer(length)), &[])
    else {
        panic!("{command:?}");
    };
    let mut out = Vec::new();
    let outcome = bench.target.execute_control(&control, data, &mut out, 0);
    bench.poll();
    match outcome {
        ControlOutcome::Complete(status) => {
            let queue = bench.queues.get_mut(&conn).unwrap();
            queue.complete(control.permit, status, 0);
            Ok((status, out))
        }
        ControlOutcome::Held => Err(control.permit),
    }
}

/// The driver has kept, or could not keep, the oldest of what it was given: what that was.
fn kept(bench: &mut Bench, succeeded: bool) -> Option<KeptReservations> {
    let (keep, kept) = bench.keeps.remove(0);
    bench.target.handle_reservations_kept(keep, succeeded, 0);
    bench.poll();
    assert_eq!(kept.uuid, UUID);
    kept.state
}

/// The status of the command that was held, the oldest of those that are answered.
fn answered(bench: &mut Bench, permit: Permit) -> Status {
    assert!(!bench.controls.is_empty(), "no answer");
    let (conn, cid, status) = bench.controls.remove(0);
    assert_eq!((conn, cid), (permit.conn(), permit.cid()));
    let queue = bench.queues.get_mut(&conn).unwrap();
    queue.complete(permit, status, 0);
    status
}

fn registering(nsid: u32, key: u64, change_ptpl: ChangePtpl) -> (Command, RegisterData) {
    let command = Command::ReservationRegister(ReservationRegister {
        nsid,
        action: RegisterAction::Register,
        ignore_existing_key: false,
        change_ptpl,
    });
    let data = RegisterData {
        crkey: 0.into(),
        nrkey: key.into(),
    };
    (command, data)
}

fn register(
    bench: &mut Bench,
    conn: ConnId,
    key: u64,
    change_ptpl: ChangePtpl,
) -> Result<Status, Permit> {
    let (command, data) = registering(NSID, key, change_ptpl);
    execute(bench, conn, command, data.as_bytes()).map(|(status, _)| status)
}

fn acquire(
    bench: &mut Bench,
    conn: ConnId,
    action: AcquireAction,
    keys: (u64, u64),
) -> Result<Status, Permit> {
    let command = Command::ReservationAcquire(ReservationAcquire {
        nsid: NSID,
        action,
        ignore_existing_key: false,
        reservation_type: EXCLUSIVE,
    });
    let data = AcquireData {
        crkey: keys.0.into(),
        prkey: keys.1.into(),
    };
    execute(bench, conn, command, data.as_bytes()).map(|(status, _)| status)
}

fn release(
    bench: &mut Bench,
    conn: ConnId,
    key: u64,
    action: ReleaseAction,
) -> Result<Status, Permit> {
    let command = Command::ReservationRelease(ReservationRelease {
        nsid: NSID,
        action,
        ignore_existing_key: false,
        reservation_type: EXCLUSIVE,
    });
    let data = ReleaseData { crkey: key.into() };
    execute(bench, conn, command, data.as_bytes()).map(|(status, _)| status)
}

/// Generation, type, registrants and PTPLS of a Reservation Report.
fn report(bench: &mut Bench, conn: ConnId) -> (u32, u8, u16, u8) {
    let command = Command::ReservationReport(ReservationReport {
        nsid: NSID,
        length_bytes: 256,
        extended: true,
    });
    let (_, data) = execute(bench, conn, command, &[]).unwrap();
    let header = ReservationStatus::parse(&data, true).unwrap().header;
    (
        header.generation.get(),
        header.rtype,
        header.registrants.get(),
        header.ptpls,
    )
}

/// Whether a read and a write are refused for a reservation.
fn is_shut_out(bench: &mut Bench, conn: ConnId) -> [bool; 2] {
    let range = LbaRange { slba: 0, nlb: 1 };
    let read = Command::Read(Read::new(NSID, range));
    let write = Command::Write(Write::new(NSID, range));
    [read, write].map(|command| {
        let cid = bench.new_cid();
        let queue = bench.queues.get_mut(&conn).unwrap();
        match queue.handle_capsule(&command.encode(cid, buffer(512)), &[]) {
            IoStep::Execute(io) => {
                queue.complete(io.permit, Status::SUCCESS, 0);
                false
            }
            IoStep::Complete(cqe) => {
                assert_eq!(cqe.status().code(), Status::RESERVATION_CONFLICT);
                true
            }
            other => panic!("{other:?}"),
        }
    })
}

fn feature(bench: &mut Bench, association: &Association) -> u32 {
    let get = GetFeatures {
        nsid: NSID,
        ..GetFeatures::new(FeatureId::RESERVATION_PERSISTENCE)
    };
    let (cqe, _) = bench.admin(association, &AdminCommand::GetFeatures(get));
    assert!(cqe.status().is_success());
    cqe.dw0.get()
}

/// `None`: it waits until it is kept.
fn set_feature(bench: &mut Bench, association: &Association, nsid: u32, on: u32) -> Option<Status> {
    let set = SetFeatures {
        nsid,
        ..SetFeatures::new(FeatureId::RESERVATION_PERSISTENCE, on)
    };
    let cid = bench.new_cid();
    let sqe = AdminCommand::SetFeatures(set).encode(cid, Sgl::EMPTY);
    let sent = bench.send_admin(association.conn, &sqe);
    sent.map(|(cqe, _)| cqe.status().code())
}

#[test]
fn a_namespace_says_whether_its_reservations_can_persist() {
    let (mut bench, [association, _], [one, _]) = bench(Persistence::Ready);
    for (nsid, offered) in [(1, false), (NSID, true)] {
        let identify = AdminCommand::Identify(Identify::new(Cns::NAMESPACE, nsid));
        let (_, data) = bench.admin(&association, &identify);
        let rescap = IdentifyNamespace::from_data(&data).unwrap().rescap;
        let rescap = ReservationCapabilities::from_bits_retain(rescap);
        let bit = ReservationCapabilities::PERSIST_THROUGH_POWER_LOSS;
        assert_eq!(rescap.contains(bit), offered, "{nsid}");
    }
    let (command, data) = registering(1, 0xA, ChangePtpl::Set);
    let refused = execute(&mut bench, one, command, data.as_bytes());
    assert_eq!(refused.unwrap().0, Status::INVALID_FIELD.dnr());
    let refused = set_feature(&mut bench, &association, 1, 1);
    assert_eq!(refused, Some(Status::INVALID_FIELD));
    // Where no host asks for it, nothing is kept and no command waits.
    let registered = register(&mut bench, one, 0xA, ChangePtpl::NoChange);
    assert_eq!(registered, Ok(Status::SUCCESS));
    assert_eq!(report(&mut bench, one), (1, 0, 1, 0));
    assert!(bench.keeps.is_empty());
}

fn state(
    generation: u32,
    held: Option<(ReservationType, [u8; 16])>,
    registrants: &[([u8; 16], u64)],
) -> KeptReservations {
    KeptReservations {
        generation,
        held,
        registrants: registrants.iter().copied().collect(),
        is_unknown: false,
    }
}

/// Both hosts are registered, with the keys Ah and Bh, and that persists.
fn registered(bench: &mut Bench, conns: [ConnId; 2]) {
    for (conn, key) in conns.into_iter().zip([0xA, 0xB]) {
        let held = register(bench, conn, key, ChangePtpl::Set).unwrap_err();
        kept(bench, true);
        assert_eq!(answered(bench, held), Status::SUCCESS);
    }
}

#[test]
fn a_change_is_kept_before_it_is_answered_and_before_it_takes_effect() {
    let (mut bench, [association, _], [one, two]) = bench(Persistence::Ready);
    let held = register(&mut bench, one, 0xA, ChangePtpl::Set).unwrap_err();
    assert!(bench.controls.is_empty(), "answered too early");
    assert_eq!(report(&mut bench, one), (0, 0, 0, 0));
    assert_eq!(feature(&mut bench, &association), 0);
    let expected = state(1, None, &[(ONE, 0xA)]);
    assert_eq!(kept(&mut bench, true), Some(expected));
    assert_eq!(answered(&mut bench, held), Status::SUCCESS);
    assert_eq!(report(&mut bench, one), (1, 0, 1, 1));
    assert_eq!(feature(&mut bench, &association), 1);
    let held = acquire(&mut bench, one, AcquireAction::Acquire, (0xA, 0)).unwrap_err();
    assert_eq!(is_shut_out(&mut bench, two), [false; 2]);
    let expected = state(1, Some((EXCLUSIVE, ONE)), &[(ONE, 0xA)]);
    assert_eq!(kept(&mut bench, true), Some(expected));
    assert_eq!(is_shut_out(&mut bench, two), [true; 2]);
    assert_eq!(answered(&mut bench, held), Status::SUCCESS);
    // What changes nothing is answered at once.
    let nothing = acquire(&mut bench, one, AcquireAction::Acquire, (0xA, 0));
    assert_eq!(nothing, Ok(Status::SUCCESS));
    // Once it persists no more, what was kept is to be forgotten, and then nothing is kept.
    let held = register(&mut bench, one, 0xA, ChangePtpl::Clear).unwrap_err();
    assert_eq!(kept(&mut bench, true), None);
    assert_eq!(answered(&mut bench, held), Status::SUCCESS);
    let released = release(&mut bench, one, 0xA, ReleaseAction::Release);
    assert_eq!(released, Ok(Status::SUCCESS));
    assert_eq!(report(&mut bench, two), (2, 0, 1, 0));
}

/// Each is answered as if the others had been before it, and all are kept by one more write.
#[test]
fn commands_that_come_meanwhile_wait_and_are_kept_together() {
    let (mut bench, _, [one, two]) = bench(Persistence::Ready);
    let first = register(&mut bench, one, 0xA, ChangePtpl::Set).unwrap_err();
    let second = register(&mut bench, two, 0xB, ChangePtpl::NoChange).unwrap_err();
    let third = acquire(&mut bench, two, AcquireAction::Acquire, (0xB, 0)).unwrap_err();
    let fourth = acquire(&mut bench, one, AcquireAction::Acquire, (0xA, 0)).unwrap_err();
    assert_eq!(bench.keeps.len(), 1);
    kept(&mut bench, true);
    assert_eq!(answered(&mut bench, first), Status::SUCCESS);
    assert!(bench.controls.is_empty(), "answered too early");
    let expected = state(2, Some((EXCLUSIVE, TWO)), &[(ONE, 0xA), (TWO, 0xB)]);
    assert_eq!(kept(&mut bench, true), Some(expected));
    assert_eq!(answered(&mut bench, second), Status::SUCCESS);
    assert_eq!(answered(&mut bench, third), Status::SUCCESS);
    let conflict = Status::RESERVATION_CONFLICT.dnr();
    assert_eq!(answered(&mut bench, fourth), conflict);
    assert!(bench.keeps.is_empty());
    // Those that come to nothing need no write of their own.
    let held = register(&mut bench, one, 0xA, ChangePtpl::NoChange).unwrap_err();
    let waited = acquire(&mut bench, one, AcquireAction::Acquire, (0xA, 0)).unwrap_err();
    kept(&mut bench, true);
    assert_eq!(answered(&mut bench, held), Status::SUCCESS);
    assert_eq!(answered(&mut bench, waited), conflict);
    assert!(bench.keeps.is_empty() && bench.controls.is_empty());
}

/// Neither for hosts nor for those that come after a power loss.
#[test]
fn what_cannot_be_kept_is_an_error_and_has_changed_nothing() {
    let (mut bench, [association, _], [one, two]) = bench(Persistence::Ready);
    let held = register(&mut bench, one, 0xA, ChangePtpl::Set).unwrap_err();
    kept(&mut bench, false);
    assert_eq!(answered(&mut bench, held), Status::INTERNAL_ERROR);
    assert_eq!(report(&mut bench, one), (0, 0, 0, 0));
    registered(&mut bench, [one, two]);
    let held = acquire(&mut bench, one, AcquireAction::Acquire, (0xA, 0)).unwrap_err();
    kept(&mut bench, true);
    answered(&mut bench, held);
    // A host that could not give it up has it: no other one may write.
    let held = release(&mut bench, one, 0xA, ReleaseAction::Release).unwrap_err();
    // It is refused on what was, and not on what could not be.
    let waited = acquire(&mut bench, two, AcquireAction::Acquire, (0xB, 0)).unwrap_err();
    kept(&mut bench, false);
    assert_eq!(answered(&mut bench, held), Status::INTERNAL_ERROR);
    let conflict = Status::RESERVATION_CONFLICT.dnr();
    assert_eq!(answered(&mut bench, waited), conflict);
    assert_eq!(is_shut_out(&mut bench, two), [true; 2]);
    assert_eq!(is_shut_out(&mut bench, one), [false; 2]);
    assert_eq!(report(&mut bench, one), (2, EXCLUSIVE.0, 2, 1));
    assert_eq!(set_feature(&mut bench, &association, NSID, 0), None);
    kept(&mut bench, false);
    let (_, cqe) = bench.completions.pop().unwrap();
    assert_eq!(cqe.status().code(), Status::INTERNAL_ERROR);
    assert_eq!(feature(&mut bench, &association), 1);
    let action = AcquireAction::PreemptAndAbort;
    let held = acquire(&mut bench, two, action, (0xB, 0xA)).unwrap_err();
    kept(&mut bench, false);
    assert_eq!(answered(&mut bench, held), Status::INTERNAL_ERROR);
    assert_eq!(is_shut_out(&mut bench, one), [false; 2]);
}

/// What comes back has what the driver gives with it.
#[test]
fn a_namespace_that_goes_answers_what_waits() {
    let (mut bench, [association, _], [one, two]) = bench(Persistence::Ready);
    let held = register(&mut bench, one, 0xA, ChangePtpl::Set).unwrap_err();
    let waited = register(&mut bench, two, 0xB, ChangePtpl::Set).unwrap_err();
    assert_eq!(set_feature(&mut bench, &association, NSID, 1), None);
    bench.target.remove_namespace(&subnqn(), NSID).unwrap();
    bench.poll();
    let gone = Status::INVALID_NAMESPACE_OR_FORMAT.dnr();
    assert_eq!(answered(&mut bench, held), gone);
    assert_eq!(answered(&mut bench, waited), gone);
    let (_, cqe) = bench.completions.pop().unwrap();
    assert_eq!(cqe.status().code(), Status::INTERNAL_ERROR);
    let found = Persistence::Found(state(7, None, &[(TWO, 0xB)]));
    let config = namespace(found);
    bench.target.add_namespace(&subnqn(), config).unwrap();
    bench.poll();
    let held = acquire(&mut bench, two, AcquireAction::Acquire, (0xB, 0)).unwrap_err();
    // That of the namespace that went ends nothing of this one.
    kept(&mut bench, true);
    assert_eq!(report(&mut bench, two), (7, 0, 1, 1));
    assert!(bench.controls.is_empty());
    kept(&mut bench, true);
    assert_eq!(answered(&mut bench, held), Status::SUCCESS);
    assert_eq!(report(&mut bench, two), (7, EXCLUSIVE.0, 1, 1));
}

#[test]
fn without_a_uuid_nothing_can_persist() {
    let mut bench = Bench::new();
    let config = NamespaceConfig {
        identity: NamespaceIdentity::default(),
        ..namespace(Persistence::Ready)
    };
    bench.target.add_namespace(&subnqn(), config).unwrap();
    let association = bench.associate(host(1), subnqn(), 0).unwrap();
    bench.enable(&association);
    let refused = set_feature(&mut bench, &association, NSID, 1);
    assert_eq!(refused, Some(Status::INVALID_FIELD));
}

/// The commands of the preempted host are over before the answer, whichever takes longer.
#[test]
fn preempt_and_abort_is_kept_and_then_waits_for_what_the_preempted_host_has_sent() {
    let (mut bench, _, [one, two]) = bench(Persistence::Ready);
    registered(&mut bench, [one, two]);
    let read = Command::Read(Read::new(NSID, LbaRange { slba: 0, nlb: 1 }));
    let cid = bench.new_cid();
    let queue = bench.queues.get_mut(&one).unwrap();
    let IoStep::Execute(running) = queue.handle_capsule(&read.encode(cid, buffer(512)), &[]) else {
        panic!("not executed");
    };
    let action = AcquireAction::PreemptAndAbort;
    let preempting = acquire(&mut bench, two, action, (0xB, 0xA)).unwrap_err();
    let after = kept(&mut bench, true).unwrap();
    assert_eq!(after.registrants, BTreeMap::from([(TWO, 0xB)]));
    assert!(bench.controls.is_empty(), "a command of the other goes on");
    let queue = bench.queues.get_mut(&one).unwrap();
    queue.complete(running.permit, Status::SUCCESS, 0);
    bench.poll_drained(one);
    bench.poll();
    assert_eq!(answered(&mut bench, preempting), Status::SUCCESS);
    // Without any, it is answered when it is kept.
    let registered = register(&mut bench, one, 0xA, ChangePtpl::NoChange).unwrap_err();
    kept(&mut bench, true);
    answered(&mut bench, registered);
    let preempting = acquire(&mut bench, two, action, (0xB, 0xA)).unwrap_err();
    kept(&mut bench, true);
    assert_eq!(answered(&mut bench, preempting), Status::SUCCESS);
}

/// What it wanted and what is with the driver takes effect; what waited does not.
#[test]
fn a_host_that_leaves_is_not_answered() {
    let (mut bench, [association, _], [one, two]) = bench(Persistence::Ready);
    let _held = register(&mut bench, one, 0xA, ChangePtpl::Set).unwrap_err();
    let _waits = acquire(&mut bench, one, AcquireAction::Acquire, (0xA, 0)).unwrap_err();
    assert_eq!(set_feature(&mut bench, &association, NSID, 0), None);
    bench.disconnect(association.conn);
    bench.close();
    assert!(kept(&mut bench, true).is_some());
    assert_eq!(report(&mut bench, two), (1, 0, 1, 1));
    // The feature is the controller's, and was set before it went.
    assert_eq!(kept(&mut bench, true), None);
    assert_eq!(report(&mut bench, two), (1, 0, 1, 0));
    let answers: Vec<_> = bench.controls.iter().map(|(conn, ..)| *conn).collect();
    assert!(answers.iter().all(|conn| *conn == one));
    assert!(bench.completions.is_empty() && bench.keeps.is_empty());
}

/// What a host does on a new association comes behind what it did on earlier ones.
#[test]
fn a_new_association_waits_for_what_is_with_the_driver() {
    let (mut bench, [association, _], [one, _]) = bench(Persistence::Ready);
    let _held = register(&mut bench, one, 0xA, ChangePtpl::Set).unwrap_err();
    bench.disconnect(one);
    bench.disconnect(association.conn);
    bench.close();
    let association = bench.associate(host(1), subnqn(), 0).unwrap();
    bench.set_cc(&association, Cc::ENABLE_NVM);
    bench.poll();
    assert!(!bench.csts(&association).rdy);
    kept(&mut bench, true);
    assert!(bench.csts(&association).rdy);
}

#[test]
fn the_feature_turns_it_on_and_off_for_one_namespace_or_all_that_can() {
    let (mut bench, [association, _], [one, _]) = bench(Persistence::Ready);
    let registered = register(&mut bench, one, 0xA, ChangePtpl::NoChange);
    assert_eq!(registered, Ok(Status::SUCCESS));
    assert_eq!(feature(&mut bench, &association), 0);
    for nsid in [NSID, NSID_BROADCAST] {
        for (on, registrants) in [(1, Some(1)), (0, None)] {
            assert_eq!(set_feature(&mut bench, &association, nsid, on), None);
            assert!(bench.completions.is_empty(), "answered too early");
            let state = kept(&mut bench, true);
            assert_eq!(state.map(|state| state.registrants.len()), registrants);
            let (_, cqe) = bench.completions.pop().unwrap();
            assert!(cqe.status().is_success());
            assert_eq!(feature(&mut bench, &association), on);
            // The same once more changes nothing.
            let again = set_feature(&mut bench, &association, nsid, on);
            assert_eq!(again, Some(Status::SUCCESS));
        }
    }
    let none = set_feature(&mut bench, &association, 1, 0);
    assert_eq!(none, Some(Status::SUCCESS));
}

#[test]
fn what_was_kept_is_there_when_the_target_starts() {
    let state = state(41, Some((EXCLUSIVE, ONE)), &[(ONE, 0xA), (TWO, 0xB)]);
    let (mut bench, [association, _], [one, two]) = bench(Persistence::Found(state.clone()));
    assert_eq!(report(&mut bench, two), (41, EXCLUSIVE.0, 2, 1));
    assert_eq!(feature(&mut bench, &association), 1);
    assert_eq!(is_shut_out(&mut bench, one), [false; 2]);
    assert_eq!(is_shut_out(&mut bench, two), [true; 2]);
    // It goes on as if nothing had been.
    let released = release(&mut bench, one, 0xA, ReleaseAction::Release).unwrap_err();
    let expected = KeptReservations {
        held: None,
        ..state.clone()
    };
    assert_eq!(kept(&mut bench, true), Some(expected));
    answered(&mut bench, released);
    assert_eq!(is_shut_out(&mut bench, two), [false; 2]);
    // A namespace that is taken out and put back in has what was kept of it, and no more.
    bench.target.remove_namespace(&subnqn(), NSID).unwrap();
    let config = namespace(Persistence::Found(state));
    bench.target.add_namespace(&subnqn(), config).unwrap();
    bench.poll();
    assert_eq!(is_shut_out(&mut bench, two), [true; 2]);
}

/// Whatever it was, a host may have relied on it.
#[test]
fn what_is_not_known_any_more_lets_nobody_in_until_a_host_clears_it() {
    let contradiction = KeptReservations {
        held: Some((EXCLUSIVE, ONE)),
        ..KeptReservations::default()
    };
    for persistence in [Persistence::Unknown, Persistence::Found(contradiction)] {
        let (mut bench, _, [one, two]) = bench(persistence);
        assert_eq!(report(&mut bench, one), (0, EXCLUSIVE.0, 0, 1));
        for conn in [one, two] {
            assert_eq!(is_shut_out(&mut bench, conn), [true; 2]);
        }
        let registered = register(&mut bench, one, 0xA, ChangePtpl::NoChange).unwrap_err();
        // A target that starts anew does not forget that it does not know.
        assert!(kept(&mut bench, true).unwrap().is_unknown);
        answered(&mut bench, registered);
        let conflict = Ok(Status::RESERVATION_CONFLICT.dnr());
        for (action, prkey) in [
            (AcquireAction::Acquire, 0),
            (AcquireAction::Preempt, 0xB),
            (AcquireAction::Preempt, 0xA),
            (AcquireAction::PreemptAndAbort, 0),
        ] {
            assert_eq!(acquire(&mut bench, one, action, (0xA, prkey)), conflict);
        }
        let released = release(&mut bench, one, 0xA, ReleaseAction::Release);
        assert_eq!(released, Ok(Status::SUCCESS), "not its own");
        assert_eq!(is_shut_out(&mut bench, one), [true; 2]);
        let cleared = release(&mut bench, one, 0xA, ReleaseAction::Clear).unwrap_err();
        let state = kept(&mut bench, true).unwrap();
        assert!(!state.is_unknown && state.registrants.is_empty());
        answered(&mut bench, cleared);
        for conn in [one, two] {
            assert_eq!(is_shut_out(&mut bench, conn), [false; 2]);
        }
        assert_eq!(report(&mut bench, one), (2, 0, 0, 1));
    }
}

#[test]
fn no_host_but_one_that_clears_has_it_forgotten_that_nothing_is_known() {
    let (mut bench, _, [one, two]) = bench(Persistence::Unknown);
    let registered = register(&mut bench, one, 0xA, ChangePtpl::Clear).unwrap_err();
    let state = kept(&mut bench, true).unwrap();
    assert!(
        state.is_unknown && state.registrants.is_empty(),
        "{state:?}"
    );
    answered(&mut bench, registered);
    assert_eq!(is_shut_out(&mut bench, two), [true; 2]);
    let cleared = release(&mut bench, one, 0xA, ReleaseAction::Clear).unwrap_err();
    assert_eq!(kept(&mut bench, true), None);
    answered(&mut bench, cleared);
    assert_eq!(is_shut_out(&mut bench, two), [false; 2]);
}
