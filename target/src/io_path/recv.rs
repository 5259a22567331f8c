//! Step 2: completions. A received capsule becomes a command; a pulled transfer goes on to disk; a
//! sent response frees its command.

use capstan_memory::{Buffer, RawBytes};
use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::contract::{QpNum, WcStatus, WorkCompletion};

use super::connection::Connection;
use super::phase::Phase;
use super::wr_id::WrId;
use super::{IoPath, Resources, admin, execute};
use crate::limits::SQE_BYTES;

/// A capsule as it arrived.
pub(super) struct Capsule {
    pub(super) sqe: Sqe,
    /// What came behind the SQE. A receive without any is posted again at once.
    pub(super) data: Option<Received>,
}

/// A receive that is not posted again yet, because its data is in use.
pub(super) struct Received {
    pub(super) slot: u32,
    pub(super) buffer: Buffer,
    /// Bytes that arrived.
    pub(super) len_bytes: u32,
}

impl Received {
    /// Lets `take` copy the data from where it has come, if it is there still: whether `take` did so.
    /// Otherwise the data is in the buffer from here on. Called once for each receive with data, first of
    /// all.
    pub(super) fn take_lent(
        &self,
        connection: &mut Connection,
        take: &mut dyn FnMut(RawBytes<'_>) -> bool,
    ) -> bool {
        let wr_id = WrId::Recv(self.slot).encode();
        connection.qp().take_lent(wr_id, take)
    }
}

impl Capsule {
    /// The data that came with the command.
    #[expect(unsafe_code, reason = "reads received bytes in place")]
    pub(super) fn bytes(&self) -> &[u8] {
        let Some(received) = &self.data else {
            return &[];
        };
        // SAFETY: its receive has completed and is posted again only after this capsule gave the
        // buffer away, and the region grants hosts no remote access, so nobody writes it.
        let bytes = unsafe { received.buffer.bytes() };
        bytes.get(..received.len_bytes as usize).unwrap_or(bytes)
    }
}

impl IoPath {
    /// Handles up to a budget of completions of every device. How many there were.
    pub(super) fn poll_completions(&mut self) -> u32 {
        let mut all = 0;
        self.resources.in_flight = 0;
        let mut completions = std::mem::take(&mut self.work_completions);
        let mut last = None;
        for fabric in 0..self.fabrics.len() {
            for port in 0..self.fabrics[fabric].ports.len() {
                let Some(device) = self.fabrics[fabric].port(port) else {
                    continue;
                };
                let count = device.cq.poll(&mut completions);
                all += u32::try_from(count).unwrap_or(u32::MAX);
                for completion in &completions[..count] {
                    self.on_completion(fabric, port, completion, &mut last);
                }
                // Before what was lent is taken back.
                self.resources.trickle.finish();
                last = None;
            }
        }
        self.work_completions = completions;
        all
    }

    /// `last` is the connection of the completion before: there often are several of one.
    fn on_completion(
        &mut self,
        fabric: usize,
        port: usize,
        completion: &WorkCompletion,
        last: &mut Option<(QpNum, usize)>,
    ) {
        let Some(port) = self.fabrics[fabric].port(port) else {
            return;
        };
        if last.is_none_or(|(qp, _)| qp != completion.qp) {
            let index = port.connection_of.get(&completion.qp);
            *last = index.map(|&index| (completion.qp, index));
        }
        let connection = last.and_then(|(_, index)| self.connections.get_mut(index));
        let id = WrId::decode(completion.wr_id);
        if let Some(WrId::Recv(slot)) = id {
            let Some(connection) = connection else {
                let _ = port.receives.repost(slot, None);
                return;
            };
            let deaf = connection.closing() || self.resources.draining;
            if completion.status != WcStatus::Success || deaf {
                connection.qp().take_lent(completion.wr_id, &mut |_| true);
                let _ = port.receives.repost(slot, None);
                return;
            }
            self.resources.step();
            // In its place from the start: pieces of it that are loaded as a whole wait for every store before.
            let mut capsule = Capsule {
                sqe: zerocopy::transmute!(port.receives.sqe(slot)),
                data: None,
            };
            let len_bytes = completion.byte_len.saturating_sub(SQE_BYTES);
            if len_bytes == 0 {
                let _ = port.receives.repost(slot, Some(connection.qp()));
            } else if let Some(buffer) = port.receives.take_data(slot) {
                capsule.data = Some(Received {
                    slot,
                    buffer,
                    len_bytes,
                });
            }
            self.resources.step();
            if completion.byte_len < SQE_BYTES {
                let bytes = completion.byte_len;
                let why = format!("a capsule of {bytes} bytes, expected at least {SQE_BYTES}");
                return self.resources.broken.push((connection.index, why));
            }
            on_capsule(&mut self.resources, connection, &mut capsule);
            return self.resources.note_in_flight(connection);
        }
        let Some(connection) = connection else { return };
        connection.sends_outstanding = connection.sends_outstanding.saturating_sub(1);
        if completion.status != WcStatus::Success {
            if !connection.closing() {
                let why = format!("a work request ended with: {}", completion.status);
                self.resources.broken.push((connection.index, why));
            }
            return;
        }
        match id {
            Some(WrId::Pull(slot)) => execute::on_pulled(&mut self.resources, connection, slot),
            Some(WrId::Respond(slot)) => {
                if let Some(why) = connection.command(slot).close_after {
                    self.resources
                        .broken
                        .push((connection.index, why.to_owned()));
                }
                connection.free_slot(slot);
            }
            Some(WrId::Recv(_)) | None => {}
        }
        self.resources.note_in_flight(connection);
    }
}

fn on_capsule(resources: &mut Resources, connection: &mut Connection, capsule: &mut Capsule) {
    if let Some(received) = &capsule.data
        && !(connection.phase == Phase::Io && execute::writes_capsule_data(&capsule.sqe))
    {
        received.take_lent(connection, &mut |_| false);
    }
    match connection.phase {
        Phase::Io => execute::start(resources, connection, capsule),
        Phase::AwaitingConnect { .. } | Phase::Admin => {
            admin::start(resources, connection, capsule);
        }
        Phase::Refused { .. } => {
            resources.give_back_receive(connection, capsule.data.take());
            let why = "the host sent a command though its Connect was refused".to_owned();
            resources.broken.push((connection.index, why));
        }
        Phase::Closing { .. } => {
            resources.give_back_receive(connection, capsule.data.take());
        }
    }
}
