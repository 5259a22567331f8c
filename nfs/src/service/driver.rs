//! Drives the state: what has to be durable before an answer, and what is to be closed.

use std::path::Path;
use std::sync::{MutexGuard, PoisonError};

use capstan_exports::unsynced::WriterId;
use capstan_nfs_proto::v4::status::Status;

use super::Service;
use super::files::Released;
use crate::state::stable::Record;
use crate::state::stable::file::{StableFile, StableFileError};
use crate::state::{Action, Config, ConnId, State};

/// The state, with the file that keeps what of it survives a restart.
#[derive(Debug)]
pub(super) struct Driven {
    state: State,
    stable: StableFile,
    /// Records that could not be written yet, the oldest first. No answer leaves before they are.
    unwritten: Vec<Record>,
}

impl Driven {
    /// # Errors
    /// The file cannot be used.
    pub(super) fn open(config: Config, stable_path: &Path) -> Result<Self, StableFileError> {
        let (stable, before) = StableFile::open(stable_path)?;
        let mut driven = Self {
            state: State::new(config, before, 0),
            stable,
            unwritten: Vec::new(),
        };
        driven.make_durable()?;
        Ok(driven)
    }

    fn make_durable(&mut self) -> Result<(), StableFileError> {
        self.unwritten.extend(self.state.take_records());
        if !self.unwritten.is_empty() {
            self.stable.append(&self.unwritten)?;
            self.unwritten.clear();
        }
        if self.stable.wants_replacing() {
            self.stable.replace(&self.state.snapshot())?;
        }
        Ok(())
    }
}

impl Service {
    fn driven(&self) -> MutexGuard<'_, Driven> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks or changes the state; the second argument of `work` is the time in microseconds. What
    /// an answer lets the client believe is durable when this returns.
    ///
    /// # Errors
    /// NFS4ERR_DELAY: stable storage cannot be written now. What `work` did stays, and is found by
    /// a repeated request.
    pub(super) fn with_state<T>(
        &self,
        work: impl FnOnce(&mut State, u64) -> T,
    ) -> Result<T, Status> {
        let mut driven = self.driven();
        let now_us = self.now_us();
        if driven.state.next_timer_us().is_some_and(|us| us <= now_us) {
            driven.state.handle_timers(now_us);
        }
        self.drive(driven, now_us, work)
    }

    /// As [`Service::with_state`], of work that nothing comes of but what it says: what is due by
    /// time is left to others. It waits for others that have the state, which seldom wait for stable
    /// storage meanwhile: when a client comes, or goes.
    ///
    /// # Errors
    /// As there.
    pub(super) fn with_state_now<T>(
        &self,
        work: impl FnOnce(&mut State, u64) -> T,
    ) -> Result<T, Status> {
        self.drive(self.driven(), self.now_us(), work)
    }

    fn drive<T>(
        &self,
        mut driven: MutexGuard<'_, Driven>,
        now_us: u64,
        work: impl FnOnce(&mut State, u64) -> T,
    ) -> Result<T, Status> {
        let result = work(&mut driven.state, now_us);
        let mut released = Released::default();
        let mut ended = Vec::new();
        while let Some(action) = driven.state.poll_action() {
            if let Action::EndClient { client } = action {
                ended.push(client);
            }
            self.files.carry_out(&action, &mut released);
        }
        let durable = driven.make_durable();
        drop(driven);
        // Closing may wait for a file system, and the lock is everybody's.
        drop(released);
        for client in ended {
            self.unsynced.end_writer(WriterId(client.0));
        }
        durable.map(|()| result).map_err(|error| {
            tracing::error!("clients have to wait: {error}");
            Status::DELAY
        })
    }

    /// No call of the connection is under way any more.
    pub(super) fn connection_ended(&self, connection: ConnId) {
        self.driven().state.connection_ended(connection);
    }
}
