//! Records over TCP (RFC 5531, section 11).

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd as _;

use capstan_rpcrdma::record::{RECORD_MARK_BYTES, record_mark};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};

use crate::PATIENCE;
use crate::client::Transport;

/// Connects to a server.
///
/// # Panics
/// When it does not answer.
#[must_use]
pub fn connect(address: SocketAddr) -> TcpStream {
    with_timeouts(TcpStream::connect(address).expect("a connection"))
}

fn with_timeouts(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).expect("TCP_NODELAY");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Connects from an address of this machine: another one is another client to a server.
///
/// # Panics
/// When there is no such address, or the server does not answer.
#[must_use]
pub fn connect_from(source: Ipv4Addr, address: SocketAddrV4) -> TcpStream {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
    let source = SockaddrIn::from(SocketAddrV4::new(source, 0));
    bind(socket.as_raw_fd(), &source).expect("an address of this machine");
    socket::connect(socket.as_raw_fd(), &SockaddrIn::from(address)).expect("a connection");
    with_timeouts(TcpStream::from(socket))
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
