//! What arrives, and how connections end.

use std::io::{self, Write};

use devmem_tcp::{Errno, ErrorKind, Frag, Placement, RecvError, RxBatch};

use crate::world::{Seen, World, collect, on_both, pattern, receive, room_for};

#[test]
fn bytes_arrive_whole_and_in_order_until_the_end_of_the_stream() {
    on_both(
        "bytes_arrive_whole_and_in_order_until_the_end_of_the_stream",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            let bytes = pattern(3_000_000);
            let sent = bytes.clone();
            let writer = std::thread::spawn(move || {
                sender.write_all(&sent).unwrap();
                sender.shutdown_write().unwrap();
                sender
            });
            assert!(receive(&mut receiver, usize::MAX) == bytes, "they differ");
            let sender = writer.join().unwrap();
            let mut batch = RxBatch::with_capacity(4);
            seen.note("after the end", receiver.recv(&mut batch).unwrap());
            let stats = receiver.stats();
            seen.note("in device memory", stats.device_bytes);
            seen.note("in host memory", stats.linear_bytes);
            seen.note("frags lent", stats.device_frags);
            seen.note("frags returned", stats.tokens_returned);
            let info = receiver.tcp_info().unwrap();
            seen.note("state", info.state);
            // The FIN counts as a byte in Linux (RCV.NXT).
            let received = info.bytes_received - u64::from(info.bytes_received > 3_000_000);
            seen.note("received", received);
            let info = sender.tcp_info().unwrap();
            seen.note("sent", info.bytes_sent - info.bytes_retrans);
        },
    );
}

#[test]
fn a_half_closed_stream_still_carries_the_answer() {
    on_both(
        "a_half_closed_stream_still_carries_the_answer",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            sender.write_all(b"question").unwrap();
            sender.shutdown_write().unwrap();
            let question = receive(&mut receiver, usize::MAX);
            seen.note("question", String::from_utf8(question).unwrap());
            receiver.write_all(b"answer").unwrap();
            drop(receiver);
            let answer = receive(&mut sender, usize::MAX);
            seen.note("answer", String::from_utf8(answer).unwrap());
            let refused = sender.write(b"more");
            seen.note("more", refused.unwrap_err().kind());
        },
    );
}

#[test]
fn strict_placement_refuses_bytes_in_host_memory_and_keeps_them() {
    on_both(
        "strict_placement_refuses_bytes_in_host_memory_and_keeps_them",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            sender.write_all(b"in host memory").unwrap();
            receiver.set_placement(Placement::Strict);
            let mut batch = RxBatch::with_capacity(16);
            for _ in 0..2 {
                let refused = receiver.recv(&mut batch);
                let Err(RecvError::Misplaced { bytes, .. }) = refused else {
                    panic!("{refused:?}");
                };
                seen.note("misplaced", bytes);
                seen.note("frags", batch.len());
            }
            seen.refusal("errno", receiver.recv(&mut batch), RecvError::errno);
            receiver.set_placement(Placement::Mixed);
            seen.note("mixed", receiver.recv(&mut batch).unwrap());
            let mut bytes = Vec::new();
            collect(&batch, &mut bytes);
            seen.note("bytes", String::from_utf8(bytes).unwrap());
            // The end of a stream is nowhere.
            receiver.set_placement(Placement::Strict);
            drop(sender);
            seen.note("the end", receiver.recv(&mut batch).unwrap());
        },
    );
}

#[test]
fn a_batch_holds_the_last_receive_and_at_most_its_capacity_of_frags() {
    on_both(
        "a_batch_holds_the_last_receive_and_at_most_its_capacity_of_frags",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            let mut batch = RxBatch::with_capacity(1);
            for text in ["first", "second"] {
                sender.write_all(text.as_bytes()).unwrap();
                seen.note("received", receiver.recv(&mut batch).unwrap());
                seen.note("frags", batch.len());
                seen.note("device bytes", batch.device_bytes());
                seen.note("linear bytes", batch.linear_bytes());
                let Some(Frag::Linear(bytes)) = batch.iter().next() else {
                    panic!("{batch:?}");
                };
                seen.note("bytes", String::from_utf8_lossy(bytes));
            }
            seen.note("released", batch.release().unwrap());
            seen.note("empty", batch.is_empty());
            seen.note("linear bytes", batch.linear_bytes());
        },
    );
}

#[test]
fn taken_frags_outlive_their_batch_and_their_stream() {
    on_both(
        "taken_frags_outlive_their_batch_and_their_stream",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            sender.write_all(b"kept").unwrap();
            let mut batch = RxBatch::with_capacity(4);
            receiver.recv(&mut batch).unwrap();
            let kept = batch.take();
            seen.note("left", batch.len());
            sender.write_all(b"overwritten?").unwrap();
            receiver.recv(&mut batch).unwrap();
            drop((sender, receiver, batch));
            for frag in &kept {
                let Frag::Linear(bytes) = frag.as_frag() else {
                    panic!("nothing is bound");
                };
                seen.note("kept", String::from_utf8_lossy(bytes));
            }
        },
    );
}

#[test]
fn gathering_copies_everything_or_says_that_it_does_not_fit() {
    on_both(
        "gathering_copies_everything_or_says_that_it_does_not_fit",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            sender.write_all(b"gathered").unwrap();
            let mut batch = RxBatch::with_capacity(4);
            receiver.recv(&mut batch).unwrap();
            let target = room_for(4096);
            seen.note("copied", batch.gather_into(&target, 4088).unwrap());
            let copied = target.slice(4088..4096).to_vec();
            seen.note("bytes", String::from_utf8(copied).unwrap());
            let refused = batch.gather_into(&target, 4089).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
            seen.note("refused", refused);
        },
    );
}

#[test]
fn a_peer_that_drops_unread_bytes_resets_the_connection() {
    on_both(
        "a_peer_that_drops_unread_bytes_resets_the_connection",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            sender.write_all(b"never read").unwrap();
            // It is there before the receiver goes.
            receiver.set_placement(Placement::Strict);
            let there = receiver.recv(&mut RxBatch::with_capacity(4));
            assert!(matches!(there, Err(RecvError::Misplaced { .. })));
            drop(receiver);
            let mut batch = RxBatch::with_capacity(4);
            // A stream that is dropped says that nothing more follows before its socket resets, and the reset may or
            // may not be there when the end is read. After the end, a reset makes a broken pipe (linux tcp_input.c
            // tcp_reset).
            let end = match sender.recv(&mut batch) {
                Ok(0) => true,
                Ok(_) => false,
                Err(error) => [Errno::ECONNRESET, Errno::EPIPE].contains(&error.errno()),
            };
            seen.note("the end", end);
            let kind = loop {
                // Until the reset is there, bytes may still be queued.
                if let Err(error) = sender.write(b"more") {
                    break error.kind();
                }
            };
            let over = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe].contains(&kind);
            seen.note("over", over);
        },
    );
}

#[test]
fn both_directions_carry_at_once() {
    on_both("both_directions_carry_at_once", |world, seen| {
        let (mut sender, mut receiver) = world.connection();
        let echo = std::thread::spawn(move || {
            let mut batch = RxBatch::with_capacity(64);
            let mut bytes = Vec::new();
            while receiver.recv(&mut batch).unwrap() > 0 {
                bytes.clear();
                collect(&batch, &mut bytes);
                receiver.write_all(&bytes).unwrap();
            }
        });
        let bytes = pattern(100_000);
        for chunk in bytes.chunks(7_000) {
            sender.write_all(chunk).unwrap();
            assert!(receive(&mut sender, chunk.len()) == chunk, "they differ");
        }
        sender.shutdown_write().unwrap();
        echo.join().unwrap();
        seen.note("the end", receive(&mut sender, usize::MAX).len());
    });
}

#[test]
fn streams_of_one_listener_do_not_mix() {
    on_both("streams_of_one_listener_do_not_mix", |world, seen| {
        let listener = world.listen();
        let address = listener.local_addr().unwrap();
        let mut pairs: Vec<_> = (0..8)
            .map(|_| {
                let sender = world.sender.connect(address).unwrap();
                (sender, listener.accept().unwrap().0)
            })
            .collect();
        for (number, (sender, _)) in pairs.iter_mut().enumerate() {
            sender.write_all(&[number as u8; 1000]).unwrap();
            sender.shutdown_write().unwrap();
        }
        for (number, (_, receiver)) in pairs.iter_mut().enumerate().rev() {
            let bytes = receive(receiver, usize::MAX);
            let own = bytes.iter().all(|byte| usize::from(*byte) == number);
            seen.note("own bytes alone", own);
            seen.note("bytes", bytes.len());
        }
    });
}

/// `Seen` compares what scenarios note; this compares the comparison.
#[test]
#[should_panic(expected = "left user space, right the kernel")]
fn a_difference_between_the_backends_is_found() {
    on_both(
        "a_difference_between_the_backends_is_found",
        |world: &World, seen: &mut Seen| {
            seen.note("interface", format!("{:?}", world.sender.interface()));
        },
    );
}
