//! What one side writes the other reads, with every combination of digests and alignments, however
//! the stream is cut.

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::c2h::C2hData;
use capstan_nvme_proto::tcp::digest::crc32c;
use capstan_nvme_proto::tcp::fault::{FatalErrorStatus, Fault};
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::pdu::PduType;
use capstan_nvme_proto::tcp::r2t::R2t;
use capstan_nvme_proto::tcp::reader::{Pdu, PduReader};
use capstan_nvme_proto::tcp::setup::{Agreed, Digests};
use capstan_nvme_proto::tcp::writer::{PduHead, PduWriter};
use proptest::collection::vec;
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::{IN_CAPSULE_MAX_BYTES, Read, controller, host, read_all, request, response};

fn sqe() -> impl Strategy<Value = Sqe> {
    any::<[u8; 32]>().prop_map(|half| {
        let bytes = [half, half].concat();
        Sqe::read_from_bytes(&bytes).expect("64 bytes")
    })
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..600)
}

fn length(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("a short one")
}

fn from_host() -> impl Strategy<Value = (Pdu, Vec<u8>)> {
    let in_capsule = prop_oneof![Just(Vec::new()), data()];
    let command = (sqe(), in_capsule).prop_map(|(sqe, data)| {
        let in_capsule_bytes = length(&data);
        let pdu = Pdu::CapsuleCmd {
            sqe,
            in_capsule_bytes,
        };
        (pdu, data)
    });
    let h2c = (any::<(u16, u16, u32, bool)>(), data()).prop_map(|(fields, data)| {
        let (cid, ttag, offset_bytes, last) = fields;
        let pdu = Pdu::H2cData(H2cData {
            cid,
            ttag,
            offset_bytes,
            length_bytes: length(&data),
            last,
        });
        (pdu, data)
    });
    prop_oneof![command, h2c]
}

fn from_controller() -> impl Strategy<Value = (Pdu, Vec<u8>)> {
    let response = any::<[u8; 16]>().prop_map(|bytes| {
        let cqe = Cqe::read_from_bytes(&bytes).expect("16 bytes");
        (Pdu::CapsuleResp(cqe), Vec::new())
    });
    let r2t = any::<(u16, u16, u32, u32)>().prop_map(|(cid, ttag, offset_bytes, length_bytes)| {
        let r2t = R2t {
            cid,
            ttag,
            offset_bytes,
            length_bytes: length_bytes.max(1),
        };
        (Pdu::R2t(r2t), Vec::new())
    });
    let c2h = (any::<(u16, u32, bool, bool)>(), data()).prop_map(|(fields, data)| {
        let (cid, offset_bytes, last, success) = fields;
        let pdu = Pdu::C2hData(C2hData {
            cid,
            offset_bytes,
            length_bytes: length(&data),
            last,
            success: success && last,
        });
        (pdu, data)
    });
    prop_oneof![response, r2t, c2h]
}

fn head(role: Role, agreed: &Agreed, pdu: &Pdu) -> PduHead {
    let writer = PduWriter::new(role, agreed);
    match pdu {
        Pdu::CapsuleCmd {
            sqe,
            in_capsule_bytes,
        } => writer.capsule_cmd(sqe, *in_capsule_bytes),
        Pdu::CapsuleResp(cqe) => writer.capsule_resp(cqe),
        Pdu::H2cData(data) => writer.h2c_data(data),
        Pdu::C2hData(data) => writer.c2h_data(data),
        Pdu::R2t(r2t) => writer.r2t(r2t),
        Pdu::IcReq(_) | Pdu::IcResp(_) | Pdu::TermReq { .. } => unreachable!("not generated"),
    }
}

/// The stream of `pdus`, and what is to be read of it.
fn stream(role: Role, agreed: &Agreed, pdus: &[(Pdu, Vec<u8>)]) -> (Vec<u8>, Vec<Read>) {
    let (mut bytes, mut expected) = (Vec::new(), Vec::new());
    for (pdu, data) in pdus {
        let head = head(role, agreed, pdu);
        let alignment = usize::from(agreed.alignment_from(role).bytes());
        assert!(data.is_empty() || head.as_bytes().len().is_multiple_of(alignment));
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(data);
        let digest = head.has_data_digest().then(|| crc32c(data));
        if let Some(digest) = digest {
            bytes.extend_from_slice(&digest.to_le_bytes());
        }
        expected.push(Read {
            pdu: *pdu,
            data: data.clone(),
            digest,
        });
    }
    (bytes, expected)
}

/// `bytes` in pieces of these lengths, again and again.
fn cut<'a>(bytes: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
    let (mut rest, mut pieces) = (bytes, Vec::new());
    for length in lengths.iter().cycle() {
        let (piece, behind) = rest.split_at((*length).min(rest.len()));
        pieces.push(piece);
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
    pieces
}

fn check(role: Role, digests: u8, alignment_z: u8, pdus: &[(Pdu, Vec<u8>)], lengths: &[usize]) {
    let digests = Digests::from_bits_truncate(digests);
    let (request, response) = (
        request(digests, alignment_z),
        response(digests, 31 - alignment_z),
    );
    let (reader, agreed) = match role {
        Role::Host => controller(&request, &response),
        Role::Controller => host(&request, &response),
    };
    let (bytes, expected) = stream(role, &agreed, pdus);
    for pieces in [vec![&bytes[..]], cut(&bytes, &[1]), cut(&bytes, lengths)] {
        let read = read_all(&mut reader.clone(), pieces);
        assert_eq!(read.as_deref(), Ok(&expected[..]));
    }
}

proptest! {
    #[test]
    fn a_controller_reads_what_a_host_writes(
        digests in 0_u8..4,
        alignment_z in 0_u8..32,
        pdus in vec(from_host(), 1..6),
        lengths in vec(1_usize..200, 1..5),
    ) {
        check(Role::Host, digests, alignment_z, &pdus, &lengths);
    }

    #[test]
    fn a_host_reads_what_a_controller_writes(
        digests in 0_u8..4,
        alignment_z in 0_u8..32,
        pdus in vec(from_controller(), 1..6),
        lengths in vec(1_usize..200, 1..5),
    ) {
        check(Role::Controller, digests, alignment_z, &pdus, &lengths);
    }

    /// Whatever comes, both readers take it in whole or end with a fault, and the fault's TermReq
    /// is one that the other side reads.
    #[test]
    fn any_bytes_are_read_or_refused(
        digests in 0_u8..4,
        bytes in vec(any::<u8>(), 0..400),
        kind in 0_u8..12,
        set_up in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        let digests = Digests::from_bits_truncate(digests);
        let (request, response) = (request(digests, 0), response(digests, 0));
        for role in [Role::Host, Role::Controller] {
            let mut reader = match (role, set_up) {
                (Role::Host, true) => host(&request, &response).0,
                (Role::Host, false) => PduReader::host(request),
                (Role::Controller, true) => controller(&request, &response).0,
                (Role::Controller, false) => PduReader::controller(IN_CAPSULE_MAX_BYTES),
            };
            if let Err(fault) = read_all(&mut reader, [&bytes[..]]) {
                refused(&fault, role, &reader);
            }
        }
    }
}

fn refused(fault: &Fault, role: Role, reader: &PduReader) {
    let Some(term) = fault.term_req(role, reader.header()) else {
        assert!(matches!(
            fault.pdu,
            PduType::H2C_TERM_REQ | PduType::C2H_TERM_REQ
        ));
        return;
    };
    let mut peer = match role {
        Role::Host => PduReader::controller(0),
        Role::Controller => PduReader::host(request(Digests::empty(), 0)),
    };
    let read = read_all(&mut peer, [term.as_bytes()]).expect("a TermReq");
    let expected = Pdu::TermReq {
        status: fault.status.unwrap_or(FatalErrorStatus(0)),
        information: fault.information,
    };
    assert_eq!(read.first().map(|read| read.pdu), Some(expected));
}

#[test]
fn a_wrong_header_digest_is_a_fault_at_every_byte() {
    let (request, response) = (request(Digests::HEADER, 0), response(Digests::HEADER, 0));
    let (reader, agreed) = controller(&request, &response);
    let sqe = Sqe::new(2, 7, 1);
    let good = PduWriter::new(Role::Host, &agreed).capsule_cmd(&sqe, 0);
    // The common header is left out: a wrong field there is found before the digest.
    for at in 8..good.as_bytes().len() {
        let mut bytes = good.as_bytes().to_vec();
        bytes[at] ^= 0x10;
        let fault = read_all(&mut reader.clone(), [&bytes[..]]).unwrap_err();
        let received = u32::from_le_bytes(bytes[72..76].try_into().expect("4 bytes"));
        assert_eq!(fault, Fault::header_digest(PduType::CAPSULE_CMD, received));
    }
}

#[test]
fn a_reader_takes_no_byte_of_data_and_nothing_after_a_fault() {
    let (request, response) = (request(Digests::empty(), 0), response(Digests::empty(), 0));
    let (mut reader, agreed) = controller(&request, &response);
    let head = PduWriter::new(Role::Host, &agreed).capsule_cmd(&Sqe::new(1, 7, 1), 512);
    let bytes = [head.as_bytes(), &[0xDA; 512]].concat();
    let (used, event) = reader.read(&bytes).expect("a command");
    assert!(event.is_some());
    assert_eq!((used, reader.data_due_bytes()), (72, 512));
    // What a fault of the command's place would bring along.
    assert_eq!(reader.header(), head.as_bytes());
    assert_eq!(reader.read(&bytes[72..]), Ok((0, None)));
    reader.data_moved(500);
    assert_eq!(reader.data_due_bytes(), 12);
    reader.data_moved(usize::MAX);
    assert!(matches!(reader.read(&[]), Ok((0, Some(_)))));
    assert_eq!(reader.wanted_bytes(), 8);
    assert!(reader.read(request.encode().as_bytes()).is_err());
    assert_eq!(reader.header(), [0, 0, 128, 0, 128, 0, 0, 0]);
    assert_eq!(reader.read(&bytes), Ok((bytes.len(), None)));
}
