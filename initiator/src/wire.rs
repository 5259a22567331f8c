//! What carries the queues of an association, for people and for programs.

use std::fmt;

use capstan_nvme_proto::tcp::setup::Digests;
use capstan_rdma::ProviderKind;
use capstan_transport::host::HostWire;
use serde::{Deserialize, Serialize};

use crate::options::Transport;

/// What carries the queues of an association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// NVMe/RDMA.
    Rdma {
        /// The provider; `None` with a connection manager of the caller's choice.
        provider: Option<ProviderKind>,
        /// Name of the device, as `rdma link` shows it; iWARP in this process has `iwarp0`.
        device: String,
        /// Shared memory has taken the place of TCP: both ends are on one machine and have iWARP in
        /// their processes.
        shared_memory: bool,
    },
    /// NVMe/TCP, with the digests that both sides have agreed on for every queue.
    Tcp {
        /// CRC32C of each header.
        header_digest: bool,
        /// CRC32C of all data.
        data_digest: bool,
    },
}

impl Wire {
    /// Of queues that are connected; `None` of others.
    pub(crate) fn of(wire: &HostWire, provider: Option<ProviderKind>) -> Option<Self> {
        if let Some(device) = wire.device_attributes() {
            return Some(Self::Rdma {
                provider,
                device: device.name.clone(),
                shared_memory: wire.shares_memory(),
            });
        }
        wire.digests().map(|digests| Self::Tcp {
            header_digest: digests.contains(Digests::HEADER),
            data_digest: digests.contains(Digests::DATA),
        })
    }

    /// RDMA or TCP.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self {
            Self::Rdma { .. } => Transport::Rdma,
            Self::Tcp { .. } => Transport::Tcp,
        }
    }
}

/// `RDMA (verbs, rxe0)`, `RDMA (iwarp)`, `RDMA (iwarp, shared memory)`, `NVMe/TCP, header and data
/// digests`.
impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma {
                provider: Some(ProviderKind::Iwarp),
                shared_memory,
                ..
            } => f.write_str(match shared_memory {
                true => "RDMA (iwarp, shared memory)",
                false => "RDMA (iwarp)",
            }),
            Self::Rdma {
                provider: Some(provider),
                device,
                ..
            } => write!(f, "RDMA ({}, {device})", provider.name()),
            Self::Rdma {
                provider: None,
                device,
                ..
            } => write!(f, "RDMA ({device})"),
            Self::Tcp {
                header_digest,
                data_digest,
            } => f.write_str(match (header_digest, data_digest) {
                (false, false) => "NVMe/TCP",
                (true, false) => "NVMe/TCP, header digests",
                (false, true) => "NVMe/TCP, data digests",
                (true, true) => "NVMe/TCP, header and data digests",
            }),
        }
    }
}

/// A [`Wire`] as the fields of a JSON object; those that the other transport has are `null`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WireFields {
    /// `verbs` or `iwarp`.
    pub provider: Option<String>,
    /// Name of the RDMA device.
    pub rdma_device: Option<String>,
    /// Whether shared memory has taken the place of TCP.
    pub shared_memory: Option<bool>,
    /// Whether headers of NVMe/TCP have a digest.
    pub header_digest: Option<bool>,
    /// Whether data of NVMe/TCP has one.
    pub data_digest: Option<bool>,
}

impl WireFields {
    /// Of `wire`, where that is known.
    #[must_use]
    pub fn of(wire: Option<&Wire>) -> Self {
        match wire {
            None => Self::default(),
            Some(Wire::Rdma {
                provider,
                device,
                shared_memory,
            }) => Self {
                provider: provider.map(|provider| provider.name().to_owned()),
                rdma_device: Some(device.clone()),
                shared_memory: Some(*shared_memory),
                ..Self::default()
            },
            Some(&Wire::Tcp {
                header_digest,
                data_digest,
            }) => Self {
                header_digest: Some(header_digest),
                data_digest: Some(data_digest),
                ..Self::default()
            },
        }
    }

    /// The wire; `None` where it is not known.
    #[must_use]
    pub fn wire(&self) -> Option<Wire> {
        if let (Some(header_digest), Some(data_digest)) = (self.header_digest, self.data_digest) {
            return Some(Wire::Tcp {
                header_digest,
                data_digest,
            });
        }
        let kinds = [ProviderKind::Verbs, ProviderKind::Iwarp];
        let name = self.provider.as_deref();
        Some(Wire::Rdma {
            provider: kinds.into_iter().find(|kind| Some(kind.name()) == name),
            device: self.rdma_device.clone()?,
            shared_memory: self.shared_memory.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{ProviderKind, Wire, WireFields};

    #[test]
    fn each_has_its_words() {
        let rdma = |provider| Wire::Rdma {
            provider,
            device: "rxe0".to_owned(),
            shared_memory: false,
        };
        let verbs = rdma(Some(ProviderKind::Verbs));
        assert_eq!(verbs.to_string(), "RDMA (verbs, rxe0)");
        assert_eq!(rdma(Some(ProviderKind::Iwarp)).to_string(), "RDMA (iwarp)");
        assert_eq!(rdma(None).to_string(), "RDMA (rxe0)");
        let shared = Wire::Rdma {
            provider: Some(ProviderKind::Iwarp),
            device: "iwarp0".to_owned(),
            shared_memory: true,
        };
        assert_eq!(shared.to_string(), "RDMA (iwarp, shared memory)");
        let tcp = |header_digest, data_digest| Wire::Tcp {
            header_digest,
            data_digest,
        };
        assert_eq!(tcp(false, false).to_string(), "NVMe/TCP");
        assert_eq!(tcp(false, true).to_string(), "NVMe/TCP, data digests");
        for wire in [verbs, rdma(None), shared, tcp(true, false)] {
            assert_eq!(WireFields::of(Some(&wire)).wire(), Some(wire));
        }
        assert_eq!(WireFields::of(None).wire(), None);
    }
}
