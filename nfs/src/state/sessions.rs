//! Sessions: CREATE_SESSION, BIND_CONN_TO_SESSION, DESTROY_SESSION. RFC 8881, sections 2.10, 18.34,
//! 18.36 and 18.37.

use std::net::IpAddr;
use std::sync::Arc;

use capstan_nfs_proto::v4::args::{
    ChannelAttributes, ChannelDirection, ClientChannelDirection, CreateSession, CreateSessionFlags,
};
use capstan_nfs_proto::v4::results::CreateSessionOk;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, SessionId};

use super::clients::Client;
use super::limits::{
    CACHED_RESPONSE_BYTES_MAX, CONNECTIONS_PER_SESSION_MAX, MESSAGE_BYTES_MIN, OPERATIONS_MAX,
    REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, SESSIONS_PER_CLIENT_MAX, SLOTS_MAX, allocation_bytes,
    map_entry_bytes,
};
use super::slots::Slot;
use super::{ConnId, Peer, State};

/// Whether anything fits into the messages of a channel (RFC 8881, section 18.36.3: of either).
fn check_sizes(asked: &ChannelAttributes) -> Result<(), Status> {
    if asked.maxrequestsize.min(asked.maxresponsesize) < MESSAGE_BYTES_MIN {
        return Err(Status::TOOSMALL);
    }
    Ok(())
}

/// What is granted of what a client asks for of its fore channel (RFC 8881, section 18.36.3).
///
/// # Errors
/// NFS4ERR_INVAL: no slots or no operations.
fn granted(asked: &ChannelAttributes) -> Result<ChannelAttributes, Status> {
    if asked.maxrequests == 0 || asked.maxoperations == 0 {
        return Err(Status::INVAL);
    }
    Ok(ChannelAttributes {
        headerpadsize: 0,
        maxrequestsize: asked.maxrequestsize.min(REQUEST_BYTES_MAX),
        maxresponsesize: asked.maxresponsesize.min(RESPONSE_BYTES_MAX),
        maxresponsesize_cached: asked
            .maxresponsesize_cached
            .min(CACHED_RESPONSE_BYTES_MAX)
            .min(asked.maxresponsesize),
        maxoperations: asked.maxoperations.min(OPERATIONS_MAX),
        maxrequests: asked.maxrequests.min(SLOTS_MAX),
        // Connections are RDMA's from their start, or never.
        rdma_ird: None,
    })
}

/// What the last CREATE_SESSION of a client was told: the one entry of its reply cache.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CreateReply {
    None,
    Sent(Result<CreateSessionOk, Status>),
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: ClientId,
    pub(crate) address: IpAddr,
    pub(crate) fore: ChannelAttributes,
    pub(crate) slots: Vec<Slot>,
    /// How many slots the client should use.
    pub(crate) target: u32,
    /// How often that has become less.
    pub(crate) generation: u32,
    /// Connections bound to it, the oldest first.
    pub(crate) connections: Vec<ConnId>,
    /// Bytes taken for it.
    pub(crate) bytes: u64,
}

impl Session {
    /// Whether any of its requests is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.slots.iter().any(Slot::is_busy)
    }

    /// Bytes of kept replies, with what is promised to the first slot.
    pub(crate) fn reply_bytes(&self) -> u64 {
        let slots = self
            .slots
            .iter()
            .map(|slot| u64::from(slot.reserved()))
            .sum::<u64>();
        slots.saturating_add(self.fore.maxresponsesize_cached.into())
    }

    pub(crate) fn accounted_bytes(slots: u32) -> u64 {
        let slots = usize::try_from(slots).unwrap_or(usize::MAX);
        let connections = CONNECTIONS_PER_SESSION_MAX.saturating_mul(size_of::<ConnId>());
        map_entry_bytes::<SessionId, Self>()
            .saturating_add(allocation_bytes(slots.saturating_mul(size_of::<Slot>())))
            .saturating_add(allocation_bytes(connections))
    }
}

/// Where in its COMPOUND a DESTROY_SESSION is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DestroySessionPlace {
    /// It is the first operation, with others behind it or alone.
    First {
        /// Whether it is the only one.
        is_only: bool,
    },
    /// It follows the SEQUENCE of a session.
    InSession {
        /// That session.
        session: SessionId,
        /// Whether it is the last operation.
        is_last: bool,
    },
}

impl State {
    /// CREATE_SESSION, which confirms the client's record. `unguessable` is random: a client that
    /// was not told a session's ID cannot use it.
    ///
    /// # Errors
    /// NFS4ERR_STALE_CLIENTID, NFS4ERR_TOOSMALL, NFS4ERR_SEQ_MISORDERED; NFS4ERR_DELAY: there is no
    /// room, or requests of the instance that this one replaces are under way. With these the
    /// client may send the same number again. NFS4ERR_CLID_INUSE, NFS4ERR_INVAL, NFS4ERR_NOSPC:
    /// what the same number is told from then on (RFC 8881, section 18.36.4).
    pub fn create_session(
        &mut self,
        arguments: &CreateSession<'_>,
        peer: &Peer,
        unguessable: u64,
        now_us: u64,
    ) -> Result<CreateSessionOk, Status> {
        let client = self
            .clients
            .by_id(arguments.clientid)
            .ok_or(Status::STALE_CLIENTID)?;
        // A client that then asks for more does so with the same number.
        check_sizes(&arguments.fore_chan_attrs)?;
        check_sizes(&arguments.back_chan_attrs)?;
        // What another instance of its owner had has to be lost for good.
        let owner = client.owner.clone();
        if arguments.sequence == client.create_sequence {
            self.recording.await_owner(&owner);
            return match client.create_reply {
                CreateReply::Sent(reply) => reply,
                CreateReply::None => Err(Status::SEQ_MISORDERED),
            };
        }
        if arguments.sequence != client.create_sequence.wrapping_add(1) {
            return Err(Status::SEQ_MISORDERED);
        }
        let reply = self.try_create_session(arguments, peer, unguessable, now_us);
        if reply != Err(Status::DELAY)
            && let Some(client) = self.clients.by_id_mut(arguments.clientid)
        {
            client.create_sequence = arguments.sequence;
            client.create_reply = CreateReply::Sent(reply);
        }
        self.recording.await_owner(&owner);
        reply
    }

    /// The owner of a client that CREATE_SESSION is to confirm.
    pub(crate) fn unconfirmed_owner(&self, client: ClientId) -> Option<Arc<[u8]>> {
        let client = self.clients.by_id(client)?;
        (!client.is_confirmed).then(|| client.owner.clone())
    }

    fn try_create_session(
        &mut self,
        arguments: &CreateSession<'_>,
        peer: &Peer,
        unguessable: u64,
        now_us: u64,
    ) -> Result<CreateSessionOk, Status> {
        let id = arguments.clientid;
        let client = self.clients.by_id(id).ok_or(Status::STALE_CLIENTID)?;
        // Only the principal that asked for the record may confirm it.
        if !client.is_confirmed && client.principal != peer.principal {
            return Err(Status::CLID_INUSE);
        }
        if !CreateSessionFlags::all().contains(arguments.flags) {
            return Err(Status::INVAL);
        }
        if client.sessions.len() >= SESSIONS_PER_CLIENT_MAX {
            return Err(Status::NOSPC);
        }
        let fore = granted(&arguments.fore_chan_attrs)?;
        if !client.is_confirmed {
            self.confirm_client(id, now_us)?;
        }
        let address = self
            .clients
            .by_id(id)
            .ok_or(Status::STALE_CLIENTID)?
            .address;
        let bytes = Session::accounted_bytes(fore.maxrequests);
        // What makes room must not take the client that it is for.
        self.clients.renew(id, now_us);
        self.take_bytes(address, bytes, now_us)?;
        let promised = fore.maxresponsesize_cached.into();
        if let Err(status) = self.take_replies(address, promised, now_us) {
            self.bytes.give_back(address, bytes);
            return Err(status);
        }
        self.last_session = self.last_session.wrapping_add(1);
        let number = u64::from(self.instance) << 32 | u64::from(self.last_session);
        let session_id =
            SessionId((u128::from(number) << 64 | u128::from(unguessable)).to_be_bytes());
        let session = Session {
            client: id,
            address,
            fore,
            slots: (0..fore.maxrequests).map(|_| Slot::default()).collect(),
            target: fore.maxrequests,
            generation: 0,
            connections: Vec::new(),
            bytes,
        };
        self.sessions.insert(session_id, session);
        if let Some(client) = self.clients.by_id_mut(id) {
            client.sessions.push(session_id);
        }
        self.bind(peer.connection, session_id);
        Ok(CreateSessionOk {
            sessionid: session_id,
            sequence: arguments.sequence,
            // Nothing is persistent, and there is no back channel.
            flags: CreateSessionFlags::empty(),
            fore_chan_attrs: fore,
            back_chan_attrs: arguments.back_chan_attrs,
        })
    }

    /// A client's record becomes the confirmed one. What its owner had before a restart goes (RFC
    /// 8881, section 18.36.4).
    fn confirm_client(&mut self, id: ClientId, now_us: u64) -> Result<(), Status> {
        let client = self.clients.by_id(id).ok_or(Status::STALE_CLIENTID)?;
        let (owner, address, principal) = (client.owner.clone(), client.address, client.principal);
        if let Some(before) = self.clients.records(&owner).confirmed {
            // Confirmed since by another principal: it is that one's now.
            let is_other = |before: &Client| before.principal != principal;
            if self.clients.by_id(before).is_some_and(is_other) {
                return Err(Status::CLID_INUSE);
            }
            if self.is_busy(before) {
                return Err(Status::DELAY);
            }
            self.remove_client(before);
        }
        let bytes = Client::accounted_bytes(&owner);
        self.take_bytes(address, bytes, now_us)?;
        while self.clients.confirm(id, now_us).is_err() {
            if let Err(status) = self.expire_longest_lapsed(now_us) {
                self.bytes.give_back(address, bytes);
                return Err(status);
            }
        }
        if let Some(client) = self.clients.by_id_mut(id) {
            client.bytes = bytes;
        }
        Ok(())
    }

    /// Whose session it is.
    #[must_use]
    pub fn client_of(&self, session: SessionId) -> Option<ClientId> {
        self.sessions.get(&session).map(|session| session.client)
    }

    pub(crate) fn bind(&mut self, connection: ConnId, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if !self.bound.insert((connection, id)) {
            return;
        }
        if session.connections.len() >= CONNECTIONS_PER_SESSION_MAX {
            let oldest = session.connections.remove(0);
            self.bound.remove(&(oldest, id));
        }
        session.connections.push(connection);
    }

    /// BIND_CONN_TO_SESSION: which directions the connection has then. The back channel is declined
    /// where the client leaves the choice (RFC 8881, section 18.34.3); where it does not, it has
    /// one that is never used.
    ///
    /// # Errors
    /// NFS4ERR_BADSESSION.
    pub fn bind_conn_to_session(
        &mut self,
        session: SessionId,
        direction: ClientChannelDirection,
        peer: &Peer,
    ) -> Result<ChannelDirection, Status> {
        if !self.sessions.contains_key(&session) {
            return Err(Status::BADSESSION);
        }
        Ok(match direction {
            ClientChannelDirection::Fore | ClientChannelDirection::ForeOrBoth => {
                self.bind(peer.connection, session);
                ChannelDirection::Fore
            }
            ClientChannelDirection::Back | ClientChannelDirection::BackOrBoth => {
                ChannelDirection::Back
            }
        })
    }

    /// DESTROY_SESSION (RFC 8881, section 18.37). The request that it is in, if it is one of the
    /// session, is not to be kept.
    ///
    /// # Errors
    /// NFS4ERR_NOT_ONLY_OP: other operations are where none may be; NFS4ERR_BADSESSION;
    /// NFS4ERR_CONN_NOT_BOUND_TO_SESSION; NFS4ERR_DELAY: other requests of it are under way.
    pub fn destroy_session(
        &mut self,
        id: SessionId,
        place: DestroySessionPlace,
        peer: &Peer,
    ) -> Result<(), Status> {
        let is_own = match place {
            DestroySessionPlace::First { is_only: false } => return Err(Status::NOT_ONLY_OP),
            DestroySessionPlace::InSession {
                session,
                is_last: false,
            } if session == id => {
                return Err(Status::NOT_ONLY_OP);
            }
            DestroySessionPlace::InSession { session, .. } => session == id,
            DestroySessionPlace::First { is_only: true } => false,
        };
        let session = self.sessions.get(&id).ok_or(Status::BADSESSION)?;
        if !self.bound.contains(&(peer.connection, id)) {
            return Err(Status::CONN_NOT_BOUND_TO_SESSION);
        }
        let under_way = session.slots.iter().filter(|slot| slot.is_busy()).count();
        if under_way > usize::from(is_own) {
            return Err(Status::DELAY);
        }
        self.remove_session(id);
        Ok(())
    }

    /// Removes a session with the replies it has kept.
    pub(crate) fn remove_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        self.bytes.give_back(session.address, session.bytes);
        self.replies
            .give_back(session.address, session.reply_bytes());
        for connection in session.connections {
            self.bound.remove(&(connection, id));
        }
        if let Some(client) = self.clients.by_id_mut(session.client) {
            client.sessions.retain(|other| *other != id);
        }
    }
}
