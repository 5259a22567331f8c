//! Bytes arrive where they should, in all shapes.

use super::super::area::{AREA_BYTES_MAX, Area};
use super::super::fabric::{Fabric, Side};
use super::super::link::{LinkOptions, read, send, write};
use super::super::outcome::{Outcome, ensure_eq};
use super::super::world::{LinkEnd, World};
use super::support::{read_sink, sink, source};
use crate::contract::{QueuePair, RKey, Remote, Sge, WcOpcode};
use crate::splitmix::SplitMix;

pub(super) fn send_write_and_read_move_bytes(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let here = source(&world, from, 1000, 1)?;
        let mut there = sink(&world, from.peer(), 4000)?;
        let mut back = read_sink(&world, from, 1000)?;
        world.post_recv(link, from.peer(), 7, &[there.sge(0, 2000)])?;
        world.post(link, from, &send(1, &[here.sge(0, 1000)]))?;
        world.post(
            link,
            from,
            &write(2, &[here.sge(0, 999)], there.remote(2000)),
        )?;
        world.post(
            link,
            from,
            &read(3, &[back.sge(0, 500)], there.remote(2100)),
        )?;
        world.ring(link, from)?;
        world.received(link, from.peer(), 7, 1000)?;
        world.success(link, from, 1, WcOpcode::Send)?;
        world.success(link, from, 2, WcOpcode::RdmaWrite)?;
        world.success(link, from, 3, WcOpcode::RdmaRead)?;
        there.expect(0, here.shadow(0, 1000));
        there.expect(2000, here.shadow(0, 999));
        back.expect(0, here.shadow(100, 500));
        there.check("Send and RDMA WRITE")?;
        back.check("RDMA READ")?;
        here.check("the source")?;
    }
    Ok(())
}

/// Cuts `area` into `count` pieces of odd sizes, with gaps between them.
fn pieces(area: &Area, count: usize, rng: &mut SplitMix) -> Vec<(usize, Sge)> {
    let stride = area.len_bytes() / count;
    let piece = |index: usize| {
        let at = index * stride + rng.below_usize(7);
        let len = 1 + rng.below_usize(stride - 8);
        (at, area.sge(at, len))
    };
    (0..count).map(piece).collect()
}

/// Bytes of the pieces of `area`, one after the other.
fn gathered(area: &Area, pieces: &[(usize, Sge)]) -> Vec<u8> {
    let bytes = |&(at, sge): &(usize, Sge)| area.shadow(at, sge.len_bytes as usize).to_vec();
    pieces.iter().flat_map(bytes).collect()
}

/// Spreads `bytes` over the pieces of `area`.
fn expect_scattered(area: &mut Area, pieces: &[(usize, Sge)], bytes: &[u8]) {
    let mut rest = bytes;
    for &(at, sge) in pieces {
        let (now, later) = rest.split_at(rest.len().min(sge.len_bytes as usize));
        area.expect(at, now);
        rest = later;
    }
}

pub(super) fn gather_and_scatter(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let probe = world.connect(&LinkOptions::default())?;
    let attributes = Side::BOTH.map(|side| world.has(side).map(|r| r.device.attributes().clone()));
    let [active, passive] = attributes;
    let (active, passive) = (active?, passive?);
    world.close(probe);
    let sge_max = active.sge_max.min(passive.sge_max).min(16);
    let link = world.connect(&LinkOptions {
        sge_max,
        ..LinkOptions::default()
    })?;
    let sge_rd_max = active.sge_rd_max.min(passive.sge_rd_max).min(sge_max);
    let mut rng = SplitMix::new(11);
    for count in 1..=sge_max as usize {
        for from in Side::BOTH {
            let here = source(&world, from, 16 * 1024, rng.next_u64())?;
            let mut there = sink(&world, from.peer(), 40 * 1024)?;
            let parts = pieces(&here, count, &mut rng);
            let sges: Vec<Sge> = parts.iter().map(|&(_, sge)| sge).collect();
            let bytes = gathered(&here, &parts);
            // Received into pieces large enough in sum, in another number of pieces.
            let half = there.len_bytes() / 2;
            let in_count = 1 + rng.below_usize(sge_max as usize);
            let stride = half / in_count;
            let last = bytes.len() + 64;
            let mut into: Vec<(usize, Sge)> = (0..in_count - 1)
                .map(|index| (index * 8, there.sge(index * 8, 5)))
                .collect();
            into.push((half - last, there.sge(half - last, last)));
            let into_sges: Vec<Sge> = into.iter().map(|&(_, sge)| sge).collect();
            ensure_eq!(into_sges.len(), in_count, "stride {stride}");
            world.post_recv(link, from.peer(), 1, &into_sges)?;
            world.post(link, from, &send(2, &sges))?;
            world.post(link, from, &write(3, &sges, there.remote(half + 1)))?;
            world.ring(link, from)?;
            world.success(link, from, 2, WcOpcode::Send)?;
            world.success(link, from, 3, WcOpcode::RdmaWrite)?;
            world.received(link, from.peer(), 1, bytes.len())?;
            expect_scattered(&mut there, &into, &bytes);
            there.expect(half + 1, &bytes);
            let count = count.min(sge_rd_max as usize);
            let mut back = read_sink(&world, from, 16 * 1024)?;
            let parts = pieces(&back, count, &mut rng);
            let sges: Vec<Sge> = parts.iter().map(|&(_, sge)| sge).collect();
            let len: usize = parts.iter().map(|(_, sge)| sge.len_bytes as usize).sum();
            world.post_now(link, from, &read(4, &sges, there.remote(3)))?;
            world.success(link, from, 4, WcOpcode::RdmaRead)?;
            let bytes = there.shadow(3, len).to_vec();
            expect_scattered(&mut back, &parts, &bytes);
            there.check("scattered Send and gathered RDMA WRITE")?;
            back.check("scattered RDMA READ")?;
        }
    }
    Ok(())
}

pub(super) fn zero_length(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let here = read_sink(&world, from, 64)?;
        let there = sink(&world, from.peer(), 64)?;
        let empty = [here.sge(0, 0)];
        for sges in [&empty[..0], &empty[..]] {
            world.post_recv(link, from.peer(), 1, sges_of(sges, &there).as_slice())?;
            world.post(link, from, &send(2, sges))?;
            world.post(link, from, &write(3, sges, there.remote(0)))?;
            world.post(link, from, &read(4, sges, there.remote(0)))?;
            world.ring(link, from)?;
            world.received(link, from.peer(), 1, 0)?;
            world.success(link, from, 2, WcOpcode::Send)?;
            world.success(link, from, 3, WcOpcode::RdmaWrite)?;
            world.success(link, from, 4, WcOpcode::RdmaRead)?;
        }
        // An empty message also fits a receive with room.
        world.post_recv(link, from.peer(), 5, &[there.sge(0, 64)])?;
        world.post_now(link, from, &send(6, &[]))?;
        world.received(link, from.peer(), 5, 0)?;
        world.success(link, from, 6, WcOpcode::Send)?;
        // The key of an empty WRITE is not checked (InfiniBand Architecture 1.7, C9-88).
        let nowhere = Remote {
            addr: 0,
            rkey: RKey(0),
        };
        world.post_now(link, from, &write(7, &[], nowhere))?;
        world.success(link, from, 7, WcOpcode::RdmaWrite)?;
        here.check("after empty operations")?;
        there.check("after empty operations")?;
    }
    Ok(())
}

/// The same shape of empty SGEs, in `area`.
fn sges_of(like: &[Sge], area: &Area) -> Vec<Sge> {
    like.iter().map(|_| area.sge(0, 0)).collect()
}

pub(super) fn long_messages(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    let max = world
        .has(Side::Active)?
        .device
        .attributes()
        .message_bytes_max as usize;
    for from in Side::BOTH {
        let sizes = [
            65_535,
            65_536,
            65_537,
            1 << 20,
            (1 << 20) + 1,
            (2 << 20) + 4099,
        ];
        for len in sizes
            .into_iter()
            .filter(|&len| len <= max.min(AREA_BYTES_MAX))
        {
            let here = source(&world, from, len, len as u64)?;
            let mut there = sink(&world, from.peer(), len)?;
            world.post_recv(link, from.peer(), 1, &[there.sge(0, len)])?;
            world.post_now(link, from, &send(2, &[here.sge(0, len)]))?;
            world.received(link, from.peer(), 1, len)?;
            world.success(link, from, 2, WcOpcode::Send)?;
            there.expect(0, here.shadow(0, len));
            there.check("long Send")?;
            drop(there);
            let mut there = sink(&world, from.peer(), len)?;
            world.post_now(link, from, &write(3, &[here.sge(0, len)], there.remote(0)))?;
            world.success(link, from, 3, WcOpcode::RdmaWrite)?;
            // On iWARP the completion says that the data has left, so a READ follows it there.
            let mut back = read_sink(&world, from, len)?;
            world.post_now(link, from, &read(4, &[back.sge(0, len)], there.remote(0)))?;
            world.success(link, from, 4, WcOpcode::RdmaRead)?;
            there.expect(0, here.shadow(0, len));
            back.expect(0, here.shadow(0, len));
            there.check("long RDMA WRITE")?;
            back.check("long RDMA READ")?;
        }
    }
    Ok(())
}

pub(super) fn receives_before_connect(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let options = LinkOptions::default();
    let id = world.resolve()?;
    let mut qp = world.create_qp(Side::Active, id, &options)?;
    let mut inbox = sink(&world, Side::Active, 300)?;
    for slot in 0..3 {
        qp.post_recv(slot as u64, &[inbox.sge(slot * 100, 100)])?;
    }
    let param = world.param(Side::Active, id, &options)?;
    world.ask(id, &param)?;
    let active = LinkEnd {
        id,
        num: qp.num(),
        qp: Some(qp),
    };
    let request = world.requested()?;
    let passive = world.admit(request, &options)?;
    let link = world.join(active, passive)?;
    let here = source(&world, Side::Passive, 300, 5)?;
    for slot in 0..3_usize {
        let sges = [here.sge(slot * 100, 100)];
        world.post(link, Side::Passive, &send(slot as u64, &sges))?;
    }
    world.ring(link, Side::Passive)?;
    for slot in 0..3 {
        world.received(link, Side::Active, slot, 100)?;
        world.success(link, Side::Passive, slot, WcOpcode::Send)?;
    }
    inbox.expect(0, here.shadow(0, 300));
    inbox.check("receives posted before connect")
}
