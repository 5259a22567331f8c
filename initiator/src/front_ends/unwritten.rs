//! Writes of a front end that failed and were not made good by a later write of the same blocks.
//!
//! The kernel writes what programs have written back when it likes, and what fails then it drops:
//! `umount` and `close` of such a disk succeed. So the command that ends the disk has to tell it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits::UNWRITTEN_RANGES_MAX;
use crate::words::Count;

/// Blocks whose last write failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unwritten {
    /// Ends by first blocks. None overlap.
    ranges: BTreeMap<u64, u64>,
}

impl Unwritten {
    /// A write of `nlb` blocks from `slba` on failed.
    pub(crate) fn failed(&mut self, slba: u64, nlb: u32) {
        let (mut first, mut end) = (slba, slba.saturating_add(nlb.into()));
        let is_full = self.ranges.len() >= UNWRITTEN_RANGES_MAX;
        self.ranges.retain(|&of, to| {
            let stays = !is_full && (*to < first || of > end);
            if !stays {
                first = first.min(of);
                end = end.max(*to);
            }
            stays
        });
        self.ranges.insert(first, end);
    }

    /// A write of `nlb` blocks from `slba` on succeeded.
    pub(crate) fn written(&mut self, slba: u64, nlb: u32) {
        let end = slba.saturating_add(nlb.into());
        let hit: Vec<(u64, u64)> = self
            .ranges
            .range(..end)
            .filter(|&(_, &to)| to > slba)
            .map(|(&of, &to)| (of, to))
            .collect();
        for (of, to) in hit {
            self.ranges.remove(&of);
            if of < slba {
                self.ranges.insert(of, slba);
            }
            if to > end {
                self.ranges.insert(end, to);
            }
        }
    }

    /// Whether every write that failed was made good.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// What was not written to namespace `nsid`, and what to do; `None` when nothing.
    #[must_use]
    pub(crate) fn in_words(&self, nsid: u32, lba_bytes: u32) -> Option<String> {
        let (first, _) = self.ranges.first_key_value()?;
        let nlb = self.ranges.iter().map(|(of, to)| to - of).sum::<u64>();
        let bytes = nlb.saturating_mul(lba_bytes.into());
        Some(format!(
            "{bytes} bytes that were written to this disk are not on namespace {nsid}: their writes failed and were \
             not repeated ({}, the first at LBA {first}). Programs may not have been told: check what is \
             there (fsck), or restore it",
            Count(nlb, "block")
        ))
    }
}

/// What a front end has not written, shared with what ends its disk. Its lock is taken when a write
/// fails, and then until all is made good.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedUnwritten(Arc<Mutex<Unwritten>>);

impl SharedUnwritten {
    /// Changes it, or looks at it.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Unwritten) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::Unwritten;
    use crate::limits::UNWRITTEN_RANGES_MAX;

    #[test]
    fn what_failed_is_told_until_it_is_written() {
        let mut unwritten = Unwritten::default();
        assert_eq!(unwritten.in_words(1, 512), None);
        unwritten.failed(8, 8);
        unwritten.failed(16, 8);
        unwritten.failed(100, 1);
        unwritten.failed(8, 8);
        let words = unwritten.in_words(1, 512).unwrap();
        assert!(
            words.starts_with("8704 bytes ") && words.contains("(17 blocks, the first at LBA 8)"),
            "{words}"
        );
        // Parts of it, and what was never missing.
        unwritten.written(0, 10);
        unwritten.written(12, 2);
        unwritten.written(200, 100);
        let words = unwritten.in_words(1, 512).unwrap();
        assert!(
            words.contains("(13 blocks, the first at LBA 10)"),
            "{words}"
        );
        unwritten.written(10, 90);
        let words = unwritten.in_words(1, 512).unwrap();
        assert!(words.contains("(1 block, the first at LBA 100)"), "{words}");
        unwritten.written(100, 1);
        assert!(unwritten.is_empty());
    }

    #[test]
    fn many_ranges_become_one() {
        let mut unwritten = Unwritten::default();
        let many = u64::try_from(10 * UNWRITTEN_RANGES_MAX).unwrap();
        for number in 0..many {
            unwritten.failed(number * 2, 1);
            assert!(unwritten.ranges.len() <= UNWRITTEN_RANGES_MAX);
        }
        unwritten.written(0, u32::MAX);
        assert!(unwritten.is_empty());
    }
}
