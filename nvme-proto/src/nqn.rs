//! NVMe Qualified Names and host identifiers.
//!
//! Source: NVMe Base 2.1, section 4.7 (NVMe Qualified Names) and section 5.1.25 (Host Identifier).

use core::fmt;
use core::str::FromStr;

use uuid::Uuid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::text::Shown;

/// Bytes of an NQN field in a data structure: a NUL-terminated string, padded with zeros.
pub const NQN_FIELD_BYTES: usize = 256;
/// The longest NQN, without its NUL.
pub const NQN_MAX_BYTES: usize = 223;
/// The well-known discovery service NQN.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// What an NQN made from a UUID starts with.
pub const UUID_NQN_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// Why a string or a field is not an NQN.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum NqnError {
    /// No characters.
    #[error("the NQN is empty, expected 1 to 223 bytes")]
    Empty,
    /// More than 223 bytes, or a field without its NUL.
    #[error("the NQN has {length_bytes} bytes, expected 1 to 223")]
    TooLong {
        /// Bytes before the NUL or the end.
        length_bytes: usize,
    },
    /// Not UTF-8.
    #[error("the NQN is not UTF-8: byte {at} is invalid")]
    NotUtf8 {
        /// The first byte that is wrong.
        at: usize,
    },
    /// A control character.
    #[error("byte {at} of the NQN is a control character")]
    ControlCharacter {
        /// Its offset.
        at: usize,
    },
    /// Not `nqn.yyyy-mm.domain[:string]`, and so not unique by construction.
    #[error(
        "the NQN is not of the form nqn.yyyy-mm.reverse.domain:string \
         or nqn.2014-08.org.nvmexpress:uuid:UUID"
    )]
    Form,
}

/// An NVMe Qualified Name: 1 to 223 bytes of UTF-8 without control characters; or, in the Connect
/// of a host that gives no name, [`Nqn::NONE`].
///
/// Peers in the field use names that are not of the form the specification gives (`Nqn::new`
/// takes them); [`Nqn::check_form`] says whether this one is.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn {
    /// The name, then zeros.
    bytes: [u8; NQN_MAX_BYTES],
    length_bytes: u8,
}

// The length of every NQN fits its u8.
const _: () = assert!(NQN_MAX_BYTES <= 255);

impl Nqn {
    /// No name: what a host is called whose Host NQN is empty, as `spdk_nvme_perf` leaves it by
    /// default. No list of names holds it, because [`Nqn::new`] makes none.
    pub const NONE: Self = Self {
        bytes: [0; NQN_MAX_BYTES],
        length_bytes: 0,
    };

    /// An NQN from a string.
    ///
    /// # Errors
    /// When it is empty, longer than 223 bytes or has a control character.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        if name.is_empty() {
            return Err(NqnError::Empty);
        }
        if let Some(at) = name.find(char::is_control) {
            return Err(NqnError::ControlCharacter { at });
        }
        let too_long = NqnError::TooLong {
            length_bytes: name.len(),
        };
        let length_bytes = u8::try_from(name.len()).map_err(|_| too_long)?;
        let mut bytes = [0; NQN_MAX_BYTES];
        bytes
            .get_mut(..name.len())
            .ok_or(too_long)?
            .copy_from_slice(name.as_bytes());
        Ok(Self {
            bytes,
            length_bytes,
        })
    }

    /// An NQN from a field of a data structure: what is before the first NUL. Bytes after it are
    /// ignored.
    ///
    /// # Errors
    /// As [`Nqn::new`], and when it is not UTF-8.
    pub fn from_field(field: &[u8; NQN_FIELD_BYTES]) -> Result<Self, NqnError> {
        let name = field.split(|byte| *byte == 0).next().unwrap_or_default();
        if name.len() > NQN_MAX_BYTES {
            return Err(NqnError::TooLong {
                length_bytes: name.len(),
            });
        }
        match core::str::from_utf8(name) {
            Ok(name) => Self::new(name),
            Err(error) => Err(NqnError::NotUtf8 {
                at: error.valid_up_to(),
            }),
        }
    }

    /// The field of a data structure: the name, then zeros.
    #[must_use]
    pub fn to_field(&self) -> [u8; NQN_FIELD_BYTES] {
        let mut field = [0; NQN_FIELD_BYTES];
        for (to, from) in field.iter_mut().zip(self.bytes) {
            *to = from;
        }
        field
    }

    /// `nqn.2014-08.org.nvmexpress:uuid:` with `uuid`.
    #[must_use]
    pub fn from_uuid(uuid: Uuid) -> Self {
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        uuid.hyphenated().encode_lower(&mut text);
        let mut bytes = [0; NQN_MAX_BYTES];
        let name = UUID_NQN_PREFIX.bytes().chain(text);
        let mut length_bytes: u8 = 0;
        for (to, from) in bytes.iter_mut().zip(name) {
            *to = from;
            length_bytes = length_bytes.saturating_add(1);
        }
        Self {
            bytes,
            length_bytes,
        }
    }

    /// The well-known discovery service NQN.
    #[must_use]
    pub fn discovery() -> Self {
        let mut bytes = [0; NQN_MAX_BYTES];
        let mut length_bytes: u8 = 0;
        for (to, from) in bytes.iter_mut().zip(DISCOVERY_NQN.bytes()) {
            *to = from;
            length_bytes = length_bytes.saturating_add(1);
        }
        Self {
            bytes,
            length_bytes,
        }
    }

    /// The name; empty for [`Nqn::NONE`].
    #[must_use]
    pub fn as_str(&self) -> &str {
        let name = self
            .bytes
            .get(..usize::from(self.length_bytes))
            .unwrap_or_default();
        // Every constructor took its bytes from a `str`.
        core::str::from_utf8(name).unwrap_or_default()
    }

    /// Whether this is the well-known discovery service NQN.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.as_str() == DISCOVERY_NQN
    }

    /// The UUID of a name of the UUID form.
    #[must_use]
    pub fn uuid(&self) -> Option<Uuid> {
        let text = self.as_str().strip_prefix(UUID_NQN_PREFIX)?;
        if text.len() == uuid::fmt::Hyphenated::LENGTH {
            Uuid::try_parse(text).ok()
        } else {
            None
        }
    }

    /// Whether both name the same: byte by byte, but for the digits of a UUID, which RFC 9562 reads
    /// alike in upper and in lower case, and tools write either way.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self == other || self.uuid().is_some_and(|uuid| other.uuid() == Some(uuid))
    }

    /// Checks the form: `nqn.`, year and month, a reverse domain name with at least two labels
    /// of 1 to 63 letters, digits and inner hyphens, and after a colon a string; under
    /// `nqn.2014-08.org.nvmexpress:uuid:` a UUID.
    ///
    /// # Errors
    /// [`NqnError::Form`] when the name is otherwise.
    pub fn check_form(&self) -> Result<(), NqnError> {
        if self.is_discovery() || self.uuid().is_some() {
            return Ok(());
        }
        if self.as_str().starts_with(UUID_NQN_PREFIX) {
            return Err(NqnError::Form);
        }
        match dated_form(self.as_str()) {
            Some(()) => Ok(()),
            None => Err(NqnError::Form),
        }
    }
}

/// `nqn.yyyy-mm.reverse.domain:string`.
fn dated_form(name: &str) -> Option<()> {
    let rest = name.strip_prefix("nqn.")?;
    let (date, rest) = rest.split_once('.')?;
    let (year, month) = date.split_once('-')?;
    let digits =
        |text: &str, length| text.len() == length && text.bytes().all(|b| b.is_ascii_digit());
    let month_is_valid = digits(month, 2)
        && month
            .parse::<u8>()
            .is_ok_and(|month| (1..=12).contains(&month));
    let (domain, string) = rest.split_once(':')?;
    let domain_is_valid = domain.contains('.') && domain.split('.').all(is_domain_label);
    (digits(year, 4) && month_is_valid && domain_is_valid && !string.is_empty()).then_some(())
}

fn is_domain_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(name: &str) -> Result<Self, NqnError> {
        Self::new(name)
    }
}

impl AsRef<str> for Nqn {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// The name for people ([`Shown`]); [`Nqn::as_str`] has it for programs.
impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_str() {
            "" => f.pad("(no name)"),
            name => fmt::Display::fmt(&Shown(name), f),
        }
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Host Identifier (HOSTID): 16 bytes that name a host to every controller it connects to.
#[repr(transparent)]
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// Zero, which is no host identifier.
    pub const NONE: Self = Self([0; 16]);

    /// The host identifier as a UUID, in the byte order of RFC 9562.
    #[must_use]
    pub const fn uuid(self) -> Uuid {
        Uuid::from_bytes(self.0)
    }

    /// From a UUID, in the byte order of RFC 9562.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid.into_bytes())
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.uuid(), f)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::{String, ToString};

    fn repeat(length: usize) -> String {
        core::iter::repeat_n('n', length).collect()
    }

    #[test]
    fn lengths_1_to_223_are_taken() {
        assert_eq!(Nqn::new(""), Err(NqnError::Empty));
        for length in [1, 222, 223] {
            let nqn = Nqn::new(&repeat(length)).unwrap();
            assert_eq!(nqn.as_str().len(), length);
            assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
        }
        for length in [224, 255, 256, 1000] {
            let error = NqnError::TooLong {
                length_bytes: length,
            };
            assert_eq!(Nqn::new(&repeat(length)), Err(error));
        }
    }

    #[test]
    fn fields_end_at_the_first_nul() {
        let mut field = [b'x'; 256];
        assert_eq!(
            Nqn::from_field(&field),
            Err(NqnError::TooLong { length_bytes: 256 })
        );
        field[224] = 0;
        assert_eq!(
            Nqn::from_field(&field),
            Err(NqnError::TooLong { length_bytes: 224 })
        );
        field[223] = 0;
        assert_eq!(Nqn::from_field(&field).unwrap().as_str().len(), 223);
        field[3] = 0;
        assert_eq!(Nqn::from_field(&field).unwrap().as_str(), "xxx");
        field[1] = 0xFF;
        assert_eq!(Nqn::from_field(&field), Err(NqnError::NotUtf8 { at: 1 }));
        field[1] = b'\n';
        assert_eq!(
            Nqn::from_field(&field),
            Err(NqnError::ControlCharacter { at: 1 })
        );
        field[0] = 0;
        assert_eq!(Nqn::from_field(&field), Err(NqnError::Empty));
    }

    #[test]
    fn no_name_reaches_a_terminal_with_characters_that_change_what_is_read() {
        for (control, at) in [("a\u{1b}[2J", 1), ("\u{9b}2J", 0), ("é\u{85}", 2)] {
            assert_eq!(
                Nqn::new(control),
                Err(NqnError::ControlCharacter { at }),
                "{control:?}"
            );
        }
        for (name, shown) in [
            ("nqn.a\u{2028}WARN", "nqn.a\\u{2028}WARN"),
            ("nqn.a\u{2029}", "nqn.a\\u{2029}"),
            ("nqn.\u{202e}gro", "nqn.\\u{202e}gro"),
            ("nqn.\u{2066}a\u{2069}", "nqn.\\u{2066}a\\u{2069}"),
            ("nqn.a\u{200b}", "nqn.a\\u{200b}"),
            ("nqn.a\u{feff}", "nqn.a\\u{feff}"),
            ("it's \"größe\" 東京", "it's \"größe\" 東京"),
        ] {
            let nqn = Nqn::new(name).unwrap();
            assert_eq!((nqn.as_str(), &*nqn.to_string()), (name, shown));
        }
    }

    #[test]
    fn uuid_names_hold_their_uuid() {
        let uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF);
        let nqn = Nqn::from_uuid(uuid);
        assert_eq!(
            nqn.to_string(),
            "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff"
        );
        assert_eq!(nqn.uuid(), Some(uuid));
        assert_eq!(HostId::from_uuid(uuid).uuid(), uuid);
        assert_eq!(HostId::from_uuid(uuid).to_string(), uuid.to_string());
        assert_eq!(Nqn::discovery().uuid(), None);
        assert!(Nqn::discovery().is_discovery());
        assert_eq!(Nqn::new(DISCOVERY_NQN), Ok(Nqn::discovery()));
    }

    #[test]
    fn only_the_digits_of_a_uuid_are_the_same_in_either_case() {
        let nqn = |name: &str| Nqn::new(name).unwrap();
        let lower = nqn("nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff");
        let upper = nqn("nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-AABBCCDDEEFF");
        assert!(upper.is_same(&lower) && lower.is_same(&upper) && upper != lower);
        let other = nqn("nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-AABBCCDDEEFE");
        assert!(!other.is_same(&lower));
        assert!(!nqn("nqn.2024-01.io.capstan:A").is_same(&nqn("nqn.2024-01.io.capstan:a")));
        assert!(nqn("testnqn").is_same(&nqn("testnqn")));
    }

    #[test]
    fn the_form_is_checked_only_where_asked() {
        let form = |name: &str| Nqn::new(name).unwrap().check_form();
        for good in [
            DISCOVERY_NQN,
            "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff",
            "nqn.2024-01.io.capstan:disk1",
            "nqn.2014-08.com.example:nvme.host.sys.xyz",
        ] {
            assert_eq!(form(good), Ok(()), "{good}");
        }
        for bad in [
            "blktests-subsystem-1",
            "nqn.2024-13.io.capstan:disk1",
            "nqn.2024-00.io.capstan:disk1",
            "nqn.24-01.io.capstan:disk1",
            "nqn.2024-01.io.capstan",
            "nqn.2024-01.io.capstan:",
            "nqn.2024-01.capstan:disk1",
            "nqn.2024-01.io.-capstan:disk1",
            "nqn.2024-01.io..capstan:disk1",
            "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff0",
            "nqn.2014-08.org.nvmexpress:uuid:0011223344556677-8899-aabbccddeeff",
        ] {
            assert_eq!(form(bad), Err(NqnError::Form), "{bad}");
        }
    }
}
