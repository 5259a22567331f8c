//! What processes use and do.

use std::time::{Duration, Instant};

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

/// Resident memory of a process that it has mapped with others, in bytes (proc(5), RssShmem).
///
/// # Panics
/// Without /proc, or when it has ended.
#[must_use]
pub fn resident_shared_bytes_of(pid: u32) -> usize {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(path).expect("the process runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssShmem:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: usize = kib.expect("RssShmem").parse().expect("a number");
    kib << 10
}

/// What the kernel says of each thread of a process (proc(5), `/proc/pid/stat`); nothing of one
/// that has ended.
#[must_use]
pub fn thread_stats(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).ok();
    let tasks = tasks.into_iter().flatten();
    tasks.filter_map(|task| stat(task.ok()?)).collect()
}

/// Waits until no thread of a process runs, which was sent SIGSTOP.
///
/// # Panics
/// When one still does after ten seconds.
pub fn wait_until_stopped(pid: u32) {
    let start = Instant::now();
    let stands = |stat: &String| stat.contains(") T ");
    while !thread_stats(pid).iter().all(stands) {
        assert!(start.elapsed() < Duration::from_secs(10), "{pid} goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
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
