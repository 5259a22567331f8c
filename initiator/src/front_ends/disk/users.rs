//! Which processes use a disk, or a file system on it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use capstan_nvme_proto::text::Shown;
use nix::libc;

use super::file_users::is_in;
use super::loop_device::device_numbers;
use super::mounts::{
    device_at, mounts, mounts_of, number_at, number_of, numbers_everywhere, unescape,
};

use super::loop_process;

/// The processes, but for this one, that have `path` open or something below it, or are in there,
/// as far as this one may look; of a disk also those that have a partition of it open.
#[must_use]
pub fn users_of(path: &Path) -> String {
    known_users_of(path).unwrap_or_else(|| {
        "what no process has open: the kernel itself (swap, a file system of several devices, RAID, LVM; \
         `lsblk` and `swapon` list those; an overlay; a mount namespace that no process is in), or a process of \
         another container"
            .to_owned()
    })
}

/// What has a disk open that nothing has claimed, in words that begin with *in*.
#[must_use]
pub fn open_in(disk: &Path) -> String {
    known_users_of(disk).map_or_else(
        || "in no process that can be seen from here: one of another container, or one that is just ending".to_owned(),
        |users| format!("in {users}"),
    )
}

/// The same as [`users_of`], unless there are none, and nothing of the kernel is known.
pub(super) fn known_users_of(path: &Path) -> Option<String> {
    let names = processes_of(path);
    match names.is_empty() {
        false => Some(names.join(", ")),
        true => by_the_kernel(path),
    }
}

/// The processes of [`users_of`], one by one.
#[must_use]
pub fn processes_of(path: &Path) -> Vec<String> {
    let this = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().to_str() != Some(&this))
        .filter(|entry| !is_own_work(&entry.path()))
        .filter(|entry| {
            let process = entry.path();
            let fds = fs::read_dir(process.join("fd")).into_iter().flatten();
            // Links are read, not followed: a disk that has died may not even be looked at.
            let mut links = ["cwd", "root", "exe"]
                .map(|name| process.join(name))
                .into_iter()
                .chain(fds.flatten().map(|fd| fd.path()));
            let is_in = |target: &Path| target.starts_with(path) || is_partition(target, path);
            links.any(|link| fs::read_link(link).is_ok_and(|target| is_in(&target)))
        })
        .map(|entry| {
            let pid = entry.file_name();
            format!("{} (pid {})", name_of(&entry.path()), pid.to_string_lossy())
        })
        .collect()
}

/// Whether a process is at work on a loop device for a volume: it ends by itself, also where the
/// kernel does not let go of it at once.
fn is_own_work(process: &Path) -> bool {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    let mut words = line.split(|&byte| byte == 0);
    words.next() == Some(b"capstan") && words.next() == Some(loop_process::COMMAND.as_bytes())
}

/// Whether it is called as a partition of the loop device at `disk` is: with a `p` and its number
/// behind the name.
fn is_partition(path: &Path, disk: &Path) -> bool {
    let [path, disk] = [path, disk].map(|path| path.as_os_str().as_bytes());
    let Some(number) = path
        .strip_prefix(disk)
        .and_then(|rest| rest.strip_prefix(b"p"))
    else {
        return false;
    };
    disk.starts_with(b"/dev/") && !number.is_empty() && number.iter().all(u8::is_ascii_digit)
}

/// The processes that use a file system of `disk` which was unmounted lazily (`umount -l`). What
/// they have open, or are in, has no path any more: it is known by its mount, which no mount
/// namespace lists, and by its device.
#[must_use]
pub fn users_of_unmounted(disk: &Path) -> Option<String> {
    let (numbers, listed) = (device_numbers(disk), numbers_everywhere());
    let is_unlisted = |mount: Option<u64>| mount.is_some_and(|id| !listed.contains(&id));
    let is_on_disk = |link: &Path| {
        let device = fs::metadata(link).map(|meta| meta.st_dev());
        device.is_ok_and(|of| numbers.contains(&(libc::major(of), libc::minor(of))))
    };
    let uses = |process: &Path| {
        let folders = ["cwd", "root"].map(|name| process.join(name));
        let is_in = |link: &PathBuf| is_unlisted(number_at(link, 0)) && is_on_disk(link);
        // Ours may have the file behind a disk open, which may not answer.
        let is_ours = name_of(process).starts_with("capstan");
        let fds = fs::read_dir(process.join("fdinfo")).into_iter().flatten();
        let mut fds = fds.flatten().filter(|_| !is_ours);
        folders.iter().any(is_in)
            || fds.any(|fd| {
                let link = process.join("fd").join(fd.file_name());
                is_unlisted(number_of(&fd.path()))
                    && fs::read_link(&link).is_ok_and(|target| target.starts_with("/"))
                    && is_on_disk(&link)
            })
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names: Vec<String> = processes
        .filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.parse::<u32>().is_ok())
        })
        .filter(|entry| uses(&entry.path()))
        .map(|entry| {
            let pid = entry.file_name();
            format!("{} (pid {})", name_of(&entry.path()), pid.to_string_lossy())
        })
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// The name of a process, which may be another user's.
pub(super) fn name_of(process: &Path) -> String {
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    Shown(name.trim()).to_string()
}

/// What the kernel uses a device for without any process that has it open, as far as it says so:
/// swap (proc_swaps(5)), and file systems of several devices, which are mounted by one of these.
fn by_the_kernel(path: &Path) -> Option<String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let btrfs = fs::read_dir("/sys/fs/btrfs")
        .into_iter()
        .flatten()
        .flatten();
    let members = btrfs.map(|entry| entry.path().join("devices"));
    let (path, name) = (path.to_str()?, path.file_name()?);
    if is_swap(&swaps, path) {
        return Some(format!(
            "the kernel, as swap; end that with: swapoff {path}"
        ));
    }
    let mut members = members.filter(|devices| devices.join(name).exists());
    let of = members.next()?.parent()?.file_name()?.to_str()?.to_owned();
    Some(format!(
        "btrfs, as a device of the file system {of}; `findmnt -t btrfs` shows where that is mounted"
    ))
}

/// The active swap areas on a disk: the disk itself, its partitions, devices stacked on those, and
/// swap files in its file systems.
///
/// # Errors
/// `/proc` is not there.
pub(super) fn swap_on(disk: &Path) -> io::Result<Vec<PathBuf>> {
    let numbers = device_numbers(disk);
    let (mounts, ours) = (mounts()?, mounts_of(disk)?);
    let is_on_it = |path: &Path| {
        let is_there = device_at(path).is_some_and(|number| numbers.contains(&number));
        is_there || is_in(path, &mounts, &ours)
    };
    let mut paths = swaps()?;
    paths.retain(|path| is_on_it(path));
    Ok(paths)
}

/// All active swap areas (proc_swaps(5)).
pub(super) fn swaps() -> io::Result<Vec<PathBuf>> {
    match fs::read("/proc/swaps") {
        // A kernel without swap.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        swaps => Ok(swapped(&swaps?)),
    }
}

/// The first word of each line but the head of `/proc/swaps`.
fn swapped(swaps: &[u8]) -> Vec<PathBuf> {
    let lines = swaps.split(|&byte| byte == b'\n').skip(1);
    let words = lines.filter_map(|line| line.split(u8::is_ascii_whitespace).next());
    words
        .filter(|word| !word.is_empty())
        .map(|word| PathBuf::from(OsString::from_vec(unescape(word))))
        .collect()
}

/// Whether `path` is in the text of `/proc/swaps`: a line of heads, then a device a line, with
/// spaces in octal.
fn is_swap(swaps: &str, path: &str) -> bool {
    let wanted = path.replace(' ', "\\040");
    let mut devices = swaps.lines().skip(1);
    devices.any(|line| line.split_whitespace().next() == Some(&wanted))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::{is_partition, is_swap, users_of};

    #[test]
    fn partitions_are_told_from_other_disks_and_files() {
        let is_of = |path: &str, disk: &str| is_partition(Path::new(path), Path::new(disk));
        assert!(is_of("/dev/loop7p1", "/dev/loop7"));
        for path in ["/dev/loop7", "/dev/loop77", "/dev/loop7p", "/dev/loop7px"] {
            assert!(!is_of(path, "/dev/loop7"), "{path}");
        }
        assert!(!is_of("/srv/ap1", "/srv/a"));
    }

    #[test]
    fn swap_is_told_from_other_devices() {
        let swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                     /dev/loop7                              partition\t8188\t\t0\t\t-2\n\
                     /swap\\040file                          file\t8188\t\t0\t\t-3\n";
        assert!(is_swap(swaps, "/dev/loop7"));
        assert!(is_swap(swaps, "/swap file"));
        assert!(!is_swap(swaps, "/dev/loop77"));
        assert!(!is_swap(swaps, "Filename"));
        assert!(!is_swap("", "/dev/loop7"));
    }

    #[test]
    fn who_is_in_a_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let unseen = users_of(dir.path());
        assert!(unseen.contains("the kernel itself (swap"), "{unseen}");
        let mut child = Command::new("sh")
            .args(["-c", "echo; read -r _"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let users = users_of(dir.path());
        assert!(users.contains(&format!("(pid {})", child.id())), "{users}");
        drop(child.stdin.take());
        assert!(child.wait().is_ok());
    }
}
