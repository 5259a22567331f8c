//! The threads that carry out calls.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use capstan_memory::Span;
use capstan_reactor::Sender;
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
            bytes: Vec::new(),
            message: 0..0,
            items: Items::default(),
            arguments: Vec::new(),
            results: Vec::new(),
            reply: Vec::new(),
            answer: Answer::NONE,
        }
    }

    /// Has `program` carry the call out.
    fn carry_out(&mut self, program: &dyn Program) {
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

/// What a worker is given.
#[derive(Debug)]
pub(crate) enum Work {
    /// A call, to be carried out.
    Call(Box<Task>),
    /// A connection has ended: the program is told.
    Ended(ConnectionNumber),
}

/// What comes to the reactor from other threads.
#[derive(Debug)]
pub(crate) enum Message {
    /// A call was carried out.
    Answered(Box<Task>),
    /// The program was told of the end of a connection.
    Told,
    /// The server is to stop.
    Stop,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

struct Queue {
    /// As many as the reactor lets be under way at once.
    work: VecDeque<Work>,
    /// Threads that wait for some: none need be woken else.
    idle: usize,
    closed: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No call leaves the list inconsistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl Workers {
    /// Starts `count` threads, which answer to `sender`.
    ///
    /// # Errors
    /// The system has no more threads. Those that were started end.
    pub(crate) fn start(
        count: usize,
        name: &str,
        program: &Arc<dyn Program>,
        sender: &Sender<Message>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                work: VecDeque::new(),
                idle: 0,
                closed: false,
            }),
            filled: Condvar::new(),
        });
        let mut workers = Self {
            shared,
            threads: Vec::with_capacity(count),
        };
        for number in 0..count {
            let shared = Arc::clone(&workers.shared);
            let (program, sender) = (Arc::clone(program), sender.clone());
            let thread = thread::Builder::new()
                .name(format!("{name}{number}"))
                .spawn(move || work(&shared, &*program, &sender))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    pub(crate) fn give(&self, work: Work) {
        let mut queue = self.shared.queue();
        queue.work.push_back(work);
        let is_awaited = queue.idle > 0;
        drop(queue);
        if is_awaited {
            self.shared.filled.notify_one();
        }
    }

    /// Lets the threads end, and waits for them where they have nothing to do any more.
    pub(crate) fn end(&mut self, are_idle: bool) {
        self.shared.queue().closed = true;
        self.shared.filled.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that waits for a file system which does not answer is not waited for.
            if are_idle && thread.join().is_err() {
                tracing::error!("a thread that carries out calls panicked");
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end(false);
    }
}

fn work(shared: &Shared, program: &dyn Program, sender: &Sender<Message>) {
    loop {
        let mut queue = shared.queue();
        let work = loop {
            if let Some(work) = queue.work.pop_front() {
                break work;
            }
            if queue.closed {
                return;
            }
            queue.idle = queue.idle.saturating_add(1);
            queue = (shared.filled.wait(queue)).unwrap_or_else(PoisonError::into_inner);
            queue.idle = queue.idle.saturating_sub(1);
        };
        drop(queue);
        let message = match work {
            Work::Call(mut task) => {
                task.carry_out(program);
                Message::Answered(task)
            }
            Work::Ended(connection) => {
                if catch_unwind(AssertUnwindSafe(|| program.ended(connection))).is_err() {
                    let number = connection.0;
                    tracing::error!(number, "telling of the end of a connection panicked");
                }
                Message::Told
            }
        };
        // A reactor that has ended needs no answer.
        let _ = sender.send_even_if_full(message);
    }
}
