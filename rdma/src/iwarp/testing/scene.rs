//! A queue pair with memory in all states that matter, and what is kept from one run to the next.
#![expect(unsafe_code, reason = "fills registered memory and looks at it")]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use capstan_memory::{Pages, Slab};

use super::ledger::{FIRST_SEND, UNSIGNALED};
use super::peer::Peer;
use crate::contract::{
    Access, CmId, CompletionQueue, Device, LKey, MemoryRegion, MemoryWindow, ProtectionDomain,
    QpConfig, QueuePair, RKey, ReceiveSource, Remote, SendOp, SendWr, Sge,
};
use crate::iwarp::config::Config;
use crate::iwarp::core::Terms;
use crate::iwarp::core::tx::Framing;
use crate::iwarp::device::create_qp;
use crate::iwarp::driver::IwarpEngine;
use crate::iwarp::driver::notice::{Link2Cm, Notice, Notices};
use crate::iwarp::link::Link;
use crate::iwarp::link::pipe::TestPipe;
use crate::iwarp::provider::attributes;
use crate::iwarp::qp::QpHandle;

/// Length of the slab; everything lies in its first pages, guards between.
const SLAB_BYTES: usize = 128 << 10;
/// What the peer may write.
const OPEN: (usize, usize) = (4099, 8001);
/// What the peer may read.
const READABLE: (usize, usize) = (20_003, 5000);
/// What the window of this queue pair opens, inside a region that the peer may not use.
const WINDOW: (usize, usize) = (40_007, 3000);
const WINDOWED: (usize, usize) = (36_000, 10_000);
/// Where receives go.
const INBOX: (usize, usize) = (50_001, 54_100);
/// Where RDMA Reads go, in the middle.
const SINK: (usize, usize) = (105_001, 12_000);
const READ_AT: usize = SINK.0 + 3000;
/// A region of another protection domain.
const FOREIGN: (usize, usize) = (120_000, 4096);

/// Receives that are posted when a scene begins; their identifiers start at 0.
pub(super) const RECEIVES: u64 = 6;
pub(super) const RECEIVE_BYTES: u32 = 9000;
/// RDMA Reads that are outstanding when a scene begins.
pub(super) const READS: u64 = 3;

/// What the peer may change: start and length, in ascending order.
const OPENED: [(usize, usize); 4] = [
    OPEN,
    WINDOW,
    (INBOX.0, 6 * RECEIVE_BYTES as usize),
    (READ_AT, 6000),
];
const _: () = assert!(RECEIVES == 6 && INBOX.1 >= 6 * RECEIVE_BYTES as usize);

/// The slab's initial content.
static FILL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    (0..SLAB_BYTES)
        .map(|at| at.to_le_bytes()[0] ^ 0x5a)
        .collect()
});

/// Runs before a stage is replaced by a new one: keys and numbers of queue pairs are used again
/// within it.
const RUNS_MAX: u32 = 1000;

/// What many runs share: a provider and memory. Each run leaves it as it found it.
pub(super) struct Stage {
    pub(super) engine: Rc<IwarpEngine>,
    pub(super) cq: Rc<dyn CompletionQueue>,
    /// The other process; `None` while a run has it.
    pub(super) peer: Option<Peer>,
    pd: Rc<dyn ProtectionDomain>,
    other_pd: Rc<dyn ProtectionDomain>,
    slab: Arc<Slab>,
    notices: Rc<Notices>,
    /// A queue pair of another connection.
    other: QpHandle,
    runs: u32,
}

thread_local! {
    static STAGE: Cell<Option<Stage>> = const { Cell::new(None) };
}

impl Stage {
    /// Gives a stage to `run`, then checks that nothing was left behind on it. One on which a run
    /// has failed is not used again.
    #[expect(clippy::expect_used, reason = "without a stage nothing is tested")]
    pub(super) fn with(run: impl FnOnce(&mut Self)) {
        let kept = STAGE.take().filter(|stage| stage.runs < RUNS_MAX);
        let mut stage = kept.unwrap_or_else(|| Self::new().expect("descriptors and memory"));
        run(&mut stage);
        stage.runs += 1;
        stage.check_and_restore();
        STAGE.set(Some(stage));
    }

    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let engine = IwarpEngine::new(Config::default(), attributes(&Config::default()))?;
        let slab = Slab::new(SLAB_BYTES, Pages::Ordinary)?;
        // SAFETY: the mapping has this length; nothing else knows it yet.
        unsafe { slab.base().as_ptr().copy_from(FILL.as_ptr(), SLAB_BYTES) };
        let cq = engine.create_cq(256)?;
        let notices = Notices::new()?;
        let pd = engine.allocate_pd()?;
        let link2cm = Link2Cm::new(&notices, CmId(2));
        let other = create_qp(&engine, &pd, &qp_config(&cq), link2cm)?;
        engine.attach(
            &other.cell,
            Link::Pipe(TestPipe::empty()),
            terms(Agreed::default()),
        );
        Ok(Self {
            cq,
            peer: Some(Peer::new()?),
            pd,
            other_pd: engine.allocate_pd()?,
            engine,
            slab,
            notices,
            other,
            runs: 0,
        })
    }

    /// Why the connection of the scene has ended, if it has.
    pub(super) fn cause(&self) -> Option<String> {
        std::iter::from_fn(|| self.notices.take())
            .filter(|(id, _)| *id == SCENE)
            .find_map(|(_, notice)| match notice {
                Notice::Disconnected { cause, .. } => Some(cause),
                Notice::FirstArrived => None,
            })
    }

    /// Makes the queue pair of the other connection busy.
    #[cfg(test)]
    pub(super) fn make_other_busy(&self) {
        self.engine.make_pipe_busy(&self.other.cell);
    }

    /// Compares everything between the opened pieces with its initial content, and restores these.
    fn check_and_restore(&self) {
        let base = self.slab.base().as_ptr();
        let mut from = 0;
        for (start, len) in OPENED.into_iter().chain([(SLAB_BYTES, 0)]) {
            // SAFETY: inside the mapping, which nothing writes any more.
            let now = unsafe { std::slice::from_raw_parts(base.wrapping_add(from), start - from) };
            assert!(
                now == &FILL[from..start],
                "bytes between {from} and {start}"
            );
            from = start + len;
            // SAFETY: as above; the slice has gone.
            unsafe {
                base.wrapping_add(start)
                    .copy_from(FILL[start..].as_ptr(), len);
            };
        }
        while self.notices.take().is_some() {}
        self.engine.lingering.clear();
        let left = self.engine.timed.borrow().len();
        assert_eq!(left, 0, "queue pairs that wait for a time and are gone");
    }
}

/// The connection of a scene.
const SCENE: CmId = CmId(1);

/// What the set-up of a connection agreed on.
#[derive(Clone, Copy, Default)]
pub(super) struct Agreed {
    pub(super) crc: bool,
    /// The first FPDU may be empty.
    pub(super) empty_fpdu: bool,
    /// This side may not send before it has received.
    pub(super) peer_first: bool,
}

/// A queue pair with memory in all states that matter.
pub(super) struct Scene {
    pub(super) qp: QpHandle,
    /// Where the peer may read.
    pub(super) readable: Sge,
    /// STags the stream can name.
    pub(super) stags: Vec<u32>,
    /// Addresses the stream can name.
    pub(super) addresses: Vec<u64>,
    /// Kept registered.
    _windows: Vec<Box<dyn MemoryWindow>>,
    _regions: Vec<Rc<dyn MemoryRegion>>,
}

impl Scene {
    /// A queue pair, connected by `link`.
    #[expect(clippy::expect_used, reason = "the work requests are good")]
    pub(super) fn new(stage: &mut Stage, link: Link, agreed: Agreed) -> Self {
        let Stage {
            engine,
            cq,
            pd,
            other_pd,
            slab,
            notices,
            other,
            ..
        } = stage;
        let link2cm = Link2Cm::new(notices, SCENE);
        let qp = create_qp(engine, pd, &qp_config(cq), link2cm);
        let mut qp = qp.expect("a queue pair");
        let local = Access::LOCAL_WRITE;
        let register = |pd: &Rc<dyn ProtectionDomain>, (at, len): (usize, usize), access| {
            pd.register(slab, at, len, access).expect("a region")
        };
        let regions = vec![
            register(pd, OPEN, local | Access::REMOTE_WRITE),
            register(pd, READABLE, Access::REMOTE_READ),
            register(pd, WINDOWED, local | Access::MW_BIND),
            register(pd, INBOX, local),
            register(pd, SINK, local),
            register(other_pd, FOREIGN, local | Access::REMOTE_WRITE),
        ];
        engine.attach(&qp.cell, link, terms(agreed));
        let mut stags: Vec<u32> = regions.iter().map(|r| r.rkey().0).collect();
        let mut windows = Vec::new();
        // Bound here, bound elsewhere, bound and invalidated, unbound.
        for state in 0..4 {
            let mut window = pd.allocate_window().expect("a window");
            let rkey = window.next_rkey();
            let bind = SendOp::BindWindow {
                rkey,
                lkey: regions[2].lkey(),
                addr: slab.addr() + WINDOW.0 as u64,
                len_bytes: WINDOW.1 as u64,
                access: Access::REMOTE_WRITE,
            };
            let ends: &[SendOp] = match state {
                2 => &[bind, SendOp::LocalInvalidate(rkey)],
                3 => &[],
                _ => &[bind],
            };
            let on = if state == 1 { &mut *other } else { &mut qp };
            for op in ends {
                on.post_send(&quiet(*op)).expect("room for a bind");
            }
            on.ring_doorbell();
            stags.push(rkey.0);
            windows.push(window);
        }
        post(&mut qp, &regions, slab.addr());
        let outstanding = |qp: &QpHandle| -> Vec<u32> {
            let qp = qp.cell.borrow();
            qp.core.reads.outstanding.iter().map(|r| r.stag).collect()
        };
        stags.extend(outstanding(&qp));
        stags.extend([0, 1, u32::MAX]);
        let base = slab.addr();
        let edges = [OPEN, READABLE, WINDOW, FOREIGN].map(|(at, len)| [at, at + len]);
        let mut addresses: Vec<u64> = edges.concat().iter().map(|at| base + *at as u64).collect();
        addresses.extend([0, 100, u64::MAX]);
        Self {
            qp,
            readable: part(base, regions[1].lkey(), READABLE.0, 0),
            stags,
            addresses,
            _windows: windows,
            _regions: regions,
        }
    }
}

fn qp_config(cq: &Rc<dyn CompletionQueue>) -> QpConfig {
    QpConfig {
        send_cq: Rc::clone(cq),
        recv_cq: Rc::clone(cq),
        send_wr_max: 16,
        receives: ReceiveSource::Own(16),
        send_sge_max: 2,
        recv_sge_max: 3,
        inline_bytes: 0,
    }
}

fn terms(agreed: Agreed) -> Terms {
    Terms {
        framing: Framing::Large,
        crc: agreed.crc,
        may_send: !agreed.peer_first,
        empty_fpdu: agreed.empty_fpdu,
        ord: 8,
        ird: 4,
    }
}

fn part(base: u64, lkey: LKey, at: usize, len_bytes: u32) -> Sge {
    Sge {
        addr: base + at as u64,
        len_bytes,
        lkey,
    }
}

/// Posts receives, and Reads that are outstanding when the stream starts.
#[expect(clippy::expect_used, reason = "the work requests are good")]
fn post(qp: &mut QpHandle, regions: &[Rc<dyn MemoryRegion>], base: u64) {
    let inbox = regions[3].lkey();
    let mut at = INBOX.0;
    for wr_id in 0..RECEIVES {
        let rest = RECEIVE_BYTES - 100;
        let mut sges = [
            part(base, inbox, at, 100),
            part(base, inbox, at + 100, 0),
            part(base, inbox, at + 100, rest),
        ];
        // Both ways: data is lent for the second.
        if wr_id % 2 == 0 {
            sges.swap(1, 2);
        }
        qp.post_recv(wr_id, &sges).expect("room for a receive");
        at += RECEIVE_BYTES as usize;
    }
    for (wr_id, len_bytes) in (FIRST_SEND..FIRST_SEND + READS).zip([0, 700, 6000]) {
        let from = Remote {
            addr: 0,
            rkey: RKey(9),
        };
        let wr = SendWr {
            wr_id,
            op: SendOp::Read(from),
            sges: &[part(base, regions[4].lkey(), READ_AT, len_bytes)],
            signaled: true,
            fence: false,
        };
        qp.post_send(&wr).expect("room for a read");
    }
    qp.ring_doorbell();
}

fn quiet(op: SendOp) -> SendWr<'static> {
    SendWr {
        wr_id: UNSIGNALED,
        op,
        sges: &[],
        signaled: false,
        fence: false,
    }
}
