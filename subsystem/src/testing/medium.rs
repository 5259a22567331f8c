//! What reservations and fences promise about the medium, whatever hosts do: nothing is executed
//! that a reservation forbids, and Preempt and Abort answers only when nothing that a preempted
//! host sent before can touch the namespace any more, not even when the host has left. No I/O queue
//! of a new association is connected before that is so of all that its host had sent on earlier
//! ones.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use capstan_nvme_proto::command::IoCommand as WireCommand;
use capstan_nvme_proto::reservation::AcquireAction;
use capstan_nvme_proto::status::Status;

use super::Bench;
use crate::gate::Closed;
use crate::reservation::Host;
use crate::{ConnId, ControlCommand, IoCommand, IoOperation, Permit};

/// A command that a backend has, or a Disconnect that waits for such.
struct Executing {
    serial: u64,
    conn: ConnId,
    nsid: u32,
    host: Option<Host>,
    /// `None` once its connection is gone.
    permit: Option<Permit>,
    /// Whether it may still touch the medium.
    on_medium: bool,
}

/// A reservation command that waits.
struct Held {
    permit: Permit,
    /// Of a Preempt and Abort that has taken effect, what it waits for at least.
    before: Vec<u64>,
    /// It waits for stable storage, and then may be refused.
    is_kept: bool,
}

/// Commands that backends have, and those that wait for them.
#[derive(Default)]
pub(super) struct Medium {
    executing: Vec<Executing>,
    held: Vec<Held>,
    /// By CNTLID of an association, what its host had on the medium when it connected.
    earlier: BTreeMap<u16, Vec<u64>>,
    next_serial: u64,
}

/// What a Preempt and Abort has to wait for.
pub(super) struct Preempting {
    registered: Option<Vec<Host>>,
}

impl Medium {
    fn push(&mut self, bench: &Bench, permit: Permit, nsid: u32, on_medium: bool) {
        let conn = permit.conn();
        self.next_serial = self.next_serial.saturating_add(1);
        self.executing.push(Executing {
            serial: self.next_serial,
            conn,
            nsid,
            host: bench.target.host_of_queue(conn),
            permit: Some(permit),
            on_medium,
        });
    }

    /// A host makes an association.
    pub(super) fn associated(&mut self, cntlid: u16, host: Host) {
        let of_host = self
            .executing
            .iter()
            .filter(|one| one.on_medium && one.host == Some(host));
        let serials = of_host.map(|one| one.serial).collect();
        self.earlier.insert(cntlid, serials);
    }

    /// An I/O queue of an association is connected.
    pub(super) fn queue_connected(&self, cntlid: u16) {
        let early = self.early(cntlid);
        assert!(early.is_none(), "ready before command {early:?} is over");
    }

    /// Whether the host of an association had commands on the medium when it connected.
    pub(super) fn waited_for_earlier(&self, cntlid: u16) -> bool {
        let earlier = self.earlier.get(&cntlid);
        earlier.is_some_and(|earlier| !earlier.is_empty())
    }

    /// Whether one of them is there still.
    pub(super) fn waits_for_earlier(&self, cntlid: u16) -> bool {
        self.early(cntlid).is_some()
    }

    fn early(&self, cntlid: u16) -> Option<u64> {
        let earlier = self.earlier.get(&cntlid)?;
        let executing = self.executing.iter().filter(|one| one.on_medium);
        let mut serials = executing.map(|one| one.serial);
        serials.find(|serial| earlier.contains(serial))
    }

    /// A command is given to its backend.
    pub(super) fn execute(&mut self, bench: &Bench, io: IoCommand) {
        let nsid = io.namespace.nsid;
        let closed = bench.target.reserved_against(io.permit.conn(), nsid);
        let (reads, writes) = match io.operation {
            IoOperation::Read { .. } | IoOperation::Compare { .. } | IoOperation::Verify { .. } => {
                (true, false)
            }
            IoOperation::Write { .. }
            | IoOperation::WriteZeroes { .. }
            | IoOperation::DatasetManagement { .. }
            | IoOperation::Flush => (false, true),
            IoOperation::Copy { .. } => (true, true),
        };
        assert!(!(reads && closed.has(Closed::RESERVED_FOR_READ)));
        assert!(!(writes && closed.has(Closed::RESERVED_FOR_WRITE)));
        self.push(bench, io.permit, nsid, true);
    }

    /// The host deletes its queue.
    pub(super) fn delete_queue(&mut self, bench: &Bench, permit: Permit) {
        self.push(bench, permit, 0, false);
    }

    /// One command ends. Gives its permit, unless its connection is gone.
    pub(super) fn finish(&mut self, bench: &mut Bench, which: usize) -> Option<Permit> {
        let at = which.checked_rem(self.executing.len())?;
        let done = self.executing.swap_remove(at);
        if done.permit.is_none() && !self.executing.iter().any(|other| other.conn == done.conn) {
            bench.target.handle_disconnected(done.conn, bench.now_us);
        }
        done.permit
    }

    /// One command is kept from its backend: it will be answered later.
    pub(super) fn withdraw(&mut self, bench: &mut Bench, which: usize) {
        let Some(at) = which.checked_rem(self.executing.len()) else {
            return;
        };
        let Some(command) = self.executing.get_mut(at).filter(|one| one.on_medium) else {
            return;
        };
        if let (Some(permit), Some(queue)) =
            (command.permit.as_mut(), bench.queues.get_mut(&command.conn))
        {
            queue.withdraw(permit);
            command.on_medium = false;
            bench.poll_drained(command.conn);
        }
    }

    /// A connection ends: what of it a backend has stays there.
    pub(super) fn disconnect(&mut self, bench: &mut Bench, conn: ConnId) {
        self.held.retain(|held| held.permit.conn() != conn);
        self.executing
            .retain(|one| one.conn != conn || one.on_medium);
        let mut lingers = false;
        for one in self.executing.iter_mut().filter(|one| one.conn == conn) {
            one.permit = None;
            lingers = true;
        }
        if lingers {
            bench.disconnecting(conn);
        } else {
            bench.disconnect(conn);
        }
    }

    /// Before a reservation command is executed.
    pub(super) fn preempting(bench: &Bench, command: &ControlCommand) -> Preempting {
        let conn = command.permit.conn();
        let aborts = matches!(command.command, WireCommand::ReservationAcquire(acquire)
            if acquire.action == AcquireAction::PreemptAndAbort);
        Preempting {
            registered: aborts.then(|| bench.target.registrants(conn, command.command.nsid())),
        }
    }

    /// Commands on the medium from hosts that the command has preempted.
    fn left_of(&self, bench: &Bench, command: &ControlCommand, before: &Preempting) -> Vec<u64> {
        let Some(registered) = &before.registered else {
            return Vec::new();
        };
        let (conn, nsid) = (command.permit.conn(), command.command.nsid());
        let own = bench.target.host_of_queue(conn);
        let stayed = bench.target.registrants(conn, nsid);
        self.executing
            .iter()
            .filter(|one| one.on_medium && one.nsid == nsid)
            .filter(|one| {
                one.host.is_some_and(|host| {
                    Some(host) != own && registered.contains(&host) && !stayed.contains(&host)
                })
            })
            .map(|one| one.serial)
            .collect()
    }

    /// A reservation command is answered at once.
    pub(super) fn answered(&self, bench: &Bench, command: &ControlCommand, before: &Preempting) {
        assert!(self.left_of(bench, command, before).is_empty());
    }

    /// A reservation command waits.
    pub(super) fn hold(&mut self, bench: &Bench, command: ControlCommand, before: &Preempting) {
        let is_kept = bench
            .target
            .is_changing(command.permit.conn(), command.command.nsid());
        assert!(is_kept || before.registered.is_some());
        let before = self.left_of(bench, &command, before);
        self.held.push(Held {
            permit: command.permit,
            before,
            is_kept,
        });
    }

    /// A reservation command has waited long enough. `None` when its connection is gone.
    pub(super) fn release(&mut self, conn: ConnId, cid: u16, status: Status) -> Option<Permit> {
        let at = self
            .held
            .iter()
            .position(|held| held.permit.conn() == conn && held.permit.cid() == cid)?;
        let held = self.held.swap_remove(at);
        assert!(held.is_kept || status.is_success());
        let early = self
            .executing
            .iter()
            .find(|one| one.on_medium && held.before.contains(&one.serial));
        assert!(
            early.is_none(),
            "answered before command {:?}",
            early.map(|one| one.serial)
        );
        Some(held.permit)
    }

    /// Whether every command has ended.
    pub(super) fn is_quiet(&self) -> bool {
        self.executing.is_empty()
    }

    /// Whether a reservation command waits.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }
}
