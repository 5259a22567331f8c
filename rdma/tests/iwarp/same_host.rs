//! Shared memory between two ends on one machine: who takes it. That it carries everything a socket
//! does is the conformance suite's (`same_host`).

use std::fs;

use capstan_rdma::iwarp::Config;

use crate::side::Pair;

/// Mappings of this process that come from a connection.
fn mappings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|l| l.contains("memfd:capstan-iwarp"))
        .count()
}

fn without() -> Config {
    Config {
        same_host: false,
        ..Config::default()
    }
}

#[test]
fn two_ends_of_one_machine_share_memory_and_give_it_back() {
    let pair = Pair::new();
    assert_eq!(mappings(), 2);
    drop(pair);
    assert_eq!(mappings(), 0);
}

#[test]
fn one_end_alone_does_not() {
    for (host, target) in [
        (without(), Config::default()),
        (Config::default(), without()),
    ] {
        let _pair = Pair::with(host, target);
        assert_eq!(mappings(), 0);
    }
}
