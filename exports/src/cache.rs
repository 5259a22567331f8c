//! A bounded cache of open files, which later requests use again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::error::{FileError, Result, StaleReason};
use crate::file::{OpenAccess, OpenFile};
use crate::handle::{ExportId, KernelHandle};
use crate::identity::Caller;
use crate::node::Node;
use crate::sys;

/// A file is one caller's: what another may do, the kernel has to be asked.
type FileKey = (ExportId, KernelHandle, OpenAccess, Caller);

#[derive(Debug)]
struct Kept {
    file: Arc<OpenFile>,
    used: Instant,
}

/// Files kept open. Each is one descriptor.
#[derive(Debug)]
pub struct OpenFiles {
    kept: Mutex<HashMap<FileKey, Kept>>,
    most: usize,
}

impl OpenFiles {
    /// Keeps no more than `most` files open.
    pub fn new(most: usize) -> Self {
        Self {
            kept: Mutex::default(),
            most,
        }
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<FileKey, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.kept().len()
    }

    /// The file open for `access`, from before or anew. The kernel is asked each time whether the
    /// caller may, as NFSv3 has it: the owner always may, and the right to execute is one to read.
    ///
    /// # Errors
    /// As [`Node::open`]; [`FileError::Stale`] where the last name of a file that was kept open is
    /// gone; [`FileError::Full`] where all that are open are in use.
    pub fn open(&self, node: &Node, caller: &Caller, access: OpenAccess) -> Result<Arc<OpenFile>> {
        let key = (node.export().id(), *node.kernel_handle(), access, *caller);
        let found = self.kept().get_mut(&key).map(|kept| {
            kept.used = Instant::now();
            kept.file.clone()
        });
        if let Some(file) = found {
            match check(&file, node, caller) {
                Ok(()) => return Ok(file),
                // A caller without the right to it gets no file from the cache.
                Err(error) => {
                    self.kept().remove(&key);
                    return Err(error);
                }
            }
        }
        self.make_room()?;
        let file = Arc::new(node.open(caller, access, true)?);
        let mut kept = self.kept();
        if kept.len() >= self.most && !kept.contains_key(&key) {
            return Err(self.full());
        }
        // Another thread may have opened it meanwhile: then that one is used.
        let kept = kept.entry(key).or_insert_with(|| Kept {
            file,
            used: Instant::now(),
        });
        Ok(kept.file.clone())
    }

    const fn full(&self) -> FileError {
        FileError::Full {
            what: "the table of open files",
            places: self.most,
        }
    }

    /// Closes the one that was not used for the longest time, where there is no room.
    fn make_room(&self) -> Result<()> {
        let mut kept = self.kept();
        if kept.len() < self.most {
            return Ok(());
        }
        let oldest = kept
            .iter()
            .filter(|(_, kept)| Arc::strong_count(&kept.file) == 1)
            .min_by_key(|(_, kept)| kept.used)
            .map(|(key, _)| *key);
        let oldest = oldest.ok_or_else(|| self.full())?;
        kept.remove(&oldest);
        Ok(())
    }

    /// Closes files that are not in use and were not for `idle`. Returns how many.
    pub fn close_idle(&self, idle: Duration) -> usize {
        let mut kept = self.kept();
        let before = kept.len();
        kept.retain(|_, kept| Arc::strong_count(&kept.file) > 1 || kept.used.elapsed() < idle);
        before - kept.len()
    }

    /// Forgets all of an export, so that its file system can be unmounted. Those in use are closed
    /// behind their use.
    pub fn forget_export(&self, export: ExportId) {
        self.kept().retain(|key, _| key.0 != export);
    }

    /// Forgets a file whose last name was removed, so that its space is free.
    pub fn forget_file(&self, export: ExportId, kernel: &KernelHandle) {
        self.kept()
            .retain(|key, _| (key.0, &key.1) != (export, kernel));
    }
}

/// What the kernel said when the file was opened, asked again: whether it is there, and whether the
/// caller may.
fn check(file: &OpenFile, node: &Node, caller: &Caller) -> Result<()> {
    let found = node.attributes()?;
    // Its handle works for no longer than something has it open, and this does not count.
    if found.link_count == 0 {
        return Err(FileError::Stale(StaleReason::Deleted));
    }
    let asked = caller.act(|| {
        sys::access(node.fd(), file.access().mode()).map_err(FileError::kernel("opening a file"))
    });
    match asked {
        Err(FileError::Kernel {
            errno: Errno::EACCES,
            ..
        }) if node.is_overridden(caller, file.access())? => Ok(()),
        other => other,
    }
}
