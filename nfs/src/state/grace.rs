//! The grace period: which clients may reclaim what they had before the server restarted, and when
//! others may open and lock again. RFC 8881, sections 8.4.2, 8.4.3 and 18.51.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::ClientId;

use super::State;
use super::limits::{RECLAIM_PAUSE_US, UNRECORDED_MAX};
use super::opens::FileKey;
use super::stable::{Record, Replay};

/// The grace period, and the clients that it is for.
#[derive(Debug)]
pub(crate) struct Grace {
    /// Owners of clients that had state before the restart and have not reclaimed all of it.
    entitled: BTreeSet<Arc<[u8]>>,
    /// Of those, the exports that were taken out when they had state there.
    revoked: BTreeMap<Arc<[u8]>, BTreeSet<u64>>,
    /// `None` when it is over; [`NOT_BEGUN`] until clients can reach the server.
    ends_us: Option<u64>,
    /// No reclaim makes it last longer than this.
    latest_us: u64,
    /// It has ended, which was not told yet: owners that were waited for until then.
    ended: Option<Vec<Arc<[u8]>>>,
}

/// The end of a grace period whose time does not run yet.
const NOT_BEGUN: u64 = u64::MAX;

impl Grace {
    /// Without a client that has something to reclaim there is none.
    pub(crate) fn new(before: Replay) -> Self {
        Self {
            ends_us: (!before.owners.is_empty()).then_some(NOT_BEGUN),
            entitled: before.owners,
            revoked: before.revoked,
            latest_us: NOT_BEGUN,
            ended: None,
        }
    }

    fn begin(&mut self, now_us: u64, grace_us: u64) {
        if self.ends_us == Some(NOT_BEGUN) {
            let ends_us = now_us.saturating_add(grace_us);
            self.ends_us = Some(ends_us);
            self.latest_us = ends_us.saturating_add(grace_us);
        }
    }

    /// A client has reclaimed something now, and may have more (RFC 8881, section 8.4.2.1).
    fn reclaimed(&mut self, now_us: u64) {
        if let Some(ends_us) = &mut self.ends_us {
            let next_us = now_us.saturating_add(RECLAIM_PAUSE_US).min(self.latest_us);
            *ends_us = next_us.max(*ends_us);
        }
    }

    pub(crate) fn entitled(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        self.entitled.iter()
    }

    pub(crate) const fn ends_us(&self) -> Option<u64> {
        self.ends_us
    }

    /// The owner has reclaimed, or has nothing to reclaim: whether it was waited for.
    pub(crate) fn forget(&mut self, owner: &Arc<[u8]>) -> bool {
        self.revoked.remove(owner);
        self.entitled.remove(owner)
    }

    /// The owner has lost what it had of an export; what it has reclaimed of it as well.
    pub(crate) fn revoke(&mut self, owner: &Arc<[u8]>, export: u64) {
        if self.entitled.contains(owner) {
            let exports = self.revoked.entry(owner.clone()).or_default();
            exports.insert(export);
        }
    }

    /// Owners that may reclaim, and the exports of whose files they may not.
    pub(crate) fn revoked(&self) -> impl Iterator<Item = (&Arc<[u8]>, u64)> {
        let exports_of = self.revoked.iter();
        exports_of.flat_map(|(owner, exports)| exports.iter().map(move |export| (owner, *export)))
    }
}

impl State {
    /// Clients can reach the server from now on: the time that they have for reclaiming is counted
    /// from here. A server that starts slowly, or whose address comes late, would else leave them
    /// none.
    pub fn begin_grace(&mut self, now_us: u64) {
        self.grace.begin(now_us, self.config.grace_us());
    }

    /// How many clients may reclaim what they had before the restart; 0 without a grace period.
    pub fn entitled_count(&self) -> usize {
        self.grace.entitled.len()
    }

    /// Once, when the grace period has ended: the owners of clients that have not come back, and
    /// have lost what they had.
    pub fn take_grace_end(&mut self) -> Option<Vec<Arc<[u8]>>> {
        self.grace.ended.take()
    }

    /// Whether the grace period lasts.
    pub fn is_in_grace(&mut self, now_us: u64) -> bool {
        self.end_grace_in_time(now_us);
        self.grace.ends_us.is_some()
    }

    /// How long the grace period still lasts, in microseconds, unless a client reclaims; `None`
    /// when it is over. Ends it in time.
    pub fn grace_left_us(&mut self, now_us: u64) -> Option<u64> {
        self.end_grace_in_time(now_us);
        Some(self.grace.ends_us?.saturating_sub(now_us))
    }

    pub(crate) fn end_grace_in_time(&mut self, now_us: u64) {
        // A reclaim may have come in time, and wait to be carried out.
        let judged_us = self.judged_us(now_us);
        if (self.grace.ends_us).is_some_and(|ends_us| judged_us >= ends_us) {
            self.end_grace();
        }
    }

    /// No client is left that could reclaim anything: others need not wait for the time (RFC 8881,
    /// section 8.4.2.1).
    pub(crate) fn end_grace_when_reclaimed(&mut self) {
        if self.grace.ends_us.is_some() && self.grace.entitled.is_empty() {
            self.end_grace();
        }
    }

    /// A client that has not reclaimed by now may not after the next restart either, as others may
    /// have had the same in between (RFC 8881, section 8.4.3, second edge condition): that has to
    /// be on stable storage before any client is given an open or a lock.
    fn end_grace(&mut self) {
        self.grace.ends_us = None;
        self.grace.revoked.clear();
        let late = std::mem::take(&mut self.grace.entitled);
        self.grace.ended = Some(late.into_iter().collect());
        self.recording.push(Record::GraceEnded);
    }

    /// Whether a client may open or lock now (RFC 8881, section 8.4.2.1).
    ///
    /// # Errors
    /// NFS4ERR_GRACE: others may reclaim first, or the client has not said RECLAIM_COMPLETE
    /// (section 18.51.3); NFS4ERR_NO_GRACE: it is too late to reclaim; NFS4ERR_RECLAIM_BAD: the
    /// client had nothing when the server restarted; NFS4ERR_BADSESSION: there is no such client.
    pub(crate) fn may_obtain(
        &mut self,
        client: ClientId,
        is_reclaim: bool,
        now_us: u64,
    ) -> Result<(), Status> {
        let in_grace = self.is_in_grace(now_us);
        self.clients.renew(client, now_us);
        let client = self.clients.by_id(client).ok_or(Status::BADSESSION)?;
        self.recording.await_owner(&client.owner);
        self.recording.await_grace_end();
        match (is_reclaim, in_grace) {
            (false, true) => Err(Status::GRACE),
            (false, false) if !client.has_completed => Err(Status::GRACE),
            (false, false) => Ok(()),
            (true, _) if client.has_completed => Err(Status::NO_GRACE),
            (true, false) => Err(Status::NO_GRACE),
            (true, true) if !self.grace.entitled.contains(&client.owner) => {
                Err(Status::RECLAIM_BAD)
            }
            (true, true) => {
                self.grace.reclaimed(now_us);
                Ok(())
            }
        }
    }

    /// Whether a client may reclaim what it had of a file, beside [`State::may_obtain`]: not where
    /// it was revoked before, as others may have had it since (RFC 8881, section 8.4.3).
    ///
    /// # Errors
    /// NFS4ERR_RECLAIM_BAD.
    pub(crate) fn may_reclaim(&self, client: ClientId, file: &FileKey) -> Result<(), Status> {
        let owner = self.clients.by_id(client).map(|client| &client.owner);
        let revoked = owner.and_then(|owner| self.grace.revoked.get(owner));
        if revoked.is_some_and(|exports| exports.contains(&file.export())) {
            return Err(Status::RECLAIM_BAD);
        }
        Ok(())
    }

    /// Whether a file may lose a name now: in a grace period it may be one that a client had open
    /// before the restart, and has not reclaimed yet. With its last name the file would be gone,
    /// and the client would have lost what it was promised (RFC 8881, section 8.4.2.1).
    ///
    /// # Errors
    /// NFS4ERR_GRACE.
    pub fn may_take_names(&mut self, now_us: u64) -> Result<(), Status> {
        if self.is_in_grace(now_us) {
            return Err(Status::GRACE);
        }
        Ok(())
    }

    /// RECLAIM_COMPLETE (RFC 8881, section 18.51). The client is on stable storage from then on: it
    /// may have state that it reclaims after a restart. With `one_fs` it is about a file system
    /// that has moved here, which none does.
    ///
    /// # Errors
    /// NFS4ERR_COMPLETE_ALREADY; NFS4ERR_BADSESSION: there is no such client; NFS4ERR_DELAY:
    /// stable storage has to be written first.
    pub fn reclaim_complete(
        &mut self,
        client: ClientId,
        one_fs: bool,
        now_us: u64,
    ) -> Result<(), Status> {
        self.end_grace_in_time(now_us);
        let client = self.clients.by_id_mut(client).ok_or(Status::BADSESSION)?;
        if one_fs {
            return Ok(());
        }
        let owner = client.owner.clone();
        if client.has_completed {
            // One that was told to wait asks again.
            let is_told = self.recording.is_durable(&owner);
            self.recording.await_owner(&owner);
            return if is_told {
                Err(Status::COMPLETE_ALREADY)
            } else {
                Ok(())
            };
        }
        if self.recording.left() >= UNRECORDED_MAX {
            self.recording.await_all();
            return Err(Status::DELAY);
        }
        client.has_completed = true;
        // What was revoked before the restart it has not got back. What is revoked since it has yet
        // to acknowledge.
        let has_lost = self.grace.revoked.contains_key(&owner) && client.revoked.is_empty();
        self.grace.forget(&owner);
        self.recording.push(Record::Client {
            owner: owner.clone(),
        });
        if has_lost {
            let owner = owner.clone();
            self.recording.push(Record::Acknowledged { owner });
        }
        self.recording.await_owner(&owner);
        self.end_grace_when_reclaimed();
        Ok(())
    }
}
