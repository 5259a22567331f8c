//! Operations that failed by what their volume is on: told at once, and then counted.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::text::Word;
use capstan_storage::{IoError, IoErrorKind};
use capstan_subsystem::BackendId;
use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::Media;
use crate::control_plane::ControlPlane;
use crate::limits::MEDIA_SAID_AGAIN;
use crate::lost::Said;

impl Media {
    /// An operation failed by what its volume is on.
    pub(crate) fn failed(&self, backend: BackendId, error: &IoError) {
        if !is_of_the_medium(error) {
            return;
        }
        let mut failures = self.failures();
        let of = failures.entry((backend, error.kind)).or_default();
        if of.add(error, Instant::now()) {
            let seconds = MEDIA_SAID_AGAIN.as_secs();
            let limit = of
                .limit
                .as_deref()
                .map_or_else(String::new, |limit| format!(": {limit}"));
            let named = self.named(backend);
            tracing::error!(
                subnqn = named.as_ref().map(|(subnqn, _)| subnqn.to_string()),
                nsid = named.as_ref().map(|(_, nsid)| *nsid),
                reason = "medium-failed",
                "{error}{limit}; while it goes on this is said again every {seconds} s, with a count"
            );
        }
    }

    /// The namespace on a backend.
    fn named(&self, backend: BackendId) -> Option<(Nqn, u32)> {
        let volumes = self.volumes();
        let watched = volumes.get(&backend)?;
        Some((watched.subnqn.clone(), watched.nsid))
    }

    pub(super) fn say_failures_again(&self, now: Instant, control: &ControlPlane) {
        let mut failures = self.failures();
        let mut changed = BTreeSet::new();
        failures.retain(|&(backend, _), of| {
            if !std::mem::replace(&mut of.is_noted, true) {
                changed.insert(backend);
            }
            let Some((count, last)) = of.take_if_due(now) else {
                return true;
            };
            let seconds = MEDIA_SAID_AGAIN.as_secs();
            if count > 0 {
                tracing::error!(
                    reason = "medium-failed",
                    "{count} more in {seconds} s were like this: {last}"
                );
            } else {
                tracing::info!(
                    "for {seconds} s nothing has failed any more like this: {}",
                    of.first
                );
            }
            // Quiet for that long: the next one is news.
            if count == 0 {
                changed.insert(backend);
            }
            count > 0
        });
        let states: Vec<_> = changed
            .into_iter()
            .map(|backend| (backend, failing(&failures, backend)))
            .collect();
        drop(failures);
        for (backend, (said, is_read_only)) in states {
            control.medium_failing(backend, said, is_read_only);
        }
    }
}

/// What fails on a volume, for the operator, and whether it cannot be written to.
pub(super) fn failing(
    failures: &HashMap<(BackendId, IoErrorKind), Failures>,
    backend: BackendId,
) -> (Option<Said>, bool) {
    let of_it = || failures.iter().filter(|((of, _), _)| *of == backend);
    let is_read_only = of_it().any(|((_, kind), _)| *kind == IoErrorKind::ReadOnly);
    let first = of_it().min_by_key(|(_, of)| of.since);
    let said = first.map(|((_, kind), of)| Said {
        path: of.path.clone(),
        what: of.first.clone(),
        next: format!(
            "{}; this is gone when nothing has failed so for {} s",
            of.limit
                .clone()
                .unwrap_or_else(|| what_mends(*kind, &of.path)),
            MEDIA_SAID_AGAIN.as_secs()
        ),
    });
    (said, is_read_only)
}

fn what_mends(kind: IoErrorKind, path: &str) -> String {
    match kind {
        IoErrorKind::NoSpace => format!(
            "free some of what the file system has (`df {path}` shows it), or make the device below larger: no restart is \
             needed",
            path = Word::path(path.as_bytes())
        ),
        _ => "see the kernel log of this machine, and mend that".to_owned(),
    }
}

/// That a write was beyond RLIMIT_FSIZE (setrlimit(2)), and what raises that.
fn file_size_limit(error: &IoError) -> Option<String> {
    let is_beyond = error.errno == Some(Errno::EFBIG as i32);
    let (bytes, _) = getrlimit(Resource::RLIMIT_FSIZE).ok()?;
    (is_beyond && bytes != RLIM_INFINITY).then(|| {
        format!(
            "writes end at {bytes} bytes (RLIMIT_FSIZE of this process), expected the whole file: raise that (`prlimit --pid \
             {} --fsize=unlimited` now, `ulimit -f unlimited` or LimitFSIZE=infinity in its unit before the next start)",
            std::process::id()
        )
    })
}

/// Whether it is the medium that keeps an operation from being done: not the host's mistake, and
/// not told elsewhere ([`crate::lost`], and a changed size by [`Media::look`]).
fn is_of_the_medium(error: &IoError) -> bool {
    match error.kind {
        IoErrorKind::NoSpace
        | IoErrorKind::Medium
        | IoErrorKind::Device
        | IoErrorKind::Gone
        | IoErrorKind::NoMemory
        | IoErrorKind::Other => true,
        // The kernel's word, not that of the configuration.
        IoErrorKind::ReadOnly => error.errno.is_some(),
        _ => false,
    }
}

/// Failures of one kind on one volume, since the first was told.
#[derive(Debug, Default)]
pub(super) struct Failures {
    since: Option<Instant>,
    path: String,
    first: String,
    /// The limit of this process that it was beyond, and what raises that.
    limit: Option<String>,
    /// Whether `doctor` can find it.
    is_noted: bool,
    more: u64,
    last: String,
}

impl Failures {
    /// Counts one; whether it is the first, and to be told at once.
    fn add(&mut self, error: &IoError, now: Instant) -> bool {
        if self.since.is_none() {
            self.since = Some(now);
            self.path = error.volume.to_string();
            self.first = error.to_string();
            self.limit = file_size_limit(error);
            return true;
        }
        self.more += 1;
        if self.more == 1 {
            self.last = error.to_string();
        }
        false
    }

    /// How many more there were and what the first of them was like, once the time is over.
    fn take_if_due(&mut self, now: Instant) -> Option<(u64, String)> {
        let since = self.since?;
        if now.duration_since(since) < MEDIA_SAID_AGAIN {
            return None;
        }
        self.since = Some(now);
        Some((
            std::mem::take(&mut self.more),
            std::mem::take(&mut self.last),
        ))
    }
}

#[cfg(test)]
mod tests;
