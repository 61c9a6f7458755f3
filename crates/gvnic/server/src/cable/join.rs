//! The cable between two ends: one loop, with a lane for each direction.

use std::time::Duration;

use anyhow::Context;
use devmem_linux::netns::NetNs;
use nic::{Impairment, WireHello};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use wire::Instant;

use super::clock::CableClock;
use super::lane::{BUFFER_BYTES, CableLane};
use super::report::LaneReport;
use crate::nic::OpenPort;
use crate::plan::{Lateness, WireEnd, WirePort};
use tool::output::Failure;

/// Both directions of a cable.
#[derive(Debug)]
pub struct Cable {
    ends: [OpenPort; 2],
    /// From the first end to the second, and back.
    lanes: [CableLane; 2],
    clock: CableClock,
    incoming: Box<[u8]>,
}

/// Opens one end: a UNIX socket, or an interface in its network namespace; a TAP is set up if an address is given.
///
/// # Errors
///
/// The interface or the socket cannot be opened.
pub fn open(end: &WireEnd, mtu: u16) -> Result<OpenPort, Failure> {
    // Impairment needs single frames. The kernel segments super-packets before it passes them to a TAP without
    // offloads; super-packets from sockets are segmented here, unless the cable is perfect and the other end takes them.
    let cuts = !matches!(end.port, WirePort::Tap { .. });
    let ours = WireHello {
        offloads: cuts,
        mtu,
        // A cable passes on frames and no files.
        shares_memory: false,
        needs_offloads: false,
    };
    let open = || OpenPort::open(&end.port, ours);
    match &end.netns {
        Some(name) => NetNs::open(name)?.run(open)?,
        None => open(),
    }
}

impl Cable {
    /// Returns a cable between two ends.
    pub fn new(ends: [OpenPort; 2], impairment: Impairment, lateness: Lateness) -> Self {
        // Each direction has a different seed.
        let other = Impairment {
            seed: !impairment.seed,
            ..impairment
        };
        Self {
            ends,
            lanes: [CableLane::new(impairment), CableLane::new(other)],
            clock: CableClock::new(lateness),
            incoming: vec![0; BUFFER_BYTES].into_boxed_slice(),
        }
    }

    /// Returns the time since the ends were connected.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Returns the counters of each direction.
    pub fn report(&self) -> [LaneReport; 2] {
        self.lanes.each_ref().map(CableLane::report)
    }

    /// Waits at most `limit` for frames, and forwards them.
    ///
    /// # Errors
    ///
    /// An end failed permanently.
    pub fn step(&mut self, limit: Duration) -> Result<(), Failure> {
        let due = self.next_due();
        let room = self.sleep(limit, due)?;
        self.clock.work_on(due);
        let now = self.clock.now();
        let Self {
            ends,
            lanes,
            clock,
            incoming,
        } = self;
        for end in &mut *ends {
            end.serve(now);
        }
        let [a, b] = ends;
        let [there, back] = lanes;
        let [to_b, to_a] = room;
        let mut forward = |lane: &mut CableLane, from: &mut _, to: &mut _, has_room| {
            if has_room {
                lane.let_out(to, now);
            }
            lane.take_in(from, to, incoming, now)?;
            if !lane.awaits_room() {
                lane.let_out(to, clock.now());
            }
            Ok(())
        };
        forward(there, a, b, to_b)?;
        forward(back, b, a, to_a)
    }

    /// Sleeps until a frame arrives or is `due`; returns for each direction whether the receiving end may have room again.
    fn sleep(&self, limit: Duration, due: Option<Instant>) -> Result<[bool; 2], Failure> {
        let limit = due.map_or(limit, |due| {
            due.saturating_since(self.clock.now()).min(limit)
        });
        let limit = Timespec::try_from(limit).context("a time to sleep")?;
        let (mut fds, peers) = self.fds();
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::from(anyhow::Error::from(errno).context("poll"))),
        }
        // An end that is not connected counts as having room: it drops the frame.
        let [to_a, to_b] =
            peers.map(|peer| peer.is_none_or(|at| fds[at].revents() != PollFlags::empty()));
        Ok([to_b, to_a])
    }

    /// Returns what to poll, and at which index the connection of each end is, if it is polled.
    fn fds(&self) -> (Vec<PollFd<'_>>, [Option<usize>; 2]) {
        let [there, back] = &self.lanes;
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(4);
        let [a, b] = &self.ends;
        // The receiving end of one lane is the sending end of the other.
        let peers = [(a, there, back), (b, back, there)].map(|(end, from_it, to_it)| {
            let (listeners, peer) = end.fds();
            fds.extend(listeners.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, from_it.takes_frames());
            wanted.set(PollFlags::OUT, to_it.awaits_room());
            // A peer that has left is reported in any case, again and again.
            let peer = peer.filter(|_| !wanted.is_empty());
            peer.map(|fd| {
                fds.push(PollFd::from_borrowed_fd(fd, wanted));
                fds.len() - 1
            })
        });
        (fds, peers)
    }

    /// Returns the next deadline.
    fn next_due(&self) -> Option<Instant> {
        let frames = self.lanes.iter().filter_map(CableLane::next_due);
        let ends = self.ends.iter().filter_map(OpenPort::next_due);
        frames.chain(ends).min()
    }
}

#[cfg(test)]
mod tests;
