//! A target that takes no connections and lets go those that are there, until it is told to take
//! them again.

use std::sync::TryLockError;
use std::time::{Duration, Instant};

use capstan_control::answer::Drained;
use capstan_control::{Drain, Failure, Kind};
use capstan_reactor::Clock;

use super::{Steering, locked};
use crate::control_plane::Message;
use crate::limits::{DRAIN_TIMEOUT_US, DRAIN_WITHIN_S_MAX};

impl Steering {
    pub(super) fn drain(&self, drain: Drain) -> Result<Drained, Failure> {
        match drain.off {
            true => self.take_in(drain),
            false => self.let_go(drain),
        }
    }

    fn let_go(&self, drain: Drain) -> Result<Drained, Failure> {
        let bound = Duration::from_micros(DRAIN_TIMEOUT_US);
        let within_s = drain.within_s.unwrap_or(bound.as_secs());
        if within_s > DRAIN_WITHIN_S_MAX {
            let words =
                format!("within_s is {within_s}; expected 0 to {DRAIN_WITHIN_S_MAX} seconds");
            return Err(Failure::new(Kind::Invalid, words)
                .of_field("within_s")
                .of_value(within_s.to_string())
                .allowed(format!("0 to {DRAIN_WITHIN_S_MAX}")));
        }
        locked(&self.drained).get_or_insert_with(Instant::now);
        let by_us = Clock.now_us() + within_s * 1_000_000;
        self.control.broadcast(|| Message::LetGo { by_us });
        self.publish_unless_changed();
        Ok(Drained {
            drained: true,
            connections: self.connected(),
            within_s: Some(within_s),
        })
    }

    fn take_in(&self, drain: Drain) -> Result<Drained, Failure> {
        if drain.within_s.is_some() {
            let words = "drain with off takes connections again at once; within_s is of a drain without off";
            return Err(Failure::new(Kind::WrongParameters, words).of_field("within_s"));
        }
        if locked(&self.drained).take().is_none() {
            let words = "the target takes connections already; nothing is to be changed";
            return Err(Failure::new(Kind::Exists, words));
        }
        self.control.broadcast(|| Message::TakeIn);
        self.publish_unless_changed();
        Ok(Drained {
            drained: false,
            connections: self.connected(),
            within_s: None,
        })
    }

    /// A change that is under way publishes when it has ended, and may wait for a file system until
    /// then.
    fn publish_unless_changed(&self) {
        match self.served.try_lock() {
            Ok(served) => self.publish(&served),
            Err(TryLockError::Poisoned(poisoned)) => self.publish(&poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// How long no connections have been taken, where that is so.
    pub(super) fn drained_for(&self) -> Option<Duration> {
        locked(&self.drained).map(|since| since.elapsed())
    }

    fn connected(&self) -> usize {
        self.control.with(|target| target.associations().count())
    }
}
