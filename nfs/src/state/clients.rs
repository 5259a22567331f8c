//! Clients: EXCHANGE_ID, their leases, DESTROY_CLIENTID. RFC 8881, sections 2.4, 8.3, 18.35 and
//! 18.50.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use capstan_nfs_proto::v4::args::{ExchangeId, ExchangeIdFlags as Flags, StateProtect};
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, ClientOwner, SessionId, Verifier};

use super::limits::{
    Stock, UNCONFIRMED_MAX, UNCONFIRMED_PER_ADDRESS_MAX, accounted_address, allocation_bytes,
    map_entry_bytes,
};
use super::revoked::Revoked;
use super::sessions::CreateReply;
use super::stable::Record;
use super::stateids::EntryKind;
use super::{Action, Peer, Principal, State};

/// Flags that may be in a request: not those of results (RFC 8881, section 18.35.3).
const ARGUMENT_FLAGS: Flags = Flags::SUPP_MOVED_REFER
    .union(Flags::SUPP_MOVED_MIGR)
    .union(Flags::BIND_PRINC_STATEID)
    .union(Flags::USE_NON_PNFS)
    .union(Flags::USE_PNFS_MDS)
    .union(Flags::USE_PNFS_DS)
    .union(Flags::UPD_CONFIRMED_REC_A);

/// The result of EXCHANGE_ID, beside what the server says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExchangedId {
    /// The client.
    pub client: ClientId,
    /// The sequence ID of its next CREATE_SESSION.
    pub sequence: u32,
    /// What the server can.
    pub flags: Flags,
}

/// The record of one client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) owner: Arc<[u8]>,
    pub(crate) verifier: Verifier,
    pub(crate) principal: Principal,
    pub(crate) address: IpAddr,
    pub(crate) is_confirmed: bool,
    /// When the lease was renewed last; of an unconfirmed record, when it was made.
    pub(crate) renewed_us: u64,
    /// The sequence ID of the last CREATE_SESSION, and what it was told.
    pub(crate) create_sequence: u32,
    pub(crate) create_reply: CreateReply,
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) states: BTreeSet<u64>,
    pub(crate) revoked: Revoked,
    /// RECLAIM_COMPLETE has been sent, and the client is on stable storage.
    pub(crate) has_completed: bool,
    /// Bytes taken for the record.
    pub(crate) bytes: u64,
}

impl Client {
    pub(crate) fn accounted_bytes(owner: &[u8]) -> u64 {
        // Its place by number, by owner and by renewal, and its owner with two counters.
        map_entry_bytes::<ClientId, Self>()
            .saturating_add(map_entry_bytes::<Arc<[u8]>, Records>())
            .saturating_add(map_entry_bytes::<(u64, ClientId), ()>())
            .saturating_add(allocation_bytes(owner.len().saturating_add(16)))
    }
}

/// The records of one owner: a confirmed one, and one that may replace it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Records {
    pub(crate) confirmed: Option<ClientId>,
    unconfirmed: Option<ClientId>,
}

/// All clients.
#[derive(Debug)]
pub(crate) struct Clients {
    by_id: BTreeMap<ClientId, Client>,
    by_owner: BTreeMap<Arc<[u8]>, Records>,
    /// Confirmed ones in the order of their renewals.
    by_renewal: BTreeSet<(u64, ClientId)>,
    /// Unconfirmed ones by address, the oldest first.
    unconfirmed: BTreeSet<(IpAddr, u64, ClientId)>,
    confirmed: Stock,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_owner: BTreeMap::new(),
            by_renewal: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            confirmed: Stock::new(0),
        }
    }
}

impl Clients {
    pub(crate) fn set_max(&mut self, max: u64) {
        self.confirmed = Stock::new(max);
    }

    pub(crate) fn by_id(&self, client: ClientId) -> Option<&Client> {
        self.by_id.get(&client)
    }

    pub(crate) fn by_id_mut(&mut self, client: ClientId) -> Option<&mut Client> {
        self.by_id.get_mut(&client)
    }

    pub(crate) fn records(&self, owner: &[u8]) -> Records {
        self.by_owner.get(owner).copied().unwrap_or_default()
    }

    pub(crate) fn confirmed(&self) -> impl Iterator<Item = &Client> {
        self.by_id.values().filter(|client| client.is_confirmed)
    }

    pub(crate) fn confirmed_count(&self) -> usize {
        self.by_renewal.len()
    }

    /// Owners that are on stable storage because of this instance of the server.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = Arc<[u8]>> {
        self.by_id
            .values()
            .filter(|client| client.has_completed)
            .map(|client| client.owner.clone())
    }

    /// Owners that were not told of all that was revoked, and of which exports that was.
    pub(crate) fn revoked(&self) -> impl Iterator<Item = (&Arc<[u8]>, u64)> {
        self.by_id.values().flat_map(|client| {
            let exports = client.revoked.exports();
            exports.map(|export| (&client.owner, export))
        })
    }

    /// Clients that were renewed last before `before_us`, the longest ago first.
    pub(crate) fn lapsed_before(&self, before_us: u64) -> Vec<ClientId> {
        let before = (before_us, ClientId(0));
        self.by_renewal
            .range(..before)
            .map(|(_, client)| *client)
            .collect()
    }

    pub(crate) fn oldest_renewal_us(&self) -> Option<u64> {
        self.by_renewal.first().map(|(renewed_us, _)| *renewed_us)
    }

    pub(crate) fn oldest_unconfirmed_us(&self) -> Option<u64> {
        self.unconfirmed
            .iter()
            .map(|(_, made_us, _)| *made_us)
            .min()
    }

    pub(crate) fn renew(&mut self, id: ClientId, now_us: u64) {
        if let Some(client) = self.by_id.get_mut(&id).filter(|client| client.is_confirmed) {
            self.by_renewal.remove(&(client.renewed_us, id));
            client.renewed_us = client.renewed_us.max(now_us);
            self.by_renewal.insert((client.renewed_us, id));
        }
    }

    /// A new record, unconfirmed. Where there are too many of its address, or of all, the oldest
    /// goes: of the address that has most.
    fn insert(&mut self, id: ClientId, client: Client) {
        let address = client.address;
        let of_it: Vec<_> = self
            .unconfirmed
            .iter()
            .filter(|(other, ..)| *other == address)
            .copied()
            .collect();
        let oldest = if of_it.len() >= UNCONFIRMED_PER_ADDRESS_MAX {
            of_it.first().copied()
        } else if self.unconfirmed.len() >= UNCONFIRMED_MAX {
            self.oldest_of_most()
        } else {
            None
        };
        if let Some((_, _, oldest)) = oldest {
            self.remove(oldest);
        }
        self.by_owner
            .entry(client.owner.clone())
            .or_default()
            .unconfirmed = Some(id);
        self.unconfirmed.insert((address, client.renewed_us, id));
        self.by_id.insert(id, client);
    }

    fn oldest_of_most(&self) -> Option<(IpAddr, u64, ClientId)> {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for (address, ..) in &self.unconfirmed {
            let count = counts.entry(*address).or_default();
            *count = count.saturating_add(1);
        }
        let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        self.unconfirmed
            .iter()
            .find(|(address, ..)| *address == most)
            .copied()
    }

    /// Makes an unconfirmed record the confirmed one of its owner, which has to have no other.
    ///
    /// # Errors
    /// NFS4ERR_DELAY: there are as many clients as there may be.
    pub(crate) fn confirm(&mut self, id: ClientId, now_us: u64) -> Result<(), Status> {
        let client = self.by_id.get_mut(&id).ok_or(Status::STALE_CLIENTID)?;
        self.confirmed
            .take(client.address, 1)
            .map_err(|_| Status::DELAY)?;
        self.unconfirmed
            .remove(&(client.address, client.renewed_us, id));
        client.is_confirmed = true;
        client.renewed_us = now_us;
        self.by_renewal.insert((now_us, id));
        *self.by_owner.entry(client.owner.clone()).or_default() = Records {
            confirmed: Some(id),
            unconfirmed: None,
        };
        Ok(())
    }

    /// Takes a record out of everything that has it.
    pub(crate) fn remove(&mut self, id: ClientId) -> Option<Client> {
        let client = self.by_id.remove(&id)?;
        self.unconfirmed
            .remove(&(client.address, client.renewed_us, id));
        if client.is_confirmed {
            self.by_renewal.remove(&(client.renewed_us, id));
            self.confirmed.give_back(client.address, 1);
        }
        if let Some(records) = self.by_owner.get_mut(&client.owner) {
            records.confirmed = records.confirmed.filter(|other| *other != id);
            records.unconfirmed = records.unconfirmed.filter(|other| *other != id);
            if records.confirmed.is_none() && records.unconfirmed.is_none() {
                self.by_owner.remove(&client.owner);
            }
        }
        Some(client)
    }

    /// An unconfirmed record lives for a lease: nothing is lost with it.
    pub(crate) fn forget_old_unconfirmed(&mut self, now_us: u64, lease_us: u64) {
        let old: Vec<_> = self
            .unconfirmed
            .iter()
            .filter(|(_, made_us, _)| now_us.saturating_sub(*made_us) >= lease_us)
            .map(|(_, _, client)| *client)
            .collect();
        for client in old {
            self.remove(client);
        }
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (&ClientId, &Client)> {
        self.by_id.iter()
    }

    #[cfg(test)]
    pub(crate) fn sizes(&self) -> (usize, usize, u64) {
        (
            self.by_owner.len(),
            self.unconfirmed.len(),
            self.confirmed.used(),
        )
    }
}

impl State {
    /// EXCHANGE_ID. `unguessable` is random: the client's ID is made of it, so that no client can
    /// name another one.
    ///
    /// # Errors
    /// NFS4ERR_INVAL: flags that do not exist, or a machine credential, which needs RPCSEC_GSS;
    /// NFS4ERR_ENCR_ALG_UNSUPP: SSV; and those of the nine cases of RFC 8881, section 18.35:
    /// NFS4ERR_CLID_INUSE, NFS4ERR_NOENT, NFS4ERR_NOT_SAME, NFS4ERR_PERM.
    pub fn exchange_id(
        &mut self,
        arguments: &ExchangeId<'_>,
        minor_version: u32,
        peer: &Peer,
        unguessable: u32,
        now_us: u64,
    ) -> Result<ExchangedId, Status> {
        // Fencing is of minor version 2 (RFC 7862, section 14.1).
        let of_version = if minor_version >= 2 {
            Flags::SUPP_FENCE_OPS
        } else {
            Flags::empty()
        };
        if !ARGUMENT_FLAGS.union(of_version).contains(arguments.flags) {
            return Err(Status::INVAL);
        }
        match arguments.state_protect {
            StateProtect::None => {}
            StateProtect::MachineCredential(_) => return Err(Status::INVAL),
            StateProtect::Ssv(_) => return Err(Status::ENCR_ALG_UNSUPP),
        }
        let is_update = arguments.flags.contains(Flags::UPD_CONFIRMED_REC_A);
        let owner = arguments.clientowner;
        let confirmed = self.clients.records(owner.ownerid.0).confirmed;
        let Some((id, client)) = confirmed.and_then(|id| Some((id, self.clients.by_id(id)?)))
        else {
            if is_update {
                // Case 7: there is nothing to update.
                return Err(Status::NOENT);
            }
            // Cases 1 and 4: a new owner, or one that has not confirmed its record.
            return Ok(self.new_client(&owner, peer, unguessable, now_us));
        };
        let same_principal = client.principal == peer.principal;
        let same_verifier = client.verifier == owner.verifier;
        let has_state = !client.sessions.is_empty() || !client.states.is_empty();
        match (is_update, same_principal, same_verifier) {
            // Case 2: as before. Case 6: an update, of which nothing is kept.
            (_, true, true) => Ok(ExchangedId {
                client: id,
                sequence: client.create_sequence.wrapping_add(1),
                flags: Flags::USE_NON_PNFS | Flags::CONFIRMED_R,
            }),
            // Case 9.
            (true, false, _) => Err(Status::PERM),
            // Case 8.
            (true, true, false) => Err(Status::NOT_SAME),
            // Case 3: another principal has the owner, unless nothing is left of it.
            (false, false, _) if has_state && !self.has_lapsed(id, now_us) => {
                Err(Status::CLID_INUSE)
            }
            (false, false, _) => {
                self.remove_client(id);
                Ok(self.new_client(&owner, peer, unguessable, now_us))
            }
            // Case 5: the client has restarted. Its state goes when it confirms the new record.
            (false, true, false) => Ok(self.new_client(&owner, peer, unguessable, now_us)),
        }
    }

    fn new_client(
        &mut self,
        owner: &ClientOwner<'_>,
        peer: &Peer,
        unguessable: u32,
        now_us: u64,
    ) -> ExchangedId {
        if let Some(replaced) = self.clients.records(owner.ownerid.0).unconfirmed {
            self.clients.remove(replaced);
        }
        let mut low = unguessable;
        let id = loop {
            let id = ClientId(u64::from(self.instance) << 32 | u64::from(low));
            // There are some thousand at most.
            if self.clients.by_id(id).is_none() {
                break id;
            }
            low = low.wrapping_add(1);
        };
        let client = Client {
            owner: owner.ownerid.0.into(),
            verifier: owner.verifier,
            principal: peer.principal,
            address: accounted_address(peer.address),
            is_confirmed: false,
            renewed_us: now_us,
            create_sequence: 0,
            create_reply: CreateReply::None,
            sessions: Vec::new(),
            states: BTreeSet::new(),
            revoked: Revoked::default(),
            has_completed: false,
            bytes: 0,
        };
        self.clients.insert(id, client);
        ExchangedId {
            client: id,
            sequence: 1,
            flags: Flags::USE_NON_PNFS,
        }
    }

    /// DESTROY_CLIENTID (RFC 8881, section 18.50).
    ///
    /// # Errors
    /// NFS4ERR_STALE_CLIENTID: there is none; NFS4ERR_CLIENTID_BUSY: it has sessions, opens or
    /// locks and its lease has not expired.
    pub fn destroy_clientid(&mut self, client: ClientId, now_us: u64) -> Result<(), Status> {
        let record = self.clients.by_id(client).ok_or(Status::STALE_CLIENTID)?;
        let has_state = !record.sessions.is_empty() || !record.states.is_empty();
        if has_state && !self.has_lapsed(client, now_us) {
            return Err(Status::CLIENTID_BUSY);
        }
        let owner = record.owner.clone();
        let is_confirmed = record.is_confirmed;
        self.remove_client(client);
        // Whoever says so has nothing to reclaim any longer, and others need not wait for it.
        if is_confirmed && self.grace.forget(&owner) {
            self.recording.push(Record::Gone {
                owner: owner.clone(),
            });
            self.end_grace_when_reclaimed();
        }
        self.recording.await_owner(&owner);
        Ok(())
    }

    /// Removes a client with all it has. That a client of stable storage has lost its state has to
    /// be there before another client is given what it held (RFC 8881, section 8.4.3).
    pub(crate) fn remove_client(&mut self, id: ClientId) {
        let Some(client) = self.clients.by_id(id) else {
            return;
        };
        if client.has_completed {
            self.recording.push(Record::Gone {
                owner: client.owner.clone(),
            });
            for entry in client.states.iter().filter_map(|of| self.states.get(of)) {
                self.recording.push_file(entry.file.clone());
            }
        }
        for session in client.sessions.clone() {
            self.remove_session(session);
        }
        let states = self.clients.by_id(id).map(|client| client.states.clone());
        for number in states.unwrap_or_default() {
            // Locks go with their opens.
            let kind = self.states.get(&number).map(|entry| &entry.kind);
            if matches!(kind, Some(EntryKind::Open(_))) {
                self.remove_open(number);
            }
        }
        if let Some(client) = self.clients.remove(id) {
            let bytes = client.bytes.saturating_add(client.revoked.bytes());
            self.bytes.give_back(client.address, bytes);
            self.actions.push_back(Action::EndClient { client: id });
        }
    }
}
