//! Drives the state: what has to be durable before an answer, and what is to be closed.
//!
//! Stable storage is written by one thread at a time, which does not hold the state meanwhile: a
//! folder that is full, slow or hangs holds up the answers that wait for their records and no
//! others.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use capstan_exports::unsynced::WriterId;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::ClientId;

use super::files::Released;
use super::{Service, owner_shown};
use crate::state::stable::Record;
use crate::state::stable::file::{StableFile, StableFileError};
use crate::state::{Action, Config, ConnId, State};

/// How long an answer waits for a write to stable storage that another thread is at: many times as
/// long as a disk takes. Threads of the pool that wait longer would be missed by other clients.
const WRITE_WAIT: Duration = Duration::from_secs(1);

/// How long a grace period is waited for that is over but for calls that came in time.
const GRACE_LOOK: Duration = Duration::from_millis(100);

/// The state, and the threads that wait for a write to stable storage.
#[derive(Debug)]
pub(super) struct Driver {
    driven: Mutex<Driven>,
    /// A write to stable storage has ended.
    written: Condvar,
}

/// The state, with the file that keeps what of it survives a restart.
#[derive(Debug)]
struct Driven {
    state: State,
    stable: Stable,
    /// Records that are not durable, the oldest first; but for those that a thread is writing.
    unwritten: Vec<Record>,
    /// How many of all records are durable.
    durable: u64,
}

#[derive(Debug)]
enum Stable {
    Idle(StableFile),
    /// A thread has it.
    Written {
        since: Instant,
    },
}

/// What a call leaves to be done without the state.
#[derive(Default)]
struct Left {
    released: Released,
    ended: Vec<ClientId>,
    /// How many records the answer waits for.
    awaited: u64,
    /// Of how many it has made the last.
    made: u64,
}

impl Driver {
    /// # Errors
    /// The file cannot be used.
    pub(super) fn open(config: Config, stable_path: &Path) -> Result<Self, StableFileError> {
        let (mut stable, before) = StableFile::open(stable_path)?;
        let mut state = State::new(config, before);
        let snapshot = stable.wants_replacing().then(|| state.snapshot());
        stable.write(&state.take_records(), snapshot.as_deref())?;
        let durable = state.record_count();
        state.recorded(durable);
        Ok(Self {
            driven: Mutex::new(Driven {
                state,
                stable: Stable::Idle(stable),
                unwritten: Vec::new(),
                durable,
            }),
            written: Condvar::new(),
        })
    }

    /// The time of the grace period runs from now on, where there is one.
    pub(super) fn begin_grace(&self, now_us: u64) {
        let state = &mut self.locked().state;
        state.begin_grace(now_us);
        let grace_us = state.config().grace_us();
        if let Some(words) = grace_began(state.entitled_count(), grace_us) {
            tracing::info!("{words}");
        }
    }

    fn locked(&self) -> MutexGuard<'_, Driven> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the first `count` records are durable.
    ///
    /// # Errors
    /// NFS4ERR_DELAY: they are not, and are tried again when an answer waits for them.
    fn make_durable(&self, mut driven: MutexGuard<'_, Driven>, count: u64) -> Result<(), Status> {
        // Each turn is a write of another thread, which has waited here and does not come back.
        while driven.durable < count {
            let Stable::Written { since } = driven.stable else {
                return self.write(driven);
            };
            let left = WRITE_WAIT.saturating_sub(since.elapsed());
            if left.is_zero() {
                tracing::error!(
                    "clients have to wait: stable storage takes {:?} for a write, expected {:?} \
                     at most; look at the medium of the state folder",
                    since.elapsed(),
                    WRITE_WAIT
                );
                return Err(Status::DELAY);
            }
            let woken = self.written.wait_timeout(driven, left);
            driven = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Makes all records durable, unless a thread is at it.
    fn write(&self, mut driven: MutexGuard<'_, Driven>) -> Result<(), Status> {
        let since = Instant::now();
        let idle = std::mem::replace(&mut driven.stable, Stable::Written { since });
        let mut stable = match idle {
            Stable::Idle(stable) => stable,
            written @ Stable::Written { .. } => {
                driven.stable = written;
                return Ok(());
            }
        };
        let mut records = std::mem::take(&mut driven.unwritten);
        let count = driven.state.record_count();
        let snapshot = stable.wants_replacing().then(|| driven.state.snapshot());
        drop(driven);
        let written = stable.write(&records, snapshot.as_deref());
        let mut driven = self.locked();
        driven.stable = Stable::Idle(stable);
        if written.is_ok() {
            driven.durable = count;
            driven.state.recorded(count);
        } else {
            records.append(&mut driven.unwritten);
            driven.unwritten = records;
        }
        drop(driven);
        self.written.notify_all();
        written.map_err(|error| {
            tracing::error!("clients have to wait: {error}");
            Status::DELAY
        })
    }
}

/// Clients that are named in one line.
const CLIENTS_TOLD: usize = 8;

/// That `clients` may reclaim, in words.
fn grace_began(clients: usize, grace_us: u64) -> Option<String> {
    let seconds = grace_us / 1_000_000;
    let (who, have) = match clients {
        0 => return None,
        1 => ("1 client".to_owned(), "it has"),
        count => (format!("{count} clients"), "they have"),
    };
    Some(format!(
        "{who} may reclaim what was open or locked before the restart: others wait with opening and locking until \
         {have} done so, {seconds} s at most ({} s where a client is at it by then)",
        seconds.saturating_mul(2)
    ))
}

/// That the time to reclaim is over, in words, and which clients have lost what they had.
fn grace_ended(late: &[Arc<[u8]>]) -> String {
    if late.is_empty() {
        return "every client has reclaimed what it had before the restart: the others go on"
            .to_owned();
    }
    let names = late
        .iter()
        .take(CLIENTS_TOLD)
        .map(|owner| owner_shown(owner));
    let mut names: Vec<_> = names.collect();
    let more = late.len().saturating_sub(CLIENTS_TOLD);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    let (count, have) = match late.len() {
        1 => ("1 client".to_owned(), "has"),
        count => (format!("{count} clients"), "have"),
    };
    format!(
        "the time to reclaim is over: {count} did not come back, and {have} lost what was open or locked ({})",
        names.join(", ")
    )
}

impl Service {
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
        let mut driven = self.driver.locked();
        let (result, left) = self.drive_in_time(&mut driven, work);
        let durable = if left.awaited > driven.durable {
            self.driver.make_durable(driven, left.awaited)
        } else if left.made > driven.durable && !left.released.is_empty() {
            // Local users are given what a client has lost as well, and need not wait for long.
            let _told = self.driver.write(driven);
            Ok(())
        } else {
            drop(driven);
            Ok(())
        };
        self.finish(left);
        durable.map(|()| result)
    }

    /// As [`Service::with_state`], of work whose answer waits for no record.
    pub(super) fn update<T>(&self, work: impl FnOnce(&mut State, u64) -> T) -> T {
        let mut driven = self.driver.locked();
        let (result, left) = self.drive_in_time(&mut driven, work);
        drop(driven);
        self.finish(left);
        result
    }

    /// As [`Service::update`]: what is due by time is left to others.
    pub(super) fn update_now<T>(&self, work: impl FnOnce(&mut State, u64) -> T) -> T {
        let mut driven = self.driver.locked();
        let (result, left) = self.drive(&mut driven, self.now_us(), work);
        drop(driven);
        self.finish(left);
        result
    }

    /// As [`Service::with_state`], without waiting for anything; what is due by time is left to
    /// others. `None` where the answer has to wait, and the work is to be done once more.
    pub(super) fn with_state_now<T>(&self, work: impl FnOnce(&mut State, u64) -> T) -> Option<T> {
        let mut driven = self.driver.locked();
        let (result, left) = self.drive(&mut driven, self.now_us(), work);
        let is_durable = left.awaited <= driven.durable;
        drop(driven);
        self.finish(left);
        is_durable.then_some(result)
    }

    fn drive_in_time<T>(
        &self,
        driven: &mut Driven,
        work: impl FnOnce(&mut State, u64) -> T,
    ) -> (T, Left) {
        let now_us = self.now_us();
        driven.state.heard_until(self.heard_us.load(Relaxed));
        if driven.state.next_timer_us().is_some_and(|us| us <= now_us) {
            driven.state.handle_timers(now_us);
        }
        self.drive(driven, now_us, work)
    }

    fn drive<T>(
        &self,
        driven: &mut Driven,
        now_us: u64,
        work: impl FnOnce(&mut State, u64) -> T,
    ) -> (T, Left) {
        driven.state.heard_until(self.heard_us.load(Relaxed));
        let result = work(&mut driven.state, now_us);
        let mut left = Left::default();
        while let Some(action) = driven.state.poll_action() {
            if let Action::EndClient { client } = action {
                left.ended.push(client);
            }
            self.files.carry_out(&action, &mut left.released);
        }
        if let Some(late) = driven.state.take_grace_end() {
            tracing::info!("{}", grace_ended(&late));
        }
        let counters = &self.counters;
        let clients = driven.state.client_count();
        counters
            .clients
            .set(u64::try_from(clients).unwrap_or(u64::MAX));
        counters.opens.set(driven.state.open_count());
        left.awaited = driven.state.take_awaited();
        let records = driven.state.take_records();
        if !records.is_empty() {
            left.made = driven.state.record_count();
            driven.unwritten.extend(records);
        }
        (result, left)
    }

    /// Closing may wait for a file system, and the lock is everybody's.
    fn finish(&self, left: Left) {
        drop(left.released);
        for client in left.ended {
            self.unsynced.end_writer(WriterId(client.0));
        }
    }

    /// Ends the grace period when its time is over, so that the log says so though no call comes;
    /// how long it lasts still. What it leaves to be recorded is recorded with the first answer
    /// that needs it.
    pub(super) fn end_grace_in_time(&self) -> Option<Duration> {
        let left_us = self.update_now(State::grace_left_us)?;
        // Calls that came in time are judged first, and a reclaim among them makes it longer.
        Some(Duration::from_micros(left_us).max(GRACE_LOOK))
    }

    /// No call of the connection is under way any more.
    pub(super) fn connection_ended(&self, connection: ConnId) {
        self.driver.locked().state.connection_ended(connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_restart_means_for_clients_is_told() {
        assert_eq!(grace_began(0, 90_000_000), None);
        let began = grace_began(5, 90_000_000).unwrap();
        assert!(
            began.starts_with("5 clients may reclaim") && began.contains("90 s at most (180 s"),
            "{began}"
        );
        assert!(grace_ended(&[]).starts_with("every client has reclaimed"));
        let late: Vec<Arc<[u8]>> = (0..10)
            .map(|n| format!("host{n}").into_bytes().into())
            .collect();
        let ended = grace_ended(&late);
        assert!(
            ended.contains("10 clients did not come back") && ended.ends_with("host7, and 2 more)"),
            "{ended}"
        );
    }
}
