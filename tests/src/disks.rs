//! File systems and loop devices for tests that need a medium with a mind of its own. All of it
//! needs root.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use crate::process::thread_stats;
use crate::program::{Machine, tool, utf8};

/// Runs a program to its end: what it prints, or why it failed.
///
/// # Errors
/// It cannot be started, or fails.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let arguments = arguments.join(" ");
    Err(format!("{program} {arguments}: {}", error.trim()))
}

/// Runs a command without the mounts below the temporary folders of tests (tempfile's names), but
/// with the one at `$1`.
const LEAVE_OTHER_TESTS: &str = r#"
kept=$1
shift
for at in $(cut -d' ' -f2 /proc/mounts); do
    case "$at" in
        "$kept") ;;
        "${TMPDIR:-/tmp}"/.tmp*) umount --lazy "$at" 2>/dev/null ;;
    esac
done
exec "$@"
"#;

/// The words before a command that give it mounts of its own: of those below temporary folders only
/// the one at `kept`. A copy of another test's mount would keep its disk.
#[must_use]
pub fn in_own_mounts(kept: &Path) -> [&str; 9] {
    let kept = utf8(kept);
    [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        LEAVE_OTHER_TESTS,
        "sh",
        kept,
    ]
}

thread_local! {
    static HAS_OWN_MOUNTS: Cell<bool> = const { Cell::new(false) };
}

/// Gives this test, and the programs that it starts, mounts of their own, which go with them; does
/// nothing when it has them. Mounts of other tests are not among them: they would keep their disks.
///
/// # Panics
/// Without root.
pub fn own_mounts() {
    if HAS_OWN_MOUNTS.replace(true) {
        return;
    }
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
        .unwrap_or_else(|reason| {
            panic!(
                "no mounts of its own: {reason}; this test needs root, leave it out with: \
                 cargo nextest run -E 'not test(/^root_/)'"
            )
        });
    let left = run("sh", &["-c", LEAVE_OTHER_TESTS, "sh", "", "true"]);
    left.expect("the mounts of other tests can be left");
}

/// A loop device, detached at the end.
pub struct Loop(String);

impl Loop {
    /// On `file`.
    ///
    /// # Panics
    /// Where none can be made.
    #[must_use]
    pub fn new(file: &Path) -> Self {
        let made = run("losetup", &["--find", "--show", utf8(file)]);
        Self(made.unwrap_or_else(|reason| {
            panic!(
                "no loop device: {reason}; this test needs root and loop devices, leave it out \
                 with: cargo nextest run -E 'not test(/^root_/)'"
            )
        }))
    }

    /// Its device.
    #[must_use]
    pub fn path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// Writes that it was given and has not ended (Documentation/ABI/stable/sysfs-block,
    /// `inflight`).
    ///
    /// # Panics
    /// When the kernel does not say.
    #[must_use]
    pub fn writes_in_flight(&self) -> u64 {
        let name = self.path().file_name().and_then(|name| name.to_str());
        let path = format!("/sys/block/{}/inflight", name.expect("a loop device"));
        let text = fs::read_to_string(path).expect("the kernel counts");
        let writes = text.split_ascii_whitespace().nth(1);
        writes.expect("two numbers").parse().expect("a number")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(reason) = run("losetup", &["--detach", &self.0]) {
            eprintln!("{reason}");
        }
    }
}

/// An image of 64 MiB, `disk.img` in `folder`, with an empty ext4 of blocks of 4096 bytes.
///
/// # Panics
/// It cannot be made: [`has_disks`](crate::program::has_disks) asks for `mkfs.ext4` first.
#[must_use]
pub fn ext4_image(folder: &Path) -> PathBuf {
    let image = folder.join("disk.img");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    tool("mkfs.ext4", &["-q", "-b", "4096", utf8(&image)]);
    image
}

/// The log of the only volume of `machine` that has lost something, which is removed.
///
/// # Panics
/// When there is not one.
#[must_use]
pub fn lost_log(machine: &Machine) -> String {
    let entries = fs::read_dir(machine.path("run")).expect("the state folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let logs: Vec<_> = paths
        .filter(|path| utf8(path).contains("lost-capstan-"))
        .collect();
    let [log] = &logs[..] else { panic!("{logs:?}") };
    let text = fs::read_to_string(log).expect("a log");
    fs::remove_file(log).expect("it is removed");
    text
}

/// An ext4 file system on a thin device, with room for some of what it promises.
pub struct Thin {
    folder: TempDir,
    device: Option<Loop>,
}

impl Thin {
    /// A file system of 64 MiB of which `room_mib` can be stored, on memory. Needs [`own_mounts`].
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(room_mib: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [below, at] = ["below", "at"].map(|name| folder.path().join(name));
        for path in [&below, &at] {
            fs::create_dir(path).expect("an empty folder");
        }
        let size = format!("size={room_mib}m");
        let mount = |arguments: &[&str]| run("mount", arguments).expect("it is mounted");
        mount(&["-t", "tmpfs", "-o", &size, "none", utf8(&below)]);
        let image = below.join("image");
        let file = File::create(&image).expect("an image");
        file.set_len(64 << 20).expect("a sparse file");
        // Nothing writes but who uses it: no journal, no tables that are made later.
        let options = "-q -F -m 0 -O ^has_journal -E lazy_itable_init=0";
        let arguments: Vec<_> = options.split(' ').chain([utf8(&image)]).collect();
        run("mkfs.ext4", &arguments).expect("a file system");
        let device = Loop::new(&image);
        mount(&[utf8(device.path()), utf8(&at)]);
        Self {
            folder,
            device: Some(device),
        }
    }

    /// A sparse file there.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.folder.path().join("at").join(name);
        let file = File::create(&path).expect("a file");
        file.set_len(bytes).expect("a sparse file");
        path
    }

    /// Makes more room: so much can be stored now.
    ///
    /// # Panics
    /// When there is none to be had.
    pub fn set_room(&self, room_mib: u32) {
        let below = self.folder.path().join("below");
        let size = format!("remount,size={room_mib}m");
        run("mount", &["-o", &size, utf8(&below)]).expect("it has another size");
    }

    /// Has the file system find an error, and make itself read-only for it.
    ///
    /// # Panics
    /// When it cannot be told to.
    pub fn find_an_error(&self) {
        let at = self.folder.path().join("at");
        let options = "remount,errors=remount-ro";
        run("mount", &["-o", options, utf8(&at)]).expect("it is mounted again");
        let device = self
            .device
            .as_ref()
            .and_then(|device| device.path().file_name());
        let folder = Path::new("/sys/fs/ext4").join(device.expect("a loop device"));
        fs::write(folder.join("trigger_fs_error"), "a test").expect("it finds an error");
    }

    /// Lets no write of the file system end, until it is dropped.
    ///
    /// # Panics
    /// When it cannot be frozen.
    #[must_use]
    pub fn freeze(&self) -> Frozen {
        let at = self.folder.path().join("at");
        let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
        // Where nothing is mounted this would stop the machine.
        assert_ne!(device(&at), device(self.folder.path()), "it is mounted");
        run("fsfreeze", &["--freeze", utf8(&at)]).expect("it is frozen");
        Frozen(at)
    }
}

impl Drop for Thin {
    fn drop(&mut self) {
        let path = |name| self.folder.path().join(name);
        // What it cannot write back it says here once more.
        let _ = run("umount", &[utf8(&path("at"))]);
        self.device = None;
        let _ = run("umount", &["--lazy", utf8(&path("below"))]);
    }
}

/// Whether a thread of a process waits where no signal reaches it, as the threads of io_uring do in
/// a file system that stands still.
#[must_use]
pub fn waits_for_disk(pid: u32) -> bool {
    let mut stats = thread_stats(pid).into_iter();
    stats.any(|stat| stat.contains("(iou-wrk") && stat.contains(") D "))
}

/// A file system that stands still.
pub struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(reason) = run("fsfreeze", &["--unfreeze", utf8(&self.0)]) {
            eprintln!("{reason}");
        }
    }
}

/// A FUSE mount that nobody answers for: whatever looks below it waits.
pub struct Unanswered {
    folder: PathBuf,
    connection: Option<File>,
}

impl Unanswered {
    /// Over a folder.
    ///
    /// # Panics
    /// When it cannot be mounted.
    #[must_use]
    pub fn over(folder: &Path) -> Self {
        let mut options = OpenOptions::new();
        let fuse = options.read(true).write(true).open("/dev/fuse");
        let fuse = fuse.expect("a connection");
        let fd = fuse.as_raw_fd();
        let data = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
        let (name, flags) = (Some("unanswered"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV);
        mount(name, folder, Some("fuse"), flags, Some(data.as_str())).expect("it is mounted");
        Self {
            folder: folder.to_owned(),
            connection: Some(fuse),
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        // What waits is told that the connection is over.
        self.connection = None;
        umount2(&self.folder, MntFlags::MNT_DETACH).expect("it is mounted");
    }
}
