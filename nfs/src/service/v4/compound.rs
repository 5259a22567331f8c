//! A COMPOUND from its header to its last result (RFC 8881, section 16.2, and for what a session
//! adds section 2.10.6).

use std::cell::Cell;

use capstan_nfs_proto::v4::args::Sequence;
use capstan_nfs_proto::v4::compound::{Compound, OpError, Operations};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::reply::{ReplyBounds, ReplyEncoder, SEQUENCE_RESULT_BYTES};
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_rpc_server::Call;
use capstan_rpcrdma::rpc::{Accepted, Call as Header, Reply};
use capstan_rpcrdma::xdr::{Reader, Writer};

use super::budget::Budget;
use super::context::{Context, OPERATIONS_AT_ONCE, Outcome, User, Waits};
use super::operations::{changes_something, may_be_alone, may_be_repeated};
use crate::service::Service;
use crate::service::failure::was_short_of_descriptors;
use crate::service::rpc::Done;
use crate::state::{CurrentStateid, InSession, RequestShape, Sequenced, State};

/// Bytes that the result of an operation takes at most when it has changed something in a session:
/// OPEN has its stateid, the directory's change, flags, attributes that were set and that there is
/// no delegation (84), CREATE_SESSION both channels (112). EXCHANGE_ID, with what the server calls
/// itself, is not in a session as a rule, and may be repeated.
const CHANGING_RESULT_BYTES_MAX: u64 = 256;

/// Carries out a COMPOUND.
pub(in crate::service) fn carry_out(
    service: &Service,
    call: &Call<'_>,
    header: &Header<'_>,
    arguments: Reader<'_>,
    reply: &mut Writer<'_>,
) -> Done {
    let Ok(compound) = Compound::parse(arguments) else {
        return Done::Refused(Accepted::GarbageArguments);
    };
    carry_out_parsed(service, call, header, &compound, Waits::May, reply)
        .unwrap_or(Done::Refused(Accepted::SystemError))
}

/// Carries out a COMPOUND that is the READ of a file which its client has open, where the data is
/// in memory; `None` for any other, of which nothing was done.
pub(in crate::service) fn carry_out_at_once(
    service: &Service,
    call: &Call<'_>,
    header: &Header<'_>,
    arguments: Reader<'_>,
    reply: &mut Writer<'_>,
) -> Option<Done> {
    let compound = Compound::parse(arguments).ok()?;
    // Before any of them is done: what would have to wait in the middle could not be undone.
    let mut operations = compound.operations().ok()?;
    let mut next = || operations.next().and_then(Result::ok);
    let (Some(Op::Sequence(_)), Some(Op::PutFh(_)), Some(Op::Read(_)), None) =
        (next(), next(), next(), next())
    else {
        return None;
    };
    carry_out_parsed(service, call, header, &compound, Waits::MayNot, reply)
}

/// `None` where something would have had to be waited for and may not be: nothing was done then.
fn carry_out_parsed(
    service: &Service,
    call: &Call<'_>,
    header: &Header<'_>,
    compound: &Compound<'_>,
    waits: Waits,
    reply: &mut Writer<'_>,
) -> Option<Done> {
    if Reply::success(header.xid).write(reply).is_err() {
        return Some(Done::Refused(Accepted::SystemError));
    }
    let body = reply.mark();
    let body_offset = reply.offset();
    let ended = match ReplyEncoder::new(reply, compound.tag) {
        Ok(results) => carry_out_operations(service, call, header, compound, waits, results),
        Err(_full) => return Some(Done::Refused(Accepted::SystemError)),
    };
    match ended {
        Ended::Replayed(kept) => {
            reply.rewind(body);
            if reply.opaque_fixed(&kept).is_err() {
                return Some(Done::Refused(Accepted::SystemError));
            }
        }
        Ended::New(request) => {
            // Data that went elsewhere is not kept, and the reply would be nothing without it.
            let is_whole = reply.reduced_items().is_empty();
            let kept = reply.written().get(body_offset..).filter(|_| is_whole);
            service.update(|state, _now_us| state.complete(&request, kept));
        }
        Ended::WouldWait(request) => {
            if let Some(request) = request {
                service.update_now(|state, _now_us| state.withdraw(&request));
            }
            return None;
        }
        Ended::WithoutSession => {}
    }
    Some(Done::Reply)
}

/// How the operations of a COMPOUND ended.
enum Ended {
    /// They were of a new request of a session.
    New(InSession),
    /// The request was carried out before: this was its reply.
    Replayed(std::sync::Arc<[u8]>),
    /// One would have had to wait, and may not: none was done.
    WouldWait(Option<InSession>),
    /// They were of no session.
    WithoutSession,
}

fn carry_out_operations(
    service: &Service,
    call: &Call<'_>,
    header: &Header<'_>,
    compound: &Compound<'_>,
    waits: Waits,
    mut results: ReplyEncoder<'_, '_>,
) -> Ended {
    let mut operations = match compound.operations() {
        Ok(operations) => operations,
        Err(status) => {
            results.finish_with(status);
            return Ended::WithoutSession;
        }
    };
    let mut context = Context {
        service,
        exports: service.exports(),
        call,
        user: User::of(&header.credentials),
        minor_version: operations.minor_version(),
        in_session: None,
        is_last: false,
        next: None,
        waits: Cell::new(waits),
        uncounted: [None; OPERATIONS_AT_ONCE],
        budget: Budget::default(),
        current: None,
        saved: None,
        stateids: CurrentStateid::new(),
    };
    // Without an operation there is nothing to be done (RFC 8881, section 16.2.3).
    if let Some(first) = operations.next() {
        context.is_last = operations.left() == 0;
        match first {
            Ok(Op::Sequence(arguments)) => {
                let shape = RequestShape {
                    fingerprint: fingerprint(call.message),
                    operations: compound.operations,
                    bytes: u32::try_from(call.message.len()).unwrap_or(u32::MAX),
                    reply_bytes: u32::try_from(results.bytes_with(SEQUENCE_RESULT_BYTES))
                        .unwrap_or(u32::MAX),
                };
                match begin(&mut context, &arguments, &shape, &mut results) {
                    Begun::New => carry_out_rest(&mut context, operations, &mut results),
                    Begun::Replayed(kept) => {
                        results.finish();
                        return Ended::Replayed(kept);
                    }
                    Begun::Uncached => refuse_next(operations, &mut results),
                    Begun::Failed => {}
                }
            }
            Ok(op) if !may_be_alone(op.num()) => {
                fail(op.num(), Status::OP_NOT_IN_SESSION, &mut results);
            }
            Ok(op) if !context.is_last => fail(op.num(), Status::NOT_ONLY_OP, &mut results),
            first => {
                step(&mut context, first, &mut results);
            }
        }
    }
    results.finish();
    if context.waits.get() == Waits::Would {
        return Ended::WouldWait(context.in_session);
    }
    context.count();
    match context.in_session {
        Some(request) => Ended::New(request),
        None => Ended::WithoutSession,
    }
}

/// What SEQUENCE has begun.
enum Begun {
    New,
    Replayed(std::sync::Arc<[u8]>),
    Uncached,
    Failed,
}

fn begin(
    context: &mut Context<'_>,
    arguments: &Sequence,
    shape: &RequestShape,
    results: &mut ReplyEncoder<'_, '_>,
) -> Begun {
    let peer = context.peer();
    let work = |state: &mut State, now_us| state.sequence(arguments, shape, &peer, now_us);
    let sequenced = if context.may_wait() {
        context.service.update(work)
    } else {
        context.service.update_now(work)
    };
    match sequenced {
        Ok(Sequenced::New(request, ok)) => {
            context.note(OpNum::SEQUENCE, Status::OK);
            results.set_bounds(ReplyBounds {
                max_bytes: request.response_bytes_max.into(),
                max_cached_bytes: request.cached_bytes_max.map(u64::from),
            });
            context.in_session = Some(request);
            match results.push(&OpResult::Sequence(ok)) {
                Ok(()) => Begun::New,
                Err(no_room) => {
                    fail(OpNum::SEQUENCE, no_room.status(), results);
                    Begun::Failed
                }
            }
        }
        Ok(Sequenced::Replay(kept)) => Begun::Replayed(kept),
        Ok(Sequenced::Uncached(ok)) => match results.push(&OpResult::Sequence(ok)) {
            Ok(()) => Begun::Uncached,
            Err(_no_room) => Begun::Failed,
        },
        Err(status) => {
            context.note(OpNum::SEQUENCE, status);
            fail(OpNum::SEQUENCE, status, results);
            Begun::Failed
        }
    }
}

fn carry_out_rest(
    context: &mut Context<'_>,
    mut operations: Operations<'_>,
    results: &mut ReplyEncoder<'_, '_>,
) {
    while let Some(op) = operations.next() {
        context.is_last = operations.left() == 0;
        context.next = operations.peek();
        if let Ok(Op::BindConnToSession(_)) = op {
            // RFC 8881, section 18.34.3.
            fail(OpNum::BIND_CONN_TO_SESSION, Status::NOT_ONLY_OP, results);
            return;
        }
        if !step(context, op, results) {
            return;
        }
    }
}

/// Carries out one operation: whether the next one is to follow.
fn step(
    context: &mut Context<'_>,
    op: Result<Op<'_>, OpError>,
    results: &mut ReplyEncoder<'_, '_>,
) -> bool {
    let op = match op {
        Ok(op) => op,
        Err(error) => {
            tracing::debug!("{}: {error}", context.call.peer);
            context.note(error.op(), error.status());
            fail(error.op(), error.status(), results);
            return false;
        }
    };
    if changes_something(op.num()) && results.room_bytes() < CHANGING_RESULT_BYTES_MAX {
        fail(op.num(), Status::REP_TOO_BIG, results);
        return false;
    }
    if let Err(failure) = with_descriptors(context, &op, results) {
        fail(op.num(), failure.0, results);
    }
    context.note(op.num(), results.status());
    results.status() == Status::OK
}

/// Carries out an operation; once more, where the process has no descriptor left for it and clients
/// whose leases have expired had some.
fn with_descriptors(
    context: &mut Context<'_>,
    op: &Op<'_>,
    results: &mut ReplyEncoder<'_, '_>,
) -> Outcome {
    // What failed before is not this operation.
    let _before = was_short_of_descriptors();
    let outcome = context.operation(op, results);
    let is_short = outcome.is_err() && was_short_of_descriptors();
    if is_short && context.may_wait() && may_be_repeated(op.num()) {
        let given_up = context.service.with_state(State::expire_for_files);
        if given_up == Ok(true) {
            return context.operation(op, results);
        }
    }
    outcome
}

/// The operation behind the SEQUENCE of a request whose reply was not kept (RFC 8881, section
/// 2.10.6.1.3).
fn refuse_next(mut operations: Operations<'_>, results: &mut ReplyEncoder<'_, '_>) {
    match operations.next() {
        Some(Ok(op)) => fail(op.num(), Status::RETRY_UNCACHED_REP, results),
        Some(Err(error)) => fail(error.op(), error.status(), results),
        None => {}
    }
}

/// Adds the result of an operation that failed, for which every result before has left room.
fn fail(op: OpNum, status: Status, results: &mut ReplyEncoder<'_, '_>) {
    if let Err(no_room) = results.push(&OpResult::Failed { op, status }) {
        tracing::error!("{op} failed with {status}, and {no_room}");
    }
}

/// Bytes of a message that tell it from another one with the same number: those of headers, names
/// and stateids, not all the data of a WRITE.
const FINGERPRINT_BYTES: usize = 1024;

/// A hash of a request without its XID, which a repeated one may have another of (RFC 8881, section
/// 2.10.6.1.3.1).
pub(in crate::service) fn fingerprint(message: &[u8]) -> u64 {
    let behind_xid = message.get(4..).unwrap_or_default();
    let hashed = behind_xid.get(..FINGERPRINT_BYTES).unwrap_or(behind_xid);
    let length = u64::try_from(message.len()).unwrap_or(u64::MAX);
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, hashed) ^ length.rotate_right(16)
}
