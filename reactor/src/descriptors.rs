//! How many files a process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one. The soft one is 1,024 where nothing was
/// said, for programs that give descriptors to select(2); these do not, and a connection each is
/// soon more.
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
