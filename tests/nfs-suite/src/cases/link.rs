//! link(2).

use nix::errno::Errno;

use super::{Case, KINDS, Kind, case, file_of_owner, folder_of, let_the_clock_tick, make};
use crate::expect::{Expect, Outcome, equal, holds};
use crate::place::Place;
use crate::sys;
use crate::user::{OTHER, OWNER};

pub(super) const CASES: &[Case] = &[
    case("link/every-kind", every_kind),
    case("link/one-file", one_file),
    case("link/errors", errors),
    case("link/permissions", permissions),
    case("link/many", many),
];

fn every_kind(place: &Place) -> Outcome {
    for kind in KINDS {
        let (first, second) = (
            place.at(format!("{kind:?}1")),
            place.at(format!("{kind:?}2")),
        );
        make(kind, &first)?;
        if kind == Kind::Folder {
            sys::link(&first, &second).refused("link of a folder", &[Errno::EPERM])?;
            continue;
        }
        let before = sys::lstat(&first).succeeds("lstat")?;
        let_the_clock_tick();
        sys::link(&first, &second).succeeds(format!("link of a {kind:?}"))?;
        let after = sys::lstat(&first).succeeds("lstat")?;
        let linked = sys::lstat(&second).succeeds("lstat")?;
        equal("file ID", linked.st_ino, before.st_ino)?;
        equal("links", (after.st_nlink, linked.st_nlink), (2, 2))?;
        holds(
            "link changes the change time",
            (after.st_ctime, after.st_ctime_nsec) > (before.st_ctime, before.st_ctime_nsec),
        )?;
        sys::unlink(&first).succeeds("unlink")?;
        equal(
            "links that are left",
            sys::lstat(&second).succeeds("lstat")?.st_nlink,
            1,
        )?;
    }
    Ok(())
}

/// What is done by one name is seen by the other.
fn one_file(place: &Place) -> Outcome {
    let (first, second) = (place.at("first"), place.at("second"));
    std::fs::write(&first, b"text").succeeds("write")?;
    sys::link(&first, &second).succeeds("link")?;
    sys::chmod(&first, 0o600).succeeds("chmod")?;
    sys::chown(&second, Some(61_010), Some(61_011)).succeeds("chown")?;
    let found = (
        sys::stat(&first).succeeds("stat")?,
        sys::stat(&second).succeeds("stat")?,
    );
    equal("modes", found.0.st_mode, found.1.st_mode)?;
    equal("owners", (found.0.st_uid, found.0.st_gid), (61_010, 61_011))?;
    std::fs::write(&second, b"longer text").succeeds("write")?;
    equal(
        "what the first name has",
        std::fs::read(&first).succeeds("read")?,
        b"longer text".to_vec(),
    )
}

fn errors(place: &Place) -> Outcome {
    make(Kind::File, &place.at("file"))?;
    make(Kind::Folder, &place.at("folder"))?;
    let file = place.at("file");
    sys::link(&place.at("none"), &place.at("new")).refused("link of no file", &[Errno::ENOENT])?;
    sys::link(&file, &file).refused("link to itself", &[Errno::EEXIST])?;
    sys::link(&file, &place.at("folder")).refused("link on a folder", &[Errno::EEXIST])?;
    sys::link(&file, &place.at("none/new")).refused("link into no folder", &[Errno::ENOENT])?;
    sys::link(&file, &place.at("file/new")).refused("link below a file", &[Errno::ENOTDIR])?;
    sys::link(&file, &place.at("x".repeat(256)))
        .refused("link to a name of 256 bytes", &[Errno::ENAMETOOLONG])?;
    equal("links", sys::stat(&file).succeeds("stat")?.st_nlink, 1)
}

fn permissions(place: &Place) -> Outcome {
    folder_of(OWNER, &place.at("closed"), 0o755)?;
    folder_of(OTHER, &place.at("own"), 0o755)?;
    file_of_owner(&place.at("closed/file"), 0o666, b"")?;
    file_of_owner(&place.at("own/file"), 0o666, b"")?;
    sys::chown(&place.at("own/file"), Some(OTHER.uid), None).succeeds("chown")?;
    OTHER.does(|| {
        sys::link(&place.at("own/file"), &place.at("closed/new"))
            .refused("link into a folder one may not write", &[Errno::EACCES])?;
        sys::link(&place.at("own/file"), &place.at("own/new")).succeeds("link of one's own file")
    })?;
    sys::chmod(&place.at("closed"), 0o700).succeeds("chmod")?;
    OTHER.does(|| {
        sys::link(&place.at("closed/file"), &place.at("own/other"))
            .refused("link out of a folder one may not search", &[Errno::EACCES])
    })
}

fn many(place: &Place) -> Outcome {
    const LINKS: u32 = 200;
    make(Kind::File, &place.at("file"))?;
    for number in 0..LINKS {
        sys::link(&place.at("file"), &place.at(format!("link{number}"))).succeeds("link")?;
    }
    let links = u64::from(LINKS) + 1;
    equal(
        "links",
        sys::stat(&place.there("file")).succeeds("stat")?.st_nlink,
        links,
    )?;
    for number in 0..LINKS {
        sys::unlink(&place.at(format!("link{number}"))).succeeds("unlink")?;
    }
    equal(
        "links",
        sys::stat(&place.at("file")).succeeds("stat")?.st_nlink,
        1,
    )
}
