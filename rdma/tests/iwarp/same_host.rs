//! Shared memory between two ends on one machine: who takes it. That it carries everything a socket
//! does is the conformance suite's (`same_host`).

use std::process::Command;
use std::{env, fs};

use capstan_rdma::iwarp::Config;

use crate::side::Pair;

/// Mappings of this process that come from a connection.
fn mappings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|l| l.contains("memfd:capstan-iwarp"))
        .count()
}

/// Runs `test` again, alone in a process, unless this is that process: the tests of a program may
/// be threads of one process, and each has mappings.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "CAPSTAN_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let mut program = Command::new(env::current_exe().unwrap());
    let ran = program.args(["--exact", test]).env(ALONE, "1").output();
    let ran = ran.unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    false
}

fn without() -> Config {
    Config {
        same_host: false,
        ..Config::default()
    }
}

#[test]
fn two_ends_of_one_machine_share_memory_and_give_it_back() {
    if !is_alone("same_host::two_ends_of_one_machine_share_memory_and_give_it_back") {
        return;
    }
    let pair = Pair::new();
    assert_eq!(mappings(), 2);
    drop(pair);
    assert_eq!(mappings(), 0);
}

#[test]
fn one_end_alone_does_not() {
    if !is_alone("same_host::one_end_alone_does_not") {
        return;
    }
    for (host, target) in [
        (without(), Config::default()),
        (Config::default(), without()),
    ] {
        let _pair = Pair::with(host, target);
        assert_eq!(mappings(), 0);
    }
}
