//! What is mounted of a disk that one of its mounts takes away, by force: other partitions, other
//! folders, other mount namespaces. It is written first, and named.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use capstan_initiator::internals::disk::mounts::{Mount, mounts_elsewhere, mounts_of};
use capstan_initiator::internals::disk::record::Record;

use super::force;
use super::interrupt::{Work, wait_for};

/// Mounts of other mount namespaces, each of one, that are written.
const ELSEWHERE_MAX: usize = 8;

/// Other mounts of a disk, which are being written.
pub(super) struct Unnamed {
    named: Vec<String>,
    writing: Vec<(String, Work<()>)>,
}

impl Unnamed {
    /// Starts to write back each mount of the disk in `record` that is not among `mounts`. Each has
    /// a thread of its own, so that one which hangs does not delay the others.
    ///
    /// # Errors
    /// They cannot be found, or there is no thread.
    pub(super) fn write(record: &Record, mounts: &[Mount]) -> Result<Self> {
        let mut all = mounts_of(&record.device).context("/proc/self/mountinfo")?;
        all.retain(|other| !mounts.iter().any(|mount| mount.id == other.id));
        let here = all.into_iter().map(|mount| {
            let at = mount.mount_point.display();
            let named = format!("{} at {at}", mount.source.display());
            (named, mount.mount_point)
        });
        let elsewhere = mounts_elsewhere(&record.device, ELSEWHERE_MAX);
        let elsewhere = elsewhere.into_iter().map(|other| {
            let (source, at) = (
                other.mount.source.display(),
                other.mount.mount_point.display(),
            );
            let (name, pid) = (&other.name, other.pid);
            let named = format!("{source} at {at} in the mount namespace of {name} (pid {pid})");
            (named, other.folder())
        });
        let found: Vec<(String, PathBuf)> = here.chain(elsewhere).collect();
        let named = found.iter().map(|(named, _)| named.clone()).collect();
        let writing = found.into_iter().map(|(named, folder)| {
            let work = Work::start(move || force::write(&folder))?;
            Ok((named, work))
        });
        Ok(Self {
            named,
            writing: writing.collect::<Result<_>>()?,
        })
    }

    /// What goes with the disk, as the end of a message.
    pub(super) fn in_words(&self) -> String {
        match &self.named[..] {
            [] => String::new(),
            named => format!(", also of {}", named.join(" and of ")),
        }
    }

    /// What of it is not written after `patience`, or cannot be, and why.
    pub(super) fn unwritten(self, patience: Duration) -> Vec<String> {
        let start = Instant::now();
        let mut unwritten = Vec::new();
        for (named, work) in self.writing {
            let rest = patience.saturating_sub(start.elapsed());
            let written = match wait_for(&[work.as_fd()], Some(rest)) {
                Ok(true) => work.result(),
                Ok(false) => Err(anyhow::anyhow!("sync has not ended")),
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                unwritten.push(format!("{named}: {error:#}"));
            }
        }
        unwritten
    }
}
