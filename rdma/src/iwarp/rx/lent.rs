//! Data of Sends that stays where it has come, in shared memory or in the stream buffer, until the program has
//! taken it: a volume in memory copies it from there, once.

use std::collections::VecDeque;
use std::ptr::{self, NonNull};

use capstan_memory::RawBytes;

use super::{MEMORY_BULK_BYTES, Phase, Received, Rx, spare};
use crate::contract::{Access, Sge};
use crate::iwarp::fatal::Fatal;
use crate::iwarp::qp::Qp;
use crate::iwarp::same_host::Memory;
use crate::iwarp::socket::{Link, Piece};
use crate::iwarp::stag::StagTable;
use crate::iwarp::wire::ddp::Segment;

/// With more lent than this nothing else is received in a run: two stream buffers of thirty capsules with 4 KiB of data. A target
/// takes 128 completions at once, half of them of its answers; what it does not come to is copied.
const ENOUGH: usize = 32;

/// Data that was lent.
struct Loan {
    wr_id: u64,
    from: Held,
    /// Where in the memory of the receive it belongs, and its length.
    place: Sge,
}

/// Where it is.
#[derive(Clone, Copy)]
enum Held {
    /// In the ring of the connection.
    Ring(NonNull<u8>),
    /// In `Lent::buffers`, or in `Rx::buffer` when it is not among them yet: at this offset.
    Buffer { index: usize, offset: usize },
}

/// What a queue pair has lent to the program.
#[derive(Default)]
pub(in crate::iwarp) struct Lent {
    /// The program asks for it.
    pub wanted: bool,
    /// The engine knows that there is something to be given back.
    pub known: bool,
    /// Oldest first.
    loans: VecDeque<Loan>,
    /// Stream buffers that nothing is received into, because of what is lent in them.
    buffers: Vec<Box<[u8]>>,
    /// The rings of a link that has ended, because of what was lent in them.
    rings: Option<Memory>,
}

impl Lent {
    /// Whether anything was lent since it was last given back; taken or not, its room in the ring is in use.
    pub(in crate::iwarp) fn is_new(&mut self) -> bool {
        !self.loans.is_empty() && !std::mem::replace(&mut self.known, true)
    }

    /// The link has ended; the program may still read what it has taken.
    pub(in crate::iwarp) fn keep(&mut self, rings: Option<Memory>) {
        self.rings = rings;
    }

    /// What was lent with a receive: the oldest, when the program goes by its completions.
    fn take(&mut self, wr_id: u64) -> Option<Loan> {
        if self.loans.front()?.wr_id == wr_id {
            return self.loans.pop_front();
        }
        let at = self.loans.iter().position(|loan| loan.wr_id == wr_id)?;
        self.loans.remove(at)
    }

    /// Whether a program may have its hands full.
    pub(super) fn is_enough(&self) -> bool {
        self.loans.len() > ENOUGH
    }

    /// Whether some of it is in the stream buffer in use.
    fn is_in_use(&self) -> bool {
        let newest = self.loans.back().map(|loan| loan.from);
        matches!(newest, Some(Held::Buffer { index, .. }) if index == self.buffers.len())
    }
}

impl Rx {
    /// Keeps what is lent of the stream buffer out of the way of what comes next; the bytes that have not been
    /// handled go into another one.
    pub(super) fn set_lent_aside(&mut self) {
        if !self.lent.is_in_use() {
            return;
        }
        let mut next = spare::take();
        let left = &self.buffer[self.start..self.end];
        next[..left.len()].copy_from_slice(left);
        (self.start, self.end) = (0, left.len());
        let lent = std::mem::replace(&mut self.buffer, next);
        self.lent.buffers.push(lent);
    }
}

impl Qp {
    /// In the payload of a Send: leaves the data behind the first SGE in the ring, when all of it is there in
    /// one piece. `None` when not, and then nothing was received.
    pub(super) fn fill_lending(&mut self, stags: &StagTable) -> Result<Option<Received>, Fatal> {
        if !matches!(self.link, Some(Link::Shared(_))) {
            return Ok(None);
        }
        let Some((before, place)) = self.lendable() else {
            return Ok(None);
        };
        let mut pieces = std::mem::take(&mut self.rx.pieces);
        pieces.clear();
        self.each_target(stags, before, &mut |span| pieces.push(Piece::span(span)))?;
        let room = self.rx.room();
        let direct = (before + place.len_bytes) as usize;
        let asked = direct + room.len_bytes();
        let Some(Link::Shared(link)) = &mut self.link else {
            self.rx.pieces = pieces;
            return Ok(None);
        };
        // SAFETY: the pieces are spans the table has just resolved and its borrow keeps mapped; the room
        // is the free end of the stream buffer, which nobody else has a reference to.
        let lent = unsafe { link.receive_around(&pieces, place.len_bytes as usize, room) };
        self.rx.pieces = pieces;
        let Some((base, bytes)) = lent.map_err(Fatal::Io)? else {
            return Ok(None);
        };
        self.rx.end += bytes - direct;
        self.note_placed(stags, before + place.len_bytes)?;
        self.lend(Held::Ring(base), place);
        Ok(Some(if bytes == asked {
            Received::More
        } else {
            Received::Some
        }))
    }

    /// The bytes of the payload that are missing in the first SGE, and where the rest belongs, when the rest
    /// can be lent.
    fn lendable(&self) -> Option<(u32, Sge)> {
        let partial = &self.rx.partial;
        let (first_bytes, place) = self.parts(&partial.segment, partial.payload_bytes)?;
        let before = first_bytes.checked_sub(partial.placed_bytes)?;
        (self.rx.phase == Phase::Payload && !self.rx.crc).then_some((before, place))
    }

    /// In a whole FPDU whose payload is at `offset` of the stream buffer: leaves the data behind the first SGE
    /// there. The answer is how much of the payload is to be placed as ever.
    pub(super) fn lend_of_buffer(
        &mut self,
        segment: &Segment,
        offset: usize,
        payload_bytes: u32,
    ) -> u32 {
        let parts = self
            .rx
            .lent
            .wanted
            .then(|| self.parts(segment, payload_bytes));
        let Some((first_bytes, place)) = parts.flatten() else {
            return payload_bytes;
        };
        let from = Held::Buffer {
            index: self.rx.lent.buffers.len(),
            offset: offset + first_bytes as usize,
        };
        self.lend(from, place);
        first_bytes
    }

    fn lend(&mut self, from: Held, place: Sge) {
        let wr_id = self.rx.receive.wr_id;
        self.rx.lent.loans.push_back(Loan { wr_id, from, place });
    }

    /// The bytes of the first SGE, and where the rest belongs, when this is a message of one segment whose rest
    /// is data for one more SGE.
    fn parts(&self, segment: &Segment, payload_bytes: u32) -> Option<(u32, Sge)> {
        let message = self.rx.message.as_ref()?;
        let [first, second, ..] = self.rx.receive.sges.as_slice() else {
            return None;
        };
        let whole = matches!(segment, Segment::Untagged(_))
            && segment.control().last()
            && message.received_bytes == 0;
        let len_bytes = payload_bytes.checked_sub(first.len_bytes)?;
        let fits = (MEMORY_BULK_BYTES..=second.len_bytes).contains(&len_bytes);
        let place = Sge {
            len_bytes,
            ..*second
        };
        (whole && fits).then_some((first.len_bytes, place))
    }

    /// As [`QueuePair::take_lent`](crate::contract::QueuePair::take_lent).
    pub(in crate::iwarp) fn take_lent(
        &mut self,
        stags: &StagTable,
        wr_id: u64,
        take: &mut dyn FnMut(RawBytes<'_>) -> bool,
    ) -> bool {
        let Some(loan) = self.rx.lent.take(wr_id) else {
            return false;
        };
        let taken = take(self.lent_bytes(&loan));
        if !taken {
            self.place(stags, &loan);
        }
        taken
    }

    /// Before anything else is received: the ring gets its room back, and stream buffers are for others. What
    /// the program has not seen yet goes to the memory of its receive.
    pub(in crate::iwarp) fn give_back_lent(&mut self, stags: &StagTable) {
        self.rx.lent.known = false;
        self.place_lent(stags);
        self.rx.lent.buffers.drain(..).for_each(spare::give);
        self.rx.lent.rings = None;
        if let Some(Link::Shared(link)) = &mut self.link {
            link.give_back(self.hot);
        }
    }

    /// Puts what was not taken into the memory of its receives. Then the link may go.
    pub(in crate::iwarp) fn place_lent(&mut self, stags: &StagTable) {
        while let Some(loan) = self.rx.lent.loans.pop_front() {
            self.place(stags, &loan);
        }
    }

    fn place(&self, stags: &StagTable, loan: &Loan) {
        // A region that is gone has no place for it, and nobody who looks there.
        if let Ok(span) = stags.local(self.asker.pd, &loan.place, Access::LOCAL_WRITE) {
            let from = self.lent_bytes(loan).base();
            // SAFETY: both are mapped and of this length: one as `lent_bytes` says, the span by the borrow
            // of its table. No region contains a ring or a stream buffer.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), span.base(), span.len_bytes()) };
        }
    }

    fn lent_bytes(&self, loan: &Loan) -> RawBytes<'_> {
        let length = loan.place.len_bytes as usize;
        match loan.from {
            // SAFETY: inside the ring, which is mapped as long as the link lives: it takes its loans with it
            // (`place_lent`). Only the peer writes there.
            Held::Ring(base) => unsafe { RawBytes::new(base, length) },
            Held::Buffer { index, offset } => {
                let buffer = self.rx.lent.buffers.get(index).unwrap_or(&self.rx.buffer);
                RawBytes::from(&buffer[offset..offset + length])
            }
        }
    }
}
