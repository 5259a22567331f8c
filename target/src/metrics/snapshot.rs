//! What is counted, as it is about now.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, UNIX_EPOCH};

use capstan_metrics::{HistogramSnapshot, State};
use capstan_nvme_proto::status::{Status, StatusContext};
use capstan_subsystem::{HostCounts, HostPlace};

use super::backend::OPERATIONS;
use super::names::{self, METRICS, Metric};
use super::reactor::{Kind, PoolBytes, Stage};
use super::{Metrics, ReactorMetrics, Steered};
use crate::control_plane::{ControlPlane, reactor_of};

/// I/O queues that are told one by one: as many as there can be hosts with one each.
const QUEUES_TOLD: usize = 4096;

/// A metric with its values.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) metric: &'static Metric,
    pub(crate) samples: Vec<Sample>,
}

/// A value with its labels, in the order of the metric's.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) labels: Vec<String>,
    pub(crate) value: Value,
}

/// A value.
#[derive(Debug)]
pub(crate) enum Value {
    /// How many.
    Count(u64),
    /// How much.
    Number(f64),
    /// Of each length how many.
    Times(HistogramSnapshot),
}

/// Values as they are found.
struct Found(BTreeMap<&'static str, Vec<Sample>>);

impl Found {
    fn put(&mut self, metric: &'static Metric, labels: &[&dyn Display], value: Value) {
        debug_assert_eq!(metric.labels.len(), labels.len(), "{}", metric.name);
        let labels = labels.iter().map(ToString::to_string).collect();
        let samples = self.0.entry(metric.name).or_default();
        samples.push(Sample { labels, value });
    }

    fn count(&mut self, metric: &'static Metric, labels: &[&dyn Display], count: u64) {
        self.put(metric, labels, Value::Count(count));
    }

    /// All metrics, in the order of their list; those without a value too.
    fn families(mut self) -> Vec<Family> {
        let families = METRICS.iter().map(|metric| Family {
            metric,
            samples: self.0.remove(metric.name).unwrap_or_default(),
        });
        families.collect()
    }
}

/// Reads what is counted. It takes the lock of the controllers for as long as it takes to copy what
/// they count, and none that an I/O command takes.
pub(crate) fn snapshot(control: &ControlPlane) -> Vec<Family> {
    let metrics = control.metrics();
    let mut found = Found(BTreeMap::new());
    of_program(metrics, &mut found);
    of_steering(control, &mut found);
    of_hosts(control, &mut found);
    of_queues(control, metrics.reactors().len(), &mut found);
    of_connections(control, &mut found);
    for (number, reactor) in metrics.reactors().iter().enumerate() {
        of_reactor(number, reactor, &mut found);
    }
    of_stages(metrics, &mut found);
    of_backends(metrics, &mut found);
    super::nfs::read(metrics, &mut |metric, labels, count| {
        found.count(metric, labels, count);
    });
    found.families()
}

fn of_program(metrics: &Metrics, found: &mut Found) {
    found.count(&names::BUILD, &[&env!("CARGO_PKG_VERSION")], 1);
    let since = metrics.started.duration_since(UNIX_EPOCH);
    let since = since.map_or(0.0, |since| since.as_secs_f64());
    found.put(&names::START_TIME, &[], Value::Number(since));
    found.count(&names::SCRAPES, &[], metrics.scrapes());
    found.count(&names::COMMAND_SAMPLE, &[], metrics.sample().into());
    if let Some(bytes) = metrics.budget_bytes.get() {
        found.count(&names::MEMORY_BUDGET, &[], *bytes);
    }
}

fn of_steering(control: &ControlPlane, found: &mut Found) {
    let Steered {
        waits,
        unsaved_changes,
        reload_failed,
        is_drained,
    } = control.metrics().steered();
    let trouble = control.trouble().len();
    for (metric, count) in [
        (&names::TROUBLE, trouble),
        (&names::WAITS, waits),
        (&names::UNSAVED_CHANGES, unsaved_changes),
        (&names::RELOAD_FAILED, reload_failed.into()),
        (&names::DRAINED, is_drained.into()),
    ] {
        found.count(metric, &[], u64::try_from(count).unwrap_or(u64::MAX));
    }
}

fn of_hosts(control: &ControlPlane, found: &mut Found) {
    let HostCounts {
        pairs,
        pairs_dropped,
        commands_not_kept,
    } = control.with(|target| target.host_counts());
    found.count(&names::HOST_PAIRS_DROPPED, &[], pairs_dropped);
    found.count(&names::HOST_COMMANDS_NOT_KEPT, &[], commands_not_kept);
    for (place, counters) in &pairs {
        let HostPlace {
            hostnqn,
            subnqn,
            nsid,
        } = place;
        let commands = &counters.commands;
        if *nsid != 0 || commands.other_commands != 0 {
            for (word, count) in [
                ("read", commands.read_commands),
                ("write", commands.write_commands),
                ("other", commands.other_commands),
            ] {
                let labels: [&dyn Display; 4] = [hostnqn, subnqn, nsid, &word];
                found.count(&names::HOST_COMMANDS, &labels, count);
            }
        }
        if *nsid != 0 {
            for (word, bytes) in [
                ("read", commands.read_bytes),
                ("written", commands.written_bytes),
            ] {
                let labels: [&dyn Display; 4] = [hostnqn, subnqn, nsid, &word];
                found.count(&names::HOST_DATA, &labels, bytes);
            }
        }
        for (code, count) in &counters.errors {
            let (code, status) = in_words(*code);
            let labels: [&dyn Display; 5] = [hostnqn, subnqn, nsid, &code, &status];
            found.count(&names::HOST_ERRORS, &labels, *count);
        }
    }
}

/// The numbers of a status, and its name.
fn in_words(code: Option<u16>) -> (String, &'static str) {
    let Some(code) = code else {
        return ("other".to_owned(), "other");
    };
    let status = Status::from_bits(code);
    let name = status.name(StatusContext::Nvm).unwrap_or("unknown");
    (format!("{:X}h/{:02X}h", status.sct().0, status.sc()), name)
}

fn of_queues(control: &ControlPlane, reactors: usize, found: &mut Found) {
    let mut in_flight = vec![0; reactors];
    let mut associations: BTreeMap<String, u64> = BTreeMap::new();
    let mut not_told = 0_u64;
    control.with(|target| {
        for one in target.associations() {
            let subnqn = one.association.subnqn.to_string();
            *associations.entry(subnqn).or_default() += 1;
        }
        for (number, queue) in target.io_queue_reports().enumerate() {
            let reactor = reactor_of(queue.conn);
            if let Some(sum) = in_flight.get_mut(reactor) {
                *sum += queue.outstanding;
            }
            if number >= QUEUES_TOLD {
                not_told += 1;
                continue;
            }
            let of = queue.association;
            let labels: [&dyn Display; 6] = [
                &of.hostnqn,
                &of.subnqn,
                &of.cntlid,
                &queue.qid,
                &queue.transport,
                &reactor,
            ];
            found.count(&names::QUEUE_ENTRIES, &labels, queue.entries.into());
            found.count(&names::QUEUE_COMMANDS_IN_FLIGHT, &labels, queue.outstanding);
        }
    });
    found.count(&names::QUEUES_NOT_TOLD, &[], not_told);
    for (subnqn, count) in associations {
        found.count(&names::ASSOCIATIONS, &[&subnqn], count);
    }
    for (reactor, commands) in in_flight.into_iter().enumerate() {
        found.count(&names::REACTOR_COMMANDS_IN_FLIGHT, &[&reactor], commands);
    }
}

fn of_connections(control: &ControlPlane, found: &mut Found) {
    let (refused, ended) = control.with(|target| (target.refused_counts(), target.ended_counts()));
    for (reason, count) in refused {
        found.count(&names::CONNECTS_REFUSED, &[&reason], count);
    }
    for (reason, count) in ended {
        found.count(&names::ASSOCIATIONS_ENDED, &[&reason], count);
    }
    let (mut refused, mut ended) = (BTreeMap::new(), BTreeMap::new());
    for reactor in control.metrics().reactors() {
        for (word, count) in reactor.refused.iter() {
            *refused.entry(word).or_insert(0) += count;
        }
        for (word, count) in reactor.ended.iter() {
            *ended.entry(word).or_insert(0) += count;
        }
    }
    for (reason, count) in refused {
        found.count(&names::CONNECTIONS_REFUSED, &[&reason], count);
    }
    for (reason, count) in ended {
        found.count(&names::CONNECTIONS_ENDED, &[&reason], count);
    }
}

fn of_reactor(number: usize, reactor: &ReactorMetrics, found: &mut Found) {
    let spent = &reactor.spent;
    for state in State::ALL {
        let time = Duration::from_micros(spent.us(state)).as_secs_f64();
        let labels: [&dyn Display; 2] = [&number, &state.word()];
        found.put(&names::REACTOR_TIME, &labels, Value::Number(time));
    }
    for (metric, value) in [
        (&names::REACTOR_TURNS, spent.turns()),
        (&names::REACTOR_SLEEPS, spent.sleeps()),
        (&names::REACTOR_CONNECTIONS, reactor.connections.value()),
        (&names::REACTOR_SHORTAGES, reactor.shortages.value()),
    ] {
        found.count(metric, &[&number], value);
    }
    for (pool, PoolBytes { all, free }) in [("data", &reactor.data), ("queues", &reactor.queues)] {
        let labels: [&dyn Display; 2] = [&number, &pool];
        found.count(&names::MEMORY_POOL, &labels, all.value());
        found.count(&names::MEMORY_FREE, &labels, free.value());
    }
}

fn of_stages(metrics: &Metrics, found: &mut Found) {
    for kind in Kind::ALL {
        for stage in Stage::ALL {
            let mut sum = HistogramSnapshot::default();
            for reactor in metrics.reactors() {
                sum.add(&reactor.stage(kind, stage));
            }
            let labels: [&dyn Display; 2] = [&kind.word(), &stage.word()];
            found.put(&names::COMMAND_STAGE, &labels, Value::Times(sum));
        }
    }
}

fn of_backends(metrics: &Metrics, found: &mut Found) {
    let backends: Vec<_> = metrics.backends().values().cloned().collect();
    for backend in backends {
        let (name, subnqn, nsid) = (&backend.name, &backend.subnqn, &backend.nsid);
        let counted = backend.counted();
        for (word, count) in OPERATIONS.into_iter().zip(counted.operations) {
            let labels: [&dyn Display; 4] = [name, subnqn, nsid, &word];
            found.count(&names::BACKEND_OPERATIONS, &labels, count);
        }
        for (word, bytes) in [
            ("read", counted.read_bytes),
            ("written", counted.written_bytes),
        ] {
            let labels: [&dyn Display; 4] = [name, subnqn, nsid, &word];
            found.count(&names::BACKEND_DATA, &labels, bytes);
        }
        let labels: [&dyn Display; 3] = [name, subnqn, nsid];
        found.count(&names::BACKEND_ERRORS, &labels, counted.errors);
    }
}
