//! open(2) with O_CREAT, mkdir(2), mkfifo(2), mknod(2) and symlink(2): what is made, with
//! which owner, and where it may be.

use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::SFlag;

use super::{
    Case, KINDS, Kind, case, file_of_owner, folder_of, let_the_clock_tick, make, type_bits,
};
use crate::expect::{Expect, Failure, Outcome, equal, holds};
use crate::place::Place;
use crate::sys;
use crate::user::{MEMBER, OTHER, OWNER};

pub(super) const CASES: &[Case] = &[
    case("create/every-kind", every_kind),
    case("create/mode-and-owner", mode_and_owner),
    case(
        "create/group-of-a-set-gid-folder",
        group_of_a_set_gid_folder,
    ),
    case(
        "create/in-a-folder-one-may-not-write",
        in_a_folder_one_may_not_write,
    ),
    case("create/errors", errors),
    case("create/what-is-there", what_is_there),
    case("create/open-flags", open_flags),
    case("create/mode-without-permissions", mode_without_permissions),
    case("create/devices-of-root-only", devices_of_root_only),
    case("create/device-numbers", device_numbers),
    case("create/exclusive-once", exclusive_once),
    case("create/open-of-folders", open_of_folders),
];

fn every_kind(place: &Place) -> Outcome {
    for kind in KINDS {
        let folder = sys::stat(place.folder()).succeeds("stat")?;
        let_the_clock_tick();
        let path = place.at(format!("{kind:?}"));
        make(kind, &path)?;
        let found = sys::lstat(&path).succeeds("lstat")?;
        equal(
            format!("type of a {kind:?}"),
            found.st_mode & 0o170_000,
            type_bits(kind),
        )?;
        let after = sys::stat(place.folder()).succeeds("stat")?;
        holds(
            format!("a new {kind:?} changes its folder's times"),
            (after.st_mtime, after.st_mtime_nsec) > (folder.st_mtime, folder.st_mtime_nsec)
                && (after.st_ctime, after.st_ctime_nsec) > (folder.st_ctime, folder.st_ctime_nsec),
        )?;
        let there =
            sys::lstat(&place.there(format!("{kind:?}"))).succeeds("lstat by the second client")?;
        equal(
            format!("type of a {kind:?} there"),
            there.st_mode,
            found.st_mode,
        )?;
    }
    Ok(())
}

fn mode_and_owner(place: &Place) -> Outcome {
    for mode in [0o755, 0o151, 0o644, 0o400, 0] {
        let file = place.at(format!("file{mode:o}"));
        let folder = place.at(format!("folder{mode:o}"));
        let fifo = place.at(format!("fifo{mode:o}"));
        OWNER.does(|| {
            sys::create(&file, mode).succeeds("open with O_CREAT")?;
            sys::mkdir(&folder, mode).succeeds("mkdir")?;
            sys::mkfifo(&fifo, mode).succeeds("mkfifo")
        })?;
        for path in [&file, &folder, &fifo] {
            let name = path.file_name().unwrap_or_default().display();
            let found = sys::lstat(path).succeeds("lstat")?;
            equal(format!("mode of {name}"), found.st_mode & 0o7777, mode)?;
            equal(
                format!("owner of {name}"),
                (found.st_uid, found.st_gid),
                (OWNER.uid, OWNER.gid),
            )?;
        }
    }
    Ok(())
}

fn group_of_a_set_gid_folder(place: &Place) -> Outcome {
    folder_of(OWNER, &place.at("folder"), 0o2777)?;
    OTHER.does(|| {
        sys::create(&place.at("folder/file"), 0o644).succeeds("creating a file")?;
        sys::mkdir(&place.at("folder/in"), 0o755).succeeds("mkdir")
    })?;
    let file = sys::stat(&place.at("folder/file")).succeeds("stat")?;
    equal(
        "owner of the file",
        (file.st_uid, file.st_gid),
        (OTHER.uid, OWNER.gid),
    )?;
    let folder = sys::stat(&place.at("folder/in")).succeeds("stat")?;
    equal(
        "owner of the folder",
        (folder.st_uid, folder.st_gid),
        (OTHER.uid, OWNER.gid),
    )?;
    equal("mode of the folder", folder.st_mode & 0o7777, 0o2755)
}

fn in_a_folder_one_may_not_write(place: &Place) -> Outcome {
    let folder = place.at("folder");
    folder_of(OWNER, &folder, 0o755)?;
    for user in [MEMBER, OTHER] {
        user.does(|| {
            for kind in [Kind::File, Kind::Folder, Kind::Fifo, Kind::Symlink] {
                let path = folder.join("new");
                let made = match kind {
                    Kind::Folder => sys::mkdir(&path, 0o755),
                    Kind::Fifo => sys::mkfifo(&path, 0o644),
                    Kind::Symlink => sys::symlink(Path::new("x"), &path),
                    _ => sys::create(&path, 0o644).map(drop),
                };
                made.refused(
                    format!("making a {kind:?} by user {}", user.uid),
                    &[Errno::EACCES],
                )?;
            }
            Ok(())
        })?;
    }
    // Writing takes searching as well.
    sys::chmod(&folder, 0o766).succeeds("chmod")?;
    OTHER.does(|| {
        sys::create(&folder.join("new"), 0o644)
            .refused("creating where one may not search", &[Errno::EACCES])
    })?;
    sys::chmod(&folder, 0o733).succeeds("chmod")?;
    OTHER.does(|| {
        sys::create(&folder.join("new"), 0o644)
            .succeeds("creating")
            .map(drop)
    })
}

fn errors(place: &Place) -> Outcome {
    make(Kind::File, &place.at("file"))?;
    for (name, error) in [
        ("none/new".to_owned(), Errno::ENOENT),
        ("file/new".to_owned(), Errno::ENOTDIR),
        ("x".repeat(256), Errno::ENAMETOOLONG),
    ] {
        let path = place.at(&name);
        let short = name.get(..8).unwrap_or(&name);
        sys::create(&path, 0o644).refused(format!("creating {short}"), &[error])?;
        sys::mkdir(&path, 0o755).refused(format!("mkdir of {short}"), &[error])?;
        sys::mkfifo(&path, 0o644).refused(format!("mkfifo of {short}"), &[error])?;
        sys::symlink(Path::new("x"), &path).refused(format!("symlink {short}"), &[error])?;
        sys::make_node(&path, SFlag::S_IFSOCK, 0o644, 0)
            .refused(format!("mknod of {short}"), &[error])?;
    }
    sys::symlink(Path::new(""), &place.at("new"))
        .refused("symlink to nothing", &[Errno::ENOENT])?;
    sys::open(&place.at("none"), OFlag::O_RDONLY, 0).refused("opening no file", &[Errno::ENOENT])
}

fn what_is_there(place: &Place) -> Outcome {
    for kind in KINDS {
        let path = place.at(format!("{kind:?}"));
        make(kind, &path)?;
        sys::create(&path, 0o644).refused(format!("O_EXCL on a {kind:?}"), &[Errno::EEXIST])?;
        sys::mkdir(&path, 0o755).refused(format!("mkdir on a {kind:?}"), &[Errno::EEXIST])?;
        sys::mkfifo(&path, 0o755).refused(format!("mkfifo on a {kind:?}"), &[Errno::EEXIST])?;
        sys::symlink(Path::new("x"), &path)
            .refused(format!("symlink on a {kind:?}"), &[Errno::EEXIST])?;
        sys::make_node(&path, SFlag::S_IFSOCK, 0o644, 0)
            .refused(format!("mknod on a {kind:?}"), &[Errno::EEXIST])?;
    }
    Ok(())
}

fn open_flags(place: &Place) -> Outcome {
    let path = place.at("file");
    std::fs::write(&path, b"what it holds").succeeds("write")?;
    // O_CREAT on what is there changes nothing, its mode included.
    let before = sys::stat(&path).succeeds("stat")?;
    sys::open(&path, OFlag::O_RDWR | OFlag::O_CREAT, 0o600).succeeds("open with O_CREAT")?;
    let after = sys::stat(&path).succeeds("stat")?;
    equal(
        "mode and size",
        (after.st_mode, after.st_size),
        (before.st_mode, before.st_size),
    )?;
    equal(
        "time of modification",
        after.st_mtime_nsec,
        before.st_mtime_nsec,
    )?;
    // O_TRUNC does, and needs the right to write.
    file_of_owner(&place.at("of-owner"), 0o644, b"text")?;
    OTHER.does(|| {
        sys::open(&place.at("of-owner"), OFlag::O_RDONLY | OFlag::O_TRUNC, 0)
            .refused("O_TRUNC of a file one may not write", &[Errno::EACCES])
    })?;
    equal(
        "size",
        sys::stat(&place.at("of-owner")).succeeds("stat")?.st_size,
        4,
    )?;
    let_the_clock_tick();
    sys::open(&path, OFlag::O_WRONLY | OFlag::O_TRUNC, 0).succeeds("open with O_TRUNC")?;
    let after = sys::stat(&path).succeeds("stat")?;
    equal("size", after.st_size, 0)?;
    holds(
        "O_TRUNC changes the time of modification",
        after.st_mtime > before.st_mtime || after.st_mtime_nsec != before.st_mtime_nsec,
    )?;
    sys::symlink(Path::new("file"), &place.at("link")).succeeds("symlink")?;
    sys::open(&place.at("link"), OFlag::O_RDONLY | OFlag::O_NOFOLLOW, 0)
        .refused("O_NOFOLLOW of a link", &[Errno::ELOOP])?;
    sys::open(&place.at("link"), OFlag::O_RDONLY, 0).succeeds("open through a link")?;
    sys::open(&path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0)
        .refused("O_DIRECTORY of a file", &[Errno::ENOTDIR])?;
    make(Kind::Fifo, &place.at("fifo"))?;
    sys::open(&place.at("fifo"), OFlag::O_WRONLY | OFlag::O_NONBLOCK, 0)
        .refused("writing to a fifo that has no reader", &[Errno::ENXIO])
}

/// A new file can be written by its maker, whatever its mode.
fn mode_without_permissions(place: &Place) -> Outcome {
    use std::os::unix::fs::FileExt;
    let path = place.at("file");
    OWNER.does(|| {
        let file = sys::create(&path, 0).succeeds("creating a file of mode 0")?;
        file.write_all_at(b"written", 0).succeeds("writing to it")?;
        let mut read = [0; 7];
        file.read_exact_at(&mut read, 0).succeeds("reading it")?;
        equal("what was read", &read, b"written")?;
        sys::close(file).succeeds("close")?;
        sys::open(&path, OFlag::O_RDONLY, 0).refused("opening it again", &[Errno::EACCES])
    })
}

fn devices_of_root_only(place: &Place) -> Outcome {
    OTHER.does(|| {
        for (kind, name) in [(SFlag::S_IFCHR, "character"), (SFlag::S_IFBLK, "block")] {
            sys::make_node(&place.at(name), kind, 0o644, nix::sys::stat::makedev(1, 3))
                .refused(format!("a {name} device by a user"), &[Errno::EPERM])?;
        }
        sys::make_node(&place.at("socket"), SFlag::S_IFSOCK, 0o644, 0)
            .succeeds("a socket by a user")
    })
}

fn device_numbers(place: &Place) -> Outcome {
    for (major, minor) in [(1, 3), (8, 255), (259, 70_000), (4095, 0xF_FFFF)] {
        let path = place.at(format!("{major}-{minor}"));
        let device = nix::sys::stat::makedev(major, minor);
        sys::make_node(&path, SFlag::S_IFCHR, 0o600, device)
            .succeeds(format!("mknod {major} {minor}"))?;
        let found = sys::lstat(&place.there(format!("{major}-{minor}")))
            .succeeds("lstat")?
            .st_rdev;
        let found = (nix::sys::stat::major(found), nix::sys::stat::minor(found));
        equal("device number", found, (major, minor))?;
    }
    Ok(())
}

/// Of those that create a file exclusively at once, through two clients, one succeeds.
fn exclusive_once(place: &Place) -> Outcome {
    const ROUNDS: u32 = 20;
    for round in 0..ROUNDS {
        let name = format!("file{round}");
        let paths = [
            place.at(&name),
            place.there(&name),
            place.at(&name),
            place.there(&name),
        ];
        let made = std::thread::scope(|scope| {
            let threads: Vec<_> = paths
                .iter()
                .map(|path| scope.spawn(move || sys::create(path, 0o644).map(drop)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or(Err(Errno::EINTR)))
                .collect::<Vec<_>>()
        });
        equal(
            "threads that have made it",
            made.iter().filter(|one| one.is_ok()).count(),
            1,
        )?;
        if let Some(other) = made
            .iter()
            .filter_map(|one| one.err())
            .find(|error| *error != Errno::EEXIST)
        {
            return Err(Failure::new(format!("O_EXCL: {other:?}, expected EEXIST")));
        }
    }
    Ok(())
}

fn open_of_folders(place: &Place) -> Outcome {
    make(Kind::Folder, &place.at("folder"))?;
    let path = place.at("folder");
    sys::open(&path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0).succeeds("opening a folder")?;
    for (flags, how) in [
        (OFlag::O_WRONLY, "O_WRONLY"),
        (OFlag::O_RDWR, "O_RDWR"),
        (OFlag::O_RDONLY | OFlag::O_CREAT, "O_CREAT"),
    ] {
        sys::open(&path, flags, 0o644).refused(format!("{how} of a folder"), &[Errno::EISDIR])?;
    }
    Ok(())
}
