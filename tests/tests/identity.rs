//! A namespace is known by the file that it is on: another file in its place is another namespace,
//! whether a reload or a restart puts it there, and no host goes on in it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use capstan_nvme_proto::command::{AdminCommand, IoCommand, LbaRange, SetFeatures, Write};
use capstan_nvme_proto::features::{FeatureId, HostBehaviorSupport};
use capstan_nvme_proto::identify::Cns;
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;
use capstan_tests::place::{Place, has, is_blank, reload, volume, writes_until_it_fails};
use capstan_tests::program::{Daemon, program, signal, utf8};
use capstan_tests::wire_host::{Data, Queue, WireHost};
use nix::sys::signal::Signal;
use zerocopy::IntoBytes as _;

#[test]
fn a_host_that_writes_never_reaches_the_file_that_a_reload_puts_in_its_place() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    place.configure(&[(&a, "nsid = 1")]);
    let daemon = place.serve();
    let before = place.shown();
    let controller = place.connect();
    let writing = volume(&controller, 1);
    writing.write(0, &[7; 4096]).expect("writes");
    place.configure(&[(&b, "nsid = 1")]);
    let (stop, writing) = (AtomicBool::new(false), &writing);
    let log = thread::scope(|scope| {
        // In the middle of it, most likely, and for a second behind it: the host has found the new
        // one by then, and must not take it for the old one.
        let writer = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = writing.write(4096, &[7; 8192]);
            }
        });
        let log = reload(&daemon);
        thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        log
    });
    assert!(is_blank(&b), "what was for another file is in this one");
    writes_until_it_fails(writing);
    assert!(has(&log, &["namespace 1", "medium changed"]), "{log:#?}");
    let words = ["another medium", utf8(&a), utf8(&b), "write `uuid = "];
    assert!(has(&log, &words), "{log:#?}");
    controller.close();
    let other = place.shown();
    assert!(other.len() == 1 && other != before, "{other:?}");
    // A host that attaches it anew may use it.
    let controller = place.connect();
    volume(&controller, 1).write(0, &[9; 4096]).expect("writes");
    controller.close();
    place.configure(&[(&a, "nsid = 1")]);
    reload(&daemon);
    assert_eq!(place.shown(), before, "the first one is back");
    assert!(daemon.stop().success());
}

#[test]
fn a_host_does_not_go_on_in_the_file_that_a_restart_puts_in_its_place() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    place.configure(&[(&a, "nsid = 1")]);
    let daemon = place.serve();
    let before = place.shown();
    let controller = place.connect();
    let writing = volume(&controller, 1);
    writing.write(0, &[7; 4096]).expect("writes");
    place.configure(&[(&b, "nsid = 1")]);
    let told = place.check();
    assert!(
        told.contains("another medium") && told.contains(&before[0].1),
        "{told}"
    );
    daemon.kill();
    let daemon = place.serve();
    daemon.wait_for_log(&["another medium", utf8(&a), utf8(&b)]);
    let why = writes_until_it_fails(&writing);
    assert!(why.contains("its UUID is"), "{why}");
    assert!(is_blank(&b));
    controller.close();
    let other = place.shown();
    assert!(other != before);
    // It is the same from one start to the next, and said once.
    assert!(daemon.stop().success());
    let daemon = place.serve();
    assert_eq!(place.shown(), other);
    assert!(!has(&daemon.log(), &["another medium"]));
    assert!(!place.check().contains("another medium"));
    assert!(daemon.stop().success());
}

#[test]
fn what_is_said_of_a_namespace_has_the_nsid_that_hosts_see() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    place.configure(&[(&a, ""), (&b, "")]);
    let daemon = place.serve();
    assert_eq!(place.shown().len(), 2);
    assert!(daemon.stop().success());
    // The second one of the file is the first one now, and hosts know it as 2.
    place.configure(&[(&b, "")]);
    let in_use = fs::File::open(&b).unwrap();
    in_use.lock().unwrap();
    let run = |command: &str, args: &[&str]| {
        let config = place.config();
        let environment = place.environment();
        let program = program("capstan-target");
        let words = [&environment, utf8(&program), command, "--config"];
        let mut run = Command::new("timeout");
        run.args(["5", "env"]).args(words).arg(&config).args(args);
        let output = run.output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|t| String::from_utf8(t).unwrap());
        out + &err
    };
    for command in ["check", "doctor", "serve"] {
        let said = run(command, &[]);
        assert!(said.contains("nsid 2 path: "), "{command}: {said}");
        assert!(!said.contains("nsid 1"), "{command}: {said}");
    }
    drop(in_use);
}

/// What Linux does after it has connected again: it sends what waited, and looks later.
fn write_at_once(host: &mut WireHost, nsid: u32) -> Status {
    let write = Write::new(nsid, LbaRange { slba: 0, nlb: 1 });
    let sqe = IoCommand::Write(write).encode(0, Sgl::EMPTY);
    let (cqe, _) = host.run(Queue::Io, sqe, Data::Pulled(&[7; 4096]));
    cqe.status()
}

fn is_to_be_tried_again(status: Status) -> bool {
    status.code() == Status::NAMESPACE_NOT_READY && !status.is_dnr()
}

#[test]
fn a_host_that_sends_before_it_looks_reaches_no_file_in_the_place_of_others() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    place.configure(&[(&a, "nsid = 1")]);
    let daemon = place.serve();
    let mut first = WireHost::connect(place.at, 1);
    assert!(write_at_once(&mut first, 1).is_success());
    drop(first);
    place.configure(&[(&b, "nsid = 1")]);
    daemon.kill();
    // It misses the first start with the other one, and is back after the second.
    place.serve().kill();
    let daemon = place.serve();
    let mut host = WireHost::connect(place.at, 1);
    let status = write_at_once(&mut host, 1);
    assert!(is_to_be_tried_again(status), "{status:?}");
    // Another program with the same Host Identifier looks, and says nothing to this one.
    let mut other = WireHost::connect(place.at, 1);
    other.accept(1);
    let status = write_at_once(&mut host, 1);
    assert!(is_to_be_tried_again(status), "{status:?}");
    drop(other);
    drop(host);
    // Out and in again.
    place.configure(&[(&a, "nsid = 2")]);
    reload(&daemon);
    let mut waiting = WireHost::connect(place.at, 1);
    place.configure(&[(&a, "nsid = 2"), (&b, "nsid = 1")]);
    reload(&daemon);
    for host in [&mut waiting, &mut WireHost::connect(place.at, 1)] {
        let status = write_at_once(host, 1);
        assert!(is_to_be_tried_again(status), "{status:?}");
    }
    drop(waiting);
    assert!(is_blank(&b), "what was for another file is in this one");
    // The first one is back, for a host that has missed the other: once it has looked, it goes on.
    place.configure(&[(&a, "nsid = 1")]);
    assert!(daemon.stop().success());
    let daemon = place.serve();
    let mut host = WireHost::connect(place.at, 1);
    let behavior = HostBehaviorSupport::with_acre(true);
    let feature = SetFeatures::new(FeatureId::HOST_BEHAVIOR_SUPPORT, 0);
    let sqe = AdminCommand::SetFeatures(feature).encode(0, Sgl::EMPTY);
    for data in [
        Data::Pulled(behavior.as_bytes()),
        Data::InCapsule(behavior.as_bytes()),
    ] {
        let (cqe, _) = host.run(Queue::Admin, sqe, data);
        assert!(cqe.status().is_success(), "{cqe:?}");
        let status = write_at_once(&mut host, 1);
        assert!(
            is_to_be_tried_again(status) && status.crd() == 1,
            "{status:?}"
        );
    }
    // A look is no decision.
    for cns in [
        Cns::NAMESPACE,
        Cns::NAMESPACE_ID_DESCRIPTORS,
        Cns::NAMESPACE,
    ] {
        host.identify(1, cns);
        let status = write_at_once(&mut host, 1);
        assert!(is_to_be_tried_again(status), "{cns}: {status:?}");
    }
    host.identify(1, Cns::NAMESPACE);
    let status = write_at_once(&mut host, 1);
    assert!(status.is_success(), "{status:?}");
    // Linux before 6.0 reads no more than this, whatever it decides.
    let mut older = WireHost::connect(place.at, 1);
    for cns in [Cns::NAMESPACE_ID_DESCRIPTORS, Cns::NAMESPACE] {
        older.identify(1, cns);
    }
    let looked = Instant::now();
    let status = loop {
        let status = write_at_once(&mut older, 1);
        if !is_to_be_tried_again(status) {
            break status;
        }
        assert!(looked.elapsed() < Duration::from_secs(15), "{status:?}");
    };
    assert!(status.is_success(), "{status:?}");
    // It has sent twice by then what waited.
    assert!(looked.elapsed() > Duration::from_secs(2));
    drop(older);
    assert!(daemon.stop().success());
}

#[test]
fn no_host_reaches_a_file_in_the_place_of_memory() {
    let place = Place::new();
    let a = place.image("a");
    place.configure(&[]);
    let empty = fs::read_to_string(place.config()).unwrap();
    let in_memory = empty + "[[subsystem.namespace]]\nram = \"1MiB\"\n";
    fs::write(place.config(), &in_memory).unwrap();
    let daemon = place.serve();
    let mut host = WireHost::connect(place.at, 1);
    assert!(write_at_once(&mut host, 1).is_success());
    drop(host);
    daemon.kill();
    // Memory of another process holds nothing of what the host has; nor does a file.
    for file in [None, Some(&a)] {
        match file {
            Some(file) => place.configure(&[(file, "")]),
            None => fs::write(place.config(), &in_memory).unwrap(),
        }
        let daemon = place.serve();
        let mut host = WireHost::connect(place.at, 1);
        let status = write_at_once(&mut host, 1);
        assert!(is_to_be_tried_again(status), "{status:?}");
        drop(host);
        daemon.kill();
    }
    assert!(is_blank(&a));
}

#[test]
fn two_files_change_places_and_no_host_reaches_the_other_one() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    let apart = [(a.as_path(), "nsid = 1"), (b.as_path(), "nsid = 2")];
    let swapped = [(b.as_path(), "nsid = 1"), (a.as_path(), "nsid = 2")];
    place.configure(&apart);
    let daemon = place.serve();
    let before = place.shown();
    let controller = place.connect();
    let volumes = [1, 2].map(|nsid| volume(&controller, nsid));
    // In one reload, a file would be open twice: it is refused, and everything goes on.
    place.configure(&swapped);
    let known = daemon.log().len();
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log_after(
        known,
        &["which is served as namespace", "nothing was changed"],
    );
    assert_eq!(place.shown(), before);
    for (volume, byte) in volumes.iter().zip([1, 2]) {
        volume.write(0, &[byte; 4096]).expect("goes on");
    }
    daemon.kill();
    let daemon = place.serve();
    for volume in &volumes {
        let why = writes_until_it_fails(volume);
        assert!(why.contains("its UUID is"), "{why}");
    }
    controller.close();
    let after = place.shown();
    for shown in &after {
        assert!(
            !before.iter().any(|before| before.1 == shown.1),
            "{after:?}"
        );
    }
    let mut host = WireHost::connect(place.at, 1);
    for nsid in [1, 2] {
        let status = write_at_once(&mut host, nsid);
        assert!(is_to_be_tried_again(status), "{status:?}");
    }
    drop(host);
    assert!(daemon.stop().success());
    for (image, byte) in [(&a, 1), (&b, 2)] {
        let stored = fs::read(image).unwrap();
        assert!(stored[..4096].iter().all(|&found| found == byte));
        assert!(stored[4096..].iter().all(|&found| found == 0));
    }
    // And back.
    place.configure(&apart);
    let daemon = place.serve();
    assert_eq!(place.shown(), before);
    assert!(daemon.stop().success());
}

#[test]
fn what_is_left_keeps_its_number_when_the_first_one_goes() {
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    place.configure(&[(&a, ""), (&b, "")]);
    let daemon = place.serve();
    let both = place.shown();
    assert_eq!([both[0].0, both[1].0], [1, 2]);
    let controller = place.connect();
    let (first, second) = (volume(&controller, 1), volume(&controller, 2));
    first.write(0, &[1; 4096]).expect("writes");
    second.write(0, &[2; 4096]).expect("writes");
    place.configure(&[(&b, "")]);
    let log = reload(&daemon);
    assert!(has(&log, &["namespace 1", "removed"]), "{log:#?}");
    assert!(has(&log, &["namespace 2", "number kept"]), "{log:#?}");
    writes_until_it_fails(&first);
    second.write(4096, &[2; 4096]).expect("goes on");
    assert_eq!(place.shown(), both[1..]);
    assert!(daemon.stop().success());
    let daemon = place.serve();
    daemon.wait_for_log(&["namespace 2", "number kept"]);
    second
        .write(8192, &[2; 4096])
        .expect("goes on after a restart");
    assert!(first.write(0, &[1; 4096]).is_err());
    controller.close();
    assert_eq!(place.shown(), both[1..]);
    // It comes back, behind the other one.
    place.configure(&[(&b, ""), (&a, "")]);
    reload(&daemon);
    assert_eq!(place.shown(), both);
    assert!(daemon.stop().success());
    let stored = fs::read(&b).unwrap();
    assert!(stored[..12288].iter().all(|&byte| byte == 2));
}

#[test]
fn a_moved_file_is_the_same_and_one_made_anew_is_not_unless_its_uuid_is_written_down() {
    let place = Place::new();
    let a = place.image("a");
    let start = |entries: &[(&Path, &str)]| {
        place.configure(entries);
        let daemon = place.serve();
        let shown = place.shown();
        assert!(daemon.stop().success());
        shown
    };
    let first = start(&[(&a, "")]);
    let moved = place.folder.path().join("moved");
    fs::rename(&a, &moved).unwrap();
    assert_eq!(start(&[(&moved, "")]), first);
    // Restored from a copy, as most tools do.
    let copy = place.folder.path().join("copy");
    fs::copy(&moved, &copy).unwrap();
    fs::rename(&copy, &moved).unwrap();
    assert!(
        place.check().contains("made anew, restored"),
        "{}",
        place.check()
    );
    let restored = start(&[(&moved, "")]);
    assert_ne!(restored, first);
    let pinned = format!("uuid = \"{}\"", first[0].1);
    assert_eq!(start(&[(&moved, &pinned)]), first);
}

#[test]
fn where_nothing_can_be_written_down_that_is_said_and_nothing_changes_in_silence() {
    let mut place = Place::new();
    let a = place.image("a");
    place.configure(&[(&a, "")]);
    // Nobody can make a file there.
    place.state = "/proc".into();
    let seen = [(), ()].map(|()| {
        let daemon = place.serve();
        daemon.wait_for_log(&["WARN", "is not remembered", "/proc/namespaces.toml"]);
        let shown = place.shown();
        assert!(daemon.stop().success());
        shown
    });
    assert_eq!(seen[0], seen[1]);
    place.state = place.folder.path().join("none");
    let daemon = place.serve();
    daemon.wait_for_log(&["WARN", "does not exist", "STATE_DIRECTORY"]);
    assert_eq!(place.shown(), seen[0]);
    // Spoilt: rather not served than as something else.
    assert!(daemon.stop().success());
    fs::create_dir(&place.state).unwrap();
    fs::write(place.state.join("namespaces.toml"), "[[namespace").unwrap();
    let why = place.refusal();
    assert!(why.contains("restore it, or remove it"), "{why}");
}

/// The log of a reload that is refused.
fn refused(daemon: &Daemon, words: &str) {
    let known = daemon.log().len();
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log_after(known, &["ERROR", "was not reloaded", words]);
}

#[test]
fn a_table_that_is_spoilt_while_a_target_runs_is_not_written_over_and_one_that_is_gone_is_written()
{
    let place = Place::new();
    let (a, b) = (place.image("a"), place.image("b"));
    let table = place.state.join("namespaces.toml");
    place.configure(&[(&a, "nsid = 1")]);
    let daemon = place.serve();
    let before = place.shown();
    place.configure(&[(&b, "nsid = 1")]);
    for garbage in ["garbage", ""] {
        fs::write(&table, garbage).unwrap();
        refused(&daemon, "namespaces.toml cannot be read");
        assert_eq!(fs::read_to_string(&table).unwrap(), garbage);
        assert_eq!(place.shown(), before);
    }
    fs::remove_file(&table).unwrap();
    fs::remove_file(place.state.join("lba-sizes.toml")).unwrap();
    let log = reload(&daemon);
    assert!(
        has(&log, &["WARN", "namespaces.toml", "written again"]),
        "{log:#?}"
    );
    assert!(
        has(&log, &["WARN", "lba-sizes.toml", "written now"]),
        "{log:#?}"
    );
    let other = place.shown();
    assert_ne!(other, before);
    daemon.kill();
    // It has both.
    let daemon = place.serve();
    assert_eq!(place.shown(), other);
    place.configure(&[(&a, "nsid = 1")]);
    reload(&daemon);
    assert_eq!(place.shown(), before);
    // Gone while nothing runs.
    assert!(daemon.stop().success());
    fs::remove_file(&table).unwrap();
    let told = place.check();
    assert!(
        told.contains("is forgotten") && told.contains("detach every host"),
        "{told}"
    );
    let daemon = place.serve();
    daemon.wait_for_log(&["WARN", "is forgotten", "detach every host"]);
    assert!(daemon.stop().success());
    assert!(!place.check().contains("is forgotten"));
    // What is in its place is no table.
    fs::remove_file(&table).unwrap();
    fs::create_dir(&table).unwrap();
    let why = place.refusal();
    assert!(why.contains("no regular file"), "{why}");
}

#[test]
fn root_a_state_folder_that_is_named_and_cannot_be_read_keeps_a_target_from_starting() {
    let place = Place::new();
    let a = place.image("a");
    place.configure(&[(&a, "")]);
    assert!(place.serve().stop().success());
    let table = place.state.join("namespaces.toml");
    let folder = place.folder.path();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&table, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&a, fs::Permissions::from_mode(0o666)).unwrap();
    let mut check = Command::new("setpriv");
    check.args(["--reuid", "65534", "--clear-groups", "env"]);
    check
        .arg(place.environment())
        .arg(program("capstan-target"));
    let refused = check
        .args(["check", "--config", utf8(&place.config())])
        .output();
    let refused = refused.unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && told.contains("namespaces.toml cannot be read"),
        "{told}"
    );
}

#[test]
fn a_backup_that_is_renamed_over_a_file_is_not_taken_for_it_in_silence() {
    let place = Place::new();
    let (a, backup) = (place.image("a"), place.image("backup"));
    place.configure(&[(&a, "nsid = 1")]);
    let daemon = place.serve();
    let before = place.shown();
    let controller = place.connect();
    let writing = volume(&controller, 1);
    fs::rename(&backup, &a).unwrap();
    let log = reload(&daemon);
    assert!(!has(&log, &["nothing has changed"]), "{log:#?}");
    let words = [
        "WARN",
        "goes on with what was opened at",
        "Another file",
        "restart the target",
    ];
    assert!(has(&log, &words), "{log:#?}");
    writing.write(0, &[7; 4096]).expect("goes on");
    assert!(is_blank(&a));
    controller.close();
    let told = place.check();
    let words = format!(
        "process {} still has the file open that was at",
        daemon.pid()
    );
    assert!(told.contains(&words), "{told}");
    assert_eq!(place.shown(), before);
    let known = daemon.log().len();
    signal(daemon.pid(), Signal::SIGTERM);
    daemon.wait_for_log_after(known, &["WARN", "was served until the end", "Another file"]);
    let told = place.check();
    assert!(told.contains("another medium than it was"), "{told}");
}

/// A restart would not find it: no step that is named is one.
#[test]
fn a_file_that_is_deleted_is_to_be_copied_and_not_to_be_opened_anew() {
    let place = Place::new();
    let a = place.image("a");
    place.configure(&[(&a, "nsid = 1")]);
    let daemon = place.serve();
    let known = daemon.log().len();
    fs::remove_file(&a).unwrap();
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log_after(
        known,
        &[
            "goes on with what was opened at",
            "Nothing is at that path now",
            "copy it before, while no host writes (cp --sparse=always /proc/",
        ],
    );
    assert!(daemon.stop().success());
}
