//! Arguments several commands share, with the letters of nvme-cli.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use capstan_initiator::identity::{Identity, IdentityError};
use capstan_initiator::internals::way::Way;
use capstan_initiator::options::NR_IO_QUEUES_MAX;
use capstan_initiator::{DirectQueue, Options, ProviderPreference, ReplayWrites, TakenTransport};
use capstan_initiator::{QUEUE_ENTRIES_MAX, QUEUE_ENTRIES_MIN};
use capstan_nvme_proto::nqn::Nqn;
use clap::builder::ArgPredicate;
use clap::{Args, ValueEnum};

use super::offers::Offers;
use super::taken::{connect, say_taken};
use super::values::{
    DAY_S, parse_ctrl_loss_tmo, parse_host_traddr, parse_hostid, parse_nqn, parse_traddr, within,
    wrong,
};

/// The largest Keep Alive Timeout, which Connect carries as 32 bits of milliseconds.
const KEEP_ALIVE_S_MAX: u32 = u32::MAX / 1000;

/// Which controller to connect to, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectArgs {
    /// Transport [default: rdma with --provider, tcp with a digest, else auto].
    #[arg(
        short = 't',
        long,
        value_enum,
        default_value_t = Transport::Auto,
        hide_default_value = true,
        default_value_if("provider", ArgPredicate::IsPresent, "rdma"),
        default_value_if("hdr_digest", ArgPredicate::IsPresent, "tcp"),
        default_value_if("data_digest", ArgPredicate::IsPresent, "tcp")
    )]
    pub(crate) transport: Transport,
    /// Address of the target: IPv4, IPv6 or a host name, all of whose addresses are tried.
    #[arg(short = 'a', long, value_name = "ADDR", value_parser = parse_traddr)]
    pub(crate) traddr: String,
    /// Port of the target.
    #[arg(short = 's', long, value_name = "PORT", default_value_t = 4420, value_parser = within::<u16>(1..=65535))]
    pub(crate) trsvcid: u16,
    /// Subsystem [default: the only one the target offers].
    #[arg(short = 'n', long, visible_alias = "subsysnqn", value_name = "NQN", value_parser = parse_nqn)]
    pub(crate) nqn: Option<String>,
    /// Name of this host [default: /etc/nvme/hostnqn, else made from the machine-id].
    #[arg(short = 'q', long, value_name = "NQN", value_parser = parse_nqn)]
    pub(crate) hostnqn: Option<String>,
    /// Identifier of this host [default: /etc/nvme/hostid, else what belongs to the host NQN].
    #[arg(short = 'I', long, value_name = "UUID", value_parser = parse_hostid)]
    pub(crate) hostid: Option<String>,
    /// Address to connect from.
    #[arg(short = 'w', long, value_name = "ADDR", value_parser = parse_host_traddr)]
    pub(crate) host_traddr: Option<IpAddr>,
    /// RDMA provider; not with `-t tcp` or a digest. With iwarp on both sides, shared memory takes
    /// the place of TCP where the target is on this machine; -t tcp stays with TCP there.
    #[arg(long, value_enum, default_value_t = Provider::Auto)]
    pub(crate) provider: Provider,
    /// A CRC32C of each header, where the target has it; over NVMe/TCP only, so also `-t auto`
    /// tries that alone.
    #[arg(long)]
    pub(crate) hdr_digest: bool,
    /// A CRC32C of all data, where the target has it; as --hdr-digest.
    #[arg(long)]
    pub(crate) data_digest: bool,
    /// Ask for queues without SQ flow control; always so over NVMe/TCP, where it spares a PDU per
    /// read. A target that refuses is asked for queues with it.
    #[arg(short = 'D', long)]
    pub(crate) disable_sqflow: bool,
    /// I/O queues, 1 to 128.
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1, value_parser = within::<u16>(1..=NR_IO_QUEUES_MAX))]
    pub(crate) nr_io_queues: u16,
    /// Entries of each I/O queue, 2 to 1024 [default: 128].
    #[arg(short = 'Q', long, value_name = "N", value_parser = within::<u16>(QUEUE_ENTRIES_MIN..=QUEUE_ENTRIES_MAX))]
    pub(crate) queue_size: Option<u16>,
    /// Keep Alive Timeout in seconds; 0 turns it off.
    #[arg(short = 'k', long, value_name = "SECONDS", default_value_t = 5, value_parser = within::<u32>(0..=KEEP_ALIVE_S_MAX))]
    pub(crate) keep_alive_tmo: u32,
    /// Longest wait between attempts to reconnect, in seconds; half a second for the first 30 s.
    #[arg(short = 'c', long, value_name = "SECONDS", default_value_t = 10, value_parser = within::<u32>(1..=DAY_S))]
    pub(crate) reconnect_delay: u32,
    /// How long a lost controller is waited for before I/O fails, in seconds; -1 is for ever.
    #[arg(
        short = 'l',
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        allow_negative_numbers = true,
        value_parser = parse_ctrl_loss_tmo
    )]
    pub(crate) ctrl_loss_tmo: i64,
    /// How long each step of setting up an association may take, in seconds: each connection, and
    /// each command up to the last Identify [default: 5; the first connection over each transport
    /// that `auto` tries has 3.5].
    #[arg(long, value_name = "SECONDS", value_parser = within::<u32>(1..=DAY_S))]
    pub(crate) connect_timeout: Option<u32>,
    /// How long an I/O may take before the connection counts as lost, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = within::<u32>(1..=DAY_S))]
    pub(crate) io_timeout: u32,
}

/// What commands that write have besides.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// When writes that a lost connection left unanswered are sent again: once the old controller
    /// is known to be gone (`fenced`), or at once, when an old copy may yet undo a later write
    /// (`immediate`) [default: fenced].
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) replay_writes: Option<Replay>,
}

impl ReplayArgs {
    pub(crate) fn is_given(&self) -> bool {
        self.replay_writes.is_some()
    }

    pub(crate) fn apply(&self, options: Options) -> Options {
        Options {
            replay_writes: match self.replay_writes {
                None | Some(Replay::Fenced) => ReplayWrites::Fenced,
                Some(Replay::Immediate) => ReplayWrites::Immediate,
            },
            ..options
        }
    }
}

/// Transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// The first that leads to a controller: RDMA over a device, over iWARP, TCP.
    Auto,
    /// RDMA.
    Rdma,
    /// TCP.
    Tcp,
}

/// When writes are sent again.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Replay {
    /// When the target says that the old controller is gone, or its time is over.
    Fenced,
    /// At once.
    Immediate,
}

/// RDMA providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Provider {
    /// Verbs when an RDMA device has a route to the address, else iWARP in this process.
    Auto,
    /// An RDMA device.
    Verbs,
    /// iWARP over TCP in this process.
    Iwarp,
}

impl ConnectArgs {
    /// Options to connect to the subsystem; without one named, to the only one there is.
    pub(crate) fn options(&self) -> Result<Options> {
        let (options, taken) = self.options_and_taken()?;
        if let Some(taken) = &taken {
            say_taken(&options, taken);
        }
        Ok(options)
    }

    /// The same, with the transport that the discovery service was reached over where it was to be
    /// found. The subsystem is reached over that, too.
    pub(crate) fn options_and_taken(&self) -> Result<(Options, Option<TakenTransport>)> {
        let identity = self.identity()?;
        let (subnqn, taken) = match &self.nqn {
            Some(nqn) => {
                let nqn =
                    Nqn::new(nqn).with_context(|| format!("--nqn is {nqn:?}, expected an NQN"))?;
                (nqn, None)
            }
            None => self.only_subsystem(&identity)?,
        };
        let options = Options::new(&self.traddr, subnqn, identity.hostnqn, identity.hostid);
        let options = self.apply(options);
        Ok(match taken {
            Some(taken) => (taken.in_options(options), Some(taken)),
            None => (options, None),
        })
    }

    /// What these mean, for commands that texts name.
    pub(crate) fn way(&self) -> Way {
        Way {
            traddr: self.traddr.clone(),
            trsvcid: self.trsvcid,
            subnqn: self.nqn.clone(),
            transport: self.library_transport(),
            provider: self.preference(),
            header_digest: self.hdr_digest,
            data_digest: self.data_digest,
            hostnqn: self.hostnqn.clone(),
            hostid: self.hostid.clone(),
            host_traddr: self.host_traddr,
        }
    }

    fn library_transport(&self) -> capstan_initiator::Transport {
        match self.transport {
            Transport::Rdma => capstan_initiator::Transport::Rdma,
            Transport::Tcp => capstan_initiator::Transport::Tcp,
            Transport::Auto => capstan_initiator::Transport::Auto,
        }
    }

    /// These with the transport that was taken.
    pub(crate) fn over(&self, options: &Options) -> Self {
        let transport = match options.transport {
            capstan_initiator::Transport::Auto => Transport::Auto,
            capstan_initiator::Transport::Rdma => Transport::Rdma,
            capstan_initiator::Transport::Tcp => Transport::Tcp,
        };
        let provider = match options.provider {
            ProviderPreference::Auto => Provider::Auto,
            ProviderPreference::Verbs => Provider::Verbs,
            ProviderPreference::Iwarp => Provider::Iwarp,
        };
        Self {
            transport,
            provider,
            ..self.clone()
        }
    }

    /// Connects for admin commands only.
    pub(crate) fn admin_queue(&self) -> Result<DirectQueue> {
        connect(&self.admin_options()?)
    }

    /// The same, for commands that a namespace takes only from hosts that have found out which one
    /// it is.
    pub(crate) fn admin_queue_and_namespaces(&self) -> Result<DirectQueue> {
        connect(&Options {
            scan_namespaces: true,
            ..self.admin_options()?
        })
    }

    /// Options for commands without I/O.
    fn admin_options(&self) -> Result<Options> {
        let mut options = self.options()?;
        options.nr_io_queues = 0;
        options.data_memory_bytes = 0;
        options.ctrl_loss_tmo = Some(Duration::ZERO);
        options.scan_namespaces = false;
        Ok(options)
    }

    /// Options to read the discovery log.
    pub(crate) fn discovery_options(&self, identity: &Identity) -> Options {
        let mut options =
            Options::discovery(&self.traddr, identity.hostnqn.clone(), identity.hostid);
        options.trsvcid = self.trsvcid;
        options.host_traddr = self.host_traddr;
        self.over_transport(options)
    }

    /// Who this host is.
    pub(crate) fn identity(&self) -> Result<Identity> {
        let found = Identity::find(self.hostnqn.as_deref(), self.hostid.as_deref());
        found.map_err(|error| match error {
            IdentityError::Contradiction { .. } => wrong(error.to_string()),
            other => other.into(),
        })
    }

    pub(crate) fn preference(&self) -> ProviderPreference {
        match self.provider {
            Provider::Auto => ProviderPreference::Auto,
            Provider::Verbs => ProviderPreference::Verbs,
            Provider::Iwarp => ProviderPreference::Iwarp,
        }
    }

    fn over_transport(&self, options: Options) -> Options {
        let given = self.connect_timeout.map(seconds);
        Options {
            transport: self.library_transport(),
            provider: self.preference(),
            header_digest: self.hdr_digest,
            data_digest: self.data_digest,
            disable_sq_flow_control: self.disable_sqflow,
            connect_timeout: given.unwrap_or(options.connect_timeout),
            transport_timeout: given,
            ..options
        }
    }

    fn apply(&self, options: Options) -> Options {
        let options = self.over_transport(options);
        Options {
            trsvcid: self.trsvcid,
            host_traddr: self.host_traddr,
            nr_io_queues: self.nr_io_queues,
            queue_size: self.queue_size.unwrap_or(options.queue_size),
            keep_alive_tmo: seconds(self.keep_alive_tmo),
            reconnect_delay: seconds(self.reconnect_delay),
            ctrl_loss_tmo: u64::try_from(self.ctrl_loss_tmo)
                .ok()
                .map(Duration::from_secs),
            io_timeout: seconds(self.io_timeout),
            ..options
        }
    }

    /// The only NVM subsystem the discovery service at the address offers over the transport that
    /// it was reached over, with that where it was to be found.
    fn only_subsystem(&self, identity: &Identity) -> Result<(Nqn, Option<TakenTransport>)> {
        let at = format!("{} port {}", self.traddr, self.trsvcid);
        let options = self.discovery_options(identity);
        let mut queue = DirectQueue::connect(&options)
            .with_context(|| format!("asking the discovery service at {at} for subsystems"))?;
        let taken = queue.taken().cloned();
        let (_, entries) = queue.discover()?;
        queue.close();
        let transport = taken
            .as_ref()
            .map_or(options.transport, TakenTransport::transport);
        let only = Offers::over(transport, &entries).only(&at, &identity.hostnqn)?;
        Ok((only, taken))
    }
}

fn seconds(n: u32) -> Duration {
    Duration::from_secs(n.into())
}

/// How to print.
#[derive(Args, Clone, Debug)]
pub(crate) struct OutputArgs {
    /// Output for people or for programs.
    #[arg(
        short = 'o',
        long,
        visible_alias = "output",
        value_enum,
        default_value_t = OutputFormat::Normal
    )]
    output_format: OutputFormat,
}

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people.
    Normal,
    /// JSON.
    Json,
}

impl OutputArgs {
    pub(crate) fn is_json(&self) -> bool {
        self.output_format == OutputFormat::Json
    }
}
