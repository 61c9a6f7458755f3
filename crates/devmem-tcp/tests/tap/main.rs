//! Between device memory and sockets of the kernel, over a TAP, a packet socket or a macvtap interface, each test in a new
//! network namespace.
//!
//! Every byte depends on its position, and every chunk of device memory is written over in the moment its send
//! completes. `DEVMEM_SLOW=1` sends a gigabyte and more in each case that is about size.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a send takes a list of ranges"
)]

mod address;
mod direct;
mod ecn;
mod interactive;
mod lease;
mod macvtap;
mod packet;
mod peer;
mod sender;
mod shards;
mod shared;
mod vulkan;
mod warning;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use devmem_linux::netif::Interface;
use devmem_linux::test_util::in_netns;
use devmem_tcp::{
    Dmabuf, ErrorKind, Netdev, NetdevBuilder, RecvError, RxBatch,
    capture::{Direction, FrameSink},
    tcp::TcpOptions,
};

use peer::{Host, PATIENCE, V4, V6, check_all};
use sender::{TAP, expected, first_wrong};

/// Bytes of a case that is about size.
fn many(chunk: usize) -> usize {
    let scaled = |times: usize, most: usize| (chunk * times).min(most) + 1;
    match std::env::var_os("DEVMEM_SLOW") {
        Some(_) => scaled(1 << 20, 5 << 28),
        None => scaled(3000, 12 << 20),
    }
}

#[test]
fn chunks_of_any_size_arrive_byte_for_byte() {
    in_netns("chunks_of_any_size_arrive_byte_for_byte", || {
        for addresses in [V4, V6] {
            for mtu in [1500, 9000] {
                let (host, nic) = Host::with_nic(addresses, |builder| builder.mtu(mtu));
                for chunk in [1, 3, 4095, 4096, 4097, 65_536, 1 << 20] {
                    let bytes = many(chunk);
                    let receiving = host.receive();
                    nic.send_all(host.connect(&nic), bytes, chunk);
                    assert_eq!(receiving.join().expect("the receiver"), bytes);
                }
            }
        }
    });
}

#[test]
fn super_packets_are_as_long_as_this_kernel_takes_them() {
    in_netns(
        "super_packets_are_as_long_as_this_kernel_takes_them",
        || {
            const BYTES: usize = 16 << 20;
            for addresses in [V4, V6] {
                let (longest, sink) = longest_frame(Direction::Tx);
                let (host, nic) = Host::with_nic(addresses, |builder| builder.capture(sink));
                let kernels = Interface::by_name(TAP).and_then(|mut end| end.facts());
                let is_big = kernels.expect("it is there").gso_ipv4_max_size.is_some();
                let receiving = host.receive();
                nic.send_all(host.connect(&nic), BYTES, 1 << 20);
                assert_eq!(receiving.join().expect("the receiver"), BYTES);
                let longest = longest.load(Ordering::Relaxed);
                // 14 bytes of Ethernet.
                let expected = match is_big {
                    true => 520_000..=14 + 8 * 65_535,
                    false => 64_000..=14 + 65_535,
                };
                assert!(
                    expected.contains(&longest),
                    "{longest} bytes to {addresses:?}"
                );
            }
        },
    );
}

/// Counts the bytes of the longest frame that a NIC sends or receives.
fn longest_frame(way: Direction) -> (Arc<AtomicUsize>, Box<dyn FrameSink>) {
    let longest = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&longest);
    let sink = move |_, of, frame: &[u8]| {
        if of == way {
            seen.fetch_max(frame.len(), Ordering::Relaxed);
        }
    };
    (longest, Box::new(sink))
}

#[test]
fn a_kernel_that_forwards_between_two_taps_passes_super_packets_on_whole() {
    in_netns(
        "a_kernel_that_forwards_between_two_taps_passes_super_packets_on_whole",
        || {
            const BYTES: usize = 16 << 20;
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a namespace of the test");
            let open = |host: u8, sink| {
                let nic = Netdev::builder(format!("tap:dmfwd{host}"))
                    .and_then(|nic| nic.address(&format!("10.78.{host}.2/24")))
                    .and_then(|nic| nic.peer_address(&format!("10.78.{host}.1/24")))
                    .expect("addresses");
                let nic = nic.gateway([10, 78, host, 1].into()).capture(sink);
                nic.open().expect("a TAP")
            };
            let (sent, sink) = longest_frame(Direction::Tx);
            let from = open(1, sink);
            let (received, sink) = longest_frame(Direction::Rx);
            let to = open(2, sink);
            let listener = to.listen("10.78.2.2:5201").expect("a free port");
            let mut stream = from.connect("10.78.2.2:5201").expect("a route");
            let receiving = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).map(|_| bytes)
            });
            let bytes = expected(0, BYTES);
            stream.write_all(&bytes).expect("a peer that reads");
            drop(stream);
            let got = receiving.join().expect("no panic").expect("all bytes");
            assert!(got == bytes, "{} bytes arrived", got.len());
            // 14 bytes of Ethernet.
            let legacy = 64_000..=14 + 65_535;
            for longest in [sent, received] {
                let longest = longest.load(Ordering::Relaxed);
                assert!(legacy.contains(&longest), "{longest} bytes");
            }
        },
    );
}

#[test]
fn a_stream_to_ourselves_has_only_packets_that_can_be_received() {
    in_netns(
        "a_stream_to_ourselves_has_only_packets_that_can_be_received",
        || {
            const BYTES: usize = 4 << 20;
            let (_host, nic) = Host::with_nic(V4, |builder| builder);
            let ours = (V4.1, 5201).to_socket_addrs().expect("an address");
            let ours = ours.last().expect("one");
            let listener = nic.netdev.listen(ours).expect("a free port");
            let stream = nic.netdev.connect(ours).expect("it listens");
            let receiving = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                sender::receive_all(&mut stream, &Dmabuf::anonymous(4096).expect("memory"))
            });
            nic.send_all(stream, BYTES, 1 << 20);
            assert_eq!(receiving.join().expect("the receiver"), BYTES);
            let mut drops = nic.netdev.drops();
            // A thread that had to wait for a processor may make its peer send again.
            drops.retain(|(reason, _)| *reason != "tcp_duplicate");
            assert_eq!(drops, []);
        },
    );
}

#[test]
fn a_bad_link_changes_no_byte() {
    in_netns("a_bad_link_changes_no_byte", || {
        for (addresses, impairment, bytes) in [
            (V4, "loss=1%,seed=1", 4_000_000),
            (V6, "loss=5%,seed=2", 1_000_000),
            (V4, "reorder=2%,seed=3", 4_000_000),
            (V6, "dup=2%,seed=4", 4_000_000),
            (V4, "delay=20ms", 4_000_000),
            (V4, "corrupt=1%,seed=5", 2_000_000),
            (
                V6,
                "loss=1%,reorder=1%,dup=1%,delay=2ms,jitter=1ms,seed=6",
                1_000_000,
            ),
        ] {
            let impairment = impairment.parse().expect("an impairment");
            let (host, nic) = Host::with_nic(addresses, |builder| builder.impair(impairment));
            let receiving = host.receive();
            nic.send_all(host.connect(&nic), bytes, 30_000);
            assert_eq!(
                receiving.join().expect("the receiver"),
                bytes,
                "{impairment}"
            );
        }
    });
}

#[test]
fn sixty_four_connections_send_both_ways_at_once() {
    in_netns("sixty_four_connections_send_both_ways_at_once", || {
        send_both_ways(64, |builder| builder);
    });
}

#[test]
fn connections_over_a_tap_with_four_queues_send_both_ways_at_once() {
    in_netns(
        "connections_over_a_tap_with_four_queues_send_both_ways_at_once",
        || {
            send_both_ways(16, |builder| builder.tap_queues(4));
        },
    );
}

/// Sends both ways on `connections` at the same time, over a TAP. Returns the NIC, for its counters.
fn send_both_ways(
    connections: usize,
    change: impl FnOnce(NetdevBuilder) -> NetdevBuilder,
) -> sender::Nic {
    let (host, nic) = Host::with_nic(V4, change);
    both_ways_at_once(connections, &host, &nic);
    nic
}

/// Sends both ways on `connections` of the NIC at the same time.
fn both_ways_at_once(connections: usize, host: &Host, nic: &sender::Nic) {
    const BYTES: usize = 150_000;
    let memory = Dmabuf::anonymous(16 << 20).expect("memory");
    let local = SocketAddr::new(nic.netdev.addresses()[0], 0);
    let setup = nic.netdev.plan_receive(local).apply().expect("set up");
    let rx = nic.netdev.bind_rx(&memory, setup.queues()).expect("bound");
    std::thread::scope(|scope| {
        for _ in 0..connections {
            // One after another, so that the accepted connection is the last one opened.
            let mut ours = host.connect(nic);
            let theirs = host.accept();
            let mut back = theirs.try_clone().expect("a second handle");
            scope.spawn(move || {
                back.write_all(&expected(0, BYTES)).expect("all is read");
                back.shutdown(Shutdown::Write).expect("open");
            });
            scope.spawn(move || assert_eq!(check_all(theirs), BYTES));
            let memory = &memory;
            scope.spawn(move || {
                nic.send(&mut ours, BYTES, 7000);
                ours.shutdown_write().expect("open");
                assert_eq!(sender::receive_all(&mut ours, memory), BYTES);
            });
        }
    });
    let net_iovs = rx.unbind().net_iovs();
    assert_eq!(net_iovs.home, net_iovs.total);
}

#[test]
fn each_side_may_end_its_half_first() {
    in_netns("each_side_may_end_its_half_first", || {
        let (host, nic) = Host::with_nic(V4, |builder| builder);
        let memory = Dmabuf::anonymous(4096).expect("memory");
        // We end ours, and the peer answers afterwards.
        let mut ours = host.connect(&nic);
        let mut theirs = host.accept();
        let answering = std::thread::spawn(move || {
            let mut got = Vec::new();
            theirs.read_to_end(&mut got).expect("our end");
            assert_eq!(got, expected(0, 100_000));
            theirs.write_all(&expected(0, 50_000)).expect("half open");
        });
        nic.send(&mut ours, 100_000, 5000);
        ours.shutdown_write().expect("open");
        assert_eq!(sender::receive_all(&mut ours, &memory), 50_000);
        answering.join().expect("the peer");

        // The peer ends its, and we send afterwards.
        let mut ours = host.connect(&nic);
        let theirs = host.accept();
        theirs.shutdown(Shutdown::Write).expect("open");
        assert_eq!(sender::receive_all(&mut ours, &memory), 0);
        let receiving = std::thread::spawn(move || check_all(theirs));
        nic.send_all(ours, 100_000, 5000);
        assert_eq!(receiving.join().expect("the receiver"), 100_000);
    });
}

#[test]
fn a_reset_in_mid_send_frees_the_memory() {
    in_netns("a_reset_in_mid_send_frees_the_memory", || {
        let (host, nic) = Host::with_nic(V4, |builder| builder);
        let tx = nic.netdev.bind_tx(&nic.ring).expect("bound");
        let mut ours = host.connect(&nic);
        let mut theirs = host.accept();
        let first = ours.send(&tx, &[0..nic.ring.size()]).expect("room");
        theirs.read_exact(&mut [0; 1000]).expect("there is more");
        // Closed with unread bytes: the kernel resets.
        drop(theirs);
        let error = loop {
            match ours.send(&tx, std::slice::from_ref(&(0..nic.ring.size()))) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(!error.kind().is_not_ready(), "{error:?}");
        let completions = ours.completions();
        completions.set_timeout(Some(PATIENCE));
        completions
            .wait(first)
            .expect("what will not be sent is free, too");
        completions.wait_all().expect("all of it");
        assert_eq!(tx.in_flight(), 0);
    });
}

#[test]
fn a_peer_that_never_reads_holds_the_memory_and_gets_it_all_when_it_does() {
    in_netns(
        "a_peer_that_never_reads_holds_the_memory_and_gets_it_all_when_it_does",
        || {
            let (host, nic) = Host::with_nic(V4, |builder| builder);
            let tx = nic.netdev.bind_tx(&nic.ring).expect("bound");
            nic.fill(0);
            let mut ours = host.connect(&nic);
            let theirs = host.accept();
            // Until window and send buffer are full: nothing is taken, and what was taken last is not acknowledged. On a busy machine the
            // first alone may also be true in between.
            ours.set_timeout(Some(Duration::from_millis(300)));
            let mut sent = 0;
            let mut last = None;
            let size = nic.ring.size();
            loop {
                let start = sent % size;
                match ours.send(&tx, std::slice::from_ref(&(start..size))) {
                    Ok(id) => {
                        sent += id.bytes();
                        last = Some(id);
                    }
                    Err(error) if error.kind() == ErrorKind::TimedOut => {
                        let last = last.expect("some was sent");
                        match ours.completions().wait(last) {
                            Ok(_) => {}
                            Err(error) if error.kind() == ErrorKind::TimedOut => break,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            let last = last.expect("some was sent");
            assert!(tx.in_flight() > 0, "after {sent} bytes");
            ours.shutdown_write().expect("open");
            let reading = std::thread::spawn(move || {
                // The ring was sent over and over, as it is.
                let (mut theirs, mut got) = (theirs, Vec::new());
                theirs.read_to_end(&mut got).expect("our end");
                got
            });
            let completions = ours.completions();
            completions.set_timeout(Some(PATIENCE));
            completions.wait(last).expect("it is read now");
            let got = reading.join().expect("the reader");
            assert_eq!(got.len(), sent);
            let wrong = got.chunks(size).find_map(|ring| first_wrong(ring, 0));
            assert_eq!(wrong, None, "the first wrong byte");
            assert_eq!(tx.in_flight(), 0);
        },
    );
}

#[test]
fn a_peer_that_vanishes_ends_by_the_user_timeout() {
    in_netns("a_peer_that_vanishes_ends_by_the_user_timeout", || {
        let (host, nic) = Host::with_nic(V4, |builder| {
            let mut tcp = TcpOptions::default();
            // Longer than a busy machine keeps a thread from its processor.
            tcp.user_timeout = Some(Duration::from_secs(10));
            builder.tcp(tcp)
        });
        let tx = nic.netdev.bind_tx(&nic.ring).expect("bound");
        let mut ours = host.connect(&nic);
        let mut theirs = host.accept();
        let first = ours.send(&tx, &[0..nic.ring.size()]).expect("room");
        theirs.read_exact(&mut [0; 1000]).expect("there is more");
        let mut interface = Interface::by_name(TAP).expect("it is there");
        interface.set_down().expect("this is our namespace");
        ours.set_timeout(Some(PATIENCE));
        let end = ours.recv(&mut RxBatch::with_capacity(4));
        assert!(matches!(end, Err(RecvError::Failed(_))), "{end:?}");
        let completions = ours.completions();
        completions.set_timeout(Some(PATIENCE));
        completions.wait(first).expect("the first send is complete");
        assert_eq!(tx.in_flight(), 0);
        // The kernel's end gets no notification, and reads its memory.
        let _: TcpStream = theirs;
    });
}
