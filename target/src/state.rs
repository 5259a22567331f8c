//! The target's state folder: small files that outlive the process.

mod checks;
pub(crate) mod waits;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::{env, process};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg, OFlag};
use nix::sys::signal::kill;
use nix::unistd::{Pid, linkat};

pub use checks::warnings;
pub(crate) use checks::{checks, for_nfs, has_paths};

/// What systemd tells a service with `StateDirectory=`: absolute paths, with colons between them
/// (systemd.exec(5)).
pub(crate) const FOLDER_VARIABLE: &str = "STATE_DIRECTORY";
/// That folder of capstan-target.service. Nobody makes it but systemd, or who wants it.
pub(crate) const FOLDER: &str = "/var/lib/capstan";

const LOCK: &str = ".lock";

/// The folder, where there is one. One that cannot be looked at is named as well: reading what may
/// be there tells why not.
pub(crate) fn folder() -> Option<PathBuf> {
    let is_missing = |error: &io::Error| {
        matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        )
    };
    Some(wanted()).filter(
        |folder| match waits::told(folder, || fs::metadata(folder)) {
            Ok(metadata) => metadata.is_dir(),
            Err(error) => !is_missing(&error),
        },
    )
}

/// Where it would be.
pub(crate) fn wanted() -> PathBuf {
    wanted_by(env::var(FOLDER_VARIABLE).ok().as_deref())
}

/// Nobody has named one.
pub(crate) fn is_by_default() -> bool {
    env::var_os(FOLDER_VARIABLE).is_none_or(|named| named.is_empty())
}

fn wanted_by(variable: Option<&str>) -> PathBuf {
    let told = variable.map(first_of).filter(|folder| folder.is_absolute());
    told.unwrap_or_else(|| Path::new(FOLDER)).into()
}

fn first_of(folders: &str) -> &Path {
    Path::new(folders.split(':').next().unwrap_or(folders))
}

/// The text of a file there; `None` of one that is not there.
///
/// # Errors
/// It is no regular file, is longer than that, or cannot be read.
pub(crate) fn read(folder: &Path, name: &str, bytes_max: u64) -> io::Result<Option<String>> {
    let path = folder.join(name);
    waits::told(&path, || read_at(&path, bytes_max))
}

fn read_at(path: &Path, bytes_max: u64) -> io::Result<Option<String>> {
    let mut options = OpenOptions::new();
    // Another user may own the folder: nothing that lies there is followed.
    let no_follow = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = options.read(true).custom_flags(no_follow.bits()).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
            return Err(io::Error::other(
                "it is a symbolic link, which is not followed",
            ));
        }
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    let read_bytes = file.take(bytes_max + 1).read_to_string(&mut text)?;
    if read_bytes as u64 > bytes_max {
        let why = format!("it is longer than {bytes_max} bytes, the most that is read of it");
        return Err(io::Error::other(why));
    }
    Ok(Some(text))
}

/// Writes a file there: as a whole or not at all, also when the machine goes down meanwhile.
///
/// # Errors
/// It cannot be written; what was there is as it was.
pub(crate) fn write(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = folder.join(name);
    let new = folder.join(format!(".{name}.{}", process::id()));
    waits::told(&path, || {
        let _ = fs::remove_file(&new);
        let written = File::create_new(&new).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written.and_then(|()| sync(folder))
    })
}

/// Removes a file there, for good. One that is not there is removed.
///
/// # Errors
/// The file system's.
pub(crate) fn remove(folder: &Path, name: &str) -> io::Result<()> {
    let path = folder.join(name);
    waits::told(&path, || {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        sync(folder)
    })
}

/// Removes from the folder what processes that are gone had begun to write.
pub(crate) fn remove_begun() {
    if let Some(folder) = folder() {
        waits::told(&folder, || remove_begun_in(&folder));
    }
}

fn remove_begun_in(folder: &Path) {
    // One that cannot be read is said to by those who need it.
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    for name in names.filter(|name| begun_by(name).is_some_and(is_gone)) {
        let _ = fs::remove_file(folder.join(name));
    }
}

/// The process that has a file of this name only until it is written.
fn begun_by(name: &str) -> Option<Pid> {
    let (file, pid) = name.strip_prefix('.')?.rsplit_once('.')?;
    let pid = pid.parse().ok().filter(|&pid| pid > 0)?;
    file.ends_with(".toml").then(|| Pid::from_raw(pid))
}

fn is_gone(pid: Pid) -> bool {
    kill(pid, None) == Err(Errno::ESRCH)
}

/// Room for a small file that must be written when the file system may be full: a file without a
/// name, whose blocks are stored. It goes with the process.
#[derive(Debug)]
pub(crate) struct Reserve(File);

impl Reserve {
    /// Room for so many bytes in the folder.
    ///
    /// # Errors
    /// There is none, or the file system has no files without a name (`O_TMPFILE` in open(2)).
    pub(crate) fn new(folder: &Path, bytes: usize) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600);
        let mut file = options.custom_flags(OFlag::O_TMPFILE.bits()).open(folder)?;
        file.write_all(&vec![b'\n'; bytes])?;
        file.sync_all()?;
        Ok(Self(file))
    }

    /// As [`write`].
    ///
    /// # Errors
    /// As [`write`].
    pub(crate) fn replace(self, folder: &Path, name: &str, text: &str) -> io::Result<()> {
        let new = format!(".{name}.{}", process::id());
        let _ = fs::remove_file(folder.join(&new));
        self.write(folder, &new, text)?;
        fs::rename(folder.join(&new), folder.join(name))?;
        sync(folder)
    }

    /// As [`write`], of a file that is not there.
    ///
    /// # Errors
    /// As [`write`]; also when there is one.
    pub(crate) fn write(self, folder: &Path, name: &str, text: &str) -> io::Result<()> {
        let Self(file) = self;
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len().try_into().unwrap_or(u64::MAX))?;
        file.sync_all()?;
        let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
        let (from, to) = (Path::new(&nameless), &folder.join(name));
        linkat(AT_FDCWD, from, AT_FDCWD, to, AtFlags::AT_SYMLINK_FOLLOW)?;
        sync(folder)
    }
}

/// Keeps other targets from writing what they have read before, until it is dropped. Who may only
/// read the folder cannot hold it.
///
/// # Errors
/// The file system's: some have no locks.
pub(crate) fn lock(folder: &Path) -> io::Result<Flock<File>> {
    let path = folder.join(LOCK);
    waits::told(&path, || {
        let mut options = OpenOptions::new();
        let no_follow = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let options = options.read(true).custom_flags(no_follow.bits());
        let file = match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                options.write(true).create(true).mode(0o600).open(&path)
            }
            opened => opened,
        }?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno.into())
    })
}

/// What is wrong with the TOML of a file there, in one line.
pub(crate) fn not_toml(text: &str, error: &toml::de::Error) -> io::Error {
    let message = error.message().replace('\n', ", ");
    let before = error.span().and_then(|span| text.get(..span.start));
    io::Error::other(match before {
        Some(before) => {
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
            format!("line {line}, column {column}: {message}")
        }
        None => message,
    })
}

/// Makes what names there are in the folder last.
///
/// # Errors
/// The file system's.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::process;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::{FOLDER, Reserve, folder, read, remove_begun_in, wanted_by, write};

    #[test]
    fn a_file_is_written_as_a_whole_and_nothing_is_followed() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        let text = |name| read(folder, name, 7).unwrap();
        assert_eq!(text("a"), None);
        write(folder, "a", "one").unwrap();
        write(folder, "a", "another").unwrap();
        assert_eq!(text("a").as_deref(), Some("another"));
        let error = read(folder, "a", 6).unwrap_err().to_string();
        assert!(error.contains("longer than 6 bytes"), "{error}");
        mkfifo(&folder.join("fifo"), Mode::S_IRWXU).unwrap();
        for name in ["fifo", "."] {
            let error = read(folder, name, 7).unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{name}: {error}");
        }
        fs::remove_file(folder.join("fifo")).unwrap();
        symlink(folder.join("a"), folder.join("link")).unwrap();
        let error = read(folder, "link", 100).unwrap_err().to_string();
        assert!(error.contains("a symbolic link"), "{error}");
        // The link goes, not what it leads to.
        write(folder, "link", "new").unwrap();
        assert_eq!(text("a").as_deref(), Some("another"));
        // A folder is in the way: what was begun does not stay.
        fs::create_dir(folder.join("taken")).unwrap();
        write(folder, "taken", "new").unwrap_err();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 3);
    }

    #[test]
    fn what_a_process_that_is_gone_had_begun_is_removed_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let mut child = process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let (gone, here) = (child.id(), process::id());
        let begun = format!(".a.toml.{gone}");
        let others = [
            format!(".a.toml.{here}"),
            format!("a.toml.{gone}"),
            format!(".a.swp.{gone}"),
            ".a.toml.0".to_owned(),
            ".a.toml".to_owned(),
        ];
        for name in others.iter().chain([&begun]) {
            fs::write(root.path().join(name), "").unwrap();
        }
        remove_begun_in(root.path());
        assert!(!root.path().join(begun).exists());
        assert!(others.iter().all(|name| root.path().join(name).exists()));
    }

    #[test]
    fn a_reserve_becomes_a_file_that_was_not_there() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        let reserve = || Reserve::new(folder, 8192).unwrap();
        let unused = reserve();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "without a name");
        reserve().write(folder, "a", "one").unwrap();
        let text = || read(folder, "a", 100).unwrap();
        assert_eq!(text().as_deref(), Some("one"));
        let error = unused.write(folder, "a", "another").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(text().as_deref(), Some("one"));
        reserve().replace(folder, "a", "another").unwrap();
        assert_eq!(text().as_deref(), Some("another"));
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
        Reserve::new(&folder.join("none"), 8192).unwrap_err();
    }

    #[test]
    fn systemd_or_nobody_says_which_folder() {
        for (variable, folder) in [
            (None, FOLDER),
            (Some(""), FOLDER),
            (Some("relative"), FOLDER),
            (Some("/srv/state"), "/srv/state"),
            (Some("/srv/first:/srv/second"), "/srv/first"),
        ] {
            assert_eq!(wanted_by(variable), Path::new(folder));
        }
        // Nobody makes it.
        let here = folder();
        assert!(here.is_none_or(|folder| folder.exists()));
    }
}
