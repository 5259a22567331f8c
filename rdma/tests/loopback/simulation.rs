//! A small program on both machines, with everything going wrong that can, run twice.

use std::collections::BTreeMap;

use capstan_rdma::contract::{CmEventKind, CmId, ConnectionManager, WcStatus};
use capstan_rdma::loopback::{Delay, Faults, TraceEvent, Traced};

use super::ends::{ACTIVE, Ends, Leg, Memory, PARAM, PASSIVE, SEND, signaled};

const CONNECTIONS: usize = 6;
const END_US: u64 = 8_000_000;
/// Between an answer and the next question.
const THINK_US: u64 = 2_000;
/// After which an asker gives its connection up (Keep Alive in small).
const ANSWER_TIMEOUT_US: u64 = 500_000;
const LEN: u32 = 512;
/// `wr_id` of the receive an answer goes to.
const ANSWER: u64 = u64::MAX;

fn rough() -> Faults {
    Faults {
        delay: Delay::LongTail {
            usual_us: 20,
            tail_us: 5_000,
            tail_per_million: 30_000,
        },
        segment_bytes: 200,
        dropped_connects_per_million: 100_000,
        qp_errors_per_million: 500,
        lost_connections_per_million: 300,
        plan: Vec::new(),
    }
}

/// What became of a run.
#[derive(Debug, PartialEq)]
struct Run {
    trace: Vec<TraceEvent>,
    digest: u64,
    answered: u64,
    reconnects: u64,
    connect_timeouts: u64,
}

/// The asking side of one connection: one message out, one back, over and over.
#[derive(Default)]
struct Asker {
    leg: Option<Leg>,
    up: bool,
    sent: u64,
    /// Since when it waits for an answer.
    asked_us: Option<u64>,
    /// When it asks again.
    next_us: u64,
}

struct Simulation {
    ends: Ends,
    askers: Vec<Asker>,
    answerers: BTreeMap<CmId, Leg>,
    memory: Option<[Memory; 2]>,
    run: Run,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        Self {
            ends: Ends::new(seed, rough()),
            askers: (0..CONNECTIONS).map(|_| Asker::default()).collect(),
            answerers: BTreeMap::new(),
            memory: None,
            run: Run {
                trace: Vec::new(),
                digest: 0,
                answered: 0,
                reconnects: 0,
                connect_timeouts: 0,
            },
        }
    }

    fn finish(mut self) -> Run {
        while self.ends.network.now_us() < END_US {
            let progress = self.ends.poll();
            self.handle_events();
            self.handle_completions();
            let acted = self.ask();
            if !progress && !acted {
                self.sleep();
            }
        }
        self.run.trace = self.ends.network.trace();
        self.run.digest = self.ends.network.trace_digest();
        self.run
    }

    /// Jumps to whatever comes next.
    fn sleep(&mut self) {
        let due = |asker: &Asker| match asker.asked_us {
            Some(asked_us) => asked_us + ANSWER_TIMEOUT_US,
            None if asker.up => asker.next_us,
            None => END_US,
        };
        let own_us = self.askers.iter().map(due).min().unwrap_or(END_US);
        let next_us = self.ends.network.next_deadline_us().unwrap_or(END_US);
        let later_us = self.ends.network.now_us() + 1;
        self.ends
            .network
            .advance_to(next_us.min(own_us).max(later_us));
    }

    fn handle_events(&mut self) {
        for event in std::mem::take(&mut self.ends.ends[PASSIVE].events) {
            match event.kind {
                CmEventKind::ConnectRequest { .. } => {
                    let mut qp = self.ends.make_qp(PASSIVE, event.id);
                    if self.memory.is_none() {
                        let pd = |side| self.ends.pd(side);
                        self.memory = Some([ACTIVE, PASSIVE].map(|s| Memory::new(&pd(s), 4096)));
                    }
                    let memory = self.memory.as_ref().unwrap();
                    for wr_id in 0..2 {
                        qp.post_recv(wr_id, &[memory[PASSIVE].sge(0, LEN)]).unwrap();
                    }
                    let manager = &mut self.ends.ends[PASSIVE].manager;
                    if manager.accept(event.id, &PARAM).is_ok() {
                        self.answerers.insert(event.id, Leg { id: event.id, qp });
                    } else {
                        drop(qp);
                        self.ends.ends[PASSIVE].manager.destroy(event.id);
                    }
                }
                CmEventKind::Disconnected { .. } => {
                    self.answerers.remove(&event.id);
                    self.ends.ends[PASSIVE].manager.destroy(event.id);
                }
                _ => {}
            }
        }
        for event in std::mem::take(&mut self.ends.ends[ACTIVE].events) {
            let find =
                |asker: &&mut Asker| asker.leg.as_ref().is_some_and(|leg| leg.id == event.id);
            let Some(asker) = self.askers.iter_mut().find(find) else {
                continue;
            };
            match event.kind {
                CmEventKind::Resolved => {
                    unreachable!("`Ends::ask` takes it");
                }
                CmEventKind::Established { .. } => asker.up = true,
                kind => {
                    if matches!(kind, CmEventKind::Failed(_)) {
                        self.run.connect_timeouts += 1;
                    } else {
                        self.run.reconnects += 1;
                    }
                    *asker = Asker::default();
                    self.ends.ends[ACTIVE].manager.destroy(event.id);
                }
            }
        }
    }

    fn handle_completions(&mut self) {
        let memory = self.memory.as_ref();
        for wc in std::mem::take(&mut self.ends.ends[PASSIVE].wcs) {
            let leg = self
                .answerers
                .values_mut()
                .find(|leg| leg.qp.num() == wc.qp);
            let (Some(leg), Some(memory), WcStatus::Success) = (leg, memory, wc.status) else {
                continue;
            };
            if wc.wr_id < 2 {
                assert_eq!(wc.byte_len, LEN);
                let inbox = [memory[PASSIVE].sge(0, LEN)];
                leg.qp.post_recv(wc.wr_id, &inbox).unwrap();
                let answer = [memory[PASSIVE].sge(1024, LEN)];
                leg.qp.post_send(&signaled(100, SEND, &answer)).unwrap();
                leg.qp.ring_doorbell();
            }
        }
        for wc in std::mem::take(&mut self.ends.ends[ACTIVE].wcs) {
            let own = |asker: &&mut Asker| asker.leg.as_ref().is_some_and(|l| l.qp.num() == wc.qp);
            let Some(asker) = self.askers.iter_mut().find(own) else {
                continue;
            };
            if wc.wr_id == ANSWER && wc.status == WcStatus::Success {
                assert!(asker.asked_us.is_some(), "an answer to no question");
                asker.asked_us = None;
                asker.next_us = self.ends.network.now_us() + THINK_US;
                self.run.answered += 1;
            }
        }
    }

    /// Every asker that can goes on; whether one did.
    fn ask(&mut self) -> bool {
        let mut acted = false;
        for index in 0..CONNECTIONS {
            if self.askers[index].leg.is_none() {
                let leg = self.ends.ask(100_000);
                acted |= leg.is_some();
                self.askers[index].leg = leg;
            }
            let now_us = self.ends.network.now_us();
            let Some(memory) = &self.memory else { continue };
            let asker = &mut self.askers[index];
            let (true, Some(leg)) = (asker.up, &mut asker.leg) else {
                continue;
            };
            match asker.asked_us {
                Some(asked_us) if now_us >= asked_us + ANSWER_TIMEOUT_US => {
                    asker.asked_us = Some(u64::MAX - ANSWER_TIMEOUT_US);
                    self.ends.ends[ACTIVE].manager.disconnect(leg.id);
                    acted = true;
                }
                None if now_us >= asker.next_us => {
                    leg.qp
                        .post_recv(ANSWER, &[memory[ACTIVE].sge(0, LEN)])
                        .unwrap();
                    let out = [memory[ACTIVE].sge(1024, LEN)];
                    leg.qp.post_send(&signaled(asker.sent, SEND, &out)).unwrap();
                    leg.qp.ring_doorbell();
                    asker.sent += 1;
                    asker.asked_us = Some(now_us);
                    acted = true;
                }
                _ => {}
            }
        }
        acted
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let first = Simulation::new(42).finish();
    let again = Simulation::new(42).finish();
    let differs = first
        .trace
        .iter()
        .zip(&again.trace)
        .position(|(a, b)| a != b);
    assert_eq!(differs, None, "first difference");
    assert_eq!(first, again);
    let other = Simulation::new(43).finish();
    assert_ne!(first.digest, other.digest);
}

#[test]
fn rough_weather_is_survived() {
    let mut connect_timeouts = 0;
    for seed in 0..10 {
        let run = Simulation::new(seed).finish();
        let faults = run
            .trace
            .iter()
            .filter(|event| matches!(event.what, Traced::Fault { .. }));
        assert!(faults.count() > 10, "seed {seed}: nothing went wrong");
        assert!(
            run.reconnects > 5,
            "seed {seed}: {} reconnects",
            run.reconnects
        );
        assert!(run.answered > 1000, "seed {seed}: {} answers", run.answered);
        connect_timeouts += run.connect_timeouts;
        let backwards = run
            .trace
            .windows(2)
            .any(|pair| pair[0].at_us > pair[1].at_us);
        assert!(!backwards, "seed {seed}: time went back");
    }
    assert!(connect_timeouts > 0, "no connect got lost");
}
