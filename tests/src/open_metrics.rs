//! OpenMetrics text (OpenMetrics 1.0, section "Text format"), read as strictly as Prometheus reads
//! it, and asked for over HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Labels of a value.
pub type Labels = BTreeMap<String, String>;

/// What was told, checked.
#[derive(Debug, Default)]
pub struct Told {
    /// The kind of each family.
    pub kinds: BTreeMap<String, String>,
    /// Each value, by its name and its labels.
    pub samples: BTreeMap<(String, Labels), f64>,
}

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends a request, and returns the whole answer: its head and its body.
///
/// # Panics
/// When there is no answer.
#[must_use]
pub fn ask(at: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(at).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// Asks for what is counted, and reads it.
///
/// # Panics
/// When it is not told, or not as it should be.
#[must_use]
pub fn scrape(at: SocketAddr) -> Told {
    let (head, body) = ask(
        at,
        "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
    );
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let length = format!("\r\nContent-Length: {}\r\n", body.len());
    assert!(head.contains(&length), "{head}");
    let kind = "\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(head.contains(kind), "{head}");
    Told::read(&body)
}

impl Told {
    /// Reads a text.
    ///
    /// # Panics
    /// When it is not as it should be, with the line.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let text = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
        let mut told = Self::default();
        let mut family = String::new();
        let mut seen = BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let mut word = || words.next().unwrap_or_else(|| panic!("{line}"));
                let (what, name, value) = (word(), word(), word());
                assert!(is_name(name), "{line}");
                if name != family {
                    assert!(seen.insert(name.to_owned()), "{name} comes twice");
                    family = name.to_owned();
                }
                match what {
                    "HELP" => assert!(!value.is_empty(), "{line}"),
                    "TYPE" => {
                        let twice = told.kinds.insert(name.to_owned(), value.to_owned());
                        assert_eq!(twice, None, "{line}");
                    }
                    "UNIT" => assert!(name.ends_with(&format!("_{value}")), "{line}"),
                    _ => panic!("{line}"),
                }
                continue;
            }
            let (name, labels, value) = sample(line);
            let kind = told
                .kinds
                .get(&family)
                .unwrap_or_else(|| panic!("no type: {line}"));
            let suffix = name.strip_prefix(&family);
            let suffix = suffix.unwrap_or_else(|| panic!("not of {family}: {line}"));
            let suffixes: &[&str] = match kind.as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                "info" => &["_info"],
                "histogram" => &["_bucket", "_count", "_sum"],
                _ => panic!("{kind}"),
            };
            assert!(suffixes.contains(&suffix), "{line}");
            assert_eq!(labels.contains_key("le"), suffix == "_bucket", "{line}");
            assert!(kind == "gauge" || value >= 0.0, "{line}");
            let twice = told.samples.insert((name, labels), value);
            assert_eq!(twice, None, "{line}");
        }
        told.check_histograms();
        told
    }

    fn check_histograms(&self) {
        let mut buckets: BTreeMap<(String, Labels), Vec<(f64, f64)>> = BTreeMap::new();
        for ((name, labels), value) in &self.samples {
            let mut labels = labels.clone();
            if let Some(le) = labels.remove("le") {
                let le = if le == "+Inf" {
                    f64::INFINITY
                } else {
                    number(&le)
                };
                let of = name.strip_suffix("_bucket").expect("a bucket").to_owned();
                buckets.entry((of, labels)).or_default().push((le, *value));
            }
        }
        for ((name, labels), mut buckets) in buckets {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(
                buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1),
                "{name} {labels:?}"
            );
            let last = buckets.last().expect("one");
            assert_eq!(last.0, f64::INFINITY, "{name}");
            let count = self.samples[&(format!("{name}_count"), labels.clone())];
            assert_eq!(last.1.to_bits(), count.to_bits(), "{name} {labels:?}");
            assert!(self.samples.contains_key(&(format!("{name}_sum"), labels)));
        }
    }

    /// The value with exactly these labels.
    #[must_use]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.samples
            .get(&(name.to_owned(), labels.collect()))
            .copied()
    }

    /// The sum of all values that have these labels, and others perhaps.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let with = self.samples.iter().filter(|((of, has), _)| {
            let mut labels = labels.iter();
            of == name
                && labels.all(|(name, value)| has.get(*name).map(String::as_str) == Some(value))
        });
        with.map(|(_, value)| value).sum()
    }
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn number(text: &str) -> f64 {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(label), "{line}");
            let (value, behind) = unescaped(value).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(labels.insert(label.to_owned(), value), None, "{line}");
            match behind.strip_prefix(',') {
                Some(more) => rest = more,
                None => {
                    rest = behind.strip_prefix('}').unwrap_or_else(|| panic!("{line}"));
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    (name.to_owned(), labels, number(value))
}

/// A value up to its quote, and what is behind that.
fn unescaped(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other @ ('"' | '\\') => other,
                _ => return None,
            }),
            other => value.push(other),
        }
    }
    None
}
