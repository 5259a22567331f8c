//! Sets of small numbers: attributes, operations, hints, notifications (bitmap4).
//!
//! Source: RFC 8881, section 3.2 (bitmap4), and 5 for bitmaps of attributes.

use core::fmt;

use crate::codec::{Decode, Encode, ReadError, Reader, WriteError, Writer};
use crate::limits::{BITMAP_WORDS, BITMAP_WORDS_MAX, LIST_ELEMENT_BYTES_MIN};

const WORD_BITS: u32 = 32;

/// A set of numbers from 0 to 95, and whether a peer had any above.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bitmap {
    words: [u32; BITMAP_WORDS],
    beyond: bool,
}

impl Bitmap {
    /// Nothing.
    pub const EMPTY: Self = Self {
        words: [0; BITMAP_WORDS],
        beyond: false,
    };

    /// The set with these words, the lowest numbers first.
    #[must_use]
    pub const fn from_words(words: [u32; BITMAP_WORDS]) -> Self {
        Self {
            words,
            beyond: false,
        }
    }

    /// The words, the lowest numbers first.
    #[must_use]
    pub const fn words(&self) -> [u32; BITMAP_WORDS] {
        self.words
    }

    /// Whether what arrived had a number above 95, which is not in the set.
    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.beyond
    }

    /// Whether `number` is in the set.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        place(number)
            .and_then(|(word, bit)| Some(self.words.get(word)? & bit != 0))
            .unwrap_or(false)
    }

    /// Puts `number` in; one above 95 does not go.
    pub fn insert(&mut self, number: u32) {
        if let Some((word, bit)) = place(number)
            && let Some(word) = self.words.get_mut(word)
        {
            *word |= bit;
        }
    }

    /// Takes `number` out.
    pub fn remove(&mut self, number: u32) {
        if let Some((word, bit)) = place(number)
            && let Some(word) = self.words.get_mut(word)
        {
            *word &= !bit;
        }
    }

    /// This set with `number`.
    #[must_use]
    pub fn with(mut self, number: u32) -> Self {
        self.insert(number);
        self
    }

    /// What is in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let [a, b, c] = self.words;
        let [d, e, f] = other.words;
        Self::from_words([a & d, b & e, c & f])
    }

    /// What is in either set.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let [a, b, c] = self.words;
        let [d, e, f] = other.words;
        Self {
            words: [a | d, b | e, c | f],
            beyond: self.beyond || other.beyond,
        }
    }

    /// What is in this set and not in the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let [a, b, c] = self.words;
        let [d, e, f] = other.words;
        Self {
            words: [a & !d, b & !e, c & !f],
            beyond: self.beyond,
        }
    }

    /// Whether nothing is in the set, and nothing was above it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// The numbers, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let set = *self;
        (0..WORD_BITS.saturating_mul(3)).filter(move |number| set.contains(*number))
    }
}

const _: () = assert!(BITMAP_WORDS == 3);

/// The word and the bit of a number.
fn place(number: u32) -> Option<(usize, u32)> {
    let word = usize::try_from(number / WORD_BITS).ok()?;
    (word < BITMAP_WORDS).then(|| (word, 1_u32.wrapping_shl(number % WORD_BITS)))
}

impl FromIterator<u32> for Bitmap {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        numbers.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()?;
        if self.beyond {
            f.write_str(" and above")?;
        }
        Ok(())
    }
}

/// Without the words above the highest number.
impl Encode for Bitmap {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        let used = self.words.iter().rposition(|word| *word != 0);
        let words = self
            .words
            .get(..=used.unwrap_or_default())
            .unwrap_or_default();
        let words = if used.is_none() { &[] } else { words };
        to.count(words.len())?;
        words.iter().try_for_each(|word| to.u32(*word))
    }
}

impl Decode<'_> for Bitmap {
    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, ReadError> {
        let count = from.count(field, BITMAP_WORDS_MAX, LIST_ELEMENT_BYTES_MIN)?;
        let mut bitmap = Self::EMPTY;
        let mut kept = bitmap.words.iter_mut();
        for _ in 0..count {
            let bits = from.u32(field)?;
            match kept.next() {
                Some(word) => *word = bits,
                None => bitmap.beyond |= bits != 0,
            }
        }
        Ok(bitmap)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn encoded(bitmap: Bitmap) -> Vec<u8> {
        let mut buffer = [0; 16];
        let mut writer = Writer::new(&mut buffer);
        bitmap.encode(&mut writer).unwrap();
        writer.written().to_vec()
    }

    #[test]
    fn bit_n_is_bit_n_mod_32_of_word_n_div_32() {
        let bitmap: Bitmap = [1, 3, 33, 82].into_iter().collect();
        assert_eq!(
            encoded(bitmap),
            [0, 0, 0, 3, 0, 0, 0, 0b1010, 0, 0, 0, 0b10, 0, 4, 0, 0]
        );
        assert_eq!(bitmap.iter().collect::<Vec<_>>(), [1, 3, 33, 82]);
        assert!(bitmap.contains(82) && !bitmap.contains(81) && !bitmap.contains(1000));
    }

    #[test]
    fn words_without_a_bit_are_not_sent() {
        assert_eq!(encoded(Bitmap::EMPTY), [0, 0, 0, 0]);
        assert_eq!(encoded(Bitmap::EMPTY.with(0)), [0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(encoded(Bitmap::EMPTY.with(96)), [0, 0, 0, 0]);
    }

    #[test]
    fn words_beyond_are_noticed_and_bounded() {
        let message = |words: &[u32]| {
            let mut message = Vec::from(u32::try_from(words.len()).unwrap().to_be_bytes());
            for word in words {
                message.extend(word.to_be_bytes());
            }
            message
        };
        let decode = |bytes: &[u8]| Bitmap::decode(&mut Reader::new(bytes), "bitmap");
        assert_eq!(
            decode(&message(&[1, 0, 0, 0, 0])),
            Ok(Bitmap::EMPTY.with(0))
        );
        let more = decode(&message(&[1, 0, 0, 0, 2])).unwrap();
        assert!(more.has_more() && more.contains(0) && !more.is_empty());
        assert!(!more.and(&more).has_more());
        assert!(decode(&message(&[0; 16])).is_ok());
        assert!(decode(&message(&[0; 17])).is_err());
        assert!(decode(&[0, 0, 0, 2, 0, 0, 0, 1]).is_err());
    }
}
