//! The file under a loop device.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};

/// The file that a block device keeps its data in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Backing {
    pub(crate) path: PathBuf,
    /// The device is a partition: others may have the rest of the file.
    pub(crate) is_shared: bool,
}

/// The file under the block device `device`, a loop device or a partition of one; `None` where it
/// is neither. `devices` is `/sys/dev/block`.
pub(crate) fn backing(devices: &Path, device: u64) -> Option<Backing> {
    let place = devices.join(format!("{}:{}", major(device), minor(device)));
    let read = |from: &str| fs::read(place.join(from)).ok();
    let (bytes, is_shared) = match read("loop/backing_file") {
        Some(bytes) => (bytes, false),
        None => (read("../loop/backing_file")?, true),
    };
    let path = bytes.strip_suffix(b"\n").unwrap_or(&bytes).to_vec();
    let path = OsString::from_vec(path).into();
    Some(Backing { path, is_shared })
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
        symlink("../loop3", devices.join("7:3")).unwrap();
        symlink("../loop3/loop3p1", devices.join("259:1")).unwrap();
        symlink("../sda", devices.join("8:0")).unwrap();
        let of = |is_shared| {
            let path = "/srv/an image".into();
            Some(Backing { path, is_shared })
        };
        assert_eq!(backing(&devices, makedev(7, 3)), of(false));
        assert_eq!(backing(&devices, makedev(259, 1)), of(true));
        assert_eq!(backing(&devices, makedev(8, 0)), None);
        assert_eq!(backing(&devices, makedev(8, 1)), None);
        fs::remove_dir_all(&sys).unwrap();
    }
}
