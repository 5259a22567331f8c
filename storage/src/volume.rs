//! The contract of a volume.

use std::sync::Arc;

use capstan_memory::RawBytes;

use crate::geometry::Geometry;
use crate::io::{Completion, Io, Submitted};
use crate::ram::InMemory;

/// What [`Volume::read_at_once`] says of a range. It fits into two registers, as it is asked for
/// each read.
#[derive(Clone, Copy, Debug)]
pub enum ReadAtOnce<'a> {
    /// It would succeed and fill the data with zeroes, as far as is known without looking: a caller
    /// that has zeroes at hand saves a buffer and its zeroing. Not of a range outside the volume.
    Zeroes,
    /// The bytes of the volume are in memory. Whether it has the range is for the read to say.
    InMemory(InMemory<'a>),
    /// It is to be submitted.
    Not,
}

const _: () = assert!(size_of::<ReadAtOnce<'_>>() <= 16);

/// A range of LBAs that operations run on. One thread owns it.
///
/// Implementations **must not panic** for any LBA, length or data offset, complete every operation
/// exactly once, and return its data with the completion. Operations that are in flight at the same
/// time have no order among them; a Flush covers what had completed when it was submitted.
pub trait Volume {
    /// The volume's shape.
    fn geometry(&self) -> Geometry;

    /// Its name in messages: a path, or the export such as `ram:64MiB`.
    fn name(&self) -> &Arc<str>;

    /// How a [`Op::Read`](crate::Op::Read) of this range can be carried out at once and without a
    /// buffer, so that it need not be submitted: one question for all that can be done so.
    fn read_at_once(&self, lba: u64, lbas: u32) -> ReadAtOnce<'_> {
        let _ = (lba, lbas);
        ReadAtOnce::Not
    }

    /// A [`Op::Write`](crate::Op::Write) of this range, with the start of `data`, that has ended
    /// when this returns. `false`, with nothing written, where the volume is not in memory, and
    /// where the operation would fail or `data` is too short for it.
    fn write_at_once(&self, lba: u64, lbas: u32, data: RawBytes<'_>) -> bool {
        let _ = (lba, lbas, data);
        false
    }

    /// Starts an operation. `now_us` is the reactor's clock, which never goes back; only decorators
    /// that keep time read it.
    fn submit(&mut self, io: Io, now_us: u64) -> Submitted;

    /// Runs what the volume itself holds and appends what ended to `out`. Needed only while
    /// [`Volume::next_deadline_us`] is not `None`; what an [`Engine`](crate::Engine) runs comes out
    /// of [`Engine::poll`](crate::Engine::poll) instead.
    fn poll(&mut self, now_us: u64, out: &mut Vec<Completion>);

    /// When [`Volume::poll`] has something to do next, on the clock of `now_us`. A time that is not
    /// after now means at once; `None`, that the volume holds nothing.
    fn next_deadline_us(&self) -> Option<u64>;
}
