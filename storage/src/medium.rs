//! What has become of a file or device while it is open: its size, and whether its path still leads
//! to it.
//!
//! A write beyond the end of a file makes it longer. After a file was cut short, that would bring
//! the lost part back as zeroes, so each reactor looks at the size before a write when its last
//! look is older than [`SIZE_LOOK_US`]: within that time a write may still reach a file that has
//! just been cut. A block device refuses such a write itself. A Flush looks at the size of either,
//! as it promises that what was written is there.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::in_words;
use crate::geometry::Geometry;
use crate::sys;

/// How old a reactor's knowledge of a file's size may be when it writes, in microseconds: a look
/// takes a third of a microsecond, so a thousand in a second cost nothing.
pub(crate) const SIZE_LOOK_US: u64 = 1000;

/// The size of a file or device, which may change from outside.
#[derive(Debug)]
pub(crate) struct Size {
    lba_bytes: u32,
    bytes: AtomicU64,
    lbas: AtomicU64,
    /// The most it ever had while it was open.
    most_lbas: AtomicU64,
    /// The least since [`Size::take_least_bytes`].
    least_bytes: AtomicU64,
}

impl Size {
    pub(crate) fn new(bytes: u64, lba_bytes: u32) -> Self {
        let size = Self {
            lba_bytes,
            bytes: AtomicU64::new(0),
            lbas: AtomicU64::new(0),
            most_lbas: AtomicU64::new(0),
            least_bytes: AtomicU64::new(bytes),
        };
        size.set(bytes);
        size
    }

    /// Returns whether it is less than before.
    pub(crate) fn set(&self, bytes: u64) -> bool {
        // Each look stands for itself, and an operation that is under way has checked the old size.
        let lbas = bytes / u64::from(self.lba_bytes);
        let before_bytes = self.bytes.swap(bytes, Ordering::Relaxed);
        self.lbas.store(lbas, Ordering::Relaxed);
        self.most_lbas.fetch_max(lbas, Ordering::Relaxed);
        self.least_bytes.fetch_min(bytes, Ordering::Relaxed);
        bytes < before_bytes
    }

    /// The least bytes that any look has found since this was asked last.
    pub(crate) fn take_least_bytes(&self) -> u64 {
        self.least_bytes.swap(self.bytes(), Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn lbas(&self) -> u64 {
        self.lbas.load(Ordering::Relaxed)
    }

    pub(crate) fn most_lbas(&self) -> u64 {
        self.most_lbas.load(Ordering::Relaxed)
    }
}

/// A file or device as it is now. See [`Store::look`](crate::Store::look).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Its size, including what is behind the last whole LBA.
    pub bytes: u64,
    /// The least that it was found to be since the last time: less than it is now, or was then,
    /// where it was cut and made longer again.
    pub least_bytes: u64,
    /// Its shape, with the LBAs that it has now.
    pub geometry: Geometry,
    /// Where it is.
    pub place: Place,
}

/// Where a file or device is that was opened by its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// At its path.
    AtPath,
    /// The file has no name any more. It is there as long as it is open, and can be copied from
    /// this path.
    Deleted(PathBuf),
    /// The path leads to another file or device, or to none. What is open can be read at this path.
    Elsewhere(PathBuf),
    /// The device, or the file's file system, is gone for this reason.
    Gone(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtPath => f.write_str("at its path"),
            Self::Deleted(_) => f.write_str("deleted"),
            Self::Elsewhere(_) => f.write_str("not at its path any more"),
            Self::Gone(why) => write!(f, "gone ({why})"),
        }
    }
}

/// The size of an open file or device. No file system is asked across a network here.
pub(crate) fn bytes_of(file: &File, is_block_device: bool) -> io::Result<u64> {
    if is_block_device {
        sys::block_bytes(file)
    } else {
        sys::known_file_bytes(file)
    }
}

/// The size of an open file or device, and where it is; asks the file system and may wait for it.
pub(crate) fn look(file: &File, path: &Path) -> (u64, Place) {
    let gone = |error: &io::Error| (0, Place::Gone(in_words(error)));
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return gone(&error),
    };
    let is_device = metadata.file_type().is_block_device();
    let bytes = if is_device {
        match sys::block_bytes(file) {
            Ok(0) => return (0, Place::Gone("it has no bytes any more".to_owned())),
            Ok(bytes) => bytes,
            Err(error) => return gone(&error),
        }
    } else {
        metadata.len()
    };
    let open_at = || PathBuf::from(format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd()));
    let place = match fs::metadata(path) {
        Ok(there) if is_same(&there, &metadata) => Place::AtPath,
        _ if !is_device && metadata.nlink() == 0 => Place::Deleted(open_at()),
        Ok(_) => Place::Elsewhere(open_at()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Place::Elsewhere(open_at()),
        // For example a folder into which this process may not look: that says nothing about the
        // file.
        Err(_) => Place::AtPath,
    };
    (bytes, place)
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    match (
        a.file_type().is_block_device(),
        b.file_type().is_block_device(),
    ) {
        // The node of a device may have been made anew.
        (true, true) => a.rdev() == b.rdev(),
        (false, false) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};

    use super::{Place, bytes_of, look};

    #[test]
    fn a_file_is_followed_through_what_others_do_with_its_name() {
        let folder = std::env::temp_dir().join(format!("capstan-medium-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, other) = (folder.join("a"), folder.join("b"));
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        open.set_len(8192).unwrap();
        assert_eq!(look(&open, &path), (8192, Place::AtPath));
        open.set_len(4096).unwrap();
        assert_eq!(
            (look(&open, &path).0, bytes_of(&open, false).unwrap()),
            (4096, 4096)
        );
        // Moved away; replaced by another one; back again.
        fs::rename(&path, &other).unwrap();
        assert!(matches!(look(&open, &path).1, Place::Elsewhere(_)));
        File::create(&path).unwrap();
        assert!(matches!(look(&open, &path).1, Place::Elsewhere(_)));
        fs::rename(&other, &path).unwrap();
        assert_eq!(look(&open, &path).1, Place::AtPath);
        // A second name does not count as the path.
        fs::hard_link(&path, &other).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(matches!(look(&open, &path).1, Place::Elsewhere(_)));
        fs::remove_file(&other).unwrap();
        let (4096, Place::Deleted(kept)) = look(&open, &path) else {
            panic!("{:?}", look(&open, &path));
        };
        assert_eq!(
            fs::metadata(kept).unwrap().len(),
            4096,
            "it can be read there"
        );
        // Deleted and made anew under the same name.
        File::create(&path).unwrap();
        assert!(matches!(look(&open, &path).1, Place::Deleted(_)));
        fs::remove_dir_all(&folder).unwrap();
    }
}
