//! What a queue of the controller's side does, the same over each of its wires.
//!
//! * Capsules and fences: [`capsules`].
//! * Data and responses: [`moves`].
//! * Ends in each state of a command, and peers that break the rules: [`ends`].
//! * The wires, and what they differ in: [`over`].

mod capsules;
mod ends;
#[path = "../harness/mod.rs"]
mod harness;
mod moves;
mod over;
mod rdma;
mod tcp;
mod tcp_host;
mod world;

use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::status::Status;
use libtest_mimic::Trial;

use harness::{Case, OwnDevice};
use over::Over;

macro_rules! cases {
    ($($subject:ident::$name:ident)*) => {
        &[$((stringify!($name), $subject::$name)),*]
    };
}

const CASES: &[Case<Over>] = cases! {
    capsules::capsules_come_whole_and_in_order
    capsules::everything_that_has_arrived_comes_before_a_fence
    capsules::what_has_arrived_before_the_first_look_comes_before_a_fence
    capsules::a_queue_that_is_removed_has_no_events
    moves::a_pull_has_come_when_it_is_told_of
    moves::several_pulls_come_each_to_its_sink
    moves::a_response_comes_behind_what_was_pushed
    moves::what_is_pushed_without_a_buffer_comes_before_its_response
    moves::zeroes_come_before_their_response
    moves::a_piece_is_told_of_when_it_has_left
    moves::the_last_piece_fills_the_data_buffer_where_the_queue_says_so
    moves::a_response_is_what_was_responded
    moves::a_queue_that_is_full_takes_more_when_something_has_left
    moves::the_last_responses_are_told_of_when_that_is_asked_for
    moves::more_zeroes_than_the_wire_has_come_back
    moves::a_pull_in_parts_has_as_many_outstanding_as_the_host_takes
    ends::while_nothing_is_under_way
    ends::while_a_command_waits_for_a_buffer
    ends::while_data_is_pulled
    ends::while_data_is_pushed
    ends::while_a_response_leaves
    ends::while_the_queue_is_full
    ends::what_is_against_the_rules_ends_the_queue
    ends::a_queue_that_has_ended_takes_nothing
    ends::what_was_responded_arrives_before_an_end_in_order
    ends::an_end_in_order_has_its_time_after_a_long_silence
    ends::nothing_leaves_after_an_end_at_once
    ends::a_queue_whose_host_does_nothing_ends_all_the_same
    ends::a_queue_pair_that_refuses_a_work_request_ends_its_queue
};

/// The cases over `device`, or over all wires that need none.
pub(crate) fn trials(device: Option<OwnDevice>) -> Vec<Trial> {
    let Some(device) = device else {
        let wires = [
            ("loopback", Over::Loopback),
            ("sockets", Over::Sockets),
            ("shared_memory", Over::SharedMemory),
            ("nvme_tcp", Over::Tcp),
            ("nvme_tcp_in_parts", Over::TcpInParts),
        ];
        return harness::trials(&wires, CASES);
    };
    harness::use_device(device);
    harness::trials(&[("verbs", Over::Device)], CASES)
}

/// Bytes that are not the same anywhere near.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 31 + at / 256 * 17) % 251).unwrap_or(0) ^ seed;
    (0..len).map(byte).collect()
}

fn success(cid: u16) -> Cqe {
    Cqe::new(cid, 0, Status::SUCCESS, 0)
}
