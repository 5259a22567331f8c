//! Results of the procedures, by the sections of RFC 1813 that describe them.

use crate::codec::{Chain, DataItem, Decode, Encode, ReadError, Reader, WriteError, Writer};
use crate::macros::{xdr_flags, xdr_struct};
use crate::v3::status::Status;
use crate::v3::types::{
    Attributes, FileName, Filehandle, PostOpAttr, PostOpFh, StableHow, Time, Verifier, WccData,
};

/// A status and what comes with it: `T` with NFS3_OK, `F` with any other.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Outcome<T, F> {
    /// NFS3_OK.
    Ok(T),
    /// It failed.
    Failed {
        /// The status, which is not NFS3_OK.
        status: Status,
        /// What comes with it.
        resfail: F,
    },
}

impl<T, F> Outcome<T, F> {
    /// The status.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Self::Ok(_) => Status::OK,
            Self::Failed { status, .. } => *status,
        }
    }
}

impl<T: Encode, F: Encode> Encode for Outcome<T, F> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        self.status().encode(to)?;
        match self {
            Self::Ok(value) => value.encode(to),
            Self::Failed { resfail, .. } => resfail.encode(to),
        }
    }
}

impl<'a, T: Decode<'a>, F: Decode<'a>> Decode<'a> for Outcome<T, F> {
    fn decode(from: &mut Reader<'a>, _field: &'static str) -> Result<Self, ReadError> {
        let status = Status::decode(from, "status")?;
        if status.is_ok() {
            return T::decode(from, "resok").map(Self::Ok);
        }
        Ok(Self::Failed {
            status,
            resfail: F::decode(from, "resfail")?,
        })
    }
}

/// Nothing (void).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Void;

impl Encode for Void {
    fn encode(&self, _to: &mut Writer<'_>) -> Result<(), WriteError> {
        Ok(())
    }
}

impl Decode<'_> for Void {
    fn decode(_from: &mut Reader<'_>, _field: &'static str) -> Result<Self, ReadError> {
        Ok(Self)
    }
}

/// GETATTR (section 3.3.1).
pub type GetAttrResult = Outcome<Attributes, Void>;
/// SETATTR, REMOVE and RMDIR (sections 3.3.2, 3.3.12, 3.3.13).
pub type WccResult = Outcome<WccData, WccData>;
/// LOOKUP (section 3.3.3).
pub type LookupResult<'a> = Outcome<LookupOk<'a>, PostOpAttr>;
/// ACCESS (section 3.3.4).
pub type AccessResult = Outcome<AccessOk, PostOpAttr>;
/// READLINK (section 3.3.5).
pub type ReadLinkResult<'a> = Outcome<ReadLinkOk<'a>, PostOpAttr>;
/// READ (section 3.3.6).
pub type ReadResult<'a> = Outcome<ReadOk<'a>, PostOpAttr>;
/// WRITE (section 3.3.7).
pub type WriteResult = Outcome<WriteOk, WccData>;
/// CREATE, MKDIR, SYMLINK and MKNOD (sections 3.3.8 to 3.3.11).
pub type CreateResult<'a> = Outcome<CreateOk<'a>, WccData>;
/// RENAME (section 3.3.14).
pub type RenameResult = Outcome<RenameWcc, RenameWcc>;
/// LINK (section 3.3.15).
pub type LinkResult = Outcome<LinkWcc, LinkWcc>;
/// READDIR (section 3.3.16).
pub type ReadDirResult<'a> = Outcome<ReadDirOk<'a>, PostOpAttr>;
/// READDIRPLUS (section 3.3.17).
pub type ReadDirPlusResult<'a> = Outcome<ReadDirPlusOk<'a>, PostOpAttr>;
/// FSSTAT (section 3.3.18).
pub type FsStatResult = Outcome<FsStatOk, PostOpAttr>;
/// FSINFO (section 3.3.19).
pub type FsInfoResult = Outcome<FsInfoOk, PostOpAttr>;
/// PATHCONF (section 3.3.20).
pub type PathConfResult = Outcome<PathConfOk, PostOpAttr>;
/// COMMIT (section 3.3.21).
pub type CommitResult = Outcome<CommitOk, WccData>;

xdr_struct! {
    /// LOOKUP found it.
    pub struct LookupOk<'a> {
        /// The object.
        pub object: Filehandle<'a>,
        /// Its attributes.
        pub obj_attributes: PostOpAttr,
        /// Those of the directory.
        pub dir_attributes: PostOpAttr,
    }
}

xdr_struct! {
    /// ACCESS has looked.
    pub struct AccessOk {
        /// The object.
        pub obj_attributes: PostOpAttr,
        /// Those of the rights that there are.
        pub access: u32,
    }
}

xdr_struct! {
    /// READLINK has the text.
    pub struct ReadLinkOk<'a> {
        /// The link.
        pub symlink_attributes: PostOpAttr,
        /// The text, which can be reduced.
        pub data: DataItem<'a>,
    }
}

xdr_struct! {
    /// READ has the data.
    pub struct ReadOk<'a> {
        /// The file.
        pub file_attributes: PostOpAttr,
        /// Bytes, as many as there are in `data`.
        pub count: u32,
        /// Whether the data ends where the file does.
        pub eof: bool,
        /// The data, which can be reduced.
        pub data: DataItem<'a>,
    }
}

xdr_struct! {
    /// WRITE has written.
    pub struct WriteOk {
        /// The file.
        pub file_wcc: WccData,
        /// Bytes that were written.
        pub count: u32,
        /// How stable they are.
        pub committed: StableHow,
        /// Changes when unstable data may have been lost.
        pub verf: Verifier,
    }
}

xdr_struct! {
    /// Something was made.
    pub struct CreateOk<'a> {
        /// The object.
        pub obj: PostOpFh<'a>,
        /// Its attributes.
        pub obj_attributes: PostOpAttr,
        /// The directory.
        pub dir_wcc: WccData,
    }
}

xdr_struct! {
    /// The directories of RENAME.
    pub struct RenameWcc {
        /// The one it was in.
        pub fromdir_wcc: WccData,
        /// The one it is in.
        pub todir_wcc: WccData,
    }
}

xdr_struct! {
    /// The file and the directory of LINK.
    pub struct LinkWcc {
        /// The file.
        pub file_attributes: PostOpAttr,
        /// The directory.
        pub linkdir_wcc: WccData,
    }
}

xdr_struct! {
    /// An entry of READDIR (entry3).
    pub struct DirEntry<'a> {
        /// The number of the file.
        pub fileid: u64,
        /// The name.
        pub name: FileName<'a>,
        /// To go on behind it.
        pub cookie: u64,
    }
}

xdr_struct! {
    /// READDIR has entries.
    pub struct ReadDirOk<'a> {
        /// The directory.
        pub dir_attributes: PostOpAttr,
        /// Goes with the cookies.
        pub cookieverf: Verifier,
        /// The entries.
        pub entries: Chain<'a, DirEntry<'a>>,
        /// Whether they end where the directory does.
        pub eof: bool,
    }
}

xdr_struct! {
    /// An entry of READDIRPLUS (entryplus3).
    pub struct DirEntryPlus<'a> {
        /// As of READDIR.
        pub entry: DirEntry<'a>,
        /// The attributes.
        pub name_attributes: PostOpAttr,
        /// The filehandle.
        pub name_handle: PostOpFh<'a>,
    }
}

xdr_struct! {
    /// READDIRPLUS has entries.
    pub struct ReadDirPlusOk<'a> {
        /// The directory.
        pub dir_attributes: PostOpAttr,
        /// Goes with the cookies.
        pub cookieverf: Verifier,
        /// The entries.
        pub entries: Chain<'a, DirEntryPlus<'a>>,
        /// Whether they end where the directory does.
        pub eof: bool,
    }
}

xdr_struct! {
    /// FSSTAT: what changes of a file system.
    pub struct FsStatOk {
        /// The object.
        pub obj_attributes: PostOpAttr,
        /// Bytes.
        pub tbytes: u64,
        /// Bytes that are free.
        pub fbytes: u64,
        /// Bytes that this user can use.
        pub abytes: u64,
        /// Files there can be.
        pub tfiles: u64,
        /// Files that can be made.
        pub ffiles: u64,
        /// Files that this user can make.
        pub afiles: u64,
        /// Seconds for which this is not expected to change.
        pub invarsec: u32,
    }
}

xdr_flags! {
    /// Properties of a file system (section 3.3.19).
    pub struct FsProperties {
        /// Hard links.
        const LINK = 0x01;
        /// Symbolic links.
        const SYMLINK = 0x02;
        /// PATHCONF is the same for every object.
        const HOMOGENEOUS = 0x08;
        /// SETATTR can set times.
        const CANSETTIME = 0x10;
    }
}

xdr_struct! {
    /// FSINFO: what does not change of a file system.
    pub struct FsInfoOk {
        /// The object.
        pub obj_attributes: PostOpAttr,
        /// Most bytes of a READ.
        pub rtmax: u32,
        /// Preferred bytes of a READ.
        pub rtpref: u32,
        /// Of which the bytes of a READ should be a multiple.
        pub rtmult: u32,
        /// Most bytes of a WRITE.
        pub wtmax: u32,
        /// Preferred bytes of a WRITE.
        pub wtpref: u32,
        /// Of which the bytes of a WRITE should be a multiple.
        pub wtmult: u32,
        /// Preferred bytes of a READDIR.
        pub dtpref: u32,
        /// Bytes of the largest file.
        pub maxfilesize: u64,
        /// The granularity of times.
        pub time_delta: Time,
        /// Properties.
        pub properties: FsProperties,
    }
}

xdr_struct! {
    /// PATHCONF: what POSIX asks.
    pub struct PathConfOk {
        /// The object.
        pub obj_attributes: PostOpAttr,
        /// Most links of a file.
        pub linkmax: u32,
        /// Bytes of the longest name.
        pub name_max: u32,
        /// Whether a name that is too long is an error.
        pub no_trunc: bool,
        /// Whether only the privileged give files away.
        pub chown_restricted: bool,
        /// Whether names are compared without case.
        pub case_insensitive: bool,
        /// Whether the case of names is kept.
        pub case_preserving: bool,
    }
}

xdr_struct! {
    /// COMMIT has committed.
    pub struct CommitOk {
        /// The file.
        pub file_wcc: WccData,
        /// Changes when unstable data may have been lost.
        pub verf: Verifier,
    }
}
