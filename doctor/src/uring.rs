//! io_uring, which the target's disks need.

use std::error::Error as _;

use capstan_storage::{Capabilities, EngineError};

use crate::{Capability, Check, Machine, Role};

const NAME: &str = "io_uring";
const ENABLE: &str = "sysctl -w kernel.io_uring_disabled=0";

/// What a ring that was made had, or why none could be made.
pub(crate) fn check(
    machine: &Machine,
    role: &Role,
    probed: Result<Capabilities, EngineError>,
) -> Check {
    let disabled = machine.number("/proc/sys/kernel/io_uring_disabled");
    match (probed, role) {
        (Ok(has), Role::Target { .. }) => made(machine, disabled, &has),
        (Ok(_), Role::Host | Role::TcpHost) => {
            Check::ok(NAME, "works; only capstan-target uses it")
        }
        (Err(error), Role::Host | Role::TcpHost) => {
            let why = reason(&error);
            Check::ok(
                NAME,
                format!("not here: {why}; only capstan-target uses it"),
            )
        }
        (Err(error), Role::Target { .. }) => refused(disabled, &error),
    }
}

fn made(machine: &Machine, disabled: Option<u64>, has: &Capabilities) -> Check {
    let features = [
        (has.deferred_completions, "deferred completions", "6.1"),
        (has.no_index_array, "no index array", "6.6"),
        (has.fixed_buffers, "fixed buffers", "5.19"),
        (has.fixed_files, "fixed files", "5.19"),
    ];
    let sysctl = match disabled {
        Some(value) => format!("kernel.io_uring_disabled = {value}"),
        None => "no sysctl (before Linux 6.6)".to_owned(),
    };
    let there: Vec<_> = features.iter().filter(|f| f.0).map(|f| f.1).collect();
    let seen = format!("{sysctl}; a ring has {}", there.join(", "));
    if !has.missing.is_empty() {
        return Check::error(
            NAME,
            format!("{seen}; without {}", has.missing.join(", ")),
            "the operations READ, WRITE, READ_FIXED, WRITE_FIXED, FSYNC and FALLOCATE",
            "uname -r; boot Linux 5.6 or newer",
        );
    }
    let lacking: Vec<_> = features
        .iter()
        .filter(|f| !f.0)
        .map(|(_, name, since)| format!("{name} (Linux {since})"))
        .collect();
    if !lacking.is_empty() {
        return Check::warning(
            NAME,
            seen,
            format!("{}; disks are slower without", lacking.join(", ")),
            format!("uname -r is {}; boot a newer kernel", machine.release()),
        );
    }
    if disabled == Some(1) {
        let by = if machine.has_capability(Capability::SysAdmin) {
            "CAP_SYS_ADMIN"
        } else {
            "its group"
        };
        return Check::warning(
            NAME,
            format!("{seen}, since this process has {by}"),
            "0: at 1 only CAP_SYS_ADMIN and kernel.io_uring_group may, and the service has neither",
            ENABLE,
        );
    }
    Check::ok(NAME, seen)
}

fn refused(disabled: Option<u64>, error: &EngineError) -> Check {
    let (seen, mend) = match (disabled, error) {
        (Some(value @ 1..), _) => (
            format!("{}, kernel.io_uring_disabled = {value}", reason(error)),
            ENABLE.to_owned(),
        ),
        (_, EngineError::Setup { remedy, .. }) => (reason(error), (*remedy).to_owned()),
        _ => (reason(error), "see io_uring_setup(2)".to_owned()),
    };
    Check::error(
        NAME,
        seen,
        "a ring; without one no file or block device can be exported",
        mend,
    )
}

/// The kernel's words.
fn reason(error: &EngineError) -> String {
    match error {
        EngineError::Setup { error, .. } => error.to_string(),
        _ => error
            .source()
            .map_or_else(|| error.to_string(), ToString::to_string),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io;

    use capstan_storage::{Capabilities, EngineError};

    use super::check;
    use crate::testing::Tree;
    use crate::{Role, Verdict, trees};

    pub(crate) fn everything() -> Capabilities {
        Capabilities {
            deferred_completions: true,
            no_index_array: true,
            fixed_buffers: true,
            fixed_files: true,
            missing: Vec::new(),
        }
    }

    fn refusal() -> EngineError {
        EngineError::Setup {
            error: io::Error::from_raw_os_error(1),
            remedy: "a seccomp filter forbids it",
        }
    }

    const TARGET: Role = Role::Target {
        memory_bytes: 0,
        verbs: false,
        needs: None,
    };

    #[test]
    fn disabled_is_an_error_for_the_target_and_nothing_for_the_host() {
        let tree = Tree::new().file("proc/sys/kernel/io_uring_disabled", "2\n");
        let machine = tree.machine();
        let target = check(&machine, &TARGET, Err(refusal()));
        assert_eq!(target.verdict, Verdict::Error);
        assert_eq!(
            target.seen,
            "Operation not permitted (os error 1), kernel.io_uring_disabled = 2"
        );
        assert_eq!(
            target.remedy.unwrap(),
            "sysctl -w kernel.io_uring_disabled=0"
        );
        let host = check(&machine, &Role::Host, Err(refusal()));
        assert_eq!(host.verdict, Verdict::Ok);
    }

    #[test]
    fn a_filter_is_told_from_the_sysctl() {
        let tree = trees::well(Tree::new());
        let check = check(&tree.machine(), &TARGET, Err(refusal()));
        assert_eq!(check.remedy.unwrap(), "a seccomp filter forbids it");
    }

    #[test]
    fn an_older_kernel_is_slower_and_a_very_old_one_will_not_do() {
        let tree = trees::well(Tree::new());
        let machine = tree.machine();
        let older = Capabilities {
            no_index_array: false,
            ..everything()
        };
        let slower = check(&machine, &TARGET, Ok(older));
        assert_eq!(slower.verdict, Verdict::Warning);
        assert_eq!(
            slower.expected.unwrap(),
            "no index array (Linux 6.6); disks are slower without"
        );
        let old = Capabilities {
            missing: vec!["FALLOCATE"],
            ..everything()
        };
        assert_eq!(check(&machine, &TARGET, Ok(old)).verdict, Verdict::Error);
        let best = check(&machine, &TARGET, Ok(everything()));
        assert_eq!(best.verdict, Verdict::Ok);
        assert_eq!(
            best.seen,
            "kernel.io_uring_disabled = 0; a ring has deferred completions, no index array, fixed \
             buffers, fixed files"
        );
    }

    #[test]
    fn what_root_may_the_service_may_not() {
        let tree = Tree::new()
            .file("proc/sys/kernel/io_uring_disabled", "1\n")
            .file("proc/self/status", "CapEff:\t000001ffffffffff\n");
        let check = check(&tree.machine(), &TARGET, Ok(everything()));
        assert_eq!(check.verdict, Verdict::Warning);
        assert!(check.seen.ends_with("since this process has CAP_SYS_ADMIN"));
    }
}
