//! One call: what it takes of memory, what is pulled for it, and what its message is.

use capstan_memory::{Account, Buffer, Short};
use capstan_rdma::contract::{RKey, RdmaError, Remote, SendOp, Sge};
use capstan_rpcrdma::header::{Answer, ErrorReply, Received};
use capstan_rpcrdma::limits::DATA_MAX_BYTES;
use capstan_rpcrdma::pull::{CallMessage, CallPlan, Destination, Pull};
use capstan_rpcrdma::push::{Push, Source};

use super::device::{Device, Memory, Sink};
use crate::calls::Spare;
use crate::limits::{REPLY_MAX_BYTES, RESULTS_MAX_BYTES, SHARE_TIMES_FREE};
use crate::task::{Items, Task};

/// A call from the moment when it is received until its reply has left.
#[derive(Default)]
pub(super) struct Call {
    /// What was received: the header, and of RDMA_MSG the message.
    pub(super) bytes: Vec<u8>,
    /// Credits that it asks for; 0 as long as that is not known.
    pub(super) requested: u32,
    /// Where the message begins in `bytes`; `None` for one that is pulled.
    inline_at: Option<usize>,
    /// Bytes of the message that is pulled.
    message_bytes: u32,
    items: Items,
    /// Bytes of each write chunk up to the first without segments, as far as they are used.
    chunks_bytes: Vec<u32>,
    /// Bytes of the reply chunk, as far as they are used.
    reply_chunk_bytes: Option<u32>,
    pulls: Vec<Pull>,
    /// Pulls that were posted, and those that have completed.
    posted: usize,
    completed: usize,
    held: Held,
    /// When it got its buffers.
    leased_us: u64,
    /// The reply, from when it was made until it has left.
    pub(super) reply: Option<Prepared>,
    /// What is pushed before it.
    pub(super) pushes: Vec<Push>,
    /// A worker has it.
    is_under_way: bool,
}

/// The buffers of a call, which may be with a worker.
#[derive(Default)]
pub(super) struct Held {
    message: Option<Sink>,
    items: Vec<Sink>,
    pub(super) results: Vec<Buffer>,
    pub(super) reply_chunk: Option<Buffer>,
}

impl Held {
    fn clear(&mut self) {
        self.message = None;
        self.items.clear();
        self.results.clear();
        self.reply_chunk = None;
    }

    /// Where a push comes from.
    pub(super) fn source(&self, push: &Push, device: &Device, memory: &Memory) -> Option<Sge> {
        let buffer = match push.source {
            Source::Stream => self.reply_chunk.as_ref()?,
            Source::Item(index) => self.results.get(index)?,
            Source::Padding => &memory.zeroes,
        };
        let end = push.at_bytes.checked_add(push.to.length_bytes)?;
        (end <= buffer.len_bytes()).then(|| device.sge(buffer, push.at_bytes, push.to.length_bytes))
    }
}

/// The RDMA WRITE of a push.
pub(super) fn write_of(push: &Push) -> SendOp {
    SendOp::Write(Remote {
        addr: push.to.offset,
        rkey: RKey(push.to.handle),
    })
}

/// A reply that is to leave.
pub(super) struct Prepared {
    /// What is sent.
    pub(super) message: Buffer,
    pub(super) message_bytes: u32,
    /// The key that is invalidated.
    pub(super) invalidate: Option<RKey>,
}

/// What becomes of a message that is no call which can be carried out.
#[derive(Debug)]
pub(super) enum Refusal {
    /// This is answered, for the reason that is told.
    Answer(ErrorReply, String),
    /// It is passed over.
    Discard,
    /// Its connection ends.
    End(String),
}

/// There are no buffers for a call.
#[derive(Debug)]
pub(super) enum NoBuffers {
    /// None are free; it waits its turn.
    Yet(Short),
    /// The device does not take them.
    Device(RdmaError),
}

impl From<Short> for NoBuffers {
    fn from(short: Short) -> Self {
        Self::Yet(short)
    }
}

impl From<RdmaError> for NoBuffers {
    fn from(error: RdmaError) -> Self {
        Self::Device(error)
    }
}

impl Call {
    /// It is over: what is left of it is memory for the lists of another.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.requested = 0;
        self.inline_at = None;
        self.message_bytes = 0;
        self.items = Items::default();
        self.chunks_bytes.clear();
        self.reply_chunk_bytes = None;
        self.pulls.clear();
        (self.posted, self.completed) = (0, 0);
        self.held.clear();
        self.reply = None;
        self.pushes.clear();
        self.is_under_way = false;
    }

    /// Finds out what the call takes, where pulls are possible or not.
    ///
    /// # Errors
    /// What becomes of it otherwise.
    pub(super) fn plan(&mut self, may_pull: bool) -> Result<(), Refusal> {
        let bytes = std::mem::take(&mut self.bytes);
        let planned = self.plan_of(&bytes, may_pull);
        self.bytes = bytes;
        planned
    }

    fn plan_of(&mut self, bytes: &[u8], may_pull: bool) -> Result<(), Refusal> {
        let header = match Received::read(bytes) {
            Ok(Received::Message(header)) => header,
            // RFC 8166, section 4.5.
            Ok(Received::Error { .. }) => return Err(Refusal::Discard),
            Err(error) => {
                return Err(match error.answer() {
                    Answer::Error(answer) => Refusal::Answer(answer, error.to_string()),
                    Answer::Discard => Refusal::Discard,
                    Answer::End => Refusal::End(error.to_string()),
                });
            }
        };
        self.requested = header.credits;
        let refuse = |why: String| Refusal::Answer(ErrorReply::chunk(header.xid), why);
        let plan = CallPlan::new(&header);
        let plan = plan.map_err(|error| Refusal::Answer(error.answer(), error.to_string()))?;
        self.items = Items::of(plan.items());
        match plan.message() {
            CallMessage::Inline(message) => {
                self.inline_at = bytes.len().checked_sub(message.len());
            }
            CallMessage::Pulled { length_bytes } => self.message_bytes = length_bytes,
        }
        self.pulls.extend(plan.pulls());
        if !may_pull && !self.pulls.is_empty() {
            let why = "a call has read chunks, and its client serves no RDMA READs: answer \
                       ERR_CHUNK";
            return Err(refuse(why.to_owned()));
        }
        let mut results_bytes = 0_u32;
        let chunks = header.writes.chunks();
        for chunk in chunks.take_while(|chunk| chunk.segment_count() > 0) {
            let bytes = at_most(chunk.length_bytes(), DATA_MAX_BYTES);
            results_bytes = results_bytes.saturating_add(bytes);
            self.chunks_bytes.push(bytes);
        }
        if results_bytes > RESULTS_MAX_BYTES {
            return Err(refuse(format!(
                "the write chunks of a call have {results_bytes} bytes, expected at most \
                 {RESULTS_MAX_BYTES}: answer ERR_CHUNK"
            )));
        }
        let reply_max_bytes = u32::try_from(REPLY_MAX_BYTES).unwrap_or(u32::MAX);
        let reply_chunk = header.reply.map(|chunk| chunk.length_bytes());
        self.reply_chunk_bytes = reply_chunk.map(|bytes| at_most(bytes, reply_max_bytes));
        Ok(())
    }

    /// Whether it takes no buffers.
    pub(super) fn needs_nothing(&self) -> bool {
        self.pulls.is_empty()
            && self.items.as_slice().is_empty()
            && self.chunks_bytes.is_empty()
            && self.reply_chunk_bytes.is_none()
            && self.inline_at.is_some()
    }

    /// Takes all the buffers that it needs, or none: so no call has some that others wait for
    /// while it waits for more.
    ///
    /// # Errors
    /// There are not enough.
    pub(super) fn lease(
        &mut self,
        memory: &Memory,
        account: Account,
        device: &Device,
        now_us: u64,
    ) -> Result<(), NoBuffers> {
        self.leased_us = now_us;
        let leased = self.lease_each(memory, account, device);
        if leased.is_err() {
            self.held.clear();
        }
        leased
    }

    fn lease_each(
        &mut self,
        memory: &Memory,
        account: Account,
        device: &Device,
    ) -> Result<(), NoBuffers> {
        let take = |bytes| memory.data.take_share(account, bytes, SHARE_TIMES_FREE);
        let held = &mut self.held;
        if self.inline_at.is_none() {
            held.message = Some(device.open_sink(take(self.message_bytes)?)?);
        }
        for item in self.items.as_slice() {
            held.items.push(device.open_sink(take(item.length_bytes)?)?);
        }
        for bytes in &self.chunks_bytes {
            held.results.push(take(*bytes)?);
        }
        if let Some(bytes) = self.reply_chunk_bytes {
            held.reply_chunk = Some(take(bytes)?);
        }
        Ok(())
    }

    /// The next RDMA READ, as what is posted for it.
    pub(super) fn next_pull(&self) -> Option<(SendOp, Sge)> {
        let pull = self.pulls.get(self.posted)?;
        let sink = match pull.into {
            Destination::Message => self.held.message.as_ref(),
            Destination::Item(index) => self.held.items.get(index),
        };
        let remote = Remote {
            addr: pull.from.offset,
            rkey: RKey(pull.from.handle),
        };
        let sge = sink?.sge(pull.at_bytes, pull.from.length_bytes);
        Some((SendOp::Read(remote), sge))
    }

    /// It was posted. Whether it was the last.
    pub(super) fn pull_posted(&mut self) -> bool {
        self.posted = self.posted.saturating_add(1);
        self.posted >= self.pulls.len()
    }

    /// A pull has completed.
    pub(super) fn pull_completed(&mut self) {
        self.completed = self.completed.saturating_add(1);
    }

    /// Whether everything is there. From then on the client can change none of it.
    pub(super) fn is_whole(&mut self) -> bool {
        let is_whole = self.completed >= self.pulls.len();
        if is_whole {
            self.held.items.iter_mut().for_each(Sink::close);
        }
        is_whole
    }

    /// Since when something of it is to be pulled.
    pub(super) fn pulled_since_us(&self) -> Option<u64> {
        let has_buffers = self.held.message.is_some() || !self.held.items.is_empty();
        let is_pulled = has_buffers && self.completed < self.pulls.len();
        is_pulled.then_some(self.leased_us)
    }

    /// Fills the task that carries it out. A message that was pulled is copied before it is read
    /// (decision 0004).
    pub(super) fn fill(&mut self, task: &mut Task, spare: &mut Spare) {
        match (self.inline_at, self.held.message.take()) {
            (None, Some(sink)) => {
                let len = usize::try_from(self.message_bytes).unwrap_or(0);
                let mut memory = spare.take(len);
                memory.resize(len, 0);
                sink.buffer().copy_to(0, &mut memory);
                task.message = 0..len;
                task.bytes = memory;
            }
            (at, _) => {
                task.message = at.unwrap_or(0)..self.bytes.len();
                task.bytes = std::mem::take(&mut self.bytes);
            }
        }
        self.is_under_way = true;
        task.items = self.items;
        let items = self.held.items.iter();
        task.arguments
            .extend(items.map(|sink| sink.buffer().span()));
        let results = self.held.results.iter();
        task.results
            .extend(results.map(|buffer| Some(buffer.span())));
    }

    /// The task is back.
    pub(super) fn take_back(&mut self, task: &mut Task) {
        self.is_under_way = false;
        if self.inline_at.is_some() {
            self.bytes = std::mem::take(&mut task.bytes);
        }
        // What was pulled is not needed for the reply.
        self.held.items.clear();
    }

    pub(super) fn held(&self) -> &Held {
        &self.held
    }

    pub(super) fn held_mut(&mut self) -> &mut Held {
        &mut self.held
    }

    /// Of a connection that is gone, the buffers that a worker uses.
    pub(super) fn into_held(self) -> Option<Held> {
        self.is_under_way.then_some(self.held)
    }
}

fn at_most(bytes: u64, max_bytes: u32) -> u32 {
    u32::try_from(bytes).map_or(max_bytes, |bytes| bytes.min(max_bytes))
}
