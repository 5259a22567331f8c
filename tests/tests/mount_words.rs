//! What `capstan mount` and `umount` say to a person who meets them for the first time: of volumes
//! that their target warns of, of folders with odd names, of what is not there to be mounted or
//! unmounted.

use std::fs::{self, File};
use std::process::Command;

use capstan_tests::program::{
    CLAIMS, Daemon, Machine, complaint, has_disks, own_address, program, shell, told, utf8,
};
use capstan_tests::scene::Scene;

const MIB: u64 = 1 << 20;

/// What is quoted in a message and begins with these words.
fn quoted<'a>(said: &'a str, start: &str) -> &'a str {
    let mut quotes = said.split('`').skip(1).step_by(2);
    let found = quotes.find(|quote| quote.starts_with(start));
    found.unwrap_or_else(|| panic!("no `{start}…` in {said}"))
}

/// The kernel says EIO of it, and no more.
#[test]
fn a_medium_that_its_target_warns_of_is_named_where_it_fails() {
    let test = "a_medium_that_its_target_warns_of_is_named_where_it_fails";
    let Some(scene) = Scene::ext4(test) else {
        return;
    };
    let image = scene.folder.path().join("disk.img");
    let image = File::options().write(true).open(image).unwrap();
    image.set_len(MIB).unwrap();
    scene.daemon.wait_for_log(&["ERROR", "was cut"]);
    let machine = &scene.machine;
    let is_told = |said: &str| {
        for words in [
            "reliability is degraded (critical warning 0x4)",
            "`capstan-target doctor`",
            "`capstan-target clear-lost-writes PATH`",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        quoted(said, "capstan smart-log ").to_owned()
    };
    let command = is_told(&scene.refused(&["--type", "ext4"]));
    // It is taken as it stands.
    let command = command.replacen("capstan", utf8(&program("capstan")), 1);
    let smart = told(&shell(&command));
    assert!(smart.contains("reliability is degraded"), "{smart}");
    let attached = machine.run_on_target("attach", &[]);
    let device = told(&attached);
    is_told(&String::from_utf8_lossy(&attached.stderr));
    // Its end flushes, too.
    let said = complaint(&machine.run("detach", &[device.trim()]));
    assert!(said.contains("is detached, but"), "{said}");
    is_told(&complaint(&machine.run_on_target("flush", &[])));
    let file = machine.path("data");
    fs::write(&file, vec![7; 4096]).unwrap();
    let write = ["--force-unit-access", "--data", utf8(&file)];
    is_told(&complaint(&machine.run_on_target("write", &write)));
    // What is wrong with the command line is no matter of the medium.
    let said = complaint(&machine.run_on_target("read", &["--start-block", "99999999"]));
    assert!(!said.contains("smart-log"), "{said}");
}

/// A shell takes what a message names, whatever the folder is called.
#[test]
fn commands_that_name_a_folder_are_quoted_for_the_shell() {
    let test = "commands_that_name_a_folder_are_quoted_for_the_shell";
    let Some(scene) = Scene::ext4(test) else {
        return;
    };
    let machine = &scene.machine;
    for name in [
        "with space",
        "it's",
        "$(exit 7) \"`x`\"",
        "two\nlines\ttab",
        "-rf",
    ] {
        let folder = machine.path(name);
        let mount = |at: &str| {
            let mut mount = machine.command("mount", &[]);
            mount.args(machine.target()).args(["--", at]);
            mount.current_dir(machine.path("")).output().unwrap()
        };
        let said = complaint(&mount(name));
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        let command = said.split("make it first: `").nth(1).unwrap();
        let (command, _) = command.rsplit_once('`').unwrap();
        let in_folder = format!("cd {} && {command}", utf8(&machine.path("")));
        told(&shell(&in_folder));
        assert!(folder.is_dir(), "{command}");
        let mounted = told(&mount(name));
        assert_eq!(mounted.trim_end().lines().count(), 1, "{mounted}");
        let kept = File::create(folder.join("file")).unwrap();
        let said = complaint(&machine.run("umount", &[utf8(&folder)]));
        drop(kept);
        let (_, command) = said.split_once("is not written: ").unwrap();
        let (command, _) = command.split_once(": umount").unwrap();
        let command = command.replacen("capstan", utf8(&program("capstan")), 1);
        let ended = Command::new("bash")
            .args(["-c", &command])
            .env("CAPSTAN_RUN_DIR", machine.path("run"))
            .env(CLAIMS, machine.path("claims"))
            .output();
        told(&ended.unwrap());
        assert!(machine.list().is_empty(), "{command}");
    }
}

#[test]
fn a_type_that_is_not_there_is_told_what_is() {
    if !has_disks("a_type_that_is_not_there_is_told_what_is", &[]) {
        return;
    }
    let luks = Scene::raw(b"LUKS\xba\xbe\x00\x01");
    let said = luks.refused(&["--type", "ext4"]);
    for words in [
        "--type is ext4, and namespace 1 of ",
        "an encrypted volume (crypto_LUKS)",
        "cryptsetup open DEVICE NAME",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("mkfs"), "{said}");
    let blank = Scene::raw(b"");
    let said = blank.refused(&[]);
    assert!(
        said.contains("; where nothing of that is wanted, make a file system"),
        "{said}"
    );
    let said = blank.refused(&["--type", "xfs"]);
    assert!(said.contains("--type is xfs, and "), "{said}");
}

/// No more is said than was looked at.
#[test]
fn a_volume_whose_start_was_wiped_is_not_called_blank() {
    if !has_disks("a_volume_whose_start_was_wiped_is_not_called_blank", &[]) {
        return;
    }
    let scene = Scene::raw(&[&vec![0; 8 << 20][..], b"data"].concat());
    let said = scene.refused(&[]);
    assert!(!said.contains("blank"), "{said}");
    for words in [
        "its first 4.0 MiB and its last 1.0 MiB, where signatures live, hold only zeroes",
        "what is between was not looked at",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn auto_is_the_type_that_is_found() {
    let Some(scene) = Scene::ext4("auto_is_the_type_that_is_found") else {
        return;
    };
    scene.machine.mount(&["--type", "auto"]);
    scene.machine.umount();
}

#[test]
fn an_unmount_from_inside_says_what_to_leave() {
    let Some(scene) = Scene::ext4("an_unmount_from_inside_says_what_to_leave") else {
        return;
    };
    let machine = &scene.machine;
    machine.mount(&[]);
    let point = machine.mount_point();
    let umount = |line: &str| {
        let line = format!("cd {} && {line}", utf8(&point));
        let mut bash = Command::new("bash");
        bash.args(["-c", &line, utf8(&program("capstan"))])
            .env("CAPSTAN_RUN_DIR", machine.path("run"))
            .env(CLAIMS, machine.path("claims"));
        bash.output().unwrap()
    };
    // The shell waits for it there.
    let said = complaint(&umount("$0 umount . ; exit $?"));
    assert!(
        said.contains("which runs this command, is in it: cd /"),
        "{said}"
    );
    assert_eq!(machine.list().len(), 1);
    // Nothing but the command itself is there.
    told(&umount("exec $0 umount ."));
    assert!(machine.list().is_empty());
}

#[test]
fn a_disk_that_is_not_mounted_is_not_unmounted() {
    if !has_disks("a_disk_that_is_not_mounted_is_not_unmounted", &[]) {
        return;
    }
    let scene = Scene::raw(b"");
    let machine = &scene.machine;
    let device = machine.attach(&[]);
    let said = complaint(&machine.run("umount", &[utf8(&device)]));
    assert!(said.contains("is not mounted"), "{said}");
    let step = format!("capstan detach {}", utf8(&device));
    assert!(said.contains(&step), "{said}");
    assert_eq!(machine.list().len(), 1);
    told(&machine.run("detach", &[utf8(&device)]));
    machine.assert_clean(&device);
}

/// Nothing could be listed or unmounted any more.
#[test]
fn a_mount_does_not_hide_what_is_known_of_volumes() {
    let test = "a_mount_does_not_hide_what_is_known_of_volumes";
    let Some(scene) = Scene::ext4(test) else {
        return;
    };
    let machine = &scene.machine;
    for at in ["", "run"] {
        let point = machine.path(at);
        fs::create_dir_all(&point).unwrap();
        let said = complaint(&machine.run_on_target("mount", &[utf8(&point)]));
        for words in [
            "CAPSTAN_RUN_DIR",
            "would hide that",
            utf8(&machine.path("run")),
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
    assert!(machine.list().is_empty());
}

#[test]
fn a_btrfs_of_which_a_device_is_not_here_says_so() {
    let test = "a_btrfs_of_which_a_device_is_not_here_says_so";
    let kinds = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !has_disks(test, &["mkfs.btrfs"]) || !kinds.contains("btrfs") {
        eprintln!("SKIPPED {test} where that says nothing: this kernel has no btrfs");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let images = ["one", "two"].map(|name| {
        let path = folder.path().join(name);
        File::create(&path).unwrap().set_len(300 * MIB).unwrap();
        path
    });
    let made = Command::new("mkfs.btrfs")
        .args([
            "--quiet",
            "--force",
            "--data",
            "raid1",
            "--metadata",
            "raid1",
        ])
        .args(&images)
        .output();
    told(&made.unwrap());
    let at = own_address();
    let _daemon = Daemon::start(utf8(&images[1]), 4096, at);
    let machine = Machine::new(at);
    let said = complaint(&machine.run_on_target("mount", &[utf8(&machine.mount_point())]));
    for words in ["is device 2 of the 2 of btrfs ", "`btrfs device scan`"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
