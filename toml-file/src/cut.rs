//! Tables are taken out of a text with their own comments: those that stand right above them. All
//! other bytes stay as they are.

use std::ops::Range;

use toml_edit::{Document, DocumentMut, Item, Table, TableLike, Value};

/// `text` without what is at `place`: the n-th of a list of tables, and so on in there. `None`
/// where nothing is there, or the text is no TOML.
#[must_use]
pub fn without(text: &str, place: &[(&str, usize)]) -> Option<String> {
    let mut document: DocumentMut = text.parse().ok()?;
    if is_inline(document.as_table_mut(), place)? {
        return Some(document.to_string());
    }
    let parsed = Document::parse(text).ok()?;
    let mut goes = Vec::new();
    starts(table_at(parsed.as_table(), place)?, &mut goes);
    let mut all = Vec::new();
    starts(parsed.as_table(), &mut all);
    all.sort_unstable();
    let begins: Vec<_> = all
        .iter()
        .map(|start| with_comments(text, *start))
        .collect();
    let mut left = String::with_capacity(text.len());
    let mut kept = 0;
    for (at, start) in all
        .iter()
        .enumerate()
        .filter(|(_, start)| goes.contains(start))
    {
        let begin = begins.get(at).copied()?;
        let end = begins
            .get(at + 1)
            .copied()
            .unwrap_or_else(|| end(text, *start));
        left.push_str(text.get(kept..begin)?);
        kept = end;
    }
    left.push_str(text.get(kept..)?);
    Some(left)
}

/// Takes out what is at `place` where it is written within brackets, `[{…}, {…}]`: whether it is.
/// `None` where there is nothing.
fn is_inline(within: &mut dyn TableLike, place: &[(&str, usize)]) -> Option<bool> {
    let ((key, at), inner) = place.split_first()?;
    match (within.get_mut(key)?, inner) {
        (Item::ArrayOfTables(_), []) => Some(false),
        (Item::ArrayOfTables(all), inner) => is_inline(all.get_mut(*at)?, inner),
        (Item::Value(Value::Array(all)), []) => (*at < all.len()).then(|| {
            all.remove(*at);
            true
        }),
        (Item::Value(Value::Array(all)), inner) => {
            is_inline(all.get_mut(*at)?.as_inline_table_mut()?, inner)
        }
        _ => None,
    }
}

fn table_at<'t>(mut within: &'t Table, place: &[(&str, usize)]) -> Option<&'t Table> {
    for (key, at) in place {
        within = within.get(key)?.as_array_of_tables()?.get(*at)?;
    }
    Some(within)
}

/// Where the header of each table begins that is written as one, of `table` and all in it.
fn starts(table: &Table, found: &mut Vec<usize>) {
    let header = table
        .span()
        .filter(|_| !table.is_implicit() && !table.is_dotted());
    // The file itself has none.
    if let Some(Range { start, .. }) = header.filter(|_| table.position().is_some()) {
        found.push(start);
    }
    for (_, item) in table {
        match item {
            Item::Table(table) => starts(table, found),
            Item::ArrayOfTables(all) => all.iter().for_each(|table| starts(table, found)),
            Item::Value(_) | Item::None => {}
        }
    }
}

/// Where the comments begin that belong to the table with its header at `start`.
fn with_comments(text: &str, start: usize) -> usize {
    let mut begin = line_start(text, start);
    while begin > 0 {
        let above = line_start(text, begin - 1);
        let line = text.get(above..begin).unwrap_or_default();
        if !line.trim_start().starts_with('#') {
            break;
        }
        begin = above;
    }
    begin
}

fn line_start(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or_default();
    before.rfind('\n').map_or(0, |newline| newline + 1)
}

/// Where the last table of the file ends: before comments that a blank line parts from it.
fn end(text: &str, start: usize) -> usize {
    let mut at = start;
    let rest = text.get(start..).unwrap_or_default();
    let mut last = text.len();
    let mut blank = false;
    for line in rest.split_inclusive('\n') {
        let words = line.trim();
        if words.starts_with('#') && blank {
            last = last.min(at);
        } else if !words.is_empty() && !words.starts_with('#') {
            last = text.len();
        }
        blank = words.is_empty() || (blank && words.starts_with('#'));
        at += line.len();
    }
    last
}

#[cfg(test)]
mod tests {
    use super::without;

    const TWO: &str = "# Of all.\n\n# Of the first.\n[[volume]]\nname = \"a\"   # ours\n\n# Of the second.\n[[volume]]\n\
                       name = \"b\"\n\n# At the end.\n";

    #[test]
    fn what_is_parted_by_a_blank_line_stays() {
        let first = without(TWO, &[("volume", 0)]).unwrap();
        assert_eq!(
            first,
            "# Of all.\n\n# Of the second.\n[[volume]]\nname = \"b\"\n\n# At the end.\n"
        );
        let second = without(TWO, &[("volume", 1)]).unwrap();
        assert_eq!(
            second,
            "# Of all.\n\n# Of the first.\n[[volume]]\nname = \"a\"   # ours\n\n# At the end.\n"
        );
        let neither = without(&first, &[("volume", 0)]).unwrap();
        assert_eq!(neither, "# Of all.\n\n# At the end.\n");
    }

    #[test]
    fn what_is_written_within_brackets_is_taken_out_there() {
        let text = "a = [{ b = [{ n = 1 }, { n = 2 }] }, { b = [{ n = 3 }, { n = 4 }] }]\n";
        let second = without(text, &[("a", 1), ("b", 0)]).unwrap();
        assert!(
            !second.contains('3') && second.contains("n = 4"),
            "{second}"
        );
        let first = without(text, &[("a", 0), ("b", 1)]).unwrap();
        assert!(!first.contains('2') && first.contains("n = 1"), "{first}");
        let outer = without(text, &[("a", 0)]).unwrap();
        assert!(!outer.contains('1') && outer.contains("n = 3"), "{outer}");
        assert_eq!(without(text, &[("a", 0), ("b", 2)]), None);
    }

    #[test]
    fn what_is_not_there_is_not_taken_out() {
        assert_eq!(without(TWO, &[("volume", 2)]), None);
        assert_eq!(without(TWO, &[("other", 0)]), None);
        assert_eq!(without("a = ", &[("a", 0)]), None);
        assert_eq!(without("a = [{}]", &[("a", 1)]), None);
    }
}
