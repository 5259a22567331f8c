//! Which call is carried out next: addresses and their connections take turns ([`Turns`]), and no
//! more calls are with the workers than keep them busy.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use capstan_rdma::Source;
use capstan_reactor::Clock;
use rustc_hash::FxHashMap;

use crate::limits::{
    AHEAD_PER_WORKER, AT_ONCE_BYTES_MIN, AT_ONCE_BYTES_PER_TURN, LOOK_WORKERS_US, SPARE_BYTES,
    SPARE_MAX, SPARE_ONE_MAX_BYTES, SPARE_SHORT_BYTES, SPARE_THREADS_MAX,
};
use crate::peers::ConnectionName;
use crate::program::{ConnectionNumber, Program};
use crate::task::{Items, Task};
use crate::turns::Turns;
use crate::workers::{Work, Workers};

/// The calls of all connections.
#[derive(Debug)]
pub(crate) struct Calls {
    workers: Workers,
    max: usize,
    /// How many calls may be under way now: beside [`max`](Self::max) those that are stuck and
    /// those that are held back; fewer, where other threads do not take the places of all.
    now_max: usize,
    /// What the workers have.
    under_way: usize,
    threads: usize,
    /// Threads that were in slow calls when they were last looked at.
    slow: usize,
    /// When the threads are looked at next; `None` while nothing is under way.
    look_at_us: Option<u64>,
    /// The program has been told since when calls wait.
    is_told: bool,
    pub(crate) turns: Turns,
    /// Connections that are gone and have calls under way, so many.
    leaving: FxHashMap<ConnectionNumber, usize>,
    /// Connections that are gone, and the program is to be told.
    ended: VecDeque<ConnectionNumber>,
    #[expect(
        clippy::vec_box,
        reason = "they go to the workers and come back as they are"
    )]
    tasks: Vec<Box<Task>>,
    /// The one that was started last, where it was carried out at once.
    at_once: Option<Box<Task>>,
    /// Bytes of answers that this turn may still give at once.
    at_once_bytes: usize,
    /// Buffers for replies.
    replies: Vec<Vec<u8>>,
    pub(crate) spare: Spare,
}

impl Calls {
    pub(crate) fn new(workers: Workers, threads: usize) -> Self {
        Self {
            workers,
            max: threads.saturating_mul(AHEAD_PER_WORKER.saturating_add(1)),
            now_max: threads.saturating_mul(AHEAD_PER_WORKER.saturating_add(1)),
            threads,
            under_way: 0,
            slow: 0,
            look_at_us: None,
            is_told: false,
            turns: Turns::new(threads, SPARE_THREADS_MAX),
            leaving: FxHashMap::default(),
            ended: VecDeque::new(),
            tasks: Vec::new(),
            at_once: None,
            at_once_bytes: 0,
            replies: Vec::new(),
            spare: Spare::default(),
        }
    }

    /// The connection whose turn it is, if a worker can take something. Ends that the program is to
    /// be told of come first.
    pub(crate) fn next_ready(&mut self) -> Option<ConnectionName> {
        while self.under_way < self.now_max
            && let Some(connection) = self.ended.pop_front()
        {
            self.give(Work::Ended(connection));
        }
        if self.under_way >= self.now_max {
            return None;
        }
        self.turns.pop()
    }

    /// A task for a call of a connection, to be filled.
    pub(crate) fn task(
        &mut self,
        (wire, connection): ConnectionName,
        peer: SocketAddr,
    ) -> Box<Task> {
        match self.tasks.pop() {
            Some(mut task) => {
                (task.connection, task.wire, task.peer) = (connection, wire, peer);
                task
            }
            None => Box::new(Task::new(connection, wire, peer)),
        }
    }

    /// A turn begins.
    pub(crate) fn turn(&mut self) {
        self.at_once_bytes = AT_ONCE_BYTES_PER_TURN;
    }

    /// Has a call refused ([`answered_at_once`](Self::answered_at_once)).
    pub(crate) fn refuse(&mut self, mut task: Box<Task>, program: &dyn Program) {
        self.give_reply(&mut task);
        task.refuse(program);
        self.at_once = Some(task);
    }

    fn give_reply(&mut self, task: &mut Task) {
        if task.reply.is_empty() {
            task.reply = self.replies.pop().unwrap_or_default();
        }
    }

    /// Has a call carried out: here and now where nothing has to be waited for
    /// ([`answered_at_once`](Self::answered_at_once)), and else by a worker.
    pub(crate) fn start(&mut self, mut task: Box<Task>, program: &dyn Program) {
        self.give_reply(&mut task);
        if self.at_once_bytes > 0 && task.carry_out_at_once(program) {
            let bytes = task.answer_bytes().max(AT_ONCE_BYTES_MIN);
            self.at_once_bytes = self.at_once_bytes.saturating_sub(bytes);
            self.at_once = Some(task);
        } else {
            self.tell_waits(task.arrived_us, program);
            self.turns.started(task.source());
            self.give(Work::Call(task));
        }
    }

    /// The call that was started last, where it was carried out then: taken before the next starts.
    pub(crate) fn answered_at_once(&mut self) -> Option<Box<Task>> {
        self.at_once.take()
    }

    /// A task is not needed any more.
    pub(crate) fn task_back(&mut self, mut task: Box<Task>) {
        self.spare.put(std::mem::take(&mut task.bytes));
        task.arguments.clear();
        task.results.clear();
        task.items = Items::default();
        if self.tasks.len() < self.max {
            self.tasks.push(task);
        }
    }

    /// Tells the program of a call that waits, where it knows of none: others that wait came later,
    /// or after the threads were last looked at.
    fn tell_waits(&mut self, arrived_us: u64, program: &dyn Program) {
        if !std::mem::replace(&mut self.is_told, true) {
            program.waits_since(Some(instant(arrived_us)));
        }
    }

    /// When [`look`](Self::look) is to be called.
    pub(crate) fn next_look_us(&self) -> Option<u64> {
        self.look_at_us
    }

    /// Starts threads for those that are stuck, and tells the program which call waits for longest;
    /// of those that are with connections `oldest_us` is the oldest.
    pub(crate) fn look(&mut self, oldest_us: Option<u64>, now_us: u64, program: &dyn Program) {
        let looked = self.workers.look(now_us);
        let slow = looked.slow.len();
        let was_slow = std::mem::replace(&mut self.slow, slow);
        let replaced = if was_slow > 0 || slow > 0 {
            program.slow(&looked.slow)
        } else {
            0
        };
        let threads = self.workers.replace(slow.saturating_sub(replaced));
        let free = threads.saturating_sub(looked.stuck).min(self.threads);
        self.now_max = free
            .saturating_mul(AHEAD_PER_WORKER.saturating_add(1))
            .saturating_add(looked.stuck)
            .saturating_add(looked.held_back);
        self.turns.set_slow(&looked.slow_sources);
        let oldest_us = [oldest_us, looked.oldest_us].into_iter().flatten().min();
        // What comes from now on is later.
        let now = (self.under_way > 0).then_some(now_us);
        let oldest_us = oldest_us.or(now);
        program.waits_since(oldest_us.map(instant));
        self.is_told = oldest_us.is_some();
        self.look_at_us = oldest_us.map(|_| now_us.saturating_add(LOOK_WORKERS_US));
    }

    fn give(&mut self, work: Work) {
        if self.look_at_us.is_none() {
            self.look_at_us = Some(Clock.now_us().saturating_add(LOOK_WORKERS_US));
        }
        self.under_way = self.under_way.saturating_add(1);
        self.workers.give(work);
    }

    /// A worker has carried out a call of an address.
    pub(crate) fn carried_out(&mut self, source: Source) {
        self.turns.finished(source);
        self.done();
    }

    /// A worker is done with something.
    pub(crate) fn done(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// A call of a connection that is gone was carried out.
    pub(crate) fn left(&mut self, connection: ConnectionNumber) {
        let Some(left) = self.leaving.get_mut(&connection) else {
            return;
        };
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.leaving.remove(&connection);
            self.ended.push_back(connection);
        }
    }

    /// A connection has ended, with so many calls under way.
    pub(crate) fn connection_ended(&mut self, connection: ConnectionNumber, under_way: usize) {
        if under_way == 0 {
            self.ended.push_back(connection);
        } else {
            self.leaving.insert(connection, under_way);
        }
    }

    /// A buffer of a reply is free again.
    pub(crate) fn reply_back(&mut self, reply: Vec<u8>) {
        if self.replies.len() < self.max && !reply.is_empty() {
            self.replies.push(reply);
        }
    }

    /// Whether the workers have nothing to do, and nothing waits for them.
    pub(crate) fn is_over(&self) -> bool {
        self.under_way == 0 && self.turns.is_empty() && self.ended.is_empty()
    }

    /// What the workers have: how closely the next answer is waited for.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Lets the workers end.
    pub(crate) fn end(&mut self) {
        let are_idle = self.under_way == 0;
        self.workers.end(are_idle);
    }
}

/// A time of the reactor's clock, in microseconds, as an [`Instant`].
fn instant(us: u64) -> Instant {
    let ago = Duration::from_micros(Clock.now_us().saturating_sub(us));
    let now = Instant::now();
    now.checked_sub(ago).unwrap_or(now)
}

/// Memory for messages, used again: short and long apart, so that a short one does not keep much.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    short: Vec<Vec<u8>>,
    long: Vec<Vec<u8>>,
    bytes: usize,
}

impl Spare {
    /// An empty one for so many bytes, which may have memory.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let taken = if bytes <= SPARE_SHORT_BYTES {
            self.short.pop()
        } else {
            self.long.pop()
        };
        let taken = taken.unwrap_or_default();
        self.bytes = self.bytes.saturating_sub(taken.capacity());
        taken
    }

    /// Keeps the memory of one, if there is not enough yet.
    pub(crate) fn put(&mut self, mut memory: Vec<u8>) {
        let bytes = memory.capacity();
        let all = if bytes <= SPARE_SHORT_BYTES {
            &mut self.short
        } else {
            &mut self.long
        };
        let kept = self.bytes.saturating_add(bytes);
        let has_room = kept <= SPARE_BYTES && all.len() < SPARE_MAX;
        if bytes == 0 || bytes > SPARE_ONE_MAX_BYTES || !has_room {
            return;
        }
        memory.clear();
        self.bytes = kept;
        all.push(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_memory_is_used_again_and_bounded() {
        let mut spare = Spare::default();
        spare.put(Vec::with_capacity(100));
        spare.put(Vec::with_capacity(SPARE_ONE_MAX_BYTES + 1));
        spare.put(Vec::new());
        assert_eq!(spare.short.len() + spare.long.len(), 1);
        assert_eq!(spare.take(SPARE_SHORT_BYTES + 1).capacity(), 0);
        assert!(spare.take(SPARE_SHORT_BYTES).capacity() >= 100);
        assert_eq!((spare.take(1).capacity(), spare.bytes), (0, 0));
        for _ in 0..2 * SPARE_BYTES / SPARE_ONE_MAX_BYTES {
            spare.put(Vec::with_capacity(SPARE_ONE_MAX_BYTES));
        }
        assert!(spare.bytes <= SPARE_BYTES && spare.long.len() >= 4);
        assert_eq!(
            spare.take(1).capacity(),
            0,
            "no long one for a short message"
        );
        let mut spare = Spare::default();
        for _ in 0..2 * SPARE_MAX {
            spare.put(Vec::with_capacity(1));
        }
        assert_eq!(spare.short.len(), SPARE_MAX);
    }
}
