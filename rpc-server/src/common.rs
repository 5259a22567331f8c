//! What connections over either wire have in common.

use std::net::SocketAddr;
use std::sync::Arc;

use capstan_rdma::{PEER_REPEATS, Source};

use crate::calls::Calls;
use crate::peers::{ConnectionName, Peers};
use crate::program::{ConnectionNumber, Program, Wire};
use crate::task::Task;
use crate::turns::Place;

/// What every connection needs of the reactor.
pub(crate) struct Common {
    pub(crate) program: Arc<dyn Program>,
    pub(crate) calls: Calls,
    pub(crate) peers: Peers,
    /// Connections that are to end for others.
    pub(crate) displaced: Vec<ConnectionName>,
    /// How long a client may leave something as it is, in microseconds.
    pub(crate) stall_us: u64,
    pub(crate) now_us: u64,
    /// Connections are not taken any more, nor are calls.
    pub(crate) is_stopping: bool,
}

impl Common {
    /// Takes a connection, or says in the log why not. Returns its number, and the place of its
    /// address.
    pub(crate) fn begin(
        &mut self,
        wire: Wire,
        peer: SocketAddr,
    ) -> Option<(ConnectionNumber, Place)> {
        if self.is_stopping {
            return None;
        }
        if let Err(why) = self.program.admits(peer) {
            tracing::warn!(target: PEER_REPEATS, "{why}");
            if wire == Wire::Rdma {
                return None;
            }
        }
        match self.peers.begin(wire, peer) {
            Ok((number, displaced)) => {
                self.displaced.extend(displaced);
                self.program.connections(self.peers.count());
                tracing::debug!(%peer, number = number.0, ?wire, "a connection begins");
                Some((number, self.calls.turns.begin(Source::of(peer.ip()))))
            }
            Err(error) => {
                let peer = peer.ip().to_canonical();
                tracing::warn!(target: PEER_REPEATS, %peer, "refused a connection: {error}");
                None
            }
        }
    }

    /// Has a call carried out.
    pub(crate) fn start(&mut self, task: Box<Task>) {
        self.calls.start(task, &*self.program);
    }

    /// Has a call of an address that is not admitted refused.
    pub(crate) fn refuse(&mut self, task: Box<Task>) {
        self.calls.refuse(task, &*self.program);
    }

    /// A connection has ended, with so many calls under way.
    pub(crate) fn end(&mut self, name: ConnectionName, peer: SocketAddr, under_way: usize) {
        let (_, number) = name;
        self.peers.end(name, peer);
        self.program.connections(self.peers.count());
        self.calls.turns.end(Source::of(peer.ip()));
        self.calls.connection_ended(number, under_way);
    }

    /// Since when something is too old that a client was to go on with.
    pub(crate) fn stalled_before_us(&self) -> u64 {
        self.now_us.saturating_sub(self.stall_us)
    }
}

/// Why a connection ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The client ended it, or the network.
    Closed(String),
    /// The client did what it may not.
    Fault(String),
}

impl End {
    /// Says so in the log.
    pub(crate) fn log(&self, peer: SocketAddr, number: ConnectionNumber) {
        let number = number.0;
        match self {
            Self::Closed(why) => tracing::debug!(%peer, number, "a connection has ended: {why}"),
            Self::Fault(why) => {
                let peer = peer.ip().to_canonical();
                tracing::warn!(target: PEER_REPEATS, %peer, "ended a connection: {why}");
            }
        }
    }
}
