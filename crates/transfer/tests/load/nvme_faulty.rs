//! NVMe targets that make mistakes, refuse, vanish or are silent.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use devmem_linux::test_util::in_netns;
use devmem_transfer::load::{LoadError, Loader, NvmeNamespace};
use devmem_transfer::store::{self, StoreError, Storer};
use nvme_target::{Disk, Mistake, Mistakes, Status, Subsystem};

use crate::nvme::{DISK_BYTES, NQN, Served, load, load_watched, never_cancelled};
use crate::world::{V4, World, memory_for, pattern, told, whole};

/// Limit of a connection without progress, where that is what is tested: on a busy machine others need longer.
const LIMIT: Duration = Duration::from_millis(300);
/// Far longer than a target needs to notice the end of a connection.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a mistake once, at the third command.
fn with(mistake: Mistake) -> impl FnOnce(&mut Subsystem) {
    move |subsystem| subsystem.mistakes = Mistakes::once([(2, mistake)])
}

fn loader(world: &World) -> Loader {
    Loader::new(&world.nic)
        .connections(2)
        .piece_bytes(256 << 10)
}

/// Returns the limit for a connection whose target makes a mistake.
fn limit_of(mistake: Mistake) -> Duration {
    match mistake {
        Mistake::Silence => LIMIT,
        _ => PATIENCE,
    }
}

/// Mistakes after which nothing that the controller says can be believed: the load ends with this cause.
const FATAL: &[(Mistake, &str)] = &[
    (Mistake::DataForNobody, "data without a command"),
    (Mistake::DataBeyond, "before, behind or twice"),
    (Mistake::DataBefore, "before, behind or twice"),
    (Mistake::DataTwice, "before, behind or twice"),
    (Mistake::DataOverlaps, "before, behind or twice"),
    (
        Mistake::ShortLength,
        "the length of a PDU is not that of its data",
    ),
    (Mistake::NoData, "data are missing"),
    (Mistake::ResponseTwice, "a response without a command"),
    (Mistake::ResponseForNobody, "a response without a command"),
    (
        Mistake::Fails(Status::UNRECOVERED_READ),
        "cannot read its namespace at byte",
    ),
];

#[test]
fn a_read_that_is_answered_wrongly_is_an_error_with_its_cause() {
    const TEST: &str = "nvme_faulty::a_read_that_is_answered_wrongly_is_an_error_with_its_cause";
    in_netns(TEST, || {
        let world = World::new(V4);
        for (mistake, cause) in FATAL {
            let served = Served::start(9, with(*mistake));
            let namespace = served.open(&world, "?sq-flow=1");
            let error = load(&loader(&world).connections(1), &namespace).expect_err(cause);
            let text = told(&error);
            assert!(text.contains(cause), "{mistake:?}: {text}");
        }
        world.end();
    });
}

/// Mistakes of a connection: the load goes on over another one.
const BROKEN: &[(Mistake, &str)] = &[
    (Mistake::DataDigest, "?data-digest=1"),
    (Mistake::HeaderDigest, "?hdr-digest=1"),
    (Mistake::Terminates, ""),
    (Mistake::Closes, ""),
    (Mistake::ClosesInData, ""),
    (Mistake::Silence, ""),
    (Mistake::Fails(Status::ABORTED_QUEUE_DELETED), ""),
];

#[test]
fn a_queue_that_is_lost_in_a_load_is_replaced_and_every_byte_arrives() {
    const TEST: &str =
        "nvme_faulty::a_queue_that_is_lost_in_a_load_is_replaced_and_every_byte_arrives";
    in_netns(TEST, || {
        let world = World::far(V4);
        for (mistake, parameters) in BROKEN {
            let served = Served::start(12, with(*mistake));
            let namespace = served.open(&world, parameters);
            let loader = loader(&world).idle_limit(limit_of(*mistake));
            let (loaded, bytes) = load(&loader, &namespace).expect("it goes on");
            assert!(loaded.broken >= 1, "{mistake:?}: {loaded:?}");
            assert!(loaded.repeated >= 1, "{mistake:?}: {loaded:?}");
            assert!(bytes == pattern(DISK_BYTES), "{mistake:?}");
        }
        world.end();
    });
}

#[test]
fn a_beginning_that_makes_no_sense_is_an_error_with_its_cause() {
    const TEST: &str = "nvme_faulty::a_beginning_that_makes_no_sense_is_an_error_with_its_cause";
    in_netns(TEST, || {
        let world = World::new(V4);
        for (mistake, cause) in [
            (Mistake::OtherVersion, "another version"),
            (Mistake::Alignment, "to be aligned"),
            (Mistake::LittleData, "fewer than 4096"),
            (Mistake::NoHandshake, "is not the answer to the first"),
            (Mistake::Failed, "has a fatal error (CSTS.CFS)"),
            (Mistake::ShortPage, "data are missing"),
        ] {
            let served = Served::start(9, |it| it.mistakes = Mistakes::once([(0, mistake)]));
            let opened = NvmeNamespace::open(&world.nic, served.url(""));
            let text = told(&opened.expect_err(cause));
            assert!(text.contains(cause), "{mistake:?}: {text}");
        }
        let served = Served::start(9, |it| {
            it.mistakes = Mistakes::once([(0, Mistake::NotReady)]);
        });
        assert_eq!(served.open(&world, "").size(), DISK_BYTES as u64);
        world.end();
    });
}

#[test]
fn a_controller_has_the_time_that_it_says_to_become_ready_and_no_more() {
    const TEST: &str =
        "nvme_faulty::a_controller_has_the_time_that_it_says_to_become_ready_and_no_more";
    in_netns(TEST, || {
        let world = World::new(V4);
        let ready_ms = 1500;
        let served = Served::start(9, |it| {
            it.ready_ms = ready_ms;
            it.mistakes = Mistakes::once([(0, Mistake::NeverReady)]);
        });
        let start = Instant::now();
        let opened = NvmeNamespace::open(&world.nic, served.url(""));
        let text = told(&opened.expect_err("it is never ready"));
        assert!(text.contains("in its time (CAP.TO)"), "{text}");
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(ready_ms), "{waited:?}");
        // The mistake is made once.
        assert_eq!(served.open(&world, "").size(), DISK_BYTES as u64);
        world.end();
    });
}

#[test]
fn what_a_controller_refuses_is_an_error_with_a_remedy() {
    type Change = fn(&mut Subsystem);
    const TEST: &str = "nvme_faulty::what_a_controller_refuses_is_an_error_with_a_remedy";
    let changes: [(Change, &str, &str); 8] = [
        (|it| it.nqn.push('x'), "", "check the name of the subsystem"),
        (
            |it| it.allowed_host = Some("nqn.2014-08.org.example:other".to_owned()),
            "",
            "this host may not connect",
        ),
        (
            |it| it.wants_authentication = true,
            "",
            "in-band authentication is not supported",
        ),
        (
            |it| it.digests.data = false,
            "?data-digest=1",
            "leave hdr-digest= and data-digest= away",
        ),
        (
            |it| it.disks.push(Arc::new(Disk::in_memory(vec![0; 4096], 9))),
            "",
            "has 2 namespaces: 1, 2",
        ),
        (|it| it.disks.clear(), "", "has no active namespace"),
        (
            |it| it.disks = vec![Arc::new(Disk::in_memory(vec![0; 4096], 9).with_metadata(8))],
            "",
            "8 bytes of metadata",
        ),
        (
            |it| it.disks = vec![Arc::new(Disk::in_memory(vec![0; 1 << 20], 17))],
            "",
            "has blocks of 2^17 bytes",
        ),
    ];
    in_netns(TEST, || {
        let world = World::new(V4);
        for (change, parameters, cause) in changes {
            let served = Served::start(9, change);
            let opened = NvmeNamespace::open(&world.nic, served.url(parameters));
            let text = told(&opened.expect_err(cause));
            assert!(text.contains(cause) && text.contains('\n'), "{text}");
        }
        let served = Served::start(9, |_| {});
        for parameters in ["?nsid=7", "?nsid=4294967294"] {
            let opened = NvmeNamespace::open(&world.nic, served.url(parameters));
            let text = told(&opened.expect_err("none"));
            assert!(text.contains("active namespaces with nsid="), "{text}");
        }
        let nameless = format!("nvme://{}:{}", V4.host, served.target.port());
        let opened = NvmeNamespace::open(&world.nic, nameless.parse().unwrap());
        let text = told(&opened.expect_err("no name"));
        assert!(text.contains("names no subsystem"), "{text}");
        world.end();
    });
}

#[test]
fn a_controller_with_flow_control_alone_and_one_queue_is_used_as_it_is() {
    const TEST: &str =
        "nvme_faulty::a_controller_with_flow_control_alone_and_one_queue_is_used_as_it_is";
    in_netns(TEST, || {
        let world = World::far(V4);
        let served = Served::start(9, |it| {
            it.allows_no_flow_control = false;
            it.queues = 1;
            it.queue_entries = 4;
        });
        let namespace = served.open(&world, "");
        let (loaded, bytes) = load(&loader(&world).connections(4), &namespace).expect("it loads");
        assert_eq!((loaded.connections, loaded.repeated), (1, 0));
        assert!(bytes == pattern(DISK_BYTES));
        world.end();
    });
}

#[test]
fn a_target_that_crashes_and_comes_back_in_a_load_loses_no_byte() {
    const TEST: &str = "nvme_faulty::a_target_that_crashes_and_comes_back_in_a_load_loses_no_byte";
    in_netns(TEST, || {
        let world = World::far(V4);
        let served = Served::start(9, |_| {});
        let namespace = served.open(&world, "");
        let mut crashes = 0;
        let loaded = load_watched(&loader(&world), &namespace, &mut |so_far| {
            if so_far.bytes > (crashes + 1) << 20 && crashes < 2 {
                crashes += 1;
                served.target.crash();
            }
            ControlFlow::Continue(())
        });
        let (loaded, bytes) = loaded.expect("it goes on");
        assert!(crashes > 0 && loaded.broken > 0, "{loaded:?}");
        assert!(bytes == pattern(DISK_BYTES));
        drop(namespace);
        world.end();
    });
}

#[test]
fn a_target_that_is_killed_and_started_again_later_loses_no_byte() {
    const TEST: &str = "nvme_faulty::a_target_that_is_killed_and_started_again_later_loses_no_byte";
    in_netns(TEST, || {
        let world = World::far(V4);
        let Served { target, disk } = Served::start(9, |_| {});
        let port = target.port();
        let url = format!("nvme://{}:{port}/{NQN}", V4.host);
        let namespace = NvmeNamespace::open(&world.nic, url.parse().unwrap()).expect("it opens");
        let (mut target, mut started) = (Some(target), None);
        let loaded = load_watched(&loader(&world), &namespace, &mut |so_far| {
            if so_far.bytes > 1 << 20
                && let Some(killed) = target.take()
            {
                killed.crash();
                drop(killed);
                let disk = Arc::clone(&disk);
                started = Some(thread::spawn(move || {
                    // The first attempts to connect again are refused.
                    thread::sleep(LIMIT);
                    Served::again(port, disk)
                }));
            }
            ControlFlow::Continue(())
        });
        let (loaded, bytes) = loaded.expect("it goes on");
        assert!(
            loaded.broken > 0 && bytes == pattern(DISK_BYTES),
            "{loaded:?}"
        );
        drop(namespace);
        let again = started.expect("it was killed").join().expect("it starts");
        assert_eq!(again.count(|it| &it.associations), 1);
        world.end();
    });
}

/// Goes on for so many questions.
fn until(most: usize) -> impl FnMut() -> ControlFlow<()> {
    let mut asked = 0;
    move || {
        asked += 1;
        match asked > most {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Runs `work` to its first, second, fourth ... question, until it ends before that.
fn stop_everywhere<E: std::fmt::Debug>(
    served: &Served,
    mut work: impl FnMut(&mut dyn FnMut() -> ControlFlow<()>) -> Result<(), E>,
) {
    for exponent in 0..20 {
        let done = work(&mut until((1 << exponent) - 1)).is_ok();
        let start = Instant::now();
        while served.count(|it| &it.open) > 0 {
            assert!(start.elapsed() < PATIENCE, "connections stay open");
            thread::sleep(Duration::from_millis(1));
        }
        if done {
            return;
        }
    }
    panic!("it does not end");
}

#[test]
fn what_stops_at_any_time_leaves_nothing_behind() {
    const TEST: &str = "nvme_faulty::what_stops_at_any_time_leaves_nothing_behind";
    in_netns(TEST, || {
        let world = World::far(V4);
        let served = Served::start(9, |_| {});
        let open = |cancel_check: &mut dyn FnMut() -> ControlFlow<()>| {
            NvmeNamespace::open_cancellable(&world.nic, served.url("?data-digest=1"), cancel_check)
        };
        stop_everywhere(&served, |cancel_check| open(cancel_check).map(drop));
        let descriptors = || std::fs::read_dir("/proc/self/fd").map(Iterator::count).ok();
        let before = descriptors();

        let memory = memory_for(DISK_BYTES);
        let part = || whole(&memory, DISK_BYTES);
        let wiped = vec![0xee; DISK_BYTES];
        stop_everywhere(&served, |cancel_check| {
            let namespace = open(cancel_check)?;
            let loaded = loader(&world).load(&namespace, &[part()], &mut |_| cancel_check());
            if loaded.is_ok() {
                assert!(memory.slice(0..DISK_BYTES).to_vec() == pattern(DISK_BYTES));
                return Ok(());
            }
            // What the stopped load has requested arrives meanwhile, and has no place any more.
            memory.fill(0..DISK_BYTES, 0xee).expect("it is mapped");
            let other = load(&loader(&world), &namespace).expect("it loads").1;
            assert!(other == pattern(DISK_BYTES));
            assert!(memory.slice(0..DISK_BYTES).to_vec() == wiped);
            loaded.map(drop)
        });
        let source = others();
        stop_everywhere(&served, |cancel_check| {
            let namespace = open(cancel_check)?;
            memory.copy_in(0, &source).expect("it is mapped");
            let bytes = store::Part {
                target: 0..DISK_BYTES as u64,
                offset: 0,
            };
            let storer = Storer::new(&world.nic).connections(2).piece_bytes(64 << 10);
            let stored = storer.store(&namespace, &memory, &[bytes], &mut |_| cancel_check());
            // The memory is the caller's again.
            memory.fill(0..DISK_BYTES, 0).expect("it is mapped");
            stored.map(drop)
        });
        assert!(served.disk.bytes() == source);
        assert_eq!(descriptors(), before);
        world.end();
    });
}

fn others() -> Vec<u8> {
    pattern(DISK_BYTES + 1).split_off(1)
}

fn store_all(
    world: &World,
    namespace: &NvmeNamespace,
    limit: Duration,
    crash: &mut dyn FnMut(u64),
) -> Result<store::Stored, StoreError> {
    let memory = memory_for(DISK_BYTES);
    memory.copy_in(0, &others()).expect("it is mapped");
    let part = store::Part {
        target: 0..DISK_BYTES as u64,
        offset: 0,
    };
    let storer = Storer::new(&world.nic)
        .connections(2)
        .piece_bytes(64 << 10)
        .window(4)
        .idle_limit(limit);
    storer.store(namespace, &memory, &[part], &mut |so_far| {
        crash(so_far.bytes);
        ControlFlow::Continue(())
    })
}

#[test]
fn a_target_that_crashes_and_loses_its_cache_in_a_store_gets_all_bytes_again() {
    const TEST: &str =
        "nvme_faulty::a_target_that_crashes_and_loses_its_cache_in_a_store_gets_all_bytes_again";
    in_netns(TEST, || {
        let world = World::far(V4);
        let disk = Disk::in_memory(pattern(DISK_BYTES), 9).with_volatile_cache();
        let served = Served::of(disk, |_| {});
        let namespace = served.open(&world, "");
        let mut has_crashed = false;
        let stored = store_all(&world, &namespace, PATIENCE, &mut |bytes| {
            if bytes > 1 << 20 && !has_crashed {
                has_crashed = true;
                served.target.crash();
            }
        });
        let stored = stored.expect("it stores after the crash");
        assert!(has_crashed && stored.broken > 0, "{stored:?}");
        assert!(stored.repeated * (64 << 10) > 1 << 20, "{stored:?}");
        // What is left after another crash was flushed.
        served.target.crash();
        assert!(served.disk.bytes() == others());
        world.end();
    });
}

#[test]
fn a_write_that_is_answered_wrongly_is_an_error_or_written_again() {
    const TEST: &str = "nvme_faulty::a_write_that_is_answered_wrongly_is_an_error_or_written_again";
    in_netns(TEST, || {
        let world = World::far(V4);
        for (mistake, cause) in [
            (
                Mistake::TransferForNobody,
                "a request for data without a command",
            ),
            (Mistake::TransferBeyond, "before, behind or twice"),
            (Mistake::TransferTwice, "before, behind or twice"),
            (Mistake::NoTransfer, "its data were not requested"),
            (
                Mistake::EarlyResponse,
                "a reply before the end of its request",
            ),
            (Mistake::ResponseTwice, "a response without a command"),
            (Mistake::ResponseForNobody, "a response without a command"),
            (Mistake::Fails(Status::WRITE_FAULT), "write fault"),
            (Mistake::Fails(Status::WRITE_PROTECTED), "is read-only"),
            (Mistake::Fails(Status::CAPACITY_EXCEEDED), "make room"),
        ] {
            let served = Served::start(9, with(mistake));
            let namespace = served.open(&world, "");
            let error = store_all(&world, &namespace, PATIENCE, &mut |_| {}).expect_err(cause);
            let text = told(&error);
            assert!(text.contains(cause), "{mistake:?}: {text}");
        }
        for (mistake, parameters) in [
            (Mistake::Closes, ""),
            (Mistake::Terminates, ""),
            (Mistake::Silence, ""),
            (Mistake::TransferTag, ""),
            (Mistake::Fails(Status::ABORTED_QUEUE_DELETED), ""),
            (Mistake::HeaderDigest, "?hdr-digest=1&data-digest=1"),
        ] {
            let served = Served::start(9, with(mistake));
            let namespace = served.open(&world, parameters);
            let limit = limit_of(mistake);
            let stored = store_all(&world, &namespace, limit, &mut |_| {}).expect("it goes on");
            assert!(stored.broken >= 1, "{mistake:?}: {stored:?}");
            assert!(served.disk.bytes() == others(), "{mistake:?}");
        }
        world.end();
    });
}

#[test]
fn a_namespace_that_is_read_only_shrinks_or_vanishes_is_an_error_that_says_so() {
    const TEST: &str =
        "nvme_faulty::a_namespace_that_is_read_only_shrinks_or_vanishes_is_an_error_that_says_so";
    in_netns(TEST, || {
        let world = World::new(V4);
        let served = Served::start(9, |_| {});
        served.disk.set_read_only(true);
        let namespace = served.open(&world, "");
        let refused = store_all(&world, &namespace, PATIENCE, &mut |_| {}).unwrap_err();
        assert!(matches!(refused, StoreError::ReadOnly { .. }), "{refused}");
        served.disk.set_read_only(false);
        let namespace = served.open(&world, "");
        served.disk.set_read_only(true);
        let refused = store_all(&world, &namespace, PATIENCE, &mut |_| {}).unwrap_err();
        assert!(told(&refused).contains("is read-only"), "{refused}");

        served.disk.shrink(1 << 20);
        let text = told(&load(&loader(&world), &namespace).unwrap_err());
        assert!(
            text.contains("has shrunk") || text.contains("had 6291456 bytes"),
            "{text}"
        );
        served.target.crash();
        let changed = load(&loader(&world), &namespace).unwrap_err();
        assert!(matches!(changed, LoadError::Changed { .. }), "{changed}");

        let served = Served::start(9, |_| {});
        let namespace = served.open(&world, "");
        served.disk.set_active(false);
        // Once by the status of a command, and once by what an association that is begun again finds.
        for _ in 0..2 {
            let text = told(&load(&loader(&world), &namespace).unwrap_err());
            assert!(text.contains("has vanished since it was opened"), "{text}");
            served.target.crash();
        }
        world.end();
    });
}

#[test]
fn a_controller_that_is_silent_for_ever_is_given_up() {
    const TEST: &str = "nvme_faulty::a_controller_that_is_silent_for_ever_is_given_up";
    in_netns(TEST, || {
        let world = World::new(V4);
        let silences = (0..100).map(|_| (0, Mistake::Silence));
        let served = Served::start(9, |it| it.mistakes = Mistakes::once(silences));
        let namespace = served.open(&world, "");
        let loader = Loader::new(&world.nic)
            .connections(1)
            .piece_bytes(64 << 10)
            .attempts(2)
            .idle_limit(LIMIT);
        let text = told(&load(&loader, &namespace).unwrap_err());
        assert!(text.contains("gave up after 2 attempts"), "{text}");
        // By default a queue has 32 commands in flight; after a loss, one until something has arrived.
        let start = Instant::now();
        while served.count(|it| &it.open) > 0 {
            assert!(start.elapsed() < PATIENCE, "connections stay open");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(served.count(|it| &it.commands), 32 + 1);
        let storer = Storer::new(&world.nic).attempts(2).idle_limit(LIMIT);
        let refused = storer
            .trim(&namespace, &[0..512], &mut never_cancelled)
            .unwrap_err();
        let text = told(&refused);
        assert!(text.contains("gave up after 2 attempts"), "{text}");
        world.end();
    });
}

#[test]
fn a_cancelled_load_leaves_a_target_that_serves_the_next_one() {
    const TEST: &str = "nvme_faulty::a_cancelled_load_leaves_a_target_that_serves_the_next_one";
    in_netns(TEST, || {
        let world = World::far(V4);
        let served = Served::start(9, |_| {});
        let namespace = served.open(&world, "");
        for _ in 0..3 {
            let cancelled = load_watched(&loader(&world), &namespace, &mut |so_far| match so_far
                .bytes
            {
                0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            });
            assert!(matches!(cancelled, Err(LoadError::Cancelled)));
        }
        let (_, bytes) = load(&loader(&world), &namespace).expect("it loads");
        assert!(bytes == pattern(DISK_BYTES));
        assert!(served.url("").to_string().contains(NQN));
        world.end();
    });
}
