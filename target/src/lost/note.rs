//! Notes of lost writes in the state folder. They outlive the process: a target that was killed, or
//! went down with its machine, comes back to them.
//!
//! One small file for each medium. The operator's command gives it another name, the mark of a
//! clear, which needs no space: a target that runs with the loss must not take a note that anything
//! else has removed for the operator's word.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use capstan_config::{Backing, Config, Namespace, Subsystem};
use capstan_storage::MediumId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::running::What;
use crate::identities::is_twin;
use crate::limits::LOST_NOTE_BYTES_MAX;
use crate::state;

/// Of the files' names; what tells one from another is in between.
const NAME: &str = "lost-writes-";
const NAME_END: &str = ".toml";
/// In front of the name of a note that the operator has cleared, until a target has seen that.
const CLEARED: &str = "cleared-";
const HEAD: &str = "\
# What hosts were told of as stored is lost; written by capstan-target. While this file is here\n\
# every Flush and FUA write of the namespace fails. `capstan-target clear-lost-writes PATH` removes it.\n\n";

/// What was lost, where and when. A file or device has one for each kind of loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) path: PathBuf,
    pub(super) subnqn: String,
    pub(super) nsid: u32,
    /// RFC 3339, in seconds.
    pub(super) when: String,
    #[serde(default)]
    pub(super) kind: What,
    /// The kernel's reason, positive.
    pub(super) errno: i32,
    pub(super) what: String,
    /// What the file or device is known by.
    pub(super) medium: BTreeMap<String, String>,
}

/// A note in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Of its file.
    pub(super) name: String,
    pub(super) note: Note,
}

/// What has the name of a note and cannot be read as one: of a medium by its name alone.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) name: String,
    /// RFC 3339, in seconds: when it was changed last.
    pub(super) when: String,
    pub(super) error: io::Error,
}

/// What is in the folder.
#[derive(Debug, Default)]
pub(super) struct All {
    pub(super) found: Vec<Found>,
    pub(super) unreadable: Vec<Unreadable>,
}

impl All {
    /// What there is of the medium that is at `path`; a note that cannot be read has lost what
    /// `unread` makes of it.
    pub(super) fn of(
        self,
        path: &Path,
        medium: &MediumId,
        unread: impl Fn(What, &Unreadable) -> Note,
    ) -> Vec<Found> {
        let names = names(path, medium);
        let found = self.found.into_iter();
        let found = found.filter(|found| found.is_of(path, medium));
        let unreadable = self.unreadable.iter().filter_map(|unreadable| {
            let (kind, name) = names.iter().find(|(_, name)| *name == unreadable.name)?;
            Some(Found {
                name: name.clone(),
                note: unread(*kind, unreadable),
            })
        });
        found.chain(unreadable).collect()
    }
}

impl Found {
    /// Whether it is of the medium that is at `path`, or of one that has bytes of it: a file, and a
    /// loop device on a part of it.
    pub(super) fn is_of(&self, path: &Path, medium: &MediumId) -> bool {
        let has_name = || {
            names(path, medium)
                .iter()
                .any(|(_, name)| *name == self.name)
        };
        match is_twin(&self.note.path, path, medium) {
            true => false,
            false => {
                let noted = MediumId::from(self.note.medium.clone());
                self.note.is_of(path, Some(medium)) || has_name() || medium.shares_bytes(&noted)
            }
        }
    }
}

impl Unreadable {
    fn new(folder: &Path, name: String, error: io::Error) -> Self {
        let changed = folder.join(&name).symlink_metadata();
        let changed = changed.and_then(|metadata| metadata.modified());
        let when = super::shown(changed.unwrap_or(SystemTime::UNIX_EPOCH));
        Self { name, when, error }
    }

    /// Whether another user may read it.
    pub(super) fn is_refused(&self) -> bool {
        self.error.kind() == io::ErrorKind::PermissionDenied
    }

    /// What has happened to the medium, as far as is known.
    pub(super) fn what(&self) -> String {
        format!(
            "the note of it, {}, cannot be read: {}",
            self.name, self.error
        )
    }

    /// Of one that no volume has, as far as its name says.
    pub(super) fn line(&self, folder: &Path) -> String {
        format!(
            "{} tells of lost writes and cannot be read: {}. It is of no volume that is known here: look into it for the \
             path of one, check or restore what is on that, and remove the file",
            folder.join(&self.name).display(),
            self.error
        )
    }
}

impl Note {
    /// In one line, as `capstan-target doctor` has it of a target that runs.
    pub(super) fn line(&self) -> String {
        format!("{}: {}", self.when, self.what)
    }

    /// Whether it is of this medium: by what lasts, and by its path where nothing does.
    pub(super) fn is_of(&self, path: &Path, medium: Option<&MediumId>) -> bool {
        let noted = MediumId::from(self.medium.clone());
        match medium.and_then(|medium| medium.is_same(&noted)) {
            Some(true) => !is_twin(&self.path, path, &noted),
            Some(false) => false,
            None => self.path == path,
        }
    }

    /// Whether nothing but its path says which medium it is of, or that is there.
    pub(super) fn is_at_its_path(&self) -> bool {
        match MediumId::at(&self.path) {
            Ok(medium) => self.is_of(&self.path, Some(&medium)),
            Err(_) => !self.names_medium(),
        }
    }

    pub(super) fn names_medium(&self) -> bool {
        MediumId::from(self.medium.clone()).is_known()
    }

    pub(super) fn is_of_namespace(&self, namespace: &Namespace) -> bool {
        let Backing::Path(path) = &namespace.backing else {
            return false;
        };
        self.is_of(path, MediumId::at(path).ok().as_ref())
    }

    pub(super) fn is_configured(&self, config: &Config) -> bool {
        let mut namespaces = config.subsystems.iter().flat_map(Subsystem::configured);
        namespaces.any(|namespace| self.is_of_namespace(namespace))
    }

    /// The file that it is kept in, unless a twin has that.
    pub(super) fn name(&self) -> String {
        name(self.kind, &self.path, &MediumId::from(self.medium.clone()))
    }

    /// The file that it is kept in where `other` has the first choice.
    pub(super) fn name_beside(&self, other: &Self) -> String {
        let medium = MediumId::from(self.medium.clone());
        match is_twin(&other.path, &self.path, &medium) {
            true => name_beside_twin(self.kind, &self.path, &medium),
            false => self.name(),
        }
    }

    pub(super) fn text(&self) -> io::Result<String> {
        let text = toml::to_string(self).map_err(io::Error::other)?;
        Ok(format!("{HEAD}{text}"))
    }

    pub(super) fn parse(text: &str) -> io::Result<Self> {
        toml::from_str(text).map_err(|error| io::Error::other(error.message().to_owned()))
    }
}

/// The files that have or had the notes of a medium at `path`. The second of each kind is used
/// where a twin of it has the first.
pub(super) fn names(path: &Path, medium: &MediumId) -> [(What, String); 2 * What::LOSSES.len()] {
    let [writes, end] = What::LOSSES;
    [
        (writes, name(writes, path, medium)),
        (writes, name_beside_twin(writes, path, medium)),
        (end, name(end, path, medium)),
        (end, name_beside_twin(end, path, medium)),
    ]
}

/// The file with the note of a medium: named by what lasts, and by its path where nothing does.
pub(super) fn name(kind: What, path: &Path, medium: &MediumId) -> String {
    match medium.is_known() {
        true => name_of(kind, medium.to_string()),
        false => name_beside_twin(kind, path, medium),
    }
}

/// The same where another file is known by the same: a snapshot of a file system without a name.
fn name_beside_twin(kind: What, path: &Path, medium: &MediumId) -> String {
    name_of(kind, format!("{}\n{medium}", path.display()))
}

fn name_of(kind: What, mut of: String) -> String {
    if kind == What::End {
        of += "\ncut";
    }
    let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, of.as_bytes());
    format!("{NAME}{id}{NAME_END}")
}

/// Whether a note has the name of one of the medium at `path`.
pub(super) fn is_name_of(of: &str, path: &Path) -> bool {
    MediumId::at(path).is_ok_and(|medium| names(path, &medium).iter().any(|(_, name)| *name == of))
}

pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(NAME) && name.ends_with(NAME_END)
}

/// The notes in the folder.
pub(super) fn all(folder: &Path) -> io::Result<All> {
    let mut all = All::default();
    for entry in fs::read_dir(folder)? {
        let Ok(name) = entry?.file_name().into_string() else {
            continue;
        };
        if !is_name(&name) {
            continue;
        }
        match read(folder, &name) {
            Ok(note) => all.found.push(Found { name, note }),
            Err(error) => all.unreadable.push(Unreadable::new(folder, name, error)),
        }
    }
    all.found.sort_by_key(|found| found.note.line());
    all.unreadable.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// One of them.
pub(super) fn read(folder: &Path, name: &str) -> io::Result<Note> {
    let text = state::read(folder, name, LOST_NOTE_BYTES_MAX)?;
    Note::parse(&text.ok_or(io::ErrorKind::NotFound)?)
}

/// Removes a note for good; one that is not there is removed.
pub(super) fn remove(folder: &Path, name: &str) -> io::Result<()> {
    let path = folder.join(name);
    let removed = fs::remove_file(&path).or_else(|error| match error.kind() {
        // Somebody has made it one.
        io::ErrorKind::IsADirectory => fs::remove_dir(&path),
        _ => Err(error),
    });
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => state::sync(folder),
    }
}

/// Clears a note by the operator's word: the mark of that is in its place.
pub(super) fn clear(folder: &Path, name: &str) -> io::Result<()> {
    forget_mark(folder, name)?;
    fs::rename(folder.join(name), folder.join(mark(name)))?;
    state::sync(folder)
}

/// Whether the operator has cleared this note.
pub(super) fn is_cleared(folder: &Path, name: &str) -> bool {
    !is_there(folder, name) && is_there(folder, &mark(name))
}

/// The clear has been seen, or is of an earlier loss.
pub(super) fn forget_mark(folder: &Path, name: &str) -> io::Result<()> {
    remove(folder, &mark(name))
}

/// Whether there is a file of this name, or anything else; a folder that cannot be looked into has
/// one.
pub(super) fn is_there(folder: &Path, name: &str) -> bool {
    let found = folder.join(name).symlink_metadata();
    !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn mark(name: &str) -> String {
    format!("{CLEARED}{name}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use capstan_storage::MediumId;

    use super::{Found, Note, What, all, is_name, remove};

    fn note(path: &Path) -> Note {
        let medium = MediumId::at(path).unwrap();
        Note {
            path: path.to_owned(),
            subnqn: "nqn.2026-11.org.example:a".to_owned(),
            nsid: 7,
            when: "2026-11-26T08:00:00Z".to_owned(),
            kind: What::Writes,
            errno: 28,
            what: "flush on \"it\": lost".to_owned(),
            medium: medium.facts().clone(),
        }
    }

    #[test]
    fn a_note_is_of_a_medium_and_of_its_path_where_nothing_else_is_known() {
        let root = tempfile::tempdir().unwrap();
        let [path, moved] = ["a", "b"].map(|name| root.path().join(name));
        fs::write(&path, "x").unwrap();
        let note = note(&path);
        let is_of = |path: &Path| note.is_of(path, MediumId::at(path).ok().as_ref());
        assert!(is_of(&path));
        fs::rename(&path, &moved).unwrap();
        assert!(is_of(&moved), "under another name");
        fs::write(&path, "restored").unwrap();
        assert!(!is_of(&path), "another file in its place");
        assert!(note.is_of(&path, None) && !note.is_of(&moved, None));
        let nameless = Note {
            medium: std::collections::BTreeMap::new(),
            ..note
        };
        assert!(nameless.is_of(&path, None) && !nameless.is_of(&moved, None));
    }

    #[test]
    fn notes_are_read_back_and_what_cannot_be_read_hides_none() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a");
        fs::write(&path, "x").unwrap();
        let note = note(&path);
        let name = note.name();
        assert!(is_name(&name), "{name}");
        fs::write(root.path().join(&name), note.text().unwrap()).unwrap();
        fs::write(root.path().join("lost-writes-1.toml"), "not = [a note").unwrap();
        fs::write(root.path().join(".lost-writes-1.toml.7"), "begun").unwrap();
        let both = all(root.path()).unwrap();
        let expected = Found {
            name: name.clone(),
            note,
        };
        assert_eq!(both.found, [expected]);
        assert_eq!(both.unreadable.len(), 1, "{both:?}");
        let line = both.unreadable[0].line(root.path());
        assert!(
            line.contains("/lost-writes-1.toml tells of lost writes and cannot be read"),
            "{line}"
        );
        remove(root.path(), &name).unwrap();
        remove(root.path(), &name).unwrap();
        assert!(all(root.path()).unwrap().found.is_empty());
        assert!(all(&root.path().join("none")).is_err());
    }
}
