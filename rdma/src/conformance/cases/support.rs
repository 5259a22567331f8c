//! Memory of the usual kinds.

use super::super::area::Area;
use super::super::fabric::Side;
use super::super::link::{read, request, send, write};
use super::super::outcome::{Outcome, Stop, ensure, ensure_eq};
use super::super::world::World;
use crate::contract::{
    Access, MemoryWindow, RKey, Remote, SendOp, SendWr, WcOpcode, WcStatus, WorkCompletion,
};

/// Everything a peer may do, and windows.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ);

/// Memory with random contents that the peer may read.
pub(crate) fn source(world: &World<'_>, side: Side, len_bytes: usize, seed: u64) -> Outcome<Area> {
    let mut area = Area::new(&world.pd(side)?, len_bytes, Access::REMOTE_READ)?;
    area.fill(seed);
    Ok(area)
}

/// Memory for receives and for the peer's RDMA WRITEs and READs.
pub(crate) fn sink(world: &World<'_>, side: Side, len_bytes: usize) -> Outcome<Area> {
    Area::new(&world.pd(side)?, len_bytes, ALL)
}

/// Memory for this side's own RDMA READs, with no more access than the device needs.
pub(crate) fn read_sink(world: &World<'_>, side: Side, len_bytes: usize) -> Outcome<Area> {
    let mut access = Access::LOCAL_WRITE;
    if world
        .has(side)?
        .device
        .attributes()
        .read_sink_needs_remote_write
    {
        access |= Access::REMOTE_WRITE;
    }
    Area::new(&world.pd(side)?, len_bytes, access)
}

/// Writes `len` bytes from `at` of `local` to `remote` in uneven pieces: at once where the provider
/// can, else posted and unsignaled.
pub(crate) fn write_at_once(
    world: &mut World<'_>,
    link: usize,
    from: Side,
    local: &Area,
    (at, len): (usize, usize),
    remote: Remote,
) -> Outcome {
    let len_bytes = u32::try_from(len).map_err(Stop::failed)?;
    let source = &mut |put: &mut dyn FnMut(&[u8])| local.shadow(at, len).chunks(999).for_each(put);
    if world
        .qp(link, from)?
        .write_inline(remote, len_bytes, source)
    {
        return Ok(());
    }
    let sges = [local.sge(at, len)];
    let posted = SendWr {
        signaled: false,
        ..write(9, &sges, remote)
    };
    world.post(link, from, &posted)
}

/// The operation of an [`Attempt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Send.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
}

/// An access the peer does not allow.
#[derive(Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) remote: Remote,
    pub(crate) len_bytes: usize,
}

/// Tries what the peer does not allow, with a Send behind it, and checks all consequences: an RDMA
/// READ fails with the reason, a WRITE may have left this side before the peer refused it (iWARP);
/// the Send is never received, everything outstanding is flushed in order, the connection ends on
/// both sides, and nothing is written here. The caller checks the memory of the other side.
pub(crate) fn provoke(
    world: &mut World<'_>,
    link: usize,
    from: Side,
    kind: Kind,
    attempt: Attempt,
) -> Outcome {
    let to = from.peer();
    let mut inbox = sink(world, to, 64)?;
    let mut local = read_sink(world, from, attempt.len_bytes)?;
    local.fill(77);
    world.post_recv(link, to, 100, &[inbox.sge(0, 32)])?;
    world.post_recv(link, to, 101, &[inbox.sge(32, 32)])?;
    world.post_recv(link, from, 102, &[])?;
    let sges = [local.sge(0, attempt.len_bytes)];
    match kind {
        Kind::Read => world.post(link, from, &read(10, &sges, attempt.remote))?,
        _ => world.post(link, from, &write(10, &sges, attempt.remote))?,
    }
    let after = [local.sge(0, attempt.len_bytes.min(32))];
    world.post(link, from, &send(11, &after))?;
    world.ring(link, from)?;

    // Send queue and receive queue are each in order; between the two there is none.
    let mut ends = Vec::new();
    for _ in 0..3 {
        ends.push(world.completion(link, from, "the end of a refused access")?);
    }
    let receive = ends.iter().position(|wc| wc.wr_id == 102);
    let receive = receive.map(|at| ends.remove(at).status);
    ensure_eq!(receive, Some(WcStatus::WrFlushError), "the asker's receive");
    ensure_eq!(
        (ends[0].wr_id, ends[1].wr_id),
        (10, 11),
        "order of the refused access and the Send after it"
    );
    if kind == Kind::Read {
        ensure!(
            ends[0].status != WcStatus::Success,
            "an RDMA READ the peer refuses completed with success"
        );
    }
    check_cause(world, &ends[0], kind == Kind::Read)?;
    if ends[0].status == WcStatus::Success {
        check_cause(world, &ends[1], false)?;
    } else {
        ensure_eq!(
            ends[1].status,
            WcStatus::WrFlushError,
            "the Send behind the cause"
        );
    }
    let overtaken = world.behaviour.others_overtake_reads && kind == Kind::Read;
    let first = world.completion(link, to, "the receive behind a refused access")?;
    ensure_eq!(
        first.wr_id,
        100,
        "the first receive behind a refused access"
    );
    if overtaken && first.status == WcStatus::Success {
        inbox.expect(0, local.shadow(0, attempt.len_bytes.min(32)));
    } else {
        ensure_eq!(first.status, WcStatus::WrFlushError, "its status");
        if overtaken {
            // The end may have come between the message and its completion.
            inbox.check_guards("around receives behind a refused access")?;
        }
    }
    world.flushed(link, to, 101)?;
    world.ended(link)?;
    inbox.check("receives behind a refused access")?;
    local.check("local memory of a refused access")?;
    world.silent(link)
}

/// Checks that an error completion has the cause; a mere flush will do where the cause need not be
/// `named`.
fn check_cause(world: &World<'_>, wc: &WorkCompletion, named: bool) -> Outcome {
    let fits = match wc.status {
        WcStatus::Success | WcStatus::RemoteAccessError => true,
        WcStatus::WrFlushError => !named || !world.behaviour.names_remote_errors,
        _ => !world.behaviour.names_remote_errors,
    };
    ensure!(
        fits,
        "status of {:#x} is {:?}, expected a remote access error",
        wc.wr_id,
        wc.status
    );
    Ok(())
}

/// Skips the case unless both devices have memory windows.
pub(crate) fn need_windows(world: &World<'_>) -> Outcome {
    for side in Side::BOTH {
        let attributes = world.has(side)?.device.attributes();
        if !attributes.memory_windows || !attributes.send_with_invalidate {
            return Err(Stop::NotApplicable(format!(
                "{} has no type 2 memory windows with remote invalidation",
                attributes.name
            )));
        }
    }
    Ok(())
}

impl World<'_> {
    /// Binds `window` to `at..at + len` of `area` and waits for it.
    pub(crate) fn bind(
        &mut self,
        link: usize,
        side: Side,
        window: &mut dyn MemoryWindow,
        area: &Area,
        (at, len_bytes): (usize, usize),
        access: Access,
    ) -> Outcome<RKey> {
        let rkey = window.next_rkey();
        let op = SendOp::BindWindow {
            rkey,
            lkey: area.lkey(),
            addr: area.addr(at),
            len_bytes: len_bytes as u64,
            access,
        };
        self.post_now(link, side, &request(900, op, &[]))?;
        self.success(link, side, 900, WcOpcode::BindMw)?;
        Ok(rkey)
    }

    /// Invalidates a local key and waits for it.
    pub(crate) fn invalidate(&mut self, link: usize, side: Side, rkey: RKey) -> Outcome {
        self.post_now(
            link,
            side,
            &request(901, SendOp::LocalInvalidate(rkey), &[]),
        )?;
        self.success(link, side, 901, WcOpcode::LocalInvalidate)?;
        Ok(())
    }
}
