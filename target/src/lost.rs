//! Volumes that have lost writes: what a target knows of them, and what it leaves for `doctor` and
//! for the targets after it.

mod checks;
mod kept;
mod note;
pub(crate) mod running;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use capstan_config::word_of;
use capstan_nvme_proto::text::Word;
use capstan_reactor::log::LastLines;
use capstan_storage::IoError;
use capstan_subsystem::BackendId;
use nix::errno::Errno;

use crate::plan::Export;
pub(crate) use kept::Noted;

use kept::Kept;
use note::Note;
use running::Running;

pub(crate) use checks::checks;
pub use checks::{clear, warnings};
pub(crate) use running::{Said, What, prepare};

/// What the volumes of this process have lost.
#[derive(Debug)]
pub(crate) struct Lost {
    running: Running,
    kept: Arc<Kept>,
}

impl Lost {
    /// Of this process, as a service or not.
    pub(crate) fn new() -> Self {
        Self {
            running: Running::new(),
            kept: Arc::new(Kept::here()),
        }
    }

    /// What hosts were told of as stored is gone.
    pub(crate) fn add(&self, backend: BackendId, what: What, said: Said) {
        self.running.add(backend, what, || dated(said));
    }

    /// A volume is in such a state from now on; `None`: not any more.
    pub(crate) fn set(&self, backend: BackendId, what: What, said: Option<Said>) {
        self.running.set(backend, what, said.map(dated));
    }

    /// A volume has lost writes. Before anybody is told, or soon after, that is noted for good.
    pub(crate) fn add_writes(&self, export: &Export, error: &IoError) {
        // Every Flush of a volume that was cut fails: that is no other loss, and the next look at
        // its size tells of it.
        if export.store.is_cut() || self.running.has(export.backend, What::End) {
            return;
        }
        let errno = error.errno.unwrap_or_default();
        let note = note(export, What::Writes, errno, error.to_string());
        let next = self.next(&note);
        self.add_noted(export, note, next);
    }

    /// A volume was cut short: what was behind its end is gone, and comes back with no size that it
    /// is given again. So a Flush promises nothing more.
    pub(crate) fn add_cut(&self, export: &Export, said: Said) {
        // Of one that is exported for reading nothing was promised here.
        if export.store.geometry().read_only {
            return self.add(export.backend, What::End, said);
        }
        let errno = Errno::EIO as i32;
        export.store.lost_before(errno);
        let Said { what, next, .. } = said;
        self.add_noted(export, note(export, What::End, errno, what), next);
    }

    fn add_noted(&self, export: &Export, note: Note, next: String) {
        self.running.add(export.backend, note.kind, || {
            let said = said(&note, next);
            Arc::clone(&self.kept).keep(export, note);
            said
        });
    }

    /// A volume is about to be served: has it lost writes that nobody has cleared?
    pub(crate) fn find(&self, export: &Export) {
        for note in self.kept.find(export) {
            export.store.lost_before(note.errno);
            let kind = note.kind;
            self.running
                .add(export.backend, kind, || said(&note, self.next(&note)));
            let path = export.store.name();
            let word = Word::path(path.as_bytes());
            let Note { when, what, .. } = &note;
            let or_restart = match export.store.geometry().read_only {
                true => "; a stop of this target does not clear it, as it only reads",
                false => ", or restart this target",
            };
            tracing::error!(
                "{path} has lost writes that hosts were told of as done, at {when} ({what}). The target that served it then \
                 was not stopped in order, so nobody has cleared it: every Flush and FUA write of this volume fails. Mend the \
                 file system or device, and check or restore what is on the volume. Then `capstan-target clear-lost-writes \
                 {word}` and reload{or_restart}"
            );
        }
    }

    /// What is to be done of a loss that is noted, or would be if there were a state folder.
    fn next(&self, note: &Note) -> String {
        let path = note.path.display();
        let mend = match note.kind {
            What::End => "look for who has cut it, make it as long as it was",
            _ => "mend the file system or device",
        };
        let clear = match self.kept.has_folder() {
            true => format!(
                "`capstan-target clear-lost-writes {}` and reload",
                word_of(&note.path)
            ),
            false => "restart the target: there is no state folder that remembers it".to_owned(),
        };
        format!(
            "every Flush fails until it is cleared: {mend}, and check or restore what is on {path}. Then {clear}"
        )
    }

    /// Every volume has been looked for: tells of notes that cannot be read and are of none of
    /// them.
    pub(crate) fn tell_of_unreadable(&self) {
        // A folder that does not answer is said to.
        let _ = self.kept.ask(Kept::tell_of_unreadable);
    }

    /// What is wrong with volumes, in a line.
    pub(crate) fn in_brief(&self) -> Option<String> {
        self.running.in_brief()
    }

    /// Volumes that have lost something.
    pub(crate) fn backends(&self) -> Vec<BackendId> {
        self.running.backends()
    }

    /// Notes that could not be written are tried again.
    pub(crate) fn look(&self) {
        self.kept.look();
    }

    /// Volumes whose notes the operator has cleared.
    pub(crate) fn cleared_by_command(&self) -> Vec<BackendId> {
        let cleared = self.kept.ask(Kept::cleared);
        cleared.unwrap_or_else(|| {
            if self.has_any() {
                tracing::warn!(
                    "whether lost writes were cleared by `capstan-target clear-lost-writes` is not known, as {} does not \
                     answer: reload again when it does",
                    self.kept.place()
                );
            }
            Vec::new()
        })
    }

    fn has_any(&self) -> bool {
        !self.running.backends().is_empty()
    }

    /// The operator has cleared what a volume has lost.
    pub(crate) fn forget(&self, backend: BackendId) {
        self.kept.forget(backend);
        self.running.forget(backend);
    }

    /// A volume is closed: what it has lost is the operator's now.
    pub(crate) fn remove(&self, backend: BackendId) {
        let removed = self
            .kept
            .ask(move |kept| kept.remove(|of, _| of == backend));
        if removed.is_none() && self.has_any() {
            tracing::error!(
                "what a volume has lost that a reload has taken out of the configuration is cleared when {} answers, and not \
                 before",
                self.kept.place()
            );
        }
        for (path, removed) in removed.unwrap_or_default() {
            match removed {
                Ok(()) => tracing::warn!(
                    "what {path} has lost is cleared, as a reload has taken it out of the configuration: check or restore \
                     what is on it before it is put back"
                ),
                Err(error) => tracing::error!("what {path} has lost is not cleared: {error}"),
            }
        }
        self.running.remove(backend);
    }

    /// Volumes whose loss is noted by now.
    pub(crate) fn noted(&self) -> Vec<Noted> {
        let noted = self.kept.ask(Kept::noted);
        if noted.is_none() && self.has_any() {
            let of = format!("volumes ({} does not answer)", self.kept.place());
            say_not_cleared(&of, "PATH", "by this stop");
        }
        noted.unwrap_or_default()
    }

    /// The target was asked to stop before it served anybody, so it has told nobody.
    pub(crate) fn stopped_before_it_served(&self, noted: &[Noted]) {
        for Noted { path, .. } in noted {
            say_not_cleared(
                path,
                path,
                "by this stop, which came before this target was ready",
            );
        }
    }

    /// The target has stopped as it was asked to: what was told before that is the operator's now.
    /// What was lost meanwhile is not. That is in the log before anything of it is gone.
    pub(crate) fn stopped_in_order(&self, before: &[Noted], log: &LastLines) {
        for Noted { path, .. } in before.iter().filter(|noted| noted.is_for_writing) {
            tracing::warn!(
                "what {path} has lost is cleared, as this target was asked to stop: the next start takes what is on it for \
                 good. Check or restore it before"
            );
        }
        log.flush();
        let before_that: BTreeSet<_> = before.iter().map(|n| (n.backend, n.name.clone())).collect();
        let is_of = move |backend, name: &str| before_that.contains(&(backend, name.to_owned()));
        match self.kept.ask(|kept| kept.remove(is_of)) {
            Some(removed) => {
                for (path, removed) in removed {
                    if let Err(error) = removed {
                        say_not_cleared(&path, &path, &format!("by this stop: {error}"));
                    }
                }
            }
            None => {
                let why = format!("by this stop: {} does not answer", self.kept.place());
                for Noted { path, .. } in before {
                    say_not_cleared(path, path, &why);
                }
            }
        }
    }
}

fn say_not_cleared(of: &str, path: &str, why: &str) {
    let word = Word::path(path.as_bytes());
    tracing::error!(
        "what {of} has lost is not cleared {why}; the next start finds it, and every Flush fails until `capstan-target \
         clear-lost-writes {word}`"
    );
}

fn now() -> String {
    shown(SystemTime::now())
}

fn shown(when: SystemTime) -> String {
    humantime::format_rfc3339_seconds(when).to_string()
}

fn dated(said: Said) -> Said {
    let what = format!("{}: {}", now(), said.what);
    Said { what, ..said }
}

/// What `doctor` is told of a loss.
fn said(note: &Note, next: String) -> Said {
    Said {
        path: note.path.display().to_string(),
        what: note.line(),
        next,
    }
}

fn note(export: &Export, kind: What, errno: i32, what: String) -> Note {
    let store = &export.store;
    Note {
        path: store.name().to_string().into(),
        subnqn: export.subnqn.as_str().to_owned(),
        nsid: export.nsid,
        when: now(),
        kind,
        errno,
        what,
        medium: store
            .medium_id()
            .map(|medium| medium.facts().clone())
            .unwrap_or_default(),
    }
}
