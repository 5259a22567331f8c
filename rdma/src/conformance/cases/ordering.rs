//! Order: what has to happen before what.

use super::super::fabric::{Fabric, Side};
use super::super::link::{LinkOptions, read, request, send, write};
use super::super::outcome::{Outcome, Stop, ensure, ensure_eq};
use super::super::world::World;
use super::support::{read_sink, sink, source, write_at_once};
use crate::contract::{SendOp, SendWr, WcOpcode};
use capstan_memory::PAGE_BYTES;

pub(super) fn write_is_placed_before_a_later_send_is_received(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        for (round, len) in [1, 100, 4096, 65_537, 300_001, 8191]
            .into_iter()
            .enumerate()
        {
            let here = source(&world, from, len, round as u64)?;
            let mut there = sink(&world, from.peer(), len)?;
            world.post_recv(link, from.peer(), 1, &[])?;
            let sges = [here.sge(0, len)];
            let quiet = SendWr {
                signaled: false,
                ..write(2, &sges, there.remote(0))
            };
            world.post(link, from, &quiet)?;
            world.post_now(link, from, &send(3, &[]))?;
            // Checked at once: nothing may be missing when the receive completes.
            world.received(link, from.peer(), 1, 0)?;
            there.expect(0, here.shadow(0, len));
            there.check("RDMA WRITE before its Send")?;
            world.success(link, from, 3, WcOpcode::Send)?;
        }
    }
    Ok(())
}

/// Whether a provider copies at once or wants the WRITE posted: the bytes are there before a Send
/// behind them is received, whatever is under way before them. More than any provider takes at
/// once.
pub(super) fn writes_at_once_keep_their_place(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let lens = [1, 4095, 4096, 61_440, 61_441, 131_072, 131_072];
        let here = source(&world, from, 400_000, 1)?;
        let mut there = sink(&world, from.peer(), 400_000)?;
        for wr_id in [7, 8] {
            world.post_recv(link, from.peer(), wr_id, &[there.sge(0, 100)])?;
        }
        world.post(link, from, &send(1, &[here.sge(0, 100)]))?;
        let mut at = 100;
        for len in lens {
            write_at_once(&mut world, link, from, &here, (at, len), there.remote(at))?;
            there.expect(at, here.shadow(at, len));
            at += len;
        }
        // A source of less than was promised is not written, and leaves no trace.
        let short = &mut |put: &mut dyn FnMut(&[u8])| put(&[1; 99]);
        let written = world
            .qp(link, from)?
            .write_inline(there.remote(at), 100, short);
        ensure!(!written, "99 bytes passed for 100");
        world.post(link, from, &send(2, &[here.sge(0, 100)]))?;
        world.ring(link, from)?;
        for wr_id in [7, 8] {
            world.received(link, from.peer(), wr_id, 100)?;
        }
        there.expect(0, here.shadow(0, 100));
        there.check("RDMA WRITEs at once")?;
        for wr_id in [1, 2] {
            world.success(link, from, wr_id, WcOpcode::Send)?;
        }
    }
    world.silent(link)
}

/// Whether a provider sends from where the bytes are or wants the WRITE posted: the bytes are there
/// before a Send behind them is received, whatever is under way before them.
pub(super) fn writes_in_place_keep_their_place(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let lens = [
            1, 256, 257, 4096, 61_440, 61_441, 131_072, 131_072, 4096, 1_500_000,
        ];
        let here = source(&world, from, 2_000_000, 1)?;
        let mut there = sink(&world, from.peer(), 2_000_000)?;
        let all = lens.len() as u64 + 1;
        for wr_id in 0..all {
            world.post_recv(link, from.peer(), wr_id, &[there.sge(0, 100)])?;
        }
        let mut at = 100;
        for (len, wr_id) in lens.into_iter().zip(0..) {
            world.post(link, from, &send(wr_id, &[here.sge(0, 100)]))?;
            let (slab, range) = here.place(at, len);
            let remote = there.remote(at);
            let qp = world.qp(link, from)?;
            ensure!(
                !qp.write_from_slab(remote, slab, range.start..range.start),
                "a WRITE of nothing"
            );
            let outside = slab.len_bytes() - 1..slab.len_bytes() + 1;
            ensure!(
                !qp.write_from_slab(remote, slab, outside),
                "a WRITE of what is behind the slab"
            );
            if !qp.write_from_slab(remote, slab, range) {
                write_at_once(&mut world, link, from, &here, (at, len), remote)?;
            }
            there.expect(at, here.shadow(at, len));
            at += len;
        }
        world.post_now(link, from, &send(all - 1, &[here.sge(0, 100)]))?;
        for wr_id in 0..all {
            world.received(link, from.peer(), wr_id, 100)?;
        }
        there.expect(0, here.shadow(0, 100));
        there.check("RDMA WRITEs in place")?;
        for wr_id in 0..all {
            world.success(link, from, wr_id, WcOpcode::Send)?;
        }
    }
    world.silent(link)
}

/// Whether a provider takes the bytes at once or wants the Send posted: Sends are received in order
/// with those that were posted, behind the WRITEs before them, and have no completion.
pub(super) fn sends_at_once_keep_their_order(fabric: &mut dyn Fabric) -> Outcome {
    const MOST: usize = 40_000;
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let lens = [0, 1, 3, 16, 100, 255, 256, 257, 4096, 16, 16];
        let here = source(&world, from, MOST, 1)?;
        let mut there = sink(&world, from.peer(), 3 * lens.len() * MOST)?;
        for (wr_id, round) in (0..).step_by(3).zip(0..lens.len()) {
            // One that is posted, one at once behind it, and one at once behind a WRITE.
            for nth in 0..3 {
                let place = there.sge((3 * round + nth) * MOST, MOST / 2);
                world.post_recv(link, from.peer(), wr_id + nth as u64, &[place])?;
            }
        }
        let mut posted = Vec::new();
        for (round, len) in lens.into_iter().enumerate() {
            let at = |nth: usize| (3 * round + nth) * MOST;
            let mut post_send = |world: &mut World<'_>, nth: usize| {
                let wr_id = at(nth) as u64;
                posted.push(wr_id);
                world.post(link, from, &send(wr_id, &[here.sge(nth, len)]))
            };
            post_send(&mut world, 0)?;
            for nth in [1, 2] {
                if nth == 2 {
                    let (area, len) = (there.remote(at(nth) + MOST / 2), MOST / 4);
                    write_at_once(&mut world, link, from, &here, (nth, len), area)?;
                    there.expect(at(nth) + MOST / 2, here.shadow(nth, len));
                }
                let bytes = here.shadow(nth, len).to_vec();
                if !world.qp(link, from)?.send_inline(&bytes, None) {
                    post_send(&mut world, nth)?;
                }
            }
            for nth in 0..3 {
                there.expect(at(nth), here.shadow(nth, len));
            }
        }
        world.ring(link, from)?;
        for (wr_id, nth) in (0..).zip(0..3 * lens.len()) {
            world.received(link, from.peer(), wr_id, lens[nth / 3])?;
        }
        there.check("Sends at once")?;
        for wr_id in posted {
            world.success(link, from, wr_id, WcOpcode::Send)?;
        }
        all_sent(&mut world, link, from)?;
    }
    world.silent(link)
}

/// Waits until the device reports that what takes no work request has left.
fn all_sent(world: &mut World<'_>, link: usize, from: Side) -> Outcome {
    world.drive_until("the end of what was sent at once", |world| {
        let qp = world.qp(link, from).ok()?;
        (!qp.needs_drain()).then_some(())
    })
}

/// Messages that take no work request use up no room, however many there are, singly or in bursts,
/// and have no completion.
pub(super) fn sends_at_once_use_nothing_up(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let to = from.peer();
        let there = sink(&world, to, 16)?;
        world.post_recv(link, to, 0, &[there.sge(0, 16)])?;
        if !world.qp(link, from)?.send_inline(&[7; 16], None) {
            world.post_now(link, from, &send(1, &[]))?;
            world.received(link, to, 0, 0)?;
            world.success(link, from, 1, WcOpcode::Send)?;
            continue;
        }
        world.ring(link, from)?;
        world.received(link, to, 0, 16)?;
        for wr_id in 1..300 {
            world.post_recv(link, to, wr_id, &[there.sge(0, 16)])?;
            world.drive_until("room for a message", |world| {
                let qp = world.qp(link, from).ok()?;
                qp.send_inline(&[7; 16], None).then_some(())
            })?;
            world.ring(link, from)?;
            world.received(link, to, wr_id, 16)?;
        }
        for wr_id in 0..60 {
            world.post_recv(link, to, wr_id, &[there.sge(0, 16)])?;
        }
        let mut burst = 0;
        while burst < 60 && world.qp(link, from)?.send_inline(&[7; 16], None) {
            burst += 1;
        }
        ensure!(burst > 1, "a burst of {burst}");
        world.ring(link, from)?;
        for wr_id in 0..burst {
            world.received(link, to, wr_id, 16)?;
        }
        all_sent(&mut world, link, from)?;
        for wr_id in burst..60 {
            world.post_now(link, from, &send(wr_id, &[]))?;
            world.received(link, to, wr_id, 0)?;
            world.success(link, from, wr_id, WcOpcode::Send)?;
        }
    }
    world.silent(link)
}

/// Pages that are written to while an RDMA WRITE of them is under way, to a peer that takes nothing
/// for now: the peer gets each as it was or as it is.
pub(super) fn no_page_is_half_of_then_and_half_of_now(fabric: &mut dyn Fabric) -> Outcome {
    const PAGES: usize = 1000;
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let to = from.peer();
        let mut here = source(&world, from, (PAGES + 1) * PAGE_BYTES, 1)?;
        let there = sink(&world, to, PAGES * PAGE_BYTES)?;
        let inbox = sink(&world, to, 100)?;
        let aligned = here.addr(0).next_multiple_of(PAGE_BYTES as u64) - here.addr(0);
        let aligned = usize::try_from(aligned).map_err(Stop::failed)?;
        for (round, at_once) in [1, 3, 16, 40].into_iter().enumerate() {
            // One after the other where TCP takes a part of them, or many in one call.
            here.write(aligned, &[1; PAGES * PAGE_BYTES]);
            let mut pages = 0;
            while pages + at_once <= PAGES {
                let at = pages * PAGE_BYTES;
                let (slab, range) = here.place(aligned + at, at_once * PAGE_BYTES);
                let remote = there.remote(at);
                if !world.qp(link, from)?.write_from_slab(remote, slab, range) {
                    break;
                }
                pages += at_once;
            }
            world.ring(link, from)?;
            let full = pages != 0 && pages + at_once <= PAGES;
            ensure!(
                !full || world.qp(link, from)?.needs_drain(),
                "a provider that takes no more has something to send"
            );
            ensure!(
                !full || world.qp(link, from)?.write_would_block(),
                "a provider that takes no more for now says so"
            );
            here.write(aligned, &[2; PAGES * PAGE_BYTES]);
            world.post_recv(link, to, round as u64, &[inbox.sge(0, 100)])?;
            world.post_now(link, from, &send(7, &[here.sge(aligned, 100)]))?;
            world.received(link, to, round as u64, 100)?;
            ensure!(!world.qp(link, from)?.needs_drain(), "everything has gone");
            ensure!(
                !world.qp(link, from)?.write_would_block(),
                "there is room again"
            );
            world.success(link, from, 7, WcOpcode::Send)?;
            for page in 0..pages {
                let bytes = there.read(page * PAGE_BYTES, PAGE_BYTES);
                let whole =
                    bytes.iter().all(|byte| *byte == bytes[0]) && [1, 2].contains(&bytes[0]);
                ensure!(
                    whole,
                    "page {page} of {pages} is half of then and half of now"
                );
            }
        }
    }
    world.silent(link)
}

pub(super) fn batched_writes_and_send(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    let len = 9001;
    for from in Side::BOTH {
        let here = source(&world, from, 20 * len, 3)?;
        let mut there = sink(&world, from.peer(), 20 * len)?;
        let mut inbox = sink(&world, from.peer(), len)?;
        world.post_recv(link, from.peer(), 1, &[inbox.sge(0, len)])?;
        // Overlapping: the later WRITE of two must win.
        let mut bytes = vec![0; 0];
        for index in 0..19_usize {
            let sges = [here.sge(index * len, len)];
            let target = there.remote(index * (len - 1000));
            let quiet = SendWr {
                signaled: false,
                ..write(index as u64, &sges, target)
            };
            world.post(link, from, &quiet)?;
            bytes.truncate(index * (len - 1000));
            bytes.extend_from_slice(here.shadow(index * len, len));
        }
        world.post_now(link, from, &send(99, &[here.sge(19 * len, len)]))?;
        world.received(link, from.peer(), 1, len)?;
        there.expect(0, &bytes);
        there.check("overlapping RDMA WRITEs in order")?;
        inbox.expect(0, here.shadow(19 * len, len));
        inbox.check("the Send after them")?;
        world.success(link, from, 99, WcOpcode::Send)?;
    }
    world.silent(link)
}

pub(super) fn sends_fill_receives_in_order(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let here = source(&world, from, 64 * 512, 4)?;
        let mut inbox = sink(&world, from.peer(), 64 * 512)?;
        for index in 0..60_usize {
            let slot = [inbox.sge(index * 512, 512)];
            world.post_recv(link, from.peer(), index as u64, &slot)?;
        }
        for index in 0..60_usize {
            let len = 1 + index * 8;
            let sges = [here.sge(index * 512, len)];
            world.post(link, from, &send(index as u64, &sges))?;
            inbox.expect(index * 512, here.shadow(index * 512, len));
        }
        world.ring(link, from)?;
        for index in 0..60 {
            world.received(link, from.peer(), index as u64, 1 + index * 8)?;
            world.success(link, from, index as u64, WcOpcode::Send)?;
        }
        inbox.check("sixty Sends")?;
    }
    Ok(())
}

pub(super) fn completions_keep_the_order_of_posting(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let here = source(&world, from, 100_000, 6)?;
        let mut there = sink(&world, from.peer(), 200_000)?;
        there.fill(7);
        let back = read_sink(&world, from, 100_000)?;
        for index in 0..10 {
            world.post_recv(link, from.peer(), 100 + index, &[])?;
        }
        // A slow READ before quick Sends and WRITEs: they may end sooner, but must not be reported
        // sooner.
        for index in 0..10_u64 {
            let len = 1 + usize::try_from(index).unwrap_or(0) * 9000;
            let sink = [back.sge(0, len)];
            world.post(link, from, &read(index * 3, &sink, there.remote(100_000)))?;
            world.post(link, from, &send(index * 3 + 1, &[]))?;
            let sges = [here.sge(0, 3)];
            world.post(link, from, &write(index * 3 + 2, &sges, there.remote(0)))?;
        }
        world.ring(link, from)?;
        for index in 0..10 {
            world.success(link, from, index * 3, WcOpcode::RdmaRead)?;
            world.success(link, from, index * 3 + 1, WcOpcode::Send)?;
            world.success(link, from, index * 3 + 2, WcOpcode::RdmaWrite)?;
            world.received(link, from.peer(), 100 + index, 0)?;
        }
    }
    Ok(())
}

pub(super) fn nothing_moves_before_the_doorbell(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    let from = Side::Active;
    let here = source(&world, from, 100, 8)?;
    let mut there = sink(&world, from.peer(), 100)?;
    world.post_recv(link, from.peer(), 1, &[])?;
    world.post(link, from, &write(2, &[here.sge(0, 100)], there.remote(0)))?;
    world.post(link, from, &send(3, &[]))?;
    world.silent(link)?;
    there.check("before the doorbell")?;
    world.ring(link, from)?;
    world.received(link, from.peer(), 1, 0)?;
    there.expect(0, here.shadow(0, 100));
    there.check("after the doorbell")
}

pub(super) fn unsignaled_success_is_not_told(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let here = source(&world, from, 64, 9)?;
        let there = sink(&world, from.peer(), 64)?;
        let back = read_sink(&world, from, 64)?;
        // Four times the depth of the send queue: a signaled one frees those before it.
        for round in 0..16_u64 {
            world.post_recv(link, from.peer(), 50, &[])?;
            let (out, into) = ([here.sge(0, 64)], [back.sge(0, 64)]);
            let ops = [
                write(1, &out, there.remote(0)),
                read(2, &into, there.remote(0)),
                send(3, &[]),
            ];
            for wr in ops.iter().cycle().take(3) {
                let quiet = SendWr {
                    signaled: false,
                    ..*wr
                };
                world.post(link, from, &quiet)?;
            }
            for index in 0..12 {
                let quiet = SendWr {
                    signaled: index == 11,
                    ..write(1000 + round, &out, there.remote(0))
                };
                world.post(link, from, &quiet)?;
            }
            world.ring(link, from)?;
            world.success(link, from, 1000 + round, WcOpcode::RdmaWrite)?;
            world.received(link, from.peer(), 50, 0)?;
        }
        world.silent(link)?;
    }
    Ok(())
}

pub(super) fn fence_waits_for_reads(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        for (round, len) in [10, 5000, 200_000].into_iter().enumerate() {
            let mut there = sink(&world, from.peer(), 3 * len)?;
            there.fill(round as u64 + 40);
            let mut back = read_sink(&world, from, len)?;
            back.fill(99);
            world.post_recv(link, from.peer(), 1, &[there.sge(2 * len, len)])?;
            let sges = [back.sge(0, len)];
            // What the READ brings is sent on, once by WRITE and once by Send.
            world.post(link, from, &read(2, &sges, there.remote(0)))?;
            let fenced = SendWr {
                fence: true,
                ..write(3, &sges, there.remote(len))
            };
            world.post(link, from, &fenced)?;
            let fenced = SendWr {
                fence: true,
                ..send(4, &sges)
            };
            world.post_now(link, from, &fenced)?;
            world.received(link, from.peer(), 1, len)?;
            let bytes = there.shadow(0, len).to_vec();
            back.expect(0, &bytes);
            there.expect(len, &bytes);
            there.expect(2 * len, &bytes);
            there.check("RDMA WRITE and Send fenced behind an RDMA READ")?;
            back.check("the RDMA READ")?;
            world.success(link, from, 2, WcOpcode::RdmaRead)?;
            world.success(link, from, 3, WcOpcode::RdmaWrite)?;
            world.success(link, from, 4, WcOpcode::Send)?;
        }
    }
    Ok(())
}

/// More RDMA READs than the connection allows at once: the provider holds the rest back.
pub(super) fn more_reads_than_the_depth(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for read_depth in [1, 2, 16] {
        let link = world.connect(&LinkOptions {
            read_depth,
            ..LinkOptions::default()
        })?;
        for from in Side::BOTH {
            let mut there = sink(&world, from.peer(), 60 * 1001)?;
            there.fill(u64::from(read_depth));
            let mut back = read_sink(&world, from, 60 * 1001)?;
            for index in 0..60_usize {
                let sges = [back.sge(index * 1001, 1001)];
                let wr = read(index as u64, &sges, there.remote(index * 1001));
                world.post(link, from, &wr)?;
            }
            world.ring(link, from)?;
            for index in 0..60 {
                world.success(link, from, index, WcOpcode::RdmaRead)?;
            }
            back.expect(0, there.shadow(0, 60 * 1001));
            back.check("sixty RDMA READs")?;
        }
        world.close(link);
    }
    Ok(())
}

/// READs of both sides at once, each waiting for the other's: no deadlock on the depth.
pub(super) fn reads_in_both_directions(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let link = world.connect(&LinkOptions {
        read_depth: 1,
        ..LinkOptions::default()
    })?;
    let mut sources = Vec::new();
    let mut sinks = Vec::new();
    for side in Side::BOTH {
        sources.push(source(&world, side, 600_000, 12 + side.index() as u64)?);
        sinks.push(read_sink(&world, side, 600_000)?);
    }
    for side in Side::BOTH {
        for index in 0..20_usize {
            let sges = [sinks[side.index()].sge(index * 30_000, 30_000)];
            let remote = sources[side.peer().index()].remote(index * 30_000);
            world.post(link, side, &read(index as u64, &sges, remote))?;
        }
        world.ring(link, side)?;
    }
    for side in Side::BOTH {
        for index in 0..20 {
            world.success(link, side, index, WcOpcode::RdmaRead)?;
        }
        let bytes = sources[side.peer().index()].shadow(0, 600_000).to_vec();
        sinks[side.index()].expect(0, &bytes);
        sinks[side.index()].check("RDMA READs both ways")?;
    }
    Ok(())
}

pub(super) fn solicited_send_arrives_like_any_other(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        world.post_recv(link, from.peer(), 1, &[])?;
        let op = SendOp::Send {
            invalidate: None,
            solicited: true,
        };
        world.post_now(link, from, &request(2, op, &[]))?;
        let wc = world.received(link, from.peer(), 1, 0)?;
        ensure_eq!(wc.invalidated, None, "invalidated key of a plain Send");
        world.success(link, from, 2, WcOpcode::Send)?;
    }
    Ok(())
}
