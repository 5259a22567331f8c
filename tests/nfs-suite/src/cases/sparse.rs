//! Holes: where they are, how they are made and filled.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::unistd::{Whence, lseek};

use super::{Case, case, case_that_needs};
use crate::expect::{Expect, Outcome, equal, holds, same_bytes};
use crate::feature::Feature;
use crate::place::Place;
use crate::random::Random;
use crate::sys;

pub(super) const CASES: &[Case] = &[
    case("sparse/holes-are-zero", holes_are_zero),
    case("sparse/holes-take-no-room", holes_take_no_room),
    case_that_needs("sparse/seek", &[Feature::Seek], seek),
    case_that_needs("sparse/allocate", &[Feature::Fallocate], allocate),
    case_that_needs(
        "sparse/allocate-keeps-what-is-there",
        &[Feature::Fallocate],
        allocate_keeps,
    ),
    case_that_needs("sparse/punch", &[Feature::Fallocate], punch),
    case_that_needs(
        "sparse/allocate-errors",
        &[Feature::Fallocate],
        allocate_errors,
    ),
];

fn holes_are_zero(place: &Place) -> Outcome {
    const BYTES: usize = 700_000;
    let mut expected = vec![0; BYTES];
    let mut random = Random::new(41);
    let file = sys::create(&place.at("file"), 0o644).succeeds("creating a file")?;
    for at in [3_usize, 5000, 65_535, 200_000, BYTES - 10] {
        let data = random.bytes(10);
        file.write_all_at(&data, u64::try_from(at).unwrap_or_default())
            .succeeds("write")?;
        if let Some(part) = expected.get_mut(at..at + 10) {
            part.copy_from_slice(&data);
        }
    }
    sys::close(file).succeeds("close")?;
    same_bytes(
        "the file",
        &std::fs::read(place.there("file")).succeeds("read")?,
        &expected,
    )
}

/// In units of 512 bytes.
fn blocks(path: &std::path::Path) -> Outcome<i64> {
    Ok(sys::stat(path).succeeds("stat")?.st_blocks)
}

fn holes_take_no_room(place: &Place) -> Outcome {
    let file = sys::create(&place.at("file"), 0o644).succeeds("creating a file")?;
    file.write_all_at(b"far", 1 << 30).succeeds("write")?;
    file.sync_all().succeeds("fsync")?;
    let taken = blocks(&place.there("file"))? * 512;
    holds(
        format!("a gibibyte of hole takes no room ({taken} bytes)"),
        taken < 1 << 20,
    )?;
    file.write_all_at(&Random::new(1).bytes(1 << 20), 0)
        .succeeds("write")?;
    file.sync_all().succeeds("fsync")?;
    sys::close(file).succeeds("close")?;
    let taken = blocks(&place.at("file"))? * 512;
    holds(
        format!("a mebibyte of data takes that much ({taken} bytes)"),
        taken >= 1 << 20,
    )
}

fn seek(place: &Place) -> Outcome {
    const MIB: i64 = 1 << 20;
    let file = sys::create(&place.at("file"), 0o644).succeeds("creating a file")?;
    // Data at 1 MiB and 3 MiB, of 64 KiB each, and 4 MiB in all.
    for at in [1 << 20, 3 << 20] {
        file.write_all_at(&[7; 65_536], at).succeeds("write")?;
    }
    file.set_len(4 << 20).succeeds("ftruncate")?;
    file.sync_all().succeeds("fsync")?;
    sys::close(file).succeeds("close")?;
    let file = File::open(place.there("file")).succeeds("open")?;
    for (from, whence, expected, what) in [
        (0, Whence::SeekData, MIB, "data from 0"),
        (MIB, Whence::SeekData, MIB, "data from data"),
        (MIB + 65_536, Whence::SeekData, 3 * MIB, "data from a hole"),
        (0, Whence::SeekHole, 0, "a hole from 0"),
        (MIB, Whence::SeekHole, MIB + 65_536, "a hole from data"),
        (3 * MIB, Whence::SeekHole, 3 * MIB + 65_536, "the last hole"),
    ] {
        let found = lseek(&file, from, whence).succeeds(format!("looking for {what}"))?;
        equal(what, found, expected)?;
    }
    lseek(&file, 3 * MIB + 65_536, Whence::SeekData)
        .refused("looking for data in the last hole", &[Errno::ENXIO])?;
    lseek(&file, 4 * MIB, Whence::SeekHole).refused("looking from the end", &[Errno::ENXIO])
}

fn allocate(place: &Place) -> Outcome {
    let file = sys::create(&place.at("file"), 0o644).succeeds("creating a file")?;
    fallocate(file.as_fd(), FallocateFlags::empty(), 0, 1 << 20).succeeds("fallocate")?;
    let found = sys::stat(&place.there("file")).succeeds("stat")?;
    equal("size", found.st_size, 1 << 20)?;
    holds("the room is taken", found.st_blocks * 512 >= 1 << 20)?;
    let held = std::fs::read(place.there("file")).succeeds("read")?;
    holds(
        "what was allocated is zero",
        held.iter().all(|byte| *byte == 0),
    )?;
    fallocate(file.as_fd(), FallocateFlags::empty(), 2 << 20, 4096)
        .succeeds("fallocate behind the end")?;
    equal(
        "size",
        sys::stat(&place.there("file")).succeeds("stat")?.st_size,
        (2 << 20) + 4096,
    )
}

fn allocate_keeps(place: &Place) -> Outcome {
    let data = Random::new(2).bytes(50_000);
    let path = place.at("file");
    std::fs::write(&path, &data).succeeds("write")?;
    let file = sys::open(&path, OFlag::O_RDWR, 0).succeeds("open")?;
    fallocate(file.as_fd(), FallocateFlags::empty(), 10_000, 20_000).succeeds("fallocate")?;
    sys::close(file).succeeds("close")?;
    same_bytes(
        "the file",
        &std::fs::read(place.there("file")).succeeds("read")?,
        &data,
    )
}

fn punch(place: &Place) -> Outcome {
    const BYTES: usize = 200_000;
    let mut expected = Random::new(3).bytes(BYTES);
    let path = place.at("file");
    std::fs::write(&path, &expected).succeeds("write")?;
    let file = sys::open(&path, OFlag::O_RDWR, 0).succeeds("open")?;
    file.sync_all().succeeds("fsync")?;
    let before = blocks(&path)?;
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    for (start, bytes) in [
        (40_960_usize, 81_920_usize),
        (5, 10),
        (150_001, 6000),
        (199_000, 50_000),
    ] {
        let at = i64::try_from(start).unwrap_or_default();
        fallocate(
            file.as_fd(),
            flags,
            at,
            i64::try_from(bytes).unwrap_or_default(),
        )
        .succeeds("punching a hole")?;
        for byte in expected.iter_mut().skip(start).take(bytes) {
            *byte = 0;
        }
    }
    file.sync_all().succeeds("fsync")?;
    sys::close(file).succeeds("close")?;
    same_bytes(
        "the file",
        &std::fs::read(place.there("file")).succeeds("read")?,
        &expected,
    )?;
    let after = blocks(&place.there("file"))?;
    holds(
        "a hole gives its room back",
        (before - after) * 512 >= 65_536,
    )
}

fn allocate_errors(place: &Place) -> Outcome {
    let path = place.at("file");
    std::fs::write(&path, b"text").succeeds("write")?;
    let file = sys::open(&path, OFlag::O_RDWR, 0).succeeds("open")?;
    let none = FallocateFlags::empty();
    fallocate(file.as_fd(), none, -1, 10).refused("fallocate from -1", &[Errno::EINVAL])?;
    fallocate(file.as_fd(), none, 0, 0).refused("fallocate of nothing", &[Errno::EINVAL])?;
    let reader = sys::open(&path, OFlag::O_RDONLY, 0).succeeds("open")?;
    fallocate(reader.as_fd(), none, 0, 10).refused("by one that reads", &[Errno::EBADF])?;
    equal(
        "size",
        sys::stat(&place.there("file")).succeeds("stat")?.st_size,
        4,
    )
}
