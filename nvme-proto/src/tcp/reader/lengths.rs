//! What the lengths of a common header say of the PDU behind it.
//!
//! Source: NVMe over TCP Transport 1.1, section 3.6.2.

use super::super::digest::DIGEST_BYTES;
use super::super::pdu::CommonHeader;
use super::super::setup::Digests;

/// Bytes of the header and its digest.
pub(super) fn head_bytes(common: &CommonHeader, digests: Digests) -> u32 {
    let digest_bytes = if digests.contains(Digests::HEADER) {
        DIGEST_BYTES
    } else {
        0
    };
    u32::from(common.hlen).saturating_add(u32::try_from(digest_bytes).unwrap_or_default())
}

/// Bytes that PLEN leaves for data and its digest.
fn data_bytes_or_digest(common: &CommonHeader, digests: Digests) -> u32 {
    let plen = common.plen.get();
    if plen == head_bytes(common, digests) {
        return 0;
    }
    plen.saturating_sub(u32::from(common.pdo))
}

/// Bytes of data that PLEN leaves.
pub(super) fn data_bytes(common: &CommonHeader, digests: Digests) -> u32 {
    if !common.pdu_type.has_data() {
        return 0;
    }
    let digest_bytes = if digests.contains(Digests::DATA) {
        u32::try_from(DIGEST_BYTES).unwrap_or_default()
    } else {
        0
    };
    data_bytes_or_digest(common, digests).saturating_sub(digest_bytes)
}
