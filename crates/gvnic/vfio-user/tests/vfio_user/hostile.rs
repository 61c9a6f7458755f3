//! Faulty and hostile clients.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use rustix::fs::{
    MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fcntl_setfl, ftruncate,
    memfd_create,
};
use vfio_user::{Command, Disconnect, DmaError, Event, MapError, ProtocolViolation, Session};

const MAP_RW: u32 = 3;
const ASSIGN: u32 = 0x24;

/// Returns the violation for which the client was disconnected.
#[track_caller]
fn last_violation(bench: &mut Bench) -> ProtocolViolation {
    let events = bench.turn();
    match events.into_iter().next() {
        Some(Event::Left(Disconnect::ProtocolViolation(violation))) => violation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_before_the_version_and_a_second_version_are_breaches() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    client.send(GET_INFO, 0, &[0; 16], &[]);
    let violation = last_violation(&mut bench);
    assert_eq!(
        violation,
        ProtocolViolation::Order {
            command: Command::GET_INFO
        }
    );
    assert_eq!(client.receive().unwrap().errno, EINVAL);
    assert!(client.is_closed());

    let mut client = bench.client();
    client.send(VERSION, 0, &version_body(), &[]);
    let violation = last_violation(&mut bench);
    assert_eq!(
        violation,
        ProtocolViolation::Order {
            command: Command::VERSION
        }
    );
    assert_eq!(bench.server.stats().disconnected_clients, 2);
    // The next client is accepted.
    bench.client();
}

#[test]
fn another_major_version_and_a_posted_version_are_refused() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    client.send(VERSION, 0, &[1, 0, 0, 0], &[]);
    assert_eq!(
        last_violation(&mut bench),
        ProtocolViolation::Version { major: 1, minor: 0 }
    );
    let mut client = bench.connect();
    client.send(VERSION, POSTED, &version_body(), &[]);
    assert_eq!(
        last_violation(&mut bench),
        ProtocolViolation::Order {
            command: Command::VERSION
        }
    );
    let mut client = bench.connect();
    client.send(VERSION, 0, &[0, 0, 0, 0, b'{'], &[]);
    assert!(matches!(
        last_violation(&mut bench),
        ProtocolViolation::Version { .. }
    ));
    // The JSON may be missing: the server does not need it.
    let mut client = bench.connect();
    client.send(VERSION, 0, &[0; 4], &[]);
    assert!(bench.turn().is_empty());
}

#[test]
fn an_invalid_message_size_disconnects_the_client() {
    for size in [0u32, 15, 65_569, u32::MAX] {
        let mut bench = Bench::new();
        let mut client = bench.client();
        let mut bytes = message(1, GET_INFO, 0, &[]);
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        client.send_raw(&bytes, &[]);
        assert_eq!(last_violation(&mut bench), ProtocolViolation::Size { size });
    }
}

#[test]
fn a_reply_without_a_request_disconnects_the_client() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    client.send(REGION_READ, 1, &[], &[]);
    assert_eq!(
        last_violation(&mut bench),
        ProtocolViolation::NoRequest { flags: 1 }
    );
}

#[test]
fn a_message_that_arrives_byte_by_byte_is_executed() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    for byte in message(9, REGION_WRITE, 0, &access(0, 0, 4, &[1, 2, 3, 4])) {
        assert!(client.receive().is_none());
        client.write_some(&[byte]);
        assert!(bench.turn().is_empty());
    }
    assert_eq!(client.receive().unwrap().errno, 0);
    assert_eq!(bench.device.memory[..4], [1, 2, 3, 4]);
}

#[test]
fn an_incomplete_message_is_not_executed() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let bytes = message(9, REGION_WRITE, 0, &access(0, 0, 4, &[1, 2, 3, 4]));
    client.write_some(&bytes[..bytes.len() - 1]);
    bench.turn();
    drop(client);
    assert!(matches!(
        bench.turn()[..],
        [Event::Left(Disconnect::Truncated)]
    ));
    assert_eq!(bench.device.memory[0], 0);
}

#[test]
fn a_body_that_is_too_short_is_einval_for_every_command() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let commands = [
        DMA_MAP,
        DMA_UNMAP,
        GET_INFO,
        GET_REGION_INFO,
        GET_IRQ_INFO,
        SET_IRQS,
        REGION_READ,
        REGION_WRITE,
    ];
    for command in commands {
        assert_eq!(bench.ask(&mut client, command, &[0; 15], &[]).errno, EINVAL);
    }
    for unknown in [0, 6, 11, 12, 14, 15, u16::MAX] {
        assert_eq!(
            bench.ask(&mut client, unknown, &[0; 64], &[]).errno,
            EOPNOTSUPP
        );
    }
}

#[test]
fn accesses_outside_of_a_region_or_longer_than_their_data_are_einval() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let wrong = [
        access(0, 4096, 1, &[]),
        access(0, 4093, 4, &[0; 4]),
        access(0, u64::MAX, 8, &[0; 8]),
        access(0, 0, 0, &[]),
        access(3, 0, 4, &[0; 4]),
        access(9, 0, 4, &[0; 4]),
        access(u32::MAX, 0, 4, &[0; 4]),
        access(0, 0, u32::MAX, &[]),
    ];
    for body in wrong {
        for command in [REGION_READ, REGION_WRITE] {
            assert_eq!(bench.ask(&mut client, command, &body, &[]).errno, EINVAL);
        }
    }
    let short = access(0, 0, 8, &[0; 7]);
    assert_eq!(
        bench.ask(&mut client, REGION_WRITE, &short, &[]).errno,
        EINVAL
    );
    assert_eq!(bench.device.memory, [0; 4096]);
}

#[test]
fn windows_that_overlap_wrap_around_or_are_not_whole_pages_are_refused() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(0x10_000);
    let fd = [memory.as_fd()];
    bench.ask_ok(
        &mut client,
        DMA_MAP,
        &dma_map(MAP_RW, 0, 0x4000, 0x2000),
        &fd,
    );
    let wrong = [
        (dma_map(MAP_RW, 0, 0x4000, 0x2000), EEXIST),
        (dma_map(MAP_RW, 0, 0x3000, 0x2000), EEXIST),
        (dma_map(MAP_RW, 0, 0x5000, 0x1000), EEXIST),
        (dma_map(MAP_RW, 0, 0x3000, 0x8000), EEXIST),
        (dma_map(MAP_RW, 0, 0x8000, 0), EINVAL),
        (dma_map(MAP_RW, 0, 0x8001, 0x1000), EINVAL),
        (dma_map(MAP_RW, 0, 0x8000, 0x1001), EINVAL),
        (dma_map(MAP_RW, 1, 0x8000, 0x1000), EINVAL),
        (dma_map(MAP_RW, 0, u64::MAX - 0xfff, 0x1000), EINVAL),
        (dma_map(0, 0, 0x8000, 0x1000), EINVAL),
        (dma_map(7, 0, 0x8000, 0x1000), EINVAL),
        // Past the end of the file.
        (dma_map(MAP_RW, 0x10_000, 0x8000, 0x1000), EINVAL),
        (dma_map(MAP_RW, u64::MAX - 0xfff, 0x8000, 0x1000), EINVAL),
        (dma_map(MAP_RW, 0, 0x8000, 0x11_000), EINVAL),
    ];
    for (body, errno) in wrong {
        assert_eq!(
            bench.ask(&mut client, DMA_MAP, &body, &fd).errno,
            errno,
            "{body:?}"
        );
    }
    // Without a file, with more bytes than the address space has.
    let huge = dma_map(MAP_RW, 0, 1 << 45, 1 << 45);
    assert_eq!(bench.ask(&mut client, DMA_MAP, &huge, &[]).errno, ENOSPC);
    assert_eq!(bench.server.bus().dma.len(), 1);

    let split = [
        dma_unmap(0, 0x5000, 0x1000),
        dma_unmap(0, 0x4000, 0x1000),
        dma_unmap(0, 0x3000, 0x2000),
    ];
    for body in split {
        assert_eq!(bench.ask(&mut client, DMA_UNMAP, &body, &[]).errno, EINVAL);
    }
    assert_eq!(
        bench
            .ask(&mut client, DMA_UNMAP, &dma_unmap(2, 0, 1), &[])
            .errno,
        EINVAL
    );
    assert_eq!(
        bench
            .ask(&mut client, DMA_UNMAP, &dma_unmap(1, 0x4000, 0x2000), &[])
            .errno,
        EOPNOTSUPP
    );
    // Unmapping more than the window is allowed, and so is unmapping where there is none.
    bench.ask_ok(&mut client, DMA_UNMAP, &dma_unmap(0, 0, 0x10_000), &[]);
    bench.ask_ok(&mut client, DMA_UNMAP, &dma_unmap(0, 0, 0x10_000), &[]);
    assert!(bench.server.bus().dma.is_empty());
    assert_eq!(bench.server.bus().dma.total_bytes(), 0);
}

#[test]
fn the_number_of_windows_is_limited() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    for n in 0..1024u64 {
        bench.ask_ok(
            &mut client,
            DMA_MAP,
            &dma_map(MAP_RW, 0, n << 12, 0x1000),
            &[],
        );
    }
    let one_more = dma_map(MAP_RW, 0, 1024 << 12, 0x1000);
    assert_eq!(
        bench.ask(&mut client, DMA_MAP, &one_more, &[]).errno,
        ENOSPC
    );
}

#[test]
fn a_file_that_the_client_could_shrink_is_refused() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let map = dma_map(MAP_RW, 0, 0, 0x1000);
    let memory = unsealed_memory(0x1000);
    let refused = bench.ask(&mut client, DMA_MAP, &map, &[memory.as_fd()]);
    assert_eq!(refused.errno, EINVAL);
    assert!(bench.server.bus().dma.is_empty());
    let reason = bench.server.stats().session.memory_refused;
    assert_eq!(reason, Some(MapError::MayShrink));
    // A file that cannot shrink is accepted, even if it may grow.
    fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
    bench.ask_ok(&mut client, DMA_MAP, &map, &[memory.as_fd()]);
    ftruncate(&memory, 0).unwrap_err();
    ftruncate(&memory, 0x2000).unwrap();
    let dma = &bench.server.bus().dma;
    assert_eq!(dma.read(0xff8, &mut [0; 8]), Ok(()));
}

#[test]
fn memory_of_huge_pages_is_refused_sealed_or_not() {
    const TEST: &str = "memory_of_huge_pages_is_refused_sealed_or_not";
    let mut bench = Bench::new();
    let mut client = bench.client();
    for (seals, errno) in [
        (SealFlags::empty(), EINVAL),
        (SealFlags::SHRINK, EOPNOTSUPP),
    ] {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let made = memfd_create("huge", flags).and_then(|fd| {
            ftruncate(&fd, 2 << 20)?;
            fcntl_add_seals(&fd, seals)?;
            Ok(fd)
        });
        // No page of it is accessed, so the machine needs no free huge pages.
        let Ok(memory) = made else {
            // Not with println, whose output the test harness captures.
            let reason = "this kernel makes no memfd of huge pages";
            writeln!(std::io::stderr(), "SKIP {TEST}: {reason}").unwrap();
            return;
        };
        let map = dma_map(MAP_RW, 0, 0, 2 << 20);
        let reply = bench.ask(&mut client, DMA_MAP, &map, &[memory.as_fd()]);
        assert_eq!(reply.errno, errno);
    }
}

#[test]
fn descriptors_of_other_files_are_refused_as_memory() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let folder = std::fs::File::open("/").unwrap();
    let map = dma_map(1, 0, 0, 0x1000);
    for fd in [
        pipe.as_fd(),
        folder.as_fd(),
        new_eventfd().as_fd(),
        client.stream.try_clone().unwrap().as_fd(),
    ] {
        assert_eq!(bench.ask(&mut client, DMA_MAP, &map, &[fd]).errno, EINVAL);
    }
    // A file on a disk or on FUSE: access to it may block for any time.
    let on_disk = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(
        bench
            .ask(&mut client, DMA_MAP, &map, &[on_disk.as_fd()])
            .errno,
        EINVAL
    );
    let memory = unsealed_memory(0x1000);
    let again = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let read_only = std::fs::File::open(again).unwrap();
    let write = dma_map(MAP_RW, 0, 0, 0x1000);
    assert_eq!(
        bench
            .ask(&mut client, DMA_MAP, &write, &[read_only.as_fd()])
            .errno,
        EINVAL
    );
    assert_eq!(
        bench
            .ask(&mut client, DMA_MAP, &map, &[read_only.as_fd()])
            .errno,
        EINVAL
    );
}

#[test]
fn a_read_only_window_is_not_written_to() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(0x1000);
    bench.ask_ok(
        &mut client,
        DMA_MAP,
        &dma_map(1, 0, 0, 0x1000),
        &[memory.as_fd()],
    );
    let dma = &bench.server.bus().dma;
    assert_eq!(dma.read(0, &mut [0; 8]), Ok(()));
    assert_eq!(
        dma.write(8, &[1; 8]),
        Err(DmaError::Forbidden { address: 8 })
    );
}

#[test]
fn an_access_across_two_windows_succeeds_and_across_a_gap_fails() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(0x3000);
    // The guest's second page is the file's third.
    bench.ask_ok(
        &mut client,
        DMA_MAP,
        &dma_map(MAP_RW, 0, 0, 0x1000),
        &[memory.as_fd()],
    );
    bench.ask_ok(
        &mut client,
        DMA_MAP,
        &dma_map(MAP_RW, 0x2000, 0x1000, 0x1000),
        &[memory.as_fd()],
    );
    let dma = &bench.server.bus().dma;
    dma.write(0xffc, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let mut back = [0; 8];
    dma.read(0xffc, &mut back).unwrap();
    assert_eq!(back, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(peek(&memory, 0x2000)[..4], [5, 6, 7, 8]);
    assert_eq!(
        dma.write(0x1ffc, &[0; 8]),
        Err(DmaError::Unmapped { address: 0x2000 })
    );
}

#[test]
fn too_many_descriptors_are_closed_and_the_request_refused() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let (ours, theirs) = rustix::pipe::pipe().unwrap();
    let flood: Vec<_> = (0..200).map(|_| theirs.as_fd()).collect();
    for fds in [&flood[..], &flood[..17]] {
        let reply = bench.ask(&mut client, SET_IRQS, &set_irqs(ASSIGN, 2, 0, 3), fds);
        assert_eq!(reply.errno, EMFILE);
    }
    // Sixteen descriptors with a message that needs one or none.
    let map = dma_map(MAP_RW, 0, 0, 0x1000);
    assert_eq!(
        bench.ask(&mut client, DMA_MAP, &map, &flood[..16]).errno,
        EINVAL
    );
    bench.ask_ok(&mut client, GET_INFO, &[0; 16], &flood[..16]);
    assert_eq!(bench.server.stats().session.fds_closed, 32);
    // The server has no copy left: the pipe reports its end when this test closes its copy.
    drop(flood);
    drop(theirs);
    assert_eq!(rustix::io::read(&ours, &mut [0; 1]), Ok(0));
}

#[test]
fn descriptors_with_the_version_are_closed_and_counted() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    let fds: Vec<_> = (0..3).map(|_| new_eventfd()).collect();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    client.send(VERSION, 0, &version_body(), &fds);
    bench.turn();
    assert_eq!(client.receive().unwrap().errno, 0);
    assert_eq!(bench.server.stats().session.fds_closed, 3);
}

#[test]
fn descriptors_are_limited_over_all_parts_of_a_message() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let (ours, theirs) = rustix::pipe::pipe().unwrap();
    let ten: Vec<_> = (0..10).map(|_| theirs.as_fd()).collect();
    for byte in message(5, SET_IRQS, 0, &set_irqs(ASSIGN, 2, 0, 3)) {
        client.send_raw(&[byte], &ten);
        bench.turn();
    }
    assert_eq!(client.receive().unwrap().errno, EMFILE);
    drop(ten);
    drop(theirs);
    assert_eq!(rustix::io::read(&ours, &mut [0; 1]), Ok(0));
}

#[test]
fn vectors_that_do_not_exist_and_descriptors_that_do_not_match_are_einval() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let fd = new_eventfd();
    let fd = [fd.as_fd()];
    let wrong = [
        (set_irqs(ASSIGN, 2, 3, 1), &fd[..]),
        (set_irqs(ASSIGN, 2, u32::MAX, 1), &fd[..]),
        (set_irqs(ASSIGN, 2, 0, 2), &fd[..]),
        (set_irqs(ASSIGN, 2, 0, 4), &[]),
        (set_irqs(ASSIGN, 2, u32::MAX, u32::MAX), &[]),
        (set_irqs(ASSIGN, 0, 0, 1), &fd[..]),
        (set_irqs(ASSIGN, 9, 0, 0), &[]),
        (set_irqs(0x21, 2, 0, u32::MAX), &[]),
        (set_irqs(0x22, 2, 0, 3), &[]),
        (set_irqs(0x21, 2, 0, 0), &fd[..]),
        (set_irqs(0x09, 2, 0, 1), &[]),
        (set_irqs(u32::MAX, 2, 0, 1), &[]),
    ];
    for (body, fds) in wrong {
        assert_eq!(
            bench.ask(&mut client, SET_IRQS, &body, fds).errno,
            EINVAL,
            "{body:?}"
        );
    }
}

/// Returns an eventfd with its maximum value: a write would block, unless it is non-blocking.
fn full_eventfd() -> OwnedFd {
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fd
}

fn set_blocking(fd: impl AsFd) {
    let flags = fcntl_getfl(&fd).unwrap();
    fcntl_setfl(&fd, flags - OFlags::NONBLOCK).unwrap();
}

/// Runs `work` in a thread, so that a server that blocks for ever fails the test instead of blocking it.
#[track_caller]
fn without_waiting(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let worker = thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the server waits for its client"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => worker.join().unwrap(),
    }
}

#[test]
fn an_eventfd_that_is_full_does_not_stop_the_device() {
    without_waiting(|| {
        let mut bench = Bench::new();
        let mut client = bench.client();
        let fd = full_eventfd();
        let assign = set_irqs(ASSIGN, 2, 0, 1);
        bench.ask_ok(&mut client, SET_IRQS, &assign, &[fd.as_fd()]);
        for _ in 0..3 {
            bench.ask_ok(&mut client, REGION_WRITE, &access(2, RAISE, 1, &[0]), &[]);
        }
        assert_eq!(times_raised(&fd), u64::MAX);
        assert_eq!(bench.server.bus().irqs.raised(), 3);
    });
}

#[test]
fn a_full_eventfd_that_its_client_makes_blocking_does_not_stop_the_device() {
    without_waiting(|| {
        let mut bench = Bench::new();
        let mut client = bench.client();
        let fd = new_eventfd();
        let assign = set_irqs(ASSIGN, 2, 0, 1);
        bench.ask_ok(&mut client, SET_IRQS, &assign, &[fd.as_fd()]);
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        set_blocking(&fd);
        for _ in 0..3 {
            bench.ask_ok(&mut client, REGION_WRITE, &access(2, RAISE, 1, &[0]), &[]);
        }
        let raise_all = set_irqs(0x21, 2, 0, 3);
        bench.ask_ok(&mut client, SET_IRQS, &raise_all, &[]);
        drop(client);
        assert!(matches!(bench.turn()[..], [Event::Left(Disconnect::Left)]));
        bench.client();
    });
}

#[test]
fn a_client_that_repeatedly_fills_its_eventfd_and_changes_its_flags_does_not_stop_the_device() {
    without_waiting(|| {
        let mut bench = Bench::new();
        let mut client = bench.client();
        let fd = Arc::new(new_eventfd());
        let assign = set_irqs(ASSIGN, 2, 0, 1);
        bench.ask_ok(&mut client, SET_IRQS, &assign, &[fd.as_fd()]);
        let over = Arc::new(AtomicBool::new(false));
        let mischief = thread::spawn({
            let (fd, over) = (Arc::clone(&fd), Arc::clone(&over));
            move || {
                while !over.load(Ordering::Relaxed) {
                    let flags = fcntl_getfl(&*fd).unwrap();
                    fcntl_setfl(&*fd, flags | OFlags::NONBLOCK).unwrap();
                    let _ = rustix::io::write(&*fd, &(u64::MAX - 1).to_ne_bytes());
                    set_blocking(&*fd);
                    thread::yield_now();
                    fcntl_setfl(&*fd, flags | OFlags::NONBLOCK).unwrap();
                    let _ = rustix::io::read(&*fd, &mut [0; 8]);
                }
            }
        });
        for _ in 0..50_000 {
            assert!(bench.server.bus().irqs.raise(0));
        }
        over.store(true, Ordering::Relaxed);
        mischief.join().unwrap();
    });
}

#[test]
fn a_vector_accepts_an_eventfd_and_no_other_file() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let folder = std::fs::File::open("/").unwrap();
    let memory = guest_memory(0x1000);
    let socket = client.stream.try_clone().unwrap();
    let good = new_eventfd();
    let assign = set_irqs(ASSIGN, 2, 0, 2);
    for bad in [
        reader.as_fd(),
        writer.as_fd(),
        folder.as_fd(),
        memory.as_fd(),
        socket.as_fd(),
    ] {
        let reply = bench.ask(&mut client, SET_IRQS, &assign, &[good.as_fd(), bad]);
        assert_eq!(reply.errno, EINVAL);
    }
    assert_eq!(bench.server.stats().session.fds_closed, 10);
    assert!(!bench.server.bus().irqs.raise(0), "all or none");
    assert_eq!(times_raised(&good), 0, "asking what it is raises nothing");
    let semaphore = rustix::event::EventfdFlags::SEMAPHORE | rustix::event::EventfdFlags::NONBLOCK;
    let counting = rustix::event::eventfd(0, semaphore).unwrap();
    let fds = [good.as_fd(), counting.as_fd()];
    bench.ask_ok(&mut client, SET_IRQS, &assign, &fds);
    assert!(bench.server.bus().irqs.raise(0) && bench.server.bus().irqs.raise(1));
    assert_eq!((times_raised(&good), times_raised(&counting)), (1, 1));
}

/// Returns a socket on which close(2) blocks for a minute or longer: it has bytes that its peer does not read, and SO_LINGER.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65_536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(600))).unwrap();
    socket.set_nonblocking(false).unwrap();
    (socket.into(), peer)
}

#[test]
fn descriptors_that_block_in_close_do_not_stop_the_server() {
    without_waiting(|| {
        let mut bench = Bench::new();
        let mut peers = Vec::new();
        let mut give = || {
            let (socket, peer) = lingering();
            peers.push(peer);
            socket
        };
        let mut client = bench.client();
        // With a request that needs none, with one that needs another kind, too many, and without a request.
        let bodies = [
            (GET_INFO, vec![0; 16], 1),
            (SET_IRQS, set_irqs(ASSIGN, 2, 0, 1), 1),
            (DMA_MAP, dma_map(MAP_RW, 0, 0, 0x1000), 1),
            (DMA_MAP, dma_map(MAP_RW, 0, 0, 0x1000), 2),
        ];
        for (command, body, count) in bodies {
            let sockets: Vec<_> = (0..count).map(|_| give()).collect();
            let fds: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            client.send(command, 0, &body, &fds);
            drop(sockets);
            bench.turn();
            client.receive().expect("an answer");
        }
        let socket = give();
        let flood: Vec<_> = (0..200).map(|_| socket.as_fd()).collect();
        client.send(GET_INFO, 0, &[0; 16], &flood);
        drop(flood);
        drop(socket);
        bench.turn();
        assert_eq!(client.receive().unwrap().errno, EMFILE);
        // A refused client, and one that disconnects, each with one in its socket's queue.
        let other = std::os::unix::net::UnixStream::connect(bench.server.path()).unwrap();
        let socket = give();
        let mut other = Client::of(other);
        other.send(GET_INFO, 0, &[0; 16], &[socket.as_fd()]);
        drop(socket);
        assert!(matches!(bench.turn()[..], [Event::Refused]));
        let socket = give();
        for _ in 0..200 {
            client.send(REGION_WRITE, POSTED, &access(0, 0, 1, &[7]), &[]);
        }
        client.send(GET_INFO, 0, &[0; 16], &[socket.as_fd()]);
        drop((socket, client));
        let next = std::os::unix::net::UnixStream::connect(bench.server.path()).unwrap();
        assert!(matches!(bench.turn()[..], [Event::Left(_), Event::Joined]));
        // A client that waits to be accepted when the server ends.
        let socket = give();
        Client::of(next).send(GET_INFO, 0, &[0; 16], &[socket.as_fd()]);
        drop(socket);
        let late = std::os::unix::net::UnixStream::connect(bench.server.path()).unwrap();
        let socket = give();
        Client::of(late).send(GET_INFO, 0, &[0; 16], &[socket.as_fd()]);
        drop(socket);
        drop(bench);
    });
}

#[test]
fn the_server_does_not_change_the_flags_of_an_eventfd() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let assign = set_irqs(ASSIGN, 2, 0, 1);
    bench.ask_ok(&mut client, SET_IRQS, &assign, &[fd.as_fd()]);
    assert!(!fcntl_getfl(&fd).unwrap().contains(OFlags::NONBLOCK));
}

#[test]
fn requests_of_a_client_that_reads_no_replies_are_not_read_and_use_bounded_memory() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let read = message(1, REGION_READ, 0, &access(0, 0, 4096, &[]));
    // Until the client's socket is full of requests: a few hundred kilobytes.
    let mut asked = 0;
    loop {
        bench.turn();
        match client.stream.write(&read) {
            Ok(len) if len == read.len() => asked += 1,
            _ => break,
        }
        assert!(asked < 100_000, "the server goes on for ever");
    }
    // The client reads its replies: all of them arrive, in order.
    let mut answered = 0;
    while answered < asked {
        bench.turn();
        while let Some(reply) = client.receive() {
            assert_eq!(reply.body.len(), 16 + 4096);
            answered += 1;
        }
    }
}

/// Nearly valid requests, and random bytes.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let small = prop_oneof![Just(0u64), Just(0x1000), Just(0x2000), any::<u64>()];
    let body = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        (0u32..8, small.clone(), small.clone(), small.clone())
            .prop_map(|(flags, offset, address, size)| dma_map(flags, offset, address, size)),
        (0u32..4, small.clone(), small.clone())
            .prop_map(|(flags, address, size)| dma_unmap(flags, address, size)),
        (
            0u32..10,
            small,
            0u32..0x2000,
            prop::collection::vec(any::<u8>(), 0..24)
        )
            .prop_map(|(region, offset, count, data)| access(region, offset, count, &data)),
        (
            prop_oneof![Just(0x21u32), Just(0x22), Just(0x24), any::<u32>()],
            0u32..5,
            0u32..5,
            0u32..5
        )
            .prop_map(|(flags, index, start, count)| set_irqs(flags, index, start, count)),
    ];
    (
        any::<u16>(),
        0u16..16,
        prop_oneof![9 => Just(0u32), 3 => Just(POSTED), 1 => any::<u32>()],
        body,
    )
        .prop_map(|(id, command, flags, body)| message(id, command, flags, &body))
}

proptest! {
    #[test]
    fn no_message_panics_the_session_and_every_reply_is_complete(messages in prop::collection::vec(any_message(), 0..40)) {
        let mut bench = Bench::new();
        let mut session = Session::default();
        let mut out = Vec::new();
        let mut bytes = message(0, VERSION, 0, &version_body());
        bytes.extend(messages.concat());
        let _ = session.on_bytes(&mut bench.device, bench.server.bus(), &bytes, &mut out);
        let mut rest = &out[..];
        while !rest.is_empty() {
            let size = usize::try_from(u32_at(rest, 4)).unwrap();
            prop_assert!((16..=rest.len()).contains(&size));
            rest = &rest[size..];
        }
        let dma = &bench.server.bus().dma;
        prop_assert!(dma.len() <= messages.len());
    }
}
