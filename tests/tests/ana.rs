//! What an operator changes by a reload while hosts do I/O: by which path hosts reach a namespace,
//! and whether they may write it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::{BlockingVolume, Controller, Transport};
use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::{
    AdminCommand, GetFeatures, GetLogPage, IoCommand, LbaRange, Read, Write,
};
use capstan_nvme_proto::features::FeatureId;
use capstan_nvme_proto::log::{AnaLogHeader, AnaState, LogPageId};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use capstan_tests::host::options;
use capstan_tests::place::{Place, has, reload, volume, writes_until_it_fails};
use capstan_tests::program::{CLAIMS, program, told, utf8};
use capstan_tests::wait::wait_until;
use capstan_tests::wire_host::{Data, Queue, WireHost};
use serde_json::Value;

const FIRST: LbaRange = LbaRange { slba: 0, nlb: 1 };
const LBA_BYTES: usize = 4096;

/// Keys of a namespace, and behind it the state of its group.
fn with_state(keys: &str, group: u32, state: &str, at: SocketAddr) -> String {
    format!(
        "{keys}\n[[subsystem.ana]]\ngroup = {group}\nstate = \"{state}\"\nlisteners = [\"{at}\"]\n"
    )
}

/// A host by one of the transports.
fn connect(place: &Place, transport: Transport) -> Controller {
    let mut options = options(place.at, 1);
    options.transport = transport;
    options.reconnect_delay = Duration::from_millis(200);
    Controller::connect(options).expect("connects")
}

/// What `capstan ana-log` shows: of each group its number, its state and its namespaces.
fn shown(at: SocketAddr) -> Vec<(u64, u64, Vec<u64>)> {
    let mut capstan = Command::new(program("capstan"));
    let claims = tempfile::tempdir().unwrap();
    capstan
        .env(CLAIMS, claims.path())
        .args(["ana-log", "-t", "tcp", "-a", &at.ip().to_string()])
        .args(["-s", &at.port().to_string(), "--output", "json"])
        .args(["-n", capstan_tests::target::SUBNQN]);
    let said = told(&capstan.output().expect("it runs"));
    let page: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    let number = |value: &Value| value.as_u64().expect("a number");
    let groups = page["groups"].as_array().expect("groups").iter();
    groups
        .map(|group| {
            let nsids = group["nsids"].as_array().expect("a list").iter();
            let nsids = nsids.map(number).collect();
            (number(&group["group"]), number(&group["state"]), nsids)
        })
        .collect()
}

fn write(byte: u8, host: &mut WireHost) -> Status {
    let sqe = IoCommand::Write(Write::new(1, FIRST)).encode(0, Sgl::EMPTY);
    let data = [byte; LBA_BYTES];
    host.run(Queue::Io, sqe, Data::InCapsule(&data)).0.status()
}

fn read(host: &mut WireHost) -> Status {
    let sqe = IoCommand::Read(Read::new(1, FIRST)).encode(0, Sgl::EMPTY);
    let len_bytes = u32::try_from(LBA_BYTES).expect("small");
    let (cqe, _) = host.run(Queue::Io, sqe, Data::Pushed(len_bytes));
    cqe.status()
}

/// The state of the first group, with the Change Count of the page.
fn state(host: &mut WireHost) -> (AnaState, u64) {
    let get = GetLogPage::new(LogPageId::ANA, 256);
    let sqe = AdminCommand::GetLogPage(get).encode(0, Sgl::EMPTY);
    let (cqe, page) = host.run(Queue::Admin, sqe, Data::Pushed(256));
    assert!(cqe.status().is_success(), "{cqe:?}");
    let (header, mut groups) = AnaLogHeader::parse(&page).expect("a page");
    let group = groups.next().expect("a group").expect("a whole one");
    (group.header.state(), header.change_count.get())
}

/// Each state that the configuration can say: the status of I/O, what the log page says, and the
/// event that says that it has changed.
#[test]
fn a_host_is_told_of_each_state_and_gets_the_status_of_it() {
    let place = Place::new();
    let image = place.image("a");
    place.configure(&[(&image, "nsid = 1")]);
    let daemon = place.serve();
    let mut host = WireHost::connect(place.at, 1);
    assert_eq!(state(&mut host).0, AnaState::OPTIMIZED);
    let mut count = state(&mut host).1;
    for (word, expected, status) in [
        (
            "inaccessible",
            AnaState::INACCESSIBLE,
            Status::ASYMMETRIC_ACCESS_INACCESSIBLE,
        ),
        (
            "persistent-loss",
            AnaState::PERSISTENT_LOSS,
            Status::ASYMMETRIC_ACCESS_PERSISTENT_LOSS,
        ),
        (
            "change",
            AnaState::CHANGE,
            Status::ASYMMETRIC_ACCESS_TRANSITION,
        ),
        ("non-optimized", AnaState::NON_OPTIMIZED, Status::SUCCESS),
        ("optimized", AnaState::OPTIMIZED, Status::SUCCESS),
    ] {
        let request = AdminCommand::AsynchronousEventRequest.encode(0, Sgl::EMPTY);
        let request = host.send(Queue::Admin, request, Data::None);
        let keys = with_state("nsid = 1", 1, word, place.at);
        place.configure(&[(&image, &keys)]);
        let log = reload(&daemon);
        let line = ["ANA group 1 of", " through ", word, "from now on"];
        assert!(has(&log, &line), "{log:#?}");
        assert!(
            has(&log, &["subsystems with other ANA states: 1"]),
            "{log:#?}"
        );
        let (cqe, _) = host.answer(Queue::Admin, request);
        let event = AsyncEvent::decode(cqe.dw0.get());
        assert_eq!(event, AsyncEvent::ANA_CHANGE, "{word}");
        for found in [write(7, &mut host), read(&mut host)] {
            assert_eq!(found.code(), status, "{word}");
            // Another path, or a later time, may succeed.
            assert!(!found.is_dnr(), "{word}");
        }
        let (found, now) = state(&mut host);
        assert_eq!(found, expected);
        assert!(now > count, "{word}");
        count = now;
    }
    assert!(has(&reload(&daemon), &["nothing has changed"]));
    drop(host);
    assert!(daemon.stop().success());
}

/// The path of a host that writes is taken away and given back; what it had written is there.
#[test]
fn a_path_goes_and_comes_back_under_a_host_that_writes() {
    for transport in [Transport::Rdma, Transport::Tcp] {
        let place = Place::new();
        let (a, b) = (place.image("a"), place.image("b"));
        let optimized = "nsid = 1\nana_group = 5";
        let configure = |keys: &str| place.configure(&[(&b, "nsid = 2"), (&a, keys)]);
        configure(optimized);
        let daemon = place.serve();
        let host = connect(&place, transport);
        let [first, second] = [1, 2].map(|nsid| volume(&host, nsid));
        first.write(0, &[1; 8192]).expect("writes");
        assert_eq!(shown(place.at), [(1, 1, vec![2]), (5, 1, vec![1])]);
        let inaccessible = with_state(optimized, 5, "inaccessible", place.at);
        let why = thread::scope(|scope| {
            let writer = scope.spawn(|| writes_until_it_fails(&first));
            configure(&inaccessible);
            reload(&daemon);
            writer.join().expect("it fails")
        });
        assert!(why.contains("Inaccessible"), "{transport:?}: {why}");
        // The other group, and the association, are as they were.
        second.write(0, &[2; 4096]).expect("writes");
        assert_eq!(shown(place.at), [(1, 1, vec![2]), (5, 3, vec![1])]);
        // Into a group that is optimized, and so is its namespace.
        configure(&with_state(
            "nsid = 1\nana_group = 6",
            5,
            "inaccessible",
            place.at,
        ));
        let log = reload(&daemon);
        let line = ["namespace 1 of", "ANA group 6, and no longer 5"];
        assert!(has(&log, &line), "{log:#?}");
        assert!(has(&log, &["group 5 has no namespace"]), "{log:#?}");
        first.write(4096, &[3; 4096]).expect("writes again");
        assert_eq!(shown(place.at), [(1, 1, vec![2]), (6, 1, vec![1])]);
        let mut found = [0; 8192];
        first.read(0, &mut found).expect("reads");
        assert_eq!((found[0] != 0, found[4096]), (true, 3), "{transport:?}");
        host.close();
        assert!(daemon.stop().success());
    }
}

/// Waits until the host sees that it may only read the namespace, or may write it.
fn wait_for_read_only(host: &Controller, read_only: bool) {
    wait_until("the host sees it", || {
        let namespaces = host.snapshot_blocking().namespaces;
        namespaces.first().is_some_and(|n| n.read_only == read_only)
    });
}

fn first_byte(path: &Path) -> u8 {
    std::fs::read(path).expect("the image")[0]
}

/// Writes until that succeeds: a host hears of an attribute that has changed a little later.
fn writes_at_last(volume: &BlockingVolume, byte: u8) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(error) = volume.write(0, &[byte; LBA_BYTES]) {
        assert!(Instant::now() < deadline, "{error}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether it was opened for writing at first or not: hosts stay connected, and the namespace is
/// never gone.
#[test]
fn a_namespace_is_made_read_only_and_writable_again_under_a_host_that_writes() {
    for transport in [Transport::Rdma, Transport::Tcp] {
        for read_only_at_first in [false, true] {
            let place = Place::new();
            let image = place.image("a");
            let configure = |read_only: bool| {
                let keys = format!("nsid = 1\nread_only = {read_only}");
                place.configure(&[(&image, &keys)]);
            };
            configure(read_only_at_first);
            let daemon = place.serve();
            let before = place.shown();
            let host = connect(&place, transport);
            wait_for_read_only(&host, read_only_at_first);
            let volume = volume(&host, 1);
            if read_only_at_first {
                writes_until_it_fails(&volume);
                configure(false);
                let log = reload(&daemon);
                assert!(has(&log, &["hosts can write it from now on"]), "{log:#?}");
                wait_for_read_only(&host, false);
                writes_at_last(&volume, 4);
                volume.flush().expect("flushes");
                assert_eq!(first_byte(&image), 4, "in the file");
            }
            let stop = AtomicBool::new(false);
            let why = thread::scope(|scope| {
                let writer = scope.spawn(|| writes_until_it_fails(&volume));
                let reader = scope.spawn(|| {
                    let mut data = [0; LBA_BYTES];
                    while !stop.load(Ordering::Relaxed) {
                        volume
                            .read(LBA_BYTES as u64, &mut data)
                            .expect("it is there");
                    }
                });
                configure(true);
                let log = reload(&daemon);
                assert!(has(&log, &["namespaces changed in use: 1"]), "{log:#?}");
                let why = writer.join().expect("it fails");
                stop.store(true, Ordering::Relaxed);
                reader.join().expect("it reads");
                why
            });
            assert!(why.contains("Write Protected"), "{why}");
            wait_for_read_only(&host, true);
            // What was written before can be made durable.
            volume.flush().expect("flushes");
            configure(false);
            reload(&daemon);
            wait_for_read_only(&host, false);
            writes_at_last(&volume, 9);
            assert_eq!(place.shown(), before, "the same namespace");
            let log = daemon.log();
            assert!(!has(&log, &["association ended"]), "{log:#?}");
            host.close();
            assert!(daemon.stop().success());
            assert_eq!(first_byte(&image), 9);
        }
    }
}

/// What has taken the place of a file that hosts could only read is not written in its name.
#[test]
fn a_file_that_was_moved_is_not_made_writable_by_what_is_at_its_path() {
    let place = Place::new();
    let image = place.image("a");
    place.configure(&[(
        &image,
        "nsid = 1\nread_only = true\nuuid = \"6f1b2a0e-93a5-4f0e-9d3c-0d6a5b7c8d11\"",
    )]);
    let daemon = place.serve();
    std::fs::rename(&image, place.folder.path().join("moved")).expect("renames");
    let other = place.image("a");
    assert_eq!(utf8(&other), utf8(&image));
    place.configure(&[(
        &image,
        "nsid = 1\nuuid = \"6f1b2a0e-93a5-4f0e-9d3c-0d6a5b7c8d11\"",
    )]);
    let log = reload(&daemon);
    let words = [
        "not reloaded",
        "is not what was opened",
        "nothing was changed",
    ];
    assert!(has(&log, &words), "{log:#?}");
    let mut host = WireHost::connect(place.at, 1);
    let refused = write(1, &mut host).code();
    assert_eq!(refused, Status::NAMESPACE_IS_WRITE_PROTECTED);
    let get = GetFeatures {
        nsid: 1,
        ..GetFeatures::new(FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG)
    };
    let sqe = AdminCommand::GetFeatures(get).encode(0, Sgl::EMPTY);
    assert_eq!(host.run(Queue::Admin, sqe, Data::None).0.dw0.get(), 1);
    drop(host);
    assert!(daemon.stop().success());
}
