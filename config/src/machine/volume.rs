//! The file or device behind a namespace.

use std::collections::HashMap;
use std::fs::{self, File, FileType, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use capstan_nvme_proto::text::Count;

use super::in_use::{self, Places};
use super::next_step::with_next_step;
use super::{Claims, Findings};
use crate::{At, DirectIo, LbaSize, Namespace, ProblemKind, Size};

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
    let mountinfo = || fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if !is_device && let Some(file_system) = of_kernel(&mountinfo(), metadata.dev()) {
        let path = path.to_owned();
        findings.problem(field, ProblemKind::KernelFile { path, file_system });
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
            let error = format!(
                "{error}, asked for its size; expected a regular file on a file system that stores data, or a block device"
            );
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
    let at = At::of(field);
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

/// File systems whose files have the state of the kernel, and no data.
const OF_KERNEL: [&str; 19] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "efivarfs",
    "fusectl",
    "mqueue",
    "nfsd",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// The file system with the device number `device`, if it is one of those. In the text of
/// `/proc/self/mountinfo` (proc(5)) its type is behind ` - `.
fn of_kernel(mountinfo: &str, device: u64) -> Option<&'static str> {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    mountinfo.lines().find_map(|line| {
        let (head, tail) = line.split_once(" - ")?;
        let is_it = head.split(' ').nth(2) == Some(number.as_str());
        let kind = tail.split(' ').next().filter(|_| is_it)?;
        OF_KERNEL.into_iter().find(|of| *of == kind)
    })
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

    /// What has another name is not gone with the process.
    #[test]
    fn a_file_with_another_name_is_found_and_named_again_as_the_message_says() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["disk.img", "other"].map(|name| folder.path().join(name));
        let keys = file(folder.path(), "disk.img", 4096);
        let _open = File::open(&path).unwrap();
        fs::hard_link(&path, &other).unwrap();
        fs::remove_file(&path).unwrap();
        let [found] = &findings(std::slice::from_ref(&keys))[..] else {
            panic!("one finding")
        };
        assert!(found.contains("has 1 other name"), "{found}");
        assert!(!found.contains("gone"), "{found}");
        let (_, find) = found.split_once("name (").unwrap();
        let (find, give) = find.split_once("): give it this one back (").unwrap();
        let run = |command: &str| {
            let output = std::process::Command::new("sh")
                .args(["-c", command])
                .output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        let name = run(find);
        assert_eq!(name.trim_end(), other.display().to_string(), "{find}");
        run(&give.trim_end_matches(')').replace("NAME", name.trim_end()));
        assert_eq!(findings(&[keys]), [] as [&str; 0]);
    }

    #[test]
    fn a_missing_file_names_the_one_that_is_plainly_meant_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path(), "disk1.img", 4096);
        for other in ["disk.img", "disk2.img"] {
            let path = folder.path().join(other).display().to_string();
            let found = findings(&[format!("path = \"{path}\"")]);
            assert!(!found[0].contains("did you mean"), "{found:?}");
        }
        let path = folder.path().join("dsik1.img");
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
    fn a_file_that_the_kernel_makes_is_named_with_its_file_system_and_what_is_needed() {
        for (path, file_system) in [
            ("/proc/version", "proc"),
            ("/proc/sys/vm/swappiness", "proc"),
            ("/sys/kernel/mm/transparent_hugepage/enabled", "sysfs"),
            ("/sys/kernel/notes", "sysfs"),
        ] {
            let found = findings(&[format!("path = \"{path}\"\nread_only = true")]);
            let [found] = &found[..] else {
                panic!("one finding of {path}: {found:?}")
            };
            let words = [
                format!("{path} is on {file_system}, whose files the kernel makes up"),
                "a namespace needs a block device (`lsblk` lists them), or a regular file"
                    .to_owned(),
            ];
            for words in words {
                assert!(found.contains(&words), "{found}");
            }
            assert!(!found.contains("os error"), "{found}");
        }
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
