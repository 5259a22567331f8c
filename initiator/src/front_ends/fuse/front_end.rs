//! The FUSE file on the driver's thread.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use capstan_memory::{Buffer, Pool};
use capstan_rdma::PEER_CAUSED;
use capstan_reactor::Armed;
use nix::errno::Errno;
use nix::libc;
use zerocopy::{FromBytes, IntoBytes};

use super::file_system::{Answer, FileSystem, TRANSFER_BYTES_MAX};
use super::replies::Device;
use super::request::{BODY_BYTES_MAX, Request};
use super::wire::{InHeader, WRITE_HEAD_BYTES, WriteOut};
use crate::driver::{Completion, Op, SubmitError};
use crate::error::IoError;
use crate::front_end::{FrontEnd, QueueHandle};
use crate::front_ends::block::{BlockQueue, Fault, Geometry, NamespaceQueue};
use crate::front_ends::lease::{self, Part, Place};
use crate::front_ends::unwritten::SharedUnwritten;
use crate::host::NamespaceInfo;

/// Requests taken in one turn.
const REQUESTS_PER_TURN: u32 = 64;
/// I/Os in flight: what the kernel sends at once (`max_background`) and requests somebody waits
/// for. Beyond it they stay in the kernel's queue.
const IN_FLIGHT_MAX: u32 = 640;
/// Data up to this length is copied into a lease of its size; longer data keeps the lease it landed
/// in, of which a new one must then be had.
const COPY_BYTES_MAX: u32 = 64 << 10;
/// How soon to try again for memory or a place that others hold, in microseconds.
const RETRY_US: u64 = 1000;

/// What a reply carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `len_bytes` from byte `skip` of the lease.
    Read { skip: u32, len_bytes: u32 },
    /// The number of bytes.
    Write { len_bytes: u32 },
    /// Nothing yet: `len_bytes` that landed belong at byte `skip` of what is being read, and then
    /// all of it is written.
    Merge { skip: u32, len_bytes: u32 },
    /// Nothing.
    Status,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    unique: u64,
    kind: Kind,
    op: Op,
}

/// Data of an I/O that is to be submitted.
enum Data {
    None,
    /// A lease of so many bytes.
    Take(u32),
    /// The bytes that landed.
    Landed(u32),
    Ready(Buffer),
}

/// A request that waits for memory or a place.
struct Stalled {
    unique: u64,
    kind: Kind,
    op: Op,
    data: Data,
}

/// Serves a volume as the file of a FUSE mount. See the [module](super).
pub(crate) struct FuseFrontEnd {
    device: Device,
    file_system: FileSystem,
    geometry: Geometry,
    head: [u8; WRITE_HEAD_BYTES],
    /// Where the data of the next write comes to lie.
    landing: Buffer,
    stalled: Option<Stalled>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    /// I/Os in flight that change the volume.
    changes: u32,
    /// A write of parts of LBAs is under way; nothing else is until it is done.
    merging: bool,
    retry_us: Option<u64>,
    finished: bool,
    unwritten: SharedUnwritten,
    /// Something is in `unwritten`.
    misses_writes: bool,
    /// Closed with this front end, so that the other end of the pipe knows. A byte says that the
    /// volume has grown.
    life: OwnedFd,
}

impl FuseFrontEnd {
    /// Serves `geometry`'s namespace through `device`, the descriptor of a FUSE mount. `life` is
    /// closed when the front end is gone: when the mount is, or the association; a byte comes out
    /// of its other end when the volume has grown. It does not block.
    ///
    /// # Errors
    /// `pool` has less than a mebibyte.
    pub(crate) fn new(
        device: File,
        file_system: FileSystem,
        geometry: Geometry,
        pool: &Pool,
        life: OwnedFd,
    ) -> io::Result<Self> {
        let landing = pool.take(TRANSFER_BYTES_MAX).ok_or_else(|| {
            io::Error::other("the association has no mebibyte of data memory; give it more")
        })?;
        Ok(Self {
            device: Device(device),
            file_system,
            geometry,
            head: [0; WRITE_HEAD_BYTES],
            landing,
            stalled: None,
            in_flight: (0..IN_FLIGHT_MAX).map(|_| None).collect(),
            free: (0..IN_FLIGHT_MAX).rev().collect(),
            changes: 0,
            merging: false,
            retry_us: None,
            finished: false,
            unwritten: SharedUnwritten::default(),
            misses_writes: false,
            life,
        })
    }

    /// Where it notes the writes that failed.
    pub(crate) fn set_unwritten(&mut self, unwritten: SharedUnwritten) {
        self.unwritten = unwritten;
    }

    /// Another pipe for a test to hold the end of.
    #[cfg(test)]
    pub(super) fn set_life(&mut self, life: OwnedFd) {
        self.life = life;
    }

    fn wants_requests(&self) -> bool {
        self.stalled.is_none() && !self.free.is_empty() && !self.merging && !self.finished
    }

    /// Takes requests until there are none, or until the turn's budget, memory or places are used
    /// up. `true` when something was done.
    pub(super) fn take_requests(&mut self, queue: &mut dyn BlockQueue) -> bool {
        let mut busy = false;
        if let Some(stalled) = self.stalled.take() {
            busy = self.start(stalled, queue);
        }
        for _ in 0..REQUESTS_PER_TURN {
            if !self.wants_requests() {
                break;
            }
            let mut places = [
                Place::Bytes(&mut self.head),
                Place::Lease {
                    lease: &mut self.landing,
                    start: 0,
                    len_bytes: TRANSFER_BYTES_MAX,
                },
            ];
            match lease::receive(self.device.0.as_fd(), &mut places) {
                Ok(count) => {
                    busy = true;
                    self.take_request(count, queue);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => break,
                    // An aborted request; the next one may be a good one.
                    Some(libc::ENOENT | libc::EINTR) => {}
                    Some(libc::ENODEV | libc::ECONNABORTED) => {
                        tracing::info!("the kernel let the FUSE file go");
                        self.finished = true;
                    }
                    _ => {
                        tracing::error!("reading {}: {error}", super::device::FUSE_DEVICE);
                        self.finished = true;
                    }
                },
            }
        }
        busy
    }

    /// Takes the request of `count` bytes that has been read.
    fn take_request(&mut self, count: usize, queue: &mut dyn BlockQueue) {
        let mut request = [0; size_of::<InHeader>() + BODY_BYTES_MAX];
        let len = count.min(request.len());
        let (head, rest) = request.split_at_mut(WRITE_HEAD_BYTES);
        head.copy_from_slice(&self.head);
        if let Some(rest) = rest.get_mut(..len.saturating_sub(WRITE_HEAD_BYTES)) {
            self.landing.copy_to(0, rest);
        }
        let request = request.get(..len).unwrap_or_default();
        let Ok((header, body)) = InHeader::read_from_prefix(request) else {
            tracing::error!(count, "a FUSE request is shorter than its header");
            return;
        };
        let unique = header.unique;
        let request = Request::parse(&header, body);
        match self.file_system.answer(header.nodeid, &request) {
            Answer::Reply(bytes) => self.device.reply(unique, &bytes),
            Answer::Error(errno) => self.device.error(unique, errno),
            Answer::Silence => {}
            Answer::Io => match self.io(unique, &request, count) {
                Ok(Some(stalled)) => {
                    self.start(stalled, queue);
                }
                Ok(None) => self.device.reply(unique, &[]),
                Err(errno) => self.device.error(unique, errno),
            },
        }
    }

    /// The I/O of a request; `None` when it is nothing.
    fn io(
        &self,
        unique: u64,
        request: &Request<'_>,
        count: usize,
    ) -> Result<Option<Stalled>, Errno> {
        let geometry = &self.geometry;
        let (kind, op, data) = match *request {
            Request::Read {
                offset_bytes,
                len_bytes,
            } => {
                let Some((op, kind)) = read_op(geometry, offset_bytes, len_bytes)? else {
                    return Ok(None);
                };
                let (_, nlb) = op.range();
                (kind, op, Data::Take(nlb * geometry.lba_bytes))
            }
            Request::Write {
                offset_bytes,
                len_bytes,
            } => {
                if count != WRITE_HEAD_BYTES + len_bytes as usize {
                    return Err(Errno::EIO);
                }
                write_op(geometry, offset_bytes, len_bytes)?
            }
            Request::Fallocate {
                offset_bytes,
                len_bytes,
                mode,
            } => {
                let Some(op) = fallocate_op(geometry, offset_bytes, len_bytes, mode)? else {
                    return Ok(None);
                };
                (Kind::Status, op, Data::None)
            }
            _ => (Kind::Status, Op::Flush, Data::None),
        };
        Ok(Some(Stalled {
            unique,
            kind,
            op,
            data,
        }))
    }

    /// Submits an I/O; keeps it when there is no memory or place for it now, and says `false`.
    fn start(&mut self, stalled: Stalled, queue: &mut dyn BlockQueue) -> bool {
        let Stalled {
            unique,
            kind,
            op,
            data,
        } = stalled;
        let lease = match data {
            Data::None => Ok(None),
            Data::Ready(lease) => Ok(Some(lease)),
            Data::Take(len_bytes) => queue.take(len_bytes).map(Some).ok_or(Data::Take(len_bytes)),
            Data::Landed(len_bytes) => self
                .take_landed(len_bytes, queue)
                .map(Some)
                .ok_or(Data::Landed(len_bytes)),
        };
        let lease = lease.and_then(|lease| {
            if matches!(kind, Kind::Merge { .. }) && self.changes > 0 {
                Err(lease.map_or(Data::None, Data::Ready))
            } else {
                Ok(lease)
            }
        });
        let data = match (lease, self.free.pop()) {
            (Ok(lease), Some(slot)) => match queue.submit(slot.into(), op, lease) {
                Ok(()) => {
                    self.submitted(slot, InFlight { unique, kind, op });
                    return true;
                }
                Err(refused) => {
                    self.free.push(slot);
                    match refused.reason {
                        SubmitError::Busy => refused.buffer.map_or(Data::None, Data::Ready),
                        SubmitError::Invalid(error) => {
                            self.merging = false;
                            self.note(kind, &op, false);
                            self.device.error(unique, errno(&error));
                            return true;
                        }
                    }
                }
            },
            (Ok(lease), None) => lease.map_or(Data::None, Data::Ready),
            (Err(data), slot) => {
                self.free.extend(slot);
                data
            }
        };
        self.stalled = Some(Stalled {
            unique,
            kind,
            op,
            data,
        });
        false
    }

    fn submitted(&mut self, slot: u32, io: InFlight) {
        self.merging |= matches!(io.kind, Kind::Merge { .. });
        self.changes += u32::from(changes(&io.op));
        if let Some(place) = self.in_flight.get_mut(slot as usize) {
            *place = Some(io);
        }
    }

    /// The data that landed, in a lease that can be submitted.
    fn take_landed(&mut self, len_bytes: u32, queue: &mut dyn BlockQueue) -> Option<Buffer> {
        if len_bytes > COPY_BYTES_MAX
            && let Some(next) = queue.take(TRANSFER_BYTES_MAX)
        {
            return Some(std::mem::replace(&mut self.landing, next));
        }
        let mut lease = queue.take(len_bytes)?;
        lease.copy_from_buffer(0, &self.landing, 0..len_bytes as usize);
        Some(lease)
    }

    /// Answers a request whose I/O is finished.
    pub(super) fn finish(
        &mut self,
        token: u64,
        result: &Result<(), IoError>,
        lease: Option<Buffer>,
    ) {
        let slot = u32::try_from(token).unwrap_or(u32::MAX);
        let place = self.in_flight.get_mut(slot as usize);
        let Some(InFlight { unique, kind, op }) = place.and_then(Option::take) else {
            return;
        };
        self.free.push(slot);
        self.changes -= u32::from(changes(&op));
        if result.is_ok()
            && let Kind::Merge { skip, len_bytes } = kind
            && let Some(lease) = lease
        {
            return self.merge(unique, op, skip, len_bytes, lease);
        }
        // While a merge is under way nothing else is, so this was its last I/O.
        self.merging = false;
        self.note(kind, &op, result.is_ok());
        if let Err(error) = result {
            tracing::debug!("an I/O of the FUSE file failed: {error}");
            return self.device.error(unique, errno(error));
        }
        match kind {
            Kind::Read { skip, len_bytes } => {
                let data = lease.as_ref().map_or(Part::EMPTY, |lease| Part::Lease {
                    lease,
                    start: skip,
                    len_bytes,
                });
                self.device.send(unique, 0, data);
            }
            Kind::Write { len_bytes } => {
                let out = WriteOut {
                    size_bytes: len_bytes,
                    padding: 0,
                };
                self.device.reply(unique, out.as_bytes());
            }
            Kind::Status | Kind::Merge { .. } => self.device.reply(unique, &[]),
        }
    }

    /// Notes a write that failed, and one that makes an earlier one good.
    fn note(&mut self, kind: Kind, op: &Op, is_written: bool) {
        let is_concerned = if is_written {
            self.misses_writes && changes(op)
        } else {
            // A discard that fails loses nothing, and the kernel writes zeroes in another way.
            matches!(op, Op::Write { .. }) || matches!(kind, Kind::Merge { .. })
        };
        if !is_concerned {
            return;
        }
        let (slba, nlb) = op.range();
        self.misses_writes = self.unwritten.with(|unwritten| {
            if is_written {
                unwritten.written(slba, nlb);
            } else {
                unwritten.failed(slba, nlb);
            }
            !unwritten.is_empty()
        });
    }

    /// Puts what landed into what was read; it is written in the next turn.
    fn merge(&mut self, unique: u64, op: Op, skip: u32, len_bytes: u32, mut lease: Buffer) {
        lease.copy_from_buffer(skip as usize, &self.landing, 0..len_bytes as usize);
        let (slba, nlb) = op.range();
        self.stalled = Some(Stalled {
            unique,
            kind: Kind::Write { len_bytes },
            op: Op::Write {
                slba,
                nlb,
                fua: false,
            },
            data: Data::Ready(lease),
        });
    }
}

impl FrontEnd for FuseFrontEnd {
    fn nsid(&self) -> u32 {
        self.geometry.nsid
    }

    fn poll(&mut self, queue: &mut QueueHandle<'_>, now_us: u64) -> bool {
        let nsid = self.geometry.nsid;
        let busy = self.take_requests(&mut NamespaceQueue { queue, nsid });
        // A completion of its own gives it another chance; one of others does not.
        let alone = self.free.len() == self.in_flight.len();
        self.retry_us = (self.stalled.is_some() && alone).then_some(now_us + RETRY_US);
        busy
    }

    fn completed(&mut self, completion: Completion, _queue: &mut QueueHandle<'_>) {
        self.finish(completion.token, &completion.result, completion.buffer);
    }

    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
        // Level-triggered: requests that are there already make it readable.
        if self.wants_requests() {
            fds.push(self.device.0.as_raw_fd());
        }
        Armed::Quiet
    }

    fn namespace_changed(&mut self, namespace: &NamespaceInfo) {
        // A disk in use cannot be made smaller: what is not there any more fails at the controller.
        let larger = self.geometry.new_size(namespace);
        let Some(size_bytes) = larger.filter(|&size| size > self.geometry.size_bytes) else {
            return;
        };
        tracing::info!(
            target: PEER_CAUSED,
            "the volume has grown from {} to {size_bytes} bytes",
            self.geometry.size_bytes
        );
        self.geometry.size_bytes = size_bytes;
        self.file_system.set_size(size_bytes);
        self.device.tell_size(size_bytes);
        // A full pipe has told it already.
        let _ = nix::unistd::write(&self.life, &[0]);
    }

    fn next_deadline_us(&self) -> Option<u64> {
        self.retry_us
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}

/// A read of whole LBAs that has the wanted bytes, and what of it to return; `None` at the end.
fn read_op(
    geometry: &Geometry,
    offset_bytes: u64,
    len_bytes: u32,
) -> Result<Option<(Op, Kind)>, Errno> {
    let left = geometry.size_bytes.saturating_sub(offset_bytes);
    let len_bytes = u32::try_from(left).map_or(len_bytes, |left| left.min(len_bytes));
    if len_bytes == 0 {
        return Ok(None);
    }
    if len_bytes > TRANSFER_BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    let lba_bytes = u64::from(geometry.lba_bytes);
    let skip = offset_bytes % lba_bytes;
    let whole = (skip + u64::from(len_bytes)).next_multiple_of(lba_bytes);
    let (slba, nlb) = geometry
        .lbas(offset_bytes - skip, whole)
        .map_err(fault_errno)?;
    let skip = u32::try_from(skip).map_err(|_| Errno::EINVAL)?;
    Ok(Some((
        Op::Read { slba, nlb },
        Kind::Read { skip, len_bytes },
    )))
}

/// The LBAs of a change of the volume.
fn writable(geometry: &Geometry, offset_bytes: u64, len_bytes: u64) -> Result<(u64, u32), Errno> {
    if geometry.read_only {
        return Err(Errno::EROFS);
    }
    geometry.lbas(offset_bytes, len_bytes).map_err(fault_errno)
}

/// A write. The kernel cuts at pages of the writer's memory, so that even whole LBAs of the loop
/// device may come in parts of LBAs; those are read, changed and written, one at a time and with
/// nothing else under way.
fn write_op(
    geometry: &Geometry,
    offset_bytes: u64,
    len_bytes: u32,
) -> Result<(Kind, Op, Data), Errno> {
    let lba_bytes = u64::from(geometry.lba_bytes);
    let skip = offset_bytes % lba_bytes;
    let end = skip.checked_add(len_bytes.into()).ok_or(Errno::EINVAL)?;
    let whole = end.next_multiple_of(lba_bytes);
    let (slba, nlb) = writable(geometry, offset_bytes - skip, whole)?;
    if whole == u64::from(len_bytes) {
        let fua = false;
        let op = Op::Write { slba, nlb, fua };
        return Ok((Kind::Write { len_bytes }, op, Data::Landed(len_bytes)));
    }
    let skip = u32::try_from(skip).map_err(|_| Errno::EINVAL)?;
    let kind = Kind::Merge { skip, len_bytes };
    let lease = Data::Take(nlb * geometry.lba_bytes);
    Ok((kind, Op::Read { slba, nlb }, lease))
}

/// Whether an operation changes the volume.
fn changes(op: &Op) -> bool {
    matches!(op, Op::Write { .. } | Op::WriteZeroes { .. })
}

/// The loop device's discard and write-zeroes. Both must leave zeroes behind (fallocate(2)).
fn fallocate_op(
    geometry: &Geometry,
    offset_bytes: u64,
    len_bytes: u64,
    mode: u32,
) -> Result<Option<Op>, Errno> {
    let mode = i32::try_from(mode).map_err(|_| Errno::EOPNOTSUPP)?;
    let size = libc::FALLOC_FL_KEEP_SIZE;
    let may_deallocate = match mode & !size {
        // The volume has all the space it will ever have.
        0 => return Ok(None),
        libc::FALLOC_FL_PUNCH_HOLE => true,
        libc::FALLOC_FL_ZERO_RANGE => false,
        _ => return Err(Errno::EOPNOTSUPP),
    };
    if !geometry.write_zeroes {
        return Err(Errno::EOPNOTSUPP);
    }
    let len_bytes = len_bytes.min(geometry.size_bytes.saturating_sub(offset_bytes));
    let (slba, nlb) = writable(geometry, offset_bytes, len_bytes)?;
    Ok(Some(Op::WriteZeroes {
        slba,
        nlb,
        may_deallocate,
        fua: false,
    }))
}

fn errno(error: &IoError) -> Errno {
    fault_errno(Fault::of(error))
}

fn fault_errno(fault: Fault) -> Errno {
    match fault {
        Fault::ReadOnly => Errno::EROFS,
        Fault::Invalid | Fault::OutOfRange => Errno::EINVAL,
        Fault::NoSpace => Errno::ENOSPC,
        Fault::Unsupported => Errno::EOPNOTSUPP,
        Fault::Gone | Fault::Io => Errno::EIO,
    }
}
