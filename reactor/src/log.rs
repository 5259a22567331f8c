//! Log lines that hold up no reactor, even when nothing reads the log.
//!
//! A line is put into a queue, and a thread of its own writes it. When the queue is full, because
//! that thread cannot write, lines are left out and counted.

pub mod fields;
pub mod limit;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};
use tracing::field::{self, Field, Value, Visit};
use tracing::{Dispatch, Event, Metadata, Subscriber, dispatcher};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Most lines that wait to be written. Of 200 bytes as a rule; it is enough for a burst of 20 kinds
/// of line at ten a second each while the log's reader stands still for five seconds.
const LINES_MAX: usize = 1024;
/// Most fields of a line, its message among them. Lines have four at most.
const FIELDS_MAX: usize = 16;
/// How long the end of a program waits for its last lines to be read.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Passes lines on to the thread that writes them.
#[derive(Clone, Debug)]
pub struct Behind(Arc<Queue>);

/// When it is dropped, waits for the last lines, for a second at most.
#[derive(Debug)]
pub struct LastLines(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    /// Notified when there is a line, where there was none.
    filled: Condvar,
    /// Notified when every line is written.
    written: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Line>,
    left_out: u64,
    /// Whether the thread has a line that is not written.
    writing: bool,
}

/// A line as it was logged.
#[derive(Debug)]
struct Line {
    metadata: &'static Metadata<'static>,
    fields: Vec<(Field, FieldValue)>,
}

/// A value of a line.
#[derive(Debug)]
enum FieldValue {
    Text(String),
    /// The value's text, as its `Debug` or `Display` gives it.
    Shown(String),
}

impl Behind {
    /// Starts the thread that writes lines with `writer`, which has to have the same filter as the
    /// subscriber into which the returned layer is put.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(writer: impl Into<Dispatch>) -> io::Result<(Self, LastLines)> {
        let queue = Arc::new(Queue::default());
        let (writer, lines) = (writer.into(), Arc::clone(&queue));
        spawn_without_signals("log writer", move || lines.write_next(&writer))?;
        Ok((Self(Arc::clone(&queue)), LastLines(queue)))
    }
}

/// A thread that does `work` again and again. It takes no signal: programs block the signals they
/// wait for later than they begin to log.
fn spawn_without_signals(name: &str, mut work: impl FnMut() + Send + 'static) -> io::Result<()> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let started = thread::Builder::new().name(name.into()).spawn(move || {
        loop {
            work();
        }
    });
    before.thread_set_mask()?;
    started.map(drop)
}

impl<S: Subscriber> Layer<S> for Behind {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line {
            metadata: event.metadata(),
            fields: Vec::new(),
        };
        event.record(&mut line);
        self.0.put(line);
    }
}

impl LastLines {
    /// Waits until the lines so far are written, for a second at most.
    pub fn flush(&self) {
        let state = self.0.state();
        let left = |state: &mut State| !state.is_written();
        // After that time the log is not being read.
        let waited = self
            .0
            .written
            .wait_timeout_while(state, FLUSH_TIMEOUT, left);
        drop(waited);
    }
}

impl Drop for LastLines {
    fn drop(&mut self) {
        self.flush();
    }
}

impl State {
    fn is_written(&self) -> bool {
        self.lines.is_empty() && self.left_out == 0 && !self.writing
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is plain data, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: Line) {
        let mut state = self.state();
        if state.lines.len() >= LINES_MAX {
            state.left_out = state.left_out.saturating_add(1);
            return;
        }
        state.lines.push_back(line);
        drop(state);
        self.filled.notify_one();
    }

    /// Writes the next line, or how many were left out after the last one.
    fn write_next(&self, writer: &Dispatch) {
        let nothing = |state: &mut State| state.lines.is_empty() && state.left_out == 0;
        let waited = self.filled.wait_while(self.state(), nothing);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let line = state.lines.pop_front();
        let left_out = match line {
            Some(_) => 0,
            None => std::mem::take(&mut state.left_out),
        };
        state.writing = true;
        drop(state);
        if let Some(line) = line {
            line.write(writer);
        }
        if left_out > 0 {
            dispatcher::with_default(writer, || {
                tracing::warn!(
                    "{left_out} lines are left out here: nobody read the log while {LINES_MAX} waited to be \
                     written; see that what reads it goes on (a paused terminal, a pipe, journald)"
                );
            });
        }
        let mut state = self.state();
        state.writing = false;
        if state.is_written() {
            self.written.notify_all();
        }
    }
}

impl Line {
    fn write(&self, writer: &Dispatch) {
        let shown: Vec<_> = self.fields.iter().map(|(_, value)| value.shown()).collect();
        let Some((first, _)) = self.fields.first() else {
            return;
        };
        let mut values: [(&Field, Option<&dyn Value>); FIELDS_MAX] = [(first, None); FIELDS_MAX];
        let shown_fields = self.fields.iter().zip(&shown);
        for (to, ((field, text), shown)) in values.iter_mut().zip(shown_fields) {
            let value: &dyn Value = match (text, shown) {
                (FieldValue::Text(text), _) => text,
                (FieldValue::Shown(_), shown) => shown,
            };
            *to = (field, Some(value));
        }
        let values = self.metadata.fields().value_set(&values);
        writer.event(&Event::new(self.metadata, &values));
    }
}

impl FieldValue {
    fn shown(&self) -> field::DisplayValue<&str> {
        let (Self::Text(text) | Self::Shown(text)) = self;
        field::display(text.as_str())
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields
            .push((field.clone(), FieldValue::Text(value.to_owned())));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields
            .push((field.clone(), FieldValue::Shown(format!("{value:?}"))));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, PipeReader, Read};
    use std::sync::Mutex;
    use std::time::Instant;

    use nix::sys::signal::Signal;
    use tracing_subscriber::fmt::layer;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry;

    use super::*;

    /// A subscriber that logs into a pipe.
    fn piped() -> (impl Subscriber + Send + Sync, LastLines, PipeReader) {
        let (reader, pipe) = io::pipe().unwrap();
        let pipe = Mutex::new(pipe);
        let writer = layer().with_writer(pipe).with_ansi(false);
        let (behind, last) = Behind::start(registry().with(writer)).unwrap();
        (registry().with(behind), last, reader)
    }

    #[test]
    fn lines_arrive_as_they_were_told() {
        let (subscriber, last, mut reader) = piped();
        let word = "a word";
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(peer = %"10.0.0.5:1", qid = 7, word, gone = ?Some(1), "began {}", 1);
            tracing::error!("ended");
        });
        drop(last);
        let mut text = [0; 4096];
        let length = reader.read(&mut text).unwrap();
        let text = std::str::from_utf8(&text[..length]).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let [first, second] = lines[..] else {
            panic!("{text}");
        };
        let words = r#"began 1 peer=10.0.0.5:1 qid=7 word="a word" gone=Some(1)"#;
        assert!(
            first.contains(" INFO ") && first.ends_with(words),
            "{first}"
        );
        assert!(
            second.contains("ERROR") && second.ends_with("ended"),
            "{second}"
        );
    }

    #[test]
    fn a_reader_that_stands_still_holds_up_nobody_and_is_told_what_it_missed() {
        const LINES: u64 = 10_000;
        let (subscriber, last, reader) = piped();
        let start = Instant::now();
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..LINES {
                tracing::warn!(number, "{}", "x".repeat(200));
            }
        });
        drop(last);
        assert!(start.elapsed() < Duration::from_secs(10), "it waited");
        let (mut whole, mut left_out) = (0, 0);
        for line in BufReader::new(reader).lines() {
            let line = line.unwrap();
            if line.contains("xxx") {
                whole += 1;
            } else if let Some((_, words)) = line.split_once("WARN")
                && let Some((count, _)) = words.split_once(" lines are left out here")
            {
                let count = count.rsplit(' ').next().unwrap();
                left_out += count.parse::<u64>().unwrap();
            }
            if whole + left_out == LINES {
                return;
            }
        }
        panic!("{whole} lines, and {left_out} left out");
    }

    /// Programs wait for signals that they block after they have begun to log.
    #[test]
    fn signals_are_left_to_the_program() {
        let (subscriber, _last, mut reader) = piped();
        // The thread has its name once it has written.
        tracing::subscriber::with_default(subscriber, || tracing::info!("a line"));
        assert!(reader.read(&mut [0; 256]).unwrap() > 0);
        let mut threads = std::fs::read_dir("/proc/self/task").unwrap();
        let writer = threads.find_map(|thread| {
            let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            status.starts_with("Name:\tlog writer\n").then_some(status)
        });
        let writer = writer.expect("its thread");
        let blocked = writer
            .lines()
            .find_map(|line| line.strip_prefix("SigBlk:\t"));
        let blocked = u64::from_str_radix(blocked.unwrap(), 16).unwrap();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            assert!(
                blocked >> (signal as i32 - 1) & 1 == 1,
                "{signal} of {blocked:x}"
            );
        }
        assert!(!SigSet::thread_get_mask().unwrap().contains(Signal::SIGTERM));
    }

    #[test]
    fn the_end_waits_for_the_last_line() {
        let (subscriber, last, mut reader) = piped();
        // More than the pipe holds.
        let reading = thread::spawn(move || {
            let mut all = Vec::new();
            while !all.ends_with(b"the last\n") {
                let mut some = [0; 4096];
                let length = reader.read(&mut some).unwrap();
                all.extend_from_slice(&some[..length]);
            }
        });
        let queue = Arc::clone(&last.0);
        tracing::subscriber::with_default(subscriber, || {
            for _ in 1..LINES_MAX {
                tracing::info!("{}", "x".repeat(200));
            }
            tracing::info!("the last");
        });
        drop(last);
        assert!(queue.state().is_written());
        reading.join().unwrap();
    }
}
