//! Data that was corrupted on the way: mostly the command is sent again and nobody has an error, so
//! that the log alone tells of it.

use crate::limits::TROUBLE_QUIET_US;
use crate::names::Name;

/// Commands whose data did not arrive as it was sent.
#[derive(Debug, Default)]
pub(super) struct Corruption {
    unsaid: u64,
    said_us: Option<u64>,
}

impl Corruption {
    /// A command of queue `qid` is one of them: this host has seen it, or the controller says so.
    pub(super) fn note(&mut self, is_seen_here: bool, qid: u16, now_us: u64) {
        if let Some(line) = self.line(is_seen_here, qid, now_us) {
            tracing::warn!("{line}");
        }
    }

    /// What to say of it, where the last line is some time ago.
    fn line(&mut self, is_seen_here: bool, qid: u16, now_us: u64) -> Option<String> {
        self.unsaid += 1;
        let rests = |said_us: u64| now_us.saturating_sub(said_us) < TROUBLE_QUIET_US;
        if self.said_us.is_some_and(rests) {
            return None;
        }
        self.said_us = Some(now_us);
        let before = match std::mem::take(&mut self.unsaid) {
            1 => String::new(),
            commands => format!(", the last of {commands} since the line before"),
        };
        Some(match is_seen_here {
            true => format!(
                "queue {qid}: the CRC32C of the data from the controller did not match: it was corrupted on the way{before}; \
                 I/O is tried again. Look at the network devices between this host and the target"
            ),
            false => format!(
                "queue {qid}: the controller says that data did not arrive as it was sent (Transient Transport Error{before}); \
                 I/O is tried again. With {} its CRC32C did not match: look at the network devices between this \
                 host and the target",
                Name::DataDigest
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Corruption;
    use crate::limits::TROUBLE_QUIET_US;

    #[test]
    fn corruption_is_said_now_and_then_with_how_often() {
        let mut corruption = Corruption::default();
        let first = corruption.line(true, 1, 5).unwrap();
        assert!(
            first.contains("the CRC32C of the data from the controller did not match"),
            "{first}"
        );
        assert_eq!(corruption.line(false, 1, 6), None);
        let next = corruption.line(false, 1, 5 + TROUBLE_QUIET_US).unwrap();
        assert!(
            next.contains("the last of 2 since the line before"),
            "{next}"
        );
    }
}
