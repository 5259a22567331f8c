//! What does not survive its target, or its machine, is another namespace afterwards.

use std::net::SocketAddr;
use std::time::Duration;

use capstan_initiator::{Controller, IoError};
use capstan_tests::host::options;
use capstan_tests::program::{Daemon, Machine, own_address, signal, told, utf8};
use capstan_tests::running::Running;
use capstan_tests::target::SUBNQN;
use nix::sys::signal::Signal;

const MIB: usize = 1 << 20;

fn connect(at: SocketAddr) -> Controller {
    Controller::connect(options(at, 1)).expect("connects")
}

/// A host that goes on over zeroes would take them for its data.
#[test]
fn memory_that_did_not_survive_is_another_namespace() {
    is_another_namespace("ram:16MiB");
}

/// It has nothing to lose, but is memory of a process like the other.
#[test]
fn a_null_namespace_of_another_process_is_another_namespace() {
    is_another_namespace("null:16MiB");
}

fn is_another_namespace(export: &str) {
    let at = own_address();
    let daemon = Daemon::start(export, 4096, at);
    let mut options = options(at, 1);
    options.reconnect_delay = Duration::from_millis(200);
    let controller = Controller::connect(options).expect("connects");
    let volume = controller
        .volume_blocking(1)
        .expect("namespace 1")
        .blocking();
    volume.write(0, &[1; 4096]).expect("writes");
    daemon.kill();
    let _daemon = Daemon::start(export, 4096, at);
    let read = volume.read(0, &mut [0; 4096]);
    let write = volume.write(4096, &[2; 4096]);
    for result in [read, write] {
        let Err(error @ IoError::NamespaceReplaced { .. }) = result else {
            panic!("{result:?}");
        };
        let words = error.to_string();
        assert!(
            words.contains("namespace 1 is not the one it was"),
            "{words}"
        );
        assert!(words.contains("was memory of a target"), "{words}");
    }
    // Whoever connects anew sees what there is.
    controller.close();
    let fresh = connect(at);
    let volume = fresh.volume_blocking(1).expect("namespace 1").blocking();
    let mut found = [9; 4096];
    volume.read(0, &mut found).expect("reads");
    assert_eq!(found, [0; 4096]);
    drop(volume);
    fresh.close();
}

/// By NVMe Base 2.1, section 8.1.16, the state goes with the namespace, and so does what is asked
/// of it: the operator's command says which namespace it has seen before it sets anything.
#[test]
fn a_namespace_in_the_place_of_another_is_write_protected_by_one_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = format!("STATE_DIRECTORY={}", utf8(folder.path()));
    let at = own_address();
    let listen = at.to_string();
    let [export, nqn] = [["--export", "ram:16MiB"], ["--nqn", SUBNQN]];
    let [lba, provider] = [["--lba", "4096"], ["--provider", "iwarp"]];
    let arguments = [export, nqn, lba, provider, ["--listen", &listen]].concat();
    let serve = || Daemon::serve_under(&["env", &state], &arguments);
    let machine = Machine::new(at);
    let way = Running::target(at);
    let run = |command: &str, words: &[&str]| {
        let way = way.iter().map(String::as_str);
        let words: Vec<_> = words.iter().copied().chain(way).collect();
        machine.run(command, &words)
    };
    let before = serve();
    told(&run("list-ns", &[]));
    assert!(before.stop().success());
    let daemon = serve();
    for (protection, writes) in [("1", false), ("0", true)] {
        // Set Features, Namespace Write Protection Config.
        let words = format!("--opcode 9 --namespace-id 1 --cdw10 0x84 --cdw11 {protection}");
        let words: Vec<_> = words.split(' ').collect();
        told(&run("admin-passthru", &words));
        let zeroes = machine.path("zeroes");
        std::fs::write(&zeroes, [0; 4096]).expect("a file");
        let write = run("write", &["--data", utf8(&zeroes)]);
        assert_eq!(write.status.success(), writes, "{write:?}");
    }
    assert!(daemon.stop().success());
}

/// Two RAM namespaces are not the same because they have the same place in the configuration.
#[test]
fn memory_that_is_made_anew_by_a_reload_is_another_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("target.toml");
    let at = own_address();
    let configure = |size: &str| {
        let toml = format!(
            "[target]\nreactors = 1\n[[listener]]\naddress = \"{}\"\nprovider = \"iwarp\"\n\
             [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\nram = \"{size}\"\n\
             [[subsystem.namespace]]\nnsid = 2\nram = \"1MiB\"\n",
            at.ip()
        );
        std::fs::write(&file, toml).unwrap();
    };
    configure("1MiB");
    let daemon = Daemon::serve(&["--config", utf8(&file)]);
    let uuids = || {
        let controller = connect(at);
        let namespaces = controller.snapshot_blocking().namespaces;
        controller.close();
        namespaces
            .iter()
            .map(|n| n.uuid.unwrap())
            .collect::<Vec<_>>()
    };
    let before = uuids();
    assert_ne!(before[0], before[1]);
    assert_eq!(uuids(), before, "the same for every host");
    configure("2MiB");
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log(&["namespaces added: 1, namespaces removed: 1"]);
    let after = uuids();
    assert_ne!(after[0], before[0], "made anew");
    assert_eq!(after[1], before[1], "still there");
    assert!(daemon.stop().success());
}

/// A restart of the target loses no cache of the machine: its hosts must not fear for what they
/// have not flushed.
#[test]
fn the_instance_of_the_machine_is_told_and_survives_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume.img");
    std::fs::write(&image, vec![0; MIB]).unwrap();
    let at = own_address();
    let boot_ids = [(), ()].map(|()| {
        let daemon = Daemon::start(utf8(&image), 4096, at);
        let controller = connect(at);
        let boot_id = controller.snapshot_blocking().controller.boot_id;
        controller.close();
        assert!(daemon.stop().success());
        boot_id.expect("told")
    });
    assert_eq!(boot_ids[0], boot_ids[1]);
    let of_the_kernel = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let digits = of_the_kernel.trim().replace('-', "");
    let told: String = boot_ids[0]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_ne!(told, digits, "the kernel's own is for this machine alone");
}
