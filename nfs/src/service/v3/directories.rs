//! READDIR and READDIRPLUS (RFC 1813, sections 3.3.16 and 3.3.17).

use capstan_exports::Handle;
use capstan_exports::directory::{Entries, Entry, ReadDirectory};
use capstan_nfs_proto::codec::{Encode, Opaque};
use capstan_nfs_proto::v3::args::{ReadDir, ReadDirPlus};
use capstan_nfs_proto::v3::directory::DirectoryEncoder;
use capstan_nfs_proto::v3::results::{DirEntry, DirEntryPlus, ReadDirPlusResult, ReadDirResult};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::FileName;
use capstan_rpcrdma::xdr::{Writer, padding_bytes};

use super::context::{Context, File, after};
use super::failure::Failure;
use super::limits::DIRECTORY_BYTES_MAX;
use super::{Written, convert};

/// Bytes of a result without entries, behind its status: attributes, the verifier, the end.
const EMPTY_BYTES: u32 = (4 + 84) + 8 + (4 + 4);
/// Bytes of an entry of READDIR beside its name and the padding of that: that there is one, the
/// number of the file, the length of the name, the cookie.
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
/// Bytes of an entry of READDIRPLUS likewise: with attributes, and with a handle of 36 bytes, which
/// is what most file systems come to. That of one with longer handles ends the result earlier.
const ENTRY_PLUS_BYTES: usize = ENTRY_BYTES + (4 + 84) + (4 + 4 + 36);
/// Bytes of what `dircount` counts of an entry beside its name: the number of the file, the length
/// of the name, the cookie.
const COUNTED_BYTES: usize = 8 + 4 + 8;

impl Context<'_> {
    pub(super) fn read_directory(&self, arguments: &ReadDir<'_>, to: &mut Writer<'_>) -> Written {
        let dir = self.file(arguments.dir);
        let count = arguments.count.min(DIRECTORY_BYTES_MAX);
        let start = to.mark();
        let read = dir.as_ref().map_err(|failure| *failure).and_then(|dir| {
            let ask = ReadDirectory {
                cookie: arguments.cookie,
                verifier: u64::from_be_bytes(arguments.cookieverf),
                room_bytes: room(count),
                entry_bytes: ENTRY_BYTES,
                with_files: false,
            };
            let read = self.entries(dir, &ask)?;
            let verifier = read.verifier.to_be_bytes();
            let attributes = convert::attributes(&dir.node).ok();
            let mut result = DirectoryEncoder::new(to, attributes, verifier, count)?;
            let mut entries = read.entries.iter();
            let fits = entries.all(|entry| result.entry(&dir_entry(entry)).is_ok());
            finish(result, fits && read.is_end)
        });
        match read {
            Ok(()) => Ok(()),
            Err(Failure(status)) => {
                to.rewind(start);
                let resfail = after(&dir);
                ReadDirResult::Failed { status, resfail }.encode(to)
            }
        }
    }

    pub(super) fn read_directory_plus(
        &self,
        arguments: &ReadDirPlus<'_>,
        to: &mut Writer<'_>,
    ) -> Written {
        let dir = self.file(arguments.dir);
        let count = arguments.maxcount.min(DIRECTORY_BYTES_MAX);
        let start = to.mark();
        let read = dir.as_ref().map_err(|failure| *failure).and_then(|dir| {
            let ask = ReadDirectory {
                cookie: arguments.cookie,
                verifier: u64::from_be_bytes(arguments.cookieverf),
                room_bytes: room(count),
                entry_bytes: ENTRY_PLUS_BYTES,
                with_files: true,
            };
            let read = self.entries(dir, &ask)?;
            let verifier = read.verifier.to_be_bytes();
            let attributes = convert::attributes(&dir.node).ok();
            let mut result = DirectoryEncoder::new(to, attributes, verifier, count)?;
            let mut counted = usize::try_from(arguments.dircount).unwrap_or(usize::MAX);
            let mut entries = read.entries.iter();
            let fits = entries.all(|entry| {
                let length = entry.name.len();
                let takes = COUNTED_BYTES
                    .saturating_add(length)
                    .saturating_add(padding_bytes(length));
                match counted.checked_sub(takes) {
                    Some(left) => counted = left,
                    // One is given all the same: a client that counts otherwise would never end.
                    None if result.entries() == 0 => counted = 0,
                    None => return false,
                }
                push_plus(dir, entry, &mut result)
            });
            finish(result, fits && read.is_end)
        });
        match read {
            Ok(()) => Ok(()),
            Err(Failure(status)) => {
                to.rewind(start);
                let resfail = after(&dir);
                ReadDirPlusResult::Failed { status, resfail }.encode(to)
            }
        }
    }

    fn entries(&self, dir: &File, ask: &ReadDirectory) -> Result<Entries, Failure> {
        let (exports, caller) = (self.exports, &dir.caller);
        Ok(dir.node.read_directory_with_dots(exports, caller, ask)?)
    }
}

/// Adds an entry, with what is known of its file. Of the root of another export nothing is said: a
/// LOOKUP tells whether the client may use it.
fn push_plus(dir: &File, entry: &Entry, result: &mut DirectoryEncoder<'_, '_>) -> bool {
    let export = dir.node.export();
    let file = entry.file.filter(|file| file.export == export.id());
    let handle = file.map(|file| file.handle).filter(Handle::fits_v3);
    let entry = DirEntryPlus {
        entry: dir_entry(entry),
        name_attributes: file.map(|file| convert::attributes_of(export, &file.attributes)),
        name_handle: handle.as_ref().map(|handle| Opaque(handle.bytes())),
    };
    result.entry_plus(&entry).is_ok()
}

/// Bytes for entries in a result of `count`.
fn room(count: u32) -> usize {
    usize::try_from(count.saturating_sub(EMPTY_BYTES)).unwrap_or(0)
}

fn dir_entry(entry: &Entry) -> DirEntry<'_> {
    DirEntry {
        fileid: entry.file_id,
        name: FileName(&entry.name),
        cookie: entry.cookie,
    }
}

fn finish(result: DirectoryEncoder<'_, '_>, eof: bool) -> Result<(), Failure> {
    if result.entries() == 0 && !eof {
        result.abandon();
        return Err(Failure(Status::TOOSMALL));
    }
    Ok(result.finish(eof)?)
}
