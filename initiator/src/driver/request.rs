//! I/Os in progress, and the commands they are cut into.

use std::collections::VecDeque;

use capstan_memory::Buffer;

use super::io::{Completion, Io, Op, Refused, Source, SubmitError};
use crate::error::IoError;

/// One command's part of a request. Its LBAs are `slba + first_lba ..` of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) request: u32,
    /// Blocks of the request before this piece.
    pub(super) first_lba: u32,
    pub(super) nlb: u32,
}

/// An I/O in progress.
#[derive(Debug)]
pub(super) struct Request {
    source: Source,
    pub(super) token: u64,
    pub(super) io: Io,
    pub(super) buffer: Option<Buffer>,
    /// Blocks cut into pieces so far.
    cut: u32,
    /// Every block is cut, or no more will be.
    all_cut: bool,
    /// Pieces that are not finished.
    open: u32,
    /// Order of submission.
    sequence: u64,
    /// Reconnects that hit it while it was outstanding, and which was the last.
    pub(super) replays: u8,
    pub(super) last_loss: u64,
    /// Times a command of it was tried again for a transient status.
    pub(super) retries: u8,
    error: Option<IoError>,
}

impl Request {
    /// Its place in the order of submission.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }
}

/// All I/Os in progress: a fixed number, allocated once.
pub(super) struct Requests {
    entries: Vec<Option<Request>>,
    free: Vec<u32>,
    /// Not entirely cut, in order of submission.
    fresh: VecDeque<u32>,
    /// Pieces to send again, before anything fresh.
    again: VecDeque<Piece>,
    /// Pieces that change media, and that a lost association left unanswered.
    unanswered: VecDeque<Piece>,
    /// What waits behind them: pieces to send again, and requests that are not entirely cut, in
    /// order of submission.
    held: VecDeque<Piece>,
    held_fresh: VecDeque<u32>,
    next_sequence: u64,
    done: VecDeque<Completion>,
}

impl Requests {
    /// Room for `capacity` I/Os, whose commands in flight number `pieces` at most.
    pub(super) fn new(capacity: u32, pieces: usize) -> Self {
        Self {
            entries: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
            fresh: VecDeque::with_capacity(capacity as usize),
            again: VecDeque::with_capacity(pieces),
            unanswered: VecDeque::new(),
            held: VecDeque::new(),
            held_fresh: VecDeque::new(),
            next_sequence: 0,
            done: VecDeque::with_capacity(capacity as usize),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// I/Os taken and not finished.
    pub(super) fn unfinished(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// I/Os taken and not handed back.
    pub(super) fn in_progress(&self) -> usize {
        self.unfinished() + self.done.len()
    }

    pub(super) fn submit(
        &mut self,
        source: Source,
        token: u64,
        io: Io,
        buffer: Option<Buffer>,
    ) -> Result<(), Refused> {
        // What is done but not polled keeps its place: the queue of completions never grows.
        let full = self.in_progress() >= self.capacity();
        let Some(index) = (!full).then(|| self.free.pop()).flatten() else {
            return Err(Refused {
                reason: SubmitError::Busy,
                buffer,
            });
        };
        let request = Request {
            source,
            token,
            io,
            buffer,
            cut: 0,
            all_cut: false,
            open: 0,
            sequence: self.next_sequence,
            replays: 0,
            last_loss: 0,
            retries: 0,
            error: None,
        };
        self.next_sequence += 1;
        if let Some(entry) = self.entries.get_mut(index as usize) {
            *entry = Some(request);
        }
        self.fresh.push_back(index);
        Ok(())
    }

    pub(super) fn get(&self, index: u32) -> Option<&Request> {
        self.entries.get(index as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Request> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// The request whose piece comes next, to learn how many blocks a piece of it may have.
    pub(super) fn peek(&self) -> Option<&Request> {
        match self.again.front() {
            Some(piece) => self.get(piece.request),
            None => self.get(*self.fresh.front()?),
        }
    }

    /// Cuts the next piece, of at most `nlb_max` blocks.
    pub(super) fn next_piece(&mut self, nlb_max: u32) -> Option<Piece> {
        if let Some(piece) = self.again.pop_front() {
            return Some(piece);
        }
        let index = *self.fresh.front()?;
        let request = self.entries.get_mut(index as usize)?.as_mut()?;
        let (_, total) = request.io.op.range();
        let nlb = (total - request.cut).min(nlb_max.max(1));
        let piece = Piece {
            request: index,
            first_lba: request.cut,
            nlb,
        };
        request.cut += nlb;
        request.open += 1;
        if request.cut == total {
            request.all_cut = true;
            self.fresh.pop_front();
        }
        Some(piece)
    }

    /// A piece is to be sent again; it is still open.
    pub(super) fn put_back(&mut self, piece: Piece) {
        let order = |p: &Piece, requests: &Self| {
            let sequence = requests.get(p.request).map_or(0, |r| r.sequence);
            (sequence, p.first_lba)
        };
        let key = order(&piece, self);
        let at = self.again.partition_point(|p| order(p, self) < key);
        self.again.insert(at, piece);
    }

    /// A piece that changes media was not answered by an association that is lost.
    pub(super) fn leave_unanswered(&mut self, piece: Piece) {
        self.unanswered.push_back(piece);
    }

    /// A piece that was left unanswered, to be finished.
    pub(super) fn take_unanswered(&mut self) -> Option<Piece> {
        self.unanswered.pop_front()
    }

    /// Puts what comes next aside until [`Requests::release`].
    pub(super) fn hold_next(&mut self) {
        if let Some(piece) = self.again.pop_front() {
            self.held.push_back(piece);
        } else if let Some(index) = self.fresh.pop_front() {
            self.held_fresh.push_back(index);
        }
    }

    /// Puts all that waited back in line.
    pub(super) fn release(&mut self) {
        while let Some(piece) = self
            .unanswered
            .pop_front()
            .or_else(|| self.held.pop_front())
        {
            self.put_back(piece);
        }
        // What is in line was submitted later.
        while let Some(index) = self.held_fresh.pop_back() {
            self.fresh.push_front(index);
        }
    }

    /// Pieces in line that change media and have been sent before.
    pub(super) fn writes_sent_again(&self) -> usize {
        let changes = |piece: &&Piece| {
            let request = self.get(piece.request);
            request.is_some_and(|r| r.replays > 0 && r.io.op.changes_media())
        };
        self.again.iter().filter(changes).count()
    }

    /// The number the next request gets.
    pub(super) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// A piece is finished. The request is, too, when it was the last.
    pub(super) fn finish(&mut self, index: u32, result: Result<(), IoError>) {
        let Some(request) = self.get_mut(index) else {
            return;
        };
        request.open -= 1;
        if let Err(error) = result {
            // The first error is the request's; what is not cut yet will not be.
            request.error.get_or_insert(error);
            self.stop_cutting(index);
        }
        self.complete_if_done(index);
    }

    fn stop_cutting(&mut self, index: u32) {
        if let Some(request) = self.get_mut(index)
            && !request.all_cut
        {
            request.all_cut = true;
            // Only a request that is being cut has an error, and that one is the first.
            self.fresh.retain(|&fresh| fresh != index);
            self.held_fresh.retain(|&fresh| fresh != index);
        }
    }

    fn complete_if_done(&mut self, index: u32) {
        let Some(entry) = self.entries.get_mut(index as usize) else {
            return;
        };
        if entry.as_ref().is_some_and(|r| r.all_cut && r.open == 0)
            && let Some(request) = entry.take()
        {
            self.free.push(index);
            self.done.push_back(Completion {
                source: request.source,
                token: request.token,
                result: request.error.map_or(Ok(()), Err),
                // The buffer of a discard is the driver's own.
                buffer: request
                    .buffer
                    .filter(|_| !matches!(request.io.op, Op::Discard { .. })),
            });
        }
    }

    /// Writes, of which namespaces, that were sent with a connection that is lost, and have not
    /// been answered since.
    pub(super) fn unanswered_writes(&self) -> Vec<(u32, usize)> {
        let mut counts: Vec<(u32, usize)> = Vec::new();
        let sent = self.entries.iter().flatten();
        for request in sent.filter(|r| r.replays > 0 && r.io.op.changes_media()) {
            let nsid = request.io.nsid;
            match counts.iter_mut().find(|(of, _)| *of == nsid) {
                Some((_, count)) => *count += 1,
                None => counts.push((nsid, 1)),
            }
        }
        counts
    }

    /// Fails everything that is in progress; no piece may be in flight.
    pub(super) fn fail_all(&mut self, error: &IoError) {
        self.fresh.clear();
        self.again.clear();
        self.unanswered.clear();
        self.held.clear();
        self.held_fresh.clear();
        for index in 0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX) {
            if let Some(request) = self.get_mut(index) {
                request.all_cut = true;
                request.open = 0;
                request.error.get_or_insert_with(|| error.clone());
            }
            self.complete_if_done(index);
        }
    }

    pub(super) fn poll(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::{Piece, Requests};
    use crate::driver::io::{Io, Op, Source};
    use crate::error::IoError;

    const SOURCE: Source = Source(0);

    fn read(slba: u64, nlb: u32) -> Io {
        Io {
            nsid: 1,
            op: Op::Read { slba, nlb },
        }
    }

    fn piece(request: u32, first_lba: u32, nlb: u32) -> Piece {
        Piece {
            request,
            first_lba,
            nlb,
        }
    }

    #[test]
    fn a_large_request_is_cut_and_completes_once() {
        let mut requests = Requests::new(4, 16);
        requests.submit(SOURCE, 7, read(0, 20), None).unwrap();
        let pieces: Vec<_> = std::iter::from_fn(|| requests.next_piece(8)).collect();
        assert_eq!(pieces, [piece(0, 0, 8), piece(0, 8, 8), piece(0, 16, 4)]);
        requests.finish(0, Ok(()));
        requests.finish(0, Ok(()));
        assert!(requests.poll().is_none());
        requests.finish(0, Ok(()));
        assert_eq!(requests.poll().unwrap().token, 7);
        assert_eq!(
            (requests.in_progress(), requests.poll().is_none()),
            (0, true)
        );
    }

    #[test]
    fn the_first_error_ends_the_cutting_and_waits_for_what_is_open() {
        let mut requests = Requests::new(4, 16);
        requests.submit(SOURCE, 1, read(0, 20), None).unwrap();
        requests.submit(SOURCE, 2, read(0, 1), None).unwrap();
        requests.next_piece(8).unwrap();
        requests.next_piece(8).unwrap();
        requests.finish(0, Err(IoError::Closed));
        assert!(requests.poll().is_none(), "one piece is open");
        assert_eq!(requests.next_piece(8), Some(piece(1, 0, 1)));
        requests.finish(0, Ok(()));
        let done = requests.poll().unwrap();
        assert!(done.token == 1 && done.result.is_err());
    }

    #[test]
    fn what_is_sent_again_goes_first_and_in_order_of_submission() {
        let mut requests = Requests::new(4, 16);
        for token in 0..3 {
            requests.submit(SOURCE, token, read(0, 16), None).unwrap();
        }
        let pieces: Vec<_> = (0..5).map(|_| requests.next_piece(8).unwrap()).collect();
        for at in [3, 0, 4, 1, 2] {
            requests.put_back(pieces[at]);
        }
        for expected in pieces {
            assert_eq!(requests.next_piece(8), Some(expected));
        }
        assert_eq!(requests.next_piece(8), Some(piece(2, 8, 8)));
    }

    #[test]
    fn full_is_busy_and_failing_all_empties_it() {
        let mut requests = Requests::new(2, 4);
        requests.submit(SOURCE, 1, read(0, 1), None).unwrap();
        requests.submit(SOURCE, 2, read(0, 1), None).unwrap();
        assert!(requests.submit(SOURCE, 3, read(0, 1), None).is_err());
        requests.next_piece(1).unwrap();
        requests.fail_all(&IoError::Closed);
        assert_eq!(std::iter::from_fn(|| requests.poll()).count(), 2);
        assert_eq!(
            (requests.in_progress(), requests.peek().is_none()),
            (0, true)
        );
    }
}
