//! What `capstan-target` says of what its listeners serve.

use std::fs;
use std::process::Command;

use capstan_tests::program::{own_address, program, told, utf8};
use capstan_tests::target::SUBNQN;

/// `check` of a configuration with these lines in its listener.
fn checked(listener: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("target.toml");
    let text = format!(
        "[target]\nreactors = 1\nmemory_budget = \"64MiB\"\n[[listener]]\n{listener}\n\
         [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nram = \"1MiB\"\n"
    );
    fs::write(&file, text).expect("a file");
    let mut check = Command::new(program("capstan-target"));
    let output = check.args(["check", "--config", utf8(&file)]).output();
    told(&output.expect("it starts"))
}

#[test]
fn check_says_what_each_listener_serves() {
    let at = own_address();
    let place = format!("address = \"{}\"\nprovider = \"iwarp\"\n", at.ip());
    for (transports, words) in [
        (
            "",
            "NVMe/RDMA by iwarp, asked for; NVMe/TCP at the same port",
        ),
        (
            "transports = [\"tcp\"]",
            "no NVMe/RDMA, transports names NVMe/TCP only; NVMe/TCP",
        ),
        (
            "transports = [\"rdma\"]",
            "NVMe/RDMA by iwarp, asked for; no NVMe/TCP, transports names NVMe/RDMA only",
        ),
    ] {
        let said = checked(&format!("{place}{transports}"));
        let line = format!("listen {}:4420: {words}\n", at.ip());
        assert!(said.contains(&line), "{transports}: {said}");
    }
}
