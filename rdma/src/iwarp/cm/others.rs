//! Connections of another protocol, which come to the same listeners.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};

use crate::contract::CmId;

/// A connection to a listener whose first byte tells that it speaks another protocol than MPA.
#[derive(Debug)]
pub struct OtherStream {
    /// The listener that it came to.
    pub listener: CmId,
    /// Its socket.
    pub stream: TcpStream,
    /// The bytes that were read from it so far.
    pub bytes: Vec<u8>,
    /// This side's address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

/// Connections of another protocol, by the first byte of its streams: the connection manager puts
/// them here, and the owner of that protocol takes them. Until its first byte has come such a
/// connection counts among those that have not asked for anything.
#[derive(Debug)]
pub struct OtherStreams {
    first_byte: u8,
    streams: RefCell<VecDeque<OtherStream>>,
}

impl OtherStreams {
    pub(in crate::iwarp) fn new(first_byte: u8) -> Self {
        Self {
            first_byte,
            streams: RefCell::default(),
        }
    }

    /// Takes the oldest one.
    pub fn take(&self) -> Option<OtherStream> {
        self.streams.borrow_mut().pop_front()
    }

    /// Whether a connection whose stream begins with `bytes` is one of the other protocol.
    pub(super) fn begins(&self, bytes: &[u8]) -> bool {
        bytes.first() == Some(&self.first_byte)
    }

    pub(super) fn add(&self, stream: OtherStream) {
        self.streams.borrow_mut().push_back(stream);
    }
}
