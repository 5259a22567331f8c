//! Connecting, posting and expecting: the helpers the cases are written with.

use std::rc::Rc;

use super::fabric::Side;
use super::outcome::{Outcome, Stop, ensure, ensure_eq};
use super::world::{LinkEnd, World};
use crate::contract::{
    CmEventKind, CmId, CompletionQueue, ConnectParam, PrivateData, ProtectionDomain, QpConfig,
    QpState, QueuePair, ReceiveSource, Remote, SendOp, SendWr, Sge, SharedReceiveQueue, WcOpcode,
    WcStatus, WorkCompletion,
};
use crate::pair::Pair;

/// `wr_id` of the first, empty Send of the connecting side.
const HELLO: u64 = u64::MAX - 1;

/// How to make a connection.
#[derive(Clone)]
pub(crate) struct LinkOptions {
    pub(crate) send_wr_max: u32,
    pub(crate) recv_wr_max: u32,
    /// Clamped to the device.
    pub(crate) sge_max: u32,
    /// RDMA READs asked for in each direction, clamped to the devices.
    pub(crate) read_depth: u8,
    pub(crate) rnr_retry_count: u8,
    /// Shared receive queues, by [`Side::index`].
    pub(crate) srq: [Option<Rc<dyn SharedReceiveQueue>>; 2],
    /// Protection domains other than the endpoint's, by [`Side::index`].
    pub(crate) pd: [Option<Rc<dyn ProtectionDomain>>; 2],
    /// Separate completion queues for receives, by [`Side::index`].
    pub(crate) recv_cq: [Option<Rc<dyn CompletionQueue>>; 2],
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            send_wr_max: 64,
            recv_wr_max: 64,
            sge_max: 4,
            read_depth: 4,
            rnr_retry_count: 7,
            srq: [None, None],
            pd: [None, None],
            recv_cq: [None, None],
        }
    }
}

/// A Send.
pub(crate) fn send(wr_id: u64, sges: &[Sge]) -> SendWr<'_> {
    let op = SendOp::Send {
        invalidate: None,
        solicited: false,
    };
    request(wr_id, op, sges)
}

/// An RDMA WRITE.
pub(crate) fn write(wr_id: u64, sges: &[Sge], remote: Remote) -> SendWr<'_> {
    request(wr_id, SendOp::Write(remote), sges)
}

/// An RDMA READ.
pub(crate) fn read(wr_id: u64, sges: &[Sge], remote: Remote) -> SendWr<'_> {
    request(wr_id, SendOp::Read(remote), sges)
}

/// Any signaled work request.
pub(crate) fn request(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        sges,
        signaled: true,
        fence: false,
    }
}

impl World<'_> {
    /// What a side asks for, as far as its device can.
    pub(crate) fn param(
        &mut self,
        side: Side,
        id: CmId,
        options: &LinkOptions,
    ) -> Outcome<ConnectParam> {
        let attributes = self.resources(side, id)?.device.attributes();
        Ok(ConnectParam {
            private_data: PrivateData::EMPTY,
            responder_resources: options.read_depth.min(attributes.responder_resources_max),
            initiator_depth: options.read_depth.min(attributes.initiator_depth_max),
            rnr_retry_count: options.rnr_retry_count,
        })
    }

    /// Resolves the listener's address.
    pub(crate) fn resolve(&mut self) -> Outcome<CmId> {
        let (now_us, address) = (self.now_us(), self.address);
        let patience_us = self.behaviour.patience_us;
        let active = self.end(Side::Active);
        let id = active.cm.resolve(address, None, patience_us, now_us)?;
        match self.event(Side::Active, id, "address resolution")? {
            CmEventKind::Resolved => Ok(id),
            other => Err(Stop::failed(format_args!("resolve led to {other:?}"))),
        }
    }

    pub(crate) fn create_qp(
        &mut self,
        side: Side,
        id: CmId,
        options: &LinkOptions,
    ) -> Outcome<Pair> {
        let resources = self.resources(side, id)?;
        let pd = options.pd[side.index()].as_ref().unwrap_or(&resources.pd);
        let recv_cq = options.recv_cq[side.index()].as_ref();
        let sge_max = options.sge_max.min(resources.device.attributes().sge_max);
        let config = QpConfig {
            send_cq: Rc::clone(&resources.cq),
            recv_cq: Rc::clone(recv_cq.unwrap_or(&resources.cq)),
            send_wr_max: options.send_wr_max,
            receives: match &options.srq[side.index()] {
                Some(srq) => ReceiveSource::Shared(Rc::clone(srq)),
                None => ReceiveSource::Own(options.recv_wr_max),
            },
            send_sge_max: sge_max,
            recv_sge_max: sge_max,
            inline_bytes: 64,
        };
        let pd = Rc::clone(pd);
        let qp = Pair::from(self.end(side).cm.create_qp(id, &pd, &config)?);
        ensure_eq!(qp.state(), QpState::Init, "state of a new queue pair");
        Ok(qp)
    }

    /// Resolves, makes a queue pair and requests the connection.
    pub(crate) fn start(&mut self, options: &LinkOptions) -> Outcome<LinkEnd> {
        let id = self.resolve()?;
        let qp = self.create_qp(Side::Active, id, options)?;
        let param = self.param(Side::Active, id, options)?;
        self.ask(id, &param)?;
        Ok(LinkEnd {
            id,
            num: qp.num(),
            qp: Some(qp),
        })
    }

    /// Requests the connection `id`.
    pub(crate) fn ask(&mut self, id: CmId, param: &ConnectParam) -> Outcome {
        let (now_us, patience_us) = (self.now_us(), self.behaviour.patience_us);
        let active = self.end(Side::Active);
        Ok(active.cm.connect(id, param, patience_us, now_us)?)
    }

    /// The next connection request at the listener.
    pub(crate) fn requested(&mut self) -> Outcome<(CmId, ConnectParam)> {
        let expected = self.listener;
        self.drive_until("a connection request", |world| {
            let events = &mut world.end(Side::Passive).events;
            let at = events.iter().position(|event| {
                matches!(event.kind, CmEventKind::ConnectRequest { listener, .. } if listener == expected)
            })?;
            let event = events.remove(at)?;
            match event.kind {
                CmEventKind::ConnectRequest { param, .. } => Some((event.id, param)),
                _ => None,
            }
        })
    }

    /// Makes a queue pair for a request and accepts it.
    pub(crate) fn admit(
        &mut self,
        (id, asked): (CmId, ConnectParam),
        options: &LinkOptions,
    ) -> Outcome<LinkEnd> {
        let mut qp = self.create_qp(Side::Passive, id, options)?;
        if !self.behaviour.passive_may_send_first {
            match &options.srq[Side::Passive.index()] {
                Some(srq) => srq.post_recv(HELLO, &[])?,
                None => qp.post_recv(HELLO, &[])?,
            }
        }
        let mut param = self.param(Side::Passive, id, options)?;
        param.responder_resources = param.responder_resources.min(asked.initiator_depth);
        param.initiator_depth = param.initiator_depth.min(asked.responder_resources);
        self.end(Side::Passive).cm.accept(id, &param)?;
        Ok(LinkEnd {
            id,
            num: qp.num(),
            qp: Some(qp),
        })
    }

    /// Waits for `Established`.
    pub(crate) fn established(&mut self, side: Side, id: CmId) -> Outcome<ConnectParam> {
        match self.event(side, id, "establishing the connection")? {
            CmEventKind::Established { param } => Ok(param),
            other => Err(Stop::failed(format_args!(
                "{side:?}: connecting led to {other:?}"
            ))),
        }
    }

    /// Makes a connection; returns its index.
    pub(crate) fn connect(&mut self, options: &LinkOptions) -> Outcome<usize> {
        let active = self.start(options)?;
        let request = self.requested()?;
        let passive = self.admit(request, options)?;
        self.join(active, passive)
    }

    /// Waits until both ends of a connection are established.
    pub(crate) fn join(&mut self, active: LinkEnd, passive: LinkEnd) -> Outcome<usize> {
        self.established(Side::Active, active.id)?;
        self.links.push([active, passive]);
        let link = self.links.len() - 1;
        if !self.behaviour.passive_may_send_first {
            self.post_now(link, Side::Active, &send(HELLO, &[]))?;
            self.success(link, Side::Active, HELLO, WcOpcode::Send)?;
            self.success(link, Side::Passive, HELLO, WcOpcode::Recv)?;
        }
        self.established(Side::Passive, self.id(link, Side::Passive))?;
        for side in Side::BOTH {
            let state = self.qp(link, side)?.state();
            ensure_eq!(
                state,
                QpState::ReadyToSend,
                "{side:?}: state when established"
            );
        }
        Ok(link)
    }

    /// Two managers and one connection with the usual sizes.
    pub(crate) fn connected(fabric: &mut dyn super::Fabric) -> Outcome<(World<'_>, usize)> {
        let mut world = World::new(fabric)?;
        let link = world.connect(&LinkOptions::default())?;
        Ok((world, link))
    }

    /// Queues a send work request.
    pub(crate) fn post(&mut self, link: usize, side: Side, wr: &SendWr<'_>) -> Outcome {
        Ok(self.qp(link, side)?.post_send(wr)?)
    }

    pub(crate) fn ring(&mut self, link: usize, side: Side) -> Outcome {
        self.qp(link, side)?.ring_doorbell();
        Ok(())
    }

    /// Queues a send work request and rings.
    pub(crate) fn post_now(&mut self, link: usize, side: Side, wr: &SendWr<'_>) -> Outcome {
        self.post(link, side, wr)?;
        self.ring(link, side)
    }

    pub(crate) fn post_recv(
        &mut self,
        link: usize,
        side: Side,
        wr_id: u64,
        sges: &[Sge],
    ) -> Outcome {
        Ok(self.qp(link, side)?.post_recv(wr_id, sges)?)
    }

    /// The next completion must be `wr_id`'s, with success.
    #[track_caller]
    pub(crate) fn success(
        &mut self,
        link: usize,
        side: Side,
        wr_id: u64,
        opcode: WcOpcode,
    ) -> Outcome<WorkCompletion> {
        let what = format!("{side:?}: completion of {opcode:?} {wr_id:#x}");
        let wc = self.completion(link, side, &what)?;
        ensure_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success), "{what}");
        ensure_eq!(wc.opcode, opcode, "{what}: opcode");
        Ok(wc)
    }

    /// The next completion must be a received message of `len_bytes`.
    #[track_caller]
    pub(crate) fn received(
        &mut self,
        link: usize,
        side: Side,
        wr_id: u64,
        len_bytes: usize,
    ) -> Outcome<WorkCompletion> {
        let wc = self.success(link, side, wr_id, WcOpcode::Recv)?;
        ensure_eq!(
            wc.byte_len as usize,
            len_bytes,
            "{side:?}: received length of {wr_id:#x}"
        );
        Ok(wc)
    }

    /// The next completion must be `wr_id`'s, with the flush status.
    #[track_caller]
    pub(crate) fn flushed(&mut self, link: usize, side: Side, wr_id: u64) -> Outcome {
        let what = format!("{side:?}: flush of {wr_id:#x}");
        let wc = self.completion(link, side, &what)?;
        ensure_eq!(
            (wc.wr_id, wc.status),
            (wr_id, WcStatus::WrFlushError),
            "{what}"
        );
        Ok(())
    }

    /// The next completion must be `wr_id`'s, with an error: `status` if the fabric names causes.
    #[track_caller]
    pub(crate) fn failed(
        &mut self,
        link: usize,
        side: Side,
        wr_id: u64,
        status: WcStatus,
    ) -> Outcome {
        let what = format!("{side:?}: failure of {wr_id:#x}");
        let wc = self.completion(link, side, &what)?;
        ensure_eq!(wc.wr_id, wr_id, "{what}");
        ensure!(
            wc.status != WcStatus::Success,
            "{what}: it completed with success, expected {status:?}"
        );
        if self.behaviour.names_remote_errors {
            ensure_eq!(wc.status, status, "{what}");
        }
        Ok(())
    }

    /// The next completion must be `wr_id`'s, with an error of this side's own memory.
    #[track_caller]
    pub(crate) fn failed_here(&mut self, link: usize, side: Side, wr_id: u64) -> Outcome {
        let what = format!("{side:?}: failure of {wr_id:#x}");
        let wc = self.completion(link, side, &what)?;
        ensure_eq!(wc.wr_id, wr_id, "{what}");
        self.check_local(&wc, &[WcStatus::LocalProtectionError])
    }

    /// Checks the completion of a request that broke a rule on its own side: one of `named`, or
    /// what this fabric has instead.
    #[track_caller]
    pub(crate) fn check_local(&self, wc: &WorkCompletion, named: &[WcStatus]) -> Outcome {
        let stand_ins = self.behaviour.local_error_stand_ins;
        ensure!(
            named.contains(&wc.status) || stand_ins.contains(&wc.status),
            "{:#x} completed as {:?}, expected {named:?}",
            wc.wr_id,
            wc.status
        );
        Ok(())
    }

    /// Waits until `side` has the event that the connection ended.
    #[track_caller]
    pub(crate) fn ended_at(&mut self, link: usize, side: Side) -> Outcome {
        let id = self.id(link, side);
        let what = format!("{side:?}: end of the connection");
        let kind = self.event(side, id, &what)?;
        ensure!(
            matches!(kind, CmEventKind::Disconnected { .. }),
            "{what}: got {kind:?}"
        );
        if let Ok(qp) = self.qp(link, side) {
            ensure_eq!(qp.state(), QpState::Error, "{side:?}: state after the end");
        }
        Ok(())
    }

    /// Waits until both sides have the event that the connection ended.
    #[track_caller]
    pub(crate) fn ended(&mut self, link: usize) -> Outcome {
        self.ended_at(link, Side::Active)?;
        self.ended_at(link, Side::Passive)
    }

    /// Lets time pass, and checks that nothing more comes for `link`.
    #[track_caller]
    pub(crate) fn silent(&mut self, link: usize) -> Outcome {
        self.settle(20_000);
        for side in Side::BOTH {
            if let Some(wc) = self.take_completion(link, side) {
                return Err(Stop::failed(format_args!(
                    "{side:?}: unexpected completion {wc:?}"
                )));
            }
        }
        Ok(())
    }

    /// Drops both queue pairs of a connection and forgets its ids.
    pub(crate) fn close(&mut self, link: usize) {
        for side in Side::BOTH {
            self.links[link][side.index()].qp = None;
            let id = self.id(link, side);
            self.end(side).cm.destroy(id);
            self.end(side).events.retain(|event| event.id != id);
        }
    }
}
