//! MPA connection set-up: Request and Reply frames (RFC 5044 §7.1.1, RFC 6581 §6 to §9).

use core::mem::{offset_of, size_of};

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most private data of a frame in bytes (RFC 5044 §7.1.1), the enhanced header included.
pub const PRIVATE_DATA_MAX: usize = 512;
/// Bytes of a frame before its private data.
pub const FRAME_BYTES: usize = size_of::<FrameHeader>();
/// IRD or ORD value that leaves the depth to the upper layer (RFC 6581 §9.1).
pub const DEPTH_UNSPECIFIED: u16 = 0x3fff;

const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;
/// Reserved by the RFCs, which say that a receiver ignores it. In a Request: the sender takes FPDUs
/// longer than the TCP segment, and does not mind where TCP cuts them. (0x08 is used by Linux siw.)
const FLAG_LARGE_FPDUS: u8 = 0x04;
/// In a Reply: this side does, too. It is another bit, because siw replies with the flags of the
/// Request.
const FLAG_LARGE_FPDUS_TOO: u8 = 0x02;
/// In a Request: the sender takes shared memory in place of the connection. In a Reply: an
/// invitation to it ends the private data (a peer that only echoes the bit sends none).
const FLAG_SAME_HOST: u8 = 0x01;

/// The fixed part of a frame as it is on the wire.
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct FrameHeader {
    key: [u8; 16],
    flags: u8,
    revision: u8,
    private_data_length: U16,
}

const _: () = {
    assert!(size_of::<FrameHeader>() == 20);
    assert!(offset_of!(FrameHeader, flags) == 16);
    assert!(offset_of!(FrameHeader, revision) == 17);
    assert!(offset_of!(FrameHeader, private_data_length) == 18);
};

/// The start of the private data when the S flag is set (RFC 6581 §9.1).
#[repr(C)]
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
struct EnhancedHeader {
    ird: U16,
    ord: U16,
}

const _: () = {
    assert!(size_of::<EnhancedHeader>() == 4);
    assert!(offset_of!(EnhancedHeader, ord) == 2);
};

/// Request or Reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// From the connecting side.
    Request,
    /// From the listening side.
    Reply,
}

/// Which first messages the sender of the frame can use as Ready To Receive (RFC 6581 §9.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rtr {
    /// Flag B: a zero-length FPDU.
    pub empty_fpdu: bool,
    /// Flag C: a zero-length RDMA Write.
    pub write: bool,
    /// Flag D: a zero-length RDMA Read.
    pub read: bool,
}

impl Rtr {
    /// What both sides have named.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self {
            empty_fpdu: self.empty_fpdu && other.empty_fpdu,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Whether nothing is named.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Connection parameters of an enhanced set-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enhanced {
    /// RDMA Reads the sender serves at once, or [`DEPTH_UNSPECIFIED`].
    pub ird: u16,
    /// RDMA Reads the sender starts at once, or [`DEPTH_UNSPECIFIED`].
    pub ord: u16,
    /// Flag A with the flags B, C and D: peer-to-peer mode. `None` is client-server mode.
    pub peer_to_peer: Option<Rtr>,
}

impl Enhanced {
    const MASK: u16 = 0x3fff;
    const HIGH: u16 = 0x8000;
    const LOW: u16 = 0x4000;

    fn parse(header: EnhancedHeader) -> Self {
        let (ird, ord) = (header.ird.get(), header.ord.get());
        let rtr = Rtr {
            empty_fpdu: ird & Self::LOW != 0,
            write: ord & Self::HIGH != 0,
            read: ord & Self::LOW != 0,
        };
        Self {
            ird: ird & Self::MASK,
            ord: ord & Self::MASK,
            peer_to_peer: (ird & Self::HIGH != 0).then_some(rtr),
        }
    }

    fn encode(self) -> EnhancedHeader {
        let bit = |set: bool, bit: u16| if set { bit } else { 0 };
        let rtr = self.peer_to_peer.unwrap_or_default();
        EnhancedHeader {
            ird: U16::new(
                self.ird.min(Self::MASK)
                    | bit(self.peer_to_peer.is_some(), Self::HIGH)
                    | bit(rtr.empty_fpdu, Self::LOW),
            ),
            ord: U16::new(
                self.ord.min(Self::MASK) | bit(rtr.write, Self::HIGH) | bit(rtr.read, Self::LOW),
            ),
        }
    }
}

/// A Request or Reply without its private data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Which.
    pub kind: FrameKind,
    /// M: the sender wants to receive markers.
    pub markers: bool,
    /// C: the sender wants CRCs.
    pub crc: bool,
    /// R: the connection is refused (Reply only).
    pub reject: bool,
    /// The sender takes FPDUs longer than the MSS.
    pub large_fpdus: bool,
    /// The sender takes shared memory (Request), or invites to it (Reply).
    pub same_host: bool,
    /// Revision.
    pub revision: u8,
    /// Parameters, when the S flag is set (revision 2).
    pub enhanced: Option<Enhanced>,
}

/// A frame that breaks RFC 5044 or 6581.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Not a frame.
    #[error("bytes that are not an MPA Request or Reply frame")]
    Key,
    /// Revision 0 or above 2.
    #[error("MPA revision {0}")]
    Revision(u8),
    /// More than [`PRIVATE_DATA_MAX`].
    #[error("{0} bytes of private data")]
    PrivateDataLength(u16),
    /// S flag without its parameters.
    #[error("an enhanced frame without its IRD and ORD")]
    Enhanced,
}

impl FrameHeader {
    /// Whether what begins with `bytes` can become a frame.
    pub fn may_begin_with(bytes: &[u8]) -> bool {
        let keys = [REQUEST_KEY, REPLY_KEY];
        let mut keys = keys.iter();
        keys.any(|key| bytes.iter().zip(key).all(|(byte, of_key)| byte == of_key))
    }

    /// Reads the fixed part and says how many bytes of private data follow.
    ///
    /// # Errors
    /// Wrong key, unknown revision, or private data longer than allowed.
    pub fn parse(bytes: &[u8; FRAME_BYTES]) -> Result<(Self, usize), FrameError> {
        let header: Self = zerocopy::transmute!(*bytes);
        if header.key != REQUEST_KEY && header.key != REPLY_KEY {
            return Err(FrameError::Key);
        }
        if !(1..=2).contains(&header.revision) {
            return Err(FrameError::Revision(header.revision));
        }
        let length = header.private_data_length.get();
        if usize::from(length) > PRIVATE_DATA_MAX {
            return Err(FrameError::PrivateDataLength(length));
        }
        Ok((header, usize::from(length)))
    }

    /// Reads the rest: the parameters and the consumer's private data.
    ///
    /// # Errors
    /// S flag without its parameters.
    pub fn with_private_data(self, private_data: &[u8]) -> Result<(Frame, &[u8]), FrameError> {
        let flag = |bit| self.flags & bit != 0;
        // The S flag means something from revision 2 on; in revision 1 the bit is reserved.
        let enhanced = self.revision >= 2 && flag(FLAG_ENHANCED);
        let (enhanced, rest) = if enhanced {
            let (header, rest) =
                EnhancedHeader::read_from_prefix(private_data).map_err(|_| FrameError::Enhanced)?;
            (Some(Enhanced::parse(header)), rest)
        } else {
            (None, private_data)
        };
        let frame = Frame {
            kind: if self.key == REQUEST_KEY {
                FrameKind::Request
            } else {
                FrameKind::Reply
            },
            markers: flag(FLAG_MARKERS),
            crc: flag(FLAG_CRC),
            reject: flag(FLAG_REJECT),
            large_fpdus: if self.key == REQUEST_KEY {
                flag(FLAG_LARGE_FPDUS)
            } else {
                flag(FLAG_LARGE_FPDUS_TOO) && !flag(FLAG_LARGE_FPDUS)
            },
            same_host: flag(FLAG_SAME_HOST),
            revision: self.revision,
            enhanced,
        };
        Ok((frame, rest))
    }
}

impl Frame {
    /// The frame's bytes with `private_data`; `None` when that is longer than fits.
    #[must_use]
    pub fn encode(&self, private_data: &[u8]) -> Option<Vec<u8>> {
        let enhanced = self.enhanced.map(Enhanced::encode);
        let length = private_data.len() + enhanced.map_or(0, |e| e.as_bytes().len());
        if length > PRIVATE_DATA_MAX {
            return None;
        }
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let (key, large_fpdus) = match self.kind {
            FrameKind::Request => (REQUEST_KEY, FLAG_LARGE_FPDUS),
            FrameKind::Reply => (REPLY_KEY, FLAG_LARGE_FPDUS_TOO),
        };
        let header = FrameHeader {
            key,
            flags: bit(self.markers, FLAG_MARKERS)
                | bit(self.crc, FLAG_CRC)
                | bit(self.reject, FLAG_REJECT)
                | bit(self.enhanced.is_some(), FLAG_ENHANCED)
                | bit(self.large_fpdus, large_fpdus)
                | bit(self.same_host, FLAG_SAME_HOST),
            revision: self.revision,
            private_data_length: U16::new(u16::try_from(length).ok()?),
        };
        let mut bytes = Vec::with_capacity(FRAME_BYTES + length);
        bytes.extend_from_slice(header.as_bytes());
        if let Some(enhanced) = enhanced {
            bytes.extend_from_slice(enhanced.as_bytes());
        }
        bytes.extend_from_slice(private_data);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(bytes: &[u8]) -> Result<(Frame, &[u8]), FrameError> {
        let (header, length) = FrameHeader::parse(bytes[..FRAME_BYTES].try_into().unwrap())?;
        header.with_private_data(&bytes[FRAME_BYTES..FRAME_BYTES + length])
    }

    fn request() -> Frame {
        Frame {
            kind: FrameKind::Request,
            markers: false,
            crc: true,
            reject: false,
            large_fpdus: false,
            same_host: false,
            revision: 2,
            enhanced: Some(Enhanced {
                ird: 16,
                ord: 32,
                peer_to_peer: Some(Rtr {
                    empty_fpdu: false,
                    write: true,
                    read: true,
                }),
            }),
        }
    }

    #[test]
    fn request_is_laid_out_as_in_rfc_6581() {
        let bytes = request().encode(b"hi").unwrap();
        assert_eq!(&bytes[..16], b"MPA ID Req Frame");
        assert_eq!(
            bytes[16..],
            [0x50, 2, 0, 6, 0x80, 0x10, 0xc0, 0x20, b'h', b'i']
        );
    }

    #[test]
    fn an_echo_of_the_flags_is_no_consent() {
        let request = Frame {
            large_fpdus: true,
            ..request()
        };
        let mut echo = request.encode(&[]).unwrap();
        echo[..16].copy_from_slice(&REPLY_KEY);
        assert!(!parse(&echo).unwrap().0.large_fpdus);
        let reply = Frame {
            kind: FrameKind::Reply,
            ..request
        };
        let consent = reply.encode(&[]).unwrap();
        assert!(parse(&consent).unwrap().0.large_fpdus);
    }

    #[test]
    fn bad_frames_are_named() {
        let good = request().encode(&[]).unwrap();
        let broken = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            parse(&bytes).map(|(f, _)| f)
        };
        assert_eq!(broken(0, b'X'), Err(FrameError::Key));
        assert_eq!(broken(17, 3), Err(FrameError::Revision(3)));
        assert_eq!(broken(17, 0), Err(FrameError::Revision(0)));
        assert_eq!(broken(18, 3), Err(FrameError::PrivateDataLength(0x304)));
        assert_eq!(broken(19, 3), Err(FrameError::Enhanced));
        assert_eq!(broken(17, 1).unwrap().enhanced, None);
    }

    #[test]
    fn too_much_private_data_is_refused() {
        assert!(request().encode(&[0; 508]).is_some());
        assert!(request().encode(&[0; 509]).is_none());
    }

    proptest! {
        #[test]
        fn frames_round_trip(
            reply: bool, markers: bool, crc: bool, reject: bool, large_fpdus: bool, same_host: bool, v2: bool,
            ird in 0u16..=0x3fff, ord in 0u16..=0x3fff,
            p2p in prop::option::of((any::<bool>(), any::<bool>(), any::<bool>())),
            private in prop::collection::vec(any::<u8>(), 0..=508),
        ) {
            let peer_to_peer = p2p.map(|(empty_fpdu, write, read)| Rtr { empty_fpdu, write, read });
            let frame = Frame {
                kind: if reply { FrameKind::Reply } else { FrameKind::Request },
                markers, crc, reject, large_fpdus, same_host,
                revision: if v2 { 2 } else { 1 },
                enhanced: v2.then_some(Enhanced { ird, ord, peer_to_peer }),
            };
            let bytes = frame.encode(&private).unwrap();
            prop_assert_eq!(parse(&bytes), Ok((frame, &private[..])));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::array::uniform20(any::<u8>()), private in prop::collection::vec(any::<u8>(), 512)) {
            if let Ok((header, length)) = FrameHeader::parse(&bytes) {
                let _ = header.with_private_data(&private[..length]);
            }
        }
    }
}
