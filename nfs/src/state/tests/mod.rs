//! Tests of the whole state, by the names of RFC 8881's clauses and of pynfs' cases.

mod audit;
mod bounds;
mod clients;
mod grace;
mod locks;
mod model;
mod opens;
mod recording;
mod revoked;
mod sessions;
mod slots;
mod stateless;

use std::collections::BTreeSet;
use std::net::IpAddr;

use capstan_nfs_proto::codec::{List, Opaque};
use capstan_nfs_proto::v4::args::{
    ChannelAttributes, ChannelDirection, ClientChannelDirection, CreateSession, CreateSessionFlags,
    ExchangeId, ExchangeIdFlags, Sequence, SsvParameters, StateProtect, StateProtectOps,
};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::results::{CreateSessionOk, SequenceOk, SequenceStatus};
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, ClientOwner, SessionId, Stateid, Verifier};

use super::*;

const LEASE_US: u64 = 90_000_000;
const GRACE_US: u64 = 90_000_000;

/// What Linux asks for, with slots as many as it likes.
const FORE: ChannelAttributes = ChannelAttributes {
    headerpadsize: 0,
    maxrequestsize: 1_049_620,
    maxresponsesize: 1_049_480,
    maxresponsesize_cached: 7584,
    maxoperations: 8,
    maxrequests: 64,
    rdma_ird: None,
};

const SHAPE: RequestShape = RequestShape {
    fingerprint: 1,
    operations: 3,
    bytes: 200,
    reply_bytes: 96,
};

fn exchange_arguments(name: &[u8], flags: ExchangeIdFlags) -> ExchangeId<'_> {
    ExchangeId {
        clientowner: ClientOwner {
            verifier: verifier(1),
            ownerid: Opaque(name),
        },
        flags,
        state_protect: StateProtect::None,
        client_impl_id: None,
    }
}

fn verifier(number: u64) -> Verifier {
    Verifier(number.to_be_bytes())
}

fn file(number: u8) -> FileKey {
    FileKey::new(1, &[number; 28]).unwrap()
}

fn range(offset: u64, length: u64) -> LockRange {
    LockRange::new(offset, length).unwrap()
}

/// A client with a session.
#[derive(Clone, Debug)]
struct Host {
    name: Vec<u8>,
    peer: Peer,
    client: ClientId,
    session: SessionId,
}

/// A server with a clock, stable storage, and hosts.
struct Server {
    state: State,
    now_us: u64,
    random: u32,
    durable: Vec<Record>,
    /// Whether records are durable at once.
    is_stable: bool,
    /// How many records the last answer had to wait for.
    awaited: u64,
    actions: Vec<Action>,
}

impl Server {
    /// One that never ran before.
    fn new() -> Self {
        Self::with(Config::new())
    }

    fn with(config: Config) -> Self {
        Self::start(config, Replay::default(), 1_000_000)
    }

    fn start(config: Config, before: Replay, now_us: u64) -> Self {
        let mut state = State::new(config, before);
        state.begin_grace(now_us);
        let mut server = Self {
            state,
            now_us,
            random: 7,
            durable: Vec::new(),
            is_stable: true,
            awaited: 0,
            actions: Vec::new(),
        };
        server.settle();
        server
    }

    /// Kills it and starts it again with what is durable.
    fn restart(self) -> Self {
        let mut bytes = stable::MAGIC.to_vec();
        for record in &self.durable {
            stable::encode(record, &mut bytes);
        }
        let (before, whole) = stable::replay(&bytes).unwrap();
        assert_eq!(whole, bytes.len());
        let config = self.state.config().clone();
        let mut server = Self::start(config, before, self.now_us + 1_000_000);
        server.durable.splice(0..0, self.durable);
        server.random = self.random;
        server
    }

    /// What a driver does after every call.
    fn settle(&mut self) {
        while let Some(action) = self.state.poll_action() {
            self.actions.push(action);
        }
        self.durable.extend(self.state.take_records());
        self.awaited = self.state.take_awaited();
        if self.is_stable {
            self.state.recorded(self.state.record_count());
        }
        self.state.audit();
    }

    fn take_actions(&mut self) -> Vec<Action> {
        self.settle();
        std::mem::take(&mut self.actions)
    }

    fn wait_us(&mut self, us: u64) {
        self.now_us += us;
    }

    fn next_random(&mut self) -> u32 {
        self.random = self
            .random
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.random
    }

    fn peer(number: u8) -> Peer {
        Peer {
            connection: ConnId(number.into()),
            address: IpAddr::from([192, 0, 2, number]),
            principal: Principal {
                flavor: 1,
                id: number.into(),
            },
        }
    }

    fn exchange(
        &mut self,
        name: &[u8],
        verifier_number: u64,
        flags: ExchangeIdFlags,
        peer: &Peer,
    ) -> Result<ExchangedId, Status> {
        let mut arguments = exchange_arguments(name, flags);
        arguments.clientowner.verifier = verifier(verifier_number);
        let random = self.next_random();
        let result = self
            .state
            .exchange_id(&arguments, 1, peer, random, self.now_us);
        self.settle();
        result
    }

    fn create(
        &mut self,
        client: ClientId,
        sequence: u32,
        peer: &Peer,
    ) -> Result<CreateSessionOk, Status> {
        self.create_with(
            client,
            sequence,
            peer,
            CreateSessionFlags::empty(),
            [FORE; 2],
        )
    }

    fn create_with(
        &mut self,
        client: ClientId,
        sequence: u32,
        peer: &Peer,
        flags: CreateSessionFlags,
        [fore, back]: [ChannelAttributes; 2],
    ) -> Result<CreateSessionOk, Status> {
        let arguments = CreateSession {
            clientid: client,
            sequence,
            flags,
            fore_chan_attrs: fore,
            back_chan_attrs: back,
            cb_program: 0x4000_0000,
            sec_parms: List::default(),
        };
        let random = self.next_random().into();
        let result = self
            .state
            .create_session(&arguments, peer, random, self.now_us);
        self.settle();
        result
    }

    /// A host that has done EXCHANGE_ID and CREATE_SESSION.
    fn join(&mut self, number: u8, verifier_number: u64) -> Host {
        let name = format!("Linux NFSv4.1 host{number}").into_bytes();
        let peer = Self::peer(number);
        let exchanged = self
            .exchange(&name, verifier_number, ExchangeIdFlags::empty(), &peer)
            .unwrap();
        let created = self
            .create(exchanged.client, exchanged.sequence, &peer)
            .unwrap();
        Host {
            name,
            peer,
            client: exchanged.client,
            session: created.sessionid,
        }
    }

    fn complete_reclaim(&mut self, host: &Host) -> Result<(), Status> {
        let result = self.state.reclaim_complete(host.client, false, self.now_us);
        self.settle();
        result
    }

    /// A host that may open and lock.
    fn host(&mut self, number: u8) -> Host {
        let host = self.join(number, 1);
        self.complete_reclaim(&host).unwrap();
        host
    }

    fn request(host: &Host, slotid: u32, sequenceid: u32) -> Sequence {
        let sessionid = host.session;
        Sequence {
            sessionid,
            sequenceid,
            slotid,
            highest_slotid: slotid,
            cachethis: true,
        }
    }

    fn sequence(&mut self, host: &Host, request: &Sequence) -> Result<Sequenced, Status> {
        self.sequence_of(host, request, &SHAPE)
    }

    fn sequence_of(
        &mut self,
        host: &Host,
        request: &Sequence,
        shape: &RequestShape,
    ) -> Result<Sequenced, Status> {
        let result = self.state.sequence(request, shape, &host.peer, self.now_us);
        self.settle();
        result
    }

    fn begin(&mut self, host: &Host, slot: u32, sequence: u32) -> InSession {
        match self.sequence(host, &Self::request(host, slot, sequence)) {
            Ok(Sequenced::New(request, _)) => request,
            other => panic!("{other:?}"),
        }
    }

    fn finish(&mut self, request: &InSession, reply: &[u8]) {
        self.state.complete(request, Some(reply));
        self.settle();
    }

    fn renew(&mut self, host: &Host, sequence: u32) -> Result<(), Status> {
        match self.sequence(host, &Self::request(host, 0, sequence))? {
            Sequenced::New(request, _) => self.finish(&request, b""),
            Sequenced::Replay(_) | Sequenced::Uncached(_) => {}
        }
        Ok(())
    }

    fn try_open(
        &mut self,
        host: &Host,
        file: &FileKey,
        access: Shares,
        deny: Shares,
        is_reclaim: bool,
    ) -> Result<Opened, Status> {
        self.try_open_as(host, b"open id", file, (access, deny), is_reclaim)
    }

    fn try_open_as(
        &mut self,
        host: &Host,
        owner: &[u8],
        file: &FileKey,
        (access, deny): (Shares, Shares),
        is_reclaim: bool,
    ) -> Result<Opened, Status> {
        let client = host.client;
        let request = OpenRequest {
            client,
            owner,
            file,
            access,
            deny,
            is_reclaim,
        };
        let result = self.state.open(&request, self.now_us);
        self.settle();
        result
    }

    fn open(&mut self, host: &Host, file: &FileKey) -> Opened {
        self.try_open(host, file, Shares::BOTH, Shares::NONE, false)
            .unwrap()
    }

    fn begin_lock(
        &mut self,
        host: &Host,
        file: &FileKey,
        locker: Locker<'_>,
        kind: LockKind,
        range: LockRange,
    ) -> Result<LockIntent, LockRefusal> {
        let client = host.client;
        let request = LockRequest {
            client,
            file,
            kind,
            range,
            is_reclaim: false,
            locker,
        };
        let result = self.state.begin_lock(&request, self.now_us);
        self.settle();
        result
    }

    fn commit(&mut self, intent: &LockIntent) -> Stateid {
        let stateid = self.state.commit_lock(intent).unwrap();
        self.settle();
        stateid
    }

    fn try_lock(
        &mut self,
        host: &Host,
        file: &FileKey,
        locker: Locker<'_>,
        kind: LockKind,
        range: LockRange,
    ) -> Result<Stateid, LockRefusal> {
        let intent = self.begin_lock(host, file, locker, kind, range)?;
        Ok(self.commit(&intent))
    }

    fn unlock(&mut self, host: &Host, file: &FileKey, lock: Stateid, range: LockRange) -> Stateid {
        let intent = self
            .state
            .begin_unlock(host.client, file, lock, range, self.now_us)
            .unwrap();
        self.commit(&intent)
    }

    fn io(
        &mut self,
        host: &Host,
        file: &FileKey,
        stateid: Stateid,
        access: IoAccess,
    ) -> Result<IoPermit, Status> {
        let result = self
            .state
            .check_io(host.client, file, stateid, access, self.now_us);
        self.settle();
        result
    }
}

/// The owners that stable storage lets reclaim.
fn owners(records: &[Record]) -> BTreeSet<Vec<u8>> {
    let mut bytes = stable::MAGIC.to_vec();
    for record in records {
        stable::encode(record, &mut bytes);
    }
    stable::replay(&bytes)
        .unwrap()
        .0
        .owners
        .iter()
        .map(|owner| owner.to_vec())
        .collect()
}
