//! What every front end needs of a volume: its shape, a queue, and errors in a few words.

use capstan_memory::Buffer;
use capstan_nvme_proto::status::Status;

use crate::driver::{Io, Op, Refused};
use crate::error::IoError;
use crate::front_end::QueueHandle;
use crate::host::{ControllerInfo, NamespaceInfo};

/// A namespace as a front end shows it: as it was when the front end was made, but for its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Namespace.
    pub nsid: u32,
    /// Size in bytes, a multiple of `lba_bytes`.
    pub size_bytes: u64,
    /// Bytes of an LBA, a power of two.
    pub lba_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// The controller has Write Zeroes.
    pub write_zeroes: bool,
    /// The controller has Dataset Management.
    pub discard: bool,
    /// The controller tells what is allocated, and the rest reads as zeroes.
    pub holes: bool,
}

impl Geometry {
    /// Of a namespace; `read_only` makes it read-only whatever the controller says.
    #[must_use]
    pub fn new(controller: &ControllerInfo, namespace: &NamespaceInfo, read_only: bool) -> Self {
        Self {
            nsid: namespace.nsid,
            size_bytes: namespace.size_bytes(),
            lba_bytes: namespace.lba_bytes,
            read_only: read_only || namespace.read_only,
            write_zeroes: controller.write_zeroes,
            discard: controller.dataset_management,
            holes: false,
        }
    }

    /// The size of `namespace`, when that is the same one and has another size now.
    #[must_use]
    pub fn new_size(&self, namespace: &NamespaceInfo) -> Option<u64> {
        let is_same = namespace.unusable.is_none() && namespace.lba_bytes == self.lba_bytes;
        let size_bytes = namespace.size_bytes();
        (is_same && size_bytes != self.size_bytes).then_some(size_bytes)
    }

    /// The LBAs of a range of bytes: first and count.
    ///
    /// # Errors
    /// Why an I/O to it is refused: no bytes, not whole LBAs, or not inside the volume.
    pub fn lbas(&self, offset_bytes: u64, len_bytes: u64) -> Result<(u64, u32), Fault> {
        let lba_bytes = u64::from(self.lba_bytes);
        let whole = offset_bytes.is_multiple_of(lba_bytes) && len_bytes.is_multiple_of(lba_bytes);
        if len_bytes == 0 || !whole {
            return Err(Fault::Invalid);
        }
        let end = offset_bytes.checked_add(len_bytes);
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(Fault::OutOfRange);
        }
        let nlb = u32::try_from(len_bytes / lba_bytes).map_err(|_| Fault::Invalid)?;
        Ok((offset_bytes / lba_bytes, nlb))
    }
}

/// Where a front end's I/O goes.
pub trait BlockQueue {
    /// Leases registered memory; `None` when there is none now: try again after a completion.
    fn take(&mut self, len_bytes: u32) -> Option<Buffer>;

    /// Submits an operation whose data is at the start of `buffer`.
    ///
    /// # Errors
    /// [`Refused`], with the buffer.
    fn submit(&mut self, token: u64, op: Op, buffer: Option<Buffer>) -> Result<(), Refused>;

    /// Asks what is allocated of `nlb` blocks from `slba` on; the answer comes with `token`.
    fn look_up(&mut self, token: u64, slba: u64, nlb: u32);
}

/// One namespace on the driver's queue.
pub(super) struct NamespaceQueue<'q, 'e> {
    pub(super) queue: &'q mut QueueHandle<'e>,
    pub(super) nsid: u32,
}

impl BlockQueue for NamespaceQueue<'_, '_> {
    fn take(&mut self, len_bytes: u32) -> Option<Buffer> {
        self.queue.take(len_bytes)
    }

    fn submit(&mut self, token: u64, op: Op, buffer: Option<Buffer>) -> Result<(), Refused> {
        let nsid = self.nsid;
        self.queue.submit(token, Io { nsid, op }, buffer)
    }

    fn look_up(&mut self, token: u64, slba: u64, nlb: u32) {
        self.queue.look_up(token, self.nsid, slba, nlb);
    }
}

/// Why a front end answers a request with an error: what a block device can say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The volume is read-only.
    ReadOnly,
    /// Not whole LBAs, or nothing at all.
    Invalid,
    /// Not inside the volume.
    OutOfRange,
    /// The controller's storage is full.
    NoSpace,
    /// The controller does not have the command.
    Unsupported,
    /// The association is over.
    Gone,
    /// Anything else.
    Io,
}

impl Fault {
    /// What an I/O error comes to.
    #[must_use]
    pub fn of(error: &IoError) -> Self {
        match error {
            IoError::Status { status, .. } => Self::of_status(*status),
            IoError::Invalid { .. } => Self::Invalid,
            IoError::Unsupported(_) => Self::Unsupported,
            IoError::ControllerLost(_) | IoError::Closed => Self::Gone,
            // Another namespace in the place of the volume is as bad as a broken disk.
            IoError::NoNamespace { .. }
            | IoError::Unidentified { .. }
            | IoError::NamespaceReplaced { .. }
            | IoError::Replays { .. }
            | IoError::OutcomeUnknown { .. }
            | IoError::WritesLost { .. } => Self::Io,
        }
    }

    fn of_status(status: Status) -> Self {
        match status.code() {
            Status::NAMESPACE_IS_WRITE_PROTECTED | Status::ATTEMPTED_WRITE_TO_READ_ONLY_RANGE => {
                Self::ReadOnly
            }
            Status::LBA_OUT_OF_RANGE => Self::OutOfRange,
            Status::CAPACITY_EXCEEDED => Self::NoSpace,
            Status::INVALID_OPCODE => Self::Unsupported,
            _ => Self::Io,
        }
    }
}
