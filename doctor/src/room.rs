//! Whether what a process is limited to is enough for what it is asked to do: memory, descriptors,
//! threads, processors. Limits of the machine, of control groups and of the process count alike.

use crate::cgroup::{self, Bound};
use crate::machine::{Capability, rounded, size};
use crate::{Check, Machine, Verdict};

/// What `capstan` takes for one association with the default options, in bytes: 32 MiB of data, its
/// queues, and the program.
const HOST_BYTES: u64 = 64 << 20;
/// Descriptors of `capstan` with an association of a few queues: sockets, rings, wake-ups, files.
const HOST_FDS: u64 = 64;
/// Threads of `capstan`, with the one that it starts with.
pub const HOST_THREADS: u64 = 5;

/// How the limit of a control group is raised.
const RAISE_MEMORY: &str = "MemoryMax= of the unit, --memory of the container";
const RAISE_PIDS: &str = "TasksMax= of the unit, --pids-limit of the container";

/// What something takes, in words and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    /// What takes it, with its verb: "the namespaces in RAM need".
    pub what: String,
    /// All of it.
    pub bytes: u64,
    /// The part of it that is not taken yet.
    pub new_bytes: u64,
    /// How to need less.
    pub lower: String,
}

/// What `capstan` needs.
pub(crate) fn of_host(machine: &Machine) -> [Check; 3] {
    let need = MemoryNeed {
        what: "data and queues of an association need".to_owned(),
        bytes: HOST_BYTES,
        new_bytes: HOST_BYTES,
        lower: "give it a machine or a group with more".to_owned(),
    };
    let checks = [
        memory(machine, &need),
        open_files(
            machine,
            HOST_FDS,
            HOST_FDS,
            "an association with a few queues",
        ),
        threads(machine, HOST_THREADS),
    ];
    // An association with less of all may do.
    checks.map(|check| match check.verdict {
        Verdict::Error => Check {
            verdict: Verdict::Warning,
            ..check
        },
        Verdict::Ok | Verdict::Warning => check,
    })
}

/// Memory, of which a process that takes too much is killed for it, and in the middle of its work.
#[must_use]
pub fn memory(machine: &Machine, need: &MemoryNeed) -> Check {
    const NAME: &str = "memory";
    let MemoryNeed {
        what,
        bytes,
        new_bytes,
        lower,
    } = need;
    let needs = format!("{what} {}", size(*bytes));
    let bounds: Vec<_> = [
        of_machine(machine).map(|bound| (bound, String::new())),
        cgroup::memory(machine).map(|bound| (bound, format!(", or raise that ({RAISE_MEMORY})"))),
        of_process(machine, "Max address space", "RLIMIT_AS, `ulimit -v`"),
        of_process(machine, "Max data size", "RLIMIT_DATA, `ulimit -d`"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let smallest = bounds.iter().min_by_key(|(bound, _)| bound.value);
    let Some((smallest, raise)) = smallest else {
        return Check::ok(
            NAME,
            format!("{needs}; /proc/meminfo does not say what there is"),
        );
    };
    let limit = format!("at most {} ({})", rounded(smallest.value), smallest.by);
    if *bytes > smallest.value {
        return Check::error(NAME, needs, limit, format!("{lower}{raise}"));
    }
    if let Some(high) = cgroup::memory_high(machine).filter(|high| *bytes > high.value) {
        return Check::warning(
            NAME,
            format!(
                "{needs}; beyond {} ({}) it is slowed down",
                rounded(high.value),
                high.by
            ),
            format!("at most {}", rounded(high.value)),
            format!("{lower}, or raise that (MemoryHigh= of the unit)"),
        );
    }
    let scarcest = bounds.iter().min_by_key(|(bound, _)| bound.free);
    match scarcest {
        Some((scarcest, raise)) if *new_bytes > scarcest.free => Check::warning(
            NAME,
            format!(
                "{needs}, and only {} is free now ({})",
                rounded(scarcest.free),
                scarcest.by
            ),
            format!("{} of free memory", size(*new_bytes)),
            format!("{lower}{raise}, or end what has the memory"),
        ),
        _ => Check::ok(NAME, format!("{needs}, {limit}")),
    }
}

fn of_machine(machine: &Machine) -> Option<Bound> {
    let meminfo = machine.read("/proc/meminfo")?;
    let bytes = |key: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
        // KiB, which it calls kB.
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    let value = bytes("MemTotal:")?;
    Some(Bound {
        value,
        free: bytes("MemAvailable:").unwrap_or(value),
        by: "what the machine has".to_owned(),
    })
}

fn of_process(machine: &Machine, row: &str, by: &str) -> Option<(Bound, String)> {
    let value = machine.limit(row).filter(|&value| value != u64::MAX)?;
    let by = by.to_owned();
    let raise = ", or raise that for the process".to_owned();
    Some((
        Bound {
            value,
            free: value,
            by,
        },
        raise,
    ))
}

/// Descriptors: without the `least`, `what` cannot be; with fewer than `all`, fewer hosts connect.
/// A program raises its soft limit to the hard one, so that is the one that counts.
#[must_use]
pub fn open_files(machine: &Machine, least: u64, all: u64, what: &str) -> Check {
    const NAME: &str = "open files";
    let limit = machine.limit("Max open files").unwrap_or(u64::MAX);
    let seen = if limit == u64::MAX {
        "unlimited".to_owned()
    } else {
        limit.to_string()
    };
    let mend =
        format!("`ulimit -Hn {all}` as root before it starts, or LimitNOFILE={all} in its unit");
    if limit < least {
        return Check::error(
            NAME,
            seen,
            format!("{least} for {what}, {all} in all"),
            mend,
        );
    }
    if limit < all {
        let expected = format!("{all}, for as many hosts as the memory budget has room for");
        return Check::warning(NAME, seen, expected, mend);
    }
    Check::ok(NAME, format!("{seen}; {all} needed"))
}

/// The size of files that are written, of which `path` is the largest with so many bytes: beyond
/// RLIMIT_FSIZE every write fails (setrlimit(2)). `None` where there is no such limit.
#[must_use]
pub fn file_size(machine: &Machine, path: &str, bytes: u64) -> Option<Check> {
    const NAME: &str = "file size";
    let limit = machine
        .limit("Max file size")
        .filter(|&limit| limit != u64::MAX)?;
    let seen = format!(
        "writes end at {} (RLIMIT_FSIZE, `ulimit -f`)",
        rounded(limit)
    );
    Some(if limit < bytes {
        Check::error(
            NAME,
            seen,
            format!("{} for {path}", size(bytes)),
            "`ulimit -f unlimited` before it starts, or LimitFSIZE=infinity in its unit",
        )
    } else {
        Check::ok(NAME, format!("{seen}; {} needed", size(bytes)))
    })
}

/// Threads, of which a process needs so many in all: limited by control groups, and by RLIMIT_NPROC
/// for all processes of a user together. Those that it has already are left to it.
#[must_use]
pub fn threads(machine: &Machine, needed: u64) -> Check {
    const NAME: &str = "threads";
    let own = Status::read(machine, "self").map_or(0, |status| status.threads);
    // A limit that was lowered beneath what there is leaves nothing more than itself.
    let with_own = |(bound, raise): (Bound, _)| {
        let free = bound.free.saturating_add(own).min(bound.value);
        (Bound { free, ..bound }, raise)
    };
    match threads_bound(machine).map(with_own) {
        None => Check::ok(NAME, format!("{needed} needed, unlimited")),
        Some((bound, _)) if bound.free >= needed => {
            let seen = format!("{needed} needed, {} left ({})", bound.free, bound.by);
            Check::ok(NAME, seen)
        }
        Some((bound, raise)) => Check::error(
            NAME,
            format!("{} of {} left ({})", bound.free, bound.value, bound.by),
            format!("{needed}"),
            format!("raise that ({raise}), or end what has the others"),
        ),
    }
}

/// Why a thread or process was refused (EAGAIN of clone(2)), as the end of a message: the limit
/// that is nearest. `needed`: so many threads in all.
#[must_use]
pub fn no_thread(machine: &Machine, needed: u64) -> String {
    let address_space = machine.limit("Max address space");
    let address_space = address_space.filter(|bytes| *bytes < u64::MAX);
    match (threads_bound(machine), address_space) {
        (Some((bound, raise)), _) if bound.free < needed => format!(
            "{} of {} threads are in use ({}), expected {needed} for this process; raise that ({raise}), or end what has \
             the others",
            bound.value - bound.free,
            bound.value,
            bound.by
        ),
        (_, Some(bytes)) => format!(
            "expected {needed} threads for this process, each with a stack in its {bytes} bytes of address space; raise that \
             (ulimit -v, LimitAS= of the unit)"
        ),
        _ => format!(
            "expected {needed} threads for this process, which the machine does not have: `sysctl kernel.threads-max \
             kernel.pid_max` shows its limits; raise these, or end what has the others"
        ),
    }
}

/// The limit of threads that leaves least, and how it is raised.
fn threads_bound(machine: &Machine) -> Option<(Bound, &'static str)> {
    let bounds = [
        cgroup::pids(machine).map(|bound| (bound, RAISE_PIDS)),
        of_user(machine).map(|bound| (bound, "`ulimit -u`, LimitNPROC= of the unit")),
    ];
    let bounds = bounds.into_iter().flatten();
    bounds.min_by_key(|(bound, _)| bound.free)
}

/// RLIMIT_NPROC and the threads of all processes of this user (setrlimit(2)).
fn of_user(machine: &Machine) -> Option<Bound> {
    let value = machine.limit("Max processes")?;
    let is_exempt = [Capability::SysAdmin, Capability::SysResource]
        .iter()
        .any(|capability| machine.has_capability(*capability));
    if value == u64::MAX || is_exempt {
        return None;
    }
    let own = Status::read(machine, "self")?.uid;
    let pids = machine.names("/proc").into_iter();
    let used: u64 = pids
        .filter(|name| name.parse::<u32>().is_ok())
        .filter_map(|pid| Status::read(machine, &pid))
        .filter(|status| status.uid == own)
        .map(|status| status.threads)
        .sum();
    Some(Bound {
        value,
        free: value.saturating_sub(used),
        by: format!("RLIMIT_NPROC, `ulimit -u`, of user {own}"),
    })
}

/// Of `/proc/PID/status`.
struct Status {
    /// The real one.
    uid: u32,
    threads: u64,
}

impl Status {
    fn read(machine: &Machine, pid: &str) -> Option<Self> {
        let status = machine.read(&format!("/proc/{pid}/status"))?;
        let first = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()
        };
        Some(Self {
            uid: first("Uid:")?.parse().ok()?,
            threads: first("Threads:")?.parse().ok()?,
        })
    }
}

/// Processors for so many `reactors`, each of which may use a whole one; `cores` are what the
/// process may run on.
#[must_use]
pub fn processors(machine: &Machine, reactors: usize, cores: usize) -> Check {
    const NAME: &str = "processors";
    let seen = format!("{reactors} reactor(s) on {cores} core(s)");
    if reactors > cores {
        return Check::warning(
            NAME,
            seen + ", where they wait for each other",
            format!("at least {reactors} cores (AllowedCPUs= of the unit, cpuset, taskset)"),
            format!("target.reactors = {cores}, or \"auto\""),
        );
    }
    let wanted = u64::try_from(reactors)
        .unwrap_or(u64::MAX)
        .saturating_mul(1000);
    match cgroup::cpu_quota(machine).filter(|quota| quota.value < wanted) {
        None => Check::ok(NAME, seen),
        Some(Bound { value, by, .. }) => Check::warning(
            NAME,
            format!(
                "{seen}, and the time of {}.{:02} of them ({by}): under load they stand still in turn",
                value / 1000,
                value % 1000 / 10,
            ),
            format!("the time of {reactors}"),
            "raise that (CPUQuota= of the unit, --cpus of the container), or lower target.reactors",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        MemoryNeed, file_size, memory, no_thread, of_host, open_files, processors, threads,
    };
    use crate::testing::Tree;
    use crate::{Check, Verdict};

    const MEMINFO: &str = "MemTotal:        2097152 kB\nMemAvailable:    1048576 kB\n";

    fn need(mib: u64) -> MemoryNeed {
        MemoryNeed {
            what: "the namespaces in RAM and the memory budget need".to_owned(),
            bytes: mib << 20,
            new_bytes: mib << 20,
            lower: "lower target.memory_budget".to_owned(),
        }
    }

    /// A process in the group `/a` of version 2.
    fn grouped(files: &[(&str, &str)]) -> Tree {
        Tree::new()
            .file("proc/meminfo", MEMINFO)
            .file(
                "proc/self/mountinfo",
                "24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            )
            .file("proc/self/cgroup", "0::/a\n")
            .files("sys/fs/cgroup/a", files)
    }

    #[test]
    fn more_than_the_machine_has_is_an_error_and_more_than_is_free_a_warning() {
        let machine = Tree::new().file("proc/meminfo", MEMINFO);
        let check = |mib| memory(&machine.machine(), &need(mib));
        assert_eq!(
            check(2304).line(),
            "memory: the namespaces in RAM and the memory budget need 2304 MiB; expected at most 2 \
             GiB (what the machine has): lower target.memory_budget"
        );
        assert_eq!(check(2304).verdict, Verdict::Error);
        assert_eq!(
            check(1280).line(),
            "memory: the namespaces in RAM and the memory budget need 1280 MiB, and only 1 GiB is \
             free now (what the machine has); expected 1280 MiB of free memory: lower \
             target.memory_budget, or end what has the memory"
        );
        assert_eq!(check(1280).verdict, Verdict::Warning);
        assert_eq!(check(512).verdict, Verdict::Ok);
    }

    #[test]
    fn a_control_group_counts_as_the_machine_does() {
        let max = grouped(&[
            ("memory.max", "134217728\n"),
            ("memory.current", "33554432\n"),
        ]);
        let check = |mib| memory(&max.machine(), &need(mib));
        assert_eq!(
            check(256).line(),
            "memory: the namespaces in RAM and the memory budget need 256 MiB; expected at most 128 \
             MiB (/sys/fs/cgroup/a/memory.max): lower target.memory_budget, or raise that \
             (MemoryMax= of the unit, --memory of the container)"
        );
        assert_eq!(check(256).verdict, Verdict::Error);
        let scarce = check(100);
        assert_eq!(scarce.verdict, Verdict::Warning);
        assert!(
            scarce.seen.contains("only 96 MiB is free now"),
            "{scarce:?}"
        );
        assert_eq!(check(64).verdict, Verdict::Ok);

        let high = grouped(&[("memory.max", "max\n"), ("memory.high", "134217728\n")]);
        let slow = memory(&high.machine(), &need(256));
        assert_eq!(slow.verdict, Verdict::Warning);
        assert!(slow.remedy.unwrap().contains("MemoryHigh="));
    }

    #[test]
    fn limits_of_the_process_count_too() {
        for (row, words) in [
            (
                "Max address space         104857600  unlimited  bytes\n",
                "`ulimit -v`",
            ),
            (
                "Max data size             104857600  unlimited  bytes\n",
                "`ulimit -d`",
            ),
        ] {
            let tree = Tree::new()
                .file("proc/meminfo", MEMINFO)
                .file("proc/self/limits", row);
            let check = memory(&tree.machine(), &need(256));
            assert_eq!(check.verdict, Verdict::Error);
            assert!(check.expected.unwrap().contains(words), "{words}");
        }
    }

    fn files(limit: u64) -> Check {
        let row = format!("Max open files            {limit}   {limit}   files\n");
        let tree = Tree::new().file("proc/self/limits", &row);
        open_files(&tree.machine(), 100, 1000, "the files of the namespaces")
    }

    #[test]
    fn descriptors_are_counted_for_what_must_be_and_for_all() {
        assert_eq!(files(1000).verdict, Verdict::Ok);
        assert_eq!(files(999).verdict, Verdict::Warning);
        let few = files(99);
        assert_eq!(few.verdict, Verdict::Error);
        assert_eq!(
            few.line(),
            "open files: 99; expected 100 for the files of the namespaces, 1000 in all: `ulimit -Hn \
             1000` as root before it starts, or LimitNOFILE=1000 in its unit"
        );
    }

    #[test]
    fn threads_are_limited_by_the_group_and_for_the_user() {
        let group = grouped(&[("pids.max", "10\n"), ("pids.current", "8\n")]);
        assert_eq!(threads(&group.machine(), 2).verdict, Verdict::Ok);
        let few = threads(&group.machine(), 3);
        assert_eq!(few.verdict, Verdict::Error);
        assert_eq!(few.seen, "2 of 10 left (/sys/fs/cgroup/a/pids.max)");
        assert!(few.remedy.unwrap().contains("TasksMax="));
        // Seven of them are this process's.
        let started = grouped(&[("pids.max", "10\n"), ("pids.current", "8\n")])
            .file("proc/self/status", "Uid:\t0\t0\t0\t0\nThreads:\t7\n");
        assert_eq!(threads(&started.machine(), 9).verdict, Verdict::Ok);
        let few = threads(&started.machine(), 10);
        assert_eq!(few.seen, "9 of 10 left (/sys/fs/cgroup/a/pids.max)");
        // Lowered beneath what there is.
        let beneath = grouped(&[("pids.max", "2\n"), ("pids.current", "3\n")])
            .file("proc/self/status", "Uid:\t0\t0\t0\t0\nThreads:\t3\n");
        let few = threads(&beneath.machine(), 5);
        assert_eq!(few.seen, "2 of 2 left (/sys/fs/cgroup/a/pids.max)");

        let status = "Uid:\t1000\t1000\t1000\t1000\nThreads:\t5\n";
        let user = |capabilities: &str| {
            Tree::new()
                .file(
                    "proc/self/limits",
                    "Max processes             12  12  processes\n",
                )
                .file(
                    "proc/self/status",
                    &format!("{status}CapEff:\t{capabilities}\n"),
                )
                .file("proc/6/status", status)
                .file("proc/7/status", status)
                .file("proc/8/status", "Uid:\t0\t0\t0\t0\nThreads:\t100\n")
        };
        let few = threads(&user("0000000000000000").machine(), 8);
        assert_eq!(few.verdict, Verdict::Error);
        assert!(few.seen.starts_with("7 of 12 left"), "{few:?}");
        assert_eq!(
            threads(&user("0000000001000000").machine(), 8).verdict,
            Verdict::Ok
        );
    }

    #[test]
    fn a_thread_that_is_refused_is_told_by_which_limit() {
        let group = grouped(&[("pids.max", "10\n"), ("pids.current", "10\n")]);
        let told = no_thread(&group.machine(), 13);
        let words = "10 of 10 threads are in use (/sys/fs/cgroup/a/pids.max), expected 13 for this process; raise that (TasksMax=";
        assert!(told.starts_with(words), "{told}");
        // Another limit than those that are counted.
        let told = no_thread(&Tree::new().machine(), 13);
        assert!(told.contains("kernel.threads-max"), "{told}");
        let limits = "Max address space         200000000            unlimited            bytes\n";
        let told = no_thread(&Tree::new().file("proc/self/limits", limits).machine(), 13);
        assert!(told.contains("200000000 bytes of address space"), "{told}");
        assert!(told.contains("LimitAS="), "{told}");
    }

    #[test]
    fn reactors_want_a_core_and_its_time_each() {
        let quota = grouped(&[("cpu.max", "150000 100000\n")]);
        let machine = quota.machine();
        assert_eq!(processors(&machine, 1, 1).verdict, Verdict::Ok);
        let slow = processors(&machine, 2, 4);
        assert_eq!(slow.verdict, Verdict::Warning);
        assert!(slow.seen.contains("the time of 1.50 of them"), "{slow:?}");
        let crowded = processors(&machine, 3, 2);
        assert_eq!(crowded.verdict, Verdict::Warning);
        assert_eq!(
            crowded.remedy.as_deref(),
            Some("target.reactors = 2, or \"auto\"")
        );
    }

    #[test]
    fn a_limit_of_file_sizes_below_a_file_is_an_error() {
        let limits = |value: &str| {
            let line =
                format!("Max file size             {value:<20} unlimited            bytes\n");
            Tree::new().file("proc/self/limits", &line)
        };
        let check = |value: &str| file_size(&limits(value).machine(), "/srv/a.img", 8 << 20);
        assert_eq!(check("unlimited"), None);
        assert_eq!(check("8388608").unwrap().verdict, Verdict::Ok);
        let small = check("4194304").unwrap();
        assert_eq!(small.verdict, Verdict::Error);
        let line = small.line();
        for words in [
            "RLIMIT_FSIZE",
            "4 MiB",
            "8 MiB for /srv/a.img",
            "LimitFSIZE=",
        ] {
            assert!(line.contains(words), "{words}: {line}");
        }
    }

    #[test]
    fn a_host_is_told_of_the_same_limits() {
        let tree = grouped(&[
            ("memory.max", "33554432\n"),
            ("pids.max", "1\n"),
            ("pids.current", "1\n"),
        ])
        .file(
            "proc/self/limits",
            "Max open files            32  32  files\n",
        );
        let verdicts = of_host(&tree.machine()).map(|check| check.verdict);
        assert_eq!(verdicts, [Verdict::Warning; 3]);
    }
}
