//! CRC32c of an FPDU (RFC 5044 §4.4): the polynomial of iSCSI, sent least significant byte first.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC of one contiguous piece.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC of pieces in order.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// No bytes yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds a piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The value over all pieces.
    #[must_use]
    pub fn value(&self) -> u32 {
        let [_, _, _, _, value @ ..] = self.0.finalize().to_be_bytes();
        u32::from_be_bytes(value)
    }
}

#[cfg(test)]
mod tests {
    use super::{Crc32c, crc32c};

    #[test]
    fn check_value_and_test_vectors_of_rfc_3720() {
        // RFC 3720 appendix B.4: 32 zeros, 32 ones, and the check value of the catalogue.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]).to_le_bytes(), [0x43, 0xab, 0xa8, 0x62]);
    }

    #[test]
    fn pieces_equal_the_whole() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|i| i.to_le_bytes()[0]).collect();
        for cut in [0, 1, 3, 16, 255, 256, 257, 4096, 9999, 10_000] {
            let mut crc = Crc32c::new();
            crc.update(&bytes[..cut]);
            crc.update(&bytes[cut..]);
            assert_eq!(crc.value(), crc32c(&bytes), "cut at {cut}");
        }
    }
}
