//! Reading directories, a part at a time from any entry on.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::unistd::{Whence, lseek};

use crate::attributes::{Attributes, FileType};
use crate::error::{FileError, Result};
use crate::export::{Exports, PLACE_MASK, Place};
use crate::handle::{ExportId, Handle};
use crate::identity::Caller;
use crate::limits::{DIRECTORY_ANSWER_BYTES, DIRECTORY_BUFFER_BYTES, MOUNT_POINT_ENTRIES};
use crate::name::{Name, NameProblem, NameRule};
use crate::node::Node;
use crate::sys;

/// Entries whose files are open at the same time, while they are looked at.
const ENTRIES_OPEN_AT_ONCE: usize = 64;

/// Where to read from, and how much.
#[derive(Clone, Copy, Debug)]
pub struct ReadDirectory {
    /// Cookie of the entry before the first one; 0 for the start.
    pub cookie: u64,
    /// What came with the cookie; not looked at where that is 0.
    pub verifier: u64,
    /// Bytes that there is room for, at most [`DIRECTORY_ANSWER_BYTES`].
    pub room_bytes: usize,
    /// Bytes that an entry takes besides its name.
    pub entry_bytes: usize,
    /// Whether each entry's file is looked at.
    pub with_files: bool,
}

/// An entry of a directory.
#[derive(Debug)]
pub struct Entry {
    /// To go on behind it.
    pub cookie: u64,
    /// Number of its file; of a mount point, that of the directory under what is mounted.
    pub file_id: u64,
    /// Its name.
    pub name: Box<[u8]>,
    /// What is known of its file, if that was asked for; `None` where the caller may not search the
    /// directory, where what is mounted there is not exported, and where the kernel knows nothing.
    pub file: Option<EntryFile>,
}

/// What is known of the file of an entry.
#[derive(Clone, Copy, Debug)]
pub struct EntryFile {
    /// Its handle.
    pub handle: Handle,
    /// Its export: another one at a mount point.
    pub export: ExportId,
    /// Its attributes.
    pub attributes: Attributes,
}

/// Entries of a directory.
#[derive(Debug)]
pub struct Entries {
    /// In the order of the directory, without `.` and `..` where they were not asked for, and
    /// without names that clients cannot look up.
    pub entries: Vec<Entry>,
    /// Goes with each cookie.
    pub verifier: u64,
    /// Whether there are no more.
    pub is_end: bool,
}

struct RawEntry<'a> {
    file_id: u64,
    cookie: u64,
    kind: u8,
    name: &'a [u8],
}

/// Splits the first entry off: `struct linux_dirent64` (getdents64(2)).
fn split_entry(bytes: &[u8]) -> Option<(RawEntry<'_>, &[u8])> {
    let (file_id, rest) = bytes.split_first_chunk()?;
    let (cookie, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::from(u16::from_ne_bytes(*length));
    // Two numbers, the length, and a byte for the kind.
    let name = bytes
        .get(8 + 8 + 2 + 1..length)?
        .split(|&byte| byte == 0)
        .next()?;
    let entry = RawEntry {
        file_id: u64::from_ne_bytes(*file_id),
        cookie: u64::from_ne_bytes(*cookie),
        kind: *rest.first()?,
        name,
    };
    Some((entry, bytes.get(length..)?))
}

impl Node {
    /// What goes with cookies of this directory: the same for as long as the directory is there.
    /// File systems that have handles keep their cookies.
    fn verifier(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.export().id().0.to_be_bytes());
        hasher
            .update(&self.export().file_system().0)
            .update(self.kernel_handle().bytes());
        let mut first = [0; 8];
        hasher.finalize_xof().fill(&mut first);
        u64::from_be_bytes(first)
    }

    /// Number of the directory that the root of this export is mounted on, in the export around
    /// it, as its entry there has it; `None` for anything but such a root.
    pub fn mounted_on_file_id(&self) -> Option<u64> {
        if !self.is_root() || self.export().outer().is_none() {
            return None;
        }
        self.export().mounted_on(|| self.find_mounted_on())
    }

    /// Looks through the directory around the mount point: the kernel tells nothing of what is
    /// under a mount but in that entry.
    fn find_mounted_on(&self) -> Option<u64> {
        let up = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        let around = openat2(self.fd(), c"..", up).ok()?;
        let look = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        let mut buffer = vec![0; DIRECTORY_BUFFER_BYTES];
        let mut left = MOUNT_POINT_ENTRIES;
        loop {
            let bytes = sys::directory_entries(around.as_fd(), &mut buffer).ok()?;
            let mut rest = buffer.get(..bytes).filter(|rest| !rest.is_empty())?;
            while let Some((entry, behind)) = split_entry(rest) {
                rest = behind;
                left = left.checked_sub(1)?;
                let is_directory = matches!(entry.kind, libc::DT_DIR | libc::DT_UNKNOWN);
                let Ok(name) = Name::new(entry.name, NameRule::Raw) else {
                    continue;
                };
                let fd = is_directory.then(|| openat2(&around, &name, look));
                let place = fd
                    .and_then(|fd| sys::statx_known(fd.ok()?.as_fd(), PLACE_MASK).ok())
                    .map(|stat| Place::of(&stat));
                if place == Some(self.export().root_place()) {
                    return Some(entry.file_id);
                }
            }
        }
    }

    /// Reads entries of this directory behind a cookie.
    ///
    /// # Errors
    /// [`FileError::BadCookie`] for a cookie of another directory; [`FileError::TooSmall`] where
    /// the first entry has no room; `EACCES` where the caller may not read the directory.
    pub fn read_directory(
        &self,
        exports: &Exports,
        caller: &Caller,
        ask: &ReadDirectory,
    ) -> Result<Entries> {
        self.read_entries(exports, caller, ask, false)
    }

    /// As [`read_directory`](Self::read_directory), with `.` and `..` where the directory has them,
    /// as clients of NFSv3 expect. Nothing but a number is known of their files, and the directory
    /// above the root of an export is that root.
    ///
    /// # Errors
    /// As there.
    pub fn read_directory_with_dots(
        &self,
        exports: &Exports,
        caller: &Caller,
        ask: &ReadDirectory,
    ) -> Result<Entries> {
        let mut read = self.read_entries(exports, caller, ask, true)?;
        if self.is_root()
            && let Some(above) = read.entries.iter_mut().find(|entry| *entry.name == *b"..")
        {
            above.file_id = self.attributes()?.file_id;
        }
        Ok(read)
    }

    fn read_entries(
        &self,
        exports: &Exports,
        caller: &Caller,
        ask: &ReadDirectory,
        with_dots: bool,
    ) -> Result<Entries> {
        self.check_caller(caller)?;
        self.check_type("reading a directory", FileType::Directory)?;
        let verifier = self.verifier();
        if ask.cookie != 0 && ask.verifier != verifier {
            return Err(FileError::BadCookie);
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let directory = caller.act(|| self.reopen(flags, "reading a directory"))?;
        if ask.cookie != 0 {
            let cookie = ask.cookie.cast_signed();
            lseek(&directory, cookie, Whence::SeekSet).map_err(|errno| match errno {
                Errno::EINVAL => FileError::BadCookie,
                errno => FileError::kernel("reading a directory")(errno),
            })?;
        }
        let (mut entries, is_end) = self.names(&directory, ask, with_dots)?;
        if ask.with_files {
            for entries in entries.chunks_mut(ENTRIES_OPEN_AT_ONCE) {
                self.look_at(exports, caller, entries)?;
            }
        }
        Ok(Entries {
            entries,
            verifier,
            is_end,
        })
    }

    fn names(
        &self,
        directory: &OwnedFd,
        ask: &ReadDirectory,
        with_dots: bool,
    ) -> Result<(Vec<Entry>, bool)> {
        let mut room = ask.room_bytes.min(DIRECTORY_ANSWER_BYTES);
        let mut entries = Vec::new();
        // Names alone take no more than what there is room for; the kernel takes 24 bytes as well.
        let mut buffer = vec![0; DIRECTORY_BUFFER_BYTES];
        loop {
            let bytes = sys::directory_entries(directory.as_fd(), &mut buffer)
                .map_err(FileError::kernel("reading a directory"))?;
            if bytes == 0 {
                return Ok((entries, true));
            }
            let mut rest = buffer.get(..bytes).unwrap_or_default();
            while let Some((entry, behind)) = split_entry(rest) {
                rest = behind;
                match Name::new(entry.name, self.name_rule()) {
                    Ok(_) => {}
                    Err(NameProblem::Dots) if with_dots => {}
                    Err(_) => continue,
                }
                // An entry that takes nothing would have no bound.
                let takes = ask.entry_bytes.saturating_add(entry.name.len()).max(1);
                match room.checked_sub(takes) {
                    Some(left) => room = left,
                    None if entries.is_empty() => {
                        return Err(FileError::TooSmall {
                            given: ask.room_bytes,
                        });
                    }
                    None => return Ok((entries, false)),
                }
                entries.push(Entry {
                    cookie: entry.cookie,
                    file_id: entry.file_id,
                    name: entry.name.into(),
                    file: None,
                });
            }
        }
    }

    fn name_rule(&self) -> NameRule {
        self.export().settings().names
    }

    fn look_at(&self, exports: &Exports, caller: &Caller, entries: &mut [Entry]) -> Result<()> {
        let rule = self.name_rule();
        let mut found = Vec::with_capacity(entries.len());
        caller.act(|| {
            for entry in entries.iter() {
                // One that is gone or broken does not keep the others from being seen.
                let name = Name::new(&entry.name, rule).ok();
                found.push(name.and_then(|name| self.find_entry(name).ok()));
            }
            Ok(())
        })?;
        for (entry, entered) in entries.iter_mut().zip(found) {
            let seen = entered.and_then(|entered| entered.within(exports, self.export()).ok());
            entry.file = seen.map(|(node, attributes)| EntryFile {
                handle: exports.handle(&node),
                export: node.export().id(),
                attributes,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_of_the_kernel_end(bytes in vec(any::<u8>(), 0..200)) {
            let mut rest = &bytes[..];
            while let Some((_, behind)) = split_entry(rest) {
                prop_assert!(behind.len() < rest.len());
                rest = behind;
            }
        }
    }
}
