//! Statuses of NFS version 3: nfsstat3.
//!
//! Source: RFC 1813, section 2.6.

use crate::macros::open_enum;

open_enum! {
    /// The status of a procedure.
    pub struct Status {
        OK = 0 => "NFS3_OK",
        PERM = 1 => "NFS3ERR_PERM",
        NOENT = 2 => "NFS3ERR_NOENT",
        IO = 5 => "NFS3ERR_IO",
        NXIO = 6 => "NFS3ERR_NXIO",
        ACCES = 13 => "NFS3ERR_ACCES",
        EXIST = 17 => "NFS3ERR_EXIST",
        XDEV = 18 => "NFS3ERR_XDEV",
        NODEV = 19 => "NFS3ERR_NODEV",
        NOTDIR = 20 => "NFS3ERR_NOTDIR",
        ISDIR = 21 => "NFS3ERR_ISDIR",
        INVAL = 22 => "NFS3ERR_INVAL",
        FBIG = 27 => "NFS3ERR_FBIG",
        NOSPC = 28 => "NFS3ERR_NOSPC",
        ROFS = 30 => "NFS3ERR_ROFS",
        MLINK = 31 => "NFS3ERR_MLINK",
        NAMETOOLONG = 63 => "NFS3ERR_NAMETOOLONG",
        NOTEMPTY = 66 => "NFS3ERR_NOTEMPTY",
        DQUOT = 69 => "NFS3ERR_DQUOT",
        STALE = 70 => "NFS3ERR_STALE",
        REMOTE = 71 => "NFS3ERR_REMOTE",
        BADHANDLE = 10_001 => "NFS3ERR_BADHANDLE",
        NOT_SYNC = 10_002 => "NFS3ERR_NOT_SYNC",
        BAD_COOKIE = 10_003 => "NFS3ERR_BAD_COOKIE",
        NOTSUPP = 10_004 => "NFS3ERR_NOTSUPP",
        TOOSMALL = 10_005 => "NFS3ERR_TOOSMALL",
        SERVERFAULT = 10_006 => "NFS3ERR_SERVERFAULT",
        BADTYPE = 10_007 => "NFS3ERR_BADTYPE",
        JUKEBOX = 10_008 => "NFS3ERR_JUKEBOX",
    }
}

impl Status {
    /// Whether the procedure succeeded.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == Self::OK.0
    }
}
