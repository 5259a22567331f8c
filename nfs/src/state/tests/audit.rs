//! What is true of the state after every call.

use super::super::locks::{RANGE_BYTES, RANGES_ADDED};
use super::super::stateids::EntryKind;
use super::*;

impl State {
    pub(super) fn audit(&self) {
        self.audit_stocks();
        self.audit_clients();
        for (key, file) in &self.files {
            self.audit_opens(key, file);
            self.audit_locks(key, file);
        }
        for (number, entry) in &self.states {
            let client = self
                .clients
                .by_id(entry.client)
                .expect("the client of a state");
            assert!(client.states.contains(number));
            let file = &self.files[&entry.file];
            let key = (entry.client, entry.owner.clone());
            match &entry.kind {
                EntryKind::Open(open) => {
                    assert_eq!(file.opens[&key], *number);
                    for lock in &open.locks {
                        let kind = &self.states[lock].kind;
                        assert!(matches!(kind, EntryKind::Lock { open } if open == number));
                    }
                }
                EntryKind::Lock { open } => {
                    assert_eq!(file.lock_owners[&key], *number);
                    let EntryKind::Open(open) = &self.states[open].kind else {
                        panic!("locks of locks");
                    };
                    assert!(open.locks.contains(number));
                }
            }
        }
    }

    fn audit_stocks(&self) {
        let states = self.states.values();
        let clients = self.clients.all();
        let of_clients = clients.map(|(_, client)| client.bytes + client.revoked.bytes());
        let of_clients: u64 = of_clients.sum();
        let of_sessions: u64 = self.sessions.values().map(|session| session.bytes).sum();
        let of_states: u64 = states.clone().map(|entry| entry.bytes).sum();
        let pending: usize = self.files.values().map(|file| file.pending.len()).sum();
        let of_pending = pending as u64 * RANGES_ADDED * RANGE_BYTES;
        assert_eq!(
            self.bytes.used(),
            of_clients + of_sessions + of_states + of_pending
        );
        let replies: u64 = self.sessions.values().map(Session::reply_bytes).sum();
        assert_eq!(self.replies.used(), replies);
        let opens = states
            .filter(|entry| matches!(entry.kind, EntryKind::Open(_)))
            .count();
        let files = self.states.values().map(|entry| match &entry.kind {
            EntryKind::Open(open) => open.asked.files(),
            EntryKind::Lock { .. } => 0,
        });
        assert_eq!(self.opens.used(), files.sum::<u64>());
        assert_eq!(self.lock_states.used(), (self.states.len() - opens) as u64);
    }

    fn audit_clients(&self) {
        let (by_owner, unconfirmed, confirmed) = self.clients.sizes();
        let mut count = 0;
        let mut owners = BTreeSet::new();
        for (id, client) in self.clients.all() {
            owners.insert(client.owner.clone());
            count += u64::from(client.is_confirmed);
            assert!(client.is_confirmed || client.sessions.is_empty() && client.states.is_empty());
            for session in &client.sessions {
                assert_eq!(self.sessions[session].client, *id);
            }
            for state in &client.states {
                assert!(!client.revoked.contains(*state));
                assert_eq!(self.states[state].client, *id);
            }
        }
        assert_eq!((by_owner, count), (owners.len(), confirmed));
        assert_eq!(
            unconfirmed as u64 + confirmed,
            self.clients.all().count() as u64
        );
        assert_eq!(self.clients.confirmed_count() as u64, confirmed);
        let mut bound = 0;
        for (id, session) in &self.sessions {
            assert!(
                self.clients
                    .by_id(session.client)
                    .unwrap()
                    .sessions
                    .contains(id)
            );
            bound += session.connections.len();
            for connection in &session.connections {
                assert!(self.bound.contains(&(*connection, *id)));
            }
        }
        assert_eq!(bound, self.bound.len());
    }

    /// RFC 8881, section 9.7: no open denies what another has.
    fn audit_opens(&self, key: &FileKey, file: &File) {
        assert!(!file.opens.is_empty());
        let mut counts = [0; 4];
        let mut opens = Vec::new();
        for ((client, owner), number) in &file.opens {
            let entry = &self.states[number];
            assert_eq!(
                (entry.client, &entry.owner, &entry.file),
                (*client, owner, key)
            );
            let EntryKind::Open(open) = &entry.kind else {
                panic!("a lock among opens");
            };
            for (at, (shares, bit)) in [
                (open.access, Shares::READ),
                (open.access, Shares::WRITE),
                (open.deny, Shares::READ),
                (open.deny, Shares::WRITE),
            ]
            .into_iter()
            .enumerate()
            {
                counts[at] += u64::from(shares.contains(bit));
            }
            for (access, deny) in &opens {
                assert!(!open.deny.overlaps(*access) && !open.access.overlaps(*deny));
            }
            opens.push((open.access, open.deny));
        }
        assert_eq!(file.counts(), counts);
    }

    /// RFC 8881, section 9.1: no two owners have a byte locked, if one has it for writing.
    fn audit_locks(&self, key: &FileKey, file: &File) {
        assert_eq!(file.locks.len(), file.lock_owners.len());
        for pending in &file.pending {
            assert!(file.locks.contains_key(&pending.lock.0));
        }
        let mut all = Vec::new();
        for (number, held) in &file.locks {
            assert_eq!(self.states[number].file, *key);
            all.extend(held.iter().map(|(range, kind)| (*number, *range, *kind)));
        }
        for (at, (number, range, kind)) in all.iter().enumerate() {
            for (other, other_range, other_kind) in &all[..at] {
                let both_read = (*kind, *other_kind) == (LockKind::Read, LockKind::Read);
                assert!(number == other || both_read || !range.overlaps(other_range));
            }
        }
    }
}
