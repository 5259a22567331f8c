//! truncate(2) and ftruncate(2).

use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::{Case, Kind, case, file_of_owner, folder_of, let_the_clock_tick, make};
use crate::expect::{Expect, Outcome, equal, holds, same_bytes};
use crate::place::Place;
use crate::random::Random;
use crate::sys;
use crate::user::{OTHER, OWNER};

pub(super) const CASES: &[Case] = &[
    case("truncate/sizes", sizes),
    case("truncate/what-was-cut-is-zero", what_was_cut_is_zero),
    case("truncate/permissions", permissions),
    case("truncate/by-descriptor", by_descriptor),
    case("truncate/errors", errors),
];

fn sizes(place: &Place) -> Outcome {
    let path = place.at("file");
    make(Kind::File, &path)?;
    for bytes in [1, 4095, 4096, 4097, 1 << 20, (1 << 32) + 1, 12_345, 0] {
        let before = sys::stat(&path).succeeds("stat")?;
        let_the_clock_tick();
        sys::truncate(&path, bytes).succeeds(format!("truncate to {bytes}"))?;
        let after = sys::stat(&place.there("file")).succeeds("stat")?;
        equal("size", after.st_size, bytes)?;
        holds(
            "truncate changes both times",
            (after.st_mtime, after.st_mtime_nsec) > (before.st_mtime, before.st_mtime_nsec)
                && (after.st_ctime, after.st_ctime_nsec) > (before.st_ctime, before.st_ctime_nsec),
        )?;
    }
    Ok(())
}

fn what_was_cut_is_zero(place: &Place) -> Outcome {
    let path = place.at("file");
    let data = Random::new(5).bytes(10_000);
    std::fs::write(&path, &data).succeeds("write")?;
    sys::truncate(&path, 3333).succeeds("truncate")?;
    sys::truncate(&path, 20_000).succeeds("truncate")?;
    let mut expected = data;
    expected.truncate(3333);
    expected.resize(20_000, 0);
    same_bytes("here", &std::fs::read(&path).succeeds("read")?, &expected)?;
    same_bytes(
        "there",
        &std::fs::read(place.there("file")).succeeds("read")?,
        &expected,
    )
}

fn permissions(place: &Place) -> Outcome {
    let path = place.at("file");
    file_of_owner(&path, 0o644, b"text")?;
    OTHER.does(|| {
        sys::truncate(&path, 0).refused("truncate of a file one may not write", &[Errno::EACCES])
    })?;
    OWNER.does(|| sys::truncate(&path, 2).succeeds("truncate by the owner"))?;
    sys::chmod(&path, 0o444).succeeds("chmod")?;
    OWNER.does(|| {
        sys::truncate(&path, 0).refused("truncate of a read-only file", &[Errno::EACCES])
    })?;
    folder_of(OWNER, &place.at("closed"), 0o700)?;
    file_of_owner(&place.at("closed/file"), 0o666, b"")?;
    OTHER.does(|| {
        sys::truncate(&place.at("closed/file"), 0)
            .refused("truncate in a folder one may not search", &[Errno::EACCES])
    })
}

/// A descriptor that can write may cut, whatever the mode is by then.
fn by_descriptor(place: &Place) -> Outcome {
    let path = place.at("file");
    file_of_owner(&path, 0o644, b"some text")?;
    OWNER.does(|| {
        let file = sys::open(&path, OFlag::O_RDWR, 0).succeeds("open")?;
        sys::chmod(&path, 0o444).succeeds("chmod")?;
        nix::unistd::ftruncate(&file, 4)
            .succeeds("ftruncate of a file that is read-only by now")?;
        file.write_all_at(b"S", 0).succeeds("writing to it")?;
        sys::close(file).succeeds("close")?;
        let file = sys::open(&path, OFlag::O_RDONLY, 0).succeeds("open")?;
        nix::unistd::ftruncate(&file, 0)
            .refused("ftruncate by a descriptor that reads", &[Errno::EINVAL])
    })?;
    equal(
        "what it holds",
        std::fs::read(&path).succeeds("read")?,
        b"Some".to_vec(),
    )
}

fn errors(place: &Place) -> Outcome {
    make(Kind::File, &place.at("file"))?;
    make(Kind::Folder, &place.at("folder"))?;
    sys::truncate(&place.at("none"), 0).refused("truncate of no file", &[Errno::ENOENT])?;
    sys::truncate(&place.at("file/x"), 0).refused("truncate below a file", &[Errno::ENOTDIR])?;
    sys::truncate(&place.at("folder"), 0).refused("truncate of a folder", &[Errno::EISDIR])?;
    sys::truncate(&place.at("file"), -1).refused("truncate to -1", &[Errno::EINVAL])
}
