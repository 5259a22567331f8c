//! A disk in memory with a volatile write cache, whose power can be cut: the model of what a host
//! may rely on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::delay::next_random;
use crate::error::{IoError, IoErrorKind};
use crate::geometry::{Extent, Geometry};
use crate::io::{Completion, Data, Io, Op, Submitted};
use crate::volume::Volume;

/// The disk: a handle that volumes, tests and faults share. For tests: it takes a lock per
/// operation and allocates.
///
/// A write goes to the cache, from where a Flush, or FUA for its own LBAs, takes it to the medium.
/// Reads see the cache first. Of every cached LBA, a power cut keeps the old or the new version.
#[derive(Clone, Debug)]
pub struct WriteBack {
    disk: Arc<Mutex<Disk>>,
    geometry: Geometry,
    name: Arc<str>,
}

#[derive(Debug)]
struct Disk {
    medium: Vec<u8>,
    /// Written and not yet on the medium, by LBA.
    cache: BTreeMap<u64, Box<[u8]>>,
    powered: bool,
}

impl WriteBack {
    /// A disk of zeroes, with power. `lba_bytes` is 512 or 4096; the disk lives in ordinary memory.
    #[must_use]
    pub fn new(lba_bytes: u32, lbas: u64, name: Arc<str>) -> Self {
        let geometry = Geometry {
            lba_bytes,
            lbas,
            volatile_write_cache: true,
            discard: true,
            discard_zeroes: true,
            optimal_io_bytes: 4096,
            atomic_lbas: 1,
            read_only: false,
        };
        let medium = vec![0; index(geometry.bytes())];
        let disk = Disk {
            medium,
            cache: BTreeMap::new(),
            powered: true,
        };
        Self {
            disk: Arc::new(Mutex::new(disk)),
            geometry,
            name,
        }
    }

    /// A volume on this disk.
    #[must_use]
    pub fn open(&self) -> WriteBackVolume {
        WriteBackVolume {
            store: self.clone(),
        }
    }

    /// Cuts the power: of every LBA in the cache either the new version has reached the medium or
    /// it is lost, as `seed` decides. Until [`WriteBack::restore_power`] everything fails with
    /// [`IoErrorKind::Gone`].
    pub fn cut_power(&self, seed: u64) {
        let disk = &mut *self.lock();
        let mut random = seed;
        // Some cuts keep nothing and some everything; most are a mixture.
        let odds = next_random(&mut random) % 5;
        for (lba, bytes) in std::mem::take(&mut disk.cache) {
            if next_random(&mut random) % 4 < odds {
                disk.store(lba, &bytes);
            }
        }
        disk.powered = false;
    }

    /// Restores the power, with an empty cache.
    pub fn restore_power(&self) {
        self.lock().powered = true;
    }

    /// How many LBAs a power cut could lose now.
    #[must_use]
    pub fn cached_lbas(&self) -> usize {
        self.lock().cache.len()
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        // Only a test can have panicked; the disk is as consistent as after a crash.
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, op: Op, extent: Extent, data: Option<&mut Data>) -> Result<(), IoErrorKind> {
        let disk = &mut *self.lock();
        if !disk.powered {
            return Err(IoErrorKind::Gone);
        }
        let lba_bytes = self.geometry.lba_bytes as usize;
        let (lba, lbas) = op.range();
        let range = lba..lba + lbas;
        match (op, data) {
            (Op::Read { .. }, Some(data)) => {
                let mut at = data.offset_bytes as usize;
                for lba in range {
                    data.buffer.copy_from(at, disk.load(lba, lba_bytes));
                    at += lba_bytes;
                }
            }
            (Op::Write { fua, .. }, Some(data)) => {
                let mut bytes = vec![0; index(extent.len_bytes)];
                data.buffer.copy_to(data.offset_bytes as usize, &mut bytes);
                disk.write(range, &bytes, lba_bytes, fua);
            }
            (Op::WriteZeroes { fua, .. }, _) => {
                disk.write(range, &vec![0; index(extent.len_bytes)], lba_bytes, fua);
            }
            // Deallocated at once and for good: a hint need not survive, but may.
            (Op::Discard { .. }, _) => {
                disk.write(range, &vec![0; index(extent.len_bytes)], lba_bytes, false);
            }
            (Op::Flush, _) => {
                for (lba, bytes) in std::mem::take(&mut disk.cache) {
                    disk.store(lba, &bytes);
                }
            }
            // `check` refuses transfers without data.
            (Op::Read { .. } | Op::Write { .. }, None) => return Err(IoErrorKind::BadData),
        }
        Ok(())
    }
}

impl Disk {
    fn load(&self, lba: u64, lba_bytes: usize) -> &[u8] {
        let start = index(lba) * lba_bytes;
        self.cache
            .get(&lba)
            .map_or(&self.medium[start..start + lba_bytes], |bytes| bytes)
    }

    fn store(&mut self, lba: u64, bytes: &[u8]) {
        let start = index(lba) * bytes.len();
        self.medium[start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn write(&mut self, range: std::ops::Range<u64>, bytes: &[u8], lba_bytes: usize, fua: bool) {
        for (lba, bytes) in range.zip(bytes.chunks_exact(lba_bytes)) {
            if fua {
                self.cache.remove(&lba);
                self.store(lba, bytes);
            } else {
                self.cache.insert(lba, Box::from(bytes));
            }
        }
    }
}

/// A number of bytes or LBAs that is known to be inside memory.
fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// A volume on a [`WriteBack`] disk.
#[derive(Debug)]
pub struct WriteBackVolume {
    store: WriteBack,
}

impl Volume for WriteBackVolume {
    fn geometry(&self) -> Geometry {
        self.store.geometry
    }

    fn name(&self) -> &Arc<str> {
        &self.store.name
    }

    fn submit(&mut self, mut io: Io, _now_us: u64) -> Submitted {
        let checked = self.store.geometry.check(&io);
        let result = checked.and_then(|extent| self.store.run(io.op, extent, io.data.as_mut()));
        let result = result.map_err(|kind| IoError::new(kind, &io.op, &self.store.name));
        Submitted::Done(Completion {
            token: io.token,
            result,
            data: io.data,
        })
    }

    fn poll(&mut self, _now_us: u64, _out: &mut Vec<Completion>) {}

    fn next_deadline_us(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::WriteBack;
    use crate::IoErrorKind;
    use crate::io::Op;
    use crate::testing::{pool, read, run, write};

    fn disk() -> WriteBack {
        WriteBack::new(512, 32, Arc::from("write-back"))
    }

    #[test]
    fn what_was_not_flushed_may_be_lost_and_what_was_flushed_may_not() {
        let pool = pool(1 << 20);
        let (mut lost, mut kept) = (0, 0);
        for seed in 0..64 {
            let disk = disk();
            let mut volume = disk.open();
            write(&mut volume, &pool, 0, &[1; 512], false);
            assert_eq!(
                (disk.cached_lbas(), read(&mut volume, &pool, 0, 1)),
                (1, vec![1; 512])
            );
            assert_eq!(run(&mut volume, Op::Flush, None).result, Ok(()));
            assert_eq!(disk.cached_lbas(), 0);
            write(&mut volume, &pool, 1, &[2; 512], true);
            write(&mut volume, &pool, 2, &[3; 512], false);
            disk.cut_power(seed);
            let gone = run(&mut volume, Op::Flush, None).result.unwrap_err();
            assert_eq!(gone.kind, IoErrorKind::Gone);
            disk.restore_power();
            assert_eq!(
                read(&mut volume, &pool, 0, 2),
                [[1; 512], [2; 512]].concat()
            );
            match read(&mut volume, &pool, 2, 1)[0] {
                3 => kept += 1,
                _ => lost += 1,
            }
        }
        assert!(lost > 10 && kept > 10, "lost {lost}, kept {kept}");
    }

    proptest! {
        /// After any operations and cuts every LBA holds a version no older than its last durable
        /// one.
        #[test]
        fn durable_is_durable(
            ops in prop::collection::vec((0u8..8, 0u64..32, 1u32..6, any::<bool>()), 1..80),
        ) {
            let pool = pool(1 << 20);
            let disk = disk();
            let mut volume = disk.open();
            // Per LBA: the durable version, then every version written since.
            let mut versions: Vec<Vec<u8>> = vec![vec![0]; 32];
            for (version, (kind, lba, lbas, fua)) in (1u8..).zip(ops) {
                let lbas = lbas.min(u32::try_from(32 - lba).unwrap());
                let start = usize::try_from(lba).unwrap();
                let touched = start..start + lbas as usize;
                match kind {
                    0..4 => {
                        let bytes = vec![version; 512 * lbas as usize];
                        write(&mut volume, &pool, lba, &bytes, fua);
                        for known in &mut versions[touched] {
                            if fua {
                                known.clear();
                            }
                            known.push(version);
                        }
                    }
                    4 => {
                        let op = Op::WriteZeroes { lba, lbas, deallocate: true, fua };
                        prop_assert_eq!(run(&mut volume, op, None).result, Ok(()));
                        for known in &mut versions[touched] {
                            if fua {
                                known.clear();
                            }
                            known.push(0);
                        }
                    }
                    5 => {
                        prop_assert_eq!(run(&mut volume, Op::Flush, None).result, Ok(()));
                        for known in &mut versions {
                            known.drain(..known.len() - 1);
                        }
                    }
                    _ => {
                        disk.cut_power(u64::from(version));
                        disk.restore_power();
                        for (lba, known) in (0..32).zip(&mut versions) {
                            let now = read(&mut volume, &pool, lba, 1);
                            prop_assert!(now.iter().all(|&b| b == now[0]), "torn LBA");
                            prop_assert!(known.contains(&now[0]), "LBA {lba}: {} of {known:?}", now[0]);
                            *known = vec![now[0]];
                        }
                    }
                }
            }
        }
    }
}
