//! Names with several addresses, of a target and to listen at, in a mount namespace with a hosts
//! file of its own.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use capstan_tests::disks::in_own_mounts;
use capstan_tests::program::{Daemon, complaint, own_address, program, told, utf8};
use capstan_tests::target::SUBNQN;
use nix::unistd::geteuid;
use serde_json::Value;

/// Whether a mount namespace can be made here.
fn may_have_hosts() -> bool {
    let made = Command::new("unshare")
        .args(["-m", "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !made || !geteuid().is_root() {
        eprintln!("SKIPPED: a hosts file of its own needs root and `unshare -m`");
    }
    made && geteuid().is_root()
}

/// The words before a command that run it with `hosts` as its hosts file.
fn under(hosts: &Path) -> Vec<&str> {
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    [
        &in_own_mounts(hosts)[..],
        &["sh", "-c", script, utf8(hosts)],
    ]
    .concat()
}

fn command_under(hosts: &Path, name: &str) -> Command {
    let words = under(hosts);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(program(name));
    command
}

fn list_ns(hosts: &Path, at: SocketAddr, more: &[&str]) -> Output {
    command_under(hosts, "capstan")
        .args(["list-ns", "-t", "rdma", "-a", "two.test", "-n", SUBNQN])
        .args(["--provider", "iwarp", "-s", &at.port().to_string()])
        .args(more)
        .output()
        .unwrap()
}

fn hosts(dir: &Path, addresses: &[SocketAddr]) -> std::path::PathBuf {
    let path = dir.join("hosts");
    let lines = addresses.iter().map(|at| format!("{} two.test\n", at.ip()));
    fs::write(&path, lines.collect::<String>()).unwrap();
    path
}

#[test]
fn the_address_that_answers_is_found_among_those_that_do_not() {
    if !may_have_hosts() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = own_address();
    let target = Daemon::start("ram:16MiB", 4096, at);
    let refuses = own_address();
    // The kernel takes the connection, and nobody says anything.
    let mute = TcpListener::bind(own_address()).unwrap();
    let silent = mute.local_addr().unwrap();
    let ipv6 = "[::1]:4420".parse().unwrap();
    for list in [
        &[refuses, at][..],
        &[ipv6, at],
        &[ipv6, refuses, silent, at],
        &[silent, at],
    ] {
        let begun = Instant::now();
        let output = list_ns(&hosts(dir.path(), list), at, &[]);
        assert!(told(&output).contains(':'), "{list:?}: {output:?}");
        // Well below --connect-timeout: the next one was tried beside the one that is silent.
        assert!(begun.elapsed() < Duration::from_secs(4), "{list:?}");
    }
    assert!(target.stop().success());
}

/// The target comes back at the other address of its name.
#[test]
fn after_a_loss_the_other_addresses_are_tried_too() {
    if !may_have_hosts() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let (one, other) = (own_address(), own_address());
    let first = Daemon::start(utf8(&image), 4096, one);
    let bench = command_under(&hosts(dir.path(), &[one, other]), "capstan")
        .args([
            "bench",
            "-a",
            "two.test",
            "-n",
            SUBNQN,
            "--provider",
            "iwarp",
        ])
        .args([
            "--rw",
            "randread",
            "--bs",
            "4k",
            "--runtime",
            "5",
            "-c",
            "1",
            "-o",
            "json",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Reads are under way: its association is there, and no race for the first one.
    let reads = || {
        let smart = Command::new(program("capstan"))
            .args([
                "smart-log",
                "-a",
                &one.ip().to_string(),
                "-n",
                SUBNQN,
                "-o",
                "json",
            ])
            .output()
            .unwrap();
        let log: Value = serde_json::from_str(&told(&smart)).unwrap();
        log["host_read_commands"].as_u64().unwrap() > 0
    };
    assert!((0..100).any(|_| reads()), "nothing is read");
    drop(first);
    let second = Daemon::start(utf8(&image), 4096, other);
    second.wait_for_log(&["host connected", "kato_ms"]);
    let output = bench.wait_with_output().unwrap();
    told(&output);
    // What it has measured is not all of one piece.
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the controller is lost: "), "{said}");
    assert!(second.stop().success());
}

#[test]
fn where_none_answers_each_is_named_with_its_reason() {
    if !may_have_hosts() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mute = TcpListener::bind(own_address()).unwrap();
    let (refuses, silent) = (own_address(), mute.local_addr().unwrap());
    let file = hosts(dir.path(), &[refuses, silent]);
    let error = complaint(&list_ns(&file, refuses, &["--connect-timeout", "3"]));
    for (address, reason) in [
        (refuses, "refused the connection: nothing listens there"),
        (silent, "nothing has come for"),
    ] {
        assert_eq!(
            error.matches(&format!("{address}: queue 0")).count(),
            1,
            "{error}"
        );
        assert_eq!(error.matches(reason).count(), 1, "{error}");
    }
    // An address to connect from leaves only those that it can reach.
    let mixed = hosts(dir.path(), &["[::1]:4420".parse().unwrap(), refuses]);
    let error = complaint(&list_ns(&mixed, refuses, &["-w", "127.0.0.1"]));
    assert!(error.contains("nothing listens there"), "{error}");
    assert!(!error.contains("::1"), "{error}");
}

#[test]
fn a_target_listens_at_every_address_of_a_name_that_is_its_machines() {
    if !may_have_hosts() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (own_address(), own_address());
    let elsewhere = "192.0.2.7:4420".parse().unwrap();
    let file = hosts(dir.path(), &[elsewhere, one, other]);
    let export = [
        "--export",
        "ram:16MiB",
        "--nqn",
        SUBNQN,
        "--listen",
        "two.test",
    ];
    let daemon = Daemon::serve_under(&under(&file), &export);
    let log = daemon.log().join("\n");
    for at in [one, other] {
        assert!(log.contains(&at.to_string()), "{log}");
        let output = Command::new(program("capstan"))
            .args(["list-ns", "-a", &at.ip().to_string(), "-n", SUBNQN])
            .output()
            .unwrap();
        told(&output);
    }
    assert!(!log.contains("192.0.2.7"), "{log}");
    assert!(daemon.stop().success());

    let file = hosts(dir.path(), &[elsewhere]);
    let output = command_under(&file, "capstan-target")
        .args(["serve", "--allow-any-host"])
        .args(export)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("`two.test` is 192.0.2.7: Cannot assign"),
        "{error}"
    );
}
