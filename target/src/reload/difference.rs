//! What differs between two configurations, and what of that a reload carries out.

use std::collections::BTreeMap;
use std::fmt;

use capstan_config::{Access, Config, LogLevel, Metrics, Namespace, Nqn, Subsystem};

use super::altered::{Altered, States, states};
use super::exports::ExportsChanged;
use super::refused::Refused;

/// What differs between two configurations, and can be carried out while hosts are connected.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) subsystems_removed: Vec<Nqn>,
    pub(super) subsystems_added: Vec<Subsystem>,
    pub(super) hosts_changed: Vec<(Nqn, Access)>,
    /// Also those of removed subsystems.
    pub(super) namespaces_removed: Vec<(Nqn, u32)>,
    /// Also those of added subsystems.
    pub(super) namespaces_added: Vec<(Nqn, Namespace)>,
    pub(super) namespaces_altered: Vec<Altered>,
    /// As they are wanted, with the states of before; not those that are added.
    pub(super) ana_changed: Vec<(Subsystem, States)>,
    pub(super) exports: ExportsChanged,
    /// Listeners that come and go.
    pub(super) listeners: Listeners,
    /// The level of the log from then on.
    pub(super) log: Option<LogLevel>,
    /// How what is counted is told from then on.
    pub(super) metrics: Option<Metrics>,
}

/// Listeners of one configuration that the other one does not have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listeners {
    added: usize,
    removed: usize,
}

impl Listeners {
    fn between(served: &Config, wanted: &Config) -> Self {
        let alone = |of: &Config, other: &Config| {
            let mut left = other.listeners.clone();
            let listeners = of.listeners.iter().filter(|listener| {
                let at = left.iter().position(|other| other == *listener);
                at.map(|at| left.remove(at)).is_none()
            });
            listeners.count()
        };
        Self {
            added: alone(wanted, served),
            removed: alone(served, wanted),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Compares what is served with what is wanted.
pub(super) fn difference(served: &Config, wanted: &Config) -> anyhow::Result<Difference> {
    let mut refused = Refused::default();
    refused.of_target(served, wanted);
    let before = by_nqn(served);
    let after = by_nqn(wanted);
    let mut difference = Difference {
        listeners: Listeners::between(served, wanted),
        log: Some(wanted.target.log).filter(|log| *log != served.target.log),
        metrics: Some(wanted.metrics).filter(|metrics| *metrics != served.metrics),
        ..Difference::default()
    };
    for (&nqn, &subsystem) in &before {
        let Some(&now) = after.get(nqn) else {
            difference.subsystems_removed.push(nqn.clone());
            difference.remove_namespaces(subsystem, |_| true);
            continue;
        };
        refused.of_subsystem(subsystem, now);
        if subsystem.access != now.access {
            let changed = (nqn.clone(), now.access.clone());
            difference.hosts_changed.push(changed);
        }
        let mut states_before = states(subsystem, &served.listeners);
        // No host is told of a path that goes.
        states_before.retain(|(by, _), _| wanted.listeners.iter().any(|of| of.address == *by));
        if states_before != states(now, &wanted.listeners) {
            difference.ana_changed.push((now.clone(), states_before));
        }
        let altered = &mut difference.namespaces_altered;
        let changed = changed_namespaces(subsystem, now, altered, &mut refused);
        difference.remove_namespaces(subsystem, |n| {
            changed.contains(&n.nsid) || find(now, n.nsid).is_none()
        });
        difference.add_namespaces(now, |n| {
            changed.contains(&n.nsid) || find(subsystem, n.nsid).is_none()
        });
    }
    difference.exports = ExportsChanged::between(served, wanted);
    for (&nqn, &subsystem) in &after {
        if !before.contains_key(nqn) {
            difference.subsystems_added.push(subsystem.clone());
            difference.add_namespaces(subsystem, |_| true);
        }
    }
    refused.none()?;
    Ok(difference)
}

fn by_nqn(config: &Config) -> BTreeMap<&Nqn, &Subsystem> {
    let subsystems = config.subsystems.iter();
    subsystems.map(|s| (&s.nqn, s)).collect()
}

pub(super) fn find(subsystem: &Subsystem, nsid: u32) -> Option<&Namespace> {
    subsystem.namespaces.iter().find(|n| n.nsid == nsid)
}

/// NSIDs that both have and that are not the same. A volume is open as long as it is served, so the
/// same one cannot be opened in another way beside it.
fn changed_namespaces(
    before: &Subsystem,
    after: &Subsystem,
    altered: &mut Vec<Altered>,
    refused: &mut Refused,
) -> Vec<u32> {
    let mut changed = Vec::new();
    for namespace in &before.namespaces {
        let nsid = namespace.nsid;
        match find(after, nsid) {
            Some(now) if now != namespace && now.backing == namespace.backing => {
                match Altered::between(&before.nqn, namespace, now) {
                    Some(alike) => altered.push(alike),
                    None => refused.of_namespace(before, namespace, now),
                }
            }
            Some(now) if now != namespace => changed.push(nsid),
            Some(_) | None => {}
        }
    }
    changed
}

impl Difference {
    /// What happens to each namespace, in words.
    pub(super) fn of_namespaces(&self) -> impl Iterator<Item = String> {
        let is_added = |place: &(Nqn, u32)| {
            let mut added = self.namespaces_added.iter();
            added.any(|(nqn, namespace)| (nqn, namespace.nsid) == (&place.0, place.1))
        };
        let removed = self.namespaces_removed.iter();
        let removed = removed.filter(move |place| !is_added(place));
        let removed = removed.map(|(nqn, nsid)| format!("namespace {nsid} of {nqn}: removed"));
        let added = self.namespaces_added.iter().map(|(nqn, namespace)| {
            let Namespace { nsid, backing, .. } = namespace;
            let mut removed = self.namespaces_removed.iter();
            let what = match removed.any(|place| (&place.0, place.1) == (nqn, *nsid)) {
                true => "medium changed",
                false => "added",
            };
            format!("namespace {nsid} of {nqn}: {what}, on {backing}")
        });
        let altered = self.namespaces_altered.iter().map(Altered::to_string);
        removed.chain(added).chain(altered)
    }

    fn remove_namespaces(&mut self, of: &Subsystem, which: impl Fn(&Namespace) -> bool) {
        let namespaces = of.namespaces.iter().filter(|&n| which(n));
        self.namespaces_removed
            .extend(namespaces.map(|n| (of.nqn.clone(), n.nsid)));
    }

    fn add_namespaces(&mut self, of: &Subsystem, which: impl Fn(&Namespace) -> bool) {
        let namespaces = of.namespaces.iter().filter(|&n| which(n));
        self.namespaces_added
            .extend(namespaces.map(|n| (of.nqn.clone(), n.clone())));
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut part = |count: usize, what: &str| {
            if count > 0 {
                parts.push(format!("{what}: {count}"));
            }
        };
        part(self.subsystems_added.len(), "subsystems added");
        part(self.subsystems_removed.len(), "subsystems removed");
        part(self.hosts_changed.len(), "subsystems with other hosts");
        part(self.namespaces_added.len(), "namespaces added");
        part(self.namespaces_removed.len(), "namespaces removed");
        part(self.namespaces_altered.len(), "namespaces changed in use");
        part(self.ana_changed.len(), "subsystems with other ANA states");
        for (count, what) in self.exports.in_words() {
            part(count, what);
        }
        for (count, what) in [
            (self.listeners.added, "listeners added"),
            (self.listeners.removed, "listeners removed"),
        ] {
            if count > 0 {
                parts.push(format!("{what}: {count}"));
            }
        }
        if let Some(log) = self.log {
            parts.push(format!("log level: {}", log.as_str()));
        }
        if let Some(metrics) = self.metrics {
            parts.push(match metrics.listen {
                Some(listen) => format!("metrics told at {listen}"),
                None => "metrics told by the control socket alone".to_owned(),
            });
        }
        if parts.is_empty() {
            return f.write_str("nothing has changed");
        }
        f.write_str(&parts.join(", "))
    }
}
