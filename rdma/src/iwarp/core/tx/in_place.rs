//! RDMA WRITEs over TCP from memory that may change until TCP has it, without ever sending one half
//! of a page as it was and the other as it is now.
#![expect(unsafe_code, reason = "copies what is left of a page")]

use std::ops::Range;
use std::sync::Arc;

use capstan_memory::{PAGE_BYTES, Slab};
use zerocopy::IntoBytes;

use super::{Framing, Opcode, Target, Tx, tagged_header};
use crate::contract::Remote;
use crate::iwarp::core::IwarpCore;
use crate::iwarp::piece::Piece;
use crate::iwarp::stag::Span;

impl IwarpCore {
    /// Whether pages that may change can be sent from where they are, over TCP. Not with CRCs, as
    /// one would be of the earlier content; nor with short FPDUs, which may end anywhere in a page.
    #[inline]
    pub(in crate::iwarp) fn writes_in_place(&self) -> bool {
        let tx = &self.tx;
        tx.framing == Framing::Large && !tx.crc && tx.may_send
    }

    /// How many FPDUs an RDMA WRITE of `range` of `slab` takes; `None` when the range is empty or
    /// not inside the slab.
    #[inline]
    pub(in crate::iwarp) fn fpdus_in_place(
        &self,
        slab: &Arc<Slab>,
        range: &Range<usize>,
    ) -> Option<usize> {
        let inside = !range.is_empty() && Span::of_slab(slab, range).is_some();
        inside.then(|| range.len().div_ceil(self.tx.tagged_max as usize))
    }
}

impl Tx {
    /// Adds an RDMA WRITE of `range` of `slab` to the batch, which has room for it
    /// ([`IwarpCore::poll_room`]).
    pub(in crate::iwarp) fn add_in_place(
        &mut self,
        remote: Remote,
        slab: &Arc<Slab>,
        range: &Range<usize>,
    ) {
        if !self.keep.last().is_some_and(|last| Arc::ptr_eq(last, slab)) {
            self.keep.push(Arc::clone(slab));
        }
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + self.tagged_max as usize);
            let Some(span) = Span::of_slab(slab, &(at..end)) else {
                return;
            };
            let length = u32::try_from(end - at).unwrap_or(u32::MAX);
            let target = Target {
                stag: remote.rkey.0,
                to: remote.addr.wrapping_add((at - range.start) as u64),
            };
            let last = end == range.end;
            let header = tagged_header(Opcode::RDMA_WRITE, last, length, target);
            // The span has been found already, so nothing can fail.
            let _ = self.add_fpdu(header.as_bytes(), length, |each| {
                each(span);
                Ok(())
            });
            at = end;
        }
    }

    /// TCP has taken a part of a page that may change: copies the rest as it is now.
    pub(in crate::iwarp) fn keep_remaining_of_page(&mut self) {
        let Some(piece) = self.batch.pieces.get_mut(self.next) else {
            return;
        };
        let base = piece.base();
        let at = base.addr();
        let rest = (at.next_multiple_of(PAGE_BYTES) - at).min(piece.len_bytes());
        let changes = self.keep.iter().any(|slab| {
            let start = slab.base().as_ptr().addr();
            (start..start + slab.len_bytes()).contains(&at)
        });
        if rest == 0 || !changes {
            return;
        }
        // SAFETY: a part of the piece, which lies in a slab that `keep` keeps mapped; whatever
        // writes there does so on this thread.
        let bytes = unsafe { std::slice::from_raw_parts(base, rest) };
        self.rest_of_page.clear();
        self.rest_of_page.extend_from_slice(bytes);
        let own = Piece::raw(self.rest_of_page.as_mut_ptr(), rest);
        piece.advance(rest);
        if piece.len_bytes() == 0 {
            *piece = own;
        } else {
            self.batch.pieces.insert(self.next, own);
        }
    }
}
