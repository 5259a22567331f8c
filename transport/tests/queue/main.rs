//! The suite of the controller's side, over the wires that need no device.

#[path = "suite.rs"]
mod suite;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = libtest_mimic::Arguments::from_args();
    libtest_mimic::run(&arguments, suite::trials(None)).exit_code()
}
