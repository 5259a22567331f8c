//! READDIR (RFC 8881, section 18.23).

use capstan_exports::directory::{Entry, ReadDirectory};
use capstan_exports::name::Name;
use capstan_exports::pseudo::PseudoEntry;
use capstan_exports::{ExportId, FileError, Node, PseudoId};
use capstan_nfs_proto::codec::Writer;
use capstan_nfs_proto::limits::DIRECTORY_END_BYTES;
use capstan_nfs_proto::v4::args::ReadDir;
use capstan_nfs_proto::v4::attr::{AttrNumber, Attributes};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::reply::DirectoryEncoder;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::Verifier;

use super::attributes::{Shared, check_readable, mounted_on};
use super::context::{Context, File, Object, Outcome, Results};
use super::filehandles::check_directory;
use crate::service::failure::{Failure, status_of};

/// Times that entries are read which are all gone when they are looked at, before the client has to
/// ask again.
const ATTEMPTS: usize = 8;

/// Bytes of an entry besides its name and its attributes: that it follows, its cookie, and the
/// length of the name.
const ENTRY_BYTES: usize = 4 + 8 + 4;

/// Bytes that dircount counts for the shortest name, its length and its cookie.
const NAME_BYTES_MIN: usize = 4 + 4 + 8;

/// Bytes of the longest name (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;

/// Bytes by which the attributes of two files of a directory may differ: the digits of owner and
/// group.
const OWNERS_BYTES: usize = 2 * 12;

/// Bytes of the attributes of one file at most: a handle of 128 bytes, two owners of 10 digits,
/// sets of attributes and some 60 numbers.
const ATTRIBUTES_BYTES_MAX: usize = 2048;

/// What is asked of a directory.
struct Asked {
    /// The attributes that are given.
    requested: Bitmap,
    /// Whether they are those of the entries' files.
    with_files: bool,
}

impl Asked {
    fn new(arguments: &ReadDir, shared: &Attributes<'_>) -> Self {
        let supported = shared.supported_attrs.unwrap_or_default();
        let requested = arguments.attr_request.and(&supported);
        let of_entry = [AttrNumber::RDATTR_ERROR, AttrNumber::MOUNTED_ON_FILEID];
        let of_entry = of_entry.iter().map(|number| number.0).collect();
        Self {
            requested,
            with_files: !requested.without(&of_entry).is_empty(),
        }
    }
}

/// The result of READDIR as it grows.
struct Growing<'e, 'r, 'w, 'b> {
    encoder: &'e mut DirectoryEncoder<'r, 'w, 'b>,
    /// Bytes of names and cookies that there may be yet (dircount).
    names_bytes: Option<usize>,
}

/// Why an entry was not added.
enum Stop {
    /// There is no more room.
    Full,
    /// Its file cannot be looked at, which is for the client to know.
    Failed(Status),
}

impl Growing<'_, '_, '_, '_> {
    fn add(
        &mut self,
        cookie: u64,
        name: &[u8],
        attributes: &Attributes<'_>,
        requested: &Bitmap,
    ) -> Result<(), Stop> {
        let takes = name.len().next_multiple_of(4).saturating_add(4 + 8);
        if let Some(left) = self.names_bytes {
            // A hint (RFC 8881, section 18.23.3): one entry comes anyhow.
            if left < takes && self.encoder.entries() > 0 {
                return Err(Stop::Full);
            }
            self.names_bytes = Some(left.saturating_sub(takes));
        }
        let added = self.encoder.entry(cookie, name, attributes, requested);
        added.map_err(|_does_not_fit| Stop::Full)
    }

    /// Adds an entry whose file cannot be looked at.
    fn add_failed(
        &mut self,
        (cookie, name, file_id): (u64, &[u8], u64),
        status: Status,
        requested: &Bitmap,
    ) -> Result<(), Stop> {
        // RFC 8881, section 5.8.1.12.
        if !requested.contains(AttrNumber::RDATTR_ERROR.0) {
            return Err(Stop::Failed(status));
        }
        let attributes = Attributes {
            rdattr_error: Some(status),
            mounted_on_fileid: Some(file_id),
            ..Attributes::default()
        };
        self.add(cookie, name, &attributes, requested)
    }
}

/// Bytes that an entry takes at least besides its name.
fn entry_bytes(directory: &Attributes<'_>, requested: &Bitmap) -> usize {
    let mut buffer = [0; ATTRIBUTES_BYTES_MAX];
    let mut writer = Writer::new(&mut buffer);
    let bytes = match directory.encode_requested(requested, &mut writer) {
        Ok(()) => writer.written().len(),
        Err(_full) => 0,
    };
    bytes
        .saturating_sub(OWNERS_BYTES)
        .saturating_add(ENTRY_BYTES)
}

impl Context<'_> {
    pub(super) fn read_directory(
        &mut self,
        arguments: &ReadDir,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let object = self.object()?;
        check_readable(&arguments.attr_request)?;
        let verifier_bytes = u64::try_from(Verifier::SIZE_BYTES).unwrap_or(0);
        if u64::from(arguments.maxcount) < verifier_bytes.saturating_add(DIRECTORY_END_BYTES) {
            return Err(Status::TOOSMALL.into());
        }
        // RFC 8881, section 18.23.3: 1 and 2 are no cookies, and 0 has no verifier.
        let is_start = arguments.cookie == 0;
        if matches!(arguments.cookie, 1 | 2)
            || is_start && arguments.cookieverf != Verifier::default()
        {
            return Err(Status::BAD_COOKIE.into());
        }
        match object {
            Object::Pseudo(directory) => self.read_pseudo(*directory, arguments, results),
            Object::File(file) => {
                check_directory(file.node()?.file_type())?;
                self.read_files(file, arguments, results)
            }
        }
    }

    fn read_files(
        &self,
        directory: &File,
        arguments: &ReadDir,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let node = directory.node()?;
        let handle = self.exports.handle(node);
        let shared = self.shared_of(node, &arguments.attr_request)?;
        let own = shared.with_file(&node.attributes()?, 0, handle.bytes());
        let asked = Asked::new(arguments, &own);
        let entry_bytes = entry_bytes(&own, &asked.requested);
        let room = results.room_bytes().min(arguments.maxcount.into());
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        // No more is looked at than dircount lets into the answer.
        let named = names_bytes(arguments).map_or(usize::MAX, |bytes| {
            let entries = (bytes / NAME_BYTES_MIN).saturating_add(1);
            entries.saturating_mul(entry_bytes.saturating_add(NAME_BYTES_MAX))
        });
        let mut ask = ReadDirectory {
            cookie: arguments.cookie,
            verifier: u64::from_be_bytes(arguments.cookieverf.0),
            room_bytes: room.min(named),
            entry_bytes,
            with_files: asked.with_files,
        };
        for _ in 0..ATTEMPTS {
            let read = node.read_directory(self.exports, &directory.caller, &ask)?;
            let verifier = Verifier(read.verifier.to_be_bytes());
            let mut encoder = results.begin_directory(verifier, arguments.maxcount)?;
            let mut growing = growing(&mut encoder, arguments);
            let added = read.entries.iter().try_for_each(|entry| {
                self.add_file(directory, &shared, entry, &asked, &mut growing)
            });
            let Some(last) = read.entries.last().filter(|_| {
                // All of them were removed meanwhile, and there are more.
                added.is_ok() && !read.is_end && encoder.entries() == 0
            }) else {
                return finish(encoder, &added, read.is_end);
            };
            (ask.cookie, ask.verifier) = (last.cookie, read.verifier);
            encoder.abandon();
        }
        Err(Status::DELAY.into())
    }

    /// Adds an entry, unless its file is gone.
    fn add_file(
        &self,
        directory: &File,
        shared: &Shared,
        entry: &Entry,
        asked: &Asked,
        growing: &mut Growing<'_, '_, '_, '_>,
    ) -> Result<(), Stop> {
        let requested = &asked.requested;
        let place = (entry.cookie, &*entry.name, entry.file_id);
        if !asked.with_files {
            let all = Attributes {
                rdattr_error: Some(Status::OK),
                mounted_on_fileid: Some(entry.file_id),
                ..Attributes::default()
            };
            return growing.add(entry.cookie, &entry.name, &all, requested);
        }
        let of_export = |id: ExportId| -> Result<Shared, Status> {
            if id == directory.export().id() {
                return Ok(*shared);
            }
            let export = self.exports.export(id).ok_or(Status::STALE)?;
            if !self.may_use(&export) {
                return Err(Status::XDEV);
            }
            let root = Node::root(&export).map_err(|error| status_of(&error))?;
            self.shared_of(&root, requested)
                .map_err(|failure| failure.0)
        };
        let found = match &entry.file {
            Some(found) => Ok((found.export, found.attributes, found.handle)),
            None => self.look_again(directory, &entry.name),
        };
        let described = found
            .and_then(|(export, attributes, handle)| Ok((of_export(export)?, attributes, handle)));
        match described {
            Ok((shared, attributes, handle)) => {
                let all = shared.with_file(&attributes, entry.file_id, handle.bytes());
                growing.add(entry.cookie, &entry.name, &all, requested)
            }
            Err(Status::NOENT) => Ok(()),
            // What clients cannot enter would end every listing that has no place for the reason.
            Err(Status::XDEV) if !requested.contains(AttrNumber::RDATTR_ERROR.0) => Ok(()),
            Err(Status::XDEV) => growing.add_failed(place, Status::ACCESS, requested),
            Err(status) => growing.add_failed(place, status, requested),
        }
    }

    /// Looks at a file that could not be looked at with the others: the reason is wanted.
    ///
    /// # Errors
    /// The reason; NFS4ERR_XDEV at a mount point of what is not exported.
    fn look_again(
        &self,
        directory: &File,
        name: &[u8],
    ) -> Result<
        (
            ExportId,
            capstan_exports::Attributes,
            capstan_exports::Handle,
        ),
        Status,
    > {
        let rule = directory.export().settings().names;
        let looked = Name::new(name, rule)
            .map_err(FileError::from)
            .and_then(|name| {
                directory
                    .node()?
                    .lookup(self.exports, &directory.caller, name)
            })
            .and_then(|node| Ok((node.attributes()?, node)));
        let (attributes, node) = looked.map_err(|error| {
            if error == FileError::OtherFileSystem {
                Status::XDEV
            } else {
                status_of(&error)
            }
        })?;
        Ok((node.export().id(), attributes, self.exports.handle(&node)))
    }

    fn read_pseudo(
        &self,
        directory: PseudoId,
        arguments: &ReadDir,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let tree = self.exports.tree();
        let verifier = Verifier(tree.change().to_be_bytes());
        // Other exports are there than when the cookie was given.
        if arguments.cookie != 0 && arguments.cookieverf != verifier {
            return Err(Status::NOT_SAME.into());
        }
        let own = self.pseudo_attributes(directory, &Bitmap::EMPTY, &[])?;
        let asked = Asked::new(arguments, &own);
        let mut encoder = results.begin_directory(verifier, arguments.maxcount)?;
        let mut growing = growing(&mut encoder, arguments);
        let mut entries = tree.entries(directory, arguments.cookie);
        let added = entries.try_for_each(|(cookie, name, entry)| {
            self.add_pseudo((cookie, name), entry, &asked, &mut growing)
        });
        finish(encoder, &added, true)
    }

    fn add_pseudo(
        &self,
        (cookie, name): (u64, &[u8]),
        entry: PseudoEntry,
        asked: &Asked,
        growing: &mut Growing<'_, '_, '_, '_>,
    ) -> Result<(), Stop> {
        let requested = &asked.requested;
        let file_id = match entry {
            PseudoEntry::Directory(id) => id.0,
            PseudoEntry::Export(id) => {
                // What the client may not use is not shown.
                let export = self.exports.export(id);
                if !export.is_some_and(|export| self.may_use(&export)) {
                    return Ok(());
                }
                mounted_on(id)
            }
        };
        let object = self.entry(entry).map_err(|failure| failure.0);
        let described = object.map(|object| {
            let handle = self.handle(&object);
            (object, handle)
        });
        let added = described.and_then(|(object, handle)| {
            let all = self
                .attributes_of(&object, requested, handle.bytes())
                .map_err(|failure| failure.0)?;
            Ok(growing.add(cookie, name, &all, requested))
        });
        match added {
            Ok(added) => added,
            Err(status) => growing.add_failed((cookie, name, file_id), status, requested),
        }
    }
}

fn growing<'e, 'r, 'w, 'b>(
    encoder: &'e mut DirectoryEncoder<'r, 'w, 'b>,
    arguments: &ReadDir,
) -> Growing<'e, 'r, 'w, 'b> {
    Growing {
        encoder,
        names_bytes: names_bytes(arguments),
    }
}

/// What dircount says; 0 says nothing.
fn names_bytes(arguments: &ReadDir) -> Option<usize> {
    let dircount = usize::try_from(arguments.dircount).unwrap_or(usize::MAX);
    (dircount > 0).then_some(dircount)
}

/// Ends a result whose last entry is that of the directory where `is_end` and all were added.
fn finish(
    encoder: DirectoryEncoder<'_, '_, '_>,
    added: &Result<(), Stop>,
    is_end: bool,
) -> Outcome {
    let failure = match added {
        Ok(()) => return Ok(encoder.finish(is_end)?),
        // The entries before come first, and the reason with the next request.
        Err(Stop::Full | Stop::Failed(_)) if encoder.entries() > 0 => {
            return Ok(encoder.finish(false)?);
        }
        Err(Stop::Full) => Status::TOOSMALL,
        Err(Stop::Failed(status)) => *status,
    };
    encoder.abandon();
    Err(Failure(failure))
}
