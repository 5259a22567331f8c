//! Entries of directories: CREATE, LINK, READLINK, REMOVE and RENAME (RFC 8881, sections 18.4,
//! 18.9, 18.24 to 18.26).

use std::sync::Arc;

use capstan_exports::entries::{Removed, Special};
use capstan_exports::name::Name;
use capstan_exports::{EntriesChanged, FileError, FileType, Node};
use capstan_nfs_proto::codec::DataItem;
use capstan_nfs_proto::limits::LINK_TEXT_BYTES_MAX;
use capstan_nfs_proto::v4::args::{self, CreateType};
use capstan_nfs_proto::v4::attr::AttrNumber;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::{CreateOk, RenameOk};
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ChangeInfo, Component};
use capstan_rpc_server::Data;
use nix::errno::Errno;

use super::context::{Context, File, Object, Outcome, Results};
use super::settings;
use crate::service::failure::Failure;

/// The change attribute of a directory or file before an operation changes it.
pub(super) fn change_before(file: &File) -> Result<u64, Failure> {
    Ok(file.node()?.attributes()?.change)
}

/// What an operation has changed. Others may have done so as well between the two looks.
pub(super) fn change_info(before: u64, file: &File) -> ChangeInfo {
    let now = file.node().and_then(Node::attributes);
    ChangeInfo {
        atomic: false,
        before,
        after: now.map_or(before, |now| now.change),
    }
}

/// What an operation has changed of a directory.
pub(super) const fn entries_changed(changed: &EntriesChanged) -> ChangeInfo {
    ChangeInfo {
        atomic: changed.is_atomic,
        before: changed.before.change,
        after: changed.after.change,
    }
}

/// What removing, renaming and linking say. Of what is busy it is a directory as a rule, which is
/// mounted on, and ACCESS is what knfsd says of it. A namespace is open for hosts, whatever a
/// client does: a client on Linux makes EBUSY of FILE_OPEN (RFC 8881, section 18.25.4).
fn of_entries(error: FileError) -> Failure {
    match (error, error.errno()) {
        (FileError::Namespace { .. }, _) => Status::FILE_OPEN.into(),
        (_, Some(Errno::EBUSY)) => Status::ACCESS.into(),
        _ => error.into(),
    }
}

impl Context<'_> {
    /// A target of a symbolic link, wherever the transport has put it.
    fn link_text(&self, text: &DataItem<'_>) -> Result<Vec<u8>, Status> {
        let bytes = match self.call.arguments.data(text).ok_or(Status::BADXDR)? {
            Data::Inline(bytes) if bytes.len() <= LINK_TEXT_BYTES_MAX => bytes.to_vec(),
            Data::Pulled(span, length) if length <= LINK_TEXT_BYTES_MAX => {
                let mut bytes = vec![0; length];
                span.raw().first(length).copy_to(&mut bytes);
                bytes
            }
            Data::Inline(_) | Data::Pulled(..) => return Err(Status::NAMETOOLONG),
        };
        Ok(bytes)
    }

    pub(super) fn create(
        &mut self,
        arguments: &args::Create<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        self.object()?;
        let asked = &arguments.createattrs;
        let values = settings::parse(asked, self.minor_version)?;
        // Nothing that is made here has a size to be set.
        if values.size.is_some() {
            return Err(Status::INVAL.into());
        }
        let directory = self.file_or(Status::ROFS)?;
        let name = directory.name(arguments.objname)?;
        let to = settings::of_new(&values, &directory)?;
        let (parent, caller) = (directory.node()?, &directory.caller);
        let mut attrset = settings::was_tried(&asked.mask, &to);
        let special = |special| parent.make_special(caller, name, special, &to);
        let (made, changed) = match &arguments.objtype {
            CreateType::Directory => parent.make_directory(caller, name, &to),
            CreateType::SymbolicLink(text) => {
                // A link has no mode on Linux.
                for mode in [
                    AttrNumber::MODE,
                    AttrNumber::MODE_SET_MASKED,
                    AttrNumber::MODE_UMASK,
                ] {
                    attrset.remove(mode.0);
                }
                parent.make_symlink(caller, name, &self.link_text(text)?, &to)
            }
            CreateType::Block(numbers) => special(Special::Block(numbers.major, numbers.minor)),
            CreateType::Character(numbers) => {
                special(Special::Character(numbers.major, numbers.minor))
            }
            CreateType::Socket => special(Special::Socket),
            CreateType::Fifo => special(Special::Fifo),
            // Regular files are made by OPEN (RFC 8881, section 18.4.3).
            CreateType::Other(_) => return Err(Status::BADTYPE.into()),
        }?;
        let made = self.object_of(made)?;
        self.set_object(made);
        Ok(results.push(&OpResult::Create(CreateOk {
            cinfo: entries_changed(&changed),
            attrset,
        }))?)
    }

    pub(super) fn read_link(&mut self, results: &mut Results<'_, '_>) -> Outcome {
        let link = self.file_or(Status::WRONG_TYPE)?;
        if link.node()?.file_type() != FileType::Symlink {
            return Err(Status::WRONG_TYPE.into());
        }
        let text = link.node()?.read_link(&link.caller)?;
        let item = match self.call.results.next(results.writer()) {
            None => DataItem::Inline(&text),
            Some(place) => {
                if place.copy_from(0, &text) < text.len() {
                    return Err(Status::REP_TOO_BIG.into());
                }
                DataItem::Reduced {
                    index: results.writer().reduced_items().len(),
                    length_bytes: u32::try_from(text.len()).unwrap_or(u32::MAX),
                }
            }
        };
        Ok(results.push(&OpResult::ReadLink(item))?)
    }

    /// The file that a change of names may be the last of, where one is kept open that no client
    /// has open: it would keep its space.
    fn kept_open(&self, directory: &File, name: Name<'_>) -> Option<Node> {
        if self.service.cached.count() == 0 {
            return None;
        }
        let found = directory
            .node()
            .and_then(|node| node.lookup(self.exports, &directory.caller, name));
        found
            .ok()
            .filter(|node| node.file_type() == FileType::Regular)
    }

    fn close_kept(&self, file: Option<Node>) {
        if let Some(node) = file
            && node.attributes().is_ok_and(|now| now.link_count == 0)
        {
            let cached = &self.service.cached;
            cached.forget_file(node.export().id(), node.kernel_handle());
        }
    }

    fn check_grace(&self) -> Result<(), Status> {
        self.service
            .with_state(|state, now_us| state.may_take_names(now_us))?
    }

    /// Whatever opens the file has it until it is closed.
    pub(super) fn remove(
        &mut self,
        component: Component<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let directory = self.file_or(Status::ROFS)?;
        let name = directory.name(component)?;
        self.check_grace()?;
        let kept = self.kept_open(&directory, name);
        let changed = directory
            .node()?
            .remove(&directory.caller, name, Removed::Any)
            .map_err(of_entries)?;
        self.close_kept(kept);
        Ok(results.push(&OpResult::Remove(entries_changed(&changed)))?)
    }

    /// The saved and the current object, both in one export.
    ///
    /// # Errors
    /// NFS4ERR_NOFILEHANDLE, NFS4ERR_ROFS in the pseudo file system, NFS4ERR_XDEV.
    fn both_files(&self) -> Result<(Arc<File>, Arc<File>), Status> {
        let current = self.object()?;
        match (self.saved.as_ref().ok_or(Status::NOFILEHANDLE)?, current) {
            (Object::File(saved), Object::File(current)) => Ok((saved.clone(), current.clone())),
            (Object::Pseudo(_), Object::Pseudo(_)) => Err(Status::ROFS),
            (Object::Pseudo(_), Object::File(_)) | (Object::File(_), Object::Pseudo(_)) => {
                Err(Status::XDEV)
            }
        }
    }

    pub(super) fn rename(
        &mut self,
        arguments: &args::Rename<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let (source, target) = self.both_files()?;
        let from = source.name(arguments.oldname)?;
        let to = target.name(arguments.newname)?;
        self.check_grace()?;
        let kept = self.kept_open(&target, to);
        let [of_source, of_target] = source
            .node()?
            .rename(&source.caller, from, target.node()?, to)
            .map_err(of_entries)?;
        self.close_kept(kept);
        Ok(results.push(&OpResult::Rename(RenameOk {
            source_cinfo: entries_changed(&of_source),
            target_cinfo: entries_changed(&of_target),
        }))?)
    }

    pub(super) fn link(
        &mut self,
        component: Component<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let (file, directory) = self.both_files()?;
        let name = directory.name(component)?;
        // RFC 8881, section 18.9.3.
        if file.node()?.file_type() == FileType::Directory {
            return Err(Status::ISDIR.into());
        }
        let changed = directory
            .node()?
            .link(&directory.caller, name, file.node()?)
            .map_err(of_entries)?;
        Ok(results.push(&OpResult::Link(entries_changed(&changed)))?)
    }
}
