//! Bit fields of dwords and registers, extracted without a wrapping cast.

/// Bits `[shift + width - 1 : shift]` of `value`, in the low bits of the result.
pub(crate) const fn field(value: u32, shift: u32, width: u32) -> u32 {
    value.wrapping_shr(shift) & mask(width)
}

/// `value` cut to `width` bits and moved up to bit `shift`: the reverse of [`field`].
pub(crate) const fn place(value: u32, shift: u32, width: u32) -> u32 {
    (value & mask(width)).wrapping_shl(shift)
}

/// Whether bit `shift` of `value` is set.
pub(crate) const fn bit(value: u32, shift: u32) -> bool {
    field(value, shift, 1) == 1
}

/// `on` as a one-bit field at `shift`.
pub(crate) const fn flag(on: bool, shift: u32) -> u32 {
    place(on as u32, shift, 1)
}

const fn mask(width: u32) -> u32 {
    match u32::MAX.checked_shr(32_u32.saturating_sub(width)) {
        Some(mask) => mask,
        None => 0,
    }
}

/// Byte `[shift + 7 : shift]` of a dword, where `shift` is 0, 8, 16 or 24.
pub(crate) const fn byte(value: u32, shift: u32) -> u8 {
    let [low, ..] = value.wrapping_shr(shift).to_le_bytes();
    low
}

/// Word 1:0 of a dword.
pub(crate) const fn low16(value: u32) -> u16 {
    let [a, b, ..] = value.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// Word 3:2 of a dword.
pub(crate) const fn high16(value: u32) -> u16 {
    low16(value.wrapping_shr(16))
}

/// A dword from its low and its high word.
pub(crate) const fn words(low: u16, high: u16) -> u32 {
    let [a, b] = low.to_le_bytes();
    let [c, d] = high.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The low dword of a quadword.
pub(crate) const fn low32(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The high dword of a quadword.
pub(crate) const fn high32(value: u64) -> u32 {
    low32(value.wrapping_shr(32))
}

/// A quadword from its low and its high dword.
pub(crate) const fn dwords(low: u32, high: u32) -> u64 {
    let [a, b, c, d] = low.to_le_bytes();
    let [e, f, g, h] = high.to_le_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_and_place_are_inverse_at_every_width() {
        for width in 0..=32 {
            let expected = if width == 32 {
                u32::MAX
            } else {
                (1 << width) - 1
            };
            assert_eq!(field(u32::MAX, 0, width), expected);
            for shift in 0..=(32 - width).min(31) {
                assert_eq!(field(place(u32::MAX, shift, width), shift, width), expected);
            }
        }
    }

    #[test]
    fn words_and_dwords_split_little_endian() {
        assert_eq!(words(0x3344, 0x1122), 0x1122_3344);
        assert_eq!((low16(0x1122_3344), high16(0x1122_3344)), (0x3344, 0x1122));
        assert_eq!(dwords(0x5566_7788, 0x1122_3344), 0x1122_3344_5566_7788);
        assert_eq!(low32(0x1122_3344_5566_7788), 0x5566_7788);
        assert_eq!(high32(0x1122_3344_5566_7788), 0x1122_3344);
        assert_eq!((byte(0x1122_3344, 8), byte(0x1122_3344, 24)), (0x33, 0x11));
        assert!(bit(4, 2) && !bit(4, 1));
        assert_eq!(flag(true, 31), 0x8000_0000);
    }
}
