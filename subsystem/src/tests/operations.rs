//! Anything in any order: the fuzz target `controller_ops` with proptest's randomness.

use arbitrary::{Arbitrary, Unstructured};
use proptest::prelude::*;

use crate::testing::{HostAction, run_host_actions};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nothing_breaks_whatever_hosts_do(seed in proptest::collection::vec(any::<u8>(), 0..20_000)) {
        let mut seed = Unstructured::new(&seed);
        let mut actions = alloc::vec::Vec::new();
        while !seed.is_empty() && actions.len() < 300 {
            match HostAction::arbitrary(&mut seed) {
                Ok(action) => actions.push(action),
                Err(_) => break,
            }
        }
        run_host_actions(&actions);
    }
}
