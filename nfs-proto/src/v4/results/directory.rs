//! Entries of a directory: a list in which each says whether another follows (RFC 4506, section
//! 4.19).

use core::fmt;

use crate::codec::{Decode, Encode, ReadError, Reader, WriteError, Writer};
use crate::macros::xdr_struct;
use crate::v4::attr::Fattr;
use crate::v4::types::Component;

xdr_struct! {
    /// An entry (entry4; RFC 8881, section 18.23.2).
    pub struct DirEntry<'a> {
        /// To go on behind it.
        pub cookie: u64,
        /// The name.
        pub name: Component<'a>,
        /// The attributes that were asked for.
        pub attrs: Fattr<'a>,
    }
}

/// The entries of a reply, or values to be encoded.
#[derive(Clone, Copy)]
pub struct DirEntries<'a>(Entries<'a>);

#[derive(Clone, Copy)]
enum Entries<'a> {
    Encoded(&'a [u8]),
    Values(&'a [DirEntry<'a>]),
}

impl<'a> DirEntries<'a> {
    /// These entries.
    #[must_use]
    pub const fn of(entries: &'a [DirEntry<'a>]) -> Self {
        Self(Entries::Values(entries))
    }

    /// The entries, in their order.
    pub fn iter(&self) -> impl Iterator<Item = DirEntry<'a>> + use<'a> {
        let (bytes, values): (_, &[DirEntry<'a>]) = match self.0 {
            Entries::Encoded(bytes) => (bytes, &[]),
            Entries::Values(values) => (&[][..], values),
        };
        let mut from = Reader::new(bytes);
        let decoded = core::iter::from_fn(move || Option::decode(&mut from, "entries").ok()?);
        values.iter().copied().chain(decoded)
    }
}

impl<'a> Decode<'a> for DirEntries<'a> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        let start = from.left();
        // Each turn takes at least four bytes of the message.
        while Option::<DirEntry<'a>>::decode(from, field)?.is_some() {}
        let used = start.len().saturating_sub(from.left_bytes());
        Ok(Self(Entries::Encoded(
            start.get(..used).unwrap_or_default(),
        )))
    }
}

impl Encode for DirEntries<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        self.iter().try_for_each(|entry| Some(entry).encode(to))?;
        None::<DirEntry<'_>>.encode(to)
    }
}

impl PartialEq for DirEntries<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for DirEntries<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
