//! Directories for NFS clients in a target that runs: what the log says of them, and what a reload
//! does.

use std::fs;
use std::path::Path;
use std::process::Command;

use capstan_tests::program::{Daemon, own_address, signal, utf8};
use capstan_tests::target::SUBNQN;
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
