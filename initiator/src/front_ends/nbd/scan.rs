//! Where holes and zeroes are: what `base:allocation` tells of a range.
//!
//! Holes are what the controller says is not allocated, where it says that. Zeroes in what is
//! allocated are found by reading. The head of each granule is enough where data is; only what
//! begins with zeroes is read in full, which spares the client reading it.

use std::ops::Range;

use capstan_memory::Buffer;

use super::request::CHUNK_BYTES;
use super::wire::{Extent, STATE_HOLE, STATE_ZERO};
use crate::allocation::Allocated;

/// Zeroes are told in multiples of this, in bytes.
const GRANULE_BYTES: u32 = 64 << 10;
/// The head of a granule, in bytes: what a disk reads at least.
const HEAD_BYTES: u32 = 4096;
/// Most of what is allocated that is looked at; its client asks again for what is behind it. In
/// bytes.
const WINDOW_BYTES: u32 = 32 << 20;
/// The same where one extent is wanted: its heads are read again with the next request.
const ONE_WINDOW_BYTES: u32 = 4 << 20;

/// A look at a range, in two passes of reads: heads, then all of what may be zero.
#[derive(Debug)]
pub(super) struct Scan {
    len_bytes: u32,
    lba_bytes: u32,
    one: bool,
    /// What is known, one behind the other from the start of the range: holes, and granules that
    /// are zero as far as they have been read.
    pieces: Vec<Piece>,
    /// Reads: bytes from the start of the range.
    reads: Vec<Range<u32>>,
    /// Of those, the heads.
    heads: usize,
}

/// Bytes from the start of the range, and their state.
#[derive(Debug)]
struct Piece {
    bytes: Range<u32>,
    state: u32,
}

impl Scan {
    /// Of `len_bytes`, whole LBAs. It has no reads before it is begun.
    pub(super) fn new(len_bytes: u32, lba_bytes: u32, one: bool) -> Self {
        Self {
            len_bytes,
            lba_bytes,
            one,
            pieces: Vec::new(),
            reads: Vec::new(),
            heads: 0,
        }
    }

    /// Begins the first pass: of what the controller says is allocated, or of everything where it
    /// says nothing. The range starts at `slba`.
    pub(super) fn begin(&mut self, allocated: Option<&Allocated>, slba: u64) {
        let window = if self.one {
            ONE_WINDOW_BYTES
        } else {
            WINDOW_BYTES
        };
        let (len_bytes, lba_bytes) = (self.len_bytes, u64::from(self.lba_bytes));
        let in_bytes = |lba: u64| {
            let bytes = lba.saturating_sub(slba).saturating_mul(lba_bytes);
            u32::try_from(bytes).unwrap_or(u32::MAX).min(len_bytes)
        };
        let all = 0..len_bytes;
        let (extents, known) = match allocated {
            Some(Allocated { extents, end }) => {
                let extents = extents.iter().map(|e| in_bytes(e.start)..in_bytes(e.end));
                (extents.collect(), in_bytes(*end))
            }
            None => (vec![all], len_bytes),
        };
        let mut left = window;
        for extent in extents {
            self.add_hole(extent.start);
            let end = extent.end.min(extent.start.saturating_add(left));
            left -= end - extent.start;
            self.add_granules(end);
            if end < extent.end || self.one && !self.pieces.is_empty() {
                // Nothing is told of what is behind that.
                self.heads = self.reads.len();
                return;
            }
        }
        self.add_hole(known);
        self.heads = self.reads.len();
    }

    /// Where what is known ends.
    fn end(&self) -> u32 {
        self.pieces.last().map_or(0, |piece| piece.bytes.end)
    }

    fn add_hole(&mut self, end: u32) {
        let start = self.end();
        if start < end {
            self.pieces.push(Piece {
                bytes: start..end,
                state: STATE_HOLE | STATE_ZERO,
            });
        }
    }

    /// Granules up to `end`, which are zero until they are read.
    fn add_granules(&mut self, end: u32) {
        let granule_bytes = GRANULE_BYTES.max(self.lba_bytes);
        let head_bytes = HEAD_BYTES.max(self.lba_bytes);
        if self.one && !self.pieces.is_empty() {
            return;
        }
        let mut start = self.end();
        while start < end {
            let behind = (start / granule_bytes + 1).saturating_mul(granule_bytes);
            let bytes = start..end.min(behind);
            self.reads
                .push(start..bytes.end.min(start.saturating_add(head_bytes)));
            start = bytes.end;
            self.pieces.push(Piece {
                bytes,
                state: STATE_ZERO,
            });
        }
    }

    /// Reads there are to do so far.
    pub(super) fn reads(&self) -> u32 {
        u32::try_from(self.reads.len()).unwrap_or(u32::MAX)
    }

    /// First byte and bytes of a read.
    pub(super) fn read(&self, index: u32) -> (u32, u32) {
        let read = self.reads.get(index as usize).cloned().unwrap_or(0..0);
        (read.start, read.end - read.start)
    }

    /// A read is done; its data is at the start of `lease`.
    pub(super) fn was_read(&mut self, index: u32, lease: &Buffer) {
        let (start, len_bytes) = self.read(index);
        let mut bytes = [0; HEAD_BYTES as usize];
        let mut at = 0;
        while at < len_bytes {
            let count = (len_bytes - at).min(HEAD_BYTES);
            let part = bytes.get_mut(..count as usize).unwrap_or_default();
            lease.copy_to(at as usize, part);
            if part.iter().any(|&byte| byte != 0) {
                let granule = self.pieces.partition_point(|p| p.bytes.end <= start + at);
                if let Some(piece) = self.pieces.get_mut(granule) {
                    piece.state = 0;
                }
            }
            at += count;
        }
    }

    /// All heads are read, and the second pass begins: `false` when it has begun before, or nothing
    /// is to be read in it.
    pub(super) fn begin_second_pass(&mut self) -> bool {
        if self.reads.len() > self.heads || self.heads == 0 {
            return false;
        }
        if self.one {
            // What is behind the first run is of no interest, and not known.
            let first = self.pieces.first().map(|piece| piece.state);
            let run = self.pieces.iter();
            let run = run.take_while(|piece| Some(piece.state) == first).count();
            self.pieces.truncate(run);
        }
        for run in self.runs().filter(|run| run.state == STATE_ZERO) {
            let mut at = run.bytes.start;
            while at < run.bytes.end {
                let end = run.bytes.end.min(at + CHUNK_BYTES);
                self.reads.push(at..end);
                at = end;
            }
        }
        self.reads.len() > self.heads
    }

    /// What is known, once everything is read.
    pub(super) fn extents(&self) -> Vec<Extent> {
        let extents = self.runs().map(|run| Extent {
            len_bytes: (run.bytes.end - run.bytes.start).into(),
            state: run.state.into(),
        });
        let most = if self.one { 1 } else { usize::MAX };
        extents.take(most).collect()
    }

    /// Neighbours of the same state together.
    fn runs(&self) -> std::vec::IntoIter<Piece> {
        let mut runs: Vec<Piece> = Vec::new();
        for Piece { bytes, state } in &self.pieces {
            match runs.last_mut().filter(|run| run.state == *state) {
                Some(run) => run.bytes.end = bytes.end,
                None => runs.push(Piece {
                    bytes: bytes.clone(),
                    state: *state,
                }),
            }
        }
        runs.into_iter()
    }
}
