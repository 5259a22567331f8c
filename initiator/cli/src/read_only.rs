//! Mounts that write nothing, as options or the target want it.

use anyhow::{Error, Result, anyhow, bail};

/// Whether the options for mount(8) have this one.
pub(super) fn has(options: Option<&str>, name: &str) -> bool {
    let options = options.unwrap_or_default();
    options.split(',').any(|option| option == name)
}

/// Refuses what is to be read-only and not.
pub(super) fn check(is_read_only: bool, options: &str) -> Result<()> {
    if is_read_only && has(Some(options), "rw") {
        bail!(
            "--options has \"rw\", and --read-only is given; expected one of both: leave one out"
        );
    }
    Ok(())
}

/// What a blank volume is on which no file system can be made. It is called `what`.
pub(super) fn blank(what: &str) -> Error {
    anyhow!(
        "{what} holds no file system, and is blank and read-only: none can be made on it from here; make one at the target, \
         or have its write protection taken away there"
    )
}
