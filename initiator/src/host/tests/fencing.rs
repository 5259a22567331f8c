//! When what a lost association left unanswered may be issued again.

use capstan_nvme_proto::async_event::AsyncEvent;
use capstan_nvme_proto::command::CrossControllerReset;
use capstan_nvme_proto::identify::{CapstanBlock, CapstanCapabilities, IdentifyController};
use capstan_nvme_proto::log::CrossControllerResetStatus;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;

use super::{Script, config};
use crate::host::{CommandData, HostConfig};
use crate::options::ReplayWrites;
use crate::scripted::{CNTLID, ResetManner};

const OLD: CrossControllerReset = CrossControllerReset {
    icid: CNTLID,
    ciu: 3,
    cirn: 0x0123_4567_89AB_CDEF,
};
const RELEASED: &str = "writes released";

/// A controller with Cross-Controller Reset.
fn resets(identify: &mut IdentifyController) {
    identify.ciu = OLD.ciu;
    identify.cirn = OLD.cirn.into();
    identify.ccrl = 4;
    identify.oaes = (1 << 8 | 1 << 20).into();
}

/// Live, and lost at once with writes that were not answered.
fn lost(identify: fn(&mut IdentifyController), kato_ms: u32) -> Script {
    let mut config = config();
    config.kato_ms = kato_ms;
    lost_with(config, identify)
}

fn lost_with(config: HostConfig, identify: fn(&mut IdentifyController)) -> Script {
    let mut script = Script::new(config);
    script.controller.identify = identify;
    script.settle();
    assert!(script.host.is_live());
    script.unanswered = true;
    script.lose();
    script.unanswered = false;
    script
}

impl Script {
    fn lose(&mut self) {
        self.host
            .handle_disconnected(1, "by the peer".to_owned(), self.now_us);
        self.settle();
    }

    fn reconnect(&mut self) {
        self.pass(200_000);
        assert!(self.host.is_live(), "{:?}", self.told);
    }

    fn released(&self) -> bool {
        self.told.iter().any(|told| told == RELEASED)
    }

    /// Passes time until just before `at_us`, when writes must wait, and then beyond, when they
    /// must not.
    fn released_at(&mut self, at_us: u64) {
        self.pass(at_us - self.now_us - 1);
        assert!(
            self.host.holds_writes() && !self.released(),
            "{:?}",
            self.told
        );
        self.pass(2);
        assert!(
            !self.host.holds_writes() && self.released(),
            "{:?}",
            self.told
        );
    }
}

#[test]
fn the_next_controller_is_asked_to_reset_the_old_one() {
    let mut script = lost(resets, 4000);
    assert!(script.host.holds_writes());
    script.reconnect();
    assert_eq!(script.controller.resets, [OLD]);
    assert!(script.released() && !script.host.holds_writes());
    assert_eq!(script.host.held(script.now_us), None);
}

#[test]
fn a_reset_in_progress_is_waited_for_however_long_it_takes() {
    let mut script = lost(resets, 4000);
    script.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::IN_PROGRESS);
    script.reconnect();
    // Long beyond the time that would be enough otherwise.
    script.pass(58_000_000);
    assert!(script.host.holds_writes() && script.host.is_live());
    assert_eq!(script.controller.resets.len(), 1);
    let held = script.host.held(script.now_us).unwrap().to_string();
    assert!(
        held.starts_with("writes wait until the target says that controller 0x0011 is gone"),
        "{held}"
    );
    script.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::SUCCESSFUL);
    script.pass(200_000);
    assert!(script.released());
}

#[test]
fn the_event_of_a_reset_that_is_over_spares_the_wait() {
    let mut script = lost(resets, 4000);
    script.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::IN_PROGRESS);
    script.pass(130_000);
    assert!(script.host.is_live() && script.host.holds_writes());
    script.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::SUCCESSFUL);
    let event = AsyncEvent::CROSS_CONTROLLER_RESET_COMPLETED.encode();
    script.event(event.into());
    assert!(script.released());
}

#[test]
fn a_reset_that_is_no_more_listed_is_asked_for_again() {
    let mut script = lost(resets, 4000);
    script.controller.reset_manner = ResetManner::Forgotten;
    script.reconnect();
    script.pass(200_000);
    assert!(script.host.holds_writes());
    script.controller.reset_manner = ResetManner::Immediate;
    script.pass(200_000);
    assert!(script.released() && script.controller.resets.len() >= 2);
}

#[test]
fn without_cross_controller_reset_time_tells() {
    // KATO 4000 ms; 30 s are assumed of a controller that does not tell CQT.
    let mut script = lost(|_| {}, 4000);
    let held = script.host.held(script.now_us).unwrap().to_string();
    assert_eq!(
        held,
        "writes wait 38 s until controller 0x0011 is known to be gone"
    );
    script.reconnect();
    script.released_at(2 * 4_000_000 + 30_000_000);
    assert!(script.controller.resets.is_empty());

    let mut script = lost(|identify| identify.cqt_ms = 700.into(), 4000);
    script.reconnect();
    script.released_at(2 * 4_000_000 + 700_000);

    let traffic_based = |identify: &mut IdentifyController| {
        identify.cqt_ms = 700.into();
        identify.ctratt = (1 << 6).into();
        // KATO counts in units of 3 s.
        identify.kas_100ms = 30.into();
    };
    let mut script = lost(traffic_based, 4000);
    script.reconnect();
    script.released_at(3 * 6_000_000 + 700_000);
}

#[test]
fn time_passes_while_there_is_no_connection() {
    let mut script = lost(|_| {}, 4000);
    script.reachable = false;
    script.pass(45_000_000);
    assert!(script.host.holds_writes());
    script.reachable = true;
    script.pass(20_000_000);
    assert!(script.released(), "{:?}", script.told);
}

#[test]
fn a_controller_with_the_old_ones_identifier_cannot_be_asked() {
    let capstan = |identify: &mut IdentifyController| {
        resets(identify);
        let fences = CapstanCapabilities::FENCES_EARLIER_ASSOCIATIONS;
        identify.set_capstan(&CapstanBlock::new(fences, [0; 16]));
    };
    // A target that was started anew begins with the same identifier again.
    for (identify, told) in [
        (capstan as fn(&mut IdentifyController), true),
        (resets, false),
    ] {
        let mut config = config();
        config.kato_ms = 4000;
        let mut script = Script::new(config);
        script.controller.identify = identify;
        script.controller.keeps_cntlid = true;
        script.settle();
        script.unanswered = true;
        script.lose();
        script.reconnect();
        assert!(script.controller.resets.is_empty());
        assert_eq!(script.released(), told);
        if !told {
            script.released_at(38_000_000);
        }
    }
}

#[test]
fn a_refused_reset_leaves_it_to_time() {
    let mut script = lost(
        |identify| {
            resets(identify);
            identify.cqt_ms = 100.into();
        },
        4000,
    );
    script.controller.reset_manner = ResetManner::Refused(Status::INVALID_FIELD.dnr());
    script.reconnect();
    assert_eq!(script.controller.resets.len(), 1);
    script.released_at(8_100_000);

    let mut script = lost(resets, 4000);
    script.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::FAILED);
    script.reconnect();
    script.released_at(38_000_000);
}

#[test]
fn a_target_that_is_busy_with_resets_is_asked_again() {
    for status in [
        Status::CROSS_CONTROLLER_RESET_IN_PROGRESS,
        Status::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED,
        Status::CROSS_CONTROLLER_RESET_LOG_PAGE_FULL,
    ] {
        let mut script = lost(resets, 4000);
        script.controller.reset_manner = ResetManner::Refused(status);
        script.reconnect();
        script.pass(1_000_000);
        let asked = script.controller.resets.len();
        assert!((5..=15).contains(&asked), "{status}: {asked}");
        assert!(script.host.holds_writes());
        script.controller.reset_manner = ResetManner::Immediate;
        script.pass(100_000);
        assert!(script.released(), "{status}");
    }
}

#[test]
fn without_keep_alive_only_the_target_can_tell() {
    let mut script = lost(|_| {}, 0);
    script.reconnect();
    assert!(!script.host.holds_writes() && !script.released());
    let last = script.told.last().unwrap();
    assert!(
        last.starts_with("writes unknown: Keep Alive is off"),
        "{last}"
    );

    let mut script = lost(resets, 0);
    script.reconnect();
    assert!(script.released());
}

#[test]
fn ctrl_loss_tmo_ends_the_wait_for_a_target_that_never_tells() {
    let mut script = lost(resets, 4000);
    script.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::IN_PROGRESS);
    script.reconnect();
    script.pass(61_000_000);
    assert!(!script.host.holds_writes());
    let last = script.told.last().unwrap();
    assert_eq!(last, "writes unknown: ctrl-loss-tmo has passed");
}

#[test]
fn ctrl_loss_tmo_does_not_end_a_wait_that_time_ends() {
    let mut config = config();
    config.kato_ms = 4000;
    config.ctrl_loss_tmo_us = Some(10_000_000);
    let mut script = lost_with(config, |_| {});
    script.reconnect();
    script.released_at(2 * 4_000_000 + 30_000_000);
}

#[test]
fn another_loss_meanwhile_starts_the_question_anew_and_not_the_time() {
    let mut script = lost(resets, 4000);
    script.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::IN_PROGRESS);
    script.reconnect();
    script.pass(5_000_000);
    script.lose();
    assert!(script.host.holds_writes());
    script.controller.reset_manner = ResetManner::Refused(Status::INVALID_FIELD);
    script.reconnect();
    assert_eq!(script.controller.resets, [OLD, OLD]);
    script.released_at(38_000_000);
}

#[test]
fn nothing_waits_when_everything_was_answered_or_immediate_replay_is_asked_for() {
    let mut script = Script::new(config());
    script.settle();
    script.lose();
    assert!(!script.host.holds_writes());

    let mut immediate = config();
    immediate.replay_writes = ReplayWrites::Immediate;
    let mut script = Script::new(immediate);
    script.settle();
    script.unanswered = true;
    script.lose();
    assert!(!script.host.holds_writes());
    script.reconnect();
    assert!(!script.released());
}

#[test]
fn admin_commands_that_may_change_media_wait_as_well() {
    const FORMAT: u8 = 0x80;
    let mut script = lost(resets, 4000);
    script.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::IN_PROGRESS);
    script.reconnect();
    let now_us = script.now_us;
    let submit = |script: &mut Script, token, opcode| {
        let sqe = Sqe::new(opcode, 0, 1);
        let data = CommandData::None;
        script.host.submit_admin(token, sqe, data, now_us).unwrap();
        script.settle();
    };
    submit(&mut script, 1, 0x0A);
    assert_eq!(script.told.last().unwrap(), "admin 1: 0");
    submit(&mut script, 2, FORMAT);
    assert_eq!(script.told.last().unwrap(), "admin 1: 0");
    submit(&mut script, 3, 0x0A);
    let last = script.told.last().unwrap();
    assert_eq!(last, "admin 3: 0", "behind one that is held");
    // Get LBA Status changes nothing, either.
    submit(&mut script, 4, 0x86);
    assert_eq!(script.told.last().unwrap(), "admin 4: 0");
    script.controller.reset_manner = ResetManner::Goes(CrossControllerResetStatus::SUCCESSFUL);
    script.pass(200_000);
    assert!(script.controller.formats == 1 && script.released());

    // It is in the controller's hands when the connection breaks: its own outcome is unknown, and
    // writes wait for it.
    script.lose();
    assert!(script.host.holds_writes());
    let unknown = |told: &String| told.starts_with("admin 2: Format NVM has an unknown outcome");
    assert!(script.told.iter().any(unknown), "{:?}", script.told);
}
