//! `capstan`: the host side of NVMe over RDMA, on the command line.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
