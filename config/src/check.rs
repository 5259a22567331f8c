//! From the file as written to the configuration: defaults, bounds, contradictions.

mod ana;
mod metrics;
mod nfs;
mod subsystem;

pub(crate) use subsystem::subsystem_nqn;

use ana::Listeners;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::hash::Hash;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use uuid::Uuid;

use crate::files::Texts;
use crate::listen::parse_address;
use crate::read::Read;
use crate::schema::{RawListener, RawQueues, RawReactors, RawTarget};
use crate::{
    At, Config, ConfigError, DEFAULT_PORT, ListenError, Listener, LogLevel, MemoryPlan, Nqn,
    Problem, ProblemKind, Problems, ProviderChoice, QueueBounds, Reactors, Size, Target,
    Transports, limits,
};

const NOTHING_SERVED: &str = "a [[subsystem]] with an nqn and a [[subsystem.namespace]]; or, for NFS clients, an [[export]] \
                              with path and clients, and `addresses` below [nfs]";

/// Checks what was read of `texts`.
pub(crate) fn check(read: Read, texts: &Texts) -> Result<Config, ConfigError> {
    let (raw, not_read) = match read {
        Read {
            raw: Some(raw),
            problems,
        } => (raw, problems),
        Read {
            raw: None,
            problems,
        } => return Err(Problems::in_order(problems).into()),
    };
    let mut checker = Checker {
        texts,
        problems: Vec::new(),
        used: Used::default(),
    };
    let target = checker.target(&raw.target);
    let queues = checker.queues(&raw.queues);
    // `auto` counts as one reactor here; the machine check knows better.
    if let Err(arithmetic) = MemoryPlan::new(
        target.memory_budget_bytes,
        target.reactors.count(1),
        &queues,
        // What is too small does not depend on it.
        false,
    ) {
        let span = raw.target.memory_budget.as_ref().map(Spanned::span);
        checker.report(
            "target.memory_budget",
            span,
            ProblemKind::Budget(arithmetic),
        );
    }
    let has_nfs = !raw.export.is_empty() || raw.nfs.is_some();
    let only_nfs = has_nfs && raw.listener.is_empty() && raw.subsystem.is_empty();
    let (listeners, subsystems) = match only_nfs {
        true => (Vec::new(), Vec::new()),
        false => {
            let listeners = checker.listeners(&raw.listener);
            checker.shared_receives(&raw.target, &listeners, raw.listener.len());
            if raw.subsystem.is_empty() && !has_nfs {
                checker.report("subsystem", None, ProblemKind::Missing(NOTHING_SERVED));
            }
            let written = Listeners {
                all: &listeners,
                written: raw.listener.len(),
            };
            let subsystems = checker.subsystems(&raw.subsystem, &raw.target, &written);
            (listeners, subsystems)
        }
    };
    let nfs = checker.nfs(&raw, &listeners);
    let metrics = checker.metrics(&raw.metrics, &listeners);
    let mut problems = checker.problems;
    problems.retain(|problem| !not_read.iter().any(|cause| follows(problem, cause)));
    // A key before its value.
    problems.splice(..0, not_read);
    if !problems.is_empty() {
        return Err(Problems::in_order(problems).into());
    }
    Ok(Config {
        target,
        queues,
        listeners,
        subsystems,
        nfs,
        metrics,
    })
}

/// Whether `problem` is only there because of a value that was not read.
fn follows(problem: &Problem, cause: &Problem) -> bool {
    let (field, missing) = (&*problem.at.field, &*cause.at.field);
    let (table, key) = missing.rsplit_once('.').unwrap_or(("", missing));
    match (&cause.kind, &problem.kind) {
        // What it may have been meant to be was read.
        (ProblemKind::UnknownKey { .. }, _) => false,
        (_, ProblemKind::OneBacking { .. }) => field == table,
        (_, ProblemKind::PartialLba { .. }) if key == "lba" => {
            field.rsplit_once('.').is_some_and(|(of, _)| of == table)
        }
        _ => field
            .strip_prefix(missing)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
    }
}

/// What must be unique in the whole file, with its first use.
#[derive(Default)]
struct Used {
    nqns: HashMap<Nqn, At>,
    serials: HashMap<String, At>,
    uuids: HashMap<Uuid, At>,
    nguids: HashMap<[u8; 16], At>,
    paths: HashMap<PathBuf, At>,
    client_paths: HashMap<String, At>,
    export_ids: HashMap<u32, At>,
}

struct Checker<'t> {
    texts: &'t Texts,
    problems: Vec<Problem>,
    used: Used,
}

impl Checker<'_> {
    fn at(&self, field: impl Into<String>, span: Option<Range<usize>>) -> At {
        self.texts.at(field, span)
    }

    fn report(
        &mut self,
        field: impl Into<String>,
        span: Option<Range<usize>>,
        kind: impl Into<ProblemKind>,
    ) {
        let at = self.at(field, span);
        self.problems.push(Problem {
            at,
            kind: kind.into(),
        });
    }

    fn not_allowed(
        &mut self,
        field: impl Into<String>,
        span: Range<usize>,
        value: impl Display,
        allowed: impl Display,
    ) {
        let kind = ProblemKind::NotAllowed {
            value: value.to_string(),
            allowed: allowed.to_string(),
        };
        self.report(field, Some(span), kind);
    }

    /// The number, or `default` when it is not written or out of `range`.
    fn number<N: TryFrom<u64>>(
        &mut self,
        name: &str,
        field: Option<&Spanned<u64>>,
        default: N,
        range: RangeInclusive<u64>,
    ) -> N {
        let Some(field) = field else { return default };
        let number = *field.get_ref();
        match N::try_from(number) {
            Ok(checked) if range.contains(&number) => checked,
            _ => {
                let allowed = format!("{} to {}", range.start(), range.end());
                self.not_allowed(name, field.span(), number, allowed);
                default
            }
        }
    }

    /// The size in bytes, or `default` when it is not written or not allowed.
    fn size<N: TryFrom<u64>>(
        &mut self,
        name: &str,
        field: Option<&Spanned<Size>>,
        default: N,
        range: RangeInclusive<u64>,
    ) -> N {
        let Some(field) = field else { return default };
        let Size(bytes) = *field.get_ref();
        match N::try_from(bytes) {
            Ok(checked) if range.contains(&bytes) => checked,
            _ => {
                let allowed = format!("{} to {}", Size(*range.start()), Size(*range.end()));
                self.not_allowed(name, field.span(), Size(bytes), allowed);
                default
            }
        }
    }

    /// Text for a fixed-width ASCII field of Identify Controller.
    fn ascii(&mut self, name: &str, field: &Spanned<String>, bytes_max: usize) -> Option<String> {
        let text = field.get_ref();
        let printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if printable && !text.is_empty() && text.trim() == text && text.len() <= bytes_max {
            return Some(text.clone());
        }
        let allowed =
            format!("1 to {bytes_max} printable ASCII characters, no space at either end");
        self.not_allowed(name, field.span(), format!("{text:?}"), allowed);
        None
    }

    fn target(&mut self, raw: &RawTarget) -> Target {
        let serial_prefix = raw.serial_prefix.as_ref().and_then(|prefix| {
            self.ascii(
                "target.serial_prefix",
                prefix,
                limits::SERIAL_PREFIX_BYTES_MAX,
            )
        });
        let model = (raw.model.as_ref())
            .and_then(|model| self.ascii("target.model", model, limits::MODEL_BYTES_MAX));
        Target {
            reactors: self.reactors(raw.reactors.as_ref()),
            memory_budget_bytes: self.size(
                "target.memory_budget",
                raw.memory_budget.as_ref(),
                limits::DEFAULT_MEMORY_BUDGET_BYTES,
                limits::MEMORY_BUDGET_BYTES,
            ),
            spin: self.spin(raw.spin.as_ref()),
            log: raw.log.unwrap_or(LogLevel::Info),
            hosts_max: self.number(
                "target.hosts_max",
                raw.hosts_max.as_ref(),
                limits::DEFAULT_HOSTS_MAX,
                limits::HOSTS_MAX,
            ),
            shared_receive_queue: (raw.shared_receive_queue.as_ref())
                .is_some_and(|shared| *shared.get_ref()),
            serial_prefix: serial_prefix
                .unwrap_or_else(|| limits::DEFAULT_SERIAL_PREFIX.to_owned()),
            model: model.unwrap_or_else(|| limits::DEFAULT_MODEL.to_owned()),
            vendor_id: self.number(
                "target.vendor_id",
                raw.vendor_id.as_ref(),
                0,
                limits::VENDOR_ID,
            ),
            subsystem_vendor_id: self.number(
                "target.subsystem_vendor_id",
                raw.subsystem_vendor_id.as_ref(),
                0,
                limits::VENDOR_ID,
            ),
        }
    }

    fn reactors(&mut self, field: Option<&Spanned<RawReactors>>) -> Reactors {
        let Some(field) = field else {
            return Reactors::Auto;
        };
        let name = "target.reactors";
        match field.get_ref() {
            RawReactors::Auto => Reactors::Auto,
            RawReactors::Count(count) => {
                let spanned = Spanned::new(field.span(), *count);
                Reactors::Count(self.number(name, Some(&spanned), 1, limits::REACTORS))
            }
            RawReactors::Cores(cores) => {
                let mut seen = HashSet::new();
                if cores.is_empty() || cores.len() as u64 > *limits::REACTORS.end() {
                    let allowed = format!("\"auto\", or 1 to {} cores", limits::REACTORS.end());
                    let value = match cores.len() {
                        0 => "[]".to_owned(),
                        count => format!("a list of {count}"),
                    };
                    self.not_allowed(name, field.span(), value, allowed);
                    return Reactors::Auto;
                }
                let mut checked = Vec::with_capacity(cores.len());
                for core in cores {
                    match usize::try_from(*core) {
                        Ok(core) if limits::CORE.contains(&(core as u64)) && seen.insert(core) => {
                            checked.push(core);
                        }
                        _ => {
                            let allowed = format!("each core once, 0 to {}", limits::CORE.end());
                            self.not_allowed(name, field.span(), format!("core {core}"), allowed);
                        }
                    }
                }
                Reactors::Cores(checked)
            }
        }
    }

    fn spin(&mut self, field: Option<&Spanned<String>>) -> Duration {
        self.time(
            "target.spin",
            field,
            (limits::DEFAULT_SPIN, "50us"),
            limits::SPIN,
        )
    }

    /// The time, or `default` when it is not written or out of `range`.
    fn time(
        &mut self,
        name: &str,
        field: Option<&Spanned<String>>,
        (default, example): (Duration, &str),
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let Some(field) = field else { return default };
        match humantime::parse_duration(field.get_ref()) {
            Ok(time) if range.contains(&time) => time,
            _ => {
                let shown = humantime::format_duration;
                let allowed = format!(
                    "{} to {} with a unit, such as \"{example}\"",
                    shown(*range.start()),
                    shown(*range.end()),
                );
                self.not_allowed(
                    name,
                    field.span(),
                    format!("{:?}", field.get_ref()),
                    allowed,
                );
                default
            }
        }
    }

    fn queues(&mut self, raw: &RawQueues) -> QueueBounds {
        QueueBounds {
            io_queues_max: self.number(
                "queues.io_queues_max",
                raw.io_queues_max.as_ref(),
                limits::DEFAULT_IO_QUEUES_MAX,
                limits::IO_QUEUES_MAX,
            ),
            depth_max: self.number(
                "queues.depth_max",
                raw.depth_max.as_ref(),
                limits::DEFAULT_DEPTH_MAX,
                limits::DEPTH_MAX,
            ),
        }
    }

    fn listeners(&mut self, raw: &[Spanned<RawListener>]) -> Vec<Listener> {
        if raw.is_empty() {
            let kind = ProblemKind::Missing("a [[listener]] with `address = \"127.0.0.1\"`");
            self.report("listener", None, kind);
        }
        self.count("listener", raw.len(), limits::LISTENERS_MAX);
        let mut accepted: Vec<(Listener, At)> = Vec::new();
        for (index, entry) in raw.iter().enumerate().take(limits::LISTENERS_MAX) {
            let field = format!("listener[{index}]");
            // A port that is not allowed is not used either.
            let has_port = |raw: &RawListener| {
                raw.port
                    .as_ref()
                    .is_none_or(|port| *port.get_ref() <= u16::MAX.into())
            };
            let listener = self.listener(&field, entry);
            let Some(listener) = listener.filter(|_| has_port(entry.get_ref())) else {
                continue;
            };
            let at = self.at(&field, Some(entry.span()));
            let clash = accepted
                .iter()
                .find(|(other, _)| other.meets(listener.address));
            if let Some((other, first)) = clash {
                let value = listener.address.to_string();
                let first = first.clone();
                let kind = if other.address == listener.address {
                    ProblemKind::Duplicate { value, first }
                } else {
                    ProblemKind::Overlap {
                        value,
                        other: other.address.to_string(),
                        first,
                    }
                };
                self.problems.push(Problem {
                    at: at.clone(),
                    kind,
                });
            }
            accepted.push((listener, at));
        }
        accepted.into_iter().map(|(listener, _)| listener).collect()
    }

    fn listener(&mut self, field: &str, entry: &Spanned<RawListener>) -> Option<Listener> {
        let raw = entry.get_ref();
        let port = self.number(
            &format!("{field}.port"),
            raw.port.as_ref(),
            DEFAULT_PORT,
            0..=u16::MAX.into(),
        );
        let transports = self.transports(&format!("{field}.transports"), raw.transports.as_ref());
        let provider = (raw.provider.as_ref()).map(|of| (of.span(), *of.get_ref()));
        if let Some((span, ProviderChoice::Verbs | ProviderChoice::Iwarp)) = &provider
            && !transports.rdma
            && transports.tcp
        {
            let kind = ProblemKind::NoEffect("on a listener without NVMe/RDMA");
            self.report(format!("{field}.provider"), Some(span.clone()), kind);
        }
        let field = format!("{field}.address");
        let Some(text) = &raw.address else {
            self.report(
                field,
                Some(entry.span()),
                ProblemKind::Missing("`address = \"…\"`, an IPv4 or IPv6 address, 0.0.0.0 or ::"),
            );
            return None;
        };
        match parse_address(text.get_ref()) {
            Ok(ip) => Some(Listener {
                address: SocketAddr::new(ip, port),
                provider: provider.map_or(ProviderChoice::Auto, |(_, provider)| provider),
                transports,
            }),
            Err(ListenError::NotAnAddress(value)) if value.parse::<SocketAddr>().is_ok() => {
                let allowed = "an address alone; the port goes to `port = …`";
                self.not_allowed(field, text.span(), format!("\"{value}\""), allowed);
                None
            }
            Err(error) => {
                self.report(field, Some(text.span()), error);
                None
            }
        }
    }

    /// Receives are of queues over NVMe/RDMA.
    fn shared_receives(
        &mut self,
        raw: &RawTarget,
        listeners: &[Listener],
        listeners_written: usize,
    ) {
        let has_none = |listener: &Listener| listener.transports.tcp && !listener.transports.rdma;
        if let Some(shared) = &raw.shared_receive_queue
            && *shared.get_ref()
            && listeners.len() == listeners_written
            && listeners_written > 0
            && listeners.iter().all(has_none)
        {
            let kind = ProblemKind::NoEffect("where no listener has NVMe/RDMA");
            self.report("target.shared_receive_queue", Some(shared.span()), kind);
        }
    }

    fn transports(
        &mut self,
        field: &str,
        raw: Option<&Spanned<Vec<Spanned<String>>>>,
    ) -> Transports {
        const ALLOWED: &str = "\"rdma\", \"tcp\" or both";
        const ONCE: &str = "each once";
        let Some(raw) = raw else {
            return Transports::default();
        };
        let mut transports = Transports {
            rdma: false,
            tcp: false,
            by_default: false,
        };
        for word in raw.get_ref() {
            let word_again = match word.get_ref().as_str() {
                "rdma" => transports.rdma,
                "tcp" => transports.tcp,
                _ => false,
            };
            if word_again {
                let again = format!("\"{}\" again", word.get_ref());
                self.not_allowed(field, word.span(), again, ONCE);
            }
            match word.get_ref().as_str() {
                "rdma" => transports.rdma = true,
                "tcp" => transports.tcp = true,
                other => self.not_allowed(field, word.span(), format!("\"{other}\""), ALLOWED),
            }
        }
        if raw.get_ref().is_empty() {
            self.not_allowed(field, raw.span(), "[]".to_owned(), ALLOWED);
        }
        transports
    }

    fn count(&mut self, field: &str, count: usize, most: usize) {
        if count > most {
            self.report(field, None, ProblemKind::TooMany { count, most });
        }
    }
}

/// Reports `key`, shown as `shown`, when it was used before.
fn unique<K: Eq + Hash>(
    used: &mut HashMap<K, At>,
    key: K,
    shown: impl Display,
    at: At,
    problems: &mut Vec<Problem>,
) {
    match used.entry(key) {
        Entry::Vacant(free) => {
            free.insert(at);
        }
        Entry::Occupied(taken) => {
            let kind = ProblemKind::Duplicate {
                value: shown.to_string(),
                first: taken.get().clone(),
            };
            problems.push(Problem { at, kind });
        }
    }
}
