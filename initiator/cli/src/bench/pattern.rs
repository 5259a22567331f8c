//! Which block comes next.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Below `bound`, without a division (Lemire's reduction; the bias is below 2^-32 for the
    /// bounds used here).
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }
}

pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The order in which blocks `0..count` are visited.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    /// One after the other, and again.
    Sequential { next: u64, count: u64 },
    /// Anywhere, with repetitions.
    Random { random: Random, count: u64 },
    /// Anywhere, each once before any twice.
    Permuted {
        next: u64,
        bits: u32,
        key: u64,
        count: u64,
    },
}

impl Pattern {
    pub(super) fn sequential(count: u64) -> Self {
        Self::Sequential { next: 0, count }
    }

    pub(super) fn random(count: u64, seed: u64) -> Self {
        Self::Random {
            random: Random::new(seed),
            count,
        }
    }

    pub(super) fn permuted(count: u64, seed: u64) -> Self {
        Self::Permuted {
            next: 0,
            // An even number of bits, at least two, that can name every block.
            bits: (u64::BITS - count.saturating_sub(1).leading_zeros())
                .max(2)
                .next_multiple_of(2),
            key: mix(seed),
            count,
        }
    }

    /// The next block.
    pub(super) fn next(&mut self) -> u64 {
        match self {
            Self::Sequential { next, count } => {
                let block = *next;
                *next = if block + 1 == *count { 0 } else { block + 1 };
                block
            }
            Self::Random { random, count } => random.below(*count),
            Self::Permuted {
                next,
                bits,
                key,
                count,
            } => loop {
                // Walking the cycle past numbers that are no block; fewer than three in four are.
                let block = feistel(*next, *bits, *key);
                *next = (*next + 1) & ((1 << *bits) - 1);
                if block < *count {
                    return block;
                }
            },
        }
    }
}

/// A permutation of the numbers of `bits` bits: four rounds of a Feistel network.
fn feistel(value: u64, bits: u32, key: u64) -> u64 {
    let half = bits / 2;
    let mask = (1_u64 << half) - 1;
    let (mut left, mut right) = (value >> half, value & mask);
    for round in 0..4 {
        let f = mix(right ^ key.rotate_left(round * 16)) & mask;
        (left, right) = (right, left ^ f);
    }
    left << half | right
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn a_permutation_visits_every_block_once() {
        for count in [1, 2, 3, 64, 1000, 4097] {
            let mut pattern = Pattern::permuted(count, 7);
            for pass in 0..2 {
                let mut seen: Vec<u64> = (0..count).map(|_| pattern.next()).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..count), "{count} blocks, pass {pass}");
            }
        }
    }

    #[test]
    fn sequential_wraps_and_random_stays_inside() {
        let mut pattern = Pattern::sequential(3);
        let blocks: Vec<_> = (0..7).map(|_| pattern.next()).collect();
        assert_eq!(blocks, [0, 1, 2, 0, 1, 2, 0]);
        let mut pattern = Pattern::random(1000, 1);
        let blocks: Vec<_> = (0..10_000).map(|_| pattern.next()).collect();
        assert!(blocks.iter().all(|block| *block < 1000));
        assert!(blocks.iter().min() < Some(&10) && blocks.iter().max() > Some(&990));
    }
}
