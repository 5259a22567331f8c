//! Slots: SEQUENCE, exactly once, and the replies that are kept for it. RFC 8881, sections 2.10.6
//! and 18.46.

use std::sync::Arc;

use capstan_nfs_proto::v4::args::Sequence;
use capstan_nfs_proto::v4::results::{SequenceOk, SequenceStatus};
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, SessionId};

use super::limits::{SLOTS_WHEN_SHORT, Stock};
use super::sessions::Session;
use super::{Peer, State};

/// What a request is like that begins with SEQUENCE.
#[derive(Clone, Copy, Debug)]
pub struct RequestShape {
    /// A hash of the request and its credential, by which another request with the same number is
    /// told from the same one (RFC 8881, section 2.10.6.1.3.1).
    pub fingerprint: u64,
    /// Operations.
    pub operations: u32,
    /// Bytes, with the header of RPC.
    pub bytes: u32,
    /// Bytes of the smallest reply, likewise: SEQUENCE's result, and another operation that fails.
    pub reply_bytes: u32,
}

/// A new request: what it is in. Given back to [`State::complete`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InSession {
    /// The client.
    pub client: ClientId,
    /// The session.
    pub session: SessionId,
    /// The slot.
    pub slot: u32,
    /// Bytes that the reply may have, its RPC header included: else NFS4ERR_REP_TOO_BIG.
    pub response_bytes_max: u32,
    /// Bytes that the reply may have because it is to be kept: else NFS4ERR_REP_TOO_BIG_TO_CACHE.
    pub cached_bytes_max: Option<u32>,
}

/// What a SEQUENCE means.
#[derive(Clone, PartialEq, Debug)]
pub enum Sequenced {
    /// The request is to be executed.
    New(InSession, SequenceOk),
    /// The request was executed: this was its reply.
    Replay(Arc<[u8]>),
    /// The request was executed, and its reply is not kept. The result of SEQUENCE always is (RFC
    /// 8881, section 2.10.6.1.1); the operation behind it, if there is one, is answered with
    /// NFS4ERR_RETRY_UNCACHED_REP (section 2.10.6.1.3).
    Uncached(SequenceOk),
}

/// One slot.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    sequence: u32,
    /// How often slots had been taken away when this one was used last.
    generation: u32,
    last: Last,
}

/// The last request of a slot.
#[derive(Debug, Default)]
pub(crate) enum Last {
    #[default]
    None,
    InProgress {
        fingerprint: u64,
        cache_this: bool,
        /// Bytes taken for its reply.
        reserved: u32,
    },
    /// Executed, the reply is not kept.
    Uncached { fingerprint: u64 },
    Cached {
        fingerprint: u64,
        reply: Arc<[u8]>,
        /// Bytes taken for it.
        reserved: u32,
    },
}

/// What a request of some number in a slot is.
enum Numbered {
    New,
    Replay(Arc<[u8]>),
    Uncached,
}

impl Slot {
    /// RFC 8881, section 2.10.6.1 and 18.46.3.
    fn number(&self, arguments: &Sequence, shape: &RequestShape) -> Result<Numbered, Status> {
        let is_next = arguments.sequenceid == self.sequence.wrapping_add(1);
        let is_last = arguments.sequenceid == self.sequence;
        match &self.last {
            // The client does not know yet what became of the last one.
            Last::InProgress { .. } if is_last => Err(Status::DELAY),
            Last::InProgress { .. } => Err(Status::SEQ_MISORDERED),
            Last::None | Last::Uncached { .. } | Last::Cached { .. } if is_next => {
                Ok(Numbered::New)
            }
            Last::Uncached { fingerprint } | Last::Cached { fingerprint, .. }
                if is_last && *fingerprint != shape.fingerprint =>
            {
                Err(Status::SEQ_FALSE_RETRY)
            }
            Last::Uncached { .. } if is_last => Ok(Numbered::Uncached),
            Last::Cached { reply, .. } if is_last => Ok(Numbered::Replay(reply.clone())),
            Last::None | Last::Uncached { .. } | Last::Cached { .. } => Err(Status::SEQ_MISORDERED),
        }
    }

    pub(crate) const fn is_busy(&self) -> bool {
        matches!(self.last, Last::InProgress { .. })
    }

    #[cfg(test)]
    pub(crate) fn set_sequence(&mut self, sequence: u32) {
        self.sequence = sequence;
    }

    /// Bytes taken for its reply.
    pub(crate) const fn reserved(&self) -> u32 {
        match self.last {
            Last::None | Last::Uncached { .. } => 0,
            Last::InProgress { reserved, .. } | Last::Cached { reserved, .. } => reserved,
        }
    }
}

impl Session {
    /// How many slots the client should use: fewer where replies of more cannot be kept.
    fn shrink_target(&mut self) {
        let target = self.target.div_ceil(2).max(1);
        if target < self.target {
            self.target = target;
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// Slots above the target go when the client has seen the target (it uses a slot whose reply
    /// said so) and has no requests in them. Their bytes are given back by the caller.
    fn retire_slots(&mut self, slot: u32, highest_slot: u32) -> u32 {
        let knows = self
            .slot(slot)
            .is_some_and(|slot| slot.generation == self.generation);
        let target = usize::try_from(self.target).unwrap_or(usize::MAX);
        if !knows || highest_slot >= self.target || self.slots.len() <= target {
            return 0;
        }
        if self.slots.iter().skip(target).any(Slot::is_busy) {
            return 0;
        }
        let freed = self
            .slots
            .drain(target..)
            .fold(0, |sum: u32, slot| sum.saturating_add(slot.reserved()));
        self.slots.shrink_to_fit();
        freed
    }

    /// While replies of all sessions take more than they should, each session has half as many
    /// slots, when its client has given up what it was to give up before; and one more at a time
    /// when there is room again. A client whose SEQUENCE is told to wait does so for long (Linux
    /// for 15 s), so that it should not come to that.
    fn adapt_slots(&mut self, replies: &Stock) {
        let quarter = replies.max() / 4;
        let has_adapted = u32::try_from(self.slots.len()) == Ok(self.target);
        if replies.used() > quarter.saturating_mul(3) {
            if has_adapted && self.target > SLOTS_WHEN_SHORT {
                self.shrink_target();
            }
        } else if replies.used() < quarter.saturating_mul(2) {
            self.grow();
        }
    }

    /// One slot more is offered, up to as many as there were. A slot that comes back starts anew,
    /// and so does the client's.
    fn grow(&mut self) {
        let granted = usize::try_from(self.fore.maxrequests).unwrap_or(usize::MAX);
        let target = usize::try_from(self.target).unwrap_or(usize::MAX);
        if self.slots.len() == target && target < granted {
            self.target = self.target.saturating_add(1);
            self.slots.push(Slot {
                generation: self.generation,
                ..Slot::default()
            });
        }
    }

    /// Whether there is room for SEQUENCE's own result (RFC 8881, section 2.10.6.4).
    fn check_reply(&self, arguments: &Sequence, shape: &RequestShape) -> Result<(), Status> {
        if shape.reply_bytes > self.fore.maxresponsesize {
            return Err(Status::REP_TOO_BIG);
        }
        if arguments.cachethis && shape.reply_bytes > self.fore.maxresponsesize_cached {
            return Err(Status::REP_TOO_BIG_TO_CACHE);
        }
        Ok(())
    }

    fn sequence_result(&self, arguments: &Sequence, status_flags: SequenceStatus) -> SequenceOk {
        let slots = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        SequenceOk {
            sessionid: arguments.sessionid,
            sequenceid: arguments.sequenceid,
            slotid: arguments.slotid,
            highest_slotid: slots.saturating_sub(1),
            target_highest_slotid: self.target.saturating_sub(1),
            // No back channel can be down, expired state goes with its session, and nothing moves.
            status_flags,
        }
    }

    fn slot(&self, slot: u32) -> Option<&Slot> {
        self.slots.get(usize::try_from(slot).ok()?)
    }

    fn slot_mut(&mut self, slot: u32) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(slot).ok()?)
    }
}

impl State {
    /// SEQUENCE. Renews the lease (RFC 8881, section 8.3), and binds the connection to the session,
    /// which state protection NONE lets any request do (section 2.10.3.1).
    ///
    /// # Errors
    /// NFS4ERR_BADSESSION, NFS4ERR_BADSLOT, NFS4ERR_BAD_HIGH_SLOT, NFS4ERR_TOO_MANY_OPS,
    /// NFS4ERR_REQ_TOO_BIG, NFS4ERR_REP_TOO_BIG, NFS4ERR_REP_TOO_BIG_TO_CACHE,
    /// NFS4ERR_SEQ_MISORDERED, NFS4ERR_SEQ_FALSE_RETRY; NFS4ERR_DELAY: the same request is under
    /// way, or there is no room to keep the reply. The slot is as before.
    pub fn sequence(
        &mut self,
        arguments: &Sequence,
        shape: &RequestShape,
        peer: &Peer,
        now_us: u64,
    ) -> Result<Sequenced, Status> {
        let session = self
            .sessions
            .get_mut(&arguments.sessionid)
            .ok_or(Status::BADSESSION)?;
        let (client, address) = (session.client, session.address);
        if shape.operations > session.fore.maxoperations {
            return Err(Status::TOO_MANY_OPS);
        }
        if shape.bytes > session.fore.maxrequestsize {
            return Err(Status::REQ_TOO_BIG);
        }
        let slot = session.slot(arguments.slotid).ok_or(Status::BADSLOT)?;
        if arguments.highest_slotid < arguments.slotid {
            return Err(Status::BAD_HIGH_SLOT);
        }
        let numbered = slot.number(arguments, shape)?;
        if matches!(numbered, Numbered::New) {
            session.check_reply(arguments, shape)?;
        }
        let last_reserved = slot.reserved();
        self.clients.renew(client, now_us);
        let flags = self.status_of(client, now_us);
        self.bind(peer.connection, arguments.sessionid);
        let Some(session) = self.sessions.get_mut(&arguments.sessionid) else {
            return Err(Status::BADSESSION);
        };
        match numbered {
            Numbered::Replay(reply) => return Ok(Sequenced::Replay(reply)),
            Numbered::Uncached => {
                return Ok(Sequenced::Uncached(
                    session.sequence_result(arguments, flags),
                ));
            }
            Numbered::New => {}
        }
        // The client has the last reply of the slot: it has sent the next request.
        self.replies.give_back(address, last_reserved.into());
        if let Some(slot) = session.slot_mut(arguments.slotid) {
            slot.last = match std::mem::take(&mut slot.last) {
                Last::Cached { fingerprint, .. } => Last::Uncached { fingerprint },
                last @ (Last::None | Last::Uncached { .. } | Last::InProgress { .. }) => last,
            };
        }
        let freed = session.retire_slots(arguments.slotid, arguments.highest_slotid);
        self.replies.give_back(address, freed.into());
        // That of the first slot is promised since the session was made.
        let reserved = if arguments.cachethis && arguments.slotid != 0 {
            session.fore.maxresponsesize_cached
        } else {
            0
        };
        let taken = self.take_replies(address, reserved.into(), now_us);
        let Some(session) = self.sessions.get_mut(&arguments.sessionid) else {
            return Err(Status::BADSESSION);
        };
        if let Err(status) = taken {
            session.shrink_target();
            return Err(status);
        }
        session.adapt_slots(&self.replies);
        let fore = session.fore;
        let reply = session.sequence_result(arguments, flags);
        let generation = session.generation;
        if let Some(slot) = session.slot_mut(arguments.slotid) {
            slot.sequence = arguments.sequenceid;
            slot.generation = generation;
            slot.last = Last::InProgress {
                fingerprint: shape.fingerprint,
                cache_this: arguments.cachethis,
                reserved,
            };
        }
        let in_session = InSession {
            client,
            session: arguments.sessionid,
            slot: arguments.slotid,
            response_bytes_max: fore.maxresponsesize,
            cached_bytes_max: arguments
                .cachethis
                .then_some(fore.maxresponsesize_cached.min(fore.maxresponsesize)),
        };
        Ok(Sequenced::New(in_session, reply))
    }

    /// A new request was not carried out after all, and nothing of it was done: it comes once more,
    /// and is new then. What its slot had kept of the request before is gone, as the client has its
    /// reply.
    pub fn withdraw(&mut self, request: &InSession) {
        let Some(session) = self.sessions.get_mut(&request.session) else {
            return;
        };
        let address = session.address;
        if let Some(slot) = session.slot_mut(request.slot)
            && slot.is_busy()
        {
            let reserved = slot.reserved();
            slot.sequence = slot.sequence.wrapping_sub(1);
            slot.last = Last::None;
            self.replies.give_back(address, reserved.into());
        }
    }

    /// The end of a new request, with its reply as it would be sent again; `None` where it cannot
    /// be. It is kept when the client has asked for it; one that is longer than it may be is not,
    /// and the request is not executed again either (RFC 8881, section 2.10.6.1.3).
    pub fn complete(&mut self, request: &InSession, reply: Option<&[u8]>) {
        let Some(session) = self.sessions.get_mut(&request.session) else {
            // It has destroyed its own session.
            return;
        };
        let (address, max) = (session.address, session.fore.maxresponsesize_cached);
        let Some(slot) = session.slot_mut(request.slot) else {
            return;
        };
        let Last::InProgress {
            fingerprint,
            cache_this,
            reserved,
        } = slot.last
        else {
            return;
        };
        let bytes = |reply: &[u8]| u32::try_from(reply.len()).unwrap_or(u32::MAX);
        let (last, kept) = match reply {
            Some(reply) if cache_this && bytes(reply) <= max => {
                let reserved = reserved.min(bytes(reply));
                let cached = Last::Cached {
                    fingerprint,
                    reply: reply.into(),
                    reserved,
                };
                (cached, reserved)
            }
            Some(_) | None => (Last::Uncached { fingerprint }, 0),
        };
        slot.last = last;
        self.replies
            .give_back(address, reserved.saturating_sub(kept).into());
    }
}
