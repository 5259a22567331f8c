//! Blocks that say where and when they were written, at depth: written, overwritten and read back.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::fcntl::OFlag;

use super::{Case, case};
use crate::expect::{Expect, Failure, Outcome, same_bytes};
use crate::place::Place;
use crate::random::Random;
use crate::sys::{self, Aligned};

pub(super) const CASES: &[Case] = &[
    case("verify/4-kib-depth-1", |place| run(place, 4096, 1, true)),
    case("verify/4-kib-depth-32", |place| run(place, 4096, 32, true)),
    case("verify/64-kib-depth-8", |place| run(place, 65_536, 8, true)),
    case("verify/128-kib-depth-8", |place| {
        run(place, 131_072, 8, true)
    }),
    case("verify/1-mib-depth-4", |place| run(place, 1 << 20, 4, true)),
    case("verify/odd-sizes-through-the-cache", |place| {
        run(place, 5003, 8, false)
    }),
];

/// How many blocks each writer writes.
const WRITES: u64 = 48;
/// How many places each writer has, so that most are written more than once.
const PLACES: u64 = 12;

/// What a block holds: random numbers of its place, its generation and its writer.
fn block(writer: u64, place: u64, generation: u64, bytes: usize) -> Vec<u8> {
    Random::new(writer << 40 | place << 20 | generation).bytes(bytes)
}

fn offset(writer: u64, place: u64, bytes: usize) -> u64 {
    (writer * PLACES + place) * u64::try_from(bytes).unwrap_or_default()
}

fn check(path: &Path, flags: OFlag, bytes: usize, written: &[HashMap<u64, u64>]) -> Outcome {
    let file = sys::open(path, OFlag::O_RDONLY | flags, 0).succeeds("open")?;
    let mut room = Aligned::new(bytes);
    for (writer, places) in (0..).zip(written) {
        for (place, generation) in places {
            let at = offset(writer, *place, bytes);
            file.read_exact_at(room.bytes(), at)
                .succeeds(format!("read at {at}"))?;
            let expected = block(writer, *place, *generation, bytes);
            same_bytes(format!("the block at {at}"), room.bytes(), &expected)?;
        }
    }
    Ok(())
}

/// As many writers at once as there are to be operations on the way; each reads back what it has
/// just written, and all of it is read by both clients in the end.
fn run(place: &Place, bytes: usize, depth: u64, direct: bool) -> Outcome {
    let flags = if direct {
        OFlag::O_DIRECT
    } else {
        OFlag::empty()
    };
    let path = place.at("file");
    drop(sys::create(&path, 0o644).succeeds("creating a file")?);
    let write = |writer: u64| -> Outcome<HashMap<u64, u64>> {
        let file = sys::open(&path, OFlag::O_RDWR | flags, 0).succeeds("open")?;
        let mut random = Random::new(writer + 100);
        let mut written = HashMap::new();
        let mut room = Aligned::new(bytes);
        for generation in 0..WRITES {
            let place = random.below(PLACES);
            let at = offset(writer, place, bytes);
            let data = block(writer, place, generation, bytes);
            room.bytes().copy_from_slice(&data);
            file.write_all_at(room.bytes(), at)
                .succeeds(format!("write at {at}"))?;
            written.insert(place, generation);
            if generation % 4 == 3 {
                file.read_exact_at(room.bytes(), at)
                    .succeeds(format!("read at {at}"))?;
                same_bytes(format!("the block at {at}, at once"), room.bytes(), &data)?;
            }
        }
        sys::close(file).succeeds("close")?;
        Ok(written)
    };
    let written = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth)
            .map(|writer| scope.spawn(move || write(writer)))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_panic| Err(Failure::new("a writer panicked")))
            })
            .collect::<Outcome<Vec<_>>>()
    })?;
    check(&path, flags, bytes, &written)?;
    check(&place.there("file"), flags, bytes, &written)
}
