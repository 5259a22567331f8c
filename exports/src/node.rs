//! Files that a handle leads to: opened by it, one name at a time below them, never by a path.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bitflags::bitflags;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2, readlinkat};
use nix::libc;
use nix::sys::stat::Mode;

use crate::attributes::{Attributes, FileType, MASK, SetAttributes, WasSet};
use crate::error::{FileError, Result, StaleReason};
use crate::export::{Export, Exports, Found, PLACE_MASK};
use crate::file::{OpenAccess, OpenFile};
use crate::handle::{Handle, KernelHandle};
use crate::identity::Caller;
use crate::name::Name;
use crate::still;
use crate::sys::{self, FdPath, NoHandle};

/// A file of an export, open for nothing but to be looked at (`O_PATH`).
#[derive(Debug)]
pub struct Node {
    export: Arc<Export>,
    fd: OwnedFd,
    kernel: KernelHandle,
    file_type: FileType,
}

const LOOK: OFlag = OFlag::O_PATH
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// One name below a directory: no mount point, no symbolic link, no `..`.
pub(crate) fn below(flags: OFlag, mode: Mode) -> OpenHow {
    OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .mode(mode)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        )
}

/// An offset or size as the kernel takes it.
pub(crate) fn offset_of(what: &'static str, value: u64) -> Result<i64> {
    let most = i64::MAX.cast_unsigned();
    i64::try_from(value).map_err(|_| FileError::OutOfRange { what, value, most })
}

bitflags! {
    /// What a caller may do with a file, with the bits of ACCESS (RFC 8881, 18.1.1; RFC 8276,
    /// 8.5 for those of extended attributes).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Rights: u32 {
        /// Read data or entries.
        const READ = 0x1;
        /// Look a name up.
        const LOOKUP = 0x2;
        /// Change what is there.
        const MODIFY = 0x4;
        /// Add to it.
        const EXTEND = 0x8;
        /// Remove an entry of the directory.
        const DELETE = 0x10;
        /// Execute the file.
        const EXECUTE = 0x20;
        /// Read extended attributes.
        const XATTR_READ = 0x40;
        /// Change extended attributes.
        const XATTR_WRITE = 0x80;
        /// List extended attributes.
        const XATTR_LIST = 0x100;
    }
}

impl Rights {
    /// What the kernel is asked for each.
    fn modes(is_directory: bool) -> [(libc::c_int, Self); 3] {
        let read = Self::READ | Self::XATTR_READ | Self::XATTR_LIST;
        let write = Self::MODIFY | Self::EXTEND | Self::XATTR_WRITE;
        if is_directory {
            [
                (libc::R_OK, read),
                (libc::X_OK, Self::LOOKUP),
                (libc::W_OK | libc::X_OK, write | Self::DELETE),
            ]
        } else {
            [
                (libc::R_OK, read),
                (libc::X_OK, Self::EXECUTE),
                (libc::W_OK, write),
            ]
        }
    }
}

impl Node {
    /// Opens what a handle was found to stand for.
    ///
    /// # Errors
    /// [`FileError::Stale`] where the file was deleted, [`FileError::Absent`] where its file system
    /// stands still.
    pub fn open_handle(export: &Arc<Export>, kernel: &KernelHandle) -> Result<Self> {
        still::enter(export)?;
        let fd =
            sys::open_by_handle(export.root(), kernel, LOOK.bits()).map_err(
                |errno| match errno {
                    Errno::ESTALE => FileError::Stale(StaleReason::Deleted),
                    errno => FileError::Kernel {
                        operation: "opening by handle",
                        errno,
                    },
                },
            )?;
        let stat =
            sys::statx(fd.as_fd(), PLACE_MASK).map_err(FileError::kernel("looking at a file"))?;
        let file_type = FileType::of(&stat);
        Ok(Self {
            export: export.clone(),
            fd,
            kernel: *kernel,
            file_type,
        })
    }

    /// The root of an export.
    ///
    /// # Errors
    /// Where the kernel does not open it any more.
    pub fn root(export: &Arc<Export>) -> Result<Self> {
        Self::open_handle(export, export.root_handle())
    }

    /// Of an open file of `export`, whose mount it has to be on.
    pub(crate) fn of_fd(export: &Arc<Export>, fd: OwnedFd) -> Result<Self> {
        Self::look(export, fd).map(|(node, _attributes)| node)
    }

    /// The same, with its attributes.
    pub(crate) fn look(export: &Arc<Export>, fd: OwnedFd) -> Result<(Self, Attributes)> {
        let looking = FileError::kernel("looking at a file");
        let stat = sys::statx(fd.as_fd(), PLACE_MASK | MASK).map_err(looking)?;
        if stat.stx_mnt_id != export.root_place().mount {
            return Err(FileError::OtherFileSystem);
        }
        let kernel = sys::kernel_handle(fd.as_fd()).map_err(|reason| FileError::Kernel {
            operation: "making a handle",
            errno: match reason {
                NoHandle::Kernel(errno) => errno,
                NoHandle::Large { .. } => Errno::EOVERFLOW,
            },
        })?;
        let node = Self {
            export: export.clone(),
            fd,
            kernel,
            file_type: FileType::of(&stat),
        };
        Ok((node, Attributes::of(&stat)))
    }

    /// Its export.
    pub const fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// The kernel's handle of it.
    pub const fn kernel_handle(&self) -> &KernelHandle {
        &self.kernel
    }

    /// Its kind.
    pub const fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Whether it is the root of its export.
    pub fn is_root(&self) -> bool {
        self.kernel == *self.export.root_handle()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn check_caller(&self, caller: &Caller) -> Result<()> {
        let (caller, file) = (caller.export().0, self.export.id().0);
        if caller == file {
            Ok(())
        } else {
            Err(FileError::OtherExport { caller, file })
        }
    }

    /// Refuses what changes something where the client may only read.
    pub(crate) fn check_writer(&self, caller: &Caller) -> Result<()> {
        self.check_caller(caller)?;
        caller.check_writes()
    }

    pub(crate) fn check_type(&self, operation: &'static str, expected: FileType) -> Result<()> {
        if self.file_type == expected {
            return Ok(());
        }
        Err(FileError::WrongType {
            operation,
            expected,
            found: self.file_type,
        })
    }

    /// What `name` stands for in this directory: in another export where that is mounted there.
    ///
    /// # Errors
    /// [`FileError::OtherFileSystem`] at a mount point of what is not exported.
    pub fn lookup(&self, exports: &Exports, caller: &Caller, name: Name<'_>) -> Result<Self> {
        self.check_caller(caller)?;
        self.check_type("looking a name up", FileType::Directory)?;
        caller
            .act(|| self.find_entry(name))?
            .within(exports, &self.export)
            .map(|(node, _attributes)| node)
    }

    /// The thread acts for the caller.
    pub(crate) fn find_entry(&self, name: Name<'_>) -> Result<Entered> {
        let entering = FileError::kernel("looking a name up");
        match openat2(self.fd(), &name, below(LOOK, Mode::empty())) {
            Ok(fd) => Ok(Entered::Here(fd)),
            Err(Errno::EXDEV) => {
                let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
                let how = OpenHow::new().flags(LOOK).resolve(resolve);
                openat2(self.fd(), &name, how)
                    .map(Entered::Mounted)
                    .map_err(entering)
            }
            Err(errno) => Err(entering(errno)),
        }
    }

    /// The directory above this one (LOOKUPP): in another export above the root of what is mounted.
    ///
    /// # Errors
    /// [`FileError::AtRoot`] at the root of an export that is not reached through another one, and
    /// [`FileError::OutsideExport`] where the directory was moved out of it.
    pub fn parent(&self, caller: &Caller) -> Result<Self> {
        self.check_caller(caller)?;
        self.check_type("looking the parent up", FileType::Directory)?;
        let up = |resolve| {
            let how = OpenHow::new()
                .flags(LOOK | OFlag::O_DIRECTORY)
                .resolve(resolve);
            caller.act(|| {
                openat2(self.fd(), c"..", how).map_err(FileError::kernel("looking the parent up"))
            })
        };
        let symlinks = ResolveFlag::RESOLVE_NO_SYMLINKS;
        let (fd, export) = if self.is_root() {
            let outer = self.export.outer().ok_or(FileError::AtRoot)?;
            (up(symlinks)?, outer)
        } else {
            (up(symlinks | ResolveFlag::RESOLVE_NO_XDEV)?, &self.export)
        };
        let parent = Self::of_fd(export, fd)?;
        parent.check_inside()?;
        Ok(parent)
    }

    /// Its attributes. Any client with a handle may ask for them, as below a directory that can
    /// be searched.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn attributes(&self) -> Result<Attributes> {
        Attributes::of_fd(self.fd())
    }

    /// Which of `asked` the caller has. The kernel says, with the caller's identity.
    ///
    /// # Errors
    /// Where the kernel could not say.
    pub fn rights(&self, caller: &Caller, asked: Rights) -> Result<Rights> {
        self.check_caller(caller)?;
        let mut granted = Rights::empty();
        let is_directory = self.file_type == FileType::Directory;
        caller.act(|| {
            for (mode, rights) in Rights::modes(is_directory) {
                let writes = mode & libc::W_OK != 0;
                if !asked.intersects(rights) || writes && !caller.writes() {
                    continue;
                }
                match sys::access(self.fd(), mode) {
                    Ok(()) => granted |= rights & asked,
                    Err(Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::ETXTBSY) => {}
                    Err(errno) => return Err(FileError::kernel("asking for rights")(errno)),
                }
            }
            Ok(granted)
        })
    }

    /// Sets attributes: the size through `open`, where the client has the file open, so that
    /// what it may is what it might when it opened it. Answers with what was set, also where the
    /// rest was refused; the mode of a symbolic link stays, as if it had been. Synced behind.
    pub fn set_attributes(
        &self,
        caller: &Caller,
        to: &SetAttributes,
        open: Option<&OpenFile>,
    ) -> (WasSet, Result<()>) {
        let mut done = WasSet::empty();
        // That of a symbolic link means nothing, and Linux refuses to set it (since 6.6). Clients
        // whose links have modes copy them with those.
        let has_mode = self.file_type != FileType::Symlink;
        let as_asked = to.mode.is_some() && !has_mode;
        let to = &SetAttributes {
            mode: to.mode.filter(|_| has_mode),
            ..*to
        };
        // A file that is open for writing has been claimed.
        let mut written = None;
        let checked = self
            .check_writer(caller)
            .and_then(|()| match (to.size_bytes, open) {
                (None, _) => Ok(()),
                (Some(_), Some(open)) => open.check_file(self),
                (Some(_), None) => self.check_type("setting the size", FileType::Regular),
            })
            .and_then(|()| {
                if to.size_bytes.is_some() && open.is_none() {
                    written = self.claim(OpenAccess::Write)?;
                }
                Ok(())
            });
        let set = checked
            .and_then(|()| caller.act(|| crate::attributes::set(self.fd(), to, open, &mut done)));
        drop(written);
        let synced = if done.is_empty() { Ok(()) } else { self.sync() };
        if as_asked && set.is_ok() {
            done |= WasSet::MODE;
        }
        (done, set.and(synced))
    }

    /// Where a symbolic link leads: for the client to follow, and never followed here.
    ///
    /// # Errors
    /// [`FileError::WrongType`] for anything else.
    pub fn read_link(&self, caller: &Caller) -> Result<Vec<u8>> {
        use std::os::unix::ffi::OsStringExt;
        self.check_caller(caller)?;
        self.check_type("reading a link", FileType::Symlink)?;
        let target = caller
            .act(|| readlinkat(self.fd(), c"").map_err(FileError::kernel("reading a link")))?;
        Ok(target.into_vec())
    }

    /// Opened anew, as what `flags` say; the thread acts for whom the kernel is to ask about.
    pub(crate) fn reopen(&self, flags: OFlag, operation: &'static str) -> Result<OwnedFd> {
        // A lease that another program has on the file is broken without waiting for it.
        let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        open(FdPath::new(self.fd()).as_c_str(), flags, Mode::empty())
            .map_err(FileError::kernel(operation))
    }

    /// A directory that can be read and synced, whatever the caller may.
    pub(crate) fn readable_directory(&self) -> Result<OwnedFd> {
        self.reopen(OFlag::O_RDONLY | OFlag::O_DIRECTORY, "opening a directory")
    }

    /// Puts the file's data and attributes, or the directory's entries, on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        let syncing = FileError::kernel("syncing");
        match self.file_type {
            FileType::Directory => nix::unistd::fsync(self.readable_directory()?).map_err(syncing),
            FileType::Regular => {
                let file = self.reopen(OFlag::O_RDONLY, "opening a file to sync it")?;
                nix::unistd::fsync(file).map_err(syncing)
            }
            // They cannot be opened without effects.
            _ => nix::unistd::syncfs(self.export.root()).map_err(syncing),
        }
    }
}

/// What a name leads to.
pub(crate) enum Entered {
    /// A file on the same mount.
    Here(OwnedFd),
    /// The root of what is mounted there.
    Mounted(OwnedFd),
}

impl Entered {
    /// What it is, with its attributes.
    pub(crate) fn within(
        self,
        exports: &Exports,
        export: &Arc<Export>,
    ) -> Result<(Node, Attributes)> {
        match self {
            Self::Here(fd) => Node::look(export, fd),
            Self::Mounted(fd) => {
                let inner = exports
                    .mounted_in(export, fd.as_fd())?
                    .ok_or(FileError::OtherFileSystem)?;
                still::enter(&inner)?;
                Node::look(&inner, fd)
            }
        }
    }
}

impl Exports {
    /// Opens the file that a client's handle stands for; `None` for a directory of the pseudo file
    /// system.
    ///
    /// # Errors
    /// Where it is no handle, or stale.
    pub fn node(&self, handle: &[u8]) -> Result<Option<Node>> {
        match self.find(handle)? {
            Found::Pseudo(_) => Ok(None),
            Found::File(export, kernel) => Node::open_handle(&export, &kernel).map(Some),
        }
    }

    /// The handle of a file, for clients.
    pub fn handle(&self, node: &Node) -> Handle {
        self.file_handle(&node.export, &node.kernel)
    }
}
