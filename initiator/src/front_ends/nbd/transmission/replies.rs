//! From finished I/Os to replies, and to what is sent.

use capstan_memory::Buffer;

use super::Transmission;
use crate::front_ends::lease::Part;
use crate::front_ends::nbd::open::Open;
use crate::front_ends::nbd::reply::{Outgoing, Reply};
use crate::front_ends::nbd::request::Command;

impl Transmission {
    /// Queues a chunk of a read for sending, in order where the reply has no offsets.
    pub(super) fn chunk_read(&mut self, slot: u16, chunk: u32, lease: Buffer) {
        let structured = self.negotiated.structured;
        let Some(open) = self.open_mut(slot) else {
            return self.drop_lease(Some(lease));
        };
        let (cookie, request) = (open.request.cookie, open.request);
        if structured {
            let offset_bytes = request.offset_bytes + u64::from(request.chunk(chunk).0);
            let done = open.is_finished();
            open.sent += 1;
            return self.send(Outgoing::data_chunk(cookie, offset_bytes, lease, done));
        }
        if chunk != open.sent {
            return open.early.push((chunk, lease));
        }
        let mut next = Some(lease);
        while let Some(lease) = next {
            let first = self.open_mut(slot).is_some_and(|open| open.sent == 0);
            self.send(if first {
                Outgoing::simple_data(cookie, lease)
            } else {
                Outgoing::more_data(lease)
            });
            next = self.open_mut(slot).and_then(|open| {
                open.sent += 1;
                let at = open.early.iter().position(|(chunk, _)| *chunk == open.sent);
                at.map(|at| open.early.swap_remove(at).1)
            });
        }
    }

    pub(super) fn close_if_finished(&mut self, slot: u16) {
        let Some(entry) = self.open.get_mut(usize::from(slot)) else {
            return;
        };
        if !entry.as_ref().is_some_and(Open::is_finished) {
            return;
        }
        let Some(open) = entry.take() else {
            return;
        };
        self.free.push(slot);
        if open.scan.is_some() {
            // The slot is another request's from here on.
            self.scans.retain(|scan| *scan != slot);
        }
        for (_, lease) in open.early {
            self.drop_lease(Some(lease));
        }
        let is_read = open.request.command == Some(Command::Read);
        match open.error {
            Some(_) if is_read && !self.negotiated.structured && open.sent > 0 => {
                // "the server MUST initiate a hard disconnect" when an error comes after the
                // head of a simple reply to a read.
                self.break_off("a read failed after its reply had begun");
            }
            Some(error) => {
                self.reply(
                    open.request.cookie,
                    Reply::Error(error),
                    open.request.command,
                );
            }
            // Its chunks are its reply.
            None if is_read => {}
            None if open.scan.is_some() => {
                let extents = open.scan.map(|scan| scan.extents()).unwrap_or_default();
                self.send(Outgoing::extents(open.request.cookie, &extents));
            }
            None => self.reply(open.request.cookie, Reply::Done, open.request.command),
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
