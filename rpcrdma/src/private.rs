//! Private data of the RDMA connection manager: what two peers tell each other while a connection
//! is set up (RFC 8797, section 4).
//!
//! A peer that says nothing, or what is not understood, is one that sends and receives 1024 bytes
//! inline and knows no remote invalidation (RFC 8166, section 3.3.3).

use crate::limits::INLINE_DEFAULT_BYTES;

/// Bytes of the private data.
pub const PRIVATE_DATA_BYTES: usize = 8;
/// What private data of RPC-over-RDMA begins with, in network byte order.
pub const MAGIC: u32 = 0xF6AB_0E18;
/// The version of the format.
pub const FORMAT_VERSION: u8 = 1;
/// The R bit of the flags: remote invalidation is supported. The others are reserved.
const REMOTE_INVALIDATION: u8 = 1;
/// Sizes are whole numbers of so many bytes, less one.
const SIZE_UNIT_BYTES: u32 = 1024;

/// What one side says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Offer {
    /// The longest Send that it posts, 1024 to 262144 bytes in steps of 1024.
    pub send_bytes: u32,
    /// The longest Send that it receives, likewise.
    pub receive_bytes: u32,
    /// Whether it can have a key invalidated by a Send of the other side.
    pub remote_invalidation: bool,
}

impl Offer {
    /// The side that says nothing.
    pub const DEFAULT: Self = Self {
        send_bytes: INLINE_DEFAULT_BYTES,
        receive_bytes: INLINE_DEFAULT_BYTES,
        remote_invalidation: false,
    };

    /// What `private_data` says; [`Offer::DEFAULT`] where it is absent, of another protocol, or of
    /// another version. Bytes behind it are not looked at, as the connection manager pads.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Self {
        let Some([m0, m1, m2, m3, FORMAT_VERSION, flags, send, receive]) =
            private_data.first_chunk::<PRIVATE_DATA_BYTES>().copied()
        else {
            return Self::DEFAULT;
        };
        if u32::from_be_bytes([m0, m1, m2, m3]) != MAGIC {
            return Self::DEFAULT;
        }
        Self {
            send_bytes: size_bytes(send),
            receive_bytes: size_bytes(receive),
            remote_invalidation: flags & REMOTE_INVALIDATION != 0,
        }
    }

    /// The private data that says so; `None` for sizes that it cannot say.
    #[must_use]
    pub fn encode(&self) -> Option<[u8; PRIVATE_DATA_BYTES]> {
        let [m0, m1, m2, m3] = MAGIC.to_be_bytes();
        Some([
            m0,
            m1,
            m2,
            m3,
            FORMAT_VERSION,
            u8::from(self.remote_invalidation),
            size_field(self.send_bytes)?,
            size_field(self.receive_bytes)?,
        ])
    }
}

/// What holds on a connection, after both sides have said what they offer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Agreed {
    /// The inline threshold of what is sent: the longest Send with its transport header.
    pub send_inline_bytes: u32,
    /// The inline threshold of what is received.
    pub receive_inline_bytes: u32,
    /// Whether a Send may invalidate a key of the other side: both have to support it.
    pub remote_invalidation: bool,
}

impl Agreed {
    /// For the side that offers `own`: of each direction the smaller of what one side sends and the
    /// other receives (RFC 8166, section 3.3.2).
    #[must_use]
    pub const fn new(own: &Offer, peer: &Offer) -> Self {
        Self {
            send_inline_bytes: least(own.send_bytes, peer.receive_bytes),
            receive_inline_bytes: least(own.receive_bytes, peer.send_bytes),
            remote_invalidation: own.remote_invalidation && peer.remote_invalidation,
        }
    }
}

const fn least(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

fn size_bytes(field: u8) -> u32 {
    u32::from(field)
        .saturating_add(1)
        .saturating_mul(SIZE_UNIT_BYTES)
}

fn size_field(size_bytes: u32) -> Option<u8> {
    if !size_bytes.is_multiple_of(SIZE_UNIT_BYTES) {
        return None;
    }
    u8::try_from((size_bytes / SIZE_UNIT_BYTES).checked_sub(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer = Offer {
        send_bytes: 4096,
        receive_bytes: 262_144,
        remote_invalidation: true,
    };
    const BYTES: [u8; 8] = [0xF6, 0xAB, 0x0E, 0x18, 1, 1, 3, 255];

    #[test]
    fn an_offer_is_8_bytes() {
        assert_eq!(OFFER.encode(), Some(BYTES));
        assert_eq!(Offer::parse(&BYTES), OFFER);
        // Reserved bits and padding behind it say nothing.
        let mut padded = [0xEE; 56];
        padded[..8].copy_from_slice(&BYTES);
        padded[5] = 0xFF;
        assert_eq!(Offer::parse(&padded), OFFER);
        padded[5] = 0xFE;
        assert!(!Offer::parse(&padded).remote_invalidation);
        let plain = [0xF6, 0xAB, 0x0E, 0x18, 1, 0, 0, 0];
        assert_eq!(Offer::parse(&plain), Offer::DEFAULT);
    }

    #[test]
    fn what_is_absent_or_foreign_means_the_defaults() {
        assert_eq!(Offer::parse(&[]), Offer::DEFAULT);
        assert_eq!(Offer::parse(&BYTES[..7]), Offer::DEFAULT);
        for (at, byte) in [(0, 0xF7), (3, 0x19), (4, 0), (4, 2)] {
            let mut foreign = BYTES;
            foreign[at] = byte;
            assert_eq!(Offer::parse(&foreign), Offer::DEFAULT);
        }
    }

    #[test]
    fn sizes_are_1_to_256_times_1024() {
        for (send_bytes, fits) in [
            (0, false),
            (1023, false),
            (1024, true),
            (1025, false),
            (262_144, true),
            (263_168, false),
            (u32::MAX, false),
        ] {
            let offer = Offer {
                send_bytes,
                ..OFFER
            };
            assert_eq!(offer.encode().is_some(), fits, "{send_bytes}");
        }
    }

    #[test]
    fn the_smaller_of_each_direction_holds() {
        let own = Offer {
            send_bytes: 8192,
            receive_bytes: 2048,
            remote_invalidation: true,
        };
        assert_eq!(
            Agreed::new(&own, &OFFER),
            Agreed {
                send_inline_bytes: 8192,
                receive_inline_bytes: 2048,
                remote_invalidation: true
            }
        );
        assert!(!Agreed::new(&Offer::DEFAULT, &own).remote_invalidation);
        assert_eq!(
            Agreed::new(&own, &Offer::DEFAULT),
            Agreed {
                send_inline_bytes: 1024,
                receive_inline_bytes: 1024,
                remote_invalidation: false
            }
        );
    }
}
