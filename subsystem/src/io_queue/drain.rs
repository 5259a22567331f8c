//! Waiting for what a queue has been executing: Preempt and Abort is complete when no command that
//! was accepted before it can touch the namespace any more, write protection when none can change it.

use alloc::vec::Vec;

use crate::DrainId;
use crate::queue::{Effect, Permit};

/// Drains of one queue, per namespace. A drain that begins while another one of its namespace is
/// not over makes that one wait for its commands as well.
#[derive(Default, Debug)]
pub(super) struct Drains {
    /// Namespaces this queue has executed commands of: few, and searched in order.
    namespaces: Vec<Outstanding>,
}

/// Commands on the medium of one namespace.
#[derive(Default, Debug)]
struct Outstanding {
    nsid: u32,
    /// Increases with every drain; a command belongs to the era it was accepted in.
    era: u32,
    all: u16,
    /// Of those, the ones from before the newest drain.
    old: u16,
    waiting: Vec<DrainId>,
}

impl Drains {
    fn of(&mut self, nsid: u32) -> Option<&mut Outstanding> {
        self.namespaces
            .iter_mut()
            .find(|namespace| namespace.nsid == nsid)
    }

    /// A command is going to be executed on the medium. Returns its era.
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
        if permit.trace.effect == Effect::Control {
            return;
        }
        if let Some(namespace) = self.of(permit.trace.nsid) {
            namespace.all = namespace.all.saturating_sub(1);
            if permit.era != namespace.era {
                namespace.old = namespace.old.saturating_sub(1);
            }
        }
    }

    /// No drain that has begun waits for the command, which goes on.
    pub(super) fn excuse(&mut self, permit: &mut Permit) {
        if permit.trace.effect == Effect::Control {
            return;
        }
        if let Some(namespace) = self.of(permit.trace.nsid)
            && permit.era != namespace.era
        {
            namespace.old = namespace.old.saturating_sub(1);
            permit.era = namespace.era;
        }
    }

    pub(super) fn begin(&mut self, nsid: u32, drain: DrainId) {
        if let Some(namespace) = self.of(nsid) {
            namespace.era = namespace.era.wrapping_add(1);
            namespace.old = namespace.all;
            namespace.waiting.push(drain);
            return;
        }
        self.namespaces.push(Outstanding {
            nsid,
            waiting: alloc::vec![drain],
            ..Outstanding::default()
        });
    }

    pub(super) fn poll(&mut self) -> Option<DrainId> {
        self.namespaces
            .iter_mut()
            .filter(|namespace| namespace.old == 0)
            .find_map(|namespace| namespace.waiting.pop())
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
        drains.begin(1, DrainId(7));
        let later = enter(&mut drains, &mut queue, 3, 1);
        drains.leave(&second);
        drains.leave(&later);
        assert_eq!(drains.poll(), None);
        drains.leave(&first);
        assert_eq!(drains.poll(), Some(DrainId(7)));
        assert_eq!(drains.poll(), None);
        drains.begin(1, DrainId(8));
        assert_eq!(drains.poll(), Some(DrainId(8)));
    }

    #[test]
    fn two_drains_are_both_over_when_the_commands_before_the_second_are() {
        let mut queue = Accounting::new(ConnId(1), 8, true);
        let mut drains = Drains::default();
        let first = enter(&mut drains, &mut queue, 1, 1);
        drains.begin(1, DrainId(1));
        let second = enter(&mut drains, &mut queue, 2, 1);
        drains.begin(1, DrainId(2));
        drains.leave(&first);
        assert_eq!(drains.poll(), None);
        drains.leave(&second);
        assert!(drains.poll().is_some() && drains.poll().is_some());
        assert_eq!(drains.poll(), None);
    }

    #[test]
    fn a_command_that_is_excused_goes_on_and_the_next_drain_waits_for_it() {
        let mut queue = Accounting::new(ConnId(1), 8, true);
        let mut drains = Drains::default();
        let mut read = enter(&mut drains, &mut queue, 1, 1);
        let write = enter(&mut drains, &mut queue, 2, 1);
        drains.begin(1, DrainId(1));
        drains.excuse(&mut read);
        drains.excuse(&mut read);
        assert_eq!(drains.poll(), None, "the write");
        drains.leave(&write);
        assert_eq!(drains.poll(), Some(DrainId(1)));
        drains.begin(1, DrainId(2));
        assert_eq!(drains.poll(), None, "the read");
        drains.leave(&read);
        assert_eq!(drains.poll(), Some(DrainId(2)));
    }

    #[test]
    fn neither_reservation_commands_nor_other_namespaces_are_waited_for() {
        let mut queue = Accounting::new(ConnId(1), 8, true);
        let mut drains = Drains::default();
        let control = permit(&mut queue, 1, 1, Effect::Control);
        let _other = enter(&mut drains, &mut queue, 2, 2);
        let read = enter(&mut drains, &mut queue, 3, 1);
        drains.begin(1, DrainId(1));
        drains.leave(&control);
        assert_eq!(drains.poll(), None);
        drains.leave(&read);
        assert_eq!(drains.poll(), Some(DrainId(1)));
        drains.begin(3, DrainId(2));
        assert_eq!(drains.poll(), Some(DrainId(2)));
    }
}
