//! Data from the host and to it: RDMA READs and WRITEs.

use std::ops::Range;
use std::sync::Arc;

use capstan_memory::{Buffer, Slab};
use capstan_rdma::contract::{PostError, RKey, Remote, SendOp, Sge};

use super::super::sinks::{PullError, Sink};
use super::super::wr_id::WrId;
use super::Queue;
use crate::data::{CopyTo, HostMemory, KeyedBuffer};
use crate::queue::Tag;

impl Queue {
    /// Pulls `len_bytes` from the host into `sink`, for the command `tag`. The sink belongs to the
    /// queue until [`Event::Pulled`](crate::Event::Pulled), and until it is dropped where it ends.
    ///
    /// # Errors
    /// The sink could not be registered, or the queue pair takes no more: then the queue is to be
    /// ended.
    pub fn pull(
        &mut self,
        tag: Tag,
        from: &HostMemory,
        sink: Buffer,
        len_bytes: u32,
    ) -> Result<(), PullError> {
        let mut data = self.keys.sge(&sink, len_bytes);
        let region;
        (data.lkey, region) = self.keys.sinks.open(data)?;
        // Before an error as well: what was posted until then may still be written there.
        self.sinks.push_back((tag, Sink::new(sink, region)));
        self.each_buffer(from, data, SendOp::Read, Some(WrId::Pull(tag.0)))?;
        Ok(())
    }

    /// The data of a pull has come: its sink, which the host can reach no more.
    pub(in super::super) fn pulled(&mut self, tag: Tag) -> Option<Buffer> {
        while let Some((of, sink)) = self.sinks.pop_front() {
            if of == tag {
                return Some(sink.into_buffer());
            }
        }
        None
    }

    /// Pushes the first `len_bytes` of `source` to the host, for the command `tag`. The source
    /// belongs to the queue until [`Event::Released`](crate::Event::Released) of the response that
    /// is posted behind it, with which it comes back; and where none is, until the queue is
    /// dropped. It comes back at once where it is not needed.
    ///
    /// # Errors
    /// As [`QueuePair::post_send`](capstan_rdma::contract::QueuePair::post_send): then the queue is
    /// to be ended.
    #[inline]
    pub fn push(
        &mut self,
        tag: Tag,
        to: &HostMemory,
        source: Buffer,
        len_bytes: u32,
    ) -> Result<Option<Buffer>, PostError> {
        self.push_from(tag, to, (source, len_bytes), None)
    }

    /// As [`Queue::push`], of a piece of the data of the command while there is more: its source
    /// comes back when it has left.
    ///
    /// # Errors
    /// As [`Queue::push`].
    pub fn push_piece(
        &mut self,
        tag: Tag,
        to: &HostMemory,
        source: Buffer,
        len_bytes: u32,
    ) -> Result<Option<Buffer>, PostError> {
        let pushed = self.push_from(tag, to, (source, len_bytes), Some(WrId::Push(tag.0)))?;
        self.sources.followed(tag);
        Ok(pushed)
    }

    #[inline]
    fn push_from(
        &mut self,
        tag: Tag,
        to: &HostMemory,
        (source, len_bytes): (Buffer, u32),
        last: Option<WrId>,
    ) -> Result<Option<Buffer>, PostError> {
        if len_bytes == 0 {
            return Ok(Some(source));
        }
        let data = self.keys.sge(&source, len_bytes);
        // Before an error as well: what was posted until then may still be read there.
        self.sources.put(tag, source);
        self.each_buffer(to, data, SendOp::Write, last)?;
        Ok(None)
    }

    /// A push has left, or the response behind it. Returns the source of the push.
    #[inline]
    pub(in super::super) fn take_source(&mut self, tag: Tag) -> Option<Buffer> {
        self.sources.take(tag)
    }

    /// As [`Queue::push`], of the shared zeroes.
    ///
    /// # Errors
    /// As [`Queue::push`].
    pub fn push_zeroes(&mut self, to: &HostMemory, len_bytes: u32) -> Result<(), PostError> {
        let Some(zeroes) = &self.keys.zeroes else {
            return Ok(());
        };
        let data = Sge {
            len_bytes,
            ..zeroes.sge
        };
        self.each_buffer(to, data, SendOp::Write, None)
    }

    /// Whether the shared zeroes hold a transfer of `len_bytes`.
    #[must_use]
    #[inline]
    pub fn has_zeroes(&self, len_bytes: u32) -> bool {
        let zeroes = self.keys.zeroes.as_ref();
        zeroes.is_some_and(|zeroes| len_bytes <= zeroes.sge.len_bytes)
    }

    /// As [`Queue::push_held`], of the shared zeroes.
    #[inline]
    pub fn push_zeroes_now(&mut self, to: KeyedBuffer) -> bool {
        let Self {
            qp,
            keys,
            unflushed,
            ..
        } = self;
        let Some(zeroes) = &keys.zeroes else {
            return false;
        };
        let written = qp.write_from_slab(remote(to), &zeroes.slab, 0..to.len_bytes as usize);
        *unflushed += u32::from(written);
        written
    }

    /// Pushes what `source` has to the host, where the wire can copy it now: only the response is
    /// left to be sent then.
    #[inline]
    pub fn push_copy(&mut self, to: KeyedBuffer, source: &mut CopyTo<'_>) -> bool {
        let written = self.qp.write_inline(remote(to), to.len_bytes, source);
        self.unflushed += u32::from(written);
        written
    }

    /// Pushes `range` of `slab` to the host, where the wire needs no registration and nothing else
    /// writes there: only the response is left to be sent then.
    #[inline]
    pub fn push_held(&mut self, to: KeyedBuffer, slab: &Arc<Slab>, range: Range<usize>) -> bool {
        let written = range.len() == to.len_bytes as usize
            && self.qp.write_from_slab(remote(to), slab, range);
        self.unflushed += u32::from(written);
        written
    }

    /// Whether [`Queue::push_held`] takes nothing only because the wire is full: it does again when
    /// something has left.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.qp.write_would_block()
    }

    /// Posts one work request per buffer of the host, in order, for all of `data`; the last one is
    /// signaled when `last` names a completion. They complete in order, so its completion covers
    /// all.
    #[inline]
    fn each_buffer(
        &mut self,
        host: &HostMemory,
        data: Sge,
        op: impl Fn(Remote) -> SendOp,
        last: Option<WrId>,
    ) -> Result<(), PostError> {
        let len_bytes = data.len_bytes;
        let mut left = len_bytes;
        for buffer in host.keyed() {
            let buffer_bytes = buffer.len_bytes.min(left);
            if buffer_bytes == 0 {
                break;
            }
            let sge = Sge {
                addr: data.addr + u64::from(len_bytes - left),
                len_bytes: buffer_bytes,
                ..data
            };
            left -= buffer_bytes;
            let signal = last.filter(|_| left == 0);
            let wr_id = signal.map_or(0, WrId::encode);
            self.post(wr_id, op(remote(*buffer)), &[sge], signal.is_some())?;
        }
        Ok(())
    }
}

fn remote(buffer: KeyedBuffer) -> Remote {
    Remote {
        addr: buffer.address,
        rkey: RKey(buffer.rkey),
    }
}
