//! The suite of the host's side, over the wires that need no device.

mod suite;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = libtest_mimic::Arguments::from_args();
    libtest_mimic::run(&arguments, suite::trials(None)).exit_code()
}
