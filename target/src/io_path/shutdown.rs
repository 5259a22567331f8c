//! Carries out what the controllers ask for: responses they owe, connections they end, and the
//! flush before a controller reports that its shutdown is complete or a namespace write protected.

use std::collections::HashMap;

use capstan_storage::{Completion, Io, IoErrorKind, Op, Submitted};
use capstan_subsystem::{Action, BackendId, FlushId};

use super::{IoPath, Resources, admin};

/// Marks the token of a flush that belongs to no command.
const FLUSH: u64 = 1 << 63;

/// Flushes that the controllers wait for.
#[derive(Default)]
pub(super) struct Shutdowns {
    serial: u64,
    pending: HashMap<u64, Pending>,
}

/// A flush of several backends.
struct Pending {
    flush: FlushId,
    /// Backends that have not answered.
    left: usize,
    /// Whether all that have answered succeeded.
    succeeded: bool,
}

impl Shutdowns {
    /// Counts a flush down; when it was the last backend, returns its id and whether it succeeded.
    fn completed(&mut self, completion: &Completion) -> Option<(FlushId, bool)> {
        let pending = self.pending.get_mut(&completion.token)?;
        pending.left = pending.left.saturating_sub(1);
        pending.succeeded &= completion.result.is_ok();
        if pending.left > 0 {
            return None;
        }
        let Pending {
            flush, succeeded, ..
        } = self.pending.remove(&completion.token)?;
        Some((flush, succeeded))
    }
}

impl IoPath {
    /// Carries out what the controllers ask of one of this reactor's connections.
    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Complete { conn, cqe } => {
                let Some(&index) = self.index_of.get(&conn) else {
                    return;
                };
                let Some(connection) = self.connections.get_mut(index) else {
                    return;
                };
                admin::respond_late(&mut self.resources, connection, &cqe);
            }
            Action::Disconnect { conn, why } => {
                if let Some(&index) = self.index_of.get(&conn) {
                    let gives_up = why.gives_up();
                    self.close(index, &why.into(), gives_up);
                }
            }
            Action::AbortIo { conn, cid, abort } => {
                let aborted = self.abort(conn, cid);
                let now_us = self.resources.now_us;
                self.control
                    .with(|target| target.handle_abort_result(abort, aborted, now_us));
            }
            Action::DrainIo { conn, nsid, drain } => self.drain_io(conn, nsid, drain),
            Action::DrainWrites { conn, nsid, drain } => self.drain_writes(conn, nsid, drain),
            Action::FenceIo { conn, fence } => self.fence_io(conn, fence),
            Action::TellOutstanding { conn } => self.tell_outstanding(conn),
            Action::CompleteIo { conn, cid, status } => self.complete_io(conn, cid, status),
            Action::SetNamespaces {
                conn,
                namespaces,
                counters,
            } => {
                let connection = self
                    .index_of
                    .get(&conn)
                    .and_then(|&index| self.connections.get_mut(index));
                if let Some(queue) = connection.and_then(|c| c.queue.as_mut()) {
                    queue.set_namespaces(namespaces, counters);
                }
            }
            Action::Flush { flush, backends } => self.flush_backends(flush, &backends),
            // The control plane has done it.
            Action::KeepReservations { .. } => {}
            Action::Log(event) => tracing::info!("{event}"),
        }
    }

    /// Takes the end of a flush for a controller; `false` when it belongs to something else.
    pub(super) fn flush_ended(&mut self, completion: &Completion) -> bool {
        if completion.token & FLUSH == 0 {
            return false;
        }
        if let Err(error) = &completion.result {
            // A loss has been logged once; hosts come and go as often as they like.
            if error.kind != IoErrorKind::Lost {
                tracing::error!("a flush for a controller failed: {error}");
            }
            let backend = self.resources.backend_of(error);
            self.resources.storage_failed(backend, error);
        }
        if let Some((flush, succeeded)) = self.shutdown.completed(completion) {
            self.control.flushed(flush, succeeded);
        }
        true
    }

    fn flush_backends(&mut self, flush: FlushId, backends: &[BackendId]) {
        self.shutdown.serial += 1;
        let token = FLUSH | self.shutdown.serial;
        let Resources {
            volumes, now_us, ..
        } = &mut self.resources;
        let mut outcomes = Vec::with_capacity(backends.len());
        for backend in backends {
            if let Some(opened) = volumes.get_mut(backend) {
                let io = Io {
                    token,
                    op: Op::Flush,
                    data: None,
                };
                // No namespace is needed to know how long it is.
                opened.counters.begins(&io.op, 0);
                outcomes.push(opened.volume.submit(io, *now_us));
            }
        }
        if outcomes.is_empty() {
            // A backend that is gone has nothing left to write.
            return self.control.flushed(flush, true);
        }
        let pending = Pending {
            flush,
            left: outcomes.len(),
            succeeded: true,
        };
        self.shutdown.pending.insert(token, pending);
        for outcome in outcomes {
            if let Submitted::Done(completion) = outcome {
                self.flush_ended(&completion);
            }
        }
    }
}
