//! A host, in the same process and on the same clock as the target: what tests and fuzz targets
//! drive the crate with. It is also the shortest example of a driver.
//!
//! Published under the feature `testing`.

mod actions;
mod medium;
mod operations;
mod values;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::Range;

use capstan_nvme_proto::command::{AdminCommand, FabricsCommand, SetFeatures};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::fabrics::{
    CNTLID_DYNAMIC, Cattr, Connect, ConnectParameters, ConnectResponse, PropertyGet, PropertySet,
};
use capstan_nvme_proto::features::FeatureId;
use capstan_nvme_proto::log::RdmaProviderType;
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_nvme_proto::property::{Cc, Csts, Property};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::transfer::DataTransfer;
use capstan_nvme_proto::{rdma_sgl, tcp};
use zerocopy::IntoBytes;

use crate::{
    AbortId, Action, AdminOutcome, AdminRequest, AdminStep, BackendId, ConnId, ConnectOutcome,
    ConnectRequest, DisconnectReason, Drained, FlushId, Geometry, IoQueue, IoStep, KeepId,
    PortConfig, PortId, QueueSizes, RefuseReason, ReservationsToKeep, Target, TargetConfig,
    Transport,
};

pub use actions::{
    Capsule, Command, ConnectAction, HostAction, OperatorAction, RawCommand, SglKind,
};
pub use operations::{Reached, host_actions, run_host_actions};
pub use values::{
    address, announced, buffer, host, namespace_config, nqn, subnqn, subsystem_config,
};

/// The port of [`Bench::new`].
pub const PORT: PortId = PortId(1);
/// What every test namespace is like unless a test says otherwise.
pub const GEOMETRY: Geometry = Geometry {
    lba_bytes: 512,
    lbas: 1000,
    volatile_write_cache: true,
    discard: true,
    write_zeroes: true,
    read_only: false,
    optimal_io_bytes: 4096,
};

/// Finds the data of a command by the rules of `transport`, as a driver does.
pub(crate) fn locate(
    transport: Transport,
    sqe: &Sqe,
    transfer: DataTransfer,
    capsule_data: &[u8],
) -> Result<(), CommandError> {
    if transfer.bytes() == 0 {
        return Ok(());
    }
    match transport {
        Transport::Rdma => {
            let data = rdma_sgl::CapsuleData::Bytes(capsule_data);
            rdma_sgl::CommandData::of(transfer, sqe, data).map(drop)
        }
        Transport::Tcp => {
            let in_capsule_bytes = u32::try_from(capsule_data.len()).unwrap_or(u32::MAX);
            tcp::command::CommandData::of(transfer, &sqe.sgl()?, in_capsule_bytes).map(drop)
        }
    }
}

impl IoQueue {
    /// Takes in a capsule that came over NVMe/RDMA, and refuses it where its data is not where that
    /// takes it from.
    pub(crate) fn handle_capsule(&mut self, sqe: &Sqe, capsule_data: &[u8]) -> IoStep {
        self.handle_capsule_over(Transport::Rdma, sqe, capsule_data)
    }

    pub(crate) fn handle_capsule_over(
        &mut self,
        transport: Transport,
        sqe: &Sqe,
        capsule_data: &[u8],
    ) -> IoStep {
        let step = self.handle_command(sqe);
        let transfer = match &step {
            IoStep::Execute(io) => io.data_transfer(),
            IoStep::Control(control) => control.data_transfer(),
            IoStep::Complete(_) | IoStep::DeleteQueue(_) | IoStep::Disconnect(_) => return step,
        };
        match locate(transport, sqe, transfer, capsule_data) {
            Ok(()) => step,
            Err(error) => self.refuse_data(step, &error),
        }
    }
}

/// A target with one port and one subsystem that `host(1)` and `host(2)` may use, and the hosts.
#[derive(Debug)]
pub struct Bench {
    /// The target.
    pub target: Target,
    /// The clock.
    pub now_us: u64,
    /// The port that connections come through.
    pub port: PortId,
    /// Where connections come to.
    pub local: SocketAddr,
    /// Where connections come from.
    pub peer: SocketAddr,
    /// I/O queues by connection.
    pub queues: BTreeMap<ConnId, Box<IoQueue>>,
    /// Responses that came as actions, by connection.
    pub completions: Vec<(ConnId, Cqe)>,
    /// Connections the target wants closed. [`Bench::close`] closes them.
    pub disconnects: Vec<(ConnId, DisconnectReason)>,
    /// Aborts the target wants tried.
    pub aborts: Vec<(ConnId, u16, AbortId)>,
    /// Flushes the target wants done.
    pub flushes: Vec<(FlushId, Vec<BackendId>)>,
    /// Reservations that the target wants kept.
    pub keeps: Vec<(KeepId, ReservationsToKeep)>,
    /// I/O queues whose outstanding commands the target wants in the log.
    pub outstanding_told: Vec<ConnId>,
    /// Held commands of I/O queues that the target wants completed.
    pub controls: Vec<(ConnId, u16, Status)>,
    /// Lines of the log.
    pub log: Vec<String>,
    /// What queues are connected by.
    pub transport: Transport,
    /// Extents that the medium says are allocated, of whatever namespace.
    pub allocated: Vec<Range<u64>>,
    next_conn: u64,
    next_cid: u16,
}

/// An association, as its host knows it.
#[derive(Clone, Debug)]
pub struct Association {
    /// The connection of the Admin queue.
    pub conn: ConnId,
    /// Controller Identifier.
    pub cntlid: u16,
    /// Who the host is, and of what it is a host.
    pub parameters: ConnectParameters,
}

impl Bench {
    /// The target of the type's description, with namespace 1.
    ///
    /// # Panics
    /// Never: the configuration is good.
    #[must_use]
    pub fn new() -> Self {
        Self::with(TargetConfig::default())
    }

    /// The same with another configuration.
    ///
    /// # Panics
    /// When it is not accepted.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a mistake in a test is to stop it")]
    pub fn with(config: TargetConfig) -> Self {
        let mut target = Target::new(config, 0).expect("a good configuration");
        let port = PortConfig {
            id: PORT,
            address: address("0.0.0.0:4420"),
            rdma: Some(RdmaProviderType::IWARP),
            tcp: false,
            tcp_port: None,
        };
        target.add_port(port).expect("a new port");
        target
            .add_subsystem(subsystem_config())
            .expect("a new subsystem");
        target
            .add_namespace(&subnqn(), namespace_config(1))
            .expect("a new namespace");
        Self {
            target,
            now_us: 0,
            port: PORT,
            local: address("10.0.0.5:4420"),
            peer: address("10.0.0.9:50000"),
            queues: BTreeMap::new(),
            completions: Vec::new(),
            disconnects: Vec::new(),
            aborts: Vec::new(),
            flushes: Vec::new(),
            keeps: Vec::new(),
            outstanding_told: Vec::new(),
            controls: Vec::new(),
            log: Vec::new(),
            transport: Transport::Rdma,
            allocated: Vec::new(),
            next_conn: 1,
            next_cid: 0,
        }
    }

    /// A connection that was never used.
    pub fn new_conn(&mut self) -> ConnId {
        let conn = ConnId(self.next_conn);
        self.next_conn = self.next_conn.wrapping_add(1);
        conn
    }

    /// A Command Identifier that is not in use.
    pub fn new_cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.next_cid
    }

    /// Does what the target wants done, as far as that needs nobody else.
    pub fn poll(&mut self) {
        while let Some(action) = self.target.poll_action() {
            match action {
                Action::Complete { conn, cqe } => self.completions.push((conn, cqe)),
                Action::Disconnect { conn, why } => self.disconnects.push((conn, why)),
                Action::AbortIo { conn, cid, abort } => self.aborts.push((conn, cid, abort)),
                Action::DrainIo { conn, nsid, drain } => {
                    if let Some(queue) = self.queues.get_mut(&conn) {
                        queue.begin_drain(nsid, drain);
                        self.poll_drained(conn);
                    }
                }
                // What executes a command here has told the queue of it: none waits before its
                // backend.
                Action::DrainWrites { conn, nsid, drain } => {
                    if let Some(queue) = self.queues.get_mut(&conn) {
                        queue.begin_drain_of_writes(nsid, drain);
                        self.poll_drained(conn);
                    }
                }
                Action::FenceIo { conn, fence } => {
                    if let Some(queue) = self.queues.get_mut(&conn) {
                        queue.begin_fence(fence);
                        self.poll_drained(conn);
                    }
                }
                Action::TellOutstanding { conn } => self.outstanding_told.push(conn),
                Action::CompleteIo { conn, cid, status } => self.controls.push((conn, cid, status)),
                Action::SetNamespaces {
                    conn,
                    namespaces,
                    counters,
                } => {
                    if let Some(queue) = self.queues.get_mut(&conn) {
                        queue.set_namespaces(namespaces, counters);
                    }
                }
                Action::Flush { flush, backends } => self.flushes.push((flush, backends)),
                Action::KeepReservations { keep, kept } => self.keeps.push((keep, kept)),
                Action::Log(event) => self.log.push(alloc::format!("{event}")),
            }
        }
    }

    /// Tells the target that a queue has drained, when it has.
    pub fn poll_drained(&mut self, conn: ConnId) {
        let Some(queue) = self.queues.get_mut(&conn) else {
            return;
        };
        while let Some(drained) = queue.poll_drained() {
            match drained {
                Drained::Namespace(drain) => self.target.handle_drained(conn, drain, self.now_us),
                Drained::Queue(fence) => self.target.handle_fenced(conn, fence, self.now_us),
            }
        }
    }

    /// Closes a connection of which a backend still has commands.
    pub fn disconnecting(&mut self, conn: ConnId) {
        self.queues.remove(&conn);
        self.target.handle_disconnecting(conn, self.now_us);
        self.poll();
    }

    /// Closes a connection.
    pub fn disconnect(&mut self, conn: ConnId) {
        self.queues.remove(&conn);
        self.target.handle_disconnected(conn, self.now_us);
        self.poll();
    }

    /// Closes what the target wants closed, until it wants nothing more.
    pub fn close(&mut self) {
        while let Some((conn, _)) = self.disconnects.pop() {
            self.disconnect(conn);
        }
    }

    /// Lets time pass.
    pub fn wait_us(&mut self, duration_us: u64) {
        self.now_us = self.now_us.saturating_add(duration_us);
        self.target.handle_timeout(self.now_us);
        self.poll();
    }

    /// Sends a Connect. The connection is the one of the outcome's queue.
    pub fn connect(
        &mut self,
        connect: Connect,
        parameters: &ConnectParameters,
        entries: u16,
    ) -> (ConnId, ConnectOutcome) {
        let conn = self.new_conn();
        let cid = self.new_cid();
        let sqe = FabricsCommand::Connect(connect).encode(cid, buffer(1024));
        let data = parameters.encode();
        let request = ConnectRequest {
            conn,
            port: self.port,
            local: self.local,
            peer: self.peer,
            sizes: QueueSizes {
                transport: self.transport,
                cntlid: parameters.cntlid,
                ..announced(connect.qid, entries)
            },
            over: "NVMe/RDMA",
            sqe: &sqe,
            data: data.as_bytes(),
        };
        let outcome = self
            .target
            .handle_connect(&request, &mut |_| Ok(()), self.now_us);
        self.poll();
        (conn, outcome)
    }

    /// Connects the Admin queue of a host.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn associate(
        &mut self,
        hostnqn: Nqn,
        subnqn: Nqn,
        kato_ms: u32,
    ) -> Result<Association, RefuseReason> {
        // Host n has Host Identifier nn…n.
        let number = hostnqn.as_str().bytes().last().unwrap_or(b'0') & 0xF;
        self.associate_as(hostnqn, HostId([number; 16]), subnqn, kato_ms)
    }

    /// Connects the Admin queue of a host with another Host Identifier.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn associate_as(
        &mut self,
        hostnqn: Nqn,
        hostid: HostId,
        subnqn: Nqn,
        kato_ms: u32,
    ) -> Result<Association, RefuseReason> {
        let parameters = ConnectParameters {
            hostid,
            cntlid: CNTLID_DYNAMIC,
            subnqn,
            hostnqn,
        };
        let connect = Connect {
            qid: 0,
            sqsize: 32,
            cattr: Cattr(0),
            kato_ms,
        };
        match self.connect(connect, &parameters, 32) {
            (conn, ConnectOutcome::AdminQueue { cqe, .. }) => {
                let cntlid = ConnectResponse::decode(cqe.dw0.get()).cntlid;
                Ok(Association {
                    conn,
                    cntlid,
                    parameters: ConnectParameters {
                        cntlid,
                        ..parameters
                    },
                })
            }
            (_, ConnectOutcome::IoQueue { association, .. }) => Err(RefuseReason::QidInUse {
                qid: association.cntlid,
            }),
            (_, ConnectOutcome::Refused { why, .. }) => Err(why),
        }
    }

    /// Connects and enables a controller for host 1.
    ///
    /// # Panics
    /// When that does not succeed.
    #[expect(clippy::expect_used, reason = "a mistake in a test is to stop it")]
    pub fn ready(&mut self) -> Association {
        let association = self
            .associate(host(1), subnqn(), 0)
            .expect("a host that is allowed");
        self.enable(&association);
        association
    }

    /// Enables a controller.
    pub fn enable(&mut self, association: &Association) {
        let cqe = self.set_cc(association, Cc::ENABLE_NVM);
        assert!(cqe.status().is_success(), "{cqe:?}");
        assert!(self.csts(association).rdy);
    }

    /// Connects an I/O queue of 8 entries.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn io_queue(
        &mut self,
        association: &Association,
        qid: u16,
    ) -> Result<ConnId, RefuseReason> {
        let connect = Connect {
            qid,
            sqsize: 8,
            cattr: Cattr(0),
            kato_ms: 0,
        };
        match self.connect(connect, &association.parameters, 8) {
            (conn, ConnectOutcome::IoQueue { queue, .. }) => {
                self.queues.insert(conn, queue);
                Ok(conn)
            }
            (_, ConnectOutcome::AdminQueue { association, .. }) => Err(RefuseReason::QidInUse {
                qid: association.cntlid,
            }),
            (_, ConnectOutcome::Refused { why, .. }) => Err(why),
        }
    }

    /// Sends a capsule to an Admin queue. `None` when the response is held.
    pub fn send_admin(&mut self, conn: ConnId, sqe: &Sqe) -> Option<(Cqe, Vec<u8>)> {
        self.send_admin_with(conn, sqe, &[])
    }

    /// The same, with data of the host.
    pub fn send_admin_with(
        &mut self,
        conn: ConnId,
        sqe: &Sqe,
        data: &[u8],
    ) -> Option<(Cqe, Vec<u8>)> {
        let response = match self.begin_admin(conn, sqe, &[]) {
            AdminStep::Complete(cqe) => Some((cqe, Vec::new())),
            AdminStep::Disconnect(why) => {
                self.disconnects.push((conn, why));
                None
            }
            AdminStep::Execute(mut request) => {
                let mut out = Vec::new();
                self.look_up(&mut request);
                if request.brings_data() {
                    request.set_data(data.to_vec());
                }
                match self.target.execute_admin(request, &mut out, self.now_us) {
                    AdminOutcome::Complete(cqe) => Some((cqe, out)),
                    AdminOutcome::Held | AdminOutcome::Gone => None,
                }
            }
        };
        self.poll();
        response
    }

    /// Takes in a capsule of an Admin queue, and refuses it where its data is not where the
    /// transport of the hosts takes it from.
    pub(crate) fn begin_admin(
        &mut self,
        conn: ConnId,
        sqe: &Sqe,
        capsule_data: &[u8],
    ) -> AdminStep {
        match self.target.begin_admin(conn, sqe, self.now_us) {
            AdminStep::Execute(request) => {
                let transfer = request.data_transfer();
                match locate(self.transport, sqe, transfer, capsule_data) {
                    Ok(()) => AdminStep::Execute(request),
                    Err(error) => {
                        let refused = self.target.refuse_admin_data(request, &error);
                        let gone = AdminStep::Disconnect(DisconnectReason::NotConnected);
                        refused.map_or(gone, AdminStep::Complete)
                    }
                }
            }
            step @ (AdminStep::Complete(_) | AdminStep::Disconnect(_)) => step,
        }
    }

    /// Looks at the medium for a command that asks what is allocated.
    pub(super) fn look_up(&self, request: &mut AdminRequest) {
        let Some(query) = request.allocation_query() else {
            return;
        };
        assert!(!query.lbas.is_empty() && query.extents_max > 0);
        let inside = |extent: &Range<u64>| Range {
            start: extent.start.max(query.lbas.start),
            end: extent.end.min(query.lbas.end),
        };
        let found = self.allocated.iter().map(inside);
        let found = found.filter(|extent| !extent.is_empty());
        let found = found.take(query.extents_max).collect();
        request.set_allocated(found);
    }

    /// Sends an Admin command with a buffer of just the size it needs.
    ///
    /// # Panics
    /// When the response is held.
    #[expect(clippy::expect_used, reason = "a mistake in a test is to stop it")]
    pub fn admin(&mut self, association: &Association, command: &AdminCommand) -> (Cqe, Vec<u8>) {
        let cid = self.new_cid();
        let length = u32::try_from(command.data_transfer().bytes()).unwrap_or(u32::MAX);
        let sqe = command.encode(cid, buffer(length));
        let (cqe, data) = self
            .send_admin(association.conn, &sqe)
            .expect("a response at once");
        assert_eq!(cqe.cid.get(), cid);
        (cqe, data)
    }

    /// Sets Host Behavior Support, with as many bytes in the host's buffer.
    ///
    /// # Panics
    /// When there is no response.
    #[expect(clippy::expect_used, reason = "a mistake in a test is to stop it")]
    pub fn set_host_behavior(&mut self, association: &Association, data: &[u8]) -> Status {
        let cid = self.new_cid();
        let feature = SetFeatures::new(FeatureId::HOST_BEHAVIOR_SUPPORT, 0);
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let sqe = AdminCommand::SetFeatures(feature).encode(cid, buffer(length));
        let (cqe, _) = self
            .send_admin_with(association.conn, &sqe, data)
            .expect("a response at once");
        cqe.status()
    }

    /// Sends a Fabrics command to an Admin queue.
    ///
    /// # Panics
    /// When there is no response.
    #[expect(clippy::expect_used, reason = "a mistake in a test is to stop it")]
    pub fn fabrics(&mut self, association: &Association, command: &FabricsCommand) -> Cqe {
        let cid = self.new_cid();
        let sqe = command.encode(cid, Sgl::EMPTY);
        let (cqe, _) = self
            .send_admin(association.conn, &sqe)
            .expect("a response at once");
        assert_eq!(cqe.cid.get(), cid);
        cqe
    }

    /// Property Get.
    ///
    /// # Panics
    /// When the property has no size.
    #[expect(clippy::expect_used, reason = "a mistake in a test is to stop it")]
    pub fn property(&mut self, association: &Association, property: Property) -> Cqe {
        let size = property.size().expect("a property with a size");
        let get = PropertyGet { property, size };
        self.fabrics(association, &FabricsCommand::PropertyGet(get))
    }

    /// CSTS.
    pub fn csts(&mut self, association: &Association) -> Csts {
        let value = self.property(association, Property::CSTS).result();
        Csts::decode(u32::try_from(value).unwrap_or(u32::MAX))
    }

    /// Writes CC.
    ///
    /// # Panics
    /// Never: CC has a size.
    #[expect(clippy::expect_used, reason = "a mistake in a test is to stop it")]
    pub fn set_cc(&mut self, association: &Association, cc: Cc) -> Cqe {
        let set = PropertySet {
            property: Property::CC,
            size: Property::CC.size().expect("CC has a size"),
            value: cc.encode().into(),
        };
        self.fabrics(association, &FabricsCommand::PropertySet(set))
    }
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}
