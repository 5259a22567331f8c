//! Admin commands.
//!
//! Source: NVMe Base 2.1, section 5.1 (admin commands for all transports).

use super::{CrossControllerReset, GetLbaStatus};
use crate::bits;
use crate::error::CommandError;
use crate::features::{FeatureId, FeatureSelect};
use crate::identify::{Cns, IDENTIFY_BYTES};
use crate::log::LogPageId;
use crate::opcode::AdminOpcode;
use crate::sgl::Sgl;
use crate::sqe::{NSID_BROADCAST, Sqe};
use crate::transfer::DataTransfer;
use crate::zeroes_based;

/// An Admin command, parsed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AdminCommand {
    /// Get Log Page.
    GetLogPage(GetLogPage),
    /// Identify.
    Identify(Identify),
    /// Abort.
    Abort(Abort),
    /// Set Features.
    SetFeatures(SetFeatures),
    /// Get Features.
    GetFeatures(GetFeatures),
    /// Asynchronous Event Request; its completion is a
    /// [`AsyncEvent`](crate::async_event::AsyncEvent).
    AsynchronousEventRequest,
    /// Keep Alive.
    KeepAlive,
    /// Cross-Controller Reset.
    CrossControllerReset(CrossControllerReset),
    /// Get LBA Status.
    GetLbaStatus(GetLbaStatus),
}

/// Get Log Page. NVMe Base 2.1, section 5.1.12.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GetLogPage {
    /// Namespace the page is about; 0 or FFFFFFFFh for pages of the controller.
    pub nsid: u32,
    /// LID, Log Page Identifier.
    pub lid: LogPageId,
    /// LSP, Log Specific Parameter: 7 bits.
    pub lsp: u8,
    /// RAE, Retain Asynchronous Event.
    pub rae: bool,
    /// Bytes to return: a multiple of 4, 4 to 2^34 (on the wire dwords, 0's based).
    pub length_bytes: u64,
    /// LSI, Log Specific Identifier.
    pub lsi: u16,
    /// LPO, Log Page Offset: bytes into the page, or an index when `offset_is_index`.
    pub offset: u64,
    /// OT, Offset Type.
    pub offset_is_index: bool,
    /// CSI, Command Set Identifier.
    pub csi: u8,
    /// UUID Index: 7 bits.
    pub uuid_index: u8,
}

/// Identify. NVMe Base 2.1, section 5.1.13.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identify {
    /// Namespace, or where a namespace list starts.
    pub nsid: u32,
    /// CNS, Controller or Namespace Structure.
    pub cns: Cns,
    /// CNTID, Controller Identifier.
    pub cntid: u16,
    /// CNSSID, CNS Specific Identifier.
    pub cnssid: u16,
    /// CSI, Command Set Identifier.
    pub csi: u8,
    /// UUID Index: 7 bits.
    pub uuid_index: u8,
}

/// Abort. NVMe Base 2.1, section 5.1.1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Abort {
    /// Submission queue of the command to abort.
    pub sqid: u16,
    /// Command Identifier of the command to abort.
    pub cid: u16,
}

impl Abort {
    /// Dword 0 of the completion: bit 0 is clear when the command was aborted.
    #[must_use]
    pub const fn completion_dw0(aborted: bool) -> u32 {
        !aborted as u32
    }

    /// Whether dword 0 of the completion says that the command was aborted.
    #[must_use]
    pub const fn was_aborted(dw0: u32) -> bool {
        dw0 & 1 == 0
    }
}

/// Set Features. NVMe Base 2.1, section 5.1.25. The dwords are those of the feature: see
/// [`crate::features`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SetFeatures {
    /// Namespace, for a feature of a namespace.
    pub nsid: u32,
    /// FID, Feature Identifier.
    pub fid: FeatureId,
    /// SV, Save: keep the value across resets.
    pub save: bool,
    /// Command dword 11: the value.
    pub cdw11: u32,
    /// Command dword 12.
    pub cdw12: u32,
    /// Command dword 13.
    pub cdw13: u32,
    /// Command dword 15.
    pub cdw15: u32,
    /// UUID Index: 7 bits.
    pub uuid_index: u8,
}

/// Get Features. NVMe Base 2.1, section 5.1.11.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GetFeatures {
    /// Namespace, for a feature of a namespace.
    pub nsid: u32,
    /// FID, Feature Identifier.
    pub fid: FeatureId,
    /// SEL, Select: which value.
    pub select: FeatureSelect,
    /// Command dword 11: some features need it to say which of several values is asked for.
    pub cdw11: u32,
    /// UUID Index: 7 bits.
    pub uuid_index: u8,
}

impl AdminCommand {
    /// Parses a submission queue entry of the Admin Queue whose opcode is not 7Fh.
    ///
    /// # Errors
    /// Invalid Command Opcode for an opcode that is none of the above (Fabrics commands included);
    /// Invalid Field for FUSE other than 00b, or a Log Page Offset that is no multiple of 4.
    pub fn parse(sqe: &Sqe) -> Result<Self, CommandError> {
        let command = match sqe.admin_opcode() {
            AdminOpcode::GET_LOG_PAGE => Self::GetLogPage(GetLogPage::parse(sqe)?),
            AdminOpcode::IDENTIFY => Self::Identify(Identify::parse(sqe)),
            AdminOpcode::ABORT => {
                let cdw10 = sqe.cdw10.get();
                Self::Abort(Abort {
                    sqid: bits::low16(cdw10),
                    cid: bits::high16(cdw10),
                })
            }
            AdminOpcode::SET_FEATURES => Self::SetFeatures(SetFeatures::parse(sqe)),
            AdminOpcode::GET_FEATURES => Self::GetFeatures(GetFeatures::parse(sqe)),
            AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST => Self::AsynchronousEventRequest,
            AdminOpcode::KEEP_ALIVE => Self::KeepAlive,
            AdminOpcode::CROSS_CONTROLLER_RESET => {
                Self::CrossControllerReset(CrossControllerReset::parse(sqe))
            }
            AdminOpcode::GET_LBA_STATUS => Self::GetLbaStatus(GetLbaStatus::parse(sqe)),
            other => return Err(CommandError::invalid_opcode("Opcode", 0, other.0)),
        };
        sqe.require_not_fused()?;
        Ok(command)
    }

    /// The opcode.
    #[must_use]
    pub const fn opcode(&self) -> AdminOpcode {
        match self {
            Self::GetLogPage(_) => AdminOpcode::GET_LOG_PAGE,
            Self::Identify(_) => AdminOpcode::IDENTIFY,
            Self::Abort(_) => AdminOpcode::ABORT,
            Self::SetFeatures(_) => AdminOpcode::SET_FEATURES,
            Self::GetFeatures(_) => AdminOpcode::GET_FEATURES,
            Self::AsynchronousEventRequest => AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST,
            Self::KeepAlive => AdminOpcode::KEEP_ALIVE,
            Self::CrossControllerReset(_) => AdminOpcode::CROSS_CONTROLLER_RESET,
            Self::GetLbaStatus(_) => AdminOpcode::GET_LBA_STATUS,
        }
    }

    /// The data this command moves.
    #[must_use]
    pub const fn data_transfer(&self) -> DataTransfer {
        match self {
            Self::GetLogPage(command) => DataTransfer::ControllerToHost {
                bytes: command.length_bytes,
            },
            Self::GetLbaStatus(command) => DataTransfer::ControllerToHost {
                bytes: command.length_bytes,
            },
            Self::Identify(_) => DataTransfer::ControllerToHost {
                bytes: IDENTIFY_BYTES as u64,
            },
            Self::SetFeatures(command) => match command.fid.set_data_bytes(command.cdw11) {
                0 => DataTransfer::None,
                bytes => DataTransfer::HostToController {
                    bytes: bytes as u64,
                },
            },
            Self::GetFeatures(command) => match command.fid.get_data_bytes(command.cdw11) {
                0 => DataTransfer::None,
                bytes if command.select.returns_value() => DataTransfer::ControllerToHost {
                    bytes: bytes as u64,
                },
                _ => DataTransfer::None,
            },
            Self::Abort(_)
            | Self::AsynchronousEventRequest
            | Self::KeepAlive
            | Self::CrossControllerReset(_) => DataTransfer::None,
        }
    }

    /// The submission queue entry of this command with its data at `sgl` ([`Sgl::EMPTY`] for a
    /// command without data).
    #[must_use]
    pub fn encode(&self, cid: u16, sgl: Sgl) -> Sqe {
        let mut sqe = Sqe::new(self.opcode().0, cid, 0);
        sqe.dptr = sgl.encode();
        match *self {
            Self::GetLogPage(command) => command.encode(&mut sqe),
            Self::Identify(command) => command.encode(&mut sqe),
            Self::Abort(Abort { sqid, cid }) => sqe.cdw10 = bits::words(sqid, cid).into(),
            Self::SetFeatures(command) => command.encode(&mut sqe),
            Self::GetFeatures(command) => command.encode(&mut sqe),
            Self::CrossControllerReset(command) => command.encode(&mut sqe),
            Self::GetLbaStatus(command) => command.encode(&mut sqe),
            Self::AsynchronousEventRequest | Self::KeepAlive => {}
        }
        sqe
    }
}

const UUID_INDEX_BITS: u32 = 7;

fn uuid_index(sqe: &Sqe) -> u8 {
    bits::byte(bits::field(sqe.cdw14.get(), 0, UUID_INDEX_BITS), 0)
}

impl GetLogPage {
    /// The first `length_bytes` of a page of the controller; every other field 0, but NSID, which
    /// stands for all namespaces.
    #[must_use]
    pub const fn new(lid: LogPageId, length_bytes: u64) -> Self {
        Self {
            nsid: NSID_BROADCAST,
            lid,
            lsp: 0,
            rae: false,
            length_bytes,
            lsi: 0,
            offset: 0,
            offset_is_index: false,
            csi: 0,
            uuid_index: 0,
        }
    }

    fn parse(sqe: &Sqe) -> Result<Self, CommandError> {
        let (cdw10, cdw11, cdw14) = (sqe.cdw10.get(), sqe.cdw11.get(), sqe.cdw14.get());
        // NUMD is 32 bits: NUMDU above NUMDL, joined before the 0's based one is added.
        let numd = zeroes_based::from_u32(bits::words(bits::high16(cdw10), bits::low16(cdw11)));
        let offset = bits::dwords(sqe.cdw12.get(), sqe.cdw13.get());
        let offset_is_index = bits::bit(cdw14, 23);
        if !offset_is_index && offset & 0b11 != 0 {
            return Err(CommandError::invalid_field(
                "LPO",
                48,
                offset,
                "a multiple of 4",
            ));
        }
        Ok(Self {
            nsid: sqe.nsid.get(),
            lid: LogPageId(bits::byte(cdw10, 0)),
            lsp: bits::byte(bits::field(cdw10, 8, 7), 0),
            rae: bits::bit(cdw10, 15),
            length_bytes: numd.saturating_mul(4),
            lsi: bits::high16(cdw11),
            offset,
            offset_is_index,
            csi: bits::byte(cdw14, 24),
            uuid_index: uuid_index(sqe),
        })
    }

    fn encode(&self, sqe: &mut Sqe) {
        // A length that is no multiple of 4 is rounded up; 0 and what is over 2^34 become the
        // nearest length that can be said.
        let numd = self.length_bytes.div_ceil(4).clamp(1, 1 << 32);
        let numd_z = zeroes_based::to_u32(numd).unwrap_or(u32::MAX);
        let low = u32::from(self.lid.0)
            | bits::place(u32::from(self.lsp), 8, 7)
            | bits::flag(self.rae, 15);
        sqe.nsid = self.nsid.into();
        sqe.cdw10 = bits::words(bits::low16(low), bits::low16(numd_z)).into();
        sqe.cdw11 = bits::words(bits::high16(numd_z), self.lsi).into();
        sqe.cdw12 = bits::low32(self.offset).into();
        sqe.cdw13 = bits::high32(self.offset).into();
        sqe.cdw14 = (bits::place(u32::from(self.uuid_index), 0, UUID_INDEX_BITS)
            | bits::flag(self.offset_is_index, 23)
            | bits::place(u32::from(self.csi), 24, 8))
        .into();
    }
}

impl Identify {
    /// An Identify of `cns` about `nsid`, all else zero.
    #[must_use]
    pub const fn new(cns: Cns, nsid: u32) -> Self {
        Self {
            nsid,
            cns,
            cntid: 0,
            cnssid: 0,
            csi: 0,
            uuid_index: 0,
        }
    }

    fn parse(sqe: &Sqe) -> Self {
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        Self {
            nsid: sqe.nsid.get(),
            cns: Cns(bits::byte(cdw10, 0)),
            cntid: bits::high16(cdw10),
            cnssid: bits::low16(cdw11),
            csi: bits::byte(cdw11, 24),
            uuid_index: uuid_index(sqe),
        }
    }

    fn encode(&self, sqe: &mut Sqe) {
        sqe.nsid = self.nsid.into();
        sqe.cdw10 = bits::words(u16::from(self.cns.0), self.cntid).into();
        sqe.cdw11 = bits::words(self.cnssid, u16::from_le_bytes([0, self.csi])).into();
        sqe.cdw14 = bits::place(u32::from(self.uuid_index), 0, UUID_INDEX_BITS).into();
    }
}

impl SetFeatures {
    /// A Set Features of `fid` with `cdw11`, not saved, all else zero.
    #[must_use]
    pub const fn new(fid: FeatureId, cdw11: u32) -> Self {
        Self {
            nsid: 0,
            fid,
            save: false,
            cdw11,
            cdw12: 0,
            cdw13: 0,
            cdw15: 0,
            uuid_index: 0,
        }
    }

    fn parse(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        Self {
            nsid: sqe.nsid.get(),
            fid: FeatureId(bits::byte(cdw10, 0)),
            save: bits::bit(cdw10, 31),
            cdw11: sqe.cdw11.get(),
            cdw12: sqe.cdw12.get(),
            cdw13: sqe.cdw13.get(),
            cdw15: sqe.cdw15.get(),
            uuid_index: uuid_index(sqe),
        }
    }

    fn encode(&self, sqe: &mut Sqe) {
        sqe.nsid = self.nsid.into();
        sqe.cdw10 = (u32::from(self.fid.0) | bits::flag(self.save, 31)).into();
        sqe.cdw11 = self.cdw11.into();
        sqe.cdw12 = self.cdw12.into();
        sqe.cdw13 = self.cdw13.into();
        sqe.cdw14 = bits::place(u32::from(self.uuid_index), 0, UUID_INDEX_BITS).into();
        sqe.cdw15 = self.cdw15.into();
    }
}

impl GetFeatures {
    /// A Get Features of the current value of `fid`, all else zero.
    #[must_use]
    pub const fn new(fid: FeatureId) -> Self {
        Self {
            nsid: 0,
            fid,
            select: FeatureSelect::CURRENT,
            cdw11: 0,
            uuid_index: 0,
        }
    }

    fn parse(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        Self {
            nsid: sqe.nsid.get(),
            fid: FeatureId(bits::byte(cdw10, 0)),
            select: FeatureSelect(bits::byte(bits::field(cdw10, 8, 3), 0)),
            cdw11: sqe.cdw11.get(),
            uuid_index: uuid_index(sqe),
        }
    }

    fn encode(&self, sqe: &mut Sqe) {
        sqe.nsid = self.nsid.into();
        sqe.cdw10 = (u32::from(self.fid.0) | bits::place(u32::from(self.select.0), 8, 3)).into();
        sqe.cdw11 = self.cdw11.into();
        sqe.cdw14 = bits::place(u32::from(self.uuid_index), 0, UUID_INDEX_BITS).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorLocation;
    use crate::status::Status;
    use zerocopy::IntoBytes;

    const LOG: GetLogPage = GetLogPage {
        nsid: NSID_BROADCAST,
        lid: LogPageId::DISCOVERY,
        lsp: 0x7F,
        rae: true,
        length_bytes: 1024,
        lsi: 0x1122,
        offset: 0x3344_5566_7788_99A0,
        offset_is_index: false,
        csi: 0,
        uuid_index: 0,
    };

    fn round_trip(command: AdminCommand) {
        let sqe = command.encode(7, Sgl::EMPTY);
        assert_eq!(AdminCommand::parse(&sqe), Ok(command));
    }

    #[test]
    fn log_page_lengths_reach_both_ends() {
        // Regression for the classic: masking NUMDL before shifting it makes every length 1.
        for length_bytes in [4, 8, 512, 4096, 1 << 18, (1 << 18) + 4, 1 << 34] {
            round_trip(AdminCommand::GetLogPage(GetLogPage {
                length_bytes,
                ..LOG
            }));
        }
        let sqe = AdminCommand::GetLogPage(LOG).encode(7, Sgl::EMPTY);
        assert_eq!(sqe.as_bytes()[40..44], [0x70, 0xFF, 0xFF, 0x00]);
        assert_eq!(sqe.as_bytes()[44..48], [0x00, 0x00, 0x22, 0x11]);
    }

    #[test]
    fn odd_offsets_are_refused_unless_they_are_indexes() {
        let odd = AdminCommand::GetLogPage(GetLogPage { offset: 2, ..LOG });
        let error = AdminCommand::parse(&odd.encode(7, Sgl::EMPTY)).unwrap_err();
        assert_eq!(error.status, Status::INVALID_FIELD.dnr());
        assert_eq!(error.location, ErrorLocation::sqe(48));
        round_trip(AdminCommand::GetLogPage(GetLogPage {
            offset: 3,
            offset_is_index: true,
            ..LOG
        }));
    }

    #[test]
    fn identify_and_features_survive_the_wire() {
        round_trip(AdminCommand::Identify(Identify {
            nsid: 0x1234_5678,
            cns: Cns::NAMESPACE_IOCS,
            cntid: 0x1122,
            cnssid: 0x3344,
            csi: 0x55,
            uuid_index: 0x7F,
        }));
        round_trip(AdminCommand::SetFeatures(SetFeatures {
            nsid: 1,
            save: true,
            cdw12: 2,
            cdw13: 3,
            cdw15: 5,
            uuid_index: 0x7F,
            ..SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, 0x007F_007F)
        }));
        round_trip(AdminCommand::GetFeatures(GetFeatures {
            select: FeatureSelect::SUPPORTED_CAPABILITIES,
            cdw11: 9,
            ..GetFeatures::new(FeatureId::HOST_IDENTIFIER)
        }));
        round_trip(AdminCommand::Abort(Abort {
            sqid: 3,
            cid: 0xFFFF,
        }));
        round_trip(AdminCommand::AsynchronousEventRequest);
        round_trip(AdminCommand::KeepAlive);
    }

    #[test]
    fn every_other_opcode_is_invalid() {
        for opcode in 0..=0xFF {
            let known = [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x38, 0x86].contains(&opcode);
            let result = AdminCommand::parse(&Sqe::new(opcode, 0, 0));
            assert_eq!(result.is_ok(), known, "{opcode:02X}h");
            if let Err(error) = result {
                assert_eq!(error.status, Status::INVALID_OPCODE.dnr());
                assert_eq!(error.location, ErrorLocation::sqe(0));
            }
        }
    }

    #[test]
    fn fused_admin_commands_are_refused() {
        let mut sqe = AdminCommand::KeepAlive.encode(1, Sgl::EMPTY);
        sqe.flags |= 1;
        assert_eq!(
            AdminCommand::parse(&sqe).unwrap_err().location,
            ErrorLocation::sqe(1)
        );
    }

    #[test]
    fn data_transfers_come_from_the_command() {
        let bytes = |command: AdminCommand| command.data_transfer();
        assert_eq!(
            bytes(AdminCommand::Identify(Identify::new(Cns::CONTROLLER, 0))),
            DataTransfer::ControllerToHost { bytes: 4096 }
        );
        assert_eq!(
            bytes(AdminCommand::GetLogPage(GetLogPage {
                length_bytes: 1 << 34,
                ..LOG
            })),
            DataTransfer::ControllerToHost { bytes: 1 << 34 }
        );
        let exhid = SetFeatures::new(FeatureId::HOST_IDENTIFIER, 1);
        assert_eq!(
            bytes(AdminCommand::SetFeatures(exhid)),
            DataTransfer::HostToController { bytes: 16 }
        );
        let mut capabilities = GetFeatures::new(FeatureId::HOST_IDENTIFIER);
        assert_eq!(
            bytes(AdminCommand::GetFeatures(capabilities)),
            DataTransfer::ControllerToHost { bytes: 8 }
        );
        capabilities.select = FeatureSelect::SUPPORTED_CAPABILITIES;
        assert_eq!(
            bytes(AdminCommand::GetFeatures(capabilities)),
            DataTransfer::None
        );
        assert_eq!(bytes(AdminCommand::KeepAlive), DataTransfer::None);
    }

    #[test]
    fn abort_says_aborted_with_a_clear_bit() {
        assert_eq!(Abort::completion_dw0(true), 0);
        assert_eq!(Abort::completion_dw0(false), 1);
        assert!(Abort::was_aborted(0) && !Abort::was_aborted(1));
    }
}
