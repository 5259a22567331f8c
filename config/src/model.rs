//! The checked configuration. Values of these types come only from this crate.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use capstan_exports::ExportSettings;
use serde::Deserialize;
use uuid::Uuid;

use crate::{AnaState, Backing, Nqn};

/// A complete, consistent configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What concerns the whole daemon.
    pub target: Target,
    /// What every queue is bounded by.
    pub queues: QueueBounds,
    /// Where the target listens for hosts; at least one, unless it only serves NFS.
    pub listeners: Vec<Listener>,
    /// What it exports to hosts; at least one, unless it only serves NFS.
    pub subsystems: Vec<Subsystem>,
    /// The directories that it serves to NFS clients, and how; `None` without one.
    pub nfs: Option<Nfs>,
    /// How what is counted is told.
    pub metrics: Metrics,
}

/// `[metrics]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Where it is told over HTTP, to whatever asks; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// Of so many commands the stages of one are timed, up to 1,000,000; 0: of none.
    pub sample: u32,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            listen: None,
            sample: crate::limits::DEFAULT_METRICS_SAMPLE,
        }
    }
}

/// `[nfs]` and every `[[export]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nfs {
    /// Where NFS over TCP is listened for; none, unless `transports` has `"tcp"`.
    pub tcp: Vec<SocketAddr>,
    /// Where NFS over RDMA is listened for; none, unless `transports` has `"rdma"`. There is one in
    /// either list at least.
    pub rdma: Vec<SocketAddr>,
    /// RDMA provider of all of these.
    pub provider: ProviderChoice,
    /// How long clients keep what they have open and locked without a word: 1 s to 1 h.
    pub lease_time: Duration,
    /// How long clients may reclaim after a restart, at least a lease, at most 1 h.
    pub grace_time: Duration,
    /// Threads that carry out what clients ask for; see [`Nfs::threads`].
    pub threads_written: Option<usize>,
    /// Bytes of memory for data that is moved by RDMA, by all clients together: 32 MiB to 64 GiB.
    /// None of it is mapped without RDMA.
    pub memory_bytes: u64,
    /// The directories, in the order of the file; at least one, here or in `absent`.
    pub exports: Vec<ExportSettings>,
    /// Of the directories, those whose file systems were found not to answer: none in a
    /// configuration that was just read.
    pub absent: Vec<ExportSettings>,
}

impl Nfs {
    /// Number of threads when the process may run on `cores_available` cores: two for each unless
    /// it is written down, and then 4 to 32.
    #[must_use]
    pub fn threads(&self, cores_available: usize) -> usize {
        let range = crate::limits::DEFAULT_NFS_THREADS;
        let by_default = cores_available
            .saturating_mul(2)
            .clamp(*range.start(), *range.end());
        self.threads_written.unwrap_or(by_default)
    }
}

/// `[target]`: what concerns the whole daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// How many reactors, and on which cores.
    pub reactors: Reactors,
    /// All memory registered for I/O and queues, over all reactors. A Connect that would exceed it
    /// is refused. Namespaces in RAM are not part of it.
    pub memory_budget_bytes: u64,
    /// How long a reactor polls after I/O without finding work before it arms its sources and
    /// blocks. Of more than 50 us, commands that came together have a share each. Admin commands,
    /// keep-alives among them, are followed by no spin, nor are several commands together where a
    /// device is a software one, whose work the kernel does on the same cores.
    pub spin: Duration,
    /// Least severe level that is logged.
    pub log: LogLevel,
    /// Most controllers (one per connected host and subsystem) at a time.
    pub hosts_max: u32,
    /// Whether the queues of a reactor and device take their receives from one shared queue, where
    /// the device has such, and with them connections whose host is not known yet. Otherwise each
    /// has its own.
    pub shared_receive_queue: bool,
    /// What the serial numbers of subsystems begin with that are given none.
    pub serial_prefix: String,
    /// Model number of subsystems that are given none.
    pub model: String,
    /// PCI Vendor ID in Identify Controller, of the vendor of this target; 0 is none.
    pub vendor_id: u16,
    /// PCI Subsystem Vendor ID, likewise.
    pub subsystem_vendor_id: u16,
}

/// `target.reactors`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reactors {
    /// One per core that the process may run on.
    Auto,
    /// This many, placed by the scheduler.
    Count(usize),
    /// One pinned to each of these cores; no core twice.
    Cores(Vec<usize>),
}

impl Reactors {
    /// Number of reactors when the process may run on `cores_available` cores.
    pub fn count(&self, cores_available: usize) -> usize {
        match self {
            Self::Auto => cores_available.max(1),
            Self::Count(count) => *count,
            Self::Cores(cores) => cores.len(),
        }
    }
}

/// `target.log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only what needs an operator.
    Error,
    /// And what may soon.
    Warn,
    /// And which hosts connected, were refused, went away.
    Info,
    /// And what the controller decided.
    Debug,
    /// And every command.
    Trace,
}

impl LogLevel {
    /// The word as written in the file and understood by `tracing`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// `[queues]`: what every controller advertises and enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// Most I/O queues of one controller, 1 to 128.
    pub io_queues_max: u16,
    /// Most entries of one I/O queue (CAP.MQES + 1), 16 to 1024.
    pub depth_max: u16,
}

/// Which RDMA provider a listener uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderChoice {
    /// `Verbs` when an RDMA device serves the address, else `Iwarp`.
    Auto,
    /// The machine's RDMA devices through librdmacm and libibverbs.
    Verbs,
    /// iWARP in user space over a TCP socket.
    Iwarp,
}

impl ProviderChoice {
    /// The word as written in the file and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Verbs => "verbs",
            Self::Iwarp => "iwarp",
        }
    }
}

impl FromStr for ProviderChoice {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let all = [Self::Auto, Self::Verbs, Self::Iwarp];
        all.into_iter()
            .find(|choice| choice.as_str() == text)
            .ok_or(WordError {
                allowed: "auto, verbs or iwarp",
            })
    }
}

impl fmt::Display for ProviderChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `[[listener]]`: an address and port to accept hosts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Address and port; the address may be a wildcard, port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// Provider to listen with.
    pub provider: ProviderChoice,
    /// What hosts may connect by, at least one of them.
    pub transports: Transports,
}

/// The NVMe transports of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports {
    /// NVMe/RDMA.
    pub rdma: bool,
    /// NVMe/TCP.
    pub tcp: bool,
    /// Whether the configuration names none: there is both then, but no NVMe/TCP where the RDMA
    /// device has its port, and something else the next one.
    pub by_default: bool,
}

impl Transports {
    /// Those that are named.
    #[must_use]
    pub fn named(rdma: bool, tcp: bool) -> Self {
        Self {
            rdma,
            tcp,
            by_default: false,
        }
    }
}

impl fmt::Display for Transports {
    /// As a configuration names them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.rdma, self.tcp) {
            (true, true) => "[\"rdma\", \"tcp\"]",
            (true, false) => "[\"rdma\"]",
            (false, true) => "[\"tcp\"]",
            (false, false) => "[]",
        })
    }
}

impl Listener {
    /// Whether its socket would be in the way of one at `address`. IPv4 and IPv6 do not meet: IPv6
    /// listeners are IPv6 only. Port 0 never meets anything.
    #[must_use]
    pub fn meets(&self, address: SocketAddr) -> bool {
        let (a, b) = (self.address, address);
        a.is_ipv4() == b.is_ipv4()
            && a.port() == b.port()
            && a.port() != 0
            && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
    }
}

impl Default for Transports {
    fn default() -> Self {
        Self {
            rdma: true,
            tcp: true,
            by_default: true,
        }
    }
}

/// `[[subsystem]]`: an NVM subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// SUBNQN, unique in the configuration.
    pub nqn: Nqn,
    /// SN: 1 to 20 printable ASCII bytes.
    pub serial: String,
    /// MN: 1 to 40 printable ASCII bytes.
    pub model: String,
    /// Who may connect.
    pub access: Access,
    /// Whether a new association of a host ends the older ones with the same host NQN, host
    /// identifier and pair of addresses. Other programs of that host do so, too.
    pub end_older_association: bool,
    /// Namespaces by ascending NSID; none while the only one is taken out.
    pub namespaces: Vec<Namespace>,
    /// Of the namespaces, those on paths where nothing was found: none in a configuration that was
    /// just read.
    pub absent: Vec<Namespace>,
    /// ANA states that are written down, by the number of the listener from 0 and the group;
    /// everything else is optimized. See [`Subsystem::ana_states`].
    pub ana: BTreeMap<(usize, u32), AnaState>,
}

impl Subsystem {
    /// All namespaces, also those where nothing was found.
    pub fn configured(&self) -> impl Iterator<Item = &Namespace> {
        self.namespaces.iter().chain(&self.absent)
    }
}

/// Who may connect to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every host; only when `allow_any_host = true` is written down.
    AnyHost,
    /// These host NQNs and no others.
    Hosts(Vec<Nqn>),
}

impl Access {
    /// Whether a host with this NQN may connect ([`Nqn::is_same`]).
    pub fn allows(&self, host_nqn: &Nqn) -> bool {
        match self {
            Self::AnyHost => true,
            Self::Hosts(hosts) => hosts.iter().any(|host| host.is_same(host_nqn)),
        }
    }
}

/// `[[subsystem.namespace]]`: one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// 1 to [`NAMESPACES_MAX`](crate::NAMESPACES_MAX), unique in the subsystem.
    pub nsid: u32,
    /// Whether it is written down. Otherwise it is the lowest one that is left, in the order of the
    /// file, and the target may give the namespace the one that hosts know it by.
    pub nsid_is_written: bool,
    /// Where its blocks are.
    pub backing: Backing,
    /// LBA size; `None` lets the backing decide: a block device has its logical block size, a file
    /// what it was used with before and 4096 at first, RAM and null have 4096.
    pub lba: Option<LbaSize>,
    /// Namespace UUID that is written down, unique in the configuration. Only for what
    /// [lasts](Backing::lasts); everything else gets one when it is made.
    pub uuid: Option<Uuid>,
    /// Namespace Globally Unique Identifier that is written down. As for `uuid`.
    pub nguid: Option<[u8; 16]>,
    /// Writes are refused.
    pub read_only: bool,
    /// Whether the page cache is bypassed. [`DirectIo::WherePossible`] for RAM and null.
    pub direct: DirectIo,
    /// ANA Group Identifier, 1 to 128.
    pub ana_group: u32,
}

/// Supported LBA sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LbaSize {
    /// 512 bytes (LBADS 9).
    B512,
    /// 4096 bytes (LBADS 12).
    B4096,
}

impl LbaSize {
    /// That of RAM and null namespaces which say nothing else.
    pub const DEFAULT: Self = Self::B4096;

    /// The size with this many bytes.
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        match bytes {
            512 => Some(Self::B512),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }

    /// Whether `size_bytes`, no whole number of these LBAs, is one of smaller ones.
    pub(crate) fn smaller_for(self, size_bytes: u64) -> bool {
        self == Self::B4096 && size_bytes.is_multiple_of(Self::B512.bytes().into())
    }

    /// Bytes of one LBA.
    pub fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

impl FromStr for LbaSize {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        text.parse()
            .ok()
            .and_then(Self::from_bytes)
            .ok_or(WordError {
                allowed: "512 or 4096",
            })
    }
}

/// An option value that is none of the few that are allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {allowed}")]
pub struct WordError {
    allowed: &'static str,
}

/// `direct`: whether the page cache is bypassed (`O_DIRECT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectIo {
    /// Not written down: bypass it where the file system or device can.
    WherePossible,
    /// `direct = true`: bypass it or refuse to start.
    Required,
    /// `direct = false`: go through it.
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_values_parse_or_name_what_is_allowed() {
        for choice in [
            ProviderChoice::Auto,
            ProviderChoice::Verbs,
            ProviderChoice::Iwarp,
        ] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert_eq!("4096".parse(), Ok(LbaSize::B4096));
        let error = "tcp".parse::<ProviderChoice>().unwrap_err();
        assert_eq!(error.to_string(), "expected auto, verbs or iwarp");
        assert_eq!(
            "520".parse::<LbaSize>().unwrap_err().to_string(),
            "expected 512 or 4096"
        );
    }
}
