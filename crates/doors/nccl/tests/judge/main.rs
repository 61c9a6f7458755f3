//! A judge of NCCL network plugins: loads one by its symbols, and has two ranks, which are processes, exchange messages.
//!
//! `NCCL_JUDGE_PLUGIN=/path/libnccl-net-x.so` judges another plugin, where the devices are its own matter. The cases with GPUs are left out
//! then: they are about settings of this plugin, and need a driver that it loads from a file. So are those about descriptors, which speak
//! this plugin's protocol.

mod cases;
mod descriptors;
mod gpu;
mod kernel_nic;
mod loaded;
mod rank;
mod roles;
mod unpack;
#[path = "../wires/mod.rs"]
mod wires;

use std::path::Path;
use std::process::{Child, ExitCode};

use devmem_linux::netif::Interface;
use devmem_linux::tap::TapOptions;
use devmem_linux::test_util::in_netns;
use libtest_mimic::{Arguments, Trial};

use wires::{Wire, this_program};

/// Every version that NCCL loads since 2.20.
const VERSIONS: [u32; 5] = [8, 9, 10, 11, 12];

/// Tests that run at a time by default.
const WAITING_TESTS: usize = 4;

/// Starts this program in one of the roles of [`roles`].
fn start(role: &str, folder: &Path, settings: &[(&str, String)]) -> Child {
    let mut command = this_program();
    command.env(roles::ROLE, role).env(roles::FOLDER, folder);
    command.envs(settings.iter().map(|(name, value)| (*name, value)));
    command.spawn().expect("this program can be started")
}

/// Settings of ranks at the ends of a cable: their messages are spread over several streams.
const SEVERAL_STREAMS: [(&str, &str); 2] = [
    ("NCCL_DEVMEM_STREAMS", "3"),
    ("NCCL_DEVMEM_CHUNK", "262144"),
];

/// Runs a case with two ranks. Returns whether each of them succeeded.
fn outcome(case: &str, wire: Wire, version: u32) -> [bool; 2] {
    outcome_with(case, wire, version, &[])
}

/// As [`outcome`], with more settings.
fn outcome_with(
    case: &str,
    wire: Wire,
    version: u32,
    more: &[(&'static str, String)],
) -> [bool; 2] {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cable = wire.start_cable(folder.path());
    let rank = |number: usize| {
        let device = wire.device(number, folder.path());
        let mut settings = settings(case, number, version, &device).to_vec();
        if let Wire::Cable(_) = wire {
            settings.extend(SEVERAL_STREAMS.map(|(name, value)| (name, value.to_owned())));
        }
        settings.extend_from_slice(more);
        start("rank", folder.path(), &settings)
    };
    let first = rank(0);
    wire.wait_for_rank(0, folder.path());
    let ended = both(first, rank(1));
    drop(cable);
    ended
}

/// Returns what a rank is told.
fn settings(case: &str, number: usize, version: u32, devices: &str) -> [(&'static str, String); 4] {
    [
        ("NCCL_JUDGE_CASE", case.to_owned()),
        ("NCCL_JUDGE_RANK", number.to_string()),
        ("NCCL_JUDGE_VERSION", version.to_string()),
        ("DEVMEM_TCP_DEVICES", devices.to_owned()),
    ]
}

/// Waits for two ranks. Returns whether each of them succeeded.
fn both(first: Child, second: Child) -> [bool; 2] {
    [first, second].map(|mut rank| rank.wait().expect("a child").success())
}

fn judge(case: &str, wire: Wire, version: u32) {
    let ended = outcome(case, wire, version);
    assert_eq!(
        ended,
        [true, true],
        "{case} over {wire:?}, version {version}"
    );
}

/// Runs a case of one process.
fn single(case: &str, version: u32) {
    single_with(case, version, &[]);
}

/// As [`single`], with more settings.
fn single_with(case: &str, version: u32, more: &[(&'static str, String)]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut settings = vec![
        ("NCCL_JUDGE_CASE", case.to_owned()),
        ("NCCL_JUDGE_VERSION", version.to_string()),
        ("DEVMEM_TCP_DEVICES", "kernel:lo".to_owned()),
    ];
    settings.extend_from_slice(more);
    let ended = start("rank", folder.path(), &settings).wait();
    assert!(
        ended.expect("a child").success(),
        "{case}, version {version}"
    );
}

fn every_version_connects_and_moves_messages() {
    for version in VERSIONS {
        judge("few_sizes", Wire::Loopback, version);
    }
}

fn every_version_connects_to_itself_and_refuses_alike() {
    for version in VERSIONS {
        single("alone", version);
        single("refusals", version);
    }
}

/// The cases that both ranks live to the end of, and the version of each: all five, so that no wire works with some of them only.
const CASES: [(&str, u32); 8] = [
    ("sizes", 12),
    ("many", 9),
    ("reversed", 10),
    ("grouped", 12),
    ("in_turn", 8),
    ("threads", 11),
    ("too_long", 12),
    ("early_close", 12),
];

/// The cases in which the first rank is killed.
const DEADLY_CASES: [&str; 2] = ["killed", "killed_in_transfer"];

fn judge_all(wire: Wire) {
    for (case, version) in CASES {
        judge(case, wire, version);
    }
}

/// Runs a case in which the first rank is killed. The other one's warnings have `cause`.
fn judge_deadly(case: &str, wire: Wire, cause: &str) {
    let cause = ("NCCL_JUDGE_CAUSE", cause.to_owned());
    let ended = outcome_with(case, wire, 12, &[cause]);
    assert_eq!(ended, [false, true], "{case} over {wire:?}");
}

fn every_case_over_loopback() {
    judge_all(Wire::Loopback);
}

fn every_case_over_a_cable() {
    judge_all(Wire::Cable("none"));
}

fn every_case_under_loss_and_reordering() {
    judge_all(Wire::Cable("loss=1%,reorder=2%,seed=7"));
}

fn every_case_over_shared_memory() {
    judge_all(Wire::Shared);
}

fn a_killed_peer_fails_the_requests() {
    for case in DEADLY_CASES {
        judge_deadly(case, Wire::Loopback, "");
    }
}

/// Nobody resets the connections of a stack that ended with its process. On a cable this takes as long as the limits of silence: for all cases
/// at the same time.
fn a_killed_peer_with_its_stack_fails_the_requests() {
    let lossy = Wire::Cable("loss=1%,reorder=2%,seed=11");
    // The rank that is left has connected to the other one.
    let gone = "the link has ended";
    std::thread::scope(|scope| {
        for (wire, cause) in [(Wire::Cable("none"), ""), (lossy, ""), (Wire::Shared, gone)] {
            for case in DEADLY_CASES {
                scope.spawn(move || judge_deadly(case, wire, cause));
            }
        }
    });
}

/// Runs every case over the wire of the number 0, and those with a killed rank at the same time over others, because they wait for the limits
/// of silence.
fn judge_all_with_deadly(wire: fn(u8) -> Wire) {
    std::thread::scope(|scope| {
        for (number, case) in (1..).zip(DEADLY_CASES) {
            scope.spawn(move || judge_deadly(case, wire(number), ""));
        }
        judge_all(wire(0));
    });
}

/// A stack in user space at one end, the kernel's at the other, in a network namespace of their own.
fn ranks_on_a_tap() {
    in_netns("ranks_on_a_tap", || {
        for number in 0..3 {
            let tap = TapOptions::new(format!("judge{number}")).open();
            let tap = tap.expect("a TAP");
            let address = [10, 99, number, 1].into();
            // Nothing is restored of an interface that was just made.
            drop(
                tap.set_up_interface(1500, &[(address, 24)])
                    .expect("the kernel's end"),
            );
            // A rank attaches to it.
            tap.set_persistent(true)
                .expect("it outlives its descriptor");
        }
        judge_all_with_deadly(Wire::Tap);
    });
}

/// Two stacks in user space on a veth pair, in a network namespace of their own.
fn ranks_on_packet_sockets() {
    in_netns("ranks_on_packet_sockets", || {
        for number in 0..3 {
            let [one, two] = [1, 2].map(|host| format!("judge{number}{host}"));
            let (first, second) = Interface::create_veth_pair(&one, &two).expect("a veth pair");
            for mut end in [first, second] {
                end.set_up().expect("an end of it");
            }
        }
        judge_all_with_deadly(Wire::Packet);
    });
}

/// The tests by their names. A function that is missing here is dead code, which is an error.
macro_rules! trials {
    ($($test:path),* $(,)?) => {
        vec![$(Trial::test(stringify!($test), || {
            $test();
            Ok(())
        })),*]
    };
}

/// Runs the tests; or the role that a test starts this program in.
fn main() -> ExitCode {
    wires::play_cable();
    if let Some(role) = roles::setting(roles::ROLE) {
        roles::play(&role);
        return ExitCode::SUCCESS;
    }
    let mut tests = trials![
        // The longest ones first.
        a_killed_peer_with_its_stack_fails_the_requests,
        ranks_on_packet_sockets,
        ranks_on_a_tap,
        descriptors::a_plugin_without_an_end_keeps_none_when_it_is_idle,
        descriptors::an_abandoned_attempt_is_closed_and_can_be_begun_again,
        every_case_under_loss_and_reordering,
        every_case_over_a_cable,
        every_case_over_shared_memory,
        every_case_over_loopback,
        a_killed_peer_fails_the_requests,
        every_version_connects_and_moves_messages,
        every_version_connects_to_itself_and_refuses_alike,
        descriptors::a_closed_communicator_keeps_none_although_its_peer_stays,
        descriptors::a_closed_listener_keeps_none_of_what_was_half_made,
        descriptors::a_finalized_plugin_keeps_none,
        descriptors::a_handle_of_another_network_says_that_the_peer_has_no_plugin,
        gpu::every_version_moves_memory_of_gpus,
        gpu::memory_of_gpus_survives_loss_and_reordering,
        gpu::memory_without_a_dmabuf_is_registered_by_its_address,
        gpu::registrations_are_counted,
        gpu::deregistered_memory_is_touched_no_more,
        gpu::the_pool_may_be_on_another_gpu,
        gpu::properties_offer_gpus_only_where_they_work,
        gpu::memory_is_refused_with_what_failed,
        unpack::every_version_gives_lists_to_kernels,
        unpack::lists_survive_loss_and_reordering,
        unpack::frags_go_home_when_they_are_consumed,
        unpack::lists_are_used_in_turn,
        unpack::without_kernels_messages_arrive_in_their_memory,
        unpack::settings_that_kernels_cannot_work_with_are_named,
        kernel_nic::memory_of_gpus_is_sent_from_and_received_into,
        kernel_nic::kernels_unpack_what_the_nic_has_written,
        kernel_nic::messages_are_received_by_way_of_device_memory,
        kernel_nic::a_killed_rank_leaves_a_state_file_from_which_the_settings_are_restored,
    ];
    if roles::setting(roles::PLUGIN).is_some() {
        tests.retain(|test| {
            !["gpu::", "unpack::", "descriptors::"]
                .iter()
                .any(|of| test.name().starts_with(of))
        });
    }
    let mut arguments = Arguments::from_args();
    // Most of the time of some tests is waiting.
    arguments.test_threads.get_or_insert(WAITING_TESTS);
    libtest_mimic::run(&arguments, tests).exit_code()
}
