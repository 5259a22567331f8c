//! Random operations on one file, each checked against what the file has to hold: writes, reads,
//! mappings, truncations, allocations, holes, copies, and closes between them.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};

use super::{Case, case, case_that_needs};
use crate::expect::{Expect, Failure, Outcome, equal, same_bytes};
use crate::feature::Feature;
use crate::place::Place;
use crate::random::Random;
use crate::sys::{self, Mapping};

pub(super) const CASES: &[Case] = &[
    case("random/operations", |place| run(place, &PLAIN)),
    case_that_needs(
        "random/operations-with-holes",
        &[Feature::Fallocate],
        |place| run(place, &WITH_HOLES),
    ),
];

#[derive(Clone, Copy, Debug)]
enum Operation {
    Write,
    Append,
    Read,
    MappedRead,
    MappedWrite,
    Truncate,
    Sync,
    Reopen,
    ReadThere,
    Copy,
    Allocate,
    Punch,
}

use Operation::*;

const PLAIN: [Operation; 11] = [
    Write,
    Write,
    Append,
    Read,
    Read,
    MappedRead,
    MappedWrite,
    Truncate,
    Sync,
    Reopen,
    ReadThere,
];
const WITH_HOLES: [Operation; 14] = [
    Write,
    Write,
    Append,
    Read,
    Read,
    MappedRead,
    MappedWrite,
    Truncate,
    Sync,
    Reopen,
    ReadThere,
    Copy,
    Allocate,
    Punch,
];

/// The file never gets longer.
const BYTES_MAX: usize = 256 << 10;
/// Nor an operation.
const OPERATION_BYTES_MAX: usize = 64 << 10;

struct Model {
    holds: Vec<u8>,
    random: Random,
    file: File,
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or_default()
}

fn unsigned(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or_default()
}

impl Model {
    /// A range of at least a byte that ends in the file.
    fn range_within(&mut self) -> Option<(usize, usize)> {
        let at = self.random.below_usize(self.holds.len());
        let most = self.holds.len().saturating_sub(at).min(OPERATION_BYTES_MAX);
        (most > 0).then(|| (at, 1 + self.random.below_usize(most)))
    }

    /// A range of at least a byte that ends anywhere in what the file may be.
    fn range(&mut self) -> (usize, usize) {
        let at = self.random.below_usize(BYTES_MAX - 1);
        let most = (BYTES_MAX - at).min(OPERATION_BYTES_MAX);
        (at, 1 + self.random.below_usize(most))
    }

    fn grow(&mut self, bytes: usize) {
        if bytes > self.holds.len() {
            self.holds.resize(bytes, 0);
        }
    }

    fn put(&mut self, at: usize, data: &[u8]) {
        self.grow(at + data.len());
        for (byte, new) in self.holds.iter_mut().skip(at).zip(data) {
            *byte = *new;
        }
    }

    fn part(&self, at: usize, bytes: usize) -> &[u8] {
        self.holds.get(at..at + bytes).unwrap_or_default()
    }

    fn write(&mut self, at: usize, bytes: usize) -> Outcome {
        let data = self.random.bytes(bytes);
        self.file
            .write_all_at(&data, unsigned(at))
            .succeeds("write")?;
        self.put(at, &data);
        Ok(())
    }

    fn read(&mut self) -> Outcome {
        let Some((at, bytes)) = self.range_within() else {
            return Ok(());
        };
        let mut read = vec![0; bytes];
        self.file
            .read_exact_at(&mut read, unsigned(at))
            .succeeds("read")?;
        same_bytes("what was read", &read, self.part(at, bytes))
    }

    fn mapped(&mut self, writes: bool) -> Outcome {
        let Some((at, bytes)) = self.range_within() else {
            return Ok(());
        };
        let Some(length) = NonZeroUsize::new(self.holds.len()) else {
            return Ok(());
        };
        let mapping = Mapping::new(&self.file, 0, length).succeeds("mmap")?;
        if writes {
            let data = self.random.bytes(bytes);
            mapping.write(at, &data);
            mapping.sync().succeeds("msync")?;
            self.put(at, &data);
        }
        let mut read = vec![0; bytes];
        mapping.read(at, &mut read);
        same_bytes("what is mapped", &read, self.part(at, bytes))
    }

    fn copy(&mut self) -> Outcome {
        let Some((from, bytes)) = self.range_within() else {
            return Ok(());
        };
        let onto = self.random.below_usize(BYTES_MAX - bytes);
        // Parts that overlap are refused.
        if onto < from + bytes && from < onto + bytes {
            return Ok(());
        }
        let data = self.part(from, bytes).to_vec();
        let (mut at_from, mut at_onto) = (signed(from), signed(onto));
        let mut done = 0;
        while done < bytes {
            let file = self.file.as_fd();
            let copied = nix::fcntl::copy_file_range(
                file,
                Some(&mut at_from),
                file,
                Some(&mut at_onto),
                bytes - done,
            )
            .succeeds("copy_file_range")?;
            if copied == 0 {
                return Err(Failure::new(format!(
                    "copied {done} bytes, expected {bytes}"
                )));
            }
            done += copied;
        }
        self.put(onto, &data);
        Ok(())
    }

    fn apply(&mut self, operation: Operation, place: &Place) -> Outcome {
        match operation {
            Write => {
                let (at, bytes) = self.range();
                self.write(at, bytes)
            }
            Append => {
                let room = BYTES_MAX
                    .saturating_sub(self.holds.len())
                    .min(OPERATION_BYTES_MAX);
                let bytes = self.random.below_usize(room);
                self.write(self.holds.len(), bytes)
            }
            Read => self.read(),
            MappedRead => self.mapped(false),
            MappedWrite => self.mapped(true),
            Truncate => {
                let bytes = self.random.below_usize(BYTES_MAX);
                self.file.set_len(unsigned(bytes)).succeeds("ftruncate")?;
                self.holds.resize(bytes, 0);
                Ok(())
            }
            Sync => self.file.sync_all().succeeds("fsync"),
            Reopen => {
                let file = sys::open(&place.at("file"), OFlag::O_RDWR, 0).succeeds("open")?;
                sys::close(std::mem::replace(&mut self.file, file)).succeeds("close")
            }
            ReadThere => {
                // What a client has open is another's to read when it was closed.
                self.apply(Reopen, place)?;
                let read =
                    std::fs::read(place.there("file")).succeeds("read by the second client")?;
                same_bytes("what the second client reads", &read, &self.holds)
            }
            Copy => self.copy(),
            Allocate => {
                let (at, bytes) = self.range();
                fallocate(
                    self.file.as_fd(),
                    FallocateFlags::empty(),
                    signed(at),
                    signed(bytes),
                )
                .succeeds("fallocate")?;
                self.grow(at + bytes);
                Ok(())
            }
            Punch => {
                let (at, bytes) = self.range();
                let flags =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                match fallocate(self.file.as_fd(), flags, signed(at), signed(bytes)) {
                    // What lies behind the end has no hole to be made in.
                    Err(Errno::EINVAL) if at >= self.holds.len() => (),
                    done => done.succeeds("punching a hole")?,
                }
                for byte in self.holds.iter_mut().skip(at).take(bytes) {
                    *byte = 0;
                }
                Ok(())
            }
        }
    }
}

fn run(place: &Place, operations: &[Operation]) -> Outcome {
    let mut model = Model {
        holds: Vec::new(),
        random: Random::new(place.sizes.seed),
        file: sys::create(&place.at("file"), 0o644).succeeds("creating a file")?,
    };
    for number in 0..place.sizes.operations {
        let operation = operations.get(model.random.below_usize(operations.len()));
        let Some(operation) = operation else {
            return Err(Failure::new("no operation"));
        };
        model
            .apply(*operation, place)
            .and_then(|()| {
                let size = model.file.metadata().succeeds("fstat")?.len();
                equal("size", size, unsigned(model.holds.len()))
            })
            .map_err(|failure| {
                Failure::new(format!(
                    "operation {number} of seed {}, {operation:?}: {failure}",
                    place.sizes.seed
                ))
            })?;
    }
    model.apply(ReadThere, place)
}
