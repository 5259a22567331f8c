//! Whether this process may use what a configuration needs of its machine: memory, descriptors,
//! threads and processors, by the limits of the machine, of control groups and of the process.

use std::fs;

use anyhow::bail;
use capstan_config::{Backing, Config, MemoryPlan, Namespace, Nqn, Problems, Target};
use capstan_doctor::room::{self, MemoryNeed, file_size, memory, open_files, processors, threads};
use capstan_doctor::{Check, Machine, Role, Verdict};

use crate::nfs;
use crate::overlaps;
use crate::providers;
use crate::rings;

/// Descriptors of the process besides its reactors': log, signals, timers, the sockets of systemd.
const PROCESS_FDS: u64 = 16;
/// Descriptors of one reactor besides its connections: ring, wake-ups, epoll, listeners.
const REACTOR_FDS: u64 = 16;
/// Threads of the process besides its reactors': the first, the two of the log, the one that has
/// media looked at and the one that looks, the one that waits for a second signal, the one that
/// reloads, the two that carry requests of the control socket out, the one that looks for what is
/// not there yet, the one that waits for the state folder and the one that says so, and one of the
/// kernel for the ring of the first.
const PROCESS_THREADS: u64 = 13;
/// Threads of a reactor at least: its own, and two of the kernel for what its ring cannot do
/// without waiting, which count as the process's. The kernel makes more while these wait for media.
/// They have no bound of ours (`IORING_REGISTER_IOWQ_MAX_WORKERS` of io_uring_register(2)): a
/// medium that hangs would have them all, and hold up the others.
const REACTOR_THREADS: u64 = 3;
/// Queues of a host that connects with one I/O queue.
pub(crate) const HOST_QUEUES: u64 = 2;

/// What a comparison with this machine has found, a line each.
pub struct Found {
    /// What works, but should be known.
    pub warnings: Vec<String>,
    /// What keeps the target from serving.
    pub errors: Vec<String>,
}

/// Compares the configuration with this machine as a target starts: what it names, and what it
/// needs. Providers are for the start to find. Returns the warnings.
///
/// # Errors
/// Everything that would keep the target from serving it, a line each.
pub fn check(
    config: &Config,
    in_words: impl FnOnce(Problems) -> Problems,
) -> anyhow::Result<Vec<String>> {
    let Found { warnings, errors } = compare_but_providers(config, in_words);
    if errors.is_empty() {
        return Ok(warnings);
    }
    bail!("{}", errors.join("\n"))
}

/// As [`check`], with the warnings also where there are errors, and with the providers.
pub fn compare(config: &Config, in_words: impl FnOnce(Problems) -> Problems) -> Found {
    let mut found = compare_but_providers(config, in_words);
    found.errors.extend(providers::refused(config));
    found
}

fn compare_but_providers(config: &Config, in_words: impl FnOnce(Problems) -> Problems) -> Found {
    let (warnings, problems) = config.look_at_machine();
    let mut warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    let problems = problems.map(|problems| in_words(problems).to_string());
    let mut errors: Vec<_> = problems.into_iter().collect();
    errors.extend(overlaps::found(config));
    // A budget that is too small is one of the problems.
    let machine = Machine::here();
    let of_nfs = of_nfs(&machine, config);
    for check in checks(&machine, config).into_iter().chain(of_nfs) {
        match check.verdict {
            Verdict::Ok => {}
            Verdict::Warning => warnings.push(check.line()),
            Verdict::Error => errors.push(check.line()),
        }
    }
    Found { warnings, errors }
}

/// The threads of a target, counted before it starts them.
///
/// # Errors
/// There are fewer left.
pub fn check_threads(config: &Config) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let reactors = u64::try_from(config.target.reactors.count(cores)).unwrap_or(u64::MAX);
    let check = threads(&Machine::here(), all_threads(config, reactors));
    match check.verdict {
        Verdict::Error => bail!("{}", check.line()),
        Verdict::Ok | Verdict::Warning => Ok(()),
    }
}

/// Why a target of one reactor at least has no thread or process more, as the end of a message.
#[must_use]
pub fn no_thread() -> String {
    room::no_thread(&Machine::here(), threads_of(1))
}

fn threads_of(reactors: u64) -> u64 {
    PROCESS_THREADS.saturating_add(REACTOR_THREADS.saturating_mul(reactors))
}

/// With those of NFS, and the one that tells metrics.
fn all_threads(config: &Config, reactors: u64) -> u64 {
    let of_nfs = config.nfs.as_ref().map_or(0, nfs::threads);
    let of_metrics = u64::from(config.metrics.listen.is_some());
    threads_of(reactors)
        .saturating_add(of_nfs)
        .saturating_add(of_metrics)
}

/// The memory that may be locked, which a target that starts finds out for itself: what is wrong
/// with it, in a line.
#[must_use]
pub fn locked_memory(config: &Config) -> Option<String> {
    let machine = Machine::here();
    let role = Role::target(config.target.memory_budget_bytes);
    let check = capstan_doctor::locked_memory(&machine, &role);
    (check.verdict != Verdict::Ok).then(|| check.line())
}

/// The same when a target that runs is about to take up some of the namespaces of `wanted`.
///
/// # Errors
/// What they need is more than there is.
pub(crate) fn check_added(
    wanted: &Config,
    is_added: impl Fn(&Nqn, &Namespace) -> bool,
    reactors: usize,
) -> anyhow::Result<()> {
    let added = ram_bytes(wanted, &is_added);
    let machine = Machine::here();
    let plan = wanted.memory_plan(reactors)?;
    let files = files(&machine, wanted, &plan);
    let checks = [memory(&machine, &memory_need(wanted, added)), files];
    let size =
        largest_file(wanted, is_added).and_then(|(path, bytes)| file_size(&machine, &path, bytes));
    match checks
        .iter()
        .chain(&size)
        .find(|check| check.verdict == Verdict::Error)
    {
        Some(error) => bail!("{}; nothing was changed", error.line()),
        None => Ok(()),
    }
}

/// What the configuration needs, against every limit.
pub(crate) fn checks(machine: &Machine, config: &Config) -> Vec<Check> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let reactors = config.target.reactors.count(cores);
    let of_nfs = config.nfs.as_ref().map_or(0, nfs::data_bytes);
    let all = ram_bytes(config, |_, _| true) + config.target.memory_budget_bytes + of_nfs;
    let mut checks = vec![memory(machine, &memory_need(config, all))];
    if let Ok(plan) = config.memory_plan(reactors) {
        checks.push(files(machine, config, &plan));
        checks.push(threads(machine, all_threads(config, plan.reactors)));
    }
    checks.extend(
        largest_file(config, |_, _| true)
            .and_then(|(path, bytes)| file_size(machine, &path, bytes)),
    );
    checks.push(rings::check(machine, reactors));
    checks.push(processors(machine, reactors, cores));
    checks
}

/// What the exports of the configuration need, if it has any.
pub(crate) fn of_nfs(machine: &Machine, config: &Config) -> Vec<Check> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let plan = config.memory_plan(config.target.reactors.count(cores));
    let others = plan.map_or(0, |plan| descriptors(config, &plan).all);
    nfs::checks(machine, config, others)
}

/// The largest file that hosts may write, with its size in bytes. Devices have no such limit.
fn largest_file(
    config: &Config,
    counts: impl Fn(&Nqn, &Namespace) -> bool,
) -> Option<(String, u64)> {
    let subsystems = config.subsystems.iter();
    let namespaces = subsystems.flat_map(|s| s.namespaces.iter().filter(|n| counts(&s.nqn, n)));
    let files = namespaces.filter(|namespace| !namespace.read_only);
    let sizes = files.filter_map(|namespace| match &namespace.backing {
        Backing::Path(path) => {
            let file = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
            Some((path.display().to_string(), file.len()))
        }
        _ => None,
    });
    sizes.max_by_key(|(_, bytes)| *bytes)
}

/// What every configuration needs that does not say otherwise.
pub(crate) fn checks_of_any(machine: &Machine) -> Vec<Check> {
    let bytes = Target::default().memory_budget_bytes;
    let need = MemoryNeed {
        what: "the default memory budget needs".to_owned(),
        bytes,
        new_bytes: bytes,
        lower: LOWER.to_owned(),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let reactors = u64::try_from(cores).unwrap_or(u64::MAX);
    vec![
        memory(machine, &need),
        threads(machine, threads_of(reactors)),
        rings::check(machine, cores),
        processors(machine, cores, cores),
    ]
}

const LOWER: &str = "lower target.memory_budget";

fn memory_need(config: &Config, new_bytes: u64) -> MemoryNeed {
    let ram_bytes = ram_bytes(config, |_, _| true);
    let budget_bytes = config.target.memory_budget_bytes;
    let (what, lower) = match ram_bytes {
        0 => ("the memory budget needs", LOWER),
        _ => (
            "the namespaces in RAM and the memory budget need",
            "make these namespaces smaller, or lower target.memory_budget",
        ),
    };
    MemoryNeed {
        what: what.to_owned(),
        bytes: ram_bytes.saturating_add(budget_bytes),
        new_bytes,
        lower: lower.to_owned(),
    }
}

fn ram_bytes(config: &Config, counts: impl Fn(&Nqn, &Namespace) -> bool) -> u64 {
    let subsystems = config.subsystems.iter();
    subsystems
        .flat_map(|s| s.namespaces.iter().filter(|n| counts(&s.nqn, n)))
        .filter(|namespace| matches!(namespace.backing, Backing::Ram { .. }))
        .filter_map(|namespace| namespace.backing.size_bytes())
        .fold(0, u64::saturating_add)
}

/// How many descriptors a target needs.
struct Descriptors {
    /// Before a host is there.
    least: u64,
    /// With as many hosts as there is memory for.
    all: u64,
}

/// Over iWARP each queue is a socket. A file or device is open once, and once more for the syncs of
/// each reactor.
fn descriptors(config: &Config, plan: &MemoryPlan) -> Descriptors {
    let namespaces = config.subsystems.iter().flat_map(|s| &s.namespaces);
    let paths = namespaces.filter(|n| matches!(n.backing, Backing::Path(_)));
    let path_fds = paths.count() as u64 * (1 + plan.reactors);
    let least = PROCESS_FDS + REACTOR_FDS * plan.reactors + path_fds;
    let hosts = HOST_QUEUES * plan.hosts(1) + plan.strangers_per_reactor * plan.reactors;
    Descriptors {
        least,
        all: least + hosts,
    }
}

fn files(machine: &Machine, config: &Config, plan: &MemoryPlan) -> Check {
    let Descriptors { least, all } = descriptors(config, plan);
    let what = "the files and devices of all namespaces, and the reactors";
    open_files(machine, least, all, what)
}

#[cfg(test)]
mod tests {
    use capstan_config::Config;
    use capstan_doctor::{Machine, Verdict};

    use super::{checks, fs, ram_bytes};

    fn config(reactors: u32, namespaces: &str) -> Config {
        Config::from_toml(&format!(
            "[target]\nreactors = {reactors}\n[[listener]]\naddress = \"127.0.0.1\"\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n{namespaces}"
        ))
        .unwrap()
    }

    #[test]
    fn what_a_configuration_needs_is_the_sum_of_its_parts() {
        let paths: String = (0..10)
            .map(|at| format!("[[subsystem.namespace]]\npath = \"/srv/{at}\"\n"))
            .collect();
        let ram = "[[subsystem.namespace]]\nram = \"1GiB\"\n".repeat(2);
        let config = config(3, &(paths + &ram));
        assert_eq!(ram_bytes(&config, |_, _| true), 2 << 30);
        assert_eq!(ram_bytes(&config, |_, n| n.nsid == 12), 1 << 30);
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        // 16 of the process, 16 of each reactor, and 10 files opened by it and by each reactor.
        for (limit, verdict) in [(104, Verdict::Warning), (103, Verdict::Error)] {
            fs::write(
                root.path().join("proc/self/limits"),
                format!("Max open files            {limit}   {limit}   files\n"),
            )
            .unwrap();
            let checks = checks(&Machine::at(root.path(), Vec::new()), &config);
            let files = checks.iter().find(|check| check.name == "open files");
            assert_eq!(files.unwrap().verdict, verdict, "{files:?}");
        }
        fs::write(
            root.path().join("proc/meminfo"),
            "MemTotal:        2097152 kB\nMemAvailable:    1048576 kB\n",
        )
        .unwrap();
        let checks = checks(&Machine::at(root.path(), Vec::new()), &config);
        assert_eq!(
            checks[0].line(),
            "memory: the namespaces in RAM and the memory budget need 2304 MiB; expected at most 2 \
             GiB (what the machine has): make these namespaces smaller, or lower \
             target.memory_budget"
        );
    }
}
