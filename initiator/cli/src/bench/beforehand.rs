//! What a workload that writes is asked before it writes: whether this machine has the namespace
//! already, and what is on it.
//!
//! A benchmark is given a namespace by its number, as mkfs is given a device, and like mkfs it
//! destroys what is there: so it stops at what mkfs stops at. fio and `capstan write` do not, as
//! their user says what they are to write.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use capstan_initiator::internals::claim::Claim;
use capstan_initiator::internals::words::Count;
use capstan_initiator::{ControllerInfo, DirectQueue, Io, NamespaceInfo, Op, Options};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::super::claim::ShareArgs;
use super::super::gpt;
use super::super::signatures::{HEAD_BYTES, TAIL_BYTES, signature_in_words};
use super::super::tool::Tools;

/// Of one read of what is on the namespace.
pub(super) const LOOK_BYTES: u32 = 128 << 10;
/// Most bytes of a file, and of a device (off_t of Linux), in whole MiB.
const DEVICE_BYTES_MAX: u64 = (1 << 63) - (1 << 20);
/// How long a tool may take to find what is in memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// The namespace is claimed and looked at by the first job that has connected, for all of them.
#[derive(Clone, Debug)]
pub(super) struct Beforehand {
    share: ShareArgs,
    /// What is on the namespace is not wanted.
    force: bool,
    claimed: Arc<Mutex<Claimed>>,
    is_looked_at: Arc<Mutex<bool>>,
}

#[derive(Debug, Default)]
struct Claimed {
    claim: Option<Arc<Claim>>,
    /// The command ends before anything was written.
    is_given_up: bool,
}

impl Beforehand {
    pub(super) fn new(share: ShareArgs, force: bool) -> Self {
        Self {
            share,
            force,
            claimed: Arc::default(),
            is_looked_at: Arc::default(),
        }
    }

    /// Keeps other writers of this machine away.
    pub(super) fn claim(&self, options: &Options, namespace: &NamespaceInfo) -> Result<()> {
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        if claimed.is_given_up {
            bail!("the command ends");
        }
        if claimed.claim.is_none() {
            let what = "written to by `capstan bench`";
            claimed.claim = Some(self.share.claim(options, namespace, what)?);
        }
        Ok(())
    }

    /// Lets others have the namespace, before any job has started: those that are still connecting
    /// are not waited for.
    pub(super) fn give_up(&self) {
        *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) = Claimed {
            claim: None,
            is_given_up: true,
        };
    }

    /// Refuses to write over something that has a signature.
    pub(super) fn look(&self, queue: &mut DirectQueue, namespace: &NamespaceInfo) -> Result<()> {
        let mut is_looked_at = self
            .is_looked_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.force || *is_looked_at {
            return Ok(());
        }
        let nsid = namespace.nsid;
        let copy = copy(queue, namespace).with_context(|| {
            format!(
                "what is on namespace {nsid} cannot be looked at, and nothing was written (--force writes to it without a \
                 look, where nothing that is on it is wanted)"
            )
        })?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), copy.as_raw_fd());
        let found = signature_in_words(Path::new(&path), &Tools::alone(PATIENCE));
        // A file in memory has LBAs of 512 bytes for libblkid, and a GPT is at LBAs.
        let has_gpt = || gpt::has_signature(&copy, namespace.lba_bytes);
        let found = match found {
            Ok(None) | Err(_) if has_gpt() => Ok(Some("a partition table (gpt)".to_owned())),
            found => found,
        };
        match found {
            Ok(None) => {}
            Ok(Some(found)) => bail!(
                "namespace {nsid} holds {found}, and a workload that writes destroys that; nothing was written: give \
                 another one with -N, or --force where nothing that is on it is wanted"
            ),
            Err(error) => tracing::warn!(
                "whether namespace {nsid} holds a file system was not found out, and it is written to: {error:#}"
            ),
        }
        *is_looked_at = true;
        Ok(())
    }
}

/// Says so where the controller's queues hold fewer commands than were asked for (CAP.MQES).
pub(super) fn tell_lowered(iodepth: u16, controller: &ControllerInfo) {
    let entries = controller.cap.map_or(u32::MAX, |cap| cap.mqes);
    let commands = entries.saturating_sub(1);
    if commands < u32::from(iodepth) {
        tracing::warn!(
            "--iodepth is {iodepth}, and a queue of this target holds {} at once: that is how many are in progress; more \
             are with --numjobs",
            Count(commands.into(), "command")
        );
    }
}

/// A file in memory as large as the namespace, or of [`DEVICE_BYTES_MAX`], with what is there where
/// signatures live.
fn copy(queue: &mut DirectQueue, namespace: &NamespaceInfo) -> Result<File> {
    let lba_bytes = u64::from(namespace.lba_bytes);
    // What is longer than any device of Linux has the end that such a device would have.
    let size_bytes = namespace.size_bytes().min(DEVICE_BYTES_MAX);
    let file = File::from(memfd_create(c"namespace", MFdFlags::MFD_CLOEXEC)?);
    file.set_len(size_bytes)
        .with_context(|| format!("a sparse file in memory of {size_bytes} bytes"))?;
    let head_end = HEAD_BYTES.min(size_bytes);
    let tail_start = size_bytes.saturating_sub(TAIL_BYTES).max(head_end);
    let mut bytes = vec![0; LOOK_BYTES as usize];
    for (start, end) in [(0, head_end), (tail_start, size_bytes)] {
        let mut at = start - start % lba_bytes;
        while at < end {
            let count = u32::try_from((end - at).next_multiple_of(lba_bytes))?.min(LOOK_BYTES);
            let buffer = queue.take(count).context("no data memory is left")?;
            let op = Op::Read {
                slba: at / lba_bytes,
                nlb: count / namespace.lba_bytes,
            };
            let nsid = namespace.nsid;
            queue
                .submit(at, Io { nsid, op }, Some(buffer))
                .map_err(|refused| refused.reason)?;
            let done = queue.wait(None).context("no I/O is in progress")?;
            done.result.clone()?;
            let piece = bytes.get_mut(..count as usize).unwrap_or_default();
            if let Some(buffer) = &done.buffer {
                buffer.copy_to(0, piece);
            }
            // Zeroes take no memory.
            if piece.iter().any(|&byte| byte != 0) {
                file.write_all_at(piece, at)?;
            }
            at += u64::from(count);
        }
    }
    Ok(file)
}
