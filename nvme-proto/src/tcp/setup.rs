//! What the two sides agree on before the first capsule: ICReq, ICResp, and what follows from both.
//!
//! Source: NVMe over TCP Transport 1.1 (ICReq and ICResp, section 3.6.2).

use bitflags::bitflags;

use super::Role;
use super::fault::Fault;
use super::pdu::{IcReq, IcResp, PduType};

/// The only PFV there is.
pub const PFV: u16 = 0;

bitflags! {
    /// DGST: which digests PDUs have.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Digests: u8 {
        /// HDGST_ENABLE.
        const HEADER = 1 << 0;
        /// DDGST_ENABLE.
        const DATA = 1 << 1;
    }
}

/// PDU Data Alignment (HPDA, CPDA): the offset of data in a PDU is a multiple of 4 to 128 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DataAlignment(u8);

impl DataAlignment {
    /// A dword: no padding, as every header is a multiple of it.
    pub const DWORD: Self = Self(0);
    /// The largest value on the wire: 128 bytes.
    const MAX_Z: u8 = 31;

    /// From dwords, 0's based; `None` above 31.
    #[must_use]
    pub const fn from_wire(dwords_z: u8) -> Option<Self> {
        if dwords_z <= Self::MAX_Z {
            Some(Self(dwords_z))
        } else {
            None
        }
    }

    /// Dwords, 0's based.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self.0
    }

    /// Bytes: 4 to 128.
    #[must_use]
    pub const fn bytes(self) -> u8 {
        self.0.saturating_add(1).saturating_mul(4)
    }
}

/// What a host asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IcRequest {
    /// HPDA: alignment of data that the controller sends.
    pub hpda: DataAlignment,
    /// The digests the host wants.
    pub digests: Digests,
    /// MAXR2T: R2Ts that may be outstanding for one command, at least 1 (on the wire 0's based).
    pub maxr2t: u32,
}

impl IcRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// Unsupported Parameter for another PFV, Invalid PDU Header Field for an alignment above 128
    /// bytes.
    pub const fn parse(wire: &IcReq) -> Result<Self, Fault> {
        let pdu = PduType::IC_REQ;
        if let Err(fault) = check_pfv(pdu, wire.pfv.get()) {
            return Err(fault);
        }
        let Some(hpda) = DataAlignment::from_wire(wire.hpda_z) else {
            return Err(alignment(pdu, "HPDA", wire.hpda_z));
        };
        Ok(Self {
            hpda,
            digests: Digests::from_bits_truncate(wire.dgst),
            // FFFFFFFFh would be 2^32 R2Ts of one command: one fewer makes no difference.
            maxr2t: wire.maxr2t_z.get().saturating_add(1),
        })
    }

    /// The request on the wire. A MAXR2T of 0 is sent as 1.
    #[must_use]
    pub fn encode(&self) -> IcReq {
        IcReq::new(
            self.hpda.to_wire(),
            self.digests.bits(),
            self.maxr2t.saturating_sub(1),
        )
    }
}

/// What a controller answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IcResponse {
    /// CPDA: alignment of data that the host sends.
    pub cpda: DataAlignment,
    /// The digests of this connection: of those the host asked for.
    pub digests: Digests,
    /// MAXH2CDATA: bytes of data of one H2CData PDU, at least 4096 and a multiple of 4.
    pub maxh2cdata_bytes: u32,
}

impl IcResponse {
    /// The least MAXH2CDATA.
    pub const MAXH2CDATA_MIN_BYTES: u32 = 4096;

    /// Reads the response to `request`.
    ///
    /// # Errors
    /// Unsupported Parameter for another PFV and for digests the host did not ask for; Invalid PDU
    /// Header Field for an alignment above 128 bytes and for a MAXH2CDATA that is too small or no
    /// multiple of a dword.
    pub const fn parse(wire: &IcResp, request: &IcRequest) -> Result<Self, Fault> {
        let pdu = PduType::IC_RESP;
        if let Err(fault) = check_pfv(pdu, wire.pfv.get()) {
            return Err(fault);
        }
        let Some(cpda) = DataAlignment::from_wire(wire.cpda_z) else {
            return Err(alignment(pdu, "CPDA", wire.cpda_z));
        };
        let digests = Digests::from_bits_truncate(wire.dgst);
        if !request.digests.contains(digests) {
            return Err(Fault::unsupported(
                pdu,
                "DGST",
                11,
                wide(wire.dgst),
                "only digests that were asked for",
            ));
        }
        let maxh2cdata_bytes = wire.maxh2cdata_bytes.get();
        if maxh2cdata_bytes < Self::MAXH2CDATA_MIN_BYTES || maxh2cdata_bytes & 0b11 != 0 {
            return Err(Fault::header_field(
                pdu,
                "MAXH2CDATA",
                12,
                maxh2cdata_bytes,
                "a multiple of 4 from 1000h on",
            ));
        }
        Ok(Self {
            cpda,
            digests,
            maxh2cdata_bytes,
        })
    }

    /// The response on the wire.
    #[must_use]
    pub fn encode(&self) -> IcResp {
        IcResp::new(
            self.cpda.to_wire(),
            self.digests.bits(),
            self.maxh2cdata_bytes,
        )
    }
}

/// What both sides hold to once ICResp is sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Agreed {
    /// The digests of every capsule, data PDU and R2T.
    pub digests: Digests,
    /// Alignment of the data the controller sends.
    pub hpda: DataAlignment,
    /// Alignment of the data the host sends.
    pub cpda: DataAlignment,
    /// R2Ts that may be outstanding for one command.
    pub maxr2t: u32,
    /// Bytes of data of one H2CData PDU.
    pub maxh2cdata_bytes: u32,
}

impl Agreed {
    /// From what was asked and answered.
    #[must_use]
    pub const fn new(request: &IcRequest, response: &IcResponse) -> Self {
        Self {
            digests: response.digests,
            hpda: request.hpda,
            cpda: response.cpda,
            maxr2t: request.maxr2t,
            maxh2cdata_bytes: response.maxh2cdata_bytes,
        }
    }

    /// Alignment of data that `sender` sends.
    #[must_use]
    pub const fn alignment_from(&self, sender: Role) -> DataAlignment {
        match sender {
            Role::Host => self.cpda,
            Role::Controller => self.hpda,
        }
    }
}

const fn wide(byte: u8) -> u32 {
    u32::from_le_bytes([byte, 0, 0, 0])
}

const fn check_pfv(pdu: PduType, pfv: u16) -> Result<(), Fault> {
    if pfv == PFV {
        return Ok(());
    }
    let [low, high] = pfv.to_le_bytes();
    let value = u32::from_le_bytes([low, high, 0, 0]);
    Err(Fault::unsupported(pdu, "PFV", 8, value, "0"))
}

const fn alignment(pdu: PduType, field: &'static str, dwords_z: u8) -> Fault {
    Fault::header_field(
        pdu,
        field,
        10,
        wide(dwords_z),
        "at most 1Fh (128 bytes, 0's based dwords)",
    )
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::tcp::fault::FatalErrorStatus;
    use zerocopy::IntoBytes;

    const REQUEST: IcRequest = IcRequest {
        hpda: DataAlignment(3),
        digests: Digests::HEADER,
        maxr2t: 4,
    };
    const RESPONSE: IcResponse = IcResponse {
        cpda: DataAlignment::DWORD,
        digests: Digests::HEADER,
        maxh2cdata_bytes: 0x2_0000,
    };

    #[test]
    fn what_is_asked_survives_the_wire() {
        let wire = REQUEST.encode();
        assert_eq!(
            wire.as_bytes()[..16],
            [0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 3, 1, 3, 0, 0, 0]
        );
        assert_eq!(IcRequest::parse(&wire), Ok(REQUEST));
        let wire = RESPONSE.encode();
        assert_eq!(
            wire.as_bytes()[..16],
            [1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2, 0]
        );
        assert_eq!(IcResponse::parse(&wire, &REQUEST), Ok(RESPONSE));
    }

    #[test]
    fn the_0s_based_limits_are_widened() {
        assert_eq!(DataAlignment::DWORD.bytes(), 4);
        assert_eq!(DataAlignment::from_wire(31).unwrap().bytes(), 128);
        assert_eq!(DataAlignment::from_wire(32), None);
        let mut wire = REQUEST.encode();
        wire.maxr2t_z = u32::MAX.into();
        assert_eq!(IcRequest::parse(&wire).unwrap().maxr2t, u32::MAX);
        let none = IcRequest {
            maxr2t: 0,
            ..REQUEST
        };
        assert_eq!(IcRequest::parse(&none.encode()).unwrap().maxr2t, 1);
    }

    #[test]
    fn each_fault_of_a_request_has_its_status_and_offset() {
        let fault = |change: fn(&mut IcReq)| {
            let mut wire = REQUEST.encode();
            change(&mut wire);
            let fault = IcRequest::parse(&wire).unwrap_err();
            (fault.status.unwrap(), fault.information)
        };
        assert_eq!(
            fault(|wire| wire.pfv = 1.into()),
            (FatalErrorStatus::UNSUPPORTED_PARAMETER, 8)
        );
        assert_eq!(
            fault(|wire| wire.hpda_z = 32),
            (FatalErrorStatus::INVALID_HEADER_FIELD, 10)
        );
    }

    #[test]
    fn each_fault_of_a_response_has_its_status_and_offset() {
        let fault = |change: fn(&mut IcResp)| {
            let mut wire = RESPONSE.encode();
            change(&mut wire);
            let fault = IcResponse::parse(&wire, &REQUEST).unwrap_err();
            (fault.status.unwrap(), fault.information)
        };
        let unsupported = FatalErrorStatus::UNSUPPORTED_PARAMETER;
        let invalid = FatalErrorStatus::INVALID_HEADER_FIELD;
        assert_eq!(fault(|wire| wire.pfv = 0x100.into()), (unsupported, 8));
        assert_eq!(fault(|wire| wire.cpda_z = 0xFF), (invalid, 10));
        assert_eq!(fault(|wire| wire.dgst = 0b11), (unsupported, 11));
        for bytes in [0_u32, 4095, 4097] {
            let mut wire = RESPONSE.encode();
            wire.maxh2cdata_bytes = bytes.into();
            let fault = IcResponse::parse(&wire, &REQUEST).unwrap_err();
            assert_eq!((fault.status, fault.information), (Some(invalid), 12));
        }
    }

    #[test]
    fn each_direction_has_the_alignment_its_receiver_asked_for() {
        let agreed = Agreed::new(&REQUEST, &RESPONSE);
        assert_eq!(agreed.alignment_from(Role::Controller).bytes(), 16);
        assert_eq!(agreed.alignment_from(Role::Host).bytes(), 4);
        assert_eq!(agreed.maxr2t, 4);
    }
}
