//! What the connections of one address have together of what all share, so that one client which
//! makes many of them leaves others theirs.

use std::net::SocketAddr;

use capstan_memory::Account;
use capstan_rdma::Source;
use capstan_rpcrdma::credits::{CreditPool, Credits, Grant};
use capstan_rpcrdma::limits::CREDITS_INITIAL;
use rustc_hash::FxHashMap;

use super::device::Memory;

/// The addresses that have connections.
#[derive(Default)]
pub(super) struct Shares(FxHashMap<Source, Share>);

/// What one address has.
struct Share {
    /// For the memory of data.
    account: Account,
    connections: usize,
    receives: u32,
}

impl Shares {
    /// A connection begins. Returns the account for its data, and its credits; `None` when there
    /// are as many connections as there may be.
    pub(super) fn join(
        &mut self,
        peer: SocketAddr,
        memory: &Memory,
        pool: &mut CreditPool,
    ) -> Option<(Account, Credits)> {
        let credits = pool.open()?;
        let share = self
            .0
            .entry(Source::of(peer.ip()))
            .or_insert_with(|| Share {
                account: memory.data.open_account(),
                connections: 0,
                receives: 0,
            });
        share.connections = share.connections.saturating_add(1);
        share.receives = share.receives.saturating_add(CREDITS_INITIAL);
        Some((share.account, credits))
    }

    /// A call is answered that asked for `requested` credits: further ones come only as long as its
    /// address has no more receives than are left for others.
    pub(super) fn grant(
        &mut self,
        peer: SocketAddr,
        credits: &mut Credits,
        pool: &mut CreditPool,
        requested: u32,
    ) -> Grant {
        let before = credits.granted();
        let Some(share) = self.0.get_mut(&Source::of(peer.ip())) else {
            return credits.reply(pool, requested.min(before));
        };
        // Each that it gets is one less for others.
        let more = pool.free().saturating_sub(share.receives) / 2;
        let grant = credits.reply(pool, requested.min(before.saturating_add(more)));
        share.receives = share
            .receives
            .saturating_add(grant.credits)
            .saturating_sub(before);
        grant
    }

    /// A connection has ended.
    pub(super) fn leave(
        &mut self,
        peer: SocketAddr,
        memory: &Memory,
        pool: &mut CreditPool,
        credits: Credits,
    ) {
        let source = Source::of(peer.ip());
        if let Some(share) = self.0.get_mut(&source) {
            share.connections = share.connections.saturating_sub(1);
            share.receives = share.receives.saturating_sub(credits.granted());
            if share.connections == 0 {
                memory.data.close_account(share.account);
                self.0.remove(&source);
            }
        }
        pool.close(credits);
    }
}

#[cfg(test)]
mod tests {
    use capstan_memory::{Pages, Short};
    use capstan_rpcrdma::limits::CREDITS_PER_CONNECTION_MAX;

    use super::*;
    use crate::limits::{CREDITS_AT_FIRST, DATA_MIN_BYTES, SHARE_TIMES_FREE};

    fn peer(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 700))
    }

    fn memory() -> Memory {
        Memory::new(DATA_MIN_BYTES, Pages::Ordinary)
            .unwrap()
            .unwrap()
    }

    /// A client that uses all that it is granted.
    fn use_all(shares: &mut Shares, pool: &mut CreditPool, peer: SocketAddr, of: &mut Credits) {
        for _ in 0..CREDITS_PER_CONNECTION_MAX {
            of.receive().unwrap();
            let _ = shares.grant(peer, of, pool, CREDITS_PER_CONNECTION_MAX);
        }
    }

    #[test]
    fn connections_of_one_address_leave_credits_to_others() {
        let memory = memory();
        let (mut shares, mut pool) = (Shares::default(), CreditPool::new(1000, 100, 128).unwrap());
        let mut greedy = Vec::new();
        for _ in 0..30 {
            let (_, mut credits) = shares.join(peer(1), &memory, &mut pool).unwrap();
            use_all(&mut shares, &mut pool, peer(1), &mut credits);
            greedy.push(credits);
        }
        assert!(pool.held() <= 500, "{}", pool.held());
        let (_, mut other) = shares.join(peer(2), &memory, &mut pool).unwrap();
        use_all(&mut shares, &mut pool, peer(2), &mut other);
        assert!(other.granted() > CREDITS_AT_FIRST, "{}", other.granted());

        shares.leave(peer(2), &memory, &mut pool, other);
        for credits in greedy {
            shares.leave(peer(1), &memory, &mut pool, credits);
        }
        assert_eq!((pool.held(), shares.0.len()), (0, 0));
    }

    #[test]
    fn connections_of_one_address_leave_data_to_others() {
        let memory = memory();
        let (mut shares, mut pool) = (Shares::default(), CreditPool::new(1000, 100, 128).unwrap());
        let mut joined = Vec::new();
        let mut held = Vec::new();
        for _ in 0..64 {
            let (account, credits) = shares.join(peer(1), &memory, &mut pool).unwrap();
            match memory.data.take_share(account, 1 << 20, SHARE_TIMES_FREE) {
                Ok(buffer) => held.push(buffer),
                Err(short) => assert!(matches!(short, Short::Share), "{short:?}"),
            }
            joined.push(credits);
        }
        assert!(held.len() <= DATA_MIN_BYTES >> 21, "{}", held.len());
        let (account, credits) = shares.join(peer(2), &memory, &mut pool).unwrap();
        memory
            .data
            .take_share(account, 1 << 20, SHARE_TIMES_FREE)
            .unwrap();
        shares.leave(peer(2), &memory, &mut pool, credits);
        for credits in joined {
            shares.leave(peer(1), &memory, &mut pool, credits);
        }
    }
}
