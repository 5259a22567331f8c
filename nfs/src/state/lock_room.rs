//! How much the locks of one file may take, and room for more: every LOCK looks at all of them.

use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::ClientId;

use super::State;
use super::limits::{
    LOCK_STATES_PER_FILE_MAX, RANGES_PER_FILE_MAX, RANGES_SPLIT_PER_FILE_MAX, SHARE_TIMES_FREE,
};
use super::opens::{File, FileKey};
use super::ranges::Held;

/// A bound of what the lock states of one file have together.
pub(crate) struct FileBound {
    max: usize,
    /// How much more there may be after one change.
    pub(crate) added: usize,
}

pub(crate) const LOCK_STATES: FileBound = FileBound {
    max: LOCK_STATES_PER_FILE_MAX,
    added: 1,
};
pub(crate) const RANGES: FileBound = FileBound {
    max: RANGES_PER_FILE_MAX,
    added: 2,
};

/// What unlocking makes of one range beyond those.
pub(crate) const SPLIT_RANGES: FileBound = FileBound {
    max: RANGES_SPLIT_PER_FILE_MAX,
    added: 1,
};

impl State {
    /// Makes room for the ranges that a change may add to those of a file, as of
    /// [`State::make_room`].
    pub(crate) fn make_room_for_ranges(
        &mut self,
        client: ClientId,
        file: &FileKey,
        now_us: u64,
    ) -> Result<(), Status> {
        let each = |file: &File, lock, held: &Held| {
            let pending = file.pending.iter();
            let pending = pending.filter(|of| of.lock.0 == lock && !of.is_beyond);
            held.len()
                .saturating_sub(held.beyond())
                .saturating_add(pending.count().saturating_mul(RANGES.added))
        };
        self.make_room(client, file, &RANGES, each, now_us)
    }

    /// Makes room for more of what each lock state of a file has (`each`). Clients whose leases
    /// have expired go where there is none, the longest expired first.
    ///
    /// # Errors
    /// NFS4ERR_DELAY: the file has as many as it may have, or one address would have more than its
    /// share of them, as of [`super::limits::Stock::take`].
    pub(crate) fn make_room(
        &mut self,
        client: ClientId,
        key: &FileKey,
        bound: &FileBound,
        each: impl Fn(&File, u64, &Held) -> usize,
        now_us: u64,
    ) -> Result<(), Status> {
        let address = |state: &Self, id| state.clients.by_id(id).map(|client| client.address);
        let of_client = address(self, client);
        while let Some(file) = self.files.get(key) {
            let count = |(number, held): (&u64, &Held)| each(file, *number, held);
            let all = file.locks.iter().map(count).sum::<usize>();
            let all = all.saturating_add(bound.added);
            let free = bound.max.saturating_sub(all);
            let times = usize::try_from(SHARE_TIMES_FREE).unwrap_or(usize::MAX);
            let share = free.saturating_mul(times);
            let is_own = |number: &u64| {
                let entry = self.states.get(number);
                entry.and_then(|entry| address(self, entry.client)) == of_client
            };
            // All of them together are within one share, so those of this address are, too.
            if all <= bound.max && all <= share {
                return Ok(());
            }
            let own = file.locks.iter().filter(|(number, _)| is_own(number));
            let own = own.map(count).sum::<usize>().saturating_add(bound.added);
            if all <= bound.max && own <= share {
                return Ok(());
            }
            let clients = file.lock_owners.keys().map(|(client, _)| *client);
            let lapsed = clients.filter(|client| self.has_lapsed(*client, now_us));
            let renewed_us = |client: &ClientId| {
                let client = self.clients.by_id(*client);
                client.map(|client| client.renewed_us)
            };
            let longest = lapsed.min_by_key(renewed_us).ok_or(Status::DELAY)?;
            self.expire(longest, now_us);
        }
        Ok(())
    }
}
