//! Reservations that persist through power loss: the target is killed, and started again.

use std::fs;
use std::path::PathBuf;

use capstan_nvme_proto::command::{IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::reservation::{
    AcquireAction, AcquireData, ChangePtpl, RegisterAction, RegisterData, Registrants,
    ReleaseAction, ReleaseData, ReservationAcquire, ReservationRegister, ReservationRelease,
    ReservationReport, ReservationStatus, ReservationType,
};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use capstan_storage::Lifetime;
use capstan_tests::place::{Place, has, reload};
use capstan_tests::program::utf8;
use capstan_tests::target::TestTarget;
use capstan_tests::wire_host::{Data, Queue, WireHost};
use zerocopy::IntoBytes;

const LBA_BYTES: usize = 4096;
const FIRST: LbaRange = LbaRange { slba: 0, nlb: 1 };
const EXCLUSIVE: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY;

/// A target with a namespace on a file; `None` where files end with the machine's memory.
fn place(test: &str) -> Option<(Place, PathBuf)> {
    let place = Place::new();
    let image = place.image("a");
    let lifetime = Lifetime::at(&image).expect("it is there");
    if lifetime != Lifetime::Lasting {
        eprintln!("SKIPPED {test}: {} is on {lifetime:?}", image.display());
        return None;
    }
    place.configure(&[(&image, "nsid = 1")]);
    Some((place, image))
}

fn hosts(place: &Place) -> [WireHost; 2] {
    [1, 2].map(|number| WireHost::connect(place.at, number))
}

fn run(host: &mut WireHost, command: IoCommand, data: Data<'_>) -> (Status, Vec<u8>) {
    let (cqe, data) = host.run(Queue::Io, command.encode(0, Sgl::EMPTY), data);
    (cqe.status().code(), data)
}

fn register(host: &mut WireHost, key: u64, change_ptpl: ChangePtpl) -> Status {
    let command = IoCommand::ReservationRegister(ReservationRegister {
        nsid: 1,
        action: RegisterAction::Register,
        ignore_existing_key: false,
        change_ptpl,
    });
    let data = RegisterData {
        crkey: 0.into(),
        nrkey: key.into(),
    };
    run(host, command, Data::InCapsule(data.as_bytes())).0
}

fn acquire(host: &mut WireHost, key: u64) -> Status {
    let command = IoCommand::ReservationAcquire(ReservationAcquire {
        nsid: 1,
        action: AcquireAction::Acquire,
        ignore_existing_key: false,
        reservation_type: EXCLUSIVE,
    });
    let data = AcquireData {
        crkey: key.into(),
        prkey: 0.into(),
    };
    run(host, command, Data::InCapsule(data.as_bytes())).0
}

fn clear(host: &mut WireHost, key: u64) -> Status {
    let command = IoCommand::ReservationRelease(ReservationRelease {
        nsid: 1,
        action: ReleaseAction::Clear,
        ignore_existing_key: false,
        reservation_type: ReservationType::NONE,
    });
    let data = ReleaseData { crkey: key.into() };
    run(host, command, Data::InCapsule(data.as_bytes())).0
}

fn write(host: &mut WireHost) -> Status {
    let command = IoCommand::Write(Write::new(1, FIRST));
    run(host, command, Data::InCapsule(&[7; LBA_BYTES])).0
}

fn read(host: &mut WireHost) -> Status {
    let len_bytes = u32::try_from(LBA_BYTES).expect("small");
    let command = IoCommand::Read(Read::new(1, FIRST));
    run(host, command, Data::Pushed(len_bytes)).0
}

#[derive(Debug, PartialEq, Eq)]
struct Reported {
    generation: u32,
    rtype: u8,
    persists: bool,
    /// Host, key, and whether it holds the reservation.
    registrants: Vec<([u8; 16], u64, bool)>,
}

fn report(host: &mut WireHost) -> Reported {
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
    let entries = entries.iter();
    Reported {
        generation: status.header.generation.get(),
        rtype: status.header.rtype,
        persists: status.header.ptpls == 1,
        registrants: entries
            .map(|entry| (entry.hostid.0, entry.rkey.get(), entry.rcsts == 1))
            .collect(),
    }
}

/// The file of the namespace in the state folder.
fn kept(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(&place.state).expect("the state folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .filter(|path| utf8(path).contains("/reservations-"))
        .collect()
}

#[test]
fn what_was_answered_is_there_when_the_target_was_killed() {
    let Some((place, _)) = place("what_was_answered_is_there_when_the_target_was_killed") else {
        return;
    };
    let daemon = place.serve();
    let [mut one, mut two] = hosts(&place);
    assert_eq!(register(&mut one, 0xA, ChangePtpl::Set), Status::SUCCESS);
    assert_eq!(
        register(&mut two, 0xB, ChangePtpl::NoChange),
        Status::SUCCESS
    );
    assert_eq!(acquire(&mut two, 0xB), Status::SUCCESS);
    let before = report(&mut one);
    assert_eq!((before.generation, before.rtype), (2, EXCLUSIVE.0));
    assert!(before.persists && before.registrants[1].2, "{before:?}");
    assert_eq!(kept(&place).len(), 1);
    daemon.kill();
    drop((one, two));

    let daemon = place.serve();
    daemon.wait_for_log(&[
        "namespace 1 of",
        "reservations have persisted",
        "registered: 2",
    ]);
    let [mut one, mut two] = hosts(&place);
    assert_eq!(report(&mut one), before);
    // A host that is not registered is kept from writing, and those that are go on.
    let mut third = WireHost::connect(place.at, 3);
    assert_eq!(write(&mut third), Status::RESERVATION_CONFLICT);
    for host in [&mut one, &mut two] {
        assert_eq!(write(host), Status::SUCCESS);
    }
    // It persists no more: the next one does not know of it.
    assert_eq!(register(&mut one, 0xA, ChangePtpl::Clear), Status::SUCCESS);
    assert_eq!(kept(&place).len(), 0);
    assert!(!report(&mut one).persists);
    assert_eq!(write(&mut third), Status::RESERVATION_CONFLICT);
    daemon.kill();
    drop((one, two, third));
    let daemon = place.serve();
    let mut third = WireHost::connect(place.at, 3);
    let nothing = Reported {
        generation: 0,
        rtype: 0,
        persists: false,
        registrants: Vec::new(),
    };
    assert_eq!(report(&mut third), nothing);
    assert_eq!(write(&mut third), Status::SUCCESS);
    drop(third);
    assert!(daemon.stop().success());
}

#[test]
fn what_nobody_wanted_to_persist_is_gone_when_the_target_was_killed() {
    let test = "what_nobody_wanted_to_persist_is_gone_when_the_target_was_killed";
    let Some((place, _)) = place(test) else {
        return;
    };
    let daemon = place.serve();
    let [mut one, two] = hosts(&place);
    assert_eq!(
        register(&mut one, 0xA, ChangePtpl::NoChange),
        Status::SUCCESS
    );
    assert_eq!(acquire(&mut one, 0xA), Status::SUCCESS);
    assert_eq!(kept(&place).len(), 0);
    daemon.kill();
    drop((one, two));
    let daemon = place.serve();
    let [one, mut two] = hosts(&place);
    assert!(report(&mut two).registrants.is_empty());
    assert_eq!(write(&mut two), Status::SUCCESS);
    drop((one, two));
    assert!(daemon.stop().success());
}

#[test]
fn reservations_of_memory_do_not_persist() {
    let target = TestTarget::ram("reactors = 1");
    let mut host = WireHost::connect(target.addresses[0], 1);
    let refused = register(&mut host, 0xA, ChangePtpl::Set);
    assert_eq!(refused, Status::INVALID_FIELD);
    drop(host);
    target.stop();
}

/// It may have been a reservation that a host relied on.
#[test]
fn a_damaged_file_keeps_all_hosts_out_until_one_clears_it() {
    let test = "a_damaged_file_keeps_all_hosts_out_until_one_clears_it";
    let Some((place, image)) = place(test) else {
        return;
    };
    let daemon = place.serve();
    let [mut one, two] = hosts(&place);
    assert_eq!(register(&mut one, 0xA, ChangePtpl::Set), Status::SUCCESS);
    daemon.kill();
    drop((one, two));
    let file = kept(&place).pop().expect("a file");
    let damaged = "generation = \"";
    fs::write(&file, damaged).expect("writes");

    // It is not forgotten by another start either.
    for _ in 0..2 {
        let daemon = place.serve();
        let words = [utf8(&image), utf8(&file), "not known", "resv-release"];
        daemon.wait_for_log(&[&["ERROR"][..], &words].concat());
        let [mut one, mut two] = hosts(&place);
        for host in [&mut one, &mut two] {
            assert_eq!(read(host), Status::RESERVATION_CONFLICT);
            assert_eq!(write(host), Status::RESERVATION_CONFLICT);
        }
        drop((one, two));
        assert!(daemon.stop().success());
    }
    let daemon = place.serve();
    let [mut one, mut two] = hosts(&place);
    assert_eq!(
        register(&mut one, 0xA, ChangePtpl::NoChange),
        Status::SUCCESS
    );
    assert_eq!(read(&mut one), Status::RESERVATION_CONFLICT);
    let aside = file.with_extension("toml.damaged");
    assert_eq!(fs::read_to_string(aside).expect("is kept"), damaged);
    assert_eq!(clear(&mut one, 0xA), Status::SUCCESS);
    assert_eq!(read(&mut one), Status::SUCCESS);
    assert_eq!(write(&mut two), Status::SUCCESS);
    daemon.kill();
    drop((one, two));
    let daemon = place.serve();
    assert!(!has(&daemon.log(), &["reservations that were to persist"]));
    let [mut one, two] = hosts(&place);
    let after = report(&mut one);
    assert!(after.persists && after.registrants.is_empty(), "{after:?}");
    assert_eq!(write(&mut one), Status::SUCCESS);
    drop((one, two));
    assert!(daemon.stop().success());
}

/// A folder is where the file is written before it gets its name: as good as a full disk.
#[test]
fn what_cannot_be_written_fails_and_has_changed_nothing() {
    let test = "what_cannot_be_written_fails_and_has_changed_nothing";
    let Some((place, _)) = place(test) else {
        return;
    };
    let daemon = place.serve();
    let [mut one, mut two] = hosts(&place);
    assert_eq!(register(&mut one, 0xA, ChangePtpl::Set), Status::SUCCESS);
    let before = report(&mut one);
    let file = kept(&place).pop().expect("a file");
    let name = file.file_name().expect("a name").display();
    let in_the_way = place.state.join(format!(".{name}.{}", daemon.pid()));
    fs::create_dir(&in_the_way).expect("makes a folder");
    assert_eq!(acquire(&mut one, 0xA), Status::INTERNAL_ERROR);
    assert_eq!(acquire(&mut one, 0xA), Status::INTERNAL_ERROR);
    assert_eq!(report(&mut one), before);
    assert_eq!(write(&mut two), Status::SUCCESS);
    daemon.wait_for_log(&["ERROR", "cannot be kept in", utf8(&file)]);
    assert_eq!(daemon.count_log("cannot be kept in"), 1);
    fs::remove_dir(&in_the_way).expect("removes it");
    assert_eq!(acquire(&mut one, 0xA), Status::SUCCESS);
    assert_eq!(write(&mut two), Status::RESERVATION_CONFLICT);
    let before = report(&mut one);
    daemon.kill();
    drop((one, two));
    let daemon = place.serve();
    let [mut one, mut two] = hosts(&place);
    assert_eq!(report(&mut one), before);
    assert_eq!(write(&mut two), Status::RESERVATION_CONFLICT);
    drop((one, two));
    assert!(daemon.stop().success());
}

#[test]
fn a_namespace_that_a_reload_puts_back_in_has_its_reservation() {
    let test = "a_namespace_that_a_reload_puts_back_in_has_its_reservation";
    let Some((place, image)) = place(test) else {
        return;
    };
    let [other, third] = ["b", "c"].map(|name| place.image(name));
    let daemon = place.serve();
    let [mut one, mut two] = hosts(&place);
    assert_eq!(register(&mut one, 0xA, ChangePtpl::Set), Status::SUCCESS);
    assert_eq!(acquire(&mut one, 0xA), Status::SUCCESS);
    let before = report(&mut one);
    place.configure(&[(&other, "nsid = 2")]);
    reload(&daemon);
    let gone = Status::INVALID_NAMESPACE_OR_FORMAT;
    assert_eq!(register(&mut two, 0xB, ChangePtpl::Set), gone);
    // Another file under its number has none of it.
    place.configure(&[(&third, "nsid = 1")]);
    reload(&daemon);
    drop((one, two));
    let [mut one, mut two] = hosts(&place);
    one.accept(1);
    two.accept(1);
    assert!(report(&mut one).registrants.is_empty());
    assert_eq!(write(&mut two), Status::SUCCESS);
    place.configure(&[(&image, "nsid = 1")]);
    reload(&daemon);
    drop((one, two));
    let [mut one, mut two] = hosts(&place);
    one.accept(1);
    two.accept(1);
    assert_eq!(report(&mut one), before);
    assert_eq!(write(&mut two), Status::RESERVATION_CONFLICT);
    drop((one, two));
    assert!(daemon.stop().success());
}
