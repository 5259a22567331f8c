//! Files with two doors: a regular file below an export that is a namespace over NVMe as well.
//! Hosts may write it, or clients, and never both: neither would know of what the other has cached,
//! and hosts keep a file system in it that clients would write over.
//!
//! Nor do clients take a name from what hosts write: it is what the configuration finds the file
//! by, and the last one is all that keeps its data. (A directory above it may be renamed: no data
//! goes with that, and the next start says what is missing.)
//!
//! A file is known by its device and inode. A claim is there before the file is opened, and for as
//! long as it is open: so none of the two comes in between.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::Metadata;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::libc;

use crate::error::FileError;
use crate::node::Node;
use crate::sys;

/// What tells a file from every other for as long as it is open: its device and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    device: (u32, u32),
    inode: u64,
}

impl FileId {
    /// Of a file that was looked at.
    pub fn of(metadata: &Metadata) -> Self {
        let device = metadata.dev();
        Self {
            device: (libc::major(device), libc::minor(device)),
            inode: metadata.ino(),
        }
    }

    pub(crate) fn of_node(node: &Node) -> Result<Self, FileError> {
        Self::of_fd(node.fd())
    }

    fn of_fd(fd: BorrowedFd<'_>) -> Result<Self, FileError> {
        let stat =
            sys::statx(fd, libc::STATX_INO).map_err(FileError::kernel("looking at a file"))?;
        Ok(Self {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
        })
    }
}

/// A file is a namespace, or open for writing by clients: there is no value for both.
#[derive(Debug)]
enum Users {
    Clients {
        open: usize,
    },
    Namespace {
        claims: usize,
        nsid: u32,
        name: Arc<str>,
        /// Whether the log has been told of a client that was refused writing.
        told_writing: bool,
        /// Whether it has been told of one that was refused taking a name.
        told_names: bool,
    },
}

/// Which files are written, and by which of the two doors. There are no more entries than
/// descriptors of open files and namespaces.
#[derive(Debug, Default)]
pub struct Writers {
    users: Mutex<HashMap<FileId, Users>>,
    /// Claims of namespaces: without one, no name has to be looked up.
    namespaces: AtomicUsize,
}

/// Why a file is not claimed for a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "NFS clients have the file of {name} open for writing ({open} times), and never both hosts and \
     clients write a file: have it closed there (NFSv3 clients that have just written count for a \
     while), or serve it with `read_only = true`"
)]
pub struct WrittenByClients {
    /// The namespace.
    pub name: Arc<str>,
    /// How often the file is open for writing.
    pub open: usize,
}

impl Writers {
    fn users(&self) -> MutexGuard<'_, HashMap<FileId, Users>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps clients from writing the file for as long as the claim is there: hosts may write it as
    /// namespace `nsid`, called `name` in the log. Call it before the file is opened for that.
    ///
    /// # Errors
    /// Where clients have it open for writing.
    pub fn claim(
        self: &Arc<Self>,
        file: FileId,
        nsid: u32,
        name: &str,
    ) -> Result<NamespaceClaim, WrittenByClients> {
        let name: Arc<str> = name.into();
        match self.users().entry(file) {
            Entry::Vacant(place) => {
                place.insert(Users::Namespace {
                    claims: 1,
                    nsid,
                    name,
                    told_writing: false,
                    told_names: false,
                });
            }
            Entry::Occupied(mut users) => match users.get_mut() {
                Users::Clients { open } => {
                    let open = *open;
                    return Err(WrittenByClients { name, open });
                }
                // On reload the namespace that takes another one's place is there before that goes.
                Users::Namespace {
                    claims,
                    nsid: of,
                    name: called,
                    ..
                } => {
                    *claims = claims.saturating_add(1);
                    (*of, *called) = (nsid, name);
                }
            },
        }
        self.namespaces.fetch_add(1, Ordering::Relaxed);
        Ok(NamespaceClaim {
            writers: self.clone(),
            file,
        })
    }

    /// Keeps the file from becoming a namespace that hosts write, before a client opens it.
    pub(crate) fn open(self: &Arc<Self>, fd: BorrowedFd<'_>) -> Result<WriteClaim, FileError> {
        let file = FileId::of_fd(fd)?;
        let mut users = self.users();
        let users = users.entry(file).or_insert(Users::Clients { open: 0 });
        match users {
            Users::Clients { open } => *open = open.saturating_add(1),
            Users::Namespace {
                nsid,
                name,
                told_writing,
                ..
            } => {
                if !std::mem::replace(told_writing, true) {
                    tracing::warn!(
                        "a client was refused writing to the file of {name}, which hosts write over \
                         NVMe; it may read it. Refusals of this file are not logged again"
                    );
                }
                return Err(FileError::Namespace { nsid: *nsid });
            }
        }
        Ok(WriteClaim {
            writers: self.clone(),
            file,
        })
    }

    /// Whether a name of anything may be that of a namespace.
    pub(crate) fn has_namespaces(&self) -> bool {
        self.namespaces.load(Ordering::Relaxed) > 0
    }

    /// Keeps a name of the file that is open as `fd`.
    ///
    /// # Errors
    /// [`FileError::Namespace`] where hosts write it.
    pub(crate) fn check_name(&self, fd: BorrowedFd<'_>) -> Result<(), FileError> {
        let file = FileId::of_fd(fd)?;
        match self.users().get_mut(&file) {
            Some(Users::Namespace {
                nsid,
                name,
                told_names,
                ..
            }) => {
                if !std::mem::replace(told_names, true) {
                    tracing::warn!(
                        "a client was refused removing, renaming or linking the file of {name}, which hosts \
                         write over NVMe; take the namespace out of the configuration and reload, \
                         or do it on this machine. Refusals of this file are not logged again"
                    );
                }
                Err(FileError::Namespace { nsid: *nsid })
            }
            Some(Users::Clients { .. }) | None => Ok(()),
        }
    }

    fn release(&self, file: FileId) {
        let mut users = self.users();
        let Entry::Occupied(mut users) = users.entry(file) else {
            return;
        };
        let (Users::Clients { open: count } | Users::Namespace { claims: count, .. }) =
            users.get_mut();
        *count = count.saturating_sub(1);
        if *count == 0 {
            users.remove();
        }
    }
}

/// For as long as it is there, no client writes the file or takes a name from it.
#[derive(Debug)]
pub struct NamespaceClaim {
    writers: Arc<Writers>,
    file: FileId,
}

impl Drop for NamespaceClaim {
    fn drop(&mut self) {
        self.writers.release(self.file);
        self.writers.namespaces.fetch_sub(1, Ordering::Relaxed);
    }
}

/// For as long as it is there, the file does not become a namespace that hosts write.
#[derive(Debug)]
pub(crate) struct WriteClaim {
    writers: Arc<Writers>,
    file: FileId,
}

impl WriteClaim {
    /// Another one of the same file, which a client has already.
    pub(crate) fn again(&self) -> Self {
        if let Some(Users::Clients { open }) = self.writers.users().get_mut(&self.file) {
            *open = open.saturating_add(1);
        }
        Self {
            writers: self.writers.clone(),
            file: self.file,
        }
    }
}

impl Drop for WriteClaim {
    fn drop(&mut self) {
        self.writers.release(self.file);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    fn file() -> (File, FileId) {
        let file = tempfile::tempfile().unwrap();
        let id = FileId::of(&file.metadata().unwrap());
        (file, id)
    }

    #[test]
    fn a_file_is_the_same_however_it_was_looked_at() {
        let (file, id) = file();
        assert_eq!(FileId::of_fd(file.as_fd()), Ok(id));
    }

    #[test]
    fn clients_do_not_write_what_hosts_write() {
        let writers = Arc::new(Writers::default());
        let ((one, id), (other, _)) = (file(), file());
        let claim = writers.claim(id, 7, "namespace 7").unwrap();
        let again = writers.claim(id, 8, "namespace 8").unwrap();
        drop(claim);
        let refused = writers.open(one.as_fd()).unwrap_err();
        assert_eq!(refused, FileError::Namespace { nsid: 8 });
        assert!(refused.to_string().contains("namespace 8"), "{refused}");
        writers.open(other.as_fd()).unwrap();
        drop(again);
        drop(writers.open(one.as_fd()).unwrap());
        assert!(writers.users().is_empty());
    }

    #[test]
    fn hosts_do_not_write_what_clients_have_open_for_writing() {
        let writers = Arc::new(Writers::default());
        let (file, id) = file();
        let first = writers.open(file.as_fd()).unwrap();
        let second = first.again();
        drop(first);
        let refused = writers.claim(id, 1, "namespace 1 of x").unwrap_err();
        assert_eq!(refused.open, 1);
        assert!(
            refused.to_string().contains("namespace 1 of x"),
            "{refused}"
        );
        drop(second);
        drop(writers.claim(id, 1, "namespace 1 of x").unwrap());
        assert!(writers.users().is_empty());
    }
}
