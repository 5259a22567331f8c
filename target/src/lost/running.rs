//! What running targets know of their media that is not as it should be, where `capstan-target
//! doctor` and `check` find it: lost writes, files that were cut, moved or deleted, what fails.
//!
//! Each process has a note of its own in the runtime directory, named by its pid and with its start
//! in it: one that a killed process has left behind says nothing of what is served now.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, process};

use capstan_doctor::{Check, Machine};
use capstan_nvme_proto::text::Shown;
use capstan_storage::MediumId;
use capstan_subsystem::BackendId;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{AccessFlags, Pid, access};
use serde::{Deserialize, Serialize};

use crate::identities::is_twin;
use crate::limits::{BRIEF_PATH_CHARS_MAX, BRIEF_VOLUMES_MAX};

/// What systemd tells a service with `RuntimeDirectory=`: absolute paths, with colons between them
/// (systemd.exec(5)).
pub(crate) const FOLDER_VARIABLE: &str = "RUNTIME_DIRECTORY";
/// That folder of capstan-target.service, and of a target that was told no other one.
const FOLDER: &str = "/run/capstan-target";
/// Of the notes' names; the pid is the rest.
const NOTE: &str = "lost-writes-";

/// What can be wrong with a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    /// Acknowledged writes are lost.
    #[default]
    Writes,
    /// What was behind its new end is lost.
    #[serde(rename = "cut")]
    End,
    /// It is not at its path.
    Place,
    /// It does not answer.
    Silent,
    /// Commands fail there.
    Failing,
}

impl What {
    /// What a volume can lose.
    pub(super) const LOSSES: [Self; 2] = [Self::Writes, Self::End];

    fn is_loss(self) -> bool {
        Self::LOSSES.contains(&self)
    }

    /// In a line beside others.
    fn in_brief(self) -> &'static str {
        match self {
            Self::Writes => "lost writes",
            Self::End => "cut short",
            Self::Place => "not at its path",
            Self::Silent => "does not answer",
            Self::Failing => "commands fail",
        }
    }

    fn name(self) -> &'static str {
        match self.is_loss() {
            true => LOST,
            false => "media",
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Writes => "every answered write on its medium",
            Self::End => "a file or device that is as long as hosts have seen it",
            Self::Place => "a file or device that stays at its path while it is exported",
            Self::Silent => "a file system or device that answers",
            Self::Failing => "a file system or device that does what hosts ask",
        }
    }
}

/// The name of checks of what is lost.
pub(super) const LOST: &str = "lost writes";

/// What the operator is told of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Said {
    /// As in the configuration.
    pub(crate) path: String,
    /// What has happened.
    pub(crate) what: String,
    /// What to do.
    pub(crate) next: String,
}

type Volumes = BTreeMap<(BackendId, What), Said>;

/// A note, as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct Text {
    /// When its process was started: see [`started`].
    started: u64,
    volume: Vec<Entry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    kind: What,
    #[serde(flatten)]
    said: Said,
}

/// The volumes, and the folder for the note that names them.
#[derive(Debug)]
pub(super) struct Running {
    folder: PathBuf,
    volumes: Mutex<Volumes>,
}

impl Running {
    /// Of this process, as a service or not.
    pub(super) fn new() -> Self {
        Self::in_folder(folder().into())
    }

    pub(super) fn in_folder(folder: PathBuf) -> Self {
        Self {
            folder,
            volumes: Mutex::default(),
        }
    }

    /// A volume has lost something. What is known is not asked for its words again, and waits until
    /// those of another thread are there.
    pub(super) fn add(&self, backend: BackendId, what: What, said: impl FnOnce() -> Said) {
        self.change(|volumes| {
            let is_new = !volumes.contains_key(&(backend, what));
            volumes.entry((backend, what)).or_insert_with(said);
            is_new
        });
    }

    /// Whether a volume is in such a state.
    pub(super) fn has(&self, backend: BackendId, what: What) -> bool {
        self.volumes().contains_key(&(backend, what))
    }

    /// How a volume is from now on; `None`: as it should be.
    pub(super) fn set(&self, backend: BackendId, what: What, said: Option<Said>) {
        self.change(|volumes| match said {
            Some(said) => volumes.insert((backend, what), said.clone()) != Some(said),
            None => volumes.remove(&(backend, what)).is_some(),
        });
    }

    /// What it has lost is the operator's now.
    pub(super) fn forget(&self, backend: BackendId) {
        self.retain(|of, what| of != backend || !what.is_loss());
    }

    /// It is closed.
    pub(super) fn remove(&self, backend: BackendId) {
        self.retain(|of, _| of != backend);
    }

    fn retain(&self, is_kept: impl Fn(BackendId, What) -> bool) {
        self.change(|volumes| {
            let before = volumes.len();
            volumes.retain(|&(of, what), _| is_kept(of, what));
            volumes.len() != before
        });
    }

    /// What is wrong, in a line: of a few volumes, and how many more there are; `None` where
    /// everything is as it should be.
    pub(super) fn in_brief(&self) -> Option<String> {
        let volumes = self.volumes();
        let mut words: BTreeMap<BackendId, (&str, Vec<&str>)> = BTreeMap::new();
        for (&(backend, what), said) in volumes.iter() {
            let (_, of_it) = words.entry(backend).or_insert((&said.path, Vec::new()));
            of_it.push(what.in_brief());
        }
        let mut parts: Vec<_> = words
            .values()
            .take(BRIEF_VOLUMES_MAX)
            .map(|(path, of_it)| {
                let mut shown = Shown(path).to_string();
                if let Some((end, _)) = shown.char_indices().nth(BRIEF_PATH_CHARS_MAX) {
                    shown.truncate(end);
                    shown.push('…');
                }
                format!("{shown}: {}", of_it.join(", "))
            })
            .collect();
        match words.len().saturating_sub(BRIEF_VOLUMES_MAX) {
            0 => {}
            more => parts.push(format!("{more} more (`capstan-target doctor` names them)")),
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Volumes that have lost something.
    pub(super) fn backends(&self) -> Vec<BackendId> {
        let volumes = self.volumes();
        let lost = volumes.keys().filter(|(_, what)| what.is_loss());
        lost.map(|&(backend, _)| backend).collect()
    }

    fn volumes(&self) -> MutexGuard<'_, Volumes> {
        // Every call leaves it whole; a panic elsewhere does not spoil it.
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Volumes) -> bool) {
        let mut volumes = self.volumes();
        if !change(&mut volumes) {
            return;
        }
        if let Err(error) = write_note(&self.folder, &volumes) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "`capstan-target doctor` will not know what is wrong with media");
        }
    }
}

/// Where a process and `doctor` meet: the same for both in the same environment.
pub(super) fn folder() -> String {
    folder_of(env::var(FOLDER_VARIABLE).ok().as_deref())
}

pub(crate) fn folder_of(variable: Option<&str>) -> String {
    let first = variable.and_then(|folders| folders.split(':').next());
    let folder = first.filter(|folder| folder.starts_with('/'));
    folder.unwrap_or(FOLDER).to_owned()
}

/// Another user may own the folder: nothing that lies there is followed or written to.
fn write_note(folder: &Path, volumes: &Volumes) -> io::Result<()> {
    let pid = process::id();
    let note = folder.join(format!("{NOTE}{pid}"));
    if volumes.is_empty() {
        return fs::remove_file(note);
    }
    match DirBuilder::new().mode(0o755).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let started = started(&fs::read_to_string("/proc/self/stat")?).unwrap_or_default();
    let entries = volumes.iter().map(|(&(_, kind), said)| Entry {
        kind,
        said: said.clone(),
    });
    let text = Text {
        started,
        volume: entries.collect(),
    };
    let text = toml::to_string(&text).map_err(io::Error::other)?;
    let new = folder.join(format!(".{NOTE}{pid}"));
    let _ = fs::remove_file(&new);
    File::create_new(&new)?.write_all(text.as_bytes())?;
    fs::rename(new, note)
}

/// When a process was started, in ticks since the boot, by its `/proc/PID/stat` (field 22, the 20th
/// behind the name in parentheses: proc_pid_stat(5)).
fn started(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(19)?.parse().ok()
}

/// Removes what earlier processes have left, and says in the log where `doctor` will hear nothing
/// of this one.
pub(crate) fn prepare() {
    let folder = folder();
    remove_stale(&Machine::at(Path::new("/"), Vec::new()), &folder);
    let path = Path::new(&folder);
    let place = if path.exists() {
        path
    } else {
        path.parent().unwrap_or(path)
    };
    if let Err(error) = access(place, AccessFlags::W_OK | AccessFlags::X_OK) {
        tracing::info!(
            folder,
            %error,
            "`capstan-target doctor` cannot hear from this process what is wrong with media; it would in a folder that is \
             named in {FOLDER_VARIABLE}, for both"
        );
    }
}

fn remove_stale(machine: &Machine, folder: &str) {
    for note in notes(machine, folder) {
        // A process of another user may be hidden (ProtectProc=).
        let process = i32::try_from(note.pid).map(Pid::from_raw);
        let is_hidden = process.is_ok_and(|pid| kill(pid, None) == Err(Errno::EPERM));
        if !note.lives && !is_hidden {
            let _ = fs::remove_file(machine.path(&note.path));
        }
    }
}

/// What a process has noted.
struct Note {
    path: String,
    pid: u32,
    /// None when it cannot be read.
    text: Option<Text>,
    /// Whether the process that wrote it is there.
    lives: bool,
}

fn notes(machine: &Machine, folder: &str) -> Vec<Note> {
    let names = machine.names(folder);
    let notes = names.iter().filter_map(|name| {
        let pid = name.strip_prefix(NOTE)?.parse().ok()?;
        let path = format!("{folder}/{name}");
        let text = machine.read(&path);
        let text: Option<Text> = text.and_then(|text| toml::from_str(&text).ok());
        let stat = machine.read(&format!("/proc/{pid}/stat"));
        let now = stat.and_then(|stat| started(&stat));
        let lives = match &text {
            Some(text) => Some(text.started) == now,
            None => true,
        };
        Some(Note {
            path,
            pid,
            text,
            lives: lives && now.is_some(),
        })
    });
    notes.collect()
}

/// What a process that runs has noted.
pub(super) struct Line {
    pid: u32,
    path: String,
    /// `None` when it cannot be read.
    entry: Option<Entry>,
}

/// What the targets that run say.
pub(super) fn lines(machine: &Machine, folder: &str) -> Vec<Line> {
    let notes = notes(machine, folder).into_iter().filter(|note| note.lives);
    let lines = notes.flat_map(
        |Note {
             path, pid, text, ..
         }| {
            let entries = match text {
                Some(text) => text.volume.into_iter().map(Some).collect(),
                None => vec![None],
            };
            let line = move |entry| Line {
                pid,
                path: path.clone(),
                entry,
            };
            entries.into_iter().map(line)
        },
    );
    lines.collect()
}

impl Line {
    /// Whether it cannot be read, and may be of any file or device.
    pub(super) fn is_unreadable(&self) -> bool {
        self.entry.is_none()
    }

    /// Whether it is of what is at this path, by that name or another.
    pub(super) fn is_of(&self, path: &Path) -> bool {
        let Some(entry) = &self.entry else {
            return false;
        };
        let said = Path::new(&entry.said.path);
        let is_same = || {
            let (there, here) = (MediumId::at(said).ok()?, MediumId::at(path).ok()?);
            let is_same = there.is_same(&here) == Some(true) && !is_twin(said, path, &here);
            Some(is_same || there.shares_bytes(&here))
        };
        said == path || is_same() == Some(true)
    }

    /// What `doctor` makes of it.
    pub(super) fn check(&self) -> Check {
        let Self { pid, path, entry } = self;
        let Some(Entry { kind, said }) = entry else {
            return Check::warning(
                LOST,
                format!("{path} cannot be read"),
                format!("to know what process {pid} has lost"),
                "sudo capstan-target doctor",
            );
        };
        let seen = format!("{} (process {pid})", said.what);
        Check::error(kind.name(), seen, kind.expected(), &said.next)
    }
}

pub(super) fn has<'a>(lines: impl IntoIterator<Item = &'a Line>, what: &str) -> bool {
    let mut entries = lines.into_iter().filter_map(|line| line.entry.as_ref());
    entries.any(|entry| entry.said.what == what)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use capstan_doctor::{Check, Machine, Verdict};
    use capstan_storage::{IoError, IoErrorKind, Op};
    use capstan_subsystem::BackendId;

    use super::{
        FOLDER, Line, Running, Said, What, folder_of, lines, notes, remove_stale, started,
    };

    fn checks_in(machine: &Machine, folder: &str) -> Vec<Check> {
        lines(machine, folder).iter().map(Line::check).collect()
    }

    fn here() -> Machine {
        Machine::at(Path::new("/"), Vec::new())
    }

    fn lost(folder: &Path) -> Running {
        Running::in_folder(folder.to_owned())
    }

    fn add(lost: &Running, backend: u32, volume: &str) {
        let error = IoError::new(IoErrorKind::Lost, &Op::Flush, &Arc::from(volume));
        lost.add(BackendId(backend), What::Writes, || Said {
            path: volume.to_owned(),
            what: format!("{}: {error}", super::super::now()),
            next: format!("mend {volume}"),
        });
    }

    #[test]
    fn doctor_finds_what_a_target_has_lost_until_the_volume_is_closed() {
        let root = tempfile::tempdir().unwrap();
        // Made when there is something to note.
        let folder = root.path().join("run");
        let name = folder.to_str().unwrap();
        assert!(checks_in(&here(), name).is_empty());
        let lost = lost(&folder);
        add(&lost, 1, "/srv/a.img");
        add(&lost, 1, "/srv/a.img");
        add(&lost, 2, "/srv/b.img");
        let found = checks_in(&here(), name);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].verdict, Verdict::Error);
        assert!(found[0].seen.contains("/srv/a.img"), "{found:?}");
        assert!(
            found[0].seen.starts_with("20") && found[0].seen.contains("Z: "),
            "when: {found:?}"
        );
        assert_eq!(found[0].remedy.as_deref(), Some("mend /srv/a.img"));
        let moved = || Said {
            path: "/srv/a.img".to_owned(),
            what: "/srv/a.img is not\nat its path".to_owned(),
            next: "move it back".to_owned(),
        };
        lost.set(BackendId(1), What::Place, Some(moved()));
        assert_eq!(
            lost.backends(),
            [BackendId(1), BackendId(2)],
            "a moved file has lost nothing"
        );
        let found = checks_in(&here(), name);
        let places: Vec<_> = found.iter().filter(|check| check.name == "media").collect();
        assert!(found.len() == 3 && places.len() == 1, "{found:?}");
        assert!(places[0].seen.starts_with(&moved().what), "{places:?}");
        let all = lines(&here(), name);
        let of = |path: &str| {
            all.iter()
                .filter(|line| line.is_of(Path::new(path)))
                .count()
        };
        assert_eq!(
            (of("/srv/a.img"), of("/srv/b.img"), of("/srv/c.img")),
            (2, 1, 0)
        );
        lost.forget(BackendId(1));
        assert_eq!(lost.backends(), [BackendId(2)]);
        assert_eq!(checks_in(&here(), name).len(), 2, "it is still moved");
        add(&lost, 1, "/srv/a.img");
        lost.set(BackendId(1), What::Place, None);
        assert_eq!(checks_in(&here(), name).len(), 2);
        lost.remove(BackendId(1));
        lost.remove(BackendId(7));
        let found = checks_in(&here(), name);
        assert!(
            found.len() == 1 && found[0].seen.contains("/srv/b.img"),
            "{found:?}"
        );
        lost.remove(BackendId(2));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn a_process_and_doctor_look_in_the_same_folder() {
        for (variable, folder) in [
            (None, FOLDER),
            (Some(""), FOLDER),
            (Some("relative"), FOLDER),
            (Some("/run/other"), "/run/other"),
            (Some("/run/first:/run/second"), "/run/first"),
        ] {
            assert_eq!(folder_of(variable), folder);
        }
        assert_eq!(
            Running::new().folder,
            Path::new(&folder_of(
                std::env::var(super::FOLDER_VARIABLE).ok().as_deref()
            ))
        );
    }

    #[test]
    fn what_a_process_that_is_gone_has_left_says_nothing_and_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().to_str().unwrap();
        let lost = lost(root.path());
        add(&lost, 1, "/srv/a.img");
        let own = root
            .path()
            .join(format!("lost-writes-{}", std::process::id()));
        let text = fs::read_to_string(&own).unwrap();
        // No process has this pid; and init was not started then.
        fs::copy(&own, root.path().join("lost-writes-4194305")).unwrap();
        let of_init = text.replace("started = ", "started = 1");
        fs::write(root.path().join("lost-writes-1"), of_init).unwrap();
        assert_eq!(notes(&here(), folder).len(), 3);
        assert_eq!(checks_in(&here(), folder).len(), 1);
        remove_stale(&here(), folder);
        let left = notes(&here(), folder);
        assert!(left.iter().any(|note| note.pid == std::process::id()));
        assert!(left.iter().all(|note| note.pid != 4_194_305));
    }

    #[test]
    fn the_start_of_a_process_is_behind_any_name() {
        let fields = (3..=52).map(|at| at.to_string()).collect::<Vec<_>>();
        let stat = format!("7 (a ) (b) {}", fields.join(" "));
        assert_eq!(started(&stat), Some(22));
        assert_eq!(started("7 (a"), None);
    }
}
