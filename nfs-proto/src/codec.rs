//! How typed values are encoded to XDR and decoded from it.
//!
//! Nothing is copied: names, filehandles and data borrow from the message, and what an array holds
//! is decoded when it is asked for ([`List`]).

use core::fmt;
use core::marker::PhantomData;

pub use capstan_rpcrdma::xdr::{DataItem, ReadError, Reader, ReducedItem, WriteError, Writer};

use crate::limits::LIST_ELEMENT_BYTES_MIN;

/// A value that can be decoded from XDR. Bytes that are not one are answered with NFS4ERR_BADXDR
/// (RFC 8881, section 15.1.1.1), or with GARBAGE_ARGS where the program has no such status.
pub trait Decode<'a>: Sized {
    /// Decodes one value; `field` is what an error calls it.
    ///
    /// # Errors
    /// The bytes are not one: where, what they hold and what was expected.
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError>;
}

/// A value that can be encoded to XDR.
pub trait Encode {
    /// Encodes the value.
    ///
    /// # Errors
    /// It does not fit; a part of it may have been written.
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError>;
}

macro_rules! integers {
    ($($type:ident),+) => {$(
        impl Decode<'_> for $type {
            fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, ReadError> {
                from.$type(field)
            }
        }

        impl Encode for $type {
            fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
                to.$type(*self)
            }
        }
    )+};
}
integers!(u32, i32, u64, i64, bool);

impl<const N: usize> Decode<'_> for [u8; N] {
    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, ReadError> {
        from.array(field)
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        to.opaque_fixed(self)
    }
}

/// An array of at most one element, optional data, and a union of `bool` whose FALSE arm is void
/// are the same on the wire: a word that is 0 or 1, and what follows 1 (RFC 4506, section 4.19).
impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        from.bool(field)?
            .then(|| T::decode(from, field))
            .transpose()
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        to.bool(self.is_some())?;
        self.as_ref().map_or(Ok(()), |value| value.encode(to))
    }
}

impl<'a> Decode<'a> for DataItem<'a> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        // Its bound is the message, or what the transport has let a chunk carry.
        from.data_item(field, u32::MAX)
    }
}

impl Encode for DataItem<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        match self {
            Self::Inline(data) => to.opaque(data),
            Self::Reduced { length_bytes, .. } => to.reduced(*length_bytes).map(|_index| ()),
        }
    }
}

/// Opaque data or a string of at most `MAX_BYTES`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Opaque<'a, const MAX_BYTES: u32>(pub &'a [u8]);

/// Opaque data or a string that is bounded by the message alone, as it is only looked at there.
pub type Unbounded<'a> = Opaque<'a, { u32::MAX }>;

impl<'a, const MAX_BYTES: u32> Decode<'a> for Opaque<'a, MAX_BYTES> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        from.opaque(field, MAX_BYTES).map(Self)
    }
}

impl<const MAX_BYTES: u32> Encode for Opaque<'_, MAX_BYTES> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        to.opaque(self.0)
    }
}

/// A variable-length array (RFC 4506, section 4.13): of a message, whose elements are known to be
/// well formed and are decoded as one goes through them, or of values to be encoded.
///
/// No element contains data that may be reduced.
#[derive(Clone, Copy)]
pub struct List<'a, T>(Elements<'a, T>);

#[derive(Clone, Copy)]
enum Elements<'a, T> {
    Encoded {
        count: u32,
        bytes: &'a [u8],
        of: PhantomData<T>,
    },
    Values(&'a [T]),
}

impl<'a, T> List<'a, T> {
    /// The array of these values.
    #[must_use]
    pub const fn of(values: &'a [T]) -> Self {
        Self(Elements::Values(values))
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {
            Elements::Encoded { count, .. } => usize::try_from(count).unwrap_or(usize::MAX),
            Elements::Values(values) => values.len(),
        }
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a, T: Decode<'a> + Copy> List<'a, T> {
    /// The elements, in their order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (count, bytes, values): (_, _, &[T]) = match self.0 {
            Elements::Encoded { count, bytes, .. } => (count, bytes, &[]),
            Elements::Values(values) => (0, [].as_slice(), values),
        };
        let mut from = Reader::new(bytes);
        let decoded = (0..count).map_while(move |_| T::decode(&mut from, "element").ok());
        values.iter().copied().chain(decoded)
    }

    /// Decodes an array of at most `max` elements.
    ///
    /// # Errors
    /// There are more, or one is malformed.
    pub fn decode_bounded(
        from: &mut Reader<'a>,
        field: &'static str,
        max: u32,
    ) -> Result<Self, ReadError> {
        let count = from.count(field, max, LIST_ELEMENT_BYTES_MIN)?;
        let start = from.left();
        for _ in 0..count {
            T::decode(from, field)?;
        }
        let used = start.len().saturating_sub(from.left_bytes());
        let bytes = start.get(..used).unwrap_or_default();
        Ok(Self(Elements::Encoded {
            count,
            bytes,
            of: PhantomData,
        }))
    }
}

impl<T> Default for List<'_, T> {
    fn default() -> Self {
        Self::of(&[])
    }
}

/// As many elements as the message holds: each takes at least four bytes of it.
impl<'a, T: Decode<'a> + Copy> Decode<'a> for List<'a, T> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        Self::decode_bounded(from, field, u32::MAX)
    }
}

impl<T: Encode> Encode for List<'_, T> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        to.count(self.len())?;
        match self.0 {
            // A whole number of units, which are copied as they are.
            Elements::Encoded { bytes, .. } => to.opaque_fixed(bytes),
            Elements::Values(values) => values.iter().try_for_each(|value| value.encode(to)),
        }
    }
}

impl<'a, T: Decode<'a> + Copy + PartialEq> PartialEq for List<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Decode<'a> + Copy + fmt::Debug> fmt::Debug for List<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// An array of at most `MAX` elements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BoundedList<'a, T: Decode<'a> + Copy, const MAX: u32>(pub List<'a, T>);

impl<'a, T: Decode<'a> + Copy, const MAX: u32> Decode<'a> for BoundedList<'a, T, MAX> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        List::decode_bounded(from, field, MAX).map(Self)
    }
}

impl<'a, T: Decode<'a> + Copy + Encode, const MAX: u32> Encode for BoundedList<'a, T, MAX> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        self.0.encode(to)
    }
}

/// A list in which each element says whether another follows (optional-data that contains itself:
/// RFC 4506, section 4.19): of a message, or of values to be encoded. As [`List`], it decodes an
/// element when it is asked for.
#[derive(Clone, Copy)]
pub struct Chain<'a, T>(Links<'a, T>);

#[derive(Clone, Copy)]
enum Links<'a, T> {
    Encoded(&'a [u8]),
    Values(&'a [T]),
}

impl<'a, T> Chain<'a, T> {
    /// The list of these values.
    #[must_use]
    pub const fn of(values: &'a [T]) -> Self {
        Self(Links::Values(values))
    }
}

impl<'a, T: Decode<'a> + Copy> Chain<'a, T> {
    /// The elements, in their order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (bytes, values): (_, &[T]) = match self.0 {
            Links::Encoded(bytes) => (bytes, &[]),
            Links::Values(values) => ([].as_slice(), values),
        };
        let mut from = Reader::new(bytes);
        let decoded = core::iter::from_fn(move || Option::decode(&mut from, "element").ok()?);
        values.iter().copied().chain(decoded)
    }
}

impl<T> Default for Chain<'_, T> {
    fn default() -> Self {
        Self::of(&[])
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Chain<'a, T> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        let start = from.left();
        // Each turn takes at least four bytes of the message.
        while Option::<T>::decode(from, field)?.is_some() {}
        let used = start.len().saturating_sub(from.left_bytes());
        Ok(Self(Links::Encoded(start.get(..used).unwrap_or_default())))
    }
}

impl<T: Encode> Encode for Chain<'_, T> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        match self.0 {
            // A whole number of units, the end of the list with them.
            Links::Encoded(bytes) => to.opaque_fixed(bytes),
            Links::Values(values) => {
                values.iter().try_for_each(|value| {
                    to.bool(true)?;
                    value.encode(to)
                })?;
                to.bool(false)
            }
        }
    }
}

impl<'a, T: Decode<'a> + Copy + PartialEq> PartialEq for Chain<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Decode<'a> + Copy + fmt::Debug> fmt::Debug for Chain<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;
    use std::vec::Vec;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn encoded(value: &impl Encode) -> Vec<u8> {
        let mut buffer = [0; 64];
        let mut writer = Writer::new(&mut buffer);
        value.encode(&mut writer).unwrap();
        writer.written().to_vec()
    }

    #[test]
    fn an_option_is_none_or_one() {
        assert_eq!(encoded(&None::<u64>), words(&[0]));
        assert_eq!(encoded(&Some(7_u64)), words(&[1, 0, 7]));
        let decode = |bytes: &[u8]| Option::<u32>::decode(&mut Reader::new(bytes), "optional");
        assert_eq!(decode(&words(&[1, 9])), Ok(Some(9)));
        assert!(decode(&words(&[2, 9, 9])).is_err());
        assert!(decode(&words(&[1])).is_err());
    }

    #[test]
    fn a_list_is_bounded_by_its_message_and_its_type() {
        let message = words(&[3, 1, 2, 3, 4]);
        let mut reader = Reader::new(&message);
        let list = List::<u32>::decode(&mut reader, "list").unwrap();
        assert_eq!((list.len(), list.is_empty()), (3, false));
        assert_eq!(list, List::of(&[1, 2, 3]));
        assert_eq!(format!("{list:?}"), "[1, 2, 3]");
        assert_eq!(reader.u32("behind"), Ok(4));
        assert_eq!(encoded(&list), encoded(&List::of(&[1_u32, 2, 3])));

        let missing = words(&[4, 1, 2, 3]);
        assert!(List::<u32>::decode(&mut Reader::new(&missing), "list").is_err());
        let endless = words(&[u32::MAX, 1]);
        assert!(List::<u32>::decode(&mut Reader::new(&endless), "list").is_err());
        // Four bytes an element are there, and eight are needed.
        let half = words(&[2, 1, 2]);
        assert!(List::<u64>::decode(&mut Reader::new(&half), "list").is_err());

        let decode = |bytes| BoundedList::<u32, 3>::decode(&mut Reader::new(bytes), "list").is_ok();
        assert!(decode(&message));
        assert!(!decode(&words(&[4, 1, 2, 3, 4])));
    }

    #[test]
    fn a_chain_ends_where_it_says() {
        let message = words(&[1, 5, 1, 6, 0, 9]);
        let mut reader = Reader::new(&message);
        let chain = Chain::<u32>::decode(&mut reader, "chain").unwrap();
        assert_eq!(reader.u32("behind"), Ok(9));
        assert_eq!(chain, Chain::of(&[5, 6]));
        assert_eq!(encoded(&chain), encoded(&Chain::of(&[5_u32, 6])));
        for broken in [words(&[1, 5, 1]), words(&[1, 5]), words(&[1, 5, 2, 6, 0])] {
            assert!(Chain::<u32>::decode(&mut Reader::new(&broken), "chain").is_err());
        }
    }

    #[test]
    fn opaque_data_has_its_bound() {
        let decode = |bytes: &[u8]| Opaque::<'_, 4>::decode(&mut Reader::new(bytes), "id").is_ok();
        assert!(decode(&words(&[4, 0])) && !decode(&words(&[5, 0, 0])));
    }
}
