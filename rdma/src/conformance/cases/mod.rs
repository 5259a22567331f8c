//! The cases, by topic.

mod connection;
mod exchange;
mod limits;
mod load;
mod ordering;
mod protection;
mod receive;
mod support;
mod teardown;
mod transfer;
mod wakeup;
mod windows;

use super::Case;

macro_rules! cases {
    ($($module:ident: $($name:ident)*;)*) => {
        /// Every case, the simplest first.
        pub const CASES: &[Case] = &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            body: $module::$name,
        },)*)*];
    };
}

cases! {
    connection:
        private_data_both_ways
        too_long_private_data_is_refused
        read_depths_are_exchanged
        addresses_are_told
        wildcard_listener_tells_real_addresses
        ipv6
        address_in_use
        two_listeners
        reject_says_why
        connect_to_nobody
        unanswered_connect_times_out
        abandoned_request
        migrated_request_is_accepted_elsewhere
        dropped_migration_refuses_the_peer
        calls_that_do_not_fit_are_refused
        ids_are_fresh_and_devices_shared
        many_requests_at_once;
    transfer:
        send_write_and_read_move_bytes
        gather_and_scatter
        zero_length
        long_messages
        receives_before_connect;
    ordering:
        write_is_placed_before_a_later_send_is_received
        writes_at_once_keep_their_place
        writes_in_place_keep_their_place
        sends_at_once_keep_their_order
        sends_at_once_use_nothing_up
        no_page_is_half_of_then_and_half_of_now
        batched_writes_and_send
        sends_fill_receives_in_order
        completions_keep_the_order_of_posting
        nothing_moves_before_the_doorbell
        unsignaled_success_is_not_told
        fence_waits_for_reads
        more_reads_than_the_depth
        reads_in_both_directions
        solicited_send_arrives_like_any_other;
    limits:
        send_queue_full
        receive_queue_full
        shared_receive_queue_full
        shallow_queue_many_times
        too_many_sges
        more_than_the_device_has
        send_before_connected
        separate_completion_queues;
    receive:
        send_before_the_receive_is_posted
        receive_never_posted
        message_longer_than_its_receive
        messages_are_lent_or_in_their_receives
        a_lent_message_keeps_a_receive
        a_lent_message_keeps_a_shared_receive
        shared_receive_queue_serves_several
        shared_receives_survive_a_connection
        empty_shared_receive_queue
        what_has_arrived_is_told_of_before_its_mark_is_passed;
    protection:
        exact_bounds_are_inside
        wrong_key
        write_without_access
        read_without_access
        out_of_bounds
        writes_at_once_are_checked
        long_transfer_past_the_end
        deregistered_region
        keys_are_of_one_registration
        key_of_another_domain
        bad_local_sge
        local_memory_without_write_access
        remote_write_needs_local_write
        registration_outside_the_slab;
    windows:
        window_opens_its_range
        window_bounds
        window_access
        bind_is_ordered_before_a_send
        rebinding_changes_the_key
        unbound_window_is_no_key
        local_invalidate_revokes
        send_with_invalidate_revokes
        invalidating_a_foreign_key_ends_the_connection
        window_of_another_queue_pair
        dropped_window_is_no_key
        bad_binds_fail
        bad_local_invalidates_fail;
    teardown:
        flush_follows_the_cause_in_order
        posts_after_the_end_are_flushed
        posted_but_not_rung_is_flushed
        disconnect_in_flight
        abort_in_flight
        what_waits_when_a_connection_is_aborted_never_leaves
        drop_with_requests_outstanding
        deregister_in_flight
        source_deregistered_in_flight
        other_connections_survive_a_violation
        the_end_is_told_once;
    wakeup:
        completion_wakes_a_sleeper
        own_request_wakes_a_sleeper
        sleeper_serves_the_peer
        arming_late_loses_nothing
        unpolled_completions_are_told_by_arm
        connection_request_wakes_a_sleeper
        disconnect_wakes_a_sleeper
        idle_is_idle;
    exchange:
        a_key_for_each_of_many;
    load:
        thousands_of_mixed_operations
        megabytes_both_ways
        sixty_four_queue_pairs
        two_hundred_rounds_leave_no_descriptors;
}
