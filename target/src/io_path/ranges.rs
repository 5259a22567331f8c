//! Commands of several ranges (Dataset Management, Copy): one storage operation at a time.

use capstan_nvme_proto::command::LbaRange;
use capstan_nvme_proto::status::Status;
use capstan_subsystem::IoOperation;

use super::command::OnMedium;
use super::on_medium::Step;
use crate::limits::TRANSFER_BYTES_MAX;

/// What is left to do of such a command. It is boxed: other commands do not carry it.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    left: std::vec::IntoIter<LbaRange>,
    /// Copy: the destination of what was read last, and of the next chunk.
    written_to: u64,
    read_lbas: u32,
}

impl OnMedium {
    /// Reads the ranges from the command's data.
    pub(super) fn read_ranges(&mut self) -> Result<(), Status> {
        let io = &self.io;
        let data = self.holds.data_bytes(io.data_bytes);
        let data = data.ok_or(Status::INTERNAL_ERROR)?;
        let lba_bytes = io.namespace.lba_bytes;
        let mut ranges = Ranges::default();
        match io.operation {
            IoOperation::DatasetManagement { deallocate, .. } => {
                let listed = io.dsm_ranges(&data)?;
                // Without Deallocate the ranges are hints, and there is nothing to do.
                ranges.left = listed
                    .filter(|_| deallocate)
                    .collect::<Vec<_>>()
                    .into_iter();
            }
            IoOperation::Copy { sdlba, .. } => {
                let chunk = TRANSFER_BYTES_MAX / lba_bytes;
                let chunks = io
                    .copy_sources(&data)?
                    .flat_map(|range| split(range, chunk));
                ranges.left = chunks.collect::<Vec<_>>().into_iter();
                ranges.written_to = sdlba;
            }
            _ => {}
        }
        self.ranges = Some(Box::new(ranges));
        Ok(())
    }

    /// The storage operation for the next range, or the end.
    pub(super) fn next_range(&mut self) -> Step {
        let copies = matches!(self.io.operation, IoOperation::Copy { .. });
        let Some(ranges) = self.ranges.as_mut() else {
            return Step::Done(Status::SUCCESS);
        };
        match ranges.left.next() {
            None => Step::Done(Status::SUCCESS),
            Some(range) if copies => {
                ranges.read_lbas = range.nlb;
                Step::Read(range)
            }
            Some(range) => Step::Discard(range),
        }
    }

    /// Copy: the chunk that was read goes to its destination.
    pub(super) fn copy_write(&mut self, fua: bool) -> Step {
        let Some(ranges) = self.ranges.as_mut() else {
            return Step::Done(Status::INTERNAL_ERROR);
        };
        let range = LbaRange {
            slba: ranges.written_to,
            nlb: ranges.read_lbas,
        };
        ranges.written_to += u64::from(ranges.read_lbas);
        Step::Write(range, fua)
    }
}

/// `range` in pieces of at most `chunk` blocks.
fn split(range: LbaRange, chunk: u32) -> impl Iterator<Item = LbaRange> {
    let LbaRange { slba, nlb } = range;
    (0..nlb).step_by(chunk as usize).map(move |done| LbaRange {
        slba: slba + u64::from(done),
        nlb: chunk.min(nlb - done),
    })
}

#[cfg(test)]
mod tests {
    use super::{LbaRange, split};

    #[test]
    fn pieces_cover_the_range_once() {
        let pieces: Vec<_> = split(LbaRange { slba: 10, nlb: 5 }, 2).collect();
        let expected = [(10, 2), (12, 2), (14, 1)];
        assert_eq!(pieces, expected.map(|(slba, nlb)| LbaRange { slba, nlb }));
        assert_eq!(split(LbaRange { slba: 0, nlb: 0 }, 2).count(), 0);
    }
}
