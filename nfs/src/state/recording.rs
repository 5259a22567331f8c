//! Records on their way to stable storage, and which answers wait for which of them: an answer
//! waits for the records without which it would be wrong after a restart, and for no others (RFC
//! 8881, section 8.4.3). So a state folder that cannot be written delays only new clients, and
//! clients that take an open or a lock which another client has lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::State;
use super::opens::FileKey;
use super::stable::Record;

/// The records of a server, each known by its number: how many there were with it.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// Those that the driver has not taken.
    records: Vec<Record>,
    count: u64,
    durable: u64,
    /// The last that the answer waits for.
    awaited: u64,
    /// Of those that are not durable, the last of each owner.
    owners: BTreeMap<Arc<[u8]>, u64>,
    /// Likewise, that a client has lost what it had open of a file.
    files: BTreeMap<FileKey, u64>,
    /// The end of the grace period; 0 where it has none or is durable.
    grace_ended: u64,
}

impl Recording {
    pub(crate) fn push(&mut self, record: Record) {
        self.count = self.count.saturating_add(1);
        match &record {
            // Others wait for the file, and the client for nothing.
            Record::Boot { .. } | Record::Revoked { .. } => {}
            Record::Client { owner } | Record::Gone { owner } | Record::Acknowledged { owner } => {
                self.owners.insert(owner.clone(), self.count);
            }
            Record::GraceEnded => self.grace_ended = self.count,
        }
        self.records.push(record);
    }

    /// The records say as well that what was open of this file is lost.
    pub(crate) fn push_file(&mut self, file: FileKey) {
        self.files.insert(file, self.count);
    }

    /// How many are not durable.
    pub(crate) const fn left(&self) -> u64 {
        self.count.saturating_sub(self.durable)
    }

    pub(crate) fn is_durable(&self, owner: &Arc<[u8]>) -> bool {
        !self.owners.contains_key(owner)
    }

    /// The answer says what is recorded of an owner.
    pub(crate) fn await_owner(&mut self, owner: &Arc<[u8]>) {
        self.await_one(self.owners.get(owner).copied());
    }

    /// The answer gives of a file what a client may have lost.
    pub(crate) fn await_file(&mut self, file: &FileKey) {
        self.await_one(self.files.get(file).copied());
    }

    /// The answer gives what could have been reclaimed.
    pub(crate) fn await_grace_end(&mut self) {
        self.await_one(Some(self.grace_ended));
    }

    pub(crate) fn await_all(&mut self) {
        self.await_one(Some(self.count));
    }

    fn await_one(&mut self, number: Option<u64>) {
        self.awaited = self.awaited.max(number.unwrap_or(0));
    }
}

impl State {
    /// The records that there are since this was asked last, in their order.
    #[must_use]
    pub fn take_records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.recording.records)
    }

    /// How many records there have been.
    #[must_use]
    pub const fn record_count(&self) -> u64 {
        self.recording.count
    }

    /// How many of all records have to be durable before the answer of the calls since this was
    /// asked last: 0 where it waits for none.
    #[must_use]
    pub fn take_awaited(&mut self) -> u64 {
        std::mem::take(&mut self.recording.awaited)
    }

    /// The driver says that the first `count` records are durable.
    pub fn recorded(&mut self, count: u64) {
        let recording = &mut self.recording;
        recording.durable = recording.durable.max(count);
        let durable = recording.durable;
        recording.owners.retain(|_, number| *number > durable);
        recording.files.retain(|_, number| *number > durable);
        if recording.grace_ended <= durable {
            recording.grace_ended = 0;
        }
    }
}
