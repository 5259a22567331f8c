//! A volume that keeps nothing: to measure everything but storage.

use std::sync::Arc;

use capstan_memory::RawBytes;

use crate::error::IoError;
use crate::geometry::Geometry;
use crate::io::{Completion, Io, Op, Submitted};
use crate::volume::{ReadAtOnce, Volume};

/// Completes everything at once. Writes are dropped; reads return zeroes, never what another host
/// left in the buffer.
#[derive(Debug)]
pub(crate) struct NullVolume {
    geometry: Geometry,
    name: Arc<str>,
}

impl NullVolume {
    pub(crate) fn geometry_of(lba_bytes: u32, lbas: u64) -> Geometry {
        Geometry {
            lba_bytes,
            lbas,
            volatile_write_cache: false,
            discard: true,
            discard_zeroes: true,
            optimal_io_bytes: 4096,
            atomic_lbas: 1,
            read_only: false,
        }
    }

    pub(crate) fn new(lba_bytes: u32, lbas: u64, name: Arc<str>) -> Self {
        let geometry = Self::geometry_of(lba_bytes, lbas);
        Self { geometry, name }
    }
}

impl Volume for NullVolume {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn read_at_once(&self, lba: u64, lbas: u32) -> ReadAtOnce<'_> {
        let end = lba.checked_add(u64::from(lbas));
        match end.is_some_and(|end| end <= self.geometry.lbas) {
            true => ReadAtOnce::Zeroes,
            false => ReadAtOnce::Not,
        }
    }

    fn write_at_once(&self, lba: u64, lbas: u32, data: RawBytes<'_>) -> bool {
        let fua = false;
        let extent = self.geometry.extent(&Op::Write { lba, lbas, fua });
        extent.is_ok_and(|extent| extent.len_bytes <= data.len() as u64)
    }

    fn submit(&mut self, mut io: Io, _now_us: u64) -> Submitted {
        let checked = self.geometry.check(&io);
        if let (Ok(extent), Op::Read { .. }, Some(data)) = (&checked, &io.op, &mut io.data) {
            let start = data.offset_bytes as usize;
            // `check` proved that the extent fits the buffer, whose length is a u32.
            let len = usize::try_from(extent.len_bytes).unwrap_or(0);
            data.buffer.zero(start..start + len);
        }
        let result = checked
            .map(|_| ())
            .map_err(|kind| IoError::new(kind, &io.op, &self.name));
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

    use super::NullVolume;
    use crate::IoErrorKind;
    use crate::io::{Data, Op};
    use crate::testing::{bytes, pool, read, run, write};
    use crate::volume::{ReadAtOnce, Volume};
    use crate::{Delay, Delays, Faulty};

    #[test]
    fn reads_are_zeroes_whatever_was_written() {
        let pool = pool(1 << 20);
        let mut volume = NullVolume::new(512, 100, Arc::from("null:50KiB"));
        write(&mut volume, &pool, 0, &[7; 1024], true);
        assert_eq!(read(&mut volume, &pool, 0, 2), [0; 1024]);
    }

    #[test]
    fn bytes_around_the_data_stay() {
        let pool = pool(1 << 20);
        let mut volume = NullVolume::new(512, 100, Arc::from("null:50KiB"));
        let mut buffer = pool.take(64 + 512 + 8).unwrap();
        buffer.copy_from(0, &[9; 584]);
        let data = Some(Data {
            buffer,
            offset_bytes: 64,
        });
        let done = run(&mut volume, Op::Read { lba: 1, lbas: 1 }, data);
        let mut data = done.data.unwrap();
        data.offset_bytes = 0;
        assert_eq!(
            bytes(&data),
            [[9; 64].as_slice(), &[0; 512], &[9; 8]].concat()
        );
    }

    #[test]
    fn zero_is_known_inside_the_volume_and_in_front_of_no_decorator() {
        let known_zero = |volume: &dyn Volume, lba, lbas| match volume.read_at_once(lba, lbas) {
            ReadAtOnce::Zeroes => true,
            ReadAtOnce::Not => false,
            ReadAtOnce::InMemory(memory) => panic!("{memory:?}"),
        };
        let volume = NullVolume::new(512, 100, Arc::from("null:50KiB"));
        assert!(known_zero(&volume, 0, 100) && known_zero(&volume, 99, 1));
        for (lba, lbas) in [(0, 101), (100, 1), (u64::MAX, 1), (u64::MAX, u32::MAX)] {
            assert!(!known_zero(&volume, lba, lbas), "{lba}+{lbas}");
        }
        // A read that is not submitted would be neither delayed nor failed.
        let faulty = Faulty::new(Box::new(volume), Vec::new());
        assert!(!known_zero(&faulty, 0, 1));
        let volume = NullVolume::new(512, 100, Arc::from("null:50KiB"));
        let delayed = Delay::new(Box::new(volume), Delays::all(1));
        assert!(!known_zero(&delayed, 0, 1));
    }

    #[test]
    fn a_write_at_once_is_forgotten_where_it_would_succeed() {
        let volume = NullVolume::new(512, 100, Arc::from("null:50KiB"));
        let data = [1; 1024];
        for (lba, lbas, done) in [
            (0, 2, true),
            (98, 2, true),
            (0, 3, false),
            (99, 2, false),
            (u64::MAX, 1, false),
        ] {
            let data = data.as_slice().into();
            assert_eq!(volume.write_at_once(lba, lbas, data), done, "{lba}+{lbas}");
        }
    }

    #[test]
    fn out_of_range_is_refused() {
        let mut volume = NullVolume::new(512, 100, Arc::from("null:50KiB"));
        let done = run(&mut volume, Op::Discard { lba: 99, lbas: 2 }, None);
        assert_eq!(done.result.unwrap_err().kind, IoErrorKind::OutOfRange);
    }
}
