//! What the controllers wait for before a new controller of the same host is ready: that everything
//! which had arrived on a connection by then is taken in and over.
//!
//! The wire of a connection says when everything that had arrived has come as events, including a
//! message or PDU that had arrived in part; then the queue itself counts the commands that it has
//! taken in ([`capstan_subsystem::IoQueue::begin_fence`]). When a connection ends meanwhile the
//! controllers are told once its last command is off the storage engine.
//!
//! That is before the wire says that nothing can land any more (`Event::Quiesced`), and it is late
//! enough. A fence keeps older commands from the medium. A connection that ends starts no storage
//! operation: it takes in no capsule (`recv`), a pull that completes goes no further
//! (`execute::on_pulled`), and neither does a command behind an operation that was under way
//! (`on_medium::on_disk`). What may still land is data of pulls, in buffers that belong to the
//! queue until it has quiesced: no other command gets them before that. To wait for it would let a
//! host that closes slowly keep its next association out for the time that a connection has to end.

use std::collections::BTreeMap;

use capstan_rdma::PEER_CAUSED;
use capstan_subsystem::{ConnId, FenceId};
use capstan_transport::FenceNumber;

use super::command::{Command, NotAnswered};
use super::connection::Connection;
use super::phase::Phase;
use super::{IoPath, Resources, respond};

/// Connections with something that arrived before a fence and may not be taken in yet.
#[derive(Default)]
pub(super) struct Fences {
    all: Vec<Arriving>,
    serial: u64,
}

struct Arriving {
    number: FenceNumber,
    conn: ConnId,
    fence: FenceId,
}

impl Fences {
    /// Whether something that had begun to arrive on the connection, and that a new association
    /// waits for, is not taken in yet.
    pub(super) fn is_arriving(&self, conn: ConnId) -> bool {
        self.all.iter().any(|arriving| arriving.conn == conn)
    }

    /// A connection is gone; the controllers have been told of its end.
    pub(super) fn forget(&mut self, conn: ConnId) {
        self.all.retain(|arriving| arriving.conn != conn);
    }
}

/// Everything that had arrived on the connection when the fence was set is taken in.
pub(super) fn passed(
    resources: &mut Resources,
    connection: &mut Connection,
    fences: &mut Fences,
    number: FenceNumber,
) {
    let arriving = fences.all.iter().position(|other| other.number == number);
    let Some(Arriving { fence, .. }) = arriving.map(|at| fences.all.swap_remove(at)) else {
        return;
    };
    if connection.closing() {
        return;
    }
    if let Some(queue) = connection.queue.as_mut() {
        queue.begin_fence(fence);
    }
    respond::settle(resources, connection);
}

impl IoPath {
    /// Begins to wait for what has arrived on a connection and is not over.
    pub(super) fn fence_io(&mut self, conn: ConnId, fence: FenceId) {
        // When a connection ends, the controllers are told at its end.
        let index = self.index_of.get(&conn).copied();
        let connection = index.and_then(|index| self.connections.get_mut(index));
        let Some(connection) = connection.filter(|connection| !connection.closing()) else {
            return;
        };

        self.fences.serial += 1;
        let number = FenceNumber(self.fences.serial);
        connection.transport.fence(number);
        self.fences.all.push(Arriving {
            number,
            conn,
            fence,
        });
        self.looks.wanted(self.resources.now_us);
    }

    /// Logs what a new controller has waited for long on a connection.
    pub(super) fn tell_outstanding(&mut self, conn: ConnId) {
        let arriving = self.fences.is_arriving(conn);
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
            hostnqn = host.map(|host| host.hostnqn.to_string()),
            subnqn = host.map(|host| host.subnqn.to_string()),
            cntlid = host.map_or(0, |host| host.cntlid),
            qid = connection.identity.sizes.qid,
            commands,
            pulling,
            storage = connection.disk_outstanding,
            ?namespaces,
            arriving,
            reason = "earlier-commands-not-over",
            "a new association of this host waits for what this connection has not finished: look at the storage of these namespaces \
             where commands are on it, and at the host or its network where their data is pulled or the rest of a capsule is missing \
             (arriving)"
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
