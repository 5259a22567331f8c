//! Commands Supported and Effects (LID 05h).

use capstan_nvme_proto::log::{CommandEffects, CommandEffectsLog};
use capstan_nvme_proto::opcode::{AdminOpcode, IoOpcode};

/// The page: exactly the commands that are executed.
pub(super) fn page() -> CommandEffectsLog {
    let supported = CommandEffects::SUPPORTED;
    let writes = supported | CommandEffects::LOGICAL_BLOCK_CONTENT;
    CommandEffectsLog::new(
        [
            AdminOpcode::GET_LOG_PAGE,
            AdminOpcode::IDENTIFY,
            AdminOpcode::ABORT,
            AdminOpcode::SET_FEATURES,
            AdminOpcode::GET_FEATURES,
            AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST,
            AdminOpcode::KEEP_ALIVE,
        ]
        .map(|opcode| (opcode, supported)),
        [
            (IoOpcode::FLUSH, supported),
            (IoOpcode::WRITE, writes),
            (IoOpcode::READ, supported),
            (IoOpcode::COMPARE, supported),
            (IoOpcode::WRITE_ZEROES, writes),
            (IoOpcode::DATASET_MANAGEMENT, writes),
            (IoOpcode::VERIFY, supported),
            (IoOpcode::COPY, writes),
        ],
    )
}
