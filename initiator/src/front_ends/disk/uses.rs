//! What keeps the disk of a volume: mounts here and in other mount namespaces, overlays, devices on
//! it. A file system lives until the last of them ends, wherever it was unmounted.

use std::fmt;
use std::path::{Path, PathBuf};

use super::loop_device::{holders, is_configured};
use super::loop_process::look;
use super::mounts::{Elsewhere, mounts_elsewhere, mounts_of, overlays_perhaps_on};
use super::record::Record;
use super::users::{known_users_of, processes_of, users_of};
use crate::words::word_of;

/// More of a kind are not named: the next look does.
const NAMED_MAX: usize = 3;

/// How a disk is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// By what, with the disk.
    pub by: String,
    /// What ends that.
    pub end: String,
    /// Folders of the file system that lives on, as far as they are known.
    pub folders: Vec<PathBuf>,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.by, self.end)
    }
}

/// What uses the disk of a volume (a mount, another device), and what to do about it; `None` when
/// no use of it is known.
#[must_use]
pub fn claimed(record: &Record) -> Option<Use> {
    is_in_use(record).then(|| Use::of(record))
}

/// The same of a disk whose unmount was waited for and is over: no other one is under way.
#[must_use]
pub fn claimed_behind_unmount(record: &Record) -> Option<Use> {
    is_in_use(record).then(|| Use::named(record).unwrap_or_else(|| Use::unnamed(record)))
}

fn is_in_use(record: &Record) -> bool {
    let path = &record.device;
    mounts_of(path).is_ok_and(|mounts| !mounts.is_empty())
        || !holders(path).is_empty()
        || is_configured(path) && look(path).is_ok_and(|state| state.in_use)
}

/// The first of these overlays, with a relative folder of each, and what ends each.
fn overlays_in_words(overlays: &[(PathBuf, PathBuf)]) -> (Vec<String>, Vec<String>) {
    let named = overlays.iter().take(NAMED_MAX);
    named
        .map(|(over, layer)| {
            let end = format!("umount {}", word_of(over));
            let (over, layer) = (over.display(), layer.display());
            let words = format!("the overlay at {over}, which has the relative folder {layer}");
            (words, end)
        })
        .unzip()
}

/// The overlays that may keep a disk which nothing else is known to keep, and what ends that, as
/// the begin of a clause; nothing where there are none.
#[must_use]
pub fn perhaps_by_overlays() -> String {
    let overlays = overlays_perhaps_on(None).unwrap_or_default();
    let (found, steps) = overlays_in_words(&overlays);
    match found.is_empty() {
        true => String::new(),
        false => format!(
            "it may be in use by {}: {}; ",
            found.join(" or by "),
            steps.join(" or ")
        ),
    }
}

impl Use {
    /// Of a volume's disk that is in use.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        if let Some(used) = Self::named(record) {
            return used;
        }
        let path = &record.device;
        // The kernel forgets a mount before its unmount is over, and knows it once the file system
        // is set up.
        if let Some(point) = record.mount_points.first()
            && known_users_of(path).is_none()
        {
            let (disk, at, folder) = (path.display(), point.display(), word_of(point));
            return Self {
                by: format!("{disk} is being mounted at {at}, or unmounted from there"),
                end: format!(
                    "{}if that does not end: capstan umount --force {folder}",
                    perhaps_by_overlays()
                ),
                folders: Vec::new(),
            };
        }
        Self::unnamed(record)
    }

    /// The use that the kernel has a name for.
    fn named(record: &Record) -> Option<Self> {
        let path = &record.device;
        let disk = path.display();
        if let Some(mount) = mounts_of(path).unwrap_or_default().first() {
            let (at, folder) = (mount.mount_point.display(), word_of(&mount.mount_point));
            return Some(Self {
                by: format!("{disk} is mounted at {at}"),
                end: format!("unmount it first: capstan umount {folder}"),
                folders: vec![mount.mount_point.clone()],
            });
        }
        let elsewhere = mounts_elsewhere(path, NAMED_MAX);
        if !elsewhere.is_empty() {
            return Some(Self::by_namespaces(path, &elsewhere));
        }
        let holders = holders(path);
        if !holders.is_empty() {
            return Some(Self {
                by: format!("{disk} is used by {}", holders.join(", ")),
                end: "take that down first".to_owned(),
                folders: Vec::new(),
            });
        }
        let overlays = overlays_perhaps_on(Some(&record.mount_points)).unwrap_or_default();
        // That a btrfs is on the disk says nothing of what keeps it.
        let is_by_overlays = !overlays.is_empty() && processes_of(path).is_empty();
        is_by_overlays.then(|| Self::by_overlays(path, &overlays))
    }

    /// Any other.
    fn unnamed(record: &Record) -> Self {
        let path = &record.device;
        let disk = path.display();
        Self {
            by: format!("{disk} is claimed by another user ({})", users_of(path)),
            end: format!(
                "{}end that first, or, if it is an unmount that does not end: capstan umount --force {disk}",
                perhaps_by_overlays()
            ),
            folders: Vec::new(),
        }
    }

    fn by_namespaces(disk: &Path, elsewhere: &[Elsewhere]) -> Self {
        let found = |Elsewhere { mount, pid, name }: &Elsewhere| {
            let at = mount.mount_point.display();
            format!("mounted at {at} in the mount namespace of {name} (pid {pid})")
        };
        let command = |Elsewhere { mount, pid, .. }: &Elsewhere| {
            let at = word_of(&mount.mount_point);
            format!("nsenter --target {pid} --mount umount {at}")
        };
        let found: Vec<_> = elsewhere.iter().map(found).collect();
        let commands: Vec<_> = elsewhere.iter().map(command).collect();
        Self {
            by: format!("{} is {}", disk.display(), found.join(" and ")),
            end: format!("unmount it there first: {}", commands.join("; ")),
            folders: elsewhere.iter().map(Elsewhere::folder).collect(),
        }
    }

    fn by_overlays(disk: &Path, overlays: &[(PathBuf, PathBuf)]) -> Self {
        let (found, commands) = overlays_in_words(overlays);
        let disk = disk.display();
        Self {
            by: format!("{disk} is used, it seems by {}", found.join(" or ")),
            end: format!("unmount that first: {}", commands.join(" or ")),
            folders: overlays
                .iter()
                .take(NAMED_MAX)
                .map(|(over, _)| over.clone())
                .collect(),
        }
    }
}
