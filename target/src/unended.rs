//! What keeps a target that is asked to end: commands on storage that do not end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process;
use std::sync::{Mutex, PoisonError};

use capstan_nvme_proto::text::Count;
use capstan_subsystem::BackendId;

use crate::limits::STOP_TIMEOUT_US;
use crate::media::Media;

/// How many commands are on each volume.
pub(crate) type OnVolumes = BTreeMap<BackendId, u64>;

/// What each reactor still has on storage, as it said last.
#[derive(Debug, Default)]
pub(crate) struct Unended(Mutex<BTreeMap<usize, OnVolumes>>);

impl Unended {
    /// What a reactor waits for when the time of commands in flight is over. No new ones come.
    pub(crate) fn note(&self, reactor: usize, commands: OnVolumes) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(reactor, commands);
    }

    /// What `reactor`, which does not end, and the others wait for, in words.
    pub(crate) fn in_words(&self, reactor: usize, media: &Media) -> String {
        let seconds = STOP_TIMEOUT_US / 1_000_000;
        let mut all = OnVolumes::new();
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (&backend, commands) in noted.values().flatten() {
            *all.entry(backend).or_default() += commands;
        }
        drop(noted);
        let mut named = String::new();
        for (backend, commands) in all {
            let Some(export) = media.export(backend) else {
                continue;
            };
            let separator = if named.is_empty() { "" } else { ", " };
            let _ = write!(
                named,
                "{separator}{} on namespace {} of {} ({})",
                Count(commands, "command"),
                export.nsid,
                export.subnqn,
                export.store.name()
            );
        }
        if named.is_empty() {
            return format!(
                "reactor {reactor} has not ended within {seconds} s of the signal, and has not said what it waits for; its \
                 thread, reactor-{reactor}, is one of those in /proc/{}/task, where the files stack and wchan say what it does in \
                 the kernel",
                process::id()
            );
        }
        format!(
            "the target ends with commands on storage that have not ended, sent to it before the signal, {seconds} s ago: \
             {named}; whether and why that does not answer is not known here: look whether what it is on is there (`lsblk`, \
             `findmnt`), and at the kernel log (`dmesg`)"
        )
    }
}
