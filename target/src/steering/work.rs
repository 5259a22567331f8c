//! The threads that carry requests out. One has those that change what is served, one after the
//! other, as a file system may keep it waiting; the other one has those that wait for nothing.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use capstan_control::answer::{Ending, LogLevel, Version};
use capstan_control::{ConfigForm, Failure, Kind, PROTOCOL, Request};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::oneshot;

use super::{Steering, locked, lost_by};
use crate::metrics;

/// How a request ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Answer(Value),
    /// The target ends behind the answer.
    Stop(Value),
    Failed(Failure),
}

/// A request, and where its outcome goes.
struct Job {
    request: Request,
    caller: String,
    done: oneshot::Sender<Outcome>,
}

/// The threads. They end with the process, or when this is dropped and they have nothing to do.
pub(crate) struct Work {
    changes: mpsc::Sender<Job>,
    at_once: mpsc::Sender<Job>,
}

impl Work {
    /// Starts them.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn start(steering: &Arc<Steering>) -> io::Result<Self> {
        let start = |name: &str| {
            let (give, jobs) = mpsc::channel::<Job>();
            let steering = Arc::clone(steering);
            let work = move || {
                for job in jobs {
                    // It has waited, and nothing is to happen that no client knows of.
                    if job.done.is_closed() {
                        tracing::info!(
                            "{}: {}: not carried out, as its client has gone",
                            job.caller,
                            in_words(&job.request)
                        );
                        continue;
                    }
                    let outcome = steering.carry_out(&job.request, &job.caller);
                    // The connection may have ended.
                    let _ = job.done.send(outcome);
                }
            };
            let started = thread::Builder::new().name(name.to_owned()).spawn(work);
            started.map(|_| give)
        };
        Ok(Self {
            changes: start("steering")?,
            at_once: start("reports")?,
        })
    }

    /// Has a request carried out.
    pub(super) async fn carry_out(&self, request: Request, caller: String) -> Outcome {
        let to = match waits_for_nothing(&request) {
            true => &self.at_once,
            false => &self.changes,
        };
        let (done, outcome) = oneshot::channel();
        let job = Job {
            request,
            caller,
            done,
        };
        let ended = |_| "the thread that carries out requests has ended; the log says why";
        let outcome = match to.send(job).map_err(|_| ()).map_err(ended) {
            Ok(()) => outcome.await.map_err(|_| ()).map_err(ended),
            Err(words) => Err(words),
        };
        outcome.unwrap_or_else(|words| Outcome::Failed(Failure::new(Kind::Failed, words)))
    }
}

/// Whether no file system or device is asked: an operator needs these when one does not answer.
fn waits_for_nothing(request: &Request) -> bool {
    is_question(request)
        || matches!(
            request,
            Request::Drain(_) | Request::ConnectionDisconnect(_)
        )
}

fn is_question(request: &Request) -> bool {
    match request {
        Request::Version {}
        | Request::Status {}
        | Request::Metrics {}
        | Request::ConfigShow { .. }
        | Request::SubsystemShow { .. }
        | Request::HostList { .. }
        | Request::AnaShow { .. }
        | Request::ListenerList {}
        | Request::ExportList {}
        | Request::ClientList {}
        | Request::ConnectionList {}
        | Request::Explain { .. } => true,
        Request::LogLevel(levels) => levels.level.is_none(),
        // The file may be on a file system that does not answer.
        Request::ConfigDiff {} | Request::ConfigSaved {} => false,
        Request::Reload { .. }
        | Request::Stop { .. }
        | Request::Drain(_)
        | Request::SubsystemAdd(_)
        | Request::SubsystemRemove { .. }
        | Request::NamespaceAdd(_)
        | Request::NamespaceRemove(_)
        | Request::NamespaceResize(_)
        | Request::NamespaceSet(_)
        | Request::AnaSet(_)
        | Request::AnaRemove(_)
        | Request::HostAllow { .. }
        | Request::HostAny { .. }
        | Request::HostDeny { .. }
        | Request::ListenerAdd(_)
        | Request::ListenerRemove { .. }
        | Request::ExportAdd(_)
        | Request::ExportRemove { .. }
        | Request::ConnectionDisconnect(_) => false,
    }
}

fn told(answer: Result<impl Serialize, Failure>) -> Outcome {
    match answer.map(|answer| serde_json::to_value(answer)) {
        Ok(Ok(value)) => Outcome::Answer(value),
        // Answers have nothing that JSON has not.
        Ok(Err(error)) => Outcome::Failed(Failure::new(Kind::Failed, error.to_string())),
        Err(failure) => Outcome::Failed(failure),
    }
}

impl Steering {
    fn carry_out(&self, request: &Request, caller: &str) -> Outcome {
        // A reload tells the log itself.
        let is_told = matches!(
            request,
            Request::ConfigDiff {} | Request::ConfigSaved {} | Request::Reload { .. }
        );
        if is_question(request) || is_told {
            return self.dispatch(request);
        }
        let what = in_words(request);
        let outcome = match waits_for_nothing(request) {
            true => self.dispatch(request),
            false => {
                *locked(&self.under_way) = Some((Instant::now(), what.clone()));
                let outcome = self.dispatch(request);
                *locked(&self.under_way) = None;
                outcome
            }
        };
        let Names {
            hostnqn,
            subnqn,
            nsid,
        } = Names::of(request);
        match &outcome {
            Outcome::Answer(_) | Outcome::Stop(_) => {
                tracing::info!(hostnqn, subnqn, nsid, "{caller}: {what}: done");
            }
            Outcome::Failed(failure) => {
                tracing::warn!(
                    hostnqn,
                    subnqn,
                    nsid,
                    reason = failure.data.kind.map(Kind::word),
                    "{caller}: {what}: refused: {}",
                    failure.message.replace('\n', "; ")
                );
            }
        }
        outcome
    }

    fn dispatch(&self, request: &Request) -> Outcome {
        match request {
            Request::Version {} => told(Ok(Version {
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").to_owned(),
            })),
            Request::Status {} => told(Ok(self.report())),
            Request::Metrics {} => told(Ok(metrics::answer(metrics::snapshot(&self.control)))),
            Request::Reload { discard } => told(self.reload(*discard)),
            Request::Stop { discard } => self.stop(*discard),
            Request::Drain(drain) => told(self.drain(*drain)),
            Request::LogLevel(levels) => told(self.log_level(levels.level.as_deref())),
            Request::ConfigShow { form } => told(Ok(self.config_text(*form))),
            Request::ConfigDiff {} => told(self.config_diff()),
            Request::ConfigSaved {} => told(self.config_saved()),
            Request::SubsystemAdd(add) => told(self.add_subsystem(add)),
            Request::SubsystemRemove { nqn } => told(self.remove_subsystem(nqn)),
            Request::SubsystemShow { nqn } => told(self.subsystems(nqn.as_deref())),
            Request::NamespaceAdd(add) => told(self.add_namespace(add)),
            Request::NamespaceRemove(place) => told(self.remove_namespace(place)),
            Request::NamespaceResize(resize) => told(self.resize_namespace(resize)),
            Request::NamespaceSet(set) => told(self.set_namespace(set)),
            Request::AnaSet(set) => told(self.set_ana(set)),
            Request::AnaRemove(place) => told(self.remove_ana(place)),
            Request::AnaShow { subsystem } => told(self.ana_groups(subsystem.as_deref())),
            Request::HostAllow { subsystem, host } => told(self.allow_host(subsystem, host)),
            Request::HostAny { subsystem, allowed } => {
                told(self.allow_any_host(subsystem, *allowed))
            }
            Request::HostDeny { subsystem, host } => told(self.deny_host(subsystem, host)),
            Request::HostList { subsystem } => told(self.hosts(subsystem.as_deref())),
            Request::ListenerAdd(add) => told(self.add_listener(add)),
            Request::ListenerRemove { address } => told(self.remove_listener(address)),
            Request::ListenerList {} => told(Ok(self.listeners())),
            Request::ExportAdd(add) => told(self.add_export(add)),
            Request::ExportRemove { pseudo } => told(self.remove_export(pseudo)),
            Request::ExportList {} => told(Ok(self.exports())),
            Request::ClientList {} => told(Ok(self.nfs_clients())),
            Request::ConnectionList {} => told(Ok(self.connections())),
            Request::ConnectionDisconnect(which) => told(self.disconnect(which)),
            Request::Explain { host } => told(self.explain(host.as_deref())),
        }
    }

    fn stop(&self, discard: bool) -> Outcome {
        let unsaved = self.texts().unsaved().to_vec();
        if !discard && !unsaved.is_empty() {
            return Outcome::Failed(Failure::new(Kind::Unsaved, lost_by("stop", &unsaved)));
        }
        match told(Ok(Ending { discarded: unsaved })) {
            Outcome::Answer(value) => Outcome::Stop(value),
            other => other,
        }
    }

    fn log_level(&self, level: Option<&str>) -> Result<LogLevel, Failure> {
        let was = self.published().config.target.log.as_str().to_owned();
        if let Some(level) = level.filter(|level| *level != was) {
            self.set_log_level(level)?;
        }
        let level = self.published().config.target.log.as_str().to_owned();
        Ok(LogLevel { level, was })
    }

    fn config_text(&self, form: ConfigForm) -> capstan_control::answer::ConfigText {
        let mut shown = self.texts().shown();
        if form == ConfigForm::Complete
            && let Some(file) = shown.files.first_mut()
        {
            file.text = self.complete_config();
            file.read = None;
        }
        shown
    }
}

/// What a request is about, for the journal.
struct Names {
    hostnqn: Option<String>,
    subnqn: Option<String>,
    nsid: Option<u64>,
}

impl Names {
    fn of(request: &Request) -> Self {
        let whole = serde_json::to_value(request).unwrap_or_default();
        let of = |name: &str| whole.get("params").and_then(|params| params.get(name));
        let text = |name: &str| of(name).and_then(Value::as_str).map(str::to_owned);
        Self {
            hostnqn: text("host"),
            // Requests about a subsystem itself call it `nqn`.
            subnqn: text("subsystem").or_else(|| text("nqn")),
            nsid: of("nsid").and_then(Value::as_u64),
        }
    }
}

/// A request for the log: its method and its parameters.
fn in_words(request: &Request) -> String {
    let whole = serde_json::to_value(request).unwrap_or_default();
    let method = whole
        .get("method")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let params = whole
        .get("params")
        .map(Value::to_string)
        .unwrap_or_default();
    match params.as_str() {
        "{}" | "" => method.to_owned(),
        params => format!("{method} {params}"),
    }
}
