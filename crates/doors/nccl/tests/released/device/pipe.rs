// UNSAFETY: copies between the buffers of a connection and those of the application, as NCCL's kernels do.

//! What comes from one rank, is copied or added, and goes to another one, step by step, as the protocol Simple does it
//! (src/device/prims_simple.h). A step is in the buffer of a connection; counters say how many are filled and emptied.
#![allow(unsafe_code)]

use std::ptr::{with_exposed_provenance as at, with_exposed_provenance_mut as at_mut};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::kernel::{Aborted, Address, Block};
use super::layout::*;
use super::memory::copy;

/// Looks before a thread that waits sleeps.
const LOOKS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);

/// Which ends of a pipe are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Send,
    Receive,
    Both,
}

/// How a chunk is cut: into slices, of so many steps each; and the bytes of a step and of an element.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub slices: usize,
    pub steps: u64,
    pub step_bytes: usize,
    pub width: usize,
}

/// Ends of connections in use.
pub struct Pipe<'a> {
    pub receive: Option<End<'a>>,
    pub send: Option<End<'a>>,
    pub pace: Pace,
}

/// One end of a connection.
pub struct End<'a> {
    block: &'a Block,
    connection: Address,
    step: u64,
    /// The counter to wait for, what to add to it, and the one to raise.
    waits: (usize, u64),
    posts: usize,
}

impl Pipe<'_> {
    /// Passes elements on: what is received, or is `from` here, or the sum of both, is sent, or stays here (`to`). At the end of a chunk there may
    /// be fewer than none.
    pub fn pass(
        &mut self,
        way: Way,
        from: Option<usize>,
        to: Option<usize>,
        elements: isize,
    ) -> Result<(), Aborted> {
        let Pace {
            slices,
            steps,
            step_bytes,
            width,
        } = self.pace;
        let elements = usize::try_from(elements).unwrap_or(0);
        let least = step_bytes / width * steps as usize / 32;
        let slice = (elements.div_ceil(16 * slices) * 16).max(least);
        for number in 0..slices {
            let begin = elements.min(number * slice);
            let count = slice.min(elements - begin);
            let local = [from, to].map(|address| address.map(|it| it + begin * width));
            self.pass_slice(way, local, count * width)?;
        }
        Ok(())
    }

    fn pass_slice(
        &mut self,
        way: Way,
        [from, to]: [Option<usize>; 2],
        len: usize,
    ) -> Result<(), Aborted> {
        let steps = self.pace.steps;
        let mut receive = self.receive.as_mut().filter(|_| way != Way::Send);
        let mut send = self.send.as_mut().filter(|_| way != Way::Receive);
        let received = receive
            .as_ref()
            .map(|end| end.wait(steps, len))
            .transpose()?;
        let sent = send.as_ref().map(|end| end.wait(steps, len)).transpose()?;
        let mut targets = to.into_iter().chain(sent);
        let first = targets.next().expect("something is done with the elements");
        match (from, received) {
            (Some(from), Some(received)) => add(from, received, first, len),
            _ => copy(from.or(received).expect("there are elements"), first, len),
        }
        targets.for_each(|target| copy(first, target, len));
        for end in [&mut receive, &mut send].into_iter().flatten() {
            end.post(steps);
        }
        Ok(())
    }
}

impl<'a> End<'a> {
    /// Opens a connection for receiving: goes on at the next whole chunk, and gives back what that leaves out.
    pub fn receive(block: &'a Block, peer: usize, index: usize, pace: Pace) -> Self {
        let waits = (CONNECTION_TAIL, 0);
        let end = Self::new(
            block,
            (peer, PEER_RECEIVE, index),
            pace,
            waits,
            CONNECTION_HEAD,
        );
        end.connection
            .counter(CONNECTION_HEAD)
            .store(end.step, Ordering::Release);
        end
    }

    /// Opens a connection for sending.
    pub fn send(block: &'a Block, peer: usize, index: usize, pace: Pace) -> Self {
        let waits = (CONNECTION_HEAD, STEPS);
        Self::new(
            block,
            (peer, PEER_SEND, index),
            pace,
            waits,
            CONNECTION_TAIL,
        )
    }

    fn new(
        block: &'a Block,
        (peer, direction, index): (usize, usize, usize),
        pace: Pace,
        waits: (usize, u64),
        posts: usize,
    ) -> Self {
        let peer = block
            .channel
            .to(CHANNEL_PEERS)
            .to(peer * size_of::<usize>());
        let connection = peer.plus(direction + index * CONNECTION_BYTES);
        let step = connection.u64(CONNECTION_STEP) as u64;
        Self {
            block,
            connection,
            step: step.next_multiple_of(pace.steps * pace.slices as u64),
            waits,
            posts,
        }
    }

    /// Waits for steps: filled ones, or empty ones, for which the proxy is told how much will be in them. Returns where they are.
    fn wait(&self, steps: u64, len: usize) -> Result<usize, Aborted> {
        let (counter, room) = self.waits;
        let counter = self.connection.counter(counter);
        let mut looks = 0;
        // A proxy that has yet to give room begins below 0.
        while counter.load(Ordering::Acquire).wrapping_add(room) < self.step + steps {
            if self.block.is_aborted() {
                return Err(Aborted);
            }
            looks += 1;
            match looks < LOOKS {
                true => thread::yield_now(),
                false => thread::sleep(NAP),
            }
        }
        let slot = (self.step % STEPS) as usize;
        let buffer = self.connection.u64(CONNECTION_BUFFER);
        let [bytes, offset, size] = self.block.layout.fifo;
        let entry = self.connection.to(CONNECTION_FIFO).plus(slot * bytes);
        if room != 0 {
            entry.set(size, len as u64);
        }
        match entry.u32(FIFO_MODE) {
            1 => Ok(buffer + entry.u32(offset)),
            _ => Ok(buffer + slot * self.connection.u32(CONNECTION_STEP_BYTES)),
        }
    }

    fn post(&mut self, steps: u64) {
        self.step += steps;
        self.connection
            .counter(self.posts)
            .store(self.step, Ordering::Release);
    }
}

impl Drop for End<'_> {
    /// Leaves the place for the next kernel.
    fn drop(&mut self) {
        self.connection.set(CONNECTION_STEP, self.step);
    }
}

/// Adds floats.
fn add(one: usize, other: usize, to: usize, len: usize) {
    for offset in (0..len).step_by(4) {
        let [one, other] = [one, other].map(|from| {
            // SAFETY: as in `copy`.
            unsafe { at::<f32>(from + offset).read_unaligned() }
        });
        // SAFETY: as in `copy`.
        unsafe { at_mut::<f32>(to + offset).write_unaligned(one + other) };
    }
}
