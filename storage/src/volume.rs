//! The contract of a volume.

use std::ops::Range;
use std::sync::Arc;

use capstan_memory::{RawBytes, Slab};

use crate::geometry::Geometry;
use crate::io::{Completion, Io, Submitted};

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

    /// Whether a [`Op::Read`](crate::Op::Read) of this range would succeed at once and fill the
    /// data with zeroes, so that it need not be submitted: a caller that has zeroes at hand saves a
    /// buffer and its zeroing. `false` where that is not known without looking, and for a range
    /// outside the volume.
    fn known_zero(&self, lba: u64, lbas: u32) -> bool {
        let _ = (lba, lbas);
        false
    }

    /// A [`Op::Read`](crate::Op::Read) of this range without a buffer: calls `each` with the bytes
    /// where they are, in order. Each LBA is as consistent there as it is in a buffer. `false`,
    /// without a call, where they are not in memory, and for a range outside the volume.
    ///
    /// `each` returns soon: writers may wait for it.
    fn read_in_place(&self, lba: u64, lbas: u32, each: &mut dyn FnMut(&[u8])) -> bool {
        let _ = (lba, lbas, each);
        false
    }

    /// The slab that has the bytes of this range, and where in it, for a read without a buffer and
    /// without a copy now: they stay there as long as the slab, and only this thread writes to
    /// them. `None` where that is not so, and for a range outside the volume.
    fn place_of(&self, lba: u64, lbas: u32) -> Option<(&Arc<Slab>, Range<usize>)> {
        let _ = (lba, lbas);
        None
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
