//! Connect: from a connection to a queue of a controller. NVMe Base 2.1, section 6.3.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use core::net::SocketAddr;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::fabrics::{
    CNTLID_DYNAMIC, CNTLID_MAX, Connect, ConnectData, ConnectParameters, ConnectResponse,
    FabricsCommand,
};
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::property::Cc;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::transfer::DataTransfer;

use super::{CrossResets, Queue, QueueSizes, Share, Target};
use crate::ConnId;
use crate::action::{Action, Association, ControllerId, Event};
use crate::aer::AsyncEvents;
use crate::bounds::ENABLE_TIMEOUT_US;
use crate::config::{PortId, Transport};
use crate::controller::{Controller, ControllerKind, ControllerState, IoQueueRecord, KeepAlive};
use crate::counters::NamespaceCounters;
use crate::features::{Features, default_events};
use crate::io_queue::IoQueue;
use crate::log_page::error::ErrorLog;
use crate::log_page::reservation::Notifications;
use crate::namespace::ChangedNamespaces;
use crate::queue::Accounting;
use crate::refuse::{Refusal, RefuseReason};
use crate::reported::ReportedNamespaces;
use crate::shared::{ControllerShared, QueueShared};

/// The first command of a connection, and what the connection is.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// The driver's name of the connection.
    pub conn: ConnId,
    /// Port it came in on.
    pub port: PortId,
    /// This side's address, as the host reached it.
    pub local: SocketAddr,
    /// The host's address.
    pub peer: SocketAddr,
    /// What the connection request of this connection announced.
    pub sizes: QueueSizes,
    /// The transport of this connection in words, for the log.
    pub over: &'static str,
    /// The command.
    pub sqe: &'a Sqe,
    /// Its data, as much as [`Target::connect_data`] says.
    pub data: &'a [u8],
}

/// Answer to a Connect. Send the response in every case.
#[derive(Debug)]
pub enum ConnectOutcome {
    /// The connection is an Admin queue now: a controller exists. Its commands go to
    /// [`Target::begin_admin`].
    AdminQueue {
        /// The response.
        cqe: Cqe,
        /// Whose it is.
        association: Arc<Association>,
    },
    /// The connection is an I/O queue now.
    IoQueue {
        /// The response.
        cqe: Cqe,
        /// The queue, for the reactor that owns the connection.
        queue: Box<IoQueue>,
        /// Whose it is.
        association: Arc<Association>,
    },
    /// Refused. The connection is none of this crate's; close it after the response.
    Refused {
        /// The response.
        cqe: Cqe,
        /// Why.
        why: RefuseReason,
    },
}

impl Target {
    /// The data of a Connect command, which must be found and fetched before
    /// [`Target::handle_connect`]. What is no Connect needs none to be refused.
    #[must_use]
    pub fn connect_data(sqe: &Sqe) -> DataTransfer {
        match FabricsCommand::parse(sqe) {
            Ok(command @ FabricsCommand::Connect(_)) => command.data_transfer(),
            Ok(
                FabricsCommand::PropertyGet(_)
                | FabricsCommand::PropertySet(_)
                | FabricsCommand::Disconnect
                | FabricsCommand::AuthenticationSend(_)
                | FabricsCommand::AuthenticationReceive(_),
            )
            | Err(_) => DataTransfer::None,
        }
    }

    /// Refuses a Connect command whose data is not where its transport takes it from: the response
    /// to send; then close the connection.
    #[must_use]
    pub fn refuse_connect_data(sqe: &Sqe, error: CommandError) -> Cqe {
        refusal_cqe(sqe, &RefuseReason::Malformed(error))
    }

    /// Takes in the first command of a connection. `settle` is called when everything else allows
    /// it to be a queue of an I/O controller: it takes the resources of that queue, which count on
    /// that share, or says why there are none.
    pub fn handle_connect(
        &mut self,
        request: &ConnectRequest<'_>,
        settle: Settle<'_>,
        now_us: u64,
    ) -> ConnectOutcome {
        let mut hostnqn = None;
        let connected = self.try_connect(request, &mut hostnqn, settle, now_us);
        match connected {
            Ok(outcome) => outcome,
            Err(why) => {
                self.note_refusal(Refusal {
                    at_us: now_us,
                    peer: request.peer,
                    hostnqn,
                    why: why.clone(),
                });
                ConnectOutcome::Refused {
                    cqe: refusal_cqe(request.sqe, &why),
                    why,
                }
            }
        }
    }

    fn try_connect(
        &mut self,
        request: &ConnectRequest<'_>,
        hostnqn: &mut Option<Nqn>,
        settle: Settle<'_>,
        now_us: u64,
    ) -> Result<ConnectOutcome, RefuseReason> {
        if self.connections.contains_key(&request.conn) {
            return Err(RefuseReason::AlreadyConnected);
        }
        let not_connect = RefuseReason::NotConnect {
            opcode: request.sqe.opcode,
        };
        let FabricsCommand::Connect(connect) = (match FabricsCommand::parse(request.sqe) {
            Ok(command) => command,
            Err(error) if error.status.code() == Status::INVALID_OPCODE => return Err(not_connect),
            Err(error) => return Err(error.into()),
        }) else {
            return Err(not_connect);
        };
        let parameters = ConnectData::from_data(request.data)?.parse()?;
        *hostnqn = Some(parameters.hostnqn.clone());
        check_announced(&request.sizes, connect.qid, parameters.cntlid)?;
        let entries = self.check_entries(request, &connect)?;
        if connect.qid == 0 {
            self.connect_admin(request, &connect, parameters, (entries, settle), now_us)
        } else {
            self.connect_io(request, &connect, &parameters, (entries, settle), now_us)
        }
    }

    /// SQSIZE must fit the controller and the receives that are posted for this connection.
    fn check_entries(
        &self,
        request: &ConnectRequest<'_>,
        connect: &Connect,
    ) -> Result<u16, RefuseReason> {
        let max = self.entries_max(connect.qid).min(request.sizes.entries);
        u16::try_from(connect.sqsize)
            .ok()
            .filter(|entries| *entries <= max)
            .ok_or(RefuseReason::QueueTooLarge {
                entries: connect.sqsize,
                max,
            })
    }

    fn connect_admin(
        &mut self,
        request: &ConnectRequest<'_>,
        connect: &Connect,
        parameters: ConnectParameters,
        (entries, settle): (u16, Settle<'_>),
        now_us: u64,
    ) -> Result<ConnectOutcome, RefuseReason> {
        let ConnectParameters {
            hostid,
            cntlid,
            subnqn,
            hostnqn,
        } = parameters;
        self.check_transport(request)?;
        let kind = self.admit(request, &subnqn, &hostnqn)?;
        if cntlid != CNTLID_DYNAMIC {
            return Err(RefuseReason::StaticController { cntlid });
        }
        let share = self.share_of(&subnqn);
        if kind == ControllerKind::Io {
            self.check_shares(&subnqn, request.peer.ip())?;
        }
        let cntlid = self.allocate_cntlid(&subnqn);
        let cntlid = cntlid.ok_or_else(|| self.no_controllers_left())?;
        let kato_ms = kind.kato_ms(connect.kato_ms);
        let enable_by_us = match kind {
            ControllerKind::Discovery => {
                self.make_room_for_discovery();
                // Its Keep Alive Timeout is a bound as good.
                None
            }
            ControllerKind::Io => {
                settle_in(settle, share)?;
                Some(now_us.saturating_add(ENABLE_TIMEOUT_US))
            }
        };
        let id = ControllerId(self.next_controller);
        self.next_controller = self.next_controller.wrapping_add(1);
        let association = Arc::new(Association {
            hostnqn,
            hostid,
            subnqn,
            cntlid,
            port: request.port,
            peer: request.peer,
        });
        let mut controller = Controller {
            id,
            kind,
            transport: request.sizes.transport,
            association: Arc::clone(&association),
            local: request.local,
            conn: request.conn,
            admin: accounting(request.conn, entries, connect),
            state: ControllerState::Disabled,
            was_ready: false,
            instance: None,
            resets: CrossResets::default(),
            fence: None,
            cc: Cc::decode(0),
            keep_alive: KeepAlive::new(kato_ms, now_us),
            enable_by_us,
            shared: Arc::new(ControllerShared::default()),
            namespaces: Arc::default(),
            changed: ChangedNamespaces::default(),
            reported: ReportedNamespaces::default(),
            look_ends_us: None,
            events: AsyncEvents::new(default_events(kind)),
            features: Features::default(),
            notifications: Notifications::default(),
            errors: ErrorLog::default(),
            io_queues: BTreeMap::new(),
            ending: None,
        };
        let cqe = connected(&mut controller.admin, request.sqe, cntlid);
        let kato_ms = controller.keep_alive.kato_ms();
        self.controllers.insert(id, controller);
        self.connections.insert(request.conn, Queue::Admin(id));
        if self.show_namespaces(id)
            && let Some(controller) = self.controllers.get_mut(&id)
        {
            // What a new host finds is no change.
            controller.changed.clear();
        }
        self.actions.push_back(Action::Log(Event::Connected {
            association: Arc::clone(&association),
            over: request.over,
            kato_ms,
        }));
        self.end_older(id, request.peer.ip());
        self.close_fence(id, now_us);
        Ok(ConnectOutcome::AdminQueue { cqe, association })
    }

    /// Whether the port speaks what the host has used.
    fn check_transport(&self, request: &ConnectRequest<'_>) -> Result<(), RefuseReason> {
        let (port, transport) = (request.port, request.sizes.transport);
        match self.ports.get(&port) {
            Some(config) if !config.speaks(transport) => {
                let address = self.listens_at(port, transport);
                Err(RefuseReason::TransportNotOnPort { transport, address })
            }
            _ => Ok(()),
        }
    }

    /// Where a port takes connections of `transport`, as a log names it.
    fn listens_at(&self, port: PortId, transport: Transport) -> SocketAddr {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let port = self.ports.get(&port);
        port.map_or(unknown, |port| port.with_port_of(port.address, transport))
    }

    /// Whether `hostnqn` may use `subnqn` where it connects, and what it gets.
    fn admit(
        &self,
        request: &ConnectRequest<'_>,
        subnqn: &Nqn,
        hostnqn: &Nqn,
    ) -> Result<ControllerKind, RefuseReason> {
        if subnqn.is_discovery() {
            return Ok(ControllerKind::Discovery);
        }
        let Some(subsystem) = self.subsystems.get(subnqn) else {
            let mut names = self.subsystems.keys();
            let same = names.find(|name| subnqn.is_same(name));
            let subnqn = Box::new(subnqn.clone());
            return Err(match same {
                None => RefuseReason::UnknownSubsystem { subnqn },
                Some(written) => RefuseReason::OtherCase {
                    subnqn,
                    written: Box::new(written.clone()),
                },
            });
        };
        if !subsystem.config.hosts.allows(hostnqn) {
            let subnqn = Box::new(subnqn.clone());
            return Err(if *hostnqn == Nqn::NONE {
                RefuseReason::NamelessHost { subnqn }
            } else {
                RefuseReason::HostNotAllowed {
                    hostnqn: Box::new(hostnqn.clone()),
                    subnqn,
                }
            });
        }
        if !subsystem.config.ports.contains(&request.port) {
            return Err(RefuseReason::NotOnPort {
                subnqn: Box::new(subnqn.clone()),
                address: self.listens_at(request.port, request.sizes.transport),
            });
        }
        Ok(ControllerKind::Io)
    }

    /// A CNTLID that no controller of the subsystem has, starting after the last one given.
    fn allocate_cntlid(&mut self, subnqn: &Nqn) -> Option<u16> {
        let next = match self.subsystems.get(subnqn) {
            Some(subsystem) => subsystem.next_cntlid,
            None => self.next_discovery_cntlid,
        };
        let taken: BTreeSet<u16> = self
            .controllers
            .values()
            .filter(|controller| controller.association.subnqn == *subnqn)
            .map(|controller| controller.association.cntlid)
            // Those that have left commands behind are still addressed by theirs.
            .chain(
                self.lingering
                    .values()
                    .filter(|left| left.association.subnqn == *subnqn)
                    .map(|left| left.association.cntlid),
            )
            .collect();
        let cntlid = (next..=CNTLID_MAX)
            .chain(1..next)
            .find(|cntlid| !taken.contains(cntlid))?;
        let after = if cntlid >= CNTLID_MAX {
            1
        } else {
            cntlid.saturating_add(1)
        };
        match self.subsystems.get_mut(subnqn) {
            Some(subsystem) => subsystem.next_cntlid = after,
            None => self.next_discovery_cntlid = after,
        }
        Some(cntlid)
    }

    fn connect_io(
        &mut self,
        request: &ConnectRequest<'_>,
        connect: &Connect,
        parameters: &ConnectParameters,
        (entries, settle): (u16, Settle<'_>),
        now_us: u64,
    ) -> Result<ConnectOutcome, RefuseReason> {
        let ConnectParameters {
            hostid,
            cntlid,
            subnqn,
            hostnqn,
        } = parameters;
        let (cntlid, qid) = (*cntlid, connect.qid);
        let queues = self.config.io_queues;
        let share = self.share_of(subnqn);
        let controller = self
            .controllers
            .values_mut()
            .find(|controller| {
                controller.association.cntlid == cntlid && controller.association.subnqn == *subnqn
            })
            .ok_or(RefuseReason::UnknownController { cntlid })?;
        let association = Arc::clone(&controller.association);
        if association.hostnqn != *hostnqn || association.hostid != *hostid {
            return Err(RefuseReason::OtherHost {
                cntlid,
                hostnqn: Box::new(hostnqn.clone()),
            });
        }
        if association.port != request.port {
            let address = self.listens_at(request.port, request.sizes.transport);
            return Err(RefuseReason::OtherPort { cntlid, address });
        }
        // NVMe Base 2.1, section 3.3.2.2: all queues of an association use one transport.
        if controller.transport != request.sizes.transport {
            return Err(RefuseReason::OtherTransport {
                cntlid,
                transport: controller.transport,
            });
        }
        let queues = match controller.kind {
            ControllerKind::Io => queues,
            ControllerKind::Discovery => 0,
        };
        if qid > queues {
            return Err(RefuseReason::QidOutOfRange { qid, queues });
        }
        // One that is ending may be reset and enabled again by its host, past its fence.
        if controller.state != ControllerState::Ready || controller.ending.is_some() {
            return Err(RefuseReason::NotReady { cntlid });
        }
        if controller.io_queues.contains_key(&qid) {
            return Err(RefuseReason::QidInUse { qid });
        }
        // What a queue of before has left on a medium must not land behind what comes here.
        let mut left = self.lingering.values();
        if let Some(left) = left.find(|left| left.controller == controller.id) {
            let (_, left) = left.name();
            return Err(RefuseReason::QueueNotOver { qid, left });
        }
        settle_in(settle, share)?;
        controller.keep_alive.restart(now_us);
        let mut accounting = accounting(request.conn, entries, connect);
        let cqe = connected(&mut accounting, request.sqe, cntlid);
        let shared = Arc::new(QueueShared::default());
        let counters = NamespaceCounters::new(&controller.namespaces);
        let queue = Box::new(IoQueue::new(
            request.conn,
            qid,
            cntlid,
            accounting,
            Arc::clone(&controller.namespaces),
            Arc::clone(&controller.shared),
            Arc::clone(&shared),
            counters.clone(),
        ));
        let record = IoQueueRecord {
            conn: request.conn,
            entries,
            shared,
            counters: vec![counters],
            errors_seen: 0,
        };
        controller.io_queues.insert(qid, record);
        let id = controller.id;
        self.connections.insert(request.conn, Queue::Io(id, qid));
        self.actions.push_back(Action::Log(Event::QueueConnected {
            association: Arc::clone(&association),
            qid,
            entries,
            over: request.over,
        }));
        Ok(ConnectOutcome::IoQueue {
            cqe,
            queue,
            association,
        })
    }
}

/// Receives, memory and the reactor were chosen by what the connection request announced: Connect
/// must ask for the same queue (NVMe/RDMA Transport 1.1, section 3.1, QID and CNTLID of the
/// RDMA_CM_REQUEST private data).
fn check_announced(announced: &QueueSizes, qid: u16, cntlid: u16) -> Result<(), RefuseReason> {
    if announced.qid != qid {
        return Err(RefuseReason::QidChanged {
            qid,
            announced: announced.qid,
        });
    }
    // Zero for Admin queues, and from hosts older than transport revision 1.1.
    if qid != 0 && announced.cntlid != 0 && announced.cntlid != cntlid {
        return Err(RefuseReason::CntlidChanged {
            cntlid,
            announced: announced.cntlid,
        });
    }
    Ok(())
}

/// Takes the resources of a queue, or says why there are none.
pub type Settle<'a> = &'a mut dyn FnMut(Share) -> Result<(), String>;

fn settle_in(settle: Settle<'_>, share: Share) -> Result<(), RefuseReason> {
    settle(share).map_err(|why| RefuseReason::NoRoom { why: why.into() })
}

fn accounting(conn: ConnId, entries: u16, connect: &Connect) -> Accounting {
    Accounting::new(conn, entries, !connect.cattr.disable_sq_flow_control())
}

/// The response to the Connect that made the queue: its first entry.
fn connected(queue: &mut Accounting, sqe: &Sqe, cntlid: u16) -> Cqe {
    let response = ConnectResponse {
        cntlid,
        authentication_required: false,
        secure_channel_required: false,
    };
    queue.answer(sqe.cid.get(), Status::SUCCESS, response.encode())
}

/// The response to a refused Connect. There is no queue: SQHD is zero.
fn refusal_cqe(sqe: &Sqe, why: &RefuseReason) -> Cqe {
    let status = why.status();
    let dw0 = if status.code() == Status::CONNECT_INVALID_PARAMETERS {
        why.location().connect_dw0()
    } else {
        0
    };
    Cqe::new(sqe.cid.get(), 0, status, dw0)
}
