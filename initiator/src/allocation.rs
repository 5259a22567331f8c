//! Which blocks of a namespace are allocated, as its controller tells it: Get LBA Status, with
//! Action Type 02h. NVM Command Set 1.1, section 4.2.1.

use std::ops::Range;

use capstan_nvme_proto::command::{AdminCommand, GetLbaStatus, Identify};
use capstan_nvme_proto::identify::{
    Cns, DeallocateFeatures, IDENTIFY_BYTES, IdentifyNamespace, NvmAdminCommands,
    NvmIdentifyController,
};
use capstan_nvme_proto::lba_status::{ActionType, CompletionCondition, LbaStatusList};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;

use crate::controller::Controller;
use crate::host::CommandData;

/// DLFEAT, bits 2:0: what deallocated blocks read as.
const READ_BEHAVIOR: u8 = 0b111;
/// Bytes of an answer: 255 descriptors.
const ANSWER_BYTES: u32 = 4096;

/// A range of blocks that somebody asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) nsid: u32,
    pub(crate) slba: u64,
    pub(crate) nlb: u32,
}

/// What is allocated of a range, from its start up to `end`. Nothing is known of what is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// The allocated blocks, in ascending order, inside the range.
    pub extents: Vec<Range<u64>>,
    /// Behind the last block that is known.
    pub end: u64,
}

impl Asked {
    /// The command, complete but for CID and data pointer, and its data.
    pub(crate) fn command(self) -> (Sqe, CommandData) {
        let get = GetLbaStatus {
            nsid: self.nsid,
            slba: self.slba,
            length_bytes: ANSWER_BYTES.into(),
            action: ActionType::ALLOCATED,
            // A longer range goes to the end of the namespace, and the answer is cut.
            range_lbas: u16::try_from(self.nlb).unwrap_or(0),
        };
        let sqe = AdminCommand::GetLbaStatus(get).encode(0, Sgl::EMPTY);
        (sqe, CommandData::FromController(ANSWER_BYTES))
    }

    /// Reads an answer; `None` where it tells nothing, or makes no sense.
    pub(crate) fn answer(self, data: &[u8]) -> Option<Allocated> {
        let range = self.slba..self.slba.checked_add(self.nlb.into())?;
        let (head, descriptors) = LbaStatusList::parse(data)?;
        if u64::from(head.descriptors.get()) != descriptors.len() as u64 {
            return None;
        }
        let mut extents = Vec::with_capacity(descriptors.len());
        let mut behind = self.slba;
        for descriptor in descriptors {
            let start = descriptor.slba.get();
            if start < behind {
                return None;
            }
            behind = start.checked_add(descriptor.nlb())?;
            let inside = start.min(range.end)..behind.min(range.end);
            if !inside.is_empty() {
                extents.push(inside);
            }
        }
        let end = match head.condition {
            CompletionCondition::COMPLETE => range.end,
            _ => behind.min(range.end),
        };
        (end > self.slba).then_some(Allocated { extents, end })
    }
}

/// Whether the controller tells what is allocated of a namespace, and the rest of it reads as
/// zeroes.
#[must_use]
pub fn is_reported(controller: &Controller, nsid: u32) -> bool {
    let bytes = u32::try_from(IDENTIFY_BYTES).unwrap_or(u32::MAX);
    let identify = |cns, nsid| {
        let command = AdminCommand::Identify(Identify::new(cns, nsid));
        let data = CommandData::FromController(bytes);
        // A controller that has no such structure tells nothing.
        let reply = controller.admin_blocking(command.encode(0, Sgl::EMPTY), data);
        reply.ok().map(|reply| reply.data)
    };
    let tells = identify(Cns::CONTROLLER_IOCS, 0).is_some_and(|data| {
        NvmIdentifyController::from_data(&data).is_some_and(|identify| {
            NvmAdminCommands::from_bits_retain(identify.aocs.get())
                .contains(NvmAdminCommands::REPORTS_ALLOCATED)
        })
    });
    tells
        && identify(Cns::NAMESPACE, nsid).is_some_and(|data| {
            IdentifyNamespace::from_data(&data).is_some_and(|identify| {
                let zeroes = DeallocateFeatures::READS_ZEROES.bits();
                identify.dlfeat & READ_BEHAVIOR == zeroes
            })
        })
}

#[cfg(test)]
mod tests {
    use capstan_nvme_proto::lba_status::{LbaRangeStatus, LbaStatusDescriptor};
    use zerocopy::IntoBytes;

    use super::*;

    const ASKED: Asked = Asked {
        nsid: 1,
        slba: 100,
        nlb: 50,
    };

    fn answer(condition: CompletionCondition, extents: &[(u64, u64)]) -> Vec<u8> {
        let count = u32::try_from(extents.len()).unwrap();
        let mut data = LbaStatusList::new(count, condition).as_bytes().to_vec();
        for &(slba, nlb) in extents {
            let descriptor = LbaStatusDescriptor::new(slba, nlb, LbaRangeStatus::ALLOCATED);
            data.extend(descriptor.as_bytes());
        }
        data.resize(ANSWER_BYTES as usize, 0xFF);
        data
    }

    #[test]
    fn answers_are_cut_to_what_was_asked_and_known() {
        let whole = answer(CompletionCondition::COMPLETE, &[(100, 1), (140, 1000)]);
        let found = ASKED.answer(&whole).unwrap();
        assert_eq!((found.extents, found.end), (vec![100..101, 140..150], 150));
        let none = ASKED.answer(&answer(CompletionCondition::COMPLETE, &[]));
        assert_eq!(
            none.unwrap(),
            Allocated {
                extents: vec![],
                end: 150
            }
        );
        // Not all of it: what is behind the last is not known.
        for condition in [CompletionCondition::MORE, CompletionCondition::NOT_TOLD] {
            let found = ASKED
                .answer(&answer(condition, &[(101, 2), (110, 5)]))
                .unwrap();
            assert_eq!((found.extents, found.end), (vec![101..103, 110..115], 115));
            assert_eq!(ASKED.answer(&answer(condition, &[])), None);
        }
        // Behind the range.
        let behind = answer(CompletionCondition::MORE, &[(150, 1)]);
        assert_eq!(ASKED.answer(&behind).unwrap().end, 150);
    }

    #[test]
    fn answers_that_make_no_sense_tell_nothing() {
        for extents in [
            [(99, 5), (120, 1)].as_slice(),
            &[(120, 1), (110, 1)],
            &[(120, 5), (124, 1)],
            &[(u64::MAX, 2)],
        ] {
            let data = answer(CompletionCondition::COMPLETE, extents);
            assert_eq!(ASKED.answer(&data), None, "{extents:?}");
        }
        let short = answer(CompletionCondition::COMPLETE, &[(100, 1)]);
        assert_eq!(ASKED.answer(&short[..23]), None);
        assert_eq!(ASKED.answer(&[]), None);
        let end = Asked {
            slba: u64::MAX,
            ..ASKED
        };
        assert_eq!(end.answer(&short), None);
    }
}
