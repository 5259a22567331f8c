//! Abort, which really aborts. NVMe Base 2.1, section 5.1.1.

use capstan_nvme_proto::command::Abort;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::status::Status;

use super::Target;
use super::admin::{Executed, Execution, gone};
use crate::ConnId;
use crate::action::{AbortId, Action, ControllerId};
use crate::bounds::ABORT_MAX;
use crate::queue::Permit;

/// An Abort command that waits for the I/O queue's answer.
#[derive(Debug)]
pub(super) struct PendingAbort {
    controller: ControllerId,
    /// The I/O queue.
    conn: ConnId,
    permit: Permit,
}

impl PendingAbort {
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn is_of(&self, controller: ControllerId) -> bool {
        self.controller == controller
    }
}

impl Target {
    pub(super) fn abort(
        &mut self,
        abort: Abort,
        execution: &mut Execution<'_>,
    ) -> Result<Executed, CommandError> {
        let id = execution.id;
        if abort.sqid == 0 {
            return Ok(self.abort_admin(id, abort.cid));
        }
        let pending = self
            .aborts
            .values()
            .filter(|pending| pending.controller == id)
            .count();
        let controller = self.controllers.get(&id).ok_or_else(gone)?;
        let Some(queue) = controller.io_queues.get(&abort.sqid) else {
            return Err(CommandError::invalid_field(
                "SQID",
                40,
                abort.sqid.into(),
                "a submission queue that exists",
            ));
        };
        if pending >= ABORT_MAX {
            return Err(CommandError {
                status: Status::ABORT_COMMAND_LIMIT_EXCEEDED,
                location: ErrorLocation::Unspecified,
                field: "outstanding Abort commands",
                value: u64::try_from(pending).unwrap_or(u64::MAX),
                expected: "at most ACL",
            });
        }
        let Some(permit) = execution.permit.take() else {
            return Err(gone());
        };
        let name = AbortId(self.next_abort);
        self.next_abort = self.next_abort.wrapping_add(1);
        let conn = queue.conn;
        self.aborts.insert(
            name,
            PendingAbort {
                controller: id,
                conn,
                permit,
            },
        );
        self.actions.push_back(Action::AbortIo {
            conn,
            cid: abort.cid,
            abort: name,
        });
        Ok(Executed::Held)
    }

    /// Of the Admin commands only Asynchronous Event Requests stay long enough to be aborted.
    fn abort_admin(&mut self, id: ControllerId, cid: u16) -> Executed {
        let aborted = self.controllers.get_mut(&id).and_then(|controller| {
            let permit = controller.events.take_request(cid)?;
            let status = Status::ABORT_REQUESTED;
            Some(Action::Complete {
                conn: controller.conn,
                cqe: controller.admin.complete(permit, status, 0),
            })
        });
        let dw0 = Abort::completion_dw0(aborted.is_some());
        self.actions.extend(aborted);
        Executed::result(dw0)
    }

    /// Answers [`Action::AbortIo`]: whether the command was, or will be, completed with
    /// [`Status::ABORT_REQUESTED`]. Say `false` when it was not there or could not be stopped.
    pub fn handle_abort_result(&mut self, abort: AbortId, aborted: bool, _now_us: u64) {
        let Some(pending) = self.aborts.remove(&abort) else {
            return;
        };
        let Some(controller) = self.controllers.get_mut(&pending.controller) else {
            return;
        };
        let dw0 = Abort::completion_dw0(aborted);
        let cqe = controller
            .admin
            .complete(pending.permit, Status::SUCCESS, dw0);
        self.actions.push_back(Action::Complete {
            conn: controller.conn,
            cqe,
        });
    }

    /// The I/O queue `conn` is gone, and every command of it: nothing is left to abort.
    pub(super) fn forget_aborts(&mut self, conn: ConnId, now_us: u64) {
        let names: alloc::vec::Vec<AbortId> = self
            .aborts
            .iter()
            .filter(|(_, pending)| pending.conn == conn)
            .map(|(name, _)| *name)
            .collect();
        for name in names {
            self.handle_abort_result(name, false, now_us);
        }
    }

    /// The controller is gone, and everything that waited for an answer.
    pub(super) fn drop_aborts(&mut self, id: ControllerId) {
        self.aborts.retain(|_, pending| pending.controller != id);
    }
}
