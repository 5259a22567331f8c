//! The TOML file as written: every key, all of them optional, nothing checked but types. `read`
//! finds out what is no key.
//!
//! Values carry their place so that a complaint can name the line.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use toml::Spanned;

use crate::{AnaState, LogLevel, ProviderChoice, Size};

type Field<T> = Option<Spanned<T>>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawConfig {
    #[serde(default)]
    pub(crate) target: RawTarget,
    #[serde(default)]
    pub(crate) queues: RawQueues,
    #[serde(default)]
    pub(crate) listener: Vec<Spanned<RawListener>>,
    #[serde(default)]
    pub(crate) subsystem: Vec<Spanned<RawSubsystem>>,
    pub(crate) nfs: Option<Spanned<RawNfs>>,
    #[serde(default)]
    pub(crate) export: Vec<Spanned<RawExport>>,
    #[serde(default)]
    pub(crate) metrics: RawMetrics,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTarget {
    pub(crate) reactors: Field<RawReactors>,
    pub(crate) memory_budget: Field<Size>,
    pub(crate) spin: Field<String>,
    pub(crate) log: Option<LogLevel>,
    pub(crate) hosts_max: Field<u64>,
    pub(crate) shared_receive_queue: Field<bool>,
    pub(crate) serial_prefix: Field<String>,
    pub(crate) model: Field<String>,
    pub(crate) vendor_id: Field<u64>,
    pub(crate) subsystem_vendor_id: Field<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawQueues {
    pub(crate) io_queues_max: Field<u64>,
    pub(crate) depth_max: Field<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawMetrics {
    pub(crate) listen: Field<String>,
    pub(crate) sample: Field<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawListener {
    pub(crate) address: Field<String>,
    pub(crate) port: Field<u64>,
    pub(crate) provider: Field<ProviderChoice>,
    pub(crate) transports: Field<Vec<Spanned<String>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSubsystem {
    pub(crate) nqn: Field<String>,
    pub(crate) serial: Field<String>,
    pub(crate) model: Field<String>,
    pub(crate) allowed_hosts: Field<Vec<Spanned<String>>>,
    pub(crate) allow_any_host: Field<bool>,
    pub(crate) end_older_association: Option<bool>,
    #[serde(default)]
    pub(crate) namespace: Vec<Spanned<RawNamespace>>,
    #[serde(default)]
    pub(crate) ana: Vec<Spanned<RawAna>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawAna {
    pub(crate) group: Field<u64>,
    pub(crate) state: Option<AnaState>,
    pub(crate) listeners: Field<Vec<Spanned<String>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawNamespace {
    pub(crate) nsid: Field<u64>,
    pub(crate) path: Field<String>,
    pub(crate) ram: Field<Size>,
    pub(crate) null: Field<Size>,
    pub(crate) lba: Field<Size>,
    pub(crate) uuid: Field<String>,
    pub(crate) nguid: Field<String>,
    pub(crate) read_only: Option<bool>,
    pub(crate) direct: Field<bool>,
    pub(crate) ana_group: Field<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawNfs {
    pub(crate) addresses: Field<Vec<Spanned<String>>>,
    pub(crate) port: Field<u64>,
    pub(crate) rdma_port: Field<u64>,
    pub(crate) transports: Field<Vec<Spanned<String>>>,
    pub(crate) provider: Field<ProviderChoice>,
    pub(crate) lease_time: Field<String>,
    pub(crate) grace_time: Field<String>,
    pub(crate) threads: Field<u64>,
    pub(crate) memory: Field<Size>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawExport {
    pub(crate) path: Field<String>,
    pub(crate) pseudo: Field<String>,
    pub(crate) access: Option<RawAccess>,
    pub(crate) squash: Option<RawSquash>,
    pub(crate) anonuid: Field<u64>,
    pub(crate) anongid: Field<u64>,
    pub(crate) secure_ports: Option<bool>,
    pub(crate) names: Option<RawNames>,
    pub(crate) crossmnt: Option<bool>,
    pub(crate) direct: Option<bool>,
    pub(crate) mount_point: Option<bool>,
    pub(crate) id: Field<u64>,
    pub(crate) file_system: Field<String>,
    #[serde(default)]
    pub(crate) clients: Vec<Spanned<RawClient>>,
}

/// A text in the list is read as the network alone.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawClient {
    pub(crate) network: Field<String>,
    pub(crate) access: Option<RawAccess>,
    pub(crate) squash: Option<RawSquash>,
    pub(crate) anonuid: Field<u64>,
    pub(crate) anongid: Field<u64>,
    pub(crate) secure_ports: Option<bool>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RawAccess {
    ReadOnly,
    ReadWrite,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RawSquash {
    Root,
    All,
    None,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RawNames {
    Utf8,
    Raw,
}

/// The kinds of tables that a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableKind {
    /// The file itself.
    Root,
    Target,
    Queues,
    Listener,
    Subsystem,
    Namespace,
    Ana,
    Nfs,
    Export,
    /// Of an export, or a text: its network.
    Client,
    Metrics,
}

impl TableKind {
    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Root => "the file",
            Self::Target => "[target]",
            Self::Queues => "[queues]",
            Self::Listener => "[[listener]]",
            Self::Subsystem => "[[subsystem]]",
            Self::Namespace => "[[subsystem.namespace]]",
            Self::Ana => "[[subsystem.ana]]",
            Self::Nfs => "[nfs]",
            Self::Export => "[[export]]",
            Self::Client => "[[export.clients]]",
            Self::Metrics => "[metrics]",
        }
    }

    /// The keys that it may have.
    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Root => keys_of::<RawConfig>(),
            Self::Target => keys_of::<RawTarget>(),
            Self::Queues => keys_of::<RawQueues>(),
            Self::Listener => keys_of::<RawListener>(),
            Self::Subsystem => keys_of::<RawSubsystem>(),
            Self::Namespace => keys_of::<RawNamespace>(),
            Self::Ana => keys_of::<RawAna>(),
            Self::Nfs => keys_of::<RawNfs>(),
            Self::Export => keys_of::<RawExport>(),
            Self::Client => keys_of::<RawClient>(),
            Self::Metrics => keys_of::<RawMetrics>(),
        }
    }

    /// Those of its keys that are tables, and whether each is a list of such.
    pub(crate) fn tables(self) -> &'static [(&'static str, Self, bool)] {
        match self {
            Self::Root => &[
                ("target", Self::Target, false),
                ("queues", Self::Queues, false),
                ("listener", Self::Listener, true),
                ("subsystem", Self::Subsystem, true),
                ("nfs", Self::Nfs, false),
                ("export", Self::Export, true),
                ("metrics", Self::Metrics, false),
            ],
            Self::Subsystem => &[
                ("namespace", Self::Namespace, true),
                ("ana", Self::Ana, true),
            ],
            Self::Export => &[("clients", Self::Client, true)],
            Self::Target
            | Self::Queues
            | Self::Listener
            | Self::Namespace
            | Self::Ana
            | Self::Nfs
            | Self::Client
            | Self::Metrics => &[],
        }
    }
}

/// The fields that serde has derived for `T`.
fn keys_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut keys: &[&str] = &[];
    // It answers every question with an error.
    let _ = T::deserialize(Keys(&mut keys));
    keys
}

struct Keys<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Keys<'_> {
    type Error = de::value::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(de::Error::custom("only asked for its fields"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("not a struct"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// `"auto"`, a number, or a list of cores.
#[derive(Debug)]
pub(crate) enum RawReactors {
    Auto,
    Count(u64),
    Cores(Vec<u64>),
}

impl<'de> Deserialize<'de> for RawReactors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ReactorsVisitor;
        impl<'de> Visitor<'de> for ReactorsVisitor {
            type Value = RawReactors;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\", a number of reactors, or a list of cores such as [0, 2]")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawReactors, E> {
                match text {
                    "auto" => Ok(RawReactors::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<RawReactors, E> {
                u64::try_from(count)
                    .map(RawReactors::Count)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(count), &self))
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<RawReactors, E> {
                Ok(RawReactors::Count(count))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawReactors, A::Error> {
                let mut cores = Vec::new();
                while let Some(core) = seq.next_element()? {
                    cores.push(core);
                }
                Ok(RawReactors::Cores(cores))
            }
        }
        deserializer.deserialize_any(ReactorsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::ops::RangeInclusive;
    use std::path::Path;

    use super::TableKind;
    use crate::{Config, DEFAULT_NFS_PORT, DEFAULT_NFS_RDMA_PORT, DEFAULT_PORT, Size, limits};

    const KINDS: [TableKind; 10] = [
        TableKind::Target,
        TableKind::Queues,
        TableKind::Listener,
        TableKind::Subsystem,
        TableKind::Namespace,
        TableKind::Ana,
        TableKind::Nfs,
        TableKind::Export,
        TableKind::Client,
        TableKind::Metrics,
    ];

    /// The cells of each key of the tables in `docs/configuration.md`, by kind of table and key.
    fn reference() -> BTreeMap<(String, String), Vec<String>> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
        let text = fs::read_to_string(path).unwrap();
        let mut table = String::new();
        let mut rows = BTreeMap::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("## `") {
                table = name.trim_end_matches('`').to_owned();
            } else if let Some(cells) = line.strip_prefix("| `") {
                let cells: Vec<String> = cells.split(" | ").map(str::to_owned).collect();
                let key = cells[0].trim_end_matches('`').to_owned();
                let twice = rows.insert((table.clone(), key), cells);
                assert_eq!(twice, None, "{line}");
            }
        }
        rows
    }

    #[test]
    fn the_reference_has_every_key_and_no_other() {
        let rows = reference();
        let found: Vec<_> = rows.keys().cloned().collect();
        let keys = KINDS.iter().flat_map(|kind| {
            let inner = kind.tables();
            let values = kind
                .keys()
                .iter()
                .filter(|key| inner.iter().all(|(of, ..)| of != *key));
            values.map(|key| (kind.name().to_owned(), (*key).to_owned()))
        });
        let mut keys: Vec<_> = keys.collect();
        keys.sort();
        assert_eq!(found, keys);
        for (key, cells) in rows {
            assert_eq!(cells.len(), 6, "{key:?}: {cells:?}");
            let change = cells[5].trim_end_matches(" |");
            assert!(
                ["reload", "two reloads", "restart"].contains(&change),
                "{key:?}: {change}"
            );
        }
    }

    #[test]
    fn the_reference_has_the_defaults_and_bounds_that_are_checked() {
        let rows = reference();
        let numbers = |range: &RangeInclusive<u64>| format!("{} to {}", range.start(), range.end());
        let sizes = |range: &RangeInclusive<u64>| {
            format!("{} to {}", Size(*range.start()), Size(*range.end()))
        };
        let spin = |time| humantime::format_duration(time).to_string();
        let config = Config::from_toml(
            "[[listener]]\naddress = \"::1\"\n[[subsystem]]\nnqn = \"a\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nram = 4096\n",
        )
        .unwrap();
        let ascii = |most: usize| format!("1 to {most} printable ASCII characters");
        for (table, key, default, range) in [
            (
                "[target]",
                "reactors",
                String::new(),
                numbers(&limits::REACTORS),
            ),
            (
                "[target]",
                "reactors",
                String::new(),
                format!("cores {}", numbers(&limits::CORE)),
            ),
            (
                "[target]",
                "memory_budget",
                Size(limits::DEFAULT_MEMORY_BUDGET_BYTES).to_string(),
                sizes(&limits::MEMORY_BUDGET_BYTES),
            ),
            (
                "[target]",
                "spin",
                spin(limits::DEFAULT_SPIN),
                format!(
                    "{} to {}",
                    spin(*limits::SPIN.start()),
                    spin(*limits::SPIN.end())
                ),
            ),
            (
                "[target]",
                "hosts_max",
                limits::DEFAULT_HOSTS_MAX.to_string(),
                numbers(&limits::HOSTS_MAX),
            ),
            (
                "[target]",
                "serial_prefix",
                format!("`\"{}\"`", limits::DEFAULT_SERIAL_PREFIX),
                ascii(limits::SERIAL_PREFIX_BYTES_MAX),
            ),
            (
                "[target]",
                "model",
                format!("`\"{}\"`", limits::DEFAULT_MODEL),
                ascii(limits::MODEL_BYTES_MAX),
            ),
            (
                "[target]",
                "vendor_id",
                "0".to_owned(),
                numbers(&limits::VENDOR_ID),
            ),
            (
                "[target]",
                "subsystem_vendor_id",
                "0".to_owned(),
                numbers(&limits::VENDOR_ID),
            ),
            (
                "[queues]",
                "io_queues_max",
                limits::DEFAULT_IO_QUEUES_MAX.to_string(),
                numbers(&limits::IO_QUEUES_MAX),
            ),
            (
                "[queues]",
                "depth_max",
                limits::DEFAULT_DEPTH_MAX.to_string(),
                numbers(&limits::DEPTH_MAX),
            ),
            (
                "[nfs]",
                "port",
                DEFAULT_NFS_PORT.to_string(),
                format!("0 to {}", u16::MAX),
            ),
            (
                "[nfs]",
                "rdma_port",
                DEFAULT_NFS_RDMA_PORT.to_string(),
                format!("0 to {}", u16::MAX),
            ),
            (
                "[nfs]",
                "addresses",
                String::new(),
                format!("at most {}", limits::NFS_ADDRESSES_MAX),
            ),
            (
                "[nfs]",
                "lease_time",
                format!("{}s", limits::DEFAULT_LEASE_TIME.as_secs()),
                format!(
                    "{} to {}",
                    spin(*limits::LEASE_TIME.start()),
                    spin(*limits::LEASE_TIME.end())
                ),
            ),
            (
                "[nfs]",
                "threads",
                format!(
                    "two for each core, {} to {}",
                    limits::DEFAULT_NFS_THREADS.start(),
                    limits::DEFAULT_NFS_THREADS.end()
                ),
                numbers(&limits::NFS_THREADS),
            ),
            (
                "[nfs]",
                "memory",
                Size(limits::DEFAULT_NFS_MEMORY_BYTES).to_string(),
                sizes(&limits::NFS_MEMORY_BYTES),
            ),
            (
                "[metrics]",
                "sample",
                limits::DEFAULT_METRICS_SAMPLE.to_string(),
                numbers(&limits::METRICS_SAMPLE),
            ),
            (
                "[[export]]",
                "anonuid",
                String::new(),
                numbers(&limits::ANONYMOUS_ID),
            ),
            (
                "[[export]]",
                "anongid",
                String::new(),
                numbers(&limits::ANONYMOUS_ID),
            ),
            (
                "[[export]]",
                "id",
                String::new(),
                numbers(&limits::EXPORT_ID),
            ),
            (
                "[[listener]]",
                "port",
                DEFAULT_PORT.to_string(),
                format!("0 to {}", u16::MAX),
            ),
            (
                "[[subsystem]]",
                "serial",
                String::new(),
                ascii(limits::SERIAL_BYTES_MAX),
            ),
            (
                "[[subsystem]]",
                "model",
                String::new(),
                ascii(limits::MODEL_BYTES_MAX),
            ),
            (
                "[[subsystem]]",
                "allowed_hosts",
                String::new(),
                format!("up to {} NQNs", limits::ALLOWED_HOSTS_MAX),
            ),
            (
                "[[subsystem.namespace]]",
                "nsid",
                String::new(),
                format!("1 to {}", limits::NAMESPACES_MAX),
            ),
            (
                "[[subsystem.namespace]]",
                "ana_group",
                config.subsystems[0].namespaces[0].ana_group.to_string(),
                numbers(&limits::ANA_GROUP),
            ),
            (
                "[[subsystem.ana]]",
                "group",
                String::new(),
                numbers(&limits::ANA_GROUP),
            ),
            (
                "[target]",
                "shared_receive_queue",
                config.target.shared_receive_queue.to_string(),
                String::new(),
            ),
            (
                "[target]",
                "log",
                format!("`\"{}\"`", config.target.log.as_str()),
                String::new(),
            ),
            (
                "[[subsystem]]",
                "end_older_association",
                config.subsystems[0].end_older_association.to_string(),
                String::new(),
            ),
            (
                "[[subsystem.namespace]]",
                "read_only",
                config.subsystems[0].namespaces[0].read_only.to_string(),
                String::new(),
            ),
        ] {
            let cells = &rows[&(table.to_owned(), key.to_owned())];
            assert!(
                default.is_empty() || cells[2] == default,
                "{key}: {} {default}",
                cells[2]
            );
            assert!(cells[3].contains(&range), "{key}: {} {range}", cells[3]);
        }
    }
}
