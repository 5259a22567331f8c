//! Ends of connections: flushes, disconnects, drops.

use super::super::fabric::{Fabric, Side};
use super::super::link::{LinkOptions, read, send, write};
use super::super::outcome::{Outcome, Stop, ensure, ensure_eq};
use super::super::world::World;
use super::support::{read_sink, sink, source};
use crate::contract::{
    CmId, ConnectionManager, QpState, QueuePair, RKey, Remote, SendWr, WcOpcode, WcStatus,
};

/// How long after the doorbell something breaks.
#[derive(Clone, Copy)]
enum Moment {
    AtOnce,
    Polls(u32),
    Us(u64),
}

impl Moment {
    const ALL: [Self; 7] = [
        Self::AtOnce,
        Self::Polls(1),
        Self::Polls(4),
        Self::Us(20),
        Self::Us(100),
        Self::Us(250),
        Self::Us(1000),
    ];

    fn pass(self, world: &mut World<'_>) {
        match self {
            Self::AtOnce => {}
            Self::Polls(count) => {
                for _ in 0..count {
                    world.turn();
                }
            }
            Self::Us(time_us) => world.settle(time_us),
        }
    }
}

/// Everything outstanding comes back, in order, after the cause; unsignaled requests too.
pub(super) fn flush_follows_the_cause_in_order(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        let link = world.connect(&LinkOptions::default())?;
        let to = from.peer();
        let here = source(&world, from, 100, 1)?;
        let back = read_sink(&world, from, 100)?;
        let there = sink(&world, to, 100)?;
        for index in 0..20 {
            world.post_recv(link, from, 1000 + index, &[])?;
            world.post_recv(link, to, 2000 + index, &[])?;
        }
        // Two good ones, a bad READ, and a mix behind it that must have no effect.
        let (out, into) = ([here.sge(0, 100)], [back.sge(0, 100)]);
        let nowhere = Remote {
            addr: there.addr(0),
            rkey: RKey(there.rkey().0 ^ 1),
        };
        world.post(link, from, &send(0, &[]))?;
        world.post(link, from, &read(1, &into[..0], there.remote(0)))?;
        world.post(link, from, &read(2, &into, nowhere))?;
        for index in 3..40 {
            let wr = match index % 3 {
                0 => send(index, &out[..0]),
                1 => write(index, &out, there.remote(0)),
                _ => read(index, &into, there.remote(0)),
            };
            let wr = SendWr {
                signaled: index % 2 == 0,
                ..wr
            };
            world.post(link, from, &wr)?;
            if index == 20 {
                // It has no completion: not even a flush.
                let _ = world.qp(link, from)?.send_inline(&[1; 8], None);
            }
        }
        world.ring(link, from)?;
        world.success(link, from, 0, WcOpcode::Send)?;
        world.success(link, from, 1, WcOpcode::RdmaRead)?;
        world.failed(link, from, 2, WcStatus::RemoteAccessError)?;
        // Send queue and receive queue are each in order; between the two queues there is no order.
        let (mut sends, mut receives) = (3, 1000);
        while sends < 40 || receives < 1020 {
            let wc = world.completion(link, from, "a flushed work request")?;
            ensure_eq!(wc.status, WcStatus::WrFlushError, "status of {}", wc.wr_id);
            let next = if wc.wr_id < 1000 {
                &mut sends
            } else {
                &mut receives
            };
            ensure_eq!(wc.wr_id, *next, "order of the flush");
            *next += 1;
        }
        world.received(link, to, 2000, 0)?;
        let overtaken = world.behaviour.others_overtake_reads;
        let mut flushed = !overtaken;
        for index in 1..20 {
            let wc = world.completion(link, to, "a receive behind the cause")?;
            ensure_eq!(wc.wr_id, 2000 + index, "order of the receives");
            flushed |= wc.status != WcStatus::Success;
            if flushed {
                ensure_eq!(wc.status, WcStatus::WrFlushError, "status of {}", wc.wr_id);
            }
        }
        world.ended(link)?;
        if !overtaken {
            there.check("operations behind the cause")?;
        }
        back.check("operations behind the cause")?;
        world.silent(link)?;
        world.close(link);
    }
    Ok(())
}

/// After the end, work requests are taken and flushed, in order, on both sides.
pub(super) fn posts_after_the_end_are_flushed(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        let link = world.connect(&LinkOptions::default())?;
        let id = world.id(link, from);
        world.end(from).cm.disconnect(id);
        world.ended(link)?;
        for side in Side::BOTH {
            let here = sink(&world, side, 10)?;
            for round in 0..3 {
                let sges = [here.sge(0, 10)];
                world.post_recv(link, side, 1 + round, &sges)?;
                world.flushed(link, side, 1 + round)?;
                let quiet = SendWr {
                    signaled: false,
                    ..send(20 + round, &sges)
                };
                world.post(link, side, &send(10 + round, &sges))?;
                world.post_now(link, side, &quiet)?;
                world.flushed(link, side, 10 + round)?;
                world.flushed(link, side, 20 + round)?;
            }
            let remote = here.remote(0);
            world.post_now(link, side, &write(30, &[here.sge(0, 1)], remote))?;
            world.flushed(link, side, 30)?;
        }
        world.silent(link)?;
        world.close(link);
    }
    Ok(())
}

/// How a connection is ended here.
type End = fn(&mut dyn ConnectionManager, CmId);

/// Disconnects while much is under way: every request comes back once, successes first.
pub(super) fn disconnect_in_flight(fabric: &mut dyn Fabric) -> Outcome {
    end_in_flight(fabric, |cm, id| cm.disconnect(id))
}

/// The same of a connection that is aborted.
pub(super) fn abort_in_flight(fabric: &mut dyn Fabric) -> Outcome {
    end_in_flight(fabric, |cm, id| cm.abort(id))
}

fn end_in_flight(fabric: &mut dyn Fabric, end: End) -> Outcome {
    let mut world = World::new(fabric)?;
    for worker in Side::BOTH {
        for ender in Side::BOTH {
            for moment in Moment::ALL {
                let link = world.connect(&LinkOptions::default())?;
                in_flight(&mut world, link, worker, (ender, end), moment)?;
                world.close(link);
            }
        }
    }
    Ok(())
}

/// More is posted than fits between the two sides, and the peer takes nothing: what has not left
/// when the connection is aborted does not arrive, nor does anything once the peer knows of the
/// end. Aborting after an orderly end, and in a set-up, is no error.
pub(super) fn what_waits_when_a_connection_is_aborted_never_leaves(
    fabric: &mut dyn Fabric,
) -> Outcome {
    const COUNT: u64 = 48;
    let len = 1 << 20;
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        for disconnect in [false, true] {
            let to = from.peer();
            let bystander = world.connect(&LinkOptions::default())?;
            let link = world.connect(&LinkOptions::default())?;
            let here = source(&world, from, len, 8)?;
            let mut inbox = sink(&world, to, len)?;
            for index in 0..COUNT {
                world.post(link, from, &send(index, &[here.sge(0, len)]))?;
            }
            world.ring(link, from)?;
            world.settle(1000);
            let id = world.id(link, from);
            if disconnect {
                world.end(from).cm.disconnect(id);
            }
            world.end(from).cm.abort(id);
            let state = world.qp(link, from)?.state();
            ensure_eq!(state, QpState::Error, "state of what was given up");
            for index in 0..COUNT {
                world.post_recv(link, to, 500 + index, &[inbox.sge(0, len)])?;
            }
            world.ended(link)?;
            let mut came = 0;
            for (side, first) in [(from, 0), (to, 500)] {
                for index in 0..COUNT {
                    let wc = world.completion(link, side, "a request of what was given up")?;
                    ensure_eq!(wc.wr_id, first + index, "{side:?}: order of completions");
                    came += u64::from(side == to && wc.status == WcStatus::Success);
                }
            }
            ensure!(came < COUNT, "all that waited came nevertheless");
            inbox.check_guards("around receives of what was given up")?;
            let now = inbox.read(0, len);
            world.silent(link)?;
            ensure!(
                inbox.read(0, len) == now,
                "bytes came behind the end of a connection"
            );
            // The id is unknown by now: nothing happens to others.
            world.end(from).cm.abort(id);
            alive(&mut world, bystander)?;
            world.close(link);
            world.close(bystander);
        }
    }
    // In the middle of a set-up. This is the last connection: its request may have left, and
    // nothing takes it.
    let bystander = world.connect(&LinkOptions::default())?;
    let start = world.start(&LinkOptions::default())?;
    world.end(Side::Active).cm.abort(start.id);
    world.end(Side::Active).cm.destroy(start.id);
    alive(&mut world, bystander)
}

fn in_flight(
    world: &mut World<'_>,
    link: usize,
    worker: Side,
    (ender, end): (Side, End),
    moment: Moment,
) -> Outcome {
    let len = 100_000;
    let here = source(world, worker, len, 1)?;
    let mut back = read_sink(world, worker, len)?;
    let mut there = sink(world, worker.peer(), len)?;
    let mut inbox = sink(world, worker.peer(), len)?;
    for index in 0..10 {
        world.post_recv(link, worker.peer(), 500 + index, &[inbox.sge(0, len)])?;
    }
    for index in 0..10 {
        let (out, into) = ([here.sge(0, len)], [back.sge(0, len)]);
        world.post(link, worker, &read(index * 3, &into, there.remote(0)))?;
        world.post(link, worker, &write(index * 3 + 1, &out, there.remote(0)))?;
        world.post(link, worker, &send(index * 3 + 2, &out))?;
    }
    world.ring(link, worker)?;
    moment.pass(world);
    let id = world.id(link, ender);
    end(&mut *world.end(ender).cm, id);
    let state = world.qp(link, ender)?.state();
    ensure_eq!(state, QpState::Error, "state after the end");
    for (side, first, count) in [(worker, 0, 30), (worker.peer(), 500, 10)] {
        let mut broken = false;
        for index in 0..count {
            let wc = world.completion(link, side, "a request in flight at the end")?;
            ensure_eq!(wc.wr_id, first + index, "{side:?}: order of completions");
            let success = wc.status == WcStatus::Success;
            ensure!(
                !(broken && wc.status != WcStatus::WrFlushError),
                "{side:?}: {:?} after the first error",
                wc.status
            );
            broken |= !success;
        }
    }
    world.ended(link)?;
    world.silent(link)?;
    here.check("source")?;
    // All messages hold the same bytes: each byte is either untouched or right.
    for (area, what) in [
        (&mut there, "WRITE"),
        (&mut inbox, "Send"),
        (&mut back, "READ"),
    ] {
        let sent = if what == "READ" {
            None
        } else {
            Some(here.shadow(0, len))
        };
        if let Some(sent) = sent {
            let now = area.read(0, len);
            let old = area.shadow(0, len);
            let fits = (0..len).all(|at| now[at] == old[at] || now[at] == sent[at]);
            ensure!(fits, "bytes that were not sent after a {what}");
        }
        area.check_guards(what)?;
    }
    Ok(())
}

/// Once a queue pair has been dropped, no memory is touched through it, and it has no completions.
pub(super) fn drop_with_requests_outstanding(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for dropper in Side::BOTH {
        for moment in Moment::ALL {
            let bystander = world.connect(&LinkOptions::default())?;
            let link = world.connect(&LinkOptions::default())?;
            let peer = dropper.peer();
            let len = 200_000;
            let mut mine = Vec::new();
            let theirs = source(&world, peer, len, 3)?;
            let target = sink(&world, peer, len)?;
            for index in 0..8 {
                let area = sink(&world, dropper, len)?;
                world.post_recv(link, dropper, index, &[area.sge(0, len)])?;
                world.post_recv(link, peer, index, &[])?;
                mine.push(area);
            }
            for index in 0..4 {
                let into = [mine[index].sge(0, len)];
                let wr = read(100 + index as u64, &into, target.remote(0));
                world.post(link, dropper, &wr)?;
                let out = [theirs.sge(0, len)];
                world.post(link, peer, &write(200, &out, mine[index + 4].remote(0)))?;
                world.post(link, peer, &send(201, &out))?;
            }
            world.ring(link, dropper)?;
            world.ring(link, peer)?;
            moment.pass(&mut world);
            let num = world.links[link][dropper.index()].num;
            world.links[link][dropper.index()].qp = None;
            world.end(dropper).completions.retain(|wc| wc.qp != num);
            for area in &mut mine {
                area.check_guards("around memory of a dropped queue pair")?;
            }
            world.ended_at(link, peer)?;
            world.settle(20_000);
            for area in &mine {
                area.check("memory touched after the drop")?;
            }
            ensure!(
                !world.end(dropper).completions.iter().any(|wc| wc.qp == num),
                "a dropped queue pair completed something"
            );
            alive(&mut world, bystander)?;
            world.close(link);
            world.close(bystander);
        }
    }
    Ok(())
}

/// A message each way.
fn alive(world: &mut World<'_>, link: usize) -> Outcome {
    for from in Side::BOTH {
        world.post_recv(link, from.peer(), 1, &[])?;
        world.post_now(link, from, &send(2, &[]))?;
        world.received(link, from.peer(), 1, 0)?;
        world.success(link, from, 2, WcOpcode::Send)?;
    }
    Ok(())
}

/// A region may be deregistered while the peer uses it: from then on it is not touched.
pub(super) fn deregister_in_flight(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        for moment in Moment::ALL {
            let link = world.connect(&LinkOptions::default())?;
            let len = 300_000;
            let here = source(&world, from, len, 4)?;
            let mut victim = sink(&world, from.peer(), len)?;
            for _ in 0..8 {
                let out = [here.sge(0, len)];
                world.post(link, from, &write(1, &out, victim.remote(0)))?;
            }
            world.ring(link, from)?;
            moment.pass(&mut world);
            victim.deregister();
            victim.check_guards("around a region deregistered in flight")?;
            world.settle(20_000);
            victim.check("a region touched after it was deregistered")?;
            world.close(link);
        }
    }
    Ok(())
}

/// A region may be deregistered while this side's own requests still read it: they fail, and what
/// is posted behind a WRITE that did not arrive is not received.
pub(super) fn source_deregistered_in_flight(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        for (moment, len) in Moment::ALL
            .into_iter()
            .flat_map(|m| [(m, 64), (m, 100_000)])
        {
            let to = from.peer();
            let link = world.connect(&LinkOptions::default())?;
            let mut here = source(&world, from, 8 * len, 9)?;
            let there = sink(&world, to, 8 * len)?;
            for index in 0..8_usize {
                world.post_recv(link, to, index as u64, &[])?;
                let out = [here.sge(index * len, len)];
                let wr = write(100, &out, there.remote(index * len));
                world.post(link, from, &wr)?;
                world.post(link, from, &send(101, &[]))?;
            }
            world.ring(link, from)?;
            moment.pass(&mut world);
            here.deregister();
            let mut told = Vec::new();
            for index in 0..16 {
                let wc = world.completion(link, from, "a request whose memory may have gone")?;
                ensure_eq!(wc.wr_id, 100 + index % 2, "order of completions");
                told.push(wc.status);
            }
            let good = told
                .iter()
                .take_while(|&&status| status == WcStatus::Success);
            let bad = told.get(good.count() + 1..).unwrap_or_default();
            let flushed = bad.iter().all(|&status| status == WcStatus::WrFlushError);
            ensure!(flushed, "behind the first error: {told:?}");
            for index in 0..8_usize {
                let what = "a receive of a connection whose source has gone";
                let wc = world.completion(link, to, what)?;
                ensure_eq!(wc.wr_id, index as u64, "order of receives");
                if wc.status == WcStatus::Success {
                    let arrived = there.read(index * len, len) == here.read(index * len, len);
                    ensure!(arrived, "message {index} came without the WRITE before it");
                }
            }
            world.close(link);
        }
    }
    Ok(())
}

/// A violation on one connection leaves the others alone.
pub(super) fn other_connections_survive_a_violation(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        let bystander = world.connect(&LinkOptions::default())?;
        let link = world.connect(&LinkOptions::default())?;
        let victim = sink(&world, from.peer(), 64)?;
        let here = source(&world, from, 64, 5)?;
        let remote = Remote {
            addr: victim.addr(1),
            rkey: victim.rkey(),
        };
        world.post_now(link, from, &write(1, &[here.sge(0, 64)], remote))?;
        world.ended(link)?;
        victim.check("after a WRITE one byte past the end")?;
        alive(&mut world, bystander)?;
    }
    Ok(())
}

/// Requests that do not reach the wire flush with the rest.
pub(super) fn posted_but_not_rung_is_flushed(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    let side = Side::Active;
    let here = source(&world, side, 8, 6)?;
    world.post(link, side, &send(1, &[here.sge(0, 8)]))?;
    let _ = world.qp(link, side)?.send_inline(&[1; 8], None);
    world.post(link, side, &send(2, &[]))?;
    let id = world.id(link, side.peer());
    world.end(side.peer()).cm.disconnect(id);
    world.ended(link)?;
    world.ring(link, side)?;
    world.flushed(link, side, 1)?;
    world.flushed(link, side, 2)?;
    ensure!(
        !world.qp(link, side)?.needs_drain(),
        "the end leaves nothing to be sent"
    );
    world.silent(link)
}

/// A second end is no event: `Disconnected` comes once.
pub(super) fn the_end_is_told_once(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for side in [Side::Active, Side::Passive, Side::Active] {
        let id = world.id(link, side);
        world.end(side).cm.disconnect(id);
    }
    world.ended(link)?;
    world.settle(20_000);
    for side in Side::BOTH {
        let id = world.id(link, side);
        if let Some(event) = world.end(side).events.iter().find(|event| event.id == id) {
            return Err(Stop::failed(format_args!("{side:?}: also got {event:?}")));
        }
    }
    Ok(())
}
