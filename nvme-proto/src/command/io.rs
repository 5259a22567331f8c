//! I/O commands of the NVM command set.
//!
//! Source: NVMe Base 2.1, section 7; NVM Command Set 1.1, section 3.3.

use super::lba::{Compare, Directive, Read, Verify, Write, WriteUncorrectable, WriteZeroes};
use crate::bits;
use crate::copy::CopyFormat;
use crate::dataset::DsmRange;
use crate::error::CommandError;
use crate::opcode::IoOpcode;
use crate::reservation::{
    ReservationAcquire, ReservationRegister, ReservationRelease, ReservationReport,
};
use crate::sgl::Sgl;
use crate::sqe::Sqe;
use crate::transfer::DataTransfer;
use crate::zeroes_based;

/// An I/O command of the NVM command set, parsed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IoCommand {
    /// Flush.
    Flush(Flush),
    /// Write.
    Write(Write),
    /// Read.
    Read(Read),
    /// Write Uncorrectable.
    WriteUncorrectable(WriteUncorrectable),
    /// Compare.
    Compare(Compare),
    /// Write Zeroes.
    WriteZeroes(WriteZeroes),
    /// Dataset Management.
    DatasetManagement(DatasetManagement),
    /// Verify.
    Verify(Verify),
    /// Reservation Register.
    ReservationRegister(ReservationRegister),
    /// Reservation Report.
    ReservationReport(ReservationReport),
    /// Reservation Acquire.
    ReservationAcquire(ReservationAcquire),
    /// Reservation Release.
    ReservationRelease(ReservationRelease),
    /// Copy.
    Copy(Copy),
}

/// Flush. NVMe Base 2.1, section 7.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flush {
    /// Namespace, or FFFFFFFFh for all where the controller supports it.
    pub nsid: u32,
}

/// Dataset Management. NVM Command Set 1.1, section 3.3.3. Its data is `ranges` entries of
/// [`DsmRange`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DatasetManagement {
    /// Namespace.
    pub nsid: u32,
    /// NR, Number of Ranges: 1 to 256 (on the wire 0's based).
    pub ranges: u16,
    /// IDR, Integral Dataset for Read.
    pub integral_read: bool,
    /// IDW, Integral Dataset for Write.
    pub integral_write: bool,
    /// AD, Deallocate.
    pub deallocate: bool,
}

/// Copy. NVM Command Set 1.1, section 3.3.2. Its data is `ranges` source ranges of the form
/// `format`; see [`crate::copy`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Copy {
    /// Namespace, of the destination and (formats 0h and 1h) of the sources.
    pub nsid: u32,
    /// SDLBA, Starting Destination LBA.
    pub sdlba: u64,
    /// NR, Number of Ranges: 1 to 256 (on the wire 0's based).
    pub ranges: u16,
    /// Descriptor Format.
    pub format: CopyFormat,
    /// PRINFOR: protection information for the read part (4 bits).
    pub prinfo_read: u8,
    /// PRINFOW: protection information for the write part (4 bits).
    pub prinfo_write: u8,
    /// STCW, Storage Tag Check Write.
    pub stc_write: bool,
    /// STCR, Storage Tag Check Read.
    pub stc_read: bool,
    /// FUA, Force Unit Access for the write part.
    pub fua: bool,
    /// LR, Limited Retry.
    pub limited_retry: bool,
    /// Directive of the write part.
    pub directive: Directive,
    /// Command dwords 2 and 3: upper part of the initial storage and reference tags.
    pub tag_high: u64,
    /// Command dword 14: lower part of the initial storage and reference tags.
    pub tag_low: u32,
    /// LBAT, Logical Block Application Tag.
    pub application_tag: u16,
    /// LBATM, Logical Block Application Tag Mask.
    pub application_tag_mask: u16,
}

impl IoCommand {
    /// Parses a submission queue entry of an I/O queue whose opcode is not 7Fh. FUSE is left to
    /// the controller ([`Sqe::require_not_fused`]), which knows whether it supports Compare and
    /// Write.
    ///
    /// # Errors
    /// Invalid Command Opcode for an opcode that is none of the above (Fabrics commands
    /// included); Invalid Field for reserved values of the reservation commands' fields.
    pub fn parse(sqe: &Sqe) -> Result<Self, CommandError> {
        Ok(match sqe.io_opcode() {
            IoOpcode::READ => Self::Read(Read::parse(sqe)),
            IoOpcode::WRITE => Self::Write(Write::parse(sqe)),
            IoOpcode::FLUSH => Self::Flush(Flush {
                nsid: sqe.nsid.get(),
            }),
            IoOpcode::WRITE_UNCORRECTABLE => {
                Self::WriteUncorrectable(WriteUncorrectable::parse(sqe))
            }
            IoOpcode::COMPARE => Self::Compare(Compare::parse(sqe)),
            IoOpcode::WRITE_ZEROES => Self::WriteZeroes(WriteZeroes::parse(sqe)),
            IoOpcode::DATASET_MANAGEMENT => Self::DatasetManagement(DatasetManagement::parse(sqe)),
            IoOpcode::VERIFY => Self::Verify(Verify::parse(sqe)),
            IoOpcode::RESERVATION_REGISTER => {
                Self::ReservationRegister(ReservationRegister::parse(sqe)?)
            }
            IoOpcode::RESERVATION_REPORT => Self::ReservationReport(ReservationReport::parse(sqe)),
            IoOpcode::RESERVATION_ACQUIRE => {
                Self::ReservationAcquire(ReservationAcquire::parse(sqe)?)
            }
            IoOpcode::RESERVATION_RELEASE => {
                Self::ReservationRelease(ReservationRelease::parse(sqe)?)
            }
            IoOpcode::COPY => Self::Copy(Copy::parse(sqe)),
            other => return Err(CommandError::invalid_opcode("Opcode", 0, other.0)),
        })
    }

    /// The opcode.
    #[must_use]
    pub const fn opcode(&self) -> IoOpcode {
        match self {
            Self::Flush(_) => IoOpcode::FLUSH,
            Self::Write(_) => IoOpcode::WRITE,
            Self::Read(_) => IoOpcode::READ,
            Self::WriteUncorrectable(_) => IoOpcode::WRITE_UNCORRECTABLE,
            Self::Compare(_) => IoOpcode::COMPARE,
            Self::WriteZeroes(_) => IoOpcode::WRITE_ZEROES,
            Self::DatasetManagement(_) => IoOpcode::DATASET_MANAGEMENT,
            Self::Verify(_) => IoOpcode::VERIFY,
            Self::ReservationRegister(_) => IoOpcode::RESERVATION_REGISTER,
            Self::ReservationReport(_) => IoOpcode::RESERVATION_REPORT,
            Self::ReservationAcquire(_) => IoOpcode::RESERVATION_ACQUIRE,
            Self::ReservationRelease(_) => IoOpcode::RESERVATION_RELEASE,
            Self::Copy(_) => IoOpcode::COPY,
        }
    }

    /// The namespace.
    #[must_use]
    pub const fn nsid(&self) -> u32 {
        match self {
            Self::Flush(command) => command.nsid,
            Self::Write(command) => command.nsid,
            Self::Read(command) => command.nsid,
            Self::WriteUncorrectable(command) => command.nsid,
            Self::Compare(command) => command.nsid,
            Self::WriteZeroes(command) => command.nsid,
            Self::DatasetManagement(command) => command.nsid,
            Self::Verify(command) => command.nsid,
            Self::ReservationRegister(command) => command.nsid,
            Self::ReservationReport(command) => command.nsid,
            Self::ReservationAcquire(command) => command.nsid,
            Self::ReservationRelease(command) => command.nsid,
            Self::Copy(command) => command.nsid,
        }
    }

    /// The data this command moves on a namespace whose logical blocks have `lba_bytes` bytes of
    /// data and no metadata.
    #[must_use]
    pub const fn data_transfer(&self, lba_bytes: u32) -> DataTransfer {
        match self {
            Self::Read(command) => DataTransfer::ControllerToHost {
                bytes: command.range.bytes(lba_bytes),
            },
            Self::Write(command) => DataTransfer::HostToController {
                bytes: command.range.bytes(lba_bytes),
            },
            Self::Compare(command) => DataTransfer::HostToController {
                bytes: command.range.bytes(lba_bytes),
            },
            Self::DatasetManagement(command) => DataTransfer::HostToController {
                bytes: (command.ranges as u64).saturating_mul(DsmRange::SIZE_BYTES as u64),
            },
            Self::Copy(command) => DataTransfer::HostToController {
                bytes: (command.ranges as u64).saturating_mul(command.format.range_bytes() as u64),
            },
            Self::ReservationRegister(_) | Self::ReservationAcquire(_) => {
                DataTransfer::HostToController { bytes: 16 }
            }
            Self::ReservationRelease(_) => DataTransfer::HostToController { bytes: 8 },
            Self::ReservationReport(command) => DataTransfer::ControllerToHost {
                bytes: command.length_bytes,
            },
            Self::Flush(_)
            | Self::WriteUncorrectable(_)
            | Self::WriteZeroes(_)
            | Self::Verify(_) => DataTransfer::None,
        }
    }

    /// The submission queue entry of this command with its data at `sgl` ([`Sgl::EMPTY`] for a
    /// command without data).
    #[must_use]
    pub fn encode(&self, cid: u16, sgl: Sgl) -> Sqe {
        let mut sqe = Sqe::new(self.opcode().0, cid, self.nsid());
        sqe.dptr = sgl.encode();
        match self {
            Self::Flush(_) => {}
            Self::Write(command) => command.encode(&mut sqe),
            Self::Read(command) => command.encode(&mut sqe),
            Self::WriteUncorrectable(command) => command.encode(&mut sqe),
            Self::Compare(command) => command.encode(&mut sqe),
            Self::WriteZeroes(command) => command.encode(&mut sqe),
            Self::DatasetManagement(command) => command.encode(&mut sqe),
            Self::Verify(command) => command.encode(&mut sqe),
            Self::ReservationRegister(command) => command.encode(&mut sqe),
            Self::ReservationReport(command) => command.encode(&mut sqe),
            Self::ReservationAcquire(command) => command.encode(&mut sqe),
            Self::ReservationRelease(command) => command.encode(&mut sqe),
            Self::Copy(command) => command.encode(&mut sqe),
        }
        sqe
    }
}

/// The 0's based Number of Ranges; a count outside 1 to 256 becomes the nearer end.
fn ranges_z(ranges: u16) -> u8 {
    zeroes_based::to_u8(ranges.clamp(1, 256)).unwrap_or(u8::MAX)
}

impl DatasetManagement {
    fn parse(sqe: &Sqe) -> Self {
        let cdw11 = sqe.cdw11.get();
        Self {
            nsid: sqe.nsid.get(),
            ranges: zeroes_based::from_u8(bits::byte(sqe.cdw10.get(), 0)),
            integral_read: bits::bit(cdw11, 0),
            integral_write: bits::bit(cdw11, 1),
            deallocate: bits::bit(cdw11, 2),
        }
    }

    fn encode(&self, sqe: &mut Sqe) {
        sqe.cdw10 = u32::from(ranges_z(self.ranges)).into();
        sqe.cdw11 = (bits::flag(self.integral_read, 0)
            | bits::flag(self.integral_write, 1)
            | bits::flag(self.deallocate, 2))
        .into();
    }
}

impl Copy {
    /// A Copy of `ranges` sources of format 0h to `sdlba`, without protection information.
    #[must_use]
    pub const fn new(nsid: u32, sdlba: u64, ranges: u16) -> Self {
        Self {
            nsid,
            sdlba,
            ranges,
            format: CopyFormat::FORMAT_0,
            prinfo_read: 0,
            prinfo_write: 0,
            stc_write: false,
            stc_read: false,
            fua: false,
            limited_retry: false,
            directive: Directive::NONE,
            tag_high: 0,
            tag_low: 0,
            application_tag: 0,
            application_tag_mask: 0,
        }
    }

    fn parse(sqe: &Sqe) -> Self {
        let (cdw12, cdw15) = (sqe.cdw12.get(), sqe.cdw15.get());
        Self {
            nsid: sqe.nsid.get(),
            sdlba: bits::dwords(sqe.cdw10.get(), sqe.cdw11.get()),
            ranges: zeroes_based::from_u8(bits::byte(cdw12, 0)),
            format: CopyFormat(bits::byte(bits::field(cdw12, 8, 4), 0)),
            prinfo_read: bits::byte(bits::field(cdw12, 12, 4), 0),
            prinfo_write: bits::byte(bits::field(cdw12, 26, 4), 0),
            stc_write: bits::bit(cdw12, 24),
            stc_read: bits::bit(cdw12, 25),
            fua: bits::bit(cdw12, 30),
            limited_retry: bits::bit(cdw12, 31),
            directive: Directive::parse(sqe),
            tag_high: bits::dwords(sqe.cdw2.get(), sqe.cdw3.get()),
            tag_low: sqe.cdw14.get(),
            application_tag: bits::low16(cdw15),
            application_tag_mask: bits::high16(cdw15),
        }
    }

    fn encode(&self, sqe: &mut Sqe) {
        sqe.cdw2 = bits::low32(self.tag_high).into();
        sqe.cdw3 = bits::high32(self.tag_high).into();
        sqe.cdw10 = bits::low32(self.sdlba).into();
        sqe.cdw11 = bits::high32(self.sdlba).into();
        sqe.cdw12 = (u32::from(ranges_z(self.ranges))
            | bits::place(u32::from(self.format.0), 8, 4)
            | bits::place(u32::from(self.prinfo_read), 12, 4)
            | bits::flag(self.stc_write, 24)
            | bits::flag(self.stc_read, 25)
            | bits::place(u32::from(self.prinfo_write), 26, 4)
            | bits::flag(self.fua, 30)
            | bits::flag(self.limited_retry, 31))
        .into();
        self.directive.encode(sqe);
        sqe.cdw14 = self.tag_low.into();
        sqe.cdw15 = bits::words(self.application_tag, self.application_tag_mask).into();
    }
}

#[cfg(test)]
mod tests {
    use super::super::LbaRange;
    use super::*;
    use crate::error::ErrorLocation;
    use crate::status::Status;
    use zerocopy::IntoBytes;

    const RANGE: LbaRange = LbaRange {
        slba: 0x1122_3344_5566_7788,
        nlb: 65_536,
    };

    #[test]
    fn exactly_the_commands_there_are_parse() {
        let known = [
            0x00, 0x01, 0x02, 0x04, 0x05, 0x08, 0x09, 0x0C, 0x0D, 0x0E, 0x11, 0x15, 0x19,
        ];
        for opcode in 0..=0xFF {
            let mut sqe = Sqe::new(opcode, 0, 1);
            sqe.cdw10 = 0x0100.into();
            let result = IoCommand::parse(&sqe);
            assert_eq!(result.is_ok(), known.contains(&opcode), "{opcode:02X}h");
            if let Err(error) = result {
                assert_eq!(error.status, Status::INVALID_OPCODE.dnr());
                assert_eq!(error.location, ErrorLocation::sqe(0));
            }
        }
    }

    #[test]
    fn a_write_is_as_the_figure_has_it() {
        let mut write = Write::new(0x0A0B_0C0D, RANGE);
        write.fua = true;
        write.directive = Directive {
            dtype: 1,
            dspec: 0x0203,
        };
        write.dsm = 0x45;
        let sqe = IoCommand::Write(write).encode(9, Sgl::EMPTY);
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[4..8], [0x0D, 0x0C, 0x0B, 0x0A]);
        assert_eq!(
            bytes[40..48],
            [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]
        );
        assert_eq!(bytes[48..52], [0xFF, 0xFF, 0x10, 0x40]);
        assert_eq!(bytes[52..56], [0x45, 0x00, 0x03, 0x02]);
    }

    #[test]
    fn data_transfers_come_from_the_command() {
        let dsm = DatasetManagement {
            nsid: 1,
            ranges: 256,
            integral_read: false,
            integral_write: false,
            deallocate: true,
        };
        let to_host = |bytes| DataTransfer::ControllerToHost { bytes };
        let to_controller = |bytes| DataTransfer::HostToController { bytes };
        let report = ReservationReport {
            nsid: 1,
            length_bytes: 4096,
            extended: true,
        };
        for (command, expected) in [
            (IoCommand::Read(Read::new(1, RANGE)), to_host(65_536 * 4096)),
            (
                IoCommand::Write(Write::new(1, RANGE)),
                to_controller(65_536 * 4096),
            ),
            (
                IoCommand::Compare(Compare::new(1, RANGE)),
                to_controller(65_536 * 4096),
            ),
            (IoCommand::Verify(Verify::new(1, RANGE)), DataTransfer::None),
            (
                IoCommand::WriteZeroes(WriteZeroes::new(1, RANGE)),
                DataTransfer::None,
            ),
            (IoCommand::Flush(Flush { nsid: 1 }), DataTransfer::None),
            (IoCommand::DatasetManagement(dsm), to_controller(4096)),
            (IoCommand::Copy(Copy::new(1, 0, 3)), to_controller(96)),
            (IoCommand::ReservationReport(report), to_host(4096)),
        ] {
            assert_eq!(command.data_transfer(4096), expected, "{command:?}");
        }
    }

    #[test]
    fn counts_a_field_cannot_hold_become_the_nearest_it_can() {
        let ranges = |ranges| {
            let sqe = IoCommand::Copy(Copy::new(1, 0, ranges)).encode(1, Sgl::EMPTY);
            match IoCommand::parse(&sqe) {
                Ok(IoCommand::Copy(copy)) => copy.ranges,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((ranges(0), ranges(256), ranges(257)), (1, 256, 256));
    }
}
