//! What is mounted where, as the kernel tells, and which exports a folder is in by that.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

use crate::export::ExportSettings;
use crate::limits::MOUNT_POINTS;
use crate::sys;

const MOUNTINFO: &str = "/proc/thread-self/mountinfo";

/// A mount: a line of `/proc/thread-self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Field 1, as `STATX_MNT_ID` has it.
    id: u64,
    /// Its file system: field 3.
    device: Vec<u8>,
    /// The directory of the file system that is mounted: field 4.
    root: PathBuf,
    /// Where: field 5.
    pub(crate) point: PathBuf,
}

/// What is mounted, in the order of the kernel.
///
/// # Errors
/// It cannot be read.
pub(crate) fn mounts() -> io::Result<Vec<Mount>> {
    fs::read(MOUNTINFO).map(|text| parse(&text))
}

fn parse(mountinfo: &[u8]) -> Vec<Mount> {
    let mount = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = fields.nth(1)?.to_vec();
        let mut path = || {
            fields
                .next()
                .map(|field| OsString::from_vec(unescaped(field)))
        };
        Some(Mount {
            id,
            device,
            root: path()?.into(),
            point: path()?.into(),
        })
    };
    let lines = mountinfo.split(|&byte| byte == b'\n');
    lines.filter_map(mount).take(MOUNT_POINTS).collect()
}

/// The kernel writes space, tab, line feed and backslash as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, behind @ ..] = rest {
        let digits = match behind {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => Some([a, b, c]),
            _ => None,
        };
        match digits {
            Some(digits) if *first == b'\\' => {
                bytes.push(
                    digits
                        .iter()
                        .fold(0, |byte, digit| byte << 3 | (*digit - b'0')),
                );
                rest = rest.get(4..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

/// Where a directory is in its file system, by whatever mount it is found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    device: Vec<u8>,
    path: PathBuf,
}

impl Place {
    fn of(path: &Path, mounts: &[Mount]) -> Option<Self> {
        let real = path.canonicalize().ok()?;
        let mut options = File::options();
        let options = options.read(true).custom_flags(libc::O_PATH);
        let directory = options.open(&real).ok()?;
        let mount = mount_of(directory.as_fd(), mounts)?;
        let below = real.strip_prefix(&mount.point).ok()?;
        Some(Self {
            device: mount.device.clone(),
            path: mount.root.join(below),
        })
    }

    fn of_root(mount: &Mount) -> Self {
        Self {
            device: mount.device.clone(),
            path: mount.root.clone(),
        }
    }

    fn is_in(&self, other: &Self) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

fn mount_of<'m>(fd: BorrowedFd<'_>, mounts: &'m [Mount]) -> Option<&'m Mount> {
    // Not the one that is never used again: mountinfo has it not.
    let stat = sys::statx(fd, libc::STATX_MNT_ID).ok()?;
    mounts.iter().find(|mount| mount.id == stat.stx_mnt_id)
}

/// Those of `exports` that `folder` is in: by its path, by another mount of a directory that it is
/// in, and by what is mounted below an export with `crossmnt`.
pub fn around<'e>(exports: &'e [ExportSettings], folder: &Path) -> Vec<&'e ExportSettings> {
    let mounts = mounts().unwrap_or_default();
    let real = folder.canonicalize().ok();
    let place = Place::of(folder, &mounts);
    let is_around = |export: &&ExportSettings| {
        let Ok(path) = export.path.canonicalize() else {
            return false;
        };
        if real
            .as_ref()
            .is_some_and(|folder| folder.starts_with(&path))
        {
            return true;
        }
        let Some(place) = &place else {
            return false;
        };
        let below = mounts.iter().filter(|mount| {
            export.crossmnt && mount.point.starts_with(&path) && mount.point != path
        });
        Place::of(&path, &mounts).is_some_and(|root| place.is_in(&root))
            || below.map(Place::of_root).any(|root| place.is_in(&root))
    };
    exports.iter().filter(is_around).collect()
}

/// Whether `folder` is in what is mounted as `root`, which is open.
pub(crate) fn is_in_mounted(root: BorrowedFd<'_>, folder: &Path) -> bool {
    let mounts = mounts().unwrap_or_default();
    let root = mount_of(root, &mounts).map(Place::of_root);
    let place = Place::of(folder, &mounts);
    root.zip(place)
        .is_some_and(|(root, place)| place.is_in(&root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_the_kernel_writes_them() {
        let text = b"36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime master:1 - ext3 /dev/root rw\n\
                     37 35 98:0 / /c\\134d\\0 rw - tmpfs none rw\nshort\n";
        let mount = |id, root: &str, point: &str| Mount {
            id,
            device: b"98:0".into(),
            root: root.into(),
            point: point.into(),
        };
        let expected = [mount(36, "/mnt1", "/mnt/a b"), mount(37, "/", "/c\\d\\0")];
        assert_eq!(parse(text), expected);
    }
}
