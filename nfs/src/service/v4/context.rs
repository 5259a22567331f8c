//! What the operations of one COMPOUND share.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use capstan_exports::name::Name;
use capstan_exports::{
    Caller, Credentials, Export, ExportId, Exports, FileError, Handle, KERNEL_HANDLE_BYTES,
    KernelHandle, Node, PseudoId,
};
use capstan_nfs_proto::v4::opnum::{MinorVersion, OpNum};
use capstan_nfs_proto::v4::reply::ReplyEncoder;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, Component};
use capstan_rpc_server::{Call, PEER_REPEATS};
use capstan_rpcrdma::rpc::{AuthFlavor, Credentials as RpcCredentials, Gids};

use super::budget::Budget;
use crate::counters::Place;
use crate::service::Service;
use crate::service::failure::Failure;
use crate::state::{ConnId, CurrentStateid, FileKey, InSession, Peer, Principal, State};

/// A file, and the identity that operations on it run with.
#[derive(Debug)]
pub(super) struct File {
    /// What it is looked for by.
    export: Arc<Export>,
    kernel: KernelHandle,
    /// The file, once it was needed: reads and writes of what is open do not.
    node: OnceLock<Node>,
    /// The caller, as its export has it.
    pub(super) caller: Caller,
    /// Its name in the state.
    pub(super) key: FileKey,
}

/// What a filehandle stands for.
#[derive(Clone, Debug)]
pub(super) enum Object {
    /// A directory of the pseudo file system.
    Pseudo(PseudoId),
    /// Anything of an export.
    File(Arc<File>),
}

/// The user of a call, as the client says.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    flavor: AuthFlavor,
    uid: u32,
    gid: u32,
    groups: Gids,
}

/// An id that is none, which every export makes its anonymous one.
const NO_ID: u32 = u32::MAX;

impl User {
    pub(super) fn of(credentials: &RpcCredentials<'_>) -> Self {
        match credentials {
            RpcCredentials::None => Self {
                flavor: AuthFlavor::NONE,
                uid: NO_ID,
                gid: NO_ID,
                groups: Gids::default(),
            },
            RpcCredentials::Sys(sys) => Self {
                flavor: AuthFlavor::SYS,
                uid: sys.uid,
                gid: sys.gid,
                groups: sys.gids,
            },
        }
    }
}

/// Whether operations may wait for a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waits {
    /// They do.
    May,
    /// They may not.
    MayNot,
    /// One would have had to: its failure is none, and all is to be done again.
    Would,
}

/// Operations of a COMPOUND that may not wait: SEQUENCE, PUTFH and READ.
pub(super) const OPERATIONS_AT_ONCE: usize = 3;

/// What the operations of one COMPOUND share.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) service: &'a Service,
    pub(super) exports: &'a Exports,
    pub(super) call: &'a Call<'a>,
    pub(super) user: User,
    pub(super) minor_version: MinorVersion,
    /// The request, behind a SEQUENCE.
    pub(super) in_session: Option<InSession>,
    /// Whether no operation follows the one that is carried out.
    pub(super) is_last: bool,
    /// The one that follows.
    pub(super) next: Option<OpNum>,
    pub(super) waits: Cell<Waits>,
    /// Of operations that may not wait: what is counted of them once none has had to.
    pub(super) uncounted: [Option<(Place, OpNum, Status)>; OPERATIONS_AT_ONCE],
    /// What it may have done yet of what takes long.
    pub(super) budget: Budget,
    /// The current filehandle.
    pub(super) current: Option<Object>,
    /// The saved filehandle.
    pub(super) saved: Option<Object>,
    /// The current stateid, and the saved one.
    pub(super) stateids: CurrentStateid,
}

/// The reply of a COMPOUND, to which each operation adds its result.
pub(super) type Results<'w, 'b> = ReplyEncoder<'w, 'b>;

/// What an operation is: it adds its result to the reply, or has failed.
pub(super) type Outcome = Result<(), Failure>;

impl Context<'_> {
    /// Whether an operation may wait for a file.
    pub(super) fn may_wait(&self) -> bool {
        self.waits.get() == Waits::May
    }

    /// Counts an operation that has ended so, or keeps it to be counted ([`Context::count`]).
    pub(super) fn note(&mut self, op: OpNum, status: Status) {
        let export = match &self.current {
            Some(Object::File(file)) => Some(file.export().id()),
            Some(Object::Pseudo(_)) | None => None,
        };
        let place = Place::from(export);
        if self.may_wait() {
            self.service.counters().operation(place, op, status);
        } else if let Some(free) = self.uncounted.iter_mut().find(|place| place.is_none()) {
            *free = Some((place, op, status));
        }
    }

    /// Nothing had to be waited for: counts what was kept for that.
    pub(super) fn count(&self) {
        let ended = self.uncounted.iter().flatten().copied();
        self.service.counters().operations(ended);
    }

    /// The failure of an operation that may not wait and has to.
    pub(super) fn would_wait(&self) -> Failure {
        self.waits.set(Waits::Would);
        Status::DELAY.into()
    }

    /// As `Service::with_state`, where operations may wait. Else what has to is done once more.
    pub(super) fn with_state<T>(
        &self,
        work: impl FnOnce(&mut State, u64) -> T,
    ) -> Result<T, Status> {
        if self.may_wait() {
            self.service.with_state(work)
        } else {
            let done = self.service.with_state_now(work);
            done.ok_or_else(|| self.would_wait().0)
        }
    }

    /// The client that the request comes from.
    pub(super) fn peer(&self) -> Peer {
        Peer {
            connection: ConnId(self.call.connection.0),
            address: self.call.peer.ip(),
            principal: Principal {
                flavor: self.user.flavor.0,
                id: self.user.uid,
            },
        }
    }

    /// The client of the session.
    ///
    /// # Errors
    /// NFS4ERR_OP_NOT_IN_SESSION.
    pub(super) fn client(&self) -> Result<ClientId, Status> {
        let request = self.in_session.as_ref();
        request
            .map(|request| request.client)
            .ok_or(Status::OP_NOT_IN_SESSION)
    }

    /// The current filehandle.
    ///
    /// # Errors
    /// NFS4ERR_NOFILEHANDLE.
    pub(super) fn object(&self) -> Result<&Object, Status> {
        self.current.as_ref().ok_or(Status::NOFILEHANDLE)
    }

    /// The file of the current filehandle; `otherwise` for a directory of the pseudo file system.
    ///
    /// # Errors
    /// NFS4ERR_NOFILEHANDLE, or that status.
    pub(super) fn file_or(&self, otherwise: Status) -> Result<Arc<File>, Status> {
        match self.object()? {
            Object::File(file) => Ok(file.clone()),
            Object::Pseudo(_) => Err(otherwise),
        }
    }

    /// As [`Context::file_or`], of the saved filehandle.
    ///
    /// # Errors
    /// As there.
    pub(super) fn saved_file_or(&self, otherwise: Status) -> Result<Arc<File>, Status> {
        match self.saved.as_ref().ok_or(Status::NOFILEHANDLE)? {
            Object::File(file) => Ok(file.clone()),
            Object::Pseudo(_) => Err(otherwise),
        }
    }

    /// Makes another object the current one. There is no current stateid then (RFC 8881, section
    /// 16.2.3.1.2).
    pub(super) fn set_object(&mut self, object: Object) {
        self.current = Some(object);
        self.stateids.forget();
    }

    /// The user as an export has it.
    ///
    /// # Errors
    /// NFS4ERR_ACCESS: the client may not use the export; NFS4ERR_PERM: not from that port.
    pub(super) fn caller(&self, export: &Export) -> Result<Caller, Status> {
        use capstan_exports::clients::Refused;
        let credentials = Credentials {
            uid: self.user.uid,
            gid: self.user.gid,
            groups: self.user.groups.as_slice(),
        };
        let caller = export.caller(self.call.peer, &credentials);
        caller.map_err(|refused| {
            tracing::info!(
                target: PEER_REPEATS,
                "{} is refused {}: {refused}",
                self.call.peer.ip().to_canonical(),
                export.settings().client_path
            );
            match refused {
                Refused::NoNetwork(_) => Status::ACCESS,
                Refused::InsecurePort { .. } => Status::PERM,
            }
        })
    }

    /// Whether the client may use an export, which is not told to the log.
    pub(super) fn may_use(&self, export: &Export) -> bool {
        let rule = export.settings().clients.for_client(self.call.peer);
        rule.is_ok()
    }

    /// A file as the user has it.
    ///
    /// # Errors
    /// As of [`Context::caller`].
    pub(super) fn file(&self, node: Node) -> Result<File, Status> {
        let file = self.file_of_handle(node.export().clone(), *node.kernel_handle())?;
        Ok(File {
            node: OnceLock::from(node),
            ..file
        })
    }

    /// A file as the user has it, which is not looked for yet.
    ///
    /// # Errors
    /// As of [`Context::caller`].
    pub(super) fn file_of_handle(
        &self,
        export: Arc<Export>,
        kernel: KernelHandle,
    ) -> Result<File, Status> {
        let caller = self.caller(&export)?;
        let key = key_of(export.id(), &kernel)?;
        Ok(File {
            export,
            kernel,
            node: OnceLock::new(),
            caller,
            key,
        })
    }

    /// As [`Context::file`], the object.
    ///
    /// # Errors
    /// As there.
    pub(super) fn object_of(&self, node: Node) -> Result<Object, Status> {
        self.file(node).map(|file| Object::File(Arc::new(file)))
    }
}

/// The name of a file in the state: its export, and the kernel's handle of it.
///
/// # Errors
/// NFS4ERR_BADHANDLE, which no handle of a node is.
pub(in crate::service) fn key_of(
    export: ExportId,
    kernel: &KernelHandle,
) -> Result<FileKey, Status> {
    let kind = kernel.kind().to_be_bytes();
    let mut bytes = [0; 2 + KERNEL_HANDLE_BYTES];
    let all = kind.iter().chain(kernel.bytes());
    let length = bytes
        .iter_mut()
        .zip(all)
        .map(|(to, from)| *to = *from)
        .count();
    FileKey::new(export.0.into(), bytes.get(..length).unwrap_or_default())
}

impl File {
    /// The file.
    ///
    /// # Errors
    /// NFS4ERR_STALE where it was deleted.
    pub(super) fn node(&self) -> Result<&Node, FileError> {
        if let Some(node) = self.node.get() {
            return Ok(node);
        }
        let node = Node::open_handle(&self.export, &self.kernel)?;
        Ok(self.node.get_or_init(|| node))
    }

    /// Its handle.
    pub(super) fn handle(&self, exports: &Exports) -> Handle {
        exports.file_handle(&self.export, &self.kernel)
    }

    /// Its export.
    pub(super) const fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// A name in this directory, by the rule of its export.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn name<'n>(&self, component: Component<'n>) -> Result<Name<'n>, Failure> {
        let rule = self.export.settings().names;
        Name::new(component.0, rule).map_err(|problem| FileError::from(problem).into())
    }
}
