//! What a host is told to do.

use capstan_nvme_proto::nqn::{HostId, Nqn};

use crate::options::{ReplayWrites, Transport};

/// What a [`Host`](super::Host) is to connect to, and its bounds.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Subsystem.
    pub subnqn: Nqn,
    /// This host.
    pub hostnqn: Nqn,
    /// This host.
    pub hostid: HostId,
    /// I/O queues to ask for; the controller may give fewer.
    pub nr_io_queues: u16,
    /// Entries of each I/O queue; the controller may take fewer.
    pub queue_size: u16,
    /// Keep Alive Timeout in milliseconds; 0 is off.
    pub kato_ms: u32,
    /// Bound of each step of the set-up, in microseconds: of each connection and of each command. A
    /// controller has besides what it asks for to become ready (CAP.TO).
    pub connect_timeout_us: u64,
    /// Bound of each admin command once the association is set up, in microseconds.
    pub admin_timeout_us: u64,
    /// Longest wait between attempts to reconnect, in milliseconds.
    pub reconnect_delay_ms: u64,
    /// How long a lost controller is waited for, in microseconds; `None` is for ever.
    pub ctrl_loss_tmo_us: Option<u64>,
    /// When writes that were not answered are issued again after a loss.
    pub replay_writes: ReplayWrites,
    /// Look for namespaces.
    pub scan_namespaces: bool,
    /// What carries the queues: what a controller has to have depends on it.
    pub transport: Transport,
    /// Ask for queues without SQ flow control; a controller that refuses is asked for others.
    pub disable_sq_flow_control: bool,
}
