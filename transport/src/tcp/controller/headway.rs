//! Whether the host of a queue goes on with what it has to do: give the data that it was asked for,
//! and take what is sent.
//!
//! A byte now and then is no headway. What counts is the oldest pull, which has to be complete or
//! to get [`HEADWAY_BYTES`], and as many bytes as are sent, or [`HEADWAY_BYTES`] of them. So both
//! move at least so much in the time that their user gives them.
//!
//! Of what is sent the bytes count that the host's machine has acknowledged. The kernel takes
//! megabytes, and then nothing before a third of them is acknowledged: over a slow network that
//! takes longer than the host has.

use super::super::limits::HEADWAY_BYTES;
use super::ControllerQueue;

/// How something goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goes {
    /// There is nothing to do.
    Idle,
    /// It has made headway since it was last asked.
    On,
    /// It has not.
    Not,
}

/// How a queue goes on, from look to look.
#[derive(Debug, Default)]
pub struct Headway {
    /// The oldest pull when the pulls went on last.
    oldest_pull: Option<Oldest>,
    /// How many bytes have to be acknowledged.
    sent_goal_bytes: Option<u64>,
}

/// The oldest pull.
#[derive(Clone, Copy, Debug)]
struct Oldest {
    /// How many there were before it.
    number: u64,
    arrived_bytes: u64,
}

impl Headway {
    /// How the pulls go on: the oldest is complete, has [`HEADWAY_BYTES`] more, or neither.
    pub fn of_pulls(&mut self, queue: &ControllerQueue) -> Goes {
        let oldest = queue.oldest_pull();
        let goes = match (self.oldest_pull, oldest) {
            (_, None) => Goes::Idle,
            (Some(before), Some(now))
                if now.number == before.number
                    && now.arrived_bytes < before.arrived_bytes + HEADWAY_BYTES =>
            {
                return Goes::Not;
            }
            (_, Some(_)) => Goes::On,
        };
        self.oldest_pull = oldest;
        goes
    }

    /// How what is sent goes on: the kernel has taken all that there was, or the host has
    /// [`HEADWAY_BYTES`] more. `unacknowledged_bytes` are those that the kernel has and the host's
    /// machine has not acknowledged; it is asked where the kernel has not taken all.
    pub fn of_sends(
        &mut self,
        queue: &ControllerQueue,
        unacknowledged_bytes: impl FnOnce() -> u64,
    ) -> Goes {
        let unsent_bytes = queue.stream.out.unsent_bytes() as u64;
        if unsent_bytes == 0 {
            self.sent_goal_bytes = None;
            return Goes::Idle;
        }
        let unacknowledged_bytes = unacknowledged_bytes();
        let arrived_bytes = (queue.side.sent_bytes).saturating_sub(unacknowledged_bytes);
        if (self.sent_goal_bytes).is_some_and(|goal_bytes| arrived_bytes < goal_bytes) {
            return Goes::Not;
        }
        let left_bytes = unsent_bytes + unacknowledged_bytes;
        self.sent_goal_bytes = Some(arrived_bytes + left_bytes.min(HEADWAY_BYTES));
        Goes::On
    }
}

impl ControllerQueue {
    /// The oldest pull that is not complete.
    fn oldest_pull(&self) -> Option<Oldest> {
        let pulls = self.side.slots.iter().filter_map(|slot| slot.pull.as_ref());
        let oldest = pulls.min_by_key(|pull| pull.number)?;
        Some(Oldest {
            number: oldest.number,
            arrived_bytes: oldest.arrived_bytes,
        })
    }
}
