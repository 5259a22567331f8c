//! What is still on its way when a host gives a connection up: it must not land behind what the
//! host writes next.

use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::AssociationStatus;
use capstan_initiator::options::{ReplayWrites, Transport};
use capstan_initiator::{BlockingVolume, Controller, Options, ProviderPreference};
use capstan_storage::Gate;
use capstan_tests::disks::{Thin, own_mounts, waits_for_disk};
use capstan_tests::host::options;
use capstan_tests::program::{Daemon, Machine, own_address, signal, utf8};
use capstan_tests::proxy::{Direction, Flow, Proxy};
use capstan_tests::running::Running;
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::wait::wait_until;
use nix::sys::signal::Signal;

const LBA: usize = 4096;
/// Connections of an association: the Admin queue's and that of one I/O queue.
const CONNECTIONS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(30);
/// For so long a host that must wait is looked at.
const LOOKS: Duration = Duration::from_millis(500);

/// A host which gives an I/O up after half a second. Its Keep Alive is so long that the target
/// notices nothing by itself.
fn connect(at: SocketAddr, replay_writes: ReplayWrites) -> (Controller, BlockingVolume) {
    connect_by(Transport::Rdma, at, replay_writes)
}

fn connect_by(
    transport: Transport,
    at: SocketAddr,
    replay_writes: ReplayWrites,
) -> (Controller, BlockingVolume) {
    let options = Options {
        transport,
        provider: ProviderPreference::Iwarp,
        keep_alive_tmo: Duration::from_secs(120),
        io_timeout: Duration::from_millis(500),
        replay_writes,
        ..options(at, 1)
    };
    let controller = Controller::connect(options).expect("connects");
    let volume = controller.volume_blocking(1).expect("namespace 1");
    (controller, volume.blocking())
}

fn read(volume: &BlockingVolume) -> u8 {
    let mut block = [0; LBA];
    volume.read(0, &mut block).expect("reads");
    assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
    block[0]
}

/// The network keeps a write, nothing is lost; the host gives the connection up, issues it again on
/// another, and writes the block once more.
fn write_twice(proxy: &Proxy, volume: &BlockingVolume) {
    proxy.set_all(Direction::ToTarget, Flow::Hold);
    volume
        .write(0, &[1; LBA])
        .expect("the first write ends well");
    volume
        .write(0, &[2; LBA])
        .expect("the second write ends well");
    volume.flush().expect("the flush ends well");
    for old in 0..CONNECTIONS {
        proxy.wait_for_end(old, Direction::ToTarget);
        // An orderly end would have let the kernel go on with what it had to send.
        assert!(proxy.was_reset(old, Direction::ToTarget), "{old}");
    }
    assert_eq!(read(volume), 2);
}

#[test]
fn a_write_that_the_network_kept_does_not_undo_a_later_one() {
    for round in [Transport::Rdma, Transport::Tcp, Transport::Rdma] {
        let target = TestTarget::ram("");
        let proxy = Proxy::start(target.addresses[0]);
        let (controller, volume) = connect_by(round, proxy.address, ReplayWrites::Fenced);
        let start = Instant::now();
        write_twice(&proxy, &volume);
        // The target was asked to end the old controller; its Keep Alive would have taken four
        // minutes.
        assert!(start.elapsed() < PATIENCE, "{round:?}");
        for old in 0..CONNECTIONS {
            proxy.wait_for_end(old, Direction::ToHost);
        }
        proxy.set_all(Direction::ToTarget, Flow::Pass);
        for old in 0..CONNECTIONS {
            proxy.wait_until_passed(old, Direction::ToTarget);
        }
        assert_eq!(read(&volume), 2, "{round:?}");
        controller.close();
        target.stop();
    }
}

/// The options of each transport.
const TRANSPORTS: [&[&str]; 2] = [&["-t", "rdma", "--provider", "iwarp"], &["-t", "tcp"]];

/// `capstan COMMAND` on the subsystem under test.
fn capstan(machine: &Machine, at: SocketAddr, transport: &[&str], words: &[&str]) -> Command {
    let (addr, port) = (at.ip().to_string(), at.port().to_string());
    let way = ["-a", &addr, "-s", &port, "-n", SUBNQN];
    let (command, args) = words.split_first().expect("a command");
    machine.command(command, &[args, &way, transport].concat())
}

/// The process that issues writes dies while the network keeps some of them (SIGKILL, no memory,
/// `detach --force`). Another process goes on with the volume, and nobody waits for the old one's
/// kernel: it is not to deliver an old copy behind what is written then.
#[test]
fn the_kernel_sends_nothing_more_of_a_host_that_is_killed() {
    for transport in TRANSPORTS {
        let target = TestTarget::ram("");
        let proxy = Proxy::start(target.addresses[0]);
        // Connecting takes less, and so does the Admin queue.
        proxy.set_new(Direction::ToTarget, Flow::HoldAfter(256 << 10));
        let machine = Machine::new(proxy.address);
        let words = ["bench", "--rw", "write", "--bs", "4k", "--runtime", "60"];
        let bench = capstan(&machine, proxy.address, transport, &words);
        let mut bench = Running::start(bench);
        proxy.wait_for_connections(CONNECTIONS);
        proxy.wait_for_kept_bytes(CONNECTIONS - 1, Direction::ToTarget, 1);
        bench.child.kill().expect("it runs");
        bench.child.wait().expect("it ends");
        for old in 0..CONNECTIONS {
            proxy.wait_for_end(old, Direction::ToTarget);
            let was_reset = proxy.was_reset(old, Direction::ToTarget);
            assert!(was_reset, "{old} {transport:?}");
        }
        proxy.set_all(Direction::ToTarget, Flow::Pass);
        target.stop();
    }
}

/// The other way round: nothing is left to land late, and the target is told of an orderly end.
#[test]
fn a_host_that_has_shut_its_controller_down_ends_its_connections_in_order() {
    for transport in TRANSPORTS {
        let target = TestTarget::ram("");
        let proxy = Proxy::start(target.addresses[0]);
        let machine = Machine::new(proxy.address);
        let mut flush = capstan(&machine, proxy.address, transport, &["flush"]);
        let output = flush.output().expect("capstan runs");
        assert!(output.status.success(), "{output:?}");
        for old in 0..proxy.connections() {
            proxy.wait_for_end(old, Direction::ToTarget);
            let was_reset = proxy.was_reset(old, Direction::ToTarget);
            assert!(!was_reset, "{old} {transport:?}");
        }
        target.stop();
    }
}

/// What `--replay-writes=immediate` is a choice of; without this the test above could pass for
/// another reason.
#[test]
fn immediate_replay_lets_an_old_copy_land_last() {
    let target = TestTarget::ram("");
    let proxy = Proxy::start(target.addresses[0]);
    let (controller, volume) = connect(proxy.address, ReplayWrites::Immediate);
    write_twice(&proxy, &volume);
    // Not the ends of the connections: that of the Admin queue would end the I/O queue, whose write
    // is dropped when it is read behind that.
    proxy.set_all(Direction::ToTarget, Flow::PassBytes);
    let start = Instant::now();
    while read(&volume) != 1 {
        assert!(start.elapsed() < PATIENCE, "the old copy did not land");
    }
    controller.close();
    target.stop();
}

fn connects_again(controller: &Controller) -> bool {
    let status = controller.snapshot_blocking().status;
    matches!(status, AssociationStatus::Connecting { attempt: 1.., .. })
}

/// The disk keeps a write for longer than its host waits for an answer. The host issues it again,
/// with what it takes to be sure of the old one or without.
#[test]
fn a_write_that_the_disk_kept_does_not_undo_a_later_one() {
    for replay_writes in [ReplayWrites::Fenced, ReplayWrites::Immediate] {
        for through_tcp in [false, true] {
            let gate = Gate::default();
            let target = TestTarget::ram_behind("", Some(&gate));
            let proxy = through_tcp.then(|| Proxy::start(target.addresses[0]));
            let at = proxy
                .as_ref()
                .map_or(target.addresses[0], |proxy| proxy.address);
            let (controller, volume) = connect(at, replay_writes);
            gate.hold(1);
            thread::scope(|scope| {
                let writes = scope.spawn(|| {
                    for data in [1, 2] {
                        volume.write(0, &[data; LBA]).expect("the write ends well");
                    }
                    volume.flush().expect("the flush ends well");
                });
                wait_until("the disk has the write", || gate.held() == 1);
                wait_until("the host is back", || {
                    connects_again(&controller) || writes.is_finished()
                });
                let start = Instant::now();
                while start.elapsed() < LOOKS {
                    assert!(!writes.is_finished(), "before the old copy has landed");
                    thread::sleep(Duration::from_millis(1));
                }
                gate.release();
            });
            wait_until("the disk has nothing left", || gate.held() == 0);
            assert_eq!(read(&volume), 2, "{replay_writes:?}, TCP: {through_tcp}");
            controller.close();
            target.stop();
        }
    }
}

/// A target that stands still, as in a virtual machine that is moved, for longer than its host
/// waits, has a write in its socket when it goes on, and then a disk that is slow. Replayed at
/// once: it is the target that keeps the host waiting.
#[test]
fn root_a_write_that_a_stopped_target_had_not_read_does_not_undo_a_later_one() {
    own_mounts();
    let thin = Thin::new(32);
    let file = thin.file("slow", 8 << 20);
    let at = own_address();
    let listen = at.to_string();
    let [export, nqn] = [["--export", utf8(&file)], ["--nqn", SUBNQN]];
    let [lba, provider] = [["--lba", "4096"], ["--provider", "iwarp"]];
    let arguments = [export, nqn, lba, provider, ["--listen", &listen]].concat();
    let daemon = Daemon::serve(&arguments);
    // What has left stays on its way, and the old connections look alive.
    let proxy = Proxy::start(at);
    proxy.set_new(Direction::ToTarget, Flow::PassBytes);
    let (controller, volume) = connect(proxy.address, ReplayWrites::Immediate);
    proxy.set_new(Direction::ToTarget, Flow::Pass);
    volume.write(0, &[0; LBA]).expect("writes");
    volume.flush().expect("flushes");

    signal(daemon.pid(), Signal::SIGSTOP);
    let frozen = thin.freeze();
    thread::scope(|scope| {
        let writes = scope.spawn(|| {
            for data in [1, 2] {
                volume.write(0, &[data; LBA]).expect("the write ends well");
            }
            volume.flush().expect("the flush ends well");
        });
        wait_until("the host has given up", || {
            controller.snapshot_blocking().status != AssociationStatus::Live
        });
        signal(daemon.pid(), Signal::SIGCONT);
        wait_until("the disk has the write", || waits_for_disk(daemon.pid()));
        let start = Instant::now();
        while start.elapsed() < LOOKS {
            let status = controller.snapshot_blocking().status;
            assert_ne!(
                status,
                AssociationStatus::Live,
                "before the old copy has landed"
            );
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!writes.is_finished());
        drop(frozen);
    });
    assert_eq!(read(&volume), 2);
    controller.close();
    assert!(daemon.stop().success());
}
