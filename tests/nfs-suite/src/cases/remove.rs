//! unlink(2) and rmdir(2).

use nix::errno::Errno;

use super::{Case, KINDS, Kind, case, file_of_owner, folder_of, let_the_clock_tick, make};
use crate::expect::{Expect, Outcome, equal, holds};
use crate::place::Place;
use crate::sys;
use crate::user::{MEMBER, OTHER, OWNER};

pub(super) const CASES: &[Case] = &[
    case("remove/every-kind", every_kind),
    case("remove/errors", errors),
    case("remove/folder-that-is-not-empty", folder_that_is_not_empty),
    case("remove/permissions", permissions),
    case("remove/sticky-folder", sticky_folder),
    case("remove/link-and-not-its-target", link_and_not_its_target),
];

fn every_kind(place: &Place) -> Outcome {
    for kind in KINDS {
        let path = place.at(format!("{kind:?}"));
        make(kind, &path)?;
        let before = sys::stat(place.folder()).succeeds("stat")?;
        let_the_clock_tick();
        if kind == Kind::Folder {
            sys::unlink(&path).refused("unlink of a folder", &[Errno::EISDIR])?;
            sys::rmdir(&path).succeeds("rmdir")?;
        } else {
            sys::rmdir(&path).refused(format!("rmdir of a {kind:?}"), &[Errno::ENOTDIR])?;
            sys::unlink(&path).succeeds(format!("unlink of a {kind:?}"))?;
        }
        sys::lstat(&path).refused("lstat of what is gone", &[Errno::ENOENT])?;
        let after = sys::stat(place.folder()).succeeds("stat")?;
        holds(
            format!("removing a {kind:?} changes its folder's times"),
            (after.st_mtime, after.st_mtime_nsec) > (before.st_mtime, before.st_mtime_nsec),
        )?;
    }
    equal(
        "links of the folder",
        sys::stat(place.folder()).succeeds("stat")?.st_nlink,
        2,
    )
}

fn errors(place: &Place) -> Outcome {
    make(Kind::File, &place.at("file"))?;
    for (name, error) in [
        ("none".to_owned(), Errno::ENOENT),
        ("none/x".to_owned(), Errno::ENOENT),
        ("file/x".to_owned(), Errno::ENOTDIR),
        ("x".repeat(256), Errno::ENAMETOOLONG),
    ] {
        let short = name.get(..8).unwrap_or(&name);
        sys::unlink(&place.at(&name)).refused(format!("unlink of {short}"), &[error])?;
        sys::rmdir(&place.at(&name)).refused(format!("rmdir of {short}"), &[error])?;
    }
    make(Kind::Folder, &place.at("folder"))?;
    sys::rmdir(&place.at("folder/.")).refused("rmdir of .", &[Errno::EINVAL])?;
    sys::rmdir(&place.at("folder/..")).refused("rmdir of ..", &[Errno::ENOTEMPTY])
}

fn folder_that_is_not_empty(place: &Place) -> Outcome {
    for kind in KINDS {
        let folder = place.at(format!("with-{kind:?}"));
        sys::mkdir(&folder, 0o755).succeeds("mkdir")?;
        make(kind, &folder.join("entry"))?;
        sys::rmdir(&folder).refused(
            format!("rmdir with a {kind:?}"),
            &[Errno::ENOTEMPTY, Errno::EEXIST],
        )?;
        sys::lstat(&folder.join("entry")).succeeds("what is in it")?;
    }
    Ok(())
}

fn permissions(place: &Place) -> Outcome {
    let folder = place.at("folder");
    folder_of(OWNER, &folder, 0o755)?;
    file_of_owner(&folder.join("file"), 0o666, b"")?;
    folder_of(OTHER, &folder.join("in"), 0o777)?;
    for user in [MEMBER, OTHER] {
        user.does(|| {
            sys::unlink(&folder.join("file"))
                .refused("unlink in a folder one may not write", &[Errno::EACCES])?;
            sys::rmdir(&folder.join("in"))
                .refused("rmdir in a folder one may not write", &[Errno::EACCES])
        })?;
    }
    // What a file's mode is does not matter.
    sys::chmod(&folder, 0o775).succeeds("chmod")?;
    sys::chmod(&folder.join("file"), 0).succeeds("chmod")?;
    MEMBER.does(|| {
        sys::unlink(&folder.join("file")).succeeds("unlink by a member")?;
        sys::rmdir(&folder.join("in")).succeeds("rmdir by a member")
    })
}

fn sticky_folder(place: &Place) -> Outcome {
    let folder = place.at("sticky");
    folder_of(OWNER, &folder, 0o1777)?;
    sys::create(&folder.join("of-root"), 0o666).succeeds("creating a file")?;
    OTHER.does(|| {
        sys::create(&folder.join("mine"), 0o666).succeeds("creating a file")?;
        sys::mkdir(&folder.join("my-folder"), 0o777).succeeds("mkdir")
    })?;
    MEMBER.does(|| {
        for name in ["of-root", "mine"] {
            sys::unlink(&folder.join(name)).refused(
                format!("unlink of {name} in a sticky folder"),
                &[Errno::EPERM, Errno::EACCES],
            )?;
        }
        sys::rmdir(&folder.join("my-folder"))
            .refused("rmdir in a sticky folder", &[Errno::EPERM, Errno::EACCES])
    })?;
    OTHER.does(|| {
        sys::unlink(&folder.join("mine")).succeeds("unlink of one's own file")?;
        sys::rmdir(&folder.join("my-folder")).succeeds("rmdir of one's own folder")
    })?;
    OWNER.does(|| sys::unlink(&folder.join("of-root")).succeeds("unlink in one's own folder"))
}

fn link_and_not_its_target(place: &Place) -> Outcome {
    make(Kind::File, &place.at("target-of-a-link"))?;
    make(Kind::Symlink, &place.at("link"))?;
    sys::unlink(&place.at("link")).succeeds("unlink of a link")?;
    sys::stat(&place.at("target-of-a-link"))
        .succeeds("stat of what it pointed at")
        .map(drop)
}
