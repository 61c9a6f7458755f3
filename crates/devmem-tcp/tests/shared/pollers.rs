//! Waiting for one of several streams.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use devmem_tcp::{Interest, Poller, Stream};

use crate::world::{PATIENCE, on_both};

/// Short enough for a test; whether it is over is not measured.
const SOON: Duration = Duration::from_millis(1);

/// Returns the keys that a wait of at most `at_most` reports, in order.
fn ready(poller: &Poller, at_most: Duration) -> String {
    let mut keys = vec![7; 3];
    poller.wait_ready(&mut keys, at_most).unwrap();
    keys.sort_unstable();
    format!("{keys:?}")
}

#[test]
fn a_poller_reports_the_keys_of_streams_that_are_ready_and_of_no_others() {
    on_both(
        "a_poller_reports_the_keys_of_streams_that_are_ready_and_of_no_others",
        |world, seen| {
            let poller = Poller::new(&world.receiver).unwrap();
            let mut streams: Vec<_> = (0..3).map(|_| world.connection()).collect();
            for (key, (_, receiver)) in streams.iter().enumerate() {
                let watch = receiver.watch(Interest::Receive);
                poller.add(key as u64, &watch).unwrap();
            }
            seen.note("none", ready(&poller, SOON));
            streams[1].0.write_all(b"x").unwrap();
            seen.note("data", ready(&poller, PATIENCE));
            seen.note("still data", ready(&poller, PATIENCE));
            streams[1].1.read_exact(&mut [0]).unwrap();
            seen.note("taken", ready(&poller, SOON));

            // A stream that has data already is reported, too, and a key replaces the one before.
            streams[2].0.write_all(b"y").unwrap();
            seen.note("data of another", ready(&poller, PATIENCE));
            let send = streams[2].1.watch(Interest::Send);
            poller.add(5, &send).unwrap();
            seen.note("and room", ready(&poller, PATIENCE));
            poller.add(2, &send).unwrap();
            poller.remove(5);
            poller.remove(5);
            seen.note("room alone", ready(&poller, PATIENCE));
            poller.remove(2);
            seen.note("removed", ready(&poller, SOON));

            let (sender, receiver) = streams.remove(0);
            drop(sender);
            seen.note("the end", ready(&poller, PATIENCE));
            let watch = receiver.watch(Interest::Receive);
            drop(receiver);
            seen.note("closed", ready(&poller, SOON));
            poller.add(0, &watch).unwrap();
            seen.note("added when it was closed", ready(&poller, SOON));
        },
    );
}

#[test]
fn a_wait_that_reads_ends_with_bytes_with_the_end_of_the_stream_or_for_another_watch() {
    on_both(
        "a_wait_that_reads_ends_with_bytes_with_the_end_of_the_stream_or_for_another_watch",
        |world, seen| {
            let poller = Poller::new(&world.receiver).unwrap();
            let (mut sender, receiver) = world.connection();
            let (mut other, mut watched) = world.connection();
            let watches = [watched.watch(Interest::Receive)];
            let wait = |at_most| {
                let mut out = [0; 8];
                let read = poller.wait_read(&receiver, &mut out, &watches, at_most);
                let text = String::from_utf8_lossy(&out).into_owned();
                format!("{:?} {text:?}", read.unwrap())
            };
            seen.note("nothing", wait(SOON));
            sender.write_all(b"hello").unwrap();
            assert_eq!(wait(PATIENCE), r#"Some(5) "hello\0\0\0""#);
            other.write_all(b"x").unwrap();
            assert_eq!(wait(PATIENCE), r#"None "\0\0\0\0\0\0\0\0""#);
            let empty = poller.wait_read(&receiver, &mut [], &watches, PATIENCE);
            seen.note("another, without room", format!("{:?}", empty.unwrap()));
            watched.read_exact(&mut [0]).unwrap();
            poller.wake();
            seen.note("woken", wait(PATIENCE));
            drop(sender);
            assert!(wait(PATIENCE).starts_with("Some(0)"));
            seen.note("bytes", receiver.stats().linear_bytes);
            assert_eq!(receiver.stats().linear_bytes, 5);
        },
    );
}

#[test]
fn a_poller_waits_for_connections_to_accept() {
    on_both("a_poller_waits_for_connections_to_accept", |world, seen| {
        let listener = world.listen();
        let poller = Poller::new(&world.receiver).unwrap();
        poller.add(9, &listener.watch()).unwrap();
        seen.note("none", ready(&poller, SOON));
        let connecting = world.sender.connect(listener.local_addr().unwrap());
        seen.note("one", ready(&poller, PATIENCE));
        let watches = [listener.watch()];
        seen.note("once more", poller.wait(&watches, PATIENCE).unwrap());
        let accepted = listener.accept().unwrap();
        seen.note("accepted", ready(&poller, SOON));
        drop(listener);
        seen.note("closed", ready(&poller, SOON));
        drop((connecting, accepted));
    });
}

#[test]
fn a_poller_of_another_nic_is_refused() {
    on_both("a_poller_of_another_nic_is_refused", |world, seen| {
        let (_sender, receiver) = world.connection();
        let watch = receiver.watch(Interest::Receive);
        let nic = devmem_tcp::Netdev::user("mem:another", "10.99.0.1/24").unwrap();
        let poller = Poller::new(&nic).unwrap();
        let refused = poller.add(1, &watch).unwrap_err();
        seen.note("refused", refused);
        seen.note("also by", poller.wait(&[watch], SOON).unwrap_err());
    });
}

/// Sends until TCP takes nothing more. Returns the number of bytes.
fn fill(sender: &mut Stream, poller: &Poller) -> usize {
    let mut sent = 0;
    sender.set_nonblocking(true);
    while poller.wait(&[sender.watch(Interest::Send)], SOON).unwrap() {
        while let Ok(bytes) = sender.write(&[7; 64 << 10]) {
            sent += bytes;
        }
    }
    sent
}

#[test]
fn a_poller_waits_for_data_for_completed_sends_for_room_and_for_the_end() {
    on_both(
        "a_poller_waits_for_data_for_completed_sends_for_room_and_for_the_end",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            let [from, to] = [&world.sender, &world.receiver].map(|nic| Poller::new(nic).unwrap());
            let data = [receiver.watch(Interest::Receive)];
            seen.note("nothing", to.wait(&data, SOON).unwrap());
            let complete = [sender.watch(Interest::Complete)];
            seen.note("nothing is complete", from.wait(&complete, SOON).unwrap());
            let completions = sender.completions();
            let id = sender.send_host_all(&Arc::from([1; 100])).unwrap();
            seen.note("data", to.wait(&data, PATIENCE).unwrap());
            seen.note("still data", to.wait(&data, PATIENCE).unwrap());
            receiver.read_exact(&mut [0; 100]).unwrap();
            seen.note("taken", to.wait(&data, SOON).unwrap());
            seen.note("complete", from.wait(&complete, PATIENCE).unwrap());
            let reported = completions.try_next().unwrap();
            let reported = reported.is_some_and(|range| range.contains(id));
            seen.note("reported", reported);

            let sent = fill(&mut sender, &from);
            let reading = std::thread::spawn(move || {
                let read = receiver.read_exact(&mut vec![0; sent]);
                read.map(|()| receiver)
            });
            let room = [sender.watch(Interest::Send)];
            seen.note("room", from.wait(&room, PATIENCE).unwrap());
            let receiver = reading.join().unwrap().unwrap();
            drop(sender);
            seen.note("the end", to.wait(&data, PATIENCE).unwrap());
            drop(receiver);
            seen.note("closed", to.wait(&data, PATIENCE).unwrap());
        },
    );
}

#[test]
fn a_poller_is_woken_by_another_thread_or_before_it_waits() {
    on_both(
        "a_poller_is_woken_by_another_thread_or_before_it_waits",
        |world, seen| {
            let poller = Poller::new(&world.receiver).unwrap();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| poller.wait(&[], PATIENCE).unwrap());
                poller.wake();
                seen.note("woken", waiting.join().unwrap());
            });
            seen.note("once", poller.wait(&[], SOON).unwrap());
            poller.wake();
            poller.wake();
            seen.note("before", poller.wait(&[], PATIENCE).unwrap());
            seen.note("once", poller.wait(&[], SOON).unwrap());
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| ready(&poller, PATIENCE));
                poller.wake();
                seen.note("woken without a key", waiting.join().unwrap());
            });
        },
    );
}
