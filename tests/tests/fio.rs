//! The jobs of tests/fio, as they are: on an attached disk, on a mounted volume, and through the
//! unix socket of `capstan serve-nbd`, where neither fio nor capstan is root.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use capstan_tests::fio::{Fio, assert_verified};
use capstan_tests::program::{
    CLAIMS, Daemon, Machine, has_disks, has_tools, own_address, signal, told, tool, utf8,
};
use nix::sys::signal::Signal;

/// How long each job that measures takes: what it measures is not looked at.
const RUNTIME: &str = "--runtime=300ms";

/// Runs every job file; `to_volume` is the variable that tells it where the volume is.
fn run_all_jobs(fio: &Fio, folder: &str, to_volume: (&str, &str)) {
    for name in fio.jobs() {
        // The verification writes everything once, however long that takes.
        let args = if name == "verify" {
            &[][..]
        } else {
            &[RUNTIME]
        };
        let mut job = fio.job(&format!("{folder}{name}"), args);
        job.env(to_volume.0, to_volume.1);
        let report = fio.run(job);
        if name == "verify" {
            assert_verified(&report);
        }
    }
}

#[test]
fn jobs_run_on_an_attached_disk() {
    if !has_disks("jobs_run_on_an_attached_disk", &["fio"]) {
        return;
    }
    let at = own_address();
    let _daemon = Daemon::start("ram:256MiB", 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    run_all_jobs(&Fio::new(), "", ("CAPSTAN_VOLUME", utf8(&device)));
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
}

#[test]
fn jobs_run_on_a_mounted_volume() {
    if !has_disks("jobs_run_on_a_mounted_volume", &["fio", "mkfs.ext4"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    File::create(&image).unwrap().set_len(400 << 20).unwrap();
    tool("mkfs.ext4", &["-q", "-b", "4096", utf8(&image)]);
    let at = own_address();
    let _daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    machine.mount(&[]);
    let device = machine.list()[0]["device"].as_str().unwrap().to_owned();
    let file = machine.mount_point().join("file");
    run_all_jobs(&Fio::new(), "", ("CAPSTAN_VOLUME", utf8(&file)));
    machine.umount();
    machine.assert_clean(Path::new(&device));
}

/// fio comes with and without its nbd engine.
fn has_nbd_engine(test: &str) -> bool {
    if !has_tools(test, &["fio", "setpriv"]) {
        return false;
    }
    let engines = tool("fio", &["--enghelp"]);
    let found = engines.lines().any(|line| line.trim() == "nbd");
    if !found {
        eprintln!("SKIPPED {test}: this fio has no nbd engine (fio --enghelp)");
    }
    found
}

/// `capstan serve-nbd`, and the URI it printed.
fn serve_nbd(fio: &Fio, machine: &Machine, args: &[&str]) -> (Child, String) {
    let mut serve = fio.command("capstan");
    serve
        .args(["serve-nbd", "--socket", "socket"])
        .args(machine.target())
        .args(args)
        .env_remove("HOME")
        .env(CLAIMS, fio.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut serve = serve.spawn().unwrap();
    let mut uri = String::new();
    let mut stdout = BufReader::new(serve.stdout.take().unwrap());
    stdout.read_line(&mut uri).unwrap();
    if uri.is_empty() {
        panic!("{}", last_words(&mut serve));
    }
    (serve, uri.trim().to_owned())
}

fn last_words(child: &mut Child) -> String {
    let mut text = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn jobs_run_through_an_nbd_socket_without_root() {
    if !has_nbd_engine("jobs_run_through_an_nbd_socket_without_root") {
        return;
    }
    let at = own_address();
    let _daemon = Daemon::start("ram:256MiB", 4096, at);
    let machine = Machine::new(at);
    let fio = Fio::unprivileged();
    let (mut serve, uri) = serve_nbd(&fio, &machine, &[]);
    run_all_jobs(&fio, "nbd/", ("CAPSTAN_URI", &uri));
    signal(serve.id(), Signal::SIGTERM);
    let status = serve.wait().unwrap();
    assert!(status.success(), "{status}: {}", last_words(&mut serve));
    assert!(!fio.path("socket").exists(), "the socket stays");
}

#[test]
fn the_verify_job_finds_one_wrong_byte() {
    if !has_nbd_engine("the_verify_job_finds_one_wrong_byte") {
        return;
    }
    let at = own_address();
    let _daemon = Daemon::start("ram:256MiB", 4096, at);
    let machine = Machine::new(at);
    let fio = Fio::unprivileged();
    let (mut serve, uri) = serve_nbd(&fio, &machine, &[]);
    let job = |args: &[&str]| {
        let mut job = fio.job("nbd/verify", args);
        job.env("CAPSTAN_URI", &uri);
        job
    };
    assert_verified(&fio.run(job(&[])));
    let lba = ["--start-block", "12345", "--data-size", "4096"];
    let mut bytes = machine.run_on_target("read", &lba).stdout;
    bytes[1000] ^= 1;
    let wrong = fio.path("wrong");
    std::fs::write(&wrong, bytes).unwrap();
    let data = [&lba[..], &["--shared", "--data", utf8(&wrong)]].concat();
    told(&machine.run_on_target("write", &data));
    let error = fio.run_to_fail(job(&["--verify_only"]));
    assert!(error.contains("verify failed"), "{error}");
    signal(serve.id(), Signal::SIGTERM);
    assert!(serve.wait().unwrap().success());
}

#[test]
fn an_nbd_socket_whose_target_stays_away_ends_with_an_error() {
    if !has_nbd_engine("an_nbd_socket_whose_target_stays_away_ends_with_an_error") {
        return;
    }
    let at = own_address();
    let daemon = Daemon::start("ram:256MiB", 4096, at);
    let machine = Machine::new(at);
    let fio = Fio::unprivileged();
    let (mut serve, uri) = serve_nbd(&fio, &machine, &["--ctrl-loss-tmo", "2"]);
    daemon.kill();
    let mut job = fio.job("nbd/latency", &[RUNTIME]);
    job.env("CAPSTAN_URI", &uri);
    let start = Instant::now();
    let error = fio.run_to_fail(job);
    assert!(start.elapsed() < Duration::from_secs(30));
    assert!(!error.is_empty());
    assert_eq!(serve.wait().unwrap().code(), Some(1));
    let error = last_words(&mut serve);
    for word in ["2 s", "ctrl-loss-tmo", &at.ip().to_string()] {
        assert!(error.contains(word), "{word:?} in {error}");
    }
}

#[test]
fn a_verified_workload_goes_on_when_the_target_is_killed_and_comes_back() {
    let test = "a_verified_workload_goes_on_when_the_target_is_killed_and_comes_back";
    if !has_disks(test, &["fio"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.img");
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    let at = own_address();
    let mut daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    let fio = Fio::new();
    // At this rate it writes for thirteen seconds, at least twice what the deaths take, and then
    // reads.
    let mut job = fio.job("verify", &["--rate=20m"]);
    job.env("CAPSTAN_VOLUME", &device);
    let (verified, _daemon) = thread::scope(|scope| {
        let running = scope.spawn(|| fio.run(job));
        for death in 1..=5 {
            thread::sleep(Duration::from_millis(900));
            assert!(!running.is_finished(), "over before death {death}");
            daemon.kill();
            thread::sleep(Duration::from_millis(300));
            daemon = Daemon::start(utf8(&image), 4096, at);
        }
        (running.join().unwrap(), daemon)
    });
    assert_verified(&verified);
    let log = || std::fs::read_to_string(machine.path("run/0/log")).unwrap();
    let start = Instant::now();
    while machine.list()[0]["state"] != "live" {
        let patience = start.elapsed() < Duration::from_secs(30);
        assert!(patience, "{:?}\n{}", machine.list(), log());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(log().contains("lost"), "{}", log());
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
}
