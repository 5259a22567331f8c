//! Sends of a few bytes that take no work request.

use zerocopy::IntoBytes;

use super::{CRC_BYTES, Framing, INLINE_BYTES, Tx, UNTAGGED_BYTES, pad_bytes, send_header};
use crate::contract::RKey;
use crate::iwarp::core::IwarpCore;

impl IwarpCore {
    /// Whether a Send of `len_bytes` can be added without a work request.
    #[inline]
    pub(in crate::iwarp) fn sends_inline(&self, len_bytes: usize) -> bool {
        let tx = &self.tx;
        tx.may_send
            && tx.framing != Framing::Aligned
            && len_bytes <= INLINE_BYTES.min(tx.untagged_max as usize)
    }
}

impl Tx {
    /// Adds a Send of one segment, whose bytes are copied, to the batch, which has room for it
    /// ([`IwarpCore::poll_room`]).
    pub(in crate::iwarp) fn add_send(&mut self, bytes: &[u8], invalidate: Option<RKey>) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let header = send_header(invalidate, false, true, length, self.send_msn, 0);
        let pad = pad_bytes(UNTAGGED_BYTES + bytes.len());
        let at = self.batch.scratch.used();
        self.batch.scratch.put(header.as_bytes());
        self.batch.scratch.put(bytes);
        self.add_trailer(at, pad);
        self.add_scratch(at);
        self.end_fpdu(UNTAGGED_BYTES + bytes.len() + pad + CRC_BYTES);
        self.send_msn = self.send_msn.wrapping_add(1);
    }
}
