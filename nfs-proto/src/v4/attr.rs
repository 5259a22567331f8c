//! File attributes: their numbers, their values, and fattr4, which is a set of numbers and the
//! values in the order of the numbers.
//!
//! Source: RFC 8881, section 5 and 6.2; RFC 7862, section 12; RFC 8275 (mode_umask); RFC 8276
//! (xattr_support); RFC 9754 (83 to 86).

use crate::codec::{Decode, Encode, List, ReadError, Reader, Unbounded, WriteError, Writer};
use crate::v4::bitmap::Bitmap;
use crate::v4::status::Status;
use crate::v4::types::{
    ChangeAttrType, DeviceNumbers, FileType, Filehandle, Fsid, Principal, Time,
};

mod set;

pub use set::{SetAttributes, SetError, TimeToSet};

/// The number of an attribute.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttrNumber(pub u32);

macro_rules! numbers {
    ($( $number:literal $name:ident $text:literal, )+) => {
        impl AttrNumber {
            $( #[doc = concat!($text, " (`", stringify!($number), "`).")]
               pub const $name: Self = Self($number); )+

            /// Every attribute, in the order of the numbers.
            pub const NAMED: &'static [Self] = &[$( Self::$name, )+];

            /// The name in the RFC, or `None` for a number it does not define.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $number => Some($text), )+
                    _ => None,
                }
            }
        }
    };
}

numbers! {
    0 SUPPORTED_ATTRS "supported_attrs",
    1 TYPE "type",
    2 FH_EXPIRE_TYPE "fh_expire_type",
    3 CHANGE "change",
    4 SIZE "size",
    5 LINK_SUPPORT "link_support",
    6 SYMLINK_SUPPORT "symlink_support",
    7 NAMED_ATTR "named_attr",
    8 FSID "fsid",
    9 UNIQUE_HANDLES "unique_handles",
    10 LEASE_TIME "lease_time",
    11 RDATTR_ERROR "rdattr_error",
    12 ACL "acl",
    13 ACLSUPPORT "aclsupport",
    14 ARCHIVE "archive",
    15 CANSETTIME "cansettime",
    16 CASE_INSENSITIVE "case_insensitive",
    17 CASE_PRESERVING "case_preserving",
    18 CHOWN_RESTRICTED "chown_restricted",
    19 FILEHANDLE "filehandle",
    20 FILEID "fileid",
    21 FILES_AVAIL "files_avail",
    22 FILES_FREE "files_free",
    23 FILES_TOTAL "files_total",
    24 FS_LOCATIONS "fs_locations",
    25 HIDDEN "hidden",
    26 HOMOGENEOUS "homogeneous",
    27 MAXFILESIZE "maxfilesize",
    28 MAXLINK "maxlink",
    29 MAXNAME "maxname",
    30 MAXREAD "maxread",
    31 MAXWRITE "maxwrite",
    32 MIMETYPE "mimetype",
    33 MODE "mode",
    34 NO_TRUNC "no_trunc",
    35 NUMLINKS "numlinks",
    36 OWNER "owner",
    37 OWNER_GROUP "owner_group",
    38 QUOTA_AVAIL_HARD "quota_avail_hard",
    39 QUOTA_AVAIL_SOFT "quota_avail_soft",
    40 QUOTA_USED "quota_used",
    41 RAWDEV "rawdev",
    42 SPACE_AVAIL "space_avail",
    43 SPACE_FREE "space_free",
    44 SPACE_TOTAL "space_total",
    45 SPACE_USED "space_used",
    46 SYSTEM "system",
    47 TIME_ACCESS "time_access",
    48 TIME_ACCESS_SET "time_access_set",
    49 TIME_BACKUP "time_backup",
    50 TIME_CREATE "time_create",
    51 TIME_DELTA "time_delta",
    52 TIME_METADATA "time_metadata",
    53 TIME_MODIFY "time_modify",
    54 TIME_MODIFY_SET "time_modify_set",
    55 MOUNTED_ON_FILEID "mounted_on_fileid",
    56 DIR_NOTIF_DELAY "dir_notif_delay",
    57 DIRENT_NOTIF_DELAY "dirent_notif_delay",
    58 DACL "dacl",
    59 SACL "sacl",
    60 CHANGE_POLICY "change_policy",
    61 FS_STATUS "fs_status",
    62 FS_LAYOUT_TYPES "fs_layout_types",
    63 LAYOUT_HINT "layout_hint",
    64 LAYOUT_TYPES "layout_types",
    65 LAYOUT_BLKSIZE "layout_blksize",
    66 LAYOUT_ALIGNMENT "layout_alignment",
    67 FS_LOCATIONS_INFO "fs_locations_info",
    68 MDSTHRESHOLD "mdsthreshold",
    69 RETENTION_GET "retention_get",
    70 RETENTION_SET "retention_set",
    71 RETENTEVT_GET "retentevt_get",
    72 RETENTEVT_SET "retentevt_set",
    73 RETENTION_HOLD "retention_hold",
    74 MODE_SET_MASKED "mode_set_masked",
    75 SUPPATTR_EXCLCREAT "suppattr_exclcreat",
    76 FS_CHARSET_CAP "fs_charset_cap",
    77 CLONE_BLKSIZE "clone_blksize",
    78 SPACE_FREED "space_freed",
    79 CHANGE_ATTR_TYPE "change_attr_type",
    80 SEC_LABEL "sec_label",
    81 MODE_UMASK "mode_umask",
    82 XATTR_SUPPORT "xattr_support",
    83 OFFLINE "offline",
    84 TIME_DELEG_ACCESS "time_deleg_access",
    85 TIME_DELEG_MODIFY "time_deleg_modify",
    86 OPEN_ARGUMENTS "open_arguments",
}

impl core::fmt::Display for AttrNumber {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl core::fmt::Debug for AttrNumber {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {self}", self.0)
    }
}

/// Attributes as they are on the wire: what is there, and the values, not looked at yet (fattr4;
/// RFC 8881, section 3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fattr<'a> {
    /// The attributes whose values follow.
    pub mask: Bitmap,
    /// The values, in the order of the numbers.
    pub values: Unbounded<'a>,
}

impl Encode for Fattr<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        self.mask.encode(to)?;
        self.values.encode(to)
    }
}

impl<'a> Decode<'a> for Fattr<'a> {
    fn decode(from: &mut Reader<'a>, _field: &'static str) -> Result<Self, ReadError> {
        Ok(Self {
            mask: Decode::decode(from, "attrmask")?,
            values: Decode::decode(from, "attr_vals")?,
        })
    }
}

/// Declares a structure with a place for the value of each of some attributes, in the order of
/// their numbers, and what takes its values to and from [`Fattr`].
macro_rules! attributes {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $number:ident $field:ident: $type:ty = $doc:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Debug, Default)]
        pub struct $name<'a> {
            $( #[doc = $doc] pub $field: Option<$type>, )+
        }

        impl<'a> $name<'a> {
            /// Every attribute that has a place here.
            #[must_use]
            pub fn known() -> $crate::v4::bitmap::Bitmap {
                [$( $crate::v4::attr::AttrNumber::$number.0, )+].into_iter().collect()
            }

            /// The attributes that have a value here.
            #[must_use]
            pub fn present(&self) -> $crate::v4::bitmap::Bitmap {
                let mut present = $crate::v4::bitmap::Bitmap::EMPTY;
                $( if self.$field.is_some() {
                    present.insert($crate::v4::attr::AttrNumber::$number.0);
                } )+
                present
            }

            /// Encodes the values of `mask` that are present as fattr4.
            fn encode_masked(
                &self,
                mask: $crate::v4::bitmap::Bitmap,
                to: &mut $crate::codec::Writer<'_>,
            ) -> Result<(), $crate::codec::WriteError> {
                let mask = mask.and(&self.present());
                $crate::codec::Encode::encode(&mask, to)?;
                let length = to.open_u32()?;
                let start = to.offset();
                $( if mask.contains($crate::v4::attr::AttrNumber::$number.0)
                    && let Some(value) = &self.$field
                {
                    $crate::codec::Encode::encode(value, to)?;
                } )+
                let bytes = to.offset().saturating_sub(start);
                to.fill_u32(length, u32::try_from(bytes).unwrap_or(u32::MAX));
                Ok(())
            }

            /// Decodes values of attributes that all have a place here.
            fn decode_known(
                attributes: &$crate::v4::attr::Fattr<'a>,
            ) -> Result<Self, $crate::codec::ReadError> {
                let mut from = $crate::codec::Reader::new(attributes.values.0);
                let mut decoded = Self::default();
                $( if attributes.mask.contains($crate::v4::attr::AttrNumber::$number.0) {
                    decoded.$field =
                        Some($crate::codec::Decode::decode(&mut from, stringify!($field))?);
                } )+
                from.finish()?;
                Ok(decoded)
            }
        }
    };
}
pub(crate) use attributes;

attributes! {
    /// Values of attributes that can be read. Those without a place here (ACLs, locations,
    /// layouts, retention, security labels) can only be absent.
    pub struct Attributes {
        SUPPORTED_ATTRS supported_attrs: Bitmap = "The attributes that the file system supports.",
        TYPE file_type: FileType = "The type.",
        FH_EXPIRE_TYPE fh_expire_type: u32 = "When filehandles expire: 0 for never (FH4_PERSISTENT).",
        CHANGE change: u64 = "Differs after every change of data or metadata.",
        SIZE size: u64 = "Bytes.",
        LINK_SUPPORT link_support: bool = "Whether there are hard links.",
        SYMLINK_SUPPORT symlink_support: bool = "Whether there are symbolic links.",
        NAMED_ATTR named_attr: bool = "Whether this object has named attributes.",
        FSID fsid: Fsid = "The file system.",
        UNIQUE_HANDLES unique_handles: bool = "Whether two filehandles are always two objects.",
        LEASE_TIME lease_time: u32 = "Seconds of a lease.",
        RDATTR_ERROR rdattr_error: Status = "Why READDIR has no attributes of this entry.",
        ACLSUPPORT aclsupport: u32 = "Kinds of ACEs: 0 for none.",
        CANSETTIME cansettime: bool = "Whether times can be set.",
        CASE_INSENSITIVE case_insensitive: bool = "Whether names are compared without case.",
        CASE_PRESERVING case_preserving: bool = "Whether the case of names is kept.",
        CHOWN_RESTRICTED chown_restricted: bool = "Whether only the privileged give files away.",
        FILEHANDLE filehandle: Filehandle<'a> = "The filehandle.",
        FILEID fileid: u64 = "The number of the file in its file system.",
        FILES_AVAIL files_avail: u64 = "Files that can be made by this user.",
        FILES_FREE files_free: u64 = "Files that can be made.",
        FILES_TOTAL files_total: u64 = "Files there can be.",
        HOMOGENEOUS homogeneous: bool = "Whether these attributes are the file system's.",
        MAXFILESIZE maxfilesize: u64 = "Bytes of the largest file.",
        MAXLINK maxlink: u32 = "Most links of a file.",
        MAXNAME maxname: u32 = "Bytes of the longest name.",
        MAXREAD maxread: u64 = "Most bytes of a READ.",
        MAXWRITE maxwrite: u64 = "Most bytes of a WRITE.",
        MODE mode: u32 = "The mode: its low 12 bits.",
        NO_TRUNC no_trunc: bool = "Whether a name that is too long is an error.",
        NUMLINKS numlinks: u32 = "Hard links.",
        OWNER owner: Principal<'a> = "The user.",
        OWNER_GROUP owner_group: Principal<'a> = "The group.",
        RAWDEV rawdev: DeviceNumbers = "The numbers of a device.",
        SPACE_AVAIL space_avail: u64 = "Bytes that this user can use.",
        SPACE_FREE space_free: u64 = "Bytes that are free.",
        SPACE_TOTAL space_total: u64 = "Bytes of the file system.",
        SPACE_USED space_used: u64 = "Bytes allocated to this object.",
        TIME_ACCESS time_access: Time = "When it was last read.",
        TIME_CREATE time_create: Time = "When it was made.",
        TIME_DELTA time_delta: Time = "The granularity of times.",
        TIME_METADATA time_metadata: Time = "When its metadata last changed.",
        TIME_MODIFY time_modify: Time = "When its data last changed.",
        MOUNTED_ON_FILEID mounted_on_fileid: u64 = "The fileid of the directory that is mounted on.",
        FS_LAYOUT_TYPES fs_layout_types: List<'a, u32> = "Layout types of the file system.",
        SUPPATTR_EXCLCREAT suppattr_exclcreat: Bitmap = "What EXCLUSIVE4_1 can set.",
        FS_CHARSET_CAP fs_charset_cap: u32 = "Character sets of names: bit 0 for any bytes.",
        CLONE_BLKSIZE clone_blksize: u32 = "The granularity of CLONE in bytes.",
        SPACE_FREED space_freed: u64 = "Bytes that removing this object frees.",
        CHANGE_ATTR_TYPE change_attr_type: ChangeAttrType = "How to compare change attributes.",
        XATTR_SUPPORT xattr_support: bool = "Whether there are extended attributes.",
    }
}

impl<'a> Attributes<'a> {
    /// Encodes those of the requested values that are present, as fattr4. What is requested and
    /// absent is left out (RFC 8881, section 18.7.3).
    ///
    /// # Errors
    /// They do not fit; a part of them may have been written.
    pub fn encode_requested(
        &self,
        requested: &Bitmap,
        to: &mut Writer<'_>,
    ) -> Result<(), WriteError> {
        self.encode_masked(*requested, to)
    }

    /// Decodes the values of a reply.
    ///
    /// # Errors
    /// One is malformed or has no place here, or bytes follow the last.
    pub fn decode_values(attributes: &Fattr<'a>) -> Result<Self, ReadError> {
        let unknown = attributes.mask.without(&Self::known());
        if let Some(number) = unknown.iter().next() {
            let from = Reader::new(attributes.values.0);
            return Err(from.invalid("attrmask", number.into(), "attributes with a place"));
        }
        Self::decode_known(attributes)
    }
}

/// A bit of fs_charset_cap: names can have any bytes (RFC 8881, section 14.4).
pub const FS_CHARSET_CAP_CONTAINS_NON_UTF8: u32 = 1;
/// A bit of fs_charset_cap: names are UTF-8 alone (RFC 8881, section 14.4).
pub const FS_CHARSET_CAP_ALLOWS_ONLY_UTF8: u32 = 2;
