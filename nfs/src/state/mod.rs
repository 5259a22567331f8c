//! The state of an NFSv4.1 server: clients, sessions, opens, locks, and their recovery after a
//! restart. RFC 8881; minor version 2 (RFC 7862) adds nothing to it.
//!
//! Nothing here does I/O, reads a clock or knows RPC, XDR or a file system. [`State`] is kept
//! behind one lock by its driver; what happened goes in through its methods, time is their `now_us`
//! (microseconds of a clock that only goes forward), and a [`Status`] is what the operation
//! answers.
//!
//! # What a driver does after every call, whatever it returned
//! 1. It carries out [`State::poll_action`] until there is none: files to be closed and locks to
//!    be released, as no client has them any more.
//! 2. It makes records ([`State::take_records`]) durable, in their order, as far as
//!    [`State::take_awaited`] says *before* it sends the answer: what that lets a client believe
//!    has to be true after a restart (RFC 8881, section 8.4.3). It says so ([`State::recorded`]).
//!
//! # The walk of a request
//! 1. [`State::heard_until`] says whether others wait, and for how long.
//!    [`State::sequence`] says that the request is new, with the client it is of, or gives the
//!    reply that it had. Each new one is ended by [`State::complete`], even when its connection is
//!    gone: until then its session and its client cannot be taken away.
//! 2. OPEN: the driver opens the file, with [`State::may_open`] before anything is changed, and
//!    then calls [`State::open`]. The open file is kept by its [`OpenId`] until [`Action::Close`].
//! 3. READ, WRITE and SETATTR of the size: [`State::check_io`].
//! 4. LOCK and LOCKU: [`State::begin_lock`] and [`State::begin_unlock`] say which OFD lock is to be
//!    taken or released at the backend, so that local users see it and are heeded; then
//!    [`State::commit_lock`] or [`State::roll_back_lock`].
//!
//! # Decisions
//! * A lease that has expired costs nothing as long as no other client wants what its client holds
//!   ("courteous server"; RFC 8881, section 8.4.3 lets a server keep the state): a network that
//!   was gone for ten minutes is no reason to lose locks. The whole client goes when an open, a
//!   lock or anonymous I/O conflicts with something it holds, when a bound is reached, or after a
//!   day.
//! * A client's state goes as a whole, with its sessions: it sees NFS4ERR_BADSESSION and starts
//!   again. Single stateids are revoked only with the export of their files (`revoked.rs`).
//! * No delegations, no layouts, no back channel.

mod clients;
mod config;
mod grace;
mod io;
pub mod limits;
mod lock_room;
mod locks;
mod opens;
mod ranges;
mod recording;
mod report;
mod revoked;
mod sessions;
mod shares;
mod slots;
pub mod stable;
mod stateids;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, SessionId};

use clients::Clients;
use grace::Grace;
use limits::Stock;
use opens::File;
use recording::Recording;
use sessions::Session;
use stable::{Record, Replay};
use stateids::Entry;

pub use clients::ExchangedId;
pub use config::{Config, ConfigError};
pub use io::{IoAccess, IoPermit};
pub use locks::{
    Denied, LockChange, LockId, LockIntent, LockRefusal, LockRequest, LockTest, Locker,
};
pub use opens::{FileKey, OpenId, OpenRequest, OpenRoom, Opened};
pub use ranges::{LocalRange, LockKind, LockRange};
pub use report::ClientReport;
pub use sessions::DestroySessionPlace;
pub use shares::Shares;
pub use slots::{InSession, RequestShape, Sequenced};
pub use stateids::CurrentStateid;

/// The driver's name of one transport connection. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

/// The user that a request's credential stands for, as far as two can be told apart: the driver
/// numbers what is no number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Principal {
    /// The flavour of the credential (RFC 5531, section 8.2): AUTH_SYS is 1.
    pub flavor: u32,
    /// The UID, or a number of the driver's.
    pub id: u32,
}

/// Whom a request comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The connection.
    pub connection: ConnId,
    /// The address at its other end.
    pub address: IpAddr,
    /// The credential of the request.
    pub principal: Principal,
}

/// What the driver has to do, without an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// This open does not hold the file open any longer.
    Close {
        /// The open.
        open: OpenId,
        /// Of this file.
        file: FileKey,
    },
    /// The lock owner has no locks on the file any longer: the open file description that has them
    /// is closed, which releases what is locked.
    ReleaseLocks {
        /// The lock owner's state on the file.
        lock: LockId,
        /// The file.
        file: FileKey,
    },
    /// The client has nothing any more, and will never ask again by this number. What it has
    /// written and not committed cannot be committed by another client.
    EndClient {
        /// The client.
        client: ClientId,
    },
}

/// The state of one server.
#[derive(Debug)]
pub struct State {
    config: Config,
    /// Which start of the server this is: part of all that it numbers, so that nothing from before
    /// a restart is taken for something else.
    instance: u32,
    clients: Clients,
    sessions: BTreeMap<SessionId, Session>,
    /// The sessions that each connection is bound to.
    bound: BTreeSet<(ConnId, SessionId)>,
    last_session: u32,
    files: BTreeMap<FileKey, File>,
    states: BTreeMap<u64, Entry>,
    last_state: u64,
    last_intent: u64,
    grace: Grace,
    /// Bytes of all state.
    bytes: Stock,
    /// Bytes of kept replies, and those promised.
    replies: Stock,
    opens: Stock,
    lock_states: Stock,
    recording: Recording,
    actions: VecDeque<Action>,
    /// What came before then has been heard.
    heard_us: u64,
}

impl State {
    /// The state of a server that starts, with what stable storage had of its earlier life. It is
    /// in a grace period when there are clients that may reclaim something (RFC 8881, section
    /// 8.4.2), the time of which runs from [`State::begin_grace`] on.
    #[must_use]
    pub fn new(config: Config, before: Replay) -> Self {
        // 0 would make stateids whose first bytes are those of the special ones.
        let instance = before.instance.wrapping_add(1).max(1);
        let limits = config.stocks();
        let mut state = Self {
            instance,
            clients: Clients::default(),
            sessions: BTreeMap::new(),
            bound: BTreeSet::new(),
            last_session: 0,
            files: BTreeMap::new(),
            states: BTreeMap::new(),
            last_state: 0,
            last_intent: 0,
            grace: Grace::new(before),
            bytes: Stock::new(limits.bytes),
            replies: Stock::new(limits.replies),
            opens: Stock::new(limits.opens),
            lock_states: Stock::new(limits.lock_states),
            recording: Recording::default(),
            actions: VecDeque::new(),
            heard_us: u64::MAX,
            config,
        };
        state.recording.push(Record::Boot { instance });
        state.clients.set_max(limits.clients);
        state
    }

    /// How the server is set.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The driver says until when all requests that had come were carried out as far as SEQUENCE;
    /// [`u64::MAX`] when none waits. Until then leases and the grace period are judged, so that the
    /// time for which requests lie at the server counts against no client (RFC 8881, section 8.3):
    /// a renewal may be among them.
    pub const fn heard_until(&mut self, us: u64) {
        self.heard_us = us;
    }

    /// The time by which clients are judged.
    fn judged_us(&self, now_us: u64) -> u64 {
        now_us.min(self.heard_us)
    }

    /// Sets how many open files opens and lock owners may have from now on, as
    /// [`Config::with_opens_max`] and [`Config::with_lock_states_max`] do. What there is stays.
    pub fn set_open_files_max(&mut self, opens: u64, lock_states: u64) {
        let config = self.config.clone().with_opens_max(opens);
        self.config = config.with_lock_states_max(lock_states);
        let stocks = self.config.stocks();
        self.opens.set_max(stocks.opens);
        self.lock_states.set_max(stocks.lock_states);
    }

    /// The next thing that the driver has to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Everything that stable storage has to hold, what [`State::take_records`] has not given yet
    /// included: what it is replaced by when it has grown. Records that are appended again do not
    /// matter.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Record> {
        let earlier = self.grace.entitled().cloned();
        let earlier = earlier.map(|owner| Record::Client { owner });
        let own = self
            .clients
            .recorded()
            .map(|owner| Record::Client { owner });
        let revoked = self.grace.revoked().chain(self.clients.revoked());
        let revoked = revoked.map(|(owner, export)| Record::Revoked {
            owner: owner.clone(),
            export,
        });
        earlier
            .chain([Record::Boot {
                instance: self.instance,
            }])
            .chain(own)
            .chain(revoked)
            .collect()
    }

    /// What happens because time passes. To be called at [`State::next_timer_us`], or every second.
    pub fn handle_timers(&mut self, now_us: u64) {
        self.end_grace_in_time(now_us);
        let judged_us = self.judged_us(now_us);
        self.clients
            .forget_old_unconfirmed(judged_us, self.config.lease_us());
        for client in self
            .clients
            .lapsed_before(judged_us.saturating_sub(self.config.courtesy_us()))
        {
            if self.is_busy(client) {
                // It is there: a request of it takes long.
                self.clients.renew(client, now_us);
            }
            self.expire(client, now_us);
        }
    }

    /// When [`State::handle_timers`] has something to do, unless something else happens first.
    #[must_use]
    pub fn next_timer_us(&self) -> Option<u64> {
        let unconfirmed = self.clients.oldest_unconfirmed_us();
        let unconfirmed = unconfirmed.map(|us| us.saturating_add(self.config.lease_us()));
        let oldest = self.clients.oldest_renewal_us();
        let oldest = oldest.map(|us| us.saturating_add(self.config.courtesy_us()));
        let oldest = oldest.map(|us| us.saturating_add(1));
        [self.grace.ends_us(), unconfirmed, oldest]
            .into_iter()
            .flatten()
            .min()
    }

    /// Confirmed clients.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.clients.confirmed_count()
    }

    /// Opens of all clients.
    #[must_use]
    pub const fn open_count(&self) -> u64 {
        self.opens.used()
    }

    /// Bytes of all state, by the accounts of [`limits`]: kept replies apart.
    #[must_use]
    pub const fn bytes_used(&self) -> u64 {
        self.bytes.used()
    }

    /// Bytes of kept replies, and those promised to requests under way and to the first slot of
    /// each session.
    #[must_use]
    pub const fn reply_bytes_used(&self) -> u64 {
        self.replies.used()
    }

    /// The driver says that a connection has ended.
    pub fn connection_ended(&mut self, connection: ConnId) {
        let none = SessionId([0; SessionId::SIZE_BYTES]);
        let of_it: Vec<_> = self
            .bound
            .range((connection, none)..)
            .take_while(|(bound, _)| *bound == connection)
            .copied()
            .collect();
        for entry in of_it {
            self.bound.remove(&entry);
            if let Some(session) = self.sessions.get_mut(&entry.1) {
                session.connections.retain(|bound| *bound != connection);
            }
        }
    }

    /// Takes of a stock for a client. Where there is no more, clients whose leases have expired go,
    /// the longest expired first.
    ///
    /// # Errors
    /// NFS4ERR_DELAY: the client's address or the server has all that it may have.
    fn take(
        &mut self,
        of: fn(&mut Self) -> &mut Stock,
        address: IpAddr,
        amount: u64,
        now_us: u64,
    ) -> Result<(), Status> {
        while of(self).take(address, amount).is_err() {
            self.expire_longest_lapsed(now_us)?;
        }
        Ok(())
    }

    /// As [`State::take`], bytes of state.
    fn take_bytes(&mut self, address: IpAddr, bytes: u64, now_us: u64) -> Result<(), Status> {
        self.take(|state| &mut state.bytes, address, bytes, now_us)
    }

    /// As [`State::take`], bytes of replies that are kept or promised.
    fn take_replies(&mut self, address: IpAddr, bytes: u64, now_us: u64) -> Result<(), Status> {
        self.take(|state| &mut state.replies, address, bytes, now_us)
    }

    /// # Errors
    /// NFS4ERR_DELAY: there is none.
    fn expire_longest_lapsed(&mut self, now_us: u64) -> Result<(), Status> {
        let lapsed = self.clients.lapsed_before(
            self.judged_us(now_us)
                .saturating_sub(self.config.lease_us()),
        );
        let idle = lapsed.into_iter().find(|client| !self.is_busy(*client));
        self.expire(idle.ok_or(Status::DELAY)?, now_us);
        Ok(())
    }

    /// Ends clients whose leases have expired, the longest expired first, until one had files open:
    /// where the process has no descriptor left, as where there are as many opens as there may be.
    /// Whether one had.
    pub fn expire_for_files(&mut self, now_us: u64) -> bool {
        let files = |state: &Self| state.opens.used().saturating_add(state.lock_states.used());
        let before = files(self);
        while files(self) == before {
            if self.expire_longest_lapsed(now_us).is_err() {
                return false;
            }
        }
        true
    }

    /// Whether the client's lease has expired, and none of its requests is under way: what it holds
    /// goes to the next client that wants it.
    fn has_lapsed(&self, client: ClientId, now_us: u64) -> bool {
        let renewed_us = self
            .clients
            .by_id(client)
            .map_or(u64::MAX, |client| client.renewed_us);
        let lapsed_us = self.judged_us(now_us).saturating_sub(renewed_us);
        lapsed_us > self.config.lease_us() && !self.is_busy(client)
    }

    /// Whether requests of the client are under way.
    fn is_busy(&self, client: ClientId) -> bool {
        self.clients.by_id(client).is_some_and(|client| {
            let mut sessions = client
                .sessions
                .iter()
                .filter_map(|id| self.sessions.get(id));
            sessions.any(Session::is_busy)
        })
    }

    /// Ends a client because of its lease, unless a request of it is under way.
    fn expire(&mut self, client: ClientId, now_us: u64) {
        if self.has_lapsed(client, now_us) {
            self.remove_client(client);
        }
    }
}
