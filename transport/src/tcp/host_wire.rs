//! The host's side over NVMe/TCP: the queues of one association, each over a socket of its own.
//!
//! A queue reads and writes its socket in the turn of the thread that has it; between turns, that
//! thread sleeps at one epoll descriptor for all of them.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::setup::{DataAlignment, Digests, IcRequest};
use capstan_rdma::address_words::{check_families, refused, source_address};
use capstan_rdma::contract::CmError;
use capstan_rdma::pacing::do_not_pace;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, connect, socket,
};

use super::host::{Arrived, HostQueue, HostQueueEvent, Payload};
use super::limits::{LAST_WORD_LOOK_MS, LAST_WORD_US, SCRATCH_BYTES};
use super::link::{Link, reset_when_closed};
use crate::host::{HostEnd, HostEvent, Offer, OpenError, OpenQueue, Response, SendError, Span};
use crate::queue::EndReason;

/// The queues of one association over NVMe/TCP.
pub struct TcpHostWire {
    /// By QID.
    queues: Vec<Option<TcpHostConnection>>,
    opening: Option<TcpOpening>,
    epoll: Epoll,
    digests: Digests,
    scratch: Box<[u8]>,
    /// Events from between two polls.
    waiting: Vec<(u16, HostEvent)>,
}

struct TcpHostConnection {
    qid: u16,
    queue: HostQueue,
    link: Link,
    /// Whether the epoll descriptor tells when the socket can send.
    awaits_room: bool,
    /// A command has failed because the controller had not taken its data.
    told_not_taken: bool,
    /// Those that both sides have agreed on.
    digests: Digests,
}

/// A connection being made.
struct TcpOpening {
    queue: OpenQueue,
    deadline_us: u64,
    step: Step,
}

enum Step {
    /// TCP connects.
    Connecting(TcpStream),
    /// ICResp is awaited.
    SettingUp(Box<TcpHostConnection>),
}

impl TcpHostWire {
    /// Asks for `digests` on each queue.
    ///
    /// # Errors
    /// The system has no descriptor.
    pub fn new(digests: Digests) -> Result<Self, OpenError> {
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|error| OpenError::Resources {
                what: "epoll descriptor",
                message: error.to_string(),
            })?;
        Ok(Self {
            queues: Vec::new(),
            opening: None,
            epoll,
            digests,
            scratch: vec![0; SCRATCH_BYTES].into(),
            waiting: Vec::new(),
        })
    }

    /// How many queues are connected.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.queues.iter().flatten().count()
    }

    /// The digests that all connected queues have; `None` while there is no connection.
    #[must_use]
    pub fn digests(&self) -> Option<Digests> {
        let connections = self.queues.iter().flatten();
        connections
            .map(|connection| connection.digests)
            .reduce(Digests::intersection)
    }

    /// Begins to connect a queue, one at a time. Leads to [`HostEvent::Connected`] or
    /// [`HostEvent::OpenFailed`].
    ///
    /// # Errors
    /// It could not be begun.
    pub fn open(&mut self, queue: OpenQueue, now_us: u64) -> Result<(), OpenError> {
        let what = || format!("connecting to {}", queue.destination);
        check_families(what, queue.destination, queue.source).map_err(OpenError::Connection)?;
        let stream = connecting(queue.destination, queue.source)
            .map_err(|error| connecting_failed(&queue, &error))?;
        self.watch(&stream, EpollFlags::EPOLLOUT)
            .map_err(|error| connecting_failed(&queue, &error))?;
        self.opening = Some(TcpOpening {
            deadline_us: now_us.saturating_add(queue.timeout_us),
            step: Step::Connecting(stream),
            queue,
        });
        Ok(())
    }

    fn watch(&self, stream: &TcpStream, events: EpollFlags) -> io::Result<()> {
        self.epoll.add(stream, EpollEvent::new(events, 0))?;
        Ok(())
    }

    /// Whether a queue takes another command now.
    #[must_use]
    #[inline]
    pub fn has_room(&self, qid: u16) -> bool {
        let connection = self.queues.get(usize::from(qid)).and_then(Option::as_ref);
        connection.is_some_and(|connection| connection.queue.has_room())
    }

    /// Sends a command, whose data pointer this fills in. It leaves with [`TcpHostWire::flush`].
    ///
    /// # Errors
    /// The queue is to be closed.
    pub fn send(&mut self, qid: u16, sqe: &Sqe, offer: Offer<'_>) -> Result<(), SendError> {
        let connection = self.queues.get_mut(usize::from(qid));
        let Some(Some(connection)) = connection else {
            return Err(SendError::NotConnected);
        };
        let part = |span: Span<'_>| {
            let end = span.offset_bytes.saturating_add(span.len_bytes);
            span.buffer
                .part(span.offset_bytes..end)
                .map(|part| (part, span.len_bytes))
                .ok_or(SendError::Refused("its data is not in its buffer"))
        };
        let payload = match offer {
            Offer::None => Payload::None,
            Offer::InCapsule(span) => {
                let (part, len_bytes) = part(span)?;
                Payload::InCapsule(part, len_bytes)
            }
            Offer::ToController(span) => {
                let (part, len_bytes) = part(span)?;
                Payload::ToController(part, len_bytes)
            }
            Offer::FromController(span) => {
                let (part, len_bytes) = part(span)?;
                Payload::FromController(part, len_bytes)
            }
        };
        let sent = connection.queue.send(*sqe, payload);
        sent.map_err(|_| SendError::Refused("the queue has ended or is full"))
    }

    /// Sends what is staged, as far as the sockets take it.
    pub fn flush(&mut self) {
        for connection in self.queues.iter_mut().flatten() {
            connection.flush(&self.epoll);
            connection.take_events(&mut self.waiting);
        }
    }

    /// Takes what has happened to commands, within the budget of a turn. Whether anything has. The
    /// Admin queue has its turn in [`TcpHostWire::poll_connections`].
    pub fn poll(&mut self, now_us: u64, events: &mut Vec<(u16, HostEvent)>) -> bool {
        let mut busy = !self.waiting.is_empty();
        events.append(&mut self.waiting);
        for connection in self.queues.iter_mut().skip(1).flatten() {
            busy |= connection.receive(&mut self.scratch, now_us, events);
        }
        busy
    }

    /// Takes what has happened to connections. Whether anything has.
    pub fn poll_connections(&mut self, now_us: u64, events: &mut Vec<(u16, HostEvent)>) -> bool {
        let mut busy = self.continue_opening(now_us, events);
        if let Some(Some(connection)) = self.queues.first_mut() {
            busy |= connection.receive(&mut self.scratch, now_us, events);
        }
        for connection in self.queues.iter_mut().flatten() {
            connection.queue.handle_timeout(now_us);
            busy |= connection.take_events(events);
        }
        busy
    }

    fn continue_opening(&mut self, now_us: u64, events: &mut Vec<(u16, HostEvent)>) -> bool {
        let Some(TcpOpening {
            queue,
            deadline_us,
            step,
        }) = self.opening.take()
        else {
            return false;
        };
        let (qid, destination) = (queue.qid, queue.destination);
        let timeout_ms = queue.timeout_us / 1000;
        let step = match step {
            Step::Connecting(stream) => match connected(&stream) {
                Ok(true) => self.set_up(&queue, stream, now_us).map(Some),
                Ok(false) if now_us < deadline_us => Ok(Some(Step::Connecting(stream))),
                Ok(false) => Err(OpenError::Connection(CmError::Timeout {
                    what: format!("connecting to {destination}"),
                    timeout_ms,
                })),
                Err(error) => Err(connecting_failed(&queue, &error)),
            },
            Step::SettingUp(mut connection) => {
                connection
                    .link
                    .receive(&mut connection.queue, &mut self.scratch, now_us);
                match connection.queue.poll_event() {
                    Some(HostQueueEvent::Ready(agreed)) => {
                        connection.digests = agreed.digests;
                        self.established(*connection);
                        events.push((qid, HostEvent::Connected(None)));
                        Ok(None)
                    }
                    Some(HostQueueEvent::Ended(reason)) => {
                        let until = Instant::now() + Duration::from_micros(LAST_WORD_US);
                        connection.send_term_req(until);
                        Err(not_set_up(&connection, reason))
                    }
                    _ if now_us < deadline_us => Ok(Some(Step::SettingUp(connection))),
                    _ => Err(connection.queue.stream.late(destination, timeout_ms)),
                }
            }
        };
        match step {
            Ok(None) => true,
            Ok(Some(step)) => {
                self.opening = Some(TcpOpening {
                    queue,
                    deadline_us,
                    step,
                });
                false
            }
            Err(error) => {
                events.push((qid, HostEvent::OpenFailed(Box::new(error))));
                true
            }
        }
    }

    /// TCP is connected: ICReq leaves.
    fn set_up(&self, queue: &OpenQueue, stream: TcpStream, now_us: u64) -> Result<Step, OpenError> {
        let failed = |error: io::Error| connecting_failed(queue, &error);
        let mut readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        self.epoll
            .modify(&stream, &mut readable)
            .map_err(|error| failed(error.into()))?;
        let request = IcRequest {
            hpda: DataAlignment::DWORD,
            digests: self.digests,
            maxr2t: 1,
        };
        let commands = queue.entries.saturating_sub(1);
        let mut connection = TcpHostConnection {
            qid: queue.qid,
            queue: HostQueue::new(request, commands, queue.flow_control, now_us),
            link: Link::new(stream).map_err(failed)?,
            awaits_room: false,
            told_not_taken: false,
            digests: Digests::empty(),
        };
        connection.flush(&self.epoll);
        Ok(Step::SettingUp(Box::new(connection)))
    }

    fn established(&mut self, connection: TcpHostConnection) {
        let at = usize::from(connection.qid);
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, || None);
        }
        if let Some(place) = self.queues.get_mut(at) {
            *place = Some(connection);
        }
    }

    /// Closes every queue, and gives up the one that is being connected. Nothing of them reaches
    /// memory any more when this returns, and no event of theirs follows.
    ///
    /// Unless it is an `orderly` end, what the kernel has not sent is never sent: an old copy of a
    /// write would come behind the one that is sent again. The same happens when this process is
    /// killed. Where the controller broke the rules the TermReq that says so leaves before, as far
    /// as that takes no longer than [`LAST_WORD_US`].
    pub fn close(&mut self, orderly: bool) {
        self.opening = None;
        self.waiting.clear();
        let until = Instant::now() + Duration::from_micros(LAST_WORD_US);
        for mut connection in self.queues.iter_mut().filter_map(Option::take) {
            connection.send_term_req(until);
            if orderly {
                connection.link.end_when_closed();
            }
        }
    }

    /// Prepares to sleep: adds what to wait for. True where there is something to take.
    pub fn arm(&mut self, fds: &mut Vec<RawFd>) -> bool {
        fds.push(self.epoll.0.as_raw_fd());
        !self.waiting.is_empty()
    }

    /// When to poll even if every descriptor stays silent.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        let connections = self.queues.iter().flatten();
        let timeouts = connections.filter_map(|connection| connection.queue.poll_timeout());
        let opening = self.opening.as_ref().map(|opening| opening.deadline_us);
        timeouts.chain(opening).min()
    }
}

impl Drop for TcpHostWire {
    fn drop(&mut self) {
        self.close(false);
    }
}

impl TcpHostConnection {
    fn flush(&mut self, epoll: &Epoll) {
        self.link.send(&mut self.queue);
        let blocked = self.link.is_blocked();
        if blocked != self.awaits_room
            && let Some(socket) = self.link.socket()
        {
            let out = if blocked {
                EpollFlags::EPOLLOUT
            } else {
                EpollFlags::empty()
            };
            let mut wanted = EpollEvent::new(EpollFlags::EPOLLIN | out, 0);
            match epoll.modify(socket, &mut wanted) {
                Ok(()) => self.awaits_room = blocked,
                // The socket is watched from its first moment on; the next flush tries again.
                Err(error) => tracing::error!(self.qid, "waiting for a socket: {error}"),
            }
        }
    }

    fn receive(
        &mut self,
        scratch: &mut [u8],
        now_us: u64,
        events: &mut Vec<(u16, HostEvent)>,
    ) -> bool {
        let any = self.link.receive(&mut self.queue, scratch, now_us);
        any | self.take_events(events)
    }

    fn take_events(&mut self, events: &mut Vec<(u16, HostEvent)>) -> bool {
        let before = events.len();
        while let Some(event) = self.queue.poll_event() {
            let event = match event {
                HostQueueEvent::Response { cqe, arrived, .. } => {
                    self.tell_not_taken(&cqe, arrived);
                    HostEvent::Response(Response {
                        cqe: outcome(self.qid, cqe, arrived),
                        is_corrupt: arrived == Arrived::Corrupt,
                        invalidated: None,
                    })
                }
                HostQueueEvent::Ended(EndReason::Violation(what)) => {
                    HostEvent::Ended(Box::new(HostEnd::Violation(what)))
                }
                HostQueueEvent::Ended(reason) => {
                    HostEvent::Ended(Box::new(HostEnd::Disconnected(end_text(reason))))
                }
                HostQueueEvent::Ready(_)
                | HostQueueEvent::Room
                | HostQueueEvent::Returned(..)
                | HostQueueEvent::Quiesced => continue,
            };
            events.push((self.qid, event));
        }
        events.len() > before
    }

    /// Where the controller has broken the rules: sends the TermReq that says so, and waits until
    /// the controller's machine has it, but not beyond `until`. Only then closing the connection
    /// leaves it there (NVMe over TCP Transport 1.1, section 3.6.2, H2CTermReq: a host that finds a
    /// fatal error sends it with FES and FEI, and nothing after it). What has been acknowledged is
    /// not in the way of a command that is sent again; what has not is dropped with the connection.
    fn send_term_req(&mut self, until: Instant) {
        while self.queue.is_terminating() {
            self.link.send(&mut self.queue);
            if self.queue.has_sent_term_req() && self.link.unacknowledged_bytes() == 0 {
                // Nothing is left to drop, and a reset may take from the controller what it has.
                self.link.end_when_closed();
                return;
            }
            let Some(socket) = self.link.socket() else {
                return;
            };
            let room = match self.link.is_blocked() {
                true => PollFlags::POLLOUT,
                false => PollFlags::empty(),
            };
            let mut sockets = [PollFd::new(socket, room)];
            let looked = poll(&mut sockets, LAST_WORD_LOOK_MS);
            let seen = sockets.first().and_then(PollFd::revents);
            let broken = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
            let is_over = seen.is_none_or(|seen| seen.intersects(broken))
                || looked.is_err_and(|error| error != nix::Error::EINTR);
            if is_over || Instant::now() >= until {
                return;
            }
        }
    }

    /// Says of the first command so of this connection what was wrong with its success.
    fn tell_not_taken(&mut self, cqe: &Cqe, arrived: Arrived) {
        if let Arrived::NotTaken {
            asked_bytes,
            total_bytes,
        } = arrived
            && !std::mem::replace(&mut self.told_not_taken, true)
        {
            let (qid, cid) = (self.qid, cqe.cid.get());
            let what = not_taken_text(asked_bytes, total_bytes);
            tracing::warn!(
                qid,
                cid,
                "{what}; such commands fail with Data Transfer Error"
            );
        }
    }
}

fn not_taken_text(asked_bytes: u32, total_bytes: u32) -> String {
    if asked_bytes < total_bytes {
        format!(
            "the controller said success but asked for {asked_bytes} of {total_bytes} bytes of the command's data, \
             expected R2Ts for all of it before: the data is not written, and the fault is the controller's"
        )
    } else {
        format!(
            "the controller said success before it had the {total_bytes} bytes of the command's data that it asked \
             for, expected after them: the data is not written, and the fault is the controller's"
        )
    }
}

/// The completion of a command whose data has arrived so. Data that does not fit its digest fails
/// the command with Transient Transport Error, as NVMe over TCP Transport 1.1 has it for digest
/// errors that are not fatal. Data of I/O that did not come as a whole has not been read, whatever
/// the status says; what is shorter of an Admin command's has zeroes behind it. Data that the
/// controller cannot have had has not been written, on any queue.
fn outcome(qid: u16, cqe: Cqe, arrived: Arrived) -> Cqe {
    let status = match arrived {
        Arrived::Corrupt => Status::TRANSIENT_TRANSPORT_ERROR,
        Arrived::Short if qid > 0 => Status::DATA_TRANSFER_ERROR,
        Arrived::NotTaken { .. } => Status::DATA_TRANSFER_ERROR,
        Arrived::Short | Arrived::Whole => return cqe,
    };
    if cqe.status().is_success() {
        Cqe::new(cqe.cid.get(), cqe.sqhd.get(), status, 0)
    } else {
        cqe
    }
}

/// Why the set-up of a connection came to nothing, which has ended for this `reason`.
fn not_set_up(connection: &TcpHostConnection, reason: EndReason) -> OpenError {
    match reason {
        EndReason::Violation(what) if connection.queue.last_is_ic_resp() => {
            OpenError::BadIcResp(what)
        }
        reason => {
            let counts = connection.link.counts();
            let has_sent = counts.direct_bytes + counts.copied_bytes > 0;
            OpenError::NoIcResp {
                is_mute: matches!(reason, EndReason::Lost(_)) && !has_sent,
                why: end_text(reason),
            }
        }
    }
}

fn end_text(reason: EndReason) -> String {
    match reason {
        EndReason::Lost(why) | EndReason::Violation(why) => why,
        reason => reason.to_string(),
    }
}

fn connecting_failed(queue: &OpenQueue, error: &io::Error) -> OpenError {
    let what = format!("connecting to {}", queue.destination);
    OpenError::Connection(if error.kind() == io::ErrorKind::ConnectionRefused {
        CmError::System {
            what,
            message: format!(
                "{error}: nothing listens there; check the address and port; on the target: `ss -ltn` shows what \
                 listens"
            ),
            errno: error.raw_os_error(),
        }
    } else {
        refused(what, queue.destination, queue.source, error)
    })
}

/// A socket that has started to connect.
fn connecting(destination: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let family = match destination {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket(family, SockType::Stream, flags, None)?;
    do_not_pace(&socket);
    // Set at once: this process may be killed at any moment, and the kernel would go on to send a
    // write that may have been repeated elsewhere by then.
    reset_when_closed(&socket, true);
    let fd = socket.as_raw_fd();
    match source.map(|source| source_address(source, destination)) {
        Some(SocketAddr::V4(source)) => bind(fd, &SockaddrIn::from(source))?,
        Some(SocketAddr::V6(source)) => bind(fd, &SockaddrIn6::from(source))?,
        None => {}
    }
    let begun = match destination {
        SocketAddr::V4(to) => connect(fd, &SockaddrIn::from(to)),
        SocketAddr::V6(to) => connect(fd, &SockaddrIn6::from(to)),
    };
    match begun {
        Ok(()) | Err(nix::Error::EINPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Whether a socket is connected.
fn connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nix::sys::socket::{getsockopt, sockopt};

    use super::*;

    fn congestion_control(socket: &TcpStream) -> String {
        let name = getsockopt(socket, sockopt::TcpCongestion).expect("a TCP socket");
        name.to_string_lossy().into_owned()
    }

    #[test]
    fn a_connection_is_not_paced_where_bbr_is_the_default() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("an address");
        let default = congestion_control(&TcpStream::connect(to).expect("a connection"));
        if !default.starts_with("bbr") {
            eprintln!("SKIPPED: the default here is {default}, which does not pace");
            return;
        }
        let chosen = congestion_control(&connecting(to, None).expect("a socket"));
        assert!(
            ["cubic", "reno"]
                .iter()
                .any(|name| chosen.starts_with(name)),
            "{chosen}"
        );
    }
}
