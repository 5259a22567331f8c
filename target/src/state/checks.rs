//! What `check`, `doctor` and the log say of the state folder.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use capstan_config::{Backing, Config, Namespace, Size, Subsystem};
use capstan_doctor::{Check, Machine, Verdict};
use capstan_nvme_proto::text::Word;
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access, geteuid};

use super::{FOLDER, FOLDER_VARIABLE, waits};
use crate::limits::STATE_BYTES_FREE_MIN;
use crate::lost::running;
use crate::reservations;

const NAME: &str = "state folder";
const MISSING: &str = "does not exist";
/// What is lost without it, in words.
const EXPECTED: &str = "a folder that the target can write to: there it remembers, over its end, which file or device each \
                        namespace is on, the LBA size of each file, and writes that were lost";

/// What `doctor` says of it, of a target with this configuration if there is one.
pub(crate) fn checks(machine: &Machine, config: Option<&Config>) -> Vec<Check> {
    let variable = std::env::var(FOLDER_VARIABLE).ok();
    let mut checks = checks_of(machine, variable.as_deref());
    match config.filter(|config| !is_needed(config)) {
        // What is wrong with it is said of the folder of NFS.
        Some(config) if config.nfs.is_some() => {
            checks.retain(|check| check.verdict == Verdict::Ok || is_of_variable(check));
        }
        Some(_) => checks.iter_mut().for_each(done_without),
        None => {}
    }
    let runs_in = std::env::var(running::FOLDER_VARIABLE).ok();
    checks.extend(runtime_folder(runs_in.as_deref()));
    let unreadable = super::folder().map(|folder| reservations::unreadable(&folder));
    checks.extend(unreadable.into_iter().flatten().map(|line| Check {
        verdict: Verdict::Warning,
        ..Check::ok(NAME, line)
    }));
    checks
}

/// A runtime directory that is not taken, as by [`checks_of`] of the state folder.
fn runtime_folder(variable: Option<&str>) -> Option<Check> {
    let named = variable.filter(|named| !named.is_empty())?;
    let taken = running::folder_of(variable);
    (Path::new(&taken) != super::first_of(named)).then(|| {
        Check::warning(
            "runtime directory",
            format!("{} is `{named}`", running::FOLDER_VARIABLE),
            format!("an absolute path; {taken} is used instead"),
            "write the whole path",
        )
    })
}

/// Whether it is about the variable, and not about the folder.
fn is_of_variable(check: &Check) -> bool {
    check.seen.starts_with(FOLDER_VARIABLE)
}

fn checks_of(machine: &Machine, variable: Option<&str>) -> Vec<Check> {
    let folder = super::wanted_by(variable);
    let mut checks = Vec::new();
    if let Some(named) = variable.filter(|named| !named.is_empty())
        && folder != super::first_of(named)
    {
        checks.push(Check::warning(
            NAME,
            format!("{FOLDER_VARIABLE} is `{named}`"),
            format!("an absolute path; {FOLDER} is used instead"),
            "write the whole path",
        ));
    }
    let folder = folder.display().to_string();
    checks.push(check(&folder, &machine.path(&folder)));
    checks
}

/// What is wrong with it for a target with this configuration, in lines.
#[must_use]
pub fn warnings(config: &Config) -> Vec<String> {
    if !has_paths(config) {
        return Vec::new();
    }
    let mut checks = checks(&Machine::at(Path::new("/"), Vec::new()), Some(config));
    checks.retain(|check| check.verdict != Verdict::Ok);
    checks.iter().map(Check::line).collect()
}

/// Namespaces that a target that starts again may give another medium.
fn of_paths(config: &Config) -> impl Iterator<Item = &Namespace> {
    let namespaces = config.subsystems.iter().flat_map(Subsystem::configured);
    namespaces.filter(|namespace| matches!(namespace.backing, Backing::Path(_)))
}

/// Whether there are some.
pub(crate) fn has_paths(config: &Config) -> bool {
    of_paths(config).next().is_some()
}

/// Whether something that hosts know is written nowhere but in the state folder.
fn is_needed(config: &Config) -> bool {
    let is_written = |namespace: &Namespace| {
        let has_identity = namespace.uuid.is_some() || namespace.nguid.is_some();
        namespace.nsid_is_written && has_identity && namespace.lba.is_some()
    };
    !of_paths(config).all(is_written)
}

/// What the remedy says has been done about a folder that is missing.
fn done_without(check: &mut Check) {
    if check.seen.ends_with(MISSING) {
        let seen = format!(
            "{}; `nsid`, `uuid` and `lba` are written at each namespace that has a path, and what was lost of writes is not \
             remembered over the target's end",
            check.seen
        );
        *check = Check::ok(NAME, seen);
    }
}

/// What is said of `folder` for a server of NFS, which is refused without one: what it needs it for
/// is `expected`.
pub(crate) fn for_nfs(name: &str, folder: &Path, expected: &str) -> Check {
    let check = check_for(&folder.display().to_string(), folder, For::Exports);
    let is_used = matches!(look(folder), Ok(_) | Err(Obstacle::Full { .. }));
    Check {
        name: name.to_owned(),
        verdict: match (check.verdict, is_used) {
            (Verdict::Warning, false) => Verdict::Error,
            (verdict, _) => verdict,
        },
        expected: check.expected.map(|_| expected.to_owned()),
        ..check
    }
}

/// What a folder is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    Namespaces,
    /// A target that has exports runs as root.
    Exports,
}

/// `folder` in words, which is at `path`.
fn check(named: &str, path: &Path) -> Check {
    check_for(named, path, For::Namespaces)
}

fn check_for(named: &str, path: &Path, what: For) -> Check {
    let folder = Word::path(named.as_bytes());
    let (seen, remedy) = match waits::told(path, || look(path)) {
        Ok(free_bytes) => {
            return Check::ok(NAME, format!("{named}, {} free", Size(free_bytes)));
        }
        Err(Obstacle::Missing) => (
            MISSING.to_owned(),
            match what {
                For::Exports => format!(
                    "make it as root, as which a target with exports runs (`install -d -m 750 {folder}`), or name another one in \
                     {FOLDER_VARIABLE}"
                ),
                For::Namespaces => format!(
                    "make it for the user that the target runs as (`install -d -m 750 -o USER {folder}`), or name another one in \
                 {FOLDER_VARIABLE}. Without one, write `nsid`, `uuid` and `lba` at each namespace that has a path, as hosts \
                 may take another medium for the one they had after a restart"
                ),
            },
        ),
        Err(Obstacle::Unknown(error)) => (
            format!("cannot be looked at: {error}"),
            format!(
                "let this user into the folders above it, or name another one in {FOLDER_VARIABLE}"
            ),
        ),
        Err(Obstacle::NoFolder) => (
            "is not a folder".to_owned(),
            format!(
                "move it away and make a folder there, or name another one in {FOLDER_VARIABLE}"
            ),
        ),
        Err(Obstacle::ReadOnly) => (
            "is on a file system that is read-only".to_owned(),
            format!("mount that for writing, or name a folder elsewhere in {FOLDER_VARIABLE}"),
        ),
        Err(Obstacle::Refused { uid, mode }) => {
            let user = geteuid();
            (
                format!(
                    "belongs to user {uid} (mode {mode:04o}), and user {user} cannot read and write there"
                ),
                match what {
                    For::Exports => "ask as root, as which a target with exports runs".to_owned(),
                    For::Namespaces => format!(
                        "where the target runs as user {user} `sudo chown -R {user} {folder}` gives it to that; as root this can \
                     be asked of any"
                    ),
                },
            )
        }
        Err(Obstacle::Full { free_bytes }) => (
            format!("has {} free", Size(free_bytes)),
            format!("free {} there", Size(STATE_BYTES_FREE_MIN)),
        ),
        Err(Obstacle::NoInodes) => (
            "is on a file system that has no inodes free".to_owned(),
            "remove files there".to_owned(),
        ),
    };
    Check::warning(NAME, format!("{named} {seen}"), EXPECTED, remedy)
}

/// Why a process cannot use a folder.
#[derive(Debug)]
enum Obstacle {
    Missing,
    Unknown(io::Error),
    NoFolder,
    ReadOnly,
    Refused { uid: u32, mode: u32 },
    Full { free_bytes: u64 },
    NoInodes,
}

/// Bytes that are free there.
fn look(path: &Path) -> Result<u64, Obstacle> {
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Obstacle::Missing,
        _ => Obstacle::Unknown(error),
    })?;
    if !metadata.is_dir() {
        return Err(Obstacle::NoFolder);
    }
    let all = AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK;
    match access(path, all) {
        Ok(()) => {}
        Err(Errno::EROFS) => return Err(Obstacle::ReadOnly),
        Err(Errno::EACCES) => {
            return Err(Obstacle::Refused {
                uid: metadata.uid(),
                mode: metadata.permissions().mode() & 0o7777,
            });
        }
        Err(errno) => return Err(Obstacle::Unknown(errno.into())),
    }
    let there = statvfs(path).map_err(|errno| Obstacle::Unknown(errno.into()))?;
    let free_bytes = there
        .blocks_available()
        .saturating_mul(there.fragment_size());
    if free_bytes < STATE_BYTES_FREE_MIN {
        return Err(Obstacle::Full { free_bytes });
    }
    // Some file systems have no such count.
    if there.files() != 0 && there.files_available() == 0 {
        return Err(Obstacle::NoInodes);
    }
    Ok(free_bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use capstan_doctor::{Check, Machine, Verdict};

    use super::{checks_of, runtime_folder};

    /// What is said of a folder that `variable` names, in a machine whose root has `made`.
    fn said(made: impl FnOnce(&std::path::Path), variable: Option<&str>) -> Vec<Check> {
        let root = tempfile::tempdir().unwrap();
        made(root.path());
        checks_of(&Machine::at(root.path(), Vec::new()), variable)
    }

    #[test]
    fn a_folder_that_can_be_used_is_ok_and_says_what_is_free() {
        let folder =
            |root: &std::path::Path| fs::create_dir_all(root.join("var/lib/capstan")).unwrap();
        for variable in [None, Some(""), Some("/var/lib/capstan:/srv")] {
            let checks = said(folder, variable);
            assert_eq!(checks.len(), 1, "{checks:?}");
            assert_eq!(checks[0].verdict, Verdict::Ok, "{checks:?}");
            assert!(
                checks[0].seen.starts_with("/var/lib/capstan, "),
                "{checks:?}"
            );
        }
    }

    #[test]
    fn what_is_missing_no_folder_or_no_whole_path_is_said_with_what_mends_it() {
        let nothing = |_: &std::path::Path| {};
        let file = |root: &std::path::Path| fs::write(root.join("state"), "").unwrap();
        for (checks, seen, remedy) in [
            (
                said(nothing, None),
                "/var/lib/capstan does not exist",
                "STATE_DIRECTORY",
            ),
            (
                said(nothing, Some("/state")),
                "/state does not exist",
                "install -d",
            ),
            (
                said(file, Some("/state")),
                "/state is not a folder",
                "move it away",
            ),
            (
                said(file, Some("/state/in")),
                "/state/in cannot be looked at: Not a directory",
                "above it",
            ),
            (
                said(nothing, Some("state")),
                "STATE_DIRECTORY is `state`",
                "the whole path",
            ),
        ] {
            assert_eq!(checks[0].verdict, Verdict::Warning, "{checks:?}");
            assert!(checks[0].seen.starts_with(seen), "{checks:?}");
            let said = checks[0].remedy.as_ref().unwrap();
            assert!(said.contains(remedy), "{said}");
        }
        assert_eq!(
            said(nothing, Some("state")).len(),
            2,
            "and of the one that is used"
        );
    }

    #[test]
    fn a_missing_folder_is_no_warning_where_all_it_would_keep_is_written() {
        let config = |keys: &str| {
            capstan_config::Config::from_toml(&format!(
                "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
                 nqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n\
                 [[subsystem.namespace]]\npath = \"/dev/a\"\n{keys}"
            ))
            .unwrap()
        };
        let uuid = "uuid = \"7b52fe06-fe19-5814-81b0-fcc245b3fa7a\"\n";
        for (keys, is_needed) in [
            (String::new(), true),
            (format!("nsid = 1\n{uuid}"), true),
            (format!("{uuid}lba = 4096\n"), true),
            (format!("nsid = 1\n{uuid}lba = 4096\n"), false),
        ] {
            assert_eq!(super::is_needed(&config(&keys)), is_needed, "{keys}");
        }
        let mut checks = said(|_| {}, None);
        checks.iter_mut().for_each(super::done_without);
        assert_eq!(checks[0].verdict, Verdict::Ok, "{checks:?}");
        assert!(checks[0].remedy.is_none(), "{checks:?}");
    }

    #[test]
    fn a_runtime_directory_that_is_not_taken_is_said() {
        for taken in [None, Some(""), Some("/run/a"), Some("/run/a:/run/b")] {
            assert!(runtime_folder(taken).is_none(), "{taken:?}");
        }
        let said = runtime_folder(Some("run")).unwrap().line();
        for words in [
            "RUNTIME_DIRECTORY is `run`",
            "an absolute path",
            "/run/capstan-target",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}
