//! Opens: OPEN, OPEN_DOWNGRADE, CLOSE. RFC 8881, sections 9.7 to 9.9, 18.2, 18.16 and 18.18.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, Stateid};

use super::limits::{FILE_KEY_BYTES_MAX, allocation_bytes, map_entry_bytes};
use super::locks::{LockId, Pending};
use super::ranges::Held;
use super::shares::{Asked, Shares};
use super::stateids::{Entry, EntryKind};
use super::{Action, State};

/// A file, as the backend names it for good: two handles of one file are one key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileKey(Arc<[u8]>);

impl FileKey {
    /// The file that `handle` is in the export `export`.
    ///
    /// # Errors
    /// NFS4ERR_BADHANDLE: the handle has more than 128 bytes.
    pub fn new(export: u64, handle: &[u8]) -> Result<Self, Status> {
        let key: Arc<[u8]> = export.to_be_bytes().iter().chain(handle).copied().collect();
        if key.len() > FILE_KEY_BYTES_MAX {
            return Err(Status::BADHANDLE);
        }
        Ok(Self(key))
    }

    /// The export's number, and then the handle.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// An open: what the driver keeps an open file by. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpenId(pub u64);

/// Share bits of one open owner on a file.
#[derive(Debug, Default)]
pub(crate) struct Open {
    pub(crate) access: Shares,
    pub(crate) deny: Shares,
    pub(crate) asked: Asked,
    /// Lock states that end with it.
    pub(crate) locks: Vec<u64>,
}

/// How many opens of a file have each of two bits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counts {
    read: u64,
    write: u64,
}

impl Counts {
    fn add(&mut self, shares: Shares) {
        let bit = |share| u64::from(shares.contains(share));
        self.read = self.read.saturating_add(bit(Shares::READ));
        self.write = self.write.saturating_add(bit(Shares::WRITE));
    }

    fn subtract(&mut self, shares: Shares) {
        let bit = |share| u64::from(shares.contains(share));
        self.read = self.read.saturating_sub(bit(Shares::READ));
        self.write = self.write.saturating_sub(bit(Shares::WRITE));
    }

    const fn any_of(self, shares: Shares) -> bool {
        self.read > 0 && shares.contains(Shares::READ)
            || self.write > 0 && shares.contains(Shares::WRITE)
    }
}

/// A file that is open.
#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) opens: BTreeMap<(ClientId, Arc<[u8]>), u64>,
    access: Counts,
    deny: Counts,
    pub(crate) lock_owners: BTreeMap<(ClientId, Arc<[u8]>), u64>,
    /// The ranges of each lock state.
    pub(crate) locks: BTreeMap<u64, Held>,
    /// Changes of locks that are being carried out.
    pub(crate) pending: Vec<Pending>,
}

impl File {
    /// Whether locks of the lock state are held or about to be.
    pub(crate) fn holds_locks(&self, lock: u64) -> bool {
        self.locks.get(&lock).is_some_and(|held| !held.is_empty()) || self.changes_locks(lock)
    }

    pub(crate) fn changes_locks(&self, lock: u64) -> bool {
        self.pending
            .iter()
            .any(|pending| pending.lock == LockId(lock))
    }

    fn add(&mut self, access: Shares, deny: Shares) {
        self.access.add(access);
        self.deny.add(deny);
    }

    fn subtract(&mut self, access: Shares, deny: Shares) {
        self.access.subtract(access);
        self.deny.subtract(deny);
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> [u64; 4] {
        [
            self.access.read,
            self.access.write,
            self.deny.read,
            self.deny.write,
        ]
    }
}

/// An OPEN, once the file is found.
#[derive(Clone, Copy, Debug)]
pub struct OpenRequest<'a> {
    /// The client of the session.
    pub client: ClientId,
    /// The open owner, without the client ID that it is sent with.
    pub owner: &'a [u8],
    /// The file.
    pub file: &'a FileKey,
    /// What the owner will do.
    pub access: Shares,
    /// What others may not.
    pub deny: Shares,
    /// CLAIM_PREVIOUS.
    pub is_reclaim: bool,
}

/// An OPEN that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Its stateid.
    pub stateid: Stateid,
    /// The open.
    pub open: OpenId,
    /// Whether it is new: else the owner had the file open, and has now what it had and this.
    pub is_new: bool,
    /// What the owner may do with the file now.
    pub access: Shares,
}

/// Room for an open of a file that is about to be made: its open file, and the most bytes that it
/// may take. It is to be given back, or to become an open.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the room has to become an open or be given back"]
pub struct OpenRoom {
    address: IpAddr,
    bytes: u64,
}

impl State {
    /// Whether an OPEN would succeed, to be asked before anything is created or truncated.
    ///
    /// # Errors
    /// As [`State::open`], but for its bounds.
    pub fn may_open(&mut self, request: &OpenRequest<'_>, now_us: u64) -> Result<(), Status> {
        self.may_obtain(request.client, request.is_reclaim, now_us)?;
        if request.is_reclaim {
            self.may_reclaim(request.client, request.file)?;
        }
        let own = (request.client, request.owner);
        let (access, deny) = (request.access, request.deny);
        let denied = if request.is_reclaim {
            // What is reclaimed was there before the restart: two that conflict cannot both be.
            (Status::RECLAIM_CONFLICT, false)
        } else {
            (Status::SHARE_DENIED, true)
        };
        let conflicts = self.share_conflicts(request.file, access, deny, Some(own), now_us);
        self.end_lapsed(conflicts, denied, now_us)?;
        self.recording.await_file(request.file);
        Ok(())
    }

    /// OPEN of a file that is there. The same owner's open of the file is widened (RFC 8881,
    /// section 9.9).
    ///
    /// # Errors
    /// NFS4ERR_SHARE_DENIED; NFS4ERR_GRACE, NFS4ERR_NO_GRACE, NFS4ERR_RECLAIM_BAD,
    /// NFS4ERR_RECLAIM_CONFLICT (section 8.4.2); NFS4ERR_DELAY: the client or the server has as
    /// many opens as it may have (NFS4ERR_RESOURCE is of minor version 0).
    pub fn open(&mut self, request: &OpenRequest<'_>, now_us: u64) -> Result<Opened, Status> {
        self.open_with(request, &mut None, now_us)
    }

    /// Takes room for an open of a client, before the file is made: once it is there, a client that
    /// asks to make it cannot be told to ask again.
    ///
    /// # Errors
    /// NFS4ERR_DELAY, as of the bounds of [`State::open`]; NFS4ERR_BADSESSION.
    pub fn take_open_room(
        &mut self,
        client: ClientId,
        owner: &[u8],
        now_us: u64,
    ) -> Result<OpenRoom, Status> {
        let client = self.clients.by_id(client).ok_or(Status::BADSESSION)?;
        let (address, bytes) = (client.address, open_bytes(owner, FILE_KEY_BYTES_MAX));
        self.take(|state| &mut state.opens, address, 1, now_us)?;
        if let Err(status) = self.take_bytes(address, bytes, now_us) {
            self.opens.give_back(address, 1);
            return Err(status);
        }
        Ok(OpenRoom { address, bytes })
    }

    /// No open has come of it.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "what was given back is not there"
    )]
    pub fn give_back_open_room(&mut self, room: OpenRoom) {
        self.opens.give_back(room.address, 1);
        self.bytes.give_back(room.address, room.bytes);
    }

    /// As [`State::open`], of a file that was made in this room.
    ///
    /// # Errors
    /// As there, but for the bounds.
    pub fn open_in(
        &mut self,
        request: &OpenRequest<'_>,
        room: OpenRoom,
        now_us: u64,
    ) -> Result<Opened, Status> {
        let mut room = Some(room);
        let opened = self.open_with(request, &mut room, now_us);
        // The owner has the file open already, where it asks to make it once more.
        if let Some(room) = room {
            self.give_back_open_room(room);
        }
        opened
    }

    fn open_with(
        &mut self,
        request: &OpenRequest<'_>,
        room: &mut Option<OpenRoom>,
        now_us: u64,
    ) -> Result<Opened, Status> {
        self.may_open(request, now_us)?;
        let owner: Arc<[u8]> = request.owner.into();
        let key = (request.client, owner.clone());
        let known = self
            .files
            .get(request.file)
            .and_then(|file| file.opens.get(&key))
            .copied();
        let number = match known {
            Some(number) => number,
            None => {
                let room = match room.take() {
                    Some(room) => room,
                    None => self.take_open_room(request.client, request.owner, now_us)?,
                };
                self.insert_open(request, owner, &room)
            }
        };
        let has_file = self.accesses_of(OpenId(number)).contains(&request.access);
        if known.is_some() && !has_file {
            let client = self.clients.by_id(request.client);
            let address = client.ok_or(Status::BADSESSION)?.address;
            self.take(|state| &mut state.opens, address, 1, now_us)?;
        }
        let Some(Entry {
            kind: EntryKind::Open(open),
            ..
        }) = self.states.get_mut(&number)
        else {
            return Err(Status::SERVERFAULT);
        };
        let before = (open.access, open.deny);
        open.asked.add(request.access, request.deny);
        (open.access, open.deny) = open.asked.union();
        let (access, deny) = (open.access, open.deny);
        if let Some(file) = self.files.get_mut(request.file) {
            file.subtract(before.0, before.1);
            file.add(access, deny);
        }
        let stateid = self.next_stateid(number);
        Ok(Opened {
            stateid,
            open: OpenId(number),
            is_new: known.is_none(),
            access,
        })
    }

    fn insert_open(&mut self, request: &OpenRequest<'_>, owner: Arc<[u8]>, room: &OpenRoom) -> u64 {
        let bytes = open_bytes(&owner, request.file.0.len());
        self.bytes
            .give_back(room.address, room.bytes.saturating_sub(bytes));
        let number = self.next_state_number();
        if let Some(client) = self.clients.by_id_mut(request.client) {
            client.states.insert(number);
        }
        let file = self.files.entry(request.file.clone()).or_default();
        file.opens.insert((request.client, owner.clone()), number);
        self.states.insert(
            number,
            Entry {
                client: request.client,
                file: request.file.clone(),
                owner,
                seqid: 0,
                kind: EntryKind::Open(Open::default()),
                bytes,
            },
        );
        number
    }

    pub(crate) fn next_state_number(&mut self) -> u64 {
        self.last_state = self.last_state.wrapping_add(1);
        self.last_state
    }

    /// Clients whose opens of the file keep others from `access`, or have what `deny` is to keep
    /// others from: but for the open of `own`. One that is there decides, and is the last then.
    pub(crate) fn share_conflicts(
        &self,
        file: &FileKey,
        access: Shares,
        deny: Shares,
        own: Option<(ClientId, &[u8])>,
        now_us: u64,
    ) -> Vec<ClientId> {
        let Some(file) = self.files.get(file) else {
            return Vec::new();
        };
        if !file.deny.any_of(access) && !file.access.any_of(deny) {
            return Vec::new();
        }
        let mut clients = Vec::new();
        for ((client, owner), number) in &file.opens {
            let Some(EntryKind::Open(open)) = self.states.get(number).map(|entry| &entry.kind)
            else {
                continue;
            };
            let conflicts = open.deny.overlaps(access) || open.access.overlaps(deny);
            if own == Some((*client, owner)) || !conflicts {
                continue;
            }
            if clients.last() != Some(client) {
                clients.push(*client);
            }
            if !self.has_lapsed(*client, now_us) {
                break;
            }
        }
        clients
    }

    /// Ends clients that are in the way, when the leases of all have expired.
    ///
    /// # Errors
    /// The status of `denied`: one is there, or none may be ended.
    pub(crate) fn end_lapsed(
        &mut self,
        clients: Vec<ClientId>,
        denied: (Status, bool),
        now_us: u64,
    ) -> Result<(), Status> {
        let (status, may_end) = denied;
        if clients
            .iter()
            .any(|client| !may_end || !self.has_lapsed(*client, now_us))
        {
            return Err(status);
        }
        for client in clients {
            self.expire(client, now_us);
        }
        Ok(())
    }

    /// OPEN_DOWNGRADE (RFC 8881, section 18.18).
    ///
    /// # Errors
    /// NFS4ERR_BAD_STATEID, NFS4ERR_OLD_STATEID; NFS4ERR_INVAL: no OPENs had these bits.
    pub fn open_downgrade(
        &mut self,
        client: ClientId,
        file: &FileKey,
        stateid: Stateid,
        access: Shares,
        deny: Shares,
    ) -> Result<Stateid, Status> {
        let (number, open) = self.find_open(client, file, stateid)?;
        let before = (open.access, open.deny);
        let asked = open.asked.downgrade(access, deny)?;
        let closed = open.asked.files().saturating_sub(asked.files());
        if let Some(client) = self.clients.by_id(client) {
            self.opens.give_back(client.address, closed);
        }
        if let Some(Entry {
            kind: EntryKind::Open(open),
            ..
        }) = self.states.get_mut(&number)
        {
            (open.asked, open.access, open.deny) = (asked, access, deny);
        }
        if let Some(file) = self.files.get_mut(file) {
            file.subtract(before.0, before.1);
            file.add(access, deny);
        }
        Ok(self.next_stateid(number))
    }

    /// For what an open has files: one for each kind of access that its OPENs had. Each is counted.
    #[must_use]
    pub fn accesses_of(&self, open: OpenId) -> Vec<Shares> {
        let Some(EntryKind::Open(open)) = self.states.get(&open.0).map(|entry| &entry.kind) else {
            return Vec::new();
        };
        let kinds = [Shares::READ, Shares::WRITE, Shares::BOTH].into_iter();
        kinds.filter(|kind| open.asked.has_access(*kind)).collect()
    }

    /// The open that `stateid` stands for, which has to be of `file`.
    ///
    /// # Errors
    /// NFS4ERR_BAD_STATEID, NFS4ERR_OLD_STATEID.
    pub fn open_of(
        &self,
        client: ClientId,
        file: &FileKey,
        stateid: Stateid,
    ) -> Result<OpenId, Status> {
        self.find_open(client, file, stateid)
            .map(|(number, _open)| OpenId(number))
    }

    /// CLOSE. Locks that are still held go with it, of which a server has the choice (RFC 8881,
    /// section 18.2.3). What it returns means nothing (section 18.2.4).
    ///
    /// # Errors
    /// NFS4ERR_BAD_STATEID, NFS4ERR_OLD_STATEID; NFS4ERR_DELAY: a LOCK or LOCKU of it is under way.
    pub fn close(
        &mut self,
        client: ClientId,
        file: &FileKey,
        stateid: Stateid,
    ) -> Result<Stateid, Status> {
        let (number, open) = self.find_open(client, file, stateid)?;
        let file = self.files.get(file).ok_or(Status::SERVERFAULT)?;
        if open.locks.iter().any(|lock| file.changes_locks(*lock)) {
            return Err(Status::DELAY);
        }
        self.remove_open(number);
        Ok(Stateid::INVALID)
    }

    /// Removes an open with its locks.
    pub(crate) fn remove_open(&mut self, number: u64) {
        let locks = match self.states.get(&number).map(|entry| &entry.kind) {
            Some(EntryKind::Open(open)) => open.locks.clone(),
            Some(EntryKind::Lock { .. }) | None => return,
        };
        for lock in locks {
            self.remove_lock_state(lock);
        }
        let Some(entry) = self.states.remove(&number) else {
            return;
        };
        let EntryKind::Open(open) = &entry.kind else {
            return;
        };
        if let Some(file) = self.files.get_mut(&entry.file) {
            file.subtract(open.access, open.deny);
            file.opens.remove(&(entry.client, entry.owner.clone()));
            if file.opens.is_empty() {
                self.files.remove(&entry.file);
            }
        }
        if let Some(client) = self.clients.by_id_mut(entry.client) {
            client.states.remove(&number);
            let address = client.address;
            self.bytes.give_back(address, entry.bytes);
            self.opens.give_back(address, open.asked.files());
        }
        self.actions.push_back(Action::Close {
            open: OpenId(number),
            file: entry.file,
        });
    }
}

/// Bytes of an open of a file whose key has `key_bytes`: each is charged for all of its file, which
/// may be another's as well.
fn open_bytes(owner: &[u8], key_bytes: usize) -> u64 {
    entry_bytes(owner)
        .saturating_add(map_entry_bytes::<FileKey, File>())
        .saturating_add(allocation_bytes(key_bytes.saturating_add(16)))
}

/// Bytes of an entry: its place by number, in its client and in its file by owner, and the owner
/// with two counters.
pub(crate) fn entry_bytes(owner: &[u8]) -> u64 {
    map_entry_bytes::<u64, Entry>()
        .saturating_add(map_entry_bytes::<u64, ()>())
        .saturating_add(map_entry_bytes::<(ClientId, Arc<[u8]>), u64>())
        .saturating_add(allocation_bytes(owner.len().saturating_add(16)))
}
