//! Byte-range locks: LOCK, LOCKT, LOCKU. RFC 8881, sections 9.1 to 9.6 and 18.10 to 18.12.
//!
//! Local users see these locks and are heeded: each lock state (one lock owner's on one file) has
//! an open file description of its own at the backend, on which the driver takes the same ranges as
//! OFD locks. Taking one may fail, so a change is intended, carried out, and then committed or
//! rolled back; meanwhile it is in the way of others.

use std::sync::Arc;

use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, Stateid};

use super::limits::map_entry_bytes;
use super::lock_room::{LOCK_STATES, RANGES, SPLIT_RANGES};
use super::opens::{File, FileKey, entry_bytes};
use super::ranges::{Held, LockKind, LockRange};
use super::shares::Shares;
use super::stateids::{Entry, EntryKind};
use super::{Action, State};

/// Bytes of one range in a list that may be half empty.
pub(crate) const RANGE_BYTES: u64 = 2 * size_of::<(LockRange, LockKind)>() as u64;
/// Ranges that one change adds at most: a range of one kind in the middle of another is three.
pub(crate) const RANGES_ADDED: u64 = RANGES.added as u64;

/// A lock owner's state on a file: what the driver keeps the open file description by that has its
/// locks. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockId(pub u64);

/// A change of locks that is being carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    intent: u64,
    pub(crate) lock: LockId,
    change: LockChange,
    /// It is beyond [`RANGES`], and within [`SPLIT_RANGES`].
    pub(crate) is_beyond: bool,
}

/// Which lock owner a LOCK is of (locker4).
#[derive(Clone, Copy, Debug)]
pub enum Locker<'a> {
    /// One without locks on the file as far as the client knows.
    New {
        /// The stateid of the open by which it locks.
        open: Stateid,
        /// The lock owner, without the client ID that it is sent with.
        owner: &'a [u8],
    },
    /// One with a stateid of its own.
    Existing {
        /// That stateid.
        lock: Stateid,
    },
}

/// A LOCK.
#[derive(Clone, Copy, Debug)]
pub struct LockRequest<'a> {
    /// The client of the session.
    pub client: ClientId,
    /// The file.
    pub file: &'a FileKey,
    /// Reading or writing.
    pub kind: LockKind,
    /// The bytes.
    pub range: LockRange,
    /// Whether the lock was there before the server restarted.
    pub is_reclaim: bool,
    /// Whose it is.
    pub locker: Locker<'a>,
}

/// A LOCKT.
#[derive(Clone, Copy, Debug)]
pub struct LockTest<'a> {
    /// The client of the session.
    pub client: ClientId,
    /// The lock owner, without the client ID that it is sent with.
    pub owner: &'a [u8],
    /// The file.
    pub file: &'a FileKey,
    /// Reading or writing.
    pub kind: LockKind,
    /// The bytes.
    pub range: LockRange,
}

/// What is to become of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockChange {
    /// The bytes; [`LockRange::local`] is the local lock.
    pub range: LockRange,
    /// How they are to be locked, or `None` to be unlocked.
    pub kind: Option<LockKind>,
}

/// A change to be carried out at the backend, without waiting. [`State::commit_lock`] or
/// [`State::roll_back_lock`] ends it, and has to: its client cannot be ended until then.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the change has to be committed or rolled back"]
pub struct LockIntent {
    intent: u64,
    /// Whose description it is carried out on; a new one, when the driver has none.
    pub lock: LockId,
    /// The file.
    pub file: FileKey,
    /// The change.
    pub change: LockChange,
}

/// A lock in the way (LOCK4denied).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denied {
    /// Its bytes.
    pub range: LockRange,
    /// Its kind.
    pub kind: LockKind,
    /// Its client.
    pub client: ClientId,
    /// Its owner.
    pub owner: Arc<[u8]>,
}

/// Why there is no lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockRefusal {
    /// NFS4ERR_DENIED: another owner has one. No client is told when it goes: they ask again.
    Denied(Denied),
    /// Another status.
    Status(Status),
}

impl From<Status> for LockRefusal {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl State {
    /// LOCK (RFC 8881, section 18.10).
    ///
    /// # Errors
    /// NFS4ERR_DENIED; NFS4ERR_BAD_STATEID, NFS4ERR_OLD_STATEID; NFS4ERR_OPENMODE: the file is not
    /// open for that; NFS4ERR_GRACE, NFS4ERR_NO_GRACE, NFS4ERR_RECLAIM_BAD,
    /// NFS4ERR_RECLAIM_CONFLICT; NFS4ERR_DELAY: a change that is under way decides, or the client,
    /// the file or the server has as many locks as it may have.
    pub fn begin_lock(
        &mut self,
        request: &LockRequest<'_>,
        now_us: u64,
    ) -> Result<LockIntent, LockRefusal> {
        let (open, owner) = self.locker(request)?;
        self.check_lock_mode(open, request.kind)?;
        self.may_obtain(request.client, request.is_reclaim, now_us)?;
        let own = (request.client, owner.as_ref());
        let conflict = self.lock_conflict(request.file, own, request.range, request.kind, now_us);
        match conflict {
            Some(_) if request.is_reclaim => return Err(Status::RECLAIM_CONFLICT.into()),
            Some((denied, clients)) => {
                let is_held = self.end_lapsed(clients, (Status::DENIED, true), now_us);
                is_held.map_err(|_| LockRefusal::Denied(denied))?;
            }
            None => {}
        }
        self.recording.await_file(request.file);
        let key = (request.client, owner.clone());
        let file = self.files.get(request.file).ok_or(Status::BAD_STATEID)?;
        let known = file.lock_owners.get(&key).copied();
        let in_the_way = file.pending.iter().any(|pending| {
            known == Some(pending.lock.0)
                || pending.change.range.overlaps(&request.range)
                    && match pending.change.kind {
                        None => false,
                        Some(kind) => kind == LockKind::Write || request.kind == LockKind::Write,
                    }
        });
        if in_the_way {
            return Err(Status::DELAY.into());
        }
        self.make_room_for_ranges(request.client, request.file, now_us)?;
        let number = match known {
            Some(number) => number,
            None => self.insert_lock_state(request, open, owner, now_us)?,
        };
        let change = LockChange {
            range: request.range,
            kind: Some(request.kind),
        };
        Ok(self.begin_change(number, request.file, change, false, now_us)?)
    }

    /// LOCKU (RFC 8881, section 18.12). Bytes that are not locked may be unlocked.
    ///
    /// # Errors
    /// NFS4ERR_BAD_STATEID, NFS4ERR_OLD_STATEID; NFS4ERR_DELAY: a change of the owner's locks is
    /// under way, or one range would become two where the file has all that may come of that.
    pub fn begin_unlock(
        &mut self,
        client: ClientId,
        file: &FileKey,
        stateid: Stateid,
        range: LockRange,
        now_us: u64,
    ) -> Result<LockIntent, Status> {
        let (number, entry) = self.find_state(client, stateid)?;
        if entry.file != *file || !matches!(entry.kind, EntryKind::Lock { .. }) {
            return Err(Status::BAD_STATEID);
        }
        let of_file = self.files.get(file).ok_or(Status::BAD_STATEID)?;
        if of_file.changes_locks(number) {
            return Err(Status::DELAY);
        }
        let held = of_file.locks.get(&number);
        let is_split = held.is_some_and(|held| held.is_split_by(&range));
        let is_beyond = is_split && self.make_room_for_ranges(client, file, now_us).is_err();
        if is_beyond {
            let each = |file: &File, lock, held: &Held| {
                let pending = file.pending.iter();
                let pending = pending.filter(|of| of.lock.0 == lock && of.is_beyond);
                held.beyond().saturating_add(pending.count())
            };
            self.make_room(client, file, &SPLIT_RANGES, each, now_us)?;
        }
        let change = LockChange { range, kind: None };
        self.begin_change(number, file, change, is_beyond, now_us)
    }

    /// LOCKT (RFC 8881, section 18.11), as far as locks of this server's clients go. Local users'
    /// are the backend's to tell.
    ///
    /// # Errors
    /// NFS4ERR_DENIED, NFS4ERR_GRACE.
    pub fn test_lock(&mut self, test: &LockTest<'_>, now_us: u64) -> Result<(), LockRefusal> {
        if self.is_in_grace(now_us) {
            return Err(Status::GRACE.into());
        }
        let own = (test.client, test.owner);
        let Some((denied, clients)) =
            self.lock_conflict(test.file, own, test.range, test.kind, now_us)
        else {
            return Ok(());
        };
        // Else the backend would find their locks.
        let is_held = self.end_lapsed(clients, (Status::DENIED, true), now_us);
        is_held.map_err(|_| LockRefusal::Denied(denied))
    }

    /// The lock owner's state on the file, if there is any.
    #[must_use]
    pub fn lock_of(&self, client: ClientId, file: &FileKey, owner: &[u8]) -> Option<LockId> {
        let owners = &self.files.get(file)?.lock_owners;
        owners.get(&(client, owner.into())).copied().map(LockId)
    }

    /// The ranges that a lock owner has locked.
    #[must_use]
    pub fn ranges_of(&self, lock: LockId) -> Vec<LockRange> {
        let file = self.states.get(&lock.0).map(|entry| &entry.file);
        let held = file.and_then(|file| self.files.get(file)?.locks.get(&lock.0));
        held.map_or_else(Vec::new, |held| {
            held.iter().map(|(range, _)| *range).collect()
        })
    }

    /// The change has been carried out: the lock owner's stateid then.
    ///
    /// # Errors
    /// NFS4ERR_ADMIN_REVOKED: the locks are gone, and [`Action::ReleaseLocks`] has said so.
    pub fn commit_lock(&mut self, intent: &LockIntent) -> Result<Stateid, Status> {
        // While it is under way its client is not ended and its file is not closed: nothing but a
        // reload that takes out the export can have ended it.
        let pending = self.end_change(intent).ok_or(Status::ADMIN_REVOKED)?;
        let number = pending.lock.0;
        let file = self
            .files
            .get_mut(&intent.file)
            .ok_or(Status::BAD_STATEID)?;
        let held = file.locks.get_mut(&number).ok_or(Status::BAD_STATEID)?;
        let bytes = |held: &Held| {
            u64::try_from(held.len())
                .unwrap_or(u64::MAX)
                .saturating_mul(RANGE_BYTES)
        };
        let (before, ranges) = (bytes(held), held.len());
        held.set(pending.change.range, pending.change.kind);
        held.count_beyond(ranges, pending.is_beyond);
        let after = bytes(held);
        if let Some(entry) = self.states.get_mut(&number) {
            entry.bytes = entry.bytes.saturating_sub(before).saturating_add(after);
            if let Some(client) = self.clients.by_id(entry.client) {
                // What was taken for the change is given back but for what it needs.
                let taken = before.saturating_add(RANGES_ADDED.saturating_mul(RANGE_BYTES));
                self.bytes
                    .give_back(client.address, taken.saturating_sub(after));
            }
        }
        Ok(self.next_stateid(number))
    }

    /// The change could not be carried out, and nothing has changed.
    pub fn roll_back_lock(&mut self, intent: &LockIntent) {
        let Some(pending) = self.end_change(intent) else {
            return;
        };
        let number = pending.lock.0;
        let Some(entry) = self.states.get(&number) else {
            return;
        };
        if let Some(client) = self.clients.by_id(entry.client) {
            let taken = RANGES_ADDED.saturating_mul(RANGE_BYTES);
            self.bytes.give_back(client.address, taken);
        }
        // No reply has told of it.
        if entry.seqid == 0 {
            self.remove_lock_state(number);
        }
    }

    /// The open and the lock owner of a LOCK.
    fn locker(&self, request: &LockRequest<'_>) -> Result<(u64, Arc<[u8]>), Status> {
        match request.locker {
            Locker::New { open, owner } => {
                let (number, _) = self.find_open(request.client, request.file, open)?;
                Ok((number, owner.into()))
            }
            Locker::Existing { lock } => {
                let (_, entry) = self.find_state(request.client, lock)?;
                match entry.kind {
                    EntryKind::Lock { open } if entry.file == *request.file => {
                        Ok((open, entry.owner.clone()))
                    }
                    EntryKind::Lock { .. } | EntryKind::Open(_) => Err(Status::BAD_STATEID),
                }
            }
        }
    }

    /// Bytes are locked for what the file is open for (RFC 8881, section 18.10.3); the backend asks
    /// for that as well.
    fn check_lock_mode(&self, open: u64, kind: LockKind) -> Result<(), Status> {
        let needed = match kind {
            LockKind::Read => Shares::READ,
            LockKind::Write => Shares::WRITE,
        };
        match self.states.get(&open).map(|entry| &entry.kind) {
            Some(EntryKind::Open(state)) if state.access.contains(needed) => Ok(()),
            Some(EntryKind::Open(_)) => Err(Status::OPENMODE),
            Some(EntryKind::Lock { .. }) | None => Err(Status::BAD_STATEID),
        }
    }

    /// Locks of others in the way of one: one of them, of a client that is there if any is, and all
    /// their clients.
    fn lock_conflict(
        &self,
        file: &FileKey,
        own: (ClientId, &[u8]),
        range: LockRange,
        kind: LockKind,
        now_us: u64,
    ) -> Option<(Denied, Vec<ClientId>)> {
        let mut found: Option<Denied> = None;
        let mut clients = Vec::new();
        for (number, held) in &self.files.get(file)?.locks {
            let (Some(entry), Some((range, kind))) =
                (self.states.get(number), held.conflict(&range, kind))
            else {
                continue;
            };
            if (entry.client, entry.owner.as_ref()) == own {
                continue;
            }
            clients.push(entry.client);
            let is_there = !self.has_lapsed(entry.client, now_us);
            if found.is_none() || is_there {
                let owner = entry.owner.clone();
                found = Some(Denied {
                    range,
                    kind,
                    client: entry.client,
                    owner,
                });
            }
            if is_there {
                break;
            }
        }
        Some((found?, clients))
    }

    fn insert_lock_state(
        &mut self,
        request: &LockRequest<'_>,
        open: u64,
        owner: Arc<[u8]>,
        now_us: u64,
    ) -> Result<u64, Status> {
        let each = |_file: &File, _lock, _held: &Held| 1;
        self.make_room(request.client, request.file, &LOCK_STATES, each, now_us)?;
        let client = self
            .clients
            .by_id(request.client)
            .ok_or(Status::BADSESSION)?;
        let address = client.address;
        self.take(|state| &mut state.lock_states, address, 1, now_us)?;
        let bytes = entry_bytes(&owner)
            .saturating_add(map_entry_bytes::<u64, Held>())
            .saturating_add(16);
        if let Err(status) = self.take_bytes(address, bytes, now_us) {
            self.lock_states.give_back(address, 1);
            return Err(status);
        }
        let number = self.next_state_number();
        if let Some(Entry {
            kind: EntryKind::Open(open),
            ..
        }) = self.states.get_mut(&open)
        {
            open.locks.push(number);
        }
        if let Some(client) = self.clients.by_id_mut(request.client) {
            client.states.insert(number);
        }
        if let Some(file) = self.files.get_mut(request.file) {
            file.lock_owners
                .insert((request.client, owner.clone()), number);
            file.locks.insert(number, Held::default());
        }
        self.states.insert(
            number,
            Entry {
                client: request.client,
                file: request.file.clone(),
                owner,
                seqid: 0,
                kind: EntryKind::Lock { open },
                bytes,
            },
        );
        Ok(number)
    }

    fn begin_change(
        &mut self,
        number: u64,
        file: &FileKey,
        change: LockChange,
        is_beyond: bool,
        now_us: u64,
    ) -> Result<LockIntent, Status> {
        let entry = self.states.get(&number).ok_or(Status::BAD_STATEID)?;
        let is_new = entry.seqid == 0;
        let client = self.clients.by_id(entry.client).ok_or(Status::BADSESSION)?;
        let bytes = RANGES_ADDED.saturating_mul(RANGE_BYTES);
        if let Err(status) = self.take_bytes(client.address, bytes, now_us) {
            if is_new {
                self.remove_lock_state(number);
            }
            return Err(status);
        }
        self.last_intent = self.last_intent.wrapping_add(1);
        let (intent, lock) = (self.last_intent, LockId(number));
        if let Some(file) = self.files.get_mut(file) {
            file.pending.push(Pending {
                intent,
                lock,
                change,
                is_beyond,
            });
        }
        Ok(LockIntent {
            intent,
            lock,
            file: file.clone(),
            change,
        })
    }

    fn end_change(&mut self, intent: &LockIntent) -> Option<Pending> {
        let pending = &mut self.files.get_mut(&intent.file)?.pending;
        let at = pending
            .iter()
            .position(|pending| pending.intent == intent.intent)?;
        Some(pending.swap_remove(at))
    }

    /// Removes a lock state with the locks it holds.
    pub(crate) fn remove_lock_state(&mut self, number: u64) {
        let Some(entry) = self.states.remove(&number) else {
            return;
        };
        if let EntryKind::Lock { open } = entry.kind
            && let Some(Entry {
                kind: EntryKind::Open(open),
                ..
            }) = self.states.get_mut(&open)
        {
            open.locks.retain(|other| *other != number);
        }
        let mut bytes = entry.bytes;
        if let Some(file) = self.files.get_mut(&entry.file) {
            file.locks.remove(&number);
            file.lock_owners.remove(&(entry.client, entry.owner));
            for _ in file
                .pending
                .extract_if(.., |pending| pending.lock == LockId(number))
            {
                bytes = bytes.saturating_add(RANGES_ADDED.saturating_mul(RANGE_BYTES));
            }
        }
        if let Some(client) = self.clients.by_id_mut(entry.client) {
            client.states.remove(&number);
            let address = client.address;
            self.bytes.give_back(address, bytes);
            self.lock_states.give_back(address, 1);
        }
        self.actions.push_back(Action::ReleaseLocks {
            lock: LockId(number),
            file: entry.file,
        });
    }
}
