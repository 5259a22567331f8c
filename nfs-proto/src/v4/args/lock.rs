//! Arguments of LOCK, LOCKT and LOCKU.

use crate::macros::{xdr_enum, xdr_struct, xdr_union};
use crate::v4::types::{StateOwner, Stateid};

xdr_enum! {
    /// The type of a lock (nfs_lock_type4; RFC 8881, section 3.3).
    pub enum LockType {
        /// To read.
        Read = 1,
        /// To write.
        Write = 2,
        /// To read, and the client will ask again.
        ReadBlocking = 3,
        /// To write, and the client will ask again.
        WriteBlocking = 4,
    }
}

xdr_struct! {
    /// A lock owner that has no lock of this file yet (open_to_lock_owner4; RFC 8881, section
    /// 18.10.1). The seqids are not looked at.
    pub struct NewLockOwner<'a> {
        /// Not looked at.
        pub open_seqid: u32,
        /// The open that the locks belong to.
        pub open_stateid: Stateid,
        /// Not looked at.
        pub lock_seqid: u32,
        /// The lock owner.
        pub lock_owner: StateOwner<'a>,
    }
}

xdr_struct! {
    /// A lock owner that has locks of this file (exist_lock_owner4; RFC 8881, section 18.10.1).
    pub struct ExistingLockOwner {
        /// The state of its locks.
        pub lock_stateid: Stateid,
        /// Not looked at.
        pub lock_seqid: u32,
    }
}

xdr_union! {
    /// The lock owner of a LOCK (locker4; RFC 8881, section 18.10.1).
    pub enum Locker<'a> {
        /// The state of this lock owner's locks.
        Existing(ExistingLockOwner) = 0,
        /// A lock owner that is new to the file.
        New(NewLockOwner<'a>) = 1,
    }
}

xdr_struct! {
    /// LOCK (RFC 8881, section 18.10).
    pub struct Lock<'a> {
        /// The type.
        pub locktype: LockType,
        /// Whether the lock was held before the server restarted.
        pub reclaim: bool,
        /// First byte.
        pub offset: u64,
        /// Bytes; all ones for up to the end, wherever that is.
        pub length: u64,
        /// The lock owner.
        pub locker: Locker<'a>,
    }
}

xdr_struct! {
    /// LOCKT (RFC 8881, section 18.11).
    pub struct TestLock<'a> {
        /// The type.
        pub locktype: LockType,
        /// First byte.
        pub offset: u64,
        /// Bytes; all ones for up to the end.
        pub length: u64,
        /// The lock owner that would lock.
        pub owner: StateOwner<'a>,
    }
}

xdr_struct! {
    /// LOCKU (RFC 8881, section 18.12).
    pub struct Unlock {
        /// The type, which does not matter.
        pub locktype: LockType,
        /// Not looked at.
        pub seqid: u32,
        /// The state of the lock.
        pub lock_stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Bytes; all ones for up to the end.
        pub length: u64,
    }
}
