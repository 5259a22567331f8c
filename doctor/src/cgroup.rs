//! What the control groups of this process allow it (cgroups(7)): the limits of its own group and
//! of every group above, of which the smallest holds.

use std::path::{Path, PathBuf};

use crate::Machine;

/// What `memory.limit_in_bytes` is where there is no limit, and a little less (pages of 64 KiB).
const V1_UNLIMITED: u64 = 1 << 62;

/// A limit and what has one: a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) value: u64,
    /// What is left of it.
    pub(crate) free: u64,
    pub(crate) by: String,
}

/// A mounted hierarchy, and the group of this process in it with those above.
struct Groups {
    is_v2: bool,
    /// The process's own first.
    folders: Vec<String>,
}

/// The smallest `memory.max` (version 2) or `memory.limit_in_bytes` (1): beyond it a process is
/// killed.
pub(crate) fn memory(machine: &Machine) -> Option<Bound> {
    tightest(machine, "memory", |machine, is_v2, folder| {
        let limit = if is_v2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        memory_bound(machine, folder, limit)
    })
}

/// The smallest `memory.high`: beyond it a process is slowed down.
pub(crate) fn memory_high(machine: &Machine) -> Option<Bound> {
    tightest(machine, "memory", |machine, is_v2, folder| {
        is_v2.then(|| memory_bound(machine, folder, "memory.high"))?
    })
}

/// The smallest `pids.max`, which counts threads, too.
pub(crate) fn pids(machine: &Machine) -> Option<Bound> {
    tightest(machine, "pids", |machine, _, folder| {
        let by = format!("{folder}/pids.max");
        let value = machine.number(&by)?;
        let used = machine.number(&format!("{folder}/pids.current"))?;
        let free = value.saturating_sub(used);
        Some(Bound { value, free, by })
    })
}

/// The smallest quota of processor time, in thousandths of a processor.
pub(crate) fn cpu_quota(machine: &Machine) -> Option<Bound> {
    tightest(machine, "cpu", |machine, is_v2, folder| {
        let (by, quota_us, period_us) = if is_v2 {
            let by = format!("{folder}/cpu.max");
            let text = machine.read(&by)?;
            let (quota, period) = text.split_once(' ')?;
            (by, quota.parse().ok()?, period.trim().parse().ok()?)
        } else {
            // -1 is none.
            let by = format!("{folder}/cpu.cfs_quota_us");
            let quota_us: u64 = machine.number(&by)?;
            let period_us = machine.number(&format!("{folder}/cpu.cfs_period_us"))?;
            (by, quota_us, period_us)
        };
        let value = quota_us.checked_mul(1000)?.checked_div(period_us)?;
        let free = value;
        Some(Bound { value, free, by })
    })
}

fn memory_bound(machine: &Machine, folder: &str, limit: &str) -> Option<Bound> {
    let by = format!("{folder}/{limit}");
    // "max" is no number.
    let value = machine.number(&by).filter(|&value| value < V1_UNLIMITED)?;
    let used = ["memory.current", "memory.usage_in_bytes"]
        .iter()
        .find_map(|name| machine.number(&format!("{folder}/{name}")));
    // The page cache gives way to what a process asks for.
    let stat = machine.read(&format!("{folder}/memory.stat"));
    let cached = ["total_inactive_file ", "inactive_file "]
        .iter()
        .find_map(|key| {
            let mut lines = stat.as_deref()?.lines();
            lines.find_map(|line| line.strip_prefix(key)?.parse().ok())
        })
        .unwrap_or(0);
    let used = used.unwrap_or(0).saturating_sub(cached);
    let free = value.saturating_sub(used);
    Some(Bound { value, free, by })
}

fn tightest(
    machine: &Machine,
    controller: &str,
    bound: impl Fn(&Machine, bool, &str) -> Option<Bound>,
) -> Option<Bound> {
    let groups = groups(machine, controller)?;
    let folders = groups.folders.iter();
    folders
        .filter_map(|folder| bound(machine, groups.is_v2, folder))
        .min_by_key(|bound| bound.value)
}

/// Where `controller` is: in a hierarchy of its own (version 1), or in the one of version 2.
fn groups(machine: &Machine, controller: &str) -> Option<Groups> {
    let mounts = machine.read("/proc/self/mountinfo")?;
    let memberships = machine.read("/proc/self/cgroup")?;
    let has = |list: &str| list.split(',').any(|name| name == controller);
    let of = |is_v2: bool| {
        let mount = mounts.lines().find_map(|line| {
            let mount = Mount::parse(line)?;
            let fits = match mount.kind {
                "cgroup" => !is_v2 && has(mount.options),
                "cgroup2" => is_v2,
                _ => false,
            };
            fits.then_some(mount)
        })?;
        let own = memberships.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let fits = if is_v2 {
                controllers.is_empty()
            } else {
                has(controllers)
            };
            fits.then_some(path)
        })?;
        Some(Groups {
            is_v2,
            folders: folders(&mount, own),
        })
    };
    of(false).or_else(|| of(true))
}

/// The folder of the group `own` and those above it, as far as they are mounted. Where a container
/// sees no more than its own group, that is the root of the mount.
fn folders(mount: &Mount<'_>, own: &str) -> Vec<String> {
    let root = Path::new(mount.root);
    let inside = Path::new(own)
        .strip_prefix(root)
        .unwrap_or_else(|_| Path::new(""));
    let inside = if inside.starts_with("..") {
        Path::new("")
    } else {
        inside
    };
    let path: PathBuf = Path::new(mount.point).join(inside);
    path.ancestors()
        .take_while(|folder| folder.starts_with(mount.point))
        .map(|folder| folder.display().to_string())
        .collect()
}

/// A line of `/proc/self/mountinfo` (`proc_pid_mountinfo`(5)).
struct Mount<'a> {
    /// Which of its groups the mount shows as its root.
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    /// Of the file system: the controllers, in version 1.
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let mut file_system = file_system.split(' ');
        Some(Self {
            root: mount.next()?,
            point: mount.next()?,
            kind: file_system.next()?,
            options: file_system.nth(1)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Bound, cpu_quota, memory, memory_high, pids};
    use crate::testing::Tree;

    const MIB: u64 = 1 << 20;

    /// A service below a slice, on a machine with version 2 alone.
    fn v2() -> Tree {
        Tree::new()
            .file(
                "proc/self/mountinfo",
                "24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
            )
            .file(
                "proc/self/cgroup",
                "0::/system.slice/capstan-target.service\n",
            )
            .files(
                "sys/fs/cgroup/system.slice/capstan-target.service",
                &[
                    ("memory.max", "max\n"),
                    ("memory.high", "209715200\n"),
                    ("memory.current", "104857600\n"),
                    ("memory.stat", "anon 1\ninactive_file 20971520\n"),
                    ("pids.max", "50\n"),
                    ("pids.current", "20\n"),
                    ("cpu.max", "150000 100000\n"),
                ],
            )
    }

    #[test]
    fn a_group_above_limits_as_well_as_the_own_one() {
        let tree = v2().files(
            "sys/fs/cgroup/system.slice",
            &[
                ("memory.max", "134217728\n"),
                ("memory.current", "104857600\n"),
                ("pids.max", "max\n"),
                ("cpu.max", "max 100000\n"),
            ],
        );
        let machine = tree.machine();
        let slice = "/sys/fs/cgroup/system.slice";
        assert_eq!(
            memory(&machine),
            Some(Bound {
                value: 128 * MIB,
                free: 28 * MIB,
                by: format!("{slice}/memory.max"),
            })
        );
        let service = format!("{slice}/capstan-target.service");
        assert_eq!(
            memory_high(&machine),
            Some(Bound {
                value: 200 * MIB,
                // The page cache gives way.
                free: 120 * MIB,
                by: format!("{service}/memory.high"),
            })
        );
        assert_eq!(pids(&machine).unwrap().free, 30);
        assert_eq!(cpu_quota(&machine).unwrap().value, 1500);
    }

    #[test]
    fn version_1_has_a_hierarchy_for_each_controller() {
        let tree = Tree::new()
            .file(
                "proc/self/mountinfo",
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                 32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                 35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            )
            .file(
                "proc/self/cgroup",
                "4:memory:/a/b\n2:cpuacct,cpu:/a\n0::/\n",
            )
            .file(
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            )
            .files(
                "sys/fs/cgroup/memory/a",
                &[
                    ("memory.limit_in_bytes", "1048576\n"),
                    ("memory.usage_in_bytes", "4096\n"),
                ],
            )
            .file(
                "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "9223372036854771712\n",
            )
            .files(
                "sys/fs/cgroup/cpu/a",
                &[
                    ("cpu.cfs_quota_us", "50000\n"),
                    ("cpu.cfs_period_us", "100000\n"),
                ],
            )
            .files(
                "sys/fs/cgroup/cpu",
                &[
                    ("cpu.cfs_quota_us", "-1\n"),
                    ("cpu.cfs_period_us", "100000\n"),
                ],
            );
        let machine = tree.machine();
        let bound = memory(&machine).unwrap();
        assert_eq!((bound.value, bound.free), (MIB, MIB - 4096));
        assert_eq!(bound.by, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
        assert_eq!(memory_high(&machine), None);
        assert_eq!(cpu_quota(&machine).unwrap().value, 500);
        assert_eq!(pids(&machine), None);
    }

    /// With or without a cgroup namespace: the mount shows the container's group as its root.
    #[test]
    fn a_container_finds_its_limit_at_the_root_of_the_mount() {
        for (root, own) in [
            ("/", "/"),
            ("/docker/abc", "/docker/abc"),
            ("/../..", "/../.."),
        ] {
            let tree = Tree::new()
                .file(
                    "proc/self/mountinfo",
                    &format!("24 1 0:22 {root} /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
                )
                .file("proc/self/cgroup", &format!("0::{own}\n"))
                .file("sys/fs/cgroup/memory.max", "67108864\n");
            let bound = memory(&tree.machine()).unwrap();
            assert_eq!(bound.value, 64 * MIB, "{root} {own}");
        }
    }

    #[test]
    fn without_groups_there_are_no_limits() {
        for machine in [Tree::new().machine(), v2().machine()] {
            assert_eq!(memory(&machine), None);
        }
    }
}
