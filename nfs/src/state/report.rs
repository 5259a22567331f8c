//! What an operator is told of clients.

use std::net::IpAddr;
use std::sync::Arc;

use super::State;

/// A client that has confirmed its record (RFC 8881, section 18.35.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientReport {
    /// What it calls itself (`co_ownerid`), as it has sent it.
    pub owner: Arc<[u8]>,
    /// Where its record was made from.
    pub address: IpAddr,
    /// How long ago its lease was renewed, in microseconds.
    pub renewed_ago_us: u64,
    /// Its sessions.
    pub sessions: usize,
    /// Its opens, and lock owners with locks on a file.
    pub states: usize,
}

impl State {
    /// Confirmed clients. A lease that is over ends one only when others need what it has.
    pub fn clients(&self, now_us: u64) -> impl Iterator<Item = ClientReport> {
        self.clients.confirmed().map(move |client| ClientReport {
            owner: Arc::clone(&client.owner),
            address: client.address,
            renewed_ago_us: now_us.saturating_sub(client.renewed_us),
            sessions: client.sessions.len(),
            states: client.states.len(),
        })
    }
}
