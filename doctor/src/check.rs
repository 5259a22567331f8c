//! A check as a value, and how a list of them is told.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// As it should be, or of no consequence.
    Ok,
    /// It works, slower or with less than it could.
    Warning,
    /// Something that was asked for will not work.
    Error,
}

impl Verdict {
    /// The word in the first column and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// How it is.
    pub verdict: Verdict,
    /// The value found.
    pub seen: String,
    /// The value that would be right; none when it is.
    pub expected: Option<String>,
    /// What mends it: a command where there is one.
    pub remedy: Option<String>,
    /// Numbers for programs; the unit ends each name.
    pub figures: Vec<(&'static str, f64)>,
}

impl Check {
    /// Nothing to mend.
    #[must_use]
    pub fn ok(name: impl Into<String>, seen: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            verdict: Verdict::Ok,
            seen: seen.into(),
            expected: None,
            remedy: None,
            figures: Vec::new(),
        }
    }

    /// Something that works, but not as well as it could.
    #[must_use]
    pub fn warning(
        name: impl Into<String>,
        seen: impl Into<String>,
        expected: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Warning,
            expected: Some(expected.into()),
            remedy: Some(remedy.into()),
            ..Self::ok(name, seen)
        }
    }

    /// Something that will not work.
    #[must_use]
    pub fn error(
        name: impl Into<String>,
        seen: impl Into<String>,
        expected: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Error,
            ..Self::warning(name, seen, expected, remedy)
        }
    }

    /// With a number for programs.
    #[must_use]
    pub fn with_figure(mut self, name: &'static str, value: f64) -> Self {
        self.figures.push((name, value));
        self
    }

    /// In one line: what is, what was expected, what mends it.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = format!("{}: {}", self.name, self.seen);
        if let Some(expected) = &self.expected {
            let _ = write!(line, "; expected {expected}");
        }
        if let Some(remedy) = &self.remedy {
            let _ = write!(line, ": {remedy}");
        }
        line
    }

    fn json(&self) -> Value {
        let mut check = Map::new();
        check.insert("name".to_owned(), self.name.clone().into());
        check.insert("verdict".to_owned(), self.verdict.as_str().into());
        check.insert("seen".to_owned(), self.seen.clone().into());
        check.insert("expected".to_owned(), self.expected.clone().into());
        check.insert("remedy".to_owned(), self.remedy.clone().into());
        if !self.figures.is_empty() {
            let figures: Map<_, _> = self
                .figures
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.into()))
                .collect();
            check.insert("figures".to_owned(), figures.into());
        }
        Value::Object(check)
    }
}

/// How often each verdict was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Checks that are ok.
    pub ok: usize,
    /// Warnings.
    pub warnings: usize,
    /// Errors.
    pub errors: usize,
}

impl Summary {
    /// Counts.
    #[must_use]
    pub fn of(checks: &[Check]) -> Self {
        let count = |verdict| checks.iter().filter(|c| c.verdict == verdict).count();
        Self {
            ok: count(Verdict::Ok),
            warnings: count(Verdict::Warning),
            errors: count(Verdict::Error),
        }
    }
}

/// A line for each check, with what was expected and what mends it below those that are not ok; a
/// line of counts at the end.
#[must_use]
pub fn text(checks: &[Check]) -> String {
    let name_chars = checks.iter().map(|c| c.name.chars().count()).max();
    let width = name_chars.unwrap_or(0);
    let mut text = String::new();
    // Writing to a string does not fail.
    for check in checks {
        let verdict = check.verdict.as_str();
        let _ = writeln!(text, "{verdict:<7}  {:<width$}  {}", check.name, check.seen);
        let below = [("expected", &check.expected), ("mend", &check.remedy)];
        for (word, value) in below {
            if let Some(value) = value {
                let _ = writeln!(text, "{:7}  {:width$}  {word}: {value}", "", "");
            }
        }
    }
    let Summary {
        ok,
        warnings,
        errors,
    } = Summary::of(checks);
    let _ = write!(text, "{ok} ok, {warnings} warning(s), {errors} error(s)");
    text
}

/// The same for programs: `{"checks": [{name, verdict, seen, expected, remedy, figures?}…], "ok":
/// N, "warnings": N, "errors": N}`.
#[must_use]
pub fn json(checks: &[Check]) -> Value {
    let summary = Summary::of(checks);
    json!({
        "checks": checks.iter().map(Check::json).collect::<Vec<_>>(),
        "ok": summary.ok,
        "warnings": summary.warnings,
        "errors": summary.errors,
    })
}

#[cfg(test)]
mod tests {
    use super::{Check, Summary, Verdict, json, text};

    fn checks() -> [Check; 3] {
        [
            Check::ok("fuse", "/dev/fuse"),
            Check::warning("memlock", "8 MiB", "256 MiB", "ulimit -l unlimited"),
            Check::error("io_uring", "2", "0", "sysctl -w kernel.io_uring_disabled=0")
                .with_figure("disabled", 2.0),
        ]
    }

    #[test]
    fn a_line_says_what_is_and_the_lines_below_what_mends_it() {
        assert_eq!(
            text(&checks()),
            "ok       fuse      /dev/fuse\n\
             warning  memlock   8 MiB\n\
             \x20                  expected: 256 MiB\n\
             \x20                  mend: ulimit -l unlimited\n\
             error    io_uring  2\n\
             \x20                  expected: 0\n\
             \x20                  mend: sysctl -w kernel.io_uring_disabled=0\n\
             1 ok, 1 warning(s), 1 error(s)"
        );
    }

    #[test]
    fn a_log_has_it_in_one_line() {
        let [well, slow, _] = checks();
        assert_eq!(well.line(), "fuse: /dev/fuse");
        assert_eq!(
            slow.line(),
            "memlock: 8 MiB; expected 256 MiB: ulimit -l unlimited"
        );
    }

    #[test]
    fn programs_get_the_same_and_the_figures() {
        let told = json(&checks());
        assert_eq!(told["errors"], 1);
        assert_eq!(
            told["checks"][0],
            serde_json::json!({"name": "fuse", "verdict": "ok", "seen": "/dev/fuse", "expected": null,
                   "remedy": null})
        );
        assert_eq!(told["checks"][2]["figures"]["disabled"], 2.0);
    }

    #[test]
    fn an_empty_list_has_nothing_wrong() {
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Verdict::Error.as_str(), "error");
    }
}
