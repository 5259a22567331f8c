//! Commands of an I/O queue that the control half executes: those of reservations.

use capstan_nvme_proto::command::IoCommand as WireCommand;
use capstan_nvme_proto::error::CommandError;
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::transfer::DataTransfer;

use super::IoQueue;
use super::command::length_bytes;
use crate::bounds::TRANSFER_MAX_BYTES;
use crate::gate::Access;
use crate::queue::{Effect, Permit, Trace};

/// A command of an I/O queue for [`Target::execute_control`](crate::Target::execute_control).
#[derive(Debug)]
#[must_use = "the command stays outstanding until its permit is given to IoQueue::complete"]
pub struct ControlCommand {
    /// What completes the command, on its I/O queue.
    pub permit: Permit,
    pub(crate) command: WireCommand,
    data: DataTransfer,
}

impl ControlCommand {
    pub(super) fn new(permit: Permit, command: WireCommand, data: DataTransfer) -> Self {
        Self {
            permit,
            command,
            data,
        }
    }

    /// The data that it needs.
    #[must_use]
    pub fn data_transfer(&self) -> DataTransfer {
        self.data
    }

    /// Bytes of it.
    #[must_use]
    pub fn data_bytes(&self) -> u32 {
        length_bytes(self.data)
    }

    /// Whether the data goes to the host (push, after the command); else it comes from there
    /// (pull, before the command).
    #[must_use]
    pub fn moves_data_to_host(&self) -> bool {
        matches!(self.data, DataTransfer::ControllerToHost { .. })
    }
}

/// The commands of reservations. None changes what logical blocks hold.
pub(crate) const RESERVATION_COMMANDS: [IoOpcode; 4] = [
    IoOpcode::RESERVATION_REGISTER,
    IoOpcode::RESERVATION_REPORT,
    IoOpcode::RESERVATION_ACQUIRE,
    IoOpcode::RESERVATION_RELEASE,
];

/// What decoding a control command gives, besides its permit.
pub(super) type Decoded = (WireCommand, DataTransfer, Trace);

impl IoQueue {
    pub(super) fn decode_control(&mut self, sqe: &Sqe) -> Result<Decoded, CommandError> {
        self.check_state(sqe)?;
        let command = WireCommand::parse(sqe)?;
        sqe.require_not_fused()?;
        let namespace = self.namespace(command.nsid())?;
        namespace
            .gate
            .check(Access::Neither)
            .map_err(|status| super::command::refused(status, namespace.nsid))?;
        let data = command.data_transfer(namespace.geometry.lba_bytes);
        if data.bytes() > u64::from(TRANSFER_MAX_BYTES) {
            return Err(CommandError::invalid_field(
                "NUMD",
                40,
                data.bytes(),
                "at most 100000h bytes (MDTS)",
            ));
        }
        let trace = Trace {
            opcode: sqe.opcode,
            effect: Effect::Control,
            nsid: namespace.nsid,
            lba: 0,
            bytes: 0,
            // Known when it enters.
            writes_era: 0,
        };
        Ok((command, data, trace))
    }
}
