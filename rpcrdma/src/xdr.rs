//! XDR: a [`Reader`] over the bytes of a peer and a [`Writer`] into a caller's buffer, both bounded
//! by what there is (RFC 4506).
//!
//! # Reduced items
//! RPC-over-RDMA takes large opaque data out of a message and moves it by RDMA (RFC 8166, section
//! 3.4: reduction of DDP-eligible data items). The count of the opaque stays in the message, and
//! what follows the data and its padding comes right behind it. Both ends of this module know that:
//! [`Reader::data_item`] reads what may be reduced, and [`Writer::reduced`] writes the count of
//! data that is kept elsewhere. There are therefore two coordinates:
//! * an *offset* counts the bytes that are there, those of the reduced stream;
//! * a *position* counts as if nothing had been reduced, padding included, which is what the
//!   Position of a read chunk says (RFC 8166, section 3.4).
//!
//! Without reduced items, as over TCP, they are the same.
//!
//! # Padding
//! Items are padded to a multiple of four bytes. Zeroes are written (RFC 4506, section 3); what
//! arrives as padding is not looked at (RFC 8166, section 3.4.5.2), as nothing depends on it.

mod read_error;
mod reader;
mod writer;

pub use read_error::ReadError;
pub use reader::Reader;
pub use writer::{Mark, Place, WriteError, Writer};

/// Bytes of a unit, of which every item takes a whole number (RFC 4506, section 3).
pub const UNIT_BYTES: usize = 4;

/// Most reduced items of one message: a COMPOUND of 16 READs or WRITEs is more than any known
/// client sends (one), and the lists stay small enough to be kept by value (16 of 8 bytes).
pub const REDUCED_ITEMS_MAX: usize = 16;

/// An opaque data item whose bytes are not in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ReducedItem {
    /// Where the data would begin in the stream if nothing had been reduced, in bytes: behind its
    /// count (RFC 8166, section 3.4).
    pub position: u32,
    /// Bytes of the data. Those of an arriving item may include its padding.
    pub length_bytes: u32,
}

/// Opaque data that may be in the stream or elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DataItem<'a> {
    /// In the stream, without its padding.
    Inline(&'a [u8]),
    /// Elsewhere.
    Reduced {
        /// Which one of the reader's reduced items.
        index: usize,
        /// Bytes of the data as its count says: without padding.
        length_bytes: u32,
    },
}

impl DataItem<'_> {
    /// Bytes of the data, without padding.
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        match self {
            Self::Inline(data) => data.len(),
            Self::Reduced { length_bytes, .. } => to_usize(*length_bytes),
        }
    }
}

/// The bytes of padding behind so many bytes: 0 to 3.
#[must_use]
pub const fn padding_bytes(length_bytes: usize) -> usize {
    length_bytes.wrapping_neg() & 3
}

/// `usize::MAX`, which no bound admits, where a 32-bit value does not fit.
pub(crate) fn to_usize(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_completes_a_unit() {
        for (length, padding) in [(0, 0), (1, 3), (2, 2), (3, 1), (4, 0), (5, 3), (1024, 0)] {
            assert_eq!(padding_bytes(length), padding);
            assert_eq!((length + padding_bytes(length)) % UNIT_BYTES, 0);
        }
        assert_eq!(padding_bytes(usize::MAX), 1);
    }
}
