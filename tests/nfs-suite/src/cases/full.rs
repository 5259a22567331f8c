//! A file system that has no room left.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::{Case, case_that_needs};
use crate::expect::{Expect, Failure, Outcome, equal};
use crate::feature::Feature;
use crate::place::Place;
use crate::random::Random;
use crate::sys;

const NEEDS: &[Feature] = &[Feature::SmallVolume];

pub(super) const CASES: &[Case] = &[
    case_that_needs("full/writes-are-refused", NEEDS, |place| {
        fill(place, OFlag::O_DSYNC)
    }),
    case_that_needs("full/a-close-or-fsync-tells", NEEDS, |place| {
        fill(place, OFlag::empty())
    }),
];

/// As much as the file system may have.
const MIB_MAX: u64 = 1024;
const PIECE_BYTES: usize = 1 << 20;

/// Writes until there is no room, and gives what was told, and how much was written before.
fn write_until_full(path: &Path, flag: OFlag) -> Outcome<(Errno, u64)> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | flag;
    let mut file = sys::open(path, flags, 0o644).succeeds("creating a file")?;
    let piece = Random::new(1).bytes(PIECE_BYTES);
    let told = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or_default());
    for written in 0..MIB_MAX {
        if let Err(error) = file.write_all(&piece) {
            return Ok((told(error), written));
        }
    }
    // What a client keeps back it has to tell of now.
    match file.sync_all() {
        Err(error) => Ok((told(error), MIB_MAX)),
        Ok(()) => Err(Failure::new(format!(
            "{MIB_MAX} MiB were written, expected a file system with less room (--lacks \
             small-volume)"
        ))),
    }
}

/// How long a file system may take to give room back: it does so behind the operation.
const ROOM_AGAIN: Duration = Duration::from_secs(60);

fn write_and_sync(path: &Path, data: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    file.write_all(data)?;
    file.sync_all()
}

fn fill(place: &Place, flag: OFlag) -> Outcome {
    write_and_sync(&place.at("before"), b"text").succeeds("write")?;
    let (told, written) = write_until_full(&place.at("big"), flag)?;
    equal(
        format!("what is told after {written} MiB"),
        told,
        Errno::ENOSPC,
    )?;
    let held = std::fs::read(place.there("before")).succeeds("reading a file")?;
    equal("what was there before", held, b"text".to_vec())?;
    // With room again, all goes on. What a client could not write keeps the file in use there, and
    // one of NFSv3 then removes only its name; it has no bytes left to write when it is empty.
    sys::truncate(&place.at("big"), 0).succeeds("truncate of what fills it")?;
    sys::unlink(&place.at("big")).succeeds("unlink of what fills it")?;
    let deadline = Instant::now() + ROOM_AGAIN;
    loop {
        match write_and_sync(&place.at("after"), b"more") {
            Err(error)
                if error.raw_os_error() == Some(Errno::ENOSPC as i32)
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(200));
            }
            done => break done.succeeds("writing when there is room")?,
        }
    }
    let held = std::fs::read(place.there("after")).succeeds("reading it")?;
    equal("what was written", held, b"more".to_vec())
}
