//! A connection of a controller of NVMe/TCP that knows no rules but the form of PDUs.

use std::net::TcpStream;

use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::digest::crc32c;
use capstan_nvme_proto::tcp::reader::{Event, Pdu, PduReader};
use capstan_nvme_proto::tcp::setup::{Agreed, IcResponse};
use capstan_nvme_proto::tcp::writer::PduWriter;
use zerocopy::IntoBytes;

use super::harness::PeerEnd;
use super::harness::socket::{Received, Socket};
use super::over::Command;

const IN_CAPSULE_BYTES: u32 = 8192;

/// Data of the host that comes.
enum Landing {
    /// Of a capsule.
    Capsule(Command),
    /// That a pull asked for, and whether it is the last of it.
    Pull { bytes: Vec<u8>, is_last: bool },
}

pub(crate) struct Peer {
    pub(crate) qid: u16,
    socket: Socket,
    response: IcResponse,
    /// What is agreed, once ICReq has come.
    pub(crate) setup: Option<(Agreed, PduWriter)>,
    reader: PduReader,
    landing: Option<Landing>,
    /// What has come for the pull that is under way, and where the next byte of it is due.
    pull: Vec<u8>,
    pub(crate) due_at_bytes: u32,
    pub(crate) commands: Vec<Command>,
    pub(crate) pulled: Vec<Vec<u8>>,
    /// FES and FEI of the TermReq that the host has sent.
    pub(crate) accusation: Option<(u16, u32)>,
    /// The host has ended the connection.
    pub(crate) has_ended: bool,
    /// The connection was reset, and not closed.
    pub(crate) was_reset: bool,
}

impl Peer {
    /// Answers ICReq with `response`.
    pub(crate) fn new(qid: u16, stream: TcpStream, response: IcResponse) -> Self {
        Self {
            qid,
            socket: Socket::new(stream, Role::Controller),
            response,
            setup: None,
            reader: PduReader::controller(IN_CAPSULE_BYTES),
            landing: None,
            pull: Vec::new(),
            due_at_bytes: 0,
            commands: Vec::new(),
            pulled: Vec::new(),
            accusation: None,
            has_ended: false,
            was_reset: false,
        }
    }

    pub(crate) fn receive(&mut self) {
        let mut bytes = vec![0; 65_536];
        loop {
            match self.socket.receive(&mut bytes) {
                Received::Bytes(count) => self.take(&bytes[..count]),
                Received::Nothing => return,
                Received::Closed => self.has_ended = true,
                Received::Reset => {
                    self.was_reset = true;
                    self.has_ended = true;
                }
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        loop {
            let due = usize::try_from(self.reader.data_due_bytes()).expect("64 bits");
            let (data, behind) = bytes.split_at(due.min(bytes.len()));
            match &mut self.landing {
                Some(Landing::Capsule(command)) => command.data.extend(data),
                Some(Landing::Pull { bytes, .. }) => bytes.extend(data),
                None => assert!(data.is_empty(), "data of nothing"),
            }
            self.reader.data_moved(data.len());
            let read = self.reader.read(behind);
            let (used, event) = read.expect("what the host sends is allowed");
            bytes = &behind[used..];
            match event {
                Some(Event::Pdu(pdu)) => self.pdu(pdu),
                Some(Event::DataEnd { digest }) => self.data_end(digest),
                None if bytes.is_empty() => return,
                None => {}
            }
        }
    }

    fn pdu(&mut self, pdu: Pdu) {
        match pdu {
            Pdu::IcReq(request) => {
                self.response.digests &= request.digests;
                let agreed = Agreed::new(&request, &self.response);
                self.reader.agree(&agreed);
                self.setup = Some((agreed, PduWriter::new(Role::Controller, &agreed)));
                let response = self.response.encode();
                self.write(response.as_bytes());
            }
            Pdu::CapsuleCmd {
                sqe,
                in_capsule_bytes,
            } => {
                let command = Command {
                    qid: self.qid,
                    sqe,
                    data: Vec::new(),
                };
                if in_capsule_bytes == 0 {
                    self.commands.push(command);
                } else {
                    self.landing = Some(Landing::Capsule(command));
                }
            }
            Pdu::H2cData(data) => {
                assert_eq!(data.offset_bytes, self.due_at_bytes, "{data:?}");
                self.due_at_bytes += data.length_bytes;
                self.landing = Some(Landing::Pull {
                    bytes: Vec::new(),
                    is_last: data.last,
                });
            }
            Pdu::TermReq {
                status,
                information,
            } => self.accusation = Some((status.0, information)),
            other => panic!("{other:?} to a controller"),
        }
    }

    fn data_end(&mut self, digest: Option<u32>) {
        let fits = |bytes: &[u8]| digest.is_none_or(|digest| digest == crc32c(bytes));
        match self.landing.take() {
            Some(Landing::Capsule(command)) => {
                assert!(fits(&command.data), "the host sends what it has");
                self.commands.push(command);
            }
            Some(Landing::Pull { bytes, is_last }) => {
                assert!(fits(&bytes), "the host sends what it has");
                self.pull.extend(bytes);
                if is_last {
                    self.pulled.push(std::mem::take(&mut self.pull));
                }
            }
            None => panic!("the end of no data"),
        }
    }

    /// Sends as much as the socket takes; what is left goes on with the next call.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        if !self.socket.write(bytes) {
            self.socket.stream = None;
            self.has_ended = true;
        }
    }

    pub(crate) fn ends(&mut self, how: PeerEnd) {
        self.socket.ends(how);
    }
}
