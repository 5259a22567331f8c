//! Words of messages.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

pub use capstan_nvme_proto::text::{Count, Word};

/// A path in a command that a message names.
#[must_use]
pub fn word_of(path: &Path) -> Word<'_> {
    Word::path(path.as_os_str().as_bytes())
}
