//! From a waiting request to a command that is sent.

use capstan_memory::Buffer;
use capstan_nvme_proto::command::{
    Compare, DatasetManagement, Flush, IoCommand, LbaRange, Read, Verify, Write, WriteZeroes,
};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_transport::host::{Offer, SendError, Span};

use super::engine::{AssociationEngine, DISCARD_BYTES, Owner, Slot};
use super::io::{Direction, Io, Op};
use super::request::Piece;
use crate::error::{ConnectError, IoError};
use crate::host::{CommandData, ControllerInfo, NamespaceInfo, SlotIndex};

/// Most blocks of a command without data: NLB counts to 65536.
const NLB_MAX: u32 = 1 << 16;

/// How the data of a command travels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Travel {
    InCapsule,
    ToController,
    FromController,
}

/// The data of a command, in the buffer that the owner of the command has.
#[derive(Clone, Copy)]
pub(super) struct Data {
    travel: Travel,
    offset_bytes: u32,
    len_bytes: u32,
}

impl Data {
    /// Goes in the capsule where that has room for `room_bytes`.
    pub(super) fn put_in_capsule(&mut self, room_bytes: u32) {
        if self.travel == Travel::ToController && self.len_bytes <= room_bytes {
            self.travel = Travel::InCapsule;
        }
    }

    fn of(self, buffer: &Buffer) -> Offer<'_> {
        let span = Span {
            buffer,
            offset_bytes: self.offset_bytes,
            len_bytes: self.len_bytes,
        };
        match self.travel {
            Travel::InCapsule => Offer::InCapsule(span),
            Travel::ToController => Offer::ToController(span),
            Travel::FromController => Offer::FromController(span),
        }
    }
}

impl AssociationEngine {
    /// Sends what waits, as far as credit and the wire allow.
    pub(super) fn dispatch(&mut self, now_us: u64) -> bool {
        if !self.host.is_live() || self.is_resetting() {
            return false;
        }
        let mut busy = false;
        while let Some(request) = self.requests.peek() {
            let io = request.io;
            if self.careful && self.is_kept_back(&io, now_us) {
                busy = true;
                continue;
            }
            let checked = self.blocks_max(&io);
            let nlb_max = match checked {
                Ok(nlb_max) => nlb_max,
                Err(error) => {
                    busy = true;
                    if let Some(piece) = self.requests.next_piece(u32::MAX) {
                        self.requests.finish(piece.request, Err(error));
                    }
                    continue;
                }
            };
            let Some(qid) = self.pick_queue() else {
                break;
            };
            let Some(piece) = self.requests.next_piece(nlb_max) else {
                break;
            };
            busy = true;
            if let Err(error) = self.issue(qid, piece, &io, now_us) {
                let what = error.to_string();
                self.host
                    .handle_broken(ConnectError::Protocol { qid, what }, now_us);
                break;
            }
        }
        if busy {
            self.wire.flush();
        }
        busy
    }

    /// The next I/O queue that takes a command now.
    pub(super) fn pick_queue(&mut self) -> Option<u16> {
        let count = self.host.io_queues();
        for _ in 0..count {
            let qid = self.next_qid;
            self.next_qid = if qid >= count { 1 } else { qid + 1 };
            if self.wire.has_room(qid) && self.host.queue(qid).is_some_and(|q| q.credit() > 0) {
                return Some(qid);
            }
        }
        None
    }

    /// Most blocks of one command of `io`, when it is possible on its namespace at all.
    fn blocks_max(&self, io: &Io) -> Result<u32, IoError> {
        let Some(namespace) = self.namespace(io.nsid) else {
            let namespaces = self.host.namespaces();
            let unidentified = self.host.unidentified();
            return Err(IoError::no_namespace(
                self.subnqn(),
                io.nsid,
                namespaces,
                unidentified,
            ));
        };
        if let Some(unusable) = &namespace.unusable {
            return Err(unusable.to_error(io.nsid));
        }
        let (slba, nlb) = io.op.range();
        let end = slba.checked_add(u64::from(nlb));
        if end.is_none_or(|end| end > namespace.nsze_lbas) {
            return Err(IoError::Invalid {
                what: "last LBA",
                value: slba.saturating_add(u64::from(nlb).saturating_sub(1)),
                expected: "inside the namespace",
            });
        }
        supported(&io.op, self.host.controller())?;
        let data_max = self.transfer_bytes_max() / namespace.lba_bytes;
        Ok(match io.op {
            Op::Read { .. } | Op::Write { .. } | Op::Compare { .. } => data_max.clamp(1, NLB_MAX),
            Op::Verify { .. } | Op::WriteZeroes { .. } => NLB_MAX,
            Op::Flush | Op::Discard { .. } => u32::MAX,
        })
    }

    fn issue(&mut self, qid: u16, piece: Piece, io: &Io, now_us: u64) -> Result<(), SendError> {
        let Some((slot, cid)) = self.host.queue(qid).and_then(|queue| queue.submit()) else {
            self.requests.put_back(piece);
            return Ok(());
        };
        let lba_bytes = self.namespace(io.nsid).map_or(0, |n| n.lba_bytes);
        let mut sqe = encode(io, piece).encode(cid, Sgl::EMPTY);
        let (data, fits) = self.data(io, piece, lba_bytes);
        if !fits {
            // The buffer was made for another LBA size than the namespace has.
            if let Some(queue) = self.host.queue(qid) {
                queue.withdraw(slot);
            }
            let error = IoError::Invalid {
                what: "buffer length",
                value: u64::from(piece.first_lba + piece.nlb) * u64::from(lba_bytes),
                expected: "at most the length of the buffer",
            };
            self.requests.finish(piece.request, Err(error));
            return Ok(());
        }
        self.post(qid, slot, &mut sqe, data, Owner::Io(piece), now_us)
    }

    /// How the data of a piece travels, and whether its buffer holds it.
    fn data(&self, io: &Io, piece: Piece, lba_bytes: u32) -> (Option<Data>, bool) {
        let request = self.requests.get(piece.request);
        let Some(buffer) = request.and_then(|request| request.buffer.as_ref()) else {
            return (None, io.op.direction() == Direction::None);
        };
        let (offset, len_bytes, direction) = match io.op {
            Op::Discard { .. } => (0, u64::from(DISCARD_BYTES), Direction::Out),
            _ => (
                u64::from(piece.first_lba) * u64::from(lba_bytes),
                u64::from(piece.nlb) * u64::from(lba_bytes),
                io.op.direction(),
            ),
        };
        if direction == Direction::None {
            return (None, true);
        }
        let fits = offset + len_bytes <= u64::from(buffer.len_bytes());
        let (Ok(offset_bytes), Ok(len_bytes)) = (u32::try_from(offset), u32::try_from(len_bytes))
        else {
            return (None, false);
        };
        let travel = match direction {
            Direction::In => Travel::FromController,
            _ if len_bytes <= self.host.controller().in_capsule_bytes
                && self.wire.takes_in_capsule() =>
            {
                Travel::InCapsule
            }
            _ => Travel::ToController,
        };
        let data = Data {
            travel,
            offset_bytes,
            len_bytes,
        };
        (Some(data), fits)
    }

    /// Sends one command and notes what waits for it.
    pub(super) fn post(
        &mut self,
        qid: u16,
        slot: SlotIndex,
        sqe: &mut Sqe,
        data: Option<Data>,
        owner: Owner,
        now_us: u64,
    ) -> Result<(), SendError> {
        let queue = self.queues.get_mut(usize::from(qid));
        let slots = queue.and_then(Option::as_mut);
        let Some(entry) = slots.and_then(|slots| slots.get_mut(slot.index())) else {
            return Err(SendError::NotConnected);
        };
        // Noted before it is sent: whatever fails, the piece is found and sent again.
        *entry = Slot {
            owner,
            await_response: true,
            sent_us: now_us,
            ..Slot::free()
        };
        let buffer = match &entry.owner {
            Owner::Io(piece) => self
                .requests
                .get(piece.request)
                .and_then(|request| request.buffer.as_ref()),
            Owner::Host { data, .. } | Owner::Passthru { data, .. } => data.as_ref(),
            Owner::Free => None,
        };
        let offer = match (data, buffer) {
            (Some(data), Some(buffer)) => data.of(buffer),
            _ => Offer::None,
        };
        self.wire.send(qid, slot.0, sqe, offer)
    }

    /// Sends a command of the host state machine.
    pub(super) fn send_for_host(
        &mut self,
        qid: u16,
        slot: SlotIndex,
        mut sqe: Sqe,
        mut buffer: Option<Buffer>,
        data: &CommandData,
        now_us: u64,
    ) {
        let (mut staged, read_bytes) = Self::stage(buffer.as_mut(), data);
        if let Some(staged) = &mut staged {
            staged.put_in_capsule(self.wire.admin_in_capsule_bytes());
        }
        let owner = Owner::Host {
            data: buffer,
            read_bytes,
        };
        if let Err(error) = self.post(qid, slot, &mut sqe, staged, owner, now_us) {
            let what = error.to_string();
            self.host
                .handle_broken(ConnectError::Protocol { qid, what }, now_us);
        }
    }

    /// Puts the data of a command into its buffer, or clears the buffer for it: how it travels, and
    /// the bytes to read out at the end.
    pub(super) fn stage(buffer: Option<&mut Buffer>, data: &CommandData) -> (Option<Data>, u32) {
        let Some(buffer) = buffer else {
            return (None, 0);
        };
        let len_bytes = data.len_bytes();
        let (travel, read_bytes) = match data {
            CommandData::None => return (None, 0),
            CommandData::ToController(bytes) => {
                buffer.copy_from(0, bytes);
                (Travel::ToController, 0)
            }
            CommandData::FromController(_) => {
                // What the controller does not send must not be what an earlier command left.
                buffer.zero(0..len_bytes as usize);
                (Travel::FromController, len_bytes)
            }
        };
        let data = Data {
            travel,
            offset_bytes: 0,
            len_bytes,
        };
        (Some(data), read_bytes)
    }
}

fn supported(op: &Op, controller: &ControllerInfo) -> Result<(), IoError> {
    let supported = match op {
        Op::Read { .. } | Op::Write { .. } | Op::Flush => true,
        Op::Compare { .. } => controller.compare,
        Op::WriteZeroes { .. } => controller.write_zeroes,
        Op::Discard { .. } => controller.dataset_management,
        Op::Verify { .. } => controller.verify,
    };
    if supported {
        Ok(())
    } else {
        Err(IoError::Unsupported(
            op.opcode().name().unwrap_or("this command"),
        ))
    }
}

/// The command of one piece.
fn encode(io: &Io, piece: Piece) -> IoCommand {
    let nsid = io.nsid;
    let (slba, _) = io.op.range();
    let range = LbaRange {
        slba: slba + u64::from(piece.first_lba),
        nlb: piece.nlb,
    };
    match io.op {
        Op::Read { .. } => IoCommand::Read(Read::new(nsid, range)),
        Op::Write { fua, .. } => IoCommand::Write(Write {
            fua,
            ..Write::new(nsid, range)
        }),
        Op::Compare { .. } => IoCommand::Compare(Compare::new(nsid, range)),
        Op::Flush => IoCommand::Flush(Flush { nsid }),
        Op::WriteZeroes {
            may_deallocate,
            fua,
            ..
        } => IoCommand::WriteZeroes(WriteZeroes {
            deallocate: may_deallocate,
            fua,
            ..WriteZeroes::new(nsid, range)
        }),
        Op::Discard { .. } => IoCommand::DatasetManagement(DatasetManagement {
            nsid,
            ranges: 1,
            integral_read: false,
            integral_write: false,
            deallocate: true,
        }),
        Op::Verify { .. } => IoCommand::Verify(Verify::new(nsid, range)),
    }
}

impl NamespaceInfo {
    /// Blocks of a buffer of `len_bytes`; `None` when it is no whole number of them.
    #[must_use]
    pub fn blocks_of(&self, len_bytes: u64) -> Option<u32> {
        let lba_bytes = u64::from(self.lba_bytes.max(1));
        len_bytes
            .is_multiple_of(lba_bytes)
            .then(|| u32::try_from(len_bytes / lba_bytes).ok())
            .flatten()
    }
}
