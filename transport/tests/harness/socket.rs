//! A socket of NVMe/TCP whose user knows no rules but the form of PDUs.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::digest::crc32c;
use capstan_nvme_proto::tcp::pdu::TermReq;
use capstan_nvme_proto::tcp::writer::PduHead;
use nix::sys::socket::{setsockopt, sockopt};
use zerocopy::IntoBytes;

use super::PeerEnd;

/// FES of Invalid PDU Header Field, which is sent of nothing in particular.
const HEADER_FIELD: u16 = 1;

pub(crate) struct Socket {
    /// `None` when this side has ended it, or seen it end.
    pub(crate) stream: Option<TcpStream>,
    role: Role,
    pub(crate) unsent: VecDeque<u8>,
}

/// What a look at a socket has found.
pub(crate) enum Received {
    Bytes(usize),
    Nothing,
    /// The other side has closed it. It is closed now.
    Closed,
    /// The other side has reset it. It is closed now.
    Reset,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, role: Role) -> Self {
        stream.set_nonblocking(true).expect("a socket");
        // What is sent has arrived then.
        stream.set_nodelay(true).expect("a socket");
        Self {
            stream: Some(stream),
            role,
            unsent: VecDeque::new(),
        }
    }

    pub(crate) fn receive(&mut self, bytes: &mut [u8]) -> Received {
        let Some(stream) = &mut self.stream else {
            return Received::Nothing;
        };
        let gone = match stream.read(bytes) {
            Ok(0) => Received::Closed,
            Ok(count) => return Received::Bytes(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Nothing,
            Err(_) => Received::Reset,
        };
        self.stream = None;
        gone
    }

    /// Sends as much as the socket takes; what is left goes on with the next call. `false` where it
    /// takes nothing any more.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> bool {
        self.unsent.extend(bytes);
        while let Some(stream) = &mut self.stream
            && !self.unsent.is_empty()
        {
            match stream.write(self.unsent.make_contiguous()) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => {
                    self.unsent.clear();
                    return false;
                }
            }
        }
        true
    }

    pub(crate) fn ends(&mut self, how: PeerEnd) {
        if how == PeerEnd::Terminates {
            self.write(TermReq::new(self.role, HEADER_FIELD, 0, 0).as_bytes());
        }
        let Some(stream) = &self.stream else {
            return;
        };
        match how {
            PeerEnd::Closes => {
                // The other side may have closed it already.
                let _ = stream.shutdown(Shutdown::Write);
            }
            PeerEnd::Terminates => {}
            PeerEnd::Resets => {
                let at_once = libc::linger {
                    l_onoff: 1,
                    l_linger: 0,
                };
                setsockopt(stream, sockopt::Linger, &at_once).expect("a socket");
                self.stream = None;
            }
        }
    }
}

/// A PDU: its head, its data, and the digest of that, which `corrupt` data does not fit.
pub(crate) fn whole(head: &PduHead, data: &[u8], corrupt: bool) -> Vec<u8> {
    let mut pdu = [head.as_bytes(), data].concat();
    if head.has_data_digest() {
        pdu.extend((crc32c(data) ^ u32::from(corrupt)).to_le_bytes());
    }
    pdu
}
