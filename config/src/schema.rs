//! The TOML file as written: every key, all of them optional, nothing checked but types.
//!
//! Values carry their place so that a complaint can name the line.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use toml::Spanned;

use crate::{LogLevel, ProviderChoice, Size};

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
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTarget {
    pub(crate) reactors: Field<RawReactors>,
    pub(crate) memory_budget: Field<Size>,
    pub(crate) spin: Field<String>,
    pub(crate) log: Option<LogLevel>,
    pub(crate) hosts_max: Field<u64>,
    pub(crate) shared_receive_queue: Option<bool>,
    pub(crate) serial_prefix: Field<String>,
    pub(crate) model: Field<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawQueues {
    pub(crate) io_queues_max: Field<u64>,
    pub(crate) depth_max: Field<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawListener {
    pub(crate) address: Field<String>,
    pub(crate) port: Field<u64>,
    pub(crate) provider: Option<ProviderChoice>,
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
