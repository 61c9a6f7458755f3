//! What comes from one rank, is copied or added, and goes to another one, step by step, as the protocol Simple does it
//! (src/device/prims_simple.h). A step is in the buffer of a connection; counters say how many are filled and emptied.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use super::address::{Address, add, copy};
use super::kernel::{Aborted, Block};
use super::layout::*;

/// Looks before a thread that waits sleeps.
const SPINS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);

/// Slices to pass on before this process ends itself, for a test of what that does to others; many, unless the test says so.
pub static SLICES_LEFT: AtomicU32 = AtomicU32::new(u32::MAX);

/// How a chunk is cut: into slices, of so many steps each; and the bytes of a step and of an element.
#[derive(Clone, Copy)]
pub struct Pace {
    pub slices: usize,
    pub steps: u64,
    pub step_bytes: usize,
    pub width: usize,
}

/// A chunk that is passed on: elements that are received, or are at `from` of the own buffer, or the sums of both, are sent, or stay at `to`
/// of the other one.
#[derive(Clone, Copy)]
pub struct Pass {
    receives: bool,
    sends: bool,
    from: Option<usize>,
    to: Option<usize>,
    elements: usize,
}

impl Pass {
    /// Own elements are sent.
    pub fn first(from: usize, to: Option<usize>, elements: usize) -> Self {
        Self {
            receives: false,
            ..Self::middle(Some(from), to, elements)
        }
    }

    /// Elements are received, and sent.
    pub fn middle(from: Option<usize>, to: Option<usize>, elements: usize) -> Self {
        Self {
            receives: true,
            sends: true,
            from,
            to,
            elements,
        }
    }

    /// Elements are received.
    pub fn last(from: Option<usize>, to: usize, elements: usize) -> Self {
        Self {
            sends: false,
            ..Self::middle(from, Some(to), elements)
        }
    }
}

/// Ends of connections in use, and the addresses of the own buffer and of the one for results.
pub struct Pipe<'a> {
    pub receive: Option<End<'a>>,
    pub send: Option<End<'a>>,
    pub buffers: [usize; 2],
    pub pace: Pace,
}

impl Pipe<'_> {
    /// Passes a chunk on. At the end of the elements it may be empty, and takes steps all the same.
    pub fn pass(&mut self, pass: Pass) -> Result<(), Aborted> {
        let Pace {
            slices,
            steps,
            step_bytes,
            width,
        } = self.pace;
        let least = step_bytes / width * steps as usize / 32;
        let slice = (pass.elements.div_ceil(16 * slices) * 16).max(least);
        for number in 0..slices {
            let begin = pass.elements.min(number * slice);
            let elements = slice.min(pass.elements - begin);
            let [from, to] = [pass.from, pass.to].map(|place| Some(place? + begin));
            self.pass_slice(Pass {
                from,
                to,
                elements,
                ..pass
            })?;
        }
        Ok(())
    }

    fn pass_slice(&mut self, pass: Pass) -> Result<(), Aborted> {
        if SLICES_LEFT.fetch_sub(1, Ordering::Relaxed) == 0 {
            std::process::abort();
        }
        let Pace { steps, width, .. } = self.pace;
        let [own, results] = self.buffers;
        let from = pass.from.map(|place| own + place * width);
        let to = pass.to.map(|place| results + place * width);
        let len = pass.elements * width;
        let mut receive = self.receive.as_mut().filter(|_| pass.receives);
        let mut send = self.send.as_mut().filter(|_| pass.sends);
        let wait = |end: &mut &mut End<'_>| end.wait(steps, len);
        let received = receive.as_mut().map(wait).transpose()?;
        let sent = send.as_mut().map(wait).transpose()?;
        let mut targets = to.into_iter().chain(sent);
        let first = targets.next().expect("something is done with the elements");
        match (from, received) {
            (Some(from), Some(received)) => add(from, received, first, len),
            (from, received) => copy(from.or(received).expect("elements"), first, len),
        }
        targets.for_each(|target| copy(first, target, len));
        for end in [receive, send].into_iter().flatten() {
            end.post(steps);
        }
        Ok(())
    }
}

/// What an end of a connection is for: where it is in a peer; the counter to wait for, and what is added to it; and the counter to raise.
pub struct Side {
    at: usize,
    waits: usize,
    room: u64,
    posts: usize,
}

pub static RECEIVE: Side = Side {
    at: PEER_RECEIVE,
    waits: CONNECTION_TAIL,
    room: 0,
    posts: CONNECTION_HEAD,
};
pub static SEND: Side = Side {
    at: PEER_SEND,
    waits: CONNECTION_HEAD,
    room: STEPS,
    posts: CONNECTION_TAIL,
};

/// One end of a connection.
pub struct End<'a> {
    block: &'a Block,
    side: &'static Side,
    connection: Address,
    step: u64,
}

impl<'a> End<'a> {
    /// Opens a connection of a peer: goes on at the next whole chunk.
    pub fn open(
        block: &'a Block,
        side: &'static Side,
        (peer, index): (usize, usize),
        pace: Pace,
    ) -> Self {
        let peers = block.channel.to(CHANNEL_PEERS);
        let peer = peers.to(peer * size_of::<usize>());
        let connection = peer.plus(side.at + index * CONNECTION_BYTES);
        let step = connection.u64(CONNECTION_STEP) as u64;
        let mut end = Self {
            block,
            side,
            connection,
            step: step.next_multiple_of(pace.steps * pace.slices as u64),
        };
        if side.room == 0 {
            // What that leaves out is given back.
            end.post(0);
        }
        end
    }

    /// Waits for steps: filled ones, or empty ones, for which the proxy is told how much will be in them. Returns where they are.
    fn wait(&self, steps: u64, len: usize) -> Result<usize, Aborted> {
        let counter = self.connection.counter(self.side.waits);
        let mut looks = 0;
        // A proxy that has yet to give room begins below 0.
        while counter.load(Ordering::Acquire).wrapping_add(self.side.room) < self.step + steps {
            if self.block.comm.flag(COMM_ABORT) {
                return Err(Aborted);
            }
            looks += 1;
            match looks < SPINS {
                true => thread::yield_now(),
                false => thread::sleep(NAP),
            }
        }
        let slot = (self.step % STEPS) as usize;
        let buffer = self.connection.u64(CONNECTION_BUFFER);
        let [bytes, offset, size] = self.block.version.layout.fifo;
        let entry = self.connection.to(CONNECTION_FIFO).plus(slot * bytes);
        if self.side.room != 0 {
            entry.set(size, len as u64);
        }
        match entry.u32(FIFO_MODE) {
            1 => Ok(buffer + entry.u32(offset)),
            _ => Ok(buffer + slot * self.connection.u32(CONNECTION_STEP_BYTES)),
        }
    }

    fn post(&mut self, steps: u64) {
        self.step += steps;
        let counter = self.connection.counter(self.side.posts);
        counter.store(self.step, Ordering::Release);
    }
}

impl Drop for End<'_> {
    /// Leaves the place for the next kernel.
    fn drop(&mut self) {
        self.connection.set(CONNECTION_STEP, self.step);
    }
}
