//! The thread that owns the connections.

use std::os::fd::RawFd;

use capstan_reactor::{Armed, Clock, Flow, Mailbox, Turn};

use crate::common::{Common, End};
use crate::limits::{ANSWERS_PER_TURN, CLOSE_TIMEOUT_US};
use crate::program::Wire;
use crate::rdma::Rdma;
use crate::task::Task;
use crate::tcp::Tcp;
use crate::workers::Message;

/// The work of a server's thread.
pub(crate) struct Reactor {
    pub(crate) common: Common,
    pub(crate) mailbox: Mailbox<Message>,
    pub(crate) tcp: Tcp,
    /// `None` without a listener for RDMA.
    pub(crate) rdma: Option<Rdma>,
    /// How long it goes on once it is to stop.
    pub(crate) drain_us: u64,
    pub(crate) phase: Phase,
    /// When the program has something to do by time.
    pub(crate) on_time_us: Option<u64>,
}

/// How far it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Running,
    /// It answers what it has taken, until then at the latest.
    Draining(u64),
    /// All is answered, or the time for that is over: clients are to end their connections, which
    /// end then at the latest.
    Closing(u64),
    /// The program is told of the connections that have ended, until then at the latest.
    Telling(u64),
}

impl Reactor {
    /// Takes what the workers and other threads say.
    fn take_messages(&mut self) -> usize {
        let mut count = 0;
        while count < ANSWERS_PER_TURN
            && let Some(message) = self.mailbox.poll()
        {
            count = count.saturating_add(1);
            match message {
                Message::Answered(task) => {
                    self.common.calls.carried_out(task.source());
                    self.answered(task);
                }
                Message::Told => self.common.calls.done(),
                Message::Stop => self.stop(),
            }
        }
        count
    }

    /// A call was carried out.
    fn answered(&mut self, task: Box<Task>) {
        match task.wire {
            Wire::Tcp => self.tcp.answered(task, &mut self.common),
            Wire::Rdma => {
                if let Some(rdma) = &mut self.rdma {
                    rdma.answered(task, &mut self.common);
                }
            }
        }
    }

    /// Looks at the threads, while they have something.
    fn look_at_workers(&mut self) {
        let now_us = self.common.now_us;
        let look_at_us = self.common.calls.next_look_us();
        if look_at_us.is_none_or(|at_us| at_us > now_us) {
            return;
        }
        let rdma = self.rdma.as_ref().and_then(Rdma::oldest_us);
        let oldest_us = [self.tcp.oldest_us(), rdma].into_iter().flatten().min();
        let program = &*self.common.program;
        self.common.calls.look(oldest_us, now_us, program);
    }

    fn tell_the_time(&mut self) {
        let now_us = self.common.now_us;
        if self.on_time_us.is_some_and(|at_us| at_us <= now_us) {
            let next = self.common.program.on_time();
            let next = next.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
            // Others have a turn in between, whatever it says.
            let next = next.map(|us| now_us.saturating_add(us.max(1)));
            self.on_time_us = next;
        }
    }

    /// Lets connections have their calls carried out, in turn, as long as a worker takes one.
    fn start_calls(&mut self) {
        while let Some((wire, number)) = self.common.calls.next_ready() {
            match wire {
                Wire::Tcp => self.tcp.start_next(number, &mut self.common),
                Wire::Rdma => {
                    if let Some(rdma) = &mut self.rdma {
                        rdma.start_next(number, &mut self.common);
                    }
                }
            }
            if let Some(task) = self.common.calls.answered_at_once() {
                self.answered(task);
            }
        }
    }

    fn end_displaced(&mut self) {
        while let Some((wire, number)) = self.common.displaced.pop() {
            let why = "there are too many connections without a call, and most from its address";
            let why = End::Fault(why.to_owned());
            match wire {
                Wire::Tcp => self.tcp.end(number, &why, &mut self.common),
                Wire::Rdma => {
                    if let Some(rdma) = &mut self.rdma {
                        rdma.end(number, &why, &mut self.common);
                    }
                }
            }
        }
    }

    fn stop(&mut self) {
        if self.phase == Phase::Running {
            self.common.is_stopping = true;
            self.tcp.stop(&mut self.common);
            if let Some(rdma) = &mut self.rdma {
                rdma.stop();
            }
            let until_us = self.common.now_us.saturating_add(self.drain_us);
            self.phase = Phase::Draining(until_us);
        }
    }

    fn is_drained(&self) -> bool {
        let is_drained = self.rdma.as_ref().is_none_or(Rdma::is_drained);
        self.common.calls.is_over() && self.tcp.is_drained() && is_drained
    }

    fn has_connections(&self) -> bool {
        !self.tcp.is_empty() || self.rdma.as_ref().is_some_and(|rdma| !rdma.is_empty())
    }

    /// Goes on to stop. Whether there is nothing left to do.
    fn stops(&mut self) -> bool {
        let now_us = self.common.now_us;
        let until_us = now_us.saturating_add(CLOSE_TIMEOUT_US);
        if let Phase::Draining(drained_at_us) = self.phase
            && (self.is_drained() || now_us >= drained_at_us)
        {
            if let Some(rdma) = &mut self.rdma {
                rdma.close();
            }
            self.phase = Phase::Closing(until_us);
        }
        if let Phase::Closing(closed_at_us) = self.phase
            && (!self.has_connections() || now_us >= closed_at_us)
        {
            self.tcp.end_all(&mut self.common);
            if let Some(rdma) = &mut self.rdma {
                rdma.end_all(&mut self.common);
            }
            self.start_calls();
            self.phase = Phase::Telling(until_us);
        }
        match self.phase {
            Phase::Telling(told_at_us) => self.common.calls.is_over() || now_us >= told_at_us,
            Phase::Running | Phase::Draining(_) | Phase::Closing(_) => false,
        }
    }
}

impl Turn for Reactor {
    fn turn(&mut self, now_us: u64) -> Flow {
        self.common.now_us = now_us;
        self.common.calls.turn();
        let mut done = self.take_messages();
        done = done.saturating_add(self.tcp.poll(&mut self.common));
        if let Some(rdma) = &mut self.rdma {
            let tcp = &mut self.tcp;
            let polled = rdma.poll(&mut self.common, |stream, peer, bytes, common| {
                tcp.adopt(stream, peer, &bytes, common);
            });
            done = done.saturating_add(polled);
            rdma.look(&mut self.common);
        }
        self.end_displaced();
        self.tcp.look(&mut self.common);
        self.look_at_workers();
        self.tell_the_time();
        self.start_calls();
        self.tcp.flush(&mut self.common);
        if let Some(rdma) = &mut self.rdma {
            rdma.flush(&mut self.common);
        }
        if self.stops() {
            return Flow::Stop;
        }
        if done == 0 {
            return Flow::Idle;
        }
        let under_way = self.common.calls.under_way();
        Flow::Busy(u32::try_from(under_way).unwrap_or(u32::MAX))
    }

    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
        self.mailbox.arm();
        fds.push(self.mailbox.fd());
        fds.push(self.tcp.fd());
        let mut is_ready = false;
        if let Some(rdma) = &mut self.rdma {
            is_ready = rdma.arm(fds);
        }
        is_ready |= self.take_messages() > 0;
        Armed::from_ready(is_ready)
    }

    fn disarm(&mut self, readable: &[bool]) {
        let mailbox = readable.first().copied().unwrap_or(true);
        self.mailbox.disarm(mailbox);
        if let Some(rdma) = &mut self.rdma {
            // Behind the mailbox and the sockets.
            let readable = readable.get(2..).unwrap_or_default();
            rdma.disarm(readable, Clock.now_us());
        }
    }

    fn next_deadline_us(&self) -> Option<u64> {
        let stops_at_us = match self.phase {
            Phase::Running => None,
            Phase::Draining(us) | Phase::Closing(us) | Phase::Telling(us) => Some(us),
        };
        let rdma = self.rdma.as_ref().and_then(Rdma::next_deadline_us);
        let workers = self.common.calls.next_look_us();
        let tcp = self.tcp.next_deadline_us();
        let all = [stops_at_us, rdma, tcp, workers, self.on_time_us];
        all.into_iter().flatten().min()
    }

    fn waits_for_kernel(&self) -> bool {
        self.rdma.as_ref().is_some_and(Rdma::waits_for_kernel)
    }
}
