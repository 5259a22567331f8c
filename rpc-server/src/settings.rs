//! What a server is made of.

use std::net::SocketAddr;

use capstan_memory::Pages;
use capstan_rdma::ProviderPreference;
use capstan_reactor::SpinBudget;

use crate::limits::{RDMA_CONNECTIONS_MAX, WORKERS_MAX};

/// What carries the calls that come to a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Records over TCP.
    Tcp,
    /// RPC-over-RDMA.
    Rdma,
    /// Either. User-space iWARP has one socket for both; beside an RDMA device there is a socket at
    /// the same address.
    Both,
}

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// Where it listens; port 0 picks one.
    pub addr: SocketAddr,
    /// What for.
    pub transport: Transport,
    /// The RDMA provider. It means nothing for [`Transport::Tcp`].
    pub provider: ProviderPreference,
}

/// What a server is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Its listeners: at least one.
    pub listeners: Vec<Listen>,
    /// Threads that carry out calls: 1 to 256.
    pub workers: usize,
    /// What their names begin with; a number follows. The kernel keeps 15 bytes.
    pub worker_name: String,
    /// Connections at a time, of both kinds.
    pub connections_max: usize,
    /// Of either kind, those of one IPv4 address or 64-bit IPv6 network, which never has more than
    /// are left for others.
    pub connections_per_source_max: usize,
    /// Of all connections, those of RPC-over-RDMA: 1 to 2048.
    pub rdma_connections_max: u32,
    /// Bytes of memory for data that is moved by RDMA: at least 32 MiB. It is mapped where there is
    /// a listener for RDMA.
    pub data_bytes: usize,
    /// The pages of it.
    pub pages: Pages,
    /// How long a client may leave a record unfinished, data that is pulled from it unsent, or
    /// replies untaken, in milliseconds. Its connection ends then.
    pub stall_ms: u64,
    /// How long a server that stops goes on answering the calls that it has taken, in milliseconds.
    pub drain_ms: u64,
    /// How long it polls before it sleeps.
    pub spin: SpinBudget,
}

impl Default for Settings {
    /// Without a listener.
    fn default() -> Self {
        Self {
            listeners: Vec::new(),
            workers: 8.min(WORKERS_MAX),
            worker_name: "rpc-".to_owned(),
            connections_max: 4096,
            connections_per_source_max: 1024,
            rdma_connections_max: RDMA_CONNECTIONS_MAX,
            data_bytes: 64 << 20,
            pages: Pages::Ordinary,
            stall_ms: 30_000,
            drain_ms: 5_000,
            spin: SpinBudget { spin_us: 20 },
        }
    }
}
