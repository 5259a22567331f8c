//! A call on its way to a worker and back.

use std::net::SocketAddr;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use capstan_memory::Span;
use capstan_rdma::Source;
use capstan_rpcrdma::xdr::{REDUCED_ITEMS_MAX, Reader, ReducedItem, Writer};

use crate::limits::REPLY_MAX_BYTES;
use crate::program::{Arguments, Call, ConnectionNumber, Outcome, Program, Results, Wire};

/// Reduced items by value.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Items {
    all: [ReducedItem; REDUCED_ITEMS_MAX],
    count: usize,
}

impl Items {
    /// A copy; those beyond [`REDUCED_ITEMS_MAX`], of which there are none, are left out.
    pub(crate) fn of(items: &[ReducedItem]) -> Self {
        let mut all = [ReducedItem::default(); REDUCED_ITEMS_MAX];
        for (slot, item) in all.iter_mut().zip(items) {
            *slot = *item;
        }
        Self {
            all,
            count: items.len().min(REDUCED_ITEMS_MAX),
        }
    }

    pub(crate) fn as_slice(&self) -> &[ReducedItem] {
        self.all.get(..self.count).unwrap_or_default()
    }
}

/// A call on its way to a worker and back.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) connection: ConnectionNumber,
    pub(crate) wire: Wire,
    pub(crate) peer: SocketAddr,
    /// What its connection calls it.
    pub(crate) slot: u16,
    /// When it came, in microseconds.
    pub(crate) arrived_us: u64,
    /// What has the message.
    pub(crate) bytes: Vec<u8>,
    /// Where in it.
    pub(crate) message: Range<usize>,
    /// What was reduced in the call.
    pub(crate) items: Items,
    pub(crate) arguments: Vec<Span>,
    pub(crate) results: Vec<Option<Span>>,
    /// Room for the reply, [`REPLY_MAX_BYTES`].
    pub(crate) reply: Vec<u8>,
    /// Once it was carried out.
    pub(crate) answer: Answer,
}

/// What a worker says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    /// Bytes of the reply, without what was reduced.
    pub(crate) reply_bytes: usize,
    /// What was reduced in it.
    pub(crate) items: Items,
}

impl Answer {
    const NONE: Self = Self {
        outcome: Outcome::End,
        reply_bytes: 0,
        items: Items {
            all: [ReducedItem {
                position: 0,
                length_bytes: 0,
            }; REDUCED_ITEMS_MAX],
            count: 0,
        },
    };
}

impl Task {
    /// An empty one.
    pub(crate) fn new(connection: ConnectionNumber, wire: Wire, peer: SocketAddr) -> Self {
        Self {
            connection,
            wire,
            peer,
            slot: 0,
            arrived_us: 0,
            bytes: Vec::new(),
            message: 0..0,
            items: Items::default(),
            arguments: Vec::new(),
            results: Vec::new(),
            reply: Vec::new(),
            answer: Answer::NONE,
        }
    }

    /// The address that it counts for.
    pub(crate) fn source(&self) -> Source {
        Source::of(self.peer.ip())
    }

    /// Has `program` carry the call out.
    pub(crate) fn carry_out(&mut self, program: &dyn Program) {
        self.answer_with(|call, reply| Some(program.call(call, reply)));
    }

    /// The same, unless something would have to be waited for. Whether it was carried out.
    pub(crate) fn carry_out_at_once(&mut self, program: &dyn Program) -> bool {
        self.answer_with(|call, reply| program.at_once(call, reply))
    }

    /// Has `program` refuse it.
    pub(crate) fn refuse(&mut self, program: &dyn Program) {
        self.answer_with(|call, reply| Some(program.refused(call, reply)));
    }

    /// Whether `work` has answered the call.
    fn answer_with(
        &mut self,
        work: impl FnOnce(&Call<'_>, &mut Writer<'_>) -> Option<Outcome>,
    ) -> bool {
        self.answer = Answer::NONE;
        if self.reply.len() != REPLY_MAX_BYTES {
            // Zeroed by the kernel, page by page, when it is first written.
            self.reply = vec![0; REPLY_MAX_BYTES];
        }
        let message = self.bytes.get(self.message.clone()).unwrap_or_default();
        let call = Call {
            connection: self.connection,
            wire: self.wire,
            peer: self.peer,
            message,
            reader: Reader::with_reduced(message, self.items.as_slice()),
            arguments: Arguments(&self.arguments),
            results: Results(&self.results),
        };
        let mut writer = Writer::new(&mut self.reply);
        // A call whose thread is gone would never be answered, and its buffers never free.
        let carried_out = catch_unwind(AssertUnwindSafe(|| work(&call, &mut writer)));
        let outcome = carried_out.unwrap_or_else(|_| {
            let peer = self.peer;
            tracing::error!(%peer, "carrying out a call panicked; its connection ends");
            Some(Outcome::End)
        });
        let Some(outcome) = outcome else {
            return false;
        };
        self.answer = Answer {
            outcome,
            reply_bytes: writer.offset(),
            items: Items::of(writer.reduced_items()),
        };
        true
    }

    /// Bytes of its answer, with what was reduced.
    pub(crate) fn answer_bytes(&self) -> usize {
        let items = self.answer.items.as_slice().iter();
        items.fold(self.answer.reply_bytes, |sum, item| {
            sum.saturating_add(usize::try_from(item.length_bytes).unwrap_or(usize::MAX))
        })
    }
}
