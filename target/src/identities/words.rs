//! What is said of media that have changed, and of a table that cannot be read or written.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use capstan_config::{Nqn, deleted_and_open};

use super::table::{Choice, Known};

/// That the file which was there is deleted, and that a target goes on with it.
pub(super) fn still_open(before: &Known, now: &Path) -> Option<String> {
    let (pid, open) = deleted_and_open(&before.path)?;
    Some(format!(
        "process {pid} still has the file open that was at {}, which is deleted: what hosts write goes there, and {} has none \
         of that since it was made. To keep it, copy it while no host writes (cp --sparse=always {} FILE), before that process \
         ends",
        before.path.display(),
        now.display(),
        open.display()
    ))
}

/// A namespace that is on another medium than hosts have seen there.
pub(super) struct Told<'a> {
    pub(super) subnqn: &'a Nqn,
    pub(super) nsid: u32,
    pub(super) path: PathBuf,
    pub(super) choice: Choice,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { uuid, before } = &self.choice;
        let (nsid, subnqn, path) = (self.nsid, self.subnqn, self.path.display());
        let Some(before) = before else {
            return write!(f, "namespace {nsid} of {subnqn} is on {path}: UUID {uuid}");
        };
        if before.path == self.path {
            write!(
                f,
                "namespace {nsid} of {subnqn}: {path} is another medium than it was (made anew, restored or exchanged)"
            )?;
        } else {
            let was = before.path.display();
            write!(
                f,
                "namespace {nsid} of {subnqn} is on another medium: {path}, was {was}"
            )?;
        }
        let old = before.uuid;
        if *uuid == old {
            return write!(
                f,
                "; its UUID is {uuid} as before, because the configuration says so: hosts go on with it"
            );
        }
        write!(
            f,
            "; its UUID is {uuid}, was {old}: hosts that have the old one attached refuse it until it is attached anew. If it \
             is a copy of the same data, write `uuid = \"{old}\"` in its [[subsystem.namespace]] (--export has no option for \
             it: that needs a configuration file)"
        )
    }
}

/// A table that cannot be read. It is left as it is.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) file: PathBuf,
    pub(super) error: io::Error,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, error } = self;
        write!(
            f,
            "{} cannot be read: {error}; it says which namespace each medium is: let the user that the target runs as read \
             it, restore it, or remove it once every host is detached, as each namespace then has the UUID of a first start",
            file.display()
        )
    }
}

impl std::error::Error for Unreadable {}

/// What each namespace is on is not remembered in this file, for this reason.
pub(super) struct Forgotten<'a>(pub(super) &'a Path, pub(super) &'a io::Error);

impl fmt::Display for Forgotten<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(file, error) = self;
        write!(
            f,
            "which file or device each namespace is on is not remembered ({}: {error}): after a restart, hosts may take another medium for the one they had, and namespaces without `nsid` are \
             numbered by their place. Give the target a state folder that it may write to, or write `nsid` and `uuid` in \
             each [[subsystem.namespace]] with a path",
            file.display()
        )
    }
}
