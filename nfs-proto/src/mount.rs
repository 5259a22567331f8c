//! MOUNT version 3: program 100005, which gives clients of NFS version 3 their first filehandle.
//!
//! Source: RFC 1813, section 5 (appendix I).

use crate::codec::{Chain, Decode, Encode, List, Opaque, ReadError, Reader, WriteError, Writer};
use crate::limits::{MOUNT_NAME_BYTES_MAX, MOUNT_PATH_BYTES_MAX};
use crate::macros::{open_enum, xdr_struct};
use crate::v3::types::Filehandle;

/// The program number.
pub const MOUNT_PROGRAM: u32 = 100_005;
/// The version.
pub const MOUNT_V3: u32 = 3;

open_enum! {
    /// The status of MNT (mountstat3).
    pub struct MountStatus {
        OK = 0 => "MNT3_OK",
        PERM = 1 => "MNT3ERR_PERM",
        NOENT = 2 => "MNT3ERR_NOENT",
        IO = 5 => "MNT3ERR_IO",
        ACCES = 13 => "MNT3ERR_ACCES",
        NOTDIR = 20 => "MNT3ERR_NOTDIR",
        INVAL = 22 => "MNT3ERR_INVAL",
        NAMETOOLONG = 63 => "MNT3ERR_NAMETOOLONG",
        NOTSUPP = 10_004 => "MNT3ERR_NOTSUPP",
        SERVERFAULT = 10_006 => "MNT3ERR_SERVERFAULT",
    }
}

/// The path of a directory (dirpath).
pub type DirPath<'a> = Opaque<'a, MOUNT_PATH_BYTES_MAX>;
/// The name of a host or a group (name).
pub type Name<'a> = Opaque<'a, MOUNT_NAME_BYTES_MAX>;

/// A call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MountCall<'a> {
    /// NULL (`0`).
    Null,
    /// MNT (`1`): a directory is to be mounted.
    Mnt(DirPath<'a>),
    /// DUMP (`2`): the list of clients and what they have mounted.
    Dump,
    /// UMNT (`3`): a directory was unmounted.
    Umnt(DirPath<'a>),
    /// UMNTALL (`4`): all directories were.
    UmntAll,
    /// EXPORT (`5`): what can be mounted.
    Export,
}

impl<'a> MountCall<'a> {
    /// Parses the arguments of the procedure `number`; `None` for a procedure that there is not:
    /// PROC_UNAVAIL.
    ///
    /// # Errors
    /// They are malformed: GARBAGE_ARGS.
    pub fn parse(number: u32, from: &mut Reader<'a>) -> Result<Option<Self>, ReadError> {
        Ok(Some(match number {
            0 => Self::Null,
            1 => Self::Mnt(Decode::decode(from, "dirpath")?),
            2 => Self::Dump,
            3 => Self::Umnt(Decode::decode(from, "dirpath")?),
            4 => Self::UmntAll,
            5 => Self::Export,
            _ => return Ok(None),
        }))
    }

    /// The number of the procedure.
    #[must_use]
    pub const fn procedure(&self) -> u32 {
        match self {
            Self::Null => 0,
            Self::Mnt(_) => 1,
            Self::Dump => 2,
            Self::Umnt(_) => 3,
            Self::UmntAll => 4,
            Self::Export => 5,
        }
    }
}

/// The arguments.
impl Encode for MountCall<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        match self {
            Self::Mnt(path) | Self::Umnt(path) => path.encode(to),
            Self::Null | Self::Dump | Self::UmntAll | Self::Export => Ok(()),
        }
    }
}

xdr_struct! {
    /// MNT succeeded (mountres3_ok).
    pub struct MountOk<'a> {
        /// The directory.
        pub fhandle: Filehandle<'a>,
        /// RPC's flavors that may be used.
        pub auth_flavors: List<'a, u32>,
    }
}

/// The result of MNT (mountres3).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MountResult<'a> {
    /// MNT3_OK.
    Ok(MountOk<'a>),
    /// It failed with this status, which is not MNT3_OK.
    Failed(MountStatus),
}

impl Encode for MountResult<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        match self {
            Self::Failed(status) => status.encode(to),
            Self::Ok(mounted) => {
                MountStatus::OK.encode(to)?;
                mounted.encode(to)
            }
        }
    }
}

impl<'a> Decode<'a> for MountResult<'a> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        match MountStatus::decode(from, "fhs_status")? {
            MountStatus::OK => Decode::decode(from, field).map(Self::Ok),
            failed => Ok(Self::Failed(failed)),
        }
    }
}

xdr_struct! {
    /// A client and the directory that it has mounted (mountbody): an element of DUMP's result.
    pub struct Mounted<'a> {
        /// The client.
        pub hostname: Name<'a>,
        /// The directory.
        pub directory: DirPath<'a>,
    }
}

xdr_struct! {
    /// What can be mounted (exportnode): an element of EXPORT's result.
    pub struct Export<'a> {
        /// The directory.
        pub dir: DirPath<'a>,
        /// By whom; no one named stands for everyone.
        pub groups: Chain<'a, Name<'a>>,
    }
}

/// The result of DUMP (mountlist).
pub type MountList<'a> = Chain<'a, Mounted<'a>>;
/// The result of EXPORT (exports).
pub type Exports<'a> = Chain<'a, Export<'a>>;
