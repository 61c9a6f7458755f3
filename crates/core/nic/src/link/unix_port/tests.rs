//! Which connections become the peer of a port.

use ::wire::{ChecksumState, Offload, TxChecksum};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tempfile::TempDir;

use super::*;

const HELLO: WireHello = WireHello {
    offloads: false,
    mtu: 1500,
    shares_memory: false,
    needs_offloads: false,
};

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// A folder with the socket of a wire; dropping it removes both.
struct WireFolder {
    _file: SocketFile,
    folder: TempDir,
}

impl WireFolder {
    fn socket(&self) -> PathBuf {
        socket_in(&self.folder)
    }
}

fn socket_in(folder: &TempDir) -> PathBuf {
    folder.path().join("wire")
}

/// Returns a port that listens, and the folder of its socket.
fn listen() -> (UnixPort, WireFolder) {
    listen_with(HELLO)
}

fn listen_with(hello: WireHello) -> (UnixPort, WireFolder) {
    let folder = tempfile::tempdir().unwrap();
    let (port, _file) = UnixPort::listen_at(&socket_in(&folder), hello).unwrap();
    (port, WireFolder { _file, folder })
}

fn join(folder: &WireFolder) -> PeerSocket {
    connect_to(&folder.socket(), HELLO, HELLO_LIMIT).unwrap()
}

/// Serves a port and ignores its events.
fn serve(port: &mut UnixPort, now: Instant) {
    port.serve(now, &mut |_| {});
}

fn send_hello(socket: &PeerSocket) {
    send(socket, &HELLO.emit(), SendFlags::NOSIGNAL).unwrap();
}

/// Returns a port that listens, a connection that has become its peer, and the folder of its socket.
fn joined() -> (UnixPort, PeerSocket, WireFolder) {
    let (mut port, folder) = listen();
    let greeting = join(&folder);
    send_hello(&greeting);
    serve(&mut port, at(0));
    (port, greeting, folder)
}

/// Returns the next packet; `None` if there is none, 0 bytes if the connection is closed.
fn next(socket: &PeerSocket) -> Option<Vec<u8>> {
    let mut packet = [0; 64];
    match recv(socket, &mut packet[..], RecvFlags::DONTWAIT) {
        Ok((len, _)) => Some(packet[..len].to_vec()),
        Err(Errno::AGAIN) => None,
        Err(Errno::CONNRESET) => Some(Vec::new()),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_connection_without_a_hello_does_not_block_one_with_a_hello() {
    let (mut port, folder) = listen();
    let silent = join(&folder);
    serve(&mut port, at(0));
    assert!(!port.is_up());
    assert_eq!(next(&silent), None, "it is still open");
    let greeting = join(&folder);
    send_hello(&greeting);
    serve(&mut port, at(1));
    assert!(port.is_up());
    assert_eq!(next(&greeting), Some(HELLO.emit().to_vec()));
    assert_eq!(next(&silent), Some(Vec::new()), "it is closed");
    assert_eq!((port.fds().0.count(), port.next_due()), (1, None));
}

#[test]
fn the_first_connection_with_a_hello_becomes_the_peer_even_if_late() {
    let (mut port, folder) = listen();
    let (first, second) = (join(&folder), join(&folder));
    serve(&mut port, at(0));
    assert_eq!(port.fds().0.count(), 3);
    send_hello(&second);
    serve(&mut port, at(4000));
    assert!(port.is_up());
    assert_eq!(next(&second), Some(HELLO.emit().to_vec()));
    assert_eq!(next(&first), Some(Vec::new()));
}

#[test]
fn a_peer_is_not_replaced_while_it_is_connected() {
    let (mut port, greeting, folder) = joined();
    assert_eq!(next(&greeting), Some(HELLO.emit().to_vec()));
    let others: Vec<_> = (0..3 * MAX_SILENT)
        .map(|n| {
            let other = join(&folder);
            if n % 2 == 0 {
                send_hello(&other);
            }
            serve(&mut port, at(n as u64 * 1000));
            other
        })
        .collect();
    assert!(port.is_up());
    assert_eq!(next(&greeting), None, "it is still connected");
    for other in &others {
        assert_eq!(next(other), Some(Vec::new()), "closed without a hello");
    }
    assert_eq!(port.fds().0.count(), 1);
    drop(greeting);
    let next_one = join(&folder);
    send_hello(&next_one);
    serve(&mut port, at(100_000));
    assert_eq!(next(&next_one), Some(HELLO.emit().to_vec()));
}

#[test]
fn connections_without_a_hello_are_bounded_and_closed_in_time() {
    let (mut port, folder) = listen();
    let crowd: Vec<_> = (0..2 * MAX_SILENT)
        .map(|n| {
            let one = join(&folder);
            serve(&mut port, at(n as u64));
            one
        })
        .collect();
    assert_eq!(port.silent.len(), MAX_SILENT);
    for (n, one) in crowd.iter().enumerate() {
        let expected = (n < MAX_SILENT).then(Vec::new);
        assert_eq!(next(one), expected, "{n}");
    }
    let oldest = at(MAX_SILENT as u64) + HELLO_LIMIT;
    assert_eq!(port.next_due(), Some(oldest));
    serve(&mut port, oldest);
    assert_eq!(port.silent.len(), MAX_SILENT - 1);
    serve(&mut port, oldest + HELLO_LIMIT);
    assert_eq!((port.silent.len(), port.next_due()), (0, None));
    // The hello of a connection is read before that connection is closed to make room for others.
    let greeting = join(&folder);
    send_hello(&greeting);
    let crowd: Vec<_> = (0..BATCH_ENDS - 1).map(|_| join(&folder)).collect();
    serve(&mut port, at(60_000));
    assert!(port.is_up());
    assert_eq!(next(&greeting), Some(HELLO.emit().to_vec()));
    drop(crowd);
}

#[test]
fn the_connecting_end_reconnects_if_the_listener_sends_no_hello() {
    let (mut listening, folder) = listen();
    let mut port = UnixPort::connect(&folder.socket(), HELLO);
    serve(&mut port, at(0));
    assert_eq!(port.next_due(), Some(at(0) + HELLO_LIMIT));
    let ConnectMode::Listen { listener, .. } = &listening.mode else {
        panic!("the port listens")
    };
    let silent = listener.accept(SocketFlags::NONBLOCK).unwrap();
    assert_eq!(
        next(&silent),
        Some(HELLO.emit().to_vec()),
        "it sends its hello first"
    );
    serve(&mut port, at(0) + HELLO_LIMIT);
    assert_eq!(next(&silent), Some(Vec::new()));
    let again = port.next_due().expect("it connects again");
    serve(&mut port, again);
    serve(&mut listening, again);
    serve(&mut port, again);
    assert!(port.is_up() && listening.is_up());
}

#[test]
fn a_refused_end_is_told_once_and_tries_again_later() {
    let needing = WireHello {
        offloads: true,
        needs_offloads: true,
        ..HELLO
    };
    let (mut listening, folder) = listen_with(needing);
    let mut port = UnixPort::connect(&folder.socket(), HELLO);
    let mut events = Vec::new();
    let mut now = at(0);
    for _ in 0..2 {
        port.serve(now, &mut |event| events.push(event));
        serve(&mut listening, now);
        assert!(
            listening
                .take_peer()
                .is_some_and(|(_, theirs)| needing.refuses(theirs))
        );
        port.serve(now, &mut |event| events.push(event));
        assert!(!port.is_up());
        assert_eq!(port.next_due(), Some(now + HELLO_LIMIT));
        now = now + HELLO_LIMIT;
    }
    assert_eq!(events, [UnixPortEvent::Refused]);
}

#[test]
fn closed_connections_and_another_mtu_are_reported_and_nothing_else() {
    let (mut port, folder) = listen();
    let mut events = Vec::new();
    let mut serve = |now| port.serve(now, &mut |event| events.push(event));
    let (silent, stranger) = (join(&folder), join(&folder));
    send(&stranger, b"GET / HTTP/1.1", SendFlags::NOSIGNAL).unwrap();
    serve(at(0));
    serve(at(0) + HELLO_LIMIT);
    let other = WireHello { mtu: 9000, ..HELLO };
    let peer = join(&folder);
    other.send_to(&peer).unwrap();
    serve(at(10_000));
    let one_more = join(&folder);
    serve(at(10_001));
    serve(at(10_002));
    let expected = [
        UnixPortEvent::BadHello,
        UnixPortEvent::NoHello,
        UnixPortEvent::OtherMtu {
            theirs: 9000,
            ours: 1500,
        },
        UnixPortEvent::SecondPeer,
    ];
    assert_eq!(events, expected);
    drop((silent, one_more));
}

#[test]
fn a_packet_arrives_with_its_virtio_net_header() {
    let (mut listening, folder) = listen();
    let mut port = UnixPort::connect(&folder.socket(), HELLO);
    assert_eq!(port.write(VnetHeader::default(), b"early"), Written::Lost);
    for end in [0, 1, 0] {
        match end {
            0 => serve(&mut port, at(0)),
            _ => serve(&mut listening, at(0)),
        }
    }
    let offload = Offload {
        checksum: ChecksumState::Partial(TxChecksum {
            start: 34,
            offset: 16,
        }),
        gso: None,
    };
    let header = VnetHeader::new(offload, b"frame");
    let mut frame = [0; 64];
    for (from, to) in [(0, 1), (1, 0)] {
        let ends = [&mut port, &mut listening];
        assert_eq!(ends[from].write(header, b"frame"), Written::Done);
        assert_eq!(ends[to].read(&mut frame), Some((5, header)));
        assert_eq!(&frame[..5], b"frame");
        assert_eq!(ends[to].read(&mut frame), None);
    }
    drop(listening);
    assert_eq!(port.write(header, b"frame"), Written::Lost);
    assert_eq!(port.read(&mut frame), None);
    assert!(!port.is_up());
}

#[test]
fn what_a_peer_has_sent_before_it_left_is_read_also_if_a_write_failed_before() {
    for writes in [false, true] {
        let (mut port, peer, _folder) = joined();
        // Left unread, as is the hello of the port.
        let header = VnetHeader::default();
        assert_eq!(port.write(header, &[1; 60]), Written::Done);
        for number in 0..3 {
            send(&peer, &[number; 80], SendFlags::NOSIGNAL).unwrap();
        }
        drop(peer);
        if writes {
            assert_eq!(port.write(header, &[2; 60]), Written::Lost);
        }
        let mut frame = [0; 100];
        for number in 0..3 {
            let (len, _) = port.read(&mut frame).expect("it was sent");
            assert_eq!(frame[..len], vec![number; len]);
        }
        assert_eq!(port.read(&mut frame), None);
        assert!(!port.is_up());
    }
}
