//! Memory of GPUs, of a stub of the driver that the ranks and the plugin load: the CPU cannot access it, so every copy is one of the "GPU".

use std::os::fd::AsRawFd;
use std::sync::Arc;

use devmem_linux::test_util::built_library;
use devmem_tcp::Dmabuf;
use devmem_tcp::cuda::{self, Allocation};

use crate::cases::{GUARD, INTERNAL, REMOTE};
use crate::loaded::{Code, NOTES, Pointer, WARNINGS};
use crate::rank::{Link, Rank, pattern, until};
use crate::{VERSIONS, Wire, outcome_with, roles, single_with};

/// What a rank does.
pub type Case = fn(&Rank);

/// What the ranks play.
pub const CASES: &[(&str, Case)] = &[
    ("gpu_sizes", sizes),
    ("gpu_few_sizes", few_sizes),
    ("gpu_by_address", by_address),
    ("gpu_registrations", registrations),
    ("gpu_deregistered", deregistered),
    ("gpu_offered", offered),
    ("gpu_not_offered", not_offered),
    ("gpu_refused", refused),
];

/// Codes of NCCL.
const SYSTEM: Code = 2;

const POOL_BYTES: usize = 4 << 20;

/// Set where the GPU of the machine is to be used instead of the stub.
const REAL: &str = "NCCL_JUDGE_REAL_GPU";

/// Returns the settings of a rank with GPUs that behave by `plan`.
pub fn with_gpus(plan: &str, pool: usize) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("NCCL_PROTO", "^LL128".to_owned()),
        ("NCCL_DEVMEM_POOL", pool.to_string()),
    ];
    if roles::setting(REAL).is_none() {
        let library = built_library("libdevmem_gpu_stub.so");
        settings.push(("DEVMEM_LIBCUDA", library.display().to_string()));
        settings.push(("STUB_GPU", plan.to_owned()));
    }
    settings
}

pub fn judge(case: &str, wire: Wire, version: u32, settings: &[(&'static str, String)]) {
    let ended = outcome_with(case, wire, version, settings);
    let plan = (case, wire, version, settings);
    assert_eq!(ended, [true, true], "{plan:?}");
}

pub fn every_version_moves_memory_of_gpus() {
    for version in VERSIONS {
        let settings = with_gpus("polls=1", POOL_BYTES);
        judge("gpu_few_sizes", Wire::Cable("none"), version, &settings);
    }
    // By way of the pool, and without one.
    for pool in [POOL_BYTES, 0] {
        let settings = with_gpus("devices=1", pool);
        judge("gpu_sizes", Wire::Cable("none"), 12, &settings);
    }
}

pub fn memory_of_gpus_survives_loss_and_reordering() {
    let wire = Wire::Cable("loss=1%,reorder=2%,seed=9");
    judge("gpu_few_sizes", wire, 12, &with_gpus("polls=2", POOL_BYTES));
}

pub fn memory_without_a_dmabuf_is_registered_by_its_address() {
    // The driver says that it exports memory, and then refuses.
    let plan = "fail=cuMemGetHandleForAddressRange:801";
    let settings = with_gpus(plan, POOL_BYTES);
    judge("gpu_by_address", Wire::Cable("none"), 12, &settings);
}

pub fn registrations_are_counted() {
    let settings = with_gpus("reuse=1", POOL_BYTES);
    judge("gpu_registrations", Wire::Cable("none"), 12, &settings);
}

pub fn deregistered_memory_is_touched_no_more() {
    for pool in [POOL_BYTES, 0] {
        let settings = with_gpus("reuse=1", pool);
        judge("gpu_deregistered", Wire::Cable("none"), 12, &settings);
    }
}

pub fn the_pool_may_be_on_another_gpu() {
    let mut settings = with_gpus("devices=2", POOL_BYTES);
    settings.push(("NCCL_DEVMEM_GPU", "1".to_owned()));
    judge("gpu_few_sizes", Wire::Cable("none"), 12, &settings);
}

pub fn properties_offer_gpus_only_where_they_work() {
    let user = || {
        let device = "user:mem:gpu:10.77.0.1/24".to_owned();
        ("DEVMEM_TCP_DEVICES", device)
    };
    for version in VERSIONS {
        let mut settings = with_gpus("devices=1", 0);
        settings.push(user());
        single_with("gpu_offered", version, &settings);
    }
    // Without GPUs; with some that export nothing; with a NIC that cannot send from them; and what the user has set.
    let cases = [
        ("DEVMEM_LIBCUDA", "/nonexistent/libcuda.so.1", true),
        ("STUB_GPU", "devices=0", true),
        ("STUB_GPU", "dmabuf=0", true),
        ("NCCL_PROTO", "LL128,Simple", true),
        ("NCCL_DEVMEM_GPU", "none", true),
        ("NCCL_DEVMEM_GPU", "1", true),
        ("NCCL_DEVMEM_GPU", "0", false),
    ];
    for (name, value, is_user) in cases {
        let mut settings = with_gpus("devices=1", 0);
        settings.extend(is_user.then(user));
        settings.push((name, value.to_owned()));
        single_with("gpu_not_offered", 12, &settings);
    }
}

pub fn memory_is_refused_with_what_failed() {
    for plan in ["managed=1", "devices=1"] {
        let settings = with_gpus(plan, 0);
        judge("gpu_refused", Wire::Cable("none"), 12, &settings);
    }
    let mut settings = with_gpus("devices=1", 0);
    settings.push(("NCCL_DEVMEM_GPU", "none".to_owned()));
    judge("gpu_refused", Wire::Cable("none"), 12, &settings);
}

/// GPU memory of a case.
pub struct GpuMemory {
    allocation: Arc<Allocation>,
    memory: Dmabuf,
    len: usize,
}

impl GpuMemory {
    pub fn new(bytes: &[u8]) -> Self {
        let gpu = cuda::open(0).expect("a GPU");
        let size = bytes.len().next_multiple_of(4096).max(4096);
        let allocation = Arc::new(gpu.alloc(size).expect("memory"));
        let memory = allocation.dmabuf();
        memory.copy_in(0, bytes).expect("a copy");
        let len = bytes.len();
        Self {
            allocation,
            memory,
            len,
        }
    }

    pub fn address(&self) -> u64 {
        self.allocation.device_ptr()
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.memory.slice(0..self.len).to_vec()
    }

    /// Registers the bytes from `from` on with a new descriptor, which is closed right afterwards.
    pub fn register(&self, rank: &Rank, comm: Pointer, from: usize, len: usize) -> Pointer {
        let fd = self.allocation.export().expect("a dma-buf");
        let fd = fd.try_clone_to_owned().expect("dup");
        let address = self.address() + from as u64;
        rank.plugin
            .register_fd(comm, (address, len), (fd.as_raw_fd(), from as u64))
            .expect("regMrDmaBuf")
    }
}

/// Sends `len` bytes at an address.
pub fn send(rank: &Rank, comm: Pointer, address: u64, len: usize, handle: Pointer) -> Pointer {
    let data = std::ptr::without_provenance(address as usize);
    until("posting a send", || {
        let posted = rank.plugin.send(comm, (data, len), 3, Some(handle));
        posted.expect("isend")
    })
}

pub fn receive(rank: &Rank, comm: Pointer, address: u64, len: usize, handle: Pointer) -> Pointer {
    let data = std::ptr::without_provenance_mut(address as usize);
    until("posting a receive", || {
        let posted = rank
            .plugin
            .receive(comm, &[(data, len, 3)], Some(handle), 0);
        posted.expect("irecv")
    })
}

/// Sends one message in each direction at the same time, from GPU to GPU, and checks it.
fn both_ways(rank: &Rank, link: Link, len: usize, seed: usize) {
    let ours = GpuMemory::new(&pattern(seed * 2 + rank.number, len));
    let to = GpuMemory::new(&vec![GUARD; len + 17]);
    let from_handle = ours.register(rank, link.to, 0, len.max(1));
    let to_handle = to.register(rank, link.from, 0, len + 17);
    exchange(rank, link, (&ours, from_handle), (&to, to_handle), seed);
    rank.plugin
        .deregister(link.to, from_handle)
        .expect("deregMr");
    rank.plugin
        .deregister(link.from, to_handle)
        .expect("deregMr");
}

/// Sends all bytes of one memory, and receives as many of the peer into the other one, which is longer.
fn exchange(
    rank: &Rank,
    link: Link,
    (ours, from): (&GpuMemory, Pointer),
    (to, into): (&GpuMemory, Pointer),
    seed: usize,
) {
    let len = ours.len;
    let receiving = receive(rank, link.from, to.address(), to.len, into);
    let sending = send(rank, link.to, ours.address(), len, from);
    assert_eq!(rank.finish(receiving), len);
    assert_eq!(rank.finish(sending), len);
    let got = to.bytes();
    let theirs = pattern(seed * 2 + 1 - rank.number, len);
    assert!(got[..len] == theirs, "message {seed} of {len} bytes");
    assert!(
        got[len..].iter().all(|byte| *byte == GUARD),
        "bytes behind a message of {len} changed"
    );
}

fn sizes(rank: &Rank) {
    assert_eq!(rank.plugin.properties(0).expect("properties").pointers, 5);
    let link = rank.link("link");
    let lens = [0, 1, 7, 128, 4096, 65_536, 600_000, (4 << 20) + 3, 24 << 20];
    for (seed, len) in lens.into_iter().enumerate() {
        both_ways(rank, link, len, seed);
    }
    rank.meet("end");
    rank.close(link);
    if roles::setting("NCCL_DEVMEM_POOL").as_deref() != Some("0") {
        // Not one byte took the way through the CPU.
        let all: usize = lens.iter().sum();
        let received = format!("{all} received, {all} of them by way of device memory");
        let notes = NOTES.lock().expect("no test panics with it");
        assert!(
            notes.iter().any(|note| note.contains(&received)),
            "not {received:?}: {notes:?}"
        );
    }
}

fn few_sizes(rank: &Rank) {
    let link = rank.link("link");
    for (seed, len) in [0, 1, 4096, 600_000].into_iter().enumerate() {
        both_ways(rank, link, len, seed);
    }
    // From host memory to a GPU, and back.
    for (turn, len) in [900, 300_000].into_iter().enumerate() {
        let host = rank.buffer(link.to, pattern(rank.number, len));
        let gpu = GpuMemory::new(&vec![GUARD; len]);
        let handle = gpu.register(rank, link.from, 0, len);
        let receiving = receive(rank, link.from, gpu.address(), len, handle);
        let sending = rank.send(link.to, &host, len, 3);
        rank.finish(receiving);
        rank.finish(sending);
        assert!(gpu.bytes() == pattern(1 - rank.number, len), "turn {turn}");
        // The same range for sending: registered on a communicator that sends, it is bound now.
        let back = gpu.register(rank, link.to, 0, len);
        let mut to = rank.buffer(link.from, vec![GUARD; len]);
        let receiving = rank.receive(link.from, &mut to, len, 3);
        let sending = send(rank, link.to, gpu.address(), len, back);
        rank.finish(receiving);
        rank.finish(sending);
        assert!(to.bytes == pattern(rank.number, len), "turn {turn}");
    }
    rank.meet("end");
    rank.close(link);
}

/// Registered by `regMr`, with an address in the middle of a page, because there is no dma-buf.
fn by_address(rank: &Rank) {
    let link = rank.link("link");
    let len = 300_000;
    let bytes = [vec![GUARD; 100], pattern(rank.number, len)].concat();
    let (from, to) = (GpuMemory::new(&bytes), GpuMemory::new(&vec![GUARD; len]));
    assert!(from.allocation.export().is_err(), "the plan");
    let address = from.address() + 100;
    let sends = rank.plugin.register_address(link.to, address, len);
    let receives = rank
        .plugin
        .register_address(link.from, to.address(), len)
        .expect("regMr");
    let receiving = receive(rank, link.from, to.address(), len, receives);
    let sending = send(rank, link.to, address, len, sends.expect("regMr"));
    rank.finish(receiving);
    rank.finish(sending);
    assert!(to.bytes() == pattern(1 - rank.number, len));
    rank.meet("end");
    rank.close(link);
}

/// Returns how many descriptors of GPU memory this process has: one of each allocation is the stub's own.
fn descriptors() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("procfs");
    let links = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links
        .map(|link| link.to_string_lossy().into_owned())
        .filter(|link| link.contains("stub-gpu") || link.contains("dmabuf"))
        .count()
}

fn registrations(rank: &Rank) {
    let link = rank.link("link");
    let len = 1 << 20;
    let ours = GpuMemory::new(&pattern(rank.number, len));
    let to = GpuMemory::new(&vec![GUARD; len + 17]);
    // Those that `export` keeps.
    let _ = (ours.allocation.export(), to.allocation.export());
    let before = descriptors();
    // One range many times: one descriptor.
    let many: Vec<_> = (0..10)
        .map(|_| ours.register(rank, link.to, 0, len))
        .collect();
    let into = to.register(rank, link.from, 0, len + 17);
    assert_eq!(descriptors(), before + 2);
    for handle in &many[1..] {
        rank.plugin.deregister(link.to, *handle).expect("deregMr");
    }
    exchange(rank, link, (&ours, many[0]), (&to, into), 0);
    // A part of it, which uses the same; and pieces of another memory, which have one each.
    let part = ours.register(rank, link.to, 4096, 8192);
    assert_eq!(descriptors(), before + 2);
    rank.plugin.deregister(link.to, many[0]).expect("deregMr");
    let (piece, quarter) = (GpuMemory::new(&vec![GUARD; len]), len / 4);
    let _ = piece.allocation.export();
    let before_pieces = descriptors();
    let pieces: Vec<_> = (0..4)
        .map(|at| piece.register(rank, link.from, at * quarter, quarter))
        .collect();
    assert_eq!(descriptors(), before_pieces + 4);
    for (at, handle) in pieces.iter().enumerate() {
        let address = piece.address() + (at * quarter) as u64;
        let receiving = receive(rank, link.from, address, quarter, *handle);
        let sending = send(rank, link.to, ours.address() + 4096, 8192, part);
        assert_eq!(rank.finish(receiving), 8192);
        rank.finish(sending);
        let theirs = &pattern(1 - rank.number, len)[4096..12_288];
        assert!(piece.bytes()[at * quarter..][..8192] == *theirs);
        assert!(piece.bytes()[at * quarter + 8192..][..100] == [GUARD; 100]);
    }
    // The last one of a range gives its descriptor back.
    rank.plugin.deregister(link.to, part).expect("deregMr");
    rank.plugin.deregister(link.from, into).expect("deregMr");
    for handle in pieces {
        rank.plugin.deregister(link.from, handle).expect("deregMr");
    }
    assert_eq!(descriptors(), before_pieces - 2);
    drop(piece);
    reused(rank, link, to);
    rank.meet("end");
    rank.close(link);
}

/// Other memory at the address of a registration that NCCL has forgotten to end.
fn reused(rank: &Rank, link: Link, to: GpuMemory) {
    let (address, size) = (to.address(), to.len);
    let forgotten = to.register(rank, link.from, 0, size);
    let allocated = descriptors();
    drop(to);
    let to = GpuMemory::new(&vec![GUARD; size]);
    assert_eq!(to.address(), address, "the plan");
    let _ = to.allocation.export();
    let into = to.register(rank, link.from, 0, size);
    assert_eq!(
        descriptors(),
        allocated + 1,
        "it has a descriptor of its own"
    );
    let ours = GpuMemory::new(&pattern(2 + rank.number, size - 17));
    let from = ours.register(rank, link.to, 0, ours.len);
    exchange(rank, link, (&ours, from), (&to, into), 1);
    rank.plugin
        .deregister(link.from, forgotten)
        .expect("deregMr");
    exchange(rank, link, (&ours, from), (&to, into), 1);
    // The same for memory that is sent, where a NIC of the kernel still has the old pages.
    let address = ours.address();
    drop(ours);
    let ours = GpuMemory::new(&pattern(4 + rank.number, size - 17));
    assert_eq!(ours.address(), address, "the plan");
    let from = ours.register(rank, link.to, 0, ours.len);
    exchange(rank, link, (&ours, from), (&to, into), 2);
}

/// Both ranks deregister the memory of a receive in flight, and use it for something else.
fn deregistered(rank: &Rank) {
    let link = rank.link("link");
    let len = 1 << 20;
    let to = GpuMemory::new(&vec![0; len]);
    let into = to.register(rank, link.from, 0, len);
    let receiving = receive(rank, link.from, to.address(), len, into);
    rank.meet("posted");
    rank.plugin.deregister(link.from, into).expect("deregMr");
    let (address, size) = (to.address(), to.len);
    drop(to);
    let other = GpuMemory::new(&vec![GUARD; size]);
    assert_eq!(other.address(), address, "the plan");
    rank.meet("deregistered");
    let ours = GpuMemory::new(&pattern(rank.number, len));
    let from = ours.register(rank, link.to, 0, len);
    let sending = send(rank, link.to, ours.address(), len, from);
    // What fails first is a matter of time.
    assert!([SYSTEM, REMOTE].contains(&rank.fails(receiving)));
    let sent = until("a send", || match rank.plugin.test(sending, 1) {
        Ok(None) => None,
        Ok(Some(_)) => Some(0),
        Err(code) => Some(code),
    });
    assert!([0, SYSTEM, REMOTE].contains(&sent), "{sent}");
    assert!(other.bytes().iter().all(|byte| *byte == GUARD), "written");
    // What TCP still has to send is not read any more: the memory is freed while the connection lingers.
    rank.plugin.deregister(link.to, from).expect("deregMr");
    drop(ours);
    rank.meet("end");
    rank.close(link);
    assert!(other.bytes().iter().all(|byte| *byte == GUARD), "written");
}

fn offered(rank: &Rank) {
    let properties = rank.plugin.properties(0).expect("properties");
    assert_eq!(properties.pointers, 5, "host memory and dma-bufs");
    assert_eq!((properties.device_type, properties.max_recvs), (0, 8));
}

fn not_offered(rank: &Rank) {
    let properties = rank.plugin.properties(0).expect("properties");
    assert_eq!(properties.pointers, 1, "host memory");
    let notes = NOTES.lock().expect("no test panics with it");
    let told = notes.iter().any(|note| note.contains("host memory only: "));
    assert!(told, "{notes:?}");
}

/// What cannot be registered in either way: the second refusal names both reasons, or the one why no memory of GPUs is taken.
fn refused(rank: &Rank) {
    let link = rank.link("link");
    let memory = GpuMemory::new(&[1; 4096]);
    let fd = memory.allocation.export().expect("a dma-buf").as_raw_fd();
    let plan = roles::setting("STUB_GPU").expect("the test sets it");
    let is_taken = rank.plugin.properties(0).expect("properties").pointers == 5;
    let (len, reasons) = match (is_taken, plan.as_str()) {
        (false, _) => (4096, ["NCCL_DEVMEM_GPU is none", ""]),
        (true, "managed=1") => (4096, ["managed memory", ""]),
        (true, _) => (
            1 << 30,
            [
                "end after the allocation",
                "nor could memory of this communicator as a dma-buf: ",
            ],
        ),
    };
    let range = (memory.address(), len);
    let as_dmabuf = rank.plugin.register_fd(link.to, range, (fd, 0));
    assert!(as_dmabuf.is_err());
    let by_address = rank.plugin.register_address(link.to, range.0, range.1);
    assert_eq!(by_address, Err(INTERNAL));
    let warnings = WARNINGS.lock().expect("no test panics with it").clone();
    let last = warnings.last().expect("a warning");
    assert!(
        reasons.iter().all(|reason| last.contains(reason)),
        "{warnings:?}"
    );
    rank.meet("end");
    rank.close(link);
}
