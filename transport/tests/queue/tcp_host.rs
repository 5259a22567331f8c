//! A host of NVMe/TCP that is a socket, and knows no rules but the form of PDUs.

use std::collections::{HashMap, VecDeque};
use std::net::TcpStream;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::c2h::C2hData;
use capstan_nvme_proto::tcp::digest::crc32c;
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::r2t::R2t;
use capstan_nvme_proto::tcp::reader::{Event, Pdu, PduReader};
use capstan_nvme_proto::tcp::setup::{Agreed, IcRequest};
use capstan_nvme_proto::tcp::writer::PduWriter;
use zerocopy::IntoBytes;

use super::harness::PeerEnd;
use super::harness::socket::{Received, Socket, whole};
use super::over::Answers;
use super::world::DATA_BYTES;

pub(crate) struct Host {
    socket: Socket,
    request: IcRequest,
    reader: PduReader,
    setup: Option<(Agreed, PduWriter)>,
    /// The memory of all commands.
    data: Vec<u8>,
    /// Where that of a command begins, by CID.
    places: HashMap<u16, u32>,
    landing: Option<C2hData>,
    landed_bytes: u32,
    /// How much of the data of a command has come while some is missing.
    arrived_bytes: HashMap<u16, u32>,
    responses: Vec<Cqe>,
    /// R2Ts that are not answered, and how many there ever were at once.
    asked: VecDeque<R2t>,
    pub(crate) most_asked: usize,
    /// What a TermReq of the controller has said: FES and FEI.
    pub(crate) accused: Option<(u16, u32)>,
    pub(crate) reads: bool,
    pub(crate) answers: Answers,
}

impl Host {
    /// Sends ICReq.
    pub(crate) fn new(stream: TcpStream, request: IcRequest) -> Self {
        let mut host = Self {
            socket: Socket::new(stream, Role::Host),
            request,
            reader: PduReader::host(request),
            setup: None,
            data: vec![0; DATA_BYTES as usize],
            places: HashMap::new(),
            landing: None,
            landed_bytes: 0,
            arrived_bytes: HashMap::new(),
            responses: Vec::new(),
            asked: VecDeque::new(),
            most_asked: 0,
            accused: None,
            reads: true,
            answers: Answers::All,
        };
        host.write(request.encode().as_bytes());
        host
    }

    pub(crate) fn is_set_up(&self) -> bool {
        self.setup.is_some()
    }

    pub(crate) fn turn(&mut self) {
        if self.reads {
            self.receive();
            self.answer();
        }
        self.write(&[]);
    }

    fn receive(&mut self) {
        let mut bytes = vec![0; 65_536];
        // What the controller has closed the host has closed, too.
        while let Received::Bytes(count) = self.socket.receive(&mut bytes) {
            self.take(&bytes[..count]);
        }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        loop {
            let due = usize::try_from(self.reader.data_due_bytes()).expect("64 bits");
            let (data, behind) = bytes.split_at(due.min(bytes.len()));
            self.land(data);
            self.reader.data_moved(data.len());
            let read = self.reader.read(behind);
            let (used, event) = read.expect("what the controller sends is allowed");
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
            Pdu::IcResp(response) => {
                let agreed = Agreed::new(&self.request, &response);
                self.reader.agree(&agreed);
                self.setup = Some((agreed, PduWriter::new(Role::Host, &agreed)));
            }
            Pdu::CapsuleResp(cqe) => {
                let cid = cqe.cid.get();
                assert!(
                    !self.arrived_bytes.contains_key(&cid),
                    "a response before the end of the data of command {cid}"
                );
                self.responses.push(cqe);
            }
            Pdu::C2hData(data) => {
                let before = self.arrived_bytes.get(&data.cid).copied();
                assert_eq!(data.offset_bytes, before.unwrap_or(0), "{data:?}");
                self.landed_bytes = 0;
                self.landing = Some(data);
            }
            Pdu::R2t(r2t) => {
                self.asked.push_back(r2t);
                self.most_asked = self.most_asked.max(self.asked.len());
            }
            Pdu::TermReq {
                status,
                information,
            } => self.accused = Some((status.0, information)),
            other => panic!("{other:?} to a host"),
        }
    }

    /// The bytes of the host's memory that a command has at `offset_bytes`.
    fn memory(&mut self, cid: u16, offset_bytes: u32, len_bytes: u32) -> &mut [u8] {
        let place = self.places.get(&cid).expect("a command that has memory");
        let start = (place + offset_bytes) as usize;
        &mut self.data[start..start + len_bytes as usize]
    }

    fn land(&mut self, bytes: &[u8]) {
        let Some(data) = self.landing else {
            return;
        };
        let len_bytes = u32::try_from(bytes.len()).expect("a few");
        let offset_bytes = data.offset_bytes + self.landed_bytes;
        self.memory(data.cid, offset_bytes, len_bytes)
            .copy_from_slice(bytes);
        self.landed_bytes += len_bytes;
    }

    fn data_end(&mut self, digest: Option<u32>) {
        let data = self.landing.take().expect("data has come");
        let C2hData {
            cid,
            offset_bytes,
            length_bytes,
            ..
        } = data;
        let bytes = self.memory(cid, offset_bytes, length_bytes);
        assert!(digest.is_none_or(|digest| digest == crc32c(bytes)));
        if data.last {
            self.arrived_bytes.remove(&cid);
        } else {
            self.arrived_bytes.insert(cid, offset_bytes + length_bytes);
        }
        if data.success {
            assert!(data.last, "SUCCESS before the end of the data");
            let sqhd = Cqe::SQHD_FLOW_CONTROL_DISABLED;
            self.responses.push(Cqe::new(cid, sqhd, Status::SUCCESS, 0));
        }
    }

    /// Sends the data that is asked for.
    fn answer(&mut self) {
        let Some((agreed, writer)) = self.setup else {
            return;
        };
        while let Some(r2t) = self.asked.pop_front() {
            let mut at = 0;
            while at < r2t.length_bytes {
                let length_bytes = (r2t.length_bytes - at).min(agreed.maxh2cdata_bytes);
                let data = H2cData {
                    cid: r2t.cid,
                    ttag: r2t.ttag,
                    offset_bytes: r2t.offset_bytes + at,
                    length_bytes,
                    last: at + length_bytes == r2t.length_bytes,
                };
                at += length_bytes;
                let bytes = self.memory(r2t.cid, data.offset_bytes, length_bytes);
                let pdu = whole(&writer.h2c_data(&data), bytes, false);
                if self.answers == Answers::Half {
                    self.reads = false;
                    return self.write(&pdu[..pdu.len() / 2]);
                }
                self.write(&pdu);
            }
        }
    }

    /// A command capsule.
    pub(crate) fn capsule(&self, capsule: &[u8]) -> Vec<u8> {
        let (_, writer) = self.setup.expect("ICResp has come");
        let (sqe, data) = Sqe::from_capsule(capsule).expect("an SQE");
        let len_bytes = u32::try_from(data.len()).expect("a few");
        whole(&writer.capsule_cmd(sqe, len_bytes), data, false)
    }

    /// H2CData that says so, with zeroes.
    pub(crate) fn h2c_data(&self, data: &H2cData) -> Vec<u8> {
        let (_, writer) = self.setup.expect("ICResp has come");
        whole(
            &writer.h2c_data(data),
            &vec![0; data.length_bytes as usize],
            false,
        )
    }

    /// Sends as much as the socket takes; the others go on in [`Host::turn`].
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.socket.write(bytes);
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.socket.unsent.is_empty()
    }

    pub(crate) fn ends(&mut self, how: PeerEnd) {
        self.socket.ends(how);
    }

    pub(crate) fn offer(&mut self, cid: u16, at: u32) {
        self.places.insert(cid, at);
    }

    pub(crate) fn put_data(&mut self, at: u32, bytes: &[u8]) {
        self.data[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn data(&self, at: u32, len_bytes: u32) -> Vec<u8> {
        self.data[at as usize..][..len_bytes as usize].to_vec()
    }

    pub(crate) fn take_responses(&mut self) -> Vec<Cqe> {
        std::mem::take(&mut self.responses)
    }
}
