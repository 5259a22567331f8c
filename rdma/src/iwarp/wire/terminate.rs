//! The Terminate message (RFC 5040 §4.8) and the errors it carries.

use core::fmt;
use core::mem::size_of;

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ddp::{
    self, Control, Opcode, QN_TERMINATE, ReadRequest, Segment, UNTAGGED_BYTES, UntaggedHeader,
};

/// Longest Terminate as an FPDU without its CRC: header, control, segment length, untagged DDP
/// header and Read Request header, rounded up.
pub const TERMINATE_BYTES_MAX: usize = UNTAGGED_BYTES + 4 + 20 + size_of::<ReadRequest>();

/// Layer, error type and error code (RFC 5040 Figure 12, RFC 5041 §7, RFC 5044 §8, RFC 6581 §9.2);
/// unknown values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ErrorCode {
    /// Layer, 4 bits.
    pub layer: u8,
    /// Error type, 4 bits.
    pub etype: u8,
    /// Error code.
    pub code: u8,
}

macro_rules! error_codes {
    ($($name:ident = $layer:literal, $etype:literal, $code:literal, $text:literal;)*) => {
        #[expect(missing_docs, reason = "the text beside each is what `Display` says")]
        impl ErrorCode {
            $(pub const $name: Self = Self { layer: $layer, etype: $etype, code: $code };)*
        }

        impl ErrorCode {
            /// Whether the RFCs define it.
            #[must_use]
            pub fn is_known(self) -> bool {
                [$(Self::$name),*].contains(&self)
            }
        }

        impl fmt::Display for ErrorCode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str($text),)*
                    Self { layer, etype, code } => {
                        write!(f, "unknown error (layer {layer}, type {etype}, code {code:#04x})")
                    }
                }
            }
        }
    };
}

error_codes! {
    RDMAP_LOCAL_CATASTROPHIC = 0, 0, 0x00, "RDMAP: local catastrophic error";
    RDMAP_INVALID_STAG = 0, 1, 0x00, "RDMAP: remote protection error: invalid STag";
    RDMAP_BOUNDS = 0, 1, 0x01, "RDMAP: remote protection error: base or bounds violation";
    RDMAP_ACCESS = 0, 1, 0x02, "RDMAP: remote protection error: access rights violation";
    RDMAP_STAG_NOT_ASSOCIATED = 0, 1, 0x03, "RDMAP: remote protection error: STag not associated with the stream";
    RDMAP_TO_WRAP = 0, 1, 0x04, "RDMAP: remote protection error: TO wrap";
    RDMAP_CANNOT_INVALIDATE = 0, 1, 0x09, "RDMAP: remote protection error: STag cannot be invalidated";
    RDMAP_PROTECTION_UNSPECIFIED = 0, 1, 0xff, "RDMAP: remote protection error";
    RDMAP_VERSION = 0, 2, 0x05, "RDMAP: invalid RDMAP version";
    RDMAP_OPCODE = 0, 2, 0x06, "RDMAP: unexpected opcode";
    RDMAP_STREAM_CATASTROPHIC = 0, 2, 0x07, "RDMAP: catastrophic error, localized to the stream";
    RDMAP_GLOBAL_CATASTROPHIC = 0, 2, 0x08, "RDMAP: catastrophic error, global";
    RDMAP_OPERATION_CANNOT_INVALIDATE = 0, 2, 0x09, "RDMAP: remote operation error: STag cannot be invalidated";
    RDMAP_OPERATION_UNSPECIFIED = 0, 2, 0xff, "RDMAP: remote operation error";
    DDP_LOCAL_CATASTROPHIC = 1, 0, 0x00, "DDP: local catastrophic error";
    DDP_INVALID_STAG = 1, 1, 0x00, "DDP: tagged buffer error: invalid STag";
    DDP_BOUNDS = 1, 1, 0x01, "DDP: tagged buffer error: base or bounds violation";
    DDP_STAG_NOT_ASSOCIATED = 1, 1, 0x02, "DDP: tagged buffer error: STag not associated with the stream";
    DDP_TO_WRAP = 1, 1, 0x03, "DDP: tagged buffer error: TO wrap";
    DDP_TAGGED_VERSION = 1, 1, 0x04, "DDP: tagged buffer error: invalid DDP version";
    DDP_INVALID_QN = 1, 2, 0x01, "DDP: untagged buffer error: invalid QN";
    DDP_NO_BUFFER = 1, 2, 0x02, "DDP: untagged buffer error: invalid MSN, no buffer available";
    DDP_MSN_RANGE = 1, 2, 0x03, "DDP: untagged buffer error: MSN range is not valid";
    DDP_INVALID_MO = 1, 2, 0x04, "DDP: untagged buffer error: invalid MO";
    DDP_TOO_LONG = 1, 2, 0x05, "DDP: untagged buffer error: message too long for its buffer";
    DDP_UNTAGGED_VERSION = 1, 2, 0x06, "DDP: untagged buffer error: invalid DDP version";
    MPA_CLOSED = 2, 0, 0x01, "MPA: TCP connection closed, terminated or lost";
    MPA_CRC = 2, 0, 0x02, "MPA: received CRC does not match";
    MPA_FPDU = 2, 0, 0x03, "MPA: markers and ULPDU_Length do not match";
    MPA_FRAME = 2, 0, 0x04, "MPA: invalid Request or Reply frame";
    MPA_LOCAL_CATASTROPHIC = 2, 0, 0x05, "MPA: local catastrophic error";
    MPA_INSUFFICIENT_IRD = 2, 0, 0x06, "MPA: insufficient IRD resources";
    MPA_NO_RTR = 2, 0, 0x07, "MPA: no matching RTR option";
}

/// Fixed part after the untagged header: terminate control (RFC 5040 Figure 11).
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
struct TerminateControl {
    layer_etype: u8,
    code: u8,
    hdrct: u8,
    reserved: u8,
}

const _: () = assert!(size_of::<TerminateControl>() == 4);

const HDRCT_M: u8 = 0x80;
const HDRCT_D: u8 = 0x40;
const HDRCT_R: u8 = 0x20;

/// A received Terminate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// What was wrong.
    pub error: ErrorCode,
    /// The opcode of the terminated segment, when its header came along.
    pub opcode: Option<Opcode>,
}

impl Terminate {
    /// Reads the payload of a Terminate segment; `None` when it is too short.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (control, rest) = TerminateControl::read_from_prefix(payload).ok()?;
        let mut error = ErrorCode {
            layer: control.layer_etype >> 4,
            etype: control.layer_etype & 0x0f,
            code: control.code,
        };
        // Linux siw on little-endian machines sends the two nibbles exchanged and the header
        // control bits at the low end of their byte.
        let exchanged = ErrorCode {
            layer: error.etype,
            etype: error.layer,
            code: error.code,
        };
        let low_bits = control.hdrct & 0xe0 == 0 && control.hdrct & 0x07 != 0;
        if low_bits || (!error.is_known() && exchanged.is_known()) {
            error = exchanged;
        }
        let (m, d) = if low_bits { (1, 2) } else { (HDRCT_M, HDRCT_D) };
        let opcode = if control.hdrct & (m | d) == m | d {
            let control = rest
                .get(2..4)
                .and_then(|b| Control::read_from_bytes(b).ok());
            control.map(Control::opcode)
        } else {
            None
        };
        Some(Self { error, opcode })
    }
}

/// Builds a Terminate FPDU without its CRC: `error`, the offending segment's header (which starts
/// with its length field) and, for a Read Request, its RDMAP header. `length` is the number of
/// bytes used; they need no pad.
#[must_use]
pub fn encode(
    error: ErrorCode,
    offending: Option<(&Segment, Option<&ReadRequest>)>,
) -> ([u8; TERMINATE_BYTES_MAX], usize) {
    let mut bytes = [0; TERMINATE_BYTES_MAX];
    let mut length = UNTAGGED_BYTES;
    let mut put = |piece: &[u8]| {
        if let Some(room) = bytes.get_mut(length..length + piece.len()) {
            room.copy_from_slice(piece);
            length += piece.len();
        }
    };
    let mut control = TerminateControl {
        layer_etype: (error.layer << 4) | (error.etype & 0x0f),
        code: error.code,
        hdrct: 0,
        reserved: 0,
    };
    if let Some((_, read)) = offending {
        control.hdrct = HDRCT_M | HDRCT_D | if read.is_some() { HDRCT_R } else { 0 };
    }
    put(control.as_bytes());
    if let Some((segment, read)) = offending {
        // The header structures start with ULPDU_Length, which is the DDP segment length that M
        // announces.
        put(segment.as_bytes());
        if let Some(read) = read {
            put(read.as_bytes());
        }
    }
    let ulpdu = u16::try_from(length - ddp::LENGTH_BYTES).unwrap_or(u16::MAX);
    let header = UntaggedHeader {
        ulpdu_length: U16::new(ulpdu),
        control: Control::new(false, true, Opcode::TERMINATE),
        invalidate_stag: U32::new(0),
        qn: U32::new(QN_TERMINATE),
        // RFC 5040 §4.8: at most one Terminate, so MSN 1 and MO 0.
        msn: U32::new(1),
        mo: U32::new(0),
    };
    if let Some(start) = bytes.get_mut(..UNTAGGED_BYTES) {
        start.copy_from_slice(header.as_bytes());
    }
    (bytes, length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::network_endian::U64;

    fn write(opcode: Opcode) -> Segment {
        Segment::Tagged(ddp::TaggedHeader {
            ulpdu_length: U16::new(100),
            control: Control::new(true, true, opcode),
            stag: U32::new(7),
            to: U64::new(9),
        })
    }

    #[test]
    fn terminate_round_trips_with_its_offender() {
        let segment = write(Opcode::RDMA_WRITE);
        let (bytes, length) = encode(ErrorCode::DDP_BOUNDS, Some((&segment, None)));
        assert_eq!(length, 20 + 4 + 16);
        assert_eq!(bytes[..2], [0, 38]);
        assert_eq!(bytes[20..24], [0x11, 0x01, 0xc0, 0]);
        assert_eq!(&bytes[24..40], segment.as_bytes());
        let parsed = Terminate::parse(&bytes[UNTAGGED_BYTES..length]).unwrap();
        assert_eq!(parsed.error, ErrorCode::DDP_BOUNDS);
        assert_eq!(parsed.opcode, Some(Opcode::RDMA_WRITE));
    }

    #[test]
    fn the_longest_fits_and_needs_no_pad() {
        let segment = Segment::Untagged(UntaggedHeader {
            ulpdu_length: U16::new(46),
            control: Control::new(false, true, Opcode::READ_REQUEST),
            invalidate_stag: U32::new(0),
            qn: U32::new(1),
            msn: U32::new(1),
            mo: U32::new(0),
        });
        let read = ReadRequest {
            sink_stag: U32::new(1),
            sink_to: U64::new(2),
            length_bytes: U32::new(3),
            source_stag: U32::new(4),
            source_to: U64::new(5),
        };
        let (_, length) = encode(ErrorCode::RDMAP_ACCESS, Some((&segment, Some(&read))));
        assert_eq!((length, length % 4), (TERMINATE_BYTES_MAX, 0));
    }

    #[test]
    fn exchanged_nibbles_of_siw_are_understood_where_they_can_be() {
        let parsed = Terminate::parse(&[0x02, 0x02, 0, 0]).unwrap();
        assert_eq!(parsed.error, ErrorCode::MPA_CRC);
        let parsed = Terminate::parse(&[0x10, 0x01, 0x07, 0, 0, 46, 0x41, 0x41]).unwrap();
        assert_eq!(parsed.error, ErrorCode::RDMAP_BOUNDS);
        assert_eq!(parsed.opcode, Some(Opcode::READ_REQUEST));
        let parsed = Terminate::parse(&[0x21, 0x02, 0, 0]).unwrap();
        assert_eq!(parsed.error, ErrorCode::DDP_NO_BUFFER);
    }

    #[test]
    fn short_payloads_are_none() {
        assert_eq!(Terminate::parse(&[0, 0, 0]), None);
        assert_eq!(
            Terminate::parse(&[0x11, 1, 0xc0, 0, 0]).unwrap().opcode,
            None
        );
    }
}
