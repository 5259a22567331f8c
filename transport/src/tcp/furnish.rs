//! From a connection to a queue: what a queue gets once its host is known to be permitted, and what
//! a discovery controller's gets.

use capstan_memory::{Buffer, Pool};

use super::controller::Connected;
use super::wire::TcpQueue;
use crate::limits::{ADMIN_PIECE_BYTES, IN_CAPSULE_BYTES, SPARE_BYTES};
use crate::resources::{Memory, NoResources};

impl TcpQueue {
    /// Gives it a buffer for the in-capsule data of each entry instead of the page of its place.
    /// Returns a spare one.
    ///
    /// # Errors
    /// There is not as much memory.
    pub fn furnish(&mut self, entries: u16, memory: &Memory) -> Result<Buffer, NoResources> {
        let needed_bytes = u32::from(entries) * IN_CAPSULE_BYTES + SPARE_BYTES;
        let free_bytes = memory.queues.free_bytes();
        let missing = || {
            NoResources::Memory(format!(
                "a queue of {entries} entries needs {needed_bytes} bytes for in-capsule data and a \
                 spare buffer, {free_bytes} are left"
            ))
        };
        if needed_bytes as usize > free_bytes {
            return Err(missing());
        }
        let buffers = (0..entries).map(|_| memory.queues.take(IN_CAPSULE_BYTES));
        let buffers: Option<Vec<_>> = buffers.collect();
        let spare = memory.queues.take(SPARE_BYTES);
        let (buffers, spare) = buffers.zip(spare).ok_or_else(missing)?;
        self.leave_place();
        self.with(|queue| {
            queue.drop_given();
            buffers.into_iter().for_each(|buffer| queue.give(buffer));
        });
        Ok(spare)
    }

    /// It is the Admin queue of a discovery controller, which keeps the page of its place for its
    /// commands. Returns another one, for what it returns.
    ///
    /// # Errors
    /// There is none.
    pub fn keep_place(memory: &Memory) -> Result<Buffer, NoResources> {
        let page = memory.strangers.take(ADMIN_PIECE_BYTES);
        page.ok_or(NoResources::Places)
    }

    /// How many receives' worth of memory there is for more queues.
    #[must_use]
    pub fn receives_left(pool: &Pool) -> usize {
        pool.free_bytes() / IN_CAPSULE_BYTES as usize
    }

    /// Its Connect is accepted, for so many entries and with SQ flow control or without: to be
    /// called before the response.
    pub fn connected(&mut self, entries: u16, flow_control: bool) {
        self.with(|queue| {
            queue.connected(Connected {
                entries,
                in_capsule_max_bytes: IN_CAPSULE_BYTES,
                flow_control,
            });
        });
    }

    /// The data that came with its Connect is read, and lay in `buffer`: that is the page of its
    /// place, which goes with it.
    pub fn give_back_connect_data(&mut self, buffer: Buffer) {
        if self.has_place() {
            self.with(|queue| queue.give(buffer));
        }
    }
}
