//! The operations of NFS version 4 by number.
//!
//! Source: RFC 8881, section 17; RFC 7862, section 15; RFC 8276, section 8.4; the numbers are those
//! of RFC 5662, RFC 7863 and RFC 8276.

use crate::macros::open_enum;

open_enum! {
    /// The number of an operation (nfs_opnum4).
    pub struct OpNum {
        ACCESS = 3 => "ACCESS",
        CLOSE = 4 => "CLOSE",
        COMMIT = 5 => "COMMIT",
        CREATE = 6 => "CREATE",
        DELEGPURGE = 7 => "DELEGPURGE",
        DELEGRETURN = 8 => "DELEGRETURN",
        GETATTR = 9 => "GETATTR",
        GETFH = 10 => "GETFH",
        LINK = 11 => "LINK",
        LOCK = 12 => "LOCK",
        LOCKT = 13 => "LOCKT",
        LOCKU = 14 => "LOCKU",
        LOOKUP = 15 => "LOOKUP",
        LOOKUPP = 16 => "LOOKUPP",
        NVERIFY = 17 => "NVERIFY",
        OPEN = 18 => "OPEN",
        OPENATTR = 19 => "OPENATTR",
        OPEN_CONFIRM = 20 => "OPEN_CONFIRM",
        OPEN_DOWNGRADE = 21 => "OPEN_DOWNGRADE",
        PUTFH = 22 => "PUTFH",
        PUTPUBFH = 23 => "PUTPUBFH",
        PUTROOTFH = 24 => "PUTROOTFH",
        READ = 25 => "READ",
        READDIR = 26 => "READDIR",
        READLINK = 27 => "READLINK",
        REMOVE = 28 => "REMOVE",
        RENAME = 29 => "RENAME",
        RENEW = 30 => "RENEW",
        RESTOREFH = 31 => "RESTOREFH",
        SAVEFH = 32 => "SAVEFH",
        SECINFO = 33 => "SECINFO",
        SETATTR = 34 => "SETATTR",
        SETCLIENTID = 35 => "SETCLIENTID",
        SETCLIENTID_CONFIRM = 36 => "SETCLIENTID_CONFIRM",
        VERIFY = 37 => "VERIFY",
        WRITE = 38 => "WRITE",
        RELEASE_LOCKOWNER = 39 => "RELEASE_LOCKOWNER",
        BACKCHANNEL_CTL = 40 => "BACKCHANNEL_CTL",
        BIND_CONN_TO_SESSION = 41 => "BIND_CONN_TO_SESSION",
        EXCHANGE_ID = 42 => "EXCHANGE_ID",
        CREATE_SESSION = 43 => "CREATE_SESSION",
        DESTROY_SESSION = 44 => "DESTROY_SESSION",
        FREE_STATEID = 45 => "FREE_STATEID",
        GET_DIR_DELEGATION = 46 => "GET_DIR_DELEGATION",
        GETDEVICEINFO = 47 => "GETDEVICEINFO",
        GETDEVICELIST = 48 => "GETDEVICELIST",
        LAYOUTCOMMIT = 49 => "LAYOUTCOMMIT",
        LAYOUTGET = 50 => "LAYOUTGET",
        LAYOUTRETURN = 51 => "LAYOUTRETURN",
        SECINFO_NO_NAME = 52 => "SECINFO_NO_NAME",
        SEQUENCE = 53 => "SEQUENCE",
        SET_SSV = 54 => "SET_SSV",
        TEST_STATEID = 55 => "TEST_STATEID",
        WANT_DELEGATION = 56 => "WANT_DELEGATION",
        DESTROY_CLIENTID = 57 => "DESTROY_CLIENTID",
        RECLAIM_COMPLETE = 58 => "RECLAIM_COMPLETE",
        ALLOCATE = 59 => "ALLOCATE",
        COPY = 60 => "COPY",
        COPY_NOTIFY = 61 => "COPY_NOTIFY",
        DEALLOCATE = 62 => "DEALLOCATE",
        IO_ADVISE = 63 => "IO_ADVISE",
        LAYOUTERROR = 64 => "LAYOUTERROR",
        LAYOUTSTATS = 65 => "LAYOUTSTATS",
        OFFLOAD_CANCEL = 66 => "OFFLOAD_CANCEL",
        OFFLOAD_STATUS = 67 => "OFFLOAD_STATUS",
        READ_PLUS = 68 => "READ_PLUS",
        SEEK = 69 => "SEEK",
        WRITE_SAME = 70 => "WRITE_SAME",
        CLONE = 71 => "CLONE",
        GETXATTR = 72 => "GETXATTR",
        SETXATTR = 73 => "SETXATTR",
        LISTXATTRS = 74 => "LISTXATTRS",
        REMOVEXATTR = 75 => "REMOVEXATTR",
        ILLEGAL = 10_044 => "ILLEGAL",
    }
}

impl OpNum {
    /// The last operation of NFSv4.1.
    const LAST_OF_4_1: Self = Self::RECLAIM_COMPLETE;
    /// The last operation of NFSv4.2 with its extensions.
    const LAST_OF_4_2: Self = Self::REMOVEXATTR;

    /// Whether a minor version defines the operation, those included that it forbids: all others
    /// are NFS4ERR_OP_ILLEGAL (RFC 8881, section 18.52.3).
    #[must_use]
    pub fn is_defined_in(self, minor_version: MinorVersion) -> bool {
        let last = match minor_version {
            MinorVersion::V1 => Self::LAST_OF_4_1,
            MinorVersion::V2 => Self::LAST_OF_4_2,
        };
        (Self::ACCESS..=last).contains(&self)
    }

    /// Whether the operation is of NFSv4.0 alone and NFS4ERR_NOTSUPP later (RFC 8881, section 17:
    /// mandatory not to implement).
    #[must_use]
    pub const fn is_of_4_0_alone(self) -> bool {
        matches!(
            self,
            Self::OPEN_CONFIRM
                | Self::RENEW
                | Self::SETCLIENTID
                | Self::SETCLIENTID_CONFIRM
                | Self::RELEASE_LOCKOWNER
        )
    }
}

/// A minor version that has sessions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MinorVersion {
    /// NFSv4.1 (RFC 8881).
    V1,
    /// NFSv4.2 (RFC 7862).
    V2,
}

impl MinorVersion {
    /// The minor version with this number; `None` for others, which are answered with
    /// NFS4ERR_MINOR_VERS_MISMATCH and no results (RFC 8881, section 16.2.3).
    #[must_use]
    pub const fn from_wire(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::V1),
            2 => Some(Self::V2),
            _ => None,
        }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u32 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minor_version_has_its_operations_and_no_later_ones() {
        for number in OpNum::NAMED {
            let later = number.0 >= 59;
            assert_eq!(number.is_defined_in(MinorVersion::V1), !later, "{number}");
            assert_eq!(
                number.is_defined_in(MinorVersion::V2),
                number.0 != 10_044,
                "{number}"
            );
        }
        for number in [0, 1, 2, 76, 128, 10_044, u32::MAX] {
            assert!(!OpNum(number).is_defined_in(MinorVersion::V2), "{number}");
        }
        assert_eq!(
            OpNum::NAMED
                .iter()
                .filter(|number| number.is_of_4_0_alone())
                .count(),
            5
        );
    }
}
