//! `serve --export … --listen …`, and `--export-dir`: a whole configuration from a few options.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use capstan_exports::ExportSettings;
use capstan_exports::clients::{
    Access as ClientAccess, Anonymous, ClientRule, ClientRules, Network, Squash,
};
use capstan_exports::name::NameRule;
use capstan_exports::pseudo::path_names;

use crate::check::subsystem_nqn;
use crate::machine::exports::no_directory;
use crate::machine::next_step::with_next_step;
use crate::{
    Access, At, Backing, Config, ConfigError, DirectIo, LbaSize, ListenAddresses, Listener,
    LogLevel, Metrics, Namespace, Nfs, Problem, ProblemKind, Problems, ProviderChoice, QueueBounds,
    Reactors, Subsystem, Target, Transports, identity, limits,
};

/// The options of a quick export: one namespace, one subsystem, one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuickExport {
    /// `--export PATH|ram:SIZE|null:SIZE`. A path may be relative.
    pub backing: Backing,
    /// `--lba 512|4096`.
    pub lba: Option<LbaSize>,
    /// `--listen ADDRESS[:PORT]`, or a name.
    pub listen: ListenAddresses,
    /// `--nqn`; derived from the export when not given.
    pub nqn: Option<String>,
    /// `--provider`.
    pub provider: ProviderChoice,
    /// `--transports`.
    pub transports: Transports,
    /// `--read-only`.
    pub read_only: bool,
    /// `--allow-any-host`; may be left out when `listen` is a loopback address.
    pub allow_any_host: bool,
}

/// The options of a directory for NFS clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuickDirectory {
    /// `--export-dir PATH`, which may be relative. Clients mount it by its path on this machine.
    pub path: PathBuf,
    /// `--listen ADDRESS[:PORT]`, or a name. The port is of NFS over TCP; over RDMA it is
    /// [`DEFAULT_NFS_RDMA_PORT`](crate::DEFAULT_NFS_RDMA_PORT), or the system's choice as well.
    pub listen: ListenAddresses,
    /// `--clients`: the networks that may mount it. This machine alone where there is none, which
    /// is enough where `listen` is a loopback address.
    pub clients: Vec<Network>,
    /// `--provider`.
    pub provider: ProviderChoice,
    /// `--transports`.
    pub transports: Transports,
    /// `--read-only`.
    pub read_only: bool,
}

/// What no other machine has.
const THIS_MACHINE: [&str; 2] = ["127.0.0.0/8", "::1"];

fn problem(field: &str, kind: impl Into<ProblemKind>) -> Problem {
    Problem {
        at: At::of(field),
        kind: kind.into(),
    }
}

impl Config {
    /// The configuration of a directory for NFS clients, with every default of the file but that
    /// clients may write.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every problem of the options.
    pub fn quick_directory(of: &QuickDirectory) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let path = of.path.canonicalize().unwrap_or_else(|error| {
            let kind = ProblemKind::Open {
                path: of.path.clone(),
                error: no_directory(&error, &of.path),
            };
            problems.push(problem("--export-dir", kind));
            of.path.clone()
        });
        let client_path = path.to_string_lossy().into_owned();
        if problems.is_empty()
            && let Err(error) = path_names(&client_path)
        {
            problems.push(problem("--export-dir", error));
        }
        if of.clients.is_empty() && of.listen.iter().any(|at| !at.ip().is_loopback()) {
            let kind = ProblemKind::Missing(
                "`--clients 192.0.2.0/24`, the networks that may mount it: other machines reach what \
                 --listen says, and without --clients this one alone may",
            );
            problems.push(problem("--clients", kind));
        }
        let tcp = of.listen.port().unwrap_or(crate::DEFAULT_NFS_PORT);
        let rdma = match tcp {
            0 => 0,
            _ => crate::DEFAULT_NFS_RDMA_PORT,
        };
        if of.transports.rdma && of.transports.tcp && tcp == rdma && tcp != 0 {
            let kind = ProblemKind::NotAllowed {
                value: format!("port {tcp}"),
                allowed: "another port, as this one is that of NFS over RDMA".into(),
            };
            problems.push(problem("--listen", kind));
        }
        let rule = |network| ClientRule {
            network,
            access: match of.read_only {
                true => ClientAccess::ReadOnly,
                false => ClientAccess::ReadWrite,
            },
            squash: Squash::Root,
            anonymous: Anonymous::default(),
            secure_ports: false,
        };
        let mut networks = of.clients.clone();
        if networks.is_empty() {
            networks.extend(
                THIS_MACHINE
                    .iter()
                    .filter_map(|text| text.parse::<Network>().ok()),
            );
        }
        let clients = ClientRules::new(networks.into_iter().map(rule).collect());
        let clients = clients.map_err(|error| {
            let kind = ProblemKind::NotAllowed {
                value: error.to_string(),
                allowed: "each network once".into(),
            };
            problems.push(problem("--clients", kind));
        });
        let clients = match clients {
            Ok(clients) if problems.is_empty() => clients,
            Ok(_) | Err(()) => return Err(ConfigError::Invalid(Problems::in_order(problems))),
        };
        let at = |port| {
            of.listen
                .iter()
                .map(move |at| SocketAddr::new(at.ip(), port))
        };
        Ok(Self {
            target: Target::default(),
            queues: QueueBounds::default(),
            listeners: Vec::new(),
            subsystems: Vec::new(),
            metrics: Metrics::default(),
            nfs: Some(Nfs {
                tcp: at(tcp).filter(|_| of.transports.tcp).collect(),
                rdma: at(rdma).filter(|_| of.transports.rdma).collect(),
                provider: of.provider,
                lease_time: limits::DEFAULT_LEASE_TIME,
                grace_time: limits::DEFAULT_LEASE_TIME,
                threads_written: None,
                memory_bytes: limits::DEFAULT_NFS_MEMORY_BYTES,
                exports: vec![ExportSettings {
                    path,
                    client_path,
                    id: None,
                    file_system: None,
                    clients,
                    names: NameRule::Utf8,
                    crossmnt: false,
                    mount_point: false,
                    direct: false,
                }],
                absent: Vec::new(),
            }),
        })
    }

    /// The configuration of a quick export, with every default of the file.
    ///
    /// Resolves a path, because the identity is derived from it. `machine_id` keeps two machines
    /// that export the same path apart: see [`Config::machine_id`].
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every problem of the options.
    pub fn quick(export: &QuickExport, machine_id: &str) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let mut report = |field: &str, kind: ProblemKind| problems.push(problem(field, kind));

        let mut backing = export.backing.clone();
        if let Backing::Path(path) = &mut backing {
            match path.canonicalize() {
                Ok(canonical) => *path = canonical,
                Err(error) => report(
                    "--export",
                    ProblemKind::Open {
                        path: path.clone(),
                        error: with_next_step(&error, path, None),
                    },
                ),
            }
        } else if let Some(size_bytes) = backing.size_bytes() {
            let lba = export.lba.unwrap_or(LbaSize::DEFAULT);
            let lba_bytes = lba.bytes();
            if !size_bytes.is_multiple_of(lba_bytes.into()) {
                report(
                    "--export",
                    ProblemKind::PartialLba {
                        size_bytes,
                        lba_bytes,
                        smaller_lba: lba.smaller_for(size_bytes).then_some("--lba 512"),
                    },
                );
            }
        }
        let mut listen = export.listen.iter();
        let open = listen.find(|address| !address.ip().is_loopback());
        if let Some(address) = open
            && !export.allow_any_host
        {
            report("--listen", ProblemKind::OpenExport { address });
        }
        let derived = || identity::export_nqn(&backing, export.listen.least(), machine_id);
        let nqn = match &export.nqn {
            None => derived(),
            Some(text) => subsystem_nqn(text).unwrap_or_else(|kind| {
                report("--nqn", kind);
                derived()
            }),
        };
        Problems::none_or(problems)?;

        Ok(Self {
            target: Target::default(),
            queues: QueueBounds::default(),
            listeners: export
                .listen
                .iter()
                .map(|address| Listener {
                    address,
                    provider: export.provider,
                    transports: export.transports,
                })
                .collect(),
            subsystems: vec![Subsystem {
                serial: identity::serial(limits::DEFAULT_SERIAL_PREFIX, &nqn),
                model: limits::DEFAULT_MODEL.to_owned(),
                nqn,
                access: Access::AnyHost,
                end_older_association: false,
                ana: BTreeMap::new(),
                namespaces: vec![Namespace {
                    nsid: 1,
                    nsid_is_written: true,
                    backing,
                    lba: export.lba,
                    uuid: None,
                    nguid: None,
                    read_only: export.read_only,
                    direct: DirectIo::WherePossible,
                    ana_group: 1,
                }],
                absent: Vec::new(),
            }],
            nfs: None,
            metrics: Metrics::default(),
        })
    }

    /// What tells this machine from others: `/etc/machine-id`, else the host name, else nothing.
    pub fn machine_id() -> String {
        ["/etc/machine-id", "/proc/sys/kernel/hostname"]
            .iter()
            .filter_map(|path| std::fs::read_to_string(Path::new(path)).ok())
            .map(|text| text.trim().to_owned())
            .find(|text| !text.is_empty() && text != "uninitialized")
            .unwrap_or_default()
    }
}

impl Default for Target {
    fn default() -> Self {
        Self {
            reactors: Reactors::Auto,
            memory_budget_bytes: limits::DEFAULT_MEMORY_BUDGET_BYTES,
            spin: limits::DEFAULT_SPIN,
            log: LogLevel::Info,
            hosts_max: limits::DEFAULT_HOSTS_MAX,
            shared_receive_queue: false,
            serial_prefix: limits::DEFAULT_SERIAL_PREFIX.to_owned(),
            model: limits::DEFAULT_MODEL.to_owned(),
            vendor_id: 0,
            subsystem_vendor_id: 0,
        }
    }
}

impl Default for QueueBounds {
    fn default() -> Self {
        Self {
            io_queues_max: limits::DEFAULT_IO_QUEUES_MAX,
            depth_max: limits::DEFAULT_DEPTH_MAX,
        }
    }
}
