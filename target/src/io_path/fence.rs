//! What the controllers wait for before a new controller of the same host is ready: that everything
//! which had arrived on a connection by then is taken in and over.
//!
//! Three steps, which cost the commands nothing: the provider passes the mark of what had arrived,
//! the completions of that are polled, and then the queue itself counts what it has taken in
//! ([`capstan_subsystem::IoQueue::begin_fence`]). When a connection ends meanwhile the controllers
//! are told once its last command is off the storage engine.

use std::collections::BTreeMap;

use capstan_rdma::PEER_CAUSED;
use capstan_subsystem::{ConnId, FenceId};

use super::command::{Command, NotAnswered};
use super::connection::Connection;
use super::phase::Phase;
use super::{IoPath, respond};
use crate::limits::{RECEIVES_MAX, cq_depth};

/// Connections whose arrivals are followed.
#[derive(Default)]
pub(super) struct Fences {
    all: Vec<Arriving>,
}

/// A connection on which something that had arrived is not taken in yet.
struct Arriving {
    conn: ConnId,
    fence: FenceId,
    fabric: usize,
    port: usize,
    /// Behind what had arrived.
    mark: u64,
    /// Every message before the mark has its completion.
    passed: bool,
    unpolled: Unpolled,
}

/// Completions to poll, at most, until all that were there are polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unpolled(u32);

impl Unpolled {
    /// `count` were polled; `emptied`: there were no more.
    fn polled(&mut self, count: u32, emptied: bool) {
        // A queue that is never empty is followed by counting.
        self.0 = if emptied {
            0
        } else {
            self.0.saturating_sub(count)
        };
    }
}

impl Fences {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// `count` completions of a device were polled; `emptied`: there were no more.
    pub(super) fn polled(&mut self, fabric: usize, port: usize, count: u32, emptied: bool) {
        for arriving in &mut self.all {
            if arriving.passed && (arriving.fabric, arriving.port) == (fabric, port) {
                arriving.unpolled.polled(count, emptied);
            }
        }
    }
}

impl IoPath {
    /// Begins to wait for what has arrived on a connection and is not over.
    pub(super) fn fence_io(&mut self, conn: ConnId, fence: FenceId) {
        // When a connection ends, the controllers are told at its end.
        let Some((_, connection)) = self.live(conn) else {
            return;
        };
        let arriving = Arriving {
            conn,
            fence,
            fabric: connection.identity.fabric,
            port: connection.identity.port,
            mark: connection.transport.arrived(),
            passed: false,
            unpolled: Unpolled(cq_depth(RECEIVES_MAX)),
        };
        self.fences.all.push(arriving);
    }

    /// Takes the steps that are possible, after a turn has taken in what arrived.
    pub(super) fn follow_fences(&mut self) {
        let mut at = 0;
        while let Some(arriving) = self.fences.all.get(at) {
            let Arriving {
                conn,
                fence,
                mark,
                unpolled,
                ..
            } = *arriving;
            let Some((resources, connection)) = self.live(conn) else {
                self.fences.all.swap_remove(at);
                continue;
            };
            if unpolled != Unpolled(0) {
                let passed = connection.transport.has_passed(mark);
                self.fences.all[at].passed |= passed;
                at += 1;
                continue;
            }
            if let Some(queue) = connection.queue.as_mut() {
                queue.begin_fence(fence);
            }
            respond::settle(resources, connection);
            self.fences.all.swap_remove(at);
        }
    }

    /// Logs what a new controller has waited for long on a connection.
    pub(super) fn tell_outstanding(&mut self, conn: ConnId) {
        let arriving = self.fences.all.iter().any(|other| other.conn == conn);
        let connection = self
            .index_of
            .get(&conn)
            .and_then(|&index| self.connections.get_mut(index));
        let Some(connection) = connection else { return };
        let Outstanding {
            commands,
            pulling,
            namespaces,
        } = Outstanding::of(connection);
        let host = connection.association.as_ref();
        tracing::warn!(
            target: PEER_CAUSED,
            peer = %connection.identity.peer,
            host = host.map(|host| host.hostnqn.to_string()),
            cntlid = host.map_or(0, |host| host.cntlid),
            qid = connection.identity.sizes.qid,
            commands,
            pulling,
            storage = connection.disk_outstanding,
            ?namespaces,
            arriving,
            "a new association of this host waits for what this connection has not finished: look at the storage of these namespaces \
             where commands are on it, and at the host or its network where their data is pulled"
        );
    }
}

/// The commands that a connection has not finished.
struct Outstanding {
    commands: usize,
    /// Of those, the ones whose data comes from the host.
    pulling: usize,
    /// How many of each NSID.
    namespaces: BTreeMap<u32, usize>,
}

impl Outstanding {
    fn of(connection: &Connection) -> Self {
        let mut outstanding = Self {
            commands: 0,
            pulling: 0,
            namespaces: BTreeMap::new(),
        };
        let ends = matches!(connection.phase, Phase::Closing { .. });
        for command in &connection.commands {
            let Some(nsid) = nsid(command) else { continue };
            let pulls = command.pulled_bytes().is_some();
            // A connection that ends pulls no more data.
            if ends && pulls {
                continue;
            }
            outstanding.commands += 1;
            outstanding.pulling += usize::from(pulls);
            *outstanding.namespaces.entry(nsid).or_default() += 1;
        }
        outstanding
    }
}

/// The namespace of a command that is not answered; 0 for reservation commands.
fn nsid(command: &Command) -> Option<u32> {
    match command.not_answered()? {
        NotAnswered::Io(io) => Some(io.namespace.nsid),
        NotAnswered::Control(_) | NotAnswered::Held => Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_queue_that_is_never_empty_is_polled_through_all_the_same() {
        let mut unpolled = Unpolled(300);
        for left in [172, 44, 0] {
            unpolled.polled(128, false);
            assert_eq!(unpolled, Unpolled(left));
        }
        let mut unpolled = Unpolled(300);
        unpolled.polled(5, true);
        assert_eq!(unpolled, Unpolled(0));
    }
}
