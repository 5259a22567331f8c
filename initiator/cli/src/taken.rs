//! Associations, and the transport that they take where nobody has named one.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result};
use capstan_initiator::internals::words::Count;
use capstan_initiator::{
    ConnectError, DirectQueue, Options, TakenTransport, Transport, Unidentified,
};

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

/// Namespaces without an answer that are told one by one: a target may list thousands.
const UNIDENTIFIED_TOLD_MAX: usize = 10;

/// Those that are told, and of the others how many there are, in words.
pub(crate) fn told_unidentified(all: &[Unidentified]) -> (&[Unidentified], Option<String>) {
    let Some((told, others)) = all.split_at_checked(UNIDENTIFIED_TOLD_MAX) else {
        return (all, None);
    };
    let (first, last) = (others.first(), others.last());
    let more = first.zip(last).map(|(first, last)| {
        let count = Count(
            others.len().try_into().unwrap_or(u64::MAX),
            "more namespace",
        );
        let (first, last) = (first.nsid, last.nsid);
        format!("so it is with {count}, {first} to {last}")
    });
    (told, more)
}

/// Names the namespaces that the controller lists, and does not tell what they are: once, however
/// many associations a command has.
fn say_unidentified(queue: &DirectQueue) {
    static SAID: OnceLock<()> = OnceLock::new();
    if queue.unidentified().is_empty() || SAID.set(()).is_err() {
        return;
    }
    let (told, more) = told_unidentified(queue.unidentified());
    for unidentified in told {
        tracing::warn!("{unidentified}; it is left out, see the target's log");
    }
    if let Some(more) = more {
        tracing::warn!("{more}");
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

#[cfg(test)]
mod tests {
    use capstan_initiator::Unidentified;
    use capstan_nvme_proto::status::Status;

    use super::told_unidentified;

    #[test]
    fn of_a_thousand_namespaces_without_an_answer_few_are_told_one_by_one() {
        let status = Status::INTERNAL_ERROR;
        let all: Vec<_> = (1..=1024)
            .map(|nsid| Unidentified { nsid, status })
            .collect();
        let (told, more) = told_unidentified(&all);
        assert_eq!(told.last().map(|last| last.nsid), Some(10));
        let more = more.expect("there are more");
        assert_eq!(more, "so it is with 1014 more namespaces, 11 to 1024");
        for few in [0, 1, 10] {
            let (told, more) = told_unidentified(&all[..few]);
            assert_eq!((told.len(), more), (few, None));
        }
    }
}
