//! Commands sent on an I/O queue as they are, whatever their opcode.

use capstan_memory::Buffer;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;

use super::engine::{AssociationEngine, Owner};
use super::replay::may_change;
use crate::error::{CommandError, ConnectError};
use crate::host::{CommandData, CommandReply, Event};
use crate::options::TRANSFER_BYTES_MAX;

impl AssociationEngine {
    /// Sends a command on an I/O queue: `sqe` complete but for CID and data pointer, and checked by
    /// the controller only. Its answer is [`Event::CommandDone`] with `token`. When the
    /// connection is lost it is not sent again: it is not known what it would do twice.
    ///
    /// # Errors
    /// [`CommandError::Busy`], [`CommandError::TooLong`], [`CommandError::Lost`] when the
    /// association is not live, or [`CommandError::Held`] when it may change something and an old
    /// controller may not be gone.
    pub(crate) fn submit_passthru(
        &mut self,
        token: u64,
        mut sqe: Sqe,
        data: &CommandData,
        now_us: u64,
    ) -> Result<(), CommandError> {
        if !self.host.is_live() {
            return Err(CommandError::Lost(self.host.lost_cause()));
        }
        if may_change(sqe.io_opcode())
            && let Some(held) = self.host.held(now_us)
        {
            return Err(CommandError::Held(held));
        }
        if self.is_resetting() {
            return Err(CommandError::Busy);
        }
        let len_bytes = data.len_bytes();
        if len_bytes > TRANSFER_BYTES_MAX {
            return Err(CommandError::TooLong {
                len_bytes: len_bytes.into(),
                max_bytes: TRANSFER_BYTES_MAX,
            });
        }
        let mut buffer = match len_bytes {
            0 => None,
            _ => Some(self.data_pool().take(len_bytes).ok_or(CommandError::Busy)?),
        };
        let qid = self.pick_queue().ok_or(CommandError::Busy)?;
        let submitted = self.host.queue(qid).and_then(|queue| queue.submit());
        let (slot, cid) = submitted.ok_or(CommandError::Busy)?;
        sqe.cid = cid.into();
        let (mut staged, read_bytes) = Self::stage(buffer.as_mut(), data);
        if let Some(staged) = &mut staged
            && self.wire.needs_in_capsule()
        {
            staged.put_in_capsule(self.host.controller().in_capsule_bytes);
        }
        let owner = Owner::Passthru {
            token,
            data: buffer,
            read_bytes,
            opcode: sqe.io_opcode(),
        };
        self.passthru += 1;
        if let Err(error) = self.post(qid, slot, &mut sqe, staged, owner, now_us) {
            let what = error.to_string();
            self.host
                .handle_broken(ConnectError::Protocol { qid, what }, now_us);
        }
        self.wire.flush();
        Ok(())
    }

    /// A command was answered, and its memory is back.
    pub(super) fn passthru_answered(
        &mut self,
        token: u64,
        cqe: Cqe,
        data: Option<&Buffer>,
        read_bytes: u32,
    ) {
        let data = self.read_out(data, read_bytes);
        self.passthru_done(token, Ok(CommandReply { cqe, data }));
    }

    pub(super) fn passthru_done(&mut self, token: u64, result: Result<CommandReply, CommandError>) {
        self.passthru -= 1;
        self.events.push_back(Event::CommandDone { token, result });
    }
}
