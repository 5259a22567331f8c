//! The wires under test, and what they differ in.

use capstan_transport::{EndReason, FenceNumber, HostMemory, Queue, Tag};

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
    /// NVMe/TCP as Linux asks for it: without digests, one R2T per command, SQ flow control.
    Tcp,
    /// NVMe/TCP with digests and padding, pulls in parts of which several are asked for at once,
    /// and SUCCESS in the place of responses.
    TcpInParts,
}

/// What some wires can beside what all of them can. The suite asks for nothing else when it tells
/// one from the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// It copies what is pushed during the call.
    pub(crate) copies: bool,
    /// It pushes memory that is held, from where it is.
    pub(crate) holds: bool,
    /// The data of a command can be in several places of the host.
    pub(crate) has_lists: bool,
    /// It is full when the host does not read.
    pub(crate) fills: bool,
    /// A response that nothing waits for is over once it has taken it.
    pub(crate) releases_at_once: bool,
    /// What was responded before an end in order arrives.
    pub(crate) drains: bool,
    /// What is pushed and not responded to comes back before the last event of the queue; the
    /// others keep it until they are dropped.
    pub(crate) returns_unanswered: bool,
    /// The host sends PDUs, which it can leave in the middle, and a TermReq.
    pub(crate) has_pdus: bool,
}

impl Over {
    /// Of RDMA, what it goes through.
    pub(crate) fn rdma(self) -> Option<Rdma> {
        match self {
            Self::Loopback => Some(Rdma::Loopback),
            Self::Sockets => Some(Rdma::Sockets),
            Self::SharedMemory => Some(Rdma::SharedMemory),
            Self::Device => Some(Rdma::Device),
            Self::Tcp | Self::TcpInParts => None,
        }
    }

    /// Whether a case can be tried over this wire, which it says where it cannot: `why`.
    pub(crate) fn can(self, is_able: bool, why: &str) -> bool {
        if !is_able {
            eprintln!("SKIPPED over {self:?}: {why}");
        }
        is_able
    }

    pub(crate) fn abilities(self) -> Abilities {
        let is_tcp = matches!(self, Self::Tcp | Self::TcpInParts);
        Abilities {
            copies: is_tcp || self == Self::SharedMemory,
            // Data with digests is copied.
            holds: matches!(self, Self::Tcp | Self::Sockets),
            has_lists: !is_tcp,
            fills: is_tcp || self == Self::Sockets,
            releases_at_once: !matches!(self, Self::Loopback | Self::Device),
            drains: is_tcp,
            returns_unanswered: is_tcp,
            has_pdus: is_tcp,
        }
    }
}

/// What has happened on the queue. The data of a capsule has been given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Capsule { sqe: Vec<u8>, data: Vec<u8> },
    Pulled(Tag),
    Released(Tag),
    Room,
    Ended(EndReason),
    Fenced(FenceNumber),
    Quiesced,
}

/// How the controller ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalEnd {
    /// In order.
    Closes,
    /// At once.
    Aborts,
}

/// How far the host answers what the controller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    All,
    /// It stops in the middle of the data, where it has PDUs; the others say nothing.
    Half,
}

/// What the wire has for its user beside events.
#[derive(Debug)]
pub(crate) enum LocalEvent {
    Of(capstan_transport::Event),
    /// The connection is gone, as its manager says.
    Gone,
}

/// What is different from wire to wire: the controller's wire, and a host that knows no rules.
pub(crate) trait Ends {
    /// The memory of the controller.
    fn pool(&self) -> &capstan_memory::Pool;
    /// Bytes of it that are in use while no command is.
    fn resting_bytes(&self) -> usize;
    fn poll(&mut self, queue: &mut Option<Queue>);
    fn next_event(&mut self, queue: &mut Option<Queue>) -> Option<LocalEvent>;
    /// The end of a turn.
    fn flush(&mut self, queue: &mut Option<Queue>);
    fn has_fences(&self) -> bool;
    fn end(&mut self, queue: &mut Queue, how: LocalEnd);
    fn is_empty(&self) -> bool;
    /// As much time goes by as a wire waits for a host that does nothing.
    fn wait_long(&mut self);

    fn turn_host(&mut self);
    /// The host sends a command capsule, and knows that it has left.
    fn send(&mut self, capsule: &[u8]);
    /// What the host must not send: what each is called, and its bytes.
    fn offences(&self) -> Vec<(&'static str, Vec<u8>)>;
    /// The host sends bytes of a message or of PDUs.
    fn send_raw(&mut self, bytes: &[u8]);
    /// The host sends the first half of a capsule ([`Abilities::has_pdus`]).
    fn send_half(&mut self, _: &[u8]) {
        panic!("a message is sent as a whole");
    }
    /// FES and FEI of the TermReq that has come to the host.
    fn accused(&self) -> Option<(u16, u32)> {
        None
    }
    /// How many R2Ts were outstanding at once.
    fn most_asked(&self) -> usize {
        0
    }
    fn host_ends(&mut self, how: PeerEnd);
    /// Whether the host looks at what comes.
    fn host_reads(&mut self, reads: bool);
    fn host_answers(&mut self, answers: Answers);
    /// The host has `parts` of its data (first byte, bytes) for the command `cid`.
    fn offer(&mut self, cid: u16, parts: &[(u32, u32)]) -> HostMemory;
    fn put_data(&mut self, at: u32, bytes: &[u8]);
    fn data(&self, at: u32, len_bytes: u32) -> Vec<u8>;
    /// The responses that have come since this was last asked.
    fn take_responses(&mut self) -> Vec<capstan_nvme_proto::cqe::Cqe>;
}
