//! Get Log Page. NVMe Base 2.1, section 5.1.12.

mod ana;
mod cross_reset;
mod discovery;
mod effects;
pub(crate) mod error;
mod health;
pub(crate) mod reservation;

use alloc::vec::Vec;

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::GetLogPage;
use capstan_nvme_proto::error::{CommandError, ErrorLocation};
use capstan_nvme_proto::log::{FirmwareSlotLog, LogPageId, SupportedLogPages};
use capstan_nvme_proto::sqe::NSID_BROADCAST;
use capstan_nvme_proto::status::Status;
use zerocopy::{Immutable, IntoBytes};

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
/// What is told of a page is a multiple of this, in bytes, if the host has room for it.
const PADDED_BYTES: usize = 4096;
const DISCOVERY_PAGES: [LogPageId; 2] = [LogPageId::SUPPORTED_LOG_PAGES, LogPageId::DISCOVERY];

/// The part of a log page that the host asked for. The page is given to it piece by piece, from
/// its beginning, and never exists as a whole.
pub(crate) struct Window<'a> {
    /// Bytes of the page that come before what the host wants.
    skip: u64,
    out: &'a mut Vec<u8>,
    /// Bytes the host wants.
    room: usize,
    /// Bytes of the page so far.
    page_bytes: u64,
}

impl<'a> Window<'a> {
    /// The `room` bytes behind `offset`, which `out` is empty for.
    pub(crate) fn new(offset: u64, out: &'a mut Vec<u8>, room: usize) -> Self {
        Self {
            skip: offset,
            out,
            room,
            page_bytes: 0,
        }
    }

    /// The next piece of the page.
    pub(crate) fn put(&mut self, piece: &[u8]) {
        let skipped = self.pass(piece.len());
        let visible = usize::try_from(skipped)
            .ok()
            .and_then(|skipped| piece.get(skipped..))
            .unwrap_or_default();
        let free = self.room.saturating_sub(self.out.len());
        let visible = visible.get(..free).unwrap_or(visible);
        self.out.extend_from_slice(visible);
    }

    /// The next piece of the page, of so many bytes, which is made only if the host wants some of
    /// it.
    pub(crate) fn put_if_wanted<T: IntoBytes + Immutable>(
        &mut self,
        length: usize,
        piece: impl FnOnce() -> T,
    ) {
        let is_before = u64::try_from(length).is_ok_and(|length| length <= self.skip);
        if is_before || self.out.len() >= self.room {
            self.pass(length);
        } else {
            self.put(piece().as_bytes());
        }
    }

    /// Counts a piece of so many bytes; how many of them are before what the host wants.
    fn pass(&mut self, length: usize) -> u64 {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        self.page_bytes = self.page_bytes.saturating_add(length);
        let skipped = self.skip.min(length);
        self.skip = self.skip.saturating_sub(skipped);
        skipped
    }

    /// Ends the page. An offset behind the end is an error of the host.
    ///
    /// What a host asks for behind the end of a page is undefined (NVMe Base 2.1, section 5.1.12,
    /// NUMDL). It gets zeros up to the next 4 KiB, which is what most ask for, and no more: a
    /// mebibyte of them would cost as much as one of data.
    fn finish(self, offset: u64) -> Result<Executed, CommandError> {
        if offset > self.page_bytes {
            return Err(CommandError::invalid_field(
                "LPO",
                48,
                offset,
                "an offset inside the log page",
            ));
        }
        let told = self.out.len().max(1).next_multiple_of(PADDED_BYTES);
        self.out.resize(told.min(self.room), 0);
        Ok(Executed::OK)
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
        let mut window = Window::new(get.offset, execution.out, execution.room);
        match get.lid {
            LogPageId::SUPPORTED_LOG_PAGES => {
                let page = SupportedLogPages::new(pages(kind).iter().copied());
                window.put(page.as_bytes());
            }
            LogPageId::ERROR_INFORMATION => self.error_page(id, &mut window),
            LogPageId::HEALTH => {
                let page = self.health_page(id, get.nsid, execution.now_us)?;
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
            let out_bytes = execution.room;
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

/// The page exists for the controller only.
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
