//! Much at once and for long, with every byte checked.

use std::fs;

use super::super::area::Area;
use super::super::fabric::{Fabric, Side};
use super::super::link::{LinkOptions, read, send, write};
use super::super::outcome::{Outcome, Stop, ensure_eq};
use super::super::world::World;
use super::support::{read_sink, sink, source};
use crate::contract::{SendWr, Sge, WcOpcode, WcStatus};
use crate::splitmix::SplitMix;

/// Bytes of one operation's place in each area.
const PLACE: usize = 8192;
/// Operations of one side per batch.
const BATCH: usize = 24;

/// One side's memory for the mixed load.
struct Memory {
    source: Area,
    sink: Area,
    inbox: Area,
}

impl Memory {
    fn new(world: &World<'_>, side: Side) -> Outcome<Self> {
        // Two places per operation: one for each direction.
        Ok(Self {
            source: source(world, side, 2 * BATCH * PLACE, side.index() as u64)?,
            sink: sink(world, side, 2 * BATCH * PLACE)?,
            inbox: sink(world, side, BATCH * PLACE)?,
        })
    }
}

/// One operation of the mixed load.
struct Planned {
    opcode: WcOpcode,
    at: usize,
    len_bytes: usize,
    cuts: [usize; 2],
    remote_at: usize,
    signaled: bool,
}

impl Planned {
    /// With `empty_reads`, an RDMA READ may be one of no bytes.
    fn new(rng: &mut SplitMix, index: usize, side: Side, empty_reads: bool) -> Self {
        let place = (2 * index + side.index()) * PLACE;
        let room = if rng.below(4) == 0 { 4000 } else { 200 };
        let mut len_bytes = rng.below_usize(room);
        let mut cuts = [
            rng.below_usize(len_bytes + 1),
            rng.below_usize(len_bytes + 1),
        ];
        cuts.sort_unstable();
        let opcode = match rng.below(3) {
            0 => WcOpcode::Send,
            1 => WcOpcode::RdmaWrite,
            _ => WcOpcode::RdmaRead,
        };
        if opcode == WcOpcode::RdmaRead && !empty_reads {
            len_bytes = len_bytes.max(1);
        }
        Self {
            opcode,
            at: place + rng.below_usize(64),
            len_bytes,
            cuts,
            remote_at: place + rng.below_usize(64),
            signaled: index == BATCH - 1 || rng.below(3) != 0,
        }
    }

    /// One to three SGEs, contiguous, of any length.
    fn sges(&self, area: &Area) -> Vec<Sge> {
        let [first, second] = self.cuts;
        let all = [
            area.sge(self.at, first),
            area.sge(self.at + first, second - first),
            area.sge(self.at + second, self.len_bytes - second),
        ];
        all.to_vec()
    }
}

/// A batch of random operations of both sides at once on `link`, then all checks.
fn mixed_batch(
    world: &mut World<'_>,
    link: usize,
    memory: &mut [Memory; 2],
    rng: &mut SplitMix,
) -> Outcome {
    let empty_reads = world.behaviour.serves_reads_faithfully;
    let plans = Side::BOTH.map(|side| -> Vec<Planned> {
        let planned = |n| Planned::new(rng, n, side, empty_reads);
        (0..BATCH).map(planned).collect()
    });
    for side in Side::BOTH {
        let inbox = &memory[side.index()].inbox;
        for slot in 0..BATCH {
            let sges = [
                inbox.sge(slot * PLACE, 100),
                inbox.sge(slot * PLACE + 100, 4000),
            ];
            world.post_recv(link, side, 1000 + slot as u64, &sges)?;
        }
    }
    let mut sent = [0, 0];
    for side in Side::BOTH {
        for (index, plan) in plans[side.index()].iter().enumerate() {
            let [mine, theirs] = [&memory[side.index()], &memory[side.peer().index()]];
            let wr_id = index as u64;
            let (sges, wr);
            match plan.opcode {
                WcOpcode::Send => {
                    sges = plan.sges(&mine.source);
                    wr = send(wr_id, &sges);
                }
                WcOpcode::RdmaWrite => {
                    sges = plan.sges(&mine.source);
                    wr = write(wr_id, &sges, theirs.sink.remote(plan.remote_at));
                }
                _ => {
                    // One SGE: the most some iWARP devices take for a READ.
                    sges = vec![mine.sink.sge(plan.at, plan.len_bytes)];
                    wr = read(wr_id, &sges, theirs.source.remote(plan.remote_at));
                }
            }
            let wr = SendWr {
                signaled: plan.signaled,
                ..wr
            };
            world.post(link, side, &wr)?;
            if rng.below(5) == 0 {
                world.ring(link, side)?;
                world.turn();
            }
            let bytes = mine.source.shadow(plan.at, plan.len_bytes).to_vec();
            match plan.opcode {
                WcOpcode::Send => {
                    let slot = sent[side.index()] * PLACE;
                    memory[side.peer().index()].inbox.expect(slot, &bytes);
                    sent[side.index()] += 1;
                }
                WcOpcode::RdmaWrite => {
                    memory[side.peer().index()]
                        .sink
                        .expect(plan.remote_at, &bytes);
                }
                _ => {
                    let theirs = &memory[side.peer().index()].source;
                    let bytes = theirs.shadow(plan.remote_at, plan.len_bytes).to_vec();
                    memory[side.index()].sink.expect(plan.at, &bytes);
                }
            }
        }
        world.ring(link, side)?;
    }
    finish_batch(world, link, &plans, sent)?;
    for side in Side::BOTH {
        let memory = &mut memory[side.index()];
        memory.sink.check("sink of the mixed load")?;
        memory.inbox.check("inbox of the mixed load")?;
        memory.source.check("source of the mixed load")?;
        let at = rng.below_usize(BATCH * PLACE);
        memory.source.write(at, &rng.next_u64().to_le_bytes());
    }
    Ok(())
}

/// Takes the completions of a batch, then uses up the receives that are left, which proves as well
/// that all WRITEs before have been placed.
fn finish_batch(
    world: &mut World<'_>,
    link: usize,
    plans: &[Vec<Planned>; 2],
    sent: [usize; 2],
) -> Outcome {
    for side in Side::BOTH {
        let peer_plans = &plans[side.peer().index()];
        let mut sends = peer_plans
            .iter()
            .filter(|plan| plan.opcode == WcOpcode::Send);
        let mut own = plans[side.index()]
            .iter()
            .enumerate()
            .filter(|(_, plan)| plan.signaled);
        let own_count = own.clone().count();
        let mut slot = 0;
        for _ in 0..own_count + sent[side.peer().index()] {
            let wc = world.completion(link, side, "a completion of the mixed load")?;
            ensure_eq!(
                wc.status,
                WcStatus::Success,
                "{side:?}: status of {}",
                wc.wr_id
            );
            let expected = if wc.opcode == WcOpcode::Recv {
                slot += 1;
                sends
                    .next()
                    .map(|plan| (999 + slot, plan.opcode, plan.len_bytes))
            } else {
                own.next()
                    .map(|(index, plan)| (index as u64, plan.opcode, 0))
            };
            let opcode = if wc.opcode == WcOpcode::Recv {
                WcOpcode::Send
            } else {
                wc.opcode
            };
            let got = Some((wc.wr_id, opcode, wc.byte_len as usize));
            ensure_eq!(got, expected, "{side:?}: completion of the mixed load");
        }
    }
    for side in Side::BOTH {
        let peer = side.peer();
        for slot in sent[side.index()]..BATCH {
            let wr_id = 2000 + slot as u64;
            world.post_now(link, side, &send(wr_id, &[]))?;
            world.success(link, side, wr_id, WcOpcode::Send)?;
            world.received(link, peer, 1000 + slot as u64, 0)?;
        }
    }
    Ok(())
}

/// Thousands of small operations of all kinds, both ways at once.
pub(super) fn thousands_of_mixed_operations(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    let mut memory = [
        Memory::new(&world, Side::Active)?,
        Memory::new(&world, Side::Passive)?,
    ];
    let mut rng = SplitMix::new(0x5eed);
    for batch in 0..150 {
        mixed_batch(&mut world, link, &mut memory, &mut rng).map_err(|stop| match stop {
            Stop::Failed(why) => Stop::Failed(format!("batch {batch}: {why}")),
            other @ Stop::NotApplicable(_) => other,
        })?;
    }
    Ok(())
}

/// Operations of 1 MiB, several outstanding, both ways at once.
pub(super) fn megabytes_both_ways(fabric: &mut dyn Fabric) -> Outcome {
    const LEN: usize = 1 << 20;
    let (mut world, link) = World::connected(fabric)?;
    let mut areas = Vec::new();
    for side in Side::BOTH {
        let here = source(&world, side, LEN, 20 + side.index() as u64)?;
        let there = sink(&world, side, LEN)?;
        let inbox = sink(&world, side, LEN)?;
        let back = read_sink(&world, side, LEN)?;
        areas.push((here, there, inbox, back));
    }
    for round in 0..12_u64 {
        for side in Side::BOTH {
            world.post_recv(link, side, 4, &[areas[side.index()].2.sge(0, LEN)])?;
        }
        for side in Side::BOTH {
            let (here, _, _, back) = &areas[side.index()];
            let (theirs, there, _, _) = &areas[side.peer().index()];
            let halves = [here.sge(0, LEN / 3), here.sge(LEN / 3, LEN - LEN / 3)];
            world.post(link, side, &read(1, &[back.sge(0, LEN)], theirs.remote(0)))?;
            world.post(link, side, &write(2, &halves, there.remote(0)))?;
            world.post(link, side, &send(3, &halves))?;
            world.ring(link, side)?;
        }
        for side in Side::BOTH {
            let mut queue = [
                (1, WcOpcode::RdmaRead),
                (2, WcOpcode::RdmaWrite),
                (3, WcOpcode::Send),
            ]
            .into_iter();
            for _ in 0..4 {
                let wc = world.completion(link, side, "an operation of 1 MiB")?;
                ensure_eq!(wc.status, WcStatus::Success, "status of {}", wc.wr_id);
                if wc.opcode == WcOpcode::Recv {
                    ensure_eq!((wc.wr_id, wc.byte_len as usize), (4, LEN), "a message");
                } else {
                    ensure_eq!(Some((wc.wr_id, wc.opcode)), queue.next(), "order");
                }
            }
        }
        for side in Side::BOTH {
            let bytes = areas[side.peer().index()].0.shadow(0, LEN).to_vec();
            let (here, there, inbox, back) = &mut areas[side.index()];
            for area in [&mut *there, &mut *inbox, &mut *back] {
                area.expect(0, &bytes);
                area.check("an operation of 1 MiB")?;
            }
            here.check("a source of 1 MiB")?;
        }
        for side in Side::BOTH {
            areas[side.index()]
                .0
                .fill(1000 + round * 2 + side.index() as u64);
        }
    }
    Ok(())
}

/// Many queue pairs on one completion queue, all busy at once.
pub(super) fn sixty_four_queue_pairs(fabric: &mut dyn Fabric) -> Outcome {
    const LINKS: usize = 64;
    const LEN: usize = 3001;
    let mut world = World::new(fabric)?;
    let options = LinkOptions {
        send_wr_max: 8,
        recv_wr_max: 8,
        ..LinkOptions::default()
    };
    let links: Outcome<Vec<usize>> = (0..LINKS).map(|_| world.connect(&options)).collect();
    let links = links?;
    for side in Side::BOTH {
        let here = source(&world, side, LINKS * LEN, 30 + side.index() as u64)?;
        let mut there = sink(&world, side.peer(), LINKS * LEN)?;
        let mut inbox = sink(&world, side.peer(), LINKS * LEN)?;
        for round in 0..5 {
            for (index, &link) in links.iter().enumerate() {
                let slot = [inbox.sge(index * LEN, LEN)];
                world.post_recv(link, side.peer(), round, &slot)?;
                let out = [here.sge(index * LEN, LEN)];
                let quiet = SendWr {
                    signaled: false,
                    ..write(1, &out, there.remote(index * LEN))
                };
                world.post(link, side, &quiet)?;
                world.post_now(link, side, &send(round, &out))?;
            }
            for &link in links.iter().rev() {
                world.received(link, side.peer(), round, LEN)?;
                world.success(link, side, round, WcOpcode::Send)?;
            }
        }
        there.expect(0, here.shadow(0, LINKS * LEN));
        inbox.expect(0, here.shadow(0, LINKS * LEN));
        there.check("WRITEs on 64 queue pairs")?;
        inbox.check("Sends on 64 queue pairs")?;
    }
    for &link in links.iter().step_by(2) {
        world.close(link);
    }
    for &link in links.iter().skip(1).step_by(2) {
        world.post_recv(link, Side::Passive, 9, &[])?;
        world.post_now(link, Side::Active, &send(9, &[]))?;
        world.received(link, Side::Passive, 9, 0)?;
        world.success(link, Side::Active, 9, WcOpcode::Send)?;
    }
    Ok(())
}

/// Open descriptors of this process.
fn open_fds() -> Outcome<usize> {
    Ok(fs::read_dir("/proc/self/fd").map_err(Stop::failed)?.count())
}

/// Connects and ends 200 times in all ways; no descriptor is left behind.
pub(super) fn two_hundred_rounds_leave_no_descriptors(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let options = LinkOptions {
        send_wr_max: 4,
        recv_wr_max: 4,
        ..LinkOptions::default()
    };
    let mut baseline = 0;
    for round in 0..200 {
        let link = world.connect(&options)?;
        world.post_recv(link, Side::Passive, 1, &[])?;
        world.post_now(link, Side::Active, &send(2, &[]))?;
        world.received(link, Side::Passive, 1, 0)?;
        let side = Side::BOTH[round % 2];
        match round % 3 {
            // An orderly end that both sides wait for; an orderly end with one side dropped at
            // once; a drop without any.
            0 => {
                let id = world.id(link, side);
                world.end(side).cm.disconnect(id);
                world.ended(link)?;
            }
            1 => {
                let id = world.id(link, side);
                world.end(side).cm.disconnect(id);
            }
            _ => {}
        }
        world.close(link);
        if round == 20 {
            world.settle(50_000);
            baseline = open_fds()?;
        }
    }
    world.settle(50_000);
    let now = open_fds()?;
    let leftovers = world.leftovers();
    if now > baseline + 2 {
        return Err(Stop::failed(format_args!(
            "{now} open descriptors after 200 rounds, {baseline} after 20{leftovers}"
        )));
    }
    Ok(())
}
