//! From a submission queue entry to a command that a driver can execute without looking at the
//! entry again.

use capstan_nvme_proto::command::{IoCommand as WireCommand, LbaRange};
use capstan_nvme_proto::copy::{CopyFormat, source_ranges};
use capstan_nvme_proto::dataset::DsmRange;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::transfer::DataTransfer;

use super::IoQueue;
use crate::bounds::{COPY_MAX_BYTES, COPY_RANGES_MAX, TRANSFER_MAX_BYTES};
use crate::gate::Access;
use crate::namespace::{BackendId, Namespace};
use crate::queue::{Effect, Permit, Trace};

/// A command to execute, checked against the namespace.
#[derive(Debug)]
#[must_use = "the command stays outstanding until its permit is given to IoQueue::complete"]
pub struct IoCommand {
    /// What completes the command.
    pub permit: Permit,
    /// The namespace it is for.
    pub namespace: NamespaceRef,
    /// What to do.
    pub operation: IoOperation,
    /// Bytes of its data. Direction: see [`IoOperation::moves_data_to_host`].
    pub data_bytes: u32,
}

/// What a driver needs to know of a namespace to execute a command on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceRef {
    /// Namespace Identifier.
    pub nsid: u32,
    /// Where its blocks are.
    pub backend: BackendId,
    /// Bytes of a logical block, a power of two.
    pub lba_bytes: u32,
    /// Logical blocks.
    pub lbas: u64,
}

/// What a command does. Ranges lie inside the namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoOperation {
    /// Push the blocks to the host.
    Read {
        /// Blocks.
        range: LbaRange,
        /// Read what is on the medium: written data that is still volatile goes there first.
        fua: bool,
    },
    /// Store the host's data.
    Write {
        /// Blocks.
        range: LbaRange,
        /// Complete only when the data is on the medium.
        fua: bool,
    },
    /// Complete with Compare Failure unless the blocks equal the host's data.
    Compare {
        /// Blocks.
        range: LbaRange,
        /// As for Read.
        fua: bool,
    },
    /// Read the blocks and drop them: only whether that works is of interest.
    Verify {
        /// Blocks, at most [`TRANSFER_MAX_BYTES`].
        range: LbaRange,
        /// As for Read.
        fua: bool,
    },
    /// Make the blocks read as zeroes.
    WriteZeroes {
        /// Blocks; up to 65,536 of them, whatever their size.
        range: LbaRange,
        /// Deallocate the blocks if they then read as zeroes.
        deallocate: bool,
        /// As for Write.
        fua: bool,
    },
    /// Put everything written so far on the medium.
    Flush,
    /// Deallocate [`IoCommand::dsm_ranges`], or nothing when `deallocate` is not set.
    DatasetManagement {
        /// Number of ranges in the data.
        ranges: u16,
        /// The ranges may be deallocated; else they are only hints.
        deallocate: bool,
    },
    /// Copy [`IoCommand::copy_sources`], one after the other, to `sdlba`.
    Copy {
        /// First destination block.
        sdlba: u64,
        /// Number of source ranges in the data.
        ranges: u16,
        /// As for Write.
        fua: bool,
    },
}

impl IoOperation {
    /// Whether the data of the command goes to the host (push); else it comes from there (pull).
    #[must_use]
    pub const fn moves_data_to_host(&self) -> bool {
        match self {
            Self::Read { .. } => true,
            Self::Write { .. }
            | Self::Compare { .. }
            | Self::Verify { .. }
            | Self::WriteZeroes { .. }
            | Self::Flush
            | Self::DatasetManagement { .. }
            | Self::Copy { .. } => false,
        }
    }

    /// What it does to the medium. Dataset Management without Deallocate is a hint.
    const fn access(&self) -> Access {
        match self {
            Self::Read { .. } | Self::Compare { .. } | Self::Verify { .. } => Access::Read,
            Self::Write { .. } | Self::WriteZeroes { .. } => Access::Write,
            Self::DatasetManagement { deallocate, .. } if *deallocate => Access::Write,
            Self::DatasetManagement { .. } | Self::Flush => Access::WriteNothing,
            Self::Copy { .. } => Access::ReadAndWrite,
        }
    }

    /// Whether blocks may hold something else afterwards.
    #[must_use]
    pub const fn changes_blocks(&self) -> bool {
        self.access().changes_blocks()
    }
}

impl IoCommand {
    /// The data that it needs.
    #[must_use]
    #[inline]
    pub fn data_transfer(&self) -> DataTransfer {
        let bytes = u64::from(self.data_bytes);
        if self.operation.moves_data_to_host() {
            DataTransfer::ControllerToHost { bytes }
        } else {
            DataTransfer::HostToController { bytes }
        }
    }

    /// The ranges of a Dataset Management command whose data is `data`, each inside the
    /// namespace and not empty.
    ///
    /// # Errors
    /// The status to complete the command with.
    pub fn dsm_ranges<'a>(
        &self,
        data: &'a [u8],
    ) -> Result<impl Iterator<Item = LbaRange> + use<'a>, Status> {
        let IoOperation::DatasetManagement { ranges, .. } = self.operation else {
            return Err(Status::INTERNAL_ERROR);
        };
        let ranges = DsmRange::parse_all(data, ranges).map_err(|error| error.status)?;
        for range in ranges {
            range
                .require_within(self.namespace.lbas)
                .map_err(|error| error.status)?;
        }
        Ok(ranges
            .iter()
            .map(|range| LbaRange {
                slba: range.slba.get(),
                nlb: range.length_lbas.get(),
            })
            .filter(|range| range.nlb > 0))
    }

    /// The source ranges of a Copy command whose data is `data`, in order: each inside the
    /// namespace, none longer than MSSRL, together no longer than MCL and than the room behind
    /// the destination, and none overlapping the destination.
    ///
    /// # Errors
    /// The status to complete the command with.
    pub fn copy_sources<'a>(
        &self,
        data: &'a [u8],
    ) -> Result<impl Iterator<Item = LbaRange> + use<'a>, Status> {
        let IoOperation::Copy { sdlba, ranges, .. } = self.operation else {
            return Err(Status::INTERNAL_ERROR);
        };
        let sources =
            source_ranges(data, CopyFormat::FORMAT_0, ranges).map_err(|error| error.status)?;
        let limits = CopyLimits::new(self.namespace.lba_bytes);
        let mut total_lbas: u32 = 0;
        for source in sources.clone() {
            source
                .require_within(self.namespace.lbas)
                .map_err(|error| error.status)?;
            total_lbas = total_lbas.saturating_add(source.nlb);
            if source.nlb > u32::from(limits.mssrl_lbas) || total_lbas > limits.mcl_lbas {
                return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr());
            }
        }
        let destination = LbaRange {
            slba: sdlba,
            nlb: total_lbas,
        };
        destination
            .require_within(self.namespace.lbas)
            .map_err(|error| error.status)?;
        if sources.clone().any(|source| overlap(source, destination)) {
            return Err(Status::OVERLAPPING_IO_RANGE.dnr());
        }
        Ok(sources)
    }
}

fn overlap(a: LbaRange, b: LbaRange) -> bool {
    let end = |range: LbaRange| range.end().unwrap_or(u64::MAX);
    a.slba < end(b) && b.slba < end(a)
}

/// Copy limits of a namespace, as Identify Namespace tells them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopyLimits {
    /// MSSRL, Maximum Single Source Range Length.
    pub(crate) mssrl_lbas: u16,
    /// MCL, Maximum Copy Length.
    pub(crate) mcl_lbas: u32,
}

impl CopyLimits {
    pub(crate) fn new(lba_bytes: u32) -> Self {
        let lbas = |bytes: u32| bytes.checked_div(lba_bytes).unwrap_or(0);
        Self {
            mssrl_lbas: u16::try_from(lbas(TRANSFER_MAX_BYTES)).unwrap_or(u16::MAX),
            mcl_lbas: lbas(COPY_MAX_BYTES),
        }
    }
}

/// The commands that are executed, and whether they change what logical blocks hold. Every other
/// opcode is Invalid Command Opcode, whatever its fields are.
pub(crate) const EXECUTED: [(IoOpcode, bool); 8] = [
    (IoOpcode::FLUSH, false),
    (IoOpcode::WRITE, true),
    (IoOpcode::READ, false),
    (IoOpcode::COMPARE, false),
    (IoOpcode::WRITE_ZEROES, true),
    (IoOpcode::DATASET_MANAGEMENT, true),
    (IoOpcode::VERIFY, false),
    (IoOpcode::COPY, true),
];

/// What decoding a command gives, besides its permit.
pub(super) type Decoded = (IoOperation, NamespaceRef, Trace);

impl IoQueue {
    /// Understands an I/O command (any opcode but 7Fh) and checks it in the order: state of the
    /// queue, opcode and fields, namespace, what the host may do with it, sizes, range. Its SGL is
    /// for the driver to check, last of all.
    pub(super) fn decode(&mut self, sqe: &Sqe) -> Result<Decoded, CommandError> {
        self.check_state(sqe)?;
        let opcode = sqe.io_opcode();
        if !EXECUTED.iter().any(|(executed, _)| *executed == opcode) {
            return Err(CommandError::invalid_opcode("Opcode", 0, opcode.0));
        }
        let command = WireCommand::parse(sqe)?;
        sqe.require_not_fused()?;
        let nsid = command.nsid();
        let namespace = self.namespace(nsid)?;
        let geometry = &namespace.geometry;
        let (operation, access, range) =
            operation(&command, self.controller.is_write_cache_disabled())?;
        if access.changes_blocks() && geometry.read_only {
            return Err(refused(Status::NAMESPACE_IS_WRITE_PROTECTED.dnr(), nsid));
        }
        namespace
            .gate
            .check(access)
            .map_err(|status| refused(status, nsid))?;
        let data = command.data_transfer(geometry.lba_bytes);
        let range_bytes = range.map_or(0, |range| range.bytes(geometry.lba_bytes));
        let moved_bytes = match operation {
            IoOperation::Verify { .. } => range_bytes,
            IoOperation::Read { .. }
            | IoOperation::Write { .. }
            | IoOperation::Compare { .. }
            | IoOperation::WriteZeroes { .. }
            | IoOperation::Flush
            | IoOperation::DatasetManagement { .. }
            | IoOperation::Copy { .. } => data.bytes(),
        };
        if moved_bytes > u64::from(TRANSFER_MAX_BYTES) {
            return Err(CommandError::invalid_field(
                "NLB",
                48,
                moved_bytes,
                "at most 100000h bytes (MDTS, VSL)",
            ));
        }
        if let Some(range) = range {
            range.require_within(geometry.lbas)?;
        }
        let trace = Trace {
            opcode: sqe.opcode,
            effect: match operation {
                IoOperation::Read { .. } | IoOperation::Compare { .. } => Effect::Read,
                IoOperation::Write { .. } => Effect::Write,
                IoOperation::Verify { .. }
                | IoOperation::WriteZeroes { .. }
                | IoOperation::Flush
                | IoOperation::DatasetManagement { .. }
                | IoOperation::Copy { .. } => Effect::Other,
            },
            nsid,
            lba: range.map_or(0, |range| range.slba),
            bytes: length_bytes(data),
            // Known when it enters.
            writes_era: 0,
        };
        let namespace = NamespaceRef {
            nsid,
            backend: namespace.backend,
            lba_bytes: geometry.lba_bytes,
            lbas: geometry.lbas,
        };
        Ok((operation, namespace, trace))
    }
}

impl IoQueue {
    /// Whether a command that was accepted may still go to the medium: between the two it waited,
    /// for its data or a buffer, and meanwhile the namespace may have been reserved, write
    /// protected, made inaccessible or taken away. To be asked right before it does, by all that
    /// waited.
    ///
    /// # Errors
    /// The status to complete it with.
    pub fn check_again(&self, io: &IoCommand) -> Result<(), Status> {
        let NamespaceRef { nsid, backend, .. } = io.namespace;
        let namespace = self.namespaces.find(nsid);
        let Some(namespace) = namespace.filter(|namespace| namespace.backend == backend) else {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT.dnr());
        };
        let access = io.operation.access();
        if access.changes_blocks() && namespace.geometry.read_only {
            return Err(Status::NAMESPACE_IS_WRITE_PROTECTED.dnr());
        }
        namespace.gate.check(access)
    }

    /// The active namespace `nsid`.
    pub(crate) fn namespace(&self, nsid: u32) -> Result<&Namespace, CommandError> {
        self.namespaces.find(nsid).ok_or_else(|| CommandError {
            status: Status::INVALID_NAMESPACE_OR_FORMAT.dnr(),
            location: ErrorLocation::sqe(4),
            field: "NSID",
            value: u64::from(nsid),
            expected: "an active namespace",
        })
    }
}

/// The length of `data`, which is no longer than MDTS.
pub(crate) fn length_bytes(data: DataTransfer) -> u32 {
    u32::try_from(data.bytes()).unwrap_or(u32::MAX)
}

/// The operation of a command, what it does to the medium, and the range it names itself.
fn operation(
    command: &WireCommand,
    write_through: bool,
) -> Result<(IoOperation, Access, Option<LbaRange>), CommandError> {
    Ok(match *command {
        WireCommand::Read(read) => {
            let (range, fua) = (read.range, read.fua);
            let operation = IoOperation::Read { range, fua };
            (operation, operation.access(), Some(range))
        }
        WireCommand::Write(write) => {
            let (range, fua) = (write.range, write.fua || write_through);
            let operation = IoOperation::Write { range, fua };
            (operation, operation.access(), Some(range))
        }
        WireCommand::Compare(compare) => {
            let (range, fua) = (compare.range, compare.fua);
            let operation = IoOperation::Compare { range, fua };
            (operation, operation.access(), Some(range))
        }
        WireCommand::Verify(verify) => {
            let (range, fua) = (verify.range, verify.fua);
            let operation = IoOperation::Verify { range, fua };
            (operation, operation.access(), Some(range))
        }
        WireCommand::WriteZeroes(zeroes) => {
            if zeroes.namespace_zeroes {
                return Err(CommandError::invalid_field(
                    "NSZ",
                    50,
                    1,
                    "0 (Identify Namespace NSFEAT does not offer it)",
                ));
            }
            let operation = IoOperation::WriteZeroes {
                range: zeroes.range,
                deallocate: zeroes.deallocate,
                fua: zeroes.fua || write_through,
            };
            (operation, operation.access(), Some(zeroes.range))
        }
        WireCommand::Flush(_) => (IoOperation::Flush, IoOperation::Flush.access(), None),
        WireCommand::DatasetManagement(dsm) => {
            let operation = IoOperation::DatasetManagement {
                ranges: dsm.ranges,
                deallocate: dsm.deallocate,
            };
            (operation, operation.access(), None)
        }
        WireCommand::Copy(copy) => {
            if copy.format != CopyFormat::FORMAT_0 {
                return Err(CommandError::invalid_field(
                    "Descriptor Format",
                    49,
                    u64::from(copy.format.0),
                    "0",
                ));
            }
            if copy.ranges > COPY_RANGES_MAX {
                return Err(CommandError {
                    status: Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr(),
                    location: ErrorLocation::sqe(48),
                    field: "NR",
                    value: u64::from(copy.ranges),
                    expected: "at most MSRC ranges",
                });
            }
            let operation = IoOperation::Copy {
                sdlba: copy.sdlba,
                ranges: copy.ranges,
                fua: copy.fua || write_through,
            };
            (operation, operation.access(), None)
        }
        WireCommand::WriteUncorrectable(_)
        | WireCommand::ReservationRegister(_)
        | WireCommand::ReservationReport(_)
        | WireCommand::ReservationAcquire(_)
        | WireCommand::ReservationRelease(_) => {
            let opcode = command.opcode().0;
            return Err(CommandError::invalid_opcode("Opcode", 0, opcode));
        }
    })
}

pub(super) fn refused(status: Status, nsid: u32) -> CommandError {
    CommandError {
        status,
        location: ErrorLocation::sqe(4),
        field: "NSID",
        value: u64::from(nsid),
        expected: "a namespace that allows the command now",
    }
}
