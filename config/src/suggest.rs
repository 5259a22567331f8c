//! "Did you mean": the nearest of some words.

use crate::schema::TableKind;

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

/// What stands here for a word of exports(5), and for a table that is somewhere else.
pub(crate) fn of_exports_file(table: TableKind, key: &str) -> Option<&'static str> {
    let of_clients = matches!(table, TableKind::Export | TableKind::Client);
    Some(match key {
        "export" | "exports" if table == TableKind::Nfs => {
            "each directory is an [[export]], not below [nfs]"
        }
        _ if !of_clients => return None,
        "ro" => "write `access = \"read-only\"`, as it is without it",
        "rw" => "write `access = \"read-write\"`",
        "root_squash" => "write `squash = \"root\"`, as it is without it",
        "no_root_squash" => "write `squash = \"none\"`",
        "all_squash" => "write `squash = \"all\"`",
        "secure" => "write `secure_ports = true`",
        "insecure" => "write `secure_ports = false`, as it is without it",
        "sync" | "async" => "leave it out: what a client has made stable is on the disk, always",
        "sec" => "leave it out: users are those that clients say (sec=sys); there is no Kerberos",
        "subtree_check" | "no_subtree_check" => {
            "leave it out: clients get handles of what is exported alone, and cannot make others"
        }
        "mp" | "mountpoint" => "write `mount_point = true`",
        "nohide" => "write `crossmnt = true` at the export above it",
        "fsid" => {
            "the id of a file system is `file_system`, a UUID; the root of version 4 (fsid=0) is there by itself"
        }
        _ => return None,
    })
}

/// The only candidate that is `name` mistyped: the same but for case, or for one letter that is
/// missing, too many or has changed places with the next. A digit tells one of a row from the next,
/// as `disk1` and `disk2`, and so may a letter that is another one.
pub(crate) fn mistyped<'c>(
    name: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let plain: Vec<char> = name.to_lowercase().chars().collect();
    let mut alike = candidates.into_iter().filter(|candidate| {
        let other: Vec<char> = candidate.to_lowercase().chars().collect();
        plain == other || is_one_slip(&plain, &other)
    });
    let first = alike.next()?;
    alike.next().is_none().then_some(first)
}

fn is_one_slip(name: &[char], other: &[char]) -> bool {
    // Of a shorter one too little is the same.
    if name.len().min(other.len()) < START_BYTES_MIN {
        return false;
    }
    let same = name.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (name, other) = (&name[same..], &other[same..]);
    match (name, other) {
        ([a, b, after @ ..], [c, d, rest @ ..]) if name.len() == other.len() => {
            a.is_alphabetic() && b.is_alphabetic() && (a, b) == (d, c) && after == rest
        }
        ([more, after @ ..], rest) | (rest, [more, after @ ..]) if after.len() == rest.len() => {
            more.is_alphabetic() && after == rest
        }
        _ => false,
    }
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
    fn a_name_is_meant_only_where_it_is_plainly_mistyped() {
        let there = ["disk1.img", "Backup.img", "web.img", "vm-a.img", "vm-b.img"];
        for (name, meant) in [
            ("dsik1.img", Some("disk1.img")),
            ("disk1.im", Some("disk1.img")),
            ("diisk1.img", Some("disk1.img")),
            ("backup.img", Some("Backup.img")),
            ("wbe.img", Some("web.img")),
            ("disk2.img", None),
            ("disk.img", None),
            ("disk11.img", None),
            ("vm-c.img", None),
            ("vm-.img", None),
            ("disk1.img.old", None),
            ("sdb", None),
        ] {
            assert_eq!(mistyped(name, there), meant, "{name}");
        }
        assert_eq!(mistyped("sda", ["sad"]), None);
        assert_eq!(mistyped("1disk", ["disk1"]), None);
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
