//! The file system of one file, without I/O: everything but reads, writes and syncs.

use std::sync::Arc;

use capstan_nvme_proto::nqn::Nqn;
use nix::errno::Errno;
use zerocopy::IntoBytes;

use super::request::Request;
use super::wire::{
    Attr, AttrOut, Dirent, EntryOut, InitFlags, InitOut, KERNEL_MINOR_VERSION,
    KERNEL_MINOR_VERSION_MIN, KERNEL_VERSION, OpenFlags, OpenOut, ROOT_ID, StatfsOut,
};
use crate::front_ends::block::Geometry;

/// Node of the file.
pub(crate) const FILE_ID: u64 = 2;
/// Most data of one read or write, in bytes.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Pages of that: what `max_pages` of INIT may be at most without a sysctl.
const PAGES_MAX: u16 = 256;
const _: () = assert!(PAGES_MAX as u32 * 4096 == TRANSFER_BYTES_MAX);
/// Asynchronous requests at once: two full loop device queues (128 each), and room.
const BACKGROUND_MAX: u16 = 512;
/// Beyond this the file system counts as congested; three quarters, as the kernel's own default.
const CONGESTION_THRESHOLD: u16 = BACKGROUND_MAX / 4 * 3;
/// Names and attributes hold for ever: what changes is told ([`super::wire::StoreOut`]).
const VALID_S: u64 = u64::MAX >> 1;
/// Block size of STATFS, in bytes: the granularity of the loop device's discards.
const STATFS_BLOCK_BYTES: u32 = 4096;
/// `d_type` of a folder and of a file.
const DT_DIR: u32 = 4;
const DT_REG: u32 = 8;
/// Type bits of a mode.
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Reply with these bytes.
    Reply(Vec<u8>),
    /// Reply with an error.
    Error(Errno),
    /// No reply.
    Silence,
    /// It is I/O, which is carried out elsewhere.
    Io,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct FileSystem {
    /// Of the file.
    name: Arc<str>,
    geometry: Geometry,
    uid: u32,
    gid: u32,
    time_s: u64,
}

impl FileSystem {
    /// A file system whose file `name` is the volume, of user and group `owner`, with all times
    /// `time_s` (seconds since 1970).
    ///
    /// The name is to be another one for each volume of a machine: the folder is not reached by a
    /// path, so `/NAME` is all that the kernel says of the file of a loop device, and programs such
    /// as `mkfs.btrfs` take two loop devices with files of one path for the same.
    #[must_use]
    pub(crate) fn new(name: &str, geometry: Geometry, owner: (u32, u32), time_s: u64) -> Self {
        Self {
            name: name.into(),
            geometry,
            uid: owner.0,
            gid: owner.1,
            time_s,
        }
    }

    /// The volume has another size.
    pub(crate) fn set_size(&mut self, size_bytes: u64) {
        self.geometry.size_bytes = size_bytes;
    }

    /// The answer to a request about node `nodeid`.
    #[must_use]
    pub(crate) fn answer(&self, nodeid: u64, request: &Request<'_>) -> Answer {
        if nodeid > FILE_ID {
            return Answer::Error(Errno::ENOENT);
        }
        let reply = |bytes: &[u8]| Answer::Reply(bytes.to_vec());
        match *request {
            Request::Init {
                major,
                minor,
                max_readahead_bytes,
                flags,
            } => init((major, minor), max_readahead_bytes, flags),
            Request::Lookup(name) if nodeid == ROOT_ID && name == self.name.as_bytes() => {
                reply(self.entry().as_bytes())
            }
            Request::Lookup(_) => Answer::Error(Errno::ENOENT),
            Request::Getattr | Request::Setattr(None) => reply(self.attr_out(nodeid).as_bytes()),
            Request::Setattr(Some(size_bytes)) if size_bytes == self.geometry.size_bytes => {
                reply(self.attr_out(nodeid).as_bytes())
            }
            // A volume has the size it has.
            Request::Setattr(Some(_)) => Answer::Error(Errno::EPERM),
            Request::Open(flags) => self.open(nodeid, flags),
            Request::Opendir => reply(open_out(OpenFlags::empty()).as_bytes()),
            Request::Readdir { offset, size_bytes } => readdir(&self.name, offset, size_bytes),
            Request::Statfs => reply(self.statfs().as_bytes()),
            Request::Nothing => reply(&[]),
            Request::Silent => Answer::Silence,
            Request::Unsupported => Answer::Error(Errno::ENOSYS),
            Request::Malformed => Answer::Error(Errno::EIO),
            Request::Read { .. }
            | Request::Write { .. }
            | Request::Sync
            | Request::Fallocate { .. }
                if nodeid == FILE_ID =>
            {
                Answer::Io
            }
            Request::Read { .. } | Request::Write { .. } | Request::Fallocate { .. } => {
                Answer::Error(Errno::EISDIR)
            }
            Request::Sync => reply(&[]),
        }
    }

    fn attr(&self, nodeid: u64) -> Attr {
        let common = Attr {
            ino: nodeid,
            atime: self.time_s,
            mtime: self.time_s,
            ctime: self.time_s,
            uid: self.uid,
            gid: self.gid,
            blksize_bytes: STATFS_BLOCK_BYTES,
            ..Attr::default()
        };
        if nodeid == ROOT_ID {
            return Attr {
                mode: S_IFDIR | 0o500,
                nlink: 2,
                ..common
            };
        }
        let write = if self.geometry.read_only { 0 } else { 0o200 };
        Attr {
            mode: S_IFREG | 0o400 | write,
            nlink: 1,
            size_bytes: self.geometry.size_bytes,
            blocks: self.geometry.size_bytes / 512,
            ..common
        }
    }

    fn attr_out(&self, nodeid: u64) -> AttrOut {
        AttrOut {
            attr_valid_s: VALID_S,
            attr_valid_ns: 0,
            dummy: 0,
            attr: self.attr(nodeid),
        }
    }

    fn entry(&self) -> EntryOut {
        EntryOut {
            nodeid: FILE_ID,
            generation: 0,
            entry_valid_s: VALID_S,
            attr_valid_s: VALID_S,
            entry_valid_ns: 0,
            attr_valid_ns: 0,
            attr: self.attr(FILE_ID),
        }
    }

    fn open(&self, nodeid: u64, flags: u32) -> Answer {
        if nodeid != FILE_ID {
            return Answer::Error(Errno::EISDIR);
        }
        // O_ACCMODE is the two lowest bits; anything but O_RDONLY writes.
        if self.geometry.read_only && flags & 3 != 0 {
            return Answer::Error(Errno::EROFS);
        }
        let flags = OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES;
        Answer::Reply(open_out(flags).as_bytes().to_vec())
    }

    fn statfs(&self) -> StatfsOut {
        let block_bytes = self.geometry.lba_bytes.max(STATFS_BLOCK_BYTES);
        StatfsOut {
            blocks: self.geometry.size_bytes / u64::from(block_bytes),
            files: 1,
            bsize_bytes: block_bytes,
            frsize_bytes: block_bytes,
            namelen: 255,
            ..StatfsOut::default()
        }
    }
}

/// INIT: the versions are compared, the flags that both know are set.
fn init(version: (u32, u32), max_readahead_bytes: u32, flags: u32) -> Answer {
    if version < (KERNEL_VERSION, KERNEL_MINOR_VERSION_MIN) {
        return Answer::Error(Errno::EPROTO);
    }
    let wanted = InitFlags::ASYNC_READ
        | InitFlags::BIG_WRITES
        | InitFlags::ASYNC_DIO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::ABORT_ERROR
        | InitFlags::MAX_PAGES;
    let out = InitOut {
        major: KERNEL_VERSION,
        // A newer kernel takes the lower version of both.
        minor: KERNEL_MINOR_VERSION,
        max_readahead_bytes,
        flags: (InitFlags::from_bits_truncate(flags) & wanted).bits(),
        max_background: BACKGROUND_MAX,
        congestion_threshold: CONGESTION_THRESHOLD,
        max_write_bytes: TRANSFER_BYTES_MAX,
        time_gran_ns: 1,
        max_pages: PAGES_MAX,
        map_alignment: 0,
        flags2: 0,
        unused: [0; 7],
    };
    Answer::Reply(out.as_bytes().to_vec())
}

fn open_out(flags: OpenFlags) -> OpenOut {
    OpenOut {
        fh: 0,
        open_flags: flags.bits(),
        padding: 0,
    }
}

/// The entries of the folder with the file `name` from number `offset` on, as far as they fit.
fn readdir(name: &str, offset: u64, size_bytes: u32) -> Answer {
    let entries = [
        (ROOT_ID, ".", DT_DIR),
        (ROOT_ID, "..", DT_DIR),
        (FILE_ID, name, DT_REG),
    ];
    let mut bytes = Vec::new();
    for (off, (ino, name, file_type)) in (1_u64..).zip(entries) {
        if off <= offset {
            continue;
        }
        let entry = Dirent {
            ino,
            off,
            namelen: u32::try_from(name.len()).unwrap_or(0),
            file_type,
        };
        let len = (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if bytes.len() + len > size_bytes as usize {
            break;
        }
        let end = bytes.len() + len;
        bytes.extend_from_slice(entry.as_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.resize(end, 0);
    }
    Answer::Reply(bytes)
}

/// How mount(8) and mountinfo name the source.
#[must_use]
pub(crate) fn source_name(subnqn: &Nqn, nsid: u32) -> String {
    format!("capstan:{}/{nsid}", subnqn.as_str())
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;

    fn file_system(read_only: bool) -> FileSystem {
        let geometry = Geometry {
            nsid: 1,
            size_bytes: 1 << 30,
            lba_bytes: 512,
            read_only,
            write_zeroes: true,
            discard: true,
            holes: false,
        };
        FileSystem::new("volume", geometry, (0, 0), 1_700_000_000)
    }

    fn reply(answer: Answer) -> Vec<u8> {
        match answer {
            Answer::Reply(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn init_negotiates_asynchronous_direct_io_of_a_mebibyte() {
        let init = |major, minor| Request::Init {
            major,
            minor,
            max_readahead_bytes: 131_072,
            flags: u32::MAX,
        };
        let out = reply(file_system(false).answer(0, &init(7, 45)));
        let out = InitOut::read_from_bytes(&out).unwrap();
        let flags = InitFlags::from_bits(out.flags).expect("only flags that are asked for");
        assert!(flags.contains(InitFlags::ASYNC_DIO | InitFlags::MAX_PAGES));
        assert_eq!((out.max_write_bytes, out.max_pages), (1 << 20, 256));
        assert!(out.max_background >= 256);
        let old = file_system(false).answer(0, &init(7, 27));
        assert_eq!(old, Answer::Error(Errno::EPROTO));
    }

    #[test]
    fn there_is_one_file() {
        let fs = file_system(false);
        let entry = reply(fs.answer(ROOT_ID, &Request::Lookup(b"volume")));
        let entry = EntryOut::read_from_bytes(&entry).unwrap();
        assert_eq!((entry.nodeid, entry.attr.size_bytes), (FILE_ID, 1 << 30));
        let none = fs.answer(ROOT_ID, &Request::Lookup(b"other"));
        assert_eq!(none, Answer::Error(Errno::ENOENT));
        assert_eq!(
            fs.answer(3, &Request::Getattr),
            Answer::Error(Errno::ENOENT)
        );
        let list = |offset, size_bytes| {
            reply(fs.answer(ROOT_ID, &Request::Readdir { offset, size_bytes }))
        };
        assert_eq!(list(0, 4096).len(), 32 + 32 + 32);
        assert_eq!(list(2, 4096).len(), 32);
        assert_eq!(list(0, 70).len(), 64);
        assert_eq!(list(3, 4096).len(), 0);
    }

    #[test]
    fn a_read_only_volume_is_not_opened_for_writing() {
        let fs = file_system(true);
        assert_eq!(
            fs.answer(FILE_ID, &Request::Open(2)),
            Answer::Error(Errno::EROFS)
        );
        let open = reply(fs.answer(FILE_ID, &Request::Open(0)));
        let open = OpenOut::read_from_bytes(&open).unwrap();
        let flags = OpenFlags::from_bits(open.open_flags).unwrap();
        assert!(flags.contains(OpenFlags::DIRECT_IO));
        let attr = reply(fs.answer(FILE_ID, &Request::Getattr));
        assert_eq!(
            AttrOut::read_from_bytes(&attr).unwrap().attr.mode & 0o222,
            0
        );
    }

    #[test]
    fn the_size_is_the_volumes_and_cannot_be_set() {
        let mut fs = file_system(false);
        let set = |fs: &FileSystem, size| fs.answer(FILE_ID, &Request::Setattr(Some(size)));
        assert!(matches!(set(&fs, 1 << 30), Answer::Reply(_)));
        assert_eq!(set(&fs, 0), Answer::Error(Errno::EPERM));
        fs.set_size(2 << 30);
        let attr = reply(fs.answer(FILE_ID, &Request::Getattr));
        let attr = AttrOut::read_from_bytes(&attr).unwrap().attr;
        assert_eq!((attr.size_bytes, attr.blocks), (2 << 30, 4 << 20));
        assert_eq!(set(&fs, 1 << 30), Answer::Error(Errno::EPERM));
    }
}
