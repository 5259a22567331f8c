//! Sizes in bytes: integers, or text with a binary unit.

use std::fmt;
use std::num::IntErrorKind;
use std::str::FromStr;

use bytesize::ByteSize;
use capstan_nvme_proto::text::Count;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A number of bytes, written as `1048576`, `"1048576"`, `"1MiB"`, `"1M"` or `"1.5 GiB"`.
///
/// Decimal units are refused: a namespace of `1GB` is 24 % smaller than most who write it think at
/// the TB scale, and seldom a multiple of the LBA size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A number of bytes as one word that reads back as the same number: with the largest unit that it
/// is a whole number of (`64MiB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactSize(pub u64);

impl fmt::Display for ExactSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let whole = units
            .iter()
            .find(|(_, shift)| self.0.trailing_zeros() >= *shift);
        match whole.filter(|_| self.0 > 0) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Numbers with more digits are told with a larger unit and one decimal.
const EXACT_BELOW: u64 = 10_000;

/// A text that is no [`Size`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Decimal or ambiguous unit.
    #[error("`{text}` has a decimal unit; write `{binary}`, or plain bytes")]
    Decimal {
        /// What was written.
        text: String,
        /// The same number with the binary unit.
        binary: String,
    },
    /// Nothing at all.
    #[error("there is no size; write bytes or a number with KiB, MiB, GiB, TiB, PiB or EiB")]
    Empty,
    /// Not a number with a unit.
    #[error("`{0}` is not a size; write bytes or a number with KiB, MiB, GiB, TiB, PiB or EiB")]
    NotASize(String),
    /// More than 64 bits of bytes.
    #[error("`{0}` is too large; the largest size is 16383 PiB")]
    TooLarge(String),
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let not_a_size = || SizeError::NotASize(text.to_owned());
        let too_large = || SizeError::TooLarge(text.to_owned());
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(SizeError::Empty);
        }
        let unit_at = trimmed
            .find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(unit_at);
        match unit.to_ascii_lowercase().as_str() {
            "" | "b" | "bytes" => match number.trim().parse() {
                Ok(bytes) => Ok(Self(bytes)),
                Err(error) if *error.kind() == IntErrorKind::PosOverflow => Err(too_large()),
                Err(_) => Err(not_a_size()),
            },
            // A letter alone is a binary unit, as for truncate(1), dd(1) and `capstan`.
            "k" | "m" | "g" | "t" | "p" | "e" | "kib" | "mib" | "gib" | "tib" | "pib" | "eib" => {
                let binary = format!("{}{}iB", number.trim(), &unit[..1]);
                let size: ByteSize = binary.parse().map_err(|_| not_a_size())?;
                // The parser saturates.
                if size.as_u64() == u64::MAX {
                    Err(too_large())
                } else {
                    Ok(Self(size.as_u64()))
                }
            }
            "kb" | "mb" | "gb" | "tb" | "pb" | "eb" => {
                let prefix = unit[..1].to_ascii_uppercase();
                Err(SizeError::Decimal {
                    text: text.to_owned(),
                    binary: format!("{}{prefix}iB", number.trim()),
                })
            }
            _ => Err(not_a_size()),
        }
    }
}

impl fmt::Display for Size {
    /// Exact where a binary unit divides it into a number that can be read (`8 MiB`), else with one
    /// decimal (`1.3 MiB`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [
            (50, "PiB"),
            (40, "TiB"),
            (30, "GiB"),
            (20, "MiB"),
            (10, "KiB"),
        ] {
            let number = self.0 >> shift;
            if (1..EXACT_BELOW).contains(&number) && number << shift == self.0 {
                return write!(f, "{number} {unit}");
            }
        }
        if self.0 < 1024 {
            return write!(f, "{}", Count(self.0, "byte"));
        }
        write!(f, "{}", ByteSize::b(self.0).display().iec())
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"256MiB\" or a number of bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes)
                    .map(Size)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_units_and_plain_bytes_are_sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            // As messages say it.
            ("4096 bytes", 4096),
            ("1KiB", 1 << 10),
            ("256MiB", 256 << 20),
            ("1.5 GiB", 3 << 29),
            ("2tib", 2 << 40),
            // As fio and `capstan` take it.
            ("16M", 16 << 20),
            ("1.5g", 3 << 29),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn decimal_units_are_refused_with_the_binary_one() {
        let error = "10GB".parse::<Size>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`10GB` has a decimal unit; write `10GiB`, or plain bytes"
        );
        assert!("1mb".parse::<Size>().is_err());
    }

    #[test]
    fn nonsense_is_not_a_size() {
        assert_eq!("".parse::<Size>(), Err(SizeError::Empty));
        for text in ["MiB", "k", "-1M", "-1", "-1MiB", "1e9", "1..5GiB", "é"] {
            assert_eq!(
                text.parse::<Size>(),
                Err(SizeError::NotASize(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_too_large_is_said_to_be_and_the_largest_is_taken() {
        for text in [
            "99999999TiB",
            "99999 PiB",
            "16384PiB",
            "16EiB",
            "16 EiB",
            "99999999999999999999TiB",
            "18446744073709551616",
            "99999999999999999999 bytes",
        ] {
            let error = text.parse::<Size>().unwrap_err();
            assert_eq!(error, SizeError::TooLarge(text.to_owned()));
            assert!(error.to_string().ends_with("largest size is 16383 PiB"));
        }
        assert_eq!("16383 PiB".parse(), Ok(Size(16383 << 50)));
        assert_eq!("1EiB".parse(), Ok(Size(1 << 60)));
    }

    #[test]
    fn an_exact_size_is_a_word_that_reads_back() {
        for (bytes, text) in [
            (0, "0"),
            (512, "512"),
            (1 << 10, "1KiB"),
            (3 << 29, "1536MiB"),
            (64 << 20, "64MiB"),
            ((64 << 20) + 512, "67109376"),
            (3 << 50, "3072TiB"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(ExactSize(bytes).to_string(), text);
            assert_eq!(text.parse(), Ok(Size(bytes)));
        }
    }

    #[test]
    fn a_size_reads_back_as_written_where_a_unit_divides_it() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (512, "512 bytes"),
            (8 << 20, "8 MiB"),
            (3 << 29, "1536 MiB"),
            (999 << 40, "999 TiB"),
            (3 << 50, "3 PiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!(Size(1_363_149).to_string(), "1.3 MiB");
        // No one reads 1047527936 MiB or 24684084 KiB.
        assert_eq!(Size((999 << 40) + (256 << 20)).to_string(), "999.0 TiB");
        assert_eq!(Size(24_684_084 << 10).to_string(), "23.5 GiB");
    }
}
