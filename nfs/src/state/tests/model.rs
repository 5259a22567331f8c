//! Random sequences of operations, against a backend that does what the driver would: it keeps open
//! files and locks, and knows as a kernel does when two locks conflict. [`State::audit`] runs after
//! each operation.

use std::collections::BTreeMap;

use super::super::ranges::Held;
use super::*;
use capstan_nfs_proto::v4::args::{ShareAccess, ShareDeny};
use proptest::prelude::*;

/// Open files and locks at the backend.
#[derive(Default)]
struct Backend {
    open: BTreeMap<OpenId, FileKey>,
    locks: BTreeMap<LockId, (FileKey, Held)>,
    /// How often something of interest happened.
    reached: BTreeMap<&'static str, u32>,
}

impl Backend {
    fn reach(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Close { open, file } => {
                    self.reach("an open ends");
                    assert_eq!(self.open.remove(&open), Some(file), "closed once");
                }
                // One that was rolled back has none.
                Action::ReleaseLocks { lock, .. } => {
                    self.locks.remove(&lock);
                }
                Action::EndClient { .. } => {}
            }
        }
    }

    fn lock(&mut self, intent: &LockIntent) {
        let LockChange { range, kind } = intent.change;
        self.reach(if kind.is_some() {
            "bytes are locked"
        } else {
            "bytes are unlocked"
        });
        if let Some(kind) = kind {
            for (lock, (file, held)) in &self.locks {
                let conflict = held.conflict(&range, kind);
                assert!(*lock == intent.lock || *file != intent.file || conflict.is_none());
            }
        }
        let new = || (intent.file.clone(), Held::default());
        self.locks
            .entry(intent.lock)
            .or_insert_with(new)
            .1
            .set(range, kind);
    }
}

/// A client as it sees itself.
#[derive(Default)]
struct Remote {
    host: Option<Host>,
    opens: Vec<(FileKey, Stateid)>,
    locks: Vec<(FileKey, Stateid)>,
    target: u32,
    sequences: BTreeMap<u32, u32>,
    under_way: Vec<InSession>,
    intents: Vec<LockIntent>,
}

struct World {
    server: Server,
    remotes: [Remote; 3],
    backend: Backend,
}

type Step = (u8, u8, u8, u8, u8);

fn shares(bits: u8) -> (Shares, Shares) {
    let access = Shares::access(ShareAccess(u32::from(bits % 3) + 1)).unwrap();
    // Denying nothing is what most do.
    let deny = if bits & 0x30 == 0 {
        Shares::deny(ShareDeny(u32::from(bits >> 6))).unwrap()
    } else {
        Shares::NONE
    };
    (access, deny)
}

fn pick<T: Clone>(from: &[T], by: u8) -> Option<T> {
    from.get(usize::from(by) % from.len().max(1)).cloned()
}

impl World {
    fn new() -> Self {
        let config = Config::new().with_opens_max(6).with_reply_bytes_max(20_000);
        Self {
            server: Server::with(config),
            remotes: Default::default(),
            backend: Backend::default(),
        }
    }

    fn step(&mut self, (what, who, a, b, c): Step) {
        let number = who % 3;
        let Self {
            server,
            remotes,
            backend,
        } = self;
        let remote = &mut remotes[usize::from(number)];
        if what % 32 == 0 {
            server.wait_us(u64::from(a) * LEASE_US / 64);
            server.state.handle_timers(server.now_us);
            if b % 16 == 0 {
                backend.reach("an export is taken out");
                server
                    .state
                    .give_up_exports(|export| export == u64::from(c % 2));
            }
        } else if remote.host.is_none() {
            join(server, remote, number + 1, u64::from(a % 2));
        } else if let Some(host) = remote.host.clone() {
            operate(server, backend, remote, &host, (what, who, a, b, c));
        }
        backend.carry_out(server.take_actions());
        let open: Vec<_> = backend.open.keys().copied().collect();
        let known = server
            .state
            .files
            .values()
            .flat_map(|file| file.opens.values());
        let mut known: Vec<_> = known.map(|number| OpenId(*number)).collect();
        known.sort();
        assert_eq!(open, known, "every open has its file, and no other is open");
        for (lock, (_, held)) in &backend.locks {
            let file = server
                .state
                .files
                .values()
                .find_map(|file| file.locks.get(&lock.0));
            assert_eq!(file, Some(held), "the backend has the locks of the state");
        }
    }
}

/// EXCHANGE_ID and CREATE_SESSION, as far as they succeed.
fn join(server: &mut Server, remote: &mut Remote, number: u8, verifier: u64) {
    let name = [number];
    let peer = Server::peer(number);
    let Ok(exchanged) = server.exchange(&name, verifier, ExchangeIdFlags::empty(), &peer) else {
        return;
    };
    let Ok(created) = server.create(exchanged.client, exchanged.sequence, &peer) else {
        return;
    };
    let host = Host {
        name: name.to_vec(),
        peer,
        client: exchanged.client,
        session: created.sessionid,
    };
    // Requests of other sessions of the same client go on.
    let under_way = std::mem::take(&mut remote.under_way);
    *remote = Remote {
        host: Some(host),
        under_way,
        target: 63,
        ..Remote::default()
    };
}

fn operate(
    server: &mut Server,
    backend: &mut Backend,
    remote: &mut Remote,
    host: &Host,
    (what, _, a, b, c): Step,
) {
    let key = FileKey::new(u64::from(a % 2), &[a % 2; 28]).unwrap();
    let place = range(u64::from(b % 24), u64::from(c % 12) + 1);
    match what % 32 {
        1..=3 => {
            // Slots above the target are not used until it is higher again.
            let slot = Some(u32::from(a % 4))
                .filter(|slot| *slot <= remote.target)
                .unwrap_or(0);
            let sequence = remote.sequences.entry(slot).or_insert(0);
            let request = Server::request(host, slot, *sequence + 1);
            match server.sequence(host, &request) {
                Ok(Sequenced::New(request, reply)) => {
                    *sequence += 1;
                    remote.under_way.push(request);
                    // Slots above the target start anew when they come back, as Linux has it.
                    remote.target = reply.target_highest_slotid;
                    remote.sequences.retain(|slot, _| *slot <= remote.target);
                    if remote.target < 3 {
                        backend.reach("slots are given up");
                    }
                }
                // Its lease had expired, and others wanted what it had.
                Err(Status::BADSESSION) => {
                    backend.reach("a client is ended");
                    *remote = Remote::default();
                }
                other => assert!(
                    matches!(other, Err(Status::SEQ_MISORDERED | Status::DELAY)),
                    "{other:?}"
                ),
            }
        }
        4..=6 => {
            if let Some(request) = remote.under_way.pop() {
                server.finish(&request, &vec![c; usize::from(b) * 8]);
            }
        }
        7 => {
            let _ = server.complete_reclaim(host);
        }
        8..=12 => {
            let owner = [b % 2];
            let opened = server.try_open_as(host, &owner, &key, shares(c), b & 0x40 != 0);
            match opened {
                Err(Status::SHARE_DENIED) => backend.reach("a share is denied"),
                Err(Status::DELAY) => backend.reach("there are too many opens"),
                _ => {}
            }
            if let Ok(opened) = opened {
                // What was in its way is closed first.
                backend.carry_out(server.take_actions());
                let known = backend.open.insert(opened.open, key.clone());
                assert_eq!(known.is_none(), opened.is_new);
                remote
                    .opens
                    .retain(|(_, open)| open.other != opened.stateid.other);
                remote.opens.push((key, opened.stateid));
            }
        }
        13 => {
            if let Some((file, stateid)) = pick(&remote.opens, a) {
                let (access, deny) = shares(c);
                let state = &mut server.state;
                let downgraded = state.open_downgrade(host.client, &file, stateid, access, deny);
                if let Ok(downgraded) = downgraded {
                    backend.reach("an open is downgraded");
                    remote
                        .opens
                        .retain(|(_, open)| open.other != downgraded.other);
                    remote.opens.push((file, downgraded));
                }
            }
        }
        14..=15 => {
            if let Some((file, stateid)) = pick(&remote.opens, a) {
                let _ = server.state.close(host.client, &file, stateid);
            }
        }
        16..=22 => {
            let kind = if c & 0x40 == 0 {
                LockKind::Read
            } else {
                LockKind::Write
            };
            let Some((file, open)) = pick(&remote.opens, a) else {
                return;
            };
            let owner = [b >> 7];
            let locker = Locker::New {
                open,
                owner: &owner,
            };
            match server.begin_lock(host, &file, locker, kind, place) {
                Ok(intent) => {
                    backend.carry_out(server.take_actions());
                    remote.intents.push(intent);
                }
                Err(LockRefusal::Denied(_)) => backend.reach("a lock is denied"),
                Err(LockRefusal::Status(Status::DELAY)) => backend.reach("a lock has to wait"),
                Err(LockRefusal::Status(_)) => {}
            }
        }
        23..=24 => {
            if let Some((file, lock)) = pick(&remote.locks, a) {
                let now_us = server.now_us;
                let state = &mut server.state;
                let place = if c < 0x80 { place } else { range(0, u64::MAX) };
                if let Ok(intent) = state.begin_unlock(host.client, &file, lock, place, now_us) {
                    remote.intents.push(intent);
                }
            }
        }
        25..=27 => {
            if let Some(intent) = remote.intents.pop()
                && let Ok(stateid) = server.state.commit_lock(&intent)
            {
                backend.lock(&intent);
                remote.locks.retain(|(_, lock)| lock.other != stateid.other);
                remote.locks.push((intent.file, stateid));
            }
        }
        28 => {
            if let Some(intent) = remote.intents.pop() {
                server.state.roll_back_lock(&intent);
            }
        }
        29 => {
            if let Some((_, lock)) = pick(&remote.locks, a)
                && let tested = server.state.test_stateid(host.client, lock)
                && server.state.free_stateid(host.client, lock).is_ok()
            {
                let is_revoked = tested == Status::ADMIN_REVOKED;
                backend.reach(if is_revoked {
                    "revoked locks are freed"
                } else {
                    "a lock state is freed"
                });
            }
        }
        30 => {
            let access = if b & 1 == 0 {
                IoAccess::Read
            } else {
                IoAccess::Write
            };
            let stateid = pick(&remote.opens, a).map_or(Stateid::ANONYMOUS, |(_, open)| open);
            let _ = server.io(host, &key, stateid, access);
        }
        _ => {
            // It starts again, or goes.
            if c & 1 == 0 && remote.intents.is_empty() {
                join(
                    server,
                    remote,
                    host.peer.connection.0.try_into().unwrap(),
                    (b % 2).into(),
                );
            } else {
                let only = DestroySessionPlace::First { is_only: true };
                let gone = server.state.destroy_session(host.session, only, &host.peer);
                if gone.is_ok() {
                    let gone = server.state.destroy_clientid(host.client, server.now_us);
                    backend.reach(if gone.is_ok() {
                        "a client goes"
                    } else {
                        "a client stays"
                    });
                    remote.host = None;
                }
            }
        }
    }
}

/// That the steps of the next test are not all refused.
#[test]
fn everything_is_reached() {
    let mut world = World::new();
    let mut random = 1_u64;
    for _ in 0..20_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let [a, b, c, d, e, ..] = random.to_be_bytes();
        world.step((a, b, c, d, e));
    }
    let reached = &world.backend.reached;
    for what in [
        "an open ends",
        "an open is downgraded",
        "a share is denied",
        "there are too many opens",
        "bytes are locked",
        "bytes are unlocked",
        "a lock is denied",
        "a lock has to wait",
        "a lock state is freed",
        "an export is taken out",
        "revoked locks are freed",
        "slots are given up",
        "a client is ended",
        "a client goes",
        "a client stays",
    ] {
        assert!(
            reached.get(what).is_some_and(|times| *times >= 3),
            "{what}: {reached:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_conflicts_and_nothing_is_left(
        steps in prop::collection::vec(any::<Step>(), 0..300),
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        let World { mut server, remotes, mut backend } = world;
        for remote in remotes {
            for intent in &remote.intents {
                server.state.roll_back_lock(intent);
            }
            for request in &remote.under_way {
                server.finish(request, b"");
            }
        }
        server.wait_us(LEASE_US + 1);
        let clients: Vec<_> = server.state.clients.all().map(|(id, _)| *id).collect();
        for client in clients {
            server.state.destroy_clientid(client, server.now_us).unwrap();
            backend.carry_out(server.take_actions());
        }
        let state = &server.state;
        prop_assert_eq!((state.bytes_used(), state.reply_bytes_used()), (0, 0));
        prop_assert!(state.files.is_empty() && state.states.is_empty() && state.bound.is_empty());
        prop_assert!(state.sessions.is_empty() && backend.open.is_empty());
        prop_assert!(backend.locks.is_empty());
        prop_assert_eq!(owners(&server.durable), BTreeSet::new(), "no client may reclaim");
    }
}
