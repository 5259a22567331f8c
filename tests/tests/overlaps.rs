//! A file that is exported as itself, and once more by a loop device on it.

use std::path::Path;
use std::process::Command;

use capstan_tests::disks::{Loop, own_mounts};
use capstan_tests::place::{Place, has};
use capstan_tests::program::{complaint, has_disks, program, signal, tool, utf8};
use nix::sys::signal::Signal;

#[test]
fn root_a_file_and_a_loop_device_on_it_are_not_two_namespaces() {
    if !has_disks(
        "root_a_file_and_a_loop_device_on_it_are_not_two_namespaces",
        &["losetup"],
    ) {
        return;
    }
    own_mounts();
    let place = Place::new();
    let [file, other] = ["disk", "other"].map(|name| place.image(name));
    let device = Loop::new(&file);
    let above = Loop::new(device.path());
    let names = |path: &Path, nsid: u32| {
        format!(
            "namespace {nsid} of {} ({})",
            capstan_tests::target::SUBNQN,
            path.display()
        )
    };
    // At the start, and in `check` and `doctor`; the one may be read only.
    for (first, second, keys) in [
        (&*file, device.path(), ""),
        (device.path(), &*file, "read_only = true"),
        (&*file, above.path(), ""),
    ] {
        place.configure(&[(first, "nsid = 1"), (second, &format!("nsid = 2\n{keys}"))]);
        let expected = [names(first, 1), names(second, 2)];
        let words = [
            &*expected[0],
            &expected[1],
            "take one of them out of the configuration",
        ];
        let refusal = place.refusal();
        assert!(words.iter().all(|word| refusal.contains(word)), "{refusal}");
        for command in ["serve", "doctor"] {
            let mut run = Command::new("env");
            run.arg(place.environment()).arg(program("capstan-target"));
            let output = run
                .args([command, "--config", utf8(&place.config())])
                .output()
                .unwrap();
            let said = complaint(&output) + &String::from_utf8_lossy(&output.stdout);
            assert!(!output.status.success(), "{said}");
            assert!(words[..2].iter().all(|word| said.contains(word)), "{said}");
            assert!(!said.contains("is exported already"), "{said}");
        }
    }
    // Both are only read.
    let read = "read_only = true";
    place.configure(&[(&file, read), (device.path(), read)]);
    let reading = place.check();
    assert!(reading.contains("ok, "), "{reading}");
    reloads(&place, [&*file, device.path(), &other]);
    drop(above);
    tool("losetup", &["--list"]);
}

fn reloads(place: &Place, [file, device, other]: [&Path; 3]) {
    place.configure(&[(file, "nsid = 1")]);
    let target = place.serve();
    let refused = |entries: &[(&Path, &str)], words: &[&str]| {
        place.configure(entries);
        let known = target.log().len();
        signal(target.pid(), Signal::SIGHUP);
        target.wait_for_log_after(known, &["nothing was changed"]);
        let log = target.log().split_off(known);
        assert!(has(&log, words), "{log:?}");
        assert!(!has(&log, &["is exported already"]), "{log:?}");
    };
    let [one, another] = [file, device].map(utf8);
    refused(
        &[(file, "nsid = 1"), (device, "nsid = 2")],
        &[one, another, "take one of them out of the configuration"],
    );
    // In its place.
    refused(
        &[(device, "nsid = 1")],
        &[
            one,
            another,
            "take both out of the file, reload, put this one back in",
        ],
    );
    place.configure(&[(other, "nsid = 1")]);
    capstan_tests::place::reload(&target);
    place.configure(&[(other, "nsid = 1"), (device, "nsid = 2")]);
    capstan_tests::place::reload(&target);
    assert!(target.stop().success());
}

#[test]
fn two_paths_to_one_file_are_told_once() {
    let place = Place::new();
    let file = place.image("disk");
    let link = place.folder.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    place.configure(&[(&file, ""), (&link, "")]);
    let refusal = place.refusal();
    assert!(refusal.contains("leads to is already used at"), "{refusal}");
    assert!(!refusal.contains("have the same bytes"), "{refusal}");
}

/// What runs a command, and what undoes it however the test ends.
struct Undone(&'static str, String);

impl Drop for Undone {
    fn drop(&mut self) {
        let _ = Command::new(self.0).arg(&self.1).output();
    }
}

/// A file is in use where a loop device on it is, or where it is swap: as the device would be.
#[test]
fn root_a_file_in_use_is_not_exported_for_writing() {
    let test = "root_a_file_in_use_is_not_exported_for_writing";
    if !has_disks(test, &["losetup", "mkfs.ext4", "mkswap", "swapon"]) {
        return;
    }
    own_mounts();
    let place = Place::new();
    let file = place.image("disk");
    let refused = |words: &[&str]| {
        place.configure(&[(&file, "")]);
        let refusal = place.refusal();
        assert!(words.iter().all(|word| refusal.contains(word)), "{refusal}");
        let at = capstan_tests::program::own_address().to_string();
        let output = Command::new(program("capstan-target"))
            .args(["serve", "--export", utf8(&file), "--listen", &at])
            .output()
            .unwrap();
        let said = complaint(&output);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert!(said.contains("`--read-only`"), "{said}");
        place.configure(&[(&file, "read_only = true")]);
        assert!(place.serve().stop().success());
        refusal
    };
    // A step of the message, taken.
    let runs = |refusal: &str, step: &str| {
        let (_, behind) = refusal.split_once(&format!("`{step}")).unwrap();
        let (step, _) = behind.split_once('`').unwrap();
        step.trim().to_owned()
    };
    tool("mkfs.ext4", &["-q", utf8(&file)]);
    let device = Loop::new(&file);
    let point = tempfile::tempdir().unwrap();
    tool("mount", &[utf8(device.path()), utf8(point.path())]);
    let mounted = Undone("umount", utf8(point.path()).to_owned());
    let on = format!("{}, which is mounted at", utf8(device.path()));
    let refusal = refused(&[utf8(&file), &on, utf8(point.path())]);
    tool("umount", &[&runs(&refusal, "umount ")]);
    drop(mounted);
    tool("mkswap", &[utf8(device.path())]);
    tool("swapon", &[utf8(device.path())]);
    let swap = Undone("swapoff", utf8(device.path()).to_owned());
    refused(&[utf8(device.path()), "another program or the kernel uses"]);
    drop(swap);
    drop(device);
    // A sparse file is no swap.
    std::fs::write(&file, vec![0; 4 << 20]).unwrap();
    tool("chmod", &["600", utf8(&file)]);
    tool("mkswap", &[utf8(&file)]);
    if Command::new("swapon")
        .arg(&file)
        .status()
        .unwrap()
        .success()
    {
        let swap = Undone("swapoff", utf8(&file).to_owned());
        let refusal = refused(&[utf8(&file), "is swap of this machine"]);
        tool("swapoff", &[&runs(&refusal, "swapoff ")]);
        drop(swap);
    } else {
        eprintln!("SKIPPED in part: this file system has no swap files");
    }
    place.configure(&[(&file, "")]);
    assert!(place.serve().stop().success());
}

/// Another target serves the loop device: its lock and its claim are on the file as well.
#[test]
fn root_a_file_that_another_target_has_through_a_loop_device_names_both() {
    let test = "root_a_file_that_another_target_has_through_a_loop_device_names_both";
    if !has_disks(test, &["losetup"]) {
        return;
    }
    own_mounts();
    let [place, other] = [(); 2].map(|()| Place::new());
    let file = place.image("disk");
    let device = Loop::new(&file);
    other.configure(&[(device.path(), "")]);
    let target = other.serve();
    let pid = target.pid();
    place.configure(&[(&file, "")]);
    let refusal = place.refusal();
    let words = format!(
        "{}, which another program or the kernel uses: it is open in capstan-target (pid {pid})",
        utf8(device.path())
    );
    assert!(refusal.contains(&words), "{refusal}");
    // By another name, which the loop device does not tell.
    let link = place.folder.path().join("link");
    std::fs::hard_link(&file, &link).unwrap();
    place.configure(&[(&link, "")]);
    let mut serve = Command::new("env");
    serve
        .arg(place.environment())
        .arg(program("capstan-target"));
    serve.args(["serve", "--config", utf8(&place.config())]);
    let said = complaint(&serve.output().unwrap());
    let words = format!(
        "{} is exported already by pid {pid} (capstan-target), through {}, a loop device on it; stop that export",
        utf8(&link),
        utf8(device.path())
    );
    assert!(said.contains(&words), "{said}");
    // The next step.
    assert!(target.stop().success());
    drop(device);
    assert!(place.serve().stop().success());
}
