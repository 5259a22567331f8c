//! A volume in memory behind [`BlockQueue`], whose I/O completes when a test says so.

use capstan_memory::{Buffer, Pages, Pool};
use capstan_nvme_proto::opcode::IoOpcode;
use capstan_nvme_proto::status::Status;

use super::block::{BlockQueue, Geometry};
use crate::allocation::Allocated;
use crate::driver::{Op, Refused, SubmitError};
use crate::error::IoError;

/// An I/O that is done.
pub(super) struct Done {
    pub(super) token: u64,
    pub(super) result: Result<(), IoError>,
    pub(super) buffer: Option<Buffer>,
}

/// See the [module](self).
pub(super) struct FakeQueue {
    pub(super) geometry: Geometry,
    pool: Pool,
    pub(super) data: Vec<u8>,
    /// What a power cut would leave.
    pub(super) durable: Vec<u8>,
    /// In flight, in order of submission.
    pub(super) pending: Vec<(u64, Op, Option<Buffer>)>,
    /// Most I/Os in flight.
    pub(super) capacity: usize,
    /// I/O that touches this LBA fails.
    pub(super) bad_lba: Option<u64>,
    /// The association is over.
    pub(super) gone: bool,
    /// What was asked of the controller: token, first LBA and count.
    pub(super) asked: Vec<(u64, u64, u32)>,
    /// What it answers.
    pub(super) allocated: Option<Allocated>,
    /// LBAs that were read.
    pub(super) lbas_read: u64,
}

impl FakeQueue {
    /// A volume of zeroes with `memory_bytes` for data.
    pub(super) fn new(geometry: Geometry, memory_bytes: usize) -> Self {
        let len = usize::try_from(geometry.size_bytes).unwrap();
        Self {
            geometry,
            pool: Pool::new(memory_bytes, Pages::Ordinary).unwrap(),
            data: vec![0; len],
            durable: vec![0; len],
            pending: Vec::new(),
            capacity: 64,
            bad_lba: None,
            gone: false,
            asked: Vec::new(),
            allocated: None,
            lbas_read: 0,
        }
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn free_bytes(&self) -> usize {
        self.pool.free_bytes()
    }

    /// Carries out the I/O at `index` of those in flight.
    pub(super) fn complete(&mut self, index: usize) -> Done {
        let (token, op, mut buffer) = self.pending.remove(index);
        let result = self.execute(op, buffer.as_mut());
        Done {
            token,
            result,
            buffer,
        }
    }

    fn execute(&mut self, op: Op, buffer: Option<&mut Buffer>) -> Result<(), IoError> {
        let (slba, nlb) = op.range();
        let lbas = slba..slba + u64::from(nlb);
        if self.bad_lba.is_some_and(|bad| lbas.contains(&bad)) {
            return Err(IoError::Status {
                opcode: IoOpcode::READ,
                nsid: 1,
                slba,
                nlb,
                status: Status::UNRECOVERED_ERROR,
            });
        }
        let lba_bytes = self.geometry.lba_bytes as usize;
        let start = usize::try_from(slba).unwrap() * lba_bytes;
        let range = start..start + nlb as usize * lba_bytes;
        let fua = match op {
            Op::Read { .. } => {
                self.lbas_read += u64::from(nlb);
                buffer.unwrap().copy_from(0, &self.data[range]);
                return Ok(());
            }
            Op::Write { fua, .. } => {
                buffer.unwrap().copy_to(0, &mut self.data[range.clone()]);
                fua
            }
            Op::WriteZeroes { fua, .. } => {
                self.data[range.clone()].fill(0);
                fua
            }
            Op::Discard { .. } => {
                self.data[range].fill(0);
                return Ok(());
            }
            Op::Flush => {
                self.durable.copy_from_slice(&self.data);
                return Ok(());
            }
            Op::Compare { .. } | Op::Verify { .. } => unreachable!("no front end does that"),
        };
        if fua {
            self.durable[range.clone()].copy_from_slice(&self.data[range]);
        }
        Ok(())
    }
}

impl BlockQueue for FakeQueue {
    fn take(&mut self, len_bytes: u32) -> Option<Buffer> {
        self.pool.take(len_bytes)
    }

    fn submit(&mut self, token: u64, op: Op, buffer: Option<Buffer>) -> Result<(), Refused> {
        if self.gone {
            let reason = SubmitError::Invalid(IoError::Closed);
            return Err(Refused { reason, buffer });
        }
        if self.pending.len() >= self.capacity {
            let reason = SubmitError::Busy;
            return Err(Refused { reason, buffer });
        }
        let (slba, nlb) = op.range();
        let end = (slba + u64::from(nlb)) * u64::from(self.geometry.lba_bytes);
        assert!(end <= self.geometry.size_bytes, "{op:?} leaves the volume");
        let needs = matches!(op, Op::Read { .. } | Op::Write { .. });
        let holds = buffer.as_ref().map(Buffer::len_bytes);
        assert_eq!(holds.is_some(), needs, "{op:?}");
        assert!(holds.is_none_or(|len| len >= nlb * self.geometry.lba_bytes));
        self.pending.push((token, op, buffer));
        Ok(())
    }

    fn look_up(&mut self, token: u64, slba: u64, nlb: u32) {
        self.asked.push((token, slba, nlb));
    }
}
