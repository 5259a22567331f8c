//! Whether a machine is fit for `capstan` and `capstan-target`, and what would make it so.
//!
//! A [`Check`] is a value: what was looked at, what was seen, what was expected, and the command
//! that mends it. Small functions make them of a [`Machine`], which may be a folder that looks like
//! one; [`text`] and [`json`] tell them. [`machine_checks`] is all of them in order; what concerns
//! a configuration is added by `capstan-target`, what concerns a connection by `capstan`.
//!
//! # What it does not do
//! It changes nothing, loads no module and sends nothing. Devices are read from sysfs, so that a
//! machine without libibverbs is told of its devices, too; only their limits need the library.

#![forbid(unsafe_code)]

mod cgroup;
mod check;
mod devices;
mod front_ends;
mod limits;
mod machine;
mod memory;
mod modules;
pub mod nfs;
mod ports;
mod role;
pub mod room;
mod sockets;
mod tcp;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod trees;
mod uring;

pub use check::{Check, Summary, Verdict, json, text};
pub use devices::{Device, Fabric, Gid, Port};
pub use limits::Needs;
pub use machine::{Capability, DeviceFile, Machine};
pub use ports::{address, iwarp_device};
pub use role::Role;
pub use sockets::{Listener, listener};

use capstan_storage::{Capabilities, EngineError};

/// Everything about the machine that matters for `role`, and its RDMA devices.
#[must_use]
pub fn machine_checks(machine: &Machine, role: &Role) -> Vec<Check> {
    checks(machine, role, Capabilities::probe(), |name| {
        capstan_rdma::device_limits(name)
    })
}

/// The memory that a process of `role` may lock, against what it would.
#[must_use]
pub fn locked_memory(machine: &Machine, role: &Role) -> Check {
    memory::locked(machine, &Device::all(machine), role)
}

/// The memory that the io_uring rings of a target count as locked: so many bytes, for `what`.
/// `try_all` makes them.
#[must_use]
pub fn rings(
    machine: &Machine,
    needed_bytes: u64,
    what: &str,
    try_all: impl FnOnce() -> Result<(), EngineError>,
) -> Check {
    memory::rings(machine, needed_bytes, what, try_all)
}

/// As [`machine_checks`], with what only the kernel of this machine and libibverbs can answer.
fn checks(
    machine: &Machine,
    role: &Role,
    uring: Result<Capabilities, EngineError>,
    limits: impl Fn(&str) -> std::io::Result<Option<capstan_rdma::DeviceLimits>>,
) -> Vec<Check> {
    // What is not used needs nothing.
    let devices = match role {
        Role::TcpHost => Vec::new(),
        Role::Host | Role::Target { .. } => Device::all(machine),
    };
    let mut checks = vec![Check::ok("kernel", format!("Linux {}", machine.release()))];
    if *role != Role::TcpHost {
        checks.push(ports::found(&devices));
    }
    for device in &devices {
        checks.extend(ports::device(machine, device, role));
        checks.extend(limits::check(&device.name, limits(&device.name), role));
    }
    checks.extend(modules::checks(machine, &devices, role));
    checks.push(memory::locked(machine, &devices, role));
    checks.push(memory::huge_pages(machine));
    checks.push(uring::check(machine, role, uring));
    checks.push(tcp::congestion_control(machine));
    if let Role::Target { .. } = role {
        checks.extend(tcp::syn_cookies(machine));
    }
    if role.is_host() {
        checks.extend(room::of_host(machine));
        checks.extend(front_ends::checks(machine));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::{Check, Role, Verdict, checks};
    use crate::testing::Tree;
    use crate::trees;
    use crate::uring::tests::everything;

    fn of(tree: &Tree, role: &Role) -> Vec<Check> {
        checks(&tree.machine(), role, Ok(everything()), |_| Ok(None))
    }

    fn verdicts(checks: &[Check], verdict: Verdict) -> Vec<&str> {
        let found = checks.iter().filter(|check| check.verdict == verdict);
        found.map(|check| check.name.as_str()).collect()
    }

    #[test]
    fn nothing_is_to_mend_on_a_machine_without_rdma() {
        let tree = trees::well(Tree::new());
        for role in [Role::Host, Role::target(256 << 20)] {
            let checks = of(&tree, &role);
            assert_eq!(verdicts(&checks, Verdict::Warning), [""; 0], "{checks:?}");
            assert_eq!(verdicts(&checks, Verdict::Error), [""; 0], "{checks:?}");
        }
    }

    #[test]
    fn a_card_with_one_port_down_is_a_warning_about_that_port() {
        let checks = of(&trees::mlx5(trees::well(Tree::new())), &Role::Host);
        assert_eq!(verdicts(&checks, Verdict::Warning), ["mlx5_0/2 link"]);
        assert_eq!(verdicts(&checks, Verdict::Error), [""; 0]);
    }

    /// A broken RDMA device is no concern of a host that takes NVMe/TCP.
    #[test]
    fn over_nvme_tcp_nothing_is_said_of_rdma() {
        let broken = trees::siw(trees::soft_roce(trees::well(Tree::new())), true).memlock("65536");
        let checks = of(&broken, &Role::TcpHost);
        assert_eq!(verdicts(&checks, Verdict::Warning), [""; 0], "{checks:?}");
        let about = |word: &str| {
            let texts = checks
                .iter()
                .map(|check| format!("{} {}", check.name, check.seen));
            texts.filter(|text| text.contains(word)).count()
        };
        assert_eq!(
            (about("RDMA"), about("rdma"), about("siw")),
            (0, 0, 0),
            "{checks:?}"
        );
        assert_eq!(
            (about("nvme_tcp"), about("TCP congestion control")),
            (1, 1),
            "{checks:?}"
        );
    }

    #[test]
    fn every_line_that_is_not_ok_says_what_mends_it() {
        let broken = trees::siw(trees::soft_roce(Tree::new()), true)
            .memlock("65536")
            .file("proc/sys/kernel/io_uring_disabled", "2\n");
        for role in [Role::Host, Role::target(256 << 20)] {
            for check in of(&broken, &role) {
                let mends = check.expected.is_some() && check.remedy.is_some();
                assert_eq!(mends, check.verdict != Verdict::Ok, "{check:?}");
            }
        }
    }
}
