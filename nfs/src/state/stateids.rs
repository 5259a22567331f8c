//! Stateids: how they are made and checked, the current one, TEST_STATEID and FREE_STATEID.
//! RFC 8881, section 8.2.

use std::sync::Arc;

use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, Stateid, StateidKind};

use super::State;
use super::opens::{FileKey, Open};

/// An open or a lock owner's locks on a file.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) client: ClientId,
    pub(crate) file: FileKey,
    /// The client's name of the open or lock owner.
    pub(crate) owner: Arc<[u8]>,
    /// How often it has changed; 0 before its client was told of it.
    pub(crate) seqid: u32,
    pub(crate) kind: EntryKind,
    /// Bytes taken for it.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) enum EntryKind {
    Open(Open),
    /// Locks, which end with the open of this number.
    Lock {
        open: u64,
    },
}

/// The stateid that operations of one COMPOUND leave for the next ones (RFC 8881, section
/// 16.2.3.1.2). One is made for each COMPOUND.
#[derive(Clone, Copy, Debug)]
pub struct CurrentStateid {
    current: Stateid,
    saved: Stateid,
}

impl CurrentStateid {
    /// At the start of a COMPOUND there is none.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            current: Stateid::INVALID,
            saved: Stateid::INVALID,
        }
    }

    /// An operation (OPEN, LOCK, OPEN_DOWNGRADE, CLOSE, LOCKU) has returned `stateid`.
    pub const fn set(&mut self, stateid: Stateid) {
        self.current = stateid;
    }

    /// An operation has changed the current filehandle and returned no stateid: PUTFH, PUTROOTFH,
    /// LOOKUP …
    pub const fn forget(&mut self) {
        self.current = Stateid::INVALID;
    }

    /// SAVEFH saves it with the filehandle.
    pub const fn save(&mut self) {
        self.saved = self.current;
    }

    /// RESTOREFH.
    pub const fn restore(&mut self) {
        self.current = self.saved;
    }

    /// What `argument` stands for.
    ///
    /// # Errors
    /// NFS4ERR_BAD_STATEID: it is the current stateid, and there is none.
    pub fn resolve(&self, argument: Stateid) -> Result<Stateid, Status> {
        if argument.kind() != StateidKind::Current {
            return Ok(argument);
        }
        if self.current.kind() == StateidKind::Invalid {
            return Err(Status::BAD_STATEID);
        }
        Ok(self.current)
    }
}

impl Default for CurrentStateid {
    fn default() -> Self {
        Self::new()
    }
}

/// The seqid behind `seqid`: 0 is left out, as it stands for the latest (section 8.2.2).
pub(crate) const fn next_seqid(seqid: u32) -> u32 {
    match seqid.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

/// Whether a stateid with the seqid `given` may be used where the latest is `latest` (section
/// 8.2.4). Half of all values are earlier ones, as seqids wrap.
pub(crate) const fn check_seqid(given: u32, latest: u32) -> Result<(), Status> {
    if given == 0 || given == latest {
        return Ok(());
    }
    if given.wrapping_sub(latest) < 1 << 31 {
        Err(Status::BAD_STATEID)
    } else {
        Err(Status::OLD_STATEID)
    }
}

impl State {
    /// The stateid of an entry: the instance and the entry's number, so that none of an earlier
    /// instance is taken for one of this.
    pub(crate) fn stateid(&self, number: u64, seqid: u32) -> Stateid {
        let mut other = [0; 12];
        for (to, from) in other.iter_mut().zip(
            self.instance
                .to_be_bytes()
                .into_iter()
                .chain(number.to_be_bytes()),
        ) {
            *to = from;
        }
        Stateid { seqid, other }
    }

    /// The number in a stateid of this instance of the server.
    fn number_of(&self, stateid: Stateid) -> Option<u64> {
        let [a, b, c, d, number @ ..] = stateid.other;
        let is_own = u32::from_be_bytes([a, b, c, d]) == self.instance
            && stateid.kind() == StateidKind::Ordinary;
        is_own.then(|| u64::from_be_bytes(number))
    }

    /// The entry that `stateid` stands for: one of this client. Those of earlier instances of the
    /// server are bad, not stale, in this minor version (RFC 8881, section 15.1.16.5).
    ///
    /// # Errors
    /// NFS4ERR_BAD_STATEID, NFS4ERR_ADMIN_REVOKED whatever the seqid, and NFS4ERR_OLD_STATEID
    /// (section 8.2.4).
    pub(crate) fn find_state(
        &self,
        client: ClientId,
        stateid: Stateid,
    ) -> Result<(u64, &Entry), Status> {
        let number = self.number_of(stateid).ok_or(Status::BAD_STATEID)?;
        let own = self.states.get(&number);
        let Some(entry) = own.filter(|entry| entry.client == client) else {
            return Err(if self.is_revoked(client, number) {
                Status::ADMIN_REVOKED
            } else {
                Status::BAD_STATEID
            });
        };
        check_seqid(stateid.seqid, entry.seqid)?;
        Ok((number, entry))
    }

    /// The open that `stateid` stands for, which has to be of `file`.
    pub(crate) fn find_open(
        &self,
        client: ClientId,
        file: &FileKey,
        stateid: Stateid,
    ) -> Result<(u64, &Open), Status> {
        let (number, entry) = self.find_state(client, stateid)?;
        match &entry.kind {
            EntryKind::Open(open) if entry.file == *file => Ok((number, open)),
            EntryKind::Open(_) | EntryKind::Lock { .. } => Err(Status::BAD_STATEID),
        }
    }

    /// Moves an entry's seqid on, and gives its stateid.
    pub(crate) fn next_stateid(&mut self, number: u64) -> Stateid {
        let seqid = self.states.get_mut(&number).map_or(0, |entry| {
            entry.seqid = next_seqid(entry.seqid);
            entry.seqid
        });
        self.stateid(number, seqid)
    }

    /// TEST_STATEID of one stateid (RFC 8881, section 18.48): what an operation that used it would
    /// be told.
    #[must_use]
    pub fn test_stateid(&self, client: ClientId, stateid: Stateid) -> Status {
        self.find_state(client, stateid).err().unwrap_or(Status::OK)
    }

    /// FREE_STATEID (RFC 8881, section 18.38), by which a client also says that it knows of state
    /// that it has lost.
    ///
    /// # Errors
    /// NFS4ERR_BAD_STATEID, NFS4ERR_OLD_STATEID; NFS4ERR_LOCKS_HELD for an open, and for locks that
    /// are held or about to be.
    pub fn free_stateid(&mut self, client: ClientId, stateid: Stateid) -> Result<(), Status> {
        let number = self.number_of(stateid).ok_or(Status::BAD_STATEID)?;
        if self.free_revoked(client, number) {
            return Ok(());
        }
        let (number, entry) = self.find_state(client, stateid)?;
        match entry.kind {
            EntryKind::Open(_) => Err(Status::LOCKS_HELD),
            EntryKind::Lock { .. } => {
                let file = self.files.get(&entry.file);
                if file.is_some_and(|file| file.holds_locks(number)) {
                    return Err(Status::LOCKS_HELD);
                }
                self.remove_lock_state(number);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seqids_wrap_past_zero() {
        // RFC 8881, section 8.2.2.
        assert_eq!(next_seqid(1), 2);
        assert_eq!(next_seqid(u32::MAX), 1);
        assert_eq!(check_seqid(0, 7), Ok(()));
        assert_eq!(check_seqid(7, 7), Ok(()));
        assert_eq!(check_seqid(6, 7), Err(Status::OLD_STATEID));
        assert_eq!(check_seqid(8, 7), Err(Status::BAD_STATEID));
        assert_eq!(
            check_seqid(u32::MAX, 1),
            Err(Status::OLD_STATEID),
            "before the wrap"
        );
        assert_eq!(check_seqid(1, u32::MAX), Err(Status::BAD_STATEID));
    }

    #[test]
    fn the_current_stateid_follows_the_filehandle() {
        // RFC 8881, section 16.2.3.1.2; pynfs CSID1 to CSID10.
        let made = Stateid {
            seqid: 3,
            other: [7; 12],
        };
        let mut current = CurrentStateid::new();
        assert_eq!(current.resolve(made), Ok(made));
        assert_eq!(current.resolve(Stateid::ANONYMOUS), Ok(Stateid::ANONYMOUS));
        assert_eq!(current.resolve(Stateid::CURRENT), Err(Status::BAD_STATEID));
        current.set(made);
        assert_eq!(current.resolve(Stateid::CURRENT), Ok(made));
        current.save();
        current.forget();
        assert_eq!(current.resolve(Stateid::CURRENT), Err(Status::BAD_STATEID));
        current.restore();
        assert_eq!(current.resolve(Stateid::CURRENT), Ok(made));
    }
}
