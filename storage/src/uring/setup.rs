//! Making a ring with what the kernel offers, and saying why when it offers none.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::{Builder, IoUring, cqueue, squeue};

use super::EngineError;

/// How long a ring that RLIMIT_MEMLOCK has no room for is tried again: what rings of a process that
/// has ended count is given back some milliseconds later, and nothing tells when.
const MEMLOCK_PATIENCE: Duration = Duration::from_millis(500);
/// How often it is tried meanwhile.
const MEMLOCK_AGAIN: Duration = Duration::from_millis(10);

/// What a ring of so many entries counts against RLIMIT_MEMLOCK at most, in bytes, on a kernel that
/// counts rings: whole pages of SQEs, and of CQEs with the index array behind the heads and tails
/// of both queues (`rings_size` in Linux's io_uring.c).
#[must_use]
pub fn ring_bytes(entries: u32, in_flight_max: u32) -> u64 {
    /// `struct io_rings`: heads, tails, masks and flags, in cache lines of their own.
    const HEAD_BYTES: u64 = 320;
    const PAGE_BYTES: u64 = 4096;
    let sqes = u64::from(entries.next_power_of_two());
    let cqes = u64::from(in_flight_max.max(entries).next_power_of_two());
    let queues_bytes = HEAD_BYTES + cqes * 16 + sqes * 4;
    (sqes * 64).next_multiple_of(PAGE_BYTES) + queues_bytes.next_multiple_of(PAGE_BYTES)
}

/// How a ring processes its completions, best first. Each needs a newer kernel than the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// Completions are processed when this thread asks for them (Linux 6.1), and the submission
    /// queue needs no index array (6.6).
    DeferredNoArray,
    /// Completions are processed when this thread asks for them (Linux 6.1).
    Deferred,
    /// Completions wait for the next system call instead of interrupting (Linux 5.19).
    Cooperative,
    /// What every io_uring does.
    Plain,
}

impl Mode {
    pub(crate) const ALL: [Self; 4] = [
        Self::DeferredNoArray,
        Self::Deferred,
        Self::Cooperative,
        Self::Plain,
    ];

    /// Whether completions may be waiting in the kernel although the completion queue is empty,
    /// which the ring's TASKRUN flag shows.
    pub(crate) fn has_taskrun_flag(self) -> bool {
        self != Self::Plain
    }

    fn apply(self, builder: &mut Builder<squeue::Entry, cqueue::Entry>) {
        match self {
            Self::DeferredNoArray | Self::Deferred => {
                builder
                    .setup_single_issuer()
                    .setup_defer_taskrun()
                    .setup_coop_taskrun();
                builder.setup_taskrun_flag().setup_submit_all();
                if self == Self::DeferredNoArray {
                    builder.setup_no_sqarray();
                }
            }
            Self::Cooperative => {
                builder
                    .setup_coop_taskrun()
                    .setup_taskrun_flag()
                    .setup_submit_all();
            }
            Self::Plain => {}
        }
    }
}

/// Makes a ring in the best mode from `best` on that the kernel has.
pub(crate) fn ring(
    entries: u32,
    in_flight_max: u32,
    best: Mode,
) -> Result<(IoUring, Mode), EngineError> {
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for mode in Mode::ALL.into_iter().filter(|&mode| mode >= best) {
        let mut builder = IoUring::builder();
        // Every operation in flight has room for its completion, so the queue cannot overflow.
        builder.setup_cqsize(in_flight_max.max(entries)).dontfork();
        mode.apply(&mut builder);
        match build(&builder, entries) {
            Ok(ring) => return Ok((ring, mode)),
            // A flag this kernel does not know.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = error,
            Err(error) => return Err(refused(error, io_uring_disabled().as_deref())),
        }
    }
    Err(refused(last, None))
}

/// Waits for room where processes that have ended still count.
fn build(builder: &Builder<squeue::Entry, cqueue::Entry>, entries: u32) -> io::Result<IoUring> {
    let deadline = Instant::now() + MEMLOCK_PATIENCE;
    loop {
        match builder.build(entries) {
            Err(error)
                if error.raw_os_error() == Some(libc::ENOMEM) && Instant::now() < deadline =>
            {
                thread::sleep(MEMLOCK_AGAIN);
            }
            built => return built,
        }
    }
}

/// `kernel.io_uring_disabled` (Linux 6.6).
fn io_uring_disabled() -> Option<String> {
    let value = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    Some(value.trim().to_owned())
}

fn refused(source: io::Error, disabled: Option<&str>) -> EngineError {
    let remedy = match (source.raw_os_error(), disabled) {
        (Some(libc::EPERM), Some("2")) => {
            "kernel.io_uring_disabled is 2: `sysctl -w kernel.io_uring_disabled=0` enables it"
        }
        (Some(libc::EPERM), Some("1")) => {
            "kernel.io_uring_disabled is 1, which leaves it to CAP_SYS_ADMIN and the group in \
             kernel.io_uring_group: `sysctl -w kernel.io_uring_disabled=0` enables it"
        }
        (Some(libc::EPERM | libc::EACCES), _) => {
            "a seccomp filter (a container's default profile) or a security module forbids it: \
             allow io_uring_setup, io_uring_enter and io_uring_register"
        }
        (Some(libc::ENOSYS), _) => {
            "this kernel has no io_uring, or a seccomp filter hides it: Linux 5.6 or newer with \
             CONFIG_IO_URING is needed"
        }
        (Some(libc::ENOMEM), _) => {
            "rings count against RLIMIT_MEMLOCK (`ulimit -l`), which all processes of a user share: raise \
             it with `ulimit -l unlimited` (as root) or LimitMEMLOCK=infinity in the systemd unit"
        }
        (Some(libc::EMFILE | libc::ENFILE), _) => {
            "out of file descriptors: raise `ulimit -Hn` or LimitNOFILE= in the systemd unit"
        }
        (Some(libc::EINVAL), _) => {
            "the number of entries is out of the kernel's range (1 to 32768)"
        }
        _ => "unexpected; see io_uring_setup(2)",
    };
    EngineError::Setup {
        error: source,
        remedy,
    }
}

impl EngineError {
    /// The kernel has refused to make a ring, of the engine or of anything else.
    #[must_use]
    pub fn refused(error: io::Error) -> Self {
        refused(error, io_uring_disabled().as_deref())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{Mode, refused, ring, ring_bytes};

    #[test]
    fn every_mode_makes_a_ring_here() {
        for mode in Mode::ALL {
            let (_ring, got) = ring(8, 16, mode).unwrap();
            // On an older kernel it may fall back, never forward.
            assert!(got >= mode, "{mode:?} became {got:?}");
        }
    }

    #[test]
    fn a_ring_counts_whole_pages() {
        // The smallest has a page of each; 16 KiB of CQEs need a fifth one for the heads.
        assert_eq!(ring_bytes(8, 16), 8 << 10);
        assert_eq!(ring_bytes(128, 1024), 28 << 10);
        assert_eq!(ring_bytes(100, 1000), ring_bytes(128, 1024));
    }

    #[test]
    fn refusals_name_the_remedy() {
        let text =
            |errno, disabled| refused(io::Error::from_raw_os_error(errno), disabled).to_string();
        let sysctl = text(libc::EPERM, Some("2"));
        assert!(
            sysctl.contains("sysctl -w kernel.io_uring_disabled=0"),
            "{sysctl}"
        );
        assert!(text(libc::EPERM, Some("1")).contains("io_uring_group"));
        assert!(text(libc::EPERM, Some("0")).contains("seccomp"));
        assert!(text(libc::ENOSYS, None).contains("5.6"));
        assert!(text(libc::ENOMEM, None).contains("`ulimit -l unlimited`"));
    }

    #[test]
    fn impossible_sizes_are_an_error() {
        let error = |entries| {
            ring(entries, entries, Mode::Plain)
                .err()
                .unwrap()
                .to_string()
        };
        for entries in [0, 1 << 20] {
            assert!(error(entries).contains("1 to 32768"), "{}", error(entries));
        }
    }
}
