//! Anything in any order: the fuzz target `controller_ops` with proptest's randomness.

use core::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use crate::testing::{Reached, host_actions, run_host_actions};

/// Runs. Hosts come back to commands of their own in a part of them; far fewer than that would mean
/// that nothing is checked about those who do.
const RUNS: u32 = 2000;
const REACHED_MIN: u64 = 100;

#[test]
fn nothing_breaks_whatever_hosts_do() {
    let all = Cell::new(Reached::default());
    let bytes = proptest::collection::vec(any::<u8>(), 0..20_000);
    let mut runner = TestRunner::new(Config {
        source_file: Some(file!()),
        ..Config::with_cases(RUNS)
    });
    let ran = runner.run(&bytes, |bytes| {
        let reached = run_host_actions(&host_actions(&bytes));
        let Reached { kept_out, let_in } = all.get();
        all.set(Reached {
            kept_out: kept_out + reached.kept_out,
            let_in: let_in + reached.let_in,
        });
        Ok(())
    });
    match ran {
        Ok(()) => {}
        Err(TestError::Fail(why, bytes)) => panic!("{why}: {:#?}", host_actions(&bytes)),
        Err(error @ TestError::Abort(_)) => panic!("{error}"),
    }
    let Reached { kept_out, let_in } = all.get();
    assert!(
        kept_out >= REACHED_MIN && let_in >= REACHED_MIN,
        "{:?}",
        all.get()
    );
}
