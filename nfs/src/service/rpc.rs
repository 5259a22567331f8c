//! The header of a call, and which procedure it is for (RFC 5531, section 9).

use capstan_nfs_proto::NFS_PROGRAM;
use capstan_nfs_proto::mount::{MOUNT_PROGRAM, MOUNT_V3};
use capstan_nfs_proto::v3::NFS_V3;
use capstan_nfs_proto::v4::{NFS_V4, PROC_COMPOUND, PROC_NULL};
use capstan_rpc_server::{Call, Outcome, PEER_REPEATS, Wire};
use capstan_rpcrdma::rpc::{Accepted, AuthStat, Call as Header, CallError, Denied, Reply};
use capstan_rpcrdma::xdr::{ReadError, Reader, Writer};

use super::{Service, mount, v3, v4};

/// What a procedure has done.
pub(super) enum Done {
    /// Its results follow the header, which it has written.
    Reply,
    /// There is no reply, and nothing was written.
    Nothing,
    /// It was not carried out, and nothing was written.
    Refused(Accepted),
}

/// Carries out a call.
pub(super) fn carry_out(service: &Service, call: &Call<'_>, reply: &mut Writer<'_>) -> Outcome {
    let start = reply.mark();
    let tell = |denied: Denied| {
        let ip = call.peer.ip().to_canonical();
        tracing::info!(
            target: PEER_REPEATS,
            "{ip} is refused a call: {denied}; expected sec=sys and no xprtsec=tls or mtls (mount \
             with that): there is no Kerberos and no TLS"
        );
    };
    let (header, arguments) = match header(call, reply, tell) {
        Ok(read) => read,
        Err(outcome) => return outcome,
    };
    match procedure(service, call, &header, arguments, reply) {
        Done::Reply => Outcome::Reply,
        Done::Nothing => Outcome::None,
        Done::Refused(accepted) => {
            reply.rewind(start);
            written(&Reply::accepted(header.xid, accepted), reply)
        }
    }
}

/// Carries out a call that need not wait for anything; `None` for any other, of which nothing was
/// done.
pub(super) fn carry_out_at_once(
    service: &Service,
    call: &Call<'_>,
    reply: &mut Writer<'_>,
) -> Option<Outcome> {
    let mut arguments = call.reader;
    let header = Header::read(&mut arguments).ok()?;
    let is_compound =
        (header.program, header.version, header.procedure) == (NFS_PROGRAM, NFS_V4, PROC_COMPOUND);
    if !is_compound {
        return None;
    }
    let done = v4::compound::carry_out_at_once(service, call, &header, arguments, reply)?;
    matches!(done, Done::Reply).then_some(Outcome::Reply)
}

/// Reads the header of a call, whose arguments follow it.
///
/// # Errors
/// What comes of a call without one that can be taken. `tell` is called when it is denied.
fn header<'m>(
    call: &Call<'m>,
    reply: &mut Writer<'_>,
    tell: impl FnOnce(Denied),
) -> Result<(Header<'m>, Reader<'m>), Outcome> {
    let mut arguments = call.reader;
    match Header::read(&mut arguments) {
        Ok(header) => Ok((header, arguments)),
        Err(CallError::Unreadable(_)) => Err(Outcome::End),
        Err(CallError::NotACall { .. }) => Err(Outcome::None),
        Err(CallError::Denied { xid, denied }) => {
            tell(denied);
            Err(written(&Reply::denied(xid, denied), reply))
        }
    }
}

/// Answers a call of a client that is in no network of any export, as the kernel's server does: it
/// finds the programs there, and all that it asks of them is denied (RFC 5531, section 9).
/// Mounting then says that the server denies access.
pub(super) fn refuse(call: &Call<'_>, reply: &mut Writer<'_>) -> Outcome {
    let header = match header(call, reply, |_denied| {}) {
        Ok((header, _arguments)) => header,
        Err(outcome) => return outcome,
    };
    let is_served = [NFS_PROGRAM, MOUNT_PROGRAM].contains(&header.program);
    let answer = match header.procedure {
        PROC_NULL if is_served => Reply::success(header.xid),
        _ => Reply::denied(header.xid, Denied::Auth(AuthStat::BADCRED)),
    };
    written(&answer, reply)
}

fn written(answer: &Reply, reply: &mut Writer<'_>) -> Outcome {
    match answer.write(reply) {
        Ok(()) => Outcome::Reply,
        // No buffer of a transport is as small as that.
        Err(_full) => Outcome::End,
    }
}

fn procedure(
    service: &Service,
    call: &Call<'_>,
    header: &Header<'_>,
    arguments: Reader<'_>,
    reply: &mut Writer<'_>,
) -> Done {
    match (header.program, header.version) {
        (NFS_PROGRAM, NFS_V4) => match header.procedure {
            PROC_NULL => nothing(header, reply),
            PROC_COMPOUND => v4::compound::carry_out(service, call, header, arguments, reply),
            _ => Done::Refused(Accepted::ProcedureUnavailable),
        },
        (NFS_PROGRAM, NFS_V3) => v3::carry_out(service, call, header, arguments, reply),
        (NFS_PROGRAM, _) => Done::Refused(Accepted::ProgramMismatch {
            low: NFS_V3,
            high: NFS_V4,
        }),
        // Clients of RDMA have it over TCP (RFC 8267, section 5.1).
        (MOUNT_PROGRAM, _) if call.wire != Wire::Tcp => Done::Refused(Accepted::ProgramUnavailable),
        (MOUNT_PROGRAM, MOUNT_V3) => mount::carry_out(service, call, header, arguments, reply),
        (MOUNT_PROGRAM, _) => Done::Refused(Accepted::ProgramMismatch {
            low: MOUNT_V3,
            high: MOUNT_V3,
        }),
        _ => Done::Refused(Accepted::ProgramUnavailable),
    }
}

/// A procedure that was parsed with its arguments.
///
/// # Errors
/// PROC_UNAVAIL where the program has none of the number, GARBAGE_ARGS where they cannot be read.
pub(super) fn known<P>(
    parsed: Result<Option<P>, ReadError>,
    call: &Call<'_>,
) -> Result<P, Accepted> {
    match parsed {
        Ok(procedure) => procedure.ok_or(Accepted::ProcedureUnavailable),
        Err(error) => {
            tracing::debug!("{}: {error}", call.peer);
            Err(Accepted::GarbageArguments)
        }
    }
}

/// The procedure 0 of every program.
fn nothing(header: &Header<'_>, reply: &mut Writer<'_>) -> Done {
    match Reply::success(header.xid).write(reply) {
        Ok(()) => Done::Reply,
        Err(_full) => Done::Refused(Accepted::SystemError),
    }
}
