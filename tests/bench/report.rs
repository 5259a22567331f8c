//! Results: on the terminal, as JSON, and beside those that were committed last.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::chart;
use crate::figure::{Bounds, Figure, Quantity};
use crate::noise::SPREAD_MAX;

/// Of one or several runs.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Results {
    /// Where the last of them was.
    pub(crate) machine: String,
    pub(crate) figures: Vec<Figure>,
}

impl Results {
    /// Reads results; none are there before the first are saved.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        match fs::read_to_string(file) {
            Ok(text) => serde_json::from_str(&text).with_context(|| format!("{}", file.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("{}", file.display())),
        }
    }

    /// The figure of that name.
    pub(crate) fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }

    /// With newer figures in the place of those that they measure again.
    pub(crate) fn replaced_by(mut self, newer: Self) -> Self {
        for figure in newer.figures {
            match self.figures.iter_mut().find(|old| old.name == figure.name) {
                Some(old) => *old = figure,
                None => self.figures.push(figure),
            }
        }
        self.machine = newer.machine;
        self
    }

    /// Writes `performance.json` and `performance.svg` into a folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)? + "\n";
        fs::write(folder.join("performance.json"), json)?;
        chart::draw(self, &folder.join("performance.svg"))
    }
}

/// What this machine is, in a line.
pub(crate) fn machine() -> String {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown CPU", |line| {
        line.trim_start_matches(['\t', ' ', ':'])
    });
    let kernel = read("/proc/sys/kernel/osrelease");
    let cores = cpus
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    format!("{cores} cores ({model}), Linux {}", kernel.trim())
}

/// As many digits as tell something.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0..1.0 => format!("{value:.3}"),
        1.0..100.0 => format!("{value:.2}"),
        100.0..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn quantity(quantity: &Quantity) -> String {
    format!("{} {}", number(quantity.median), quantity.unit)
}

/// A figure in two or three lines.
pub(crate) fn print(figure: &Figure, committed: Option<&Figure>) {
    let Figure { value, score, .. } = figure;
    println!("  {}", figure.what);
    let mut line = quantity(value);
    if let Some((name, reference)) = &figure.reference {
        line += &format!("; {name} {}; {}", quantity(reference), quantity(score));
    }
    if score.samples.len() > 1 {
        line += &format!("; spread {:.0} %", 100.0 * score.spread());
        if score.spread() > SPREAD_MAX {
            line += " (NOISY)";
        }
    }
    println!("      {line}");
    let mut line = bounds(&figure.bounds, score.median);
    if let Some(was) = committed
        .map(|figure| figure.score.median)
        .filter(|was| *was > 0.0)
    {
        let change = 100.0 * (score.median / was - 1.0);
        line.push(format!("committed {} ({change:+.1} %)", number(was)));
    }
    if !line.is_empty() {
        println!("      {}", line.join("; "));
    }
}

fn bounds(bounds: &Bounds, score: f64) -> Vec<String> {
    let named = [
        ("now", bounds.now),
        ("aim", bounds.aim),
        ("gate", bounds.gate),
    ];
    let judged = named.iter().filter_map(|(name, bound)| {
        let bound = (*bound)?;
        let met = bounds.better.meets(score, bound);
        let verdict = if met { "met" } else { "MISSED" };
        Some(format!(
            "{name} {} {}: {verdict}",
            bounds.better.sign(),
            number(bound)
        ))
    });
    let peer = bounds.peer.iter().map(|peer| format!("best peer {peer}"));
    judged.chain(peer).collect()
}
