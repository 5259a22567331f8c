//! Making a ring with what the kernel offers, and saying why when it offers none.

use std::fs;
use std::io;

use io_uring::{Builder, IoUring, cqueue, squeue};

use super::EngineError;

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
        match builder.build(entries) {
            Ok(ring) => return Ok((ring, mode)),
            // A flag this kernel does not know.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = error,
            Err(error) => return Err(refused(error, io_uring_disabled().as_deref())),
        }
    }
    Err(refused(last, None))
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
            "rings count against RLIMIT_MEMLOCK, which all processes of a user share: raise it with \
             `ulimit -l` or LimitMEMLOCK= in the systemd unit, or lower the number of entries"
        }
        (Some(libc::EMFILE | libc::ENFILE), _) => {
            "out of file descriptors: raise `ulimit -Hn` or LimitNOFILE= in the systemd unit"
        }
        (Some(libc::EINVAL), _) => {
            "the number of entries is out of the kernel's range (1 to 32768)"
        }
        _ => "unexpected; see io_uring_setup(2)",
    };
    EngineError::Setup { source, remedy }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{Mode, refused, ring};

    #[test]
    fn every_mode_makes_a_ring_here() {
        for mode in Mode::ALL {
            let (_ring, got) = ring(8, 16, mode).unwrap();
            // On an older kernel it may fall back, never forward.
            assert!(got >= mode, "{mode:?} became {got:?}");
        }
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
