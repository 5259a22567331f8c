//! The process behind a disk: association, FUSE file, loop device, from attach to detach.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use capstan_rdma::PEER_CAUSED;
use capstan_reactor::Asked;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::control::{Answer, ControlSocket, Request, State};
use super::going::{Stays, detach};
use super::health::Health;
use super::kept;
use super::links;
use super::loop_process::{self, LoopProcessError, LoopRequest};
use super::making::{Making, close};
use super::process;
use super::record::{Record, RecordError, VolumeDir};
use super::serving::Process;
use super::set_up::SetUp;
use super::status::state;
use crate::claim::{Claim, ClaimError, Holder, Sharing};
use crate::controller::Controller;
use crate::error::{ConnectError, IoError, Losses};
use crate::front_ends::block::Geometry;
use crate::front_ends::fuse::FuseError;
use crate::front_ends::fuse::file_system::source_name;
use crate::front_ends::unwritten::SharedUnwritten;
use crate::options::Options;
use crate::transports::TakenTransport;
use crate::way::Way;
use crate::wire::WireFields;

/// Data memory of a disk's association, in bytes: the landing place of FUSE writes (1 MiB) and
/// what is in flight. The loop device sends 128 requests; at 512 KiB and more it is bandwidth
/// that bounds, not their number.
const DATA_MEMORY_BYTES: usize = 64 << 20;
/// How long the controller may take to be told of the end when a signal has asked for it.
const CLOSE_PATIENCE: Duration = Duration::from_millis(700);
/// A second signal within this time after the first ends what is in use.
const INSISTENCE: Duration = Duration::from_secs(60);

/// What to attach.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Namespace.
    pub nsid: u32,
    /// Refuse writes whatever the controller allows.
    pub read_only: bool,
    /// Whether others of this machine may write as well.
    pub sharing: Sharing,
    /// Where it is going to be mounted.
    pub mount_point: Option<PathBuf>,
    /// Its name on this machine, if it has one.
    pub volume_name: Option<String>,
    /// Of a process that a service manager has started and asks to end by signals: called with what
    /// that waits for. The disk ends with its last user then, and no signal ends it sooner.
    pub told_to_wait: Option<fn(&str)>,
}

/// A volume could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The controller could not be reached.
    #[error("connecting to {subnqn} at {traddr} port {trsvcid}: {source}")]
    Connect {
        /// Subsystem.
        subnqn: String,
        /// Address.
        traddr: String,
        /// Port.
        trsvcid: u16,
        /// Why.
        source: ConnectError,
    },
    /// The namespace cannot be used.
    #[error(transparent)]
    Namespace(#[from] IoError),
    /// Something else of this machine has it.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// FUSE cannot be had.
    #[error(transparent)]
    Fuse(#[from] FuseError),
    /// No loop device.
    #[error(transparent)]
    Loop(#[from] LoopProcessError),
    /// The kernel does not finish with the loop device.
    #[error("the disk is not set up after {} s: the kernel waits for its first reads, and the controller is {status}; \
             nothing is attached, try again when the target answers", .patience.as_secs())]
    Late {
        /// How long that was waited for.
        patience: Duration,
        /// Where the association is.
        status: String,
    },
    /// It was to end before the disk was ready.
    #[error("the disk was given up before it was ready: a signal, or `capstan detach`")]
    Interrupted,
    /// Its end was insisted on while it was in use.
    #[error(
        "ended by a second signal, though {0}: its I/O fails, and what was not written is lost"
    )]
    Forced(String),
    /// The folder of the volume.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Something of the system.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ServeError {
    move |source| ServeError::System {
        what,
        source: source.into(),
    }
}

/// A disk that is being served.
struct Disk {
    controller: Controller,
    record: Record,
    /// Closed at the other end when the FUSE file is gone; a byte says that the volume has grown.
    life: OwnedFd,
    unwritten: SharedUnwritten,
    health: Health,
    told_to_wait: Option<fn(&str)>,
    /// Until the association has ended, and with it the last write; none of a disk that is
    /// read-only.
    _claim: Option<Claim>,
}

impl Disk {
    /// Where its association is; where nothing else is wrong, what of the disk is not written, or
    /// what the controller reports of its medium.
    fn state(&mut self) -> State {
        let mut state = state(&self.controller.snapshot_blocking(), self.record.nsid);
        if state.state == "live" {
            state.medium = self.health.attention(&self.controller, &self.record);
        }
        if state.state == "live"
            && state.attention.is_none()
            && let Some(text) = self.unwritten_in_words().or_else(|| state.medium.clone())
        {
            state.detail = format!("{}; {text}", state.detail);
            state.attention = Some(text);
        }
        state.silent_ms = self.health.silent_ms();
        state
    }

    /// Has the kernel end it with its last user, which is what keeps it now.
    fn end_with_last_user(&self, stays: &Stays) {
        let ends = match loop_process::set_autoclear(&self.record.device) {
            Ok(()) => "the disk ends with that".to_owned(),
            Err(error) => format!("then: capstan detach {} ({error})", self.record.name()),
        };
        let text = format!("asked to end, but {stays}; {ends}, and until then nothing is lost");
        tracing::warn!("{text}");
        if let Some(told_to_wait) = self.told_to_wait {
            told_to_wait(&text);
        }
    }

    /// What the kernel wrote to it and is not there.
    fn unwritten_in_words(&self) -> Option<String> {
        let Record {
            nsid, lba_bytes, ..
        } = self.record;
        self.unwritten
            .with(|unwritten| unwritten.in_words(nsid, lba_bytes))
    }
}

/// Attaches a namespace as a disk and serves it until it is detached. `ready` is called when the
/// disk can be used; an error of it ends everything, and so does it when nobody reads from
/// `asked_by`, a pipe, any more before. `dir` is the volume's folder, which is gone afterwards.
///
/// # Errors
/// `ServeError`.
pub fn serve(
    options: Options,
    disk: &DiskOptions,
    dir: &VolumeDir,
    asked_by: BorrowedFd<'_>,
    ready: impl FnOnce(&Record) -> io::Result<()>,
) -> Result<(), ServeError> {
    let result = serve_until_detached(options, disk, dir, asked_by, ready);
    if matches!(result, Err(ServeError::Forced(_))) {
        // It says where the disk is mounted to the command that unmounts it.
        return result;
    }
    if let Err(error) = dir.remove() {
        tracing::warn!(path = %dir.path().display(), "the volume's folder stays: {error}");
    }
    result
}

fn serve_until_detached(
    options: Options,
    disk: &DiskOptions,
    dir: &VolumeDir,
    asked_by: BorrowedFd<'_>,
    ready: impl FnOnce(&Record) -> io::Result<()>,
) -> Result<(), ServeError> {
    // Blocked before the driver's thread starts, which inherits the mask.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().map_err(system("blocking signals"))?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(&signals, flags).map_err(system("signalfd"))?;
    process::prepare();
    let control = ControlSocket::bind(&dir.control()).map_err(system("control socket"))?;
    let making = Making {
        signals: &signals,
        control: &control,
        asked_by,
    };
    let mut disk = attach(options, disk, dir, &making)?;
    let controller = disk.controller.clone();
    links::make(&disk.record);
    let result = dir
        .write(&disk.record)
        .map_err(ServeError::from)
        .and_then(|()| ready(&disk.record).map_err(system("telling that the disk is ready")));
    if let Err(error) = result {
        if let Err(reason) = detach(&disk.record, disk.life.as_fd(), None) {
            tracing::error!("the disk stays: {reason}");
        }
        links::remove(&disk.record);
        controller.close();
        return Err(error);
    }
    tracing::info!(
        device = %disk.record.device.display(),
        nqn = disk.record.subnqn,
        nsid = disk.record.nsid,
        "attached"
    );
    let result = wait(&mut disk, &signals, &control, dir);
    links::remove(&disk.record);
    // The disk is gone: nobody is to wait for an answer until the controller has been told.
    drop(control);
    if matches!(result, Err(ServeError::Forced(_))) {
        // As if it were killed: what is in flight is given up with the process, and so is the
        // claim.
        let _until_then = ManuallyDrop::new(disk);
        return result.map(drop);
    }
    let patience = matches!(result, Ok(End::Signal)).then_some(CLOSE_PATIENCE);
    let mut losses = close(&controller, patience)?.unwrap_or_else(|| {
        tracing::warn!("detached; the controller does not answer, and was not told");
        Losses::default()
    });
    losses.0.extend(disk.unwritten_in_words());
    tracing::info!("detached");
    if let Err(losses) = losses.into_result() {
        tracing::error!("{losses}");
        // The command that detaches tells it from there, before the folder goes.
        if let Err(error) = kept::keep(dir, &disk.record, &losses) {
            tracing::error!(path = %kept::path(dir, &disk.record).display(), "the log is not kept: {error}");
        }
    }
    result.map(drop)
}

/// Connects and makes the disk, which is on record before either.
fn attach(
    mut options: Options,
    disk: &DiskOptions,
    dir: &VolumeDir,
    making: &Making<'_>,
) -> Result<Disk, ServeError> {
    let io_timeout = options.io_timeout;
    options.data_memory_bytes = options.data_memory_bytes.max(DATA_MEMORY_BYTES);
    let (subnqn, traddr, trsvcid) = (
        options.subnqn.clone(),
        options.traddr.clone(),
        options.trsvcid,
    );
    let way = Way::of(&options);
    let process = Process::this().map_err(system("/proc/self/stat"))?;
    let mut record = Record {
        process,
        device: PathBuf::new(),
        loop_name: format!("capstan-{}-{}", process.pid, process.start_ticks),
        subnqn: subnqn.as_str().to_owned(),
        nsid: disk.nsid,
        traddr: traddr.clone(),
        trsvcid,
        way: way.to_string(),
        transport: None,
        transport_why: None,
        wire: WireFields::default(),
        size_bytes: 0,
        lba_bytes: 0,
        read_only: disk.read_only,
        mount_points: disk.mount_point.iter().cloned().collect(),
        fuse: None,
        volume_name: disk.volume_name.clone(),
        identifier: None,
    };
    dir.write(&record)?;
    let transport = options.transport;
    let connected = making.connect(options)?;
    let controller = connected.map_err(|source| ServeError::Connect {
        subnqn: subnqn.to_string(),
        traddr: traddr.clone(),
        trsvcid,
        source,
    })?;
    // Refuses namespaces that are not there or cannot be used.
    controller.volume_blocking(disk.nsid)?;
    let snapshot = controller.snapshot_blocking();
    let taken = snapshot.taken.as_ref();
    let transport = taken.map_or(transport, TakenTransport::transport);
    record.transport = Some(transport.name().to_owned());
    if let Some(taken) = taken {
        record.way = way.over(taken).to_string();
    }
    record.transport_why = taken.map(|taken| taken.in_words(&traddr, trsvcid));
    record.wire = WireFields::of(snapshot.wire.as_ref());
    let namespace = snapshot.namespaces.iter().find(|n| n.nsid == disk.nsid);
    let namespace = namespace.ok_or_else(|| {
        let (found, rest) = (&snapshot.namespaces, &snapshot.unidentified);
        IoError::no_namespace(&subnqn, disk.nsid, found, rest)
    })?;
    let geometry = Geometry::new(&snapshot.controller, namespace, disk.read_only);
    let mut claim = if geometry.read_only {
        None
    } else {
        let holder = Holder::this("attached", &traddr, trsvcid).map_err(system("/proc/self"))?;
        let subnqn = subnqn.as_str();
        Some(Claim::new(subnqn, namespace, disk.sharing, holder)?)
    };
    record.identifier = links::identifier(namespace);
    record.size_bytes = geometry.size_bytes;
    record.lba_bytes = geometry.lba_bytes;
    record.read_only = geometry.read_only;
    let unwritten = SharedUnwritten::default();
    let set_up = SetUp {
        controller: &controller,
        geometry,
        dir,
        making,
        source: &source_name(&subnqn, disk.nsid),
        io_timeout,
        unwritten: &unwritten,
    };
    let made = set_up.make_disk(&mut record, &mut claim);
    match made {
        Ok(life) => Ok(Disk {
            controller,
            record,
            life,
            unwritten: unwritten.clone(),
            health: Health::new(),
            told_to_wait: disk.told_to_wait,
            _claim: claim,
        }),
        Err(error) => {
            close(&controller, Some(CLOSE_PATIENCE))?;
            Err(error)
        }
    }
}

/// What has ended a disk.
enum End {
    Detached,
    Signal,
}

/// Serves until the disk is gone, or somebody asks for that and nobody uses it, or insists.
fn wait(
    disk: &mut Disk,
    signals: &SignalFd,
    control: &ControlSocket,
    dir: &VolumeDir,
) -> Result<End, ServeError> {
    let mut asked: Option<Asked> = None;
    loop {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = [
            readable(disk.life.as_fd()),
            readable(signals.as_fd()),
            readable(control.as_fd()),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(system("poll")(errno)),
        }
        let life = fds.first().and_then(PollFd::revents);
        let life = life.unwrap_or(PollFlags::empty());
        if life.contains(PollFlags::POLLIN) {
            grow(disk, dir);
        } else if !life.is_empty() {
            tracing::info!("the last user of the disk is gone");
            return Ok(End::Detached);
        }
        while let Ok(Some(signal)) = signals.read_signal() {
            if i32::try_from(signal.ssi_signo) == Ok(Signal::SIGHUP as i32) {
                continue;
            }
            if disk.told_to_wait.is_some() {
                match detach(&disk.record, disk.life.as_fd(), None) {
                    Ok(()) => return Ok(End::Signal),
                    Err(stays) => disk.end_with_last_user(&stays),
                }
                continue;
            }
            if asked.is_some_and(|asked| !asked.is_insisted_on()) {
                continue;
            }
            match detach(&disk.record, disk.life.as_fd(), Some(signals)) {
                Ok(()) => return Ok(End::Signal),
                Err(Stays::Insisted(reason)) => return Err(ServeError::Forced(reason)),
                Err(Stays::InUse(reason)) if asked.is_some_and(|at| at.elapsed() < INSISTENCE) => {
                    return Err(ServeError::Forced(reason));
                }
                Err(Stays::InUse(reason)) => {
                    tracing::warn!(
                        "asked to end by a signal, but {reason}; another signal within {} s ends it at once: its I/O \
                         fails, and what was not written is lost",
                        INSISTENCE.as_secs()
                    );
                    asked = Some(Asked::now());
                }
            }
        }
        if let Some((request, asker)) = control.accept() {
            match request {
                Request::Status => {
                    asker.answer(&Answer::Status(disk.state()));
                }
                Request::Reset => {
                    disk.controller.reset();
                    asker.answer(&Answer::Begun);
                }
                Request::Rescan => {
                    disk.controller.rescan();
                    asker.answer(&Answer::Begun);
                }
                Request::Detach => match detach(&disk.record, disk.life.as_fd(), None) {
                    Ok(()) => {
                        asker.answer(&Answer::Detached);
                        return Ok(End::Detached);
                    }
                    Err(stays) => asker.answer(&Answer::Refused(stays.to_string())),
                },
            }
        }
    }
}

/// The FUSE file is longer than it was: so becomes the disk. Waited for by a thread of its own:
/// others may have the device to themselves while they wait for the target.
fn grow(disk: &mut Disk, dir: &VolumeDir) {
    let mut told = [0; 64];
    let _ = nix::unistd::read(&disk.life, &mut told);
    let now = disk.controller.snapshot_blocking();
    let mut namespaces = now.namespaces.iter();
    if let Some(namespace) = namespaces.find(|n| n.nsid == disk.record.nsid) {
        disk.record.size_bytes = namespace.size_bytes();
    }
    // Others have written it, too: where it is mounted.
    let record = dir.record().ok().flatten();
    let record = record.map_or_else(
        || disk.record.clone(),
        |record| Record {
            size_bytes: disk.record.size_bytes,
            ..record
        },
    );
    if let Err(error) = dir.write(&record) {
        tracing::warn!(target: PEER_CAUSED, "`capstan list` shows the size that the disk had: {error}");
    }
    let (path, size_bytes) = (disk.record.device.clone(), disk.record.size_bytes);
    let name = path.clone();
    let tell = move || {
        let device = path.clone();
        let grown = loop_process::ask(&LoopRequest::TakeSize { device });
        let path = path.display();
        match grown {
            Ok(_) => tracing::info!(
                target: PEER_CAUSED,
                "{path} has {size_bytes} bytes now; what is on it is made larger by its own tool (resize2fs, xfs_growfs, pvresize)"
            ),
            Err(error) => tracing::error!(
                target: PEER_CAUSED,
                "{error}: the disk keeps its old size; `losetup --set-capacity {path}` tries again"
            ),
        }
    };
    if let Err(error) = thread::Builder::new()
        .name("capstan-size".to_owned())
        .spawn(tell)
    {
        let path = name.display();
        tracing::error!(
            "no thread tells {path} its new size: {error}; it keeps the old one, and `losetup --set-capacity {path}` \
             tries again"
        );
    }
}
