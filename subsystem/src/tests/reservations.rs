//! Reservations between two hosts, as far as they go over the wire; the rules themselves are tested
//! beside them.

use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::{
    Abort, AdminCommand, GetFeatures, GetLogPage, Identify, IoCommand as Command, LbaRange, Read,
    SetFeatures, Write,
};
use capstan_nvme_proto::features::{FeatureId, ReservationNotificationMask};
use capstan_nvme_proto::identify::{Cns, IdentifyNamespace, ReservationCapabilities};
use capstan_nvme_proto::log::{
    LogPageId, ReservationNotificationLog, ReservationNotificationType as Notification,
};
use capstan_nvme_proto::property::Cc;
use capstan_nvme_proto::reservation::{
    AcquireAction, AcquireData, ChangePtpl, RegisterAction, RegisterData, Registrants,
    ReservationAcquire, ReservationRegister, ReservationReport, ReservationStatus, ReservationType,
};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use zerocopy::IntoBytes;

use crate::testing::{Association, Bench, buffer, host, subnqn};
use crate::{ConnId, ControlCommand, ControlOutcome, HostPolicy, IoStep, Permit};

const EXCLUSIVE: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY;

/// Hosts 1 and 2, each with a ready controller and an I/O queue.
fn hosts() -> (Bench, [Association; 2], [ConnId; 2]) {
    let mut bench = Bench::new();
    let associations = [1, 2].map(|number| {
        let association = bench.associate(host(number), subnqn(), 0).unwrap();
        bench.enable(&association);
        association
    });
    let queues = [0, 1].map(|at: usize| bench.io_queue(&associations[at], 1).unwrap());
    (bench, associations, queues)
}

fn accept(bench: &mut Bench, conn: ConnId, command: Command) -> ControlCommand {
    let cid = bench.new_cid();
    let length = u32::try_from(command.data_transfer(512).bytes()).unwrap();
    let queue = bench.queues.get_mut(&conn).unwrap();
    match queue.handle_capsule(&command.encode(cid, buffer(length)), &[]) {
        IoStep::Control(control) => control,
        other => panic!("{other:?}"),
    }
}

/// Executes a reservation command; its permit comes back when it is held.
fn reserve(
    bench: &mut Bench,
    conn: ConnId,
    command: Command,
    data: &[u8],
) -> Result<(Status, Vec<u8>), Permit> {
    let control = accept(bench, conn, command);
    assert_eq!(
        control.moves_data_to_host(),
        matches!(command, Command::ReservationReport(_))
    );
    let mut out = Vec::new();
    let outcome = bench.target.execute_control(&control, data, &mut out, 0);
    bench.poll();
    match outcome {
        ControlOutcome::Complete(status) => {
            assert!(out.len() <= usize::try_from(control.data_bytes()).unwrap());
            let queue = bench.queues.get_mut(&conn).unwrap();
            let cqe = queue.complete(control.permit, status, 0);
            assert_eq!(cqe.status().code(), status.code());
            Ok((status, out))
        }
        ControlOutcome::Held => Err(control.permit),
    }
}

fn register(bench: &mut Bench, conn: ConnId, key: u64) -> Status {
    let command = Command::ReservationRegister(ReservationRegister {
        nsid: 1,
        action: RegisterAction::Register,
        ignore_existing_key: false,
        change_ptpl: ChangePtpl::NoChange,
    });
    let data = RegisterData {
        crkey: 0.into(),
        nrkey: key.into(),
    };
    reserve(bench, conn, command, data.as_bytes()).unwrap().0
}

fn acquire(
    bench: &mut Bench,
    conn: ConnId,
    action: AcquireAction,
    keys: (u64, u64),
) -> Result<Status, Permit> {
    let command = Command::ReservationAcquire(ReservationAcquire {
        nsid: 1,
        action,
        ignore_existing_key: false,
        reservation_type: EXCLUSIVE,
    });
    let data = AcquireData {
        crkey: keys.0.into(),
        prkey: keys.1.into(),
    };
    reserve(bench, conn, command, data.as_bytes()).map(|(status, _)| status)
}

fn io(bench: &mut Bench, conn: ConnId, command: Command) -> IoStep {
    let cid = bench.new_cid();
    let queue = bench.queues.get_mut(&conn).unwrap();
    queue.handle_capsule(&command.encode(cid, buffer(512)), &[])
}

fn status(bench: &mut Bench, conn: ConnId, command: Command) -> Status {
    match io(bench, conn, command) {
        IoStep::Execute(command) => {
            let queue = bench.queues.get_mut(&conn).unwrap();
            queue.complete(command.permit, Status::SUCCESS, 0).status()
        }
        IoStep::Complete(cqe) => cqe.status(),
        other => panic!("{other:?}"),
    }
}

fn write() -> Command {
    Command::Write(Write::new(1, LbaRange { slba: 0, nlb: 1 }))
}

#[test]
fn a_reservation_excludes_other_hosts_at_once() {
    let (mut bench, _, [one, two]) = hosts();
    assert_eq!(register(&mut bench, one, 0xA), Status::SUCCESS);
    let acquired = acquire(&mut bench, one, AcquireAction::Acquire, (0xA, 0));
    assert_eq!(acquired.unwrap(), Status::SUCCESS);
    let conflict = Status::RESERVATION_CONFLICT.dnr().more();
    let read = Command::Read(Read::new(1, LbaRange { slba: 0, nlb: 1 }));
    assert_eq!(status(&mut bench, one, write()), Status::SUCCESS);
    assert_eq!(status(&mut bench, two, write()), conflict);
    assert_eq!(status(&mut bench, two, read), Status::SUCCESS);
    assert_eq!(register(&mut bench, two, 0xB), Status::SUCCESS);
    assert_eq!(status(&mut bench, two, write()), Status::SUCCESS);

    // A host that connects later is excluded as well.
    let late = bench.associate(host(1), subnqn(), 0).unwrap();
    bench.enable(&late);
    let late = bench.io_queue(&late, 1).unwrap();
    assert_eq!(status(&mut bench, late, write()), Status::SUCCESS);
    // The reservation goes with its namespace.
    bench.target.remove_namespace(&subnqn(), 1).unwrap();
    let config = crate::testing::namespace_config(1);
    bench.target.add_namespace(&subnqn(), config).unwrap();
    bench.poll();
    assert_eq!(register(&mut bench, two, 0xC), Status::SUCCESS);
}

#[test]
fn the_report_lists_registrants_and_the_holder() {
    let (mut bench, associations, [one, two]) = hosts();
    register(&mut bench, one, 0xA);
    register(&mut bench, two, 0xB);
    acquire(&mut bench, two, AcquireAction::Acquire, (0xB, 0)).unwrap();
    let report = |extended, length_bytes| {
        Command::ReservationReport(ReservationReport {
            nsid: 1,
            length_bytes,
            extended,
        })
    };
    let (_, data) = reserve(&mut bench, one, report(true, 256), &[]).unwrap();
    let parsed = ReservationStatus::parse(&data, true).unwrap();
    assert_eq!(parsed.header.generation.get(), 2);
    assert_eq!(parsed.header.rtype, EXCLUSIVE.0);
    let Registrants::Extended(entries) = parsed.registrants else {
        panic!("{:?}", parsed.registrants);
    };
    let entries: Vec<_> = entries
        .iter()
        .map(|entry| {
            (
                entry.cntlid.get(),
                entry.rcsts,
                entry.rkey.get(),
                entry.hostid.0,
            )
        })
        .collect();
    assert_eq!(
        entries,
        [
            (associations[0].cntlid, 0, 0xA, [1; 16]),
            (associations[1].cntlid, 1, 0xB, [2; 16])
        ]
    );
    // As much of it as there is room for.
    let (_, head) = reserve(&mut bench, one, report(true, 24), &[]).unwrap();
    assert_eq!(head, data[..24]);
    let (status, _) = reserve(&mut bench, one, report(false, 256), &[]).unwrap();
    assert_eq!(status, Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT.dnr());
    // A registrant without a controller stays registered.
    bench.disconnect(associations[1].conn);
    bench.close();
    let (_, data) = reserve(&mut bench, one, report(true, 256), &[]).unwrap();
    let Registrants::Extended(entries) = ReservationStatus::parse(&data, true).unwrap().registrants
    else {
        panic!("extended");
    };
    assert_eq!(entries[1].cntlid.get(), 0xFFFF);
}

#[test]
fn a_write_that_waits_for_its_data_is_refused_once_another_host_has_the_reservation() {
    let (mut bench, _, [one, two]) = hosts();
    register(&mut bench, two, 0xB);
    let IoStep::Execute(old) = io(&mut bench, one, write()) else {
        panic!("a write");
    };
    assert_eq!(bench.queues[&one].check_again(&old), Ok(()));
    acquire(&mut bench, two, AcquireAction::Acquire, (0xB, 0)).unwrap();
    let conflict = Status::RESERVATION_CONFLICT.dnr();
    assert_eq!(bench.queues[&one].check_again(&old), Err(conflict));
}

#[test]
fn preempt_and_abort_waits_for_the_commands_of_the_preempted() {
    let (mut bench, _, [one, two]) = hosts();
    register(&mut bench, one, 0xA);
    register(&mut bench, two, 0xB);
    acquire(&mut bench, one, AcquireAction::Acquire, (0xA, 0)).unwrap();
    let IoStep::Execute(old) = io(&mut bench, one, write()) else {
        panic!("a write");
    };
    let abort = AcquireAction::PreemptAndAbort;
    let held = acquire(&mut bench, two, abort, (0xB, 0xA)).unwrap_err();
    assert!(bench.controls.is_empty());
    let conflict = Status::RESERVATION_CONFLICT.dnr().more();
    assert_eq!(status(&mut bench, one, write()), conflict);
    assert_eq!(status(&mut bench, two, write()), Status::SUCCESS);

    let queue = bench.queues.get_mut(&one).unwrap();
    queue.complete(old.permit, Status::SUCCESS, 0);
    bench.poll_drained(one);
    bench.poll();
    assert_eq!(bench.controls, [(two, held.cid(), Status::SUCCESS)]);
    let queue = bench.queues.get_mut(&two).unwrap();
    let cqe = queue.complete(held, Status::SUCCESS, 0);
    assert!(cqe.status().is_success());
}

#[test]
fn preempt_and_abort_does_not_wait_for_a_host_that_leaves() {
    let (mut bench, associations, [one, two]) = hosts();
    register(&mut bench, one, 0xA);
    register(&mut bench, two, 0xB);
    let IoStep::Execute(_lost) = io(&mut bench, one, write()) else {
        panic!("a write");
    };
    let abort = AcquireAction::PreemptAndAbort;
    let held = acquire(&mut bench, two, abort, (0xB, 0xA)).unwrap_err();
    // Its write may still be on the backend, whatever became of its queues.
    bench.target.handle_disconnecting(associations[0].conn, 0);
    bench.target.handle_disconnecting(one, 0);
    bench.poll();
    assert!(bench.controls.is_empty());
    bench.disconnect(one);
    assert_eq!(bench.controls, [(two, held.cid(), Status::SUCCESS)]);
}

#[test]
fn preempt_and_abort_waits_for_what_a_host_left_behind() {
    let (mut bench, associations, [one, two]) = hosts();
    register(&mut bench, one, 0xA);
    register(&mut bench, two, 0xB);
    acquire(&mut bench, one, AcquireAction::Acquire, (0xA, 0)).unwrap();
    bench.target.handle_disconnecting(one, 0);
    bench.disconnect(associations[0].conn);
    let abort = AcquireAction::PreemptAndAbort;
    let held = acquire(&mut bench, two, abort, (0xB, 0xA)).unwrap_err();
    assert!(bench.controls.is_empty());
    bench.target.handle_disconnected(one, 0);
    bench.poll();
    assert_eq!(bench.controls, [(two, held.cid(), Status::SUCCESS)]);
    // Nothing is left of it for the next one to wait for.
    let queue = bench.queues.get_mut(&two).unwrap();
    queue.complete(held, Status::SUCCESS, 0);
    assert_eq!(
        acquire(&mut bench, two, abort, (0xB, 0xB)).unwrap(),
        Status::SUCCESS
    );
}

#[test]
fn preempt_and_abort_does_not_wait_for_a_withdrawn_command() {
    let (mut bench, _, [one, two]) = hosts();
    register(&mut bench, one, 0xA);
    register(&mut bench, two, 0xB);
    let IoStep::Execute(mut stuck) = io(&mut bench, one, write()) else {
        panic!("a write");
    };
    let abort = AcquireAction::PreemptAndAbort;
    let held = acquire(&mut bench, two, abort, (0xB, 0xA)).unwrap_err();
    let queue = bench.queues.get_mut(&one).unwrap();
    queue.withdraw(&mut stuck.permit);
    bench.poll_drained(one);
    bench.poll();
    assert_eq!(bench.controls, [(two, held.cid(), Status::SUCCESS)]);
    // It is still answered, once.
    let queue = bench.queues.get_mut(&one).unwrap();
    let cqe = queue.complete(stuck.permit, Status::ABORTED_PREEMPT_AND_ABORT, 0);
    assert_eq!(
        cqe.status().code(),
        Status::ABORTED_PREEMPT_AND_ABORT.code()
    );
    assert_eq!(queue.outstanding(), 0);
}

#[test]
fn aborting_a_held_preempt_and_abort_does_not_stop_it() {
    let (mut bench, associations, [one, two]) = hosts();
    register(&mut bench, one, 0xA);
    register(&mut bench, two, 0xB);
    let IoStep::Execute(old) = io(&mut bench, one, write()) else {
        panic!("a write");
    };
    let abort = AcquireAction::PreemptAndAbort;
    let held = acquire(&mut bench, two, abort, (0xB, 0xA)).unwrap_err();
    let command = AdminCommand::Abort(Abort {
        sqid: 1,
        cid: held.cid(),
    });
    let sqe = command.encode(77, Sgl::EMPTY);
    assert!(bench.send_admin(associations[1].conn, &sqe).is_none());
    let (conn, cid, name) = bench.aborts.pop().unwrap();
    assert_eq!((conn, cid), (two, held.cid()));
    bench.target.handle_abort_result(name, false, 0);
    bench.poll();
    let (_, cqe) = bench.completions.pop().unwrap();
    assert_eq!((cqe.cid.get(), cqe.dw0.get()), (77, 1));
    let queue = bench.queues.get_mut(&one).unwrap();
    queue.complete(old.permit, Status::SUCCESS, 0);
    bench.poll_drained(one);
    bench.poll();
    assert_eq!(bench.controls, [(two, held.cid(), Status::SUCCESS)]);
}

#[test]
fn a_fused_reservation_command_is_refused() {
    let (mut bench, _, [one, _]) = hosts();
    let command = Command::ReservationRegister(ReservationRegister {
        nsid: 1,
        action: RegisterAction::Register,
        ignore_existing_key: false,
        change_ptpl: ChangePtpl::NoChange,
    });
    let mut sqe = command.encode(5, buffer(16));
    sqe.flags |= 1;
    let queue = bench.queues.get_mut(&one).unwrap();
    match queue.handle_capsule(&sqe, &[]) {
        IoStep::Complete(cqe) => {
            assert_eq!(cqe.status().code(), Status::INVALID_FIELD.code());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_host_without_an_identifier_cannot_reserve() {
    let mut bench = Bench::new();
    bench.target.set_hosts(&subnqn(), HostPolicy::Any).unwrap();
    // Host 0 has Host Identifier 0.
    let association = bench.associate(host(0), subnqn(), 0).unwrap();
    bench.enable(&association);
    let conn = bench.io_queue(&association, 1).unwrap();
    assert_eq!(
        register(&mut bench, conn, 0xA),
        Status::HOST_IDENTIFIER_NOT_INITIALIZED.dnr()
    );
}

fn next_notification(
    bench: &mut Bench,
    association: &Association,
) -> Option<(Notification, u32, u8)> {
    let get = GetLogPage {
        nsid: 0,
        ..GetLogPage::new(LogPageId::RESERVATION_NOTIFICATION, 64)
    };
    let (_, data) = bench.admin(association, &AdminCommand::GetLogPage(get));
    let page = ReservationNotificationLog::from_data(&data).unwrap();
    (page.log_page_count.get() > 0).then_some((
        page.notification_type,
        page.nsid.get(),
        page.available_log_pages,
    ))
}

#[test]
fn the_preempted_are_told_unless_they_do_not_want_to_be() {
    let (mut bench, associations, [one, two]) = hosts();
    let first = &associations[0];
    let request = AdminCommand::AsynchronousEventRequest.encode(900, Sgl::EMPTY);
    assert!(bench.send_admin(first.conn, &request).is_none());
    let preempt = |bench: &mut Bench| {
        register(bench, one, 0xA);
        register(bench, two, 0xB);
        let preempted = acquire(bench, two, AcquireAction::Preempt, (0xB, 0xA));
        assert_eq!(preempted.unwrap(), Status::SUCCESS);
    };
    preempt(&mut bench);
    let (conn, cqe) = bench.completions.pop().unwrap();
    assert_eq!(conn, first.conn);
    assert_eq!(
        AsyncEvent::decode(cqe.dw0.get()),
        AsyncEvent::RESERVATION_LOG_AVAILABLE
    );
    preempt(&mut bench);
    let told = Notification::REGISTRATION_PREEMPTED;
    assert_eq!(next_notification(&mut bench, first), Some((told, 1, 1)));
    // The second notification is an event of its own once the first has been read.
    let request = AdminCommand::AsynchronousEventRequest.encode(901, Sgl::EMPTY);
    assert!(bench.send_admin(first.conn, &request).is_none());
    assert_eq!(bench.completions.pop().unwrap().1.cid.get(), 901);
    assert_eq!(next_notification(&mut bench, first), Some((told, 1, 0)));
    assert_eq!(next_notification(&mut bench, first), None);

    let mask = ReservationNotificationMask::REGISTRATION_PREEMPTED.bits();
    let set = SetFeatures {
        nsid: 1,
        ..SetFeatures::new(FeatureId::RESERVATION_NOTIFICATION_MASK, mask)
    };
    let (cqe, _) = bench.admin(first, &AdminCommand::SetFeatures(set));
    assert!(cqe.status().is_success());
    let get = GetFeatures {
        nsid: 1,
        ..GetFeatures::new(FeatureId::RESERVATION_NOTIFICATION_MASK)
    };
    let (cqe, _) = bench.admin(first, &AdminCommand::GetFeatures(get));
    assert_eq!(cqe.dw0.get(), mask);
    preempt(&mut bench);
    assert_eq!(next_notification(&mut bench, first), None);

    // A reset forgets the mask.
    let disabled = Cc {
        en: false,
        ..Cc::ENABLE_NVM
    };
    bench.set_cc(first, disabled);
    bench.close();
    bench.enable(first);
    let (cqe, _) = bench.admin(first, &AdminCommand::GetFeatures(get));
    assert_eq!(cqe.dw0.get(), 0);
}

#[test]
fn persistence_is_not_offered_and_says_so() {
    let (mut bench, [association, _], [one, _]) = hosts();
    let identify = AdminCommand::Identify(Identify::new(Cns::NAMESPACE, 1));
    let (_, data) = bench.admin(&association, &identify);
    let namespace = IdentifyNamespace::from_data(&data).unwrap();
    let rescap = ReservationCapabilities::from_bits_retain(namespace.rescap);
    assert!(!rescap.contains(ReservationCapabilities::PERSIST_THROUGH_POWER_LOSS));
    assert_eq!(namespace.rescap, 0xFE);
    let get = GetFeatures {
        nsid: 1,
        ..GetFeatures::new(FeatureId::RESERVATION_PERSISTENCE)
    };
    let (cqe, _) = bench.admin(&association, &AdminCommand::GetFeatures(get));
    assert_eq!((cqe.status(), cqe.dw0.get()), (Status::SUCCESS, 0));
    let command = Command::ReservationRegister(ReservationRegister {
        nsid: 1,
        action: RegisterAction::Register,
        ignore_existing_key: false,
        change_ptpl: ChangePtpl::Set,
    });
    let data = RegisterData {
        crkey: 0.into(),
        nrkey: 1.into(),
    };
    let (status, _) = reserve(&mut bench, one, command, data.as_bytes()).unwrap();
    assert_eq!(status, Status::INVALID_FIELD.dnr());
}
