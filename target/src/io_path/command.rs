//! One command in flight: what it is, how far it is, and what it has.

use capstan_memory::Buffer;
use capstan_nvme_proto::status::Status;
use capstan_storage::Data;
use capstan_subsystem::{AdminRequest, ControlCommand, IoCommand, IoOperation};
use capstan_transport::{HostMemory, Landed, Receive};

use super::admin::{Connect, Returning};
use super::on_medium::Step;
use super::ranges::Ranges;

/// What a slot holds: a command, in the state in which it waits for something.
#[derive(Default)]
pub(super) enum Command {
    /// Nothing, or a command that is being carried on right now.
    #[default]
    Empty,
    /// It waits for a buffer of so many bytes, for room or for its turn.
    Waiting {
        work: Work,
        holds: Holds,
        wanted_bytes: u32,
    },
    /// Its data is on its way from the host.
    Pulling {
        work: Work,
        holds: Holds,
        /// The status with which it is answered, instead of going on, when the pull has ended.
        aborted: Option<Status>,
    },
    /// A Connect whose data is there, until the end of the turn.
    Connecting(Box<Connect>, Holds),
    /// The storage engine has an operation of it.
    OnMedium(OnMedium),
    /// A reservation command that waits for commands of others, and the host's memory of its data.
    Held(Box<ControlCommand>, HostMemory),
    /// A piece of what it returns is on its way to the host, and there is more.
    Pushing(Box<Returning>, Holds),
    /// The response is on its way; the slot is free when its Send, or one after it, has completed.
    Responding(Responding),
}

/// A command before it is answered.
pub(super) enum Work {
    /// A Connect, which makes the connection a queue.
    Connect(Box<Connect>),
    /// A command of an Admin queue.
    Admin(Box<AdminRequest>),
    /// An I/O command.
    Io(IoCommand),
    /// A command of an I/O queue that the controllers execute.
    Control(Box<ControlCommand>),
}

impl Work {
    /// Command Identifier.
    pub(super) fn cid(&self) -> u16 {
        match self {
            Self::Connect(connect) => connect.sqe.cid.get(),
            Self::Admin(request) => request.cid(),
            Self::Io(io) => io.permit.cid(),
            Self::Control(control) => control.permit.cid(),
        }
    }

    /// Bytes of its data.
    pub(super) fn data_bytes(&self) -> u32 {
        match self {
            Self::Connect(connect) => connect.data_bytes,
            Self::Admin(request) => request.data_bytes(),
            Self::Io(io) => io.data_bytes,
            Self::Control(control) => control.data_bytes(),
        }
    }

    /// Whether its data, if it has any, comes from the host.
    pub(super) fn brings_data(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Admin(request) => request.brings_data(),
            Self::Io(io) => !io.operation.moves_data_to_host(),
            Self::Control(control) => !control.moves_data_to_host(),
        }
    }
}

/// An I/O command from its first storage operation on.
pub(super) struct OnMedium {
    pub(super) io: IoCommand,
    pub(super) holds: Holds,
    /// The storage operation under way.
    pub(super) step: Step,
    /// What is left of a command of several ranges.
    pub(super) ranges: Option<Box<Ranges>>,
    /// The status with which it is answered, instead of going on, when that operation has ended.
    pub(super) aborted: Option<Status>,
}

/// What an answered command keeps until its response has left.
#[derive(Default)]
pub(super) struct Responding {
    /// Which buffer the queue has, where data is pushed from one.
    lent: Option<Lent>,
    /// As in [`Holds`].
    extra_wrs: u32,
    /// Why the connection is closed when the response has gone.
    close_after: Option<&'static str>,
}

/// Where a buffer that the queue has goes back to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lent {
    /// To its pool.
    Leased,
    /// To the connection: it is the spare buffer.
    Spare,
}

impl Responding {
    /// The last response of a connection, which is closed behind it.
    pub(super) fn last(why: &'static str) -> Self {
        Self {
            close_after: Some(why),
            ..Self::default()
        }
    }

    /// Why the connection is closed when it has gone.
    pub(super) fn close_after(&self) -> Option<&'static str> {
        self.close_after
    }

    /// Whether the completion of the response is needed: the connection is closed then, or a buffer
    /// or work requests come free.
    pub(super) fn waits(&self) -> bool {
        self.lent.is_some() || self.close_after.is_some() || self.extra_wrs > 0
    }

    /// The buffer that the queue had has come back. Returns it where it is the spare buffer.
    pub(super) fn take_back(&mut self, buffer: Buffer) -> Option<Buffer> {
        let lent = self.lent.take();
        (lent == Some(Lent::Spare)).then_some(buffer)
    }

    /// The work requests that come free with the response.
    pub(super) fn extra_wrs(&self) -> u32 {
        self.extra_wrs
    }
}

/// What a command has until it is answered.
#[derive(Default)]
pub(super) struct Holds {
    /// The host's memory that its data is pulled from or pushed to.
    pub(super) host: HostMemory,
    /// Work requests reserved for a host SGL of several buffers, beyond the two of each command.
    pub(super) extra_wrs: u32,
    /// The host's data, where it came in the capsule.
    capsule: Option<Received>,
    /// In-capsule data, copied as no buffer was free: of Connect and Admin commands only.
    copied: Option<Box<[u8]>>,
    /// Its memory beside in-capsule data.
    pub(super) own: Own,
}

/// In-capsule data, in the receive that it came in.
struct Received {
    receive: Receive,
    offset_bytes: u32,
    /// `None` while the storage engine has it.
    buffer: Option<Buffer>,
}

/// Memory of this side that a command has for its data.
#[derive(Default)]
pub(super) enum Own {
    /// None.
    #[default]
    Nothing,
    /// A buffer of a pool.
    Leased(Buffer),
    /// The spare buffer of the queue.
    Spare(Buffer),
    /// The storage engine has it, or the wire.
    AtEngine { is_spare: bool },
}

impl Own {
    pub(super) fn buffer(&self) -> Option<&Buffer> {
        match self {
            Self::Leased(buffer) | Self::Spare(buffer) => Some(buffer),
            Self::Nothing | Self::AtEngine { .. } => None,
        }
    }

    pub(super) fn buffer_mut(&mut self) -> Option<&mut Buffer> {
        match self {
            Self::Leased(buffer) | Self::Spare(buffer) => Some(buffer),
            Self::Nothing | Self::AtEngine { .. } => None,
        }
    }

    /// Frees memory that is not needed any more. The spare buffer is freed with the slot.
    pub(super) fn release(&mut self) {
        if !matches!(self, Self::Spare(_)) {
            *self = Self::Nothing;
        }
    }

    /// The buffer, for the storage engine.
    fn lend(&mut self) -> Option<Buffer> {
        match std::mem::take(self) {
            Self::Leased(buffer) => {
                *self = Self::AtEngine { is_spare: false };
                Some(buffer)
            }
            Self::Spare(buffer) => {
                *self = Self::AtEngine { is_spare: true };
                Some(buffer)
            }
            other @ (Self::Nothing | Self::AtEngine { .. }) => {
                *self = other;
                None
            }
        }
    }
}

impl Holds {
    /// What a command has whose data is in `host`.
    pub(super) fn new(host: HostMemory) -> Self {
        Self {
            host,
            ..Self::default()
        }
    }

    /// Keeps the receive with the in-capsule data.
    pub(super) fn keep(&mut self, landed: Landed) {
        self.capsule = Some(Received {
            receive: landed.receive,
            offset_bytes: landed.offset_bytes,
            buffer: Some(landed.buffer),
        });
    }

    /// Keeps a copy of the in-capsule data.
    pub(super) fn keep_copied(&mut self, bytes: Box<[u8]>) {
        self.copied = Some(bytes);
    }

    pub(super) fn has_capsule_data(&self) -> bool {
        self.capsule.is_some()
    }

    /// The command is answered. Returns what it keeps until its response has left, and the spare
    /// buffer if the command had it.
    pub(super) fn answered(self) -> (Responding, Option<Buffer>) {
        let (lent, spare) = match self.own {
            Own::AtEngine { is_spare: false } => (Some(Lent::Leased), None),
            Own::AtEngine { is_spare: true } => (Some(Lent::Spare), None),
            Own::Spare(buffer) => (None, Some(buffer)),
            Own::Nothing | Own::Leased(_) => (None, None),
        };
        let responding = Responding {
            lent,
            extra_wrs: self.extra_wrs,
            close_after: None,
        };
        (responding, spare)
    }

    /// The receive that is to be posted again, and its buffer.
    pub(super) fn take_receive(&mut self) -> Option<(Receive, Buffer)> {
        let Received {
            receive, buffer, ..
        } = self.capsule.take()?;
        Some((receive, buffer?))
    }

    /// Where the host's data is, once it is here: the buffer, and its offset there.
    pub(super) fn data(&self) -> Option<(&Buffer, u32)> {
        match &self.capsule {
            Some(received) => Some((received.buffer.as_ref()?, received.offset_bytes)),
            None => Some((self.own.buffer()?, 0)),
        }
    }

    /// A copy of the first `len_bytes` of the host's data; `None` where that is not here.
    pub(super) fn data_bytes(&self, len_bytes: u32) -> Option<Vec<u8>> {
        let len = len_bytes as usize;
        if len == 0 {
            return Some(Vec::new());
        }
        if let Some(copied) = &self.copied {
            return Some(copied.get(..len)?.to_vec());
        }
        let (data, offset_bytes) = self.data()?;
        let end = offset_bytes.checked_add(len_bytes)?;
        (end <= data.len_bytes()).then(|| {
            let mut bytes = vec![0; len];
            data.copy_to(offset_bytes as usize, &mut bytes);
            bytes
        })
    }

    /// The host's data, for a storage operation that writes it.
    pub(super) fn lend_data(&mut self) -> Option<Data> {
        match &mut self.capsule {
            Some(received) => Some(Data {
                buffer: received.buffer.take()?,
                offset_bytes: received.offset_bytes,
            }),
            None => self.lend_own(0),
        }
    }

    /// The memory beside in-capsule data from an offset on, for a storage operation.
    pub(super) fn lend_own(&mut self, offset_bytes: u32) -> Option<Data> {
        Some(Data {
            buffer: self.own.lend()?,
            offset_bytes,
        })
    }

    /// Where a Compare of `len_bytes` reads the medium to: behind the host's data, or a buffer of
    /// its own.
    fn compare_offset(&self, len_bytes: u32) -> u32 {
        if self.has_capsule_data() {
            0
        } else {
            len_bytes
        }
    }

    /// The memory that a Compare of `len_bytes` reads the medium to, for a storage operation.
    pub(super) fn lend_for_compare(&mut self, len_bytes: u32) -> Option<Data> {
        self.lend_own(self.compare_offset(len_bytes))
    }

    /// Takes back what a storage operation had.
    pub(super) fn take_back(&mut self, data: Option<Data>) {
        if let Some(Data { buffer, .. }) = data {
            self.take_back_buffer(buffer);
        }
    }

    /// Takes back a buffer that the storage engine or the queue had.
    pub(super) fn take_back_buffer(&mut self, buffer: Buffer) {
        if let Own::AtEngine { is_spare } = self.own {
            self.own = if is_spare {
                Own::Spare(buffer)
            } else {
                Own::Leased(buffer)
            };
        } else if let Some(received) = &mut self.capsule {
            received.buffer = Some(buffer);
        }
    }

    /// Compare: whether the host's data and the medium's are equal.
    pub(super) fn compare(&self, len_bytes: u32) -> Status {
        let (Some(expected), Some(own)) = (self.data(), self.own.buffer()) else {
            return Status::INTERNAL_ERROR;
        };
        let found = (own, self.compare_offset(len_bytes));
        if equal(expected, found, len_bytes) {
            Status::SUCCESS
        } else {
            Status::COMPARE_FAILURE.dnr()
        }
    }
}

impl OnMedium {
    /// The data for a storage operation that writes: the host's, or what a Copy has read.
    pub(super) fn lend_written(&mut self) -> Option<Data> {
        match self.io.operation {
            IoOperation::Copy { .. } => self.holds.lend_own(0),
            _ => self.holds.lend_data(),
        }
    }
}

impl Command {
    /// The command, while it is not answered: for log lines that name it.
    pub(super) fn not_answered(&self) -> Option<NotAnswered<'_>> {
        match self {
            Self::Waiting { work, .. } | Self::Pulling { work, .. } => match work {
                Work::Io(io) => Some(NotAnswered::Io(io)),
                Work::Control(control) => Some(NotAnswered::Control(control)),
                Work::Connect(_) | Work::Admin(_) => None,
            },
            Self::OnMedium(on) => Some(NotAnswered::Io(&on.io)),
            Self::Held(..) => Some(NotAnswered::Held),
            Self::Empty | Self::Connecting(..) | Self::Pushing(..) | Self::Responding(_) => None,
        }
    }

    /// The buffers and the receive that the command has, until it is answered.
    pub(super) fn holds_mut(&mut self) -> Option<&mut Holds> {
        match self {
            Self::Waiting { holds, .. }
            | Self::Pulling { holds, .. }
            | Self::Connecting(_, holds)
            | Self::Pushing(_, holds)
            | Self::OnMedium(OnMedium { holds, .. }) => Some(holds),
            Self::Empty | Self::Held(..) | Self::Responding(_) => None,
        }
    }

    /// Whether it has a buffer that others could use.
    pub(super) fn has_buffer(&self) -> bool {
        let own = match self {
            Self::Waiting { holds, .. }
            | Self::Pulling { holds, .. }
            | Self::Connecting(_, holds)
            | Self::Pushing(_, holds)
            | Self::OnMedium(OnMedium { holds, .. }) => &holds.own,
            Self::Responding(responding) => return responding.lent == Some(Lent::Leased),
            Self::Empty | Self::Held(..) => return false,
        };
        // A leased buffer that the queue owns during a pull.
        let at_wire = matches!(own, Own::AtEngine { is_spare: false })
            && matches!(self, Self::Pulling { .. });
        matches!(own, Own::Leased(_)) || at_wire
    }

    /// How many bytes are on their way from the host.
    pub(super) fn pulled_bytes(&self) -> Option<u32> {
        match self {
            Self::Pulling { work, .. } => Some(work.data_bytes()),
            _ => None,
        }
    }
}

/// A command of an I/O queue that is not answered.
pub(super) enum NotAnswered<'a> {
    /// An I/O command.
    Io(&'a IoCommand),
    /// One that the controllers are still to execute.
    Control(&'a ControlCommand),
    /// One that they have executed, and that waits for commands of others.
    Held,
}

/// Whether `len_bytes` of two buffers, each from its offset, are equal.
fn equal(left: (&Buffer, u32), right: (&Buffer, u32), len_bytes: u32) -> bool {
    const CHUNK: usize = 4096;
    let (mut a, mut b) = ([0; CHUNK], [0; CHUNK]);
    (0..len_bytes as usize).step_by(CHUNK).all(|at| {
        let len = CHUNK.min(len_bytes as usize - at);
        left.0.copy_to(left.1 as usize + at, &mut a[..len]);
        right.0.copy_to(right.1 as usize + at, &mut b[..len]);
        a[..len] == b[..len]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_is_not_here_is_none() {
        let mut holds = Holds::default();
        assert_eq!(holds.data_bytes(0), Some(Vec::new()));
        assert_eq!(holds.data_bytes(3), None);
        holds.keep_copied([1, 2, 3].into());
        assert_eq!(holds.data_bytes(3), Some(vec![1, 2, 3]));
        assert_eq!(holds.data_bytes(4), None);
    }
}
