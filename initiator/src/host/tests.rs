//! The host state machine against a scripted controller, in virtual time.

mod fencing;
mod flow_control;
mod scan;
mod stalls;

use std::collections::VecDeque;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::fabrics::ConnectResponse;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::opcode::AdminOpcode;
use capstan_nvme_proto::rdma_cm::CmAccept;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_rdma::contract::RejectReason;
use zerocopy::{FromZeros, IntoBytes};

use super::action::{Action, AssociationStatus, CommandData, Event, Step};
use super::association::Host;
use super::config::HostConfig;
use super::queue::SlotIndex;
use crate::error::{CommandError, ConnectError};
use crate::options::{ReplayWrites, Transport};
use crate::scripted::{HOSTID, ScriptedController};

fn config() -> HostConfig {
    HostConfig {
        subnqn: Nqn::new("nqn.2026-11.io.capstan:s").unwrap(),
        hostnqn: Nqn::new("nqn.2026-11.io.capstan:h").unwrap(),
        hostid: HOSTID,
        nr_io_queues: 2,
        queue_size: 64,
        kato_ms: 4000,
        connect_timeout_us: 3_000_000,
        admin_timeout_us: 10_000_000,
        reconnect_delay_ms: 10_000,
        ctrl_loss_tmo_us: Some(60_000_000),
        replay_writes: ReplayWrites::Fenced,
        scan_namespaces: true,
        transport: Transport::Rdma,
        disable_sq_flow_control: false,
    }
}

/// The state machine and its controller.
struct Script {
    host: Host,
    now_us: u64,
    /// Connections are answered; otherwise silence.
    reachable: bool,
    /// Commands that are answered before silence.
    answers: usize,
    controller: ScriptedController,
    /// Writes are outstanding when connections are given up.
    unanswered: bool,
    /// Asynchronous Event Requests that wait.
    events: VecDeque<(SlotIndex, Sqe)>,
    told: Vec<String>,
    /// Of the last connections that were closed.
    ended_in_order: Option<bool>,
    /// SQHD by QID.
    heads: [u16; 3],
}

impl Script {
    fn new(config: HostConfig) -> Self {
        Self {
            host: Host::new(config, 1, 0),
            now_us: 0,
            reachable: true,
            answers: usize::MAX,
            controller: ScriptedController::new(),
            unanswered: false,
            events: VecDeque::new(),
            told: Vec::new(),
            ended_in_order: None,
            heads: [0; 3],
        }
    }

    /// Acts until nothing is left to do now.
    fn settle(&mut self) {
        loop {
            while let Some(event) = self.host.poll_event() {
                self.told.push(match event {
                    Event::Live { again } => format!("live {again}"),
                    Event::Lost { cause } => format!("lost: {cause}"),
                    Event::AttemptFailed { .. } => continue,
                    Event::Failed { cause } => format!("failed: {cause}"),
                    Event::WritesReleased => "writes released".to_owned(),
                    Event::WritesUnknown { why } => format!("writes unknown: {why}"),
                    Event::NotSaved => "not saved".to_owned(),
                    Event::Closed => "closed".to_owned(),
                    Event::NamespacesChanged => "namespaces changed".to_owned(),
                    Event::Unidentified(unidentified) => unidentified.to_string(),
                    Event::DiscoveryLogChanged => "discovery log changed".to_owned(),
                    Event::CommandDone { token, result } => format!(
                        "admin {token}: {}",
                        result.map_or_else(|e| e.to_string(), |r| r.data.len().to_string())
                    ),
                });
            }
            let Some(action) = self.host.poll_action() else {
                break;
            };
            match action {
                Action::Open { request, .. } if self.reachable => {
                    let accept = CmAccept { crqsize: 128 }.encode();
                    self.host
                        .handle_established(request.qid, accept.as_bytes(), self.now_us);
                }
                Action::Send {
                    qid,
                    slot,
                    sqe,
                    data,
                } => self.command(qid, slot, &sqe, &data),
                Action::Open { .. } => {}
                Action::CloseAll { orderly } => {
                    self.ended_in_order = Some(orderly);
                    self.events.clear();
                    self.heads = [0; 3];
                    self.host.handle_given_up(self.unanswered, self.now_us);
                }
            }
        }
    }

    /// Lets `us` pass, deadline by deadline.
    fn pass(&mut self, us: u64) {
        let end = self.now_us + us;
        while let Some(at) = self.host.next_deadline_us().filter(|&at| at <= end) {
            self.now_us = self.now_us.max(at);
            self.host.handle_timeout(self.now_us);
            self.settle();
        }
        self.now_us = end;
    }

    fn answer(&mut self, qid: u16, slot: SlotIndex, sqe: &Sqe, cqe: (Status, u64), data: &[u8]) {
        let head = self.heads[usize::from(qid)];
        let head = match self.controller.flow_control.get(usize::from(qid)) {
            Some(false) => Cqe::SQHD_FLOW_CONTROL_DISABLED,
            _ => head,
        };
        let cqe = Cqe::new(sqe.cid.get(), head, cqe.0, 0).with_result(cqe.1);
        assert_eq!(self.host.take_response(qid, &cqe, self.now_us), Ok(slot));
        self.host
            .handle_completion(qid, slot, &cqe, data, self.now_us);
    }

    fn command(&mut self, qid: u16, slot: SlotIndex, sqe: &Sqe, data: &CommandData) {
        let Some(left) = self.answers.checked_sub(1) else {
            return;
        };
        self.answers = left;
        let entries = self.host.queue(qid).map_or(2, |queue| queue.size());
        let head = &mut self.heads[usize::from(qid)];
        *head = (*head + 1) % entries;
        let from_host: &[u8] = match data {
            CommandData::ToController(bytes) => bytes,
            CommandData::None | CommandData::FromController(_) => &[],
        };
        match self.controller.answer(qid, sqe, from_host) {
            Some(answer) => {
                let cqe = (answer.status, answer.result);
                self.answer(qid, slot, sqe, cqe, &answer.data);
            }
            None if sqe.admin_opcode() == AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST => {
                self.events.push_back((slot, *sqe));
            }
            None => {}
        }
    }

    fn event(&mut self, dw0: u64) {
        let (slot, sqe) = self.events.pop_front().unwrap();
        self.answer(0, slot, &sqe, (Status::SUCCESS, dw0), &[]);
        self.settle();
    }
}

fn live() -> Script {
    let mut script = Script::new(config());
    script.settle();
    assert!(script.host.is_live(), "{}", script.host.status(0));
    script
}

#[test]
fn connects_step_by_step_to_live() {
    let mut script = live();
    assert_eq!(script.told, ["live false"]);
    let host = &mut script.host;
    assert_eq!((host.controller().cntlid, host.io_queues()), (0x11, 2));
    assert_eq!(host.controller().in_capsule_bytes, 8192);
    assert_eq!(host.controller().transfer_bytes_max, Some(128 << 10));
    let nsids: Vec<_> = host.namespaces().iter().map(|n| n.nsid).collect();
    assert_eq!(nsids, [1, 7]);
    assert_eq!(host.queue(1).unwrap().credit(), 63);
    assert_eq!(script.events.len(), 4);
}

#[test]
fn waits_for_ready_by_polling_and_gives_up_after_cap_to() {
    let mut script = Script::new(config());
    script.controller.polls_before_ready = 20;
    script.settle();
    assert!(!script.host.is_live());
    script.pass(300_000);
    assert!(script.host.is_live());

    let mut script = Script::new(config());
    script.controller.polls_before_ready = u32::MAX;
    script.settle();
    script.pass(1_900_000);
    assert_eq!(
        script.host.status(script.now_us).to_string(),
        "connecting: waiting for CSTS.RDY"
    );
    script.pass(200_000);
    assert!(
        script.told[0].contains("within 2000 ms"),
        "{:?}",
        script.told
    );
}

#[test]
fn a_refused_connect_fails_at_once_with_words() {
    let mut script = Script::new(config());
    script.controller.connect = |_| (Status::CONNECT_INVALID_PARAMETERS.dnr(), 0x0001_0100);
    script.settle();
    assert!(script.told[0].starts_with("failed: "), "{:?}", script.told);
    assert!(script.told[0].contains("there is no subsystem nqn.2026-11.io.capstan:s"));
    // Nothing is outstanding: the target's log need not speak of a reset.
    assert_eq!(script.ended_in_order, Some(true));
    assert_eq!(script.host.next_deadline_us(), None);
}

#[test]
fn an_rdma_reject_fails_at_once_with_words() {
    let mut script = Script::new(config());
    script.reachable = false;
    script.settle();
    script
        .host
        .handle_rejected(0, RejectReason::NoListener, &[], 0);
    script.settle();
    assert!(
        script.told[0].contains("nothing listens"),
        "{:?}",
        script.told
    );
}

#[test]
fn authentication_is_refused_with_words() {
    let mut script = Script::new(config());
    script.controller.connect = |_| {
        let response = ConnectResponse {
            cntlid: 0x11,
            authentication_required: true,
            secure_channel_required: false,
        };
        (Status::SUCCESS, response.encode())
    };
    script.settle();
    assert!(script.told[0].contains("AUTHREQ"), "{:?}", script.told);
}

#[test]
fn a_controller_without_keyed_sgls_is_refused() {
    let mut script = Script::new(config());
    script.controller.identify = |identify| identify.sgls = 1.into();
    script.settle();
    assert!(script.told[0].contains("SGLS"), "{:?}", script.told);
}

#[test]
fn keep_alive_is_sent_at_half_of_kato_and_its_silence_is_a_loss() {
    let mut script = live();
    script.pass(10_000_000);
    assert_eq!(script.controller.keep_alives, 5);
    script.controller.answer_keep_alive = false;
    script.reachable = false;
    script.pass(7_000_000);
    assert!(
        script.told[1].starts_with("lost: Keep Alive did not finish within 4000 ms"),
        "{:?}",
        script.told
    );
}

#[test]
fn traffic_replaces_keep_alive_where_the_controller_says_so() {
    let mut script = Script::new(config());
    script.controller.identify = |identify| identify.ctratt = (1 << 6).into();
    script.settle();
    for _ in 0..20 {
        script.host.note_traffic(script.now_us);
        script.pass(1_000_000);
    }
    assert_eq!(script.controller.keep_alives, 0);
    script.pass(4_000_000);
    assert!(
        script.controller.keep_alives > 0,
        "without traffic it is sent"
    );
}

/// The controller counts commands that arrive, and none has since.
#[test]
fn answers_to_what_was_sent_long_ago_are_no_keep_alive() {
    let mut script = Script::new(config());
    script.controller.identify = |identify| identify.ctratt = (1 << 6).into();
    script.settle();
    let sent_us = script.now_us;
    for _ in 0..10 {
        script.host.note_traffic(sent_us);
        script.pass(2_000_000);
    }
    // Of 20 intervals of a second all but those in which the command was sent.
    let sent = script.controller.keep_alives;
    assert!((18..=20).contains(&sent), "{sent} Keep Alives");
}

#[test]
fn reconnects_with_growing_waits_and_comes_back() {
    let mut script = live();
    script.reachable = false;
    script.pass(6_000_000);
    script
        .host
        .handle_disconnected(1, "by the peer".to_owned(), script.now_us);
    script.settle();
    let AssociationStatus::Waiting {
        attempt,
        next_in_ms,
        fails_in_ms,
        ..
    } = script.host.status(script.now_us)
    else {
        panic!("not waiting");
    };
    assert_eq!((attempt, fails_in_ms), (1, Some(60_000)));
    assert!((100..=125).contains(&next_in_ms));
    assert!(!script.host.is_live());
    script.pass(20_000_000);
    let text = script.host.status(script.now_us).to_string();
    assert!(text.starts_with("reconnecting: attempt"), "{text}");
    script.reachable = true;
    script.pass(20_000_000);
    assert!(script.host.is_live());
    assert_eq!(script.told.last().unwrap(), "live true");
    assert_eq!(script.host.counters().losses, 1);
}

/// Within half a minute of the first loss no wait is longer than half a second and its jitter,
/// however often the controller was there for a moment.
#[test]
fn a_young_outage_is_looked_at_often() {
    let mut script = live();
    let mut waits_ms = Vec::new();
    let mut look = |script: &Script| {
        if let AssociationStatus::Waiting { next_in_ms, .. } = script.host.status(script.now_us) {
            waits_ms.push(next_in_ms);
        }
    };
    let lose = |script: &mut Script| {
        let cause = "by the peer".to_owned();
        script.host.handle_disconnected(1, cause, script.now_us);
        script.settle();
    };
    for _ in 0..8 {
        lose(&mut script);
        look(&script);
        script.pass(1_000_000);
        assert!(script.host.is_live());
    }
    script.reachable = false;
    lose(&mut script);
    let end_us = script.now_us + 20_000_000;
    while script.now_us < end_us {
        look(&script);
        let next_us = script.host.next_deadline_us().unwrap();
        script.pass(next_us.saturating_sub(script.now_us).max(1));
    }
    assert!(waits_ms.len() > 10, "{waits_ms:?}");
    let longest_ms = waits_ms.iter().max().unwrap();
    assert!((500..=625).contains(longest_ms), "{waits_ms:?}");
}

#[test]
fn gives_up_when_ctrl_loss_tmo_has_passed() {
    let mut script = live();
    script.reachable = false;
    script
        .host
        .handle_disconnected(0, "by the peer".to_owned(), 0);
    script.pass(59_000_000);
    assert_eq!(script.told.len(), 2, "{:?}", script.told);
    script.pass(2_000_000);
    let last = script.told.last().unwrap();
    assert!(
        last.starts_with("failed: the controller was lost for 60 s"),
        "{last}"
    );
    assert_eq!(script.host.next_deadline_us(), None);
    let refused = script
        .host
        .submit_admin(1, Sqe::new(6, 0, 0), CommandData::None, 0);
    assert!(matches!(refused, Err(CommandError::Lost(_))));
}

#[test]
fn another_namespace_after_a_reconnect_is_fenced() {
    let mut script = live();
    script.controller.nguid = [8; 16];
    script
        .host
        .handle_disconnected(0, "by the peer".to_owned(), 0);
    script.pass(1_000_000);
    assert!(script.host.is_live());
    assert!(script.host.namespaces()[0].unusable.is_some());
    assert!(script.told.contains(&"namespaces changed".to_owned()));
}

#[test]
fn a_namespace_event_leads_to_a_new_scan_and_a_new_request() {
    let mut script = live();
    script.controller.namespaces = vec![1, 2, 7];
    script.event(0x0004_0002);
    assert_eq!(script.told.last().unwrap(), "namespaces changed");
    assert_eq!(script.host.namespaces().len(), 3);
    assert_eq!(script.events.len(), 4);
}

#[test]
fn an_endless_namespace_list_is_cut() {
    let mut script = Script::new(config());
    script.controller.namespaces = (1..=5000).collect();
    script.settle();
    assert!(script.host.is_live());
    assert_eq!(script.host.namespaces().len(), 1024);
    // One that does not ascend ends the walk.
    let mut script = Script::new(config());
    script.controller.namespaces = vec![5; 1024];
    script.settle();
    assert_eq!(script.host.namespaces().len(), 1);
    assert_eq!(script.host.counters().bad_data, 1);
}

#[test]
fn admin_commands_of_the_owner_are_answered_in_their_order() {
    let mut script = live();
    for token in 0..40 {
        let sqe = Sqe::new(6, 0, 1);
        let data = CommandData::FromController(4096);
        script.host.submit_admin(token, sqe, data, 0).unwrap();
    }
    script.settle();
    let tokens: Vec<_> = script.told[1..].iter().map(String::as_str).collect();
    let expected: Vec<_> = (0..40).map(|t| format!("admin {t}: 4096")).collect();
    assert_eq!(tokens, expected);
    let long = CommandData::FromController(1 << 20);
    let refused = script.host.submit_admin(1, Sqe::new(6, 0, 1), long, 0);
    assert!(matches!(refused, Err(CommandError::TooLong { .. })));
}

#[test]
fn a_reset_connects_again_at_once() {
    let mut script = live();
    script.host.reset(0);
    script.settle();
    assert!(script.controller.shutdowns == 1);
    script.pass(0);
    let again = ["lost: a reset of the controller was asked for", "live true"];
    assert_eq!(script.told[1..], again);
    // A lost controller is not waited for any longer, and a reset does not bring back one that is
    // over.
    script.reachable = false;
    script
        .host
        .handle_disconnected(0, "by the peer".to_owned(), 0);
    script.pass(50_000_000);
    script.reachable = true;
    script.host.reset(script.now_us);
    script.pass(0);
    assert!(script.host.is_live());
    script.host.shutdown(script.now_us);
    script.settle();
    script.host.reset(script.now_us);
    script.pass(1_000_000);
    assert_eq!(script.told.last().unwrap(), "closed");
    assert_eq!(script.host.counters().losses, 2);
}

#[test]
fn a_reset_of_a_controller_that_does_not_answer_gives_it_up() {
    let mut script = live();
    script.host.reset(0);
    while script.host.poll_action().is_some() {}
    assert_eq!(script.host.status(0), AssociationStatus::Resetting);
    // What is asked meanwhile waits for the next controller.
    let data = CommandData::FromController(4096);
    script
        .host
        .submit_admin(1, Sqe::new(6, 0, 1), data, 0)
        .unwrap();
    script.pass(4_900_000);
    assert_eq!(script.told.len(), 1, "{:?}", script.told);
    script.pass(100_000);
    assert_eq!(script.told.last().unwrap(), "admin 1: 4096");
    assert_eq!(script.host.counters().losses, 1);

    // A connection that breaks in the middle is connected again at once, and a shutdown goes on
    // from there.
    let mut script = live();
    script.host.reset(0);
    script
        .host
        .handle_disconnected(0, "by the peer".to_owned(), 0);
    script.pass(0);
    assert!(script.host.is_live());
    script.host.reset(0);
    script.host.shutdown(0);
    script.settle();
    assert_eq!(script.told.last().unwrap(), "closed");
}

#[test]
fn a_reset_before_the_first_connect_changes_nothing() {
    let mut script = Script::new(config());
    script.host.reset(0);
    script.settle();
    assert_eq!(script.told, ["live false"]);
}

#[test]
fn shuts_down_in_order() {
    let mut script = live();
    script.host.shutdown(0);
    script.settle();
    assert!(script.controller.shutdown);
    assert_eq!(script.told.last().unwrap(), "closed");
    assert_eq!(script.host.status(0), AssociationStatus::Closed);
}

#[test]
fn a_silent_controller_cannot_hold_up_a_shutdown() {
    let mut script = live();
    script.host.shutdown(0);
    while script.host.poll_action().is_some() {}
    script.pass(5_000_000);
    assert_eq!(script.told.last().unwrap(), "closed");
}

#[test]
fn a_step_without_an_answer_names_itself_and_its_bound() {
    let mut script = Script::new(config());
    script.reachable = false;
    script.settle();
    script.pass(3_000_000);
    assert_eq!(
        script.told,
        [
            "failed: connection of the Admin Queue did not finish within 3000 ms; check that \
             the address is right and reachable and that the target runs"
        ]
    );
}

#[test]
fn stray_answers_are_counted_and_too_many_end_the_connection() {
    let mut script = live();
    script.reachable = false;
    let stray = Cqe::new(0xABCD, 0, Status::SUCCESS, 0);
    assert!(script.host.take_response(99, &stray, 0).is_err());
    for _ in 0..64 {
        assert!(script.host.take_response(1, &stray, 0).is_err());
    }
    assert!(script.host.is_live());
    assert!(script.host.take_response(1, &stray, 0).is_err());
    assert!(!script.host.is_live());
    assert_eq!(script.host.counters().bad_cid, 66);
}

#[test]
fn inputs_that_fit_no_state_change_nothing() {
    let mut script = live();
    let before = script.host.status(0);
    script.host.handle_established(1, &[0; 32], 0);
    script
        .host
        .handle_rejected(0, RejectReason::Consumer, &[], 0);
    script
        .host
        .handle_open_failed(2, ConnectError::ControllerFatal, 0);
    script
        .host
        .handle_completion(2, SlotIndex(900), &Cqe::new_zeroed(), &[], 0);
    script
        .host
        .handle_completion(0, SlotIndex(30), &Cqe::new_zeroed(), &[], 0);
    script.settle();
    assert_eq!((script.host.status(0), script.told.len()), (before, 1));
    assert_eq!(Step::Scan.name(), "Identify of the namespaces");
}
