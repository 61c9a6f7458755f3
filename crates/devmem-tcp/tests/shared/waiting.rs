//! Non-blocking calls, time limits, readiness, and what cannot be opened.

use std::io::Write;
use std::os::fd::AsFd;
use std::time::Duration;

use devmem_tcp::{Error, ErrorKind, RecvError, RxBatch};
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
            seen.note("timed out", matches!(refused, RecvError::TimedOut { .. }));
            seen.note("words", refused);
            let listener = world.listen();
            listener.set_nonblocking(true);
            let refused = listener.accept().unwrap_err();
            seen.note("would block", refused.kind() == ErrorKind::WouldBlock);
            listener.set_timeout(Some(SOON));
            let refused = listener.accept().unwrap_err();
            seen.note("timed out", refused.kind() == ErrorKind::TimedOut);
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
            seen.refusal("taken", taken, Error::errno);
            // No host has an address of TEST-NET-1 (RFC 5737).
            let foreign = world.receiver.listen("192.0.2.1:5201");
            seen.refusal("not ours", foreign, Error::errno);
            seen.refusal("no name", world.receiver.listen("::::1"), |_| {
                devmem_tcp::Errno::EINVAL
            });
            drop(listener);
            let refused = world.sender.connect(address);
            seen.refusal("nobody listens", refused, Error::errno);
            let again = world.receiver.listen(address);
            seen.note("free again", again.is_ok());
        },
    );
}
