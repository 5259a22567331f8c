//! What hosts, the network, the operator and the driver can do in a run of
//! [`run_host_actions`](super::run_host_actions).

use alloc::vec;
use alloc::vec::Vec;

use arbitrary::Arbitrary;
use capstan_nvme_proto::command::LbaRange;
use capstan_nvme_proto::copy::CopyRangeFormat0;
use capstan_nvme_proto::dataset::DsmRange;
use capstan_nvme_proto::opcode::{AdminOpcode, IoOpcode};
use capstan_nvme_proto::sgl::{Sgl, SglBase};
use capstan_nvme_proto::sqe::{NSID_BROADCAST, Sqe};
use zerocopy::{FromBytes, IntoBytes};

/// Something a host, the network, the operator or the driver does. Small numbers pick among what
/// exists, so that most actions mean something.
#[derive(Clone, Debug, Arbitrary)]
pub enum HostAction {
    /// A host connects a queue.
    Connect(ConnectAction),
    /// Write CC.
    SetCc {
        /// Of which association.
        association: u8,
        /// EN, set unless this is small.
        enable: u8,
        /// SHN, when this is small.
        shn: u8,
    },
    /// Property Set of anything.
    PropertySet {
        /// Of which association.
        association: u8,
        /// OFST.
        offset: u8,
        /// With 8 bytes.
        eight: bool,
        /// VALUE.
        value: u64,
    },
    /// An Admin command.
    Admin(Command),
    /// Any Admin command.
    AdminRaw(RawCommand),
    /// An I/O command.
    Io(Command),
    /// Any I/O command.
    IoRaw(RawCommand),
    /// The driver finishes an I/O command.
    CompleteIo {
        /// Which one.
        which: u8,
        /// Status.
        status: u16,
    },
    /// The driver keeps an I/O command from its backend.
    WithdrawIo {
        /// Which one.
        which: u8,
    },
    /// The driver answers an abort.
    AnswerAbort {
        /// Whether it worked.
        aborted: bool,
    },
    /// The driver has flushed.
    Flushed {
        /// Whether it worked.
        succeeded: bool,
    },
    /// The driver has put reservations on stable storage.
    Kept {
        /// Whether it worked.
        succeeded: bool,
    },
    /// A connection is gone.
    Disconnect {
        /// Which one, when this is small.
        which: u8,
    },
    /// The driver closes what the target wants closed.
    Close,
    /// Time passes.
    Wait {
        /// Milliseconds.
        ms: u16,
    },
    /// The operator changes the configuration.
    Configure(OperatorAction),
}

/// A host connects a queue.
#[derive(Clone, Debug, Arbitrary)]
pub enum ConnectAction {
    /// Connect an Admin queue.
    Admin {
        /// Which host; the third is not allowed.
        host: u8,
        /// To the discovery subsystem.
        discovery: bool,
        /// SQSIZE, as on the wire.
        sqsize_z: u8,
        /// CATTR.
        cattr: u8,
        /// KATO.
        kato_ms: u16,
        /// CNTLID, where 0 becomes FFFFh.
        cntlid: u8,
        /// Enable the controller at once.
        enable: bool,
    },
    /// Connect an I/O queue.
    Io {
        /// To which association.
        association: u8,
        /// Queue Identifier.
        qid: u8,
        /// SQSIZE, as on the wire.
        sqsize_z: u8,
        /// With another Host Identifier, when this is small.
        other_host: u8,
    },
    /// Any 64 bytes and any data as the first command of a connection.
    Raw {
        /// The SQE.
        sqe: [u8; 64],
        /// Its data.
        data: Capsule,
    },
}

/// The operator changes the configuration.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub enum OperatorAction {
    /// The operator adds a namespace.
    AddNamespace {
        /// NSID, also out of bounds.
        nsid: u8,
        /// Its reservations can persist.
        persistent: bool,
    },
    /// The operator removes a namespace.
    RemoveNamespace {
        /// NSID.
        nsid: u8,
    },
    /// The operator resizes a namespace.
    Resize {
        /// NSID.
        nsid: u8,
        /// Blocks.
        lbas: u64,
        /// Block size as a power of two.
        lbads: u8,
        /// Refuse writes.
        read_only: bool,
    },
    /// The operator hides a namespace from all but one host.
    ShowTo {
        /// NSID.
        nsid: u8,
        /// The host; any for `None`.
        host: Option<u8>,
    },
    /// The operator sets who may connect.
    AllowHosts {
        /// Host 1 may.
        first: bool,
        /// Host 2 may.
        second: bool,
    },
    /// The operator sets an ANA state.
    SetAnaState {
        /// Group.
        group: u8,
        /// State.
        state: u8,
    },
}

/// A command whose fields are mostly sensible.
#[derive(Clone, Debug, Arbitrary)]
pub struct Command {
    /// On which queue.
    pub(super) queue: u8,
    /// Which opcode, among those that exist.
    opcode: u8,
    /// Command Identifier; few, so that they collide.
    cid: u8,
    /// NSID; few.
    nsid: u8,
    /// Command dwords 10 to 15.
    dwords: [u32; 6],
    /// How many of the low bits of each dword count: a byte, 10 bits, or all.
    size: u8,
    /// SGL.
    sgl: SglKind,
    /// What follows the SQE in the capsule.
    pub(super) capsule: Capsule,
}

/// Any 64 bytes as a command.
#[derive(Clone, Debug, Arbitrary)]
pub struct RawCommand {
    /// On which queue.
    pub(super) queue: u8,
    /// The SQE.
    sqe: [u8; 64],
    /// What follows it in the capsule.
    pub(super) capsule: Capsule,
}

/// The SGL of a command.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub enum SglKind {
    /// A keyed buffer of 1 MiB.
    Large,
    /// A keyed buffer.
    Keyed(u32),
    /// In-capsule data.
    InCapsule(u8, u16),
    /// A list in the capsule.
    List(u8),
    /// None of these.
    Other(u8),
}

/// What follows the SQE in a capsule.
#[derive(Clone, Debug, Arbitrary)]
pub enum Capsule {
    /// Nothing.
    Empty,
    /// So many bytes.
    Filled(u16, u8),
    /// Keyed descriptors.
    List(u8, u16),
    /// Ranges of Dataset Management or Copy.
    Ranges(u8, u8, u8),
    /// Any bytes.
    Raw([u8; 32]),
}

impl Capsule {
    pub(super) fn bytes(&self) -> Vec<u8> {
        match *self {
            Self::Empty => Vec::new(),
            Self::Filled(length, byte) => vec![byte; usize::from(length & 0x3FFF)],
            Self::List(count, length) => (0..count & 0x1F)
                .flat_map(|at| {
                    let sgl = Sgl::Keyed {
                        address: 0,
                        length_bytes: u32::from(length).wrapping_add(at.into()),
                        rkey: at.into(),
                        invalidate: at & 1 == 1,
                    };
                    sgl.encode().as_bytes().to_vec()
                })
                .collect(),
            Self::Ranges(count, slba, length) => (0..count & 0x1F)
                .flat_map(|at| {
                    let slba = u64::from(slba).wrapping_add(at.into());
                    // A range of Dataset Management, then one of Copy.
                    let dsm = DsmRange::new(slba, length.into());
                    let copy = CopyRangeFormat0::new(LbaRange {
                        slba,
                        nlb: length.into(),
                    });
                    [dsm.as_bytes(), copy.as_bytes()].concat()
                })
                .collect(),
            Self::Raw(bytes) => bytes.to_vec(),
        }
    }
}

impl RawCommand {
    pub(super) fn sqe(&self) -> Sqe {
        Sqe::read_from_bytes(&self.sqe).unwrap_or_else(|_| Sqe::new(0, 0, 0))
    }
}

impl Command {
    pub(super) fn sqe(&self, opcodes: &[u8]) -> Sqe {
        let at = usize::from(self.opcode)
            .checked_rem(opcodes.len())
            .unwrap_or(0);
        let opcode = opcodes.get(at).copied().unwrap_or(0);
        let cid = u16::from(self.cid & 0xF);
        let nsid = match self.nsid & 0b111 {
            0 => u32::from(self.nsid),
            7 => NSID_BROADCAST,
            6 => 2,
            _ => 1,
        };
        let mut sqe = Sqe::new(opcode, cid, nsid);
        let mask = match self.size & 0b11 {
            0 => 0xFF,
            1 => 0x3FF,
            2 => 0x4300_00FF,
            _ if self.size & 0b11_0000 == 0 => u32::MAX,
            _ => 0x1F,
        };
        let [a, b, c, d, e, f] = self.dwords.map(|dword| dword & mask);
        sqe.cdw10 = a.into();
        if self.size & 0x40 != 0 {
            // Most identifiers of log pages, features and Identify structures are below 20h.
            let identifier = match a & 0x1F {
                0x1E => 0x70,
                0x1D => 0x84,
                0x1F => 0x81,
                0x1C => 0x80,
                0x1B => 0x82,
                0x1A => 0x83,
                small => small,
            };
            sqe.cdw10 = (a & 0x8FFF_0000 | identifier).into();
        }
        // Most LBAs, offsets and lengths that mean something are small.
        sqe.cdw11 = if self.size & 0b100 == 0 { 0 } else { b }.into();
        sqe.cdw12 = c.into();
        sqe.cdw13 = if self.size & 0b100 == 0 { 0 } else { d }.into();
        sqe.cdw14 = if self.size & 0b1000 == 0 { 0 } else { e }.into();
        sqe.cdw15 = f.into();
        if self.size & 0b1_0000 == 0
            && let Some(cdw10) = reservation_dword(opcode, self.dwords.map(|dword| dword & 0xFFFF))
        {
            sqe.cdw10 = cdw10.into();
            sqe.cdw11 = u32::from(self.size & 0b10_0000 == 0).into();
        }
        let sgl = match self.sgl {
            SglKind::Large => Sgl::Keyed {
                address: 0,
                length_bytes: 1 << 20,
                rkey: 1,
                invalidate: true,
            },
            SglKind::Keyed(length_bytes) => Sgl::Keyed {
                address: 0,
                length_bytes,
                rkey: 1,
                invalidate: false,
            },
            SglKind::InCapsule(offset, length) => Sgl::InCapsule {
                offset_bytes: offset.into(),
                length_bytes: length.into(),
            },
            SglKind::List(count) => Sgl::Segment {
                base: SglBase::CapsuleOffset(0),
                length_bytes: u32::from(count & 0x1F).wrapping_mul(16),
                last: true,
            },
            SglKind::Other(length) => Sgl::Transport {
                length_bytes: length.into(),
            },
        };
        sqe.dptr = sgl.encode();
        sqe
    }
}

/// Command dword 10 of a reservation command as hosts write it: an action that exists, no IEKEY, a
/// type that exists; of a report, a small length.
fn reservation_dword(opcode: u8, [a, b, ..]: [u32; 6]) -> Option<u32> {
    let rtype = b.checked_rem(6)?.saturating_add(1).wrapping_shl(8);
    match IoOpcode(opcode) {
        IoOpcode::RESERVATION_REGISTER => Some(a & 0b1011),
        IoOpcode::RESERVATION_ACQUIRE => Some(a & 0b11 | rtype),
        IoOpcode::RESERVATION_RELEASE => Some(a & 0b1 | rtype),
        IoOpcode::RESERVATION_REPORT => Some(a & 0x7F),
        _ => None,
    }
}

pub(super) const ADMIN_OPCODES: [u8; 11] = [
    AdminOpcode::GET_LOG_PAGE.0,
    AdminOpcode::IDENTIFY.0,
    AdminOpcode::ABORT.0,
    AdminOpcode::SET_FEATURES.0,
    AdminOpcode::GET_FEATURES.0,
    AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST.0,
    AdminOpcode::KEEP_ALIVE.0,
    AdminOpcode::FABRICS.0,
    AdminOpcode::FORMAT_NVM.0,
    AdminOpcode::CROSS_CONTROLLER_RESET.0,
    AdminOpcode::GET_LBA_STATUS.0,
];
pub(super) const IO_OPCODES: [u8; 14] = [
    IoOpcode::FLUSH.0,
    IoOpcode::WRITE.0,
    IoOpcode::READ.0,
    IoOpcode::WRITE_UNCORRECTABLE.0,
    IoOpcode::COMPARE.0,
    IoOpcode::WRITE_ZEROES.0,
    IoOpcode::DATASET_MANAGEMENT.0,
    IoOpcode::VERIFY.0,
    IoOpcode::RESERVATION_REGISTER.0,
    IoOpcode::RESERVATION_REPORT.0,
    IoOpcode::RESERVATION_ACQUIRE.0,
    IoOpcode::RESERVATION_RELEASE.0,
    IoOpcode::COPY.0,
    IoOpcode::FABRICS.0,
];
