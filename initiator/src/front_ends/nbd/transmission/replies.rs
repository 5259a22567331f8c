//! From finished I/Os to replies, and to what is sent.

use capstan_memory::Buffer;

use super::Transmission;
use crate::front_ends::lease::Part;
use crate::front_ends::nbd::in_progress::InProgress;
use crate::front_ends::nbd::reply::{Outgoing, Reply};
use crate::front_ends::nbd::request::{Command, Request};

impl Transmission {
    /// Queues a chunk of a read for sending, in order where the reply has no offsets.
    pub(super) fn chunk_read(&mut self, slot: u16, chunk: u32, lease: Buffer) {
        let structured = self.negotiated.structured;
        let Some(in_progress) = self.in_progress_mut(slot) else {
            return self.drop_lease(Some(lease));
        };
        let (cookie, request) = (in_progress.request.cookie, in_progress.request);
        if structured {
            let offset_bytes = request.offset_bytes + u64::from(request.chunk(chunk).0);
            let done = in_progress.is_finished();
            in_progress.sent += 1;
            return self.send(Outgoing::data_chunk(cookie, offset_bytes, lease, done));
        }
        if chunk != in_progress.sent {
            return in_progress.early.push((chunk, lease));
        }
        let mut next = Some(lease);
        while let Some(lease) = next {
            let first = self
                .in_progress_mut(slot)
                .is_some_and(|in_progress| in_progress.sent == 0);
            self.send(if first {
                Outgoing::simple_data(cookie, lease)
            } else {
                Outgoing::more_data(lease)
            });
            next = self.in_progress_mut(slot).and_then(|in_progress| {
                in_progress.sent += 1;
                let at = in_progress
                    .early
                    .iter()
                    .position(|(chunk, _)| *chunk == in_progress.sent);
                at.map(|at| in_progress.early.swap_remove(at).1)
            });
        }
    }

    pub(super) fn close_if_finished(&mut self, slot: u16) {
        let Some(entry) = self.in_progress.get_mut(usize::from(slot)) else {
            return;
        };
        if !entry.as_ref().is_some_and(InProgress::is_finished) {
            return;
        }
        let Some(in_progress) = entry.take() else {
            return;
        };
        self.free.push(slot);
        if in_progress.scan.is_some() {
            // The slot is another request's from here on.
            self.scans.retain(|scan| *scan != slot);
        }
        for (_, lease) in in_progress.early {
            self.drop_lease(Some(lease));
        }
        let is_read = in_progress.request.command == Some(Command::Read);
        match in_progress.error {
            Some(_) if is_read && !self.negotiated.structured && in_progress.sent > 0 => {
                // "the server MUST initiate a hard disconnect" when an error comes after the
                // head of a simple reply to a read.
                self.break_off("a read failed after its reply had begun");
            }
            Some(error) => {
                self.reply(
                    in_progress.request.cookie,
                    Reply::Error(error),
                    in_progress.request.command,
                );
            }
            // Its chunks are its reply.
            None if is_read => {}
            None if in_progress.scan.is_some() => {
                let extents = in_progress
                    .scan
                    .map(|scan| scan.extents())
                    .unwrap_or_default();
                self.send(Outgoing::extents(in_progress.request.cookie, &extents));
            }
            None => self.reply(
                in_progress.request.cookie,
                Reply::Done,
                in_progress.request.command,
            ),
        }
    }

    /// Answers a request that is refused, once all of it is received.
    pub(super) fn refuse(&mut self, request: &Request) {
        if let Some(error) = request.refused {
            self.reply(request.cookie, Reply::Error(error), request.command);
        }
    }

    pub(super) fn reply(&mut self, cookie: u64, reply: Reply, command: Option<Command>) {
        let is_structured = matches!(command, Some(Command::Read | Command::BlockStatus { .. }));
        let structured = self.negotiated.structured && is_structured;
        self.send(Outgoing::status(cookie, reply, structured));
    }

    pub(super) fn send(&mut self, outgoing: Outgoing) {
        if self.broken {
            self.drop_lease(outgoing.into_lease());
        } else {
            self.output.push_back(outgoing);
        }
    }

    /// Fills `parts` with what is to be sent, and returns how many it filled.
    #[must_use]
    pub(crate) fn output<'a>(&'a self, parts: &mut [Part<'a>]) -> usize {
        let first = std::iter::once(Part::Bytes(&self.first));
        let all = first.chain(self.output.iter().flat_map(Outgoing::parts));
        let mut count = 0;
        for (place, part) in parts.iter_mut().zip(all.filter(|part| part.len() > 0)) {
            *place = part;
            count += 1;
        }
        count
    }

    /// `count` bytes of the output were sent.
    pub(crate) fn sent(&mut self, mut count: usize) {
        let of_first = count.min(self.first.len());
        self.first.drain(..of_first);
        count -= of_first;
        while count > 0 {
            let Some(first) = self.output.front_mut() else {
                return;
            };
            count -= first.advance(count);
            if first.is_sent()
                && let Some(sent) = self.output.pop_front()
            {
                self.drop_lease(sent.into_lease());
            }
        }
    }
}
