//! A host, an operator and a driver that do anything in any order, and what must hold whatever
//! they do. The body of the fuzz target `controller_ops` and of a property test.
//!
//! Checked: nothing panics; every command gets exactly one completion; what is executed lies inside
//! its namespace and its capsule; reservations and fences hold (`medium.rs`); nothing grows without
//! bound.

mod connects;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use arbitrary::{Arbitrary, Unstructured};
use capstan_nvme_proto::command::{AdminCommand, FabricsCommand};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::fabrics::{ConnectParameters, PropertySet};
use capstan_nvme_proto::log::AnaState;
use capstan_nvme_proto::opcode::AdminOpcode;
use capstan_nvme_proto::property::{Cc, Property, PropertySize, ShutdownNotification};
use capstan_nvme_proto::rdma_sgl::{CapsuleData, CommandData};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use uuid::Uuid;

use self::connects::{connect, connect_in_a_hurry};
use super::actions::{ADMIN_OPCODES, HostAction, IO_OPCODES, OperatorAction};
use super::medium::Medium;
use super::{Bench, GEOMETRY, host, namespace_config, subnqn};
use crate::bounds::TRANSFER_MAX_BYTES;
use crate::{
    AdminOutcome, AdminStep, ConnId, ControlOutcome, Geometry, HostPolicy, IoCommand, IoOperation,
    IoStep, Permit, Persistence,
};

/// Numbers below this make happen what would else happen so often that nothing lives long.
const RARE: u8 = 32;

/// What the checker knows.
#[derive(Default)]
struct Model {
    /// Commands without a completion, by connection. Every live queue has an entry.
    outstanding: BTreeMap<ConnId, BTreeSet<u16>>,
    admin: Vec<(ConnId, ConnectParameters)>,
    io: Vec<ConnId>,
    /// Associations whose hosts connect an I/O queue as soon as they may.
    hurry: Vec<ConnectParameters>,
    medium: Medium,
    reached: Reached,
}

/// What a run has come to that few runs come to: who counts it sees that something was checked.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Reached {
    /// I/O queues that a fence kept out while commands of earlier associations were on the medium.
    pub kept_out: u64,
    /// I/O queues of hosts that had such commands, connected when these were over.
    pub let_in: u64,
}

fn pick<T>(items: &[T], which: u8) -> Option<&T> {
    items.get(usize::from(which).checked_rem(items.len())?)
}

/// Most actions of one run: a fault that needs more is looked for in longer runs of others.
const ACTIONS_MAX: usize = 300;

/// The actions that any bytes stand for.
#[must_use]
pub fn host_actions(bytes: &[u8]) -> Vec<HostAction> {
    let mut bytes = Unstructured::new(bytes);
    let mut actions = Vec::new();
    while !bytes.is_empty() && actions.len() < ACTIONS_MAX {
        match HostAction::arbitrary(&mut bytes) {
            Ok(action) => actions.push(action),
            Err(_) => break,
        }
    }
    actions
}

/// Does `actions` one after the other on a fresh [`Bench`] and checks after each what must hold.
/// Says what of it was checked at all.
///
/// # Panics
/// When something does not hold.
pub fn run_host_actions(actions: &[HostAction]) -> Reached {
    let mut bench = Bench::new();
    let mut model = Model::default();
    bench.allocated = (0..1000_u64).step_by(2).map(|lba| lba..lba | 1).collect();
    // Two hosts with one queue of each kind are there from the beginning, so that every action
    // means something.
    for number in [1, 2] {
        let Ok(association) = bench.associate(host(number), subnqn(), 0) else {
            continue;
        };
        bench.enable(&association);
        model.outstanding.insert(association.conn, BTreeSet::new());
        if let Ok(conn) = bench.io_queue(&association, 1) {
            model.outstanding.insert(conn, BTreeSet::new());
            model.io.push(conn);
        }
        model.admin.push((association.conn, association.parameters));
    }
    for action in actions {
        step(&mut bench, &mut model, action);
        settle(&mut bench, &mut model);
        connect_in_a_hurry(&mut bench, &mut model);
    }
    // Everybody leaves: nothing may be left behind.
    while !model.medium.is_quiet() {
        if let Some(permit) = model.medium.finish(&mut bench, 0) {
            complete(&mut bench, &mut model, permit, Status::SUCCESS);
        }
    }
    settle(&mut bench, &mut model);
    while !bench.keeps.is_empty() {
        kept(&mut bench, true);
        settle(&mut bench, &mut model);
    }
    // A connection that is to be closed holds up a Preempt and Abort until it is.
    while let Some((conn, _)) = bench.disconnects.pop() {
        forget(&mut bench, &mut model, conn);
    }
    assert!(!model.medium.holds());
    for (conn, cids) in &model.outstanding {
        if let Some(queue) = bench.queues.get(conn) {
            assert!(cids.is_empty(), "{conn:?} lost {cids:?}");
            assert_eq!(queue.outstanding(), 0);
        }
    }
    let live: Vec<ConnId> = model.outstanding.keys().copied().collect();
    for conn in live {
        forget(&mut bench, &mut model, conn);
    }
    bench.target.assert_empty();
    model.reached
}

/// Takes in what came out of the target.
fn settle(bench: &mut Bench, model: &mut Model) {
    bench.poll();
    for (conn, cqe) in core::mem::take(&mut bench.completions) {
        model.completed(conn, &cqe);
    }
    for (conn, cid, status) in core::mem::take(&mut bench.controls) {
        if let Some(permit) = model.medium.release(conn, cid, status) {
            complete(bench, model, permit, status);
        }
    }
    bench.poll();
    bench.log.clear();
    bench.target.assert_bounds(model.outstanding.len());
    for conn in &model.io {
        let (Some(queue), Some(cids)) = (bench.queues.get(conn), model.outstanding.get(conn))
        else {
            continue;
        };
        assert_eq!(usize::from(queue.outstanding()), cids.len());
        assert!(!queue.are_namespaces_stale());
    }
}

impl Model {
    fn completed(&mut self, conn: ConnId, cqe: &Cqe) {
        let cids = self.outstanding.get_mut(&conn);
        let cids = cids.unwrap_or_else(|| unreachable_queue(conn));
        assert!(
            cids.remove(&cqe.cid.get()),
            "a second completion on {conn:?}: {cqe:?}"
        );
    }

    /// A command goes out. Returns whether its identifier was free.
    fn sent(&mut self, conn: ConnId, cid: u16) -> bool {
        self.outstanding
            .get_mut(&conn)
            .is_some_and(|cids| cids.insert(cid))
    }

    fn answered(&mut self, conn: ConnId, was_free: bool, cqe: &Cqe) {
        if was_free {
            self.completed(conn, cqe);
        } else {
            assert_eq!(cqe.status().code(), Status::COMMAND_ID_CONFLICT);
        }
    }
}

#[expect(clippy::panic, reason = "a checker stops where its check fails")]
fn unreachable_queue(conn: ConnId) -> ! {
    panic!("a completion for {conn:?}, which is no queue")
}

fn forget(bench: &mut Bench, model: &mut Model, conn: ConnId) {
    model.outstanding.remove(&conn);
    model.admin.retain(|(other, _)| *other != conn);
    model.io.retain(|other| *other != conn);
    bench.disconnects.retain(|(other, _)| *other != conn);
    model.medium.disconnect(bench, conn);
    settle(bench, model);
}

fn complete(bench: &mut Bench, model: &mut Model, permit: Permit, status: Status) {
    let conn = permit.conn();
    if let Some(queue) = bench.queues.get_mut(&conn) {
        let cqe = queue.complete(permit, status, 0);
        model.completed(conn, &cqe);
    }
    bench.poll_drained(conn);
}

/// Keys of reservation commands: few, so that they match.
fn reservation_data(sqe: &Sqe) -> [u8; 16] {
    let [keys, ..] = sqe.cdw15.to_bytes();
    let keys = u128::from(keys & 0b11) | u128::from(keys.wrapping_shr(2) & 0b11).wrapping_shl(64);
    keys.to_le_bytes()
}

fn step(bench: &mut Bench, model: &mut Model, action: &HostAction) {
    match action {
        HostAction::Connect(action) => connect(bench, model, action),
        HostAction::SetCc {
            association,
            enable,
            shn,
        } => {
            let cc = Cc {
                en: *enable >= RARE,
                shn: ShutdownNotification(if *shn < RARE { shn & 0b11 } else { 0 }),
                ..Cc::ENABLE_NVM
            };
            let set = PropertySet {
                property: Property::CC,
                size: PropertySize::Four,
                value: cc.encode().into(),
            };
            property_set(bench, model, *association, set);
        }
        HostAction::PropertySet {
            association,
            offset,
            eight,
            value,
        } => {
            let size = if *eight {
                PropertySize::Eight
            } else {
                PropertySize::Four
            };
            let set = PropertySet {
                property: Property(u32::from(*offset & 0x7F)),
                size,
                value: *value,
            };
            property_set(bench, model, *association, set);
        }
        HostAction::Admin(command) => {
            if let Some((conn, _)) = pick(&model.admin, command.queue).cloned() {
                let mut sqe = command.sqe(&ADMIN_OPCODES);
                aim(bench, model, &mut sqe);
                send_admin(bench, model, conn, &sqe, &command.capsule.bytes());
            }
        }
        HostAction::AdminRaw(command) => {
            if let Some((conn, _)) = pick(&model.admin, command.queue).cloned() {
                send_admin(bench, model, conn, &command.sqe(), &command.capsule.bytes());
            }
        }
        HostAction::Io(command) => {
            if let Some(conn) = pick(&model.io, command.queue).copied() {
                let sqe = command.sqe(&IO_OPCODES);
                send_io(bench, model, conn, &sqe, &command.capsule.bytes());
            }
        }
        HostAction::IoRaw(command) => {
            if let Some(conn) = pick(&model.io, command.queue).copied() {
                send_io(bench, model, conn, &command.sqe(), &command.capsule.bytes());
            }
        }
        HostAction::CompleteIo { which, status } => {
            let which = usize::from(*which);
            if let Some(permit) = model.medium.finish(bench, which) {
                complete(bench, model, permit, Status::from_bits(*status));
            }
        }
        HostAction::WithdrawIo { which } => {
            model.medium.withdraw(bench, usize::from(*which));
        }
        HostAction::AnswerAbort { aborted } => {
            if let Some((_, _, abort)) = bench.aborts.pop() {
                bench
                    .target
                    .handle_abort_result(abort, *aborted, bench.now_us);
            }
        }
        HostAction::Flushed { succeeded } => {
            if let Some((flush, _)) = bench.flushes.pop() {
                bench.target.handle_flushed(flush, *succeeded, bench.now_us);
            }
        }
        HostAction::Kept { succeeded } => kept(bench, *succeeded),
        HostAction::Disconnect { which } => {
            let live: Vec<ConnId> = model.outstanding.keys().copied().collect();
            if *which < RARE
                && let Some(conn) = pick(&live, *which)
            {
                forget(bench, model, *conn);
            }
        }
        HostAction::Close => {
            while let Some((conn, _)) = bench.disconnects.pop() {
                forget(bench, model, conn);
            }
        }
        HostAction::Wait { ms } => bench.wait_us(u64::from(*ms).saturating_mul(1000)),
        HostAction::Configure(action) => configure(bench, action),
    }
}

/// The driver answers for the oldest reservations that it was to put on stable storage.
fn kept(bench: &mut Bench, succeeded: bool) {
    if !bench.keeps.is_empty() {
        let (keep, _) = bench.keeps.remove(0);
        let now_us = bench.now_us;
        bench
            .target
            .handle_reservations_kept(keep, succeeded, now_us);
    }
}

/// Of a Cross-Controller Reset: most name a controller that there is.
fn aim(bench: &Bench, model: &Model, sqe: &mut Sqe) {
    let [which, ..] = sqe.cdw10.to_bytes();
    if sqe.admin_opcode() != AdminOpcode::CROSS_CONTROLLER_RESET || which < RARE {
        return;
    }
    if let Some((conn, _)) = pick(&model.admin, which)
        && let Some(reset) = bench.target.reset_of(*conn)
    {
        let aimed = AdminCommand::CrossControllerReset(reset).encode(sqe.cid.get(), Sgl::EMPTY);
        *sqe = aimed;
    }
}

fn property_set(bench: &mut Bench, model: &mut Model, association: u8, set: PropertySet) {
    if let Some((conn, _)) = pick(&model.admin, association).cloned() {
        let cid = bench.new_cid();
        let sqe = FabricsCommand::PropertySet(set).encode(cid, Sgl::EMPTY);
        send_admin(bench, model, conn, &sqe, &[]);
    }
}

fn send_admin(bench: &mut Bench, model: &mut Model, conn: ConnId, sqe: &Sqe, capsule_data: &[u8]) {
    let was_free = model.sent(conn, sqe.cid.get());
    match bench.begin_admin(conn, sqe, capsule_data) {
        AdminStep::Complete(_) if !was_free && is_property_command(sqe) => {}
        AdminStep::Complete(cqe) => model.answered(conn, was_free, &cqe),
        AdminStep::Disconnect(_) => forget(bench, model, conn),
        AdminStep::Execute(mut request) => {
            assert!(was_free);
            bench.look_up(&mut request);
            let length = request.data_bytes();
            assert!(length <= TRANSFER_MAX_BYTES);
            let mut out = Vec::new();
            match bench.target.execute_admin(request, &mut out, bench.now_us) {
                AdminOutcome::Complete(cqe) => {
                    assert!(out.len() <= usize::try_from(length).unwrap_or(0));
                    model.answered(conn, was_free, &cqe);
                }
                AdminOutcome::Held => {}
                AdminOutcome::Gone => unreachable_queue(conn),
            }
        }
    }
}

/// These are answered whatever else has their identifier.
fn is_property_command(sqe: &Sqe) -> bool {
    matches!(
        FabricsCommand::parse(sqe),
        Ok(FabricsCommand::PropertyGet(_) | FabricsCommand::PropertySet(_))
    )
}

fn send_io(bench: &mut Bench, model: &mut Model, conn: ConnId, sqe: &Sqe, capsule_data: &[u8]) {
    let Some(queue) = bench.queues.get_mut(&conn) else {
        return;
    };
    let was_free = model.sent(conn, sqe.cid.get());
    match queue.handle_capsule(sqe, capsule_data) {
        IoStep::Complete(cqe) => model.answered(conn, was_free, &cqe),
        IoStep::Disconnect(_) => forget(bench, model, conn),
        IoStep::DeleteQueue(permit) => model.medium.delete_queue(bench, permit),
        IoStep::Control(command) => {
            let length = usize::try_from(command.data_bytes()).unwrap_or(0);
            let data = reservation_data(sqe);
            let mut out = Vec::new();
            let before = Medium::preempting(bench, &command);
            let outcome = bench
                .target
                .execute_control(&command, &data, &mut out, bench.now_us);
            match outcome {
                ControlOutcome::Complete(status) => {
                    assert!(out.len() <= length);
                    model.medium.answered(bench, &command, &before);
                    complete(bench, model, command.permit, status);
                }
                ControlOutcome::Held => model.medium.hold(bench, command, &before),
            }
        }
        IoStep::Execute(io) => {
            check_io(&io, sqe, capsule_data);
            model.medium.execute(bench, io);
        }
    }
}

/// What a driver may rely on.
fn check_io(io: &IoCommand, sqe: &Sqe, capsule_data: &[u8]) {
    let lbas = io.namespace.lbas;
    let range = match io.operation {
        IoOperation::Read { range, .. }
        | IoOperation::Write { range, .. }
        | IoOperation::Compare { range, .. }
        | IoOperation::Verify { range, .. }
        | IoOperation::WriteZeroes { range, .. } => Some(range),
        IoOperation::Flush | IoOperation::DatasetManagement { .. } | IoOperation::Copy { .. } => {
            None
        }
    };
    if let Some(range) = range {
        assert!(range.nlb > 0 && range.end().is_some_and(|end| end <= lbas));
    }
    let length = io.data_bytes;
    assert!(length <= TRANSFER_MAX_BYTES);
    let data = CommandData::of(io.data_transfer(), sqe, CapsuleData::Bytes(capsule_data));
    assert!(data.is_ok());
    match data.unwrap_or(CommandData::None) {
        CommandData::None => assert_eq!(length, 0),
        CommandData::InCapsule(range) => {
            assert!(capsule_data.get(range.clone()).is_some());
            let data = capsule_data.get(range).unwrap_or_default();
            if let Ok(ranges) = io.dsm_ranges(data) {
                for range in ranges {
                    assert!(range.nlb > 0 && range.end().is_some_and(|end| end <= lbas));
                }
            }
            if let Ok(ranges) = io.copy_sources(data) {
                for range in ranges {
                    assert!(range.nlb > 0 && range.end().is_some_and(|end| end <= lbas));
                }
            }
        }
        CommandData::Keyed(buffer) => assert_eq!(buffer.length_bytes, length),
        CommandData::KeyedList(list) => {
            let moved: u32 = list
                .buffers()
                .map(|buffer| buffer.length_bytes)
                .fold(0, u32::saturating_add);
            assert_eq!(moved, length);
        }
    }
}

/// The operator. What is refused is refused; that is checked elsewhere.
fn configure(bench: &mut Bench, action: &OperatorAction) {
    let subnqn = subnqn();
    let target = &mut bench.target;
    let _refused = match *action {
        OperatorAction::AddNamespace { nsid, persistent } => {
            let nsid = u32::from(nsid & 0xF);
            let mut config = namespace_config(nsid);
            if persistent {
                config.identity.uuid = Some(Uuid::from_u128(nsid.into()));
                config.persistence = Persistence::Ready;
            }
            target.add_namespace(&subnqn, config)
        }
        OperatorAction::RemoveNamespace { nsid } => {
            target.remove_namespace(&subnqn, u32::from(nsid & 0xF))
        }
        OperatorAction::Resize {
            nsid,
            lbas,
            lbads,
            read_only,
        } => {
            let geometry = Geometry {
                lbas,
                lba_bytes: 512_u32.wrapping_shl(u32::from(lbads & 0x7)),
                read_only,
                ..GEOMETRY
            };
            target.set_geometry(&subnqn, u32::from(nsid & 0xF), geometry)
        }
        OperatorAction::ShowTo { nsid, host: only } => {
            let visible = match only {
                Some(number) => HostPolicy::Only(BTreeSet::from([host(number & 0b11)])),
                None => HostPolicy::Any,
            };
            target.set_visibility(&subnqn, u32::from(nsid & 0xF), visible)
        }
        OperatorAction::AllowHosts { first, second } => {
            let hosts = [(1, first), (2, second)]
                .into_iter()
                .filter(|(_, allowed)| *allowed)
                .map(|(number, _)| host(number))
                .collect();
            target.set_hosts(&subnqn, HostPolicy::Only(hosts))
        }
        OperatorAction::SetAnaState { group, state } => {
            let (group, state) = (u32::from(group & 0b11), AnaState(state & 0xF));
            target.set_ana_state(&subnqn, super::PORT, group, state)
        }
    };
}
