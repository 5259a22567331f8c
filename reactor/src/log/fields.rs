//! How the fields of a line are written where a line is one text: behind its message, but for those
//! that the message says itself. So a line can have the fields that a journal is searched by and is
//! not twice as long elsewhere.

use std::fmt::{self, Debug, Write as _};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::{RecordFields, VisitOutput as _};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};

/// Name of the field that has the message.
const MESSAGE: &str = "message";

/// Writes the message of a line, and those of its fields that have other values than the message.
#[derive(Clone, Copy, Debug, Default)]
pub struct SaidOnce;

impl FormatFields<'_> for SaidOnce {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'_>, fields: R) -> fmt::Result {
        let mut message = Message::default();
        fields.record(&mut message);
        let mut rest = Rest {
            message: message.0,
            inner: DefaultVisitor::new(writer, true),
        };
        fields.record(&mut rest);
        rest.inner.finish()
    }
}

/// The message of a line.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == MESSAGE {
            // Into memory: it does not fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

/// Everything that is not said yet.
struct Rest<'w> {
    message: String,
    inner: DefaultVisitor<'w>,
}

impl Rest<'_> {
    /// Whether the message has that value, and not as a part of a longer word.
    fn says(&self, field: &Field, value: &str) -> bool {
        let is_of_a_word = |c: char| c.is_alphanumeric() || "-_.:".contains(c);
        field.name() != MESSAGE
            && !value.is_empty()
            && self.message.match_indices(value).any(|(at, _)| {
                let (before, rest) = self.message.split_at_checked(at).unwrap_or_default();
                let behind = rest.strip_prefix(value).unwrap_or_default();
                !before.ends_with(is_of_a_word) && !behind.starts_with(is_of_a_word)
            })
    }
}

impl Visit for Rest<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if !self.says(field, value) {
            self.inner.record_str(field, value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if !self.says(field, &format!("{value:?}")) {
            self.inner.record_debug(field, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Result, Write};
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::fmt::layer;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    /// What is written of the lines that are logged.
    fn written(log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let layer = layer()
            .with_writer(lines.clone())
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .fmt_fields(SaidOnce);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let bytes = std::mem::take(&mut *lines.0.lock().unwrap());
        let mut text = String::new();
        bytes.as_slice().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn fields_that_the_message_says_are_left_out() {
        let text = written(|| {
            tracing::info!(
                host = "nqn.a:b",
                nsid = 1,
                reason = "no-room",
                "host nqn.a:b has no room on 10"
            );
        });
        assert_eq!(
            text,
            " INFO host nqn.a:b has no room on 10 nsid=1 reason=\"no-room\"\n"
        );
    }

    #[test]
    fn a_longer_word_does_not_say_them() {
        let text = written(|| {
            let host = "nqn.a:b";
            tracing::info!(host, nsid = %7, "hosts nqn.a:bc, xnqn.a:b and nqn.a:b-1 have 77 and 7.");
        });
        let words =
            " INFO hosts nqn.a:bc, xnqn.a:b and nqn.a:b-1 have 77 and 7. host=\"nqn.a:b\" nsid=7\n";
        assert_eq!(text, words);
        let ended = written(|| tracing::info!(nsid = %7, "of 7, and of (7)"));
        assert_eq!(ended, " INFO of 7, and of (7)\n");
    }

    #[test]
    fn control_characters_of_a_message_reach_no_terminal() {
        let text = written(|| tracing::info!("a \u{1b}[31m red one"));
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
