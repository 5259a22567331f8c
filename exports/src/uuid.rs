//! The UUID of a file system: what tells it from others after a restart.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::libc;

use crate::handle::FileSystemId;
use crate::sys;

/// Where udev names block devices by the UUIDs of what is on them.
const BY_UUID: &str = "/dev/disk/by-uuid";
/// Most names there that are looked at: as many devices as a large machine has.
const NAMES_MAX: usize = 16 << 10;

/// The UUID of the file system that `fd` is on: as the kernel tells it, or, where it is older than
/// 6.9, as udev has found it on its device. `None` where neither knows one.
pub(crate) fn file_system_id(fd: BorrowedFd<'_>) -> Option<FileSystemId> {
    if let Some(uuid) = sys::file_system_uuid(fd) {
        return Some(FileSystemId(uuid));
    }
    let stat = sys::statx(fd, 0).ok()?;
    of_device((stat.stx_dev_major, stat.stx_dev_minor), Path::new(BY_UUID))
}

fn of_device(device: (u32, u32), folder: &Path) -> Option<FileSystemId> {
    let names = fs::read_dir(folder).ok()?.take(NAMES_MAX).flatten();
    let mut uuids = names.filter_map(|name| {
        let found = fs::metadata(name.path()).ok()?.rdev();
        let is_it = (libc::major(found), libc::minor(found)) == device;
        // Others than those of Linux have shorter ids, and no file handles.
        let uuid = uuid::Uuid::parse_str(name.file_name().to_str()?).ok()?;
        (is_it && !uuid.is_nil()).then(|| FileSystemId(uuid.into_bytes()))
    });
    uuids.next()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_device_is_known_by_the_uuid_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str, device| symlink(device, folder.path().join(name)).unwrap();
        name("0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1", "/dev/zero");
        name("7e57ab1e-0000-4000-8000-000000000001", "/dev/null");
        name("ABCD-1234", "/dev/full");
        name("7e57ab1e-0000-4000-8000-000000000002", "/no/such/device");
        // Numbers of mem(4).
        let of =
            |minor| of_device((1, minor), folder.path()).map(|id| uuid::Uuid::from_bytes(id.0));
        let expected = |text| Some(uuid::Uuid::parse_str(text).unwrap());
        assert_eq!(of(3), expected("7e57ab1e-0000-4000-8000-000000000001"));
        assert_eq!(of(5), expected("0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1"));
        assert_eq!(of(7), None, "no UUID");
        assert_eq!(of(8), None, "none of these");
        assert_eq!(of_device((1, 3), Path::new("/no/such/folder")), None);
    }
}
