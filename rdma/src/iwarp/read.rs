//! RDMA Reads: those this side has started, and those it serves.

use std::collections::VecDeque;

use zerocopy::network_endian::{U16, U32, U64};

use super::wire::ddp::{
    Control, Opcode, QN_READ_REQUEST, READ_REQUEST_BYTES, ReadRequest, Segment, UntaggedHeader,
};
use crate::contract::Sge;

/// A Read this side has asked for.
#[derive(Clone, Copy)]
pub(super) struct Outstanding {
    /// Position in the send queue; `None` for the Ready To Receive of the set-up.
    pub position: Option<u32>,
    /// Sink STag given to the peer: it names this Read and opens nothing.
    pub stag: u32,
    /// Where the data goes.
    pub sink: Sge,
    /// Bytes that have arrived.
    pub received_bytes: u32,
}

/// A Read the peer has asked for.
#[derive(Clone, Copy)]
pub(super) struct Response {
    pub request: ReadRequest,
    pub msn: u32,
}

impl Response {
    /// The segment that asked, rebuilt for a Terminate.
    pub(super) fn segment(&self) -> Segment {
        Segment::Untagged(request_header(self.msn))
    }
}

/// Both directions of one queue pair.
pub(super) struct Reads {
    /// In the order asked, which is the order of the answers (RFC 5040 §5.5).
    pub outstanding: VecDeque<Outstanding>,
    /// Most of them at once.
    pub ord: usize,
    /// To be answered in order.
    pub responses: VecDeque<Response>,
    /// Most of them at once.
    pub ird: usize,
    /// Index of the STags given as sinks.
    pub sink: usize,
}

impl Reads {
    pub(super) fn new(sink: usize) -> Self {
        Self {
            outstanding: VecDeque::new(),
            ord: 0,
            responses: VecDeque::new(),
            ird: 0,
            sink,
        }
    }

    /// Sets the negotiated depths and reserves memory for them.
    pub(super) fn set_depths(&mut self, ord: u8, ird: u8) {
        self.ord = usize::from(ord);
        self.ird = usize::from(ird);
        self.outstanding.reserve(self.ord);
        self.responses.reserve(self.ird);
    }
}

/// The DDP header of a Read Request.
pub(super) fn request_header(msn: u32) -> UntaggedHeader {
    const ULPDU: u16 = 46;
    const _: () = assert!(READ_REQUEST_BYTES == ULPDU as usize + 2);
    UntaggedHeader {
        ulpdu_length: U16::new(ULPDU),
        control: Control::new(false, true, Opcode::READ_REQUEST),
        invalidate_stag: U32::new(0),
        qn: U32::new(QN_READ_REQUEST),
        msn: U32::new(msn),
        mo: U32::new(0),
    }
}

/// The RDMAP header of a Read Request.
pub(super) fn request(
    stag: u32,
    length_bytes: u32,
    source_stag: u32,
    source_to: u64,
) -> ReadRequest {
    ReadRequest {
        sink_stag: U32::new(stag),
        // The sink's tagged offsets count from 0: the peer need not know local addresses.
        sink_to: U64::new(0),
        length_bytes: U32::new(length_bytes),
        source_stag: U32::new(source_stag),
        source_to: U64::new(source_to),
    }
}
