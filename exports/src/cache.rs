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
    /// gone.
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
        let file = Arc::new(node.open(caller, access, true)?);
        let (file, closed) = self.keep(key, file);
        // Closing may wait for a file system, and the table is everybody's.
        drop(closed);
        Ok(file)
    }

    /// Keeps a file, in the place of the one that was not used for the longest time where there is
    /// no other. What is in use, or has unsynced data, is closed behind that.
    fn keep(&self, key: FileKey, file: Arc<OpenFile>) -> (Arc<OpenFile>, Option<Kept>) {
        let mut kept = self.kept();
        let mut closed = None;
        if kept.len() >= self.most && !kept.contains_key(&key) {
            let oldest = kept.iter().min_by_key(|(_, kept)| kept.used);
            let oldest = oldest.map(|(key, _)| *key);
            closed = oldest.and_then(|key| kept.remove(&key));
        }
        // Another thread may have opened it meanwhile: then that one is used.
        let kept = kept.entry(key).or_insert_with(|| Kept {
            file,
            used: Instant::now(),
        });
        (kept.file.clone(), closed)
    }

    /// Closes files that were not used for `idle`. Returns how many.
    pub fn close_idle(&self, idle: Duration) -> usize {
        let mut kept = self.kept();
        let before = kept.len();
        kept.retain(|_, kept| kept.used.elapsed() < idle);
        before - kept.len()
    }

    /// Forgets all of these exports, so that their file systems can be unmounted. Those in use are
    /// closed behind their use.
    pub fn forget_exports(&self, is_gone: impl Fn(ExportId) -> bool) {
        self.kept().retain(|key, _| !is_gone(key.0));
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
        }) if node.is_overridden(caller, file.access(), true)? => Ok(()),
        other => other,
    }
}
