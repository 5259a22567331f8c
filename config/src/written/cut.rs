//! Takes tables out of a text, with their own comments: those that stand right above them. All
//! other bytes stay as they are.

use std::ops::Range;

use toml_edit::{Document, DocumentMut, Item, Table, Value};

/// `text` without what is at `place`: the n-th of a list of tables, and so on in there. `None`
/// where there is nothing. `document` is what the text says.
pub(super) fn without(
    text: &str,
    mut document: DocumentMut,
    place: &[(&str, usize)],
) -> Option<String> {
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

/// Takes out what is at `place` where it is written within brackets, `[{…}, {…}]`; `None` where
/// there is nothing.
fn is_inline(mut within: &mut Table, place: &[(&str, usize)]) -> Option<bool> {
    let ((last, at), above) = place.split_last()?;
    for (key, at) in above {
        match within.get_mut(key)? {
            Item::ArrayOfTables(all) => within = all.get_mut(*at)?,
            Item::Value(Value::Array(all)) => {
                let table = all.get_mut(*at)?.as_inline_table_mut()?;
                remove(table.get_mut(last)?.as_array_mut()?, *at);
                return Some(true);
            }
            _ => return None,
        }
    }
    match within.get_mut(last)? {
        Item::ArrayOfTables(_) => Some(false),
        Item::Value(Value::Array(all)) => {
            remove(all, *at);
            Some(true)
        }
        _ => None,
    }
}

fn remove(all: &mut toml_edit::Array, at: usize) {
    if at < all.len() {
        all.remove(at);
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

/// Where the comments begin that belong to the table whose header is at `start`.
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
