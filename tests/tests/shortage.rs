//! A host that is out of space or of descriptors names what it is out of, where, and what to do.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use capstan_tests::disks::own_mounts;
use capstan_tests::program::{
    CLAIMS, Daemon, Machine, complaint, has_disks, own_address, program, told, tool, utf8,
};

/// A file system of a few pages, all of which are used.
fn fill(folder: &Path) {
    tool(
        "mount",
        &["-t", "tmpfs", "-o", "size=16k", "none", utf8(folder)],
    );
    let mut file = fs::File::create(folder.join("all-of-it")).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
}

fn says(complaint: &str, all: &[&str]) {
    for words in all {
        assert_eq!(complaint.matches(words).count(), 1, "{words}: {complaint}");
    }
}

#[test]
fn root_a_full_folder_is_named_with_what_to_do() {
    if !has_disks("root_a_full_folder_is_named_with_what_to_do", &["mount"]) {
        return;
    }
    own_mounts();
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let full = tempfile::tempdir().unwrap();
    fill(full.path());
    let target = machine.target();
    let target: Vec<&str> = target.iter().map(String::as_str).collect();
    let attach = |variable: &str, folder: &Path| {
        let mut attach = machine.command("attach", &target);
        complaint(&attach.env(variable, folder).output().unwrap())
    };
    fs::set_permissions(full.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let run = full.path().join("run");
    let said = attach("CAPSTAN_RUN_DIR", &run);
    says(
        &said,
        &[utf8(&run), "No space left", "df -i", "CAPSTAN_RUN_DIR"],
    );
    fs::set_permissions(full.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let said = attach(CLAIMS, full.path());
    says(
        &said,
        &[utf8(full.path()), "No space left", "df -i", CLAIMS],
    );
    tool("umount", &[utf8(full.path())]);
    machine.assert_clean(Path::new("/dev/loop-none"));
    assert!(daemon.stop().success());
}

#[test]
fn a_host_without_descriptors_says_the_limit_and_how_to_raise_it() {
    let test = "a_host_without_descriptors_says_the_limit_and_how_to_raise_it";
    if !has_disks(test, &["prlimit"]) {
        return;
    }
    let at = own_address();
    let daemon = Daemon::start("ram:16MiB", 4096, at);
    let machine = Machine::new(at);
    let mut attached = 0;
    // Whatever the descriptor would have been for that is missing.
    for limit in (6..96).step_by(2) {
        let output = Command::new("prlimit")
            .arg(format!("--nofile={limit}:{limit}"))
            .arg(program("capstan"))
            .arg("attach")
            .args(machine.target())
            .env("CAPSTAN_RUN_DIR", machine.path("run"))
            .env(CLAIMS, machine.path("claims"))
            .output()
            .unwrap();
        if output.status.success() {
            // Neither is there one that is missing later.
            told(&machine.run("detach", &[told(&output).trim()]));
            attached += 1;
        } else {
            says(
                &complaint(&output),
                &["Too many open files", "LimitNOFILE="],
            );
        }
        machine.assert_clean(Path::new("/dev/loop-none"));
    }
    assert!(attached > 0, "96 descriptors are enough");
    assert!(daemon.stop().success());
}
