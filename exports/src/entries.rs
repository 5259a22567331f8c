//! Entries of directories: made, linked, renamed and removed. Each is on the disk when the call
//! returns, as NFS has it (RFC 1813, 4.8; RFC 8881, 15.1 by way of each operation).

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, RenameFlags, openat2, renameat2};
use nix::sys::stat::{Mode, SFlag, makedev, mkdirat, mknodat};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};

use crate::attributes::{FileType, SetAttributes, SetTime, Time, WasSet};
use crate::changes::{EntriesChanged, Event, Unsynced, change, change_both};
use crate::error::{FileError, Result};
use crate::file::{OpenAccess, OpenFile};
use crate::identity::Caller;
use crate::limits::CREATE_ATTEMPTS;
use crate::name::Name;
use crate::node::{Entered, Node, below};
use crate::sys::FdPath;

/// What happens where a file to create is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// It is opened; of the attributes a size alone is set (RFC 8881, 18.16.3).
    Unchecked,
    /// It is an error.
    Guarded,
    /// It is opened where the same verifier made it, and is an error otherwise.
    Exclusive([u8; 8]),
}

/// A file that was created, or was there.
#[derive(Debug)]
pub struct Created {
    /// The file.
    pub node: Node,
    /// Open as it was asked for.
    pub file: OpenFile,
    /// The directory around the creation; `None` of a file that was there before.
    pub directory: Option<EntriesChanged>,
    /// What was set of the attributes.
    pub set: WasSet,
}

/// Another kind of file than regular ones, directories and symbolic links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Block device with its major and minor number.
    Block(u32, u32),
    /// Character device with its major and minor number.
    Character(u32, u32),
    /// Socket.
    Socket,
    /// FIFO.
    Fifo,
}

/// What may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
    /// Either.
    Any,
}

/// The times in which the verifier of an exclusive create is kept until the client sets attributes.
/// 31 bits of each half: every file system keeps such seconds, and Linux's own NFS target does so.
fn verifier_times(verifier: [u8; 8]) -> [Time; 2] {
    let bits = u64::from_be_bytes(verifier);
    [bits >> 32, bits].map(|half| Time {
        seconds: i64::try_from(half & 0x7fff_ffff).unwrap_or(0),
        nanoseconds: 0,
    })
}

fn mode_of(attributes: &SetAttributes) -> Mode {
    Mode::from_bits_truncate(u32::from(attributes.mode.unwrap_or(0) & 0o7777))
}

impl Node {
    /// Creates a regular file and opens it. What the client gives no mode, nobody but root opens
    /// anew before its owner has set one.
    ///
    /// # Errors
    /// `EEXIST` as `how` says; [`FileError::WrongType`] where the name is another kind of file.
    pub fn create(
        &self,
        caller: &Caller,
        name: Name<'_>,
        how: Create,
        attributes: &SetAttributes,
        access: OpenAccess,
    ) -> Result<Created> {
        self.check_writer(caller)?;
        self.check_type("creating a file", FileType::Directory)?;
        let mode = mode_of(attributes);
        for _ in 0..CREATE_ATTEMPTS {
            let flags = access.flags() | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
            let creating = FileError::kernel("creating a file");
            let made = change(self, &[Event::Made(name)], || {
                caller.act(|| openat2(self.fd(), &name, below(flags, mode)).map_err(creating))
            });
            match made {
                Ok(made) => return self.finish_new(caller, made, how, attributes, access),
                Err(FileError::Kernel {
                    errno: Errno::EEXIST | Errno::EXDEV,
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
            // It may have gone by now: then it is made after all.
            match self.open_existing(caller, name, how, attributes, access) {
                Err(FileError::Kernel {
                    errno: Errno::ENOENT,
                    ..
                }) => {}
                other => return other,
            }
        }
        Err(FileError::kernel("creating a file")(Errno::EBUSY))
    }

    fn finish_new(
        &self,
        caller: &Caller,
        (fd, directory): (OwnedFd, Unsynced),
        how: Create,
        attributes: &SetAttributes,
        access: OpenAccess,
    ) -> Result<Created> {
        let path = fd
            .try_clone()
            .map_err(|_| FileError::kernel("creating a file")(Errno::EMFILE))?;
        let node = Self::of_fd(self.export(), path)?;
        let written = node.claim(access)?;
        let file = OpenFile::for_data(&node, caller, fd, access, written);
        // The mode is there already, unless the kernel left a bit out that the caller may not set.
        let mut to = SetAttributes {
            mode: None,
            ..*attributes
        };
        if let Create::Exclusive(verifier) = how {
            let [accessed, modified] = verifier_times(verifier).map(SetTime::To);
            to.accessed = Some(accessed);
            to.modified = Some(modified);
        }
        let mut set = WasSet::empty();
        caller.act(|| crate::attributes::set(file.fd(), &to, Some(&file), &mut set))?;
        file.sync_all()?;
        let directory = directory.sync()?;
        if attributes.mode.is_some() {
            set |= WasSet::MODE;
        }
        if matches!(how, Create::Exclusive(_)) {
            set.remove(WasSet::TIMES);
        }
        Ok(Created {
            node,
            file,
            directory: Some(directory),
            set,
        })
    }

    fn open_existing(
        &self,
        caller: &Caller,
        name: Name<'_>,
        how: Create,
        attributes: &SetAttributes,
        access: OpenAccess,
    ) -> Result<Created> {
        let exists = FileError::kernel("creating a file")(Errno::EEXIST);
        let node = match caller.act(|| self.find_entry(name))? {
            Entered::Here(fd) => Self::of_fd(self.export(), fd)?,
            Entered::Mounted(_) => return Err(exists),
        };
        let mut set = WasSet::empty();
        match how {
            Create::Guarded => return Err(exists),
            Create::Exclusive(verifier) => {
                let found = node.attributes()?;
                let is_same = found.file_type == FileType::Regular
                    && [found.accessed, found.modified] == verifier_times(verifier);
                if !is_same {
                    return Err(exists);
                }
                let file = node.open(caller, access, true)?;
                return Ok(Created {
                    node,
                    file,
                    directory: None,
                    set,
                });
            }
            Create::Unchecked => {}
        }
        let file = node.open(caller, access, false)?;
        if let Some(size_bytes) = attributes.size_bytes {
            let to = SetAttributes {
                size_bytes: Some(size_bytes),
                ..SetAttributes::default()
            };
            let through = access.writes().then_some(&file);
            let (done, result) = node.set_attributes(caller, &to, through);
            result?;
            set = done;
        }
        Ok(Created {
            node,
            file,
            directory: None,
            set,
        })
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `EEXIST` where the name is taken, and whatever else the kernel says.
    pub fn make_directory(
        &self,
        caller: &Caller,
        name: Name<'_>,
        attributes: &SetAttributes,
    ) -> Result<(Self, EntriesChanged)> {
        self.make(caller, name, FileType::Directory, attributes, || {
            let mode = mode_of(attributes);
            mkdirat(self.fd(), &name, mode).map_err(FileError::kernel("making a directory"))
        })
    }

    /// Makes a symbolic link, whose target is not looked at here.
    ///
    /// # Errors
    /// `EEXIST` where the name is taken, and whatever else the kernel says.
    pub fn make_symlink(
        &self,
        caller: &Caller,
        name: Name<'_>,
        target: &[u8],
        attributes: &SetAttributes,
    ) -> Result<(Self, EntriesChanged)> {
        // A link on Linux has no mode.
        let attributes = SetAttributes {
            mode: None,
            ..*attributes
        };
        self.make(caller, name, FileType::Symlink, &attributes, || {
            symlinkat(target, self.fd(), &name).map_err(FileError::kernel("making a symbolic link"))
        })
    }

    /// Makes a device, socket or FIFO, for clients alone: none is opened here.
    ///
    /// # Errors
    /// `EPERM` for a device that anybody but root makes.
    pub fn make_special(
        &self,
        caller: &Caller,
        name: Name<'_>,
        special: Special,
        attributes: &SetAttributes,
    ) -> Result<(Self, EntriesChanged)> {
        let (kind, file_type, (major, minor)) = match special {
            Special::Block(major, minor) => (SFlag::S_IFBLK, FileType::Block, (major, minor)),
            Special::Character(major, minor) => {
                (SFlag::S_IFCHR, FileType::Character, (major, minor))
            }
            Special::Socket => (SFlag::S_IFSOCK, FileType::Socket, (0, 0)),
            Special::Fifo => (SFlag::S_IFIFO, FileType::Fifo, (0, 0)),
        };
        self.make(caller, name, file_type, attributes, || {
            let device = makedev(major.into(), minor.into());
            mknodat(self.fd(), &name, kind, mode_of(attributes), device)
                .map_err(FileError::kernel("making a special file"))
        })
    }

    fn make(
        &self,
        caller: &Caller,
        name: Name<'_>,
        file_type: FileType,
        attributes: &SetAttributes,
        make: impl FnOnce() -> Result<()>,
    ) -> Result<(Self, EntriesChanged)> {
        self.check_writer(caller)?;
        self.check_type("making an entry", FileType::Directory)?;
        let (entered, directory) = change(self, &[Event::Made(name)], || {
            caller.act(|| {
                make()?;
                self.find_entry(name)
            })
        })?;
        let Entered::Here(fd) = entered else {
            return Err(FileError::Replaced);
        };
        let made = Self::of_fd(self.export(), fd)?;
        if made.file_type() != file_type {
            return Err(FileError::Replaced);
        }
        let to = SetAttributes {
            mode: None,
            size_bytes: None,
            ..*attributes
        };
        let mut set = WasSet::empty();
        caller.act(|| crate::attributes::set(made.fd(), &to, None, &mut set))?;
        if !set.is_empty() {
            made.sync()?;
        }
        Ok((made, directory.sync()?))
    }

    fn check_same_export(&self, other: &Self) -> Result<()> {
        let same = self.export().id() == other.export().id();
        if same {
            Ok(())
        } else {
            Err(FileError::CrossExport)
        }
    }

    /// Gives `file` another name, in this directory. The kernel may allow it to those alone who
    /// own or can write the file (`fs.protected_hardlinks`).
    ///
    /// # Errors
    /// [`FileError::CrossExport`] where the file is of another export, and
    /// [`FileError::Namespace`] where hosts write it: no client could remove the name again.
    pub fn link(&self, caller: &Caller, name: Name<'_>, file: &Self) -> Result<EntriesChanged> {
        self.check_writer(caller)?;
        self.check_same_export(file)?;
        self.check_type("linking", FileType::Directory)?;
        let writers = self.export().writers();
        if writers.has_namespaces() {
            writers.check_name(file.fd())?;
        }
        let path = FdPath::new(file.fd());
        let ((), directory) = change(self, &[Event::Made(name)], || {
            caller.act(|| {
                let flags = AtFlags::AT_SYMLINK_FOLLOW;
                linkat(AT_FDCWD, path.as_c_str(), self.fd(), &name, flags)
                    .map_err(FileError::kernel("linking"))
            })
        })?;
        directory.sync()
    }

    /// Refuses to take a name from what hosts write over NVMe. The thread acts for the caller.
    fn check_taken_name(&self, name: Name<'_>) -> Result<()> {
        let writers = self.export().writers();
        if !writers.has_namespaces() {
            return Ok(());
        }
        match self.find_entry(name) {
            Ok(Entered::Here(fd)) => writers.check_name(fd.as_fd()),
            // What is wrong with the name is told by the kernel when it is to be changed.
            Ok(Entered::Mounted(_)) | Err(_) => Ok(()),
        }
    }

    /// Moves `from` of this directory to `to` of `directory`, in place of what is there. Answers
    /// with what has changed of both.
    ///
    /// # Errors
    /// [`FileError::CrossExport`] where the directories are of two exports, and
    /// [`FileError::Namespace`] where hosts write one of the two files.
    pub fn rename(
        &self,
        caller: &Caller,
        from: Name<'_>,
        directory: &Self,
        to: Name<'_>,
    ) -> Result<[EntriesChanged; 2]> {
        self.check_writer(caller)?;
        self.check_same_export(directory)?;
        self.check_type("renaming", FileType::Directory)?;
        directory.check_type("renaming", FileType::Directory)?;
        let (source, target) = (Event::MovedFrom(from), Event::MovedTo(to));
        change_both((self, source), (directory, target), || {
            caller.act(|| {
                self.check_taken_name(from)?;
                directory.check_taken_name(to)?;
                renameat2(self.fd(), &from, directory.fd(), &to, RenameFlags::empty())
                    .map_err(FileError::kernel("renaming"))
            })
        })
    }

    /// Removes an entry of this directory.
    ///
    /// # Errors
    /// `EISDIR` and `ENOTDIR` as `what` says; `ENOTEMPTY`; [`FileError::Namespace`] where hosts
    /// write the file.
    pub fn remove(&self, caller: &Caller, name: Name<'_>, what: Removed) -> Result<EntriesChanged> {
        self.check_writer(caller)?;
        self.check_type("removing", FileType::Directory)?;
        let unlink = |flags| unlinkat(self.fd(), &name, flags);
        let ((), directory) = change(self, &[Event::Removed(name)], || {
            caller.act(|| {
                self.check_taken_name(name)?;
                match what {
                    Removed::File => unlink(UnlinkatFlags::NoRemoveDir),
                    Removed::Directory => unlink(UnlinkatFlags::RemoveDir),
                    Removed::Any => match unlink(UnlinkatFlags::NoRemoveDir) {
                        Err(Errno::EISDIR) => unlink(UnlinkatFlags::RemoveDir),
                        other => other,
                    },
                }
                .map_err(FileError::kernel("removing"))
            })
        })?;
        directory.sync()
    }
}
