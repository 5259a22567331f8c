//! The one place where a 0's based field gains its one.
//!
//! A field that counts "0's based" (`_z` in this crate) holds one less than the number it means.
//! Adding one in the field's own width overflows for the largest value, so the value is widened
//! first; going back, a count the field cannot hold is an error of the caller, not a wrap.

/// The count a 16-bit 0's based field means: 1 ..= 65536.
#[must_use]
pub const fn from_u16(field_z: u16) -> u32 {
    (field_z as u32).saturating_add(1)
}

/// The count an 8-bit 0's based field means: 1 ..= 256.
#[must_use]
pub const fn from_u8(field_z: u8) -> u16 {
    (field_z as u16).saturating_add(1)
}

/// The count a 32-bit 0's based field means: 1 ..= 2^32.
#[must_use]
pub const fn from_u32(field_z: u32) -> u64 {
    (field_z as u64).saturating_add(1)
}

/// The 16-bit 0's based field for `count`, or `None` when `count` is not in 1 ..= 65536.
#[must_use]
pub const fn to_u16(count: u32) -> Option<u16> {
    match count.checked_sub(1) {
        Some(field) if crate::bits::high16(field) == 0 => Some(crate::bits::low16(field)),
        Some(_) | None => None,
    }
}

/// The 8-bit 0's based field for `count`, or `None` when `count` is not in 1 ..= 256.
#[must_use]
pub const fn to_u8(count: u16) -> Option<u8> {
    match count.checked_sub(1) {
        Some(field) => {
            let [low, high] = field.to_le_bytes();
            if high == 0 { Some(low) } else { None }
        }
        None => None,
    }
}

/// The 32-bit 0's based field for `count`, or `None` when `count` is not in 1 ..= 2^32.
#[must_use]
pub const fn to_u32(count: u64) -> Option<u32> {
    match count.checked_sub(1) {
        Some(field) if crate::bits::high32(field) == 0 => Some(crate::bits::low32(field)),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_fields_do_not_wrap() {
        assert_eq!(from_u8(0xFF), 256);
        assert_eq!(from_u16(0xFFFF), 65_536);
        assert_eq!(from_u32(0xFFFF_FFFF), 1 << 32);
    }

    #[test]
    fn counts_outside_the_field_are_refused() {
        assert_eq!(to_u8(0), None);
        assert_eq!(to_u8(257), None);
        assert_eq!(to_u16(0), None);
        assert_eq!(to_u16(65_537), None);
        assert_eq!(to_u32(0), None);
        assert_eq!(to_u32((1 << 32) + 1), None);
    }

    #[test]
    fn both_ways_agree() {
        for field in [0, 1, 0x7F, 0xFF] {
            assert_eq!(to_u8(from_u8(field)), Some(field));
        }
        for field in [0, 1, 0xFF, 0xFFFF] {
            assert_eq!(to_u16(from_u16(field)), Some(field));
        }
        for field in [0, 1, 0xFFFF_FFFF] {
            assert_eq!(to_u32(from_u32(field)), Some(field));
        }
    }
}
