//! What a target has noted of lost writes is cleared by the operator, and by nothing else.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use capstan_tests::disks::{Thin, own_mounts, run};
use capstan_tests::lossy::{
    Lossy, STATE, connect, is_cleared, is_lost, is_write_fault, loses, namespace, reload, serve_in,
    target_command, variables, write_configuration,
};
use capstan_tests::program::{Daemon, own_address, signal, tool, utf8};
use nix::sys::signal::Signal;

/// The notes in the state folder of a test.
fn notes(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join(STATE)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_note = |path: &PathBuf| utf8(path).contains("/lost-writes-");
    paths.filter(is_note).collect()
}

/// A target with the same state folder as those of `folder`, that exports `path` for reading only.
fn serve_read_only(folder: &Path, path: &Path) -> (SocketAddr, Daemon, tempfile::TempDir) {
    let own = tempfile::tempdir().unwrap();
    let at = own_address();
    let only = namespace(1, path) + "direct = false\nread_only = true\n";
    let file = write_configuration(own.path(), at, &only);
    let [state, _] = variables(folder);
    let [_, run] = variables(own.path());
    let daemon = Daemon::serve_under(&["env", &state, &run], &["--config", utf8(&file)]);
    (at, daemon, own)
}

/// It takes no lock, so it may run beside the one that writes, or after it.
#[test]
fn root_a_target_that_only_reads_clears_nothing_that_another_one_has_lost() {
    let Lossy {
        thin,
        path,
        folder,
        at,
        daemon,
        volume,
        ..
    } = Lossy::new();
    let folder = folder.path();
    assert_eq!(notes(folder).len(), 1);
    let (_, reader, _own) = serve_read_only(folder, &path);
    reader.wait_for_log(&["ERROR", utf8(&path), "has lost writes"]);
    assert!(reader.stop().success());
    assert_eq!(notes(folder).len(), 1, "stopped in order");
    let (reader_at, reader, own) = serve_read_only(folder, &path);
    write_configuration(own.path(), reader_at, "");
    reload(&reader, "namespaces removed: 1");
    assert_eq!(notes(folder).len(), 1, "taken out by a reload");
    assert!(reader.stop().success());
    reload(&daemon, "nothing has changed");
    is_write_fault(&volume.flush());

    // Nor does anybody else who removes files.
    fs::remove_file(&notes(folder)[0]).unwrap();
    reload(&daemon, "nothing has changed");
    is_write_fault(&volume.flush());
    assert_eq!(notes(folder).len(), 1, "noted once more");
    drop(volume);
    daemon.kill();
    let daemon = serve_in(folder);
    is_lost(at);
    daemon.kill();

    // Alone it tells of it, too, until the command.
    thin.set_room(20);
    let (reader_at, reader, _own) = serve_read_only(folder, &path);
    reader.wait_for_log(&["ERROR", utf8(&path), "has lost writes"]);
    let (host, volume) = connect(reader_at, 5);
    is_write_fault(&volume.flush());
    target_command(folder, &["clear-lost-writes", utf8(&path)]);
    reload(&reader, "lost writes cleared of volumes: 1");
    volume.flush().expect("cleared");
    drop(volume);
    host.close();
    assert!(reader.stop().success());
    let daemon = serve_in(folder);
    is_cleared(at);
    assert!(daemon.stop().success());
    let left = fs::read_dir(folder.join(STATE)).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    let is_of_a_loss = |name: &std::ffi::OsString| name.to_string_lossy().contains("writes");
    assert!(!left.iter().any(is_of_a_loss), "{left:?}");
}

/// What `check` and `doctor` say of lost writes with this configuration.
fn said_of_losses(folder: &Path, file: &Path) -> [Vec<String>; 2] {
    ["check", "doctor"].map(|command| {
        let said = target_command(folder, &[command, "--config", utf8(file)]);
        let of_losses = said.lines().filter(|line| line.contains("lost writes"));
        of_losses.map(str::to_owned).collect()
    })
}

/// Under the name that the target has it by, and under others.
#[test]
fn root_check_and_doctor_tell_the_same_losses_whatever_the_volume_is_called() {
    let Lossy {
        thin: _thin,
        path,
        folder,
        at,
        file,
        daemon,
        ..
    } = Lossy::new();
    let folder = folder.path();
    let other = tempfile::tempdir().unwrap();
    let link = other.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let by_link = write_configuration(other.path(), at, &namespace(1, &link));
    let when = || {
        let text = fs::read_to_string(&notes(folder)[0]).unwrap();
        let when = text.split("when = \"").nth(1).unwrap();
        when.split('"').next().unwrap().to_owned()
    };
    let when = when();
    let is_told = |state: &str| {
        for file in [&file, &by_link] {
            for lines in said_of_losses(folder, file) {
                let told = lines.iter().filter(|line| line.contains(&when)).count();
                assert_eq!(told, 1, "{state}, {}: {lines:#?}", file.display());
            }
        }
    };
    is_told("it runs");
    daemon.kill();
    is_told("it was killed");
}

/// Its name says which medium it is of.
#[test]
fn root_a_note_that_cannot_be_read_fails_every_flush_until_it_is_cleared() {
    let Lossy {
        thin,
        path,
        folder,
        at,
        daemon,
        ..
    } = Lossy::new();
    let folder = folder.path();
    daemon.kill();
    thin.set_room(20);
    let note = notes(folder).remove(0);
    let text = fs::read_to_string(&note).unwrap();
    let (name, elsewhere) = (utf8(&note), folder.join("elsewhere"));
    fs::write(&elsewhere, &text).unwrap();
    let nameless = text.split("[medium]").next().unwrap();
    let cut = &text[..text.len() / 2];
    let other_kind = text.replace("kind = \"file\"", "");
    let write = |bytes: &[u8]| fs::write(&note, bytes).unwrap();
    let damages: [(&str, &dyn Fn()); 9] = [
        ("empty", &|| write(b"")),
        ("cut", &|| write(cut.as_bytes())),
        ("without its medium", &|| write(nameless.as_bytes())),
        ("without a part of it", &|| write(other_kind.as_bytes())),
        ("binary", &|| write(&[0xff; 500])),
        ("long", &|| write(&[b'#'; 20_000])),
        ("a link", &|| {
            std::os::unix::fs::symlink(&elsewhere, &note).unwrap();
        }),
        ("a folder", &|| fs::create_dir(&note).unwrap()),
        ("a FIFO", &|| drop(run("mkfifo", &[name]).unwrap())),
    ];
    for (damage, make) in damages {
        let _ = fs::remove_file(&note);
        make();
        for _ in 0..2 {
            let daemon = serve_in(folder);
            daemon.wait_for_log(&["ERROR", utf8(&path), "clear-lost-writes"]);
            is_lost(at);
            daemon.kill();
        }
        let report = target_command(folder, &["doctor"]);
        assert!(report.contains("lost writes"), "{damage}: {report}");
        for lines in said_of_losses(folder, &folder.join("target.toml")) {
            let lines = lines.join("\n");
            for words in [utf8(&path), name, "cannot be read"] {
                assert!(lines.contains(words), "{damage}: no {words} in {lines}");
            }
        }
        let cleared = target_command(folder, &["clear-lost-writes", utf8(&path)]);
        assert!(cleared.starts_with("cleared: "), "{damage}: {cleared}");
        assert!(notes(folder).is_empty(), "{damage}");
        let daemon = serve_in(folder);
        is_cleared(at);
        daemon.kill();
    }
}

/// A deploy script, or a machine that goes down while the service is started again and again.
#[test]
fn root_a_start_that_is_asked_to_end_before_it_serves_clears_nothing() {
    let Lossy {
        thin: _thin,
        path,
        folder,
        at,
        file,
        daemon,
        ..
    } = Lossy::new();
    let folder = folder.path();
    daemon.kill();
    let [state, run] = variables(folder);
    for asked in ["TERM", "INT"] {
        // Asked before it begins; its start answers that.
        let block = format!("--block-signal={asked}");
        let line = format!("kill -{asked} $$; exec \"$@\"");
        let tool = ["env", &block, &state, &run, "bash", "-c", &line, "bash"];
        let daemon = Daemon::serve_under(&tool, &["--config", utf8(&file)]);
        daemon.wait_for_log(&["ERROR", utf8(&path), "is not cleared by this stop"]);
        assert!(daemon.ended().success());
        assert_eq!(notes(folder).len(), 1, "SIG{asked}");
    }
    let daemon = serve_in(folder);
    is_lost(at);
    signal(daemon.pid(), Signal::SIGTERM);
    daemon.wait_for_log(&[
        "WARN",
        utf8(&path),
        "is cleared, as this target was asked to stop",
    ]);
    assert!(daemon.ended().success());
    assert!(notes(folder).is_empty());
}

/// Nobody waits for it: no host, and not who stops the target.
#[test]
fn root_a_state_folder_that_hangs_is_told_and_keeps_no_target_from_its_end() {
    own_mounts();
    let disk = Thin::new(12);
    let inside = disk.file("inside", 4096);
    let on_it = inside.parent().unwrap();
    let Lossy {
        thin: _thin,
        path,
        folder,
        daemon,
        volume,
        ..
    } = Lossy::with(|folder| {
        let state = folder.join(STATE);
        tool("mount", &["--bind", utf8(on_it), utf8(&state)]);
    });
    let folder = folder.path();
    target_command(folder, &["clear-lost-writes", utf8(&path)]);
    reload(&daemon, "lost writes cleared of volumes: 1");
    let frozen = disk.freeze();
    loses(&volume);
    daemon.wait_for_log(&[
        "ERROR",
        utf8(&path),
        "is not noted yet",
        "has not answered for 1s",
    ]);
    drop(volume);
    signal(daemon.pid(), Signal::SIGTERM);
    daemon.wait_for_log(&["INFO stopped"]);
    drop(frozen);
    assert!(daemon.ended().success());
    tool("umount", &[utf8(&folder.join(STATE))]);
}
