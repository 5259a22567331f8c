//! From a checked configuration to what the parts need: opened volumes, and the subsystems.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use capstan_config::{
    Access, Backing, Config, DirectIo, LbaSize, MemoryPlan, Namespace, Subsystem,
};
use capstan_nvme_proto::log::AnaState;
use capstan_nvme_proto::nqn::Nqn;
use capstan_reactor::Clock;
use capstan_storage::{Geometry, Lifetime, OpenError, Store, VolumeSpec};
use capstan_subsystem::{
    BackendId, HostPolicy, NamespaceConfig, Persistence, PortId, SubsystemConfig, Target,
    TargetConfig,
};

use crate::identities::{Identities, Identity};
use crate::instance;
use crate::io_path::discovery_controllers;
use crate::lba_size::{LbaSizes, out_of_reach};
use crate::limits::{IN_CAPSULE_BYTES, STRANGER_RECEIVES, UNFINISHED_TIMEOUT};
use crate::listening::{AtStart, port_config};
use crate::metrics::BackendMetrics;
use crate::reservations::Named;
use crate::unfinished;

/// LBA size of RAM and null volumes that say nothing else, in bytes.
const LBA_BYTES_DEFAULT: u32 = 4096;

/// A volume that is open in this process; every reactor makes its own of it.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) backend: BackendId,
    pub(crate) store: Store,
    /// The namespace that is on it.
    pub(crate) subnqn: Nqn,
    pub(crate) nsid: u32,
    /// What hosts see of it at first.
    pub(crate) shown: capstan_subsystem::Geometry,
    /// What reactors do on it.
    pub(crate) counted: Arc<BackendMetrics>,
}

/// Opens every volume of the configuration and fills the subsystems. So many `reactors` will have
/// the volumes.
///
/// # Errors
/// What cannot be opened, or does not fit together, with its name.
pub(crate) fn build(
    config: &Config,
    listeners: &[AtStart],
    reactors: usize,
    lba_sizes: &mut LbaSizes,
    identities: &mut Identities,
) -> anyhow::Result<(Target, Vec<Export>)> {
    let bounds = TargetConfig {
        io_queues: config.queues.io_queues_max,
        io_queue_entries: config.queues.depth_max,
        controllers: config.target.hosts_max as usize,
        vendor_ids: [config.target.vendor_id, config.target.subsystem_vendor_id],
        boot_id: identities.boot().into_bytes(),
        seed: instance::random()?.as_u64_pair().into(),
        discovery_controllers: discovery_controllers(
            config.memory_plan(reactors)?.strangers_per_reactor,
        ),
        ..TargetConfig::default()
    };
    let mut target = Target::new(bounds, Clock.now_us())?;
    for of in listeners {
        target.add_port(port_config(of.port, &of.listener, of.chosen.kind))?;
        if of.absent.is_some() {
            target.set_port_transports(of.port, None, false)?;
        }
    }
    let numbers: Vec<_> = listeners.iter().map(|of| of.port).collect();
    let ports: BTreeSet<_> = numbers.iter().copied().collect();
    let mut exports = Vec::new();
    for subsystem in &config.subsystems {
        target.add_subsystem(subsystem_config(subsystem, ports.clone()))?;
        target.set_ana_states(&subsystem.nqn, ana_states(subsystem, &numbers))?;
        for namespace in &subsystem.namespaces {
            let backend = BackendId(u32::try_from(exports.len())?);
            let opening = Opening {
                reactors,
                waits: UNFINISHED_TIMEOUT,
                lba_sizes,
                identities,
            };
            let (export, shown) = opening.export(&subsystem.nqn, namespace, backend)?;
            target.add_namespace(&subsystem.nqn, shown)?;
            exports.push(export);
        }
    }
    Ok((target, exports))
}

/// How volumes are opened.
pub(crate) struct Opening<'a> {
    /// So many will have the volume.
    pub(crate) reactors: usize,
    /// How long operations that a killed target has left on it are waited for.
    pub(crate) waits: Duration,
    /// What files were used with.
    pub(crate) lba_sizes: &'a mut LbaSizes,
    /// What hosts know media by.
    pub(crate) identities: &'a mut Identities,
}

impl Opening<'_> {
    /// Prepares the volume of a namespace.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn export(
        self,
        subnqn: &Nqn,
        namespace: &Namespace,
        backend: BackendId,
    ) -> anyhow::Result<(Export, NamespaceConfig)> {
        let nsid = namespace.nsid;
        let cannot = || format!("namespace {nsid} of {subnqn} cannot be exported");
        let was_served = |path: &Path| self.identities.was_served(path);
        let lba = self.lba_sizes.of(subnqn, namespace, was_served);
        let lba = lba.with_context(cannot)?;
        if let Some(warning) = lba.warning {
            tracing::warn!("{warning}");
        }
        let spec = spec(namespace, lba.size);
        let prepare = || match self.reactors {
            1 => spec.prepare_alone(),
            _ => spec.prepare(),
        };
        let store = unfinished::wait(self.waits, prepare).with_context(cannot)?;
        let identity = self.identities.identity(subnqn, namespace, &store)?;
        let persistence = self.persistence(subnqn, namespace, &store, &identity);
        let shown = namespace_config(
            namespace,
            backend,
            store.geometry(),
            (identity, persistence),
        );
        let lba_bytes = shown.geometry.lba_bytes;
        self.lba_sizes.remember(subnqn, namespace, lba_bytes);
        // Where the configuration says the LBA size, its check has said this already.
        if namespace.lba.is_none()
            && let Some(warning) = out_of_reach(store.name(), store.bytes(), lba_bytes)
        {
            tracing::warn!("{warning}");
        }
        let name = store.name().to_string();
        let counted = BackendMetrics::new(name, subnqn.clone(), nsid, self.reactors);
        let export = Export {
            backend,
            store,
            subnqn: subnqn.clone(),
            nsid,
            shown: shown.geometry,
            counted: Arc::new(counted),
        };
        Ok((export, shown))
    }
}

impl Opening<'_> {
    /// What persists through power loss has to be on something that does, and so has what it is
    /// of: hosts that come back would not know the namespace otherwise.
    fn persistence(
        &self,
        subnqn: &Nqn,
        namespace: &Namespace,
        store: &Store,
        identity: &Identity,
    ) -> Persistence {
        match (&namespace.backing, identity.shown.uuid) {
            (Backing::Path(path), Some(uuid)) if store.lifetime() == Lifetime::Lasting => {
                let named = Named {
                    subnqn: subnqn.clone(),
                    nsid: namespace.nsid,
                    path: path.clone(),
                };
                self.identities.reservations().found(uuid, named)
            }
            _ => Persistence::None,
        }
    }
}

/// Memory of one reactor for receives and responses: those of queues, and the receives of
/// connections that are none yet.
pub(crate) fn queue_pool_bytes(plan: &MemoryPlan) -> u64 {
    let stranger_receives = u64::from(STRANGER_RECEIVES * IN_CAPSULE_BYTES);
    plan.queue_bytes / plan.reactors.max(1) + plan.strangers_per_reactor * stranger_receives
}

/// Who may use a subsystem.
pub(crate) fn host_policy(access: &Access) -> HostPolicy {
    match access {
        Access::AnyHost => HostPolicy::Any,
        Access::Hosts(hosts) => HostPolicy::Only(hosts.iter().cloned().collect()),
    }
}

/// The ANA states of a subsystem's groups by port, but for optimized ones. `ports` are those of the
/// listeners, in their order.
pub(crate) fn ana_states(
    subsystem: &Subsystem,
    ports: &[PortId],
) -> BTreeMap<(PortId, u32), AnaState> {
    let states = subsystem.ana_states();
    let states = states.filter_map(|(listener, group, state)| {
        let state = match state {
            capstan_config::AnaState::Optimized => AnaState::OPTIMIZED,
            capstan_config::AnaState::NonOptimized => AnaState::NON_OPTIMIZED,
            capstan_config::AnaState::Inaccessible => AnaState::INACCESSIBLE,
            capstan_config::AnaState::PersistentLoss => AnaState::PERSISTENT_LOSS,
            capstan_config::AnaState::Change => AnaState::CHANGE,
        };
        Some(((*ports.get(listener)?, group), state))
    });
    states.collect()
}

/// A subsystem at these ports, without its namespaces.
pub(crate) fn subsystem_config(subsystem: &Subsystem, ports: BTreeSet<PortId>) -> SubsystemConfig {
    SubsystemConfig {
        nqn: subsystem.nqn.clone(),
        serial: subsystem.serial.clone(),
        model: subsystem.model.clone(),
        firmware: env!("CARGO_PKG_VERSION").to_owned(),
        ieee_oui: [0; 3],
        hosts: host_policy(&subsystem.access),
        ports,
        end_older_association: subsystem.end_older_association,
    }
}

/// Opens what a namespace is on as [`Opening::export`] does, but for reading and without its locks,
/// and closes it: what a start would say of its LBA size, size and direct I/O.
///
/// # Errors
/// As that. Why it cannot be opened at all is for the check of the configuration to say.
pub(crate) fn try_open(
    subnqn: &Nqn,
    namespace: &Namespace,
    lba: Option<LbaSize>,
) -> anyhow::Result<()> {
    if !matches!(namespace.backing, Backing::Path(_)) {
        return Ok(());
    }
    let mut spec = spec(namespace, lba);
    if let VolumeSpec::Path { read_only, .. } = &mut spec {
        *read_only = true;
    }
    let nsid = namespace.nsid;
    match spec.prepare() {
        // That is for all who may open it.
        Err(OpenError::System { .. } | OpenError::Size { bytes: 0..512, .. }) | Ok(_) => Ok(()),
        Err(error) => {
            Err(error).with_context(|| format!("namespace {nsid} of {subnqn} cannot be exported"))
        }
    }
}

fn spec(namespace: &Namespace, lba: Option<LbaSize>) -> VolumeSpec {
    let lba_bytes = lba.map(LbaSize::bytes);
    match &namespace.backing {
        Backing::Path(path) => VolumeSpec::Path {
            path: path.clone(),
            lba_bytes,
            read_only: namespace.read_only,
            direct: match namespace.direct {
                DirectIo::WherePossible => capstan_storage::DirectIo::Auto,
                DirectIo::Required => capstan_storage::DirectIo::On,
                DirectIo::Off => capstan_storage::DirectIo::Off,
            },
        },
        Backing::Ram { size_bytes } => VolumeSpec::Ram {
            bytes: *size_bytes,
            lba_bytes: lba_bytes.unwrap_or(LBA_BYTES_DEFAULT),
        },
        Backing::Null { size_bytes } => VolumeSpec::Null {
            bytes: *size_bytes,
            lba_bytes: lba_bytes.unwrap_or(LBA_BYTES_DEFAULT),
        },
    }
}

fn namespace_config(
    namespace: &Namespace,
    backend: BackendId,
    geometry: Geometry,
    (Identity { shown, replaces }, persistence): (Identity, Persistence),
) -> NamespaceConfig {
    NamespaceConfig {
        nsid: namespace.nsid,
        backend,
        geometry: shown_geometry(geometry, namespace.read_only),
        identity: shown,
        anagrpid: namespace.ana_group,
        visible_to: HostPolicy::Any,
        replaces,
        persistence,
    }
}

/// What hosts see of a volume's shape.
pub(crate) fn shown_geometry(geometry: Geometry, read_only: bool) -> capstan_subsystem::Geometry {
    capstan_subsystem::Geometry {
        lba_bytes: geometry.lba_bytes,
        lbas: geometry.lbas,
        volatile_write_cache: geometry.volatile_write_cache,
        discard: geometry.discard,
        // Write Zeroes works everywhere; this says that deallocated blocks read as zeroes.
        write_zeroes: geometry.discard_zeroes,
        read_only: geometry.read_only || read_only,
        optimal_io_bytes: geometry.optimal_io_bytes,
    }
}
