//! A target that is killed while its writes are on their way to a slow medium: nobody is served
//! before they are over, or an old write would land after newer ones.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::Controller;
use capstan_tests::disks::{Loop, Thin, own_mounts, waits_for_disk};
use capstan_tests::host::options;
use capstan_tests::program::{Daemon, complaint, own_address, program, signal, utf8};
use capstan_tests::target::SUBNQN;
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

/// How long the medium stands still behind the death of its target.
const SLOW: Duration = Duration::from_secs(9);
/// How long a target may take to end that serves nobody.
const SOON: Duration = Duration::from_secs(2);
const LBA: usize = 4096;

fn arguments<'a>(export: &'a str, listen: &'a str) -> [&'a str; 10] {
    let [provider, lba] = [["--provider", "iwarp"], ["--lba", "4096"]];
    let [export, listen] = [["--export", export], ["--listen", listen]];
    let nqn = ["--nqn", SUBNQN];
    let all = [provider, lba, export, listen, nqn];
    std::array::from_fn(|at| all[at / 2][at % 2])
}

fn connect(at: SocketAddr) -> Controller {
    let mut options = options(at, 1);
    // Gives up at once: what it had under way is not to be issued again.
    options.ctrl_loss_tmo = Some(Duration::ZERO);
    Controller::connect(options).expect("connects")
}

/// Kills a target whose write to `export` is held by `thin`, as `is_held` shows, and starts
/// another.
fn killed_while_it_writes(export: &Path, thin: &Thin, is_held: impl Fn(u32) -> bool) {
    let at = own_address();
    let listen = at.to_string();
    let arguments = arguments(utf8(export), &listen);
    let first = Daemon::serve(&arguments);
    let controller = connect(at);
    let volume = controller
        .volume_blocking(1)
        .expect("namespace 1")
        .blocking();
    volume.write(0, &[1; LBA]).expect("writes");
    volume.flush().expect("flushes");

    let frozen = thin.freeze();
    let (second, old) = thread::scope(|scope| {
        let old = scope.spawn(|| volume.write(0, &[2; LBA]));
        wait_until("the write is on its way", || is_held(first.pid()));
        signal(first.pid(), Signal::SIGKILL);
        let asked_to_end = Daemon::begin(&arguments);
        asked_to_end.wait_for_log(&["WARN", "on their way to the medium", "waiting for at most"]);
        let start = Instant::now();
        assert!(!asked_to_end.stop().success(), "it does not serve");
        assert!(
            start.elapsed() < SOON,
            "it ends {:?} later",
            start.elapsed()
        );
        let second = Daemon::begin(&arguments);
        second.wait_for_log(&["WARN", "on their way to the medium", "waiting for at most"]);
        let start = Instant::now();
        while start.elapsed() < SLOW {
            // The socket of the killed one may still take connections, and nobody answers there.
            let log = second.log();
            let serves = log.iter().any(|line| line.contains("listening"));
            assert!(!serves, "it serves while the old write is held: {log:#?}");
            thread::sleep(Duration::from_millis(20));
        }
        drop(frozen);
        second.wait_for_log(&["its last operation was over after"]);
        second.wait_for_log(&["listening at"]);
        (second, old.join().expect("no panic"))
    });
    old.expect_err("nobody has answered it");
    drop((volume, controller, first));

    let controller = connect(at);
    let volume = controller
        .volume_blocking(1)
        .expect("namespace 1")
        .blocking();
    let read = || {
        let mut found = vec![0; LBA];
        volume.read(0, &mut found).expect("reads");
        found
    };
    assert_eq!(read(), [2; LBA], "it landed before anybody was served");
    volume.write(0, &[3; LBA]).expect("writes");
    volume.flush().expect("flushes");
    assert_eq!(read(), [3; LBA]);
    controller.close();
    drop((volume, controller));
    assert!(second.stop().success());
}

#[test]
fn root_a_device_is_served_again_when_the_writes_of_a_killed_target_are_over() {
    own_mounts();
    let thin = Thin::new(32);
    let device = Loop::new(&thin.file("slow", 8 << 20));
    killed_while_it_writes(device.path(), &thin, |_| device.writes_in_flight() > 0);
}

#[test]
fn root_a_file_is_served_again_when_the_writes_of_a_killed_target_are_over() {
    own_mounts();
    let thin = Thin::new(32);
    let file = thin.file("slow", 8 << 20);
    killed_while_it_writes(&file, &thin, waits_for_disk);
}

/// A file and the loop devices on it have the same bytes: one target has them all.
#[test]
fn root_a_file_and_its_loop_devices_are_exported_once() {
    own_mounts();
    let thin = Thin::new(32);
    let file = thin.file("both", 8 << 20);
    let [one, another] = [(); 2].map(|()| Loop::new(&file));
    let (one, another) = (one.path(), another.path());
    for (exported, refused) in [(&*file, one), (one, &*file), (one, another)] {
        let listen = own_address().to_string();
        let serving = Daemon::serve(&arguments(utf8(exported), &listen));
        let output = Command::new(program("capstan-target"))
            .arg("serve")
            .args(arguments(utf8(refused), &own_address().to_string()))
            .output()
            .expect("capstan-target runs");
        assert!(!output.status.success(), "{refused:?} beside {exported:?}");
        let complaint = complaint(&output);
        // A file is refused for the device on it that is in use, before its claim is asked for.
        let words = match refused == &*file {
            true => ["it is open in capstan-target (pid ", "end that"],
            false => ["is exported already", "stop that export"],
        };
        for words in words.into_iter().chain([utf8(&file)]) {
            assert!(complaint.contains(words), "{complaint}");
        }
        assert!(serving.stop().success());
    }
}
