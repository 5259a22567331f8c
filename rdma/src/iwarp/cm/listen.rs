//! The listening side.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Weak;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use zerocopy::IntoBytes;

use super::others::stranger_text;
use super::setup::{self, Agreed, FrameReader, Heard, Read1, ReadError, peer_depths, write_frame};
use super::{Entry, Manager, OtherStream, OtherStreams, SetUpSocket, State, os_error};
use crate::PEER_CAUSED;
use crate::contract::{CmError, CmEventKind, CmId, ConnectParam, MigratedId, PrivateData};
use crate::ids::{foreign, may_accept};
use crate::iwarp::core::Terms;
use crate::iwarp::driver::rendezvous::is_same_host;
use crate::iwarp::link::Link;
use crate::iwarp::link::socket::{listener, tune};
use crate::iwarp::wire::mpa::{FrameError, FrameKind};
use crate::strangers::Source;

/// Pause of a listener when the system has no descriptors or memory for another connection.
const PAUSE_US: u64 = 100_000;
/// Connections accepted from one listener per poll.
const ACCEPTS: usize = 32;

/// A listener.
pub(super) struct Listening {
    socket: TcpListener,
}

/// A connection whose Request has not arrived yet.
pub(super) struct HalfOpen {
    socket: SetUpSocket,
    listener: CmId,
    /// The first bytes of its Request have arrived.
    has_begun: bool,
}

/// A connection request.
pub(super) struct Request {
    stream: TcpStream,
    heard: Box<Heard>,
}

impl Request {
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Refuses it: the socket, and the Reply to send through it.
    pub(super) fn refuse(self, private_data: &[u8]) -> (TcpStream, Vec<u8>) {
        let refusal = setup::refusal(&self.heard.frame);
        // 255 bytes of private data always fit.
        (
            self.stream,
            refusal.encode(private_data).unwrap_or_default(),
        )
    }

    /// Packs it for another thread.
    pub(super) fn migrate(self) -> MigratedId {
        MigratedId(Box::new(Migrating(Some(self))))
    }
}

/// A request on its way between two threads; refused when it is dropped there.
struct Migrating(Option<Request>);

impl Drop for Migrating {
    fn drop(&mut self) {
        if let Some(request) = self.0.take() {
            let (stream, bytes) = request.refuse(&[]);
            // Best effort: the peer sees a closed connection when it fails.
            let _ = write_frame(&stream, &bytes);
        }
    }
}

impl Manager {
    pub(super) fn start_listening(
        &mut self,
        addr: SocketAddr,
        backlog: u32,
    ) -> Result<(CmId, SocketAddr), CmError> {
        let socket = listener(addr, backlog);
        let socket = socket.map_err(|e| os_error(&format!("listening at {addr}"), &e))?;
        self.listen_at(socket)
    }

    pub(super) fn listen_at(&mut self, socket: TcpListener) -> Result<(CmId, SocketAddr), CmError> {
        let failed = |e| os_error("listening at a socket", &e);
        socket.set_nonblocking(true).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        let id = self.ids.reserve();
        self.watch(id, &socket, EpollFlags::EPOLLIN)?;
        let listening = Listening { socket };
        self.ids.put(
            id,
            Entry {
                state: State::Listening(listening),
                local: Some(local),
                peer: None,
                qp: Weak::new(),
                deadline_us: None,
            },
        );
        Ok((id, local))
    }

    pub(super) fn listening_socket(&self, id: CmId) -> Option<OwnedFd> {
        match &self.ids.get(id)?.state {
            State::Listening(listening) => listening.socket.try_clone().ok().map(OwnedFd::from),
            _ => None,
        }
    }

    /// Another process may have the socket, and go on at it: it is not watched any more.
    pub(super) fn leave(&self, listening: &Listening) {
        let _ = self.epoll.delete(&listening.socket);
    }

    /// Accepts the connections that wait at a listener.
    pub(super) fn accept_connections(&mut self, id: CmId) {
        for _ in 0..ACCEPTS {
            let Some(State::Listening(listening)) = self.ids.get(id).map(|e| &e.state) else {
                return;
            };
            let (stream, peer) = match listening.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    match error.raw_os_error() {
                        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                            tracing::warn!(
                                target: PEER_CAUSED,
                                %error,
                                "cannot take a connection; trying again in {} ms (raise the limit \
                                 of open files?)",
                                PAUSE_US / 1000
                            );
                            if let Some(oldest) = self.half_open.oldest_of_most() {
                                self.forget(oldest);
                            }
                            self.pause(id);
                        }
                        // EAGAIN: no more. Anything else concerns a single connection that is gone.
                        _ => return,
                    }
                    return;
                }
            };
            self.take_connection(id, stream, peer);
        }
    }

    fn take_connection(&mut self, listener: CmId, stream: TcpStream, peer: SocketAddr) {
        let Ok(local) = stream.local_addr() else {
            return;
        };
        if tune(&stream, &self.engine.config).is_err() {
            // Only a connection that is gone already refuses its options.
            return;
        }
        let id = self.ids.reserve();
        if self.watch(id, &stream, EpollFlags::EPOLLIN).is_err() {
            return;
        }
        let socket = SetUpSocket {
            stream,
            reader: FrameReader::new(),
        };
        let source = Source::of(peer.ip());
        self.make_room(source);
        self.half_open.add(source, id);
        let half_open = HalfOpen {
            socket,
            listener,
            has_begun: false,
        };
        self.ids.put(
            id,
            Entry {
                state: State::HalfOpen(half_open),
                local: Some(local),
                peer: Some(peer),
                qp: Weak::new(),
                deadline_us: None,
            },
        );
        self.time(id, Some(self.now_us + self.setup_us()));
        // The Request has often arrived already.
        self.read_request(id);
    }

    /// Closes a half-open connection where one more of `source` would be too many. The listener
    /// goes on accepting: a permitted host may be in the backlog.
    fn make_room(&mut self, source: Source) {
        let oldest = |manager: &Self| manager.half_open.displaced_by(source).next();
        let Some(id) = oldest(self) else {
            return;
        };
        // Its Request may have arrived since the last poll: then it is not half-open any more.
        self.read_request(id);
        if oldest(self) != Some(id) {
            return;
        }
        let peer = self.ids.get(id).and_then(|entry| entry.peer);
        let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
        tracing::warn!(
            target: PEER_CAUSED,
            peer,
            half_open = self.half_open.count(),
            "closed a connection that had not asked for anything yet: there are too many of them, and most from its address"
        );
        self.forget(id);
    }

    /// Stops watching a listener for a while.
    fn pause(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        if let State::Listening(listening) = &mut entry.state {
            let mut event = EpollEvent::new(EpollFlags::empty(), id.0);
            // Modifying a watch that exists does not fail.
            let _ = self.epoll.modify(&listening.socket, &mut event);
            self.time(id, Some(self.now_us + PAUSE_US));
        }
    }

    /// Watches a paused listener again.
    pub(super) fn resume_listener(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        if let State::Listening(listening) = &mut entry.state {
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN, id.0);
            // As in `pause`.
            let _ = self.epoll.modify(&listening.socket, &mut event);
        }
    }

    /// Drops the requests of a listener that is gone, where the program was not told of them yet.
    pub(super) fn forget_requests_of(&mut self, listener: CmId) {
        let of = |e: &Entry| matches!(&e.state, State::HalfOpen(h) if h.listener == listener);
        for id in self.ids.which(of) {
            self.forget(id);
        }
    }

    /// Reads the Request of a half-open connection.
    pub(super) fn read_request(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        let State::HalfOpen(half_open) = &mut entry.state else {
            return;
        };
        let SetUpSocket { stream, reader } = &mut half_open.socket;
        let mut read = reader.read(stream);
        if let Some(others) = &self.others
            && let Some(filled) = read_other(others, reader, stream)
        {
            read = match filled {
                Ok(true) => return self.hand_over(id),
                Ok(false) => Ok(Read1::Waiting),
                Err(error) => Err(error),
            };
        }
        let heard = match read {
            Ok(Read1::Waiting) => {
                // Only once: a peer that sends byte by byte gets no more time for it.
                if half_open.socket.reader.has_begun() && !half_open.has_begun {
                    half_open.has_begun = true;
                    self.time(id, Some(self.now_us + self.setup_us()));
                }
                return;
            }
            Ok(Read1::Frame(heard)) => heard,
            Err(error) => {
                let peer = entry.peer;
                if matches!(error, ReadError::Frame(FrameError::Key)) {
                    log_stranger(peer, half_open.socket.reader.bytes());
                } else {
                    log_refused(peer, &format!("{error:?}"));
                }
                self.forget(id);
                return;
            }
        };
        let State::HalfOpen(half_open) = std::mem::replace(&mut entry.state, State::Closed) else {
            return;
        };
        self.half_open.remove(id);
        entry.deadline_us = None;
        let peer = entry.peer;
        let stream = half_open.socket.stream;
        // The program decides next; until then the socket is not watched.
        let _ = self.epoll.delete(&stream);
        let request = Request { stream, heard };
        if request.heard.frame.kind != FrameKind::Request {
            log_refused(peer, "an MPA Reply where a Request belongs");
            self.ids.remove(id);
        } else if request.heard.frame.markers {
            // RFC 5044 §4.3: the receiver asks for markers; this side does not send them.
            let why = "MPA markers are not supported; turn them off on your side";
            log_refused(peer, why);
            let (stream, bytes) = request.refuse(why.as_bytes());
            self.ids.remove(id);
            self.linger(stream, bytes);
        } else {
            let (ird, ord) = peer_depths(&request.heard.frame, &self.engine.config);
            let param = ConnectParam {
                private_data: request.heard.private_data,
                responder_resources: ird,
                initiator_depth: ord,
                rnr_retry_count: 7,
            };
            if let Some(entry) = self.ids.get_mut(id) {
                entry.state = State::Requested(request);
            }
            let listener = half_open.listener;
            self.tell(id, CmEventKind::ConnectRequest { listener, param });
        }
    }

    /// Gives a connection to those of the other protocol.
    fn hand_over(&mut self, id: CmId) {
        self.half_open.remove(id);
        let entry = self.ids.remove(id);
        if let (Some(others), Some(entry)) = (&self.others, entry)
            && let (State::HalfOpen(half_open), Some(local), Some(peer)) =
                (entry.state, entry.local, entry.peer)
        {
            let SetUpSocket { stream, reader } = half_open.socket;
            let _ = self.epoll.delete(&stream);
            others.add(OtherStream {
                listener: half_open.listener,
                stream,
                bytes: reader.into_bytes(),
                local,
                peer,
            });
        }
    }

    pub(super) fn accept_request(&mut self, id: CmId, param: &ConnectParam) -> Result<(), CmError> {
        let entry = self.ids.known(id)?;
        let qp = entry.qp.upgrade();
        let State::Requested(request) = &entry.state else {
            return may_accept(false, qp.is_some());
        };
        let Some(qp) = qp else {
            return may_accept(true, false);
        };
        let config = &self.engine.config;
        let asked = &request.heard.frame;
        let same_host = is_same_host(entry.local, entry.peer);
        let (mut reply, agreed) = setup::accept(config, asked, param, same_host);
        let mut private_data = param.private_data.as_bytes().to_vec();
        if config.same_host && asked.same_host && same_host {
            match self.engine.invite(&qp) {
                Ok(invitation) => {
                    reply.same_host = true;
                    private_data.extend_from_slice(invitation.as_bytes());
                }
                Err(error) => {
                    tracing::debug!(%error, "no shared memory for a peer on this machine");
                }
            }
        }
        let bytes = reply.encode(&private_data);
        let bytes = bytes.ok_or(CmError::Invalid("the private data is too long for MPA"))?;
        write_frame(&request.stream, &bytes).map_err(|e| os_error("sending the Reply", &e))?;
        let State::Requested(request) = std::mem::replace(&mut entry.state, State::Connected)
        else {
            return Err(CmError::Invalid("there is no connection request to accept"));
        };
        let param = negotiated(&agreed, PrivateData::EMPTY);
        let terms = Terms {
            framing: agreed.framing(config),
            crc: agreed.crc,
            // RFC 5044 §7.1.2: not before the first FPDU of the connecting side.
            may_send: false,
            empty_fpdu: agreed.first.is_some_and(|rtr| rtr.empty_fpdu),
            ord: agreed.ord,
            ird: agreed.ird,
        };
        if agreed.first.is_some() {
            // The wait starts at the next poll: this call does not know the time, and the last
            // poll may be long ago.
            entry.state = State::AwaitFirst { param };
            self.time(id, None);
        }
        self.engine.attach(&qp, Link::Tcp(request.stream), terms);
        if agreed.first.is_none() {
            self.tell(id, CmEventKind::Established { param });
        }
        Ok(())
    }

    pub(super) fn adopt_request(&mut self, id: MigratedId) -> Result<CmId, CmError> {
        let migrating = id.0.downcast::<Migrating>();
        let mut migrating = migrating.map_err(|_| foreign())?;
        let request = migrating.0.take();
        let request = request.ok_or(CmError::Invalid("the request has been taken"))?;
        let gone = |e: std::io::Error| os_error("adopting a connection request", &e);
        let local = request.stream.local_addr().map_err(gone)?;
        let peer = request.stream.peer_addr().map_err(gone)?;
        let id = self.ids.reserve();
        self.ids.put(
            id,
            Entry {
                state: State::Requested(request),
                local: Some(local),
                peer: Some(peer),
                qp: Weak::new(),
                deadline_us: None,
            },
        );
        Ok(id)
    }
}

/// Reads a stream of another protocol; whether as much has come as that needs. `None` where it is
/// none of that.
fn read_other(
    others: &OtherStreams,
    reader: &mut FrameReader,
    stream: &TcpStream,
) -> Option<Result<bool, ReadError>> {
    loop {
        let wanted = others.wanted_bytes(reader.bytes())?;
        if reader.bytes().len() >= wanted {
            return Some(Ok(true));
        }
        match reader.fill(stream, wanted) {
            // What it has said may say that more is to come.
            Ok(true) => {}
            filled => return Some(filled),
        }
    }
}

/// The negotiated depths, as the program is given them.
pub(super) fn negotiated(agreed: &Agreed, private_data: PrivateData) -> ConnectParam {
    ConnectParam {
        private_data,
        responder_resources: agreed.ird,
        initiator_depth: agreed.ord,
        rnr_retry_count: 7,
    }
}

/// Logs that a peer did not get as far as a request.
fn log_refused(peer: Option<SocketAddr>, why: &str) {
    tracing::debug!(?peer, why, "refused a connection during set-up");
}

/// Logs what a peer began with that is no Request.
fn log_stranger(peer: Option<SocketAddr>, bytes: &[u8]) {
    let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
    let what = stranger_text(bytes);
    tracing::warn!(target: PEER_CAUSED, peer, "closed a connection: {what}");
}
