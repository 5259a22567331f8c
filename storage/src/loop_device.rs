//! What is under a loop device.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process;

use nix::sys::stat::{major, minor};

use crate::error::LockHolder;
use crate::sys;

/// Loop devices on files on loop devices are followed so deep.
pub(crate) const DEPTH_MAX: u32 = 8;

/// The file or block device that a loop device keeps its data in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Backing {
    /// What it was called when it was attached, perhaps in another mount namespace. ` (deleted)` is
    /// behind the name of what has none any more.
    pub(crate) path: PathBuf,
    /// The device is a partition: others may have the rest of it.
    pub(crate) is_shared: bool,
    /// Where the device begins in it, in bytes.
    pub(crate) offset: u64,
    /// What it is, where the device could be asked.
    pub(crate) what: Option<What>,
}

/// A file or block device by its numbers, which do not change with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    File { device: u64, inode: u64 },
    Device(u64),
}

/// What is under the block device `device`, a loop device or a partition of one; `None` where it
/// is neither. `devices` is `/sys/dev/block`.
pub(crate) fn backing(devices: &Path, device: u64) -> Option<Backing> {
    let place = devices.join(format!("{}:{}", major(device), minor(device)));
    let (whole, is_shared) = match place.join("loop").is_dir() {
        true => (place, false),
        false => (place.join(".."), true),
    };
    let bytes = fs::read(whole.join("loop/backing_file")).ok()?;
    let path = bytes.strip_suffix(b"\n").unwrap_or(&bytes).to_vec();
    let told = fs::read_to_string(whole.join("loop/offset"));
    let told = told.ok().and_then(|text| text.trim().parse().ok());
    let asked = ask(&whole).ok();
    Some(Backing {
        path: OsString::from_vec(path).into(),
        is_shared,
        offset: asked.map(|(offset, _)| offset).or(told).unwrap_or(0),
        what: asked.map(|(_, what)| what),
    })
}

/// The loop device through which the holder of the lock of a file has it: one on the file that the
/// holder has open, or a partition of that. `None` where the kernel does not tell the holder.
pub(crate) fn through(file: &fs::Metadata, holder: &LockHolder) -> Option<PathBuf> {
    let pid = match holder {
        LockHolder::Own => Some(process::id()),
        LockHolder::Process { pid, .. } | LockHolder::Ended { pid } => Some(*pid),
        LockHolder::Unknown => None,
    };
    let open: Vec<PathBuf> = fs::read_dir(format!("/proc/{}/fd", pid?))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok())
        .collect();
    let what = What::of(file);
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut on_it = devices.filter_map(|device| {
        let place = device.path();
        let is_on_it = place.join("loop").is_dir() && ask(&place).is_ok_and(|(_, on)| on == what);
        is_on_it.then(|| Path::new("/dev").join(device.file_name()))
    });
    on_it.find_map(|device| {
        let is_it = |path: &&PathBuf| **path == device || is_partition(path, &device);
        open.iter().find(is_it).cloned()
    })
}

/// Whether a path is called as a partition of the loop device is: with a `p` and a number behind.
fn is_partition(path: &Path, device: &Path) -> bool {
    let [path, device] = [path, device].map(|path| path.as_os_str().as_bytes());
    let number = path
        .strip_prefix(device)
        .and_then(|rest| rest.strip_prefix(b"p"));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

impl What {
    /// That of a path with this state.
    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        match metadata.file_type().is_block_device() {
            true => Self::Device(metadata.rdev()),
            false => Self::File {
                device: metadata.dev(),
                inode: metadata.ino(),
            },
        }
    }
}

impl Backing {
    /// The file or device, where its path still leads to it from here.
    pub(crate) fn metadata(&self) -> Option<fs::Metadata> {
        let metadata = fs::metadata(&self.path).ok()?;
        let is_it = match self.what {
            Some(What::File { device, inode }) => {
                (metadata.dev(), metadata.ino()) == (device, inode)
            }
            Some(What::Device(device)) => {
                metadata.file_type().is_block_device() && metadata.rdev() == device
            }
            None => true,
        };
        is_it.then_some(metadata)
    }
}

/// Offset and backing of the loop device at `place` in sysfs.
fn ask(place: &Path) -> io::Result<(u64, What)> {
    let number = fs::read_to_string(place.join("dev"))?;
    let name = place.canonicalize()?;
    let name = name.file_name().ok_or(io::ErrorKind::NotFound)?;
    let device = File::open(Path::new("/dev").join(name))?;
    let metadata = device.metadata()?;
    let opened = format!("{}:{}", major(metadata.rdev()), minor(metadata.rdev()));
    if !metadata.file_type().is_block_device() || opened != number.trim() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let status = sys::loop_status(&device)?;
    let what = match status.rdevice {
        0 => What::File {
            device: status.device,
            inode: status.inode,
        },
        device => What::Device(device),
    };
    Ok((status.offset, what))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::{fs, process};

    use nix::sys::stat::makedev;

    use super::{Backing, backing};

    #[test]
    fn the_file_under_a_loop_device_and_its_partitions_is_found() {
        let sys = std::env::temp_dir().join(format!("capstan-loop-{}", process::id()));
        let devices = sys.join("dev");
        fs::create_dir_all(sys.join("loop3/loop")).unwrap();
        fs::create_dir_all(sys.join("loop3/loop3p1")).unwrap();
        fs::create_dir_all(sys.join("sda")).unwrap();
        fs::create_dir_all(&devices).unwrap();
        fs::write(sys.join("loop3/loop/backing_file"), "/srv/an image\n").unwrap();
        fs::write(sys.join("loop3/loop/offset"), "512\n").unwrap();
        symlink("../loop3", devices.join("7:3")).unwrap();
        symlink("../loop3/loop3p1", devices.join("259:1")).unwrap();
        symlink("../sda", devices.join("8:0")).unwrap();
        let of = |is_shared| {
            Some(Backing {
                path: "/srv/an image".into(),
                is_shared,
                offset: 512,
                what: None,
            })
        };
        assert_eq!(backing(&devices, makedev(7, 3)), of(false));
        assert_eq!(backing(&devices, makedev(259, 1)), of(true));
        assert_eq!(backing(&devices, makedev(8, 0)), None);
        assert_eq!(backing(&devices, makedev(8, 1)), None);
        fs::remove_dir_all(&sys).unwrap();
    }
}
