//! What the controller reports of the medium of a volume: asked for when its state is.

use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use capstan_nvme_proto::command::{AdminCommand, GetLogPage};
use capstan_nvme_proto::log::{CriticalWarning, HealthLog, LogPageId};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::NSID_BROADCAST;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::making::on_thread;
use super::record::Record;
use crate::controller::Controller;
use crate::error::CommandError;
use crate::health::Medium;
use crate::host::CommandData;

/// Bytes of the SMART / Health Information log page.
const HEALTH_BYTES: u32 = 512;
/// How long an answer is waited for, while nobody else is served; a later one is taken by the next
/// question.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long an answer holds.
const HOLDS: Duration = Duration::from_secs(1);

/// The critical warning, when the controller gives the log page.
type Warning = Result<Option<CriticalWarning>, CommandError>;

/// What was last reported.
#[derive(Debug)]
pub(super) struct Health {
    warning: CriticalWarning,
    /// When that was asked for.
    at: Option<Instant>,
    /// The question that has no answer yet; the other end is closed when it has.
    asking: Option<(JoinHandle<Warning>, OwnedFd)>,
    /// Since when that is so.
    asked_at: Option<Instant>,
    /// The controller does not tell one namespace from another.
    of_all: bool,
}

impl Health {
    pub(super) fn new() -> Self {
        Self {
            warning: CriticalWarning::empty(),
            at: None,
            asking: None,
            asked_at: None,
            of_all: false,
        }
    }

    /// What the controller warns of, with what to do; `None` when that is nothing.
    pub(super) fn attention(&mut self, controller: &Controller, record: &Record) -> Option<String> {
        self.ask(controller, record.nsid);
        in_words(self.warning, record)
    }

    /// For how long a question has had no answer, if one has none.
    pub(super) fn silent_ms(&self) -> Option<u64> {
        let since = self.asked_at.filter(|_| self.asking.is_some())?;
        u64::try_from(since.elapsed().as_millis()).ok()
    }

    fn ask(&mut self, controller: &Controller, nsid: u32) {
        if self.at.is_some_and(|at| at.elapsed() < HOLDS) {
            return;
        }
        if self.asking.is_none() {
            let controller = controller.clone();
            let nsid = if self.of_all { NSID_BROADCAST } else { nsid };
            // Without a thread it is asked for next time.
            self.asking = on_thread(move || read(&controller, nsid)).ok();
            self.asked_at = Some(Instant::now());
        }
        let is_answered = self.asking.as_ref().is_some_and(|(_, done)| {
            let mut fds = [PollFd::new(done.as_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::ZERO);
            matches!(poll(&mut fds, timeout), Ok(1..))
        });
        let Some((thread, _)) = self.asking.take_if(|_| is_answered) else {
            return;
        };
        self.at = Some(Instant::now());
        match thread.join() {
            Ok(Ok(Some(warning))) => self.warning = warning,
            // The next question is of all.
            Ok(Err(CommandError::Status { .. })) if !self.of_all => {
                self.of_all = true;
                self.at = None;
            }
            // What is known is not known better.
            _ => {}
        }
    }
}

fn read(controller: &Controller, nsid: u32) -> Warning {
    let command = AdminCommand::GetLogPage(GetLogPage {
        nsid,
        rae: true,
        ..GetLogPage::new(LogPageId::HEALTH, HEALTH_BYTES.into())
    });
    let data = CommandData::FromController(HEALTH_BYTES);
    let reply = controller.admin_blocking(command.encode(0, Sgl::EMPTY), data)?;
    let log = HealthLog::from_data(&reply.data);
    Ok(log.map(|log| CriticalWarning::from_bits_retain(log.critical_warning)))
}

fn in_words(warning: CriticalWarning, record: &Record) -> Option<String> {
    let medium = Medium {
        way: &record.way,
        nsid: record.nsid,
    };
    medium.warned_of(warning)
}
