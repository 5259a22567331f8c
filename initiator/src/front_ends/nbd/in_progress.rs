//! A request in progress, and the I/Os it becomes.

use capstan_memory::Buffer;

use super::request::{CHUNK_BYTES, Command, Request};
use super::scan::Scan;
use super::wire::{NbdError, PAYLOAD_BYTES_MAX};
use crate::driver::Op;

const _: () = assert!(
    PAYLOAD_BYTES_MAX / CHUNK_BYTES < 1 << 16,
    "a token holds the number of a chunk in 16 bits"
);

/// One request in progress.
#[derive(Debug)]
pub(super) struct InProgress {
    pub(super) request: Request,
    /// I/Os submitted.
    pub(super) started: u32,
    /// I/Os in flight.
    pub(super) in_flight: u32,
    pub(super) error: Option<NbdError>,
    /// A flush that a TRIM with FUA ends with has been asked for.
    pub(super) flushed: bool,
    /// Chunks of a read that are in the output.
    pub(super) sent: u32,
    /// Chunks of a read with a simple reply that wait for those before them.
    pub(super) early: Vec<(u32, Buffer)>,
    /// What a block status has found.
    pub(super) scan: Option<Box<Scan>>,
}

impl InProgress {
    pub(super) fn new(request: Request, lba_bytes: u32) -> Self {
        let scan = match request.command {
            Some(Command::BlockStatus { one }) => {
                Some(Box::new(Scan::new(request.len_bytes, lba_bytes, one)))
            }
            _ => None,
        };
        Self {
            request,
            started: 0,
            in_flight: 0,
            error: None,
            flushed: false,
            sent: 0,
            early: Vec::new(),
            scan,
        }
    }

    /// I/Os the request takes.
    pub(super) fn ios(&self) -> u32 {
        match (&self.scan, self.request.command) {
            (Some(scan), _) => scan.reads(),
            (None, Some(Command::Read | Command::Write { .. })) => self.request.chunks(),
            (None, _) => 1,
        }
    }

    /// Offset in the request, and length, of the data of an I/O; in bytes.
    pub(super) fn data(&self, io: u32) -> Option<(u32, u32)> {
        match (&self.scan, self.request.command) {
            (Some(scan), _) => Some(scan.read(io)),
            (None, Some(Command::Read | Command::Write { .. })) => Some(self.request.chunk(io)),
            (None, _) => None,
        }
    }

    /// The operation of an I/O.
    pub(super) fn op(&self, io: u32, lba_bytes: u32) -> Op {
        let (first, all) = self.request.lbas;
        let (start, len_bytes) = self.data(io).unwrap_or((0, 0));
        let slba = first + u64::from(start / lba_bytes);
        let nlb = len_bytes / lba_bytes;
        match self.request.command {
            Some(Command::Read | Command::BlockStatus { .. }) => Op::Read { slba, nlb },
            Some(Command::Write { fua }) => Op::Write { slba, nlb, fua },
            Some(Command::Trim { .. }) => Op::Discard {
                slba: first,
                nlb: all,
            },
            Some(Command::WriteZeroes {
                fua,
                may_deallocate,
            }) => Op::WriteZeroes {
                slba: first,
                nlb: all,
                may_deallocate,
                fua,
            },
            Some(Command::Flush | Command::Disconnect) | None => Op::Flush,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.in_flight == 0 && self.started == self.ios()
    }
}

/// Names a chunk of a request.
pub(super) fn token(slot: u16, chunk: u32) -> u64 {
    u64::from(slot) << 16 | u64::from(chunk & 0xffff)
}

/// The other way round: slot and chunk.
pub(super) fn untoken(token: u64) -> (u16, u32) {
    let slot = u16::try_from(token >> 16 & 0xffff).unwrap_or(u16::MAX);
    (slot, u32::try_from(token & 0xffff).unwrap_or(0))
}
