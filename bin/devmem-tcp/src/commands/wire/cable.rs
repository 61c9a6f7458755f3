//! The cable between the two ends: one loop, a conditioner for each direction.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant as Clock};

use anyhow::Context;
use devmem_linux::netns::NetNs;
use nic::{Conditioner, Impairment, complete_checksum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use wire::Instant;

use gve::{ChecksumState, Offload};

use super::report::LaneReport;
use crate::counters::Lane as Counted;
use crate::nic_server::{FRAME_BUFFER_BYTES, Port, Written};
use crate::output::Failure;
use crate::plan::WireEnd;

/// Frames taken from one end before the other gets its turn.
const BATCH_FRAMES: usize = 64;

/// Both directions of a cable.
#[derive(Debug)]
pub struct Cable {
    ends: [Port; 2],
    /// From the first end to the second, and back.
    lanes: [Lane; 2],
    start: Clock,
    incoming: Box<[u8]>,
}

/// One direction.
#[derive(Debug)]
struct Lane {
    conditioner: Conditioner,
    /// A frame whose time has come.
    outgoing: Vec<u8>,
    /// The end that it goes to had no room for it.
    waits: bool,
    /// Frames that the receiving end refused: nobody was there, its interface was down, or it was out of memory.
    refused: u64,
}

/// Opens one end, a TAP in its network namespace, and sets the kernel's side of it up if it has an address to get.
///
/// # Errors
///
/// The TAP or the socket cannot be had.
pub fn open(end: &WireEnd, mtu: u16) -> Result<Port, Failure> {
    // Impairment works on frames as they are on a cable.
    let open = || Port::open(&end.port, mtu, false);
    match &end.netns {
        Some(name) => NetNs::open(name)?.run(open)?,
        None => open(),
    }
}

impl Cable {
    /// Joins two ends.
    pub fn new(ends: [Port; 2], impairment: Impairment) -> Self {
        // Each direction rolls its own dice.
        let other = Impairment {
            seed: !impairment.seed,
            ..impairment
        };
        Self {
            ends,
            lanes: [Lane::new(impairment), Lane::new(other)],
            start: Clock::now(),
            incoming: vec![0; FRAME_BUFFER_BYTES].into_boxed_slice(),
        }
    }

    /// Returns how long the ends have been joined.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns what became of the frames of each direction.
    pub fn report(&self) -> [LaneReport; 2] {
        self.lanes.each_ref().map(Lane::report)
    }

    /// Waits for something to do, at most `limit`, and does it.
    ///
    /// # Errors
    ///
    /// An end failed for good.
    pub fn step(&mut self, limit: Duration) -> Result<(), Failure> {
        let room = self.sleep(limit)?;
        let now = self.now();
        for (index, end) in self.ends.iter_mut().enumerate() {
            if let Port::Unix(port) = end {
                port.tend(now);
            }
            self.lanes[index].take_in(end, &mut self.incoming, now)?;
        }
        let now = self.now();
        let [a, b] = &mut self.ends;
        for ((lane, to), room) in self.lanes.iter_mut().zip([b, a]).zip(room) {
            lane.let_out(to, now, room);
        }
        Ok(())
    }

    /// Sleeps until a frame comes or is due; tells for each direction whether its end may have room again.
    fn sleep(&self, limit: Duration) -> Result<[bool; 2], Failure> {
        let limit = self
            .next_due()
            .map_or(limit, |due| due.saturating_since(self.now()).min(limit));
        let limit = Timespec::try_from(limit).context("a time to sleep")?;
        let [there, back] = &self.lanes;
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(4);
        // A lane ends where the other one begins.
        let peers = [(&self.ends[0], back), (&self.ends[1], there)].map(|(end, to_it)| {
            let (listener, peer) = poll_fds(end);
            fds.extend(listener.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let wanted = match to_it.waits {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            peer.map(|fd| {
                fds.push(PollFd::from_borrowed_fd(fd, wanted));
                fds.len() - 1
            })
        });
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::from(anyhow::Error::from(errno).context("poll"))),
        }
        // Nobody there is as good as room: the frame is refused then.
        let [to_a, to_b] =
            peers.map(|peer| peer.is_none_or(|at| fds[at].revents() != PollFlags::empty()));
        Ok([to_b, to_a])
    }

    /// Returns when there is something to do though nothing comes.
    fn next_due(&self) -> Option<Instant> {
        let frames = self
            .lanes
            .iter()
            .filter(|lane| !lane.waits)
            .filter_map(|lane| lane.conditioner.next_due());
        let ends = self.ends.iter().filter_map(|end| match end {
            Port::Tap(_) => None,
            Port::Unix(port) => port.next_due(),
        });
        frames.chain(ends).min()
    }

    fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        Instant::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Who may come, and who is there.
fn poll_fds(end: &Port) -> (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
    match end {
        Port::Tap(port) => (None, Some(port.fd())),
        Port::Unix(port) => port.fds(),
    }
}

impl Lane {
    fn new(impairment: Impairment) -> Self {
        Self {
            conditioner: Conditioner::new(impairment),
            outgoing: Vec::new(),
            waits: false,
            refused: 0,
        }
    }

    fn take_in(&mut self, from: &mut Port, buffer: &mut [u8], now: Instant) -> Result<(), Failure> {
        for _ in 0..BATCH_FRAMES {
            let read = from.read(buffer).map_err(failed)?;
            let Some((len, offload)) = read else {
                break;
            };
            let Some(frame) = buffer.get_mut(..len) else {
                continue;
            };
            if matches!(offload.checksum, ChecksumState::Partial(_)) {
                complete_checksum(frame);
            }
            self.conditioner.push(frame, now);
        }
        Ok(())
    }

    /// Hands over the frames whose time has come; `room`: the end may take the one that it had no room for.
    fn let_out(&mut self, to: &mut Port, now: Instant, room: bool) {
        if self.waits && !room {
            return;
        }
        while self.waits || self.conditioner.pop(now, &mut self.outgoing) {
            self.waits = false;
            match to.write(&self.outgoing, 0, Offload::default()) {
                Written::Done => {}
                Written::Full => {
                    self.waits = true;
                    return;
                }
                // Or the damage we did made the frame one that the driver refuses.
                Written::Lost => self.refused += 1,
            }
        }
    }

    fn report(&self) -> LaneReport {
        let lane = Counted::from(self.conditioner.stats());
        LaneReport {
            lane: Counted {
                delivered: lane.delivered - self.refused - u64::from(self.waits),
                ..lane
            },
            refused: self.refused,
        }
    }
}

fn failed(errno: Errno) -> Failure {
    let failure = Failure::from(anyhow::Error::from(errno).context("read from a TAP"));
    match errno {
        Errno::BADFD => failure.with_remedy("the interface was deleted: start again"),
        _ => failure,
    }
}
