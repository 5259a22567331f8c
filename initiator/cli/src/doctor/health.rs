//! What the controller says of its media.

use capstan_doctor::Check;
use capstan_initiator::DirectQueue;
use capstan_initiator::internals::health::warning_words;
use capstan_initiator::internals::way::Way;
use capstan_nvme_proto::log::{CriticalWarning, HealthLog, LogPageId};
use capstan_nvme_proto::sqe::NSID_BROADCAST;

use super::super::{logs, output};

const NAME: &str = "health";
const EXPECTED: &str = "no critical warning";

/// Reads the SMART / Health Information log page.
pub(super) fn health(queue: &mut DirectQueue, way: &Way) -> Check {
    let page = logs::log_page(queue, LogPageId::HEALTH, NSID_BROADCAST, logs::HEALTH_BYTES);
    let again = format!("capstan smart-log {way}");
    match page.as_deref().map(HealthLog::from_data) {
        Ok(Some(log)) => warned(log, way),
        Ok(None) => Check::warning(NAME, "a page that is too short", "512 bytes", again),
        Err(error) => Check::warning(NAME, output::chain(error), "the log page", again),
    }
}

fn warned(log: &HealthLog, way: &Way) -> Check {
    let warning = CriticalWarning::from_bits_retain(log.critical_warning);
    if warning.is_empty() {
        let errors = log.media_errors.get();
        return Check::ok(NAME, format!("{EXPECTED}, {errors} media error(s)"));
    }
    if warning.contains(CriticalWarning::RELIABILITY) {
        return Check::error(
            NAME,
            "reliability is degraded: of a capstan-target, a file or device was moved, deleted, replaced or cut short \
             or is gone, or writes that it had answered could not be stored and may be lost: then every Flush \
             of that namespace fails",
            EXPECTED,
            "on the target: journalctl -u capstan-target says which volume, why, and how to go on; check or restore \
             what is on it",
        );
    }
    Check::warning(
        NAME,
        format!(
            "critical warning {:#04x}: {}",
            log.critical_warning,
            warning_words(warning)
        ),
        EXPECTED,
        format!("capstan smart-log {way} -N NSID names the namespace; see the target's log"),
    )
}

#[cfg(test)]
mod tests {
    use capstan_doctor::Verdict;
    use capstan_initiator::{Nqn, Options, Transport};
    use capstan_nvme_proto::log::{CriticalWarning, HealthLog};
    use capstan_nvme_proto::nqn::HostId;
    use zerocopy::FromZeros;

    use super::{Way, warned};

    fn way() -> Way {
        let nqn = |name| Nqn::new(name).unwrap();
        let options = Options::new("::1", nqn("nqn.s"), nqn("nqn.h"), HostId([1; 16]));
        Way::of(&Options {
            transport: Transport::Tcp,
            ..options
        })
    }

    #[test]
    fn lost_writes_are_an_error_and_other_warnings_are_warnings() {
        for (warning, verdict) in [
            (CriticalWarning::empty(), Verdict::Ok),
            (CriticalWarning::TEMPERATURE, Verdict::Warning),
            (CriticalWarning::RELIABILITY, Verdict::Error),
            (CriticalWarning::all(), Verdict::Error),
        ] {
            let mut log = HealthLog::new_zeroed();
            log.critical_warning = warning.bits();
            let check = warned(&log, &way());
            assert_eq!(check.verdict, verdict, "{warning:?}");
            if verdict == Verdict::Warning {
                let mend = check.remedy.as_deref().unwrap();
                let begin = "capstan smart-log -a ::1 -s 4420 -n nqn.s -t tcp";
                assert!(mend.starts_with(begin), "{mend}");
            }
            if verdict == Verdict::Error {
                // Not every one of them has lost writes.
                assert!(check.seen.contains(" was moved, deleted, "), "{check:?}");
            }
        }
    }
}
