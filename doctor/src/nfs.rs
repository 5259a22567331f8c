//! What a target needs of a machine to serve directories over NFS: rights, which hosts do not need
//! it to have, descriptors, and that the kernel's own NFS server has none of its ports.

use std::net::SocketAddr;

use crate::{Capability, Check, Machine};

/// Without one of these no client is served: files are opened by handles, for their owners whatever
/// their modes, and threads act for the users of clients.
const NEEDED: [(Capability, &str); 4] = [
    (Capability::DacReadSearch, "CAP_DAC_READ_SEARCH"),
    (Capability::DacOverride, "CAP_DAC_OVERRIDE"),
    (Capability::SetUid, "CAP_SETUID"),
    (Capability::SetGid, "CAP_SETGID"),
];
/// What root of a client that is not squashed would miss of root.
const OF_ROOT: [(Capability, &str); 4] = [
    (Capability::Chown, "CAP_CHOWN"),
    (Capability::Fowner, "CAP_FOWNER"),
    (Capability::Fsetid, "CAP_FSETID"),
    (Capability::Mknod, "CAP_MKNOD"),
];
/// Descriptors that clients need at least: each file that one has open is one.
const LEAST_FILES: u64 = 256;
/// And with which a few clients go on without being asked to wait.
const GOOD_FILES: u64 = 4096;

const NAME: &str = "NFS rights";
const MENDED: &str = "start it as root, in a unit with systemd/capstan-target.service.d/nfs.conf";

/// Whether this process may act for the users of clients. `root` of some of them is not squashed.
#[must_use]
pub fn rights(machine: &Machine, root: bool) -> Check {
    let user = machine.user().unwrap_or(0);
    // A change of the user takes from root alone the rights that override modes.
    if user != 0 {
        return Check::error(
            NAME,
            format!("it runs as UID {user}"),
            "root, whose threads give up its rights where they act for a user of a client",
            MENDED,
        );
    }
    let missing = |of: &[(Capability, &str)]| {
        let missing = of.iter().filter(|(of, _)| !machine.has_capability(*of));
        let names: Vec<_> = missing.map(|(_, name)| *name).collect();
        names.join(", ")
    };
    let needed = missing(&NEEDED);
    if !needed.is_empty() {
        return Check::error(
            NAME,
            format!("root without {needed}"),
            "these rights: files are opened by handles, and threads act for the users of clients",
            MENDED,
        );
    }
    let of_root = missing(&OF_ROOT);
    if root && !of_root.is_empty() {
        return Check::warning(
            NAME,
            format!("root without {of_root}"),
            "these rights for root of the clients with `squash = \"none\"`: else it is refused what needs them",
            MENDED,
        );
    }
    Check::ok(NAME, "root, with what serving files needs")
}

/// The kernel's own NFS server, where it runs: whether it has one of `ports`.
#[must_use]
pub fn kernel_server(machine: &Machine, ports: &[SocketAddr]) -> Option<Check> {
    const NAME: &str = "the kernel's NFS server";
    let threads = machine.number("/proc/fs/nfsd/threads")?;
    if threads == 0 {
        return None;
    }
    // A line each: `tcp 2049` (nfsctl.c, write_ports).
    let list = machine.read("/proc/fs/nfsd/portlist").unwrap_or_default();
    let held: Vec<u16> = list
        .lines()
        .filter_map(|line| line.split_whitespace().last()?.parse().ok())
        .collect();
    let clash = ports.iter().find(|address| held.contains(&address.port()));
    Some(match clash {
        Some(address) => Check::warning(
            NAME,
            format!("runs, and has port {}", address.port()),
            "that one of the two serves NFS there",
            "`systemctl disable --now nfs-server`, or another port in [nfs]",
        ),
        None => Check::ok(NAME, "runs, at other ports than this target"),
    })
}

/// Descriptors that are left for what clients have open, beside so many of all else.
#[must_use]
pub fn open_files(machine: &Machine, others: u64) -> Check {
    const NAME: &str = "open files of NFS clients";
    let limit = machine.limit("Max open files").unwrap_or(u64::MAX);
    if limit == u64::MAX {
        return Check::ok(NAME, "unlimited");
    }
    let left = limit.saturating_sub(others);
    let seen = format!("{left}, of {limit} that the process may have");
    let all = others.saturating_add(GOOD_FILES);
    let mend =
        format!("`ulimit -Hn {all}` as root before it starts, or LimitNOFILE={all} in its unit");
    if left < LEAST_FILES {
        let expected = format!("{LEAST_FILES} at least: a file that a client has open is one");
        return Check::error(NAME, seen, expected, mend);
    }
    if left < GOOD_FILES {
        let expected = format!("{GOOD_FILES}: clients that open more files wait");
        return Check::warning(NAME, seen, expected, mend);
    }
    Check::ok(NAME, seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;
    use crate::testing::Tree;

    fn of_status(user: u32, capabilities: u64, root: bool) -> Check {
        let text = format!("Uid:\t{user}\t{user}\t{user}\t{user}\nCapEff:\t{capabilities:016x}\n");
        let tree = Tree::new().file("proc/self/status", &text);
        rights(&tree.machine(), root)
    }

    fn all() -> u64 {
        let bits = NEEDED.iter().chain(&OF_ROOT);
        bits.fold(0, |all, (of, _)| all | 1 << (*of as u8))
    }

    #[test]
    fn only_root_with_its_rights_acts_for_others() {
        let check = of_status(1000, u64::MAX, false);
        assert_eq!(check.verdict, Verdict::Error);
        assert_eq!(check.seen, "it runs as UID 1000");
        assert_eq!(of_status(0, all(), true).verdict, Verdict::Ok);
        for (of, name) in NEEDED {
            let check = of_status(0, all() & !(1 << (of as u8)), false);
            assert_eq!(check.verdict, Verdict::Error, "{name}");
            assert_eq!(check.seen, format!("root without {name}"));
            assert!(check.line().contains("service.d/nfs.conf"), "{check:?}");
        }
    }

    #[test]
    fn root_of_clients_needs_more_where_it_is_not_squashed() {
        for (of, name) in OF_ROOT {
            let left = all() & !(1 << (of as u8));
            assert_eq!(of_status(0, left, false).verdict, Verdict::Ok);
            let check = of_status(0, left, true);
            assert_eq!(check.verdict, Verdict::Warning, "{name}");
            assert_eq!(check.seen, format!("root without {name}"));
        }
    }

    #[test]
    fn the_kernels_server_is_told_of_where_it_runs_and_has_a_port() {
        let ports = ["0.0.0.0:2049", "0.0.0.0:20049"].map(|text| text.parse().unwrap());
        let of = |threads: &str, list: &str| {
            let tree = Tree::new().file("proc/fs/nfsd/threads", threads);
            let tree = tree.file("proc/fs/nfsd/portlist", list);
            kernel_server(&tree.machine(), &ports).map(|check| (check.verdict, check.seen))
        };
        assert_eq!(kernel_server(&Tree::new().machine(), &ports), None);
        assert_eq!(of("0\n", ""), None);
        let (verdict, seen) = of("8\n", "rdma 20049\ntcp 2049\n").unwrap();
        assert_eq!(
            (verdict, &*seen),
            (Verdict::Warning, "runs, and has port 2049")
        );
        let (verdict, seen) = of("8\n", "tcp 2050\n").unwrap();
        assert_eq!(verdict, Verdict::Ok, "{seen}");
    }

    #[test]
    fn descriptors_that_are_left_for_clients_are_counted() {
        let of = |limit: &str| {
            let line = format!("Max open files            {limit}   {limit}   files\n");
            let tree = Tree::new().file("proc/self/limits", &line);
            open_files(&tree.machine(), 100)
        };
        assert_eq!(of("300").verdict, Verdict::Error);
        assert_eq!(of("1024").verdict, Verdict::Warning);
        assert_eq!(of("1024").seen, "924, of 1024 that the process may have");
        for enough in ["4196", "unlimited"] {
            assert_eq!(of(enough).verdict, Verdict::Ok, "{enough}");
        }
    }
}
