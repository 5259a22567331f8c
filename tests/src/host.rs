//! Hosts in this process.

use std::net::SocketAddr;

use capstan_initiator::{DirectQueue, Io, Op, Options};
use capstan_nvme_proto::nqn::{HostId, Nqn};
use capstan_reactor::Clock;

use crate::target::SUBNQN;

/// Options of the `number`th host for the subsystem under test at `address`.
///
/// # Panics
/// Never for the constants used here.
#[must_use]
pub fn options(address: SocketAddr, number: u8) -> Options {
    let hostnqn = format!("nqn.2026-11.org.example:host-{number}");
    let mut hostid = [0x10; 16];
    hostid[15] = number;
    let mut options = Options::new(
        &address.ip().to_string(),
        Nqn::new(SUBNQN).expect("a valid NQN"),
        Nqn::new(&hostnqn).expect("a valid NQN"),
        HostId(hostid),
    );
    options.trsvcid = address.port();
    // Small: a hundred of them run in one process.
    options.data_memory_bytes = 1 << 20;
    options.queue_size = 32;
    options
}

/// Runs one I/O to its end.
///
/// # Panics
/// When it is refused, fails, or takes a minute.
pub fn run(queue: &mut DirectQueue, io: Op, data: &mut [u8]) {
    let mut buffer = queue
        .take(u32::try_from(data.len()).expect("small"))
        .expect("memory");
    buffer.copy_from(0, data);
    queue
        .submit(1, Io { nsid: 1, op: io }, Some(buffer))
        .expect("taken");
    let deadline_us = Clock.now_us() + 60_000_000;
    let completion = queue
        .wait(Some(deadline_us))
        .expect("an I/O within a minute");
    completion.result.expect("success");
    completion
        .buffer
        .expect("the buffer comes back")
        .copy_to(0, data);
}
