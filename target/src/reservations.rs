//! Reservations that persist through power loss: a small file in the state folder for each
//! namespace whose hosts want that, named by its UUID, which goes with the medium
//! ([`identities`](crate::identities)).
//!
//! A change takes effect, and its command is answered, when it is in the file, for good. A thread
//! writes: no reactor waits for a disk.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::{fs, io, thread};

use capstan_nvme_proto::nqn::Nqn;
use capstan_reactor::Clock;
use capstan_subsystem::{KeepId, KeptReservations, Persistence, ReservationsToKeep};
use uuid::Uuid;

use crate::control_plane::ControlPlane;
use crate::limits::RESERVATIONS_TEXT_BYTES_MAX;
use crate::state;
use text::Text;

mod text;

/// What is to be found by the next start; `None`: nothing.
type State = Option<KeptReservations>;

/// The parts of the name of a file around the UUID.
const PREFIX: &str = "reservations-";
const SUFFIX: &str = ".toml";

/// The thread that writes, as the controllers see it.
#[derive(Debug)]
pub(crate) struct Keeper {
    reservations: Reservations,
    // Of each namespace there is one at most, and one more where it went and came back.
    sender: mpsc::Sender<(KeepId, ReservationsToKeep)>,
}

impl Keeper {
    /// As [`Reservations::unknown`].
    pub(crate) fn unknown(&self) -> Vec<String> {
        self.reservations.unknown()
    }

    /// Has these put on stable storage, behind those that came before.
    pub(crate) fn keep(&self, keep: KeepId, kept: ReservationsToKeep) {
        self.reservations.note(kept.uuid, &kept.state);
        if self.sender.send((keep, kept)).is_err() {
            tracing::error!(
                "the thread that keeps reservations has ended, and commands that change those which persist are not answered: \
                 restart the target"
            );
        }
    }
}

/// The files, and what this process has put there or is about to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservations(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// `None`: nothing can persist.
    folder: Option<PathBuf>,
    namespaces: Mutex<HashMap<Uuid, Known>>,
    /// The log knows that it cannot be written.
    said: AtomicBool,
}

/// The namespace that a file is of, which the file names for an operator.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) subnqn: Nqn,
    pub(crate) nsid: u32,
    pub(crate) path: PathBuf,
}

#[derive(Debug)]
struct Known {
    named: Named,
    /// What is on stable storage, if this process knows.
    durable: Option<State>,
    /// The same, or what is about to be there.
    newest: Option<State>,
    /// The file that is there could not be read.
    is_damaged: bool,
}

/// The name of a namespace's file.
fn file_name(uuid: Uuid) -> String {
    format!("{PREFIX}{uuid}{SUFFIX}")
}

/// Of the files in a state folder that cannot be read, why not, a line each.
pub(crate) fn unreadable(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let lines = names.filter_map(|name| {
        let uuid = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        let error = read(folder, uuid.parse().ok()?).err()?;
        Some(format!(
            "{}: {error}; the reservations of that namespace are not known, and hosts are kept out until one clears them: \
             restore that file, or remove it if no host relies on a reservation",
            folder.join(&name).display()
        ))
    });
    lines.collect()
}

impl Reservations {
    pub(crate) fn in_folder(folder: Option<PathBuf>) -> Self {
        Self(Arc::new(Inner {
            folder,
            ..Inner::default()
        }))
    }

    /// Held for moments only: a reactor may wait for it.
    fn namespaces(&self) -> MutexGuard<'_, HashMap<Uuid, Known>> {
        // Every call leaves it whole; a panic elsewhere does not spoil it.
        self.0
            .namespaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What persists of a namespace on a medium that lasts. What cannot be read is told in the log.
    pub(crate) fn found(&self, uuid: Uuid, named: Named) -> Persistence {
        let Some(folder) = &self.0.folder else {
            return Persistence::None;
        };
        let found = match self.newest(uuid) {
            Some(state) => Ok(state),
            None => read(folder, uuid),
        };
        let known = Known {
            named: named.clone(),
            durable: found.as_ref().ok().cloned(),
            newest: found.as_ref().ok().cloned(),
            is_damaged: found.is_err(),
        };
        let mut namespaces = self.namespaces();
        match namespaces.get_mut(&uuid) {
            // What has been noted meanwhile stands.
            Some(of) if of.newest.is_some() => of.named = named.clone(),
            _ => drop(namespaces.insert(uuid, known)),
        }
        drop(namespaces);
        match found {
            Ok(None) => Persistence::Ready,
            Ok(Some(kept)) => {
                let Named { subnqn, nsid, .. } = named;
                let registrants = kept.registrants.len();
                tracing::info!(
                    %subnqn,
                    nsid,
                    "namespace {nsid} of {subnqn}: its reservations have persisted, with hosts registered: {registrants}"
                );
                Persistence::Found(kept)
            }
            Err(error) => {
                tracing::error!(
                    subnqn = %named.subnqn,
                    nsid = named.nsid,
                    reason = "reservations-damaged",
                    "{}",
                    named.lost(&folder.join(file_name(uuid)), &error)
                );
                Persistence::Unknown
            }
        }
    }

    /// What this process has put there or is about to: of a namespace that was served until now, it
    /// may be newer than what was found. `None`: nothing yet.
    pub(crate) fn newest(&self, uuid: Uuid) -> Option<State> {
        self.namespaces().get(&uuid)?.newest.clone()
    }

    /// A namespace with this UUID comes in the place of one that went just now.
    pub(crate) fn refresh(&self, uuid: Option<Uuid>, found: &mut Persistence) {
        if let Some(newest) = uuid.and_then(|uuid| self.newest(uuid))
            && *found != Persistence::None
        {
            *found = newest.map_or(Persistence::Ready, Persistence::Found);
        }
    }

    /// Namespaces whose reservations are not known, a line each.
    pub(crate) fn unknown(&self) -> Vec<String> {
        let Some(folder) = &self.0.folder else {
            return Vec::new();
        };
        let namespaces = self.namespaces();
        let damaged = namespaces.iter().filter(|(_, known)| known.is_damaged);
        let mut lines: Vec<_> = damaged
            .map(|(uuid, known)| {
                let Named { subnqn, nsid, .. } = &known.named;
                format!(
                    "namespace {nsid} of {subnqn}: no host can read or write it, as {} cannot be read: restore that file, or \
                     remove it if no host relies on a reservation, and restart; or have a host register and clear",
                    folder.join(file_name(*uuid)).display()
                )
            })
            .collect();
        lines.sort();
        lines
    }

    /// Puts a state on stable storage, or leaves what is there. Returns whether it is there.
    fn write(&self, uuid: Uuid, state: &State) -> bool {
        let Some(folder) = &self.0.folder else {
            return false;
        };
        let (named, durable, is_damaged) = match self.namespaces().get(&uuid) {
            Some(known) => (
                Some(known.named.clone()),
                known.durable.clone(),
                known.is_damaged,
            ),
            None => (None, None, false),
        };
        if is_damaged {
            put_aside(folder, uuid);
        }
        let written = put(folder, uuid, named.as_ref(), state);
        if let Err(error) = &written {
            self.tell_once(&folder.join(file_name(uuid)), error);
            // It may be there and not last: the next start is not to find what hosts were told has
            // failed.
            if let Some(before) = &durable
                && read(folder, uuid).is_ok_and(|there| there != *before)
                && let Err(error) = put(folder, uuid, named.as_ref(), before)
            {
                tracing::error!(
                    "{} may have what a host was told has failed, after a power loss: {error}",
                    folder.join(file_name(uuid)).display()
                );
            }
        } else {
            self.0.said.store(false, Ordering::Relaxed);
        }
        if let Some(known) = self.namespaces().get_mut(&uuid) {
            match &written {
                Ok(()) => {
                    known.durable = Some(state.clone());
                    known.is_damaged = false;
                }
                // One that comes later asks the file where nothing is known of it.
                Err(_) => known.newest.clone_from(&known.durable),
            }
        }
        written.is_ok()
    }

    fn tell_once(&self, file: &Path, error: &io::Error) {
        if !self.0.said.swap(true, Ordering::Relaxed) {
            tracing::error!(
                reason = "reservations-not-kept",
                "reservations cannot be kept in {}: {error}. Commands that would change those which persist through power \
                 loss fail (Internal Error) and change nothing until they can: make room there, or let this process write \
                 there",
                file.display()
            );
        }
    }

    /// Starts the thread that keeps what hosts change, for as long as there is a control plane.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(crate) fn start(&self, control: &Arc<ControlPlane>) -> io::Result<Keeper> {
        let (sender, receiver) = mpsc::channel();
        let (kept, control) = (self.clone(), Arc::downgrade(control));
        thread::Builder::new()
            .name("reservations".to_owned())
            .spawn(move || kept.run(&receiver, &control))?;
        Ok(Keeper {
            reservations: self.clone(),
            sender,
        })
    }

    fn run(
        &self,
        receiver: &mpsc::Receiver<(KeepId, ReservationsToKeep)>,
        control: &Weak<ControlPlane>,
    ) {
        while let Ok((keep, ReservationsToKeep { uuid, state })) = receiver.recv() {
            let written = self.write(uuid, &state);
            let Some(control) = control.upgrade() else {
                return;
            };
            control.with(|target| {
                target.handle_reservations_kept(keep, written, Clock.now_us());
            });
        }
    }

    /// This is about to be written.
    fn note(&self, uuid: Uuid, state: &State) {
        if let Some(known) = self.namespaces().get_mut(&uuid) {
            known.newest = Some(state.clone());
        }
    }
}

impl Named {
    /// What is lost, what hosts get, and what to do, in words.
    fn lost(&self, file: &Path, error: &io::Error) -> String {
        let Self { subnqn, nsid, path } = self;
        format!(
            "namespace {nsid} of {subnqn} ({}): its reservations that were to persist through power loss are not known: {}: \
             {error}. As a host may rely on one, no host can read or write it (Reservation Conflict). Restore that file and \
             restart; or remove it, if no host relies on a reservation, and restart; or have a host register and clear \
             (`nvme resv-register`, `nvme resv-release --rrela=1`)",
            path.display(),
            file.display()
        )
    }
}

fn read(folder: &Path, uuid: Uuid) -> io::Result<State> {
    let text = state::read(folder, &file_name(uuid), RESERVATIONS_TEXT_BYTES_MAX)?;
    text.map(|text| Text::from_file(&text, uuid)).transpose()
}

fn put(folder: &Path, uuid: Uuid, named: Option<&Named>, state: &State) -> io::Result<()> {
    let name = file_name(uuid);
    match state {
        Some(state) => {
            let text = Text::new(uuid, named, state).to_file()?;
            state::write(folder, &name, &text)
        }
        None => state::remove(folder, &name),
    }
}

/// Keeps a file that could not be read for the operator. It stays under its name as well: without
/// it, the next start would take the namespace for one that nothing has been kept of.
fn put_aside(folder: &Path, uuid: Uuid) {
    let file = folder.join(file_name(uuid));
    let aside = file.with_extension("toml.damaged");
    let put = match fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::hard_link(&file, &aside),
    };
    match put {
        Ok(()) => tracing::warn!(
            "{} is written anew; what could not be read of it is in {}",
            file.display(),
            aside.display()
        ),
        Err(error) => tracing::warn!(
            "{} is written anew, and what could not be read of it is lost: {error}",
            file.display()
        ),
    }
}

#[cfg(test)]
mod tests;
