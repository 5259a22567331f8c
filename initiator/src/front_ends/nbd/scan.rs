//! Where zeroes are: what `base:allocation` tells of a range.
//!
//! NVMe hosts are not told of holes by every controller, so the blocks are read. The head of each
//! granule is enough where data is; only what begins with zeroes is read in full, which spares the
//! client reading it.

use std::ops::Range;

use capstan_memory::Buffer;

use super::request::CHUNK_BYTES;
use super::wire::{Extent, STATE_ZERO};

/// Zeroes are told in multiples of this, in bytes.
const GRANULE_BYTES: u32 = 64 << 10;
/// The head of a granule, in bytes: what a disk reads at least.
const HEAD_BYTES: u32 = 4096;
/// Most of a range that is looked at; its client asks again for what is behind it. In bytes.
const WINDOW_BYTES: u32 = 32 << 20;
/// The same where one extent is wanted: its heads are read again with the next request.
const ONE_WINDOW_BYTES: u32 = 4 << 20;

/// A look at a range, in two passes of reads: heads, then all of what may be zero.
#[derive(Debug)]
pub(super) struct Scan {
    granule_bytes: u32,
    window_bytes: u32,
    one: bool,
    /// Reads: bytes from the start of the range.
    reads: Vec<Range<u32>>,
    /// Of those, the heads.
    heads: usize,
    /// By granule, as far as it is known.
    is_zero: Vec<bool>,
}

impl Scan {
    /// Of `len_bytes`, whole LBAs.
    pub(super) fn new(len_bytes: u32, lba_bytes: u32, one: bool) -> Self {
        let granule_bytes = GRANULE_BYTES.max(lba_bytes);
        let window = if one { ONE_WINDOW_BYTES } else { WINDOW_BYTES };
        let window_bytes = len_bytes.min(window);
        let head_bytes = HEAD_BYTES.max(lba_bytes);
        let starts = (0..window_bytes).step_by(granule_bytes as usize);
        let reads: Vec<_> = starts
            .map(|start| start..window_bytes.min(start + head_bytes))
            .collect();
        Self {
            granule_bytes,
            window_bytes,
            one,
            heads: reads.len(),
            is_zero: vec![true; reads.len()],
            reads,
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
            let piece = bytes.get_mut(..count as usize).unwrap_or_default();
            lease.copy_to(at as usize, piece);
            if piece.iter().any(|&byte| byte != 0) {
                let granule = ((start + at) / self.granule_bytes) as usize;
                if let Some(is_zero) = self.is_zero.get_mut(granule) {
                    *is_zero = false;
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
            let first = self.is_zero.first().copied();
            let run = self.is_zero.iter().take_while(|zero| Some(**zero) == first);
            let run = u32::try_from(run.count()).unwrap_or(u32::MAX);
            self.is_zero.truncate(run as usize);
            let run_bytes = run.saturating_mul(self.granule_bytes);
            self.window_bytes = self.window_bytes.min(run_bytes);
        }
        for run in self.runs().filter(|run| run.is_zero) {
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
            state: if run.is_zero { STATE_ZERO } else { 0 }.into(),
        });
        let most = if self.one { 1 } else { usize::MAX };
        extents.take(most).collect()
    }

    /// Neighbours of the same state together.
    fn runs(&self) -> std::vec::IntoIter<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let starts = (0..self.window_bytes).step_by(self.granule_bytes as usize);
        for (start, &is_zero) in starts.zip(&self.is_zero) {
            let end = self.window_bytes.min(start + self.granule_bytes);
            match runs.last_mut().filter(|run| run.is_zero == is_zero) {
                Some(run) => run.bytes.end = end,
                None => runs.push(Run {
                    bytes: start..end,
                    is_zero,
                }),
            }
        }
        runs.into_iter()
    }
}

struct Run {
    bytes: Range<u32>,
    is_zero: bool,
}
