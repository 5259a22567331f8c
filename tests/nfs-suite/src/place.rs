//! Where a case works: a folder of its own, which two clients see.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::expect::{Expect, Failure, Outcome};
use crate::sys;

/// How much some cases do.
pub(crate) struct Sizes {
    /// Random operations.
    pub(crate) operations: u64,
    /// Entries of the largest folder.
    pub(crate) entries: usize,
    /// Where random numbers begin.
    pub(crate) seed: u64,
}

/// A folder that belongs to one case, of mode 777.
pub(crate) struct Place {
    first: PathBuf,
    second: PathBuf,
    pub(crate) sizes: Sizes,
}

impl Place {
    pub(crate) fn make(folder: &Path, second: &Path, case: &str, sizes: Sizes) -> Outcome<Self> {
        let name = case.replace('/', "-");
        let place = Self {
            first: folder.join(&name),
            second: second.join(&name),
            sizes,
        };
        place.empty()?;
        sys::mkdir(&place.first, 0o777).succeeds("making the case's folder")?;
        // Another client may remember that there was none.
        std::fs::read_dir(second).succeeds("reading the second folder")?;
        std::fs::metadata(&place.second).succeeds("the case's folder at the second client")?;
        Ok(place)
    }

    /// A path in the folder, by the first client.
    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.first.join(name)
    }

    /// The same by the second client.
    pub(crate) fn there(&self, name: impl AsRef<Path>) -> PathBuf {
        self.second.join(name)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.first
    }

    /// Nothing that a case made may stay in the way of its removal.
    pub(crate) fn remove(&self) -> Outcome {
        self.empty()
    }

    fn empty(&self) -> Outcome {
        match std::fs::remove_dir_all(&self.first) {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => Ok(()),
            Err(error) => Err(Failure::new(format!(
                "removing what the case made: {error}, expected that it can be removed"
            ))),
        }
    }
}
