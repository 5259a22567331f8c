//! Locked memory and huge pages.

use std::io;

use capstan_storage::EngineError;

use crate::machine::{Capability, size};
use crate::{Check, Device, Machine, Role};

/// What `capstan` registers for one association with the default options, in bytes: 32 MiB of data
/// and its queues.
const HOST_BYTES: u64 = 40 << 20;
const MEND: &str = "ulimit -l unlimited (as root), for good: echo '* - memlock unlimited' > \
                    /etc/security/limits.d/capstan.conf, and log in again";

/// RLIMIT_MEMLOCK of this process: io_uring and verbs pin what is registered with them, and count
/// it against the limit unless CAP_IPC_LOCK lifts it. iWARP in user space pins nothing.
pub(crate) fn locked(machine: &Machine, devices: &[Device], role: &Role) -> Check {
    const NAME: &str = "RLIMIT_MEMLOCK";
    let Some(limit_bytes) = machine.limit("Max locked memory") else {
        return Check::warning(
            NAME,
            "/proc/self/limits does not say",
            "a limit",
            "mount -t proc proc /proc",
        );
    };
    if limit_bytes == u64::MAX {
        return Check::ok(NAME, "unlimited");
    }
    let seen = size(limit_bytes);
    if machine.has_capability(Capability::IpcLock) {
        return Check::ok(NAME, format!("{seen}, which CAP_IPC_LOCK lifts"));
    }
    match role {
        Role::TcpHost => Check::ok(NAME, format!("{seen}; over NVMe/TCP nothing is pinned")),
        Role::Host if devices.is_empty() => Check::ok(
            NAME,
            format!("{seen}; without RDMA devices nothing is pinned"),
        ),
        Role::Host if limit_bytes >= HOST_BYTES => Check::ok(NAME, seen),
        Role::Host => {
            let expected = format!(
                "{} to register memory with an RDMA device",
                size(HOST_BYTES)
            );
            Check::warning(NAME, seen, expected, MEND)
        }
        Role::Target { memory_bytes, .. } if limit_bytes >= *memory_bytes => Check::ok(NAME, seen),
        Role::Target {
            memory_bytes,
            verbs,
            ..
        } => {
            let without = if *verbs {
                "without it memory cannot be registered with the RDMA device"
            } else {
                "without it disk I/O goes without fixed buffers, a little slower"
            };
            let expected = format!("{}, the memory budget; {without}", size(*memory_bytes));
            let mend = format!("{MEND}; capstan-target.service has LimitMEMLOCK=infinity already");
            Check {
                verdict: role.of_device(),
                ..Check::warning(NAME, seen, expected, mend)
            }
        }
    }
}

/// What the io_uring rings of a target count against RLIMIT_MEMLOCK, where the kernel counts them:
/// some versions do. `try_all` makes them all, which tells; other processes of the user may have
/// some of what it allows.
pub(crate) fn rings(
    machine: &Machine,
    needed_bytes: u64,
    what: &str,
    try_all: impl FnOnce() -> Result<(), EngineError>,
) -> Check {
    const NAME: &str = "io_uring rings";
    let limit_bytes = machine.limit("Max locked memory").unwrap_or(u64::MAX);
    if limit_bytes == u64::MAX || machine.has_capability(Capability::IpcLock) {
        return Check::ok(NAME, format!("{} needed, no limit", size(needed_bytes)));
    }
    let seen = format!("RLIMIT_MEMLOCK is {}", size(limit_bytes));
    let expected = format!("{} for those of {what}", size(needed_bytes));
    match try_all() {
        // What else is wrong with io_uring has a check of its own.
        Err(EngineError::Setup { error, .. }) if error.kind() == io::ErrorKind::OutOfMemory => {
            if limit_bytes < needed_bytes {
                return Check::error(NAME, seen, expected, MEND);
            }
            let seen = format!("{seen}, and other processes of this user have much of that");
            Check::warning(NAME, seen, format!("{expected}, unless they end"), MEND)
        }
        _ => Check::ok(NAME, format!("{}; {seen}", size(needed_bytes))),
    }
}

/// Huge pages are tried, and never needed.
pub(crate) fn huge_pages(machine: &Machine) -> Check {
    let reserved = machine
        .number("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
        .unwrap_or(0);
    let transparent = machine.read("/sys/kernel/mm/transparent_hugepage/enabled");
    // `always [madvise] never`
    let transparent = transparent
        .as_deref()
        .and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0))
        .unwrap_or("not in this kernel");
    Check::ok(
        "huge pages",
        format!(
            "not needed; {reserved} of 2 MiB reserved (used when there are), transparent: {transparent}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use capstan_storage::EngineError;

    use super::{huge_pages, locked, rings};
    use crate::testing::Tree;
    use crate::{Check, Device, Role, Verdict, trees};

    fn check(tree: &Tree, role: &Role) -> Check {
        let machine = tree.machine();
        locked(&machine, &Device::all(&machine), role)
    }

    #[test]
    fn too_little_slows_a_target_and_stops_verbs() {
        let tree = trees::soft_roce(Tree::new()).memlock("8388608");
        let slow = check(&tree, &Role::target(256 << 20));
        assert_eq!(slow.verdict, Verdict::Warning);
        assert_eq!(slow.seen, "8 MiB");
        assert!(
            slow.expected
                .unwrap()
                .starts_with("256 MiB, the memory budget")
        );
        let verbs = Role::Target {
            memory_bytes: 256 << 20,
            verbs: true,
            needs: None,
        };
        assert_eq!(check(&tree, &verbs).verdict, Verdict::Error);
        assert_eq!(check(&tree, &Role::target(8 << 20)).verdict, Verdict::Ok);
        assert_eq!(check(&tree, &Role::Host).verdict, Verdict::Warning);
    }

    #[test]
    fn a_host_without_devices_pins_nothing() {
        let tree = Tree::new().memlock("65536");
        assert_eq!(check(&tree, &Role::Host).verdict, Verdict::Ok);
    }

    #[test]
    fn the_capability_lifts_the_limit() {
        let tree = Tree::new().memlock("65536");
        let tree = tree.file("proc/self/status", "CapEff:\t000001ffffffffff\n");
        let check = check(&tree, &Role::target(1 << 30));
        assert_eq!(check.verdict, Verdict::Ok);
        assert_eq!(check.seen, "64 KiB, which CAP_IPC_LOCK lifts");
    }

    #[test]
    fn rings_that_have_no_room_are_an_error_and_those_of_others_a_warning() {
        let refused = || {
            Err(EngineError::Setup {
                error: io::ErrorKind::OutOfMemory.into(),
                remedy: "",
            })
        };
        let tree = Tree::new().memlock("65536");
        let machine = tree.machine();
        let check = |needed, is_room: bool| {
            rings(&machine, needed, "2 reactor(s)", || match is_room {
                true => Ok(()),
                false => refused(),
            })
        };
        assert_eq!(check(65536, true).verdict, Verdict::Ok);
        // A kernel that does not count them.
        assert_eq!(check(65537, true).verdict, Verdict::Ok);
        assert_eq!(check(65536, false).verdict, Verdict::Warning);
        let error = check(90 << 10, false);
        assert_eq!(error.verdict, Verdict::Error);
        let line = error.line();
        let words = "RLIMIT_MEMLOCK is 64 KiB; expected 90 KiB for those of 2 reactor(s): ulimit -l unlimited";
        assert!(line.contains(words), "{line}");
        let tree = Tree::new().memlock("0");
        let tree = tree.file("proc/self/status", "CapEff:\t000001ffffffffff\n");
        let lifted = rings(&tree.machine(), 1, "", refused);
        assert_eq!(lifted.verdict, Verdict::Ok);
    }

    #[test]
    fn huge_pages_are_never_needed() {
        let check = huge_pages(&trees::well(Tree::new()).machine());
        assert_eq!(check.verdict, Verdict::Ok);
        assert_eq!(
            check.seen,
            "not needed; 0 of 2 MiB reserved (used when there are), transparent: madvise"
        );
        assert_eq!(huge_pages(&Tree::new().machine()).verdict, Verdict::Ok);
    }
}
