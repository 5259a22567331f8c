//! Two ends in one thread, each with a provider of its own.
#![expect(unsafe_code, reason = "looks at registered memory, as a device would")]

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capstan_memory::{Pages, Slab};
use capstan_rdma::contract::{
    Access, CmEvent, CmEventKind, CmId, CompletionQueue, ConnectParam, ConnectionManager,
    MemoryRegion, PrivateData, ProtectionDomain, QpConfig, QueuePair, ReceiveSource, SendOp,
    SendWr, Sge, WorkCompletion,
};
use capstan_rdma::iwarp::{Config, Provider};

pub(crate) const SLAB_BYTES: usize = 8 << 20;
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// One end: a provider with memory that the peer may read and write.
pub(crate) struct Side {
    pub(crate) cm: Box<dyn ConnectionManager>,
    pub(crate) pd: Rc<dyn ProtectionDomain>,
    pub(crate) cq: Rc<dyn CompletionQueue>,
    pub(crate) mr: Rc<dyn MemoryRegion>,
    pub(crate) slab: Arc<Slab>,
    pub(crate) events: Vec<CmEvent>,
    pub(crate) completions: Vec<WorkCompletion>,
    start: Instant,
}

impl Side {
    pub(crate) fn new(config: Config) -> Self {
        let provider = Provider::new(config).unwrap();
        let device = provider.device();
        let pd = device.allocate_pd().unwrap();
        let slab = Slab::new(SLAB_BYTES, Pages::Ordinary).unwrap();
        let access = Access::all();
        Self {
            cm: provider.connection_manager().unwrap(),
            mr: pd.register(&slab, 0, SLAB_BYTES, access).unwrap(),
            cq: device.create_cq(4096).unwrap(),
            pd,
            slab,
            events: Vec::new(),
            completions: Vec::new(),
            start: Instant::now(),
        }
    }

    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap()
    }

    /// Polls everything once.
    pub(crate) fn turn(&mut self) {
        let mut out = [WorkCompletion::EMPTY; 64];
        let count = self.cq.poll(&mut out);
        self.completions.extend_from_slice(&out[..count]);
        let now = self.now_us();
        while let Some(event) = self.cm.poll(now) {
            self.events.push(event);
        }
    }

    pub(crate) fn sge(&self, offset: usize, len_bytes: u32) -> Sge {
        Sge {
            addr: self.mr.addr() + offset as u64,
            len_bytes,
            lkey: self.mr.lkey(),
        }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.slab.base().as_ptr().wrapping_add(offset)
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= SLAB_BYTES);
        // SAFETY: inside the slab; nothing is in flight at these bytes in these tests.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= SLAB_BYTES);
        let mut bytes = vec![0; len];
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy(self.at(offset), bytes.as_mut_ptr(), len) };
        bytes
    }

    pub(crate) fn qp_config(&self) -> QpConfig {
        QpConfig {
            send_cq: Rc::clone(&self.cq),
            recv_cq: Rc::clone(&self.cq),
            send_wr_max: 128,
            receives: ReceiveSource::Own(128),
            send_sge_max: 4,
            recv_sge_max: 4,
            inline_bytes: 0,
        }
    }

    pub(crate) fn create_qp(&mut self, id: CmId) -> Box<dyn QueuePair> {
        let config = self.qp_config();
        self.cm.create_qp(id, &self.pd, &config).unwrap()
    }

    /// Turns this one until `done` or patience ends.
    pub(crate) fn turn_until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.turn();
            assert!(
                start.elapsed() < PATIENCE,
                "{what} did not come: events {:?}, completions {:?}",
                self.events,
                self.completions
            );
        }
    }
}

/// Turns both until `done` or patience ends.
pub(crate) fn turn_until(
    a: &mut Side,
    b: &mut Side,
    what: &str,
    mut done: impl FnMut(&Side, &Side) -> bool,
) {
    let start = Instant::now();
    while !done(a, b) {
        a.turn();
        b.turn();
        assert!(
            start.elapsed() < PATIENCE,
            "{what} did not happen: events {:?} / {:?}, completions {:?} / {:?}",
            a.events,
            b.events,
            a.completions,
            b.completions
        );
    }
}

pub(crate) fn param(private: &[u8], responder_resources: u8, initiator_depth: u8) -> ConnectParam {
    ConnectParam {
        private_data: PrivateData::new(private).unwrap(),
        responder_resources,
        initiator_depth,
        rnr_retry_count: 7,
    }
}

/// A connected pair: `host` has connected to `target`.
pub(crate) struct Pair {
    pub(crate) host: Side,
    pub(crate) target: Side,
    pub(crate) host_qp: Box<dyn QueuePair>,
    pub(crate) target_qp: Box<dyn QueuePair>,
    pub(crate) host_id: CmId,
    pub(crate) target_id: CmId,
}

pub(crate) fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with(Config::default(), Config::default())
    }

    pub(crate) fn with(host: Config, target: Config) -> Self {
        Self::between(Side::new(host), Side::new(target), any())
    }

    pub(crate) fn between(host: Side, target: Side, addr: SocketAddr) -> Self {
        let mut pair = Self::accepted(host, target, addr);
        let (host_id, target_id) = (pair.host_id, pair.target_id);
        pair.turn_until("established", |h, t| {
            established(h, host_id) && established(t, target_id)
        });
        pair.host.events.clear();
        pair.target.events.clear();
        pair
    }

    /// The target has accepted, and nothing has happened since.
    pub(crate) fn accepted(mut host: Side, mut target: Side, addr: SocketAddr) -> Self {
        let (listener, addr) = target.cm.listen(addr, 16).unwrap();
        let now = host.now_us();
        let host_id = host.cm.resolve(addr, None, 1_000_000, now).unwrap();
        let host_qp = host.create_qp(host_id);
        let ask = param(b"hello", 16, 16);
        host.cm.connect(host_id, &ask, 5_000_000, now).unwrap();
        turn_until(&mut host, &mut target, "request", |_, t| {
            !t.events.is_empty()
        });
        let request = target.events.remove(0);
        let CmEventKind::ConnectRequest {
            listener: at,
            param: asked,
        } = request.kind
        else {
            panic!("{request:?}");
        };
        assert_eq!(at, listener);
        assert_eq!(asked.private_data.as_bytes(), b"hello");
        let target_id = request.id;
        let target_qp = target.create_qp(target_id);
        let answer = param(b"welcome", 16, 16);
        target.cm.accept(target_id, &answer).unwrap();
        target.cm.destroy(listener);
        Self {
            host,
            target,
            host_qp,
            target_qp,
            host_id,
            target_id,
        }
    }

    pub(crate) fn turn_until(&mut self, what: &str, done: impl FnMut(&Side, &Side) -> bool) {
        turn_until(&mut self.host, &mut self.target, what, done);
    }
}

pub(crate) fn established(side: &Side, id: CmId) -> bool {
    let is = |e: &CmEvent| e.id == id && matches!(e.kind, CmEventKind::Established { .. });
    side.events.iter().any(is)
}

pub(crate) fn disconnected(side: &Side) -> Option<&str> {
    side.events.iter().find_map(|e| match &e.kind {
        CmEventKind::Disconnected { cause, .. } => Some(cause.as_str()),
        _ => None,
    })
}

pub(crate) fn send(wr_id: u64, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id,
        op: SendOp::Send {
            invalidate: None,
            solicited: false,
        },
        sges,
        signaled: true,
        fence: false,
    }
}

pub(crate) fn wr(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        op,
        ..send(wr_id, sges)
    }
}

pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| {
            let [a, b, c, ..] = i.to_le_bytes();
            a ^ b.wrapping_mul(31) ^ c.wrapping_mul(17) ^ seed
        })
        .collect()
}
