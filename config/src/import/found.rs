//! A document that is taken apart: each value once, by its place, with what is wrong with it. What
//! was not taken in the end is told as well, so that nothing gets lost in silence.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{Mistake, Note};

/// What is to be told of a document.
#[derive(Default)]
pub(super) struct Found {
    pub(super) mistakes: Vec<Mistake>,
    pub(super) notes: Vec<Note>,
    /// Of notes, the number by text and place without the numbers in it.
    kinds: HashMap<(String, String), usize>,
}

impl Found {
    pub(super) fn mistake(&mut self, at: &str, text: impl Into<String>) {
        let (at, text) = (at.to_owned(), text.into());
        self.mistakes.push(Mistake { at, text });
    }

    /// `value` is wrong at `at`.
    fn not(&mut self, at: &str, value: &Value, expected: &str) {
        self.mistake(at, format!("{}, expected {expected}", kind_of(value)));
    }

    /// What is at `at` is not in the configuration.
    pub(super) fn left_out(&mut self, at: &str, text: impl Into<String>) {
        self.note(true, at, text.into());
    }

    /// What is at `at` is not in the configuration, as all that is written in its like: it is told
    /// once, as `nvmetcli save` writes it of every port or subsystem.
    pub(super) fn left_out_everywhere(&mut self, at: &str, text: &str) {
        let kind = (text.to_owned(), without_numbers(at));
        let index = *self.kinds.entry(kind).or_insert(self.notes.len());
        match self.notes.get_mut(index) {
            Some(note) => note.more += 1,
            None => self.left_out(at, text),
        }
    }

    /// What is at `at` is otherwise in the configuration.
    pub(super) fn otherwise(&mut self, at: &str, text: impl Into<String>) {
        self.note(false, at, text.into());
    }

    fn note(&mut self, is_left_out: bool, at: &str, text: String) {
        self.notes.push(Note {
            is_left_out,
            at: at.to_owned(),
            more: 0,
            text,
        });
    }

    /// The members of the object at `at`; none where it is something else.
    pub(super) fn object(&mut self, at: String, value: Value) -> Option<Object> {
        match value {
            Value::Object(members) => Some(Object { at, members }),
            other => {
                self.not(&at, &other, "an object");
                None
            }
        }
    }
}

/// An object, and what was not taken of it yet.
pub(super) struct Object {
    /// Its place.
    pub(super) at: String,
    members: Map<String, Value>,
}

impl Object {
    /// The place of a member.
    pub(super) fn place(&self, key: &str) -> String {
        match self.at.as_str() {
            "" => key.to_owned(),
            at => format!("{at}.{key}"),
        }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.members.get(key).is_some_and(|value| !value.is_null())
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        self.members.remove(key).filter(|value| !value.is_null())
    }

    /// The entries of a list, with their places; none where there is no such list.
    pub(super) fn list(&mut self, key: &str, found: &mut Found) -> Vec<(String, Value)> {
        let at = self.place(key);
        match self.take(key) {
            None => Vec::new(),
            Some(Value::Array(entries)) => entries
                .into_iter()
                .enumerate()
                .map(|(index, value)| (format!("{at}[{index}]"), value))
                .collect(),
            Some(other) => {
                found.not(&at, &other, "a list");
                Vec::new()
            }
        }
    }

    /// An object in this one; an empty one where there is none.
    pub(super) fn object(&mut self, key: &str, found: &mut Found) -> Self {
        let at = self.place(key);
        let inner = self.take(key);
        let inner = inner.and_then(|value| found.object(at.clone(), value));
        inner.unwrap_or_else(|| Self {
            at,
            members: Map::new(),
        })
    }

    /// A text without blanks around it. The kernel's attributes are texts, also those that are
    /// numbers.
    pub(super) fn text(&mut self, key: &str, found: &mut Found) -> Option<String> {
        let at = self.place(key);
        match self.take(key)? {
            Value::String(text) => Some(text.trim().to_owned()),
            Value::Number(number) => Some(number.to_string()),
            other => {
                found.not(&at, &other, "a text");
                None
            }
        }
    }

    /// A text that has to be there.
    pub(super) fn required(&mut self, key: &str, found: &mut Found) -> Option<String> {
        let at = self.place(key);
        if !self.has(key) {
            found.mistake(&at, "it is missing, expected a text");
        }
        self.text(key, found)
    }

    pub(super) fn number(&mut self, key: &str, found: &mut Found) -> Option<u64> {
        let at = self.place(key);
        let text = self.text(key, found)?;
        let number = text.parse();
        number
            .map_err(|_| found.mistake(&at, format!("{text:?}, expected a whole number")))
            .ok()
    }

    /// `0`, `1`, and what stands for them.
    pub(super) fn flag(&mut self, key: &str, found: &mut Found) -> Option<bool> {
        let at = self.place(key);
        let value = self.take(key)?;
        let number = value.as_u64().map(|number| number.to_string());
        match (
            &value,
            number.as_deref().or_else(|| value.as_str().map(str::trim)),
        ) {
            (Value::Bool(flag), _) => Some(*flag),
            (_, Some("0")) => Some(false),
            (_, Some("1")) => Some(true),
            _ => {
                found.not(&at, &value, "0 or 1");
                None
            }
        }
    }

    /// Tells of what was not taken.
    pub(super) fn end(self, found: &mut Found) {
        for key in self.members.keys() {
            found.left_out(&self.place(key), "nothing is known of such a key");
        }
    }
}

/// A value as a mistake shows it.
fn kind_of(value: &Value) -> String {
    match value {
        Value::Null => "nothing".into(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("{text:?}"),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// `a[0].b[12]` as `a[].b[]`.
fn without_numbers(at: &str) -> String {
    let mut kind = String::with_capacity(at.len());
    let mut is_number = false;
    for c in at.chars() {
        is_number = match c {
            '[' => true,
            c if is_number && c.is_ascii_digit() => continue,
            _ => false,
        };
        kind.push(c);
    }
    kind
}
