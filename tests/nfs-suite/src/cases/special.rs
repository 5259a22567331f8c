//! What is special about files of a server: that are removed or replaced while they are open, or
//! that others change.

use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::{Case, Kind, case, file_of_owner, folder_of, make};
use crate::expect::{Expect, Failure, Outcome, equal, same_bytes};
use crate::place::Place;
use crate::random::Random;
use crate::sys;
use crate::user::OWNER;

pub(super) const CASES: &[Case] = &[
    case("special/removed-while-open", removed_while_open),
    case("special/replaced-while-open", replaced_while_open),
    case("special/renamed-while-open", renamed_while_open),
    case(
        "special/closed-to-its-owner-while-open",
        closed_to_its_owner_while_open,
    ),
    case(
        "special/folder-renamed-while-in-use",
        folder_renamed_while_in_use,
    ),
    case("special/programs-run", programs_run),
    case("special/churn", churn),
    case("special/removed-twice", removed_twice),
];

fn removed_while_open(place: &Place) -> Outcome {
    let path = place.at("file");
    let data = Random::new(1).bytes(20_000);
    let file = sys::create(&path, 0o644).succeeds("creating a file")?;
    file.write_all_at(&data, 0).succeeds("write")?;
    sys::unlink(&path).succeeds("unlink while it is open")?;
    sys::stat(&path).refused("stat of its name", &[Errno::ENOENT])?;
    file.write_all_at(b"more", 20_000)
        .succeeds("writing to it")?;
    file.sync_all().succeeds("fsync of it")?;
    let mut read = vec![0; 20_000];
    file.read_exact_at(&mut read, 0).succeeds("reading it")?;
    same_bytes("what it holds", &read, &data)?;
    equal("size", file.metadata().succeeds("fstat")?.len(), 20_004)?;
    // Its name can be used again, and this is another file.
    std::fs::write(&path, b"new").succeeds("writing a new file")?;
    file.read_exact_at(&mut read, 0)
        .succeeds("reading the old one")?;
    same_bytes("what the old one holds", &read, &data)?;
    sys::close(file).succeeds("close")?;
    equal(
        "what the new one holds",
        std::fs::read(&path).succeeds("read")?,
        b"new".to_vec(),
    )
}

fn replaced_while_open(place: &Place) -> Outcome {
    std::fs::write(place.at("name"), b"the old one").succeeds("write")?;
    std::fs::write(place.at("new"), b"the new one").succeeds("write")?;
    let file = sys::open(&place.at("name"), OFlag::O_RDWR, 0).succeeds("open")?;
    sys::rename(&place.at("new"), &place.at("name")).succeeds("rename onto a file that is open")?;
    let mut read = [0; 11];
    file.read_exact_at(&mut read, 0)
        .succeeds("reading the old one")?;
    equal("what the old one holds", &read, b"the old one")?;
    file.write_all_at(b"THE", 0)
        .succeeds("writing to the old one")?;
    sys::close(file).succeeds("close")?;
    equal(
        "what the name has",
        std::fs::read(place.at("name")).succeeds("read")?,
        b"the new one".to_vec(),
    )
}

fn renamed_while_open(place: &Place) -> Outcome {
    sys::mkdir(&place.at("folder"), 0o755).succeeds("mkdir")?;
    let file = sys::create(&place.at("old"), 0o644).succeeds("creating a file")?;
    file.write_all_at(b"one", 0).succeeds("write")?;
    sys::rename(&place.at("old"), &place.at("folder/new")).succeeds("rename")?;
    file.write_all_at(b"two", 3).succeeds("writing to it")?;
    sys::close(file).succeeds("close")?;
    equal(
        "what it holds",
        std::fs::read(place.there("folder/new")).succeeds("read")?,
        b"onetwo".to_vec(),
    )
}

/// An open file stays usable whatever its mode becomes.
fn closed_to_its_owner_while_open(place: &Place) -> Outcome {
    let path = place.at("file");
    file_of_owner(&path, 0o644, b"some text")?;
    OWNER.does(|| {
        let file = sys::open(&path, OFlag::O_RDWR, 0).succeeds("open")?;
        sys::chmod(&path, 0).succeeds("chmod to 0")?;
        file.write_all_at(b"SOME", 0).succeeds("write")?;
        let mut read = [0; 9];
        file.read_exact_at(&mut read, 0).succeeds("read")?;
        equal("what was read", &read, b"SOME text")?;
        sys::close(file).succeeds("close")
    })
}

fn folder_renamed_while_in_use(place: &Place) -> Outcome {
    folder_of(OWNER, &place.at("old"), 0o755)?;
    let folder =
        sys::open(&place.at("old"), OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0).succeeds("open")?;
    sys::rename(&place.at("old"), &place.at("new")).succeeds("rename")?;
    let file = nix::fcntl::openat(
        &folder,
        "file",
        OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC,
        nix::sys::stat::Mode::from_bits_truncate(0o644),
    )
    .succeeds("creating a file by the open folder")?;
    drop(file);
    sys::stat(&place.at("new/file"))
        .succeeds("stat by the new name")
        .map(drop)
}

/// A program is read, mapped and run, and its file's permission to be run is looked at.
fn programs_run(place: &Place) -> Outcome {
    use std::process::{Command, Stdio};
    let program = std::env::current_exe().succeeds("the path of this program")?;
    let copy = place.at("program");
    std::fs::copy(&program, &copy).succeeds("copying a program")?;
    sys::chmod(&copy, 0o755).succeeds("chmod")?;
    let there = place.there("program");
    let ran = Command::new(&there)
        .arg("--list")
        .output()
        .succeeds("running it")?;
    let listed = String::from_utf8_lossy(&ran.stdout);
    equal(
        "whether it lists this case",
        listed.contains("special/programs-run"),
        true,
    )?;
    sys::chmod(&copy, 0o644).succeeds("chmod")?;
    sys::stat(&there).succeeds("stat")?;
    let ran = Command::new(&copy)
        .arg("--list")
        .stdout(Stdio::null())
        .status();
    ran.map(drop)
        .refused("running what may not be run", &[Errno::EACCES])
}

/// Threads make, rename, link and remove among a few names: each operation is whole.
fn churn(place: &Place) -> Outcome {
    const THREADS: u64 = 4;
    const ROUNDS: u32 = 100;
    const NAMES: u64 = 6;
    let work = |seed: u64| -> Outcome {
        let mut random = Random::new(seed);
        // Half of them by each client.
        let at = |name: u64| {
            let name = format!("n{name}");
            if seed.is_multiple_of(2) {
                place.at(name)
            } else {
                place.there(name)
            }
        };
        for _ in 0..ROUNDS {
            let one = at(random.below(NAMES));
            let two = at(random.below(NAMES));
            let done = match random.below(6) {
                0 => sys::create(&one, 0o644).map(drop),
                1 => sys::rename(&one, &two),
                2 => sys::link(&one, &two),
                3 => sys::unlink(&one),
                4 => sys::stat(&one).map(drop),
                _ => sys::names(place.folder()).map(drop),
            };
            match done {
                Ok(()) | Err(Errno::ENOENT | Errno::EEXIST | Errno::ESTALE) => (),
                Err(error) => {
                    return Err(Failure::new(format!(
                        "{error:?}, expected success, ENOENT, EEXIST or ESTALE"
                    )));
                }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS)
            .map(|seed| scope.spawn(move || work(seed)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_panic| Err(Failure::new("a thread panicked")))
        })
    })?;
    // What is left has as many links as names, file by file.
    let mut names = std::collections::BTreeMap::<u64, u64>::new();
    for name in sys::names(&place.there("")).succeeds("listing")? {
        let name = String::from_utf8_lossy(&name).into_owned();
        *names
            .entry(sys::lstat(&place.there(name)).succeeds("lstat")?.st_ino)
            .or_default() += 1;
    }
    for name in sys::names(&place.there("")).succeeds("listing")? {
        let name = String::from_utf8_lossy(&name).into_owned();
        let found = sys::lstat(&place.there(&name)).succeeds("lstat")?;
        equal("links", Some(&found.st_nlink), names.get(&found.st_ino))?;
    }
    Ok(())
}

fn removed_twice(place: &Place) -> Outcome {
    for kind in [Kind::File, Kind::Folder, Kind::Symlink] {
        let path = place.at("name");
        for _ in 0..2 {
            make(kind, &path)?;
            let remove = |path| {
                if kind == Kind::Folder {
                    sys::rmdir(path)
                } else {
                    sys::unlink(path)
                }
            };
            remove(&path).succeeds("removing")?;
            remove(&path).refused("removing again", &[Errno::ENOENT])?;
        }
    }
    Ok(())
}
