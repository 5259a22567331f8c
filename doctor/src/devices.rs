//! RDMA devices as sysfs shows them (`Documentation/ABI/stable/sysfs-class-infiniband`).

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::Machine;

const CLASS: &str = "/sys/class/infiniband";
const VERBS_CLASS: &str = "/sys/class/infiniband_verbs";
/// Most entries of a GID table that are read: RoCE has two or more per address.
const GIDS_MAX: usize = 256;

/// What a device speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fabric {
    /// InfiniBand with its own links.
    InfiniBand,
    /// InfiniBand's transport over Ethernet.
    Roce,
    /// RDMA over TCP.
    Iwarp,
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Iwarp => "iWARP",
        })
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Place in the table.
    pub index: usize,
    /// The identifier, written as the IPv6 address it has the shape of.
    pub gid: Ipv6Addr,
    /// It is of RoCE v2 (routable, over UDP).
    pub roce_v2: bool,
    /// Network interface it belongs to.
    pub netdev: Option<String>,
}

impl Gid {
    /// The address rdma_cm finds the port by; none for the link-local one every port has.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match self.gid.to_ipv4_mapped() {
            Some(v4) => Some(IpAddr::V4(v4)),
            None if self.gid.is_unicast_link_local() => None,
            None => Some(IpAddr::V6(self.gid)),
        }
    }
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number, from 1.
    pub number: u32,
    /// What it speaks.
    pub fabric: Fabric,
    /// `ACTIVE`, `DOWN`, `INIT`, `ARMED`…
    pub state: String,
    /// `LinkUp`, `Disabled`, `Polling`…
    pub phys_state: String,
    /// Such as `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// The entries in use of its GID table.
    pub gids: Vec<Gid>,
    /// Its network interface.
    pub netdev: Option<String>,
    /// MTU of the interface, in bytes.
    pub netdev_mtu_bytes: Option<u64>,
    /// Addresses rdma_cm finds it by.
    pub addresses: Vec<IpAddr>,
}

impl Port {
    /// It can carry data.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name, as `rdma link` shows it.
    pub name: String,
    /// Firmware version; empty for devices in software.
    pub firmware: String,
    /// The device file of libibverbs, such as `/dev/infiniband/uverbs0`.
    pub uverbs: Option<String>,
    /// Ports.
    pub ports: Vec<Port>,
}

impl Device {
    /// Every device of the machine.
    #[must_use]
    pub fn all(machine: &Machine) -> Vec<Self> {
        let names = machine.names(CLASS).into_iter();
        names.map(|name| Self::read(machine, name)).collect()
    }

    fn read(machine: &Machine, name: String) -> Self {
        let folder = format!("{CLASS}/{name}");
        let text = |file: &str| machine.read(&format!("{folder}/{file}"));
        // `1: CA` is InfiniBand and RoCE, `4: RNIC` iWARP.
        let iwarp = text("node_type").is_some_and(|kind| kind.starts_with("4:"));
        let ports = machine.names(&format!("{folder}/ports")).into_iter();
        let ports = ports.filter_map(|number| {
            let number = number.parse().ok()?;
            Some(port(machine, &folder, number, iwarp))
        });
        let ports = ports.collect();
        let uverbs = machine
            .names(VERBS_CLASS)
            .into_iter()
            .find(|uverbs| {
                let device = machine.read(&format!("{VERBS_CLASS}/{uverbs}/ibdev"));
                device.as_deref() == Some(&name)
            })
            .map(|uverbs| format!("/dev/infiniband/{uverbs}"));
        Self {
            firmware: text("fw_ver").unwrap_or_default(),
            name,
            uverbs,
            ports,
        }
    }

    /// Whether rdma_cm finds it by this address.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        let mut addresses = self.ports.iter().flat_map(|port| &port.addresses);
        addresses.any(|&own| own == address)
    }
}

fn port(machine: &Machine, device: &str, number: u32, iwarp: bool) -> Port {
    let folder = format!("{device}/ports/{number}");
    let text = |file: &str| machine.read(&format!("{folder}/{file}"));
    // `4: ACTIVE`
    let word = |file: &str| {
        let text = text(file).unwrap_or_default();
        text.split_once(": ")
            .map_or_else(|| text.clone(), |(_, word)| word.to_owned())
    };
    let fabric = match text("link_layer").as_deref() {
        _ if iwarp => Fabric::Iwarp,
        Some("InfiniBand") => Fabric::InfiniBand,
        _ => Fabric::Roce,
    };
    let gids = gids(machine, &folder);
    let netdev = gids.iter().find_map(|gid| gid.netdev.clone());
    let netdev = netdev
        // Soft-RoCE, also while its interface is down.
        .or_else(|| machine.read(&format!("{device}/parent")))
        // Hardware: the interfaces of the same PCI function, told apart by their port.
        .or_else(|| netdev_of_function(machine, device, number))
        .or_else(|| netdev_of_mac(machine, gids.first().filter(|_| iwarp)?));
    let netdev_mtu_bytes = netdev
        .as_ref()
        .and_then(|netdev| machine.number(&format!("/sys/class/net/{netdev}/mtu")));
    let addresses = addresses(machine, fabric, &gids, netdev.as_deref());
    Port {
        number,
        fabric,
        state: word("state"),
        phys_state: word("phys_state"),
        rate: text("rate").unwrap_or_default(),
        gids,
        netdev,
        netdev_mtu_bytes,
        addresses,
    }
}

fn gids(machine: &Machine, port: &str) -> Vec<Gid> {
    let indices = machine.names(&format!("{port}/gids")).into_iter();
    let gids = indices.take(GIDS_MAX).filter_map(|index| {
        let gid: Ipv6Addr = machine
            .read(&format!("{port}/gids/{index}"))?
            .parse()
            .ok()?;
        // Unused entries are zero.
        let used = !gid.is_unspecified();
        let attribute = |name| machine.read(&format!("{port}/gid_attrs/{name}/{index}"));
        used.then(|| Gid {
            index: index.parse().unwrap_or(0),
            gid,
            roce_v2: attribute("types").is_some_and(|kind| kind.contains("v2")),
            netdev: attribute("ndevs"),
        })
    });
    gids.collect()
}

fn netdev_of_function(machine: &Machine, device: &str, port: u32) -> Option<String> {
    let folder = format!("{device}/device/net");
    let netdevs = machine.names(&folder);
    if let [only] = netdevs.as_slice() {
        return Some(only.clone());
    }
    netdevs.into_iter().find(|netdev| {
        // `dev_port` counts from 0.
        let dev_port = machine.number(&format!("{folder}/{netdev}/dev_port"));
        dev_port == Some(u64::from(port).saturating_sub(1))
    })
}

/// The GID of an iWARP port is the MAC address of its interface, and before Linux 6.5 nothing else
/// names the interface.
fn netdev_of_mac(machine: &Machine, gid: &Gid) -> Option<String> {
    let octets = gid.gid.octets();
    let mac: Vec<_> = octets[..6].iter().map(|b| format!("{b:02x}")).collect();
    let mac = mac.join(":");
    machine.names("/sys/class/net").into_iter().find(|name| {
        machine
            .read(&format!("/sys/class/net/{name}/address"))
            .as_ref()
            == Some(&mac)
    })
}

/// RoCE ports have a GID per address of any interface on top of them (VLANs, bonds); the others are
/// found by their interface's addresses.
fn addresses(machine: &Machine, fabric: Fabric, gids: &[Gid], netdev: Option<&str>) -> Vec<IpAddr> {
    let found: BTreeSet<IpAddr> = if fabric == Fabric::Roce {
        gids.iter().filter_map(Gid::address).collect()
    } else {
        let own = machine.addresses.iter();
        let own = own.filter(|(name, _)| Some(name.as_str()) == netdev);
        own.map(|(_, address)| *address)
            .filter(|address| match address {
                IpAddr::V4(_) => true,
                IpAddr::V6(v6) => !v6.is_unicast_link_local(),
            })
            .collect()
    };
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{Device, Fabric};
    use crate::testing::Tree;
    use crate::trees;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_machine_without_rdma_has_no_device() {
        assert_eq!(Device::all(&Tree::new().machine()), []);
    }

    #[test]
    fn soft_roce_is_found_by_the_addresses_of_its_gids() {
        let devices = Device::all(&trees::soft_roce(Tree::new()).machine());
        let [rxe1, rxe2] = devices.as_slice() else {
            panic!("{devices:?}")
        };
        assert_eq!(rxe1.uverbs.as_deref(), Some("/dev/infiniband/uverbs1"));
        let port = &rxe1.ports[0];
        assert!(port.is_active());
        assert_eq!(port.fabric, Fabric::Roce);
        assert_eq!(port.netdev.as_deref(), Some("dum1"));
        assert_eq!(port.netdev_mtu_bytes, Some(1500));
        assert_eq!(port.addresses, [ip("10.8.0.1")]);
        assert!(port.gids.iter().all(|gid| gid.roce_v2));
        assert!(rxe1.has_address(ip("10.8.0.1")) && !rxe1.has_address(ip("10.9.0.1")));
        // Its interface is down: no address, and only `parent` names the interface.
        let port = &rxe2.ports[0];
        assert_eq!((port.state.as_str(), port.is_active()), ("DOWN", false));
        assert_eq!(port.phys_state, "Disabled");
        assert_eq!(port.netdev.as_deref(), Some("dum2"));
        assert_eq!(port.addresses, [] as [IpAddr; 0]);
    }

    #[test]
    fn siw_is_found_by_the_addresses_of_its_interface() {
        for ndev in [true, false] {
            let devices = Device::all(&trees::siw(Tree::new(), ndev).machine());
            let port = &devices[0].ports[0];
            assert_eq!(port.fabric, Fabric::Iwarp);
            assert_eq!(port.netdev.as_deref(), Some("dum0"), "ndevs: {ndev}");
            assert_eq!(port.addresses, [ip("10.9.0.1"), ip("fd09::1")]);
        }
    }

    #[test]
    fn two_ports_of_hardware_have_their_own_interfaces() {
        let devices = Device::all(&trees::mlx5(Tree::new()).machine());
        let [up, down] = devices[0].ports.as_slice() else {
            panic!("{devices:?}")
        };
        assert_eq!(devices[0].firmware, "16.35.3006");
        assert_eq!(up.netdev.as_deref(), Some("ens1f0np0"));
        assert_eq!(up.rate, "100 Gb/sec (4X EDR)");
        assert_eq!(up.addresses, [ip("10.1.0.7")]);
        // A v1 and a v2 entry for each address.
        assert_eq!(up.gids.iter().filter(|gid| gid.roce_v2).count(), 2);
        assert_eq!(down.netdev.as_deref(), Some("ens1f1np1"));
        assert!(!down.is_active());
    }

    #[test]
    fn infiniband_has_no_addresses_of_its_own() {
        let devices = Device::all(&trees::infiniband(Tree::new()).machine());
        let port = &devices[0].ports[0];
        assert_eq!(port.fabric, Fabric::InfiniBand);
        assert_eq!(port.addresses, [ip("10.2.0.7")]);
        assert_eq!(port.netdev_mtu_bytes, Some(2044));
    }
}
