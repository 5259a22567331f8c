//! What is wrong with a PDU, and the TermReq that says so.
//!
//! Source: NVMe over TCP Transport 1.1 (H2CTermReq, C2HTermReq and the fatal errors they report).

use core::fmt;

use zerocopy::IntoBytes;

use super::Role;
use super::pdu::{PduType, TermReq};
use crate::macros::open_enum;

open_enum! {
    /// FES, Fatal Error Status of a TermReq.
    pub struct FatalErrorStatus(u16) {
        INVALID_HEADER_FIELD = 0x01 => "Invalid PDU Header Field",
        SEQUENCE_ERROR = 0x02 => "PDU Sequence Error",
        HEADER_DIGEST_ERROR = 0x03 => "Header Digest Error",
        OUT_OF_RANGE = 0x04 => "Data Transfer Out of Range",
        LIMIT_EXCEEDED = 0x05 => "Data Transfer Limit Exceeded or R2T Limit Exceeded",
        UNSUPPORTED_PARAMETER = 0x06 => "Unsupported Parameter",
    }
}

/// A fatal error: what a PDU holds that it must not. The connection cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub struct Fault {
    /// FES, or `None` for what is not answered: a TermReq that is no TermReq.
    pub status: Option<FatalErrorStatus>,
    /// FEI: bytes from the start of the PDU to the field with Invalid PDU Header Field and
    /// Unsupported Parameter, the digest that came with Header Digest Error, else 0.
    pub information: u32,
    /// The PDU at fault.
    pub pdu: PduType,
    /// The field, by its name in the specification.
    pub field: &'static str,
    /// What the field held.
    pub value: u32,
    /// What it may hold.
    pub expected: &'static str,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} is {:X}h, expected {}",
            self.field, self.pdu, self.value, self.expected
        )?;
        match self.status {
            Some(status) => write!(f, " (FES {:02X}h, {status})", status.0),
            None => f.write_str(" (no TermReq answers it)"),
        }
    }
}

impl Fault {
    const fn new(
        status: FatalErrorStatus,
        pdu: PduType,
        field: &'static str,
        value: u32,
        expected: &'static str,
    ) -> Self {
        Self {
            status: Some(status),
            information: 0,
            pdu,
            field,
            value,
            expected,
        }
    }

    /// Invalid PDU Header Field: the field at byte `offset` of the header.
    #[must_use]
    pub const fn header_field(
        pdu: PduType,
        field: &'static str,
        offset: u32,
        value: u32,
        expected: &'static str,
    ) -> Self {
        Self {
            information: offset,
            ..Self::new(
                FatalErrorStatus::INVALID_HEADER_FIELD,
                pdu,
                field,
                value,
                expected,
            )
        }
    }

    /// Unsupported Parameter: the field at byte `offset` of the header.
    #[must_use]
    pub const fn unsupported(
        pdu: PduType,
        field: &'static str,
        offset: u32,
        value: u32,
        expected: &'static str,
    ) -> Self {
        Self {
            information: offset,
            ..Self::new(
                FatalErrorStatus::UNSUPPORTED_PARAMETER,
                pdu,
                field,
                value,
                expected,
            )
        }
    }

    /// PDU Sequence Error: a PDU, or data, that is not due now.
    #[must_use]
    pub const fn sequence(
        pdu: PduType,
        field: &'static str,
        value: u32,
        expected: &'static str,
    ) -> Self {
        Self::new(
            FatalErrorStatus::SEQUENCE_ERROR,
            pdu,
            field,
            value,
            expected,
        )
    }

    /// Data Transfer Out of Range: bytes outside what was asked for.
    #[must_use]
    pub const fn out_of_range(
        pdu: PduType,
        field: &'static str,
        value: u32,
        expected: &'static str,
    ) -> Self {
        Self::new(FatalErrorStatus::OUT_OF_RANGE, pdu, field, value, expected)
    }

    /// Data Transfer Limit Exceeded (from a controller) or R2T Limit Exceeded (from a host).
    #[must_use]
    pub const fn limit(
        pdu: PduType,
        field: &'static str,
        value: u32,
        expected: &'static str,
    ) -> Self {
        Self::new(
            FatalErrorStatus::LIMIT_EXCEEDED,
            pdu,
            field,
            value,
            expected,
        )
    }

    /// Header Digest Error. `received` is the digest that came.
    #[must_use]
    pub const fn header_digest(pdu: PduType, received: u32) -> Self {
        Self {
            information: received,
            ..Self::new(
                FatalErrorStatus::HEADER_DIGEST_ERROR,
                pdu,
                "HDGST",
                received,
                "the CRC32C of the header",
            )
        }
    }

    /// A TermReq of impossible lengths ends the connection, but is not answered.
    #[must_use]
    pub const fn of_term_req(
        pdu: PduType,
        field: &'static str,
        value: u32,
        expected: &'static str,
    ) -> Self {
        Self {
            status: None,
            information: 0,
            pdu,
            field,
            value,
            expected,
        }
    }

    /// A PDU for a command that is not outstanding, or that has no data of this direction.
    #[must_use]
    pub const fn unknown_command(pdu: PduType, cid: u16) -> Self {
        // The CID of a response is in its completion queue entry.
        let (field, offset) = match pdu {
            PduType::CAPSULE_RESP => ("CID", 20),
            _ => ("CCCID", 8),
        };
        let [low, high] = cid.to_le_bytes();
        let value = u32::from_le_bytes([low, high, 0, 0]);
        Self::header_field(
            pdu,
            field,
            offset,
            value,
            "a command that waits for such a PDU",
        )
    }

    /// The TermReq to send, from `role`, which has the `header` (as much of it as came) of the PDU
    /// at fault. `None` where the connection is to end without one.
    #[must_use]
    pub fn term_req(&self, role: Role, header: &[u8]) -> Option<TermReqPdu> {
        let status = self.status?;
        let cut = header.get(..TermReq::DATA_MAX_BYTES).unwrap_or(header);
        let data_bytes = u8::try_from(cut.len()).unwrap_or_default();
        let term = TermReq::new(role, status.0, self.information, data_bytes);
        let mut bytes = [0; TermReq::PLEN_MAX_BYTES];
        let sources = term.as_bytes().iter().chain(cut);
        for (to, from) in bytes.iter_mut().zip(sources) {
            *to = *from;
        }
        let length = size_of::<TermReq>().saturating_add(cut.len());
        Some(TermReqPdu { bytes, length })
    }
}

/// A whole TermReq PDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TermReqPdu {
    bytes: [u8; TermReq::PLEN_MAX_BYTES],
    length: usize,
}

impl TermReqPdu {
    /// The bytes to send.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_term_req_brings_the_header_cut_to_its_limit() {
        let fault = Fault::header_field(PduType::H2C_DATA, "TTAG", 10, 7, "an open transfer");
        let term = fault.term_req(Role::Controller, &[0xAB; 24]).unwrap();
        let bytes = term.as_bytes();
        assert_eq!(
            bytes[..16],
            [3, 0, 24, 0, 48, 0, 0, 0, 1, 0, 10, 0, 0, 0, 0, 0]
        );
        assert_eq!(bytes[24..], [0xAB; 24]);
        let term = fault.term_req(Role::Host, &[1; 200]).unwrap();
        assert_eq!(term.as_bytes().len(), 152);
        assert_eq!(term.as_bytes()[..8], [2, 0, 24, 0, 152, 0, 0, 0]);
    }

    #[test]
    fn a_digest_that_is_wrong_is_sent_back() {
        let fault = Fault::header_digest(PduType::R2T, 0x1122_3344);
        let term = fault.term_req(Role::Host, &[]).unwrap();
        assert_eq!(term.as_bytes()[8..14], [3, 0, 0x44, 0x33, 0x22, 0x11]);
    }

    #[test]
    fn a_broken_term_req_is_not_answered() {
        let fault = Fault::of_term_req(PduType::H2C_TERM_REQ, "PLEN", 0x99, "18h to 98h");
        assert_eq!(fault.term_req(Role::Controller, &[2, 0]), None);
        assert_eq!(
            fault.to_string(),
            "PLEN of H2CTermReq is 99h, expected 18h to 98h (no TermReq answers it)"
        );
    }

    #[test]
    fn the_message_names_thing_value_expectation_and_fes() {
        let fault = Fault::unknown_command(PduType::CAPSULE_RESP, 0x1F);
        assert_eq!(fault.information, 20);
        assert_eq!(
            fault.to_string(),
            "CID of CapsuleResp is 1Fh, expected a command that waits for such a PDU (FES 01h, \
             Invalid PDU Header Field)"
        );
    }
}
