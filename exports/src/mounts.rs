//! File systems that are mounted below an export with `crossmnt`, found when it is exported: their
//! handles have to be known after a restart before anybody has looked them up.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use crate::export::{Export, Exports};
use crate::limits::MOUNT_POINTS;

/// Mount points in the order of `/proc/thread-self/mountinfo` (proc_pid_mountinfo(5), field 5).
fn mount_points(mountinfo: &[u8]) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    mountinfo
        .split(|&byte| byte == b'\n')
        .filter_map(|line| line.split(|&byte| byte == b' ').nth(4))
        .take(MOUNT_POINTS)
        .map(|field| std::ffi::OsString::from_vec(unescaped(field)).into())
        .collect()
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

/// Makes exports of what is mounted below `export`. The outer of two comes first in the list.
pub(crate) fn adopt_below(exports: &Exports, export: &Arc<Export>) {
    let path = &export.settings().path;
    let mountinfo = match fs::read("/proc/thread-self/mountinfo") {
        Ok(read) => read,
        Err(error) => {
            tracing::warn!(
                "handles below mount points in {} are stale until they are looked up again: \
                 /proc/thread-self/mountinfo: {error}",
                path.display()
            );
            return;
        }
    };
    let Ok(real) = fs::canonicalize(path) else {
        return;
    };
    let mut above = vec![(PathBuf::new(), export.clone())];
    for point in mount_points(&mountinfo) {
        let Ok(below) = point.strip_prefix(&real) else {
            continue;
        };
        if below.as_os_str().is_empty() {
            continue;
        }
        let Some((_, outer)) = above
            .iter()
            .rev()
            .find(|(prefix, _)| below.starts_with(prefix))
        else {
            continue;
        };
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH);
        let Ok(fd) = openat2(export.root(), below, how) else {
            continue;
        };
        if let Some(adopted) = exports.mounted_in(outer, fd.as_fd()) {
            above.push((below.to_owned(), adopted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_as_the_kernel_writes_them() {
        let text = b"36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime master:1 - ext3 /dev/root rw\n\
                     37 35 98:0 / /c\\134d\\0 rw - tmpfs none rw\nshort\n";
        let points = mount_points(text);
        assert_eq!(
            points,
            [PathBuf::from("/mnt/a b"), PathBuf::from("/c\\d\\0")]
        );
    }
}
