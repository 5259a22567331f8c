//! Two machines on one network, polled in turn in virtual time.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use capstan_memory::{Pages, Slab};
use capstan_rdma::contract::{
    Access, CmEvent, CmEventKind, CmId, CompletionQueue, ConnectParam, ConnectionManager,
    MemoryRegion, PrivateData, ProtectionDomain, QpConfig, QpNum, QueuePair, ReceiveSource, Remote,
    SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};
use capstan_rdma::loopback::{Faults, Manager, Network, Provider, attributes};

pub(crate) const ACTIVE: usize = 0;
pub(crate) const PASSIVE: usize = 1;

/// How long any wait lasts in virtual time.
const PATIENCE_US: u64 = 30_000_000;

pub(crate) fn address(side: usize) -> IpAddr {
    ["10.1.0.1", "10.1.0.2"][side].parse().unwrap()
}

/// Registered memory.
pub(crate) struct Memory {
    pub(crate) region: Rc<dyn MemoryRegion>,
}

impl Memory {
    pub(crate) fn new(pd: &Rc<dyn ProtectionDomain>, len_bytes: usize) -> Self {
        let slab = Slab::new(len_bytes, Pages::Ordinary).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.register(&slab, 0, len_bytes, access).unwrap();
        Self { region }
    }

    pub(crate) fn sge(&self, at: u64, len_bytes: u32) -> Sge {
        Sge {
            addr: self.region.addr() + at,
            len_bytes,
            lkey: self.region.lkey(),
        }
    }

    pub(crate) fn remote(&self, at: u64) -> Remote {
        Remote {
            addr: self.region.addr() + at,
            rkey: self.region.rkey(),
        }
    }
}

pub(crate) fn signaled(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        sges,
        signaled: true,
        fence: false,
    }
}

pub(crate) const SEND: SendOp = SendOp::Send {
    invalidate: None,
    solicited: false,
};

pub(crate) const PARAM: ConnectParam = ConnectParam {
    private_data: PrivateData::EMPTY,
    responder_resources: 4,
    initiator_depth: 4,
    rnr_retry_count: 7,
};

/// One side.
pub(crate) struct End {
    pub(crate) events: Vec<CmEvent>,
    pub(crate) wcs: Vec<WorkCompletion>,
    pub(crate) resources: Option<(Rc<dyn ProtectionDomain>, Rc<dyn CompletionQueue>)>,
    pub(crate) manager: Manager,
}

/// One side of a connection.
pub(crate) struct Leg {
    pub(crate) id: CmId,
    pub(crate) qp: Box<dyn QueuePair>,
}

pub(crate) struct Ends {
    pub(crate) network: Network,
    pub(crate) machines: [Provider; 2],
    pub(crate) ends: [End; 2],
    pub(crate) listener: CmId,
    pub(crate) at: SocketAddr,
}

impl Ends {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let network = Network::with_faults(seed, faults);
        network.keep_trace();
        let machine = |side| network.provider(&[address(side)], attributes()).unwrap();
        let machines = [machine(ACTIVE), machine(PASSIVE)];
        let mut ends = [0, 1].map(|side| End {
            events: Vec::new(),
            wcs: Vec::new(),
            resources: None,
            manager: machines[side].manager().unwrap(),
        });
        let any = SocketAddr::new(address(PASSIVE), 0);
        let (listener, at) = ends[PASSIVE].manager.listen(any, 64).unwrap();
        Self {
            network,
            machines,
            ends,
            listener,
            at,
        }
    }

    /// Polls both sides once at the network's time.
    pub(crate) fn poll(&mut self) -> bool {
        let now_us = self.network.now_us();
        let mut progress = false;
        for end in &mut self.ends {
            while let Some(event) = end.manager.poll(now_us) {
                end.events.push(event);
                progress = true;
            }
            if let Some((_, cq)) = &end.resources {
                let mut batch = [WorkCompletion::EMPTY; 8];
                let count = cq.poll(&mut batch);
                end.wcs.extend(&batch[..count]);
                progress |= count > 0;
            }
        }
        progress
    }

    /// Polls, jumping from one thing to the next, until `done` answers or nothing is left to come.
    pub(crate) fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        let give_up_us = self.network.now_us() + PATIENCE_US;
        loop {
            let progress = self.poll();
            if let Some(answer) = done(self) {
                return Some(answer);
            }
            if !progress {
                let next_us = self
                    .network
                    .next_deadline_us()
                    .filter(|&at| at < give_up_us)?;
                self.network.advance_to(next_us);
            }
        }
    }

    /// The next event of `id`.
    pub(crate) fn event(&mut self, side: usize, id: CmId) -> Option<CmEventKind> {
        self.until(|ends| {
            let events = &mut ends.ends[side].events;
            let at = events.iter().position(|event| event.id == id)?;
            Some(events.remove(at).kind)
        })
    }

    /// The next completion of `qp`.
    pub(crate) fn completion(&mut self, side: usize, qp: QpNum) -> Option<(u64, WcStatus)> {
        self.until(|ends| {
            let wcs = &mut ends.ends[side].wcs;
            let at = wcs.iter().position(|wc| wc.qp == qp)?;
            let wc = wcs.remove(at);
            Some((wc.wr_id, wc.status))
        })
    }

    pub(crate) fn pd(&self, side: usize) -> Rc<dyn ProtectionDomain> {
        Rc::clone(&self.ends[side].resources.as_ref().unwrap().0)
    }

    pub(crate) fn make_qp(&mut self, side: usize, id: CmId) -> Box<dyn QueuePair> {
        self.make_qp_on_cq(side, id, 1024)
    }

    /// The side's completion queue has `cq_depth` entries if it is made now.
    pub(crate) fn make_qp_on_cq(
        &mut self,
        side: usize,
        id: CmId,
        cq_depth: u32,
    ) -> Box<dyn QueuePair> {
        let end = &mut self.ends[side];
        let (pd, cq) = end.resources.get_or_insert_with(|| {
            let device = end.manager.device(id).unwrap();
            (
                device.allocate_pd().unwrap(),
                device.create_cq(cq_depth).unwrap(),
            )
        });
        let config = QpConfig {
            send_cq: Rc::clone(cq),
            recv_cq: Rc::clone(cq),
            send_wr_max: 32,
            receives: ReceiveSource::Own(32),
            send_sge_max: 2,
            recv_sge_max: 2,
            inline_bytes: 0,
        };
        let pd = Rc::clone(pd);
        end.manager.create_qp(id, &pd, &config).unwrap()
    }

    /// Resolves and asks; `None` when that fails.
    pub(crate) fn ask(&mut self, timeout_us: u64) -> Option<Leg> {
        let now_us = self.network.now_us();
        let manager = &mut self.ends[ACTIVE].manager;
        let id = manager.resolve(self.at, None, timeout_us, now_us).unwrap();
        let kind = self.event(ACTIVE, id)?;
        if !matches!(kind, CmEventKind::Resolved) {
            return None;
        }
        let qp = self.make_qp(ACTIVE, id);
        let now_us = self.network.now_us();
        let manager = &mut self.ends[ACTIVE].manager;
        manager.connect(id, &PARAM, timeout_us, now_us).unwrap();
        Some(Leg { id, qp })
    }

    /// The next request at the listener.
    pub(crate) fn requested(&mut self) -> Option<CmId> {
        let listens = self.listener;
        self.until(|ends| {
            let events = &mut ends.ends[PASSIVE].events;
            let at = events.iter().position(|event| {
                matches!(event.kind, CmEventKind::ConnectRequest { listener, .. } if listener == listens)
            })?;
            Some(events.remove(at).id)
        })
    }

    pub(crate) fn accept(&mut self, id: CmId) -> Leg {
        let qp = self.make_qp(PASSIVE, id);
        self.ends[PASSIVE].manager.accept(id, &PARAM).unwrap();
        Leg { id, qp }
    }

    /// A connection, both ends told.
    pub(crate) fn connect(&mut self) -> [Leg; 2] {
        let active = self.ask(1_000_000).unwrap();
        let request = self.requested().unwrap();
        let passive = self.accept(request);
        for (side, id) in [(ACTIVE, active.id), (PASSIVE, passive.id)] {
            let kind = self.event(side, id);
            assert!(
                matches!(kind, Some(CmEventKind::Established { .. })),
                "{kind:?}"
            );
        }
        [active, passive]
    }

    /// The cause of the end of `id`, which must be its next event.
    pub(crate) fn cause(&mut self, side: usize, id: CmId) -> String {
        match self.event(side, id) {
            Some(CmEventKind::Disconnected { cause, .. }) => cause,
            other => panic!("{other:?}"),
        }
    }
}
