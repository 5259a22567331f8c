//! Calls of RPC and COMPOUNDs as bytes, and arguments that a client begins with.

use capstan_nfs_proto::NFS_PROGRAM;
use capstan_nfs_proto::codec::{List, Opaque};
use capstan_nfs_proto::v4::args::{
    ChannelAttributes, CreateSession, CreateSessionFlags, ExchangeId, ExchangeIdFlags, StateProtect,
};
use capstan_nfs_proto::v4::client::{CompoundEncoder, Reply};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, ClientOwner, Verifier};
use capstan_nfs_proto::v4::{NFS_V4, PROC_COMPOUND};
use capstan_rpcrdma::rpc::{AuthSys, Call, Credentials, Gids};
use capstan_rpcrdma::xdr::{Reader, Writer};

/// Writes the header of a call of the user with these IDs, whose arguments follow (RFC 5531,
/// section 9).
///
/// # Panics
/// When it does not fit.
pub fn write_header(
    to: &mut Writer<'_>,
    xid: u32,
    (program, version, procedure): (u32, u32, u32),
    (uid, gid): (u32, u32),
) {
    let credentials = Credentials::Sys(AuthSys {
        stamp: 0,
        machine_name: b"client",
        uid,
        gid,
        gids: Gids::default(),
    });
    let header = Call {
        xid,
        program,
        version,
        procedure,
        credentials,
    };
    header.write(to).expect("room for the header of a call");
}

/// Writes a call of just these operations, without a tag, as Linux clients do.
///
/// # Panics
/// When it does not fit.
pub fn write_compound(
    to: &mut Writer<'_>,
    xid: u32,
    ids: (u32, u32),
    minor_version: u32,
    ops: &[Op<'_>],
) {
    write_header(to, xid, (NFS_PROGRAM, NFS_V4, PROC_COMPOUND), ids);
    let compound = CompoundEncoder::new(to, Opaque(b""), minor_version);
    let mut compound = compound.expect("room for a COMPOUND");
    for op in ops {
        compound.push(op).expect("room for all operations");
    }
}

/// Reads the reply of a COMPOUND behind the header of RPC, and gives its status and results to
/// `look`.
///
/// # Panics
/// When it is none.
pub fn read_compound<T>(from: Reader<'_>, look: impl FnOnce(Status, &[OpResult<'_>]) -> T) -> T {
    let mut reply = Reply::decode(from).expect("the reply of a COMPOUND");
    let results: Result<Vec<_>, _> = reply.by_ref().collect();
    let results = results.expect("results");
    reply.finish().expect("nothing behind the results");
    look(reply.status, &results)
}

/// EXCHANGE_ID of an instance of a client.
#[must_use]
pub const fn exchange_id(owner: &[u8], verifier: [u8; 8]) -> ExchangeId<'_> {
    ExchangeId {
        clientowner: ClientOwner {
            verifier: Verifier(verifier),
            ownerid: Opaque(owner),
        },
        flags: ExchangeIdFlags::empty(),
        state_protect: StateProtect::None,
        client_impl_id: None,
    }
}

/// CREATE_SESSION of a session of so many slots, whose replies are kept up to `kept_bytes`; of all
/// else it asks for more than there is.
#[must_use]
pub fn create_session(
    clientid: ClientId,
    sequence: u32,
    slots: u32,
    kept_bytes: u32,
) -> CreateSession<'static> {
    let channel = ChannelAttributes {
        headerpadsize: 0,
        maxrequestsize: 2 << 20,
        maxresponsesize: 2 << 20,
        maxresponsesize_cached: kept_bytes,
        maxoperations: 64,
        maxrequests: slots,
        rdma_ird: None,
    };
    CreateSession {
        clientid,
        sequence,
        flags: CreateSessionFlags::empty(),
        fore_chan_attrs: channel,
        back_chan_attrs: channel,
        cb_program: 0,
        sec_parms: List::default(),
    }
}
