//! Memory of GPUs, of a stub of the driver that this program and the plugin load: the CPU cannot access it, so every copy is one of the "GPU".
//! With `DEVMEM_LIBCUDA` set to the real library, the same tests run on a GPU.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use devmem_linux::test_util::built_library;
use devmem_tcp::cuda::{self, Allocation};
use devmem_tcp::{Dmabuf, hip};

use crate::far::{Far, FarMemory, pattern};
use crate::loaded::{Agent, INVALID_PARAM, Memory, NOT_ALLOWED, Range, SUCCESS, paths};
use crate::near::{NAME, Near, done};
use crate::setup::use_way;

/// Names the driver's library.
pub const LIBRARY: &str = "DEVMEM_LIBCUDA";

/// Runs a test, of this name, in a process that loads the driver's stub.
pub fn with_gpus(test: &str, body: impl FnOnce()) {
    with_plan(test, "devices=1", body);
}

/// As [`with_gpus`], with a stub that behaves so.
pub fn with_plan(test: &str, plan: &str, body: impl FnOnce()) {
    match std::env::var_os(LIBRARY) {
        Some(_) => body(),
        None => run_with(test, plan, &[(LIBRARY, stub())]),
    }
}

pub fn stub() -> PathBuf {
    built_library("libdevmem_gpu_stub.so")
}

/// Runs a test again, in a process with these libraries of drivers.
pub fn run_with(test: &str, plan: &str, libraries: &[(&str, PathBuf)]) {
    let program = std::env::current_exe().expect("this program has a path");
    let ran = Command::new(program)
        // With one thread, what the test prints would begin in the line with its name.
        .args([test, "--exact", "--nocapture", "--test-threads=2"])
        .envs(libraries.iter().map(|(name, path)| (*name, path)))
        .env("STUB_GPU", plan)
        .stderr(Stdio::inherit())
        .output();
    let ran = ran.expect("this program can be started");
    let said = String::from_utf8_lossy(&ran.stdout);
    // Without the frame of a run of tests, which this one has, too.
    let is_frame =
        |line: &&str| line.is_empty() || line.starts_with("test ") || line.starts_with("running ");
    said.lines()
        .filter(|line| !is_frame(line))
        .for_each(|line| println!("{line}"));
    assert!(ran.status.success(), "{test}: {said}");
}

/// Registered memory of the first GPU.
pub struct GpuSide {
    allocation: Arc<Allocation>,
    memory: Dmabuf,
    pub region: u64,
}

impl GpuSide {
    /// Allocates memory with the pattern of a seed. It begins in the middle of a page.
    pub fn new(agent: &Agent, len: usize, seed: u64) -> Self {
        let size = (len + AT).next_multiple_of(4096);
        let gpu = cuda::open(0).or_else(|_| hip::open(0)).expect("a GPU");
        let allocation = Arc::new(gpu.alloc(size).expect("memory of the GPU"));
        let memory = allocation.dmabuf();
        memory.copy_in(AT, &pattern(seed, len)).expect("a copy");
        let address = allocation.device_ptr() + AT as u64;
        let region = agent.register_gpu(address, len);
        Self {
            allocation,
            memory,
            region: region.expect("memory of a GPU is registered"),
        }
    }

    pub fn address(&self) -> u64 {
        self.allocation.device_ptr() + AT as u64
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory
            .copy_out(AT + offset, &mut bytes)
            .expect("a copy");
        bytes
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.memory.copy_in(AT + offset, bytes).expect("a copy");
    }
}

/// Where registered memory begins in its allocation.
const AT: usize = 1000;

/// Memory of this process: of a GPU, or of the host.
enum Side {
    Gpu(GpuSide),
    Host(Memory, u64),
}

impl Side {
    fn new(near: &Near, is_gpu: bool) -> Self {
        match is_gpu {
            true => Self::Gpu(GpuSide::new(&near.agent, LEN, 1)),
            false => {
                let memory = Memory::new(LEN);
                let region = near.agent.register(&memory);
                Self::Host(memory, region)
            }
        }
    }

    fn range(&self, offset: usize, len: usize) -> Range {
        let (address, region) = match self {
            Self::Gpu(side) => (side.address(), side.region),
            Self::Host(memory, region) => (memory.address(), *region),
        };
        Range {
            address: address + offset as u64,
            len: len as u64,
            region,
        }
    }

    fn write(&self, bytes: &[u8]) {
        match self {
            Self::Gpu(side) => side.write(0, bytes),
            Self::Host(memory, _) => memory.write(0, bytes),
        }
    }

    fn read(&self) -> Vec<u8> {
        match self {
            Self::Gpu(side) => side.read(0, LEN),
            Self::Host(memory, _) => memory.read(0, LEN),
        }
    }
}

pub const LEN: usize = 1_200_000;

/// One short range, one of several pieces, and blocks that touch on neither side.
fn lists() -> Vec<Vec<(usize, usize, usize)>> {
    let blocks = (0..100).map(|block| (block * 9000, (99 - block) * 10_000, 8000));
    vec![
        vec![(3, 5, 8)],
        vec![(0, 7, (1 << 20) + 11)],
        blocks.collect(),
    ]
}

/// Moves the bytes of all lists in both directions, and compares every byte of both memories.
pub fn moved(near: &Near, far: &mut Far, near_is_gpu: bool, far_is_gpu: bool) {
    let side = Side::new(near, near_is_gpu);
    let there = match far_is_gpu {
        true => far.gpu(LEN, 2),
        false => far.memory(LEN, 2),
    };
    let remote = near
        .agent
        .load_region(&near.peer, &there.data)
        .expect("a region");
    for list in lists() {
        for is_write in [true, false] {
            side.write(&pattern(3, LEN));
            let (before, far_before) = (side.read(), far.bytes(&there, 0, LEN));
            let transfer = near.transfer(is_write, &pairs(&list, &side, &there, remote));
            assert_eq!(done(&transfer, Some(b"moved")), SUCCESS);
            assert_eq!(far.notifications(1), [(NAME.to_owned(), b"moved".to_vec())]);
            let (mut here, mut other) = (before.clone(), far_before.clone());
            for (at, from, len) in list.iter().copied() {
                match is_write {
                    true => other[from..][..len].copy_from_slice(&before[at..][..len]),
                    false => here[at..][..len].copy_from_slice(&far_before[from..][..len]),
                }
            }
            assert!(side.read() == here, "near, write: {is_write}");
            assert!(far.bytes(&there, 0, LEN) == other, "far, write: {is_write}");
        }
    }
}

fn pairs(
    list: &[(usize, usize, usize)],
    side: &Side,
    there: &FarMemory,
    remote: u64,
) -> Vec<(Range, Range)> {
    let pair = |(at, from, len): &(usize, usize, usize)| {
        let there = Range {
            address: there.address + *from as u64,
            len: *len as u64,
            region: remote,
        };
        (side.range(*at, *len), there)
    };
    list.iter().map(pair).collect()
}

/// Moves bytes by way of the kernel's sockets, and between the processes.
pub fn moved_on_every_way() {
    for way in ["sockets", "unix"] {
        use_way(way);
        for (near, far) in [(true, true), (true, false), (false, true)] {
            let mut peer = Far::start("far", true);
            let agent = Near::meet(&mut peer, true, &[]);
            moved(&agent, &mut peer, near, far);
        }
    }
}

pub fn memory_of_gpus_is_read_and_written_from_either_side() {
    let test = "gpu::memory_of_gpus_is_read_and_written_from_either_side";
    with_gpus(test, moved_on_every_way);
}

pub fn an_agent_copies_between_its_own_memories() {
    with_gpus("gpu::an_agent_copies_between_its_own_memories", || {
        let agent = Agent::open(NAME, false, &[]).expect("an agent");
        let (one, two) = (GpuSide::new(&agent, LEN, 1), GpuSide::new(&agent, LEN, 2));
        let own = agent.load_own(two.region);
        let range = |side: &GpuSide, region| Range {
            address: side.address(),
            len: LEN as u64,
            region,
        };
        let write = agent
            .prepare(true, NAME, &[range(&one, one.region)], &[range(&two, own)])
            .expect("a transfer");
        assert_eq!(done(&write, None), SUCCESS);
        assert!(two.read(0, LEN) == pattern(1, LEN));
    });
}

pub fn bytes_that_go_through_host_memory_are_counted() {
    with_gpus("gpu::bytes_that_go_through_host_memory_are_counted", || {
        let mut far = Far::start("far", true);
        let near = Near::meet(&mut far, true, &[("way", "sockets")]);
        let side = Side::new(&near, true);
        let there = far.memory(LEN, 2);
        let remote = near.agent.load_region(&near.peer, &there.data);
        let pairs = pairs(&[(0, 0, 100_000)], &side, &there, remote.expect("a region"));
        assert_eq!(done(&near.transfer(false, &pairs), None), SUCCESS);
        assert!(paths().contains("\"staged_bytes\":100000"), "{}", paths());
    });
}

pub fn deregistered_memory_of_a_gpu_is_used_no_more() {
    with_gpus("gpu::deregistered_memory_of_a_gpu_is_used_no_more", || {
        let mut far = Far::start("far", false);
        let near = Near::meet(&mut far, true, &[("way", "sockets")]);
        let side = GpuSide::new(&near.agent, LEN, 1);
        let there = far.memory(LEN, 2);
        let remote = near.agent.load_region(&near.peer, &there.data);
        let remote = Range {
            address: there.address,
            len: LEN as u64,
            region: remote.expect("a region"),
        };
        let local = Range {
            address: side.address(),
            len: LEN as u64,
            region: side.region,
        };
        let read = near.transfer(false, &[(local, remote)]);
        read.post(None);
        assert_eq!(near.agent.deregister(side.region), NOT_ALLOWED);
        assert!(side.read(0, LEN) == pattern(1, LEN));
    });
}

pub fn what_is_no_memory_of_a_gpu_is_refused() {
    with_gpus("gpu::what_is_no_memory_of_a_gpu_is_refused", || {
        let agent = Agent::open(NAME, false, &[]).expect("an agent");
        let memory = Memory::new(4096);
        let refused = agent.register_gpu(memory.address(), 4096);
        assert_eq!(refused.unwrap_err(), INVALID_PARAM);
        let direct = Agent::open(NAME, false, &[("require", "direct")]).expect("an agent");
        let gpu = cuda::open(0).expect("a GPU");
        let allocation = gpu.alloc(4096).expect("memory");
        // Its memory goes through host memory.
        assert!(direct.register_gpu(allocation.device_ptr(), 4096).is_err());
        let region = agent.register_gpu(allocation.device_ptr(), 4096);
        assert_eq!(agent.deregister(region.expect("memory of a GPU")), SUCCESS);
    });
}
