//! `serve --export … --listen …`: a whole configuration from a few options.

use std::path::Path;

use crate::check::subsystem_nqn;
use crate::machine::next_step::with_next_step;
use crate::{
    Access, At, Backing, Config, ConfigError, DirectIo, LbaSize, ListenAddresses, Listener,
    LogLevel, Namespace, Problem, ProblemKind, Problems, ProviderChoice, QueueBounds, Reactors,
    Subsystem, Target, Transports, identity, limits,
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

impl Config {
    /// The configuration of a quick export, with every default of the file.
    ///
    /// Resolves a path, because the identity is derived from it. `machine_id` keeps two machines
    /// that export the same path apart: see [`Config::machine_id`].
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every problem of the options.
    pub fn quick(export: &QuickExport, machine_id: &str) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let mut report = |field: &str, kind: ProblemKind| {
            problems.push(Problem {
                at: At {
                    field: field.to_owned(),
                    line: None,
                },
                kind,
            });
        };

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
                namespaces: vec![Namespace {
                    nsid: 1,
                    nsid_is_written: true,
                    backing,
                    lba: export.lba,
                    uuid: None,
                    nguid: None,
                    read_only: export.read_only,
                    direct: DirectIo::WherePossible,
                }],
            }],
            nfs: None,
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
