//! The reservation commands: executed under the control half's lock, because they decide about
//! every host of a namespace at once.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::IoCommand as WireCommand;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::reservation::{
    AcquireData, ExtendedRegistrant, RegisterData, ReleaseData, ReservationReport,
    ReservationStatusHeader,
};
use capstan_nvme_proto::status::Status;
use zerocopy::IntoBytes;

use super::flush::WriteProtect;
use super::keep::{Asker, Change, What};
use super::{Queue, Target};
use crate::ConnId;
use crate::action::{Action, Association, ControllerId, DrainId};
use crate::controller::{Controller, Instance};
use crate::io_queue::ControlCommand;
use crate::log_page::Window;
use crate::reservation::{Effects, Host, Reservation, host_of};

/// What became of a [`ControlCommand`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlOutcome {
    /// Push what `out` has to the host, then give the command's permit to
    /// [`IoQueue::complete`](crate::IoQueue::complete) with this status.
    Complete(Status),
    /// Keep the command until [`Action::CompleteIo`] names it.
    Held,
}

/// What waits for commands of I/O queues.
#[derive(Debug)]
pub(super) struct PendingDrain {
    then: DrainFor,
    /// I/O queues that have not drained.
    waiting: BTreeSet<ConnId>,
}

/// What happens when a drain is over.
#[derive(Debug)]
pub(super) enum DrainFor {
    /// A Preempt and Abort is answered.
    Preempt(Asker),
    /// Write protection goes on: nothing can change the namespace any more.
    WriteProtect(WriteProtect),
}

/// Whose commands may still be on a backend, after the host has left.
#[derive(Debug)]
pub(super) struct Lingering {
    pub(super) controller: ControllerId,
    pub(super) association: Arc<Association>,
    pub(super) instance: Option<Instance>,
    qid: u16,
}

impl Lingering {
    /// The I/O queue `qid` of a controller, which goes.
    pub(super) fn new(controller: &Controller, qid: u16) -> Self {
        Self {
            controller: controller.id,
            association: Arc::clone(&controller.association),
            instance: controller.instance,
            qid,
        }
    }

    /// CNTLID and QID.
    pub(super) fn name(&self) -> (u16, u16) {
        (self.association.cntlid, self.qid)
    }
}

impl Target {
    /// Executes a command of an I/O queue. `data_in` is what was fetched for it, when it brings
    /// data; what goes to the host comes into `out`, which is empty before: no more than it wants
    /// ([`ControlCommand::data_bytes`] either way).
    pub fn execute_control(
        &mut self,
        command: &ControlCommand,
        data_in: &[u8],
        out: &mut Vec<u8>,
        _now_us: u64,
    ) -> ControlOutcome {
        self.reserve(command, data_in, out)
            .unwrap_or_else(|error| ControlOutcome::Complete(error.status))
    }

    fn reserve(
        &mut self,
        request: &ControlCommand,
        data_in: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ControlOutcome, CommandError> {
        let conn = request.permit.conn();
        let id = match self.connections.get(&conn) {
            Some(Queue::Io(id, _)) => *id,
            Some(Queue::Admin(_)) | None => return Err(gone()),
        };
        let association = self
            .controllers
            .get(&id)
            .map(|controller| controller.association.clone())
            .ok_or_else(gone)?;
        let host = host_of(association.hostid)?;
        let nsid = request.command.nsid();
        if let WireCommand::ReservationReport(report) = request.command {
            return self.report(&association.subnqn, &report, request.data_bytes(), out);
        }
        let what = match &request.command {
            WireCommand::ReservationRegister(register) => {
                What::Register(host, *register, *RegisterData::parse(data_in)?)
            }
            WireCommand::ReservationAcquire(acquire) => {
                What::Acquire(host, *acquire, *AcquireData::parse(data_in)?)
            }
            WireCommand::ReservationRelease(release) => {
                What::Release(host, *release, *ReleaseData::parse(data_in)?)
            }
            WireCommand::ReservationReport(_)
            | WireCommand::Flush(_)
            | WireCommand::Write(_)
            | WireCommand::Read(_)
            | WireCommand::WriteUncorrectable(_)
            | WireCommand::Compare(_)
            | WireCommand::WriteZeroes(_)
            | WireCommand::DatasetManagement(_)
            | WireCommand::Verify(_)
            | WireCommand::Copy(_) => return Err(gone()),
        };
        let cid = request.permit.cid();
        let by = Asker::Command { conn, cid };
        let is_held = self.change(&association.subnqn, nsid, Change { by, what })?;
        Ok(match is_held {
            true => ControlOutcome::Held,
            false => ControlOutcome::Complete(Status::SUCCESS),
        })
    }

    /// Makes the change take effect on every controller, and notifies the hosts concerned.
    pub(super) fn spread(&mut self, subnqn: &Nqn, nsid: u32, effects: &Effects) {
        let controllers = self.controllers_of(subnqn);
        for id in &controllers {
            self.set_gates(*id);
        }
        for id in &controllers {
            self.notify(*id, nsid, effects);
        }
    }

    /// Begins to wait for the commands of hosts that were preempted, also of those that have left,
    /// before a Preempt and Abort is answered. Returns whether there are any.
    pub(super) fn drain_preempted(
        &mut self,
        by: Asker,
        subnqn: &Nqn,
        nsid: u32,
        preempted: &[Host],
    ) -> bool {
        let connected: BTreeSet<ConnId> = self
            .controllers
            .values()
            .filter(|controller| {
                controller.association.subnqn == *subnqn
                    && preempted.contains(&controller.association.hostid.0)
            })
            .flat_map(|controller| controller.io_queues.values())
            .map(|queue| queue.conn)
            .collect();
        let left = self
            .lingering
            .iter()
            .filter(|(_, left)| {
                left.association.subnqn == *subnqn && preempted.contains(&left.association.hostid.0)
            })
            .map(|(conn, _)| *conn);
        let waiting: BTreeSet<ConnId> = connected.iter().copied().chain(left).collect();
        if waiting.is_empty() {
            return false;
        }
        let drain = self.hold(DrainFor::Preempt(by), waiting);
        self.actions
            .extend(
                connected
                    .into_iter()
                    .map(|conn| Action::DrainIo { conn, nsid, drain }),
            );
        true
    }

    /// Lets something wait for I/O queues, of which there is at least one.
    fn hold(&mut self, then: DrainFor, waiting: BTreeSet<ConnId>) -> DrainId {
        let drain = DrainId(self.next_drain);
        self.next_drain = self.next_drain.wrapping_add(1);
        self.drains.insert(drain, PendingDrain { then, waiting });
        drain
    }

    /// Waits for the commands that change `nsid`, of every host, also of those that have left.
    pub(super) fn drain_writes(&mut self, subnqn: &Nqn, nsid: u32, then: WriteProtect) {
        let connected: BTreeSet<ConnId> = self
            .controllers
            .values()
            .filter(|controller| controller.association.subnqn == *subnqn)
            .flat_map(|controller| controller.io_queues.values())
            .map(|queue| queue.conn)
            .collect();
        let left = self.lingering.iter();
        let left = left.filter(|(_, left)| left.association.subnqn == *subnqn);
        let left = left.map(|(conn, _)| *conn);
        let waiting: BTreeSet<ConnId> = connected.iter().copied().chain(left).collect();
        if waiting.is_empty() {
            return self.nothing_changes(then);
        }
        let drain = self.hold(DrainFor::WriteProtect(then), waiting);
        let ask = |conn| Action::DrainWrites { conn, nsid, drain };
        self.actions.extend(connected.into_iter().map(ask));
    }

    /// Answers [`Action::DrainIo`] and [`Action::DrainWrites`] for the I/O queue `conn`.
    pub fn handle_drained(&mut self, conn: ConnId, drain: DrainId, _now_us: u64) {
        let Some(pending) = self.drains.get_mut(&drain) else {
            return;
        };
        pending.waiting.remove(&conn);
        if !pending.waiting.is_empty() {
            return;
        }
        match self.drains.remove(&drain).map(|pending| pending.then) {
            Some(DrainFor::Preempt(by)) => self.answer(by, Status::SUCCESS),
            Some(DrainFor::WriteProtect(then)) => self.nothing_changes(then),
            None => {}
        }
    }

    /// The I/O queue `conn` is going: no command of its own waits any more, but others may wait for
    /// what it left on a backend.
    pub(super) fn linger(&mut self, conn: ConnId, left: Lingering) {
        let is_of_it = |then: &DrainFor| matches!(then, DrainFor::Preempt(Asker::Command { conn: of, .. }) if *of == conn);
        self.drains.retain(|_, pending| !is_of_it(&pending.then));
        self.drop_changes_of_queue(conn);
        self.lingering.insert(conn, left);
    }

    /// The I/O queue `conn` is gone, and no backend has a command of it.
    pub(super) fn end_lingering(&mut self, conn: ConnId, now_us: u64) {
        if self.lingers_for_changes(conn) || self.lingering.remove(&conn).is_none() {
            return;
        }
        let drains: Vec<DrainId> = self
            .drains
            .iter()
            .filter(|(_, pending)| pending.waiting.contains(&conn))
            .map(|(drain, _)| *drain)
            .collect();
        for drain in drains {
            self.handle_drained(conn, drain, now_us);
        }
        self.pass_fences(conn, now_us);
    }

    fn notify(&mut self, id: ControllerId, nsid: u32, effects: &Effects) {
        let Some(controller) = self.controllers.get_mut(&id) else {
            return;
        };
        let host = controller.association.hostid.0;
        let mut told = false;
        for (_, what) in effects
            .notifications
            .iter()
            .filter(|(other, _)| *other == host)
        {
            told |= controller.notifications.add(nsid, *what);
        }
        if told {
            self.raise(id, AsyncEvent::RESERVATION_LOG_AVAILABLE);
        }
    }

    /// Reservation Report. NVMe Base 2.1, section 7.8.
    fn report(
        &self,
        subnqn: &Nqn,
        report: &ReservationReport,
        wanted_bytes: u32,
        out: &mut Vec<u8>,
    ) -> Result<ControlOutcome, CommandError> {
        if !report.extended {
            return Err(CommandError {
                status: Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT.dnr(),
                location: ErrorLocation::sqe(44),
                field: "EDS",
                value: 0,
                expected: "1, because host identifiers have 128 bits (CTRATT.HIDS)",
            });
        }
        let none = Reservation::default();
        let reservation = self
            .subsystems
            .get(subnqn)
            .and_then(|subsystem| subsystem.reservations.get(&report.nsid))
            .unwrap_or(&none);
        let registrants = reservation.registrants();
        let count = u16::try_from(registrants.len()).unwrap_or(u16::MAX);
        let header = ReservationStatusHeader::new(
            reservation.generation(),
            reservation.rtype(),
            count,
            reservation.persists(),
        );
        // Behind its end no data is transferred (NVMe Base 2.1, section 7.8, NUMD).
        let mut window = Window::new(0, out, usize::try_from(wanted_bytes).unwrap_or(0));
        window.put(header.as_bytes());
        let reserved = ReservationStatusHeader::EXTENDED_BYTES.saturating_sub(size_of_val(&header));
        for _ in 0..reserved {
            window.put(&[0]);
        }
        for (host, key) in registrants {
            let cntlid = self.cntlid_of(subnqn, host);
            let holds = reservation.is_holder(host);
            let entry = ExtendedRegistrant::new(cntlid, holds, HostId(*host), key);
            window.put(entry.as_bytes());
        }
        Ok(ControlOutcome::Complete(Status::SUCCESS))
    }

    /// Whether a change of the reservations of `nsid`, as the I/O queue `conn` names it, waits for
    /// stable storage.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn is_changing(&self, conn: ConnId, nsid: u32) -> bool {
        let association = self.queue_association(conn);
        let subsystem = association.and_then(|of| self.subsystems.get(&of.subnqn));
        subsystem.is_some_and(|subsystem| subsystem.changing.contains_key(&nsid))
    }

    /// Host Identifier of the host whose queue `conn` is.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn host_of_queue(&self, conn: ConnId) -> Option<Host> {
        self.queue_association(conn)
            .map(|association| association.hostid.0)
    }

    /// What a reservation of `nsid` keeps the host of the I/O queue `conn` from.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn reserved_against(&self, conn: ConnId, nsid: u32) -> crate::gate::Closed {
        self.queue_association(conn)
            .and_then(|association| {
                let subsystem = self.subsystems.get(&association.subnqn)?;
                let reservation = subsystem.reservations.get(&nsid)?;
                Some(reservation.closed_for(&association.hostid.0))
            })
            .unwrap_or_default()
    }

    /// Registrants of `nsid` in the subsystem of the I/O queue `conn`.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn registrants(&self, conn: ConnId, nsid: u32) -> Vec<Host> {
        self.queue_association(conn)
            .and_then(|association| self.subsystems.get(&association.subnqn))
            .and_then(|subsystem| subsystem.reservations.get(&nsid))
            .map(|reservation| reservation.registrants().map(|(host, _)| *host).collect())
            .unwrap_or_default()
    }

    #[cfg(any(test, feature = "testing"))]
    fn queue_association(&self, conn: ConnId) -> Option<&Association> {
        let (Queue::Admin(id) | Queue::Io(id, _)) = self.connections.get(&conn)?;
        self.controllers
            .get(id)
            .map(|controller| &*controller.association)
    }

    /// A controller of a registered host, FFFFh when it has none now.
    fn cntlid_of(&self, subnqn: &Nqn, host: &Host) -> u16 {
        self.controllers
            .values()
            .map(|controller| &controller.association)
            .find(|association| association.subnqn == *subnqn && association.hostid.0 == *host)
            .map_or(0xFFFF, |association| association.cntlid)
    }
}

fn gone() -> CommandError {
    CommandError {
        status: Status::INVALID_NAMESPACE_OR_FORMAT.dnr(),
        location: ErrorLocation::sqe(4),
        field: "NSID",
        value: 0,
        expected: "a namespace that is still there",
    }
}
