//! The connection manager: addresses, private data, refusals, migration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::super::fabric::{Fabric, Side};
use super::super::link::{LinkOptions, send};
use super::super::outcome::{Outcome, Stop, ensure, ensure_eq};
use super::super::world::{Endpoint, World};
use crate::contract::{
    CmError, CmEventKind, CmId, MigratedId, PrivateData, RejectReason, WcOpcode,
};

/// `count` bytes that are not zero, so that padding shows.
fn words(count: usize) -> Outcome<PrivateData> {
    let bytes: Vec<u8> = (0..count)
        .map(|at| u8::try_from(at % 250).unwrap_or(0) + 1)
        .collect();
    PrivateData::new(&bytes).ok_or_else(|| Stop::failed("private data longer than the contract's"))
}

/// Compares private data, which the transport may have padded with zeros.
fn same_words(got: &PrivateData, sent: &PrivateData, what: &str) -> Outcome {
    let (got, sent) = (got.as_bytes(), sent.as_bytes());
    let (head, tail) = got.split_at(got.len().min(sent.len()));
    ensure_eq!(head, sent, "{what}");
    ensure!(
        tail.iter().all(|&byte| byte == 0),
        "{what}: padded with {tail:?}"
    );
    Ok(())
}

/// Some lengths up to a bound.
fn lengths(max: usize) -> Vec<usize> {
    let mut lengths = vec![0, 1, 32, 56, 148, max];
    lengths.retain(|&len| len <= max);
    lengths
}

pub(super) fn private_data_both_ways(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let options = LinkOptions::default();
    let out = lengths(world.behaviour.connect_private_data_bytes_max);
    let back = lengths(world.behaviour.accept_private_data_bytes_max);
    for (&out, &back) in out.iter().zip(back.iter().rev()) {
        let (out, back) = (words(out)?, words(back)?);
        let id = world.resolve()?;
        let _qp = world.create_qp(Side::Active, id, &options)?;
        let mut param = world.param(Side::Active, id, &options)?;
        param.private_data = out;
        world.ask(id, &param)?;
        let (request, asked) = world.requested()?;
        same_words(&asked.private_data, &out, "private data of the request")?;
        let _peer = world.create_qp(Side::Passive, request, &options)?;
        let mut param = world.param(Side::Passive, request, &options)?;
        param.private_data = back;
        param.responder_resources = param.responder_resources.min(asked.initiator_depth);
        param.initiator_depth = param.initiator_depth.min(asked.responder_resources);
        world.end(Side::Passive).cm.accept(request, &param)?;
        let accepted = world.established(Side::Active, id)?;
        same_words(&accepted.private_data, &back, "private data of the accept")?;
    }
    Ok(())
}

pub(super) fn too_long_private_data_is_refused(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let options = LinkOptions::default();
    let max = world.behaviour.connect_private_data_bytes_max;
    if max >= crate::contract::PRIVATE_DATA_MAX {
        ensure!(
            PrivateData::new(&[1; crate::contract::PRIVATE_DATA_MAX + 1]).is_none(),
            "private data longer than the contract's"
        );
        return Ok(());
    }
    let id = world.resolve()?;
    let _qp = world.create_qp(Side::Active, id, &options)?;
    let mut param = world.param(Side::Active, id, &options)?;
    param.private_data = words(max + 1)?;
    ensure!(
        world.ask(id, &param).is_err(),
        "{} bytes were taken",
        max + 1
    );
    Ok(())
}

/// Each side says how many RDMA READs it serves and sends; the other sees it.
pub(super) fn read_depths_are_exchanged(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    if !world.behaviour.exchanges_read_depths {
        let why = "connecting does not exchange READ depths on this transport";
        return Err(Stop::NotApplicable(why.into()));
    }
    let options = LinkOptions::default();
    let id = world.resolve()?;
    let _qp = world.create_qp(Side::Active, id, &options)?;
    let mut param = world.param(Side::Active, id, &options)?;
    let attributes = world.has(Side::Active)?.device.attributes();
    param.initiator_depth = 3.min(attributes.initiator_depth_max);
    param.responder_resources = 2.min(attributes.responder_resources_max);
    let sent = param;
    world.ask(id, &param)?;
    let (request, asked) = world.requested()?;
    ensure_eq!(
        (asked.initiator_depth, asked.responder_resources),
        (sent.initiator_depth, sent.responder_resources),
        "ORD and IRD of the request"
    );
    let _peer = world.create_qp(Side::Passive, request, &options)?;
    let mut param = world.param(Side::Passive, request, &options)?;
    param.initiator_depth = 1.min(asked.responder_resources);
    param.responder_resources = 2.min(asked.initiator_depth);
    world.end(Side::Passive).cm.accept(request, &param)?;
    let accepted = world.established(Side::Active, id)?;
    // Seen from this side: what the peer serves bounds what this side may send.
    let serves = if world.behaviour.raises_read_depths {
        sent.initiator_depth
    } else {
        param.responder_resources
    };
    ensure!(
        accepted.initiator_depth >= 1 && accepted.initiator_depth <= serves,
        "ORD after the accept is {}, the peer serves {serves}",
        accepted.initiator_depth
    );
    ensure!(
        accepted.responder_resources >= param.initiator_depth
            && accepted.responder_resources <= sent.responder_resources,
        "IRD after the accept is {}, the peer sends {} of the {} served",
        accepted.responder_resources,
        param.initiator_depth,
        sent.responder_resources
    );
    Ok(())
}

pub(super) fn reject_says_why(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let options = LinkOptions::default();
    for len in lengths(world.behaviour.reject_private_data_bytes_max) {
        let active = world.start(&options)?;
        let (request, _) = world.requested()?;
        let why = words(len)?;
        world.end(Side::Passive).cm.reject(request, &why);
        match world.event(Side::Active, active.id, "the refusal")? {
            CmEventKind::Rejected {
                reason,
                private_data,
            } => {
                ensure_eq!(reason, RejectReason::Consumer, "reason");
                same_words(&private_data, &why, "private data of the refusal")?;
            }
            other => {
                return Err(Stop::failed(format_args!("a refusal led to {other:?}")));
            }
        }
        let gone = world.end(Side::Passive).cm.device(request).is_none();
        ensure!(gone, "the id of a refused request is still known");
    }
    // With a queue pair that was made already.
    let active = world.start(&options)?;
    let (request, _) = world.requested()?;
    let qp = world.create_qp(Side::Passive, request, &options)?;
    drop(qp);
    world
        .end(Side::Passive)
        .cm
        .reject(request, &PrivateData::EMPTY);
    let kind = world.event(Side::Active, active.id, "the refusal")?;
    let fits = matches!(kind, CmEventKind::Rejected { .. } | CmEventKind::Failed(_));
    ensure!(fits, "a refusal led to {kind:?}");
    // The next one is accepted.
    world.connect(&options)?;
    Ok(())
}

/// The result of a connect to an address where nothing listens.
fn refused(world: &mut World<'_>, id: CmId) -> Outcome {
    match world.event(Side::Active, id, "the refusal of a connect to no listener")? {
        CmEventKind::Rejected { reason, .. } => {
            ensure!(
                !matches!(reason, RejectReason::Consumer),
                "there is no listener, but the reason is {reason:?}"
            );
        }
        CmEventKind::Failed(error) => {
            ensure!(!error.to_string().is_empty(), "no reason given");
        }
        other => {
            return Err(Stop::failed(format_args!(
                "a connect to no listener led to {other:?}"
            )));
        }
    }
    Ok(())
}

pub(super) fn connect_to_nobody(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let listener = world.listener;
    world.end(Side::Passive).cm.destroy(listener);
    let options = LinkOptions::default();
    let (now_us, address) = (world.now_us(), world.address);
    let active = world.end(Side::Active);
    // Where resolving connects already, the answer may come early.
    let id = active.cm.resolve(address, None, 2_000_000, now_us)?;
    match world.event(Side::Active, id, "resolving")? {
        CmEventKind::Resolved => {}
        CmEventKind::Failed(_) | CmEventKind::Rejected { .. } => return Ok(()),
        other => return Err(Stop::failed(format_args!("resolving led to {other:?}"))),
    }
    let _qp = world.create_qp(Side::Active, id, &options)?;
    let param = world.param(Side::Active, id, &options)?;
    world.ask(id, &param)?;
    refused(&mut world, id)
}

pub(super) fn unanswered_connect_times_out(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let options = LinkOptions::default();
    let id = world.resolve()?;
    let _qp = world.create_qp(Side::Active, id, &options)?;
    let param = world.param(Side::Active, id, &options)?;
    let start_us = world.now_us();
    let active = world.end(Side::Active);
    active.cm.connect(id, &param, 300_000, start_us)?;
    // The request arrives and is never answered.
    let (request, asked) = world.requested()?;
    let deadline = world.end(Side::Active).cm.next_deadline_us();
    ensure!(
        deadline.is_some_and(|at| at <= start_us + 300_000),
        "next deadline of an unanswered connect is {deadline:?}, expected by {}",
        start_us + 300_000
    );
    match world.event(Side::Active, id, "the timeout of a connect")? {
        CmEventKind::Failed(error) => {
            ensure!(
                matches!(error, CmError::Timeout { .. } | CmError::Silent { .. }),
                "the reason of a timeout is: {error}"
            );
        }
        other => {
            return Err(Stop::failed(format_args!("no answer led to {other:?}")));
        }
    }
    let waited_us = world.now_us() - start_us;
    ensure!(
        waited_us >= 290_000,
        "gave up after {waited_us} us of 300000"
    );
    // The late accept does not hang.
    match world.admit((request, asked), &options) {
        Err(_) => Ok(()),
        Ok(passive) => {
            let kind = world.drive_until("the end of a late accept", |world| {
                let events = &mut world.end(Side::Passive).events;
                let ended = |kind: &CmEventKind| {
                    matches!(
                        kind,
                        CmEventKind::Failed(_) | CmEventKind::Disconnected { .. }
                    )
                };
                let at = events
                    .iter()
                    .position(|event| event.id == passive.id && ended(&event.kind))?;
                events.remove(at)
            })?;
            ensure_eq!(kind.id, passive.id, "id of the late accept");
            Ok(())
        }
    }
}

/// The connecting side goes away before its request is answered.
pub(super) fn abandoned_request(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let options = LinkOptions::default();
    for _ in 0..5 {
        let active = world.start(&options)?;
        let (request, asked) = world.requested()?;
        let id = active.id;
        drop(active);
        world.end(Side::Active).cm.destroy(id);
        world.settle(5_000);
        // Accepting it either fails at once or ends soon.
        if let Ok(passive) = world.admit((request, asked), &options) {
            world.drive_until("the end of an abandoned request", |world| {
                let ended = |kind: &CmEventKind| {
                    matches!(
                        kind,
                        CmEventKind::Failed(_) | CmEventKind::Disconnected { .. }
                    )
                };
                let events = &world.end(Side::Passive).events;
                let found = events
                    .iter()
                    .any(|event| event.id == passive.id && ended(&event.kind));
                found.then_some(())
            })?;
        }
        world.end(Side::Passive).cm.destroy(request);
    }
    world.connect(&options)?;
    Ok(())
}

/// Both sides see the same two real addresses.
fn check_addresses(world: &mut World<'_>, link: usize, ip: IpAddr) -> Outcome {
    let (active, passive) = (world.id(link, Side::Active), world.id(link, Side::Passive));
    let port = world.address.port();
    let mine = world.end(Side::Active).cm.addresses(active);
    let theirs = world.end(Side::Passive).cm.addresses(passive);
    let (Some((local, peer)), Some((local2, peer2))) = (mine, theirs) else {
        return Err(Stop::failed("a connection without addresses"));
    };
    ensure_eq!(
        peer,
        SocketAddr::new(ip, port),
        "peer address of the active side"
    );
    ensure_eq!(
        local2,
        SocketAddr::new(ip, port),
        "local address of the passive side"
    );
    ensure_eq!(local.ip(), peer2.ip(), "peer address of the passive side");
    ensure!(
        !peer2.ip().is_unspecified(),
        "peer address {peer2} is no real one"
    );
    Ok(())
}

pub(super) fn wildcard_listener_tells_real_addresses(fabric: &mut dyn Fabric) -> Outcome {
    let ip = fabric.listen_address().ip();
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut world = World::listening_at(fabric, SocketAddr::new(any, 0))?;
    ensure_eq!(
        world.address.ip(),
        any,
        "bound address of a wildcard listener"
    );
    world.address.set_ip(ip);
    let link = world.connect(&LinkOptions::default())?;
    check_addresses(&mut world, link, ip)
}

pub(super) fn addresses_are_told(fabric: &mut dyn Fabric) -> Outcome {
    let ip = fabric.listen_address().ip();
    let (mut world, link) = World::connected(fabric)?;
    ensure_eq!(world.address.ip(), ip, "bound address");
    check_addresses(&mut world, link, ip)
}

pub(super) fn ipv6(fabric: &mut dyn Fabric) -> Outcome {
    let at = fabric.listen_address_v6().map_err(Stop::NotApplicable)?;
    let mut world = World::listening_at(fabric, at)?;
    let link = world.connect(&LinkOptions::default())?;
    check_addresses(&mut world, link, at.ip())?;
    world.post_recv(link, Side::Passive, 1, &[])?;
    world.post_now(link, Side::Active, &send(2, &[]))?;
    world.received(link, Side::Passive, 1, 0)?;
    world.success(link, Side::Active, 2, WcOpcode::Send)?;
    Ok(())
}

pub(super) fn address_in_use(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let address = world.address;
    let refused = world.end(Side::Passive).cm.listen(address, 4);
    ensure!(refused.is_err(), "two listeners at {address}");
    let listener = world.listener;
    world.end(Side::Passive).cm.destroy(listener);
    let (listener, again) = world.end(Side::Passive).cm.listen(address, 4)?;
    ensure_eq!(again, address, "address listened at again");
    world.listener = listener;
    world.connect(&LinkOptions::default())?;
    Ok(())
}

/// Several listeners of one manager are distinguished.
pub(super) fn two_listeners(fabric: &mut dyn Fabric) -> Outcome {
    let at = fabric.listen_address();
    let mut world = World::new(fabric)?;
    let (second, address) = world.end(Side::Passive).cm.listen(at, 4)?;
    ensure!(second != world.listener, "two listeners share an id");
    ensure!(address != world.address, "two listeners share an address");
    world.connect(&LinkOptions::default())?;
    (world.listener, world.address) = (second, address);
    world.connect(&LinkOptions::default())?;
    Ok(())
}

pub(super) fn migrated_request_is_accepted_elsewhere(fabric: &mut dyn Fabric) -> Outcome {
    let other = fabric.manager(Side::Passive).map_err(Stop::failed)?;
    let mut world = World::new(fabric)?;
    let options = LinkOptions::default();
    let active = world.start(&options)?;
    let (request, mut asked) = world.requested()?;
    let moved = world.end(Side::Passive).cm.migrate(request)?;
    ensure!(
        world.end(Side::Passive).cm.device(request).is_none(),
        "a migrated id is still known"
    );
    // The other manager takes the passive side over; its device is its own.
    let first = std::mem::replace(world.end(Side::Passive), Endpoint::new(other));
    let id = world.end(Side::Passive).cm.adopt(moved)?;
    asked.private_data = PrivateData::EMPTY;
    let passive = world.admit((id, asked), &options)?;
    let link = world.join(active, passive)?;
    for from in Side::BOTH {
        world.post_recv(link, from.peer(), 1, &[])?;
        world.post_now(link, from, &send(2, &[]))?;
        world.received(link, from.peer(), 1, 0)?;
        world.success(link, from, 2, WcOpcode::Send)?;
    }
    ensure!(
        first.completions.is_empty(),
        "the first manager was told of the connection"
    );
    let id = world.id(link, Side::Active);
    world.end(Side::Active).cm.disconnect(id);
    world.ended(link)?;
    drop(first);
    Ok(())
}

pub(super) fn dropped_migration_refuses_the_peer(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let active = world.start(&LinkOptions::default())?;
    let (request, _) = world.requested()?;
    drop(world.end(Side::Passive).cm.migrate(request)?);
    let kind = world.event(Side::Active, active.id, "the refusal of a dropped request")?;
    let fits = match &kind {
        CmEventKind::Rejected { .. } => true,
        CmEventKind::Failed(error) => {
            !matches!(error, CmError::Timeout { .. } | CmError::Silent { .. })
        }
        _ => false,
    };
    ensure!(fits, "a dropped request led to {kind:?}");
    Ok(())
}

pub(super) fn calls_that_do_not_fit_are_refused(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let options = LinkOptions::default();
    let unknown = CmId(u64::MAX);
    let id = world.resolve()?;
    let param = world.param(Side::Active, id, &options)?;
    ensure!(
        world.ask(id, &param).is_err(),
        "connected without a queue pair"
    );
    ensure!(
        world.ask(unknown, &param).is_err(),
        "connected an unknown id"
    );
    let active = world.end(Side::Active);
    ensure!(
        active.cm.accept(unknown, &param).is_err(),
        "accepted an unknown id"
    );
    ensure!(
        active.cm.migrate(unknown).is_err(),
        "migrated an unknown id"
    );
    ensure!(
        active.cm.device(unknown).is_none(),
        "an unknown id has a device"
    );
    ensure!(
        active.cm.addresses(unknown).is_none(),
        "an unknown id has addresses"
    );
    let foreign = MigratedId(Box::new("not a request"));
    ensure!(
        active.cm.adopt(foreign).is_err(),
        "adopted what is no request"
    );
    // No effect, no panic.
    active.cm.disconnect(unknown);
    active.cm.reject(unknown, &PrivateData::EMPTY);
    active.cm.destroy(unknown);
    let active = world.start(&options)?;
    let (request, _) = world.requested()?;
    let passive = world.end(Side::Passive);
    ensure!(
        passive.cm.accept(request, &param).is_err(),
        "accepted without a queue pair"
    );
    let _qp = world.create_qp(Side::Passive, request, &options)?;
    ensure!(
        world.end(Side::Passive).cm.migrate(request).is_err(),
        "migrated a request that has a queue pair"
    );
    let again = world.create_qp(Side::Passive, request, &options);
    ensure!(
        again.is_err(),
        "made a second queue pair for one connection"
    );
    ensure!(active.qp.is_some(), "the active side has its queue pair");
    Ok(())
}

/// Ids are never used again, and two connections share one device object.
pub(super) fn ids_are_fresh_and_devices_shared(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let mut seen: Vec<CmId> = vec![world.listener];
    for _ in 0..5 {
        let link = world.connect(&LinkOptions::default())?;
        for side in Side::BOTH {
            let id = world.id(link, side);
            let device = world.end(side).cm.device(id);
            let same = device.is_some_and(|device| {
                let kept = world.has(side).map(|has| std::rc::Rc::clone(&has.device));
                kept.is_ok_and(|kept| std::rc::Rc::ptr_eq(&device, &kept))
            });
            ensure!(same, "{side:?}: two connections have two device objects");
        }
        let id = world.id(link, Side::Passive);
        ensure!(!seen.contains(&id), "{id:?} was given twice");
        seen.push(id);
        world.close(link);
    }
    Ok(())
}

/// More connects at once than one poll takes: each is reported.
pub(super) fn many_requests_at_once(fabric: &mut dyn Fabric) -> Outcome {
    let mut world = World::new(fabric)?;
    let options = LinkOptions {
        send_wr_max: 4,
        recv_wr_max: 4,
        ..LinkOptions::default()
    };
    let mut started = Vec::new();
    for _ in 0..32 {
        started.push(world.start(&options)?);
    }
    let mut accepted = Vec::new();
    for _ in 0..32 {
        let request = world.requested()?;
        accepted.push(world.admit(request, &options)?);
    }
    for active in &started {
        world.established(Side::Active, active.id)?;
    }
    if world.behaviour.passive_may_send_first {
        for passive in &accepted {
            world.established(Side::Passive, passive.id)?;
        }
    }
    Ok(())
}
