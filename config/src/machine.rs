//! Checks that look at the machine: files, devices, cores, addresses.
//!
//! Nothing is changed and nothing stays open. What passes here can still fail later (a device may
//! vanish); the point is to say early and well what would fail anyway.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use crate::{
    Access, At, Backing, Config, MemoryPlan, Namespace, Nqn, Problem, ProblemKind, Problems,
    Reactors, Warning, shown,
};

pub(crate) mod exports;
mod hidden;
mod in_use;
pub(crate) mod next_step;
mod not_permitted;
pub(crate) mod unmounted;
pub(crate) mod volume;

impl Config {
    /// Compares the configuration with this machine, as the user that asks.
    ///
    /// # Errors
    /// Everything that would keep the target from serving what is configured. The warnings are
    /// things that work, but an operator should know of.
    pub fn check_machine(&self) -> Result<Vec<Warning>, Problems> {
        self.check(self, Claims::Told)
    }

    /// The same, with the warnings also where there are problems.
    #[must_use]
    pub fn look_at_machine(&self) -> (Vec<Warning>, Option<Problems>) {
        let Findings { problems, warnings } = self.findings(self, Claims::Told);
        (warnings, Problems::none_or(problems).err())
    }

    /// The same where only some of the namespaces are about to be opened (`is_opened`, by
    /// subsystem): the others are in use by the process that asks. It finds out at once what else
    /// is in use, and by which process: it may be itself.
    ///
    /// # Errors
    /// As for [`check_machine`](Self::check_machine).
    pub fn check_machine_opening(
        &self,
        is_opened: impl Fn(&Nqn, &Namespace) -> bool,
    ) -> Result<Vec<Warning>, Problems> {
        let mut opened = self.clone();
        for subsystem in &mut opened.subsystems {
            let nqn = &subsystem.nqn;
            subsystem.namespaces.retain(|n| is_opened(nqn, n));
        }
        self.check(&opened, Claims::NotLookedAt)
    }

    fn check(&self, opened: &Self, claims: Claims) -> Result<Vec<Warning>, Problems> {
        let Findings { problems, warnings } = self.findings(opened, claims);
        Problems::none_or(problems)?;
        Ok(warnings)
    }

    fn findings(&self, opened: &Self, claims: Claims) -> Findings {
        let mut findings = Findings::default();
        self.check_namespaces(&mut findings);
        exports::check(self, &mut findings);
        self.check_metrics(&mut findings);
        opened.check_opened(claims, &mut findings);
        findings
    }

    fn check_opened(&self, claims: Claims, findings: &mut Findings) {
        let cores = allowed_cores();
        self.check_cores(&cores, findings);
        if let Err(problems) = self.memory_plan(self.target.reactors.count(cores.len())) {
            findings.problems.extend(problems);
        }
        self.check_listeners(findings);
        self.check_names(findings);
        self.check_associations(findings);
        let mut first_use = HashMap::new();
        for (s, subsystem) in self.subsystems.iter().enumerate() {
            for namespace in &subsystem.namespaces {
                if let Backing::Path(path) = &namespace.backing {
                    // By NSID: sorting has lost the index in the file.
                    let field = format!("subsystem[{s}] nsid {} path", namespace.nsid);
                    volume::check(&field, path, namespace, claims, &mut first_use, findings);
                }
            }
        }
    }

    /// How the memory budget is divided among `reactors` reactors.
    ///
    /// # Errors
    /// [`ProblemKind::Budget`] when not even one host could be served.
    pub fn memory_plan(&self, reactors: usize) -> Result<MemoryPlan, Problems> {
        let tcp = (self.listeners.iter()).any(|listener| listener.transports.tcp);
        MemoryPlan::new(self.target.memory_budget_bytes, reactors, &self.queues, tcp).map_err(
            |arithmetic| problem("target.memory_budget", ProblemKind::Budget(arithmetic)).into(),
        )
    }

    /// A subsystem is empty while its only volume is taken out, and hardly ever for good.
    fn check_namespaces(&self, findings: &mut Findings) {
        if self.subsystems.is_empty() && !self.listeners.is_empty() {
            let message = "there is no [[subsystem]]: hosts that connect find nothing; one with nqn \
                           and a [[subsystem.namespace]] is one";
            findings.warning("listener", message.to_owned());
        }
        for (index, subsystem) in self.subsystems.iter().enumerate() {
            if subsystem.access == Access::Hosts(Vec::new()) {
                findings.warning(
                    format!("subsystem[{index}].allowed_hosts"),
                    format!(
                        "it is empty: no host may connect to {}; `capstan-target host allow` lets one in",
                        subsystem.nqn
                    ),
                );
            }
            if subsystem.configured().next().is_none() {
                findings.warning(
                    format!("subsystem[{index}].namespace"),
                    format!(
                        "there is none: hosts connect to {} and find nothing; a \
                         [[subsystem.namespace]] with path, ram or null is one",
                        subsystem.nqn
                    ),
                );
            }
            let groups: BTreeSet<u32> = subsystem.ana.keys().map(|(_, group)| *group).collect();
            for group in groups {
                let mut namespaces = subsystem.configured();
                if namespaces.all(|namespace| namespace.ana_group != group) {
                    findings.warning(
                        format!("subsystem[{index}].ana"),
                        format!(
                            "group {group} has no namespace, and its state no effect: `ana_group = \
                             {group}` in a [[subsystem.namespace]] of {} puts one there",
                            subsystem.nqn
                        ),
                    );
                }
            }
        }
    }

    /// There is no password.
    fn check_metrics(&self, findings: &mut Findings) {
        let listen = self.metrics.listen;
        if let Some(listen) = listen.filter(|listen| !listen.ip().is_loopback()) {
            let message = format!(
                "whatever reaches {listen} reads the names of hosts, and what they do; 127.0.0.1:{} is for this machine alone",
                listen.port()
            );
            findings.warning("metrics.listen", message);
        }
    }

    fn check_cores(&self, allowed: &[usize], findings: &mut Findings) {
        let Reactors::Cores(cores) = &self.target.reactors else {
            return;
        };
        for core in cores.iter().filter(|core| !allowed.contains(core)) {
            let kind = ProblemKind::Core {
                core: *core,
                allowed: shown::ranges(allowed),
            };
            findings.problem("target.reactors", kind);
        }
    }

    /// A host's NQN is what the host says it is, whatever its form; a wildcard is none. One of ours
    /// is not unique by construction when it is not of the form.
    fn check_names(&self, findings: &mut Findings) {
        for (index, subsystem) in self.subsystems.iter().enumerate() {
            let mut warn = |field: &str, name: &Nqn, consequence: &str| {
                if let Err(form) = name.check_form() {
                    findings.warning(
                        format!("subsystem[{index}].{field}"),
                        format!("`{name}`: {form}; {consequence}"),
                    );
                }
            };
            warn(
                "nqn",
                &subsystem.nqn,
                "it is taken as it is, and nothing keeps another target from having the same",
            );
            let Access::Hosts(hosts) = &subsystem.access else {
                continue;
            };
            for host in hosts {
                warn(
                    "allowed_hosts",
                    host,
                    "it allows the host of exactly this name",
                );
            }
        }
    }

    /// What is meant for a host that has lost power and comes back hits two programs of one host as
    /// well.
    fn check_associations(&self, findings: &mut Findings) {
        for (index, subsystem) in self.subsystems.iter().enumerate() {
            if subsystem.end_older_association {
                findings.warning(
                    format!("subsystem[{index}].end_older_association"),
                    format!(
                        "two programs of one host that connect to {} from one address (a mount, and \
                         `capstan bench` beside it) end each other's associations again and again; \
                         give each an identity of its own (--hostnqn and --hostid), or leave this \
                         key out",
                        subsystem.nqn
                    ),
                );
            }
        }
    }

    fn check_listeners(&self, findings: &mut Findings) {
        for (index, listener) in self.listeners.iter().enumerate() {
            let address = listener.address;
            if let Err(error) = UdpSocket::bind((address.ip(), 0)) {
                let message = format!(
                    "{} is not an address of this machine now: {error}; `ip address` lists them",
                    address.ip()
                );
                findings.warning(format!("listener[{index}].address"), message);
            }
        }
        let open: Vec<_> = self
            .listeners
            .iter()
            .filter(|listener| !listener.address.ip().is_loopback())
            .map(|listener| listener.address.to_string())
            .collect();
        if open.is_empty() {
            return;
        }
        for (index, subsystem) in self.subsystems.iter().enumerate() {
            if subsystem.access == Access::AnyHost {
                let message = format!(
                    "every host that reaches {} may read and write {}",
                    open.join(" or "),
                    subsystem.nqn
                );
                findings.warning(format!("subsystem[{index}].allow_any_host"), message);
            }
        }
    }
}

/// Whether it is shown that something else has a file or device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claims {
    Told,
    NotLookedAt,
}

/// What has been found so far.
#[derive(Default)]
struct Findings {
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
}

impl Findings {
    fn problem(&mut self, field: impl Into<String>, kind: ProblemKind) {
        self.problems.push(problem(field, kind));
    }

    fn warning(&mut self, field: impl Into<String>, message: String) {
        let at = At::of(field);
        self.warnings.push(Warning { at, message });
    }
}

fn problem(field: impl Into<String>, kind: ProblemKind) -> Problem {
    Problem {
        at: At::of(field),
        kind,
    }
}

/// Cores that this process may run on, ascending.
fn allowed_cores() -> Vec<usize> {
    let status = fs::read_to_string(Path::new("/proc/self/status")).unwrap_or_default();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cores = list
        .map(|list| parse_core_list(list.trim()))
        .unwrap_or_default();
    if cores.is_empty() {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        return (0..count).collect();
    }
    cores
}

/// The kernel's list format, such as `0-3,8`.
fn parse_core_list(list: &str) -> Vec<usize> {
    list.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse().ok()?..=last.parse::<usize>().ok()?)
        })
        .flatten()
        .take(4096)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(target: &str, namespace: &str) -> Config {
        Config::from_toml(&format!(
            "[target]\n{target}\n[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
             nqn = \"nqn.2026-11.com.example:a\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\n{namespace}\n"
        ))
        .unwrap()
    }

    #[test]
    fn core_lists_parse() {
        assert_eq!(parse_core_list("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_core_list("5"), [5]);
        assert_eq!(parse_core_list("3-1,x"), [0_usize; 0]);
        assert!(!allowed_cores().is_empty());
    }

    #[test]
    fn a_core_that_is_not_there_is_a_problem() {
        let mut findings = Findings::default();
        config("reactors = [0, 9]", "ram = 4096").check_cores(&[0, 1], &mut findings);
        let [problem] = findings.problems.as_slice() else {
            panic!("one problem")
        };
        assert_eq!(
            problem.to_string(),
            "target.reactors: core 9 is not one this process may run on; allowed: 0-1"
        );
    }

    #[test]
    fn a_subsystem_of_any_name_is_taken_with_a_warning_that_says_the_form() {
        for name in [
            "testnqn",
            "blktests-subsystem-1",
            "nqn.2024-13.org.example:a",
        ] {
            let config = Config::from_toml(&format!(
                "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"{name}\"\n\
                 allow_any_host = true\n[[subsystem.namespace]]\nram = 4096\n"
            ));
            let warnings = config.unwrap().check_machine().unwrap();
            assert_eq!(
                warnings[0].to_string(),
                format!(
                    "subsystem[0].nqn: `{name}`: the NQN is not of the form \
                     nqn.yyyy-mm.reverse.domain:string or nqn.2014-08.org.nvmexpress:uuid:UUID; it \
                     is taken as it is, and nothing keeps another target from having the same"
                )
            );
        }
    }

    #[test]
    fn a_host_nqn_of_no_known_form_is_a_warning() {
        let mut config = config("", "ram = 4096");
        config.subsystems[0].access = Access::Hosts(vec![Nqn::new("*").unwrap()]);
        let warnings = config.check_machine().unwrap();
        assert_eq!(
            warnings[0].to_string(),
            "subsystem[0].allowed_hosts: `*`: the NQN is not of the form \
             nqn.yyyy-mm.reverse.domain:string or nqn.2014-08.org.nvmexpress:uuid:UUID; it allows \
             the host of exactly this name"
        );
    }

    #[test]
    fn a_subsystem_without_namespaces_is_a_warning_and_one_that_has_them_open_is_not() {
        let mut config = config("", "ram = 4096");
        assert!(
            config
                .check_machine_opening(|_, _| false)
                .unwrap()
                .is_empty()
        );
        config.subsystems[0].namespaces.clear();
        let warnings = config.check_machine().unwrap();
        assert_eq!(
            warnings[0].to_string(),
            "subsystem[0].namespace: there is none: hosts connect to nqn.2026-11.com.example:a and \
             find nothing; a [[subsystem.namespace]] with path, ram or null is one"
        );
    }

    #[test]
    fn ending_older_associations_is_a_warning_that_names_the_way_out() {
        let mut config = config("", "ram = 4096");
        config.subsystems[0].end_older_association = true;
        let warnings = config.check_machine().unwrap();
        assert_eq!(
            warnings[0].to_string(),
            "subsystem[0].end_older_association: two programs of one host that connect to \
             nqn.2026-11.com.example:a from one address (a mount, and `capstan bench` beside it) end \
             each other's associations again and again; give each an identity of its own (--hostnqn \
             and --hostid), or leave this key out"
        );
    }

    #[test]
    fn a_file_that_is_locked_is_told_unless_it_is_opened_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let file = fs::File::create(&path).unwrap();
        file.set_len(4096).unwrap();
        file.try_lock().unwrap();
        let config = config("", &format!("path = {path:?}"));
        assert_eq!(config.check_machine().unwrap().len(), 1);
        assert_eq!(config.check_machine_opening(|_, _| true).unwrap(), []);
    }

    #[test]
    fn metrics_for_other_machines_are_a_warning() {
        let mut config = config("", "ram = 4096");
        config.metrics.listen = Some("127.0.0.1:9899".parse().unwrap());
        assert_eq!(config.check_machine().unwrap(), []);
        config.metrics.listen = Some("0.0.0.0:9899".parse().unwrap());
        let warnings = config.check_machine().unwrap();
        assert_eq!(
            warnings[0].to_string(),
            "metrics.listen: whatever reaches 0.0.0.0:9899 reads the names of hosts, and what they \
             do; 127.0.0.1:9899 is for this machine alone"
        );
    }

    #[test]
    fn a_problem_hides_no_warning() {
        let mut config = config("", "path = \"/absent/disk.img\"");
        config.listeners[0].address = "192.0.2.77:4420".parse().unwrap();
        let (warnings, problems) = config.look_at_machine();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert_eq!(problems.unwrap(), config.check_machine().unwrap_err());
    }

    #[test]
    fn an_open_listener_and_a_foreign_address_are_warnings() {
        let mut config = config("", "ram = 4096");
        config.listeners[0].address = "192.0.2.77:4420".parse().unwrap();
        let warnings: Vec<_> = config
            .check_machine()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        let [foreign, open] = warnings.as_slice() else {
            panic!("{warnings:?}")
        };
        assert!(
            foreign.starts_with(
                "listener[0].address: 192.0.2.77 is not an address of this machine now: "
            ),
            "{foreign}"
        );
        assert_eq!(
            open,
            "subsystem[0].allow_any_host: every host that reaches 192.0.2.77:4420 may read and \
             write nqn.2026-11.com.example:a"
        );
    }
}
