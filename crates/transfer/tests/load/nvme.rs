//! NVMe over TCP, with our own target at the other end of a TAP: what loads and stores.

use std::net::TcpListener;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use devmem_linux::test_util::in_netns;
use devmem_tcp::{Dmabuf, Netdev};
use devmem_transfer::load::{LoadError, Loaded, Loader, NvmeNamespace, NvmeUrl, Progress};
use devmem_transfer::store::{self, Durability, StoreError, Stored, Storer};
use nvme_target::{Disk, Subsystem, Target};

use crate::world::{V4, World, load_counted, memory_for, pattern, told, whole};

pub const NQN: &str = "nqn.2014-08.org.example:disk";
pub const DISK_BYTES: usize = 6 << 20;

/// A running target with one namespace.
pub struct Served {
    pub target: Target,
    pub disk: Arc<Disk>,
}

impl Served {
    /// Serves the pattern in blocks of `1 << block_log2`, by the rules that `change` makes.
    pub fn start(block_log2: u8, change: impl FnOnce(&mut Subsystem)) -> Self {
        Self::of(Disk::in_memory(pattern(DISK_BYTES), block_log2), change)
    }

    pub fn of(disk: Disk, change: impl FnOnce(&mut Subsystem)) -> Self {
        let disk = Arc::new(disk);
        let mut subsystem = Subsystem::new(NQN, vec![Arc::clone(&disk)]);
        change(&mut subsystem);
        let listener = TcpListener::bind("0.0.0.0:0").expect("a free port");
        let target = Target::start(listener, subsystem).expect("a thread");
        Self { target, disk }
    }

    /// Serves a namespace again, at the port of before.
    pub fn again(port: u16, disk: Arc<Disk>) -> Self {
        let listener = TcpListener::bind(("0.0.0.0", port)).expect("the port is free");
        let subsystem = Subsystem::new(NQN, vec![Arc::clone(&disk)]);
        let target = Target::start(listener, subsystem).expect("a thread");
        Self { target, disk }
    }

    /// Returns the URL of the namespace, with parameters behind a question mark, or none.
    pub fn url(&self, parameters: &str) -> NvmeUrl {
        let text = format!(
            "nvme://{}:{}/{NQN}{parameters}",
            V4.host,
            self.target.port()
        );
        text.parse().expect("a URL")
    }

    #[track_caller]
    pub fn open(&self, world: &World, parameters: &str) -> NvmeNamespace {
        NvmeNamespace::open(&world.nic, self.url(parameters)).expect("it opens")
    }

    pub fn count(&self, counter: impl Fn(&nvme_target::Counts) -> &AtomicU64) -> u64 {
        counter(self.target.counts()).load(Ordering::Relaxed)
    }
}

pub fn never_cancelled(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Loads all of a namespace into memory that is not zero; returns what was loaded.
pub fn load(loader: &Loader, namespace: &NvmeNamespace) -> Result<(Loaded, Vec<u8>), LoadError> {
    load_watched(loader, namespace, &mut never_cancelled)
}

/// The same, with a function that is told of the progress.
pub fn load_watched(
    loader: &Loader,
    namespace: &NvmeNamespace,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(Loaded, Vec<u8>), LoadError> {
    let memory = memory_for(DISK_BYTES);
    memory.fill(0..DISK_BYTES, 0xee).expect("it is mapped");
    let part = whole(&memory, DISK_BYTES);
    let loaded = loader.load(namespace, &[part], progress)?;
    Ok((loaded, memory.slice(0..DISK_BYTES).to_vec()))
}

#[track_caller]
fn loads(loader: &Loader, namespace: &NvmeNamespace) -> Loaded {
    let (loaded, bytes) = load(loader, namespace).expect("it loads");
    assert_eq!(loaded.bytes, DISK_BYTES as u64);
    assert!(bytes == pattern(DISK_BYTES), "every byte is at its place");
    loaded
}

/// Other bytes than those of the pattern.
fn other_bytes() -> Vec<u8> {
    pattern(DISK_BYTES).into_iter().map(|byte| !byte).collect()
}

fn memory_with(bytes: &[u8]) -> Dmabuf {
    let memory = memory_for(bytes.len());
    memory.copy_in(0, bytes).expect("it is mapped");
    memory
}

fn all_bytes() -> store::Part {
    store::Part {
        target: 0..DISK_BYTES as u64,
        offset: 0,
    }
}

fn store_all(
    storer: &Storer,
    namespace: &NvmeNamespace,
    bytes: &[u8],
) -> Result<Stored, StoreError> {
    storer.store(
        namespace,
        &memory_with(bytes),
        &[all_bytes()],
        &mut never_cancelled,
    )
}

#[test]
fn a_namespace_arrives_over_the_kernels_sockets() {
    in_netns("nvme::a_namespace_arrives_over_the_kernels_sockets", || {
        let served = Served::start(9, |_| {});
        let url = format!("nvme://127.0.0.1:{}/{NQN}", served.target.port());
        let nic = Netdev::kernel_to("127.0.0.1".parse().unwrap()).expect("loopback");
        let namespace = NvmeNamespace::open(&nic, url.parse().unwrap()).expect("it opens");
        loads(&Loader::new(&nic), &namespace);
    });
}

#[test]
fn a_namespace_arrives_whatever_its_blocks_digests_and_queues_are() {
    const TEST: &str = "nvme::a_namespace_arrives_whatever_its_blocks_digests_and_queues_are";
    in_netns(TEST, || {
        let world = World::far(V4);
        for (block_log2, transfer_log2, parameters) in [
            (9, 0, ""),
            (12, 5, "?nsid=1"),
            (9, 5, "?hdr-digest=1&data-digest=1"),
            (12, 0, "?data-digest=1&sq-flow=1"),
            (9, 0, "?hdr-digest=1&hostnqn=nqn.2014-08.org.example:host"),
        ] {
            let served = Served::start(block_log2, |it| it.transfer_log2 = transfer_log2);
            let namespace = served.open(&world, parameters);
            assert_eq!(namespace.size(), DISK_BYTES as u64);
            assert_eq!(namespace.block_bytes(), 1 << block_log2);
            for (connections, piece_bytes) in [(1, 1 << 20), (4, 64 << 10)] {
                let loader = Loader::new(&world.nic)
                    .connections(connections)
                    .piece_bytes(piece_bytes);
                let part_memory = memory_for(DISK_BYTES);
                let part = whole(&part_memory, DISK_BYTES);
                let (loaded, together) = load_counted(&loader, &namespace, part);
                assert_eq!((loaded.broken, loaded.repeated), (0, 0), "{parameters}");
                assert_eq!(together > 1, connections > 1, "{parameters}");
                assert!(part_memory.slice(0..DISK_BYTES).to_vec() == pattern(DISK_BYTES));
                let longest = if transfer_log2 == 5 {
                    128 << 10
                } else {
                    piece_bytes
                };
                assert_eq!(loaded.pieces, DISK_BYTES as u64 / longest.min(piece_bytes));
            }
            assert_eq!(served.count(|it| &it.associations), 1, "one for both loads");
            drop(namespace);
            assert_eq!(served.count(|it| &it.shutdowns), 1, "an orderly end");
        }
        world.end();
    });
}

#[test]
fn commands_that_are_answered_in_parts_and_in_any_order_lose_no_byte() {
    const TEST: &str = "nvme::commands_that_are_answered_in_parts_and_in_any_order_lose_no_byte";
    in_netns(TEST, || {
        let world = World::impaired(V4, "loss=1%,reorder=2%,seed=7");
        let served = Served::start(9, |it| {
            it.reverses = true;
            it.part_bytes = 10_000;
        });
        for parameters in ["", "?hdr-digest=1&data-digest=1"] {
            let namespace = served.open(&world, parameters);
            let loader = Loader::new(&world.nic)
                .connections(2)
                .piece_bytes(100 << 10);
            assert_eq!(loads(&loader, &namespace).repeated, 0);
        }
        world.end();
    });
}

#[test]
fn most_bytes_of_long_commands_are_received_at_their_place() {
    const TEST: &str = "nvme::most_bytes_of_long_commands_are_received_at_their_place";
    in_netns(TEST, || {
        let world = World::new(V4);
        let served = Served::start(12, |_| {});
        let namespace = served.open(&world, "");
        loads(&Loader::new(&world.nic).connections(1), &namespace);
        let queues = world.nic.queue_stats();
        let at_once = queues
            .iter()
            .map(|it| it.direct_bytes - it.direct_copied_bytes);
        let at_once: u64 = at_once.sum();
        println!("{at_once} of {DISK_BYTES} bytes were received at their place at once");
        assert!(at_once > DISK_BYTES as u64 / 100 * 98, "{queues:?}");
        world.end();
    });
}

#[test]
fn stored_bytes_arrive_in_capsules_and_on_request() {
    const TEST: &str = "nvme::stored_bytes_arrive_in_capsules_and_on_request";
    in_netns(TEST, || {
        let world = World::far(V4);
        for (block_log2, parameters) in [
            (9, ""),
            (12, "?sq-flow=1"),
            (9, "?hdr-digest=1"),
            (12, "?hdr-digest=1&data-digest=1"),
        ] {
            let served = Served::start(block_log2, |it| {
                it.most_data = 40 << 10;
                it.transfer_bytes = 100 << 10;
            });
            let namespace = served.open(&world, parameters);
            for (piece_bytes, in_capsule) in [(1 << 20, 0), (16 << 10, DISK_BYTES as u64)] {
                let expected = match in_capsule {
                    0 => other_bytes(),
                    _ => pattern(DISK_BYTES),
                };
                let storer = Storer::new(&world.nic)
                    .connections(2)
                    .piece_bytes(piece_bytes);
                let stored = store_all(&storer, &namespace, &expected).expect("it stores");
                assert_eq!((stored.repeated, stored.flushes), (0, 1), "{parameters}");
                assert!(served.disk.bytes() == expected, "{parameters}");
                assert_eq!(served.count(|it| &it.capsule_bytes), in_capsule);
            }
        }
        world.end();
    });
}

#[test]
fn zeros_and_deallocations_are_not_sent_and_durable_writes_need_no_flush() {
    const TEST: &str =
        "nvme::zeros_and_deallocations_are_not_sent_and_durable_writes_need_no_flush";
    in_netns(TEST, || {
        let world = World::new(V4);
        for capsule_bytes in [16 << 10, 0] {
            let served = Served::start(9, |it| it.capsule_bytes = capsule_bytes);
            let namespace = served.open(&world, "");
            let storer = Storer::new(&world.nic);
            let mut expected = pattern(DISK_BYTES);
            let zeroed = storer.write_zeroes(&namespace, &[512..4096], &mut never_cancelled);
            assert_eq!(zeroed.expect("it has them").unsent_bytes, 3584);
            expected[512..4096].fill(0);
            let trimmed = storer.trim(&namespace, &[1 << 20..2 << 20], &mut never_cancelled);
            assert_eq!(trimmed.expect("it has it").unsent_bytes, 1 << 20);
            expected[1 << 20..2 << 20].fill(0);
            assert!(served.disk.bytes() == expected);
            let before = served.count(|it| &it.flushes);
            let durable = storer.durability(Durability::EachWrite);
            store_all(&durable, &namespace, &other_bytes()).expect("it stores");
            assert_eq!(served.count(|it| &it.flushes), before);
            assert!(served.disk.bytes() == other_bytes());
        }
        let served = Served::start(9, |it| it.has_optional_commands = false);
        let namespace = served.open(&world, "");
        let refused = Storer::new(&world.nic).trim(&namespace, &[0..512], &mut never_cancelled);
        let text = told(&refused.unwrap_err());
        assert!(text.contains("has no command Dataset Management"), "{text}");
        world.end();
    });
}

#[test]
fn ranges_obey_the_block_and_the_end_of_the_namespace() {
    const TEST: &str = "nvme::ranges_obey_the_block_and_the_end_of_the_namespace";
    in_netns(TEST, || {
        let world = World::new(V4);
        let served = Served::start(12, |_| {});
        let namespace = served.open(&world, "");
        let memory = memory_for(8192);
        for (range, expected) in [
            (0..512, "multiples of 4096"),
            (0..(DISK_BYTES as u64 + 4096), "the source has"),
        ] {
            let mut take = |_: devmem_transfer::load::Landed<'_>| Ok(());
            let loaded = Loader::new(&world.nic).deliver(
                &namespace,
                &[range],
                &mut take,
                &mut never_cancelled,
            );
            let text = told(&loaded.unwrap_err());
            assert!(text.contains(expected), "{text}");
        }
        for (target, expected) in [
            (512..4608, "multiples of 4096"),
            (
                DISK_BYTES as u64..DISK_BYTES as u64 + 4096,
                "make the export larger",
            ),
        ] {
            let part = store::Part { target, offset: 0 };
            let stored =
                Storer::new(&world.nic).store(&namespace, &memory, &[part], &mut never_cancelled);
            let text = told(&stored.unwrap_err());
            assert!(text.contains(expected), "{text}");
        }
        world.end();
    });
}

#[test]
fn the_subsystems_of_a_host_are_listed_with_their_namespaces() {
    const TEST: &str = "nvme::the_subsystems_of_a_host_are_listed_with_their_namespaces";
    in_netns(TEST, || {
        let world = World::new(V4);
        let second = Arc::new(Disk::in_memory(vec![0; 1 << 20], 12));
        second.set_read_only(true);
        let served = Served::start(9, |it| it.disks.push(second));
        let url = format!("nvme://{}:{}", V4.host, served.target.port());
        let mut never_cancelled = || ControlFlow::Continue(());
        let listed = NvmeNamespace::list(&world.nic, &url.parse().unwrap(), &mut never_cancelled);
        let listed = listed.expect("it answers");
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].url, served.url(""));
        let namespaces = listed[0].namespaces.as_ref().expect("they are known");
        let facts: Vec<_> = namespaces
            .iter()
            .map(|it| (it.nsid, it.bytes, it.block_bytes, it.is_read_only))
            .collect();
        let sizes = [Some(DISK_BYTES as u64), Some(1 << 20)];
        assert_eq!(
            facts,
            [
                (1, sizes[0], Some(512), false),
                (2, sizes[1], Some(4096), true)
            ]
        );
        world.end();
    });
}
