//! Commands Supported and Effects (LID 05h).

use capstan_nvme_proto::log::{CommandEffects, CommandEffectsLog};
use capstan_nvme_proto::opcode::AdminOpcode;

use crate::io_queue::{EXECUTED, RESERVATION_COMMANDS};

/// The page: exactly the commands that are executed.
pub(super) fn page() -> CommandEffectsLog {
    let supported = CommandEffects::SUPPORTED;
    CommandEffectsLog::new(
        [
            AdminOpcode::GET_LOG_PAGE,
            AdminOpcode::IDENTIFY,
            AdminOpcode::ABORT,
            AdminOpcode::SET_FEATURES,
            AdminOpcode::GET_FEATURES,
            AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST,
            AdminOpcode::KEEP_ALIVE,
            AdminOpcode::CROSS_CONTROLLER_RESET,
            AdminOpcode::GET_LBA_STATUS,
        ]
        .map(|opcode| (opcode, supported)),
        RESERVATION_COMMANDS
            .map(|opcode| (opcode, supported))
            .into_iter()
            .chain(EXECUTED.map(|(opcode, writes)| {
                let content = CommandEffects::LOGICAL_BLOCK_CONTENT;
                let effects = if writes {
                    supported | content
                } else {
                    supported
                };
                (opcode, effects)
            })),
    )
}
