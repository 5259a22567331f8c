//! Shared memory between two ends on one machine: which connections take it. That it carries
//! everything a socket does is the conformance suite's (`same_host`).

use std::process::Command;
use std::{env, fs};

use capstan_rdma::contract::{Remote, SendOp, WcStatus};
use capstan_rdma::iwarp::Config;

use crate::side::{Pair, Side, any, disconnected, established, pattern, send, wr};

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

/// The accepting end moves into shared memory when it is polled, and the other one sends there
/// before that.
#[test]
fn a_message_in_memory_that_the_target_has_not_looked_at_has_arrived() {
    let [host, target] = [(); 2].map(|()| Side::new(Config::default()));
    let mut pair = Pair::accepted(host, target, any());
    let inbox = [pair.target.sge(0, 64)];
    pair.target_qp.post_recv(7, &inbox).unwrap();
    let host_id = pair.host_id;
    let is_up = |host: &Side| established(host, host_id);
    pair.host.turn_until("established", is_up);
    let sges = [pair.host.sge(0, 64)];
    pair.host_qp.post_send(&send(1, &sges)).unwrap();
    pair.host_qp.ring_doorbell();
    pair.host
        .turn_until("a completion", |host| !host.completions.is_empty());
    let mut target_qp = capstan_rdma::Pair::from(pair.target_qp);
    let mark = target_qp.arrival_mark();
    assert!(!target_qp.has_passed(mark), "it was not polled yet");
    while !target_qp.has_passed(mark) {
        pair.target.turn();
    }
    // As the contract says: once the mark is passed, one poll more has it.
    pair.target.turn();
    let [completion] = &pair.target.completions[..] else {
        panic!("{:?}", pair.target.completions);
    };
    assert_eq!(
        (completion.wr_id, completion.status),
        (7, WcStatus::Success)
    );
}

/// Bytes of memory behind those mappings; what both ends have mapped counts twice.
fn resident_bytes() -> usize {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut ours = false;
    let mut kib = 0;
    for line in maps.lines() {
        if let Some(size) = line.strip_prefix("Rss:").filter(|_| ours) {
            let size = size.trim().trim_end_matches(" kB");
            kib += size.parse::<usize>().unwrap();
        } else if line.split(' ').next().is_some_and(|w| w.contains('-')) {
            ours = line.contains("memfd:capstan-iwarp");
        }
    }
    kib << 10
}

impl Pair {
    /// The host writes `bytes` to the target's memory, which has them when this returns, unless
    /// only the host `turns`.
    fn write(&mut self, bytes: &[u8], both_turn: bool) {
        let target = &self.target;
        target.write(0, &vec![0; bytes.len()]);
        self.host.write(0, bytes);
        let remote = Remote {
            addr: target.mr.addr(),
            rkey: target.mr.rkey(),
        };
        let sges = [self.host.sge(0, u32::try_from(bytes.len()).unwrap())];
        let write = wr(1, SendOp::Write(remote), &sges);
        self.host_qp.post_send(&write).unwrap();
        self.host_qp.ring_doorbell();
        if both_turn {
            let len = bytes.len();
            self.turn_until("data", |_, t| t.read(0, len) == bytes);
            // The end of the last FPDU.
            self.target.turn();
        }
        self.turn_host_to_sleep();
    }

    fn turn_host_to_sleep(&mut self) {
        self.host.turn_until("sleep", |host| !host.cq.arm());
        self.host.completions.clear();
    }

    /// The host looks at the clock until a connection has rested, whenever it looked last. Before
    /// that it reminds a peer that has said nothing yet.
    fn rest(&mut self, both_turn: bool) {
        let deadline = self.host.cm.next_deadline_us().unwrap_or(0);
        let now = deadline.max(self.host.now_us());
        for seconds in (1..40).step_by(2) {
            assert!(self.host.cm.poll(now + seconds * 1_000_000).is_none());
            if both_turn {
                self.target.turn();
            }
        }
    }
}

#[test]
fn a_connection_that_rests_gives_its_memory_back() {
    const LARGE: usize = 1 << 20;
    if !is_alone("same_host::a_connection_that_rests_gives_its_memory_back") {
        return;
    }
    let mut pair = Pair::new();
    for seed in 0..3 {
        pair.write(&pattern(seed, LARGE), true);
    }
    assert!(resident_bytes() > 2 * LARGE - 4096, "{}", resident_bytes());
    pair.rest(true);
    assert!(resident_bytes() < 65_536, "{}", resident_bytes());
    // It goes on as before.
    pair.write(&pattern(4, LARGE), true);
    // What the target has not taken yet stays, however long.
    let last = pattern(5, 100_000);
    pair.write(&last, false);
    pair.rest(false);
    assert!(resident_bytes() > 65_536, "{}", resident_bytes());
    pair.turn_until("data", |_, t| t.read(0, last.len()) == last);
}

#[test]
fn the_peer_takes_nothing_more_of_a_ring_that_is_given_up() {
    // Memory or a socket: bytes of a socket are at the peer's kernel already, those in memory are
    // not at the peer.
    for (config, may_come) in [(Config::default(), 0), (without(), 4)] {
        let mut pair = Pair::with(config.clone(), config);
        for wr_id in 0..4 {
            let place = pair.target.sge(0, 64);
            pair.target_qp.post_recv(wr_id, &[place]).unwrap();
            let sges = [pair.host.sge(0, 64)];
            pair.host_qp.post_send(&send(wr_id, &sges)).unwrap();
        }
        // The ring has them, and the peer has not looked.
        pair.host_qp.ring_doorbell();
        pair.host.cm.abort(pair.host_id);
        pair.turn_until("the end", |host, target| {
            disconnected(host).is_some()
                && disconnected(target).is_some()
                && target.completions.len() >= 4
        });
        let came = |wc: &&capstan_rdma::contract::WorkCompletion| wc.status == WcStatus::Success;
        let came = pair.target.completions.iter().filter(came).count();
        assert!(came <= may_come, "{came} messages came");
        let cause = disconnected(&pair.target).unwrap();
        assert!(cause.starts_with("reset by the peer"), "{cause}");
        assert_eq!(disconnected(&pair.host), Some("given up by this side"));
    }
}
