//! Step 2: completions. A received capsule becomes a command; a pulled transfer goes on to disk; a
//! sent response frees its command.

use capstan_nvme_proto::sqe::Sqe;
use capstan_rdma::contract::{QpNum, WcOpcode, WcStatus, WorkCompletion};
use capstan_transport::rdma::{Receives, WrId};
use capstan_transport::{CapsuleData, InPlace, Landed};

use super::connection::Connection;
use super::phase::Phase;
use super::{IoPath, Resources, admin, execute, waiting};
use crate::limits::SQE_BYTES;

/// A capsule as it arrived.
pub(super) struct Capsule {
    pub(super) sqe: Sqe,
    /// What came behind the SQE. A receive without any is posted again at once.
    pub(super) data: CapsuleData,
}

impl Capsule {
    /// What came with the command, as the controllers look at it.
    pub(super) fn data(&self) -> capstan_subsystem::CapsuleData<'_> {
        match &self.data {
            CapsuleData::InPlace(InPlace { len_bytes, .. }) => {
                capstan_subsystem::CapsuleData::InPlace(*len_bytes)
            }
            CapsuleData::None | CapsuleData::Copied(_) | CapsuleData::Landed(_) => {
                capstan_subsystem::CapsuleData::Bytes(self.bytes())
            }
        }
    }

    /// The bytes that came with the command and can be read here: none while they are in place.
    #[expect(unsafe_code, reason = "reads received bytes in place")]
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.data {
            CapsuleData::None | CapsuleData::InPlace(_) => &[],
            CapsuleData::Copied(bytes) => bytes,
            CapsuleData::Landed(Landed {
                buffer, len_bytes, ..
            }) => {
                // SAFETY: its receive has completed and is posted again only after this capsule
                // gave the buffer away, and the region grants hosts no remote access, so nobody
                // writes it.
                let bytes = unsafe { buffer.bytes() };
                bytes.get(..*len_bytes as usize).unwrap_or(bytes)
            }
        }
    }

    /// Puts data that is in place into a receive, where it can stay. `false` when the connection
    /// has ended meanwhile, and the data with it.
    #[must_use]
    pub(super) fn land(&mut self, connection: &mut Connection, receives: &mut Receives) -> bool {
        let CapsuleData::InPlace(in_place) = self.data else {
            return true;
        };
        let landed = connection.transport.land(in_place, receives);
        let is_landed = landed.is_some();
        self.data = landed.map_or(CapsuleData::None, CapsuleData::Landed);
        is_landed
    }
}

impl IoPath {
    /// Handles up to a budget of completions of every device. How many there were.
    pub(super) fn poll_completions(&mut self) -> u32 {
        let mut all = 0;
        self.resources.in_flight = 0;
        self.resources.told = 0;
        let mut completions = std::mem::take(&mut self.work_completions);
        let mut last = None;
        for fabric in 0..self.fabrics.len() {
            for port in 0..self.fabrics[fabric].ports.len() {
                let Some(device) = self.fabrics[fabric].port(port) else {
                    continue;
                };
                let count = device.cq.poll(&mut completions);
                let polled = u32::try_from(count).unwrap_or(u32::MAX);
                all += polled;
                let emptied = count < completions.len();
                for completion in &completions[..count] {
                    self.on_completion(fabric, port, completion, &mut last);
                }
                last = None;
                if !self.fences.is_empty() {
                    self.fences.polled(fabric, port, polled, emptied);
                }
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
        let success = completion.status == WcStatus::Success;
        let deaf = |connection: &Connection| connection.closing() || self.resources.draining;
        if success && completion.opcode == WcOpcode::RecvLent {
            if let Some(connection) = connection.filter(|connection| !deaf(connection)) {
                on_lent(
                    &mut self.resources,
                    connection,
                    &mut port.receives,
                    completion,
                );
            }
            return;
        }
        let id = WrId::decode(completion.wr_id);
        if let Some(WrId::Recv(slot)) = id {
            let Some(connection) = connection.filter(|connection| success && !deaf(connection))
            else {
                let _ = port.receives.repost(slot, None);
                return;
            };
            return on_receive(
                &mut self.resources,
                connection,
                &mut port.receives,
                (slot, completion.byte_len),
            );
        }
        if let Some(WrId::RecvInPlace(at)) = id {
            if let Some(connection) = connection.filter(|connection| success && !deaf(connection)) {
                on_receive_in_place(
                    &mut self.resources,
                    connection,
                    &mut port.receives,
                    (at, completion.byte_len),
                );
            }
            return;
        }
        let Some(connection) = connection else { return };
        connection.transport.completed();
        connection.progress.moved();
        if !success {
            if !connection.closing() {
                let why = format!("a work request ended with: {}", completion.status);
                self.resources.end(connection, why);
            }
            return;
        }
        match id {
            Some(WrId::Pull(slot)) => execute::on_pulled(&mut self.resources, connection, slot),
            Some(WrId::Push(slot)) => admin::on_pushed(&mut self.resources, connection, slot),
            Some(WrId::Respond(slot)) => {
                self.resources.told += 1;
                if let Some(why) = connection.responded(slot) {
                    self.resources.end(connection, why);
                }
                waiting::spare_came_back(&mut self.resources, connection);
            }
            Some(WrId::Recv(_) | WrId::RecvInPlace(_)) | None => {}
        }
        self.resources.note_in_flight(connection);
    }
}

/// A capsule has come and took no receive.
fn on_lent(
    resources: &mut Resources,
    connection: &mut Connection,
    receives: &mut Receives,
    completion: &WorkCompletion,
) {
    let message = completion.wr_id;
    let Some(head) = connection.transport.sqe_of(message) else {
        return;
    };
    let len_bytes = completion.byte_len.saturating_sub(SQE_BYTES);
    // Made in its final place: a wide load behind narrow stores waits for all stores before it.
    let mut capsule = Capsule {
        sqe: zerocopy::transmute!(head),
        data: if len_bytes == 0 {
            CapsuleData::None
        } else {
            CapsuleData::InPlace(InPlace { message, len_bytes })
        },
    };
    on_capsule(resources, connection, receives, &mut capsule);
}

/// A capsule has come, of so many bytes into the receive of a slot.
fn on_receive(
    resources: &mut Resources,
    connection: &mut Connection,
    receives: &mut Receives,
    (slot, byte_len): (u32, u32),
) {
    let mut capsule = Capsule {
        sqe: zerocopy::transmute!(receives.sqe(slot)),
        data: CapsuleData::None,
    };
    let len_bytes = byte_len.saturating_sub(SQE_BYTES);
    if len_bytes == 0 {
        let _ = receives.repost(slot, Some(connection.transport.qp()));
    } else if let Some(buffer) = receives.take_data(slot) {
        capsule.data = CapsuleData::Landed(Landed {
            receive: slot,
            buffer,
            len_bytes,
        });
    }
    on_landed(resources, connection, receives, (&mut capsule, byte_len));
}

/// A capsule has come into one of the receives in the connection's place.
fn on_receive_in_place(
    resources: &mut Resources,
    connection: &mut Connection,
    receives: &mut Receives,
    (at, byte_len): (u16, u32),
) {
    let mut capsule = Capsule {
        sqe: zerocopy::transmute!(connection.transport.sqe_in_place(at)),
        data: match byte_len.saturating_sub(SQE_BYTES) {
            0 => CapsuleData::None,
            len_bytes => CapsuleData::Copied(connection.transport.list_in_place(at, len_bytes)),
        },
    };
    if let Err(error) = connection.transport.post_in_place(at) {
        let why = format!("a receive could not be posted again: {error}");
        return resources.end(connection, why);
    }
    on_landed(resources, connection, receives, (&mut capsule, byte_len));
}

/// A capsule of `byte_len` bytes is out of its receive.
fn on_landed(
    resources: &mut Resources,
    connection: &mut Connection,
    receives: &mut Receives,
    (capsule, byte_len): (&mut Capsule, u32),
) {
    if byte_len < SQE_BYTES {
        let why = format!("a capsule of {byte_len} bytes, expected at least {SQE_BYTES}");
        return resources.end(connection, why);
    }
    on_capsule(resources, connection, receives, capsule);
}

fn on_capsule(
    resources: &mut Resources,
    connection: &mut Connection,
    receives: &mut Receives,
    capsule: &mut Capsule,
) {
    let may_be_lent = connection.phase == Phase::Io && execute::writes_capsule_data(&capsule.sqe);
    if !may_be_lent && !capsule.land(connection, receives) {
        return resources.lost(connection);
    }
    match connection.phase {
        Phase::Io => execute::start(resources, connection, receives, capsule),
        Phase::AwaitingConnect { .. } | Phase::AwaitingData { .. } | Phase::Admin => {
            admin::start(resources, connection, capsule);
        }
        Phase::Refused { .. } => {
            resources.give_back_receive(connection, capsule.data.take());
            let why = "the host sent a command though its Connect was refused";
            resources.end(connection, why);
        }
        Phase::Closing { .. } => {
            resources.give_back_receive(connection, capsule.data.take());
        }
    }
    resources.note_in_flight(connection);
}
