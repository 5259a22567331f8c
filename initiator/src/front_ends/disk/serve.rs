//! The process behind a disk: association, FUSE file, loop device, from attach to detach.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{getgid, getuid, pipe2};

use super::control::{Answer, ControlSocket, Request, State};
use super::loop_device::{self, LoopDevice, LoopError, LoopOptions};
use super::mounts::{Elsewhere, mount_elsewhere, mounts_of};
use super::process;
use super::record::{Record, RecordError, VolumeDir};
use super::serving::Process;
use super::users::users_of;
use crate::claim::{Claim, ClaimError, Holder, HolderDisk, Sharing};
use crate::controller::{Controller, Snapshot};
use crate::error::{ConnectError, IoError};
use crate::front_ends::block::Geometry;
use crate::front_ends::fuse::file_system::{FILE_NAME, FileSystem, source_name};
use crate::front_ends::fuse::{FuseError, FuseFrontEnd, FuseMount};
use crate::host::Status;
use crate::options::Options;

/// Data memory of a disk's association, in bytes: the landing place of FUSE writes (1 MiB) and
/// what is in flight. The loop device sends 128 requests; at 512 KiB and more it is bandwidth
/// that bounds, not their number.
const DATA_MEMORY_BYTES: usize = 64 << 20;
/// How long a cleared loop device may take to let the file go.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);
/// A log longer than this is begun anew, in bytes: it lies in memory.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// Between two looks at the log's length.
const LOG_CHECK: Duration = Duration::from_secs(3600);

/// What to attach.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Namespace.
    pub nsid: u32,
    /// Refuse writes whatever the controller allows.
    pub read_only: bool,
    /// Whether others of this machine may write as well.
    pub sharing: Sharing,
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
    Loop(#[from] LoopError),
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

fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ServeError {
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
    /// Until the association has ended, and with it the last write; none of a disk that is
    /// read-only.
    _claim: Option<Claim>,
}

/// Attaches a namespace as a disk and serves it until it is detached. `ready` is called when the
/// disk can be used; an error of it ends everything. `dir` is the volume's folder, which is gone
/// afterwards.
///
/// # Errors
/// [`ServeError`].
pub fn serve(
    options: Options,
    disk: &DiskOptions,
    dir: &VolumeDir,
    ready: impl FnOnce(&Record) -> io::Result<()>,
) -> Result<(), ServeError> {
    let result = serve_until_detached(options, disk, dir, ready);
    if let Err(error) = dir.remove() {
        tracing::warn!(path = %dir.path().display(), "the volume's folder stays: {error}");
    }
    result
}

fn serve_until_detached(
    options: Options,
    disk: &DiskOptions,
    dir: &VolumeDir,
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
    let disk = attach(options, disk, dir)?;
    let controller = disk.controller.clone();
    let result = dir
        .write(&disk.record)
        .map_err(ServeError::from)
        .and_then(|()| ready(&disk.record).map_err(system("telling that the disk is ready")));
    if let Err(error) = result {
        if let Err(reason) = detach(&disk) {
            tracing::error!("the disk stays: {reason}");
        }
        controller.close();
        return Err(error);
    }
    tracing::info!(
        device = %disk.record.device.display(),
        nqn = disk.record.subnqn,
        nsid = disk.record.nsid,
        "attached"
    );
    let result = wait(disk, &signals, &control, dir);
    controller.close();
    tracing::info!("detached");
    result
}

/// Connects and makes the disk.
fn attach(mut options: Options, disk: &DiskOptions, dir: &VolumeDir) -> Result<Disk, ServeError> {
    options.data_memory_bytes = options.data_memory_bytes.max(DATA_MEMORY_BYTES);
    let (subnqn, traddr, trsvcid) = (
        options.subnqn.clone(),
        options.traddr.clone(),
        options.trsvcid,
    );
    let controller = Controller::connect(options).map_err(|source| ServeError::Connect {
        subnqn: subnqn.to_string(),
        traddr: traddr.clone(),
        trsvcid,
        source,
    })?;
    // Refuses namespaces that are not there or cannot be used.
    controller.volume_blocking(disk.nsid)?;
    let snapshot = controller.snapshot_blocking();
    let namespace = snapshot.namespaces.iter().find(|n| n.nsid == disk.nsid);
    let namespace = namespace.ok_or(IoError::NoNamespace(disk.nsid))?;
    let geometry = Geometry::new(&snapshot.controller, namespace, disk.read_only);
    let process = Process::this().map_err(system("/proc/self/stat"))?;
    let mut claim = if geometry.read_only {
        None
    } else {
        let holder = Holder::this("attached", &traddr, trsvcid).map_err(system("/proc/self"))?;
        let subnqn = subnqn.as_str();
        Some(Claim::new(subnqn, namespace, disk.sharing, holder)?)
    };
    let loop_name = format!("capstan-{}-{}", process.pid, process.start_ticks);
    let made = make_disk(
        &controller,
        geometry,
        dir,
        &source_name(&subnqn, disk.nsid),
        &loop_name,
    );
    let (device, life) = match made {
        Ok(made) => made,
        Err(error) => {
            controller.close();
            return Err(error);
        }
    };
    if let Some(claim) = &mut claim {
        let disk = HolderDisk {
            device: device.path().to_owned(),
            loop_name: loop_name.clone(),
            folder: dir.path().to_owned(),
        };
        claim.set_disk(disk).map_err(system("the claim's file"))?;
    }
    let record = Record {
        process,
        device: device.path().to_owned(),
        loop_name,
        subnqn: subnqn.to_string(),
        nsid: disk.nsid,
        traddr,
        trsvcid,
        size_bytes: geometry.size_bytes,
        lba_bytes: geometry.lba_bytes,
        read_only: geometry.read_only,
    };
    Ok(Disk {
        controller,
        record,
        life,
        _claim: claim,
    })
}

/// FUSE file and loop device. The FUSE mount is seen for a moment only: the loop device keeps its
/// file system alive, so that nobody else gets at the file, and nothing is left to unmount.
fn make_disk(
    controller: &Controller,
    geometry: Geometry,
    dir: &VolumeDir,
    source: &str,
    loop_name: &str,
) -> Result<(LoopDevice, OwnedFd), ServeError> {
    let mount_point = dir.mount_point();
    fs::create_dir(&mount_point).map_err(system("folder to mount FUSE at"))?;
    let (mount, fuse) = FuseMount::new(&mount_point, source, geometry.read_only)?;
    let (life, life_of_front_end) =
        pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(system("pipe"))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let time_s = now.map_or(0, |now| now.as_secs());
    let owner = (getuid().as_raw(), getgid().as_raw());
    let file_system = FileSystem::new(geometry, owner, time_s);
    controller
        .add_front_end(move |pool| {
            let front_end =
                FuseFrontEnd::new(fuse, file_system, geometry, pool, life_of_front_end)?;
            Ok(Box::new(front_end))
        })
        .map_err(system("starting the FUSE front end"))?;
    let file = File::options()
        .read(true)
        .write(!geometry.read_only)
        .custom_flags(libc::O_DIRECT)
        .open(mount_point.join(FILE_NAME))
        .map_err(system("opening the FUSE file"))?;
    let options = LoopOptions {
        lba_bytes: geometry.lba_bytes,
        read_only: geometry.read_only,
        name: loop_name,
    };
    let device = LoopDevice::configure(&file, &options)?;
    mount.detach().map_err(system("detaching the FUSE mount"))?;
    fs::remove_dir(&mount_point).map_err(system("folder FUSE was mounted at"))?;
    Ok((device, life))
}

/// Serves until the disk is gone, or somebody asks for that and nobody uses it.
fn wait(
    mut disk: Disk,
    signals: &SignalFd,
    control: &ControlSocket,
    dir: &VolumeDir,
) -> Result<(), ServeError> {
    loop {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = [
            readable(disk.life.as_fd()),
            readable(signals.as_fd()),
            readable(control.as_fd()),
        ];
        let timeout = PollTimeout::try_from(LOG_CHECK).unwrap_or(PollTimeout::NONE);
        match poll(&mut fds, timeout) {
            Ok(0) => trim_log(dir),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(system("poll")(errno)),
        }
        let life = fds.first().and_then(PollFd::revents);
        let life = life.unwrap_or(PollFlags::empty());
        if life.contains(PollFlags::POLLIN) {
            grow(&mut disk, dir);
        } else if !life.is_empty() {
            tracing::info!("the last user of the disk is gone");
            return Ok(());
        }
        while let Ok(Some(signal)) = signals.read_signal() {
            if i32::try_from(signal.ssi_signo) == Ok(Signal::SIGHUP as i32) {
                continue;
            }
            match detach(&disk) {
                Ok(()) => return Ok(()),
                Err(reason) => tracing::warn!("asked to end by a signal, but {reason}"),
            }
        }
        if let Some((request, asker)) = control.accept() {
            match request {
                Request::Status => {
                    let now = disk.controller.snapshot_blocking();
                    asker.answer(&Answer::Status(state(&now, disk.record.nsid)));
                }
                Request::Reset => {
                    disk.controller.reset();
                    asker.answer(&Answer::Begun);
                }
                Request::Rescan => {
                    disk.controller.rescan();
                    asker.answer(&Answer::Begun);
                }
                Request::Detach => match detach(&disk) {
                    Ok(()) => {
                        asker.answer(&Answer::Detached);
                        return Ok(());
                    }
                    Err(reason) => asker.answer(&Answer::Refused(reason)),
                },
            }
        }
    }
}

/// The FUSE file is longer than it was: so becomes the disk. By a thread of its own: the kernel has
/// the device to itself while others open it, and they may wait for the target.
fn grow(disk: &mut Disk, dir: &VolumeDir) {
    let mut told = [0; 64];
    let _ = nix::unistd::read(&disk.life, &mut told);
    let now = disk.controller.snapshot_blocking();
    let mut namespaces = now.namespaces.iter();
    if let Some(namespace) = namespaces.find(|n| n.nsid == disk.record.nsid) {
        disk.record.size_bytes = namespace.size_bytes();
    }
    if let Err(error) = dir.write(&disk.record) {
        tracing::warn!("`capstan list` shows the size that the disk had: {error}");
    }
    let (path, size_bytes) = (disk.record.device.clone(), disk.record.size_bytes);
    thread::spawn(move || {
        let grown = LoopDevice::open(&path).and_then(|device| device.take_size());
        let path = path.display();
        match grown {
            Ok(()) => tracing::info!(
                "{path} has {size_bytes} bytes now; what is on it is made larger by its own tool (resize2fs, xfs_growfs, pvresize)"
            ),
            Err(error) => tracing::error!(
                "{error}: the disk keeps its old size; `losetup --set-capacity {path}` tries again"
            ),
        }
    });
}

/// Takes the loop device down unless it is in use; why not, in words, otherwise.
fn detach(disk: &Disk) -> Result<(), String> {
    clear_loop(&disk.record)?;
    // The device lets the file go when its last I/O is done; the kernel then ends the mount.
    // Asked for nothing, it tells of the hang-up.
    let mut fds = [PollFd::new(disk.life.as_fd(), PollFlags::empty())];
    let timeout = PollTimeout::try_from(RELEASE_PATIENCE).unwrap_or(PollTimeout::NONE);
    match poll(&mut fds, timeout) {
        Ok(1) => Ok(()),
        _ => Err(format!(
            "{} is still open in {}; it is detached when that ends",
            disk.record.device.display(),
            users_of(&disk.record.device),
        )),
    }
}

/// Clears the loop device of a volume, if it still is one and nobody has claimed it.
///
/// # Errors
/// Why it cannot be cleared, in words.
pub fn clear_loop(record: &Record) -> Result<(), String> {
    let path = &record.device;
    let text = |error: LoopError| error.to_string();
    let Some(device) = LoopDevice::claim(path).map_err(text)? else {
        return Err(format!("{} is {}", path.display(), use_of(path)));
    };
    if device.name().map_err(text)?.as_deref() != Some(&record.loop_name) {
        // It has been cleared, and may be somebody else's by now.
        return Ok(());
    }
    device.clear().map_err(text)
}

/// What uses the disk of a volume (a mount, another device), and what to do about it; `None` when
/// no use of it is known.
#[must_use]
pub fn claimed(record: &Record) -> Option<String> {
    let path = &record.device;
    let claimed = matches!(LoopDevice::claim(path), Ok(None));
    claimed.then(|| format!("{} is {}", path.display(), use_of(path)))
}

/// Takes the file away from a volume's disk though it is in use: with its last user at the latest.
///
/// # Errors
/// Why not, in words.
pub fn clear_loop_later(record: &Record) -> Result<(), String> {
    let text = |error: LoopError| error.to_string();
    let device = LoopDevice::open(&record.device).map_err(text)?;
    if device.name().map_err(text)?.as_deref() != Some(&record.loop_name) {
        // It has been cleared, and may be somebody else's by now.
        return Ok(());
    }
    device.clear().map_err(text)
}

/// How a claimed device is used, and what to do about it.
fn use_of(path: &Path) -> String {
    let mounts = mounts_of(path).unwrap_or_default();
    if let Some(mount) = mounts.first() {
        let at = mount.mount_point.display();
        return format!("mounted at {at}; unmount it first: capstan umount {at}");
    }
    if let Some(Elsewhere { mount, pid, name }) = mount_elsewhere(path) {
        let at = mount.mount_point.display();
        return format!(
            "mounted at {at} in the mount namespace of {name} (pid {pid}); unmount it there first: \
             nsenter --target {pid} --mount umount {at}"
        );
    }
    let holders = loop_device::holders(path);
    if holders.is_empty() {
        format!(
            "claimed by another user ({}); end that first",
            users_of(path)
        )
    } else {
        format!("used by {}; take that down first", holders.join(", "))
    }
}

fn state(now: &Snapshot, nsid: u32) -> State {
    let (state, attempt) = match &now.status {
        Status::Live => ("live", None),
        Status::Connecting { attempt, .. } | Status::Waiting { attempt, .. } => {
            ("reconnecting", Some(*attempt))
        }
        Status::Resetting => ("reconnecting", None),
        Status::Failed(_) => ("lost", None),
        Status::ShuttingDown | Status::Closed => ("closing", None),
    };
    let attention = now.attention.iter().find(|(of, _)| *of == nsid);
    let attention = attention.map(|(_, text)| text.clone());
    let detail = match &attention {
        Some(text) => format!("{}; {text}", now.status),
        None => now.status.to_string(),
    };
    State {
        state: state.to_owned(),
        attempt,
        detail,
        held: now.held.map(|held| held.to_string()),
        attention,
    }
}

/// Begins a log that has grown too long anew. It is open for appending, so the next line is its
/// first.
fn trim_log(dir: &VolumeDir) {
    let log = dir.log();
    let long = fs::metadata(&log).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX);
    if long
        && File::options()
            .write(true)
            .truncate(true)
            .open(&log)
            .is_ok()
    {
        tracing::info!("the log was begun anew");
    }
}
