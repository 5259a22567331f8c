//! What a queue has to send: heads and small payload in pieces of memory that the queues of a
//! reactor share, references to large payload between them.

use std::collections::VecDeque;
use std::sync::Arc;

use capstan_memory::{PAGE_BYTES, RawBytes, Slab};
use crc_fast::{CrcAlgorithm, Digest};

use super::limits::{STAGED_CHUNK_BYTES, STAGED_HEADS_BYTES};
use super::staging::Staging;

/// Zeroes to send, any number of times.
static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];
const CHUNK_BYTES: usize = 4096;

enum Segment {
    /// The next so many staged bytes.
    Staged(usize),
    /// So many bytes from `at` on of the buffer of a command.
    Memory {
        slot: u16,
        at: u32,
        len_bytes: usize,
    },
    Zeroes(usize),
    /// So many bytes from `at` on of a slab, which change by whole pages only.
    Held {
        slab: Arc<Slab>,
        at: usize,
        len_bytes: usize,
    },
    /// The next so many bytes of [`Outgoing::rest_of_page`].
    RestOfPage(usize),
}

impl Segment {
    fn len_bytes(&self) -> usize {
        match self {
            Self::Staged(len_bytes)
            | Self::Zeroes(len_bytes)
            | Self::RestOfPage(len_bytes)
            | Self::Memory { len_bytes, .. }
            | Self::Held { len_bytes, .. } => *len_bytes,
        }
    }
}

/// A place in the staged bytes, counted from the first of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark(u64);

/// Staged bytes in one piece of memory, which does not grow.
struct Chunk {
    /// Where they begin, counted as a [`Mark`] is.
    start: u64,
    bytes: Vec<u8>,
    /// The memory is of [`Staging`].
    is_shared: bool,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }

    fn has_room(&self, more_bytes: usize) -> bool {
        self.bytes.capacity().saturating_sub(self.bytes.len()) >= more_bytes
    }

    /// The bytes from `mark` on.
    fn from(&self, mark: u64) -> &[u8] {
        let offset = usize::try_from(mark.saturating_sub(self.start)).unwrap_or(usize::MAX);
        self.bytes.get(offset..).unwrap_or_default()
    }
}

/// Bytes to send, in order.
pub(super) struct Outgoing {
    staging: Staging,
    /// Heads, digests and small payload, from the first byte that has not left on. What is added at
    /// once lies in one of them.
    chunks: VecDeque<Chunk>,
    /// Staged bytes so far, and those of them that have left.
    end: u64,
    gone: u64,
    segments: VecDeque<Segment>,
    /// Bytes of the first segment that have left.
    front_gone_bytes: usize,
    /// What had not left of a page of [`Segment::Held`] when its first bytes did.
    rest_of_page: Vec<u8>,
}

impl Outgoing {
    /// Copies what it is to send to memory of `staging`.
    pub(super) fn new(staging: Staging) -> Self {
        Self {
            staging,
            chunks: VecDeque::new(),
            end: 0,
            gone: 0,
            segments: VecDeque::new(),
            front_gone_bytes: 0,
            rest_of_page: Vec::new(),
        }
    }

    /// Makes room for a PDU of `len_bytes` whose data is copied, so that all of it lies in one
    /// piece. False where the shared memory is used up: then only heads are to be copied.
    pub(super) fn reserve(&mut self, len_bytes: usize) -> bool {
        if let Some(last) = self.chunks.back()
            && last.has_room(len_bytes)
            && last.is_shared
        {
            return true;
        }
        if len_bytes > STAGED_CHUNK_BYTES {
            return false;
        }
        let Some(bytes) = self.staging.take() else {
            return false;
        };
        self.add_chunk(bytes, true);
        true
    }

    /// Makes room for so many bytes in one piece, outside of the shared memory where that has none.
    pub(super) fn reserve_anyway(&mut self, len_bytes: usize) {
        let has_room = (self.chunks.back()).is_some_and(|last| last.has_room(len_bytes));
        if !has_room && !self.reserve(len_bytes) {
            let bytes = Vec::with_capacity(len_bytes.max(STAGED_HEADS_BYTES));
            self.add_chunk(bytes, false);
        }
    }

    fn add_chunk(&mut self, bytes: Vec<u8>, is_shared: bool) {
        self.chunks.push_back(Chunk {
            start: self.end,
            bytes,
            is_shared,
        });
    }

    /// Copies `bytes`.
    pub(super) fn stage(&mut self, bytes: &[u8]) -> Mark {
        let mark = self.mark();
        self.reserve_anyway(bytes.len());
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.bytes.extend_from_slice(bytes);
            self.staged_more(bytes.len());
        }
        mark
    }

    /// Copies the start of `bytes`, `len_bytes` of them.
    pub(super) fn stage_raw(&mut self, bytes: RawBytes<'_>, len_bytes: usize) -> Mark {
        let mark = self.stage_zeroes(len_bytes);
        if let Some(chunk) = self.chunks.back_mut() {
            let start = chunk.bytes.len().saturating_sub(len_bytes);
            bytes.copy_to(chunk.bytes.get_mut(start..).unwrap_or_default());
        }
        mark
    }

    /// So many zeroes, copied.
    pub(super) fn stage_zeroes(&mut self, len_bytes: usize) -> Mark {
        let mark = self.mark();
        self.reserve_anyway(len_bytes);
        if let Some(chunk) = self.chunks.back_mut() {
            let end = chunk.bytes.len().saturating_add(len_bytes);
            chunk.bytes.resize(end, 0);
            self.staged_more(len_bytes);
        }
        mark
    }

    /// Takes back what was staged last, from `mark` on; nothing else was queued since, and room was
    /// reserved for all of it.
    pub(super) fn unstage(&mut self, mark: Mark) {
        let Some(chunk) = self.chunks.back_mut() else {
            return;
        };
        let had = chunk.bytes.len();
        let offset = usize::try_from(mark.0.saturating_sub(chunk.start)).unwrap_or(usize::MAX);
        chunk.bytes.truncate(offset);
        let taken = had.saturating_sub(chunk.bytes.len());
        self.end = self.end.saturating_sub(taken as u64);
        if let Some(Segment::Staged(bytes)) = self.segments.back_mut() {
            *bytes = bytes.saturating_sub(taken);
        }
        if matches!(self.segments.back(), Some(Segment::Staged(0))) {
            self.segments.pop_back();
        }
    }

    fn staged_more(&mut self, more_bytes: usize) {
        self.end = self.end.saturating_add(more_bytes as u64);
        match self.segments.back_mut() {
            Some(Segment::Staged(bytes)) => *bytes = bytes.saturating_add(more_bytes),
            _ if more_bytes == 0 => {}
            _ => self.segments.push_back(Segment::Staged(more_bytes)),
        }
    }

    /// The end of what is staged.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.end)
    }

    /// The end of what was staged and has left.
    pub(super) fn left(&self) -> Mark {
        Mark(self.gone)
    }

    /// The staged bytes from `mark` on, for which room was reserved together.
    pub(super) fn staged_from(&self, mark: Mark) -> &[u8] {
        (self.chunks.back()).map_or(&[], |chunk| chunk.from(mark.0))
    }

    /// Overwrites what was staged at `mark`, unless some of it has left.
    pub(super) fn rewrite(&mut self, mark: Mark, bytes: &[u8]) -> bool {
        if mark.0 < self.gone {
            return false;
        }
        let mut latest = self.chunks.iter_mut().rev();
        let Some(chunk) = latest.find(|chunk| chunk.start <= mark.0) else {
            return false;
        };
        let start = usize::try_from(mark.0.saturating_sub(chunk.start)).unwrap_or(usize::MAX);
        let end = start.saturating_add(bytes.len());
        let Some(old) = chunk.bytes.get_mut(start..end) else {
            return false;
        };
        old.copy_from_slice(bytes);
        true
    }

    /// `len_bytes` from `at` on of the buffer of the command `slot`, which stays there until
    /// [`Outgoing::gone`] has said that they have left.
    pub(super) fn memory(&mut self, slot: u16, at: u32, len_bytes: usize) {
        self.segments.push_back(Segment::Memory {
            slot,
            at,
            len_bytes,
        });
    }

    /// `len_bytes` from `at` on of `slab`, which only this thread writes, by whole pages. Each page
    /// leaves as it is at one moment.
    pub(super) fn held(&mut self, slab: &Arc<Slab>, at: usize, len_bytes: usize) {
        self.segments.push_back(Segment::Held {
            slab: Arc::clone(slab),
            at,
            len_bytes,
        });
    }

    /// So many zeroes, not copied.
    pub(super) fn zeroes(&mut self, len_bytes: usize) {
        self.segments.push_back(Segment::Zeroes(len_bytes));
    }

    pub(super) fn staged_bytes(&self) -> usize {
        usize::try_from(self.end.saturating_sub(self.gone)).unwrap_or(usize::MAX)
    }

    /// Bytes of all kinds that have not left.
    pub(super) fn unsent_bytes(&self) -> usize {
        let all: usize = self.segments.iter().map(Segment::len_bytes).sum();
        all.saturating_sub(self.front_gone_bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Calls `take` with piece after piece until it answers false. `memory` gives the buffer of a
    /// command.
    pub(super) fn gather<'a>(
        &'a self,
        memory: impl Fn(u16) -> Option<RawBytes<'a>>,
        mut take: impl FnMut(RawBytes<'a>) -> bool,
    ) {
        let mut chunks = self.chunks.iter().map(|chunk| chunk.from(self.gone));
        let mut staged: &[u8] = &[];
        let mut skip = self.front_gone_bytes;
        for segment in &self.segments {
            let mut left = segment.len_bytes().saturating_sub(skip);
            match segment {
                Segment::Staged(_) => {
                    while left > 0 {
                        if staged.is_empty() {
                            let Some(next) = chunks.next() else { return };
                            staged = next;
                            continue;
                        }
                        let (some, rest) = staged.split_at(staged.len().min(left));
                        staged = rest;
                        left = left.saturating_sub(some.len());
                        if !take(RawBytes::from(some)) {
                            return;
                        }
                    }
                }
                Segment::Memory { slot, at, .. } => {
                    let Some(bytes) = memory(*slot) else { return };
                    let bytes = bytes.skip((*at as usize).saturating_add(skip));
                    if !take(bytes.first(left)) {
                        return;
                    }
                }
                Segment::Held { slab, at, .. } => {
                    let start = at.saturating_add(skip);
                    let Some(bytes) = slab.raw(start..start.saturating_add(left)) else {
                        return;
                    };
                    if !take(bytes) {
                        return;
                    }
                }
                Segment::RestOfPage(_) => {
                    let bytes = self.rest_of_page.get(skip..).unwrap_or_default();
                    if !take(RawBytes::from(bytes)) {
                        return;
                    }
                }
                Segment::Zeroes(_) => {
                    while left > 0 {
                        let some = left.min(ZEROES.len());
                        if !take(RawBytes::from(&ZEROES[..]).first(some)) {
                            return;
                        }
                        left = left.saturating_sub(some);
                    }
                }
            }
            skip = 0;
        }
    }

    /// The first `bytes` have left. Calls `memory_gone` with each command of whose buffer a segment
    /// has left as a whole.
    pub(super) fn gone(&mut self, mut bytes: usize, mut memory_gone: impl FnMut(u16)) {
        while let Some(front) = self.segments.front() {
            let left = front.len_bytes().saturating_sub(self.front_gone_bytes);
            let some = left.min(bytes);
            if let Segment::Staged(_) = front {
                self.gone = self.gone.saturating_add(some as u64);
            }
            bytes = bytes.saturating_sub(some);
            if some < left {
                self.front_gone_bytes = self.front_gone_bytes.saturating_add(some);
                self.keep_rest_of_page();
                break;
            }
            self.front_gone_bytes = 0;
            if let Some(Segment::Memory { slot, .. }) = self.segments.pop_front() {
                memory_gone(slot);
            }
        }
        while let Some(front) = self.chunks.front()
            && front.end() <= self.gone
        {
            if let Some(chunk) = self.chunks.pop_front() {
                self.give_back(chunk);
            }
        }
    }

    /// Copies what has not left of a page whose first bytes have: it may change before the rest
    /// leaves, and an LBA is never seen half written (NVM Command Set 1.1, section 2.1.4).
    fn keep_rest_of_page(&mut self) {
        let Some(Segment::Held {
            slab,
            at,
            len_bytes,
        }) = self.segments.front()
        else {
            return;
        };
        let start = at.saturating_add(self.front_gone_bytes);
        let end = at.saturating_add(*len_bytes);
        let end_of_page = start.next_multiple_of(PAGE_BYTES).min(end);
        let Some(bytes) = slab.raw(start..end_of_page).filter(|rest| !rest.is_empty()) else {
            return;
        };
        self.rest_of_page.resize(bytes.len(), 0);
        bytes.copy_to(&mut self.rest_of_page);
        let (rest, slab) = (Segment::RestOfPage(bytes.len()), Arc::clone(slab));
        self.segments.pop_front();
        if end > end_of_page {
            self.segments.push_front(Segment::Held {
                slab,
                at: end_of_page,
                len_bytes: end.saturating_sub(end_of_page),
            });
        }
        self.segments.push_front(rest);
        self.front_gone_bytes = 0;
    }

    fn give_back(&self, chunk: Chunk) {
        if chunk.is_shared {
            self.staging.give_back(chunk.bytes);
        }
    }

    /// Nothing is sent any more.
    pub(super) fn clear(&mut self) {
        let staging = self.staging.clone();
        // Gives back what it has.
        *self = Self::new(staging);
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        while let Some(chunk) = self.chunks.pop_front() {
            self.give_back(chunk);
        }
    }
}

/// CRC32C of the first `len_bytes`. They are looked at through copies of 4 KiB, which stay in the
/// first cache.
pub(super) fn crc32c_raw(mut bytes: RawBytes<'_>, len_bytes: usize) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    let mut chunk = [0; CHUNK_BYTES];
    bytes = bytes.first(len_bytes);
    while !bytes.is_empty() {
        let some = bytes.len().min(CHUNK_BYTES);
        let chunk = chunk.get_mut(..some).unwrap_or_default();
        bytes.copy_to(chunk);
        digest.update(chunk);
        bytes = bytes.skip(some);
    }
    low32(digest.finalize())
}

/// CRC32C of `len_bytes` of zeroes.
pub(super) fn crc32c_zeroes(mut len_bytes: usize) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    while len_bytes > 0 {
        let some = len_bytes.min(ZEROES.len());
        digest.update(ZEROES.get(..some).unwrap_or_default());
        len_bytes = len_bytes.saturating_sub(some);
    }
    low32(digest.finalize())
}

/// CRC32C of `bytes`.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

fn low32(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use capstan_memory::{Buffer, Pages, Pool};

    use super::*;

    fn bytes_of(out: &Outgoing, memory: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        out.gather(
            |_| Some(RawBytes::from(memory)),
            |piece| {
                let start = all.len();
                all.resize(start + piece.len(), 0);
                piece.copy_to(&mut all[start..]);
                true
            },
        );
        all
    }

    #[test]
    fn what_is_left_is_the_end_of_what_was_queued_however_it_is_cut() {
        let memory: Vec<u8> = (0..100).collect();
        for step in 1..40 {
            let mut out = Outgoing::new(Staging::default());
            let mut all = b"head".to_vec();
            out.stage(b"he");
            out.stage(b"ad");
            out.memory(3, 10, 50);
            all.extend(10..60);
            out.zeroes(20);
            all.extend([0; 20]);
            let mark = out.stage(b"tail");
            all.extend(b"TAIL");
            assert!(out.rewrite(mark, b"TAIL"));
            let mut released = Vec::new();
            while !out.is_empty() {
                assert_eq!(bytes_of(&out, &memory), all, "{step}");
                let some = step.min(all.len());
                out.gone(some, |slot| released.push(slot));
                all.drain(..some);
                assert_eq!(released.is_empty(), all.len() > 24);
            }
            assert_eq!((all.len(), out.staged_bytes()), (0, 0));
            assert!(!out.rewrite(mark, b"gone"), "it has left");
        }
    }

    #[test]
    fn a_page_that_changes_while_it_leaves_is_sent_as_it_was() {
        let pool = Pool::new(4 * PAGE_BYTES, Pages::Ordinary).unwrap();
        let mut pages = pool.take(3 * 4096).unwrap();
        let fill = |pages: &mut Buffer, with: u8| {
            pages.copy_from(0, &vec![with; 3 * PAGE_BYTES]);
        };
        let base = usize::try_from(pages.addr() - pool.slab().addr()).unwrap();
        for step in [1, 100, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 7, 9000] {
            let mut out = Outgoing::new(Staging::default());
            out.stage(b"head");
            out.held(pool.slab(), base + 512, 2 * PAGE_BYTES);
            out.stage(b"tail");
            let (mut all, mut with) = (Vec::new(), 0);
            while !out.is_empty() {
                with += 1;
                fill(&mut pages, with);
                let left = bytes_of(&out, &[]);
                let some = step.min(left.len());
                all.extend_from_slice(&left[..some]);
                out.gone(some, |_| panic!("no command has a buffer"));
                if with == u8::MAX {
                    with = 0;
                }
            }
            assert_eq!(
                (&all[..4], &all[all.len() - 4..]),
                (&b"head"[..], &b"tail"[..])
            );
            let data = &all[4..all.len() - 4];
            assert_eq!(data.len(), 2 * PAGE_BYTES);
            let (first, rest) = data.split_at(PAGE_BYTES - 512);
            let (second, third) = rest.split_at(PAGE_BYTES);
            for page in [first, second, third] {
                assert!(
                    page.iter().all(|byte| byte == &page[0]),
                    "{step}: a page is torn"
                );
            }
            if step < PAGE_BYTES {
                assert_ne!(first[0], third[0], "{step}: they leave later");
            }
        }
    }

    #[test]
    fn what_is_taken_back_is_not_sent() {
        let mut out = Outgoing::new(Staging::default());
        let mark = out.stage(b"no");
        out.unstage(mark);
        assert!(out.is_empty());
        out.stage(b"yes");
        let mark = out.stage(b"no");
        out.unstage(mark);
        out.stage(b"!");
        assert_eq!(bytes_of(&out, &[]), b"yes!");
        out.gone(4, |_| {});
        assert!(out.is_empty());
    }

    #[test]
    fn the_digest_of_pieces_is_that_of_the_whole() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        assert_eq!(
            crc32c_raw(RawBytes::from(&bytes[..]), 9_999),
            crc32c(&bytes[..9_999])
        );
        assert_eq!(crc32c_zeroes(70_000), crc32c(&vec![0; 70_000]));
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }
}
