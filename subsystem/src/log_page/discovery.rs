//! Discovery (LID 70h): every port of every subsystem the asking host may use. NVMe Base 2.1,
//! section 5.1.12.3.1.

use alloc::string::ToString;
use core::net::{IpAddr, SocketAddr};

use capstan_nvme_proto::log::{
    AddressFamily, DiscoveryEntryFlags, DiscoveryLogEntry, DiscoveryLogHeader,
    DiscoverySubsystemType, TransportRequirements,
};
use capstan_nvme_proto::nqn::Nqn;
use zerocopy::IntoBytes;

use super::Window;
use crate::ControllerId;
use crate::config::PortConfig;
use crate::control::Target;

impl Target {
    pub(super) fn discovery_page(&self, id: ControllerId, window: &mut Window<'_>) {
        let Some(controller) = self.controller(id) else {
            return;
        };
        let host = &controller.association.hostnqn;
        let local = controller.local;
        let records = self.discovery_records(host);
        let count = u64::try_from(records.len()).unwrap_or(u64::MAX);
        window.put(DiscoveryLogHeader::new(self.genctr(), count).as_bytes());
        for (subtype, subnqn, port) in records {
            let entry = self.discovery_entry(subtype, subnqn, port, local);
            window.put(entry.as_bytes());
        }
    }

    fn discovery_entry(
        &self,
        subtype: DiscoverySubsystemType,
        subnqn: &Nqn,
        port: &PortConfig,
        local: SocketAddr,
    ) -> DiscoveryLogEntry {
        let address = reachable_address(port.address, local);
        let adrfam = if address.is_ipv4() {
            AddressFamily::IPV4
        } else {
            AddressFamily::IPV6
        };
        let mut entry = DiscoveryLogEntry::rdma(
            subtype,
            subnqn,
            port.id.0,
            adrfam,
            &address.ip().to_string(),
            &address.port().to_string(),
            port.provider,
        );
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
/// port by, when it is of the same family.
fn reachable_address(port: SocketAddr, local: SocketAddr) -> SocketAddr {
    let local_ip = unmapped(local.ip());
    let same_family = port.is_ipv4() == local_ip.is_ipv4();
    // A wildcard IPv6 listener takes IPv4 connections too, as addresses mapped into IPv6.
    let dual_stack = port.is_ipv6() && local_ip.is_ipv4();
    if port.ip().is_unspecified() && (same_family || dual_stack) {
        SocketAddr::new(local_ip, port.port())
    } else {
        port
    }
}

fn unmapped(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
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
            ("0.0.0.0:4420", "10.0.0.5:4420", "10.0.0.5:4420"),
            ("[::]:4421", "[fd00::5]:4420", "[fd00::5]:4421"),
            ("[::]:4420", "[::ffff:10.0.0.5]:4420", "10.0.0.5:4420"),
            ("10.9.9.9:4420", "10.0.0.5:4420", "10.9.9.9:4420"),
            ("0.0.0.0:4420", "[fd00::5]:4420", "0.0.0.0:4420"),
        ];
        for (port, local, expected) in cases {
            let shown = reachable_address(address(port), address(local));
            assert_eq!(shown, address(expected), "{port} reached as {local}");
        }
    }
}
