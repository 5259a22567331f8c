//! When what a lost association left unanswered may be issued again.
//!
//! A write that was sent and not answered may still be in the network, at the target, or on its way
//! to the medium. Issued again at once and followed by another write of the same blocks, its old
//! copy could land last: a write that was acknowledged would be undone. So nothing that changes
//! media is issued until the old controller is known to be gone, which is known
//! * from the target: Cross-Controller Reset (NVMe Base 2.3, section 5.4.3) of the old controller,
//!   asked of the one that took its place, or
//! * by time (TP4129): the old controller has noticed that its Keep Alive stopped, and has had its
//!   Command Quiesce Time. The time counts from when the old connections were given up. The old
//!   controller has heard nothing of this host since, so its timer started before.
//!
//! As long as the target says that a reset is in progress, commands of the old controller are under
//! way, and time proves nothing. Where neither can be had, and at `ctrl_loss_tmo`, the outcome is
//! unknown.

use std::fmt;

use capstan_nvme_proto::command::{AdminCommand, CrossControllerReset, GetLogPage};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::log::{
    CROSS_CONTROLLER_RESETS_MAX, CrossControllerResetEntry, CrossControllerResetLogHeader,
    CrossControllerResetStatus, LSP_REMOVE_COMPLETED, LogPageId,
};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status as NvmeStatus;

use super::action::{CommandData, Event};
use super::association::{Host, State};
use super::command::Purpose;
use super::info::ControllerInfo;
use crate::limits::{CQT_ASSUMED_MS, RESET_AGAIN_US, RESET_LOOK_US};
use crate::names::Name;
use crate::options::ReplayWrites;

/// Bytes of the Cross-Controller Reset log page with all of its entries.
const RESET_LOG_BYTES: u32 = 4096;
const _: () = assert!(
    size_of::<CrossControllerResetLogHeader>()
        + CROSS_CONTROLLER_RESETS_MAX * CrossControllerResetEntry::SIZE_BYTES
        == RESET_LOG_BYTES as usize
);

/// The wait for the end of an old controller.
#[derive(Debug)]
pub(super) struct Fence {
    /// Names the old controller, as far as it had told.
    old: CrossControllerReset,
    since_us: u64,
    /// When time alone is enough; `None` without Keep Alive.
    quiet_us: Option<u64>,
    /// What that time is made of.
    quiet: Option<QuietTime>,
    /// When it is given up.
    gives_up_us: Option<u64>,
    stage: Stage,
}

impl Fence {
    /// When time alone proves that the old controller is gone; `None` when it never does, or does
    /// not as long as the target says that a reset is in progress.
    fn time_tells_us(&self) -> Option<u64> {
        self.quiet_us.filter(|_| !self.stage.is_in_progress())
    }

    /// When the wait is given up. What time is going to tell is waited for: the association lives,
    /// and `ctrl_loss_tmo` is about one that does not.
    fn gives_up_us(&self) -> Option<u64> {
        self.gives_up_us.filter(|_| self.time_tells_us().is_none())
    }
}

/// How far the wait is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is no controller to ask.
    Unasked,
    /// Cross-Controller Reset has been sent.
    Asked,
    /// The target could not begin with it, or had forgotten; it is asked again.
    AskAgain { at_us: u64, in_progress: bool },
    /// The target is at it; its log page is read again.
    InProgress { look_us: u64 },
    /// The target cannot tell.
    Time,
}

impl Stage {
    /// Whether the target has said that commands of the old controller are under way.
    fn is_in_progress(self) -> bool {
        match self {
            Self::InProgress { .. } => true,
            Self::AskAgain { in_progress, .. } => in_progress,
            Self::Unasked | Self::Asked | Self::Time => false,
        }
    }
}

/// Writes that wait until an old controller is known to be gone; `Display` is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// CNTLID of the old controller.
    pub cntlid: u16,
    /// How long they have waited, in milliseconds.
    pub waited_ms: u64,
    /// How long they wait at most, in milliseconds; `None` while only the target can tell.
    pub at_most_ms: Option<u64>,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cntlid,
            waited_ms,
            at_most_ms,
        } = self;
        match at_most_ms {
            Some(ms) => write!(
                f,
                "writes wait {} s until controller {cntlid:#06x} is known to be gone",
                ms.div_ceil(1000)
            ),
            None => write!(
                f,
                "writes wait until the target says that controller {cntlid:#06x} is gone, for {} s \
                 so far",
                waited_ms / 1000
            ),
        }
    }
}

/// How long after its last sign of life a controller may still carry out commands (TP4129);
/// `Display` says what it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QuietTime {
    timeouts: u64,
    kato_ms: u64,
    cqt_ms: u64,
    /// The controller tells it.
    cqt_told: bool,
}

impl QuietTime {
    fn ms(self) -> u64 {
        self.timeouts * self.kato_ms + self.cqt_ms
    }
}

impl fmt::Display for QuietTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            timeouts,
            kato_ms,
            cqt_ms,
            cqt_told,
        } = self;
        let source = if *cqt_told { "told" } else { "assumed" };
        write!(
            f,
            "{timeouts} x KATO ({kato_ms} ms) + CQT ({cqt_ms} ms, {source}) from the loss on"
        )
    }
}

impl ControllerInfo {
    /// How long the controller's time is; `None` when Keep Alive is off, which tells it nothing.
    fn quiet_time(&self, kato_ms: u32) -> Option<QuietTime> {
        if kato_ms == 0 {
            return None;
        }
        // The controller may round KATO up to its granularity (NVMe Base 2.1, section 5.1.13, KAS).
        let unit_ms = u64::from(self.kas_ms.max(1));
        let kato_ms = u64::from(kato_ms).next_multiple_of(unit_ms);
        // One interval more where any command starts the timer: traffic is looked at once in each.
        let timeouts = if self.tbkas { 3 } else { 2 };
        let cqt_told = self.cqt_ms != 0;
        let cqt_ms = if cqt_told {
            self.cqt_ms.into()
        } else {
            CQT_ASSUMED_MS
        };
        Some(QuietTime {
            timeouts,
            kato_ms,
            cqt_ms,
            cqt_told,
        })
    }

    fn instance(&self) -> CrossControllerReset {
        CrossControllerReset {
            icid: self.cntlid,
            ciu: self.ciu,
            cirn: self.cirn,
        }
    }
}

impl Host {
    /// The connections of the association were given up. `unanswered`: commands that change media
    /// had been sent and not answered. Those, and all that change media, are to wait until
    /// [`Event::WritesReleased`] then, if [`Host::holds_writes`] says so.
    pub fn handle_given_up(&mut self, unanswered: bool, now_us: u64) {
        let unanswered = std::mem::take(&mut self.unanswered) || unanswered;
        let again = !matches!(self.state, State::Closed | State::Failed(_));
        let wanted = self.config.replay_writes == ReplayWrites::Fenced;
        // While one is closed nothing that changes media is sent: there is no second.
        if !unanswered || !again || !wanted || self.fence.is_some() {
            return;
        }
        let old = self.info.instance();
        let quiet = self.info.quiet_time(self.config.kato_ms);
        let how_long = match quiet {
            Some(time) => format!("because the target says so, or {} ms: {time}", time.ms()),
            None => format!(
                "because the target says so; as Keep Alive is off ({} is 0) no time is long enough",
                Name::KeepAliveTmo
            ),
        };
        self.fence = Some(Fence {
            old,
            since_us: now_us,
            quiet_us: quiet.map(|time| now_us.saturating_add(time.ms().saturating_mul(1000))),
            quiet,
            gives_up_us: self
                .config
                .ctrl_loss_tmo_us
                .map(|tmo_us| now_us.saturating_add(tmo_us)),
            stage: Stage::Unasked,
        });
        tracing::warn!(
            old = old.icid,
            "writes were sent and not answered: they wait until the old controller is known to be gone, {how_long}"
        );
    }

    /// Whether nothing that changes media may be sent.
    #[must_use]
    pub fn holds_writes(&self) -> bool {
        self.fence.is_some()
    }

    /// The writes that wait; `None` when none has to.
    #[must_use]
    pub fn held(&self, now_us: u64) -> Option<Held> {
        let fence = self.fence.as_ref()?;
        let at_us = fence.time_tells_us();
        Some(Held {
            cntlid: fence.old.icid,
            waited_ms: now_us.saturating_sub(fence.since_us) / 1000,
            at_most_ms: at_us.map(|at_us| at_us.saturating_sub(now_us) / 1000),
        })
    }

    /// When the wait needs a look; only a live association has one.
    pub(super) fn fence_deadline_us(&self) -> Option<u64> {
        let fence = self.fence.as_ref().filter(|_| self.is_live())?;
        let look_us = match fence.stage {
            Stage::AskAgain { at_us, .. } => Some(at_us),
            Stage::InProgress { look_us } => Some(look_us),
            Stage::Unasked | Stage::Asked | Stage::Time => None,
        };
        [look_us, fence.time_tells_us(), fence.gives_up_us()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The connections are gone, and with them what was asked.
    pub(super) fn fence_disconnected(&mut self) {
        if let Some(fence) = &mut self.fence {
            fence.stage = Stage::Unasked;
        }
    }

    /// The association is live: there is a controller to ask.
    pub(super) fn fence_live(&mut self, now_us: u64) {
        let Some(fence) = &self.fence else {
            return;
        };
        if fence.quiet_us.is_some_and(|at_us| now_us >= at_us) {
            self.release_writes("its time is over", now_us);
        } else if self.info.ccrl == 0 || fence.old.ciu == 0 {
            self.wait_for_time("the target has no Cross-Controller Reset", now_us);
        } else if fence.old.icid != self.info.cntlid {
            self.ask_for_reset(now_us);
        } else if self.info.fences {
            // A controller resets no other of its own identifier. A Capstan target gives one out
            // again when nothing of its last controller is left, also when it was started anew.
            self.release_writes("its identifier is another one's", now_us);
        } else {
            self.wait_for_time("the controller has the old one's identifier", now_us);
        }
    }

    fn ask_for_reset(&mut self, now_us: u64) {
        let Some(fence) = &mut self.fence else {
            return;
        };
        fence.stage = Stage::Asked;
        let command = AdminCommand::CrossControllerReset(fence.old);
        self.send(Purpose::Reset, CommandData::None, now_us, |cid| {
            command.encode(cid, Sgl::EMPTY)
        });
    }

    pub(super) fn reset_answered(&mut self, cqe: &Cqe, now_us: u64) {
        let Some(fence) = self.fence.as_mut().filter(|f| f.stage == Stage::Asked) else {
            return;
        };
        let status = cqe.status();
        let again = |in_progress| Stage::AskAgain {
            at_us: now_us.saturating_add(RESET_AGAIN_US),
            in_progress,
        };
        match status.code() {
            _ if status.is_success() => {
                if CrossControllerReset::was_immediate(cqe.dw0.get()) {
                    return self.release_writes("the target has reset it", now_us);
                }
                let look_us = now_us.saturating_add(RESET_LOOK_US);
                fence.stage = Stage::InProgress { look_us };
            }
            // Another program of this host has asked for the same.
            NvmeStatus::CROSS_CONTROLLER_RESET_IN_PROGRESS => fence.stage = again(true),
            NvmeStatus::CROSS_CONTROLLER_RESET_LOG_PAGE_FULL
            | NvmeStatus::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED => fence.stage = again(false),
            _ => {
                tracing::warn!(%status, "the target refuses Cross-Controller Reset of the old controller");
                self.wait_for_time("the target refuses to reset it", now_us);
            }
        }
    }

    /// Reads the log page that tells how the reset ended.
    pub(super) fn look_at_reset(&mut self, now_us: u64) {
        let Some(fence) = &mut self.fence else {
            return;
        };
        let Stage::InProgress { look_us } = &mut fence.stage else {
            return;
        };
        *look_us = now_us.saturating_add(RESET_LOOK_US);
        if self.commands.has(Purpose::ResetLog) {
            return;
        }
        let page = GetLogPage {
            lsp: LSP_REMOVE_COMPLETED,
            ..GetLogPage::new(LogPageId::CROSS_CONTROLLER_RESET, RESET_LOG_BYTES.into())
        };
        let command = AdminCommand::GetLogPage(page);
        let data = CommandData::FromController(RESET_LOG_BYTES);
        self.send(Purpose::ResetLog, data, now_us, |cid| {
            command.encode(cid, Sgl::EMPTY)
        });
    }

    pub(super) fn reset_log_answered(&mut self, cqe: &Cqe, data: &[u8], now_us: u64) {
        let Some(fence) = &mut self.fence else {
            return;
        };
        if !matches!(fence.stage, Stage::InProgress { .. }) {
            return;
        }
        let old = fence.old;
        let parsed = CrossControllerResetLogHeader::parse(data);
        let entry = parsed
            .filter(|_| cqe.status().is_success())
            .and_then(|(_, entries)| {
                let is_old =
                    |e: &&CrossControllerResetEntry| e.icid.get() == old.icid && e.ciu == old.ciu;
                entries.iter().find(is_old)
            });
        match entry.map(|entry| entry.status) {
            Some(CrossControllerResetStatus::IN_PROGRESS) => {}
            Some(CrossControllerResetStatus::SUCCESSFUL) => {
                self.release_writes("the target has reset it", now_us);
            }
            Some(status) => {
                tracing::warn!(%status, "Cross-Controller Reset of the old controller failed");
                self.wait_for_time("its reset failed", now_us);
            }
            // Told and removed, as it may be by another reader: the command tells it again.
            None => {
                fence.stage = Stage::AskAgain {
                    at_us: now_us.saturating_add(RESET_AGAIN_US),
                    in_progress: true,
                }
            }
        }
    }

    /// Goes on with the wait when its time has come.
    pub(super) fn tick_fence(&mut self, now_us: u64) {
        let Some(fence) = self.fence.as_ref().filter(|_| self.is_live()) else {
            return;
        };
        if fence.time_tells_us().is_some_and(|at_us| now_us >= at_us) {
            return self.release_writes("its time is over", now_us);
        }
        if fence.gives_up_us().is_some_and(|at_us| now_us >= at_us) {
            return self.give_writes_up("ctrl-loss-tmo has passed", now_us);
        }
        match fence.stage {
            Stage::AskAgain { at_us, .. } if now_us >= at_us => self.ask_for_reset(now_us),
            Stage::InProgress { look_us } if now_us >= look_us => self.look_at_reset(now_us),
            _ => {}
        }
    }

    /// Only time tells; without Keep Alive not even that.
    fn wait_for_time(&mut self, why: &'static str, now_us: u64) {
        let Some(fence) = &mut self.fence else {
            return;
        };
        fence.stage = Stage::Time;
        match fence.quiet_us.zip(fence.quiet) {
            Some((at_us, time)) => {
                let wait_ms = at_us.saturating_sub(now_us) / 1000;
                tracing::warn!(
                    old = fence.old.icid,
                    wait_ms,
                    "writes wait for the old controller's time, as {why}: {time}; a shorter {} \
                     makes it shorter",
                    Name::KeepAliveTmo
                );
            }
            None => self.give_writes_up(
                "Keep Alive is off, so no time is long enough, and the target does not tell",
                now_us,
            ),
        }
    }

    fn release_writes(&mut self, why: &'static str, now_us: u64) {
        if let Some(fence) = self.fence.take() {
            let waited_ms = now_us.saturating_sub(fence.since_us) / 1000;
            tracing::info!(
                old = fence.old.icid,
                waited_ms,
                "the old controller is gone: {why}"
            );
            self.events.push_back(Event::WritesReleased);
            self.send_waiting(now_us);
        }
    }

    fn give_writes_up(&mut self, why: &'static str, now_us: u64) {
        if let Some(fence) = self.fence.take() {
            tracing::error!(
                old = fence.old.icid,
                "what became of the writes that were not answered is unknown: {why}"
            );
            self.events.push_back(Event::WritesUnknown { why });
            self.send_waiting(now_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ControllerInfo;

    #[test]
    fn the_time_says_what_it_is_made_of() {
        let linux = ControllerInfo {
            kas_ms: 1000,
            tbkas: true,
            ..ControllerInfo::default()
        };
        let time = linux.quiet_time(4500).unwrap();
        assert_eq!(time.ms(), 45_000);
        assert_eq!(
            time.to_string(),
            "3 x KATO (5000 ms) + CQT (30000 ms, assumed) from the loss on"
        );
        let told = ControllerInfo {
            cqt_ms: 10_000,
            ..ControllerInfo::default()
        };
        let time = told.quiet_time(5000).unwrap();
        assert_eq!(time.ms(), 20_000);
        assert!(time.to_string().contains("CQT (10000 ms, told)"), "{time}");
        assert_eq!(told.quiet_time(0), None);
    }
}
