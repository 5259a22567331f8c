//! What a case has measured, and what it should be.

use serde::{Deserialize, Serialize};

use crate::noise::Noise;
use crate::turns::Turns;

/// Samples of one quantity, one per run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Quantity {
    /// What it is counted in.
    pub(crate) unit: String,
    /// In the order they were taken.
    pub(crate) samples: Vec<f64>,
    /// The middle one.
    pub(crate) median: f64,
}

impl Quantity {
    /// Of samples that are all numbers.
    pub(crate) fn new(unit: &str, samples: Vec<f64>) -> Self {
        Self {
            unit: unit.to_owned(),
            median: percentile(&samples, 50.0),
            samples,
        }
    }

    /// From the smallest sample to the largest, as a part of the median.
    pub(crate) fn spread(&self) -> f64 {
        let least = self.samples.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self
            .samples
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max);
        if self.median == 0.0 {
            return 0.0;
        }
        (most - least) / self.median.abs()
    }
}

/// The sample that `percent` of the samples do not exceed; 0 without samples.
pub(crate) fn percentile(samples: &[f64], percent: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index of a short list"
    )]
    let at = (last as f64 * percent / 100.0).round() as usize;
    sorted.get(at).copied().unwrap_or_default()
}

/// Which of two scores is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    /// The smaller one.
    Lower,
    /// The larger one.
    Higher,
}

impl Better {
    /// Whether `score` is at least as good as `bound`.
    pub(crate) fn meets(self, score: f64, bound: f64) -> bool {
        match self {
            Self::Lower => score <= bound,
            Self::Higher => score >= bound,
        }
    }

    /// `score` as a part of `aim`, larger being better.
    pub(crate) fn part(self, score: f64, aim: f64) -> f64 {
        match self {
            Self::Lower => aim / score.max(f64::MIN_POSITIVE),
            Self::Higher => score / aim,
        }
    }

    /// How a bound is written.
    pub(crate) fn sign(self) -> char {
        match self {
            Self::Lower => '≤',
            Self::Higher => '≥',
        }
    }
}

/// What a score should be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bounds {
    pub(crate) better: Better,
    /// Required of every version.
    pub(crate) now: Option<f64>,
    /// What the design can give.
    pub(crate) aim: Option<f64>,
    /// The best other user-space stack, in words.
    pub(crate) peer: Option<String>,
    /// Deterministic figures only: beyond it the run fails.
    pub(crate) gate: Option<f64>,
}

impl Bounds {
    /// Nothing is required yet.
    pub(crate) fn none(better: Better) -> Self {
        Self {
            better,
            now: None,
            aim: None,
            peer: None,
            gate: None,
        }
    }

    /// Required, and hoped for.
    pub(crate) fn new(better: Better, now: f64, aim: f64) -> Self {
        Self {
            now: Some(now),
            aim: Some(aim),
            ..Self::none(better)
        }
    }

    /// With what the best other stack has.
    pub(crate) fn peer(mut self, peer: &str) -> Self {
        self.peer = Some(peer.to_owned());
        self
    }

    /// With a limit that fails the run.
    pub(crate) fn gate(mut self, gate: f64) -> Self {
        self.gate = Some(gate);
        self
    }
}

/// One figure of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Stays the same between versions: results are compared by it.
    pub(crate) name: String,
    /// For people.
    pub(crate) what: String,
    /// As measured.
    pub(crate) value: Quantity,
    /// What it stands beside: what it is, and its samples of the same runs.
    pub(crate) reference: Option<(String, Quantity)>,
    /// In the terms of the bounds; often the ratio of the two in each run.
    pub(crate) score: Quantity,
    pub(crate) bounds: Bounds,
    /// When, in UTC; set by the report.
    pub(crate) measured: String,
    /// What others took of the machine meanwhile; set by the report.
    pub(crate) noise: Noise,
}

impl Figure {
    /// A figure whose value is what is bounded.
    pub(crate) fn plain(name: &str, what: &str, value: Quantity, bounds: Bounds) -> Self {
        Self {
            name: name.to_owned(),
            what: what.to_owned(),
            score: value.clone(),
            value,
            reference: None,
            bounds,
            measured: String::new(),
            noise: Noise::default(),
        }
    }

    /// A figure beside a reference of the same runs, with the score that both make in each.
    pub(crate) fn beside(
        name: &str,
        what: &str,
        value: Quantity,
        reference: (&str, Quantity),
        (unit, score): (&str, impl Fn(f64, f64) -> f64),
        bounds: Bounds,
    ) -> Self {
        let pairs = value.samples.iter().zip(&reference.1.samples);
        let scores = pairs.map(|(value, reference)| score(*value, *reference));
        Self {
            score: Quantity::new(unit, scores.collect()),
            reference: Some((reference.0.to_owned(), reference.1)),
            ..Self::plain(name, what, value, bounds)
        }
    }

    /// A figure that was measured in turn with its reference in every run, with the median score of
    /// the turns of each. `value` and `reference` have the units of the turns, the latter after its
    /// name.
    pub(crate) fn in_turn(
        name: &str,
        what: &str,
        runs: &[Turns],
        value: &str,
        reference: (&str, &str),
        (unit, score): (&str, impl Fn(f64, f64) -> f64),
        bounds: Bounds,
    ) -> Self {
        let of = |unit, median: &dyn Fn(&Turns) -> f64| {
            Quantity::new(unit, runs.iter().map(median).collect())
        };
        Self {
            reference: Some((reference.0.to_owned(), of(reference.1, &Turns::reference))),
            score: of(unit, &|turns| turns.median(&score)),
            ..Self::plain(name, what, of(value, &Turns::value), bounds)
        }
    }

    /// Whether it is beyond its gate.
    pub(crate) fn fails(&self) -> bool {
        let gate = self.bounds.gate;
        gate.is_some_and(|gate| !self.bounds.better.meets(self.score.median, gate))
    }
}

/// What a case has found.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) figures: Vec<Figure>,
    /// What could not be measured here, and why.
    pub(crate) skipped: Vec<String>,
}

impl Findings {
    /// Nothing, and why.
    pub(crate) fn skipped(why: String) -> Self {
        Self {
            figures: Vec::new(),
            skipped: vec![why],
        }
    }
}

impl From<Vec<Figure>> for Findings {
    fn from(figures: Vec<Figure>) -> Self {
        Self {
            figures,
            skipped: Vec::new(),
        }
    }
}
