//! Data to the host: C2HData, whose bytes are copied or leave from where they are.

use capstan_memory::{Buffer, RawBytes};
use capstan_nvme_proto::tcp::c2h::C2hData;

use super::super::limits::{DIRECT_MIN_BYTES, STAGED_MAX_BYTES, ZEROES_MIN_BYTES};
use super::super::outgoing::{Outgoing, crc32c, crc32c_raw, crc32c_zeroes};
use super::{ControllerQueue, Head};
use crate::data::{CopyTo, Full, Pushed, Source};
use crate::queue::{Event, Tag};

/// Bytes of a data digest.
const DIGEST_BYTES: usize = 4;

/// Where a part of the data of a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From the start of the data, in bytes.
    pub offset_bytes: u32,
    /// Nothing follows it.
    pub last: bool,
}

/// All data of a command in one PDU.
fn whole(cid: u16, length_bytes: u32) -> C2hData {
    C2hData {
        cid,
        offset_bytes: 0,
        length_bytes,
        last: true,
        success: false,
    }
}

impl ControllerQueue {
    /// Sends all data of the command `cid`. Where [`Pushed::UntilReleased`] is answered, the buffer
    /// comes back with [`Event::Returned`]; so it does where the queue has ended. Not to be called
    /// after [`Event::Quiesced`].
    ///
    /// # Errors
    /// The source: until there is room ([`Source::Copy`] and [`Source::Held`]), or as another kind
    /// ([`Source::Piece`] always, [`Source::Held`] where [`ControllerQueue::holds`] says so, both
    /// and [`Source::Buffer`] where the range is not inside).
    pub fn push<'s>(
        &mut self,
        cid: u16,
        mut source: Source<'s>,
    ) -> Result<Pushed, Full<Source<'s>>> {
        let len = source.len_bytes();
        let side = &mut self.side;
        let agreed = side.agreed.filter(|_| self.stream.is_open());
        let out = &mut self.stream.out;
        let fits = match &source {
            Source::Buffer(_, buffer, range) => range.end <= buffer.len_bytes(),
            Source::Held(slab, range) => range.end <= slab.len_bytes() && side.holds(len),
            Source::Piece(_) => false,
            Source::Zeroes(_) | Source::Copy(..) => true,
        };
        let (true, Ok(length_bytes)) = (fits, u32::try_from(len)) else {
            return Err(Full {
                what: source,
                until_room: false,
            });
        };
        let Some((_, writer)) = agreed else {
            if let Source::Buffer(tag, buffer, _) = source {
                side.events.push_back(Event::Returned(tag, buffer));
                return Ok(Pushed::UntilReleased);
            }
            return Ok(Pushed::Gone(None));
        };
        let is_full = out.staged_bytes() >= STAGED_MAX_BYTES;
        if is_full && matches!(source, Source::Copy(..) | Source::Held(..)) {
            side.wants_room = true;
            return Err(Full {
                what: source,
                until_room: true,
            });
        }
        if length_bytes == 0 {
            return Ok(Pushed::Gone(source.into_buffer()));
        }
        let data = whole(cid, length_bytes);
        let head = writer.c2h_data(&data);
        let pdu_bytes = copied_bytes(head.as_bytes(), len);
        let min_bytes = match &source {
            Source::Zeroes(_) => ZEROES_MIN_BYTES,
            Source::Buffer(..) | Source::Piece(_) | Source::Held(..) | Source::Copy(..) => {
                DIRECT_MIN_BYTES
            }
        };
        if let Source::Copy(..) = source {
            out.reserve_anyway(pdu_bytes);
        }
        let copies = length_bytes < min_bytes && !is_full && out.reserve(pdu_bytes);
        let at = out.stage(head.as_bytes());
        side.head = Some(Head { at, data });
        let has_digest = head.has_data_digest();
        let is_staged = stage_source(out, &mut source, (length_bytes, copies), has_digest);
        match source {
            Source::Buffer(tag, buffer, _) if !is_staged => {
                side.slot(tag).source = Some(buffer);
                Ok(Pushed::UntilReleased)
            }
            source => Ok(Pushed::Gone(source.into_buffer())),
        }
    }

    /// Sends all data of the command `cid`, `length_bytes` of it, if there is room and memory to
    /// copy it now and `copy` puts all of it. Nothing tells of it.
    pub fn push_now(&mut self, cid: u16, length_bytes: u32, copy: &mut CopyTo<'_>) -> bool {
        self.push_staged(cid, length_bytes, |out| {
            let mut have = 0_usize;
            copy(&mut |bytes| {
                // There is room for no more.
                let left = (length_bytes as usize).saturating_sub(have);
                out.stage(bytes.get(..left).unwrap_or(bytes));
                have = have.saturating_add(bytes.len());
            });
            have
        })
    }

    /// As [`ControllerQueue::push_now`], from the start of `from`.
    pub fn push_copied(&mut self, cid: u16, length_bytes: u32, from: RawBytes<'_>) -> bool {
        self.push_staged(cid, length_bytes, |out| {
            let some = from.len().min(length_bytes as usize);
            out.stage_raw(from, some);
            some
        })
    }

    fn push_staged(
        &mut self,
        cid: u16,
        length_bytes: u32,
        stage: impl FnOnce(&mut Outgoing) -> usize,
    ) -> bool {
        let side = &mut self.side;
        let Some((_, writer)) = side.agreed.filter(|_| self.stream.is_open()) else {
            return false;
        };
        let out = &mut self.stream.out;
        if out.staged_bytes() >= STAGED_MAX_BYTES {
            side.wants_room = true;
            return false;
        }
        let data = whole(cid, length_bytes);
        let head = writer.c2h_data(&data);
        if !out.reserve(copied_bytes(head.as_bytes(), length_bytes as usize)) {
            return false;
        }
        let at = out.stage(head.as_bytes());
        let start = out.mark();
        if stage(out) != length_bytes as usize {
            out.unstage(at);
            return false;
        }
        if head.has_data_digest() {
            let digest = crc32c(out.staged_from(start));
            out.stage(&digest.to_le_bytes());
        }
        side.head = Some(Head { at, data });
        true
    }

    /// Sends a part of the data of the command `cid`: so many bytes, copied from the start of a
    /// buffer that has them. Where `tells`, the buffer comes back with [`Event::Returned`] when the
    /// connection has taken them, and otherwise at once, as where the queue has ended.
    pub fn push_part(
        &mut self,
        tag: Tag,
        cid: u16,
        part: Part,
        (from, len_bytes): (Buffer, u32),
        tells: bool,
    ) -> Option<Buffer> {
        let side = &mut self.side;
        let Some((_, writer)) = side.agreed.filter(|_| self.stream.is_open()) else {
            return Some(from);
        };
        let out = &mut self.stream.out;
        let head = writer.c2h_data(&C2hData {
            cid,
            offset_bytes: part.offset_bytes,
            length_bytes: len_bytes,
            last: part.last,
            success: false,
        });
        out.reserve_anyway(copied_bytes(head.as_bytes(), len_bytes as usize));
        out.stage(head.as_bytes());
        let start = out.stage_raw(from.raw(), len_bytes as usize);
        if head.has_data_digest() {
            let digest = crc32c(out.staged_from(start));
            out.stage(&digest.to_le_bytes());
        }
        if tells {
            side.parts.push_back((out.mark(), tag, from));
            return None;
        }
        Some(from)
    }

    /// Sends zeroes as the last `length_bytes` of the data of the command `cid`, from
    /// `offset_bytes` on.
    pub fn pad(&mut self, cid: u16, offset_bytes: u32, length_bytes: u32) {
        let agreed = self.side.agreed.filter(|_| self.stream.is_open());
        let Some((_, writer)) = agreed.filter(|_| length_bytes > 0) else {
            return;
        };
        let out = &mut self.stream.out;
        let head = writer.c2h_data(&C2hData {
            cid,
            offset_bytes,
            length_bytes,
            last: true,
            success: false,
        });
        out.stage(head.as_bytes());
        out.zeroes(length_bytes as usize);
        if head.has_data_digest() {
            out.stage(&crc32c_zeroes(length_bytes as usize).to_le_bytes());
        }
    }

    /// Whether so many bytes of data can leave from where they stay: no digest of them has to fit
    /// what is there when they do.
    #[must_use]
    pub fn holds(&self, len_bytes: usize) -> bool {
        self.side.holds(len_bytes)
    }

    /// Whether a push that copies takes nothing now; [`Event::Room`] follows when it does again.
    pub fn is_full(&mut self) -> bool {
        let is_full = self.stream.out.staged_bytes() >= STAGED_MAX_BYTES;
        self.side.wants_room |= is_full;
        is_full
    }

    /// The response of `tag` is to be reported. Returns whether that waits for the source of a push
    /// before it.
    pub(in super::super) fn awaits_source(&mut self, Tag(slot): Tag) -> bool {
        let slot = self.side.slots.get_mut(usize::from(slot));
        slot.is_some_and(|slot| {
            slot.responded = slot.source.is_some();
            slot.responded
        })
    }

    /// The source of `tag` has come back. Whether its response waits for that.
    pub(in super::super) fn take_responded(&mut self, Tag(slot): Tag) -> bool {
        let slot = self.side.slots.get_mut(usize::from(slot));
        slot.is_some_and(|slot| std::mem::take(&mut slot.responded))
    }
}

/// Bytes of a PDU whose data is copied, with its digests.
fn copied_bytes(head: &[u8], data_bytes: usize) -> usize {
    head.len()
        .saturating_add(data_bytes)
        .saturating_add(DIGEST_BYTES)
}

/// Queues so many bytes of `source`, copied or not, and their digest behind them. `false` where
/// they are to leave from the buffer that they are in.
fn stage_source(
    out: &mut Outgoing,
    source: &mut Source<'_>,
    (length_bytes, copies): (u32, bool),
    has_digest: bool,
) -> bool {
    let len = length_bytes as usize;
    let start = out.mark();
    let (is_staged, digest) = match source {
        Source::Copy(_, copy) => {
            let mut have = 0_usize;
            copy(&mut |bytes| {
                let some = bytes.len().min(len.saturating_sub(have));
                out.stage(bytes.get(..some).unwrap_or_default());
                have = have.saturating_add(some);
            });
            out.stage_zeroes(len.saturating_sub(have));
            (true, None)
        }
        Source::Zeroes(_) if copies => {
            out.stage_zeroes(len);
            (true, None)
        }
        Source::Zeroes(_) => {
            out.zeroes(len);
            (true, has_digest.then(|| crc32c_zeroes(len)))
        }
        // Without a digest, see `push`.
        Source::Held(slab, range) => {
            out.held(slab, range.start, len);
            (true, None)
        }
        Source::Buffer(_, buffer, range) if copies => {
            out.stage_raw(buffer.raw().skip(range.start as usize), len);
            (true, None)
        }
        Source::Buffer(Tag(slot), buffer, range) => {
            out.memory(*slot, range.start, len);
            let bytes = buffer.raw().skip(range.start as usize);
            let digest = has_digest.then(|| crc32c_raw(bytes, len));
            (false, digest)
        }
        // Refused before.
        Source::Piece(_) => (true, None),
    };
    if has_digest {
        let digest = digest.unwrap_or_else(|| crc32c(out.staged_from(start)));
        out.stage(&digest.to_le_bytes());
    }
    is_staged
}
