//! Opening files and devices: what is discovered, what is refused, and in which words.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use capstan_storage::{DirectIo, Geometry, IoErrorKind, Op, OpenError, Store, VolumeSpec};
use support::{Driver, Folder, LoopDevice, own_mounts, run, spec};

fn prepare(path: &Path, lba_bytes: Option<u32>, direct: DirectIo) -> Result<Store, OpenError> {
    let path = path.to_path_buf();
    VolumeSpec::Path {
        path,
        lba_bytes,
        read_only: false,
        direct,
    }
    .prepare()
}

fn geometry(path: &Path, lba_bytes: Option<u32>) -> Geometry {
    prepare(path, lba_bytes, DirectIo::Auto).unwrap().geometry()
}

#[test]
fn a_file_is_4096_byte_lbas_unless_the_caller_says_otherwise() {
    let folder = Folder::new();
    let even = folder.file("even", 1 << 20);
    let odd = folder.file("odd", (1 << 20) + 512 + 100);
    let shape = |geometry: Geometry| (geometry.lba_bytes, geometry.lbas);
    assert_eq!(shape(geometry(&even, None)), (4096, 256));
    assert_eq!(shape(geometry(&even, Some(512))), (512, 2048));
    assert_eq!(shape(geometry(&odd, None)), (4096, 256));
    assert_eq!(shape(geometry(&odd, Some(512))), (512, 2049));
    assert_eq!(shape(geometry(&odd, Some(4096))), (4096, 256));
    let file = geometry(&even, None);
    assert!(
        file.volatile_write_cache && file.discard_zeroes && !file.read_only,
        "{file:?}"
    );
    assert!(
        file.optimal_io_bytes >= 4096 && file.atomic_lbas == 1,
        "{file:?}"
    );
}

#[test]
fn what_is_no_volume_is_refused_with_its_name() {
    let folder = Folder::new();
    let text = |path: &Path| prepare(path, None, DirectIo::Auto).unwrap_err().to_string();
    let fifo = folder.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(
        text(&fifo).ends_with("fifo is a named pipe; expected a regular file or a block device")
    );
    assert!(text(folder.path()).contains("is a folder"));
    assert!(text(Path::new("/dev/zero")).contains("is a character device"));
    let missing = text(&folder.path().join("missing"));
    let error = prepare(&folder.path().join("missing"), None, DirectIo::Auto).unwrap_err();
    let source = std::error::Error::source(&error);
    assert!(
        source.is_none(),
        "its reason is said twice: {error}: {source:?}"
    );
    assert!(
        missing.contains("missing: cannot open: No such file"),
        "{missing}"
    );
    let empty = folder.file("empty", 0);
    assert!(matches!(
        prepare(&empty, None, DirectIo::Auto),
        Err(OpenError::Size { bytes: 0, .. })
    ));
    let lba = prepare(&folder.file("lba", 8192), Some(1024), DirectIo::Auto);
    assert!(matches!(
        lba,
        Err(OpenError::LbaSize {
            lba_bytes: 1024,
            ..
        })
    ));
}

#[test]
fn a_second_export_of_a_file_is_refused_by_name_and_holder() {
    let folder = Folder::new();
    let path = folder.file("locked", 8192);
    let first = prepare(&path, None, DirectIo::Auto).unwrap();
    let error = prepare(&path, None, DirectIo::Auto)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("locked is exported already by this process"),
        "{error}"
    );
    // Reading beside it is allowed, and a clone keeps it.
    let clone = first.clone();
    drop(first);
    let read_only = VolumeSpec::Path {
        path: path.clone(),
        lba_bytes: None,
        read_only: true,
        direct: DirectIo::Auto,
    };
    let _reader = read_only.prepare().unwrap();
    assert!(matches!(
        prepare(&path, None, DirectIo::Auto),
        Err(OpenError::Locked { .. })
    ));
    drop(clone);
    prepare(&path, None, DirectIo::Auto).unwrap();
}

/// A process of this test, ended with it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_holder_in_another_process_is_named() {
    let folder = Folder::new();
    let path = folder.file("elsewhere", 8192);
    // --no-fork: the process that takes the lock is the one that keeps it.
    let child = Command::new("flock")
        .args(["--exclusive", "--no-fork"])
        .arg(&path)
        .args(["sh", "-c", "echo locked; exec sleep 60"])
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Ended(child.expect("flock of util-linux"));
    let mut ready = [0; 7];
    std::io::Read::read_exact(child.0.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let error = prepare(&path, None, DirectIo::Auto)
        .unwrap_err()
        .to_string();
    let holder = format!("by pid {} (sleep)", child.0.id());
    assert!(error.contains(&holder), "{error}, expected {holder}");
    drop(child);
    prepare(&path, None, DirectIo::Auto).unwrap();
}

#[test]
fn a_lock_that_is_let_go_a_moment_later_is_waited_for() {
    let folder = Folder::new();
    let path = folder.file("moment", 8192);
    let first = prepare(&path, None, DirectIo::Auto).unwrap();
    let later = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        drop(first);
    });
    prepare(&path, None, DirectIo::Auto).unwrap();
    later.join().unwrap();
}

#[test]
fn a_read_only_export_refuses_writes_and_needs_no_write_permission() {
    let folder = Folder::new();
    let path = folder.file("read-only", 8192);
    fs::write(&path, [7; 8192]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    let spec = VolumeSpec::Path {
        path: path.clone(),
        lba_bytes: Some(512),
        read_only: true,
        direct: DirectIo::Auto,
    };
    let mut driver = Driver::new(&spec);
    let geometry = driver.volume.geometry();
    assert!(
        geometry.read_only && !geometry.discard && !geometry.discard_zeroes,
        "{geometry:?}"
    );
    assert_eq!(driver.read(15, 1), [7; 512]);
    let error = driver.try_write(0, &[1; 512], false).unwrap_err();
    assert_eq!((error.kind, error.errno), (IoErrorKind::ReadOnly, None));
    assert!(
        error.to_string().starts_with("write of LBA 0+1 on "),
        "{error}"
    );
    let discard = driver.result(Op::Discard { lba: 0, lbas: 1 }, None);
    assert_eq!(discard.unwrap_err().kind, IoErrorKind::ReadOnly);
    driver.result(Op::Flush, None).unwrap();
    drop(driver);
    assert_eq!(fs::read(&path).unwrap(), [7; 8192]);
}

#[test]
fn root_a_device_with_4096_byte_sectors_has_no_512_byte_lbas() {
    let folder = Folder::new();
    let device = LoopDevice::new(&folder.file("sectors", 1 << 20), 4096);
    assert_eq!(geometry(device.path(), None).lba_bytes, 4096);
    let error = prepare(device.path(), Some(512), DirectIo::Auto)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("blocks of 4096 bytes; use an LBA size of 4096"),
        "{error}"
    );
}

#[test]
fn root_a_device_is_discovered_and_held_exclusively() {
    let folder = Folder::new();
    let device = LoopDevice::new(&folder.file("device", 8 << 20), 512);
    let store = prepare(device.path(), None, DirectIo::On).unwrap();
    let shape = store.geometry();
    assert_eq!(
        (shape.lba_bytes, shape.lbas, shape.discard),
        (512, 16384, true)
    );
    assert!(shape.volatile_write_cache, "a loop device says write back");
    assert!(!shape.discard_zeroes, "BLKDISCARD promises no zeroes");
    let error = prepare(device.path(), None, DirectIo::Auto).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("is exported already by this process"),
        "{error}"
    );
    drop(store);
    prepare(device.path(), Some(4096), DirectIo::Auto).unwrap();
}

#[test]
fn root_a_mounted_device_is_refused() {
    own_mounts();
    let folder = Folder::new();
    let image = folder.file("mounted", 8 << 20);
    run("mkfs.ext4", &["-q", "-F", image.to_str().unwrap()]).unwrap();
    let device = LoopDevice::new(&image, 512);
    let at = folder.path().join("at");
    fs::create_dir(&at).unwrap();
    run(
        "mount",
        &[device.path().to_str().unwrap(), at.to_str().unwrap()],
    )
    .unwrap();
    let error = prepare(device.path(), None, DirectIo::Auto)
        .unwrap_err()
        .to_string();
    run("umount", &[at.to_str().unwrap()]).unwrap();
    assert!(error.contains("is in use: mounted"), "{error}");
}

#[test]
fn root_direct_io_gives_way_to_lbas_that_are_too_small_for_it() {
    own_mounts();
    let folder = Folder::new();
    // A file system on 4096-byte sectors: O_DIRECT transfers 4096 bytes or more there.
    let image = folder.file("coarse", 32 << 20);
    let device = LoopDevice::new(&image, 4096);
    let at = folder.path().join("at");
    fs::create_dir(&at).unwrap();
    run("mkfs.ext4", &["-q", "-F", device.path().to_str().unwrap()]).unwrap();
    run(
        "mount",
        &[device.path().to_str().unwrap(), at.to_str().unwrap()],
    )
    .unwrap();
    let path = at.join("volume");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let error = prepare(&path, Some(512), DirectIo::On)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("it needs transfers of 4096 bytes"),
        "{error}"
    );
    prepare(&path, Some(4096), DirectIo::On).unwrap();
    let mut driver = Driver::new(&spec(&path, 512, DirectIo::Auto));
    driver.write(3, &[9; 512]);
    assert_eq!(driver.read(2, 3), [[1; 512], [9; 512], [1; 512]].concat());
    drop(driver);
    run("umount", &[at.to_str().unwrap()]).unwrap();
}
