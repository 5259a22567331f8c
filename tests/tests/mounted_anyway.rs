//! Mounts that cannot be, or should not be: what is said of a file system that is larger than its
//! volume, of one that is shared, of a volume that is read-only.

use capstan_tests::disks::ext4_image;
use capstan_tests::program::{Daemon, Machine, has_disks, own_address, tool, utf8};

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
