//! Halves, host bytes by `Read`, limits of a receive, options of a connection.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use devmem_tcp::{ConnectOptions, ErrorKind, RecvError, RxBatch, tcp::Keepalive};

use crate::world::{PATIENCE, collect, on_both, pattern};

/// Short enough for a test; whether it is over is not measured.
const SOON: Duration = Duration::from_millis(1);

#[test]
fn two_threads_use_the_halves_and_a_dropped_half_is_the_end_of_the_stream() {
    const BYTES: usize = 3_000_000;
    on_both(
        "two_threads_use_the_halves_and_a_dropped_half_is_the_end_of_the_stream",
        |world, seen| {
            let (near, far) = world.connection();
            let echo = std::thread::spawn(move || {
                let (mut from, mut to) = far.into_split();
                std::io::copy(&mut from, &mut to).unwrap()
            });
            let (mut from, mut to) = near.into_split();
            let writing = std::thread::spawn(move || to.write_all(&pattern(BYTES)).unwrap());
            let mut received = Vec::new();
            from.read_to_end(&mut received).unwrap();
            writing.join().unwrap();
            seen.note("echoed", echo.join().unwrap());
            assert!(received == pattern(BYTES), "the bytes differ");
            seen.note("read", from.stats().linear_bytes);
        },
    );
}

#[test]
fn a_receive_of_at_most_n_bytes_leaves_the_rest_and_a_peek_leaves_all() {
    on_both(
        "a_receive_of_at_most_n_bytes_leaves_the_rest_and_a_peek_leaves_all",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            sender.write_all(b"headerbody").unwrap();
            let mut head = [0; 6];
            seen.note("peeked", receiver.peek(&mut head).unwrap());
            seen.note("head", String::from_utf8_lossy(&head));
            let (mut batch, mut bytes) = (RxBatch::with_capacity(4), Vec::new());
            seen.note("none", receiver.recv_at_most(&mut batch, 0).unwrap());
            seen.note("header", receiver.recv_at_most(&mut batch, 6).unwrap());
            collect(&batch, &mut bytes);
            seen.note("body", receiver.recv(&mut batch).unwrap());
            collect(&batch, &mut bytes);
            assert_eq!(bytes, b"headerbody");
            receiver.set_nonblocking(true);
            let refused = receiver.peek(&mut head).unwrap_err();
            seen.note("nothing", matches!(refused, RecvError::WouldBlock));
            sender.shutdown_write().unwrap();
            receiver.set_read_timeout(Some(PATIENCE));
            seen.note("the end", receiver.peek(&mut head).unwrap());
        },
    );
}

#[test]
fn each_direction_has_a_timeout() {
    on_both("each_direction_has_a_timeout", |world, seen| {
        let (mut sender, mut receiver) = world.connection();
        sender.set_read_timeout(Some(SOON));
        sender.set_write_timeout(None);
        let refused = sender.recv(&mut RxBatch::with_capacity(1)).unwrap_err();
        seen.note("read", matches!(refused, RecvError::TimedOut { .. }));
        let refused = sender.read(&mut [0]).unwrap_err();
        seen.note("read as io::Read", refused.kind());
        sender.set_read_timeout(None);
        sender.set_write_timeout(Some(SOON));
        // More than the buffers of both ends hold, and the peer does not read.
        let block = vec![7; 1 << 20];
        let full = std::iter::repeat_with(|| sender.write(&block)).find_map(Result::err);
        seen.note("write", full.unwrap().kind());
        receiver.set_read_timeout(Some(PATIENCE));
        seen.note("other end", receiver.read(&mut [0]).unwrap());
        let refused = sender.send_host_all(&block.into());
        seen.note(
            "as send",
            refused.is_ok() || refused.is_err_and(|error| error.kind() == ErrorKind::TimedOut),
        );
    });
}

#[test]
fn options_of_a_connection_are_set_and_bad_ones_refused() {
    on_both(
        "options_of_a_connection_are_set_and_bad_ones_refused",
        |world, seen| {
            let (sender, receiver) = world.connection();
            seen.note("nodelay at first", sender.nodelay().unwrap());
            sender.set_nodelay(true).unwrap();
            seen.note("nodelay", sender.nodelay().unwrap());
            sender.set_keepalive(Some(Keepalive::default())).unwrap();
            sender.set_keepalive(None).unwrap();
            let hasty = Keepalive {
                interval: Duration::ZERO,
                ..Keepalive::default()
            };
            let refused = sender.set_keepalive(Some(hasty)).unwrap_err();
            seen.note("keepalive without pauses", refused.kind());
            receiver.set_linger(None).unwrap();
            world.listen().set_backlog(1).unwrap();
        },
    );
}

#[test]
fn a_linger_time_of_zero_resets_the_connection() {
    on_both(
        "a_linger_time_of_zero_resets_the_connection",
        |world, seen| {
            let (sender, mut receiver) = world.connection();
            sender.set_linger(Some(Duration::ZERO)).unwrap();
            drop(sender);
            let ended = receiver.recv(&mut RxBatch::with_capacity(1)).unwrap_err();
            seen.note("reset", ended.kind() == ErrorKind::ConnectionReset);
        },
    );
}

#[test]
fn a_connect_has_a_source_address_and_a_time_limit() {
    on_both(
        "a_connect_has_a_source_address_and_a_time_limit",
        |world, seen| {
            let listener = world.listen();
            let to = listener.local_addr().unwrap();
            let (first, _) = (
                world.sender.connect(to).unwrap(),
                listener.accept().unwrap(),
            );
            // Free a moment ago, and not one that the next connect would choose by itself.
            let taken = first.local_addr().unwrap();
            let source = SocketAddr::new(taken.ip(), taken.port() ^ 1);
            let options = ConnectOptions::new().source(source).timeout(PATIENCE);
            let stream = world.sender.connect_with(to, &options).unwrap();
            seen.note("source", stream.local_addr().unwrap() == source);
            let foreign = ConnectOptions::new().source(match to.is_ipv4() {
                true => "192.0.2.1:0".parse().unwrap(),
                false => "[2001:db8::1]:0".parse().unwrap(),
            });
            let refused = world.sender.connect_with(to, &foreign).unwrap_err();
            seen.note("foreign", refused.kind() == ErrorKind::AddrNotAvailable);
            let within = world.sender.connect_timeout(to, PATIENCE);
            seen.note("within the time", within.is_ok());
        },
    );
}
