//! The key of the handles' MACs: made once, kept in the state folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Name of the key's file in the state folder.
pub const KEY_FILE: &str = "export-handles.key";

/// Bytes of a key: those of a BLAKE3 key.
pub const KEY_BYTES: usize = blake3::KEY_LEN;

/// Bytes of what a server calls itself.
pub const OWNER_BYTES: usize = 16;

/// The secret key of every handle's MAC. With it, a handle of any file of any export can be forged.
#[derive(Clone)]
pub struct Key {
    bytes: [u8; KEY_BYTES],
    /// Where it is kept: no client is to have it.
    folder: Option<PathBuf>,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file or its folder could not be used.
    #[error("{doing} {}: {source}; clients keep their handles only with this file, so give the \
             target a state folder that it can write", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What came of it.
        source: io::Error,
    },
    /// The file does not hold a key.
    #[error("{} holds {found} bytes where a key has {KEY_BYTES}; put it back from a backup, or \
             remove it: then clients have to mount again", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes in it, counted to one more than a key has.
        found: usize,
    },
    /// Others could read the key.
    #[error("{} has mode {mode:04o}: others than its owner may have read the key; remove the file \
             (clients have to mount again), or make it 0600 if nobody did", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The kernel gave no random bytes.
    #[error("no random bytes for a key: {0}; the kernel's getrandom has to work")]
    Random(getrandom::Error),
}

impl Key {
    /// A key of these bytes, which have to be random and secret.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        let folder = None;
        Self { bytes, folder }
    }

    /// The folder that it is kept in, where it is in one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// What a server with this key may call itself: the same as long as handles hold, no other
    /// server's, and nothing that tells of the key.
    pub fn owner(&self) -> [u8; OWNER_BYTES] {
        let mut owner = [0; OWNER_BYTES];
        let digest = blake3::Hasher::new_derive_key("capstan 2026-11-28 NFS server owner")
            .update(&self.bytes)
            .finalize();
        for (to, from) in owner.iter_mut().zip(digest.as_bytes()) {
            *to = *from;
        }
        owner
    }

    pub(crate) const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }

    /// The key in `folder`, made and synced there first where it is missing. Of two processes that
    /// make it at once, both get the one that stays.
    ///
    /// # Errors
    /// Where the folder cannot be used, or what it holds is not a key that only its owner can read.
    pub fn open_or_make(folder: &Path) -> Result<Self, KeyError> {
        let path = folder.join(KEY_FILE);
        match Self::read(&path) {
            Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Self::make(folder, &path)?;
                Self::read(&path)
            }
            other => other,
        }
    }

    /// Looks at the key in `folder`, and makes none: whether there is one.
    ///
    /// # Errors
    /// As for [`open_or_make`](Self::open_or_make).
    pub fn look(folder: &Path) -> Result<bool, KeyError> {
        match Self::read(&folder.join(KEY_FILE)) {
            Ok(_) => Ok(true),
            Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn read(path: &Path) -> Result<Self, KeyError> {
        let failed = |doing| move |source| Self::failed(doing, path, source);
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)
            .map_err(failed("opening"))?;
        let mode = file.metadata().map_err(failed("looking at"))?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed {
                path: path.into(),
                mode,
            });
        }
        let mut bytes = Vec::with_capacity(KEY_BYTES + 1);
        (&mut file)
            .take(KEY_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(failed("reading"))?;
        match bytes.try_into() {
            Ok(bytes) => Ok(Self {
                bytes,
                folder: path.parent().map(Path::to_owned),
            }),
            Err(bytes) => Err(KeyError::Length {
                path: path.into(),
                found: bytes.len(),
            }),
        }
    }

    /// A whole synced file takes the name, unless it is taken by then: a crash leaves no half key.
    fn make(folder: &Path, path: &Path) -> Result<(), KeyError> {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(KeyError::Random)?;
        // Another name each time: threads and processes may make it at once.
        let mut name = [0; 8];
        getrandom::fill(&mut name).map_err(KeyError::Random)?;
        let unnamed = folder.join(format!("{KEY_FILE}.{:016x}", u64::from_ne_bytes(name)));
        let unnamed = unnamed.as_path();
        let failed = |doing| move |source| Self::failed(doing, unnamed, source);
        let mut file = Self::create(unnamed).map_err(failed("making"))?;
        file.write_all(&key).map_err(failed("writing"))?;
        file.sync_all().map_err(failed("syncing"))?;
        let linked = fs::hard_link(unnamed, path);
        fs::remove_file(unnamed).map_err(failed("removing"))?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Self::failed("making", path, error))
            }
            _ => File::open(folder)
                .and_then(|folder| folder.sync_all())
                .map_err(|source| Self::failed("syncing", folder, source)),
        }
    }

    fn create(path: &Path) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
    }

    fn failed(doing: &'static str, path: &Path, source: io::Error) -> KeyError {
        KeyError::Io {
            doing,
            path: path.into(),
            source,
        }
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(secret)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_made_once_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!Key::look(folder.path()).unwrap());
        let made = Key::open_or_make(folder.path()).unwrap();
        assert!(Key::look(folder.path()).unwrap());
        let path = folder.path().join(KEY_FILE);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        let read = Key::open_or_make(folder.path()).unwrap();
        assert_eq!(made.bytes, read.bytes);
        assert_ne!(made.bytes, [0; KEY_BYTES]);
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
        let other = tempfile::tempdir().unwrap();
        assert_ne!(made.bytes, Key::open_or_make(other.path()).unwrap().bytes);
    }

    #[test]
    fn all_that_make_it_at_once_have_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let start = std::sync::Barrier::new(8);
        let keys: Vec<Key> = std::thread::scope(|scope| {
            let make = || {
                start.wait();
                Key::open_or_make(folder.path()).unwrap()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(keys.iter().all(|key| key.bytes == keys[0].bytes));
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
    }

    #[test]
    fn a_key_that_is_cut_or_exposed_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KEY_FILE);
        for found in [0, KEY_BYTES - 1, KEY_BYTES + 1] {
            fs::write(&path, vec![7; found]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let said = Key::open_or_make(folder.path()).unwrap_err().to_string();
            assert!(said.contains(path.to_str().unwrap()), "{said}");
            assert!(said.contains(&format!("holds {found} bytes")), "{said}");
        }
        fs::write(&path, [7; KEY_BYTES]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let said = Key::open_or_make(folder.path()).unwrap_err().to_string();
        assert!(said.contains("mode 0640"), "{said}");
    }

    #[test]
    fn a_folder_that_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let said = Key::open_or_make(&missing).unwrap_err().to_string();
        assert!(said.contains("missing"), "{said}");
    }

    #[test]
    fn it_is_not_printed() {
        assert_eq!(
            format!("{:?}", Key::from_bytes([9; KEY_BYTES])),
            "Key(secret)"
        );
    }
}
