//! Data of Sends that stays in shared memory until the program has taken it: a volume in memory copies it
//! from there, once.

use std::collections::VecDeque;
use std::ptr::{self, NonNull};

use capstan_memory::RawBytes;

use super::{MEMORY_BULK_BYTES, Phase, Received};
use crate::contract::{Access, Sge};
use crate::iwarp::fatal::Fatal;
use crate::iwarp::qp::Qp;
use crate::iwarp::socket::{Link, Piece};
use crate::iwarp::stag::StagTable;
use crate::iwarp::wire::ddp::Segment;

/// Data in the ring of the connection.
struct Loan {
    wr_id: u64,
    base: NonNull<u8>,
    /// Where in the memory of the receive it belongs, and its length.
    place: Sge,
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
}

impl Lent {
    /// Whether anything was lent since it was last given back; taken or not, its room in the ring is in use.
    pub(in crate::iwarp) fn is_new(&mut self) -> bool {
        !self.loans.is_empty() && !std::mem::replace(&mut self.known, true)
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
        let wr_id = self.rx.receive.wr_id;
        self.rx.lent.loans.push_back(Loan { wr_id, base, place });
        Ok(Some(if bytes == asked {
            Received::More
        } else {
            Received::Some
        }))
    }

    /// The bytes of the payload that are missing in the first SGE, and where the rest belongs, when this is a
    /// message of one segment whose rest is data for one more SGE.
    fn lendable(&self) -> Option<(u32, Sge)> {
        let partial = &self.rx.partial;
        let message = self.rx.message.as_ref()?;
        let [first, second, ..] = self.rx.receive.sges.as_slice() else {
            return None;
        };
        let whole = self.rx.phase == Phase::Payload
            && matches!(partial.segment, Segment::Untagged(_))
            && partial.segment.control().last()
            && message.received_bytes == 0
            && !self.rx.crc;
        let before = first.len_bytes.checked_sub(partial.placed_bytes)?;
        let len_bytes = partial.payload_bytes.checked_sub(first.len_bytes)?;
        let fits = (MEMORY_BULK_BYTES..=second.len_bytes).contains(&len_bytes);
        let place = Sge {
            len_bytes,
            ..*second
        };
        (whole && fits).then_some((before, place))
    }

    /// As [`QueuePair::take_lent`](crate::contract::QueuePair::take_lent).
    pub(in crate::iwarp) fn take_lent(
        &mut self,
        stags: &StagTable,
        wr_id: u64,
        take: &mut dyn FnMut(RawBytes<'_>) -> bool,
    ) -> bool {
        let loans = &mut self.rx.lent.loans;
        let at = loans.iter().position(|loan| loan.wr_id == wr_id);
        let Some(loan) = at.and_then(|at| loans.remove(at)) else {
            return false;
        };
        // SAFETY: inside the ring, which is mapped as long as the link lives: it takes its loans with it
        // (`place_lent`). Only the peer writes there.
        let taken = take(unsafe { RawBytes::new(loan.base, loan.place.len_bytes as usize) });
        if !taken {
            self.place(stags, &loan);
        }
        taken
    }

    /// Before anything else is received: the ring gets its room back. What the program has not seen yet goes
    /// to the memory of its receive.
    pub(in crate::iwarp) fn give_back_lent(&mut self, stags: &StagTable) {
        self.rx.lent.known = false;
        self.place_lent(stags);
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
            // SAFETY: both are mapped and of this length: the ring as in `take_lent`, the span by the
            // borrow of its table. No region contains a ring.
            unsafe { ptr::copy_nonoverlapping(loan.base.as_ptr(), span.base(), span.len_bytes()) };
        }
    }
}
