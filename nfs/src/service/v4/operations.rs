//! Which function carries out an operation.

use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::status::Status;

use super::context::{Context, Outcome, Results};

impl Context<'_> {
    /// Carries out an operation that may be where it is.
    ///
    /// # Errors
    /// It failed, or is to be sent again as those before it took long, and nothing was added to
    /// `results`.
    pub(super) fn operation(&mut self, op: &Op<'_>, results: &mut Results<'_, '_>) -> Outcome {
        self.budget.check(op.num())?;
        match op {
            Op::PutRootFh | Op::PutPubFh => self.put_root(op.num(), results),
            Op::PutFh(handle) => self.put(*handle, results),
            Op::GetFh => self.get_handle(results),
            Op::SaveFh => self.save(results),
            Op::RestoreFh => self.restore(results),
            Op::Lookup(name) => self.look_up(*name, results),
            Op::LookupP => self.look_up_parent(results),

            Op::ExchangeId(arguments) => self.exchange_id(arguments, results),
            Op::CreateSession(arguments) => self.create_session(arguments, results),
            Op::BindConnToSession(arguments) => self.bind_connection(arguments, results),
            Op::DestroySession(session) => self.destroy_session(*session, results),
            Op::DestroyClientId(client) => self.destroy_client(*client, results),
            Op::ReclaimComplete(one_fs) => self.reclaim_complete(*one_fs, results),
            Op::TestStateid(stateids) => self.test_stateids(*stateids, results),
            Op::FreeStateid(stateid) => self.free_stateid(*stateid, results),
            Op::BackchannelCtl(_) => self.backchannel_ctl(results),
            // It is answered where it may be, in front of all others.
            Op::Sequence(_) => Err(Status::SEQUENCE_POS.into()),

            // Attributes and names.
            Op::Access(asked) => self.access(*asked, results),
            Op::GetAttr(requested) => self.get_attributes(requested, results),
            Op::SetAttr(arguments) => self.set_attributes(arguments, results),
            Op::Verify(expected) => self.verify(expected, results),
            Op::NVerify(expected) => self.verify_not(expected, results),
            Op::ReadDir(arguments) => self.read_directory(arguments, results),
            Op::ReadLink => self.read_link(results),
            Op::Create(arguments) => self.create(arguments, results),
            Op::Remove(name) => self.remove(*name, results),
            Op::Rename(arguments) => self.rename(arguments, results),
            Op::Link(name) => self.link(*name, results),
            Op::SecInfo(name) => self.security_of(*name, results),
            Op::SecInfoNoName(style) => self.security_without_name(*style, results),
            Op::GetXattr(name) => self.xattr(*name, results),
            Op::SetXattr(arguments) => self.set_xattr(arguments, results),
            Op::ListXattrs(arguments) => self.list_xattrs(*arguments, results),
            Op::RemoveXattr(name) => self.remove_xattr(*name, results),

            // Opens, data and locks.
            Op::Open(arguments) => self.open(arguments, results),
            Op::Close(arguments) => self.close(arguments, results),
            Op::OpenDowngrade(arguments) => self.open_downgrade(arguments, results),
            Op::Read(arguments) => self.read(arguments, results),
            Op::Write(arguments) => self.write(arguments, results),
            Op::Commit(_) => self.commit(results),
            Op::Seek(arguments) => self.seek(arguments, results),
            Op::Allocate(arguments) | Op::Deallocate(arguments) => {
                self.allocate(op.num(), arguments, results)
            }
            Op::IoAdvise(arguments) => self.io_advise(arguments, results),
            Op::Lock(arguments) => self.lock(arguments, results),
            Op::LockT(arguments) => self.test_lock(arguments, results),
            Op::LockU(arguments) => self.unlock(arguments, results),
            Op::Copy(arguments) => self.copy(arguments, results),
            Op::Clone(arguments) => self.clone_range(arguments, results),
            Op::OffloadCancel(_) | Op::OffloadStatus(_) => self.no_offload(),

            // No delegations, layouts, named attributes, SSV, copies between servers, and holes are
            // told by SEEK (RFC 7862, section 11: all of them OPTIONAL).
            Op::DelegPurge(_)
            | Op::DelegReturn(_)
            | Op::OpenAttr(_)
            | Op::GetDirDelegation(_)
            | Op::GetDeviceInfo(_)
            | Op::GetDeviceList(_)
            | Op::LayoutCommit(_)
            | Op::LayoutGet(_)
            | Op::LayoutReturn(_)
            | Op::SetSsv(_)
            | Op::WantDelegation(_)
            | Op::CopyNotify(_)
            | Op::LayoutError(_)
            | Op::LayoutStats(_)
            | Op::ReadPlus(_)
            | Op::WriteSame(_)
            | Op::OfV40(_) => Err(Status::NOTSUPP.into()),
        }
    }
}

/// Whether an operation is allowed without a session, where it is the only one (RFC 8881, section
/// 2.10.1 and 18.37.3).
pub(super) const fn may_be_alone(op: OpNum) -> bool {
    matches!(
        op,
        OpNum::EXCHANGE_ID
            | OpNum::CREATE_SESSION
            | OpNum::DESTROY_SESSION
            | OpNum::BIND_CONN_TO_SESSION
            | OpNum::DESTROY_CLIENTID
    )
}

/// Whether an operation changes something, so that its result has to have room before it begins.
pub(super) const fn changes_something(op: OpNum) -> bool {
    matches!(
        op,
        OpNum::CLOSE
            | OpNum::CREATE
            | OpNum::LINK
            | OpNum::LOCK
            | OpNum::LOCKU
            | OpNum::OPEN
            | OpNum::OPEN_DOWNGRADE
            | OpNum::REMOVE
            | OpNum::RENAME
            | OpNum::SETATTR
            | OpNum::WRITE
            | OpNum::EXCHANGE_ID
            | OpNum::CREATE_SESSION
            | OpNum::DESTROY_SESSION
            | OpNum::DESTROY_CLIENTID
            | OpNum::FREE_STATEID
            | OpNum::RECLAIM_COMPLETE
            | OpNum::ALLOCATE
            | OpNum::DEALLOCATE
            | OpNum::COPY
            | OpNum::CLONE
            | OpNum::SETXATTR
            | OpNum::REMOVEXATTR
    )
}

/// Whether an operation that has failed for want of a descriptor has done nothing: what changes
/// something may have done some of it, but OPEN makes a file with its descriptor or not at all.
pub(super) const fn may_be_repeated(op: OpNum) -> bool {
    matches!(op, OpNum::OPEN | OpNum::LOCK) || !changes_something(op)
}
