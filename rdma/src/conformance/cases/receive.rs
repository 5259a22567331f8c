//! Receives: not ready, too short, shared.

use std::rc::Rc;

use capstan_memory::RawBytes;

use super::super::fabric::{Fabric, ReceiverNotReady, Side};
use super::super::link::{LinkOptions, send, write};
use super::super::outcome::{Outcome, Stop, ensure, ensure_eq};
use super::super::world::World;
use super::support::{sink, source};
use crate::contract::{
    PostError, QpState, QueuePair, SendWr, SharedReceiveQueue, Transport, WcOpcode, WcStatus,
};
use crate::direct::{WC_ZERO_COPY, works_in_kernel};
use crate::pair::Pair;

/// Bytes of the heads of messages that take no receive.
const HEAD_BYTES: u32 = 64;

/// Sends without a receive; a receive posted a little later takes the message.
pub(super) fn send_before_the_receive_is_posted(fabric: &mut dyn Fabric) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    if world.behaviour.receiver_not_ready == ReceiverNotReady::Ends {
        return Err(Stop::NotApplicable(
            "a Send without a receive ends the connection on this transport".into(),
        ));
    }
    for from in Side::BOTH {
        let to = from.peer();
        let here = source(&world, from, 100_000, 1)?;
        let mut inbox = sink(&world, to, 200_000)?;
        // A WRITE behind the waiting Send must not overtake it into completion.
        world.post(link, from, &send(1, &[here.sge(0, 50_000)]))?;
        world.post(link, from, &send(2, &[here.sge(50_000, 50_000)]))?;
        let out = [here.sge(0, 1000)];
        world.post_now(link, from, &write(3, &out, inbox.remote(150_000)))?;
        world.settle(20_000);
        ensure!(
            world.take_completion(link, to).is_none(),
            "a message was received without a receive"
        );
        inbox.check_guards("before the receive is posted")?;
        world.post_recv(link, to, 11, &[inbox.sge(0, 60_000)])?;
        world.received(link, to, 11, 50_000)?;
        world.settle(20_000);
        world.post_recv(link, to, 12, &[inbox.sge(60_000, 60_000)])?;
        world.received(link, to, 12, 50_000)?;
        world.success(link, from, 1, WcOpcode::Send)?;
        world.success(link, from, 2, WcOpcode::Send)?;
        world.success(link, from, 3, WcOpcode::RdmaWrite)?;
        world.post_recv(link, to, 13, &[])?;
        world.post_now(link, from, &send(4, &[]))?;
        world.received(link, to, 13, 0)?;
        world.success(link, from, 4, WcOpcode::Send)?;
        inbox.expect(0, here.shadow(0, 50_000));
        inbox.expect(60_000, here.shadow(50_000, 50_000));
        inbox.expect(150_000, here.shadow(0, 1000));
        inbox.check("messages that waited for their receives")?;
    }
    Ok(())
}

/// Whether a provider lends messages or has put them into receives already: the program gets the
/// same bytes, once, and what it does not take is in a receive.
pub(super) fn messages_are_lent_or_in_their_receives(fabric: &mut dyn Fabric) -> Outcome {
    const ROOM: usize = 30_000;
    /// Too short to be lent.
    const SHORT: usize = 10;
    for (from, told) in Side::BOTH
        .map(|from| [(from, HEAD_BYTES), (from, 24)])
        .concat()
    {
        let (mut world, link) = World::connected(fabric)?;
        let to = from.peer();
        let qp = world.qp(link, to)?;
        // Longer than any may be: nothing changes.
        qp.enable_zero_copy_receive(65);
        qp.enable_zero_copy_receive(told);
        let head_bytes = told as usize;
        for (messages, takes) in [(1, true), (1, false), (3, true), (3, false)] {
            for len in [63, 64, 65, 1087, 1088, 4160, 8256, ROOM] {
                let here = source(&world, from, messages * len, len as u64)?;
                let more = source(&world, from, 600_000, 5)?;
                let mut elsewhere = sink(&world, to, 600_000)?;
                let mut head = sink(&world, to, messages * head_bytes)?;
                let mut data = sink(&world, to, messages * ROOM)?;
                for at in 0..messages {
                    let first = head.sge(at * head_bytes, head_bytes);
                    let sges = [first, data.sge(at * ROOM, ROOM)];
                    world.post_recv(link, to, at as u64, &sges)?;
                    let sges = [here.sge(at * len, len)];
                    world.post(link, from, &send(at as u64, &sges))?;
                }
                world.ring(link, from)?;
                let mut landed = 0;
                for at in 0..messages {
                    let what = format!("message {at} of {len} bytes");
                    let wc = world.completion(link, to, &what)?;
                    ensure_eq!(wc.status, WcStatus::Success, "{what}");
                    ensure_eq!(wc.byte_len as usize, len, "{what}");
                    let sent = here.shadow(at * len, len);
                    let (first, rest) = sent.split_at(len.min(head_bytes));
                    let qp = world.qp(link, to)?;
                    let receive = if wc.opcode == WC_ZERO_COPY {
                        take_or_land(qp, wc.wr_id, (first, rest), takes, &what)?
                    } else {
                        ensure_eq!(wc.opcode, WcOpcode::Recv, "{what}");
                        Some(wc.wr_id)
                    };
                    if let Some(receive) = receive {
                        // A message takes the oldest receive, whichever that is.
                        ensure_eq!(receive, landed, "{what}: its receive");
                        let receive = usize::try_from(receive).unwrap_or(usize::MAX);
                        head.expect(receive * head_bytes, first);
                        data.expect(receive * ROOM, rest);
                        landed += 1;
                    }
                    if at == 0 {
                        // What is not taken yet is not overwritten by what follows it.
                        let sges = [more.sge(0, 600_000)];
                        world.post_now(link, from, &write(9, &sges, elsewhere.remote(0)))?;
                        world.settle(5_000);
                        elsewhere.expect(0, more.shadow(0, 600_000));
                    }
                }
                for at in 0..messages {
                    world.success(link, from, at as u64, WcOpcode::Send)?;
                }
                world.success(link, from, 9, WcOpcode::RdmaWrite)?;
                // Messages that took no receive left theirs to others.
                for receive in landed..messages as u64 {
                    let at = usize::try_from(receive).unwrap_or(usize::MAX);
                    world.post_now(link, from, &send(10, &[more.sge(0, SHORT)]))?;
                    world.received(link, to, receive, SHORT)?;
                    world.success(link, from, 10, WcOpcode::Send)?;
                    // Bytes behind the message may have any value: the device had the receive.
                    let now = head.read(at * head_bytes, head_bytes);
                    head.expect(at * head_bytes, &now);
                    head.expect(at * head_bytes, more.shadow(0, SHORT));
                }
                elsewhere.check("an RDMA WRITE behind messages that are lent")?;
                head.check("the first SGE beside messages that may be lent")?;
                data.check("data that was not taken")?;
            }
        }
        world.silent(link)?;
    }
    Ok(())
}

/// Takes a message that was lent, or puts it into a receive; returns which.
#[expect(unsafe_code, reason = "reads data that is lent")]
fn take_or_land(
    qp: &mut Pair,
    message: u64,
    (first, rest): (&[u8], &[u8]),
    takes: bool,
    what: &str,
) -> Outcome<Option<u64>> {
    let head = qp.zero_copy_head(message);
    let same = head.is_some_and(|head| head.starts_with(first));
    ensure!(same, "{what}: its head");
    let mut receive = None;
    if !rest.is_empty() {
        let mut seen = None;
        let taken = qp.take_zero_copy(message, &mut |bytes| {
            let mut copy = vec![0; bytes.len()];
            bytes.copy_to(&mut copy);
            seen = Some((copy, bytes.base()));
            takes
        });
        let Some((mut seen, base)) = seen else {
            return Err(Stop::failed(format_args!("{what}: its data")));
        };
        ensure!(seen == rest, "{what}: its data");
        ensure_eq!(taken, takes, "{what}: taken");
        if taken {
            // SAFETY: the contract, which this is a test of: nothing was polled since.
            unsafe { RawBytes::new(base, rest.len()) }.copy_to(&mut seen);
            ensure!(seen == rest, "{what}: its data, read later");
        }
        if !taken {
            receive = qp.copy_to_receive(message);
            ensure!(receive.is_some(), "{what}: a receive was kept for it");
        }
    }
    ensure_eq!(qp.zero_copy_head(message), None, "{what}: lent twice");
    ensure!(
        !qp.take_zero_copy(message, &mut |_| true),
        "{what}: lent twice"
    );
    ensure_eq!(qp.copy_to_receive(message), None, "{what}: lent twice");
    Ok(receive)
}

/// A message that is lent keeps a receive reserved: the next one waits for another, or for the end
/// of the first.
pub(super) fn a_lent_message_keeps_a_receive(fabric: &mut dyn Fabric) -> Outcome {
    const LEN: usize = 4160;
    for shared in [false, true] {
        let mut world = World::new(fabric)?;
        for from in Side::BOTH {
            let to = from.peer();
            let (srq, link) = if shared {
                let (srq, links) = sharing(&mut world, to, 1, 8)?;
                (Some(srq), links[0])
            } else {
                (None, world.connect(&LinkOptions::default())?)
            };
            world.qp(link, to)?.enable_zero_copy_receive(HEAD_BYTES);
            let here = source(&world, from, 2 * LEN, 7)?;
            let mut inbox = sink(&world, to, LEN)?;
            let sges = [inbox.sge(0, LEN)];
            let post = |world: &mut World<'_>| match &srq {
                Some(srq) => Ok(srq.post_recv(20, &sges)?),
                None => world.post_recv(link, to, 20, &sges),
            };
            post(&mut world)?;
            for takes in [true, false] {
                world.post(link, from, &send(1, &[here.sge(0, LEN)]))?;
                world.post_now(link, from, &send(2, &[here.sge(LEN, LEN)]))?;
                let first = world.completion(link, to, "a message")?;
                if first.opcode != WC_ZERO_COPY {
                    return Err(Stop::NotApplicable("nothing is lent here".into()));
                }
                nothing_comes(&mut world, link, to, "two messages have one receive")?;
                let (head, rest) = here.shadow(0, LEN).split_at(HEAD_BYTES as usize);
                let qp = world.qp(link, to)?;
                let landed = take_or_land(qp, first.wr_id, (head, rest), takes, "the first")?;
                if !takes {
                    ensure_eq!(landed, Some(20), "the only receive");
                    inbox.expect(0, here.shadow(0, LEN));
                    inbox.check("a message that was landed")?;
                    nothing_comes(&mut world, link, to, "the only receive is in use")?;
                    post(&mut world)?;
                }
                let second = world.completion(link, to, "the second message")?;
                ensure_eq!(second.opcode, WC_ZERO_COPY, "the second");
                let (head, rest) = here.shadow(LEN, LEN).split_at(HEAD_BYTES as usize);
                let qp = world.qp(link, to)?;
                take_or_land(qp, second.wr_id, (head, rest), true, "the second")?;
                world.success(link, from, 1, WcOpcode::Send)?;
                world.success(link, from, 2, WcOpcode::Send)?;
            }
        }
    }
    Ok(())
}

/// The one receive of two connections is reserved for a message of the first: the second gets it
/// when that message is taken, or lost with its connection.
pub(super) fn a_lent_message_keeps_a_shared_receive(fabric: &mut dyn Fabric) -> Outcome {
    const LEN: usize = 4160;
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        let to = from.peer();
        let (srq, links) = sharing(&mut world, to, 2, 8)?;
        let [first, second] = links[..] else {
            return Err(Stop::failed("two connections were asked for"));
        };
        world.qp(first, to)?.enable_zero_copy_receive(HEAD_BYTES);
        let here = source(&world, from, LEN, 7)?;
        let mut inbox = sink(&world, to, LEN)?;
        let out = [here.sge(0, LEN)];
        for takes in [true, false] {
            srq.post_recv(20, &[inbox.sge(0, LEN)])?;
            world.post_now(first, from, &send(1, &out))?;
            let lent = world.completion(first, to, "a message")?;
            if lent.opcode != WC_ZERO_COPY {
                return Err(Stop::NotApplicable("nothing is lent here".into()));
            }
            world.success(first, from, 1, WcOpcode::Send)?;
            world.post_now(second, from, &send(2, &out))?;
            nothing_comes(&mut world, second, to, "the receive is kept for another")?;
            if takes {
                let (head, rest) = here.shadow(0, LEN).split_at(HEAD_BYTES as usize);
                let qp = world.qp(first, to)?;
                take_or_land(qp, lent.wr_id, (head, rest), true, "the first")?;
            } else {
                world.close(first);
            }
            world.received(second, to, 20, LEN)?;
            world.success(second, from, 2, WcOpcode::Send)?;
            inbox.expect(0, here.shadow(0, LEN));
            inbox.check("a message that had to wait")?;
        }
        world.close(second);
    }
    Ok(())
}

fn nothing_comes(world: &mut World<'_>, link: usize, to: Side, why: &str) -> Outcome {
    world.settle(20_000);
    ensure!(world.take_completion(link, to).is_none(), "{why}");
    Ok(())
}

pub(super) fn receive_never_posted(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        let link = world.connect(&LinkOptions {
            rnr_retry_count: 1,
            ..LinkOptions::default()
        })?;
        world.post_recv(link, from, 1, &[])?;
        world.post_now(link, from, &send(2, &[]))?;
        // On iWARP the Send completes when it has left; the connection ends either way.
        let wc = world.completion(link, from, "end of a Send without a receive")?;
        if wc.wr_id == 2 {
            let fits = match wc.status {
                WcStatus::Success => true,
                status if world.behaviour.names_remote_errors => matches!(
                    status,
                    WcStatus::RnrRetryExceededError
                        | WcStatus::RemoteOperationError
                        | WcStatus::WrFlushError
                ),
                _ => true,
            };
            ensure!(fits, "a Send without a receive ended as {:?}", wc.status);
            world.flushed(link, from, 1)?;
        } else {
            return Err(Stop::failed(format_args!("{wc:?} came before the Send's")));
        }
        world.ended(link)?;
        world.silent(link)?;
        world.close(link);
    }
    Ok(())
}

/// A message longer than its receive: nothing behind the receive is touched and both sides end.
pub(super) fn message_longer_than_its_receive(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for from in Side::BOTH {
        for (room, len) in [(0, 1), (100, 101), (100, 70_000), (60_000, 60_001)] {
            let to = from.peer();
            let link = world.connect(&LinkOptions::default())?;
            let here = source(&world, from, len, 2)?;
            let mut inbox = sink(&world, to, 2 * room.max(50))?;
            world.post_recv(link, to, 1, &[inbox.sge(0, room)])?;
            world.post_recv(link, to, 2, &[])?;
            world.post_now(link, from, &send(3, &[here.sge(0, len)]))?;
            let wc = world.completion(link, to, "the receive that is too short")?;
            ensure_eq!(wc.wr_id, 1, "the receive that is too short");
            world.check_local(&wc, &[WcStatus::LocalLengthError])?;
            world.flushed(link, to, 2)?;
            let wc = world.completion(link, from, "the Send that is too long")?;
            let fits = match wc.status {
                WcStatus::Success | WcStatus::WrFlushError | WcStatus::RemoteOperationError => true,
                WcStatus::RemoteInvalidRequestError => true,
                _ => !world.behaviour.names_remote_errors,
            };
            ensure!(fits, "the Send that is too long ended as {:?}", wc.status);
            world.ended(link)?;
            // What fits may have been placed; the rest of the region may not be touched.
            let placed = inbox.read(0, room);
            inbox.expect(0, &placed);
            inbox.check("behind a receive that is too short")?;
            world.silent(link)?;
            world.close(link);
        }
    }
    Ok(())
}

/// A shared receive queue for each connection of `count`, on `side`.
fn sharing(
    world: &mut World<'_>,
    side: Side,
    count: usize,
    depth: u32,
) -> Outcome<(Rc<dyn SharedReceiveQueue>, Vec<usize>)> {
    let probe = world.connect(&LinkOptions::default())?;
    let attributes = world.has(side)?.device.attributes();
    if attributes.srq_wr_max == 0 {
        return Err(Stop::NotApplicable(format!(
            "{} has no shared receive queues",
            attributes.name
        )));
    }
    let srq = world.pd(side)?.create_srq(depth, 2)?;
    world.close(probe);
    let mut options = LinkOptions {
        sge_max: 2,
        ..LinkOptions::default()
    };
    options.srq[side.index()] = Some(Rc::clone(&srq));
    let links: Outcome<Vec<usize>> = (0..count).map(|_| world.connect(&options)).collect();
    Ok((srq, links?))
}

pub(super) fn shared_receive_queue_serves_several(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for to in Side::BOTH {
        let (srq, links) = sharing(&mut world, to, 3, 64)?;
        let here = source(&world, to.peer(), 60 * 100, 3)?;
        let mut inbox = sink(&world, to, 60 * 100)?;
        let refused = world.qp(links[0], to)?.post_recv(1, &[]);
        ensure_eq!(
            refused,
            Err(PostError::UsesSrq),
            "receive of a pair with an SRQ"
        );
        for slot in 0..60 {
            let sges = [inbox.sge(slot * 100, 30), inbox.sge(slot * 100 + 50, 50)];
            srq.post_recv(slot as u64, &sges)?;
        }
        for index in 0..60 {
            let len = 31 + index % 40;
            let out = [here.sge(index * 100, len)];
            world.post(links[index % 3], to.peer(), &send(index as u64, &out))?;
        }
        for &link in &links {
            world.ring(link, to.peer())?;
        }
        let mut used = [false; 60];
        for index in 0..60 {
            let link = links[index % 3];
            let wc = world.completion(link, to, "a message through the SRQ")?;
            ensure_eq!(wc.status, WcStatus::Success, "a message through the SRQ");
            let len = 31 + index % 40;
            ensure_eq!(wc.byte_len as usize, len, "length through the SRQ");
            let slot = usize::try_from(wc.wr_id).unwrap_or(usize::MAX);
            let fresh = used
                .get_mut(slot)
                .is_some_and(|used| !std::mem::replace(used, true));
            ensure!(fresh, "receive {slot} completed twice or was never posted");
            inbox.expect(slot * 100, here.shadow(index * 100, 30));
            inbox.expect(slot * 100 + 50, here.shadow(index * 100 + 30, len - 30));
            world.success(link, to.peer(), index as u64, WcOpcode::Send)?;
        }
        inbox.check("messages through the SRQ")?;
    }
    Ok(())
}

/// The end of one connection leaves the shared receives to the others.
pub(super) fn shared_receives_survive_a_connection(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    for to in Side::BOTH {
        let (srq, links) = sharing(&mut world, to, 3, 8)?;
        for slot in 0..4 {
            srq.post_recv(slot, &[])?;
        }
        let id = world.id(links[0], to);
        world.end(to).cm.disconnect(id);
        world.ended(links[0])?;
        world.close(links[1]);
        world.settle(20_000);
        let gone = |wc: &crate::contract::WorkCompletion| wc.status == WcStatus::Success;
        ensure!(
            !world.end(to).completions.iter().any(gone),
            "a shared receive completed without a message"
        );
        for round in 0..4 {
            world.post_now(links[2], to.peer(), &send(round, &[]))?;
            world.success(links[2], to.peer(), round, WcOpcode::Send)?;
            let wc = world.completion(links[2], to, "a message after another's end")?;
            ensure_eq!(
                wc.status,
                WcStatus::Success,
                "a message after another's end"
            );
        }
        world.silent(links[2])?;
    }
    Ok(())
}

/// An empty shared receive queue makes senders wait, like an empty receive queue.
pub(super) fn empty_shared_receive_queue(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    if world.behaviour.receiver_not_ready == ReceiverNotReady::Ends {
        return Err(Stop::NotApplicable(
            "a Send without a receive ends the connection on this transport".into(),
        ));
    }
    for to in Side::BOTH {
        let (srq, links) = sharing(&mut world, to, 2, 8)?;
        for &link in &links {
            let quiet = SendWr {
                signaled: false,
                ..send(1, &[])
            };
            world.post_now(link, to.peer(), &quiet)?;
        }
        world.settle(20_000);
        for &link in &links {
            ensure!(
                world.take_completion(link, to).is_none(),
                "a message was received without a receive"
            );
        }
        srq.post_recv(1, &[])?;
        srq.post_recv(2, &[])?;
        for &link in &links {
            let wc = world.completion(link, to, "a message that waited for the SRQ")?;
            ensure_eq!(
                wc.status,
                WcStatus::Success,
                "a message that waited for the SRQ"
            );
            ensure_eq!(world.qp(link, to)?.state(), QpState::ReadyToSend, "state");
        }
    }
    Ok(())
}

/// Messages that have arrived while nothing polled: beyond their mark a poll that leaves the
/// completion queue empty has reported all of them, and nothing more has to arrive for that.
pub(super) fn what_has_arrived_is_told_of_before_its_mark_is_passed(
    fabric: &mut dyn Fabric,
) -> Outcome {
    let (mut world, link) = World::connected(fabric)?;
    for from in Side::BOTH {
        let to = from.peer();
        let attributes = world.has(from)?.device.attributes();
        // There a Send completes when the kernel or the device has it, wherever its bytes are.
        let may_be_on_its_way =
            attributes.transport == Transport::Iwarp && works_in_kernel(attributes);
        ensure!(
            world.qp(link, to)?.has_passed(0),
            "a mark of nothing is not passed"
        );
        let here = source(&world, from, 2000, 3)?;
        let mut inbox = sink(&world, to, 16 * 2000)?;
        for wr_id in 0..16 {
            let at = usize::try_from(wr_id).map_err(Stop::failed)? * 2000;
            world.post_recv(link, to, wr_id, &[inbox.sge(at, 2000)])?;
        }
        world.end(to).asleep = true;
        for wr_id in 100..116 {
            world.post(link, from, &send(wr_id, &[here.sge(0, 2000)]))?;
        }
        world.ring(link, from)?;
        for wr_id in 100..116 {
            if !may_be_on_its_way {
                world.success(link, from, wr_id, WcOpcode::Send)?;
            }
        }
        let mark = world.qp(link, to)?.arrival_mark();
        world.end(to).asleep = false;
        world.end(from).asleep = true;
        world.drive_until("passing a mark", |world| {
            let qp = world.qp(link, to).ok()?;
            qp.has_passed(mark).then_some(())
        })?;
        while world.turn() {}
        let mut told = 0;
        while let Some(wc) = world.take_completion(link, to) {
            ensure_eq!(
                (wc.wr_id, wc.status),
                (told, WcStatus::Success),
                "a receive"
            );
            told += 1;
        }
        ensure!(
            told == 16 || may_be_on_its_way,
            "{told} of 16 messages were told of before their mark was passed"
        );
        world.end(from).asleep = false;
        for wr_id in told..16 {
            world.received(link, to, wr_id, 2000)?;
        }
        for wr_id in 100..116 {
            if may_be_on_its_way {
                world.success(link, from, wr_id, WcOpcode::Send)?;
            }
        }
        for at in 0..16 {
            inbox.expect(at * 2000, here.shadow(0, 2000));
        }
        inbox.check("messages that came between two polls")?;
    }
    Ok(())
}
