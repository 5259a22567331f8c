//! The threads that carry out calls.
//!
//! A thread that is in one call for long, as of a file system that stands still, is *stuck*:
//! another one takes its place until it comes back, up to [`SPARE_THREADS_MAX`]. Calls that take
//! less, and still long, are *slow*: an address with slow calls leaves half of the threads to
//! others ([`crate::turns`]), and where more than half of the threads are in slow calls, others
//! take the places of these at once.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use capstan_rdma::Source;
use capstan_reactor::Sender;

use crate::limits::{SLOW_US, SPARE_THREADS_MAX, STUCK_US};
use crate::program::{ConnectionNumber, Program};
use crate::task::Task;
use crate::turns::{Slow, bounds_of_slow};

/// What a worker is given.
#[derive(Debug)]
pub(crate) enum Work {
    /// A call, to be carried out.
    Call(Box<Task>),
    /// A connection has ended: the program is told.
    Ended(ConnectionNumber),
}

impl Work {
    /// The address that the call has come from; `None` for the end of a connection.
    fn source(&self) -> Option<Source> {
        match self {
            Self::Call(task) => Some(task.source()),
            Self::Ended(_) => None,
        }
    }

    /// When the call came, in microseconds; `None` for the end of a connection.
    fn arrived_us(&self) -> Option<u64> {
        match self {
            Self::Call(task) => Some(task.arrived_us),
            Self::Ended(_) => None,
        }
    }
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
    program: Arc<dyn Program>,
    sender: Sender<Message>,
}

struct Queue {
    /// As many as the reactor lets be under way at once.
    work: VecDeque<Work>,
    /// Threads that wait for some: none need be woken else.
    idle: usize,
    closed: bool,
    /// The threads, by their numbers.
    seats: Vec<Seat>,
    /// Addresses that had slow calls when it was last looked.
    slow: Vec<Source>,
    /// Threads that are to be free.
    count: usize,
    /// Of those that are slow, so many have no other in their place: the program said so.
    unreplaced: usize,
}

/// What is known of a thread.
#[derive(Clone, Copy, Default, Debug)]
struct Seat {
    /// A thread has this number.
    is_taken: bool,
    /// Its identity, once it runs.
    thread: Option<ThreadId>,
    /// How many pieces of work it has begun.
    begun: u64,
    /// The work that it is carrying out now, as [`Work::arrived_us`] of it; `None` when idle.
    at: Option<Option<u64>>,
    /// The address that the call has come from.
    source: Option<Source>,
    /// `begun` when it was last looked at, and when it was first seen to have that value, in
    /// microseconds.
    seen: (u64, u64),
    is_slow: bool,
    /// It is slow as well.
    is_stuck: bool,
}

impl Queue {
    /// How many of the seats are so.
    fn count(&self, is_so: impl Fn(&Seat) -> bool) -> usize {
        self.seats.iter().filter(|seat| is_so(seat)).count()
    }

    /// Threads that there are.
    fn threads(&self) -> usize {
        self.count(|seat| seat.is_taken)
    }

    /// Threads that are to be there: as many as are to be free, and those that take the places of
    /// stuck ones, or of slow ones where these are more than half.
    fn wanted(&self) -> usize {
        let replaced = |count: usize| count.saturating_sub(self.unreplaced);
        let stuck = replaced(self.count(|seat| seat.is_stuck));
        let slow = replaced(self.count(|seat| seat.is_slow));
        let extra = stuck.max(slow.saturating_sub(self.count.div_ceil(2)));
        self.count.saturating_add(extra.min(SPARE_THREADS_MAX))
    }

    /// Reserves a number for one more thread.
    fn take_seat(&mut self) -> usize {
        let free = self.seats.iter().position(|seat| !seat.is_taken);
        let number = free.unwrap_or_else(|| {
            self.seats.push(Seat::default());
            self.seats.len().saturating_sub(1)
        });
        if let Some(seat) = self.seats.get_mut(number) {
            seat.is_taken = true;
        }
        number
    }

    /// The threads that are in slow calls, and for how long.
    fn slow(&self, now_us: u64) -> Vec<(ThreadId, Duration)> {
        let slow = self.seats.iter().filter(|seat| seat.is_slow);
        let slow = slow.filter_map(|seat| {
            let time_us = now_us.saturating_sub(seat.seen.1);
            Some((seat.thread?, Duration::from_micros(time_us)))
        });
        slow.collect()
    }

    /// A thread has finished its work. Returns whether another one may have taken its place.
    fn comes_back(&mut self, number: usize) -> bool {
        let Some(seat) = self.seats.get_mut(number) else {
            return false;
        };
        (seat.at, seat.source, seat.is_stuck) = (None, None, false);
        std::mem::replace(&mut seat.is_slow, false)
    }

    fn is_of(&mut self, number: usize, thread: ThreadId) {
        if let Some(seat) = self.seats.get_mut(number) {
            seat.thread = Some(thread);
        }
    }

    fn leave_seat(&mut self, number: usize) {
        if let Some(seat) = self.seats.get_mut(number) {
            *seat = Seat::default();
        }
    }

    /// Takes the next work for a thread.
    fn next_of(&mut self, number: usize) -> Option<Work> {
        let full = self.full();
        let may_begin = |work: &Work| !work.source().is_some_and(|of| full.contains(&of));
        let next = self.work.iter().position(may_begin)?;
        let work = self.work.remove(next)?;
        if let Some(seat) = self.seats.get_mut(number) {
            seat.begun = seat.begun.saturating_add(1);
            seat.at = Some(work.arrived_us());
            seat.source = work.source();
        }
        Some(work)
    }

    /// Addresses that have slow calls, and as many threads as they may have.
    fn full(&self) -> Vec<Source> {
        let (free, all) = bounds_of_slow(self.count, SPARE_THREADS_MAX);
        let is_full = |source: &Source| {
            let own = |seat: &Seat| seat.source == Some(*source);
            let not_stuck = self.count(|seat| own(seat) && !seat.is_stuck);
            not_stuck >= free || self.count(own) >= all
        };
        let slow = self.slow.iter();
        slow.filter(|source| is_full(source)).copied().collect()
    }

    /// How many calls wait that are of these addresses.
    fn waiting_of(&self, sources: &[Source]) -> usize {
        let of_them = self.work.iter().filter_map(Work::source);
        of_them.filter(|source| sources.contains(source)).count()
    }

    /// Marks threads as slow and as stuck that have been in the same work for [`SLOW_US`] and
    /// [`STUCK_US`]. Returns the addresses that have such calls.
    fn look(&mut self, now_us: u64) -> Vec<Slow> {
        for seat in self.seats.iter_mut().filter(|seat| seat.at.is_some()) {
            if seat.seen.0 != seat.begun {
                seat.seen = (seat.begun, now_us);
                continue;
            }
            let time_us = now_us.saturating_sub(seat.seen.1);
            seat.is_slow = time_us >= SLOW_US;
            seat.is_stuck = time_us >= STUCK_US;
        }
        let mut slow: Vec<Slow> = Vec::new();
        for seat in self.seats.iter().filter(|seat| seat.is_slow) {
            let Some(source) = seat.source else {
                continue;
            };
            let stuck = usize::from(seat.is_stuck);
            match slow.iter_mut().find(|of| of.source == source) {
                Some(of) => of.stuck = of.stuck.saturating_add(stuck),
                None => slow.push(Slow { source, stuck }),
            }
        }
        self.slow = slow.iter().map(|of| of.source).collect();
        slow
    }

    /// When the oldest call came of which the program may not have seen anything yet. It has seen
    /// those that a thread is stuck in.
    fn oldest_us(&self) -> Option<u64> {
        let begun = self.seats.iter().filter(|seat| !seat.is_stuck);
        let begun = begun.filter_map(|seat| seat.at.flatten());
        begun
            .chain(self.work.iter().filter_map(Work::arrived_us))
            .min()
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No call leaves the list inconsistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What [`Workers::look`] has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Looked {
    /// When the oldest call came of which the program may not have seen anything yet.
    pub(crate) oldest_us: Option<u64>,
    /// How many threads are stuck.
    pub(crate) stuck: usize,
    /// Threads that are in slow calls, these included, and for how long.
    pub(crate) slow: Vec<(ThreadId, Duration)>,
    /// Addresses with slow calls.
    pub(crate) slow_sources: Vec<Slow>,
    /// Calls that no thread takes for now, as their addresses have slow ones.
    pub(crate) held_back: usize,
}

/// The threads.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    name: String,
    threads: Vec<JoinHandle<()>>,
    /// A spare thread could not be started, which was logged.
    is_short: bool,
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
                seats: Vec::new(),
                slow: Vec::new(),
                count,
                unreplaced: 0,
            }),
            filled: Condvar::new(),
            program: Arc::clone(program),
            sender: sender.clone(),
        });
        let mut workers = Self {
            shared,
            name: name.to_owned(),
            threads: Vec::with_capacity(count),
            is_short: false,
        };
        for _ in 0..count {
            workers.start_one()?;
        }
        Ok(workers)
    }

    fn start_one(&mut self) -> io::Result<()> {
        let number = self.shared.queue().take_seat();
        let shared = Arc::clone(&self.shared);
        let started = thread::Builder::new()
            .name(format!("{}{number}", self.name))
            .spawn(move || work(&shared, number));
        match started {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                self.shared.queue().leave_seat(number);
                return Err(error);
            }
        }
        Ok(())
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

    /// Finds threads that are slow or stuck.
    pub(crate) fn look(&mut self, now_us: u64) -> Looked {
        let mut queue = self.shared.queue();
        let slow_sources = queue.look(now_us);
        let held_back = queue.waiting_of(&queue.full());
        let looked = Looked {
            oldest_us: queue.oldest_us(),
            stuck: queue.count(|seat| seat.is_stuck),
            slow: queue.slow(now_us),
            slow_sources,
            held_back,
        };
        // What was held back may not be any more.
        let is_awaited = queue.idle > 0 && !queue.work.is_empty();
        drop(queue);
        if is_awaited {
            self.shared.filled.notify_all();
        }
        looked
    }

    /// Starts threads for those that are slow or stuck, of which `unreplaced` are to have no other
    /// in their place. Returns how many there are to be.
    pub(crate) fn replace(&mut self, unreplaced: usize) -> usize {
        let mut queue = self.shared.queue();
        queue.unreplaced = unreplaced;
        let (threads, wanted) = (queue.threads(), queue.wanted());
        drop(queue);
        self.threads.retain(|thread| !thread.is_finished());
        for _ in threads..wanted {
            let started = self.start_one();
            let was_short = std::mem::replace(&mut self.is_short, started.is_err());
            if let Err(error) = started {
                if !was_short {
                    tracing::warn!(
                        "calls wait for others that take long: no thread for them: {error}; raise \
                         the limits of this process"
                    );
                }
                break;
            }
        }
        wanted
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

/// The thread of a number.
fn work(shared: &Shared, number: usize) {
    let program = &*shared.program;
    shared.queue().is_of(number, thread::current().id());
    loop {
        let mut queue = shared.queue();
        let was_slow = queue.comes_back(number);
        if was_slow && queue.threads() > queue.wanted() {
            queue.leave_seat(number);
            return;
        }
        let work = loop {
            if let Some(work) = queue.next_of(number) {
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
        let _ = shared.sender.send_even_if_full(message);
    }
}
