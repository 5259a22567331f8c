//! `capstan-target doctor`: the machine, and what a configuration asks of it.

mod listen;

use std::fmt::Display;

use capstan_config::{Config, MemoryPlan, Problems, Target, first_of};
use capstan_doctor::{Check, Machine, Needs, Role, Verdict, machine_checks};

pub use listen::Listen;

use crate::identities;
use crate::lba_size;
use crate::limits::{IN_CAPSULE_BYTES, RECEIVES_MAX, SQE_BYTES, cq_depth};
use crate::lost;
use crate::overlaps;
use crate::plan::queue_pool_bytes;
use crate::room::{self, HOST_QUEUES};
use crate::space;
use crate::state;

/// Memory regions of one reactor and device: data, queues, connections that are none yet, zeroes.
const REACTOR_MRS: u64 = 4;

/// Where what is asked for is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// In a configuration file.
    InFile,
    /// In options of the command line.
    InOptions,
}

/// Looks at the machine, and at the configuration when there is one; an `Err` is why it cannot be
/// used, in words.
#[must_use]
pub fn checks(
    machine: &Machine,
    config: Option<Result<&Config, &String>>,
    written: Written,
) -> Vec<Check> {
    let budget = Target::default().memory_budget_bytes;
    match config {
        None => {
            let mut checks = machine_checks(machine, &Role::target(budget));
            checks.extend(room::checks_of_any(machine));
            checks.extend(state::checks(machine, None));
            checks.extend(tables(None));
            checks.extend(lost::checks(machine, None));
            checks
        }
        Some(Err(error)) => {
            let mut checks = machine_checks(machine, &Role::target(budget));
            checks.push(Check::error(
                CONFIGURATION,
                error,
                match written {
                    Written::InFile => "a configuration that `capstan-target check` takes",
                    Written::InOptions => "options that `capstan-target serve` takes",
                },
                "change what is named there",
            ));
            checks
        }
        Some(Ok(config)) => with_config(machine, config, written),
    }
}

fn with_config(machine: &Machine, config: &Config, written: Written) -> Vec<Check> {
    let config = &identities::numbered(config);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let plan = config.memory_plan(config.target.reactors.count(cores));
    let listeners = Listen::all(machine, config);
    let role = Role::Target {
        memory_bytes: config.target.memory_budget_bytes,
        verbs: listeners.iter().any(Listen::uses_verbs),
        needs: plan
            .as_ref()
            .ok()
            .map(|plan| needs(plan, config.target.shared_receive_queue)),
    };
    let mut checks = machine_checks(machine, &role);
    checks.extend(state::checks(machine, Some(config)));
    checks.extend(lost::checks(machine, Some(config)));
    let of_config = configuration(config, written);
    // What is wrong with a medium is told once, by what a start looks at first.
    let can_start = of_config
        .iter()
        .all(|check| check.verdict != Verdict::Error);
    checks.extend(of_config);
    if can_start {
        checks.extend(tables(Some(config)));
    }
    checks.extend(space::checks(config));
    if let Ok(plan) = &plan {
        checks.push(Check::ok("memory budget", plan.to_string()));
    }
    checks.extend(room::checks(machine, config));
    checks.extend(room::of_nfs(machine, config));
    checks.extend(listeners.iter().map(Listen::check));
    if written == Written::InOptions {
        checks.iter_mut().for_each(without_keys);
    }
    checks
}

/// Says of keys that a check names where they could be written.
fn without_keys(check: &mut Check) {
    if let Some(remedy) = &mut check.remedy
        && remedy.contains("target.")
    {
        remedy.push_str("; that is a key of a configuration (--config FILE), and no option");
    }
}

/// Of what does not answer, a line each, which says what mends it.
#[must_use]
pub fn of_silent(lines: Vec<String>, verdict: Verdict) -> Vec<Check> {
    let checks = lines.into_iter().map(|line| Check {
        verdict,
        ..Check::ok("media", line)
    });
    checks.collect()
}

/// What a start would say of the tables in the state folder, where it would not go on, and of media
/// that are not those which hosts know.
fn tables(config: Option<&Config>) -> Vec<Check> {
    let mut of_media = Vec::new();
    let errors = match config {
        Some(config) => [
            identities::check(config, &mut of_media).err(),
            lba_size::check(config).err(),
        ],
        None => [identities::look().err(), lba_size::look().err()],
    };
    // The words say what is expected, and what mends it.
    let errors = errors.into_iter().flatten().map(|error| Check {
        verdict: Verdict::Error,
        ..Check::ok("state folder", format!("{error:#}"))
    });
    let warnings = of_media.into_iter().map(|line| Check {
        verdict: Verdict::Warning,
        ..Check::ok("identity", line)
    });
    errors.chain(warnings).collect()
}

/// What is wrong with the configuration on this machine. A budget that is too small is among it.
fn configuration(config: &Config, written: Written) -> Vec<Check> {
    let overlaps = overlaps::found(config);
    if !overlaps.is_empty() {
        return findings(Verdict::Error, &overlaps, |_| {
            "take one of the two out of the configuration".to_owned()
        });
    }
    let (mut warnings, mut problems) = config.look_at_machine();
    if written == Written::InOptions {
        problems = problems.map(Problems::in_options);
        warnings
            .iter_mut()
            .for_each(|warning| warning.at.name_option());
    }
    if warnings.is_empty() && problems.is_none() {
        let namespaces: usize = config.subsystems.iter().map(|s| s.namespaces.len()).sum();
        let subsystems = config.subsystems.len();
        let mut seen = format!("{subsystems} subsystem(s), {namespaces} namespace(s)");
        if let Some(nfs) = &config.nfs {
            seen.push_str(&format!(", {} export(s)", nfs.exports.len()));
        }
        return vec![Check::ok(CONFIGURATION, seen)];
    }
    let problems = problems.as_ref().map_or(&[][..], Problems::as_slice);
    let mut checks = findings(Verdict::Error, problems, |problem| {
        format!("change {}, or the machine", problem.at.field)
    });
    checks.extend(findings(Verdict::Warning, &warnings, |warning| {
        let field = &warning.at.field;
        format!("nothing, where it is meant to be so; else change {field}, or the machine")
    }));
    checks
}

const CONFIGURATION: &str = "configuration";

/// A check for each line that is told of `all`: the words say what is expected, too.
fn findings<T: Display>(verdict: Verdict, all: &[T], remedy: impl Fn(&T) -> String) -> Vec<Check> {
    let lines = first_of(all).into_iter().zip(all);
    let checks = lines.map(|(seen, finding)| Check {
        verdict,
        remedy: Some(remedy(finding)),
        ..Check::ok(CONFIGURATION, seen)
    });
    checks.collect()
}

/// What a device must have for everything that the memory budget has room for.
fn needs(plan: &MemoryPlan, shares_receives: bool) -> Needs {
    let queue_bytes = queue_pool_bytes(plan);
    let receives = queue_bytes / u64::from(SQE_BYTES + IN_CAPSULE_BYTES);
    let receives =
        u32::try_from(receives).map_or(RECEIVES_MAX, |receives| receives.min(RECEIVES_MAX));
    Needs {
        qps: HOST_QUEUES * plan.hosts(1) + plan.strangers_per_reactor * plan.reactors,
        mrs: REACTOR_MRS * plan.reactors,
        mr_bytes: queue_bytes.max(plan.data_bytes_per_reactor),
        cqes: cq_depth(receives).into(),
        srq_wrs: if shares_receives { receives.into() } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;

    use capstan_config::Config;
    use capstan_doctor::{Check, Machine, Verdict};

    use super::{Written, checks, needs};

    fn config(target: &str, listener: &str) -> Config {
        Config::from_toml(&format!(
            "[target]\nreactors = 1\n{target}\n[[listener]]\n{listener}\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nram = \"1MiB\"\n"
        ))
        .unwrap()
    }

    /// What the configuration adds, on a machine with these limits.
    fn examined(config: &Config, limits: &str) -> Vec<Check> {
        examined_of(config, limits, Written::InFile)
    }

    fn examined_of(config: &Config, limits: &str, written: Written) -> Vec<Check> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/self/limits"), limits).unwrap();
        let addresses = vec![("lo".to_owned(), "127.0.0.1".parse().unwrap())];
        let machine = Machine::at(root.path(), addresses);
        checks(&machine, Some(Ok(config)), written)
    }

    fn find<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        let found = checks.iter().find(|check| check.name.starts_with(name));
        found.unwrap_or_else(|| panic!("no {name} in {checks:?}"))
    }

    const LIMITS: &str = "Max open files            1024   4096   files\n\
                          Max locked memory         unlimited  unlimited  bytes\n";

    #[test]
    fn a_configuration_that_fits_is_ok() {
        let config = config("", "address = \"127.0.0.1\"\nport = 0");
        let checks = examined(&config, LIMITS);
        for name in ["configuration", "memory budget", "open files", "listen"] {
            let check = find(&checks, name);
            assert_eq!(check.verdict, Verdict::Ok, "{check:?}");
        }
        assert!(find(&checks, "listen").seen.contains("lo, no RDMA device"));
        let tcp = super::tests::config(
            "",
            "address = \"127.0.0.1\"\nport = 0\ntransports = [\"tcp\"]",
        );
        assert_eq!(find(&examined(&tcp, LIMITS), "listen").seen, "NVMe/TCP; lo");
        assert_eq!(
            find(&checks, "configuration").seen,
            "1 subsystem(s), 1 namespace(s)"
        );
    }

    #[test]
    fn limits_below_the_memory_budget_are_warnings() {
        let config = config("", "address = \"127.0.0.1\"\nport = 0");
        let checks = examined(
            &config,
            "Max open files            64   64   files\n\
             Max locked memory         65536  65536  bytes\n",
        );
        for name in ["open files", "RLIMIT_MEMLOCK"] {
            assert_eq!(find(&checks, name).verdict, Verdict::Warning, "{name}");
        }
        let expected = find(&checks, "RLIMIT_MEMLOCK").expected.as_ref();
        assert!(expected.unwrap().starts_with("256 MiB"), "{expected:?}");
    }

    #[test]
    fn a_budget_too_small_shows_the_arithmetic() {
        let config = config(
            "memory_budget = \"4MiB\"",
            "address = \"127.0.0.1\"\nport = 0",
        );
        let config = Config {
            target: capstan_config::Target {
                memory_budget_bytes: 1 << 20,
                ..config.target.clone()
            },
            ..config
        };
        let check = find(&examined(&config, LIMITS), "configuration").clone();
        assert_eq!(check.verdict, Verdict::Error);
        assert!(check.seen.contains("needed for one host"), "{}", check.seen);
        assert!(check.remedy.unwrap().contains("target.memory_budget"));
    }

    #[test]
    fn what_is_wrong_with_an_export_of_the_command_line_is_told_once_of_its_option() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let config = Config::from_toml(&format!(
            "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n[[subsystem]]\n\
             nqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\npath = \"{path}\"\n"
        ))
        .unwrap();
        for (written, name) in [
            (Written::InOptions, "--export"),
            (Written::InFile, "subsystem[0]"),
        ] {
            let checks = examined_of(&config, LIMITS, written);
            let of_it = |check: &&Check| check.seen.contains("is a folder");
            let found: Vec<_> = checks.iter().filter(of_it).collect();
            let [check] = &found[..] else {
                panic!("{found:?}");
            };
            assert_eq!(check.name, "configuration");
            assert!(check.seen.starts_with(name), "{check:?}");
            let mend = check.remedy.as_deref().unwrap();
            assert!(mend.starts_with(&format!("change {name}")), "{mend}");
        }
        let mut check = Check::error("memory", "", "", "lower target.memory_budget");
        super::without_keys(&mut check);
        assert!(check.remedy.unwrap().contains("--config FILE"));
    }

    #[test]
    fn a_port_in_use_and_an_address_of_another_machine_are_warnings() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let config = config("", &format!("address = \"127.0.0.1\"\nport = {port}"));
        let check = find(&examined(&config, LIMITS), "listen").clone();
        assert_eq!(check.verdict, Verdict::Warning);
        let remedy = check.remedy.unwrap();
        assert!(
            remedy.contains(&format!("`ss -ltnp 'sport = :{port}'`")),
            "{remedy}"
        );
        let elsewhere = super::tests::config("", "address = \"192.0.2.7\"");
        let check = find(&examined(&elsewhere, LIMITS), "listen").clone();
        assert_eq!(check.verdict, Verdict::Warning);
        assert!(check.seen.contains("not an address of this machine"));
    }

    #[test]
    fn a_provider_that_cannot_be_had_is_an_error() {
        let config = config(
            "",
            "address = \"127.0.0.1\"\nport = 0\nprovider = \"verbs\"",
        );
        let check = find(&examined(&config, LIMITS), "listen").clone();
        assert_eq!(check.verdict, Verdict::Error);
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_an_error_beside_the_rest() {
        let machine = Machine::here();
        let words = "no such file".to_owned();
        let checks = checks(&machine, Some(Err(&words)), Written::InFile);
        assert_eq!(find(&checks, "configuration").verdict, Verdict::Error);
        assert!(find(&checks, "io_uring").name == "io_uring");
    }

    #[test]
    fn a_device_needs_what_the_budget_has_room_for() {
        let config = config("", "address = \"127.0.0.1\"");
        let plan = config.memory_plan(2).unwrap();
        assert_eq!(needs(&plan, false).srq_wrs, 0);
        let needs = needs(&plan, true);
        // Two receives of each of 352 connections that are no queue yet are in the same memory.
        let queue_bytes = plan.queue_bytes / 2 + 352 * 2 * 8192;
        assert_eq!(needs.mr_bytes, queue_bytes);
        assert_eq!(needs.srq_wrs, queue_bytes / 8256);
        // 32 receives and 158 work requests of each queue of 32 entries, and what 64 queues of
        // discovery controllers can have waiting beyond the 19 of their places.
        assert_eq!(
            needs.cqes,
            needs.srq_wrs.div_ceil(32) * 190 + 64 * (120 - 19)
        );
        assert_eq!((needs.mrs, needs.qps), (8, 2 * plan.hosts(1) + 2 * 352));
    }
}
