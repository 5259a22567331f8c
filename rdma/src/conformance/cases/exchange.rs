//! Many exchanges, as an NVMe host makes them: bind a window, give its key to the target, be
//! written to, and have the key invalidated by the target's Send or by itself.

use super::super::area::Area;
use super::super::fabric::{Fabric, Side};
use super::super::link::{request, send, write};
use super::super::outcome::{Outcome, Stop, ensure_eq};
use super::super::world::World;
use super::support::{need_windows, source};
use crate::contract::{Access, MemoryWindow, RKey, Remote, SendOp, SendWr, WcOpcode, WcStatus};
use crate::splitmix::SplitMix;

const HOST: Side = Side::Active;
const TARGET: Side = Side::Passive;

const WINDOWS: usize = 8;
/// Bytes of one exchange's place.
const PLACE: usize = 4096;

// First `wr_id` of each kind; one follows per exchange of a round.
const ANSWER_RECV: u64 = 10;
const QUESTION_RECV: u64 = 30;
const QUESTION: u64 = 50;
const ANSWER: u64 = 70;

/// What the host grants in one exchange.
struct Grant {
    rkey: RKey,
    at: usize,
    len_bytes: usize,
}

impl Grant {
    /// The key that the response must have invalidated: every other one.
    fn invalidated(&self, index: usize) -> Option<RKey> {
        Some(self.rkey).filter(|_| index.is_multiple_of(2))
    }
}

/// Binds every window to a random piece of its place and sends the requests, all with one doorbell.
fn ask(
    world: &mut World<'_>,
    link: usize,
    windows: &mut [Box<dyn MemoryWindow>],
    area: &Area,
    rng: &mut SplitMix,
) -> Outcome<Vec<Grant>> {
    let mut grants = Vec::new();
    for (index, window) in windows.iter_mut().enumerate() {
        let nth = index as u64;
        let at = index * PLACE + rng.below_usize(100);
        let len_bytes = 1 + rng.below_usize(3900);
        let rkey = window.next_rkey();
        let op = SendOp::BindWindow {
            rkey,
            lkey: area.lkey(),
            addr: area.addr(at),
            len_bytes: len_bytes as u64,
            access: Access::REMOTE_WRITE,
        };
        let quiet = SendWr {
            signaled: false,
            ..request(1, op, &[])
        };
        world.post_recv(link, HOST, ANSWER_RECV + nth, &[])?;
        world.post_recv(link, TARGET, QUESTION_RECV + nth, &[])?;
        world.post(link, HOST, &quiet)?;
        world.post(link, HOST, &send(QUESTION + nth, &[]))?;
        grants.push(Grant {
            rkey,
            at,
            len_bytes,
        });
    }
    world.ring(link, HOST)?;
    Ok(grants)
}

/// Answers every request: writes through its key and sends, invalidating every other key.
fn answer(
    world: &mut World<'_>,
    link: usize,
    (grants, here): (&[Grant], &Area),
    area: &mut Area,
    rng: &mut SplitMix,
) -> Outcome {
    let mut asked = grants.iter().enumerate();
    let mut answered = ANSWER..ANSWER + WINDOWS as u64;
    for _ in 0..2 * WINDOWS {
        let wc = world.completion(link, TARGET, "a question or the end of an answer")?;
        ensure_eq!(wc.status, WcStatus::Success, "status at the target");
        if wc.opcode != WcOpcode::Recv {
            ensure_eq!(Some(wc.wr_id), answered.next(), "order of answers");
            continue;
        }
        let next = asked.next();
        let (index, grant) = next.ok_or_else(|| Stop::failed("one question too many"))?;
        ensure_eq!(wc.wr_id, QUESTION_RECV + index as u64, "order of questions");
        let from = rng.below_usize(60_000);
        let out = [here.sge(from, grant.len_bytes)];
        let remote = Remote {
            addr: area.addr(grant.at),
            rkey: grant.rkey,
        };
        let quiet = SendWr {
            signaled: false,
            ..write(2, &out, remote)
        };
        world.post(link, TARGET, &quiet)?;
        let op = SendOp::Send {
            invalidate: grant.invalidated(index),
            solicited: false,
        };
        world.post_now(link, TARGET, &request(ANSWER + index as u64, op, &[]))?;
        area.expect(grant.at, here.shadow(from, grant.len_bytes));
    }
    Ok(())
}

/// Takes every response at the host.
fn take_answers(world: &mut World<'_>, link: usize, grants: &[Grant]) -> Outcome {
    let mut answers = grants.iter().enumerate();
    let mut sent = QUESTION..QUESTION + WINDOWS as u64;
    for _ in 0..2 * WINDOWS {
        let wc = world.completion(link, HOST, "an answer or the end of a question")?;
        ensure_eq!(wc.status, WcStatus::Success, "status at the host");
        if wc.opcode != WcOpcode::Recv {
            ensure_eq!(Some(wc.wr_id), sent.next(), "order of questions");
            continue;
        }
        let next = answers.next();
        let (index, grant) = next.ok_or_else(|| Stop::failed("one answer too many"))?;
        ensure_eq!(wc.wr_id, ANSWER_RECV + index as u64, "order of answers");
        ensure_eq!(wc.invalidated, grant.invalidated(index), "invalidated key");
    }
    Ok(())
}

pub(super) fn a_key_for_each_of_many(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    need_windows(&world)?;
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let mut area = Area::new(&world.pd(HOST)?, WINDOWS * PLACE, access)?;
    let here = source(&world, TARGET, 64 * 1024, 40)?;
    let mut windows = Vec::new();
    for _ in 0..WINDOWS {
        windows.push(world.pd(HOST)?.allocate_window()?);
    }
    let mut rng = SplitMix::new(41);
    for _ in 0..150 {
        let grants = ask(&mut world, link, &mut windows, &area, &mut rng)?;
        answer(&mut world, link, (&grants, &here), &mut area, &mut rng)?;
        take_answers(&mut world, link, &grants)?;
        area.check("memory behind the keys")?;
        for (index, grant) in grants.iter().enumerate() {
            if grant.invalidated(index).is_none() {
                world.invalidate(link, HOST, grant.rkey)?;
            }
        }
    }
    Ok(())
}
