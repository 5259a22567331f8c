//! Which calls are carried out, and when.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use capstan_nfs_client::tcp::record;
use capstan_rpc_server::limits::{SPARE_THREADS_MAX, TCP_CALLS_MAX};
use capstan_rpc_server::{Program, Transport};

use crate::harness::{Client, Running, message, settings};
use crate::program::{NULL, PATIENCE, Tester, WAIT};

fn start(workers: usize, program: &Arc<Tester>) -> Running {
    let settings = capstan_rpc_server::Settings {
        workers,
        ..settings(&[Transport::Tcp])
    };
    Running::start(settings, Arc::clone(program) as Arc<dyn Program>)
}

/// Sends so many calls that wait at the gate.
fn send_waiting(client: &mut Client, count: usize) {
    let call = record(&message(1, WAIT, |_| {}));
    client.stream.write_all(&call.repeat(count)).unwrap();
}

fn until(so: impl Fn() -> bool, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn calls_that_hang_leave_threads_for_others() {
    let program = Tester::new();
    let server = start(2, &program);
    let mut hanging = server.connect();
    send_waiting(&mut hanging, 8);
    program.until_waiting(2);
    let mut other = server.connect_from(2);
    for xid in 2..4 {
        other.send(&message(xid, NULL, |_| {}));
        assert_eq!(other.reply().0, xid);
    }
    program.open_gate();
    for _ in 0..8 {
        hanging.reply();
    }
}

/// Of the calls of one address that are slow none keeps another address's waiting: half of the
/// threads are for those that come later, also where all of them were in its calls, and calls of it
/// with each.
#[test]
fn slow_calls_of_one_address_leave_threads_to_others() {
    let program = Tester::new();
    let workers = 4;
    let server = start(workers, &program);
    let mut slow: Vec<_> = (0..16).map(|_| server.connect_from(2)).collect();
    for client in &mut slow {
        send_waiting(client, 4);
    }
    program.until_waiting(workers);
    let mut other = server.connect_from(3);
    for xid in 2..20 {
        other.send(&message(xid, NULL, |_| {}));
        assert_eq!(other.reply().0, xid);
        // One by one, as threads are known to be stuck, and never more than its part of them.
        let waiting = program.waiting();
        assert!(waiting <= workers / 2 + SPARE_THREADS_MAX / 2, "{waiting}");
    }
    // Others of that address had to wait for these.
    let waiting = program.waiting();
    assert!(waiting < 16 * 4, "{waiting}");
    program.open_gate();
    for client in &mut slow {
        for _ in 0..4 {
            client.reply();
        }
    }
}

/// The program says that others may take the places of no more than so many.
#[test]
fn what_the_program_forbids_is_not_replaced() {
    let program = Tester::new();
    program.replaced_max.store(3, Ordering::Relaxed);
    let workers = 2;
    let server = start(workers, &program);
    let mut hanging: Vec<_> = (2..=5).map(|last| server.connect_from(last)).collect();
    for client in &mut hanging {
        send_waiting(client, 8);
    }
    program.until_waiting(workers + 3);
    // Looks later there are no more.
    std::thread::sleep(Duration::from_secs(1));
    program.until_waiting(workers + 3);
    program.open_gate();
    for client in &mut hanging {
        for _ in 0..8 {
            client.reply();
        }
    }
}

#[test]
fn the_threads_beside_those_that_hang_are_bounded_and_end_with_them() {
    let program = Tester::new();
    let workers = 32;
    let server = start(workers, &program);
    // One address has half of them.
    let mut hanging: Vec<_> = (1..=2).map(|last| server.connect_from(last)).collect();
    send_waiting(&mut hanging[0], TCP_CALLS_MAX);
    let of_one = workers / 2 + SPARE_THREADS_MAX / 2;
    program.until_waiting(of_one);
    send_waiting(&mut hanging[1], TCP_CALLS_MAX);
    let most = workers + SPARE_THREADS_MAX;
    program.until_waiting(most);
    // Looks later there are no more.
    std::thread::sleep(Duration::from_secs(1));
    program.until_waiting(most);
    assert_eq!(program.threads(), most);
    program.open_gate();
    for client in &mut hanging {
        for _ in 0..TCP_CALLS_MAX {
            client.reply();
        }
    }
    program.forget_threads();
    let mut client = server.connect();
    for _ in 0..256 {
        client.send(&message(2, NULL, |_| {}));
        client.reply();
    }
    let threads = program.threads();
    assert!(threads <= workers, "{threads} threads carry out calls");
}

#[test]
fn a_call_that_waits_is_told_of_until_it_is_carried_out() {
    let program = Tester::new();
    let server = start(1, &program);
    let since = || *program.waits_since.lock().unwrap();
    assert_eq!(since(), None);
    let mut hanging = server.connect();
    let before = Instant::now();
    send_waiting(&mut hanging, 1);
    program.until_waiting(1);
    let came = since().expect("it waits until the program has begun it");
    assert!(came >= before && came <= Instant::now());
    // It hangs, and has been heard of.
    until(|| since().is_none_or(|us| us > came), "that it has begun");
    program.open_gate();
    hanging.reply();
    until(|| since().is_none(), "that none waits");
}
