//! What the kernel uses files of a file system for without any process that has them open: swap,
//! and loop devices with what is mounted of those.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::loop_device::holders;
use super::mounts::{Mount, mounts, mounts_elsewhere, mounts_of};
use super::users::{processes_of, swap_on, swaps};
use crate::words::word_of;

/// Loop devices on files of each other, as far as they are followed.
const NESTED_MAX: u32 = 8;
/// Mounts of other mount namespaces, each of one, that are named.
const ELSEWHERE_MAX: usize = 3;

/// A use of files by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileUse {
    /// As what, with the files.
    pub by: String,
    /// What ends it, one after the other.
    pub end: Vec<String>,
}

/// What the kernel uses files of the file systems at `of` for.
///
/// # Errors
/// `/proc` is not there.
pub fn by_the_kernel_in(of: &[Mount]) -> io::Result<Vec<FileUse>> {
    let all = mounts()?;
    let mut swapped = swaps()?;
    swapped.retain(|path| is_in(path, &all, of));
    Ok(uses(&all, &swapped, of))
}

/// The same of a disk and all its file systems, with swap on the disk itself.
///
/// # Errors
/// `/proc` is not there.
pub fn by_the_kernel_on(disk: &Path) -> io::Result<Vec<FileUse>> {
    Ok(uses(&mounts()?, &swap_on(disk)?, &mounts_of(disk)?))
}

fn uses(all: &[Mount], swapped: &[PathBuf], of: &[Mount]) -> Vec<FileUse> {
    let names: Vec<_> = swapped.iter().map(|at| at.display().to_string()).collect();
    let swap = (!swapped.is_empty()).then(|| FileUse {
        by: format!("as swap ({})", names.join(" ")),
        end: vec![swapoff(swapped)],
    });
    swap.into_iter().chain(loops(all, of, NESTED_MAX)).collect()
}

fn swapoff(paths: &[PathBuf]) -> String {
    let words: Vec<_> = paths.iter().map(|at| word_of(at).to_string()).collect();
    format!("swapoff {}", words.join(" "))
}

/// Whether `path` is in one of the mounts `of`.
pub(super) fn is_in(path: &Path, all: &[Mount], of: &[Mount]) -> bool {
    let below = all.iter().filter(|m| path.starts_with(&m.mount_point));
    // The last one of the longest path is what is seen there.
    let below = below.max_by_key(|m| m.mount_point.as_os_str().len());
    below.is_some_and(|mount| of.contains(mount))
}

/// The loop devices on files there (Documentation/ABI/testing/sysfs-block-loop).
fn loops(all: &[Mount], of: &[Mount], depth: u32) -> Vec<FileUse> {
    if of.is_empty() || depth == 0 {
        return Vec::new();
    }
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let found = devices.filter_map(|entry| {
        let folder = entry.path().join("loop");
        let file = fs::read_to_string(folder.join("backing_file")).ok()?;
        let file = PathBuf::from(file.strip_suffix('\n').unwrap_or(&file));
        let goes_by_itself = fs::read_to_string(folder.join("autoclear"))
            .is_ok_and(|autoclear| autoclear.trim() == "1");
        let device = Path::new("/dev").join(entry.file_name());
        is_in(&file, all, of).then(|| of_loop(all, &device, &file, goes_by_itself, depth))
    });
    let mut found: Vec<FileUse> = found.collect();
    found.sort_by(|one, other| one.by.cmp(&other.by));
    found
}

fn of_loop(all: &[Mount], device: &Path, file: &Path, goes_by_itself: bool, depth: u32) -> FileUse {
    let mounts = mounts_of(device).unwrap_or_default();
    let swapped = swap_on(device).unwrap_or_default();
    let mut by = vec![format!("on {}", file.display())];
    let mut end = Vec::new();
    for nested in loops(all, &mounts, depth - 1) {
        by.push(format!("used {}", nested.by));
        end.extend(nested.end);
    }
    if !swapped.is_empty() {
        by.push("used as swap".to_owned());
        end.push(swapoff(&swapped));
    }
    for mount in &mounts {
        by.push(format!("mounted at {}", mount.mount_point.display()));
        end.push(format!("umount {}", word_of(&mount.mount_point)));
    }
    for other in mounts_elsewhere(device, ELSEWHERE_MAX) {
        let (pid, point) = (other.pid, &other.mount.mount_point);
        by.push(format!(
            "mounted at {} in the mount namespace of {} (pid {pid})",
            point.display(),
            other.name
        ));
        end.push(format!(
            "nsenter --target {pid} --mount umount {}",
            word_of(point)
        ));
    }
    // Swap is named above.
    for holder in holders(device).iter().filter(|by| !by.contains(' ')) {
        by.push(format!("used by {holder}"));
        end.push(format!("take {holder} down"));
    }
    // A worker of udev looks at it for a moment.
    let processes = processes_of(device).into_iter();
    for process in processes.filter(|name| !name.contains("udev")) {
        by.push(format!("open in {process}"));
        end.push(format!("end {process}"));
    }
    if !goes_by_itself {
        end.push(format!("losetup --detach {}", word_of(device)));
    }
    FileUse {
        by: format!(
            "as the loop device {} ({})",
            device.display(),
            by.join(", ")
        ),
        end,
    }
}

#[cfg(test)]
mod tests {
    use super::{by_the_kernel_in, is_in};
    use crate::front_ends::disk::mounts::mounts;
    use std::path::Path;

    #[test]
    fn a_file_is_in_the_mount_that_is_seen_there() {
        let all = mounts().unwrap();
        let proc = all.iter().filter(|m| m.mount_point == Path::new("/proc"));
        let proc: Vec<_> = proc.cloned().collect();
        assert!(is_in(Path::new("/proc/self"), &all, &proc));
        assert!(!is_in(Path::new("/"), &all, &proc));
        assert!(!is_in(Path::new("/process"), &all, &proc));
        assert_eq!(by_the_kernel_in(&proc).unwrap(), []);
    }
}
