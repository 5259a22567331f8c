//! utimensat(2), and the times that files get by themselves.

use nix::errno::Errno;

use super::{Case, KINDS, Kind, case, case_that_needs, file_of_owner, let_the_clock_tick, make};
use crate::expect::{Expect, Outcome, equal, holds};
use crate::feature::Feature;
use crate::place::Place;
use crate::sys;
use crate::user::{MEMBER, OTHER, OWNER};

pub(super) const CASES: &[Case] = &[
    case("times/every-kind", every_kind),
    case("times/values", values),
    case_that_needs("times/after-2106", &[Feature::LateTimes], after_2106),
    case("times/omitted", omitted),
    case("times/permissions", permissions),
    case("times/errors", errors),
    case("times/of-writes", of_writes),
    case("times/nothing-changes-them", nothing_changes_them),
];

fn both(path: &std::path::Path) -> Outcome<((i64, i64), (i64, i64))> {
    let found = sys::lstat(path).succeeds("lstat")?;
    Ok((
        (found.st_atime, found.st_atime_nsec),
        (found.st_mtime, found.st_mtime_nsec),
    ))
}

fn every_kind(place: &Place) -> Outcome {
    for kind in KINDS {
        if kind == Kind::Symlink {
            continue;
        }
        let path = place.at(format!("{kind:?}"));
        make(kind, &path)?;
        sys::set_times(&path, (1_000_000, 7), (2_000_000, 8))
            .succeeds(format!("times of a {kind:?}"))?;
        equal(
            format!("times of a {kind:?}"),
            both(&path)?,
            ((1_000_000, 7), (2_000_000, 8)),
        )?;
    }
    Ok(())
}

/// As far as a file system of 256-byte inodes reaches, which is beyond 2038 and before 1970.
fn values(place: &Place) -> Outcome {
    let path = place.at("file");
    make(Kind::File, &path)?;
    for time in [
        (0, 0),
        (1, 999_999_999),
        (1_700_000_000, 123_456_789),
        (0x7FFF_FFFF, 1),
        (0x8000_0000, 2),
        (0xFFFF_FFFE, 3),
    ] {
        sys::set_times(&path, time, time).succeeds(format!("utimensat with {time:?}"))?;
        equal("times", both(&path)?, (time, time))?;
    }
    Ok(())
}

/// More seconds than 32 bits hold.
fn after_2106(place: &Place) -> Outcome {
    let path = place.at("file");
    make(Kind::File, &path)?;
    let time = (0x1_0000_0000, 4);
    sys::set_times(&path, time, time).succeeds("utimensat")?;
    equal("times", both(&path)?, (time, time))?;
    equal("times there", both(&place.there("file"))?, (time, time))
}

fn omitted(place: &Place) -> Outcome {
    const OMIT: (i64, i64) = (0, nix::libc::UTIME_OMIT);
    const NOW: (i64, i64) = (0, nix::libc::UTIME_NOW);
    let path = place.at("file");
    make(Kind::File, &path)?;
    sys::set_times(&path, (100, 1), (200, 2)).succeeds("utimensat")?;
    sys::set_times(&path, OMIT, (300, 3)).succeeds("utimensat of one")?;
    equal("times", both(&path)?, ((100, 1), (300, 3)))?;
    sys::set_times(&path, (400, 4), OMIT).succeeds("utimensat of the other")?;
    equal("times", both(&path)?, ((400, 4), (300, 3)))?;
    sys::set_times(&path, NOW, OMIT).succeeds("utimensat to now")?;
    let (accessed, modified) = both(&path)?;
    equal("time of modification", modified, (300, 3))?;
    holds("now is now", accessed.0 > 1_700_000_000)
}

fn permissions(place: &Place) -> Outcome {
    let path = place.at("file");
    file_of_owner(&path, 0o664, b"")?;
    OWNER.does(|| sys::set_times(&path, (1, 0), (2, 0)).succeeds("times by the owner"))?;
    // A user with the right to write may set the times to now, and to nothing else.
    MEMBER.does(|| {
        sys::set_times(&path, (1, 0), (2, 0))
            .refused("times by one who may write", &[Errno::EPERM])?;
        sys::touch(&path).succeeds("touch by one who may write")
    })?;
    OTHER.does(|| {
        sys::set_times(&path, (1, 0), (2, 0)).refused("times by another", &[Errno::EPERM])?;
        sys::touch(&path).refused("touch by one who may not write", &[Errno::EACCES])
    })
}

fn errors(place: &Place) -> Outcome {
    make(Kind::File, &place.at("file"))?;
    sys::touch(&place.at("none")).refused("touch of no file", &[Errno::ENOENT])?;
    sys::touch(&place.at("file/x")).refused("touch below a file", &[Errno::ENOTDIR])?;
    sys::set_times(&place.at("file"), (0, 1_000_000_000), (0, 0))
        .refused("a thousand million nanoseconds", &[Errno::EINVAL])
}

fn of_writes(place: &Place) -> Outcome {
    use std::os::unix::fs::FileExt;
    let path = place.at("file");
    let file = sys::create(&path, 0o644).succeeds("creating a file")?;
    let before = both(&path)?.1;
    let_the_clock_tick();
    file.write_all_at(b"text", 0).succeeds("write")?;
    file.sync_all().succeeds("fsync")?;
    let written = both(&path)?.1;
    holds("a write changes the time of modification", written > before)?;
    let change = |path: &std::path::Path| {
        sys::stat(path)
            .succeeds("stat")
            .map(|found| (found.st_ctime, found.st_ctime_nsec))
    };
    let changed = change(&path)?;
    let_the_clock_tick();
    sys::chmod(&path, 0o600).succeeds("chmod")?;
    equal("time of modification after chmod", both(&path)?.1, written)?;
    holds("chmod changes the change time", change(&path)? > changed)?;
    // What another client sees is the same.
    equal("times there", both(&place.there("file"))?.1, written)
}

/// Reading and refused operations leave times of modification and of change as they are.
fn nothing_changes_them(place: &Place) -> Outcome {
    let path = place.at("file");
    file_of_owner(&path, 0o644, b"text")?;
    let before = sys::stat(&path).succeeds("stat")?;
    let_the_clock_tick();
    std::fs::read(&path).succeeds("read")?;
    OTHER.does(|| {
        sys::chmod(&path, 0o777).refused("chmod", &[Errno::EPERM])?;
        sys::truncate(&path, 0).refused("truncate", &[Errno::EACCES])?;
        sys::chown(&path, Some(OTHER.uid), None).refused("chown", &[Errno::EPERM])
    })?;
    let after = sys::stat(&path).succeeds("stat")?;
    equal(
        "times of modification and of change",
        (
            after.st_mtime,
            after.st_mtime_nsec,
            after.st_ctime,
            after.st_ctime_nsec,
        ),
        (
            before.st_mtime,
            before.st_mtime_nsec,
            before.st_ctime,
            before.st_ctime_nsec,
        ),
    )
}
