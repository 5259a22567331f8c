//! Connection-manager ids and their event channels.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{SockaddrLike, SockaddrStorage};

use super::super::sys;
use super::{errno, left_behind};
use crate::contract::{ConnectParam, PrivateData};

/// Where the events of ids arrive.
pub(in crate::verbs) struct Channel(NonNull<sys::rdma_event_channel>);

impl Channel {
    pub(in crate::verbs) fn new() -> io::Result<Rc<Self>> {
        sys::open()?;
        // SAFETY: no arguments.
        let channel = errno::pointer(unsafe { sys::rdma_create_event_channel() })?;
        let channel = Self(channel);
        fcntl(channel.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Rc::new(channel))
    }

    pub(in crate::verbs) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: live until `self` is dropped; the field does not change.
        let fd = unsafe { (*self.0.as_ptr()).fd };
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes the next event, copied and acknowledged, so that destroying an id never waits.
    pub(in crate::verbs) fn next(self: &Rc<Self>) -> Option<Event> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is live and does not block.
        errno::minus_one(unsafe { sys::rdma_get_cm_event(self.0.as_ptr(), &raw mut event) })
            .ok()?;
        let event = NonNull::new(event)?;
        // SAFETY: librdmacm gave a valid event, not acknowledged yet.
        let told = unsafe { event.as_ref() };
        // SAFETY: as above, of this channel.
        let copy = unsafe { Event::copy(told, self) };
        // SAFETY: acknowledged once; nothing of it is used any more.
        let answer = unsafe { sys::rdma_ack_cm_event(event.as_ptr()) };
        left_behind("a connection-manager event", errno::minus_one(answer));
        Some(copy)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; ids hold an `Rc` of their channel.
        unsafe { sys::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// What came with an event of a connection, as librdmacm has it.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct EventParam {
    pub(in crate::verbs) private_data: PrivateData,
    pub(in crate::verbs) responder_resources: u8,
    pub(in crate::verbs) initiator_depth: u8,
    pub(in crate::verbs) rnr_retry_count: u8,
}

/// A connection-manager event.
pub(in crate::verbs) struct Event {
    /// The [`Id::key`] it is about; of a request, the listener's.
    pub(in crate::verbs) key: usize,
    pub(in crate::verbs) kind: sys::rdma_cm_event_type::Type,
    /// 0, a negative error number, or the transport's reason of a rejection.
    pub(in crate::verbs) status: i32,
    pub(in crate::verbs) param: EventParam,
    /// The id of a connection request.
    pub(in crate::verbs) request: Option<Id>,
}

impl Event {
    /// # Safety
    /// `event` came from `channel` and has not been acknowledged.
    unsafe fn copy(event: &sys::rdma_cm_event, channel: &Rc<Channel>) -> Self {
        // SAFETY: all ids of this program are of port space TCP, whose events use this member; it
        // was zeroed for events that do not fill it.
        let conn = unsafe { &event.param.conn };
        let private_data = if conn.private_data.is_null() {
            &[]
        } else {
            let len = usize::from(conn.private_data_len);
            // SAFETY: librdmacm keeps so many bytes beside the event. Bytes have no alignment.
            unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) }
        };
        let param = EventParam {
            private_data: PrivateData::new(private_data).unwrap_or(PrivateData::EMPTY),
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            rnr_retry_count: conn.rnr_retry_count,
        };
        let is_request = event.event == sys::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
        let request = NonNull::new(event.id).filter(|_| is_request).map(|id| Id {
            id,
            channel: Rc::clone(channel),
        });
        let about = if is_request {
            event.listen_id
        } else {
            event.id
        };
        Self {
            key: about.addr(),
            kind: event.event,
            status: event.status,
            param,
            request,
        }
    }
}

/// A listener or a connection (`struct rdma_cm_id`).
pub(in crate::verbs) struct Id {
    id: NonNull<sys::rdma_cm_id>,
    channel: Rc<Channel>,
}

impl Id {
    pub(in crate::verbs) fn new(channel: &Rc<Channel>) -> io::Result<Self> {
        let mut id = ptr::null_mut();
        let (ch, none) = (channel.0.as_ptr(), ptr::null_mut());
        let space = sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: channel and out parameter are live.
        errno::minus_one(unsafe { sys::rdma_create_id(ch, &raw mut id, none, space) })?;
        Ok(Self {
            id: errno::pointer(id)?,
            channel: Rc::clone(channel),
        })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::rdma_cm_id {
        self.id.as_ptr()
    }

    /// Its number in events.
    pub(in crate::verbs) fn key(&self) -> usize {
        self.id.addr().get()
    }

    pub(in crate::verbs) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let addr = SockaddrStorage::from(addr);
        // SAFETY: id and address are live; the address is only read.
        errno::minus_one(unsafe { sys::rdma_bind_addr(self.as_ptr(), addr.as_ptr().cast_mut()) })
    }

    pub(in crate::verbs) fn listen(&self, backlog: u32) -> io::Result<()> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: the id is live.
        errno::minus_one(unsafe { sys::rdma_listen(self.as_ptr(), backlog) })
    }

    pub(in crate::verbs) fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout_ms: i32,
    ) -> io::Result<()> {
        let source = source.map(SockaddrStorage::from);
        let destination = SockaddrStorage::from(destination);
        let from = source.as_ref().map_or(ptr::null(), SockaddrLike::as_ptr);
        let (from, to) = (from.cast_mut(), destination.as_ptr().cast_mut());
        // SAFETY: id and addresses are live; the addresses are only read.
        errno::minus_one(unsafe { sys::rdma_resolve_addr(self.as_ptr(), from, to, timeout_ms) })
    }

    pub(in crate::verbs) fn resolve_route(&self, timeout_ms: i32) -> io::Result<()> {
        // SAFETY: the id is live.
        errno::minus_one(unsafe { sys::rdma_resolve_route(self.as_ptr(), timeout_ms) })
    }

    /// The device it is bound to, open as long as `self`.
    pub(super) fn verbs(&self) -> Option<NonNull<sys::ibv_context>> {
        // SAFETY: the id is live, and only this thread changes it.
        unsafe { verbs(self.id) }
    }

    /// Identifies its device within this process.
    pub(in crate::verbs) fn device_key(&self) -> Option<usize> {
        self.verbs().map(|context| context.addr().get())
    }

    /// Local and peer address, as far as they are known.
    pub(in crate::verbs) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let id = self.as_ptr();
        // SAFETY: the id is live; the place of a field.
        let local = unsafe { &raw const (*id).route.addr.src_addr_union };
        // SAFETY: as above.
        let peer = unsafe { &raw const (*id).route.addr.dst_addr_union };
        // SAFETY: a union that is large enough for every address and was zeroed or filled.
        let local = unsafe { socket_addr(local.cast()) };
        // SAFETY: as above.
        let peer = unsafe { socket_addr(peer.cast()) };
        (local, peer)
    }

    pub(in crate::verbs) fn connect(&self, param: &ConnectParam) -> io::Result<()> {
        let mut param = conn_param(param);
        // SAFETY: id, parameters and private data are live.
        errno::minus_one(unsafe { sys::rdma_connect(self.as_ptr(), &raw mut param) })
    }

    pub(in crate::verbs) fn accept(&self, param: &ConnectParam) -> io::Result<()> {
        let mut param = conn_param(param);
        // SAFETY: id, parameters and private data are live.
        errno::minus_one(unsafe { sys::rdma_accept(self.as_ptr(), &raw mut param) })
    }

    pub(in crate::verbs) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        let data = private_data.as_ptr().cast();
        // SAFETY: the id is live, and so are `len` bytes of private data.
        errno::minus_one(unsafe { sys::rdma_reject(self.as_ptr(), data, len) })
    }

    pub(in crate::verbs) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the id is live.
        errno::minus_one(unsafe { sys::rdma_disconnect(self.as_ptr()) })
    }

    /// Data has arrived before the peer's last message of the set-up.
    pub(in crate::verbs) fn notify_established(&self) -> io::Result<()> {
        let event = sys::ibv_event_type::IBV_EVENT_COMM_EST;
        // SAFETY: the id is live.
        errno::minus_one(unsafe { sys::rdma_notify(self.as_ptr(), event) })
    }

    /// Takes it off its thread, together with its events.
    pub(in crate::verbs) fn park(self) -> io::Result<ParkedId> {
        let own = Channel::new()?;
        // SAFETY: id and both channels are live; every event of the id taken so far has been
        // acknowledged, so the call does not wait.
        let answer = unsafe { sys::rdma_migrate_id(self.as_ptr(), own.0.as_ptr()) };
        errno::minus_one(answer)?;
        let own = Rc::try_unwrap(own).map_err(|_| io::Error::other("a shared channel"))?;
        let id = ManuallyDrop::new(self);
        // SAFETY: `id` is not used, nor dropped, after its channel has been taken out.
        drop(unsafe { ptr::read(&raw const id.channel) });
        Ok(ParkedId {
            id: id.id,
            channel: ManuallyDrop::new(own),
        })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: destroyed once. A queue pair holds an `Rc` of its id, so it is gone; all events
        // have been acknowledged; the channel is dropped afterwards.
        let answer = unsafe { sys::rdma_destroy_id(self.as_ptr()) };
        left_behind("a connection-manager id", errno::minus_one(answer));
    }
}

/// A connection request between two threads, on a channel of its own. Dropping it refuses the peer.
pub(in crate::verbs) struct ParkedId {
    id: NonNull<sys::rdma_cm_id>,
    channel: ManuallyDrop<Channel>,
}

// SAFETY: librdmacm's objects are not tied to threads. This one has no queue pair, no other id uses
// its channel, and the thread that gave it away kept nothing of it (`park` took `Id` by value).
unsafe impl Send for ParkedId {}

impl ParkedId {
    /// The device it is bound to, open as long as `self`.
    pub(super) fn verbs(&self) -> Option<NonNull<sys::ibv_context>> {
        // SAFETY: the id is live, and nothing else has it.
        unsafe { verbs(self.id) }
    }

    /// Puts it on a channel of the calling thread.
    pub(in crate::verbs) fn unpark(self, channel: &Rc<Channel>) -> io::Result<Id> {
        // SAFETY: id and channels are live; no event of it has been taken on its own channel.
        let answer = unsafe { sys::rdma_migrate_id(self.id.as_ptr(), channel.0.as_ptr()) };
        errno::minus_one(answer)?;
        let mut parked = ManuallyDrop::new(self);
        // SAFETY: dropped once, as `parked` is not; the id has left the channel.
        unsafe { ManuallyDrop::drop(&mut parked.channel) };
        Ok(Id {
            id: parked.id,
            channel: Rc::clone(channel),
        })
    }
}

impl Drop for ParkedId {
    fn drop(&mut self) {
        // SAFETY: the id is live; there is no private data.
        let answer = unsafe { sys::rdma_reject(self.id.as_ptr(), ptr::null(), 0) };
        if let Err(error) = errno::minus_one(answer) {
            tracing::debug!("a request that was not taken could not be refused: {error}");
        }
        // SAFETY: destroyed once; it has no queue pair and no events taken.
        let answer = unsafe { sys::rdma_destroy_id(self.id.as_ptr()) };
        left_behind("a connection-manager id", errno::minus_one(answer));
        // SAFETY: dropped once, after the only id on it.
        unsafe { ManuallyDrop::drop(&mut self.channel) };
    }
}

/// # Safety
/// The id is live, and nothing changes it meanwhile.
unsafe fn verbs(id: NonNull<sys::rdma_cm_id>) -> Option<NonNull<sys::ibv_context>> {
    // SAFETY: the caller's promise.
    NonNull::new(unsafe { (*id.as_ptr()).verbs })
}

/// Retries after a lost packet; the most there are.
const RETRY_COUNT: u8 = 7;

/// The private data stays borrowed from `param`.
fn conn_param(param: &ConnectParam) -> sys::rdma_conn_param {
    let private_data = param.private_data.as_bytes();
    sys::rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: u8::try_from(private_data.len()).unwrap_or(u8::MAX),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: 1,
        retry_count: RETRY_COUNT,
        rnr_retry_count: param.rnr_retry_count.min(7),
        // Both are taken from the id's queue pair.
        srq: 0,
        qp_num: 0,
    }
}

/// # Safety
/// `from` points to as many readable bytes as its family's address has.
unsafe fn socket_addr(from: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller's promise; an unknown family is answered with `None`.
    let storage = unsafe { SockaddrStorage::from_raw(from, None) }?;
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddr::V4((*v4).into()));
    }
    storage
        .as_sockaddr_in6()
        .map(|v6| SocketAddr::V6((*v6).into()))
}
