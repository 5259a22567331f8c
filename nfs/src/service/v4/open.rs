//! OPEN, OPEN_DOWNGRADE and CLOSE (RFC 8881, sections 18.2, 18.16 and 18.18).

use std::sync::Arc;

use capstan_exports::entries::Create;
use capstan_exports::name::NameRule;
use capstan_exports::{FileError, Name, Node, OpenFile, PseudoId, SetAttributes};
use capstan_nfs_proto::v4::args::{self, CreateHow, OpenClaim, OpenHow, ShareAccess};
use capstan_nfs_proto::v4::attr::AttrNumber;
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::{Delegation, NoDelegation, OpenOk, OpenResultFlags};
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ChangeInfo, ClientId, Component};
use nix::errno::Errno;

use super::context::{Context, File, Object, Outcome, Results};
use super::creation::Creation;
use super::entries::{change_before, entries_changed};
use super::filehandles::check_directory;
use crate::service::Service;
use crate::service::failure::Failure;
use crate::service::files::open_access;
use crate::state::{OpenRequest, OpenRoom, Opened, Shares};

/// Times that a name is looked at again which was there and gone in turns.
const NAME_ATTEMPTS: usize = 8;

/// What an OPEN asks for, whatever the file.
#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    client: ClientId,
    owner: &'a [u8],
    access: Shares,
    deny: Shares,
    is_reclaim: bool,
}

impl<'a> Asked<'a> {
    fn of(arguments: &args::Open<'a>, client: ClientId) -> Result<Self, Status> {
        Ok(Self {
            client,
            owner: arguments.owner.owner.0,
            access: Shares::access(arguments.share_access)?,
            deny: Shares::deny(arguments.share_deny)?,
            is_reclaim: matches!(arguments.claim, OpenClaim::Previous(_)),
        })
    }

    const fn request<'r>(&'r self, file: &'r File) -> OpenRequest<'r> {
        OpenRequest {
            client: self.client,
            owner: self.owner,
            file: &file.key,
            access: self.access,
            deny: self.deny,
            is_reclaim: self.is_reclaim,
        }
    }
}

/// Room in the state, given back unless it becomes an open.
#[derive(Debug)]
struct Room<'s> {
    service: &'s Service,
    room: Option<OpenRoom>,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            self.service
                .update(|state, _now_us| state.give_back_open_room(room));
        }
    }
}

/// A file that was opened, and is no open yet.
#[derive(Debug)]
struct Found<'s> {
    file: Arc<File>,
    open: Arc<OpenFile>,
    /// The file is to be emptied, when it is an open.
    is_to_be_emptied: bool,
    /// The attributes that were set.
    attrset: Bitmap,
    /// The directory, where it was changed.
    cinfo: Option<ChangeInfo>,
    /// Taken before the file was made.
    room: Option<Room<'s>>,
}

/// There are no delegations: what a client is told that wants one, or says that it does not.
///
/// # Errors
/// NFS4ERR_INVAL: a want that does not exist.
const fn no_delegation(share_access: ShareAccess) -> Result<Delegation<'static>, Status> {
    // RFC 8881, section 18.16.1, OPEN4_SHARE_ACCESS_WANT_…
    match share_access.want() {
        0 => Ok(Delegation::None),
        0x100 | 0x200 | 0x300 => Ok(Delegation::NoneExt(NoDelegation::Resource(false))),
        ShareAccess::WANT_NO_DELEG => Ok(Delegation::NoneExt(NoDelegation::NotWanted)),
        0x500 => Ok(Delegation::NoneExt(NoDelegation::Cancelled)),
        _ => Err(Status::INVAL),
    }
}

/// What is told of a directory when a file is opened by its handle.
const NO_DIRECTORY: ChangeInfo = ChangeInfo {
    atomic: false,
    before: 0,
    after: 0,
};

impl<'s> Context<'s> {
    pub(super) fn open(
        &mut self,
        arguments: &args::Open<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let asked = Asked::of(arguments, self.client()?)?;
        let delegation = no_delegation(arguments.share_access)?;
        self.object()?;
        // Nothing is even looked up before others may have what they had.
        self.service.with_state(|state, now_us| {
            state.may_obtain(asked.client, asked.is_reclaim, now_us)
        })??;
        let mut found = match (arguments.claim, &arguments.openhow) {
            (OpenClaim::Null(name), OpenHow::NoCreate) => self.find(&asked, name, None)?,
            (OpenClaim::Null(name), OpenHow::Create(how)) => self.find(&asked, name, Some(how))?,
            // No delegation outlives its client here (section 10.2.1).
            (OpenClaim::DelegatePrevious(_) | OpenClaim::DelegatePreviousFh, _) => {
                return Err(Status::NOTSUPP.into());
            }
            // Only what has a name can be made.
            (_, OpenHow::Create(_)) => return Err(Status::INVAL.into()),
            (OpenClaim::Fh | OpenClaim::Previous(_), OpenHow::NoCreate) => {
                self.find_current(&asked)?
            }
            // There are none that it could be of.
            (OpenClaim::DelegateCurrent(_) | OpenClaim::DelegateCurrentFh(_), _) => {
                return Err(Status::BAD_STATEID.into());
            }
        };
        let opened = self.keep(&asked, &mut found)?;
        if found.is_to_be_emptied {
            self.empty(&asked, &found, &opened)?;
        }
        self.set_object(Object::File(found.file));
        self.stateids.set(opened.stateid);
        Ok(results.push(&OpResult::Open(OpenOk {
            stateid: opened.stateid,
            cinfo: found.cinfo.unwrap_or(NO_DIRECTORY),
            rflags: OpenResultFlags::LOCKTYPE_POSIX,
            attrset: found.attrset,
            delegation,
        }))?)
    }

    /// Opens the current file. The owner of one that was open before a restart gets it back
    /// whatever its mode is now: it may have been made without the right to write it.
    fn find_current(&self, asked: &Asked<'_>) -> Result<Found<'s>, Failure> {
        let file = self.file_or(Status::ISDIR)?;
        self.service
            .with_state(|state, now_us| state.may_open(&asked.request(&file), now_us))??;
        let access = open_access(asked.access);
        let open = file.node()?.open(&file.caller, access, asked.is_reclaim)?;
        Ok(Found {
            file,
            open: Arc::new(open),
            is_to_be_emptied: false,
            attrset: Bitmap::EMPTY,
            cinfo: None,
            room: None,
        })
    }

    /// Opens the file of a name in the current directory, or makes it.
    fn find(
        &self,
        asked: &Asked<'_>,
        name: Component<'_>,
        how: Option<&CreateHow<'_>>,
    ) -> Result<Found<'s>, Failure> {
        let directory = match self.object()? {
            Object::File(directory) => directory.clone(),
            Object::Pseudo(_) if how.is_some() => return Err(Status::ROFS.into()),
            Object::Pseudo(directory) => return Err(self.refuse_pseudo(*directory, name)),
        };
        check_directory(directory.node()?.file_type())?;
        let name = directory.name(name)?;
        // A file that is there is opened in a directory as it was before, or a later one, of which
        // the client learns when it looks at the directory.
        let change = change_before(&directory)?;
        let unchanged = ChangeInfo {
            atomic: true,
            before: change,
            after: change,
        };
        let found = match how {
            None => self.find_existing(asked, self.named(&directory, name)?, None)?,
            Some(how) => {
                let creation = Creation::parse(how, &directory, self.minor_version)?;
                self.find_or_make(asked, &directory, name, &creation)?
            }
        };
        Ok(Found {
            cinfo: found.cinfo.or(Some(unchanged)),
            ..found
        })
    }

    /// There are only directories in the pseudo file system.
    fn refuse_pseudo(&self, directory: PseudoId, name: Component<'_>) -> Failure {
        match Name::new(name.0, NameRule::Utf8) {
            Err(problem) => FileError::from(problem).into(),
            Ok(name) => match self.exports.tree().lookup(directory, name) {
                Some(_) => Status::ISDIR.into(),
                None => Status::NOENT.into(),
            },
        }
    }

    fn named(&self, directory: &File, name: Name<'_>) -> Result<Node, FileError> {
        directory
            .node()?
            .lookup(self.exports, &directory.caller, name)
    }

    fn find_or_make(
        &self,
        asked: &Asked<'_>,
        directory: &File,
        name: Name<'_>,
        creation: &Creation,
    ) -> Result<Found<'s>, Failure> {
        // What is there is opened by its handle, so that nothing else is emptied in its place.
        let (how, is_unchecked) = match creation.how {
            Create::Unchecked => (Create::Guarded, true),
            how @ (Create::Guarded | Create::Exclusive(_)) => (how, false),
        };
        for _ in 0..NAME_ATTEMPTS {
            if is_unchecked {
                match self.named(directory, name) {
                    Ok(node) => return self.find_existing(asked, node, Some(creation)),
                    Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let room = self
                .service
                .update(|state, now_us| state.take_open_room(asked.client, asked.owner, now_us))?;
            let room = Room {
                service: self.service,
                room: Some(room),
            };
            let access = open_access(asked.access);
            let caller = &directory.caller;
            let made = directory
                .node()?
                .create(caller, name, how, &creation.attributes, access);
            match made {
                Ok(made) => {
                    return Ok(Found {
                        file: Arc::new(self.file(made.node)?),
                        open: Arc::new(made.file),
                        is_to_be_emptied: false,
                        // Of one that this verifier has made before as well: its times, which tell
                        // that, were set behind all else.
                        attrset: creation.attrset,
                        cinfo: made.directory.as_ref().map(entries_changed),
                        room: Some(room),
                    });
                }
                Err(error) if is_unchecked && error.errno() == Some(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Status::DELAY.into())
    }

    /// Opens a file that is there.
    fn find_existing(
        &self,
        asked: &Asked<'_>,
        node: Node,
        creation: Option<&Creation>,
    ) -> Result<Found<'s>, Failure> {
        let file = Arc::new(self.file(node)?);
        self.service
            .with_state(|state, now_us| state.may_open(&asked.request(&file), now_us))??;
        let open = file
            .node()?
            .open(&file.caller, open_access(asked.access), false)?;
        let is_to_be_emptied = creation.is_some_and(|creation| creation.empties);
        if is_to_be_emptied && !asked.access.contains(Shares::WRITE) {
            return Err(Status::INVAL.into());
        }
        let size = Bitmap::EMPTY.with(AttrNumber::SIZE.0);
        Ok(Found {
            file,
            open: Arc::new(open),
            is_to_be_emptied,
            attrset: if is_to_be_emptied {
                size
            } else {
                Bitmap::EMPTY
            },
            cinfo: None,
            room: None,
        })
    }

    /// Makes an open of what was opened.
    fn keep(&self, asked: &Asked<'_>, found: &mut Found<'_>) -> Result<Opened, Failure> {
        let room = found.room.as_mut().and_then(|room| room.room.take());
        let request = asked.request(&found.file);
        let kept = self.service.with_state(|state, now_us| {
            let opened = match room {
                Some(room) => state.open_in(&request, room, now_us)?,
                None => state.open(&request, now_us)?,
            };
            // While nothing can close the open.
            let released = self
                .service
                .files
                .keep_open(opened.open, found.open.clone());
            Ok::<_, Status>((opened, released))
        })?;
        let (opened, _released) = kept?;
        Ok(opened)
    }

    fn empty(&self, asked: &Asked<'_>, found: &Found<'_>, opened: &Opened) -> Outcome {
        let File { caller, key, .. } = found.file.as_ref();
        let to = SetAttributes {
            size_bytes: Some(0),
            ..SetAttributes::default()
        };
        let node = found.file.node()?;
        let (_set, emptied) = node.set_attributes(caller, &to, Some(&found.open));
        if emptied.is_err() && opened.is_new {
            // The client is not told of it, so it could not close it.
            let stateid = opened.stateid;
            self.service
                .with_state(|state, _now_us| state.close(asked.client, key, stateid))??;
        }
        Ok(emptied?)
    }

    pub(super) fn open_downgrade(
        &mut self,
        arguments: &args::OpenDowngrade,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let client = self.client()?;
        let file = self.file_or(Status::BAD_STATEID)?;
        let access = Shares::access(arguments.share_access)?;
        let deny = Shares::deny(arguments.share_deny)?;
        let stateid = self.stateids.resolve(arguments.open_stateid)?;
        let narrowed = self.service.with_state(|state, _now_us| {
            let stateid = state.open_downgrade(client, &file.key, stateid, access, deny)?;
            let open = state.open_of(client, &file.key, stateid)?;
            let left = state.accesses_of(open);
            Ok::<_, Status>((stateid, self.service.files.narrow(open, &left)))
        })?;
        let (stateid, _released) = narrowed?;
        self.stateids.set(stateid);
        Ok(results.push(&OpResult::OpenDowngrade(stateid))?)
    }

    pub(super) fn close(
        &mut self,
        arguments: &args::Close,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let client = self.client()?;
        let file = self.file_or(Status::BAD_STATEID)?;
        let stateid = self.stateids.resolve(arguments.open_stateid)?;
        let stateid = self
            .service
            .with_state(|state, _now_us| state.close(client, &file.key, stateid))??;
        self.stateids.set(stateid);
        Ok(results.push(&OpResult::Close(stateid))?)
    }
}
