//! Work requests a queue pair has taken and not completed yet, in the order of posting.
//!
//! A device reports completions of signaled requests only, and each of them stands for the
//! unsignaled requests before it as well. Software iWARP reports an RDMA READ after younger
//! requests that ended sooner; here those wait for it. Once a queue pair has failed, requests the
//! device never got follow those it has.

use crate::contract::{RKey, WcOpcode, WcStatus};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) status: WcStatus,
    pub(super) byte_len: u32,
    pub(super) invalidated: Option<RKey>,
}

impl Outcome {
    pub(super) const FLUSHED: Self = Self {
        status: WcStatus::WrFlushError,
        byte_len: 0,
        invalidated: None,
    };
}

/// A request, as the program posted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) wr_id: u64,
    pub(super) opcode: WcOpcode,
    /// The program wants a completion on success.
    pub(super) signaled: bool,
    /// The device reports success.
    pub(super) reported: bool,
    /// The program gets no completion: it has posted no work request.
    pub(super) silent: bool,
}

#[derive(Clone, Copy)]
struct Slot {
    request: Request,
    outcome: Option<Outcome>,
}

/// One queue's outstanding requests.
pub(super) struct Outstanding {
    slots: Box<[Slot]>,
    depth: u32,
    /// Positions grow for ever, modulo 2^32.
    head: u32,
    tail: u32,
    /// One past the youngest request with an outcome.
    ended_to: u32,
    /// From here on requests were not given to the device.
    ours_from: Option<u32>,
    /// An error has been reported: what follows is flushed, whatever the device reports of it.
    broken: bool,
    /// Silent requests.
    silent: u32,
    /// Requests behind the last signaled one: no completion will stand for them yet.
    unvouched: u32,
}

impl Outstanding {
    pub(super) fn new(depth: u32) -> Self {
        let blank = Slot {
            request: Request {
                wr_id: 0,
                opcode: WcOpcode::Recv,
                signaled: false,
                reported: false,
                silent: false,
            },
            outcome: None,
        };
        Self {
            // A power of two, so that positions may wrap.
            slots: vec![blank; depth.max(1).next_power_of_two() as usize].into(),
            depth,
            head: 0,
            tail: 0,
            ended_to: 0,
            ours_from: None,
            broken: false,
            silent: 0,
            unvouched: 0,
        }
    }

    fn slot(&mut self, position: u32) -> &mut Slot {
        let mask = self.slots.len() - 1;
        &mut self.slots[position as usize & mask]
    }

    pub(super) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.depth
    }

    /// Whether there are silent requests.
    pub(super) fn has_silent(&self) -> bool {
        self.silent > 0
    }

    /// How many requests are behind the last one that the device reports.
    pub(super) fn unvouched(&self) -> u32 {
        self.unvouched
    }

    /// How many requests are behind the one at `position`.
    pub(super) fn behind(&self, position: u32) -> u32 {
        self.tail.wrapping_sub(position).wrapping_sub(1)
    }

    /// Whether the device still has any.
    pub(super) fn device_has_any(&self) -> bool {
        self.head != self.ours_from.unwrap_or(self.tail)
    }

    /// The position the next request gets.
    pub(super) fn next_position(&self) -> u32 {
        self.tail
    }

    /// Adds a request; the caller has checked that there is room.
    pub(super) fn push(&mut self, request: Request) {
        let tail = self.tail;
        *self.slot(tail) = Slot {
            request,
            outcome: None,
        };
        self.tail = tail.wrapping_add(1);
        self.silent += u32::from(request.silent);
        self.unvouched = if request.reported {
            0
        } else {
            self.unvouched.saturating_add(1)
        };
    }

    /// The operation of the request at a position.
    pub(super) fn opcode(&mut self, position: u32) -> Option<WcOpcode> {
        let known = position.wrapping_sub(self.head) < self.len();
        known.then(|| self.slot(position).request.opcode)
    }

    /// Takes the youngest request back, which is not a silent one: the device refused it.
    pub(super) fn pop(&mut self) {
        if self.head != self.tail {
            self.tail = self.tail.wrapping_sub(1);
        }
    }

    /// The last `count` requests, and all that follow, are never given to the device.
    pub(super) fn keep_from_device(&mut self, count: u32) {
        let from = self.tail.wrapping_sub(count.min(self.len()));
        self.ours_from.get_or_insert(from);
    }

    /// The device is gone: it completes nothing any more.
    pub(super) fn take_from_device(&mut self) {
        self.ours_from = Some(self.head);
    }

    /// The position of the oldest of the last `count` requests.
    pub(super) fn position_of_last(&self, count: u32) -> u32 {
        self.tail.wrapping_sub(count)
    }

    /// A request has ended; reports everything that can be reported now.
    pub(super) fn end(
        &mut self,
        position: u32,
        outcome: Outcome,
        tell: impl FnMut(&Request, Outcome),
    ) {
        // A device must not complete what it does not have.
        if position.wrapping_sub(self.head) >= self.len() {
            return;
        }
        self.slot(position).outcome.get_or_insert(outcome);
        let past = position.wrapping_add(1);
        let nth = |position: u32| position.wrapping_sub(self.head);
        let ours = self
            .ours_from
            .is_some_and(|from| nth(position) >= nth(from));
        if !ours
            && past.wrapping_sub(self.head) > self.ended_to.wrapping_sub(self.head).min(self.len())
        {
            self.ended_to = past;
        }
        self.tell(tell);
    }

    fn tell(&mut self, mut tell: impl FnMut(&Request, Outcome)) {
        while self.head != self.tail {
            let head = self.head;
            let vouched = self.ended_to.wrapping_sub(head).wrapping_sub(1) < self.len();
            let Slot { request, outcome } = *self.slot(head);
            match outcome {
                Some(mut outcome) => {
                    if self.broken {
                        // Software iWARP completes a Send when TCP has it, ahead of a READ that
                        // then fails.
                        outcome = Outcome::FLUSHED;
                    }
                    self.broken |= outcome.status != WcStatus::Success;
                    let wanted = request.signaled || outcome.status != WcStatus::Success;
                    if wanted && !request.silent {
                        tell(&request, outcome);
                    }
                }
                // Ended before something younger was reported.
                None if vouched && !request.reported => {
                    if self.broken && !request.silent {
                        tell(&request, Outcome::FLUSHED);
                    }
                }
                None => break,
            }
            self.silent -= u32::from(request.silent);
            self.head = head.wrapping_add(1);
        }
        if self.ended_to.wrapping_sub(self.head) > self.len() {
            self.ended_to = self.head;
        }
    }

    /// Flushes what was not given to the device, once the device has nothing left.
    pub(super) fn flush_ours(&mut self, mut tell: impl FnMut(&Request, Outcome)) {
        if self.ours_from.is_none() || self.device_has_any() {
            return;
        }
        while self.head != self.tail {
            let head = self.head;
            let Slot { request, outcome } = *self.slot(head);
            let first = outcome.filter(|_| !self.broken);
            self.broken = true;
            if !request.silent {
                tell(&request, first.unwrap_or(Outcome::FLUSHED));
            }
            self.silent -= u32::from(request.silent);
            self.head = head.wrapping_add(1);
        }
        (self.ended_to, self.ours_from) = (self.head, Some(self.head));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Outcome, Outstanding, Request};
    use crate::contract::{WcOpcode, WcStatus};

    const GOOD: Outcome = Outcome {
        status: WcStatus::Success,
        byte_len: 0,
        invalidated: None,
    };

    fn request(wr_id: u64, signaled: bool, reported: bool) -> Request {
        Request {
            wr_id,
            opcode: WcOpcode::Send,
            signaled,
            reported,
            silent: false,
        }
    }

    fn ended(queue: &mut Outstanding, position: u32, outcome: Outcome) -> Vec<(u64, WcStatus)> {
        let mut told = Vec::new();
        queue.end(position, outcome, |r, o| told.push((r.wr_id, o.status)));
        told
    }

    #[test]
    fn a_signaled_request_vouches_for_those_before_it() {
        let mut queue = Outstanding::new(4);
        for wr_id in 0..4 {
            queue.push(request(wr_id, wr_id == 2, wr_id == 2));
        }
        assert!(queue.is_full());
        assert_eq!(ended(&mut queue, 2, GOOD), [(2, WcStatus::Success)]);
        assert_eq!((queue.len(), queue.device_has_any()), (1, true));
    }

    #[test]
    fn younger_completions_wait_for_an_older_read() {
        let mut queue = Outstanding::new(4);
        queue.push(request(0, false, true));
        queue.push(request(1, false, false));
        queue.push(request(2, true, true));
        assert_eq!(ended(&mut queue, 2, GOOD), []);
        assert_eq!(ended(&mut queue, 0, GOOD), [(2, WcStatus::Success)]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn ours_are_flushed_after_the_devices() {
        let mut queue = Outstanding::new(8);
        for wr_id in 0..4 {
            queue.push(request(wr_id, false, false));
        }
        // The last one was never rung; another comes after the end.
        queue.keep_from_device(1);
        queue.push(request(4, true, true));
        let mut told = Vec::new();
        queue.flush_ours(|r, _| told.push(r.wr_id));
        assert_eq!(told, [] as [u64; 0]);
        assert_eq!(
            ended(&mut queue, 2, Outcome::FLUSHED),
            [(2, WcStatus::WrFlushError)]
        );
        queue.flush_ours(|r, _| told.push(r.wr_id));
        assert_eq!((told.as_slice(), queue.len()), ([3, 4].as_slice(), 0));
        queue.push(request(5, false, false));
        queue.flush_ours(|r, _| told.push(r.wr_id));
        assert_eq!(told, [3, 4, 5]);
    }

    #[test]
    fn nothing_succeeds_behind_an_error() {
        let mut queue = Outstanding::new(4);
        for wr_id in 0..3 {
            queue.push(request(wr_id, true, true));
        }
        assert_eq!(ended(&mut queue, 2, GOOD), []);
        assert_eq!(ended(&mut queue, 0, GOOD), [(0, WcStatus::Success)]);
        let bad = Outcome {
            status: WcStatus::RemoteAccessError,
            ..GOOD
        };
        let told = [
            (1, WcStatus::RemoteAccessError),
            (2, WcStatus::WrFlushError),
        ];
        assert_eq!(ended(&mut queue, 1, bad), told);
    }

    #[test]
    fn unsignaled_requests_behind_an_error_are_flushed_whoever_vouches_for_them() {
        let mut queue = Outstanding::new(4);
        queue.push(request(0, true, true));
        queue.push(request(1, false, false));
        queue.push(request(2, true, true));
        assert_eq!(ended(&mut queue, 2, GOOD), []);
        let told = [0, 1, 2].map(|wr_id| (wr_id, WcStatus::WrFlushError));
        assert_eq!(ended(&mut queue, 0, Outcome::FLUSHED), told);
    }

    #[test]
    fn nobody_is_told_of_silent_requests() {
        let silent = |reported| Request {
            silent: true,
            ..request(9, false, reported)
        };
        let mut queue = Outstanding::new(8);
        for reported in [false, true, false] {
            queue.push(silent(reported));
        }
        assert_eq!((queue.has_silent(), queue.unvouched()), (true, 1));
        assert_eq!(
            (queue.behind(1), queue.opcode(1)),
            (1, Some(WcOpcode::Send))
        );
        assert_eq!(ended(&mut queue, 1, GOOD), []);
        assert_eq!((queue.len(), queue.has_silent()), (1, true));
        // One that fails, one behind it that the device has, and one that it never got.
        queue.push(request(3, true, true));
        queue.push(silent(false));
        queue.keep_from_device(1);
        let bad = Outcome {
            status: WcStatus::RnrRetryExceededError,
            ..GOOD
        };
        assert_eq!(ended(&mut queue, 2, bad), []);
        assert_eq!(ended(&mut queue, 3, GOOD), [(3, WcStatus::WrFlushError)]);
        let mut told = Vec::new();
        queue.flush_ours(|r, _| told.push(r.wr_id));
        assert_eq!(told, [] as [u64; 0]);
        assert_eq!((queue.len(), queue.has_silent()), (0, false));
    }

    #[test]
    fn unknown_positions_are_ignored() {
        let mut queue = Outstanding::new(4);
        assert_eq!(ended(&mut queue, 0, GOOD), []);
        queue.push(request(7, true, true));
        assert_eq!(ended(&mut queue, 1, GOOD), []);
        assert_eq!(ended(&mut queue, u32::MAX, GOOD), []);
        assert_eq!((queue.opcode(1), queue.opcode(u32::MAX)), (None, None));
        assert_eq!(ended(&mut queue, 0, GOOD), [(7, WcStatus::Success)]);
        assert_eq!(ended(&mut queue, 0, GOOD), []);
    }

    proptest! {
        /// Every signaled request is reported once and in order, from any start of the positions.
        #[test]
        fn told_once_in_order(start in any::<u32>(), rounds in prop::collection::vec(
            (1u32..9, any::<[bool; 8]>(), any::<bool>()), 1..40)) {
            let mut queue = Outstanding::new(8);
            (queue.head, queue.tail, queue.ended_to) = (start, start, start);
            let (mut next, mut expected, mut told) = (0, Vec::new(), Vec::new());
            for (count, signaled, reverse) in rounds {
                let mut positions = Vec::new();
                for index in 0..count {
                    let signaled = signaled[index as usize] || index + 1 == count;
                    if signaled {
                        positions.push(queue.next_position());
                        expected.push(next);
                    }
                    queue.push(request(next, signaled, signaled));
                    next += 1;
                }
                if reverse {
                    positions.reverse();
                }
                for position in positions {
                    queue.end(position, GOOD, |r, _| told.push(r.wr_id));
                }
                prop_assert_eq!(queue.len(), 0);
            }
            prop_assert_eq!(told, expected);
        }
    }
}
