//! Mounts that cannot be, or should not be: what is said of a file system that is larger than its
//! volume, of one that is shared, of a volume that is read-only.

use std::fs::{self, File};

use capstan_tests::disks::ext4_image;
use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, told, tool, utf8,
};

#[test]
fn what_has_a_claim_without_its_file_is_named_with_what_ends_it() {
    let test = "what_has_a_claim_without_its_file_is_named_with_what_ends_it";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let target = Daemon::start(utf8(&ext4_image(folder.path())), 4096, at);
    let machine = Machine::new(at);
    let point = machine.mount_point();
    for is_mounted in [true, false] {
        let mut end = format!("capstan umount {}", utf8(&point));
        match is_mounted {
            true => machine.mount(&[]),
            false => end = format!("capstan detach {}", utf8(&machine.attach(&[]))),
        }
        for file in fs::read_dir(machine.path("claims")).unwrap().flatten() {
            fs::remove_file(file.path()).unwrap();
        }
        let said = complaint(&machine.run_on_target("attach", &[]));
        assert!(
            said.contains("was removed meanwhile") && said.contains(&end),
            "{end}: {said}"
        );
        assert!(!said.contains("end that process"), "{said}");
        let line: Vec<_> = end.split(' ').skip(1).collect();
        told(&machine.run(line[0], &line[1..]));
    }
    assert!(target.stop().success());
}

/// The second one comes while the first one's disk goes.
#[test]
fn an_unmount_behind_another_one_waits_for_the_disk_to_go() {
    let test = "an_unmount_behind_another_one_waits_for_the_disk_to_go";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let target = Daemon::start(utf8(&ext4_image(folder.path())), 4096, at);
    let machine = Machine::new(at);
    let point = machine.mount_point();
    for _ in 0..3 {
        machine.mount(&[]);
        tool("umount", &[utf8(&point)]);
        let output = machine.run("umount", &[utf8(&point)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // It may have gone before.
        assert!(
            output.status.success() || said.contains("nothing is mounted at"),
            "{said}"
        );
        assert!(machine.list().is_empty());
    }
    assert!(target.stop().success());
}

#[test]
fn a_busy_file_system_that_is_ended_by_force_says_whether_it_is_written() {
    let test = "a_busy_file_system_that_is_ended_by_force_says_whether_it_is_written";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = own_address();
    let target = Daemon::start(utf8(&ext4_image(folder.path())), 4096, at);
    let machine = Machine::new(at);
    machine.mount(&[]);
    let point = machine.mount_point();
    let busy = File::create(point.join("busy")).unwrap();
    fs::write(point.join("file"), vec![7; 1 << 20]).unwrap();
    let output = machine.run("umount", &["--force", utf8(&point)]);
    told(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("what was written to it until now is on the volume"),
        "{said}"
    );
    assert!(!said.contains("lost"), "{said}");
    drop(busy);
    machine.mount(&[]);
    let kept = fs::read(point.join("file")).unwrap();
    assert!(kept == vec![7; 1 << 20], "it is not there");
    machine.umount();
    assert!(target.stop().success());
}
