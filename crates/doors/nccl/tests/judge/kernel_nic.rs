//! Ranks on two NICs of the kernel that can receive into device memory, at the two ends of a cable: `DEVMEM_TEST_NIC` names the first,
//! and the second is in the namespace `peer` (the lab has both).

#[path = "../../../../devmem-tcp/tests/kernel_nic/bench.rs"]
#[allow(dead_code, reason = "the tests of the library use the rest")]
mod bench;

use crate::gpu::with_gpus;
use crate::unpack::with_kernels;
use crate::{both, settings, start};
use bench::Bench;

/// Twice the data of the largest ring of the lab's NIC.
const POOL_BYTES: usize = 16 << 20;

/// Runs a case. Returns whether each rank succeeded.
fn outcome(bench: &Bench, case: &str) -> [bool; 2] {
    let pool = ("NCCL_DEVMEM_POOL", POOL_BYTES.to_string());
    outcome_with(bench, case, &[pool])
}

/// As [`outcome`], with these settings.
fn outcome_with(bench: &Bench, case: &str, more: &[(&'static str, String)]) -> [bool; 2] {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rank = |number: usize, interface: &str| {
        let devices = format!("kernel:{interface}");
        let mut settings = settings(case, number, 12, &devices).to_vec();
        settings.extend_from_slice(more);
        start("rank", folder.path(), &settings)
    };
    let (peer, _) = bench.peer_nic();
    let first = rank(0, &bench.name);
    let second = bench.at_peer(|| rank(1, &peer));
    both(first, second)
}

pub fn messages_are_received_by_way_of_device_memory() {
    let Some(bench) = Bench::new("kernel_nic::messages_are_received_by_way_of_device_memory")
    else {
        return;
    };
    let before = bench.settings();
    assert_eq!(outcome(&bench, "device"), [true, true]);
    assert_eq!(outcome(&bench, "reversed"), [true, true]);
    assert_eq!(bench.settings(), before);
}

/// The memory of the stub's GPU is a dma-buf of the kernel: the NIC reads and writes it, and the CPU cannot.
pub fn memory_of_gpus_is_sent_from_and_received_into() {
    let Some(bench) = Bench::new("kernel_nic::memory_of_gpus_is_sent_from_and_received_into")
    else {
        return;
    };
    let before = bench.settings();
    let settings = with_gpus("udmabuf=1", POOL_BYTES);
    for case in ["gpu_few_sizes", "gpu_sizes"] {
        assert_eq!(
            outcome_with(&bench, case, &settings),
            [true, true],
            "{case}"
        );
    }
    let settings = with_gpus("udmabuf=1,reuse=1", POOL_BYTES);
    for case in ["gpu_registrations", "gpu_deregistered"] {
        let ended = outcome_with(&bench, case, &settings);
        assert_eq!(ended, [true, true], "{case}");
    }
    assert_eq!(bench.settings(), before);
}

/// The same, with lists for kernels, which the judge plays.
pub fn kernels_unpack_what_the_nic_has_written() {
    let Some(bench) = Bench::new("kernel_nic::kernels_unpack_what_the_nic_has_written") else {
        return;
    };
    let before = bench.settings();
    let settings = with_kernels("udmabuf=1", POOL_BYTES);
    for case in ["unpack_few_sizes", "unpack_turns", "unpack_home"] {
        assert_eq!(
            outcome_with(&bench, case, &settings),
            [true, true],
            "{case}"
        );
    }
    assert_eq!(bench.settings(), before);
}

pub fn a_killed_rank_leaves_a_state_file_from_which_the_settings_are_restored() {
    const TEST: &str =
        "kernel_nic::a_killed_rank_leaves_a_state_file_from_which_the_settings_are_restored";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let before = bench.settings();
    assert_eq!(outcome(&bench, "killed"), [false, true]);
    assert_ne!(bench.settings(), before, "killed, it restored nothing");
    bench.restore();
    assert_eq!(bench.settings(), before);
}
