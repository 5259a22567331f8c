//! The PDU that comes most often, read at once.

use super::super::Role;
use super::super::pdu::{CapsuleCmd, CommonHeader, PduFlags, PduType};
use super::{At, Pdu, PduReader, Stage};

/// Bytes of a command capsule without data and digests.
const CAPSULE_BYTES: usize = size_of::<CapsuleCmd>();

impl PduReader {
    /// A command capsule without data, all of which is there, on a connection without digests: most
    /// of what comes, and the bytes of it. Anything else is read in steps.
    #[inline]
    pub(super) fn bare_capsule(&mut self, input: &[u8]) -> Option<(usize, Pdu)> {
        let head: &[u8; CAPSULE_BYTES] = input.first_chunk()?;
        let capsule: CapsuleCmd = zerocopy::transmute!(*head);
        let Stage::Open(agreed) = self.stage else {
            return None;
        };
        let is_next = self.at == At::Common && self.have_bytes == 0;
        let bare = CommonHeader::bare(PduType::CAPSULE_CMD);
        let common = &capsule.common;
        let digests = PduFlags::HEADER_DIGEST | PduFlags::DATA_DIGEST;
        let is_bare = common.pdu_type == bare.pdu_type
            && common.hlen == bare.hlen
            && common.plen == bare.plen
            && common.flags & digests.bits() == 0;
        if self.role != Role::Controller || !agreed.digests.is_empty() || !is_next || !is_bare {
            return None;
        }
        if let Some(header) = self.header.first_chunk_mut() {
            *header = *head;
        }
        self.header_bytes = CAPSULE_BYTES;
        let pdu = Pdu::CapsuleCmd {
            sqe: capsule.sqe,
            in_capsule_bytes: 0,
        };
        Some((CAPSULE_BYTES, pdu))
    }
}
