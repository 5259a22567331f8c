//! What READ, WRITE and SETATTR of the size may do. RFC 8881, section 9.1.2.

use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, Stateid, StateidKind};

use super::State;
use super::opens::{FileKey, OpenId};
use super::shares::Shares;
use super::stateids::EntryKind;

/// What is done with a file's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoAccess {
    /// READ, READ_PLUS, SEEK.
    Read,
    /// WRITE, SETATTR of the size, ALLOCATE, DEALLOCATE.
    Write,
}

/// It may be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoPermit {
    /// By this open; `None` with a special stateid, where the user's permissions decide.
    pub open: Option<OpenId>,
}

impl State {
    /// Whether a client may read or write `file` with `stateid` (RFC 8881, section 9.1.2). Locks
    /// are advisory, as they are for local users, and not looked at.
    ///
    /// # Errors
    /// NFS4ERR_BAD_STATEID, NFS4ERR_OLD_STATEID; NFS4ERR_OPENMODE: it is not open for that;
    /// NFS4ERR_LOCKED: a share reservation denies it to those without an open; NFS4ERR_GRACE:
    /// one may be reclaimed that does (section 8.4.2).
    pub fn check_io(
        &mut self,
        client: ClientId,
        file: &FileKey,
        stateid: Stateid,
        access: IoAccess,
        now_us: u64,
    ) -> Result<IoPermit, Status> {
        let shares = match access {
            IoAccess::Read => Shares::READ,
            IoAccess::Write => Shares::WRITE,
        };
        match (stateid.kind(), access) {
            // Reading past share reservations (section 8.2.3); writing is as anonymous.
            (StateidKind::ReadBypass, IoAccess::Read) => return Ok(IoPermit { open: None }),
            (StateidKind::ReadBypass | StateidKind::Anonymous, _) => {
                if self.is_in_grace(now_us) {
                    return Err(Status::GRACE);
                }
                let conflicts = self.share_conflicts(file, shares, Shares::NONE, None, now_us);
                self.end_lapsed(conflicts, (Status::LOCKED, true), now_us)?;
                self.recording.await_grace_end();
                self.recording.await_file(file);
                return Ok(IoPermit { open: None });
            }
            _ => {}
        }
        let (number, entry) = self.find_state(client, stateid)?;
        if entry.file != *file {
            return Err(Status::BAD_STATEID);
        }
        let open = match entry.kind {
            EntryKind::Open(_) => number,
            EntryKind::Lock { open } => open,
        };
        match self.states.get(&open).map(|entry| &entry.kind) {
            Some(EntryKind::Open(state)) if state.access.contains(shares) => Ok(IoPermit {
                open: Some(OpenId(open)),
            }),
            Some(EntryKind::Open(_)) => Err(Status::OPENMODE),
            Some(EntryKind::Lock { .. }) | None => Err(Status::BAD_STATEID),
        }
    }

    /// Whether a client that has no state, as one of NFS version 3, may read or write `file`. A
    /// grace period does not keep it from that, as it does not with knfsd: it would wait through
    /// each restart, for share reservations that next to no client makes.
    ///
    /// # Errors
    /// NFS4ERR_LOCKED: a share reservation denies it.
    pub fn check_stateless_io(
        &mut self,
        file: &FileKey,
        access: IoAccess,
        now_us: u64,
    ) -> Result<(), Status> {
        let shares = match access {
            IoAccess::Read => Shares::READ,
            IoAccess::Write => Shares::WRITE,
        };
        let conflicts = self.share_conflicts(file, shares, Shares::NONE, None, now_us);
        self.end_lapsed(conflicts, (Status::LOCKED, true), now_us)?;
        self.recording.await_file(file);
        Ok(())
    }
}
