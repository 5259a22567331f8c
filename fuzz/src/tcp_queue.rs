//! A queue of NVMe/TCP on either side: what both targets do with it, whatever its peer sends.

use capstan_memory::{Buffer, Pool, RawBytes};
use capstan_nvme_proto::tcp::digest::crc32c;
use capstan_nvme_proto::tcp::setup::{DataAlignment, Digests, IcRequest};
use capstan_nvme_proto::tcp::writer::PduHead;
use capstan_transport::tcp::link::StreamQueue;

/// Memory of one run.
pub(crate) const POOL_BYTES: usize = 4 << 20;
/// Operations of one input.
pub(crate) const OPERATIONS_MAX: usize = 500;
/// Data of one command at most.
pub(crate) const TRANSFER_MAX_BYTES: u32 = 256 * 1024;
/// Bytes behind a sink, which stay as they are.
const BEHIND_BYTES: u32 = 64;
/// What memory holds before data lands there.
const BEFORE: u8 = 0xEE;

/// What a host asks for, by one byte.
pub(crate) fn request(config: u8) -> IcRequest {
    IcRequest {
        hpda: DataAlignment::from_wire(config >> 2 & 0b111).expect("an alignment"),
        digests: Digests::from_bits_truncate(config),
        maxr2t: [1, 2, 16, 64][usize::from(config >> 5 & 0b11)],
    }
}

/// A buffer that a queue has: its address and length, the bytes that may land in it, and whose it
/// is.
struct Given {
    address: u64,
    len_bytes: u32,
    lands_bytes: u32,
    owner: u16,
}

/// The buffers that a queue has.
#[derive(Default)]
pub(crate) struct Memory(Vec<Given>);

impl Memory {
    /// A buffer for `lands_bytes` of data of the peer, to be given to the queue.
    pub(crate) fn sink(&mut self, pool: &Pool, owner: u16, lands_bytes: u32) -> Option<Buffer> {
        let mut buffer = pool.take(lands_bytes + BEHIND_BYTES)?;
        buffer.copy_from(lands_bytes as usize, &[BEFORE; BEHIND_BYTES as usize]);
        self.give(&buffer, owner, lands_bytes);
        Some(buffer)
    }

    /// A buffer with `len_bytes` of `fill`, to be given to the queue.
    pub(crate) fn source(
        &mut self,
        pool: &Pool,
        owner: u16,
        len_bytes: u32,
        fill: u8,
    ) -> Option<Buffer> {
        let mut buffer = pool.take(len_bytes + BEHIND_BYTES)?;
        buffer.copy_from(0, &vec![fill; len_bytes as usize]);
        buffer.copy_from(len_bytes as usize, &[BEFORE; BEHIND_BYTES as usize]);
        self.give(&buffer, owner, 0);
        Some(buffer)
    }

    fn give(&mut self, buffer: &Buffer, owner: u16, lands_bytes: u32) {
        self.0.push(Given {
            address: buffer.addr(),
            len_bytes: buffer.len_bytes(),
            lands_bytes,
            owner,
        });
    }

    /// The queue gives a buffer back, or has not taken it: it had it, of that owner, and nothing
    /// was written behind what may land there.
    pub(crate) fn back(&mut self, buffer: &Buffer, owner: u16) {
        let place = self.0.iter().position(|g| g.address == buffer.addr());
        let given = self
            .0
            .swap_remove(place.expect("a buffer that the queue had"));
        assert_eq!((given.owner, given.len_bytes), (owner, buffer.len_bytes()));
        let mut behind = [0; BEHIND_BYTES as usize];
        buffer.copy_to((given.len_bytes - BEHIND_BYTES) as usize, &mut behind);
        assert_eq!(
            behind, [BEFORE; BEHIND_BYTES as usize],
            "written behind its sink"
        );
    }

    /// The queue has copied the buffer of that owner, and let go of it.
    pub(crate) fn copied(&mut self, owner: u16) {
        let place = self.0.iter().rposition(|given| given.owner == owner);
        self.0.remove(place.expect("a buffer that was given"));
    }

    /// Whether the queue has no buffer.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn is_place(&self, address: u64, len_bytes: usize) -> bool {
        let end = address + len_bytes as u64;
        self.0.iter().any(|given| {
            given.address <= address && end <= given.address + u64::from(given.lands_bytes)
        })
    }
}

/// Hands `bytes` to the queue in pieces, as a socket does: what has a place of its own arrives
/// there, which is counted only, and the rest elsewhere.
pub(crate) fn deliver(
    queue: &mut impl StreamQueue,
    memory: &Memory,
    bytes: &[u8],
    piece_bytes: usize,
    now_us: u64,
) {
    for mut piece in bytes.chunks(piece_bytes.max(1)) {
        if let Some(place) = queue.place() {
            let address = place.base.as_ptr().addr() as u64;
            assert!(place.len_bytes > 0 && place.len_bytes <= queue.due_bytes());
            assert!(
                memory.is_place(address, place.len_bytes),
                "outside of sinks"
            );
            let direct = piece.len().min(place.len_bytes);
            queue.landed(direct, now_us);
            piece = &piece[direct..];
        }
        queue.handle_bytes(piece, now_us);
    }
}

/// What a queue has to send: so many bytes, so many of them in buffers, and the first of them.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    pub(crate) total_bytes: usize,
    pub(crate) in_buffers_bytes: usize,
    start: Vec<u8>,
}

impl Pending {
    pub(crate) fn of(queue: &mut impl StreamQueue, pool: &Pool, start_bytes: usize) -> Self {
        let slab = pool.slab();
        let buffers = slab.addr()..slab.addr() + slab.len_bytes() as u64;
        let mut pending = Self {
            total_bytes: 0,
            in_buffers_bytes: 0,
            start: Vec::new(),
        };
        queue.poll_transmit(|piece: RawBytes<'_>| {
            assert!(!piece.is_empty());
            pending.total_bytes += piece.len();
            if buffers.contains(&(piece.base().as_ptr().addr() as u64)) {
                pending.in_buffers_bytes += piece.len();
            }
            let start = pending.start.len();
            let some = piece.first(start_bytes - start);
            pending.start.resize(start + some.len(), 0);
            some.copy_to(&mut pending.start[start..]);
            true
        });
        pending
    }
}

/// Sends up to `wanted_bytes`, and gives them. What is left is what was behind them.
pub(crate) fn send(queue: &mut impl StreamQueue, pool: &Pool, wanted_bytes: usize) -> Vec<u8> {
    const BEHIND: usize = 256;
    let mut before = Pending::of(queue, pool, wanted_bytes.saturating_add(BEHIND));
    let sent = wanted_bytes.min(before.total_bytes);
    queue.transmitted(sent);
    let after = Pending::of(queue, pool, BEHIND);
    assert!(after.total_bytes >= before.total_bytes - sent);
    let behind = before.start.split_off(sent);
    assert_eq!(behind[..], after.start[..behind.len()]);
    before.start
}

/// Data of a PDU behind its head, each byte `fill`, and its digest where there is one.
pub(crate) fn with_data(head: &PduHead, length_bytes: u32, fill: u8) -> Vec<u8> {
    let mut pdu = head.as_bytes().to_vec();
    let start = pdu.len();
    pdu.resize(start + length_bytes as usize, fill);
    if head.has_data_digest() {
        let digest = crc32c(&pdu[start..]);
        pdu.extend(digest.to_le_bytes());
    }
    pdu
}
