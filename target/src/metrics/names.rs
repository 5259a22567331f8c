//! Every metric that the target tells: `docs/metrics.md` has the same list.

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows, until the target is started anew.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How often times of each length came.
    Histogram,
    /// What is in its labels.
    Info,
}

impl MetricKind {
    /// As OpenMetrics calls it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

/// A metric, without its values.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, without the unit and what its kind adds.
    pub name: &'static str,
    /// What it is.
    pub kind: MetricKind,
    /// In what it counts; `None`: things.
    pub unit: Option<&'static str>,
    /// Its labels, in the order of their values.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

impl Metric {
    /// The name of its family.
    #[must_use]
    pub fn family(&self) -> String {
        match self.unit {
            Some(unit) => format!("{}_{unit}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// The names of its values, as they are asked for.
    #[must_use]
    pub fn samples(&self) -> Vec<String> {
        let family = self.family();
        let suffixes: &[&str] = match self.kind {
            MetricKind::Counter => &["_total"],
            MetricKind::Gauge => &[""],
            MetricKind::Histogram => &["_bucket", "_count", "_sum"],
            MetricKind::Info => &["_info"],
        };
        let names = suffixes.iter().map(|suffix| format!("{family}{suffix}"));
        names.collect()
    }
}

macro_rules! metrics {
    ($($id:ident: $kind:ident $name:literal $unit:expr, [$($label:literal),*], $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $id: Metric = Metric {
                name: $name,
                kind: MetricKind::$kind,
                unit: $unit,
                labels: &[$($label),*],
                help: $help,
            };
        )*
        /// All of them, in the order in which they are told.
        pub static METRICS: &[&Metric] = &[$(&$id),*];
    };
}

const BYTES: Option<&str> = Some("bytes");
const SECONDS: Option<&str> = Some("seconds");

metrics! {
    BUILD: Info "capstan_build" None, ["version"],
        "The program that runs.";
    START_TIME: Gauge "capstan_start_time" SECONDS, [],
        "When it was started, in seconds since 1970.";
    SCRAPES: Counter "capstan_scrapes" None, [],
        "Times that this was asked for over HTTP.";
    TROUBLE: Gauge "capstan_trouble" None, [],
        "Media that fail, are gone or have lost writes, and reservations that are not known: what status has of such trouble.";
    WAITS: Gauge "capstan_waits" None, [],
        "Listeners, namespaces and exports that are configured, not there yet, and waited for.";
    UNSAVED_CHANGES: Gauge "capstan_unsaved_changes" None, [],
        "Changes made at run time that are in no file: a restart undoes them.";
    RELOAD_FAILED: Gauge "capstan_reload_failed" None, [],
        "1 where the last reload was refused.";
    DRAINED: Gauge "capstan_drained" None, [],
        "1 while no connections are taken.";

    HOST_COMMANDS: Counter "capstan_host_commands" None, ["host", "subsystem", "nsid", "command"],
        "Commands of a host that a namespace has completed (read: Read and Compare, write: Write), with an error or without; not those that were refused.";
    HOST_DATA: Counter "capstan_host_data" BYTES, ["host", "subsystem", "nsid", "direction"],
        "Data of commands of a host that succeeded, read and written.";
    HOST_ERRORS: Counter "capstan_host_errors" None, ["host", "subsystem", "nsid", "code", "status"],
        "Completions with an error, refused commands among them, by Status Code Type and Status Code; nsid 0: of a namespace that the host does not have; code other: of kinds beyond eight of a queue and namespace.";
    HOST_PAIRS_DROPPED: Counter "capstan_host_pairs_dropped" None, [],
        "Pairs of a host that is gone and a namespace that have made room for others: there is room for 4096.";
    HOST_COMMANDS_NOT_KEPT: Counter "capstan_host_commands_not_kept" None, [],
        "Commands of pairs of a host and a namespace for which there was no room.";

    ASSOCIATIONS: Gauge "capstan_associations" None, ["subsystem"],
        "Associations of hosts.";
    QUEUE_ENTRIES: Gauge "capstan_queue_entries" None, ["host", "subsystem", "cntlid", "qid", "transport", "reactor"],
        "Entries of an I/O queue: the most commands that its host has outstanding.";
    QUEUE_COMMANDS_IN_FLIGHT: Gauge "capstan_queue_commands_in_flight" None, ["host", "subsystem", "cntlid", "qid", "transport", "reactor"],
        "Commands on an I/O queue that are not completed.";
    QUEUES_NOT_TOLD: Gauge "capstan_queues_not_told" None, [],
        "I/O queues beyond the 4096 that are told one by one.";

    CONNECTS_REFUSED: Counter "capstan_connects_refused" None, ["reason"],
        "Connect commands that were refused.";
    CONNECTIONS_REFUSED: Counter "capstan_connections_refused" None, ["reason"],
        "Connections that were refused before they had a Connect command.";
    ASSOCIATIONS_ENDED: Counter "capstan_associations_ended" None, ["reason"],
        "Associations of hosts that have ended; host: by the host or the network.";
    CONNECTIONS_ENDED: Counter "capstan_connections_ended" None, ["reason"],
        "Connections that have ended, those of discovery and of what never became a queue among them.";

    REACTOR_TIME: Counter "capstan_reactor_time" SECONDS, ["reactor", "state"],
        "What a reactor spends its time with: busy, spin (looking again without a sleep) and sleep.";
    REACTOR_TURNS: Counter "capstan_reactor_turns" None, ["reactor"],
        "Turns of a reactor.";
    REACTOR_SLEEPS: Counter "capstan_reactor_sleeps" None, ["reactor"],
        "Sleeps of a reactor, each of which is a system call.";
    REACTOR_COMMANDS_IN_FLIGHT: Gauge "capstan_reactor_commands_in_flight" None, ["reactor"],
        "Commands on the I/O queues of a reactor that are not completed.";
    REACTOR_CONNECTIONS: Gauge "capstan_reactor_connections" None, ["reactor"],
        "Connections of a reactor.";
    REACTOR_SHORTAGES: Counter "capstan_reactor_shortages" None, ["reactor"],
        "Turns of a reactor after which a command waited for a buffer that others have.";

    COMMAND_STAGE: Histogram "capstan_command_stage" SECONDS, ["command", "stage"],
        "How long commands are in each stage, of those that were sampled.";
    COMMAND_SAMPLE: Gauge "capstan_command_sample" None, [],
        "Of so many commands the stages of one are timed; 0: of none.";

    BACKEND_OPERATIONS: Counter "capstan_backend_operations" None, ["backend", "subsystem", "nsid", "operation"],
        "Operations on a backend that have begun; copies from and to memory among them.";
    BACKEND_DATA: Counter "capstan_backend_data" BYTES, ["backend", "subsystem", "nsid", "direction"],
        "Data of reads and writes on a backend that have begun.";
    BACKEND_ERRORS: Counter "capstan_backend_errors" None, ["backend", "subsystem", "nsid"],
        "Operations on a backend that have failed.";

    MEMORY_BUDGET: Gauge "capstan_memory_budget" BYTES, [],
        "The memory budget: data buffers and queues of all hosts.";
    MEMORY_POOL: Gauge "capstan_memory_pool" BYTES, ["reactor", "pool"],
        "Memory of a reactor for data, and for queues.";
    MEMORY_FREE: Gauge "capstan_memory_free" BYTES, ["reactor", "pool"],
        "What of that is not in use.";

    NFS_OPERATIONS: Counter "capstan_nfs_operations" None, ["export", "version", "operation"],
        "Operations of NFS version 4 and procedures of version 3 that were carried out, by the export that they end in; without an export: of sessions, and of the directories above exports.";
    NFS_ERRORS: Counter "capstan_nfs_errors" None, ["export", "version", "status"],
        "Those that failed, by status; status other: of kinds beyond sixteen of a thread and export.";
    NFS_DATA: Counter "capstan_nfs_data" BYTES, ["export", "direction"],
        "Data of READ and WRITE.";
    NFS_CONNECTIONS: Gauge "capstan_nfs_connections" None, [],
        "Connections of NFS clients.";
    NFS_CLIENTS: Gauge "capstan_nfs_clients" None, [],
        "Clients of NFS version 4, also those whose lease is over, until others need what they have.";
    NFS_OPENS: Gauge "capstan_nfs_opens" None, [],
        "Opens of clients of NFS version 4.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::{METRICS, Metric};

    fn document(name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../docs")
            .join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn row(metric: &Metric) -> String {
        let names: Vec<_> = metric
            .samples()
            .iter()
            .map(|name| format!("`{name}`"))
            .collect();
        let labels: Vec<_> = metric
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let (names, labels) = (names.join(", "), labels.join(", "));
        format!(
            "| {names} | {} | {labels} | {} |",
            metric.kind.word(),
            metric.help
        )
    }

    #[test]
    fn the_document_has_every_metric_and_no_other() {
        let document = document("metrics.md");
        let rows = document
            .lines()
            .filter(|line| line.starts_with("| `capstan_"));
        let expected: Vec<_> = METRICS.iter().map(|metric| row(metric)).collect();
        assert_eq!(
            rows.collect::<Vec<_>>(),
            expected,
            "\n{}",
            expected.join("\n")
        );
    }

    #[test]
    fn names_are_what_prometheus_takes_and_each_is_there_once() {
        let mut names = BTreeSet::new();
        for metric in METRICS {
            let is_word = |word: &str| {
                let mut bytes = word.bytes();
                bytes.all(|byte| byte.is_ascii_lowercase() || byte == b'_')
            };
            assert!(
                is_word(metric.name) && metric.name.starts_with("capstan_"),
                "{metric:?}"
            );
            assert!(
                metric.labels.iter().all(|label| is_word(label)),
                "{metric:?}"
            );
            assert!(
                metric.help.ends_with('.') && !metric.help.contains('\n'),
                "{metric:?}"
            );
            for name in metric.samples() {
                assert!(names.insert(name.clone()), "{name} is there twice");
            }
        }
    }

    /// What Grafana shows and what Prometheus warns of, each with the number of expressions that it
    /// has at least.
    const ASKED: [(&str, usize); 2] = [("grafana/capstan.json", 20), ("grafana/alerts.yml", 8)];

    /// The texts that are asked of Prometheus.
    fn expressions(text: &str) -> Vec<String> {
        let lines = text.lines().filter_map(|line| {
            let line = line.trim();
            line.strip_prefix("\"expr\": ")
                .or_else(|| line.strip_prefix("expr: "))
        });
        lines.map(str::to_owned).collect()
    }

    /// The words of an expression that are no strings, each with what is in front of it and behind.
    fn words(expression: &str) -> Vec<String> {
        let unescaped = expression.replace("\\\"", "\"");
        let outside: String = unescaped
            .split('"')
            .step_by(2)
            .collect::<Vec<_>>()
            .join(" ");
        let words = outside.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '$');
        words.map(str::to_owned).collect()
    }

    #[test]
    fn dashboard_and_alerts_ask_for_what_is_told() {
        let names: BTreeSet<_> = METRICS.iter().flat_map(|metric| metric.samples()).collect();
        for (name, least) in ASKED {
            let text = document(name);
            let is_json = Path::new(name).extension().is_some_and(|of| of == "json");
            let text = match is_json {
                true => {
                    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
                    format!("{json:#}")
                }
                false => text,
            };
            let mut of_ours = 0;
            for expression in expressions(&text) {
                // A string of JSON has its own quotes.
                let trimmed = expression.trim_end_matches(',');
                let inner: String = serde_json::from_str(trimmed).unwrap_or(expression);
                let words = words(&inner);
                let asked = words.iter().filter(|word| word.starts_with("capstan_"));
                for word in asked {
                    of_ours += 1;
                    assert!(names.contains(word), "{name}: {word} is not told: {inner}");
                    let metric = METRICS
                        .iter()
                        .find(|of| of.samples().contains(word))
                        .unwrap();
                    for label in matched_labels(&inner, word) {
                        let is_known = metric.labels.contains(&&*label)
                            || ["le", "instance", "job"].contains(&&*label);
                        assert!(is_known, "{name}: {word} has no label {label}: {inner}");
                    }
                }
            }
            assert!(of_ours >= least, "{name}: {of_ours} names were found");
            // None is anywhere else, as in a variable of the dashboard.
            let everywhere = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let of_ours = everywhere.filter(|word| word.starts_with("capstan_"));
            for word in of_ours {
                assert!(names.contains(word), "{name}: {word} is not told");
            }
        }
    }

    /// The labels of the selector that is behind a name.
    fn matched_labels(expression: &str, name: &str) -> Vec<String> {
        let behind = expression.split_once(name).map_or("", |(_, behind)| behind);
        let Some(selector) = behind.strip_prefix('{') else {
            return Vec::new();
        };
        let selector = selector
            .split_once('}')
            .map_or(selector, |(inner, _)| inner);
        let matchers = selector.split(',').filter(|matcher| !matcher.is_empty());
        let labels = matchers.map(|matcher| matcher.split(['=', '!']).next().unwrap().trim());
        labels.map(str::to_owned).collect()
    }
}
