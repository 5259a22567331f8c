//! Measuring two things in turn, a moment of each at a time.

use std::time::Duration;

use anyhow::Result;

use crate::figure::percentile;

/// Long enough for thousands of operations. Short enough that what neighbours of a virtual machine
/// take, which changes within seconds, is taken from both.
pub(crate) const TURN: Duration = Duration::from_millis(50);

/// What turns of one run have found: pairs of a value and its reference.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(pub(crate) Vec<(f64, f64)>);

/// Measures a reference and what stands beside it for `time` each, in turns of `turn`.
///
/// # Errors
/// What measuring ended with.
pub(crate) fn in_turn(
    time: Duration,
    turn: Duration,
    mut reference: impl FnMut(Duration) -> Result<f64>,
    mut value: impl FnMut(Duration) -> Result<f64>,
) -> Result<Turns> {
    let turn = turn.min(time);
    let mut left = time;
    let mut pairs = Vec::new();
    while left >= turn && !turn.is_zero() {
        let beside = reference(turn)?;
        pairs.push((value(turn)?, beside));
        left -= turn;
    }
    Ok(Turns(pairs))
}

impl Turns {
    /// The median value.
    pub(crate) fn value(&self) -> f64 {
        self.median(|value, _| value)
    }

    /// The median reference.
    pub(crate) fn reference(&self) -> f64 {
        self.median(|_, reference| reference)
    }

    /// The median of what each pair makes.
    pub(crate) fn median(&self, score: impl Fn(f64, f64) -> f64) -> f64 {
        let scores = self.0.iter().map(|pair| score(pair.0, pair.1));
        percentile(&scores.collect::<Vec<_>>(), 50.0)
    }
}
