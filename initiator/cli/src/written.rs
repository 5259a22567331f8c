//! How much of its input `capstan write` has written, for when it does not get to the end.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use capstan_initiator::internals::words::Count;
use capstan_initiator::names::Name;
use capstan_initiator::{DirectQueue, IoError};

/// What is known of it while I/Os are in progress, in bytes of the input.
#[derive(Debug)]
pub(super) struct Written {
    name: String,
    /// Each write is on stable media when it is answered.
    is_durable: bool,
    sent_bytes: AtomicU64,
    /// Answered well, all of them from the first one on.
    first_bytes: AtomicU64,
}

impl Written {
    pub(super) fn new(name: String, is_durable: bool) -> Self {
        Self {
            name,
            is_durable,
            sent_bytes: AtomicU64::new(0),
            first_bytes: AtomicU64::new(0),
        }
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, .. } = self;
        let [first, sent] =
            [&self.first_bytes, &self.sent_bytes].map(|bytes| bytes.load(Ordering::Relaxed));
        let behind = sent.saturating_sub(first);
        match (first, behind) {
            (0, 0) => return f.write_str("nothing was written"),
            (0, _) => {
                return write!(
                    f,
                    "of the first {} of {name} some may be written",
                    Count(behind, "byte")
                );
            }
            _ => write!(f, "the first {first} bytes of {name} are written")?,
        }
        match self.is_durable {
            true => f.write_str(" and durable")?,
            false => write!(f, ", and not flushed ({} makes them durable)", Name::Flush)?,
        }
        match behind {
            0 => Ok(()),
            _ => write!(f, "; of the {behind} bytes behind them some may be"),
        }
    }
}

/// The writes of which it is not known that they are done, by where their data begins in the input.
pub(super) struct Unanswered {
    places: BTreeSet<u64>,
    written: Arc<Written>,
}

impl Unanswered {
    pub(super) fn new(written: &Arc<Written>) -> Self {
        Self {
            places: BTreeSet::new(),
            written: Arc::clone(written),
        }
    }

    /// A write of these bytes, whose token is where they begin, is submitted.
    pub(super) fn add(&mut self, place: u64, bytes: u64) {
        self.places.insert(place);
        self.written
            .sent_bytes
            .store(place + bytes, Ordering::Relaxed);
    }

    /// Waits for one to end.
    ///
    /// # Errors
    /// It failed. What was asked for is bytes of an input, so that no LBA is named.
    pub(super) fn wait(&mut self, queue: &mut DirectQueue) -> Result<()> {
        match queue.wait(None) {
            Some(completion) => self.ended(completion.token, &completion.result),
            None => Ok(()),
        }
    }

    /// Waits for all of them, whatever becomes of them.
    pub(super) fn drain(&mut self, queue: &mut DirectQueue) {
        while let Some(completion) = queue.wait(None) {
            // The first one that failed is told.
            let _ = self.ended(completion.token, &completion.result);
        }
    }

    fn ended(&mut self, place: u64, result: &std::result::Result<(), IoError>) -> Result<()> {
        match result {
            Ok(_) => {
                self.places.remove(&place);
                let sent = self.written.sent_bytes.load(Ordering::Relaxed);
                let first = self.places.first().copied().unwrap_or(sent);
                self.written.first_bytes.store(first, Ordering::Relaxed);
                Ok(())
            }
            Err(IoError::Status {
                opcode,
                nsid,
                status,
                ..
            }) => Err(IoError::Status {
                opcode: *opcode,
                nsid: *nsid,
                slba: 0,
                nlb: 0,
                status: *status,
            }
            .into()),
            Err(error) => Err(error.clone().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Unanswered, Written};

    #[test]
    fn what_is_written_ends_at_the_first_hole() {
        let written = Arc::new(Written::new("FILE".to_owned(), false));
        assert_eq!(written.to_string(), "nothing was written");
        let mut unanswered = Unanswered::new(&written);
        for place in [0, 100, 200] {
            unanswered.add(place, 100);
        }
        unanswered.ended(100, &Ok(())).unwrap();
        assert_eq!(
            written.to_string(),
            "of the first 300 bytes of FILE some may be written"
        );
        unanswered.ended(0, &Ok(())).unwrap();
        assert_eq!(
            written.to_string(),
            "the first 200 bytes of FILE are written, and not flushed (Volume::flush makes them durable); of the 100 \
             bytes behind them some may be"
        );
        unanswered.ended(200, &Ok(())).unwrap();
        assert_eq!(
            written.to_string(),
            "the first 300 bytes of FILE are written, and not flushed (Volume::flush makes them durable)"
        );
    }
}
