//! One RDMA provider: its listeners, and its connections as they come and end.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;

use capstan_rdma::contract::{
    CmError, CmEventKind, CmId, ConnectParam, ConnectionManager, PrivateData, RdmaError,
};
use capstan_rdma::iwarp::{OtherProtocol, OtherStreams};
use capstan_rdma::{ProviderKind, direct};
use rustc_hash::FxHashMap;

use crate::limits::BACKLOG;
use crate::program::ConnectionNumber;

/// What a stream of records begins with: a mark of a last fragment or of another one, which is
/// shorter than 16 MiB (RFC 5531, section 11). An MPA Request begins with neither.
const RECORDS: OtherProtocol = OtherProtocol {
    first_bytes: &[0x80, 0x00],
    asks_with_bytes: |_| 1,
};
const _: () = assert!(capstan_rpcrdma::limits::RECORD_MAX_BYTES < 1 << 24);

/// The connections of one provider.
pub(super) struct Manager {
    kind: ProviderKind,
    pub(super) cm: Box<dyn ConnectionManager>,
    /// Connections of another protocol, which come to the same sockets.
    others: Option<Rc<OtherStreams>>,
    /// Whether records over TCP may come to each listener.
    listeners: FxHashMap<CmId, bool>,
    pub(super) connections: FxHashMap<CmId, ConnectionNumber>,
}

/// What has happened to connections.
pub(super) enum Happened {
    /// A client asks for one.
    Request(CmId, Box<ConnectParam>),
    /// A client speaks plain TCP: its socket, its address, and what was read.
    Stream(TcpStream, SocketAddr, Vec<u8>),
    /// A client has taken up the connection.
    Established(ConnectionNumber),
    /// A connection is over, for the reason that is told.
    Ended(ConnectionNumber, String),
}

impl Manager {
    /// # Errors
    /// The system lacks what the provider needs.
    pub(super) fn new(kind: ProviderKind) -> Result<Self, RdmaError> {
        let (cm, others) = kind.connection_manager_beside(RECORDS)?;
        Ok(Self {
            kind,
            cm,
            others,
            listeners: FxHashMap::default(),
            connections: FxHashMap::default(),
        })
    }

    pub(super) fn kind(&self) -> ProviderKind {
        self.kind
    }

    /// Whether its listeners may take records over TCP as well.
    pub(super) fn takes_streams(&self) -> bool {
        self.others.is_some()
    }

    /// Returns as well the socket, of a provider that has one, for a process that goes on at it.
    ///
    /// # Errors
    /// As [`ConnectionManager::listen`].
    pub(super) fn listen(
        &mut self,
        addr: SocketAddr,
        left: Option<OwnedFd>,
        streams: bool,
    ) -> Result<(SocketAddr, Option<OwnedFd>), CmError> {
        let (id, bound) = match left {
            Some(left) => self.cm.listen_on(left)?,
            None => self.cm.listen(addr, BACKLOG)?,
        };
        self.listeners.insert(id, streams);
        Ok((bound, self.cm.socket_of(id)))
    }

    /// Takes no more connections.
    pub(super) fn stop(&mut self) {
        for (id, _) in self.listeners.drain() {
            self.cm.destroy(id);
        }
    }

    pub(super) fn poll(&mut self, now_us: u64) -> Option<Happened> {
        while let Some(event) = self.cm.poll(now_us) {
            let known = self.connections.get(&event.id).copied();
            let why = match event.kind {
                CmEventKind::ConnectRequest { param, .. } => {
                    return Some(Happened::Request(event.id, Box::new(param)));
                }
                CmEventKind::Established { .. } => match known {
                    Some(number) => return Some(Happened::Established(number)),
                    None => continue,
                },
                CmEventKind::Resolved => continue,
                CmEventKind::DeviceRemoved if self.listeners.contains_key(&event.id) => {
                    tracing::warn!(
                        "the RDMA device of a listener was removed; it listens again when the device returns"
                    );
                    continue;
                }
                CmEventKind::DeviceRemoved => "the RDMA device was removed".to_owned(),
                CmEventKind::Failed(error) => error.to_string(),
                CmEventKind::Rejected { .. } => "the client rejected it".to_owned(),
                CmEventKind::Disconnected { cause, .. } => cause,
            };
            match known {
                Some(number) => return Some(Happened::Ended(number, why)),
                None => self.cm.destroy(event.id),
            }
        }
        while let Some(other) = self.others.as_ref().and_then(|others| others.take()) {
            if self
                .listeners
                .get(&other.listener)
                .copied()
                .unwrap_or(false)
            {
                return Some(Happened::Stream(other.stream, other.peer, other.bytes));
            }
            let peer = other.peer.ip().to_canonical();
            tracing::warn!(
                target: capstan_rdma::PEER_REPEATS,
                %peer,
                "refused a connection: it speaks TCP, expected RDMA at this listener; choose \
                 another port, or proto=rdma"
            );
        }
        None
    }

    /// Refuses a request.
    pub(super) fn reject(&mut self, id: CmId) {
        self.cm.reject(id, &PrivateData::EMPTY);
    }

    /// Forgets a connection, whose queue pair is gone.
    pub(super) fn forget(&mut self, id: CmId) {
        self.connections.remove(&id);
        self.cm.destroy(id);
    }

    pub(super) fn arm(&mut self) -> bool {
        self.cm.arm()
    }

    pub(super) fn fd(&self) -> RawFd {
        self.cm.fd()
    }

    pub(super) fn stayed_silent(&mut self, now_us: u64) {
        direct::was_not_readable(&mut *self.cm, now_us);
    }

    pub(super) fn next_deadline_us(&self) -> Option<u64> {
        self.cm.next_deadline_us()
    }
}
