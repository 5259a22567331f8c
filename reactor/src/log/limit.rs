//! Lines that peers cause are as many as peers like. So many of each kind are written in a second;
//! then one line says how many more there were. A line that is equal to one before says nothing
//! new: it is counted, and the count is written a second later, then after two, four and more
//! seconds, once a minute at last; from the first on once a minute, where the place in the program
//! says so (its target ends with [`REPEATS`]).

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Write as _};
use std::hash::Hash;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::spawn_without_signals;

/// Lines of one kind that peers can cause in a [`WINDOW`]: a person reads no more, and a thousand
/// kinds of 200 bytes would be 2 MB a second, of which there are some twenty.
const LINES_OF_A_KIND: u32 = 10;
/// For so long lines are counted; then one says how many were left out.
const WINDOW: Duration = Duration::from_secs(1);
/// Lines of a kind that are known when they come again.
const REPEATS_KEPT: usize = 16;
/// How often a line that comes again and again is written at last.
const REPEATS_EVERY: Duration = Duration::from_secs(60);

/// What the target of lines ends with that are written once a minute when they come again.
pub const REPEATS: &str = "::repeats";

/// Leaves out lines beyond the limit. A kind is a place in the program.
#[derive(Debug)]
pub struct Limit {
    /// The target of those lines, as tracing calls it.
    caused: &'static str,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    kinds: Mutex<Kinds<Identifier>>,
    /// Told when the first line has been left out.
    left_out: Condvar,
}

impl Limit {
    /// Of lines whose target is `caused`. Starts the thread that says how many were left out, which
    /// sleeps until there are some.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(caused: &'static str) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let told = Arc::clone(&shared);
        spawn_without_signals("log", move || told.say_what_was_left_out())?;
        Ok(Self { caused, shared })
    }
}

impl Shared {
    fn kinds(&self) -> MutexGuard<'_, Kinds<Identifier>> {
        // Numbers and words: a panic elsewhere does not spoil them.
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say_what_was_left_out(&self) {
        let kinds = self.kinds();
        let nothing = |kinds: &mut Kinds<Identifier>| !kinds.some_left_out;
        let waited = self.left_out.wait_while(kinds, nothing);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        thread::sleep(WINDOW);
        let left_out = self.kinds().take_left_out(Instant::now());
        for LeftOut {
            line: Line {
                level, words: like, ..
            },
            count,
            seconds,
        } in left_out
        {
            let more = format_args!("{count} more in {seconds} s were like this: {like}");
            match level {
                Level::ERROR => tracing::error!("{more}"),
                Level::WARN => tracing::warn!("{more}"),
                Level::INFO => tracing::info!("{more}"),
                _ => tracing::debug!("{more}"),
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let wait = match metadata.target().strip_prefix(self.caused) {
            Some("") => WINDOW,
            Some(REPEATS) => REPEATS_EVERY,
            _ => return true,
        };
        let words = || {
            let mut words = Words::default();
            event.record(&mut words);
            words
        };
        let kind = metadata.callsite();
        let mut kinds = self.shared.kinds();
        let line = Line {
            level: *metadata.level(),
            words: words().0,
            wait,
        };
        let admitted = kinds.admit(&kind, Instant::now(), line);
        drop(kinds);
        if !admitted {
            self.shared.left_out.notify_one();
        }
        admitted
    }
}

/// The words of a line, and its fields behind them.
#[derive(Default)]
struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = if field.name() == "message" {
            write!(self.0, "{value:?}")
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
    }
}

/// A line that is to be written.
#[derive(Clone, Debug)]
struct Line {
    level: Level,
    words: String,
    /// For how long it is counted first when it comes again.
    wait: Duration,
}

/// Lines that were left out.
#[derive(Debug)]
struct LeftOut {
    /// The first of them.
    line: Line,
    count: u64,
    /// In so long.
    seconds: u64,
}

/// How many lines of each kind there were.
#[derive(Debug)]
struct Kinds<K> {
    windows: HashMap<K, Window>,
    some_left_out: bool,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    written: u32,
    /// Beyond the limit; they are not equal.
    left_out: Option<LeftOut>,
    /// Those written last, oldest first.
    repeats: VecDeque<Repeats>,
}

/// A line that was written, and how often it came again.
#[derive(Debug)]
struct Repeats {
    line: Line,
    count: u64,
    /// When it came last.
    last: Instant,
    /// When it was written, or its count was.
    told: Instant,
    /// For so long it is counted.
    wait: Duration,
}

impl Repeats {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.told) >= self.wait
    }

    /// Whether it comes no more. What warns comes again with the next attempt of the same peer,
    /// which may wait long for that: a host that is refused ten seconds (`--reconnect-delay`).
    fn has_stopped(&self, now: Instant) -> bool {
        let warns = self.line.level <= Level::WARN;
        let silence = if warns { REPEATS_EVERY } else { self.wait };
        now.duration_since(self.last) >= silence && self.is_over(now)
    }

    /// How often it came again, once the time is over; then it is counted for twice as long.
    fn take(&mut self, now: Instant) -> Option<LeftOut> {
        if self.count == 0 || !self.is_over(now) {
            return None;
        }
        let left_out = LeftOut {
            line: self.line.clone(),
            count: std::mem::take(&mut self.count),
            seconds: now.duration_since(self.told).as_secs(),
        };
        self.told = now;
        self.wait = (self.wait * 2).min(REPEATS_EVERY);
        Some(left_out)
    }
}

impl<K> Default for Kinds<K> {
    fn default() -> Self {
        Self {
            windows: HashMap::new(),
            some_left_out: false,
        }
    }
}

impl<K: Clone + Eq + Hash> Kinds<K> {
    /// Whether a line of this kind is written at `now`; it is counted when it is not.
    fn admit(&mut self, kind: &K, now: Instant, line: Line) -> bool {
        if !self.windows.contains_key(kind) {
            // As many as the program has places that write such lines.
            let window = Window {
                began: now,
                written: 0,
                left_out: None,
                repeats: VecDeque::new(),
            };
            self.windows.insert(kind.clone(), window);
        }
        let Some(window) = self.windows.get_mut(kind) else {
            return true;
        };
        let admitted = window.admit(now, line);
        self.some_left_out |= !admitted;
        admitted
    }

    /// What is due to be told. What is not stays, and is asked for again.
    fn take_left_out(&mut self, now: Instant) -> Vec<LeftOut> {
        let mut due = Vec::new();
        self.some_left_out = false;
        for window in self.windows.values_mut() {
            due.extend(window.left_out.take());
            due.extend(
                window
                    .repeats
                    .iter_mut()
                    .filter_map(|again| again.take(now)),
            );
            self.some_left_out |= window.repeats.iter().any(|again| again.count > 0);
        }
        due
    }
}

impl Window {
    fn admit(&mut self, now: Instant, line: Line) -> bool {
        let mut repeats = self.repeats.iter_mut();
        if let Some(again) = repeats.find(|before| before.line.words == line.words) {
            if again.count == 0 && again.has_stopped(now) {
                // It had stopped: this is news.
                again.last = now;
                again.told = now;
                again.wait = line.wait;
                return true;
            }
            again.last = now;
            again.count += 1;
            return false;
        }
        if now.duration_since(self.began) >= WINDOW {
            self.began = now;
            self.written = 0;
        }
        if self.written >= LINES_OF_A_KIND {
            let left_out = self.left_out.get_or_insert(LeftOut {
                line,
                count: 0,
                seconds: WINDOW.as_secs(),
            });
            left_out.count += 1;
            return false;
        }
        self.written += 1;
        if self.repeats.len() >= REPEATS_KEPT {
            // One that is counted is kept: others come once each.
            let idle = self.repeats.iter().position(|before| before.count == 0);
            match idle {
                Some(idle) => drop(self.repeats.remove(idle)),
                None => return true,
            }
        }
        self.repeats.push_back(Repeats {
            count: 0,
            last: now,
            told: now,
            wait: line.wait,
            line,
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = WINDOW;

    fn line(words: &str) -> Line {
        Line {
            level: Level::WARN,
            words: words.to_owned(),
            wait: WINDOW,
        }
    }

    #[test]
    fn ten_lines_of_a_kind_are_written_in_a_second_and_the_rest_counted() {
        let mut kinds = Kinds::default();
        let start = Instant::now();
        let (mut written, mut counted) = (0, 0);
        // What 6,900 refused connects in three seconds wrote.
        for at in 0..6900_u32 {
            let now = start + SECOND * at / 2300;
            let line = line(&format!("refused host-{at}"));
            written += u64::from(kinds.admit(&"refused", now, line));
            if at % 2300 == 2299 {
                for left_out in kinds.take_left_out(now) {
                    assert_eq!(left_out.count, 2290);
                    assert!(left_out.line.words.starts_with("refused host-"));
                    counted += left_out.count;
                }
            }
        }
        assert_eq!((written, counted), (30, 6870));
        assert!(kinds.take_left_out(start + 4 * SECOND).is_empty());
    }

    #[test]
    fn a_flood_of_one_kind_hides_no_other() {
        let mut kinds = Kinds::default();
        let now = Instant::now();
        for at in 0..100 {
            kinds.admit(&1, now, line(&format!("a{at}")));
        }
        assert!(kinds.some_left_out);
        assert!(kinds.admit(&2, now, line("b")));
        assert!(!kinds.admit(&1, now, line("c")));
        assert!(kinds.admit(&1, now + SECOND, line("c")));
    }

    /// Out of descriptors a listener tries ten times in a second, and has two lines to say so.
    #[test]
    fn equal_lines_are_written_once_and_counted_ever_more_rarely() {
        let mut kinds = Kinds::default();
        let start = Instant::now();
        let mut lines = Vec::new();
        for tenth in 0..6000_u32 {
            let now = start + SECOND * tenth / 10;
            for words in ["cannot take a connection", "of another listener"] {
                if kinds.admit(&1, now, line(words)) {
                    lines.push((tenth, words.to_owned(), 1));
                }
            }
            for LeftOut { line, count, .. } in kinds.take_left_out(now) {
                lines.push((tenth, line.words, count));
            }
        }
        let of_one: Vec<_> = lines
            .iter()
            .filter(|(_, words, _)| words.starts_with("cannot"))
            .collect();
        // Ten minutes: at once, after 1, 3, 7, 15, 31 and 63 s, and then each minute.
        assert_eq!(of_one.len(), 15, "{of_one:?}");
        assert_eq!(lines.len(), 2 * of_one.len());
        let told: u64 = of_one.iter().map(|(_, _, count)| count).sum();
        assert!((5400..=6000).contains(&told), "{told} of 6000");
        assert_eq!((of_one[0].0, of_one[1].0, of_one[2].0), (0, 10, 30));
    }

    /// A host that was refused tries again every eleven seconds.
    #[test]
    fn what_comes_again_every_few_seconds_is_counted() {
        let mut kinds = Kinds::default();
        let start = Instant::now();
        let (mut written, mut counts) = (0, Vec::new());
        for second in 0..600 {
            let now = start + SECOND * second;
            if second % 11 == 0 {
                written += u32::from(kinds.admit(&1, now, line("refused a Connect")));
            }
            counts.extend(
                kinds
                    .take_left_out(now + SECOND / 2)
                    .iter()
                    .map(|of| of.count),
            );
        }
        assert_eq!(written, 1);
        assert!(counts.len() < 20, "{counts:?}");
    }

    /// A client that mounts at the wrong port tries a hundred times in a second.
    #[test]
    fn what_is_to_be_told_once_a_minute_is_from_its_first_line_on() {
        let mut kinds = Kinds::default();
        let start = Instant::now();
        let mut told = Vec::new();
        for hundredth in 0..18_000_u32 {
            let now = start + SECOND * hundredth / 100;
            let line = Line {
                wait: REPEATS_EVERY,
                ..line("it speaks TCP peer=10.9.0.1")
            };
            if kinds.admit(&1, now, line) {
                told.push((hundredth, 1));
            }
            for left_out in kinds.take_left_out(now) {
                told.push((hundredth, left_out.count));
            }
        }
        assert_eq!(told, [(0, 1), (6000, 6000), (12_000, 6000)]);
    }

    #[test]
    fn a_line_that_comes_again_after_a_while_is_news() {
        let mut kinds = Kinds::default();
        let start = Instant::now();
        assert!(kinds.admit(&1, start, line("a")));
        assert!(!kinds.admit(&1, start, line("a")));
        assert_eq!(kinds.take_left_out(start + SECOND).len(), 1);
        assert!(
            !kinds.admit(&1, start + 2 * SECOND, line("a")),
            "it goes on"
        );
        assert_eq!(kinds.take_left_out(start + 3 * SECOND).len(), 1);
        assert!(kinds.take_left_out(start + 70 * SECOND).is_empty());
        assert!(!kinds.some_left_out);
        assert!(kinds.admit(&1, start + 70 * SECOND, line("a")));
        // However many different ones there were meanwhile: they are forgotten first.
        for at in 0..1000 {
            kinds.admit(&1, start + (71 + at) * SECOND, line(&format!("b{at}")));
        }
        let window = kinds.windows.get(&1).expect("of this kind");
        assert_eq!(window.repeats.len(), REPEATS_KEPT);
    }
}
