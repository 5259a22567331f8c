//! What can be asked of a target.

use serde::{Deserialize, Serialize};

/// A request: its method, and the parameters of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "method", content = "params", deny_unknown_fields)]
pub enum Request {
    /// Which version of the protocol is spoken, and by what: [`answer::Version`].
    ///
    /// [`answer::Version`]: crate::answer::Version
    #[serde(rename = "version")]
    Version {},
    /// What is served, and what is not as it should be: [`answer::Status`].
    ///
    /// [`answer::Status`]: crate::answer::Status
    #[serde(rename = "status")]
    Status {},
    /// What is counted, as `docs/metrics.md` lists it: a list of [`answer::Metric`].
    ///
    /// [`answer::Metric`]: crate::answer::Metric
    #[serde(rename = "metrics")]
    Metrics {},
    /// Read the configuration again and carry out what has changed: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "reload")]
    Reload {
        /// Whether changes that were made at run time and are not in the file may go.
        #[serde(default)]
        discard: bool,
    },
    /// End the target, as SIGTERM does: [`answer::Ending`].
    ///
    /// [`answer::Ending`]: crate::answer::Ending
    #[serde(rename = "stop")]
    Stop {
        /// Whether changes that were made at run time and are not in the file may go.
        #[serde(default)]
        discard: bool,
    },
    /// Take no connections and end those that are there when their commands have ended, or take
    /// connections again: [`answer::Drained`].
    ///
    /// [`answer::Drained`]: crate::answer::Drained
    #[serde(rename = "drain")]
    Drain(Drain),
    /// Tell, or change until the end, what is logged: [`answer::LogLevel`].
    ///
    /// [`answer::LogLevel`]: crate::answer::LogLevel
    #[serde(rename = "log.level")]
    LogLevel(Levels),
    /// The configuration that is served: [`answer::ConfigText`].
    ///
    /// [`answer::ConfigText`]: crate::answer::ConfigText
    #[serde(rename = "config.show")]
    ConfigShow {
        /// In which form.
        #[serde(default)]
        form: ConfigForm,
    },
    /// What is served and not in the file, and the other way round: [`answer::ConfigDiff`].
    ///
    /// [`answer::ConfigDiff`]: crate::answer::ConfigDiff
    #[serde(rename = "config.diff")]
    ConfigDiff {},
    /// Look at the file: where it says what is served, no change is unsaved any more:
    /// [`answer::Saved`].
    ///
    /// [`answer::Saved`]: crate::answer::Saved
    #[serde(rename = "config.saved")]
    ConfigSaved {},
    /// Add a subsystem: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "subsystem.add")]
    SubsystemAdd(AddSubsystem),
    /// Take a subsystem out, and disconnect its hosts: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "subsystem.remove")]
    SubsystemRemove {
        /// Its NQN.
        nqn: String,
    },
    /// Subsystems with their namespaces and hosts, or one: a list of [`answer::Subsystem`].
    ///
    /// [`answer::Subsystem`]: crate::answer::Subsystem
    #[serde(rename = "subsystem.show")]
    SubsystemShow {
        /// Its NQN; all without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nqn: Option<String>,
    },
    /// Add a namespace: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "namespace.add")]
    NamespaceAdd(AddNamespace),
    /// Take a namespace out: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "namespace.remove")]
    NamespaceRemove(NamespacePlace),
    /// Make a namespace larger: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "namespace.resize")]
    NamespaceResize(ResizeNamespace),
    /// Change a namespace while hosts use it: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "namespace.set")]
    NamespaceSet(SetNamespace),
    /// Give an ANA group a state: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "ana.set")]
    AnaSet(SetAna),
    /// Say nothing of an ANA group any more, which is optimized then: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "ana.remove")]
    AnaRemove(AnaPlace),
    /// ANA groups with their states: a list of [`answer::AnaGroup`].
    ///
    /// [`answer::AnaGroup`]: crate::answer::AnaGroup
    #[serde(rename = "ana.show")]
    AnaShow {
        /// The subsystem's NQN; all without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subsystem: Option<String>,
    },
    /// Let a host connect to a subsystem: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "host.allow")]
    HostAllow {
        /// The subsystem's NQN.
        subsystem: String,
        /// The host's NQN.
        host: String,
    },
    /// Let any host connect to a subsystem, or those alone that are listed: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "host.any")]
    HostAny {
        /// The subsystem's NQN.
        subsystem: String,
        /// Whether any host may. Else none may until one is allowed.
        allowed: bool,
    },
    /// Let it no more, and disconnect it: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "host.deny")]
    HostDeny {
        /// The subsystem's NQN.
        subsystem: String,
        /// The host's NQN.
        host: String,
    },
    /// Hosts that may connect, and those that are connected: a list of [`answer::Host`].
    ///
    /// [`answer::Host`]: crate::answer::Host
    #[serde(rename = "host.list")]
    HostList {
        /// The subsystem's NQN; all without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subsystem: Option<String>,
    },
    /// Listen at another address: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "listener.add")]
    ListenerAdd(AddListener),
    /// Listen at an address no more: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "listener.remove")]
    ListenerRemove {
        /// ADDRESS:PORT as it is listed.
        address: String,
    },
    /// Where the target listens: a list of [`answer::Listener`].
    ///
    /// [`answer::Listener`]: crate::answer::Listener
    #[serde(rename = "listener.list")]
    ListenerList {},
    /// Export a directory to NFS clients: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "export.add")]
    ExportAdd(AddExport),
    /// Export it no more: [`answer::Changed`].
    ///
    /// [`answer::Changed`]: crate::answer::Changed
    #[serde(rename = "export.remove")]
    ExportRemove {
        /// Its path for clients.
        pseudo: String,
    },
    /// Exported directories: a list of [`answer::Export`].
    ///
    /// [`answer::Export`]: crate::answer::Export
    #[serde(rename = "export.list")]
    ExportList {},
    /// NFS clients of version 4: a list of [`answer::NfsClient`].
    ///
    /// [`answer::NfsClient`]: crate::answer::NfsClient
    #[serde(rename = "client.list")]
    ClientList {},
    /// Associations of hosts: a list of [`answer::Connection`].
    ///
    /// [`answer::Connection`]: crate::answer::Connection
    #[serde(rename = "connection.list")]
    ConnectionList {},
    /// End associations: [`answer::Disconnected`].
    ///
    /// [`answer::Disconnected`]: crate::answer::Disconnected
    #[serde(rename = "connection.disconnect")]
    ConnectionDisconnect(DisconnectWhich),
    /// The last connects that were refused: a list of [`answer::Refused`].
    ///
    /// [`answer::Refused`]: crate::answer::Refused
    #[serde(rename = "explain")]
    Explain {
        /// Of this host; of all without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
    },
}

/// Whether connections are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Seconds until those that are left are ended; 5 without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_s: Option<u64>,
    /// Whether connections are taken again instead.
    #[serde(default)]
    pub off: bool,
}

/// How severe a line has to be to be logged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Levels {
    /// `error`, `warn`, `info`, `debug` or `trace`; as it is without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
}

/// A form of the configuration that is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConfigForm {
    /// The text of the file with what was changed at run time, as `config save` writes it.
    #[default]
    Written,
    /// Every key with its value, those that are left out as well.
    Complete,
}

/// A subsystem that is to come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddSubsystem {
    /// SUBNQN.
    pub nqn: String,
    /// Serial number; derived from the NQN without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Model number; that of the target without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Hosts that may connect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<String>,
    /// Whether every host may connect.
    #[serde(default)]
    pub allow_any_host: bool,
}

/// A namespace that is to come: exactly one of `path`, `ram` and `null`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddNamespace {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// NSID; what its medium had before, or the lowest that is free, without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
    /// File or block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Size of a namespace in memory, such as `1GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram: Option<String>,
    /// Size of a namespace that reads zeroes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub null: Option<String>,
    /// Bytes of an LBA, 512 or 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lba: Option<u32>,
    /// Namespace UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// NGUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nguid: Option<String>,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Whether the page cache is bypassed; where possible without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<bool>,
}

/// A namespace by its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespacePlace {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// NSID.
    pub nsid: u32,
}

/// A namespace and what it is to be: all that each field says, where it is there. At least one is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetNamespace {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// NSID.
    pub nsid: u32,
    /// Whether writes are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// ANA Group Identifier, 1 to 128.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ana_group: Option<u32>,
}

/// A namespace and the size that it is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeNamespace {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// NSID.
    pub nsid: u32,
    /// The size, such as `2GiB`.
    pub size: String,
}

/// An ANA group, and the state that it is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetAna {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// ANA Group Identifier.
    pub group: u32,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss` or `change`.
    pub state: String,
    /// By these listeners, ADDRESS:PORT as they are listed; by all without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<String>,
}

/// An ANA group, as hosts have it by some listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnaPlace {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// ANA Group Identifier.
    pub group: u32,
    /// By these listeners, ADDRESS:PORT as they are listed; by all without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<String>,
}

/// A listener that is to come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddListener {
    /// Address without port.
    pub address: String,
    /// Port; 4420 without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// RDMA provider: `auto`, `verbs` or `iwarp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// `rdma`, `tcp`; both without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transports: Vec<String>,
}

/// A directory that is to be exported to NFS clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddExport {
    /// The directory.
    pub path: String,
    /// Its path for clients; `path` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pseudo: Option<String>,
    /// `read-only` or `read-write`; read-only without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// `root`, `all` or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub squash: Option<String>,
    /// UUID of a file system that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_system: Option<String>,
    /// Networks of clients; at least one.
    #[serde(default)]
    pub clients: Vec<String>,
}

/// Which associations are to end: all that are what each field says, where it is there. At least
/// one is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisconnectWhich {
    /// Those of this host NQN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Those with this subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// The one with this controller, as `connection list` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cntlid: Option<u16>,
}
