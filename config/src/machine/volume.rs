//! The file or device behind a namespace.

use std::collections::HashMap;
use std::fs::{self, File, FileType, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use capstan_nvme_proto::text::Count;

use super::in_use::{self, Places};
use super::{Claims, Findings};
use crate::{At, DirectIo, LbaSize, Namespace, ProblemKind, Size, shown, suggest};

/// What a path leads to: a device by its number, a file by its inode. Two paths with one identity
/// are one volume.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Identity {
    Device(u64),
    File { device: u64, inode: u64 },
}

/// Checks that `path` can serve `namespace`.
pub(super) fn check(
    field: &str,
    path: &Path,
    namespace: &Namespace,
    claims: Claims,
    first_use: &mut HashMap<Identity, At>,
    findings: &mut Findings,
) {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => {
            let error = with_next_step(&error, path, None);
            findings.problem(
                field,
                ProblemKind::Open {
                    path: path.to_owned(),
                    error,
                },
            );
            return;
        }
    };
    let is_device = metadata.file_type().is_block_device();
    if !is_device && !metadata.is_file() {
        let found = type_name(metadata.file_type());
        findings.problem(
            field,
            ProblemKind::FileType {
                path: path.to_owned(),
                found,
            },
        );
        return;
    }
    check_used_once(field, path, &metadata, first_use, findings);

    let mut file = match open(path, namespace, is_device) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            report_busy(field, path, metadata.rdev(), claims, findings);
            return;
        }
        Err(error) => {
            let error = with_next_step(&error, path, Some(&metadata));
            findings.problem(
                field,
                ProblemKind::Open {
                    path: path.to_owned(),
                    error,
                },
            );
            return;
        }
    };
    match file.seek(SeekFrom::End(0)) {
        Ok(size_bytes) => check_size(field, path, size_bytes, namespace.lba, findings),
        Err(error) => {
            let error = error.to_string();
            findings.problem(
                field,
                ProblemKind::Open {
                    path: path.to_owned(),
                    error,
                },
            );
        }
    }
    if namespace.direct == DirectIo::Required {
        check_direct(field, path, findings);
    }
    if !is_device && !namespace.read_only {
        if claims == Claims::Told {
            check_lock(field, path, &file, findings);
        }
        in_use::check(field, path, &metadata, &Places::here(), findings);
    }
}

fn check_used_once(
    field: &str,
    path: &Path,
    metadata: &Metadata,
    first_use: &mut HashMap<Identity, At>,
    findings: &mut Findings,
) {
    let identity = if metadata.file_type().is_block_device() {
        Identity::Device(metadata.rdev())
    } else {
        Identity::File {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    };
    let at = At {
        field: field.to_owned(),
        line: None,
    };
    if let Some(first) = first_use.get(&identity) {
        let value = format!("what {} leads to", path.display());
        findings.problem(
            field,
            ProblemKind::Duplicate {
                value,
                first: first.clone(),
            },
        );
    } else {
        first_use.insert(identity, at);
    }
}

/// Opens as the target will. `O_EXCL` on a block device fails while the kernel uses it (mounted,
/// part of a RAID or LVM volume, swap) and claims nothing beyond this function (open(2)).
fn open(path: &Path, namespace: &Namespace, is_device: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(!namespace.read_only);
    if is_device && !namespace.read_only {
        options.custom_flags(libc::O_EXCL);
    }
    options.open(path)
}

fn check_size(
    field: &str,
    path: &Path,
    size_bytes: u64,
    lba: Option<LbaSize>,
    findings: &mut Findings,
) {
    let lba_bytes = u64::from(lba.unwrap_or(LbaSize::B512).bytes());
    if size_bytes < lba_bytes {
        let path = path.to_owned();
        findings.problem(field, ProblemKind::Empty { path, size_bytes });
        return;
    }
    let rest_bytes = size_bytes % lba_bytes;
    // Where the LBA size is left open it is known when the file is opened.
    if rest_bytes != 0 && lba.is_some() {
        findings.warning(
            field,
            format!(
                "{} is {}, which leaves {} at its end, no whole LBA of {lba_bytes} bytes, out of reach of hosts",
                path.display(),
                Size(size_bytes),
                Count(rest_bytes, "byte"),
            ),
        );
    }
}

fn check_direct(field: &str, path: &Path, findings: &mut Findings) {
    if let Err(error) = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
    {
        findings.problem(
            format!("{field} direct"),
            ProblemKind::NotAllowed {
                value: "true".to_owned(),
                allowed: format!(
                    "false; the file system of {} has no direct I/O: {error}",
                    path.display()
                ),
            },
        );
    }
}

fn report_busy(field: &str, path: &Path, device: u64, claims: Claims, findings: &mut Findings) {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    if let Some(mount_point) = mount_point_of(&mountinfo, &number) {
        let path = path.to_owned();
        findings.problem(field, ProblemKind::Mounted { path, mount_point });
    } else if claims == Claims::Told {
        findings.warning(
            field,
            format!(
                "{} is in use by another program or the kernel (a mounted partition, swap, RAID, \
                 LVM, or a target that is already serving it); `lsblk` shows more",
                path.display()
            ),
        );
    }
}

/// The lock that a target takes (flock(2)), given back with `file` at once: a target that starts
/// meanwhile tries for longer.
fn check_lock(field: &str, path: &Path, file: &File, findings: &mut Findings) {
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        findings.warning(
            field,
            format!(
                "{} is locked by another program, such as a target that is already serving it: \
                 `serve` cannot open it while it is; `lslocks` shows more",
                path.display()
            ),
        );
    }
}

/// Where the device is mounted, from the text of `/proc/self/mountinfo` (proc(5)): the third field
/// is `major:minor`, the fifth the mount point with octal escapes.
pub(super) fn mount_point_of(mountinfo: &str, number: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split(' ');
        (fields.nth(2)? == number)
            .then(|| fields.nth(1))
            .flatten()
            .map(unescape)
    })
}

/// `\040` and its like back to characters.
pub(super) fn unescape(text: &str) -> PathBuf {
    PathBuf::from(
        text.replace("\\040", " ")
            .replace("\\011", "\t")
            .replace("\\012", "\n")
            .replace("\\134", "\\"),
    )
}

/// What the system said, and what to do about it.
pub(crate) fn with_next_step(
    error: &io::Error,
    path: &Path,
    metadata: Option<&Metadata>,
) -> String {
    match (error.kind(), metadata) {
        (ErrorKind::NotFound, _) if let Some(words) = leads_nowhere(path) => {
            format!("{error}; {words}")
        }
        (ErrorKind::NotFound, _) => match (deleted_and_open(path), nearest_sibling(path)) {
            (Some((pid, open)), _) => format!(
                "{error}; it was deleted, process {pid} still has it open, and with the end of that it is gone: copy it \
                 before, while nothing writes to it (cp --sparse=always {} FILE)",
                open.display()
            ),
            (None, Some(nearest)) => format!("{error}; did you mean {}?", nearest.display()),
            (None, None) => format!("{error}; {}", how_to_have_it(path)),
        },
        // Not the file's mode: `ErrorKind` does not tell the two apart.
        (ErrorKind::PermissionDenied, _) if error.raw_os_error() == Some(libc::EPERM) => format!(
            "{error}; it is immutable or append-only (`lsattr {path}` shows i or a): `chattr -i -a \
             {path}`, or export it with `read_only = true`",
            path = path.display(),
        ),
        (ErrorKind::PermissionDenied, Some(metadata)) => {
            let mode = metadata.mode() & 0o7777;
            // No more than what would do.
            let ways = [
                Some("run the target as that user"),
                (mode & GROUP_MAY_WRITE == GROUP_MAY_WRITE)
                    .then_some("put its user into that group"),
                File::open(path)
                    .is_ok()
                    .then_some("export it with `read_only = true`"),
            ];
            let ways: Vec<_> = ways.into_iter().flatten().collect();
            format!(
                "{error}; it belongs to UID {} and GID {} with mode {mode:04o}: {}",
                metadata.uid(),
                metadata.gid(),
                ways.join(", or "),
            )
        }
        (ErrorKind::PermissionDenied, None) => match first_closed(path) {
            Some((folder, of)) => format!(
                "{error}: this user may not look into {}, which belongs to UID {} and GID {} with mode {:04o}: let it, \
                 or run the target as a user that may",
                folder.display(),
                of.uid(),
                of.gid(),
                of.mode() & 0o7777,
            ),
            None => error.to_string(),
        },
        (ErrorKind::ReadOnlyFilesystem, _) => format!(
            "{error}; its file system is mounted read-only here (`findmnt -T {path}`; in the unit: \
             ReadWritePaths=): mount it for writing, or export it with `read_only = true`",
            path = path.display(),
        ),
        _ if error.raw_os_error() == Some(libc::ELOOP) => format!(
            "{error}; a symbolic link of it leads back to itself: `namei --long {}` shows which",
            path.display()
        ),
        (ErrorKind::InvalidFilename, _) => {
            format!("{error}; expected at most 255 bytes between two slashes, and 4095 in all")
        }
        (ErrorKind::NotADirectory, _) => match first_no_folder(path) {
            Some(file) => format!(
                "{error}: {} is none; expected a folder there",
                file.display()
            ),
            None => error.to_string(),
        },
        _ if matches!(
            error.raw_os_error(),
            Some(libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM)
        ) =>
        {
            format!(
                "{error}; there is no device or medium behind it now: `lsblk` lists those that are"
            )
        }
        _ => error.to_string(),
    }
}

/// A process that has the deleted file `path` open, and where (`proc(5)`, `/proc/PID/fd`): a target
/// that goes on with it has the only copy. Those of other users are seen by root alone.
#[must_use]
pub fn deleted_and_open(path: &Path) -> Option<(u32, PathBuf)> {
    let folder = path.parent()?.canonicalize().ok()?;
    let mut deleted = folder.join(path.file_name()?).into_os_string();
    deleted.push(" (deleted)");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let is_it = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == deleted)
        };
        Some((pid, open.into_iter().find(is_it)?.path()))
    })
    .next()
}

/// What to do where nothing has the name of `path`, nor one like it.
fn how_to_have_it(path: &Path) -> String {
    if path.starts_with("/dev") {
        return "`lsblk` lists the devices there are".to_owned();
    }
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    match above.into_iter().rev().find(|folder| !folder.exists()) {
        Some(folder) => format!(
            "there is no folder {}: make it, or mount what has it",
            folder.display()
        ),
        None => {
            let path = path.display();
            format!("`truncate -s 1G {path}` makes a file of 1 GiB")
        }
    }
}

/// Bits of a mode: the group may read and write.
const GROUP_MAY_WRITE: u32 = 0o060;

/// The first folder on the way to `path` that this user may not look into.
fn first_closed(path: &Path) -> Option<(PathBuf, Metadata)> {
    let on_the_way: Vec<&Path> = path.ancestors().collect();
    let mut from_root = on_the_way.into_iter().rev();
    let refused = from_root.find(|path| {
        let looked = fs::metadata(path);
        looked.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    })?;
    let folder = refused.parent()?;
    Some((folder.to_owned(), fs::metadata(folder).ok()?))
}

/// What is in the way of `path`, and not a folder.
fn first_no_folder(path: &Path) -> Option<&Path> {
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    let mut from_root = above.into_iter().rev();
    from_root.find(|part| part.metadata().is_ok_and(|metadata| !metadata.is_dir()))
}

/// That `path` is a link to what is not there, in words.
pub(crate) fn leads_nowhere(path: &Path) -> Option<String> {
    let to = fs::read_link(path).ok()?;
    Some(format!(
        "it is a link to {}, and nothing is there: mend the link, or name the file itself",
        shown::line(&to.display().to_string())
    ))
}

/// The entry of the same folder whose name is nearest to that of `path`.
pub(crate) fn nearest_sibling(path: &Path) -> Option<PathBuf> {
    let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
    let names: Vec<String> = fs::read_dir(folder)
        .ok()?
        .flatten()
        .take(4096)
        .filter_map(|entry| entry.file_name().into_string().ok())
        // A link that leads nowhere is there itself.
        .filter(|entry| entry != name)
        .collect();
    suggest::nearest(name, names.iter().map(String::as_str)).map(|nearest| folder.join(nearest))
}

pub(crate) fn type_name(file_type: FileType) -> &'static str {
    if file_type.is_dir() {
        "folder"
    } else if file_type.is_char_device() {
        "character device"
    } else if file_type.is_socket() {
        "socket"
    } else if file_type.is_fifo() {
        "named pipe"
    } else {
        "special file"
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::Config;

    /// Problems and warnings of namespaces with these keys.
    fn findings(namespaces: &[String]) -> Vec<String> {
        let namespaces: String = namespaces
            .iter()
            .map(|keys| format!("[[subsystem.namespace]]\n{keys}\n"))
            .collect();
        let config = Config::from_toml(&format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
             nqn = \"nqn.2026-11.com.example:a\"\nallow_any_host = true\n{namespaces}"
        ))
        .unwrap();
        match config.check_machine() {
            Ok(warnings) => warnings.iter().map(ToString::to_string).collect(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    fn file(folder: &Path, name: &str, size_bytes: u64) -> String {
        let path = folder.join(name);
        File::create(&path).unwrap().set_len(size_bytes).unwrap();
        format!("path = {:?}", path.display().to_string())
    }

    #[test]
    fn what_the_system_refuses_comes_with_what_is_behind_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = fs::metadata(file.path()).unwrap();
        let path = file.path().display();
        let told = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            with_next_step(&error, file.path(), Some(&metadata))
        };
        assert_eq!(
            told(libc::EPERM),
            format!(
                "Operation not permitted (os error 1); it is immutable or append-only (`lsattr \
                 {path}` shows i or a): `chattr -i -a {path}`, or export it with `read_only = true`"
            )
        );
        let long = told(libc::ENAMETOOLONG);
        assert!(long.contains("at most 255 bytes"), "{long}");
        // That one is the mode's.
        assert!(told(libc::EACCES).contains("it belongs to UID"));
        let read_only = told(libc::EROFS);
        assert!(
            read_only.contains(&format!("`findmnt -T {path}`")),
            "{read_only}"
        );
        assert!(read_only.contains("ReadWritePaths="), "{read_only}");
        for errno in [libc::ENXIO, libc::ENODEV, libc::ENOMEDIUM] {
            assert!(told(errno).contains("`lsblk`"), "{}", told(errno));
        }
    }

    #[test]
    fn a_file_that_another_target_has_is_a_warning_and_the_check_leaves_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let keys = [file(folder.path(), "disk.img", 1 << 20)];
        let other = File::open(folder.path().join("disk.img")).unwrap();
        other.try_lock().unwrap();
        let found = findings(&keys);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("is locked by another program"),
            "{found:?}"
        );
        // A read-only export takes no lock.
        let read_only = format!("{}\nread_only = true", keys[0]);
        assert_eq!(findings(&[read_only]), [] as [&str; 0]);
        other.unlock().unwrap();
        assert_eq!(findings(&keys), [] as [&str; 0]);
        other.try_lock().unwrap();
    }

    #[test]
    fn a_file_that_can_be_opened_passes() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            findings(&[file(folder.path(), "disk.img", 1 << 20)]),
            [] as [&str; 0]
        );
    }

    /// A running target has the only copy of what was deleted under it.
    #[test]
    fn a_deleted_file_names_the_process_that_still_has_it() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path(), "disk1.img", 4096);
        let path = folder.path().join("disk.img");
        let open = File::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let [found] = &findings(&[format!("path = \"{}\"", path.display())])[..] else {
            panic!("one finding")
        };
        let copy = format!("/proc/{}/fd/{} FILE", std::process::id(), open.as_raw_fd());
        assert!(found.contains(&copy), "{found}");
        assert!(!found.contains("did you mean"), "{found}");
    }

    #[test]
    fn a_missing_file_names_its_nearest_sibling() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path(), "disk1.img", 4096);
        let path = folder.path().join("disk.img");
        let path = path.display();
        assert_eq!(
            findings(&[format!("path = \"{path}\"")]),
            [format!(
                "subsystem[0] nsid 1 path: cannot open {path}: No such file or directory (os error \
                 2); did you mean {}?",
                folder.path().join("disk1.img").display()
            )]
        );
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named_and_is_not_meant_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        std::os::unix::fs::symlink("absent.img", &path).unwrap();
        let found = findings(&[format!("path = \"{}\"", path.display())]);
        assert!(
            found[0].contains("it is a link to absent.img, and nothing is there"),
            "{found:?}"
        );
        assert!(!found[0].contains("did you mean"), "{found:?}");
    }

    #[test]
    fn what_is_neither_file_nor_block_device_is_named() {
        assert_eq!(
            findings(&["path = \"/proc\"".into(), "path = \"/dev/null\"".into()]),
            [
                "subsystem[0] nsid 1 path: /proc is a folder; a namespace needs a regular file or a \
                 block device",
                "subsystem[0] nsid 2 path: /dev/null is a character device; a namespace needs a \
                 regular file or a block device"
            ]
        );
    }

    #[test]
    fn an_empty_file_and_a_partial_lba() {
        let folder = tempfile::tempdir().unwrap();
        let empty = findings(&[file(folder.path(), "empty", 0)]);
        assert!(
            empty[0].contains("is 0 bytes; a namespace needs at least one LBA"),
            "{empty:?}"
        );
        let odd = findings(&[file(folder.path(), "odd", 5000) + "\nlba = 4096"]);
        assert!(
            odd[0].contains(
                "leaves 904 bytes at its end, no whole LBA of 4096 bytes, out of reach of hosts"
            ),
            "{odd:?}"
        );
    }

    #[test]
    fn two_paths_to_one_file_are_one_volume() {
        let folder = tempfile::tempdir().unwrap();
        let first = file(folder.path(), "a", 4096);
        std::os::unix::fs::symlink(folder.path().join("a"), folder.path().join("b")).unwrap();
        let second = folder.path().join("b");
        let second = second.display();
        assert_eq!(
            findings(&[first, format!("path = \"{second}\"")]),
            [format!(
                "subsystem[0] nsid 2 path: what {second} leads to is already used at subsystem[0] \
                 nsid 1 path"
            )]
        );
    }

    #[test]
    fn a_mount_point_is_found_by_device_number() {
        let mountinfo = "22 1 254:0 / / rw - ext4 /dev/root rw\n\
                         31 22 7:3 / /mnt/a\\040b rw,relatime shared:1 - ext4 /dev/loop3 rw\n";
        assert_eq!(mount_point_of(mountinfo, "7:3"), Some("/mnt/a b".into()));
        assert_eq!(mount_point_of(mountinfo, "7:4"), None);
    }
}
