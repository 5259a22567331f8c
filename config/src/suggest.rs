//! "Did you mean": the nearest of some words.

/// Shorter words are the start of much.
const START_BYTES_MIN: usize = 4;

/// The candidate that `word` is most likely a slip of, if any is near enough: at most a third of
/// its characters apart, ignoring case and `-` for `_`, or the only one that it is the start of, or
/// that is its start.
pub(crate) fn nearest<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    // A long word is no slip of a key, and the distance costs its square.
    if word.len() > 64 {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let slip = candidates
        .iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&word, &plain(candidate)),
                candidate,
            )
        })
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| *candidate);
    let mut related = candidates.iter().filter(|candidate| {
        let candidate = plain(candidate);
        let (shorter, longer) = if word.len() < candidate.len() {
            (&word, &candidate)
        } else {
            (&candidate, &word)
        };
        shorter.len() >= START_BYTES_MIN && longer.starts_with(shorter.as_str())
    });
    slip.or_else(|| related.next().copied().filter(|_| related.next().is_none()))
}

/// For serde's "unknown field `a`, expected one of `b`, `c`" (or variant): the nearest of what it
/// expected.
pub(crate) fn nearest_in_message(message: &str) -> Option<&str> {
    if !message.starts_with("unknown field") && !message.starts_with("unknown variant") {
        return None;
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let word = quoted.next()?;
    nearest(word, quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognized_and_strangers_are_not() {
        let keys = ["listener", "subsystem", "target", "nqn", "lba"];
        assert_eq!(nearest("lisener", keys), Some("listener"));
        assert_eq!(nearest("Subsystems", keys), Some("subsystem"));
        assert_eq!(nearest("nqm", keys), Some("nqn"));
        assert_eq!(nearest("volume", keys), None);
        assert_eq!(nearest("read-only", ["read_only"]), Some("read_only"));
        assert_eq!(nearest("warning", ["warn", "info"]), Some("warn"));
        assert_eq!(nearest("hosts", ["hosts_max", "log"]), Some("hosts_max"));
        assert_eq!(nearest("hosts", ["hosts_max", "hosts_min"]), None);
        assert_eq!(nearest("io", ["io_queues_max"]), None);
    }

    #[test]
    fn serde_messages_are_understood() {
        let message = "unknown field `adress`, expected one of `address`, `port`, `provider`";
        assert_eq!(nearest_in_message(message), Some("address"));
        assert_eq!(
            nearest_in_message("unknown variant `verb`, expected `verbs` or `iwarp`"),
            Some("verbs")
        );
        assert_eq!(nearest_in_message("missing field `address`"), None);
        assert_eq!(
            nearest_in_message("unknown field `x`, there are no fields"),
            None
        );
    }
}
