//! PDUs to bytes: what stands before the data of a PDU, and behind it.

use zerocopy::{Immutable, IntoBytes};

use super::Role;
use super::c2h::C2hData;
use super::digest::{DIGEST_BYTES, crc32c};
use super::h2c::H2cData;
use super::pdu::{CapsuleCmd, CapsuleResp, CommonHeader, PduFlags, PduType, TransferHeader};
use super::r2t::R2t;
use super::setup::{Agreed, DataAlignment, Digests};
use crate::cqe::Cqe;
use crate::sqe::Sqe;

/// The most there can be before data: 76 bytes of header and digest take two steps of an alignment
/// of less than that, and the largest which is less is 72. (The largest, 128, takes one.)
const HEAD_MAX_BYTES: usize = 144;

/// What stands before the data of a PDU: header, header digest and padding. The whole PDU where it
/// has no data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PduHead {
    bytes: [u8; HEAD_MAX_BYTES],
    length: u8,
    data_digest: bool,
}

impl PduHead {
    /// The bytes to send.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        let length = usize::from(self.length);
        self.bytes.get(..length).unwrap_or_default()
    }

    /// Whether the four bytes of the data's CRC32C, least significant first, go behind the data.
    #[must_use]
    pub const fn has_data_digest(&self) -> bool {
        self.data_digest
    }

    fn put(&mut self, at: usize, source: &[u8]) {
        let places = self.bytes.get_mut(at..at.saturating_add(source.len()));
        if let Some(places) = places {
            places.copy_from_slice(source);
        }
    }
}

/// Makes the PDUs of one side of a connection, once ICResp is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PduWriter {
    digests: Digests,
    alignment: DataAlignment,
}

impl PduWriter {
    /// Of the side `role`.
    #[must_use]
    pub const fn new(role: Role, agreed: &Agreed) -> Self {
        Self {
            digests: agreed.digests,
            alignment: agreed.alignment_from(role),
        }
    }

    /// A command capsule, in front of `in_capsule_bytes` of data.
    #[must_use]
    pub fn capsule_cmd(&self, sqe: &Sqe, in_capsule_bytes: u32) -> PduHead {
        let common = self.common(PduType::CAPSULE_CMD, PduFlags::empty(), in_capsule_bytes);
        self.head(&common, &CapsuleCmd { common, sqe: *sqe })
    }

    /// A response capsule.
    #[must_use]
    pub fn capsule_resp(&self, cqe: &Cqe) -> PduHead {
        let common = self.common(PduType::CAPSULE_RESP, PduFlags::empty(), 0);
        self.head(&common, &CapsuleResp { common, cqe: *cqe })
    }

    /// An R2T.
    #[must_use]
    pub fn r2t(&self, r2t: &R2t) -> PduHead {
        let common = self.common(PduType::R2T, PduFlags::empty(), 0);
        let header = TransferHeader::new(
            common,
            r2t.cid,
            r2t.ttag,
            r2t.offset_bytes,
            r2t.length_bytes,
        );
        self.head(&common, &header)
    }

    /// H2CData, in front of its data.
    #[must_use]
    pub fn h2c_data(&self, data: &H2cData) -> PduHead {
        let flags = flag(data.last, PduFlags::LAST);
        let common = self.common(PduType::H2C_DATA, flags, data.length_bytes);
        let header = TransferHeader::new(
            common,
            data.cid,
            data.ttag,
            data.offset_bytes,
            data.length_bytes,
        );
        self.head(&common, &header)
    }

    /// C2HData, in front of its data.
    #[must_use]
    pub fn c2h_data(&self, data: &C2hData) -> PduHead {
        let flags = flag(data.last, PduFlags::LAST) | flag(data.success, PduFlags::SUCCESS);
        let common = self.common(PduType::C2H_DATA, flags, data.length_bytes);
        let header = TransferHeader::new(common, data.cid, 0, data.offset_bytes, data.length_bytes);
        self.head(&common, &header)
    }

    fn common(&self, pdu_type: PduType, flags: PduFlags, data_bytes: u32) -> CommonHeader {
        let bare = CommonHeader::bare(pdu_type);
        let has_data = data_bytes != 0;
        let header_digest = flag(
            self.digests.contains(Digests::HEADER),
            PduFlags::HEADER_DIGEST,
        );
        let data_digest = flag(
            has_data && self.digests.contains(Digests::DATA),
            PduFlags::DATA_DIGEST,
        );
        let flags = flags | header_digest | data_digest;
        let head_bytes = bare.hlen.saturating_add(digest_bytes(header_digest));
        let pdo = if has_data {
            head_bytes
                .checked_next_multiple_of(self.alignment.bytes())
                .unwrap_or(head_bytes)
        } else {
            0
        };
        // Data lengths are those of commands and of MAXH2CDATA, far below 2^32.
        let plen = u32::from(pdo.max(head_bytes))
            .saturating_add(data_bytes)
            .saturating_add(u32::from(digest_bytes(data_digest)));
        CommonHeader {
            flags: flags.bits(),
            pdo,
            plen: plen.into(),
            ..bare
        }
    }

    fn head(&self, common: &CommonHeader, header: &(impl IntoBytes + Immutable)) -> PduHead {
        let flags = PduFlags::from_bits_retain(common.flags);
        let header_digest = flags & PduFlags::HEADER_DIGEST;
        let head_bytes = common.hlen.saturating_add(digest_bytes(header_digest));
        let mut head = PduHead {
            bytes: [0; HEAD_MAX_BYTES],
            length: head_bytes.max(common.pdo),
            data_digest: flags.contains(PduFlags::DATA_DIGEST),
        };
        head.put(0, header.as_bytes());
        if !header_digest.is_empty() {
            let digest = crc32c(header.as_bytes()).to_le_bytes();
            head.put(usize::from(common.hlen), &digest);
        }
        head
    }
}

fn flag(on: bool, flag: PduFlags) -> PduFlags {
    if on { flag } else { PduFlags::empty() }
}

const fn digest_bytes(flag: PduFlags) -> u8 {
    if flag.is_empty() {
        0
    } else {
        const BYTES: u8 = 4;
        const _: () = assert!(BYTES as usize == DIGEST_BYTES);
        BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_head_is_larger_than_its_buffer() {
        for alignment_z in 0..32 {
            for digests in [Digests::empty(), Digests::HEADER] {
                let writer = PduWriter {
                    digests,
                    alignment: DataAlignment::from_wire(alignment_z).unwrap(),
                };
                let head = writer.capsule_cmd(&Sqe::new(1, 0, 1), 1);
                let length = usize::from(head.length);
                assert!(length <= HEAD_MAX_BYTES, "{length}");
                assert_eq!(head.as_bytes().len(), length);
            }
        }
    }
}
