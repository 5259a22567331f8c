//! Hosts that make no progress: they leave a pull of their memory unanswered, or take no data and
//! no responses. Other hosts need the buffers that their commands hold, so their connections end,
//! whatever their Keep Alive Timeout. What is overdue is told in the words of the transport.
//!
//! While anything is under way, each connection is looked at periodically, and consecutive looks at
//! which nothing had moved are counted: this costs the commands nothing, and a target that was
//! itself stopped does not blame its hosts. Pulls are counted on their own, as a host that goes on
//! with everything else, or sends a byte of a pull now and then, keeps the buffers of its pulls all
//! the same.

use std::time::Duration;

use capstan_config::Size;
use capstan_subsystem::IoQueue;
use capstan_transport::{Goes, Overdue};

use super::IoPath;
use super::cause::Cause;
use super::command::Command;
use super::connection::Connection;
use crate::limits::{LOOK_PERIOD_US, STALLED_LOOKS, STALLED_LOOKS_WHILE_OTHERS_WAIT};

/// What was seen of a connection.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Work requests that have ended and commands that went on, so far; `pulled` counts the pulls
    /// among them.
    moved: u32,
    pulled: u32,
    /// `moved` and `pulled` at the last look.
    seen: (u32, u32),
    /// Consecutive looks at which pulls were under way and had not gone on.
    pull_looks: u32,
    /// Consecutive looks at which anything was under way and nothing had moved; where the queue
    /// knows its headway, nothing of what the host is to take.
    send_looks: u32,
    /// Consecutive looks at which a new association waited for the rest of what had begun to
    /// arrive, and no pull of the connection went on.
    begun_looks: u32,
}

impl Progress {
    /// Something has moved.
    #[inline]
    pub(super) fn moved(&mut self) {
        self.moved = self.moved.wrapping_add(1);
    }

    /// The data of a command has come.
    pub(super) fn pulled(&mut self) {
        self.pulled = self.pulled.wrapping_add(1);
        self.moved();
    }

    /// How the host goes on with its pulls and with everything, by the events since the last look,
    /// where there are `pulls` and anything is `under_way`.
    fn by_events(&mut self, pulls: bool, under_way: bool) -> (Goes, Goes) {
        let goes = |is: bool, moved: bool| match (is, moved) {
            (false, _) => Goes::Idle,
            (true, true) => Goes::On,
            (true, false) => Goes::Not,
        };
        let (moved, pulled) = self.seen;
        self.seen = (self.moved, self.pulled);
        (
            goes(pulls, self.pulled != pulled),
            goes(under_way, self.moved != moved),
        )
    }

    /// Looks again. Returns at how many consecutive looks the pulls had not gone on, and at how
    /// many the data and responses had not.
    fn look(&mut self, (pulls, sends): (Goes, Goes)) -> (u32, u32) {
        let count = |looks: &mut u32, goes| {
            *looks = if goes == Goes::Not { *looks + 1 } else { 0 };
            *looks
        };
        let pull_looks = count(&mut self.pull_looks, pulls);
        (pull_looks, count(&mut self.send_looks, sends))
    }

    /// Looks again. Returns at how many consecutive looks what had `begun` to arrive was incomplete
    /// and kept a new association waiting. The data of a pull may still go on.
    fn look_at_begun(&mut self, begun: bool, pulls: Goes) -> u32 {
        let is_missing = begun && pulls != Goes::On;
        self.begun_looks = if is_missing { self.begun_looks + 1 } else { 0 };
        self.begun_looks
    }
}

/// In how many looks something has to move, and while what. `fenced`: a new association of the
/// host waits for the connection, which may be a path that lives. `short`: it has buffers that a
/// command of another host wants.
fn patience(fenced: bool, short: bool) -> (u32, &'static str) {
    match (fenced, short) {
        (true, _) => (
            STALLED_LOOKS_WHILE_OTHERS_WAIT,
            " while a new association of the host waits for it",
        ),
        (false, true) => (
            STALLED_LOOKS_WHILE_OTHERS_WAIT,
            " while other hosts wait for buffers",
        ),
        (false, false) => (STALLED_LOOKS, ""),
    }
}

/// When to look.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// The next time, when anything may be under way.
    at_us: Option<u64>,
}

impl Looks {
    /// Something was posted.
    #[inline]
    pub(super) fn wanted(&mut self, now_us: u64) {
        if self.at_us.is_none() {
            self.at_us = Some(now_us + LOOK_PERIOD_US);
        }
    }

    /// The next time.
    pub(super) fn at_us(&self) -> Option<u64> {
        self.at_us
    }

    /// Whether it is time; the next look has to be requested anew.
    fn is_due(&mut self, now_us: u64) -> bool {
        self.at_us.take_if(|at_us| *at_us <= now_us).is_some()
    }
}

impl Connection {
    /// How the host goes on with its pulls, and with everything it is to take.
    fn goes(&mut self) -> (Goes, Goes) {
        self.transport.headway().unwrap_or_else(|| {
            let pulls = self.commands.iter().any(|c| c.pulled_bytes().is_some());
            let under_way = self.transport.awaits_host();
            self.progress.by_events(pulls, under_way)
        })
    }

    /// Describes the pulls that have not completed.
    fn overdue_pulls(&self) -> String {
        let pulls = self.commands.iter().filter_map(Command::pulled_bytes);
        let (count, bytes) = pulls.fold((0, 0), |(count, bytes), pulled_bytes| {
            (count + 1, bytes + u64::from(pulled_bytes))
        });
        let size = &Size(bytes);
        self.transport.describe(Overdue::Pulls { count, size })
    }
}

/// The reason for the log: what is overdue, for how long, and the limit.
fn complaint(undone: &str, looks: u32, (most_looks, waits): (u32, &str)) -> String {
    let (seconds, most) = (seconds(looks), seconds(most_looks));
    format!(
        "{undone} for {seconds} s (at most {most} s{waits}): it is stopped, or the network to it is gone; it may connect again"
    )
}

/// How long so many looks take.
fn seconds(looks: u32) -> f64 {
    f64::from(looks) * Duration::from_micros(LOOK_PERIOD_US).as_secs_f64()
}

impl IoPath {
    /// Looks at every connection when it is time to, and marks those whose hosts make no progress.
    pub(super) fn end_stalled(&mut self) {
        let now_us = self.resources.now_us;
        if !self.looks.is_due(now_us) {
            return;
        }
        let others_wait = self.resources.take_shortage();
        for connection in self.connections.all.iter_mut().flatten() {
            if connection.closing() {
                continue;
            }
            let goes = connection.goes();
            let begun = self.fences.is_arriving(connection.identity.id);
            if goes != (Goes::Idle, Goes::Idle) || begun {
                self.looks.wanted(now_us);
            }
            let (pull_looks, send_looks) = connection.progress.look(goes);
            let begun_looks = connection.progress.look_at_begun(begun, goes.0);
            let fenced = begun || connection.queue.as_ref().is_some_and(IoQueue::is_fenced);
            let short = others_wait && connection.commands.iter().any(Command::has_buffer);
            let patience = patience(fenced, short);
            let of = |overdue| connection.transport.describe(overdue);
            let why = if pull_looks >= patience.0 {
                complaint(&connection.overdue_pulls(), pull_looks, patience)
            } else if send_looks >= patience.0 {
                complaint(&of(Overdue::Sends), send_looks, patience)
            } else if begun_looks >= patience.0 {
                complaint(&of(Overdue::Arrival), begun_looks, patience)
            } else {
                continue;
            };
            self.resources.end(connection, Cause::new("stalled", why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_count_while_nothing_moves_that_is_under_way() {
        let mut progress = Progress::default();
        let look = |progress: &mut Progress, under_way| {
            let goes = progress.by_events(false, under_way);
            progress.look(goes).1
        };
        progress.moved();
        assert_eq!(look(&mut progress, true), 0, "it moved");
        let looks = [true; 2].map(|under_way| look(&mut progress, under_way));
        assert_eq!(looks, [1, 2]);
        progress.moved();
        let looks = [true; 2].map(|under_way| look(&mut progress, under_way));
        assert_eq!(looks, [0, 1]);
        let looks = [false, true].map(|under_way| look(&mut progress, under_way));
        assert_eq!(looks, [0, 1]);
        progress.moved = u32::MAX;
        look(&mut progress, true);
        progress.moved();
        assert_eq!(
            look(&mut progress, true),
            0,
            "it moved, and the count began anew"
        );
    }

    #[test]
    fn only_the_data_of_a_pull_is_progress_of_pulls() {
        let mut progress = Progress::default();
        let mut look = |act: fn(&mut Progress)| {
            act(&mut progress);
            let goes = progress.by_events(true, true);
            progress.look(goes)
        };
        assert_eq!(look(Progress::moved), (1, 0));
        assert_eq!(look(Progress::moved), (2, 0));
        assert_eq!(look(Progress::pulled), (0, 0));
        assert_eq!(look(|_| ()), (1, 1));
    }

    #[test]
    fn a_path_that_moves_has_time_however_long_a_new_association_waits_for_it() {
        assert_eq!(patience(false, false).0, STALLED_LOOKS);
        let (looks, why) = patience(false, true);
        assert_eq!(looks, STALLED_LOOKS_WHILE_OTHERS_WAIT);
        assert!(why.contains("other hosts"), "{why}");
        let (looks, why) = patience(true, false);
        assert_eq!(looks, STALLED_LOOKS_WHILE_OTHERS_WAIT);
        assert!(why.contains("new association"), "{why}");
        assert_eq!(patience(true, true).0, STALLED_LOOKS_WHILE_OTHERS_WAIT);
    }

    #[test]
    fn what_has_begun_to_arrive_has_to_be_whole_in_time() {
        let mut progress = Progress::default();
        for looks in 1..=STALLED_LOOKS_WHILE_OTHERS_WAIT {
            progress.moved();
            assert_eq!(
                progress.look_at_begun(true, Goes::Idle),
                looks,
                "a byte helps nothing"
            );
        }
        assert_eq!(progress.look_at_begun(false, Goes::Idle), 0);
        assert_eq!(progress.look_at_begun(true, Goes::Not), 1);
        assert_eq!(progress.look_at_begun(true, Goes::On), 0);
        let why = complaint("the rest was missing", 4, (4, " while others wait"));
        assert!(
            why.contains("was missing for 2 s (at most 2 s while others wait)"),
            "{why}"
        );
    }

    #[test]
    fn looks_are_a_period_apart_and_stop_when_nobody_wants_one() {
        let mut looks = Looks::default();
        assert_eq!((looks.at_us(), looks.is_due(u64::MAX)), (None, false));
        looks.wanted(1_000);
        looks.wanted(2_000);
        let at_us = 1_000 + LOOK_PERIOD_US;
        assert_eq!(looks.at_us(), Some(at_us));
        assert!(!looks.is_due(at_us - 1));
        assert!(looks.is_due(at_us) && !looks.is_due(at_us));
    }
}
