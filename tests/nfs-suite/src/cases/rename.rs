//! rename(2).

use nix::errno::Errno;

use super::{Case, KINDS, Kind, case, file_of_owner, folder_of, make};
use crate::expect::{Expect, Failure, Outcome, equal};
use crate::place::Place;
use crate::sys;
use crate::user::{MEMBER, OTHER, OWNER};

pub(super) const CASES: &[Case] = &[
    case("rename/every-kind", every_kind),
    case("rename/over-each-other", over_each_other),
    case("rename/links-of-one-file", links_of_one_file),
    case("rename/folders", folders),
    case("rename/errors", errors),
    case("rename/permissions", permissions),
    case("rename/sticky-folder", sticky_folder),
    case("rename/is-atomic", is_atomic),
];

fn every_kind(place: &Place) -> Outcome {
    sys::mkdir(&place.at("other"), 0o755).succeeds("mkdir")?;
    for kind in KINDS {
        let (old, new) = (
            place.at(format!("{kind:?}")),
            place.at(format!("other/{kind:?}")),
        );
        make(kind, &old)?;
        let before = sys::lstat(&old).succeeds("lstat")?;
        sys::rename(&old, &new).succeeds(format!("rename of a {kind:?}"))?;
        sys::lstat(&old).refused("lstat of the old name", &[Errno::ENOENT])?;
        let after = sys::lstat(&new).succeeds("lstat of the new name")?;
        equal(
            "file ID and mode",
            (after.st_ino, after.st_mode),
            (before.st_ino, before.st_mode),
        )?;
        let there = sys::lstat(&place.there(format!("other/{kind:?}"))).succeeds("lstat there")?;
        equal("file ID there", there.st_ino, before.st_ino)?;
    }
    Ok(())
}

/// What may take whose place: files of any kind that of each other, folders that of empty folders.
fn over_each_other(place: &Place) -> Outcome {
    for from in KINDS {
        for onto in KINDS {
            let what = format!("rename of a {from:?} onto a {onto:?}");
            let (old, new) = (place.at("old"), place.at("new"));
            make(from, &old)?;
            make(onto, &new)?;
            let before = sys::lstat(&old).succeeds("lstat")?;
            let renamed = sys::rename(&old, &new);
            match (from == Kind::Folder, onto == Kind::Folder) {
                (true, false) => renamed.refused(&what, &[Errno::ENOTDIR])?,
                (false, true) => renamed.refused(&what, &[Errno::EISDIR])?,
                _ => {
                    renamed.succeeds(&what)?;
                    equal(
                        &what,
                        sys::lstat(&new).succeeds("lstat")?.st_ino,
                        before.st_ino,
                    )?;
                    sys::lstat(&old).refused("lstat of the old name", &[Errno::ENOENT])?;
                }
            }
            for path in [old, new] {
                if let Ok(left) = sys::lstat(&path) {
                    let is_folder = left.st_mode & 0o170_000 == 0o040_000;
                    if is_folder {
                        sys::rmdir(&path)
                    } else {
                        sys::unlink(&path)
                    }
                    .succeeds("removing")?;
                }
            }
        }
    }
    Ok(())
}

/// Two names of one file: nothing is done.
fn links_of_one_file(place: &Place) -> Outcome {
    make(Kind::File, &place.at("first"))?;
    sys::link(&place.at("first"), &place.at("second")).succeeds("link")?;
    sys::rename(&place.at("first"), &place.at("second")).succeeds("rename")?;
    equal(
        "links",
        sys::stat(&place.at("first"))
            .succeeds("stat of the first")?
            .st_nlink,
        2,
    )?;
    sys::stat(&place.at("second")).succeeds("stat of the second")?;
    sys::rename(&place.at("first"), &place.at("first")).succeeds("rename to itself")
}

fn folders(place: &Place) -> Outcome {
    sys::mkdir(&place.at("a"), 0o755).succeeds("mkdir")?;
    sys::mkdir(&place.at("a/b"), 0o755).succeeds("mkdir")?;
    sys::mkdir(&place.at("other"), 0o755).succeeds("mkdir")?;
    make(Kind::File, &place.at("a/b/file"))?;
    sys::rename(&place.at("a"), &place.at("a/b/c"))
        .refused("rename into itself", &[Errno::EINVAL])?;
    sys::rename(&place.at("a/b"), &place.at("a"))
        .refused("rename onto its parent", &[Errno::ENOTEMPTY, Errno::EEXIST])?;
    make(Kind::File, &place.at("other/file"))?;
    sys::rename(&place.at("a"), &place.at("other")).refused(
        "rename onto a folder with something in it",
        &[Errno::ENOTEMPTY, Errno::EEXIST],
    )?;
    sys::rename(&place.at("a/b"), &place.at("other/b")).succeeds("rename into another folder")?;
    sys::stat(&place.at("other/b/file")).succeeds("what is in it")?;
    equal(
        "links of the old parent",
        sys::stat(&place.at("a")).succeeds("stat")?.st_nlink,
        2,
    )?;
    equal(
        "links of the new one",
        sys::stat(&place.at("other")).succeeds("stat")?.st_nlink,
        3,
    )?;
    // `..` is where it is now.
    let parent = sys::stat(&place.at("other/b/..")).succeeds("stat of ..")?;
    equal(
        "file ID of ..",
        parent.st_ino,
        sys::stat(&place.at("other")).succeeds("stat")?.st_ino,
    )
}

fn errors(place: &Place) -> Outcome {
    make(Kind::File, &place.at("file"))?;
    let (file, long) = (place.at("file"), place.at("x".repeat(256)));
    for (old, new, error, what) in [
        (
            place.at("none"),
            place.at("new"),
            Errno::ENOENT,
            "of no file",
        ),
        (
            file.clone(),
            place.at("none/new"),
            Errno::ENOENT,
            "into no folder",
        ),
        (
            file.clone(),
            place.at("file/new"),
            Errno::ENOTDIR,
            "below a file",
        ),
        (
            place.at("file/old"),
            place.at("new"),
            Errno::ENOTDIR,
            "from below a file",
        ),
        (
            file.clone(),
            long.clone(),
            Errno::ENAMETOOLONG,
            "to a name of 256 bytes",
        ),
        (
            long,
            place.at("new"),
            Errno::ENAMETOOLONG,
            "of a name of 256 bytes",
        ),
        (place.at("."), place.at("new"), Errno::EBUSY, "of ."),
    ] {
        sys::rename(&old, &new).refused(format!("rename {what}"), &[error])?;
    }
    sys::stat(&file).succeeds("the file").map(drop)
}

fn permissions(place: &Place) -> Outcome {
    folder_of(OWNER, &place.at("closed"), 0o755)?;
    folder_of(OTHER, &place.at("own"), 0o755)?;
    file_of_owner(&place.at("closed/file"), 0o666, b"")?;
    file_of_owner(&place.at("own/file"), 0o666, b"")?;
    OTHER.does(|| {
        sys::rename(&place.at("closed/file"), &place.at("own/new"))
            .refused("rename out of a folder one may not write", &[Errno::EACCES])?;
        sys::rename(&place.at("own/file"), &place.at("closed/new"))
            .refused("rename into a folder one may not write", &[Errno::EACCES])?;
        sys::rename(&place.at("own/file"), &place.at("own/new"))
            .succeeds("rename of another's file in one's own folder")
    })
}

fn sticky_folder(place: &Place) -> Outcome {
    let folder = place.at("sticky");
    folder_of(OWNER, &folder, 0o1777)?;
    OTHER.does(|| {
        sys::create(&folder.join("theirs"), 0o666)
            .succeeds("creating a file")
            .map(drop)
    })?;
    MEMBER.does(|| {
        sys::create(&folder.join("mine"), 0o666).succeeds("creating a file")?;
        let refused = &[Errno::EPERM, Errno::EACCES];
        sys::rename(&folder.join("theirs"), &folder.join("new"))
            .refused("rename of another's file in a sticky folder", refused)?;
        sys::rename(&folder.join("mine"), &folder.join("theirs"))
            .refused("rename onto another's file in a sticky folder", refused)?;
        sys::rename(&folder.join("mine"), &folder.join("new")).succeeds("rename of one's own file")
    })
}

/// While a name gets one file after the other, it always has one, with all that this holds.
fn is_atomic(place: &Place) -> Outcome {
    use std::sync::atomic::{AtomicBool, Ordering};
    const ROUNDS: u32 = 100;
    const BYTES: usize = 4096;
    let done = AtomicBool::new(false);
    std::fs::write(place.at("name"), [0; BYTES]).succeeds("write")?;
    let (replaced, looked) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> Outcome<u32> {
            let mut looks = 0;
            while !done.load(Ordering::Relaxed) {
                let held =
                    std::fs::read(place.at("name")).succeeds("reading while it is replaced")?;
                let first = held.first().copied().unwrap_or_default();
                if held.len() != BYTES || held.iter().any(|byte| *byte != first) {
                    return Err(Failure::new("a file that is replaced was read in parts"));
                }
                looks += 1;
            }
            Ok(looks)
        });
        let replaced = (1..=ROUNDS).try_for_each(|round| {
            let byte = u8::try_from(round % 250).unwrap_or_default();
            std::fs::write(place.at("new"), [byte; BYTES]).succeeds("write")?;
            sys::rename(&place.at("new"), &place.at("name")).succeeds("rename")
        });
        done.store(true, Ordering::Relaxed);
        let looked = reader
            .join()
            .unwrap_or_else(|_panic| Err(Failure::new("the reader panicked")));
        (replaced, looked)
    });
    replaced?;
    looked.map(drop)
}
