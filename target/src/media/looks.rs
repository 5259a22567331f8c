//! Looks at media, one after the other: what keeps one waiting holds up no other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use capstan_nvme_proto::nqn::Nqn;
use capstan_storage::Store;
use capstan_subsystem::BackendId;

use super::{Change, Watched};
use crate::control_plane::ControlPlane;
use crate::limits::MEDIA_SILENT;
use crate::lost::{Said, What};

/// A look at a volume.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) backend: BackendId,
    pub(super) store: Store,
    pub(super) subnqn: Nqn,
    pub(super) nsid: u32,
    pub(super) since: Instant,
    pub(super) has_told: bool,
}

impl Asked {
    pub(super) fn of(backend: BackendId, watched: &Watched) -> Self {
        Self {
            backend,
            store: watched.store.clone(),
            subnqn: watched.subnqn.clone(),
            nsid: watched.nsid,
            since: Instant::now(),
            has_told: false,
        }
    }

    /// Whether it takes long, which is said once.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let waited = now.duration_since(self.since);
        let is_due = waited >= MEDIA_SILENT && !self.has_told;
        if is_due {
            self.has_told = true;
            let Said { what, next, .. } = self.silent();
            tracing::error!(
                subnqn = %self.subnqn,
                nsid = self.nsid,
                reason = "medium-silent",
                "{what}: {next}"
            );
        }
        is_due
    }

    /// What the operator is told of it.
    pub(super) fn silent(&self) -> Said {
        let path = self.store.name().to_string();
        let seconds = MEDIA_SILENT.as_secs();
        Said {
            what: format!(
                "{path} has not answered for {seconds} s: what looks at it waits in the kernel, as commands of hosts may, \
                 and its size is not watched"
            ),
            next: "see whether what its file system is on is there, and the kernel log of this machine"
                .to_owned(),
            path,
        }
    }

    /// What hosts and the operator are told of it.
    pub(super) fn change(&self, is_sound: bool, silent: Option<Said>) -> (BackendId, Change) {
        let change = Change {
            subnqn: self.subnqn.clone(),
            nsid: self.nsid,
            geometry: None,
            lost: None,
            state: Some((What::Silent, silent)),
            is_sound,
        };
        (self.backend, change)
    }
}

/// Volumes that are looked at one after the other.
pub(super) struct Round {
    pub(super) left: Mutex<VecDeque<Asked>>,
    pub(super) resized: AtomicUsize,
}

impl Round {
    /// Looks at what is left on a thread: `false` when one of them has not answered for `patience`,
    /// and others wait behind it.
    pub(super) fn is_over_within(
        self: &Arc<Self>,
        patience: Duration,
        control: &Arc<ControlPlane>,
    ) -> bool {
        if self.left().is_empty() {
            return true;
        }
        let (done, looked) = mpsc::channel();
        let (round, plane) = (Arc::clone(self), Arc::clone(control));
        let looks = move || round.look(&plane, &done);
        if let Err(error) = thread::Builder::new().name("look".into()).spawn(looks) {
            tracing::debug!(%error, "no thread to look at media: they are looked at one after the other");
            self.look(control, &mpsc::channel().0);
            return true;
        }
        loop {
            match looked.recv_timeout(patience) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => return self.left().is_empty(),
            }
        }
    }

    /// Looks at what is left.
    fn look(&self, control: &ControlPlane, done: &mpsc::Sender<()>) {
        while let Some(asked) = self.next() {
            control.media().asked().insert(asked.backend, asked.clone());
            let look = asked.store.look();
            let is_resized = control.media().looked(&asked, look, control);
            let resized = usize::from(is_resized);
            self.resized.fetch_add(resized, Ordering::Relaxed);
            // Nobody waits any more for one that took long.
            let _ = done.send(());
        }
    }

    pub(super) fn left(&self) -> MutexGuard<'_, VecDeque<Asked>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Asked> {
        let asked = self.left().pop_front()?;
        let since = Instant::now();
        Some(Asked { since, ..asked })
    }
}
