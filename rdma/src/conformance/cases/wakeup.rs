//! Sleeping on a descriptor: woken when there is something, and not when there is not.

use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::fabric::{Fabric, Side};
use super::super::link::{LinkOptions, read, send};
use super::super::outcome::{Outcome, Stop, ensure, ensure_eq};
use super::super::world::World;
use super::support::{read_sink, sink, source};
use crate::contract::{CmEventKind, WcOpcode, WcStatus, WorkCompletion};

/// Whether `fd` is readable now, or becomes so within `wait_ms`.
#[expect(
    unsafe_code,
    reason = "poll(2) wants a borrowed descriptor, the contract tells a number"
)]
fn readable(fd: RawFd, wait_ms: u8) -> Outcome<bool> {
    // SAFETY: the descriptor belongs to a completion queue or a connection manager that the
    // calling case holds, so it stays open during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    let count = poll(&mut fds, PollTimeout::from(wait_ms)).map_err(Stop::failed)?;
    Ok(count > 0)
}

/// What a sleeping side waits for.
#[derive(Clone, Copy, PartialEq)]
enum On {
    Completions,
    Events,
}

/// Arms one source of a side; `true` when there is something to poll already.
fn arm(world: &mut World<'_>, side: Side, on: On) -> Outcome<bool> {
    Ok(match on {
        On::Completions => world.has(side)?.cq.arm(),
        On::Events => world.end(side).cm.arm(),
    })
}

fn fd(world: &mut World<'_>, side: Side, on: On) -> Outcome<RawFd> {
    Ok(match on {
        On::Completions => world.has(side)?.cq.fd(),
        On::Events => world.end(side).cm.fd(),
    })
}

/// Most wake-ups of one sleep: far more than the pieces of the longest message here.
const WAKEUPS_MAX: u32 = 100_000;

/// Lets `side` sleep on its source, does `act` once it sleeps, and polls it only when woken, as a
/// reactor does, until `done`. The peer is polled all the time.
fn sleep_until<T>(
    world: &mut World<'_>,
    (side, on): (Side, On),
    what: &str,
    mut act: Option<&mut dyn FnMut(&mut World<'_>) -> Outcome>,
    mut done: impl FnMut(&mut World<'_>) -> Option<T>,
) -> Outcome<T> {
    let deadline_us = world.now_us() + world.behaviour.patience_us;
    let fd = fd(world, side, on)?;
    for _ in 0..WAKEUPS_MAX {
        let mut ready = arm(world, side, on)?;
        world.end(side).asleep = true;
        if let Some(act) = act.take_if(|_| !ready) {
            act(world)?;
        }
        let acted = act.is_none();
        while !ready {
            let progress = world.turn();
            if let Some(answer) = done(world) {
                world.end(side).asleep = false;
                return Ok(answer);
            }
            ready = readable(fd, u8::from(!progress))?;
            let now_us = world.now_us();
            if now_us >= deadline_us {
                world.end(side).asleep = false;
                return Err(Stop::failed(format_args!(
                    "{side:?} was not woken by {what}{}",
                    world.leftovers()
                )));
            }
            // A wake-up for work at a given time is allowed for by the deadline that the manager
            // has.
            let due = world.end(side).cm.next_deadline_us();
            ready |= due.is_some_and(|at| at <= now_us);
            if !progress && !ready {
                world.fabric.pause(deadline_us.min(due.unwrap_or(u64::MAX)));
            }
        }
        world.end(side).asleep = false;
        let now_us = world.now_us();
        world.end(side).poll(now_us);
        if let Some(answer) = acted.then(|| done(world)).flatten() {
            return Ok(answer);
        }
    }
    Err(Stop::failed(format_args!(
        "{side:?} was woken {WAKEUPS_MAX} times without {what}"
    )))
}

pub(super) fn completion_wakes_a_sleeper(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for to in Side::BOTH {
        for round in 0..20_u64 {
            let len = if round % 4 == 3 { 300_000 } else { 64 };
            let here = source(&world, to.peer(), len, round)?;
            let mut inbox = sink(&world, to, len)?;
            world.post_recv(link, to, round, &[inbox.sge(0, len)])?;
            world.settle(500);
            let out = [here.sge(0, len)];
            let wc = sleep_until(
                &mut world,
                (to, On::Completions),
                "a receive",
                Some(&mut |world| world.post_now(link, to.peer(), &send(round, &out))),
                |world| world.take_completion(link, to),
            )?;
            ensure_eq!(
                (wc.wr_id, wc.status),
                (round, WcStatus::Success),
                "the receive"
            );
            inbox.expect(0, here.shadow(0, len));
            inbox.check("a message that woke its receiver")?;
            world.success(link, to.peer(), round, WcOpcode::Send)?;
        }
    }
    Ok(())
}

/// A side that has posted an RDMA READ sleeps until its data is there.
pub(super) fn own_request_wakes_a_sleeper(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let there = source(&world, from.peer(), 300_000, 1)?;
        let mut back = read_sink(&world, from, 300_000)?;
        let into = [back.sge(0, 300_000)];
        let wc = sleep_until(
            &mut world,
            (from, On::Completions),
            "its own READ",
            Some(&mut |world| world.post_now(link, from, &read(1, &into, there.remote(0)))),
            |world| world.take_completion(link, from),
        )?;
        ensure_eq!((wc.wr_id, wc.status), (1, WcStatus::Success), "the READ");
        back.expect(0, there.shadow(0, 300_000));
        back.check("a READ that woke its asker")?;
    }
    Ok(())
}

/// A side that sleeps on its descriptors still serves the peer's RDMA READs.
pub(super) fn sleeper_serves_the_peer(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let there = source(&world, from.peer(), 300_000, 2)?;
        let mut back = read_sink(&world, from, 300_000)?;
        let into = [back.sge(0, 300_000)];
        world.settle(500);
        sleep_until(
            &mut world,
            (from.peer(), On::Completions),
            "the peer's READ",
            Some(&mut |world| world.post_now(link, from, &read(1, &into, there.remote(0)))),
            |world| world.take_completion(link, from),
        )?;
        back.expect(0, there.shadow(0, 300_000));
        back.check("a READ served by a sleeper")?;
    }
    Ok(())
}

/// What completed before arming is found when arming.
pub(super) fn arming_late_loses_nothing(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for to in Side::BOTH {
        for round in 0..20 {
            world.post_recv(link, to, round, &[])?;
            // The receiver does not poll while the message comes in.
            world.end(to).asleep = true;
            world.post_now(link, to.peer(), &send(round, &[]))?;
            world.settle(2_000);
            world.end(to).asleep = false;
            let on = (to, On::Completions);
            let wc = sleep_until(&mut world, on, "an early message", None, |world| {
                world.take_completion(link, to)
            })?;
            ensure_eq!(
                (wc.wr_id, wc.status),
                (round, WcStatus::Success),
                "the receive"
            );
            world.success(link, to.peer(), round, WcOpcode::Send)?;
        }
    }
    Ok(())
}

/// Completions that did not fit into one poll are reported when arming again.
pub(super) fn unpolled_completions_are_told_by_arm(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    let to = Side::Passive;
    for round in 0..10 {
        world.post_recv(link, to, round, &[])?;
        world.post(link, to.peer(), &send(round, &[]))?;
    }
    world.ring(link, to.peer())?;
    for round in 0..10 {
        world.success(link, to.peer(), round, WcOpcode::Send)?;
    }
    world.settle(2_000);
    world.end(to).completions.clear();
    // Again, polled one at a time by hand.
    for round in 0..10 {
        world.post_recv(link, to, round, &[])?;
        world.post(link, to.peer(), &send(round, &[]))?;
    }
    world.end(to).asleep = true;
    world.ring(link, to.peer())?;
    world.settle(2_000);
    let cq = Rc::clone(&world.has(to)?.cq);
    ensure_eq!(cq.poll(&mut []), 0, "completions polled into nothing");
    let mut expected = 0;
    let deadline_us = world.now_us() + world.behaviour.patience_us;
    while expected < 10 {
        let mut one = [WorkCompletion::EMPTY];
        if cq.poll(&mut one) == 1 {
            ensure_eq!(
                one[0].wr_id,
                expected,
                "order of completions polled one by one"
            );
            expected += 1;
            continue;
        }
        while !cq.arm() && !readable(cq.fd(), 1)? {
            world.turn();
            let now_us = world.now_us();
            ensure!(now_us < deadline_us, "slept over completion {expected}");
            world.fabric.pause(deadline_us);
        }
    }
    Ok(())
}

pub(super) fn connection_request_wakes_a_sleeper(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    world.settle(500);
    let options = LinkOptions::default();
    let listener = world.listener;
    let mut started = None;
    sleep_until(
        &mut world,
        (Side::Passive, On::Events),
        "a request",
        Some(&mut |world| {
            started = Some(world.start(&options)?);
            Ok(())
        }),
        |world| {
            let asked = |kind: &CmEventKind| matches!(kind, CmEventKind::ConnectRequest { listener: to, .. } if *to == listener);
            let events = &world.end(Side::Passive).events;
            let found = events.iter().any(|event| asked(&event.kind));
            found.then_some(())
        },
    )?;
    let active = started.ok_or_else(|| Stop::failed("not started"))?;
    let request = world.requested()?;
    // The accept wakes the side that connects.
    let id = active.id;
    let mut accepted = None;
    sleep_until(
        &mut world,
        (Side::Active, On::Events),
        "the accept",
        Some(&mut |world| {
            accepted = Some(world.admit(request, &options)?);
            Ok(())
        }),
        |world| {
            let events = &world.end(Side::Active).events;
            events.iter().any(|event| event.id == id).then_some(())
        },
    )?;
    let passive = accepted.ok_or_else(|| Stop::failed("not accepted"))?;
    world.join(active, passive)?;
    Ok(())
}

pub(super) fn disconnect_wakes_a_sleeper(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for side in Side::BOTH {
        for on in [On::Events, On::Completions] {
            if on == On::Completions && world.behaviour.flush_needs_cm_poll {
                continue;
            }
            let link = world.connect(&LinkOptions::default())?;
            world.post_recv(link, side, 1, &[])?;
            world.settle(2_000);
            let id = world.id(link, side);
            let peer_id = world.id(link, side.peer());
            sleep_until(
                &mut world,
                (side, on),
                "the end of the connection",
                Some(&mut |world| {
                    world.end(side.peer()).cm.disconnect(peer_id);
                    Ok(())
                }),
                |world| match on {
                    On::Events => {
                        let events = &world.end(side).events;
                        events.iter().any(|event| event.id == id).then_some(())
                    }
                    On::Completions => world.take_completion(link, side).map(|_| ()),
                },
            )?;
            world.ended(link)?;
            world.close(link);
        }
    }
    Ok(())
}

/// With a connection established and nothing to do, neither side is woken.
pub(super) fn idle_is_idle(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for side in Side::BOTH {
        world.post_recv(link, side, 1, &[])?;
    }
    world.settle(20_000);
    for side in Side::BOTH {
        for on in [On::Completions, On::Events] {
            let fd = fd(&mut world, side, on)?;
            let end_us = world.now_us() + 100_000;
            let mut wakeups = 0;
            let mut ready = arm(&mut world, side, on)?;
            while world.now_us() < end_us {
                if ready {
                    wakeups += 1;
                    if wakeups > 3 {
                        break;
                    }
                    let now_us = world.now_us();
                    world.end(side).poll(now_us);
                    ready = arm(&mut world, side, on)?;
                } else if !readable(fd, 5)? {
                    world.fabric.pause(end_us);
                } else {
                    ready = true;
                }
            }
            ensure!(
                wakeups <= 3,
                "{side:?}: woken more than three times within 100 ms of nothing"
            );
        }
    }
    world.silent(link)
}
