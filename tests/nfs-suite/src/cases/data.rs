//! Bytes of files: where they go, and that they are there.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::{Case, case};
use crate::expect::{Expect, Outcome, equal, holds, same_bytes};
use crate::place::Place;
use crate::random::Random;
use crate::sys::{self, Aligned, Mapping};

pub(super) const CASES: &[Case] = &[
    case("data/offsets-beyond-4-gib", offsets_beyond_4_gib),
    case("data/sizes-and-offsets", sizes_and_offsets),
    case("data/large-transfers", large_transfers),
    case("data/append", append),
    case("data/direct", direct),
    case("data/synchronous", synchronous),
    case("data/mapped", mapped),
    case("data/end-of-file", end_of_file),
    case("data/copy-file-range", copy_file_range),
    case("data/file-too-big", file_too_big),
    case("data/access-mode", access_mode),
];

fn offsets_beyond_4_gib(place: &Place) -> Outcome {
    const MARKS: [u64; 6] = [
        0,
        (1 << 31) - 2,
        (1 << 32) - 2,
        (1 << 32) + 5000,
        1 << 33,
        1 << 40,
    ];
    let file = sys::create(&place.at("file"), 0o644).succeeds("creating a file")?;
    for mark in MARKS {
        file.write_all_at(&mark.to_le_bytes(), mark)
            .succeeds(format!("write at {mark}"))?;
    }
    sys::close(file).succeeds("close")?;
    let file = File::open(place.there("file")).succeeds("open")?;
    for mark in MARKS {
        let mut read = [0; 8];
        file.read_exact_at(&mut read, mark)
            .succeeds(format!("read at {mark}"))?;
        equal(format!("what is at {mark}"), u64::from_le_bytes(read), mark)?;
    }
    equal(
        "size",
        file.metadata().succeeds("stat")?.len(),
        (1 << 40) + 8,
    )
}

/// Every length around a page and a block at offsets that are multiples of nothing.
fn sizes_and_offsets(place: &Place) -> Outcome {
    let mut random = Random::new(11);
    let mut expected = Vec::new();
    let file = sys::create(&place.at("file"), 0o644).succeeds("creating a file")?;
    for bytes in [
        1, 2, 3, 4, 5, 511, 512, 513, 4095, 4096, 4097, 8191, 65_535, 65_536, 65_537,
    ] {
        let data = random.bytes(bytes);
        let at = u64::try_from(expected.len()).unwrap_or_default();
        file.write_all_at(&data, at)
            .succeeds(format!("write of {bytes} at {at}"))?;
        expected.extend_from_slice(&data);
    }
    sys::close(file).succeeds("close")?;
    let file = File::open(place.there("file")).succeeds("open")?;
    for _ in 0..200 {
        let from = random.below_usize(expected.len());
        let bytes = random.below_usize(expected.len() - from).min(70_000);
        let mut read = vec![0; bytes];
        file.read_exact_at(&mut read, u64::try_from(from).unwrap_or_default())
            .succeeds("read")?;
        let part = expected.get(from..from + bytes).unwrap_or_default();
        same_bytes(format!("{bytes} bytes from {from}"), &read, part)?;
    }
    Ok(())
}

/// More than one READ and WRITE can carry.
fn large_transfers(place: &Place) -> Outcome {
    const BYTES: usize = (5 << 20) + 4321;
    let data = Random::new(3).bytes(BYTES);
    let mut file = sys::create(&place.at("file"), 0o644).succeeds("creating a file")?;
    file.write_all(&data).succeeds("write")?;
    file.sync_data().succeeds("fdatasync")?;
    sys::close(file).succeeds("close")?;
    let mut file = sys::open(&place.there("file"), OFlag::O_RDONLY | OFlag::O_DIRECT, 0)
        .succeeds("open with O_DIRECT")?;
    let mut room = Aligned::new(BYTES.next_multiple_of(4096));
    let mut filled = 0;
    while filled < BYTES {
        let rest = room.bytes().get_mut(filled..).unwrap_or_default();
        match file.read(rest).succeeds("read")? {
            0 => break,
            read => filled += read,
        }
    }
    same_bytes(
        "what was read",
        room.bytes().get(..filled).unwrap_or_default(),
        &data,
    )
}

fn append(place: &Place) -> Outcome {
    let path = place.at("file");
    std::fs::write(&path, b"first\n").succeeds("write")?;
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND;
    let mut one = sys::open(&path, flags, 0).succeeds("open with O_APPEND")?;
    let mut two = sys::open(&path, flags, 0).succeeds("open with O_APPEND")?;
    for _ in 0..50 {
        one.write_all(b"one\n").succeeds("write")?;
        two.seek(SeekFrom::Start(0)).succeeds("seek")?;
        two.write_all(b"second\n").succeeds("write")?;
    }
    sys::close(one).succeeds("close")?;
    sys::close(two).succeeds("close")?;
    let mut expected = b"first\n".to_vec();
    for _ in 0..50 {
        expected.extend_from_slice(b"one\nsecond\n");
    }
    same_bytes(
        "what it holds",
        &std::fs::read(place.there("file")).succeeds("read")?,
        &expected,
    )
}

fn direct(place: &Place) -> Outcome {
    const PIECE: usize = 16_384;
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_DIRECT;
    let file = sys::open(&place.at("file"), flags, 0o644).succeeds("open with O_DIRECT")?;
    let mut room = Aligned::new(PIECE);
    for number in 0..16_u64 {
        let data = Random::new(number).bytes(PIECE);
        room.bytes().copy_from_slice(&data);
        let at = (number * 7 % 16) * 16_384;
        file.write_all_at(room.bytes(), at).succeeds("write")?;
        // What is written so is at the server, without close or fsync.
        let mut read = vec![0; PIECE];
        File::open(place.there("file"))
            .and_then(|file| file.read_exact_at(&mut read, at))
            .succeeds("read")?;
        same_bytes("what another client reads", &read, &data)?;
    }
    Ok(())
}

fn synchronous(place: &Place) -> Outcome {
    for (flag, name) in [(OFlag::O_SYNC, "O_SYNC"), (OFlag::O_DSYNC, "O_DSYNC")] {
        let path = place.at(name);
        let file = sys::open(&path, OFlag::O_RDWR | OFlag::O_CREAT | flag, 0o644)
            .succeeds(format!("open with {name}"))?;
        let data = Random::new(8).bytes(30_000);
        for (piece, at) in data.chunks(1500).zip((0_u64..).step_by(1500)) {
            file.write_all_at(piece, at).succeeds("write")?;
        }
        same_bytes(
            name,
            &std::fs::read(place.there(name)).succeeds("read")?,
            &data,
        )?;
        sys::close(file).succeeds("close")?;
    }
    Ok(())
}

fn mapped(place: &Place) -> Outcome {
    const BYTES: usize = 40_000;
    let data = Random::new(21).bytes(BYTES);
    std::fs::write(place.at("file"), &data).succeeds("write")?;
    let file = sys::open(&place.at("file"), OFlag::O_RDWR, 0).succeeds("open")?;
    let bytes = NonZeroUsize::MIN.saturating_add(BYTES - 1);
    let mapping = Mapping::new(&file, 0, bytes).succeeds("mmap")?;
    let mut read = vec![0; BYTES];
    mapping.read(0, &mut read);
    same_bytes("what is mapped", &read, &data)?;
    let mut expected = data;
    let patch = Random::new(22).bytes(9000);
    mapping.write(4000, &patch);
    mapping.sync().succeeds("msync")?;
    if let Some(place) = expected.get_mut(4000..13_000) {
        place.copy_from_slice(&patch);
    }
    same_bytes(
        "what another client reads",
        &std::fs::read(place.there("file")).succeeds("read")?,
        &expected,
    )?;
    // Written and mapped are one.
    file.write_all_at(b"between", 20_000).succeeds("write")?;
    let mut read = [0; 7];
    mapping.read(20_000, &mut read);
    equal("what is mapped after a write", &read, b"between")?;
    drop(mapping);
    sys::close(file).succeeds("close")
}

fn end_of_file(place: &Place) -> Outcome {
    let path = place.at("file");
    std::fs::write(&path, b"0123456789").succeeds("write")?;
    let file = File::open(&path).succeeds("open")?;
    let mut room = [0; 16];
    for (at, expected) in [(0, 10), (4, 6), (9, 1), (10, 0), (11, 0), (1 << 40, 0)] {
        let read = file
            .read_at(&mut room, at)
            .succeeds(format!("read at {at}"))?;
        equal(format!("bytes read at {at}"), read, expected)?;
    }
    let mut file = file;
    file.seek(SeekFrom::Current(-1))
        .refused("seek before the start", &[Errno::EINVAL])?;
    equal(
        "seek from the end",
        file.seek(SeekFrom::End(-3)).succeeds("seek")?,
        7,
    )
}

fn copy_file_range(place: &Place) -> Outcome {
    const BYTES: usize = 300_000;
    let data = Random::new(31).bytes(BYTES);
    std::fs::write(place.at("from"), &data).succeeds("write")?;
    let from = File::open(place.at("from")).succeeds("open")?;
    let onto = sys::create(&place.at("to"), 0o644).succeeds("creating a file")?;
    let (mut at_from, mut at_onto) = (1000_i64, 5000_i64);
    let end = i64::try_from(BYTES).unwrap_or_default();
    while at_from < end {
        let rest = usize::try_from(end - at_from).unwrap_or_default();
        let copied =
            nix::fcntl::copy_file_range(&from, Some(&mut at_from), &onto, Some(&mut at_onto), rest)
                .succeeds("copy_file_range")?;
        holds("something was copied before the end", copied > 0)?;
    }
    sys::close(onto).succeeds("close")?;
    let mut expected = vec![0; 5000];
    expected.extend_from_slice(data.get(1000..).unwrap_or_default());
    same_bytes(
        "the copy",
        &std::fs::read(place.there("to")).succeeds("read")?,
        &expected,
    )?;
    let copied = nix::fcntl::copy_file_range(
        &from,
        Some(&mut 400_000),
        sys::open(&place.at("to"), OFlag::O_RDWR, 0).succeeds("open")?,
        Some(&mut 0),
        10,
    )
    .succeeds("copy_file_range behind the end")?;
    equal("bytes copied from behind the end", copied, 0)
}

/// What has no place in a file system is refused, and what is there stays.
fn file_too_big(place: &Place) -> Outcome {
    let path = place.at("file");
    std::fs::write(&path, b"small").succeeds("write")?;
    sys::truncate(&path, i64::MAX)
        .refused("truncate to 2^63 - 1", &[Errno::EFBIG, Errno::EINVAL])?;
    equal(
        "size",
        sys::stat(&place.there("file")).succeeds("stat")?.st_size,
        5,
    )
}

fn access_mode(place: &Place) -> Outcome {
    let path = place.at("file");
    std::fs::write(&path, b"text").succeeds("write")?;
    let reader = sys::open(&path, OFlag::O_RDONLY, 0).succeeds("open")?;
    reader
        .write_at(b"x", 0)
        .refused("writing by a descriptor that reads", &[Errno::EBADF])?;
    let writer = sys::open(&path, OFlag::O_WRONLY, 0).succeeds("open")?;
    writer
        .read_at(&mut [0; 4], 0)
        .refused("reading by a descriptor that writes", &[Errno::EBADF])?;
    equal(
        "bytes of a write of none",
        writer.write_at(b"", 1000).succeeds("write of none")?,
        0,
    )?;
    sys::close(writer).succeeds("close")?;
    equal("size", sys::stat(&path).succeeds("stat")?.st_size, 4)
}
