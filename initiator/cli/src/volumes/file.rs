//! `/etc/capstan/volumes.toml`: the volumes of this machine that outlive a boot, read with all that
//! is wrong in it, by line. What changes it keeps comments and order.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use capstan_nvme_proto::text::Shown;
use clap::Arg;
use toml_edit::{Document, DocumentMut, Item, Table, Value, value};

use super::super::by_name::{VolumeOptions, is_flag, nearest};
use super::super::volume::VolumeArgs;
use super::parse_name;

/// The file.
const PATH: &str = "/etc/capstan/volumes.toml";
/// Names another one.
pub(in super::super) const VARIABLE: &str = "CAPSTAN_VOLUMES";
/// Longest file, in bytes: some thousand volumes.
const BYTES_MAX: u64 = 1 << 20;
/// More mistakes are not told: the next try does.
const TOLD_MAX: usize = 20;
/// The list of tables.
const LIST: &str = "volume";
/// The key of the name.
const NAME: &str = "name";
/// Keys that are called otherwise on the command line, as in the target's file.
const KEYS: [(&str, &str); 3] = [
    ("address", "traddr"),
    ("port", "trsvcid"),
    ("nsid", "namespace-id"),
];
/// Keys with numbers as values.
const NUMBERS: [&str; 9] = [
    "port",
    "nsid",
    "nr_io_queues",
    "queue_size",
    "keep_alive_tmo",
    "reconnect_delay",
    "ctrl_loss_tmo",
    "connect_timeout",
    "io_timeout",
];
/// What a new file begins with.
const HEAD: &str = "# Volumes of this machine that outlive a boot: capstan-volumes.toml(5).\n\
                    # `capstan connect-all` attaches them, `capstan attach --persist` adds one.\n\n";

/// The path of the file.
pub(in super::super) fn path() -> PathBuf {
    let other = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    other.map_or_else(|| PathBuf::from(PATH), PathBuf::from)
}

/// One volume.
#[derive(Clone, Debug)]
pub(in super::super) struct Entry {
    pub(in super::super) name: String,
    pub(in super::super) volume: VolumeArgs,
}

/// Something that is wrong.
#[derive(Debug, PartialEq, Eq)]
struct Mistake {
    line: usize,
    text: String,
}

/// The volumes of the file; none where there is no file.
///
/// # Errors
/// It cannot be read, others can write it, or something in it is wrong.
pub(in super::super) fn read() -> Result<Vec<Entry>> {
    let path = path();
    match text(&path)? {
        Some(text) => entries(&text).with_context(|| path.display().to_string()),
        None => Ok(Vec::new()),
    }
}

/// The text of the file, if there is one.
fn text(path: &Path) -> Result<Option<String>> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found.with_context(|| path.display().to_string())?,
    };
    let at = path.display();
    if !found.is_file() {
        bail!("{at} is no file, expected one with volumes: capstan-volumes.toml(5)");
    }
    // What it names is attached by root.
    if found.uid() != 0 && found.uid() != nix::unistd::geteuid().as_raw()
        || found.mode() & 0o022 != 0
    {
        bail!(
            "{at} is of user {} and of mode {:o}, expected one that this user or root alone can write: chown root {at}, \
             chmod 644 {at}",
            found.uid(),
            found.mode() & 0o7777
        );
    }
    if found.len() > BYTES_MAX {
        bail!(
            "{at} has {} bytes, expected at most {BYTES_MAX}",
            found.len()
        );
    }
    let text = fs::read_to_string(path).with_context(|| at.to_string())?;
    Ok(Some(text))
}

/// The volumes in `text`.
fn entries(text: &str) -> Result<Vec<Entry>> {
    let document =
        Document::parse(text).map_err(|error| anyhow!("{}", error.to_string().trim()))?;
    let mut reader = Reader {
        text,
        options: VolumeOptions::new(),
        entries: Vec::new(),
        mistakes: Vec::new(),
    };
    reader.root(document.as_table());
    reader.result()
}

struct Reader<'t> {
    text: &'t str,
    options: VolumeOptions,
    entries: Vec<(Entry, usize)>,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    fn result(mut self) -> Result<Vec<Entry>> {
        if self.mistakes.is_empty() {
            return Ok(self.entries.into_iter().map(|(entry, _)| entry).collect());
        }
        self.mistakes.sort_by_key(|mistake| mistake.line);
        let mut told = String::new();
        for Mistake { line, text } in self.mistakes.iter().take(TOLD_MAX) {
            let separator = if told.is_empty() { "" } else { "; " };
            let _ = write!(told, "{separator}line {line}: {}", Shown(text));
        }
        let more = self.mistakes.len().saturating_sub(TOLD_MAX);
        if more > 0 {
            let _ = write!(told, "; and {more} more");
        }
        Err(anyhow!(told))
    }

    fn line(&self, span: Option<Range<usize>>) -> usize {
        let start = span.map_or(0, |span| span.start);
        let before = self.text.get(..start).unwrap_or_default();
        before.matches('\n').count() + 1
    }

    fn mistake(&mut self, line: usize, text: String) {
        self.mistakes.push(Mistake { line, text });
    }

    fn root(&mut self, table: &Table) {
        for (key, item) in table {
            let span = table.key(key).and_then(toml_edit::Key::span);
            let line = self.line(span.or_else(|| item.span()));
            match item {
                Item::ArrayOfTables(list) if key == LIST => {
                    for (index, table) in list.iter().enumerate() {
                        self.volume(index, table);
                    }
                }
                _ if key == LIST => self.mistake(
                    line,
                    format!("{key}: there may be several, and each is a table; write [[{LIST}]], and its keys below"),
                ),
                _ => self.mistake(line, no_such_key(key, &[LIST])),
            }
        }
    }

    fn volume(&mut self, index: usize, table: &Table) {
        let line = self.line(table.span());
        let (mut words, mut name) = (Vec::new(), None);
        let before = self.mistakes.len();
        for (key, item) in table {
            let span = table.key(key).and_then(toml_edit::Key::span);
            let line = self.line(span.or_else(|| item.span()));
            let told = match self.key(key, item) {
                Ok(Found::Name(found)) => {
                    name = Some((found, line));
                    continue;
                }
                Ok(Found::Word(word)) => {
                    words.extend(word);
                    continue;
                }
                Err(told) => told,
            };
            self.mistake(line, format!("{LIST}[{index}].{told}"));
        }
        for (key, example) in [
            (
                NAME,
                "name = \"data\", by which commands, units and /dev/capstan/by-name have it",
            ),
            (
                "nqn",
                "nqn = \"nqn.2026-11.org.example:disk\"; `capstan discover -a ADDRESS` shows those of a target",
            ),
            ("address", "address = \"192.0.2.10\""),
        ] {
            if !table.contains_key(key) {
                self.mistake(
                    line,
                    format!("{LIST}[{index}].{key}: missing; write {example}"),
                );
            }
        }
        let Some((name, line)) = name.filter(|_| self.mistakes.len() == before) else {
            return;
        };
        if let Some((_, first)) = self.entries.iter().find(|(entry, _)| entry.name == name) {
            let text = format!(
                "{LIST}[{index}].{NAME}: {name:?} is already used at line {first}; give each volume a name of its own"
            );
            self.mistake(line, text);
            return;
        }
        match VolumeArgs::of_words(&words) {
            Ok(volume) => self.entries.push((Entry { name, volume }, line)),
            Err(why) => self.mistake(line, format!("{LIST}[{index}]: {why}")),
        }
    }

    /// What a key says.
    ///
    /// # Errors
    /// The key with what is wrong with it.
    fn key(&self, key: &str, item: &Item) -> Result<Found, String> {
        if key == NAME {
            let Some(name) = item.as_str() else {
                return Err(wrong(key, item, "expected a text in quotes"));
            };
            return match parse_name(name) {
                Ok(name) => Ok(Found::Name(name)),
                Err(expected) => Err(wrong(key, item, &expected)),
            };
        }
        let Some(arg) = option_of(&self.options, key) else {
            let keys = keys(&self.options);
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            return Err(no_such_key(key, &keys));
        };
        let text = match (item.as_value(), is_flag(arg)) {
            (Some(Value::Boolean(is_so)), true) => {
                let long = arg.get_long().unwrap_or_default();
                return Ok(Found::Word(is_so.value().then(|| format!("--{long}"))));
            }
            (_, true) => return Err(wrong(key, item, "expected true or false")),
            (Some(Value::Integer(number)), false) if NUMBERS.contains(&key) => {
                number.value().to_string()
            }
            (_, false) if NUMBERS.contains(&key) => {
                return Err(wrong(key, item, "expected a number, without quotes"));
            }
            (Some(Value::String(text)), false) => text.value().clone(),
            (_, false) => return Err(wrong(key, item, "expected a text in quotes")),
        };
        match self.options.word(arg, &text) {
            Ok(word) => Ok(Found::Word(Some(word))),
            Err(expected) => Err(wrong(key, item, &expected)),
        }
    }
}

/// What a key says.
enum Found {
    Name(String),
    Word(Option<String>),
}

fn wrong(key: &str, item: &Item, expected: &str) -> String {
    let written = item.to_string();
    format!("{key}: {} is not allowed; {expected}", written.trim())
}

fn no_such_key(key: &str, known: &[&str]) -> String {
    // Of the command line.
    let ours = KEYS.iter().find(|(_, long)| *long == key.replace('_', "-"));
    let meant = ours
        .map(|(ours, _)| *ours)
        .or_else(|| nearest(key, known.iter().copied()));
    match meant {
        Some(meant) => format!("{key}: there is no such key; did you mean `{meant}`?"),
        None => format!(
            "{key}: there is no such key; expected one of {}",
            known.join(", ")
        ),
    }
}

/// The option of the command line that a key stands for.
fn option_of<'o>(options: &'o VolumeOptions, key: &str) -> Option<&'o Arg> {
    let long = KEYS
        .iter()
        .find(|(ours, _)| *ours == key)
        .map(|(_, long)| *long);
    match long {
        Some(long) => options.find(long),
        None if key.contains('-') => None,
        None => options.find(key).filter(|arg| key_of(arg) == key),
    }
}

/// The key of an option.
fn key_of(arg: &Arg) -> String {
    let long = arg.get_long().unwrap_or_default();
    match KEYS.iter().find(|(_, other)| *other == long) {
        Some((ours, _)) => (*ours).to_owned(),
        None => long.replace('-', "_"),
    }
}

/// All keys of a volume.
pub(in super::super) fn keys(options: &VolumeOptions) -> Vec<String> {
    let of_options = options.all().map(key_of);
    std::iter::once(NAME.to_owned()).chain(of_options).collect()
}

/// Adds a volume to the file, which is made where it is missing; one of that name is replaced.
/// `words` are options of the command line with their values.
///
/// # Errors
/// The file cannot be read or written, or something in it is wrong.
pub(in super::super) fn add(name: &str, words: &[String]) -> Result<()> {
    let options = VolumeOptions::new();
    let mut table = Table::new();
    table.insert(NAME, value(name));
    for word in words {
        let word = word.strip_prefix("--").unwrap_or(word);
        let (long, text) = match word.split_once('=') {
            Some((long, text)) => (long, Some(text)),
            None => (word, None),
        };
        let arg = options
            .find(long)
            .with_context(|| format!("--{long} is no option of a volume"))?;
        let key = key_of(arg);
        let number = text.and_then(|text| text.parse::<i64>().ok());
        let item = match (text, number) {
            (None, _) => value(true),
            (Some(_), Some(number)) if NUMBERS.contains(&&*key) => value(number),
            (Some(text), _) => value(text),
        };
        table.insert(&key, item);
    }
    change(|text| {
        let mut document: DocumentMut = text.parse()?;
        let list = document.get_mut(LIST);
        let mut known = list.into_iter().filter_map(Item::as_array_of_tables_mut);
        let known = known.find_map(|list| list.iter_mut().find(|table| is_named(table, name)));
        if let Some(known) = known {
            *table.decor_mut() = known.decor().clone();
            table.set_position(known.position());
            *known = table;
            return Ok(Some(document.to_string()));
        }
        // Behind all that is there, comments as well.
        let mut alone = DocumentMut::new();
        alone.insert(LIST, Item::ArrayOfTables([table].into_iter().collect()));
        let distance = match text.ends_with("\n\n") || text.is_empty() {
            true => "",
            false if text.ends_with('\n') => "\n",
            false => "\n\n",
        };
        Ok(Some(format!("{text}{distance}{alone}")))
    })
    .map(drop)
}

/// Takes a volume out of the file, with the comments right above it: whether it was in there.
///
/// # Errors
/// As for [`add`].
pub(in super::super) fn remove(name: &str) -> Result<bool> {
    change(|text| Ok(without(text, name)))
}

fn without(text: &str, name: &str) -> Option<String> {
    let document: DocumentMut = text.parse().ok()?;
    let list = document.get(LIST).and_then(Item::as_array_of_tables)?;
    let at = list.iter().position(|table| is_named(table, name))?;
    capstan_toml_file::without(text, &[(LIST, at)])
}

fn is_named(table: &Table, name: &str) -> bool {
    table.get(NAME).and_then(Item::as_str) == Some(name)
}

/// Changes the text of the file as `change` says, which gives back the new one, if there is one:
/// whether there is.
fn change(change: impl FnOnce(&str) -> Result<Option<String>>) -> Result<bool> {
    let path = path();
    let text = text(&path)?.unwrap_or_else(|| HEAD.to_owned());
    entries(&text).with_context(|| path.display().to_string())?;
    let new = change(&text).with_context(|| path.display().to_string())?;
    let Some(new) = new else { return Ok(false) };
    // What cannot be read again is not written.
    entries(&new).with_context(|| path.display().to_string())?;
    let written = capstan_toml_file::replace(&path, &new);
    written.with_context(|| format!("writing {}", path.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "\
# Of the first rack.
[[volume]]
name = \"data\"   # ours
nqn = \"nqn.2026-11.org.example:disk\"
address = \"192.0.2.10\"
port = 4421
nsid = 2
transport = \"tcp\"
data_digest = true
ctrl_loss_tmo = -1

# Of the second.
[[volume]]
name = \"logs\"
nqn = \"nqn.2026-11.org.example:logs\"
address = \"2001:db8::1\"
read_only = true
";

    #[test]
    fn volumes_are_those_of_the_command_line() {
        let read = entries(TWO).unwrap();
        let names: Vec<_> = read.iter().map(|entry| &*entry.name).collect();
        assert_eq!(names, ["data", "logs"]);
        let [data, logs] = &read[..] else { panic!() };
        let connect = &data.volume.connect;
        assert_eq!((&*connect.traddr, connect.trsvcid), ("192.0.2.10", 4421));
        assert!(connect.data_digest && connect.ctrl_loss_tmo == -1);
        assert_eq!(data.volume.namespace_id, 2);
        assert!(logs.volume.read_only);
        assert!(entries("").unwrap().is_empty());
    }

    fn mistakes(text: &str) -> String {
        entries(text).unwrap_err().to_string()
    }

    #[test]
    fn all_that_is_wrong_is_told_by_line_with_what_is_right() {
        let text = "colour = 1\n[[volume]]\nname = \"a b\"\nnqn = 7\nprot = 1\nport = \"4420\"\naddress = \"::1\"\n\
                    nsid = 0\ndata_digest = 1\ntraddr = \"::1\"\ntransport = \"udp\"\n[[volume]]\nname = \"x\"\n";
        let told = mistakes(text);
        for expected in [
            "line 1: colour: there is no such key; expected one of volume",
            "line 3: volume[0].name: \"a b\" is not allowed; expected",
            "line 4: volume[0].nqn: 7 is not allowed; expected a text in quotes",
            "line 5: volume[0].prot: there is no such key; did you mean `port`?",
            "line 6: volume[0].port: \"4420\" is not allowed; expected a number, without quotes",
            "line 8: volume[0].nsid: 0 is not allowed; expected 1 to 4294967294",
            "line 9: volume[0].data_digest: 1 is not allowed; expected true or false",
            "line 10: volume[0].traddr: there is no such key; did you mean `address`?",
            "line 11: volume[0].transport: \"udp\" is not allowed; expected auto, rdma or tcp",
            "line 12: volume[1].nqn: missing; write nqn = ",
            "line 12: volume[1].address: missing; write address = ",
        ] {
            assert!(told.contains(expected), "{expected}\n{told}");
        }
        let twice = TWO.replace("logs\"\nnqn", "data\"\nnqn");
        let told = mistakes(&twice);
        assert!(
            told.contains("line 14: volume[1].name: \"data\" is already used at line 3"),
            "{told}"
        );
        let told = mistakes("[volume]\nname = \"x\"\n");
        assert!(
            told.contains("line 1: volume: there may be several"),
            "{told}"
        );
        // What contradicts itself does so as on the command line.
        let digest = TWO.replace("\"tcp\"", "\"rdma\"");
        let told = mistakes(&digest);
        assert!(
            told.contains("line 3: volume[0]: ") && told.contains("digest"),
            "{told}"
        );
        assert!(mistakes("[[volume]]\nname = data\n").contains("line 2"));
    }

    #[test]
    fn every_key_has_a_type_that_its_option_takes() {
        let options = VolumeOptions::new();
        for number in NUMBERS {
            let arg = option_of(&options, number).expect(number);
            assert!(!is_flag(arg), "{number}");
        }
        for key in keys(&options).iter().filter(|key| *key != NAME) {
            assert!(option_of(&options, key).is_some(), "{key}");
        }
        assert!(option_of(&options, "data-digest").is_none());
        assert!(option_of(&options, "traddr").is_none());
    }

    #[test]
    fn the_man_page_has_every_key() {
        let page = include_str!("../../man/capstan-volumes.toml.5");
        for key in keys(&VolumeOptions::new()) {
            let written = page.split([' ', '\n', ',']).any(|word| word == key);
            assert!(written, "{key}");
        }
    }

    #[test]
    fn comments_and_order_outlive_a_change() {
        let text = without(TWO, "logs").unwrap();
        assert!(TWO.starts_with(&text) && text.contains("# ours"), "{text}");
        assert_eq!(without(&text, "logs"), None);
        let second = without(&format!("# Of all.\n\n{TWO}"), "data").unwrap();
        assert!(
            second.starts_with("# Of all.\n\n# Of the second.\n[[volume]]"),
            "{second}"
        );
    }
}
