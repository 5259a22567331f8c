//! Which processes use a disk, or a file system on it.

use std::fs;
use std::path::Path;

use capstan_nvme_proto::text::Shown;

/// The processes, but for this one, that have `path` open or something below it, or are in there,
/// as far as this one may look.
#[must_use]
pub fn users_of(path: &Path) -> String {
    known_users_of(path).unwrap_or_else(|| {
        "what no process has open: the kernel itself (swap, a file system of several devices, RAID, LVM; \
         `lsblk` and `swapon` list those; an overlay; a mount namespace that no process is in), or a process of \
         another container"
            .to_owned()
    })
}

/// The same, unless there are none, and nothing of the kernel is known.
pub(super) fn known_users_of(path: &Path) -> Option<String> {
    let this = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names: Vec<String> = processes
        .filter(|entry| entry.file_name().to_str() != Some(&this))
        .filter(|entry| {
            let process = entry.path();
            let fds = fs::read_dir(process.join("fd")).into_iter().flatten();
            // Links are read, not followed: a disk that has died may not even be looked at.
            let mut links = ["cwd", "root", "exe"]
                .map(|name| process.join(name))
                .into_iter()
                .chain(fds.flatten().map(|fd| fd.path()));
            links.any(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(path)))
        })
        .map(|entry| {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let pid = entry.file_name();
            // It may be the process of another user.
            format!("{} (pid {})", Shown(name.trim()), pid.to_string_lossy())
        })
        .collect();
    match names.is_empty() {
        false => Some(names.join(", ")),
        true => by_the_kernel(path),
    }
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
    use std::process::{Command, Stdio};

    use super::{is_swap, users_of};

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
