//! The conversation with a client that sends the messages of QEMU 11.1.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

use crate::common::*;
use vfio_user::{Disconnect, Event, Server};

const MAP_RW: u32 = 3;
const ASSIGN: u32 = 0x24;
const DISABLE_ALL: u32 = 0x21;

#[test]
fn the_version_reply_has_the_capabilities_of_the_server() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    let body = bench.ask_ok(&mut client, VERSION, &version_body(), &[]);
    assert_eq!(body[..4], [0; 4], "version 0.0");
    let json = std::str::from_utf8(&body[4..]).unwrap();
    assert_eq!(
        json,
        "{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":65536,\
         \"max_dma_maps\":1024,\"pgsizes\":4096}}\0"
    );
}

#[test]
fn device_regions_and_interrupts_are_described() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let info = bench.ask_ok(&mut client, GET_INFO, &[0; 16], &[]);
    let fields: Vec<u32> = (0..4).map(|n| u32_at(&info, 4 * n)).collect();
    assert_eq!(fields, [16, 3, 9, 5]);
    for (index, size) in [4096, 4096, 4096, 0, 0, 0, 0, 256, 0]
        .into_iter()
        .enumerate()
    {
        let index = u32::try_from(index).unwrap();
        let info = bench.ask_ok(&mut client, GET_REGION_INFO, &region_info(index), &[]);
        let flags = if size > 0 { 3 } else { 0 };
        assert_eq!(u32_at(&info, 4), flags, "region {index}");
        assert_eq!(u32_at(&info, 16), size);
    }
    let ask = |index| set_irqs(0, index, 0, 0)[..16].to_vec();
    for (index, count) in [(0, 0), (1, 0), (2, u32::from(VECTORS)), (3, 0), (4, 0)] {
        let info = bench.ask_ok(&mut client, GET_IRQ_INFO, &ask(index), &[]);
        assert_eq!((u32_at(&info, 8), u32_at(&info, 12)), (index, count));
    }
    for (command, body) in [(GET_REGION_INFO, region_info(9)), (GET_IRQ_INFO, ask(5))] {
        assert_eq!(bench.ask(&mut client, command, &body, &[]).errno, EINVAL);
    }
}

#[test]
fn posted_writes_are_executed_in_order_and_not_answered() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    for value in [1u8, 2, 3] {
        client.send(REGION_WRITE, POSTED, &access(0, 8, 1, &[value]), &[]);
    }
    let reply = bench.ask_ok(&mut client, REGION_READ, &access(0, 8, 1, &[]), &[]);
    assert_eq!(reply[16..], [3]);
    assert_eq!(bench.server.stats().session.posted_writes, 3);
    // Even one that fails is not answered.
    client.send(REGION_WRITE, POSTED, &access(0, 5000, 1, &[1]), &[]);
    bench.turn();
    assert!(client.receive().is_none());
    assert_eq!(bench.server.stats().session.refused, 1);
}

#[test]
fn the_reply_to_a_write_is_its_header() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let reply = bench.ask_ok(
        &mut client,
        REGION_WRITE,
        &access(0, 16, 4, &[1, 2, 3, 4]),
        &[],
    );
    assert_eq!(reply, access(0, 16, 4, &[]));
    assert_eq!(bench.device.memory[16..20], [1, 2, 3, 4]);
}

#[test]
fn the_device_reaches_guest_memory_through_windows() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(3 << 20);
    // QEMU maps a machine's memory so: parts of one file around a hole.
    for (offset, address, size) in [(0, 0, 0xa_0000), (0x10_0000, 0x10_0000, 0x20_0000)] {
        let map = dma_map(MAP_RW, offset, address, size);
        bench.ask_ok(&mut client, DMA_MAP, &map, &[memory.as_fd()]);
    }
    poke(&memory, 0x1_0010, &[1, 2, 3, 4, 5, 6, 7, 0xff]);
    let bump = |address: u64| access(2, BUMP, 8, &address.to_le_bytes());
    bench.ask_ok(&mut client, REGION_WRITE, &bump(0x1_0010), &[]);
    assert_eq!(peek(&memory, 0x1_0018), [2, 3, 4, 5, 6, 7, 8, 0]);
    bench.ask_ok(&mut client, REGION_WRITE, &bump(0x2f_fff0), &[]);
    assert_eq!(bench.device.failed_dma, 0);
    for outside in [0xa_0000, 0x30_0000, 0x2f_fff8, u64::MAX] {
        bench.ask_ok(&mut client, REGION_WRITE, &bump(outside), &[]);
    }
    assert_eq!(bench.device.failed_dma, 4);

    let unmap = dma_unmap(0, 0, 0xa_0000);
    assert_eq!(bench.ask_ok(&mut client, DMA_UNMAP, &unmap, &[]), unmap);
    bench.ask_ok(&mut client, REGION_WRITE, &bump(0x1_0010), &[]);
    assert_eq!(bench.device.failed_dma, 5);
    bench.ask_ok(&mut client, DMA_UNMAP, &dma_unmap(2, 0, 0), &[]);
    assert!(bench.server.bus().dma.is_empty());
}

#[test]
fn memory_without_a_descriptor_is_accepted_and_cannot_be_accessed() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    bench.ask_ok(&mut client, DMA_MAP, &dma_map(1, 0, 0xc_0000, 0x1000), &[]);
    assert_eq!(bench.server.stats().session.windows_without_fd, 1);
    let dma = &bench.server.bus().dma;
    assert!(dma.total_bytes() > dma.reachable_bytes());
    let bump = access(2, BUMP, 8, &0xc_0000u64.to_le_bytes());
    bench.ask_ok(&mut client, REGION_WRITE, &bump, &[]);
    assert_eq!(bench.device.failed_dma, 1);
    bench.ask_ok(&mut client, DMA_UNMAP, &dma_unmap(0, 0xc_0000, 0x1000), &[]);
}

#[test]
fn vectors_are_assigned_one_by_one_and_reassigned_while_in_use() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let fds: Vec<_> = (0..VECTORS).map(|_| new_eventfd()).collect();
    for (vector, fd) in (0..).zip(&fds) {
        bench.ask_ok(
            &mut client,
            SET_IRQS,
            &set_irqs(ASSIGN, 2, vector, 1),
            &[fd.as_fd()],
        );
    }
    let raise = |vector: u8| access(2, RAISE, 1, &[vector]);
    for vector in [0, 2, 2] {
        bench.ask_ok(&mut client, REGION_WRITE, &raise(vector), &[]);
    }
    let counts: Vec<_> = fds.iter().map(times_raised).collect();
    assert_eq!(counts, [1, 0, 2]);

    // The interrupt moves to another processor: a new descriptor for a vector in use.
    let moved = new_eventfd();
    bench.ask_ok(
        &mut client,
        SET_IRQS,
        &set_irqs(ASSIGN, 2, 2, 1),
        &[moved.as_fd()],
    );
    bench.ask_ok(&mut client, REGION_WRITE, &raise(2), &[]);
    assert_eq!((times_raised(&fds[2]), times_raised(&moved)), (0, 1));

    // No descriptor: detached.
    bench.ask_ok(&mut client, SET_IRQS, &set_irqs(ASSIGN, 2, 0, 1), &[]);
    bench.ask_ok(&mut client, REGION_WRITE, &raise(0), &[]);
    assert_eq!(times_raised(&fds[0]), 0);
    bench.ask_ok(&mut client, SET_IRQS, &set_irqs(DISABLE_ALL, 2, 0, 0), &[]);
    bench.ask_ok(&mut client, REGION_WRITE, &raise(2), &[]);
    assert_eq!(times_raised(&moved), 0);
    assert_eq!(bench.server.bus().irqs.unheard(), 2);
}

#[test]
fn several_vectors_are_assigned_in_one_message_and_the_client_may_raise_them() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let fds: Vec<_> = (0..VECTORS).map(|_| new_eventfd()).collect();
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    bench.ask_ok(&mut client, SET_IRQS, &set_irqs(ASSIGN, 2, 0, 3), &borrowed);
    bench.ask_ok(&mut client, SET_IRQS, &set_irqs(0x21, 2, 1, 2), &[]);
    let mut some = set_irqs(0x22, 2, 0, 3);
    some.extend_from_slice(&[1, 0, 1]);
    bench.ask_ok(&mut client, SET_IRQS, &some, &[]);
    let counts: Vec<_> = fds.iter().map(times_raised).collect();
    assert_eq!(counts, [1, 1, 2]);
}

#[test]
fn a_reset_resets_the_device_and_keeps_the_windows() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(0x1000);
    bench.ask_ok(
        &mut client,
        DMA_MAP,
        &dma_map(MAP_RW, 0, 0, 0x1000),
        &[memory.as_fd()],
    );
    let before = bench.device.resets;
    bench.ask_ok(&mut client, RESET, &[], &[]);
    assert_eq!(bench.device.resets, before + 1);
    assert_eq!(bench.server.bus().dma.len(), 1);
}

#[test]
fn after_a_client_has_left_its_memory_is_unmapped_and_the_device_is_reset() {
    let mut bench = Bench::new();
    for round in 0..3 {
        let mut client = bench.client();
        assert_eq!(bench.device.memory[0], 0, "round {round}");
        let interrupt = new_eventfd();
        let memory = guest_memory(0x1000);
        let map = dma_map(MAP_RW, 0, 0, 0x1000);
        bench.ask_ok(&mut client, DMA_MAP, &map, &[memory.as_fd()]);
        let assign = set_irqs(ASSIGN, 2, 0, 1);
        bench.ask_ok(&mut client, SET_IRQS, &assign, &[interrupt.as_fd()]);
        assert_eq!(copies(&interrupt), 2, "ours and the server's");
        bench.ask_ok(&mut client, REGION_WRITE, &access(0, 0, 1, &[7]), &[]);
        drop(client);
        assert!(matches!(bench.turn()[..], [Event::Left(Disconnect::Left)]));
        assert!(!bench.server.is_connected());
        assert!(bench.server.bus().dma.is_empty());
        assert!(!bench.server.bus().irqs.raise(0));
        assert_eq!(copies(&interrupt), 1);
    }
    assert_eq!(bench.server.stats().clients, 3);
}

/// Returns the number of descriptors of this process that refer to the same eventfd, by its id in /proc/PID/fdinfo.
fn copies(fd: &impl AsRawFd) -> usize {
    let id = |info: String| {
        let line = info.lines().find(|line| line.starts_with("eventfd-id:"));
        line.map(str::to_owned)
    };
    let of_fd = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap();
    let wanted = id(of_fd).expect("an eventfd");
    let infos = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let texts = infos.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts.filter_map(id).filter(|id| *id == wanted).count()
}

#[test]
fn a_second_client_is_refused_and_the_first_is_not_affected() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let second = std::os::unix::net::UnixStream::connect(bench.server.path()).unwrap();
    assert!(matches!(bench.turn()[..], [Event::Refused]));
    second.set_nonblocking(true).unwrap();
    assert!(Client::of(second).is_closed());
    bench.ask_ok(&mut client, GET_INFO, &[0; 16], &[]);
}

#[test]
fn after_a_client_disconnected_with_unread_messages_the_next_one_is_accepted() {
    let mut bench = Bench::new();
    for messages in 50..250 {
        let mut client = bench.client();
        // From 128 on, more than the server reads in one call.
        for _ in 0..messages {
            client.send(REGION_WRITE, POSTED, &access(0, 0, 1, &[7]), &[]);
        }
        drop(client);
        let next = std::os::unix::net::UnixStream::connect(bench.server.path()).unwrap();
        next.set_nonblocking(true).unwrap();
        let events = bench.turn();
        assert!(
            matches!(events[..], [Event::Left(_), Event::Joined]),
            "{messages} messages: {events:?}"
        );
        drop(next);
        assert!(matches!(bench.turn()[..], [Event::Left(Disconnect::Left)]));
    }
    assert_eq!(bench.server.stats().refused_clients, 0);
}

#[test]
fn a_client_that_reconnects_at_once_is_not_refused_as_a_second_client() {
    const ROUNDS: u64 = 3_000;
    let mut bench = Bench::new();
    let path = bench.server.path().to_owned();
    let clients = std::thread::spawn(move || {
        for _ in 0..ROUNDS {
            let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
            let version = message(1, VERSION, 0, &version_body());
            std::io::Write::write_all(&mut stream, &version).unwrap();
            let mut answer = [0; 16];
            std::io::Read::read_exact(&mut stream, &mut answer).expect("let in");
        }
    });
    let mut left = 0;
    while left < ROUNDS {
        match bench.server.on_ready(&mut bench.device) {
            Some(Event::Left(_)) => left += 1,
            Some(Event::Refused) => break,
            Some(Event::NotAccepted(error)) => panic!("{error}"),
            Some(Event::Joined) | None => {}
        }
    }
    assert_eq!(
        bench.server.stats().refused_clients,
        0,
        "after {left} rounds"
    );
    clients.join().unwrap();
}

#[test]
fn a_connected_client_stays_connected_while_others_are_refused() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    for _ in 0..100 {
        drop(std::os::unix::net::UnixStream::connect(bench.server.path()).unwrap());
        assert!(matches!(bench.turn()[..], [Event::Refused]));
        bench.ask_ok(&mut client, GET_INFO, &[0; 16], &[]);
    }
    assert_eq!(bench.server.stats().refused_clients, 100);
}

#[test]
fn the_socket_of_an_ended_server_is_replaced_and_that_of_a_running_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "std leaves its socket behind");
    let device = Toy::new();
    let server = Server::listen(&path, &device).unwrap();
    let error = Server::listen(&path, &device).unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    assert!(path.exists());
    drop(server);
    assert!(!path.exists());
}

#[test]
fn a_file_that_is_not_a_socket_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic");
    std::fs::write(&path, "precious").unwrap();
    let error = Server::listen(&path, &Toy::new()).unwrap_err();
    assert!(error.to_string().contains("not a socket"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_server_does_not_remove_the_socket_of_its_successor() {
    let device = Toy::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic");
    let first = Server::listen(&path, &device).unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = Server::listen(&path, &device).unwrap();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}
