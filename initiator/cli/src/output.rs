//! What is printed, and how errors are told.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use bytesize::ByteSize;
use capstan_doctor::Machine;
use capstan_doctor::room::{HOST_THREADS, no_thread};
use capstan_initiator::ConnectError;
use capstan_initiator::internals::shortage::shortage;
use capstan_nvme_proto::text::Shown;
use comfy_table::Table;
use indicatif::ProgressBar;
use nix::errno::Errno;
use nix::libc;
use serde_json::{Map, Value};

/// Writes a line to stdout, one that a terminal can show, whatever a target, a record or the name
/// of a folder has put in.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", Shown(text)).context("writing to stdout")
}

/// Writes a JSON value to stdout.
pub(crate) fn json(value: &Value) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{value:#}").context("writing to stdout")
}

/// The line of stderr that shows how a command goes, while there is one.
static PROGRESS: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Writes to stderr, with that line out of the way.
fn beside_progress<T>(write: impl FnOnce() -> T) -> T {
    let shown = PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
    match &*shown {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Shows a line of progress until it is dropped.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn show(bar: ProgressBar) -> Self {
        let mut shown = PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = Some(bar.clone());
        Self(bar)
    }

    pub(crate) fn bar(&self) -> &ProgressBar {
        &self.0
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut shown = PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = None;
        self.0.finish_and_clear();
    }
}

/// Stderr for lines of the log.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        beside_progress(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Tells an error and its causes on stderr, in one line.
pub(crate) fn error(error: &anyhow::Error) {
    // There is nowhere left to tell that stderr is gone.
    let _ = writeln!(io::stderr(), "capstan: {}", Shown(&chain(error)));
}

/// Tells something besides the output, on stderr.
pub(crate) fn note(text: &str) {
    // There is nowhere left to tell that stderr is gone.
    let _ = beside_progress(|| writeln!(io::stderr(), "{}", Shown(text)));
}

/// Whether stdout is for a program: set once, before a command runs.
static IS_FOR_PROGRAMS: AtomicBool = AtomicBool::new(false);

/// Has [`note_for_people`] say nothing.
pub(crate) fn is_for_programs() {
    IS_FOR_PROGRAMS.store(true, Ordering::Relaxed);
}

/// As [`note`], of what is of no use to a program that reads the output.
pub(crate) fn note_for_people(text: &str) {
    if !IS_FOR_PROGRAMS.load(Ordering::Relaxed) {
        note(text);
    }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // Errors that wrap another often quote it.
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    // Most messages that know of it say it themselves.
    let mut causes = error.chain();
    let shortage = causes.find_map(|cause| match cause.downcast_ref::<Errno>() {
        Some(errno) => shortage(&io::Error::from(*errno)),
        None => shortage(cause.downcast_ref::<io::Error>()?),
    });
    if let Some(shortage) = shortage
        && !["LimitNOFILE=", "fs.file-max", "df -i"]
            .iter()
            .any(|known| text.contains(known))
    {
        text.push_str("; ");
        text.push_str(&shortage);
    }
    // Of the library, which knows no limits of threads.
    let begins = text.contains("starting a thread: ");
    let of_library = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<io::Error>();
        let is_refused = io.is_some_and(|error| error.raw_os_error() == Some(libc::EAGAIN));
        let resource = cause.downcast_ref::<ConnectError>();
        let is_thread = matches!(
            resource,
            Some(ConnectError::Resources { what: "thread", .. })
        );
        is_thread || begins && is_refused
    };
    if error.chain().any(of_library) {
        text.push_str("; ");
        text.push_str(&no_thread(&Machine::here(), HOST_THREADS));
    }
    text
}

/// A thread or process that was to be started for `what`. Where it is refused, the error says
/// which limit is in the way.
pub(crate) fn started<T>(started: io::Result<T>, what: impl FnOnce() -> String) -> Result<T> {
    started.map_err(|error| match error.raw_os_error() {
        Some(libc::EAGAIN) => anyhow!(
            "{}: {error}; {}",
            what(),
            no_thread(&Machine::here(), HOST_THREADS)
        ),
        _ => anyhow::Error::from(error).context(what()),
    })
}

/// Prints a table without lines.
pub(crate) fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Result<()> {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(head);
    // A line break in a cell would begin a line of the table.
    let shown = |cells: Vec<String>| cells.into_iter().map(|cell| Shown(&cell).to_string());
    table.add_rows(rows.map(|cells| shown(cells).collect::<Vec<_>>()));
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", table.trim_fmt()).context("writing to stdout")
}

/// A size for people, in powers of 1024.
pub(crate) fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// Whether the reader of stdout has gone away, which is its right.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Named values in the order of the specification, printed as lines or as one JSON object, with
/// nvme-cli's names.
#[derive(Default)]
pub(crate) struct Fields(Vec<(&'static str, Value, String)>);

impl Fields {
    pub(crate) fn number(&mut self, name: &'static str, value: impl Into<u64>) {
        let value = value.into();
        self.0.push((name, value.into(), value.to_string()));
    }

    /// Flags: hexadecimal for people, a number for programs.
    pub(crate) fn flags(&mut self, name: &'static str, value: impl Into<u64>) {
        let value = value.into();
        self.0.push((name, value.into(), format!("{value:#x}")));
    }

    pub(crate) fn text(&mut self, name: &'static str, value: impl Into<String>) {
        let value = value.into();
        self.0.push((name, value.clone().into(), value));
    }

    /// A 128-bit number: a string for programs, whose numbers may have 53 bits.
    pub(crate) fn big(&mut self, name: &'static str, value: u128) {
        let json = u64::try_from(value).map_or_else(|_| value.to_string().into(), Value::from);
        self.0.push((name, json, value.to_string()));
    }

    pub(crate) fn value(&mut self, name: &'static str, json: Value, text: String) {
        self.0.push((name, json, text));
    }

    /// Names and values for people.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, _, text)| (*name, text.as_str()))
    }

    pub(crate) fn into_json(self) -> Value {
        let map: Map<String, Value> = self
            .0
            .into_iter()
            .map(|(name, json, _)| (name.to_owned(), json))
            .collect();
        Value::Object(map)
    }

    pub(crate) fn print(self, as_json: bool) -> Result<()> {
        if as_json {
            return json(&self.into_json());
        }
        let width = self.0.iter().map(|(name, ..)| name.len()).max();
        let width = width.unwrap_or(0);
        for (name, _, text) in &self.0 {
            line(&format!("{name:<width$} : {text}"))?;
        }
        Ok(())
    }
}

/// Prints data in lines of 16 bytes.
pub(crate) fn dump(data: &[u8]) -> Result<()> {
    for (at, row) in data.chunks(16).enumerate() {
        let bytes: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        line(&format!("{:04x}: {}", at * 16, bytes.join(" ")))?;
    }
    Ok(())
}
