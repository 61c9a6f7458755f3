use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::Barrier;
use std::thread;

use super::*;

const PACKETS: ListenOptions = ListenOptions {
    kind: SocketType::SEQPACKET,
    backlog: 16,
    descriptors: Descriptors::Refused,
};
const STREAMS: ListenOptions = ListenOptions {
    kind: SocketType::STREAM,
    backlog: 16,
    descriptors: Descriptors::Refused,
};

/// Leaves the file of a socket whose process has ended.
fn leave_stale(path: &Path) {
    drop(UnixListener::bind(path).unwrap());
    assert!(UnixStream::connect(path).is_err());
}

#[test]
fn of_many_that_start_over_a_stale_socket_exactly_one_listens() {
    const STARTS: usize = 50;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    for round in 0..20 {
        leave_stale(&path);
        let barrier = Barrier::new(STARTS);
        let start = || {
            barrier.wait();
            SocketFile::listen(&path, PACKETS)
        };
        let results: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..STARTS).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let listening: Vec<_> = results
            .iter()
            .filter_map(|result| result.as_ref().ok())
            .collect();
        assert_eq!(
            listening.len(),
            1,
            "round {round}: they all believe that they listen"
        );
        for refused in results.iter().filter_map(|result| result.as_ref().err()) {
            assert!(matches!(refused, ListenError::InUse { .. }), "{refused}");
        }
        let limit = Duration::from_secs(1);
        let connected = crate::connect(&path, SocketType::SEQPACKET, limit).unwrap();
        assert!(
            listening[0].0.accept(SocketFlags::NONBLOCK).is_ok(),
            "the one that is found"
        );
        drop((connected, results));
        assert!(!path.exists(), "it is removed with its listener");
    }
}

#[test]
fn a_socket_that_is_in_use_is_not_replaced_and_does_not_notice() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name| folder.path().join(name);
    let stream = UnixListener::bind(at("stream")).unwrap();
    let _datagrams = UnixDatagram::bind(at("datagrams")).unwrap();
    let (packets, _file) = SocketFile::listen(&at("packets"), PACKETS).unwrap();
    for (name, options) in [
        ("stream", STREAMS),
        ("stream", PACKETS),
        ("datagrams", STREAMS),
        ("packets", PACKETS),
        ("packets", STREAMS),
    ] {
        let refused = SocketFile::listen(&at(name), options).unwrap_err();
        assert!(
            matches!(refused, ListenError::InUse { .. }),
            "{name}: {refused}"
        );
    }
    stream.set_nonblocking(true).unwrap();
    assert!(stream.accept().is_err(), "nobody has connected");
    assert!(packets.accept(SocketFlags::NONBLOCK).is_err());
}

#[test]
fn a_listener_whose_queue_is_full_is_in_use_and_a_connect_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let options = ListenOptions {
        backlog: 0,
        ..STREAMS
    };
    let (_listener, _file) = SocketFile::listen(&path, options).unwrap();
    let connect = |limit| crate::connect(&path, SocketType::STREAM, limit);
    let mut waiting = Vec::new();
    let full = loop {
        match connect(Duration::ZERO) {
            Ok(socket) => waiting.push(socket),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    let late = connect(Duration::from_millis(20)).unwrap_err();
    assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    let refused = SocketFile::listen(&path, STREAMS).unwrap_err();
    assert!(matches!(refused, ListenError::InUse { .. }), "{refused}");
}

#[test]
fn a_file_that_is_no_socket_is_kept_and_a_stale_one_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    fs::write(&path, "a file").unwrap();
    let refused = SocketFile::listen(&path, PACKETS).unwrap_err();
    assert!(
        matches!(refused, ListenError::NotASocket { .. }),
        "{refused}"
    );
    assert_eq!(fs::read(&path).unwrap(), b"a file");
    fs::remove_file(&path).unwrap();
    leave_stale(&path);
    let (_listener, file) = SocketFile::listen(&path, PACKETS).unwrap();
    // Another program has replaced it.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another").unwrap();
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"another");
}
