//! The cases, by subject.

mod basic;
mod chmod;
mod chown;
mod clients;
mod create;
mod data;
mod directories;
mod full;
mod link;
mod locks;
mod names;
mod operations;
mod remove;
mod rename;
mod sparse;
mod special;
mod times;
mod truncate;
mod verify;
mod xattrs;

use std::path::Path;

use nix::sys::stat::SFlag;

use crate::expect::{Expect, Outcome};
use crate::feature::Feature;
use crate::place::Place;
use crate::sys;
use crate::user::{OWNER, User};

/// One case.
pub(crate) struct Case {
    /// Subject and name.
    pub(crate) name: &'static str,
    /// What the mount has to have.
    pub(crate) needs: &'static [Feature],
    pub(crate) run: fn(&Place) -> Outcome,
}

const fn case(name: &'static str, run: fn(&Place) -> Outcome) -> Case {
    Case {
        name,
        needs: &[],
        run,
    }
}

const fn case_that_needs(
    name: &'static str,
    needs: &'static [Feature],
    run: fn(&Place) -> Outcome,
) -> Case {
    Case { name, needs, run }
}

/// Every case, in the order they run.
pub(crate) fn all() -> Vec<Case> {
    [
        basic::CASES,
        chmod::CASES,
        chown::CASES,
        create::CASES,
        link::CASES,
        remove::CASES,
        rename::CASES,
        truncate::CASES,
        times::CASES,
        names::CASES,
        directories::CASES,
        data::CASES,
        sparse::CASES,
        special::CASES,
        xattrs::CASES,
        locks::CASES,
        clients::CASES,
        verify::CASES,
        operations::CASES,
        full::CASES,
    ]
    .into_iter()
    .flatten()
    .map(|case| Case { ..*case })
    .collect()
}

/// Every kind of file that a program can make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    File,
    Folder,
    Fifo,
    Socket,
    Character,
    Block,
    Symlink,
}

const KINDS: [Kind; 7] = [
    Kind::File,
    Kind::Folder,
    Kind::Fifo,
    Kind::Socket,
    Kind::Character,
    Kind::Block,
    Kind::Symlink,
];

/// Makes a file of a kind, of mode 644 (755 of a folder).
fn make(kind: Kind, path: &Path) -> Outcome {
    let made = match kind {
        Kind::File => sys::create(path, 0o644).map(drop),
        Kind::Folder => sys::mkdir(path, 0o755),
        Kind::Fifo => sys::mkfifo(path, 0o644),
        Kind::Socket => sys::make_node(path, SFlag::S_IFSOCK, 0o644, 0),
        Kind::Character => {
            sys::make_node(path, SFlag::S_IFCHR, 0o644, nix::sys::stat::makedev(1, 3))
        }
        Kind::Block => sys::make_node(path, SFlag::S_IFBLK, 0o644, nix::sys::stat::makedev(7, 200)),
        Kind::Symlink => sys::symlink(Path::new("target-of-a-link"), path),
    };
    made.succeeds(format!("making a {kind:?}"))
}

/// The type of a file that is made so, as stat(2) has it.
fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::File => SFlag::S_IFREG,
        Kind::Folder => SFlag::S_IFDIR,
        Kind::Fifo => SFlag::S_IFIFO,
        Kind::Socket => SFlag::S_IFSOCK,
        Kind::Character => SFlag::S_IFCHR,
        Kind::Block => SFlag::S_IFBLK,
        Kind::Symlink => SFlag::S_IFLNK,
    }
    .bits()
}

/// A folder of mode `mode` that belongs to `owner`.
fn folder_of(owner: User, path: &Path, mode: u32) -> Outcome {
    sys::mkdir(path, 0o700).succeeds("mkdir")?;
    sys::chown(path, Some(owner.uid), Some(owner.gid)).succeeds("chown of a folder")?;
    sys::chmod(path, mode).succeeds("chmod of a folder")
}

/// A file of mode `mode` that belongs to [`OWNER`], with what it holds.
fn file_of_owner(path: &Path, mode: u32, holds: &[u8]) -> Outcome {
    std::fs::write(path, holds).succeeds("writing a file")?;
    sys::chown(path, Some(OWNER.uid), Some(OWNER.gid)).succeeds("chown of a file")?;
    sys::chmod(path, mode).succeeds("chmod of a file")
}

/// Time that passes before what a clock of low resolution says of two events differs: the kernel
/// gives files the time of its last tick, of which there are at least 100 a second.
fn let_the_clock_tick() {
    std::thread::sleep(std::time::Duration::from_millis(25));
}
