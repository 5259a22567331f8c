//! Files and devices that shrink, fill up or fail: each command says what happened, the rest go on.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;

use capstan_storage::{DirectIo, EngineConfig, IoError, IoErrorKind, Op, Store};
use support::{Driver, Folder, LoopDevice, own_mounts, run, spec};

#[test]
fn a_file_that_shrinks_is_an_error_of_the_commands_behind_its_end() {
    let folder = Folder::new();
    for (direct, lba_bytes) in [
        (DirectIo::Auto, 512),
        (DirectIo::Auto, 4096),
        (DirectIo::Off, 512),
    ] {
        let path = folder.file("shrinks", 1 << 20);
        let mut driver = Driver::new(&spec(&path, lba_bytes, direct));
        let last = driver.volume.geometry().lbas - 1;
        driver.write(0, &vec![1; 64 << 10]);
        // Not at an LBA's end, so that one read is cut in the middle of one.
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len((32 << 10) + 100)
            .unwrap();
        for (lba, lbas) in [
            (last, 1),
            (0, (64 << 10) / lba_bytes),
            ((32 << 10) / u64::from(lba_bytes), 1),
        ] {
            let error = driver.try_read(lba, lbas, 0).unwrap_err();
            assert_eq!(error.kind, IoErrorKind::Truncated, "{error}");
            let bounced = driver.try_read(lba, lbas, 64).unwrap_err();
            assert_eq!(bounced, error);
        }
        let half = driver.read(0, (32 << 10) / lba_bytes);
        assert!(half == vec![1; 32 << 10], "what is left can be read");
        fs::remove_file(&path).unwrap();
    }
}

/// A write there would bring the lost part back, as zeroes.
#[test]
fn a_file_that_was_cut_short_is_not_made_long_again_by_what_changes_data() {
    let folder = Folder::new();
    for direct in [DirectIo::Auto, DirectIo::Off] {
        let path = folder.file("cut", 1 << 20);
        let store = spec(&path, 4096, direct).prepare().unwrap();
        let config = EngineConfig::default();
        let mut drivers = [(), ()].map(|()| Driver::of(&store, &config, true));
        for driver in &mut drivers {
            driver.write(0, &vec![1; 64 << 10]);
        }
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(512 << 10).unwrap();
        let zeroes = |deallocate| Op::WriteZeroes {
            lba: 127,
            lbas: 2,
            deallocate,
            fua: false,
        };
        for driver in &mut drivers {
            let truncated = |result: Result<(), IoError>| {
                let error = result.unwrap_err();
                assert_eq!(error.kind, IoErrorKind::Truncated, "{error}");
                assert!(error.to_string().contains("it shrank"), "{error}");
            };
            truncated(driver.try_write(255, &[2; 4096], false));
            truncated(driver.try_write(127, &[2; 8192], true));
            truncated(driver.result(zeroes(true), None));
            truncated(driver.result(zeroes(false), None));
            driver.write(127, &[3; 4096]);
            assert_eq!(fs::metadata(&path).unwrap().len(), 512 << 10);
            assert_eq!(driver.volume.geometry().lbas, 128);
            // Beyond what it ever had is the host's mistake.
            let error = driver.try_write(256, &[2; 4096], false).unwrap_err();
            assert_eq!(error.kind, IoErrorKind::OutOfRange, "{error}");
        }
        // Longer again, and longer than it was: after a look.
        file.set_len(2 << 20).unwrap();
        assert_eq!(store.look().unwrap().geometry.lbas, 512);
        for driver in &mut drivers {
            driver.write(511, &[4; 4096]);
            assert_eq!(driver.read(255, 1), [0; 4096]);
        }
        drop((drivers, store));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn root_a_device_that_became_smaller_says_so_and_not_that_it_is_full() {
    let folder = Folder::new();
    let image = folder.file("device", 1 << 20);
    let device = LoopDevice::new(&image, 512);
    let spec = spec(device.path(), 512, DirectIo::Auto);
    let store = spec.prepare().unwrap();
    let mut driver = Driver::of(&store, &EngineConfig::default(), true);
    driver.write(2047, &[1; 512]);
    let resize = |bytes| {
        let file = OpenOptions::new().write(true).open(&image).unwrap();
        file.set_len(bytes).unwrap();
        run("losetup", &["-c", device.path().to_str().unwrap()]).unwrap();
    };
    resize(512 << 10);
    let error = driver.try_write(2047, &[2; 512], false).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Truncated, "{error}");
    let error = driver.try_read(2047, 1, 0).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Truncated, "{error}");
    resize(2 << 20);
    assert_eq!(store.look().unwrap().geometry.lbas, 4096);
    driver.write(4095, &[3; 512]);
}

#[test]
fn a_discard_gives_space_back_and_reads_as_zeroes() {
    let folder = Folder::new();
    let path = folder.file("discard", 4 << 20);
    let mut driver = Driver::new(&spec(&path, 4096, DirectIo::Auto));
    assert!(
        driver.volume.geometry().discard,
        "ext4, xfs, btrfs and tmpfs punch holes"
    );
    driver.write(0, &vec![1; 4 << 20]);
    driver.result(Op::Flush, None).unwrap();
    let blocks = || fs::metadata(&path).unwrap().blocks() * 512;
    assert!(blocks() >= 4 << 20);
    driver
        .result(Op::Discard { lba: 0, lbas: 1024 }, None)
        .unwrap();
    assert!(blocks() < 64 << 10, "{} bytes still allocated", blocks());
    assert_eq!(driver.read(1023, 1), [0; 4096]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 20);
}

#[test]
fn root_a_discard_reaches_the_device() {
    let folder = Folder::new();
    let image = folder.file("thin", 8 << 20);
    let device = LoopDevice::new(&image, 512);
    let mut driver = Driver::new(&spec(device.path(), 4096, DirectIo::Auto));
    driver.write(0, &vec![1; 4 << 20]);
    driver.result(Op::Flush, None).unwrap();
    let blocks = || fs::metadata(&image).unwrap().blocks() * 512;
    assert!(blocks() >= 4 << 20);
    // A loop device passes a discard on to its file as a hole.
    driver
        .result(Op::Discard { lba: 1, lbas: 1022 }, None)
        .unwrap();
    assert!(blocks() <= 64 << 10, "{} bytes still allocated", blocks());
    assert_eq!(
        (driver.read(0, 1), driver.read(1023, 1)),
        (vec![1; 4096], vec![1; 4096])
    );
}

#[test]
fn root_a_full_file_system_fails_the_command_that_found_it_full() {
    own_mounts();
    let folder = Folder::new();
    let image = folder.file("small", 4 << 20);
    run(
        "mkfs.ext4",
        &[
            "-q",
            "-F",
            "-m",
            "0",
            "-O",
            "^has_journal",
            image.to_str().unwrap(),
        ],
    )
    .unwrap();
    let device = LoopDevice::new(&image, 512);
    let at = folder.path().join("at");
    fs::create_dir(&at).unwrap();
    run(
        "mount",
        &[device.path().to_str().unwrap(), at.to_str().unwrap()],
    )
    .unwrap();
    for direct in [DirectIo::Auto, DirectIo::Off] {
        let path = at.join(format!("{direct:?}"));
        File::create(&path).unwrap().set_len(8 << 20).unwrap();
        let mut driver = Driver::new(&spec(&path, 4096, direct));
        let mut written = 0;
        let error = loop {
            match driver.try_write(written * 64, &vec![7; 256 << 10], true) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(
            (error.kind, error.errno),
            (IoErrorKind::NoSpace, Some(libc::ENOSPC))
        );
        assert!(error.to_string().contains("no space left"), "{error}");
        assert!(
            (1..16).contains(&written),
            "{written} writes of 256 KiB fit 4 MiB"
        );
        // The others go on: reads, rewrites of what has space, and after a discard new writes.
        assert_eq!(driver.read(0, 1), [7; 4096]);
        driver.try_write(0, &[8; 4096], true).unwrap();
        driver
            .result(Op::Discard { lba: 0, lbas: 64 }, None)
            .unwrap();
        driver.result(Op::Flush, None).unwrap();
        driver.try_write(64, &[9; 4096], true).unwrap();
        drop(driver);
        fs::remove_file(&path).unwrap();
    }
    run("umount", &[at.to_str().unwrap()]).unwrap();
}

#[test]
fn root_a_medium_error_is_the_commands_own() {
    let folder = Folder::new();
    let image = folder.file("bad", 1 << 20);
    let device = LoopDevice::new(&image, 512);
    let mut driver = Driver::new(&spec(device.path(), 512, DirectIo::Auto));
    driver.write(0, &[1; 4096]);
    driver.result(Op::Flush, None).unwrap();
    // The device keeps its size; reads behind the backing file's end are I/O errors.
    OpenOptions::new()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(512 << 10)
        .unwrap();
    let error = driver.try_read(1500, 8, 0).unwrap_err();
    assert_eq!(
        (error.kind, error.errno),
        (IoErrorKind::Medium, Some(libc::EIO)),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("read of LBA 1500+8 on /dev/loop"),
        "{error}"
    );
    assert_eq!(driver.read(0, 8), [1; 4096]);
}

/// The device is thin: 8 MiB on a file system of 2 MiB, so that more cannot be stored.
#[test]
fn root_what_the_medium_cannot_store_fails_the_write_or_the_flush_behind_it() {
    own_mounts();
    let folder = Folder::new();
    let at = folder.path().join("tmpfs");
    fs::create_dir(&at).unwrap();
    let at = at.to_str().unwrap();
    run("mount", &["-t", "tmpfs", "-o", "size=2m", "none", at]).unwrap();
    let device = LoopDevice::new(&folder.file("tmpfs/thin", 8 << 20), 512);
    // A loop device passes on what its file system says; a write-back keeps less of it.
    let stored_nowhere = |error: IoError| {
        assert!(
            matches!(error.kind, IoErrorKind::NoSpace | IoErrorKind::Medium),
            "{error}"
        );
    };

    let mut driver = Driver::new(&spec(device.path(), 4096, DirectIo::On));
    driver.write(0, &[1; 4096]);
    // 600 LBAs with gaps between them, all in flight at once; some 500 fit. Neighbours would become
    // one request, and a loop device takes a request that was stored in part for stored.
    for token in 0..600 {
        let data = driver.data(&[2; 4096], 0);
        let op = Op::Write {
            lba: 2 + 2 * token,
            lbas: 1,
            fua: false,
        };
        driver.submit(token, op, Some(data));
    }
    let ended = driver.wait(600).into_iter();
    let (stored, failed): (Vec<_>, Vec<_>) = ended.partition(|ended| ended.result.is_ok());
    assert!((80..200).contains(&failed.len()), "{} failed", failed.len());
    for ended in &stored {
        assert!(driver.read(2 + 2 * ended.token, 1) == [2; 4096]);
    }
    failed
        .into_iter()
        .for_each(|ended| stored_nowhere(ended.result.unwrap_err()));
    // The others go on, and discarding makes room.
    driver.try_write(0, &[3; 4096], true).unwrap();
    driver.result(Op::Flush, None).unwrap();
    let all = Op::Discard { lba: 0, lbas: 2048 };
    driver.result(all, None).unwrap();
    driver.try_write(1500, &vec![4; 512 << 10], true).unwrap();
    driver.result(all, None).unwrap();
    drop(driver);

    // Through the page cache a write ends before anything is stored: FUA must tell, and what was
    // lost stays lost.
    let mut driver = Driver::new(&spec(device.path(), 4096, DirectIo::Off));
    let error = driver.try_write(0, &vec![6; 4 << 20], true).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Lost, "{error}");
    driver.result(all, None).unwrap();
    let error = driver.try_write(0, &[6; 4096], true).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Lost, "{error}");
    driver.write(0, &[6; 4096]);
    drop((driver, device));
    run("umount", &[at]).unwrap();
}

/// A file of 32 MiB through the page cache, on ext4 on a thin device of which some 8 MiB can be
/// stored.
struct Thin {
    folder: Folder,
    device: Option<LoopDevice>,
    store: Store,
    lba_bytes: u32,
}

impl Thin {
    /// `sector_bytes` of the device, `lba_bytes` of the volume.
    fn new(sector_bytes: u32, lba_bytes: u32, direct: DirectIo) -> Self {
        own_mounts();
        let folder = Folder::new();
        let [below, at] = ["below", "at"].map(|name| folder.path().join(name));
        for path in [&below, &at] {
            fs::create_dir(path).unwrap();
        }
        let below = below.to_str().unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=12m", "none", below]).unwrap();
        let image = folder.file("below/image", 64 << 20);
        // Nothing but the volume writes: no journal, no tables that are made later.
        let options = [
            "-q",
            "-F",
            "-b",
            "4096",
            "-O",
            "^has_journal",
            "-E",
            "lazy_itable_init=0",
            "-m",
            "0",
        ];
        let options = [&options[..], &[image.to_str().unwrap()]].concat();
        run("mkfs.ext4", &options).unwrap();
        let device = LoopDevice::new(&image, sector_bytes);
        let device_path = device.path().to_str().unwrap();
        run("mount", &[device_path, at.to_str().unwrap()]).unwrap();
        let path = folder.file("at/volume", 32 << 20);
        let store = spec(&path, lba_bytes, direct).prepare().unwrap();
        let device = Some(device);
        Self {
            folder,
            device,
            store,
            lba_bytes,
        }
    }

    fn driver(&self) -> Driver {
        Driver::of(&self.store, &EngineConfig::default(), true)
    }

    /// Writes 30 MiB, all of which are told to be done.
    fn write_too_much(&self, driver: &mut Driver) {
        let mib = 1 << 20;
        for lba in (0..30 * mib / self.lba_bytes).step_by((mib / self.lba_bytes) as usize) {
            driver.write(lba.into(), &vec![1; mib as usize]);
        }
    }

    fn end(mut self) {
        drop(self.store);
        let path = |name| self.folder.path().join(name);
        // It may fail to write back once more.
        let _ = run("umount", &[path("at").to_str().unwrap()]);
        self.device = None;
        run("umount", &["--lazy", path("below").to_str().unwrap()]).unwrap();
    }
}

#[test]
fn root_what_was_lost_fails_every_flush_of_every_reactor_until_it_is_opened_anew() {
    fails_every_flush(Thin::new(512, 4096, DirectIo::Off));
}

/// LBAs that are too small for O_DIRECT of this device go through the page cache as well.
#[test]
fn root_what_was_lost_without_o_direct_fails_every_flush_though_nobody_asked_for_the_page_cache() {
    fails_every_flush(Thin::new(4096, 512, DirectIo::Auto));
}

fn fails_every_flush(thin: Thin) {
    let [mut writer, other] = [thin.driver(), thin.driver()];
    thin.write_too_much(&mut writer);
    // The kernel tells of it once, and the first to ask has written nothing.
    let mut drivers = [other, writer];
    for turn in 0..4 {
        let driver = &mut drivers[turn % 2];
        let error = driver.result(Op::Flush, None).unwrap_err();
        assert_eq!(error.kind, IoErrorKind::Lost, "{error}");
        assert!(error.to_string().contains("may be lost"), "{error}");
        let error = driver.try_write(0, &[2; 4096], true).unwrap_err();
        assert_eq!(error.kind, IoErrorKind::Lost, "{error}");
    }
    // A reactor that comes later.
    let mut late = thin.driver();
    let error = late.result(Op::Flush, None).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Lost, "{error}");
    drop((drivers, late));
    thin.end();
}

#[test]
fn root_flushes_that_run_together_fail_together() {
    let thin = Thin::new(512, 4096, DirectIo::Off);
    let [mut writer, mut other] = [thin.driver(), thin.driver()];
    thin.write_too_much(&mut writer);
    for token in 0..8 {
        writer.submit(token, Op::Flush, None);
        other.submit(token, Op::Flush, None);
    }
    // Of both before either is looked at.
    for driver in [&writer, &other] {
        driver.engine.submit_batch().unwrap();
    }
    for driver in [&mut writer, &mut other] {
        for ended in driver.wait(8) {
            let error = ended.result.unwrap_err();
            assert_eq!(
                error.kind,
                IoErrorKind::Lost,
                "flush {}: {error}",
                ended.token
            );
        }
    }
    drop((writer, other));
    thin.end();
}

/// tmpfs punches holes and has no zero range: zeroes are written there.
#[test]
fn root_zeroes_are_written_where_the_file_system_knows_no_better() {
    own_mounts();
    let folder = Folder::new();
    let at = folder.path().join("tmpfs");
    fs::create_dir(&at).unwrap();
    run(
        "mount",
        &["-t", "tmpfs", "-o", "size=8m", "none", at.to_str().unwrap()],
    )
    .unwrap();
    let path = at.join("volume");
    File::create(&path).unwrap().set_len(4 << 20).unwrap();
    let mut driver = Driver::new(&spec(&path, 4096, DirectIo::Auto));
    driver.write(0, &vec![1; 4 << 20]);
    let blocks = || fs::metadata(&path).unwrap().blocks() * 512;
    for (deallocate, lba) in [(false, 1), (true, 513)] {
        let op = Op::WriteZeroes {
            lba,
            lbas: 510,
            deallocate,
            fua: true,
        };
        driver.result(op, None).unwrap();
        assert_eq!(driver.read(lba - 1, 1), [1; 4096]);
        assert!(driver.read(lba, 510) == vec![0; 510 * 4096]);
        assert_eq!(driver.read(lba + 510, 1), [1; 4096]);
        let freed = (4 << 20) - blocks();
        assert_eq!(freed > 0, deallocate, "{freed} bytes freed");
    }
    drop(driver);
    run("umount", &[at.to_str().unwrap()]).unwrap();
}
