//! The plain use of files and folders: trees of them, their attributes and what they hold.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::{Case, case};
use crate::expect::{Expect, Failure, Outcome, equal, holds, same_bytes};
use crate::place::Place;
use crate::random::Random;
use crate::sys;

pub(super) const CASES: &[Case] = &[
    case("basic/tree", tree),
    case("basic/lookup-across", lookup_across),
    case("basic/attributes", attributes),
    case("basic/write-and-read", write_and_read),
    case("basic/link-and-rename", link_and_rename),
    case("basic/symlinks", symlinks),
    case("basic/statistics", statistics),
    case("basic/copies-by-threads", copies_by_threads),
    case("basic/many-open-files", many_open_files),
];

/// Four levels of three folders, with four files each.
const LEVELS: u32 = 4;
const FOLDERS: u32 = 3;
const FILES: u32 = 4;

fn grow(path: &Path, levels: u32, made: &mut Vec<PathBuf>) -> Outcome {
    for file in 0..FILES {
        let path = path.join(format!("file{file}"));
        sys::create(&path, 0o644).succeeds("creating a file")?;
        made.push(path);
    }
    if levels > 1 {
        for folder in 0..FOLDERS {
            let path = path.join(format!("folder{folder}"));
            sys::mkdir(&path, 0o755).succeeds("mkdir")?;
            made.push(path.clone());
            grow(&path, levels - 1, made)?;
        }
    }
    Ok(())
}

/// Everything in a tree, however deep.
fn walk(path: &Path) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).succeeds("reading a folder")? {
            let entry = entry.succeeds("reading a folder")?;
            if entry.file_type().succeeds("an entry's type")?.is_dir() {
                folders.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn tree(place: &Place) -> Outcome {
    let mut made = Vec::new();
    grow(place.folder(), LEVELS, &mut made)?;
    let expected: BTreeSet<PathBuf> = made.iter().cloned().collect();
    let found: BTreeSet<PathBuf> = walk(place.folder())?.into_iter().collect();
    equal("entries of the tree", found.len(), expected.len())?;
    holds("the tree has the names that were made", found == expected)?;
    // From the leaves, so that every folder is empty when its turn comes.
    for path in made.iter().rev() {
        if path.is_dir() {
            sys::rmdir(path).succeeds("rmdir")?;
        } else {
            sys::unlink(path).succeeds("unlink")?;
        }
    }
    equal("entries that are left", walk(place.folder())?.len(), 0)
}

fn lookup_across(place: &Place) -> Outcome {
    sys::mkdir(&place.at("a"), 0o755).succeeds("mkdir")?;
    sys::mkdir(&place.at("a/b"), 0o755).succeeds("mkdir")?;
    let folder = sys::stat(place.folder()).succeeds("stat")?;
    for way in ["a/..", "a/b/../..", "a/./b/.././..", "."] {
        let reached = sys::stat(&place.at(way)).succeeds(way)?;
        equal(format!("file ID of {way}"), reached.st_ino, folder.st_ino)?;
    }
    sys::stat(&place.at("a/c/..")).refused("stat of a/c/..", &[Errno::ENOENT])?;
    sys::create(&place.at("file"), 0o644).succeeds("creating a file")?;
    sys::stat(&place.at("file/x")).refused("stat of file/x", &[Errno::ENOTDIR])?;
    sys::stat(&place.at("file/.")).refused("stat of file/.", &[Errno::ENOTDIR])
}

fn attributes(place: &Place) -> Outcome {
    for number in 0..10_u32 {
        let path = place.at(format!("file{number}"));
        sys::create(&path, 0o666).succeeds("creating a file")?;
        for mode in [0, 0o200, 0o400, 0o611, 0o777, 0o644] {
            sys::chmod(&path, mode).succeeds("chmod")?;
            equal(
                "permissions",
                sys::permissions(&path).succeeds("stat")?,
                mode,
            )?;
        }
        let found = sys::stat(&path).succeeds("stat")?;
        equal("size", found.st_size, 0)?;
        equal("links", found.st_nlink, 1)?;
        equal("owner", (found.st_uid, found.st_gid), (0, 0))?;
    }
    sys::mkdir(&place.at("folder"), 0o755).succeeds("mkdir")?;
    equal(
        "links of a folder",
        sys::stat(&place.at("folder")).succeeds("stat")?.st_nlink,
        2,
    )?;
    sys::mkdir(&place.at("folder/in"), 0o755).succeeds("mkdir")?;
    equal(
        "links with a folder in it",
        sys::stat(&place.at("folder")).succeeds("stat")?.st_nlink,
        3,
    )
}

/// A mebibyte in pieces of 8 KiB, three times over.
fn write_and_read(place: &Place) -> Outcome {
    const BYTES: usize = 1 << 20;
    const PIECE_BYTES: usize = 8192;
    for round in 0..3 {
        let data = Random::new(round).bytes(BYTES);
        let path = place.at("big");
        let mut file = fs::File::create(&path).succeeds("creating a file")?;
        for piece in data.chunks(PIECE_BYTES) {
            file.write_all(piece).succeeds("write")?;
        }
        sys::close(file).succeeds("close")?;
        equal("size", sys::stat(&path).succeeds("stat")?.st_size, 1 << 20)?;
        let mut read = Vec::new();
        fs::File::open(place.there("big"))
            .and_then(|mut file| file.read_to_end(&mut read))
            .succeeds("reading it")?;
        same_bytes("what was read", &read, &data)?;
        sys::unlink(&path).succeeds("unlink")?;
    }
    Ok(())
}

fn link_and_rename(place: &Place) -> Outcome {
    for number in 0..10 {
        let first = place.at(format!("a{number}"));
        let second = place.at(format!("b{number}"));
        sys::create(&first, 0o644).succeeds("creating a file")?;
        sys::rename(&first, &second).succeeds("rename")?;
        sys::stat(&first).refused("stat of the old name", &[Errno::ENOENT])?;
        equal(
            "links",
            sys::stat(&second)
                .succeeds("stat of the new name")?
                .st_nlink,
            1,
        )?;
        sys::link(&second, &first).succeeds("link")?;
        equal(
            "links of the first",
            sys::stat(&first).succeeds("stat")?.st_nlink,
            2,
        )?;
        equal(
            "links of the second",
            sys::stat(&second).succeeds("stat")?.st_nlink,
            2,
        )?;
        sys::unlink(&second).succeeds("unlink")?;
        equal(
            "links that are left",
            sys::stat(&first).succeeds("stat")?.st_nlink,
            1,
        )?;
    }
    Ok(())
}

/// The longest target there can be: PATH_MAX without its NUL, and ext4's limit is a block.
const LONG_TARGET_BYTES: usize = 4000;

fn symlinks(place: &Place) -> Outcome {
    let long = "x/".repeat(LONG_TARGET_BYTES / 2);
    for (name, target) in [
        ("short", "a"),
        ("dangling", "is/not/there"),
        ("long", &long),
    ] {
        let path = place.at(name);
        sys::symlink(Path::new(target), &path).succeeds("symlink")?;
        let found = sys::lstat(&path).succeeds("lstat")?;
        equal("type", found.st_mode & 0o170_000, 0o120_000)?;
        equal(
            "size of a link",
            found.st_size,
            i64::try_from(target.len()).unwrap_or(-1),
        )?;
        equal(
            "target",
            fs::read_link(place.there(name)).succeeds("readlink")?,
            PathBuf::from(target),
        )?;
        sys::symlink(Path::new(target), &path).refused("symlink on a link", &[Errno::EEXIST])?;
    }
    sys::stat(&place.at("dangling")).refused("stat through a dangling link", &[Errno::ENOENT])?;
    sys::symlink(Path::new("loop2"), &place.at("loop1")).succeeds("symlink")?;
    sys::symlink(Path::new("loop1"), &place.at("loop2")).succeeds("symlink")?;
    sys::stat(&place.at("loop1")).refused("stat through a loop", &[Errno::ELOOP])?;
    fs::read_link(place.folder()).refused("readlink of a folder", &[Errno::EINVAL])
}

fn statistics(place: &Place) -> Outcome {
    let before = sys::stat_fs(place.folder()).succeeds("statvfs")?;
    holds(
        "there are blocks",
        before.blocks() > 0 && before.fragment_size() > 0,
    )?;
    holds(
        "free blocks are fewer than all",
        before.blocks_free() <= before.blocks(),
    )?;
    holds(
        "available blocks are no more than free ones",
        before.blocks_available() <= before.blocks_free(),
    )?;
    equal("longest name", before.name_max(), 255)?;
    // Room that a file takes is no longer free.
    const BYTES: usize = 4 << 20;
    let mut file = fs::File::create(place.at("file")).succeeds("creating a file")?;
    file.write_all(&Random::new(9).bytes(BYTES))
        .succeeds("write")?;
    file.sync_all().succeeds("fsync")?;
    let after = sys::stat_fs(place.folder()).succeeds("statvfs")?;
    let taken = before
        .blocks_free()
        .saturating_sub(after.blocks_free())
        .saturating_mul(before.fragment_size());
    holds(
        format!("a file of {BYTES} bytes takes that much of the free room ({taken})"),
        taken >= 3 << 20,
    )
}

/// Four threads copy a tree, each to a place of its own, compare and remove it.
fn copies_by_threads(place: &Place) -> Outcome {
    const THREADS: u32 = 4;
    const FILES: u64 = 24;
    let source = place.at("source");
    sys::mkdir(&source, 0o755).succeeds("mkdir")?;
    let mut random = Random::new(77);
    for number in 0..FILES {
        let bytes = random.below_usize(60_000);
        fs::write(source.join(format!("f{number}")), random.bytes(bytes)).succeeds("write")?;
    }
    let copy = |number: u32| -> Outcome {
        let target = place.at(format!("copy{number}"));
        sys::mkdir(&target, 0o755).succeeds("mkdir")?;
        for number in 0..FILES {
            let name = format!("f{number}");
            fs::copy(source.join(&name), target.join(&name)).succeeds("copying a file")?;
        }
        for number in 0..FILES {
            let name = format!("f{number}");
            let expected = fs::read(source.join(&name)).succeeds("read")?;
            same_bytes(
                &name,
                &fs::read(target.join(&name)).succeeds("read")?,
                &expected,
            )?;
        }
        fs::remove_dir_all(&target).succeeds("removing a copy")
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || copy(number)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_panic| Err(Failure::new("a thread panicked")))
        })
    })
}

/// As many files open at once as a server must be able to have of one client.
fn many_open_files(place: &Place) -> Outcome {
    use std::os::unix::fs::FileExt;
    const OPEN: u32 = 500;
    let mut files = Vec::new();
    for number in 0..OPEN {
        let file =
            sys::create(&place.at(format!("f{number}")), 0o644).succeeds("creating a file")?;
        file.write_all_at(&number.to_le_bytes(), 0)
            .succeeds("write")?;
        files.push(file);
    }
    for (number, file) in (0..OPEN).zip(&files) {
        let mut read = [0; 4];
        file.read_exact_at(&mut read, 0).succeeds("read")?;
        equal("what a file holds", u32::from_le_bytes(read), number)?;
    }
    for file in files {
        sys::close(file).succeeds("close")?;
    }
    Ok(())
}
