//! The table of figures: every one beside a reference of the same run, because machines differ and
//! are noisy. `scripts/bench.sh` builds and runs it; `docs/performance.md` says how to read it.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod capsules;
mod cases;
mod chart;
mod figure;
mod load;
mod noise;
mod process;
mod report;
mod slices;
mod tcp;
mod turns;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use capstan_tests::process::allow_many_descriptors;
use cases::{CASES, Case};
use clap::Parser;
use noise::Moment;
use report::Results;

/// The load's core and the target's.
const HOST_CORE: usize = 0;
const TARGET_CORE: usize = 1;

/// Measures Capstan beside plain TCP, fio and itself, and prints the table.
#[derive(Parser)]
#[command(name = "scripts/bench.sh")]
struct Arguments {
    /// What to measure [default: the whole table, without soft-roce-counted]; --list says what
    /// there is.
    cases: Vec<String>,
    /// Seconds of one run.
    #[arg(long, default_value_t = 1.0)]
    runtime: f64,
    /// Runs of each figure, in turn with its reference.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Of the rows of wire…, same-host, spdk, file, fairness and instructions, those whose name in
    /// performance.json contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    rows: String,
    /// For the results, the file of the file case, and what the tools leave [default: build/bench].
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Put the results into docs/performance.json and .svg, which later runs are compared with,
    /// unless the machine was noisy.
    #[arg(long)]
    save: bool,
    /// Say what can be measured.
    #[arg(long)]
    list: bool,
    /// Be the host of a row of instructions, which CASES names, on the target at this address.
    #[arg(long, hide = true, requires = "commands", value_name = "ADDRESS")]
    play_host: Option<SocketAddr>,
    /// How many commands that host sends.
    #[arg(long, hide = true, value_name = "COUNT")]
    commands: Option<u64>,
    /// What cargo bench adds.
    #[arg(long, hide = true)]
    bench: bool,
}

/// How a case measures.
pub(crate) struct Setting {
    pub(crate) rounds: usize,
    pub(crate) runtime: Duration,
    pub(crate) folder: PathBuf,
    /// What the names of rows contain.
    rows: String,
}

impl Setting {
    /// Whether the row of that name was asked for.
    pub(crate) fn wants(&self, row: &str) -> bool {
        row.contains(&self.rows)
    }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Case>> {
    for name in names {
        if !CASES.iter().any(|case| case.name == name) {
            let known: Vec<_> = CASES.iter().map(|case| case.name).collect();
            bail!("no case is called {name}; there are {}", known.join(", "));
        }
    }
    let asked = |case: &&Case| match names {
        [] => !case.extra,
        _ => names.iter().any(|name| name == case.name),
    };
    Ok(CASES.iter().filter(asked).collect())
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.list {
        for case in &CASES {
            println!("{:18}{}", case.name, case.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let (Some(target), Some(commands)) = (arguments.play_host, arguments.commands) {
        cases::play_host(&arguments.cases.concat(), target, commands)?;
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = chosen(&arguments.cases)?;
    if arguments.save && cfg!(debug_assertions) {
        bail!("--save is for what users run: leave CAPSTAN_BENCH_PROFILE out");
    }
    allow_many_descriptors();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = arguments
        .folder
        .unwrap_or_else(|| repository.join("build/bench"));
    std::fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    let setting = Setting {
        rounds: arguments.rounds.max(1),
        runtime: Duration::from_secs_f64(arguments.runtime),
        folder: folder.canonicalize()?,
        rows: arguments.rows,
    };
    let committed = Results::read(&repository.join("docs/performance.json"))?;
    let mut results = Results {
        machine: report::machine(),
        figures: Vec::new(),
    };
    let (mut failed, mut noisy) = (Vec::new(), Vec::new());
    println!("{}", results.machine);
    for case in chosen {
        println!("\n{}: {}", case.name, case.what);
        let start = Moment::now()?;
        let found = match (case.run)(&setting) {
            Ok(found) => found,
            // What the others have found is kept.
            Err(error) => {
                println!("  FAILED {error:#}");
                failed.push(case.name.to_owned());
                continue;
            }
        };
        let noise = start.noise()?;
        let warning = noise.warning();
        for why in &found.skipped {
            println!("  SKIPPED {why}");
        }
        for mut figure in found.figures {
            figure.measured = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
            figure.noise = noise;
            report::print(&figure, committed.figure(&figure.name));
            if figure.fails() {
                failed.push(figure.name.clone());
            }
            // Counts are the same on a busy machine.
            if warning.is_some() && figure.bounds.gate.is_none() {
                noisy.push(figure.name.clone());
            }
            results.figures.push(figure);
        }
        if let Some(warning) = warning {
            println!("  NOISY {warning}");
        }
    }
    results.write(&setting.folder)?;
    println!(
        "\nresults: {0}/performance.json and {0}/performance.svg",
        setting.folder.display()
    );
    if arguments.save {
        let folder = repository.join("docs");
        results
            .figures
            .retain(|figure| !noisy.contains(&figure.name));
        committed.replaced_by(results).write(&folder)?;
        println!("saved: docs/performance.json and docs/performance.svg");
        if !noisy.is_empty() {
            println!(
                "not saved, because the machine was noisy: {}",
                noisy.join(", ")
            );
        }
    }
    if !failed.is_empty() {
        println!("FAILED, or beyond their gates: {}", failed.join(", "));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
