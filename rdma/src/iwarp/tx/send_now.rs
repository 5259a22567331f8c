//! Sends of a few bytes that take no work request.

use zerocopy::IntoBytes;

use super::{CRC_BYTES, Framing, INLINE_BYTES, Tx, UNTAGGED_BYTES, pad_bytes, send_header};
use crate::contract::RKey;
use crate::iwarp::fatal::Fatal;
use crate::iwarp::qp::Qp;
use crate::iwarp::stag::StagTable;

impl Qp {
    /// As [`Pair::send_now`](crate::Pair::send_now).
    pub(in crate::iwarp) fn send_now(
        &mut self,
        stags: &mut StagTable,
        bytes: &[u8],
        invalidate: Option<RKey>,
    ) -> Result<bool, Fatal> {
        let tx = &self.tx;
        let able = tx.may_send
            && tx.framing != Framing::Aligned
            && bytes.len() <= INLINE_BYTES.min(tx.untagged_max as usize);
        if !able || self.link.is_none() || !self.join_batch(stags, 1, bytes.len())? {
            return Ok(false);
        }
        self.tx.add_send(bytes, invalidate);
        Ok(true)
    }
}

impl Tx {
    /// Adds a Send of one segment, whose bytes are copied.
    fn add_send(&mut self, bytes: &[u8], invalidate: Option<RKey>) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let header = send_header(invalidate, false, true, length, self.send_msn, 0);
        let pad = pad_bytes(UNTAGGED_BYTES + bytes.len());
        let at = self.batch.scratch.used();
        self.batch.scratch.put(header.as_bytes());
        self.batch.scratch.put_by_words(bytes);
        self.add_trailer(at, pad);
        self.add_scratch(at);
        self.end_fpdu(UNTAGGED_BYTES + bytes.len() + pad + CRC_BYTES);
        self.send_msn = self.send_msn.wrapping_add(1);
    }
}
