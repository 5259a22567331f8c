//! Messages that are lent to the program where they arrived, in shared memory or in the stream
//! buffer: a RAM volume copies the data from there, once, and a message without data needs no
//! receive at all.
#![expect(
    unsafe_code,
    reason = "refers to data in a ring that the driver keeps mapped"
)]

use std::collections::VecDeque;
use std::ptr::NonNull;

use capstan_memory::RawBytes;

use super::{FpduPhase, MEMORY_BULK_BYTES, Message, Received, Rx, spare};
use crate::contract::Access;
use crate::direct::ZERO_COPY_HEAD_BYTES_MAX;
use crate::iwarp::core::IwarpCore;
use crate::iwarp::core::tx::each_span;
use crate::iwarp::fatal::Fatal;
use crate::iwarp::piece::Piece;
use crate::iwarp::receives::Receive;
use crate::iwarp::stag::StagTable;
use crate::iwarp::wire::ddp::Segment;

/// Lent messages with data after which a run receives nothing more: two stream buffers of thirty
/// capsules with 4 KiB each. A target takes 128 completions at once, half of them of its own Sends;
/// what it does not get to is copied.
const ENOUGH: usize = 32;

/// The line that a head is at the start of.
type Line = [u8; ZERO_COPY_HEAD_BYTES_MAX];

/// A message that is lent.
struct Loan {
    message: u64,
    head: Line,
    data: Option<Data>,
}

/// The data behind its head.
struct Data {
    from: Held,
    len_bytes: u32,
}

/// Where the data is.
enum Held {
    /// In the ring of the connection.
    Ring(NonNull<u8>),
    /// At this offset of a stream buffer: of `Lent::buffers`, or of `Rx::buffer` until that is
    /// added to them.
    Buffer { index: usize, offset: usize },
    /// Copied here, as the program did not take it before it polled again.
    Here(Box<[u8]>),
}

/// What a message needs that is to be lent where it lies.
pub(in crate::iwarp) struct Lending<'c> {
    /// Where the rest of its head goes.
    pub before: &'c [Piece],
    /// Bytes of data that stay.
    pub data_bytes: usize,
    /// Where what follows the data goes.
    pub after: Piece,
}

/// What a queue pair lends to the program.
#[derive(Default)]
pub(in crate::iwarp) struct Lent {
    /// The program wants messages to be lent.
    wanted: bool,
    /// Bytes of their heads.
    head_bytes: u32,
    /// The engine knows that something has to be given back.
    known: bool,
    /// The number of the last message.
    last: u64,
    /// Oldest first.
    loans: VecDeque<Loan>,
    /// Loans with data since data was last given back.
    data: usize,
    /// Some of the data is in the stream buffer in use.
    in_use: bool,
    /// Stream buffers into which nothing is received, because data in them is lent.
    buffers: Vec<Box<[u8]>>,
    /// Copies that the program has taken: it may read them until it polls again.
    taken: Vec<Box<[u8]>>,
    /// The receive into which a message was put last.
    landed: Receive,
}

impl Lent {
    /// As [`Pair::enable_zero_copy_receive`](crate::Pair::enable_zero_copy_receive).
    pub(in crate::iwarp) fn enable(&mut self, head_bytes: u32) {
        if !self.wanted && head_bytes as usize <= ZERO_COPY_HEAD_BYTES_MAX {
            (self.wanted, self.head_bytes) = (true, head_bytes);
        }
    }

    /// Whether anything was lent since the last time everything was given back: taken or not, its
    /// room in the ring is in use.
    pub(in crate::iwarp) fn is_new(&mut self) -> bool {
        !self.loans.is_empty() && !std::mem::replace(&mut self.known, true)
    }

    /// The place of a message in the list: the oldest, when the program follows the order of its
    /// completions.
    #[inline]
    fn position(&self, message: u64) -> Option<usize> {
        if self.loans.front()?.message == message {
            return Some(0);
        }
        self.loans.iter().position(|loan| loan.message == message)
    }

    /// Whether a program has enough to take for now.
    pub(in crate::iwarp) fn is_enough(&self) -> bool {
        self.data > ENOUGH
    }

    /// Adds a message; returns its number.
    #[inline]
    fn add(&mut self, head: Line, data: Option<Data>) -> u64 {
        self.last += 1;
        self.data += usize::from(data.is_some());
        self.loans.push_back(Loan {
            message: self.last,
            head,
            data,
        });
        self.last
    }
}

impl Rx {
    /// Sets a stream buffer with lent data aside; the bytes that have not been handled move to
    /// another one.
    pub(in crate::iwarp) fn set_lent_aside(&mut self) {
        if !std::mem::take(&mut self.lent.in_use) {
            return;
        }
        let mut next = spare::take();
        let left = &self.buffer[self.start..self.end];
        next[..left.len()].copy_from_slice(left);
        (self.start, self.end) = (0, left.len());
        let lent = std::mem::replace(&mut self.buffer, next);
        self.lent.buffers.push(lent);
    }

    fn lent_bytes<'a>(&'a self, data: &'a Data) -> RawBytes<'a> {
        let length = data.len_bytes as usize;
        match data.from {
            // SAFETY: inside the ring, which the driver keeps mapped until all of it was given
            // back (`Qp::lent_rings`). Only the peer writes there.
            Held::Ring(base) => unsafe { RawBytes::new(base, length) },
            Held::Buffer { index, offset } => {
                let buffer = self.lent.buffers.get(index).unwrap_or(&self.buffer);
                RawBytes::from(&buffer[offset..offset + length])
            }
            Held::Here(ref bytes) => RawBytes::from(&**bytes),
        }
    }
}

impl IwarpCore {
    /// In the payload of a Send: where its head and what follows its data go, when all of the data
    /// may stay in the ring of the link and be lent. Nothing has to be received then: without
    /// [`IwarpCore::handle_lent`] the next [`IwarpCore::poll_receive`] asks for all of it.
    ///
    /// # Errors
    /// The place of the head is not open any more.
    #[inline]
    pub(in crate::iwarp) fn poll_lending(
        &mut self,
        stags: &StagTable,
    ) -> Result<Option<Lending<'_>>, Fatal> {
        if !self.rx.lent.wanted {
            return Ok(None);
        }
        self.rx.move_to_front();
        let Some((before, data_bytes)) = self.lendable() else {
            return Ok(None);
        };
        let mut pieces = std::mem::take(&mut self.rx.pieces);
        pieces.clear();
        self.each_target(stags, before, &mut |span| pieces.push(Piece::span(span)))?;
        let rx = &mut self.rx;
        let room = rx.room();
        (rx.direct, rx.lendable) = (before + data_bytes, data_bytes);
        rx.asked = rx.direct as usize + room.len_bytes();
        rx.pieces = pieces;
        Ok(Some(Lending {
            before: &rx.pieces,
            data_bytes: data_bytes as usize,
            after: room,
        }))
    }

    /// The head has come, with `bytes` in all as [`IwarpCore::poll_lending`] has asked; the data is
    /// at `base`, until [`IwarpCore::give_back_lent`].
    ///
    /// # Errors
    /// The place of the head is not open any more.
    pub(in crate::iwarp) fn handle_lent(
        &mut self,
        stags: &StagTable,
        base: NonNull<u8>,
        bytes: usize,
    ) -> Result<Received, Fatal> {
        let (direct, data_bytes) = (self.rx.direct, self.rx.lendable);
        let asked = self.rx.asked;
        self.rx.received_bytes += bytes as u64;
        self.rx.end += bytes - direct as usize;
        self.note_placed(stags, direct)?;
        self.lend_of_ring(stags, base, data_bytes)?;
        Ok(if bytes == asked {
            Received::More
        } else {
            Received::Some
        })
    }

    /// How many bytes of the head are missing, and how many follow it, when these can be lent.
    fn lendable(&self) -> Option<(u32, u32)> {
        let partial = &self.rx.partial;
        let Segment::Untagged(header) = &partial.segment else {
            return None;
        };
        let message = self.rx.message.as_ref()?;
        let whole = header.control.last() && message.received_bytes == 0 && message.lent.is_none();
        let head_bytes = self.rx.lent.head_bytes;
        let before = head_bytes.checked_sub(partial.placed_bytes)?;
        let data_bytes = partial.payload_bytes.checked_sub(head_bytes)?;
        let able = self.rx.phase == FpduPhase::Payload && !self.rx.crc && whole;
        (able
            && data_bytes >= MEMORY_BULK_BYTES
            && self.receives.may_put_back(partial.payload_bytes))
        .then_some((before, data_bytes))
    }

    /// Lends the message that is arriving: its head is in its receive and its data in the ring, so
    /// it needs no receive.
    fn lend_of_ring(
        &mut self,
        stags: &StagTable,
        base: NonNull<u8>,
        data_bytes: u32,
    ) -> Result<(), Fatal> {
        let mut head = [0; ZERO_COPY_HEAD_BYTES_MAX];
        let mut rest = head.as_mut_slice();
        self.each_target_of(
            stags,
            &self.rx.partial.segment,
            0,
            self.rx.lent.head_bytes,
            &mut |span| {
                let (now, later) = std::mem::take(&mut rest).split_at_mut(span.len_bytes());
                span.copy_to(now);
                rest = later;
            },
        )?;
        self.receives.put_back(&self.rx.receive);
        let data = Data {
            from: Held::Ring(base),
            len_bytes: data_bytes,
        };
        if let Some(message) = &mut self.rx.message {
            message.lent = Some(self.rx.lent.add(head, Some(data)));
        }
        Ok(())
    }

    /// Lends a whole FPDU in the stream buffer, when it is a whole message. `false` when it is to
    /// be received in the ordinary way.
    #[inline]
    pub(in crate::iwarp) fn lend_of_buffer(
        &mut self,
        segment: &Segment,
        payload: &[u8],
    ) -> Result<bool, Fatal> {
        let (Segment::Untagged(header), Some(head)) = (segment, payload.first_chunk()) else {
            return Ok(false);
        };
        let whole = header.control.last() && self.rx.message.is_none();
        let payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        // The payload is a line at least.
        let head_bytes = self.rx.lent.head_bytes;
        let data_bytes = payload_bytes - head_bytes;
        let worth = data_bytes == 0 || data_bytes >= MEMORY_BULK_BYTES;
        if !(self.rx.lent.wanted && whole && worth) {
            return Ok(false);
        }
        self.check_send(segment, header)?;
        if !self.recv_cq.has_room() || !self.receives.reserve(payload_bytes) {
            return Ok(false);
        }
        let data = (data_bytes != 0).then(|| Data {
            from: Held::Buffer {
                index: self.rx.lent.buffers.len(),
                offset: self.rx.start + segment.header_bytes() + head_bytes as usize,
            },
            len_bytes: data_bytes,
        });
        self.rx.lent.in_use |= data.is_some();
        self.rx.message = Some(Message {
            opcode: header.control.opcode(),
            received_bytes: 0,
            lent: Some(self.rx.lent.add(*head, data)),
        });
        Ok(true)
    }

    /// As [`Pair::zero_copy_head`](crate::Pair::zero_copy_head).
    #[inline]
    pub(in crate::iwarp) fn zero_copy_head(&mut self, message: u64) -> Option<Line> {
        let at = self.rx.lent.position(message)?;
        let loan = &self.rx.lent.loans[at];
        if loan.data.is_some() {
            return Some(loan.head);
        }
        self.end_loan(at).map(|loan| loan.head)
    }

    /// As [`Pair::take_zero_copy`](crate::Pair::take_zero_copy).
    pub(in crate::iwarp) fn take_zero_copy(
        &mut self,
        message: u64,
        take: &mut dyn FnMut(RawBytes<'_>) -> bool,
    ) -> bool {
        let Some(at) = self.rx.lent.position(message) else {
            return false;
        };
        let Some(data) = &self.rx.lent.loans[at].data else {
            return false;
        };
        let taken = take(self.rx.lent_bytes(data));
        if taken
            && let Some(Data {
                from: Held::Here(bytes),
                ..
            }) = self.end_loan(at).and_then(|loan| loan.data)
        {
            self.rx.lent.taken.push(bytes);
        }
        taken
    }

    /// As [`Pair::copy_to_receive`](crate::Pair::copy_to_receive).
    pub(in crate::iwarp) fn copy_to_receive(
        &mut self,
        stags: &StagTable,
        message: u64,
    ) -> Option<u64> {
        let at = self.rx.lent.position(message)?;
        let loan = self.end_loan(at)?;
        self.land(stags, &loan)
    }

    /// Takes a message from the list and frees its reserved receive.
    #[inline]
    fn end_loan(&mut self, at: usize) -> Option<Loan> {
        let loans = &mut self.rx.lent.loans;
        let loan = match at {
            0 => loans.pop_front(),
            _ => loans.remove(at),
        };
        if loan.is_some() {
            if loans.is_empty() {
                // Begin again at the start of the memory, which is in the caches.
                loans.clear();
            }
            self.receives.unreserve();
        }
        loan
    }

    /// Puts a message into a receive.
    fn land(&mut self, stags: &StagTable, loan: &Loan) -> Option<u64> {
        let mut receive = std::mem::take(&mut self.rx.lent.landed);
        let taken = self.receives.take(&mut receive);
        if taken {
            let data = loan.data.as_ref();
            let head_bytes = self.rx.lent.head_bytes as usize;
            let len_bytes = self.rx.lent.head_bytes + data.map_or(0, |data| data.len_bytes);
            let data = data.map(|data| self.rx.lent_bytes(data));
            let mut at = 0;
            let (pd, sges) = (self.asker.pd, &receive.sges);
            // A region that is gone has no place for it, and nothing reads there.
            let _ = each_span(
                stags,
                pd,
                sges,
                0,
                len_bytes,
                Access::LOCAL_WRITE,
                &mut |span| {
                    let (head, behind) = span.split_at(head_bytes.saturating_sub(at));
                    head.copy_from(loan.head.get(at..head_bytes).unwrap_or_default());
                    if let Some(data) = &data {
                        let skip = (at + head.len_bytes()).saturating_sub(head_bytes);
                        behind.copy_from_raw(data.skip(skip));
                    }
                    at += span.len_bytes();
                },
            );
        }
        let wr_id = receive.wr_id;
        self.rx.lent.landed = receive;
        taken.then_some(wr_id)
    }

    /// Before anything else is received: gives back stream buffers, and room in the ring, which the
    /// driver may use again then. What the program has not taken yet is copied.
    pub(in crate::iwarp) fn give_back_lent(&mut self) {
        self.rx.lent.known = false;
        let mut loans = std::mem::take(&mut self.rx.lent.loans);
        for loan in &mut loans {
            if let Some(data) = &mut loan.data
                && !matches!(data.from, Held::Here(_))
            {
                let mut bytes = vec![0; data.len_bytes as usize];
                self.rx.lent_bytes(data).copy_to(&mut bytes);
                data.from = Held::Here(bytes.into());
            }
        }
        self.rx.lent.loans = loans;
        self.rx.lent.data = 0;
        self.rx.lent.buffers.drain(..).for_each(spare::give);
        self.rx.lent.taken.clear();
    }

    /// The program has dropped the queue pair: nothing is lent any more.
    pub(in crate::iwarp) fn forget_lent(&mut self) {
        while self.end_loan(0).is_some() {}
    }
}
