//! The core of a connection: RDMAP over DDP over MPA as a state machine without input and output.
//!
//! It sees no socket, no other connection and no clock. The driver moves the bytes and says what
//! has happened; the core says what is to be done next:
//!
//! * [`IwarpCore::poll_receive`]: where the next bytes of the stream go.
//!   [`IwarpCore::handle_received`] says how many have come, and [`IwarpCore::handle_buffered`]
//!   looks at them.
//! * [`IwarpCore::poll_transmit`]: whether there are bytes for the peer ([`Tx::unsent`]).
//!   [`Tx::handle_sent`] says how many the link took, and [`IwarpCore::handle_flushed`] completes
//!   work requests.
//! * [`IwarpCore::poll_timeout`]: when [`IwarpCore::handle_timeout`] is to be told the time.
//! * [`IwarpCore::poll_begun`]: whether the first FPDU has come.
//! * [`IwarpCore::handle_end`]: the connection ends, and why.
//!
//! Errors are a [`Fatal`]: the driver passes each on to [`IwarpCore::handle_end`].

pub(super) mod rx;
mod timers;
pub(super) mod tx;

use std::rc::Rc;

use self::rx::{Received, Rx};
use self::timers::Timers;
use self::tx::{Framing, Tx};
use super::completions::CompletionRing;
use super::fatal::{Fatal, terminate_bytes};
use super::read::Reads;
use super::receives::{Receive, Receives};
use super::sq::SendQueue;
use super::stag::Asker;
use crate::contract::{QpNum, QpState, WcOpcode, WcStatus, WorkCompletion};

/// What a core is made of.
pub(super) struct CoreConfig {
    pub num: QpNum,
    pub asker: Asker,
    pub sq: SendQueue,
    pub receives: Receives,
    /// Index of the STags that name the sinks of its RDMA Reads.
    pub read_sink: usize,
    pub send_cq: Rc<CompletionRing>,
    pub recv_cq: Rc<CompletionRing>,
    /// How long a Send may wait for a receive, in milliseconds.
    pub not_ready_timeout_ms: u64,
}

/// What the set-up of a connection has agreed on.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub framing: Framing,
    /// Whether FPDUs carry a CRC.
    pub crc: bool,
    /// Whether this side may send before it has received.
    pub may_send: bool,
    /// Whether the first FPDU may be empty.
    pub empty_fpdu: bool,
    /// RDMA Reads at once: asked by this side, served by this side.
    pub ord: u8,
    pub ird: u8,
}

/// The core of one connection: a queue pair without its link.
pub(super) struct IwarpCore {
    pub num: QpNum,
    pub asker: Asker,
    pub state: QpState,
    pub sq: SendQueue,
    pub receives: Receives,
    pub reads: Reads,
    pub tx: Tx,
    pub rx: Rx,
    pub send_cq: Rc<CompletionRing>,
    pub recv_cq: Rc<CompletionRing>,
    /// The first FPDU of the peer has come, and [`IwarpCore::poll_begun`] has not said so yet.
    begun: bool,
    timers: Timers,
}

/// What one run of a connection has done: one reading and one sending of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunOutcome {
    /// Something moved.
    Busy,
    /// Nothing moved.
    Idle,
    /// Waits for a receive to be posted.
    NotReady,
}

impl IwarpCore {
    pub(super) fn new(config: CoreConfig) -> Self {
        Self {
            num: config.num,
            asker: config.asker,
            state: QpState::Init,
            sq: config.sq,
            receives: config.receives,
            reads: Reads::new(config.read_sink),
            tx: Tx::new(),
            rx: Rx::new(),
            send_cq: config.send_cq,
            recv_cq: config.recv_cq,
            begun: false,
            timers: Timers::new(config.not_ready_timeout_ms),
        }
    }

    /// The connection is established. A TCP segment of the link has `segment_bytes`, which only
    /// [`Framing::Segment`] and [`Framing::Aligned`] look at.
    pub(super) fn handle_connected(&mut self, terms: Terms, segment_bytes: usize) {
        self.tx
            .set_up(terms.framing, terms.crc, terms.may_send, segment_bytes);
        self.rx.set_up(terms.crc, terms.empty_fpdu);
        self.reads.set_depths(terms.ord, terms.ird);
        self.state = QpState::ReadyToSend;
    }

    /// The stream continues in memory of this machine, where nothing gets lost or is cut.
    pub(super) fn move_into_memory(&mut self) {
        self.tx.move_into_memory();
        self.rx.move_into_memory();
    }

    /// Whether it is connected and nothing has been sent or received yet.
    pub(super) fn is_silent(&self) -> bool {
        self.state == QpState::ReadyToSend && self.rx.is_silent() && self.tx.sent() == 0
    }

    /// Whether the first FPDU has come since this was last asked: a listening side that waited for
    /// it is connected now.
    #[inline]
    pub(super) fn poll_begun(&mut self) -> bool {
        std::mem::take(&mut self.begun)
    }

    /// The result of a run that has `received` something or not, and has `sent` something or not.
    /// Starts or stops the timer of a Send that waits for a receive.
    #[inline]
    pub(super) fn ran(&mut self, received: Received, sent: bool) -> RunOutcome {
        let ran = match received {
            _ if sent => RunOutcome::Busy,
            Received::Some | Received::More => RunOutcome::Busy,
            Received::Stalled if self.receives.is_empty() => RunOutcome::NotReady,
            Received::Nothing | Received::Stalled => RunOutcome::Idle,
        };
        match ran {
            RunOutcome::Busy => self.timers.stop_not_ready(),
            RunOutcome::NotReady => self.timers.start_not_ready(),
            RunOutcome::Idle => {}
        }
        ran
    }

    /// The connection ends: completes everything outstanding, and returns the last bytes for the
    /// peer, which are the rest of an FPDU and a Terminate (RFC 5040 §5.4).
    pub(super) fn handle_end(&mut self, fatal: &Fatal) -> Vec<u8> {
        self.state = QpState::Error;
        let mut bytes = self.tx.take_remaining_of_fpdu();
        self.flush(fatal);
        bytes.extend(terminate_bytes(fatal, self.tx.crc()));
        bytes
    }

    /// Completes everything outstanding: first what caused the end, then the rest as flushed.
    fn flush(&mut self, fatal: &Fatal) {
        let culprit = match fatal {
            Fatal::Local { position, status } => Some((*position, *status)),
            _ => fatal.read_status().and_then(|status| {
                let oldest = self.reads.outstanding.front();
                Some((oldest?.position?, status))
            }),
        };
        self.sq.flush(culprit, self.num, &self.send_cq);
        self.reads.outstanding.clear();
        self.reads.responses.clear();
        if let Some(wr_id) = self.rx.take_message() {
            self.complete_receive(wr_id, fatal.receive_status());
        }
        if let Receives::Own(ring) = &mut self.receives {
            let mut receive = Receive::default();
            ring.unreserve_all();
            while ring.take(&mut receive) {
                self.recv_cq
                    .push(flushed(receive.wr_id, self.num, WcOpcode::Recv));
            }
        }
    }

    fn complete_receive(&self, wr_id: u64, status: WcStatus) {
        self.recv_cq.push(WorkCompletion {
            status,
            ..flushed(wr_id, self.num, WcOpcode::Recv)
        });
    }
}

/// The completion of a work request that was not carried out, as the connection has ended.
pub(super) fn flushed(wr_id: u64, qp: QpNum, opcode: WcOpcode) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        qp,
        status: WcStatus::WrFlushError,
        opcode,
        byte_len: 0,
        invalidated: None,
    }
}
