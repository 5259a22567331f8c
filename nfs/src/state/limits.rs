//! Every bound of the state, each with the arithmetic behind it, and the stocks that are shared.
//!
//! # Memory of 1,000 idle clients
//! A client with an owner of 1024 bytes takes some 3 KiB: the owner is kept once, and its record
//! and its places in maps are some hundred bytes each. Its session of 64 slots takes 64 * 48 bytes
//! = 3 KiB, and replies kept in 64 slots of some 300 bytes 19 KiB: 25 KiB, 25 MiB for a thousand.
//! What may be kept of replies is bounded by [`REPLY_CACHE_BYTES_MAX`] for all of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use capstan_nfs_proto::limits::{FILEHANDLE_BYTES_MAX, OWNER_BYTES_MAX};

/// Confirmed clients. A thousand that are idle and as many that come and go, twice.
pub const CLIENTS_MAX: u64 = 4096;
/// Records of clients that have not confirmed theirs yet: 1024 of (1024 + 500) bytes are 1.5 MiB,
/// which is what hosts that reach the port may take without being known.
pub const UNCONFIRMED_MAX: usize = 1024;
/// The same from one address. A client confirms its record with its next request, and hosts that
/// start many at once (containers) are let have them.
pub const UNCONFIRMED_PER_ADDRESS_MAX: usize = 64;
/// Sessions of one client: Linux has one, or one for each server address that it trunks over.
pub const SESSIONS_PER_CLIENT_MAX: usize = 16;
/// Connections that are known to be bound to one session: Linux has up to 16 (nconnect). Of more
/// the oldest is forgotten, and has to send a SEQUENCE before it may destroy the session.
pub const CONNECTIONS_PER_SESSION_MAX: usize = 64;

/// Slots of one session: what Linux asks for. With requests of 1 MiB they are 64 MiB in flight.
pub const SLOTS_MAX: u32 = 64;
/// Slots that a session is left when replies of all sessions take too much: 4096 sessions with four
/// kept replies of 300 bytes each are 5 MiB.
pub const SLOTS_WHEN_SHORT: u32 = 4;
const _: () = assert!(CLIENTS_MAX * SLOTS_WHEN_SHORT as u64 * 300 < REPLY_CACHE_BYTES_MAX / 4);
/// Operations of one request: Linux asks for 8 and gives up on fewer, and 64 bounds the time that
/// one request takes.
pub const OPERATIONS_MAX: u32 = 64;
/// Bytes of a request, its RPC header included: 1 MiB of data to be written, and 64 KiB of what is
/// around it.
pub const REQUEST_BYTES_MAX: u32 = (1 << 20) + (64 << 10);
/// Bytes of a reply, likewise.
pub const RESPONSE_BYTES_MAX: u32 = REQUEST_BYTES_MAX;
/// Bytes of the smallest request and reply that a session can do anything with: an RPC header with
/// a verifier, COMPOUND's own and SEQUENCE's are less than 128 bytes.
pub const MESSAGE_BYTES_MIN: u32 = 128;
/// Bytes of a reply that can be kept. An OPEN with a lock owner as long as they can be in the way,
/// the attributes of two files and two filehandles come to less than 2 KiB.
pub const CACHED_RESPONSE_BYTES_MAX: u32 = 2048;
const _: () = assert!(CACHED_RESPONSE_BYTES_MAX > OWNER_BYTES_MAX + 2 * FILEHANDLE_BYTES_MAX + 512);
/// Bytes of kept replies of all sessions: one whole reply for each of [`CLIENTS_MAX`] clients is
/// 8 MiB, which is promised, and as much again three times for clients that do more at once.
pub const REPLY_CACHE_BYTES_MAX: u64 = 32 << 20;
const _: () = assert!(CLIENTS_MAX * CACHED_RESPONSE_BYTES_MAX as u64 * 4 <= REPLY_CACHE_BYTES_MAX);

/// Bytes of all state but kept replies, by the accounts of [`Stock`]: some 300,000 opens.
pub const STATE_BYTES_MAX: u64 = 256 << 20;
/// Open files of the opens of all clients, one for each kind of access that an open was asked for.
/// A service that systemd starts can be given 524,288 of them (its hard limit), of which half are
/// for locks and all else.
pub const OPENS_MAX: u64 = 262_144;
/// Lock states (a lock owner's on a file) of all clients: each has an open file description of its
/// own, as OFD locks belong to those.
pub const LOCK_STATES_MAX: u64 = 131_072;
/// Ranges locked in one file, those about to be included. Every LOCK looks at all of them, and of
/// [`RANGES_SPLIT_PER_FILE_MAX`].
pub const RANGES_PER_FILE_MAX: usize = 4096;
/// Ranges of one file beyond those, which unlocking the middle of one makes of it: a client that
/// has its share of ranges can go on to unlock, and keeps no other from locking.
pub const RANGES_SPLIT_PER_FILE_MAX: usize = 4096;
/// Lock states of one file, for the same reason.
pub const LOCK_STATES_PER_FILE_MAX: usize = 4096;

/// Revoked stateids of one client that it has not freed, with its opens and locks of an export that
/// was taken out: of more the oldest are not known any longer. Each takes `REVOKED_BYTES` of what
/// its open or lock had taken, so that all of them together are within [`STATE_BYTES_MAX`]; a
/// client has 128 KiB of them at most, and frees one with each request.
pub const REVOKED_PER_CLIENT_MAX: usize = 4096;
/// Bytes of one of them: its place by number.
pub(crate) const REVOKED_BYTES: u64 = map_entry_bytes::<u64, ()>();
const _: () = assert!(REVOKED_PER_CLIENT_MAX as u64 * REVOKED_BYTES <= 128 << 10);

/// How many times as much as is left one address may have of what is shared: alone three quarters
/// of it, the next one three quarters of the rest.
pub const SHARE_TIMES_FREE: u64 = 3;

/// Bytes of a [`crate::state::FileKey`]: an export's number and a filehandle.
pub const FILE_KEY_BYTES_MAX: usize = 8 + FILEHANDLE_BYTES_MAX as usize;

/// Shortest lease, in microseconds: 1 s, so that a renewal (Linux sends it after two thirds) can
/// arrive in time.
pub const LEASE_US_MIN: u64 = 1_000_000;
/// Longest lease and longest grace period, in microseconds: an hour. Linux clients use no more.
pub const LEASE_US_MAX: u64 = 3_600_000_000;
/// How long the grace period lasts at least behind each reclaim, in microseconds, so that a client
/// which has begun can go on; altogether never longer than twice its time, as Linux has it.
pub const RECLAIM_PAUSE_US: u64 = 5_000_000;
/// How long the state of a client is kept whose lease has expired, in microseconds, when no other
/// client wants it: a day, as Linux has it. Longer partitions are not repaired by waiting.
pub const COURTESY_US_MAX: u64 = 24 * 3_600_000_000;

/// Bytes of a file of stable storage that are read: twice [`CLIENTS_MAX`] owners of 1024 bytes with
/// 16 bytes around each are 8.2 MiB, and what may be appended before it is compacted.
pub const STABLE_BYTES_MAX: u64 = 16 << 20;
/// Bytes appended to stable storage until it is compacted.
pub const STABLE_APPENDED_BYTES_MAX: u64 = 4 << 20;
const _: () = assert!(
    2 * CLIENTS_MAX * (OWNER_BYTES_MAX as u64 + 16) + STABLE_APPENDED_BYTES_MAX < STABLE_BYTES_MAX
);

/// Records that are not durable when one more client may come: clients are told to wait then. While
/// stable storage cannot be written there are as many at most, what each of [`CLIENTS_MAX`] clients
/// has lost, and what clients from before a restart have that do not come back: 13 MiB.
pub const UNRECORDED_MAX: u64 = 1024;

/// What an entry of a map costs beside its own size: nodes of B-trees may be half empty, and have
/// links.
pub(crate) const fn map_entry_bytes<K, V>() -> u64 {
    let entry = (size_of::<K>() as u64).saturating_add(size_of::<V>() as u64);
    entry.saturating_mul(2).saturating_add(16)
}

/// What an allocation of `bytes` costs: rounded up to 16, and 16 for the allocator.
pub(crate) const fn allocation_bytes(bytes: usize) -> u64 {
    (bytes as u64).saturating_add(31) & !15
}

/// The address that what a peer takes is counted for: all of an IPv6 network of 64 bits is one, as
/// one host can have any address of it.
#[must_use]
pub fn accounted_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or_else(
            || IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
            IpAddr::V4,
        ),
    }
}

/// A limited resource, and the addresses that have parts of it.
#[derive(Debug)]
pub struct Stock {
    max: u64,
    used: u64,
    by_address: BTreeMap<IpAddr, u64>,
}

/// There is no more for this address now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exhausted;

impl Stock {
    /// A stock of `max`, all of it there.
    #[must_use]
    pub const fn new(max: u64) -> Self {
        Self {
            max,
            used: 0,
            by_address: BTreeMap::new(),
        }
    }

    /// Makes it another one of `max`. What is in use stays, where that is more.
    pub const fn set_max(&mut self, max: u64) {
        self.max = max;
    }

    /// How much there is, what is in use included.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// How much is in use.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// How much `address` has.
    #[must_use]
    pub fn used_by(&self, address: IpAddr) -> u64 {
        self.by_address
            .get(&accounted_address(address))
            .copied()
            .unwrap_or(0)
    }

    /// Takes `amount` for `address`.
    ///
    /// # Errors
    /// There is not so much, or the address would have more than its share
    /// ([`SHARE_TIMES_FREE`]).
    pub fn take(&mut self, address: IpAddr, amount: u64) -> Result<(), Exhausted> {
        let address = accounted_address(address);
        let used = self.used.checked_add(amount).ok_or(Exhausted)?;
        let free = self.max.checked_sub(used).ok_or(Exhausted)?;
        let own = self
            .by_address
            .get(&address)
            .copied()
            .unwrap_or(0)
            .saturating_add(amount);
        if amount > 0 && own > free.saturating_mul(SHARE_TIMES_FREE) {
            return Err(Exhausted);
        }
        if amount > 0 {
            self.used = used;
            self.by_address.insert(address, own);
        }
        Ok(())
    }

    /// Gives back `amount` of what `address` has.
    pub fn give_back(&mut self, address: IpAddr, amount: u64) {
        let address = accounted_address(address);
        let Some(own) = self.by_address.get_mut(&address) else {
            return;
        };
        let amount = amount.min(*own);
        *own = own.saturating_sub(amount);
        if *own == 0 {
            self.by_address.remove(&address);
        }
        self.used = self.used.saturating_sub(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_some_to_others() {
        let (first, second) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let mut stock = Stock::new(1000);
        let taken = (0..1000)
            .take_while(|_| stock.take(first, 1).is_ok())
            .count();
        assert_eq!(taken, 750);
        let taken = (0..1000)
            .take_while(|_| stock.take(second, 1).is_ok())
            .count();
        assert_eq!(taken, 187, "three quarters of the rest");
        stock.give_back(first, 2000);
        assert_eq!((stock.used(), stock.used_by(first)), (187, 0));
        assert_eq!(stock.take(second, u64::MAX), Err(Exhausted));
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let parse = |text: &str| accounted_address(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:0:1"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:192.0.2.1"), parse("192.0.2.1"));
        assert_ne!(parse("192.0.2.1"), parse("192.0.2.2"));
    }
}
