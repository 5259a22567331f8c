//! The result of one operation (nfs_resop4).

use crate::codec::{Decode, Encode, List, ReadError, Reader, Unbounded, WriteError, Writer};
use crate::v4::attr::Fattr;
use crate::v4::bitmap::Bitmap;
use crate::v4::opnum::OpNum;
use crate::v4::results as ok;
use crate::v4::status::Status;
use crate::v4::types::{ChangeInfo, Filehandle, Stateid, Verifier};

macro_rules! results {
    (
        { $( $number:ident $name:ident($type:ty), )+ }
        { $( $void:ident, )+ }
    ) => {
        /// The result of an operation: what a success of the operation of this name has, or one of
        /// the last four.
        ///
        /// Successes of SET_SSV, of the operations of pNFS and of directory delegations, which no
        /// server of this crate's has, are not here.
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub enum OpResult<'a> {
            $( #[doc = stringify!($number)] $name($type), )+
            /// An operation succeeded that has nothing more to say.
            Done(OpNum),
            /// SETATTR, whether or not it succeeded (RFC 8881, section 18.30.2).
            SetAttr {
                /// Its status.
                status: Status,
                /// The attributes that were set.
                attrsset: Bitmap,
            },
            /// LOCK or LOCKT found a lock in the way: NFS4ERR_DENIED (RFC 8881, section 18.10.2).
            LockDenied {
                /// Which of the two.
                op: OpNum,
                /// The lock.
                denied: ok::LockDenied<'a>,
            },
            /// An operation failed. What a status brings along besides (a least count, whether the
            /// server will tell, requirements of a copy) is zero or false.
            Failed {
                /// The operation.
                op: OpNum,
                /// Its status, which is neither NFS4_OK nor, of LOCK and LOCKT, NFS4ERR_DENIED.
                status: Status,
            },
        }

        impl OpResult<'_> {
            /// Its number.
            #[must_use]
            pub const fn op(&self) -> OpNum {
                match self {
                    $( Self::$name(_) => OpNum::$number, )+
                    Self::SetAttr { .. } => OpNum::SETATTR,
                    Self::Done(op) | Self::LockDenied { op, .. } | Self::Failed { op, .. } => *op,
                }
            }
        }

        impl<'a> OpResult<'a> {
            fn decode_ok(
                op: OpNum,
                from: &mut Reader<'a>,
                start: &Reader<'a>,
            ) -> Result<Self, ReadError> {
                match op {
                    $( OpNum::$number => {
                        Decode::decode(from, stringify!($name)).map(Self::$name)
                    } )+
                    $( OpNum::$void )|+ => Ok(Self::Done(op)),
                    OpNum(number) => Err(start.invalid(
                        "resop", u64::from(number), "an operation whose success has a type",
                    )),
                }
            }
        }

        impl Encode for OpResult<'_> {
            fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
                self.op().encode(to)?;
                self.status().encode(to)?;
                match self {
                    $( Self::$name(value) => value.encode(to), )+
                    Self::Done(_) => Ok(()),
                    Self::SetAttr { attrsset, .. } => attrsset.encode(to),
                    Self::LockDenied { denied, .. } => denied.encode(to),
                    Self::Failed { op, status } => match failed_words(*op, *status) {
                        0 => Ok(()),
                        1 => to.u32(0),
                        _ => to.u64(0),
                    },
                }
            }
        }
    };
}

results! {
    {
        ACCESS Access(ok::AccessOk),
        CLOSE Close(Stateid),
        COMMIT Commit(Verifier),
        CREATE Create(ok::CreateOk),
        GETATTR GetAttr(Fattr<'a>),
        GETFH GetFh(Filehandle<'a>),
        LINK Link(ChangeInfo),
        LOCK Lock(Stateid),
        LOCKU LockU(Stateid),
        OPEN Open(ok::OpenOk<'a>),
        OPEN_DOWNGRADE OpenDowngrade(Stateid),
        READ Read(ok::ReadOk<'a>),
        READDIR ReadDir(ok::ReadDirOk<'a>),
        READLINK ReadLink(crate::codec::DataItem<'a>),
        REMOVE Remove(ChangeInfo),
        RENAME Rename(ok::RenameOk),
        SECINFO SecInfo(List<'a, ok::Flavor<'a>>),
        WRITE Write(ok::WriteOk),
        BIND_CONN_TO_SESSION BindConnToSession(ok::BindConnToSessionOk),
        EXCHANGE_ID ExchangeId(ok::ExchangeIdOk<'a>),
        CREATE_SESSION CreateSession(ok::CreateSessionOk),
        SECINFO_NO_NAME SecInfoNoName(List<'a, ok::Flavor<'a>>),
        SEQUENCE Sequence(ok::SequenceOk),
        TEST_STATEID TestStateid(List<'a, Status>),
        WANT_DELEGATION WantDelegation(ok::Delegation<'a>),
        COPY Copy(ok::CopyOk),
        COPY_NOTIFY CopyNotify(ok::CopyNotifyOk<'a>),
        IO_ADVISE IoAdvise(Bitmap),
        OFFLOAD_STATUS OffloadStatus(ok::OffloadStatusOk),
        READ_PLUS ReadPlus(ok::ReadPlusOk<'a>),
        SEEK Seek(ok::SeekOk),
        WRITE_SAME WriteSame(ok::WriteResponse),
        GETXATTR GetXattr(Unbounded<'a>),
        SETXATTR SetXattr(ChangeInfo),
        LISTXATTRS ListXattrs(ok::ListXattrsOk<'a>),
        REMOVEXATTR RemoveXattr(ChangeInfo),
    }
    {
        DELEGPURGE,
        DELEGRETURN,
        LOCKT,
        LOOKUP,
        LOOKUPP,
        NVERIFY,
        OPENATTR,
        PUTFH,
        PUTPUBFH,
        PUTROOTFH,
        RESTOREFH,
        SAVEFH,
        VERIFY,
        BACKCHANNEL_CTL,
        DESTROY_SESSION,
        FREE_STATEID,
        DESTROY_CLIENTID,
        RECLAIM_COMPLETE,
        ALLOCATE,
        DEALLOCATE,
        LAYOUTERROR,
        LAYOUTSTATS,
        OFFLOAD_CANCEL,
        CLONE,
    }
}

impl OpResult<'_> {
    /// Its status.
    #[must_use]
    pub fn status(&self) -> Status {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "all the others are successes"
        )]
        match self {
            Self::SetAttr { status, .. } | Self::Failed { status, .. } => *status,
            Self::LockDenied { .. } => Status::DENIED,
            _ => Status::OK,
        }
    }
}

/// Words behind the status of a failed operation, where its result has an arm for it.
const fn failed_words(op: OpNum, status: Status) -> usize {
    match (op, status) {
        // Of SETATTR: an empty bitmap. The others: RFC 8881, sections 18.40.2 and 18.43.2.
        (OpNum::SETATTR, _)
        | (OpNum::GETDEVICEINFO, Status::TOOSMALL)
        | (OpNum::LAYOUTGET, Status::LAYOUTTRYLATER) => 1,
        // RFC 7862, section 15.2.2.
        (OpNum::COPY, Status::OFFLOAD_NO_REQS) => 2,
        _ => 0,
    }
}

impl<'a> Decode<'a> for OpResult<'a> {
    fn decode(from: &mut Reader<'a>, _field: &'static str) -> Result<Self, ReadError> {
        let start = *from;
        let op = OpNum::decode(from, "resop")?;
        let status = Status::decode(from, "status")?;
        match (op, status) {
            (OpNum::SETATTR, _) => Ok(Self::SetAttr {
                status,
                attrsset: Decode::decode(from, "attrsset")?,
            }),
            (_, Status::OK) => Self::decode_ok(op, from, &start),
            (OpNum::LOCK | OpNum::LOCKT, Status::DENIED) => Ok(Self::LockDenied {
                op,
                denied: Decode::decode(from, "denied")?,
            }),
            _ => {
                for _ in 0..failed_words(op, status) {
                    from.u32("what a status brings along")?;
                }
                Ok(Self::Failed { op, status })
            }
        }
    }
}
