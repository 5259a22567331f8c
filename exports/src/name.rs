//! One name of a directory entry, as a client gives it.

use nix::NixPath;

/// Most bytes of a name on Linux (`NAME_MAX`). A file system may have a lower limit of its own.
pub const NAME_BYTES: usize = 255;

/// How the names of an export are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NameRule {
    /// What is not UTF-8 is refused in new names and found by nobody (RFC 8881, 14.4).
    #[default]
    Utf8,
    /// Any bytes that Linux takes.
    Raw,
}

/// Why bytes are no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameProblem {
    /// It has no bytes.
    #[error("the name is empty; a file has a name of 1 to {NAME_BYTES} bytes")]
    Empty,
    /// It is `.` or `..`.
    #[error("the name stands for the directory itself or its parent; ask for the parent as such")]
    Dots,
    /// It has more bytes than names have.
    #[error("the name has {0} bytes, and names have at most {NAME_BYTES}")]
    TooLong(usize),
    /// It has a `/` or a NUL.
    #[error("the name has byte {byte:#04x} at {at}, which no name can have")]
    Byte {
        /// `/` or NUL.
        byte: u8,
        /// Where the first one is.
        at: usize,
    },
    /// It is not UTF-8, and the export's names are.
    #[error(
        "the name is not UTF-8 behind byte {0}; names of this export are, unless it is set raw"
    )]
    NotUtf8(usize),
}

/// A name of one directory entry: no `/`, no NUL, not `.` or `..`, 1 to [`NAME_BYTES`] bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// The bytes of a client as a name.
    ///
    /// # Errors
    /// Where no entry of an export with this rule can have the name.
    pub fn new(bytes: &'a [u8], rule: NameRule) -> Result<Self, NameProblem> {
        match bytes {
            [] => return Err(NameProblem::Empty),
            b"." | b".." => return Err(NameProblem::Dots),
            _ if bytes.len() > NAME_BYTES => return Err(NameProblem::TooLong(bytes.len())),
            _ => {}
        }
        let bad = bytes
            .iter()
            .enumerate()
            .find(|(_, byte)| matches!(byte, b'/' | 0));
        if let Some((at, &byte)) = bad {
            return Err(NameProblem::Byte { byte, at });
        }
        match std::str::from_utf8(bytes) {
            Err(error) if rule == NameRule::Utf8 => Err(NameProblem::NotUtf8(error.valid_up_to())),
            _ => Ok(Self(bytes)),
        }
    }

    /// Its bytes.
    pub const fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl std::fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Name({})", self.0.escape_ascii())
    }
}

impl NixPath for Name<'_> {
    fn is_empty(&self) -> bool {
        false
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn with_nix_path<T, F: FnOnce(&std::ffi::CStr) -> T>(&self, f: F) -> nix::Result<T> {
        self.0.with_nix_path(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_name_is_told() {
        let of = |bytes: &[u8], rule| Name::new(bytes, rule).map(|name| name.0.len());
        for rule in [NameRule::Utf8, NameRule::Raw] {
            assert_eq!(of(b"", rule), Err(NameProblem::Empty));
            assert_eq!(of(b".", rule), Err(NameProblem::Dots));
            assert_eq!(of(b"..", rule), Err(NameProblem::Dots));
            assert_eq!(of(b"...", rule), Ok(3));
            assert_eq!(
                of(b"a/b", rule),
                Err(NameProblem::Byte { byte: b'/', at: 1 })
            );
            assert_eq!(of(b"ab\0", rule), Err(NameProblem::Byte { byte: 0, at: 2 }));
            assert_eq!(of(&[b'a'; 255], rule), Ok(255));
            assert_eq!(of(&[b'a'; 256], rule), Err(NameProblem::TooLong(256)));
            assert_eq!(of("größer".as_bytes(), rule), Ok(8));
        }
        assert_eq!(of(b"ab\xff", NameRule::Utf8), Err(NameProblem::NotUtf8(2)));
        assert_eq!(of(b"ab\xff", NameRule::Raw), Ok(3));
    }

    proptest! {
        #[test]
        fn a_name_is_one_component(bytes in vec(any::<u8>(), 0..300)) {
            if let Ok(name) = Name::new(&bytes, NameRule::Raw) {
                prop_assert!(!name.bytes().contains(&b'/') && !name.bytes().contains(&0));
                prop_assert!((1..=NAME_BYTES).contains(&name.bytes().len()));
                prop_assert!(name.bytes() != b"." && name.bytes() != b"..");
            }
        }
    }
}
