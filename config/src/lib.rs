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

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

mod ana;
mod backing;
mod budget;
mod check;
mod complete;
mod identity;
mod limits;
mod listen;
mod machine;
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
pub use identity::{namespace_uuid, other_namespace_uuid};
pub use limits::{
    ALLOWED_HOSTS_MAX, CLIENTS_MAX, CONFIG_BYTES_MAX, DEFAULT_NFS_PORT, DEFAULT_NFS_RDMA_PORT,
    DEFAULT_PORT, EXPORTS_MAX, IN_CAPSULE_DATA_BYTES, LISTENERS_MAX, NAMESPACES_MAX,
    NFS_ADDRESSES_MAX, SUBSYSTEMS_MAX, TRANSFER_BYTES_MAX,
};
pub use listen::{ListenAddresses, ListenError, parse_listen};
pub use machine::next_step::{deleted_and_open, names_left};
pub use model::{
    Access, Config, DirectIo, LbaSize, Listener, LogLevel, Namespace, Nfs, ProviderChoice,
    QueueBounds, Reactors, Subsystem, Target, Transports, WordError,
};
pub use problem::{At, ConfigError, Problem, ProblemDetails, ProblemKind, Problems, Warning};
pub use quick::{QuickDirectory, QuickExport};
pub use shown::{first_of, word_of};
pub use size::{Size, SizeError};
pub use written::{EditError, Entry, EntryValue, Written};

impl Config {
    /// Parses and checks the text of a configuration file, without a look at the machine.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`] for the first thing that is not TOML; [`ConfigError::Invalid`] with
    /// everything else that is wrong.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        check::check(read::read(text)?, text)
    }

    /// Reads, parses and checks a configuration file, without a look at what it names. The path `-`
    /// is stdin.
    ///
    /// # Errors
    /// Those of [`Config::from_toml`], in [`ConfigError::In`], and of reading the file.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = read_text(path)?;
        Self::from_toml(&text).map_err(|error| ConfigError::In {
            path: path.to_owned(),
            error: Box::new(error),
        })
    }
}

fn read_text(path: &Path) -> Result<String, ConfigError> {
    let read = |error| ConfigError::Read {
        path: path.to_owned(),
        error,
    };
    let input: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(open(path).map_err(read)?)
    };
    let mut bytes = Vec::new();
    input
        .take(CONFIG_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(read)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(ConfigError::TooLarge {
            path: path.to_owned(),
        });
    }
    String::from_utf8(bytes).map_err(|error| ConfigError::NotUtf8 {
        path: path.to_owned(),
        at: error.utf8_error().valid_up_to(),
    })
}

/// Where a process finds the descriptors that it was started with: a pipe there has a process that
/// writes, as `-` has.
const HANDED_OVER: [&str; 3] = ["/dev/stdin", "/dev/fd", "/proc/self/fd"];

/// Opens what can be read at once: a named pipe would keep the process until another one writes,
/// and a device may do something when it is opened.
fn open(path: &Path) -> io::Result<File> {
    if HANDED_OVER.iter().any(|place| path.starts_with(place)) {
        return File::open(path);
    }
    let file_type = path.metadata()?.file_type();
    // A folder is refused by the kernel.
    if !(file_type.is_file() || file_type.is_dir()) {
        let found = machine::volume::type_name(file_type);
        return Err(io::Error::other(format!("it is a {found}")));
    }
    // It may be another one by now.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK).open(path)
}
