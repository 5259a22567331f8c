//! What the procedures of NFS version 3 and of MOUNT need of a call.

use std::cell::Cell;
use std::sync::Arc;

use capstan_exports::clients::Refused;
use capstan_exports::name::Name;
use capstan_exports::{
    Caller, Credentials, EntriesChanged, Export, ExportId, Exports, Found, Handle, Node,
    OpenAccess, OpenFile,
};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::{FileName, Filehandle, PostOpAttr, WccData};
use capstan_rpc_server::{Call, PEER_REPEATS};
use capstan_rpcrdma::rpc::{Call as Header, Credentials as RpcCredentials};

use super::convert;
use super::failure::Failure;
use crate::service::{Service, v4};
use crate::state::IoAccess;

/// A call.
pub(in crate::service) struct Context<'a> {
    pub(in crate::service) service: &'a Service,
    pub(in crate::service) exports: &'a Exports,
    pub(in crate::service) call: &'a Call<'a>,
    credentials: Credentials<'a>,
    /// The export of the file that was named last.
    pub(super) export: Cell<Option<ExportId>>,
}

/// A file, and the identity that operations on it run with.
#[derive(Debug)]
pub(super) struct File {
    pub(super) node: Node,
    pub(super) caller: Caller,
}

impl<'a> Context<'a> {
    pub(in crate::service) fn new(
        service: &'a Service,
        call: &'a Call<'a>,
        header: &'a Header<'a>,
    ) -> Self {
        let credentials = match &header.credentials {
            // An id that is none, which every export makes its anonymous one.
            RpcCredentials::None => Credentials {
                uid: u32::MAX,
                gid: u32::MAX,
                groups: &[],
            },
            RpcCredentials::Sys(sys) => Credentials {
                uid: sys.uid,
                gid: sys.gid,
                groups: sys.gids.as_slice(),
            },
        };
        Self {
            service,
            exports: service.exports(),
            call,
            credentials,
            export: Cell::new(None),
        }
    }

    /// The user as an export has it.
    ///
    /// # Errors
    /// NFS3ERR_ACCES: the client may not use the export; NFS3ERR_PERM: not from that port.
    pub(in crate::service) fn caller(&self, export: &Export) -> Result<Caller, Failure> {
        let caller = export.caller(self.call.peer, &self.credentials);
        caller.map_err(|refused| {
            tracing::info!(
                target: PEER_REPEATS,
                "{} is refused {}: {refused}",
                self.call.peer.ip().to_canonical(),
                export.settings().client_path
            );
            Failure(match refused {
                Refused::NoNetwork(_) => Status::ACCES,
                Refused::InsecurePort { .. } => Status::PERM,
            })
        })
    }

    /// The file that a handle stands for. One of a directory of the pseudo file system, which
    /// version 4 alone has, is stale.
    ///
    /// # Errors
    /// NFS3ERR_BADHANDLE, NFS3ERR_STALE, and as of [`Context::caller`].
    pub(super) fn file(&self, handle: Filehandle<'_>) -> Result<File, Failure> {
        match self.exports.find(handle.0)? {
            Found::Pseudo(_) => Err(Failure(Status::STALE)),
            Found::File(export, kernel) => {
                self.export.set(Some(export.id()));
                // Before the file is looked for: a client without the export learns nothing of it.
                let caller = self.caller(&export)?;
                let node = Node::open_handle(&export, &kernel)?;
                Ok(File { node, caller })
            }
        }
    }

    /// The handle of a file, if NFS version 3 can carry it: `None` is said in the log.
    pub(in crate::service) fn handle(&self, node: &Node) -> Option<Handle> {
        let handle = self.exports.handle(node);
        if !handle.fits_v3() {
            tracing::warn!(
                "a file of {} cannot be had by NFS version 3: its handle has {} bytes, expected \
                 at most 64; mount with vers=4.2",
                node.export().settings().client_path,
                handle.bytes().len(),
            );
            return None;
        }
        Some(handle)
    }

    /// The file open, from before or anew, with what NFS version 3 lets its owner do (RFC 1813,
    /// section 4.4).
    ///
    /// # Errors
    /// NFS3ERR_ACCES where a client of version 4 denies it, and what the kernel says.
    pub(super) fn open(&self, file: &File, access: OpenAccess) -> Result<Arc<OpenFile>, Failure> {
        let io_access = if access.writes() {
            IoAccess::Write
        } else {
            IoAccess::Read
        };
        let key = v4::key_of(file.node.export().id(), file.node.kernel_handle())?;
        self.service
            .with_state(|state, now_us| state.check_stateless_io(&key, io_access, now_us))??;
        let files = &self.service.cached;
        Ok(files.open(&file.node, &file.caller, access)?)
    }
}

impl File {
    /// A name in this directory, by the rule of its export.
    ///
    /// # Errors
    /// NFS3ERR_NAMETOOLONG, NFS3ERR_ACCES: it is none.
    pub(super) fn name<'n>(&self, name: FileName<'n>) -> Result<Name<'n>, Failure> {
        let rule = self.node.export().settings().names;
        Name::new(name.0, rule).map_err(|problem| capstan_exports::FileError::from(problem).into())
    }
}

/// Attributes of a file behind a procedure.
pub(super) fn after(file: &Result<File, Failure>) -> PostOpAttr {
    let file = file.as_ref().ok()?;
    convert::attributes(&file.node).ok()
}

/// What a file is behind a procedure. What it was before is left out: it would have to be of the
/// moment of the change (RFC 1813, section 2.6), and the kernel has no such question. A client that
/// got something older would take the changes of others for its own.
pub(super) fn changed(file: &Result<File, Failure>) -> WccData {
    WccData {
        before: None,
        after: after(file),
    }
}

/// What a directory was before a procedure has changed its entries, where nothing else has changed
/// in between, and what it is behind it.
pub(super) fn entries_changed(dir: &File, change: &EntriesChanged) -> WccData {
    WccData {
        before: change.is_atomic.then(|| convert::before(&change.before)),
        after: Some(convert::attributes_of(dir.node.export(), &change.after)),
    }
}
