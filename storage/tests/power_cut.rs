//! What a power cut leaves. The disk is a file behind a loop device; a copy of that file, made
//! while everything is running, is what the disk had when the power went. The host's page cache
//! and the file system's unwritten state are lost with the copy; that the device's own cache is
//! emptied is seen in its count of flushes.

mod support;

use std::fs::{self, File};

use capstan_storage::{DirectIo, Op};
use support::{Driver, Folder, LoopDevice, own_mounts, run, spec};

const LBA: usize = 4096;

/// A power cut: its name, what was asked for before it, and what must be there after it.
type Cut = (&'static str, fn(&mut Driver), fn(&mut Driver));

/// In this order, on one volume; each is looked at alone, since a later one would also put on the
/// disk what an earlier one failed to.
const CUTS: [Cut; 4] = [
    (
        "flushed",
        |driver| {
            driver.write(0, &[1; 4 * LBA]);
            driver.result(Op::Flush, None).unwrap();
        },
        |driver| assert_eq!(driver.read(0, 4), [1; 4 * LBA]),
    ),
    (
        "fua",
        |driver| driver.try_write(100, &[2; 4 * LBA], true).unwrap(),
        |driver| assert_eq!(driver.read(100, 4), [2; 4 * LBA]),
    ),
    (
        "zeroes-fua",
        |driver| {
            let zeroes = Op::WriteZeroes {
                lba: 1,
                lbas: 2,
                deallocate: false,
                fua: true,
            };
            driver.result(zeroes, None).unwrap();
        },
        |driver| {
            let around = [[1; LBA], [0; LBA], [0; LBA], [1; LBA]].concat();
            assert_eq!(driver.read(0, 4), around);
        },
    ),
    (
        // What proves that the copy is not simply everything.
        "lost",
        |driver| {
            driver.write(300, &[4; 4 * LBA]);
            assert_eq!(driver.read(300, 4), [4; 4 * LBA]);
        },
        |driver| assert_eq!(driver.read(300, 4), [0; 4 * LBA]),
    ),
];

/// A file on ext4: metadata (where the data is) must survive as well as the data.
fn file_survives(direct: DirectIo) {
    own_mounts();
    let folder = Folder::new();
    let disk = folder.file("disk", 64 << 20);
    run("mkfs.ext4", &["-q", "-F", disk.to_str().unwrap()]).unwrap();
    let device = LoopDevice::new(&disk, 512);
    let at = folder.path().join("at");
    fs::create_dir(&at).unwrap();
    let (device_path, at_path) = (device.path().to_str().unwrap(), at.to_str().unwrap());
    // The journal commits by itself every 5 s; here only when asked.
    run("mount", &["-o", "commit=300", device_path, at_path]).unwrap();
    let path = at.join("volume");
    File::create(&path).unwrap().set_len(8 << 20).unwrap();
    run("sync", &["--file-system", path.to_str().unwrap()]).unwrap();

    let mut driver = Driver::new(&spec(&path, 4096, direct));
    assert!(
        driver.volume.geometry().volatile_write_cache,
        "a host must know that it has to flush"
    );
    for (name, before, _) in CUTS {
        before(&mut driver);
        let copy = folder.path().join(name);
        run(
            "cp",
            &[
                "--sparse=always",
                disk.to_str().unwrap(),
                copy.to_str().unwrap(),
            ],
        )
        .unwrap();
    }
    drop(driver);
    run("umount", &[at_path]).unwrap();
    drop(device);

    for (name, _, after) in CUTS {
        let device = LoopDevice::new(&folder.path().join(name), 512);
        run("mount", &[device.path().to_str().unwrap(), at_path]).unwrap();
        eprintln!("after the power cut {name:?}");
        after(&mut Driver::new(&spec(&path, 4096, direct)));
        run("umount", &[at_path]).unwrap();
    }
}

#[test]
fn root_file_with_direct_io_keeps_what_was_flushed() {
    file_survives(DirectIo::On);
}

#[test]
fn root_file_through_the_page_cache_keeps_what_was_flushed() {
    file_survives(DirectIo::Off);
}

#[test]
fn root_device_through_the_page_cache_keeps_what_was_flushed() {
    let folder = Folder::new();
    let disk = folder.file("disk", 8 << 20);
    let device = LoopDevice::new(&disk, 512);
    let mut driver = Driver::new(&spec(device.path(), 4096, DirectIo::Off));
    driver.write(0, &[1; LBA]);
    let on_disk = |lba: usize| fs::read(&disk).unwrap()[lba * LBA];
    assert_eq!(on_disk(0), 0, "in the page cache alone");
    driver.result(Op::Flush, None).unwrap();
    driver.try_write(1, &[2; LBA], true).unwrap();
    driver.write(2, &[3; LBA]);
    assert_eq!([on_disk(0), on_disk(1), on_disk(2)], [1, 2, 0]);
}

/// Data in the device is not on its medium before the device is told to flush.
#[test]
fn root_flush_and_fua_reach_the_medium() {
    let folder = Folder::new();
    let device = LoopDevice::new(&folder.file("disk", 8 << 20), 512);
    for direct in [DirectIo::On, DirectIo::Off] {
        let mut driver = Driver::new(&spec(device.path(), 512, direct));
        driver.result(Op::Flush, None).unwrap();
        let mut last = device.flushes();
        let mut flushes = || {
            let now = device.flushes();
            now - std::mem::replace(&mut last, now)
        };
        driver.write(0, &[1; LBA]);
        assert_eq!(flushes(), 0, "a plain write costs no flush");
        driver.result(Op::Flush, None).unwrap();
        assert!(
            flushes() >= 1,
            "Flush stopped short of the device, {direct:?}"
        );
        // A loop device has no FUA of its own: the block layer flushes behind the write.
        driver.try_write(8, &[2; LBA], true).unwrap();
        assert!(
            flushes() >= 1,
            "FUA stopped short of the device, {direct:?}"
        );
        let zeroes = Op::WriteZeroes {
            lba: 0,
            lbas: 8,
            deallocate: true,
            fua: true,
        };
        driver.result(zeroes, None).unwrap();
        assert!(
            flushes() >= 1,
            "FUA of zeroes stopped short of the device, {direct:?}"
        );
    }
}
