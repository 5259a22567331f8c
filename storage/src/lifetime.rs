//! For how long the content of a file or device lasts.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::sys::stat::{major, minor};
use nix::sys::statfs::{self, FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC};

use crate::loop_device::{self, What};
use crate::mounts;

/// `linux/magic.h`.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// For how long the content of a [`Store`](crate::Store) lasts, flushed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lifetime {
    /// As long as the store: in its memory, or on a memory device (a RAM disk, zram), which any
    /// program may reset once it is closed, and which nothing then distinguishes from before.
    Store,
    /// Until the machine starts anew: on tmpfs, or on a loop device on it.
    Boot,
    /// As far as is known here, for good.
    Lasting,
}

impl Lifetime {
    /// That of what a path leads to.
    ///
    /// # Errors
    /// It leads to nothing.
    pub fn at(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        if metadata.file_type().is_block_device() {
            return Ok(of_device(Path::new("/sys/dev/block"), metadata.rdev()));
        }
        let system = statfs::statfs(path)?;
        Ok(of_file_system(Some(system.filesystem_type())))
    }
}

/// That of an open file or device.
pub(crate) fn of(file: &File, metadata: &Metadata) -> Lifetime {
    if metadata.file_type().is_block_device() {
        return of_device(Path::new("/sys/dev/block"), metadata.rdev());
    }
    of_file_system(statfs::fstatfs(file).ok().map(|of| of.filesystem_type()))
}

fn of_file_system(kind: Option<FsType>) -> Lifetime {
    match kind {
        Some(TMPFS_MAGIC | RAMFS_MAGIC | HUGETLBFS_MAGIC) => Lifetime::Boot,
        Some(_) | None => Lifetime::Lasting,
    }
}

fn of_device(devices: &Path, device: u64) -> Lifetime {
    if let Some(backing) = loop_device::backing(devices, device) {
        return match (backing.what, backing.metadata()) {
            (Some(What::Device(below)), _) if below != device => of_device(devices, below),
            (Some(What::File { device, .. }), None) => of_file_system(kind_at(device)),
            _ => {
                let below = statfs::statfs(&backing.path);
                of_file_system(below.ok().map(|of| of.filesystem_type()))
            }
        };
    }
    let place = devices.join(format!("{}:{}", major(device), minor(device)));
    let Ok(link) = fs::read_link(place) else {
        return Lifetime::Lasting;
    };
    let name = link.file_name().and_then(|name| name.to_str());
    let is_memory = ["ram", "zram", "nullb"].iter().any(|kind| {
        let number = name.and_then(|name| name.strip_prefix(kind));
        number.is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()))
    });
    if is_memory {
        Lifetime::Store
    } else {
        Lifetime::Lasting
    }
}

/// That of a file system that is mounted here.
fn kind_at(device: u64) -> Option<FsType> {
    let point = mounts::point_of(device)?;
    Some(statfs::statfs(&point).ok()?.filesystem_type())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::{fs, process};

    use nix::sys::stat::makedev;
    use nix::sys::statfs::{EXT4_SUPER_MAGIC, TMPFS_MAGIC};

    use super::{Lifetime, of_device, of_file_system};

    #[test]
    fn memory_under_another_name_ends_with_the_boot_or_before() {
        assert_eq!(of_file_system(Some(TMPFS_MAGIC)), Lifetime::Boot);
        assert_eq!(of_file_system(Some(EXT4_SUPER_MAGIC)), Lifetime::Lasting);
        let devices = std::env::temp_dir().join(format!("capstan-lifetime-{}", process::id()));
        fs::create_dir_all(&devices).unwrap();
        for (at, (name, lifetime)) in [
            ("ram0", Lifetime::Store),
            ("zram12", Lifetime::Store),
            ("nullb0", Lifetime::Store),
            ("nvme0n1", Lifetime::Lasting),
            ("rampart", Lifetime::Lasting),
            ("sda", Lifetime::Lasting),
        ]
        .into_iter()
        .enumerate()
        {
            let link = devices.join(format!("252:{at}"));
            symlink(format!("../../devices/virtual/block/{name}"), link).unwrap();
            let device = makedev(252, at as u64);
            assert_eq!(of_device(&devices, device), lifetime, "{name}");
        }
        assert_eq!(of_device(&devices, makedev(8, 0)), Lifetime::Lasting);
        fs::remove_dir_all(&devices).unwrap();
    }
}
