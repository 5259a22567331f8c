//! Connections of another protocol, which come to the same listeners.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};

use crate::contract::CmId;
use crate::iwarp::wire::mpa::{FRAME_BYTES, PRIVATE_DATA_MAX};

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

/// A protocol whose connections come to the same listeners.
#[derive(Clone, Copy, Debug)]
pub struct OtherProtocol {
    /// What its streams begin with: one of these bytes, with none of which MPA begins.
    pub first_bytes: &'static [u8],
    /// How many bytes of a stream have to come before it is one that asks for something, by those
    /// that have come, of which there is at least one. More bytes do not make it fewer.
    pub asks_with_bytes: fn(&[u8]) -> usize,
}

/// Most bytes that are waited for, whatever [`OtherProtocol::asks_with_bytes`] says: as many as an
/// MPA Request has at most.
const ASKS_WITH_BYTES_MAX: usize = FRAME_BYTES + PRIVATE_DATA_MAX;

/// Connections of another protocol: the connection manager puts them here, and the owner of that
/// protocol takes them. Until as much has come as [`OtherProtocol::asks_with_bytes`] says such a
/// connection counts among those that have not asked for anything.
#[derive(Debug)]
pub struct OtherStreams {
    protocol: OtherProtocol,
    streams: RefCell<VecDeque<OtherStream>>,
}

impl OtherStreams {
    pub(in crate::iwarp) fn new(protocol: OtherProtocol) -> Self {
        Self {
            protocol,
            streams: RefCell::default(),
        }
    }

    /// Whether some have not been taken yet.
    pub(super) fn some_wait(&self) -> bool {
        !self.streams.borrow().is_empty()
    }

    /// Takes the oldest one. Until all have been taken the connection manager has no event and
    /// looks for no more connections: as many as it accepts and reads at one look wait here at
    /// most, and no request overtakes those that came before it.
    pub fn take(&self) -> Option<OtherStream> {
        self.streams.borrow_mut().pop_front()
    }

    /// How many bytes have to come of a connection whose stream begins with `bytes` before it is
    /// handed over; `None` where it is not one of the other protocol.
    pub(super) fn wanted_bytes(&self, bytes: &[u8]) -> Option<usize> {
        let first = bytes.first()?;
        let is_other = self.protocol.first_bytes.contains(first);
        is_other.then(|| (self.protocol.asks_with_bytes)(bytes).min(ASKS_WITH_BYTES_MAX))
    }

    pub(super) fn add(&self, stream: OtherStream) {
        self.streams.borrow_mut().push_back(stream);
    }
}

/// Bytes of an unknown beginning that are shown.
const SHOWN_BYTES: usize = 8;

/// What a connection begins with that is spoken by nothing here, in words, with what to do.
pub(super) fn stranger_text(bytes: &[u8]) -> String {
    let begins = |start: &[u8]| bytes.starts_with(start);
    // A record of TLS: handshake (22), and the major version 3 of every TLS (RFC 8446, section
    // 5.1).
    if begins(&[0x16, 0x03]) {
        return "it begins with a TLS ClientHello, and this listener speaks no TLS: connect without it (--tls), and keep \
                what crosses the network secret by other means"
            .to_owned();
    }
    let methods: [&[u8]; 6] = [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"OPTIONS ",
        b"CONNECT ",
    ];
    let protocol = if methods.into_iter().any(begins) || begins(b"PRI * HTTP") {
        "a request of HTTP"
    } else if begins(b"SSH-") {
        "the version of an SSH client"
    } else {
        "bytes of no protocol that is known here"
    };
    let shown = bytes.get(..SHOWN_BYTES).unwrap_or(bytes);
    format!(
        "it begins with {protocol} (\"{}\"), expected an MPA Request, or what another protocol of this listener begins \
         with; look what connects there, and to which port it should",
        shown.escape_ascii()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_is_called_what_it_is() {
        let hello = [0x16, 3, 1, 0, 0xC8, 1, 0, 0, 0xC4, 3, 3];
        for (bytes, words) in [
            (&hello[..], "a TLS ClientHello"),
            (b"GET / HTTP/1.1\r\n", "of HTTP (\"GET / HT\")"),
            (b"PRI * HTTP/2.0\r\n", "of HTTP"),
            (b"SSH-2.0-x\r\n", "an SSH client"),
            (&[0xFF, 0, 1], "known here (\"\\xff\\x00\\x01\")"),
            (b"", "known here (\"\")"),
        ] {
            let said = stranger_text(bytes);
            assert!(said.contains(words), "{words}: {said}");
        }
    }

    #[test]
    fn each_of_the_first_bytes_tells_the_other_protocol() {
        let others = OtherStreams::new(OtherProtocol {
            first_bytes: &[0, 4],
            asks_with_bytes: |bytes| 1000 * (bytes.len() - 1) + 7,
        });
        assert_eq!(others.wanted_bytes(&[0]), Some(7));
        assert_eq!(others.wanted_bytes(&[4, 1]), Some(ASKS_WITH_BYTES_MAX));
        assert_eq!(others.wanted_bytes(b"MPA"), None);
        assert_eq!(others.wanted_bytes(&[]), None);
    }
}
