//! What else on this machine has the bytes of a file: loop devices on it, and what they are used
//! for, and swap. A block device says itself that it is in use; a file does not.

use std::fs::{self, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use capstan_nvme_proto::text::Shown;

use super::Findings;
use super::volume::{mount_point_of, unescape};
use crate::ProblemKind;

/// Where it is read.
pub(super) struct Places<'a> {
    pub(super) sys_block: &'a Path,
    pub(super) proc: &'a Path,
    pub(super) dev: &'a Path,
}

impl Places<'static> {
    pub(super) fn here() -> Self {
        Self {
            sys_block: Path::new("/sys/block"),
            proc: Path::new("/proc"),
            dev: Path::new("/dev"),
        }
    }
}

/// Looks at a file that hosts are to write.
pub(super) fn check(
    field: &str,
    path: &Path,
    metadata: &Metadata,
    places: &Places<'_>,
    findings: &mut Findings,
) {
    if is_swap(metadata, places) {
        let path = path.to_owned();
        findings.problem(field, ProblemKind::Swap { path });
    }
    for name in loop_devices(path, places) {
        let device = places.dev.join(&name);
        let path = path.to_owned();
        if let Some(mount_point) = mounted(&name, places) {
            let kind = ProblemKind::MountedThrough {
                path,
                device,
                mount_point,
            };
            findings.problem(field, kind);
        } else if is_held(&device) {
            let by = held_by(&device, places);
            let kind = ProblemKind::HeldThrough { path, device, by };
            findings.problem(field, kind);
        } else {
            // It writes behind the target's back.
            findings.warning(
                field,
                format!(
                    "{} is also attached to /dev/{name}; whatever writes there corrupts what hosts \
                     see (`losetup -d /dev/{name}` detaches it)",
                    path.display()
                ),
            );
        }
    }
}

/// Whether the file is in `/proc/swaps` (proc(5)), which names it as it was called then.
fn is_swap(metadata: &Metadata, places: &Places<'_>) -> bool {
    let swaps = fs::read_to_string(places.proc.join("swaps")).unwrap_or_default();
    let is_same = |path: PathBuf| {
        fs::metadata(path)
            .is_ok_and(|other| (other.dev(), other.ino()) == (metadata.dev(), metadata.ino()))
    };
    let mut paths = swaps.lines().filter_map(|line| {
        let (path, rest) = line.split_once(' ')?;
        rest.trim_start().starts_with("file").then_some(path)
    });
    paths.any(|path| is_same(unescape(path)))
}

/// Names of the loop devices on the file, by its path: what others are on is not looked at, as that
/// may not answer.
fn loop_devices(path: &Path, places: &Places<'_>) -> Vec<String> {
    let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let devices = fs::read_dir(places.sys_block).into_iter().flatten();
    let names = devices.flatten().filter(|device| {
        let backing = fs::read_to_string(device.path().join("loop/backing_file"));
        backing.is_ok_and(|backing| Path::new(backing.trim_end_matches('\n')) == canonical)
    });
    names
        .map(|device| device.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Where a file system is mounted that is on the device, or on a partition of it.
fn mounted(name: &str, places: &Places<'_>) -> Option<PathBuf> {
    let mountinfo = fs::read_to_string(places.proc.join("self/mountinfo")).ok()?;
    let whole = places.sys_block.join(name);
    let parts = fs::read_dir(&whole).into_iter().flatten().flatten();
    let parts = parts.filter(|part| part.path().join("partition").exists());
    let all = std::iter::once(whole.clone()).chain(parts.map(|part| part.path()));
    all.filter_map(|device| {
        let number = fs::read_to_string(device.join("dev")).ok()?;
        let name = places.dev.join(device.file_name()?);
        mount_point_of(&mountinfo, number.trim()).or_else(|| mounted_from(&mountinfo, &name))
    })
    .next()
}

/// Where a file system is mounted whose source has this name: one of several devices, as of btrfs,
/// has a number of its own.
fn mounted_from(mountinfo: &str, device: &Path) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        (unescape(source.split(' ').nth(1)?) == device)
            .then(|| mount.split(' ').nth(4).map(unescape))?
    })
}

/// Whether the kernel or a program has claimed the device, or a partition of it: `O_EXCL` is
/// refused then, and claims nothing beyond this function (open(2)).
fn is_held(device: &Path) -> bool {
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_EXCL).open(device);
    opened.is_err_and(|error| error.kind() == ErrorKind::ResourceBusy)
}

/// What has the device, in words: the processes that have it or a partition of it open, of those
/// that this one may look at.
fn held_by(device: &Path, places: &Places<'_>) -> String {
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let mut processes: Vec<_> = entries(places.proc.to_owned())
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let mut open = entries(entry.path().join("fd"));
            // Links are read, not followed: what others have open may not answer.
            let is_it = open.any(|fd| {
                fs::read_link(fd.path()).is_ok_and(|path| is_it_or_partition(&path, device))
            });
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            // It may be the process of another user.
            is_it.then(|| (pid, format!("{} (pid {pid})", Shown(name.trim()))))
        })
        .collect();
    processes.sort_unstable();
    let processes: Vec<_> = processes.into_iter().map(|(_, words)| words).collect();
    // The kernel may have it besides.
    match processes.is_empty() {
        true => "another program or the kernel uses (a mounted file system, swap, RAID, LVM, or a target that serves it)"
            .to_owned(),
        false => format!(
            "another program or the kernel uses: it is open in {}",
            processes.join(", ")
        ),
    }
}

/// Whether a path is the loop device's, or that of a partition of it: with a `p` and a number
/// behind.
fn is_it_or_partition(path: &Path, device: &Path) -> bool {
    let [path, device] = [path, device].map(|path| path.as_os_str().as_bytes());
    match path.strip_prefix(device) {
        Some([]) => true,
        Some([b'p', number @ ..]) => !number.is_empty() && number.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::{Places, check, held_by};

    #[test]
    fn what_has_a_loop_device_or_a_partition_of_it_open_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places {
            sys_block: folder.path(),
            proc: folder.path(),
            dev: Path::new("/no/dev"),
        };
        let by = || held_by(Path::new("/no/dev/loop7"), &places);
        assert!(by().starts_with("another program or the kernel uses ("));
        for (pid, open) in [
            (11, "loop7"),
            (12, "loop77"),
            (9, "loop7p2"),
            (13, "loop7px"),
        ] {
            let process = folder.path().join(pid.to_string());
            fs::create_dir_all(process.join("fd")).unwrap();
            symlink(format!("/no/dev/{open}"), process.join("fd/3")).unwrap();
            fs::write(process.join("comm"), format!("of {open}\n")).unwrap();
        }
        assert_eq!(
            by(),
            "another program or the kernel uses: it is open in of loop7p2 (pid 9), of loop7 (pid 11)"
        );
    }
    use crate::machine::Findings;

    /// What is found of a file that `/dev/loop7` is on, with these `mountinfo` and `swaps`.
    fn found(mountinfo: &str, swaps: &str) -> (Vec<String>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let path = root.join("disk.img");
        fs::write(&path, "x").unwrap();
        for part in ["loop7/loop", "loop7/loop7p1", "proc/self"] {
            fs::create_dir_all(root.join(part)).unwrap();
        }
        let write = |name: &str, text: &str| fs::write(root.join(name), text).unwrap();
        write("loop7/loop/backing_file", &format!("{}\n", path.display()));
        write("loop7/dev", "7:7\n");
        write("loop7/loop7p1/dev", "259:3\n");
        write("loop7/loop7p1/partition", "1\n");
        write("proc/self/mountinfo", mountinfo);
        let text = swaps.replace("FILE", &path.display().to_string());
        write("proc/swaps", &text);
        let places = Places {
            sys_block: root,
            proc: &root.join("proc"),
            dev: Path::new("/no/dev"),
        };
        let mut findings = Findings::default();
        let metadata = fs::metadata(&path).unwrap();
        check("f", &path, &metadata, &places, &mut findings);
        let problems = findings.problems.iter().map(ToString::to_string);
        let warnings = findings.warnings.iter().map(ToString::to_string);
        (problems.collect(), warnings.collect())
    }

    #[test]
    fn a_loop_device_on_the_file_is_a_warning_until_it_is_used() {
        let (problems, warnings) = found("22 1 254:0 / / rw - ext4 /dev/root rw\n", "");
        assert!(problems.is_empty(), "{problems:?}");
        let [warning] = &warnings[..] else {
            panic!("{warnings:?}")
        };
        assert!(warning.contains("`losetup -d /dev/loop7` detaches it"));
        for mount in [
            "31 22 7:7 / /mnt/a\\040b rw - ext4 /dev/loop7 rw\n",
            "31 22 259:3 / /mnt/a\\040b rw shared:1 - ext4 /dev/loop7p1 rw\n",
            "31 22 0:44 / /mnt/a\\040b rw - btrfs /no/dev/loop7 rw\n",
        ] {
            let (problems, warnings) = found(mount, "");
            assert!(warnings.is_empty(), "{warnings:?}");
            let [problem] = &problems[..] else {
                panic!("{mount}: {problems:?}")
            };
            for word in ["/no/dev/loop7, which is mounted at /mnt/a b", "read_only"] {
                assert!(problem.contains(word), "{problem}");
            }
        }
    }

    #[test]
    fn a_file_that_is_swap_is_refused() {
        let head = "Filename\t\t\t\tType\t\tSize\n";
        let line = "FILE   file\t\t1020\t\t0\t\t-2\n";
        let (problems, _) = found("", &format!("{head}{line}"));
        assert!(
            problems[0].contains("is swap of this machine"),
            "{problems:?}"
        );
        let (problems, _) = found("", &format!("{head}/dev/sda2   partition\t1020\n"));
        assert!(problems.is_empty(), "{problems:?}");
    }
}
