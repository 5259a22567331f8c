//! Mounts that cannot be, or should not be: what is said of a file system that is larger than its
//! volume, of one that is shared, of a volume that is read-only.

use std::fs::{self, File};
use std::path::PathBuf;

use capstan_tests::disks::ext4_image;
use capstan_tests::program::{
    Daemon, Machine, complaint, has_disks, own_address, told, tool, utf8,
};
use capstan_tests::scene::Scene;
use capstan_tests::target::SUBNQN;

#[test]
fn a_file_system_larger_than_its_volume_is_told_of() {
    let test = "a_file_system_larger_than_its_volume_is_told_of";
    if !has_disks(test, &["mkfs.ext4"]) {
        return;
    }
    let mut was = 0;
    let scene = Scene::of(|folder| {
        let image = ext4_image(folder);
        was = fs::metadata(&image).unwrap().len();
        let cut = File::options().write(true).open(&image).unwrap();
        cut.set_len(was / 2).unwrap();
        image
    });
    let said = scene.refused(&[]);
    for words in [
        &format!("has {} bytes", was / 2),
        &format!("the ext4 on it was made for {was}"),
        "make the volume as long again at the target",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(scene.daemon.stop().success());
}

#[test]
fn a_file_system_that_is_no_clustered_one_is_not_shared_silently() {
    let test = "a_file_system_that_is_no_clustered_one_is_not_shared_silently";
    let Some(scene) = Scene::ext4(test) else {
        return;
    };
    let machine = &scene.machine;
    let point = machine.mount_point();
    let ways: [(&[&str], bool); 3] = [
        (&["--shared"], true),
        (&["--shared", "-o", "noatime,ro"], false),
        (&[], false),
    ];
    for (args, warned) in ways {
        let output = machine.run_on_target("mount", &[args, &[utf8(&point)]].concat());
        told(&output);
        let said = String::from_utf8_lossy(&output.stderr);
        let has = said.contains("ext4 is no clustered file system") && said.contains("destroy it");
        assert_eq!(has, warned, "{args:?}: {said}");
        machine.umount();
    }
    let refused = complaint(&machine.run_on_target("mount", &["-r", "-o", "rw", utf8(&point)]));
    assert!(
        refused.contains("--options has \"rw\", and --read-only is given"),
        "{refused}"
    );
    assert!(scene.daemon.stop().success());
}

#[test]
fn a_volume_that_is_read_only_is_said_to_be() {
    if !has_disks("a_volume_that_is_read_only_is_said_to_be", &[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("blank");
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let at = own_address();
    let listen = at.to_string();
    let target = Daemon::serve(&[
        "--provider",
        "iwarp",
        "--nqn",
        SUBNQN,
        "--export",
        utf8(&image),
        "--read-only",
        "--listen",
        &listen,
    ]);
    let machine = Machine::new(at);
    let attach = machine.run_on_target("attach", &[]);
    let device = PathBuf::from(told(&attach).trim());
    let said = String::from_utf8_lossy(&attach.stderr).into_owned();
    let expected = format!(
        "{} is read-only: the target protects namespace 1 from writes\n",
        utf8(&device)
    );
    assert_eq!(said, expected);
    let listed = told(&machine.run("list", &[]));
    assert!(listed.contains("live, read-only"), "{listed}");
    told(&machine.run("detach", &[utf8(&device)]));
    let point = machine.mount_point();
    let said = complaint(&machine.run_on_target("mount", &[utf8(&point)]));
    assert!(
        said.contains("is blank and read-only") && !said.contains("mkfs"),
        "{said}"
    );
    assert!(target.stop().success());
}

#[test]
fn what_has_a_claim_without_its_file_is_named_with_what_ends_it() {
    let test = "what_has_a_claim_without_its_file_is_named_with_what_ends_it";
    let Some(scene) = Scene::ext4(test) else {
        return;
    };
    let machine = &scene.machine;
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
    assert!(scene.daemon.stop().success());
}

/// The second one comes while the first one's disk goes.
#[test]
fn an_unmount_behind_another_one_waits_for_the_disk_to_go() {
    let test = "an_unmount_behind_another_one_waits_for_the_disk_to_go";
    let Some(scene) = Scene::ext4(test) else {
        return;
    };
    let machine = &scene.machine;
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
    assert!(scene.daemon.stop().success());
}

#[test]
fn a_busy_file_system_that_is_ended_by_force_says_whether_it_is_written() {
    let test = "a_busy_file_system_that_is_ended_by_force_says_whether_it_is_written";
    let Some(scene) = Scene::ext4(test) else {
        return;
    };
    let machine = &scene.machine;
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
    assert!(scene.daemon.stop().success());
}
