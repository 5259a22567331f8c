//! Arguments several commands share, with the letters of nvme-cli.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use capstan_initiator::identity::Identity;
use capstan_initiator::options::TRANSFER_BYTES_MAX;
use capstan_initiator::{DirectQueue, Options, Preference, ReplayWrites};
use capstan_nvme_proto::log::{DiscoverySubsystemType, TransportType};
use capstan_nvme_proto::nqn::Nqn;
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

/// Which controller to connect to, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectArgs {
    /// Transport. Only RDMA.
    #[arg(short = 't', long, value_enum, default_value_t = Transport::Rdma)]
    pub(crate) transport: Transport,
    /// Address of the target: IPv4, IPv6 or a host name, all of whose addresses are tried.
    #[arg(short = 'a', long, value_name = "ADDR")]
    pub(crate) traddr: String,
    /// Port of the target.
    #[arg(short = 's', long, value_name = "PORT", default_value_t = 4420)]
    pub(crate) trsvcid: u16,
    /// Subsystem [default: the only one the target offers].
    #[arg(short = 'n', long, visible_alias = "subsysnqn", value_name = "NQN")]
    pub(crate) nqn: Option<String>,
    /// Name of this host [default: /etc/nvme/hostnqn, else made from the machine-id].
    #[arg(short = 'q', long, value_name = "NQN")]
    pub(crate) hostnqn: Option<String>,
    /// Identifier of this host [default: /etc/nvme/hostid, else what belongs to the host NQN].
    #[arg(short = 'I', long, value_name = "UUID")]
    pub(crate) hostid: Option<String>,
    /// Address to connect from.
    #[arg(short = 'w', long, value_name = "ADDR")]
    pub(crate) host_traddr: Option<IpAddr>,
    /// RDMA provider.
    #[arg(long, value_enum, default_value_t = Provider::Auto)]
    pub(crate) provider: Provider,
    /// I/O queues.
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1)]
    pub(crate) nr_io_queues: u16,
    /// Entries of each I/O queue.
    #[arg(short = 'Q', long, value_name = "N", default_value_t = 128)]
    pub(crate) queue_size: u16,
    /// Keep Alive Timeout in seconds; 0 turns it off.
    #[arg(short = 'k', long, value_name = "SECONDS", default_value_t = 5)]
    pub(crate) keep_alive_tmo: u32,
    /// Longest wait between attempts to reconnect, in seconds.
    #[arg(short = 'c', long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) reconnect_delay: u32,
    /// How long a lost controller is waited for before I/O fails, in seconds; -1 is for ever.
    #[arg(
        short = 'l',
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        allow_negative_numbers = true
    )]
    pub(crate) ctrl_loss_tmo: i64,
    /// How long each RDMA connection may take to set up, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub(crate) connect_timeout: u32,
    /// How long an I/O may take before the connection counts as lost, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) io_timeout: u32,
}

/// What commands that write have besides.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// When writes that a lost connection left unanswered are sent again: once the old controller
    /// is known to be gone (`fenced`), or at once, when an old copy may yet undo a later write
    /// (`immediate`).
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Replay::Fenced)]
    pub(crate) replay_writes: Replay,
}

impl ReplayArgs {
    pub(crate) fn apply(&self, options: Options) -> Options {
        Options {
            replay_writes: match self.replay_writes {
                Replay::Fenced => ReplayWrites::Fenced,
                Replay::Immediate => ReplayWrites::Immediate,
            },
            ..options
        }
    }
}

/// Transports.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Transport {
    /// RDMA.
    Rdma,
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
#[derive(Clone, Copy, Debug, ValueEnum)]
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
        let identity = self.identity()?;
        let subnqn = match &self.nqn {
            Some(nqn) => {
                Nqn::new(nqn).with_context(|| format!("--nqn is {nqn:?}, expected an NQN"))?
            }
            None => self.only_subsystem(&identity)?,
        };
        let options = Options::new(&self.traddr, subnqn, identity.hostnqn, identity.hostid);
        Ok(self.apply(options))
    }

    /// Connects.
    pub(crate) fn queues(&self) -> Result<DirectQueue> {
        connect(&self.options()?)
    }

    /// Connects for admin commands only.
    pub(crate) fn admin_queue(&self) -> Result<DirectQueue> {
        connect(&self.admin_options()?)
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
        options.provider = self.preference();
        options.connect_timeout = seconds(self.connect_timeout);
        options
    }

    /// Who this host is.
    pub(crate) fn identity(&self) -> Result<Identity> {
        Ok(Identity::find(
            self.hostnqn.as_deref(),
            self.hostid.as_deref(),
        )?)
    }

    pub(crate) fn preference(&self) -> Preference {
        match self.provider {
            Provider::Auto => Preference::Auto,
            Provider::Verbs => Preference::Verbs,
            Provider::Iwarp => Preference::Iwarp,
        }
    }

    fn apply(&self, options: Options) -> Options {
        let Transport::Rdma = self.transport;
        Options {
            trsvcid: self.trsvcid,
            host_traddr: self.host_traddr,
            nr_io_queues: self.nr_io_queues,
            queue_size: self.queue_size,
            keep_alive_tmo: seconds(self.keep_alive_tmo),
            reconnect_delay: seconds(self.reconnect_delay),
            ctrl_loss_tmo: u64::try_from(self.ctrl_loss_tmo)
                .ok()
                .map(Duration::from_secs),
            connect_timeout: seconds(self.connect_timeout),
            io_timeout: seconds(self.io_timeout),
            provider: self.preference(),
            ..options
        }
    }

    /// The only NVM subsystem the discovery service at the address offers.
    fn only_subsystem(&self, identity: &Identity) -> Result<Nqn> {
        let at = format!("{} port {}", self.traddr, self.trsvcid);
        let mut queue = DirectQueue::connect(&self.discovery_options(identity))
            .with_context(|| format!("asking the discovery service at {at} for subsystems"))?;
        let (_, entries) = queue.discover()?;
        queue.close();
        let mut names: Vec<Nqn> = entries
            .iter()
            .filter(|e| e.subtype == DiscoverySubsystemType::NVM)
            .filter(|e| e.trtype == TransportType::RDMA)
            .filter_map(|e| e.subsystem_nqn().ok())
            .collect();
        names.sort();
        names.dedup();
        match names.as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(anyhow!(
                "{at} offers no subsystem to host {}: give one with --nqn, or add the host to the \
                 target's allowed hosts",
                identity.hostnqn
            )),
            several => {
                let list: Vec<_> = several.iter().map(Nqn::as_str).collect();
                bail!(
                    "{at} offers {} subsystems, give one with --nqn: {}",
                    list.len(),
                    list.join(", ")
                )
            }
        }
    }
}

/// Connects.
pub(crate) fn connect(options: &Options) -> Result<DirectQueue> {
    DirectQueue::connect(options).with_context(|| {
        format!(
            "connecting to {} at {} port {}",
            options.subnqn, options.traddr, options.trsvcid
        )
    })
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

/// A number of bytes as fio and nvme-cli write it: `4096`, `4k`, `1M`, `16MiB`, `2g`. Powers of
/// 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("expected a number of bytes, like 4096, 4k, 16MiB or 1g".to_owned()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "expected a number of bytes, like 4096, 4k, 16MiB or 1g".to_owned())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "expected less than 2^64 bytes".to_owned())
}

/// A number, decimal or like `0x0f`.
pub(crate) fn parse_number<T: TryFrom<u32>>(text: &str) -> Result<T, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.ok().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| {
        let bits = 8 * size_of::<T>();
        format!("expected a number of {bits} bits, like 15 or 0x0f")
    })
}

/// Bytes of data of a command whose data is not known: at most 1 MiB.
pub(crate) fn parse_data_len() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(0..=u64::from(TRANSFER_BYTES_MAX))
}

/// A time as fio writes it (`30` is seconds), or with a unit (`1m30s`).
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; expected seconds, or a time like 500ms or 1m30s"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{parse_bytes, parse_duration};

    #[test]
    fn bytes_have_fio_units() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("4k"), Ok(4096));
        assert_eq!(parse_bytes("16MiB"), Ok(16 << 20));
        assert_eq!(parse_bytes("2G"), Ok(2 << 30));
        for bad in ["", "k", "4x", "-1", "1.5k", "18446744073709551615k"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_plain_number_is_seconds() {
        assert_eq!(parse_duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(parse_duration("soon").is_err());
    }
}
