//! A target in this process.

use std::net::SocketAddr;

use capstan_config::Config;
use capstan_storage::Gate;
use capstan_target::serve::Running;

/// The subsystem every test target offers.
pub const SUBNQN: &str = "nqn.2026-11.org.example:under-test";

/// A target that runs until it is stopped or dropped.
pub struct TestTarget {
    running: Option<Running>,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// Where it tells metrics.
    pub metrics: Option<SocketAddr>,
}

impl TestTarget {
    /// Starts a target with the tables of `toml`.
    ///
    /// # Panics
    /// When the configuration is refused or the target does not start.
    #[must_use]
    pub fn start(toml: &str) -> Self {
        Self::start_behind(toml, None)
    }

    /// The same with `gate` in front of its volumes.
    ///
    /// # Panics
    /// As [`TestTarget::start`].
    #[must_use]
    pub fn start_behind(toml: &str, gate: Option<&Gate>) -> Self {
        let config = Config::from_toml(toml).expect("the test's configuration is valid");
        let running = Running::start_behind(&config, gate).expect("the target starts");
        let addresses = running.addresses.clone();
        let metrics = running.metrics_address;
        Self {
            metrics,
            running: Some(running),
            addresses,
        }
    }

    /// One RAM namespace of 64 MiB on a free port of 127.0.0.1, for any host.
    #[must_use]
    pub fn ram(target_table: &str) -> Self {
        Self::ram_behind(target_table, None)
    }

    /// The same with `gate` in front of it.
    ///
    /// # Panics
    /// As [`TestTarget::start`].
    #[must_use]
    pub fn ram_behind(target_table: &str, gate: Option<&Gate>) -> Self {
        let toml = format!(
            "[target]\n{target_table}\n\
             [[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
             [[subsystem]]\nnqn = \"{SUBNQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nram = \"64MiB\"\nlba = 4096\n"
        );
        Self::start_behind(&toml, gate)
    }

    /// Drains it.
    ///
    /// # Panics
    /// When a reactor does not end as it should.
    pub fn stop(mut self) {
        self.running
            .take()
            .expect("running")
            .stop()
            .expect("the target drains");
    }
}

impl Drop for TestTarget {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            // A test that failed already must not be covered by another panic.
            let _ = running.stop();
        }
    }
}
