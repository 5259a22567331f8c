//! What is told of a configuration, however much is wrong with it and whatever is written in it: as
//! much as can be read, in characters that a terminal and a log can show.

use std::fmt::Display;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use capstan_nvme_proto::text::{Shown, Word};

/// Problems, or warnings, of one configuration that are told.
const SHOWN_MAX: usize = 32;
/// Characters of one of them: its beginning, and its end with what to do.
const BEGINNING_CHARS: usize = 600;
const END_CHARS: usize = 400;

/// The first of `all`, a line each, and how many more there are.
pub fn first_of<T: Display>(all: &[T]) -> Vec<String> {
    let mut lines: Vec<String> = all.iter().take(SHOWN_MAX).map(T::to_string).collect();
    if let Some(more) = all.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
        lines.push(format!(
            "and {more} more, which are told once these are mended"
        ));
    }
    lines
}

/// A path in a command that a message names.
#[must_use]
pub fn word_of(path: &Path) -> Word<'_> {
    Word::path(path.as_os_str().as_bytes())
}

/// `text` in one line.
pub(crate) fn line(text: &str) -> String {
    let shown = Shown(text).to_string();
    let chars = shown.chars().count();
    if chars <= BEGINNING_CHARS + END_CHARS {
        return shown;
    }
    let beginning = shown.chars().take(BEGINNING_CHARS);
    let end = shown.chars().skip(chars - END_CHARS);
    beginning.chain(['…']).chain(end).collect()
}

/// The lines of `text`, each by itself.
pub(crate) fn lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(line).collect();
    lines.join("\n")
}

/// Numbers in ascending order, with the first and last of those that follow each other: `0-3, 8`.
pub(crate) fn ranges(numbers: &[usize]) -> String {
    let follow = |a: &usize, b: &usize| a.checked_add(1) == Some(*b);
    let runs = numbers.chunk_by(follow).filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{first_of, line, lines, ranges};

    #[test]
    fn a_line_is_one_line_of_what_can_be_shown() {
        assert_eq!(
            line("/a\u{1b}[31m\u{202e}\nb\\x20'c'é"),
            "/a\\u{1b}[31m\\u{202e}\\nb\\x20'c'é"
        );
        assert_eq!(lines("a\n\u{7}b\n"), "a\n\\u{7}b\n");
        assert_eq!(line(&"a".repeat(1000)), "a".repeat(1000));
        let long = line(&format!("cannot open {}: why", "é/".repeat(50_000)));
        assert!(long.starts_with("cannot open é/") && long.ends_with("é/: why"));
        assert_eq!(long.chars().count(), 1001);
    }

    #[test]
    fn the_first_are_told_and_the_others_counted() {
        assert_eq!(first_of(&[1, 2]), ["1", "2"]);
        assert_eq!(first_of(&[7; 32]).len(), 32);
        let many = first_of(&[7; 40]);
        assert_eq!(many.len(), 33);
        assert_eq!(many[32], "and 8 more, which are told once these are mended");
    }

    #[test]
    fn numbers_that_follow_each_other_are_a_range() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(ranges(&[usize::MAX]), usize::MAX.to_string());
    }
}
