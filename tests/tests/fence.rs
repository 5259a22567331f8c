//! A host that comes back: what its earlier associations had brought ends before its new controller
//! is ready, so that an old copy of a write never lands behind a newer one.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use capstan_initiator::Controller;
use capstan_nvme_proto::command::{
    AdminCommand, CrossControllerReset, FabricsCommand, GetLogPage, Identify, IoCommand, LbaRange,
    Read, Write,
};
use capstan_nvme_proto::identify::{Cns, IdentifyController};
use capstan_nvme_proto::log::{
    CrossControllerResetLogHeader, CrossControllerResetStatus, LogPageId,
};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_rdma::iwarp::Config;
use capstan_storage::Gate;
use capstan_tests::host::options;
use capstan_tests::program::{Daemon, own_address, signal, utf8};
use capstan_tests::proxy::{Direction, Flow, Proxy};
use capstan_tests::target::{SUBNQN, TestTarget};
use capstan_tests::wire_host::{Data, Queue, Wire, WireHost, connect_data};
use nix::sys::signal::Signal;

const LBA_BYTES: usize = 4096;
const FIRST: LbaRange = LbaRange { slba: 0, nlb: 1 };
const LARGE: LbaRange = LbaRange { slba: 0, nlb: 64 };
/// Looks at CSTS.RDY of a controller that must not be ready.
const LOOKS: u32 = 50;
const PATIENCE: Duration = Duration::from_secs(20);

/// What hosts and reactors have between them.
#[derive(Clone, Copy, Debug)]
struct Scene {
    reactors: u8,
    shared_memory: bool,
}

const SCENES: [Scene; 4] = [
    Scene {
        reactors: 1,
        shared_memory: true,
    },
    Scene {
        reactors: 1,
        shared_memory: false,
    },
    Scene {
        reactors: 2,
        shared_memory: true,
    },
    Scene {
        reactors: 2,
        shared_memory: false,
    },
];

impl Scene {
    fn target(self, gate: &Gate) -> TestTarget {
        TestTarget::ram_behind(&format!("reactors = {}", self.reactors), Some(gate))
    }

    fn wire(self) -> Rc<Wire> {
        let config = Config {
            same_host: self.shared_memory,
            ..Config::default()
        };
        Wire::new(config, 1024, 4 << 20)
    }

    fn connect(self, target: &TestTarget) -> WireHost {
        WireHost::connect_through(self.wire(), target.addresses[0], connect_data(1))
    }

    /// The same host once more, up to where its controller may become ready.
    fn again(self, target: &TestTarget) -> WireHost {
        WireHost::associate(self.wire(), target.addresses[0], connect_data(1))
    }
}

fn write(range: LbaRange) -> Sqe {
    IoCommand::Write(Write::new(1, range)).encode(0, Sgl::EMPTY)
}

fn read_first(host: &mut WireHost) -> u8 {
    let read = IoCommand::Read(Read::new(1, FIRST)).encode(0, Sgl::EMPTY);
    let (cqe, data) = host.run(Queue::Io, read, Data::Pushed(4096));
    assert_eq!(cqe.status(), Status::SUCCESS);
    assert!(data.iter().all(|byte| *byte == data[0]), "a torn block");
    data[0]
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn assert_not_ready(host: &mut WireHost) {
    for _ in 0..LOOKS {
        assert!(!host.is_ready(), "ready before the old write is over");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes 2 over what the old association wrote, and reads it back once everything is over.
fn write_newer(host: &mut WireHost) {
    host.wait_until_ready();
    assert_eq!(host.connect_io(), Status::SUCCESS);
    write_two(host);
}

fn write_two(host: &mut WireHost) {
    let (cqe, _) = host.run(Queue::Io, write(FIRST), Data::InCapsule(&[2; LBA_BYTES]));
    assert_eq!(cqe.status(), Status::SUCCESS);
}

/// The medium holds a write; its host goes away, or does not, and comes back.
#[test]
fn a_write_on_the_medium_ends_before_its_host_goes_on() {
    for scene in SCENES {
        for leaves in [true, false] {
            let gate = Gate::default();
            let target = scene.target(&gate);
            let mut old = scene.connect(&target);
            gate.hold(1);
            old.send(Queue::Io, write(FIRST), Data::InCapsule(&[1; LBA_BYTES]));
            wait_for("a write on the medium", || gate.held() == 1);
            let old = (!leaves).then_some(old);
            let mut new = scene.again(&target);
            assert_not_ready(&mut new);
            gate.release();
            write_newer(&mut new);
            assert_eq!((gate.held(), read_first(&mut new)), (0, 2), "{scene:?}");
            drop((old, new));
            target.stop();
        }
    }
}

/// The controller pulls the data of a write from a host that hangs, and goes on.
#[test]
fn a_write_whose_data_is_being_pulled_ends_before_its_host_goes_on() {
    for scene in SCENES {
        let gate = Gate::default();
        let target = scene.target(&gate);
        let mut old = scene.connect(&target);
        let data = [1; 64 * LBA_BYTES];
        // The READ of the controller waits for a host that works only when it is asked to.
        let cid = old.send(Queue::Io, write(LARGE), Data::Pulled(&data));
        let mut new = scene.again(&target);
        assert_not_ready(&mut new);
        let (cqe, _) = old.answer(Queue::Io, cid);
        assert_eq!(cqe.status(), Status::SUCCESS);
        write_newer(&mut new);
        assert_eq!(read_first(&mut new), 2, "{scene:?}");
        drop((old, new));
        target.stop();
    }
}

/// The same, of a host that is gone: its data never comes, and what did not come goes nowhere.
#[test]
fn a_write_of_a_host_that_is_gone_is_dropped() {
    for scene in SCENES {
        let gate = Gate::default();
        let target = scene.target(&gate);
        let mut old = scene.connect(&target);
        let data = [1; 64 * LBA_BYTES];
        old.send(Queue::Io, write(LARGE), Data::Pulled(&data));
        drop(old);
        let mut new = scene.again(&target);
        write_newer(&mut new);
        assert_eq!(read_first(&mut new), 2, "{scene:?}");
        drop(new);
        target.stop();
    }
}

/// The same, of a host that stands still and has another association made: it has 2 s to go on
/// then, not the 10 s it has while nobody waits.
#[test]
fn a_host_that_stands_still_is_not_waited_for_long() {
    for scene in &SCENES[..2] {
        let gate = Gate::default();
        let target = scene.target(&gate);
        let mut old = scene.connect(&target);
        let data = [1; 64 * LBA_BYTES];
        old.send(Queue::Io, write(LARGE), Data::Pulled(&data));
        let mut new = scene.again(&target);
        let began = Instant::now();
        write_newer(&mut new);
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(8), "{scene:?}: {waited:?}");
        assert_eq!(read_first(&mut new), 2, "{scene:?}");
        drop((old, new));
        target.stop();
    }
}

/// What is waited for is logged, with the commands and where they are.
#[test]
fn the_log_says_what_a_new_association_waits_for() {
    for scene in &SCENES[..2] {
        let at = own_address();
        let daemon = Daemon::start("ram:64MiB", 4096, at);
        let mut old = WireHost::connect_through(scene.wire(), at, connect_data(1));
        let data = [1; 64 * LBA_BYTES];
        old.send(Queue::Io, write(LARGE), Data::Pulled(&data));
        let mut new = WireHost::associate(scene.wire(), at, connect_data(1));
        assert_not_ready(&mut new);
        daemon.wait_for_log(&[
            "WARN",
            "a new association of this host waits for what this connection has not finished",
            "commands=1 pulling=1 storage=0 namespaces={1: 1}",
        ]);
        drop((old, new));
        assert!(daemon.stop().success());
    }
}

/// The target is stopped, as in a virtual machine that is moved, and has not read a write when it
/// goes on: the data of it is pulled then.
#[test]
fn a_write_that_a_stopped_target_had_not_read_ends_before_its_host_goes_on() {
    for scene in &SCENES[..2] {
        let at = own_address();
        let daemon = Daemon::start("ram:64MiB", 4096, at);
        let mut old = WireHost::connect_through(scene.wire(), at, connect_data(1));
        signal(daemon.pid(), Signal::SIGSTOP);
        let data = [1; 64 * LBA_BYTES];
        let cid = old.send(Queue::Io, write(LARGE), Data::Pulled(&data));
        signal(daemon.pid(), Signal::SIGCONT);
        let mut new = WireHost::associate(scene.wire(), at, connect_data(1));
        assert_not_ready(&mut new);
        let (cqe, _) = old.answer(Queue::Io, cid);
        assert_eq!(cqe.status(), Status::SUCCESS);
        write_newer(&mut new);
        assert_eq!(read_first(&mut new), 2, "{scene:?}");
        drop((old, new));
        assert!(daemon.stop().success());
    }
}

/// The same, of a host that is gone by then: its end is in the socket behind its write, which had
/// arrived while the connection lived and is carried out before the new controller is ready.
#[test]
fn a_write_with_the_end_of_its_connection_behind_it_is_carried_out_before_its_host_goes_on() {
    for scene in &SCENES[..2] {
        let at = own_address();
        let daemon = Daemon::start("ram:64MiB", 4096, at);
        let mut old = WireHost::connect_through(scene.wire(), at, connect_data(1));
        signal(daemon.pid(), Signal::SIGSTOP);
        old.send(Queue::Io, write(FIRST), Data::InCapsule(&[1; LBA_BYTES]));
        drop(old);
        signal(daemon.pid(), Signal::SIGCONT);
        let mut new = WireHost::connect_through(scene.wire(), at, connect_data(1));
        assert_eq!(read_first(&mut new), 1, "{scene:?}");
        write_two(&mut new);
        assert_eq!(read_first(&mut new), 2, "{scene:?}");
        drop(new);
        assert!(daemon.stop().success());
    }
}

/// The network gives a write back when the target has ended its connection.
#[test]
fn a_write_that_comes_behind_the_end_of_its_connection_is_dropped() {
    const IO: usize = 1;
    let target = TestTarget::start(&ending_older(true));
    let proxy = Proxy::start(target.addresses[0]);
    let wire = SCENES[1].wire();
    let mut old = WireHost::connect_through(wire, proxy.address, connect_data(1));
    proxy.set(IO, Direction::ToTarget, Flow::Hold);
    old.send(Queue::Io, write(FIRST), Data::InCapsule(&[1; LBA_BYTES]));
    proxy.wait_for_kept_bytes(IO, Direction::ToTarget, LBA_BYTES);
    let mut new = SCENES[1].connect(&target);
    proxy.wait_for_end(IO, Direction::ToHost);
    proxy.set(IO, Direction::ToTarget, Flow::PassBytes);
    proxy.wait_until_passed(IO, Direction::ToTarget);
    for _ in 0..LOOKS {
        assert_eq!(read_first(&mut new), 0);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((old, new));
    target.stop();
}

/// A path that lives goes on while its host makes another, which does not wait for what comes
/// later.
#[test]
fn a_living_path_goes_on_and_is_waited_for_once() {
    for scene in SCENES {
        let gate = Gate::default();
        let target = scene.target(&gate);
        let mut old = scene.connect(&target);
        let mut writes = 0;
        for _ in 0..3 {
            let mut new = scene.again(&target);
            let start = Instant::now();
            while !new.is_ready() {
                assert!(start.elapsed() < PATIENCE, "{scene:?}: not ready");
                let data = Data::InCapsule(&[1; LBA_BYTES]);
                let (cqe, _) = old.run(Queue::Io, write(FIRST), data);
                assert_eq!(cqe.status(), Status::SUCCESS);
                writes += 1;
            }
            gate.hold(1);
            let held = Data::InCapsule(&[3; LBA_BYTES]);
            let held = old.send(Queue::Io, write(FIRST), held);
            wait_for("a write on the medium", || gate.held() == 1);
            write_newer(&mut new);
            gate.release();
            let (cqe, _) = old.answer(Queue::Io, held);
            assert_eq!(cqe.status(), Status::SUCCESS);
        }
        assert!(writes < 100_000);
        drop(old);
        target.stop();
    }
}

/// An I/O queue is lost, or its host has it deleted, with a write on the medium while the
/// association lives: it is connected again when that is over.
#[test]
fn a_queue_is_not_connected_again_before_what_the_last_one_left_is_over() {
    let busy = Status::CONNECT_CONTROLLER_BUSY.code();
    for scene in SCENES {
        for deletes in [false, true] {
            let gate = Gate::default();
            let target = scene.target(&gate);
            let mut host = scene.connect(&target);
            gate.hold(1);
            host.send(Queue::Io, write(FIRST), Data::InCapsule(&[1; LBA_BYTES]));
            wait_for("a write on the medium", || gate.held() == 1);
            if deletes {
                let delete = FabricsCommand::Disconnect.encode(0, Sgl::EMPTY);
                host.send(Queue::Io, delete, Data::None);
            }
            host.give_up(Queue::Io);
            let connect = |host: &mut WireHost| {
                let status = host.connect_io();
                if !status.is_success() {
                    host.give_up(Queue::Io);
                }
                status.code()
            };
            // Until the target knows that the connection is lost, the QID is in use.
            let mut found = Status::SUCCESS.code();
            wait_for("the end of the lost connection", || {
                found = connect(&mut host);
                found != Status::COMMAND_SEQUENCE_ERROR.code()
            });
            assert_eq!(found, busy, "{scene:?}, deletes: {deletes}");
            assert_eq!(connect(&mut host), busy);
            assert!(host.is_ready(), "the association lives");
            gate.release();
            wait_for("room for the queue", || connect(&mut host) != busy);
            write_two(&mut host);
            assert_eq!((gate.held(), read_first(&mut host)), (0, 2), "{scene:?}");
            drop(host);
            target.stop();
        }
    }
}

/// Another host does not wait.
#[test]
fn other_hosts_do_not_wait() {
    let gate = Gate::default();
    let target = SCENES[2].target(&gate);
    let mut old = SCENES[2].connect(&target);
    gate.hold(1);
    let cid = old.send(Queue::Io, write(FIRST), Data::InCapsule(&[1; LBA_BYTES]));
    wait_for("a write on the medium", || gate.held() == 1);
    let other = WireHost::connect(target.addresses[0], 2);
    gate.release();
    assert_eq!(old.answer(Queue::Io, cid).0.status(), Status::SUCCESS);
    drop((old, other));
    target.stop();
}

/// What resets a controller, as it tells its host.
fn reset_of(host: &mut WireHost) -> CrossControllerReset {
    let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0));
    let (cqe, data) = host.run(
        Queue::Admin,
        identify.encode(0, Sgl::EMPTY),
        Data::Pushed(4096),
    );
    assert_eq!(cqe.status(), Status::SUCCESS);
    let identify = IdentifyController::from_data(&data).expect("4096 bytes");
    CrossControllerReset {
        icid: identify.cntlid.get(),
        ciu: identify.ciu,
        cirn: identify.cirn.get(),
    }
}

/// Asks for a reset; whether it was over at once.
fn reset(through: &mut WireHost, reset: CrossControllerReset) -> bool {
    let reset = AdminCommand::CrossControllerReset(reset).encode(0, Sgl::EMPTY);
    let (cqe, _) = through.run(Queue::Admin, reset, Data::None);
    assert_eq!(cqe.status(), Status::SUCCESS);
    CrossControllerReset::was_immediate(cqe.dw0.get())
}

/// How far the resets are that a controller was asked for.
fn resets(through: &mut WireHost) -> Vec<CrossControllerResetStatus> {
    let get = GetLogPage::new(LogPageId::CROSS_CONTROLLER_RESET, 4096);
    let get = AdminCommand::GetLogPage(get).encode(0, Sgl::EMPTY);
    let (cqe, data) = through.run(Queue::Admin, get, Data::Pushed(4096));
    assert_eq!(cqe.status(), Status::SUCCESS);
    let (_, entries) = CrossControllerResetLogHeader::parse(&data).expect("a head");
    entries.iter().map(|entry| entry.status).collect()
}

/// A host loses one of its two paths, with a write on the medium, and resets it through the other.
#[test]
fn a_controller_is_reset_through_another_when_its_writes_are_over() {
    for scene in SCENES {
        let gate = Gate::default();
        let target = scene.target(&gate);
        let mut old = scene.connect(&target);
        let mut other = scene.connect(&target);
        let instance = reset_of(&mut old);
        gate.hold(1);
        old.send(Queue::Io, write(FIRST), Data::InCapsule(&[1; LBA_BYTES]));
        wait_for("a write on the medium", || gate.held() == 1);

        assert!(!reset(&mut other, instance), "{scene:?}: over too early");
        assert_eq!(old.next_response(Queue::Io), None, "its queue has ended");
        for _ in 0..LOOKS {
            let resets = resets(&mut other);
            assert_eq!(resets, [CrossControllerResetStatus::IN_PROGRESS]);
            std::thread::sleep(Duration::from_millis(1));
        }
        gate.release();
        wait_for("the end of the reset", || {
            resets(&mut other) == [CrossControllerResetStatus::SUCCESSFUL]
        });
        write_two(&mut other);
        assert_eq!((gate.held(), read_first(&mut other)), (0, 2), "{scene:?}");
        assert!(reset(&mut other, instance), "it is known to be no more");
        drop((old, other));
        target.stop();
    }
}

/// Whether an association ends the older ones of its host.
fn ending_older(wanted: bool) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         end_older_association = {wanted}\n\
         [[subsystem.namespace]]\nram = \"64MiB\"\nlba = 4096\n"
    )
}

/// A host comes back from the same address while its old connections still look alive.
#[test]
fn an_older_association_ends_where_the_operator_wants_it() {
    for wanted in [false, true] {
        let target = TestTarget::start(&ending_older(wanted));
        let [mut old, mut new] = [(), ()].map(|()| SCENES[1].connect(&target));
        let other = WireHost::connect(target.addresses[0], 2);
        if wanted {
            assert_eq!(old.next_response(Queue::Io), None, "its queue has ended");
        } else {
            let data = Data::InCapsule(&[1; LBA_BYTES]);
            let (cqe, _) = old.run(Queue::Io, write(FIRST), data);
            assert_eq!(cqe.status(), Status::SUCCESS);
        }
        read_first(&mut new);
        drop((old, new, other));
        target.stop();
    }
}

/// A volume that is thrown off for no visible reason is a riddle; the log has the answer.
#[test]
fn the_log_warns_of_the_setting_that_ended_an_association() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("target.toml");
    let at = own_address();
    let toml = format!(
        "[target]\nreactors = 1\n[[listener]]\naddress = \"{}\"\nprovider = \"iwarp\"\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         end_older_association = true\n[[subsystem.namespace]]\nram = \"1MiB\"\n",
        at.ip()
    );
    std::fs::write(&file, toml).unwrap();
    let daemon = Daemon::serve(&["--config", utf8(&file)]);
    let mounted = Controller::connect(options(at, 1)).expect("connects");
    let asks = Controller::connect(options(at, 1)).expect("connects");
    // Where both came from, the one that is thrown off first.
    let words = ["WARN", "association ended", "end_older_association is set"];
    let line = daemon.wait_for_log_after(0, &words);
    let after = |mark: &str| {
        let (_, rest) = line.split_once(mark).expect("an address");
        let end = rest.find([' ', ',']).expect("more words");
        rest[..end].parse::<SocketAddr>().expect("an address")
    };
    let (old, new) = (after("peer="), after(" from "));
    assert!(old.ip() == new.ip() && old.port() != new.port(), "{line}");
    asks.close();
    mounted.close();
    assert!(daemon.stop().success());
}
