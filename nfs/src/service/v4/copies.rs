//! COPY and CLONE within the server, and what is asked of copies that go on by themselves, of which
//! there are none (RFC 7862, sections 15.2, 15.8, 15.9 and 15.13).

use std::sync::Arc;

use capstan_exports::OpenFile;
use capstan_exports::unsynced::Stable;
use capstan_nfs_proto::v4::args;
use capstan_nfs_proto::v4::opnum::OpNum;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::{CopyOk, WriteResponse};
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::Stateid;

use super::context::{Context, File, Outcome, Results};
use super::io::stable_how;
use crate::service::failure::Failure;
use crate::state::IoAccess;

/// Two files of a copy.
struct Files {
    source: Arc<OpenFile>,
    target: Arc<OpenFile>,
    file: Arc<File>,
}

impl Context<'_> {
    /// From the saved filehandle to the current one.
    fn two_files(&self, source: Stateid, target: Stateid) -> Result<Files, Failure> {
        let from = self.saved_file_or(Status::ISDIR)?;
        let file = self.file_or(Status::ISDIR)?;
        Ok(Files {
            source: self.file_for_io(&from, source, IoAccess::Read)?,
            target: self.file_for_io(&file, target, IoAccess::Write)?,
            file,
        })
    }

    /// COPY: as much of it as one request moves, in order and at once. The client goes on with the
    /// rest.
    pub(super) fn copy(
        &self,
        arguments: &args::Copy<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        if !arguments.source_server.is_empty() {
            // Other servers are not copied from (section 4.2: OPTIONAL).
            return Err(Status::NOTSUPP.into());
        }
        let Files {
            source,
            target,
            file,
        } = self.two_files(arguments.src_stateid, arguments.dst_stateid)?;
        let length = match arguments.count {
            // Up to the end (section 15.2.3).
            0 => u64::MAX,
            count => count,
        };
        let length = self.budget.copy_bytes(length)?;
        let writeverf = self.verifier();
        let (count, stable) =
            self.service
                .unsynced
                .change(self.writer()?, &target, Stable::Unstable, || {
                    let (from, to) = (arguments.src_offset, arguments.dst_offset);
                    target.copy_from(&file.caller, &source, from, to, length)
                })?;
        self.budget.copied(count);
        Ok(results.push(&OpResult::Copy(CopyOk {
            response: WriteResponse {
                callback_id: None,
                count,
                committed: stable_how(stable),
                writeverf,
            },
            consecutive: true,
            synchronous: true,
        }))?)
    }

    /// CLONE, which is on the disk when it is answered.
    pub(super) fn clone_range(
        &self,
        arguments: &args::Clone,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let Files {
            source,
            target,
            file,
        } = self.two_files(arguments.src_stateid, arguments.dst_stateid)?;
        let (from, to) = (arguments.src_offset, arguments.dst_offset);
        OpenFile::clone_from(&target, &file.caller, &source, from, to, arguments.count)?;
        self.service.unsynced.commit(self.writer()?, &target)?;
        Ok(results.push(&OpResult::Done(OpNum::CLONE))?)
    }

    /// OFFLOAD_CANCEL and OFFLOAD_STATUS: no copy has a stateid.
    pub(super) fn no_offload(&self) -> Outcome {
        self.object()?;
        Err(Status::BAD_STATEID.into())
    }
}
