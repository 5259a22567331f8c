//! Operations on the current and the saved filehandle: PUTFH, PUTROOTFH, PUTPUBFH, GETFH, SAVEFH,
//! RESTOREFH, LOOKUP and LOOKUPP (RFC 8881, sections 18.8, 18.13, 18.14, 18.19 to 18.21, 18.27 and
//! 18.28).

use std::sync::Arc;
use std::time::Instant;

use capstan_exports::name::{Name, NameRule};
use capstan_exports::pseudo::PseudoEntry;
use capstan_exports::{ExportId, FileError, FileType, Found, Handle, Node, PseudoId};
use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{Component, Filehandle};
use capstan_rpc_server::PEER_CAUSED;

use super::context::{Context, Object, Outcome, Results};
use crate::service::failure::Failure;
use crate::service::mount::paths_of;

impl Context<'_> {
    /// PUTROOTFH, and PUTPUBFH, which is the same (RFC 8881, section 18.20.3).
    pub(super) fn put_root(&mut self, op: OpNum, results: &mut Results<'_, '_>) -> Outcome {
        let root = self.entry(self.exports.tree().root())?;
        self.set_object(root);
        Ok(results.push(&OpResult::Done(op))?)
    }

    pub(super) fn put(&mut self, handle: Filehandle<'_>, results: &mut Results<'_, '_>) -> Outcome {
        let object = match self.exports.find(handle.0)? {
            Found::Pseudo(id) => Object::Pseudo(id),
            Found::File(export, kernel) => {
                // Before the file is looked for: a client without the export learns nothing of it.
                let file = self.file_of_handle(export, kernel)?;
                // What a client has open is read and written without it.
                if !matches!(self.next, Some(OpNum::READ | OpNum::WRITE)) {
                    file.node()?;
                }
                Object::File(Arc::new(file))
            }
        };
        self.set_object(object);
        Ok(results.push(&OpResult::Done(OpNum::PUTFH))?)
    }

    /// The handle of an object.
    pub(super) fn handle(&self, object: &Object) -> Handle {
        match object {
            Object::Pseudo(id) => self.exports.pseudo_handle(*id),
            Object::File(file) => file.handle(self.exports),
        }
    }

    pub(super) fn get_handle(&mut self, results: &mut Results<'_, '_>) -> Outcome {
        let handle = self.handle(self.object()?);
        Ok(results.push(&OpResult::GetFh(Opaque(handle.bytes())))?)
    }

    pub(super) fn save(&mut self, results: &mut Results<'_, '_>) -> Outcome {
        self.saved = Some(self.object()?.clone());
        self.stateids.save();
        Ok(results.push(&OpResult::Done(OpNum::SAVEFH))?)
    }

    pub(super) fn restore(&mut self, results: &mut Results<'_, '_>) -> Outcome {
        let saved = self.saved.clone().ok_or(Status::NOFILEHANDLE)?;
        self.current = Some(saved);
        self.stateids.restore();
        Ok(results.push(&OpResult::Done(OpNum::RESTOREFH))?)
    }

    /// What an entry of the pseudo file system stands for.
    pub(super) fn entry(&self, entry: PseudoEntry) -> Result<Object, Failure> {
        match entry {
            PseudoEntry::Directory(id) => Ok(Object::Pseudo(id)),
            PseudoEntry::Export(id) => self.root_of(id),
        }
    }

    fn root_of(&self, id: ExportId) -> Result<Object, Failure> {
        let export = self.exports.opened(id)?;
        self.caller(&export)?;
        Ok(self.object_of(Node::root(&export)?)?)
    }

    pub(super) fn look_up(
        &mut self,
        component: Component<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let found = self.found(component)?;
        self.set_object(found);
        Ok(results.push(&OpResult::Done(OpNum::LOOKUP))?)
    }

    /// What a name of the current directory stands for.
    ///
    /// # Errors
    /// As of LOOKUP (RFC 8881, section 18.13.4).
    pub(super) fn found(&self, component: Component<'_>) -> Result<Object, Failure> {
        match self.object()? {
            Object::Pseudo(directory) => {
                let name = Name::new(component.0, NameRule::Utf8).map_err(FileError::from)?;
                let entry = self.exports.tree().lookup(*directory, name);
                let Some(entry) = entry else {
                    self.tell_missing(*directory, &name);
                    return Err(Status::NOENT.into());
                };
                self.entry(entry)
            }
            Object::File(directory) => {
                check_directory(directory.node()?.file_type())?;
                let name = directory.name(component)?;
                let node = directory
                    .node()?
                    .lookup(self.exports, &directory.caller, name)?;
                Ok(self.object_of(node)?)
            }
        }
    }

    /// A mount of a path that leads to no export ends here.
    fn tell_missing(&self, directory: PseudoId, name: &Name<'_>) {
        let peer = self.call.peer.ip().to_canonical();
        if !self.service.missing.is_due(peer, Instant::now()) {
            return;
        }
        let mut path = self.exports.tree().path(directory);
        path.push(b'/');
        path.extend_from_slice(name.bytes());
        tracing::info!(
            target: PEER_CAUSED,
            "{peer} finds no {}: there is no such path; for it there {}",
            path.escape_ascii(),
            paths_of(self.exports, self.call.peer)
        );
    }

    pub(super) fn look_up_parent(&mut self, results: &mut Results<'_, '_>) -> Outcome {
        let parent = self.parent()?;
        self.set_object(parent);
        Ok(results.push(&OpResult::Done(OpNum::LOOKUPP))?)
    }

    /// The directory above the current one.
    ///
    /// # Errors
    /// NFS4ERR_NOENT at the root (RFC 8881, section 18.14.3), NFS4ERR_NOTDIR.
    pub(super) fn parent(&self) -> Result<Object, Failure> {
        match self.object()? {
            Object::Pseudo(directory) => {
                let parent = self.exports.tree().parent(*directory);
                Ok(Object::Pseudo(parent.ok_or(Status::NOENT)?))
            }
            Object::File(directory) => {
                check_directory(directory.node()?.file_type())?;
                match directory.node()?.parent(&directory.caller) {
                    Ok(node) => Ok(self.object_of(node)?),
                    Err(FileError::AtRoot) => {
                        let id = directory.export().id();
                        let above = self.exports.tree().above_export(id);
                        Ok(Object::Pseudo(above.ok_or(Status::NOENT)?))
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

/// # Errors
/// NFS4ERR_SYMLINK, NFS4ERR_NOTDIR (RFC 8881, section 18.13.4).
pub(super) fn check_directory(found: FileType) -> Result<(), Status> {
    match found {
        FileType::Directory => Ok(()),
        FileType::Symlink => Err(Status::SYMLINK),
        FileType::Regular
        | FileType::Block
        | FileType::Character
        | FileType::Socket
        | FileType::Fifo => Err(Status::NOTDIR),
    }
}
