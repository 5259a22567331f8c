//! Commands Supported and Effects (LID 05h).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::opcode::{AdminOpcode, IoOpcode};

bitflags! {
    /// Whether a command is supported, and what it can change.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct CommandEffects: u32 {
        /// CSUPP: the command is supported.
        const SUPPORTED = 1 << 0;
        /// LBCC: it can change the content of logical blocks.
        const LOGICAL_BLOCK_CONTENT = 1 << 1;
        /// NCC: it can change the capabilities of a namespace.
        const NAMESPACE_CAPABILITY = 1 << 2;
        /// NIC: it can change the number or the capabilities of several namespaces.
        const NAMESPACE_INVENTORY = 1 << 3;
        /// CCC: it can change the capabilities of the controller.
        const CONTROLLER_CAPABILITY = 1 << 4;
        /// CSER bits 15:14 and CSE bits 18:16 are 001b: to be sent with no other command
        /// outstanding for the namespace.
        const ALONE_ON_NAMESPACE = 1 << 16;
        /// CSE bits 18:16 are 010b: to be sent with no other command outstanding for any namespace.
        const ALONE = 1 << 17;
        /// USS: UUID selection is supported.
        const UUID_SELECTION = 1 << 19;
        /// CSP bit 0: the command acts on a namespace.
        const NAMESPACE_SCOPE = 1 << 20;
        /// CSP bit 1: the command acts on a controller.
        const CONTROLLER_SCOPE = 1 << 21;
        /// CSP bit 2: the command acts on an NVM Set.
        const NVM_SET_SCOPE = 1 << 22;
        /// CSP bit 3: the command acts on an endurance group.
        const ENDURANCE_GROUP_SCOPE = 1 << 23;
        /// CSP bit 4: the command acts on a domain.
        const DOMAIN_SCOPE = 1 << 24;
        /// CSP bit 5: the command acts on the NVM subsystem.
        const NVM_SUBSYSTEM_SCOPE = 1 << 25;
    }
}

/// Commands Supported and Effects log page, 4096 bytes. NVMe Base 2.1, section 5.1.12.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CommandEffectsLog {
    /// ACS0 to ACS255: admin commands by opcode.
    acs: [U32; 256],
    /// IOCS0 to IOCS255: I/O commands by opcode.
    iocs: [U32; 256],
    reserved2048: [u8; 2048],
}

const _: () = {
    assert!(size_of::<CommandEffectsLog>() == 4096 && align_of::<CommandEffectsLog>() == 1);
    assert!(offset_of!(CommandEffectsLog, iocs) == 1024);
    assert!(offset_of!(CommandEffectsLog, reserved2048) == 2048);
};

impl CommandEffectsLog {
    /// A page of these commands, and no other.
    #[must_use]
    pub fn new(
        admin: impl IntoIterator<Item = (AdminOpcode, CommandEffects)>,
        io: impl IntoIterator<Item = (IoOpcode, CommandEffects)>,
    ) -> Self {
        let mut log = Self::new_zeroed();
        for (opcode, effects) in admin {
            if let Some(entry) = log.acs.get_mut(usize::from(opcode.0)) {
                *entry = effects.bits().into();
            }
        }
        for (opcode, effects) in io {
            if let Some(entry) = log.iocs.get_mut(usize::from(opcode.0)) {
                *entry = effects.bits().into();
            }
        }
        log
    }

    /// From the data of the command; `None` when there are fewer than 4096 bytes.
    #[must_use]
    pub fn from_data(data: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(data).ok().map(|(log, _rest)| log)
    }

    /// Effects of an admin command; empty when it is not supported.
    #[must_use]
    pub fn admin(&self, opcode: AdminOpcode) -> CommandEffects {
        effects(self.acs.get(usize::from(opcode.0)))
    }

    /// Effects of an I/O command; empty when it is not supported.
    #[must_use]
    pub fn io(&self, opcode: IoOpcode) -> CommandEffects {
        effects(self.iocs.get(usize::from(opcode.0)))
    }
}

fn effects(entry: Option<&U32>) -> CommandEffects {
    CommandEffects::from_bits_retain(entry.map_or(0, |entry| entry.get()))
}

impl core::fmt::Debug for CommandEffectsLog {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let admin = (0..=u8::MAX)
            .map(AdminOpcode)
            .map(|opcode| (opcode, self.admin(opcode)));
        let io = (0..=u8::MAX)
            .map(IoOpcode)
            .map(|opcode| (opcode, self.io(opcode)));
        f.debug_map()
            .entries(admin.filter(|(_, effects)| !effects.is_empty()))
            .entries(io.filter(|(_, effects)| !effects.is_empty()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_and_io_commands_have_their_own_halves() {
        let write = CommandEffects::SUPPORTED | CommandEffects::LOGICAL_BLOCK_CONTENT;
        let log = CommandEffectsLog::new(
            [(AdminOpcode::IDENTIFY, CommandEffects::SUPPORTED)],
            [(IoOpcode::WRITE, write)],
        );
        assert_eq!(log.as_bytes()[4 * 6], 1);
        assert_eq!(log.as_bytes()[1024 + 4], 3);
        assert_eq!(log.io(IoOpcode::WRITE), write);
        assert_eq!(
            log.admin(AdminOpcode(IoOpcode::WRITE.0)),
            CommandEffects::empty()
        );
        assert_eq!(CommandEffectsLog::from_data(log.as_bytes()), Some(&log));
        assert_eq!(CommandEffectsLog::from_data(&[0; 4095]), None);
    }
}
