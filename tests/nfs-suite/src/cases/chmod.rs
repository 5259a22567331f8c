//! chmod(2): which users may, and what becomes of the special bits.

use nix::errno::Errno;

use super::{Case, KINDS, Kind, case, file_of_owner, folder_of, let_the_clock_tick, make};
use crate::expect::{Expect, Outcome, equal, holds};
use crate::place::Place;
use crate::sys;
use crate::user::{MEMBER, OTHER, OWNER};

pub(super) const CASES: &[Case] = &[
    case("chmod/every-kind", every_kind),
    case("chmod/only-the-owner", only_the_owner),
    case("chmod/errors", errors),
    case("chmod/sticky-and-set-id", sticky_and_set_id),
    case(
        "chmod/set-gid-of-a-foreign-group",
        set_gid_of_a_foreign_group,
    ),
    case("chmod/writing-clears-set-id", writing_clears_set_id),
    case(
        "chmod/permission-to-read-and-write",
        permission_to_read_and_write,
    ),
    case("chmod/permission-to-execute", permission_to_execute),
    case("chmod/permission-to-search", permission_to_search),
];

fn every_kind(place: &Place) -> Outcome {
    for kind in KINDS {
        if kind == Kind::Symlink {
            continue;
        }
        let path = place.at(format!("{kind:?}"));
        make(kind, &path)?;
        let before = sys::lstat(&path).succeeds("stat")?;
        let_the_clock_tick();
        sys::chmod(&path, 0o111).succeeds(format!("chmod of a {kind:?}"))?;
        equal(
            format!("mode of a {kind:?}"),
            sys::permissions(&path).succeeds("stat")?,
            0o111,
        )?;
        let after = sys::lstat(&path).succeeds("stat")?;
        holds(
            format!("chmod of a {kind:?} changes the change time"),
            (after.st_ctime, after.st_ctime_nsec) > (before.st_ctime, before.st_ctime_nsec),
        )?;
        equal(
            format!("type of a {kind:?}"),
            after.st_mode & 0o170_000,
            before.st_mode & 0o170_000,
        )?;
    }
    // By a link, what it points at changes.
    make(Kind::File, &place.at("target-of-a-link"))?;
    make(Kind::Symlink, &place.at("Symlink"))?;
    sys::chmod(&place.at("Symlink"), 0o321).succeeds("chmod through a link")?;
    equal(
        "mode",
        sys::permissions(&place.at("target-of-a-link")).succeeds("stat")?,
        0o321,
    )
}

fn only_the_owner(place: &Place) -> Outcome {
    let path = place.at("file");
    file_of_owner(&path, 0o666, b"")?;
    OWNER.does(|| sys::chmod(&path, 0o640).succeeds("chmod by the owner"))?;
    equal("mode", sys::permissions(&path).succeeds("stat")?, 0o640)?;
    for (user, who) in [(MEMBER, "a member of the group"), (OTHER, "another user")] {
        user.does(|| sys::chmod(&path, 0o777).refused(format!("chmod by {who}"), &[Errno::EPERM]))?;
    }
    equal("mode", sys::permissions(&path).succeeds("stat")?, 0o640)
}

fn errors(place: &Place) -> Outcome {
    sys::chmod(&place.at("none"), 0o644).refused("chmod of no file", &[Errno::ENOENT])?;
    make(Kind::File, &place.at("file"))?;
    sys::chmod(&place.at("file/x"), 0o644).refused("chmod below a file", &[Errno::ENOTDIR])?;
    sys::chmod(&place.at("x".repeat(256)), 0o644)
        .refused("chmod of a name of 256 bytes", &[Errno::ENAMETOOLONG])?;
    folder_of(OWNER, &place.at("closed"), 0o700)?;
    file_of_owner(&place.at("closed/file"), 0o644, b"")?;
    OTHER.does(|| {
        sys::chmod(&place.at("closed/file"), 0o644).refused(
            "chmod in a folder that may not be searched",
            &[Errno::EACCES],
        )
    })
}

fn sticky_and_set_id(place: &Place) -> Outcome {
    let folder = place.at("folder");
    folder_of(OWNER, &folder, 0o755)?;
    for mode in [0o1755, 0o2755, 0o3777, 0o755] {
        sys::chmod(&folder, mode).succeeds("chmod of a folder")?;
        equal(
            "mode of a folder",
            sys::permissions(&folder).succeeds("stat")?,
            mode,
        )?;
    }
    let file = place.at("file");
    file_of_owner(&file, 0o755, b"")?;
    for mode in [0o4755, 0o2755, 0o6711, 0o755] {
        OWNER.does(|| sys::chmod(&file, mode).succeeds("chmod of one's own file"))?;
        equal(
            "mode of a file",
            sys::permissions(&file).succeeds("stat")?,
            mode,
        )?;
    }
    Ok(())
}

/// A user outside a file's group cannot set its set-group-ID bit.
fn set_gid_of_a_foreign_group(place: &Place) -> Outcome {
    let path = place.at("file");
    file_of_owner(&path, 0o755, b"")?;
    sys::chown(&path, None, Some(OTHER.gid)).succeeds("chgrp by root")?;
    OWNER.does(|| sys::chmod(&path, 0o2755).succeeds("chmod"))?;
    equal("mode", sys::permissions(&path).succeeds("stat")?, 0o755)
}

/// What is written by another than root makes a program one without special rights.
fn writing_clears_set_id(place: &Place) -> Outcome {
    use std::os::unix::fs::FileExt;
    let path = place.at("file");
    file_of_owner(&path, 0o6777, b"program")?;
    OTHER.does(|| {
        let file =
            sys::open(&path, nix::fcntl::OFlag::O_WRONLY, 0).succeeds("opening it to write")?;
        file.write_all_at(b"x", 0).succeeds("write")?;
        sys::close(file).succeeds("close")
    })?;
    let mode = sys::stat(&place.there("file")).succeeds("stat")?.st_mode & 0o7777;
    equal("mode after another user has written", mode, 0o777)
}

fn permission_to_read_and_write(place: &Place) -> Outcome {
    use nix::fcntl::OFlag;
    let path = place.at("file");
    file_of_owner(&path, 0, b"")?;
    // Mode, and whether the owner, a member of the group and another may read, and write.
    let table = [
        (0o400, [(true, false), (false, false), (false, false)]),
        (0o200, [(false, true), (false, false), (false, false)]),
        (0o640, [(true, true), (true, false), (false, false)]),
        (0o066, [(false, false), (true, true), (true, true)]),
        (0o604, [(true, true), (false, false), (true, false)]),
        (0o002, [(false, false), (false, false), (false, true)]),
    ];
    for (mode, may) in table {
        sys::chmod(&path, mode).succeeds("chmod")?;
        for ((user, who), (read, write)) in [(OWNER, "owner"), (MEMBER, "member"), (OTHER, "other")]
            .into_iter()
            .zip(may)
        {
            for (flags, permitted, how) in [
                (OFlag::O_RDONLY, read, "read"),
                (OFlag::O_WRONLY, write, "write"),
                (OFlag::O_RDWR, read && write, "read and write"),
            ] {
                let what = format!("open to {how} of mode {mode:04o} by {who}");
                user.does(|| {
                    let opened = sys::open(&path, flags, 0);
                    if permitted {
                        opened.succeeds(&what).map(drop)
                    } else {
                        opened.refused(&what, &[Errno::EACCES])
                    }
                })?;
            }
        }
    }
    Ok(())
}

/// What may be executed and not be read runs all the same, though a server has to be asked for its
/// data.
fn permission_to_execute(place: &Place) -> Outcome {
    let path = place.at("program");
    let program = std::fs::read("/bin/true").succeeds("reading /bin/true")?;
    file_of_owner(&path, 0o711, &program)?;
    for (mode, user, who) in [(0o711, OTHER, "another user"), (0o100, OWNER, "its owner")] {
        sys::chmod(&path, mode).succeeds("chmod")?;
        user.does(|| {
            let run = std::process::Command::new(&path).status();
            let ended = run.succeeds(format!("running a program of mode {mode:04o} by {who}"))?;
            holds(format!("the program ends with {ended}"), ended.success())?;
            sys::open(&path, nix::fcntl::OFlag::O_RDONLY, 0)
                .refused(format!("reading it by {who}"), &[Errno::EACCES])
        })?;
    }
    sys::chmod(&path, 0o644).succeeds("chmod")?;
    OTHER.does(|| {
        std::process::Command::new(&path)
            .status()
            .refused("running a program of mode 0644", &[Errno::EACCES])
    })
}

fn permission_to_search(place: &Place) -> Outcome {
    let folder = place.at("folder");
    folder_of(OWNER, &folder, 0o755)?;
    file_of_owner(&folder.join("file"), 0o644, b"")?;
    let look = |user: crate::user::User, list: bool, search: bool, what: &str| {
        user.does(|| {
            let listed = std::fs::read_dir(&folder).map(Iterator::count);
            let found = sys::stat(&folder.join("file"));
            if list {
                equal("entries", listed.succeeds(format!("listing: {what}"))?, 1)?;
            } else {
                listed.refused(format!("listing: {what}"), &[Errno::EACCES])?;
            }
            if search {
                found.succeeds(format!("stat: {what}")).map(drop)
            } else {
                found.refused(format!("stat: {what}"), &[Errno::EACCES])
            }
        })
    };
    look(OTHER, true, true, "mode 755, other")?;
    sys::chmod(&folder, 0o751).succeeds("chmod")?;
    look(OTHER, false, true, "mode 751, other")?;
    look(MEMBER, true, true, "mode 751, member")?;
    sys::chmod(&folder, 0o704).succeeds("chmod")?;
    look(OTHER, true, false, "mode 704, other")?;
    look(MEMBER, false, false, "mode 704, member")?;
    sys::chmod(&folder, 0o077).succeeds("chmod")?;
    look(OWNER, false, false, "mode 077, owner")
}
