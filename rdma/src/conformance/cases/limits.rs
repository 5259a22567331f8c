//! Queues are as deep as asked for, and report when they are full.

use std::collections::HashSet;
use std::rc::Rc;

use super::super::fabric::{Fabric, Side};
use super::super::link::{LinkOptions, read, send, write};
use super::super::outcome::{Outcome, Stop, ensure, ensure_eq};
use super::super::world::World;
use super::support::{read_sink, sink, source};
use crate::contract::{PostError, QpConfig, QueuePair, ReceiveSource, Sge, WcOpcode, WcStatus};

const DEPTH: u32 = 8;

/// Posts until the queue is full; returns how many were taken.
fn fill(world: &World<'_>, mut post: impl FnMut(u64) -> Result<(), PostError>) -> Outcome<u64> {
    let rounded = u64::from(4 * DEPTH + 256);
    for taken in 0..rounded {
        match post(taken) {
            Ok(()) => {}
            Err(PostError::QueueFull(_)) => {
                let enough = if world.behaviour.exact_queue_depths {
                    taken == u64::from(DEPTH)
                } else {
                    taken >= u64::from(DEPTH)
                };
                ensure!(enough, "full after {taken} posts, asked for {DEPTH}");
                return Ok(taken);
            }
            Err(other) => return Err(Stop::failed(other)),
        }
    }
    Err(Stop::failed(format_args!(
        "{rounded} posts taken by a queue of {DEPTH}"
    )))
}

fn shallow() -> LinkOptions {
    LinkOptions {
        send_wr_max: DEPTH,
        recv_wr_max: DEPTH,
        sge_max: 2,
        ..LinkOptions::default()
    }
}

pub(super) fn send_queue_full(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let link = world.connect(&shallow())?;
    for from in Side::BOTH {
        let mut there = sink(&world, from.peer(), 600)?;
        let here = source(&world, from, 600, 1)?;
        for _ in 0..3 {
            let mut qp = world.links[link][from.index()].qp.take();
            let Some(sender) = qp.as_mut() else {
                return Err(Stop::failed("no queue pair"));
            };
            let taken = fill(&world, |wr_id| {
                let at = usize::try_from(wr_id).unwrap_or(0) % 500;
                sender.post_send(&write(wr_id, &[here.sge(at, 7)], there.remote(at)))
            })?;
            sender.ring_doorbell();
            world.links[link][from.index()].qp = qp;
            // What was refused left no trace, and completions make room again.
            for wr_id in 0..taken {
                world.success(link, from, wr_id, WcOpcode::RdmaWrite)?;
                let at = usize::try_from(wr_id).unwrap_or(0) % 500;
                there.expect(at, here.shadow(at, 7));
            }
        }
        // A READ behind them proves them placed (iWARP).
        let back = read_sink(&world, from, 1)?;
        world.post_now(link, from, &read(1, &[back.sge(0, 1)], there.remote(0)))?;
        world.success(link, from, 1, WcOpcode::RdmaRead)?;
        there.check("a full send queue")?;
    }
    Ok(())
}

pub(super) fn receive_queue_full(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let link = world.connect(&shallow())?;
    for to in Side::BOTH {
        for _ in 0..3 {
            let mut qp = world.links[link][to.index()].qp.take();
            let Some(receiver) = qp.as_mut() else {
                return Err(Stop::failed("no queue pair"));
            };
            let taken = fill(&world, |wr_id| receiver.post_recv(wr_id, &[]))?;
            world.links[link][to.index()].qp = qp;
            for wr_id in 0..taken {
                world.post_now(link, to.peer(), &send(wr_id, &[]))?;
                world.received(link, to, wr_id, 0)?;
                world.success(link, to.peer(), wr_id, WcOpcode::Send)?;
            }
        }
    }
    Ok(())
}

pub(super) fn shared_receive_queue_full(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for to in Side::BOTH {
        let probe = world.connect(&LinkOptions::default())?;
        if world.has(to)?.device.attributes().srq_wr_max == 0 {
            return Err(Stop::NotApplicable("no shared receive queues".into()));
        }
        world.close(probe);
        let srq = world.pd(to)?.create_srq(DEPTH, 2)?;
        let mut options = shallow();
        options.srq[to.index()] = Some(Rc::clone(&srq));
        let link = world.connect(&options)?;
        let taken = fill(&world, |wr_id| srq.post_recv(wr_id, &[]))?;
        let mut posted: HashSet<u64> = (0..taken).collect();
        for wr_id in 0..taken {
            world.post_now(link, to.peer(), &send(wr_id, &[]))?;
            world.success(link, to.peer(), wr_id, WcOpcode::Send)?;
            // Which one is the provider's choice.
            let wc = world.completion(link, to, "a message through a full SRQ")?;
            ensure_eq!(wc.status, WcStatus::Success, "a message through a full SRQ");
            ensure!(
                posted.remove(&wc.wr_id),
                "{} completed twice or was not posted",
                wc.wr_id
            );
            srq.post_recv(wr_id + taken, &[])?;
            posted.insert(wr_id + taken);
        }
        ensure_eq!(
            srq.post_recv(0, &[]).is_err(),
            true,
            "refusal of a receive by a full SRQ"
        );
        world.close(link);
    }
    Ok(())
}

/// The send queue holds what is outstanding, not what was ever posted: many rounds through it.
pub(super) fn shallow_queue_many_times(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let link = world.connect(&LinkOptions {
        send_wr_max: 1,
        recv_wr_max: 1,
        ..LinkOptions::default()
    })?;
    let here = source(&world, Side::Active, 1000, 2)?;
    let mut there = sink(&world, Side::Passive, 1000)?;
    for round in 0..1000_usize {
        let wr_id = round as u64;
        world.post_recv(link, Side::Passive, wr_id, &[there.sge(round, 1)])?;
        let out = [here.sge(round, 1)];
        world.post_now(link, Side::Active, &send(wr_id, &out))?;
        world.success(link, Side::Active, wr_id, WcOpcode::Send)?;
        world.received(link, Side::Passive, wr_id, 1)?;
    }
    there.expect(0, here.shadow(0, 1000));
    there.check("a thousand Sends of one byte")
}

pub(super) fn too_many_sges(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let link = world.connect(&shallow())?;
    for side in Side::BOTH {
        let area = sink(&world, side, 4096)?;
        let sges: Vec<Sge> = (0..40).map(|index| area.sge(index, 1)).collect();
        for refused in [
            world.qp(link, side)?.post_send(&send(1, &sges)),
            world.qp(link, side)?.post_recv(1, &sges),
        ] {
            let fits = matches!(refused, Err(PostError::TooManySges(40, _)));
            ensure!(fits, "40 SGEs on a queue pair of 2: {refused:?}");
        }
        // Nothing was posted by the refused call.
        world.post_recv(link, side.peer(), 2, &[])?;
        world.post_now(link, side, &send(3, &sges[..0]))?;
        world.received(link, side.peer(), 2, 0)?;
        world.success(link, side, 3, WcOpcode::Send)?;
    }
    Ok(())
}

/// More than the device has is refused when the object is made.
pub(super) fn more_than_the_device_has(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, _) = World::connected(fabric)?;
    let side = Side::Active;
    let attributes = world.has(side)?.device.attributes().clone();
    let device = Rc::clone(&world.has(side)?.device);
    if let Some(depth) = attributes.cqe_max.checked_add(1) {
        ensure!(device.create_cq(depth).is_err(), "a CQ of {depth} was made");
    }
    let id = world.resolve()?;
    let resources = world.has(Side::Active)?;
    let (pd, cq) = (Rc::clone(&resources.pd), Rc::clone(&resources.cq));
    let config = QpConfig {
        send_cq: Rc::clone(&cq),
        recv_cq: cq,
        send_wr_max: 4,
        receives: ReceiveSource::Own(4),
        send_sge_max: 1,
        recv_sge_max: 1,
        inline_bytes: 64,
    };
    let (wr, sge) = (attributes.qp_wr_max, attributes.sge_max);
    let mut wrong = Vec::new();
    if let Some(wr) = wr.checked_add(1) {
        let mut deep = config.clone();
        deep.send_wr_max = wr;
        wrong.push(("send queue", deep));
        let mut deep = config.clone();
        deep.receives = ReceiveSource::Own(wr);
        wrong.push(("receive queue", deep));
    }
    if let Some(sge) = sge.checked_add(1) {
        let mut wide = config.clone();
        wide.send_sge_max = sge;
        wrong.push(("SGEs of a send", wide));
        let mut wide = config.clone();
        wide.recv_sge_max = sge;
        wrong.push(("SGEs of a receive", wide));
    }
    for (what, config) in wrong {
        let made = world.end(Side::Active).cm.create_qp(id, &pd, &config);
        ensure!(
            made.is_err(),
            "{what}: more than the device has was granted"
        );
    }
    let made = world.end(Side::Active).cm.create_qp(id, &pd, &config);
    ensure!(made.is_ok(), "no queue pair after refused ones");
    Ok(())
}

/// Requests before the connection is up are refused; receives are not.
pub(super) fn send_before_connected(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let options = LinkOptions::default();
    let id = world.resolve()?;
    let mut qp = world.create_qp(Side::Active, id, &options)?;
    ensure_eq!(
        qp.post_send(&send(1, &[])),
        Err(PostError::NotConnected),
        "Send on an unconnected queue pair"
    );
    ensure_eq!(
        qp.post_recv(1, &[]),
        Ok(()),
        "receive on an unconnected queue pair"
    );
    Ok(())
}

/// Each of two completion queues gets the completions that belong to it.
pub(super) fn separate_completion_queues(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let probe = world.connect(&LinkOptions::default())?;
    let mut options = LinkOptions::default();
    let mut receive_cqs = Vec::new();
    for side in Side::BOTH {
        let cq = world.has(side)?.device.create_cq(64)?;
        options.recv_cq[side.index()] = Some(Rc::clone(&cq));
        receive_cqs.push(cq);
    }
    world.close(probe);
    for side in Side::BOTH {
        let cq = Rc::clone(&receive_cqs[side.index()]);
        world.end(side).more_cqs.push(cq);
    }
    let link = world.connect(&options)?;
    for side in Side::BOTH {
        world.end(side).more_cqs.clear();
    }
    for from in Side::BOTH {
        for round in 0..10 {
            world.post_recv(link, from.peer(), 100 + round, &[])?;
            world.post(link, from, &send(round, &[]))?;
        }
        world.ring(link, from)?;
        for round in 0..10 {
            world.success(link, from, round, WcOpcode::Send)?;
        }
        // The receives wait in their own queue, which has not been polled yet.
        let early = world.take_completion(link, from.peer());
        ensure!(
            early.is_none(),
            "the send queue's CQ told a receive: {early:?}"
        );
        let cq = Rc::clone(&receive_cqs[from.peer().index()]);
        world.end(from.peer()).more_cqs.push(cq);
        for round in 0..10 {
            world.received(link, from.peer(), 100 + round, 0)?;
        }
        world.end(from.peer()).more_cqs.clear();
    }
    Ok(())
}
