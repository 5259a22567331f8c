//! The `capstan-target` configuration: TOML in, checked values out.
//!
//! [`Config::from_toml`] parses and checks everything that can be checked without looking at the
//! machine; [`Config::quick`] builds the same value from `serve --export … --listen …`;
//! [`Config::check_machine`] looks at the files, devices, cores and addresses that it names.
//! A [`Config`] that exists is consistent: every NSID, UUID and default is filled in, and code
//! that has one never checks again.
//!
//! Every complaint is a [`Problem`]: where (line and field), what was written, what is allowed, and
//! the nearest thing that would have been right. All problems are found, not the first one; of very
//! many, the first are told ([`first_of`]).
//!
//! # What it does not do
//! It opens no volume, listens on nothing and knows neither RDMA nor NVMe commands.

#![forbid(unsafe_code)]

use std::path::Path;

use files::Texts;

mod ana;
mod backing;
mod budget;
mod check;
mod complete;
mod error;
mod files;
mod identity;
pub mod import;
mod limits;
mod listen;
mod machine;
mod manual;
mod model;
mod problem;
mod quick;
mod read;
mod schema;
mod shown;
mod size;
mod suggest;
mod written;

pub use capstan_nvme_proto::nqn::{Nqn, NqnError};

pub use ana::AnaState;
pub use backing::{Backing, BackingError};
pub use budget::{ADMIN_QUEUE_DEPTH, MemoryPlan, STRANGER_BYTES, STRANGERS_MAX};
pub use error::ConfigError;
pub use files::WrittenFile;
pub use identity::{namespace_uuid, other_namespace_uuid};
pub use limits::{
    ALLOWED_HOSTS_MAX, CLIENTS_MAX, CONFIG_BYTES_MAX, DEFAULT_METRICS_PORT, DEFAULT_NFS_PORT,
    DEFAULT_NFS_RDMA_PORT, DEFAULT_PORT, EXPORTS_MAX, IN_CAPSULE_DATA_BYTES, LISTENERS_MAX,
    NAMESPACES_MAX, NFS_ADDRESSES_MAX, SUBSYSTEMS_MAX, TRANSFER_BYTES_MAX,
};
pub use listen::{ListenAddresses, ListenError, parse_listen};
pub use machine::next_step::{deleted_and_open, names_left};
pub use manual::{MANUAL_NAME, manual};
pub use model::{
    Access, Config, DirectIo, LbaSize, Listener, LogLevel, Metrics, Namespace, Nfs, ProviderChoice,
    QueueBounds, Reactors, Subsystem, Target, Transports, WordError,
};
pub use problem::{At, Problem, ProblemDetails, ProblemKind, Problems, Warning};
pub use quick::{QuickDirectory, QuickExport};
pub use shown::{first_of, word_of};
pub use size::{ExactSize, Size, SizeError};
pub use written::{EditError, Entry, EntryValue, Through, Written};

impl Config {
    /// Parses and checks the text of a configuration file, without a look at the machine.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`] for the first thing that is not TOML; [`ConfigError::Invalid`] with
    /// everything else that is wrong.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let texts = Texts::of_one(text);
        check::check(read::read(&texts)?, &texts)
    }

    /// Reads, parses and checks a configuration file, and those in the folder beside it
    /// (`target.d/*.toml` of `target.toml`), without a look at what they name. The path `-` is
    /// stdin.
    ///
    /// # Errors
    /// Those of [`Config::from_toml`], in [`ConfigError::In`] where one file is meant, and of
    /// reading the files.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        Written::read(path)?.config()
    }

    pub(crate) fn from_files(files: &[WrittenFile]) -> Result<Self, ConfigError> {
        for file in files.iter().filter(|_| files.len() > 1) {
            read::check_syntax(&file.text).map_err(|error| in_file(file, error))?;
        }
        let texts = match files {
            [file] => Texts::of_one(&file.text),
            _ => Texts::of(files),
        };
        let checked = read::read(&texts).and_then(|read| check::check(read, &texts));
        checked.map_err(|error| match files {
            [file] => in_file(file, error),
            _ => error,
        })
    }
}

fn in_file(file: &WrittenFile, error: ConfigError) -> ConfigError {
    match &file.path {
        None => error,
        Some(path) => ConfigError::In {
            path: path.clone(),
            error: Box::new(error),
        },
    }
}
