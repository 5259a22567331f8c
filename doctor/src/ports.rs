//! Checks of RDMA devices and their ports.

use std::net::IpAddr;

use crate::{Check, Device, Fabric, Machine, Port, Role};

/// Bytes of a RoCE packet that are not payload, at most: GRH 40, UDP 8, BTH 12, XRCETH 4, AtomicETH
/// 28, ICRC 4 (what Linux subtracts, `iboe_get_mtu`).
const ROCE_HEADER_BYTES: u64 = 96;
/// The path MTUs of InfiniBand's transport, in bytes.
const PATH_MTUS: [u64; 5] = [256, 512, 1024, 2048, 4096];

/// How many devices there are.
pub(crate) fn found(devices: &[Device]) -> Check {
    const NAME: &str = "RDMA devices";
    if devices.is_empty() {
        return Check::ok(
            NAME,
            "none; connections use iWARP in user space, which needs no device and no module",
        );
    }
    let names: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
    Check::ok(NAME, names.join(", "))
}

/// Link, MTU, GIDs and addresses of each port.
pub(crate) fn device(machine: &Machine, device: &Device, role: &Role) -> Vec<Check> {
    let mut checks = Vec::new();
    for port in &device.ports {
        let place = format!("{}/{}", device.name, port.number);
        checks.push(link(&place, device, port));
        if port.is_active() {
            checks.extend(mtu(&place, port));
            checks.extend(gids(&place, port));
            checks.push(addresses(machine, &place, port, role));
        }
    }
    checks
}

fn netdev(port: &Port) -> &str {
    port.netdev.as_deref().unwrap_or("INTERFACE")
}

fn link(place: &str, device: &Device, port: &Port) -> Check {
    let name = format!("{place} link");
    let mut seen = format!("{}, {} ({})", port.fabric, port.state, port.phys_state);
    if !port.rate.is_empty() {
        seen = format!("{seen}, {}", port.rate);
    }
    if let Some(netdev) = &port.netdev {
        seen = format!("{seen}, {netdev}");
    }
    if !device.firmware.is_empty() {
        seen = format!("{seen}, firmware {}", device.firmware);
    }
    if port.is_active() {
        return Check::ok(name, seen);
    }
    let mend = match (port.fabric, port.state.as_str()) {
        // The link is trained and waits for addresses.
        (Fabric::InfiniBand, "INIT" | "ARMED") => {
            "systemctl start opensm (a subnet manager, on one machine of the fabric)".to_owned()
        }
        (Fabric::InfiniBand, _) => "connect the port; ibstat shows its state".to_owned(),
        (Fabric::Roce | Fabric::Iwarp, _) => format!(
            "ip link set dev {} up; if it stays down, connect the cable",
            netdev(port)
        ),
    };
    Check::warning(
        name,
        seen,
        "ACTIVE (a port that is not in use may stay so)",
        mend,
    )
}

/// The path MTU of RoCE follows from the interface's MTU.
fn mtu(place: &str, port: &Port) -> Option<Check> {
    let name = format!("{place} MTU");
    let mtu_bytes = port.netdev_mtu_bytes?;
    if port.fabric != Fabric::Roce {
        return Some(Check::ok(name, mtu_bytes.to_string()));
    }
    let payload_bytes = mtu_bytes.saturating_sub(ROCE_HEADER_BYTES);
    let path = PATH_MTUS.iter().rev().find(|&&path| path <= payload_bytes);
    let largest = PATH_MTUS[PATH_MTUS.len() - 1];
    let wanted = largest + ROCE_HEADER_BYTES;
    Some(match path {
        Some(&path) if path == largest => Check::ok(name, format!("{mtu_bytes}, path MTU {path}")),
        path => {
            let path = path.map_or_else(|| "none".to_owned(), u64::to_string);
            Check::warning(
                name,
                format!("{mtu_bytes}, path MTU {path}"),
                format!(
                    "at least {wanted} for a path MTU of {largest}, on both ends and every switch \
                     between"
                ),
                format!("ip link set dev {} mtu 4200", netdev(port)),
            )
        }
    })
}

fn gids(place: &str, port: &Port) -> Option<Check> {
    let name = format!("{place} GIDs");
    let list = |gids: Vec<String>| gids.join(", ");
    if port.fabric != Fabric::Roce {
        let gids = port.gids.iter().map(|gid| gid.gid.to_string()).collect();
        return Some(Check::ok(name, list(gids)));
    }
    let of = |v2: bool| port.gids.iter().filter(move |gid| gid.roce_v2 == v2);
    let words = |v2: bool| {
        let words = of(v2).map(|gid| {
            let name = gid.address().map(|address| address.to_string());
            format!(
                "{} {}",
                gid.index,
                name.unwrap_or_else(|| gid.gid.to_string())
            )
        });
        list(words.collect())
    };
    let seen = match (of(false).count(), of(true).count()) {
        (0, 0) => "none".to_owned(),
        (_, 0) => format!("RoCE v1 only: {}", words(false)),
        (0, _) => format!("RoCE v2: {}", words(true)),
        (v1, _) => format!("RoCE v2: {}; {v1} of RoCE v1", words(true)),
    };
    if of(true).next().is_some() {
        return Some(Check::ok(name, seen));
    }
    let mend = if port.gids.is_empty() {
        format!("ip link set dev {} up", netdev(port))
    } else {
        "ibv_devinfo -v; RoCE v2 needs newer firmware or hardware".to_owned()
    };
    let expected = "a GID of RoCE v2, which the other end may insist on";
    Some(Check::warning(name, seen, expected, mend))
}

/// rdma_cm finds devices by IP addresses.
fn addresses(machine: &Machine, place: &str, port: &Port, role: &Role) -> Check {
    let name = format!("{place} addresses");
    if port.addresses.is_empty() {
        return Check {
            verdict: role.of_device(),
            ..Check::warning(
                name,
                "none",
                "an IP address, by which rdma_cm finds the device",
                format!("ip address add ADDRESS/PREFIX dev {}", netdev(port)),
            )
        };
    }
    let words: Vec<_> = port
        .addresses
        .iter()
        .map(|address| match interface(machine, *address) {
            // On top of the port's: a VLAN, a bond.
            Some(other) if Some(other) != port.netdev.as_deref() => format!("{address} ({other})"),
            _ => address.to_string(),
        })
        .collect();
    Check::ok(name, words.join(", "))
}

/// The interface that has `address`. All of 127/8 is the loopback interface's, which lists one.
fn interface(machine: &Machine, address: IpAddr) -> Option<&str> {
    let is_own = |own: &IpAddr| {
        *own == address || own.is_loopback() && address.is_loopback() && address.is_ipv4()
    };
    let own = machine.addresses.iter().find(|(_, own)| is_own(own));
    own.map(|(name, _)| name.as_str())
}

/// Which RDMA device an address of this machine belongs to.
#[must_use]
pub fn address(machine: &Machine, address: IpAddr) -> Check {
    let name = format!("address {address}");
    let devices = Device::all(machine);
    if address.is_unspecified() {
        let words: Vec<_> = machine
            .addresses
            .iter()
            .filter(|(_, own)| own.is_ipv4() == address.is_ipv4())
            .map(|(_, own)| match device_of(&devices, *own) {
                Some(device) => format!("{own} ({device})"),
                None => own.to_string(),
            })
            .collect();
        return Check::ok(name, format!("every address: {}", words.join(", ")));
    }
    let Some(interface) = interface(machine, address) else {
        return Check::warning(
            name,
            "not an address of this machine now",
            "an address of an interface",
            format!("ip address add {address}/PREFIX dev INTERFACE (`ip address` lists them)"),
        );
    };
    match device_of(&devices, address) {
        Some(device) => Check::ok(name, format!("{interface}, RDMA device {device}")),
        None => Check::ok(name, format!("{interface}, no RDMA device")),
    }
}

/// The iWARP device that has `address`, or any address for a wildcard. It binds TCP ports of the
/// kernel, as siw, or takes what comes to them.
#[must_use]
pub fn iwarp_device(machine: &Machine, address: IpAddr) -> Option<String> {
    let has_it = |port: &Port| {
        let is_it = |own: &IpAddr| {
            *own == address || address.is_unspecified() && own.is_ipv4() == address.is_ipv4()
        };
        port.fabric == Fabric::Iwarp && port.addresses.iter().any(is_it)
    };
    let mut devices = Device::all(machine).into_iter();
    let device = devices.find(|device| device.ports.iter().any(has_it))?;
    Some(device.name)
}

fn device_of(devices: &[Device], address: IpAddr) -> Option<&str> {
    let device = devices.iter().find(|device| device.has_address(address))?;
    Some(&device.name)
}

#[cfg(test)]
mod tests {
    use super::{address, device, iwarp_device};
    use crate::testing::Tree;
    use crate::{Check, Device, Role, Verdict, trees};

    fn checks(tree: &Tree, name: &str) -> Vec<Check> {
        let machine = tree.machine();
        let devices = Device::all(&machine);
        let found = devices.iter().find(|device| device.name == name).unwrap();
        device(&machine, found, &Role::Host)
    }

    fn told(checks: &[Check]) -> Vec<(&str, Verdict, &str)> {
        let told = checks.iter();
        told.map(|c| (c.name.as_str(), c.verdict, c.seen.as_str()))
            .collect()
    }

    #[test]
    fn soft_roce_with_ordinary_frames() {
        let checks = checks(&trees::soft_roce(Tree::new()), "rxe1");
        assert_eq!(
            told(&checks),
            [
                (
                    "rxe1/1 link",
                    Verdict::Ok,
                    "RoCE, ACTIVE (LinkUp), 2.5 Gb/sec (1X SDR), dum1"
                ),
                ("rxe1/1 MTU", Verdict::Warning, "1500, path MTU 1024"),
                (
                    "rxe1/1 GIDs",
                    Verdict::Ok,
                    "RoCE v2: 0 fe80::9ceb:4ff:feff:6410, 1 10.8.0.1"
                ),
                ("rxe1/1 addresses", Verdict::Ok, "10.8.0.1"),
            ]
        );
        assert_eq!(
            checks[1].remedy.as_deref(),
            Some("ip link set dev dum1 mtu 4200")
        );
    }

    #[test]
    fn a_port_that_is_down_is_not_asked_for_more() {
        let checks = checks(&trees::soft_roce(Tree::new()), "rxe2");
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].verdict, Verdict::Warning);
        let mend = checks[0].remedy.as_deref().unwrap();
        assert!(mend.starts_with("ip link set dev dum2 up"), "{mend}");
    }

    #[test]
    fn iwarp_has_one_gid_and_any_mtu() {
        let checks = checks(&trees::siw(Tree::new(), true), "siw0");
        assert!(
            checks.iter().all(|check| check.verdict == Verdict::Ok),
            "{checks:?}"
        );
        assert_eq!(checks[3].seen, "10.9.0.1, fd09::1");
    }

    #[test]
    fn hardware_with_jumbo_frames_has_the_largest_path_mtu() {
        let checks = checks(&trees::mlx5(Tree::new()), "mlx5_0");
        assert_eq!(checks[1].seen, "9000, path MTU 4096");
        assert_eq!(
            checks[2].seen,
            "RoCE v2: 1 fe80::ba59:9fff:fe01:203, 3 10.1.0.7; 2 of RoCE v1"
        );
    }

    #[test]
    fn roce_v1_and_ports_without_address_are_warnings() {
        let old = trees::soft_roce(Tree::new())
            .files(
                "sys/class/infiniband/rxe1/ports/1/gid_attrs/types",
                &[("0", "IB/RoCE v1\n"), ("1", "IB/RoCE v1\n")],
            )
            .file(
                "sys/class/infiniband/rxe1/ports/1/gids/1",
                "0000:0000:0000:0000:0000:0000:0000:0000\n",
            );
        let checks = checks(&old, "rxe1");
        assert_eq!(checks[2].verdict, Verdict::Warning);
        assert!(checks[2].seen.starts_with("RoCE v1 only"));
        assert_eq!(checks[3].verdict, Verdict::Warning);
        assert_eq!(
            checks[3].remedy.as_deref(),
            Some("ip address add ADDRESS/PREFIX dev dum1")
        );
    }

    #[test]
    fn infiniband_that_waits_for_its_subnet_manager_says_so() {
        let tree = trees::infiniband(Tree::new())
            .file("sys/class/infiniband/ibp1s0/ports/1/state", "2: INIT\n");
        let checks = checks(&tree, "ibp1s0");
        assert!(checks[0].remedy.as_ref().unwrap().contains("opensm"));
    }

    #[test]
    fn an_address_is_of_a_device_or_of_none_or_not_here() {
        let tree = trees::siw(Tree::new(), true);
        let machine = tree.machine();
        let check = |text: &str| address(&machine, text.parse().unwrap());
        assert_eq!(check("10.9.0.1").seen, "dum0, RDMA device siw0");
        assert_eq!(check("127.0.0.1").seen, "lo, no RDMA device");
        assert_eq!(check("127.3.2.1").seen, "lo, no RDMA device");
        assert_eq!(
            check("0.0.0.0").seen,
            "every address: 127.0.0.1, 10.9.0.1 (siw0)"
        );
        assert_eq!(check("192.0.2.1").verdict, Verdict::Warning);
    }

    #[test]
    fn an_iwarp_device_is_found_by_its_addresses_and_by_a_wildcard() {
        let found = |tree: &Tree, text: &str| iwarp_device(&tree.machine(), text.parse().unwrap());
        let siw = trees::siw(Tree::new(), true);
        for address in ["10.9.0.1", "0.0.0.0", "fd09::1"] {
            assert_eq!(found(&siw, address).as_deref(), Some("siw0"), "{address}");
        }
        assert_eq!(found(&siw, "127.0.0.1"), None);
        let roce = trees::soft_roce(Tree::new());
        assert_eq!(found(&roce, "10.8.0.1"), None);
    }
}
