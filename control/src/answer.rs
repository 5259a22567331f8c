//! What a target answers. Fields may come with later versions of the program: unknown ones are
//! passed over.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Answer to `version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// [`PROTOCOL`](crate::PROTOCOL) of the target.
    pub protocol: u32,
    /// Version of `capstan-target`.
    pub version: String,
}

/// Answer to `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of `capstan-target`.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it began to serve.
    pub up_s: u64,
    /// Where its configuration comes from.
    pub config: ConfigState,
    /// Level of the log.
    pub log: String,
    /// Reactors.
    pub reactors: usize,
    /// Bytes of memory that I/O and queues may have, of all reactors.
    pub memory_bytes: u64,
    /// Where it listens for hosts.
    pub listeners: Vec<Listener>,
    /// What it exports to hosts.
    pub subsystems: Vec<Subsystem>,
    /// What it exports to NFS clients; `None` where NFS is not served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nfs: Option<Nfs>,
    /// Associations of hosts, those of discovery left out.
    pub connections: usize,
    /// Seconds since it takes no connections, where it was drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained_s: Option<u64>,
    /// What is not as it should be, a line each.
    pub trouble: Vec<String>,
}

/// Whether connections are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// Whether none are.
    pub drained: bool,
    /// Associations of hosts that are still there.
    pub connections: usize,
    /// Seconds until they are ended, where none are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_s: Option<u64>,
}

/// What is counted of one thing, in the answer to `metrics`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its name, without what OpenMetrics adds for its kind (`_total` of a counter).
    pub name: String,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: String,
    /// Its values.
    pub samples: Vec<MetricSample>,
}

/// A value of a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricSample {
    /// What it is of.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: MetricValue,
}

/// A number, or how often times of each length came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetricValue {
    /// A number.
    Number(f64),
    /// Times.
    Times(Times),
}

/// How often times of each length came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// From the shortest ones on. What is in one is in none of the others.
    pub buckets: Vec<Bucket>,
    /// The sum of all of them, in seconds.
    pub sum_s: f64,
}

/// How often times of a length came.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// The longest of them, in seconds; `None` of those that are longer than all bounds.
    pub up_to_s: Option<f64>,
    /// How many.
    pub count: u64,
}

/// The configuration of a target, and what was changed since it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigState {
    /// The files that it was read from; none where it was said in options or came from stdin.
    pub files: Vec<String>,
    /// Changes that were made at run time and are in none of these files, in their order.
    pub unsaved: Vec<String>,
    /// Why the last reload failed, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reload_failed: Option<String>,
}

/// Where a target listens for hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// Address and port, as hosts connect to it.
    pub address: String,
    /// RDMA provider.
    pub provider: String,
    /// `rdma`, `tcp`.
    pub transports: Vec<String>,
    /// What it waits for, where it is not listened at yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
}

/// That something is not served yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// Why, in words.
    pub why: String,
    /// Since how many seconds.
    pub since_s: u64,
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subsystem {
    /// SUBNQN.
    pub nqn: String,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Whether every host may connect.
    pub allow_any_host: bool,
    /// Hosts that may, where not every one may.
    pub allowed_hosts: Vec<String>,
    /// Its namespaces, by NSID.
    pub namespaces: Vec<Namespace>,
    /// Associations of hosts with it.
    pub connections: usize,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// NSID.
    pub nsid: u32,
    /// What it is on: a path, `ram:SIZE` or `null:SIZE`.
    pub backing: String,
    /// Bytes.
    pub size_bytes: u64,
    /// Bytes of an LBA.
    pub lba_bytes: u32,
    /// UUID that hosts see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// NGUID that hosts see, 32 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nguid: Option<String>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// ANA group.
    pub ana_group: u32,
    /// What hosts have read and written since it was added.
    pub io: Io,
    /// Reservations of hosts, where there are such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservations: Option<Reservations>,
    /// What it waits for, where it is not served yet: its size is 0 then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
}

/// Reservations of hosts on a namespace. Their keys are theirs, and not told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservations {
    /// Type of the reservation, in words as `nvme resv-report` has them; none where hosts are
    /// registered only.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub rtype: Option<String>,
    /// Hosts that are registered.
    pub registrants: Vec<Registrant>,
    /// Whether they persist through power loss.
    pub persists: bool,
    /// Whether what was kept of them is lost: no host reads or writes then, until one clears it.
    pub unknown: bool,
}

/// A registered host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registrant {
    /// Host Identifier.
    pub host_id: String,
    /// Its NQN, while it is connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether it holds the reservation.
    pub holds: bool,
}

/// An ANA group of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnaGroup {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// ANA Group Identifier.
    pub group: u32,
    /// NSIDs of its namespaces.
    pub namespaces: Vec<u32>,
    /// Its states, one by each listener.
    pub paths: Vec<AnaPath>,
}

/// What hosts may do with the namespaces of an ANA group by a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnaPath {
    /// Address and port of the listener.
    pub listener: String,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss` or `change`.
    pub state: String,
}

/// Counts of I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Io {
    /// Read and Compare commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Commands that ended with a media or data integrity status.
    pub media_errors: u64,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// The host's NQN.
    pub host: String,
    /// Whether it is listed, and not let in as any host is.
    pub is_listed: bool,
    /// Its associations with the subsystem.
    pub connections: usize,
}

/// An association of a host with a subsystem: an Admin queue and its I/O queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The host's NQN.
    pub host: String,
    /// The host's identifier, as a UUID.
    pub host_id: String,
    /// The subsystem's NQN.
    pub subsystem: String,
    /// Controller, unique in the subsystem.
    pub cntlid: u16,
    /// `NVMe/RDMA` or `NVMe/TCP`.
    pub transport: String,
    /// The host's address and port.
    pub from: String,
    /// Where it connected to.
    pub to: String,
    /// I/O queues.
    pub io_queues: usize,
    /// What it has read and written.
    pub io: Io,
}

/// What NFS serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nfs {
    /// Where it listens, over TCP first.
    pub addresses: Vec<String>,
    /// The directories.
    pub exports: Vec<Export>,
}

/// An exported directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// Its path for clients.
    pub pseudo: String,
    /// The directory.
    pub path: String,
    /// The networks of its clients.
    pub clients: Vec<String>,
    /// What it waits for, where it is not served yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
}

/// An NFS client of version 4. Version 3 has no clients, but calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfsClient {
    /// What it calls itself; of Linux, its version and the name of its machine.
    pub client: String,
    /// Its address.
    pub from: String,
    /// Seconds since it was heard of last (its lease was renewed).
    pub seen_s: u64,
    /// Its sessions.
    pub sessions: usize,
    /// Its opens, and lock owners with locks.
    pub states: usize,
}

/// Answer to what changes something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// What was done, in words.
    pub changes: String,
    /// What an operator should look at, in words, that there was not before the change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Changes made at run time that are in no file yet.
    pub unsaved: usize,
    /// Whether there is a file that they can be saved in.
    pub savable: bool,
    /// Of `namespace.add`: the number that hosts know it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
}

/// Answer to `log.level`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLevel {
    /// The level from now on.
    pub level: String,
    /// The one before.
    pub was: String,
}

/// Answer to `config.show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigText {
    /// The files, in the order that they are merged in.
    pub files: Vec<ConfigFile>,
}

/// A file of the configuration, as it would be to say what is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFile {
    /// Its path; none where the configuration came from no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its text.
    pub text: String,
    /// The text that was read from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
}

/// Answer to `config.diff`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigDiff {
    /// Changes made at run time that are in no file, in their order.
    pub unsaved: Vec<String>,
    /// Each file that says something else than what is served, as a unified diff: `-` has what the
    /// file says, `+` what is served.
    pub diff: String,
}

/// Answer to `config.saved`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Changes that were made at run time and are in the files now.
    pub saved: usize,
}

/// Answer to `stop`: the target ends when it has sent it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Changes made at run time that go.
    pub discarded: Vec<String>,
}

/// Answer to `connection.disconnect`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disconnected {
    /// What has ended.
    pub ended: Vec<Connection>,
}

/// A connect that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Seconds ago.
    pub ago_s: u64,
    /// The host's NQN, as far as it had said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The subsystem that it asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// Its address and port.
    pub from: String,
    /// Why.
    pub why: String,
    /// The command or change that lets it in, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}
