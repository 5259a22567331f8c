//! A target that is asked to end while its storage does not answer says what it waits for.

use std::thread::spawn;
use std::time::Duration;

use capstan_initiator::Controller;
use capstan_tests::host::options;
use capstan_tests::place::volume;
use capstan_tests::program::{Daemon, Machine, has_disks, own_address, signal, utf8};
use nix::sys::signal::Signal;

/// It takes 20 s, the time that a target waits.
#[test]
fn root_a_target_that_ends_names_the_commands_that_storage_keeps() {
    let test = "root_a_target_that_ends_names_the_commands_that_storage_keeps";
    if !has_disks(test, &[]) {
        return;
    }
    let (below, at) = (own_address(), own_address());
    let under = Daemon::start("ram:16MiB", 4096, below);
    // A disk that stops answering when its process is stopped.
    let machine = Machine::new(below);
    let device = machine.attach(&[]);
    let daemon = Daemon::start(utf8(&device), 4096, at);
    let mut options = options(at, 1);
    options.ctrl_loss_tmo = Some(Duration::from_secs(1));
    let host = Controller::connect(options).expect("connects");
    let volumes = [0, 1, 2].map(|at| (at, volume(&host, 1)));
    let serving = machine.serving_pid();
    signal(serving, Signal::SIGSTOP);
    let reads = volumes.map(|(at, volume)| spawn(move || volume.read(at * 4096, &mut [0; 4096])));
    let sent = std::time::Instant::now();
    while host.snapshot_blocking().in_progress < 3 {
        assert!(sent.elapsed() < Duration::from_secs(10), "not sent");
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(daemon.pid(), Signal::SIGTERM);
    let line = loop {
        let log = daemon.log();
        let told = log.iter().find(|line| line.starts_with("capstan-target: "));
        if let Some(told) = told {
            break told.clone();
        }
        assert!(sent.elapsed() < Duration::from_secs(60), "{log:#?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    signal(serving, Signal::SIGCONT);
    for words in [
        "3 commands on namespace 1 of ",
        utf8(&device),
        "sent to it before the signal, 20 s ago",
        "is not known here",
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
    assert!(!line.contains("hung"), "{line}");
    assert!(!daemon.ended().success());
    host.close();
    for read in reads {
        let _ = read.join().expect("no panic");
    }
    drop(machine);
    assert!(under.stop().success());
}
