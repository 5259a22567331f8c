//! Every connection of a reactor.

use capstan_transport::{Queue, QueueId, Queues};

use super::connection::Connection;
use super::phase::Phase;

/// The connections of a reactor, by index.
#[derive(Default)]
pub(super) struct Connections {
    pub(super) all: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    /// Something was sent since this was last asked whose host is to be looked after
    /// ([`super::stall`]).
    pub(super) are_to_go_on: bool,
}

impl Connections {
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Connection> {
        self.all.get_mut(index)?.as_deref_mut()
    }

    /// The connection whose queue the wire calls `id`.
    #[inline]
    pub(super) fn named(&mut self, id: QueueId) -> Option<&mut Connection> {
        self.get_mut(usize::try_from(id.0).ok()?)
    }

    /// An index that is not in use.
    pub(super) fn reserve(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        })
    }

    /// A reserved index is not used after all.
    pub(super) fn unreserve(&mut self, index: usize) {
        self.free.push(index);
    }

    pub(super) fn put(&mut self, connection: Connection) {
        let index = connection.identity.index;
        if let Some(place) = self.all.get_mut(index) {
            *place = Some(Box::new(connection));
        }
    }

    pub(super) fn take(&mut self, index: usize) -> Option<Box<Connection>> {
        let connection = self.all.get_mut(index)?.take()?;
        self.free.push(index);
        Some(connection)
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.all.len()).filter(|&index| self.all[index].is_some())
    }
}

impl Queues<Queue> for Connections {
    #[inline]
    fn queue(&mut self, id: QueueId) -> Option<&mut Queue> {
        Some(&mut self.named(id)?.transport)
    }

    #[inline]
    fn flushed(&mut self, id: QueueId) {
        let looked_after = |connection: &mut Connection| {
            // No host waits closely for its Admin queue, which has keep-alives and little else.
            connection.phase == Phase::Io || connection.transport.awaits_host()
        };
        self.are_to_go_on = self.are_to_go_on || self.named(id).is_some_and(looked_after);
    }
}
