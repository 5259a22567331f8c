//! What a target takes of the machine's memory before anybody uses it.

use std::fs;
use std::path::Path;

use capstan_tests::process::held_bytes_of;
use capstan_tests::program::{Daemon, own_address};

/// A value of `/proc/PID/status`, in bytes.
fn status_bytes(pid: u32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(key)).unwrap();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

/// The budget is a promise, not a purchase: its memory becomes resident, and is pinned for disk
/// I/O, as hosts use it.
#[test]
fn the_budget_is_not_resident_before_the_first_host() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let path = file.path().to_str().unwrap();
    let target = Daemon::start(path, 512, own_address());
    let resident = status_bytes(target.pid(), "VmRSS:");
    assert!(resident < 48 << 20, "{resident} bytes are resident");
    assert_eq!(status_bytes(target.pid(), "VmPin:"), 0, "bytes are pinned");
    // What the attacks go by: the 256 MiB of the default budget are set aside all the same.
    if Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        let held = held_bytes_of(target.pid());
        assert!(held > 240 << 20, "{held} bytes are held");
    } else {
        eprintln!(
            "SKIPPED the half about slabs: no transparent huge pages, by which they are known"
        );
    }
}
