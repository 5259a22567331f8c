//! Procedures on one file or name that look at it and set its attributes: GETATTR, SETATTR, LOOKUP,
//! ACCESS and READLINK (RFC 1813, sections 3.3.1 to 3.3.5).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use capstan_exports::{FileError, FileType, Handle, Node, OpenAccess, Rights};
use capstan_nfs_proto::codec::{DataItem, Encode, Opaque};
use capstan_nfs_proto::v3::args::{Access, SetAttr};
use capstan_nfs_proto::v3::results::{
    AccessOk, AccessResult, GetAttrResult, LookupOk, LookupResult, Outcome, ReadLinkOk,
    ReadLinkResult, Void, WccResult,
};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::{DirOpArgs, FileName, Filehandle};
use capstan_rpcrdma::xdr::Writer;

use super::context::{Context, File, after, changed};
use super::failure::Failure;
use super::{Written, convert};

/// Locks that a SETATTR with a guard takes, so that of two with the same guard one alone is let
/// through. A file has one of them, which others may have as well: with as many as this, a client
/// seldom waits for another one's file.
const GUARDS: usize = 64;

/// One lock of those for each file.
#[derive(Debug)]
pub(in crate::service) struct Guards(Box<[Mutex<()>]>);

impl Default for Guards {
    fn default() -> Self {
        Self((0..GUARDS).map(|_| Mutex::default()).collect())
    }
}

impl Guards {
    fn lock(&self, node: &Node) -> Option<MutexGuard<'_, ()>> {
        let mut hasher = DefaultHasher::new();
        (node.export().id(), node.kernel_handle()).hash(&mut hasher);
        let count = u64::try_from(self.0.len()).unwrap_or(u64::MAX);
        let index = hasher.finish().checked_rem(count)?;
        let lock = self.0.get(usize::try_from(index).ok()?)?;
        Some(lock.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Context<'_> {
    pub(super) fn get_attributes(&self, handle: Filehandle<'_>, to: &mut Writer<'_>) -> Written {
        let found = self
            .file(handle)
            .and_then(|file| Ok(convert::attributes(&file.node)?));
        let result: GetAttrResult = match found {
            Ok(attributes) => Outcome::Ok(attributes),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: Void,
            },
        };
        result.encode(to)
    }

    pub(super) fn set_attributes(&self, arguments: &SetAttr<'_>, to: &mut Writer<'_>) -> Written {
        let file = self.file(arguments.object);
        let set = file
            .as_ref()
            .map_err(|failure| *failure)
            .and_then(|file| self.set_attributes_of(file, arguments));
        let wcc = changed(&file);
        let result: WccResult = match set {
            Ok(()) => Outcome::Ok(wcc),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: wcc,
            },
        };
        result.encode(to)
    }

    fn set_attributes_of(&self, file: &File, arguments: &SetAttr<'_>) -> Result<(), Failure> {
        let _alone = match arguments.guard {
            Some(guard) => {
                let alone = self.service.guards.lock(&file.node);
                let ctime = convert::time(file.node.attributes()?.changed);
                if ctime != guard {
                    return Err(Failure(Status::NOT_SYNC));
                }
                alone
            }
            None => None,
        };
        let to = convert::to_set(&arguments.new_attributes);
        self.set(file, &to)
    }

    /// Sets attributes of a file: its size where its owner asks, whatever the mode says (RFC 1813,
    /// section 4.4).
    pub(super) fn set(
        &self,
        file: &File,
        to: &capstan_exports::SetAttributes,
    ) -> Result<(), Failure> {
        let open = match to.size_bytes {
            Some(size) if i64::try_from(size).is_err() => return Err(Failure(Status::FBIG)),
            Some(_) => Some(self.open(file, OpenAccess::Write)?),
            None => None,
        };
        let (_done, set) = file.node.set_attributes(&file.caller, to, open.as_deref());
        Ok(set?)
    }

    pub(super) fn look_up(&self, place: &DirOpArgs<'_>, to: &mut Writer<'_>) -> Written {
        let dir = self.file(place.dir);
        let found = dir
            .as_ref()
            .map_err(|failure| *failure)
            .and_then(|dir| self.find(dir, place.name))
            .and_then(|node| self.needed_handle(&node).map(|handle| (node, handle)));
        let dir_attributes = after(&dir);
        let result: LookupResult<'_> = match &found {
            Ok((node, handle)) => Outcome::Ok(LookupOk {
                object: Opaque(handle.bytes()),
                obj_attributes: convert::attributes(node).ok(),
                dir_attributes,
            }),
            Err(Failure(status)) => Outcome::Failed {
                status: *status,
                resfail: dir_attributes,
            },
        };
        result.encode(to)
    }

    fn needed_handle(&self, node: &Node) -> Result<Handle, Failure> {
        self.handle(node).ok_or(Failure(Status::SERVERFAULT))
    }

    /// What a name stands for, "." and ".." among them (RFC 1813, section 3.3.3). Above the root of
    /// an export that is reached by MOUNT is the root itself.
    pub(super) fn find(&self, dir: &File, name: FileName<'_>) -> Result<Node, Failure> {
        let node = match name.0 {
            b"." | b".." if dir.node.file_type() != FileType::Directory => {
                return Err(Failure(Status::NOTDIR));
            }
            b"." => Node::open_handle(dir.node.export(), dir.node.kernel_handle())?,
            b".." => match dir.node.parent(&dir.caller) {
                Err(FileError::AtRoot) => Node::root(dir.node.export())?,
                parent => parent?,
            },
            _ => {
                // What is no directory has no names, whatever they are.
                if dir.node.file_type() != FileType::Directory {
                    return Err(Failure(Status::NOTDIR));
                }
                dir.node
                    .lookup(self.exports, &dir.caller, dir.name(name)?)?
            }
        };
        // In another export, where one is mounted there.
        self.caller(node.export())?;
        Ok(node)
    }

    pub(super) fn access(&self, arguments: &Access<'_>, to: &mut Writer<'_>) -> Written {
        let file = self.file(arguments.object);
        // READ to EXECUTE: what is behind them is of version 4.2.
        let known = Rights::READ
            | Rights::LOOKUP
            | Rights::MODIFY
            | Rights::EXTEND
            | Rights::DELETE
            | Rights::EXECUTE;
        let asked = Rights::from_bits_truncate(arguments.access) & known;
        let granted = file
            .as_ref()
            .map_err(|failure| *failure)
            .and_then(|file| Ok(file.node.rights(&file.caller, asked)?));
        let obj_attributes = after(&file);
        let result: AccessResult = match granted {
            Ok(rights) => Outcome::Ok(AccessOk {
                obj_attributes,
                access: rights.bits(),
            }),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: obj_attributes,
            },
        };
        result.encode(to)
    }

    pub(super) fn read_link(&self, handle: Filehandle<'_>, to: &mut Writer<'_>) -> Written {
        let file = self.file(handle);
        let text = file
            .as_ref()
            .map_err(|failure| *failure)
            .and_then(|file| Ok(file.node.read_link(&file.caller)?));
        let symlink_attributes = after(&file);
        let result: ReadLinkResult<'_> = match &text {
            Ok(text) => Outcome::Ok(ReadLinkOk {
                symlink_attributes,
                data: self.link_text(text, to),
            }),
            Err(Failure(status)) => Outcome::Failed {
                status: *status,
                resfail: symlink_attributes,
            },
        };
        result.encode(to)
    }

    /// The text of a link where the client wants it: in its memory (RFC 8267, section 4), or in the
    /// reply, where there is always room for it.
    fn link_text<'t>(&self, text: &'t [u8], to: &Writer<'_>) -> DataItem<'t> {
        match self.call.results.next(to) {
            Some(span) if text.len() <= span.len_bytes() => {
                let copied = span.copy_from(0, text);
                DataItem::Reduced {
                    index: to.reduced_items().len(),
                    length_bytes: u32::try_from(copied).unwrap_or(u32::MAX),
                }
            }
            _ => DataItem::Inline(text),
        }
    }
}
