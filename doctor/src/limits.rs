//! What RDMA devices have room for, and what a configuration asks of them.

use std::io;

use capstan_rdma::DeviceLimits;

use crate::machine::size;
use crate::{Check, Role, Verdict};

/// What a target asks of each device it uses, with everything its configuration allows in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Needs {
    /// Queue pairs: one per queue of every host that fits into the memory budget.
    pub qps: u64,
    /// Memory regions.
    pub mrs: u64,
    /// Bytes of the largest memory region.
    pub mr_bytes: u64,
    /// Entries of a completion queue, without which fewer hosts fit.
    pub cqes: u64,
    /// Receives of a shared receive queue, without which fewer hosts fit; 0 where none is wanted.
    pub srq_wrs: u64,
}

/// The limits of the device called `device`, against what is needed of it. Nothing where they
/// cannot be asked for without libibverbs.
pub(crate) fn check(
    device: &str,
    limits: io::Result<Option<DeviceLimits>>,
    role: &Role,
) -> Option<Check> {
    let name = format!("{device} limits");
    let limits = match limits {
        Ok(limits) => limits?,
        Err(error) => {
            return Some(Check {
                verdict: role.of_device(),
                ..Check::warning(
                    name,
                    format!("libibverbs cannot open the device: {error}"),
                    "its limits",
                    "ibv_devinfo -v; apt-get install ibverbs-providers",
                )
            });
        }
    };
    let seen = format!(
        "{} QPs of {} WRs, {} CQs of {} entries, {} SRQs of {} receives, {} MRs of {}, {} RDMA READs \
         per QP, {} SGEs",
        limits.qps,
        limits.qp_wrs,
        limits.cqs,
        limits.cqes,
        limits.srqs,
        limits.srq_wrs,
        limits.mrs,
        bytes(limits.mr_bytes),
        limits.reads,
        limits.sges,
    );
    let Role::Target {
        needs: Some(needs), ..
    } = role
    else {
        return Some(Check::ok(name, seen));
    };
    let (verdict, short) = shortages(&limits, needs);
    if short.is_empty() {
        return Some(Check::ok(name, seen));
    }
    // What makes do with less is no error, whatever uses the device.
    let verdict = match verdict {
        Verdict::Error => role.of_device(),
        other => other,
    };
    Some(Check {
        verdict,
        ..Check::warning(
            name,
            seen,
            short.join("; "),
            "lower target.memory_budget, or give target.reactors more reactors to divide it among",
        )
    })
}

/// What the device has less of than is needed, and how bad the worst of it is.
fn shortages(limits: &DeviceLimits, needs: &Needs) -> (Verdict, Vec<String>) {
    let rows = [
        (
            u64::from(limits.qps) < needs.qps,
            Verdict::Warning,
            format!(
                "{} QPs for all hosts that the memory budget has room for",
                needs.qps
            ),
        ),
        (
            u64::from(limits.cqes) < needs.cqes,
            Verdict::Warning,
            format!("a CQ of {} entries; fewer hosts fit", needs.cqes),
        ),
        (
            u64::from(limits.srq_wrs) < needs.srq_wrs,
            Verdict::Warning,
            format!("an SRQ of {} receives; fewer hosts fit", needs.srq_wrs),
        ),
        (
            limits.srqs == 0 && needs.srq_wrs > 0,
            Verdict::Warning,
            "shared receive queues; each queue will have receives of its own".to_owned(),
        ),
        (
            u64::from(limits.mrs) < needs.mrs,
            Verdict::Error,
            format!("{} MRs", needs.mrs),
        ),
        (
            limits.mr_bytes < needs.mr_bytes,
            Verdict::Error,
            format!("an MR of {}", bytes(needs.mr_bytes)),
        ),
    ];
    let mut worst = Verdict::Ok;
    let mut short = Vec::new();
    for (_, verdict, words) in rows.into_iter().filter(|row| row.0) {
        if worst != Verdict::Error {
            worst = verdict;
        }
        short.push(words);
    }
    (worst, short)
}

/// Devices without a limit say 2^64 - 1, or a little less.
fn bytes(bytes: u64) -> String {
    if bytes >= 1 << 60 {
        "any size".to_owned()
    } else {
        size(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use capstan_rdma::DeviceLimits;

    use super::{Needs, check};
    use crate::{Role, Verdict};

    /// Soft-RoCE of Linux 6.12.
    const RXE: DeviceLimits = DeviceLimits {
        qps: 1_048_560,
        cqs: 1_048_576,
        mrs: 524_287,
        mr_bytes: u64::MAX,
        mws: 524_287,
        srqs: 917_503,
        qp_wrs: 1_048_576,
        cqes: 32_767,
        srq_wrs: 1_048_576,
        sges: 32,
        reads: 128,
    };
    const NEEDS: Needs = Needs {
        qps: 200,
        mrs: 6,
        mr_bytes: 96 << 20,
        cqes: 3 * 10_000,
        srq_wrs: 10_000,
    };

    fn target(needs: Needs) -> Role {
        Role::Target {
            memory_bytes: 256 << 20,
            verbs: true,
            needs: Some(needs),
        }
    }

    #[test]
    fn what_suffices_is_told() {
        let check = check("rxe0", Ok(Some(RXE)), &target(NEEDS)).unwrap();
        assert_eq!(
            (check.verdict, check.name.as_str()),
            (Verdict::Ok, "rxe0 limits")
        );
        assert!(
            check.seen.contains("524287 MRs of any size"),
            "{}",
            check.seen
        );
    }

    #[test]
    fn fewer_completions_are_a_warning_and_too_small_regions_an_error() {
        let many = Needs {
            cqes: 196_608,
            ..NEEDS
        };
        let few = check("rxe0", Ok(Some(RXE)), &target(many)).unwrap();
        assert_eq!(few.verdict, Verdict::Warning);
        assert!(few.expected.unwrap().starts_with("a CQ of 196608 entries"));
        let small = DeviceLimits {
            mr_bytes: 64 << 20,
            cqes: 1,
            ..RXE
        };
        let small = check("x", Ok(Some(small)), &target(NEEDS)).unwrap();
        assert_eq!(small.verdict, Verdict::Error);
        assert!(small.expected.unwrap().ends_with("; an MR of 96 MiB"));
    }

    #[test]
    fn shared_receive_queues_are_looked_for_where_they_are_wanted() {
        let none = DeviceLimits {
            srqs: 0,
            srq_wrs: 0,
            ..RXE
        };
        let own = Needs {
            srq_wrs: 0,
            ..NEEDS
        };
        for (needs, verdict) in [(NEEDS, Verdict::Warning), (own, Verdict::Ok)] {
            let check = check("x", Ok(Some(none)), &target(needs)).unwrap();
            assert_eq!(check.verdict, verdict);
        }
    }

    #[test]
    fn a_device_that_does_not_open_says_why() {
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let on_host = check("rxe0", Err(refused()), &Role::Host).unwrap();
        assert_eq!(on_host.verdict, Verdict::Warning);
        let on_target = check("rxe0", Err(refused()), &target(NEEDS)).unwrap();
        assert_eq!(on_target.verdict, Verdict::Error);
        assert_eq!(check("rxe0", Ok(None), &Role::Host), None);
    }
}
