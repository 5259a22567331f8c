//! What keeps a file or device from being opened for writing.
//!
//! The lock (`flock`) and the claim of a block device (`O_EXCL`) belong to the open file
//! description. Each operation of a ring that the kernel has holds the description, so both last
//! until the last operation is over: also when the process is killed and gone while its writes are
//! still on their way to a slow medium. No host may be served before that, or an old write would
//! land after newer ones. So nothing here unlocks; closing does, when it is time.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::process;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::sys::stat::{major, minor};
use nix::unistd::Pid;

use crate::error::LockHolder;

/// SIGKILL in the masks of `/proc/PID/status`.
const SIGKILL_MASK: u64 = 1 << (libc::SIGKILL - 1);

/// Looks the lock's holder up in `/proc/locks`.
pub(crate) fn lock_holder(metadata: &Metadata) -> LockHolder {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    match lock_holder_in(&locks, metadata.dev(), metadata.ino()) {
        Some(pid) if pid == process::id() => LockHolder::Own,
        Some(pid) if has_ended(pid, metadata) => LockHolder::Ended { pid },
        Some(pid) => {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok();
            LockHolder::Process {
                pid,
                // It may be the process of another user.
                name: name.map(|n| n.trim().escape_debug().to_string()),
            }
        }
        None => LockHolder::Unknown,
    }
}

/// The holder of a lock that a try did not get, from what was found `before` it and `behind` it:
/// the last operation of a process that has ended may be over in between, and then nothing holds it
/// any more.
pub(crate) fn holder_at_try(before: LockHolder, behind: LockHolder) -> LockHolder {
    match behind {
        LockHolder::Unknown => before,
        holder => holder,
    }
}

/// The lines are `N: FLOCK  ADVISORY  WRITE PID MAJOR:MINOR:INODE START END`, with the device in
/// hexadecimal. The process id stays when the process is gone.
fn lock_holder_in(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let wanted = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let mut holders = locks.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (kind, _advisory, _mode) = (fields.next()?, fields.next()?, fields.next()?);
        let (pid, place) = (fields.next()?, fields.next()?);
        (kind == "FLOCK" && place == wanted)
            .then(|| pid.parse().ok())
            .flatten()
    });
    holders.next()
}

/// Whether the process that took the lock is gone or will do nothing any more, or its number
/// belongs to another one by now. A process about which nothing can be found out counts as alive.
fn has_ended(pid: u32, metadata: &Metadata) -> bool {
    let exists = i32::try_from(pid).map(|pid| kill(Pid::from_raw(pid), None));
    if exists == Ok(Err(Errno::ESRCH)) {
        return true;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if is_ending(&status) {
        return true;
    }
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let mut open = descriptors.filter_map(|entry| fs::metadata(entry.ok()?.path()).ok());
    !open.any(|file| (file.dev(), file.ino()) == (metadata.dev(), metadata.ino()))
}

/// Whether `/proc/PID/status` is that of a zombie, or of a process that has received SIGKILL: it
/// may have to wait for its own operations.
fn is_ending(status: &str) -> bool {
    status.lines().any(|line| match line.split_once(':') {
        Some(("State", state)) => state.trim_start().starts_with(['Z', 'X']),
        Some(("SigPnd" | "ShdPnd", mask)) => {
            u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & SIGKILL_MASK != 0)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::process::{self, Command, Stdio};

    use super::{LockHolder, has_ended, holder_at_try, is_ending, lock_holder_in};

    #[test]
    fn the_holder_is_found_by_device_and_inode_among_other_locks() {
        // Lines as Linux 6.18 writes them; fe:00 is device 254:0, 0xfe00.
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:131 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 22 fe:01:131 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 33 fe:00:131 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 44 fe:00:132 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE -1 fe:00:133 0 EOF\n\
                     gibberish\n";
        assert_eq!(lock_holder_in(locks, 0xfe00, 131), Some(33));
        assert_eq!(
            lock_holder_in(locks, 0xfe00, 132),
            None,
            "44 waits, it does not hold"
        );
        assert_eq!(
            lock_holder_in(locks, 0xfe00, 133),
            None,
            "in another pid namespace"
        );
        assert_eq!(lock_holder_in("", 0xfe00, 131), None);
    }

    #[test]
    fn zombies_and_those_that_were_killed_are_ending() {
        let alive = "Name:\tcapstan-target\nState:\tS (sleeping)\nSigPnd:\t0000000000000000\n\
                     ShdPnd:\t0000000000004000\nSigBlk:\t0000000000000100\n";
        assert!(
            !is_ending(alive),
            "SIGTERM is pending, and SIGKILL cannot be blocked"
        );
        for (line, instead) in [
            ("S (sleeping)", "Z (zombie)"),
            ("SigPnd:\t0000000000000000", "SigPnd:\t0000000000000100"),
            ("ShdPnd:\t0000000000004000", "ShdPnd:\t0000000000004100"),
        ] {
            assert!(is_ending(&alive.replace(line, instead)), "{instead}");
        }
        assert!(!is_ending(""));
    }

    /// Zombies are tested above: a process is one only until its parent waits for it, and not quite
    /// at once.
    #[test]
    fn a_process_that_has_the_file_is_alive_and_others_are_not_its_holders() {
        let path = std::env::temp_dir().join(format!("capstan-claim-{}", process::id()));
        let file = File::create(&path).unwrap();
        let metadata = file.metadata().unwrap();
        assert!(!has_ended(process::id(), &metadata));
        let sleep = |stdin| Command::new("sleep").arg("60").stdin(stdin).spawn();
        let mut with = sleep(Stdio::from(file.try_clone().unwrap())).unwrap();
        let mut without = sleep(Stdio::null()).unwrap();
        assert!(!has_ended(with.id(), &metadata));
        assert!(
            has_ended(without.id(), &metadata),
            "its number was used again"
        );
        for child in [&mut with, &mut without] {
            child.kill().unwrap();
        }
        with.wait().unwrap();
        without.wait().unwrap();
        assert!(has_ended(with.id(), &metadata), "gone");
        fs::remove_file(&path).unwrap();
    }

    /// A start must wait for what a killed target left, also when that ends as it looks.
    #[test]
    fn the_holder_is_known_although_it_lets_go_behind_the_try() {
        let ended = || LockHolder::Ended { pid: 7 };
        let unknown = || LockHolder::Unknown;
        let at = holder_at_try(ended(), unknown());
        assert!(matches!(at, LockHolder::Ended { pid: 7 }), "{at:?}");
        let at = holder_at_try(unknown(), ended());
        assert!(matches!(at, LockHolder::Ended { pid: 7 }), "{at:?}");
        let at = holder_at_try(unknown(), unknown());
        assert!(matches!(at, LockHolder::Unknown), "{at:?}");
    }
}
