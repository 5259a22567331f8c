//! RDMA WRITEs in one copy, from wherever the program has the bytes into shared memory.

use zerocopy::IntoBytes;

use super::{Opcode, TAGGED_BYTES, Target, pad_bytes, tagged_header};
use crate::contract::Remote;
use crate::iwarp::fatal::Fatal;
use crate::iwarp::qp::Qp;
use crate::iwarp::socket::Link;
use crate::iwarp::stag::StagTable;
use crate::iwarp::wire::ddp::CRC_BYTES;
use crate::pair::WriteSource;

impl Qp {
    /// Writes `len_bytes` of `source` to `remote` at once, behind everything posted so far. `false`
    /// when the ring has no room for all of that, or there is no ring.
    pub(in crate::iwarp) fn write_now(
        &mut self,
        stags: &mut StagTable,
        remote: Remote,
        len_bytes: u32,
        source: &mut WriteSource<'_>,
    ) -> Result<bool, Fatal> {
        if !matches!(self.link, Some(Link::Shared(_))) || len_bytes == 0 {
            return Ok(false);
        }
        self.sq.ring();
        if !self.tx.blocked {
            self.hand_over(stags)?;
        }
        if self.tx.blocked || !self.tx.may_send || self.sq.next().is_some() {
            return Ok(false);
        }
        let (Some(Link::Shared(link)), tx) = (&mut self.link, &mut self.tx) else {
            return Ok(false);
        };
        let segment_max = tx.tagged_max;
        let trailer = |payload: u32| pad_bytes(TAGGED_BYTES + payload as usize) + CRC_BYTES;
        let full = len_bytes / segment_max;
        let rest = len_bytes % segment_max;
        let each = |payload: u32| TAGGED_BYTES + payload as usize + trailer(payload);
        let last = if rest == 0 { 0 } else { each(rest) };
        let total = full as usize * each(segment_max) + last;
        let sent = link.send_with(total, |send| {
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
                        send(&[0; 3 + CRC_BYTES][..trailer(payload)]);
                    }
                }
            });
            left == 0
        });
        let sent = sent.map_err(Fatal::Io)?;
        if sent {
            tx.built += total as u64;
            tx.sent = tx.built;
            tx.reset();
        }
        Ok(sent)
    }
}
