//! The loop.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use capstan_metrics::{Spent, State};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::time::TimeSpec;
use nix::unistd::Pid;

use crate::clock::Clock;
use crate::spin::{Spin, SpinBudget};

/// What a turn asks for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Something was done: turn again. The number is how many commands or answers came together, or
    /// are under way if these are more; 0 when nothing waits closely for what comes next, so that
    /// it is not worth a spin.
    Busy(u32),
    /// Nothing to do now.
    Idle,
    /// The reactor's work is over.
    Stop,
}

/// The result of preparing to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// Nothing is there; whatever comes makes a descriptor readable. It is safe to sleep.
    Quiet,
    /// Something is there already, and sleeping would lose time: turn again.
    Ready,
}

impl Armed {
    /// From the result of arming a source, such as a completion queue: whether something is ready.
    pub fn from_ready(ready: bool) -> Self {
        if ready { Self::Ready } else { Self::Quiet }
    }
}

/// The work of one reactor.
pub trait Turn {
    /// Does one round over every source, each within its own budget.
    fn turn(&mut self, now_us: u64) -> Flow;

    /// Prepares every source to signal its descriptor, and pushes the descriptors to `fds` (which
    /// is empty at first). May stop at a source that is ready.
    fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed;

    /// Called after [`Turn::arm`], and after the sleep if there was one. For every descriptor that
    /// was pushed, in that order: `false` when it was not readable by the end of the sleep, `true`
    /// when it was or when there was no sleep.
    fn disarm(&mut self, readable: &[bool]) {
        let _ = readable;
    }

    /// When to turn even if no descriptor becomes readable.
    fn next_deadline_us(&self) -> Option<u64>;

    /// Whether the kernel needs this machine's cores to deliver what the reactor waits for, so that
    /// a spin may hold it up.
    fn waits_for_kernel(&self) -> bool {
        false
    }
}

/// A spin this long starts to yield the core. Shorter than a round trip between two cores of one
/// machine, so that an answer from a busy peer on another core is still found by spinning.
const YIELD_AFTER_US: u64 = 3;

/// Waiting for the sources failed; the reactor cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("waiting for the reactor's sources failed: {0}; this is a bug in a source's descriptor")]
pub struct RunError(#[from] nix::Error);

/// Runs `work` on this thread until it says [`Flow::Stop`].
///
/// # Errors
/// [`RunError`] when the system refuses to wait for the descriptors.
pub fn run(work: &mut dyn Turn, spin: SpinBudget) -> Result<(), RunError> {
    Runner::default().run(work, spin)
}

/// The lists of a thread that runs again and again, which keep their memory from one run to the
/// next: a run allocates nothing where one before it had as many descriptors.
#[derive(Debug)]
pub struct Runner {
    fds: Vec<RawFd>,
    readable: Vec<bool>,
    /// Empty but for the time of a sleep: it borrows no descriptor beyond that.
    polled: Vec<PollFd<'static>>,
    /// What the thread spends its time with.
    spent: Arc<Spent>,
}

impl Default for Runner {
    fn default() -> Self {
        Self {
            fds: Vec::with_capacity(16),
            readable: Vec::with_capacity(16),
            polled: Vec::with_capacity(16),
            spent: Arc::default(),
        }
    }
}

impl Runner {
    /// One that says in `spent` what its thread spends its time with.
    #[must_use]
    pub fn counting(spent: Arc<Spent>) -> Self {
        Self {
            spent,
            ..Self::default()
        }
    }

    /// As [`run`].
    ///
    /// # Errors
    /// As [`run`].
    pub fn run(&mut self, work: &mut dyn Turn, spin: SpinBudget) -> Result<(), RunError> {
        let Self {
            fds,
            readable,
            polled,
            spent,
        } = self;
        let mut spin = Spin::new(spin);
        // Nothing has passed before the first turn.
        let (mut before_us, mut state) = (u64::MAX, State::Busy);
        loop {
            let now_us = Clock.now_us();
            spent.add_us(state, now_us.saturating_sub(before_us));
            before_us = now_us;
            match work.turn(now_us) {
                Flow::Stop => return Ok(()),
                Flow::Busy(work) => {
                    state = State::Busy;
                    spin.busy(now_us, work);
                }
                Flow::Idle => {
                    if let Some(idle_us) = spin.idle(now_us, work.waits_for_kernel()) {
                        state = State::Spin;
                        pause(idle_us);
                        continue;
                    }
                    state = State::Sleep;
                    fds.clear();
                    let armed = work.arm(fds);
                    readable.clear();
                    readable.resize(fds.len(), true);
                    if armed == Armed::Quiet {
                        spent.slept();
                        sleep(fds, work.next_deadline_us(), polled, readable)?;
                    }
                    work.disarm(readable);
                    spin.sleeps(now_us);
                }
            }
        }
    }
}

/// Passes a moment of a spin that has lasted `idle_us`: at first on the core, then by yielding it
/// to another thread, because on a shared core the spin may wait for exactly that thread.
pub fn pause(idle_us: u64) {
    if idle_us < YIELD_AFTER_US {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// Waits until a descriptor is readable or the deadline has come; `readable` says which are.
/// `polled`, which is empty before and after, keeps its memory from one sleep to the next.
fn sleep<'fd>(
    fds: &[RawFd],
    deadline_us: Option<u64>,
    polled: &mut Vec<PollFd<'fd>>,
    readable: &mut [bool],
) -> Result<(), RunError> {
    let timeout = deadline_us.map(|deadline_us| {
        let wait_us = deadline_us.saturating_sub(Clock.now_us());
        TimeSpec::from_duration(std::time::Duration::from_micros(wait_us))
    });
    polled.extend(fds.iter().map(|&fd| until_readable(fd)));
    let slept = ppoll(polled, timeout, None);
    if slept.is_ok() {
        for (readable, polled) in readable.iter_mut().zip(polled.iter()) {
            *readable = polled.any().unwrap_or(true);
        }
    }
    // No descriptor is borrowed beyond the wait.
    polled.clear();
    match slept {
        Ok(_) | Err(nix::Error::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[expect(
    unsafe_code,
    reason = "borrows a descriptor that its source keeps open"
)]
fn until_readable<'fd>(fd: RawFd) -> PollFd<'fd> {
    // SAFETY: `Turn::arm` pushes descriptors of sources the same `Turn` owns, and it is not called
    // again, so nothing is closed, before the wait is over.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    PollFd::new(fd, PollFlags::POLLIN)
}

/// Pins this thread to one core, as `taskset` numbers them.
///
/// # Errors
/// The core does not exist or is outside the allowed set.
pub fn pin_to_core(core: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd, RawFd};
    use std::time::Duration;

    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::{Arc, Armed, Flow, Runner, Spent, State, Turn, run};
    use crate::SpinBudget;
    use crate::{Mailbox, mailbox};

    struct Adder {
        mailbox: Mailbox<u64>,
        sum: u64,
        turns: u64,
        sleeps: u64,
        deadline_us: Option<u64>,
    }

    impl Adder {
        fn new(mailbox: Mailbox<u64>, deadline_us: Option<u64>) -> Self {
            Self {
                mailbox,
                sum: 0,
                turns: 0,
                sleeps: 0,
                deadline_us,
            }
        }
    }

    impl Turn for Adder {
        fn turn(&mut self, now_us: u64) -> Flow {
            self.turns += 1;
            if self
                .deadline_us
                .is_some_and(|deadline_us| now_us >= deadline_us)
            {
                return Flow::Stop;
            }
            match self.mailbox.poll() {
                Some(u64::MAX) => Flow::Stop,
                Some(n) => {
                    self.sum += n;
                    Flow::Busy(1)
                }
                None => Flow::Idle,
            }
        }

        fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
            self.mailbox.arm();
            fds.push(self.mailbox.fd());
            if let Some(n) = self.mailbox.poll() {
                self.sum += n;
                return Armed::Ready;
            }
            self.sleeps += 1;
            Armed::Quiet
        }

        fn disarm(&mut self, readable: &[bool]) {
            self.mailbox.disarm(readable[0]);
        }

        fn next_deadline_us(&self) -> Option<u64> {
            self.deadline_us
        }
    }

    #[test]
    fn messages_wake_a_sleeping_reactor_and_none_is_lost() {
        let (sender, mailbox) = mailbox(1 << 16).unwrap();
        let thread = std::thread::spawn(move || {
            let mut adder = Adder::new(mailbox, None);
            run(&mut adder, SpinBudget { spin_us: 5 }).unwrap();
            adder
        });
        for n in 1..=2000_u64 {
            sender.send(n).unwrap();
            if n % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        sender.send(u64::MAX).unwrap();
        let adder = thread.join().unwrap();
        assert_eq!(adder.sum, 2000 * 2001 / 2);
        assert!(adder.sleeps >= 1, "it never slept");
    }

    #[test]
    fn a_message_wakes_once() {
        let (sender, mailbox) = mailbox(1).unwrap();
        let deadline_us = Some(crate::Clock.now_us() + 200_000);
        let mut adder = Adder::new(mailbox, deadline_us);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            sender.send(3).unwrap();
            sender
        });
        run(&mut adder, SpinBudget { spin_us: 0 }).unwrap();
        drop(thread.join().unwrap());
        assert_eq!(adder.sum, 3);
        assert!(adder.turns < 20, "{} turns", adder.turns);
    }

    /// Two sources, of which one has something, that record how they are disarmed.
    struct Watcher {
        fds: [EventFd; 2],
        armed: Armed,
        told: Vec<Vec<bool>>,
    }

    impl Turn for Watcher {
        fn turn(&mut self, _now_us: u64) -> Flow {
            if self.told.is_empty() {
                Flow::Idle
            } else {
                Flow::Stop
            }
        }

        fn arm(&mut self, fds: &mut Vec<RawFd>) -> Armed {
            fds.extend(self.fds.iter().map(|fd| fd.as_fd().as_raw_fd()));
            self.armed
        }

        fn disarm(&mut self, readable: &[bool]) {
            self.told.push(readable.to_vec());
        }

        fn next_deadline_us(&self) -> Option<u64> {
            None
        }
    }

    #[test]
    fn it_says_what_it_spends_its_time_with() {
        let (_sender, mailbox) = mailbox(1).unwrap();
        let spent = Arc::new(Spent::default());
        let began_us = crate::Clock.now_us();
        let mut adder = Adder::new(mailbox, Some(began_us + 60_000));
        let spin = SpinBudget { spin_us: 0 };
        let mut runner = Runner::counting(Arc::clone(&spent));
        runner.run(&mut adder, spin).unwrap();
        let took_us = crate::Clock.now_us() - began_us;
        let [busy, spin, sleep] = State::ALL.map(|state| spent.us(state));
        assert!(sleep > 40_000, "it slept {sleep} us");
        assert!(
            busy + spin + sleep <= took_us,
            "{busy} {spin} {sleep} {took_us}"
        );
        assert!(spent.sleeps() >= 1 && spent.sleeps() <= adder.sleeps);
        assert!(spent.turns() >= adder.turns);
    }

    #[test]
    fn who_stayed_silent_is_told_so_after_a_sleep_alone() {
        for (armed, told) in [(Armed::Quiet, [false, true]), (Armed::Ready, [true, true])] {
            let event = |count| EventFd::from_value_and_flags(count, EfdFlags::EFD_NONBLOCK);
            let mut watcher = Watcher {
                fds: [event(0).unwrap(), event(1).unwrap()],
                armed,
                told: Vec::new(),
            };
            run(&mut watcher, SpinBudget { spin_us: 0 }).unwrap();
            assert_eq!(watcher.told, [told]);
        }
    }

    #[test]
    fn a_deadline_ends_the_sleep_and_idle_costs_few_turns() {
        let (_sender, mailbox) = mailbox(1).unwrap();
        let deadline_us = Some(crate::Clock.now_us() + 100_000);
        let mut adder = Adder::new(mailbox, deadline_us);
        run(&mut adder, SpinBudget { spin_us: 0 }).unwrap();
        assert!(adder.turns < 20, "{} turns while idle", adder.turns);
    }

    /// Two commands at first, then nothing.
    struct Pair {
        waits_for_kernel: bool,
        idle_turns: u64,
        began: bool,
        armed: bool,
    }

    impl Turn for Pair {
        fn turn(&mut self, _now_us: u64) -> Flow {
            if self.armed {
                return Flow::Stop;
            }
            if !std::mem::replace(&mut self.began, true) {
                return Flow::Busy(2);
            }
            self.idle_turns += 1;
            Flow::Idle
        }

        fn arm(&mut self, _fds: &mut Vec<RawFd>) -> Armed {
            self.armed = true;
            Armed::Ready
        }

        fn next_deadline_us(&self) -> Option<u64> {
            None
        }

        fn waits_for_kernel(&self) -> bool {
            self.waits_for_kernel
        }
    }

    #[test]
    fn a_source_in_the_kernel_is_not_spun_for_after_several_commands() {
        let idle_turns = |waits_for_kernel| {
            let mut pair = Pair {
                waits_for_kernel,
                idle_turns: 0,
                began: false,
                armed: false,
            };
            run(&mut pair, SpinBudget { spin_us: 200_000 }).unwrap();
            pair.idle_turns
        };
        assert_eq!(idle_turns(true), 1);
        assert!(idle_turns(false) > 1, "no spin at all");
    }
}
