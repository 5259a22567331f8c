//! CRC32C of headers, from a table of 1 KiB: headers are short. The digest of data is for the code
//! that moves the data, with the processor's instructions for it.

/// Bytes of a digest on the wire, least significant first.
pub const DIGEST_BYTES: usize = 4;

/// The polynomial 1EDC6F41h, least significant bit first.
const POLYNOMIAL: u32 = 0x82F6_3B78;
static TABLE: [u32; 256] = table();

#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "evaluated by the compiler, which refuses what is out of range"
)]
const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let (mut at, mut value) = (0, 0_u32);
    while at < table.len() {
        let mut crc = value;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
        value += 1;
    }
    table
}

/// CRC32C of `bytes`: what HDGST and DDGST hold.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        let [low, ..] = crc.to_le_bytes();
        let entry = TABLE.get(usize::from(low ^ byte)).copied();
        crc.wrapping_shr(8) ^ entry.unwrap_or_default()
    });
    !crc
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn check_value_and_test_vectors_of_rfc_3720() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xAA, 0x36, 0x91, 0x8A]);
        assert_eq!(crc32c(&[0xFF; 32]).to_le_bytes(), [0x43, 0xAB, 0xA8, 0x62]);
        assert_eq!(crc32c(&[]), 0);
    }
}
