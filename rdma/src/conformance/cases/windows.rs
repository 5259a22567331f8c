//! Type 2 memory windows and remote invalidation.

use super::super::area::Area;
use super::super::fabric::{Fabric, Side};
use super::super::link::{LinkOptions, read, request, send, write};
use super::super::outcome::{Outcome, Stop, ensure, ensure_eq};
use super::super::world::World;
use super::support::{ALL, Attempt, Kind, need_windows, provoke, read_sink, sink, source};
use crate::contract::{Access, MemoryWindow, QueuePair, RKey, Remote, SendOp, WcOpcode, WcStatus};

const LEN: usize = 1000;
/// Where the windows of most cases lie in their region.
const AT: usize = 101;
const SPAN: usize = 300;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A region of `side` that windows can be bound to; its own key allows the peer nothing.
fn bindable(world: &World<'_>, side: Side) -> Outcome<Area> {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let mut area = Area::new(&world.pd(side)?, LEN, access)?;
    area.fill(1);
    Ok(area)
}

fn window(world: &World<'_>, side: Side) -> Outcome<Box<dyn MemoryWindow>> {
    Ok(world.pd(side)?.allocate_window()?)
}

/// Runs `body` with either side as the `owner`, which grants; `owner.peer()` uses.
fn both_ways(fabric: &mut dyn Fabric, body: fn(&mut World<'_>, usize, Side) -> Outcome) -> Outcome {
    let mut world = World::new(fabric)?;
    for owner in Side::BOTH {
        let link = world.connect(&LinkOptions::default())?;
        need_windows(&world)?;
        body(&mut world, link, owner)?;
        world.close(link);
    }
    Ok(())
}

/// WRITEs `len_bytes` from the peer of `owner` to `at` of `area` by `rkey`, and READs them back.
fn use_window(
    world: &mut World<'_>,
    link: usize,
    owner: Side,
    area: &mut Area,
    rkey: RKey,
    (at, len_bytes): (usize, usize),
) -> Outcome {
    let user = owner.peer();
    let seed = world.now_us();
    let here = source(world, user, len_bytes, seed)?;
    let mut back = read_sink(world, user, len_bytes)?;
    let remote = Remote {
        addr: area.addr(at),
        rkey,
    };
    world.post(link, user, &write(1, &[here.sge(0, len_bytes)], remote))?;
    world.post_now(link, user, &read(2, &[back.sge(0, len_bytes)], remote))?;
    world.success(link, user, 1, WcOpcode::RdmaWrite)?;
    world.success(link, user, 2, WcOpcode::RdmaRead)?;
    area.expect(at, here.shadow(0, len_bytes));
    back.expect(0, here.shadow(0, len_bytes));
    area.check("RDMA WRITE through a window")?;
    back.check("RDMA READ through a window")
}

pub(super) fn window_opens_its_range(fabric: &mut dyn Fabric) -> Outcome {
    both_ways(fabric, |world, link, owner| {
        let mut area = bindable(world, owner)?;
        let mut mw = window(world, owner)?;
        let rkey = world.bind(link, owner, mw.as_mut(), &area, (AT, SPAN), READ_WRITE)?;
        for range in [(AT, SPAN), (AT, 1), (AT + SPAN - 1, 1), (AT + 7, 64)] {
            use_window(world, link, owner, &mut area, rkey, range)?;
        }
        // A second window of the same bytes is valid beside it.
        let mut other = window(world, owner)?;
        let second = world.bind(link, owner, other.as_mut(), &area, (0, LEN), READ_WRITE)?;
        ensure!(second != rkey, "two windows share one key");
        use_window(world, link, owner, &mut area, second, (0, LEN))?;
        use_window(world, link, owner, &mut area, rkey, (AT, SPAN))
    })
}

/// Binds a window, tries what it does not allow, and checks that nothing was written.
fn refused(
    world: &mut World<'_>,
    link: usize,
    owner: Side,
    access: Access,
    kind: Kind,
    (at, len_bytes): (usize, usize),
) -> Outcome {
    let area = bindable(world, owner)?;
    let mut mw = window(world, owner)?;
    let rkey = world.bind(link, owner, mw.as_mut(), &area, (AT, SPAN), access)?;
    let remote = Remote {
        addr: area.addr(at),
        rkey,
    };
    provoke(
        world,
        link,
        owner.peer(),
        kind,
        Attempt { remote, len_bytes },
    )?;
    area.check("memory behind a window")
}

pub(super) fn window_bounds(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for owner in Side::BOTH {
        for kind in [Kind::Write, Kind::Read] {
            for range in [
                (AT - 1, 1),
                (AT - 1, SPAN),
                (AT + SPAN, 1),
                (AT + 1, SPAN),
                (0, LEN),
            ] {
                let link = world.connect(&LinkOptions::default())?;
                need_windows(&world)?;
                refused(&mut world, link, owner, READ_WRITE, kind, range)?;
                world.close(link);
            }
        }
    }
    Ok(())
}

pub(super) fn window_access(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for owner in Side::BOTH {
        for (access, kind) in [
            (Access::REMOTE_READ, Kind::Write),
            (Access::REMOTE_WRITE, Kind::Read),
        ] {
            let link = world.connect(&LinkOptions::default())?;
            need_windows(&world)?;
            refused(&mut world, link, owner, access, kind, (AT, SPAN))?;
            world.close(link);
        }
    }
    Ok(())
}

/// What is posted behind a bind on the same queue may rely on it.
pub(super) fn bind_is_ordered_before_a_send(fabric: &mut dyn Fabric) -> Outcome {
    both_ways(fabric, |world, link, owner| {
        let user = owner.peer();
        let mut area = bindable(world, owner)?;
        let mut mw = window(world, owner)?;
        world.post_recv(link, user, 1, &[])?;
        let rkey = mw.next_rkey();
        let op = SendOp::BindWindow {
            rkey,
            lkey: area.lkey(),
            addr: area.addr(AT),
            len_bytes: SPAN as u64,
            access: READ_WRITE,
        };
        world.post(link, owner, &request(2, op, &[]))?;
        world.post_now(link, owner, &send(3, &[]))?;
        world.received(link, user, 1, 0)?;
        use_window(world, link, owner, &mut area, rkey, (AT, SPAN))?;
        world.success(link, owner, 2, WcOpcode::BindMw)?;
        world.success(link, owner, 3, WcOpcode::Send)?;
        Ok(())
    })
}

pub(super) fn rebinding_changes_the_key(fabric: &mut dyn Fabric) -> Outcome {
    both_ways(fabric, |world, link, owner| {
        let mut area = bindable(world, owner)?;
        let mut mw = window(world, owner)?;
        let mut seen: Vec<RKey> = Vec::new();
        for round in 0..20 {
            let range = (round * 13, 40 + round);
            let rkey = world.bind(link, owner, mw.as_mut(), &area, range, READ_WRITE)?;
            ensure!(!seen.contains(&rkey), "round {round} got an old key again");
            seen.push(rkey);
            use_window(world, link, owner, &mut area, rkey, range)?;
            world.invalidate(link, owner, rkey)?;
        }
        // The key before the newest, while the window is bound with the newest.
        let newest = world.bind(link, owner, mw.as_mut(), &area, (0, LEN), READ_WRITE)?;
        use_window(world, link, owner, &mut area, newest, (0, LEN))?;
        let old = *seen.last().unwrap_or(&newest);
        let remote = Remote {
            addr: area.addr(300),
            rkey: old,
        };
        let attempt = Attempt {
            remote,
            len_bytes: 8,
        };
        provoke(world, link, owner.peer(), Kind::Write, attempt)?;
        area.check("after the use of an old key")
    })
}

pub(super) fn unbound_window_is_no_key(fabric: &mut dyn Fabric) -> Outcome {
    both_ways(fabric, |world, link, owner| {
        let area = bindable(world, owner)?;
        let mut mw = window(world, owner)?;
        let remote = Remote {
            addr: area.addr(AT),
            rkey: mw.next_rkey(),
        };
        let attempt = Attempt {
            remote,
            len_bytes: SPAN,
        };
        provoke(world, link, owner.peer(), Kind::Write, attempt)?;
        area.check("after the use of an unbound window")
    })
}

pub(super) fn local_invalidate_revokes(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for owner in Side::BOTH {
        for kind in [Kind::Write, Kind::Read] {
            let link = world.connect(&LinkOptions::default())?;
            need_windows(&world)?;
            let mut area = bindable(&world, owner)?;
            let mut mw = window(&world, owner)?;
            let rkey = world.bind(link, owner, mw.as_mut(), &area, (AT, SPAN), READ_WRITE)?;
            use_window(&mut world, link, owner, &mut area, rkey, (AT, SPAN))?;
            world.invalidate(link, owner, rkey)?;
            let remote = Remote {
                addr: area.addr(AT),
                rkey,
            };
            let attempt = Attempt {
                remote,
                len_bytes: SPAN,
            };
            provoke(&mut world, link, owner.peer(), kind, attempt)?;
            area.check("after LocalInvalidate")?;
            world.close(link);
        }
    }
    Ok(())
}

/// Sends with `invalidate` from `from`, with one receive posted at the peer.
fn send_with_invalidate(
    world: &mut World<'_>,
    link: usize,
    from: Side,
    invalidate: RKey,
) -> Outcome {
    world.post_recv(link, from.peer(), 50, &[])?;
    let op = SendOp::Send {
        invalidate: Some(invalidate),
        solicited: false,
    };
    world.post_now(link, from, &request(51, op, &[]))
}

pub(super) fn send_with_invalidate_revokes(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for owner in Side::BOTH {
        for kind in [Kind::Write, Kind::Read] {
            let link = world.connect(&LinkOptions::default())?;
            need_windows(&world)?;
            let user = owner.peer();
            let mut area = bindable(&world, owner)?;
            let mut mw = window(&world, owner)?;
            for at_once in [false, true, false] {
                let rkey = world.bind(link, owner, mw.as_mut(), &area, (AT, SPAN), READ_WRITE)?;
                use_window(&mut world, link, owner, &mut area, rkey, (AT, SPAN))?;
                let sent = at_once && world.qp(link, user)?.send_inline(&[], Some(rkey));
                if sent {
                    world.post_recv(link, owner, 50, &[])?;
                    world.ring(link, user)?;
                } else {
                    send_with_invalidate(&mut world, link, user, rkey)?;
                }
                let wc = world.received(link, owner, 50, 0)?;
                ensure_eq!(wc.invalidated, Some(rkey), "key told as invalidated");
                if !sent {
                    world.success(link, user, 51, WcOpcode::Send)?;
                }
            }
            let rkey = world.bind(link, owner, mw.as_mut(), &area, (AT, SPAN), READ_WRITE)?;
            send_with_invalidate(&mut world, link, user, rkey)?;
            world.received(link, owner, 50, 0)?;
            world.success(link, user, 51, WcOpcode::Send)?;
            let remote = Remote {
                addr: area.addr(AT),
                rkey,
            };
            let attempt = Attempt {
                remote,
                len_bytes: SPAN,
            };
            provoke(&mut world, link, user, kind, attempt)?;
            area.check("after Send with Invalidate")?;
            world.close(link);
        }
    }
    Ok(())
}

/// A peer that invalidates what it may not loses its connection, and its message is not received.
pub(super) fn invalidating_a_foreign_key_ends_the_connection(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for owner in Side::BOTH {
        let user = owner.peer();
        let bystander = world.connect(&LinkOptions::default())?;
        need_windows(&world)?;
        let mut area = bindable(&world, owner)?;
        let mut mw = window(&world, owner)?;
        let foreign = world.bind(bystander, owner, mw.as_mut(), &area, (AT, SPAN), READ_WRITE)?;
        // An unknown key; a key never bound; a window of another queue pair; a region's own key,
        // which only deregistering revokes.
        let region = sink(&world, owner, LEN)?;
        let mut unbound = window(&world, owner)?;
        for rkey in [
            RKey(foreign.0 ^ 0x4000_0000),
            unbound.next_rkey(),
            foreign,
            region.rkey(),
        ] {
            let link = world.connect(&LinkOptions::default())?;
            send_with_invalidate(&mut world, link, user, rkey)?;
            let wc = world.completion(link, owner, "end of the receive")?;
            ensure_eq!(wc.wr_id, 50, "completion at the victim");
            ensure!(
                wc.status != WcStatus::Success,
                "a Send that invalidates {rkey:?} was received"
            );
            world.ended(link)?;
            world.close(link);
        }
        use_window(&mut world, bystander, owner, &mut area, foreign, (AT, SPAN))?;
        let back = read_sink(&world, user, 4)?;
        world.post_now(
            bystander,
            user,
            &read(1, &[back.sge(0, 4)], region.remote(0)),
        )?;
        world.success(bystander, user, 1, WcOpcode::RdmaRead)?;
    }
    Ok(())
}

/// A window belongs to the queue pair it was bound on.
pub(super) fn window_of_another_queue_pair(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for owner in Side::BOTH {
        for kind in [Kind::Write, Kind::Read] {
            let bound_on = world.connect(&LinkOptions::default())?;
            need_windows(&world)?;
            let link = world.connect(&LinkOptions::default())?;
            let mut area = bindable(&world, owner)?;
            let mut mw = window(&world, owner)?;
            let rkey = world.bind(bound_on, owner, mw.as_mut(), &area, (AT, SPAN), READ_WRITE)?;
            let remote = Remote {
                addr: area.addr(AT),
                rkey,
            };
            let attempt = Attempt {
                remote,
                len_bytes: SPAN,
            };
            provoke(&mut world, link, owner.peer(), kind, attempt)?;
            area.check("window used through another queue pair")?;
            use_window(&mut world, bound_on, owner, &mut area, rkey, (AT, SPAN))?;
        }
    }
    Ok(())
}

/// Posts a bind that must not succeed; the queue pair does not survive it.
fn bad_bind(world: &mut World<'_>, link: usize, side: Side, op: SendOp, what: &str) -> Outcome {
    if world
        .qp(link, side)?
        .post_send(&request(1, op, &[]))
        .is_ok()
    {
        world.ring(link, side)?;
        let wc = world.completion(link, side, what)?;
        ensure_eq!(wc.wr_id, 1, "{what}");
        let named = [
            WcStatus::MwBindError,
            WcStatus::LocalProtectionError,
            WcStatus::LocalQpOperationError,
        ];
        world.check_local(&wc, &named)?;
        world.ended(link)?;
    }
    Ok(())
}

pub(super) fn bad_binds_fail(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for side in Side::BOTH {
        let probe = world.connect(&LinkOptions::default())?;
        need_windows(&world)?;
        let good = bindable(&world, side)?;
        let not_bindable = Area::new(&world.pd(side)?, LEN, ALL)?;
        let other_pd = world.has(side)?.device.allocate_pd()?;
        let foreign = Area::new(&other_pd, LEN, Access::LOCAL_WRITE | Access::MW_BIND)?;
        let read_only = Area::new(&world.pd(side)?, LEN, Access::MW_BIND)?;
        world.close(probe);
        let wrong = [
            (
                "a region that allows no windows",
                &not_bindable,
                0,
                LEN,
                READ_WRITE,
            ),
            ("one byte past the region", &good, 1, LEN, READ_WRITE),
            ("a region of another domain", &foreign, 0, LEN, READ_WRITE),
            (
                "remote write to memory without local write",
                &read_only,
                0,
                LEN,
                READ_WRITE,
            ),
        ];
        for (what, area, at, len_bytes, access) in wrong {
            let link = world.connect(&LinkOptions::default())?;
            let mut mw = window(&world, side)?;
            let op = SendOp::BindWindow {
                rkey: mw.next_rkey(),
                lkey: area.lkey(),
                addr: area.addr(at),
                len_bytes: len_bytes as u64,
                access,
            };
            bad_bind(&mut world, link, side, op, what)?;
            world.close(link);
        }
        // A window of another domain, and one that is bound already.
        let bind_good = |rkey| SendOp::BindWindow {
            rkey,
            lkey: good.lkey(),
            addr: good.addr(0),
            len_bytes: LEN as u64,
            access: READ_WRITE,
        };
        let link = world.connect(&LinkOptions::default())?;
        let mut mw = other_pd.allocate_window()?;
        let op = bind_good(mw.next_rkey());
        bad_bind(&mut world, link, side, op, "a window of another domain")?;
        world.close(link);
        let link = world.connect(&LinkOptions::default())?;
        let mut mw = window(&world, side)?;
        world.bind(link, side, mw.as_mut(), &good, (0, 10), READ_WRITE)?;
        let op = bind_good(mw.next_rkey());
        bad_bind(&mut world, link, side, op, "a window that is still bound")?;
        world.close(link);
        good.check("after binds that failed")?;
    }
    Ok(())
}

pub(super) fn dropped_window_is_no_key(fabric: &mut dyn Fabric) -> Outcome {
    both_ways(fabric, |world, link, owner| {
        let area = bindable(world, owner)?;
        let mut mw = window(world, owner)?;
        let rkey = world.bind(link, owner, mw.as_mut(), &area, (AT, SPAN), READ_WRITE)?;
        drop(mw);
        let remote = Remote {
            addr: area.addr(AT),
            rkey,
        };
        let attempt = Attempt {
            remote,
            len_bytes: SPAN,
        };
        provoke(world, link, owner.peer(), Kind::Write, attempt)?;
        area.check("after the window was dropped")
    })
}

/// Only a bound window's key can be invalidated; anything else is an error of the program.
pub(super) fn bad_local_invalidates_fail(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for side in Side::BOTH {
        let probe = world.connect(&LinkOptions::default())?;
        need_windows(&world)?;
        let region = sink(&world, side, LEN)?;
        let mut mw = window(&world, side)?;
        let unbound = mw.next_rkey();
        world.close(probe);
        for rkey in [region.rkey(), unbound, RKey(unbound.0 ^ 0x4000_0000)] {
            let link = world.connect(&LinkOptions::default())?;
            let op = SendOp::LocalInvalidate(rkey);
            if world
                .qp(link, side)?
                .post_send(&request(1, op, &[]))
                .is_ok()
            {
                world.ring(link, side)?;
                let wc = world.completion(link, side, "a bad LocalInvalidate")?;
                if wc.wr_id != 1 || wc.status == WcStatus::Success {
                    return Err(Stop::failed(format_args!(
                        "LocalInvalidate of {rkey:?} ended as {wc:?}"
                    )));
                }
                world.ended(link)?;
            }
            world.close(link);
        }
    }
    Ok(())
}
