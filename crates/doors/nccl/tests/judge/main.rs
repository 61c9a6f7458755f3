//! A judge of NCCL network plugins: loads one by its symbols, and has two ranks, which are processes, exchange messages.
//!
//! `NCCL_JUDGE_PLUGIN=/path/libnccl-net-x.so` judges another plugin, where the devices are its own matter. The cases with GPUs are left out
//! then: they are about settings of this plugin, and need a driver that it loads from a file.

mod cases;
mod gpu;
mod kernel_nic;
mod loaded;
mod rank;
mod roles;
mod unpack;

use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use devmem_linux::netif::Interface;
use devmem_linux::tap::TapOptions;
use devmem_linux::test_util::in_netns;
use libtest_mimic::{Arguments, Trial};

/// Every version that NCCL loads since 2.20.
const VERSIONS: [u32; 5] = [8, 9, 10, 11, 12];

/// Far longer than a process takes to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// What connects the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    /// The kernel's loopback, with its TCP on both sides.
    Loopback,
    /// Two stacks in user space on a cable with these impairments.
    Unix(&'static str),
    /// Two stacks in user space on a wire that shares memory.
    Shared,
    /// A stack in user space, and the kernel's.
    Tap,
    /// Two stacks in user space, with packet sockets on the ends of a veth pair.
    Packet,
}

/// Starts this program in one of the roles of [`roles`].
fn start(role: &str, folder: &Path, settings: &[(&str, String)]) -> Child {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.env(roles::ROLE, role).env(roles::FOLDER, folder);
    command.envs(settings.iter().map(|(name, value)| (*name, value)));
    command.spawn().expect("this program can be started")
}

/// Ends a cable when the test is over.
struct Cable(Child);

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
    let unix = |end: &str| folder.path().join(end).display().to_string();
    let (devices, cable) = match wire {
        Wire::Loopback => (["kernel:lo".to_owned(), "kernel:lo".to_owned()], None),
        Wire::Tap => (
            [
                "user:tap:judge0:10.99.0.2/24".to_owned(),
                "kernel:judge0".to_owned(),
            ],
            None,
        ),
        Wire::Packet => {
            let end = |number| format!("user:packet:judge{number}:10.98.0.{number}/24");
            ([end(1), end(2)], None)
        }
        Wire::Shared => {
            let wire =
                |end: &str, number| format!("user:{end}:{}:10.77.0.{number}/24", unix("wire"));
            ([wire("unix-listen", 1), wire("unix", 2)], None)
        }
        Wire::Unix(impairment) => {
            let settings = [("NCCL_JUDGE_IMPAIR", impairment.to_owned())];
            let cable = Cable(start("cable", folder.path(), &settings));
            let devices = [1, 2]
                .map(|end| format!("user:unix:{}:10.77.0.{end}/24", unix(&format!("end{end}"))));
            (devices, Some(cable))
        }
    };
    let rank = |number: usize| {
        let mut settings = settings(case, number, version, &devices[number]).to_vec();
        if let Wire::Unix(_) = wire {
            settings.extend(SEVERAL_STREAMS.map(|(name, value)| (name, value.to_owned())));
        }
        settings.extend_from_slice(more);
        start("rank", folder.path(), &settings)
    };
    let first = rank(0);
    if wire == Wire::Shared {
        // The second rank connects to the socket of the first one.
        wait_for(&folder.path().join("wire"));
    }
    let ended = both(first, rank(1));
    drop(cable);
    ended
}

/// Waits until a process has made a file.
fn wait_for(file: &Path) {
    let start = Instant::now();
    while !file.exists() {
        assert!(
            start.elapsed() < PATIENCE,
            "{} was not made",
            file.display()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
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

fn messages_of_no_byte_to_64_mib_over_loopback() {
    judge("sizes", Wire::Loopback, 12);
}

fn messages_of_no_byte_to_64_mib_over_a_cable() {
    judge("sizes", Wire::Unix("none"), 12);
}

fn messages_of_no_byte_to_64_mib_over_shared_memory() {
    judge("sizes", Wire::Shared, 12);
}

fn messages_survive_loss_and_reordering() {
    let wire = Wire::Unix("loss=1%,reorder=2%,seed=7");
    let cases = [
        ("few_sizes", 11),
        ("grouped", 12),
        ("many", 9),
        ("reversed", 10),
        ("in_turn", 8),
        ("threads", 12),
        ("too_long", 12),
        ("early_close", 12),
    ];
    for (case, version) in cases {
        judge(case, wire, version);
    }
}

fn many_communicators_at_once() {
    judge("many", Wire::Loopback, 12);
    judge("many", Wire::Unix("none"), 9);
    judge("many", Wire::Shared, 10);
}

fn requests_are_tested_in_any_order_and_in_groups() {
    for wire in [Wire::Loopback, Wire::Unix("none"), Wire::Shared] {
        judge("reversed", wire, 10);
        judge("grouped", wire, 12);
    }
}

fn a_thousand_requests_in_turn() {
    judge("in_turn", Wire::Loopback, 12);
    judge("in_turn", Wire::Unix("none"), 8);
}

fn four_threads() {
    judge("threads", Wire::Loopback, 12);
    judge("threads", Wire::Unix("none"), 12);
}

fn a_message_longer_than_its_receive_is_the_users_mistake() {
    for wire in [Wire::Loopback, Wire::Unix("none"), Wire::Shared] {
        judge("too_long", wire, 12);
    }
}

fn a_close_with_requests_in_flight_succeeds_and_fails_the_peer() {
    for wire in [Wire::Loopback, Wire::Unix("none"), Wire::Shared] {
        judge("early_close", wire, 12);
    }
}

fn a_killed_peer_fails_the_requests() {
    for case in ["killed", "killed_in_transfer"] {
        let ended = outcome(case, Wire::Loopback, 12);
        assert_eq!(ended, [false, true], "{case}");
    }
}

/// Nobody resets the connections of a stack that ended with its process. On a cable this takes as long as the limits of silence: for all cases
/// at the same time.
fn a_killed_peer_with_its_stack_fails_the_requests() {
    let lossy = Wire::Unix("loss=1%,reorder=2%,seed=11");
    std::thread::scope(|scope| {
        for wire in [Wire::Unix("none"), lossy, Wire::Shared] {
            for case in ["killed", "killed_in_transfer"] {
                scope.spawn(move || {
                    let cause = match wire {
                        // The rank that is left has connected to the other one.
                        Wire::Shared => "the link has ended",
                        _ => "",
                    };
                    let cause = ("NCCL_JUDGE_CAUSE", cause.to_owned());
                    let ended = outcome_with(case, wire, 12, &[cause]);
                    assert_eq!(ended, [false, true], "{case} over {wire:?}");
                });
            }
        }
    });
}

/// A stack in user space at one end, the kernel's at the other, in a network namespace of their own.
fn ranks_on_a_tap() {
    in_netns("ranks_on_a_tap", || {
        let tap = TapOptions::new("judge0").open().expect("a TAP");
        let address = "10.99.0.1".parse().expect("an address");
        tap.set_up_interface(1500, &[(address, 24)])
            .expect("the kernel's end");
        // A rank attaches to it.
        tap.set_persistent(true)
            .expect("it outlives its descriptor");
        drop(tap);
        for case in ["sizes", "reversed", "early_close"] {
            judge(case, Wire::Tap, 12);
        }
    });
}

/// Two stacks in user space on a veth pair, in a network namespace of their own.
fn ranks_on_packet_sockets() {
    in_netns("ranks_on_packet_sockets", || {
        let (first, second) = Interface::create_veth_pair("judge1", "judge2").expect("a veth pair");
        for mut end in [first, second] {
            end.set_up().expect("an end of it");
        }
        for case in ["sizes", "many", "reversed", "early_close"] {
            judge(case, Wire::Packet, 12);
        }
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
    if let Some(role) = roles::setting(roles::ROLE) {
        roles::play(&role);
        return ExitCode::SUCCESS;
    }
    let mut tests = trials![
        // The longest one first.
        a_killed_peer_with_its_stack_fails_the_requests,
        every_version_connects_and_moves_messages,
        every_version_connects_to_itself_and_refuses_alike,
        messages_of_no_byte_to_64_mib_over_loopback,
        messages_of_no_byte_to_64_mib_over_a_cable,
        messages_of_no_byte_to_64_mib_over_shared_memory,
        messages_survive_loss_and_reordering,
        many_communicators_at_once,
        requests_are_tested_in_any_order_and_in_groups,
        a_thousand_requests_in_turn,
        four_threads,
        a_message_longer_than_its_receive_is_the_users_mistake,
        a_close_with_requests_in_flight_succeeds_and_fails_the_peer,
        a_killed_peer_fails_the_requests,
        ranks_on_a_tap,
        ranks_on_packet_sockets,
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
            !["gpu::", "unpack::"]
                .iter()
                .any(|of| test.name().starts_with(of))
        });
    }
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}
