//! The wait for any of several connections.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use devmem_tcp::{Interest, Netdev, Poller, Stream, Watch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::slots::Slots;

/// Longest wait without a call of the progress function. It also bounds how long bytes stay queued that are fewer than a turn is worth, so that a
/// server that sends little is judged by all that it has sent.
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// Rest of a poller that finds nothing, before it looks again. Many servers are slower than this receiver, and a wake-up, a read and
/// an ACK for each of their packets cost more than the copies. Measured: 50 us take a quarter of the CPU time with a fast NBD
/// server, at the same rate; with 100 us a load from nginx is slower. The kernel's timer adds up to 50 us (timerslack).
const REST: Duration = Duration::from_micros(50);
/// Time to try all connections in turn before sleeping, on a NIC with several shards.
const SPIN: Duration = Duration::from_micros(50);

/// A connection in a slot.
pub(crate) trait Connected {
    /// Returns its stream.
    fn stream(&self) -> &Stream;

    /// Returns the events after which its next turn can make progress; none if no answer is awaited.
    fn interests(&self) -> &'static [Interest];

    /// Returns how many bytes that must come are worth a turn.
    fn least_bytes(&self) -> usize {
        1
    }
}

/// Waits while no connection can make progress.
#[derive(Debug)]
pub(crate) struct Idle {
    /// Lets the waiting thread poll the NIC. `None` on a NIC with several shards, each of which has a thread for that: then
    /// the wait is for the descriptors of the streams.
    poller: Option<Poller>,
    watches: Vec<Watch>,
}

impl Idle {
    /// Prepares the waits for connections of `nic`.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub(crate) fn new(nic: &Netdev) -> io::Result<Self> {
        let poller = match nic.shards().len() {
            1 => Some(Poller::new(nic)?.resting(REST)),
            _ => None,
        };
        Ok(Self {
            poller,
            watches: Vec::new(),
        })
    }

    /// Returns whether the waiting thread serves all connections; otherwise several threads do.
    pub(crate) fn serves_alone(&self) -> bool {
        self.poller.is_some()
    }

    /// Returns how long to try all connections in turn before the wait. A poller rests instead.
    pub(crate) fn spin(&self) -> Duration {
        match self.poller {
            Some(_) => Duration::ZERO,
            None => SPIN,
        }
    }

    /// Waits until a connection is ready, or until `due`, for 100 ms at most.
    ///
    /// # Errors
    /// The connections cannot be waited for.
    pub(crate) fn wait<C: Connected>(
        &mut self,
        slots: &Slots<C>,
        due: Option<Instant>,
    ) -> io::Result<()> {
        let until_due = due.map(|due| due.saturating_duration_since(Instant::now()));
        let limit = until_due.map_or(WAIT_SLICE, |left| left.min(WAIT_SLICE));
        let Some(poller) = &self.poller else {
            return wait_for_descriptors(slots, limit);
        };
        self.watches.clear();
        for open in slots.open() {
            let (interests, least) = (open.interests().iter(), open.least_bytes());
            let watch = |interest: &Interest| open.stream().watch(*interest).at_least(least);
            self.watches.extend(interests.map(watch));
        }
        poller.wait(&self.watches, limit).map(|_| ())
    }
}

/// Gives every slot a turn, and again while none makes progress in the time of `spin`. Returns whether any made progress or
/// ended.
///
/// # Errors
/// The first error of a turn.
pub(crate) fn turn_all<E>(
    indices: Range<usize>,
    spin: Duration,
    mut turn: impl FnMut(usize) -> Result<bool, E>,
) -> Result<bool, E> {
    let mut start = None;
    loop {
        let mut moved = false;
        for index in indices.clone() {
            moved |= turn(index)?;
        }
        if moved || spin.is_zero() {
            return Ok(moved);
        }
        if start.get_or_insert_with(Instant::now).elapsed() >= spin {
            return Ok(false);
        }
    }
}

fn wait_for_descriptors<C: Connected>(slots: &Slots<C>, limit: Duration) -> io::Result<()> {
    let mut fds = Vec::new();
    for open in slots.open().filter(|open| !open.interests().is_empty()) {
        let fd = open.stream().readiness_fd()?;
        fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
    }
    let limit = Timespec::try_from(limit).expect("a tenth of a second fits");
    match poll(&mut fds, Some(&limit)) {
        // The progress function checks for signals.
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
