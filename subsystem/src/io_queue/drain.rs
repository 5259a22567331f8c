//! Waiting for what a queue has been executing: Preempt and Abort is complete when no command that
//! was accepted before it can touch the namespace any more, write protection when none can change
//! it, and a fence when no command at all is left of those that were accepted before it.

use alloc::vec::Vec;

use crate::queue::{Effect, Permit};
use crate::{DrainId, FenceId};

/// The namespace that reservation commands are counted under: no NSID.
pub(super) const RESERVATIONS: u32 = 0;

/// What is over when the commands it waited for are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drained {
    /// An [`Action::DrainIo`](crate::Action::DrainIo): tell
    /// [`Target::handle_drained`](crate::Target::handle_drained).
    Namespace(DrainId),
    /// An [`Action::FenceIo`](crate::Action::FenceIo): tell
    /// [`Target::handle_fenced`](crate::Target::handle_fenced).
    Queue(FenceId),
}

/// Drains and fences of one queue, per namespace.
#[derive(Default, Debug)]
pub(super) struct Drains {
    /// Namespaces this queue has executed commands of: few, and searched in order.
    namespaces: Vec<Outstanding>,
    /// Fences that waited for nothing.
    over: Vec<FenceId>,
    /// How many wait, over all namespaces, or are over: nearly always none.
    pending: u32,
}

/// Commands on the medium of one namespace.
#[derive(Default, Debug)]
struct Outstanding {
    nsid: u32,
    /// Increases with everything that begins to wait; a command belongs to the era it was accepted
    /// in.
    era: u32,
    all: u16,
    waiting: Vec<Waiting>,
}

/// What waits for the commands of one namespace.
#[derive(Debug)]
struct Waiting {
    what: Drained,
    /// Only commands that change the namespace are waited for.
    of_writes: bool,
    /// The first era whose commands are not waited for.
    era: u32,
    /// Commands of earlier eras.
    left: u16,
}

impl Outstanding {
    fn begin(&mut self, what: Drained, of_writes: bool) {
        self.era = self.era.wrapping_add(1);
        self.waiting.push(Waiting {
            what,
            of_writes,
            era: self.era,
            left: self.all,
        });
    }

    /// One command less for those that wait for it, among the ones that are `meant`.
    fn let_go(&mut self, permit: &Permit, meant: impl Fn(&Waiting) -> bool) {
        for waiting in &mut self.waiting {
            if meant(waiting) && waiting.is_behind(permit) {
                waiting.left = waiting.left.saturating_sub(1);
            }
        }
    }
}

impl Waiting {
    /// Whether it began after a command was accepted, or excused from it. Eras wrap around; those
    /// of commands that are outstanding at the same time are near each other.
    fn is_behind(&self, permit: &Permit) -> bool {
        let era = if self.of_writes {
            permit.trace.writes_era
        } else {
            permit.era
        };
        self.era.wrapping_sub(era).wrapping_sub(1) < u32::MAX / 2
    }
}

/// The namespace that a command is counted under, if it is.
fn counted_under(permit: &Permit) -> Option<u32> {
    match permit.trace.effect {
        Effect::Unwaited => None,
        Effect::Control => Some(RESERVATIONS),
        Effect::Other | Effect::Read | Effect::Write => Some(permit.trace.nsid),
    }
}

impl Drains {
    fn of(&mut self, nsid: u32) -> Option<&mut Outstanding> {
        self.namespaces
            .iter_mut()
            .find(|namespace| namespace.nsid == nsid)
    }

    /// A command is going to be executed. Returns its era.
    pub(super) fn enter(&mut self, nsid: u32) -> u32 {
        if let Some(namespace) = self.of(nsid) {
            namespace.all = namespace.all.saturating_add(1);
            return namespace.era;
        }
        // The first command of a namespace on this queue.
        self.namespaces.push(Outstanding {
            nsid,
            all: 1,
            ..Outstanding::default()
        });
        0
    }

    /// A command is completed, or will not reach the medium.
    pub(super) fn leave(&mut self, permit: &Permit) {
        let Some(nsid) = counted_under(permit) else {
            return;
        };
        if let Some(namespace) = self.of(nsid) {
            namespace.all = namespace.all.saturating_sub(1);
            namespace.let_go(permit, |_| true);
        }
    }

    /// No drain of writes that has begun waits for the command, which goes on.
    pub(super) fn excuse(&mut self, permit: &mut Permit) {
        let Some(nsid) = counted_under(permit) else {
            return;
        };
        if let Some(namespace) = self.of(nsid) {
            let newest = namespace.era;
            namespace.let_go(permit, |waiting| waiting.of_writes);
            permit.trace.writes_era = newest;
        }
    }

    /// Waits for the commands of a namespace, or for those that change it.
    pub(super) fn begin(&mut self, nsid: u32, drain: DrainId, of_writes: bool) {
        self.pending = self.pending.saturating_add(1);
        let what = Drained::Namespace(drain);
        if let Some(namespace) = self.of(nsid) {
            return namespace.begin(what, of_writes);
        }
        let mut namespace = Outstanding {
            nsid,
            ..Outstanding::default()
        };
        namespace.begin(what, of_writes);
        self.namespaces.push(namespace);
    }

    /// Waits for the commands of all namespaces, and for reservation commands.
    pub(super) fn begin_fence(&mut self, fence: FenceId) {
        if self.namespaces.is_empty() {
            self.pending = self.pending.saturating_add(1);
            return self.over.push(fence);
        }
        for namespace in &mut self.namespaces {
            self.pending = self.pending.saturating_add(1);
            namespace.begin(Drained::Queue(fence), false);
        }
    }

    /// Whether a fence waits.
    pub(super) fn has_fence(&self) -> bool {
        let is_fence = |waiting: &Waiting| matches!(waiting.what, Drained::Queue(_));
        self.pending != 0
            && self
                .namespaces
                .iter()
                .flat_map(|namespace| &namespace.waiting)
                .any(is_fence)
    }

    /// What is over.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<Drained> {
        if self.pending == 0 {
            return None;
        }
        self.poll_pending()
    }

    #[cold]
    fn poll_pending(&mut self) -> Option<Drained> {
        if let Some(fence) = self.over.pop() {
            self.pending = self.pending.saturating_sub(1);
            return Some(Drained::Queue(fence));
        }
        for at in 0..self.namespaces.len() {
            let namespace = self.namespaces.get_mut(at)?;
            let Some(over) = namespace.waiting.iter().position(|w| w.left == 0) else {
                continue;
            };
            let what = namespace.waiting.swap_remove(over).what;
            self.pending = self.pending.saturating_sub(1);
            // A fence is over with its last namespace.
            let elsewhere = matches!(what, Drained::Queue(_))
                && self
                    .namespaces
                    .iter()
                    .flat_map(|namespace| &namespace.waiting)
                    .any(|waiting| waiting.what == what);
            if !elsewhere {
                return Some(what);
            }
            return self.poll();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConnId;
    use crate::queue::{Accounting, Trace};

    fn permit(queue: &mut Accounting, cid: u16, nsid: u32, effect: Effect) -> Permit {
        queue.accept(cid).unwrap().with_trace(Trace {
            nsid,
            effect,
            ..Trace::default()
        })
    }

    fn enter(drains: &mut Drains, queue: &mut Accounting, cid: u16, nsid: u32) -> Permit {
        let era = drains.enter(nsid);
        permit(queue, cid, nsid, Effect::Other).with_era(era)
    }

    #[test]
    fn a_drain_waits_for_what_came_before_it_only() {
        let mut queue = Accounting::new(ConnId(1), 8, true);
        let mut drains = Drains::default();
        assert_eq!(drains.poll(), None);
        let first = enter(&mut drains, &mut queue, 1, 1);
        let second = enter(&mut drains, &mut queue, 2, 1);
        drains.begin(1, DrainId(7), false);
        let later = enter(&mut drains, &mut queue, 3, 1);
        drains.leave(&second);
        drains.leave(&later);
        assert_eq!(drains.poll(), None);
        drains.leave(&first);
        assert_eq!(drains.poll(), Some(Drained::Namespace(DrainId(7))));
        assert_eq!(drains.poll(), None);
        drains.begin(1, DrainId(8), false);
        assert_eq!(drains.poll(), Some(Drained::Namespace(DrainId(8))));
    }

    #[test]
    fn each_drain_waits_for_the_commands_before_it_alone() {
        let mut queue = Accounting::new(ConnId(1), 8, true);
        let mut drains = Drains::default();
        let first = enter(&mut drains, &mut queue, 1, 1);
        drains.begin(1, DrainId(1), false);
        let second = enter(&mut drains, &mut queue, 2, 1);
        drains.begin(1, DrainId(2), false);
        drains.leave(&first);
        assert_eq!(drains.poll(), Some(Drained::Namespace(DrainId(1))));
        assert_eq!(drains.poll(), None);
        drains.leave(&second);
        assert_eq!(drains.poll(), Some(Drained::Namespace(DrainId(2))));
        assert_eq!(drains.poll(), None);
    }

    #[test]
    fn a_command_that_is_excused_goes_on_and_the_next_drain_waits_for_it() {
        let mut queue = Accounting::new(ConnId(1), 8, true);
        let mut drains = Drains::default();
        let mut read = enter(&mut drains, &mut queue, 1, 1);
        let write = enter(&mut drains, &mut queue, 2, 1);
        drains.begin(1, DrainId(1), true);
        drains.excuse(&mut read);
        drains.excuse(&mut read);
        assert_eq!(drains.poll(), None, "the write");
        drains.leave(&write);
        assert_eq!(drains.poll(), Some(Drained::Namespace(DrainId(1))));
        drains.begin(1, DrainId(2), true);
        assert_eq!(drains.poll(), None, "the read");
        drains.leave(&read);
        assert_eq!(drains.poll(), Some(Drained::Namespace(DrainId(2))));
    }

    #[test]
    fn who_is_excused_from_a_drain_of_writes_is_from_nothing_else() {
        let mut queue = Accounting::new(ConnId(1), 8, true);
        let mut drains = Drains::default();
        let mut read = enter(&mut drains, &mut queue, 1, 1);
        drains.begin(1, DrainId(1), false);
        drains.begin_fence(FenceId(2));
        drains.begin(1, DrainId(3), true);
        drains.excuse(&mut read);
        assert_eq!(drains.poll(), Some(Drained::Namespace(DrainId(3))));
        assert_eq!(drains.poll(), None);
        drains.leave(&read);
        assert!(drains.poll().is_some() && drains.poll().is_some());
        assert_eq!(drains.poll(), None);
    }

    #[test]
    fn a_fence_waits_for_every_namespace_and_for_reservation_commands() {
        let mut queue = Accounting::new(ConnId(1), 8, true);
        let mut drains = Drains::default();
        let first = enter(&mut drains, &mut queue, 1, 1);
        let second = enter(&mut drains, &mut queue, 2, 2);
        let era = drains.enter(RESERVATIONS);
        let control = permit(&mut queue, 3, 1, Effect::Control).with_era(era);
        drains.begin(7, DrainId(9), false);
        assert!(!drains.has_fence(), "a drain is none");
        assert_eq!(drains.poll(), Some(Drained::Namespace(DrainId(9))));
        drains.begin_fence(FenceId(1));
        assert!(drains.has_fence());
        let later = enter(&mut drains, &mut queue, 4, 2);
        for permit in [&later, &first, &control] {
            drains.leave(permit);
            assert_eq!(drains.poll(), None);
        }
        drains.leave(&second);
        assert_eq!(drains.poll(), Some(Drained::Queue(FenceId(1))));
        assert!(!drains.has_fence());
        assert_eq!(drains.poll(), None);
        drains.begin_fence(FenceId(2));
        assert_eq!(drains.poll(), Some(Drained::Queue(FenceId(2))));
        assert_eq!(drains.poll(), None);
    }

    #[test]
    fn a_fence_of_an_idle_queue_is_over_at_once() {
        let mut drains = Drains::default();
        drains.begin_fence(FenceId(3));
        assert_eq!(drains.poll(), Some(Drained::Queue(FenceId(3))));
        assert_eq!(drains.poll(), None);
    }

    #[test]
    fn eras_wrap_around() {
        let mut queue = Accounting::new(ConnId(1), 8, true);
        let mut drains = Drains::default();
        let first = enter(&mut drains, &mut queue, 1, 1);
        drains.leave(&first);
        drains.namespaces[0].era = u32::MAX;
        let before = enter(&mut drains, &mut queue, 2, 1);
        drains.begin(1, DrainId(1), false);
        let behind = enter(&mut drains, &mut queue, 3, 1);
        drains.leave(&behind);
        assert_eq!(drains.poll(), None);
        drains.leave(&before);
        assert_eq!(drains.poll(), Some(Drained::Namespace(DrainId(1))));
    }

    #[test]
    fn neither_reservation_commands_nor_other_namespaces_are_waited_for() {
        let mut queue = Accounting::new(ConnId(1), 8, true);
        let mut drains = Drains::default();
        let control = permit(&mut queue, 1, 1, Effect::Control);
        let _other = enter(&mut drains, &mut queue, 2, 2);
        let read = enter(&mut drains, &mut queue, 3, 1);
        drains.begin(1, DrainId(1), false);
        drains.leave(&control);
        assert_eq!(drains.poll(), None);
        drains.leave(&read);
        assert_eq!(drains.poll(), Some(Drained::Namespace(DrainId(1))));
        drains.begin(3, DrainId(2), false);
        assert_eq!(drains.poll(), Some(Drained::Namespace(DrainId(2))));
    }
}
