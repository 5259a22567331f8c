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

/// Open descriptors of the process `pid`.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn descriptors_of(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("the process is there")
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

/// Memory that a process holds, in bytes: what of its mappings is resident, and all of those that
/// it wants huge pages for (proc(5), smaps), as slabs are. Those are promised at the start, and
/// that a page of 2 MiB of them is used for the first time is no growth; another slab is.
///
/// # Panics
/// Without /proc, or when the process has ended.
#[must_use]
pub fn held_bytes_of(pid: u32) -> usize {
    let path = format!("/proc/{pid}/smaps");
    held_bytes(&std::fs::read_to_string(path).expect("the process runs"))
}

fn held_bytes(smaps: &str) -> usize {
    let (mut held, mut size, mut resident) = (0, 0, 0);
    for line in smaps.lines() {
        let kib = |value: &str| -> usize {
            let value = value.trim().trim_end_matches(" kB");
            value.parse::<usize>().expect("a number") << 10
        };
        match line.split_once(':') {
            Some(("Size", value)) => size = kib(value),
            Some(("Rss", value)) => resident = kib(value),
            // The last line of a mapping.
            Some(("VmFlags", flags)) => {
                let promised = flags.split_whitespace().any(|flag| flag == "hg");
                held += if promised { size } else { resident };
            }
            _ => {}
        }
    }
    held
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

/// Waits until no thread of a process runs, which was sent SIGSTOP: each is stopped, has ended, or
/// waits for a disk and stops when that answers.
///
/// # Panics
/// When one still does after ten seconds.
pub fn wait_until_stopped(pid: u32) {
    let start = Instant::now();
    let stands = |stat: &String| !stat.contains(") R ") && !stat.contains(") S ");
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

#[cfg(test)]
mod tests {
    use super::held_bytes;

    #[test]
    fn what_is_set_aside_counts_as_a_whole_and_the_rest_as_far_as_it_is_used() {
        let smaps = "\
            7f00-7f10 rw-p 00000000 00:00 0 \n\
            Size:               4096 kB\n\
            Rss:                2048 kB\n\
            VmFlags: rd wr mr mw me ac sd hg \n\
            7f20-7f30 rw-s 00000000 00:01 9  /memfd:ring (deleted)\n\
            Size:               2052 kB\n\
            Rss:                  12 kB\n\
            VmFlags: rd wr sh mr mw me ms sd \n";
        assert_eq!(held_bytes(smaps), (4096 + 12) << 10);
    }
}
