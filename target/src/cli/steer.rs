//! The commands that ask or tell a target that runs.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Output, complete};

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Operation {
    /// Show what a target that runs serves, and what is not as it should be.
    Status(For<Nothing>),
    /// Have a target that runs read its configuration again and carry out what has changed: all of
    /// it or nothing. As SIGHUP, and says how it went.
    Reload(For<Discard>),
    /// End a target that runs, as SIGTERM does.
    Stop(For<Discard>),
    /// Have a target that runs take no connections, and let go the hosts that are connected: each
    /// when its commands have ended. Hosts that connect again wait, or take another path.
    Drain(For<Drain>),
    /// Add, take out and show subsystems of a target that runs.
    #[command(subcommand)]
    Subsystem(SubsystemCommand),
    /// Add, take out, resize, change and show namespaces of a target that runs.
    #[command(subcommand)]
    Namespace(NamespaceCommand),
    /// Set and show ANA states of a target that runs: what hosts may do by which listener.
    #[command(subcommand)]
    Ana(AnaCommand),
    /// Say which hosts may connect to a target that runs.
    #[command(subcommand)]
    Host(HostCommand),
    /// Say where a target that runs listens.
    #[command(subcommand)]
    Listener(ListenerCommand),
    /// Add, take out and list directories that a target that runs exports to NFS clients.
    #[command(subcommand)]
    Export(ExportCommand),
    /// List NFS clients of a target that runs.
    #[command(subcommand)]
    Client(ClientCommand),
    /// List and end what hosts have with a target that runs.
    #[command(subcommand)]
    Connection(ConnectionCommand),
    /// Show, compare and save the configuration of a target that runs.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Change what a target that runs logs.
    #[command(subcommand)]
    Log(LogCommand),
    /// Say why hosts were refused, and the command that lets them in.
    Explain(For<Explain>),
    /// Say whether this binary takes over from a target that runs: its options, configuration and
    /// state folder. Exit 1 when a restart with it would not go well.
    Upgrade(For<Upgrade>),
}

/// The target that is meant, and how its answer is shown.
#[derive(Args, Clone, Debug)]
pub struct To {
    /// Control socket of the target [default: CAPSTAN_CONTROL_SOCKET, or
    /// /run/capstan-target/control.sock].
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
    /// Output for people or for programs.
    #[arg(
        short = 'o',
        long,
        visible_alias = "output-format",
        value_enum,
        default_value_t = Output::Normal
    )]
    pub output: Output,
}

/// A command for a target that runs.
#[derive(Args, Clone, Debug)]
pub struct For<T: Args> {
    /// What it is asked or told.
    #[command(flatten)]
    pub what: T,
    /// Which one.
    #[command(flatten)]
    pub to: To,
}

/// No words of its own.
#[derive(Args, Clone, Debug)]
pub struct Nothing {}

/// Whether changes may go.
#[derive(Args, Clone, Debug)]
pub struct Discard {
    /// Let changes go that were made at run time and are in no file (`config diff` shows them).
    #[arg(long)]
    pub discard: bool,
}

/// `drain`.
#[derive(Args, Clone, Debug)]
pub struct Drain {
    /// Seconds until connections whose commands have not ended are ended [default: 5].
    #[arg(long, value_name = "SECONDS")]
    pub within: Option<u64>,
    /// Take connections again. Those that were there when it was drained end all the same.
    #[arg(long, conflicts_with = "within")]
    pub off: bool,
}

/// `upgrade`.
#[derive(Args, Clone, Debug)]
pub struct Upgrade {
    /// Look, and change nothing: a package, or a restart, does the upgrade.
    #[arg(long, required = true)]
    pub check: bool,
}

/// `subsystem`.
#[derive(Clone, Debug, Subcommand)]
pub enum SubsystemCommand {
    /// Add a subsystem. Hosts may connect that are named here, and by `host allow`.
    Add(For<SubsystemAdd>),
    /// Take a subsystem out with its namespaces; hosts are disconnected.
    Remove(For<SubsystemName>),
    /// Show subsystems with their namespaces.
    #[command(visible_alias = "list")]
    Show(For<SubsystemPerhaps>),
}

/// `subsystem add`.
#[derive(Args, Clone, Debug)]
pub struct SubsystemAdd {
    /// NQN of the subsystem.
    #[arg(value_name = "NQN")]
    pub nqn: String,
    /// A host that may connect; once for each.
    #[arg(
        long = "host",
        value_name = "HOSTNQN",
        conflicts_with = "allow_any_host"
    )]
    pub hosts: Vec<String>,
    /// Let every host connect that reaches a listener.
    #[arg(long)]
    pub allow_any_host: bool,
    /// Serial number [default: derived from the NQN].
    #[arg(long, value_name = "TEXT")]
    pub serial: Option<String>,
    /// Model number [default: that of the target].
    #[arg(long, value_name = "TEXT")]
    pub model: Option<String>,
}

/// A subsystem.
#[derive(Args, Clone, Debug)]
pub struct SubsystemName {
    /// NQN of the subsystem.
    #[arg(value_name = "NQN", add = complete::subsystems())]
    pub nqn: String,
}

/// A subsystem, or all.
#[derive(Args, Clone, Debug)]
pub struct SubsystemPerhaps {
    /// NQN of the subsystem [default: all].
    #[arg(value_name = "NQN", add = complete::subsystems())]
    pub nqn: Option<String>,
}

/// `namespace`.
#[derive(Clone, Debug, Subcommand)]
pub enum NamespaceCommand {
    /// Add a namespace; hosts that are connected are told.
    Add(For<NamespaceAdd>),
    /// Take a namespace out; what is on its file or device stays.
    Remove(For<NamespaceName>),
    /// Make the file of a namespace longer; hosts that are connected are told. A device is made
    /// larger where it is made, which is seen by itself.
    Resize(For<NamespaceResize>),
    /// Change a namespace while hosts use it; they are told.
    Set(For<NamespaceSet>),
    /// Show namespaces, of each subsystem or of one.
    #[command(visible_alias = "list")]
    Show(For<SubsystemPerhaps>),
}

/// `namespace add`.
#[derive(Args, Clone, Debug)]
pub struct NamespaceAdd {
    /// NQN of the subsystem.
    #[arg(value_name = "NQN", add = complete::subsystems())]
    pub subsystem: String,
    /// What it is on: a block device, a file, `ram:SIZE` or `null:SIZE`.
    #[arg(value_name = "PATH|ram:SIZE|null:SIZE")]
    pub on: String,
    /// NSID [default: what its medium had, else the lowest that is free].
    #[arg(long, value_name = "NSID")]
    pub nsid: Option<u32>,
    /// Bytes per LBA: 512 or 4096 [default: what the device has; what the file was used with, 4096
    /// at first].
    #[arg(long, value_name = "BYTES")]
    pub lba: Option<u32>,
    /// UUID of the namespace [default: derived].
    #[arg(long, value_name = "UUID")]
    pub uuid: Option<String>,
    /// NGUID of the namespace, 32 hexadecimal digits [default: the UUID].
    #[arg(long, value_name = "NGUID")]
    pub nguid: Option<String>,
    /// Refuse writes.
    #[arg(long)]
    pub read_only: bool,
}

/// A namespace.
#[derive(Args, Clone, Debug)]
pub struct NamespaceName {
    /// NQN of the subsystem.
    #[arg(value_name = "NQN", add = complete::subsystems())]
    pub subsystem: String,
    /// Its NSID.
    #[arg(value_name = "NSID", add = complete::nsids())]
    pub nsid: u32,
}

/// `namespace resize`.
#[derive(Args, Clone, Debug)]
pub struct NamespaceResize {
    /// NQN of the subsystem.
    #[arg(value_name = "NQN", add = complete::subsystems())]
    pub subsystem: String,
    /// Its NSID.
    #[arg(value_name = "NSID", add = complete::nsids())]
    pub nsid: u32,
    /// The size that it is to have, such as 20GiB.
    #[arg(value_name = "SIZE")]
    pub size: String,
}

/// `namespace set`.
#[derive(Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("changed").required(true).multiple(true))]
pub struct NamespaceSet {
    /// NQN of the subsystem.
    #[arg(value_name = "NQN", add = complete::subsystems())]
    pub subsystem: String,
    /// Its NSID.
    #[arg(value_name = "NSID", add = complete::nsids())]
    pub nsid: u32,
    /// Refuse writes, or take them again.
    #[arg(long, value_name = "true|false", group = "changed")]
    pub read_only: Option<bool>,
    /// Its ANA group, 1 to 128.
    #[arg(long, value_name = "GROUP", group = "changed")]
    pub ana_group: Option<u32>,
}

/// `ana`.
#[derive(Clone, Debug, Subcommand)]
pub enum AnaCommand {
    /// Give an ANA group a state; hosts that are connected are told, and take another path where
    /// they have one.
    Set(For<AnaSet>),
    /// Say nothing of an ANA group any more: it is optimized then.
    Remove(For<AnaName>),
    /// Show ANA groups and their states by each listener.
    #[command(visible_alias = "list")]
    Show(For<SubsystemPerhaps>),
}

/// `ana set`.
#[derive(Args, Clone, Debug)]
pub struct AnaSet {
    /// NQN of the subsystem.
    #[arg(value_name = "NQN", add = complete::subsystems())]
    pub subsystem: String,
    /// The group, 1 to 128: the `ana_group` of its namespaces, which is 1 unless it is said.
    #[arg(value_name = "GROUP")]
    pub group: u32,
    /// The state.
    #[arg(value_name = "STATE", value_parser = capstan_config::AnaState::ALL.map(capstan_config::AnaState::as_str))]
    pub state: String,
    /// A listener, as `listener list` shows it, once for each [default: all].
    #[arg(long = "listener", value_name = "ADDRESS:PORT", add = complete::listeners())]
    pub listeners: Vec<String>,
}

/// An ANA group.
#[derive(Args, Clone, Debug)]
pub struct AnaName {
    /// NQN of the subsystem.
    #[arg(value_name = "NQN", add = complete::subsystems())]
    pub subsystem: String,
    /// The group, 1 to 128.
    #[arg(value_name = "GROUP")]
    pub group: u32,
    /// A listener, as `listener list` shows it, once for each [default: all].
    #[arg(long = "listener", value_name = "ADDRESS:PORT", add = complete::listeners())]
    pub listeners: Vec<String>,
}

/// `host`.
#[derive(Clone, Debug, Subcommand)]
pub enum HostCommand {
    /// Let a host connect to a subsystem.
    Allow(For<HostName>),
    /// Let it no more, and disconnect it.
    Deny(For<HostName>),
    /// List hosts that may connect, and those that are connected.
    List(For<SubsystemPerhaps>),
}

/// A host of a subsystem.
#[derive(Args, Clone, Debug)]
pub struct HostName {
    /// NQN of the subsystem.
    #[arg(value_name = "NQN", add = complete::subsystems())]
    pub subsystem: String,
    /// NQN of the host (/etc/nvme/hostnqn there has it).
    #[arg(value_name = "HOSTNQN", required_unless_present = "any", add = complete::hosts())]
    pub host: Option<String>,
    /// Any host: `deny` keeps out all that are not allowed by their names.
    #[arg(long, conflicts_with = "host")]
    pub any: bool,
}

/// A host that is meant.
#[derive(Clone, Debug)]
pub enum HostMeant {
    /// Any.
    Any,
    /// The one of this NQN.
    Named(String),
}

impl HostName {
    /// The subsystem, and the host.
    #[must_use]
    pub fn meant(self) -> (String, HostMeant) {
        let host = self.host.map_or(HostMeant::Any, HostMeant::Named);
        (self.subsystem, host)
    }
}

/// `listener`.
#[derive(Clone, Debug, Subcommand)]
pub enum ListenerCommand {
    /// Listen at another address.
    Add(For<ListenerAdd>),
    /// Listen at an address no more; hosts that came to it are disconnected.
    Remove(For<ListenerName>),
    /// List where the target listens.
    List(For<Nothing>),
}

/// `listener add`.
#[derive(Args, Clone, Debug)]
pub struct ListenerAdd {
    /// Address of this machine; 0.0.0.0 or :: for all.
    #[arg(value_name = "ADDRESS")]
    pub address: String,
    /// Port [default: 4420].
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// RDMA provider: auto, verbs or iwarp [default: auto].
    #[arg(long, value_name = "PROVIDER")]
    pub provider: Option<String>,
    /// What hosts connect by, `rdma`, `tcp` or `rdma,tcp` [default: both].
    #[arg(long, value_name = "TRANSPORT,…", value_delimiter = ',')]
    pub transports: Vec<String>,
}

/// A listener.
#[derive(Args, Clone, Debug)]
pub struct ListenerName {
    /// Its address and port, as `listener list` shows them.
    #[arg(value_name = "ADDRESS:PORT", add = complete::listeners())]
    pub address: String,
}

/// `export`.
#[derive(Clone, Debug, Subcommand)]
pub enum ExportCommand {
    /// Export a directory to NFS clients.
    Add(For<ExportAdd>),
    /// Export it no more.
    Remove(For<ExportName>),
    /// List exported directories.
    List(For<Nothing>),
}

/// `client`.
#[derive(Clone, Debug, Subcommand)]
pub enum ClientCommand {
    /// List NFS clients of version 4: what they call themselves, where they are, when they were
    /// heard of last, and what they have open. Version 3 has no clients, but calls.
    List(For<Nothing>),
}

/// `export add`.
#[derive(Args, Clone, Debug)]
pub struct ExportAdd {
    /// The directory.
    #[arg(value_name = "PATH")]
    pub path: String,
    /// Networks whose machines may mount it.
    #[arg(long, value_name = "NETWORK,…", value_delimiter = ',', required = true)]
    pub clients: Vec<String>,
    /// Its path for clients [default: PATH].
    #[arg(long, value_name = "PATH")]
    pub pseudo: Option<String>,
    /// Let clients write [default: read only].
    #[arg(long)]
    pub read_write: bool,
    /// Whose IDs become nobody's: root, all or none [default: root].
    #[arg(long, value_name = "WORD")]
    pub squash: Option<String>,
    /// UUID of a file system that has none.
    #[arg(long, value_name = "UUID")]
    pub file_system: Option<String>,
}

/// An export.
#[derive(Args, Clone, Debug)]
pub struct ExportName {
    /// Its path for clients.
    #[arg(value_name = "PATH", add = complete::exports())]
    pub pseudo: String,
}

/// `connection`.
#[derive(Clone, Debug, Subcommand)]
pub enum ConnectionCommand {
    /// List associations of hosts.
    List(For<Nothing>),
    /// End associations: those that are all of what is given. Hosts may connect again, and most do;
    /// `host deny` keeps one away.
    Disconnect(For<Which>),
}

/// Associations.
#[derive(Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true))]
pub struct Which {
    /// Of this host.
    #[arg(long, value_name = "HOSTNQN", group = "which", add = complete::hosts())]
    pub host: Option<String>,
    /// With this subsystem.
    #[arg(long, value_name = "NQN", group = "which", add = complete::subsystems())]
    pub subsystem: Option<String>,
    /// With this controller.
    #[arg(long, value_name = "CNTLID", group = "which", add = complete::controllers())]
    pub cntlid: Option<u16>,
}

/// `config`.
#[derive(Clone, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show the configuration that is served: the file, with what was changed at run time.
    Show(For<ConfigShow>),
    /// Show what is served and not in the file (+), and the other way round (-).
    Diff(For<Nothing>),
    /// Write what is served into the file, with its comments and order.
    Save(For<ConfigSave>),
}

/// `config show`.
#[derive(Args, Clone, Debug)]
pub struct ConfigShow {
    /// Every key with its value, those that are left out as well, and the NSID, UUID, NGUID and LBA
    /// size that hosts see. Without are keys whose default no value says: `transports` of a
    /// listener (both as far as its port allows), `direct` of a namespace (where possible),
    /// `file_system` of an export (its own UUID); and `uuid` and `nguid` where a start makes other
    /// ones, as of RAM.
    #[arg(long)]
    pub complete: bool,
}

/// `config save`.
#[derive(Args, Clone, Debug)]
pub struct ConfigSave {
    /// Write over a file that was changed since the target has read it.
    #[arg(long)]
    pub overwrite: bool,
}

/// `log`.
#[derive(Clone, Debug, Subcommand)]
pub enum LogCommand {
    /// Tell the level of the log, or change it.
    Level(For<LogLevel>),
}

/// `log level`.
#[derive(Args, Clone, Debug)]
pub struct LogLevel {
    /// The new level [default: as it is].
    #[arg(value_name = "LEVEL", value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub level: Option<String>,
}

/// `explain`.
#[derive(Args, Clone, Debug)]
pub struct Explain {
    /// NQN of the host [default: all].
    #[arg(value_name = "HOSTNQN", add = complete::hosts())]
    pub host: Option<String>,
}
