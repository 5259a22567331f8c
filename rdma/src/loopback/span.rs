//! Copies between registered memory: the only unsafe code of the provider.
#![expect(
    unsafe_code,
    reason = "places data in memory that is registered by address"
)]

use std::ptr;
use std::sync::Arc;

use capstan_memory::Slab;

/// A range inside a slab, which it keeps mapped.
#[derive(Clone, Debug)]
pub(super) struct Span {
    slab: Arc<Slab>,
    /// `offset + len_bytes <= slab.len_bytes()`, made sure by [`Span::new`] and [`Span::part`].
    offset: usize,
    len_bytes: usize,
}

impl Span {
    /// `None` when the range leaves the slab.
    pub(super) fn new(slab: &Arc<Slab>, offset: usize, len_bytes: usize) -> Option<Self> {
        let end = offset.checked_add(len_bytes)?;
        (end <= slab.len_bytes()).then(|| Self {
            slab: Arc::clone(slab),
            offset,
            len_bytes,
        })
    }

    /// The first address.
    pub(super) fn addr(&self) -> u64 {
        self.slab.addr() + self.offset as u64
    }

    /// The place of `len` bytes at `at`.
    fn at(&self, at: usize, len: usize) -> *mut u8 {
        let end = at.checked_add(len);
        let inside = end.is_some_and(|end| end <= self.len_bytes);
        assert!(
            inside,
            "{at}+{len} leaves a span of {} bytes",
            self.len_bytes
        );
        // SAFETY: the span lies inside its slab (`Span::new`), and the range inside the span.
        unsafe { self.slab.base().add(self.offset + at) }.as_ptr()
    }

    /// `len_bytes` at address `addr`; `None` when they are not all inside.
    pub(super) fn part(&self, addr: u64, len_bytes: u64) -> Option<Self> {
        let at = usize::try_from(addr.checked_sub(self.addr())?).ok()?;
        let len_bytes = usize::try_from(len_bytes).ok()?;
        let end = at.checked_add(len_bytes)?;
        (end <= self.len_bytes).then(|| Self {
            slab: Arc::clone(&self.slab),
            offset: self.offset + at,
            len_bytes,
        })
    }
}

/// Copies the bytes of `from`, in order, into `to`, in order, until either is used up.
pub(super) fn copy(from: &[Span], to: &[Span]) {
    let (mut source, mut sink) = (from.iter(), to.iter());
    let (mut out, mut into) = (source.next(), sink.next());
    let (mut out_at, mut into_at) = (0, 0);
    while let (Some(a), Some(b)) = (out, into) {
        let len = (a.len_bytes - out_at).min(b.len_bytes - into_at);
        copy_bytes((a, out_at), (b, into_at), len);
        (out_at, into_at) = (out_at + len, into_at + len);
        if out_at == a.len_bytes {
            (out, out_at) = (source.next(), 0);
        }
        if into_at == b.len_bytes {
            (into, into_at) = (sink.next(), 0);
        }
    }
}

fn copy_bytes((from, from_at): (&Span, usize), (to, to_at): (&Span, usize), len: usize) {
    let source = from.at(from_at, len);
    let sink = to.at(to_at, len);
    // SAFETY: both ranges are inside live mappings (`Span::at`), which start initialized (zeroed);
    // they may overlap, so this is a memmove. Safe code holds no reference into a slab
    // (`capstan_memory`), and `unsafe` code that made one promised that no operation in flight
    // uses the bytes; everything runs on one thread.
    unsafe { ptr::copy(source, sink, len) };
}

/// The bytes of `from`.
pub(super) fn read(from: &Span) -> Vec<u8> {
    let mut bytes = vec![0; from.len_bytes];
    let source = from.at(0, from.len_bytes);
    // SAFETY: the source is inside a live mapping (`Span::at`), the sink a fresh vector of that
    // length; as for `copy_bytes`, nothing writes the source meanwhile.
    unsafe { ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), from.len_bytes) };
    bytes
}

/// Spreads `bytes` over `to`, in order.
pub(super) fn write(bytes: &[u8], to: &[Span]) {
    let mut rest = bytes;
    for span in to {
        let (now, later) = rest.split_at(rest.len().min(span.len_bytes));
        let sink = span.at(0, now.len());
        // SAFETY: the sink is inside a live mapping (`Span::at`); the source is a slice of a
        // vector of ours, which no slab overlaps; aliasing is as for `copy_bytes`.
        unsafe { ptr::copy_nonoverlapping(now.as_ptr(), sink, now.len()) };
        rest = later;
    }
}

#[cfg(test)]
mod tests {
    use capstan_memory::{Pages, Pool, Slab};

    use super::{Span, copy};

    #[test]
    fn spans_stay_inside() {
        let slab = Slab::new(4096, Pages::Ordinary).unwrap();
        assert!(Span::new(&slab, 4096, 1).is_none());
        assert!(Span::new(&slab, usize::MAX, 2).is_none());
        let span = Span::new(&slab, 100, 50).unwrap();
        let at = slab.addr() + 100;
        assert!(span.part(at, 50).is_some());
        for (addr, len) in [
            (at - 1, 1),
            (at, 51),
            (at + 1, 50),
            (u64::MAX, 2),
            (0, u64::MAX),
        ] {
            assert!(span.part(addr, len).is_none(), "{addr:#x}+{len}");
        }
    }

    #[test]
    fn pieces_of_any_shape_are_joined() {
        let pool = Pool::new(8192, Pages::Ordinary).unwrap();
        let mut buffer = pool.take(4096).unwrap();
        buffer.copy_from(0, b"abcdefghij");
        let span = |at, len| Span::new(pool.slab(), at, len).unwrap();
        copy(
            &[span(0, 3), span(5, 0), span(7, 3)],
            &[span(100, 1), span(200, 4), span(300, 9)],
        );
        let mut out = [0; 5];
        buffer.copy_to(100, &mut out[..1]);
        buffer.copy_to(200, &mut out[1..]);
        assert_eq!(&out, b"abchi");
        buffer.copy_to(300, &mut out[..2]);
        assert_eq!(&out[..2], b"j\0");
    }
}
