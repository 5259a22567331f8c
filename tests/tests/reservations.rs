//! Two hosts and one namespace: what one reserves is refused to the other, and who hangs is fenced.
use std::net::SocketAddr;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::{AdminCommand, GetLogPage, IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::log::{LogPageId, ReservationNotificationLog, ReservationNotificationType};
use capstan_nvme_proto::reservation::{
    AcquireAction, AcquireData, ChangePtpl, RegisterAction, RegisterData, Registrants,
    ReleaseAction, ReleaseData, ReservationAcquire, ReservationRegister, ReservationRelease,
    ReservationReport, ReservationStatus, ReservationType,
};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use capstan_tests::target::TestTarget;
use capstan_tests::wire_host::{Data, Queue, WireHost};
use zerocopy::IntoBytes;

const LBA_BYTES: usize = 4096;
const KEYS: [u64; 2] = [0xA, 0xB];

fn hosts(address: SocketAddr) -> [WireHost; 2] {
    [1, 2].map(|number| WireHost::connect(address, number))
}

fn run(host: &mut WireHost, command: IoCommand, data: Data<'_>) -> (Status, Vec<u8>) {
    let (cqe, data) = host.run(Queue::Io, command.encode(0, Sgl::EMPTY), data);
    (cqe.status().code(), data)
}

fn register(host: &mut WireHost, key: u64) -> Status {
    let command = IoCommand::ReservationRegister(ReservationRegister {
        nsid: 1,
        action: RegisterAction::Register,
        ignore_existing_key: false,
        change_ptpl: ChangePtpl::NoChange,
    });
    let data = RegisterData {
        crkey: 0.into(),
        nrkey: key.into(),
    };
    // By RDMA READ; the others come in their capsules.
    run(host, command, Data::Pulled(data.as_bytes())).0
}

fn acquire(host: &mut WireHost, action: AcquireAction, [crkey, prkey]: [u64; 2]) -> Status {
    let command = IoCommand::ReservationAcquire(ReservationAcquire {
        nsid: 1,
        action,
        ignore_existing_key: false,
        reservation_type: ReservationType::WRITE_EXCLUSIVE,
    });
    let data = AcquireData {
        crkey: crkey.into(),
        prkey: prkey.into(),
    };
    run(host, command, Data::InCapsule(data.as_bytes())).0
}

fn release(host: &mut WireHost, key: u64) -> Status {
    let command = IoCommand::ReservationRelease(ReservationRelease {
        nsid: 1,
        action: ReleaseAction::Release,
        ignore_existing_key: false,
        reservation_type: ReservationType::WRITE_EXCLUSIVE,
    });
    let data = ReleaseData { crkey: key.into() };
    run(host, command, Data::InCapsule(data.as_bytes())).0
}

const FIRST: LbaRange = LbaRange { slba: 0, nlb: 1 };

fn write(host: &mut WireHost, byte: u8) -> Status {
    let command = IoCommand::Write(Write::new(1, FIRST));
    run(host, command, Data::InCapsule(&[byte; LBA_BYTES])).0
}

fn read(host: &mut WireHost) -> (Status, Vec<u8>) {
    let len_bytes = u32::try_from(LBA_BYTES).expect("small");
    run(
        host,
        IoCommand::Read(Read::new(1, FIRST)),
        Data::Pushed(len_bytes),
    )
}

/// Hosts with their keys, and whether they hold the reservation.
fn report(host: &mut WireHost) -> Vec<(u8, u64, bool)> {
    let command = IoCommand::ReservationReport(ReservationReport {
        nsid: 1,
        length_bytes: 4096,
        extended: true,
    });
    let (status, data) = run(host, command, Data::Pushed(4096));
    assert_eq!(status, Status::SUCCESS);
    let status = ReservationStatus::parse(&data, true).expect("a report");
    let Registrants::Extended(entries) = status.registrants else {
        panic!("not extended");
    };
    entries
        .iter()
        .map(|entry| (entry.hostid.0[0], entry.rkey.get(), entry.rcsts == 1))
        .collect()
}

#[test]
fn what_one_host_reserves_is_refused_to_the_other() {
    let target = TestTarget::ram("reactors = 2");
    let [mut one, mut two] = hosts(target.addresses[0]);
    assert_eq!(write(&mut two, 0x20), Status::SUCCESS);
    assert_eq!(
        acquire(&mut one, AcquireAction::Acquire, [0xA, 0]),
        Status::RESERVATION_CONFLICT,
        "not registered"
    );
    assert_eq!(register(&mut one, 0xA), Status::SUCCESS);
    assert_eq!(register(&mut two, 0xB), Status::SUCCESS);
    let acquired = acquire(&mut one, AcquireAction::Acquire, [0xA, 0]);
    assert_eq!(acquired, Status::SUCCESS);
    assert_eq!(write(&mut one, 0x11), Status::SUCCESS);
    assert_eq!(write(&mut two, 0x22), Status::RESERVATION_CONFLICT);
    let (status, found) = read(&mut two);
    assert_eq!(status, Status::SUCCESS);
    assert!(found == [0x11; LBA_BYTES], "the refused write is not there");
    assert_eq!(
        acquire(&mut two, AcquireAction::Acquire, [0xB, 0]),
        Status::RESERVATION_CONFLICT
    );
    assert_eq!(report(&mut two), [(1, 0xA, true), (2, 0xB, false)]);

    // A release by a host that does not hold it has no effect.
    assert_eq!(release(&mut two, 0xB), Status::SUCCESS);
    assert_eq!(write(&mut two, 0x22), Status::RESERVATION_CONFLICT);
    assert_eq!(release(&mut one, 0xA), Status::SUCCESS);
    assert_eq!(write(&mut two, 0x22), Status::SUCCESS);

    // The registrations stay, also when the host leaves.
    drop(one);
    assert_eq!(report(&mut two), [(1, 0xA, false), (2, 0xB, false)]);
    drop(two);
    target.stop();
}

/// A write of one host is still being pulled when another host reserves the namespace: it is
/// refused, and never happens.
#[test]
fn a_write_in_the_middle_of_its_pull_is_refused_once_another_host_has_the_reservation() {
    let target = TestTarget::ram("reactors = 2");
    let [mut one, mut two] = hosts(target.addresses[0]);
    assert_eq!(register(&mut two, 0xB), Status::SUCCESS);
    let sqe = IoCommand::Write(Write::new(1, FIRST)).encode(0, Sgl::EMPTY);
    let hanging = one.send(Queue::Io, sqe, Data::Pulled(&[0x11; LBA_BYTES]));
    // The capsule must be there before the other host acts: they come on different connections.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let acquired = acquire(&mut two, AcquireAction::Acquire, [0xB, 0]);
    assert_eq!(acquired, Status::SUCCESS);
    assert_eq!(write(&mut two, 0x22), Status::SUCCESS);
    let (cqe, _) = one.answer(Queue::Io, hanging);
    assert_eq!(cqe.status().code(), Status::RESERVATION_CONFLICT);
    let (_, found) = read(&mut two);
    assert!(found == [0x22; LBA_BYTES], "the refused write is there");
    drop((one, two));
    target.stop();
}

/// The holder hangs in the middle of a write: its memory does not answer the controller's RDMA
/// READ. The other host takes over without waiting for it, and the write never happens.
#[test]
fn a_host_that_hangs_is_fenced() {
    let target = TestTarget::ram("reactors = 2");
    let [mut one, mut two] = hosts(target.addresses[0]);
    for (host, key) in [&mut one, &mut two].into_iter().zip(KEYS) {
        assert_eq!(register(host, key), Status::SUCCESS);
    }
    let acquired = acquire(&mut one, AcquireAction::Acquire, [0xA, 0]);
    assert_eq!(acquired, Status::SUCCESS);
    let request = AdminCommand::AsynchronousEventRequest.encode(0, Sgl::EMPTY);
    let event = one.send(Queue::Admin, request, Data::None);
    let old = [0x11; LBA_BYTES];
    let sqe = IoCommand::Write(Write::new(1, FIRST)).encode(0, Sgl::EMPTY);
    let hanging = one.send(Queue::Io, sqe, Data::Pulled(&old));
    // The capsule must be there before the other host acts: they come on different connections.
    std::thread::sleep(std::time::Duration::from_millis(500));

    let preempted = acquire(&mut two, AcquireAction::PreemptAndAbort, [0xB, 0xA]);
    assert_eq!(
        preempted,
        Status::SUCCESS,
        "without waiting for the host that hangs"
    );
    assert_eq!(write(&mut two, 0x22), Status::SUCCESS);
    assert_eq!(report(&mut two), [(2, 0xB, true)]);

    let (cqe, _) = one.answer(Queue::Io, hanging);
    assert_eq!(cqe.status().code(), Status::ABORTED_PREEMPT_AND_ABORT);
    assert_eq!(write(&mut one, 0x11), Status::RESERVATION_CONFLICT);
    let (status, found) = read(&mut one);
    assert_eq!(status, Status::SUCCESS);
    assert!(found == [0x22; LBA_BYTES], "the aborted write is not there");

    let (cqe, _) = one.answer(Queue::Admin, event);
    assert_eq!(
        AsyncEvent::decode(cqe.dw0.get()),
        AsyncEvent::RESERVATION_LOG_AVAILABLE
    );
    let get = AdminCommand::GetLogPage(GetLogPage {
        nsid: 0,
        ..GetLogPage::new(LogPageId::RESERVATION_NOTIFICATION, 64)
    });
    let (cqe, data) = one.run(Queue::Admin, get.encode(0, Sgl::EMPTY), Data::Pushed(64));
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    let page = ReservationNotificationLog::from_data(&data).expect("a log page");
    assert_eq!(
        (page.notification_type, page.nsid.get()),
        (ReservationNotificationType::REGISTRATION_PREEMPTED, 1)
    );
    drop((one, two));
    target.stop();
}
