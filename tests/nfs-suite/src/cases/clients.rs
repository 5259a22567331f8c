//! Two clients of one folder.

use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::{Case, case_that_needs, let_the_clock_tick};
use crate::expect::{Expect, Outcome, equal, holds, same_bytes};
use crate::feature::Feature;
use crate::helper::{Lock, Other};
use crate::place::Place;
use crate::random::Random;
use crate::sys;

const NEEDS: &[Feature] = &[Feature::SecondClient];

pub(super) const CASES: &[Case] = &[
    case_that_needs("clients/close-to-open", NEEDS, close_to_open),
    case_that_needs("clients/append", NEEDS, append),
    case_that_needs("clients/renamed-by-the-other", NEEDS, renamed_by_the_other),
    case_that_needs(
        "clients/removed-by-the-other-while-open",
        NEEDS,
        removed_by_the_other_while_open,
    ),
    case_that_needs("clients/stale-after-removal", NEEDS, stale_after_removal),
    case_that_needs(
        "clients/folder-removed-by-the-other",
        NEEDS,
        folder_removed_by_the_other,
    ),
    case_that_needs(
        "clients/truncated-by-the-other",
        NEEDS,
        truncated_by_the_other,
    ),
    case_that_needs("clients/entries-of-the-other", NEEDS, entries_of_the_other),
    case_that_needs(
        "clients/attributes-of-the-other",
        NEEDS,
        attributes_of_the_other,
    ),
];

/// What is written before close is read after open, each time.
fn close_to_open(place: &Place) -> Outcome {
    const ROUNDS: u64 = 30;
    let mut random = Random::new(5);
    for round in 0..ROUNDS {
        let data = random.bytes(random_length(round));
        let (writer, reader) = if round.is_multiple_of(2) {
            (place.at("file"), place.there("file"))
        } else {
            (place.there("file"), place.at("file"))
        };
        std::fs::write(&writer, &data).succeeds("write")?;
        let read = std::fs::read(&reader).succeeds("read by the other client")?;
        same_bytes(format!("round {round}"), &read, &data)?;
    }
    Ok(())
}

/// Same lengths come again, so that size alone does not tell what is new.
fn random_length(round: u64) -> usize {
    match round % 3 {
        0 => 4096,
        1 => 10_000,
        _ => 70_000,
    }
}

/// Lines that two clients append in turn, with a close between: none is lost or torn. Appending at
/// once is safe only under a lock: NFS has no operation for it.
fn append(place: &Place) -> Outcome {
    const LINES: i64 = 20;
    const ROUNDS: i64 = 5;
    drop(sys::create(&place.at("file"), 0o666).succeeds("creating a file")?);
    let mut other = Other::start()?;
    for _ in 0..ROUNDS {
        other.says(("append", Lock::Unlock, 1, LINES), &place.at("file"), "ok")?;
        other.says(
            ("append", Lock::Unlock, 2, LINES),
            &place.there("file"),
            "ok",
        )?;
    }
    let text = std::fs::read_to_string(place.at("file")).succeeds("read")?;
    let lines: Vec<&str> = text.lines().collect();
    equal(
        "lines",
        lines.len(),
        usize::try_from(2 * LINES * ROUNDS).unwrap_or_default(),
    )?;
    for client in ["1 ", "2 "] {
        let of_one = lines.iter().filter(|line| line.starts_with(client)).count();
        equal(format!("lines of client {client}"), of_one, lines.len() / 2)?;
    }
    holds(
        "every line is whole",
        lines.iter().all(|line| line.len() == 8),
    )
}

/// The name goes for the one that looks, and an open file stays what it is for the other.
fn renamed_by_the_other(place: &Place) -> Outcome {
    std::fs::write(place.at("old"), b"some text").succeeds("write")?;
    let file = sys::open(&place.there("old"), OFlag::O_RDWR, 0).succeeds("open")?;
    sys::rename(&place.at("old"), &place.at("new")).succeeds("rename by the first client")?;
    file.write_all_at(b"SOME", 0).succeeds("writing to it")?;
    sys::close(file).succeeds("close")?;
    let held = std::fs::read(place.at("new")).succeeds("read")?;
    equal("what it holds", held, b"SOME text".to_vec())?;
    sys::open(&place.there("old"), OFlag::O_RDONLY, 0)
        .refused("opening the old name", &[Errno::ENOENT])
}

/// The server keeps a file that is open (NFSv4.1, OPEN4_RESULT_PRESERVE_UNLINKED or not): what
/// was open stays readable, or is stale; never another file's data.
fn removed_by_the_other_while_open(place: &Place) -> Outcome {
    let data = Random::new(4).bytes(8192);
    std::fs::write(place.at("file"), &data).succeeds("write")?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECT;
    let file = sys::open(&place.at("file"), flags, 0).succeeds("open")?;
    sys::unlink(&place.there("file")).succeeds("unlink by the other client")?;
    std::fs::write(place.there("file"), [9; 8192]).succeeds("writing a new file of that name")?;
    let mut room = sys::Aligned::new(8192);
    match file.read_at(room.bytes(), 0) {
        Ok(read) => same_bytes(
            "what is read from the file that was removed",
            room.bytes().get(..read).unwrap_or_default(),
            &data,
        )?,
        failed => failed
            .map(drop)
            .refused("reading the file that was removed", &[Errno::ESTALE])?,
    }
    drop(file);
    equal(
        "what the new one holds",
        std::fs::read(place.at("file")).succeeds("read")?,
        vec![9; 8192],
    )
}

/// What is gone for good is stale or not there, and never something else.
fn stale_after_removal(place: &Place) -> Outcome {
    const ROUNDS: u32 = 10;
    for round in 0..ROUNDS {
        let name = format!("file{round}");
        std::fs::write(place.at(&name), b"old").succeeds("write")?;
        let folder =
            sys::open(place.folder(), OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0).succeeds("open")?;
        sys::stat(&place.at(&name)).succeeds("stat")?;
        sys::unlink(&place.there(&name)).succeeds("unlink by the other client")?;
        // Another file gets its number, as file systems like to do.
        std::fs::write(place.there(format!("new{round}")), b"new").succeeds("write")?;
        sys::open(&place.at(&name), OFlag::O_RDONLY, 0).refused(
            "opening what the other has removed",
            &[Errno::ENOENT, Errno::ESTALE],
        )?;
        drop(folder);
    }
    Ok(())
}

fn folder_removed_by_the_other(place: &Place) -> Outcome {
    sys::mkdir(&place.at("folder"), 0o755).succeeds("mkdir")?;
    let folder =
        sys::open(&place.at("folder"), OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0).succeeds("open")?;
    sys::rmdir(&place.there("folder")).succeeds("rmdir by the other client")?;
    let made = nix::fcntl::openat(
        &folder,
        "file",
        OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC,
        nix::sys::stat::Mode::from_bits_truncate(0o644),
    );
    made.map(drop)
        .refused("creating a file in it", &[Errno::ESTALE, Errno::ENOENT])?;
    sys::mkdir(&place.there("folder"), 0o755).succeeds("mkdir by the other client")?;
    std::fs::write(place.there("folder/file"), b"new").succeeds("write")?;
    equal(
        "what is in the new one",
        std::fs::read(place.at("folder/file")).succeeds("read")?,
        b"new".to_vec(),
    )
}

fn truncated_by_the_other(place: &Place) -> Outcome {
    std::fs::write(place.at("file"), [1; 10_000]).succeeds("write")?;
    equal(
        "size",
        std::fs::read(place.there("file")).succeeds("read")?.len(),
        10_000,
    )?;
    sys::truncate(&place.there("file"), 100).succeeds("truncate by the other client")?;
    let read = std::fs::read(place.at("file")).succeeds("read")?;
    same_bytes("what is left", &read, &[1; 100])?;
    sys::truncate(&place.at("file"), 5000).succeeds("truncate")?;
    let read = std::fs::read(place.there("file")).succeeds("read by the other client")?;
    equal("size", read.len(), 5000)?;
    holds(
        "what came is zero",
        read.iter().skip(100).all(|byte| *byte == 0),
    )
}

/// A name that one client found missing is found when the other has made it, as soon as it looks at
/// the folder again: so by the second, which is mounted to look each time.
fn entries_of_the_other(place: &Place) -> Outcome {
    const ROUNDS: u32 = 10;
    for round in 0..ROUNDS {
        let name = format!("file{round}");
        let there = place.there(&name);
        sys::stat(&there).refused("stat of what is not there", &[Errno::ENOENT])?;
        let_the_clock_tick();
        std::fs::write(place.at(&name), b"x").succeeds("write by the first client")?;
        sys::open(&there, OFlag::O_RDONLY, 0).succeeds("opening what the other has made")?;
        sys::create(&there, 0o644).refused("creating it", &[Errno::EEXIST])?;
    }
    let names = sys::names(&place.there("")).succeeds("listing")?;
    equal(
        "entries",
        names.len(),
        usize::try_from(ROUNDS).unwrap_or_default(),
    )
}

/// Opening a file shows what the other has made of its attributes.
fn attributes_of_the_other(place: &Place) -> Outcome {
    std::fs::write(place.at("file"), b"x").succeeds("write")?;
    for mode in [0o600, 0o640, 0o755] {
        sys::stat(&place.at("file")).succeeds("stat")?;
        let_the_clock_tick();
        sys::chmod(&place.there("file"), mode).succeeds("chmod by the other client")?;
        let file = sys::open(&place.at("file"), OFlag::O_RDONLY, 0).succeeds("open")?;
        let found = nix::sys::stat::fstat(&file).succeeds("fstat")?;
        equal("mode", found.st_mode & 0o7777, mode)?;
    }
    Ok(())
}
