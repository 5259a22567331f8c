//! Cases of what programs may expect of a mounted file system, run on a mount of an NFS export.
//!
//! ```text
//! nfs_suite DIR [DIR2] [--list] [--only NAME]… [--skip NAME]… [--lacks FEATURE]…
//! ```
//!
//! DIR is a folder on the mount, and DIR2 the same folder as another client has it mounted, with
//! `actimeo=0`: what the first has done is looked at by the second at once. It
//! prints a line per case (`PASS name`, `FAIL name: what was expected`, `SKIPPED name: why`) and
//! the sum, and fails when a case did. To be run by root, on an
//! export that does not squash root.
//!
//! What a version of NFS lacks is said with `--lacks`, and never found out: a case that finds a
//! feature missing fails. The lines hold nothing that differs from run to run, so that those of
//! two servers can be compared.

mod cases;
mod expect;
mod feature;
mod helper;
mod place;
mod random;
mod sys;
mod user;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use crate::cases::{Case, all};
use crate::feature::Feature;
use crate::place::{Place, Sizes};

#[derive(Parser)]
#[command(about = "Cases of what programs may expect of a mounted NFS export")]
struct Arguments {
    /// A folder on the mount.
    #[arg(required_unless_present_any = ["list", "helper"])]
    folder: Option<PathBuf>,
    /// The same folder, as another client has it mounted; the same mount without.
    second: Option<PathBuf>,
    /// Prints the names of the cases.
    #[arg(long)]
    list: bool,
    /// Runs cases of this name, or of this subject, only.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Leaves this case, or this subject, out.
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
    /// What the mount does not have.
    #[arg(long, value_name = "FEATURE")]
    lacks: Vec<Feature>,
    /// How many random operations `random/operations` does.
    #[arg(long, default_value_t = 2000)]
    operations: u64,
    /// How many entries the largest folder gets.
    #[arg(long, default_value_t = 10_000)]
    entries: usize,
    /// Where random numbers begin.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints how long each case took, behind its name.
    #[arg(long)]
    times: bool,
    /// Does what it reads from its standard input: the other process of cases that need two.
    #[arg(long, hide = true)]
    helper: bool,
}

enum Verdict {
    Pass,
    Fail(String),
    Skipped(String),
}

/// The output is the program's result.
#[expect(
    clippy::print_stdout,
    reason = "the verdicts are what the program is for"
)]
fn say(line: &str) {
    println!("{line}");
}

fn is_named(case: &Case, names: &[String]) -> bool {
    let subject = case.name.split('/').next().unwrap_or_default();
    names
        .iter()
        .any(|name| name == case.name || name == subject)
}

fn run(case: &Case, arguments: &Arguments, folder: &PathBuf) -> Verdict {
    if is_named(case, &arguments.skip) {
        return Verdict::Skipped("--skip".to_owned());
    }
    if let Some(lacking) = case
        .needs
        .iter()
        .find(|need| arguments.lacks.contains(need))
    {
        return Verdict::Skipped(format!("--lacks {lacking}"));
    }
    let second = arguments.second.as_ref().unwrap_or(folder);
    let sizes = Sizes {
        operations: arguments.operations,
        entries: arguments.entries,
        seed: arguments.seed,
    };
    let ran = Place::make(folder, second, case.name, sizes).and_then(|place| {
        let ran = (case.run)(&place);
        let removed = place.remove();
        ran.and(removed)
    });
    match ran {
        Ok(()) => Verdict::Pass,
        Err(failure) => Verdict::Fail(failure.to_string()),
    }
}

fn unknown_names(cases: &[Case], arguments: &Arguments) -> Option<String> {
    arguments
        .only
        .iter()
        .chain(&arguments.skip)
        .find(|name| !cases.iter().any(|case| is_named(case, &[(*name).clone()])))
        .cloned()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Modes are to be what a case asks for.
    nix::sys::stat::umask(nix::sys::stat::Mode::empty());
    if arguments.helper {
        return helper::serve();
    }
    let cases = all();
    if arguments.list {
        for case in &cases {
            say(case.name);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(name) = unknown_names(&cases, &arguments) {
        eprintln!("{name}: no case or subject is called so; --list names them");
        return ExitCode::FAILURE;
    }
    let Some(folder) = arguments.folder.as_ref() else {
        return ExitCode::FAILURE;
    };
    let (mut passed, mut failed, mut skipped) = (0_u32, 0_u32, 0_u32);
    for case in &cases {
        if !arguments.only.is_empty() && !is_named(case, &arguments.only) {
            continue;
        }
        let began = Instant::now();
        let verdict = run(case, &arguments, folder);
        let time = if arguments.times {
            format!(" ({} ms)", began.elapsed().as_millis())
        } else {
            String::new()
        };
        match verdict {
            Verdict::Pass => {
                passed += 1;
                say(&format!("PASS {}{time}", case.name));
            }
            Verdict::Fail(why) => {
                failed += 1;
                say(&format!("FAIL {}{time}: {why}", case.name));
            }
            Verdict::Skipped(why) => {
                skipped += 1;
                say(&format!("SKIPPED {}: {why}", case.name));
            }
        }
    }
    say(&format!(
        "{passed} passed, {failed} failed, {skipped} skipped"
    ));
    if failed == 0 && passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
