//! A host over NVMe/TCP whose bytes a test sends as it likes: without digests, and in parts.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use capstan_nvme_proto::command::FabricsCommand;
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::fabrics::{
    Cattr, Connect, ConnectParameters, ConnectResponse, PropertyGet, PropertySet,
};
use capstan_nvme_proto::property::{Cc, Csts, Property};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use zerocopy::{FromBytes, IntoBytes};

use crate::attack::tcp;
use crate::wire_host::connect_data;

/// How long a target may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// `ICReq` PDU (NVMe over TCP Transport 1.1, section 3.6.2.2).
pub const ICREQ: [u8; 128] = {
    let mut bytes = [0; 128];
    (bytes[2], bytes[4]) = (128, 128);
    bytes
};
const CAPSULE_CMD: u8 = 4;
const CAPSULE_RESP: u8 = 5;
const H2C_DATA: u8 = 6;
const COMMON_BYTES: usize = 8;
/// Header of H2CData and R2T.
const TRANSFER_BYTES: u8 = 24;

/// A command capsule PDU with `data` in it.
///
/// # Panics
/// When it is too long for a PDU.
#[must_use]
pub fn capsule(sqe: &Sqe, data: &[u8]) -> Vec<u8> {
    let head = 72_u8;
    let length = u32::try_from(usize::from(head) + data.len()).expect("a PDU");
    let pdo = if data.is_empty() { 0 } else { head };
    let mut bytes = vec![CAPSULE_CMD, 0, head, pdo];
    bytes.extend(length.to_le_bytes());
    bytes.extend(sqe.as_bytes());
    bytes.extend(data);
    bytes
}

/// Where data of `len_bytes` is: in the capsule, or where the transport moves it.
#[must_use]
pub const fn sgl(len_bytes: u32, in_capsule: bool) -> Sgl {
    if in_capsule {
        Sgl::InCapsule {
            offset_bytes: 0,
            length_bytes: len_bytes,
        }
    } else {
        Sgl::Transport {
            length_bytes: len_bytes,
        }
    }
}

/// One queue.
pub struct RawQueue {
    /// Its socket.
    pub stream: TcpStream,
}

impl RawQueue {
    /// A connection from `source`, and its ICReq and ICResp.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn set_up(target: SocketAddr, source: Ipv4Addr) -> io::Result<Self> {
        let stream = tcp(target, source)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut queue = Self { stream };
        queue.stream.write_all(&ICREQ)?;
        queue.pdu()?;
        Ok(queue)
    }

    /// The next PDU.
    ///
    /// # Errors
    /// Those of the socket, among them its end.
    pub fn pdu(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; COMMON_BYTES];
        self.stream.read_exact(&mut bytes)?;
        let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        bytes.resize(length as usize, 0);
        self.stream.read_exact(&mut bytes[COMMON_BYTES..])?;
        Ok(bytes)
    }

    /// Sends a command.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn send(&mut self, sqe: &Sqe, data: &[u8]) -> io::Result<()> {
        self.stream.write_all(&capsule(sqe, data))
    }

    /// The next response, whatever data comes before it.
    ///
    /// # Errors
    /// As [`RawQueue::pdu`].
    ///
    /// # Panics
    /// When it is no response.
    pub fn response(&mut self) -> io::Result<Cqe> {
        loop {
            let pdu = self.pdu()?;
            if pdu[0] == CAPSULE_RESP {
                let cqe = Cqe::read_from_bytes(&pdu[COMMON_BYTES..]);
                return Ok(cqe.expect("a response"));
            }
        }
    }

    /// Waits for an R2T and sends the header of all the data that it asks for. How many bytes of
    /// data that is.
    ///
    /// # Errors
    /// As [`RawQueue::pdu`].
    pub fn begin_data(&mut self) -> io::Result<u32> {
        let r2t = self.pdu()?;
        let length_bytes = u32::from_le_bytes([r2t[16], r2t[17], r2t[18], r2t[19]]);
        // LAST_PDU.
        let mut head = vec![H2C_DATA, 4, TRANSFER_BYTES, TRANSFER_BYTES];
        head.extend((u32::from(TRANSFER_BYTES) + length_bytes).to_le_bytes());
        // CCCID and TTAG, offset and length, as they are in the R2T.
        head.extend(&r2t[COMMON_BYTES..COMMON_BYTES + 12]);
        head.extend([0; 4]);
        self.stream.write_all(&head)?;
        Ok(length_bytes)
    }

    fn run(&mut self, sqe: &Sqe, data: &[u8]) -> Cqe {
        self.send(sqe, data).expect("sent");
        let cqe = self.response().expect("a response");
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        cqe
    }

    fn connect(&mut self, connect: Connect, parameters: &ConnectParameters) -> Cqe {
        let data = parameters.encode();
        let data = data.as_bytes();
        let length_bytes = u32::try_from(data.len()).expect("1024 bytes");
        let sqe = FabricsCommand::Connect(connect).encode(0, sgl(length_bytes, true));
        self.run(&sqe, data)
    }
}

/// A host with an Admin queue and I/O queue 1, which has no SQ flow control.
pub struct RawHost {
    /// The Admin queue.
    pub admin: RawQueue,
    /// The I/O queue.
    pub io: RawQueue,
}

impl RawHost {
    /// Connects as host `number` from `source`, with an I/O queue of `entries`.
    ///
    /// # Errors
    /// Those of the sockets.
    ///
    /// # Panics
    /// When the target refuses anything.
    pub fn connect(
        target: SocketAddr,
        source: Ipv4Addr,
        number: u8,
        entries: u16,
    ) -> io::Result<Self> {
        let mut parameters = connect_data(number);
        let mut connect = Connect {
            qid: 0,
            sqsize: 32,
            cattr: Cattr(0),
            kato_ms: 0,
        };
        let mut admin = RawQueue::set_up(target, source)?;
        let cqe = admin.connect(connect, &parameters);
        parameters.cntlid = ConnectResponse::decode(cqe.dw0.get()).cntlid;
        let enable = PropertySet {
            property: Property::CC,
            size: Property::CC.size().expect("CC has a size"),
            value: Cc::ENABLE_NVM.encode().into(),
        };
        let enable = FabricsCommand::PropertySet(enable).encode(0, Sgl::EMPTY);
        admin.run(&enable, &[]);
        let look = PropertyGet {
            property: Property::CSTS,
            size: Property::CSTS.size().expect("CSTS has a size"),
        };
        let look = FabricsCommand::PropertyGet(look).encode(0, Sgl::EMPTY);
        let begin = Instant::now();
        while !Csts::decode(admin.run(&look, &[]).dw0.get()).rdy {
            assert!(begin.elapsed() < PATIENCE, "the controller is not ready");
        }
        // SQ flow control disabled.
        (connect.qid, connect.sqsize, connect.cattr) = (1, entries.into(), Cattr(1 << 2));
        let mut io = RawQueue::set_up(target, source)?;
        io.connect(connect, &parameters);
        Ok(Self { admin, io })
    }
}
