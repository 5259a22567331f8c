//! READ, WRITE, COMMIT, and the other operations on the data of one file: SEEK, ALLOCATE,
//! DEALLOCATE and IO_ADVISE (RFC 8881, sections 18.3, 18.22 and 18.32; RFC 7862, sections 15.1,
//! 15.4, 15.5 and 15.11).

use std::sync::Arc;

use capstan_exports::unsynced::{Stable, WriterId};
use capstan_exports::{FileType, OpenAccess, OpenFile};
use capstan_memory::RawBytes;
use capstan_nfs_proto::codec::DataItem;
use capstan_nfs_proto::v4::args::{self, SeekTarget};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::reply::READ_RESULT_BYTES;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::{ReadOk, SeekOk, WriteOk};
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{StableHow, Stateid, Verifier};
use capstan_rpc_server::Data;

use super::attributes::IO_BYTES_MAX;
use super::context::{Context, File, Outcome, Results};
use crate::service::failure::Failure;
use crate::state::limits::RESPONSE_BYTES_MAX;
use crate::state::{IoAccess, IoPermit};

const _: () = assert!(IO_BYTES_MAX < RESPONSE_BYTES_MAX);

/// The largest offset of a file, and the most bytes that one has.
const OFFSET_MAX: u64 = i64::MAX.cast_unsigned();

/// # Errors
/// NFS4ERR_ISDIR, NFS4ERR_SYMLINK, NFS4ERR_WRONG_TYPE (RFC 8881, section 18.22.3).
pub(super) fn check_regular(file: &File) -> Result<(), Failure> {
    let status = match file.node()?.file_type() {
        FileType::Regular => return Ok(()),
        FileType::Directory => Status::ISDIR,
        FileType::Symlink => Status::SYMLINK,
        FileType::Block | FileType::Character | FileType::Socket | FileType::Fifo => {
            Status::WRONG_TYPE
        }
    };
    Err(status.into())
}

pub(super) const fn stable_how(stable: Stable) -> StableHow {
    match stable {
        Stable::Unstable => StableHow::Unstable,
        Stable::Data => StableHow::DataSync,
        Stable::File => StableHow::FileSync,
    }
}

impl Context<'_> {
    /// The file that a stateid lets the client read or write: that of an open, which is the
    /// caller's or which the kernel lets it open as well, or with a special stateid one that the
    /// kernel lets the caller open.
    ///
    /// # Errors
    /// Of [`check_regular`], `State::check_io` and `OpenFiles::open`.
    pub(super) fn file_for_io(
        &self,
        file: &File,
        stateid: Stateid,
        access: IoAccess,
    ) -> Result<Arc<OpenFile>, Failure> {
        let client = self.client()?;
        let stateid = self.stateids.resolve(stateid)?;
        let permit = self.with_state(|state, now_us| {
            state.check_io(client, &file.key, stateid, access, now_us)
        })?;
        let is_open = matches!(permit, Ok(IoPermit { open: Some(_) }));
        if !is_open {
            if !self.may_wait() {
                return Err(self.would_wait());
            }
            // What is open is one.
            check_regular(file)?;
        }
        let permit = permit?;
        if let Some(open) = permit.open {
            // Another request may have closed it meanwhile.
            let open = self.service.files.open(open, access);
            let open = open.ok_or(Status::BAD_STATEID)?;
            if open.is_opened_for(&file.caller) {
                return Ok(open);
            }
            // Each user of a client can name its stateids, and may not all that another one may.
            if !self.may_wait() {
                return Err(self.would_wait());
            }
            self.open_special(file, access)?;
            return Ok(open);
        }
        self.open_special(file, access)
    }

    /// The file as the kernel lets the caller open it, without an open of its own.
    fn open_special(&self, file: &File, access: IoAccess) -> Result<Arc<OpenFile>, Failure> {
        let access = match access {
            IoAccess::Read => OpenAccess::Read,
            IoAccess::Write => OpenAccess::Write,
        };
        let cached = &self.service.cached;
        Ok(cached.open(file.node()?, &file.caller, access)?)
    }

    /// Whose writes those of this request are.
    pub(super) fn writer(&self) -> Result<WriterId, Status> {
        self.client().map(|client| WriterId(client.0))
    }

    pub(super) fn verifier(&self) -> Verifier {
        Verifier(self.service.unsynced.verifier())
    }

    pub(super) fn read(&self, arguments: &args::Read, results: &mut Results<'_, '_>) -> Outcome {
        let file = self.file_or(Status::ISDIR)?;
        let open = self.file_for_io(&file, arguments.stateid, IoAccess::Read)?;
        let offset = arguments.offset;
        // No file has bytes there.
        let left = u32::try_from(OFFSET_MAX.saturating_sub(offset)).unwrap_or(u32::MAX);
        let count = arguments.count.min(IO_BYTES_MAX).min(left);
        let may_wait = self.may_wait();
        let Some(span) = self.call.results.next(results.writer()) else {
            return results.push_read(count, |data| {
                let read = open.read_to_end(data, offset, may_wait)?;
                let (bytes, eof) = read.ok_or_else(|| self.would_wait())?;
                self.service.counters().read(file.export().id(), bytes);
                Ok((bytes, eof))
            });
        };
        results
            .check_room(READ_RESULT_BYTES.saturating_add(u64::from(count).next_multiple_of(4)))?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let span = span.part(0..count.min(span.len_bytes()));
        let span = span.ok_or(Status::SERVERFAULT)?;
        let read = open.read_into_to_end(&span, offset, may_wait)?;
        let (bytes, eof) = read.ok_or_else(|| self.would_wait())?;
        self.service.counters().read(file.export().id(), bytes);
        Ok(results.push(&OpResult::Read(ReadOk {
            eof,
            data: DataItem::Reduced {
                index: results.writer().reduced_items().len(),
                length_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            },
        }))?)
    }

    pub(super) fn write(
        &self,
        arguments: &args::Write<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let file = self.file_or(Status::ISDIR)?;
        let open = self.file_for_io(&file, arguments.stateid, IoAccess::Write)?;
        let data = self.call.arguments.data(&arguments.data);
        let data: RawBytes<'_> = match data.ok_or(Status::SERVERFAULT)? {
            Data::Inline(bytes) => bytes.into(),
            Data::Pulled(span, length_bytes) => span.raw().first(length_bytes),
        };
        let end = u64::try_from(data.len()).unwrap_or(u64::MAX);
        if arguments.offset.saturating_add(end) > OFFSET_MAX {
            return Err(Status::FBIG.into());
        }
        let stable = match arguments.stable {
            StableHow::Unstable => Stable::Unstable,
            StableHow::DataSync => Stable::Data,
            StableHow::FileSync => Stable::File,
        };
        // Before the write: data that is lost from here on is said to be lost.
        let writeverf = self.verifier();
        let (bytes, stable) = self.service.unsynced.write(
            self.writer()?,
            &file.caller,
            &open,
            data,
            arguments.offset,
            stable,
        )?;
        self.service.counters().written(file.export().id(), bytes);
        Ok(results.push(&OpResult::Write(WriteOk {
            count: u32::try_from(bytes).unwrap_or(u32::MAX),
            committed: stable_how(stable),
            writeverf,
        }))?)
    }

    /// COMMIT, of all of the file, whatever part the client asks for.
    pub(super) fn commit(&self, results: &mut Results<'_, '_>) -> Outcome {
        let file = self.file_or(Status::ISDIR)?;
        check_regular(&file)?;
        let unsynced = &self.service.unsynced;
        let verifier = unsynced.commit_node(self.writer()?, &file.caller, file.node()?)?;
        Ok(results.push(&OpResult::Commit(Verifier(verifier)))?)
    }

    pub(super) fn seek(&self, arguments: &args::Seek, results: &mut Results<'_, '_>) -> Outcome {
        let file = self.file_or(Status::ISDIR)?;
        let open = self.file_for_io(&file, arguments.stateid, IoAccess::Read)?;
        if arguments.offset > OFFSET_MAX {
            return Err(Status::NXIO.into());
        }
        let found = match arguments.what {
            SeekTarget::Data => open.next_data(arguments.offset)?,
            SeekTarget::Hole => Some(open.next_hole(arguments.offset)?),
        };
        let size_bytes = open.size_bytes()?;
        let offset = found.unwrap_or(size_bytes);
        Ok(results.push(&OpResult::Seek(SeekOk {
            eof: offset >= size_bytes,
            offset,
        }))?)
    }

    /// ALLOCATE and DEALLOCATE.
    pub(super) fn allocate(
        &self,
        op: OpNum,
        arguments: &args::Range,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let file = self.file_or(Status::ISDIR)?;
        let open = self.file_for_io(&file, arguments.stateid, IoAccess::Write)?;
        let (offset, length) = (arguments.offset, arguments.length);
        if length > 0 && offset.saturating_add(length) > OFFSET_MAX {
            return Err(Status::FBIG.into());
        }
        if op == OpNum::ALLOCATE {
            open.allocate(&file.caller, offset, length)?;
        } else {
            open.deallocate(&file.caller, offset, length)?;
        }
        self.service.unsynced.commit(self.writer()?, &open)?;
        Ok(results.push(&OpResult::Done(op))?)
    }

    /// IO_ADVISE: nothing is done about it.
    pub(super) fn io_advise(
        &self,
        arguments: &args::IoAdvise,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let file = self.file_or(Status::ISDIR)?;
        // Whatever it is open for.
        match self.file_for_io(&file, arguments.stateid, IoAccess::Read) {
            Err(Failure(Status::OPENMODE)) => {
                self.file_for_io(&file, arguments.stateid, IoAccess::Write)?
            }
            other => other?,
        };
        Ok(results.push(&OpResult::IoAdvise(Bitmap::EMPTY))?)
    }
}
