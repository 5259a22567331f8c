//! Two endpoints driven from one thread.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;

use super::fabric::{Behaviour, Fabric, Side};
use super::outcome::{Outcome, Stop};
use crate::contract::{
    CmEvent, CmEventKind, CmId, CompletionQueue, ConnectionManager, Device, ProtectionDomain,
    QpNum, WorkCompletion,
};
use crate::pair::Pair;

/// Completions taken per poll; few, so that a provider must keep what does not fit.
const POLL_BATCH: usize = 16;

/// Entries of the completion queue of an endpoint: enough for every case (64 queue pairs with
/// 2 × 64 work requests), clamped to the device.
const CQ_DEPTH: u32 = 8192;

/// What one side has of its device.
pub(crate) struct Resources {
    pub(crate) device: Rc<dyn Device>,
    pub(crate) pd: Rc<dyn ProtectionDomain>,
    pub(crate) cq: Rc<dyn CompletionQueue>,
}

/// One side: a connection manager, what was made of its device, and what both have reported.
pub(crate) struct Endpoint {
    pub(crate) events: VecDeque<CmEvent>,
    pub(crate) completions: VecDeque<WorkCompletion>,
    pub(crate) resources: Option<Resources>,
    /// Further completion queues to poll.
    pub(crate) more_cqs: Vec<Rc<dyn CompletionQueue>>,
    /// Not polled while set.
    pub(crate) asleep: bool,
    pub(crate) cm: Box<dyn ConnectionManager>,
}

impl Endpoint {
    pub(crate) fn new(cm: Box<dyn ConnectionManager>) -> Self {
        Self {
            events: VecDeque::new(),
            completions: VecDeque::new(),
            resources: None,
            more_cqs: Vec::new(),
            asleep: false,
            cm,
        }
    }

    /// Polls everything once; returns whether anything came.
    pub(crate) fn poll(&mut self, now_us: u64) -> bool {
        let mut progress = false;
        while let Some(event) = self.cm.poll(now_us) {
            self.events.push_back(event);
            progress = true;
        }
        let own = self.resources.iter().map(|resources| &resources.cq);
        for cq in own.chain(&self.more_cqs) {
            let mut batch = [WorkCompletion::EMPTY; POLL_BATCH];
            let count = cq.poll(&mut batch).min(POLL_BATCH);
            self.completions.extend(&batch[..count]);
            progress |= count > 0;
        }
        progress
    }
}

/// One side of a connection.
pub(crate) struct LinkEnd {
    pub(crate) id: CmId,
    pub(crate) num: QpNum,
    pub(crate) qp: Option<Pair>,
}

/// Both sides, and the connections between them.
pub(crate) struct World<'f> {
    /// Before the managers, so that queue pairs are dropped first.
    pub(crate) links: Vec<[LinkEnd; 2]>,
    pub(crate) ends: [Endpoint; 2],
    pub(crate) fabric: &'f mut dyn Fabric,
    pub(crate) behaviour: Behaviour,
    pub(crate) listener: CmId,
    pub(crate) address: SocketAddr,
}

impl<'f> World<'f> {
    /// Two managers; the passive one listens at the fabric's address.
    pub(crate) fn new(fabric: &'f mut dyn Fabric) -> Outcome<Self> {
        let at = fabric.listen_address();
        Self::listening_at(fabric, at)
    }

    pub(crate) fn listening_at(fabric: &'f mut dyn Fabric, at: SocketAddr) -> Outcome<Self> {
        let mut manager = |side| fabric.manager(side).map_err(Stop::failed);
        let active = Endpoint::new(manager(Side::Active)?);
        let mut passive = Endpoint::new(manager(Side::Passive)?);
        let (listener, address) = passive.cm.listen(at, 128)?;
        if address.port() == 0 {
            return Err(Stop::failed("listening on port 0 did not pick a port"));
        }
        Ok(Self {
            links: Vec::new(),
            ends: [active, passive],
            behaviour: fabric.behaviour(),
            fabric,
            listener,
            address,
        })
    }

    pub(crate) fn end(&mut self, side: Side) -> &mut Endpoint {
        &mut self.ends[side.index()]
    }

    pub(crate) fn now_us(&mut self) -> u64 {
        self.fabric.now_us()
    }

    /// The device, protection domain and completion queue of a side, made from connection `id` the
    /// first time.
    pub(crate) fn resources(&mut self, side: Side, id: CmId) -> Outcome<&Resources> {
        let end = self.end(side);
        if end.resources.is_none() {
            let device = end.cm.device(id);
            let device = device.ok_or_else(|| Stop::failed("a connection without a device"))?;
            let depth = CQ_DEPTH.min(device.attributes().cqe_max);
            end.resources = Some(Resources {
                pd: device.allocate_pd()?,
                cq: device.create_cq(depth)?,
                device,
            });
        }
        self.has(side)
    }

    /// As [`World::resources`] once a connection has been made.
    pub(crate) fn has(&self, side: Side) -> Outcome<&Resources> {
        let resources = self.ends[side.index()].resources.as_ref();
        resources.ok_or_else(|| Stop::failed("no connection has been made yet"))
    }

    pub(crate) fn pd(&self, side: Side) -> Outcome<Rc<dyn ProtectionDomain>> {
        Ok(Rc::clone(&self.has(side)?.pd))
    }

    pub(crate) fn qp(&mut self, link: usize, side: Side) -> Outcome<&mut Pair> {
        match &mut self.links[link][side.index()].qp {
            Some(qp) => Ok(qp),
            None => Err(Stop::failed("the queue pair has been dropped")),
        }
    }

    pub(crate) fn id(&self, link: usize, side: Side) -> CmId {
        self.links[link][side.index()].id
    }

    /// Polls both sides (those awake) once; returns whether anything came.
    pub(crate) fn turn(&mut self) -> bool {
        let now_us = self.fabric.now_us();
        let mut progress = false;
        for end in &mut self.ends {
            if !end.asleep {
                progress |= end.poll(now_us);
            }
        }
        progress
    }

    /// Polls both sides until `done` has a result, for as long as the fabric's patience.
    #[track_caller]
    pub(crate) fn drive_until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Outcome<T> {
        let deadline_us = self.now_us() + self.behaviour.patience_us;
        match self.drive_to(deadline_us, &mut done) {
            Some(answer) => Ok(answer),
            None => Err(Stop::failed(format_args!(
                "{what} did not happen within {} ms{}",
                self.behaviour.patience_us / 1000,
                self.leftovers()
            ))),
        }
    }

    /// Polls both sides for `time_us`, or until `done` has a result.
    pub(crate) fn drive_for<T>(
        &mut self,
        time_us: u64,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let deadline_us = self.now_us() + time_us;
        self.drive_to(deadline_us, &mut done)
    }

    /// Lets `time_us` pass, so that what should not happen could.
    pub(crate) fn settle(&mut self, time_us: u64) {
        self.drive_for(time_us, |_| None::<()>);
    }

    fn drive_to<T>(
        &mut self,
        deadline_us: u64,
        done: &mut dyn FnMut(&mut Self) -> Option<T>,
    ) -> Option<T> {
        loop {
            let progress = self.turn();
            if let Some(answer) = done(self) {
                return Some(answer);
            }
            if self.now_us() >= deadline_us {
                return None;
            }
            if !progress {
                self.fabric.pause(deadline_us);
            }
        }
    }

    /// Events and completions that no case has asked for yet: usually the explanation of a timeout.
    pub(crate) fn leftovers(&self) -> String {
        let mut text = String::new();
        for side in Side::BOTH {
            let end = &self.ends[side.index()];
            for event in end.events.iter().take(3) {
                let _ = write!(text, "; {side:?} has {event:?}");
            }
            for wc in end.completions.iter().take(3) {
                let _ = write!(
                    text,
                    "; {side:?} has wr {:#x} {:?} of {:?}",
                    wc.wr_id, wc.status, wc.qp
                );
            }
        }
        text
    }

    /// The next event of `id` on `side`.
    #[track_caller]
    pub(crate) fn event(&mut self, side: Side, id: CmId, what: &str) -> Outcome<CmEventKind> {
        self.drive_until(what, |world| {
            let events = &mut world.end(side).events;
            let at = events.iter().position(|event| event.id == id)?;
            events.remove(at).map(|event| event.kind)
        })
    }

    /// The next completion of `side`'s queue pair of `link`.
    #[track_caller]
    pub(crate) fn completion(
        &mut self,
        link: usize,
        side: Side,
        what: &str,
    ) -> Outcome<WorkCompletion> {
        self.drive_until(what, |world| world.take_completion(link, side))
    }

    pub(crate) fn take_completion(&mut self, link: usize, side: Side) -> Option<WorkCompletion> {
        let num = self.links[link][side.index()].num;
        let completions = &mut self.end(side).completions;
        let at = completions.iter().position(|wc| wc.qp == num)?;
        completions.remove(at)
    }
}
