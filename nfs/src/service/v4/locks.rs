//! LOCK, LOCKT and LOCKU (RFC 8881, sections 18.10 to 18.12): of this server's clients by its
//! state, and of local users by the OFD locks that the same ranges have.

use std::sync::Arc;

use capstan_exports::file::{self, Conflict};
use capstan_exports::{FileError, OpenFile};
use capstan_nfs_proto::codec::Opaque;
use capstan_nfs_proto::v4::args;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::LockDenied;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, StateOwner, Stateid};
use nix::errno::Errno;

use super::context::{Context, File, Outcome, Results};
use super::io::check_regular;
use crate::service::failure::Failure;
use crate::state::{
    Denied, LockIntent, LockKind, LockRange, LockRefusal, LockRequest, LockTest, Locker, State,
};

/// What a local user's lock is told as: of a client that there is none of.
const LOCAL_OWNER: StateOwner<'static> = StateOwner {
    clientid: ClientId(0),
    owner: Opaque(b"local"),
};

/// What became of a change at the backend.
enum Carried {
    /// It was made, on this open file; on none where no file has such bytes.
    Out(Option<Arc<OpenFile>>),
    /// Another one's lock is in the way.
    Met(Conflict),
}

/// The range as the kernel has it.
fn local(range: &LockRange) -> Option<file::LockRange> {
    let range = range.local()?;
    Some(file::LockRange {
        start: u64::try_from(range.start).ok()?,
        length: u64::try_from(range.length).ok().filter(|&bytes| bytes > 0),
    })
}

const fn local_kind(kind: LockKind) -> file::LockKind {
    match kind {
        LockKind::Read => file::LockKind::Shared,
        LockKind::Write => file::LockKind::Exclusive,
    }
}

/// What the kernel says of a lock.
fn failure_of(error: FileError) -> Failure {
    match error.errno() {
        // The file cannot be opened for that, on a file system that is only read.
        Some(Errno::EBADF) => Status::OPENMODE.into(),
        // There is no room for more locks now.
        Some(Errno::ENOLCK) => Status::DELAY.into(),
        _ => error.into(),
    }
}

fn push_local(op: OpNum, met: Conflict, results: &mut Results<'_, '_>) -> Outcome {
    let locktype = match met.kind {
        file::LockKind::Shared => LockKind::Read,
        file::LockKind::Exclusive => LockKind::Write,
    };
    let denied = LockDenied {
        offset: met.range.start,
        length: met.range.length.unwrap_or(u64::MAX),
        locktype: locktype.into(),
        owner: LOCAL_OWNER,
    };
    Ok(results.push(&OpResult::LockDenied { op, denied })?)
}

fn push_denied(op: OpNum, denied: &Denied, results: &mut Results<'_, '_>) -> Outcome {
    let denied = LockDenied {
        offset: denied.range.offset(),
        length: denied.range.length(),
        locktype: denied.kind.into(),
        owner: StateOwner {
            clientid: denied.client,
            owner: Opaque(&denied.owner),
        },
    };
    Ok(results.push(&OpResult::LockDenied { op, denied })?)
}

impl Context<'_> {
    /// LOCK. Types that wait are not waited for: the client asks again.
    pub(super) fn lock(
        &mut self,
        arguments: &args::Lock<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let client = self.client()?;
        let file = self.file_or(Status::ISDIR)?;
        check_regular(&file)?;
        let locker = match &arguments.locker {
            args::Locker::New(new) => Locker::New {
                open: self.stateids.resolve(new.open_stateid)?,
                owner: new.lock_owner.owner.0,
            },
            args::Locker::Existing(existing) => Locker::Existing {
                lock: self.stateids.resolve(existing.lock_stateid)?,
            },
        };
        let request = LockRequest {
            client,
            file: &file.key,
            kind: arguments.locktype.into(),
            range: LockRange::new(arguments.offset, arguments.length)?,
            is_reclaim: arguments.reclaim,
            locker,
        };
        let intent = match self.begin(|state, now_us| state.begin_lock(&request, now_us))? {
            Ok(intent) => intent,
            Err(LockRefusal::Status(status)) => return Err(status.into()),
            Err(LockRefusal::Denied(denied)) => return push_denied(OpNum::LOCK, &denied, results),
        };
        match self.change_locks(&file, &intent) {
            Ok(Carried::Out(open)) => {
                let stateid = self.commit_locks(&intent, open)?;
                Ok(results.push(&OpResult::Lock(stateid))?)
            }
            Ok(Carried::Met(met)) => {
                self.roll_back(&intent);
                if request.is_reclaim {
                    return Err(Status::RECLAIM_CONFLICT.into());
                }
                push_local(OpNum::LOCK, met, results)
            }
            Err(failure) => {
                self.roll_back(&intent);
                Err(failure)
            }
        }
    }

    pub(super) fn unlock(
        &mut self,
        arguments: &args::Unlock,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let client = self.client()?;
        let file = self.file_or(Status::ISDIR)?;
        check_regular(&file)?;
        let range = LockRange::new(arguments.offset, arguments.length)?;
        let stateid = self.stateids.resolve(arguments.lock_stateid)?;
        let intent = self.begin(|state, now_us| {
            state.begin_unlock(client, &file.key, stateid, range, now_us)
        })??;
        match self.change_locks(&file, &intent) {
            // Nothing is in the way of an unlock.
            Ok(Carried::Out(open)) => {
                let stateid = self.commit_locks(&intent, open)?;
                Ok(results.push(&OpResult::LockU(stateid))?)
            }
            Ok(Carried::Met(_)) => {
                self.roll_back(&intent);
                Err(Status::SERVERFAULT.into())
            }
            Err(failure) => {
                self.roll_back(&intent);
                Err(failure)
            }
        }
    }

    pub(super) fn test_lock(
        &self,
        arguments: &args::TestLock<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let client = self.client()?;
        let file = self.file_or(Status::ISDIR)?;
        check_regular(&file)?;
        let test = LockTest {
            client,
            owner: arguments.owner.owner.0,
            file: &file.key,
            kind: arguments.locktype.into(),
            range: LockRange::new(arguments.offset, arguments.length)?,
        };
        let (tested, lock) = self.service.with_state(|state, now_us| {
            let lock = state.lock_of(client, &file.key, test.owner);
            (state.test_lock(&test, now_us), lock)
        })?;
        match tested {
            Ok(()) => {}
            Err(LockRefusal::Status(status)) => return Err(status.into()),
            Err(LockRefusal::Denied(denied)) => return push_denied(OpNum::LOCKT, &denied, results),
        }
        if let Some(range) = local(&test.range) {
            // The owner's own locks are not in its way.
            let open = match lock.and_then(|lock| self.service.files.locks(lock)) {
                Some(open) => open,
                None => Arc::new(file.node()?.open_for_locks(file::LockKind::Shared)?),
            };
            let met = open.conflict(range, local_kind(test.kind));
            if let Some(met) = met.map_err(failure_of)? {
                return push_local(OpNum::LOCKT, met, results);
            }
        }
        Ok(results.push(&OpResult::Done(OpNum::LOCKT))?)
    }

    /// Begins a change. One that has begun is ended, whatever becomes of stable storage.
    fn begin<E>(
        &self,
        begin: impl FnOnce(&mut State, u64) -> Result<LockIntent, E>,
    ) -> Result<Result<LockIntent, E>, Status> {
        let mut begun = None;
        let durable = self
            .service
            .with_state(|state, now_us| begun = Some(begin(state, now_us)));
        if let (Err(_), Some(Ok(intent))) = (durable, &begun) {
            self.roll_back(intent);
        }
        durable?;
        begun.ok_or(Status::SERVERFAULT)
    }

    /// Makes the change at the backend.
    fn change_locks(&self, file: &File, intent: &LockIntent) -> Result<Carried, Failure> {
        let open = self.service.files.locks(intent.lock);
        let Some(range) = local(&intent.change.range) else {
            return Ok(Carried::Out(open));
        };
        let Some(kind) = intent.change.kind else {
            if let Some(open) = &open {
                open.unlock(range).map_err(failure_of)?;
            }
            return Ok(Carried::Out(open));
        };
        let kind = local_kind(kind);
        let open = match open {
            Some(open) if kind == file::LockKind::Exclusive && !open.access().writes() => {
                self.open_to_write(file, intent, &open)?
            }
            Some(open) => open,
            None => Arc::new(file.node()?.open_for_locks(kind)?),
        };
        let met = open.lock(range, kind).map_err(failure_of)?;
        Ok(met.map_or_else(|| Carried::Out(Some(open)), Carried::Met))
    }

    /// A lock owner that had shared locks alone takes an exclusive one: its locks move to an open
    /// file that is open for writing. Both have them for a moment, so that they are never lost.
    fn open_to_write(
        &self,
        file: &File,
        intent: &LockIntent,
        before: &OpenFile,
    ) -> Result<Arc<OpenFile>, Failure> {
        let open = Arc::new(file.node()?.open_for_locks(file::LockKind::Exclusive)?);
        let held = self
            .service
            .update(|state, _now_us| state.ranges_of(intent.lock));
        for range in held.iter().filter_map(local) {
            let met = open.lock(range, file::LockKind::Shared);
            if met.map_err(failure_of)?.is_some() {
                // An exclusive lock of another one beside a shared one, which no kernel gives.
                return Err(Status::SERVERFAULT.into());
            }
        }
        // While nothing can take the locks away.
        self.service.files.keep_locks(intent.lock, open.clone());
        // Where a LOCKT has it in use.
        let all = file::LockRange {
            start: 0,
            length: None,
        };
        before.unlock(all).map_err(failure_of)?;
        Ok(open)
    }

    fn commit_locks(
        &mut self,
        intent: &LockIntent,
        open: Option<Arc<OpenFile>>,
    ) -> Result<Stateid, Failure> {
        let stateid = self.service.update(|state, _now_us| {
            let stateid = state.commit_lock(intent)?;
            if let Some(open) = open {
                // While nothing can take the locks away.
                self.service.files.keep_locks(intent.lock, open);
            }
            Ok::<_, Status>(stateid)
        })?;
        self.stateids.set(stateid);
        Ok(stateid)
    }

    fn roll_back(&self, intent: &LockIntent) {
        self.service
            .update(|state, _now_us| state.roll_back_lock(intent));
    }
}
