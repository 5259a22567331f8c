//! Helpers for the unit tests of several modules.

use std::sync::Arc;

use capstan_memory::{Pages, Pool};

use crate::geometry::Geometry;
use crate::io::{Completion, Data, Io, Op, Submitted};
use crate::ram::{RamStore, RamVolume};
use crate::volume::Volume;

pub(crate) const GEOMETRY: Geometry = Geometry {
    lba_bytes: 4096,
    lbas: 1024,
    volatile_write_cache: false,
    discard: true,
    discard_zeroes: true,
    optimal_io_bytes: 4096,
    atomic_lbas: 1,
    read_only: false,
};

/// A RAM volume of 4096-byte LBAs.
pub(crate) fn ram(lbas: u64) -> Box<dyn Volume> {
    let store = RamStore::new(usize::try_from(lbas * 4096).unwrap(), true).unwrap();
    let volume = RamVolume::new(Arc::new(store), 4096, lbas, Arc::from("ram"));
    Box::new(volume.unwrap())
}

pub(crate) fn pool(bytes: usize) -> Pool {
    Pool::new(bytes, Pages::Ordinary).unwrap()
}

/// Data that holds `bytes`.
pub(crate) fn data(pool: &Pool, bytes: &[u8]) -> Data {
    let mut buffer = pool.take(u32::try_from(bytes.len()).unwrap()).unwrap();
    buffer.copy_from(0, bytes);
    Data {
        buffer,
        offset_bytes: 0,
    }
}

/// The bytes of data that has come back.
pub(crate) fn bytes(data: &Data) -> Vec<u8> {
    let mut out = vec![0; (data.buffer.len_bytes() - data.offset_bytes) as usize];
    data.buffer.copy_to(data.offset_bytes as usize, &mut out);
    out
}

/// Runs one operation to its end on a volume that needs no engine.
pub(crate) fn run(volume: &mut dyn Volume, op: Op, data: Option<Data>) -> Completion {
    match volume.submit(Io { token: 7, op, data }, 0) {
        Submitted::Done(completion) => completion,
        Submitted::Pending => {
            let mut out = Vec::new();
            while out.is_empty() {
                let deadline_us = volume
                    .next_deadline_us()
                    .expect("nothing held, nothing done");
                volume.poll(deadline_us, &mut out);
            }
            out.remove(0)
        }
    }
}

pub(crate) fn read(volume: &mut dyn Volume, pool: &Pool, lba: u64, lbas: u32) -> Vec<u8> {
    let len = lbas * volume.geometry().lba_bytes;
    let done = run(
        volume,
        Op::Read { lba, lbas },
        Some(data(pool, &vec![0xee; len as usize])),
    );
    assert_eq!(done.result, Ok(()));
    bytes(done.data.as_ref().unwrap())
}

pub(crate) fn write(volume: &mut dyn Volume, pool: &Pool, lba: u64, content: &[u8], fua: bool) {
    let lbas = u32::try_from(content.len()).unwrap() / volume.geometry().lba_bytes;
    let done = run(
        volume,
        Op::Write { lba, lbas, fua },
        Some(data(pool, content)),
    );
    assert_eq!((done.token, done.result), (7, Ok(())));
}
