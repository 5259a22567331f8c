//! From the text of a file to its values, past what is wrong: all mistakes of a file are told at
//! once, those of its keys and types among them.

use std::mem;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use crate::files::Texts;
use crate::schema::{RawConfig, TableKind};
use crate::{ConfigError, Problem, ProblemKind, suggest};

/// Values of the wrong type that are told at once: each costs another reading of the rest.
const WRONG_TYPES_MAX: usize = 32;
/// Characters of a key that are shown.
const KEY_CHARS_SHOWN: usize = 64;

/// What could be read of a file.
pub(crate) struct Read {
    /// `None` where nothing can be said about the rest.
    pub(crate) raw: Option<RawConfig>,
    /// Keys that are none, and values of the wrong type; they are not in `raw`.
    pub(crate) problems: Vec<Problem>,
}

/// Reads a text, or several as one.
///
/// # Errors
/// It is not TOML.
pub(crate) fn read(texts: &Texts) -> Result<Read, ConfigError> {
    let padded: Vec<_> = texts.padded().collect();
    let mut reader = Reader {
        texts,
        problems: Vec::new(),
    };
    let mut table = Spanned::new(0..0, DeTable::new());
    for text in &padded {
        let parsed = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            message: not_toml(text, &error),
        })?;
        reader.merge("", table.get_mut(), parsed.into_inner());
    }
    reader.keys("", TableKind::Root, table.get_mut());
    let raw = reader.values(table);
    Ok(Read {
        raw,
        problems: reader.problems,
    })
}

/// Whether a text is TOML at all.
///
/// # Errors
/// It is not.
pub(crate) fn check_syntax(text: &str) -> Result<(), ConfigError> {
    let parsed = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        message: not_toml(text, &error),
    });
    parsed.map(drop)
}

/// The parser's words, or ours where it cannot know what was meant.
fn not_toml(text: &str, error: &toml::de::Error) -> String {
    let words = error.to_string();
    let of_line = error.span().and_then(|span| {
        let before = text.get(..span.start)?;
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        Some((&text[..start], text[start..].lines().next()?))
    });
    let meant = of_line.and_then(|(above, line)| match error.message() {
        "duplicate key" => twice(above, line.trim()),
        _ => without_quotes(line),
    });
    match (meant, words.rfind(error.message())) {
        (Some(meant), Some(at)) => format!("{}{meant}\n", &words[..at]),
        _ => words,
    }
}

/// A table that comes after what belongs into it, or the second one where there may be several.
fn twice(above: &str, line: &str) -> Option<String> {
    let name = line.strip_prefix('[')?.split(']').next()?;
    let name = name.trim_start_matches('[').trim();
    if line.starts_with("[[export.clients]]") {
        let is_list = |line: &str| {
            let key = line.split_once('=').map(|(key, _)| key.trim());
            key == Some("clients")
        };
        if above.lines().any(is_list) {
            let example = "clients = [\"192.0.2.0/24\", { network = \"192.0.2.9\", access = \"read-write\" }]";
            return Some(format!(
                "clients above it is the same list; write all of them there, such as {example}, or each in an [[export.clients]]"
            ));
        }
    }
    if line.starts_with("[[") {
        let within = format!("[[{name}.");
        let mut lines = above.lines().map(str::trim);
        let inner = lines.find(|line| line.starts_with(&within))?;
        let inner = inner.split(']').next()?;
        return Some(format!(
            "{inner}]] stands above it; write it below the [[{name}]] that it belongs to"
        ));
    }
    let (_, _, is_list) = TableKind::Root.tables().iter().find(|of| of.0 == name)?;
    is_list.then(|| format!("there may be several; write [[{name}]] for each of them"))
}

/// Keys whose values are lists of texts.
const LISTS: [&str; 5] = [
    "addresses",
    "allowed_hosts",
    "clients",
    "listeners",
    "transports",
];

/// Text that is no value of TOML for want of quotes.
fn without_quotes(line: &str) -> Option<String> {
    let (key, value) = line.split_once('=')?;
    let value = value.split(" #").next()?.trim();
    let is_list = value.starts_with('[');
    let value = value.trim_matches(['[', ']', ' ']);
    // One of the two quotes is not enough.
    let value = match value.matches('"').count() {
        1 => value.trim_end_matches('"'),
        _ => value,
    };
    let key = key.trim();
    let is_list = is_list || LISTS.contains(&key);
    match &*value.to_lowercase() {
        "yes" | "on" | "true" => {
            return Some(format!("expected true or false; write {key} = true"));
        }
        "no" | "off" | "false" => {
            return Some(format!("expected true or false; write {key} = false"));
        }
        _ => {}
    }
    let is_text = value.starts_with(|first: char| first.is_alphanumeric() || "/.:".contains(first));
    let is_number = value
        .chars()
        .all(|c| !c.is_alphabetic() && !"/.:".contains(c));
    if !is_text || is_number || value.contains(['"', '\'', ',', '=']) {
        return None;
    }
    let quoted = match is_list {
        true => format!("[\"{value}\"]"),
        false => format!("\"{value}\""),
    };
    Some(format!("text stands in quotes; write {key} = {quoted}"))
}

struct Reader<'t> {
    texts: &'t Texts,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn report(&mut self, field: String, span: &Range<usize>, kind: ProblemKind) {
        let at = self.texts.at(field, Some(span.clone()));
        self.problems.push(Problem { at, kind });
    }

    /// Takes in what another file has: lists go on, and tables have keys of each. What both say is
    /// left as the first one says it.
    fn merge<'d>(&mut self, field: &str, into: &mut DeTable<'d>, other: DeTable<'d>) {
        for (key, value) in other {
            let field = within(field, key.get_ref());
            let name: &str = key.get_ref();
            let first = into.get_key_value(name).map(|(key, _)| key.span());
            let (Some(first), Some(known)) = (first, into.get_mut(name)) else {
                into.insert(key, value);
                continue;
            };
            let kind = match (known.get_mut(), value.into_inner()) {
                (DeValue::Array(all), DeValue::Array(more)) => {
                    more.into_iter().for_each(|entry| all.push(entry));
                    continue;
                }
                (DeValue::Table(table), DeValue::Table(more)) => {
                    self.merge(&field, table, more);
                    continue;
                }
                (DeValue::Array(_), other) => {
                    let step = match (name, other) {
                        ("subsystem", DeValue::Table(_)) => {
                            "write [[subsystem.namespace]] in the file of its [[subsystem]]"
                                .to_owned()
                        }
                        _ => format!("write [[{name}]] here"),
                    };
                    ProblemKind::WrongType(format!("is a list in another file; {step}"))
                }
                _ => ProblemKind::Duplicate {
                    value: name.to_owned(),
                    first: self.texts.at(field.as_str(), Some(first)),
                },
            };
            self.report(field, &key.span(), kind);
        }
    }

    /// Takes out the keys that a table of this kind does not have, and does the same in its tables.
    /// A slip is read as what it was meant to be, so that its value is looked at, too.
    fn keys(&mut self, field: &str, kind: TableKind, table: &mut DeTable<'_>) {
        let known = kind.keys();
        let unknown: Vec<String> = table
            .keys()
            .map(|key| key.get_ref().to_string())
            .filter(|key| !known.contains(&key.as_str()))
            .collect();
        for key in unknown {
            let Some((written, value)) = table.remove_entry(key.as_str()) else {
                continue;
            };
            if let Some(words) = suggest::of_exports_file(kind, &key) {
                let kind = ProblemKind::NoKeyBut(words);
                self.report(within(field, &key), &written.span(), kind);
                continue;
            }
            let nearest = suggest::nearest(&key, known.iter().copied());
            let kind = ProblemKind::UnknownKey {
                nearest,
                known: known.join(", "),
            };
            self.report(within(field, &key), &written.span(), kind);
            if let Some(nearest) = nearest.filter(|nearest| !table.contains_key(*nearest)) {
                table.insert(Spanned::new(written.span(), nearest.into()), value);
            }
        }
        for (key, inner, is_list) in kind.tables() {
            if let Some(value) = table.get_mut(*key) {
                self.tables(&within(field, key), *inner, *is_list, value);
            }
        }
    }

    /// The table at `field`, or the list of tables.
    fn tables(
        &mut self,
        field: &str,
        kind: TableKind,
        is_list: bool,
        value: &mut Spanned<DeValue<'_>>,
    ) {
        let span = value.span();
        if kind == TableKind::Client {
            self.clients(field, value);
        }
        match (value.get_mut(), is_list) {
            (DeValue::Table(table), false) => self.keys(field, kind, table),
            (DeValue::Array(entries), true) => {
                for (index, entry) in entries.iter_mut().enumerate() {
                    let field = format!("{field}[{index}]");
                    let span = entry.span();
                    if let DeValue::Table(table) = entry.get_mut() {
                        self.keys(&field, kind, table);
                    } else {
                        self.report(field, &span, ProblemKind::NotATable { name: kind.name() });
                        *entry = Spanned::new(span, DeValue::Table(DeTable::default()));
                    }
                }
            }
            (DeValue::Table(table), true) => {
                let name = kind.name();
                self.report(field.to_owned(), &span, ProblemKind::OneOfAList { name });
                self.keys(&format!("{field}[0]"), kind, table);
                let table = mem::take(table);
                let one = Spanned::new(span.clone(), DeValue::Table(table));
                *value = Spanned::new(span, DeValue::Array([one].into_iter().collect()));
            }
            (_, _) => {
                let kind = if is_list {
                    ProblemKind::OneOfAList { name: kind.name() }
                } else {
                    ProblemKind::NotAList { name: kind.name() }
                };
                self.report(field.to_owned(), &span, kind);
                let nothing = if is_list {
                    DeValue::Array(toml::de::DeArray::default())
                } else {
                    DeValue::Table(DeTable::default())
                };
                *value = Spanned::new(span, nothing);
            }
        }
    }

    /// A text in the list of clients is the network of one that says nothing else.
    fn clients(&mut self, field: &str, value: &mut Spanned<DeValue<'_>>) {
        let span = value.span();
        if value.get_ref().is_str() {
            let text = self.texts.get(span.clone()).unwrap_or_default();
            let words = format!("is a list; write clients = [{text}]");
            self.report(field.to_owned(), &span, ProblemKind::WrongType(words));
            let one = mem::replace(value.get_mut(), DeValue::Boolean(false));
            let one = Spanned::new(span, one);
            *value.get_mut() = DeValue::Array([one].into_iter().collect());
        }
        let DeValue::Array(entries) = value.get_mut() else {
            return;
        };
        for entry in entries.iter_mut().filter(|entry| entry.get_ref().is_str()) {
            let span = entry.span();
            let network = mem::replace(entry.get_mut(), DeValue::Boolean(false));
            let mut client = DeTable::default();
            let key = Spanned::new(span.clone(), "network".into());
            client.insert(key, Spanned::new(span, network));
            *entry.get_mut() = DeValue::Table(client);
        }
    }

    /// The values of `table`, without those of the wrong type.
    fn values(&mut self, mut table: Spanned<DeTable<'_>>) -> Option<RawConfig> {
        for _ in 0..WRONG_TYPES_MAX {
            let error = match RawConfig::deserialize(Deserializer::from(table.clone())) {
                Ok(raw) => return Some(raw),
                Err(error) => error,
            };
            let span = error.span().unwrap_or_default();
            let taken_out = take_out(table.get_mut(), "", &span);
            let mut words = in_our_words(error.message());
            let key = (taken_out.as_deref()).and_then(|field| field.rsplit('.').next());
            if let Some(key @ ("transports" | "allowed_hosts" | "addresses" | "listeners")) = key
                && error.message().starts_with("invalid type: string")
                && let Some(text) = self.texts.get(span.clone())
            {
                words = format!("is a list; write {key} = [{text}]");
            }
            if key == Some("squash") && words.starts_with("wanted") {
                words = "is a word; write `squash = \"root\"` (as it is without it), `squash = \"all\"` or \
                         `squash = \"none\"`"
                    .to_owned();
            }
            let example = match taken_out.as_deref() {
                Some("target.spin") => Some("50us"),
                Some("nfs.lease_time" | "nfs.grace_time") => Some("90s"),
                _ => None,
            };
            if let Some(example) = example.filter(|_| words.ends_with("a string")) {
                words.push_str(&format!(" with a unit, such as \"{example}\""));
            }
            let kind = ProblemKind::WrongType(words);
            let is_known = taken_out.is_some();
            self.report(taken_out.unwrap_or_default(), &span, kind);
            if !is_known {
                break;
            }
        }
        None
    }
}

/// Takes out the innermost value that has all of `span`: its field.
fn take_out(table: &mut DeTable<'_>, field: &str, span: &Range<usize>) -> Option<String> {
    let mut found = None;
    for (key, value) in table.iter_mut() {
        let field = within(field, key.get_ref());
        match take_out_of(value, &field, span) {
            Some(TakenOut::Inside(field)) => return Some(field),
            Some(TakenOut::Itself) => found = Some((key.get_ref().to_string(), field)),
            None => {}
        }
    }
    let (key, field) = found?;
    table.remove(key.as_str());
    Some(field)
}

enum TakenOut {
    /// What has it is in there, and is out now.
    Inside(String),
    /// It is the value that has it.
    Itself,
}

fn take_out_of(
    value: &mut Spanned<DeValue<'_>>,
    field: &str,
    span: &Range<usize>,
) -> Option<TakenOut> {
    let own = value.span();
    match value.get_mut() {
        DeValue::Table(table) => {
            if let Some(field) = take_out(table, field, span) {
                return Some(TakenOut::Inside(field));
            }
        }
        DeValue::Array(entries) => {
            let mut without = None;
            for (index, entry) in entries.iter_mut().enumerate() {
                let is_table = entry.get_ref().is_table();
                let inner = if is_table {
                    format!("{field}[{index}]")
                } else {
                    field.to_owned()
                };
                match take_out_of(entry, &inner, span) {
                    Some(TakenOut::Itself) if !is_table => without = Some(index),
                    Some(TakenOut::Inside(field)) => return Some(TakenOut::Inside(field)),
                    Some(TakenOut::Itself) | None => {}
                }
            }
            if let Some(without) = without {
                let all = mem::replace(entries, [].into_iter().collect())
                    .into_iter()
                    .enumerate();
                let others = all.filter(|(index, _)| *index != without);
                *entries = others.map(|(_, entry)| entry).collect();
                return Some(TakenOut::Inside(field.to_owned()));
            }
        }
        _ => {}
    }
    (own.start <= span.start && span.end <= own.end).then_some(TakenOut::Itself)
}

/// A key of the table at `field`.
fn within(field: &str, key: &str) -> String {
    let more = if key.chars().nth(KEY_CHARS_SHOWN).is_some() {
        "…"
    } else {
        ""
    };
    let key: String = key.chars().take(KEY_CHARS_SHOWN).collect();
    let key = key.escape_debug();
    if field.is_empty() {
        format!("{key}{more}")
    } else {
        format!("{field}.{key}{more}")
    }
}

/// The parser's words, with TOML's names for types, and the nearest of the words that are allowed.
fn in_our_words(message: &str) -> String {
    let words = message
        .replace("unknown variant", "unknown word")
        .replace("invalid type: map", "invalid type: a table")
        .replace("invalid type: sequence", "invalid type: an array")
        .replace("expected a sequence", "expected an array")
        .replace("expected u64", "expected a whole number from 0 on");
    // The words of `provider`, and the one that belongs to `transports`.
    let is_tcp = message.starts_with("unknown variant") && message.contains("tcp\u{60}, expected");
    if is_tcp && message.contains("iwarp") {
        return format!(
            "{words}: these are for RDMA; NVMe/TCP is served beside it, and alone with `transports = [\"tcp\"]`"
        );
    }
    match suggest::nearest_in_message(message) {
        Some(nearest) => format!("{words}; did you mean `{nearest}`?"),
        None => words,
    }
}
