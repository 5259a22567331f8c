//! The basic types of NFS version 4.
//!
//! Source: RFC 8881, section 3.3 (structured data types); the XDR is that of RFC 5662 and RFC 7863.

use core::fmt;

use crate::codec::{Decode, Encode, Opaque, ReadError, Reader, Unbounded, WriteError, Writer};
use crate::limits::{FILEHANDLE_BYTES_MAX, NAME_BYTES_MAX, OWNER_BYTES_MAX, PRINCIPAL_DIGITS_MAX};
use crate::macros::{xdr_enum, xdr_struct};
use crate::v4::status::Status;

/// Bytes that mean something to the side alone that made them.
macro_rules! opaque_id {
    ($(#[$meta:meta])* $type:ident, $length:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $type(pub [u8; $length]);

        impl $type {
            /// Bytes on the wire.
            pub const SIZE_BYTES: usize = $length;
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($type))
            }
        }

        impl Encode for $type {
            fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
                self.0.encode(to)
            }
        }

        impl Decode<'_> for $type {
            fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, ReadError> {
                from.array(field).map(Self)
            }
        }
    };
}

opaque_id! {
    /// What tells one instance from the next: of a client, of a server's writes, of a directory's
    /// cookies (verifier4).
    Verifier, 8
}

opaque_id! {
    /// A session (sessionid4; RFC 8881, section 2.10.3).
    SessionId, 16
}

opaque_id! {
    /// A device of pNFS (deviceid4; RFC 8881, section 3.3).
    DeviceId, 16
}

/// A client, as the server numbered it (clientid4; RFC 8881, section 2.4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ClientId(pub u64);

impl Encode for ClientId {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        to.u64(self.0)
    }
}

impl Decode<'_> for ClientId {
    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, ReadError> {
        from.u64(field).map(Self)
    }
}

/// A state of opening or locking, or one of four values with a meaning of their own (stateid4; RFC
/// 8881, section 8.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stateid {
    /// How often the state has changed; 0 stands for the latest (section 8.2.2).
    pub seqid: u32,
    /// Which state it is.
    pub other: [u8; 12],
}

impl Encode for Stateid {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        to.u32(self.seqid)?;
        self.other.encode(to)
    }
}

impl Decode<'_> for Stateid {
    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, ReadError> {
        Ok(Self {
            seqid: from.u32(field)?,
            other: from.array(field)?,
        })
    }
}

/// What a [`Stateid`] stands for (RFC 8881, section 8.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateidKind {
    /// No state: I/O that is subject to every lock and share reservation.
    Anonymous,
    /// No state, and a READ that may go past locks; in other operations as the anonymous one.
    ReadBypass,
    /// The current stateid of the COMPOUND (section 16.2.3.1.2).
    Current,
    /// None: what the current stateid is set to when there is none.
    Invalid,
    /// Reserved: `other` is all zeroes or all ones with another seqid. NFS4ERR_BAD_STATEID.
    Reserved,
    /// A state that the server may have made.
    Ordinary,
}

impl Stateid {
    /// Bytes on the wire.
    pub const SIZE_BYTES: usize = 16;
    /// The anonymous stateid.
    pub const ANONYMOUS: Self = Self {
        seqid: 0,
        other: [0; 12],
    };
    /// The READ bypass stateid.
    pub const READ_BYPASS: Self = Self {
        seqid: u32::MAX,
        other: [0xFF; 12],
    };
    /// The current stateid.
    pub const CURRENT: Self = Self {
        seqid: 1,
        other: [0; 12],
    };
    /// The invalid stateid.
    pub const INVALID: Self = Self {
        seqid: u32::MAX,
        other: [0; 12],
    };

    /// Which of the special values this is, or that it is none.
    #[must_use]
    pub fn kind(&self) -> StateidKind {
        match *self {
            Self::ANONYMOUS => StateidKind::Anonymous,
            Self::READ_BYPASS => StateidKind::ReadBypass,
            Self::CURRENT => StateidKind::Current,
            Self::INVALID => StateidKind::Invalid,
            Self {
                other: [0, ..] | [0xFF, ..],
                ..
            } if self.other == [0; 12] || self.other == [0xFF; 12] => StateidKind::Reserved,
            _ => StateidKind::Ordinary,
        }
    }
}

/// A filehandle of up to 128 bytes (nfs_fh4; RFC 8881, section 4).
pub type Filehandle<'a> = Opaque<'a, FILEHANDLE_BYTES_MAX>;

/// What a client, a lock owner or an open owner calls itself, or a server its scope: up to 1024
/// bytes.
pub type OwnerBytes<'a> = Opaque<'a, OWNER_BYTES_MAX>;

/// A name in a directory as it arrived, not looked at yet (component4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Component<'a>(pub &'a [u8]);

impl<'a> Component<'a> {
    /// The name, when it can be one: neither empty nor "." or "..", of at most
    /// [`NAME_BYTES_MAX`] bytes, without "/" and NUL. UTF-8 is not asked for, as file systems do
    /// not (RFC 8881, section 14.4 with FSCHARSET_CAP4_CONTAINS_NON_UTF8).
    ///
    /// # Errors
    /// What the operation is to answer: NFS4ERR_INVAL for no bytes (section 15.1.1),
    /// NFS4ERR_NAMETOOLONG, NFS4ERR_BADCHAR, NFS4ERR_BADNAME (section 15.1.7).
    pub fn name(&self) -> Result<&'a [u8], Status> {
        match self.0 {
            [] => Err(Status::INVAL),
            long if long.len() > NAME_BYTES_MAX => Err(Status::NAMETOOLONG),
            odd if odd.contains(&b'/') || odd.contains(&0) => Err(Status::BADCHAR),
            b"." | b".." => Err(Status::BADNAME),
            name => Ok(name),
        }
    }
}

impl fmt::Display for Component<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for Component<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Encode for Component<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        to.opaque(self.0)
    }
}

impl<'a> Decode<'a> for Component<'a> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        // Bounded by the message: a name that is too long has a status of its own.
        from.opaque(field, u32::MAX).map(Self)
    }
}

/// Seconds and nanoseconds since 1970-01-01T00:00:00Z (nfstime4; RFC 8881, section 3.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds to be added, less than [`Time::NANOSECONDS`] in a valid time.
    pub nseconds: u32,
}

impl Time {
    /// Nanoseconds in a second: values from here on are NFS4ERR_INVAL (RFC 8881, section 3.3).
    pub const NANOSECONDS: u32 = 1_000_000_000;
}

impl Encode for Time {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        to.i64(self.seconds)?;
        to.u32(self.nseconds)
    }
}

impl Decode<'_> for Time {
    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, ReadError> {
        Ok(Self {
            seconds: from.i64(field)?,
            nseconds: from.u32(field)?,
        })
    }
}

xdr_struct! {
    /// A directory's change attribute around an operation that changed it (change_info4; RFC 8881,
    /// section 3.3).
    pub struct ChangeInfo {
        /// Whether both values were taken atomically with the change.
        pub atomic: bool,
        /// Before.
        pub before: u64,
        /// After.
        pub after: u64,
    }
}

xdr_struct! {
    /// A file system: two numbers that no other file system of the server has (fsid4; RFC 8881,
    /// section 3.3).
    pub struct Fsid {
        /// The first number.
        pub major: u64,
        /// The second number.
        pub minor: u64,
    }
}

xdr_struct! {
    /// The numbers of a device (specdata4; RFC 8881, section 5.8.2).
    pub struct DeviceNumbers {
        /// Major (specdata1).
        pub major: u32,
        /// Minor (specdata2).
        pub minor: u32,
    }
}

xdr_struct! {
    /// Bits of the mode to be set, and which ones (mode_masked4; RFC 8881, section 6.2.5).
    pub struct MaskedMode {
        /// The values of the bits.
        pub value_to_set: u32,
        /// The bits that are set or reset.
        pub mask_bits: u32,
    }
}

xdr_struct! {
    /// A mode and the umask to apply to it where no default ACL is inherited (mode_umask4; RFC
    /// 8275, section 5).
    pub struct ModeUmask {
        /// The mode.
        pub mode: u32,
        /// The bits that the client's umask takes away.
        pub umask: u32,
    }
}

xdr_enum! {
    /// The type of a file (nfs_ftype4; RFC 8881, section 5.8.1.2).
    pub enum FileType {
        /// A regular file.
        Regular = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        Block = 3,
        /// A character device.
        Character = 4,
        /// A symbolic link.
        SymbolicLink = 5,
        /// A socket.
        Socket = 6,
        /// A FIFO.
        Fifo = 7,
        /// A named attribute directory.
        AttributeDirectory = 8,
        /// A named attribute.
        NamedAttribute = 9,
    }
}

xdr_enum! {
    /// How stable written data is (stable_how4; RFC 8881, section 18.32.1). The order is that of
    /// strength.
    pub enum StableHow {
        /// In memory, until COMMIT.
        Unstable = 0,
        /// Data is on stable storage, and what of the metadata is needed to read it.
        DataSync = 1,
        /// Data and all metadata are on stable storage.
        FileSync = 2,
    }
}

xdr_enum! {
    /// How change attributes of a file are to be compared (change_attr_type4; RFC 7862, section
    /// 12.2.3).
    pub enum ChangeAttrType {
        /// Larger is later.
        MonotonicIncr = 0,
        /// Larger by one for every change.
        VersionCounter = 1,
        /// As before, outside of pNFS.
        VersionCounterNoPnfs = 2,
        /// The time of the last change of the metadata.
        TimeMetadata = 3,
        /// Only equality means something.
        Undefined = 4,
    }
}

/// A user or a group: by number, as a string of digits (RFC 8881, section 5.9), or by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Principal<'a> {
    /// UID or GID.
    Id(u32),
    /// "user@domain", or whatever else is not a number.
    Name(&'a [u8]),
}

impl<'a> Principal<'a> {
    /// What a string stands for. A number has no leading zeroes (RFC 8881, section 5.9) and fits 32
    /// bits.
    #[must_use]
    pub fn parse(text: &'a [u8]) -> Self {
        let is_number = match text {
            [] => false,
            [b'0'] => true,
            [first, ..] => {
                *first != b'0'
                    && text.len() <= PRINCIPAL_DIGITS_MAX
                    && text.iter().all(u8::is_ascii_digit)
            }
        };
        let id = text.iter().try_fold(0_u32, |id, digit| {
            id.checked_mul(10)?
                .checked_add(u32::from(digit.wrapping_sub(b'0')))
        });
        match id {
            Some(id) if is_number => Self::Id(id),
            _ => Self::Name(text),
        }
    }

    /// The number.
    ///
    /// # Errors
    /// NFS4ERR_BADOWNER for a name, where names are not translated (RFC 8881, section 5.9).
    pub const fn id(&self) -> Result<u32, Status> {
        match self {
            Self::Id(id) => Ok(*id),
            Self::Name(_) => Err(Status::BADOWNER),
        }
    }
}

impl Encode for Principal<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        match *self {
            Self::Name(name) => to.opaque(name),
            Self::Id(mut id) => {
                let mut digits = [b'0'; PRINCIPAL_DIGITS_MAX];
                let mut first = digits.len().saturating_sub(1);
                for (at, digit) in digits.iter_mut().enumerate().rev() {
                    // A remainder of ten is a digit.
                    *digit = b'0'.saturating_add(u8::try_from(id % 10).unwrap_or(0));
                    first = at;
                    id /= 10;
                    if id == 0 {
                        break;
                    }
                }
                to.opaque(digits.get(first..).unwrap_or_default())
            }
        }
    }
}

impl<'a> Decode<'a> for Principal<'a> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        Unbounded::decode(from, field).map(|text| Self::parse(text.0))
    }
}

xdr_struct! {
    /// A client as it calls itself, and which instance of it (client_owner4; RFC 8881, section
    /// 2.4).
    pub struct ClientOwner<'a> {
        /// Changes when the client restarts.
        pub verifier: Verifier,
        /// Stays the same.
        pub ownerid: OwnerBytes<'a>,
    }
}

xdr_struct! {
    /// A server as it calls itself (server_owner4; RFC 8881, section 2.5).
    pub struct ServerOwner<'a> {
        /// Differs between servers whose sessions cannot be shared.
        pub minor_id: u64,
        /// The same for servers whose client IDs can be shared.
        pub major_id: OwnerBytes<'a>,
    }
}

xdr_struct! {
    /// The owner of an open or a lock (state_owner4, open_owner4, lock_owner4; RFC 8881, section
    /// 3.3).
    pub struct StateOwner<'a> {
        /// Not to be looked at by a server with sessions, where the client ID is the session's
        /// (RFC 8881, section 18.16.3).
        pub clientid: ClientId,
        /// The owner, among those of the client.
        pub owner: OwnerBytes<'a>,
    }
}

xdr_struct! {
    /// What an implementation says of itself (nfs_impl_id4; RFC 8881, section 3.3).
    pub struct ImplementationId<'a> {
        /// The domain of the implementation.
        pub domain: Unbounded<'a>,
        /// Its name and version.
        pub name: Unbounded<'a>,
        /// When it was made.
        pub date: Time,
    }
}

xdr_struct! {
    /// A network address (netaddr4; RFC 8881, section 3.3).
    pub struct NetAddr<'a> {
        /// The network identifier: "tcp", "rdma6" …
        pub netid: Unbounded<'a>,
        /// The universal address.
        pub addr: Unbounded<'a>,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn special_stateids_are_told_by_both_fields() {
        // RFC 8881, section 8.2.3.
        let zeros = |seqid| Stateid {
            seqid,
            other: [0; 12],
        };
        let ones = |seqid| Stateid {
            seqid,
            other: [0xFF; 12],
        };
        assert_eq!(zeros(0).kind(), StateidKind::Anonymous);
        assert_eq!(zeros(1).kind(), StateidKind::Current);
        assert_eq!(zeros(u32::MAX).kind(), StateidKind::Invalid);
        assert_eq!(ones(u32::MAX).kind(), StateidKind::ReadBypass);
        for reserved in [zeros(2), zeros(u32::MAX - 1), ones(0), ones(1)] {
            assert_eq!(reserved.kind(), StateidKind::Reserved, "{reserved:?}");
        }
        let mut other = [0; 12];
        other[11] = 1;
        assert_eq!(Stateid { seqid: 0, other }.kind(), StateidKind::Ordinary);
        other = [0xFF; 12];
        other[5] = 0;
        assert_eq!(
            Stateid {
                seqid: u32::MAX,
                other
            }
            .kind(),
            StateidKind::Ordinary
        );
    }

    #[test]
    fn a_component_is_a_name_or_says_why_not() {
        let name = |bytes| Component(bytes).name();
        assert_eq!(name(b""), Err(Status::INVAL));
        assert_eq!(name(&[b'a'; 256]), Err(Status::NAMETOOLONG));
        assert_eq!(name(&[b'a'; 255]), Ok([b'a'; 255].as_slice()));
        assert_eq!(name(b"a/b"), Err(Status::BADCHAR));
        assert_eq!(name(b"a\0"), Err(Status::BADCHAR));
        assert_eq!(name(b"."), Err(Status::BADNAME));
        assert_eq!(name(b".."), Err(Status::BADNAME));
        assert_eq!(name(b"..."), Ok(b"...".as_slice()));
        assert_eq!(name(b"\xFF\xFE"), Ok(b"\xFF\xFE".as_slice()));
        assert_eq!(Component(b"a\x1b[0m\xff").to_string(), r"a\x1b[0m\xff");
    }

    #[test]
    fn numbers_of_principals_have_one_form() {
        let encoded = |id| {
            let mut buffer = [0; 16];
            let mut writer = Writer::new(&mut buffer);
            Principal::Id(id).encode(&mut writer).unwrap();
            let text = Reader::new(writer.written())
                .opaque("owner", 10)
                .unwrap()
                .to_vec();
            std::string::String::from_utf8(text).unwrap()
        };
        for id in [0, 1, 9, 10, 65_534, 1_000_000_000, u32::MAX] {
            assert_eq!(encoded(id), id.to_string());
            assert_eq!(Principal::parse(encoded(id).as_bytes()), Principal::Id(id));
        }
        for name in [
            "",
            "00",
            "01",
            "4294967296",
            "99999999999",
            "-1",
            "+1",
            "root",
            "1 ",
            "1@x",
        ] {
            assert_eq!(
                Principal::parse(name.as_bytes()),
                Principal::Name(name.as_bytes())
            );
        }
    }
}
