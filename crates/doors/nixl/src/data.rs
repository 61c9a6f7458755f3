//! A connection for payload, which carries nothing else. Records of the control connection say what the next bytes are, in either direction.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use crate::awaited::{Awaited, Destination, Placed};
use crate::broken::Broken;
use crate::raw::scatter::Scatter;
use crate::wire::{GpuBytes, Wire};

/// Bytes of one system call.
const CALL_BYTES: usize = 1 << 20;

/// Bytes of memory of GPUs that are in host memory on their way to or from the connection.
const STAGED_BYTES: usize = 256 << 10;

/// A connection for payload.
#[derive(Debug)]
pub(crate) struct DataStream {
    pub(crate) wire: Box<dyn Wire>,
    out: VecDeque<Scatter>,
    queued: u64,
    awaited: Awaited<()>,
    staged: Staged,
}

/// Host memory between a connection and memory of GPUs, which the kernel cannot read or write.
#[derive(Debug, Default)]
struct Staged {
    /// Bytes to send. The buffers are made at their first use.
    out: Vec<u8>,
    unsent: Range<usize>,
    input: Vec<u8>,
    /// Bytes that have passed, both ways.
    passed: u64,
}

impl Staged {
    /// Sends what was taken from a memory before; then takes more, and sends that.
    fn send(
        &mut self,
        from: &mut Scatter,
        wire: &mut dyn Wire,
        at_most: usize,
    ) -> io::Result<Option<usize>> {
        if self.unsent.is_empty() {
            self.out.resize(STAGED_BYTES, 0);
            let taken = from.take(&mut self.out[..at_most.min(STAGED_BYTES)])?;
            self.unsent = 0..taken;
            self.passed += taken as u64;
        }
        let sent = wire.write(&self.out[self.unsent.clone()])?;
        self.unsent.start += sent.unwrap_or(0);
        Ok(sent)
    }

    fn receive(
        &mut self,
        to: &mut Scatter,
        wire: &mut dyn Wire,
        at_most: usize,
    ) -> io::Result<Option<usize>> {
        let left = usize::try_from(to.left()).unwrap_or(usize::MAX);
        self.input.resize(STAGED_BYTES, 0);
        let room = &mut self.input[..STAGED_BYTES.min(at_most).min(left)];
        let Some(received) = wire.read(room)? else {
            return Ok(None);
        };
        to.fill(&room[..received])?;
        self.passed += received as u64;
        Ok(Some(received))
    }
}

impl DataStream {
    pub(crate) fn new(wire: Box<dyn Wire>) -> Self {
        Self {
            wire,
            out: VecDeque::new(),
            queued: 0,
            awaited: Awaited::default(),
            staged: Staged::default(),
        }
    }

    /// Returns what has passed of memory of GPUs since the last call.
    pub(crate) fn take_gpu_bytes(&mut self) -> GpuBytes {
        let mut bytes = self.wire.take_gpu_bytes();
        bytes.staged += std::mem::take(&mut self.staged.passed);
        bytes
    }

    pub(crate) fn send(&mut self, from: Scatter) {
        self.queued += from.left();
        self.out.push_back(from);
    }

    pub(crate) fn expect(&mut self, transfer: u64, to: Scatter) {
        self.awaited.expect(transfer, to, ());
    }

    /// Bytes and pieces that are to be sent.
    pub(crate) fn queued(&self) -> (u64, usize) {
        (self.queued, self.out.len())
    }

    /// Bytes and pieces that are to come.
    pub(crate) fn owed(&self) -> (u64, usize) {
        self.awaited.owed()
    }

    /// From now on, bytes of a transfer go nowhere: its memory may be used otherwise.
    pub(crate) fn discard(&mut self, transfer: u64) {
        self.awaited.discard(transfer);
    }

    /// Returns whether a turn would send something at once.
    pub(crate) fn can_go_on(&self) -> bool {
        !self.out.is_empty() && self.wire.can_write()
    }

    /// Sends what the connection takes, until the budget is used up. Returns whether that was something.
    pub(crate) fn push(&mut self, budget: &mut usize) -> Result<bool, Broken> {
        let mut worked = false;
        while let Some(first) = self.out.front_mut()
            && *budget > 0
        {
            let at_most = CALL_BYTES.min(*budget);
            let sent = match first.is_host() || self.wire.takes_gpus() {
                true => self.wire.send(first, at_most)?,
                false => self.staged.send(first, &mut *self.wire, at_most)?,
            };
            let Some(bytes) = sent else {
                break;
            };
            worked = true;
            *budget = budget.saturating_sub(bytes);
            self.queued = self.queued.saturating_sub(bytes as u64);
            if first.left() == 0 && self.staged.unsent.is_empty() {
                self.out.pop_front();
            }
        }
        Ok(worked)
    }

    /// Receives what was announced and has come, until the budget is used up. Returns whether that was something.
    pub(crate) fn pull(
        &mut self,
        budget: &mut usize,
        placed: &mut Vec<Placed>,
    ) -> Result<bool, Broken> {
        let mut worked = false;
        let (wire, staged) = (&mut self.wire, &mut self.staged);
        while self
            .awaited
            .pull(budget, placed, |it, at_most| {
                receive(&mut **wire, staged, &mut it.to, at_most)
            })?
            .is_some()
        {
            worked = true;
        }
        Ok(worked)
    }
}

fn receive(
    wire: &mut dyn Wire,
    staged: &mut Staged,
    to: &mut Destination,
    at_most: usize,
) -> Result<Option<usize>, Broken> {
    let received = match to {
        Destination::Memory(scatter) if scatter.is_host() || wire.takes_gpus() => {
            wire.receive(scatter, at_most)?
        }
        Destination::Memory(scatter) => staged.receive(scatter, wire, at_most)?,
        Destination::Nowhere(left) => {
            let wanted = usize::try_from(*left).unwrap_or(usize::MAX);
            let received = wire.discard(wanted.min(at_most))?;
            *left = left.saturating_sub(received.unwrap_or(0) as u64);
            received
        }
    };
    match received {
        Some(0) => Err(Broken::Ended),
        received => Ok(received),
    }
}
