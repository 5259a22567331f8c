//! Cross-Controller Reset (LID 1Eh). NVMe Base 2.3, section 5.2.12.3.1.

use capstan_nvme_proto::command::GetLogPage;
use capstan_nvme_proto::log::{
    CrossControllerResetEntry, CrossControllerResetFlags, CrossControllerResetLogHeader,
    CrossControllerResetStatus, LSP_REMOVE_COMPLETED,
};
use zerocopy::IntoBytes;

use super::Window;
use crate::controller::Controller;

pub(super) fn page(controller: &Controller, window: &mut Window<'_>) {
    let resets = controller.resets.iter();
    let entries = u16::try_from(resets.len()).unwrap_or(u16::MAX);
    window.put(CrossControllerResetLogHeader::new(entries).as_bytes());
    for reset in resets {
        let status = if reset.over {
            CrossControllerResetStatus::SUCCESSFUL
        } else {
            CrossControllerResetStatus::IN_PROGRESS
        };
        let entry = CrossControllerResetEntry::new(
            reset.icid,
            reset.instance.ciu,
            controller.association.cntlid,
            status,
            CrossControllerResetFlags::VALIDATED | CrossControllerResetFlags::RESET_INITIATED,
        );
        window.put(entry.as_bytes());
    }
}

/// RMC: what is over and was told as a whole is forgotten.
pub(super) fn remove_completed(controller: &mut Controller, get: &GetLogPage, out_bytes: usize) {
    if get.lsp & LSP_REMOVE_COMPLETED == 0 {
        return;
    }
    let start = usize::try_from(get.offset).unwrap_or(usize::MAX);
    let end = start.saturating_add(out_bytes);
    controller.resets.remove_completed(|index| {
        let entry = index
            .saturating_mul(CrossControllerResetEntry::SIZE_BYTES)
            .saturating_add(size_of::<CrossControllerResetLogHeader>());
        entry >= start && entry.saturating_add(CrossControllerResetEntry::SIZE_BYTES) <= end
    });
}
