//! Exports whose data goes past the page cache.

mod support;

use std::fs;
use std::os::fd::RawFd;

use capstan_exports::limits::DIRECT_BYTES;
use capstan_exports::{ExportSettings, FileError, OpenAccess, OpenFile};
use capstan_memory::{Pages, Slab, Span};
use support::{Disk, Exported, name, put, settings};

const PAGE: usize = 4096;
const O_DIRECT: u32 = 0o40_000;

/// Bytes of which no two pages are alike.
fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| u8::try_from((at / 7 + at / PAGE + seed) % 251).unwrap())
        .collect()
}

/// How many descriptors of this process go past the page cache.
fn direct_descriptors() -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|entry| {
        let fd: RawFd = entry.file_name().to_str().unwrap().parse().unwrap();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.is_some_and(|flags| u32::from_str_radix(flags.trim(), 8).unwrap() & O_DIRECT != 0)
    })
    .count()
}

fn read(file: &OpenFile, offset: usize, length: usize) -> (Vec<u8>, bool) {
    let mut buffer = vec![0; length];
    let read = file.read_to_end(&mut buffer, offset as u64, true).unwrap();
    let (bytes, is_end) = read.expect("it may wait");
    buffer.truncate(bytes);
    (buffer, is_end)
}

#[test]
fn root_what_goes_past_the_cache_and_through_it_is_the_same() {
    let disk = Disk::of("direct", "ext4").unwrap();
    put(&disk.path().join("f"), b"", 0, 0o644);
    let exported = Exported::of(vec![ExportSettings {
        direct: true,
        ..settings(&disk.path(), "/exported")
    }]);
    let caller = exported.caller(0);
    let node = exported
        .root()
        .lookup(&exported.exports, &caller, name("f"))
        .unwrap();
    let before = direct_descriptors();
    let file = node.open(&caller, OpenAccess::Both, false).unwrap();
    assert_eq!(direct_descriptors(), before + 1);
    let mut model = Vec::new();
    // Aligned and not, over one another, and beyond the end.
    let writes = [
        (0, 3 * PAGE),
        (2 * PAGE, PAGE),
        (100, 5000),
        (4 * PAGE, PAGE + 1),
        (PAGE, DIRECT_BYTES),
        (7 * PAGE, 0),
        (DIRECT_BYTES + 3 * PAGE - 1, PAGE),
        (8 * PAGE, 2 * PAGE),
    ];
    for (seed, (offset, length)) in writes.into_iter().enumerate() {
        // Memory that is aligned, and memory that is not.
        let data = pattern(length + 1, seed);
        let data = &data[seed % 2..][..length];
        let written = file.write(&caller, data, offset as u64).unwrap();
        assert_eq!(written, length);
        if length > 0 {
            model.resize(model.len().max(offset + length), 0);
            model[offset..offset + length].copy_from_slice(data);
        }
        let cached = fs::read(disk.path().join("f")).unwrap();
        assert!(cached == model, "{length} bytes at {offset}, by the cache");
        for (offset, length) in [
            (offset / PAGE * PAGE, 2 * PAGE),
            (offset, length),
            (offset + 1, PAGE),
            (model.len() / PAGE * PAGE, PAGE),
            (model.len().next_multiple_of(PAGE), PAGE),
        ] {
            let end = model.len().min(offset + length);
            let expected = model.get(offset..end).unwrap_or_default();
            let (found, is_end) = read(&file, offset, length);
            assert!(found == expected, "{length} bytes at {offset}");
            assert_eq!(is_end, offset + found.len() >= model.len());
        }
    }
    // What another program of this machine writes through the cache.
    fs::write(disk.path().join("f"), pattern(2 * PAGE, 99)).unwrap();
    assert!(read(&file, PAGE, 4 * PAGE).0 == pattern(2 * PAGE, 99)[PAGE..]);
    // Memory of a device.
    let slab = Slab::new(1 << 20, Pages::Ordinary).unwrap();
    for start in [0, 1] {
        let span = Span::new(&slab, start..start + PAGE).unwrap();
        let (bytes, _) = file.read_into_to_end(&span, 0, true).unwrap().unwrap();
        let mut found = vec![0; bytes];
        span.raw().copy_to(&mut found);
        assert!(found == pattern(2 * PAGE, 99)[..PAGE]);
    }
    // Disks are waited for.
    let mut buffer = [0; PAGE];
    assert_eq!(
        file.read_to_end(&mut buffer, 0, false),
        Ok::<_, FileError>(None)
    );
}
