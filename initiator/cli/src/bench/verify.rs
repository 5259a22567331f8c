//! Contents that prove themselves: every block carries where it belongs and a checksum.

use crc_fast::{CrcAlgorithm, checksum};

use super::pattern::mix;

/// First bytes of a block.
const MAGIC: [u8; 8] = *b"CAPSTANV";
/// Bytes of the head: magic, offset, generation, length, checksum of all but itself.
const HEAD_BYTES: usize = 32;

/// Fills `block`, which belongs at byte `offset`, for the `generation`th time. It has at least
/// 512 bytes.
pub(super) fn fill(block: &mut [u8], offset: u64, generation: u64) {
    let mut word = mix(offset ^ generation.rotate_left(32));
    for bytes in block.chunks_mut(8) {
        word = word.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        let len = bytes.len();
        bytes.copy_from_slice(&word.to_le_bytes()[..len]);
    }
    let len = u32::try_from(block.len()).unwrap_or(u32::MAX);
    block[..8].copy_from_slice(&MAGIC);
    block[8..16].copy_from_slice(&offset.to_le_bytes());
    block[16..24].copy_from_slice(&generation.to_le_bytes());
    block[24..28].copy_from_slice(&len.to_le_bytes());
    let crc = crc_of(block);
    block[28..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// Checks a block read from byte `offset`.
pub(super) fn check(block: &[u8], offset: u64) -> Result<(), String> {
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&block[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    if block[..8] != MAGIC {
        return Err(format!(
            "offset {offset}: no block of this benchmark (starts with {:02x?}); what is read with --verify is written with \
             --rw write --verify and the same --bs, --offset and --size first",
            &block[..8]
        ));
    }
    if number(8) != offset {
        return Err(format!(
            "offset {offset}: holds the block of offset {}",
            number(8)
        ));
    }
    let [len, found] = {
        let tail = number(24).to_le_bytes();
        let [a, b, c, d, e, f, g, h] = tail;
        [
            u32::from_le_bytes([a, b, c, d]),
            u32::from_le_bytes([e, f, g, h]),
        ]
    };
    if len as usize != block.len() {
        return Err(format!(
            "offset {offset}: was written with --bs {len}, is read with {}",
            block.len()
        ));
    }
    let expected = crc_of(block);
    if found != expected {
        return Err(format!(
            "offset {offset}: CRC-32C is {expected:#010x}, the block says {found:#010x}"
        ));
    }
    Ok(())
}

fn crc_of(block: &[u8]) -> u32 {
    let head = checksum(CrcAlgorithm::Crc32Iscsi, &block[..28]);
    let body = checksum(CrcAlgorithm::Crc32Iscsi, &block[HEAD_BYTES..]);
    let crc = head ^ body.rotate_left(1);
    u32::try_from(crc & 0xFFFF_FFFF).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{check, fill};

    #[test]
    fn a_block_proves_itself() {
        for len in [512, 4096, 5000] {
            let mut block = vec![0; len];
            fill(&mut block, 8192, 3);
            assert_eq!(check(&block, 8192), Ok(()));
        }
    }

    #[test]
    fn one_wrong_bit_a_wrong_place_and_a_torn_block_are_found() {
        let mut block = vec![0; 4096];
        fill(&mut block, 8192, 1);
        assert!(check(&block, 4096).unwrap_err().contains("offset 8192"));
        for at in [40, 100, 4095, 17, 29] {
            let mut bad = block.clone();
            bad[at] ^= 0x10;
            assert!(check(&bad, 8192).unwrap_err().contains("CRC"), "byte {at}");
        }
        let mut newer = vec![0; 4096];
        fill(&mut newer, 8192, 2);
        let mut torn = newer;
        torn[2048..].copy_from_slice(&block[2048..]);
        assert!(check(&torn, 8192).is_err());
        assert!(check(&[0; 4096], 0).unwrap_err().contains("no block"));
        let halved = &block[..2048];
        assert!(check(halved, 8192).unwrap_err().contains("--bs 4096"));
    }
}
