//! CRC32c of an FPDU (RFC 5044 §4.4): the polynomial of iSCSI, sent least significant byte first.

use crc_fast::{CrcAlgorithm, Digest};

/// Zeroes whose effect on a CRC comes from a table.
const BLOCK_BYTES: usize = 4096;
const BLOCK_BITS_LOG2: u32 = BLOCK_BYTES.ilog2() + 3;
/// The polynomial, least significant bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// What a CRC is after a block of zeroes: the sum (without carry) of what each of its bytes
/// becomes.
static PAST_BLOCK: [[u32; 256]; 4] = past_block();

/// A linear map of the CRC's 32 bits: what each bit becomes.
type Map = [u32; 32];

const fn apply(map: &Map, state: u32) -> u32 {
    let (mut sum, mut bit) = (0, 0);
    while bit < 32 {
        if state >> bit & 1 != 0 {
            sum ^= map[bit];
        }
        bit += 1;
    }
    sum
}

const fn past_block() -> [[u32; 256]; 4] {
    // Past one bit of zero; then past twice as many, again and again.
    let mut map: Map = [POLYNOMIAL; 32];
    let mut bit = 1;
    while bit < 32 {
        map[bit] = 1 << (bit - 1);
        bit += 1;
    }
    let mut doubled = 0;
    while doubled < BLOCK_BITS_LOG2 {
        let once = map;
        bit = 0;
        while bit < 32 {
            map[bit] = apply(&once, once[bit]);
            bit += 1;
        }
        doubled += 1;
    }
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 4 {
        let mut value = 0;
        while value < 256 {
            tables[byte][value as usize] = apply(&map, value << (8 * byte));
            value += 1;
        }
        byte += 1;
    }
    tables
}

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

    /// Adds a piece of zeroes without looking at it.
    pub fn update_zeroes(&mut self, len_bytes: usize) {
        let blocks = len_bytes / BLOCK_BYTES;
        let [_, _, _, _, state @ ..] = self.0.get_state().to_be_bytes();
        let state = (0..blocks).fold(u32::from_be_bytes(state), |state, _| {
            let bytes = state.to_le_bytes();
            (PAST_BLOCK.iter().zip(bytes))
                .fold(0, |sum, (table, byte)| sum ^ table[usize::from(byte)])
        });
        self.0 = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(state));
        self.0.update(&[0; BLOCK_BYTES][..len_bytes % BLOCK_BYTES]);
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
    fn zeroes_count_as_if_they_were_looked_at() {
        let bytes = b"a header of some length";
        for zeroes in [0, 1, 3, 512, 4095, 4096, 4097, 8192, 61_440, 65_519] {
            let mut known = Crc32c::new();
            known.update(bytes);
            known.update_zeroes(zeroes);
            known.update(b"pad");
            let all = [bytes.as_slice(), &vec![0; zeroes], b"pad"].concat();
            assert_eq!(known.value(), crc32c(&all), "{zeroes} zeroes");
        }
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
