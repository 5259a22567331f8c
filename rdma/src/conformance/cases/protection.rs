//! Keys, access and bounds: a peer that breaks them loses its connection and touches nothing.

use std::rc::Rc;

use super::super::area::Area;
use super::super::fabric::{Fabric, Side};
use super::super::link::{LinkOptions, read, send, write};
use super::super::outcome::{Outcome, Stop, ensure, ensure_eq};
use super::super::world::World;
use super::support::{ALL, Attempt, Kind, provoke, read_sink, sink, source, write_at_once};
use crate::contract::{Access, LKey, PostError, QueuePair, RKey, Remote, SendWr, Sge, WcOpcode};

const LEN: usize = 500;

/// Runs `attempt` for each side and both operations, on a connection of its own each time.
fn each(
    fabric: &mut dyn Fabric,
    kinds: &[Kind],
    access: Access,
    attempts: &[fn(&Area) -> Attempt],
) -> Outcome {
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        for &kind in kinds {
            for attempt in attempts {
                let link = world.connect(&LinkOptions::default())?;
                let mut victim = Area::new(&world.pd(from.peer())?, LEN, access)?;
                victim.fill(1);
                provoke(&mut world, link, from, kind, attempt(&victim))?;
                victim.check("memory of the victim")?;
                world.close(link);
            }
        }
    }
    Ok(())
}

pub(super) fn wrong_key(fabric: &mut dyn Fabric) -> Outcome {
    fn flipped(victim: &Area, bits: u32) -> Attempt {
        let mut remote = victim.remote(0);
        remote.rkey = RKey(remote.rkey.0 ^ bits);
        Attempt {
            remote,
            len_bytes: LEN,
        }
    }
    // The low byte is the key, the rest the index (iWARP; InfiniBand devices do the same).
    let attempts: [fn(&Area) -> Attempt; 3] = [
        |victim| flipped(victim, 0x01),
        |victim| flipped(victim, 0x4000_0000),
        |victim| Attempt {
            remote: Remote {
                rkey: RKey(0),
                ..victim.remote(0)
            },
            len_bytes: LEN,
        },
    ];
    each(fabric, &[Kind::Write, Kind::Read], ALL, &attempts)
}

pub(super) fn write_without_access(fabric: &mut dyn Fabric) -> Outcome {
    let whole: fn(&Area) -> Attempt = |victim| Attempt {
        remote: victim.remote(0),
        len_bytes: LEN,
    };
    each(fabric, &[Kind::Write], Access::REMOTE_READ, &[whole])?;
    each(fabric, &[Kind::Write], Access::LOCAL_WRITE, &[whole])
}

pub(super) fn read_without_access(fabric: &mut dyn Fabric) -> Outcome {
    if !fabric.behaviour().serves_reads_faithfully {
        let why = "this device does not look at a region's right to be read";
        return Err(Stop::NotApplicable(why.into()));
    }
    let whole: fn(&Area) -> Attempt = |victim| Attempt {
        remote: victim.remote(0),
        len_bytes: LEN,
    };
    let write_only = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    each(fabric, &[Kind::Read], write_only, &[whole])?;
    each(fabric, &[Kind::Read], Access::empty(), &[whole])
}

pub(super) fn out_of_bounds(fabric: &mut dyn Fabric) -> Outcome {
    fn shifted(victim: &Area, addr: u64, len_bytes: usize) -> Attempt {
        let remote = Remote {
            addr,
            ..victim.remote(0)
        };
        Attempt { remote, len_bytes }
    }
    let attempts: [fn(&Area) -> Attempt; 7] = [
        // One byte before, alone and with the region behind it.
        |victim| shifted(victim, victim.addr(0) - 1, 1),
        |victim| shifted(victim, victim.addr(0) - 1, LEN),
        // One byte behind, alone and with the region before it.
        |victim| shifted(victim, victim.addr(LEN), 1),
        |victim| shifted(victim, victim.addr(1), LEN),
        |victim| shifted(victim, victim.addr(LEN) + 100, 8),
        // Where address and length overflow.
        |victim| shifted(victim, u64::MAX, 2),
        |_| Attempt {
            remote: Remote {
                addr: 0,
                rkey: RKey(u32::MAX),
            },
            len_bytes: LEN,
        },
    ];
    each(fabric, &[Kind::Write, Kind::Read], ALL, &attempts)
}

/// A transfer long enough to travel in many pieces; only the last one leaves the region.
pub(super) fn long_transfer_past_the_end(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let len = 300_000;
    for from in Side::BOTH {
        for kind in [Kind::Write, Kind::Read] {
            let link = world.connect(&LinkOptions::default())?;
            let mut victim = Area::new(&world.pd(from.peer())?, len, ALL)?;
            victim.fill(2);
            let attempt = Attempt {
                remote: victim.remote(1),
                len_bytes: len,
            };
            provoke(&mut world, link, from, kind, attempt)?;
            victim.check_guards("around the victim's memory")?;
            world.close(link);
        }
    }
    Ok(())
}

/// The whole region, first and last byte: allowed.
pub(super) fn exact_bounds_are_inside(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let here = source(&world, from, LEN, 3)?;
        let mut there = sink(&world, from.peer(), LEN)?;
        let mut back = read_sink(&world, from, LEN)?;
        for (at, len) in [(0, LEN), (0, 1), (LEN - 1, 1)] {
            world.post(
                link,
                from,
                &write(1, &[here.sge(at, len)], there.remote(at)),
            )?;
            world.post_now(link, from, &read(2, &[back.sge(at, len)], there.remote(at)))?;
            world.success(link, from, 1, WcOpcode::RdmaWrite)?;
            world.success(link, from, 2, WcOpcode::RdmaRead)?;
            there.expect(at, here.shadow(at, len));
            back.expect(at, here.shadow(at, len));
            there.check("whole region written")?;
            back.check("whole region read")?;
        }
    }
    Ok(())
}

pub(super) fn deregistered_region(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        for kind in [Kind::Write, Kind::Read] {
            let link = world.connect(&LinkOptions::default())?;
            let mut victim = sink(&world, from.peer(), LEN)?;
            victim.fill(4);
            // It works, is revoked, and works no more.
            let here = source(&world, from, LEN, 5)?;
            world.post(link, from, &write(1, &[here.sge(0, LEN)], victim.remote(0)))?;
            let back = read_sink(&world, from, 1)?;
            world.post_now(link, from, &read(2, &[back.sge(0, 1)], victim.remote(0)))?;
            world.success(link, from, 1, WcOpcode::RdmaWrite)?;
            world.success(link, from, 2, WcOpcode::RdmaRead)?;
            victim.expect(0, here.shadow(0, LEN));
            victim.deregister();
            let attempt = Attempt {
                remote: victim.remote(0),
                len_bytes: LEN,
            };
            provoke(&mut world, link, from, kind, attempt)?;
            victim.check("memory of a deregistered region")?;
            world.close(link);
        }
    }
    Ok(())
}

/// A key dies with its region, even when another region has the same bytes; a new registration has
/// another key.
pub(super) fn keys_are_of_one_registration(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    let from = Side::Active;
    let mut victim = sink(&world, from.peer(), LEN)?;
    let pd = world.pd(from.peer())?;
    let again = victim.register_again(&pd, Access::REMOTE_READ)?;
    ensure!(again.rkey() != victim.rkey(), "two regions share one rkey");
    ensure!(again.lkey() != victim.lkey(), "two regions share one lkey");
    victim.deregister();
    // The key that becomes free does not come back at once.
    let mut last = (victim.rkey(), victim.lkey());
    for _ in 0..20 {
        let next = victim.register_again(&pd, Access::REMOTE_READ)?;
        let differ = next.rkey() != last.0 && next.lkey() != last.1;
        ensure!(differ, "a region got the keys of the one before it");
        last = (next.rkey(), next.lkey());
    }
    let back = read_sink(&world, from, LEN)?;
    let remote = Remote {
        addr: victim.addr(0),
        rkey: again.rkey(),
    };
    world.post_now(link, from, &read(1, &[back.sge(0, LEN)], remote))?;
    world.success(link, from, 1, WcOpcode::RdmaRead)?;
    // The same bytes, through the key that does not allow it.
    let attempt = Attempt {
        remote,
        len_bytes: LEN,
    };
    provoke(&mut world, link, from, Kind::Write, attempt)?;
    victim.check("bytes registered twice")
}

/// A WRITE that is copied at once passes the same checks at the peer as any other.
pub(super) fn writes_at_once_are_checked(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        let read_only = Access::LOCAL_WRITE | Access::REMOTE_READ;
        for (access, at, bits) in [(ALL, 1, 0), (ALL, 0, 0x01), (read_only, 0, 0)] {
            let link = world.connect(&LinkOptions::default())?;
            let here = source(&world, from, LEN, 1)?;
            let mut victim = Area::new(&world.pd(from.peer())?, LEN, access)?;
            victim.fill(1);
            let mut remote = victim.remote(at);
            remote.rkey = RKey(remote.rkey.0 ^ bits);
            write_at_once(&mut world, link, from, &here, (0, LEN), remote)?;
            world.post_now(link, from, &send(2, &[]))?;
            world.ended(link)?;
            victim.check("memory of the victim of a WRITE at once")?;
            world.close(link);
        }
    }
    Ok(())
}

pub(super) fn key_of_another_domain(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        for kind in [Kind::Write, Kind::Read] {
            let link = world.connect(&LinkOptions::default())?;
            let other = world.has(from.peer())?.device.allocate_pd()?;
            ensure!(
                other.id() != world.pd(from.peer())?.id(),
                "two protection domains share one id"
            );
            let mut victim = Area::new(&other, LEN, ALL)?;
            victim.fill(6);
            let attempt = Attempt {
                remote: victim.remote(0),
                len_bytes: LEN,
            };
            provoke(&mut world, link, from, kind, attempt)?;
            victim.check("memory of another protection domain")?;
            world.close(link);
        }
    }
    Ok(())
}

/// Local SGEs that the queue pair may not use: reported at once or by a completion, and nothing is
/// sent.
pub(super) fn bad_local_sge(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let attempts: [fn(Sge) -> Sge; 6] = [
        |sge| Sge {
            addr: sge.addr - 1,
            ..sge
        },
        |sge| Sge {
            addr: sge.addr + 1,
            ..sge
        },
        |sge| Sge {
            len_bytes: sge.len_bytes + 1,
            ..sge
        },
        |sge| Sge {
            addr: u64::MAX,
            ..sge
        },
        |sge| Sge {
            lkey: LKey(sge.lkey.0 ^ 1),
            ..sge
        },
        |sge| Sge {
            lkey: LKey(sge.lkey.0 ^ 0x4000_0000),
            ..sge
        },
    ];
    for from in Side::BOTH {
        for attempt in attempts {
            let link = world.connect(&LinkOptions::default())?;
            let here = source(&world, from, LEN, 7)?;
            local_violation(&mut world, link, from, attempt(here.sge(0, LEN)))?;
            here.check("the source")?;
        }
        let link = world.connect(&LinkOptions::default())?;
        let other = world.has(from)?.device.allocate_pd()?;
        let foreign = Area::new(&other, LEN, ALL)?;
        local_violation(&mut world, link, from, foreign.sge(0, LEN))?;
        let link = world.connect(&LinkOptions::default())?;
        let mut gone = source(&world, from, LEN, 8)?;
        gone.deregister();
        local_violation(&mut world, link, from, gone.sge(0, LEN))?;
    }
    Ok(())
}

/// Sends and WRITEs `sge`, which this side may not use.
fn local_violation(world: &mut World<'_>, link: usize, from: Side, sge: Sge) -> Outcome {
    let inbox = sink(world, from.peer(), 4 * LEN)?;
    let good = source(world, from, LEN, 9)?;
    world.post_recv(link, from.peer(), 1, &[inbox.sge(0, 2 * LEN)])?;
    for op in [Kind::Send, Kind::Write] {
        let sges = [good.sge(0, 10), sge];
        let wr = match op {
            Kind::Send => send(2, &sges),
            _ => write(2, &sges, inbox.remote(2 * LEN)),
        };
        match world.qp(link, from)?.post_send(&wr) {
            Err(PostError::BadSge(index)) => {
                ensure_eq!(index, 1, "which SGE is bad");
                // Refused before it was taken: the queue pair still works.
                world.silent(link)?;
                inbox.check("after a refused request")?;
            }
            Err(other) => return Err(Stop::failed(other)),
            Ok(()) => {
                world.ring(link, from)?;
                world.failed_here(link, from, 2)?;
                world.flushed(link, from.peer(), 1)?;
                world.ended(link)?;
                return inbox.check("after a failed request");
            }
        }
    }
    world.post_now(link, from, &send(3, &[]))?;
    world.success(link, from, 3, WcOpcode::Send)?;
    world.received(link, from.peer(), 1, 0)?;
    Ok(())
}

/// Memory that the local device may not write takes neither a message nor the data of an RDMA READ.
pub(super) fn local_memory_without_write_access(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for side in Side::BOTH {
        let link = world.connect(&LinkOptions::default())?;
        let there = source(&world, side.peer(), LEN, 1)?;
        let read_only = source(&world, side, LEN, 10)?;
        let sges = [read_only.sge(0, LEN)];
        match world
            .qp(link, side)?
            .post_send(&read(1, &sges, there.remote(0)))
        {
            Err(error) => ensure_eq!(error, PostError::BadSge(0), "READ into read-only memory"),
            Ok(()) => {
                world.ring(link, side)?;
                world.failed_here(link, side, 1)?;
                world.ended(link)?;
            }
        }
        read_only.check("sink of an RDMA READ without write access")?;
        let link = world.connect(&LinkOptions::default())?;
        match world.qp(link, side)?.post_recv(1, &sges) {
            Err(error) => ensure_eq!(error, PostError::BadSge(0), "receive in read-only memory"),
            Ok(()) => {
                let wr = [there.sge(0, LEN)];
                let wr = SendWr {
                    signaled: false,
                    ..send(2, &wr)
                };
                world.post_now(link, side.peer(), &wr)?;
                world.failed_here(link, side, 1)?;
                world.ended(link)?;
            }
        }
        read_only.check("receive without write access")?;
    }
    Ok(())
}

/// Verbs devices refuse remote write without local write, so every provider does.
pub(super) fn remote_write_needs_local_write(fabric: &mut dyn Fabric) -> Outcome {
    let (world, _) = World::connected(fabric)?;
    for side in Side::BOTH {
        let pd = world.pd(side)?;
        let fine = Area::new(&pd, LEN, Access::LOCAL_WRITE)?;
        let refused = fine.register_again(&pd, Access::REMOTE_WRITE);
        ensure!(
            refused.is_err(),
            "remote write without local write was registered"
        );
    }
    Ok(())
}

pub(super) fn registration_outside_the_slab(fabric: &mut dyn Fabric) -> Outcome {
    use capstan_memory::{Pages, Slab};
    let (world, _) = World::connected(fabric)?;
    for side in Side::BOTH {
        let pd = world.pd(side)?;
        let slab = Slab::new(8192, Pages::Ordinary)?;
        let len = slab.len_bytes();
        for (offset, len) in [
            (0, len + 1),
            (1, len),
            (len, 1),
            (usize::MAX, 2),
            (2, usize::MAX),
        ] {
            let refused = pd.register(&slab, offset, len, Access::LOCAL_WRITE);
            ensure!(
                refused.is_err(),
                "registered {offset}+{len} of {}",
                slab.len_bytes()
            );
        }
        let whole = pd.register(&slab, 0, slab.len_bytes(), Access::LOCAL_WRITE)?;
        ensure_eq!(
            whole.addr(),
            slab.addr(),
            "address of a region of the whole slab"
        );
        ensure_eq!(
            Rc::strong_count(&whole),
            1,
            "holders of a region that is not used"
        );
    }
    Ok(())
}
