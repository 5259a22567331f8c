//! Whether what the kernel's scheduler was told of this process goes with its reactors.

use std::{fs, thread};

use capstan_config::Reactors;

/// Says so in the log where reactors could keep others from running.
pub(crate) fn check(reactors: &Reactors) {
    // Without /proc nothing is known.
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if let Some(warning) = warning(is_real_time(&stat), reactors, cores) {
        tracing::warn!("{warning}");
    }
}

/// By field 41 of `/proc/PID/stat`, `policy` (proc_pid_stat(5)): `SCHED_FIFO` is 1, `SCHED_RR` 2.
fn is_real_time(stat: &str) -> bool {
    // Field 2 is the name in parentheses, which may have spaces.
    let policy = stat
        .rsplit_once(')')
        .and_then(|(_, from_3)| from_3.split_whitespace().nth(41 - 3));
    matches!(policy, Some("1" | "2"))
}

/// A thread that is scheduled as real-time and polls leaves others a twentieth of its core
/// (sched(7)).
fn warning(real_time: bool, reactors: &Reactors, cores_available: usize) -> Option<String> {
    let what = match reactors {
        Reactors::Cores(cores) if cores.len() < cores_available => return None,
        Reactors::Cores(cores) => {
            format!("reactors have {} of {cores_available} cores", cores.len())
        }
        Reactors::Auto | Reactors::Count(_) => "reactors have no cores of their own".to_owned(),
    };
    real_time.then(|| {
        format!(
            "scheduled as real-time, and {what}: where a reactor polls hardly anything else runs; name their cores and leave others one (target.reactors = [1]), or drop CPUSchedulingPolicy= or chrt"
        )
    })
}

#[cfg(test)]
mod tests {
    use capstan_config::Reactors;

    use super::{is_real_time, warning};

    /// `chrt -f 1 cat /proc/self/stat` on Linux 6.18, but for the name.
    const FIFO: &str = "4805 (re) actor (0) R 4803 4803 1215 0 -1 4194560 177 0 1 0 0 0 0 0 -2 0 1 0 551301 3133440 384 \
        18446744073709551615 94201607462912 94201607482793 140722920492080 0 0 0 0 0 0 0 0 0 17 1 1 1 0 0 0 94201607498800 \
        94201607500416 94202488803328 140722920499730 140722920499750 140722920499750 140722920501227 0";

    #[test]
    fn the_policy_is_found_behind_any_name() {
        assert!(is_real_time(FIFO));
        assert!(is_real_time(&FIFO.replace("17 1 1 1", "17 1 1 2")));
        // SCHED_BATCH
        assert!(!is_real_time(&FIFO.replace("17 1 1 1", "17 1 0 3")));
        assert!(!is_real_time(&FIFO.replace("17 1 1 1", "17 1 0 0")));
        assert!(!is_real_time("4711 (cut off"));
    }

    #[test]
    fn only_real_time_reactors_that_leave_no_core_are_warned_of() {
        let all = Reactors::Cores(vec![0, 1]);
        for reactors in [Reactors::Auto, Reactors::Count(1), all] {
            assert!(warning(true, &reactors, 2).is_some());
            assert!(warning(false, &reactors, 2).is_none());
        }
        assert!(warning(true, &Reactors::Cores(vec![1]), 2).is_none());
    }
}
