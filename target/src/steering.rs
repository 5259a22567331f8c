//! The control socket: what a running target is asked and told (`capstan_control`), beside SIGHUP.
//!
//! A change is one of the text of the configuration, which is then carried out as a reload carries
//! out what has changed in a file (`reload`). So whatever a file can say can be changed, is checked
//! by the same rules, is all or nothing, and can be shown and saved.
//!
//! - [`socket`]: its place and its permissions;
//! - `conversation`: requests and answers on it, on the control thread;
//! - `work`: the threads that carry requests out, and never a reactor;
//! - `change`, `ana`, `texts`, `words`: changes, the texts that they are made in, and their
//!   commands;
//! - `absent`: the thread that looks for what is not there yet;
//! - `at_once`, `drain`: what is done and is in no text;
//! - `report`: what is told.

mod absent;
mod ana;
mod at_once;
mod change;
mod complete;
mod conversation;
mod drain;
mod report;
pub(crate) mod socket;
mod texts;
mod words;
mod work;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::anyhow;
use capstan_config::{Config, Written};
use capstan_control::answer::Changed;
use capstan_control::{Failure, Kind};
use capstan_subsystem::{PortConfig, PortId};
use tokio::sync::mpsc::UnboundedSender;

use crate::absent::Wait;
use crate::control_plane::ControlPlane;
use crate::metrics;
use crate::reload::{Reloaded, Served, clear_lost};
use crate::serve::with_counts;
use texts::Texts;

pub(crate) use conversation::serve;
pub(crate) use work::Work;

/// What the control thread hears of.
#[derive(Debug)]
pub(crate) enum News {
    /// What systemd is to be told.
    Status(String),
    /// The target is to end, by a request.
    Stop,
}

/// A target as it is steered.
pub(crate) struct Steering {
    served: Arc<Mutex<Served>>,
    control: Arc<ControlPlane>,
    reactors: usize,
    /// Taken for moments only: what is told does not wait for a change.
    texts: Mutex<Texts>,
    /// What is served, as `served` has it.
    published: Mutex<Arc<Published>>,
    /// There are exports, which cannot be served.
    is_without_nfs: bool,
    nfs_addresses: Vec<String>,
    started: Instant,
    /// Since when it takes no connections.
    drained: Mutex<Option<Instant>>,
    /// The change that is being carried out, and since when.
    under_way: Mutex<Option<(Instant, String)>>,
    news: UnboundedSender<News>,
}

/// What is served, as it is told on request.
struct Published {
    config: Config,
    /// Of each listener.
    ports: Vec<PortId>,
    waits: Vec<Wait>,
}

impl Published {
    fn of(served: &Served) -> Arc<Self> {
        Arc::new(Self {
            config: served.config().clone(),
            ports: served.ports(),
            waits: served.waits().to_vec(),
        })
    }
}

/// What a [`Steering`] is made of.
pub(crate) struct Parts {
    pub(crate) served: Arc<Mutex<Served>>,
    pub(crate) control: Arc<ControlPlane>,
    pub(crate) reactors: usize,
    pub(crate) written: Written,
    pub(crate) is_without_nfs: bool,
    pub(crate) nfs_addresses: Vec<String>,
    pub(crate) news: UnboundedSender<News>,
}

/// What a reload has done.
#[derive(Debug, Default)]
struct Done {
    changes: String,
    warnings: Vec<String>,
}

/// Why there was no reload.
#[derive(Debug)]
enum NoReload {
    Unsaved(Vec<String>),
    Failed(anyhow::Error),
}

impl Steering {
    pub(crate) fn new(parts: Parts) -> Self {
        let published = Published::of(&locked(&parts.served));
        Self {
            served: parts.served,
            control: parts.control,
            reactors: parts.reactors,
            texts: Mutex::new(Texts::of(parts.written)),
            published: Mutex::new(published),
            is_without_nfs: parts.is_without_nfs,
            nfs_addresses: parts.nfs_addresses,
            started: Instant::now(),
            drained: Mutex::new(None),
            under_way: Mutex::default(),
            news: parts.news,
        }
    }

    fn texts(&self) -> MutexGuard<'_, Texts> {
        locked(&self.texts)
    }

    fn published(&self) -> Arc<Published> {
        Arc::clone(&locked(&self.published))
    }

    /// What `served` has now is what is told from now on, to systemd as well.
    fn publish(&self, served: &Served) {
        *locked(&self.published) = Published::of(served);
        // The control thread is gone where the target ends.
        let _ = self.news.send(News::Status(self.status(served)));
    }

    /// Where the target listens, in words.
    pub(crate) fn listening(&self, served: &Served) -> String {
        let ports = served.ports();
        let hosts = self.control.with(|target| {
            let listened = target.ports().filter(|of| ports.contains(&of.id));
            let addresses = listened.flat_map(PortConfig::listened_at);
            addresses.map(|at| at.to_string()).collect::<Vec<_>>()
        });
        let hosts = hosts.join(", ");
        let clients = self.nfs_addresses.join(", ");
        match (hosts.is_empty(), clients.is_empty()) {
            _ if self.is_without_nfs => {
                format!("listening at {hosts}; NFS is not served, see the log")
            }
            (false, true) => format!("listening at {hosts}"),
            (true, false) => format!("listening for NFS at {clients}"),
            (false, false) => format!("listening at {hosts}, for NFS at {clients}"),
            (true, true) => "listening nowhere yet".to_owned(),
        }
    }

    /// What systemd is told. Metrics have the same from then on.
    pub(crate) fn status(&self, served: &Served) -> String {
        let steered = {
            let texts = self.texts();
            metrics::Steered {
                waits: served.waits().len(),
                unsaved_changes: texts.unsaved().len(),
                reload_failed: texts.reload_failed().is_some(),
                is_drained: self.drained_for().is_some(),
            }
        };
        self.control.metrics().set_steered(steered);
        let mut status = with_counts(&self.listening(served), served);
        if steered.waits > 0 {
            status = format!("{status}; waited for: {}", steered.waits);
        }
        if steered.is_drained {
            status = format!("drained, takes no connections; {status}");
        }
        if steered.unsaved_changes > 0 {
            let unsaved = steered.unsaved_changes;
            status = format!("{status}; changes that are in no file: {unsaved}");
        }
        if steered.reload_failed {
            status = format!("{status}; the last reload failed, see the log");
        }
        status
    }

    /// Reads the configuration again, as SIGHUP asks for, and tells the log. What systemd is told
    /// then.
    pub(crate) fn reload_by_signal(&self) -> String {
        let mut served = locked(&self.served);
        let reloaded = self.reload_locked(&mut served, false);
        // What it says is logged.
        let _ = self.reloaded(reloaded);
        *locked(&self.published) = Published::of(&served);
        self.status(&served)
    }

    /// The same, as the control socket asks for it.
    fn reload(&self, discard: bool) -> Result<Changed, Failure> {
        let mut served = locked(&self.served);
        let reloaded = self.reload_locked(&mut served, discard);
        let reloaded = self.reloaded(reloaded);
        self.publish(&served);
        reloaded
    }

    /// Tells the log how a reload went, and keeps it for `status`.
    fn reloaded(&self, reloaded: Result<Done, NoReload>) -> Result<Changed, Failure> {
        let (kind, words) = match reloaded {
            Ok(Done { changes, warnings }) => {
                tracing::info!("configuration reloaded: {changes}");
                let mut texts = self.texts();
                texts.reload_went(None);
                return Ok(Changed {
                    changes,
                    warnings,
                    ..texts.answer()
                });
            }
            Err(NoReload::Unsaved(unsaved)) => (Kind::Unsaved, lost_by("reload", &unsaved)),
            Err(NoReload::Failed(error)) => (Kind::Refused, format!("{error:#}")),
        };
        tracing::error!("the configuration was not reloaded: {words}");
        self.texts().reload_went(Some(words.clone()));
        Err(Failure::new(kind, words))
    }

    fn reload_locked(&self, served: &mut Served, discard: bool) -> Result<Done, NoReload> {
        let cleared = clear_lost(&self.control, self.reactors).map_err(NoReload::Failed)?;
        let cleared = (cleared > 0).then(|| format!("lost writes cleared of volumes: {cleared}"));
        let file = self.texts().file().map(Path::to_owned);
        let changes = match (file, &cleared) {
            (None, Some(_)) => None,
            (None, None) => return Err(NoReload::Failed(no_file())),
            (Some(file), _) => Some(self.read_again(served, &file, discard)?),
        };
        let Done { changes, warnings } = changes.unwrap_or_default();
        let changes = (!changes.is_empty()).then_some(changes);
        let words: Vec<_> = cleared.into_iter().chain(changes).collect();
        Ok(Done {
            changes: words.join(", "),
            warnings,
        })
    }

    fn read_again(
        &self,
        served: &mut Served,
        file: &Path,
        discard: bool,
    ) -> Result<Done, NoReload> {
        let failed = |error: capstan_config::ConfigError| NoReload::Failed(error.into());
        let written = Written::read(file).map_err(failed)?;
        let config = written.config().map_err(failed)?;
        let unsaved = self.texts().unsaved_but_for(&config);
        if !discard && !unsaved.is_empty() {
            return Err(NoReload::Unsaved(unsaved));
        }
        let reloaded = served.reload(config, &self.control, self.reactors);
        let Reloaded {
            summary,
            mut warnings,
            ..
        } = reloaded.map_err(NoReload::Failed)?;
        let undone = |change| {
            format!("a change that was made at run time is undone by this reload: {change}")
        };
        for words in unsaved.into_iter().map(undone) {
            tracing::warn!("{words}");
            warnings.push(words);
        }
        *self.texts() = Texts::of(written);
        Ok(Done {
            changes: summary,
            warnings,
        })
    }

    /// Warns of what the end of the process undoes.
    pub(crate) fn say_what_is_lost(&self) {
        for change in self.texts().unsaved() {
            tracing::warn!(
                "a change that was made at run time is in no file and goes with this process: {change}"
            );
        }
    }
}

/// That changes would go, with the ways out.
fn lost_by(command: &str, unsaved: &[String]) -> String {
    let them = unsaved.join("; ");
    format!(
        "changes that were made at run time are in no file, and would be undone: {them}: `capstan-target config save` keeps \
         them, `capstan-target {command} --discard` lets them go"
    )
}

fn no_file() -> anyhow::Error {
    anyhow!("there is no file to read again: the target was started with --export or --config -")
}

/// Locks what every holder leaves whole.
fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
