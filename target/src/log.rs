//! Where log lines go: to the journal with their fields when it owns stderr, to stderr otherwise.
//! Its reader may stand still ([`Behind`]).

use std::io::{self, IsTerminal};

use capstan_rdma::PEER_CAUSED;
use capstan_reactor::log::fields::SaidOnce;
use capstan_reactor::log::limit::Limit;
use capstan_reactor::log::{Behind, LastLines};
use std::sync::OnceLock;

use tracing::Dispatch;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{Handle, Layer};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, registry};

/// Changes the level of what is logged, in front of the thread that writes.
static LEVEL: OnceLock<Handle<LevelFilter, Registry>> = OnceLock::new();

/// Starts logging at `level` (`error`, `warn`, `info`, `debug` or `trace`). To be kept until the
/// last line.
///
/// # Errors
/// There is no thread to be had for it.
pub fn start(level: &str) -> io::Result<LastLines> {
    let filter: LevelFilter = level.parse().unwrap_or(LevelFilter::INFO);
    let limit = Limit::start(PEER_CAUSED)?;
    let (behind, last_lines) = Behind::start(writer())?;
    let (filter, level) = Layer::new(filter);
    // The first one stays, as the subscriber does.
    let _ = LEVEL.set(level);
    let started = registry().with(filter).with(limit).with(behind).try_init();
    // A test in the same process may have started logging before: its subscriber stays.
    drop(started);
    Ok(last_lines)
}

/// Logs at another level from now on.
pub fn set_level(level: &str) {
    let filter = level.parse().unwrap_or(LevelFilter::INFO);
    // Without a subscriber of ours, as in some tests, there is none to be changed.
    let _ = LEVEL.get().map(|handle| handle.reload(filter));
}

/// Everything that comes to it: what is logged is decided before.
fn writer() -> Dispatch {
    let registry = registry();
    // systemd sets JOURNAL_STREAM when stderr is the journal; structured fields survive only
    // through its native protocol.
    let journal = std::env::var_os("JOURNAL_STREAM").and_then(|_| tracing_journald::layer().ok());
    match journal {
        // `HOSTNQN=` and not `F_HOSTNQN=`: what an operator searches by.
        Some(journal) => registry.with(journal.with_field_prefix(None)).into(),
        None => {
            let stderr = tracing_subscriber::fmt::layer()
                .with_writer(io::stderr)
                .with_ansi(io::stderr().is_terminal())
                .with_target(false)
                .fmt_fields(SaidOnce)
                // Told on stderr, where that cannot be written: it would panic.
                .log_internal_errors(false);
            registry.with(stderr).into()
        }
    }
}
