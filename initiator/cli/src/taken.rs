//! Associations, and the transport that they take where nobody has named one.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result};
use capstan_initiator::{ConnectError, DirectQueue, Options, TakenTransport, Transport};

use super::output;

/// Connects.
pub(crate) fn connect(options: &Options) -> Result<DirectQueue> {
    reach(options).with_context(|| {
        format!(
            "connecting to {} at {} port {}",
            options.subnqn, options.traddr, options.trsvcid
        )
    })
}

/// Connects, and says over what where that was to be found.
pub(crate) fn reach(options: &Options) -> Result<DirectQueue, ConnectError> {
    let queue = DirectQueue::connect(options)?;
    if let Some(taken) = queue.taken() {
        say_taken(options, taken);
    }
    say_unidentified(&queue);
    Ok(queue)
}

/// Names the namespaces that the controller lists, and does not tell what they are: once, however
/// many associations a command has.
fn say_unidentified(queue: &DirectQueue) {
    static SAID: OnceLock<()> = OnceLock::new();
    if queue.unidentified().is_empty() || SAID.set(()).is_err() {
        return;
    }
    for unidentified in queue.unidentified() {
        tracing::warn!("{unidentified}; it is left out, see the target's log");
    }
}

/// Says on stderr what transport was taken, and why.
pub(crate) fn say_taken(options: &Options, taken: &TakenTransport) {
    // With -v the log has said it.
    if !tracing::enabled!(tracing::Level::INFO) {
        output::note_for_people(&taken.in_words(&options.traddr, options.trsvcid));
    }
}

/// The transport that several associations with one target have in common: the first of them finds
/// it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedTransport(Arc<Mutex<Option<TakenTransport>>>);

impl SharedTransport {
    /// Connects.
    pub(crate) fn connect(&self, options: &Options) -> Result<DirectQueue> {
        if options.transport != Transport::Auto {
            return connect(options);
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = known.clone() {
            drop(known);
            return connect(&taken.in_options(options.clone()));
        }
        let queue = connect(options)?;
        *known = queue.taken().cloned();
        Ok(queue)
    }
}
