//! The text of a configuration, and changes of it that leave all else as it is: comments, order and
//! blanks. What a change makes of the text is checked as a file is.

mod ana;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use crate::files::{self, WrittenFile};
use crate::listen::parse_address;
use crate::{Backing, Config, ConfigError, DEFAULT_PORT, Nqn, Size, Subsystem};

pub use ana::Through;

/// The texts of a configuration and the files that they are in: one at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    path: Option<PathBuf>,
    files: Vec<WrittenFile>,
}

/// Keys of a table that is to come, in their order.
pub type Entry = Vec<(&'static str, EntryValue)>;

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryValue {
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// A whole number.
    Number(u32),
    /// True or false.
    Bool(bool),
}

/// Why a text is not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// What is to be changed is not in the text.
    #[error(
        "{0} is in no file of the configuration; expected one that `capstan-target config show` shows"
    )]
    NotThere(String),
    /// The text has it already.
    #[error("{0} already; nothing is to be changed")]
    AlreadySo(String),
    /// It cannot be said in the text.
    #[error("{0}")]
    CannotBeSaid(String),
}

impl Written {
    /// Reads the file at `path`, and those in the folder beside it; `-` is stdin.
    ///
    /// # Errors
    /// As [`Config::from_file`], but for what the texts say.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Ok(Self {
            path: Some(path.to_owned()),
            files: files::read(path)?,
        })
    }

    /// A text that is in no file.
    #[must_use]
    pub fn of_text(text: String) -> Self {
        let files = vec![WrittenFile { path: None, text }];
        Self { path: None, files }
    }

    /// The file that was asked for.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// All files, in the order that they are read in.
    #[must_use]
    pub fn files(&self) -> &[WrittenFile] {
        &self.files
    }

    /// What they say.
    ///
    /// # Errors
    /// As [`Config::from_file`].
    pub fn config(&self) -> Result<Config, ConfigError> {
        Config::from_files(&self.files)
    }

    /// Adds a `[[subsystem]]`, behind the last one.
    ///
    /// # Errors
    /// The text is no TOML.
    pub fn add_subsystem(&mut self, entry: &Entry) -> Result<(), EditError> {
        self.edit(|document| push(document.as_table_mut(), "subsystem", entry))
    }

    /// Takes a `[[subsystem]]` out, with its namespaces.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove_subsystem(&mut self, nqn: &Nqn) -> Result<(), EditError> {
        let at = |document: &mut DocumentMut| Some(("subsystem", subsystem_at(document, nqn)?));
        self.remove(|document| at(document).ok_or_else(|| no_subsystem(nqn)))
    }

    /// Adds a `[[subsystem.namespace]]`, behind the last one of its subsystem.
    ///
    /// # Errors
    /// The subsystem is not there.
    pub fn add_namespace(&mut self, nqn: &Nqn, entry: &Entry) -> Result<(), EditError> {
        self.edit(|document| push(subsystem(document, nqn)?, "namespace", entry))
    }

    /// Takes the `[[subsystem.namespace]]` out that is served with this NSID, of a subsystem that
    /// is `served` so. Those in memory that have no NSID in the text are given theirs, as the
    /// lowest that is free would be another one.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove_namespace(&mut self, served: &Subsystem, nsid: u32) -> Result<(), EditError> {
        let nqn = &served.nqn;
        self.edit_text(|text| {
            let mut document = document(text)?;
            let subsystem_at = subsystem_at(&mut document, nqn).ok_or_else(|| no_subsystem(nqn))?;
            let places = places(subsystem(&mut document, nqn)?, served);
            let at = places.iter().position(|place| *place == Some(nsid));
            let at = at.ok_or_else(|| no_namespace(nqn, nsid))?;
            let all = tables(subsystem(&mut document, nqn)?, "namespace");
            for (table, place) in all.into_iter().zip(&places) {
                let is_open = !table.contains_key("nsid") && !table.contains_key("path");
                if let Some(other) = place.filter(|other| is_open && *other != nsid) {
                    set(table, "nsid", Some(&EntryValue::Number(other)));
                }
            }
            let place = [("subsystem", subsystem_at), ("namespace", at)];
            without(&document.to_string(), &place)
        })
    }

    /// Sets a key of a namespace, or takes it out where there is no value.
    ///
    /// # Errors
    /// The namespace is not there.
    pub fn set_namespace(
        &mut self,
        served: &Subsystem,
        nsid: u32,
        key: &str,
        value: Option<&EntryValue>,
    ) -> Result<(), EditError> {
        let nqn = &served.nqn;
        self.edit(|document| {
            let subsystem = subsystem(document, nqn)?;
            let places = places(subsystem, served);
            let at = places.iter().position(|place| *place == Some(nsid));
            let table = at.and_then(|at| tables(subsystem, "namespace").into_iter().nth(at));
            let table = table.ok_or_else(|| no_namespace(nqn, nsid))?;
            set(table, key, value);
            Ok(())
        })
    }

    /// Sets a key of `[target]`.
    ///
    /// # Errors
    /// The text is no TOML.
    pub fn set_target(&mut self, key: &str, value: &EntryValue) -> Result<(), EditError> {
        let set_in = |table: &mut Item| {
            let table = table.as_table_like_mut();
            let table = table.ok_or_else(|| not_there("[target]"))?;
            set(table, key, Some(value));
            Ok(())
        };
        let of_key = self.edit(|document| {
            let target = document.get_mut("target");
            let target = target.filter(|target| target.get(key).is_some());
            set_in(target.ok_or_else(|| not_there("[target]"))?)
        });
        if !matches!(of_key, Err(EditError::NotThere(_))) {
            return of_key;
        }
        self.edit(|document| {
            set_in(document.entry("target").or_insert_with(|| {
                let mut table = Table::new();
                // Before all that is there.
                table.set_position(Some(-1));
                Item::Table(table)
            }))
        })
    }

    /// Lets a host connect to a subsystem.
    ///
    /// # Errors
    /// The subsystem is not there, or lets it in already.
    pub fn allow_host(&mut self, nqn: &Nqn, host: &Nqn) -> Result<(), EditError> {
        self.edit(|document| {
            let subsystem = subsystem(document, nqn)?;
            if subsystem.get("allow_any_host").and_then(Item::as_bool) == Some(true) {
                return Err(EditError::AlreadySo(format!("{nqn} lets in any host")));
            }
            if !subsystem.contains_key("allowed_hosts") {
                set(
                    subsystem,
                    "allowed_hosts",
                    Some(&EntryValue::Texts(Vec::new())),
                );
            }
            let hosts = hosts(subsystem).ok_or_else(|| no_subsystem(nqn))?;
            if hosts.iter().any(|other| is_host(other, host)) {
                return Err(EditError::AlreadySo(format!("{nqn} lets in {host}")));
            }
            push_text(hosts, host.as_str());
            Ok(())
        })
    }

    /// Lets any host connect to a subsystem, or none until one is allowed.
    ///
    /// # Errors
    /// The subsystem is not there, or it is so already.
    pub fn allow_any_host(&mut self, nqn: &Nqn, allowed: bool) -> Result<(), EditError> {
        self.edit(|document| {
            let subsystem = subsystem(document, nqn)?;
            let is_so = subsystem.get("allow_any_host").and_then(Item::as_bool) == Some(true);
            let (now, before, value) = match allowed {
                true => ("allow_any_host", "allowed_hosts", EntryValue::Bool(true)),
                false => (
                    "allowed_hosts",
                    "allow_any_host",
                    EntryValue::Texts(Vec::new()),
                ),
            };
            if is_so == allowed {
                let words = match allowed {
                    true => format!("{nqn} lets in any host"),
                    false => format!("{nqn} lets in those hosts alone that are listed"),
                };
                return Err(EditError::AlreadySo(words));
            }
            // They contradict each other.
            subsystem.remove(before);
            set(subsystem, now, Some(&value));
            Ok(())
        })
    }

    /// Lets it no more.
    ///
    /// # Errors
    /// The subsystem is not there, does not list it, or lets in any host.
    pub fn deny_host(&mut self, nqn: &Nqn, host: &Nqn) -> Result<(), EditError> {
        self.edit(|document| {
            let subsystem = subsystem(document, nqn)?;
            if subsystem.get("allow_any_host").and_then(Item::as_bool) == Some(true) {
                return Err(EditError::CannotBeSaid(format!(
                    "{nqn} lets in any host (allow_any_host = true), and a single one cannot be kept out: `capstan-target \
                     host deny {nqn} --any`, and allow those that may connect"
                )));
            }
            let listed = hosts(subsystem);
            let at = listed.and_then(|hosts| {
                let at = hosts.iter().position(|other| is_host(other, host))?;
                hosts.remove(at);
                Some(())
            });
            at.ok_or_else(|| EditError::AlreadySo(format!("{nqn} does not let in {host}")))
        })
    }

    /// Adds a `[[listener]]`, behind the last one.
    ///
    /// # Errors
    /// The text is no TOML.
    pub fn add_listener(&mut self, entry: &Entry) -> Result<(), EditError> {
        self.edit(|document| push(document.as_table_mut(), "listener", entry))
    }

    /// Takes the `[[listener]]` at this address and port out, with what subsystems say of ANA
    /// groups by it.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove_listener(&mut self, address: SocketAddr) -> Result<(), EditError> {
        let is_it = |table: &dyn TableLike| listens_at(table) == Some(address);
        self.remove(|document| {
            let all = tables(document.as_table_mut(), "listener");
            let at = all.into_iter().position(|table| is_it(table));
            Ok((
                "listener",
                at.ok_or_else(|| not_there(format!("a [[listener]] at {address}")))?,
            ))
        })?;
        for file in &mut self.files {
            file.text = ana::without_listener(&file.text, address)?;
        }
        Ok(())
    }

    /// Adds an `[[export]]`, behind the last one.
    ///
    /// # Errors
    /// The text is no TOML.
    pub fn add_export(&mut self, entry: &Entry) -> Result<(), EditError> {
        self.edit(|document| push(document.as_table_mut(), "export", entry))
    }

    /// Takes the `[[export]]` with this path for clients out.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove_export(&mut self, pseudo: &str) -> Result<(), EditError> {
        let is_it = |table: &dyn TableLike| {
            let text = |key| table.get(key).and_then(Item::as_str);
            text("pseudo").or_else(|| text("path")) == Some(pseudo)
        };
        self.remove(|document| {
            let all = tables(document.as_table_mut(), "export");
            let at = all.into_iter().position(|table| is_it(table));
            Ok((
                "export",
                at.ok_or_else(|| not_there(format!("an [[export]] {pseudo}")))?,
            ))
        })
    }

    /// Changes the first file that has what is to be changed.
    fn edit(
        &mut self,
        change: impl Fn(&mut DocumentMut) -> Result<(), EditError>,
    ) -> Result<(), EditError> {
        self.edit_text(|text| {
            let mut document = document(text)?;
            change(&mut document)?;
            Ok(document.to_string())
        })
    }

    /// Takes out a table of a file that is one of a list.
    fn remove(
        &mut self,
        find: impl Fn(&mut DocumentMut) -> Result<(&'static str, usize), EditError>,
    ) -> Result<(), EditError> {
        self.edit_text(|text| without(text, &[find(&mut document(text)?)?]))
    }

    fn edit_text(
        &mut self,
        change: impl Fn(&str) -> Result<String, EditError>,
    ) -> Result<(), EditError> {
        let mut not_there = None;
        for file in &mut self.files {
            match change(&file.text) {
                Ok(text) => {
                    file.text = text;
                    return Ok(());
                }
                Err(EditError::NotThere(what)) => not_there = Some(what),
                Err(error) => return Err(error),
            }
        }
        Err(EditError::NotThere(not_there.unwrap_or_default()))
    }
}

fn document(text: &str) -> Result<DocumentMut, EditError> {
    // What is served was read from it.
    let parsed = text.parse::<DocumentMut>();
    parsed.map_err(|error| EditError::CannotBeSaid(error.to_string()))
}

/// Without what is at a place that is there.
fn without(text: &str, place: &[(&str, usize)]) -> Result<String, EditError> {
    capstan_toml_file::without(text, place).ok_or_else(|| not_there("what is to be taken out"))
}

fn not_there(what: impl Into<String>) -> EditError {
    EditError::NotThere(what.into())
}

fn no_subsystem(nqn: &Nqn) -> EditError {
    not_there(format!("subsystem {nqn}"))
}

fn no_namespace(nqn: &Nqn, nsid: u32) -> EditError {
    not_there(format!("namespace {nsid} of {nqn}"))
}

/// The tables of a list, however it is written.
fn tables<'t>(within: &'t mut dyn TableLike, key: &str) -> Vec<&'t mut dyn TableLike> {
    match within.get_mut(key) {
        Some(Item::ArrayOfTables(all)) => all.iter_mut().map(|table| table as _).collect(),
        Some(Item::Value(Value::Array(all))) => {
            let inline = all.iter_mut().filter_map(Value::as_inline_table_mut);
            inline.map(|table| table as _).collect()
        }
        _ => Vec::new(),
    }
}

/// Adds a table to such a list.
fn push(within: &mut dyn TableLike, key: &str, entry: &Entry) -> Result<(), EditError> {
    if let Some(Item::Value(Value::Array(all))) = within.get_mut(key) {
        let mut table = InlineTable::new();
        entry
            .iter()
            .for_each(|(key, value)| set(&mut table, key, Some(value)));
        all.push(Value::InlineTable(table));
        return Ok(());
    }
    if !within.contains_key(key) {
        within.insert(key, Item::ArrayOfTables(ArrayOfTables::new()));
    }
    let Some(Item::ArrayOfTables(all)) = within.get_mut(key) else {
        return Err(EditError::CannotBeSaid(format!(
            "{key} is no list of tables in the file"
        )));
    };
    let mut table = Table::new();
    // A blank line before it.
    table.decor_mut().set_prefix("\n");
    entry
        .iter()
        .for_each(|(key, value)| set(&mut table, key, Some(value)));
    all.push(table);
    Ok(())
}

fn set(table: &mut dyn TableLike, key: &str, value: Option<&EntryValue>) {
    let Some(value) = value else {
        table.remove(key);
        return;
    };
    let mut value = match value {
        EntryValue::Text(text) => Value::from(text.as_str()),
        EntryValue::Texts(texts) => Value::Array(texts.iter().map(String::as_str).collect()),
        EntryValue::Number(number) => Value::from(i64::from(*number)),
        EntryValue::Bool(is_so) => Value::from(*is_so),
    };
    match table.get_mut(key).and_then(Item::as_value_mut) {
        // What stands behind it in its line stays there.
        Some(old) => {
            *value.decor_mut() = old.decor().clone();
            *old = value;
        }
        None => {
            table.insert(key, Item::Value(value));
        }
    }
}

fn subsystem_at(document: &mut DocumentMut, nqn: &Nqn) -> Option<usize> {
    let is_it = |table: &dyn TableLike| {
        let text = table.get("nqn").and_then(Item::as_str);
        text.and_then(|text| Nqn::new(text).ok()).as_ref() == Some(nqn)
    };
    let all = tables(document.as_table_mut(), "subsystem");
    all.into_iter().position(|table| is_it(table))
}

fn subsystem<'d>(
    document: &'d mut DocumentMut,
    nqn: &Nqn,
) -> Result<&'d mut dyn TableLike, EditError> {
    let at = subsystem_at(document, nqn).ok_or_else(|| no_subsystem(nqn))?;
    let mut all = tables(document.as_table_mut(), "subsystem").into_iter();
    all.nth(at).ok_or_else(|| no_subsystem(nqn))
}

/// The NSID that each namespace of the text is served with, where it is: the one that is written
/// down, or that of a namespace which is on the same. Of several in memory of one size, the first
/// has the lowest.
fn places(text: &mut dyn TableLike, served: &Subsystem) -> Vec<Option<u32>> {
    let all = tables(text, "namespace");
    let written: Vec<_> = all.iter().map(|table| nsid_of(*table)).collect();
    let mut left: Vec<_> = served.configured().collect();
    left.retain(|namespace| !written.contains(&Some(namespace.nsid)));
    let each = all.into_iter().zip(&written).map(|(table, nsid)| {
        nsid.or_else(|| {
            let at = left
                .iter()
                .position(|namespace| is_on(table, &namespace.backing))?;
            Some(left.remove(at).nsid)
        })
    });
    each.collect()
}

fn nsid_of(table: &dyn TableLike) -> Option<u32> {
    let nsid = table.get("nsid").and_then(Item::as_integer)?;
    u32::try_from(nsid).ok()
}

fn is_on(table: &dyn TableLike, backing: &Backing) -> bool {
    let item = table.get(backing.kind());
    match backing {
        Backing::Path(path) => {
            let written = item.and_then(Item::as_str);
            written.is_some_and(|written| Path::new(written).components().eq(path.components()))
        }
        Backing::Ram { size_bytes } | Backing::Null { size_bytes } => {
            let size = match item.and_then(Item::as_str) {
                Some(text) => text.parse().ok(),
                None => {
                    let number = item.and_then(Item::as_integer);
                    number
                        .and_then(|number| u64::try_from(number).ok())
                        .map(Size)
                }
            };
            size == Some(Size(*size_bytes))
        }
    }
}

fn hosts(subsystem: &mut dyn TableLike) -> Option<&mut Array> {
    subsystem.get_mut("allowed_hosts")?.as_array_mut()
}

fn is_host(written: &Value, host: &Nqn) -> bool {
    let written = written.as_str().and_then(|text| Nqn::new(text).ok());
    written.is_some_and(|written| written.is_same(host))
}

/// Adds a text as the others of the list are: in a line of its own where they are.
fn push_text(all: &mut Array, text: &str) {
    let mut value = Value::from(text);
    let before = all.iter().last().and_then(|last| last.decor().prefix());
    match before
        .and_then(|prefix| prefix.as_str())
        .filter(|prefix| prefix.contains('\n'))
    {
        Some(prefix) => {
            let indented = prefix.rsplit('\n').next().unwrap_or_default();
            let prefix = format!("\n{indented}");
            value.decor_mut().set_prefix(prefix);
            all.push_formatted(value);
        }
        None => all.push(value),
    }
}

fn listens_at(table: &dyn TableLike) -> Option<SocketAddr> {
    let address = table.get("address")?.as_str()?;
    let port = match table.get("port") {
        Some(port) => port
            .as_integer()
            .and_then(|port| u16::try_from(port).ok())?,
        None => DEFAULT_PORT,
    };
    Some(SocketAddr::new(parse_address(address).ok()?, port))
}

#[cfg(test)]
mod tests;
