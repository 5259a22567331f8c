//! The fence in front of a new I/O controller: commands of earlier associations of its host end
//! before it becomes ready.
//!
//! A host that lost an association issues its commands again on a new one, and then newer ones.
//! What the old connections had brought by then must not reach a medium behind those, however long
//! it has been on the way through this target: in a socket, waiting for a buffer, being pulled, on
//! a disk. So CSTS.RDY stays 0, and no I/O queue can be connected, until all of it is over.
//! Commands that arrive later on an earlier association that lives are not waited for.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Target;
use crate::ConnId;
use crate::action::{Action, Association, ControllerId, DisconnectReason, Event, FenceId};
use crate::bounds::{FENCE_TOLD_US, FENCE_US_MAX};
use crate::controller::{ControllerEvent, ControllerKind, ControllerState};

/// A fence that is closed.
#[derive(Debug)]
pub(super) struct Fence {
    /// Whose readiness waits.
    controller: ControllerId,
    since_us: u64,
    /// I/O queues that are not through, with their CNTLID and QID.
    waiting: BTreeMap<ConnId, (u16, u16)>,
    /// Whether the log says what is waited for.
    told: bool,
}

impl Fence {
    fn deadline_us(&self) -> u64 {
        let wait_us = if self.told {
            FENCE_US_MAX
        } else {
            FENCE_TOLD_US
        };
        self.since_us.saturating_add(wait_us)
    }

    fn waited_ms(&self, now_us: u64) -> u64 {
        now_us
            .saturating_sub(self.since_us)
            .checked_div(1000)
            .unwrap_or(0)
    }
}

/// Whether two associations are of the same host and NVM subsystem. Hosts that have no Host
/// Identifier are told apart by their names.
fn is_same_host(one: &Association, other: &Association) -> bool {
    one.subnqn == other.subnqn
        && one.hostid == other.hostid
        && (one.hostid.0 != [0; 16] || one.hostnqn == other.hostnqn)
}

impl Target {
    /// Closes the fence of a controller that has just been connected.
    pub(super) fn close_fence(&mut self, id: ControllerId, now_us: u64) {
        let Some(new) = self.controllers.get(&id) else {
            return;
        };
        if new.kind != ControllerKind::Io {
            return;
        }
        let association = &new.association;
        let mut living = BTreeMap::new();
        for controller in self.controllers.values() {
            if controller.id == id || !is_same_host(&controller.association, association) {
                continue;
            }
            let cntlid = controller.association.cntlid;
            let queues = controller.io_queues.iter();
            living.extend(queues.map(|(qid, queue)| (queue.conn, (cntlid, *qid))));
        }
        let left: BTreeMap<_, _> = self
            .lingering
            .iter()
            .filter(|(_, left)| is_same_host(&left.association, association))
            .map(|(conn, left)| (*conn, left.name()))
            .collect();
        let Some(fence) = self.wait_for(id, living.iter().chain(&left), now_us) else {
            return;
        };
        // Those that have left say so when they are through.
        let conns = living.into_keys();
        self.actions
            .extend(conns.map(|conn| Action::FenceIo { conn, fence }));
    }

    /// The host enables a controller that it had reset: its own I/O queues of before are waited
    /// for.
    pub(super) fn close_own_fence(&mut self, id: ControllerId, now_us: u64) {
        let own: BTreeMap<_, _> = self
            .lingering
            .iter()
            .filter(|(_, left)| left.controller == id)
            .map(|(conn, left)| (*conn, left.name()))
            .collect();
        self.wait_for(id, own.iter(), now_us);
    }

    /// Adds I/O queues to the fence of a controller. `None` when there are none.
    fn wait_for<'a>(
        &mut self,
        id: ControllerId,
        queues: impl Iterator<Item = (&'a ConnId, &'a (u16, u16))>,
        now_us: u64,
    ) -> Option<FenceId> {
        let mut queues = queues.map(|(conn, name)| (*conn, *name)).peekable();
        queues.peek()?;
        let controller = self.controllers.get_mut(&id)?;
        let fence = match controller.fence {
            Some(fence) => fence,
            None => {
                let fence = FenceId(self.next_fence);
                self.next_fence = self.next_fence.wrapping_add(1);
                *controller.fence.insert(fence)
            }
        };
        let closed = self.fences.entry(fence).or_insert_with(|| Fence {
            controller: id,
            since_us: now_us,
            waiting: BTreeMap::new(),
            told: false,
        });
        closed.waiting.extend(queues);
        Some(fence)
    }

    /// Answers [`Action::FenceIo`]: every command that the I/O queue `conn` had received by then is
    /// answered or dropped.
    pub fn handle_fenced(&mut self, conn: ConnId, fence: FenceId, now_us: u64) {
        let Some(closed) = self.fences.get_mut(&fence) else {
            return;
        };
        closed.waiting.remove(&conn);
        if closed.waiting.is_empty() {
            self.open_fence(fence, now_us);
        }
    }

    /// Nothing of the I/O queue `conn` can reach a medium any more.
    pub(super) fn pass_fences(&mut self, conn: ConnId, now_us: u64) {
        let fences: Vec<FenceId> = self
            .fences
            .iter()
            .filter(|(_, fence)| fence.waiting.contains_key(&conn))
            .map(|(id, _)| *id)
            .collect();
        for fence in fences {
            self.handle_fenced(conn, fence, now_us);
        }
    }

    fn open_fence(&mut self, id: FenceId, now_us: u64) {
        let Some(fence) = self.fences.remove(&id) else {
            return;
        };
        let Some(controller) = self.controllers.get_mut(&fence.controller) else {
            return;
        };
        controller.fence = None;
        let state = controller.state;
        if fence.told {
            self.actions.push_back(Action::Log(Event::FenceOpened {
                association: Arc::clone(&controller.association),
                waited_ms: fence.waited_ms(now_us),
            }));
        }
        if state == ControllerState::Enabling {
            // Legal from Enabling, which was just asked.
            let _illegal = self.apply(fence.controller, ControllerEvent::FenceOpened);
        }
    }

    /// The controller ends: nothing waits to make it ready.
    pub(super) fn drop_fence(&mut self, id: ControllerId) {
        self.fences.retain(|_, fence| fence.controller != id);
        if let Some(controller) = self.controllers.get_mut(&id) {
            controller.fence = None;
        }
    }

    pub(super) fn next_fence_deadline_us(&self) -> Option<u64> {
        self.fences.values().map(Fence::deadline_us).min()
    }

    /// Says what fences wait for that have been closed for more than a moment, and ends
    /// associations whose fence does not open in time: a fence never opens by time.
    pub(super) fn check_fences(&mut self, now_us: u64) {
        let mut late = Vec::new();
        for fence in self.fences.values_mut() {
            if now_us < fence.deadline_us() {
                continue;
            }
            let waited_ms = fence.waited_ms(now_us);
            if fence.told {
                let queues = fence.waiting.len();
                late.push((
                    fence.controller,
                    DisconnectReason::Fenced { queues, waited_ms },
                ));
                continue;
            }
            fence.told = true;
            let Some(controller) = self.controllers.get(&fence.controller) else {
                continue;
            };
            self.actions.push_back(Action::Log(Event::FenceClosed {
                association: Arc::clone(&controller.association),
                queues: fence.waiting.values().copied().collect(),
            }));
            let conns = fence.waiting.keys();
            self.actions
                .extend(conns.map(|&conn| Action::TellOutstanding { conn }));
        }
        for (id, why) in late {
            self.end_association(id, why);
        }
    }
}
