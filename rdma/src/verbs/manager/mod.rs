//! The connection manager: ids and their states. The events of librdmacm are handled in [`events`].

mod events;
mod listener;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::rc::{Rc, Weak};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use self::listener::Listening;
use super::device::VerbsDevice;
use super::error::{resource, step};
use super::notice::Notices;
use super::pair::{Core, Handle};
use super::provider::Shared;
use super::raw::cm::{Channel, Id, ParkedId};
use crate::address_words::{check_families, refused, source_address};
use crate::contract::{
    CmError, CmEvent, CmEventKind, CmId, ConnectParam, ConnectionManager, Device, MigratedId,
    PrivateData, ProtectionDomain, QpConfig, QueuePair, RdmaError, Transport,
};
use crate::ids::{Ids, UNKNOWN, foreign, may_accept, may_connect, may_make_qp, may_migrate};

/// A manager that is polled all the time looks at its descriptors no more often than this.
const LOOK_EVERY_US: u64 = 200;
/// Most events of the kernel taken in one look.
const EVENTS_MAX: usize = 64;

/// Private data of a request on InfiniBand: 92 bytes, of which the IP addressing annex takes 36.
const IB_REQUEST_BYTES: usize = 56;
/// The same of a reply.
const IB_REPLY_BYTES: usize = 196;
/// The same of either on iWARP: siw counts private data and the four bytes of MPA revision 2 (RFC
/// 6581, section 9) in one byte (`siw_send_mpareqrep`).
const IWARP_BYTES: usize = 251;

/// How long one attempt to resolve an address takes, ms; it is repeated while there is time. Linux
/// sends the neighbour request before it registers the wait for it (`rdma_resolve_ip`, 6.12): a
/// reply that arrives at once is missed, and found only when the time of the attempt is over.
const RESOLVE_ATTEMPT_MS: i32 = 500;

/// The state of an id.
enum State {
    /// Takes connections, or waits for the device to come back.
    Listening(Listening),
    /// The address is being resolved, then the route.
    Resolving,
    /// Has a device; a queue pair can be made.
    Resolved,
    /// The request has been sent to the peer.
    Connecting(ConnectParam),
    /// The peer has sent a request, and the program decides.
    Requested,
    /// Accepted; the peer's confirmation is awaited.
    Accepted(ConnectParam),
    /// Established.
    Connected,
    /// Ended.
    Closed,
}

/// What belongs to an id.
struct Entry {
    state: State,
    id: Option<Rc<Id>>,
    device: Option<Rc<VerbsDevice>>,
    core: Weak<Core>,
    /// Of resolving and connecting, of a listener without a device, and of an end that is to be
    /// reported.
    deadline_us: Option<u64>,
    timeout_ms: u64,
}

impl Entry {
    fn new(state: State, id: Id) -> Self {
        Self {
            state,
            id: Some(Rc::new(id)),
            device: None,
            core: Weak::new(),
            deadline_us: None,
            timeout_ms: 0,
        }
    }

    fn wait(&mut self, timeout_us: u64, now_us: u64) {
        self.deadline_us = Some(now_us.saturating_add(timeout_us));
        self.timeout_ms = timeout_us / 1000;
    }

    fn id(&self) -> Result<&Rc<Id>, CmError> {
        self.id
            .as_ref()
            .ok_or(CmError::Invalid("the connection is over"))
    }

    fn peer(&self) -> String {
        let peer = self.id.as_ref().and_then(|id| id.addresses().1);
        peer.map_or_else(|| "the peer".to_owned(), |peer| peer.to_string())
    }

    fn check_private_data(&self, data: &PrivateData, ib_bytes_max: usize) -> Result<(), CmError> {
        let bytes = data.as_bytes().len();
        let iwarp = self
            .device
            .as_ref()
            .is_some_and(|device| device.attributes.transport == Transport::Iwarp);
        let most = if iwarp { IWARP_BYTES } else { ib_bytes_max };
        if bytes <= most {
            return Ok(());
        }
        Err(CmError::System {
            what: "private data".to_owned(),
            message: format!("{bytes} bytes, and the transport carries {most} here"),
            errno: Some(libc::EMSGSIZE),
        })
    }

    /// Parameters for the peer: no more than the device can do.
    fn clamp(&self, param: &ConnectParam) -> ConnectParam {
        let mut param = *param;
        if let Some(device) = &self.device {
            let most = &device.attributes;
            param.responder_resources = param.responder_resources.min(most.responder_resources_max);
            param.initiator_depth = param.initiator_depth.min(most.initiator_depth_max);
        }
        param
    }
}

/// A thread's connection manager.
pub(crate) struct Manager {
    shared: Rc<Shared>,
    channel: Rc<Channel>,
    epoll: Epoll,
    notices: Rc<Notices>,
    ids: Ids<Entry>,
    by_key: HashMap<usize, CmId>,
    now_us: u64,
    /// When the last look found nothing.
    looked_us: Option<u64>,
    /// How many removals of devices have been reported.
    removals: u64,
}

impl Manager {
    pub(super) fn new(shared: &Rc<Shared>) -> Result<Self, RdmaError> {
        let channel = Channel::new().map_err(resource("RDMA event channel"))?;
        let watch = || {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            epoll.add(channel.fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            epoll.add(&shared.epoll.0, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
            Ok(epoll)
        };
        let epoll: nix::Result<Epoll> = watch();
        Ok(Self {
            shared: Rc::clone(shared),
            epoll: epoll.map_err(|error| resource("RDMA event channel")(error.into()))?,
            channel,
            notices: Rc::default(),
            ids: Ids::new(),
            by_key: HashMap::new(),
            now_us: 0,
            looked_us: None,
            removals: 0,
        })
    }

    fn insert(&mut self, entry: Entry) -> CmId {
        let id = self.ids.reserve();
        if let Some(raw) = &entry.id {
            self.by_key.insert(raw.key(), id);
        }
        self.ids.put(id, entry);
        id
    }

    /// Takes an entry out; its raw id lives on as long as a queue pair needs it.
    fn remove(&mut self, id: CmId) -> Option<Entry> {
        let entry = self.ids.remove(id)?;
        if let Some(raw) = &entry.id {
            self.by_key.remove(&raw.key());
        }
        Some(entry)
    }

    /// Ends an id with an event.
    fn close(&mut self, id: CmId, kind: CmEventKind) {
        if let Some(entry) = self.ids.get_mut(id) {
            entry.state = State::Closed;
            entry.deadline_us = None;
            if let Some(core) = entry.core.upgrade() {
                // The event below tells the program.
                core.fail("the connection was closed");
            }
        }
        self.ids.tell(id, kind);
    }

    /// Takes the events of the kernel.
    fn look(&mut self) {
        let mut ready = [EpollEvent::empty(); 2];
        let count = self.epoll.wait(&mut ready, EpollTimeout::ZERO);
        let ready = &ready[..count.unwrap_or(0)];
        self.looked_us = ready.is_empty().then_some(self.now_us);
        if ready.is_empty() {
            return;
        }
        // First, because a device that breaks a queue pair reports it, and why, before the
        // connection manager notices that the connection is over.
        self.shared.take_async_events();
        if ready.iter().any(|source| source.data() != 1) {
            for _ in 0..EVENTS_MAX {
                let Some(event) = self.channel.next() else {
                    break;
                };
                self.on_event(event);
            }
        }
    }

    /// Reports the connections and listeners of devices that are gone.
    fn take_removals(&mut self) {
        let removals = self.shared.removals();
        if std::mem::replace(&mut self.removals, removals) == removals {
            return;
        }
        let gone = |entry: &Entry| entry.device.as_ref().is_some_and(|d| d.is_removed());
        for id in self.ids.which(gone) {
            self.on_removal(id);
        }
    }

    /// Turns the notices of queue pairs into events.
    fn take_notices(&mut self) {
        while let Some((id, cause)) = self.notices.take() {
            let Some(entry) = self.ids.get_mut(id) else {
                continue;
            };
            if matches!(entry.state, State::Accepted(_) | State::Connected) {
                entry.state = State::Closed;
                entry.deadline_us = None;
                let kind = CmEventKind::Disconnected {
                    cause,
                    is_violation: false,
                };
                self.ids.tell(id, kind);
            }
        }
    }

    fn run_deadlines(&mut self) {
        let now_us = self.now_us;
        self.notices.bury(now_us);
        let due = |entry: &Entry| entry.deadline_us.is_some_and(|at| at <= now_us);
        for id in self.ids.which(due) {
            let Some(entry) = self.ids.get_mut(id) else {
                continue;
            };
            entry.deadline_us = None;
            let what = match entry.state {
                State::Listening(_) => {
                    self.listen_again(id);
                    continue;
                }
                State::Resolving => {
                    let what = format!("resolving {}", entry.peer());
                    // No queue pair can have been made for it: the attempt ends here.
                    if let Some(raw) = entry.id.take() {
                        self.by_key.remove(&raw.key());
                    }
                    what
                }
                State::Connecting(_) => format!("connecting to {}", entry.peer()),
                State::Accepted(_) | State::Connected => {
                    self.on_end(id);
                    continue;
                }
                _ => continue,
            };
            let timeout_ms = self.ids.get(id).map_or(0, |entry| entry.timeout_ms);
            let error = CmError::Timeout { what, timeout_ms };
            self.close(id, CmEventKind::Failed(error));
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        for (_, entry) in self.ids.iter() {
            if let Some(core) = entry.core.upgrade() {
                core.fail("the connection manager was closed");
            }
        }
    }
}

/// A connection request between two threads.
struct Migrated(ParkedId);

impl ConnectionManager for Manager {
    fn listen(&mut self, addr: SocketAddr, backlog: u32) -> Result<(CmId, SocketAddr), CmError> {
        self.start_listening(addr, backlog)
    }

    fn resolve(
        &mut self,
        destination: SocketAddr,
        source: Option<IpAddr>,
        timeout_us: u64,
        now_us: u64,
    ) -> Result<CmId, CmError> {
        self.now_us = self.now_us.max(now_us);
        let what = || format!("resolving {destination}");
        check_families(what, destination, source)?;
        let raw = Id::new(&self.channel).map_err(|error| step(what(), &error))?;
        let from = source.map(|source| source_address(source, destination));
        let attempt_ms = milliseconds(timeout_us).min(RESOLVE_ATTEMPT_MS);
        raw.resolve_addr(from, destination, attempt_ms)
            .map_err(|error| match (error.raw_os_error(), source) {
                (Some(libc::EADDRNOTAVAIL | libc::EINVAL), Some(_)) => {
                    refused(what(), destination, source, &error)
                }
                _ => step(what(), &error),
            })?;
        let mut entry = Entry::new(State::Resolving, raw);
        entry.wait(timeout_us, self.now_us);
        Ok(self.insert(entry))
    }

    fn device(&self, id: CmId) -> Option<Rc<dyn Device>> {
        let device = self.ids.get(id)?.device.clone()?;
        Some(device)
    }

    fn addresses(&self, id: CmId) -> Option<(SocketAddr, SocketAddr)> {
        let entry = self.ids.get(id)?;
        let (local, peer) = entry.id.as_ref()?.addresses();
        Some((local?, peer?))
    }

    fn create_qp(
        &mut self,
        id: CmId,
        pd: &Rc<dyn ProtectionDomain>,
        config: &QpConfig,
    ) -> Result<Box<dyn QueuePair>, RdmaError> {
        let entry = self.ids.get_mut(id).ok_or(RdmaError::Invalid(UNKNOWN))?;
        let waits = matches!(entry.state, State::Resolved | State::Requested);
        may_make_qp(waits, entry.core.strong_count() > 0)?;
        let (Some(raw), Some(device)) = (&entry.id, &entry.device) else {
            return Err(RdmaError::Invalid("the connection is over"));
        };
        let core = Core::new(device, (raw, id, &self.notices), pd, config)?;
        entry.core = Rc::downgrade(&core);
        Ok(Box::new(Handle(core)))
    }

    fn connect(
        &mut self,
        id: CmId,
        param: &ConnectParam,
        timeout_us: u64,
        now_us: u64,
    ) -> Result<(), CmError> {
        self.now_us = self.now_us.max(now_us);
        let now_us = self.now_us;
        let entry = self.ids.known(id)?;
        let resolved = matches!(entry.state, State::Resolved);
        may_connect(resolved, entry.core.strong_count() > 0)?;
        entry.check_private_data(&param.private_data, IB_REQUEST_BYTES)?;
        let param = entry.clamp(param);
        let asked = entry.id()?.connect(&param);
        entry.state = State::Connecting(param);
        entry.wait(timeout_us, now_us);
        if let Err(error) = asked {
            self.refused_at_once(id, &error);
        }
        Ok(())
    }

    fn accept(&mut self, id: CmId, param: &ConnectParam) -> Result<(), CmError> {
        let entry = self.ids.known(id)?;
        let core = entry.core.upgrade();
        may_accept(matches!(entry.state, State::Requested), core.is_some())?;
        entry.check_private_data(&param.private_data, IB_REPLY_BYTES)?;
        let param = entry.clamp(param);
        let peer = entry.peer();
        if let Err(error) = entry.id()?.accept(&param) {
            entry.state = State::Closed;
            return Err(step(format!("accepting {peer}"), &error));
        }
        entry.state = State::Accepted(param);
        // Its first message may arrive before the kernel's event that the connection is
        // established.
        if let Some(core) = core {
            core.connected(param.initiator_depth, peer);
        }
        Ok(())
    }

    fn reject(&mut self, id: CmId, private_data: &PrivateData) {
        let requested = |entry: &Entry| matches!(entry.state, State::Requested);
        if !self.ids.get(id).is_some_and(requested) {
            return;
        }
        if let Some(entry) = self.remove(id) {
            if let Some(core) = entry.core.upgrade() {
                core.fail("this side refused the connection");
            }
            if let Some(raw) = &entry.id
                && let Err(error) = raw.reject(private_data.as_bytes())
            {
                // Destroying the id refuses the request, too, but without private data.
                tracing::debug!("refusing {}: {error}", entry.peer());
            }
        }
    }

    fn disconnect(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        match entry.state {
            State::Connected | State::Accepted(_) => {
                let cause = "this side closed the connection";
                match entry.core.upgrade() {
                    Some(core) => core.fail(cause),
                    None => self.notices.tell(id, cause.to_owned()),
                }
            }
            State::Resolving | State::Resolved | State::Connecting(_) | State::Requested => {
                if let (State::Requested, Some(raw)) = (&entry.state, &entry.id) {
                    // Destroying the id has the same effect on the peer.
                    let _ = raw.reject(&[]);
                }
                let cause = "this side closed the connection during set-up".to_owned();
                let kind = CmEventKind::Disconnected {
                    cause,
                    is_violation: false,
                };
                self.close(id, kind);
            }
            State::Listening(_) | State::Closed => {}
        }
    }

    /// The queue pair goes to the error state at once, and the device sends nothing more of it
    /// (InfiniBand specification, volume 1, section 10.3.1.7): the end of a connection is never
    /// more orderly here.
    fn abort(&mut self, id: CmId) {
        self.disconnect(id);
    }

    fn destroy(&mut self, id: CmId) {
        if let Some(entry) = self.remove(id) {
            if let Some(core) = entry.core.upgrade() {
                core.fail("this side destroyed the connection");
            }
            self.ids.forget_events(id);
        }
    }

    fn migrate(&mut self, id: CmId) -> Result<MigratedId, CmError> {
        let entry = self.ids.known(id)?;
        let requested = matches!(entry.state, State::Requested);
        may_migrate(requested, entry.core.strong_count() > 0)?;
        let raw = self.remove(id).and_then(|entry| entry.id);
        let raw = raw.and_then(Rc::into_inner);
        let raw = raw.ok_or(CmError::Invalid("the connection request is in use"))?;
        let parked = raw
            .park()
            .map_err(|error| step("migrating a connection request", &error))?;
        Ok(MigratedId(Box::new(Migrated(parked))))
    }

    fn adopt(&mut self, id: MigratedId) -> Result<CmId, CmError> {
        let migrated = id.0.downcast::<Migrated>().map_err(|_| foreign())?;
        let failed = |error| step("adopting a connection request", &error);
        let raw = migrated.0.unpark(&self.channel).map_err(failed)?;
        let device = self.shared.device(&raw);
        let device = device.map_err(|error| CmError::System {
            what: "adopting a connection request".to_owned(),
            message: error.to_string(),
            errno: None,
        })?;
        let mut entry = Entry::new(State::Requested, raw);
        entry.device = Some(device);
        Ok(self.insert(entry))
    }

    fn poll(&mut self, now_us: u64) -> Option<CmEvent> {
        self.now_us = self.now_us.max(now_us);
        if let Some(event) = self.ids.take_event() {
            return Some(event);
        }
        let looked = |at: u64| self.now_us.saturating_sub(at) < LOOK_EVERY_US;
        if !self.looked_us.is_some_and(looked) {
            self.look();
        }
        self.take_removals();
        self.run_deadlines();
        self.take_notices();
        self.ids.take_event()
    }

    fn arm(&mut self) -> bool {
        // The next poll looks, however soon it comes.
        self.looked_us = None;
        let removed = self.removals != self.shared.removals();
        removed || self.ids.has_events() || !self.notices.is_empty()
    }

    fn fd(&self) -> RawFd {
        self.epoll.0.as_raw_fd()
    }

    fn next_deadline_us(&self) -> Option<u64> {
        let entries = self.ids.iter().filter_map(|(_, entry)| entry.deadline_us);
        entries.chain(self.notices.next_deadline_us()).min()
    }
}

impl Manager {
    /// As [`was_not_readable`](crate::direct::was_not_readable).
    pub(crate) fn was_not_readable(&mut self, now_us: u64) {
        self.looked_us = Some(now_us);
    }
}

/// Whole milliseconds, at least one.
fn milliseconds(time_us: u64) -> i32 {
    i32::try_from(time_us.div_ceil(1000).max(1)).unwrap_or(i32::MAX)
}
