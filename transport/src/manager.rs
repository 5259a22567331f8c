//! Connections as they come and end: of an RDMA provider's connection manager, and of the sockets
//! behind its listeners that speak NVMe/TCP. Whether one is taken, and by which reactor, is their
//! user's to decide.

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;

use capstan_nvme_proto::rdma_cm::{CmAccept, CmReject, RejectStatus};
use capstan_rdma::contract::{
    CmEvent, CmEventKind, CmId, ConnectParam, ConnectionManager, Device, MigratedId, PrivateData,
    QpConfig, RdmaError,
};
use capstan_rdma::iwarp::{OtherStream, OtherStreams};
use capstan_rdma::{Beside, direct};
use rustc_hash::FxHashMap;
use zerocopy::IntoBytes;

use crate::limits::{INLINE_BYTES, send_wrs};
use crate::queue::{EndReason, QueueId};
use crate::rdma::{self, DevicePlace, DevicePort, not_posted};
use crate::resources::{Memory, NoResources};

pub use capstan_rdma::contract::CmError;

/// Names a listener of a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId {
    /// The number of its manager.
    provider: usize,
    id: CmId,
}

impl ListenerId {
    pub(crate) fn provider(self) -> usize {
        self.provider
    }
}

/// Names a connection over NVMe/RDMA of a reactor. Those over NVMe/TCP end with their queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    /// The number of its manager.
    provider: usize,
    id: CmId,
}

impl ConnectionId {
    pub(crate) fn provider(self) -> usize {
        self.provider
    }
}

/// A host asks for a connection.
#[derive(Debug)]
pub struct Request {
    /// Where it came to.
    pub listener: ListenerId,
    /// This side's address.
    pub local: SocketAddr,
    /// The host's address.
    pub peer: SocketAddr,
    /// How it is to be carried.
    pub over: Over,
}

/// What carries a connection that is asked for.
#[derive(Debug)]
pub enum Over {
    /// NVMe/RDMA.
    Rdma(RdmaRequest),
    /// NVMe/TCP.
    Tcp(TcpRequest),
}

/// A request of a connection over NVMe/RDMA.
#[derive(Debug)]
pub struct RdmaRequest {
    id: CmId,
    param: Box<ConnectParam>,
}

/// A connection over NVMe/TCP, which has begun as those do.
#[derive(Debug)]
pub struct TcpRequest {
    pub(crate) stream: TcpStream,
    /// What was read of it.
    pub(crate) bytes: Vec<u8>,
}

impl TcpRequest {
    /// A connection of which `bytes` were read.
    #[must_use]
    pub fn new(stream: TcpStream, bytes: Vec<u8>) -> Self {
        Self { stream, bytes }
    }
}

impl Request {
    /// What the host says of the queue that it wants to connect; `None` over NVMe/TCP, where its
    /// Connect says it.
    #[must_use]
    pub fn private_data(&self) -> Option<&[u8]> {
        match &self.over {
            Over::Rdma(request) => Some(request.param.private_data.as_bytes()),
            Over::Tcp(_) => None,
        }
    }
}

/// A request on its way to the manager of another reactor. Dropping it refuses it.
#[derive(Debug)]
pub struct Migrating {
    listener: ListenerId,
    local: SocketAddr,
    /// The host's address.
    pub peer: SocketAddr,
    over: MigratingOver,
}

impl Migrating {
    pub(crate) fn listener(&self) -> ListenerId {
        self.listener
    }
}

#[derive(Debug)]
enum MigratingOver {
    Rdma(MigratedId, Box<ConnectParam>),
    Tcp(TcpRequest),
}

/// What has happened to connections.
#[derive(Debug)]
pub enum Happened {
    /// A host asks for one.
    Request(Request),
    /// The host has taken up that of a queue which was accepted.
    Established(QueueId),
    /// That of a queue is over, for the reason that is told.
    Ended(QueueId, EndReason),
    /// The device of a listener was removed; it listens again when the device returns.
    ListenerLost,
}

/// A connection could not be accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// There is something missing.
    #[error(transparent)]
    Resources(#[from] NoResources),
    /// The connection manager did not accept it.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// Its socket cannot be used.
    #[error("its socket cannot be used: {0}")]
    Socket(io::Error),
}

impl From<RdmaError> for AcceptError {
    fn from(error: RdmaError) -> Self {
        Self::Resources(NoResources::Rdma(error))
    }
}

/// A manager of one reactor.
pub struct Manager {
    /// Which of its reactor's it is.
    number: usize,
    cm: Box<dyn ConnectionManager>,
    sockets: Option<Rc<OtherStreams>>,
    listeners: HashSet<CmId>,
    /// The queues of accepted connections. The keys are numbers of this program or of the kernel.
    queues: FxHashMap<CmId, QueueId>,
}

impl Manager {
    /// Over a provider's connection manager, and the sockets beside it. It is that of its reactor
    /// with this `number`, which those of the same provider have on the other reactors.
    #[must_use]
    pub fn new(number: usize, (cm, sockets): Beside) -> Self {
        Self {
            number,
            cm,
            sockets,
            listeners: HashSet::new(),
            queues: FxHashMap::default(),
        }
    }

    /// Listens at `addr` (port 0 picks one). Returns the address that was bound.
    ///
    /// # Errors
    /// As [`ConnectionManager::listen`].
    pub fn listen(
        &mut self,
        addr: SocketAddr,
        backlog: u32,
    ) -> Result<(ListenerId, SocketAddr), CmError> {
        let (id, bound) = self.cm.listen(addr, backlog)?;
        self.listeners.insert(id);
        Ok((self.listener(id), bound))
    }

    /// Goes on at a socket that an earlier process has left. Returns its address.
    ///
    /// # Errors
    /// As [`ConnectionManager::listen_on`].
    pub fn listen_on(&mut self, socket: OwnedFd) -> Result<(ListenerId, SocketAddr), CmError> {
        let (id, bound) = self.cm.listen_on(socket)?;
        self.listeners.insert(id);
        Ok((self.listener(id), bound))
    }

    /// The socket of a listener, as [`ConnectionManager::socket_of`].
    #[must_use]
    pub fn socket_of(&self, listener: ListenerId) -> Option<OwnedFd> {
        self.cm.socket_of(listener.id)
    }

    /// Stops listening there.
    pub fn close(&mut self, listener: ListenerId) {
        self.listeners.remove(&listener.id);
        self.cm.destroy(listener.id);
    }

    fn listener(&self, id: CmId) -> ListenerId {
        ListenerId {
            provider: self.number,
            id,
        }
    }

    /// What has happened next.
    pub fn poll(&mut self, now_us: u64) -> Option<Happened> {
        // The provider has no event meanwhile, so that none overtakes what came before it.
        if let Some(request) = self.take_socket() {
            return Some(Happened::Request(request));
        }
        while let Some(event) = self.cm.poll(now_us) {
            if let Some(happened) = self.happened(event) {
                return Some(happened);
            }
        }
        self.take_socket().map(Happened::Request)
    }

    fn happened(&mut self, CmEvent { id, kind }: CmEvent) -> Option<Happened> {
        let why = match kind {
            CmEventKind::ConnectRequest { listener, param } => {
                let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
                let addresses = self.cm.addresses(id);
                let (local, peer) = addresses.unwrap_or((unknown, unknown));
                return Some(Happened::Request(Request {
                    listener: self.listener(listener),
                    local,
                    peer,
                    over: Over::Rdma(RdmaRequest {
                        id,
                        param: Box::new(param),
                    }),
                }));
            }
            CmEventKind::Established { .. } => {
                return self.queues.get(&id).copied().map(Happened::Established);
            }
            CmEventKind::Resolved => return None,
            CmEventKind::Failed(error) => EndReason::Lost(error.to_string()),
            CmEventKind::Rejected { .. } => EndReason::Lost("the peer rejected".to_owned()),
            CmEventKind::Disconnected {
                cause,
                is_violation: true,
            } => EndReason::Violation(cause),
            CmEventKind::Disconnected { cause, .. } => EndReason::Lost(cause),
            CmEventKind::DeviceRemoved if self.listeners.contains(&id) => {
                return Some(Happened::ListenerLost);
            }
            CmEventKind::DeviceRemoved => EndReason::Lost("the RDMA device was removed".to_owned()),
        };
        let Some(&queue) = self.queues.get(&id) else {
            self.cm.destroy(id);
            return None;
        };
        Some(Happened::Ended(queue, why))
    }

    fn take_socket(&mut self) -> Option<Request> {
        let OtherStream {
            listener,
            stream,
            bytes,
            local,
            peer,
        } = self.sockets.as_ref()?.take()?;
        Some(Request {
            listener: self.listener(listener),
            local,
            peer,
            over: Over::Tcp(TcpRequest { stream, bytes }),
        })
    }

    /// Refuses a request: over NVMe/RDMA the host is told `status`, over NVMe/TCP the connection is
    /// closed.
    pub fn refuse(&mut self, request: Request, status: RejectStatus) {
        match request.over {
            Over::Rdma(request) => {
                let reject = CmReject { status }.encode();
                let private_data = PrivateData::new(reject.as_bytes());
                let private_data = private_data.unwrap_or(PrivateData::EMPTY);
                self.cm.reject(request.id, &private_data);
            }
            Over::Tcp(request) => drop(request),
        }
    }

    /// Takes a request out of this manager for that of another reactor.
    ///
    /// # Errors
    /// As [`ConnectionManager::migrate`]; the request is to be refused.
    pub fn give_away(&mut self, request: Request) -> Result<Migrating, Box<(Request, CmError)>> {
        let Request {
            listener,
            local,
            peer,
            over,
        } = request;
        let over = match over {
            Over::Rdma(RdmaRequest { id, param }) => match self.cm.migrate(id) {
                Ok(migrated) => MigratingOver::Rdma(migrated, param),
                Err(error) => {
                    let request = Request {
                        listener,
                        local,
                        peer,
                        over: Over::Rdma(RdmaRequest { id, param }),
                    };
                    return Err(Box::new((request, error)));
                }
            },
            Over::Tcp(request) => MigratingOver::Tcp(request),
        };
        Ok(Migrating {
            listener,
            local,
            peer,
            over,
        })
    }

    /// Takes a request over that another reactor's manager of the same provider gave away.
    ///
    /// # Errors
    /// As [`ConnectionManager::adopt`]: the host has gone.
    pub fn take_over(&mut self, migrating: Migrating) -> Result<Request, CmError> {
        let Migrating {
            listener,
            local,
            peer,
            over,
        } = migrating;
        let over = match over {
            MigratingOver::Rdma(migrated, param) => {
                let id = self.cm.adopt(migrated)?;
                Over::Rdma(RdmaRequest { id, param })
            }
            MigratingOver::Tcp(request) => Over::Tcp(request),
        };
        Ok(Request {
            listener,
            local,
            peer,
            over,
        })
    }

    /// The device that a request has come to.
    pub(crate) fn device(&self, request: &RdmaRequest) -> Result<Rc<dyn Device>, RdmaError> {
        let device = self.cm.device(request.id);
        device.ok_or(RdmaError::Invalid("the request is gone"))
    }

    /// Makes the queue `id` of a request, which has come to the device of `port`, posts its
    /// receives and accepts the connection.
    ///
    /// # Errors
    /// The device or its connection manager does not take it; the request is to be refused.
    pub(crate) fn accept(
        &mut self,
        id: QueueId,
        request: &RdmaRequest,
        port: &mut DevicePort,
        (entries, memory): (u16, &Memory),
    ) -> Result<rdma::RdmaQueue, AcceptError> {
        let DevicePlace {
            holdings,
            responses,
            keys,
        } = port.take_place(entries, memory)?;
        let wire = &port.wire;
        let config = QpConfig {
            send_cq: Rc::clone(wire.cq()),
            recv_cq: Rc::clone(wire.cq()),
            send_wr_max: send_wrs(entries),
            receives: wire.receives().source(entries),
            send_sge_max: 1,
            recv_sge_max: 2,
            inline_bytes: INLINE_BYTES,
        };
        let qp = self.cm.create_qp(request.id, port.pd(), &config)?;
        let mut queue = rdma::RdmaQueue::new(qp.into(), responses, keys, holdings);
        queue.post_receives().map_err(not_posted)?;
        let accept = ConnectParam {
            private_data: PrivateData::new(CmAccept { crqsize: entries }.encode().as_bytes())
                .unwrap_or(PrivateData::EMPTY),
            // A host sends only capsules; it never reads the controller's memory.
            responder_resources: 0,
            initiator_depth: port.pulls_max().min(request.param.responder_resources),
            rnr_retry_count: 7,
        };
        self.cm.accept(request.id, &accept)?;
        queue.accepted_as(ConnectionId {
            provider: self.number,
            id: request.id,
        });
        port.wire.add(id, &mut queue);
        self.queues.insert(request.id, id);
        Ok(queue)
    }

    /// Ends a connection whose queue has been ended: in order, or so that nothing lingers and
    /// nothing more is sent.
    pub(crate) fn end(&mut self, connection: ConnectionId, gives_up: bool) {
        if gives_up {
            self.cm.abort(connection.id);
        } else {
            self.cm.disconnect(connection.id);
        }
    }

    /// Forgets a connection, whose queue must have been dropped before.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.queues.remove(&connection.id);
        self.cm.destroy(connection.id);
    }

    /// Before waiting at [`Manager::fd`]. `true` when there is something to poll already.
    #[must_use = "waiting when something is ready loses it until the next wake-up"]
    pub fn arm(&mut self) -> bool {
        self.cm.arm()
    }

    /// Readable, once armed, when there is something to poll.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.cm.fd()
    }

    /// Hint, as [`direct::was_not_readable`].
    pub fn stayed_silent(&mut self, now_us: u64) {
        direct::was_not_readable(&mut *self.cm, now_us);
    }

    /// When [`Manager::poll`] is to be called at the latest.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.cm.next_deadline_us()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{IpAddr, Ipv4Addr, TcpStream};
    use std::time::{Duration, Instant};

    use capstan_rdma::contract::ReceiveSource;
    use capstan_rdma::iwarp::{self, OtherProtocol};
    use capstan_rdma::loopback::{Network, attributes};

    use super::*;

    const PATIENCE_US: u64 = 1_000_000;

    fn at(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    /// What `look` finds while time goes by.
    fn until<T>(network: &Network, mut look: impl FnMut(u64) -> Option<T>) -> T {
        loop {
            if let Some(found) = look(network.now_us()) {
                return found;
            }
            network.advance_to(network.next_deadline_us().expect("something happens"));
        }
    }

    #[test]
    fn a_request_that_another_reactor_refuses_tells_the_host_why() {
        let network = Network::new(1);
        let provider = network.provider(&[at(1)], attributes()).unwrap();
        let [mut first, mut second] =
            [0; 2].map(|_| Manager::new(0, (Box::new(provider.manager().unwrap()), None)));
        let (listener, address) = first.listen(SocketAddr::new(at(1), 4420), 1).unwrap();

        let provider = network.provider(&[at(2)], attributes()).unwrap();
        let mut host = provider.manager().unwrap();
        let id = host.resolve(address, None, PATIENCE_US, 0).unwrap();
        until(&network, |now_us| host.poll(now_us));
        let device = host.device(id).unwrap();
        let (pd, cq) = (device.allocate_pd().unwrap(), device.create_cq(8).unwrap());
        let config = QpConfig {
            send_cq: Rc::clone(&cq),
            recv_cq: cq,
            send_wr_max: 4,
            receives: ReceiveSource::Own(4),
            send_sge_max: 1,
            recv_sge_max: 1,
            inline_bytes: 0,
        };
        let qp = host.create_qp(id, &pd, &config).unwrap();
        let param = ConnectParam {
            private_data: PrivateData::new(b"a queue").unwrap(),
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 0,
        };
        host.connect(id, &param, PATIENCE_US, network.now_us())
            .unwrap();

        let happened = until(&network, |now_us| first.poll(now_us));
        let Happened::Request(request) = happened else {
            panic!("{happened:?}");
        };
        assert_eq!(request.listener, listener);
        let away = first.give_away(request).expect("it has no queue pair");
        let request = second.take_over(away).expect("its host is there");
        assert_eq!(request.private_data(), Some(&b"a queue"[..]));
        let status = RejectStatus::NO_RESOURCES;
        second.refuse(request, status);
        let event = until(&network, |now_us| host.poll(now_us));
        let CmEventKind::Rejected { private_data, .. } = event.kind else {
            panic!("{event:?}");
        };
        let told = CmReject { status }.encode();
        assert_eq!(private_data.as_bytes(), told.as_bytes());
        drop(qp);
    }

    /// A host with an RDMA connection is not pushed out by sockets that came before it.
    #[test]
    fn no_request_overtakes_the_sockets_before_it() {
        const SOCKETS: usize = 20;
        // RFC 5044, section 7.1: a Request without private data.
        const REQUEST: &[u8] = b"MPA ID Req Frame\x40\x01\0\0";
        let provider = iwarp::Provider::new(iwarp::Config::default()).unwrap();
        let other = OtherProtocol {
            first_bytes: &[0],
            asks_with_bytes: |_| 1,
        };
        let (cm, others) = provider.connection_manager_beside(other).unwrap();
        let mut manager = Manager::new(0, (cm, Some(others)));
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let (_, to) = manager.listen(any, 64).unwrap();
        let first_bytes = [&[0][..]; SOCKETS].into_iter().chain([REQUEST]);
        let streams: Vec<_> = first_bytes
            .map(|bytes| {
                let mut stream = TcpStream::connect(to).unwrap();
                stream.write_all(bytes).unwrap();
                stream
            })
            .collect();
        let start = Instant::now();
        let mut requests = Vec::new();
        while requests.len() < streams.len() {
            assert!(start.elapsed() < Duration::from_secs(10), "{requests:?}");
            if let Some(Happened::Request(request)) = manager.poll(1) {
                requests.push(request.peer);
            }
        }
        let came: Vec<_> = streams.iter().map(|of| of.local_addr().unwrap()).collect();
        assert_eq!(requests, came);
    }
}
