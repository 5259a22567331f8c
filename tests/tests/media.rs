//! What others do to the files under a running target, and what its hosts and its operator hear of
//! it: files that grow, are cut, deleted or moved, and file systems that are full.

use std::fs::{self, File};
use std::thread;
use std::time::Duration;

use capstan_initiator::{Controller, IoError};
use capstan_nvme_proto::status::Status;
use capstan_tests::disks::in_own_mounts;
use capstan_tests::host::options;
use capstan_tests::lossy::{is_write_fault, reload};
use capstan_tests::one_image::OneImage;
use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, has_tools, own_address, signal, told, tool, utf8,
};
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

const MIB: u64 = 1 << 20;

/// LBA size and LBAs of the only namespace.
fn shape(controller: &Controller) -> (u32, u64) {
    let namespaces = controller.snapshot_blocking().namespaces;
    assert_eq!(namespaces.len(), 1, "{namespaces:?}");
    (namespaces[0].lba_bytes, namespaces[0].nsze_lbas)
}

fn sees(controller: &Controller, lbas: u64) {
    wait_until(&format!("the host sees {lbas} LBAs"), || {
        shape(controller) == (4096, lbas)
    });
}

#[test]
fn the_lba_size_of_an_image_does_not_follow_its_size() {
    let bench = OneImage::new(MIB);
    let daemon = bench.serve();
    let controller = bench.connect();
    assert_eq!(shape(&controller), (4096, 256));
    let volume = controller.volume_blocking(1).unwrap().blocking();
    volume.write(0, &[1; 4096]).unwrap();
    controller.close();
    assert!(daemon.stop().success());
    bench.resize(MIB + 1536);
    let checked = bench.check();
    assert!(
        checked.contains("1536 bytes at its end out of reach"),
        "{checked}"
    );
    let daemon = bench.serve();
    let controller = bench.connect();
    assert_eq!(shape(&controller), (4096, 256));
    assert_eq!(daemon.count_log("1536 bytes at its end out of reach"), 1);
    controller.close();
    assert!(daemon.stop().success());
    // The next step that it names.
    tool("truncate", &["--size=%4096", utf8(&bench.image)]);
    assert!(!bench.check().contains("out of reach"));
    // Of an image that an earlier version has used nothing is remembered.
    let bench = OneImage::new(MIB + 512);
    fs::write(&bench.image, vec![1; 1024 * 1024 + 512]).unwrap();
    for start in ["first", "second"] {
        let daemon = bench.serve();
        let controller = bench.connect();
        assert_eq!(shape(&controller), (512, 2049), "{start}");
        let told = daemon.count_log("has LBAs of 512 bytes, because it has data on it");
        assert_eq!(told, usize::from(start == "first"), "{:#?}", daemon.log());
        controller.close();
        assert!(daemon.stop().success());
    }
}

#[test]
fn an_image_that_grows_or_is_cut_is_told_to_hosts_and_the_log_without_a_reload() {
    let bench = OneImage::new(MIB);
    let daemon = bench.serve();
    let controller = bench.connect();
    bench.resize(2 * MIB);
    sees(&controller, 512);
    daemon.wait_for_log(&[
        "has grown from 1048576 to 2097152 bytes",
        utf8(&bench.image),
    ]);
    let whole = controller.volume_blocking(1).unwrap().blocking();
    whole.write(2 * MIB - 4096, &[2; 4096]).unwrap();
    // Less than an LBA is nothing to hosts.
    bench.resize(2 * MIB + 100);
    daemon.wait_for_log(&["has grown from 2097152 to 2097252 bytes"]);
    assert_eq!(shape(&controller), (4096, 512));

    bench.resize(MIB);
    daemon.wait_for_log(&[
        "ERROR",
        utf8(&bench.image),
        "was cut from 2097252 to 1048576 bytes",
        "truncate --size=2097252 FILE",
    ]);
    sees(&controller, 256);
    let error = whole.write(2 * MIB - 4096, &[3; 4096]).unwrap_err();
    assert!(
        matches!(error, IoError::Status { .. } | IoError::Invalid { .. }),
        "{error}"
    );
    assert_eq!(
        bench.image_bytes(),
        MIB,
        "the write did not make it long again"
    );
    whole.write(MIB - 4096, &[4; 4096]).unwrap();
    // A host that connects later sees the same.
    let later = Controller::connect(options(bench.at, 2)).unwrap();
    assert_eq!(shape(&later), (4096, 256));
    later.close();
    // What is lost is lost, also when the file is as long as it was.
    let (ip, port) = (bench.at.ip().to_string(), bench.at.port().to_string());
    let target = ["-t", "rdma", "-a", &ip, "-s", &port, "-n", SUBNQN];
    let smart = [&["smart-log", "-o", "json"], &target[..]].concat();
    let smart = Machine::new(bench.at).run(smart[0], &smart[1..]);
    let smart: serde_json::Value = serde_json::from_str(&told(&smart)).unwrap();
    assert_eq!(smart["critical_warning"], 4, "{smart}");
    bench.resize(2 * MIB + 100);
    sees(&controller, 512);
    let mut read = [9; 4096];
    whole.read(2 * MIB - 4096, &mut read).unwrap();
    assert_eq!(read, [0; 4096]);
    assert_eq!(daemon.count_log("was cut"), 1);
    controller.close();
    assert!(daemon.stop().success());
}

/// Hosts are not told that all is stored between a cut and the next look at sizes, which comes
/// once a second, and a file that is as long as it was again by then has lost it all the same.
#[test]
fn no_flush_succeeds_behind_a_cut_also_where_nothing_has_looked_at_the_size() {
    for back in [false, true] {
        let bench = OneImage::new(2 * MIB);
        let daemon = bench.serve();
        let controller = bench.connect();
        let volume = controller.volume_blocking(1).unwrap().blocking();
        volume.write(2 * MIB - 4096, &[5; 4096]).unwrap();
        volume.flush().unwrap();
        bench.resize(MIB);
        is_write_fault(&volume.flush());
        if back {
            bench.resize(2 * MIB);
        }
        let cut = ["ERROR", "was cut from 2097152 to 1048576 bytes"];
        daemon.wait_for_log(&cut);
        is_write_fault(&volume.flush());
        assert_eq!(daemon.count_log("ERROR"), 1, "{:?}", daemon.log());
        controller.close();
        assert!(daemon.stop().success());
    }
}

/// As long as it was again, it looks as if nothing had been cut off.
#[test]
fn a_cut_is_known_to_the_next_target_until_it_is_cleared() {
    let bench = OneImage::new(2 * MIB);
    let image = utf8(&bench.image).to_owned();
    let daemon = bench.serve();
    let controller = bench.connect();
    let volume = controller.volume_blocking(1).unwrap().blocking();
    volume.write(2 * MIB - 4096, &[1; 4096]).unwrap();
    volume.flush().unwrap();
    bench.resize(MIB);
    let cut = "was cut from 2097152 to 1048576 bytes";
    daemon.wait_for_log(&["ERROR", &image, cut, "clear-lost-writes"]);
    wait_until("a Flush fails", || volume.flush().is_err());
    wait_until("it is noted", || bench.has_note());
    // What a Flush says of it is no second loss.
    is_write_fault(&volume.flush());
    drop(volume);
    daemon.kill();
    assert_eq!(bench.notes(), 1);
    bench.resize(2 * MIB);
    assert!(bench.check().contains(cut), "{}", bench.check());
    let daemon = bench.serve();
    daemon.wait_for_log(&["ERROR", &image, "has lost writes", cut]);
    let later = Controller::connect(options(bench.at, 2)).unwrap();
    let volume = later.volume_blocking(1).unwrap().blocking();
    is_write_fault(&volume.flush());
    told(&bench.asked_of("clear-lost-writes", &[&image]));
    reload(&daemon, "lost writes cleared of volumes: 1");
    volume.flush().unwrap();
    drop(volume);
    later.close();
    controller.close();
    assert!(daemon.stop().success());
    assert!(!bench.has_note());
}

/// It is told once how long the image is to be.
#[test]
fn check_of_an_image_cut_to_nothing_names_the_size_that_it_had() {
    let bench = OneImage::new(MIB);
    let daemon = bench.serve();
    bench.resize(0);
    daemon.wait_for_log(&["ERROR", "was cut from 1048576 to 0 bytes"]);
    let check = bench.asked("check");
    assert!(!check.status.success(), "{check:?}");
    let said = String::from_utf8([check.stdout, check.stderr].concat()).unwrap();
    let sizes: Vec<_> = said.split("`truncate ").skip(1).collect();
    let [was, is_to_be] = &sizes[..] else {
        panic!("{said}");
    };
    assert!(was.starts_with("--size=1048576 FILE`"), "{said}");
    assert!(is_to_be.starts_with("--size=SIZE "), "{said}");
}

#[test]
fn a_subsystem_without_namespaces_is_named_with_what_to_do() {
    let bench = OneImage::new(MIB);
    bench.configure(None);
    let daemon = bench.serve();
    let machine = Machine::new(bench.at);
    let (socket, none) = (machine.path("socket"), "/dev/null");
    let commands: [(&str, &[&str]); 3] = [
        ("serve-nbd", &["--socket", utf8(&socket)]),
        ("read", &["-d", none]),
        ("bench", &["--rw", "read"]),
    ];
    let has = format!("subsystem {SUBNQN} has no namespace ");
    for (command, args) in commands {
        let said = complaint(&machine.run_on_target(command, args));
        let words = format!("{has}1, and no other one for this host: add one on the target");
        assert!(said.contains(&words), "{command}: {said}");
    }
    // The next step.
    bench.reload(&daemon, Some(""));
    told(&machine.run_on_target("read", &["-d", none]));
    for (command, args) in commands {
        let said = complaint(&machine.run_on_target(command, &[&["-N", "7"], args].concat()));
        let words = format!("{has}7 for this host, expected one of: 1");
        assert!(said.contains(&words), "{command}: {said}");
    }
    assert!(daemon.stop().success());
}

#[test]
fn growth_to_no_whole_number_of_lbas_says_what_is_out_of_reach() {
    let bench = OneImage::new(2 * MIB);
    let daemon = bench.serve();
    bench.resize(3 * MIB + 1000);
    daemon.wait_for_log(&[
        "WARN",
        utf8(&bench.image),
        "has grown from 2097152 to 3146728 bytes",
        "leaves 1000 bytes at its end, no whole LBA of 4096 bytes, out of reach of hosts",
    ]);
    assert!(daemon.stop().success());
}

/// Whenever it comes: what is cleared is told, and what is not told is not cleared.
#[test]
fn a_second_signal_finds_what_was_lost_noted_or_told() {
    let bench = OneImage::new(2 * MIB);
    for delay_ms in (0..20).step_by(2) {
        bench.resize(2 * MIB);
        let daemon = bench.serve();
        bench.resize(MIB);
        reload(&daemon, "configuration reloaded");
        wait_until("it is noted", || bench.has_note());
        signal(daemon.pid(), Signal::SIGTERM);
        thread::sleep(Duration::from_millis(delay_ms));
        // Where it is by then, until what comes is no part of the first one.
        signal(daemon.pid(), Signal::SIGSTOP);
        thread::sleep(Duration::from_millis(320));
        signal(daemon.pid(), Signal::SIGTERM);
        signal(daemon.pid(), Signal::SIGCONT);
        wait_until("it has ended", || {
            daemon.count_log("INFO stopped") + daemon.count_log("asked to end a second time") > 0
        });
        let is_told = daemon.count_log("is cleared, as this target was asked to stop") > 0;
        let log = daemon.log();
        let status = daemon.ended();
        assert_ne!(is_told, bench.has_note(), "{delay_ms} ms: {log:#?}");
        assert_eq!(status.success(), is_told, "{delay_ms} ms: {log:#?}");
    }
}

#[test]
fn a_reload_looks_at_sizes_whatever_else_has_changed() {
    let bench = OneImage::new(MIB);
    let daemon = bench.serve();
    for mib in 2..5 {
        bench.resize(mib * MIB);
        bench.reload(&daemon, Some(""));
        let controller = bench.connect();
        assert_eq!(shape(&controller), (4096, mib * 256));
        controller.close();
    }
    assert!(daemon.stop().success());
}

#[test]
fn an_image_without_its_name_is_said_once_and_can_be_saved_as_the_log_says() {
    if !has_tools("an_image_without_its_name_…", &["cp"]) {
        return;
    }
    let bench = OneImage::new(MIB);
    let daemon = bench.serve();
    let controller = bench.connect();
    let volume = controller.volume_blocking(1).unwrap().blocking();
    volume.write(8192, &[7; 4096]).unwrap();
    volume.flush().unwrap();
    let aside = bench.folder.path().join("aside");
    fs::rename(&bench.image, &aside).unwrap();
    daemon.wait_for_log(&[
        "ERROR",
        utf8(&bench.image),
        "not at its path any more",
        utf8(&aside),
    ]);
    fs::rename(&aside, &bench.image).unwrap();
    daemon.wait_for_log(&["is at its path again"]);
    // Deleted, and another one made in its place.
    fs::remove_file(&bench.image).unwrap();
    let line = daemon.wait_for_log_after(0, &["ERROR", utf8(&bench.image), "is deleted"]);
    File::create(&bench.image).unwrap().set_len(MIB).unwrap();
    volume.write(4096, &[8; 4096]).unwrap();
    volume.flush().unwrap();
    assert!(line.contains("`uuid`"), "a copy is another medium: {line}");
    let (_, command) = line.split_once('(').unwrap();
    let (command, _) = command.split_once(')').unwrap();
    let saved = bench.folder.path().join("saved");
    tool("sh", &["-c", &command.replace("FILE", utf8(&saved))]);
    let saved = fs::read(&saved).unwrap();
    assert_eq!(saved.len() as u64, MIB);
    assert!(saved[4096..8192] == [8; 4096] && saved[8192..12288] == [7; 4096]);
    assert_eq!(daemon.count_log("is deleted"), 1);
    controller.close();
    assert!(daemon.stop().success());
}

/// The command in parentheses.
fn command_of(text: &str) -> &str {
    let (_, command) = text.rsplit_once("(").unwrap();
    command.split_once(')').unwrap().0
}

#[test]
fn check_and_doctor_tell_what_a_running_target_knows_of_its_media() {
    let bench = OneImage::new(MIB);
    let daemon = bench.serve();
    let image = utf8(&bench.image);
    assert!(bench.errors_of_media().is_empty());
    assert!(bench.warns().ends_with(": 0x0"), "{}", bench.warns());

    let aside = bench.folder.path().join("aside");
    fs::rename(&bench.image, &aside).unwrap();
    let error = bench.error_of_media("is not at its path any more");
    let pid = format!("(process {})", daemon.pid());
    assert!(error.contains(image) && error.contains(&pid), "{error}");
    let warns = bench.warns();
    assert!(warns.ends_with("0x4: reliability is degraded"), "{warns}");
    let check = bench.asked("check");
    let said = String::from_utf8(check.stdout).unwrap();
    assert!(!check.status.success(), "a start would not find it");
    assert!(
        said.starts_with("warning: media: ") && said.contains("(mv -n "),
        "{said}"
    );
    // The next step.
    let (_, remedy) = error.split_once("mend: ").unwrap();
    tool("sh", &["-c", command_of(remedy)]);
    wait_until("it is back", || bench.errors_of_media().is_empty());
    wait_until("hosts see that", || bench.warns().ends_with(": 0x0"));

    bench.resize(MIB / 2);
    let error = bench.error_of_media("was cut from 1048576 to 524288 bytes");
    let clear = format!("`capstan-target clear-lost-writes {image}` and reload");
    assert!(
        error.contains("`truncate --size=1048576 FILE`") && error.contains(&clear),
        "{error}"
    );
    let said = bench.check();
    assert!(
        said.contains("warning: lost writes: ") && said.contains("was cut from"),
        "{said}"
    );
    // What is lost stays lost as long as this target runs.
    tool("truncate", &["--size=1048576", image]);
    daemon.wait_for_log(&["has grown from 524288 to 1048576 bytes"]);
    assert_eq!(bench.errors_of_media().len(), 1);
    assert!(daemon.stop().success());
    assert!(bench.errors_of_media().is_empty());
    assert!(!bench.check().contains("was cut"));

    let daemon = bench.serve();
    fs::remove_file(&bench.image).unwrap();
    let error = bench.error_of_media("is deleted");
    let copy = format!("cp --sparse=always /proc/{}/fd/", daemon.pid());
    assert!(error.contains(&copy), "{error}");
    assert!(daemon.stop().success());
}

/// tmpfs, in a mount namespace of the target's own.
#[test]
fn root_a_full_file_system_is_said_once_however_many_writes_find_it_full() {
    let test = "root_a_full_file_system_is_said_once_however_many_writes_find_it_full";
    if !has_disks(test, &["unshare", "mount"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("full.img");
    let script =
        "mount -t tmpfs -o size=2m none \"$0\" && truncate -s 16M \"$0/full.img\" && exec \"$@\"";
    let at = own_address();
    let (listen, folder) = (at.to_string(), utf8(folder.path()));
    let own_mounts = in_own_mounts(folder.as_ref());
    let daemon = Daemon::serve_under(
        &[&own_mounts[..], &["sh", "-c", script, folder]].concat(),
        &[
            "--provider",
            "iwarp",
            "--nqn",
            SUBNQN,
            "--export",
            utf8(&image),
            "--listen",
            &listen,
        ],
    );
    let controller = Controller::connect(options(at, 1)).unwrap();
    let volume = controller.volume_blocking(1).unwrap().blocking();
    let mut full = 0;
    for block in 0..128 {
        match volume.write(block * (64 << 10), &vec![1; 64 << 10]) {
            Ok(()) => {}
            Err(IoError::Status { status, .. }) => {
                assert_eq!(status.code(), Status::CAPACITY_EXCEEDED, "{status:?}");
                full += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(full > 90, "{full} of 128 found no space");
    daemon.wait_for_log(&["ERROR", utf8(&image), "no space left; free space"]);
    assert_eq!(daemon.count_log("no space left"), 1);
    controller.close();
    assert!(daemon.stop().success());
}
