//! Folders of many entries, and what is listed while they change.

use std::collections::{BTreeMap, BTreeSet};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::{Case, case};
use crate::expect::{Expect, Failure, Outcome, equal, holds};
use crate::place::Place;
use crate::sys;

pub(super) const CASES: &[Case] = &[
    case("directories/of-many-entries", of_many_entries),
    case(
        "directories/listed-while-entries-go",
        listed_while_entries_go,
    ),
    case(
        "directories/listed-while-entries-come",
        listed_while_entries_come,
    ),
    case("directories/removed-while-open", removed_while_open),
    case("directories/types-and-ids", types_and_ids),
    case("directories/empty", empty),
];

fn name_of(number: usize) -> String {
    format!("entry-with-a-name-of-some-length-{number:05}")
}

fn fill(place: &Place, count: usize) -> Outcome {
    // A first file, and links to it where the file system takes so many: a link is made sooner.
    for number in 0..count {
        let path = place.at(name_of(number));
        if number % 1000 == 0 {
            sys::create(&path, 0o644).succeeds("creating a file")?;
        } else {
            let first = place.at(name_of(number - number % 1000));
            sys::link(&first, &path).succeeds("link")?;
        }
    }
    Ok(())
}

/// How often each name is listed.
fn counted(path: &std::path::Path) -> Outcome<BTreeMap<Vec<u8>, u32>> {
    let mut counts = BTreeMap::new();
    for name in sys::names(path).succeeds("listing")? {
        *counts.entry(name).or_default() += 1;
    }
    Ok(counts)
}

fn of_many_entries(place: &Place) -> Outcome {
    let many = place.sizes.entries;
    fill(place, many)?;
    let counts = counted(&place.there(""))?;
    equal("entries that are listed", counts.len(), many)?;
    holds(
        "each is listed once",
        counts.values().all(|count| *count == 1),
    )?;
    holds(
        "each is one that was made",
        (0..many).all(|number| counts.contains_key(name_of(number).as_bytes())),
    )?;
    // Again, at once: out of the client's memory or not, the same.
    equal("the second list", counted(&place.there(""))?, counts)
}

fn open_folder(path: &std::path::Path) -> Outcome<Dir> {
    Dir::open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
        .succeeds("opening the folder")
}

/// Entries that are there from the beginning of a listing to its end are listed once, whatever
/// goes meanwhile.
fn listed_while_entries_go(place: &Place) -> Outcome {
    const COUNT: usize = 600;
    fill(place, COUNT)?;
    let mut listed = BTreeMap::<Vec<u8>, u32>::new();
    let mut removed = BTreeSet::new();
    let mut folder = open_folder(place.folder())?;
    for (position, entry) in folder.iter().enumerate() {
        let entry = entry.succeeds("listing while entries go")?;
        *listed
            .entry(entry.file_name().to_bytes().to_vec())
            .or_default() += 1;
        // Every other one is removed, some before and some after they are listed.
        if position % 2 == 0 && position < COUNT {
            let number = (position * 7919) % COUNT;
            if removed.insert(number) {
                sys::unlink(&place.at(name_of(number))).succeeds("unlink")?;
            }
        }
    }
    for number in (0..COUNT).filter(|number| !removed.contains(number)) {
        let times = listed
            .get(name_of(number).as_bytes())
            .copied()
            .unwrap_or_default();
        equal(
            format!(
                "how often an entry that stays is listed ({})",
                name_of(number)
            ),
            times,
            1,
        )?;
    }
    let left = counted(&place.there(""))?;
    equal("entries that are left", left.len(), COUNT - removed.len())
}

fn listed_while_entries_come(place: &Place) -> Outcome {
    const COUNT: usize = 600;
    fill(place, COUNT)?;
    let mut listed = BTreeMap::<Vec<u8>, u32>::new();
    let mut folder = open_folder(place.folder())?;
    for (position, entry) in folder.iter().enumerate() {
        // There can be no end when what is listed is what was made because of it.
        if position > 4 * COUNT {
            return Err(Failure::new("the list has no end"));
        }
        let entry = entry.succeeds("listing while entries come")?;
        *listed
            .entry(entry.file_name().to_bytes().to_vec())
            .or_default() += 1;
        if position % 4 == 0 && position < COUNT {
            sys::create(&place.there(format!("new{position}")), 0o644)
                .succeeds("creating a file")?;
        }
    }
    for number in 0..COUNT {
        let times = listed
            .get(name_of(number).as_bytes())
            .copied()
            .unwrap_or_default();
        equal("how often an entry that was there is listed", times, 1)?;
    }
    equal(
        "entries",
        counted(&place.there(""))?.len(),
        COUNT + COUNT / 4,
    )
}

fn removed_while_open(place: &Place) -> Outcome {
    let path = place.at("folder");
    sys::mkdir(&path, 0o755).succeeds("mkdir")?;
    let mut folder = open_folder(&path)?;
    sys::rmdir(&path).succeeds("rmdir while it is open")?;
    // The end, or an error; no entries and no crash.
    let listed: Vec<_> = folder.iter().collect();
    holds(
        "a folder that was removed has no entries",
        listed.iter().flatten().all(|entry| {
            let name = entry.file_name().to_bytes();
            name == b"." || name == b".."
        }),
    )?;
    sys::create(&path.join("new"), 0o644).refused("creating a file in it", &[Errno::ENOENT])
}

fn types_and_ids(place: &Place) -> Outcome {
    use nix::dir::Type;
    for kind in super::KINDS {
        super::make(kind, &place.at(format!("{kind:?}")))?;
    }
    let mut folder = open_folder(&place.there(""))?;
    let mut listed = 0;
    for entry in folder.iter() {
        let entry = entry.succeeds("listing")?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        listed += 1;
        let name = String::from_utf8_lossy(name).into_owned();
        let found = sys::lstat(&place.at(&name)).succeeds("lstat")?;
        equal(format!("file ID of {name}"), entry.ino(), found.st_ino)?;
        let expected = match found.st_mode & 0o170_000 {
            0o100_000 => Type::File,
            0o040_000 => Type::Directory,
            0o010_000 => Type::Fifo,
            0o140_000 => Type::Socket,
            0o020_000 => Type::CharacterDevice,
            0o060_000 => Type::BlockDevice,
            _ => Type::Symlink,
        };
        // A file system need not say it; what it says has to be true.
        if let Some(kind) = entry.file_type() {
            equal(format!("type of {name}"), kind, expected)?;
        }
    }
    equal("entries", listed, super::KINDS.len())
}

fn empty(place: &Place) -> Outcome {
    equal("entries of a new folder", counted(place.folder())?.len(), 0)?;
    let mut folder = open_folder(place.folder())?;
    let dots = folder.iter().flatten().count();
    equal("`.` and `..`", dots, 2)
}
