//! Waiting for several queued bytes.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use devmem_tcp::{Interest, Netdev, Poller, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::in_place::{PATIENCE, connection, queue};

/// Short enough for a test; whether it is over is not measured.
const SOON: Duration = Duration::from_millis(1);

#[test]
fn a_watch_of_several_bytes_is_ready_when_they_are_queued_and_at_the_end() {
    let lo = Netdev::kernel("lo").unwrap();
    let poller = Poller::new(&lo).unwrap();
    let (mut sender, mut receiver) = connection(&lo);
    let watch = |stream: &Stream, bytes| stream.watch(Interest::Receive).at_least(bytes);
    let is_ready = |watch, limit| poller.wait(&[watch], limit).unwrap();
    queue(&mut sender, &mut receiver, &[1; 99], 0);
    assert!(!is_ready(watch(&receiver, 100), SOON));
    assert!(
        is_ready(watch(&receiver, 99), PATIENCE),
        "as many as are there"
    );
    assert!(is_ready(receiver.watch(Interest::Receive), PATIENCE));
    let writing = std::thread::spawn(move || {
        sender.write_all(&[2]).unwrap();
        sender
    });
    assert!(
        is_ready(watch(&receiver, 100), PATIENCE),
        "the last of them comes"
    );
    let sender = writing.join().unwrap();
    assert!(!is_ready(watch(&receiver, usize::MAX), SOON));
    let mut some = [0; 40];
    assert_eq!(
        receiver.read(&mut some).unwrap(),
        40,
        "receives take what is there"
    );

    let mut keys = Vec::new();
    poller.add(3, &watch(&receiver, 61)).unwrap();
    poller.wait_ready(&mut keys, SOON).unwrap();
    assert!(keys.is_empty(), "{keys:?}");
    poller.add(4, &watch(&receiver, 60)).unwrap();
    poller.wait_ready(&mut keys, PATIENCE).unwrap();
    assert_eq!(
        keys,
        [3, 4],
        "a stream has one number, that of the last watch"
    );
    poller.remove(3);
    poller.remove(4);

    assert!(!is_ready(watch(&receiver, 61), SOON));
    drop(sender);
    assert!(is_ready(watch(&receiver, 61), PATIENCE), "the end");
}

#[test]
fn a_watch_of_more_bytes_than_the_buffer_has_room_for_is_ready_when_it_is_full() {
    let lo = Netdev::kernel("lo").unwrap();
    let poller = Poller::new(&lo).unwrap();
    let (mut sender, receiver) = connection(&lo);
    let watch = receiver.watch(Interest::Receive).at_least(usize::MAX);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // More than any buffers have, until the receiver goes.
            while sender.write(&[5; 1 << 20]).is_ok() {}
        });
        assert!(poller.wait(&[watch], PATIENCE).unwrap());
        drop(receiver);
    });
}

/// Returns whether a socket is readable within a time.
fn is_readable(socket: &OwnedFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).unwrap() == 1
}

#[test]
fn a_call_that_waits_and_the_readiness_fd_need_one_byte_whatever_a_poller_waited_for() {
    let lo = Netdev::kernel("lo").unwrap();
    let poller = Poller::new(&lo).unwrap();
    let (mut sender, mut receiver) = connection(&lo);
    // The same socket, by which the library does not know of a look.
    let socket = receiver.as_fd().try_clone_to_owned().unwrap();
    let wait_for_many = |receiver: &Stream| {
        let watch = receiver.watch(Interest::Receive).at_least(1000);
        assert!(!poller.wait(&[watch], SOON).unwrap());
    };
    wait_for_many(&receiver);
    queue(&mut sender, &mut receiver, &[7], 0);
    assert!(!is_readable(&socket, SOON));
    receiver.read_exact(&mut [0]).unwrap();
    receiver.set_timeout(Some(SOON));
    receiver.read(&mut [0]).unwrap_err();
    sender.write_all(&[8]).unwrap();
    assert!(is_readable(&socket, PATIENCE), "a call has waited");

    wait_for_many(&receiver);
    assert!(!is_readable(&socket, SOON));
    let fd = receiver.as_fd();
    assert!(
        is_readable(&socket, PATIENCE),
        "{fd:?} is there to be waited for"
    );
}
