//! Which sockets are ready, by epoll(7).
//!
//! Readiness is edge-triggered: a socket counts as ready until a call has found that it is not, so a connection whose bytes nobody expects
//! yet wakes nobody, and no call to the kernel changes what is watched.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;

use crate::wire::Ready;

/// What the kernel says of many sockets.
#[derive(Debug)]
pub(crate) struct Readiness(OwnedFd);

impl Readiness {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Watches a socket. Its readiness is reported as it is now, and at each change.
    pub(crate) fn add(&self, socket: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        Ok(epoll::add(
            &self.0,
            socket,
            EventData::new_u64(number),
            edges(),
        )?)
    }

    /// Gives a socket another number.
    pub(crate) fn renumber(&self, socket: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        Ok(epoll::modify(
            &self.0,
            socket,
            EventData::new_u64(number),
            edges(),
        )?)
    }

    /// Watches a listener, as long as connections wait.
    pub(crate) fn add_listener(&self, listener: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        Ok(epoll::add(
            &self.0,
            listener,
            EventData::new_u64(number),
            EventFlags::IN,
        )?)
    }

    /// Adds to `ready` what has changed since the last call.
    pub(crate) fn collect(&self, ready: &mut Vec<Ready>) -> io::Result<()> {
        const NOW: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 64];
        let count = match epoll::wait(&self.0, &mut events, Some(&NOW)) {
            Err(rustix::io::Errno::INTR) => 0,
            count => count?,
        };
        let failed = EventFlags::ERR | EventFlags::HUP;
        ready.extend(events[..count].iter().map(|event| {
            let flags = event.flags;
            Ready {
                number: event.data.u64(),
                to_read: flags.intersects(EventFlags::IN | EventFlags::RDHUP | failed),
                to_write: flags.intersects(EventFlags::OUT | failed),
            }
        }));
        Ok(())
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn edges() -> EventFlags {
    EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET
}
