//! Hosts that make no progress: they leave an RDMA READ of their memory or an R2T unanswered, or
//! take no data and no responses. Other hosts need the buffers that their commands hold, so their
//! connections end, whatever their Keep Alive Timeout.
//!
//! While anything is under way, each connection is looked at periodically, and consecutive looks at
//! which nothing had moved are counted: this costs the commands nothing, and a target that was
//! itself stopped does not blame its hosts. Pulls are counted on their own, as a host that goes on
//! with everything else, or sends a byte of a pull now and then, keeps the buffers of its pulls all
//! the same.

use std::time::Duration;

use capstan_config::Size;
use capstan_subsystem::IoQueue;
use capstan_transport::Queue;
use capstan_transport::tcp::controller::Goes;

use super::IoPath;
use super::command::Command;
use super::connection::Connection;
use crate::limits::{LOOK_PERIOD_US, STALLED_LOOKS, STALLED_LOOKS_WHILE_OTHERS_WAIT};

/// What is overdue where a capsule or PDU has arrived in part.
const BEGUN: &str = "the rest of a capsule or PDU that the host has begun to send was missing";

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
    /// Consecutive looks at which anything was under way and nothing had moved; over NVMe/TCP,
    /// nothing of what the host is to take.
    send_looks: u32,
    /// Consecutive looks at which a new association waited for a capsule or PDU that had arrived in
    /// part, and no pull of the connection went on.
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

    /// Looks again. Returns at how many consecutive looks a capsule or PDU that had `begun` to
    /// arrive was incomplete and kept a new association waiting. The data of a pull may still go
    /// on.
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

    /// What the host has not given.
    fn not_given(&self) -> String {
        let pulls: Vec<_> = self
            .commands
            .iter()
            .filter_map(Command::pulled_bytes)
            .map(u64::from)
            .collect();
        not_pulled(&pulls, matches!(self.transport, Queue::Tcp(_)))
    }

    /// What the host has not taken.
    fn not_taken(&self) -> &'static str {
        match self.transport {
            Queue::Rdma(_) => "the host took neither data nor responses",
            Queue::Tcp(_) => "the host took less than 256 KiB of its data and responses",
        }
    }
}

/// The reason for the log: what is overdue, for how long, and the limit.
fn complaint(undone: &str, looks: u32, (most_looks, waits): (u32, &str)) -> String {
    let (seconds, most) = (seconds(looks), seconds(most_looks));
    format!(
        "{undone} for {seconds} s (at most {most} s{waits}): it is stopped, or the network to it is gone; it may connect again"
    )
}

/// Describes pulls that have not completed, with their sizes in bytes.
fn not_pulled(pulls: &[u64], over_tcp: bool) -> String {
    let (count, size) = (pulls.len(), Size(pulls.iter().sum()));
    match (count, over_tcp) {
        (1, false) => format!("an RDMA READ of {size} from the host was not answered"),
        (_, false) => format!("none of {count} RDMA READs of {size} from the host was answered"),
        (1, true) => format!("{size} of data that the host was asked for (R2T) was missing"),
        (_, true) => {
            format!(
                "of {size} of data of {count} commands that the host was asked for (R2T) the oldest command's was missing"
            )
        }
    }
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
            let why = if pull_looks >= patience.0 {
                complaint(&connection.not_given(), pull_looks, patience)
            } else if send_looks >= patience.0 {
                complaint(connection.not_taken(), send_looks, patience)
            } else if begun_looks >= patience.0 {
                complaint(BEGUN, begun_looks, patience)
            } else {
                continue;
            };
            self.resources.end(connection, why);
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
    fn what_a_host_leaves_undone_is_said_in_the_words_of_its_transport() {
        let said = |pulls: &[u64]| [false, true].map(|over_tcp| not_pulled(pulls, over_tcp));
        let one = [
            "an RDMA READ of 4 KiB from the host was not answered",
            "4 KiB of data that the host was asked for (R2T) was missing",
        ];
        let several = [
            "none of 2 RDMA READs of 2 MiB from the host was answered",
            "of 2 MiB of data of 2 commands that the host was asked for (R2T) the oldest command's was missing",
        ];
        assert_eq!(said(&[4096]), one);
        assert_eq!(said(&[1 << 20, 1 << 20]), several);
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
        let why = complaint(BEGUN, 4, (4, " while others wait"));
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
