//! The suites of queues, the controller's side and the host's, over an RDMA device of this machine.
//!
//! ```text
//! conformance_queue ADDRESS [LIBTEST_OPTIONS]
//! ```
//!
//! Both ends of each connection are in this process, on the device that owns the address. The
//! suites over the wires that need no device are tests of cargo's; `scripts/lab.sh conformance`
//! boots machines that have one.

#![expect(
    clippy::duplicate_mod,
    reason = "each suite has what both share, as it is a test by itself"
)]

#[path = "../tests/host/suite/mod.rs"]
mod host;
#[path = "../tests/queue/suite.rs"]
mod queue;

use std::net::IpAddr;
use std::process::ExitCode;

use capstan_rdma::contract::ConnectionManager;
use capstan_rdma::verbs::{Provider, device_for};
use libtest_mimic::Arguments;

fn manager() -> Box<dyn ConnectionManager> {
    let provider = Provider::new().expect("main has made one already");
    provider.connection_manager().expect("descriptors are left")
}

fn address(argument: Option<String>) -> Result<IpAddr, String> {
    let text = argument.ok_or("an address of an RDMA device is missing")?;
    let parsed = text.parse::<IpAddr>();
    let address = parsed.map_err(|error| format!("{text}: {error}, expected an IP address"))?;
    let device = device_for(address)?;
    eprintln!("{device:?}");
    Provider::new().map_err(|error| error.to_string())?;
    Ok(address)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    let address = match address(arguments.next()) {
        Ok(address) => address,
        Err(why) => {
            eprintln!("{program} ADDRESS [LIBTEST_OPTIONS]: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut arguments = Arguments::from_iter(std::iter::once(program).chain(arguments));
    // Software devices share the machine's cores with the cases.
    arguments.test_threads.get_or_insert(1);
    let mut trials = queue::trials(Some((address, manager)));
    trials.extend(host::trials(Some((address, manager))));
    libtest_mimic::run(&arguments, trials).exit_code()
}
