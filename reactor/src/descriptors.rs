//! How many files a process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one. The soft one is 1,024 by default, for
/// programs that pass descriptors to select(2); this program does not, and needs one for each
/// connection.
///
/// # Errors
/// The system refused; the limit is what it was.
pub fn raise_descriptor_limit() -> nix::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}
