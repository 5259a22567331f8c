//! Results of the operations: what each has when it succeeds, one type per operation that has any.

use crate::codec::{
    Chain, DataItem, Decode, Encode, List, ReadError, Reader, Unbounded, WriteError, Writer,
};
use crate::macros::{xdr_flags, xdr_struct, xdr_union};
use crate::v4::args::{
    AccessRights, ChannelAttributes, ChannelDirection, CreateSessionFlags, ExchangeIdFlags,
    LockType, NetLoc, RpcGssService, StateProtectOps, XattrName,
};
use crate::v4::attr::Fattr;
use crate::v4::bitmap::Bitmap;
use crate::v4::status::Status;
use crate::v4::types::{
    ChangeInfo, ClientId, Component, ImplementationId, OwnerBytes, ServerOwner, SessionId,
    StableHow, StateOwner, Stateid, Time, Verifier,
};

xdr_struct! {
    /// Of ACCESS (RFC 8881, section 18.1.2).
    pub struct AccessOk {
        /// The rights that could be found out about.
        pub supported: AccessRights,
        /// Those that there are.
        pub access: AccessRights,
    }
}

xdr_struct! {
    /// Of CREATE (RFC 8881, section 18.4.2).
    pub struct CreateOk {
        /// The directory.
        pub cinfo: ChangeInfo,
        /// The attributes that were set.
        pub attrset: Bitmap,
    }
}

xdr_struct! {
    /// A lock in the way, of LOCK and LOCKT (LOCK4denied; RFC 8881, section 18.10.2).
    pub struct LockDenied<'a> {
        /// First byte.
        pub offset: u64,
        /// Bytes; all ones for up to the end.
        pub length: u64,
        /// The type.
        pub locktype: LockType,
        /// The lock owner that holds it.
        pub owner: StateOwner<'a>,
    }
}

xdr_flags! {
    /// Flags of OPEN's result (RFC 8881, section 18.16.2).
    pub struct OpenResultFlags {
        /// Of NFSv4.0 alone.
        const CONFIRM = 0x02;
        /// Locks are those of POSIX.
        const LOCKTYPE_POSIX = 0x04;
        /// A file that is removed while open stays until it is closed.
        const PRESERVE_UNLINKED = 0x08;
        /// CB_NOTIFY_LOCK may come.
        const MAY_NOTIFY_LOCK = 0x20;
    }
}

xdr_struct! {
    /// An entry of an ACL (nfsace4; RFC 8881, section 6.2.1).
    pub struct Ace<'a> {
        /// Its type.
        pub ace_type: u32,
        /// Its flags.
        pub flag: u32,
        /// The rights.
        pub access_mask: u32,
        /// Whose.
        pub who: Unbounded<'a>,
    }
}

xdr_struct! {
    /// A delegation to read (open_read_delegation4; RFC 8881, section 18.16.2).
    pub struct ReadDelegation<'a> {
        /// Its state.
        pub stateid: Stateid,
        /// Whether it is to be returned at once.
        pub recall: bool,
        /// The users that can open without an OPEN at the server.
        pub permissions: Ace<'a>,
    }
}

xdr_struct! {
    /// Blocks (nfs_modified_limit4; RFC 8881, section 18.16.2).
    pub struct ModifiedLimit {
        /// How many.
        pub num_blocks: u32,
        /// Of how many bytes.
        pub bytes_per_block: u32,
    }
}

xdr_union! {
    /// How much may be written before it has to be sent (nfs_space_limit4; RFC 8881, section
    /// 18.16.2).
    pub enum SpaceLimit {
        /// Bytes of the file.
        Size(u64) = 1,
        /// Blocks.
        Blocks(ModifiedLimit) = 2,
    }
}

xdr_struct! {
    /// A delegation to write (open_write_delegation4; RFC 8881, section 18.16.2).
    pub struct WriteDelegation<'a> {
        /// Its state.
        pub stateid: Stateid,
        /// Whether it is to be returned at once.
        pub recall: bool,
        /// How much may be kept back.
        pub space_limit: SpaceLimit,
        /// The users that can open without an OPEN at the server.
        pub permissions: Ace<'a>,
    }
}

xdr_union! {
    /// Why there is no delegation (open_none_delegation4; RFC 8881, section 18.16.2).
    pub enum NoDelegation {
        /// None was wanted.
        NotWanted = 0,
        /// Others use the file; whether the server will send one later.
        Contention(bool) = 1,
        /// Too many; whether the server will tell when there can be one.
        Resource(bool) = 2,
        /// Not for files of this type.
        NotSupportedType = 3,
        /// Not to write for files of this type.
        WriteNotSupportedType = 4,
        /// One to read is not upgraded.
        NotSupportedUpgrade = 5,
        /// One to write is not downgraded.
        NotSupportedDowngrade = 6,
        /// The want was cancelled.
        Cancelled = 7,
        /// It is a directory.
        IsDirectory = 8,
    }
}

xdr_union! {
    /// A delegation (open_delegation4; RFC 8881, section 18.16.2).
    pub enum Delegation<'a> {
        /// None.
        None = 0,
        /// To read.
        Read(ReadDelegation<'a>) = 1,
        /// To write.
        Write(WriteDelegation<'a>) = 2,
        /// None, and why: where the client had said what it wants.
        NoneExt(NoDelegation) = 3,
    }
}

xdr_struct! {
    /// Of OPEN (RFC 8881, section 18.16.2).
    pub struct OpenOk<'a> {
        /// The open.
        pub stateid: Stateid,
        /// The directory.
        pub cinfo: ChangeInfo,
        /// Flags.
        pub rflags: OpenResultFlags,
        /// The attributes that were set.
        pub attrset: Bitmap,
        /// The delegation.
        pub delegation: Delegation<'a>,
    }
}

xdr_struct! {
    /// Of READ (RFC 8881, section 18.22.2).
    pub struct ReadOk<'a> {
        /// Whether the data ends where the file does.
        pub eof: bool,
        /// The data, which can be reduced.
        pub data: DataItem<'a>,
    }
}

xdr_struct! {
    /// An entry of a directory (entry4; RFC 8881, section 18.23.2).
    pub struct DirEntry<'a> {
        /// To go on behind it.
        pub cookie: u64,
        /// The name.
        pub name: Component<'a>,
        /// The attributes that were asked for.
        pub attrs: Fattr<'a>,
    }
}

xdr_struct! {
    /// Of READDIR (RFC 8881, section 18.23.2).
    pub struct ReadDirOk<'a> {
        /// Goes with the cookies.
        pub cookieverf: Verifier,
        /// The entries.
        pub entries: Chain<'a, DirEntry<'a>>,
        /// Whether they end where the directory does.
        pub eof: bool,
    }
}

xdr_struct! {
    /// Of RENAME (RFC 8881, section 18.26.2).
    pub struct RenameOk {
        /// The directory it was in.
        pub source_cinfo: ChangeInfo,
        /// The directory it is in.
        pub target_cinfo: ChangeInfo,
    }
}

xdr_struct! {
    /// A way of RPCSEC_GSS (rpcsec_gss_info; RFC 8881, section 18.29.2).
    pub struct GssInfo<'a> {
        /// The mechanism, an OID.
        pub oid: Unbounded<'a>,
        /// The quality of protection.
        pub qop: u32,
        /// The service.
        pub service: RpcGssService,
    }
}

/// A security flavor (secinfo4; RFC 8881, section 18.29.2).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Flavor<'a> {
    /// RPCSEC_GSS (6).
    Gss(GssInfo<'a>),
    /// Another one, by its number: 0 AUTH_NONE, 1 AUTH_SYS. Not 6.
    Other(u32),
}

impl Flavor<'_> {
    const RPCSEC_GSS: u32 = 6;
}

impl Encode for Flavor<'_> {
    fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
        match self {
            Self::Other(flavor) => to.u32(*flavor),
            Self::Gss(info) => {
                to.u32(Self::RPCSEC_GSS)?;
                info.encode(to)
            }
        }
    }
}

impl<'a> Decode<'a> for Flavor<'a> {
    fn decode(from: &mut Reader<'a>, field: &'static str) -> Result<Self, ReadError> {
        match from.u32(field)? {
            Self::RPCSEC_GSS => Decode::decode(from, "flavor_info").map(Self::Gss),
            other => Ok(Self::Other(other)),
        }
    }
}

xdr_struct! {
    /// Of WRITE (RFC 8881, section 18.32.2).
    pub struct WriteOk {
        /// Bytes that were written.
        pub count: u32,
        /// How stable they are.
        pub committed: StableHow,
        /// Changes when unstable data may have been lost.
        pub writeverf: Verifier,
    }
}

xdr_struct! {
    /// Of BIND_CONN_TO_SESSION (RFC 8881, section 18.34.2).
    pub struct BindConnToSessionOk {
        /// The session.
        pub sessid: SessionId,
        /// The channels.
        pub dir: ChannelDirection,
        /// Whether the connection is stepped up to RDMA.
        pub use_conn_in_rdma_mode: bool,
    }
}

xdr_struct! {
    /// What a server grants for SSV protection (ssv_prot_info4; RFC 8881, section 18.35.2).
    pub struct SsvInfo<'a> {
        /// The operations.
        pub ops: StateProtectOps,
        /// Which of the proposed hash algorithms.
        pub hash_alg: u32,
        /// Which of the proposed encryption algorithms.
        pub encr_alg: u32,
        /// Bytes of the SSV.
        pub ssv_len: u32,
        /// SSVs that are kept.
        pub window: u32,
        /// GSS handles.
        pub handles: List<'a, Unbounded<'a>>,
    }
}

xdr_union! {
    /// How the client's state is protected (state_protect4_r; RFC 8881, section 18.35.2).
    pub enum StateProtected<'a> {
        /// Not.
        None = 0,
        /// By the machine credential.
        MachineCredential(StateProtectOps) = 1,
        /// By a secret state verifier.
        Ssv(SsvInfo<'a>) = 2,
    }
}

xdr_struct! {
    /// Of EXCHANGE_ID (RFC 8881, section 18.35.2).
    pub struct ExchangeIdOk<'a> {
        /// The client ID.
        pub clientid: ClientId,
        /// The first sequence of CREATE_SESSION.
        pub sequenceid: u32,
        /// What the server is and can.
        pub flags: ExchangeIdFlags,
        /// How state is protected.
        pub state_protect: StateProtected<'a>,
        /// The server.
        pub server_owner: ServerOwner<'a>,
        /// Within which client IDs mean the same.
        pub server_scope: OwnerBytes<'a>,
        /// Which implementation it is.
        pub server_impl_id: Option<ImplementationId<'a>>,
    }
}

xdr_struct! {
    /// Of CREATE_SESSION (RFC 8881, section 18.36.2).
    pub struct CreateSessionOk {
        /// The session.
        pub sessionid: SessionId,
        /// As in the request.
        pub sequence: u32,
        /// What was granted.
        pub flags: CreateSessionFlags,
        /// The fore channel.
        pub fore_chan_attrs: ChannelAttributes,
        /// The back channel.
        pub back_chan_attrs: ChannelAttributes,
    }
}

xdr_flags! {
    /// What the client has to look after (sr_status_flags; RFC 8881, section 18.46.3).
    pub struct SequenceStatus {
        /// No session has a back channel.
        const CB_PATH_DOWN = 0x0001;
        /// GSS contexts of the back channel will expire.
        const CB_GSS_CONTEXTS_EXPIRING = 0x0002;
        /// GSS contexts of the back channel have expired.
        const CB_GSS_CONTEXTS_EXPIRED = 0x0004;
        /// The lease expired and all state is gone.
        const EXPIRED_ALL_STATE_REVOKED = 0x0008;
        /// The lease expired and some state is gone.
        const EXPIRED_SOME_STATE_REVOKED = 0x0010;
        /// An administrator took state away.
        const ADMIN_STATE_REVOKED = 0x0020;
        /// Delegations or layouts were not returned and are gone.
        const RECALLABLE_STATE_REVOKED = 0x0040;
        /// A file system moved.
        const LEASE_MOVED = 0x0080;
        /// The server restarted.
        const RESTART_RECLAIM_NEEDED = 0x0100;
        /// This session has no back channel.
        const CB_PATH_DOWN_SESSION = 0x0200;
        /// The back channel has failed.
        const BACKCHANNEL_FAULT = 0x0400;
        /// A device has changed.
        const DEVID_CHANGED = 0x0800;
        /// A device is gone.
        const DEVID_DELETED = 0x1000;
    }
}

xdr_struct! {
    /// Of SEQUENCE (RFC 8881, section 18.46.2).
    pub struct SequenceOk {
        /// The session.
        pub sessionid: SessionId,
        /// As in the request.
        pub sequenceid: u32,
        /// As in the request.
        pub slotid: u32,
        /// The highest slot that is accepted.
        pub highest_slotid: u32,
        /// The highest slot that the server would like to be used.
        pub target_highest_slotid: u32,
        /// What is to be looked after.
        pub status_flags: SequenceStatus,
    }
}

xdr_struct! {
    /// What was written on the server (write_response4; RFC 7862, section 15.2.2).
    pub struct WriteResponse {
        /// The state of an asynchronous operation.
        pub callback_id: Option<Stateid>,
        /// Bytes.
        pub count: u64,
        /// How stable they are.
        pub committed: StableHow,
        /// Changes when unstable data may have been lost.
        pub writeverf: Verifier,
    }
}

xdr_struct! {
    /// Of COPY (RFC 7862, section 15.2.2).
    pub struct CopyOk {
        /// What was written.
        pub response: WriteResponse,
        /// Whether in the order of the bytes.
        pub consecutive: bool,
        /// Whether it is done.
        pub synchronous: bool,
    }
}

xdr_struct! {
    /// Of COPY_NOTIFY (RFC 7862, section 15.3.2).
    pub struct CopyNotifyOk<'a> {
        /// How long the permission lasts.
        pub lease_time: Time,
        /// The permission.
        pub stateid: Stateid,
        /// Where to copy from.
        pub source_server: List<'a, NetLoc<'a>>,
    }
}

xdr_struct! {
    /// Of OFFLOAD_STATUS (RFC 7862, section 15.9.2).
    pub struct OffloadStatusOk {
        /// Bytes so far.
        pub count: u64,
        /// The status, when it is done.
        pub complete: Option<Status>,
    }
}

xdr_struct! {
    /// Bytes of a file (data4; RFC 7862, section 15.10.2). They are not reduced (RFC 8267, section
    /// 6.1: not DDP-eligible).
    pub struct Data<'a> {
        /// First byte.
        pub offset: u64,
        /// The bytes.
        pub data: Unbounded<'a>,
    }
}

xdr_struct! {
    /// A hole (data_info4; RFC 7862, section 15.10.2).
    pub struct Hole {
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
    }
}

xdr_union! {
    /// A part of what READ_PLUS found (read_plus_content; RFC 7862, section 15.10.2).
    pub enum ReadPlusContent<'a> {
        /// Data.
        Data(Data<'a>) = 0,
        /// A hole.
        Hole(Hole) = 1,
    }
}

xdr_struct! {
    /// Of READ_PLUS (RFC 7862, section 15.10.2).
    pub struct ReadPlusOk<'a> {
        /// Whether the contents end where the file does.
        pub eof: bool,
        /// Data and holes.
        pub contents: List<'a, ReadPlusContent<'a>>,
    }
}

xdr_struct! {
    /// Of SEEK (RFC 7862, section 15.11.2).
    pub struct SeekOk {
        /// Whether there is none before the end of the file.
        pub eof: bool,
        /// Where it is.
        pub offset: u64,
    }
}

xdr_struct! {
    /// Of LISTXATTRS (RFC 8276, section 8.4.3).
    pub struct ListXattrsOk<'a> {
        /// Where to go on.
        pub cookie: u64,
        /// The names.
        pub names: List<'a, XattrName<'a>>,
        /// Whether they are the last.
        pub eof: bool,
    }
}
