//! What is told of a target that runs. Nothing here waits for a file system or a change: what is
//! served is known, and what is counted is read.

use std::collections::BTreeSet;
use std::time::Duration;

use capstan_config::{Access, AnaState, Config, LbaSize, Listener, Nqn, Subsystem, Transports};
use capstan_control::answer::{
    ConfigDiff, Connection, Export, Host, Io, Namespace, Nfs, NfsClient, Refused, Registrant,
    Reservations, Saved, Status, Waits,
};
use capstan_control::{Failure, Kind, answer};
use capstan_exports::ExportSettings;
use capstan_nvme_proto::reservation::ReservationType;
use capstan_reactor::Clock;
use capstan_subsystem::{
    AssociationReport, NamespaceConfig, PortId, QueueCounters, Refusal, RefuseReason, Target,
};
use uuid::Uuid;

use super::ana::state_of;
use super::change::{read_nqn, subsystem};
use super::{Published, Steering, locked};
use crate::absent::Awaited;

const SECOND_US: u64 = 1_000_000;
/// A change that takes longer is trouble.
const CHANGE_TAKES: Duration = Duration::from_secs(3);

impl Steering {
    pub(super) fn report(&self) -> Status {
        let published = self.published();
        let config = &published.config;
        let subsystems: Vec<_> = config
            .subsystems
            .iter()
            .map(|of| self.subsystem(of, &published))
            .collect();
        // Each lock is given back before the next one is taken.
        let read = self.texts().state();
        let trouble = self.trouble();
        let listeners = self.listeners();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            up_s: self.started.elapsed().as_secs(),
            config: read,
            log: config.target.log.as_str().to_owned(),
            reactors: self.reactors,
            memory_bytes: config.target.memory_budget_bytes,
            listeners,
            connections: subsystems.iter().map(|of| of.connections).sum(),
            subsystems,
            nfs: config.nfs.as_ref().map(|nfs| Nfs {
                addresses: self.nfs_addresses.clone(),
                exports: published.exports_of(nfs),
            }),
            drained_s: self.drained_for().map(|since| since.as_secs()),
            trouble,
        }
    }

    fn trouble(&self) -> Vec<String> {
        let mut lines = self.control.trouble();
        lines.extend(unreachable(&self.published().config));
        let under_way = locked(&self.under_way).clone();
        if let Some((since, what)) = under_way.filter(|(since, _)| since.elapsed() > CHANGE_TAKES) {
            lines.push(format!(
                "{what}: under way for {} s, and changes that come wait for it; a file system or device may not answer \
                 (`capstan-target doctor` tells)",
                since.elapsed().as_secs()
            ));
        }
        if let Some(failed) = self.texts().reload_failed() {
            lines.push(format!("the last reload failed: {failed}"));
        }
        lines
    }

    pub(super) fn listeners(&self) -> Vec<answer::Listener> {
        let published = self.published();
        let config = &published.config;
        let listeners = config.listeners.iter().zip(&published.ports);
        self.control.with(|target| {
            let told = listeners.map(|(listener, port)| {
                let waits = published.waits_for(&Awaited::Listener(*port));
                of_listener(target, *port, listener, waits)
            });
            told.collect()
        })
    }

    pub(super) fn subsystems(&self, nqn: Option<&str>) -> Result<Vec<answer::Subsystem>, Failure> {
        let published = self.published();
        let config = &published.config;
        Ok(match nqn {
            Some(nqn) => vec![self.subsystem(subsystem("nqn", nqn, config)?, &published)],
            None => config
                .subsystems
                .iter()
                .map(|of| self.subsystem(of, &published))
                .collect(),
        })
    }

    fn subsystem(&self, of: &Subsystem, published: &Published) -> answer::Subsystem {
        let (allow_any_host, allowed_hosts) = match &of.access {
            Access::AnyHost => (true, Vec::new()),
            Access::Hosts(hosts) => (false, hosts.iter().map(ToString::to_string).collect()),
        };
        let (namespaces, connections) = self.control.with(|target| {
            let shown = target.namespaces(&of.nqn).filter_map(|shown| {
                let namespace = of.namespaces.iter().find(|n| n.nsid == shown.nsid)?;
                let counted = target.totals_of(&of.nqn, shown.nsid);
                let reservations = of_reservations(target, &of.nqn, shown.nsid);
                Some(Namespace {
                    reservations,
                    ..of_namespace(namespace, shown, counted)
                })
            });
            let mut shown: Vec<_> = shown.collect();
            shown.extend(of.absent.iter().map(|namespace| {
                let awaited = Awaited::Namespace(of.nqn.clone(), namespace.nsid);
                of_absent(namespace, published.waits_for(&awaited))
            }));
            shown.sort_by_key(|namespace| namespace.nsid);
            let connected = target.associations();
            let connected = connected.filter(|one| one.association.subnqn == of.nqn);
            (shown, connected.count())
        });
        answer::Subsystem {
            nqn: of.nqn.to_string(),
            serial: of.serial.clone(),
            model: of.model.clone(),
            allow_any_host,
            allowed_hosts,
            namespaces,
            connections,
        }
    }

    pub(super) fn hosts(&self, of: Option<&str>) -> Result<Vec<Host>, Failure> {
        let published = self.published();
        let config = &published.config;
        let one = of
            .map(|of| subsystem("subsystem", of, config))
            .transpose()?;
        let all = config.subsystems.iter();
        let chosen = all.filter(|of| one.is_none_or(|one| one.nqn == of.nqn));
        let mut hosts: Vec<Host> = Vec::new();
        for of in chosen {
            let first = hosts.len();
            if let Access::Hosts(listed) = &of.access {
                hosts.extend(listed.iter().map(|host| host_of(of, host, true)));
            }
            self.control.with(|target| {
                let connected = target.associations();
                for one in connected.filter(|one| one.association.subnqn == of.nqn) {
                    let name = one.association.hostnqn.to_string();
                    let there = hosts.iter_mut().skip(first).find(|host| host.host == name);
                    match there {
                        Some(host) => host.connections += 1,
                        None => {
                            let mut host = host_of(of, &one.association.hostnqn, false);
                            host.connections = 1;
                            hosts.push(host);
                        }
                    }
                }
            });
        }
        Ok(hosts)
    }

    pub(super) fn exports(&self) -> Vec<Export> {
        let published = self.published();
        let nfs = published.config.nfs.as_ref();
        nfs.map(|nfs| published.exports_of(nfs)).unwrap_or_default()
    }

    pub(super) fn nfs_clients(&self) -> Vec<NfsClient> {
        let service = self.control.metrics().nfs();
        let clients = service.map_or_else(Vec::new, |service| service.clients());
        let told = clients.into_iter().map(|(client, of)| NfsClient {
            client,
            from: of.address.to_string(),
            seen_s: of.renewed_ago_us / SECOND_US,
            sessions: of.sessions,
            states: of.states,
        });
        told.collect()
    }

    pub(super) fn connections(&self) -> Vec<Connection> {
        self.control.with(|target| {
            target
                .associations()
                .map(|one| of_association(&one))
                .collect()
        })
    }

    pub(super) fn explain(&self, host: Option<&str>) -> Result<Vec<Refused>, Failure> {
        let host = host.map(|host| read_nqn("host", host)).transpose()?;
        let now_us = Clock.now_us();
        // Such a host has not said its name yet.
        let drained = self.drained_for().map(|since| Refused {
            ago_s: since.as_secs(),
            host: None,
            subsystem: None,
            from: "any address".to_owned(),
            why: "the target was drained, and has taken no connections since".to_owned(),
            mend: Some("capstan-target drain --off".to_owned()),
        });
        let refused: Vec<_> = self.control.with(|target| {
            let refusals = target
                .refusals()
                .filter(|refusal| match (&host, &refusal.hostnqn) {
                    (None, _) => true,
                    (Some(host), Some(of)) => of.is_same(host),
                    (Some(_), None) => false,
                });
            refusals
                .map(|refusal| of_refusal(refusal, now_us))
                .collect()
        });
        Ok(drained.into_iter().chain(refused).collect())
    }

    pub(super) fn config_diff(&self) -> Result<ConfigDiff, Failure> {
        let now = self.file_now()?;
        Ok(self.texts().diff(now.as_ref()))
    }

    pub(super) fn config_saved(&self) -> Result<Saved, Failure> {
        // No change comes between.
        let served = locked(&self.served);
        let Some(now) = self.file_now()? else {
            let words = "the target was started with --export or --config -: there is no file that says what is served";
            return Err(Failure::new(Kind::Refused, words));
        };
        let saved = self.texts().saved(&now);
        let saved = saved.ok_or_else(|| {
            let words = "the file says something else than what is served: it was changed, or what is served was, since it was written; `capstan-target config diff` shows what differs, `capstan-target config save` writes it";
            Failure::new(Kind::Refused, words)
        })?;
        self.publish(&served);
        Ok(Saved { saved })
    }

    fn file_now(&self) -> Result<Option<capstan_config::Written>, Failure> {
        let Some(file) = self.texts().file().map(ToOwned::to_owned) else {
            return Ok(None);
        };
        let now = capstan_config::Written::read(&file);
        now.map(Some)
            .map_err(|error| Failure::new(Kind::Failed, error.to_string()))
    }
}

impl Published {
    /// Why it is not served yet, where it is waited for.
    fn waits_for(&self, awaited: &Awaited) -> Option<Waits> {
        let wait = self.waits.iter().find(|wait| wait.of == *awaited)?;
        Some(Waits {
            why: wait.why.clone(),
            since_s: wait.since.elapsed().as_secs(),
        })
    }

    fn exports_of(&self, nfs: &capstan_config::Nfs) -> Vec<Export> {
        let all = nfs.exports.iter().chain(&nfs.absent);
        let told = all.map(|export| {
            let awaited = Awaited::Export(export.client_path.clone());
            of_export(export, self.waits_for(&awaited))
        });
        told.collect()
    }
}

fn of_listener(
    target: &Target,
    port: PortId,
    listener: &Listener,
    waits: Option<Waits>,
) -> answer::Listener {
    let port = target.ports().find(|of| of.id == port);
    let Transports { rdma, tcp, .. } = listener.transports;
    let (address, rdma, tcp) = match port {
        Some(port) if waits.is_none() => (port.address, port.rdma.is_some(), port.tcp),
        _ => (listener.address, rdma, tcp),
    };
    let named = [(rdma, "rdma"), (tcp, "tcp")];
    let named = named.iter().filter(|(has, _)| *has);
    answer::Listener {
        address: address.to_string(),
        provider: listener.provider.to_string(),
        transports: named.map(|(_, word)| (*word).to_owned()).collect(),
        waits,
    }
}

fn of_namespace(
    namespace: &capstan_config::Namespace,
    shown: &NamespaceConfig,
    counted: QueueCounters,
) -> Namespace {
    let geometry = &shown.geometry;
    Namespace {
        nsid: namespace.nsid,
        backing: namespace.backing.to_string(),
        size_bytes: geometry.lbas.saturating_mul(geometry.lba_bytes.into()),
        lba_bytes: geometry.lba_bytes,
        uuid: shown.identity.uuid.map(|uuid| uuid.to_string()),
        nguid: shown
            .identity
            .nguid
            .map(|id| Uuid::from_bytes(id).simple().to_string()),
        read_only: geometry.read_only,
        ana_group: shown.anagrpid,
        io: io(counted),
        reservations: None,
        waits: None,
    }
}

fn of_reservations(target: &Target, subnqn: &Nqn, nsid: u32) -> Option<Reservations> {
    let of = target.reservations(subnqn, nsid)?;
    let name = |id| {
        let mut there = target.associations().map(|one| one.association);
        let found = there.find(|host| host.subnqn == *subnqn && host.hostid == id);
        found.map(|host| host.hostnqn.to_string())
    };
    let registrants = of.registrants.iter().map(|one| Registrant {
        host_id: one.host.to_string(),
        host: name(one.host),
        holds: one.holds,
    });
    Some(Reservations {
        rtype: (of.rtype != ReservationType::NONE).then(|| of.rtype.to_string()),
        registrants: registrants.collect(),
        persists: of.persists,
        unknown: of.is_unknown,
    })
}

/// One with nothing on its path.
fn of_absent(namespace: &capstan_config::Namespace, waits: Option<Waits>) -> Namespace {
    Namespace {
        nsid: namespace.nsid,
        backing: namespace.backing.to_string(),
        size_bytes: 0,
        lba_bytes: namespace.lba.map_or(0, LbaSize::bytes),
        uuid: namespace.uuid.map(|uuid| uuid.to_string()),
        nguid: namespace
            .nguid
            .map(|id| Uuid::from_bytes(id).simple().to_string()),
        read_only: namespace.read_only,
        ana_group: namespace.ana_group,
        io: Io::default(),
        reservations: None,
        waits,
    }
}

fn io(counted: QueueCounters) -> Io {
    Io {
        reads: counted.read_commands,
        writes: counted.write_commands,
        read_bytes: counted.read_bytes,
        written_bytes: counted.written_bytes,
        media_errors: counted.media_errors,
    }
}

fn host_of(of: &Subsystem, host: &Nqn, is_listed: bool) -> Host {
    Host {
        subsystem: of.nqn.to_string(),
        host: host.to_string(),
        is_listed,
        connections: 0,
    }
}

pub(super) fn of_association(one: &AssociationReport<'_>) -> Connection {
    let association = one.association;
    Connection {
        host: association.hostnqn.to_string(),
        host_id: association.hostid.to_string(),
        subsystem: association.subnqn.to_string(),
        cntlid: association.cntlid,
        transport: one.transport.to_string(),
        from: association.peer.to_string(),
        to: one.local.to_string(),
        io_queues: one.io_queues,
        io: io(one.counters),
    }
}

fn of_export(export: &ExportSettings, waits: Option<Waits>) -> Export {
    let rules = export.clients.rules().iter();
    Export {
        pseudo: export.client_path.clone(),
        path: export.path.display().to_string(),
        clients: rules
            .map(|rule| format!("{} {}", rule.network, rule.access))
            .collect(),
        waits,
    }
}

/// Groups with namespaces that hosts can use by no listener, a line each: what they have asked for
/// waits meanwhile.
fn unreachable(config: &Config) -> Vec<String> {
    let listeners = config.listeners.len();
    let subsystems = config.subsystems.iter();
    let lines = subsystems.flat_map(|of| {
        let groups = of.namespaces.iter().map(|namespace| namespace.ana_group);
        let groups: BTreeSet<_> = groups.collect();
        groups.into_iter().filter_map(move |group| {
            let mut states = (0..listeners).map(|listener| state_of(of, listener, group));
            let is_out = |state| !matches!(state, AnaState::Optimized | AnaState::NonOptimized);
            (listeners > 0 && states.all(is_out)).then(|| {
                format!(
                    "ANA group {group} of {}: hosts can use its namespaces through no listener, and wait \
                     (`capstan-target ana show {}`)",
                    of.nqn, of.nqn
                )
            })
        })
    });
    lines.collect()
}

fn of_refusal(refusal: &Refusal, now_us: u64) -> Refused {
    let subsystem = match &refusal.why {
        RefuseReason::HostNotAllowed { subnqn, .. }
        | RefuseReason::UnknownSubsystem { subnqn }
        | RefuseReason::OtherCase { subnqn, .. }
        | RefuseReason::NotOnPort { subnqn, .. }
        | RefuseReason::NamelessHost { subnqn } => Some(subnqn),
        _ => None,
    };
    let mend = match &refusal.why {
        RefuseReason::HostNotAllowed { hostnqn, subnqn } => {
            Some(format!("capstan-target host allow {subnqn} {hostnqn}"))
        }
        RefuseReason::OtherCase { written, .. } => {
            Some(format!("have the host connect to {written}"))
        }
        _ => None,
    };
    Refused {
        ago_s: now_us.saturating_sub(refusal.at_us) / SECOND_US,
        host: refusal.hostnqn.as_ref().map(ToString::to_string),
        subsystem: subsystem.map(ToString::to_string),
        from: refusal.peer.to_string(),
        why: refusal.why.to_string(),
        mend,
    }
}
