//! What is mounted, from `/proc/self/mountinfo` (proc(5)).

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};

/// Where a file system with this device number is mounted.
pub(crate) fn point_of(device: u64) -> Option<PathBuf> {
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    let number = format!("{}:{}", major(device), minor(device));
    lines(&mounts).find_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        (fields.nth(2)? == number.as_bytes()).then(|| fields.nth(1).map(unescaped))?
    })
}

/// What the file system that has `path` was mounted from, a block device most often.
pub(crate) fn source_of(path: &Path) -> Option<PathBuf> {
    let mut options = File::options();
    let file = options.read(true).custom_flags(OFlag::O_PATH.bits());
    let file = file.open(path).ok()?;
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let mount = told.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    source(&mounts, mount.trim())
}

fn source(mounts: &[u8], mount: &str) -> Option<PathBuf> {
    let of = |line: &&[u8]| line.split(|&byte| byte == b' ').next() == Some(mount.as_bytes());
    let line = lines(mounts).find(of)?;
    // The fields in front of the hyphen are as many as there are options.
    let mut fields = line.split(|&byte| byte == b' ');
    fields.find(|&field| field == b"-")?;
    fields.nth(1).map(unescaped)
}

fn lines(mounts: &[u8]) -> impl Iterator<Item = &[u8]> {
    mounts.split(|&byte| byte == b'\n')
}

/// `\040` and its like back to bytes.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::path::{Path, PathBuf};

    use super::{point_of, source, unescaped};

    #[test]
    fn a_mount_is_found_by_its_number_and_its_source_behind_the_options() {
        let mounts = b"25 1 8:1 / / rw shared:1 master:2 - ext4 /dev/sda1 rw\n\
                       26 25 0:40 /@home /home rw - btrfs /dev/a\\040disk rw,subvol=/@home\n";
        assert_eq!(source(mounts, "25"), Some(PathBuf::from("/dev/sda1")));
        assert_eq!(source(mounts, "26"), Some(PathBuf::from("/dev/a disk")));
        assert_eq!(source(mounts, "2"), None);
        assert_eq!(unescaped(b"a\\134\\0"), Path::new("a\\\\0"));
        let root = std::fs::metadata("/proc").unwrap().dev();
        assert!(point_of(root).is_some_and(|point| point.starts_with("/")));
        assert_eq!(point_of(u64::MAX), None);
    }
}
