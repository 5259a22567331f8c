//! A namespace is written by one attachment of a machine, whatever it is: the others are refused
//! and told which one has it, where it is mounted and what ends it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use capstan_tests::disks::ext4_image;
use capstan_tests::program::{
    CLAIMS, Daemon, Machine, complaint, has_disks, own_address, signal, told, tool, utf8,
};
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

/// Runs the command of the advice in a refusal: what stands behind "end that first (".
fn follow_advice(machine: &Machine, refusal: &str) {
    let (_, advice) = refusal.split_once("end that first (").expect("advice");
    let (advice, _) = advice.split_once(')').expect("a parenthesis");
    let mut words = advice.split(' ').collect::<Vec<_>>();
    let variable = words[0].split_once('=');
    if variable.is_some() {
        words.remove(0);
    }
    if words[0] == "kill" {
        return signal(words[1].parse().unwrap(), Signal::SIGTERM);
    }
    assert_eq!(words[0], "capstan", "{advice}");
    let mut command = machine.command(words[1], &words[2..]);
    if let Some((name, value)) = variable {
        command.env(name, value);
    }
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    // The disk of a process that has died takes nothing of what the kernel still had.
    if !stderr.contains("not everything could be written") {
        told(&output);
    }
}

fn file_of(machine: &Machine, bytes: usize) -> String {
    let path = machine.path("data");
    fs::write(&path, vec![7; bytes]).unwrap();
    utf8(&path).to_owned()
}

/// `capstan serve-nbd`, serving, with the address that it printed.
fn serve_nbd(machine: &Machine, args: &[&str]) -> (Child, String) {
    let target = machine.target();
    let target: Vec<&str> = target.iter().map(String::as_str).collect();
    let socket = machine.path("socket");
    let args = [&target[..], &["--socket", utf8(&socket)], args].concat();
    let mut command = machine.command("serve-nbd", &args);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut uri = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut uri).unwrap();
    assert!(uri.starts_with("nbd+unix"), "{uri}");
    (child, utf8(&socket).to_owned())
}

#[test]
fn a_second_mount_is_refused_from_every_folder_and_through_every_address() {
    let test = "a_second_mount_is_refused_from_every_folder_and_through_every_address";
    if !has_disks(test, &["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = ext4_image(dir.path());
    let (at, other_at) = (own_address(), own_address());
    let listener = |at: SocketAddr| {
        let ip = at.ip();
        format!("[[listener]]\naddress = \"{ip}\"\nprovider = \"iwarp\"\n")
    };
    let toml = format!(
        "{}{}[[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\n",
        listener(at),
        listener(other_at),
        utf8(&image)
    );
    let config = dir.path().join("target.toml");
    fs::write(&config, toml).unwrap();
    let daemon = Daemon::serve(&["--config", utf8(&config)]);
    let (machine, other) = (Machine::new(at), Machine::new(other_at));
    machine.mount(&[]);
    fs::write(machine.mount_point().join("file"), "kept").unwrap();
    let with_claims_of_the_first = |command: &str, args: &[&str]| {
        let target = other.target();
        let mut all: Vec<&str> = target.iter().map(String::as_str).collect();
        all.extend(args);
        let mut command = other.command(command, &all);
        command
            .env(CLAIMS, machine.path("claims"))
            .output()
            .unwrap()
    };
    // The same folder and address, and others.
    let at_other = other.mount_point();
    let refusals = [
        complaint(&machine.run_on_target("mount", &[utf8(&machine.mount_point())])),
        complaint(&with_claims_of_the_first("mount", &[utf8(&at_other)])),
        complaint(&with_claims_of_the_first("attach", &[])),
    ];
    let pid = machine.serving_pid();
    for refusal in &refusals {
        let expected = format!("mounted at {} (process {pid}", utf8(&machine.mount_point()));
        assert!(refusal.contains(&expected), "{refusal}");
        assert!(
            refusal.contains(SUBNQN) && refusal.contains("--shared"),
            "{refusal}"
        );
    }
    // Readers, any number, and those that know what they do.
    let readers = [(); 2].map(|()| {
        let text = told(&with_claims_of_the_first("attach", &["--read-only"]));
        PathBuf::from(text.trim())
    });
    for device in &readers {
        told(&other.run("detach", &[utf8(device)]));
    }
    let shared = told(&with_claims_of_the_first("attach", &["--shared"]));
    told(&other.run("detach", &[shared.trim()]));
    // The advice to one that looks into another folder.
    assert!(refusals[1].contains("CAPSTAN_RUN_DIR="), "{}", refusals[1]);
    follow_advice(&other, &refusals[1]);
    assert!(machine.list().is_empty());
    let text = told(&with_claims_of_the_first("mount", &[utf8(&at_other)]));
    assert!(text.contains("mounted at"), "{text}");
    assert_eq!(fs::read_to_string(at_other.join("file")).unwrap(), "kept");
    other.umount();
    drop(daemon);
    tool("e2fsck", &["-fn", utf8(&image)]);
}

#[test]
fn every_front_end_and_command_that_writes_knows_of_the_others() {
    let test = "every_front_end_and_command_that_writes_knows_of_the_others";
    if !has_disks(test, &[]) {
        return;
    }
    let at = own_address();
    let _daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let data = file_of(&machine, 4096);
    let socket = machine.path("second");
    let zeroes = ["--opcode", "0x08", "--cdw12", "0"];
    let writers: [(&str, Vec<&str>); 5] = [
        ("attach", vec![]),
        ("write", vec!["-d", &data]),
        ("bench", vec!["--rw", "randwrite", "--size", "4096"]),
        ("io-passthru", zeroes.to_vec()),
        ("serve-nbd", vec!["--socket", utf8(&socket)]),
    ];
    let refused = |by: &str| {
        let mut last = String::new();
        for (command, args) in &writers {
            last = complaint(&machine.run_on_target(command, args));
            assert!(
                last.contains("is in use on this machine"),
                "{command}: {last}"
            );
            assert!(last.contains(by), "{command}: {last}");
            let reads = match *command {
                "bench" => "with --rw read or randread,",
                "write" => "with `capstan read`,",
                "io-passthru" => "with an opcode that reads,",
                _ => "with --read-only,",
            };
            let reads = format!("only read from it, {reads}");
            assert!(last.contains(&reads), "{command}: {last}");
        }
        last
    };
    // Beside each of them the readers read, and what says --shared writes.
    let others_go_on = || {
        told(&machine.run_on_target("read", &["-z", "4096", "-d", "/dev/null"]));
        told(&machine.run_on_target("flush", &[]));
        told(&machine.run_on_target("bench", &["--rw", "randread", "--size", "4096"]));
        told(&machine.run_on_target("io-passthru", &["--opcode", "0x02", "--data-len", "4096"]));
        told(&machine.run_on_target("write", &["-d", &data, "--shared"]));
    };
    let device = machine.attach(&[]);
    let refusal = refused(utf8(&device));
    others_go_on();
    follow_advice(&machine, &refusal);
    machine.assert_clean(&device);

    let (mut nbd, at) = serve_nbd(&machine, &[]);
    let refusal = refused(&at);
    others_go_on();
    follow_advice(&machine, &refusal);
    assert!(nbd.wait().unwrap().success());

    let target = machine.target();
    let args: Vec<&str> = target.iter().map(String::as_str).collect();
    let args = [&args[..], &["--rw", "write", "--runtime", "600"]].concat();
    let mut bench = machine.command("bench", &args);
    let mut bench = bench.stdout(Stdio::null()).spawn().unwrap();
    let has_file = || {
        fs::read_dir(machine.path("claims"))
            .unwrap()
            .next()
            .is_some()
    };
    wait_until("it is claimed", || {
        assert!(bench.try_wait().unwrap().is_none());
        has_file()
    });
    let refusal = refused(&format!("`capstan bench` (process {}", bench.id()));
    follow_advice(&machine, &refusal);
    bench.wait().unwrap();

    // Nothing is left in the way of the next one, also of what was killed.
    told(&machine.run_on_target("write", &["-d", &data]));
    let error = complaint(&machine.run_on_target("bench", &["--rw", "read", "--shared"]));
    assert!(error.contains("--shared"), "{error}");
}

#[test]
fn a_disk_that_outlives_its_process_is_still_in_use() {
    let test = "a_disk_that_outlives_its_process_is_still_in_use";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = ext4_image(dir.path());
    let at = own_address();
    let _daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    let data = file_of(&machine, 4096);
    machine.mount(&[]);
    let device = PathBuf::from(machine.list()[0]["device"].as_str().unwrap());
    signal(machine.serving_pid(), Signal::SIGKILL);
    wait_until("it is dead", || machine.list()[0]["state"] == "dead");
    for (command, args) in [("attach", vec![]), ("write", vec!["-d", &data])] {
        let refusal = complaint(&machine.run_on_target(command, &args));
        assert!(
            refusal.contains("has ended and left its disk behind"),
            "{refusal}"
        );
        let at = format!("mounted at {}", utf8(&machine.mount_point()));
        assert!(refusal.contains(&at), "{refusal}");
        if command == "write" {
            follow_advice(&machine, &refusal);
        }
    }
    machine.assert_clean(&device);
    // One that is not mounted is in nobody's way.
    let device = machine.attach(&[]);
    let pid = machine.serving_pid();
    signal(pid, Signal::SIGKILL);
    let process = Path::new("/proc").join(pid.to_string());
    wait_until("its process is gone", || !process.exists());
    machine.mount(&[]);
    machine.umount();
    machine.assert_clean(&device);
}

#[test]
fn a_claim_outlasts_a_reconnect() {
    if !has_disks("a_claim_outlasts_a_reconnect", &["mkfs.ext4"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = ext4_image(dir.path());
    let at = own_address();
    let daemon = Daemon::start(utf8(&image), 4096, at);
    let machine = Machine::new(at);
    let device = machine.attach(&[]);
    daemon.kill();
    wait_until("its target is missed", || {
        machine.list()[0]["state"] == "reconnecting"
    });
    let _daemon = Daemon::start(utf8(&image), 4096, at);
    let refusal = complaint(&machine.run_on_target("attach", &[]));
    assert!(refusal.contains(utf8(&device)), "{refusal}");
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
}
