//! Who has a seat at a UNIX wire.

use ::wire::{ChecksumState, Offload, TxChecksum};
use rustix::net::{RecvFlags, recv, send};

use super::*;

const HELLO: WireHello = WireHello {
    offloads: false,
    mtu: 1500,
};

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// A port that listens, and its file, which goes with the test.
fn listen(test: &str) -> (UnixPort, SocketPath) {
    let name = format!("unix-port-{}-{test}", std::process::id());
    let path = SocketPath(std::env::temp_dir().join(name));
    let listener = UnixPort::bind(&path.0).unwrap();
    (UnixPort::listen(listener, HELLO), path)
}

struct SocketPath(PathBuf);

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn join(path: &SocketPath) -> OwnedFd {
    connect_to(&path.0, FLAGS).unwrap()
}

/// Tends a port of which nobody is told anything.
fn tend(port: &mut UnixPort, now: Instant) {
    port.tend(now, &mut |_| {});
}

fn say_hello(socket: &OwnedFd) {
    send(socket, &HELLO.emit(), SendFlags::NOSIGNAL).unwrap();
}

/// Returns the next packet that came; `None` if there is none, 0 bytes if the connection was closed.
fn next(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut packet = [0; 64];
    match recv(socket, &mut packet[..], RecvFlags::DONTWAIT) {
        Ok((len, _)) => Some(packet[..len].to_vec()),
        Err(Errno::AGAIN) => None,
        Err(Errno::CONNRESET) => Some(Vec::new()),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_silent_peer_does_not_keep_a_speaking_one_from_the_wire() {
    let (mut port, path) = listen("silent");
    let silent = join(&path);
    tend(&mut port, at(0));
    assert!(!port.is_up());
    assert_eq!(next(&silent), None, "it is waited for");
    let speaking = join(&path);
    say_hello(&speaking);
    tend(&mut port, at(1));
    assert!(port.is_up());
    assert_eq!(next(&speaking), Some(HELLO.emit().to_vec()));
    assert_eq!(next(&silent), Some(Vec::new()), "it is closed");
    assert_eq!((port.fds().0.count(), port.next_due()), (1, None));
}

#[test]
fn a_peer_that_speaks_late_has_the_wire_if_no_other_one_spoke() {
    let (mut port, path) = listen("late");
    let (first, second) = (join(&path), join(&path));
    tend(&mut port, at(0));
    assert_eq!(port.fds().0.count(), 3);
    say_hello(&second);
    tend(&mut port, at(4000));
    assert!(port.is_up());
    assert_eq!(next(&second), Some(HELLO.emit().to_vec()));
    assert_eq!(next(&first), Some(Vec::new()));
}

#[test]
fn a_speaking_peer_is_pushed_out_by_nobody() {
    let (mut port, path) = listen("speaking");
    let speaking = join(&path);
    say_hello(&speaking);
    tend(&mut port, at(0));
    assert_eq!(next(&speaking), Some(HELLO.emit().to_vec()));
    let others: Vec<_> = (0..3 * MAX_SILENT)
        .map(|n| {
            let other = join(&path);
            if n % 2 == 0 {
                say_hello(&other);
            }
            tend(&mut port, at(n as u64 * 1000));
            other
        })
        .collect();
    assert!(port.is_up());
    assert_eq!(next(&speaking), None, "it is still there");
    for other in &others {
        assert_eq!(next(other), Some(Vec::new()), "closed without a hello");
    }
    assert_eq!(port.fds().0.count(), 1);
    drop(speaking);
    let next_one = join(&path);
    say_hello(&next_one);
    tend(&mut port, at(100_000));
    assert_eq!(next(&next_one), Some(HELLO.emit().to_vec()));
}

#[test]
fn silent_peers_are_bounded_and_closed_when_their_time_is_over() {
    let (mut port, path) = listen("bounded");
    let crowd: Vec<_> = (0..2 * MAX_SILENT)
        .map(|n| {
            let one = join(&path);
            tend(&mut port, at(n as u64));
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
    tend(&mut port, oldest);
    assert_eq!(port.silent.len(), MAX_SILENT - 1);
    tend(&mut port, oldest + HELLO_LIMIT);
    assert_eq!((port.silent.len(), port.next_due()), (0, None));
    // A connection that speaks in the same moment as a crowd of silent ones comes is heard before it gives way.
    let speaking = join(&path);
    say_hello(&speaking);
    let crowd: Vec<_> = (0..BATCH_ENDS - 1).map(|_| join(&path)).collect();
    tend(&mut port, at(60_000));
    assert!(port.is_up());
    assert_eq!(next(&speaking), Some(HELLO.emit().to_vec()));
    drop(crowd);
}

#[test]
fn the_connecting_end_leaves_one_that_says_nothing_and_looks_again() {
    let (mut listening, path) = listen("connecting");
    let mut port = UnixPort::connect(&path.0, HELLO);
    tend(&mut port, at(0));
    assert_eq!(port.next_due(), Some(at(0) + HELLO_LIMIT));
    let Way::Listen { listener, .. } = &listening.way else {
        panic!("it listens")
    };
    let silent = accept_with(listener, FLAGS).unwrap();
    assert_eq!(
        next(&silent),
        Some(HELLO.emit().to_vec()),
        "it speaks first"
    );
    tend(&mut port, at(0) + HELLO_LIMIT);
    assert_eq!(next(&silent), Some(Vec::new()));
    let again = port.next_due().expect("it looks again");
    tend(&mut port, again);
    tend(&mut listening, again);
    tend(&mut port, again);
    assert!(port.is_up() && listening.is_up());
}

#[test]
fn what_is_out_of_the_ordinary_is_told_and_nothing_else() {
    let (mut port, path) = listen("told");
    let mut told = Vec::new();
    let mut tend = |now| {
        let mut events = Vec::new();
        port.tend(now, &mut |event| events.push(event));
        told.extend(events);
    };
    let (silent, stranger) = (join(&path), join(&path));
    send(&stranger, b"GET / HTTP/1.1", SendFlags::NOSIGNAL).unwrap();
    tend(at(0));
    tend(at(0) + HELLO_LIMIT);
    let other = WireHello { mtu: 9000, ..HELLO };
    let peer = join(&path);
    other.say(&peer).unwrap();
    tend(at(10_000));
    let one_more = join(&path);
    tend(at(10_001));
    tend(at(10_002));
    let expected = [
        UnixPortEvent::NotAWire,
        UnixPortEvent::NoHello,
        UnixPortEvent::OtherMtu {
            theirs: 9000,
            ours: 1500,
        },
        UnixPortEvent::OneMore,
    ];
    assert_eq!(told, expected);
    drop((silent, one_more));
}

#[test]
fn a_packet_crosses_with_what_its_header_says() {
    let (mut listening, path) = listen("packets");
    let mut port = UnixPort::connect(&path.0, HELLO);
    assert_eq!(port.write(VnetHeader::default(), b"early"), Written::Lost);
    for end in [0, 1, 0] {
        match end {
            0 => tend(&mut port, at(0)),
            _ => tend(&mut listening, at(0)),
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
    assert!(!port.is_up());
}
