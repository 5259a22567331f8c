//! What can be wrong with a configuration, and how it is said.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use capstan_exports::clients::NetworkError;
use capstan_exports::pseudo::PseudoError;
use capstan_nvme_proto::text::Count;

use crate::machine::unmounted;
use crate::shown::{self, word_of};
use crate::{BackingError, ListenError, NqnError, Size};

/// The next whole number of LBAs, in bytes; the one before where that is more than there can be.
fn whole_lbas(size_bytes: u64, lba_bytes: u32) -> u64 {
    let lba_bytes = u64::from(lba_bytes);
    let next = size_bytes.checked_next_multiple_of(lba_bytes);
    next.unwrap_or_else(|| size_bytes - size_bytes % lba_bytes)
}

/// How a file comes to have room for an LBA.
fn enough(path: &Path) -> String {
    unmounted::in_words(path).unwrap_or_else(|| {
        let is_device = path.metadata().is_ok_and(|of| of.file_type().is_block_device());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let path = word_of(path);
        if is_device && name.starts_with("zram") {
            return format!("`zramctl --size 1G {path}` makes it a device of 1 GiB");
        }
        if is_device {
            return format!(
                "`lsblk {path}` shows what it is: a device without a medium, or that is not set up, has none"
            );
        }
        // It is empty, or was cut: what has known it says how long it was.
        format!("`truncate --size=SIZE {path}` makes it as long as it is to be")
    })
}

/// One or more problems, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// `Err` unless `problems` is empty.
    pub(crate) fn none_or(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Self(problems))
        }
    }

    /// Of a file, in its order; what has no place there comes last.
    pub(crate) fn in_order(mut problems: Vec<Problem>) -> Self {
        let place = |Problem { at, .. }: &Problem| (at.line.is_none(), at.file.clone(), at.line);
        problems.sort_by_cached_key(place);
        Self(problems)
    }

    /// The same, where what a configuration file would say was said in options: of a
    /// [`QuickExport`](crate::QuickExport) or a [`QuickDirectory`](crate::QuickDirectory).
    #[must_use]
    pub fn in_options(mut self) -> Self {
        self.0
            .iter_mut()
            .for_each(|problem| problem.at.name_option());
        self
    }

    /// The problems, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Problem] {
        &self.0
    }

    /// The problems.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown::first_of(&self.0).join("\n"))
    }
}

/// Where a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// The field, such as `subsystem[0].namespace[1].lba`, or an option, such as `--listen`.
    pub field: String,
    /// Line in the file, from 1; none when it was not written in a file.
    pub line: Option<usize>,
    /// The file, where there are several.
    pub file: Option<Box<str>>,
}

impl At {
    /// A field that is in no file.
    #[must_use]
    pub fn of(field: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            line: None,
            file: None,
        }
    }

    /// Names the option of a [`QuickExport`](crate::QuickExport) or a
    /// [`QuickDirectory`](crate::QuickDirectory) that says what the field would.
    pub fn name_option(&mut self) {
        let option = match &self.field {
            field if field.starts_with("subsystem") && field.ends_with("nqn") => "--nqn",
            field if field.starts_with("subsystem") => "--export",
            field if field.starts_with("export") => "--export-dir",
            field if field.starts_with("listener") || field.starts_with("nfs") => "--listen",
            _ => return,
        };
        option.clone_into(&mut self.field);
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file} ")?;
        }
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.field),
            None => f.write_str(&self.field),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", shown::line(&in_words_of(at, format!("{at}: {kind}"))))]
pub struct Problem {
    /// Where.
    pub at: At,
    /// What.
    pub kind: ProblemKind,
}

/// What an option is called where there is no file.
fn in_words_of(at: &At, line: String) -> String {
    match at.field.starts_with("--") {
        true => line.replace("`read_only = true`", "`--read-only`"),
        false => line,
    }
}

/// What is wrong, with the value, what is allowed, and the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProblemKind {
    /// A key that the table does not have.
    #[error("there is no such key; {}", match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("expected one of {known}"),
    })]
    UnknownKey {
        /// The key that it is most likely a slip of.
        nearest: Option<&'static str>,
        /// Those there are.
        known: String,
    },
    /// A key of exports(5), or of another table.
    #[error("there is no such key; {0}")]
    NoKeyBut(&'static str),
    /// A value of the wrong type, or a word that is none of those allowed.
    #[error("{0}")]
    WrongType(String),
    /// Something else than a list of tables.
    #[error("there may be several, and each is a table; write {name}")]
    OneOfAList {
        /// How one is written.
        name: &'static str,
    },
    /// Something else than one table.
    #[error("there is one, and it is a table; write {name}, once")]
    NotAList {
        /// How it is written.
        name: &'static str,
    },
    /// Something else than a table in a list of tables.
    #[error("is not a table; write {name}, and its keys below")]
    NotATable {
        /// How it is written.
        name: &'static str,
    },
    /// Something required is not there.
    #[error("missing; write {0}")]
    Missing(&'static str),
    /// A value outside of what is allowed.
    #[error("{value} is not allowed; allowed: {allowed}")]
    NotAllowed {
        /// What was written.
        value: String,
        /// What may be written.
        allowed: String,
    },
    /// Too many of something.
    #[error("{count} of them; at most {most}")]
    TooMany {
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// The same value twice where each must be unique.
    #[error("{value} is already used at {first}")]
    Duplicate {
        /// The value.
        value: String,
        /// Its first use.
        first: At,
    },
    /// One path of two exports.
    #[error(
        "{path} is already used at {first}; put the networks of both into the `clients` of one, each with what it may, such as \
         {{ network = \"192.0.2.9\", access = \"read-write\" }}; or give one of them a `pseudo`"
    )]
    ExportedTwice {
        /// The path for clients.
        path: String,
        /// Its first use.
        first: At,
    },
    /// A path for clients below that of another export, and elsewhere on this machine.
    #[error(
        "clients come to {inner} through the export {outer} ({outer_at}), and do not find {path} there; {step}",
        path = path.display(),
        step = match outer.as_str() {
            "/" => "all paths are below /: give that export a `pseudo` with a name, such as \"/main\"".to_owned(),
            _ => format!("give it a `pseudo` that is not below {outer}"),
        }
    )]
    NotBelow {
        /// Its path for clients.
        inner: String,
        /// The other's.
        outer: String,
        /// Where that is written.
        outer_at: Box<At>,
        /// Its directory.
        path: PathBuf,
    },
    /// Two listeners on one port where one of them has every address.
    #[error("{value} and {other} at {first} overlap; remove the one or the other")]
    Overlap {
        /// This listener.
        value: String,
        /// The other.
        other: String,
        /// Where that is.
        first: At,
    },
    /// A malformed NQN.
    #[error("`{}`: {source}", value.escape_debug())]
    Nqn {
        /// What was written.
        value: String,
        /// The rule it breaks.
        source: NqnError,
    },
    /// A malformed address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A malformed network of clients.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A path of an export for clients that is none.
    #[error(transparent)]
    ClientPath(#[from] PseudoError),
    /// No client could use an export.
    #[error(
        "no client may use it; list networks, such as `clients = [\"192.0.2.0/24\"]` (every address \
         is \"0.0.0.0/0\" and \"::/0\")"
    )]
    NoClients,
    /// A malformed `--export`.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// No host could connect.
    #[error(
        "no host may connect; list host NQNs in allowed_hosts (the log names a host that is refused, and \
         /etc/nvme/hostnqn of the host has its own), or write `allow_any_host = true` to let in every \
         host that reaches the listener"
    )]
    NoHosts,
    /// A list of hosts that would have no effect.
    #[error("contradicts allowed_hosts, which would have no effect; remove one of them")]
    AnyHostAndHosts,
    /// A quick export that strangers could reach.
    #[error(
        "{address} can be reached from other machines, and every host could write to the export; \
         listen on 127.0.0.1 or [::1], add --allow-any-host, or name the hosts in a configuration \
         file (allowed_hosts)"
    )]
    OpenExport {
        /// The address.
        address: SocketAddr,
    },
    /// Two ANA states of one group by one path.
    #[error(
        "group {group} has a state through {listener} already, at {first}; take one of them out, or name other `listeners`"
    )]
    TwoAnaStates {
        /// The group.
        group: u32,
        /// The listener's address and port.
        listener: SocketAddr,
        /// Where the other is.
        first: At,
    },
    /// A listener that the file does not have.
    #[error("there is no listener {value:?}; {}", match nearest {
        Some(nearest) => format!("did you mean \"{nearest}\"?"),
        None => format!("expected addresses and ports of [[listener]] tables: {known}"),
    })]
    NoListener {
        /// What was written.
        value: String,
        /// The listener that it is most likely a slip of.
        nearest: Option<String>,
        /// Those there are.
        known: String,
    },
    /// None or several of `path`, `ram`, `null`.
    #[error("needs exactly one of path, ram and null; {found}")]
    OneBacking {
        /// What was found.
        found: &'static str,
    },
    /// A size that is no whole number of LBAs.
    #[error("a size of {} is not a multiple of the LBA size, {lba_bytes} bytes; write {} bytes{}",
        Count(*size_bytes, "byte"),
        whole_lbas(*size_bytes, *lba_bytes),
        smaller_lba.map(|write| format!(", or {write} for LBAs of 512 bytes")).unwrap_or_default())]
    PartialLba {
        /// The size.
        size_bytes: u64,
        /// The LBA size.
        lba_bytes: u32,
        /// What to write for LBAs of 512 bytes, where these would do.
        smaller_lba: Option<&'static str>,
    },
    /// A key that does nothing beside others.
    #[error("has no effect {0}; leave it out")]
    NoEffect(&'static str),
    /// A key that means nothing for this backing.
    #[error("has no meaning for a {backing} namespace; remove it")]
    NoMeaning {
        /// The kind of backing.
        backing: &'static str,
    },
    /// An identity for what does not last.
    #[error(
        "a {backing} namespace has a new one each time it is made: what was written to the last one is gone, and \
         hosts must not take it for the same; remove it"
    )]
    NotLasting {
        /// The kind of backing.
        backing: &'static str,
    },
    /// The memory budget cannot serve one host.
    #[error("{}; raise target.memory_budget, or lower queues.depth_max or target.reactors", .0)]
    Budget(String),
    /// No file or device there.
    #[error("cannot open {path}: {error}", path = path.display())]
    Open {
        /// What was to be opened.
        path: PathBuf,
        /// What the system said, and the next step where one is known.
        error: String,
    },
    /// Neither a regular file nor a block device.
    #[error("{path} is a {found}; a namespace needs a regular file or a block device", path = path.display())]
    FileType {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// An export that is no directory.
    #[error("{path} is a {found}; an export needs a directory", path = path.display())]
    NoDirectory {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// Two file systems that clients cannot tell from each other.
    #[error(
        "{path} is on another file system than {first}, which has this id as well: clients would take files of one for files of \
         the other; `uuidgen` makes one, each file system needs its own", path = path.display(), first = first.display()
    )]
    OneIdOfTwo {
        /// The path.
        path: PathBuf,
        /// That of the export before it.
        first: PathBuf,
    },
    /// A file that the kernel makes: procfs, sysfs and others.
    #[error(
        "{path} is on {file_system}, whose files the kernel makes up when they are read, and which stores nothing; a \
         namespace needs a block device (`lsblk` lists them), or a regular file on a file system that stores data",
        path = path.display()
    )]
    KernelFile {
        /// The path.
        path: PathBuf,
        /// The file system, as the kernel calls it.
        file_system: &'static str,
    },
    /// A file or device too small for one LBA.
    #[error("{path} is {size}; a namespace needs at least one LBA ({})", enough(path), path = path.display(), size = Size(*size_bytes))]
    Empty {
        /// The path.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
    },
    /// A file in use as a swap, mounted file system and the like.
    #[error("{path} is mounted at {mount_point}; writes of a host would destroy its file system: unmount it, or export it with `read_only = true`", path = path.display(), mount_point = mount_point.display())]
    Mounted {
        /// The device.
        path: PathBuf,
        /// Where.
        mount_point: PathBuf,
    },
    /// The same of a file that a loop device has.
    #[error("{path} is attached to {device}, which is mounted at {at}; writes of a host would destroy its file system: `umount {mount_point}`, or export it with `read_only = true`", path = path.display(), device = device.display(), at = mount_point.display(), mount_point = word_of(mount_point))]
    MountedThrough {
        /// The file.
        path: PathBuf,
        /// The loop device.
        device: PathBuf,
        /// Where it, or a partition of it, is mounted.
        mount_point: PathBuf,
    },
    /// A loop device on the file is claimed.
    #[error("{path} is attached to {device}, which {by}; writes of a host would destroy what is there: end that (`lsblk {device}` shows more), or export it with `read_only = true`", path = path.display(), device = device.display())]
    HeldThrough {
        /// The file.
        path: PathBuf,
        /// The loop device.
        device: PathBuf,
        /// What has it, as far as that is known.
        by: String,
    },
    /// A file that the kernel pages to.
    #[error("{name} is swap of this machine; writes of a host would destroy what is in it: `swapoff {path}`, or export it with `read_only = true`", name = path.display(), path = word_of(path))]
    Swap {
        /// The file.
        path: PathBuf,
    },
    /// An export that is what is mounted somewhere, where nothing is.
    #[error("nothing is mounted at {path}, and `mount_point = true` keeps what is below from being exported instead: `mount {word}`", path = path.display(), word = word_of(path))]
    NotMounted {
        /// Where.
        path: PathBuf,
    },
    /// A core that the process may not run on.
    #[error("core {core} is not one this process may run on; allowed: {allowed}")]
    Core {
        /// The core.
        core: usize,
        /// The cores.
        allowed: String,
    },
}

/// A problem in parts, as far as it has such.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProblemDetails {
    /// What was written.
    pub value: Option<String>,
    /// What may be written.
    pub allowed: Option<String>,
    /// What it was most likely meant to be.
    pub nearest: Option<String>,
}

impl ProblemKind {
    /// The same in parts.
    #[must_use]
    pub fn details(&self) -> ProblemDetails {
        let mut details = ProblemDetails::default();
        match self {
            Self::UnknownKey { nearest, known } => {
                details.nearest = nearest.map(ToOwned::to_owned);
                details.allowed = Some(known.clone());
            }
            Self::NotAllowed { value, allowed } => {
                details.value = Some(value.clone());
                details.allowed = Some(allowed.clone());
            }
            Self::Duplicate { value, .. }
            | Self::Overlap { value, .. }
            | Self::Nqn { value, .. } => {
                details.value = Some(value.clone());
            }
            Self::TooMany { count, most } => {
                details.value = Some(count.to_string());
                details.allowed = Some(format!("at most {most}"));
            }
            Self::Missing(write) => details.allowed = Some((*write).to_owned()),
            _ => {}
        }
        details
    }
}

/// Something that works but an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", shown::line(&format!("{at}: {message}")))]
pub struct Warning {
    /// Where.
    pub at: At,
    /// What, and what to do about it.
    pub message: String,
}
