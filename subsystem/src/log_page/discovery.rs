//! Discovery (LID 70h): every transport of every port of
//! every subsystem the asking host may use. NVMe Base 2.1,
//! section 5.1.12.3.1.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::net::SocketAddr;

use capstan_nvme_proto::log::{
    AddressFamily, DiscoveryEntryFlags, DiscoveryLogEntry, DiscoveryLogHeader,
    DiscoverySubsystemType, RdmaProviderType, TcpSecurityType, TransportRequirements,
};
use capstan_nvme_proto::nqn::Nqn;
use zerocopy::IntoBytes;

use super::Window;
use crate::ControllerId;
use crate::config::{PortConfig, Transport};
use crate::control::Target;

impl Target {
    pub(super) fn discovery_page(&self, id: ControllerId, window: &mut Window<'_>) {
        let Some(controller) = self.controller(id) else {
            return;
        };
        let host = &controller.association.hostnqn;
        let local = controller.local;
        let records: Vec<_> = self
            .discovery_records(host)
            .into_iter()
            .filter_map(|(subtype, subnqn, port)| {
                let address = reachable_address(port.address, local)?;
                Some((subtype, subnqn, port, address))
            })
            .flat_map(|(subtype, subnqn, port, address)| {
                let transports = [Transport::Rdma, Transport::Tcp].into_iter();
                let spoken = transports.filter(|transport| port.speaks(*transport));
                spoken.map(move |transport| {
                    let address = port.with_port_of(address, transport);
                    (subtype, subnqn, port, (address, transport))
                })
            })
            .collect();
        let count = u64::try_from(records.len()).unwrap_or(u64::MAX);
        window.put(DiscoveryLogHeader::new(self.genctr(), count).as_bytes());
        for (subtype, subnqn, port, address) in records {
            window.put_if_wanted(size_of::<DiscoveryLogEntry>(), || {
                self.discovery_entry(subtype, subnqn, port, address)
            });
        }
    }

    fn discovery_entry(
        &self,
        subtype: DiscoverySubsystemType,
        subnqn: &Nqn,
        port: &PortConfig,
        (address, transport): (SocketAddr, Transport),
    ) -> DiscoveryLogEntry {
        let adrfam = if address.is_ipv4() {
            AddressFamily::IPV4
        } else {
            AddressFamily::IPV6
        };
        let (traddr, trsvcid) = (address.ip().to_string(), address.port().to_string());
        let (id, traddr, trsvcid) = (port.id.0, traddr.as_str(), trsvcid.as_str());
        let mut entry = match transport {
            Transport::Rdma => {
                let provider = port.rdma.unwrap_or(RdmaProviderType::NOT_SPECIFIED);
                DiscoveryLogEntry::rdma(subtype, subnqn, id, adrfam, traddr, trsvcid, provider)
            }
            Transport::Tcp => {
                let security = TcpSecurityType::NONE;
                DiscoveryLogEntry::tcp(subtype, subnqn, id, adrfam, traddr, trsvcid, security)
            }
        };
        entry.asqsz = self.config().admin_queue_entries.into();
        entry.treq = TransportRequirements::SQ_FLOW_CONTROL_OPTIONAL;
        if subtype == DiscoverySubsystemType::CURRENT {
            // This controller accepts a KATO and sends notices of changes.
            entry.eflags = DiscoveryEntryFlags::PERSISTENT_CONNECTIONS.bits().into();
        }
        entry
    }
}

/// The address of a port as the host that asks can use it: for a wildcard the one it reached this
/// target by, when it is of the same family. A wildcard of the other family has no address that is
/// known to lead here, and 0.0.0.0 leads the host to itself: `None`.
fn reachable_address(port: SocketAddr, local: SocketAddr) -> Option<SocketAddr> {
    if !port.ip().is_unspecified() {
        return Some(port);
    }
    // `local` is an IPv4 address mapped into IPv6 only where a wildcard IPv6 listener takes both.
    let same_family = port.is_ipv4() == local.is_ipv4();
    same_family.then(|| SocketAddr::new(local.ip().to_canonical(), port.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn wildcards_become_the_address_the_host_reached() {
        let cases = [
            ("0.0.0.0:4420", "10.0.0.5:4420", Some("10.0.0.5:4420")),
            ("[::]:4421", "[fd00::5]:4420", Some("[fd00::5]:4421")),
            ("[::]:4420", "[::ffff:10.0.0.5]:4420", Some("10.0.0.5:4420")),
            ("10.9.9.9:4420", "10.0.0.5:4420", Some("10.9.9.9:4420")),
            ("10.9.9.9:4420", "[fd00::5]:4420", Some("10.9.9.9:4420")),
            ("0.0.0.0:4420", "[fd00::5]:4420", None),
            ("[::]:4420", "10.0.0.5:4420", None),
        ];
        for (port, local, expected) in cases {
            let shown = reachable_address(address(port), address(local));
            assert_eq!(shown, expected.map(address), "{port} reached as {local}");
        }
    }
}
