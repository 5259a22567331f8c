//! Records over TCP (RFC 5531, section 11).

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use capstan_rpcrdma::record::{RECORD_MARK_BYTES, record_mark};

use crate::PATIENCE;
use crate::client::Transport;

/// Connects to a server.
///
/// # Panics
/// When it does not answer.
#[must_use]
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_nodelay(true).expect("TCP_NODELAY");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// A record of one fragment.
///
/// # Panics
/// When the message is too long for that.
#[must_use]
pub fn record(message: &[u8]) -> Vec<u8> {
    let mark = record_mark(message.len()).expect("a short message");
    [&mark, message].concat()
}

impl Transport for TcpStream {
    fn send(&mut self, messages: &[Vec<u8>]) {
        let records: Vec<_> = messages.iter().map(|message| record(message)).collect();
        self.write_all(&records.concat()).expect("calls are taken");
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut mark = [0; RECORD_MARK_BYTES];
        self.read_exact(&mut mark).expect("a reply");
        let mark = u32::from_be_bytes(mark);
        assert_ne!(mark >> 31, 0, "replies are one fragment");
        let length = usize::try_from(mark & !(1 << 31)).expect("it fits");
        let mut message = vec![0; length];
        self.read_exact(&mut message).expect("all of a reply");
        message
    }
}
