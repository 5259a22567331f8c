//! RDMA WRITEs in one copy, from wherever the program has the bytes into shared memory.

use zerocopy::IntoBytes;

use super::{Opcode, TAGGED_BYTES, Target, pad_bytes, tagged_header};
use crate::contract::Remote;
use crate::direct::WriteSource;
use crate::iwarp::core::IwarpCore;
use crate::iwarp::wire::ddp::CRC_BYTES;

/// The FPDUs of an RDMA WRITE that is written at once.
#[derive(Clone, Copy)]
pub(in crate::iwarp) struct DirectWrite {
    remote: Remote,
    len_bytes: u32,
    segment_max: u32,
}

impl IwarpCore {
    /// An RDMA WRITE of `len_bytes`, at least 1, to `remote`, behind all that is posted so far;
    /// `None` when something of that has not been sent.
    #[inline]
    pub(in crate::iwarp) fn poll_direct(
        &self,
        remote: Remote,
        len_bytes: u32,
    ) -> Option<DirectWrite> {
        let tx = &self.tx;
        let able = !tx.blocked && tx.may_send && self.sq.next().is_none();
        able.then_some(DirectWrite {
            remote,
            len_bytes,
            segment_max: tx.tagged_max,
        })
    }

    /// The link has all of `write`.
    #[inline]
    pub(in crate::iwarp) fn handle_direct(&mut self, write: DirectWrite) {
        let tx = &mut self.tx;
        tx.built += write.total_bytes() as u64;
        tx.sent = tx.built;
        tx.reset();
    }
}

impl DirectWrite {
    /// Pad and CRC behind a payload.
    #[inline]
    fn trailer_bytes(payload: u32) -> usize {
        pad_bytes(TAGGED_BYTES + payload as usize) + CRC_BYTES
    }

    /// Length of all its FPDUs.
    #[inline]
    pub(in crate::iwarp) fn total_bytes(self) -> usize {
        let full = self.len_bytes / self.segment_max;
        let rest = self.len_bytes % self.segment_max;
        let each = |payload: u32| TAGGED_BYTES + payload as usize + Self::trailer_bytes(payload);
        let last = if rest == 0 { 0 } else { each(rest) };
        full as usize * each(self.segment_max) + last
    }

    /// Calls `send` with the bytes of the FPDUs, in order, and payload of `source`. Whether there
    /// was enough of that.
    #[inline]
    pub(in crate::iwarp) fn compose(
        self,
        source: &mut WriteSource<'_>,
        send: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let Self {
            remote,
            len_bytes,
            segment_max,
        } = self;
        let rest = len_bytes % segment_max;
        // Bytes left of the whole WRITE, and of the current segment.
        let (mut left, mut segment_left) = (len_bytes, 0);
        source(&mut |mut bytes| {
            while left != 0 && !bytes.is_empty() {
                if segment_left == 0 {
                    segment_left = left.min(segment_max);
                    let at = Target {
                        stag: remote.rkey.0,
                        to: remote.addr.wrapping_add(u64::from(len_bytes - left)),
                    };
                    let last = segment_left == left;
                    let header = tagged_header(Opcode::RDMA_WRITE, last, segment_left, at);
                    send(header.as_bytes());
                }
                let length = bytes.len().min(segment_left as usize);
                let (now, later) = bytes.split_at(length);
                send(now);
                bytes = later;
                let length = u32::try_from(length).unwrap_or(u32::MAX);
                (left, segment_left) = (left - length, segment_left - length);
                if segment_left == 0 {
                    let payload = match left {
                        0 if rest != 0 => rest,
                        _ => segment_max,
                    };
                    send(&[0; 3 + CRC_BYTES][..Self::trailer_bytes(payload)]);
                }
            }
        });
        left == 0
    }
}
