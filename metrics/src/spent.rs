//! How a thread spends its time.

use crate::Counter;

/// What a thread that polls and sleeps does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Something was to be done.
    Busy,
    /// Nothing was, and it looked again and again.
    Spin,
    /// It prepared to sleep, slept and woke.
    Sleep,
}

impl State {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Busy, Self::Spin, Self::Sleep];

    /// In a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Spin => "spin",
            Self::Sleep => "sleep",
        }
    }
}

/// The time of one thread, which writes it. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Spent {
    us: [Counter; 3],
    turns: Counter,
    sleeps: Counter,
}

impl Spent {
    /// A turn has ended that took so long, in this state.
    #[inline]
    pub fn add_us(&self, state: State, us: u64) {
        let [busy, spin, sleep] = &self.us;
        match state {
            State::Busy => busy.add(us),
            State::Spin => spin.add(us),
            State::Sleep => sleep.add(us),
        }
        self.turns.add(1);
    }

    /// It sleeps, by a system call.
    pub fn slept(&self) {
        self.sleeps.add(1);
    }

    /// Microseconds in a state, up to the last turn.
    #[must_use]
    pub fn us(&self, state: State) -> u64 {
        let [busy, spin, sleep] = &self.us;
        match state {
            State::Busy => busy.value(),
            State::Spin => spin.value(),
            State::Sleep => sleep.value(),
        }
    }

    /// Turns.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.turns.value()
    }

    /// Sleeps, each of which is a system call.
    #[must_use]
    pub fn sleeps(&self) -> u64 {
        self.sleeps.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_its_own_time() {
        let spent = Spent::default();
        for (us, state) in (1..).zip(State::ALL) {
            spent.add_us(state, us);
            spent.add_us(state, 10);
        }
        spent.slept();
        let all = State::ALL.map(|state| spent.us(state));
        assert_eq!(all, [11, 12, 13]);
        assert_eq!((spent.turns(), spent.sleeps()), (6, 1));
    }
}
