//! Get LBA Status: which logical blocks of a namespace are allocated. NVM Command Set 1.1, section
//! 4.2.1.
//!
//! Only the driver can tell, by a look at the medium that may take long: it is asked before the
//! command is executed ([`AdminRequest::allocation_query`](super::AdminRequest::allocation_query)).
//! Of blocks that cannot be recovered nothing is known, so that is all there is to ask
//! (Identify Controller OACS bit 9 is clear, RALBAS of the NVM command set is set).

use alloc::vec::Vec;
use core::ops::Range;

use capstan_nvme_proto::command::GetLbaStatus;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::lba_status::{
    ActionType, CompletionCondition, LbaRangeStatus, LbaStatusDescriptor, LbaStatusList,
};
use capstan_nvme_proto::status::Status;
use zerocopy::IntoBytes;

use crate::bounds::LBA_STATUS_DESCRIPTORS_MAX;
use crate::controller::{Controller, ControllerKind};
use crate::gate::Access;
use crate::namespace::BackendId;

/// Which logical blocks the driver is to look at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocationQuery {
    /// Where they are.
    pub backend: BackendId,
    /// The blocks, at least one.
    pub lbas: Range<u64>,
    /// Extents to look for: where there are so many, it is not asked for what is behind them. At
    /// least 1.
    pub extents_max: usize,
}

/// A query, and the allocated extents that were found.
#[derive(Debug)]
pub(super) struct AllocationLook {
    pub(super) query: AllocationQuery,
    pub(super) allocated: Vec<Range<u64>>,
}

impl AllocationLook {
    /// What a command asks, checked.
    pub(super) fn new(controller: &Controller, get: &GetLbaStatus) -> Result<Self, CommandError> {
        if controller.kind == ControllerKind::Discovery {
            return Err(CommandError::invalid_opcode("Opcode", 0, 0x86));
        }
        let namespace = controller.feature_namespace(get.nsid)?;
        if get.action != ActionType::ALLOCATED {
            return Err(CommandError::invalid_field(
                "ATYPE",
                55,
                get.action.0.into(),
                "2 (Return Allocated LBAs)",
            ));
        }
        let lbas = namespace.geometry.lbas;
        let end = match get.range_lbas {
            0 => Some(lbas),
            range_lbas => get.slba.checked_add(range_lbas.into()),
        };
        let Some(end) = end.filter(|end| get.slba < *end && *end <= lbas) else {
            return Err(CommandError {
                status: Status::LBA_OUT_OF_RANGE.dnr(),
                ..CommandError::invalid_field("SLBA", 40, get.slba, "a range in the namespace")
            });
        };
        // The medium may not be what the host sees through this controller.
        namespace
            .gate
            .check(Access::Neither)
            .map_err(|status| CommandError {
                status,
                location: ErrorLocation::Unspecified,
                field: "NSID",
                value: get.nsid.into(),
                expected: "a namespace that can be reached",
            })?;
        // One more than there is room for, to tell whether there are more.
        let extents_max = descriptors_max(get).saturating_add(1);
        let query = AllocationQuery {
            backend: namespace.backend,
            lbas: get.slba..end,
            extents_max,
        };
        Ok(Self {
            query,
            allocated: Vec::new(),
        })
    }

    /// Writes the list into `out`, of which the host wants `room` bytes.
    pub(super) fn report(&self, get: &GetLbaStatus, out: &mut Vec<u8>, room: usize) {
        let found = self.allocated.iter();
        let mut descriptors = found.flat_map(|extent| descriptors_of(extent.clone()));
        let told: Vec<_> = descriptors.by_ref().take(descriptors_max(get)).collect();
        let is_whole =
            descriptors.next().is_none() && self.allocated.len() < self.query.extents_max;
        let condition = if is_whole {
            CompletionCondition::COMPLETE
        } else {
            CompletionCondition::MORE
        };
        let count = u32::try_from(told.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(LbaStatusList::new(count, condition).as_bytes());
        out.extend_from_slice(told.as_slice().as_bytes());
        out.truncate(room);
    }
}

/// Descriptors that are returned at most.
fn descriptors_max(get: &GetLbaStatus) -> usize {
    let room = usize::try_from(get.length_bytes).unwrap_or(usize::MAX);
    let whole = room
        .saturating_sub(LbaStatusList::SIZE_BYTES)
        .checked_div(LbaStatusDescriptor::SIZE_BYTES);
    whole.unwrap_or(0).min(LBA_STATUS_DESCRIPTORS_MAX)
}

/// An extent as descriptors, each of as many blocks as one can have.
fn descriptors_of(extent: Range<u64>) -> impl Iterator<Item = LbaStatusDescriptor> {
    let Range { mut start, end } = extent;
    core::iter::from_fn(move || {
        let nlb = end.checked_sub(start).filter(|nlb| *nlb > 0)?;
        let nlb = nlb.min(LbaStatusDescriptor::NLB_MAX);
        let descriptor = LbaStatusDescriptor::new(start, nlb, LbaRangeStatus::ALLOCATED);
        start = start.saturating_add(nlb);
        Some(descriptor)
    })
}
