//! One of many.

/// After so many, a sampler that takes none asks whether it is to take some now.
const ASKS_AGAIN: u32 = 1024;

/// Chooses one of so many commands, the first one among them.
#[derive(Debug)]
pub struct Sampler {
    left: u32,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { left: 1 }
    }
}

impl Sampler {
    /// Whether the next one is chosen. `period` is asked for where the last one was: one in so
    /// many is taken, and none for 0.
    #[inline]
    pub fn takes_next(&mut self, period: impl FnOnce() -> u32) -> bool {
        self.left = self.left.wrapping_sub(1);
        self.left == 0 && self.begin(period())
    }

    #[cold]
    fn begin(&mut self, period: u32) -> bool {
        self.left = if period == 0 { ASKS_AGAIN } else { period };
        period != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(sampler: &mut Sampler, of: u32, period: u32) -> usize {
        (0..of).filter(|_| sampler.takes_next(|| period)).count()
    }

    #[test]
    fn one_in_so_many_is_taken_and_none_for_nothing() {
        let mut sampler = Sampler::default();
        assert!(sampler.takes_next(|| 64), "the first one");
        assert_eq!(taken(&mut sampler, 64 * 10, 64), 10);
        assert_eq!(taken(&mut Sampler::default(), 10, 1), 10);
        let mut none = Sampler::default();
        assert_eq!(taken(&mut none, 10_000, 0), 0);
        assert_eq!(taken(&mut none, ASKS_AGAIN, 4).min(1), 1, "it asks again");
    }
}
