//! What the queues of the host's side do, the same over each wire.
//!
//! * Connecting: [`opening`].
//! * Commands and responses: [`commands`].
//! * The memory of commands: [`memory`].
//! * Controllers that break the rules: [`bad_controllers`].
//! * Ends in each state of a command: [`ends`].
//! * The wires, and what they differ in: [`over`].

mod bad_controllers;
mod commands;
mod ends;
#[path = "../../harness/mod.rs"]
mod harness;
mod memory;
mod opening;
mod over;
mod rdma;
mod tcp;
mod tcp_peer;
mod world;

use libtest_mimic::Trial;

use harness::{Case, OwnDevice};
use over::Over;

macro_rules! cases {
    ($($subject:ident::$name:ident)*) => {
        &[$((stringify!($name), $subject::$name)),*]
    };
}

const CASES: &[Case<Over>] = cases! {
    opening::a_queue_that_is_connected_takes_commands
    opening::nothing_listens_there
    opening::a_controller_refuses_the_connection
    opening::a_controller_that_does_nothing_has_its_time
    opening::a_queue_that_is_given_up_has_no_events
    opening::queues_are_connected_again_after_a_close
    commands::commands_arrive_whole_and_in_order
    commands::responses_are_what_was_sent
    commands::queues_are_apart
    commands::a_queue_takes_one_command_less_than_it_has_entries
    commands::a_queue_that_is_full_takes_more_when_something_has_left
    memory::data_from_the_controller_has_come_before_its_response
    memory::data_to_the_controller_is_what_was_offered
    memory::memory_is_back_once_and_not_before_its_response
    memory::what_is_beside_an_offer_stays_as_it_is
    memory::keys_are_closed_by_either_end
    memory::data_that_came_in_part_is_not_taken_for_whole
    memory::data_that_was_not_taken_does_not_count_as_written
    memory::data_that_does_not_fit_its_digest_fails_its_command_alone
    bad_controllers::responses_of_no_command
    bad_controllers::messages_that_are_against_the_rules_end_the_queue
    bad_controllers::data_behind_its_response_reaches_no_memory
    bad_controllers::data_beyond_an_offer_reaches_no_memory
    bad_controllers::an_offer_is_written_or_read_and_not_both
    ends::while_nothing_is_under_way
    ends::while_commands_are_outstanding
    ends::while_data_comes
    ends::while_data_is_asked_for
    ends::while_a_response_comes
    ends::while_nothing_is_read
    ends::an_end_is_of_its_queue
    ends::what_was_not_flushed_never_leaves
    ends::what_was_sent_arrives_before_an_end_in_order
};

/// The cases over `device`, or over all wires that need none.
pub(crate) fn trials(device: Option<OwnDevice>) -> Vec<Trial> {
    let Some(device) = device else {
        let wires = [
            ("loopback", Over::Loopback),
            ("sockets", Over::Sockets),
            ("shared_memory", Over::SharedMemory),
            ("nvme_tcp", Over::Tcp),
            ("nvme_tcp_with_digests", Over::TcpWithDigests),
        ];
        return harness::trials(&wires, CASES);
    };
    harness::use_device(device);
    harness::trials(&[("verbs_host", Over::Device)], CASES)
}

/// Bytes that are not the same anywhere near.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 31 + at / 256 * 17) % 251).unwrap_or(0) ^ seed;
    (0..len).map(byte).collect()
}
