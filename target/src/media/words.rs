//! What the log and `doctor` say of a volume that has changed.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::{fmt, fs, process};

use capstan_config::names_left;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::text::{Count, Word};
use capstan_storage::Place;

use super::Watched;
use crate::lost::Said;

impl Watched {
    pub(super) fn away(&self) -> Option<String> {
        let (volume, place) = (self.store.name(), &self.place);
        let (subnqn, nsid) = (&self.subnqn, self.nsid);
        // The path of others is not looked at, as it may not answer.
        if !matches!(place, Place::Deleted(_) | Place::Elsewhere(_)) {
            return None;
        }
        let is_there = fs::symlink_metadata(&**volume).is_ok();
        let next = match place {
            // Two reloads, and what each of them does.
            Place::Deleted(kept) if is_there => format!(
                "to serve that as another namespace, restart the target, or take namespace {nsid} of {subnqn} out of the \
                 configuration and reload, with which what hosts have is gone; then put it back in, and reload again. To keep \
                 what hosts have, copy it before, while no host writes (cp --sparse=always {} FILE)",
                kept.display()
            ),
            _ if is_there => format!(
                "to serve what is there as another namespace, {}",
                Again(subnqn, nsid)
            ),
            // A restart would not find it.
            Place::Deleted(kept) => format!(
                "what hosts have is gone with the end of this process; to keep it, copy it before, while no host writes (cp \
                 --sparse=always {} FILE)",
                kept.display()
            ),
            Place::Elsewhere(kept) => {
                let now = fs::read_link(kept).unwrap_or_default();
                back(kept, &now, Path::new(&**volume))
            }
            Place::AtPath | Place::Gone(_) => return None,
        };
        Some(format!(
            "namespace {nsid} of {subnqn} goes on with what was opened at {volume}, which is {place}. {}: {next}",
            self.at_its_path()
        ))
    }

    /// What is at the path now, in words.
    pub(super) fn at_its_path(&self) -> &'static str {
        match fs::symlink_metadata(&**self.store.name()) {
            Ok(_) => "Another file or device is at that path now, without what hosts wrote since",
            Err(_) => "Nothing is at that path now",
        }
    }

    /// Says in the log where it is, and returns that for `doctor` where it is not at its path.
    pub(super) fn say_place(&self) -> Option<Said> {
        let (volume, place) = (self.store.name(), &self.place);
        let after = Again(&self.subnqn, self.nsid);
        let goes_on = format!("{volume} is {place}: hosts go on with what was opened there");
        let (what, next) = match place {
            Place::AtPath => {
                tracing::info!(
                    subnqn = %self.subnqn,
                    nsid = self.nsid,
                    "{volume} is at its path again"
                );
                return None;
            }
            Place::Elsewhere(kept) => {
                let now = fs::read_link(kept).unwrap_or_default();
                let what = match now.exists() {
                    true => format!("{goes_on}, which is {} now", now.display()),
                    false => goes_on,
                };
                (what, back(kept, &now, Path::new(&**volume)))
            }
            Place::Deleted(kept) => {
                let pid = process::id();
                let is_there = fs::symlink_metadata(&**volume).is_ok();
                let next = if is_there && self.store.geometry().read_only {
                    "a reload serves what is there now, as another namespace".to_owned()
                } else {
                    format!(
                        "to keep it, copy it while no host writes (cp --sparse=always {} FILE), and write the `uuid` for it that \
                     `capstan-target check` then names, as hosts refuse a copy otherwise; then {after}",
                        kept.display()
                    )
                };
                let what = format!(
                    "{goes_on}, which cannot be found any more once process {pid} has ended"
                );
                (what, next)
            }
            Place::Gone(_) => (
                format!("{volume} is {place}: every command of hosts fails"),
                format!("see the kernel log of this machine, and bring it back; then {after}"),
            ),
        };
        tracing::error!(
            subnqn = %self.subnqn,
            nsid = self.nsid,
            reason = "medium-moved",
            "{what}: {next}"
        );
        let path = volume.to_string();
        Some(Said { path, what, next })
    }

    /// Says in the log how its size has changed, and returns that for `doctor` where it was cut.
    /// `least_bytes`: the least that it was meanwhile.
    pub(super) fn say_size(&self, before_bytes: u64, least_bytes: u64) -> Option<Said> {
        let (volume, bytes) = (self.store.name(), self.bytes);
        let (subnqn, nsid) = (&self.subnqn, self.nsid);
        let shown = "hosts are told of its new size";
        if least_bytes >= before_bytes {
            let grown = format!(
                "{volume} has grown from {before_bytes} to {}",
                Count(bytes, "byte")
            );
            let lba_bytes = self.store.geometry().lba_bytes;
            match bytes % u64::from(lba_bytes) {
                0 => tracing::info!(%subnqn, nsid, "{grown}; {shown}"),
                rest_bytes => tracing::warn!(
                    %subnqn,
                    nsid,
                    "{grown}, which leaves {} at its end, no whole LBA of {lba_bytes} bytes, out of reach of hosts; {shown}",
                    Count(rest_bytes, "byte")
                ),
            }
            return None;
        }
        let again = match bytes > least_bytes {
            true => format!(", and is {} long now,", Count(bytes, "byte")),
            false => String::new(),
        };
        let word = Word::path(volume.as_bytes());
        let what = format!(
            "{volume} was cut from {before_bytes} to {}{again} while hosts had it",
            Count(least_bytes, "byte")
        );
        let after = Again(&self.subnqn, self.nsid);
        let mend = format!(
            "look for who did it, make it as long as it was (`truncate --size={before_bytes} FILE`, a device by what made \
             it), and check or restore what is on it"
        );
        let next = match self.store.geometry().read_only {
            true => format!("{mend}; then {after}"),
            false => format!(
                "every Flush fails until it is cleared: {mend}. Then `capstan-target clear-lost-writes {word}` and reload; \
                 or {after}"
            ),
        };
        tracing::error!(
            %subnqn,
            nsid,
            reason = "medium-cut",
            "{what}: what they had stored behind that is lost, and commands there fail; {shown}; {next}"
        );
        let path = volume.to_string();
        Some(Said { path, what, next })
    }
}

/// How what is open at `kept`, and is at `now`, is brought back to `path`.
fn back(kept: &Path, now: &Path, path: &Path) -> String {
    // The kernel knows where it is by the name it was opened by.
    if !now.exists()
        && let Some(names) = names_left(kept, path)
    {
        let first = match path.exists() {
            true => "move away what is there now: ",
            false => "",
        };
        return format!("{first}its name there was removed, and the file {names}");
    }
    match (now.is_file(), path.exists()) {
        (true, false) => {
            let words = [now, path].map(|path| Word::path(path.as_os_str().as_bytes()));
            format!("move it back (mv -n {} {})", words[0], words[1])
        }
        (true, true) => "move away what is there now, and it back; or reload, to serve what is there as another namespace"
            .to_owned(),
        (false, _) => "bring it back there".to_owned(),
    }
}

/// How a volume is opened anew.
struct Again<'a>(&'a Nqn, u32);

impl fmt::Display for Again<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(subnqn, nsid) = self;
        write!(
            f,
            "restart the target, or take namespace {nsid} of {subnqn} out of the configuration, reload, put it back \
             in, and reload again"
        )
    }
}
