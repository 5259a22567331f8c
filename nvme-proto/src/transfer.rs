//! How much data a command moves, and which way.

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
