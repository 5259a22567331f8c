//! Arguments of the operations on clients, sessions and connections.

use crate::codec::{BoundedList, List, Opaque, Unbounded};
use crate::limits::{AUTH_SYS_GIDS_MAX, AUTH_SYS_MACHINE_NAME_BYTES_MAX};
use crate::macros::{xdr_enum, xdr_flags, xdr_struct, xdr_union};
use crate::v4::bitmap::Bitmap;
use crate::v4::types::{ClientId, ClientOwner, ImplementationId, SessionId};

xdr_flags! {
    /// Flags of EXCHANGE_ID and its result (RFC 8881, section 18.35.1).
    pub struct ExchangeIdFlags {
        /// Understands NFS4ERR_MOVED as a referral.
        const SUPP_MOVED_REFER = 0x0000_0001;
        /// Understands NFS4ERR_MOVED as a migration.
        const SUPP_MOVED_MIGR = 0x0000_0002;
        /// Has fencing operations.
        const SUPP_FENCE_OPS = 0x0000_0004;
        /// Stateids are bound to the principal.
        const BIND_PRINC_STATEID = 0x0000_0100;
        /// Not pNFS.
        const USE_NON_PNFS = 0x0001_0000;
        /// A metadata server of pNFS.
        const USE_PNFS_MDS = 0x0002_0000;
        /// A data server of pNFS.
        const USE_PNFS_DS = 0x0004_0000;
        /// An update of a confirmed client.
        const UPD_CONFIRMED_REC_A = 0x4000_0000;
        /// In a result: the client is confirmed.
        const CONFIRMED_R = 0x8000_0000;
    }
}

xdr_struct! {
    /// Operations whose principal is protected (state_protect_ops4; RFC 8881, section 18.35.1).
    pub struct StateProtectOps {
        /// They need the machine credential or the SSV.
        pub must_enforce: Bitmap,
        /// They may use it.
        pub must_allow: Bitmap,
    }
}

xdr_struct! {
    /// What a client proposes for SSV protection (ssv_sp_parms4; RFC 8881, section 18.35.1).
    pub struct SsvParameters<'a> {
        /// The operations.
        pub ops: StateProtectOps,
        /// Hash algorithms, as OIDs.
        pub hash_algs: List<'a, Unbounded<'a>>,
        /// Encryption algorithms, as OIDs.
        pub encr_algs: List<'a, Unbounded<'a>>,
        /// SSVs that are kept.
        pub window: u32,
        /// GSS handles that are made.
        pub num_gss_handles: u32,
    }
}

xdr_union! {
    /// How the client's state is protected (state_protect4_a; RFC 8881, section 18.35.1).
    pub enum StateProtect<'a> {
        /// Not.
        None = 0,
        /// By the machine credential.
        MachineCredential(StateProtectOps) = 1,
        /// By a secret state verifier.
        Ssv(SsvParameters<'a>) = 2,
    }
}

xdr_struct! {
    /// EXCHANGE_ID (RFC 8881, section 18.35).
    pub struct ExchangeId<'a> {
        /// The client.
        pub clientowner: ClientOwner<'a>,
        /// What it can.
        pub flags: ExchangeIdFlags,
        /// How its state is protected.
        pub state_protect: StateProtect<'a>,
        /// Which implementation it is.
        pub client_impl_id: Option<ImplementationId<'a>>,
    }
}

xdr_flags! {
    /// Flags of CREATE_SESSION and its result (RFC 8881, section 18.36.1).
    pub struct CreateSessionFlags {
        /// The reply cache survives a restart.
        const PERSIST = 0x1;
        /// The connection is the back channel's as well.
        const CONN_BACK_CHAN = 0x2;
        /// The connection is to be stepped up to RDMA.
        const CONN_RDMA = 0x4;
    }
}

xdr_struct! {
    /// What a channel of a session can carry (channel_attrs4; RFC 8881, section 18.36.1).
    pub struct ChannelAttributes {
        /// Bytes of padding in front of data.
        pub headerpadsize: u32,
        /// Bytes of the largest request, with the header of RPC.
        pub maxrequestsize: u32,
        /// Bytes of the largest reply, with the header of RPC.
        pub maxresponsesize: u32,
        /// Bytes of the largest reply that is cached.
        pub maxresponsesize_cached: u32,
        /// Most operations of a COMPOUND.
        pub maxoperations: u32,
        /// Most requests at once: the slots.
        pub maxrequests: u32,
        /// Inbound RDMA READs.
        pub rdma_ird: Option<u32>,
    }
}

xdr_struct! {
    /// A credential of AUTH_SYS (authsys_parms; RFC 5531, appendix A).
    pub struct AuthSysCredential<'a> {
        /// Any number.
        pub stamp: u32,
        /// The machine.
        pub machinename: Opaque<'a, AUTH_SYS_MACHINE_NAME_BYTES_MAX>,
        /// The user.
        pub uid: u32,
        /// The group.
        pub gid: u32,
        /// More groups.
        pub gids: BoundedList<'a, u32, AUTH_SYS_GIDS_MAX>,
    }
}

xdr_enum! {
    /// A service of RPCSEC_GSS (rpc_gss_svc_t; RFC 2203, section 5.2.2).
    pub enum RpcGssService {
        /// Authentication.
        None = 1,
        /// Integrity.
        Integrity = 2,
        /// Privacy.
        Privacy = 3,
    }
}

xdr_struct! {
    /// GSS contexts of the back channel (gss_cb_handles4; RFC 8881, section 18.33.1).
    pub struct GssCallbackHandles<'a> {
        /// The service.
        pub service: RpcGssService,
        /// The server's handle.
        pub handle_from_server: Unbounded<'a>,
        /// The client's handle.
        pub handle_from_client: Unbounded<'a>,
    }
}

xdr_union! {
    /// A credential that the server may use for callbacks (callback_sec_parms4; RFC 8881, section
    /// 18.33.1).
    pub enum CallbackSecurity<'a> {
        /// AUTH_NONE.
        None = 0,
        /// AUTH_SYS.
        Sys(AuthSysCredential<'a>) = 1,
        /// RPCSEC_GSS.
        Gss(GssCallbackHandles<'a>) = 6,
    }
}

xdr_struct! {
    /// CREATE_SESSION (RFC 8881, section 18.36).
    pub struct CreateSession<'a> {
        /// The client.
        pub clientid: ClientId,
        /// Of EXCHANGE_ID, then one more each time.
        pub sequence: u32,
        /// What is asked for.
        pub flags: CreateSessionFlags,
        /// The fore channel.
        pub fore_chan_attrs: ChannelAttributes,
        /// The back channel.
        pub back_chan_attrs: ChannelAttributes,
        /// The program number of callbacks.
        pub cb_program: u32,
        /// Credentials for callbacks.
        pub sec_parms: List<'a, CallbackSecurity<'a>>,
    }
}

xdr_struct! {
    /// BACKCHANNEL_CTL (RFC 8881, section 18.33).
    pub struct BackchannelCtl<'a> {
        /// The program number of callbacks.
        pub cb_program: u32,
        /// Credentials for callbacks.
        pub sec_parms: List<'a, CallbackSecurity<'a>>,
    }
}

xdr_enum! {
    /// Which channels a connection is to carry (channel_dir_from_client4; RFC 8881, section
    /// 18.34.1).
    pub enum ClientChannelDirection {
        /// The fore channel.
        Fore = 1,
        /// The back channel.
        Back = 2,
        /// The fore channel, and the back channel if the server wants.
        ForeOrBoth = 3,
        /// The back channel, and the fore channel if the server wants.
        BackOrBoth = 7,
    }
}

xdr_enum! {
    /// Which channels a connection carries (channel_dir_from_server4; RFC 8881, section 18.34.1).
    pub enum ChannelDirection {
        /// The fore channel.
        Fore = 1,
        /// The back channel.
        Back = 2,
        /// Both.
        Both = 3,
    }
}

xdr_struct! {
    /// BIND_CONN_TO_SESSION (RFC 8881, section 18.34).
    pub struct BindConnToSession {
        /// The session.
        pub sessid: SessionId,
        /// The channels.
        pub dir: ClientChannelDirection,
        /// Whether the connection is to be stepped up to RDMA.
        pub use_conn_in_rdma_mode: bool,
    }
}

xdr_struct! {
    /// SEQUENCE (RFC 8881, section 18.46).
    pub struct Sequence {
        /// The session.
        pub sessionid: SessionId,
        /// The number of the request in its slot.
        pub sequenceid: u32,
        /// The slot.
        pub slotid: u32,
        /// The highest slot in use.
        pub highest_slotid: u32,
        /// Whether the reply is to be cached.
        pub cachethis: bool,
    }
}

xdr_struct! {
    /// SET_SSV (RFC 8881, section 18.47).
    pub struct SetSsv<'a> {
        /// What is combined with the SSV.
        pub ssv: Unbounded<'a>,
        /// A digest of the request.
        pub digest: Unbounded<'a>,
    }
}

xdr_enum! {
    /// SECINFO_NO_NAME: of which object (secinfo_style4; RFC 8881, section 18.45).
    pub enum SecinfoStyle {
        /// The current one.
        CurrentFh = 0,
        /// Its parent.
        Parent = 1,
    }
}
