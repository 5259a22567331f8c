//! Asymmetric Namespace Access (LID 0Ch). NVMe Base 2.1, section 5.1.12.1.13.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use capstan_nvme_proto::log::{AnaGroupHeader, AnaLogHeader};
use zerocopy::IntoBytes;

use super::Window;
use crate::ControllerId;
use crate::control::Target;

/// LSP bit 0, RGO: return groups only.
const RETURN_GROUPS_ONLY: u8 = 1;

impl Target {
    /// The groups of the namespaces this controller shows, by increasing identifier.
    pub(super) fn ana_page(&self, id: ControllerId, lsp: u8, window: &mut Window<'_>) {
        let Some(controller) = self.controller(id) else {
            return;
        };
        let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for namespace in controller.namespaces.iter() {
            groups
                .entry(namespace.anagrpid)
                .or_default()
                .push(namespace.nsid);
        }
        let Some(ana) = self.ana(&controller.association.subnqn) else {
            return;
        };
        let count = u16::try_from(groups.len()).unwrap_or(u16::MAX);
        window.put(AnaLogHeader::new(ana.change_count(), count).as_bytes());
        for (group_id, nsids) in groups {
            let nsids = if lsp & RETURN_GROUPS_ONLY != 0 {
                Vec::new()
            } else {
                nsids
            };
            let state = ana.state(controller.association.port, group_id);
            let count = u32::try_from(nsids.len()).unwrap_or(u32::MAX);
            let header = AnaGroupHeader::new(group_id, count, ana.change_count_of(group_id), state);
            window.put(header.as_bytes());
            for nsid in nsids {
                window.put(&nsid.to_le_bytes());
            }
        }
    }
}
