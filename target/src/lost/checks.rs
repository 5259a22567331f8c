//! What `doctor` and `check` say of lost writes, and the command that clears them.

use std::fs;
use std::io::ErrorKind::{InvalidInput, NotADirectory, NotFound};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use capstan_config::{Backing, Config, Subsystem, word_of};
use capstan_doctor::{Check, Machine};
use capstan_storage::MediumId;

use super::note::{self, All, Found, Note, Unreadable};
use super::running::{self, LOST, Line};
use crate::state;

/// What is wrong with media of targets on this machine that run, and what those that have ended
/// have lost.
pub(crate) fn checks(machine: &Machine, config: Option<&Config>) -> Vec<Check> {
    let folder = state::wanted();
    checks_in(
        machine,
        &running::folder(),
        &folder.display().to_string(),
        config,
    )
}

fn checks_in(machine: &Machine, running: &str, state: &str, config: Option<&Config>) -> Vec<Check> {
    let lines = running::lines(machine, running);
    let mut checks: Vec<_> = lines.iter().map(Line::check).collect();
    // A folder that cannot be read is said to by another check.
    let All { found, unreadable } = note::all(&machine.path(state)).unwrap_or_default();
    let found = found
        .iter()
        .filter(|found| !running::has(&lines, &found.note.line()));
    checks.extend(
        found.map(|Found { name, note }| of_note(note, &format!("{state}/{name}"), config)),
    );
    let unreadable = unreadable.iter();
    checks.extend(unreadable.map(|unreadable| of_unreadable(unreadable, state, config)));
    checks
}

/// Of a note that cannot be read: of the volume whose note has its name, where that is configured.
fn of_unreadable(unreadable: &Unreadable, folder: &str, config: Option<&Config>) -> Check {
    let namespaces = config.into_iter().flat_map(|config| &config.subsystems);
    let mut namespaces = namespaces.flat_map(Subsystem::configured);
    let of = namespaces.find_map(|namespace| match &namespace.backing {
        Backing::Path(path) if note::is_name_of(&unreadable.name, path) => Some(path),
        _ => None,
    });
    let remedy = match &of {
        _ if unreadable.is_refused() => {
            "look again as a user that may read it: sudo capstan-target doctor".to_owned()
        }
        Some(path) => format!(
            "every Flush of {} fails until it is cleared: check or restore what is on it, then: capstan-target \
             clear-lost-writes {}",
            path.display(),
            word_of(path)
        ),
        None if config.is_some() => format!(
            "it is of no volume that is known here: look into it for the path of one, check or restore what is on that, \
             and remove it, as root: rm {}",
            word_of(&Path::new(folder).join(&unreadable.name))
        ),
        None => "a target that has the volume names it at its start, in the log, and so does capstan-target doctor \
                 --config FILE: check or restore what is on that, then: capstan-target clear-lost-writes PATH. Where none \
                 does, as root look into the file for the path, and remove it"
            .to_owned(),
    };
    let of = of
        .map(|path| format!(", which is of {}", path.display()))
        .unwrap_or_default();
    let seen = format!(
        "{folder}/{}{of}, tells of lost writes at {} and cannot be read: {}",
        unreadable.name, unreadable.when, unreadable.error
    );
    Check::error(LOST, seen, "a note as capstan-target writes it", remedy)
}

/// Of a target that has ended, or that has its runtime directory elsewhere.
fn of_note(note: &Note, file: &str, config: Option<&Config>) -> Check {
    let Note {
        path, subnqn, nsid, ..
    } = note;
    let (word, file) = (word_of(path), word_of(Path::new(file)));
    let path = path.display();
    let clear = match note.is_at_its_path() {
        true => format!("capstan-target clear-lost-writes {word}"),
        false => format!(
            "capstan-target clear-lost-writes PATH, with the path that it has now (where it is gone for good, as root: rm {file})"
        ),
    };
    let seen = format!("{} (namespace {nsid} of {subnqn})", note.line());
    let expected = "every answered write on its medium";
    if config.is_some_and(|config| !note.is_configured(config)) {
        return Check::warning(
            LOST,
            format!("{seen}; it is not in this configuration"),
            expected,
            format!("check or restore what is on {path} before it is used again, then: {clear}"),
        );
    }
    Check::error(
        LOST,
        format!("{seen}; the target that had it did not end in order"),
        expected,
        format!(
            "every Flush fails until it is cleared: check or restore what is on {path}, then: {clear}, and reload a target \
             that runs"
        ),
    )
}

/// What `check` says of files and devices that have lost writes, and of those that a target which
/// runs has found moved, deleted, cut or failing.
#[must_use]
pub fn warnings(config: &Config) -> Vec<String> {
    let machine = Machine::at(Path::new("/"), Vec::new());
    let running = running::lines(&machine, &running::folder());
    let of_config: Vec<&Line> = running.iter().filter(|line| is_of(line, config)).collect();
    let told = of_config.iter().map(|line| line.check().line());
    let mut warnings: Vec<String> = told.collect();
    // A folder that cannot be read here is one that `serve` cannot read: that says it.
    let Some(folder) = state::folder() else {
        return warnings;
    };
    let is_told = |note: &Note| {
        let has = |lines: &mut dyn Iterator<Item = &Line>| running::has(lines, &note.line());
        has(&mut of_config.iter().copied())
            || has(&mut running.iter()) && !note.is_configured(config)
    };
    warnings.extend(warnings_in(&folder, config, is_told));
    warnings
}

/// Whether a target that runs may have said it of a volume of `config`, whatever path it has there.
fn is_of(line: &Line, config: &Config) -> bool {
    let mut namespaces = config.subsystems.iter().flat_map(Subsystem::configured);
    line.is_unreadable()
        || namespaces.any(|n| matches!(&n.backing, Backing::Path(path) if line.is_of(path)))
}

fn warnings_in(folder: &Path, config: &Config, is_told: impl Fn(&Note) -> bool) -> Vec<String> {
    let All { found, unreadable } = note::all(folder).unwrap_or_default();
    let place = folder.display().to_string();
    let unreadable = unreadable.iter();
    let unreadable = unreadable.map(|unreadable| of_unreadable(unreadable, &place, Some(config)));
    let found = found.iter().filter(|found| !is_told(&found.note));
    let found =
        found.map(|Found { name, note }| of_note(note, &format!("{place}/{name}"), Some(config)));
    unreadable.chain(found).map(|check| check.line()).collect()
}

/// Clears what these files or devices have lost: what was cleared, a line each.
///
/// # Errors
/// Nothing is noted of one of them; then nothing was cleared.
pub fn clear(paths: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let folder = state::folder().with_context(|| {
        format!(
            "there is no state folder {}, which a target would have noted lost writes in; {} names another one",
            state::wanted().display(),
            state::FOLDER_VARIABLE
        )
    })?;
    clear_in(&folder, paths)
}

fn clear_in(folder: &Path, paths: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let All {
        found: notes,
        unreadable,
    } = note::all(folder).with_context(|| {
        format!(
            "notes of lost writes cannot be read in {}, expected a folder that this user may read and write: run this as \
             root, or as the user of the target",
            folder.display()
        )
    })?;
    let mut chosen: Vec<(&str, String)> = Vec::new();
    for path in paths {
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let medium = match MediumId::at(&whole) {
            Ok(medium) => Some(medium),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => None,
            Err(error) if error.kind() == InvalidInput => {
                bail!("{}: {error}. Nothing was cleared", path.display())
            }
            Err(error) => bail!(
                "{} cannot be looked at: {error}; a file or a block device that may be opened was expected. Nothing was \
                 cleared",
                path.display()
            ),
        };
        // Where nothing is there, what was is known by its path only if by nothing else.
        let is_meant = |found: &Found| match &medium {
            Some(medium) => found.is_of(&whole, medium),
            None => found.note.path == whole && !found.note.names_medium(),
        };
        let before = chosen.len();
        let meant = notes.iter();
        let meant = meant.filter(|found| is_meant(found));
        chosen.extend(meant.map(|Found { name, note }| {
            let Note { nsid, subnqn, .. } = note;
            let what = format!("{} (namespace {nsid} of {subnqn})", note.line());
            (name.as_str(), what)
        }));
        let meant = unreadable.iter();
        let meant = meant.filter(|unreadable| note::is_name_of(&unreadable.name, &whole));
        chosen.extend(meant.map(|unreadable| (unreadable.name.as_str(), unreadable.what())));
        if chosen.len() == before {
            return Err(nothing_noted(
                folder,
                path,
                &whole,
                medium.is_some(),
                &notes,
            ));
        }
    }
    let cleared = chosen.into_iter().map(|(name, what)| {
        note::clear(folder, name).with_context(|| {
            let path = folder.join(name);
            format!(
                "{} cannot be marked as cleared, expected a folder that this user may write to: run this as root, or as \
                 the user of the target",
                path.display()
            )
        })?;
        Ok(format!(
            "cleared: {what}. A target that runs with it is to be told: systemctl reload capstan-target, or kill -HUP"
        ))
    });
    cleared.collect()
}

/// Why nothing is cleared for `path`, and what is noted.
fn nothing_noted(
    folder: &Path,
    path: &Path,
    whole: &Path,
    is_there: bool,
    notes: &[Found],
) -> anyhow::Error {
    let (path, place) = (path.display(), folder.display());
    let subject = match is_there {
        true => format!("no lost writes of what is at {path} now are noted in {place}"),
        false => match fs::read_link(whole) {
            Ok(to) => format!("{path} is a link to {}, and nothing is there", to.display()),
            Err(_) => format!("nothing is at {path}"),
        },
    };
    let mut before = notes.iter().filter(|found| found.note.path == whole);
    if let Some(found) = before.next() {
        let file = folder.join(&found.name);
        return anyhow!(
            "{subject}. {} is of what was there before, {}. Where that has another path now, name that one; where it is gone \
             for good, remove the note (rm {0}). Nothing was cleared",
            file.display(),
            found.note.line()
        );
    }
    let noted: Vec<_> = notes
        .iter()
        .map(|f| f.note.path.display().to_string())
        .collect();
    let noted = match noted.is_empty() {
        true => "none are".to_owned(),
        false => format!("those of {} are", noted.join(", ")),
    };
    anyhow!(
        "{subject}; of lost writes {noted} noted in {place}. Nothing was cleared; what a target without a state folder has \
         lost is cleared by its restart"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use capstan_config::Config;
    use capstan_doctor::{Machine, Verdict};
    use capstan_storage::MediumId;

    use super::super::note::{self, Note};
    use super::super::running::What;
    use super::{checks_in, clear_in, warnings_in};

    fn write_note(folder: &Path, path: &Path) -> Note {
        let note = Note {
            path: path.to_owned(),
            subnqn: "nqn.2026-11.org.example:a".to_owned(),
            nsid: 7,
            when: "2026-11-26T08:00:00Z".to_owned(),
            kind: What::Writes,
            errno: 28,
            what: format!("flush on {}: lost", path.display()),
            medium: std::collections::BTreeMap::new(),
        };
        fs::write(folder.join(note.name()), note.text().unwrap()).unwrap();
        note
    }

    fn config(path: &Path) -> Config {
        let path = path.display();
        let toml = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\npath = \"{path}\"\n"
        );
        Config::from_toml(&toml).unwrap()
    }

    #[test]
    fn doctor_tells_of_notes_of_ended_targets_with_the_next_step() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path(), Vec::new());
        let state = root.path().join("state");
        fs::create_dir(&state).unwrap();
        let checks = |config: Option<&Config>| checks_in(&machine, "/run", "/state", config);
        assert!(checks(None).is_empty());
        let path = Path::new("/srv/a.img");
        write_note(&state, path);
        for config in [None, Some(config(path))] {
            let found = checks(config.as_ref());
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].verdict, Verdict::Error, "{found:?}");
            assert!(found[0].seen.contains("2026-11-26T08:00:00Z"), "{found:?}");
            let remedy = found[0].remedy.as_ref().unwrap();
            assert!(remedy.contains("clear-lost-writes /srv/a.img"), "{remedy}");
        }
        let other = config(Path::new("/srv/b.img"));
        let found = checks(Some(&other));
        assert_eq!(found[0].verdict, Verdict::Warning, "{found:?}");
        assert!(
            found[0].seen.contains("not in this configuration"),
            "{found:?}"
        );
        fs::write(state.join("lost-writes-1.toml"), "?").unwrap();
        let found = checks(None);
        let bad: Vec<_> = found
            .iter()
            .filter(|c| c.seen.contains("cannot be read"))
            .collect();
        assert!(found.len() == 2 && bad.len() == 1, "{found:?}");
    }

    #[test]
    fn what_is_cleared_is_named_and_what_is_not_noted_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let [a, b] = ["/srv/a.img", "/srv/b.img"].map(Path::new);
        let error = clear_in(root.path(), &[a.into()]).unwrap_err().to_string();
        assert!(
            error.contains("/srv/a.img") && error.contains("none are"),
            "{error}"
        );
        write_note(root.path(), a);
        write_note(root.path(), b);
        let error = clear_in(root.path(), &[a.into(), "/srv/c.img".into()]).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("those of /srv/a.img, /srv/b.img are"),
            "{error}"
        );
        assert_eq!(
            fs::read_dir(root.path()).unwrap().count(),
            2,
            "nothing was cleared"
        );
        let cleared = clear_in(root.path(), &[a.into()]).unwrap();
        assert!(
            cleared.len() == 1 && cleared[0].contains("flush on /srv/a.img: lost"),
            "{cleared:?}"
        );
        clear_in(root.path(), &[a.into()]).unwrap_err();
        clear_in(root.path(), &[b.into()]).unwrap();
        assert!(note::all(root.path()).unwrap().found.is_empty());
    }

    #[test]
    fn what_is_no_file_and_no_device_is_named_with_what_was_expected() {
        let root = tempfile::tempdir().unwrap();
        let [pipe, socket, link] = ["pipe", "socket", "link"].map(|name| root.path().join(name));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        for (path, is) in [
            (
                Path::new("/"),
                "it is a folder, expected a file or a block device",
            ),
            (Path::new("/dev/null"), "it is a character device, expected"),
            (&pipe, "it is a named pipe, expected"),
            (&socket, "it is a socket, expected"),
            (&link, "is a link to nowhere, and nothing is there"),
        ] {
            let error = clear_in(root.path(), &[path.into()])
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(is) && error.contains("othing was cleared"),
                "{error}"
            );
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }

    /// Another file may be at its path, or nothing: what it has lost goes with it.
    #[test]
    fn what_was_moved_is_cleared_by_the_path_that_it_has() {
        let root = tempfile::tempdir().unwrap();
        let [state, path, moved] = ["state", "a", "b"].map(|name| root.path().join(name));
        fs::create_dir(&state).unwrap();
        fs::write(&path, "x").unwrap();
        let medium = MediumId::at(&path).unwrap();
        let note = Note {
            medium: medium.facts().clone(),
            ..write_note(root.path(), &path)
        };
        let file = state.join(note.name());
        fs::write(&file, note.text().unwrap()).unwrap();
        let told = || warnings_in(&state, &config(&path), |_| false).join("\n");
        let by_path = format!("clear-lost-writes {}", path.display());
        assert!(told().contains(&by_path), "{}", told());
        fs::rename(&path, &moved).unwrap();
        for words in ["nothing is at", "no lost writes of what is at"] {
            let error = clear_in(&state, std::slice::from_ref(&path))
                .unwrap_err()
                .to_string();
            let remove = format!("rm {}", file.display());
            assert!(error.contains(words) && error.contains(&remove), "{error}");
            assert!(!told().contains(&by_path), "{}", told());
            assert!(told().contains(&remove), "{}", told());
            fs::write(&path, "another one").unwrap();
        }
        assert!(file.exists());
        clear_in(&state, &[moved]).unwrap();
        assert!(!file.exists());
    }
}
