//! The wires under test, and what they differ in.

use std::net::SocketAddr;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::sqe::Sqe;

use super::harness::{PeerEnd, Rdma};

/// A wire under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// RDMA between two machines, in virtual time.
    Loopback,
    /// User-space iWARP over sockets.
    Sockets,
    /// The same through memory that both ends have.
    SharedMemory,
    /// RDMA through the device under test.
    Device,
    /// NVMe/TCP without digests.
    Tcp,
    /// NVMe/TCP with digests, padding, and a controller that takes 4 KiB per PDU.
    TcpWithDigests,
}

impl Over {
    /// Of RDMA, what it goes through.
    pub(crate) fn rdma(self) -> Option<Rdma> {
        match self {
            Self::Loopback => Some(Rdma::Loopback),
            Self::Sockets => Some(Rdma::Sockets),
            Self::SharedMemory => Some(Rdma::SharedMemory),
            Self::Device => Some(Rdma::Device),
            Self::Tcp | Self::TcpWithDigests => None,
        }
    }

    pub(crate) fn is_tcp(self) -> bool {
        self.rdma().is_none()
    }

    /// Whether a case can be tried over this wire, which it says where it cannot: `why`.
    pub(crate) fn can(self, is_able: bool, why: &str) -> bool {
        if !is_able {
            eprintln!("SKIPPED over {self:?}: {why}");
        }
        is_able
    }
}

/// A command, as it came to the controller.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) qid: u16,
    pub(crate) sqe: Sqe,
    pub(crate) data: Vec<u8>,
}

/// What the controller does with a host that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    Accepts,
    Refuses,
    /// It does nothing.
    Waits,
}

/// What the refusal of a connection says over RDMA.
pub(crate) const REFUSAL: &[u8] = b"not you";

/// A controller that knows no rules. What it is asked to send over a connection that has ended is
/// dropped.
pub(crate) trait Controller {
    /// Where it listens.
    fn address(&self) -> SocketAddr;
    /// Where nothing listens.
    fn silent_address(&self) -> SocketAddr;
    fn now_us(&self) -> u64;
    /// The next connection is of this queue, and is received so.
    fn expects(&mut self, qid: u16, welcome: Welcome);
    /// Goes on once.
    fn turn(&mut self);
    /// Whether it looks at what comes.
    fn reads(&mut self, reads: bool);
    /// Commands that have come since this was last asked.
    fn take_commands(&mut self) -> Vec<Command>;

    /// Sends data of a command, from `offset_bytes` of its memory on.
    fn push(&mut self, command: &Command, offset_bytes: u32, bytes: &[u8], is_last: bool);
    /// Sends the beginning of its data, over NVMe/TCP the first half of the PDU.
    fn push_half(&mut self, command: &Command, bytes: &[u8]);
    /// Asks for data of a command.
    fn pull(&mut self, command: &Command, offset_bytes: u32, len_bytes: u32);
    /// The data that has come since this was last asked, one piece for each pull.
    fn take_pulled(&mut self) -> Vec<Vec<u8>>;
    /// Sends a response, which closes the key of the command's memory where that `invalidates`.
    fn respond(&mut self, command: &Command, cqe: &Cqe, invalidates: bool);
    /// The data that is sent from now on does not fit its digests.
    fn corrupts_data(&mut self) {
        panic!("only NVMe/TCP has digests");
    }

    /// What the host does not allow, while `read` takes data and `write` has some: what each is
    /// called, and its bytes.
    fn offences(&self, read: &Command, write: &Command) -> Vec<(&'static str, Vec<u8>)>;
    /// Sends a message, or bytes of PDUs.
    fn send_raw(&mut self, qid: u16, bytes: &[u8]);
    fn ends(&mut self, qid: u16, how: PeerEnd);
    /// FES and FEI of the TermReq in which the host has said that this side has broken the rules.
    fn accusation(&self, _: u16) -> Option<(u16, u32)> {
        panic!("only NVMe/TCP has such a message");
    }
    /// Whether the host has ended the connection.
    fn has_ended(&self, _: u16) -> bool {
        panic!("only NVMe/TCP is asked");
    }
    /// Whether the host has reset its TCP connection, which drops what the kernel has not sent.
    fn was_reset(&self, _: u16) -> bool {
        panic!("only NVMe/TCP is asked");
    }
}
