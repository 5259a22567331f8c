//! Runs the conformance suite as tests, one per case.

use std::process::ExitCode;

use capstan_rdma::conformance::{CASES, Fabric, Stop, run};
use libtest_mimic::{Arguments, Trial};

/// A way to run the suite.
pub(crate) struct Variant {
    /// Comes before the name of each case.
    pub name: &'static str,
    /// A fresh fabric for a case.
    pub fabric: fn() -> Box<dyn Fabric>,
    /// Topics and cases that do not apply, as prefixes of their names; any other fails when it says
    /// that it does not apply, and these fail when they do.
    pub not_applicable: Vec<&'static str>,
}

/// Runs every case on every variant. `arguments` are the test program's, its name first.
pub(crate) fn main(
    variants: Vec<Variant>,
    arguments: impl IntoIterator<Item = String>,
) -> ExitCode {
    let mut arguments = Arguments::from_iter(arguments);
    // One case counts the descriptors of the process.
    arguments.test_threads.get_or_insert(1);
    let mut trials = Vec::new();
    for variant in variants {
        for case in CASES {
            let name = format!("{}::{}", variant.name, case.name);
            let (fabric, not_applicable) = (variant.fabric, variant.not_applicable.clone());
            trials.push(Trial::test(name, move || {
                let exempt = not_applicable
                    .iter()
                    .any(|prefix| case.name.starts_with(prefix));
                match run(case, fabric().as_mut()) {
                    Ok(()) if exempt => Err("applies, and is listed as not applicable".into()),
                    Err(Stop::NotApplicable(_)) if exempt => Ok(()),
                    Ok(()) => Ok(()),
                    Err(stop) => Err(stop.to_string().into()),
                }
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
