//! Zero-copy sends and their completions. From host memory: a loopback has no other.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use devmem_tcp::ErrorKind;

use crate::world::{PATIENCE, on_both, pattern, receive};

fn bytes(len: usize) -> Arc<[u8]> {
    pattern(len).into()
}

#[test]
fn a_send_completes_once_its_bytes_have_arrived() {
    on_both(
        "a_send_completes_once_its_bytes_have_arrived",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            let sent = bytes(2_000_000);
            let reader = std::thread::spawn(move || {
                let received = receive(&mut receiver, 2_000_000);
                (received, receiver)
            });
            let id = sender.send_host_all(&sent).unwrap();
            seen.note("queued", id.bytes());
            let completions = sender.completions();
            completions.wait(id).unwrap();
            seen.note("complete", completions.is_complete(id).unwrap());
            seen.note("pending", completions.pending().unwrap());
            let counts = completions.counts().unwrap();
            seen.note("all complete", counts.complete == counts.sent);
            seen.note("some", counts.sent > 0);
            // A loopback copies in the end, and user space always does.
            seen.note("all copied", counts.copied == counts.sent);
            let (received, _receiver) = reader.join().unwrap();
            assert!(received == sent[..], "the bytes differ");
        },
    );
}

#[test]
fn completions_are_reported_once_and_in_order() {
    on_both(
        "completions_are_reported_once_and_in_order",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            let completions = sender.completions();
            seen.note("none", completions.try_next().unwrap().is_none());
            let nothing = sender.send_host_all(&bytes(0)).unwrap();
            seen.note("of nothing", completions.is_complete(nothing).unwrap());
            let ids: Vec<_> = (0..3)
                .map(|_| sender.send_host_all(&bytes(1000)).unwrap())
                .collect();
            assert_eq!(receive(&mut receiver, 3000).len(), 3000);
            completions.wait_all().unwrap();
            let told = completions.try_next().unwrap().unwrap();
            for id in &ids {
                seen.note("told", told.contains(*id));
            }
            seen.note("again", completions.try_next().unwrap().is_none());
            let later = sender.send_host_all(&bytes(1)).unwrap();
            assert_eq!(receive(&mut receiver, 1).len(), 1);
            completions.wait(later).unwrap();
            let told = completions.try_next().unwrap().unwrap();
            seen.note("the later one", told.contains(later));
            seen.note("an earlier one", told.contains(ids[2]));
        },
    );
}

#[test]
fn completions_outlive_their_stream() {
    on_both("completions_outlive_their_stream", |world, seen| {
        let (mut sender, mut receiver) = world.connection();
        let id = sender.send_host_all(&bytes(100_000)).unwrap();
        let completions = sender.completions();
        drop(sender);
        let reader = std::thread::spawn(move || receive(&mut receiver, usize::MAX).len());
        completions.wait(id).unwrap();
        seen.note("pending", completions.pending().unwrap());
        seen.note("received", reader.join().unwrap());
    });
}

#[test]
fn a_stream_dropped_with_sends_under_way_still_sends_them() {
    on_both(
        "a_stream_dropped_with_sends_under_way_still_sends_them",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            let sent = bytes(50_000);
            let id = sender.send_host_all(&sent).unwrap();
            seen.note("queued", id.bytes());
            drop((sender, sent));
            let received = receive(&mut receiver, usize::MAX);
            seen.note("whole", received == pattern(50_000));
        },
    );
}

#[test]
fn a_nonblocking_send_queues_as_much_as_fits() {
    on_both(
        "a_nonblocking_send_queues_as_much_as_fits",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            let all = bytes(64 << 20);
            sender.set_nonblocking(true);
            let id = sender.send_host(&all, 0..all.len()).unwrap();
            seen.note("some", id.bytes() > 0);
            seen.note("all", id.bytes() == all.len());
            // Nobody reads, so there is an end to it, however often the other end makes room for some more.
            let mut total = id.bytes();
            let (refused, last) = loop {
                match sender.send_host(&all, 0..all.len()) {
                    Ok(more) => total += more.bytes(),
                    Err(refused) => break (refused, sender.completions()),
                }
            };
            seen.note("full", refused.kind() == ErrorKind::WouldBlock);
            seen.note("errno", refused.errno());
            let kind = loop {
                match sender.write(&all[..1000]) {
                    Ok(more) => total += more,
                    Err(refused) => break refused.kind(),
                }
            };
            seen.note("write", kind);
            // Not looked at: when it completes. A loopback copies, and is done with the sender's bytes early.
            assert_eq!(receive(&mut receiver, total).len(), total);
            let completions = last;
            completions.set_timeout(Some(PATIENCE));
            completions.wait_all().unwrap();
            seen.note("the first", completions.is_complete(id).unwrap());
            seen.note("pending", completions.pending().unwrap());
        },
    );
}

#[test]
fn a_blocking_send_waits_for_its_first_byte_and_send_all_for_its_last() {
    on_both(
        "a_blocking_send_waits_for_its_first_byte_and_send_all_for_its_last",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            let all = bytes(64 << 20);
            let first = sender.send_host(&all, 5..all.len()).unwrap().bytes();
            seen.note("some", first > 0 && first < all.len() - 5);
            sender.set_timeout(Some(Duration::from_millis(50)));
            let refused = sender.send_host_all(&all).unwrap_err();
            seen.note("not all", refused.errno());
            // Behind them may be some of the second one.
            let received = receive(&mut receiver, first);
            assert!(received.starts_with(&all[5..5 + first]));
            let outside = sender.send_host(&all, 1..all.len() + 1).unwrap_err();
            seen.note("outside", outside.errno());
        },
    );
}

#[test]
fn copied_and_zero_copy_sends_keep_their_order() {
    on_both(
        "copied_and_zero_copy_sends_keep_their_order",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            sender.write_all(b"one ").unwrap();
            let id = sender.send_host_all(&Arc::from(*b"two ")).unwrap();
            sender.write_all(b"three").unwrap();
            let text = String::from_utf8(receive(&mut receiver, 13)).unwrap();
            seen.note("received", text);
            sender.completions().wait(id).unwrap();
        },
    );
}

#[test]
fn the_sends_of_a_connection_that_dies_complete() {
    on_both(
        "the_sends_of_a_connection_that_dies_complete",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            sender.write_all(b"unread").unwrap();
            assert!(receiver_has_something(&mut receiver));
            sender.set_nonblocking(true);
            let id = sender.send_host(&bytes(16 << 20), 0..16 << 20).unwrap();
            let completions = sender.completions();
            completions.set_timeout(Some(PATIENCE));
            // Closed with bytes unread, it resets.
            drop(receiver);
            completions.wait(id).unwrap();
            seen.note("pending", completions.pending().unwrap());
        },
    );
}

/// Whether bytes have arrived, without taking them.
fn receiver_has_something(receiver: &mut devmem_tcp::Stream) -> bool {
    receiver.set_placement(devmem_tcp::Placement::Strict);
    let mut batch = devmem_tcp::RxBatch::with_capacity(4);
    matches!(
        receiver.recv(&mut batch),
        Err(devmem_tcp::RecvError::Misplaced { .. })
    )
}
