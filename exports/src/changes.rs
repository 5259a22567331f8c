//! What an operation changes of a directory, for its client: how the directory was right before it
//! and right behind it, and whether anything else has changed there in between (`atomic` of
//! change_info4, RFC 8881, section 3.3.8; wcc_data, RFC 1813, section 2.6). A client that learns
//! that nothing has keeps what it knows of the directory.
//!
//! Clients of both versions change a directory one after the other. Programs on this machine take
//! no part in that, so the kernel is asked as well (inotify(7)) which entries were made, moved and
//! removed in between: it has to be those of the operation. What is not told by that: an ACL or
//! another extended attribute of the directory that a program sets in these microseconds.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use crate::attributes::Attributes;
use crate::error::{FileError, Result};
use crate::limits::{CHANGES_READ, CHANGES_SEEN};
use crate::name::Name;
use crate::node::Node;
use crate::sys::{self, FdPath};
use crate::writers::FileId;

/// How long an operation waits for those before it on the same directory. Behind that it goes on
/// beside them: a file system that does not answer keeps no more threads than it has to.
const WAIT: Duration = Duration::from_secs(1);

/// A directory around a change of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntriesChanged {
    /// Its attributes before.
    pub before: Attributes,
    /// Its attributes behind it: the change attribute is another one.
    pub after: Attributes,
    /// Whether nothing else has changed in between.
    pub is_atomic: bool,
}

/// What the kernel tells of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    Made(Name<'a>),
    Removed(Name<'a>),
    MovedFrom(Name<'a>),
    MovedTo(Name<'a>),
}

impl Event<'_> {
    fn is(&self, seen: &Seen) -> bool {
        let (mask, name) = match self {
            Self::Made(name) => (AddWatchFlags::IN_CREATE, name),
            Self::Removed(name) => (AddWatchFlags::IN_DELETE, name),
            Self::MovedFrom(name) => (AddWatchFlags::IN_MOVED_FROM, name),
            Self::MovedTo(name) => (AddWatchFlags::IN_MOVED_TO, name),
        };
        seen.mask.contains(mask) && *seen.name == *name.bytes()
    }
}

#[derive(Debug)]
struct Seen {
    mask: AddWatchFlags,
    name: Box<[u8]>,
}

/// Entries of a directory that were changed; `None` where some were not told.
type AllSeen = Option<Vec<Seen>>;

/// Asks the kernel for changes of directories that are under way.
#[derive(Debug)]
struct Watcher {
    inotify: Inotify,
    watched: Mutex<HashMap<WatchDescriptor, AllSeen>>,
}

/// Directories whose entries are being changed. They are the machine's, whichever exports they
/// are in; there are no more of them than twice the threads that call.
#[derive(Debug, Default)]
struct Directories {
    taken: Mutex<HashSet<FileId>>,
    given_back: Condvar,
}

static DIRECTORIES: LazyLock<Directories> = LazyLock::new(Directories::default);

static WATCHER: LazyLock<Option<Watcher>> = LazyLock::new(|| {
    let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
    match Inotify::init(flags) {
        Ok(inotify) => Some(Watcher {
            inotify,
            watched: Mutex::default(),
        }),
        Err(errno) => {
            tracing::warn!(
                "clients look at directories again after each change of their own: inotify: \
                 {errno}; raise fs.inotify.max_user_instances and start again"
            );
            None
        }
    }
});

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Directories that no other operation changes, as long as it is there.
struct Taken(Vec<FileId>);

impl Directories {
    /// Takes all of them at once, so that no two operations wait for one another. `None` where that
    /// lasts too long.
    fn take(&self, wanted: Vec<FileId>) -> Option<Taken> {
        let is_taken =
            |taken: &mut HashSet<FileId>| wanted.iter().any(|directory| taken.contains(directory));
        let waited = self
            .given_back
            .wait_timeout_while(locked(&self.taken), WAIT, is_taken);
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        taken.extend(&wanted);
        Some(Taken(wanted))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = locked(&DIRECTORIES.taken);
        self.0.iter().for_each(|directory| {
            taken.remove(directory);
        });
        drop(taken);
        DIRECTORIES.given_back.notify_all();
    }
}

/// A directory whose changes the kernel tells, as long as it is there.
struct Watched {
    watcher: &'static Watcher,
    descriptor: WatchDescriptor,
}

impl Watcher {
    /// What happens to its entries and to the directory itself; what happens to their files has the
    /// kernel mark each of those that it knows, and is not asked for.
    fn watch(&'static self, directory: &Node) -> Option<Watched> {
        let events = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        let path = FdPath::new(directory.fd());
        let mut watched = locked(&self.watched);
        let descriptor = self
            .inotify
            .add_watch(path.as_c_str(), events | AddWatchFlags::IN_ONLYDIR)
            .ok()?;
        watched.insert(descriptor, Some(Vec::new()));
        Some(Watched {
            watcher: self,
            descriptor,
        })
    }

    /// Reads what the kernel has, for every directory.
    fn read(&self, watched: &mut HashMap<WatchDescriptor, AllSeen>) {
        for _ in 0..CHANGES_READ {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => return,
                Err(_) => break,
            };
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    watched.values_mut().for_each(|seen| *seen = None);
                }
                let Some(of) = watched.get_mut(&event.wd) else {
                    continue;
                };
                if of.as_ref().is_some_and(|seen| seen.len() >= CHANGES_SEEN) {
                    *of = None;
                }
                if let Some(seen) = of {
                    let name = event.name.as_deref().map_or(&[][..], OsStr::as_bytes);
                    seen.push(Seen {
                        mask: event.mask,
                        name: name.into(),
                    });
                }
            }
        }
        watched.values_mut().for_each(|seen| *seen = None);
    }
}

impl Watched {
    /// Whether `expected` is all that has happened.
    fn is_all(&self, expected: &[Event<'_>]) -> bool {
        let mut watched = locked(&self.watcher.watched);
        self.watcher.read(&mut watched);
        let seen = watched.get(&self.descriptor).and_then(Option::as_ref);
        seen.is_some_and(|seen| {
            seen.len() == expected.len()
                && expected.iter().zip(seen).all(|(one, seen)| one.is(seen))
        })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut watched = locked(&self.watcher.watched);
        // What is gone with its file system needs no more.
        let _ = self.watcher.inotify.rm_watch(self.descriptor);
        watched.remove(&self.descriptor);
    }
}

/// A changed directory that is not on the disk yet.
#[derive(Debug)]
pub(crate) struct Unsynced {
    changed: EntriesChanged,
    directory: OwnedFd,
}

impl Unsynced {
    /// Puts the entries on the disk.
    pub(crate) fn sync(self) -> Result<EntriesChanged> {
        nix::unistd::fsync(self.directory).map_err(FileError::kernel("syncing"))?;
        Ok(self.changed)
    }
}

/// What is known of a directory before the change.
struct Begun<'a> {
    node: &'a Node,
    expected: &'a [Event<'a>],
    directory: OwnedFd,
    watched: Option<Watched>,
    before: Attributes,
}

impl<'a> Begun<'a> {
    fn new(node: &'a Node, expected: &'a [Event<'a>], is_taken: bool) -> Result<Self> {
        // Before anything has changed: an entry that cannot be put on the disk is not made. A time
        // of reading, which is set otherwise, would be one more change to put there.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOATIME;
        let directory = node
            .reopen(flags, "opening a directory")
            .or_else(|_| node.readable_directory())?;
        let watched = WATCHER
            .as_ref()
            .filter(|_| is_taken && node.export().tells_changes())
            .and_then(|watcher| watcher.watch(node));
        Ok(Self {
            node,
            expected,
            directory,
            watched,
            before: node.attributes()?,
        })
    }

    fn finish(self) -> Unsynced {
        let Self { node, before, .. } = self;
        let mut found = node.attributes();
        // The kernel tells of a change before it lets others in, as reading the directory needs:
        // what is in `found` has been told then. There is no room for an entry, so none is read.
        let watched = self.watched.as_ref();
        let tells = || {
            let read = || sys::directory_entries(self.directory.as_fd(), &mut []);
            watched.is_some() && matches!(read(), Ok(_) | Err(Errno::EINVAL))
        };
        let are_all = |events: &[Event<'_>]| watched.is_some_and(|watched| watched.is_all(events));
        // A file that was renamed to a name that it had already.
        if found == Ok(before) && tells() && are_all(&[]) {
            return Unsynced {
                changed: EntriesChanged {
                    before,
                    after: before,
                    is_atomic: true,
                },
                directory: self.directory,
            };
        }
        // A tmpfs gives the directory the time of what was removed from it, which can be the one
        // that it had.
        if found.is_ok_and(|after| after.change == before.change) {
            if let Err(error) = node.renew_change() {
                tracing::warn!("a directory has changed, and clients do not see it: {error}");
            }
            found = node.attributes();
        }
        let after = found.unwrap_or(before);
        let rights = |of: &Attributes| (of.mode, of.uid, of.gid);
        let is_atomic =
            found.is_ok() && tells() && rights(&before) == rights(&after) && are_all(self.expected);
        Unsynced {
            changed: EntriesChanged {
                before,
                after,
                is_atomic,
            },
            directory: self.directory,
        }
    }
}

/// Carries out what changes entries of a directory, with what the kernel tells of that.
///
/// # Errors
/// Those of `operation`, and where the directory cannot be looked at.
pub(crate) fn change<T>(
    directory: &Node,
    expected: &[Event<'_>],
    operation: impl FnOnce() -> Result<T>,
) -> Result<(T, Unsynced)> {
    let taken = DIRECTORIES.take(vec![FileId::of_node(directory)?]);
    let begun = Begun::new(directory, expected, taken.is_some())?;
    let value = operation()?;
    let changed = begun.finish();
    drop(taken);
    Ok((value, changed))
}

/// As [`change`], of two directories, or of one that is both.
///
/// # Errors
/// As there.
pub(crate) fn change_both(
    (one, of_one): (&Node, Event<'_>),
    (other, of_other): (&Node, Event<'_>),
    operation: impl FnOnce() -> Result<()>,
) -> Result<[EntriesChanged; 2]> {
    let ids = [FileId::of_node(one)?, FileId::of_node(other)?];
    if ids[0] == ids[1] {
        let ((), changed) = change(one, &[of_one, of_other], operation)?;
        return Ok([changed.sync()?; 2]);
    }
    let taken = DIRECTORIES.take(ids.into());
    let (of_one, of_other) = ([of_one], [of_other]);
    let begun = (
        Begun::new(one, &of_one, taken.is_some())?,
        Begun::new(other, &of_other, taken.is_some())?,
    );
    operation()?;
    let changed = (begun.0.finish(), begun.1.finish());
    drop(taken);
    let second = changed.1.sync()?;
    Ok([changed.0.sync()?, second])
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::clients::ClientRules;
    use crate::handle::FileSystemId;
    use crate::key::{KEY_BYTES, Key};
    use crate::name::NameRule;
    use crate::{ExportSettings, Exports};

    fn root_of(path: &Path) -> Node {
        let settings = ExportSettings {
            path: path.to_owned(),
            client_path: "/a".into(),
            id: None,
            file_system: Some(FileSystemId([7; 16])),
            clients: ClientRules::new(Vec::new()).unwrap(),
            names: NameRule::Utf8,
            crossmnt: false,
            mount_point: false,
            direct: false,
        };
        let key = Key::from_bytes([5; KEY_BYTES]);
        let exports = Exports::open(key, vec![settings]).unwrap();
        Node::root(&exports.by_client_path("/a").unwrap()).unwrap()
    }

    fn tells_changes(node: &Node) -> bool {
        let tells = node.export().tells_changes();
        if !tells {
            eprintln!(
                "SKIPPED: what is atomic, on this kernel or this file system of temporary files"
            );
        }
        tells
    }

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes(), NameRule::Utf8).unwrap()
    }

    /// What a program on this machine does while a client makes `f`.
    #[test]
    fn root_what_another_program_changes_is_not_the_operations() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = |text: &str| folder.path().join(text);
        let set_mode = |mode| {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::write(path("there"), b"").unwrap();
        let node = root_of(folder.path());
        let programs: [(&str, bool, &dyn Fn()); 7] = [
            ("nothing", true, &|| {}),
            ("makes another", false, &|| {
                fs::write(path("g"), b"").unwrap();
            }),
            ("removes another", false, &|| {
                fs::remove_file(path("g")).unwrap();
            }),
            ("moves it", false, &|| {
                fs::rename(path("f"), path("there")).unwrap();
            }),
            ("makes it anew", false, &|| {
                fs::remove_file(path("f")).unwrap();
                fs::write(path("f"), b"").unwrap();
            }),
            ("locks others out", false, &|| set_mode(0o700)),
            ("writes to a file of it", true, &|| {
                fs::write(path("there"), b"x").unwrap();
            }),
        ];
        set_mode(0o755);
        for (does, is_atomic, program) in programs {
            let _ = fs::remove_file(path("f"));
            let ((), changed) = change(&node, &[Event::Made(name("f"))], || {
                fs::write(path("f"), b"").unwrap();
                program();
                Ok(())
            })
            .unwrap();
            let changed = changed.sync().unwrap();
            let is_atomic = is_atomic && tells_changes(&node);
            assert_eq!(changed.is_atomic, is_atomic, "{does}");
            assert_eq!(changed.after, node.attributes().unwrap(), "{does}");
            set_mode(0o755);
        }
        assert!(locked(&WATCHER.as_ref().unwrap().watched).is_empty());
    }

    #[test]
    fn root_a_directory_that_is_taken_for_long_is_changed_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let node = Arc::new(root_of(folder.path()));
        let held = DIRECTORIES.take(vec![FileId::of_node(&node).unwrap()]);
        assert!(held.is_some());
        let ((), changed) = change(&node, &[Event::Made(name("f"))], || {
            fs::write(folder.path().join("f"), b"").unwrap();
            Ok(())
        })
        .unwrap();
        assert!(!changed.sync().unwrap().is_atomic, "it was not alone");
        drop(held);
        let ((), changed) = change(&node, &[Event::Removed(name("f"))], || {
            fs::remove_file(folder.path().join("f")).unwrap();
            Ok(())
        })
        .unwrap();
        assert_eq!(changed.sync().unwrap().is_atomic, tells_changes(&node));
    }

    /// What a program removes within the same tick of the clock is not seen there.
    #[test]
    fn root_nothing_is_promised_of_a_tmpfs() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let node = root_of(folder.path());
        let ((), changed) = change(&node, &[Event::Made(name("f"))], || {
            fs::write(folder.path().join("f"), b"").unwrap();
            Ok(())
        })
        .unwrap();
        assert!(node.export().is_in_memory(), "/dev/shm is no tmpfs");
        assert!(!changed.sync().unwrap().is_atomic);
    }
}
