//! Data from the host and to it: RDMA READs and WRITEs.

use std::ops::Range;
use std::sync::Arc;

use capstan_memory::{Buffer, Slab};
use capstan_rdma::contract::{PostError, RKey, Remote, SendOp, Sge};

use super::super::sinks::{PullError, Sink};
use super::super::wr_id::WrId;
use super::RdmaQueue;
use crate::data::{CopyTo, Full, HostMemory, HostPlace, KeyedBuffer, Piece, Pushed, Source};
use crate::queue::Tag;

impl RdmaQueue {
    /// Pulls `len_bytes` from the host into `sink`, for the command `tag`. The sink belongs to the
    /// queue until [`Event::Pulled`](crate::Event::Pulled), and until it is dropped where it ends:
    /// so it does where the sink cannot be registered, or the queue pair takes no more.
    pub fn pull(&mut self, tag: Tag, from: &HostMemory, sink: Buffer, len_bytes: u32) {
        if let Err(error) = self.post_pull(tag, from, sink, len_bytes) {
            self.fail(error.to_string());
        }
    }

    fn post_pull(
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

    /// Pushes `source` to the host. A buffer is always taken: it belongs to the queue until
    /// [`Event::Returned`](crate::Event::Returned) or
    /// [`Event::Released`](crate::Event::Released), and until the queue is dropped where it ends
    /// before. What provider and device take without a work request is taken so.
    ///
    /// # Errors
    /// The source, where it needs a work request and is in no memory that has a key.
    // Inlined, the kind of source that a caller has is told apart when it is compiled, and a source
    // that comes back is not moved through memory.
    #[inline(always)]
    pub fn push<'s>(
        &mut self,
        to: &HostMemory,
        source: Source<'s>,
    ) -> Result<Pushed, Full<Source<'s>>> {
        match source {
            Source::Copy(len_bytes, copy) => match one_place(to, len_bytes as usize) {
                Some(to) if self.copy_now(to, copy) => Ok(Pushed::Gone(None)),
                _ => Err(Full {
                    what: Source::Copy(len_bytes, copy),
                    until_room: false,
                }),
            },
            Source::Held(slab, range) => match one_place(to, range.len()) {
                Some(to) if self.write_held(to, slab, range.clone()) => {
                    self.takes_held = Some(true);
                    Ok(Pushed::Gone(None))
                }
                _ => {
                    let until_room = self.tells_room();
                    if !until_room {
                        self.takes_held = Some(false);
                    }
                    Err(Full {
                        what: Source::Held(slab, range),
                        until_room,
                    })
                }
            },
            Source::Zeroes(len_bytes) => match self.push_zeroes(to, len_bytes) {
                Some(pushed) => Ok(pushed),
                None => Err(Full {
                    what: Source::Zeroes(len_bytes),
                    until_room: false,
                }),
            },
            Source::Buffer(tag, buffer, range) => {
                let data = Sge {
                    addr: buffer.addr() + u64::from(range.start),
                    ..self
                        .keys
                        .sge(&buffer, range.end.saturating_sub(range.start))
                };
                Ok(self.push_from(tag, to, (buffer, data), None))
            }
            Source::Piece(piece) => Ok(self.push_piece(to, piece)),
        }
    }

    /// As [`Queue::takes_held`](crate::Queue::takes_held).
    #[inline]
    pub fn takes_held(&self) -> Option<bool> {
        self.takes_held
    }

    #[inline]
    fn push_from(
        &mut self,
        tag: Tag,
        to: &HostMemory,
        (source, data): (Buffer, Sge),
        last: Option<WrId>,
    ) -> Pushed {
        if data.len_bytes == 0 {
            return Pushed::Gone(Some(source));
        }
        // Before an error as well: what was posted until then may still be read there.
        self.sources.put(tag, source);
        let posted = self.each_buffer(to, data, SendOp::Write, last);
        self.written(posted);
        Pushed::UntilReleased
    }

    fn push_piece(&mut self, to: &HostMemory, piece: Piece) -> Pushed {
        let Piece {
            tag,
            buffer,
            len_bytes,
            last,
        } = piece;
        let data = self.keys.sge(&buffer, len_bytes);
        let signal = (!last).then_some(WrId::Push(tag.0));
        let pushed = self.push_from(tag, to, (buffer, data), signal);
        if !last {
            self.sources.followed(tag);
        }
        pushed
    }

    /// RDMA WRITEs were posted, or the queue has failed.
    #[inline]
    fn written(&mut self, posted: Result<(), PostError>) {
        if let Err(error) = posted {
            self.fail(format!("posting an RDMA WRITE failed: {error}"));
        }
    }

    /// A push has left, or the response behind it. Returns the source of the push.
    #[inline]
    pub(in super::super) fn take_source(&mut self, tag: Tag) -> Option<Buffer> {
        self.sources.take(tag)
    }

    /// Pushes the shared zeroes: from their memory without a work request, or else with one. `None`
    /// where they are fewer.
    #[inline]
    fn push_zeroes(&mut self, to: &HostMemory, len_bytes: u32) -> Option<Pushed> {
        let zeroes = self.keys.zeroes.as_ref();
        let zeroes = zeroes.filter(|zeroes| len_bytes <= zeroes.sge.len_bytes)?;
        let data = Sge {
            len_bytes,
            ..zeroes.sge
        };
        let len = len_bytes as usize;
        if let Some(to) = one_place(to, len)
            && self.qp.write_from_slab(remote(to), &zeroes.slab, 0..len)
        {
            self.count_taken();
            return Some(Pushed::Gone(None));
        }
        let posted = self.each_buffer(to, data, SendOp::Write, None);
        self.written(posted);
        Some(Pushed::UntilReleased)
    }

    /// Pushes what `copy` has, where the provider can copy it now.
    #[inline]
    fn copy_now(&mut self, to: KeyedBuffer, copy: &mut CopyTo<'_>) -> bool {
        let written = self.qp.write_inline(remote(to), to.len_bytes, copy);
        if written {
            self.count_taken();
        }
        written
    }

    /// Pushes `range` of `slab` from where it is, where the provider needs no registration.
    #[inline]
    fn write_held(&mut self, to: KeyedBuffer, slab: &Arc<Slab>, range: Range<usize>) -> bool {
        let written = self.qp.write_from_slab(remote(to), slab, range);
        if written {
            self.count_taken();
        }
        written
    }

    /// Whether a [`Source::Held`] is not taken only because the provider is full: then there is to
    /// be [`Event::Room`](crate::Event::Room).
    fn tells_room(&mut self) -> bool {
        let is_full = self.qp.write_would_block();
        if is_full {
            self.wait_for_room();
        }
        is_full
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

/// The memory of the host, where all of it is in one place and it has so many bytes.
#[inline]
fn one_place(host: &HostMemory, len: usize) -> Option<KeyedBuffer> {
    match &host.place {
        HostPlace::Keyed(buffer) if buffer.len_bytes as usize == len => Some(*buffer),
        _ => None,
    }
}

#[inline]
fn remote(buffer: KeyedBuffer) -> Remote {
    Remote {
        addr: buffer.address,
        rkey: RKey(buffer.rkey),
    }
}
