//! One command in flight: what it is, what it has, and what it waits for.

use std::rc::Rc;

use capstan_memory::Buffer;
use capstan_nvme_proto::status::Status;
use capstan_rdma::contract::MemoryRegion;
use capstan_storage::Data;
use capstan_subsystem::{ControlCommand, IoCommand, KeyedBuffer, Transfer};

use super::admin::AdminWork;
use super::execute::Step;
use super::ranges::Ranges;

/// One command in flight.
pub(super) struct Command {
    pub(super) work: Work,
    pub(super) transfer: Transfer,
    /// The host's buffers, when there are several.
    pub(super) segments: Option<Box<[KeyedBuffer]>>,
    /// Work requests that are reserved for them beyond two.
    pub(super) extra_wrs: u32,
    /// The data, and where it starts in the buffer.
    pub(super) data: Option<Buffer>,
    pub(super) data_offset_bytes: u32,
    /// Whether the data is in the spare buffer of the queue.
    pub(super) has_spare: bool,
    /// Whether the data is zeroes, without a buffer of its own.
    pub(super) zeroes: bool,
    /// A buffer beside in-capsule data, for commands that read as well.
    pub(super) second: Option<Buffer>,
    /// Whether the data comes from the host by RDMA READ.
    pub(super) pulls: bool,
    /// The registration of its buffer for that, where it needs one of its own.
    pub(super) sink: Option<Rc<dyn MemoryRegion>>,
    /// Bytes of buffer that it waits for.
    pub(super) wanted_bytes: u32,
    /// Why the connection is closed when the response has gone.
    pub(super) close_after: Option<&'static str>,
    /// The receive slot to post again when its in-capsule data is no longer needed.
    pub(super) receive: Option<u32>,
    /// In-capsule data that has been read and waits to be posted with its receive again.
    pub(super) parked: Option<Buffer>,
    /// The storage operation under way.
    pub(super) step: Option<Step>,
    /// The status with which it is answered, instead of going on, when something under way has
    /// ended.
    pub(super) aborted: Option<Status>,
    /// What is left of a command of several ranges.
    pub(super) ranges: Option<Box<Ranges>>,
}

/// What a slot holds.
pub(super) enum Work {
    /// Nothing.
    Free,
    /// An admin or fabrics command.
    Admin(Box<AdminWork>),
    /// An I/O command.
    Io(IoCommand),
    /// A command of an I/O queue that the controllers execute.
    Control(Box<ControlCommand>),
    /// The same, while it waits for commands of others.
    Held(Box<ControlCommand>),
    /// The response is on its way; the slot is free when its Send, or one after it, has completed.
    Responded,
    /// The same, of a command that left nothing else in the slot.
    Answered,
}

impl Default for Command {
    fn default() -> Self {
        Self {
            work: Work::Free,
            transfer: Transfer::None,
            segments: None,
            extra_wrs: 0,
            data: None,
            data_offset_bytes: 0,
            has_spare: false,
            zeroes: false,
            second: None,
            pulls: false,
            sink: None,
            wanted_bytes: 0,
            close_after: None,
            receive: None,
            parked: None,
            step: None,
            aborted: None,
            ranges: None,
        }
    }
}

impl Command {
    /// Whether it holds a buffer that others could use.
    pub(super) fn has_buffer(&self) -> bool {
        let own = self.receive.is_some() || self.has_spare;
        self.data.is_some() && !own || self.second.is_some()
    }

    /// Whether its data is on its way from the host.
    pub(super) fn is_pulling(&self) -> bool {
        self.pulls && self.data.is_some() && self.step.is_none()
    }

    /// The data for a storage operation: the second buffer where in-capsule data has been read.
    pub(super) fn take_data(&mut self) -> Option<Data> {
        let offset_bytes = self.data_offset_bytes;
        self.data.take().map(|buffer| Data {
            buffer,
            offset_bytes,
        })
    }

    /// Whether the response's completion is needed: something is to be done then, or memory of the
    /// pool or room in the send queue comes free.
    pub(super) fn waits_for_response(&self) -> bool {
        let buffers = [&self.data, &self.second, &self.parked];
        let waited_for = self.close_after.is_some() || self.extra_wrs > 0;
        buffers.iter().any(|buffer| buffer.is_some()) || waited_for
    }

    /// Continues with the second buffer when the in-capsule data has been read.
    pub(super) fn use_second(&mut self) {
        if let Some(second) = self.second.take() {
            self.parked = self.data.replace(second);
            self.data_offset_bytes = 0;
        }
    }

    /// The buffer of the receive this command holds.
    pub(super) fn take_received(&mut self) -> Option<Buffer> {
        self.parked.take().or_else(|| self.data.take())
    }

    /// Where a Compare reads the medium to: behind the host's data, or the second buffer.
    pub(super) fn take_compare_half(&mut self, len_bytes: u32) -> Option<Data> {
        match self.second.take() {
            Some(buffer) => Some(Data {
                buffer,
                offset_bytes: 0,
            }),
            None => self.data.take().map(|buffer| Data {
                buffer,
                offset_bytes: len_bytes,
            }),
        }
    }

    /// Takes back what a storage operation had.
    pub(super) fn put_back(&mut self, data: Option<Data>) {
        let Some(Data { buffer, .. }) = data else {
            return;
        };
        if self.data.is_none() {
            self.data = Some(buffer);
        } else {
            self.second = Some(buffer);
        }
    }

    /// Compare: whether the host's data and the medium's are equal.
    pub(super) fn compare(&self, len_bytes: u32) -> Status {
        let Some(data) = &self.data else {
            return Status::INTERNAL_ERROR;
        };
        let expected = (data, self.data_offset_bytes);
        let found = match &self.second {
            Some(second) => (second, 0),
            None => (data, len_bytes),
        };
        if equal(expected, found, len_bytes) {
            Status::SUCCESS
        } else {
            Status::COMPARE_FAILURE.dnr()
        }
    }

    /// A copy of the first `len` bytes of the data.
    pub(super) fn data_bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if let Some(data) = &self.data {
            data.copy_to(self.data_offset_bytes as usize, &mut bytes);
        }
        bytes
    }

    /// Frees data that is not needed any more. The spare buffer is freed with the slot.
    pub(super) fn release_buffers(&mut self) {
        if !self.has_spare {
            self.data = None;
        }
        self.second = None;
    }
}

/// Whether `len_bytes` of two buffers, each from its offset, are equal.
fn equal(left: (&Buffer, u32), right: (&Buffer, u32), len_bytes: u32) -> bool {
    const CHUNK: usize = 4096;
    let (mut a, mut b) = ([0; CHUNK], [0; CHUNK]);
    (0..len_bytes as usize).step_by(CHUNK).all(|at| {
        let len = CHUNK.min(len_bytes as usize - at);
        left.0.copy_to(left.1 as usize + at, &mut a[..len]);
        right.0.copy_to(right.1 as usize + at, &mut b[..len]);
        a[..len] == b[..len]
    })
}
