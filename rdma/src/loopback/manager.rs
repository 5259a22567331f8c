//! The connection manager a program sees.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::completion::Wake;
use super::connection::{CmMessage, ManagerState, Migrating, Step, agreed};
use super::device::LoopbackDevice;
use super::pair::{Qp, Receives, SGE_MAX};
use super::pair_config::PairConfig;
use super::state::{Core, Event, NetRef};
use crate::contract::{
    CmError, CmEvent, CmId, ConnectParam, ConnectionManager, Device, DeviceAttributes, MigratedId,
    PrivateData, ProtectionDomain, QpConfig, QpState, QueuePair, RdmaError, ReceiveSource,
};
use crate::ids::{
    UNKNOWN, check_limit, foreign, may_accept, may_connect, may_make_qp, may_migrate,
};

/// First port given to listeners that leave the choice to the provider.
const FIRST_PORT: u16 = 32_768;

/// A connection request between two managers of one network. Refuses the peer when dropped.
struct Ticket {
    /// Identifies the network without pointing into it: a ticket may be dropped anywhere.
    network: Arc<()>,
    host: u32,
    id: u64,
    dropped: Arc<AtomicBool>,
    adopted: bool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.adopted {
            self.dropped.store(true, Ordering::Release);
        }
    }
}

/// A connection manager of one provider.
pub struct Manager {
    net: NetRef,
    network: Arc<()>,
    host: u32,
    manager: u32,
    /// Replaced after its removal and return.
    device: RefCell<Rc<LoopbackDevice>>,
    fd: RawFd,
}

fn invalid(what: &'static str) -> CmError {
    CmError::Invalid(what)
}

fn system(what: String, message: &str, errno: i32) -> CmError {
    CmError::System {
        what,
        message: message.into(),
        errno: Some(errno),
    }
}

impl Manager {
    pub(super) fn create(net: &NetRef, network: &Arc<()>, host: u32) -> Result<Self, RdmaError> {
        let wake = Wake::new()?;
        let fd = wake.raw();
        let mut core = net.core.borrow_mut();
        let device = LoopbackDevice::new(net, &core, host)?;
        core.next.manager += 1;
        let manager = core.next.manager;
        let state = ManagerState {
            events: VecDeque::new(),
            wake,
        };
        core.managers.insert(manager, state);
        Ok(Self {
            net: Rc::clone(net),
            network: Arc::clone(network),
            host,
            manager,
            device: RefCell::new(Rc::new(device)),
            fd,
        })
    }
}

impl Core {
    pub(super) fn attributes(&self, host: u32) -> Result<&DeviceAttributes, RdmaError> {
        let host = self.hosts.get(host as usize);
        let attributes = host.map(|host| &host.attributes);
        attributes.ok_or(RdmaError::Invalid("no such provider"))
    }

    fn pick_port(&mut self, host: u32) -> u16 {
        let Some(host) = self.hosts.get_mut(host as usize) else {
            return 0;
        };
        let port = host.next_port.max(FIRST_PORT);
        host.next_port = port.wrapping_add(1);
        port
    }

    fn listen(
        &mut self,
        manager: u32,
        host: u32,
        mut at: SocketAddr,
        backlog: u32,
    ) -> Result<(CmId, SocketAddr), CmError> {
        let gone =
            |error: RdmaError| system(format!("listen at {at}"), &error.to_string(), libc::ENODEV);
        self.usable(host).map_err(gone)?;
        let here = self
            .hosts
            .get(host as usize)
            .is_some_and(|host| host.addresses.contains(&at.ip()) || at.ip().is_unspecified());
        if !here {
            let message = "the address is not of this provider";
            return Err(system(
                format!("listen at {at}"),
                message,
                libc::EADDRNOTAVAIL,
            ));
        }
        let any_port = at.port() == 0;
        let attempts = if any_port { u16::MAX - FIRST_PORT } else { 1 };
        for _ in 0..attempts {
            if any_port {
                at.set_port(self.pick_port(host));
            }
            let taken = self.ids.values().any(|state| {
                let (ip, other) = (state.local.ip(), at.ip());
                let family = ip.is_ipv4() == other.is_ipv4();
                matches!(state.step, Step::Listening { .. })
                    && state.host == host
                    && state.local.port() == at.port()
                    && family
                    && (ip == other || ip.is_unspecified() || other.is_unspecified())
            });
            if taken {
                continue;
            }
            let id = self.new_id(manager, host, Step::Listening { backlog });
            if let Some(state) = self.ids.get_mut(&id) {
                state.local = at;
            }
            return Ok((CmId(id), at));
        }
        let message = "the address is in use; stop the other listener or choose a port";
        Err(system(format!("listen at {at}"), message, libc::EADDRINUSE))
    }

    fn resolve(
        &mut self,
        (manager, host): (u32, u32),
        destination: SocketAddr,
        source: Option<IpAddr>,
        timeout_us: u64,
    ) -> Result<CmId, CmError> {
        let what = || format!("resolve {destination}");
        let gone = |error: RdmaError| system(what(), &error.to_string(), libc::ENODEV);
        self.usable(host).map_err(gone)?;
        let own = self.hosts.get(host as usize).map(|host| &host.addresses);
        let mut own = own.into_iter().flatten().copied();
        let local = match source {
            Some(ip) => own.find(|&own| own == ip),
            None if own.clone().any(|own| own == destination.ip()) => Some(destination.ip()),
            None => own.find(|own| own.is_ipv4() == destination.is_ipv4()),
        };
        let Some(local) = local else {
            return Err(system(
                what(),
                "no address of this provider leads there",
                101,
            ));
        };
        let port = self.pick_port(host);
        let id = self.new_id(manager, host, Step::Resolving);
        if let Some(state) = self.ids.get_mut(&id) {
            state.local = SocketAddr::new(local, port);
            state.peer = destination;
            state.timeout_us = timeout_us;
        }
        let timeout = Event::Cm(Box::new(CmMessage::TimedOut(id)));
        self.schedule(self.now_us.saturating_add(timeout_us), timeout);
        // An address that no machine has is never resolved.
        if self.reachable(destination.ip()) {
            let at_us = self.arrival_us(self.now_us);
            self.schedule(at_us, Event::Cm(Box::new(CmMessage::Resolved(id))));
        }
        Ok(CmId(id))
    }

    fn create_pair(
        &mut self,
        (manager, host): (u32, u32),
        id: CmId,
        config: &PairConfig,
    ) -> Result<u32, RdmaError> {
        self.usable(host)?;
        let attributes = self.attributes(host)?;
        let sge_max = attributes.sge_max.min(u32::try_from(SGE_MAX).unwrap_or(0));
        check_limit(
            "send work requests",
            config.send_wr_max,
            attributes.qp_wr_max,
        )?;
        if let Receives::Own { depth, .. } = config.receives {
            check_limit("receive work requests", depth, attributes.qp_wr_max)?;
        }
        check_limit("SGEs of a send", config.send_sge_max, sge_max)?;
        check_limit("SGEs of a receive", config.recv_sge_max, sge_max)?;
        let Some(state) = self.own_id(manager, id) else {
            return Err(RdmaError::Invalid(UNKNOWN));
        };
        let active = state.step == Step::Resolved;
        let waits = active || matches!(state.step, Step::Requested { .. });
        may_make_qp(waits, state.qp.is_some())?;
        self.next.qp += 1;
        let num = self.next.qp;
        if let Some(state) = self.own_id(manager, id) {
            state.qp = Some(num);
        }
        self.pairs.insert(num, config.pair(num, host, id.0, active));
        Ok(num)
    }

    fn connect(
        &mut self,
        manager: u32,
        id: CmId,
        param: &ConnectParam,
        timeout_us: u64,
    ) -> Result<(), CmError> {
        let Some(state) = self.own_id(manager, id) else {
            return Err(invalid(UNKNOWN));
        };
        may_connect(state.step == Step::Resolved, state.qp.is_some())?;
        state.step = Step::Connecting;
        state.asked = *param;
        state.timeout_us = timeout_us;
        let timeout = Event::Cm(Box::new(CmMessage::TimedOut(id.0)));
        self.schedule(self.now_us.saturating_add(timeout_us), timeout);
        if self.connect_fault() {
            self.note(super::trace::Traced::Fault {
                on: id.0,
                fault: "connect dropped",
            });
        } else {
            self.send_cm(id.0, CmMessage::Request(id.0));
        }
        Ok(())
    }

    fn accept(&mut self, manager: u32, id: CmId, param: &ConnectParam) -> Result<(), CmError> {
        let Some(state) = self.own_id(manager, id) else {
            return Err(invalid(UNKNOWN));
        };
        let waits = state.step == Step::Requested { gone: false };
        may_accept(waits, state.qp.is_some())?;
        let (Some(qp), Some(to)) = (state.qp, state.other) else {
            return Err(invalid("the peer has gone"));
        };
        state.step = Step::Accepted;
        let asked = state.asked;
        let message = CmMessage::Accept {
            to,
            from: id.0,
            param: *param,
        };
        self.send_cm(id.0, message);
        let last_us = self.ids.get(&id.0).map_or(0, |state| state.last_us);
        let connection = self.next.accepted;
        self.next.accepted += 1;
        let peer = self.ids.get(&to).and_then(|state| state.qp);
        if let Some(pair) = self.pairs.get_mut(&qp) {
            pair.state = QpState::ReadyToSend;
            pair.peer = peer;
            pair.connection = Some(connection);
            pair.agreed = agreed(param, &asked);
            // What this side sends arrives behind its accept.
            pair.request_last_us = last_us;
        }
        Ok(())
    }

    fn migrate(&mut self, manager: u32, id: CmId) -> Result<Arc<AtomicBool>, CmError> {
        let Some(state) = self.own_id(manager, id) else {
            return Err(invalid(UNKNOWN));
        };
        let requested = matches!(state.step, Step::Requested { .. });
        may_migrate(requested, state.qp.is_some())?;
        state.manager = None;
        let dropped = Arc::new(AtomicBool::new(false));
        let moving = Migrating {
            dropped: Arc::clone(&dropped),
        };
        self.migrating.insert(id.0, moving);
        if let Some(state) = self.managers.get_mut(&manager) {
            state.events.retain(|event| event.id != id);
        }
        Ok(dropped)
    }

    fn adopt(&mut self, manager: u32, id: u64) -> Result<CmId, CmError> {
        self.migrating.remove(&id);
        let Some(state) = self.ids.get_mut(&id) else {
            return Err(invalid("the connection request has gone"));
        };
        if state.step == (Step::Requested { gone: true }) {
            self.ids.remove(&id);
            return Err(invalid("the peer has gone"));
        }
        state.manager = Some(manager);
        Ok(CmId(id))
    }
}

impl ConnectionManager for Manager {
    fn listen(&mut self, addr: SocketAddr, backlog: u32) -> Result<(CmId, SocketAddr), CmError> {
        let mut core = self.net.core.borrow_mut();
        core.listen(self.manager, self.host, addr, backlog)
    }

    fn resolve(
        &mut self,
        destination: SocketAddr,
        source: Option<IpAddr>,
        timeout_us: u64,
        now_us: u64,
    ) -> Result<CmId, CmError> {
        let mut core = self.net.core.borrow_mut();
        core.advance(now_us);
        core.resolve((self.manager, self.host), destination, source, timeout_us)
    }

    fn device(&self, id: CmId) -> Option<Rc<dyn Device>> {
        let mut core = self.net.core.borrow_mut();
        let state = core.own_id(self.manager, id)?;
        let known = !matches!(state.step, Step::Listening { .. } | Step::Resolving);
        if !known {
            return None;
        }
        let mut device = self.device.borrow_mut();
        if !device.is_latest(&core) {
            *device = Rc::new(LoopbackDevice::new(&self.net, &core, self.host).ok()?);
        }
        Some(Rc::clone(&device) as Rc<dyn Device>)
    }

    fn addresses(&self, id: CmId) -> Option<(SocketAddr, SocketAddr)> {
        let mut core = self.net.core.borrow_mut();
        let state = core.own_id(self.manager, id)?;
        let connection = !matches!(state.step, Step::Listening { .. });
        connection.then_some((state.local, state.peer))
    }

    fn create_qp(
        &mut self,
        id: CmId,
        pd: &Rc<dyn ProtectionDomain>,
        config: &QpConfig,
    ) -> Result<Box<dyn QueuePair>, RdmaError> {
        let own = PairConfig::new(&self.net, self.host, pd, config)?;
        let mut core = self.net.core.borrow_mut();
        let qp = core.create_pair((self.manager, self.host), id, &own)?;
        Ok(Box::new(Qp {
            net: Rc::clone(&self.net),
            qp,
            _cqs: [Rc::clone(&config.send_cq), Rc::clone(&config.recv_cq)],
            _srq: match &config.receives {
                ReceiveSource::Shared(srq) => Some(Rc::clone(srq)),
                ReceiveSource::Own(_) => None,
            },
        }))
    }

    fn connect(
        &mut self,
        id: CmId,
        param: &ConnectParam,
        timeout_us: u64,
        now_us: u64,
    ) -> Result<(), CmError> {
        let mut core = self.net.core.borrow_mut();
        core.advance(now_us);
        core.connect(self.manager, id, param, timeout_us)
    }

    fn accept(&mut self, id: CmId, param: &ConnectParam) -> Result<(), CmError> {
        let mut core = self.net.core.borrow_mut();
        core.accept(self.manager, id, param)
    }

    fn reject(&mut self, id: CmId, private_data: &PrivateData) {
        let mut core = self.net.core.borrow_mut();
        let requested = core
            .own_id(self.manager, id)
            .is_some_and(|state| matches!(state.step, Step::Requested { .. }));
        if requested {
            core.refuse(id.0, private_data);
        }
    }

    fn disconnect(&mut self, id: CmId) {
        let mut core = self.net.core.borrow_mut();
        let qp = core.own_id(self.manager, id).and_then(|state| {
            let up = matches!(state.step, Step::Accepted | Step::Connected);
            state.qp.filter(|_| up)
        });
        if let Some(qp) = qp {
            core.fail(qp, "this side disconnected", true);
        }
    }

    /// A queue pair that has failed withdraws what is on its way, which is as abrupt as an end can
    /// be.
    fn abort(&mut self, id: CmId) {
        self.disconnect(id);
    }

    fn destroy(&mut self, id: CmId) {
        let mut core = self.net.core.borrow_mut();
        if core.own_id(self.manager, id).is_some() {
            core.destroy_id(id.0);
        }
    }

    fn migrate(&mut self, id: CmId) -> Result<MigratedId, CmError> {
        let dropped = self.net.core.borrow_mut().migrate(self.manager, id)?;
        Ok(MigratedId(Box::new(Ticket {
            network: Arc::clone(&self.network),
            host: self.host,
            id: id.0,
            dropped,
            adopted: false,
        })))
    }

    fn adopt(&mut self, id: MigratedId) -> Result<CmId, CmError> {
        let mut ticket = id.0.downcast::<Ticket>().map_err(|_| foreign())?;
        if !Arc::ptr_eq(&ticket.network, &self.network) || ticket.host != self.host {
            return Err(foreign());
        }
        ticket.adopted = true;
        self.net.core.borrow_mut().adopt(self.manager, ticket.id)
    }

    fn poll(&mut self, now_us: u64) -> Option<CmEvent> {
        let mut core = self.net.core.borrow_mut();
        core.advance(now_us);
        core.managers.get_mut(&self.manager)?.events.pop_front()
    }

    fn arm(&mut self) -> bool {
        let mut core = self.net.core.borrow_mut();
        let due = core.work_due();
        core.managers.get_mut(&self.manager).is_some_and(|state| {
            let busy = due || !state.events.is_empty();
            state.wake.arm(busy)
        })
    }

    fn fd(&self) -> RawFd {
        self.fd
    }

    fn next_deadline_us(&self) -> Option<u64> {
        self.net.core.borrow().next_deadline_us()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let mut core = self.net.core.borrow_mut();
        let own: Vec<u64> = core
            .ids
            .iter()
            .filter(|(_, state)| state.manager == Some(self.manager))
            .map(|(&id, _)| id)
            .collect();
        for id in own {
            core.destroy_id(id);
        }
        core.managers.remove(&self.manager);
    }
}
