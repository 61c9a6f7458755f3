//! In a guest of the lab, over two NICs of the kernel at both ends of a cable: the memory of the stand-in's GPU is a dma-buf of the kernel, which
//! the NICs read and write, and no CPU can.

#[path = "../../../../devmem-tcp/tests/kernel_nic/bench.rs"]
#[allow(dead_code, reason = "the tests of the library use the rest")]
mod bench;

use devmem_linux::ethtool::Ethtool;
use devmem_linux::netdev::Netdev;

use crate::far::{Far, pattern, until};
use crate::gpu::{GpuSide, LEN, with_plan};
use crate::loaded::{Agent, BACKEND, Memory, NOT_SUPPORTED, SUCCESS};
use crate::near::{Near, done};
use crate::pooled::{
    POOL, add, between_gpus, cancelled_in_mid_transfer, killed_in_mid_transfer, met_again,
    number_of, whole,
};
use crate::setup::{Parameters, Setup, use_setup};
use bench::Bench;

/// The stand-in's GPU.
pub const PLAN: &str = "devices=1,udmabuf=1";

/// The parameters of an agent on a NIC of the kernel.
pub fn end(interface: &str) -> Parameters {
    let mut it = Parameters::new();
    let way = format!("kernel:{interface}");
    add(&mut it, &[("way", &way), ("require", "device"), POOL]);
    it
}

/// The set-up of two agents on the NICs at both ends of the guest's cable.
fn kernel_nics(bench: &Bench) -> Setup {
    let (peer, _) = bench.peer_nic();
    Setup {
        near: end(&bench.name),
        far: end(&peer),
    }
}

/// Starts the other process at the other end of the cable.
fn start_at_peer(bench: &Bench) -> Far {
    let setup = kernel_nics(bench);
    bench.at_peer(|| {
        use_setup(setup);
        Far::start("far", true)
    })
}

/// Runs a test, of this name, between two agents that know each other. The one here has no thread. Afterwards no net_iov is out, and the NIC's
/// settings are what they were.
fn between_kernel_nics(test: &str, body: impl FnOnce(&Bench, &Near, &mut Far)) {
    let Some(bench) = Bench::new(test) else {
        return;
    };
    with_plan(test, PLAN, || {
        let before = bench.settings();
        use_setup(kernel_nics(&bench));
        let mut far = start_at_peer(&bench);
        let near = Near::meet(&mut far, false, &[]);
        body(&bench, &near, &mut far);
        drop(near);
        // Killed, it would restore nothing.
        far.tell("close");
        assert_eq!(bench.settings(), before);
        let mut nic = Netdev::by_name(&bench.name).expect("the NIC");
        // The kernel's page pool looks once a second whether its last net_iov is home.
        until("all net_iovs are home", || {
            let pools = nic.page_pools().expect("the NIC's page pools");
            pools.iter().all(|pool| pool.dmabuf.is_none()).then_some(())
        });
    });
}

pub fn move_payload_between_gpus_and_no_cpu_copies_it() {
    const TEST: &str = "kernel_nics::move_payload_between_gpus_and_no_cpu_copies_it";
    between_kernel_nics(TEST, |_, near, far| {
        let [copies, by_nic, staged] = between_gpus(near, far);
        assert_eq!((copies, staged), (0, 0));
        // Also the short list, which follows no record here.
        assert_eq!(by_nic, 2 * (8 + (1 << 20) + 11 + 800_000));
    });
}

/// Memory of the host would be copied, so it is not taken.
pub fn take_no_memory_that_a_cpu_would_copy() {
    const TEST: &str = "kernel_nics::take_no_memory_that_a_cpu_would_copy";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    with_plan(TEST, PLAN, || {
        use_setup(kernel_nics(&bench));
        let agent = Agent::open("near", true, &[]).expect("an agent");
        let host = Memory::new(4096);
        assert_eq!(agent.try_register(&host), Err(NOT_SUPPORTED));
        // The NIC has one user.
        let second = Agent::open("second", true, &[]);
        assert_eq!(second.err(), Some(NOT_SUPPORTED));
    });
}

/// As after a reset of the NIC: its flow rules are gone.
pub fn take_no_payload_that_has_missed_the_pool() {
    const TEST: &str = "kernel_nics::take_no_payload_that_has_missed_the_pool";
    between_kernel_nics(TEST, |bench, near, far| {
        let side = GpuSide::new(&near.agent, LEN, 1);
        let there = far.gpu(LEN, 2);
        let read = near.transfer(false, &[whole(near, &side, &there, LEN)]);
        assert_eq!(done(&read, None), SUCCESS);
        side.write(0, &pattern(3, LEN));
        let mut nic = Ethtool::by_name(&bench.name).expect("the NIC");
        for rule in nic.rules().expect("its rules") {
            nic.delete_rule(rule.location).expect("it is removed");
        }
        assert_eq!(done(&read, None), BACKEND);
        assert_eq!(number_of("near", "staged_bytes"), 0);
        // The next one connects again, so that the peer is steered again.
        assert_eq!(done(&read, None), SUCCESS);
        assert!(side.read(0, LEN) == pattern(2, LEN));
    });
}

pub fn outlive_a_peer_that_is_killed_in_mid_transfer() {
    const TEST: &str = "kernel_nics::outlive_a_peer_that_is_killed_in_mid_transfer";
    between_kernel_nics(TEST, |bench, near, far| {
        killed_in_mid_transfer(near, far, || ());
        // As `devmem-tcp restore`: a process that is killed leaves the settings of its NIC behind.
        bench.restore_peer();
        *far = start_at_peer(bench);
        met_again(near, far);
        assert_eq!(number_of("near", "staged_bytes"), 0);
    });
}

pub fn give_up_a_read_in_mid_transfer() {
    const TEST: &str = "kernel_nics::give_up_a_read_in_mid_transfer";
    between_kernel_nics(TEST, |_, near, far| {
        cancelled_in_mid_transfer(near, far, || ());
        assert_eq!(number_of("near", "staged_bytes"), 0);
    });
}

/// A read and a write of several pieces on each connection, and how long they take: a figure of the guest's, not of the code.
pub fn state_their_rate() {
    const TEST: &str = "kernel_nics::state_their_rate";
    between_kernel_nics(TEST, |_, near, far| rate(near, far));
}

/// Reads 4 MiB and writes them back, and prints how long that takes.
pub fn rate(near: &Near, far: &mut Far) {
    const BYTES: usize = 4 << 20;
    let before = number_of("near", "device_bytes");
    let side = GpuSide::new(&near.agent, BYTES, 1);
    let there = far.gpu(BYTES, 2);
    let pair = [whole(near, &side, &there, BYTES)];
    for (is_write, what) in [(false, "read"), (true, "write")] {
        let transfer = near.transfer(is_write, &pair);
        let begun = std::time::Instant::now();
        assert_eq!(done(&transfer, None), SUCCESS);
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{what} of 4 MiB from GPU to GPU, no copy by a CPU: {:.2} Gbit/s",
            BYTES as f64 * 8.0 / seconds / 1e9
        );
    }
    assert!(side.read(0, BYTES) == pattern(2, BYTES));
    assert!(far.bytes(&there, 0, BYTES) == pattern(2, BYTES));
    assert_eq!(number_of("near", "staged_bytes"), 0);
    assert_eq!(number_of("near", "device_bytes") - before, 2 * BYTES as u64);
}
