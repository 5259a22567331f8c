//! State that is revoked because the export of its files is taken out. RFC 8881, sections 8.5,
//! 18.38, 18.46.3 and 18.48.
//!
//! The opens and locks end at once, and others may have what they held. What stays is the numbers
//! of their stateids, by which their client is told what has become of them until it has freed
//! each, or has had a lease's time to do so. Until then stable storage knows of which exports they
//! were: a client that was not told may not reclaim them after a restart (section 8.4.3).

use std::collections::BTreeSet;

use capstan_nfs_proto::v4::results::SequenceStatus;
use capstan_nfs_proto::v4::types::ClientId;

use super::State;
use super::limits::{REVOKED_BYTES, REVOKED_PER_CLIENT_MAX};
use super::opens::FileKey;
use super::stable::Record;
use super::stateids::EntryKind;

/// What of one client is revoked, and not freed yet.
#[derive(Debug, Default)]
pub(crate) struct Revoked {
    /// Of the opens and lock states, in the order in which they were made.
    numbers: BTreeSet<u64>,
    /// The exports of their files.
    exports: BTreeSet<u64>,
    /// When a SEQUENCE told of them first. Less is never known of the client: it may have been
    /// away for long when they were revoked.
    told_us: Option<u64>,
}

impl Revoked {
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    pub(crate) fn exports(&self) -> impl Iterator<Item = u64> {
        self.exports.iter().copied()
    }

    /// Bytes taken for them.
    pub(crate) fn bytes(&self) -> u64 {
        let count = u64::try_from(self.numbers.len()).unwrap_or(u64::MAX);
        count.saturating_mul(REVOKED_BYTES)
    }
}

impl FileKey {
    /// The number of the file's export.
    pub(crate) fn export(&self) -> u64 {
        let number = self.bytes().first_chunk().copied().unwrap_or_default();
        u64::from_be_bytes(number)
    }
}

impl State {
    /// Ends all opens and locks of files of exports that are not there any more. Their clients are
    /// told so: a SEQUENCE has SEQ4_STATUS_ADMIN_STATE_REVOKED, and the stateids are
    /// NFS4ERR_ADMIN_REVOKED. They lose nothing else, and keep their sessions. A LOCK or LOCKU
    /// that is under way finds nothing to commit.
    pub fn give_up_exports(&mut self, is_gone: impl Fn(u64) -> bool) {
        let files = self.files.iter().filter(|(key, _)| is_gone(key.export()));
        let opens = files.flat_map(|(key, file)| {
            let opens = file.opens.values();
            opens.map(move |open| (key.clone(), *open))
        });
        let opens: Vec<(FileKey, u64)> = opens.collect();
        for (file, open) in opens {
            let locks = match self.states.get(&open).map(|entry| &entry.kind) {
                Some(EntryKind::Open(open)) => open.locks.clone(),
                Some(EntryKind::Lock { .. }) | None => continue,
            };
            for number in [open].into_iter().chain(locks) {
                self.revoke(number, file.export());
            }
            self.recording.push_file(file);
            self.remove_open(open);
        }
    }

    /// Remembers of an open or a lock state that is about to be removed that it was revoked.
    fn revoke(&mut self, number: u64, export: u64) {
        // A client that was not told of a lock state knows no stateid of it, and could not free it.
        let Some(entry) = self.states.get_mut(&number).filter(|of| of.seqid != 0) else {
            return;
        };
        let Some(client) = self.clients.by_id_mut(entry.client) else {
            return;
        };
        // Some of what the entry has taken is not given back with it: there is room, always.
        entry.bytes = entry.bytes.saturating_sub(REVOKED_BYTES);
        client.revoked.numbers.insert(number);
        client.revoked.told_us = None;
        if client.revoked.exports.insert(export) {
            let owner = client.owner.clone();
            self.grace.revoke(&owner, export);
            self.recording.push(Record::Revoked { owner, export });
        }
        if client.revoked.numbers.len() > REVOKED_PER_CLIENT_MAX {
            client.revoked.numbers.pop_first();
            self.bytes.give_back(client.address, REVOKED_BYTES);
        }
    }

    /// Whether `number` is revoked state of the client.
    pub(crate) fn is_revoked(&self, client: ClientId, number: u64) -> bool {
        let client = self.clients.by_id(client);
        client.is_some_and(|client| client.revoked.contains(number))
    }

    /// The client has freed revoked state: whether there was any of this number.
    pub(crate) fn free_revoked(&mut self, id: ClientId, number: u64) -> bool {
        let Some(client) = self.clients.by_id_mut(id) else {
            return false;
        };
        let was_there = client.revoked.numbers.remove(&number);
        if was_there {
            self.bytes.give_back(client.address, REVOKED_BYTES);
            self.acknowledge_when_freed(id);
        }
        was_there
    }

    /// The client has freed the last of it, or will not: what it has next is new.
    fn acknowledge_when_freed(&mut self, client: ClientId) {
        let Some(client) = self.clients.by_id_mut(client) else {
            return;
        };
        if client.revoked.is_empty() && !client.revoked.exports.is_empty() {
            client.revoked = Revoked::default();
            let owner = client.owner.clone();
            self.recording.push(Record::Acknowledged { owner });
        }
    }

    /// What a SEQUENCE says of a client's state. What it was told of a lease ago it has not freed
    /// in all that time, and will not: a client that has closed a file while the export was away
    /// was told that the handle is stale, and forgets the stateid. Linux tests all that it has
    /// each time that it is told, so that this has to end.
    pub(crate) fn status_of(&mut self, id: ClientId, now_us: u64) -> SequenceStatus {
        let Some(client) = self.clients.by_id_mut(id) else {
            return SequenceStatus::empty();
        };
        let revoked = &mut client.revoked;
        if revoked.numbers.is_empty() {
            return SequenceStatus::empty();
        }
        let told_us = *revoked.told_us.get_or_insert(now_us);
        if now_us.saturating_sub(told_us) <= self.config.lease_us() {
            return SequenceStatus::ADMIN_STATE_REVOKED;
        }
        self.bytes.give_back(client.address, revoked.bytes());
        revoked.numbers.clear();
        self.acknowledge_when_freed(id);
        SequenceStatus::empty()
    }
}
