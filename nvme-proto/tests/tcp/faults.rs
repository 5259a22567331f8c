//! Every fault of a PDU gives the FES and FEI that the specification has for it.

use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::c2h::C2hData;
use capstan_nvme_proto::tcp::fault::{FatalErrorStatus, Fault};
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::pdu::{PduFlags, TermReq};
use capstan_nvme_proto::tcp::r2t::R2t;
use capstan_nvme_proto::tcp::reader::{Pdu, PduReader};
use capstan_nvme_proto::tcp::setup::{Agreed, Digests};
use capstan_nvme_proto::tcp::writer::PduWriter;
use zerocopy::IntoBytes;

use super::{IN_CAPSULE_MAX_BYTES, controller, host, read_all, request, response};

const INVALID: Option<FatalErrorStatus> = Some(FatalErrorStatus::INVALID_HEADER_FIELD);
const SEQUENCE: Option<FatalErrorStatus> = Some(FatalErrorStatus::SEQUENCE_ERROR);
const LIMIT: Option<FatalErrorStatus> = Some(FatalErrorStatus::LIMIT_EXCEEDED);

fn reader(role: Role, digests: Digests, alignment_z: u8) -> (PduReader, Agreed) {
    let (request, response) = (
        request(digests, alignment_z),
        response(digests, alignment_z),
    );
    match role {
        Role::Controller => controller(&request, &response),
        Role::Host => host(&request, &response),
    }
}

/// FES and FEI of the fault that `bytes` are to a reader.
fn fault(reader: &PduReader, bytes: &[u8]) -> (Option<FatalErrorStatus>, u32) {
    let fault: Fault = read_all(&mut reader.clone(), [bytes]).expect_err("a fault");
    (fault.status, fault.information)
}

/// Of a PDU without digests that is changed at one byte.
fn changed(
    reader: &PduReader,
    good: &[u8],
    at: usize,
    byte: u8,
) -> (Option<FatalErrorStatus>, u32) {
    let mut bytes = good.to_vec();
    bytes[at] = byte;
    fault(reader, &bytes)
}

#[test]
fn a_connection_begins_with_its_set_up() {
    let asked = request(Digests::empty(), 0);
    let new = PduReader::controller(IN_CAPSULE_MAX_BYTES);
    let (open, agreed) = reader(Role::Controller, Digests::empty(), 0);
    let command = PduWriter::new(Role::Host, &agreed).capsule_cmd(&Sqe::new(2, 0, 1), 0);
    let icreq = asked.encode();
    assert_eq!(fault(&new, command.as_bytes()), (SEQUENCE, 0));
    assert_eq!(fault(&open, icreq.as_bytes()), (SEQUENCE, 0));
    // A second ICReq, and a command, before ICResp.
    for early in [icreq.as_bytes(), command.as_bytes()] {
        let both = [icreq.as_bytes(), early].concat();
        assert_eq!(fault(&new, &both), (SEQUENCE, 0));
    }
    // PLEN, HLEN and PFV of the ICReq.
    assert_eq!(changed(&new, icreq.as_bytes(), 4, 127), (INVALID, 4));
    assert_eq!(changed(&new, icreq.as_bytes(), 2, 127), (INVALID, 2));
    let unsupported = (Some(FatalErrorStatus::UNSUPPORTED_PARAMETER), 8);
    assert_eq!(changed(&new, icreq.as_bytes(), 8, 1), unsupported);
    // To a host.
    let new = PduReader::host(asked);
    let icresp = response(Digests::empty(), 0).encode();
    assert_eq!(fault(&new, icreq.as_bytes()), (INVALID, 0));
    let r2t = PduWriter::new(Role::Controller, &agreed).r2t(&R2t {
        cid: 0,
        ttag: 0,
        offset_bytes: 0,
        length_bytes: 1,
    });
    assert_eq!(fault(&new, r2t.as_bytes()), (SEQUENCE, 0));
    let unsupported = (Some(FatalErrorStatus::UNSUPPORTED_PARAMETER), 11);
    assert_eq!(changed(&new, icresp.as_bytes(), 11, 1), unsupported);
}

#[test]
fn each_field_of_a_command_capsule_has_its_offset() {
    let (open, agreed) = reader(Role::Controller, Digests::empty(), 0);
    let head = PduWriter::new(Role::Host, &agreed).capsule_cmd(&Sqe::new(1, 0, 1), 4096);
    let good = head.as_bytes();
    for pdu_type in [0x01, 0x03, 0x05, 0x07, 0x08, 0x09, 0x0A, 0xFF] {
        assert_eq!(changed(&open, good, 0, pdu_type), (INVALID, 0));
    }
    for flags in [PduFlags::HEADER_DIGEST, PduFlags::DATA_DIGEST] {
        assert_eq!(changed(&open, good, 1, flags.bits()), (INVALID, 1));
    }
    assert_eq!(changed(&open, good, 2, 71), (INVALID, 2));
    // Data in the header, and data that is no multiple of a dword away.
    assert_eq!(changed(&open, good, 3, 0), (INVALID, 3));
    assert_eq!(changed(&open, good, 3, 68), (INVALID, 3));
    assert_eq!(changed(&open, good, 3, 74), (INVALID, 3));
    // More data than there is room for, and an end before the data.
    let mut long = good.to_vec();
    long[4..8].copy_from_slice(&(72 + IN_CAPSULE_MAX_BYTES + 1).to_le_bytes());
    assert_eq!(fault(&open, &long), (INVALID, 4));
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(fault(&open, &long), (INVALID, 4));
    long[4..8].copy_from_slice(&71_u32.to_le_bytes());
    assert_eq!(fault(&open, &long), (INVALID, 4));
    // Of two faults the one that comes first.
    let mut two = good.to_vec();
    (two[2], two[3]) = (24, 1);
    assert_eq!(fault(&open, &two), (INVALID, 2));
}

/// Whether data follows, and a digest behind it, is known of lengths that fit only.
#[test]
fn wrong_lengths_are_not_taken_for_a_missing_data_digest() {
    for digests in [
        Digests::empty(),
        Digests::HEADER,
        Digests::DATA,
        Digests::all(),
    ] {
        let (open, agreed) = reader(Role::Controller, digests, 0);
        let writer = PduWriter::new(Role::Host, &agreed);
        let bare = writer.capsule_cmd(&Sqe::new(2, 0, 1), 0);
        let bare = bare.as_bytes();
        let head_bytes = u8::try_from(bare.len()).expect("a header and its digest");
        let data = H2cData {
            cid: 0,
            ttag: 0,
            offset_bytes: 0,
            length_bytes: 512,
            last: true,
        };
        let h2c_data = writer.h2c_data(&data);
        let h2c_data = h2c_data.as_bytes();
        for (what, good, at, byte, fei) in [
            ("HLEN of a capsule", bare, 2, 71, 2),
            ("PLEN less than a header", bare, 4, 8, 4),
            ("PLEN a byte short", bare, 4, head_bytes - 1, 4),
            ("PLEN beyond a header, PDO 0", bare, 4, head_bytes + 3, 3),
            ("HLEN of H2CData", h2c_data, 2, 23, 2),
            ("PDO of H2CData", h2c_data, 3, 8, 3),
        ] {
            let found = changed(&open, good, at, byte);
            assert_eq!(found, (INVALID, fei), "{digests:?}: {what}");
        }
    }
}

#[test]
fn reserved_flags_and_fields_are_not_looked_at() {
    let (mut open, agreed) = reader(Role::Controller, Digests::empty(), 0);
    let head = PduWriter::new(Role::Host, &agreed).capsule_cmd(&Sqe::new(2, 0, 1), 0);
    let mut bytes = head.as_bytes().to_vec();
    bytes[1] = 0xF0;
    assert_eq!(
        read_all(&mut open, [&bytes[..]]).map(|all| all.len()),
        Ok(1)
    );
}

#[test]
fn digests_are_those_that_were_agreed_on() {
    let plain = reader(Role::Controller, Digests::empty(), 0);
    let all = reader(Role::Controller, Digests::all(), 0);
    let command = |agreed, data| {
        let head = PduWriter::new(Role::Host, agreed).capsule_cmd(&Sqe::new(1, 0, 1), data);
        head.as_bytes().to_vec()
    };
    assert_eq!(fault(&plain.0, &command(&all.1, 512)), (INVALID, 1));
    assert_eq!(fault(&all.0, &command(&plain.1, 512)), (INVALID, 1));
    // A data digest without data.
    let mut bytes = command(&all.1, 0);
    bytes[1] |= PduFlags::DATA_DIGEST.bits();
    assert_eq!(fault(&all.0, &bytes), (INVALID, 1));
    // A data digest, and nothing else, behind the header.
    let mut bytes = command(&all.1, 512);
    bytes[4] = 76 + 4;
    bytes[5] = 0;
    assert_eq!(fault(&all.0, &bytes), (INVALID, 4));
}

#[test]
fn data_is_aligned_as_its_receiver_asked() {
    // 16 bytes: behind 24 bytes of header the data is at 32.
    let (open, agreed) = reader(Role::Host, Digests::empty(), 3);
    let data = C2hData {
        cid: 1,
        offset_bytes: 0,
        length_bytes: 64,
        last: true,
        success: false,
    };
    let head = PduWriter::new(Role::Controller, &agreed).c2h_data(&data);
    assert_eq!(head.as_bytes()[3], 32);
    assert_eq!(head.as_bytes().len(), 32);
    assert_eq!(changed(&open, head.as_bytes(), 3, 24), (INVALID, 3));
}

#[test]
fn data_to_a_controller_keeps_to_its_limits() {
    let (open, agreed) = reader(Role::Controller, Digests::empty(), 0);
    let data = |length_bytes| H2cData {
        cid: 1,
        ttag: 2,
        offset_bytes: 0,
        length_bytes,
        last: true,
    };
    let writer = PduWriter::new(Role::Host, &agreed);
    let most = writer.h2c_data(&data(agreed.maxh2cdata_bytes));
    assert!(read_all(&mut open.clone(), [most.as_bytes()]).is_ok());
    let over = writer.h2c_data(&data(agreed.maxh2cdata_bytes + 1));
    assert_eq!(fault(&open, over.as_bytes()), (LIMIT, 0));
    // DATAL that is not what PLEN leaves.
    let good = writer.h2c_data(&data(512));
    assert_eq!(changed(&open, good.as_bytes(), 17, 3), (INVALID, 16));
    // No data at all.
    let none = writer.h2c_data(&data(0));
    assert_eq!(fault(&open, none.as_bytes()), (INVALID, 4));
}

#[test]
fn what_comes_to_a_host_is_looked_at_as_closely() {
    let (open, agreed) = reader(Role::Host, Digests::empty(), 0);
    let writer = PduWriter::new(Role::Controller, &agreed);
    let data = writer.c2h_data(&C2hData {
        cid: 1,
        offset_bytes: 0,
        length_bytes: 512,
        last: true,
        success: true,
    });
    // SUCCESS without LAST_PDU.
    let flags = PduFlags::SUCCESS.bits();
    assert_eq!(changed(&open, data.as_bytes(), 1, flags), (INVALID, 1));
    assert_eq!(changed(&open, data.as_bytes(), 16, 1), (INVALID, 16));
    let r2t = writer.r2t(&R2t {
        cid: 1,
        ttag: 0,
        offset_bytes: 0,
        length_bytes: 1,
    });
    assert_eq!(changed(&open, r2t.as_bytes(), 16, 0), (INVALID, 16));
    assert_eq!(changed(&open, r2t.as_bytes(), 4, 25), (INVALID, 4));
    assert_eq!(changed(&open, r2t.as_bytes(), 0, 0x06), (INVALID, 0));
}

#[test]
fn a_term_req_ends_all_and_a_broken_one_is_not_answered() {
    let (open, agreed) = reader(Role::Controller, Digests::all(), 0);
    let term = Fault::unknown_command(capstan_nvme_proto::tcp::pdu::PduType::R2T, 9);
    let term = term
        .term_req(Role::Host, &[9, 0, 24, 0])
        .expect("a TermReq");
    let command = PduWriter::new(Role::Host, &agreed).capsule_cmd(&Sqe::new(2, 0, 1), 0);
    let bytes = [term.as_bytes(), command.as_bytes()].concat();
    let read = read_all(&mut open.clone(), [&bytes[..]]).expect("a TermReq");
    assert_eq!(read.len(), 1);
    assert_eq!(
        read[0].pdu,
        Pdu::TermReq {
            status: FatalErrorStatus::INVALID_HEADER_FIELD,
            information: 8
        }
    );
    // It needs no ICReq before it.
    let mut new = PduReader::controller(0);
    assert!(read_all(&mut new, [term.as_bytes()]).is_ok());
    for plen in [
        0,
        23,
        u8::try_from(TermReq::PLEN_MAX_BYTES).expect("u8") + 1,
    ] {
        assert_eq!(changed(&open, term.as_bytes(), 4, plen), (None, 0));
    }
    assert_eq!(changed(&open, term.as_bytes(), 2, 23), (None, 0));
}
