//! The end of a reactor: commands in flight end, then connections, then its loop.

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
        let mut idle = Vec::new();
        for connection in self.connections.all.iter_mut().flatten() {
            if !connection.closing() && (connection.quiet() || over) {
                idle.push(connection.identity.index);
            }
        }
        idle.retain(|&index| {
            let connection = self.connections.all[index].as_ref();
            over || connection.is_some_and(|connection| !self.has_io_queues(connection))
        });
        for index in idle {
            self.begin_close(index, "the target is shutting down");
        }
        self.connections.indices().next().is_none()
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
