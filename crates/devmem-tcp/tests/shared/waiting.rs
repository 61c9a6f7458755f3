//! Non-blocking calls, time limits, readiness, and what cannot be opened.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use devmem_tcp::{
    AcceptError, ConnectError, Interest, ListenError, Poller, RecvError, RxBatch, Stream,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::world::{PATIENCE, Seen, World, on_both};

/// Short enough for a test; whether it is over is not measured.
const SOON: Duration = Duration::from_millis(1);

/// Whether the fd gets readable within the time.
fn is_readable(fd: &impl AsFd, within: Duration) -> bool {
    let timeout = Timespec::try_from(within).unwrap();
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

#[test]
fn a_wait_for_nothing_would_block_or_times_out() {
    on_both(
        "a_wait_for_nothing_would_block_or_times_out",
        |world, seen| {
            let (sender, mut receiver) = world.connection();
            let mut batch = RxBatch::with_capacity(4);
            receiver.set_nonblocking(true);
            let refused = receiver.recv(&mut batch).unwrap_err();
            seen.note("would block", matches!(refused, RecvError::WouldBlock));
            seen.note("errno", refused.errno());
            receiver.set_timeout(Some(SOON));
            let refused = receiver.recv(&mut batch).unwrap_err();
            seen.note("timed out", matches!(refused, RecvError::TimedOut));
            seen.note("words", refused);
            let mut listener = world.listen();
            listener.set_nonblocking(true);
            let refused = listener.accept().unwrap_err();
            seen.note("would block", matches!(refused, AcceptError::WouldBlock));
            listener.set_timeout(Some(SOON));
            let refused = listener.accept().unwrap_err();
            seen.note("timed out", matches!(refused, AcceptError::TimedOut));
            seen.note("errno", refused.errno());
            drop(sender);
        },
    );
}

#[test]
fn readiness_follows_connections_data_and_the_end() {
    on_both(
        "readiness_follows_connections_data_and_the_end",
        |world, seen| {
            let listener = world.listen();
            seen.note("nobody", is_readable(&listener, Duration::ZERO));
            let address = listener.local_addr().unwrap();
            let nic = world.sender.clone();
            let connecting = std::thread::spawn(move || nic.connect(address).unwrap());
            seen.note("a connection", is_readable(&listener, PATIENCE));
            let (mut receiver, _) = listener.accept().unwrap();
            seen.note("accepted", is_readable(&listener, Duration::ZERO));
            let mut sender = connecting.join().unwrap();
            receiver.set_nonblocking(true);
            seen.note("no data", is_readable(&receiver, Duration::ZERO));
            sender.write_all(b"abc").unwrap();
            seen.note("data", is_readable(&receiver, PATIENCE));
            let mut batch = RxBatch::with_capacity(4);
            seen.note("bytes", receiver.recv(&mut batch).unwrap());
            seen.note("taken", is_readable(&receiver, Duration::ZERO));
            let again = receiver.recv(&mut batch);
            seen.note("again", matches!(again, Err(RecvError::WouldBlock)));
            sender.shutdown_write().unwrap();
            seen.note("the end", is_readable(&receiver, PATIENCE));
            seen.note("bytes", receiver.recv(&mut batch).unwrap());
            seen.note("still", is_readable(&receiver, PATIENCE));
        },
    );
}

#[test]
fn a_thread_that_waits_is_woken_by_data_from_another() {
    on_both(
        "a_thread_that_waits_is_woken_by_data_from_another",
        |world, seen| {
            let (mut sender, mut receiver) = world.connection();
            let waiting = std::thread::spawn(move || {
                let mut batch = RxBatch::with_capacity(4);
                let received: Vec<_> = (0..3).map(|_| receiver.recv(&mut batch).unwrap()).collect();
                (received, receiver)
            });
            sender.write_all(b"x").unwrap();
            // The answer to the first is the next one's cue; nothing else orders them.
            std::thread::yield_now();
            sender.write_all(b"y").unwrap();
            drop(sender);
            let (received, _receiver) = waiting.join().unwrap();
            // The two may arrive together.
            seen.note("bytes", received.iter().sum::<usize>());
            seen.note("the end", received[2]);
        },
    );
}

#[test]
fn addresses_that_cannot_be_had_are_refused_alike() {
    on_both(
        "addresses_that_cannot_be_had_are_refused_alike",
        |world: &World, seen: &mut Seen| {
            let listener = world.listen();
            let address = listener.local_addr().unwrap();
            let taken = world.receiver.listen(address);
            seen.refusal("taken", taken, ListenError::errno);
            // No host has an address of TEST-NET-1 (RFC 5737).
            let foreign = world.receiver.listen("192.0.2.1:5201");
            seen.refusal("not ours", foreign, ListenError::errno);
            seen.refusal("no name", world.receiver.listen("::::1"), |_| {
                devmem_tcp::Errno::EINVAL
            });
            drop(listener);
            let refused = world.sender.connect(address);
            seen.refusal("nobody listens", refused, ConnectError::errno);
            let again = world.receiver.listen(address);
            seen.note("free again", again.is_ok());
        },
    );
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
            let id = sender.send_host(&Arc::from([1; 100])).unwrap();
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
        },
    );
}
