//! The controller, driven by hosts, an operator and a driver that do anything in any order.

use capstan_subsystem::testing::{host_actions, run_host_actions};

/// A sequence of actions against a whole target: no panic, exactly one completion per command,
/// nothing executed outside its namespace, nothing left behind when everybody is gone.
pub fn controller_ops(data: &[u8]) {
    run_host_actions(&host_actions(data));
}
