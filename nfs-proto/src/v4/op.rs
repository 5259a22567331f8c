//! One operation of a COMPOUND, with its arguments (nfs_argop4).

use crate::codec::{Decode, Encode, List, ReadError, Reader, WriteError, Writer};
use crate::v4::args;
use crate::v4::attr::Fattr;
use crate::v4::bitmap::Bitmap;
use crate::v4::opnum::OpNum;
use crate::v4::types::{ClientId, Component, Filehandle, SessionId, Stateid};

macro_rules! operations {
    ($( $number:ident $name:ident $(($arguments:ty))?, )+) => {
        /// An operation and its arguments, by the names of RFC 8881, section 18, RFC 7862, section
        /// 15, and RFC 8276, section 8.4.
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub enum Op<'a> {
            $( #[doc = stringify!($number)] $name $(($arguments))?, )+
            /// One that NFSv4.0 had and later minor versions do not: NFS4ERR_NOTSUPP. Its
            /// arguments are not looked at, as nothing that follows is carried out.
            OfV40(OpNum),
        }

        impl<'a> Op<'a> {
            /// Its number.
            #[must_use]
            pub const fn num(&self) -> OpNum {
                match self {
                    $( operations!(@pattern $name $(, $arguments)?) => OpNum::$number, )+
                    Self::OfV40(number) => *number,
                }
            }

            /// Decodes the arguments of the operation `number`; `None` for one that is not here.
            pub(crate) fn decode_arguments(
                number: OpNum,
                from: &mut Reader<'a>,
            ) -> Result<Option<Self>, ReadError> {
                Ok(Some(match number {
                    $( OpNum::$number => operations!(@decode from $name $(, $arguments)?), )+
                    other if other.is_of_4_0_alone() => Self::OfV40(other),
                    _ => return Ok(None),
                }))
            }
        }

        /// The number and the arguments.
        impl Encode for Op<'_> {
            fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
                self.num().encode(to)?;
                match self {
                    $( operations!(@bind arguments $name $(, $arguments)?) =>
                        operations!(@encode to arguments $(, $arguments)?), )+
                    Self::OfV40(_) => Ok(()),
                }
            }
        }
    };
    (@pattern $name:ident, $arguments:ty) => { Self::$name(_) };
    (@pattern $name:ident) => { Self::$name };
    (@bind $bound:ident $name:ident, $arguments:ty) => { Self::$name($bound) };
    (@bind $bound:ident $name:ident) => { Self::$name };
    (@decode $from:ident $name:ident, $arguments:ty) => {
        Self::$name(Decode::decode($from, stringify!($name))?)
    };
    (@decode $from:ident $name:ident) => { Self::$name };
    (@encode $to:ident $bound:ident, $arguments:ty) => { $bound.encode($to) };
    (@encode $to:ident $bound:ident) => { Ok(()) };
}

operations! {
    ACCESS Access(args::Access),
    CLOSE Close(args::Close),
    COMMIT Commit(args::Commit),
    CREATE Create(args::Create<'a>),
    DELEGPURGE DelegPurge(ClientId),
    DELEGRETURN DelegReturn(Stateid),
    GETATTR GetAttr(Bitmap),
    GETFH GetFh,
    LINK Link(Component<'a>),
    LOCK Lock(args::Lock<'a>),
    LOCKT LockT(args::TestLock<'a>),
    LOCKU LockU(args::Unlock),
    LOOKUP Lookup(Component<'a>),
    LOOKUPP LookupP,
    NVERIFY NVerify(Fattr<'a>),
    OPEN Open(args::Open<'a>),
    OPENATTR OpenAttr(bool),
    OPEN_DOWNGRADE OpenDowngrade(args::OpenDowngrade),
    PUTFH PutFh(Filehandle<'a>),
    PUTPUBFH PutPubFh,
    PUTROOTFH PutRootFh,
    READ Read(args::Read),
    READDIR ReadDir(args::ReadDir),
    READLINK ReadLink,
    REMOVE Remove(Component<'a>),
    RENAME Rename(args::Rename<'a>),
    RESTOREFH RestoreFh,
    SAVEFH SaveFh,
    SECINFO SecInfo(Component<'a>),
    SETATTR SetAttr(args::SetAttr<'a>),
    VERIFY Verify(Fattr<'a>),
    WRITE Write(args::Write<'a>),
    BACKCHANNEL_CTL BackchannelCtl(args::BackchannelCtl<'a>),
    BIND_CONN_TO_SESSION BindConnToSession(args::BindConnToSession),
    EXCHANGE_ID ExchangeId(args::ExchangeId<'a>),
    CREATE_SESSION CreateSession(args::CreateSession<'a>),
    DESTROY_SESSION DestroySession(SessionId),
    FREE_STATEID FreeStateid(Stateid),
    GET_DIR_DELEGATION GetDirDelegation(args::GetDirDelegation),
    GETDEVICEINFO GetDeviceInfo(args::GetDeviceInfo),
    GETDEVICELIST GetDeviceList(args::GetDeviceList),
    LAYOUTCOMMIT LayoutCommit(args::LayoutCommit<'a>),
    LAYOUTGET LayoutGet(args::LayoutGet),
    LAYOUTRETURN LayoutReturn(args::LayoutReturn<'a>),
    SECINFO_NO_NAME SecInfoNoName(args::SecinfoStyle),
    SEQUENCE Sequence(args::Sequence),
    SET_SSV SetSsv(args::SetSsv<'a>),
    TEST_STATEID TestStateid(List<'a, Stateid>),
    WANT_DELEGATION WantDelegation(args::WantDelegation),
    DESTROY_CLIENTID DestroyClientId(ClientId),
    RECLAIM_COMPLETE ReclaimComplete(bool),
    ALLOCATE Allocate(args::Range),
    COPY Copy(args::Copy<'a>),
    COPY_NOTIFY CopyNotify(args::CopyNotify<'a>),
    DEALLOCATE Deallocate(args::Range),
    IO_ADVISE IoAdvise(args::IoAdvise),
    LAYOUTERROR LayoutError(args::LayoutError<'a>),
    LAYOUTSTATS LayoutStats(args::LayoutStats<'a>),
    OFFLOAD_CANCEL OffloadCancel(Stateid),
    OFFLOAD_STATUS OffloadStatus(Stateid),
    READ_PLUS ReadPlus(args::ReadPlus),
    SEEK Seek(args::Seek),
    WRITE_SAME WriteSame(args::WriteSame<'a>),
    CLONE Clone(args::Clone),
    GETXATTR GetXattr(args::XattrName<'a>),
    SETXATTR SetXattr(args::SetXattr<'a>),
    LISTXATTRS ListXattrs(args::ListXattrs),
    REMOVEXATTR RemoveXattr(args::XattrName<'a>),
}
