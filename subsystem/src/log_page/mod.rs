//! Get Log Page. NVMe Base 2.1, section 5.1.12.

mod ana;
mod cross_reset;
mod discovery;
mod effects;
pub(crate) mod error;
mod health;
pub(crate) mod reservation;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::GetLogPage;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::log::{FirmwareSlotLog, LogPageId, SupportedLogPages};
use capstan_nvme_proto::sqe::NSID_BROADCAST;
use capstan_nvme_proto::status::Status;
use zerocopy::IntoBytes;

use crate::control::{Executed, Execution, Target, gone};
use crate::controller::ControllerKind;

const IO_PAGES: [LogPageId; 9] = [
    LogPageId::SUPPORTED_LOG_PAGES,
    LogPageId::ERROR_INFORMATION,
    LogPageId::HEALTH,
    LogPageId::FIRMWARE_SLOT,
    LogPageId::CHANGED_NAMESPACES,
    LogPageId::COMMAND_EFFECTS,
    LogPageId::ANA,
    LogPageId::CROSS_CONTROLLER_RESET,
    LogPageId::RESERVATION_NOTIFICATION,
];
const DISCOVERY_PAGES: [LogPageId; 2] = [LogPageId::SUPPORTED_LOG_PAGES, LogPageId::DISCOVERY];

/// The part of a log page that the host asked for. The page is given to it piece by piece, from
/// its beginning, and never exists as a whole.
pub(crate) struct Window<'a> {
    /// Bytes of the page that come before what the host wants.
    skip: u64,
    out: &'a mut [u8],
    /// Bytes of `out` that are written.
    filled: usize,
    /// Bytes of the page so far.
    page_bytes: u64,
}

impl<'a> Window<'a> {
    pub(crate) fn new(offset: u64, out: &'a mut [u8]) -> Self {
        Self {
            skip: offset,
            out,
            filled: 0,
            page_bytes: 0,
        }
    }

    /// The next piece of the page.
    pub(crate) fn put(&mut self, piece: &[u8]) {
        let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        self.page_bytes = self.page_bytes.saturating_add(length);
        let skipped = self.skip.min(length);
        self.skip = self.skip.saturating_sub(skipped);
        let visible = usize::try_from(skipped)
            .ok()
            .and_then(|skipped| piece.get(skipped..))
            .unwrap_or_default();
        let room = self.out.get_mut(self.filled..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(visible) {
            *to = *from;
            self.filled = self.filled.saturating_add(1);
        }
    }

    /// Fills what lies behind the end of the page with zeros. An offset behind the end is an
    /// error of the host.
    fn finish(self, offset: u64) -> Result<Executed, CommandError> {
        if offset > self.page_bytes {
            return Err(CommandError::invalid_field(
                "LPO",
                48,
                offset,
                "an offset inside the log page",
            ));
        }
        Ok(Executed::data(self.zero_rest()))
    }

    /// Fills what lies behind the end of the page with zeros. Returns the bytes of the window.
    pub(crate) fn zero_rest(self) -> usize {
        self.out.get_mut(self.filled..).unwrap_or_default().fill(0);
        self.out.len()
    }
}

impl Target {
    pub(crate) fn log_page(
        &mut self,
        get: &GetLogPage,
        execution: &mut Execution<'_>,
    ) -> Result<Executed, CommandError> {
        let id = execution.id;
        let kind = self.controller(id).ok_or_else(gone)?.kind;
        if !pages(kind).contains(&get.lid) {
            return Err(CommandError {
                status: Status::INVALID_LOG_PAGE.dnr(),
                location: ErrorLocation::sqe(40),
                field: "LID",
                value: get.lid.0.into(),
                expected: "a supported log page",
            });
        }
        if get.offset_is_index {
            return Err(CommandError::invalid_field(
                "OT",
                58,
                1,
                "0 (the offset is in bytes)",
            ));
        }
        let mut window = Window::new(get.offset, execution.out);
        match get.lid {
            LogPageId::SUPPORTED_LOG_PAGES => {
                let page = SupportedLogPages::new(pages(kind).iter().copied());
                window.put(page.as_bytes());
            }
            LogPageId::ERROR_INFORMATION => self.error_page(id, &mut window),
            LogPageId::HEALTH => {
                require_no_namespace(get)?;
                let page = self.health_page(id, execution.now_us);
                window.put(page.as_bytes());
            }
            LogPageId::FIRMWARE_SLOT => {
                let controller = self.controller(id).ok_or_else(gone)?;
                let revision = self
                    .subsystem_config(&controller.association.subnqn)
                    .map_or_else(|| &self.config().firmware, |config| &config.firmware);
                window.put(FirmwareSlotLog::single(revision).as_bytes());
            }
            LogPageId::CHANGED_NAMESPACES => {
                let controller = self.controller_mut(id).ok_or_else(gone)?;
                window.put(controller.changed.page().as_bytes());
            }
            LogPageId::COMMAND_EFFECTS => {
                if get.csi != 0 {
                    return Err(CommandError::invalid_field(
                        "CSI",
                        59,
                        get.csi.into(),
                        "0 (NVM command set)",
                    ));
                }
                window.put(effects::page().as_bytes());
            }
            LogPageId::RESERVATION_NOTIFICATION => {
                let controller = self.controller(id).ok_or_else(gone)?;
                window.put(controller.notifications.page().as_bytes());
            }
            LogPageId::CROSS_CONTROLLER_RESET => {
                require_no_namespace(get)?;
                cross_reset::page(self.controller(id).ok_or_else(gone)?, &mut window);
            }
            LogPageId::ANA => self.ana_page(id, get.lsp, &mut window),
            LogPageId::DISCOVERY => self.discovery_page(id, &mut window),
            _ => {}
        }
        let executed = window.finish(get.offset)?;
        if get.lid == LogPageId::CROSS_CONTROLLER_RESET {
            let out_bytes = execution.out.len();
            let controller = self.controller_mut(id).ok_or_else(gone)?;
            cross_reset::remove_completed(controller, get, out_bytes);
        }
        if !get.rae {
            self.log_page_read(id, get.lid);
        }
        Ok(executed)
    }

    /// The host has read the page and did not ask to keep its event.
    fn log_page_read(&mut self, id: crate::ControllerId, lid: LogPageId) {
        if let Some(controller) = self.controller_mut(id) {
            if lid == LogPageId::CHANGED_NAMESPACES {
                controller.changed.clear();
            }
            controller.events.clear(lid);
            if lid == LogPageId::RESERVATION_NOTIFICATION && controller.notifications.advance() {
                // The next page is an event of its own.
                self.raise(id, AsyncEvent::RESERVATION_LOG_AVAILABLE);
            }
        }
    }
}

fn pages(kind: ControllerKind) -> &'static [LogPageId] {
    match kind {
        ControllerKind::Io => &IO_PAGES,
        ControllerKind::Discovery => &DISCOVERY_PAGES,
    }
}

/// The page exists for the controller only (Identify Controller LPA bit 0 is clear).
fn require_no_namespace(get: &GetLogPage) -> Result<(), CommandError> {
    match get.nsid {
        0 | NSID_BROADCAST => Ok(()),
        nsid => Err(CommandError::invalid_field(
            "NSID",
            4,
            nsid.into(),
            "0 or FFFFFFFFh",
        )),
    }
}
