//! What to connect to, and how.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_rdma::ProviderPreference;

use crate::address::check_traddr;
use crate::error::OptionsError;
use crate::host::{QUEUE_ENTRIES_MAX, QUEUE_ENTRIES_MIN};
use crate::names::Name;
use crate::race::in_turn;

/// Port of NVMe over Fabrics assigned by IANA, over RDMA and over TCP; also the usual one of
/// discovery services.
pub const DEFAULT_TRSVCID: u16 = 4420;
/// Most I/O queues of one association this library opens.
pub const NR_IO_QUEUES_MAX: u16 = 128;
/// Most bytes of one command's data this library uses, whatever MDTS allows. Larger requests are
/// split.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// When writes that a lost association left unanswered are issued again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReplayWrites {
    /// When the old controller is known to be gone: the target says so, or its time is over.
    /// Nothing that changes media is issued before.
    #[default]
    Fenced,
    /// At once, as Linux does. A write that was acknowledged may be undone by an old copy of an
    /// earlier one.
    Immediate,
}

/// Transports of NVMe over Fabrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// RDMA, by a provider.
    #[default]
    Rdma,
    /// TCP without RDMA.
    Tcp,
    /// The first that leads to a controller: RDMA over a device, over iWARP, TCP. A connection that
    /// is lost is made again over the same.
    Auto,
}

impl Transport {
    /// As `-t` of the command line has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
            Self::Auto => "auto",
        }
    }
}

/// Options of one association, with the names of `nvme connect`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of the target: IPv4, IPv6 or a host name, all of whose addresses are tried.
    pub traddr: String,
    /// Port of the target. [`DEFAULT_TRSVCID`] unless set.
    pub trsvcid: u16,
    /// Address to connect from. None unless set: the system chooses.
    pub host_traddr: Option<IpAddr>,
    /// Subsystem to connect to.
    pub subnqn: Nqn,
    /// Name of this host.
    pub hostnqn: Nqn,
    /// Identifier of this host.
    pub hostid: HostId,
    /// I/O queues; each is a connection. 0 for administration only. 1 unless set.
    pub nr_io_queues: u16,
    /// Entries of each I/O queue: one more than the commands outstanding at once. 128 unless
    /// set.
    pub queue_size: u16,
    /// Keep Alive Timeout; zero turns Keep Alive off. 5 s unless set.
    pub keep_alive_tmo: Duration,
    /// Longest wait between two attempts to reconnect. The waits start at 100 ms and double, to
    /// half a second in the first 30 s of an outage and to this from then on. 10 s unless set.
    pub reconnect_delay: Duration,
    /// How long a lost controller is waited for before I/O fails; `None` is for ever. 600 s unless
    /// set.
    pub ctrl_loss_tmo: Option<Duration>,
    /// How long each step of setting up an association may take: each connection, and each command
    /// up to the last Identify. A controller has besides what it asks for to become ready (CAP.TO).
    /// 5 s unless set.
    pub connect_timeout: Duration,
    /// The same of the first connection over each transport that is tried, with
    /// [`Transport::Auto`]: what leads nowhere is to be left soon. None unless set: 3.5 s, or
    /// `connect_timeout` where that is less.
    pub transport_timeout: Option<Duration>,
    /// How long an admin command may take once the association is set up. 30 s unless set.
    pub admin_timeout: Duration,
    /// How long an I/O command may take before the connection counts as lost. 30 s unless set.
    pub io_timeout: Duration,
    /// When writes that were not answered are issued again after a loss.
    /// [`ReplayWrites::Fenced`] unless set.
    pub replay_writes: ReplayWrites,
    /// What carries the queues. [`Transport::Rdma`] unless set; `capstan` has [`Transport::Auto`].
    pub transport: Transport,
    /// RDMA provider. [`ProviderPreference::Auto`] unless set.
    pub provider: ProviderPreference,
    /// CRC32C of the headers of NVMe/TCP, where the target has it. With [`Transport::Auto`] nothing
    /// but NVMe/TCP is tried then, and [`Transport::Rdma`] is refused. Off unless set.
    pub header_digest: bool,
    /// CRC32C of the data of NVMe/TCP, where the target has it; else as `header_digest`.
    pub data_digest: bool,
    /// Ask for queues without SQ flow control. Over NVMe/TCP that is done in any case: there it
    /// spares a PDU per read. A target that refuses is asked for queues with it. Off unless
    /// set.
    pub disable_sq_flow_control: bool,
    /// Registered memory for data, in bytes. 32 MiB unless set.
    pub data_memory_bytes: usize,
    /// Look for namespaces after connecting (and again when the controller says they changed).
    /// On unless set.
    pub scan_namespaces: bool,
}

impl Options {
    /// Options for `subnqn` at `traddr`, as host `hostnqn`/`hostid`. The other fields have the
    /// defaults that stand with them.
    #[must_use]
    pub fn new(traddr: &str, subnqn: Nqn, hostnqn: Nqn, hostid: HostId) -> Self {
        Self {
            traddr: traddr.to_owned(),
            trsvcid: DEFAULT_TRSVCID,
            host_traddr: None,
            subnqn,
            hostnqn,
            hostid,
            nr_io_queues: 1,
            queue_size: 128,
            keep_alive_tmo: Duration::from_secs(5),
            reconnect_delay: Duration::from_secs(10),
            ctrl_loss_tmo: Some(Duration::from_secs(600)),
            connect_timeout: Duration::from_secs(5),
            transport_timeout: None,
            admin_timeout: Duration::from_secs(30),
            io_timeout: Duration::from_secs(30),
            replay_writes: ReplayWrites::default(),
            transport: Transport::default(),
            provider: ProviderPreference::Auto,
            header_digest: false,
            data_digest: false,
            disable_sq_flow_control: false,
            data_memory_bytes: 32 << 20,
            scan_namespaces: true,
        }
    }

    /// Options to read the discovery log at `traddr`: no I/O queues, no Keep Alive, no reconnect.
    #[must_use]
    pub fn discovery(traddr: &str, hostnqn: Nqn, hostid: HostId) -> Self {
        Self {
            nr_io_queues: 0,
            keep_alive_tmo: Duration::ZERO,
            ctrl_loss_tmo: Some(Duration::ZERO),
            data_memory_bytes: 0,
            scan_namespaces: false,
            ..Self::new(traddr, Nqn::discovery(), hostnqn, hostid)
        }
    }

    /// Whether a digest is asked for, which NVMe/TCP alone has.
    pub(crate) fn asks_digests(&self) -> bool {
        self.header_digest || self.data_digest
    }

    /// Refuses values no association can have.
    ///
    /// # Errors
    /// [`OptionsError`] naming the option, its value and what it may be.
    pub fn check(&self) -> Result<(), OptionsError> {
        let number = |name, value: u64, expected| OptionsError::Value {
            name,
            value: value.to_string(),
            expected,
        };
        check_traddr(&self.traddr).map_err(|source| OptionsError::Address {
            traddr: self.traddr.clone(),
            source: Box::new(source),
        })?;
        if self.nr_io_queues > NR_IO_QUEUES_MAX {
            let value = u64::from(self.nr_io_queues);
            return Err(number(Name::NrIoQueues, value, "0 to 128"));
        }
        if !(QUEUE_ENTRIES_MIN..=QUEUE_ENTRIES_MAX).contains(&self.queue_size) {
            let value = u64::from(self.queue_size);
            return Err(number(Name::QueueSize, value, "2 to 1024"));
        }
        if self.hostid == HostId::NONE {
            return Err(OptionsError::Value {
                name: Name::Hostid,
                value: self.hostid.to_string(),
                expected: "a UUID other than zero",
            });
        }
        if self.transport == Transport::Rdma && self.asks_digests() {
            return Err(OptionsError::Value {
                name: match self.header_digest {
                    true => Name::HeaderDigest,
                    false => Name::DataDigest,
                },
                value: true.to_string(),
                expected: "false with transport rdma: digests are of NVMe/TCP (transport tcp, or auto)",
            });
        }
        if u32::try_from(self.keep_alive_tmo.as_millis()).is_err() {
            let value = u64::try_from(self.keep_alive_tmo.as_millis()).unwrap_or(u64::MAX);
            return Err(number(Name::KeepAliveTmo, value, "below 2^32 ms"));
        }
        Ok(())
    }

    /// The target's addresses, in the order in which they are tried; looks a host name up, which
    /// may block. Those of the other family than `host_traddr` are left out where there are others.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub fn socket_addrs(&self) -> Result<Vec<SocketAddr>, OptionsError> {
        let lookup = |message: String| OptionsError::Lookup {
            traddr: self.traddr.clone(),
            message,
        };
        // An address in brackets, as URLs write IPv6, is taken too.
        let bare = self.traddr.trim_start_matches('[').trim_end_matches(']');
        let found = (bare, self.trsvcid)
            .to_socket_addrs()
            .map_err(|error| lookup(error.to_string()))?;
        let mut addresses = in_turn(found);
        if let Some(own) = self.host_traddr {
            let reaches = |address: &SocketAddr| address.is_ipv4() == own.is_ipv4();
            if addresses.iter().any(reaches) {
                addresses.retain(reaches);
            }
        }
        if addresses.is_empty() {
            return Err(lookup("no address".to_owned()));
        }
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use capstan_nvme_proto::nqn::{HostId, Nqn};

    use super::{Options, Transport};

    fn options() -> Options {
        let nqn = |name| Nqn::new(name).unwrap();
        Options::new("127.0.0.1", nqn("nqn.s"), nqn("nqn.h"), HostId([1; 16]))
    }

    #[test]
    fn defaults_are_valid() {
        assert_eq!(options().check(), Ok(()));
        assert_eq!(
            options().socket_addrs().unwrap(),
            [([127, 0, 0, 1], 4420).into()]
        );
    }

    #[test]
    fn errors_name_the_option_its_value_and_what_it_may_be() {
        let mut bad = options();
        bad.queue_size = 1;
        assert_eq!(
            bad.check().unwrap_err().to_string(),
            "Options::queue_size is 1, expected 2 to 1024"
        );
        let mut bad = options();
        bad.hostid = HostId::NONE;
        assert!(bad.check().is_err());
    }

    #[test]
    fn digests_are_refused_where_they_would_be_left_out() {
        let mut digest = options();
        digest.data_digest = true;
        let told = digest.check().unwrap_err().to_string();
        assert!(
            told.starts_with("Options::data_digest is true, expected false"),
            "{told}"
        );
        for transport in [Transport::Tcp, Transport::Auto] {
            digest.transport = transport;
            assert_eq!(digest.check(), Ok(()));
        }
    }

    #[test]
    fn ipv6_addresses_may_have_brackets() {
        let mut six = options();
        six.traddr = "[::1]".to_owned();
        assert!(six.socket_addrs().unwrap()[0].is_ipv6());
        // That it does not fit is for the connect to say.
        six.host_traddr = Some([127, 0, 0, 1].into());
        assert!(six.socket_addrs().unwrap()[0].is_ipv6());
    }
}
