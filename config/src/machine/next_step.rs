//! What the system said of a file, folder or device, and what to do about it.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::not_permitted::{self, is_eperm};
use super::unmounted;
use crate::shown::word_of;
use crate::{shown, suggest};

/// What the system said, and what to do about it.
pub(crate) fn with_next_step(
    error: &io::Error,
    path: &Path,
    metadata: Option<&Metadata>,
) -> String {
    match (error.kind(), metadata) {
        // What is missing is there then, and what would be made is not.
        (ErrorKind::NotFound, _) if let Some(words) = unmounted::in_words(path) => {
            format!("{error}; {words}")
        }
        (ErrorKind::NotFound, _) if let Some(words) = leads_nowhere(path) => {
            format!("{error}; {words}")
        }
        (ErrorKind::NotFound, _) if let Some(words) = other_names(path) => {
            format!("{error}; {words}")
        }
        (ErrorKind::NotFound, _) => match (deleted_and_open(path), mistyped_sibling(path)) {
            (Some((pid, open)), _) => format!(
                "{error}; it was deleted, process {pid} still has it open, and with the end of that it is gone: copy it \
                 before, while nothing writes to it (cp --sparse=always {} FILE)",
                open.display()
            ),
            (None, Some(nearest)) => format!("{error}; did you mean {}?", nearest.display()),
            (None, None) => format!("{error}; {}", how_to_have_it(path)),
        },
        // Not the file's mode: `ErrorKind` does not tell the two apart.
        (ErrorKind::PermissionDenied, _) if is_eperm(error) => {
            format!("{error}; {}", not_permitted::in_words(path, metadata))
        }
        (ErrorKind::PermissionDenied, Some(metadata)) => {
            let mode = metadata.mode() & 0o7777;
            // No more than what would do.
            let ways = [
                Some("run the target as that user"),
                (mode & GROUP_MAY_WRITE == GROUP_MAY_WRITE)
                    .then_some("put its user into that group"),
                File::open(path)
                    .is_ok()
                    .then_some("export it with `read_only = true`"),
            ];
            let ways: Vec<_> = ways.into_iter().flatten().collect();
            format!(
                "{error}; it belongs to UID {} and GID {} with mode {mode:04o}: {}",
                metadata.uid(),
                metadata.gid(),
                ways.join(", or "),
            )
        }
        (ErrorKind::PermissionDenied, None) => match first_closed(path) {
            Some((folder, of)) => format!(
                "{error}: this user may not look into {}, which belongs to UID {} and GID {} with mode {:04o}: let it, \
                 or run the target as a user that may",
                folder.display(),
                of.uid(),
                of.gid(),
                of.mode() & 0o7777,
            ),
            None => error.to_string(),
        },
        (ErrorKind::ReadOnlyFilesystem, _) => format!(
            "{error}; its file system is mounted read-only here (`findmnt -T {path}`; in the unit: \
             ReadWritePaths=): mount it for writing, or export it with `read_only = true`",
            path = word_of(path),
        ),
        _ if error.raw_os_error() == Some(libc::ELOOP) => format!(
            "{error}; a symbolic link of it leads back to itself: `namei --long {}` shows which",
            word_of(path)
        ),
        (ErrorKind::InvalidFilename, _) => {
            format!("{error}; expected at most 255 bytes between two slashes, and 4095 in all")
        }
        (ErrorKind::NotADirectory, _) => match first_no_folder(path) {
            Some(file) => format!(
                "{error}: {} is none; expected a folder there",
                file.display()
            ),
            None => error.to_string(),
        },
        _ if matches!(
            error.raw_os_error(),
            Some(libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM)
        ) =>
        {
            format!(
                "{error}; there is no device or medium behind it now: `lsblk` lists those that are"
            )
        }
        _ => error.to_string(),
    }
}

/// A process that has the deleted file `path` open, and where (`proc(5)`, `/proc/PID/fd`): a target
/// that goes on with it has the only copy. Those of other users are seen by root alone.
#[must_use]
pub fn deleted_and_open(path: &Path) -> Option<(u32, PathBuf)> {
    let has_none = |open: &Path| fs::metadata(open).is_ok_and(|metadata| metadata.nlink() == 0);
    unnamed_and_open(path).filter(|(_, open)| has_none(open))
}

/// What is to be said where `path` was removed, and the file that had that name has others: it is
/// not gone.
fn other_names(path: &Path) -> Option<String> {
    let (pid, open) = unnamed_and_open(path)?;
    let names = names_left(&open, path)?;
    Some(format!(
        "that name was removed; the file is open in process {pid}, and {names}"
    ))
}

/// How a file that is open at `open` is found by its other names, and has the name `path` again;
/// `None` where it has no name.
#[must_use]
pub fn names_left(open: &Path, path: &Path) -> Option<String> {
    let metadata = fs::metadata(open).ok()?;
    let (names, inode) = (metadata.nlink(), metadata.ino());
    let has = match names {
        0 => return None,
        1 => "1 other name".to_owned(),
        _ => format!("{names} other names"),
    };
    let folder = match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        folder => folder.unwrap_or(path),
    };
    Some(format!(
        "has {has} (find \"$(findmnt -no TARGET -T {})\" -xdev -inum {inode}): give it this one back (ln NAME {})",
        word_of(folder),
        word_of(path)
    ))
}

/// A process that has the file open which was at `path` and has lost that name.
fn unnamed_and_open(path: &Path) -> Option<(u32, PathBuf)> {
    let folder = path.parent()?.canonicalize().ok()?;
    let mut deleted = folder.join(path.file_name()?).into_os_string();
    deleted.push(" (deleted)");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let is_it = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == deleted)
        };
        Some((pid, open.into_iter().find(is_it)?.path()))
    })
    .next()
}

/// What to do where nothing has the name of `path`, nor one like it.
fn how_to_have_it(path: &Path) -> String {
    if path.starts_with("/dev") {
        return "`lsblk` lists the devices there are".to_owned();
    }
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    match above.into_iter().rev().find(is_missing) {
        Some(folder) => format!(
            "there is no folder {}: make it, or mount what has it",
            folder.display()
        ),
        None => {
            let path = word_of(path);
            format!("`truncate -s 1G {path}` makes a file of 1 GiB")
        }
    }
}

/// Bits of a mode: the group may read and write.
const GROUP_MAY_WRITE: u32 = 0o060;

/// The first folder on the way to `path` that this user may not look into.
fn first_closed(path: &Path) -> Option<(PathBuf, Metadata)> {
    let on_the_way: Vec<&Path> = path.ancestors().collect();
    let mut from_root = on_the_way.into_iter().rev();
    let refused = from_root.find(|path| {
        let looked = fs::metadata(path);
        looked.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    })?;
    let folder = refused.parent()?;
    Some((folder.to_owned(), fs::metadata(folder).ok()?))
}

/// What is in the way of `path`, and not a folder.
fn first_no_folder(path: &Path) -> Option<&Path> {
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    let mut from_root = above.into_iter().rev();
    from_root.find(|part| part.metadata().is_ok_and(|metadata| !metadata.is_dir()))
}

/// That `path` is a link to what is not there, in words.
pub(crate) fn leads_nowhere(path: &Path) -> Option<String> {
    let to = fs::read_link(path).ok()?;
    Some(format!(
        "it is a link to {}, and nothing is there: mend the link, or name the file itself",
        shown::line(&to.display().to_string())
    ))
}

/// The entry of the same folder whose name is nearest to that of `path`: of what is only read.
pub(crate) fn nearest_sibling(path: &Path) -> Option<PathBuf> {
    let (folder, names) = siblings(path)?;
    let name = path.file_name()?.to_str()?;
    suggest::nearest(name, names.iter().map(String::as_str)).map(|nearest| folder.join(nearest))
}

/// The file of the same folder whose name is plainly that of `path`, mistyped: hosts would write
/// to it. What is no file is another device.
fn mistyped_sibling(path: &Path) -> Option<PathBuf> {
    let (folder, names) = siblings(path)?;
    let name = path.file_name()?.to_str()?;
    let meant = suggest::mistyped(name, names.iter().map(String::as_str))?;
    let meant = folder.join(meant);
    meant
        .metadata()
        .is_ok_and(|of| of.is_file())
        .then_some(meant)
}

/// The other names in the folder of `path`, and that.
fn siblings(path: &Path) -> Option<(PathBuf, Vec<String>)> {
    let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
    let here = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let names = fs::read_dir(here)
        .ok()?
        .flatten()
        .take(4096)
        .filter_map(|entry| entry.file_name().into_string().ok())
        // A link that leads nowhere is there itself.
        .filter(|entry| entry != name)
        .collect();
    Some((folder.to_owned(), names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refuses_comes_with_what_is_behind_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = fs::metadata(file.path()).unwrap();
        let path = file.path().display();
        let told = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            with_next_step(&error, file.path(), Some(&metadata))
        };
        let not_permitted = told(libc::EPERM);
        assert!(
            not_permitted.contains("a security module") && !not_permitted.contains("chattr"),
            "{not_permitted}"
        );
        let long = told(libc::ENAMETOOLONG);
        assert!(long.contains("at most 255 bytes"), "{long}");
        // That one is the mode's.
        assert!(told(libc::EACCES).contains("it belongs to UID"));
        let read_only = told(libc::EROFS);
        assert!(
            read_only.contains(&format!("`findmnt -T {path}`")),
            "{read_only}"
        );
        assert!(read_only.contains("ReadWritePaths="), "{read_only}");
        for errno in [libc::ENXIO, libc::ENODEV, libc::ENOMEDIUM] {
            assert!(told(errno).contains("`lsblk`"), "{}", told(errno));
        }
    }
}
