//! The device type UNPACK. The judge plays the kernel of NCCL: it follows the device handle to the list of a receive, and copies what the
//! list names from the bounce buffer.

use crate::cases::GUARD;
use crate::gpu::{Case, GpuMemory, judge, receive, send, with_gpus};
use crate::loaded::kernel::{self, NetHandle};
use crate::loaded::{NOTES, Pointer};
use crate::rank::{Link, Rank, pattern};
use crate::{VERSIONS, Wire, roles, start};

/// What the ranks play.
pub const CASES: &[(&str, Case)] = &[
    ("unpack_sizes", sizes),
    ("unpack_few_sizes", few_sizes),
    ("unpack_home", home),
    ("unpack_turns", turns),
    ("unpack_without", without),
];

const POOL_BYTES: usize = 16 << 20;

/// Where kernels look.
const SLOTS: u64 = 16;
const SLOT_BYTES: u64 = 32_768;
const COUNTS_AT: u64 = 524_288;
const MAX_ENTRIES: u64 = 2048;

/// Returns the settings of a rank whose kernels unpack.
pub fn with_kernels(plan: &str, pool: usize) -> Vec<(&'static str, String)> {
    let mut settings = with_gpus(plan, pool);
    let more = [
        ("NCCL_DEVMEM_UNPACK", "1"),
        ("NCCL_PROTO", "Simple"),
        ("NCCL_PAT_ENABLE", "0"),
        ("NCCL_LOCAL_REGISTER", "0"),
        ("NCCL_GRAPH_REGISTER", "0"),
    ];
    settings.extend(more.map(|(name, value)| (name, value.to_owned())));
    settings
}

pub fn every_version_gives_lists_to_kernels() {
    let settings = with_kernels("polls=1", POOL_BYTES);
    for version in VERSIONS {
        judge("unpack_few_sizes", Wire::Cable("none"), version, &settings);
    }
    // An impaired cable cuts super-packets, so that each frag has the payload of one packet.
    judge("unpack_sizes", Wire::Cable("delay=100us"), 12, &settings);
}

pub fn lists_survive_loss_and_reordering() {
    let wire = Wire::Cable("loss=1%,reorder=2%,seed=10");
    let settings = with_kernels("polls=1", POOL_BYTES);
    judge("unpack_few_sizes", wire, 12, &settings);
}

pub fn frags_go_home_when_they_are_consumed() {
    let settings = with_kernels("devices=1", 4 << 20);
    judge("unpack_home", Wire::Cable("none"), 12, &settings);
}

pub fn lists_are_used_in_turn() {
    let settings = with_kernels("devices=1", POOL_BYTES);
    judge("unpack_turns", Wire::Cable("none"), 12, &settings);
}

pub fn without_kernels_messages_arrive_in_their_memory() {
    let settings = with_kernels("devices=1", POOL_BYTES);
    judge("unpack_without", Wire::Cable("none"), 12, &settings);
}

pub fn settings_that_kernels_cannot_work_with_are_named() {
    let cases = [
        ("NCCL_PROTO", "LL,Simple", "NCCL_PROTO=Simple"),
        ("NCCL_PAT_ENABLE", "1", "NCCL_PAT_ENABLE=0"),
        ("NCCL_LOCAL_REGISTER", "1", "NCCL_LOCAL_REGISTER=0"),
        ("NCCL_GRAPH_REGISTER", "", "NCCL_GRAPH_REGISTER=0"),
        ("NCCL_DEVMEM_POOL", "0", "NCCL_DEVMEM_POOL=BYTES"),
        ("NCCL_DEVMEM_POOL", "4294967296", "32 bits"),
        ("NCCL_DEVMEM_UNPACK", "2", "set it to 1 or 0"),
        (
            "DEVMEM_LIBCUDA",
            "/nonexistent/libcuda.so.1",
            "needs memory of GPUs",
        ),
    ];
    for (name, value, expected) in cases {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut settings = with_kernels("devices=1", POOL_BYTES);
        let device = "user:mem:refused:10.77.0.1/24".to_owned();
        settings.extend([
            ("DEVMEM_TCP_DEVICES", device),
            (name, value.to_owned()),
            ("NCCL_JUDGE_CASE", expected.to_owned()),
        ]);
        let ended = start("refused", folder.path(), &settings).wait();
        assert!(ended.expect("a child").success(), "{name}={value}");
    }
}

/// A kernel that has a connection.
struct Kernel {
    handle: u64,
}

impl Kernel {
    fn new(given: &NetHandle) -> Self {
        let NetHandle {
            device_type,
            device_version,
            handle,
            size,
            needs_progress,
        } = *given;
        let fields = (device_type, device_version, size, needs_progress);
        assert_eq!(fields, (1, 7, 24, 1));
        Self { handle }
    }

    /// Unpacks the next message to `memory`. Returns the number of entries.
    fn unpack(&self, memory: &mut [u8]) -> u64 {
        let handle = kernel::read(self.handle, 24);
        let word = |at: usize| u64::from_le_bytes(handle[at..at + 8].try_into().expect("8 bytes"));
        let (lists, bounce, head) = (word(0), word(8), word(16).wrapping_add(1));
        let slot = head % SLOTS;
        let count = kernel::word(lists + COUNTS_AT + slot * 8);
        assert!(count <= MAX_ENTRIES, "{count} entries");
        for entry in 0..count {
            let at = lists + slot * SLOT_BYTES + entry * 16;
            let (first, to) = (kernel::word(at), kernel::word(at + 8) as usize);
            let (from, len) = (first & 0xffff_ffff, (first >> 32) as usize);
            memory[to..to + len].copy_from_slice(&kernel::read(bounce + from, len));
        }
        // The next kernel goes on from here.
        kernel::write(self.handle + 16, &head.to_le_bytes());
        count
    }
}

/// Connects the ranks, with a kernel for what this one receives.
fn link(rank: &Rank, name: &str) -> (Link, Kernel) {
    let mut given = None;
    let link = rank.link_by(name, |listening| {
        let accepted = rank.plugin.accept_for_kernels(listening)?;
        Ok(accepted.map(|(comm, handle)| {
            given = Some(handle);
            comm
        }))
    });
    let kernel = Kernel::new(&given.expect("accepted"));
    (link, kernel)
}

/// One message in each direction. Returns the number of entries of the list.
fn both_ways(rank: &Rank, (link, kernel): &(Link, Kernel), len: usize, seed: usize) -> u64 {
    let ours = GpuMemory::new(&pattern(seed * 2 + rank.number, len));
    let to = GpuMemory::new(&vec![GUARD; len + 17]);
    let from_handle = ours.register(rank, link.to, 0, len.max(1));
    let to_handle = to.register(rank, link.from, 0, len + 17);
    let has_mr = rank.plugin.has_device_mr(link.from, to_handle);
    assert_eq!(has_mr, Ok(false));
    let receiving = receive(rank, link.from, to.address(), len + 17, to_handle);
    let sending = send(rank, link.to, ours.address(), len, from_handle);
    assert_eq!(rank.finish(receiving), len);
    assert_eq!(rank.finish(sending), len);
    let mut memory = vec![GUARD; len + 17];
    let entries = kernel.unpack(&mut memory);
    let theirs = pattern(seed * 2 + 1 - rank.number, len);
    assert!(memory[..len] == theirs, "message {seed} of {len} bytes");
    assert_eq!(memory[len..], [GUARD; 17], "bytes behind the message");
    assert_eq!(entries == 0, len == 0);
    // The plugin itself has left the receive's memory alone.
    assert!(to.bytes().iter().all(|byte| *byte == GUARD));
    let done_again = rank.plugin.test(receiving, 1);
    assert!(done_again.is_err(), "a kernel has the request");
    rank.plugin
        .consumed(link.from, receiving)
        .expect("irecvConsumed");
    assert!(rank.plugin.consumed(link.from, receiving).is_err(), "twice");
    rank.plugin
        .deregister(link.to, from_handle)
        .expect("deregMr");
    rank.plugin
        .deregister(link.from, to_handle)
        .expect("deregMr");
    entries
}

fn few_sizes(rank: &Rank) {
    let properties = rank.plugin.properties(0).expect("properties");
    let of_device = (properties.device_type, properties.device_version);
    assert_eq!((of_device, properties.max_recvs), ((1, 7), 1));
    assert_eq!(properties.pointers, 5);
    let connected = link(rank, "link");
    for (seed, len) in [0, 1, 4096, 600_000].into_iter().enumerate() {
        both_ways(rank, &connected, len, seed);
    }
    // From host memory: the bytes come with their record, and not by way of the pool.
    let (link, kernel) = connected;
    let host = rank.buffer(link.to, pattern(rank.number, 900));
    let mut to = rank.buffer(link.from, vec![GUARD; 1000]);
    let receiving = rank.receive(link.from, &mut to, 1000, 3);
    let sending = rank.send(link.to, &host, 900, 3);
    assert_eq!(rank.finish(receiving), 900);
    rank.finish(sending);
    let mut memory = vec![GUARD; 900];
    assert_eq!(kernel.unpack(&mut memory), 1);
    assert!(memory == pattern(1 - rank.number, 900));
    rank.plugin
        .consumed(link.from, receiving)
        .expect("irecvConsumed");
    rank.meet("end");
    rank.close(link);
}

fn sizes(rank: &Rank) {
    let connected = link(rank, "link");
    let lens = [7, 127, 128, 65_536, (4 << 20) + 3, 1 << 20];
    let mut entries = 0;
    for (seed, len) in lens.into_iter().enumerate() {
        entries = entries.max(both_ways(rank, &connected, len, seed));
    }
    // 4 MiB in frags of 1,448 bytes are more than a list has room for.
    assert_eq!(entries, MAX_ENTRIES);
    rank.meet("end");
    rank.close(connected.0);
}

/// Many times as much as the pool has, and a close with frags that no kernel has consumed.
fn home(rank: &Rank) {
    let connected = link(rank, "link");
    for seed in 0..40 {
        both_ways(rank, &connected, 600_000, seed);
    }
    for turn in 0..6 {
        let (link, _kernel) = link(rank, &format!("closed{turn}"));
        let ours = GpuMemory::new(&vec![1; 1 << 20]);
        let from = ours.register(rank, link.to, 0, 1 << 20);
        let to = GpuMemory::new(&vec![GUARD; 1 << 20]);
        let into = to.register(rank, link.from, 0, 1 << 20);
        let receiving = receive(rank, link.from, to.address(), 1 << 20, into);
        let sending = send(rank, link.to, ours.address(), 1 << 20, from);
        rank.finish(receiving);
        rank.finish(sending);
        rank.meet(&format!("arrived{turn}"));
        rank.plugin.deregister(link.to, from).expect("deregMr");
        rank.plugin.deregister(link.from, into).expect("deregMr");
        rank.close(link);
    }
    both_ways(rank, &connected, 600_000, 41);
    rank.meet("end");
    rank.close(connected.0);
    let notes = NOTES.lock().expect("no test panics with it");
    let by_device = "1048576 received, 1048576 of them by way of device memory";
    assert!(
        notes.iter().any(|note| note.contains(by_device)),
        "{notes:?}"
    );
}

/// Receives take lists in turn, and none that is in use; they are tested in the reverse order.
fn turns(rank: &Rank) {
    let (link, kernel) = link(rank, "link");
    let (count, len) = (SLOTS as usize, 20_000);
    let ours = GpuMemory::new(&pattern(rank.number, count * len));
    let to = GpuMemory::new(&vec![GUARD; len]);
    let from = ours.register(rank, link.to, 0, count * len);
    let into = to.register(rank, link.from, 0, len);
    let post = || {
        let data = std::ptr::without_provenance_mut(to.address() as usize);
        let part = [(data, len, 3)];
        rank.plugin
            .receive(link.from, &part, Some(into), 0)
            .expect("irecv")
    };
    let theirs = pattern(1 - rank.number, count * len);
    for round in 0..3 {
        let posted: Vec<Pointer> = (0..count).map(|_| post().expect("taken")).collect();
        assert_eq!(post(), None, "every list is in use");
        let sends: Vec<_> = (0..count)
            .map(|at| send(rank, link.to, ours.address() + (at * len) as u64, len, from))
            .collect();
        for request in posted.iter().rev().chain(&sends) {
            assert_eq!(rank.finish(*request), len);
        }
        assert_eq!(post(), None, "no kernel has read a list");
        for (at, request) in posted.iter().enumerate() {
            let mut memory = vec![GUARD; len];
            kernel.unpack(&mut memory);
            assert!(memory == theirs[at * len..][..len], "round {round}, {at}");
            rank.plugin
                .consumed(link.from, *request)
                .expect("irecvConsumed");
        }
        rank.meet(&format!("round{round}"));
    }
    rank.plugin.deregister(link.to, from).expect("deregMr");
    rank.plugin.deregister(link.from, into).expect("deregMr");
    rank.meet("end");
    rank.close(link);
}

/// Where NCCL asks for no handle, nobody would unpack.
fn without(rank: &Rank) {
    let link = rank.link("link");
    let len = 300_000;
    let from = rank.buffer(link.to, pattern(rank.number, len));
    let mut to = rank.buffer(link.from, vec![GUARD; len]);
    let receiving = rank.receive(link.from, &mut to, len, 3);
    let sending = rank.send(link.to, &from, len, 3);
    assert_eq!(rank.finish(receiving), len);
    rank.finish(sending);
    assert!(to.bytes == pattern(1 - rank.number, len));
    // NCCL may say it all the same.
    rank.plugin
        .consumed(link.from, receiving)
        .expect("irecvConsumed");
    rank.meet("end");
    rank.close(link);
    assert!(roles::setting("NCCL_DEVMEM_UNPACK").is_some());
}
