//! Many hosts, many connects: nobody starves, nothing grows, nobody spins.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use capstan_initiator::{DirectQueue, Op, Transport};
use capstan_nvme_proto::command::AdminCommand;
use capstan_nvme_proto::sgl::Sgl;
use capstan_tests::host::{options, run};
use capstan_tests::process::{allow_many_descriptors, cpu_us, descriptors, resident_bytes};
use capstan_tests::target::TestTarget;
use capstan_tests::wire_host::{Data, Queue, WireHost};

const HOSTS: u8 = 100;

/// Time, memory and descriptors are those of the process, and `cargo test` runs all tests of a file
/// in one: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All connected at once, each with I/O on an area of its own, checked byte by byte.
#[test]
fn a_hundred_hosts_at_once() {
    a_hundred_hosts("");
}

/// The same with the shared receive queue.
#[test]
fn a_hundred_hosts_that_share_receives() {
    a_hundred_hosts("shared_receive_queue = true");
}

fn a_hundred_hosts(option: &str) {
    let _alone = alone();
    allow_many_descriptors();
    let target = TestTarget::ram(&format!("memory_budget = \"256MiB\"\n{option}"));
    let mut hosts: Vec<DirectQueue> = (0..HOSTS)
        .map(|n| DirectQueue::connect(&options(target.addresses[0], n)).expect("connects"))
        .collect();
    let lbas_each = 64;
    let bytes = |n: u8, round: u8| vec![n ^ round.wrapping_mul(31); 16 * 4096];
    for round in 0..8_u8 {
        for (n, host) in (0..HOSTS).zip(&mut hosts) {
            let slba = u64::from(n) * lbas_each + u64::from(round % 4) * 16;
            run(
                host,
                Op::Write {
                    slba,
                    nlb: 16,
                    fua: false,
                },
                &mut bytes(n, round),
            );
        }
        for (n, host) in (0..HOSTS).zip(&mut hosts) {
            let slba = u64::from(n) * lbas_each + u64::from(round % 4) * 16;
            let mut found = vec![0; 16 * 4096];
            run(host, Op::Read { slba, nlb: 16 }, &mut found);
            assert!(
                found == bytes(n, round),
                "host {n} reads what it wrote in round {round}"
            );
        }
    }
    for host in hosts {
        host.close();
    }
    target.stop();
}

/// After a warm-up, a thousand rounds change neither descriptors nor memory.
#[test]
fn a_thousand_connects_leave_nothing_behind() {
    let _alone = alone();
    let target = TestTarget::ram("reactors = 2");
    let round = |n: u8| {
        let mut host = DirectQueue::connect(&options(target.addresses[0], n)).expect("connects");
        let slba = u64::from(n);
        run(
            &mut host,
            Op::Write {
                slba,
                nlb: 1,
                fua: false,
            },
            &mut [n; 4096],
        );
        host.close();
    };
    for n in 0..100 {
        round(n);
    }
    settle();
    let (fds, bytes) = (descriptors(), resident_bytes());
    for n in 0..1000_u16 {
        round(u8::try_from(n % 200).expect("below 200"));
    }
    settle();
    let (fds_after, bytes_after) = (descriptors(), resident_bytes());
    assert_eq!(fds, fds_after, "open descriptors before and after");
    let grown = bytes_after.saturating_sub(bytes);
    // 1000 leaks of as little as 4 KiB would be 4 MB.
    assert!(
        grown < 3 << 20,
        "resident memory grew by {grown} bytes over 1000 connects"
    );
    target.stop();
}

/// The target sees the last disconnect a moment after the host.
fn settle() {
    std::thread::sleep(Duration::from_millis(500));
}

/// Connected hosts without I/O cost nothing but their keep-alives.
#[test]
fn idle_means_idle() {
    let _alone = alone();
    let target = TestTarget::ram("reactors = 2");
    let hosts: Vec<DirectQueue> = (0..10)
        .map(|n| {
            let mut options = options(target.addresses[0], n);
            options.keep_alive_tmo = Duration::ZERO;
            DirectQueue::connect(&options).expect("connects")
        })
        .collect();
    settle();
    let before_us = cpu_us();
    std::thread::sleep(Duration::from_secs(2));
    let used_us = cpu_us() - before_us;
    // One spinning reactor would use 2,000,000.
    assert!(
        used_us < 40_000,
        "{used_us} us of CPU in 2 s with 10 idle hosts"
    );
    drop(hosts);
    target.stop();
}

/// Nothing is left of hosts that have gone, deadlines of their connections neither.
#[test]
fn a_target_without_hosts_sleeps() {
    let _alone = alone();
    let target = TestTarget::ram("reactors = 2");
    for transport in [Transport::Rdma, Transport::Tcp] {
        for n in 0..4 {
            let mut options = options(target.addresses[0], n);
            options.transport = transport;
            DirectQueue::connect(&options).expect("connects").close();
        }
    }
    // The longest there is: a connection of NVMe/TCP has 10 s until its Connect is answered.
    std::thread::sleep(Duration::from_secs(11));
    let before_us = cpu_us();
    std::thread::sleep(Duration::from_secs(1));
    let used_us = cpu_us() - before_us;
    // One spinning reactor would use 1,000,000.
    assert!(used_us < 20_000, "{used_us} us of CPU in 1 s without hosts");
    target.stop();
}

/// Nobody waits closely for the next keep-alive: a target that spins after I/O does not spin after
/// one.
#[test]
fn keep_alives_are_no_reason_to_spin() {
    let _alone = alone();
    let target = TestTarget::ram("reactors = 1\nspin = \"100ms\"");
    let mut host = WireHost::connect(target.addresses[0], 1);
    settle();
    let before_us = cpu_us();
    for cid in 0..20 {
        let keep_alive = AdminCommand::KeepAlive.encode(cid, Sgl::EMPTY);
        let (cqe, _) = host.run(Queue::Admin, keep_alive, Data::None);
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        std::thread::sleep(Duration::from_millis(100));
    }
    let used_us = cpu_us() - before_us;
    // A spin after each would use 2,000,000.
    assert!(
        used_us < 400_000,
        "{used_us} us of CPU in 2 s with 20 keep-alives"
    );
    drop(host);
    target.stop();
}
