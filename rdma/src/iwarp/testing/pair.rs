//! Two cores, a pipe in each direction, and a clock of our own: what a connection does whatever the
//! delays, wherever the stream is cut, and whenever it ends. No socket and no sleep.
#![expect(unsafe_code, reason = "moves bytes from and to pieces, as a link does")]

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use capstan_memory::{Pages, Slab};
use proptest::prelude::*;

use crate::contract::{
    Access, LKey, QpNum, QpState, RKey, Remote, SendOp, SendWr, Sge, WcOpcode, WcStatus,
    WorkCompletion,
};
use crate::iwarp::completions::CompletionRing;
use crate::iwarp::core::rx::Received;
use crate::iwarp::core::tx::Framing;
use crate::iwarp::core::{CoreConfig, IwarpCore, RunOutcome, Terms};
use crate::iwarp::fatal::Fatal;
use crate::iwarp::piece::Piece;
use crate::iwarp::receives::{ReceiveRing, Receives};
use crate::iwarp::sq::SendQueue;
use crate::iwarp::stag::{Asker, Span, StagTable};

const PD: u32 = 1;
/// Longest message: more than an FPDU holds.
const MESSAGE_BYTES: usize = 100_000;
/// What is sent lies first, then what the peer writes and reads, then what comes.
const AREAS: usize = 4;
const SLAB_BYTES: usize = AREAS << 17;
const NOT_READY_MS: u64 = 10_000;
const RECEIVES: u32 = 8;

/// What a side has sent and the other has not received.
#[derive(Default)]
struct Pipe {
    /// When the bytes are there.
    chunks: VecDeque<(u64, Vec<u8>)>,
    /// Bytes after which the stream ends, if it is to be cut.
    cut_after: Option<usize>,
    /// No more bytes come, from this time on.
    ended_us: Option<u64>,
}

impl Pipe {
    fn push(&mut self, due_us: u64, mut bytes: Vec<u8>) {
        if self.ended_us.is_some() {
            return;
        }
        if let Some(left) = &mut self.cut_after {
            bytes.truncate(*left);
            *left -= bytes.len();
            if *left == 0 {
                self.ended_us = Some(due_us);
            }
        }
        if !bytes.is_empty() {
            self.chunks.push_back((due_us, bytes));
        }
    }

    fn due_us(&self) -> Option<u64> {
        let chunk = self.chunks.front().map(|chunk| chunk.0);
        chunk.or(self.ended_us)
    }

    /// The next bytes, at most `max`; empty at the end of the stream, `None` before it.
    fn take(&mut self, now_us: u64, max: usize) -> Option<Vec<u8>> {
        match self.chunks.front_mut() {
            Some((due_us, bytes)) if *due_us <= now_us => {
                let rest = bytes.split_off(bytes.len().min(max));
                let taken = std::mem::replace(bytes, rest);
                if bytes.is_empty() {
                    self.chunks.pop_front();
                }
                Some(taken)
            }
            Some(_) => None,
            None => (self.ended_us? <= now_us).then(Vec::new),
        }
    }
}

struct Side {
    core: IwarpCore,
    stags: StagTable,
    cq: Rc<CompletionRing>,
    slab: Arc<Slab>,
    stag: u32,
    /// What ended the connection, as words.
    cause: Option<String>,
    /// Completions so far.
    done: Vec<WorkCompletion>,
    /// How often the first FPDU has come.
    begun: u32,
}

impl Side {
    fn new(terms: Terms) -> Self {
        let slab = Slab::new(SLAB_BYTES, Pages::Ordinary).unwrap();
        let mut stags = StagTable::new();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let stag = stags.register(&slab, 0, SLAB_BYTES, all, PD).unwrap();
        let cq = Rc::new(CompletionRing::new(64).unwrap());
        let mut core = IwarpCore::new(CoreConfig {
            num: QpNum(1),
            asker: Asker { pd: PD, qp: 1 },
            sq: SendQueue::new(16, 1),
            receives: Receives::Own(ReceiveRing::new(RECEIVES, 1)),
            read_sink: stags.allocate_read_sink().unwrap(),
            send_cq: Rc::clone(&cq),
            recv_cq: Rc::clone(&cq),
            not_ready_timeout_ms: NOT_READY_MS,
        });
        core.handle_connected(terms, 1460);
        Self {
            core,
            stags,
            cq,
            slab,
            stag,
            cause: None,
            done: Vec::new(),
            begun: 0,
        }
    }

    fn sge(&self, area: usize, len_bytes: usize) -> Sge {
        Sge {
            addr: self.slab.addr() + ((area << 17) as u64),
            len_bytes: u32::try_from(len_bytes).unwrap(),
            lkey: LKey(self.stag),
        }
    }

    fn remote(&self, area: usize) -> Remote {
        Remote {
            addr: self.sge(area, 0).addr,
            rkey: RKey(self.stag),
        }
    }

    fn span(&self, area: usize, len_bytes: usize) -> Span<'_> {
        let start = area << 17;
        Span::of_slab(&self.slab, &(start..start + len_bytes)).unwrap()
    }

    fn content(&self, area: usize, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        self.span(area, len_bytes).copy_to(&mut bytes);
        bytes
    }

    fn post_recv(&mut self, wr_id: u64, len_bytes: usize) {
        let sge = self.sge(3, len_bytes);
        let Receives::Own(ring) = &mut self.core.receives else {
            panic!("the receives are its own")
        };
        ring.post(&self.stags, PD, wr_id, &[sge]).unwrap();
    }

    fn post(&mut self, wr_id: u64, op: SendOp, sge: Sge) {
        let wr = SendWr {
            wr_id,
            op,
            sges: &[sge],
            signaled: true,
            fence: false,
        };
        self.core.sq.check_room().unwrap();
        self.core.sq.push(&wr, sge.len_bytes);
        self.core.sq.ring();
        self.core.tx.wanted = true;
    }

    /// Receives what `pipe` has now, `step` bytes at a time.
    fn receive(&mut self, pipe: &mut Pipe, now_us: u64, step: usize) -> Result<Received, Fatal> {
        let core = &mut self.core;
        let mut received = Received::Nothing;
        while core.handle_buffered(&mut self.stags)? {
            let pieces = core.poll_receive(&self.stags)?;
            let room: usize = pieces.iter().map(Piece::len_bytes).sum();
            let Some(bytes) = pipe.take(now_us, room.min(step)) else {
                return Ok(received);
            };
            let mut from = bytes.as_slice();
            for piece in pieces {
                let (now, later) = from.split_at(from.len().min(piece.len_bytes()));
                // SAFETY: the core has just said that this may be written.
                unsafe { piece.base().copy_from(now.as_ptr(), now.len()) };
                from = later;
            }
            received = core.handle_received(&self.stags, bytes.len())?;
        }
        Ok(Received::Stalled)
    }

    /// Hands what is to be sent to `pipe`, `step` bytes at a time.
    fn transmit(&mut self, pipe: &mut Pipe, due_us: u64, step: usize) -> Result<(), Fatal> {
        let core = &mut self.core;
        loop {
            let built = core.poll_transmit(&mut self.stags);
            if let Ok(false) = built {
                return Ok(());
            }
            while core.tx.has_unsent() {
                let piece = core.tx.unsent()[0];
                let length = piece.len_bytes().min(step);
                // SAFETY: what the pieces point into is mapped (`Tx::unsent`).
                let bytes = unsafe { std::slice::from_raw_parts(piece.base(), length) };
                pipe.push(due_us, bytes.to_vec());
                core.tx.handle_sent(length, 1);
            }
            core.handle_flushed(true);
            built?;
        }
    }

    /// What a driver does in one run.
    fn run(
        &mut self,
        from: &mut Pipe,
        to: &mut Pipe,
        now_us: u64,
        delivery: &Delivery,
    ) -> Result<(), Fatal> {
        self.core.begin_receive();
        let received = self.receive(from, now_us, delivery.step);
        self.core.end_receive();
        self.begun += u32::from(self.core.poll_begun());
        let received = received?;
        self.core.handle_timeout(now_us)?;
        let before = self.core.tx.sent();
        self.core.begin_transmit();
        let sent = self.transmit(to, now_us + delivery.delay_us, delivery.step);
        self.core.end_transmit();
        sent?;
        let ran = self.core.ran(received, self.core.tx.sent() != before);
        assert!(ran != RunOutcome::NotReady || self.core.poll_timeout().is_some());
        Ok(())
    }
}

/// How bytes go.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    delay_us: u64,
    /// Most bytes at a time.
    step: usize,
}

struct Pair {
    sides: [Side; 2],
    /// What each has sent.
    pipes: [Pipe; 2],
    delivery: Delivery,
    now_us: u64,
}

impl Pair {
    fn new(crc: bool, framing: Framing, delivery: Delivery) -> Self {
        let side = |may_send| {
            Side::new(Terms {
                framing,
                crc,
                may_send,
                empty_fpdu: false,
                ord: 2,
                ird: 2,
            })
        };
        Self {
            // The listening side may not send first.
            sides: [side(true), side(false)],
            pipes: Default::default(),
            delivery,
            now_us: 0,
        }
    }

    /// Runs both sides until nothing moves any more, and lets no time pass without need.
    fn run(&mut self) {
        self.run_until(u64::MAX);
    }

    fn run_until(&mut self, end_us: u64) {
        for _ in 0..100_000 {
            for n in 0..2 {
                self.run_side(n);
            }
            let pipes = self.pipes.iter().enumerate();
            // Bytes for a side that has ended, or that it cannot take now, are nothing to wait for.
            let bytes = pipes.filter_map(|(n, pipe)| {
                let reader = &self.sides[1 - n];
                let reads = reader.cause.is_none() && !reader.core.rx.stalled;
                pipe.due_us().filter(|_| reads)
            });
            let timeouts = self.sides.iter().filter(|side| side.cause.is_none());
            let timeouts = timeouts.filter_map(|side| side.core.poll_timeout());
            let Some(next_us) = bytes.chain(timeouts).min() else {
                return;
            };
            if next_us > end_us {
                return;
            }
            self.now_us = self.now_us.max(next_us);
        }
        panic!("it goes on for ever");
    }

    fn run_side(&mut self, n: usize) {
        let [first, second] = &mut self.pipes;
        let (from, to) = if n == 0 {
            (second, first)
        } else {
            (first, second)
        };
        let side = &mut self.sides[n];
        if side.cause.is_some() {
            return;
        }
        if let Err(fatal) = side.run(from, to, self.now_us, &self.delivery) {
            let last = side.core.handle_end(&fatal);
            side.cause = Some(fatal.to_string());
            let due_us = self.now_us + self.delivery.delay_us;
            to.push(due_us, last);
            to.ended_us.get_or_insert(due_us);
        }
        let mut out = [WorkCompletion::EMPTY; 64];
        let count = side.cq.take(&mut out);
        side.done.extend_from_slice(&out[..count]);
    }

    /// A Send, an RDMA WRITE, an RDMA READ, and another Send, of `len_bytes` each.
    fn post_all(&mut self, len_bytes: usize) {
        let [host, target] = &mut self.sides;
        host.span(0, len_bytes).copy_from(&pattern(7, len_bytes));
        target.span(2, len_bytes).copy_from(&pattern(9, len_bytes));
        for wr_id in 0..2 {
            target.post_recv(wr_id, MESSAGE_BYTES);
        }
        let source = host.sge(0, len_bytes);
        let send = SendOp::Send {
            invalidate: None,
            solicited: false,
        };
        host.post(10, send, source);
        host.post(11, SendOp::Write(target.remote(1)), source);
        host.post(12, SendOp::Read(target.remote(2)), host.sge(1, len_bytes));
        host.post(13, send, source);
    }
}

/// Bytes that no other place has.
fn pattern(seed: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes)
        .map(|n| (n.wrapping_mul(seed) ^ (n >> 8)).to_le_bytes()[0])
        .collect()
}

fn statuses(side: &Side, sends: bool) -> Vec<(u64, WcStatus)> {
    let of = side.done.iter();
    let of = of.filter(|done| (done.opcode == WcOpcode::Recv) != sends);
    of.map(|done| (done.wr_id, done.status)).collect()
}

fn deliveries() -> impl Strategy<Value = (bool, Framing, Delivery, usize)> {
    let framing = prop_oneof![
        Just(Framing::Large),
        Just(Framing::Segment),
        Just(Framing::Aligned)
    ];
    let steps = prop_oneof![Just(13_usize), 100..3000_usize, Just(1 << 20)];
    let lengths = prop_oneof![Just(0_usize), 1..300_usize, 1..MESSAGE_BYTES];
    (any::<bool>(), framing, 0..5_000_u64, steps, lengths).prop_map(
        |(crc, framing, delay_us, step, len_bytes)| {
            (crc, framing, Delivery { delay_us, step }, len_bytes)
        },
    )
}

const SUCCESS: WcStatus = WcStatus::Success;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn everything_arrives_whole_whatever_the_delays_and_cuts((crc, framing, delivery, len) in deliveries()) {
        let mut pair = Pair::new(crc, framing, delivery);
        pair.post_all(len);
        pair.run();
        let [host, target] = &pair.sides;
        prop_assert_eq!((&host.cause, &target.cause), (&None, &None));
        prop_assert_eq!(
            statuses(host, true),
            [(10, SUCCESS), (11, SUCCESS), (12, SUCCESS), (13, SUCCESS)]
        );
        prop_assert_eq!(statuses(target, false), [(0, SUCCESS), (1, SUCCESS)]);
        prop_assert_eq!(target.content(3, len), pattern(7, len), "sent");
        prop_assert_eq!(target.content(1, len), pattern(7, len), "written");
        prop_assert_eq!(host.content(1, len), pattern(9, len), "read");
        prop_assert_eq!((host.begun, target.begun), (1, 1));
    }

    /// The stream of one side ends after any byte, in order or not: both sides find out, nothing
    /// completes twice, and what did not get through completes as flushed.
    #[test]
    fn an_end_anywhere_completes_everything_once(
        (crc, framing, delivery, len) in deliveries(),
        by_host in any::<bool>(),
        after in any::<prop::sample::Index>(),
    ) {
        // How many bytes there are to cut.
        let mut whole = Pair::new(crc, framing, delivery);
        whole.post_all(len);
        whole.run();
        let cut = usize::from(!by_host);
        let sent = usize::try_from(whole.sides[cut].core.tx.sent()).unwrap();
        let mut pair = Pair::new(crc, framing, delivery);
        pair.pipes[cut].cut_after = Some(1 + after.index(sent));
        pair.post_all(len);
        pair.run();
        let other = pair.sides[1 - cut].cause.clone().unwrap_or_default();
        prop_assert!(other.starts_with("closed by the peer"), "{}", other);
        let [host, target] = &pair.sides;
        for side in [host, target] {
            prop_assert_eq!(side.core.state, QpState::Error);
            prop_assert!(side.cause.is_some());
        }
        let (sends, receives) = (statuses(host, true), statuses(target, false));
        let ids = |list: &[(u64, WcStatus)]| list.iter().map(|done| done.0).collect::<Vec<_>>();
        prop_assert_eq!(ids(&sends), [10, 11, 12, 13]);
        prop_assert_eq!(ids(&receives), [0, 1]);
        for list in [sends, receives] {
            // Success comes first.
            prop_assert!(list.is_sorted_by_key(|done| done.1 != SUCCESS), "{:?}", list);
        }
    }
}

const FAST: Delivery = Delivery {
    delay_us: 50,
    step: 1 << 20,
};

/// The listening side may not send before the first FPDU has come (RFC 5044 §7.1.2).
#[test]
fn the_listening_side_waits_for_the_first_fpdu() {
    let mut pair = Pair::new(true, Framing::Large, FAST);
    let send = SendOp::Send {
        invalidate: None,
        solicited: false,
    };
    let [host, target] = &mut pair.sides;
    host.post_recv(0, 100);
    target.post(10, send, target.sge(0, 100));
    pair.run();
    assert_eq!(pair.sides[1].core.tx.sent(), 0);
    pair.sides[0].core.tx.add_empty_write();
    pair.run();
    assert_eq!(statuses(&pair.sides[0], false), [(0, SUCCESS)]);
    assert_eq!(pair.sides[1].begun, 1);
    assert_eq!(pair.now_us, 2 * FAST.delay_us, "one round trip");
}

/// A Send that finds no receive is placed once there is one, and ends the connection when there is
/// none in time: neither a moment earlier nor later.
#[test]
fn a_send_waits_for_a_receive_as_long_as_was_configured() {
    for posted in [true, false] {
        let mut pair = Pair::new(true, Framing::Large, FAST);
        let send = SendOp::Send {
            invalidate: None,
            solicited: false,
        };
        let [host, target] = &mut pair.sides;
        target.post(10, send, target.sge(0, 100));
        host.core.tx.add_empty_write();
        let began_us = 2 * FAST.delay_us;
        let last_us = began_us + NOT_READY_MS * 1000 - 1;
        pair.run_until(last_us);
        assert_eq!(pair.sides[0].cause, None);
        if posted {
            pair.now_us = last_us;
            pair.sides[0].post_recv(0, 100);
            pair.run();
            assert_eq!(statuses(&pair.sides[0], false), [(0, SUCCESS)]);
            assert_eq!(pair.sides[0].cause, None);
            continue;
        }
        pair.run();
        assert_eq!(pair.now_us, last_us + 1 + FAST.delay_us);
        let causes = pair.sides.map(|side| side.cause.unwrap_or_default());
        assert!(causes[0].contains("waited 10000 ms"), "{causes:?}");
        assert!(
            causes[1].starts_with("terminated by the peer"),
            "{causes:?}"
        );
    }
}

/// A peer that does not look at what came with the set-up is reminded, for five seconds.
#[test]
fn a_peer_that_sends_nothing_is_reminded_eight_times() {
    let mut pair = Pair::new(true, Framing::Large, FAST);
    let host = &mut pair.sides[0];
    let send = SendOp::Send {
        invalidate: None,
        solicited: false,
    };
    host.post(10, send, host.sge(0, 64));
    host.core.start_reminders(0);
    // It neither receives nor sends.
    pair.sides[1].cause = Some("looks at nothing".into());
    pair.run();
    assert_eq!(pair.now_us, 20_000 * ((1 << 8) - 1), "the last one");
    let times: Vec<u64> = pair.pipes[0].chunks.iter().map(|chunk| chunk.0).collect();
    let after = |n: u32| 20_000 * ((1 << n) - 1) + FAST.delay_us;
    assert_eq!(times, (0..=8).map(after).collect::<Vec<u64>>());
    assert_eq!(pair.sides[0].core.poll_timeout(), None);
}
