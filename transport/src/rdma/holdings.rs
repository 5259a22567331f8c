//! What a queue has of its device: receives, completions, and a place among connections that are no
//! queue yet until its host is known to be permitted.

use std::rc::Rc;

use capstan_memory::Pool;

use super::queue::Keys;
use super::registered::Registered;
use super::shared::RdmaShared;
use crate::limits::{STRANGER_RECEIVES, completions, discovery_completions};
use crate::resources::NoResources;

/// What a queue has of its device. It goes back when this is dropped.
pub struct Holdings {
    shared: Rc<RdmaShared>,
    /// Receives that the queue posts itself; none where they are shared.
    receives: Vec<u32>,
    of: Of,
}

enum Of {
    /// A connection with a place: what the device has registered, for the queue that it may become,
    /// and completions beside those of the place.
    Place {
        registered: Rc<Registered>,
        completions: u32,
    },
    /// A queue of so many entries.
    Queue { entries: u16 },
}

impl Holdings {
    /// Takes a place of a device.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn place(
        shared: &Rc<RdmaShared>,
        registered: &Rc<Registered>,
    ) -> Result<Self, NoResources> {
        let receives = shared.receives().take_place();
        Ok(Self {
            receives: receives.ok_or(NoResources::Places)?,
            shared: Rc::clone(shared),
            of: Of::Place {
                registered: Rc::clone(registered),
                completions: 0,
            },
        })
    }

    /// Makes sure that everything a queue of `entries` can have outstanding fits the device and the
    /// memory of `pool` beside what has been promised to others, and that `extra_bytes` of memory
    /// are left after that.
    ///
    /// # Errors
    /// What is missing.
    pub(super) fn queue(
        shared: &Rc<RdmaShared>,
        entries: u16,
        extra_bytes: u32,
        pool: &Pool,
    ) -> Result<Self, NoResources> {
        Self::check(shared, entries, extra_bytes, pool)?;
        let receives = (shared.receives()).reserve(entries.into(), extra_bytes, pool)?;
        shared.completions().take(completions(entries))?;
        Ok(Self {
            receives,
            shared: Rc::clone(shared),
            of: Of::Queue { entries },
        })
    }

    /// Whether [`Holdings::queue`] would succeed now, for which nothing is taken.
    pub(super) fn check(
        shared: &RdmaShared,
        entries: u16,
        extra_bytes: u32,
        pool: &Pool,
    ) -> Result<(), NoResources> {
        // Memory first: that is what an operator can give more of.
        (shared.receives()).missing(entries.into(), extra_bytes, pool)?;
        shared.completions().check(completions(entries))
    }

    /// What the queue shares with its wire.
    #[inline]
    pub(super) fn shared(&self) -> &Rc<RdmaShared> {
        &self.shared
    }

    /// The receives that the queue posts itself.
    pub(super) fn receives(&self) -> &[u32] {
        &self.receives
    }

    /// Whether it is a place.
    pub(super) fn is_place(&self) -> bool {
        matches!(self.of, Of::Place { .. })
    }

    /// The keys of what the connection of a place can have as a queue; `None` where it is one.
    pub(super) fn keys(&self) -> Option<Keys> {
        match &self.of {
            Of::Place { registered, .. } => Some(registered.keys()),
            Of::Queue { .. } => None,
        }
    }

    /// Promises the completions that a discovery controller's queue of `entries` can have waiting
    /// beyond those of its place.
    ///
    /// # Errors
    /// There are not as many left.
    pub(super) fn keep_place(&mut self, entries: u16) -> Result<(), NoResources> {
        if let Of::Place { completions, .. } = &mut self.of {
            let wanted = discovery_completions(entries);
            self.shared.completions().take(wanted)?;
            *completions += wanted;
        }
        Ok(())
    }

    /// The connection of a place is a queue now, which has reserved `queue`. It keeps the receives
    /// of its place, one of which has its Connect, and as many of the others go to the place.
    /// Returns those that are to be posted.
    pub(super) fn leave_place(&mut self, queue: Self) -> Vec<u32> {
        let mut place = std::mem::replace(self, queue);
        let kept = (self.receives.len()).saturating_sub(STRANGER_RECEIVES as usize);
        let for_place = self.receives.split_off(kept);
        let to_post = self.receives.clone();
        self.receives
            .append(&mut std::mem::replace(&mut place.receives, for_place));
        to_post
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        let receives = std::mem::take(&mut self.receives);
        match self.of {
            Of::Place { completions, .. } => {
                self.shared.completions().give_back(completions);
                self.shared.receives().give_back_place(receives);
            }
            Of::Queue { entries } => {
                self.shared.completions().give_back(completions(entries));
                self.shared.receives().release(entries, receives);
            }
        }
    }
}
