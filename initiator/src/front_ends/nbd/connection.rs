//! One connection: a socket, its handshake, its transmission phase.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use capstan_memory::Buffer;

use super::handshake::{Export, Handshake, OPTION_BYTES_MAX, Step};
use super::transmission::Transmission;
use super::wire::OptionHeader;
use crate::allocation::Allocated;
use crate::error::IoError;
use crate::front_ends::block::{BlockQueue, Geometry};
use crate::front_ends::lease::{self, PARTS_MAX, Part, Place};

/// Bytes read ahead of the protocol: some hundred requests, or the largest option. Data of writes
/// beyond it goes straight to registered memory.
const INPUT_BYTES: usize = 16 << 10;
const _: () = assert!(INPUT_BYTES >= size_of::<OptionHeader>() + OPTION_BYTES_MAX as usize);
/// `recv` calls of one connection in one turn.
const READS_PER_TURN: u32 = 16;
/// Bytes of unsent handshake replies, beyond which no option is taken.
const REPLY_BYTES_MAX: usize = 64 << 10;

enum NbdPhase {
    Handshake {
        handshake: Handshake,
        reply: Vec<u8>,
        /// Why no more is taken.
        end: Option<&'static str>,
    },
    Transmission(Box<Transmission>),
}

/// See the [module](self).
pub(super) struct Connection {
    /// `None` once nothing can be sent or received any more.
    stream: Option<UnixStream>,
    phase: NbdPhase,
    input: Box<[u8; INPUT_BYTES]>,
    start: usize,
    end: usize,
    /// There may be something to receive.
    readable: bool,
    /// The last send did not take everything.
    full: bool,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interest {
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl Connection {
    pub(super) fn new(stream: UnixStream) -> Self {
        let mut reply = Vec::new();
        let handshake = Handshake::new(&mut reply);
        Self {
            stream: Some(stream),
            phase: NbdPhase::Handshake {
                handshake,
                reply,
                end: None,
            },
            input: Box::new([0; INPUT_BYTES]),
            start: 0,
            end: 0,
            readable: true,
            full: false,
        }
    }

    pub(super) fn stream(&self) -> Option<&UnixStream> {
        self.stream.as_ref()
    }

    pub(super) fn interest(&self) -> Interest {
        Interest {
            readable: self.wants_input(),
            writable: self.full,
        }
    }

    pub(super) fn set_readable(&mut self) {
        self.readable = true;
    }

    pub(super) fn set_writable(&mut self) {
        self.full = false;
    }

    /// The client is gone.
    pub(super) fn hung_up(&mut self) {
        self.stream = None;
        match &mut self.phase {
            NbdPhase::Handshake { reply, end, .. } => {
                reply.clear();
                end.get_or_insert("the client hung up");
            }
            NbdPhase::Transmission(transmission) => transmission.break_off("the client hung up"),
        }
    }

    /// Why the connection is over, once it can be dropped.
    pub(super) fn is_over(&self) -> Option<&'static str> {
        match &self.phase {
            NbdPhase::Handshake { reply, end, .. } => end.filter(|_| reply.is_empty()),
            NbdPhase::Transmission(transmission) => {
                transmission.end().filter(|_| transmission.is_idle())
            }
        }
    }

    /// It waits for memory or a place in the queue.
    pub(super) fn is_blocked(&self) -> bool {
        match &self.phase {
            NbdPhase::Handshake { .. } => false,
            NbdPhase::Transmission(transmission) => transmission.is_blocked(),
        }
    }

    fn wants_input(&self) -> bool {
        match &self.phase {
            NbdPhase::Handshake { reply, end, .. } => {
                end.is_none() && reply.len() < REPLY_BYTES_MAX
            }
            NbdPhase::Transmission(transmission) => transmission.wants_input(),
        }
    }

    pub(super) fn completed(
        &mut self,
        token: u64,
        result: Result<(), IoError>,
        lease: Option<Buffer>,
    ) {
        if let NbdPhase::Transmission(transmission) = &mut self.phase {
            transmission.completed(token, result, lease);
        }
    }

    pub(super) fn looked_up(&mut self, token: u64, allocated: Option<&Allocated>) {
        if let NbdPhase::Transmission(transmission) = &mut self.phase {
            transmission.looked_up(token, allocated);
        }
    }

    /// Receives, works and sends as far as that goes without waiting. `true` when something was
    /// done.
    pub(super) fn turn(
        &mut self,
        export: &Export,
        geometry: &Geometry,
        queue: &mut dyn BlockQueue,
    ) -> bool {
        let mut busy = false;
        for _ in 0..READS_PER_TURN {
            busy |= self.take_input(export, geometry, queue);
            if !self.readable || !self.wants_input() {
                break;
            }
            match self.receive(queue) {
                Ok(0) => {
                    self.stop("the client closed the connection");
                    break;
                }
                Ok(_) => busy = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.hung_up(),
            }
        }
        while !self.full && self.stream.is_some() {
            match self.send() {
                Ok(0) => break,
                Ok(_) => busy = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.full = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.hung_up(),
            }
        }
        busy
    }

    fn stop(&mut self, reason: &'static str) {
        match &mut self.phase {
            NbdPhase::Handshake { end, .. } => {
                end.get_or_insert(reason);
            }
            NbdPhase::Transmission(transmission) => transmission.stop(reason),
        }
    }

    /// Gives what has been received to the protocol. `true` when it took something.
    fn take_input(
        &mut self,
        export: &Export,
        geometry: &Geometry,
        queue: &mut dyn BlockQueue,
    ) -> bool {
        let mut busy = false;
        // Twice at most: the handshake, then what came behind it.
        loop {
            let bytes = self.input.get(self.start..self.end).unwrap_or_default();
            match &mut self.phase {
                NbdPhase::Transmission(transmission) => {
                    let taken = transmission.input(bytes, queue);
                    self.start += taken;
                    return busy || taken > 0;
                }
                NbdPhase::Handshake {
                    handshake,
                    reply,
                    end,
                } => {
                    if end.is_some() {
                        return busy;
                    }
                    let (taken, step) = handshake.input(export, bytes, reply);
                    self.start += taken;
                    busy |= taken > 0;
                    match step {
                        Step::More => return busy,
                        Step::Close(reason) => *end = Some(reason),
                        Step::Start(negotiated) => {
                            let mut transmission = Transmission::new(*geometry, negotiated);
                            transmission.send_first(std::mem::take(reply));
                            self.phase = NbdPhase::Transmission(Box::new(transmission));
                        }
                    }
                }
            }
        }
    }

    /// Receives data where it belongs, and what comes behind it into the input.
    fn receive(&mut self, queue: &mut dyn BlockQueue) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let ahead = self.input.get_mut(self.end..).unwrap_or_default();
        let Some(stream) = &mut self.stream else {
            return Ok(0);
        };
        if ahead.is_empty() {
            // Cannot be: what wants input takes what is there.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let NbdPhase::Transmission(transmission) = &mut self.phase else {
            let count = stream.read(ahead)?;
            self.end += count;
            return Ok(count);
        };
        let (count, of_payload) = match transmission.payload() {
            None => (stream.read(ahead)?, 0),
            Some(payload) => {
                let room = payload.len();
                let places = &mut [payload, Place::Bytes(ahead)];
                let count = lease::receive(stream.as_fd(), places)?;
                (count, count.min(room))
            }
        };
        self.end += count - of_payload;
        if of_payload > 0 {
            transmission.payload_received(of_payload, queue);
        }
        Ok(count)
    }

    /// Sends what waits, once; 0 when nothing does.
    fn send(&mut self) -> io::Result<usize> {
        let Some(stream) = &mut self.stream else {
            return Ok(0);
        };
        match &mut self.phase {
            NbdPhase::Handshake { reply, .. } => {
                if reply.is_empty() {
                    return Ok(0);
                }
                let count = stream.write(reply)?;
                reply.drain(..count);
                Ok(count)
            }
            NbdPhase::Transmission(transmission) => {
                let mut parts = [Part::EMPTY; PARTS_MAX];
                let filled = transmission.output(&mut parts);
                if filled == 0 {
                    return Ok(0);
                }
                let parts = parts.get(..filled).unwrap_or_default();
                let count = lease::send(stream.as_fd(), parts)?;
                transmission.sent(count);
                Ok(count)
            }
        }
    }
}
