//! The shape of a volume and the range arithmetic every operation goes through.

use capstan_memory::Buffer;

use crate::IoErrorKind;
use crate::io::{Io, Op};

/// What a volume is and can do. While a volume is open only the number of LBAs changes, and only on
/// a file or device that something else makes longer or shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in one LBA: 512 or 4096.
    pub lba_bytes: u32,
    /// LBAs in the volume.
    pub lbas: u64,
    /// Whether a completed write without FUA may be lost by a power cut until the next Flush.
    pub volatile_write_cache: bool,
    /// Whether Discard gives space back. Where it does not, Discard completes and does nothing.
    pub discard: bool,
    /// Whether a range that was given back by Discard reads as zeroes. A hole in a file does; a
    /// block device promises nothing (`BLKDISCARD`), so there only WriteZeroes makes zeroes.
    pub discard_zeroes: bool,
    /// Preferred size and alignment of transfers, in bytes; at least `lba_bytes`.
    pub optimal_io_bytes: u32,
    /// How many LBAs one Write changes atomically, as other commands see it; at least 1.
    pub atomic_lbas: u32,
    /// Whether every operation that changes data is refused with [`IoErrorKind::ReadOnly`].
    pub read_only: bool,
}

impl Geometry {
    /// Whether `lba_bytes` is a supported LBA size.
    #[must_use]
    pub fn supports_lba_bytes(lba_bytes: u32) -> bool {
        matches!(lba_bytes, 512 | 4096)
    }

    /// The volume's size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lbas.saturating_mul(u64::from(self.lba_bytes))
    }

    /// Checks an operation against the volume: writable, in range, and with data of the right size.
    ///
    /// # Errors
    /// The kind with which the operation must fail. Never panics, whatever the values.
    pub fn check(&self, io: &Io) -> Result<Extent, IoErrorKind> {
        if self.read_only && io.op.kind().changes_data() {
            return Err(IoErrorKind::ReadOnly);
        }
        let extent = self.extent(&io.op)?;
        match io.op {
            Op::Read { .. } | Op::Write { .. } => {
                let data = io.data.as_ref().ok_or(IoErrorKind::BadData)?;
                holds(&data.buffer, data.offset_bytes, extent.len_bytes).then_some(extent)
            }
            Op::Flush | Op::WriteZeroes { .. } | Op::Discard { .. } => Some(extent),
        }
        .ok_or(IoErrorKind::BadData)
    }

    /// The bytes that an operation names, when all of them are inside the volume.
    pub(crate) fn extent(&self, op: &Op) -> Result<Extent, IoErrorKind> {
        let (lba, lbas) = op.range();
        let end = lba.checked_add(lbas).ok_or(IoErrorKind::OutOfRange)?;
        if end > self.lbas {
            return Err(IoErrorKind::OutOfRange);
        }
        let scale = |lbas: u64| lbas.checked_mul(u64::from(self.lba_bytes));
        match (scale(lba), scale(lbas)) {
            (Some(offset_bytes), Some(len_bytes)) => Ok(Extent {
                offset_bytes,
                len_bytes,
            }),
            _ => Err(IoErrorKind::OutOfRange),
        }
    }
}

/// A range of bytes inside a volume, as [`Geometry::check`] proved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte, from the start of the volume.
    pub offset_bytes: u64,
    /// How many bytes.
    pub len_bytes: u64,
}

/// Whether `buffer` has `len_bytes` from `offset_bytes` on.
pub(crate) fn holds(buffer: &Buffer, offset_bytes: u32, len_bytes: u64) -> bool {
    let end = u64::from(offset_bytes).checked_add(len_bytes);
    end.is_some_and(|end| end <= u64::from(buffer.len_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Extent, Geometry};
    use crate::IoErrorKind;
    use crate::io::{Data, Io, Op};
    use crate::testing::{GEOMETRY, pool};

    fn io(op: Op) -> Io {
        Io {
            token: 0,
            op,
            data: None,
        }
    }

    #[test]
    fn range_ends_at_the_last_lba() {
        let geometry = Geometry {
            lbas: 100,
            ..GEOMETRY
        };
        let zero = |lba, lbas| geometry.check(&io(Op::Discard { lba, lbas }));
        assert_eq!(
            zero(99, 1),
            Ok(Extent {
                offset_bytes: 99 * 4096,
                len_bytes: 4096
            })
        );
        assert_eq!(zero(99, 2), Err(IoErrorKind::OutOfRange));
        assert_eq!(
            zero(100, 0),
            Ok(Extent {
                offset_bytes: 409_600,
                len_bytes: 0
            })
        );
        assert_eq!(zero(u64::MAX, 1), Err(IoErrorKind::OutOfRange));
        assert_eq!(zero(1, u64::MAX), Err(IoErrorKind::OutOfRange));
    }

    #[test]
    fn data_must_hold_the_transfer() {
        let pool = pool(1 << 20);
        let read = |len, offset_bytes, lbas| {
            let buffer = pool.take(len).unwrap();
            let data = Some(Data {
                buffer,
                offset_bytes,
            });
            GEOMETRY
                .check(&Io {
                    token: 0,
                    op: Op::Read { lba: 0, lbas },
                    data,
                })
                .map(|e| e.len_bytes)
        };
        assert_eq!(read(8192, 0, 2), Ok(8192));
        assert_eq!(read(8192, 1, 2), Err(IoErrorKind::BadData));
        assert_eq!(read(8192 + 64, 64, 2), Ok(8192));
        assert_eq!(read(8192, u32::MAX, 1), Err(IoErrorKind::BadData));
        let none = GEOMETRY.check(&io(Op::Read { lba: 0, lbas: 1 }));
        assert_eq!(none, Err(IoErrorKind::BadData));
    }

    #[test]
    fn read_only_refuses_what_changes_data() {
        let geometry = Geometry {
            read_only: true,
            ..GEOMETRY
        };
        let zeroes = Op::WriteZeroes {
            lba: 0,
            lbas: 1,
            deallocate: false,
            fua: false,
        };
        for op in [
            zeroes,
            Op::Discard { lba: 0, lbas: 1 },
            Op::Write {
                lba: 0,
                lbas: 1,
                fua: false,
            },
        ] {
            assert_eq!(geometry.check(&io(op)), Err(IoErrorKind::ReadOnly));
        }
        assert!(geometry.check(&io(Op::Flush)).is_ok());
    }

    proptest! {
        #[test]
        fn an_extent_is_always_inside(lbas in any::<u64>(), lba in any::<u64>(), count in any::<u64>()) {
            let geometry = Geometry { lbas, ..GEOMETRY };
            if let Ok(extent) = geometry.check(&io(Op::Discard { lba, lbas: count })) {
                let end = u128::from(extent.offset_bytes) + u128::from(extent.len_bytes);
                prop_assert!(end <= u128::from(lbas) * 4096);
            }
        }
    }
}
