//! What is told, as OpenMetrics text and as JSON.

use std::fmt;

use capstan_control::answer;
use capstan_metrics::{BUCKETS, HistogramSnapshot, bucket_bounds_ns};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, EncodeLabelSet, LabelSetEncoder, MetricEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

use super::names::MetricKind;
use super::snapshot::{Family, Sample, Value};

const NS: f64 = 1e9;
/// No exemplars.
const NONE: Option<&Exemplar<[(&str, &str); 0], f64>> = None;

/// A snapshot that can be written.
#[derive(Debug)]
struct Told(Vec<Family>);

/// The labels of a value.
struct Labels<'a>(&'a Sample, &'a [&'static str]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let Self(sample, names) = self;
        for (name, value) in names.iter().zip(&sample.labels) {
            (*name, value.as_str()).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { metric, samples } in &self.0 {
            let unit = metric.unit.map(|unit| match unit {
                "bytes" => Unit::Bytes,
                "seconds" => Unit::Seconds,
                other => Unit::Other(other.to_owned()),
            });
            let kind = match metric.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
                MetricKind::Info => MetricType::Info,
            };
            let mut family =
                encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
            for sample in samples {
                let labels = Labels(sample, metric.labels);
                if metric.kind == MetricKind::Info {
                    family.encode_info(&labels)?;
                } else if metric.labels.is_empty() {
                    write_value(&mut family, metric.kind, &sample.value)?;
                } else {
                    let mut of_labels = family.encode_family(&labels)?;
                    write_value(&mut of_labels, metric.kind, &sample.value)?;
                }
            }
        }
        Ok(())
    }
}

fn write_value(to: &mut MetricEncoder<'_>, kind: MetricKind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (MetricKind::Counter, Value::Count(count)) => to.encode_counter(count, NONE),
        (MetricKind::Counter, Value::Number(number)) => to.encode_counter(number, NONE),
        // The encoder takes no u64 that is no i64.
        (_, Value::Count(count)) => to.encode_gauge(&i64::try_from(*count).unwrap_or(i64::MAX)),
        (_, Value::Number(number)) => to.encode_gauge(number),
        (_, Value::Times(times)) => {
            let bounds = bounds_s().chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(times.counts).collect();
            to.encode_histogram::<[(&str, &str); 0]>(sum_s(times), times.count(), &buckets, None)
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "times are no more exact than that"
)]
fn sum_s(times: &HistogramSnapshot) -> f64 {
    times.sum_ns as f64 / NS
}

#[expect(clippy::cast_precision_loss, reason = "powers of two of a microsecond")]
fn bounds_s() -> impl Iterator<Item = f64> {
    bucket_bounds_ns().map(|ns| ns as f64 / NS)
}

/// A snapshot as OpenMetrics text.
pub(super) fn open_metrics(families: Vec<Family>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Told(families)));
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => text,
        // A String takes everything.
        Err(fmt::Error) => "# EOF\n".to_owned(),
    }
}

/// A snapshot for the control socket.
pub(crate) fn answer(families: Vec<Family>) -> Vec<answer::Metric> {
    let told = families.into_iter().map(|Family { metric, samples }| {
        let samples = samples.into_iter().map(|sample| {
            let names = metric.labels.iter().map(|name| (*name).to_owned());
            let value = match sample.value {
                #[expect(clippy::cast_precision_loss, reason = "as JSON has numbers")]
                Value::Count(count) => answer::MetricValue::Number(count as f64),
                Value::Number(number) => answer::MetricValue::Number(number),
                Value::Times(times) => answer::MetricValue::Times(answer::Times {
                    buckets: bounds_s()
                        .map(Some)
                        .chain([None])
                        .zip(times.counts)
                        .map(|(up_to_s, count)| answer::Bucket { up_to_s, count })
                        .collect(),
                    sum_s: sum_s(&times),
                }),
            };
            answer::MetricSample {
                labels: names.zip(sample.labels).collect(),
                value,
            }
        });
        answer::Metric {
            name: metric.family(),
            kind: metric.kind.word().to_owned(),
            samples: samples.collect(),
        }
    });
    told.collect()
}

const _: () = assert!(BUCKETS > 1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::names::{BUILD, COMMAND_STAGE, HOST_COMMANDS, REACTOR_TIME};

    fn family(
        metric: &'static super::super::names::Metric,
        labels: &[&str],
        value: Value,
    ) -> Family {
        Family {
            metric,
            samples: vec![Sample {
                labels: labels.iter().map(|label| (*label).to_owned()).collect(),
                value,
            }],
        }
    }

    #[test]
    fn what_a_host_calls_itself_cannot_end_its_label() {
        let host = "a\"} 1\\\n";
        let labels = [host, "s", "1", "read"];
        let text = open_metrics(vec![family(&HOST_COMMANDS, &labels, Value::Count(7))]);
        let line = text.lines().nth(2).unwrap();
        assert_eq!(
            line,
            "capstan_host_commands_total{host=\"a\\\"} 1\\\\\\n\",subsystem=\"s\",nsid=\"1\",command=\"read\"} 7"
        );
    }

    #[test]
    fn each_kind_is_written_as_it_is() {
        let mut times = HistogramSnapshot::default();
        times.counts[0] = 2;
        times.counts[BUCKETS - 1] = 1;
        times.sum_ns = 1_500_000_000;
        let text = open_metrics(vec![
            family(&BUILD, &["1.0"], Value::Count(1)),
            family(&REACTOR_TIME, &["0", "busy"], Value::Number(0.5)),
            family(&COMMAND_STAGE, &["read", "pull"], Value::Times(times)),
        ]);
        for expected in [
            "capstan_build_info{version=\"1.0\"} 1\n",
            "# UNIT capstan_reactor_time_seconds seconds\n",
            "capstan_reactor_time_seconds_total{reactor=\"0\",state=\"busy\"} 0.5\n",
            "capstan_command_stage_seconds_sum{command=\"read\",stage=\"pull\"} 1.5\n",
            "capstan_command_stage_seconds_count{command=\"read\",stage=\"pull\"} 3\n",
            "capstan_command_stage_seconds_bucket{le=\"+Inf\",command=\"read\",stage=\"pull\"} 3\n",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
