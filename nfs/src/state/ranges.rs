//! Ranges of bytes that are locked, and what a lock owner's ranges become when one is locked or
//! unlocked. RFC 8881, sections 9.1 and 18.10.

use capstan_nfs_proto::v4::args::LockType;
use capstan_nfs_proto::v4::status::Status;

/// A range of bytes that is not empty: its first and its last byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockRange {
    first: u64,
    last: u64,
}

/// A range as the kernel has it in `struct flock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalRange {
    /// `l_start`.
    pub start: i64,
    /// `l_len`; 0 is to the end, however far that is.
    pub length: i64,
}

/// How bytes are locked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// Types that wait are for clients that would be called back. Without a back channel they poll (RFC
/// 8881, section 9.6), and the types mean the same; that OPEN's result says nothing of
/// CB_NOTIFY_LOCK (OPEN4_RESULT_MAY_NOTIFY_LOCK) tells them so.
impl From<LockType> for LockKind {
    fn from(locktype: LockType) -> Self {
        match locktype {
            LockType::Read | LockType::ReadBlocking => Self::Read,
            LockType::Write | LockType::WriteBlocking => Self::Write,
        }
    }
}

/// As LOCK4denied has it.
impl From<LockKind> for LockType {
    fn from(kind: LockKind) -> Self {
        match kind {
            LockKind::Read => Self::Read,
            LockKind::Write => Self::Write,
        }
    }
}

impl LockRange {
    /// The range that the arguments of LOCK, LOCKT and LOCKU say: all ones as length is to the end.
    ///
    /// # Errors
    /// NFS4ERR_INVAL: no bytes, or an end (offset and length) that is no number of 64 bits (RFC
    /// 8881, section 18.10.3): the last byte there could be is locked to the end only.
    pub const fn new(offset: u64, length: u64) -> Result<Self, Status> {
        match (length, offset.checked_add(length)) {
            (u64::MAX, _) => Ok(Self {
                first: offset,
                last: u64::MAX,
            }),
            (0, _) | (_, None) => Err(Status::INVAL),
            (_, Some(end)) => Ok(Self {
                first: offset,
                last: end.saturating_sub(1),
            }),
        }
    }

    /// The first byte.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.first
    }

    /// The length as LOCK4denied has it: all ones to the end.
    #[must_use]
    pub const fn length(&self) -> u64 {
        match (self.last, self.last.wrapping_sub(self.first)) {
            (u64::MAX, _) => u64::MAX,
            (_, length) => length.saturating_add(1),
        }
    }

    /// The range as a local lock, which has 63 bits: `None` when all of it is behind them. No file
    /// has such bytes, and locks on them are known to this server alone.
    #[must_use]
    pub fn local(&self) -> Option<LocalRange> {
        let start = i64::try_from(self.first).ok()?;
        let length = match i64::try_from(self.last) {
            // No file has a byte at 2^63 - 1: its size would not be a number.
            Ok(last) if last < i64::MAX => last.saturating_sub(start).saturating_add(1),
            Ok(_) | Err(_) => 0,
        };
        Some(LocalRange { start, length })
    }

    pub(crate) const fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether the first byte of `next` is the one behind the last of this.
    const fn meets(&self, next: &Self) -> bool {
        matches!(self.last.checked_add(1), Some(behind) if behind == next.first)
    }
}

/// The ranges that a lock owner has locked in one file: in order, none over another, and none that
/// could be one with the next.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Held {
    ranges: Vec<(LockRange, LockKind)>,
    /// How many of them there are more than a LOCK could have made: unlocking has split others.
    beyond: usize,
}

impl Held {
    pub(crate) const fn beyond(&self) -> usize {
        self.beyond
    }

    /// A change was made, which may have been let go beyond what LOCKs may make. Those that go are
    /// the ones beyond.
    pub(crate) fn count_beyond(&mut self, before: usize, is_beyond: bool) {
        let added = self.len().saturating_sub(before);
        let gone = before.saturating_sub(self.len());
        let beyond = if is_beyond { added } else { 0 };
        self.beyond = self.beyond.saturating_add(beyond).saturating_sub(gone);
    }

    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The first of the ranges that keep `kind` from `range`: writing anything, reading what is
    /// locked for writing.
    pub(crate) fn conflict(
        &self,
        range: &LockRange,
        kind: LockKind,
    ) -> Option<(LockRange, LockKind)> {
        self.ranges
            .iter()
            .find(|(held, as_kind)| {
                held.overlaps(range) && (kind == LockKind::Write || *as_kind == LockKind::Write)
            })
            .copied()
    }

    /// Whether unlocking `range` makes two of one that is held.
    pub(crate) fn is_split_by(&self, range: &LockRange) -> bool {
        let splits = |held: &LockRange| held.first < range.first && range.last < held.last;
        self.ranges.iter().any(|(held, _)| splits(held))
    }

    /// Sets `range` to `kind`, or to nothing: what was there is cut, split or joined (POSIX; RFC
    /// 8881, section 9.2 lets a server have it so).
    pub(crate) fn set(&mut self, range: LockRange, kind: Option<LockKind>) {
        let mut parts = Vec::with_capacity(self.ranges.len().saturating_add(2));
        for (held, as_kind) in self.ranges.drain(..) {
            if !held.overlaps(&range) {
                parts.push((held, as_kind));
                continue;
            }
            if let Some(before) = range
                .first
                .checked_sub(1)
                .filter(|last| *last >= held.first)
            {
                parts.push((
                    LockRange {
                        first: held.first,
                        last: before,
                    },
                    as_kind,
                ));
            }
            if let Some(behind) = range
                .last
                .checked_add(1)
                .filter(|first| *first <= held.last)
            {
                parts.push((
                    LockRange {
                        first: behind,
                        last: held.last,
                    },
                    as_kind,
                ));
            }
        }
        if let Some(kind) = kind {
            let at = parts.partition_point(|(held, _)| held.first < range.first);
            parts.insert(at, (range, kind));
        }
        for (range, kind) in parts {
            match self.ranges.last_mut() {
                Some((held, as_kind)) if *as_kind == kind && held.meets(&range) => {
                    held.last = range.last;
                }
                Some(_) | None => self.ranges.push((range, kind)),
            }
        }
        if self.ranges.len().saturating_mul(4) < self.ranges.capacity() {
            self.ranges.shrink_to_fit();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(LockRange, LockKind)> {
        self.ranges.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockKind::{Read, Write};
    use proptest::prelude::*;

    fn range(offset: u64, length: u64) -> LockRange {
        LockRange::new(offset, length).unwrap()
    }

    #[test]
    fn ends_of_ranges_fit_64_bits() {
        // RFC 8881, section 18.10.3; pynfs LOCK6 and LOCK8 of 4.0.
        assert_eq!(LockRange::new(5, 0), Err(Status::INVAL));
        assert_eq!(LockRange::new(u64::MAX, 2), Err(Status::INVAL));
        assert_eq!(LockRange::new(2, u64::MAX - 1), Err(Status::INVAL));
        assert_eq!(LockRange::new(u64::MAX, 1), Err(Status::INVAL));
        assert_eq!(range(u64::MAX - 1, 1).length(), 1);
        assert_eq!(range(u64::MAX, u64::MAX).length(), u64::MAX);
        assert_eq!(
            (range(7, u64::MAX).offset(), range(7, u64::MAX).length()),
            (7, u64::MAX)
        );
        assert_eq!(range(7, 1).length(), 1);
        assert_eq!(range(0, u64::MAX - 1).length(), u64::MAX - 1);
    }

    #[test]
    fn local_ranges_have_63_bits() {
        let local = |offset, length| range(offset, length).local();
        let of = |start, length| Some(LocalRange { start, length });
        assert_eq!(local(10, 5), of(10, 5));
        assert_eq!(local(10, u64::MAX), of(10, 0));
        assert_eq!(local(0, 1 << 63), of(0, 0));
        assert_eq!(local(0, (1 << 63) - 1), of(0, i64::MAX));
        assert_eq!(local((1 << 63) - 1, 1), of(i64::MAX, 0));
        assert_eq!(local(1 << 63, 1), None);
    }

    #[test]
    fn ranges_are_split_and_joined() {
        let mut held = Held::default();
        held.set(range(0, 100), Some(Read));
        held.set(range(40, 20), Some(Write));
        assert_eq!(
            held.ranges,
            [
                (range(0, 40), Read),
                (range(40, 20), Write),
                (range(60, 40), Read)
            ]
        );
        held.set(range(40, 20), Some(Read));
        assert_eq!(held.ranges, [(range(0, 100), Read)]);
        held.set(range(10, 10), None);
        assert_eq!(held.ranges, [(range(0, 10), Read), (range(20, 80), Read)]);
        held.set(range(0, u64::MAX), None);
        assert!(held.is_empty());
        held.set(range(u64::MAX, u64::MAX), Some(Write));
        held.set(range(u64::MAX - 1, 1), Some(Write));
        assert_eq!(held.ranges, [(range(u64::MAX - 1, u64::MAX), Write)]);
    }

    proptest! {
        // Each byte is as the last change of it says, and the ranges are as few as can be.
        #[test]
        fn every_byte_is_as_it_was_set_last(
            changes in prop::collection::vec((0_u64..32, 1_u64..12, 0_u8..3), 0..24),
        ) {
            let mut held = Held::default();
            let mut bytes = [None; 48];
            for (offset, length, kind) in changes {
                let kind = [None, Some(Read), Some(Write)][usize::from(kind)];
                held.set(range(offset, length), kind);
                bytes[usize::try_from(offset).unwrap()..][..usize::try_from(length).unwrap()]
                    .fill(kind);
                let mut seen = [None; 48];
                for (range, kind) in &held.ranges {
                    for byte in range.first..=range.last {
                        let byte = &mut seen[usize::try_from(byte).unwrap()];
                        prop_assert_eq!(*byte, None, "one range over another");
                        *byte = Some(*kind);
                    }
                }
                prop_assert_eq!(seen, bytes);
                prop_assert!(held.ranges.is_sorted());
                let mut pairs = held.ranges.windows(2);
                let one = pairs.find(|two| two[0].1 == two[1].1 && two[0].0.meets(&two[1].0));
                prop_assert_eq!(one, None, "two that are one");
            }
        }
    }
}
