//! NFS version 3: every procedure (RFC 1813), over the files that version 4 serves as well.
//!
//! # Decisions
//! * No file is locked (NLM is absent: clients mount with `nolock`), and none is open: files are
//!   kept open for a while, and the kernel is asked at each READ and WRITE whether the user may.
//!   The owner always may (section 4.4 of the RFC).
//! * Share reservations of clients of version 4 are heeded. READ and WRITE go on in a grace period,
//!   as those of knfsd do.
//! * What a directory was before its entries change is told where that is certain, and what a file
//!   was before a change is not ([`context`]).
//! * A call that changes something and comes again is answered as before ([`duplicates`]).

mod attributes;
mod context;
mod convert;
mod data;
mod directories;
pub(super) mod duplicates;
mod entries;
mod failure;
mod file_systems;
mod limits;

use capstan_nfs_proto::v3::call::Call as Procedure;
use capstan_rpc_server::Call;
use capstan_rpcrdma::rpc::{Accepted, Call as Header, Reply};
use capstan_rpcrdma::xdr::{Reader, WriteError, Writer};

use super::Service;
use super::failure::was_short_of_descriptors;
use super::rpc::{Done, known};
use super::v4::compound::fingerprint;
use crate::state::State;
use duplicates::{Begun, CallKey};

pub(super) use attributes::Guards;
pub(super) use context::Context;
pub(super) use data::writer_of;
pub(super) use failure::Failure;

/// What a procedure is: it writes its result behind the header.
type Written = Result<(), WriteError>;

/// Carries out a procedure.
pub(super) fn carry_out(
    service: &Service,
    call: &Call<'_>,
    header: &Header<'_>,
    mut arguments: Reader<'_>,
    reply: &mut Writer<'_>,
) -> Done {
    let procedure = match known(Procedure::parse(header.procedure, &mut arguments), call) {
        Ok(procedure) => procedure,
        Err(refused) => return Done::Refused(refused),
    };
    if !changes_something(&procedure) {
        return answer(service, call, header, &procedure, reply);
    }
    let key = CallKey::new(call.peer.ip(), header, fingerprint(call.message));
    match service.duplicates.begin(key, service.now_us()) {
        Begun::New(under_way) => {
            let start = reply.offset();
            let done = answer(service, call, header, &procedure, reply);
            if let (Done::Reply, Some(whole)) = (&done, reply.written().get(start..)) {
                under_way.answered(whole, service.now_us());
            }
            done
        }
        Begun::Repeated(kept) => match reply.opaque_fixed(&kept) {
            Ok(()) => Done::Reply,
            Err(_full) => Done::Refused(Accepted::SystemError),
        },
        // Its reply goes where the first call came from, and is kept for the next time.
        Begun::UnderWay => Done::Nothing,
    }
}

/// Whether a procedure carried out twice does something else than once. A WRITE is one of them: the
/// second time it might undo a later one.
const fn changes_something(procedure: &Procedure<'_>) -> bool {
    match procedure {
        Procedure::SetAttr(_)
        | Procedure::Write(_)
        | Procedure::Create(_)
        | Procedure::MkDir(_)
        | Procedure::SymLink(_)
        | Procedure::MkNod(_)
        | Procedure::Remove(_)
        | Procedure::RmDir(_)
        | Procedure::Rename(_)
        | Procedure::Link(_) => true,
        Procedure::Null
        | Procedure::GetAttr(_)
        | Procedure::Lookup(_)
        | Procedure::Access(_)
        | Procedure::ReadLink(_)
        | Procedure::Read(_)
        | Procedure::ReadDir(_)
        | Procedure::ReadDirPlus(_)
        | Procedure::FsStat(_)
        | Procedure::FsInfo(_)
        | Procedure::PathConf(_)
        | Procedure::Commit(_) => false,
    }
}

fn answer(
    service: &Service,
    call: &Call<'_>,
    header: &Header<'_>,
    procedure: &Procedure<'_>,
    reply: &mut Writer<'_>,
) -> Done {
    let written = Reply::success(header.xid).write(reply).and_then(|()| {
        let context = Context::new(service, call, header);
        let start = reply.offset();
        // What failed before is not this procedure.
        let _before = was_short_of_descriptors();
        context.procedure(procedure, reply)?;
        if was_short_of_descriptors() {
            // The client is told to ask again, and is to find some then.
            let _any = service.with_state(State::expire_for_files);
        }
        let result = reply.written().get(start..);
        context.note(procedure, result.unwrap_or_default());
        Ok(())
    });
    match written {
        Ok(()) => Done::Reply,
        Err(full) => {
            tracing::error!(
                "{}: the reply to a call of NFS version 3: {full}",
                call.peer
            );
            Done::Refused(Accepted::SystemError)
        }
    }
}

impl Context<'_> {
    /// Counts a procedure that has this result: it begins with its status, unless there is none.
    fn note(&self, procedure: &Procedure<'_>, result: &[u8]) {
        let status = result
            .first_chunk()
            .map_or(0, |first| u32::from_be_bytes(*first));
        let counters = self.service.counters();
        counters.procedure(self.export.get().into(), procedure.procedure(), status);
    }

    /// Carries out a procedure, whose result follows the header of the reply.
    fn procedure(&self, procedure: &Procedure<'_>, to: &mut Writer<'_>) -> Written {
        match procedure {
            Procedure::Null => Ok(()),
            Procedure::GetAttr(handle) => self.get_attributes(*handle, to),
            Procedure::SetAttr(arguments) => self.set_attributes(arguments, to),
            Procedure::Lookup(place) => self.look_up(place, to),
            Procedure::Access(arguments) => self.access(arguments, to),
            Procedure::ReadLink(handle) => self.read_link(*handle, to),
            Procedure::Read(arguments) => self.read(arguments, to),
            Procedure::Write(arguments) => self.write(arguments, to),
            Procedure::Create(arguments) => self.create(arguments, to),
            Procedure::MkDir(arguments) => self.make_directory(arguments, to),
            Procedure::SymLink(arguments) => self.make_symlink(arguments, to),
            Procedure::MkNod(arguments) => self.make_special(arguments, to),
            Procedure::Remove(place) => self.remove(place, to),
            Procedure::RmDir(place) => self.remove_directory(place, to),
            Procedure::Rename(arguments) => self.rename(arguments, to),
            Procedure::Link(arguments) => self.link(arguments, to),
            Procedure::ReadDir(arguments) => self.read_directory(arguments, to),
            Procedure::ReadDirPlus(arguments) => self.read_directory_plus(arguments, to),
            Procedure::FsStat(handle) => self.file_system_space(*handle, to),
            Procedure::FsInfo(handle) => self.file_system_limits(*handle, to),
            Procedure::PathConf(handle) => self.path_limits(*handle, to),
            Procedure::Commit(arguments) => self.commit(arguments, to),
        }
    }
}
