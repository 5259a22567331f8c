//! How much data a command moves, and which way; and what a controller says of where it may be.

use crate::identify::SglSupport;

/// The data of a command, as its own fields give it (before its SGL is looked at).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DataTransfer {
    /// The command has no data.
    None,
    /// The host's data goes to the controller, which pulls it or finds it in the capsule.
    HostToController {
        /// Bytes.
        bytes: u64,
    },
    /// The controller's data goes to the host.
    ControllerToHost {
        /// Bytes.
        bytes: u64,
    },
}

impl DataTransfer {
    /// Bytes, whichever way they go.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::None => 0,
            Self::HostToController { bytes } | Self::ControllerToHost { bytes } => bytes,
        }
    }
}

/// What Identify Controller says of the data of commands: what a controller takes over its
/// transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataSupport {
    /// SGLS: kinds of SGL descriptors.
    pub sgls: SglSupport,
    /// MSDBD: data descriptors of one command.
    pub descriptors_max: u8,
    /// In-capsule data of a command on an I/O queue.
    pub in_capsule_bytes: u32,
    /// ICDOFF: where it begins, behind the SQE, in units of 16 bytes.
    pub in_capsule_offset_16bytes: u16,
}

impl DataSupport {
    /// IOCCSZ: a command capsule on an I/O queue in units of 16 bytes: the SQE, ICDOFF and the
    /// in-capsule data.
    #[must_use]
    pub const fn ioccsz_16bytes(&self) -> u32 {
        let data_16bytes = self.in_capsule_bytes / 16;
        let before = (self.in_capsule_offset_16bytes as u32).saturating_add(4);
        data_16bytes.saturating_add(before)
    }
}
