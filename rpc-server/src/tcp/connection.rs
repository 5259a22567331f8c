//! One connection over TCP.

use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};

use capstan_rpcrdma::record::RecordError;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{setsockopt, sockopt};

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use crate::calls::Calls;
use crate::common::{Common, End};
use crate::limits::{
    DEAD_CLIENT_TIMEOUT_MS, KEEPALIVE_IDLE_S, QUEUED_PER_CONNECTION_BYTES,
    RECEIVED_PER_CONNECTION_BYTES, REFUSED_BYTES, TCP_CALLS_MAX,
};
use crate::peers::ConnectionName;
use crate::program::{ConnectionNumber, Outcome, Wire};
use crate::task::Task;
use crate::turns::Place;

/// A connection, from its acceptance on.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    number: ConnectionNumber,
    peer: SocketAddr,
    place: Place,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Calls that the workers have.
    under_way: usize,
    /// What epoll says of the socket.
    pub(super) interest: EpollFlags,
    /// It is among those that have a call to be carried out.
    is_ready: bool,
    /// It is among those that are to be flushed.
    pub(super) is_unflushed: bool,
    /// A call of it was carried out.
    is_known: bool,
    /// Its address may have calls carried out.
    is_admitted: bool,
    life: Life,
    /// What was counted of it last: memory of what came, and of what is to leave.
    pub(super) counted: (usize, usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Open,
    /// Nothing more is read: the calls that have come are answered.
    Stopping,
    /// All is answered, and the client knows that no more will come.
    Closing,
}

impl Connection {
    /// A connection whose socket does not block.
    ///
    /// # Errors
    /// The socket has ended already.
    pub(super) fn new(
        stream: TcpStream,
        (number, place): (ConnectionNumber, Place),
        peer: SocketAddr,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        setsockopt(&stream, sockopt::KeepAlive, &true)?;
        setsockopt(&stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?;
        setsockopt(&stream, sockopt::TcpUserTimeout, &DEAD_CLIENT_TIMEOUT_MS)?;
        Ok(Self {
            stream,
            number,
            peer,
            place,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            under_way: 0,
            interest: EpollFlags::EPOLLIN,
            is_ready: false,
            is_unflushed: false,
            is_known: false,
            is_admitted: false,
            life: Life::Open,
            counted: (0, 0),
        })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Calls that the workers have.
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    fn name(&self) -> ConnectionName {
        (Wire::Tcp, self.number)
    }

    /// How many more calls it may have.
    fn calls_left(&self) -> usize {
        let has = self.incoming.waiting().saturating_add(self.under_way);
        TCP_CALLS_MAX.saturating_sub(has)
    }

    /// Whether more is to be read from it.
    fn wants_more(&self) -> bool {
        match self.life {
            Life::Open => {
                self.calls_left() > 0
                    && !self.incoming.has_left()
                    && self.incoming.held_bytes() < RECEIVED_PER_CONNECTION_BYTES
                    && self.takes_replies()
            }
            Life::Stopping => false,
            Life::Closing => true,
        }
    }

    fn takes_replies(&self) -> bool {
        self.outgoing.queued_bytes() < QUEUED_PER_CONNECTION_BYTES
    }

    /// What epoll is to say of the socket.
    pub(super) fn wanted(&self) -> EpollFlags {
        let mut wanted = EpollFlags::empty();
        if self.wants_more() {
            wanted |= EpollFlags::EPOLLIN;
        }
        if self.outgoing.is_blocked() {
            wanted |= EpollFlags::EPOLLOUT;
        }
        wanted
    }

    /// Reads what has come, once, by way of `buffer`.
    pub(super) fn read(&mut self, buffer: &mut [u8], common: &mut Common) -> Result<(), End> {
        if !self.wants_more() {
            return Ok(());
        }
        let bytes = match (&self.stream).read(buffer) {
            Ok(0) => return Err(self.ended()),
            Ok(bytes) => bytes,
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => return Ok(()),
                _ => return Err(End::Closed(error.to_string())),
            },
        };
        if self.life == Life::Closing {
            return Ok(());
        }
        self.received(buffer.get(..bytes).unwrap_or_default(), common)
    }

    fn ended(&self) -> End {
        let why = match self.incoming.begun_us() {
            Some(_) => "the client ended it within a record",
            None => "the client ended it",
        };
        End::Closed(why.to_owned())
    }

    /// Takes bytes that have come.
    pub(super) fn received(&mut self, bytes: &[u8], common: &mut Common) -> Result<(), End> {
        let calls_left = self.calls_left();
        let spare = &mut common.calls.spare;
        let taken = (self.incoming).take(bytes, calls_left, common.now_us, spare);
        taken.map_err(fault)?;
        // It may be admitted since.
        self.is_admitted = self.is_admitted || common.program.admits(self.peer).is_ok();
        if !self.is_admitted && self.incoming.held_bytes() > REFUSED_BYTES {
            let why = "its address may use nothing here, and it sent more than a call for that";
            return Err(End::Closed(why.to_owned()));
        }
        self.tell_ready(&mut common.calls);
        Ok(())
    }

    fn tell_ready(&mut self, calls: &mut Calls) {
        if !self.is_ready && self.incoming.waiting() > 0 && self.takes_replies() {
            self.is_ready = true;
            calls.turns.push(self.place, self.name());
        }
    }

    /// When the call came that waits for its turn for longest.
    pub(super) fn oldest_us(&self) -> Option<u64> {
        self.incoming.oldest_us().filter(|_| self.is_ready)
    }

    /// It is its turn: has its next call carried out.
    pub(super) fn start_next(&mut self, common: &mut Common) {
        self.is_ready = false;
        if !self.takes_replies() {
            return;
        }
        if let Some((record, came_us)) = self.incoming.pop() {
            let mut task = common.calls.task(self.name(), self.peer);
            task.message = 0..record.len();
            task.bytes = record;
            task.arrived_us = came_us;
            match self.is_admitted {
                true => common.start(task),
                false => common.refuse(task),
            }
            self.under_way = self.under_way.saturating_add(1);
        }
        self.tell_ready(&mut common.calls);
    }

    /// A call was carried out.
    pub(super) fn answered(&mut self, mut task: Box<Task>, common: &mut Common) -> Result<(), End> {
        self.under_way = self.under_way.saturating_sub(1);
        let answer = task.answer;
        match answer.outcome {
            Outcome::Reply if answer.items.as_slice().is_empty() => {
                if self.is_admitted && !std::mem::replace(&mut self.is_known, true) {
                    common.peers.known(self.name());
                }
                let reply = std::mem::take(&mut task.reply);
                let back = (self.outgoing).push(reply, answer.reply_bytes, common.now_us);
                task.reply = back.unwrap_or_default();
            }
            Outcome::Reply => {
                let peer = self.peer;
                tracing::error!(%peer, "a reply over TCP has reduced items, expected none");
                return Err(End::Closed("a reply could not be sent".to_owned()));
            }
            Outcome::None => {}
            Outcome::End => {
                let why =
                    "it sent what is no message of RPC, or nothing behind which could be read";
                return Err(End::Fault(why.to_owned()));
            }
        }
        common.calls.task_back(task);
        self.go_on(common)
    }

    /// There may be room for another call.
    fn go_on(&mut self, common: &mut Common) -> Result<(), End> {
        if self.life == Life::Open {
            let calls_left = self.calls_left();
            let spare = &mut common.calls.spare;
            let resumed = (self.incoming).resume(calls_left, common.now_us, spare);
            resumed.map_err(fault)?;
        }
        self.tell_ready(&mut common.calls);
        Ok(())
    }

    /// Sends what there is to be sent.
    pub(super) fn send(&mut self, common: &mut Common) -> Result<(), End> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        let calls = &mut common.calls;
        let back = |reply| calls.reply_back(reply);
        let sent = self.outgoing.send(&self.stream, common.now_us, back);
        sent.map_err(|error| End::Closed(error.to_string()))?;
        self.go_on(common)
    }

    /// Nothing more is read.
    pub(super) fn stop(&mut self) {
        if self.life == Life::Open {
            self.life = Life::Stopping;
        }
    }

    /// Where it stops: says that no more will come once all is answered.
    pub(super) fn close_if_done(&mut self) {
        let is_done = self.under_way == 0 && self.incoming.waiting() == 0;
        if self.life == Life::Stopping && is_done && self.outgoing.is_empty() {
            // One that has ended is found to have when it is read.
            let _ = self.stream.shutdown(Shutdown::Write);
            self.life = Life::Closing;
        }
    }

    /// Whether all is answered, and no more will be.
    pub(super) fn is_closing(&self) -> bool {
        self.life == Life::Closing
    }

    /// The memory of what came, and of what is to leave, in bytes.
    pub(super) fn memory(&self) -> (usize, usize) {
        (self.incoming.held_bytes(), self.outgoing.queued_bytes())
    }

    /// More is read of it from now on.
    pub(super) fn goes_on(&mut self, now_us: u64) {
        self.incoming.goes_on(now_us);
    }

    /// Since when a record of it is being received and more of it is read.
    pub(super) fn begun_us(&self) -> Option<u64> {
        let begun_us = self.incoming.begun_us();
        begun_us.filter(|_| self.life == Life::Open && self.wants_more())
    }

    /// Since when it has taken nothing.
    pub(super) fn stuck_since_us(&self) -> Option<u64> {
        self.outgoing.stuck_since_us()
    }

    /// Whether its client has to go on.
    pub(super) fn is_awaited(&self) -> bool {
        self.begun_us().is_some() || self.stuck_since_us().is_some()
    }

    /// What its client left as it is since before then, in words.
    pub(super) fn overdue(&self, before_us: u64) -> Option<String> {
        let is_overdue = |since_us: Option<u64>| since_us.is_some_and(|us| us < before_us);
        if is_overdue(self.begun_us()) {
            return Some("it left a record unfinished, expected all of it in time".to_owned());
        }
        is_overdue(self.stuck_since_us())
            .then(|| "it took no reply, expected that it reads them".to_owned())
    }
}

/// What an MPA Request of iWARP (RFC 5044, section 7.1) begins with, read as the length of a
/// fragment: "MPA ".
const MPA_REQUEST: u32 = u32::from_be_bytes(*b"MPA ");

/// What came is no record.
fn fault(error: RecordError) -> End {
    End::Fault(match error {
        RecordError::TooLong {
            fragment_bytes: MPA_REQUEST,
            ..
        } => "it speaks RDMA (iWARP), expected TCP at this listener; use the port of RDMA \
              (port=20049, where no other is set), or proto=tcp"
            .to_owned(),
        RecordError::TooLong { .. } | RecordError::TooManyFragments { .. } | RecordError::Ended => {
            error.to_string()
        }
    })
}

#[cfg(test)]
mod tests {
    use capstan_rpcrdma::record::RecordReader;

    use super::*;

    #[test]
    fn a_client_of_rdma_is_told_the_port_and_no_length() {
        let why = |bytes: &[u8]| {
            let error = RecordReader::default().next(&mut &bytes[..]).unwrap_err();
            let End::Fault(why) = fault(error) else {
                panic!("no fault")
            };
            why
        };
        let mpa = why(b"MPA ID Req Frame");
        assert!(
            mpa.contains("speaks RDMA (iWARP)") && mpa.contains("port=20049"),
            "{mpa}"
        );
        assert!(why(b"GET / HTTP/1.1").starts_with("a fragment of "));
    }
}
