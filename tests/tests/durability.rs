//! What a host was told of as stored and is lost stays lost, whoever asks and however often.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use capstan_initiator::Controller;
use capstan_tests::disks::{Thin, own_mounts};
use capstan_tests::host::options;
use capstan_tests::lossy::{
    Lossy, STATE, capstan, connect, critical_warning, is_cleared, is_lost, is_write_fault, loses,
    namespace, reload, serve_in, target_command, write_configuration,
};
use capstan_tests::program::{Daemon, own_address, program, signal, tool, utf8};
use nix::sys::signal::Signal;

const MIB: usize = 1 << 20;

/// A configuration with `path` as namespace 1, through the page cache, and another file as
/// namespace 2; without namespace 1 where there is no path.
fn configure(folder: &Path, at: SocketAddr, path: Option<&Path>) -> PathBuf {
    let other = folder.join("other.img");
    std::fs::write(&other, vec![0; MIB]).unwrap();
    let mut toml = namespace(2, &other);
    if let Some(path) = path {
        toml += &(namespace(1, path) + "direct = false\n");
    }
    write_configuration(folder, at, &toml)
}

#[test]
fn root_lost_writes_fail_every_flush_of_every_host_until_the_operator_clears_it() {
    own_mounts();
    let thin = Thin::new(12);
    let path = thin.file("volume", 32 << 20);
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let file = configure(folder.path(), at, Some(&path));
    let runs_in = format!("RUNTIME_DIRECTORY={}", folder.path().join("run").display());
    let daemon = Daemon::serve_under(&["env", &runs_in], &["--config", utf8(&file)]);
    let (writer, written) = connect(at, 1);
    let (reader, other) = connect(at, 2);
    for offset in (0..30 * MIB).step_by(MIB) {
        written
            .write(offset as u64, &vec![1; MIB])
            .expect("answered well");
    }
    // The kernel tells of it once: the first host to ask has written nothing.
    for volume in [&other, &written, &other, &written] {
        is_write_fault(&volume.flush());
        is_write_fault(&volume.write_fua(0, &[2; 4096]));
        volume.read(0, &mut [0; 4096]).expect("reads go on");
    }
    let healthy = writer.volume_blocking(2).expect("namespace 2").blocking();
    healthy
        .write(0, &[7; 4096])
        .expect("another volume goes on");
    healthy.flush().expect("another volume goes on");
    let told = |daemon: &Daemon| {
        let log = daemon.log();
        let lines = log.iter().filter(|line| line.contains("may be lost"));
        lines.filter(|line| line.contains("ERROR")).count()
    };
    daemon.wait_for_log(&["ERROR", utf8(&path), "may be lost", "restart the target"]);
    // A host that comes back changes nothing.
    drop((written, other));
    writer.close();
    reader.close();
    let (again, volume) = connect(at, 1);
    is_write_fault(&volume.flush());
    assert_eq!(critical_warning(at), "0x4");
    let report = capstan("doctor", at, &[]);
    assert!(report.contains("reliability is degraded"), "{report}");
    // Not as a service: a doctor with the same environment finds it.
    let target_doctor = || {
        let mut command = std::process::Command::new("env");
        command.arg(&runs_in).arg(program("capstan-target"));
        String::from_utf8(command.arg("doctor").output().unwrap().stdout).unwrap()
    };
    let report = target_doctor();
    assert!(report.contains("lost writes"), "{report}");
    assert!(report.contains(utf8(&path)), "{report}");

    // Taken out and put back in: the operator has looked at it.
    configure(folder.path(), at, None);
    reload(&daemon, "namespaces removed: 1");
    drop(volume);
    again.close();
    let report = target_doctor();
    assert!(!report.contains("lost writes"), "{report}");
    let path = folder.path().join("mended.img");
    std::fs::write(&path, vec![0; 4 * MIB]).unwrap();
    configure(folder.path(), at, Some(&path));
    reload(&daemon, "namespaces added: 1");
    let (last, volume) = connect(at, 1);
    volume.write(0, &[3; 4096]).expect("writes");
    volume.flush().expect("a volume that has lost nothing");
    assert_eq!(critical_warning(at), "0x0");
    assert_eq!(told(&daemon), 1, "said once: {:#?}", daemon.log());
    drop(volume);
    last.close();
    assert!(daemon.stop().success());
}

/// The documented way where there is nothing else to serve meanwhile.
#[test]
fn root_the_only_namespace_is_taken_out_and_put_back_to_clear_what_it_has_lost() {
    let Lossy {
        thin: _thin,
        folder,
        at,
        file,
        daemon,
        controller,
        volume,
        ..
    } = Lossy::new();
    write_configuration(folder.path(), at, "");
    reload(&daemon, "namespaces removed: 1");
    daemon.wait_for_log(&["WARN", "hosts connect to", "find nothing"]);
    drop(volume);
    controller.close();
    let empty = Controller::connect(options(at, 1)).expect("connects");
    assert!(empty.snapshot_blocking().namespaces.is_empty());
    empty.close();
    // The thin device stays full: what is put back is a copy on another one.
    let path = folder.path().join("mended.img");
    std::fs::write(&path, vec![0; 4 * MIB]).unwrap();
    let only = namespace(1, &path) + "direct = false\n";
    write_configuration(folder.path(), at, &only);
    reload(&daemon, "namespaces added: 1");
    let (again, volume) = connect(at, 1);
    volume.flush().expect("cleared");
    volume.read(0, &mut [0; 4096]).expect("reads");
    drop(volume);
    again.close();
    assert!(daemon.stop().success());
    // A start that finds none serves, and says so.
    write_configuration(folder.path(), at, "");
    let daemon = Daemon::serve(&["--config", utf8(&file)]);
    daemon.wait_for_log(&["WARN", "hosts connect to", "find nothing"]);
    assert!(daemon.stop().success());
}

/// Pages that could not be written back stay in the page cache, and look written.
#[test]
fn root_a_target_that_is_started_anew_reads_what_the_medium_has() {
    let Lossy {
        thin: _thin,
        path,
        folder,
        at,
        file,
        daemon,
        controller,
        volume,
    } = Lossy::new();
    drop(volume);
    controller.close();
    assert!(daemon.stop().success());

    let daemon = Daemon::serve(&["--config", utf8(&file)]);
    let (controller, volume) = connect(at, 1);
    let mut found = vec![9; 30 * MIB];
    for (at, piece) in found.chunks_mut(MIB).enumerate() {
        volume.read((at * MIB) as u64, piece).expect("reads");
    }
    drop(volume);
    controller.close();
    assert!(daemon.stop().success());
    let medium = folder.path().join("medium");
    let (from, to) = (
        format!("if={}", path.display()),
        format!("of={}", medium.display()),
    );
    tool(
        "dd",
        &[
            &from,
            &to,
            "bs=1M",
            "count=30",
            "iflag=direct",
            "status=none",
        ],
    );
    let medium = std::fs::read(medium).unwrap();
    assert!(medium.iter().any(|byte| *byte != 1), "nothing was lost");
    assert!(
        medium == found,
        "reads are of a cache that was never written"
    );
}

/// The service is started again by systemd after each of these, and nobody has looked.
#[test]
fn root_lost_writes_outlive_a_target_that_is_killed_until_one_is_stopped_in_order() {
    let Lossy {
        thin,
        path,
        folder,
        at,
        file,
        daemon,
        ..
    } = Lossy::new();
    let (folder, path) = (folder.path(), utf8(&path));
    thin.set_room(16);
    daemon.kill();
    let clear = format!("clear-lost-writes {path}");
    let report = target_command(folder, &["doctor"]);
    assert!(report.contains("did not end in order"), "{report}");
    assert!(report.contains(&clear), "{report}");
    let report = target_command(folder, &["check", "--config", utf8(&file)]);
    assert!(
        report.contains("warning: ") && report.contains(&clear),
        "{report}"
    );

    // What no memory and a signal that nobody handles end it with.
    for how in [Signal::SIGKILL, Signal::SIGUSR1] {
        let daemon = serve_in(folder);
        daemon.wait_for_log(&["ERROR", path, "not stopped in order", &clear]);
        is_lost(at);
        let report = target_command(folder, &["doctor"]);
        assert_eq!(report.matches("lost writes").count(), 1, "once: {report}");
        signal(daemon.pid(), how);
        let _how = daemon.ended();
    }
    let daemon = serve_in(folder);
    is_lost(at);
    signal(daemon.pid(), Signal::SIGTERM);
    daemon.wait_for_log(&["WARN", path, "is cleared, as this target was asked to stop"]);
    assert!(daemon.ended().success());

    let daemon = serve_in(folder);
    is_cleared(at);
    assert!(!daemon.log().iter().any(|line| line.contains("ERROR")));
    let report = target_command(folder, &["doctor"]);
    assert!(!report.contains("lost writes"), "{report}");
    assert!(daemon.stop().success());
}

/// The file is known by what it is. One that was restored has its path, and lost nothing.
#[test]
fn root_a_loss_goes_with_the_file_and_not_with_its_path() {
    let Lossy {
        thin: _thin,
        path,
        folder,
        at,
        daemon,
        ..
    } = Lossy::new();
    let folder = folder.path();
    daemon.kill();
    let moved = path.with_file_name("moved");
    std::fs::rename(&path, &moved).unwrap();
    std::fs::File::create(&path)
        .unwrap()
        .set_len(32 << 20)
        .unwrap();
    let serve = |path: &Path| {
        write_configuration(folder, at, &(namespace(1, path) + "direct = false\n"));
        serve_in(folder)
    };
    let daemon = serve(&path);
    is_cleared(at);
    let report = target_command(
        folder,
        &["doctor", "--config", utf8(&folder.join("target.toml"))],
    );
    assert!(
        report.contains("it is not in this configuration"),
        "{report}"
    );
    daemon.kill();
    let daemon = serve(&moved);
    is_lost(at);
    daemon.kill();
}

/// Hosts stay connected, and the next loss is told as the first was.
#[test]
fn root_the_operator_clears_what_is_lost_by_a_command_and_a_reload() {
    let Lossy {
        thin,
        path,
        folder,
        at,
        daemon,
        controller,
        volume,
        ..
    } = Lossy::new();
    let (folder, path) = (folder.path(), utf8(&path));
    is_write_fault(&volume.flush());
    let cleared = target_command(folder, &["clear-lost-writes", path]);
    assert!(
        cleared.starts_with("cleared: ") && cleared.contains(path),
        "{cleared}"
    );
    is_write_fault(&volume.flush());
    thin.set_room(16);
    reload(&daemon, "lost writes cleared of volumes: 1");
    daemon.wait_for_log(&["WARN", path, "is cleared by `capstan-target"]);
    volume.flush().expect("cleared, on the same association");
    is_cleared(at);
    reload(&daemon, "nothing has changed");
    let refused = target_command(folder, &["clear-lost-writes", path]);
    assert!(refused.contains("no lost writes of"), "{refused}");

    loses(&volume);
    assert_eq!(critical_warning(at), "0x4");
    drop(volume);
    controller.close();
    daemon.kill();
    let daemon = serve_in(folder);
    is_lost(at);
    // What a killed target has left can be cleared before the next one starts, too.
    daemon.kill();
    target_command(folder, &["clear-lost-writes", path]);
    thin.set_room(20);
    let daemon = serve_in(folder);
    is_cleared(at);
    assert!(daemon.stop().success());
}

/// The disk that is full may be the one with the state folder.
#[test]
fn root_a_full_state_folder_has_room_for_what_is_lost() {
    let fill = |folder: &Path| {
        let state = folder.join(STATE);
        tool(
            "mount",
            &["-t", "tmpfs", "-o", "size=512k", "none", utf8(&state)],
        );
    };
    let Lossy {
        thin: _thin,
        folder,
        at,
        daemon,
        controller,
        volume,
        path,
        ..
    } = Lossy::with(fill);
    let state = folder.path().join(STATE);
    // What it has noted is removed, and so is all room.
    let clear = ["clear-lost-writes", utf8(&path)];
    target_command(folder.path(), &clear);
    reload(&daemon, "lost writes cleared of volumes: 1");
    let full = std::fs::write(state.join("full"), vec![1; MIB]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    loses(&volume);
    drop(volume);
    controller.close();
    daemon.kill();
    let daemon = serve_in(folder.path());
    is_lost(at);
    // Nothing is needed to clear it either.
    let cleared = target_command(folder.path(), &clear);
    assert!(cleared.starts_with("cleared: "), "{cleared}");
    daemon.kill();
    tool("umount", &[utf8(&state)]);
}

/// Nothing fails for it, and nobody is left to believe that it is remembered.
#[test]
fn root_a_target_without_a_state_folder_says_what_it_cannot_remember() {
    let lossy = Lossy::with(|folder| std::fs::remove_dir(folder.join(STATE)).unwrap());
    let log = &lossy.daemon;
    log.wait_for_log(&["WARN", "state folder", "writes that were lost"]);
    log.wait_for_log(&["ERROR", utf8(&lossy.path), "there is no state folder"]);
    is_lost(lossy.at);
    drop(lossy.volume);
    lossy.controller.close();
    assert!(lossy.daemon.stop().success());
}
