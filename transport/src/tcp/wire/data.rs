//! Data from the host and to it, as the user of a queue has it.

use capstan_memory::Buffer;

use super::super::controller::Part;
use super::super::limits::DIRECT_MIN_BYTES;
use super::super::stream::End;
use super::Queue;
use crate::data::{CopyTo, HostMemory, Source};
use crate::queue::Tag;

impl Queue {
    /// Asks the host for `len_bytes` of data of a command. The sink comes back with
    /// `Event::Pulled`, or `Event::Returned` where the queue has ended.
    pub fn pull(&mut self, tag: Tag, from: &HostMemory, sink: Buffer, len_bytes: u32) {
        let cid = cid_of(from);
        if let Err(full) = self.with(|queue| queue.pull(tag, cid, len_bytes, sink)) {
            // A sink shorter than the pull is a fault of the caller: the queue ends.
            drop(full.what);
            self.end(End::Now);
        }
    }

    /// Pushes the first `len_bytes` of `source`. It comes back at once if they are few and there is
    /// room to copy them, and otherwise with `Event::Returned`.
    pub fn push(
        &mut self,
        tag: Tag,
        to: &HostMemory,
        source: Buffer,
        len_bytes: u32,
    ) -> Option<Buffer> {
        let (cid, bytes) = (cid_of(to), source.raw().first(len_bytes as usize));
        let few = len_bytes < DIRECT_MIN_BYTES;
        if len_bytes == 0 || few && self.queue.push_copied(cid, len_bytes, bytes) {
            return Some(source);
        }
        let source = Source::Buffer(source, 0..len_bytes);
        match self.with(|queue| queue.push(tag, cid, source)) {
            Ok(_) => None,
            Err(full) => {
                // Only what lies outside of the buffer is refused.
                self.end(End::Now);
                match full.what {
                    Source::Buffer(source, _) => Some(source),
                    Source::Zeroes(_) | Source::Held(..) | Source::Copy(..) => None,
                }
            }
        }
    }

    /// Pushes `len_bytes` of zeroes.
    pub fn push_zeroes(&mut self, to: &HostMemory, len_bytes: u32) {
        // Zeroes are always taken, and concern no tag.
        let _ = self.with(|queue| queue.push(Tag(0), cid_of(to), Source::Zeroes(len_bytes)));
    }

    /// Pushes what `copy` puts, where there is room for it now and it puts all of it.
    pub fn push_now(&mut self, cid: u16, len_bytes: u32, copy: &mut CopyTo<'_>) -> bool {
        len_bytes < DIRECT_MIN_BYTES && self.queue.push_now(cid, len_bytes, copy)
    }

    /// Pushes a piece of what a command returns: the first `len_bytes` of `source`, copied. Where
    /// it is not the last the source comes back with `Event::Returned`, when the socket has taken
    /// it; where it is, at once, and zeroes take the place of what the host has asked for beyond
    /// it.
    pub fn push_piece(
        &mut self,
        tag: Tag,
        to: &HostMemory,
        (source, len_bytes): (Buffer, u32),
        last: bool,
    ) -> Option<Buffer> {
        let HostMemory::Transport {
            cid,
            offset_bytes,
            length_bytes,
        } = *to
        else {
            return Some(source);
        };
        let remaining_bytes = length_bytes.saturating_sub(len_bytes);
        let mut back = Some(source);
        if let Some(source) = back.take_if(|_| len_bytes > 0) {
            let part = Part {
                offset_bytes,
                last: last && remaining_bytes == 0,
            };
            let source = (source, len_bytes);
            back = self.queue.push_part(tag, cid, part, source, !last);
        }
        if last {
            let at_bytes = offset_bytes.saturating_add(len_bytes);
            self.queue.pad(cid, at_bytes, remaining_bytes);
        }
        back
    }
}

/// The identifier of the command whose data is there.
fn cid_of(host: &HostMemory) -> u16 {
    match host {
        HostMemory::Transport { cid, .. } => *cid,
        // Nothing is pushed there or pulled from there.
        HostMemory::None
        | HostMemory::InCapsule(_)
        | HostMemory::Keyed(_)
        | HostMemory::KeyedList(_) => 0,
    }
}
