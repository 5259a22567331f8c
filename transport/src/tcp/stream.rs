//! What both sides of a connection have in common: the stream of bytes in, what is to be sent, and
//! how it ends.

use std::net::SocketAddr;
use std::ptr::NonNull;

use capstan_memory::{Buffer, RawBytes};
use capstan_nvme_proto::tcp::Role;
use capstan_nvme_proto::tcp::fault::{FatalErrorStatus, Fault};
use capstan_nvme_proto::tcp::pdu::PduType;
use capstan_nvme_proto::tcp::reader::{Event, Pdu, PduReader};
use capstan_rdma::contract::CmError;

use super::limits::{DIRECT_MIN_BYTES, SETUP_US, TERM_US};
use super::outgoing::Outgoing;
use super::staging::Staging;
use crate::host::OpenError;
use crate::queue::{End, EndReason};

/// Where the next bytes of the stream belong, for a socket to put them there.
#[derive(Clone, Copy, Debug)]
pub struct SocketPlace {
    /// The first byte, in a buffer that the queue owns.
    pub base: NonNull<u8>,
    /// Bytes that belong there, at least 1.
    pub len_bytes: usize,
}

impl SocketPlace {
    /// From byte `at` of `buffer` on, `len_bytes` or what there is.
    pub(super) fn of(buffer: &mut Buffer, at: u32, len_bytes: u32) -> Option<Self> {
        let room = buffer.len_bytes().checked_sub(at)?;
        let len_bytes = room.min(len_bytes) as usize;
        let base = buffer.base().as_ptr().wrapping_add(at as usize);
        let base = NonNull::new(base).filter(|_| len_bytes > 0)?;
        Some(Self { base, len_bytes })
    }
}

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    /// Bytes are read and sent.
    Open,
    /// Nothing is read any more; the connection may be closed when all has left.
    Draining,
    /// A TermReq was sent. The peer is to close, so that it has read it before.
    Terminating,
    /// The connection is to be closed now.
    Over,
    /// It is closed.
    Closed,
}

/// How a side of the queue handles what arrives.
pub(super) trait Side {
    /// A header has come.
    fn pdu(&mut self, stream: &mut Stream, pdu: Pdu) -> Result<(), Fault>;
    /// Data of the last header has come.
    fn land(&mut self, bytes: &[u8]);
    /// All data of the last header has come, and the digest where there is one.
    fn data_end(&mut self, stream: &mut Stream, digest: Option<u32>) -> Result<(), Fault>;
    /// Nothing is read any more: buffers that waited for data are given back.
    fn ended(&mut self, reason: EndReason);
}

pub(super) struct Stream {
    role: Role,
    pub(super) reader: PduReader,
    pub(super) out: Outgoing,
    state: StreamState,
    deadline_us: Option<u64>,
    now_us: u64,
    /// Bytes that were read, and of these the ones up to the end of the last whole PDU.
    read_bytes: u64,
    whole_bytes: u64,
}

impl Stream {
    pub(super) fn new(role: Role, reader: PduReader, now_us: u64) -> Self {
        Self {
            role,
            reader,
            out: Outgoing::new(Staging::default()),
            state: StreamState::Open,
            deadline_us: Some(now_us.saturating_add(SETUP_US)),
            now_us,
            read_bytes: 0,
            whole_bytes: 0,
        }
    }

    /// Bytes that were read so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Bytes that were read up to the end of the last whole PDU.
    pub(super) fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// Data of the last header has come to its place.
    pub(super) fn data_moved(&mut self, bytes: usize) {
        self.reader.data_moved(bytes);
        self.read_bytes += bytes as u64;
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == StreamState::Open
    }

    /// Whether it has ended with a TermReq, which may not have left yet.
    pub(super) fn is_terminating(&self) -> bool {
        self.state == StreamState::Terminating
    }

    /// The set-up is complete.
    pub(super) fn set_up(&mut self) {
        if self.is_open() {
            self.deadline_us = None;
        }
    }

    pub(super) fn deadline_us(&self) -> Option<u64> {
        self.deadline_us
    }

    /// Reads all of `bytes`.
    pub(super) fn handle_bytes(&mut self, side: &mut impl Side, mut bytes: &[u8], now_us: u64) {
        self.now_us = now_us;
        while self.is_open() {
            match self.read(side, bytes) {
                Ok(Some(used)) => bytes = bytes.get(used..).unwrap_or_default(),
                Ok(None) => return,
                Err(fault) => self.fault(side, &fault),
            }
        }
    }

    /// Reads up to the next event. Gives the bytes it took, or `None` when more are needed.
    fn read(&mut self, side: &mut impl Side, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let due = usize::try_from(self.reader.data_due_bytes()).unwrap_or(usize::MAX);
        let (data, rest) = bytes.split_at(due.min(bytes.len()));
        if !data.is_empty() {
            side.land(data);
            self.data_moved(data.len());
        }
        let (used, event) = self.reader.read(rest)?;
        self.read_bytes += used as u64;
        if self.reader.is_between_pdus() {
            self.whole_bytes = self.read_bytes;
        }
        match event {
            Some(Event::Pdu(Pdu::TermReq {
                status,
                information,
            })) => self.term_req(side, status, information),
            Some(Event::Pdu(pdu)) => side.pdu(self, pdu)?,
            Some(Event::DataEnd { digest }) => side.data_end(self, digest)?,
            None => return Ok(None),
        }
        Ok(Some(data.len().saturating_add(used)))
    }

    /// The peer ends the connection.
    fn term_req(&mut self, side: &mut impl Side, status: FatalErrorStatus, information: u32) {
        self.out.clear();
        self.deadline_us = None;
        self.state = StreamState::Over;
        side.ended(EndReason::Lost(format!(
            "the peer ended it with a TermReq: FES {:02X}h ({status}), FEI {information:X}h",
            status.0
        )));
    }

    fn fault(&mut self, side: &mut impl Side, fault: &Fault) {
        let term = fault.term_req(self.role, self.reader.header());
        self.state = match &term {
            Some(term) => {
                self.out.stage(term.as_bytes());
                StreamState::Terminating
            }
            None => StreamState::Draining,
        };
        self.deadline_us = Some(self.now_us.saturating_add(TERM_US));
        let words = self.other_protocol().unwrap_or_else(|| fault.to_string());
        side.ended(EndReason::Violation(words));
    }

    /// What answers a host there, where the first bytes are not those of a PDU, in words.
    fn other_protocol(&self) -> Option<String> {
        let first = match self.reader.header() {
            [] => self.reader.begun(),
            header => header,
        };
        // The types of PDUs are 00h to 09h (NVMe over TCP Transport 1.1, section 3.6.1).
        let is_pdu = first
            .first()
            .is_none_or(|&pdu_type| pdu_type <= PduType::R2T.0);
        (self.role == Role::Host && self.whole_bytes == 0 && !is_pdu).then(|| {
            format!(
                "what answers there does not speak NVMe/TCP: it begins with \"{}\", expected an ICResp; check the address and \
                 port (on the target: `ss -ltn` shows what listens)",
                first.escape_ascii()
            )
        })
    }

    /// That no whole ICResp of `destination` has come in time, and what has.
    pub(super) fn late(&self, destination: SocketAddr, timeout_ms: u64) -> OpenError {
        let is_mute = false;
        if let Some(why) = self.other_protocol() {
            return OpenError::NoIcResp { why, is_mute };
        }
        OpenError::Connection(CmError::Silent {
            what: format!("waiting for the ICResp of {destination}"),
            timeout_ms,
            came_bytes: self.reader.begun().len(),
        })
    }

    /// Data of the last header that goes to a place of its own.
    pub(super) fn direct_due_bytes(&self) -> Option<u32> {
        let due = self.reader.data_due_bytes();
        (self.is_open() && due >= DIRECT_MIN_BYTES).then_some(due)
    }

    /// The time is `now_us`.
    pub(super) fn handle_timeout(&mut self, side: &mut impl Side, now_us: u64) {
        self.now_us = now_us;
        if self.deadline_us.is_none_or(|deadline| now_us < deadline) {
            return;
        }
        self.deadline_us = None;
        if self.is_open() {
            let why = |expected| {
                let seconds = SETUP_US / 1_000_000;
                format!(
                    "the connection is not set up, expected {expected} within {seconds} s of its begin"
                )
            };
            side.ended(match self.role {
                Role::Host => EndReason::Violation(why("ICResp")),
                // A host that does not go on has broken no rule.
                Role::Controller => EndReason::Lost(why("ICReq and Connect")),
            });
        }
        self.state = StreamState::Over;
    }

    /// This side ends the queue; `End::Now` also cuts short an end that is under way.
    pub(super) fn end(&mut self, side: &mut impl Side, how: End, now_us: u64) {
        self.now_us = now_us;
        let was_open = self.is_open();
        match (self.state, how) {
            (StreamState::Open, End::Drained) => {
                self.state = StreamState::Draining;
                self.deadline_us = Some(now_us.saturating_add(TERM_US));
            }
            (StreamState::Open | StreamState::Draining | StreamState::Terminating, End::Now) => {
                self.out.clear();
                self.state = StreamState::Over;
                self.deadline_us = None;
            }
            (StreamState::Draining | StreamState::Terminating, End::Drained)
            | (StreamState::Over | StreamState::Closed, _) => {}
        }
        if was_open {
            side.ended(EndReason::Controller);
        }
    }

    /// The peer has closed the connection, or the network has lost it.
    pub(super) fn handle_end(&mut self, side: &mut impl Side, lost: Option<String>) {
        if self.is_open() {
            side.ended(lost.map_or(EndReason::Host, EndReason::Lost));
        }
        self.deadline_us = None;
        self.out.clear();
        if self.state != StreamState::Closed {
            self.state = StreamState::Over;
        }
    }

    /// Whether the connection is to be closed now.
    pub(super) fn wants_close(&self) -> bool {
        match self.state {
            StreamState::Open | StreamState::Terminating | StreamState::Closed => false,
            StreamState::Draining => self.out.is_empty(),
            StreamState::Over => true,
        }
    }

    /// It is closed. False where it was before.
    pub(super) fn closed(&mut self) -> bool {
        let first = self.state != StreamState::Closed;
        self.state = StreamState::Closed;
        self.deadline_us = None;
        self.out.clear();
        first
    }
}

/// Whether `digest` is that of `len_bytes` of `buffer` from `at` on; true where there is none.
pub(super) fn is_intact(buffer: &Buffer, at: u32, len_bytes: u32, digest: Option<u32>) -> bool {
    let bytes: RawBytes<'_> = buffer.raw().skip(at as usize);
    digest.is_none_or(|digest| super::outgoing::crc32c_raw(bytes, len_bytes as usize) == digest)
}
