//! From a checked configuration to what the parts need: opened volumes, and the subsystems.

use std::collections::BTreeSet;

use anyhow::Context as _;
use capstan_config::{Access, Backing, Config, DirectIo, Namespace, Subsystem};
use capstan_nvme_proto::log::RdmaProviderType;
use capstan_nvme_proto::nqn::Nqn;
use capstan_reactor::Clock;
use capstan_storage::{Engine, EngineConfig, Geometry, Store, VolumeSpec};
use capstan_subsystem::{
    BackendId, HostPolicy, NamespaceConfig, NamespaceIdentity, PortConfig, PortId, SubsystemConfig,
    Target, TargetConfig,
};

/// LBA size of RAM and null volumes that say nothing else, in bytes.
const LBA_BYTES_DEFAULT: u32 = 4096;

/// A volume that is open in this process; every reactor makes its own of it.
pub(crate) struct Export {
    pub(crate) backend: BackendId,
    pub(crate) store: Store,
}

/// Opens every volume of the configuration and fills the subsystems.
///
/// # Errors
/// What cannot be opened, or does not fit together, with its name.
pub(crate) fn build(config: &Config) -> anyhow::Result<(Target, Vec<Export>)> {
    let bounds = TargetConfig {
        io_queues: config.queues.io_queues_max,
        io_queue_entries: config.queues.depth_max,
        controllers: config.target.hosts_max as usize,
        ..TargetConfig::default()
    };
    let mut target = Target::new(bounds, Clock.now_us())?;
    // Only to ask each volume for its shape; the reactors have their own.
    let engine = Engine::new(&EngineConfig::default())?;
    let mut ports = BTreeSet::new();
    for (at, listener) in config.listeners.iter().enumerate() {
        let id = port_id(at);
        target.add_port(PortConfig {
            id,
            address: listener.address,
            provider: RdmaProviderType::IWARP,
        })?;
        ports.insert(id);
    }
    let mut exports = Vec::new();
    for subsystem in &config.subsystems {
        target.add_subsystem(subsystem_config(subsystem, &ports)?)?;
        let subnqn = nqn(subsystem.nqn.as_str())?;
        for namespace in &subsystem.namespaces {
            let backend = BackendId(u32::try_from(exports.len())?);
            let store = spec(namespace).prepare().with_context(|| {
                format!(
                    "namespace {} of {} cannot be exported",
                    namespace.nsid,
                    subnqn.as_str()
                )
            })?;
            let geometry = store.open(&engine)?.geometry();
            let config = namespace_config(namespace, backend, geometry);
            target.add_namespace(&subnqn, config)?;
            exports.push(Export { backend, store });
        }
    }
    Ok((target, exports))
}

/// The port of the `at`th listener. PORTID 0 is avoided: some hosts take it for "none".
pub(crate) fn port_id(at: usize) -> PortId {
    PortId(u16::try_from(at + 1).unwrap_or(u16::MAX))
}

fn nqn(text: &str) -> anyhow::Result<Nqn> {
    Nqn::new(text).with_context(|| format!("NQN {text}"))
}

fn subsystem_config(
    subsystem: &Subsystem,
    ports: &BTreeSet<PortId>,
) -> anyhow::Result<SubsystemConfig> {
    let hosts = match &subsystem.access {
        Access::AnyHost => HostPolicy::Any,
        Access::Hosts(hosts) => HostPolicy::Only(
            hosts
                .iter()
                .map(|host| nqn(host.as_str()))
                .collect::<Result<_, _>>()?,
        ),
    };
    Ok(SubsystemConfig {
        nqn: nqn(subsystem.nqn.as_str())?,
        serial: subsystem.serial.clone(),
        model: subsystem.model.clone(),
        firmware: env!("CARGO_PKG_VERSION").to_owned(),
        ieee_oui: [0; 3],
        hosts,
        ports: ports.clone(),
    })
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
            write_zeroes: geometry.write_zeroes,
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
