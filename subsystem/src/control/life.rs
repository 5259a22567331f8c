//! The life of controllers: what events do to them, and what ends them.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use capstan_nvme_proto::status::Status;

use super::flush::FlushFor;
use super::reserve::Lingering;
use super::{Queue, Target};
use crate::ConnId;
use crate::action::{Action, ControllerId, DisconnectReason, Event};
use crate::bounds::ENABLE_TIMEOUT_US;
use crate::controller::{Controller, ControllerEvent, ControllerKind, ControllerState, Expiry};
use crate::features::default_events;
use crate::namespace::BackendId;
use crate::transitions::IllegalTransition;

impl Target {
    /// Moves a controller on and does what the new state asks for.
    pub(super) fn apply(
        &mut self,
        id: ControllerId,
        event: ControllerEvent,
    ) -> Result<(), IllegalTransition> {
        let before = self
            .controllers
            .get(&id)
            .and_then(|controller| controller.instance);
        let fresh = (event == ControllerEvent::FenceOpened)
            .then(|| self.next_instance(before.map(|instance| instance.ciu)));
        let Some(controller) = self.controllers.get_mut(&id) else {
            return Ok(());
        };
        controller.state = controller.state.after(event)?;
        let association = Arc::clone(&controller.association);
        match event {
            ControllerEvent::Enabled => {
                controller.enable_by_us = None;
                if controller.fence.is_none() {
                    return self.apply(id, ControllerEvent::FenceOpened);
                }
            }
            ControllerEvent::FenceOpened => {
                controller.was_ready = true;
                controller.instance = fresh;
                controller.resets.remove_completed(|_| true);
                controller.shared.set_ready(true);
                self.actions
                    .push_back(Action::Log(Event::Enabled { association }));
            }
            ControllerEvent::ShutdownRequested => {
                controller.shared.set_ready(false);
                let backends = volatile_backends(controller);
                if backends.is_empty() {
                    return self.apply(id, ControllerEvent::ShutdownDone);
                }
                self.flush(backends, FlushFor::Shutdown(id));
            }
            ControllerEvent::ShutdownDone => {
                self.actions
                    .push_back(Action::Log(Event::ShutDown { association }));
            }
            ControllerEvent::ResetRequested => {
                controller.shared.set_ready(false);
                self.actions
                    .push_back(Action::Log(Event::Reset { association }));
                controller.reset_features();
                let events = default_events(controller.kind);
                for permit in controller.events.reset(events) {
                    let status = Status::ABORT_REQUESTED;
                    self.actions.push_back(Action::Complete {
                        conn: controller.conn,
                        cqe: controller.admin.complete(permit, status, 0),
                    });
                }
                disconnect_io_queues(
                    controller,
                    DisconnectReason::ControllerReset,
                    &mut self.actions,
                );
                if controller.io_queues.is_empty() {
                    return self.apply(id, ControllerEvent::IoQueuesDeleted);
                }
            }
            ControllerEvent::IoQueuesDeleted => controller.was_ready = false,
            ControllerEvent::Failed => {
                controller.shared.set_ready(false);
                controller.keep_alive.stop();
                controller.enable_by_us = None;
            }
        }
        Ok(())
    }

    /// Ends an association from this side: every connection of it is to be closed.
    pub(super) fn end_association(&mut self, id: ControllerId, why: DisconnectReason) {
        // Failed is legal in every state but one that does not last; the association ends anyway.
        let _illegal = self.apply(id, ControllerEvent::Failed);
        let Some(controller) = self.controllers.get_mut(&id) else {
            return;
        };
        if controller.ending.is_some() {
            return;
        }
        controller.ending = Some(why);
        let conn = controller.conn;
        disconnect_io_queues(controller, why, &mut self.actions);
        self.actions.push_back(Action::Disconnect { conn, why });
        self.drop_fence(id);
    }

    /// Whether `conn` is an Admin queue whose controller has I/O queues: they end with it, and so
    /// do their commands.
    #[must_use]
    pub fn has_io_queues(&self, conn: ConnId) -> bool {
        match self.connections.get(&conn) {
            Some(Queue::Admin(id)) => {
                let controller = self.controllers.get(id);
                controller.is_some_and(|controller| !controller.io_queues.is_empty())
            }
            Some(Queue::Io(..)) | None => false,
        }
    }

    /// A connection is gone, whoever closed it, while commands of it are still on a backend. Every
    /// permit of it may be dropped now. Call [`Target::handle_disconnected`] when no backend has
    /// one any more: a Preempt and Abort waits for that.
    pub fn handle_disconnecting(&mut self, conn: ConnId, now_us: u64) {
        match self.connections.remove(&conn) {
            Some(Queue::Admin(id)) => self.remove_controller(id),
            Some(Queue::Io(id, qid)) => self.remove_io_queue(id, qid, now_us),
            None => {}
        }
        self.settle_resets();
    }

    /// A connection is gone, whoever closed it, and no command of it is on a backend. Every permit
    /// of it may be dropped now.
    pub fn handle_disconnected(&mut self, conn: ConnId, now_us: u64) {
        self.handle_disconnecting(conn, now_us);
        self.end_lingering(conn, now_us);
        self.settle_resets();
    }

    /// Where the operator wants it, ends what the host of a new association left on the same pair
    /// of addresses and the same transport: a path over the other one is a path of its own.
    pub(super) fn end_older(&mut self, id: ControllerId, peer: IpAddr) {
        let Some(new) = self.controllers.get(&id) else {
            return;
        };
        let association = Arc::clone(&new.association);
        let (transport, local) = (new.transport, new.local.ip());
        let subsystem = self.subsystems.get(&association.subnqn);
        if !subsystem.is_some_and(|subsystem| subsystem.config.end_older_association) {
            return;
        }
        let why = DisconnectReason::Replaced {
            cntlid: association.cntlid,
            peer: association.peer,
        };
        let is_older = |controller: &&Controller| {
            let other = &controller.association;
            controller.id != id
                && (&other.subnqn, &other.hostnqn, other.hostid)
                    == (
                        &association.subnqn,
                        &association.hostnqn,
                        association.hostid,
                    )
                && controller.transport == transport
                && (controller.local.ip(), other.peer.ip()) == (local, peer)
        };
        let controllers = self.controllers.values();
        let older: Vec<ControllerId> = controllers.filter(is_older).map(|c| c.id).collect();
        for id in older {
            self.end_association(id, why);
        }
    }

    fn remove_controller(&mut self, id: ControllerId) {
        let Some(mut controller) = self.controllers.remove(&id) else {
            return;
        };
        self.drop_aborts(id);
        self.drop_flushes(id);
        self.drop_settings(id);
        self.drop_fence(id);
        controller.shared.set_ready(false);
        if controller.ending.is_none() {
            disconnect_io_queues(
                &controller,
                DisconnectReason::AdminQueueGone,
                &mut self.actions,
            );
        }
        while let Some((qid, record)) = controller.io_queues.pop_first() {
            self.retire(&controller.association, &record);
            self.linger(record.conn, Lingering::new(&controller, qid));
        }
        if controller.kind == ControllerKind::Io {
            let why = controller.ending.map_or("host", DisconnectReason::word);
            let count = self.ended.entry(why).or_default();
            *count = count.saturating_add(1);
        }
        self.actions.push_back(Action::Log(Event::Disconnected {
            association: controller.association,
            why: controller.ending,
        }));
    }

    fn remove_io_queue(&mut self, id: ControllerId, qid: u16, now_us: u64) {
        let Some(controller) = self.controllers.get_mut(&id) else {
            return;
        };
        controller.collect_errors();
        let Some(record) = controller.io_queues.remove(&qid) else {
            return;
        };
        let left = Lingering::new(controller, qid);
        let association = Arc::clone(&controller.association);
        let is_last = controller.io_queues.is_empty();
        let is_resetting = controller.state == ControllerState::Resetting;
        self.retire(&association, &record);
        if is_last && is_resetting {
            // Legal from Resetting, which was just asked.
            let _illegal = self.apply(id, ControllerEvent::IoQueuesDeleted);
        }
        self.linger(record.conn, left);
        self.forget_aborts(record.conn, now_us);
    }

    /// The clock reached [`Target::next_deadline_us`] (calling earlier does no harm).
    pub fn handle_timeout(&mut self, now_us: u64) {
        let mut expired = Vec::new();
        for controller in self.controllers.values_mut() {
            if controller.enable_by_us.is_some_and(|at_us| at_us <= now_us) {
                controller.enable_by_us = None;
                if controller.state == ControllerState::Disabled {
                    let timeout_s = ENABLE_TIMEOUT_US / 1_000_000;
                    expired.push((controller.id, DisconnectReason::NotEnabled { timeout_s }));
                    continue;
                }
            }
            let shared = &controller.shared;
            let expiry = controller
                .keep_alive
                .check(now_us, || shared.take_activity());
            match expiry {
                Expiry::Alive => {}
                Expiry::Expired { kato_ms } => {
                    expired.push((
                        controller.id,
                        DisconnectReason::KeepAliveExpired { kato_ms },
                    ));
                }
            }
        }
        for (id, why) in expired {
            self.end_association(id, why);
        }
        self.check_fences(now_us);
        self.end_looks(now_us);
    }
}

fn disconnect_io_queues(
    controller: &Controller,
    why: DisconnectReason,
    actions: &mut alloc::collections::VecDeque<Action>,
) {
    actions.extend(
        controller
            .io_queues
            .values()
            .map(|queue| Action::Disconnect {
                conn: queue.conn,
                why,
            }),
    );
}

/// Backends that may hold data of this controller's host in a volatile cache.
fn volatile_backends(controller: &Controller) -> Vec<BackendId> {
    let backends: BTreeSet<BackendId> = controller
        .namespaces
        .iter()
        .filter(|namespace| {
            namespace.geometry.volatile_write_cache && !namespace.geometry.read_only
        })
        .map(|namespace| namespace.backend)
        .collect();
    backends.into_iter().collect()
}
