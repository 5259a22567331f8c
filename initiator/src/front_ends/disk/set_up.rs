//! The making of a disk: the FUSE file, and the loop device, which a process of its own configures.
//!
//! This process serves the file meanwhile, answers `list`, and gives up when it takes too long:
//! the kernel reads the partition table before it lets go of the one that configures the device.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::fcntl::OFlag;
use nix::unistd::{getgid, getuid, pipe2};

use super::control::{Answer, Asker, Request, State};
use super::loop_process::{LoopAnswer, LoopProcess, LoopProcessError, LoopRequest};
use super::making::Making;
use super::mounts::mounts;
use super::record::{Record, VolumeDir};
use super::serve::{ServeError, system};
use super::status::state;
use crate::claim::{Claim, HolderDisk};
use crate::controller::Controller;
use crate::front_ends::block::Geometry;
use crate::front_ends::fuse::file_system::FileSystem;
use crate::front_ends::fuse::{FuseConnection, FuseFrontEnd, FuseMount};
use crate::front_ends::unwritten::SharedUnwritten;
use crate::limits::DISK_DESCRIPTORS;

/// Beyond the time that one I/O may take: the kernel's own work, and a reconnect that goes well.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the process that configures the device may take to end when its I/O fails.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Fails where a disk could be made and not be ended in order any more, which opens files: better
/// none than one that only force ends.
fn check_descriptors() -> io::Result<()> {
    let opened = (0..DISK_DESCRIPTORS).map(|_| File::open("/dev/null"));
    opened.collect::<io::Result<Vec<_>>>().map(drop)
}

/// What a disk is made with.
pub(super) struct SetUp<'a> {
    pub(super) controller: &'a Controller,
    pub(super) geometry: Geometry,
    pub(super) dir: &'a VolumeDir,
    pub(super) making: &'a Making<'a>,
    /// What mountinfo shows of the FUSE mount.
    pub(super) source: &'a str,
    /// How long one I/O may take.
    pub(super) io_timeout: Duration,
    /// Where writes are noted that fail.
    pub(super) unwritten: &'a SharedUnwritten,
}

impl SetUp<'_> {
    /// Makes the disk, and completes `record` and `claim` with what it comes to be, each before it
    /// is. The FUSE mount is seen for a moment only: the loop device keeps its file system alive,
    /// so that nobody else gets at the file, and nothing is left to unmount. The other end of what
    /// is returned is closed when the FUSE file is gone.
    pub(super) fn make_disk(
        &self,
        record: &mut Record,
        claim: &mut Option<Claim>,
    ) -> Result<OwnedFd, ServeError> {
        check_descriptors()
            .map_err(system("opening as many files as the end of the disk takes"))?;
        let mount_point = self.dir.mount_point();
        fs::create_dir(&mount_point).map_err(system("folder to mount FUSE at"))?;
        let (mount, fuse) = FuseMount::new(&mount_point, self.source, self.geometry.read_only)?;
        record.fuse = self.connection().map_err(system("/proc/self/mountinfo"))?;
        let (life, life_of_front_end) =
            pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(system("pipe"))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let time_s = now.map_or(0, |now| now.as_secs());
        let owner = (getuid().as_raw(), getgid().as_raw());
        let geometry = self.geometry;
        let unwritten = self.unwritten.clone();
        let file_system = FileSystem::new(&record.loop_name, geometry, owner, time_s);
        self.controller
            .add_front_end(move |pool| {
                let mut front_end =
                    FuseFrontEnd::new(fuse, file_system, geometry, pool, life_of_front_end)?;
                front_end.set_unwritten(unwritten);
                Ok(Box::new(front_end))
            })
            .map_err(system("starting the FUSE front end"))?;
        let mut process = LoopProcess::start(&LoopRequest::Configure {
            file: mount_point.join(&record.loop_name),
            lba_bytes: geometry.lba_bytes,
            read_only: geometry.read_only,
            name: record.loop_name.clone(),
        })?;
        let result = self.configure(&mut process, record, claim);
        if let Err(error) = result {
            // Its I/O fails from now on, so that the kernel lets go of what waits for it.
            if let Some(Err(error)) = record.fuse.map(|fuse| fuse.abort(self.dir.path())) {
                tracing::warn!("aborting the FUSE connection: {error}");
            }
            if !process.end(END_PATIENCE) {
                tracing::error!("the process that configures the loop device has not ended yet");
            }
            return Err(error);
        }
        mount.detach().map_err(system("detaching the FUSE mount"))?;
        fs::remove_dir(&mount_point).map_err(system("folder FUSE was mounted at"))?;
        process
            .go_on()
            .map_err(system("letting the loop device live on"))?;
        if !process.end(self.patience()) {
            return Err(self.late());
        }
        Ok(life)
    }

    /// Goes through the process's answers, and whatever else comes meanwhile.
    fn configure(
        &self,
        process: &mut LoopProcess,
        record: &mut Record,
        claim: &mut Option<Claim>,
    ) -> Result<(), ServeError> {
        let start = Instant::now();
        loop {
            let rest = self.patience().saturating_sub(start.elapsed());
            let nsid = record.nsid;
            let answer = |request, asker: Asker| asker.answer(&self.answer(request, nsid));
            if !self.making.wait_for(process.fd(), Some(rest), answer)? {
                return Err(self.late());
            }
            match process.answer()? {
                LoopAnswer::Chosen(device) => {
                    record.device = device;
                    self.dir.write(record)?;
                    if let Some(claim) = claim {
                        let disk = HolderDisk {
                            device: record.device.clone(),
                            loop_name: record.loop_name.clone(),
                            folder: self.dir.path().to_owned(),
                        };
                        claim.set_disk(disk).map_err(system("the claim's file"))?;
                    }
                    process
                        .go_on()
                        .map_err(system("configuring the loop device"))?;
                }
                LoopAnswer::Done => return Ok(()),
                other => {
                    let text = format!("configuring a loop device: it said {other:?}");
                    return Err(LoopProcessError::Failed(text).into());
                }
            }
        }
    }

    fn answer(&self, request: Request, nsid: u32) -> Answer {
        match request {
            Request::Status | Request::Detach => {
                let now = state(&self.controller.snapshot_blocking(), nsid);
                let detail = format!("the kernel reads the partition table; {}", now.detail);
                Answer::Status(State {
                    state: "setting up".to_owned(),
                    detail,
                    ..now
                })
            }
            Request::Reset => {
                self.controller.reset();
                Answer::Begun
            }
            Request::Rescan => {
                self.controller.rescan();
                Answer::Begun
            }
        }
    }

    /// The connection of the FUSE mount. The mount is not looked into: nobody answers there yet.
    fn connection(&self) -> io::Result<Option<FuseConnection>> {
        let at = fs::canonicalize(self.dir.path())?.join("fuse");
        let mount = mounts()?.into_iter().rev().find(|m| m.mount_point == at);
        Ok(mount.map(|mount| FuseConnection::of_device(mount.device)))
    }

    fn patience(&self) -> Duration {
        self.io_timeout.saturating_add(PATIENCE)
    }

    fn late(&self) -> ServeError {
        ServeError::Late {
            patience: self.patience(),
            status: self.controller.snapshot_blocking().status.to_string(),
        }
    }
}
