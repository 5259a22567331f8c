//! Directories for NFS clients in a target that runs: what the log says of them, and what a reload
//! does.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use capstan_tests::disks::own_mounts;
use capstan_tests::program::{Daemon, has_disks, own_address, program, signal, tool, utf8};
use capstan_tests::target::SUBNQN;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;

const ID: &str = "file_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1\"";

/// `[[export]]` of `folder/name` as `/name`.
fn export(folder: &Path, name: &str, keys: &str) -> String {
    let path = folder.join(name);
    format!(
        "[[export]]\npath = {path:?}\npseudo = \"/{name}\"\n{ID}\nclients = [\"192.0.2.0/24\"]\n{keys}\n"
    )
}

#[test]
fn root_exports_are_told_at_the_start_and_follow_reloads() {
    // A tmpfs has handles, whatever the machine is on.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    for name in ["state", "a", "b"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let image = folder.join("a/disk.img");
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let (at, file) = (own_address(), folder.join("target.toml"));
    let write = |nfs: &str, exports: &[String]| {
        let text = format!(
            "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n[[listener]]\naddress = \"{}\"\nport = {}\n\
             provider = \"iwarp\"\n[[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\npath = {image:?}\n[nfs]\nport = 0\nrdma_port = 0\n{nfs}\n{}",
            at.ip(),
            at.port(),
            exports.concat()
        );
        fs::write(&file, text).unwrap();
    };
    let [a, b] = ["a", "b"].map(|name| export(folder, name, ""));
    let written = export(folder, "a", "access = \"read-write\"");
    write("", &[written]);
    let state = format!("STATE_DIRECTORY={}", utf8(&folder.join("state")));
    let daemon = Daemon::serve_under(&["env", &state], &["--config", utf8(&file)]);
    daemon.wait_for_log(&[
        "INFO",
        "export /a: ",
        "; clients 192.0.2.0/24 read-write, root squashed",
    ]);
    daemon.wait_for_log(&["WARN", "disk.img is namespace 1 of", "clients may read it"]);
    let reload = |words: &[&str]| {
        let known = daemon.log().len();
        signal(daemon.pid(), Signal::SIGHUP);
        daemon.wait_for_log_after(known, words)
    };

    write("", &[a.clone(), b.clone()]);
    reload(&["configuration reloaded: exports added: 1, exports changed: 1"]);
    daemon.wait_for_log(&["INFO", "export /a: changed, ", "192.0.2.0/24 read-only"]);
    daemon.wait_for_log(&["INFO", "export /b: added, "]);

    write("", &[b.clone(), export(folder, "missing", "")]);
    reload(&[
        "ERROR",
        "export[1].path: cannot open ",
        "/missing",
        "`mkdir --parents ",
    ]);
    let made = Command::new("mkdir")
        .args(["--parents", utf8(&folder.join("missing"))])
        .status();
    assert!(made.unwrap().success());
    reload(&["configuration reloaded: exports added: 1, exports removed: 1"]);
    write("lease_time = \"20s\"", std::slice::from_ref(&b));
    reload(&[
        "ERROR",
        "nfs.lease_time from 90s to 20s needs a restart; nothing was changed",
    ]);
    write("", &[b]);
    reload(&["configuration reloaded: exports removed: 1"]);
    daemon.wait_for_log(&[
        "INFO",
        "export /a: removed; what clients have of it is stale",
    ]);
    assert!(daemon.stop().success());
}

/// What is mounted there goes with it.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Mounts a file system that never says a word there: FUSE_INIT is not answered.
fn mount_mute(path: &Path) -> (Mounted, fs::File) {
    let mut open = fs::OpenOptions::new();
    let device = open.read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        device.as_raw_fd()
    );
    let fuse = Some("fuse");
    mount(fuse, path, fuse, MsFlags::empty(), Some(&*data)).unwrap();
    (Mounted(path.to_owned()), device)
}

#[test]
fn root_an_export_that_does_not_answer_keeps_no_other_waiting() {
    own_mounts();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    for name in ["state", "a", "b"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let file = folder.join("target.toml");
    let exports = [export(folder, "a", ""), export(folder, "b", "")].concat();
    let nfs = "[nfs]\naddresses = [\"127.0.0.1\"]\nport = 0\nrdma_port = 0\n";
    fs::write(&file, format!("[target]\nreactors = 1\n{nfs}{exports}")).unwrap();
    let mute = mount_mute(&folder.join("b"));

    let check = Command::new(program("capstan-target"))
        .args(["check", "--config", utf8(&file)])
        .env("STATE_DIRECTORY", folder.join("state"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success(), "{check:?}");
    let told = "warning: export /b: ";
    assert!(
        said.contains(told) && said.contains("does not answer"),
        "{said}"
    );

    let state = format!("STATE_DIRECTORY={}", utf8(&folder.join("state")));
    let daemon = Daemon::begin_under(&["env", &state], &["--config", utf8(&file)]);
    daemon.wait_for_log(&[
        "ERROR",
        "export /b: ",
        "does not answer",
        "its clients wait",
    ]);
    daemon.wait_for_log(&["INFO", "export /a: "]);
    daemon.wait_for_log(&["INFO", "listening for NFS at 127.0.0.1:"]);
    // A reload does not wait for it either, and knows of no change.
    let known = daemon.log().len();
    signal(daemon.pid(), Signal::SIGHUP);
    daemon.wait_for_log_after(known, &["configuration reloaded: nothing has changed"]);
    drop(mute);
    daemon.wait_for_log(&["INFO", "export /b: added, "]);
    assert!(daemon.stop().success());
}

#[test]
fn root_a_directory_is_served_without_a_file() {
    if !has_disks("root_a_directory_is_served_without_a_file", &["mkfs.ext4"]) {
        return;
    }
    own_mounts();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for name in ["state", "a"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let image = folder.join("ext4.img");
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    tool("mkfs.ext4", &["-q", utf8(&image)]);
    // It has a UUID, whatever the machine is on.
    tool(
        "mount",
        &["-o", "loop", utf8(&image), utf8(&folder.join("a"))],
    );
    let _mounted = Mounted(folder.join("a"));
    let state = format!("STATE_DIRECTORY={}", utf8(&folder.join("state")));
    let path = folder.join("a");
    let args = [
        "--export-dir",
        utf8(&path),
        "--listen",
        "127.0.0.1:0",
        "--read-only",
    ];
    let daemon = Daemon::begin_under(&["env", &state], &args);
    let export = format!("export {}: ", path.display());
    let clients = "clients 127.0.0.0/8 read-only, root squashed";
    daemon.wait_for_log(&["INFO", &export, clients, "::1"]);
    daemon.wait_for_log(&["INFO", "listening for NFS at 127.0.0.1:"]);
    assert!(daemon.stop().success());
}

/// The file system of an export may be mounted after the target has started.
#[test]
fn root_an_export_of_a_mount_waits_until_it_is_mounted() {
    own_mounts();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    for name in ["state", "a", "b"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let file = folder.join("target.toml");
    let keys = "mount_point = true";
    let exports = [export(folder, "a", ""), export(folder, "b", keys)].concat();
    let exports = exports.replacen(
        ID,
        "file_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a2\"",
        1,
    );
    let nfs = "[nfs]\naddresses = [\"127.0.0.1\"]\nport = 0\nrdma_port = 0\n";
    fs::write(&file, format!("[target]\nreactors = 1\n{nfs}{exports}")).unwrap();

    let check = Command::new(program("capstan-target"))
        .args(["check", "--config", utf8(&file)])
        .env("STATE_DIRECTORY", folder.join("state"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&check.stderr);
    assert!(
        told.contains("nothing is mounted at ") && told.contains("`mount /"),
        "{told}"
    );

    let state = format!("STATE_DIRECTORY={}", utf8(&folder.join("state")));
    let daemon = Daemon::begin_under(&["env", &state], &["--config", utf8(&file)]);
    daemon.wait_for_log(&["export /b: nothing is mounted at ", "its clients wait"]);
    let none = None::<&str>;
    let point = folder.join("b");
    mount(Some("tmpfs"), &point, Some("tmpfs"), MsFlags::empty(), none).unwrap();
    daemon.wait_for_log(&["export /b: added, "]);
    assert!(daemon.stop().success());
    umount2(&point, MntFlags::MNT_DETACH).unwrap();
}
