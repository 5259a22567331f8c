//! What hosts know namespaces by: their NSIDs and UUIDs, which go with the medium and not with the
//! path or the place in the configuration.
//!
//! What each namespace was on is remembered in the state folder. The rules are in `table`; this
//! reads and writes, looks at files and devices, and says what has changed.

mod clash;
mod table;
mod words;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::bail;
use capstan_config::{Backing, Config, Namespace, Nqn, Subsystem, namespace_uuid};
use capstan_storage::{Layers, Lifetime, MediumId, Store};
use capstan_subsystem::NamespaceIdentity;
use uuid::Uuid;

use crate::limits::{NAMESPACES_KEPT, NAMESPACES_TEXT_BYTES_MAX, RESERVE_BYTES_MORE};
use crate::reservations::Reservations;
use crate::state::Reserve;
use crate::{instance, lba_size, state};
use clash::{Of, one_nguid, one_uuid};
use table::{Choice, Medium, Shown, Table};
use words::{Forgotten, Told, Unreadable, still_open};

/// In the state folder.
pub(crate) const FILE: &str = "namespaces.toml";
const HEAD: &str = "\
# What hosts know each namespace by, and the file or device that it was on; written by capstan-target.\n\
# Oldest first. `nsid` and `uuid` in the configuration say other ones.\n\n";

/// What hosts know namespaces by, of this process and of earlier ones.
#[derive(Debug)]
pub(crate) struct Identities {
    /// `None`: this process remembers, and no other one will.
    folder: Option<PathBuf>,
    table: Table,
    boot: Uuid,
    /// Not yet shown to hosts.
    chosen: Vec<Chosen>,
    /// Shown by this process, oldest first: that stands, whatever becomes of the file.
    told: Vec<Shown>,
    /// Some of that is not in the table.
    is_missing: bool,
    /// There was no table at the start, though a target has opened a file with this folder.
    is_lost: bool,
    /// Room for the table where its file system is full.
    reserve: Option<Reserve>,
    reservations: Reservations,
}

/// What is about to be shown, and what of.
#[derive(Debug)]
struct Chosen {
    namespace: Namespace,
    shown: Shown,
    replaces: bool,
}

/// What a host knows a namespace by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) shown: NamespaceIdentity,
    /// Hosts have seen another one in its place, however long ago.
    pub(crate) replaces: bool,
}

/// Whether what was chosen may be shown to hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Kept {
    Yes,
    /// Another target with the same state folder has chosen something meanwhile.
    ChooseAgain,
}

impl Identities {
    /// What is remembered in the state folder, where there is one.
    ///
    /// # Errors
    /// It cannot be read: hosts might take media for others.
    pub(crate) fn here() -> anyhow::Result<Self> {
        Self::here_for(true)
    }

    /// The same; without namespaces on paths nothing is forgotten that hosts would notice.
    ///
    /// # Errors
    /// As of [`here`](Self::here).
    pub(crate) fn here_for(has_paths: bool) -> anyhow::Result<Self> {
        let boot = instance::boot()?;
        match Self::in_folder(state::folder(), boot) {
            Ok(all) => Ok(all),
            // Nobody has said that the service's folder is for whoever starts this by hand.
            Err(Unreadable { file, error })
                if error.kind() == io::ErrorKind::PermissionDenied && state::is_by_default() =>
            {
                if has_paths {
                    tracing::warn!("{}", Forgotten(&file, &error));
                    tracing::warn!(
                        "reservations do not persist through power loss, and those that have are not known, as {} cannot be \
                         read: give the target a state folder of its own, or let it read and write that one",
                        file.display()
                    );
                }
                Ok(Self::in_folder(None, boot)?)
            }
            Err(unreadable) => Err(unreadable.into()),
        }
    }

    fn in_folder(folder: Option<PathBuf>, boot: Uuid) -> Result<Self, Unreadable> {
        let mut all = Self {
            // What is kept beside them has to last as they do.
            reservations: Reservations::in_folder(folder.clone().filter(|folder| lasts(folder))),
            folder,
            table: Table::default(),
            boot,
            chosen: Vec::new(),
            told: Vec::new(),
            is_missing: false,
            is_lost: false,
            reserve: None,
        };
        if let Some(folder) = &all.folder {
            let table = read(folder)?;
            all.is_lost = table.is_none() && folder.join(lba_size::FILE).exists();
            all.table = table.unwrap_or_default();
            all.table.forget_other_boots(boot);
        }
        Ok(all)
    }

    /// Reads the table once more: other targets may have remembered something, and it may have been
    /// removed or restored. What this process has told hosts stands.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn look_again(&mut self) -> anyhow::Result<()> {
        if let Some(folder) = &self.folder {
            self.table = read(folder)?.unwrap_or_default();
            self.table.forget_other_boots(self.boot);
            self.is_missing = false;
            for told in &self.told {
                self.is_missing |= self.table.remember_missing(told);
            }
        }
        Ok(())
    }

    /// What persists of reservations of namespaces with these identities.
    pub(crate) fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// The instance of the machine.
    pub(crate) fn boot(&self) -> Uuid {
        self.boot
    }

    /// The configuration with an NSID for each namespace; beside what is `served`, those stay.
    ///
    /// # Errors
    /// Two namespaces would have one UUID or one NGUID.
    pub(crate) fn number(
        &self,
        config: &Config,
        served: Option<&Config>,
    ) -> anyhow::Result<Config> {
        let mut config = config.clone();
        for subsystem in &mut config.subsystems {
            let nqn = &subsystem.nqn;
            let same = served.and_then(|s| s.subsystems.iter().find(|s| s.nqn == *nqn));
            self.table
                .number(subsystem, same, |path| Some(self.medium_at(path)?.0));
        }
        self.expected(&config, served)?;
        Ok(config)
    }

    /// Looks at the media of those that are not `served`.
    ///
    /// # Errors
    /// Two namespaces would have one UUID or one NGUID.
    pub(crate) fn check(&self, config: &Config, served: &Config) -> anyhow::Result<()> {
        self.expected(config, Some(served)).map(drop)
    }

    /// What each namespace on a path would be, by the path; of those that are `served` nothing,
    /// whose media are not looked at: a file system that does not answer would keep a reload
    /// waiting.
    fn expected<'c>(
        &self,
        config: &'c Config,
        served: Option<&Config>,
    ) -> anyhow::Result<Vec<Told<'c>>> {
        let (mut uuids, mut nguids) = (HashMap::new(), HashMap::new());
        let mut all = Vec::new();
        for subsystem in &config.subsystems {
            for namespace in &subsystem.namespaces {
                let Backing::Path(path) = &namespace.backing else {
                    continue;
                };
                let known = served
                    .filter(|served| has(served, &subsystem.nqn, namespace))
                    .and_then(|_| self.table.last(&subsystem.nqn, namespace.nsid));
                // What is served stays as it is.
                let is_set = namespace.uuid.is_some() || known.is_some();
                let choice = match known {
                    Some(known) => Choice {
                        uuid: known.uuid,
                        before: None,
                    },
                    None => match self.medium_at(path) {
                        Some((medium, lifetime)) if has_identity_of_medium(namespace, lifetime) => {
                            self.choose(&subsystem.nqn, namespace, &medium)
                        }
                        // Random, or opening it will tell.
                        _ => continue,
                    },
                };
                let place = (&subsystem.nqn, namespace.nsid);
                let of: Of<'_> = (place, path, is_set);
                if let Some(other) = uuids.insert(choice.uuid, of) {
                    bail!("{}", one_uuid(choice.uuid, of, other));
                }
                let nguid = nguid(namespace, choice.uuid);
                if let Some(other) = nguids.insert(nguid, place) {
                    bail!("{}", one_nguid(nguid, place, other));
                }
                all.push(Told {
                    subnqn: &subsystem.nqn,
                    nsid: namespace.nsid,
                    path: path.clone(),
                    choice,
                });
            }
        }
        Ok(all)
    }

    /// What a host knows the namespace on `store` by. Where the blocks do not last, the identity
    /// does not: under the old one a host would go on, over zeroes. What the operator has chosen
    /// stands.
    ///
    /// # Errors
    /// There are no random numbers.
    pub(crate) fn identity(
        &mut self,
        subnqn: &Nqn,
        namespace: &Namespace,
        store: &Store,
    ) -> anyhow::Result<Identity> {
        let (uuid, on) = match (&namespace.backing, store.medium_id()) {
            (Backing::Path(path), Some(id))
                if has_identity_of_medium(namespace, store.lifetime()) =>
            {
                let medium = self.medium(path, id.clone(), store.lifetime());
                (self.take(subnqn, namespace, &medium), Some(medium))
            }
            // Each store has its own.
            _ => (instance::random()?, None),
        };
        let (nqn, nsid) = (subnqn.clone(), namespace.nsid);
        let replaces = self.table.has_shown_others(&nqn, nsid, uuid);
        self.chosen.push(Chosen {
            namespace: namespace.clone(),
            shown: Shown {
                nqn,
                nsid,
                uuid,
                on,
            },
            replaces,
        });
        let shown = NamespaceIdentity {
            uuid: Some(uuid),
            nguid: Some(nguid(namespace, uuid)),
            eui64: None,
        };
        Ok(Identity { shown, replaces })
    }

    /// Chooses the UUID, and says what hosts will see.
    fn take(&self, subnqn: &Nqn, namespace: &Namespace, medium: &Medium) -> Uuid {
        let choice = self.choose(subnqn, namespace, medium);
        let uuid = choice.uuid;
        let told = Told {
            subnqn,
            nsid: namespace.nsid,
            path: medium.path.clone(),
            choice,
        };
        if told.choice.before.is_some() {
            tracing::warn!("{told}");
        }
        uuid
    }

    fn choose(&self, subnqn: &Nqn, namespace: &Namespace, medium: &Medium) -> Choice {
        let derived = namespace_uuid(subnqn, namespace.nsid);
        let derived = match medium.boot {
            Some(boot) => Uuid::new_v5(&boot, derived.as_bytes()),
            None => derived,
        };
        self.table
            .choose(subnqn, namespace.nsid, medium, namespace.uuid, derived)
    }

    /// Forgets what was chosen and not shown.
    pub(crate) fn drop_chosen(&mut self) {
        self.chosen.clear();
    }

    /// Remembers what was chosen: it is about to be shown to hosts.
    ///
    /// # Errors
    /// The table cannot be read any more: it is left as it is.
    pub(crate) fn keep(&mut self) -> anyhow::Result<Kept> {
        let chosen = std::mem::take(&mut self.chosen);
        let Some(folder) = self.folder.clone() else {
            self.remember(chosen);
            return Ok(Kept::Yes);
        };
        if chosen.is_empty() {
            return Ok(Kept::Yes);
        }
        // What cannot be locked is not written either, or its file system has no locks.
        let _lock = state::lock(&folder);
        self.look_again()?;
        if chosen.iter().any(|chosen| !self.is_still_right(chosen)) {
            return Ok(Kept::ChooseAgain);
        }
        let is_new = self.remember(chosen) || self.is_missing;
        let written = self.write(&folder, is_new);
        let file = folder.join(FILE);
        match written {
            Ok(()) if self.is_missing => tracing::warn!(
                "{} did not have all that this process has told hosts (it was removed, is an older one, or could not be \
                 written): that stands, and is written again",
                file.display()
            ),
            Ok(()) => {}
            Err(error) => tracing::warn!("{}", Forgotten(&file, &error)),
        }
        Ok(Kept::Yes)
    }

    /// Writes the table, if it `is_new`, and keeps room for the next one.
    fn write(&mut self, folder: &Path, is_new: bool) -> io::Result<()> {
        let text = toml::to_string(&self.table).map_err(io::Error::other)?;
        let text = format!("{HEAD}{text}");
        if is_new {
            state::write(folder, FILE, &text).or_else(|error| match self.reserve.take() {
                Some(reserve) => reserve.replace(folder, FILE, &text),
                None => Err(error),
            })?;
        }
        if self.reserve.is_none() {
            self.reserve = Reserve::new(folder, 2 * text.len() + RESERVE_BYTES_MORE).ok();
        }
        Ok(())
    }

    /// Whether what was chosen is what would be chosen now.
    fn is_still_right(&self, chosen: &Chosen) -> bool {
        let Chosen {
            namespace,
            shown,
            replaces,
        } = chosen;
        let uuid = match &shown.on {
            Some(medium) => self.choose(&shown.nqn, namespace, medium).uuid,
            None => shown.uuid,
        };
        let others = self.table.has_shown_others(&shown.nqn, shown.nsid, uuid);
        uuid == shown.uuid && others == *replaces
    }

    /// Returns whether that is new.
    fn remember(&mut self, chosen: Vec<Chosen>) -> bool {
        let mut is_new = false;
        for Chosen { shown, .. } in chosen {
            is_new |= self.table.remember(&shown);
            let is_it = |told: &Shown| {
                (&told.nqn, told.nsid, told.uuid) == (&shown.nqn, shown.nsid, shown.uuid)
            };
            self.told.retain(|told| !is_it(told));
            self.told.push(shown);
        }
        let too_many = self.told.len().saturating_sub(NAMESPACES_KEPT);
        self.told.drain(..too_many);
        is_new
    }

    /// That the table is not there, and may be lost, in words.
    pub(crate) fn lost(&self, config: &Config) -> Option<String> {
        let folder = self
            .folder
            .as_deref()
            .filter(|_| self.is_lost && depends(config))?;
        Some(format!(
            "{} is not there, though {} is: if it is lost, what hosts know each namespace by is forgotten. Each has the UUID of \
             a first start, so a host that is still attached may go on over a file or device that was another one before: \
             restore it if there is a backup, or detach every host before this target starts",
            folder.join(FILE).display(),
            folder.join(lba_size::FILE).display()
        ))
    }

    /// Whether hosts have had what is at this path, there or elsewhere.
    pub(crate) fn was_served(&self, path: &Path) -> bool {
        let mut known = self.table.all().iter();
        self.medium_at(path)
            .is_some_and(|(medium, _)| known.any(|known| known.is_on(&medium)))
    }

    fn medium_at(&self, path: &Path) -> Option<(Medium, Lifetime)> {
        let (id, lifetime) = (MediumId::at(path).ok()?, Lifetime::at(path).ok()?);
        Some((self.medium(path, id, lifetime), lifetime))
    }

    fn medium(&self, path: &Path, id: MediumId, lifetime: Lifetime) -> Medium {
        let others = self.table.all().iter();
        let others = others.filter(|known| known.path != path && known.has_facts_of(&id));
        let twins = others.filter(|known| is_twin(&known.path, path, &id));
        Medium {
            path: path.to_owned(),
            boot: (lifetime == Lifetime::Boot).then_some(self.boot),
            twins: twins.map(|known| known.path.clone()).collect(),
            id,
        }
    }
}

/// Whether the table says what a namespace of `config` is known by.
fn depends(config: &Config) -> bool {
    let mut namespaces = config.subsystems.iter().flat_map(Subsystem::configured);
    namespaces.any(|n| n.backing.lasts() && n.uuid.is_none())
}

/// Whether what is written in a folder is there after the machine has started anew.
fn lasts(folder: &Path) -> bool {
    Lifetime::at(folder).is_ok_and(|lifetime| lifetime == Lifetime::Lasting)
}

/// Whether hosts know a namespace by what it is on, or by what the operator has chosen.
fn has_identity_of_medium(namespace: &Namespace, lifetime: Lifetime) -> bool {
    lifetime != Lifetime::Store || namespace.uuid.is_some()
}

fn nguid(namespace: &Namespace, uuid: Uuid) -> [u8; 16] {
    namespace.nguid.unwrap_or_else(|| uuid.into_bytes())
}

/// Whether a namespace of `config` is on the same path under the same name.
fn has(config: &Config, nqn: &Nqn, namespace: &Namespace) -> bool {
    let mut subsystems = config.subsystems.iter().filter(|s| s.nqn == *nqn);
    let is_it = |n: &Namespace| n.nsid == namespace.nsid && n.backing == namespace.backing;
    subsystems.any(|subsystem| subsystem.namespaces.iter().any(is_it))
}

/// Whether both paths lead to files with these facts, or to loop devices on some, and not to one
/// file: a snapshot has the inodes of what it is of. Two devices with one name are two ways to one
/// disk.
pub(crate) fn is_twin(a: &Path, b: &Path, id: &MediumId) -> bool {
    let file = |path: &Path| Layers::of(path).ok()?.file();
    let (Some(at_a), Some(at_b)) = (file(a), file(b)) else {
        return false;
    };
    at_a != at_b && MediumId::at(a).is_ok_and(|there| there.is_same(id) == Some(true))
}

/// Whether what is remembered can be read, whatever is configured.
///
/// # Errors
/// It cannot: a target would not start.
pub(crate) fn look() -> anyhow::Result<()> {
    Identities::here().map(drop)
}

/// The configuration with the NSIDs that hosts see, as far as that can be told: for what is said of
/// namespaces before one is served.
#[must_use]
pub fn numbered(config: &Config) -> Config {
    let numbered = Identities::here().and_then(|identities| identities.number(config, None));
    // Why not is said by what needs them.
    numbered.unwrap_or_else(|_| config.clone())
}

/// What `check` says of identities; the configuration with NSIDs.
///
/// # Errors
/// What would keep the target from serving it.
pub fn check(config: &Config, warnings: &mut Vec<String>) -> anyhow::Result<Config> {
    let identities = Identities::here()?;
    let config = identities.number(config, None)?;
    let expected = identities.expected(&config, None)?;
    for told in &expected {
        if let Some(before) = &told.choice.before {
            warnings.push(told.to_string());
            warnings.extend(still_open(before, &told.path));
        }
    }
    warnings.extend(identities.lost(&config));
    Ok(config)
}

/// `None` where there is none; one that says nothing is none that was written here.
fn read(folder: &Path) -> Result<Option<Table>, Unreadable> {
    let table = || -> io::Result<Option<Table>> {
        let Some(text) = state::read(folder, FILE, NAMESPACES_TEXT_BYTES_MAX)? else {
            return Ok(None);
        };
        let table: Table = toml::from_str(&text).map_err(|error| state::not_toml(&text, &error))?;
        match table.is_empty() {
            true => Err(io::Error::other("it is there, and names no namespace")),
            false => Ok(Some(table)),
        }
    };
    table().map_err(|error| Unreadable {
        file: folder.join(FILE),
        error,
    })
}

#[cfg(test)]
mod tests;
