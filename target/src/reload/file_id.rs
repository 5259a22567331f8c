//! What a path leads to, whatever it is called.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use capstan_config::{Backing, Namespace};

/// A device by its number, or a file by its device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FileId {
    Device(u64),
    File(u64, u64),
}

impl FileId {
    /// What a namespace's path leads to now.
    pub(super) fn of(namespace: &Namespace) -> Option<Self> {
        let Backing::Path(path) = &namespace.backing else {
            return None;
        };
        Some(Self::of_metadata(&fs::metadata(path).ok()?))
    }

    pub(super) fn of_metadata(metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            Self::Device(metadata.rdev())
        } else {
            Self::File(metadata.dev(), metadata.ino())
        }
    }
}
