//! Volumes of running targets that have lost writes, where `capstan-target doctor` finds them.
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
use capstan_subsystem::BackendId;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{AccessFlags, Pid, access};
use serde::{Deserialize, Serialize};

/// What systemd tells a service with `RuntimeDirectory=`: absolute paths, with colons between them
/// (systemd.exec(5)).
const FOLDER_VARIABLE: &str = "RUNTIME_DIRECTORY";
/// That folder of capstan-target.service, and of a target that was told no other one.
const FOLDER: &str = "/run/capstan-target";
/// Of the notes' names; the pid is the rest.
const NOTE: &str = "lost-writes-";

/// What a volume can lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum What {
    /// Acknowledged writes.
    #[default]
    Writes,
    /// What was behind its new end.
    #[serde(rename = "cut")]
    End,
}

impl What {
    pub(super) const ALL: [Self; 2] = [Self::Writes, Self::End];
}

type Volumes = BTreeMap<(BackendId, What), String>;

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

    /// A volume has lost something: when and what, in one line. What is known is not asked for its
    /// line again, and waits until that of another thread is there.
    pub(super) fn add(&self, backend: BackendId, what: What, line: impl FnOnce() -> String) {
        self.change(|volumes| {
            let is_new = !volumes.contains_key(&(backend, what));
            volumes.entry((backend, what)).or_insert_with(line);
            is_new
        });
    }

    /// It is the operator's now.
    pub(super) fn remove(&self, backend: BackendId) {
        self.change(|volumes| {
            let before = volumes.len();
            volumes.retain(|(of, _), _| *of != backend);
            volumes.len() != before
        });
    }

    pub(super) fn backends(&self) -> Vec<BackendId> {
        self.volumes().keys().map(|&(backend, _)| backend).collect()
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
            tracing::warn!(%folder, %error, "`capstan-target doctor` will not know of lost writes");
        }
    }
}

/// Where a process and `doctor` meet: the same for both in the same environment.
pub(super) fn folder() -> String {
    folder_of(env::var(FOLDER_VARIABLE).ok().as_deref())
}

fn folder_of(variable: Option<&str>) -> String {
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
    let lines: String = volumes.values().map(|line| format!("{line}\n")).collect();
    let new = folder.join(format!(".{NOTE}{pid}"));
    let _ = fs::remove_file(&new);
    File::create_new(&new)?.write_all(format!("{started}\n{lines}").as_bytes())?;
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
            "`capstan-target doctor` cannot hear of writes that this process may lose; it would in a folder that is \
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
    /// Its start and lines; none when it cannot be read.
    text: Option<String>,
    /// Whether the process that wrote it is there.
    lives: bool,
}

fn notes(machine: &Machine, folder: &str) -> Vec<Note> {
    let names = machine.names(folder);
    let notes = names.iter().filter_map(|name| {
        let pid = name.strip_prefix(NOTE)?.parse().ok()?;
        let path = format!("{folder}/{name}");
        let text = machine.read(&path);
        let stat = machine.read(&format!("/proc/{pid}/stat"));
        let now = stat.and_then(|stat| started(&stat));
        let lives = match &text {
            Some(text) => text.lines().next().and_then(|line| line.parse().ok()) == now,
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
    text: Option<String>,
}

/// What the targets that run have lost.
pub(super) fn lines(machine: &Machine, folder: &str) -> Vec<Line> {
    let notes = notes(machine, folder).into_iter().filter(|note| note.lives);
    let lines = notes.flat_map(
        |Note {
             path, pid, text, ..
         }| {
            let lines: Vec<_> = match text {
                Some(text) => text
                    .lines()
                    .skip(1)
                    .map(|line| Some(line.to_owned()))
                    .collect(),
                None => vec![None],
            };
            let line = move |text| Line {
                pid,
                path: path.clone(),
                text,
            };
            lines.into_iter().map(line)
        },
    );
    lines.collect()
}

pub(super) fn has(lines: &[Line], line: &str) -> bool {
    lines
        .iter()
        .any(|known| known.text.as_deref() == Some(line))
}

pub(super) fn checks(lines: &[Line]) -> Vec<Check> {
    const NAME: &str = "lost writes";
    let check = |Line { pid, path, text }: &Line| match text {
        None => Check::warning(
            NAME,
            format!("{path} cannot be read"),
            format!("to know what process {pid} has lost"),
            "sudo capstan-target doctor",
        ),
        Some(line) => Check::error(
            NAME,
            line,
            "every answered write on its medium",
            format!(
                "look at the log of process {pid} (journalctl -u capstan-target -p err); what is on the volume needs \
                 a check or a restore"
            ),
        ),
    };
    lines.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use capstan_doctor::{Check, Machine, Verdict};
    use capstan_storage::{IoError, IoErrorKind, Op};
    use capstan_subsystem::BackendId;

    use super::{FOLDER, Running, What, checks, folder_of, lines, notes, remove_stale, started};

    fn checks_in(machine: &Machine, folder: &str) -> Vec<Check> {
        checks(&lines(machine, folder))
    }

    fn here() -> Machine {
        Machine::at(Path::new("/"), Vec::new())
    }

    fn lost(folder: &Path) -> Running {
        Running::in_folder(folder.to_owned())
    }

    fn add(lost: &Running, backend: u32, volume: &str) {
        let error = IoError::new(IoErrorKind::Lost, &Op::Flush, &Arc::from(volume));
        lost.add(BackendId(backend), What::Writes, || {
            format!("{}: {error}", super::super::now())
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
        fs::write(root.path().join("lost-writes-1"), format!("1{text}")).unwrap();
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
