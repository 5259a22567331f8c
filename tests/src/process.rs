//! What this process uses.

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};

/// Open descriptors.
///
/// # Panics
/// Without /proc.
#[must_use]
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("/proc is mounted")
        .count()
}

/// Resident memory in bytes.
///
/// # Panics
/// Without /proc.
#[must_use]
pub fn resident_bytes() -> usize {
    resident_bytes_of(std::process::id())
}

/// Resident memory of a process in bytes.
///
/// # Panics
/// Without /proc, or when it has ended.
#[must_use]
pub fn resident_bytes_of(pid: u32) -> usize {
    let path = format!("/proc/{pid}/statm");
    let statm = std::fs::read_to_string(path).expect("the process runs");
    let pages: usize = statm
        .split(' ')
        .nth(1)
        .expect("two fields")
        .parse()
        .expect("a number");
    pages * 4096
}

/// CPU time used so far, in microseconds.
///
/// # Panics
/// Never on Linux.
#[must_use]
pub fn cpu_us() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("getrusage");
    let us = |t: nix::sys::time::TimeVal| t.tv_sec() * 1_000_000 + t.tv_usec();
    us(usage.user_time()) + us(usage.system_time())
}

/// Lets this process have as many descriptors as it may: the two sides of a hundred associations
/// take some 1024, which is what a shell allows.
///
/// # Panics
/// When the limit cannot be told or set.
pub fn allow_many_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("the hard limit is allowed");
}
