//! Controllers that anybody may have: no address keeps the others out, and none keeps out a host
//! that is listed.

use alloc::format;

use capstan_nvme_proto::nqn::Nqn;

use crate::testing::{Bench, PORT, address, host, nqn, subnqn, subsystem_config};
use crate::{HostPolicy, RefuseReason, SubsystemConfig, TargetConfig};

const CONTROLLERS: usize = 64;

/// The subsystem that any host may use.
fn open() -> Nqn {
    nqn("nqn.2024-01.org.example:open")
}

/// A target with a subsystem of listed hosts, when there is to be one, and one for any host.
fn bench(controllers: usize, lists: bool) -> Bench {
    let mut bench = Bench::with(TargetConfig {
        controllers,
        ..TargetConfig::default()
    });
    if !lists {
        bench.target.remove_subsystem(&subnqn()).unwrap();
    }
    let subsystem = SubsystemConfig {
        nqn: open(),
        hosts: HostPolicy::Any,
        ports: [PORT].into(),
        ..subsystem_config()
    };
    bench.target.add_subsystem(subsystem).unwrap();
    bench
}

/// Connects from `from` under one name after the other until it is refused: how many there are
/// then, and why there are no more.
fn take_all(bench: &mut Bench, from: &str) -> (usize, RefuseReason) {
    bench.peer = address(from);
    for taken in 0..=CONTROLLERS {
        let name = nqn(&format!("nqn.2024-01.org.example:{from}-{taken}"));
        if let Err(why) = bench.associate(name, open(), 0) {
            return (taken, why);
        }
    }
    panic!("more than {CONTROLLERS} controllers");
}

#[test]
fn an_address_leaves_a_part_of_the_controllers_to_others_whatever_it_calls_itself() {
    let mut bench = bench(CONTROLLERS, false);
    let (taken, why) = take_all(&mut bench, "10.0.0.1:1000");
    assert_eq!(why, RefuseReason::ShareOfControllers { has: 49, left: 15 });
    let (next, why) = take_all(&mut bench, "10.0.0.2:1000");
    assert_eq!(why, RefuseReason::ShareOfControllers { has: 12, left: 3 });
    assert_eq!((taken, next), (49, 12));
    // Another one has what is left, to the last.
    let (rest, why) = take_all(&mut bench, "10.0.0.3:1000");
    let controllers = CONTROLLERS;
    assert_eq!(why, RefuseReason::TooManyControllers { controllers });
    assert_eq!(rest, 3);
}

#[test]
fn a_network_of_ipv6_is_one_address() {
    let mut bench = bench(CONTROLLERS, false);
    let (first, _) = take_all(&mut bench, "[2001:db8::1]:1000");
    let (beside, _) = take_all(&mut bench, "[2001:db8::2]:1000");
    let (elsewhere, _) = take_all(&mut bench, "[2001:db8:0:1::1]:1000");
    assert_eq!((first, beside, elsewhere), (49, 0, 12));
}

#[test]
fn controllers_of_hosts_that_left_are_there_again() {
    let mut bench = bench(CONTROLLERS, false);
    bench.peer = address("10.0.0.1:1000");
    let first = bench.associate(host(7), open(), 0).unwrap();
    take_all(&mut bench, "10.0.0.1:1000");
    bench.disconnect(first.conn);
    bench.associate(host(8), open(), 0).unwrap();
}

#[test]
fn a_few_controllers_may_all_be_of_one_address() {
    for controllers in 1..=4 {
        let mut bench = bench(controllers, false);
        let (taken, why) = take_all(&mut bench, "10.0.0.1:1000");
        assert_eq!(why, RefuseReason::TooManyControllers { controllers });
        assert_eq!(taken, controllers);
    }
}

#[test]
fn hosts_that_are_listed_have_controllers_that_nobody_else_can_take() {
    let mut bench = bench(CONTROLLERS, true);
    let mut taken = 0;
    for last in 1..=CONTROLLERS {
        taken += take_all(&mut bench, &format!("10.0.0.{last}:1000")).0;
    }
    assert_eq!(taken, CONTROLLERS - 8);
    let (none, why) = take_all(&mut bench, "10.0.1.1:1000");
    let reserved = RefuseReason::ControllersReserved {
        controllers: CONTROLLERS,
        reserve: 8,
    };
    assert_eq!((none, why), (0, reserved));
    // One of them may have all of these, from wherever.
    for _ in 0..8 {
        bench.associate(host(1), subnqn(), 0).unwrap();
    }
}

#[test]
fn hosts_that_are_listed_may_have_all_controllers() {
    let mut bench = bench(CONTROLLERS, true);
    for _ in 0..CONTROLLERS {
        bench.associate(host(1), subnqn(), 0).unwrap();
    }
    let controllers = CONTROLLERS;
    let why = bench.associate(host(2), subnqn(), 0).unwrap_err();
    assert_eq!(why, RefuseReason::TooManyControllers { controllers });
}
