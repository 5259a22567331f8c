//! Anything in any order: the fuzz target `controller_ops` with proptest's randomness.

use proptest::prelude::*;

use crate::testing::{host_actions, run_host_actions};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nothing_breaks_whatever_hosts_do(bytes in proptest::collection::vec(any::<u8>(), 0..20_000)) {
        run_host_actions(&host_actions(&bytes));
    }
}
