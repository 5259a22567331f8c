//! The file behind a real mount.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::libc;

use super::super::{FuseMount, device};
use super::{GEOMETRY, MEMORY_BYTES, front_end};
use crate::front_end::FrontEnd;
use crate::front_ends::block::Geometry;
use crate::front_ends::fake::FakeQueue;

/// What a volume held at the end.
struct Left {
    data: Vec<u8>,
    durable: Vec<u8>,
}

/// A mounted file whose front end runs on a thread of its own.
struct Mounted {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Left>>,
    mount: Option<FuseMount>,
    dir: tempfile::TempDir,
}

/// The environment has what FUSE needs; says what is missing otherwise.
fn can_mount(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    let device = Path::new(device::FUSE_DEVICE).exists();
    if !root || !device {
        eprintln!("SKIPPED {test}: needs root ({root}) and /dev/fuse ({device})");
    }
    root && device
}

impl Mounted {
    fn new(geometry: Geometry) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mount, device) =
            FuseMount::new(dir.path(), "capstan:test/1", geometry.read_only).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut queue = FakeQueue::new(geometry, MEMORY_BYTES);
            let mut front_end = front_end(device, &queue);
            while !front_end.is_finished() && !stopped.load(Ordering::Relaxed) {
                let busy = front_end.take_requests(&mut queue);
                if !queue.pending.is_empty() {
                    let done = queue.complete(0);
                    front_end.finish(done.token, &done.result, done.buffer);
                } else if !busy {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            }
            Left {
                data: queue.data,
                durable: queue.durable,
            }
        });
        Self {
            stop,
            thread: Some(thread),
            mount: Some(mount),
            dir,
        }
    }

    fn file(&self, flags: i32) -> std::io::Result<File> {
        File::options()
            .read(true)
            .write(flags & libc::O_ACCMODE != libc::O_RDONLY)
            .custom_flags(flags)
            .open(self.dir.path().join("volume"))
    }

    /// Ends it by unmounting, and gives the volume.
    fn unmount(mut self) -> Left {
        drop(self.mount.take());
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.mount.take());
    }
}

#[test]
fn the_kernel_reads_writes_and_syncs_the_file() {
    if !can_mount("the_kernel_reads_writes_and_syncs_the_file") {
        return;
    }
    let mounted = Mounted::new(GEOMETRY);
    let names: Vec<_> = std::fs::read_dir(mounted.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["volume"]);
    let file = mounted.file(libc::O_RDWR).unwrap();
    assert_eq!(file.metadata().unwrap().len(), GEOMETRY.size_bytes);
    // Larger than one FUSE request.
    let data: Vec<u8> = (0..3 << 20)
        .map(|at| u8::try_from(at % 233).unwrap())
        .collect();
    file.write_all_at(&data, 4096).unwrap();
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 4096).unwrap();
    assert!(back == data);
    file.sync_all().unwrap();
    file.write_all_at(b"part of an LBA", 1).unwrap();
    assert!(file.set_len(0).is_err());
    assert!(File::create(mounted.dir.path().join("other")).is_err());
    drop(file);
    let left = mounted.unmount();
    assert!(left.durable[4096..4096 + data.len()] == data);
}

#[test]
fn a_read_only_file_is_opened_for_reading_only() {
    if !can_mount("a_read_only_file_is_opened_for_reading_only") {
        return;
    }
    let mounted = Mounted::new(Geometry {
        read_only: true,
        ..GEOMETRY
    });
    assert!(mounted.file(libc::O_RDWR).is_err());
    let mut byte = [9];
    mounted
        .file(libc::O_RDONLY)
        .unwrap()
        .read_exact_at(&mut byte, 77)
        .unwrap();
    assert_eq!(byte, [0]);
}

#[test]
fn a_detached_mount_lives_as_long_as_its_file_is_open() {
    if !can_mount("a_detached_mount_lives_as_long_as_its_file_is_open") {
        return;
    }
    let mut mounted = Mounted::new(GEOMETRY);
    let file = mounted.file(libc::O_RDWR).unwrap();
    mounted.mount.take().unwrap().detach().unwrap();
    assert!(!mounted.dir.path().join("volume").exists());
    file.write_all_at(&[5; 512], 0).unwrap();
    drop(file);
    // The front end sees the end of the file system by itself.
    let left = mounted.thread.take().unwrap().join().unwrap();
    assert_eq!(left.data[..512], [5; 512]);
}

#[test]
fn when_the_front_end_dies_the_file_says_so_and_nobody_hangs() {
    if !can_mount("when_the_front_end_dies_the_file_says_so_and_nobody_hangs") {
        return;
    }
    let mut mounted = Mounted::new(GEOMETRY);
    let file = mounted.file(libc::O_RDWR).unwrap();
    mounted.stop.store(true, Ordering::Relaxed);
    mounted.thread.take().unwrap().join().unwrap();
    let error = file.write_all_at(&[5; 512], 0).unwrap_err();
    assert!(
        [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)].contains(&error.raw_os_error()),
        "{error}"
    );
}
