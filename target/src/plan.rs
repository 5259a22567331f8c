//! From a checked configuration to what the parts need: opened volumes, and the subsystems.

use anyhow::Context as _;
use capstan_config::{Access, Backing, Config, DirectIo, Namespace, Subsystem};
use capstan_nvme_proto::log::RdmaProviderType;
use capstan_nvme_proto::nqn::Nqn;
use capstan_rdma::ProviderKind;
use capstan_reactor::Clock;
use capstan_storage::{Geometry, Store, VolumeSpec};
use capstan_subsystem::{
    BackendId, HostPolicy, NamespaceConfig, NamespaceIdentity, PortConfig, PortId, SubsystemConfig,
    Target, TargetConfig,
};

/// LBA size of RAM and null volumes that say nothing else, in bytes.
const LBA_BYTES_DEFAULT: u32 = 4096;

/// A volume that is open in this process; every reactor makes its own of it.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) backend: BackendId,
    pub(crate) store: Store,
}

/// Opens every volume of the configuration and fills the subsystems. `providers` are the listeners',
/// in their order; so many `reactors` will have the volumes.
///
/// # Errors
/// What cannot be opened, or does not fit together, with its name.
pub(crate) fn build(
    config: &Config,
    providers: &[ProviderKind],
    reactors: usize,
) -> anyhow::Result<(Target, Vec<Export>)> {
    let bounds = TargetConfig {
        io_queues: config.queues.io_queues_max,
        io_queue_entries: config.queues.depth_max,
        controllers: config.target.hosts_max as usize,
        ..TargetConfig::default()
    };
    let mut target = Target::new(bounds, Clock.now_us())?;
    for (at, (listener, kind)) in config.listeners.iter().zip(providers).enumerate() {
        target.add_port(PortConfig {
            id: port_id(at),
            address: listener.address,
            provider: match kind {
                ProviderKind::Iwarp => RdmaProviderType::IWARP,
                // Which kind of device it is shows when a host connects; a wildcard has several.
                ProviderKind::Verbs => RdmaProviderType::NOT_SPECIFIED,
            },
        })?;
    }
    let mut exports = Vec::new();
    for subsystem in &config.subsystems {
        target.add_subsystem(subsystem_config(subsystem, config))?;
        for namespace in &subsystem.namespaces {
            let backend = BackendId(u32::try_from(exports.len())?);
            let (export, shown) = export(&subsystem.nqn, namespace, backend, reactors)?;
            target.add_namespace(&subsystem.nqn, shown)?;
            exports.push(export);
        }
    }
    Ok((target, exports))
}

/// Prepares the volume of a namespace for so many reactors.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn export(
    subnqn: &Nqn,
    namespace: &Namespace,
    backend: BackendId,
    reactors: usize,
) -> anyhow::Result<(Export, NamespaceConfig)> {
    let nsid = namespace.nsid;
    let cannot = || format!("namespace {nsid} of {subnqn} cannot be exported");
    let spec = spec(namespace);
    let store = match reactors {
        1 => spec.prepare_alone(),
        _ => spec.prepare(),
    };
    let store = store.with_context(cannot)?;
    let shown = namespace_config(namespace, backend, store.geometry());
    Ok((Export { backend, store }, shown))
}

/// The port of the `at`th listener. PORTID 0 is avoided: some hosts take it for "none".
pub(crate) fn port_id(at: usize) -> PortId {
    PortId(u16::try_from(at + 1).unwrap_or(u16::MAX))
}

/// Who may use a subsystem.
pub(crate) fn host_policy(access: &Access) -> HostPolicy {
    match access {
        Access::AnyHost => HostPolicy::Any,
        Access::Hosts(hosts) => HostPolicy::Only(hosts.iter().cloned().collect()),
    }
}

/// A subsystem on all listeners, without its namespaces.
pub(crate) fn subsystem_config(subsystem: &Subsystem, config: &Config) -> SubsystemConfig {
    SubsystemConfig {
        nqn: subsystem.nqn.clone(),
        serial: subsystem.serial.clone(),
        model: subsystem.model.clone(),
        firmware: env!("CARGO_PKG_VERSION").to_owned(),
        ieee_oui: [0; 3],
        hosts: host_policy(&subsystem.access),
        ports: (0..config.listeners.len()).map(port_id).collect(),
    }
}

fn spec(namespace: &Namespace) -> VolumeSpec {
    let lba_bytes = namespace.lba.map(capstan_config::LbaSize::bytes);
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
) -> NamespaceConfig {
    NamespaceConfig {
        nsid: namespace.nsid,
        backend,
        geometry: capstan_subsystem::Geometry {
            lba_bytes: geometry.lba_bytes,
            lbas: geometry.lbas,
            volatile_write_cache: geometry.volatile_write_cache,
            discard: geometry.discard,
            // Write Zeroes works everywhere; this says that deallocated blocks read as zeroes.
            write_zeroes: geometry.discard_zeroes,
            read_only: geometry.read_only || namespace.read_only,
        },
        identity: NamespaceIdentity {
            uuid: Some(namespace.uuid),
            nguid: Some(namespace.nguid),
            eui64: None,
        },
        anagrpid: 1,
        visible_to: HostPolicy::Any,
    }
}
