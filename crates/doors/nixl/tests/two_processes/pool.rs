//! Payload that a NIC moves from and to memory of a GPU (the stand-in's, or a real one's): over a wire between two stacks; and in a guest of the lab
//! over two NICs of the kernel, where no CPU copies a byte.

#[path = "../../../../devmem-tcp/tests/kernel_nic/bench.rs"]
#[allow(dead_code, reason = "the tests of the library use the rest")]
mod bench;

use devmem_linux::ethtool::Ethtool;
use devmem_tcp::cuda;

use crate::far::{Far, FarMemory, pattern};
use crate::gpu::{GpuSide, LEN, moved, with_gpus, with_plan};
use crate::loaded::{Agent, BACKEND, Memory, NOT_SUPPORTED, Range, SUCCESS, paths};
use crate::near::{Near, done};
use crate::setup::{Parameters, Setup, use_setup};
use crate::ways::wire;
use bench::Bench;

/// Twice the data of the largest ring of the lab's NIC.
const POOL: (&str, &str) = ("pool", "16777216");

fn add(parameters: &mut Parameters, more: &[(&str, &str)]) {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    parameters.extend(more.iter().map(owned));
}

/// Returns a number of the agent of this name, as `paths` tells it.
fn told(agent: &str, what: &str) -> u64 {
    let all = paths();
    let is_of = |line: &&str| line.starts_with(&format!("{{\"agent\":\"{agent}\","));
    let line = all.lines().find(is_of).expect("a line of the agent");
    let (_, value) = line
        .split_once(&format!("\"{what}\":"))
        .expect("the number is told");
    let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Agents of this process have a stack at the end of a wire that waits for its peer.
fn alone() -> tempfile::TempDir {
    let (folder, Setup { far, .. }) = wire("none");
    use_setup(Setup {
        near: far,
        far: Parameters::new(),
    });
    folder
}

/// Moves bytes between memories of both GPUs, and returns what this side's agent tells: copies, bytes by the NIC, bytes through host memory.
fn between_gpus(far: &mut Far) -> [u64; 3] {
    let near = Near::meet(far, true, &[]);
    moved(&near, far, true, true);
    ["copies", "device_bytes", "staged_bytes"].map(|what| told("near", what))
}

fn over_a_wire_with(impairment: &str) {
    let (_folder, mut setup) = wire(impairment);
    for side in [&mut setup.near, &mut setup.far] {
        add(side, &[POOL]);
    }
    use_setup(setup);
    let mut far = Far::start("far", true);
    let [copies, by_nic, staged] = between_gpus(&mut far);
    assert_eq!(copies, 1);
    // All that was read, and of what was written the pieces that do not follow their record.
    let long = (1 << 20) + 800_000;
    assert_eq!((by_nic, staged), (2 * long + 8 + 11, 0));
    // A wire has one peer at a time.
    drop(far);
    for (near_is_gpu, far_is_gpu) in [(true, false), (false, true)] {
        let mut far = Far::start("far", true);
        let near = Near::meet(&mut far, true, &[]);
        moved(&near, &mut far, near_is_gpu, far_is_gpu);
    }
}

pub fn a_stack_receives_into_memory_of_a_gpu() {
    with_gpus("pool::a_stack_receives_into_memory_of_a_gpu", || {
        over_a_wire_with("none");
    });
}

pub fn a_stack_receives_into_memory_of_a_gpu_from_a_bad_wire() {
    let test = "pool::a_stack_receives_into_memory_of_a_gpu_from_a_bad_wire";
    with_gpus(test, || over_a_wire_with("loss=1%,reorder=2%,seed=11"));
}

/// One with a pool and one without: what goes through host memory does so on one side.
pub fn the_peer_needs_no_pool() {
    with_gpus("pool::the_peer_needs_no_pool", || {
        let (_folder, mut setup) = wire("none");
        add(&mut setup.near, &[POOL]);
        use_setup(setup);
        let mut far = Far::start("far", true);
        let [copies, by_nic, staged] = between_gpus(&mut far);
        assert_eq!((copies, staged), (1, 0));
        assert!(by_nic > 0);
    });
}

pub fn what_cannot_be_had_is_refused() {
    with_plan("pool::what_cannot_be_had_is_refused", "devices=2", || {
        use_setup(Setup::default());
        for way in ["auto", "sockets", "unix", "kernel:lo", "tap:nixl-none"] {
            let mut given = vec![("way", way), ("require", "device")];
            if way.starts_with("tap") {
                given.push(("address", "10.98.0.1/24"));
            }
            let refused = Agent::open("near", true, &given).err();
            assert_eq!(refused, Some(NOT_SUPPORTED), "{way}");
        }
        let _folder = alone();
        let far_away = [POOL, ("gpu", "77")];
        assert!(Agent::open("near", true, &far_away).is_err());
        let agent = Agent::open("near", true, &[POOL, ("gpu", "0")]).expect("an agent");
        let host = Memory::new(4096);
        assert_eq!(agent.deregister(agent.register(&host)), SUCCESS);
        if cuda::devices().is_ok_and(|all| all.len() > 1) {
            let other = cuda::open(1).expect("a GPU").alloc(4096).expect("memory");
            let refused = agent.register_gpu(other.device_ptr(), 4096);
            assert_eq!(refused, Err(NOT_SUPPORTED));
        }
    });
}

pub fn without_a_gpu_there_is_no_pool() {
    let test = "pool::without_a_gpu_there_is_no_pool";
    with_plan(test, "devices=0", || {
        if cuda::devices().is_ok_and(|all| !all.is_empty()) {
            return println!("SKIP {test}: there is a GPU");
        }
        let _folder = alone();
        let refused = Agent::open("near", true, &[POOL]).err();
        assert_eq!(refused, Some(NOT_SUPPORTED));
    });
}

/// The set-up of two agents on the NICs at both ends of the guest's cable.
fn kernel_nics(bench: &Bench) -> Setup {
    let end = |interface: &str| {
        let mut it = Parameters::new();
        let way = format!("kernel:{interface}");
        add(&mut it, &[("way", &way), ("require", "device"), POOL]);
        it
    };
    let (peer, _) = bench.peer_nic();
    Setup {
        near: end(&bench.name),
        far: end(&peer),
    }
}

fn start_at_peer(bench: &Bench, setup: &Setup) -> Far {
    bench.at_peer(|| {
        use_setup(setup.clone());
        Far::start("far", true)
    })
}

/// The memory of the stand-in's GPU is a dma-buf of the kernel: the NICs read and write it, and no CPU can.
pub fn kernel_nics_move_payload_between_gpus_and_no_cpu_copies_it() {
    const TEST: &str = "pool::kernel_nics_move_payload_between_gpus_and_no_cpu_copies_it";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    with_plan(TEST, "devices=1,udmabuf=1", || {
        let before = bench.settings();
        let setup = kernel_nics(&bench);
        use_setup(setup.clone());
        {
            let mut far = start_at_peer(&bench, &setup);
            let [copies, by_nic, staged] = between_gpus(&mut far);
            assert_eq!((copies, staged), (0, 0));
            // Also the short list, which follows no record here.
            assert_eq!(by_nic, 2 * (8 + (1 << 20) + 11 + 800_000));
            // Killed, it would restore nothing.
            far.tell("close");
        }
        assert_eq!(bench.settings(), before);
    });
}

/// Memory of the host would be copied, so it is not taken.
pub fn kernel_nics_take_no_memory_that_a_cpu_would_copy() {
    const TEST: &str = "pool::kernel_nics_take_no_memory_that_a_cpu_would_copy";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    with_plan(TEST, "devices=1,udmabuf=1", || {
        use_setup(kernel_nics(&bench));
        let agent = Agent::open("near", true, &[]).expect("an agent");
        let host = Memory::new(4096);
        assert_eq!(agent.try_register(&host), Err(NOT_SUPPORTED));
        // The NIC has one user.
        let second = Agent::open("second", true, &[]);
        assert_eq!(second.err(), Some(NOT_SUPPORTED));
    });
}

/// Returns all of a memory of both sides.
fn whole(near: &Near, side: &GpuSide, there: &FarMemory, len: usize) -> (Range, Range) {
    let remote = near.agent.load_region(&near.peer, &there.data);
    let range = |address, region| Range {
        address,
        len: len as u64,
        region,
    };
    let there = range(there.address, remote.expect("a region"));
    (range(side.address(), side.region), there)
}

/// As after a reset of the NIC: its flow rules are gone.
pub fn kernel_nics_take_no_payload_that_has_missed_the_pool() {
    const TEST: &str = "pool::kernel_nics_take_no_payload_that_has_missed_the_pool";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    with_plan(TEST, "devices=1,udmabuf=1", || {
        let setup = kernel_nics(&bench);
        use_setup(setup.clone());
        let mut far = start_at_peer(&bench, &setup);
        let near = Near::meet(&mut far, true, &[]);
        let side = GpuSide::new(&near.agent, LEN, 1);
        let there = far.gpu(LEN, 2);
        let read = near.transfer(false, &[whole(&near, &side, &there, LEN)]);
        assert_eq!(done(&read, None), SUCCESS);
        side.write(0, &pattern(3, LEN));
        let mut nic = Ethtool::by_name(&bench.name).expect("the NIC");
        for rule in nic.rules().expect("its rules") {
            nic.delete_rule(rule.location).expect("it is removed");
        }
        assert_eq!(done(&read, None), BACKEND);
        assert_eq!(told("near", "staged_bytes"), 0);
        // The next one connects again, so that the peer is steered again.
        assert_eq!(done(&read, None), SUCCESS);
        assert!(side.read(0, LEN) == pattern(2, LEN));
        far.tell("close");
    });
}

/// A read and a write of several pieces on each connection, and how long they take: a figure of the guest's, not of the code.
pub fn kernel_nics_state_their_rate() {
    const TEST: &str = "pool::kernel_nics_state_their_rate";
    const BYTES: usize = 4 << 20;
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    with_plan(TEST, "devices=1,udmabuf=1", || {
        let setup = kernel_nics(&bench);
        use_setup(setup.clone());
        let mut far = start_at_peer(&bench, &setup);
        let near = Near::meet(&mut far, true, &[]);
        let side = GpuSide::new(&near.agent, BYTES, 1);
        let there = far.gpu(BYTES, 2);
        let pair = [whole(&near, &side, &there, BYTES)];
        for is_write in [false, true] {
            let transfer = near.transfer(is_write, &pair);
            let begun = std::time::Instant::now();
            assert_eq!(done(&transfer, None), SUCCESS);
            let seconds = begun.elapsed().as_secs_f64();
            let what = if is_write { "write" } else { "read" };
            println!(
                "{what} of 4 MiB from GPU to GPU, no copy by a CPU: {:.2} Gbit/s",
                BYTES as f64 * 8.0 / seconds / 1e9
            );
        }
        // What was read is written back.
        assert!(side.read(0, LEN) == pattern(2, LEN));
        assert!(far.bytes(&there, 0, LEN) == pattern(2, LEN));
        assert_eq!(told("near", "staged_bytes"), 0);
        assert_eq!(told("near", "device_bytes"), 2 * BYTES as u64);
        far.tell("close");
    });
}
