//! Two processes, each with an agent, through the C interface that NIXL's C++ class calls. NIXL itself is not needed; with it,
//! `crates/doors/python/tests/test_nixl.py` drives the same plugin.

mod failures;
mod far;
mod gpu;
mod gpus_of_amd;
mod hostile;
mod kernel_nics;
mod last_records;
mod loaded;
mod near;
mod pool;
mod pooled;
mod setup;
mod transfers;
mod two_guests;
mod ways;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// The tests by their names, over one way. A function that is missing here is dead code, which is an error.
macro_rules! trials {
    ($way:expr, $($test:path),* $(,)?) => {
        [$(Trial::test(format!("{}::{}", $way, stringify!($test)), || {
            setup::use_way($way);
            $test();
            Ok(())
        })),*]
    };
}

/// As [`trials`], of tests that have a set-up of their own.
macro_rules! trials_of_ways {
    ($($test:path),* $(,)?) => {
        [$(Trial::test(stringify!($test), || {
            $test();
            Ok(())
        })),*]
    };
}

/// Runs the tests; or is the other process of one.
fn main() -> ExitCode {
    if let Ok(name) = std::env::var(far::ROLE) {
        far::play(&name);
        return ExitCode::SUCCESS;
    }
    if two_guests::play_in_first_guest() {
        return ExitCode::SUCCESS;
    }
    // First those that wait: each agent on an Ethernet asks for a while whether its address is free.
    let mut tests: Vec<_> = with_pools().into_iter().collect();
    tests.extend(trials_of_ways![
        ways::from_a_stack_on_a_tap_to_the_kernel,
        ways::from_the_kernel_to_a_stack_on_a_tap,
        ways::over_packet_sockets,
        ways::over_packet_sockets_that_lose_and_reorder,
        ways::over_macvtaps,
        ways::over_a_wire,
        ways::over_a_wire_with_loss_and_reordering,
        ways::a_way_that_cannot_be_had_is_refused_with_its_reason,
        ways::the_kernels_interface_is_a_way,
        last_records::a_reason_that_comes_after_the_end_of_another_connection_counts,
        last_records::a_peer_that_ends_its_connections_without_a_reason_is_gone,
        last_records::a_peer_that_ends_one_connection_for_payload_and_says_nothing_is_gone,
    ]);
    for way in ["sockets", "unix"] {
        tests.extend(trials![
            way,
            transfers::reads_and_writes_of_all_sizes_arrive_with_their_notifications,
            transfers::without_threads_calls_make_progress,
            transfers::many_descriptors_are_scattered_and_gathered,
            transfers::a_hundred_thousand_descriptors_of_many_regions_arrive,
            transfers::short_ranges_go_without_inline_bytes_if_direct_is_required,
            transfers::notifications_of_all_sizes_keep_their_order,
            transfers::an_agent_transfers_to_itself,
            transfers::a_transfer_is_posted_again_and_again,
            transfers::several_threads_post_and_check_at_a_time,
            transfers::ten_agents_write_to_each_other,
            transfers::both_sides_write_at_a_time,
            transfers::a_tebibyte_is_registered_and_its_end_is_written,
            transfers::what_was_moved_is_told,
            failures::a_transfer_that_goes_on_is_not_posted_again,
            failures::a_cancelled_read_leaves_the_memory_alone,
            failures::a_cancelled_write_gives_no_notification,
            failures::a_peer_that_is_killed_is_a_disconnect_and_may_come_back,
            failures::a_peer_that_was_restarted_is_recognised,
            failures::a_peer_is_disconnected_and_connected_again,
            failures::deregistered_memory_is_touched_no_more,
            failures::memory_that_is_freed_fails_its_transfers_only,
            failures::ranges_that_are_not_registered_are_refused,
            failures::memory_that_the_peer_deregistered_is_refused_by_it,
            failures::a_child_of_fork_has_no_agent,
            failures::parameters_are_checked,
            hostile::strangers_are_sent_away,
            hostile::random_bytes_end_connections_and_nothing_else,
            hostile::records_that_lie_end_connections_and_nothing_else,
        ]);
    }
    tests.extend(with_gpus());
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Those with memory of GPUs, without a pool.
fn with_gpus() -> impl IntoIterator<Item = Trial> {
    trials_of_ways![
        gpu::memory_of_gpus_is_read_and_written_from_either_side,
        gpus_of_amd::memory_is_read_and_written_from_either_side,
        gpu::an_agent_copies_between_its_own_memories,
        gpu::bytes_that_go_through_host_memory_are_counted,
        gpu::deregistered_memory_of_a_gpu_is_used_no_more,
        gpu::what_is_no_memory_of_a_gpu_is_refused,
    ]
}

/// Those in which a NIC moves payload from and to memory of a GPU.
fn with_pools() -> impl IntoIterator<Item = Trial> {
    trials_of_ways![
        pool::a_stack_receives_into_memory_of_a_gpu,
        pool::a_stack_receives_into_memory_of_a_gpu_from_a_bad_wire,
        pool::the_peer_needs_no_pool,
        pool::what_cannot_be_had_is_refused,
        pool::without_a_gpu_there_is_no_pool,
        pool::a_peer_is_killed_in_mid_transfer_and_comes_back,
        pool::a_cancelled_read_leaves_the_pool,
        pool::what_works_without_a_pool_works_with_one,
        kernel_nics::move_payload_between_gpus_and_no_cpu_copies_it,
        kernel_nics::take_no_memory_that_a_cpu_would_copy,
        kernel_nics::take_no_payload_that_has_missed_the_pool,
        kernel_nics::outlive_a_peer_that_is_killed_in_mid_transfer,
        kernel_nics::give_up_a_read_in_mid_transfer,
        kernel_nics::state_their_rate,
        two_guests::move_payload_between_gpus_and_no_cpu_copies_it,
    ]
}
