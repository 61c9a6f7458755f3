//! Waiting for a socket of the kernel. Its descriptor is non-blocking; each call waits within the limit of its stream.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use crate::driver::WaitLimit;
use crate::error::NotReady;

/// The time until which a call waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deadline {
    Never,
    Forever,
    At(Instant),
}

impl Deadline {
    pub(super) fn of(limit: WaitLimit) -> Self {
        match limit {
            WaitLimit::Never => Self::Never,
            WaitLimit::Forever => Self::Forever,
            // A time that cannot be represented counts as forever.
            WaitLimit::For(time) => Instant::now()
                .checked_add(time)
                .map_or(Self::Forever, Self::At),
        }
    }

    /// Waits until `fd` has one of `events`, an error or a hang-up.
    pub(super) fn wait(self, fd: BorrowedFd<'_>, events: PollFlags) -> Result<PollFlags, NotReady> {
        loop {
            let timeout = self.left()?;
            let mut fds = [PollFd::new(&fd, events)];
            match poll(&mut fds, timeout.as_ref()) {
                // The time may be over: `left` checks that.
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(fds[0].revents()),
                // The kernel is out of memory: the call that follows reports it.
                Err(_) => return Ok(PollFlags::empty()),
            }
        }
    }

    /// Waits until the error queue of `fd` has a new entry. Uses edge-triggered epoll, because [`wait`](Self::wait) returns at
    /// once for a connection that has hung up. `unless` is called after registration, when no entry can be missed any more.
    pub(super) fn wait_for_news(
        self,
        fd: BorrowedFd<'_>,
        unless: impl FnOnce() -> bool,
    ) -> Result<(), NotReady> {
        let Ok(edges) = epoll::create(epoll::CreateFlags::CLOEXEC) else {
            // No free descriptor: the caller polls again at once.
            return self.left().map(drop);
        };
        let data = epoll::EventData::new_u64(0);
        if epoll::add(&edges, fd, data, epoll::EventFlags::ET).is_err() || unless() {
            return self.left().map(drop);
        }
        let mut first = true;
        loop {
            let timeout = self.left()?;
            let mut events = [epoll::Event {
                flags: epoll::EventFlags::empty(),
                data,
            }];
            match epoll::wait(&edges, &mut events, timeout.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                // The state at registration, which `unless` has checked already.
                Ok(_) if first && !{ events[0].flags }.contains(epoll::EventFlags::ERR) => {
                    first = false;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Returns the remaining time for poll; `None` waits forever.
    fn left(self) -> Result<Option<Timespec>, NotReady> {
        match self {
            Self::Never => Err(NotReady::WouldBlock),
            Self::Forever => Ok(None),
            Self::At(end) => {
                let left = end.saturating_duration_since(Instant::now());
                if left == Duration::ZERO {
                    return Err(NotReady::TimedOut);
                }
                Ok(Some(timespec(left)))
            }
        }
    }
}

/// Clamped if it does not fit: callers wait again after the timeout.
fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Waits until one of `fds` is ready, for at most `at_most`. Returns how many are; none after a signal.
pub(super) fn poll_for(fds: &mut [PollFd<'_>], at_most: Duration) -> std::io::Result<usize> {
    match poll(fds, Some(&timespec(at_most))) {
        Err(Errno::INTR) => Ok(0),
        polled => Ok(polled?),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn soon() -> Deadline {
        Deadline::of(WaitLimit::For(Duration::from_millis(1)))
    }

    #[test]
    fn a_socket_that_has_hung_up_is_ready_and_has_no_news() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.shutdown(Shutdown::Both).unwrap();
        let got = Deadline::Forever.wait(ours.as_fd(), PollFlags::empty());
        assert!(got.unwrap().contains(PollFlags::HUP));
        let news = soon().wait_for_news(ours.as_fd(), || false);
        assert_eq!(news, Err(NotReady::TimedOut), "it would spin");
        let news = soon().wait_for_news(ours.as_fd(), || true);
        assert!(news.is_ok() || news == Err(NotReady::TimedOut));
        drop(theirs);
    }

    #[test]
    fn waiting_ends_when_it_is_ready_when_time_is_up_or_at_once() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let wait = |deadline: Deadline| deadline.wait(ours.as_fd(), PollFlags::IN);
        assert_eq!(wait(Deadline::Never), Err(NotReady::WouldBlock));
        assert_eq!(wait(soon()), Err(NotReady::TimedOut));
        std::io::Write::write_all(&mut &theirs, b"x").unwrap();
        assert_eq!(wait(Deadline::Forever), Ok(PollFlags::IN));
        let far = Deadline::of(WaitLimit::For(Duration::MAX));
        assert!(matches!(far, Deadline::Forever));
    }
}
