//! Attributes that a client sets, with SETATTR, CREATE and OPEN.

use crate::codec::{Encode, ReadError, WriteError, Writer};
use crate::macros::xdr_union;
use crate::v4::attr::{AttrNumber, Fattr, attributes};
use crate::v4::bitmap::Bitmap;
use crate::v4::status::Status;
use crate::v4::types::{MaskedMode, ModeUmask, Principal, Time};

xdr_union! {
    /// A time to be set (settime4; RFC 8881, section 3.3).
    pub enum TimeToSet {
        /// The server's time when it carries out the operation.
        Server = 0,
        /// This time.
        Client(Time) = 1,
    }
}

/// Why attributes cannot be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetError {
    /// The values are not what the mask says.
    #[error("the values of attributes are malformed, answer NFS4ERR_BADXDR: {0}")]
    Malformed(#[from] ReadError),
    /// An attribute that this file system does not have.
    #[error("attribute {0} is to be set, expected supported ones: answer NFS4ERR_ATTRNOTSUPP")]
    Unsupported(AttrNumber),
    /// An attribute with a number above those that a [`Bitmap`] keeps.
    #[error(
        "an attribute above number 95 is to be set, expected supported ones: answer \
         NFS4ERR_ATTRNOTSUPP"
    )]
    Unknown,
    /// An attribute that can only be read.
    #[error("attribute {0} is to be set, expected ones that can be: answer NFS4ERR_INVAL")]
    ReadOnly(AttrNumber),
    /// A value that the attribute cannot have.
    #[error("{attribute} is to be {value}, expected {expected}: answer NFS4ERR_INVAL")]
    Invalid {
        /// The attribute.
        attribute: AttrNumber,
        /// The value, or its part that is wrong.
        value: u32,
        /// What it may be.
        expected: &'static str,
    },
    /// Two attributes that set the same.
    #[error("both {0} and {1} are to be set, expected one of them: answer NFS4ERR_INVAL")]
    Both(AttrNumber, AttrNumber),
}

impl SetError {
    /// The status of the operation.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Self::Malformed(_) => Status::BADXDR,
            Self::Unsupported(_) | Self::Unknown => Status::ATTRNOTSUPP,
            Self::ReadOnly(_) | Self::Invalid { .. } | Self::Both(..) => Status::INVAL,
        }
    }
}

attributes! {
    /// Values to be set.
    pub struct SetAttributes {
        SIZE size: u64 = "Bytes.",
        MODE mode: u32 = "The mode: at most the low 12 bits.",
        OWNER owner: Principal<'a> = "The user.",
        OWNER_GROUP owner_group: Principal<'a> = "The group.",
        TIME_ACCESS_SET time_access_set: TimeToSet = "When it was last read.",
        TIME_CREATE time_create: Time = "When it was made.",
        TIME_MODIFY_SET time_modify_set: TimeToSet = "When its data last changed.",
        MODE_SET_MASKED mode_set_masked: MaskedMode = "Some bits of the mode.",
        MODE_UMASK mode_umask: ModeUmask = "The mode of a new object before the umask, and the umask.",
    }
}

/// As fattr4.
impl Encode for SetAttributes<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        self.encode_masked(self.present(), to)
    }
}

/// Bits that a mode can have (RFC 8881, section 6.2.4).
const MODE_BITS: u32 = 0o7777;

/// Attributes that can be set, by some server (RFC 8881, sections 5.6 and 5.7, access "W").
const WRITABLE: &[AttrNumber] = &[
    AttrNumber::SIZE,
    AttrNumber::ACL,
    AttrNumber::ARCHIVE,
    AttrNumber::HIDDEN,
    AttrNumber::MIMETYPE,
    AttrNumber::MODE,
    AttrNumber::OWNER,
    AttrNumber::OWNER_GROUP,
    AttrNumber::SYSTEM,
    AttrNumber::TIME_ACCESS_SET,
    AttrNumber::TIME_BACKUP,
    AttrNumber::TIME_CREATE,
    AttrNumber::TIME_MODIFY_SET,
    AttrNumber::DACL,
    AttrNumber::SACL,
    AttrNumber::LAYOUT_HINT,
    AttrNumber::RETENTION_SET,
    AttrNumber::RETENTEVT_SET,
    AttrNumber::RETENTION_HOLD,
    AttrNumber::MODE_SET_MASKED,
    AttrNumber::SEC_LABEL,
    AttrNumber::MODE_UMASK,
    AttrNumber::TIME_DELEG_ACCESS,
    AttrNumber::TIME_DELEG_MODIFY,
];

impl<'a> SetAttributes<'a> {
    /// The values of `attributes`, when all of them are `supported` and can be set.
    ///
    /// # Errors
    /// [`SetError`], with the status to be answered.
    pub fn parse(attributes: &Fattr<'a>, supported: &Bitmap) -> Result<Self, SetError> {
        let mask = &attributes.mask;
        let usable = supported.and(&Self::known());
        if let Some(number) = mask.without(&usable).iter().next() {
            let number = AttrNumber(number);
            let is_read_only = supported.contains(number.0) && !WRITABLE.contains(&number);
            return Err(if is_read_only {
                SetError::ReadOnly(number)
            } else {
                SetError::Unsupported(number)
            });
        }
        if mask.has_more() {
            return Err(SetError::Unknown);
        }
        let values = Self::decode_known(attributes)?;
        values.require_valid()?;
        Ok(values)
    }

    fn require_valid(&self) -> Result<(), SetError> {
        let masked = self
            .mode_set_masked
            .map(|mode| mode.value_to_set | mode.mask_bits);
        let with_umask = self.mode_umask.map(|mode| mode.mode | mode.umask);
        for (attribute, mode) in [
            (AttrNumber::MODE, self.mode),
            (AttrNumber::MODE_SET_MASKED, masked),
            (AttrNumber::MODE_UMASK, with_umask),
        ] {
            if let Some(value) = mode.filter(|mode| mode & !MODE_BITS != 0) {
                let expected = "at most 4095, the bits of a mode";
                return Err(SetError::Invalid {
                    attribute,
                    value,
                    expected,
                });
            }
        }
        // RFC 8881, section 6.2.5, and RFC 8275, section 5.
        let modes = [
            (AttrNumber::MODE, self.mode.is_some()),
            (AttrNumber::MODE_SET_MASKED, self.mode_set_masked.is_some()),
            (AttrNumber::MODE_UMASK, self.mode_umask.is_some()),
        ];
        let mut given = modes
            .into_iter()
            .filter_map(|(number, given)| given.then_some(number));
        if let (Some(one), Some(other)) = (given.next(), given.next()) {
            return Err(SetError::Both(one, other));
        }
        let client = |time: Option<TimeToSet>| match time {
            Some(TimeToSet::Client(time)) => Some(time),
            Some(TimeToSet::Server) | None => None,
        };
        for (attribute, time) in [
            (AttrNumber::TIME_ACCESS_SET, client(self.time_access_set)),
            (AttrNumber::TIME_CREATE, self.time_create),
            (AttrNumber::TIME_MODIFY_SET, client(self.time_modify_set)),
        ] {
            if let Some(time) = time.filter(|time| time.nseconds >= Time::NANOSECONDS) {
                return Err(SetError::Invalid {
                    attribute,
                    value: time.nseconds,
                    expected: "less than 1000000000 nanoseconds",
                });
            }
        }
        Ok(())
    }
}
