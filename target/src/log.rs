//! Where log lines go: to the journal with their fields when it owns stderr, to stderr otherwise.

mod limit;

use std::io::IsTerminal;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging at `level` (`error`, `warn`, `info`, `debug` or `trace`).
pub fn start(level: &str) {
    let filter: LevelFilter = level.parse().unwrap_or(LevelFilter::INFO);
    let limit = limit::Limit::start();
    let unlimited = limit.as_ref().err().map(ToString::to_string);
    let registry = tracing_subscriber::registry().with(filter).with(limit.ok());
    // systemd sets JOURNAL_STREAM when stderr is the journal; structured fields survive only
    // through its native protocol.
    let journal = std::env::var_os("JOURNAL_STREAM").and_then(|_| tracing_journald::layer().ok());
    let started = match journal {
        Some(journal) => registry.with(journal).try_init(),
        None => {
            let stderr = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false);
            registry.with(stderr).try_init()
        }
    };
    // A test in the same process may have started logging before: its subscriber stays.
    drop(started);
    if let Some(error) = unlimited {
        tracing::warn!("peers can fill the log: no thread counts what is left out ({error})");
    }
}
