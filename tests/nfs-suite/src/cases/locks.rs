//! Byte-range locks of processes and of open file descriptions, and flock(2).

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use super::{Case, case_that_needs};
use crate::expect::{Expect, Failure, Outcome, equal, holds};
use crate::feature::Feature;
use crate::helper::{Lock, Other, set, set_ofd, test};
use crate::place::Place;
use crate::sys;

const NEEDS: &[Feature] = &[Feature::Locks];

pub(super) const CASES: &[Case] = &[
    case_that_needs("locks/conflicts", NEEDS, conflicts),
    case_that_needs("locks/what-is-in-the-way", NEEDS, what_is_in_the_way),
    case_that_needs("locks/splitting-and-joining", NEEDS, splitting_and_joining),
    case_that_needs("locks/ranges-to-the-end", NEEDS, ranges_to_the_end),
    case_that_needs(
        "locks/read-and-write-in-turn",
        NEEDS,
        read_and_write_in_turn,
    ),
    case_that_needs("locks/close-releases", NEEDS, close_releases),
    case_that_needs(
        "locks/a-process-that-is-killed",
        NEEDS,
        a_process_that_is_killed,
    ),
    case_that_needs("locks/waiting", NEEDS, waiting),
    case_that_needs("locks/of-open-descriptions", NEEDS, of_open_descriptions),
    case_that_needs("locks/whole-files", NEEDS, whole_files),
    case_that_needs("locks/access-modes", NEEDS, access_modes),
    case_that_needs("locks/many-ranges", NEEDS, many_ranges),
    case_that_needs("locks/counter", NEEDS, counter),
];

fn file(place: &Place) -> Outcome<std::fs::File> {
    sys::create(&place.at("file"), 0o666).succeeds("creating a file")
}

fn conflicts(place: &Place) -> Outcome {
    let file = file(place)?;
    let there = place.there("file");
    let mut other = Other::start()?;
    set(&file, Lock::Write, 100, 50).succeeds("locking")?;
    for (lock, start, bytes, expected) in [
        (Lock::Write, 100, 50, "EAGAIN"),
        (Lock::Read, 149, 1, "EAGAIN"),
        (Lock::Read, 90, 11, "EAGAIN"),
        (Lock::Write, 0, 0, "EAGAIN"),
        (Lock::Write, 150, 10, "ok"),
        (Lock::Write, 0, 100, "ok"),
    ] {
        other.says(("set", lock, start, bytes), &there, expected)?;
    }
    set(&file, Lock::Read, 155, 1).refused(
        "locking what the other has",
        &[Errno::EAGAIN, Errno::EACCES],
    )?;
    set(&file, Lock::Unlock, 100, 50).succeeds("unlocking")?;
    other.says(("set", Lock::Write, 100, 50), &there, "ok")?;
    // Locks for reading are shared.
    set(&file, Lock::Read, 1000, 10).succeeds("locking for reading")?;
    other.says(("set", Lock::Read, 1000, 10), &there, "ok")?;
    other.says(("set", Lock::Write, 1005, 1), &there, "EAGAIN")?;
    set(&file, Lock::Write, 1000, 10).refused(
        "a lock for writing on a shared one",
        &[Errno::EAGAIN, Errno::EACCES],
    )
}

fn what_is_in_the_way(place: &Place) -> Outcome {
    let file = file(place)?;
    let there = place.there("file");
    let mut other = Other::start()?;
    set(&file, Lock::Write, 10, 5).succeeds("locking")?;
    set(&file, Lock::Read, 20, 5).succeeds("locking")?;
    other.says(("test", Lock::Write, 0, 10), &there, "none")?;
    other.says(("test", Lock::Write, 12, 1), &there, "write 10 5")?;
    other.says(("test", Lock::Read, 21, 1), &there, "none")?;
    other.says(("test", Lock::Write, 21, 1), &there, "read 20 5")?;
    // One's own are never in the way.
    equal(
        "what one's own lock is",
        test(&file, Lock::Write, 10, 5)
            .succeeds("testing")?
            .as_str(),
        "none",
    )
}

fn splitting_and_joining(place: &Place) -> Outcome {
    let file = file(place)?;
    let there = place.there("file");
    let mut other = Other::start()?;
    set(&file, Lock::Write, 0, 100).succeeds("locking")?;
    set(&file, Lock::Unlock, 40, 20).succeeds("unlocking the middle")?;
    other.says(("test", Lock::Write, 0, 1), &there, "write 0 40")?;
    other.says(("test", Lock::Write, 40, 20), &there, "none")?;
    other.says(("test", Lock::Write, 99, 1), &there, "write 60 40")?;
    set(&file, Lock::Read, 10, 10).succeeds("a part for reading")?;
    other.says(("test", Lock::Write, 10, 10), &there, "read 10 10")?;
    other.says(("set", Lock::Read, 10, 10), &there, "ok")?;
    other.says(("set", Lock::Unlock, 10, 10), &there, "ok")?;
    set(&file, Lock::Write, 0, 100).succeeds("all of it again")?;
    other.says(("test", Lock::Write, 50, 1), &there, "write 0 100")?;
    set(&file, Lock::Unlock, 0, 0).succeeds("unlocking everything")?;
    other.says(("test", Lock::Write, 0, 0), &there, "none")
}

fn ranges_to_the_end(place: &Place) -> Outcome {
    const FAR: i64 = 1 << 40;
    let file = file(place)?;
    let there = place.there("file");
    let mut other = Other::start()?;
    set(&file, Lock::Write, 1000, 0).succeeds("locking to the end")?;
    other.says(("test", Lock::Write, FAR, 1), &there, "write 1000 0")?;
    other.says(("set", Lock::Write, i64::MAX, 1), &there, "EAGAIN")?;
    other.says(("set", Lock::Write, 0, 1000), &there, "ok")?;
    set(&file, Lock::Unlock, FAR, 0).succeeds("unlocking the far part")?;
    other.says(
        ("test", Lock::Write, FAR - 1, 1),
        &there,
        &format!("write 1000 {}", FAR - 1000),
    )?;
    other.says(("set", Lock::Write, FAR, 0), &there, "ok")?;
    set(&file, Lock::Write, i64::MAX, 1).refused("the last byte", &[Errno::EAGAIN, Errno::EACCES])
}

fn read_and_write_in_turn(place: &Place) -> Outcome {
    let file = file(place)?;
    let there = place.there("file");
    let mut other = Other::start()?;
    set(&file, Lock::Read, 0, 10).succeeds("for reading")?;
    set(&file, Lock::Write, 0, 10).succeeds("then for writing")?;
    other.says(("set", Lock::Read, 0, 10), &there, "EAGAIN")?;
    set(&file, Lock::Read, 0, 10).succeeds("then for reading again")?;
    other.says(("set", Lock::Read, 0, 10), &there, "ok")?;
    set(&file, Lock::Write, 5, 1).refused(
        "for writing what is shared",
        &[Errno::EAGAIN, Errno::EACCES],
    )
}

/// A process's locks on a file go when it closes any descriptor of that.
fn close_releases(place: &Place) -> Outcome {
    let file = file(place)?;
    let there = place.there("file");
    let mut other = Other::start()?;
    set(&file, Lock::Write, 0, 10).succeeds("locking")?;
    let second = sys::open(&place.at("file"), OFlag::O_RDONLY, 0).succeeds("open")?;
    other.says(("set", Lock::Write, 0, 10), &there, "EAGAIN")?;
    sys::close(second).succeeds("close of another descriptor")?;
    other.says(("set", Lock::Write, 0, 10), &there, "ok")?;
    other.says(("close", Lock::Unlock, 0, 0), &there, "ok")?;
    set(&file, Lock::Write, 0, 10).succeeds("locking after the other has closed")
}

fn a_process_that_is_killed(place: &Place) -> Outcome {
    let file = file(place)?;
    let mut other = Other::start()?;
    other.says(("set", Lock::Write, 0, 10), &place.there("file"), "ok")?;
    set(&file, Lock::Write, 0, 10).refused("locking", &[Errno::EAGAIN, Errno::EACCES])?;
    other.kill()?;
    // Its end is over when it was waited for, and so are the closes of its files.
    set(&file, Lock::Write, 0, 10).succeeds("locking after it was killed")
}

/// How long a client may wait before it asks again for a lock that was denied: Linux asks after 1,
/// 2, 4 … up to 30 s.
const WAIT: Duration = Duration::from_secs(45);

fn waiting(place: &Place) -> Outcome {
    let file = file(place)?;
    let there = place.there("file");
    let mut other = Other::start()?;
    set(&file, Lock::Write, 0, 10).succeeds("locking")?;
    other.begin("wait", Lock::Write, 5, 1, &there)?;
    // It cannot have it yet; a short time is enough to see that it does not get it at once.
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    file.write_all_at(b"written under the lock", 0)
        .succeeds("write")?;
    set(&file, Lock::Unlock, 0, 0).succeeds("unlocking")?;
    equal(
        "what the one that waits gets",
        other.answer()?.as_str(),
        "ok",
    )?;
    holds("it gets the lock in time", began.elapsed() < WAIT)?;
    set(&file, Lock::Write, 0, 10).refused("locking", &[Errno::EAGAIN, Errno::EACCES])
}

fn of_open_descriptions(place: &Place) -> Outcome {
    let first = file(place)?;
    let second = sys::open(&place.there("file"), OFlag::O_RDWR, 0).succeeds("open")?;
    let mut other = Other::start()?;
    let refused = &[Errno::EAGAIN, Errno::EACCES];
    set_ofd(&first, Lock::Write, 0, 10).succeeds("locking the first")?;
    set_ofd(&second, Lock::Write, 5, 10).refused("locking the second", refused)?;
    other.says(("set", Lock::Write, 0, 1), &place.there("file"), "EAGAIN")?;
    // A close of another descriptor of this process leaves it.
    let third = sys::open(&place.at("file"), OFlag::O_RDWR, 0).succeeds("open")?;
    sys::close(third).succeeds("close")?;
    set_ofd(&second, Lock::Write, 5, 10).refused("locking the second", refused)?;
    let copy = first.try_clone().succeeds("dup")?;
    sys::close(first).succeeds("close")?;
    set_ofd(&second, Lock::Write, 5, 10).refused("locking while a copy is open", refused)?;
    sys::close(copy).succeeds("close")?;
    set_ofd(&second, Lock::Write, 5, 10).succeeds("locking when all are closed")
}

fn whole_files(place: &Place) -> Outcome {
    drop(file(place)?);
    let open = |path: &std::path::Path| sys::open(path, OFlag::O_RDWR, 0).succeeds("open");
    let lock = |file, how| Flock::lock(file, how).map_err(|(_file, error)| error);
    let exclusive = FlockArg::LockExclusiveNonblock;
    let shared = FlockArg::LockSharedNonblock;
    let first = lock(open(&place.at("file"))?, exclusive).succeeds("flock")?;
    lock(open(&place.there("file"))?, exclusive)
        .map(drop)
        .refused("flock of another", &[Errno::EAGAIN])?;
    lock(open(&place.there("file"))?, shared)
        .map(drop)
        .refused("shared flock", &[Errno::EAGAIN])?;
    drop(first);
    let first = lock(open(&place.at("file"))?, shared).succeeds("shared flock")?;
    let second = lock(open(&place.there("file"))?, shared).succeeds("a second shared flock")?;
    lock(open(&place.there("file"))?, exclusive)
        .map(drop)
        .refused("flock", &[Errno::EAGAIN])?;
    drop((first, second));
    lock(open(&place.there("file"))?, exclusive)
        .succeeds("flock when all are gone")
        .map(drop)
}

fn access_modes(place: &Place) -> Outcome {
    drop(file(place)?);
    let reader = sys::open(&place.at("file"), OFlag::O_RDONLY, 0).succeeds("open")?;
    set(&reader, Lock::Read, 0, 1).succeeds("locking for reading")?;
    set(&reader, Lock::Write, 0, 1).refused("for writing by one that reads", &[Errno::EBADF])?;
    let writer = sys::open(&place.at("file"), OFlag::O_WRONLY, 0).succeeds("open")?;
    set(&writer, Lock::Read, 5, 1).refused("for reading by one that writes", &[Errno::EBADF])?;
    set(&writer, Lock::Write, 5, 1).succeeds("locking for writing")
}

fn many_ranges(place: &Place) -> Outcome {
    const RANGES: i64 = 300;
    let file = file(place)?;
    let there = place.there("file");
    let mut other = Other::start()?;
    for number in 0..RANGES {
        set(&file, Lock::Write, number * 10, 5).succeeds("locking")?;
    }
    for number in [0, 1, 150, RANGES - 1] {
        other.says(("set", Lock::Write, number * 10 + 4, 1), &there, "EAGAIN")?;
        other.says(("set", Lock::Write, number * 10 + 5, 5), &there, "ok")?;
    }
    other.says(("set", Lock::Unlock, 0, 0), &there, "ok")?;
    set(&file, Lock::Unlock, 0, 0).succeeds("unlocking everything")?;
    other.says(("set", Lock::Write, 0, 0), &there, "ok")
}

/// Two clients add to a number under a lock, and no addition is lost: what was written under it is
/// read by the next client that has it.
fn counter(place: &Place) -> Outcome {
    const ROUNDS: u64 = 40;
    let first = file(place)?;
    first
        .write_all_at(&0_u64.to_le_bytes(), 0)
        .succeeds("write")?;
    sys::close(first).succeeds("close")?;
    let add = |path: std::path::PathBuf| -> Outcome {
        let file = sys::open(&path, OFlag::O_RDWR, 0).succeeds("open")?;
        for _ in 0..ROUNDS {
            let deadline = Instant::now() + WAIT;
            // Locks of descriptions, as both are in one process.
            while let Err(error) = set_ofd(&file, Lock::Write, 0, 8) {
                if error != Errno::EAGAIN || Instant::now() > deadline {
                    return Err(Failure::new(format!(
                        "locking: {error:?}, expected it in time"
                    )));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let mut number = [0; 8];
            file.read_exact_at(&mut number, 0).succeeds("read")?;
            let next = u64::from_le_bytes(number).saturating_add(1);
            file.write_all_at(&next.to_le_bytes(), 0)
                .succeeds("write")?;
            set_ofd(&file, Lock::Unlock, 0, 8).succeeds("unlocking")?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads =
            [place.at("file"), place.there("file")].map(|path| scope.spawn(move || add(path)));
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_panic| Err(Failure::new("a thread panicked")))
        })
    })?;
    let held = std::fs::read(place.at("file")).succeeds("read")?;
    equal("the sum", held, (2 * ROUNDS).to_le_bytes().to_vec())
}
