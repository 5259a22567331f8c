//! The target's state folder: small files that outlive the process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::{env, process};

use nix::fcntl::OFlag;

/// What systemd tells a service with `StateDirectory=`: absolute paths, with colons between them
/// (systemd.exec(5)).
pub(crate) const FOLDER_VARIABLE: &str = "STATE_DIRECTORY";
/// That folder of capstan-target.service. Nobody makes it but systemd, or who wants it.
pub(crate) const FOLDER: &str = "/var/lib/capstan";

/// The folder, where there is one.
pub(crate) fn folder() -> Option<PathBuf> {
    folder_of(env::var(FOLDER_VARIABLE).ok().as_deref())
}

fn folder_of(variable: Option<&str>) -> Option<PathBuf> {
    let first = variable.and_then(|folders| folders.split(':').next());
    let told = first.filter(|folder| folder.starts_with('/'));
    let folder = PathBuf::from(told.unwrap_or(FOLDER));
    folder.is_dir().then_some(folder)
}

/// The text of a file there, at most so much of it; none of one that is not there.
///
/// # Errors
/// It is no regular file, or cannot be read.
pub(crate) fn read(folder: &Path, name: &str, bytes_max: u64) -> io::Result<String> {
    let mut options = OpenOptions::new();
    // Another user may own the folder: nothing that lies there is followed.
    let no_follow = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = options
        .read(true)
        .custom_flags(no_follow.bits())
        .open(folder.join(name));
    let mut text = String::new();
    match opened {
        Ok(file) => file.take(bytes_max).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(text)
}

/// Writes a file there: as a whole or not at all, also when the machine goes down meanwhile.
///
/// # Errors
/// It cannot be written; what was there is as it was.
pub(crate) fn write(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = folder.join(format!(".{name}.{}", process::id()));
    let _ = fs::remove_file(&new);
    let written = File::create_new(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, folder.join(name))
    });
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.and_then(|()| sync(folder))
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

    use super::{FOLDER, folder_of, read, write};

    #[test]
    fn a_file_is_written_as_a_whole_and_nothing_is_followed() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        assert_eq!(read(folder, "a", 100).unwrap(), "");
        write(folder, "a", "one").unwrap();
        write(folder, "a", "another").unwrap();
        assert_eq!(read(folder, "a", 100).unwrap(), "another");
        assert_eq!(read(folder, "a", 3).unwrap(), "ano");
        symlink(folder.join("a"), folder.join("link")).unwrap();
        read(folder, "link", 100).expect_err("a link");
        // The link goes, not what it leads to.
        write(folder, "link", "new").unwrap();
        assert_eq!(read(folder, "a", 100).unwrap(), "another");
        // A folder is in the way: what was begun does not stay.
        fs::create_dir(folder.join("taken")).unwrap();
        write(folder, "taken", "new").unwrap_err();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 3);
    }

    #[test]
    fn only_a_folder_that_is_there_remembers() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().to_str().unwrap();
        assert_eq!(folder_of(Some(folder)).as_deref(), Some(root.path()));
        let several = format!("{folder}:/other");
        assert_eq!(folder_of(Some(&several)).as_deref(), Some(root.path()));
        assert_eq!(folder_of(Some(&format!("{folder}/none"))), None);
        let usual = Path::new(FOLDER);
        let expected = usual.is_dir().then(|| usual.to_owned());
        assert_eq!(folder_of(None), expected);
        assert_eq!(folder_of(Some("relative")), expected);
    }
}
