//! The receive engine without a network, for fuzzing and its replay in tests.
//!
//! [`receive`] turns bytes of the fuzzer into a byte stream, feeds it to a queue pair as a socket
//! would, and checks what must hold whatever comes: nothing outside the memory opened to the peer
//! changes, and every work request completes exactly once.
#![expect(
    unsafe_code,
    reason = "stands in for a socket and looks at registered memory"
)]

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use capstan_memory::{Pages, Slab};
use zerocopy::IntoBytes;
use zerocopy::network_endian::{U16, U32, U64};

use super::cm::notice::{Link2Cm, Notices};
use super::config::Config;
use super::engine::{Engine, SetUp};
use super::qp::{Qp, QpHandle};
use super::socket::{Link, Piece, Transfer};
use super::tx::Framing;
use super::wire::crc::crc32c;
use super::wire::ddp::{Control, Opcode, ReadRequest, TaggedHeader, UntaggedHeader, pad_bytes};
use crate::contract::{
    Access, CmId, CompletionQueue, Device, LKey, MemoryRegion, MemoryWindow, ProtectionDomain,
    QpConfig, QpNum, QpState, QueuePair, RKey, ReceiveSource, Remote, SendOp, SendWr, Sge,
    WcOpcode, WcStatus, WorkCompletion,
};

/// Bytes to receive; what is sent is thrown away.
pub(super) struct MemoryLink {
    bytes: Vec<u8>,
    at: usize,
    /// Most bytes of one receive call.
    step: usize,
}

impl MemoryLink {
    /// # Safety
    /// As `Link::receive`.
    pub(super) unsafe fn receive(&mut self, pieces: &mut [Piece]) -> io::Result<Transfer> {
        let mut left = self.step.min(self.bytes.len() - self.at);
        if left == 0 {
            return Ok(Transfer::WouldBlock);
        }
        let mut moved = 0;
        for piece in pieces {
            let length = piece.len_bytes().min(left);
            let base = piece.end().wrapping_sub(piece.len_bytes());
            let from = self.bytes[self.at..self.at + length].as_ptr();
            // SAFETY: the caller answers for the piece; the source is this link's own memory.
            unsafe { std::ptr::copy_nonoverlapping(from, base, length) };
            self.at += length;
            left -= length;
            moved += length;
        }
        Ok(Transfer::Bytes(moved))
    }

    pub(super) fn send(pieces: &[Piece]) -> Transfer {
        Transfer::Bytes(pieces.iter().map(Piece::len_bytes).sum())
    }
}

/// Bytes that decide; zeros when they are used up.
struct Choices<'d>(&'d [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Mostly one of the interesting values, sometimes anything.
    fn pick(&mut self, values: &[u32]) -> u32 {
        let choice = self.byte();
        match values.get(usize::from(choice) % (values.len() + 1)) {
            Some(value) => *value,
            None => u32::from_be_bytes([choice, self.byte(), self.byte(), self.byte()]),
        }
    }
}

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

const RECEIVES: u64 = 6;
const RECEIVE_BYTES: u32 = 9000;
const READS: u64 = 3;

/// A queue pair with memory in all states that matter.
struct Scene {
    slab: Arc<Slab>,
    cq: Rc<dyn CompletionQueue>,
    qp: QpHandle,
    engine: Rc<Engine>,
    /// STags the stream can name.
    stags: Vec<u32>,
    /// Addresses the stream can name.
    addresses: Vec<u64>,
    /// Kept registered.
    _regions: Vec<Rc<dyn MemoryRegion>>,
    _windows: Vec<Box<dyn MemoryWindow>>,
    _foreign: Rc<dyn ProtectionDomain>,
}

/// What the slab holds at first.
static FILL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    (0..SLAB_BYTES)
        .map(|at| at.to_le_bytes()[0] ^ 0x5a)
        .collect()
});

/// What the peer may change: start and length, in ascending order.
const OPENED: [(usize, usize); 4] = [
    OPEN,
    WINDOW,
    (INBOX.0, 6 * RECEIVE_BYTES as usize),
    (READ_AT, 6000),
];
const _: () = assert!(RECEIVES == 6 && INBOX.1 >= 6 * RECEIVE_BYTES as usize);

impl Scene {
    fn new(crc: bool, empty_fpdu: bool) -> Option<Self> {
        let engine = Engine::new(Config::default()).ok()?;
        let pd = engine.allocate_pd().ok()?;
        let other_pd = engine.allocate_pd().ok()?;
        let slab = Slab::new(SLAB_BYTES, Pages::Ordinary).ok()?;
        // SAFETY: the mapping has this length; nobody else knows it yet.
        unsafe { slab.base().as_ptr().copy_from(FILL.as_ptr(), SLAB_BYTES) };
        let cq = engine.create_cq(256).ok()?;
        let config = QpConfig {
            send_cq: Rc::clone(&cq),
            recv_cq: Rc::clone(&cq),
            send_wr_max: 16,
            receives: ReceiveSource::Own(16),
            send_sge_max: 2,
            recv_sge_max: 3,
        };
        let notices = Notices::new().ok()?;
        let cm = || Link2Cm::new(&notices, CmId(1));
        let mut qp = engine.create_qp(&pd, &config, cm()).ok()?;
        let mut other = engine.create_qp(&pd, &config, cm()).ok()?;
        let local = Access::LOCAL_WRITE;
        let register = |pd: &Rc<dyn ProtectionDomain>, (at, len): (usize, usize), access| {
            pd.register(&slab, at, len, access).ok()
        };
        let regions = vec![
            register(&pd, OPEN, local | Access::REMOTE_WRITE)?,
            register(&pd, READABLE, Access::REMOTE_READ)?,
            register(&pd, WINDOWED, local | Access::MW_BIND)?,
            register(&pd, INBOX, local)?,
            register(&pd, SINK, local)?,
            register(&other_pd, FOREIGN, local | Access::REMOTE_WRITE)?,
        ];
        for handle in [&mut qp, &mut other] {
            handle.attach_memory(&engine, Vec::new(), 1, crc, empty_fpdu);
        }
        let mut stags: Vec<u32> = regions.iter().map(|r| r.rkey().0).collect();
        let mut windows = Vec::new();
        // Bound here, bound elsewhere, bound and invalidated, unbound.
        for state in 0..4 {
            let mut window = pd.allocate_window().ok()?;
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
            let on = if state == 1 { &mut other } else { &mut qp };
            for op in ends {
                on.post_send(&quiet(*op)).ok()?;
            }
            on.ring_doorbell();
            stags.push(rkey.0);
            windows.push(window);
        }
        drop(other);
        Self::post(&mut qp, &regions, slab.addr())?;
        let reads: Vec<u32> = {
            let qp = qp.cell.borrow();
            qp.reads.outstanding.iter().map(|r| r.stag).collect()
        };
        stags.extend(reads);
        stags.extend([0, 1, u32::MAX]);
        let base = slab.addr();
        let edges = [OPEN, READABLE, WINDOW, FOREIGN].map(|(at, len)| [at, at + len]);
        let mut addresses: Vec<u64> = edges.concat().iter().map(|at| base + *at as u64).collect();
        addresses.extend([0, 100, u64::MAX]);
        Some(Self {
            slab,
            cq,
            qp,
            engine,
            stags,
            addresses,
            _regions: regions,
            _windows: windows,
            _foreign: other_pd,
        })
    }

    /// Posts receives, and Reads that are outstanding when the stream starts.
    fn post(qp: &mut QpHandle, regions: &[Rc<dyn MemoryRegion>], base: u64) -> Option<()> {
        let part = |lkey: LKey, at: usize, len_bytes: u32| Sge {
            addr: base + at as u64,
            len_bytes,
            lkey,
        };
        let inbox = regions[3].lkey();
        for wr_id in 0..RECEIVES {
            let at = INBOX.0 + usize::try_from(wr_id).ok()? * RECEIVE_BYTES as usize;
            let rest = RECEIVE_BYTES - 100;
            let sges = [
                part(inbox, at, 100),
                part(inbox, at + 100, 0),
                part(inbox, at + 100, rest),
            ];
            qp.post_recv(wr_id, &sges).ok()?;
        }
        for wr_id in 0..READS {
            let len_bytes = [0, 700, 6000].get(usize::try_from(wr_id).ok()?).copied()?;
            let sges = [part(regions[4].lkey(), READ_AT, len_bytes)];
            let from = Remote {
                addr: 0,
                rkey: RKey(9),
            };
            let wr = SendWr {
                wr_id: 100 + wr_id,
                op: SendOp::Read(from),
                sges: &sges,
                signaled: true,
                fence: false,
            };
            qp.post_send(&wr).ok()?;
        }
        qp.ring_doorbell();
        Some(())
    }

    /// Compares everything between the opened pieces with what it was.
    fn check_closed(&self) {
        // SAFETY: the mapping has this length; nothing moves any more.
        let now = unsafe { std::slice::from_raw_parts(self.slab.base().as_ptr(), SLAB_BYTES) };
        let mut from = 0;
        for (start, len) in OPENED.into_iter().chain([(SLAB_BYTES, 0)]) {
            assert!(
                now[from..start] == FILL[from..start],
                "bytes between {from} and {start}"
            );
            from = start + len;
        }
    }
}

impl QpHandle {
    fn attach_memory(
        &self,
        engine: &Engine,
        bytes: Vec<u8>,
        step: usize,
        crc: bool,
        empty_fpdu: bool,
    ) {
        let link = MemoryLink { bytes, at: 0, step };
        let set_up = SetUp {
            link: Link::Memory(link),
            framing: Framing::Large,
            crc,
            may_send: true,
            empty_fpdu,
            ord: 8,
            ird: 4,
        };
        engine.attach(&self.cell, set_up);
    }
}

fn quiet(op: SendOp) -> SendWr<'static> {
    SendWr {
        wr_id: 0,
        op,
        sges: &[],
        signaled: false,
        fence: false,
    }
}

/// Builds a stream out of choices.
fn stream(choices: &mut Choices<'_>, scene: &Scene, crc: bool, length_max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut send_msn, mut read_msn, mut mo) = (1, 1, 0);
    while !choices.0.is_empty() && bytes.len() < length_max {
        let kind = choices.byte();
        if kind >= 0xf0 {
            // Anything at all.
            let length = usize::from(kind & 0x0f) * 4;
            bytes.extend((0..length).map(|_| choices.byte()));
            continue;
        }
        let last = !choices.byte().is_multiple_of(4);
        let length = match choices.byte() % 8 {
            0 => 0,
            1 => 700,
            2 => 6000,
            3 => choices.word() % 9500,
            4 => 40_000,
            n => u16::from(n) * 40 + u16::from(choices.byte()),
        };
        let opcode = Opcode(kind % 8);
        let stag = choices.pick(&scene.stags);
        let at = scene.addresses[usize::from(choices.byte()) % scene.addresses.len()];
        let to = at
            .wrapping_add(u64::from(choices.word() % 9000))
            .wrapping_sub(500);
        let tagged = opcode == Opcode::RDMA_WRITE || opcode == Opcode::READ_RESPONSE;
        let odd = kind & 0x40 != 0 && choices.byte().is_multiple_of(16);
        let control = Control::new(tagged != odd, last, opcode);
        let mut fpdu = Vec::new();
        let mut ulpdu_length = 0_usize;
        if tagged {
            let to = if opcode == Opcode::READ_RESPONSE && !choices.byte().is_multiple_of(8) {
                u64::from(mo)
            } else {
                to
            };
            let header = TaggedHeader {
                ulpdu_length: U16::ZERO,
                control,
                stag: U32::new(stag),
                to: U64::new(to),
            };
            fpdu.extend_from_slice(header.as_bytes());
            ulpdu_length += usize::from(length);
        } else {
            let (qn, msn) = match opcode {
                Opcode::READ_REQUEST => (1, read_msn),
                Opcode::TERMINATE => (2, 1),
                _ => (0, send_msn),
            };
            let header = UntaggedHeader {
                ulpdu_length: U16::ZERO,
                control,
                invalidate_stag: U32::new(stag),
                qn: U32::new(choices.pick(&[qn, qn, qn, qn, qn, qn, qn])),
                msn: U32::new(choices.pick(&[msn, msn, msn, msn, msn, msn, msn])),
                mo: U32::new(choices.pick(&[mo, mo, mo, 0, 0, 0, 0])),
            };
            fpdu.extend_from_slice(header.as_bytes());
            if opcode == Opcode::READ_REQUEST {
                let request = ReadRequest {
                    sink_stag: U32::new(stag),
                    sink_to: U64::new(to),
                    length_bytes: U32::new(u32::from(length)),
                    source_stag: U32::new(choices.pick(&scene.stags)),
                    source_to: U64::new(to),
                };
                fpdu.extend_from_slice(request.as_bytes());
                read_msn += 1;
            } else if opcode == Opcode::TERMINATE {
                ulpdu_length += usize::from(length % 60);
            } else {
                ulpdu_length += usize::from(length);
                send_msn += u32::from(last);
            }
        }
        mo = if last || opcode == Opcode::READ_REQUEST {
            0
        } else {
            mo + u32::from(length)
        };
        fpdu.resize(fpdu.len() + ulpdu_length, kind);
        let length = u16::try_from(fpdu.len() - 2).unwrap_or(u16::MAX);
        fpdu[..2].copy_from_slice(&length.to_be_bytes());
        fpdu.resize(fpdu.len() + pad_bytes(fpdu.len()), 0);
        let value = if crc { crc32c(&fpdu) } else { 0 };
        fpdu.extend_from_slice(&value.to_le_bytes());
        bytes.extend(fpdu);
    }
    bytes
}

fn blank() -> WorkCompletion {
    WorkCompletion {
        wr_id: 0,
        qp: QpNum(0),
        status: WcStatus::Success,
        opcode: WcOpcode::Send,
        byte_len: 0,
        invalidated: None,
    }
}

/// Feeds a stream made out of `data` to a queue pair.
///
/// # Panics
/// When a rule is broken.
pub fn receive(data: &[u8]) {
    let mut choices = Choices(data);
    let flags = choices.byte();
    let (crc, empty_fpdu) = (flags & 1 != 0, flags & 2 != 0);
    let steps = [1, 7, 64, 1460, 4096, 16_384, 65_536, 1 << 20];
    let step = steps[usize::from(flags >> 5)];
    let Some(scene) = Scene::new(crc, empty_fpdu) else {
        // Out of descriptors or memory: nothing to say about the engine.
        return;
    };
    // Small steps are for short streams, or an execution takes too long.
    let bytes = stream(&mut choices, &scene, crc, (step * 500).min(200_000));
    let turns = bytes.len() / step + 32;
    replace_link(&scene.qp.cell, bytes, step);
    let mut out = [blank(); 16];
    let (mut receives, mut reads) = (0, 0);
    let mut ended = false;
    for turn in 0..turns {
        if turn % 16 == 0 {
            // An idle queue pair is not asked again by itself.
            scene.engine.heat_memory(&scene.qp.cell);
        }
        let count = scene.cq.poll(&mut out);
        if count == 0 && scene.qp.state() == QpState::Error {
            break;
        }
        for done in &out[..count] {
            if done.wr_id < RECEIVES {
                assert_eq!(done.wr_id, receives, "receives complete in order, once");
                receives += 1;
                let fits = done.status != WcStatus::Success || done.byte_len <= RECEIVE_BYTES;
                assert!(fits, "{done:?}");
            } else {
                assert_eq!(done.wr_id, 100 + reads, "reads complete in order, once");
                reads += 1;
            }
            assert!(
                !ended || done.status != WcStatus::Success,
                "success after the end: {done:?}"
            );
            ended |= done.status != WcStatus::Success;
        }
    }
    if scene.qp.state() == QpState::Error {
        assert_eq!(
            (receives, reads),
            (RECEIVES, READS),
            "everything is flushed at the end"
        );
    }
    scene.check_closed();
}

fn replace_link(cell: &RefCell<Qp>, bytes: Vec<u8>, step: usize) {
    let link = MemoryLink { bytes, at: 0, step };
    cell.borrow_mut().link = Some(Link::Memory(link));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn nothing_outside_the_open_memory_changes(data in prop::collection::vec(any::<u8>(), 0..400)) {
            super::receive(&data);
        }
    }
}
