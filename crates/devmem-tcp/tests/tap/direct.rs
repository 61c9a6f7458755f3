//! Bytes that are received where the program wants them, from sockets of the kernel, several at once.

use std::io::Write;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};

use devmem_linux::test_util::in_netns;
use devmem_tcp::{BoundTarget, Dmabuf, Netdev, RxBatch, Stream};

use crate::packet;
use crate::peer::{Addresses, Host, PATIENCE, V4, V6};
use crate::sender::{expected, first_wrong};

const CONNECTIONS: usize = 4;
/// Bytes of each connection: many messages, none of which is a multiple of a packet.
const BYTES: usize = 6 << 20;
const MESSAGE: usize = 300_007;
/// Distance of the connections' areas in the target, and of their positions in the pattern.
const AREA: usize = 8 << 20;

/// Receives the stream of one connection in messages, each at its place.
fn receive(stream: &mut Stream, target: &BoundTarget, area: usize) {
    let (mut batch, mut done) = (RxBatch::with_capacity(256), 0);
    while done < BYTES {
        let end = BYTES.min(done + MESSAGE);
        let place = area + done..area + end;
        // Two ranges, side by side.
        let middle = (place.start + place.end) / 2;
        let halves = [place.start..middle, middle..place.end];
        stream.place_next(target, &halves).expect("it is inside");
        while done < end {
            let received = stream.recv_at_most(&mut batch, end - done).expect("alive");
            assert!(received > 0, "the stream ended at {done}");
            let gathered = batch.gather_into(target.memory(), area + done);
            assert_eq!(gathered.expect("it fits"), received);
            done += received;
        }
        // Packets that are read now and belong to others must not change what was received.
        let last = target
            .memory()
            .slice(area + end.saturating_sub(MESSAGE)..area + end);
        let position = area + end.saturating_sub(MESSAGE);
        assert_eq!(first_wrong(&last.to_vec(), position), None);
    }
    assert_eq!(stream.recv(&mut batch).expect("alive"), 0, "the end");
}

fn receive_all(netdev: &Netdev, (_, ours, _): Addresses) {
    let local = SocketAddr::new(ours.parse::<IpAddr>().expect("an address"), 5201);
    let setup = netdev.plan_receive(local).apply().expect("applied");
    let memory = Dmabuf::anonymous(16 << 20).expect("memory");
    let rx = netdev.bind_rx(&memory, setup.queues()).expect("bound");
    let place = Dmabuf::anonymous(CONNECTIONS * AREA).expect("memory");
    let target = netdev.bind_target(&place).expect("bound");
    let listener = netdev.listen(local).expect("the port is free");
    std::thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let theirs = scope.spawn(move || TcpStream::connect(local).expect("it listens"));
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut theirs = theirs.join().expect("it does not panic");
            stream.set_timeout(Some(PATIENCE));
            let (target, area) = (&target, number * AREA);
            scope.spawn(move || {
                theirs
                    .write_all(&expected(area, BYTES))
                    .expect("it is read");
                theirs.shutdown(Shutdown::Write).expect("open");
            });
            scope.spawn(move || receive(&mut stream, target, area));
        }
    });
    for area in (0..CONNECTIONS).map(|number| number * AREA) {
        let bytes = place.slice(area..area + BYTES).to_vec();
        assert_eq!(first_wrong(&bytes, area), None);
        let behind = place.slice(area + BYTES..area + AREA).to_vec();
        assert!(behind.iter().all(|byte| *byte == 0), "behind the range");
    }
    let stats = netdev.queue_stats();
    let direct: u64 = stats.iter().map(|queue| queue.direct_bytes).sum();
    let copied: u64 = stats.iter().map(|queue| queue.direct_copied_bytes).sum();
    assert!(direct > copied, "{direct} bytes, {copied} of them copied");
    drop(target);
    let net_iovs = rx.unbind().net_iovs();
    assert_eq!(net_iovs.home, net_iovs.total);
}

#[test]
fn messages_from_a_tap_are_received_at_their_place() {
    in_netns(
        "direct::messages_from_a_tap_are_received_at_their_place",
        || {
            for addresses in [V4, V6] {
                for mtu in [1500, 9000] {
                    let (_host, nic) = Host::with_nic(addresses, |builder| builder.mtu(mtu));
                    receive_all(&nic.netdev, addresses);
                }
            }
        },
    );
}

#[test]
fn messages_from_a_packet_socket_are_received_at_their_place() {
    in_netns(
        "direct::messages_from_a_packet_socket_are_received_at_their_place",
        || {
            let _pair = packet::veth(V4, 1500);
            receive_all(&packet::netdev(V4), V4);
        },
    );
}
