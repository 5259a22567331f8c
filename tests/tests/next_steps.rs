//! A next step that a message names is taken, and then what was refused works. `quoted.rs` finds
//! those that no test takes.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use capstan_initiator::{Controller, Options};
use capstan_tests::disks::{Loop, own_mounts, run};
use capstan_tests::host::options;
use capstan_tests::program::{
    CLAIMS, Daemon, complaint, has_disks, has_tools, own_address, program, shell, signal, told,
    tool, utf8,
};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

const SUBNQN: &str = "nqn.2026-11.org.example:next-steps";

/// A configuration that listens at `ip`, with these keys of its subsystem and namespaces.
fn config(folder: &Path, ip: &str, subsystem: &str, namespaces: &str) -> PathBuf {
    let path = folder.join("target.toml");
    let text = format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n[[listener]]\naddress = \"{ip}\"\nprovider = \
         \"iwarp\"\n[[subsystem]]\nnqn = \"{SUBNQN}\"\n{subsystem}\n{namespaces}"
    );
    fs::write(&path, text).unwrap();
    path
}

const ANY: &str = "allow_any_host = true";

fn on_path(path: &Path) -> String {
    format!("[[subsystem.namespace]]\npath = \"{}\"\n", utf8(path))
}

/// What `capstan-target COMMAND --config FILE` says, and whether it ended well.
fn target(command: &str, config: &Path) -> (bool, String) {
    let mut target = Command::new(program("capstan-target"));
    let output = target
        .args([command, "--config", utf8(config)])
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// The command in backticks that starts with `start`.
fn command(said: &str, start: &str) -> String {
    let quotes = said.split('`').skip(1).step_by(2);
    let mut found = quotes.filter(|quote| quote.starts_with(start));
    found
        .next()
        .unwrap_or_else(|| panic!("no `{start}…` in: {said}"))
        .to_owned()
}

fn runs(line: &str) {
    let output = shell(line);
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn is_root(test: &str) -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED {test}: it needs root");
    }
    is_root
}

fn image(folder: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = folder.join(name);
    fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

#[test]
fn the_limit_of_descriptors_that_is_named_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let images = (0..40).map(|at| image(folder.path(), &format!("{at}.img"), 1 << 20));
    let namespaces: String = images.map(|path| on_path(&path)).collect();
    let file = config(folder.path(), "127.0.0.1", ANY, &namespaces);
    let check = format!(
        "{} check --config {}",
        utf8(&program("capstan-target")),
        utf8(&file)
    );
    let limited = |limit: &str| {
        let output = shell(&format!("ulimit -Sn 64; {limit}; {check}"));
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    let (is_ok, said) = limited("ulimit -Hn 96");
    assert!(!is_ok && said.contains("open files: 96"), "{said}");
    // No more than that: root of a container may not raise a limit that it has lowered.
    let step = command(&said, "ulimit -Hn ");
    let (is_ok, said) = limited(&step);
    assert!(is_ok && !said.contains("open files"), "{step}: {said}");
}

#[test]
fn root_an_immutable_file_is_made_one_that_changes() {
    let test = "root_an_immutable_file_is_made_one_that_changes";
    if !is_root(test) || !has_tools(test, &["chattr", "lsattr"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "disk.img", 1 << 20);
    let file = config(folder.path(), "127.0.0.1", ANY, &on_path(&path));
    for letter in ["i", "a"] {
        if !shell(&format!("chattr +{letter} {}", utf8(&path)))
            .status
            .success()
        {
            eprintln!(
                "SKIPPED {test}: the file system of {} has no such attribute",
                utf8(&path)
            );
            return;
        }
        let (is_ok, said) = target("check", &file);
        // Whatever comes of it, the folder can be removed.
        let looked = shell(&format!("lsattr {}", utf8(&path)));
        let _ = shell(&format!("chattr -ia {}", utf8(&path)));
        assert!(!is_ok, "{said}");
        assert_eq!(command(&said, "lsattr "), format!("lsattr {}", utf8(&path)));
        let attributes = String::from_utf8_lossy(&looked.stdout).into_owned();
        let attributes = attributes.split(' ').next().unwrap_or_default().to_owned();
        assert!(attributes.contains(letter), "{attributes}");
        // No more than what is set.
        let step = command(&said, "chattr ");
        assert_eq!(step, format!("chattr -{letter} {}", utf8(&path)));
        runs(&format!("chattr +{letter} {}", utf8(&path)));
        runs(&step);
        let (is_ok, said) = target("check", &file);
        assert!(is_ok, "{said}");
    }
}

/// A file on a file system that is not mounted is not to be made in the folder below it.
#[test]
fn root_a_file_system_of_fstab_is_mounted_before_its_file_is_exported() {
    if !is_root("root_a_file_system_of_fstab_is_mounted_before_its_file_is_exported") {
        return;
    }
    own_mounts();
    let folder = tempfile::tempdir().unwrap();
    let (point, below) = (folder.path().join("images"), folder.path().join("below"));
    for path in [&point, &below] {
        fs::create_dir(path).unwrap();
    }
    image(&below, "disk.img", 1 << 20);
    let fstab = folder.path().join("fstab");
    let line = format!("{} {} none bind 0 0\n", utf8(&below), utf8(&point));
    fs::write(&fstab, line).unwrap();
    if !Path::new("/etc/fstab").exists() {
        eprintln!("SKIPPED: there is no /etc/fstab to put another one over");
        return;
    }
    run("mount", &["--bind", utf8(&fstab), "/etc/fstab"]).unwrap();
    let path = point.join("disk.img");
    let file = config(folder.path(), "127.0.0.1", ANY, &on_path(&path));
    let not_mounted = format!("{} is in /etc/fstab and not mounted", utf8(&point));
    let empty = image(&point, "disk.img", 0);
    // As a placeholder, and without: no file of the folder below is offered.
    for is_there in [true, false] {
        if !is_there {
            fs::remove_file(&empty).unwrap();
        }
        let (is_ok, said) = target("check", &file);
        assert!(!is_ok && said.contains(&not_mounted), "{said}");
        assert!(!said.contains("truncate"), "{said}");
        if !is_there {
            runs(&command(&said, "mount "));
        }
    }
    let (is_ok, said) = target("check", &file);
    assert!(is_ok && !said.contains(&not_mounted), "{said}");
    for mounted in [utf8(&point), "/etc/fstab"] {
        run("umount", &[mounted]).unwrap();
    }
}

#[test]
fn root_a_loop_device_is_detached_from_a_file_that_is_exported() {
    if !has_disks(
        "root_a_loop_device_is_detached_from_a_file_that_is_exported",
        &["losetup"],
    ) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "disk.img", 1 << 20);
    let file = config(folder.path(), "127.0.0.1", ANY, &on_path(&path));
    tool("losetup", &["--find", utf8(&path)]);
    let (_, said) = target("check", &file);
    runs(&command(&said, "losetup -d "));
    let (is_ok, said) = target("check", &file);
    assert!(is_ok && !said.contains("losetup"), "{said}");
}

#[test]
fn root_space_is_reserved_for_a_file_that_promises_more_than_there_is() {
    if !is_root("root_space_is_reserved_for_a_file_that_promises_more_than_there_is") {
        return;
    }
    own_mounts();
    let folder = tempfile::tempdir().unwrap();
    run(
        "mount",
        &["-t", "tmpfs", "-o", "size=8m", "none", utf8(folder.path())],
    )
    .unwrap();
    let path = image(folder.path(), "disk.img", 4 << 20);
    let other = folder.path().join("other");
    fs::write(&other, vec![1; 6 << 20]).unwrap();
    let file = config(folder.path(), "127.0.0.1", ANY, &on_path(&path));
    let (_, said) = target("doctor", &file);
    let step = command(&said, "fallocate ");
    let (_, checked) = target("check", &file);
    assert!(checked.contains(&step), "{checked}");
    // "free some, and reserve it then"
    assert!(said.contains("free some, and reserve it then: "), "{said}");
    fs::remove_file(&other).unwrap();
    runs(&step);
    let blocks = fs::metadata(&path).unwrap();
    assert_eq!((blocks.blocks() * 512, blocks.len()), (4 << 20, 4 << 20));
    let (_, said) = target("doctor", &file);
    assert!(!said.contains("fallocate"), "{said}");
    run("umount", &["--lazy", utf8(folder.path())]).unwrap();
}

/// Runs `script` with a network of its own, `$0` being the target and `$1` its configuration.
fn in_own_network(script: &str, config: &Path) -> String {
    let target = program("capstan-target");
    let mut unshare = Command::new("unshare");
    let script = format!("ip link set lo up; {script}");
    unshare.args(["--net", "bash", "-c", &script, utf8(&target), utf8(config)]);
    let output = unshare.output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn root_an_address_is_added_that_is_not_there() {
    let test = "root_an_address_is_added_that_is_not_there";
    if !is_root(test) || !has_tools(test, &["unshare", "ip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = config(
        folder.path(),
        "192.0.2.7",
        ANY,
        "[[subsystem.namespace]]\nram = \"1MiB\"\n",
    );
    let said = in_own_network("\"$0\" doctor --config \"$1\"", &file);
    let (_, step) = said
        .split_once("mend: ip address add ")
        .expect("a next step");
    let (step, _) = step.split_once(" (").expect("its end");
    let step = step.replace("PREFIX", "32").replace("INTERFACE", "lo");
    let step = format!("ip address add {step}");
    let said = in_own_network(&format!("{step}; \"$0\" doctor --config \"$1\""), &file);
    assert!(said.contains("listen 192.0.2.7:4420"), "{said}");
    assert!(!said.contains("ip address add"), "{said}");
}

#[test]
fn root_a_low_port_is_opened_to_those_without_privilege() {
    let test = "root_a_low_port_is_opened_to_those_without_privilege";
    if !is_root(test) || !has_tools(test, &["unshare", "ip", "setpriv", "sysctl"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ram = "[[subsystem.namespace]]\nram = \"1MiB\"\n";
    let file = config(folder.path(), "127.0.0.1\"\nport = 441 # \"", ANY, ram);
    let doctor = "setpriv --bounding-set -net_bind_service --inh-caps -net_bind_service \
                  \"$0\" doctor --config \"$1\"";
    let said = in_own_network(doctor, &file);
    let step = command(&said, "sysctl -w ");
    let said = in_own_network(&format!("{step} && {doctor}"), &file);
    assert!(
        said.contains("listen 127.0.0.1:441") && !said.contains("sysctl -w net"),
        "{said}"
    );
}

/// What `attach` does by itself when a volume has grown.
#[test]
fn root_a_loop_device_takes_the_size_of_its_file() {
    let test = "root_a_loop_device_takes_the_size_of_its_file";
    if !has_disks(test, &["losetup"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = image(dir.path(), "image", 1 << 20);
    let device = Loop::new(&file);
    fs::File::options()
        .write(true)
        .open(&file)
        .and_then(|file| file.set_len(2 << 20))
        .unwrap();
    let name = utf8(device.path());
    let size = || {
        let size = tool("blockdev", &["--getsize64", name]);
        size.trim().parse::<u64>().unwrap()
    };
    assert_eq!(size(), 1 << 20);
    runs(&format!("losetup --set-capacity {name}"));
    assert_eq!(size(), 2 << 20);
}

/// On no other disk of the machine, whose arrays are not this test's to assemble.
#[test]
fn root_arrays_are_looked_for_on_a_disk_of_the_test() {
    let test = "root_arrays_are_looked_for_on_a_disk_of_the_test";
    if !has_disks(test, &["losetup", "mdadm"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let device = Loop::new(&image(dir.path(), "image", 1 << 20));
    let config = dir.path().join("mdadm.conf");
    fs::write(&config, format!("DEVICE {}\n", utf8(device.path()))).unwrap();
    let output = shell(&format!(
        "mdadm --assemble --scan --config {}",
        utf8(&config)
    ));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("No arrays found"), "{said}");
}

/// Of the whole machine: where it is another, that is not for a test to change.
#[test]
fn root_a_setting_that_is_so_already_is_written_again() {
    let test = "root_a_setting_that_is_so_already_is_written_again";
    let now = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    if !is_root(test) || !has_tools(test, &["sysctl"]) || !now.is_ok_and(|now| now.trim() == "0") {
        eprintln!(
            "SKIPPED {test}: io_uring is not enabled by kernel.io_uring_disabled, or not to be set here"
        );
        return;
    }
    let output = shell("sysctl -w kernel.io_uring_disabled=0");
    let said = String::from_utf8_lossy(&output.stderr);
    // A container may not write it.
    let is_read_only = said.contains("Read-only") || said.contains("denied");
    assert!(output.status.success() || is_read_only, "{said}");
}

#[test]
fn what_shows_where_links_lead_runs() {
    if !has_tools("what_shows_where_links_lead_runs", &["namei"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("disk.img");
    std::os::unix::fs::symlink("disk.img", &link).unwrap();
    let file = config(folder.path(), "127.0.0.1", ANY, &on_path(&link));
    let (is_ok, said) = target("check", &file);
    assert!(!is_ok, "{said}");
    let shown = shell(&command(&said, "namei "));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("disk.img -> disk.img"), "{shown}");
}

#[test]
fn what_shows_a_partition_table_and_a_process_runs() {
    let test = "what_shows_a_partition_table_and_a_process_runs";
    runs(&format!("ps -fp {}", std::process::id()));
    if !has_tools(test, &["sfdisk", "partx", "fdisk"]) {
        return;
    }
    // In memory: sfdisk waits for the disk.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(folder.path(), "disk.img", 16 << 20);
    runs(&format!(
        "echo 'label: gpt' | sfdisk --quiet {}",
        utf8(&path)
    ));
    for step in ["partx --show DEVICE", "fdisk --list DEVICE"] {
        let step = step.replace("DEVICE", utf8(&path));
        let output = shell(&step);
        // A table without partitions is nothing to partx.
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() || !said.contains("option"),
            "{step}: {said}"
        );
    }
}

#[test]
fn root_a_mount_point_is_made_as_it_is_said_unless_something_else_is_there() {
    let test = "root_a_mount_point_is_made_as_it_is_said_unless_something_else_is_there";
    if !is_root(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let mount =
        |point: &Path| complaint(&capstan("mount", at, &[&HOST[..], &[utf8(point)]].concat()));
    let absent = folder.path().join("a/b");
    let said = mount(&absent);
    runs(&command(&said, "mkdir -p "));
    let said = mount(&absent);
    assert!(said.contains("nothing listens there"), "{said}");
    // What `mkdir` would refuse is not proposed.
    let file = image(folder.path(), "file", 0);
    let said = mount(&file);
    assert!(
        !said.contains("mkdir") && said.contains("give another path"),
        "{said}"
    );
}

/// `capstan COMMAND` for the target at `at`, as this host.
fn capstan(command: &str, at: SocketAddr, args: &[&str]) -> Output {
    let claims = tempfile::tempdir().unwrap();
    let mut capstan = Command::new(program("capstan"));
    let ip = at.ip().to_string();
    capstan.args([command, "-a", &ip, "--provider", "iwarp", "-n", SUBNQN]);
    capstan
        .args(args)
        .env(CLAIMS, claims.path())
        .output()
        .unwrap()
}

const HOST: [&str; 4] = [
    "-q",
    "nqn.2026-11.org.example:\u{202e}host",
    "-I",
    "00112233-4455-6677-8899-aabbccddeeff",
];

/// Reads the configuration again.
fn reload(daemon: &Daemon, words: &str) {
    let known = daemon.log().len();
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log_after(known, &[words]);
}

#[test]
fn a_host_that_is_refused_is_let_in_by_its_name_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let ip = at.ip().to_string();
    let ram = "[[subsystem.namespace]]\nram = \"1MiB\"\n";
    let other = "allowed_hosts = [\"nqn.2026-11.org.example:other\"]";
    let file = config(folder.path(), &ip, other, ram);
    let daemon = Daemon::serve(&["--config", utf8(&file)]);
    let said = complaint(&capstan("list-ns", at, &HOST));
    assert!(
        said.contains("add it to the subsystem's allowed hosts"),
        "{said}"
    );
    let line = daemon.wait_for_log_after(0, &["refused", "add it to allowed_hosts"]);
    // As a string of TOML has it, and not as what it does to a terminal.
    assert!(!line.contains('\u{202e}'), "{line:?}");
    let (_, rest) = line.split_once("host nqn.").expect("the host");
    let (name, _) = rest.split_once(" is not allowed").expect("the host");
    let name = name.replace("\\u{202e}", "\\u202e");
    config(
        folder.path(),
        &ip,
        &format!("allowed_hosts = [\"nqn.{name}\"]"),
        ram,
    );
    reload(&daemon, "configuration reloaded");
    told(&capstan("list-ns", at, &HOST));
    assert!(daemon.stop().success());
}

#[test]
fn a_subsystem_without_namespaces_says_so_and_how_it_gets_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let ip = at.ip().to_string();
    let file = config(folder.path(), &ip, ANY, "");
    let daemon = Daemon::serve(&["--config", utf8(&file)]);
    for (command, args) in [
        ("read", &["-z", "4096"][..]),
        ("flush", &[]),
        ("bench", &["--rw", "read"]),
    ] {
        let said = complaint(&capstan(command, at, &[&HOST[..], args].concat()));
        assert!(!said.contains("expected one of"), "{command}: {said}");
        assert!(
            said.contains("a [[subsystem.namespace]], and a reload"),
            "{command}: {said}"
        );
    }
    config(
        folder.path(),
        &ip,
        ANY,
        "[[subsystem.namespace]]\nram = \"1MiB\"\n",
    );
    reload(&daemon, "namespaces added: 1");
    told(&capstan("flush", at, &HOST));
    assert!(daemon.stop().success());
}

#[test]
fn one_of_two_options_that_contradict_each_other_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let ram = "[[subsystem.namespace]]\nram = \"1MiB\"\n";
    let file = config(folder.path(), &at.ip().to_string(), ANY, ram);
    let daemon = Daemon::serve(&["--config", utf8(&file)]);
    let [name, id] = [
        [
            "-q",
            "nqn.2014-08.org.nvmexpress:uuid:0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1",
        ],
        ["-I", "44a35d9d-0000-4a37-8a5c-52b6c4a5f7a1"],
    ];
    let said = complaint(&capstan("list-ns", at, &[name, id].concat()));
    assert!(said.contains("give one of the two options"), "{said}");
    told(&capstan("list-ns", at, &name));
    told(&capstan("list-ns", at, &id));
    assert!(daemon.stop().success());
}

/// "--hostnqn and --hostid of its own": beside each other, where one host's associations end.
#[test]
fn two_programs_with_an_identity_each_stay_where_older_associations_end() {
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let keys = format!("{ANY}\nend_older_association = true");
    let ram = "[[subsystem.namespace]]\nram = \"16MiB\"\n";
    let file = config(folder.path(), &at.ip().to_string(), &keys, ram);
    let (is_ok, said) = target("check", &file);
    assert!(
        is_ok && said.contains("(--hostnqn and --hostid), or leave this key out"),
        "{said}"
    );
    let daemon = Daemon::serve(&["--config", utf8(&file)]);
    let [first, second] = [1, 2].map(|number| {
        let options = Options {
            subnqn: SUBNQN.parse().unwrap(),
            ..options(at, number)
        };
        Controller::connect(options).expect("connects")
    });
    for controller in [&first, &second] {
        let volume = controller.volume_blocking(1).expect("namespace 1");
        volume.blocking().write(0, &[1; 4096]).expect("writes");
    }
    first.close();
    second.close();
    let log = daemon.log();
    assert!(
        !log.iter()
            .any(|line| line.contains("end_older_association is set")),
        "{log:#?}"
    );
    assert!(daemon.stop().success());
}
