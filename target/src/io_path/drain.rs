//! The end of a reactor: commands in flight end, then connections, then its loop. And of all
//! connections, where the target is drained and goes on.

use super::IoPath;
use super::command::Command;
use super::connection::Connection;
use super::phase::Phase;
use crate::limits::DRAIN_TIMEOUT_US;
use crate::unended::OnVolumes;

impl IoPath {
    /// Stops listening and taking in commands; those in flight have a bounded time to end.
    pub(super) fn drain(&mut self) {
        self.resources.draining = true;
        for listener in std::mem::take(&mut self.listeners).into_keys() {
            self.wires.close(listener);
        }
        self.drain_deadline_us = Some(self.resources.now_us + DRAIN_TIMEOUT_US);
    }

    /// While draining: closes connections without commands in flight, an Admin queue after its I/O
    /// queues; all of them at the deadline. Returns whether everything is over.
    pub(super) fn drained(&mut self) -> bool {
        let Some(deadline_us) = self.drain_deadline_us else {
            return false;
        };
        let over = self.resources.now_us >= deadline_us;
        if over {
            self.note_unended();
        }
        self.end_quiet(
            over,
            |_| true,
            ("shutting-down", "the target is shutting down"),
        );
        self.connections.indices().next().is_none()
    }

    /// Takes no connections; those that are there end when their commands have, at the latest then.
    pub(super) fn let_go(&mut self, by_us: u64) {
        self.refuses = true;
        self.leave_by_us = Some(by_us);
        for connection in self.connections.all.iter_mut().flatten() {
            connection.is_leaving = true;
        }
    }

    /// While connections leave: ends those without commands in flight, and all at the deadline.
    pub(super) fn end_leaving(&mut self) {
        let Some(by_us) = self.leave_by_us else {
            return;
        };
        let over = self.resources.now_us >= by_us;
        self.end_quiet(
            over,
            |connection| connection.is_leaving,
            ("drained", "the target is drained"),
        );
        let mut all = self.connections.all.iter().flatten();
        if !all.any(|connection| connection.is_leaving) {
            self.leave_by_us = None;
        }
    }

    /// Ends connections without commands in flight of those that are `meant`, an Admin queue after
    /// its I/O queues; all of them when it is `over`.
    fn end_quiet(
        &mut self,
        over: bool,
        meant: impl Fn(&Connection) -> bool,
        (cause, why): (&'static str, &'static str),
    ) {
        let mut idle = Vec::new();
        let all = self.connections.all.iter_mut().flatten();
        for connection in all.filter(|connection| meant(connection)) {
            if !connection.closing() && (connection.quiet() || over) {
                idle.push(connection.identity.index);
            }
        }
        idle.retain(|&index| {
            let connection = self.connections.all[index].as_ref();
            over || connection.is_some_and(|connection| !self.has_io_queues(connection))
        });
        for index in idle {
            self.begin_close(index, cause, why);
        }
    }

    /// Says which storage operations the reactor waits for.
    fn note_unended(&self) {
        let mut all = OnVolumes::new();
        for connection in self.connections.all.iter().flatten() {
            let mut left = connection.disk_outstanding;
            for command in &connection.commands {
                // Of a connection that ends, those that are over keep their places.
                if let Command::OnMedium(on) = command
                    && left > 0
                {
                    left -= 1;
                    *all.entry(on.io.namespace.backend).or_default() += 1;
                }
            }
        }
        self.control.unended().note(self.reactor, all);
    }

    /// Whether the connection is an Admin queue with I/O queues, on any reactor.
    pub(super) fn has_io_queues(&self, connection: &Connection) -> bool {
        connection.phase == Phase::Admin
            && self
                .control
                .with(|target| target.has_io_queues(connection.identity.id))
    }
}
