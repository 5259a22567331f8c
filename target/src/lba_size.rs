//! The LBA size of an exported file: chosen once, and never again by its size.
//!
//! A file has no LBA size of its own, but what hosts have put on it depends on one: a GPT lies at
//! LBA 1. So what a file was exported with is remembered in the state folder, by the namespace's
//! UUID and the file's path. A block device says its LBA size itself (`device`), and is remembered
//! by what it is on; what is in memory is new each time.

mod device;
mod dos;
mod evidence;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::{io, mem};

use anyhow::{anyhow, bail};
use capstan_config::{Backing, Config, LbaSize, Namespace, Nqn, namespace_uuid};
use capstan_nvme_proto::text::Count;
use capstan_storage::MediumId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::identities::Identities;
use crate::limits::{LBA_SIZES_KEPT, LBA_SIZES_TEXT_BYTES_MAX};
use crate::{identities, plan, state};
use dos::DosTable;
use evidence::{Evidence, HAS_TABLE};

/// In the state folder.
pub(crate) const FILE: &str = "lba-sizes.toml";
const HEAD: &str = "\
# The LBA size that each exported file or device is used with, by namespace and path; written by capstan-target.\n\
# What hosts have on a file depends on it: `lba` in the configuration says another one.\n\n";
/// What to open a namespace with, and what is to be said of that.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// `None` leaves it to what the namespace is on.
    pub(crate) size: Option<LbaSize>,
    pub(crate) warning: Option<String>,
}

/// A namespace that is not served, as its LBA size cannot be known. The others are.
#[derive(Debug)]
pub(crate) struct Unknown {
    pub(crate) subnqn: Nqn,
    pub(crate) namespace: Namespace,
    why: anyhow::Error,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nsid = self.namespace.nsid;
        write!(
            f,
            "namespace {nsid} of {} is not served: {:#}",
            self.subnqn, self.why
        )
    }
}

impl Chosen {
    fn with(size: LbaSize, warning: Option<String>) -> Self {
        Self {
            size: Some(size),
            warning,
        }
    }
}

/// What is remembered.
#[derive(Debug)]
pub(crate) struct LbaSizes {
    /// `None`: this process remembers, and no other one will.
    folder: Option<PathBuf>,
    /// `Err`: something is remembered, and cannot be read.
    table: io::Result<Table>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Oldest first.
    namespace: Vec<Known>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    uuid: Uuid,
    path: PathBuf,
    lba: u32,
    /// What the file is known by wherever it is; empty where nothing lasts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    medium: BTreeMap<String, String>,
}

impl LbaSizes {
    /// Of this process: what earlier ones have remembered in the state folder, where there is one.
    pub(crate) fn here() -> Self {
        state::folder().map_or_else(Self::default, Self::in_folder)
    }

    fn in_folder(folder: PathBuf) -> Self {
        let table = read(&folder);
        Self {
            folder: Some(folder),
            table,
        }
    }

    /// Other targets may have remembered something meanwhile.
    pub(crate) fn look_again(&mut self) {
        let Some(folder) = &self.folder else { return };
        let before = mem::replace(&mut self.table, read(folder));
        if let (Ok(table), Ok(before)) = (&mut self.table, before) {
            // What could not be written, or was removed.
            let there: HashSet<_> = table.namespace.iter().map(|k| k.path.clone()).collect();
            let mut missing = before.namespace;
            missing.retain(|known| !there.contains(&known.path));
            if missing.is_empty() {
                return;
            }
            let file = folder.join(FILE);
            match keep(folder, &missing) {
                Ok(()) => tracing::warn!(
                    "{} did not say the LBA size of each file that this process has opened (it was removed, is an older one, \
                     or could not be written): that is written now",
                    file.display()
                ),
                Err(error) => tracing::warn!(
                    "{} does not say the LBA size of each file that this process has opened, and cannot be written: {error}",
                    file.display()
                ),
            }
            table.namespace.append(&mut missing);
        }
    }

    /// The LBA size to open a namespace with. `was_served` says of a file whether hosts have had
    /// it, as far as that is remembered elsewhere.
    ///
    /// # Errors
    /// What the file was used with cannot be read or is forgotten, and nothing on it tells: hosts
    /// might not find what they have on it.
    pub(crate) fn of(
        &self,
        subnqn: &Nqn,
        namespace: &Namespace,
        was_served: impl FnOnce(&Path) -> bool,
    ) -> anyhow::Result<Chosen> {
        if namespace.lba.is_some() {
            return Ok(Chosen {
                size: namespace.lba,
                warning: None,
            });
        }
        let Some(path) = file_of(namespace) else {
            return self.of_device(namespace);
        };
        let table = self
            .table
            .as_ref()
            .map_err(|error| self.unreadable(path, error))?;
        // Where it cannot be looked at, opening it will tell.
        let Some(found) = Evidence::of(path) else {
            return Ok(Chosen::default());
        };
        match (table.known(name(subnqn, namespace), path), &self.folder) {
            (Some(known), _) => Ok(Chosen {
                size: known.size(),
                warning: unusable(path, &found).filter(|_| known.lba == 4096),
            }),
            (None, Some(folder)) if was_served(path) => forgotten(folder, path, &found),
            (None, folder) => Ok(first(path, &found, folder.is_some())),
        }
    }

    /// Takes the namespaces out whose LBA size cannot be known, of those that `is_asked`: with why
    /// each is not served.
    pub(crate) fn take_out_unknown(
        &self,
        config: &mut Config,
        is_asked: impl Fn(&Nqn, &Namespace) -> bool,
        was_served: impl Fn(&Path) -> bool,
    ) -> Vec<Unknown> {
        let mut unknown = Vec::new();
        for subsystem in &mut config.subsystems {
            let nqn = &subsystem.nqn;
            subsystem.namespaces.retain(|namespace| {
                let asked = is_asked(nqn, namespace);
                let Some(why) = asked
                    .then(|| self.of(nqn, namespace, &was_served).err())
                    .flatten()
                else {
                    return true;
                };
                unknown.push(Unknown {
                    subnqn: nqn.clone(),
                    namespace: namespace.clone(),
                    why,
                });
                false
            });
        }
        unknown
    }

    fn unreadable(&self, path: &Path, error: &io::Error) -> anyhow::Error {
        let folder = self
            .folder
            .as_deref()
            .unwrap_or_else(|| Path::new(state::FOLDER));
        anyhow!(
            "{} says which LBA size each file was used with, and cannot be read: {error}; restore it, let the user that \
             the target runs as read it, or write what {} was used with, `lba = 512` or `lba = 4096` (with --export: \
             --lba)",
            folder.join(FILE).display(),
            path.display()
        )
    }

    /// A namespace was opened with LBAs of this size.
    pub(crate) fn remember(&mut self, subnqn: &Nqn, namespace: &Namespace, lba_bytes: u32) {
        let device = device::known(namespace);
        let Some(path) = file_of(namespace).or(device) else {
            return;
        };
        let new = Known {
            uuid: name(subnqn, namespace),
            path: path.to_owned(),
            lba: lba_bytes,
            medium: facts_at(path),
        };
        let table = self.table.as_ref().ok();
        let before = table.and_then(|table| match device {
            Some(_) => table.on(&MediumId::from(new.medium.clone())),
            None => table.known(new.uuid, path),
        });
        if before == Some(&new) {
            return;
        }
        let name = path.display();
        match before {
            // Where the configuration says nothing, what has chosen it has said so.
            Some(before) if before.lba != lba_bytes && namespace.lba.is_some() => {
                let change = format!(
                    "{name} was used with LBAs of {} bytes and has {lba_bytes} now, as the configuration says",
                    before.lba
                );
                match Evidence::of(path) {
                    Some(found) if found.is_for(lba_bytes) => tracing::info!("{change}"),
                    _ => tracing::warn!(
                        "{change}: a partition table that hosts have made with the others is not found any more"
                    ),
                }
            }
            _ => {}
        }
        if let Some(folder) = &self.folder
            && let Err(error) = keep(folder, std::slice::from_ref(&new))
        {
            tracing::warn!(
                "that {name} has LBAs of {lba_bytes} bytes cannot be remembered in {}: {error}; write `lba = {lba_bytes}` \
                 in its [[subsystem.namespace]] (with --export: --lba {lba_bytes}), and mend that",
                folder.join(FILE).display()
            );
        }
        if let Ok(table) = &mut self.table {
            table.add(new);
        }
    }

    /// What is to be said of files whose LBA size the configuration leaves open; and what a start
    /// would say of each file and device that it cannot use.
    fn check(
        &self,
        config: &Config,
        was_served: impl Fn(&Path) -> bool,
    ) -> anyhow::Result<Vec<String>> {
        let (mut warnings, mut errors) = (Vec::new(), Vec::new());
        let namespaces = config.subsystems.iter().flat_map(|subsystem| {
            let namespaces = subsystem.namespaces.iter();
            namespaces.map(|namespace| (&subsystem.nqn, namespace))
        });
        for (subnqn, namespace) in namespaces {
            match self.of(subnqn, namespace, &was_served) {
                Ok(Chosen { size, warning }) => {
                    if let Err(error) = plan::try_open(subnqn, namespace, size) {
                        errors.push(format!("{error:#}"));
                        continue;
                    }
                    warnings.extend(warning);
                    // Where the configuration says it, its own check says this.
                    let Some(path) = file_of(namespace).filter(|_| namespace.lba.is_none()) else {
                        continue;
                    };
                    let bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
                    let tail =
                        size.and_then(|size| out_of_reach(&path.display(), bytes, size.bytes()));
                    warnings.extend(tail);
                }
                // The user that the target runs as may read it.
                Err(error) if self.is_of_another_user() => warnings.push(error.to_string()),
                Err(error) => errors.push(error.to_string()),
            }
        }
        match errors.is_empty() {
            true => Ok(warnings),
            false => bail!("{}", errors.join("\n")),
        }
    }

    fn is_of_another_user(&self) -> bool {
        let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        self.table.as_ref().is_err_and(denied)
    }
}

impl Default for LbaSizes {
    fn default() -> Self {
        Self {
            folder: None,
            table: Ok(Table::default()),
        }
    }
}

impl Table {
    /// By what the file is known by, for the size is the file's; by its path where that is not
    /// remembered, and by UUID where the namespace's file has moved.
    fn known(&self, uuid: Uuid, path: &Path) -> Option<&Known> {
        let mut latest_first = self.namespace.iter().rev();
        self.on(&MediumId::from(facts_at(path)))
            .or_else(|| latest_first.clone().find(|known| known.path == path))
            .or_else(|| latest_first.find(|known| known.uuid == uuid && !known.path.exists()))
    }

    /// What a medium was used with, by whatever path.
    fn on(&self, medium: &MediumId) -> Option<&Known> {
        let mut latest_first = self.namespace.iter().rev();
        latest_first.find(|known| known.is_on(medium) == Some(true))
    }

    /// Another file that was at the same path is remembered further.
    fn add(&mut self, new: Known) {
        let medium = MediumId::from(new.medium.clone());
        self.namespace.retain(|known| match known.is_on(&medium) {
            Some(is_same) => !is_same,
            None => known.path != new.path,
        });
        self.namespace.push(new);
        let too_many = self.namespace.len().saturating_sub(LBA_SIZES_KEPT);
        self.namespace.drain(..too_many);
    }
}

impl Known {
    /// Whether it is of this medium; `None` where nothing lasting tells.
    fn is_on(&self, medium: &MediumId) -> Option<bool> {
        let noted = MediumId::from(self.medium.clone());
        (noted.is_known() && medium.is_known())
            .then(|| medium.is_same(&noted))
            .flatten()
    }

    fn size(&self) -> Option<LbaSize> {
        LbaSize::from_bytes(self.lba.into())
    }
}

/// What `check` says of files whose LBA size the configuration leaves open.
///
/// # Errors
/// What some were used with cannot be known, or they cannot be used, a line each: a target would
/// not serve these.
pub fn check(config: &Config) -> anyhow::Result<Vec<String>> {
    // What is wrong with these is said where they are looked at.
    let identities = Identities::here().ok();
    LbaSizes::here().check(config, |path| {
        identities
            .as_ref()
            .is_some_and(|known| known.was_served(path))
    })
}

/// Whether what is remembered can be read, whatever is configured.
///
/// # Errors
/// It cannot.
pub(crate) fn look() -> anyhow::Result<()> {
    let sizes = LbaSizes::here();
    let error = sizes.table.as_ref().err();
    error.map_or(Ok(()), |error| {
        Err(sizes.unreadable(Path::new("FILE"), error))
    })
}

/// What is behind the last whole LBA, in words, if there is anything.
pub(crate) fn out_of_reach(name: &dyn fmt::Display, bytes: u64, lba_bytes: u32) -> Option<String> {
    let tail_bytes = bytes % u64::from(lba_bytes);
    (tail_bytes != 0).then(|| {
        format!(
            "{name} has {}, no whole number of LBAs of {lba_bytes}, which leaves {} at its end out of reach of hosts; \
             `truncate --size=%{lba_bytes} FILE` rounds it up",
            Count(bytes, "byte"),
            Count(tail_bytes, "byte")
        )
    })
}

/// What the file at `path` is known by; nothing where it cannot be looked at.
fn facts_at(path: &Path) -> BTreeMap<String, String> {
    let medium = MediumId::at(path);
    medium.map_or_else(|_| BTreeMap::new(), |medium| medium.facts().clone())
}

/// What a namespace is called whatever it is on.
fn name(subnqn: &Nqn, namespace: &Namespace) -> Uuid {
    let derived = || namespace_uuid(subnqn, namespace.nsid);
    namespace.uuid.unwrap_or_else(derived)
}

/// The path of a namespace that is on a file.
fn file_of(namespace: &Namespace) -> Option<&Path> {
    let Backing::Path(path) = &namespace.backing else {
        return None;
    };
    fs::metadata(path).ok()?.is_file().then_some(path)
}

/// The LBA size of a file that hosts have had with one that is not remembered any more: what is on
/// it may tell. A blank one has nothing that depends on it.
fn forgotten(folder: &Path, path: &Path, found: &Evidence) -> anyhow::Result<Chosen> {
    let (name, table) = (path.display(), folder.join(FILE));
    let known = folder.join(identities::FILE);
    // Whether it had one is not known: it may be another table, or that file may never have been
    // opened, as where a start failed.
    let without = match table.exists() {
        true => "has no LBA size for it",
        false => "is not there to say its LBA size",
    };
    let forgotten = format!(
        "{} has {name}, which hosts may have used, and {} {without}",
        known.display(),
        table.display()
    );
    let (size, why) = match found.surely() {
        Some(found) => found,
        None if found.is_blank => (LbaSize::DEFAULT, found.blank_in_words()),
        None => bail!(
            "{forgotten}, and what is on it does not tell: restore that table if it had one, or write what hosts have used {name} \
             with, `lba = 512` or `lba = 4096` (with --export: --lba)"
        ),
    };
    Ok(Chosen::with(
        size,
        Some(format!(
            "{forgotten}: it has LBAs of {} bytes, because {why}; `lba` in the configuration says another size",
            size.bytes()
        )),
    ))
}

/// The LBA size of a file of which nothing is known, and what is to be said of that. `remembers`:
/// whether it would be, if this version had served it. Until 0.1 files whose size is no multiple of
/// 4096 had 512.
fn first(path: &Path, found: &Evidence, remembers: bool) -> Chosen {
    let name = path.display();
    let table_of = found.table_of();
    let is_odd = !found.bytes.is_multiple_of(4096);
    let had_512 = is_odd && !found.gpt_of_4096 && table_of != Some(LbaSize::B4096);
    let of_512 = found.gpt_of_512 || table_of == Some(LbaSize::B512);
    if had_512 && (of_512 || (remembers && !found.is_blank)) {
        let why = if of_512 {
            HAS_TABLE
        } else {
            "it has data on it, and earlier versions used such where the size is no multiple of 4096"
        };
        return Chosen::with(
            LbaSize::B512,
            Some(format!(
                "{name} has LBAs of 512 bytes, because {why}; `lba` in the configuration says another size"
            )),
        );
    }
    let undecided = || {
        (found.dos == Some(DosTable::Either)).then(|| {
            format!(
                "{name} has LBAs of 4096 bytes, and a partition table (DOS, MBR) that does not say for which LBA size it was \
                 made: write `lba = 512` (with --export: --lba 512) if hosts have used it so, which do not find their \
                 partitions otherwise, or `lba = 4096`"
            )
        })
    };
    let warning = unusable(path, found).or_else(undecided).or_else(|| {
        (had_512 && !found.is_blank).then(|| {
            format!(
                "{name} has LBAs of 4096 bytes; earlier versions used 512 where the size is no multiple of 4096: write --lba 512 \
                 if hosts have used it so"
            )
        })
    });
    Chosen::with(LbaSize::DEFAULT, warning)
}

/// That hosts cannot use what is on a file, with LBAs of 4096 bytes.
fn unusable(path: &Path, found: &Evidence) -> Option<String> {
    let what = found.needs_512()?;
    Some(format!(
        "{} {what}, the default: write `lba = 512` (with --export: --lba 512) if it is to be used",
        path.display()
    ))
}

/// Beside what is there, which another target may have written meanwhile. What cannot be read is
/// not written over: it may be restored yet.
fn keep(folder: &Path, new: &[Known]) -> io::Result<()> {
    // What cannot be locked is not written either, or its file system has no locks.
    let _lock = state::lock(folder);
    let mut table = read(folder)?;
    for known in new {
        table.add(known.clone());
    }
    write(folder, &table)
}

/// An absent file is an empty table.
fn read(folder: &Path) -> io::Result<Table> {
    let Some(text) = state::read(folder, FILE, LBA_SIZES_TEXT_BYTES_MAX)? else {
        return Ok(Table::default());
    };
    let table: Table = toml::from_str(&text).map_err(|error| state::not_toml(&text, &error))?;
    match table.namespace.iter().find(|known| known.size().is_none()) {
        Some(Known { path, lba, .. }) => Err(io::Error::other(format!(
            "{}: lba is {lba}, expected 512 or 4096",
            path.display()
        ))),
        None => Ok(table),
    }
}

fn write(folder: &Path, table: &Table) -> io::Result<()> {
    let text = toml::to_string(table).map_err(io::Error::other)?;
    state::write(folder, FILE, &format!("{HEAD}{text}"))
}

#[cfg(test)]
mod tests;
