//! How long a reactor that finds nothing to do polls before it sleeps.

/// How long a reactor polls without finding work before it sleeps, in microseconds.
///
/// Spinning for longer than a round trip keeps the wake-up out of latency at depth 1; spinning much
/// longer only takes the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinBudget {
    /// Upper bound of one spin, in microseconds.
    pub spin_us: u64,
}

impl Default for SpinBudget {
    fn default() -> Self {
        Self { spin_us: 50 }
    }
}

/// In microseconds. A wait that is shorter does not end a burst, and a spin after several commands
/// is not made shorter: sleeping and waking take part of that time anyway.
const SHORT_US: u64 = 50;
/// After this many bursts of one command each, in a row, the load counts as depth 1. At a greater
/// depth single commands come by chance, too: spinning on one would keep the kernel from delivering
/// the others in one batch, so that the next would come alone as well.
const ALONE: u32 = 64;
/// Upper bound of the work of a burst that counts: beyond it waking up is nearly free for each
/// command.
const SHARED_MAX: u64 = 64;

/// The spins of one reactor. The cost of waking up is shared by all work of a batch, while a spin
/// takes the core, which another thread may need that the reactor is waiting for. So the more work
/// the last burst had, the shorter the spin after it.
pub(crate) struct Spin {
    budget: SpinBudget,
    /// Work since the last wait that ended a burst.
    burst: u64,
    /// Whether a turn of the burst had more than one command.
    is_batched: bool,
    /// Bursts in a row, up to now, of which no turn had more than one command.
    alone: u32,
    idle_since_us: Option<u64>,
    /// Whether it has slept since the last work.
    has_slept: bool,
}

impl Spin {
    pub(crate) fn new(budget: SpinBudget) -> Self {
        Self {
            budget,
            burst: 0,
            is_batched: false,
            alone: ALONE,
            idle_since_us: None,
            has_slept: false,
        }
    }

    /// Something was done; `work` is how many commands came in this turn, or are in flight. Turns
    /// without any (0) are no reason to spin.
    #[inline]
    pub(crate) fn busy(&mut self, now_us: u64, work: u32) {
        if work == 0 {
            return;
        }
        self.has_slept = false;
        if let Some(since_us) = self.idle_since_us.take()
            && now_us.saturating_sub(since_us) >= SHORT_US
        {
            self.burst = 0;
            self.alone = if self.is_batched {
                0
            } else {
                self.alone.saturating_add(1)
            };
            self.is_batched = false;
        }
        self.is_batched |= work > 1;
        self.burst = self.burst.saturating_add(work.into());
    }

    /// Nothing was to be done. Returns for how long, in microseconds, or `None` when the spin is
    /// over. There is no spin while work comes in batches and the kernel needs the core to deliver
    /// the next ([`Turn::waits_for_kernel`](crate::Turn)).
    #[inline]
    pub(crate) fn idle(&mut self, now_us: u64, waits_for_kernel: bool) -> Option<u64> {
        let idle_us = now_us.saturating_sub(*self.idle_since_us.get_or_insert(now_us));
        let core_is_needed = waits_for_kernel && (self.is_batched || self.alone < ALONE);
        (!self.has_slept && !core_is_needed && idle_us < self.longest_us()).then_some(idle_us)
    }

    /// The reactor sleeps. What wakes it is polled at once; if nothing is found it sleeps again
    /// without another spin.
    pub(crate) fn sleeps(&mut self, now_us: u64) {
        self.has_slept = true;
        self.idle_since_us = Some(now_us);
    }

    /// The longest spin, given what the last burst had.
    fn longest_us(&self) -> u64 {
        let shared_us = self.budget.spin_us / self.burst.clamp(1, SHARED_MAX);
        shared_us.max(self.budget.spin_us.min(SHORT_US))
    }
}

#[cfg(test)]
mod tests {
    use super::{ALONE, Spin, SpinBudget};

    /// The wait in microseconds after which a spin of this budget is over.
    fn wait_us(spin: &mut Spin, from_us: u64) -> u64 {
        let over = (0..).find(|after_us| spin.idle(from_us + after_us, false).is_none());
        over.unwrap()
    }

    #[test]
    fn what_is_no_work_wakes_it_without_another_spin() {
        let mut spin = Spin::new(SpinBudget { spin_us: 100_000 });
        spin.busy(10, 1);
        assert_eq!(wait_us(&mut spin, 10), 100_000);
        spin.sleeps(100_010);
        spin.busy(140_010, 0);
        assert_eq!(spin.idle(140_010, false), None);
        spin.busy(150_010, 1);
        assert_eq!(wait_us(&mut spin, 150_010), 100_000);
    }

    #[test]
    fn the_spin_is_shared_by_the_work_that_comes_together() {
        for (work, spin_us) in [(1, 2000), (2, 1000), (8, 250), (40, 50), (64, 50)] {
            let mut spin = Spin::new(SpinBudget { spin_us: 2000 });
            spin.busy(10, work);
            assert_eq!(wait_us(&mut spin, 10), spin_us, "{work}");
        }
        let mut spin = Spin::new(SpinBudget { spin_us: 100_000 });
        spin.busy(10, u32::MAX);
        assert_eq!(wait_us(&mut spin, 10), 100_000 / 64);
    }

    #[test]
    fn a_short_budget_is_what_it_says() {
        for spin_us in [0, 1, 49, 50] {
            let mut spin = Spin::new(SpinBudget { spin_us });
            spin.busy(10, 1000);
            assert_eq!(wait_us(&mut spin, 10), spin_us);
        }
    }

    #[test]
    fn a_burst_ends_with_a_wait_that_is_not_short() {
        let mut spin = Spin::new(SpinBudget { spin_us: 2000 });
        spin.busy(0, 3);
        assert_eq!(spin.idle(1, false), Some(0));
        spin.busy(50, 1);
        assert_eq!(wait_us(&mut spin, 50), 500, "a burst of four");
        spin.busy(1000, 1);
        assert_eq!(wait_us(&mut spin, 1000), 2000, "a burst of one");
    }

    #[test]
    fn what_is_no_work_neither_starts_nor_prolongs_a_spin() {
        let mut spin = Spin::new(SpinBudget { spin_us: 2000 });
        spin.busy(0, 1);
        assert_eq!(spin.idle(0, false), Some(0));
        spin.busy(1000, 0);
        assert_eq!(spin.idle(1999, false), Some(1999));
        assert_eq!(spin.idle(2000, false), None);
        spin.sleeps(2000);
        spin.busy(9000, 0);
        assert_eq!(spin.idle(9001, false), None);
    }

    #[test]
    fn finding_nothing_after_a_sleep_leads_back_to_it() {
        let mut spin = Spin::new(SpinBudget { spin_us: 2000 });
        spin.busy(0, 1);
        assert_eq!(wait_us(&mut spin, 0), 2000);
        spin.sleeps(2000);
        assert_eq!(spin.idle(9000, false), None);
    }

    #[test]
    fn a_core_that_the_kernel_needs_is_spun_on_only_if_work_comes_alone() {
        let mut spin = Spin::new(SpinBudget { spin_us: 2000 });
        spin.busy(10, 1);
        assert_eq!(spin.idle(10, true), Some(0));
        assert_eq!(spin.idle(2009, true), Some(1999));
        assert_eq!(spin.idle(2010, true), None);
        for work in [2, 40] {
            spin.busy(5000, work);
            assert_eq!(spin.idle(5000, true), None, "{work}");
        }
        let mut after = |work, now_us| {
            spin.sleeps(now_us - 500);
            spin.busy(now_us, work);
            spin.idle(now_us, true)
        };
        for burst in 1..=u64::from(ALONE) {
            assert_eq!(after(1, 5000 + 1000 * burst), None, "{burst}");
        }
        assert_eq!(after(1, 100_000), Some(0));
        assert_eq!(after(2, 101_000), None);
        assert_eq!(after(1, 102_000), None);
    }
}
