//! Attributes of files as NFS version 3 has them, and back (RFC 1813, section 2.6).

use capstan_exports as exports;
use capstan_exports::{Export, FileError, FileSystemId, FileType, Node};
use capstan_nfs_proto::v3::types::{
    Attributes, DeviceNumbers, FileType as WireType, SetAttributes, SetTime, Time, WccAttr,
};

/// The attributes of a file, as they are now.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn attributes(node: &Node) -> Result<Attributes, FileError> {
    Ok(attributes_of(node.export(), &node.attributes()?))
}

/// Attributes of a file of `export`.
pub(super) fn attributes_of(export: &Export, found: &exports::Attributes) -> Attributes {
    Attributes {
        file_type: file_type(found.file_type),
        mode: found.mode.into(),
        nlink: found.link_count,
        uid: found.uid,
        gid: found.gid,
        size: found.size_bytes,
        used: found.used_bytes,
        rdev: DeviceNumbers {
            specdata1: found.device.0,
            specdata2: found.device.1,
        },
        fsid: file_system_number(export.file_system()),
        fileid: found.file_id,
        atime: time(found.accessed),
        mtime: time(found.modified),
        ctime: time(found.changed),
    }
}

/// What of a file's attributes is told of the time before a change.
pub(super) fn before(found: &exports::Attributes) -> WccAttr {
    WccAttr {
        size: found.size_bytes,
        mtime: time(found.modified),
        ctime: time(found.changed),
    }
}

/// Both halves of the id in one number, as there is room for one.
fn file_system_number(id: FileSystemId) -> u64 {
    let halves = u128::from_be_bytes(id.0);
    let low = u64::try_from(halves & u128::from(u64::MAX)).unwrap_or(0);
    let high = u64::try_from(halves >> 64).unwrap_or(0);
    high ^ low
}

const fn file_type(of: FileType) -> WireType {
    match of {
        FileType::Regular => WireType::Regular,
        FileType::Directory => WireType::Directory,
        FileType::Symlink => WireType::SymbolicLink,
        FileType::Block => WireType::Block,
        FileType::Character => WireType::Character,
        FileType::Socket => WireType::Socket,
        FileType::Fifo => WireType::Fifo,
    }
}

/// Times before 1970 and behind the year 2106 are shown as the first or the last that 32 bits have.
pub(super) fn time(of: exports::Time) -> Time {
    match u32::try_from(of.seconds) {
        Ok(seconds) => Time {
            seconds,
            nseconds: of.nanoseconds,
        },
        Err(_) if of.seconds < 0 => Time {
            seconds: 0,
            nseconds: 0,
        },
        Err(_) => Time {
            seconds: u32::MAX,
            nseconds: 999_999_999,
        },
    }
}

/// What is to be set. Of the mode the low 12 bits count.
pub(super) fn to_set(of: &SetAttributes) -> exports::SetAttributes {
    exports::SetAttributes {
        size_bytes: of.size,
        uid: of.uid,
        gid: of.gid,
        mode: of
            .mode
            .map(|mode| u16::try_from(mode & 0o7777).unwrap_or(0)),
        accessed: time_to_set(of.atime),
        modified: time_to_set(of.mtime),
    }
}

fn time_to_set(of: SetTime) -> Option<exports::SetTime> {
    match of {
        SetTime::DontChange => None,
        SetTime::Server => Some(exports::SetTime::Now),
        SetTime::Client(time) => Some(exports::SetTime::To(exports::Time {
            seconds: time.seconds.into(),
            nanoseconds: time.nseconds,
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_do_not_fit_are_the_nearest_that_do() {
        let shown = |seconds| {
            let time = time(exports::Time {
                seconds,
                nanoseconds: 5,
            });
            (time.seconds, time.nseconds)
        };
        assert_eq!(shown(-1), (0, 0));
        assert_eq!(shown(0), (0, 5));
        assert_eq!(shown(u32::MAX.into()), (u32::MAX, 5));
        assert_eq!(shown(1 << 32), (u32::MAX, 999_999_999));
    }

    #[test]
    fn file_systems_have_numbers_of_their_own() {
        let number = |bytes: [u8; 16]| file_system_number(FileSystemId(bytes));
        assert_eq!(number([0; 16]), 0);
        let mut first = [7; 16];
        first[0] = 8;
        assert_ne!(number([7; 16]), number(first));
    }
}
