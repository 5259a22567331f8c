//! What is mounted where (proc_pid_mountinfo(5)).

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the file system's device.
    pub device: (u32, u32),
    /// Where.
    pub mount_point: PathBuf,
    /// Kind of file system.
    pub fs_type: String,
    /// Mounted read-only.
    pub read_only: bool,
}

/// Every mount this process sees, in the order they were made.
///
/// # Errors
/// `/proc` is not there.
pub fn mounts() -> io::Result<Vec<Mount>> {
    let text = fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// The mount that is seen at `path`: the last one made there.
///
/// # Errors
/// `path` is empty, or `/proc` is not there.
pub fn mount_at(path: &Path) -> io::Result<Option<Mount>> {
    // A file system whose disk has died may not even be looked at.
    let path = fs::canonicalize(path).or_else(|_| std::path::absolute(path))?;
    let mounts = mounts()?;
    Ok(mounts.into_iter().rev().find(|m| m.mount_point == path))
}

/// Where file systems of these devices are mounted, the last one first.
///
/// # Errors
/// `/proc` is not there.
pub fn mounts_of(devices: &[(u32, u32)]) -> io::Result<Vec<Mount>> {
    let mounts = mounts()?;
    Ok(mounts
        .into_iter()
        .rev()
        .filter(|m| devices.contains(&m.device))
        .collect())
}

/// `36 35 98:0 /root /mnt rw,noatime shared:1 - ext4 /dev/sda rw,errors=continue`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let mount_point = unescape(fields.nth(1)?);
    let options = fields.next()?;
    let fs_type = fields.skip_while(|&field| field != b"-").nth(1)?;
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        mount_point: PathBuf::from(std::ffi::OsString::from_vec(mount_point)),
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        read_only: options.split(|&b| b == b',').any(|option| option == b"ro"),
    })
}

/// Space, tab, newline and backslash are `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{Mount, mount_at, parse, unescape};
    use std::path::{Path, PathBuf};

    #[test]
    fn a_line_is_parsed() {
        let line = b"36 35 7:3 / /mnt/a\\040b ro,noatime shared:1 master:2 - ext4 /dev/loop3 rw";
        let mount = Mount {
            device: (7, 3),
            mount_point: PathBuf::from("/mnt/a b"),
            fs_type: "ext4".to_owned(),
            read_only: true,
        };
        assert_eq!(parse(line), Some(mount));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 7:3 / /mnt rw"), None);
    }

    #[test]
    fn what_is_no_escape_stays() {
        assert_eq!(unescape(b"a\\134b\\9\\"), b"a\\b\\9\\");
    }

    #[test]
    fn proc_is_mounted_at_proc() {
        let mount = mount_at(Path::new("/proc")).unwrap().unwrap();
        assert_eq!(mount.fs_type, "proc");
        assert_eq!(mount_at(Path::new("/proc/self")).unwrap(), None);
    }
}
