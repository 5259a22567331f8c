//! What the machine is asked to be.

use crate::{Needs, Verdict};

/// Which program the checks are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// `capstan`: a few connections and 32 MiB of registered memory.
    Host,
    /// `capstan` by NVMe/TCP alone: RDMA devices and what they need have no part in it.
    TcpHost,
    /// `capstan-target`.
    Target {
        /// All memory that is registered, in bytes.
        memory_bytes: u64,
        /// A listener uses an RDMA device.
        verbs: bool,
        /// What each RDMA device must have room for.
        needs: Option<Needs>,
    },
}

impl Role {
    /// A target with this much registered memory and no RDMA device in use.
    #[must_use]
    pub fn target(memory_bytes: u64) -> Self {
        Self::Target {
            memory_bytes,
            verbs: false,
            needs: None,
        }
    }

    /// The verdict on what keeps an RDMA device from being used: an error where one is.
    pub(crate) fn of_device(&self) -> Verdict {
        match self {
            Self::Target { verbs: true, .. } => Verdict::Error,
            Self::Host | Self::TcpHost | Self::Target { .. } => Verdict::Warning,
        }
    }

    /// Whether it is `capstan`.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self, Self::Host | Self::TcpHost)
    }
}
