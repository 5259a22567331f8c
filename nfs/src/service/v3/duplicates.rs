//! Replies kept for calls that come again: a client whose connection broke repeats what it has no
//! answer to, with the same XID. What was carried out is answered as before and not done again, as
//! a REMOVE would fail that has succeeded.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use capstan_rpcrdma::rpc::Call as Header;

use super::limits::{
    REPLIES_BYTES_MAX, REPLIES_MAX, REPLIES_PER_ADDRESS_MAX, REPLY_BYTES_MAX, REPLY_KEPT_US,
};
use crate::state::limits::accounted_address;

/// What one call is known by. The port is no part of it: a client comes back from another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct CallKey {
    address: IpAddr,
    xid: u32,
    program: u32,
    procedure: u32,
    /// Of the call's first bytes and their number, its credentials among them.
    fingerprint: u64,
}

impl CallKey {
    pub(super) fn new(address: IpAddr, header: &Header<'_>, fingerprint: u64) -> Self {
        Self {
            address: address.to_canonical(),
            xid: header.xid,
            program: header.program,
            procedure: header.procedure,
            fingerprint,
        }
    }
}

#[derive(Debug)]
enum Entry {
    UnderWay,
    Answered {
        reply: Arc<[u8]>,
        age: u64,
        at_us: u64,
    },
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<CallKey, Entry>,
    /// Those that are answered, the oldest first.
    by_age: BTreeMap<u64, CallKey>,
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
    next_age: u64,
    bytes: usize,
}

/// The replies.
#[derive(Debug, Default)]
pub(in crate::service) struct Duplicates(Mutex<Table>);

/// What a call is.
#[derive(Debug)]
pub(super) enum Begun<'a> {
    /// It is to be carried out.
    New(UnderWay<'a>),
    /// It was carried out: this was the reply, from its XID on.
    Repeated(Arc<[u8]>),
    /// It is being carried out.
    UnderWay,
}

/// A call that is being carried out. Dropped without an answer it is forgotten.
#[derive(Debug)]
pub(super) struct UnderWay<'a> {
    duplicates: &'a Duplicates,
    key: Option<CallKey>,
}

impl Table {
    fn remove(&mut self, key: &CallKey) {
        if let Some(Entry::Answered { reply, age, .. }) = self.entries.remove(key) {
            self.bytes = self.bytes.saturating_sub(reply.len());
            self.by_age.remove(&age);
            let address = accounted_address(key.address);
            if let Some(ages) = self.by_address.get_mut(&address) {
                ages.remove(&age);
                if ages.is_empty() {
                    self.by_address.remove(&address);
                }
            }
        }
    }

    fn remove_oldest(&mut self) -> bool {
        let oldest = self.by_age.first_key_value().map(|(_, key)| *key);
        if let Some(key) = oldest {
            self.remove(&key);
        }
        oldest.is_some()
    }

    fn remove_old(&mut self, now_us: u64) {
        while let Some((&age, &key)) = self.by_age.first_key_value() {
            if let Some(Entry::Answered { at_us, .. }) = self.entries.get(&key)
                && now_us.saturating_sub(*at_us) <= REPLY_KEPT_US
            {
                return;
            }
            self.by_age.remove(&age);
            self.remove(&key);
        }
    }

    fn keep(&mut self, key: CallKey, reply: &[u8], now_us: u64) {
        let address = accounted_address(key.address);
        let of_address = self.by_address.get(&address);
        if of_address.is_some_and(|ages| ages.len() >= REPLIES_PER_ADDRESS_MAX)
            && let Some(age) = of_address.and_then(BTreeSet::first).copied()
            && let Some(oldest) = self.by_age.get(&age).copied()
        {
            self.remove(&oldest);
        }
        while self.bytes.saturating_add(reply.len()) > REPLIES_BYTES_MAX && self.remove_oldest() {}
        let age = self.next_age;
        self.next_age = age.wrapping_add(1);
        self.bytes = self.bytes.saturating_add(reply.len());
        self.by_age.insert(age, key);
        self.by_address.entry(address).or_default().insert(age);
        let answered = Entry::Answered {
            reply: reply.into(),
            age,
            at_us: now_us,
        };
        self.entries.insert(key, answered);
    }
}

impl Duplicates {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a call is that has arrived.
    pub(super) fn begin(&self, key: CallKey, now_us: u64) -> Begun<'_> {
        let mut table = self.table();
        table.remove_old(now_us);
        match table.entries.get(&key) {
            Some(Entry::Answered { reply, .. }) => return Begun::Repeated(reply.clone()),
            Some(Entry::UnderWay) => return Begun::UnderWay,
            None => {}
        }
        // Where all places are those of calls under way, which transports keep far fewer of, it is
        // carried out without being known again.
        let has_room = table.entries.len() < REPLIES_MAX || table.remove_oldest();
        if has_room {
            table.entries.insert(key, Entry::UnderWay);
        }
        Begun::New(UnderWay {
            duplicates: self,
            key: has_room.then_some(key),
        })
    }
}

impl UnderWay<'_> {
    /// Keeps the reply, from its XID on.
    pub(super) fn answered(mut self, reply: &[u8], now_us: u64) {
        if reply.len() > REPLY_BYTES_MAX {
            tracing::error!(
                "a reply of {} bytes is not kept for a repeated call: expected at most \
                 {REPLY_BYTES_MAX}",
                reply.len()
            );
            return;
        }
        if let Some(key) = self.key.take() {
            self.duplicates.table().keep(key, reply, now_us);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.duplicates.table().entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: &str, xid: u32) -> CallKey {
        CallKey {
            address: address.parse().unwrap(),
            xid,
            program: 100_003,
            procedure: 12,
            fingerprint: 5,
        }
    }

    fn new(begun: Begun<'_>) -> UnderWay<'_> {
        match begun {
            Begun::New(under_way) => under_way,
            other => panic!("{other:?}"),
        }
    }

    fn is_known(duplicates: &Duplicates, key: CallKey, now_us: u64) -> bool {
        !matches!(duplicates.begin(key, now_us), Begun::New(_))
    }

    #[test]
    fn a_call_is_carried_out_once() {
        let duplicates = Duplicates::default();
        let first = key("192.0.2.1", 1);
        let under_way = new(duplicates.begin(first, 0));
        assert!(matches!(duplicates.begin(first, 1), Begun::UnderWay));
        under_way.answered(b"done", 2);
        match duplicates.begin(first, 3) {
            Begun::Repeated(reply) => assert_eq!(*reply, *b"done"),
            other => panic!("{other:?}"),
        }
        // Each part of the key counts.
        for other in [
            key("192.0.2.2", 1),
            key("192.0.2.1", 2),
            CallKey {
                procedure: 13,
                ..first
            },
            CallKey {
                fingerprint: 6,
                ..first
            },
        ] {
            assert!(!is_known(&duplicates, other, 3), "{other:?}");
        }
    }

    #[test]
    fn what_was_not_answered_is_carried_out_again() {
        let duplicates = Duplicates::default();
        drop(new(duplicates.begin(key("192.0.2.1", 1), 0)));
        assert!(!is_known(&duplicates, key("192.0.2.1", 1), 0));
        // A reply that is longer than expected is not kept, and its call no more under way.
        let long = vec![0; REPLY_BYTES_MAX + 1];
        new(duplicates.begin(key("192.0.2.1", 2), 0)).answered(&long, 0);
        assert!(!is_known(&duplicates, key("192.0.2.1", 2), 0));
        assert_eq!(duplicates.table().entries.len(), 0);
    }

    #[test]
    fn one_address_pushes_out_its_own_replies_alone() {
        let duplicates = Duplicates::default();
        let other = key("192.0.2.2", 0);
        new(duplicates.begin(other, 0)).answered(b"kept", 0);
        let count = u32::try_from(REPLIES_PER_ADDRESS_MAX).unwrap();
        for xid in 0..=count {
            new(duplicates.begin(key("192.0.2.1", xid), 0)).answered(b"reply", 0);
        }
        assert!(is_known(&duplicates, other, 0));
        assert!(!is_known(&duplicates, key("192.0.2.1", 0), 0));
        assert!(is_known(&duplicates, key("192.0.2.1", 1), 0));
        assert!(is_known(&duplicates, key("192.0.2.1", count), 0));
        assert_eq!(
            duplicates.table().entries.len(),
            REPLIES_PER_ADDRESS_MAX + 1
        );
    }

    #[test]
    fn all_replies_together_are_bounded() {
        let duplicates = Duplicates::default();
        let reply = vec![7; REPLY_BYTES_MAX];
        let most = REPLIES_BYTES_MAX / REPLY_BYTES_MAX;
        for number in 0..most + 3 {
            let address = format!("10.0.{}.{}", number >> 8, number & 255);
            new(duplicates.begin(key(&address, 0), 0)).answered(&reply, 0);
        }
        assert_eq!(duplicates.table().bytes, REPLIES_BYTES_MAX);
        assert_eq!(duplicates.table().entries.len(), most);
        assert!(!is_known(&duplicates, key("10.0.0.2", 0), 0));
        assert!(is_known(&duplicates, key("10.0.0.3", 0), 0));

        let duplicates = Duplicates::default();
        for number in 0..u32::try_from(REPLIES_MAX).unwrap() + 3 {
            let address = format!("10.0.{}.1", number % 17);
            new(duplicates.begin(key(&address, number), 0)).answered(b"r", 0);
        }
        let table = duplicates.table();
        assert_eq!(table.entries.len(), REPLIES_MAX);
        assert_eq!(table.by_age.len(), REPLIES_MAX);
        assert_eq!(table.bytes, REPLIES_MAX);
        let by_address: usize = table.by_address.values().map(BTreeSet::len).sum();
        assert_eq!(by_address, REPLIES_MAX);
    }

    #[test]
    fn old_replies_go() {
        let duplicates = Duplicates::default();
        new(duplicates.begin(key("192.0.2.1", 1), 5)).answered(b"reply", 5);
        assert!(is_known(
            &duplicates,
            key("192.0.2.1", 1),
            5 + REPLY_KEPT_US
        ));
        assert!(!is_known(
            &duplicates,
            key("192.0.2.1", 1),
            6 + REPLY_KEPT_US
        ));
        let table = duplicates.table();
        assert_eq!(
            (table.bytes, table.by_age.len(), table.by_address.len()),
            (0, 0, 0)
        );
    }
}
