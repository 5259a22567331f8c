//! Data from the host and to it, as the user of a queue has it.

use std::ops::Range;

use capstan_memory::Buffer;

use super::super::controller::Part;
use super::super::limits::DIRECT_MIN_BYTES;
use super::TcpQueue;
use crate::data::{Full, HostMemory, HostPlace, Piece, Pushed, Source};
use crate::queue::{End, Tag};

impl TcpQueue {
    /// Asks the host for `len_bytes` of data of a command. The sink comes back with
    /// `Event::Pulled`, or `Event::Returned` where the queue has ended.
    pub fn pull(&mut self, tag: Tag, from: &HostMemory, sink: Buffer, len_bytes: u32) {
        self.is_to_be_flushed();
        let pulled =
            cid_of(from).map(|cid| self.with(|queue| queue.pull(tag, cid, len_bytes, sink)));
        if !matches!(pulled, Some(Ok(()))) {
            // A sink shorter than the pull, or memory of another wire, is a fault of the caller:
            // the queue ends.
            drop(pulled);
            self.end(End::Now);
        }
    }

    /// Pushes `source` to the host. A buffer is always taken: it comes back at once if its bytes
    /// are few and there is room to copy them, and otherwise with
    /// [`Event::Returned`](crate::Event::Returned).
    ///
    /// # Errors
    /// The source, where there is no room to copy it, or it would have to stay as it is.
    // Inlined, the kind of source that a caller has is told apart when it is compiled, and a source
    // that comes back is not moved through memory.
    #[inline(always)]
    pub fn push<'s>(
        &mut self,
        to: &HostMemory,
        source: Source<'s>,
    ) -> Result<Pushed, Full<Source<'s>>> {
        let HostPlace::Transport {
            cid,
            offset_bytes,
            length_bytes,
        } = to.place
        else {
            // The host has no memory for it.
            return Ok(Pushed::Gone(source.into_buffer()));
        };
        self.is_to_be_flushed();
        match source {
            Source::Copy(len_bytes, copy) => {
                if len_bytes < DIRECT_MIN_BYTES && self.queue.push_now(cid, len_bytes, copy) {
                    return Ok(Pushed::Gone(None));
                }
                Err(Full {
                    what: Source::Copy(len_bytes, copy),
                    until_room: self.queue.is_full(),
                })
            }
            // Zeroes are always taken.
            Source::Zeroes(_) | Source::Held(..) => self.with(|queue| queue.push(cid, source)),
            Source::Buffer(tag, buffer, range) => Ok(self.push_buffer(tag, cid, buffer, range)),
            Source::Piece(piece) => Ok(self.push_piece(cid, (offset_bytes, length_bytes), piece)),
        }
    }

    /// Whether it has as much staged as it stages: [`Event::Room`](crate::Event::Room) follows.
    pub fn has_backlog(&mut self) -> bool {
        let is_full = self.queue.is_full();
        if is_full {
            self.is_to_be_flushed();
        }
        is_full
    }

    fn push_buffer(&mut self, tag: Tag, cid: u16, buffer: Buffer, range: Range<u32>) -> Pushed {
        let len_bytes = range.end.saturating_sub(range.start);
        let bytes = buffer.raw().skip(range.start as usize);
        let bytes = bytes.first(len_bytes as usize);
        let few = len_bytes < DIRECT_MIN_BYTES;
        if len_bytes == 0 || few && self.queue.push_copied(cid, len_bytes, bytes) {
            return Pushed::Gone(Some(buffer));
        }
        let pushed = self.with(|queue| queue.push(cid, Source::Buffer(tag, buffer, range)));
        pushed.unwrap_or_else(|full| {
            // Only what lies outside of the buffer is refused: the caller is at fault.
            let buffer = full.what.into_buffer();
            self.end(End::Now);
            Pushed::Gone(buffer)
        })
    }

    /// Pushes a piece of what a command returns, copied, to `length_bytes` of the host's memory
    /// from `offset_bytes` on. The buffer of one that is not the last comes back when the socket
    /// has taken it. Behind the last, zeroes take the place of what the host has asked for beyond
    /// it.
    fn push_piece(
        &mut self,
        cid: u16,
        (offset_bytes, length_bytes): (u32, u32),
        piece: Piece,
    ) -> Pushed {
        let Piece {
            tag,
            buffer,
            len_bytes,
            last,
        } = piece;
        let remaining_bytes = length_bytes.saturating_sub(len_bytes);
        let mut back = Some(buffer);
        if let Some(buffer) = back.take_if(|_| len_bytes > 0) {
            let part = Part {
                offset_bytes,
                last: last && remaining_bytes == 0,
            };
            let source = (buffer, len_bytes);
            back = self.queue.push_part(tag, cid, part, source, !last);
        }
        if last {
            let at_bytes = offset_bytes.saturating_add(len_bytes);
            self.queue.pad(cid, at_bytes, remaining_bytes);
        }
        match back {
            Some(buffer) => Pushed::Gone(Some(buffer)),
            None => Pushed::UntilReleased,
        }
    }
}

/// The identifier of the command whose data is there, if NVMe/TCP moves it.
fn cid_of(host: &HostMemory) -> Option<u16> {
    match host.place {
        HostPlace::Transport { cid, .. } => Some(cid),
        HostPlace::None
        | HostPlace::InCapsule { .. }
        | HostPlace::Keyed(_)
        | HostPlace::KeyedList(_) => None,
    }
}
