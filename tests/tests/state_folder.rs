//! The folder where a target remembers what outlives it: what is said where it cannot be used, and
//! that nothing is guessed then.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output};

use capstan_tests::disks::{Unanswered, in_own_mounts, own_mounts};
use capstan_tests::lossy::{
    STATE, connect, namespace, reload, serve_in, variables, write_configuration,
};
use capstan_tests::place::{Place, has};
use capstan_tests::program::{Daemon, has_disks, own_address, program, signal, told, tool, utf8};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;

const MIB: u64 = 1 << 20;

/// A configuration with one image, whose namespace has these keys.
fn configured(folder: &Path, keys: &str) -> String {
    let image = folder.join("volume.img");
    if !image.exists() {
        File::create(&image).unwrap().set_len(MIB).unwrap();
    }
    let at = own_address();
    let toml = format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n[[listener]]\naddress = \"{}\"\nport = {}\n\
         provider = \"iwarp\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:state\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\n{keys}\n",
        at.ip(),
        at.port(),
        image.display()
    );
    let file = folder.join("target.toml");
    fs::write(&file, toml).unwrap();
    utf8(&file).to_owned()
}

/// `capstan-target COMMAND` with this state folder, behind a tool.
fn target(tool: &[&str], state: &str, command: &str, file: &str) -> Output {
    let mut words = tool.to_vec();
    let state = format!("STATE_DIRECTORY={state}");
    let program = program("capstan-target");
    words.extend(["env", &state, utf8(&program), command, "--config", file]);
    let (name, args) = words.split_first().unwrap();
    Command::new(name).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .concat()
}

#[test]
fn a_file_is_not_served_while_what_it_was_used_with_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let state = folder.join("state");
    fs::create_dir(&state).unwrap();
    let serve = |file: &str| {
        let state = format!("STATE_DIRECTORY={}", utf8(&state));
        Daemon::serve_under(&["env", &state], &["--config", file])
    };
    assert!(serve(&configured(folder, "lba = 512")).stop().success());
    let table = state.join("lba-sizes.toml");
    let remembered = fs::read(&table).unwrap();
    fs::write(&table, "garbage").unwrap();
    let file = configured(folder, "");
    for command in ["serve", "check", "doctor"] {
        let output = target(&[], utf8(&state), command, &file);
        let said = said(&output);
        assert!(!output.status.success(), "{command}: {said}");
        for word in [utf8(&table), "volume.img", "cannot be read", "lba = 512"] {
            assert!(said.contains(word), "{command}: {word}: {said}");
        }
    }
    // What the operator says is served, and what is remembered of others stays to be restored.
    let daemon = serve(&configured(folder, "lba = 512"));
    daemon.wait_for_log(&["WARN", utf8(&table)]);
    assert!(daemon.stop().success());
    assert_eq!(fs::read(&table).unwrap(), b"garbage");
    fs::write(&table, remembered).unwrap();
    let check = target(&[], utf8(&state), "check", &configured(folder, ""));
    assert!(told(&check).contains("ok, 0 warning(s)"), "{check:?}");
}

/// `lba-sizes.toml` is lost, and `namespaces.toml` says that the file was served: never another
/// size in silence, and never one that is guessed.
#[test]
fn a_file_whose_lba_size_is_forgotten_has_the_one_it_was_used_with_or_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let state = folder.join("state");
    fs::create_dir(&state).unwrap();
    let table = state.join("lba-sizes.toml");
    let serve = |file: &str| {
        let state = format!("STATE_DIRECTORY={}", utf8(&state));
        Daemon::serve_under(&["env", &state], &["--config", file])
    };
    let first = configured(folder, "lba = 512");
    let image = File::options()
        .write(true)
        .open(folder.join("volume.img"))
        .unwrap();
    image.write_all_at(b"what a host has written", 0).unwrap();
    assert!(serve(&first).stop().success());
    fs::remove_file(&table).unwrap();
    let file = configured(folder, "");
    image.write_all_at(b"what a host has written", 0).unwrap();
    for command in ["serve", "check", "doctor"] {
        let output = target(&[], utf8(&state), command, &file);
        let said = said(&output);
        assert!(!output.status.success(), "{command}: {said}");
        let not_there = format!("{} is not there", utf8(&table));
        for word in [&not_there, "volume.img", "hosts may have used", "lba = 512"] {
            assert!(said.contains(word), "{command}: {word}: {said}");
        }
    }
    // A file system tells: xfs with sectors of 512 bytes.
    image.write_all_at(b"XFSB", 0).unwrap();
    image.write_all_at(&[2, 0], 102).unwrap();
    let warning = "has LBAs of 512 bytes, because it has a file system (xfs)";
    let check = target(&[], utf8(&state), "check", &file);
    assert!(told(&check).contains(warning), "{check:?}");
    let daemon = serve(&file);
    daemon.wait_for_log(&["WARN", warning]);
    assert!(daemon.stop().success());
    // It is remembered again.
    let check = target(&[], utf8(&state), "check", &file);
    assert!(told(&check).contains("ok, 0 warning(s)"), "{check:?}");
}

/// A table that cannot be read, or is lost: what does not depend on it is served meanwhile.
#[test]
fn only_what_depends_on_a_lost_table_is_not_served_until_its_lba_size_is_said() {
    for lose in [
        (|table| fs::write(table, "garbage").unwrap()) as fn(&Path),
        |table| fs::remove_file(table).unwrap(),
    ] {
        let place = Place::new();
        let [known, unknown, third] = ["known", "unknown", "third"].map(|name| place.image(name));
        fs::write(&unknown, vec![7; 1 << 20]).unwrap();
        place.configure(&[(&unknown, "lba = 512"), (&known, "lba = 4096")]);
        assert!(place.serve().stop().success());
        let table = place.state.join("lba-sizes.toml");
        lose(&table);
        place.configure(&[(&unknown, ""), (&known, "lba = 4096")]);
        let refusal = place.refusal();
        assert!(refusal.contains(utf8(&table)), "{refusal}");
        let daemon = place.serve();
        let why = [
            "ERROR",
            "namespace 1 of",
            "is not served",
            utf8(&table),
            utf8(&unknown),
        ];
        daemon.wait_for_log(&why);
        daemon.wait_for_log(&["`lba = 512`", "Then reload"]);
        let nsids = || -> Vec<_> { place.shown().iter().map(|(nsid, _)| *nsid).collect() };
        assert_eq!(nsids(), [2]);
        // It keeps no other change waiting.
        let added = [
            (&*unknown, ""),
            (&known, "lba = 4096"),
            (&third, "lba = 4096"),
        ];
        place.configure(&added);
        let log = capstan_tests::place::reload(&daemon);
        assert!(has(&log, &why), "{log:#?}");
        assert!(
            has(
                &log,
                &[
                    "configuration reloaded",
                    "not served, as their LBA size is not known: 1"
                ]
            ),
            "{log:#?}"
        );
        assert_eq!(nsids(), [2, 3]);
        // The next step.
        place.configure(&[(&unknown, "lba = 512"), added[1], added[2]]);
        let log = capstan_tests::place::reload(&daemon);
        assert!(
            has(&log, &["configuration reloaded: namespaces added: 1"]),
            "{log:#?}"
        );
        assert_eq!(nsids(), [1, 2, 3]);
        let host = place.connect();
        let namespaces = host.snapshot_blocking().namespaces;
        assert_eq!(namespaces[0].lba_bytes, 512);
        host.close();
        assert!(daemon.stop().success());
    }
}

/// What `serve` warns of a file, `check` does.
#[test]
fn what_hosts_cannot_use_with_the_default_lba_size_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let state = folder.join("state");
    fs::create_dir(&state).unwrap();
    let file = configured(folder, "");
    let image = File::options()
        .write(true)
        .open(folder.join("volume.img"))
        .unwrap();
    // The superblock of ext4 with blocks of 1 KiB, as of an image of 50 MiB.
    image.write_all_at(&[0x53, 0xef], 1024 + 56).unwrap();
    let words = "volume.img has a file system (ext2 to ext4) with blocks of 1024 bytes, which hosts cannot mount with LBAs \
                 of 4096, the default: write `lba = 512`";
    let serve = |file: &str| {
        let state = format!("STATE_DIRECTORY={}", utf8(&state));
        Daemon::serve_under(&["env", &state], &["--config", file])
    };
    for _ in 0..2 {
        let check = target(&[], utf8(&state), "check", &file);
        assert!(told(&check).contains(words), "{check:?}");
        let daemon = serve(&file);
        daemon.wait_for_log(&["WARN", words]);
        assert!(daemon.stop().success());
    }
    // The next step is nothing to warn of.
    let daemon = serve(&configured(folder, "lba = 512"));
    assert_eq!(daemon.count_log("not found any more"), 0);
    assert!(daemon.stop().success());
    let check = target(&[], utf8(&state), "check", &configured(folder, ""));
    assert!(told(&check).contains("ok, 0 warning(s)"), "{check:?}");
}

#[test]
fn a_state_folder_that_cannot_be_used_is_told_by_check_doctor_and_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = configured(folder, "lba = 4096");
    let plain = folder.join("plain");
    fs::write(&plain, "").unwrap();
    let missing = folder.join("missing");
    for (state, words) in [
        (utf8(&missing), "does not exist"),
        (utf8(&plain), "is not a folder"),
        ("relative", "STATE_DIRECTORY is `relative`"),
    ] {
        for command in ["check", "doctor"] {
            let said = said(&target(&[], state, command, &file));
            assert!(said.contains(words), "{command}: {words}: {said}");
            assert!(
                said.contains("writes that were lost") || state == "relative",
                "{said}"
            );
        }
        let variable = format!("STATE_DIRECTORY={state}");
        let daemon = Daemon::serve_under(&["env", &variable], &["--config", &file]);
        daemon.wait_for_log(&["WARN", words]);
        if state == utf8(&missing) {
            assert_eq!(daemon.count_log("remember"), 1, "{:#?}", daemon.log());
        }
        assert!(daemon.stop().success());
    }
    // What the check of a missing one says to do.
    let user = nix::unistd::geteuid().to_string();
    tool("install", &["-d", "-m", "750", "-o", &user, utf8(&missing)]);
    let check = said(&target(&[], utf8(&missing), "check", &file));
    assert!(!check.contains("does not exist"), "{check}");
    fs::remove_dir(&missing).unwrap();
    // Memory depends on none.
    let text = fs::read_to_string(&file).unwrap();
    let path = format!("path = \"{}\"", folder.join("volume.img").display());
    fs::write(&file, text.replace(&path, "ram = \"1MiB\"")).unwrap();
    let check = said(&target(&[], utf8(&missing), "check", &file));
    assert!(!check.contains("state folder"), "{check}");
}

#[test]
fn root_a_state_folder_of_another_user_or_that_is_full_or_read_only_is_told() {
    let test = "root_a_state_folder_of_another_user_or_that_is_full_or_read_only_is_told";
    if !has_disks(test, &["setpriv", "unshare", "mount", "truncate"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = configured(folder, "lba = 4096");
    for (path, mode) in [(folder, 0o755), (&*folder.join("volume.img"), 0o666)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let state = folder.join("state");
    nix::unistd::mkdir(&state, Mode::S_IRWXU).unwrap();
    let nobody: &[&str] = &[
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    let read_only = format!("mount -t tmpfs -o ro none {} && exec \"$@\"", utf8(&state));
    let full = format!(
        "mount -t tmpfs -o size=1m none {0} && truncate -s 0 {0}/a && head -c 512K /dev/zero >{0}/a && exec \"$@\"",
        utf8(&state)
    );
    let own_mounts = in_own_mounts(&state);
    let read_only = [&own_mounts[..], &["sh", "-c", &read_only, "sh"]].concat();
    let full = [&own_mounts[..], &["sh", "-c", &full, "sh"]].concat();
    for (tool, words, by_check) in [
        (
            nobody,
            "belongs to user 0 (mode 0700), and user 65534 cannot read and write there",
            "namespaces.toml cannot be read: Permission denied",
        ),
        (
            &read_only[..],
            "is on a file system that is read-only",
            "is on a file system that is read-only",
        ),
        (&full[..], "has 512 KiB free", "has 512 KiB free"),
    ] {
        for (command, words) in [("check", by_check), ("doctor", words), ("doctor", by_check)] {
            let said = said(&target(tool, utf8(&state), command, &file));
            assert!(said.contains(words), "{command}: {words}: {said}");
            assert!(!said.contains("sudo capstan-target doctor"), "{said}");
        }
    }
    // What is said of another user's.
    tool("chown", &["-R", "65534", utf8(&state)]);
    let said = said(&target(nobody, utf8(&state), "check", &file));
    assert!(!said.contains("belongs to user"), "{said}");
}

/// A network file system that is gone, or a FUSE one whose process hangs.
#[test]
fn root_a_state_folder_that_does_not_answer_holds_up_no_host_and_no_signal() {
    let test = "root_a_state_folder_that_does_not_answer_holds_up_no_host_and_no_signal";
    if !has_disks(test, &[]) {
        return;
    }
    own_mounts();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let state = folder.join(STATE);
    fs::create_dir(&state).unwrap();
    let at = own_address();
    let namespaces = |images: &[u32]| {
        let of = images.iter().map(|&nsid| {
            let image = folder.join(format!("volume-{nsid}.img"));
            File::create(&image).unwrap().set_len(MIB).unwrap();
            namespace(nsid, &image)
        });
        write_configuration(folder, at, &of.collect::<String>())
    };
    namespaces(&[1]);
    let daemon = serve_in(folder);
    let (host, volume) = connect(at, 1);
    let silent = ["WARN", utf8(&state), "has not answered for 1s"];
    let has_hung_reload = || {
        let unanswered = Unanswered::over(&state);
        let known = daemon.log().len();
        signal(daemon.pid(), Signal::SIGHUP);
        daemon.wait_for_log_after(known, &silent);
        unanswered
    };

    let file = namespaces(&[1, 2]);
    let unanswered = has_hung_reload();
    volume.write(0, &[1; 4096]).unwrap();
    volume.flush().unwrap();
    let (other, its_volume) = connect(at, 2);
    its_volume.read(0, &mut [0; 4096]).unwrap();
    let known = daemon.log().len();
    drop(unanswered);
    daemon.wait_for_log_after(known, &["answers again, after"]);
    daemon.wait_for_log_after(known, &["the configuration was not reloaded"]);
    reload(&daemon, "namespaces added: 1");

    // Its users may go.
    namespaces(&[1]);
    let unanswered = Unanswered::over(&state);
    reload(&daemon, "namespaces removed: 1");
    drop(unanswered);

    namespaces(&[1, 3]);
    let unanswered = has_hung_reload();
    drop((volume, its_volume));
    host.close();
    other.close();
    signal(daemon.pid(), Signal::SIGTERM);
    daemon.wait_for_log(&["WARN", "a reload that is under way is given up"]);
    assert!(daemon.ended().success());

    // The start as well.
    let [its_state, run] = variables(folder);
    let daemon = Daemon::begin_under(&["env", &its_state, &run], &["--config", utf8(&file)]);
    daemon.wait_for_log(&silent);
    signal(daemon.pid(), Signal::SIGTERM);
    assert_eq!(daemon.ended().code(), Some(1));
    drop(unanswered);
}
