//! Sleeping on file descriptors, and eventfds.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Sleeps in poll(2) on `wake` and `links`, and clears `wake`.
pub(crate) fn sleep_on(wake: &OwnedFd, links: &[OwnedFd], timeout: Duration) {
    let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(wake, PollFlags::IN)];
    fds.extend(links.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
    if sleep_until_readable(&mut fds, timeout) && !fds[0].revents().is_empty() {
        clear(wake.as_fd());
    }
}

/// Sleeps in poll(2) until one of `fds` is ready. Returns whether it knows; an error (EINTR) only ends the sleep early.
pub fn sleep_until_readable(fds: &mut [PollFd<'_>], timeout: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    poll(fds, Some(&timeout)).is_ok()
}

/// Makes an eventfd readable. The write fails only if the counter is full, and then the eventfd is readable.
pub fn set(fd: BorrowedFd<'_>) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Makes an eventfd unreadable. The read fails only if it is unreadable already.
pub fn clear(fd: BorrowedFd<'_>) {
    let mut count = [0; 8];
    let _ = rustix::io::read(fd, &mut count);
}
