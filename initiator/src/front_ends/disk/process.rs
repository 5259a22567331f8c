//! A process the kernel waits for when it writes memory back must not wait for the kernel to write
//! memory back, nor be the one that is killed for memory.
#![expect(
    unsafe_code,
    reason = "prctl(2) without a safe wrapper, and what a process does before another program"
)]

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::SigSet;

/// Never chosen by the out-of-memory killer.
const OOM_SCORE_ADJ: &str = "-1000";

/// `PR_SET_IO_FLUSHER` of `include/uapi/linux/prctl.h`, which the libc crate does not have.
const PR_SET_IO_FLUSHER: i32 = 57;

/// Prepares this process, and the threads it makes from now on, to serve a disk. What cannot be had
/// is said in the log: everything works without it, until memory is short.
pub(super) fn prepare() {
    if let Err(error) = lock_memory() {
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
        tracing::warn!(
            limit_bytes = limit,
            "memory is not locked: {error}; raise RLIMIT_MEMLOCK or grant CAP_IPC_LOCK, or this \
             process may have to wait for its own disk when memory is short"
        );
    }
    if let Err(error) = become_io_flusher() {
        tracing::warn!(
            "not marked as serving a disk (PR_SET_IO_FLUSHER: {error}); grant CAP_SYS_RESOURCE"
        );
    }
    if let Err(error) = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ) {
        tracing::warn!("may be killed when memory is short (oom_score_adj: {error})");
    }
}

/// Has a program get its signals, whichever this thread has blocked: some that mount file systems
/// stay as long as those do.
pub fn unblock_signals(command: &mut Command) -> &mut Command {
    let unblock = || Ok(SigSet::all().thread_unblock()?);
    // SAFETY: between fork(2) and execve(2) it makes one system call, which allocates nothing and
    // takes no lock (signal-safety(7)).
    unsafe { command.pre_exec(unblock) }
}

fn lock_memory() -> io::Result<()> {
    // Without this and without CAP_IPC_LOCK, locking future memory would make allocations fail.
    let unlimited = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).is_ok()
        || getrlimit(Resource::RLIMIT_MEMLOCK).is_ok_and(|(soft, _)| soft == RLIM_INFINITY);
    if !unlimited && !has_ipc_lock() {
        return Err(Errno::EPERM.into());
    }
    mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)?;
    Ok(())
}

/// CAP_IPC_LOCK is effective (proc_pid_status(5)).
fn has_ipc_lock() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

/// Its memory allocations do not start I/O (PR_SET_IO_FLUSHER(2const), Linux 5.6). Threads inherit
/// it.
fn become_io_flusher() -> io::Result<()> {
    // SAFETY: this option takes numbers only and touches no memory of the process.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    Errno::result(result)?;
    Ok(())
}
