//! How connections over NVMe/TCP begin, for listeners that take those of another protocol as well.

use capstan_nvme_proto::tcp::pdu::{CommonHeader, IcReq, PduType};
use capstan_rdma::iwarp::OtherProtocol;
use zerocopy::FromBytes as _;

/// NVMe/TCP, by the PDUs of hosts, each by its type, its first byte. A connection begins with
/// ICReq, and asks for nothing before that has come as a whole. One that begins with another PDU is
/// told so in a C2HTermReq, for which the common header is enough.
pub const NVME_TCP: OtherProtocol = OtherProtocol {
    first_bytes: &[
        PduType::IC_REQ.0,
        PduType::H2C_TERM_REQ.0,
        PduType::CAPSULE_CMD.0,
        PduType::H2C_DATA.0,
    ],
    asks_with_bytes,
};

fn asks_with_bytes(bytes: &[u8]) -> usize {
    match CommonHeader::read_from_prefix(bytes) {
        // Of one with other lengths no more is read than what is wrong with it.
        Ok((header, _)) if has_lengths_of_ic_req(&header) => size_of::<IcReq>(),
        _ => size_of::<CommonHeader>(),
    }
}

fn has_lengths_of_ic_req(header: &CommonHeader) -> bool {
    let lengths = [header.hlen.into(), header.plen.get()];
    header.pdu_type == PduType::IC_REQ
        && lengths
            .iter()
            .all(|bytes| usize::try_from(*bytes) == Ok(size_of::<IcReq>()))
}

#[cfg(test)]
mod tests {
    use capstan_nvme_proto::tcp::setup::{DataAlignment, Digests, IcRequest};
    use zerocopy::IntoBytes as _;

    use super::asks_with_bytes;

    #[test]
    fn a_whole_ic_req_is_waited_for_and_of_another_pdu_its_header() {
        let request = IcRequest {
            hpda: DataAlignment::DWORD,
            digests: Digests::empty(),
            maxr2t: 1,
        };
        let request = request.encode();
        let request = request.as_bytes();
        for came in 1..8 {
            assert_eq!(asks_with_bytes(&request[..came]), 8, "{came}");
        }
        for came in 8..=128 {
            assert_eq!(asks_with_bytes(&request[..came]), 128, "{came}");
        }
        for (at, byte) in [(0, 4), (2, 24), (4, 129), (7, 1)] {
            let mut other = request.to_vec();
            other[at] = byte;
            assert_eq!(asks_with_bytes(&other), 8, "byte {at}");
        }
    }
}
