//! Lines that peers cause ([`PEER_CAUSED`]) are as many as peers like. So many of each kind are
//! written in a second; then one line says how many more there were.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::hash::Hash;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use capstan_rdma::PEER_CAUSED;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::limits::{LOG_LINES_OF_A_KIND, LOG_WINDOW};

/// Leaves out lines beyond the limit. A kind is a place in the program.
pub(super) struct Limit {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    kinds: Mutex<Kinds<Identifier>>,
    /// Told when the first line has been left out.
    left_out: Condvar,
}

impl Limit {
    /// Starts the thread that says how many lines were left out. It sleeps until there are some.
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let told = Arc::clone(&shared);
        thread::Builder::new().name("log".into()).spawn(move || {
            loop {
                told.say_what_was_left_out();
            }
        })?;
        Ok(Self { shared })
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
        thread::sleep(LOG_WINDOW);
        for LeftOut { level, count, like } in self.kinds().take_left_out() {
            let seconds = LOG_WINDOW.as_secs();
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
        if metadata.target() != PEER_CAUSED {
            return true;
        }
        let words = || {
            let mut words = Words::default();
            event.record(&mut words);
            words
        };
        let kind = metadata.callsite();
        let mut kinds = self.shared.kinds();
        let admitted = kinds.admit(&kind, Instant::now(), || LeftOut {
            level: *metadata.level(),
            count: 0,
            like: words().0,
        });
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

/// Lines of a kind that were left out.
struct LeftOut {
    level: Level,
    count: u64,
    /// The first of them.
    like: String,
}

/// How many lines of each kind there were.
struct Kinds<K> {
    windows: HashMap<K, Window>,
    some_left_out: bool,
}

struct Window {
    began: Instant,
    written: u32,
    left_out: Option<LeftOut>,
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
    /// Whether a line of this kind is written at `now`; it is counted when it is not, and the first
    /// is kept.
    fn admit(&mut self, kind: &K, now: Instant, line: impl FnOnce() -> LeftOut) -> bool {
        if !self.windows.contains_key(kind) {
            // As many as the program has places that write such lines.
            let window = Window {
                began: now,
                written: 0,
                left_out: None,
            };
            self.windows.insert(kind.clone(), window);
        }
        let Some(window) = self.windows.get_mut(kind) else {
            return true;
        };
        if now.duration_since(window.began) >= LOG_WINDOW {
            window.began = now;
            window.written = 0;
        }
        if window.written < LOG_LINES_OF_A_KIND {
            window.written += 1;
            return true;
        }
        window.left_out.get_or_insert_with(line).count += 1;
        self.some_left_out = true;
        false
    }

    fn take_left_out(&mut self) -> Vec<LeftOut> {
        self.some_left_out = false;
        let windows = self.windows.values_mut();
        windows
            .filter_map(|window| window.left_out.take())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = LOG_WINDOW;

    fn line(like: &str) -> LeftOut {
        LeftOut {
            level: Level::WARN,
            count: 0,
            like: like.to_owned(),
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
            written += u64::from(kinds.admit(&"refused", now, || line("refused host-2")));
            if at % 2300 == 2299 {
                for left_out in kinds.take_left_out() {
                    assert_eq!((left_out.count, &*left_out.like), (2290, "refused host-2"));
                    counted += left_out.count;
                }
            }
        }
        assert_eq!((written, counted), (30, 6870));
        assert!(kinds.take_left_out().is_empty());
    }

    #[test]
    fn a_flood_of_one_kind_hides_no_other() {
        let mut kinds = Kinds::default();
        let now = Instant::now();
        for _ in 0..100 {
            kinds.admit(&1, now, || line("a"));
        }
        assert!(kinds.some_left_out);
        assert!(kinds.admit(&2, now, || line("b")));
        assert!(!kinds.admit(&1, now, || line("a")));
        assert!(kinds.admit(&1, now + SECOND, || line("a")));
    }
}
