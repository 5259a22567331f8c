//! "Did you mean": the nearest of some words.

/// The candidate that `word` is most likely a slip of, if any is near enough: at most a third of
/// its characters apart, ignoring case and `-` for `_`.
pub(crate) fn nearest<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    candidates
        .into_iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&word, &plain(candidate)),
                candidate,
            )
        })
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// For serde's "unknown field `a`, expected one of `b`, `c`" (or variant): the nearest of what it
/// expected.
pub(crate) fn nearest_in_message(message: &str) -> Option<&str> {
    if !message.starts_with("unknown field") && !message.starts_with("unknown variant") {
        return None;
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let word = quoted.next()?;
    // A long word is no slip of a key, and the distance costs its square.
    if word.len() > 64 {
        None
    } else {
        nearest(word, quoted)
    }
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
